"""Are the mean attributions of single heads known well enough?

A verdict on many heads is a proof about a majority of them by the partial-conjunction test: heads share
prompts, so that a count of those which pass a test of their own is not binomial, and is not a bound.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int, Real, Shaped

from assay.analyses.calibration._relative import unit_labels
from assay.analyses.calibration._tables import HALF, by_p, finite_heads, majorities
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream, left_open, undefined
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.reasons import below
from assay.analyses.calibration.samples import Sample, limits
from assay.core.errors import InputError, check_least
from assay.core.verdict import Verdict
from assay.stats import (
    benjamini_hochberg,
    group_differences,
    mean_above,
    partial_conjunction,
    relative_errors,
)
from assay.stats._checks import EQUAL, varies
from assay.stats.intervals import draw_counts
from assay.stats.relative_error import N_RESAMPLES


N_SUBSETS = 5
STABLE_CV = 0.20
NO_MEAN = 1e-12  # of subset statistics, below which their spread has no scale
FEWEST_FOR_ERRORS = 40  # prompts from which the bounds of a relative error hold
Subsets = Sequence[Int[np.ndarray, " _"]]
_LIMITS = {**limits(HALF), "relative_error": STABLE_CV}
_SHARE = Quantity(
    label="share of heads that are stable",
    value="share_stable",
    published="share_passing",
    strict=False,
    least=0.0,
    most=1.0,
)


@gate(
    key="distributional-stability",
    code="S3",
    name="Distributional stability",
    criterion="S3 Distributional Stability",
    question="Are the heads' mean attributions known well enough, and the same in all groups of prompts?",
    on_pass="The mean attributions of at least half of the heads are known well enough and, where groups are "
    "given, not seen to depend on the group.",
    on_fail="The sample is too small for more than half of the heads, or they depend on the context.",
    weakness="Random parts measure the size of the sample only: with 40 prompts 3 % of perfectly stable "
    "heads pass, with 400 it is 83 %.",
    number=_SHARE,
    parts={
        "difference": replace(_SHARE, label="the same of effects on right less wrong answer"),
        "groups": Quantity(
            label="heads that differ between groups", value="n_unstable", higher=False, least=0.0
        ),
    },
    reasons=below(FEWEST_FOR_ERRORS, "no bounds of a relative error hold for skewed attributions"),
    parts_share_reasons=False,
)
def distributional_stability(
    attributions: Real[np.ndarray, "n k"],
    *,
    groups: Shaped[np.ndarray, " n"] | None = None,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    subsets: Subsets | None = None,
    n_subsets: int = N_SUBSETS,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Whether the mean attributions of half of a circuit's heads are known well enough.

    Published: coefficient of variation (ddof 1) over random subsets of the prompts below 0.20 for the mean
    and the variance; the source has no limit of the share, 0.5 is ours. With confidence: the relative
    standard error of a head's mean, theta = s / (root n |m|), against 0.20. A pass proves that at least
    ceil(k / 2) heads lie below, a fail that more than half lie above or depend on the group, both by the
    partial-conjunction test of one-sided p-values at 0.05. The p of a head that is to lie below is the
    largest of those of four bounds of theta: the three of `assay.stats.relative_errors`, and Hall's of
    |m| - s / (0.20 root n), which alone gives that of a head which is to lie above.

    Args:
        attributions: Direct attribution of the circuit's heads to the correct token, prompts by heads.
        groups: Labels of prompts. A head whose mean (Welch) or spread (Brown and Forsythe) differs between
            groups, after Benjamini and Hochberg over all heads and both tests, is not stable.
        unit_id: Prompts that belong together.
        subsets: Given subsets instead of random ones: indices of units.
        n_subsets: Random subsets of nearly equal size, at least 2.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined below 15 prompts and without heads. Below 40 prompts inconclusive (`too_few`): the bounds do
        not hold for skewed attributions.
        `sub_results["variance"]` judges the relative standard error of the variance,
        root((g4 - (n - 3) / (n - 1)) / n) with the kurtosis g4. It fails or is inconclusive, and never
        passes: up to 1,000 prompts no upper bound of a kurtosis holds.
        `sub_results["groups"]` fails where any head depends on the group, and is never a pass: a difference
        not found is not proof of its absence.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Hall (1992),
        doi:10.1111/j.2517-6161.1992.tb01876.x; Welch (1951), doi:10.1093/biomet/38.3-4.330; Brown and
        Forsythe (1974), doi:10.1080/01621459.1974.10482955.
    """
    check_least(2, n_subsets=n_subsets)
    data, finite = finite_heads(attributions, unit_id)
    draft = data.draft(HALF, "S3.distributional_stability")
    draft.thresholds = _LIMITS
    draft.warn("head_dropped", not finite.all())
    reason = data.missing(3 * n_subsets) or (None if finite.any() else "no_heads")
    if reason is not None:
        return draft.undefined(reason)
    x = data.vectors[0][:, finite]
    rng = gate_stream("S3", task, seed=seed)
    if subsets is None:
        subsets = np.array_split(rng.permutation(data.n), n_subsets)
    spreads = _subset_spreads(x, subsets)
    passing = (spreads[0] < STABLE_CV) & (spreads[1] < STABLE_CV)  # NaN does not pass
    published = float(passing.mean())
    error, p_stable, p_unstable = errors_of_means(x, rng)
    parts = {"variance": judge_variances(x, rng)}
    differing = np.zeros(x.shape[1], dtype=np.bool_)
    if groups is not None:
        parts["groups"], by_group, differing, crossed = _by_group(x, data, data.label(groups, "groups"))
        p_unstable = np.minimum(1.0, 3 * np.minimum(p_unstable, by_group))  # Bonferroni over three tests
        draft.warn("units_cross_groups", crossed)
    stable = (error < STABLE_CV) & ~differing & (p_unstable > ALPHA)
    p_stable = np.where(differing | (p_unstable <= ALPHA), 1.0, p_stable)
    half, most = majorities(x.shape[1])
    p_pass, p_fail = partial_conjunction(p_stable, half), partial_conjunction(p_unstable, most)
    draft.values = {
        "share_passing": published,
        "share_stable": float(stable.mean()),
        "mean_cv_mean": _mean(spreads[0]),
        "mean_cv_variance": _mean(spreads[1]),
        "p_half_stable": p_pass,
        "p_most_unstable": p_fail,
    }
    draft.details |= {
        "columns": np.flatnonzero(finite),
        "cv_mean": spreads[0],
        "cv_variance": spreads[1],
        "cv_skewness": spreads[2],
        "passing": passing,
        "relative_error_mean": error,
        "relative_error_variance": parts["variance"].details["relative_error"],
        "p_stable": p_stable,
        "p_unstable": p_unstable,
        "stable": stable,
    }
    flat = not any(varies(column) for column in x.T)
    draft.warn("zero_variance", flat)
    verdict = Verdict(
        status=by_p(p_pass, p_fail),
        published=HALF.published(published),
        sub_results=parts,
        **vars(draft),
    )
    if flat:
        return left_open(verdict, "zero_variance")
    return verdict if data.n >= FEWEST_FOR_ERRORS else left_open(verdict, "too_few", FEWEST_FOR_ERRORS)


def errors_of_means(
    x: Float64[np.ndarray, "n k"], rng: np.random.Generator
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Relative standard error of each mean, p of "it is 0.20 or more", and p of "it is 0.20 or less"."""
    scaled = _scaled(x)
    errors = relative_errors(scaled, rng=rng)
    beyond = _beyond_limit(scaled)
    # Lower bounds on a logarithmic scale know nothing of a head whose mean may be 0; Hall's alone holds.
    return errors.value, np.maximum(errors.p_below(STABLE_CV), mean_above(beyond)), mean_above(-beyond)


def _scaled(x: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
    """Each head in a unit of its own: fourth powers could vanish, and the unit does not matter."""
    largest = np.abs(x).max(axis=0)
    return np.asarray(x / np.where(largest > 0, largest, 1.0))


def _beyond_limit(x: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "n k"]:
    """Values whose mean is |m| - s / (limit root n), and whose spread is its error, to first order."""
    centre = x.mean(axis=0)
    spread = np.array([column.std() if varies(column) else 0.0 for column in x.T])
    apart = (x - centre) * np.where(centre < 0, -1.0, 1.0)
    share = np.divide(apart**2, spread, out=np.zeros_like(x), where=spread > 0)
    scale = 1 / (STABLE_CV * math.sqrt(len(x) - 1))  # spread is that with ddof 0
    return np.asarray(np.abs(centre) + apart - scale * (share + spread) / 2)


def judge_variances(x: Float64[np.ndarray, "n k"], rng: np.random.Generator) -> Verdict:
    """Whether the variances of more than half of the heads are known too badly: bootstrap of the kurtosis."""
    n, k = x.shape
    varied = np.array([varies(column) for column in x.T])
    z = np.where(varied, _scaled(x - x.mean(axis=0)), 0.0)
    weights = np.concatenate([np.ones((1, n)), draw_counts(n, N_RESAMPLES, rng)]) / n
    first, second, third, fourth = (weights @ z**power for power in range(1, 5))
    variance = np.maximum(second - first**2, 0.0)
    around = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    kurtosis = np.divide(around, variance**2, out=np.full(variance.shape, np.inf), where=variance > EQUAL)
    least = (n - 3) / (n - 1)
    error = np.sqrt(np.maximum(kurtosis[0] - least, 0.0) / n)
    limit = n * STABLE_CV**2 + least
    p = (1 + (kurtosis[1:] <= limit).sum(axis=0)) / (1 + N_RESAMPLES)
    p[~varied] = 1.0
    p_fail = partial_conjunction(p, majorities(k)[1])
    return Verdict(
        status=by_p(1.0, p_fail),
        published="none",
        values={"share_stable": float((error < STABLE_CV).mean()), "p_most_unstable": p_fail},
        thresholds=_LIMITS,
        reason=None if p_fail <= ALPHA else "no_upper_bound",
        details={"metric": "S3.variance", "relative_error": error, "p_unstable": p},
    )


def _mean(values: Float64[np.ndarray, " _"]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _subset_spreads(x: Float64[np.ndarray, "n k"], subsets: Subsets) -> Float64[np.ndarray, "3 k"]:
    """Coefficient of variation (ddof 1) over subsets of mean, variance and skewness; NaN without a scale."""
    if len(subsets) < 2 or min(map(len, subsets)) < 2:
        raise InputError(
            f"subsets hold {[len(rows) for rows in subsets]} units; expected two or more subsets of at "
            "least 2"
        )
    moments = np.full((3, len(subsets), x.shape[1]), np.nan)
    for at, rows in enumerate(subsets):
        part = x[rows]
        moments[0, at] = part.mean(axis=0)
        moments[1, at] = part.var(axis=0, ddof=1)
        alike = np.array([not varies(column) for column in part.T])
        moments[1, at, alike] = 0.0  # not the rounding of the mean
        moments[2, at] = _skewness(part, alike)
    centre = np.abs(moments.mean(axis=1))
    found = np.full(centre.shape, np.nan)
    np.divide(moments.std(axis=1, ddof=1), centre, out=found, where=centre >= NO_MEAN)
    return found


def _skewness(part: Float64[np.ndarray, "m k"], alike: Bool[np.ndarray, " k"]) -> Float64[np.ndarray, " k"]:
    """Adjusted skewness G1; 0 for a constant head, as the source has it."""
    found = np.zeros(part.shape[1])
    if len(part) > 2 and not alike.all():
        m, varied = len(part), part[:, ~alike]
        z = (varied - varied.mean(axis=0)) / varied.std(axis=0, ddof=1)
        found[~alike] = m / ((m - 1) * (m - 2)) * (z**3).sum(axis=0)
    return found


def _by_group(
    x: Float64[np.ndarray, "n k"], data: Sample, labels: Shaped[np.ndarray, " n_prompts"]
) -> tuple[Verdict, Float64[np.ndarray, " k"], Bool[np.ndarray, " k"], bool]:
    """The smaller p of each head, heads that differ between groups, whether units lie in several.

    Then, and with fewer than two groups, nothing is tested, and each p is 1.
    """
    of_unit, whole = unit_labels(data, labels)
    details: dict[str, Any] = {"metric": "S3.groups"}
    if not whole:
        # Tests of independent groups do not hold for one image in many groups.
        verdict = undefined("units_cross_groups", published="none", details=details)
        return verdict, np.ones(x.shape[1]), np.zeros(x.shape[1], dtype=np.bool_), True
    rows = [np.flatnonzero(of_unit == each) for each in np.unique(of_unit)]
    found = [group_differences([column[each] for each in rows]) for column in x.T]
    if len(found[0].used) < 2:
        verdict = undefined("not_applicable", published="none", details=details)
        return verdict, np.ones(x.shape[1]), np.zeros(x.shape[1], dtype=np.bool_), False
    p = np.array(
        [
            [each.welch.p_value if not each.welch.reason else each.classic.p_value for each in found],
            [each.brown_forsythe.p_value for each in found],
        ]
    )
    adjusted = benjamini_hochberg(p)
    differing = (adjusted <= ALPHA).any(axis=0)
    details |= {"p": p, "adjusted_p": adjusted, "unstable": np.flatnonzero(differing)}
    verdict = Verdict(
        status="fail" if differing.any() else "inconclusive",
        published="none",
        values={"n_unstable": float(differing.sum()), "share_unstable": float(differing.mean())},
        reason=None if differing.any() else "no_difference_found",
        details=details,
    )
    return verdict, np.where(np.isnan(p), 1.0, p).min(axis=0), np.asarray(differing), False
