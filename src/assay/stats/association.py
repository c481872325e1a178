"""Agreement between two sets of numbers: correlations and rank agreement; numpy and scipy only.

A constant vector has no correlation: NaN with a `DegenerateDataWarning`, never 0. Row-wise forms
return NaN for the rows concerned and leave counting them to the caller.
"""

import math
import warnings

import numpy as np
import scipy
from jaxtyping import Float, Float64, Int, Real

from assay.core.errors import DegenerateDataWarning, InputError, ShapeError
from assay.stats._checks import EQUAL, varies


def _paired(x: np.ndarray, y: np.ndarray, name: str) -> np.ndarray | None:
    """Both vectors in float64, one row each, or None (with a warning) where no correlation is defined."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise ShapeError(f"{name} compares two vectors of equal length, got shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError(f"{name} got NaN or infinite entries; drop those pairs first")
    if len(a) < 2:
        reason = f"got {len(a)} pair(s); expected at least 2"
    elif not (varies(a) and varies(b)):
        reason = "one vector is constant"
    else:
        return np.stack([a, b])
    warnings.warn(f"{name} is undefined: {reason}", DegenerateDataWarning, stacklevel=3)
    return None


def pearson(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Product-moment correlation.

    Returns:
        r in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    Example:
        >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
        1.0
    """
    pair = _paired(x, y, "Pearson correlation")
    return math.nan if pair is None else float(pearson_matrix(pair)[0, 1])


def spearman(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Rank correlation: Pearson's of average ranks.

    Returns:
        rho in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    References:
        Spearman (1904).
    """
    pair = _paired(x, y, "Spearman correlation")
    return math.nan if pair is None else float(spearman_matrix(pair)[0, 1])


def pearson_matrix(scores: Real[np.ndarray, "*batch m n"]) -> Float64[np.ndarray, "*batch m m"]:
    """Pearson correlation of every pair of rows, for any batch of tables at once.

    Args:
        scores: Finite; `m` raters by `n` items.

    Returns:
        r in [-1, 1]; NaN in the rows and columns of a constant rater and for fewer than two items.
    """
    x = np.asarray(scores, dtype=np.float64)
    if not np.isfinite(x).all():
        raise InputError("scores hold NaN or infinite entries; drop those items first")
    if x.shape[-1] < 2:
        return np.full((*x.shape[:-1], x.shape[-2]), np.nan)
    varying = np.ptp(x, axis=-1, keepdims=True) > EQUAL * np.abs(x).max(axis=-1, keepdims=True)
    x = x - x.mean(axis=-1, keepdims=True)
    # Scaled by the largest entry first, so that squares neither overflow nor vanish.
    x = np.divide(x, np.abs(x).max(axis=-1, keepdims=True), out=np.full(x.shape, np.nan), where=varying)
    products = x @ x.swapaxes(-1, -2)
    own = np.diagonal(products, axis1=-2, axis2=-1)
    return np.asarray(np.clip(products / np.sqrt(own[..., :, None] * own[..., None, :]), -1.0, 1.0))


def spearman_matrix(scores: Real[np.ndarray, "*batch m n"]) -> Float64[np.ndarray, "*batch m m"]:
    """Rank correlation of every pair of rows: Pearson's of average ranks, for any batch of tables at once.

    Args:
        scores: Finite; `m` raters by `n` items.

    Returns:
        rho in [-1, 1]; NaN in the rows and columns of a constant rater and for fewer than two items.

    Example:
        >>> spearman_matrix(np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])).round(3)
        array([[ 1. , -0.5],
               [-0.5,  1. ]])
    """
    if not np.isfinite(scores).all():  # ranks of them would be finite
        raise InputError("scores hold NaN or infinite entries; drop those items first")
    return pearson_matrix(scipy.stats.rankdata(scores, axis=-1))


def kendall_tau(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> float:
    """Kendall's tau-b, (n_c - n_d) / root((n_0 - n_1)(n_0 - n_2)), n_1 and n_2 the tied pairs of each side.

    Returns:
        tau in [-1, 1]; NaN with a `DegenerateDataWarning` for a constant vector or fewer than two pairs.

    References:
        Kendall (1945), doi:10.1093/biomet/33.3.239.
    """
    pair = _paired(x, y, "Kendall's tau")
    return math.nan if pair is None else float(scipy.stats.kendalltau(*pair, variant="b").statistic)


def _pair_signs(values: Real[np.ndarray, "rows n"]) -> np.ndarray:
    """Sign of v_a - v_b for the pairs a < b of each row, `[rows, n (n - 1) / 2]`."""
    first, second = np.triu_indices(values.shape[1], k=1)
    return np.asarray(np.sign(values[:, first] - values[:, second]))


def kendall_tau_rows(
    x: Float[np.ndarray, "rows n"], y: Float[np.ndarray, "rows n"], *, used: np.ndarray | None = None
) -> Float64[np.ndarray, " rows"]:
    """Kendall's tau-b of each row of two tables, for short rows (time and memory grow with n squared).

    Args:
        x: One side, finite where used.
        y: The other side.
        used: Boolean `[rows, n]`; entries left out of their row. None uses all.

    Returns:
        tau in [-1, 1] per row; exactly 1 for equal rows; NaN where either side is constant or fewer than two
        entries are used.
    """
    first, second = np.triu_indices(x.shape[1], k=1)
    both = np.ones((len(x), len(first)), dtype=bool) if used is None else used[:, first] & used[:, second]
    a, b = _pair_signs(x) * both, _pair_signs(y) * both
    untied = np.count_nonzero(a, axis=1) * np.count_nonzero(b, axis=1)
    balance = (a * b).sum(axis=1)
    tau = np.full(len(x), np.nan)
    np.divide(balance, np.sqrt(untied), out=tau, where=untied > 0)
    return tau


def fagin_tau_rows(
    a: Int[np.ndarray, "rows k"], b: Int[np.ndarray, "rows k"]
) -> Float64[np.ndarray, " rows"]:
    """Rank agreement of two top-k lists per row: 1 - 2 D / D_max, D Fagin's distance K^(1/2).

    Over unordered pairs of the union of both lists, D counts 1 for opposite order (an absent item ranks
    below every listed one) and 1/2 for two items of one list that the other lists neither of.
    D_max = k^2 + k (k - 1) / 2 is the distance of disjoint lists.

    Args:
        a: Item ids in descending order, distinct within a row.
        b: The other list of each row.

    Returns:
        In [-1, 1]: 1 for identical lists, -1 for disjoint ones.

    References:
        Fagin, Kumar and Sivakumar (2003), doi:10.1137/S0895480102412856.

    Example:
        >>> fagin_tau_rows(np.array([[1, 2]]), np.array([[2, 1]]))
        array([0.6])
    """
    k = a.shape[1]
    same = a[:, :, None] == b[:, None, :]
    place = np.arange(k)
    # The union: the k items of a, then those of b, of which the shared ones are skipped. Absent = rank k.
    rank_in_a = np.concatenate([np.broadcast_to(place, a.shape), np.full(b.shape, k)], axis=1)
    places = np.where(same.any(axis=2), same.argmax(axis=2), k)
    rank_in_b = np.concatenate([places, np.broadcast_to(place, b.shape)], axis=1)
    listed = np.concatenate([np.ones(a.shape, dtype=bool), ~same.any(axis=1)], axis=1)
    first, second = np.triu_indices(2 * k, k=1)
    order_a, order_b = _pair_signs(rank_in_a), _pair_signs(rank_in_b)
    penalty = (order_a * order_b < 0) + 0.5 * ((order_a == 0) != (order_b == 0))
    distance = (penalty * (listed[:, first] & listed[:, second])).sum(axis=1)
    return np.asarray(1 - 2 * distance / (k * k + k * (k - 1) / 2))
