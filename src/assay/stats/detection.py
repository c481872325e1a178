"""How well a score tells the members of a set from the rest."""

import numpy as np
import scipy
from jaxtyping import Bool, Float, Real

from assay.core.errors import ShapeError, check_name
from assay.stats._checks import finite, varies
from assay.stats.agreement import top_members
from assay.stats.estimate import Estimate, undefined_estimate


NO_SPREAD = 1e-12


def d_prime(signal: Real[np.ndarray, " _"], noise: Real[np.ndarray, " _"]) -> Estimate:
    """Distance of two groups of scores in units of their spread.

    (mean_s - mean_n) / root((s_s^2 + s_n^2) / 2), variances with ddof 1.

    Args:
        signal: Scores of the members, finite.
        noise: Scores of the rest, finite.

    Returns:
        Any sign, 0 for equal means. Undefined below two scores on either side (`too_few`) and where the
        pooled spread is below 1e-12 (`zero_variance`).

    References:
        Green and Swets (1966), Signal detection theory and psychophysics.

    Example:
        >>> d_prime(np.array([3.0, 5.0]), np.array([0.0, 2.0])).value
        2.1213203435596424
    """
    if min(len(signal), len(noise)) < 2:
        return undefined_estimate("too_few")
    high, low = finite(signal, "signal"), finite(noise, "noise")
    pooled = float(np.sqrt((high.var(ddof=1) + low.var(ddof=1)) / 2))
    if pooled < NO_SPREAD or not (varies(high) or varies(low)):
        return undefined_estimate("zero_variance")
    return Estimate(value=float(high.mean() - low.mean()) / pooled)


def _sides(scores: np.ndarray, members: np.ndarray) -> str | None:
    """Why members and others cannot be compared, if so."""
    if scores.shape != members.shape:
        raise ShapeError(f"scores have shape {scores.shape}, members {members.shape}; give a flag per score")
    return "no_members" if not members.any() else "no_others" if members.all() else None


def auroc(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"]) -> Estimate:
    """Probability that a random member outscores a random other item, ties counting half.

    Args:
        scores: Finite.
        members: Which items belong to the set.

    Returns:
        In [0, 1], 1/2 at chance. Undefined where nothing (`no_members`) or everything (`no_others`) belongs.

    References:
        Mann and Whitney (1947), doi:10.1214/aoms/1177730491; Hanley and McNeil (1982),
        doi:10.1148/radiology.143.1.7063747.

    Example:
        >>> auroc(np.array([3.0, 1.0, 2.0]), np.array([True, False, False])).value
        1.0
    """
    reason = _sides(scores, members)
    if reason:
        return undefined_estimate(reason)
    n_members = int(members.sum())
    rank_sum = float(scipy.stats.rankdata(finite(scores, "scores"))[members].sum())
    pairs = n_members * (len(scores) - n_members)
    return Estimate(value=(rank_sum - n_members * (n_members + 1) / 2) / pairs)


def average_precision(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"]) -> Estimate:
    """Mean precision at the ranks of the members: sum over thresholds of (recall gained) times precision.

    Equal scores share a threshold, so their order does not matter.

    Args:
        scores: Finite.
        members: Which items belong to the set.

    Returns:
        In (0, 1], about the share of members at chance. Undefined where nothing (`no_members`) or everything
        (`no_others`) belongs.

    Example:
        >>> average_precision(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])).value
        0.8333333333333333
    """
    reason = _sides(scores, members)
    if reason:
        return undefined_estimate(reason)
    from sklearn.metrics import average_precision_score

    return Estimate(value=float(average_precision_score(members, finite(scores, "scores"))))


def precision_at(scores: Real[np.ndarray, " n"], members: Bool[np.ndarray, " n"], k: int) -> Estimate:
    """Share of members among the k best scores; ties go to the lower index (`top_members`).

    Args:
        scores: NaN ranks last, with a `DegenerateDataWarning`.
        members: Which items belong to the set.
        k: 0 to n; 0 is undefined (`too_few`).
    """
    _sides(scores, members)
    members_at_k = top_members(scores, k)
    return Estimate(value=float(members[members_at_k].mean())) if k else undefined_estimate("too_few")


def corrected_rate(
    counts: Float[np.ndarray, "*shape"], n: int, *, correction: str
) -> Float[np.ndarray, "*shape"]:
    """A rate kept off 0 and 1, so that its normal quantile is finite.

    Args:
        counts: Number of events among `n`, n >= 1.
        n: Number of trials.
        correction: `loglinear`, (count + 1/2) / (n + 1), or `clip-half`, count / n clipped to
            [1 / (2 n), 1 - 1 / (2 n)].
    """
    check_name("rate correction", correction, ("loglinear", "clip-half"))
    if correction == "loglinear":
        return np.asarray((counts + 0.5) / (n + 1))
    return np.asarray(np.clip(counts / n, 1 / (2 * n), 1 - 1 / (2 * n)))
