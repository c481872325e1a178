"""Numbers that know how they came to be: what every later stage passes on.

A `Measurement` keeps the per-example components that its statistic sums, so intervals, subsamples,
split halves and worst cases are array work and cost no further forward pass. Its identity is the
hash of its provenance less machine facts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float64, Int

from assay.core import display
from assay.core.errors import InputError
from assay.core.record import BRIEF, Record, plain, record_id


if TYPE_CHECKING:
    import pandas as pd


JUDGED = ("pass", "moderate", "fail")  # what a verdict says with confidence
SAME_PROMPTS = "same_prompts"  # of a circuit that was found on the prompts it is judged on
ONE_SIDED_95 = 0.90  # two-sided level whose two ends are one-sided 95 % bounds


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

    @property
    def half_width(self) -> float:
        """Half the distance between the ends."""
        return (self.high - self.low) / 2

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
    for limit in limits:
        if limit not in interval:
            continue
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
        banded = self.fail_at not in (None, self.pass_at) and not self.open_ended
        return (self.pass_at, float(self.fail_at or 0.0)) if banded else (self.pass_at,)

    def _passes(self, value: float) -> bool:
        beyond = value > self.pass_at if self.higher else value < self.pass_at
        return beyond or (not self.strict and value == self.pass_at)

    def _fails(self, value: float) -> bool:
        limit = self.fails_beyond
        return limit is not None and (value < limit if self.higher else value > limit)

    def side(self, value: float) -> str:
        """Where a number lies: `pass`, `fail`, `moderate` between two limits, else empty."""
        if self._passes(value):
            return "pass"
        on_limit = value == self.pass_at and len(self.limits) == 1
        if self._fails(value) or on_limit:
            return "fail"
        return "moderate" if len(self.limits) > 1 else ""

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
        needed = None
        if status == "inconclusive":
            limits = [limit for limit in (self.pass_at, self.fail_at) if limit is not None]
            needed = n_to_settle(n, value, interval, *limits)
        return Verdict(
            status=status,
            published=self.published(value),
            values={"value": value},
            thresholds={"pass": self.pass_at, "fail": self.pass_at if self.fail_at is None else self.fail_at},
            interval=interval,
            n_needed=needed,
            reason=reason or (None if interval.defined else interval.reason),
        )


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
        least, most: Ends of what the number can be; None without.
        unit: Distance from the first limit that counts as one.
        ratio: Whether a logarithmic axis suits the number.
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
    least: float | None = None
    most: float | None = None
    unit: float = 1.0
    ratio: bool = False
    part: str = field(default="", metadata=BRIEF)

    @property
    def state(self) -> str:
        """The status, where `not applicable` and `undefined` are kept apart from `inconclusive`."""
        if self.status != "inconclusive":
            return self.status
        if self.reason == "not_applicable":
            return "not applicable"
        return "undefined" if self.value is None and self.reason else "inconclusive"

    @property
    def limits(self) -> tuple[float, ...]:
        """Thresholds, that of a pass first; empty without a rule."""
        return self.rule.limits if self.rule else ()

    def side(self, value: float | None) -> str:
        """Where a number lies by the rule; empty without either."""
        return "" if value is None or self.rule is None else self.rule.side(value)


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
        judged: The number that was decided, whole; None where whoever judged does not name it.
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
    judged: Judged | None = field(default=None, metadata=BRIEF)

    def _repr_html_(self) -> str:
        interval = self.interval
        return display.card(
            "verdict",
            (
                *((name, display.number(value)) for name, value in self.values.items()),
                ("interval", interval and display.ends(interval.low, interval.high, interval.level)),
                *((f"threshold {name}", value) for name, value in self.thresholds.items()),
                ("published rule", self.published),
                ("examples needed", self.n_needed),
                ("reason", self.reason),
                ("warnings", ", ".join(self.warnings) or None),
            ),
            status=self.status,
            id=self.table_hash,
        )

    def on_same_prompts(self) -> "Verdict":
        """The judgement where the circuit was found on the prompts that it is judged on.

        Nothing is then known with confidence: `pass`, `moderate` and `fail` become `inconclusive`, here and
        in the sub-results. `same_prompts` is a warning of each, and the reason where there is no other. The
        published rule takes numbers at face value and stays. `judged` is left to be made anew.
        """
        judged = self.status in JUDGED
        told = judged or (self.status == "inconclusive" and self.reason is None)
        return replace(
            self,
            status="inconclusive" if judged else self.status,
            reason=SAME_PROMPTS if told else self.reason,
            n_needed=None if told else self.n_needed,  # other prompts are needed, not more
            sub_results={name: each.on_same_prompts() for name, each in self.sub_results.items()},
            warnings=(*self.warnings, SAME_PROMPTS),
            judged=None,
        )


@runtime_checkable
class Statistic(Protocol):
    """A named function of sums over examples and a `Record`; `assay.stats` has the implementations."""

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the per-example vectors it sums."""

    def of_sums(self, sums: Float[np.ndarray, "*draws n_components"], n: int) -> Float[np.ndarray, "*draws"]:
        """The statistic from the sums over `n` examples, NaN where undefined."""

    def linearised(self, values: Float64[np.ndarray, "n_components n"]) -> Float64[np.ndarray, " n"]:
        """Per-example values that average to the statistic, to first order."""

    def interval(
        self,
        values: Float[np.ndarray, "n_components n"],
        *,
        level: float,
        method: str | None,
        seed: int,
    ) -> Interval:
        """Its confidence interval; `method=None` chooses one, `seed` roots the resampling."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement(display.Shown):
    """One number about one circuit, with everything needed to doubt it.

    Attributes:
        id: Published code with the quantity, e.g. `D02.faithfulness`.
        name: Registered key, e.g. `faithfulness`.
        value: The number; NaN where undefined, then `reason` says why.
        n: Examples it rests on.
        n_excluded: Examples left out (non-finite logits, or undefined for this quantity).
        unit: `fraction`, `nats`, `logits`, ...
        direction: `higher`, `lower`, `target` or `report` (no verdict).
        per_example: `[n + n_excluded]`, NaN at excluded examples. Averages to `value`: the example's own
            value for a mean, value plus influence for a ratio of sums.
        components: Per-example vectors that `statistic` sums, NaN at excluded examples.
        statistic: What turns sums of components into `value`.
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

    drawn_by = "assay.metrics.plots:plot_measurement"

    id: str
    name: str
    value: float
    n: int
    n_excluded: int = 0
    unit: str = ""
    direction: str = "report"
    per_example: Float64[np.ndarray, " batch"] | None = None
    components: Mapping[str, Float64[np.ndarray, " batch"]] = field(default_factory=dict)
    statistic: Statistic | None = None
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

    @cached_property
    def _used(self) -> Float64[np.ndarray, "n_components n"]:
        assert self.statistic is not None
        table = np.stack([self.components[name] for name in self.statistic.components])
        return table[:, np.isfinite(table).all(axis=0)]

    def __repr__(self) -> str:
        return f"Measurement({self.name!r}, {self.value:.4g} {self.unit}, n={self.n}, {self.status})"

    def _summary(self) -> str:
        interval = self.interval()
        return display.card(
            f"{self.name} ({self.id})",
            (
                ("value", f"{display.number(self.value)} {self.unit}"),
                ("interval", display.ends(interval.low, interval.high, interval.level)),
                ("n", self.n),
                ("excluded", self.n_excluded or None),
                ("reason", self.reason),
                ("warnings", ", ".join(self.warnings) or None),
            ),
            status=self.status,
            id=self.id_hash,
        )

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
        if not 0 < level < 1:
            raise InputError(f"level is {level}; expected a coverage between 0 and 1, e.g. 0.95")
        method = method or self.interval_method
        key = (level, method)
        if key not in self._intervals:
            self._intervals[key] = self._interval(level, method)
        return self._intervals[key]

    def _interval(self, level: float, method: str | None) -> Interval:
        if self.statistic is None:
            return undefined_interval(level, method or "none", self.reason or "no_per_example_values")
        if math.isnan(self.value):
            return undefined_interval(level, method or "none", self.reason or "undefined")
        return self.statistic.interval(self._used, level=level, method=method, seed=self.seed)

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
        return self.statistic.of_sums(np.stack(sums, axis=-1), indices.shape[-1])

    @cached_property
    def verdict(self) -> Verdict:
        """The published rule on the value and the same rule with confidence."""
        if self.judged is not None:
            return self.judged
        if self.rule is None:
            return Verdict(status="none", published="none", values={"value": self.value}, reason=self.reason)
        return self.rule.judge(self.value, self.interval(ONE_SIDED_95), self.n, self.reason)

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
        record = {
            "id": self.id,
            "name": self.name,
            "hash": self.id_hash,
            "value": self.value,
            "standard_error": self.standard_error,
            "interval": self.interval(level).to_dict(),
            "n": self.n,
            "n_excluded": self.n_excluded,
            "unit": self.unit,
            "direction": self.direction,
            "passed": self.passed,
            "status": self.status,
            "verdict": self.verdict.to_dict(),
            "reason": self.reason,
            "warnings": self.warnings,
            "details": self.details,
            "baseline": self.baseline,
            "parts": {key: part._part_dict(level) for key, part in self.parts.items()},
            "statistic": self.statistic,
            "seed": self.seed,
            "provenance": self.provenance,
        }
        more = {"meaning": self.meaning} if self.meaning else {}
        found: dict[str, Any] = plain(
            record | more | ({"per_example": self.per_example} if per_example else {})
        )
        return found

    def _part_dict(self, level: float) -> dict[str, Any]:
        """A part's record: it shares the provenance and seed of the whole."""
        record = self.to_dict(level=level)
        return {key: item for key, item in record.items() if key not in ("provenance", "hash", "seed")}
