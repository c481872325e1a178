"""Statistics of a sample, or of an enumerated population, of which nothing is estimated."""

import math
from collections.abc import Sequence

import numpy as np
import scipy
from jaxtyping import Float64

from assay.stats import AnchorComparison, Summary, compare_with_anchor, summarize, weighted_quantiles
from assay.stats.summary import PERCENTILES


_ROUNDING = 1e-12  # probabilities that are sums of many shares


def describe_distribution(
    values: Float64[np.ndarray, "..."],
    weights: Float64[np.ndarray, "..."] | None,
    *,
    thresholds: Sequence[float] = (),
) -> Summary:
    """Moments, percentiles and exceedances: of the population where there are weights, else of the sample.

    Of a population nothing is estimated: its percentiles are exact, its mean has no standard error.
    """
    if weights is None:
        return summarize(values, thresholds=thresholds)
    lowest, highest = float(values.min()), float(values.max())
    mean = lowest if lowest == highest else float((weights * values).sum())
    std = math.sqrt(float((weights * (values - mean) ** 2).sum()))
    quantiles = weighted_quantiles(values, weights, list(PERCENTILES.values()))
    ranked = {
        "min": lowest,
        **{key: float(value) for key, value in zip(PERCENTILES, quantiles, strict=True)},
        "max": highest,
    }
    return Summary(
        absolute={"count": values.size, "mean": mean, "std": std, **ranked},
        z={key: (value - mean) / std if std > 0 else math.nan for key, value in ranked.items()},
        standard_error=0.0,
        exceedance={
            float(threshold): float(weights[values > threshold].sum())
            for threshold in dict.fromkeys(thresholds)
        },
        warnings=() if std > 0 else ("no_spread",),
    )


def compare_distributions(
    values: Float64[np.ndarray, "..."],
    anchor: Float64[np.ndarray, "..."],
    weights: Float64[np.ndarray, "..."] | None,
) -> AnchorComparison:
    """Values beside an anchor: of the population where there are weights, else of the sample."""
    if weights is None:
        return compare_with_anchor(values, anchor)
    reference = float((weights * anchor).sum())
    ranks = [_ranks(each.ravel(), weights.ravel()) for each in (values, anchor)]
    covariance = np.cov(np.stack(ranks), aweights=weights.ravel(), ddof=0)
    spread = math.sqrt(float(covariance[0, 0] * covariance[1, 1]))
    return AnchorComparison(
        ratio_of_means=float((weights * values).sum()) / reference if reference else math.nan,
        share_above=float(weights[values > anchor].sum()),
        spearman=float(covariance[0, 1]) / spread if spread > _ROUNDING else math.nan,
    )


def _ranks(
    values: Float64[np.ndarray, " n"], weights: Float64[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """Mid-ranks as probabilities: F(t-) + P(t) / 2."""
    dense = scipy.stats.rankdata(values, method="dense").astype(np.int64) - 1
    mass = np.bincount(dense, weights=weights)
    return np.asarray((np.cumsum(mass) - mass / 2)[dense])
