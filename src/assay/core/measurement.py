"""Numbers that know how they came to be, their intervals, and the rules and verdicts that judge them.

A `Measurement` keeps the per-example components that its statistic sums, so intervals, subsamples,
split halves and worst cases are array work and cost no further forward pass. Its identity is the
hash of its provenance less machine facts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float64, Int

from assay.core.errors import InputError, check_fraction
from assay.core.record import BRIEF, Plotted, Record, plain, record_id


if TYPE_CHECKING:
    import pandas as pd

JUDGED = ("pass", "moderate", "fail")  # what a verdict says with confidence
SAME_PROMPTS = "same_prompts"  # of a circuit that was found on the prompts it is judged on
FEW_PROMPTS = "few_prompts"
FEWEST_PROMPTS = 10  # different prompts, or images, below which nothing is said with confidence
ONE_SIDED_95 = 0.90  # two-sided level whose two ends are one-sided 95 % bounds
# What `Measurement.to_dict` writes, in this order.
_WRITTEN = (
    *("id", "name", "hash", "value", "standard_error", "interval", "n", "n_excluded", "unit", "direction"),
    *("passed", "status", "verdict", "reason", "warnings", "notes", "details", "baseline", "parts"),
    *("statistic", "seed", "provenance"),
)


@dataclass(frozen=True, kw_only=True)
class Interval(Record):
    """A confidence interval.

    Attributes:
        low: Lower end; NaN where undefined.
        high: Upper end; NaN where undefined.
        level: Two-sided coverage; each end alone is a one-sided bound at `(1 + level) / 2`.
        method: `bca`, `percentile`, `delta`, `fieller`, `clopper-pearson`, `betting`, `fisher-z`, `outermost`
            (of several), ...
        reason: Why it is undefined or needs care (`too_few`, `degenerate`, `unbounded`, ...), else None.
    """

    low: float
    high: float
    level: float
    method: str
    reason: str | None = field(default=None, metadata=BRIEF)

    @property
    def defined(self) -> bool:
        """False where either end is NaN."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def undefined_interval(level: float, method: str, reason: str) -> Interval:
    """The interval of a quantity that these data do not determine."""
    return Interval(low=math.nan, high=math.nan, level=level, method=method, reason=reason)


def n_to_settle(n: int, value: float, interval: Interval | None, *limits: float) -> int | None:
    """Examples at which an interval would no longer reach over a limit, at the present spread.

    n (d / |value - limit|)^2, where d is the distance from the value to the end of the interval that lies
    beyond the limit: the half-width of a symmetric interval. Ends of the others are unequally far from the
    value, and the half-width would name fewer examples than there are.

    Args:
        n: Examples behind the interval.
        value: The estimate.
        interval: Its bounds.
        limits: Thresholds; those that the interval does not reach over are settled and do not count.

    Returns:
        At least n + 1, the most that any limit asks for; None without a finite interval, and for a value on
        one of the limits, which no number of examples tells apart from it.
    """
    if interval is None or not interval.defined or math.isnan(value):
        return None
    needed = n + 1
    for limit in (each for each in limits if each in interval):
        reach = value - interval.low if value > limit else interval.high - value
        if value == limit or not math.isfinite(reach):
            return None
        needed = max(needed, math.ceil(n * (reach / abs(value - limit)) ** 2))
    return needed


@dataclass(frozen=True, kw_only=True)
class Rule(Record):
    """Thresholds of a number and the side on which it passes.

    Attributes:
        pass_at: Threshold of a pass.
        fail_at: Threshold of a fail; None means `pass_at`, so there is no middle band.
        higher: True when larger values pass.
        strict: True when the threshold itself does not pass.
        open_ended: True when a number that does not pass is undecided, as the p of a test; it fails beyond
            `fail_at`, where that is given.
    """

    pass_at: float
    fail_at: float | None = None
    higher: bool = True
    strict: bool = True
    open_ended: bool = False

    @property
    def fails_beyond(self) -> float | None:
        """Threshold of a fail; None where no number fails."""
        return self.pass_at if self.fail_at is None and not self.open_ended else self.fail_at

    @property
    def limits(self) -> tuple[float, ...]:
        """The threshold of a pass, and that of a fail where a middle band lies between them."""
        if self.open_ended or self.fail_at is None or self.fail_at == self.pass_at:
            return (self.pass_at,)
        return (self.pass_at, self.fail_at)

    def _passes(self, value: float) -> bool:
        beyond = value > self.pass_at if self.higher else value < self.pass_at
        return beyond or (not self.strict and value == self.pass_at)

    def _fails(self, value: float) -> bool:
        limit = self.fails_beyond
        return limit is not None and (value < limit if self.higher else value > limit)

    def published(self, value: float) -> str:
        """The rule on a point estimate."""
        if math.isnan(value):
            return "inconclusive"
        if self._passes(value):
            return "pass"
        return "fail" if self.fail_at is None or self._fails(value) else "moderate"

    def rigorous(self, interval: Interval) -> str:
        """The rule on both ends of an interval: what holds for every value inside it."""
        if not interval.defined:
            return "inconclusive"
        worst, best = (interval.low, interval.high) if self.higher else (interval.high, interval.low)
        if self._passes(worst):
            return "pass"
        if self._fails(best):
            return "fail"
        between = self.fail_at is not None and not self._passes(best) and not self._fails(worst)
        return "moderate" if between else "inconclusive"

    def judge(self, value: float, interval: Interval, n: int, reason: str | None = None) -> "Verdict":
        """Both judgements of `value`, and the n that would settle an open one (`n_to_settle`)."""
        status = self.rigorous(interval)
        limits = [limit for limit in (self.pass_at, self.fail_at) if limit is not None]
        return Verdict(
            status=status,
            published=self.published(value),
            values={"value": value},
            thresholds={"pass": self.pass_at, "fail": self.pass_at if self.fail_at is None else self.fail_at},
            interval=interval,
            n_needed=n_to_settle(n, value, interval, *limits) if status == "inconclusive" else None,
            reason=reason or (None if interval.defined else interval.reason),
        )


@dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """A judgement with the numbers it rests on.

    Attributes:
        status: `pass`, `moderate`, `fail`, `inconclusive` (also where undefined, see `reason`) or
            `none` (a reported number without a threshold). A confidence statement: a false
            pass or a false fail has probability at most 5 %.
        published: The published rule on the point estimate, same words.
        values: What was judged.
        thresholds: What it was judged by.
        interval: Two-sided 90 % interval, i.e. two one-sided 95 % bounds.
        n_needed: Examples that would settle an inconclusive status, at the present spread; more than there
            are.
        reason: Code of an undefined or inapplicable judgement.
        sub_results: Judgements that this one is made of, or that accompany it, by name.
        warnings: Codes of what makes the judgement less trustworthy than it looks.
        details: Further numbers, JSON values.
        table_hash: Content hash of the measurement table behind it.
        judged: The number that was decided, as a gate describes it for its page; None where nothing does.
    """

    status: str
    published: str
    values: Mapping[str, float | None] = field(default_factory=dict)
    thresholds: Mapping[str, float | None] = field(default_factory=dict)
    interval: Interval | None = None
    n_needed: int | None = None
    reason: str | None = None
    sub_results: Mapping[str, "Verdict"] = field(default_factory=dict, metadata=BRIEF)
    warnings: tuple[str, ...] = field(default=(), metadata=BRIEF)
    details: Mapping[str, Any] = field(default_factory=dict, metadata=BRIEF)
    table_hash: str | None = field(default=None, metadata=BRIEF)
    judged: Mapping[str, Any] | None = field(default=None, metadata=BRIEF)

    def without_confidence(self, why: str) -> "Verdict":
        """The judgement where nothing is known with confidence.

        `pass`, `moderate` and `fail` become `inconclusive`, here and in the sub-results. The code `why`
        (`same_prompts`: the circuit was found on these prompts; `few_prompts`: there are fewer than ten
        different ones) is a warning of each, and the reason where there is no other. The published rule takes
        numbers at face value and stays. `judged` is left to be made anew.
        """
        judged = self.status in JUDGED
        told = judged or (self.status == "inconclusive" and self.reason is None)
        return replace(
            self,
            status="inconclusive" if judged else self.status,
            reason=why if told else self.reason,
            n_needed=None if told else self.n_needed,  # other prompts are needed, not more
            sub_results={name: each.without_confidence(why) for name, each in self.sub_results.items()},
            warnings=(*self.warnings, why),
            judged=None,
        )

    def on_examples(self, n: int, warnings: Sequence[str] = (), *, n_excluded: int = 0) -> "Verdict":
        """The judgement of a circuit on n different examples, which `same_prompts` may be a warning of.

        A reason of its own stays where enough examples were given and some of them excluded.
        """
        verdict = self if n >= FEWEST_PROMPTS else self.without_confidence(FEW_PROMPTS)
        if n + n_excluded < FEWEST_PROMPTS:
            verdict = replace(verdict, reason=FEW_PROMPTS)
        return verdict.without_confidence(SAME_PROMPTS) if SAME_PROMPTS in warnings else verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement(Plotted):
    """One number about one circuit, with everything needed to doubt it.

    Attributes:
        id: Published code with the quantity, e.g. `D02.faithfulness`.
        name: Registered key, e.g. `faithfulness`.
        value: The number; NaN where undefined, then `reason` says why.
        n: Different examples it rests on; copies of an example count once, at the mean of their margins.
        n_excluded: Different examples left out (non-finite logits, or undefined for this quantity).
        unit: `fraction`, `nats`, `logits`, ...
        direction: `higher`, `lower`, `target` or `report` (no verdict).
        per_example: `[batch]`, one per row of the task, NaN at rows that are excluded, copies, or equal to
            their counterparts where that is what ablated edges carry. Averages to `value`: the example's own
            value for a mean, value plus influence for a ratio of sums.
        components: Per-example vectors that `statistic` sums, NaN at the same rows.
        statistic: What turns sums of components into `value`: one of `assay.stats`.
        rule: Thresholds; None for a reported number.
        judged: A verdict that is not a rule on `value`, e.g. of top-K agreement.
        interval_method: Default of `interval`; None leaves it to the statistic.
        reason: Code of an undefined value.
        warnings: Codes of what makes the number less trustworthy than it looks.
        details: Further numbers, JSON values.
        baseline: The same measurement on reference circuits (`random`, `empty`).
        parts: Quantities reported beside the value, each with its own interval.
        provenance: How it came to be; hashed without `machine`.
        seed: Root of the resampling stream.
        meaning: What the value says, a sentence for pages; empty where the page knows it by the code.
    """

    drawn_by = "assay.metrics.page:plot_measurement"

    id: str
    name: str
    value: float
    n: int
    n_excluded: int = 0
    unit: str = ""
    direction: str = "report"
    per_example: Float64[np.ndarray, " batch"] | None = None
    components: Mapping[str, Float64[np.ndarray, " batch"]] = field(default_factory=dict)
    statistic: Any = None
    rule: Rule | None = None
    judged: Verdict | None = None
    interval_method: str | None = None
    reason: str | None = None
    warnings: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, "Measurement"] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    meaning: str = ""

    def __repr__(self) -> str:
        value = f"{self.value:.4g} {self.unit}"
        if {"a", "b"} <= self.parts.keys():  # a comparison, which has no verdict
            ends = self.interval()
            value = f"b - a = {value} [{ends.low:.4g}, {ends.high:.4g}]"
            return f"Measurement({self.name!r}, {value}, n={self.n})"
        return f"Measurement({self.name!r}, {value}, n={self.n}, {self.status})"

    @cached_property
    def _intervals(self) -> dict[tuple[float, str | None], Interval]:
        return {}

    @property
    def standard_error(self) -> float:
        """Delta-method standard error: spread of `per_example` over root n; NaN below two examples."""
        if self.per_example is None or self.n < 2:
            return math.nan
        return float(np.nanstd(self.per_example, ddof=1) / math.sqrt(self.n))

    def interval(self, level: float = 0.95, method: str | None = None) -> Interval:
        """Confidence interval of the value over examples, computed once per level and method.

        Args:
            level: Two-sided coverage in (0, 1); 0.90 gives two one-sided 95 % bounds.
            method: `bca` (2,000 bootstrap resamples of the examples, the default for most), `percentile`,
                `delta`, `fieller` (ratios; the default when the denominator is unstable), `clopper-pearson`
                (shares) or `betting` (means of bounded values, their default).

        Returns:
            NaN ends with a reason where the value is undefined or rests on fewer than two examples.
        """
        check_fraction(level=level)
        method = method or self.interval_method
        key = (level, method)
        if key not in self._intervals:
            if self.statistic is None or math.isnan(self.value):
                reason = "no_per_example_values" if self.statistic is None else "undefined"
                return undefined_interval(level, method or "none", self.reason or reason)
            table = np.stack([self.components[name] for name in self.statistic.components])
            used = table[:, np.isfinite(table).all(axis=0)]
            self._intervals[key] = self.statistic.interval(used, level=level, method=method, seed=self.seed)
        return self._intervals[key]

    def value_on(self, indices: Int[np.ndarray, "*draws n_drawn"]) -> Float[np.ndarray, "*draws"]:
        """The value on other multisets of the examples, without a forward pass.

        Args:
            indices: Rows of the task, any leading axes: subsamples, split halves, bootstrap draws.

        Returns:
            One value per draw; NaN where a draw holds an excluded example or is undefined.
        """
        if self.statistic is None:
            raise InputError(f"{self.name} keeps no per-example components, so it has no value on a subset")
        sums = [self.components[name][indices].sum(axis=-1) for name in self.statistic.components]
        value: np.ndarray = self.statistic.of_sums(np.stack(sums, axis=-1), indices.shape[-1])
        return value

    @cached_property
    def verdict(self) -> Verdict:
        """The published rule on the value and the same rule with confidence.

        Inconclusive, with that reason, below ten different examples (`few_prompts`) and where the circuit was
        found on these (the warning `same_prompts`).
        """
        if self.judged is not None:
            return self.judged.on_examples(self.n, self.warnings, n_excluded=self.n_excluded)
        if self.rule is None:
            return Verdict(status="none", published="none", values={"value": self.value}, reason=self.reason)
        verdict = self.rule.judge(self.value, self.interval(ONE_SIDED_95), self.n, self.reason)
        return verdict.on_examples(self.n, self.warnings, n_excluded=self.n_excluded)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which examples were left out, a sentence each."""
        task = self.provenance.get("task")
        return tuple(task.get("notes", ())) if isinstance(task, Mapping) else ()

    @property
    def status(self) -> str:
        """The verdict with confidence: pass, moderate, fail, inconclusive or none."""
        return self.verdict.status

    @property
    def passed(self) -> bool | None:
        """Whether the value itself meets its published threshold; None without one or where undefined."""
        published = self.verdict.published
        return None if published in ("none", "inconclusive") else published == "pass"

    def to_frame(self) -> "pd.DataFrame":
        """One row per example: example, value (NaN where excluded), and each component under its name.

        Raises:
            InputError: If no values per example were kept.
        """
        import pandas as pd

        if self.per_example is None:
            raise InputError(f"{self.name} keeps no values per example, so there is no table of them")
        n = len(self.per_example)
        own = {"example": np.arange(n), "value": self.per_example}
        return pd.DataFrame(own | {name: each for name, each in self.components.items() if len(each) == n})

    @property
    def id_hash(self) -> str:
        """Identity: hash of what was measured and how, less machine facts."""
        return record_id("measurement", self.provenance)

    def arrays(self) -> dict[str, Float64[np.ndarray, " batch"]]:
        """Per-example arrays by name, those of parts under `parts/KEY/`: what is stored beside `to_dict`."""
        own = {f"components/{name}": values for name, values in self.components.items()}
        for key, part in self.parts.items():
            own |= {f"parts/{key}/{name}": values for name, values in part.arrays().items()}
        return own

    def to_dict(self, *, level: float = 0.95, per_example: bool = False) -> dict[str, Any]:
        """Finite JSON: undefined numbers are null and `reason` says why.

        Args:
            level: Coverage of the reported interval.
            per_example: Also list the per-example values.
        """
        parts = {key: part.to_dict(level=level) for key, part in self.parts.items()}
        for part in parts.values():  # a part shares these with the whole
            for name in ("provenance", "hash", "seed", "notes"):
                del part[name]
        interval, verdict = self.interval(level), self.verdict
        written = {"hash": self.id_hash, "interval": interval, "verdict": verdict, "parts": parts}
        names = [*_WRITTEN, *["meaning"] * bool(self.meaning), *["per_example"] * per_example]
        document: dict[str, Any] = plain(
            {name: written[name] if name in written else getattr(self, name) for name in names}
        )
        return document
