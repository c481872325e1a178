"""Are single heads known well enough? Statistics on parts of the prompts, and the signs of effects."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int, Real, Shaped
from scipy import stats as scipy_stats

from assay.calibration._samples import Sample, sample
from assay.calibration.gate import ALPHA, SEED, gate, gate_stream, positive, undefined
from assay.errors import InputError, ShapeError
from assay.measurement import ONE_SIDED_95, Rule, Verdict
from assay.stats import (
    benjamini_hochberg,
    certified_inclusion,
    clopper_pearson,
    confidence_sequence,
    group_differences,
    mean_tests,
)
from assay.stats._checks import varies


N_SUBSETS = 5
N_SUBSAMPLES = 20
STABLE_CV = 0.20
NO_MEAN = 1e-12  # of subset statistics, below which their spread has no scale
FEWEST_FOR_VARIANCE = 60  # prompts below which even a Gaussian head cannot have a stable variance
FEWEST_HEADS = 5  # of fewer, even all or none leave open whether a share is above one half
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
    question="Are the heads' mean and variance of attribution the same on parts of the prompts?",
    on_pass="Head statistics are known well enough and, where groups are given, do not depend on the group.",
    on_fail="The sample is too small or the heads depend on the context.",
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
    """Share of a circuit's heads whose mean and variance of attribution are stable.

    Published: coefficient of variation (ddof 1) over random subsets of the prompts below 0.20 for the mean
    and the variance; the source has no limit of the share, 0.5 is ours. With confidence: upper bound of the
    relative standard error of the mean, s / (root n |m|) with |m| lowered to its bound, and that of the
    variance, root((g4 - (n - 3) / (n - 1)) / n), both below 0.20; Clopper and Pearson's bounds of the share.

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
        Undefined below 15 prompts and without heads. Below 60 prompts inconclusive: a Gaussian head cannot
        show a stable variance there, and the kurtosis that says otherwise is itself not known.
        `sub_results["groups"]` fails where any head depends on the group, and is never a pass: a difference
        not found is no proof of its absence.

    References:
        Welch (1951), doi:10.1093/biomet/38.3-4.330; Brown and Forsythe (1974),
        doi:10.1080/01621459.1974.10482955.
    """
    if n_subsets < 2:
        raise InputError(f"n_subsets is {n_subsets}; at least 2 are needed, 5 by default")
    data, finite = _heads(attributions, unit_id)
    (x,) = data.vectors
    n, k = x.shape
    warnings = data.warnings + (() if finite.all() else ("head_dropped",))
    details: dict[str, Any] = {"metric": "S3.distributional_stability", **data.counts}
    reason = data.missing(3 * n_subsets) or (None if finite.any() else "no_heads")
    if reason is not None:
        return undefined(reason, thresholds=_LIMITS, warnings=warnings, details=details)
    x, k = x[:, finite], int(finite.sum())
    if subsets is None:
        subsets = np.array_split(gate_stream("S3", task, seed=seed).permutation(n), n_subsets)
    if len(subsets) < 2 or min(map(len, subsets)) < 2:
        raise InputError(
            f"subsets hold {[len(rows) for rows in subsets]} units; two or more of at least 2 are needed"
        )
    spreads = _subset_spreads(x, subsets)
    passing = (spreads[0] < STABLE_CV) & (spreads[1] < STABLE_CV)  # NaN does not pass
    published = float(passing.mean())

    errors = _relative_errors(x)
    stable = (errors < STABLE_CV).all(axis=0)
    parts: dict[str, Verdict] = {}
    if groups is not None:
        labels = data.label(groups, "groups")
        parts["groups"], differing, crossed = _by_group(x, data, labels)
        stable &= ~differing
        if crossed:
            warnings += ("units_cross_groups",)
    interval = clopper_pearson(int(stable.sum()), k, level=ONE_SIDED_95)
    verdict = replace(
        _HALF.judge(float(stable.mean()), interval, k),
        published=_HALF.published(published),
        n_needed=None,
        values={
            "share_passing": published,
            "share_stable": float(stable.mean()),
            "mean_cv_mean": _mean(spreads[0]),
            "mean_cv_variance": _mean(spreads[1]),
        },
        sub_results=parts,
        warnings=warnings,
        details={
            **details,
            "columns": np.flatnonzero(finite),
            "cv_mean": spreads[0],
            "cv_variance": spreads[1],
            "cv_skewness": spreads[2],
            "passing": passing,
            "relative_error_mean": errors[0],
            "relative_error_variance": errors[1],
            "stable": stable,
        },
    )
    if not any(varies(column) for column in x.T):
        return replace(
            verdict, status="inconclusive", reason="zero_variance", warnings=(*warnings, "zero_variance")
        )
    if n < FEWEST_FOR_VARIANCE:
        return replace(verdict, status="inconclusive", reason="too_few", n_needed=FEWEST_FOR_VARIANCE)
    if verdict.status == "inconclusive" and k < FEWEST_HEADS:
        return replace(verdict, reason="too_few_heads")
    return verdict


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


def _relative_errors(x: Float64[np.ndarray, "n k"]) -> Float64[np.ndarray, "2 k"]:
    """Upper relative standard errors of mean and variance on the whole sample; infinite where unbounded."""
    n = len(x)
    error = x.std(axis=0, ddof=1) / math.sqrt(n)
    error[[not varies(column) for column in x.T]] = 0.0
    least = np.abs(x.mean(axis=0)) - float(scipy_stats.t.ppf(0.95, n - 1)) * error
    of_mean = np.divide(error, least, out=np.full(x.shape[1], np.inf), where=least > 0)
    centred = x - x.mean(axis=0)
    largest = np.abs(centred).max(axis=0)
    centred /= np.where(largest > 0, largest, 1.0)  # fourth powers of the raw values could vanish
    second = (centred**2).mean(axis=0)
    varied = error > 0
    kurtosis = np.divide((centred**4).mean(axis=0), second**2, out=np.full(x.shape[1], np.inf), where=varied)
    return np.stack([of_mean, np.sqrt(np.maximum(kurtosis - (n - 3) / (n - 1), 0.0) / n)])


def _by_group(
    x: Float64[np.ndarray, "n k"], data: Sample, labels: Shaped[np.ndarray, " n_prompts"]
) -> tuple[Verdict, Bool[np.ndarray, " k"], bool]:
    """Heads that differ between groups, and whether units lie in several (then nothing is tested)."""
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    of_unit = np.zeros(data.n, dtype=np.int64)
    of_unit[data.unit[::-1]] = codes[::-1]
    crossed = bool((of_unit[data.unit] != codes).any())
    details: dict[str, Any] = {"metric": "S3.groups"}
    if crossed:
        # Tests of independent groups do not hold for one image in many groups.
        verdict = undefined("units_cross_groups", published="none", details=details)
        return verdict, np.zeros(x.shape[1], dtype=np.bool_), True
    rows = [np.flatnonzero(of_unit == each) for each in np.unique(of_unit)]
    found = [group_differences([column[each] for each in rows]) for column in x.T]
    if len(found[0].used) < 2:
        verdict = undefined("not_applicable", published="none", details=details)
        return verdict, np.zeros(x.shape[1], dtype=np.bool_), False
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
    return verdict, np.asarray(differing), False


# -------------------------------------------------------------------------------------------- certified heads


@gate(
    key="certified-stability",
    code="M3b",
    name="Certified stability",
    criterion="M3 minimality",
    needs=("effects",),
    question="Does each head of the circuit contribute, whichever prompts are looked at?",
    on_pass="The members contribute individually.",
    on_fail="Prune the contingent and unstable heads and measure again.",
    weakness="The mean of 80 % of the prompts varies half as much as the estimate itself, so a head without "
    "effect is certified a quarter of the time, at any number of prompts.",
    source="mechanistic-validity framework; Anani et al. (2026), arXiv:2602.22968",
)
def certified_stability(
    effects: Real[np.ndarray, "n k"],
    *,
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
    """Share of a circuit's heads whose effect is above 0.

    Published: a head is certified where its mean effect is above 0 in 95 % of random subsamples, contingent
    in half, else unstable. With confidence: certified where a one-sided sign-flip test says so after
    Benjamini and Hochberg at 0.05; unstable where the mean effect is not above 0; else contingent. Either
    passes where half of the heads are certified.

    Args:
        effects: Effect of dropping each head of the circuit on each prompt, `y_full - y_drop1`.
        signs: -1 for heads declared to oppose the task, whose effect is tested to be below 0; else 1.
        unit_id: Prompts that belong together.
        fraction: Of the prompts in a subsample, rounded down; half of them, in 200 draws, is sounder.
        n_draws: Subsamples.
        subsamples: Given ones instead, indices of units.
        sequence: Also certify so that one may look after every prompt: `sign` bets on 1{effect > 0} against
            1/2, `clipped` on the effect clipped to `bounds` against 0.
        bounds: Declared range of an effect, for `clipped`.
        deletion: Also certify against edits of the sample, deleting each prompt with this probability.
        task: Names the random stream.
        seed: Its root.

    Returns:
        Undefined below five prompts; not applicable to an empty circuit. A head without a finite effect is
        unstable (`head_not_finite`). A head with the same effect on every prompt is certified if that is
        above 0 (`zero_variance`).

    Notes:
        A fail says that these prompts do not certify half of the heads, not that the heads do nothing:
        `n_to_certify` has the prompts each contingent head would need at its present spread.

    References:
        Fisher (1935); Benjamini and Hochberg (1995); Waudby-Smith and Ramdas (2024), arXiv:2010.09686.
    """
    positive("n_draws", n_draws)
    if not 0 < fraction <= 1:
        raise InputError(f"fraction is {fraction}; a share of the prompts above 0, at most 1, is needed")
    if sequence not in (None, "sign", "clipped"):
        raise InputError(f"sequence is {sequence!r}; choose 'sign' or 'clipped', or None")
    data, finite = _heads(effects, unit_id)
    (x,) = data.vectors
    n, k = x.shape
    direction = np.ones(k) if signs is None else np.asarray(signs, dtype=np.float64)
    if direction.shape != (k,) or not np.isin(direction, (-1.0, 1.0)).all():
        raise ShapeError(f"signs are {direction}; one of 1 or -1 for each of {k} heads is needed")
    warnings = data.warnings + (() if finite.all() else ("head_not_finite",))
    details: dict[str, Any] = {"metric": "M3b.certified_stability", **data.counts, "n_heads": k}
    reason = data.missing(5) if k else "not_applicable"
    if reason is not None:
        return undefined(reason, thresholds=_LIMITS, warnings=warnings, details=details)
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
    share = float(certified.mean())
    details |= {
        "pass_rates": rates,
        "published_labels": labels,
        "labels": rigorous,
        "mean_effects": means * direction,
        "p": p,
        "adjusted_p": adjusted,
        "t_p": [each.t.p_value for each in tests],
        "n_to_certify": _to_certify(signed, rigorous == "contingent"),
    }
    parts: dict[str, Verdict] = {}
    if sequence is not None:
        parts["anytime"] = _anytime(signed, finite, sequence, bounds)
    if deletion is not None:
        parts["edits"] = _edits(signed, finite, deletion, rng)
    return Verdict(
        status=_HALF.published(share),
        published=_HALF.published(published),
        values={"share_certified": share, "published_share_certified": published},
        thresholds=_LIMITS,
        sub_results=parts,
        warnings=warnings,
        details=details,
    )


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
) -> Verdict:
    """Betting sequences in the order of the prompts, all heads together valid at 5 %."""
    level = 0.5 if kind == "sign" else 0.0
    count: list[int | None] = []
    for column, usable in zip(x.T, finite, strict=True):
        values = (column > 0).astype(np.float64) if kind == "sign" else np.clip(column, *bounds)
        found = confidence_sequence(
            values,
            bounds=(0.0, 1.0) if kind == "sign" else bounds,
            failure=ALPHA / x.shape[1],
        )
        count.append(found.n_certify(level) if usable else None)
    share = float(np.mean([each is not None for each in count]))
    return Verdict(
        status=_HALF.published(share),
        published="none",
        values={"share_certified": share},
        thresholds=_LIMITS,
        details={"metric": "M3b.anytime", "kind": kind, "bounds": list(bounds), "n_certify": count},
    )


def _edits(
    x: Float64[np.ndarray, "n k"], finite: Bool[np.ndarray, " k"], deletion: float, rng: np.random.Generator
) -> Verdict:
    """How many prompts may be changed before the sign of each head's effect could."""
    found = certified_inclusion(x, deletion=deletion, rng=rng)
    radii = [each.radius if usable else None for each, usable in zip(found, finite, strict=True)]
    share = float(np.mean([radius is not None for radius in radii]))
    return Verdict(
        status=_HALF.published(share),
        published="none",
        values={"share_certified": share},
        thresholds=_LIMITS,
        details={
            "metric": "M3b.edits",
            "deletion": deletion,
            "radius": radii,
            "largest_radius": found[0].largest_radius,
        },
    )
