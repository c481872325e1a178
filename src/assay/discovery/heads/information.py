"""Which heads tell something about the answer that other heads do not: optimal causation entropy.

Heads are observed, not changed: the direct effect of each head is a variable over examples, and so is the
margin.
"""

from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.core.errors import InputError, check_least
from assay.core.random import stream
from assay.discovery.heads.scores import HeadScores


_HIGHEST = 0.998  # of a squared correlation, so that a copy of the target has finite information (3.1 nats)
_CONSTANT = 1e-10  # what is left of a variable below this share of its length is rounding
_SPARE = 7  # examples needed beyond the parents conditioned on
_QUANTILE = 0.95


def causation_entropy(
    features: HeadScores,
    target: Float64[np.ndarray, " P"],
    *,
    max_parents: int = 20,
    permutations: int = 100,
    seed: int = 42,
) -> HeadScores:
    """Information of each head's per-example score about a target, given a set of parents found greedily.

    I(x; y | S) = -1/2 ln(1 - r^2), with r the partial correlation of x and y given S (least squares with
    intercept) and r^2 clipped at 0.998. Parents join one by one, the most informative given the present ones
    first, until the best gain is below the 95th percentile of max_j I(x_j; permuted y).

    Args:
        features: Scores per example, e.g. of `direct_attribution`.
        target: What they should tell of, e.g. the margins.
        max_parents: Most parents, >= 0.
        permutations: Of the target, >= 1; they give the level of chance.
        seed: Of the permutations.

    Returns:
        I(x_j; y | S without j) of every head j, S the final parents; nats, in [0, 3.11]; 0 for a constant
        feature. `details`: `parents` as (layer, head) in the order they joined, their `gains`, the
        `threshold`.
        All NaN with a reason: `too_few` examples (below 7), or a `constant_target`.

    Raises:
        InputError: For scores without examples, or settings out of range.

    Notes:
        No forward pass. Examples where a score or the target is not finite are left out and counted. At most
        P - 7 parents; fewer than 200 examples make the choice of parents noisy. Gaussian: it sees linear
        dependence only. The level of chance is that of single heads, without parents, as defined; with few
        examples and many parents it is too low.

    References:
        Sun, Taylor and Bollt (2015), Causal network inference by optimal causation entropy,
        doi:10.1137/140956166.
    """
    check_least(0, max_parents=max_parents)
    check_least(1, permutations=permutations)
    table = features.flat_examples
    if table is None:
        raise InputError(f"{features.name!r} has no scores per example; use e.g. those of direct_attribution")
    kept = np.isfinite(table).all(axis=1) & np.isfinite(target)
    x, y = table[kept], target[kept]
    facts: dict[str, Any] = {"n": int(kept.sum()), "n_excluded": int((~kept).sum())}
    reason = "too_few" if len(y) < _SPARE else "constant_target" if np.ptp(y) == 0 else None
    values = np.full(x.shape[1], np.nan)
    provenance = {**features.provenance, "features": features.name, "score": "causation-entropy"}
    if reason is None:
        values, found = _greedy(x, y, max_parents, _chance_level(x, y, permutations, seed))
        parents = [divmod(parent, features.n_heads) for parent in found.pop("parents")]
        facts |= {"parents": parents, **found}
        provenance |= {"max_parents": max_parents, "permutations": permutations, "seed": seed}
    return HeadScores.from_flat(
        "causation-entropy",
        features.n_heads,
        values,
        sign="larger = tells more of the target",
        unit="nats",
        reason=reason,
        warnings=("fewer_than_200_examples",) if reason is None and len(y) < 200 else (),
        details=facts,
        provenance=provenance,
    )


def _greedy(
    x: Float64[np.ndarray, "n H"], y: Float64[np.ndarray, " n"], max_parents: int, threshold: float
) -> tuple[Float64[np.ndarray, " H"], dict[str, Any]]:
    """The information of every column given the parents that join, and which these are."""
    parents: list[int] = []
    gains: list[float] = []
    while len(parents) < min(max_parents, len(y) - _SPARE):
        gain = _information(x, y, x[:, parents])
        gain[parents] = -1.0
        best = int(gain.argmax())
        if gain[best] < threshold or gain[best] <= 0:
            break
        parents.append(best)
        gains.append(float(gain[best]))
    values = _information(x, y, x[:, parents])
    for parent in parents:
        others = [other for other in parents if other != parent]
        values[parent] = _information(x[:, [parent]], y, x[:, others])[0]
    return values, {"parents": parents, "gains": gains, "threshold": threshold}


def _residuals(
    values: Float64[np.ndarray, "n columns"], given: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, "n columns"]:
    """What an intercept and `given` leave of each column; exactly 0 where they leave rounding only."""
    basis, _ = np.linalg.qr(np.column_stack([np.ones(len(values)), given]))
    left: Float64[np.ndarray, "n columns"] = values - basis @ (basis.T @ values)
    left -= basis @ (basis.T @ left)  # once more: one pass leaves rounding of the size of the values
    length = np.linalg.norm(values, axis=0)
    left[:, np.linalg.norm(left, axis=0) <= _CONSTANT * length] = 0.0
    return left


def _information(
    x: Float64[np.ndarray, "n H"], y: Float64[np.ndarray, " n"], given: Float64[np.ndarray, "n k"]
) -> Float64[np.ndarray, " H"]:
    """I(x_j; y | given) of every column."""
    left = _residuals(np.column_stack([x, y]), given)
    return _of_pairs(left[:, :-1], left[:, -1:])[:, 0]


def _of_pairs(x: Float64[np.ndarray, "n H"], y: Float64[np.ndarray, "n m"]) -> Float64[np.ndarray, "H m"]:
    """Information of centred columns about each other; 0 where one is constant."""
    lengths = np.linalg.norm(x, axis=0)[:, None] * np.linalg.norm(y, axis=0)[None, :]
    r = np.where(lengths > 0, x.T @ y / np.where(lengths > 0, lengths, 1.0), 0.0)
    return np.asarray(-0.5 * np.log1p(-np.minimum(r**2, _HIGHEST)))


def _chance_level(
    x: Float64[np.ndarray, "n H"], y: Float64[np.ndarray, " n"], permutations: int, seed: int
) -> float:
    """95th percentile of the best information that any head has about a permuted target."""
    draw = stream(seed, "causation-entropy")
    shuffled: Int64[np.ndarray, "n permutations"] = np.stack(
        [draw.permutation(len(y)) for _ in range(permutations)], axis=1
    )
    none = np.empty((len(y), 0))
    targets = _residuals(y[:, None], none)[shuffled, 0]
    best = _of_pairs(_residuals(x, none), targets).max(axis=0)
    return float(np.quantile(best, _QUANTILE))
