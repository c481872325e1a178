"""Does the number hinge on which prompts were drawn? Bootstrap resamples, and sub-samples of a pool."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int, Real, Shaped

from assay.analyses.calibration._relative import (
    by_relative_error,
    near_zero,
    outermost,
    relative_error,
    scores_of,
    shuffled,
    unit_labels,
)
from assay.analyses.calibration.gate import SEED, gate, gate_stream
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.reasons import below
from assay.analyses.calibration.samples import circuit_flags, inner_metric, judged, sample
from assay.core.errors import InputError, ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict
from assay.stats import (
    Estimate,
    absolute_errors,
    bootstrap_interval,
    bootstrap_spread,
    coefficient_of_variation,
)
from assay.stats.intervals import N_RESAMPLES


N_BOOT = 1000
SEEDS = (42, 123, 456, 789, 1337)
N_PROMPTS = 40
SMALLEST = 40  # units below which no bound of a standard error holds for t5 or exponential values

_SEED_READINGS = ((0.05, "excellent"), (0.10, "acceptable"))
_STABLE = Rule(pass_at=0.1, higher=False, strict=False)  # of a standard error on the unit scale
_READINGS = ((0.03, "very stable"), (0.10, "acceptable"), (0.20, "unstable"))
_SEEDS = Rule(pass_at=0.10, fail_at=0.20, higher=False)
_ERROR = Quantity(
    label="standard error of the score",
    value="standard_error",
    published="sigma",
    higher=False,
    strict=False,
    least=0.0,
)


# ------------------------------------------------------------------------------------------------- bootstrap


@gate(
    key="bootstrap-stability",
    code="C11",
    name="Bootstrap stability",
    criterion="M1 Reliability",
    question="Does the score hinge on which prompts were drawn?",
    on_pass="The number would come out about the same on another prompt sample of this size.",
    on_fail="Do not compare the number with anything; enlarge the sample or stratify it.",
    weakness="Percentile intervals under-cover for skewed ratios, and the spread falls with the number of "
    "prompts alone, so the rule judges the size of the sample rather than the metric.",
    number=_ERROR,
    parts={"completeness": replace(_ERROR, label="standard error of completeness")},
    reasons=below(SMALLEST, "an unseen heavy tail could hide most of the spread"),
)
def bootstrap_stability(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Real[np.ndarray, " n"],
    *,
    inner: str = "faithfulness",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    circuit_size: int | None = None,
    n_heads: int | None = None,
    n_boot: int = N_BOOT,
    draws: Int[np.ndarray, "n_boot n_units"] | None = None,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Spread of a circuit's score over bootstrap resamples of the prompts.

    Published: standard deviation of the replicates at most 0.1. With confidence: the outermost of three
    bounds of the standard error (bootstrap-t of its logarithm, percentiles, Bonett's) on one side of 0.1.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: Of the circuit alone (`faithfulness`), or with the circuit dropped (`completeness`).
        inner: Which of the two.
        unit_id: Prompts that belong together; units are then resampled.
        circuit_size: Heads in the circuit, for the flags of odd circuits.
        n_heads: Heads of the model.
        n_boot: Published resamples; BCa takes 2,000.
        draws: Given index matrix instead of random ones.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined below three prompts and where the sum over the full model vanishes; below 40 inconclusive
        (`too_few`). A constant ratio has
        spread 0 and passes (`zero_variance`). A score within three standard errors of 0 is flagged
        (`score_near_zero`): its error may pass while nothing is known of its size.

    References:
        Efron (1987), doi:10.1080/01621459.1987.10478410; Bonett (2006), doi:10.1016/j.csda.2004.10.003.
    """
    check_least(1, n_boot=n_boot)
    statistic = inner_metric(inner)
    data = sample(unit_id, y_full=y_full, y_circuit=y_circuit)
    draft = data.draft(_STABLE, f"C11.bootstrap_{inner}", *circuit_flags(circuit_size, n_heads))
    if reason := data.missing():
        return draft.undefined(reason)
    table = data.table[::-1]  # circuit, full: the order the statistic names
    value = float(statistic.of_sums(table.sum(axis=1), data.n))
    if math.isnan(value):
        return draft.undefined("zero_denominator")
    rng = gate_stream("C11", task, seed=seed)
    given = draws
    draws = rng.integers(0, data.n, (n_boot, data.n)) if given is None else _checked_draws(given, data.n)
    spread = bootstrap_spread(table, statistic.of_sums, rng=rng, draws=draws, n_resamples=len(draws))
    published = bootstrap_interval(
        table, statistic.of_sums, rng=rng, draws=draws, n_resamples=len(draws), method="percentile"
    )
    errors = absolute_errors(*statistic.pair(table), rng=gate_stream("C11.bounds", task, seed=seed))
    error = float(errors.value[0])
    unstable = statistic.unstable(table)
    draft.warn("unstable_denominator", unstable)
    interval = (
        statistic.interval(table, method="fieller")
        if unstable
        else bootstrap_interval(table, statistic.of_sums, rng=rng, draws=given, n_resamples=_n_bca(given))
    )
    if interval.reason == "unbounded":
        return draft.undefined("unbounded", values={"sigma": spread.value, inner: value})
    draft.warn("zero_variance", error == 0)
    draft.warnings += near_zero(statistic, table)
    relative = spread.value / abs(value) if value else math.nan
    if not math.isnan(relative):
        draft.details["reading"] = _reading(relative, _READINGS, "unreliable")
    draft.details |= {
        "percentile": published.to_dict(),
        "interval": interval.to_dict(),
        "n_for_half_width": {
            f"{width:g}": math.ceil(data.n * (1.96 * error / width) ** 2) for width in (0.05, 0.1)
        },
    }
    draft.values = {"sigma": spread.value, "standard_error": error, inner: value, "relative": relative}
    bounds = outermost(errors, ONE_SIDED_95, SMALLEST)
    return draft.verdict(judged(_STABLE, spread.value, error, bounds, data.n, fewest=SMALLEST))


def _reading(value: float, readings: Sequence[tuple[float, str]], otherwise: str) -> str:
    """The published word for a spread: of the first limit that it lies below."""
    return next((word for limit, word in readings if value < limit), otherwise)


def _checked_draws(draws: Int[np.ndarray, "n_boot n_units"], n: int) -> Int[np.ndarray, "n_boot n_units"]:
    if draws.ndim != 2 or draws.shape[1] != n or not draws.size or draws.min() < 0 or draws.max() >= n:
        raise ShapeError(f"draws has shape {draws.shape}; rows of {n} indices from 0 to {n - 1} are needed")
    return draws


def _n_bca(given: Int[np.ndarray, "n_boot n_units"] | None) -> int:
    return N_RESAMPLES if given is None else len(given)


# ------------------------------------------------------------------------------------------------ sub-samples


@gate(
    key="seed-variance",
    code="C30",
    name="Seed variance",
    criterion="M1 Reliability",
    question="Does the score depend on the seed that drew the prompts?",
    on_pass="The number would come out about the same on another prompt sample of this size.",
    on_fail="Do not compare the number with anything; enlarge the sample or stratify it.",
    weakness="The subsets overlap, so their spread is too small by a fifth, and five values estimate it with "
    "an error of a third: at a true relative error of 0.32 the published rule says moderate half the time.",
    number=Quantity(
        label="standard error of the score over the score",
        value="relative_standard_error",
        published="coefficient_of_variation",
        higher=False,
        least=0.0,
    ),
    reasons={
        "too_few": (
            "In a pool below 100 prompts, an unseen heavy tail could hide most of the spread.",
            "Draw from a pool of at least 100 prompts.",
        )
    },
)
def seed_variance(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Real[np.ndarray, " n"],
    *,
    n_prompts: int = N_PROMPTS,
    seeds: Sequence[int] = SEEDS,
    subsets: Sequence[Int[np.ndarray, " _"]] | None = None,
    y_other: Real[np.ndarray, " n"] | None = None,
    inner: str = "faithfulness",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    strata: Shaped[np.ndarray, " n"] | None = None,
    circuit_size: int | None = None,
    n_heads: int | None = None,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Relative spread of a circuit's score over samples that different seeds draw from one pool.

    Published: coefficient of variation (ddof 0) of the scores, below 0.10 a pass, above 0.20 a fail. With
    confidence: relative standard error at `n_prompts`, estimated from the whole pool, by the same limits.

    Args:
        y_full: Logit difference of the full model on the pool, at least three times `n_prompts` and 120.
        y_circuit: Of the circuit, as `inner` says.
        n_prompts: Size of a sample.
        seeds: One sample each.
        subsets: Given samples instead: indices of units of the pool (prompts, where no units are named).
        y_other: A second circuit on the same prompts: how often the seeds agree on which is better.
        inner: `faithfulness` or `completeness`.
        unit_id: Prompts that belong together, drawn together.
        strata: Classes that each sample holds in the proportions of the pool.
        circuit_size: Heads in the circuit, for the flags of odd circuits.
        n_heads: Heads of the model.
        task: Names the random streams.
        seed: Root of the bounds; samples have their own.

    Returns:
        Undefined (`pool_too_small`) unless the pool is larger than a sample, (`zero_mean`) for a score of 0;
        inconclusive (`too_few`) for a pool below 100. A score of the pool within three standard errors of 0
        is flagged (`score_near_zero`): no error relative to it is small.
    """
    check_least(1, n_prompts=n_prompts)
    if not len(seeds):
        raise InputError("seeds is empty; give at least one seed, each draws one sample")
    statistic = inner_metric(inner)
    runs = {"y_circuit": y_circuit, "y_full": y_full} | ({} if y_other is None else {"y_other": y_other})
    data = sample(unit_id, **runs)
    odd = circuit_flags(circuit_size, n_heads)
    draft = data.draft(_SEEDS, "C30.seed_variance", *odd, seeds=list(seeds))
    if reason := data.missing():
        return draft.undefined(reason)
    size = max(1, round(data.n * n_prompts / data.n_prompts))
    table = data.table[:2]
    if subsets is None and size <= data.n:
        codes = None if strata is None else unit_labels(data, data.label(strata, "strata"))[0]
        subsets = [shuffled(gate_stream("C30", task, seed=root), data.n, codes)[:size] for root in seeds]
    scores = scores_of(statistic, table, subsets or ())
    spread = coefficient_of_variation(scores) if len(scores) else Estimate(value=math.nan)
    draft.values = {
        "coefficient_of_variation": spread.value,
        "mean": float(scores.mean()) if len(scores) else math.nan,
    }
    draft.details["scores"] = scores
    draft.warn("unstable_denominator", statistic.unstable(table))
    if data.n_prompts <= n_prompts:
        return draft.undefined("pool_too_small")
    if spread.reason:
        return draft.undefined(spread.reason)
    draft.details["reading"] = _reading(spread.value, _SEED_READINGS, _SEEDS.published(spread.value))
    if y_other is not None and subsets:
        other = scores_of(statistic, data.table[[2, 1]], subsets)
        better = float(np.mean(scores > other))
        draft.details["sign_consistency"] = max(better, float(np.mean(scores < other)))
    draft.warnings += near_zero(statistic, table)
    error = relative_error(statistic, table, size, rng=gate_stream("C30.bounds", task, seed=seed))
    return by_relative_error(_SEEDS, spread.value, error, data, draft)
