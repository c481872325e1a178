"""Does the number hinge on which prompts were drawn? C11 resamples them, C30 draws samples from a pool."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int, Real

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, Undetermined, gate, gate_stream
from assay.analyses.calibration.samples import inner_metric, sample
from assay.core.errors import check_least
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, undefined_interval


SEEDS = (42, 123, 456, 789, 1337)
SMALLEST = 40  # units below which no bound of a standard error holds for t5 or exponential values
SMALLEST_POOL = 100  # the same of a relative error
Table = Float64[np.ndarray, "2 n"]
Scores = Float64[np.ndarray, " n_subsets"]
Run = Real[np.ndarray, " n"]
Rng = np.random.Generator

_SEEDS = Rule(pass_at=0.10, fail_at=0.20, higher=False)
_AGAIN = "The number would come out about the same on another prompt sample of this size."
_LARGER = "Do not compare the number with anything; enlarge the sample or stratify it."
_ERROR = Quantity(
    label="standard error of the score",
    value="standard_error",
    rule=Rule(pass_at=0.1, higher=False, strict=False),  # on the unit scale
    published="sigma",
    fewest=SMALLEST,
)


def _completeness(c: Any) -> dict[str, dict[str, Any]]:
    """The same of the circuit's absence, where C14 reads that anyway."""
    if "derived-metrics" not in c.keys:
        return {}
    return {"completeness": {"y_circuit": c.run(f"y_drop/{c.table.ablation}"), "inner": "completeness"}}


@gate(
    code="C11",
    criterion="M1 Reliability",
    question="Does the score hinge on which prompts were drawn?",
    on_pass=_AGAIN,
    on_fail=_LARGER,
    weakness="The spread falls with the number of prompts alone, so the rule judges the size of the sample.",
    number=_ERROR,
    parts={"completeness": replace(_ERROR, label="standard error of completeness")},
    sized=True,
    beside=_completeness,
    reads=("task", "seed", "unit_id", "n_boot"),
)
def bootstrap_stability(
    y_full: Run, y_circuit: Run, *, inner: str = "faithfulness", draws: Any = None, how: Sampling
) -> Found:
    """Spread of a circuit's score over bootstrap resamples of the prompts.

    Published: standard deviation of the replicates at most 0.1. With confidence: the outermost of three
    bounds of the standard error (bootstrap-t of its logarithm, percentiles, Bonett's) on one side of 0.1.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit alone (`faithfulness`), or with the circuit dropped (`completeness`).
        inner: Which of the two.
        draws: Given index matrix `[n_boot, n_units]` instead of random ones.
        how: Resamples are the published ones; BCa takes 2,000.

    Returns:
        Undefined below three prompts and where the sum over the full model vanishes; below 40 inconclusive
        (`too_few`). A constant ratio has spread 0 and passes (`zero_variance`). A score within three standard
        errors of 0 is flagged (`score_near_zero`): its error may pass while nothing is known of its size.

    References:
        Efron (1987), doi:10.1080/01621459.1987.10478410; Bonett (2006), doi:10.1016/j.csda.2004.10.003.
    """
    data = sample(how.unit_id, y_circuit=y_circuit, y_full=y_full)
    found, table, n = data.found(f"C11.bootstrap_{inner}"), data.table, data.n
    score = Score(inner, table, found)
    statistic, value = score.statistic, score.value
    found.stop_if(math.isnan(value), "zero_denominator")
    rng = how.stream("C11")
    rows = rng.integers(0, n, (how.n_boot, n)) if draws is None else draws
    again: Any = {"rng": rng, "draws": rows, "n_resamples": len(rows)}
    sigma = stats.bootstrap_spread(table, statistic.of_sums, **again).value
    percentile = stats.bootstrap_interval(table, statistic.of_sums, method="percentile", **again)
    unstable = statistic.unstable(table)
    found.warn(unstable_denominator=unstable)
    if unstable:
        interval = statistic.interval(table, method="fieller")
    else:
        interval = stats.bootstrap_interval(
            table, statistic.of_sums, **({"rng": rng} if draws is None else again)
        )
    if interval.reason == "unbounded":
        raise Undetermined("unbounded", found, values={"sigma": sigma, inner: value})
    errors = stats.absolute_errors(*statistic.pair(table), rng=how.stream("C11.bounds"))
    error, relative = float(errors.value[0]), sigma / abs(value) if value else math.nan
    found.warn(zero_variance=error == 0, score_near_zero=score.near_zero())
    readings = ((0.03, "very stable"), (0.10, "acceptable"), (0.20, "unstable"))
    found.details["reading"] = _reading(relative, readings, "unreliable")
    needed = {f"{width:g}": math.ceil(n * (1.96 * error / width) ** 2) for width in (0.05, 0.1)}
    bounds = {"percentile": percentile.to_dict(), "interval": interval.to_dict()}
    found.details |= {**bounds, "n_for_half_width": needed}
    found.values = {"sigma": sigma, "standard_error": error, inner: value, "relative": relative}
    found.interval = _outermost(errors, ONE_SIDED_95, SMALLEST)
    return found


@gate(
    code="C30",
    criterion="M1 Reliability",
    question="Does the score depend on the seed that drew the prompts?",
    on_pass=_AGAIN,
    on_fail=_LARGER,
    weakness="The subsets overlap, so their spread is a fifth too small, and five values hardly tell it.",
    number=Quantity(
        label="standard error of the score over the score",
        value="relative_standard_error",
        published="coefficient_of_variation",
        rule=_SEEDS,
        fewest=SMALLEST_POOL,
    ),
    counts="prompts in the pool",
    sized=True,
    columns=lambda c: {**c.pool_runs, "n_prompts": c.table.P},
    reads=("task", "seed", "unit_id", "strata"),
)
def seed_variance(
    y_full: Run,
    y_circuit: Run,
    *,
    n_prompts: int = 40,
    subsets: Sequence[Int[np.ndarray, " _"]] | None = None,
    y_other: Run | None = None,
    inner: str = "faithfulness",
    how: Sampling,
) -> Found:
    """Relative spread of a circuit's score over samples that different seeds draw from one pool.

    Published: coefficient of variation (ddof 0) of the scores, below 0.10 a pass, above 0.20 a fail. With
    confidence: relative standard error at `n_prompts`, estimated from the whole pool, by the same limits.

    Args:
        y_full: Logit difference of the full model on the pool, at least three times `n_prompts` and 120.
        y_circuit: Of the circuit, as `inner` says.
        n_prompts: Size of a sample.
        subsets: Given samples instead of one for each published seed: indices of units of the
            pool (prompts, where no units are named).
        y_other: A second circuit on the same prompts: how often the seeds agree on which is better.
        inner: `faithfulness` or `completeness`.
        how: Units are drawn whole; its seed is that of the bounds.

    Returns:
        Undefined (`pool_too_small`) unless the pool is larger than a sample, (`zero_mean`) for a score of 0;
        inconclusive (`too_few`) for a pool below 100. A score of the pool within three standard errors of 0
        is flagged (`score_near_zero`): no error relative to it is small.
    """
    check_least(1, n_prompts=n_prompts)
    other = {} if y_other is None else {"y_other": y_other}
    data = sample(how.unit_id, y_circuit=y_circuit, y_full=y_full, **other)
    found = data.found("C30.seed_variance", seeds=list(SEEDS))
    size, score = max(1, round(data.n * n_prompts / data.n_prompts)), Score(inner, data.table[:2], found)
    if subsets is None and size <= data.n:
        streams = [gate_stream("C30", how.task, seed=root) for root in SEEDS]
        subsets = [data.shuffled(each, how.strata)[:size] for each in streams]
    scores = found.details["scores"] = score.of(subsets or ())
    spread = stats.coefficient_of_variation(scores) if len(scores) else stats.Estimate(value=math.nan)
    variation, mean = spread.value, float(scores.mean()) if len(scores) else math.nan
    found.values = {"coefficient_of_variation": variation, "mean": mean}
    found.warn(unstable_denominator=score.statistic.unstable(score.table))
    found.stop_if(data.n_prompts <= n_prompts, "pool_too_small")
    found.stop_if(spread.reason)
    readings = ((0.05, "excellent"), (0.10, "acceptable"))
    found.details["reading"] = _reading(variation, readings, _SEEDS.published(variation))
    if y_other is not None and subsets:
        rival = score._replace(table=data.table[[2, 1]]).of(subsets)
        found.details["sign_consistency"] = float(max(np.mean(scores > rival), np.mean(scores < rival)))
    return score.relative_error(size, how.stream("C30.bounds"))


def _reading(value: float, readings: Sequence[tuple[float, str]], otherwise: str) -> str:
    """The published word for a spread: of the first limit that it lies below."""
    return next((word for limit, word in readings if value < limit), otherwise)


class Score(NamedTuple):
    """A ratio of sums over runs of the circuit and of the full model, and what is found of it."""

    inner: str
    table: Table
    found: Found

    @property
    def statistic(self) -> stats.RatioOfSums:
        """The ratio, of sums of both runs."""
        return inner_metric(self.inner)

    @property
    def value(self) -> float:
        """The ratio; NaN where it is undefined."""
        return float(self.statistic.of_sums(self.table.sum(axis=1), self.table.shape[1]))

    def of(self, subsets: Sequence[Any]) -> Scores:
        """The score on each subset of units, those without one left out."""
        sums = [(self.table[:, rows].sum(axis=1), len(rows)) for rows in subsets if len(rows)]
        scores = np.array([self.statistic.of_sums(*each) for each in sums], dtype=np.float64)
        return scores[np.isfinite(scores)]

    def near_zero(self) -> bool:
        """Whether the score lies within three standard errors of 0.

        An error of it in its own unit may then be small, and one relative to it large, while neither says
        more than that the score may be 0.
        """
        n, linear = self.table.shape[1], self.statistic.linearised(self.table)
        return n > 1 and abs(self.value) < 3 * float(linear.std(ddof=1)) / math.sqrt(n)

    def relative_error(self, n_at: float | int, rng: Rng, level: float = ONE_SIDED_95) -> Found:
        """What was found, with the standard error at a sample of `n_at` units over the absolute score.

        Warns of `score_near_zero`, a score that may be 0, and of `zero_variance`.

        Raises:
            Undetermined: Where the ratio is undefined (`zero_denominator`) or below 1e-8 (`zero_mean`).
        """
        self.found.warn(score_near_zero=self.near_zero())
        self.found.stop_if(math.isnan(self.value), "zero_denominator")
        self.found.stop_if(abs(self.value) < 1e-8, "zero_mean")  # not a scale to compare its error with
        errors = stats.relative_errors(*self.statistic.pair(self.table), n_at=n_at, rng=rng)
        self.found.values["relative_standard_error"] = float(errors.value[0])
        self.found.warn(zero_variance=errors.value[0] == 0)
        self.found.interval = _outermost(errors, level, SMALLEST_POOL)
        return self.found


def _outermost(errors: stats.RelativeErrors, level: float, fewest: int) -> Interval:
    """The bounds of the only column; both 0 where nothing varies, else undefined below `fewest` units.

    A heavy tail that a sample has not shown makes any upper bound of a spread too low: over t5 and
    exponential values about twice as often as the bound says, more often with fewer units. Upper bounds have
    min(1 / 2, n / 250) of the error that is allowed.
    """
    if errors.value[0] == 0:
        return Interval(low=0.0, high=0.0, level=level, method="outermost", reason="degenerate")
    if errors.n < fewest:
        return undefined_interval(level, "outermost", "too_few")
    low = float(errors.bounds(level)[0, 0])
    high = float(errors.bounds(1 - (1 - level) * min(0.5, errors.n / 250))[1, 0])
    return Interval(low=low, high=high, level=level, method="outermost")
