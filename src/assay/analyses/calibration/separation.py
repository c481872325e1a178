"""How far the scores of a circuit's heads lie from those of the others: d' and AUROC of heads like these."""

import math

import numpy as np
import scipy
from jaxtyping import Float64

from assay import stats
from assay.analyses.calibration.gate import Found, Undetermined
from assay.analyses.calibration.samples import mirrored, percentile_bounds
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, undefined_interval
from assay.stats.detection import NO_SPREAD


D_PRIME = Rule(pass_at=1.0)
AREA = Rule(pass_at=0.85, fail_at=0.7)
FEWEST_TO_PASS = 15  # on a side; with fewer, skewed scores at the threshold pass too often

Side = Float64[np.ndarray, " _"]
Draws = Float64[np.ndarray, "draws _"]
Statistic = Float64[np.ndarray, " draws"]


def distance(
    inside: Side, outside: Side, rng: np.random.Generator, n_boot: int, level: float, *, forms: bool
) -> Found:
    """D': bootstrap-t within each group, no narrower than percentiles and their mirror image.

    Args:
        inside: Scores of the circuit's heads.
        outside: Of the others.
        rng: Source of the resamples.
        n_boot: Resamples.
        level: Two-sided coverage of the bounds.
        forms: Whether d' of magnitudes and the published difference of the magnitudes of means are added.
    """
    value = stats.d_prime(inside, outside)
    if not value.defined:
        raise Undetermined(value.reason or "undefined")
    found = Found(values={"value": value.value})
    if forms:
        magnitudes = stats.d_prime(np.abs(inside), np.abs(outside))
        pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        apart = float(abs(inside.mean()) - abs(outside.mean()))
        found.values["d_prime_abs"] = magnitudes.value if magnitudes.defined else None
        found.values["d_prime_abs_means"] = apart / pooled
    if reason := _too_few(inside, outside):
        found.interval = undefined_interval(level, "bootstrap-t", reason)
        return found
    error = float(_d_primes(inside[None], outside[None])[1][0])
    rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
    replicates, errors = _d_primes(inside[rows], outside[columns])
    percentiles = percentile_bounds(value.value, replicates, level=level)
    studentized = stats.studentized_interval(
        value.value, error, replicates, errors, level=level, low_tail=_pass_tail(level)
    )
    found.interval = stats.outermost(studentized, percentiles, mirrored(value.value, percentiles))
    return _of_heads_like_these(found, D_PRIME, inside, outside)


def area(inside: Side, outside: Side, rng: np.random.Generator, n_boot: int) -> Found:
    """AUROC: Student bounds of its logit, or percentiles."""
    members = np.arange(len(inside) + len(outside)) < len(inside)
    value = stats.auroc(np.concatenate([inside, outside]), members)
    if not value.defined:
        raise Undetermined(value.reason or "undefined")
    found, auroc = Found(values={"value": value.value}), value.value
    level, fewest = ONE_SIDED_95, min(len(inside), len(outside))
    if auroc in (0.0, 1.0):
        # Perfect order leaves nothing to resample. Disjoint pairs of a member and another head are
        # independent, so their share is binomial: its exact bounds hold for any number of them.
        found.interval = stats.clopper_pearson(round(auroc) * fewest, fewest, level=level)
        return found
    if reason := _too_few(inside, outside):
        found.interval = undefined_interval(level, "logit", reason)
        return found
    error = float(_areas(inside[None], outside[None])[1][0]) / (auroc * (1 - auroc))
    tails, logit = np.array([_pass_tail(level), (1 + level) / 2]), math.log(auroc / (1 - auroc))
    low, high = scipy.special.expit(logit + scipy.stats.t.ppf(tails, fewest - 1) * error)
    rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
    found.interval = stats.outermost(
        Interval(low=float(low), high=float(high), level=level, method="logit"),
        percentile_bounds(auroc, _areas(inside[rows], outside[columns])[0], level=level),
    )
    return _of_heads_like_these(found, AREA, inside, outside)


def _too_few(inside: Side, outside: Side) -> str | None:
    """Why two groups of heads say nothing about others like them, if so."""
    fewest = min(len(inside), len(outside))
    return None if fewest >= 5 else "too_few" if fewest < 2 else "too_few_heads"


def _of_heads_like_these(found: Found, rule: Rule, inside: Side, outside: Side) -> Found:
    """What was found of two groups of heads; with few heads on a side it cannot be a pass."""
    few = min(len(inside), len(outside)) < FEWEST_TO_PASS
    if few and found.interval and rule.rigorous(found.interval) in ("pass", "moderate"):
        found.open("too_few_heads")
    return found


def _pass_tail(level: float) -> float:
    """Nominal error of a bound that has to lie above a threshold.

    A fifth of what is promised: where the rare scores of a side lie below the others, fifteen heads seldom
    hold one of them, and the bound lies too high more often than it says.
    """
    return (1 - level) / 2 / 5


def _d_primes(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
    """D' of each row and its standard error from influence values, NaN where nothing varies.

    The influence of a score x inside is (x - m) / S - d' ((x - m)^2 - s^2) / (4 S^2), S^2 the mean of both
    variances; outside the first term has the other sign.
    """
    centred = [side - side.mean(axis=1, keepdims=True) for side in (inside, outside)]
    variances = [(side**2).sum(axis=1, keepdims=True) / (side.shape[1] - 1) for side in centred]
    pooled = np.sqrt((variances[0] + variances[1]) / 2)
    pooled = np.where(pooled > NO_SPREAD, pooled, np.nan)
    distance = (inside.mean(axis=1) - outside.mean(axis=1))[:, None] / pooled
    squared = np.zeros(len(inside))
    for sign, side, variance in zip((1, -1), centred, variances, strict=True):
        influence = sign * side / pooled - distance * (side**2 - variance) / (4 * pooled**2)
        squared += influence.var(axis=1, ddof=1) / side.shape[1]
    return distance[:, 0], np.sqrt(squared)


def _areas(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
    """AUROC of each row and its standard error from the share of the other side that a score exceeds.

    References:
        DeLong, DeLong and Clarke-Pearson (1988), doi:10.2307/2531595.
    """
    n, m = inside.shape[1], outside.shape[1]
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside], axis=1), axis=1)
    above = (ranks[:, :n] - scipy.stats.rankdata(inside, axis=1)) / m
    below = 1 - (ranks[:, n:] - scipy.stats.rankdata(outside, axis=1)) / n
    squared = above.var(axis=1, ddof=1) / n + below.var(axis=1, ddof=1) / m
    return above.mean(axis=1), np.sqrt(squared)
