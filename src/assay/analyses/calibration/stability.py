"""Are single heads known well enough? Statistics on parts of the prompts, and the signs of effects.

A verdict on many heads is a proof about a majority of them by the partial-conjunction test: heads share
prompts, so that a count of those which pass a test of their own is not binomial, and is not a bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int, Real, Shaped
from scipy import stats as scipy_stats

from assay.analyses.calibration._relative import unit_labels
from assay.analyses.calibration._samples import Sample, sample
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream, positive, undefined
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import Rule, Verdict
from assay.stats import (
    benjamini_hochberg,
    certified_inclusion,
    confidence_sequence,
    group_differences,
    mean_above,
    mean_tests,
    partial_conjunction,
    relative_errors,
)
from assay.stats._checks import EQUAL, varies
from assay.stats.intervals import draw_counts
from assay.stats.relative_error import N_RESAMPLES
from assay.stats.skewed_mean import FEWEST_FOR_MEANS


N_SUBSETS = 5
N_SUBSAMPLES = 20
STABLE_CV = 0.20
NO_MEAN = 1e-12  # of subset statistics, below which their spread has no scale
FEWEST_FOR_ERRORS = 40  # prompts from which the bounds of a relative error hold
_TOO_MANY = 1e6  # root of a number of prompts that nobody will collect
CERTIFIED, CONTINGENT = 0.95, 0.50  # published pass rates
_HALF = Rule(pass_at=0.5, strict=False)
_LIMITS = {"pass": 0.5, "fail": 0.5}


def _heads(table: Real[np.ndarray, "n k"], unit_id: Any) -> tuple[Sample, Bool[np.ndarray, " k"]]:
    """Prompts finite at all heads that are finite anywhere; the others hold zeros and are marked."""
    x = np.asarray(table, dtype=np.float64)
    if x.ndim != 2:
        raise ShapeError(f"a table of heads has shape {x.shape}; prompts by heads are needed")
    finite = np.isfinite(x).any(axis=0) if len(x) else np.ones(x.shape[1], dtype=np.bool_)
    return sample(unit_id, heads=np.where(finite, x, 0.0)), np.asarray(finite)


# ----------------------------------------------------------------------------------- distributional stability


@gate(
    key="distributional-stability",
    code="S3",
    name="Distributional stability",
    criterion="M1 reliability",
    needs=("attributions",),
    question="Are the heads' mean attributions known well enough, and the same in all groups of prompts?",
    on_pass="The mean attributions of at least half of the heads are known well enough and, where groups are "
    "given, not seen to depend on the group.",
    on_fail="The sample is too small for more than half of the heads, or they depend on the context.",
    weakness="Random parts measure the size of the sample only: with 40 prompts 3 % of perfectly stable "
    "heads pass, with 400 it is 83 %.",
)
def distributional_stability(
    attributions: Real[np.ndarray, "n k"],
    *,
    groups: Shaped[np.ndarray, " n"] | None = None,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    subsets: Sequence[Int[np.ndarray, " _"]] | None = None,
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
        not found is no proof of its absence.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Hall (1992),
        doi:10.1111/j.2517-6161.1992.tb01876.x; Welch (1951), doi:10.1093/biomet/38.3-4.330; Brown and
        Forsythe (1974), doi:10.1080/01621459.1974.10482955.
    """
    if n_subsets < 2:
        raise InputError(f"n_subsets is {n_subsets}; at least 2 are needed, 5 by default")
    data, finite = _heads(attributions, unit_id)
    (x,) = data.vectors
    n, k = x.shape
    warnings = data.warnings + (() if finite.all() else ("head_dropped",))
    details: dict[str, Any] = {"metric": "S3.distributional_stability", **data.counts}
    limits = _LIMITS | {"relative_error": STABLE_CV}
    reason = data.missing(3 * n_subsets) or (None if finite.any() else "no_heads")
    if reason is not None:
        return undefined(reason, thresholds=limits, warnings=warnings, details=details)
    x, k = x[:, finite], int(finite.sum())
    rng = gate_stream("S3", task, seed=seed)
    if subsets is None:
        subsets = np.array_split(rng.permutation(n), n_subsets)
    if len(subsets) < 2 or min(map(len, subsets)) < 2:
        raise InputError(
            f"subsets hold {[len(rows) for rows in subsets]} units; two or more of at least 2 are needed"
        )
    spreads = _subset_spreads(x, subsets)
    passing = (spreads[0] < STABLE_CV) & (spreads[1] < STABLE_CV)  # NaN does not pass
    published = float(passing.mean())

    error, p_stable, p_unstable = errors_of_means(x, rng)
    stable = error < STABLE_CV
    parts = {"variance": judge_variances(x, rng)}
    if groups is not None:
        labels = data.label(groups, "groups")
        parts["groups"], by_group, differing, crossed = _by_group(x, data, labels)
        p_unstable = np.minimum(1.0, 3 * np.minimum(p_unstable, by_group))  # Bonferroni over three tests
        stable &= ~differing
        p_stable[differing] = 1.0
        if crossed:
            warnings += ("units_cross_groups",)
    stable &= p_unstable > ALPHA
    p_stable[p_unstable <= ALPHA] = 1.0
    half, most = _majorities(k)
    p_pass, p_fail = partial_conjunction(p_stable, half), partial_conjunction(p_unstable, most)
    status, reason, needed = _by_p(p_pass, p_fail), None, None
    if not any(varies(column) for column in x.T):
        status, reason, warnings = "inconclusive", "zero_variance", (*warnings, "zero_variance")
    elif n < FEWEST_FOR_ERRORS:
        status, reason, needed = "inconclusive", "too_few", FEWEST_FOR_ERRORS
    return Verdict(
        status=status,
        published=_HALF.published(published),
        values={
            "share_passing": published,
            "share_stable": float(stable.mean()),
            "mean_cv_mean": _mean(spreads[0]),
            "mean_cv_variance": _mean(spreads[1]),
            "p_half_stable": p_pass,
            "p_most_unstable": p_fail,
        },
        thresholds=limits,
        n_needed=needed,
        reason=reason,
        sub_results=parts,
        warnings=warnings,
        details={
            **details,
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
        },
    )


def _by_p(p_pass: float, p_fail: float) -> str:
    """`fail` before `pass`: the two exclude each other, as heads of one kind are not of the other."""
    return "fail" if p_fail <= ALPHA else "pass" if p_pass <= ALPHA else "inconclusive"


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
    p_fail = partial_conjunction(p, _majorities(k)[1])
    return Verdict(
        status=_by_p(1.0, p_fail),
        published="none",
        values={"share_stable": float((error < STABLE_CV).mean()), "p_most_unstable": p_fail},
        thresholds=_LIMITS | {"relative_error": STABLE_CV},
        reason=None if p_fail <= ALPHA else "no_upper_bound",
        details={"metric": "S3.variance", "relative_error": error, "p_unstable": p},
    )


def _mean(values: Float64[np.ndarray, " _"]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan


def _subset_spreads(
    x: Float64[np.ndarray, "n k"], subsets: Sequence[Int[np.ndarray, " _"]]
) -> Float64[np.ndarray, "3 k"]:
    """Coefficient of variation (ddof 1) over subsets of mean, variance and skewness; NaN without a scale."""
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


# -------------------------------------------------------------------------------------------- certified heads


@gate(
    key="certified-stability",
    code="M3b",
    name="Certified stability",
    criterion="M3 minimality",
    needs=("effects",),
    question="Do the heads of the circuit contribute, whichever prompts are looked at?",
    on_pass="At least half of the members contribute individually.",
    on_fail="More than half of the members contribute less than the smallest effect that counts. Prune the "
    "negligible heads and measure again.",
    weakness="The mean of 80 % of the prompts varies half as much as the estimate itself, so a head without "
    "effect is certified a quarter of the time, at any number of prompts.",
    source="mechanistic-validity framework; Anani et al. (2026), arXiv:2602.22968",
)
def certified_stability(
    effects: Real[np.ndarray, "n k"],
    *,
    smallest: float | None = None,
    signs: Real[np.ndarray, " k"] | None = None,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    fraction: float = 0.8,
    n_draws: int = N_SUBSAMPLES,
    subsamples: Int[np.ndarray, "n_draws size"] | None = None,
    sequence: str | None = None,
    bounds: tuple[float, float] = (-1.0, 1.0),
    deletion: float | None = None,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Whether half of a circuit's heads have an effect above 0, or more than half a negligible one.

    Published: a head is certified where its mean effect is above 0 in 95 % of random subsamples, contingent
    in half, else unstable; half of the heads certified pass. With confidence: a pass proves that at least
    ceil(k / 2) of the k mean effects are above 0, a fail that more than half lie below `smallest`, both by
    the partial-conjunction test of one-sided p-values (`assay.stats.mean_above`) at 0.05. A head whose effect
    is below `smallest` with p <= 0.05 is negligible, and then not positive.

    Args:
        effects: Effect of dropping each head of the circuit on each prompt, `y_full - y_drop1`.
        smallest: Mean effect below which a head is negligible, in the unit of the effects, at least 0.
            Default: 0, with the warning `smallest_is_zero`; a fail then needs heads of negative effect.
        signs: -1 for heads declared to oppose the task, whose effect is tested to be below 0; else 1.
        unit_id: Prompts that belong together.
        fraction: Of the prompts in a subsample, rounded down; half of them, in 200 draws, is sounder.
        n_draws: Subsamples.
        subsamples: Given ones instead, indices of units.
        sequence: Also certify so that one may look after every prompt: `sign` bets on 1{effect > 0} against
            1/2, `clipped` on the effect clipped to `bounds` against 0 and `smallest`.
        bounds: Declared range of an effect, for `clipped`.
        deletion: Also certify against edits of the sample, deleting each prompt with this probability.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined below five prompts; not applicable to an empty circuit. Below 20 prompts inconclusive
        (`too_few`): the p-values of skewed effects do not hold. `n_needed`: smallest n at which, at today's
        means and spreads, one of the tests reaches 0.05; None where a head that it hinges on lies within a
        standard error of its limit. A head without a finite effect is unstable (`head_not_finite`). A head
        with the same effect on every prompt is certified if that is above 0 (`zero_variance`).
        `details["labels"]` of single heads: certified where a one-sided sign-flip test says so after
        Benjamini and Hochberg at 0.05, unstable where the mean effect is not above 0, else contingent;
        `details["n_to_certify"]` has the prompts each contingent head would need at its present spread.

    References:
        Benjamini and Heller (2008), doi:10.1111/j.1541-0420.2007.00984.x; Fisher (1935); Benjamini and
        Hochberg (1995); Waudby-Smith and Ramdas (2024), arXiv:2010.09686.
    """
    positive("n_draws", n_draws)
    if not 0 < fraction <= 1:
        raise InputError(f"fraction is {fraction}; a share of the prompts above 0, at most 1, is needed")
    if sequence not in (None, "sign", "clipped"):
        raise InputError(f"sequence is {sequence!r}; choose 'sign' or 'clipped', or None")
    least = 0.0 if smallest is None else smallest
    if not 0 <= least < math.inf:
        raise InputError(f"smallest is {smallest}; give a mean effect of at least 0, or None")
    data, finite = _heads(effects, unit_id)
    (x,) = data.vectors
    n, k = x.shape
    direction = np.ones(k) if signs is None else np.asarray(signs, dtype=np.float64)
    if direction.shape != (k,) or not np.isin(direction, (-1.0, 1.0)).all():
        raise ShapeError(f"signs are {direction}; one of 1 or -1 for each of {k} heads is needed")
    warnings = data.warnings + (() if finite.all() else ("head_not_finite",))
    details: dict[str, Any] = {"metric": "M3b.certified_stability", **data.counts, "n_heads": k}
    limits = _LIMITS | {"smallest": least}
    reason = data.missing(5) if k else "not_applicable"
    if reason is not None:
        return undefined(reason, thresholds=limits, warnings=warnings, details=details)
    if smallest is None:
        warnings += ("smallest_is_zero",)
    rng = gate_stream("M3b", task, seed=seed)
    if subsamples is None:
        size = max(1, math.floor(fraction * n + 1e-9))  # 0.8 * 35 is a little less than 28
        orders = rng.permuted(np.broadcast_to(np.arange(n), (n_draws, n)), axis=1)
        subsamples = orders[:, :size]
    elif subsamples.ndim != 2 or not subsamples.size or subsamples.min() < 0 or subsamples.max() >= n:
        raise ShapeError(
            f"subsamples has shape {subsamples.shape}; rows of indices from 0 to {n - 1} are needed"
        )
    rates = (x[subsamples].mean(axis=1) > 0).mean(axis=0)
    rates[~finite] = 0.0
    labels = np.where(
        rates >= CERTIFIED, "certified", np.where(rates >= CONTINGENT, "contingent", "unstable")
    )
    published = float((labels == "certified").mean())

    signed = x * direction
    tests = mean_tests(signed, rng=rng)
    p = np.array([each.sign_flip.p_value for each in tests])
    constant = np.array([not varies(column) and bool(column.any()) for column in signed.T])
    means = signed.mean(axis=0)
    if constant.any():
        warnings += ("zero_variance",)
        p[constant & (means > 0)] = 0.0
    p[~finite] = np.nan
    adjusted = benjamini_hochberg(p)
    certified = (adjusted <= ALPHA) & (means > 0)
    rigorous = np.where(certified, "certified", np.where(means > 0, "contingent", "unstable"))
    rigorous[~finite] = "unstable"
    halves = prove_halves(signed, finite, least)
    details |= {
        "pass_rates": rates,
        "published_labels": labels,
        "labels": rigorous,
        "mean_effects": means * direction,
        "p": p,
        "adjusted_p": adjusted,
        "t_p": [each.t.p_value for each in tests],
        "n_to_certify": _to_certify(signed, rigorous == "contingent"),
        "p_positive": halves.positive,
        "p_negligible": halves.negligible,
        "negligible": halves.negligible <= ALPHA,
    }
    parts: dict[str, Verdict] = {}
    if sequence is not None:
        parts["anytime"] = _anytime(signed, finite, sequence, bounds, least)
    if deletion is not None:
        parts["edits"] = _edits(signed, finite, deletion, rng)
    status, reason, needed = halves.status, None, None
    if n < FEWEST_FOR_MEANS:
        status, reason, needed = "inconclusive", "too_few", FEWEST_FOR_MEANS
    elif status == "inconclusive":
        needed = halves.n_needed
    return Verdict(
        status=status,
        published=_HALF.published(published),
        values={
            "share_positive": float(((means > 0) & (halves.negligible > ALPHA) & finite).mean()),
            "share_certified": float(certified.mean()),
            "published_share_certified": published,
            "p_half_positive": halves.p_pass,
            "p_most_negligible": halves.p_fail,
        },
        thresholds=limits,
        n_needed=needed,
        reason=reason,
        sub_results=parts,
        warnings=warnings,
        details=details,
    )


def _majorities(k: int) -> tuple[int, int]:
    """How many of k heads are half of them, and how many more than half."""
    return (k + 1) // 2, k // 2 + 1


def _by_count(n_good: int, n_bad: int, k: int) -> str:
    """`pass` where half of the heads are known to be good, `fail` where more than half are bad."""
    half, most = _majorities(k)
    return "fail" if n_bad >= most else "pass" if n_good >= half else "inconclusive"


@dataclass(frozen=True, kw_only=True)
class ProvenHalves:
    """Whether half of the heads are positive, or more than half negligible.

    Attributes:
        positive: `[k]` p of "the effect is at most 0"; 1 where the head is negligible.
        negligible: `[k]` p of "the effect is at least the smallest".
        p_pass, p_fail: Of "fewer than half are positive", and "at most half are negligible".
        n_needed: See `certified_stability`.
    """

    positive: Float64[np.ndarray, " k"]
    negligible: Float64[np.ndarray, " k"]
    p_pass: float
    p_fail: float
    n_needed: int | None

    @property
    def status(self) -> str:
        """Of the gate."""
        return _by_p(self.p_pass, self.p_fail)


def prove_halves(x: Float64[np.ndarray, "n k"], finite: Bool[np.ndarray, " k"], least: float) -> ProvenHalves:
    """The verdict of `certified_stability` without its labels.

    Args:
        x: Effects in the declared direction.
        finite: Heads that have one; the others are neither positive nor negligible.
        least: Mean effect below which a head is negligible.
    """
    n, k = x.shape
    half, most = _majorities(k)
    negligible = np.where(finite, mean_above(-x, -least), 1.0)
    positive = np.where(finite & (negligible > ALPHA), mean_above(x), 1.0)
    error = np.array([column.std(ddof=1) if varies(column) else 0.0 for column in x.T])
    distances = x.mean(axis=0), least - x.mean(axis=0)
    needed = []
    # Negligible wins over positive.
    excluded = (negligible <= ALPHA, np.zeros(k, dtype=np.bool_))
    for distance, number, left_out in zip(distances, (half, most), excluded, strict=True):
        # A constant head is settled at every n.
        ratios = np.where(distance > 0, np.inf, -np.inf)
        np.divide(distance, error, out=ratios, where=finite & (error > 0))
        ratios[~finite | left_out] = -np.inf
        found = _n_to_prove(ratios, number, n)
        needed += [] if found is None else [found]
    return ProvenHalves(
        positive=positive,
        negligible=negligible,
        p_pass=partial_conjunction(positive, half),
        p_fail=partial_conjunction(negligible, most),
        n_needed=min(needed, default=None),
    )


def _n_to_prove(ratios: Float64[np.ndarray, " k"], least: int, n: int) -> int | None:
    """Smallest number of prompts above n at which Student's p prove `least` heads beyond their limit.

    Skewed effects need more.

    Args:
        ratios: Distance of each mean from its limit over its standard deviation.
        least: Heads to prove.
        n: Prompts there are.

    Returns:
        None where one of the `least` best heads lies within a standard error of its limit, or beyond it.
    """
    if math.sqrt(n) * np.sort(ratios)[-least] <= 1:
        return None

    def proven(size: int) -> bool:
        return partial_conjunction(scipy_stats.t.sf(math.sqrt(size) * ratios, size - 1), least) <= ALPHA

    low, high = n, n + 1
    while not proven(high):  # ends: root(size) times the ratio of each of the best exceeds any quantile
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if proven(middle) else (middle, high)
    return high


def _to_certify(x: Float64[np.ndarray, "n k"], contingent: Bool[np.ndarray, " k"]) -> list[int | None]:
    """Prompts at which each contingent head would reach a one-sided t of the level, others None."""
    n = len(x)
    t = float(scipy_stats.t.ppf(1 - ALPHA, n - 1))
    needed: list[int | None] = [None] * x.shape[1]
    for at in np.flatnonzero(contingent).tolist():
        ratio = t * float(x[:, at].std(ddof=1)) / float(x[:, at].mean())
        needed[at] = math.ceil(ratio**2) if ratio < _TOO_MANY else None
    return needed


def _anytime(
    x: Float64[np.ndarray, "n k"],
    finite: Bool[np.ndarray, " k"],
    kind: str,
    bounds: tuple[float, float],
    smallest: float,
) -> Verdict:
    """Betting sequences in the order of the prompts, each wrong with probability 0.05 / (k - half + 1).

    "At least half are positive" is then wrong with probability 0.05: of k - half + 1 heads that are not, one
    would have to be certified.
    """
    k = x.shape[1]
    half = _majorities(k)[0]
    level, negligible = (0.5, 0.5) if kind == "sign" else (0.0, smallest)
    certified: list[int | None] = []
    excluded: list[int | None] = []
    for column, usable in zip(x.T, finite, strict=True):
        values = (column > 0).astype(np.float64) if kind == "sign" else np.clip(column, *bounds)
        found = confidence_sequence(
            values,
            bounds=(0.0, 1.0) if kind == "sign" else bounds,
            failure=ALPHA / (k - half + 1),
        )
        below = np.flatnonzero(found.high < negligible)
        excluded.append(int(below[0]) + 1 if usable and len(below) else None)
        certified.append(found.n_certify(level) if usable and not len(below) else None)
    n_certified, n_negligible = (k - each.count(None) for each in (certified, excluded))
    return Verdict(
        status=_by_count(n_certified, n_negligible, k),
        published="none",
        values={"share_certified": n_certified / k, "share_negligible": n_negligible / k},
        thresholds=_LIMITS,
        details={
            "metric": "M3b.anytime",
            "kind": kind,
            "bounds": list(bounds),
            "n_certify": certified,
            "n_negligible": excluded,
        },
    )


def _edits(
    x: Float64[np.ndarray, "n k"], finite: Bool[np.ndarray, " k"], deletion: float, rng: np.random.Generator
) -> Verdict:
    """How many prompts may be changed before the sign of each head's effect could.

    It is about these prompts, not about others like them, so it has no verdict.
    """
    found, opposite = (certified_inclusion(each, deletion=deletion, rng=rng) for each in (x, -x))
    radii = [each.radius if usable else None for each, usable in zip(found, finite, strict=True)]
    k, n_certified = len(radii), len(radii) - radii.count(None)
    n_negative = sum(each.certified and bool(usable) for each, usable in zip(opposite, finite, strict=True))
    return Verdict(
        status="none",
        published="none",
        values={"share_certified": n_certified / k, "share_negative": n_negative / k},
        thresholds={},
        details={
            "metric": "M3b.edits",
            "deletion": deletion,
            "radius": radii,
            "largest_radius": found[0].largest_radius,
        },
    )
