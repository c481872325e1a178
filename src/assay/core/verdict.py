"""Judgements of numbers: intervals, the rules that read them, and the verdicts they give."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from assay.core.record import BRIEF, Record


JUDGED = ("pass", "moderate", "fail")  # what a verdict says with confidence
SAME_PROMPTS = "same_prompts"  # of a circuit that was found on the prompts it is judged on
FEW_PROMPTS = "few_prompts"
FEWEST_PROMPTS = 10  # different prompts, or images, below which nothing is said with confidence
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

        A reason of its own stays where examples enough were given and some of them excluded.
        """
        verdict = self if n >= FEWEST_PROMPTS else self.without_confidence(FEW_PROMPTS)
        if n + n_excluded < FEWEST_PROMPTS:
            verdict = replace(verdict, reason=FEW_PROMPTS)
        return verdict.without_confidence(SAME_PROMPTS) if SAME_PROMPTS in warnings else verdict
