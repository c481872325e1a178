"""What a calibration is: a function of arrays that says what it `Found`; the rest is done once, here.

Every gate gives two verdicts: the published rule on the point estimate, and a confidence statement on the
same quantity, wrong in either direction with probability at most 5 %. What the data do not determine is
`inconclusive` with a reason, never a pass and never a fail.
"""

import functools
import inspect
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from assay.core.errors import InputError, check_least, unknown_name
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, Verdict
from assay.core.record import BRIEF, Record
from assay.core.registry import Registry
from assay.page.text import listed


SEED = 42  # root of the published resampling streams
_MODERATE = "Between the limit of a fail and the limit of a pass: use the number with care."
_SIZES = ("circuit_size", "n_heads")
_COUNTS = ("n_boot", "n_perm", "n_draws", "n_halves")  # options of gates, at least 1
_WORST_FIRST = ("fail", "inconclusive", "moderate", "pass", "none")

Heads = Sequence[Sequence[int]]  # (layer, head) of the circuit's heads, in the order of their columns
Explanation = tuple[str, str]  # why, and what to do about it

_SOLVES = "Measure more prompts, or use a task that the model solves."


# ---- how a gate draws -------------------------------------------------------------------------------


def gate_stream(code: str, task: str = "", *, seed: int = SEED) -> np.random.Generator:
    """The generator of one gate on one task: results do not depend on which other gates ran.

    `Generator(PCG64(SeedSequence([seed, crc32(code), crc32(task)])))`.
    """
    words = [seed, zlib.crc32(code.encode()), zlib.crc32(task.encode())]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampling:
    """Options that gates share: what they draw at random, and what is one observation.

    A function of a gate that takes `how` is called with these as keywords, as in `n_boot=200, seed=1`.

    Attributes:
        task: Names the random stream.
        seed: Its root.
        unit_id: `[n]` label of each prompt; prompts of one label (one image, one sentence) are one
            observation and are drawn together. None: each by itself.
        strata: `[n]` class of each prompt: samples of a pool have the proportions of the pool (C16, C30).
        n_boot: Resamples.
        n_perm: Permutations behind a p-value, where not all can be counted.
        level: Two-sided coverage of the bounds.
    """

    task: str = ""
    seed: int = SEED
    unit_id: Any = None
    strata: Any = None
    n_boot: int = 1000
    n_perm: int = 10_000
    level: float = ONE_SIDED_95

    def stream(self, code: str, part: str = "") -> np.random.Generator:
        """The generator of a gate, or of a part of one, on the task."""
        return gate_stream(code, self.task + part, seed=self.seed)


SAMPLED = tuple(each.name for each in fields(Sampling) if each.name != "level")  # what a caller may set


# ---- what a gate computes ---------------------------------------------------------------------------


@dataclass(kw_only=True, eq=False)
class Found:
    """What a gate, or a part of one, computed, noted on the way; `Quantity.judge` makes a verdict of it.

    Attributes:
        values: Numbers by name, that which is judged among them; see `Quantity`.
        interval: Bounds of the judged number.
        n: Examples behind them; None where there are no more to be had, as of heads.
        published: Word of the published rule, where it is not that of the rule on a number.
        status: Word with confidence, where something else than the interval decides.
        reason: Code of why there is none, or of what to know about it.
        n_needed: Examples that would settle it, where they do not follow from the interval.
        thresholds: Further limits, or other ones than the rule's, by name.
        warnings: Codes.
        details: Further numbers, JSON values.
        parts: Verdicts that this one is made of, or that accompany it.
    """

    values: dict[str, float | None] = field(default_factory=dict)
    interval: Interval | None = None
    n: int | None = None
    published: str | None = None
    status: str | None = None
    reason: str | None = None
    n_needed: int | None = None
    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Verdict] = field(default_factory=dict)

    def warn(self, **codes: bool | np.bool_) -> None:
        """Add the codes that apply, once."""
        self.warnings += tuple(
            code for code, applies in codes.items() if applies and code not in self.warnings
        )

    def stop_if(self, applies: bool | np.bool_ | str | None, reason: str = "") -> None:
        """Stop where these data do not say.

        Raises:
            Undetermined: With the reason, where it applies; a reason may also come alone.
        """
        if applies:
            raise Undetermined(reason or str(applies), self)

    def claim(self, key: str, name: str, p: Any, kind: str, *, claimed: Any = "pass", **more: Any) -> None:
        """Note a p-value for M93, which reads it by `claims_of`.

        Args:
            key: Reports of the same test share it.
            name: The claim that it speaks for; `{}` is where a head is named.
            p: In the direction of the claim; None or NaN where it is undefined.
            kind: As `PooledResult.p_kind`.
            claimed: Whether the claim is made, or the status of the verdict that makes it.
            **more: `head`, its place among the circuit's; `value`, `baseline`, `n` of a `PooledResult`.
        """
        told = {"test_key": key, "name": name, "p": p, "p_kind": kind, "claimed": claimed, **more}
        self.details.setdefault("claims", []).append(told)

    def open(self, reason: str | None, n_needed: int | None = None) -> None:
        """Leave it without a verdict with confidence."""
        self.status, self.reason, self.n_needed = "inconclusive", reason, n_needed

    def undefined(self, reason: str, **more: Any) -> "Found":
        """The same, of a number that these data do not determine or that does not apply to them.

        Args:
            reason: Code: `not_applicable`, `too_few`, `zero_denominator`, `no_valid_prompt`, ...
            **more: Fields to set.
        """
        for name, value in more.items():
            setattr(self, name, value)
        self.open(reason)
        self.published = self.published or "inconclusive"
        return self


class Undetermined(Exception):  # noqa: N818 - an answer, not an error
    """Raised inside a gate where these data do not say.

    Args:
        reason: Code of why.
        found: What was noted so far.
        **more: Fields of it to set.
    """

    def __init__(self, reason: str, found: Found | None = None, **more: Any) -> None:
        super().__init__(reason)
        self.found = (found or Found()).undefined(reason, **more)


# ---- what is judged ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Judged(Record):
    """What was decided about one number, whole: pages and pictures need nothing else.

    Attributes:
        label: What the number is called.
        value: The number; None where it is undefined.
        published_value: The number that the published rule judges, where it is on the same scale.
        interval: Bounds on the scale of the value; None without finite ones.
        rule: Thresholds and direction; None for a reported number.
        status, published, reason: As those of `Verdict`.
        sentence: What the decision means.
        because: Why there is no verdict.
        remedy: What would give one.
        unit: Distance from the first limit that counts as one.
        part: Sub-result that the number belongs to, if it is not the verdict's own.
    """

    label: str
    value: float | None
    published_value: float | None
    interval: Interval | None
    rule: Rule | None
    status: str
    published: str
    reason: str | None
    sentence: str = field(default="", metadata=BRIEF)
    because: str = field(default="", metadata=BRIEF)
    remedy: str = field(default="", metadata=BRIEF)
    unit: float = 1.0
    part: str = field(default="", metadata=BRIEF)

    @property
    def state(self) -> str:
        """The status, where `not applicable` and `undefined` are kept apart from `inconclusive`."""
        if self.status != "inconclusive":
            return self.status
        if self.reason == "not_applicable":
            return "not applicable"
        return "undefined" if self.value is None and self.reason else "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that a gate, or a part of one, judges: its name, its two rules and its range.

    Attributes:
        label: What the number is called.
        value: Entry of `Verdict.values` that the interval belongs to.
        rule: With confidence; None for a reported number. Limits of a verdict's own `thresholds` (`pass`,
            `fail`) go before its.
        published: Entry that the published rule judges; None where it judges something on another scale.
        published_rule: Default: `rule`.
        fewest: Examples below which a verdict is `too_few`; also those that are needed where bounds say so.
        unit: Distance from a limit of 0 that is worth speaking of; None: the limit itself is the unit.
        qualified_by: Entry of `Verdict.details` that completes the label, e.g. a field that groups prompts.
    """

    label: str
    value: str = "value"
    rule: Rule | None = None
    published: str | None = "value"
    published_rule: Rule | None = None
    fewest: int | None = None
    unit: float | None = None
    qualified_by: str = ""

    def judge(self, found: Found) -> Verdict:
        """Both verdicts on what was found."""
        at, interval = self.rule, found.interval
        limits = {"pass": at.pass_at, "fail": at.pass_at if at.fail_at is None else at.fail_at} if at else {}
        thresholds = {**limits, **found.thresholds}
        rule = self._rule(thresholds)
        value, by = (_finite(found.values, name) for name in (self.value, self.published or ""))
        status, reason, needed = found.status, found.reason, found.n_needed
        if rule is None:
            published = found.published or ("inconclusive" if value is None else "none")
            status = status or ("inconclusive" if value is None else "none")
        else:
            numbers = self.published_rule or rule
            published = found.published or numbers.published(math.nan if by is None else by)
            if status is None and interval is not None:
                told = rule.judge(math.nan if value is None else value, interval, found.n or 0, reason)
                status, reason = told.status, told.reason
                needed = needed or (told.n_needed if found.n else None)
                if interval.reason == "too_few":
                    needed = self.fewest or found.n_needed
        few = reason is None and found.n is not None and found.n < (self.fewest or 0)
        if few and (interval is None or interval.reason != "degenerate"):
            status, reason, needed = "inconclusive", "too_few", self.fewest
        return Verdict(
            status=status or "inconclusive",
            published=published,
            values=found.values,
            thresholds=thresholds,
            interval=interval,
            n_needed=needed,
            reason=reason,
            sub_results=found.parts,
            warnings=found.warnings,
            details=found.details,
        )

    def judges(self, function: Callable[..., Found | Verdict]) -> Callable[..., Verdict]:
        """Make a function of what it found, or why it did not, give verdicts."""
        shared = _shared(function)

        @functools.wraps(function)
        def judge(*arrays: Any, **options: Any) -> Verdict:
            check_least(1, **{name: count for name, count in options.items() if name in _COUNTS})
            if shared and "how" not in options:
                given = {name: options.pop(name) for name in shared.intersection(options)}
                options["how"] = Sampling(**given)
            try:
                found = function(*arrays, **options)
            except Undetermined as why:
                found = why.found
            return found if isinstance(found, Verdict) else self.judge(found)

        judge.__annotations__ = {**function.__annotations__, "return": Verdict}
        return judge

    def of(self, verdict: Verdict) -> Judged:
        """The number of a verdict with its interval, its limits and what was decided."""
        rule, interval = self._rule(verdict.thresholds), verdict.interval
        finite = interval is not None and math.isfinite(interval.low) and math.isfinite(interval.high)
        by = verdict.details.get(self.qualified_by)
        qualifier = f" ({'as given' if by == 'given' else f'by {by}'})" if by else ""
        return Judged(
            label=self.label + qualifier,
            value=_finite(verdict.values, self.value),
            published_value=None if self.published is None else _finite(verdict.values, self.published),
            interval=interval if finite else None,
            rule=rule,
            status=verdict.status,
            published=verdict.published,
            reason=verdict.reason,
            unit=self.unit or abs((rule.pass_at if rule else 0.0) or 1.0),
        )

    def _rule(self, thresholds: Mapping[str, float | None]) -> Rule | None:
        """The rule at the thresholds of one verdict."""
        pass_at, fail_at = _finite(thresholds, "pass"), _finite(thresholds, "fail")
        if self.rule is None or pass_at is None:
            return None
        return replace(self.rule, pass_at=pass_at, fail_at=None if fail_at == pass_at else fail_at)


@dataclass(frozen=True)
class Part(Quantity):
    """A part that is read off one argument of a gate.

    Attributes:
        column: The argument.
        find: What it says, also told all arguments by name.
    """

    column: str
    find: Callable[[Any, Mapping[str, Any]], Found | Verdict]

    def verdict(self, given: Mapping[str, Any]) -> Verdict:
        """The verdict of the row; `not_applicable` without its argument."""
        try:
            Found().stop_if(given.get(self.column) is None, "not_applicable")
            found = self.find(given[self.column], given)
            return found if isinstance(found, Verdict) else self.judge(found)
        except Undetermined as why:
            word, values, found = "inconclusive", {"value": None}, why.found
            more: Any = {"reason": found.reason, "warnings": found.warnings}
            return Verdict(status=word, published=word, values=values, **more)


@functools.cache
def _shared(function: Callable[..., Any]) -> frozenset[str]:
    """Options of `Sampling` that a function is told by its `how`; those of its own go before."""
    own = set(inspect.signature(function).parameters)
    return frozenset({each.name for each in fields(Sampling)} - own if "how" in own else ())


def _finite(numbers: Mapping[str, float | None], name: str) -> float | None:
    value = numbers.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _deciding(parts: Mapping[str, Verdict], names: Sequence[str]) -> str:
    """The part that decides, where a verdict is the worst of several: of the worst status, the first."""
    known = [name for name in names if name in parts and parts[name].reason != "not_applicable"]
    return min(known, key=lambda name: _WORST_FIRST.index(parts[name].status), default="")


# ---- the gate ---------------------------------------------------------------------------------------


def _nothing(columns: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A calibration: its rules, its words, its function. Pages, lists and documentation read only this.

    Attributes:
        key: Registered name, e.g. `bootstrap-stability`.
        code: Published code, e.g. `C11`.
        name: What a reader calls it.
        criterion: Criterion of the framework it serves, e.g. `M1 Reliability`.
        needs: Names of the arrays it takes, as its function spells them. Of a gate of another package, the
            columns of a `MeasurementTable` that `calibrate_all` hands it in this order; also `members` (a
            flag per head) and `y_keep` (the circuit's runs under the table's own ablation).
        function: Arrays in; out comes what it `Found`, or a whole `Verdict`.
        question: What it asks, one sentence.
        on_pass, on_fail: What either outcome licenses.
        generalises_over: What its verdict with confidence is a sample of. C12 and F59 say `resampled` in the
            details of a verdict, because scores without prompts leave only the heads.
        weakness: What is wrong with the published form.
        source: Author, year, arXiv id.
        number: The number that it judges; default: `Verdict.values["value"]`, called after the gate.
        parts: The same of its parts, by their names in `sub_results`; `part.inner` of a part of a part. A
            part that is not listed is read as the gate is where it has such a number.
        decisive: Parts of which the worst decides; pages then show their numbers, not one of the gate.
        reasons: Code of a reason -> why there is no verdict, and what to do about it, where this gate can say
            more than `REASONS` does.
        parts_share_reasons: Whether `reasons` speak of its parts, too.
        when_open: What settles an open verdict when the number of prompts that would is not known.
        counts: What more of would settle it when the number is known.
        sized: Whether it takes `circuit_size` and `n_heads` (of the model), and warns of an empty circuit and
            of one that holds every head.
        figure: A block of its page beside the tables, of a verdict's details.
        columns: What `calibrate_all` hands it, by argument, of the `Columns` of a circuit. What it `needs`
            beside these, units of prompts, task, seed and sizes follow by name. Entries `details` and
            `warnings` are added to those of the verdict. An `Undetermined` raised here is the verdict.
        reads: Options of `Sampling` that its function reads of its `how`; others are refused.
        beside: Verdicts that go with its own, by name in `sub_results`: the arguments that differ. One whose
            first is None is left out.
    """

    key: str
    code: str
    name: str
    criterion: str
    needs: tuple[str, ...]
    function: Callable[..., Found | Verdict]
    question: str
    on_pass: str
    on_fail: str
    generalises_over: str = "prompts like these"
    weakness: str = ""
    source: str = "mechanistic-validity framework"
    number: Quantity | None = None
    parts: Mapping[str, Quantity] = field(default_factory=dict)
    decisive: tuple[str, ...] = ()
    reasons: Mapping[str, Explanation] = field(default_factory=dict)
    parts_share_reasons: bool = True
    when_open: str = "Measure more prompts."
    counts: str = "prompts"
    sized: bool = False
    figure: Callable[[Mapping[str, Any]], Any] | None = None
    columns: Callable[[Any], Mapping[str, Any]] = _nothing
    reads: tuple[str, ...] = ("task", "seed", "unit_id")
    beside: Callable[[Any], Mapping[str, Mapping[str, Any]]] = _nothing

    def __call__(self, *arrays: Any, **options: Any) -> Verdict:
        return self.worded(self.judge(*arrays, **options))

    def judge(self, *arrays: Any, **options: Any) -> Verdict:
        """The verdict on arrays, without words."""
        if unread := sorted({*SAMPLED}.intersection(options) - self.options):
            readers = [each.code for each in GATES.values() if unread[0] in each.options]
            raise InputError(f"{self.code} does not read {unread[0]}; {listed(readers)} do")
        size, n_heads = (options.pop(name, None) if self.sized else None for name in _SIZES)
        if size is not None and not 0 <= size <= (size if n_heads is None else n_heads):
            raise InputError(f"circuit_size is {size} of n_heads {n_heads}; expected 0 to n_heads")
        verdict = self._number.judges(self.function)(*arrays, **options)
        flags = {"empty_circuit": size == 0, "trivial_circuit": bool(size) and size == n_heads}
        odd = tuple(code for code, applies in flags.items() if applies)
        return replace(verdict, warnings=(*odd, *verdict.warnings))

    @property
    def _number(self) -> Quantity:
        return self.number or Quantity(label=self.name)

    @property
    def _reasons(self) -> Mapping[str, Explanation]:
        n = self._number.fewest
        why = f"Below {n} {self.counts}, no bounds hold for skewed values."
        few = (why, f"Measure at least {n} prompts.")
        return {"too_few": few, **self.reasons} if n else self.reasons

    def worded(self, verdict: Verdict) -> Verdict:
        """A verdict of this gate with `judged`: its number and what it means, also of its parts."""
        parts, (because, remedy) = self._parts(verdict), explained(verdict.reason, self._reasons)
        judged = replace(self._number.of(verdict), because=because)
        if part := _deciding(parts, self.decisive):
            words = {name: getattr(judged, name) for name in ("status", "published", "reason", "because")}
            judged = replace(Judged.from_dict(parts[part].judged), part=part, **words)
        if judged.state == "inconclusive" and not verdict.reason:
            remedy = self.when_open
        on_pass, on_fail = sentence(self.on_pass), sentence(self.on_fail)
        meanings = {"pass": on_pass, "fail": on_fail, "moderate": _MODERATE}
        meaning = meanings.get(judged.state, f"If it passed: {on_pass} If it failed: {on_fail}")
        judged = replace(judged, sentence=meaning, remedy=remedy)
        return replace(verdict, judged=judged.to_dict(), sub_results=parts)

    def _parts(self, verdict: Verdict, place: str = "") -> dict[str, Verdict]:
        """The parts of a verdict, or of one of its parts, with the number that each judges."""
        parts, reasons = {}, self._reasons if self.parts_share_reasons else {}
        for name, each in verdict.sub_results.items():
            at, label = f"{place}.{name}".strip("."), name.replace("_", " ") or "no task"
            like = self.number if self.number and self.number.value in each.values else Quantity(label=label)
            number = self.parts.get(at) or replace(like, label=label)
            judged = replace(number.of(each), because=explained(each.reason, reasons)[0])
            parts[name] = replace(each, judged=judged.to_dict(), sub_results=self._parts(each, at))
        return parts

    @functools.cached_property
    def options(self) -> frozenset[str]:
        """Names of what its function may be told beside its arrays."""
        parameters = inspect.signature(self.function).parameters
        own = {name for name, each in parameters.items() if each.default is not each.empty}
        return frozenset(
            own.union(_shared(self.function).intersection(self.reads), _SIZES if self.sized else ())
        )


GATES: Registry[Gate] = Registry("gate", holds=Gate)


def gate(
    *, code: str, key: str = "", **facts: Any
) -> Callable[[Callable[..., Found | Verdict]], Callable[..., Verdict]]:
    """Register the function below as a gate, and make it give verdicts.

    Its key is the name of the function with hyphens, its name the same with spaces, and it needs the
    function's positional arguments, unless `key` or `facts` (fields of `Gate`) say otherwise.
    """

    def register(function: Callable[..., Found | Verdict]) -> Callable[..., Verdict]:
        parameters = inspect.signature(function).parameters.values()
        arrays = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
        named = key or function.__name__.replace("_", "-")
        usual = {"needs": arrays, "name": named.replace("-", " ").capitalize()}
        made = Gate(key=named, code=code, function=function, **{**usual, **facts})
        GATES.add(named, made)

        @functools.wraps(function)
        def judge(*arrays: Any, **options: Any) -> Verdict:
            return made(*arrays, **options)

        judge.__annotations__ = {**function.__annotations__, "return": Verdict}
        return judge

    return register


def find_gate(name: str) -> Gate:
    """The gate of a key or of a published code; codes are not case-sensitive."""
    if not isinstance(name, str):
        raise InputError(f"gate is a {type(name).__name__}; give its key or code first, e.g. 'C11'")
    for found in GATES.values():
        if name.upper() == found.code.upper():
            return found
    if name not in GATES:
        raise unknown_name("gate", name, (*GATES, *(found.code for found in GATES.values())))
    return GATES[name]


# ---- words ----------------------------------------------------------------------------------------

# Why there is no verdict, and what would give one; by code.
REASONS: Mapping[str, Explanation] = {
    "not_applicable": ("It does not apply, because a required input is missing.", ""),
    "no_upper_bound": ("It can fail but never pass: no valid upper bound of a kurtosis is known.", ""),
    "too_few": ("There are too few prompts, or heads, to estimate their spread.", "Measure more prompts."),
    "no_valid_prompt": ("No prompt gave a finite number in all runs.", "Check the runs for missing logits."),
    "zero_denominator": ("The model has no margin on these prompts, or the other heads no effect.", _SOLVES),
    "zero_mean": ("The score itself is 0, so its relative error is undefined.", "Check the score first."),
    "zero_variance": ("All values are equal, so nothing varies.", "Use prompts, or heads, that differ."),
    "unbounded": ("The model’s margin may be zero, so no ratio to it is bounded.", _SOLVES),
    "undefined_replicates": ("It is undefined in more than 1 % of resamples.", "Measure more prompts."),
    "degenerate": ("All resamples give the same number, so the interval has no width.", ""),
    "bca_undefined": ("The corrected interval is undefined here; plain percentiles are shown instead.", ""),
    "no_interval": ("The number has no bounds, so it has no verdict with confidence.", ""),
    "undefined": ("These data do not determine it.", ""),
    "no_members": ("The circuit has no heads.", "Give a circuit with at least one head."),
    "no_others": ("The circuit holds every head, so no head is left to compare.", "Give a smaller circuit."),
    "no_heads": ("No head of the circuit has a finite number.", "Check the table for missing values."),
    "missing_heads": ("No head of one circuit is scored on every task.", "Measure the missing heads."),
    "no_own_effect": ("The heads do not help on their own task.", "Check the circuit there first."),
    "method_missing": (
        "Too few of the ablations gave a usable run.",
        "Add prompts of the same length for donors.",
    ),
    "stricter_level": ("A pair exceeds the limit at 5 %, but not at its share of the 5 % of all pairs.", ""),
    "one_category": ("The set of best heads is empty or holds all.", "Give a circuit of some heads."),
    "identical_samples": ("The samples hold the same prompts.", "Draw them with different seeds."),
    "too_few_samples": ("Fewer than two samples gave a score.", "Give prompts for at least two samples."),
    "pool_too_small": ("The pool is not larger than a sample.", "Measure a pool three times as large."),
    "order_means_nothing": ("Neighbours in the list of prompts are unrelated.", "Name natural pairs."),
    "unreliable_scores": (
        "The order of heads by one method is mostly noise.",
        "Measure more, or leave it out.",
    ),
    "composes_less": ("The edges compose less than other pairs of heads, and a pass needs more.", ""),
    "near_zero": (
        "The mean score may lie within 0.20 of 0, where all agree.",
        "Take a circuit that keeps more.",
    ),
    "same_set": ("The baseline selects the same heads as the circuit.", "Compare with another baseline."),
    "too_few_heads": ("A fail needs 5 heads inside and outside, a pass 15.", "Give a circuit with so many."),
    "normal_only": ("Its bounds hold for normal values only.", "See the halves at random."),
    "units_cross_groups": ("One image or sentence is in several groups.", "Compare groups without any."),
    "no_difference_found": ("No head was found to differ, which does not prove that none does.", ""),
    "too_few_groups": ("Fewer than two groups have enough prompts.", "Give two groups of three prompts."),
    "no_target_variance": ("All heads have the same mean, so their order cannot be reproduced.", ""),
    "negative_variance": ("The estimated variance is negative, so the ratio is meaningless.", ""),
    "pole": ("The halves are perfectly opposed, where the correction for length is undefined.", ""),
    "same_prompts": (
        "The circuit was found on these prompts, so its numbers are optimistic.",
        "Measure on other prompts: another --seed, --measure-on FILE, or a file of 40 or more prompts.",
    ),
    "few_prompts": ("Fewer than ten different prompts are ablated.", "Give ten or more different pairs."),
}

# What makes a verdict less trustworthy than it looks; by code.
WARNINGS: Mapping[str, str] = {
    "prompts_dropped": "Prompts without a finite number in every run were left out.",
    "empty_circuit": "A circuit without heads was measured.",
    "trivial_circuit": "The circuit touches every head.",
    "zero_variance": "Some values do not vary at all, so the verdict uses only their sign or size.",
    "score_near_zero": "The score lies within three standard errors of 0: check it before its error.",
    "method_missing": "One of the ablations gave no usable run and was left out.",
    "unstable_denominator": "The model’s margin is near zero for its spread: ratios to it are unreliable.",
    "constant_method": "A method that gives all heads the same score was left out.",
    "missing_heads": "Heads without a score by every method were left out everywhere.",
    "kappa_undefined": "Agreement on the best heads is undefined, and so is the published rule.",
    "identical_circuits": "Two tasks have the same circuit, so the comparison is between tasks only.",
    "shared_heads": "Circuits share many heads, so an effect on each other’s tasks is to be expected.",
    "ratio_capped": "The effect on other tasks is so near zero that the ratio was capped at 1,000.",
    "units_cross_groups": "The same unit (one image, one sentence) appears in several groups.",
    "overlapping_samples": "The samples share prompts, so they agree more than independent ones would.",
    "sample_missing": "A sample without a usable prompt was left out.",
    "head_dropped": "Heads without a finite effect were left out.",
    "unpaired_prompts": "Prompts without a partner were left out.",
    "head_not_finite": "A head without a finite effect counts as unstable.",
    "smallest_is_zero": "No smallest effect is known: a head is negligible only if its effect is below 0.",
    "circular_bands": "The bands of the roles are ranges of layers: the published correlation says nothing.",
    "proxy": "Only the size of the published circuit is known; the overlap is the ratio of the sizes.",
    "heads_of_edges": "The circuit keeps single edges, the baseline whole heads, which is more.",
    "same_prompts": "The circuit was found on these prompts.",
    "few_prompts": "There are fewer than ten different prompts.",
}


def explained(reason: str | None, own: Mapping[str, Explanation]) -> Explanation:
    """Why there is no verdict and what to do about it, in a gate's own words where it has some."""
    if not reason:
        return "", ""
    return own.get(reason) or REASONS.get(reason) or (sentence(reason.replace("_", " ")), "")


def warning(code: str) -> str:
    """A warning in a sentence; an unknown code as it stands."""
    return WARNINGS.get(code) or sentence(code.replace("_", " "))


LISTED = 4  # names in a row

# Methods go by the code of their publication in results, which reads like the code of a gate.
METHODS = {
    "C2": "patching",
    "C5": "mediation",
    "C7": "causation entropy",
    "C10": "learning coefficients",
    "drop-effect": "drop effect",
    "dla": "direct effect",
    "ov-norm": "weights",
}
_CODE = "C(?:2|5|7|10)"
_PAIR = re.compile(rf"\b{_CODE}/{_CODE}\b")


def method_name(name: object) -> str:
    """A method's or rater's name for readers; its key where it has none."""
    return METHODS.get(str(name), str(name))


def claim_name(name: object) -> str:
    """A method, or a claim with the methods that it compares, by name; the code of its gate stays."""
    return _PAIR.sub(lambda found: " and ".join(map(method_name, found[0].split("/"))), method_name(name))


def head_name(at: int, heads: Sequence[Sequence[int]]) -> str:
    """A head of the circuit by its place in the table, `a9.h6` where the heads are listed."""
    if at < len(heads) and len(heads[at]) == 2:
        return f"a{heads[at][0]}.h{heads[at][1]}"
    return f"head {at + 1} of the circuit"


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    text = text.strip()
    if not text:
        return ""
    return f"{text[0].upper()}{text[1:]}{'' if text[-1] in '.?!' else '.'}"


def named(names: Sequence[object]) -> str:
    """Names in a row: a, b and c; the rest counted."""
    words = [str(each) for each in names]
    return listed(words if len(words) <= LISTED else [*words[:LISTED], f"{len(words) - LISTED} more"])
