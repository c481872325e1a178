"""S3: are the mean attributions of single heads known well enough?

A verdict on many heads is a proof about a majority of them by the partial-conjunction test: heads share
prompts, so that a count of those which pass a test of their own is not binomial, and is not a bound.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Int64, Real, Shaped

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate
from assay.analyses.calibration.samples import ALPHA, HALF, by_p, finite_heads, majorities
from assay.core.measurement import Verdict
from assay.stats.estimate import EQUAL, varies
from assay.stats.relative_error import N_RESAMPLES


STABLE_CV = 0.20
N_SUBSETS = 5
FEWEST_FOR_ERRORS = 40  # prompts from which the bounds of a relative error hold
_SHARE = Quantity(
    label="share of heads that are stable",
    value="share_stable",
    published="share_passing",
    rule=HALF,
    fewest=FEWEST_FOR_ERRORS,
)
_DIFFERENCE = replace(_SHARE, label="the same of effects on right less wrong answer")
_GROUPS = Quantity(label="heads that differ between groups", value="n_unstable")

Table = Float64[np.ndarray, "n k"]
Column = Float64[np.ndarray, " k"]


@gate(
    code="S3",
    criterion="S3 Distributional Stability",
    question="Are the heads' mean attributions known well enough, and the same in all groups of prompts?",
    on_pass="At least half of the mean attributions are known well and not seen to depend on the group.",
    on_fail="The sample is too small for more than half of the heads, or they depend on the context.",
    weakness="Random parts measure the size of the sample: at 40 prompts 3 % of stable heads pass.",
    number=_SHARE,
    parts={"difference": _DIFFERENCE, "groups": _GROUPS},
    parts_share_reasons=False,
    columns=lambda c: {"attributions": c.own("dla_correct"), "groups": c.grouping()[0]},
    # As S1.
    beside=lambda c: {"difference": {"attributions": c.own("dla")}},
)
def distributional_stability(
    attributions: Real[np.ndarray, "n k"],
    *,
    groups: Shaped[np.ndarray, " n"] | None = None,
    subsets: Sequence[Int[np.ndarray, " _"]] | None = None,
    how: Sampling,
) -> Found:
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
        subsets: Given subsets instead of five random ones of nearly equal size: indices of units.
        how: Units are drawn whole.

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
    data, finite = finite_heads(attributions, how.unit_id)
    dropped = () if finite.all() else ("head_dropped",)
    found = data.found("S3.distributional_stability", *dropped, fewest=3 * N_SUBSETS)
    found.thresholds = {"relative_error": STABLE_CV}
    found.stop_if(not finite.any(), "no_heads")
    x = data.vectors[0][:, finite]
    rng = how.stream("S3")
    if subsets is None:
        subsets = np.array_split(rng.permutation(data.n), N_SUBSETS)
    spreads = _subset_spreads(x, subsets)
    passing = (spreads[0] < STABLE_CV) & (spreads[1] < STABLE_CV)  # NaN does not pass
    error, p_stable, p_unstable = errors_of_means(x, rng)
    found.parts = {"variance": judge_variances(x, rng)}
    differing = np.zeros(x.shape[1], dtype=np.bool_)
    if groups is not None:
        labels, whole = data.unit_labels(groups, "groups")
        part = _GROUPS.judges(_by_group)(x, labels, whole)
        found.warn(units_cross_groups=not whole)
        found.parts |= {"groups": part}
        if part.reason not in ("units_cross_groups", "not_applicable"):
            differing[part.details["unstable"]] = True
            for kind, row in zip(("mean", "spread"), part.details["p"], strict=True):
                for head, p, differs in zip(np.flatnonzero(finite).tolist(), row, differing, strict=True):
                    # None, not False: the published code has no such test, so its rule does not count one.
                    claim, made = f"the {kind} of {{}} differs between groups", bool(differs) or None
                    found.claim(f"S3/{kind}/{head}", claim, p, "F", claimed=made, head=head)
            p_unstable = np.minimum(p_unstable, np.nan_to_num(part.details["p"], nan=1.0).min(axis=0))
        p_unstable = np.minimum(1.0, 3 * p_unstable)  # Bonferroni over three tests
    excluded = differing | (p_unstable <= ALPHA)
    stable, p_stable = (error < STABLE_CV) & ~excluded, np.where(excluded, 1.0, p_stable)
    half, most = majorities(x.shape[1])
    p_pass, p_fail = stats.partial_conjunction(p_stable, half), stats.partial_conjunction(p_unstable, most)
    found.values = {"share_passing": float(passing.mean()), "share_stable": float(stable.mean())}
    for name, column in zip(("mean", "variance"), spreads[:2], strict=True):
        known = column[~np.isnan(column)]
        found.values[f"mean_cv_{name}"] = float(known.mean()) if len(known) else math.nan
    found.values |= {"p_half_stable": p_pass, "p_most_unstable": p_fail}
    found.details |= dict(zip(("cv_mean", "cv_variance", "cv_skewness"), spreads, strict=True))
    found.details |= {"columns": np.flatnonzero(finite), "passing": passing, "relative_error_mean": error}
    found.details["relative_error_variance"] = found.parts["variance"].details["relative_error"]
    found.details |= {"p_stable": p_stable, "p_unstable": p_unstable, "stable": stable}
    found.status = by_p(p_pass, p_fail)
    if not varies(x, axis=0).any():
        found.warn(zero_variance=True)
        found.open("zero_variance")
    return found


def errors_of_means(x: Table, rng: np.random.Generator) -> tuple[Column, Column, Column]:
    """Relative standard error of each mean, p of "it is 0.20 or more", and p of "it is 0.20 or less"."""
    scaled = _scaled(x)
    errors = stats.relative_errors(scaled, rng=rng)
    beyond = _beyond_limit(scaled)
    # Lower bounds on a logarithmic scale know nothing of a head whose mean may be 0; Hall's alone holds.
    p_stable = np.maximum(errors.p_below(STABLE_CV), stats.mean_above(beyond))
    return errors.value, p_stable, stats.mean_above(-beyond)


def _scaled(x: Table) -> Table:
    """Each head in a unit of its own: fourth powers could vanish, and the unit does not matter."""
    largest = np.abs(x).max(axis=0)
    return np.asarray(x / np.where(largest > 0, largest, 1.0))


def _beyond_limit(x: Table) -> Table:
    """Values whose mean is |m| - s / (limit root n), and whose spread is its error, to first order."""
    centre = x.mean(axis=0)
    spread = np.array([column.std() if varies(column) else 0.0 for column in x.T])
    apart = (x - centre) * np.where(centre < 0, -1.0, 1.0)
    share = np.divide(apart**2, spread, out=np.zeros_like(x), where=spread > 0)
    scale = 1 / (STABLE_CV * math.sqrt(len(x) - 1))  # spread is that with ddof 0
    return np.asarray(np.abs(centre) + apart - scale * (share + spread) / 2)


def judge_variances(x: Table, rng: np.random.Generator) -> Verdict:
    """Whether the variances of more than half of the heads are known too badly: bootstrap of the kurtosis."""
    n, k = x.shape
    varied = varies(x, axis=0)
    z = np.where(varied, _scaled(x - x.mean(axis=0)), 0.0)
    weights = np.concatenate([np.ones((1, n)), stats.draw_counts(n, N_RESAMPLES, rng)]) / n
    first, second, third, fourth = (weights @ z**power for power in range(1, 5))
    variance = np.maximum(second - first**2, 0.0)
    around = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    kurtosis = np.divide(around, variance**2, out=np.full(variance.shape, np.inf), where=variance > EQUAL)
    least = (n - 3) / (n - 1)
    error = np.sqrt(np.maximum(kurtosis[0] - least, 0.0) / n)
    limit = n * STABLE_CV**2 + least
    p = (1 + (kurtosis[1:] <= limit).sum(axis=0)) / (1 + N_RESAMPLES)
    p[~varied] = 1.0
    p_fail = stats.partial_conjunction(p, majorities(k)[1])
    found = Found(status=by_p(1.0, p_fail), published="none", thresholds={"relative_error": STABLE_CV})
    found.values = {"share_stable": float((error < STABLE_CV).mean()), "p_most_unstable": p_fail}
    found.details = {"metric": "S3.variance", "relative_error": error, "p_unstable": p}
    found.reason = None if p_fail <= ALPHA else "no_upper_bound"
    return _SHARE.judge(found)


def _subset_spreads(x: Table, subsets: Sequence[Any]) -> Float64[np.ndarray, "3 k"]:
    """Coefficient of variation (ddof 1) over subsets of mean, variance and skewness; NaN without a scale."""
    moments = np.zeros((3, len(subsets), x.shape[1]))
    for at, rows in enumerate(subsets):
        part = x[rows]
        moments[0, at] = part.mean(axis=0)
        varied = varies(part, axis=0)  # of others, 0: not the rounding of the mean
        moments[1, at, varied] = part[:, varied].var(axis=0, ddof=1)
        if len(part) > 2 and varied.any():
            apart = (part - moments[0, at])[:, varied]
            third = (apart**3).mean(axis=0) / (apart**2).mean(axis=0) ** 1.5
            moments[2, at, varied] = third * math.sqrt(len(part) * (len(part) - 1)) / (len(part) - 2)
    centre = np.abs(moments.mean(axis=1))
    spreads = np.full(centre.shape, np.nan)
    # Below 1e-12 the mean over subsets is not a scale for their spread.
    return np.asarray(np.divide(moments.std(axis=1, ddof=1), centre, out=spreads, where=centre >= 1e-12))


def _by_group(x: Table, labels: Int64[np.ndarray, " n"], whole: bool) -> Found:
    """Heads whose mean or spread differs between groups."""
    found = Found(details={"metric": "S3.groups"}, published="none")
    found.stop_if(not whole, "units_cross_groups")  # no independent groups with one image in several
    rows = [np.flatnonzero(labels == each) for each in np.unique(labels)]
    tests = [stats.group_differences([column[each] for each in rows]) for column in x.T]
    found.stop_if(len(tests[0].used) < 2, "not_applicable")
    means = [each.classic.p_value if each.welch.reason else each.welch.p_value for each in tests]
    p = np.array([means, [each.brown_forsythe.p_value for each in tests]])
    adjusted = stats.benjamini_hochberg(p)
    differing = (adjusted <= ALPHA).any(axis=0)
    found.details |= {"p": p, "adjusted_p": adjusted, "unstable": np.flatnonzero(differing)}
    found.values = {"n_unstable": float(differing.sum()), "share_unstable": float(differing.mean())}
    found.status = "fail" if differing.any() else "inconclusive"
    found.reason = None if differing.any() else "no_difference_found"
    return found
