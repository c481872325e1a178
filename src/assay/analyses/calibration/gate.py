"""What a calibration is: a pure function of arrays that says whether a measurement can be trusted.

Every gate gives two verdicts: the published rule on the point estimate, and a confidence statement on the
same quantity, wrong in either direction with probability at most 5 %. What the data do not determine is
`inconclusive` with a reason, never a pass and never a fail.
"""

import functools
import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from assay.analyses.calibration.names import compared, named, sentence
from assay.analyses.calibration.quantity import Judged, Quantity, deciding
from assay.analyses.calibration.reasons import Explanation, explained
from assay.core.errors import InputError, unknown_name
from assay.core.registry import Registry
from assay.core.verdict import Verdict


SEED = 42  # root of the published resampling streams
ALPHA = 0.05
N_STUDENTIZED = 999  # resamples behind a bootstrap-t bound
_MODERATE = "Between the limit of a fail and the limit of a pass: use the number with care."

GateFunction = Callable[..., Verdict]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A calibration with the facts that lists, reports and documentation need.

    Attributes:
        key: Registered name, e.g. `bootstrap-stability`.
        code: Published code, e.g. `C11`.
        name: What a reader calls it.
        criterion: Criterion of the framework it serves, e.g. `M1 Reliability`.
        needs: Names of the arrays it takes, as its function spells them. Of a gate of another package, the
            columns of a `MeasurementTable` that `calibrate_all` hands it in this order; also `members` (a
            flag per head) and `y_keep` (the circuit's runs under the table's own ablation).
        function: The gate itself; arrays in, a `Verdict` out.
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
        compares: What it compares in pairs, e.g. `methods`.
    """

    key: str
    code: str
    name: str
    criterion: str
    needs: tuple[str, ...]
    function: GateFunction
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
    when_open: str = "More prompts narrow the interval."
    compares: str = ""

    def __call__(self, *arrays: Any, **options: Any) -> Verdict:
        return self.worded(self.function(*arrays, **options))

    def worded(self, verdict: Verdict) -> Verdict:
        """A verdict of this gate with `judged`: its number and what it means, also of its parts."""
        parts = {name: self._worded_part(name, each) for name, each in verdict.sub_results.items()}
        judged = (self.number or Quantity(label=self.name)).of(verdict)
        if part := deciding(parts, self.decisive):
            words = {name: getattr(judged, name) for name in ("status", "published", "reason")}
            judged = replace(Judged.from_dict(parts[part].judged), part=part, **words)
        because, remedy = explained(verdict.reason, self.reasons)
        if judged.state == "inconclusive" and not verdict.reason:
            remedy = self.when_open
        meaning = self._meaning(judged.state, verdict.details)
        judged = replace(judged, sentence=meaning, because=because, remedy=remedy)
        return replace(verdict, judged=judged.to_dict(), sub_results=parts)

    def _worded_part(self, place: str, verdict: Verdict) -> Verdict:
        name = place.rpartition(".")[2].replace("_", " ") or "no task"
        number = self.parts.get(place) or Quantity(label=name)
        if place not in self.parts and self.number is not None and self.number.value in verdict.values:
            number = replace(self.number, label=name)
        because, _ = explained(verdict.reason, self.reasons if self.parts_share_reasons else {})
        inner = {
            each: self._worded_part(f"{place}.{each}", part) for each, part in verdict.sub_results.items()
        }
        return replace(
            verdict, judged=replace(number.of(verdict), because=because).to_dict(), sub_results=inner
        )

    def _meaning(self, state: str, details: Mapping[str, Any]) -> str:
        on_pass, on_fail = sentence(self.on_pass), sentence(self.on_fail)
        meaning = {"pass": on_pass, "fail": on_fail, "moderate": _MODERATE}.get(
            state, f"If it passed: {on_pass} If it failed: {on_fail}"
        )
        names = compared(details) if self.compares else []
        return f"{meaning} The {self.compares}: {named(names)}." if names else meaning

    @property
    def options(self) -> frozenset[str]:
        """Names of what its function may be told beside its arrays."""
        parameters = inspect.signature(self.function).parameters
        return frozenset(name for name, each in parameters.items() if each.default is not each.empty)

    def judge(self, *arrays: Any, setting: Mapping[str, Any], **options: Any) -> Verdict:
        """The verdict on arrays; of a setting shared by many gates those options that this one has."""
        shared = {name: value for name, value in setting.items() if name in self.options}
        return self(*arrays, **(shared | options))


GATES: Registry[Gate] = Registry("gate", holds=Gate)


def gate(*, key: str, code: str, **facts: Any) -> Callable[[GateFunction], GateFunction]:
    """Register the function below as a gate; it needs its positional arguments unless `facts` say more."""

    def register(function: GateFunction) -> GateFunction:
        parameters = inspect.signature(function).parameters.values()
        arrays = tuple(each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)
        made = Gate(key=key, code=code, function=function, **{"needs": arrays, **facts})
        GATES.add(key, made)

        @functools.wraps(function)
        def judge(*arrays: Any, **options: Any) -> Verdict:
            return made(*arrays, **options)

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


def undefined(
    reason: str,
    *,
    published: str = "inconclusive",
    values: Mapping[str, float | None] | None = None,
    thresholds: Mapping[str, float | None] | None = None,
    warnings: tuple[str, ...] = (),
    **more: Any,
) -> Verdict:
    """The verdict on a quantity that these data do not determine, or that does not apply to them.

    Args:
        reason: Code: `not_applicable`, `too_few`, `zero_denominator`, `no_valid_prompt`, ...
        published: The published rule's word, where it has one.
        values: What was computed all the same.
        thresholds: What it would have been judged by.
        warnings: Codes.
        **more: Other fields of `Verdict`.
    """
    return Verdict(
        status="inconclusive",
        published=published,
        values=dict(values or {}),
        thresholds=dict(thresholds or {}),
        reason=reason,
        warnings=warnings,
        **more,
    )


@dataclass(kw_only=True, eq=False)
class Draft:
    """What a gate notes on the way to its verdict.

    Attributes:
        thresholds: What it judges by.
        values: What it computed so far.
        warnings: Codes.
        details: Further numbers.
    """

    thresholds: Mapping[str, float | None]
    values: dict[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def warn(self, code: str, applies: bool = True) -> None:
        """Add a code where it applies, once."""
        if applies and code not in self.warnings:
            self.warnings += (code,)

    def undefined(self, reason: str, **more: Any) -> Verdict:
        """The verdict on what these data do not determine, with all that was noted."""
        return undefined(reason, **{**vars(self), **more})

    def verdict(self, verdict: Verdict, **more: Any) -> Verdict:
        """A verdict with all that was noted in place of what it came with."""
        return replace(verdict, **{**vars(self), **more})


def left_open(verdict: Verdict, reason: str | None, n_needed: int | None = None) -> Verdict:
    """A verdict that cannot be had with confidence."""
    return replace(verdict, status="inconclusive", reason=reason, n_needed=n_needed)


def gate_stream(code: str, task: str = "", *, seed: int = SEED) -> np.random.Generator:
    """The generator of one gate on one task: results do not depend on which other gates ran.

    `Generator(PCG64(SeedSequence([seed, crc32(code), crc32(task)])))`.
    """
    words = [seed, zlib.crc32(code.encode()), zlib.crc32(task.encode())]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
