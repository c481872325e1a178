"""Bounds of the mean correlation of several methods' scores: over heads like these, or over prompts."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.calibration._tables import halves, mirrored, percentile_bounds
from assay.core.verdict import ONE_SIDED_95, Interval, undefined_interval
from assay.stats import draw_counts, outermost, studentized_interval


FEWEST_PROMPTS = 20  # below which the noise in the prompts is not known well enough to be allowed for
RELIABLE = 0.5  # of a method's scores, below which a correlation cannot be corrected for their noise
N_SPLITS = 50  # of the prompts into halves, behind a reliability
_ALMOST = 1 - 1e-12
_FOR_SCORES = 0.95  # coverage asked of bootstrap-t where heavy tails make it fall short of 0.90

Matrix = Callable[[Float64[np.ndarray, "rows m n"]], Float64[np.ndarray, "rows m m"]]
Averaged = Callable[[Float64[np.ndarray, "rows n_units"]], Float64[np.ndarray, "rows m n"]]


def upper(matrix: Float64[np.ndarray, "*batch m m"]) -> Float64[np.ndarray, "*batch pairs"]:
    """Entries above the diagonal, in the order of `itertools.combinations`."""
    rows, columns = np.triu_indices(matrix.shape[-1], k=1)
    return np.asarray(matrix[..., rows, columns])


# ---------------------------------------------------------------------------------------------- over heads


def over_heads(
    scores: Float64[np.ndarray, "m n"], *, ranked: bool, n_boot: int, rng: np.random.Generator
) -> Interval:
    """Bounds of the mean correlation of all pairs, the heads being a sample of heads like these.

    The outermost of percentiles of resampled heads and of bootstrap-t in Fisher's z, with the error from the
    influence of each head, z_a z_b - r_ab (z_a^2 + z_b^2) / 2 averaged over pairs.

    Args:
        scores: Methods by heads; no method is constant.
        ranked: Whether ranks are correlated (Spearman) or the scores themselves.
        n_boot: Resamples.
        rng: Source of the resamples.
    """
    draws = rng.integers(0, scores.shape[1], (n_boot, scores.shape[1]))
    resampled = scores[:, draws].swapaxes(0, 1)
    point, error = (column[0] for column in _mean_correlation(scores[None], ranked))
    replicates, errors = _mean_correlation(resampled, ranked)
    percentiles = percentile_bounds(float(point), replicates)
    if abs(point) >= 1 or not error > 0:
        return percentiles
    with np.errstate(divide="ignore", invalid="ignore"):  # resamples in which all pairs agree fully
        found = studentized_interval(
            math.atanh(point),
            float(error / (1 - point**2)),
            np.arctanh(np.clip(replicates, -_ALMOST, _ALMOST)),
            np.where(np.abs(replicates) >= _ALMOST, 0.0, errors / (1 - replicates**2)),
            level=ONE_SIDED_95 if ranked else _FOR_SCORES,
        )
    found = replace(found, low=math.tanh(found.low), high=math.tanh(found.high), level=ONE_SIDED_95)
    return outermost(found, percentiles)


def _mean_correlation(
    scores: Float64[np.ndarray, "rows m n"], ranked: bool
) -> tuple[Float64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:
    """Mean correlation of the pairs and its standard error; NaN where a method is constant."""
    x = scipy.stats.rankdata(scores, axis=-1) if ranked else scores
    m, n = x.shape[1:]
    x = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((x**2).mean(axis=-1, keepdims=True))
    z = np.divide(x, spread, out=np.full(x.shape, np.nan), where=spread > 0)
    pairs = m * (m - 1) / 2
    products = (z.sum(axis=1) ** 2 - (z**2).sum(axis=1)) / 2  # summed over pairs
    with_others = (z @ z.swapaxes(1, 2) / n).sum(axis=-1) - 1
    influence = (products - (z**2 * with_others[..., None]).sum(axis=1) / 2) / pairs
    return products.mean(axis=-1) / pairs, influence.std(axis=-1, ddof=1) / math.sqrt(n)


# -------------------------------------------------------------------------------------------- over prompts


def over_prompts(
    averaged: Averaged,
    sampled: Bool[np.ndarray, " m"],
    n_units: int,
    matrix: Matrix,
    *,
    n_boot: int,
    rng: np.random.Generator,
) -> tuple[Interval, Float64[np.ndarray, " m"]]:
    """Bounds of the mean correlation of what the scores would be with ever more prompts.

    Noise in the prompts pulls correlations towards 0. Reliabilities r_a are correlations of a method's scores
    in two random halves of the prompts, stepped up by 2 r / (1 + r). A bound from below is that of the mean
    correlation as it is, less what errors that methods share may add: what it exceeds the correlations
    between methods across halves by, those divided by root(r_a r_b) of half the length. A bound from above is
    that of the mean of rho_ab / (r_a r_b). The root of it would do for errors alike along the scale; the
    ranks of many heads close to each other lose more.

    Args:
        averaged: Scores of all methods from weights of the units.
        sampled: Which methods have scores per prompt; the same draws are used for them, the others are
            fixed numbers.
        n_units: Prompts, or units of them.
        matrix: Correlations of every pair of methods.
        n_boot: Resamples of the units.
        rng: Source of the splits and resamples.

    Returns:
        The bounds, undefined below 20 units (`too_few`) and where a reliability is below 0.5
        (`unreliable_scores`); and the reliability of each method's scores, 1 for those without a score per
        prompt.
    """
    reliabilities = np.where(sampled, np.nan, 1.0)
    if n_units < FEWEST_PROMPTS:
        undefined = undefined_interval(ONE_SIDED_95, "percentile", "too_few")
        return undefined, reliabilities
    m = len(sampled)
    rows, columns = np.triu_indices(m, k=1)
    correlations = upper(matrix(averaged(np.full((1, n_units), 1 / n_units))))[0]
    first, second = (averaged(weights) for weights in halves(n_units, N_SPLITS, rng))
    across = matrix(np.concatenate([first, second], axis=1))[:, :m, m:].mean(axis=0)
    half = np.where(sampled, np.diag(across), 1.0)
    reliabilities = np.divide(2 * half, 1 + half, out=np.full(m, np.nan), where=half > -1)
    if not (reliabilities >= RELIABLE).all():
        undefined = undefined_interval(ONE_SIDED_95, "percentile", "unreliable_scores")
        return undefined, reliabilities
    crossed = (across + across.T)[rows, columns] / 2 / np.sqrt(half[rows] * half[columns])
    shared = max(0.0, float(correlations.mean() - crossed.mean()))
    replicates = upper(matrix(averaged(draw_counts(n_units, n_boot, rng) / n_units)))
    scale = 1 / (reliabilities[rows] * reliabilities[columns])
    plain, corrected = (
        cautious(float((weight * correlations).mean()), (weight * replicates).mean(axis=-1))
        for weight in (np.ones(len(rows)), scale)
    )
    interval = outermost(replace(plain, low=plain.low - shared), corrected)
    if interval.defined:
        interval = replace(
            interval, low=max(interval.low, -1.0), high=min(interval.high, 1.0), reason=plain.reason
        )
    return interval, reliabilities


def cautious(point: float, replicates: Float64[np.ndarray, " draws"]) -> Interval:
    """The outermost of percentiles and their mirror image at the point.

    Noise pulls the correlations of a sample towards 0, and resampling it adds as much noise again.
    """
    found = percentile_bounds(point, replicates)
    return replace(outermost(found, mirrored(point, found)), reason=found.reason)
