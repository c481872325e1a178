"""Reference solvers for small pools: greedy extension, and every subset there is."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer

from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.layouts import AnswerTable
from assay.analyses.subsets.line import EPS, line_correlations, probit
from assay.analyses.subsets.objective import (
    FLOOR,
    OBJECTIVES,
    Found,
    exact_correlation,
    line_gradient,
    marginal_scores,
    unit_probit,
)
from assay.core.errors import InputError


GREEDY_EXAMPLES = 5000  # largest pool of `greedy`
GREEDY_START = 10
EXHAUSTIVE_SUBSETS = 1_000_000  # most subsets that `exhaustive` goes through
_CHUNK = 1 << 22  # numbers held at a time while subsets are enumerated
_ROUNDING = 1e-13  # of a sum over models: what cancellation leaves of a constant column is not a spread


def greedy(
    train: AnswerTable,
    id_train: Float64[np.ndarray, " m"],
    size: int,
    *,
    validation: AnswerTable | None = None,
    id_validation: Float64[np.ndarray, " v"] | None = None,
    strata: Integer[np.ndarray, " strata"] | None = None,
    allowed: Bool[np.ndarray, " mask"] | None = None,
    must_include: Integer[np.ndarray, " k"] | None = None,
    objective: str = "r",
    eps: float | int = EPS,
) -> Found:
    """Adds one example after the other, each time the one that lowers the correlation most.

    Starts from the min(10, size) examples of the lowest marginal scores. The objective is F_0 of `swap`: the
    correlation on the training models, accuracies on k examples clipped at max(eps, 0.25 / k).

    Args:
        train: Correctness of the training models, at most 5,000 examples.
        id_train: Their in-distribution accuracy, in [0, 1].
        size: Examples to select.
        validation: Correctness of validation models; they decide nothing, their correlation is reported.
        id_validation: Their in-distribution accuracy.
        strata: Stratum code (>= 0) of every example; each stratum gets its share of the subset.
        allowed: Which examples may be selected; default all.
        must_include: Examples that are always selected; they come first.
        objective: `r` minimises R, `r2` its square.
        eps: Clip of accuracies before the probit.

    Returns:
        Members and scores in the order and scale of `swap`. The trace has one entry per example after the
        start: `example`, and `objective` once it was in (NaN where no addition had a defined one).

    Raises:
        InputError: For more than 5,000 examples, or constraints that cannot be met.
        ShapeError: If an argument does not match the matrices.

    Notes:
        The correlation is neither submodular nor supermodular in the selection, so nothing is guaranteed.
        Three products of a vector with the matrix per example added: O(m N size) in all.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, proposition 1.
    """
    assert objective in OBJECTIVES
    if train.n_examples > GREEDY_EXAMPLES:
        raise InputError(
            f"greedy takes at most {GREEDY_EXAMPLES} examples, there are {train.n_examples}; narrow "
            "the matrix"
        )
    pool = Pool(train.n_examples, size, strata=strata, allowed=allowed, locked={"must_include": must_include})
    z = unit_probit(id_train, eps=eps, name="id_train")
    correct = train.dense().astype(np.float64)
    stratum = np.zeros(train.n_examples, dtype=np.int64) if pool.strata is None else pool.strata
    inside = pool.locked.copy()
    left = pool.quota - np.bincount(stratum[inside], minlength=len(pool.quota))
    ranked = np.argsort(marginal_scores(train, id_train, eps=eps), kind="stable")
    for example in ranked[pool.allowed[ranked] & ~pool.locked[ranked]]:
        if inside.sum() >= min(GREEDY_START, size):
            break
        if left[stratum[example]]:
            left[stratum[example]] -= 1
            inside[example] = True
    counts = correct[:, inside].sum(axis=1)
    trace: list[dict[str, Any]] = []
    for k in range(int(inside.sum()) + 1, size + 1):
        value = _extended(correct, z, counts, k, eps)
        if objective == "r2":
            value = value**2
        value[np.isnan(value)] = np.inf
        candidates = np.flatnonzero(pool.allowed & ~inside & (left[stratum] > 0))
        best = candidates[np.argmin(value[candidates])]
        inside[best] = True
        left[stratum[best]] -= 1
        counts += correct[:, best]
        trace.append(
            {"example": int(best), "objective": float(value[best]) if np.isfinite(value[best]) else math.nan}
        )
    return _found(
        np.flatnonzero(inside), train, id_train, validation, id_validation, objective, eps, trace=tuple(trace)
    )


def _extended(
    correct: Float64[np.ndarray, "m n"],
    z: Float64[np.ndarray, " m"],
    counts: Float64[np.ndarray, " m"],
    k: int,
    eps: float | int,
) -> Float64[np.ndarray, " n"]:
    """F_0 once each example is added, making `k`; NaN where undefined.

    A model's probit takes one of two values, without and with the example right, so sums over models for all
    examples are products of a vector with the matrix.
    """
    clip = max(eps, FLOOR / k)
    without, right = probit(counts / k, eps=clip), probit((counts + 1) / k, eps=clip)
    centre = without.mean()  # nearly what is subtracted below: keeps digits
    without, right = without - centre, right - centre
    total = without.sum() + (right - without) @ correct
    squares = without @ without + (right**2 - without**2) @ correct
    spread = squares - total**2 / len(z)
    product = without @ z + ((right - without) * z) @ correct
    found = np.full(correct.shape[1], np.nan)
    defined = spread > _ROUNDING * max(1.0, float(right @ right))
    np.divide(product, np.sqrt(spread, where=defined, out=np.ones_like(spread)), out=found, where=defined)
    return found


def exhaustive(
    train: AnswerTable,
    id_train: Float64[np.ndarray, " m"],
    size: int,
    *,
    validation: AnswerTable | None = None,
    id_validation: Float64[np.ndarray, " v"] | None = None,
    strata: Integer[np.ndarray, " strata"] | None = None,
    allowed: Bool[np.ndarray, " mask"] | None = None,
    must_include: Integer[np.ndarray, " k"] | None = None,
    objective: str = "r",
    eps: float | int = EPS,
) -> Found:
    """The subset of the lowest correlation on the training models, found by going through all of them.

    Args:
        train: Correctness of the training models.
        id_train: Their in-distribution accuracy, in [0, 1].
        size: Examples to select; at most a million subsets may come of it.
        validation: Correctness of validation models; they decide nothing, their correlation is reported.
        id_validation: Their in-distribution accuracy.
        strata: Stratum code (>= 0) of every example; each stratum gets its share of the subset.
        allowed: Which examples may be selected; default all.
        must_include: Examples that are always selected.
        objective: `r` minimises R, `r2` its square.
        eps: Clip of accuracies before the probit.

    Returns:
        Members and scores in the order and scale of `swap`; of equally good subsets the first in
        lexicographic order, also where R is undefined on all. `extras["n_subsets"]` counts them.

    Raises:
        InputError: If there are more than a million subsets, or the constraints cannot be met.
        ShapeError: If an argument does not match the matrices.
    """
    assert objective in OBJECTIVES
    pool = Pool(train.n_examples, size, strata=strata, allowed=allowed, locked={"must_include": must_include})
    unit_probit(id_train, eps=eps, name="id_train")
    stratum = np.zeros(train.n_examples, dtype=np.int64) if pool.strata is None else pool.strata
    left = pool.quota - np.bincount(stratum[pool.locked], minlength=len(pool.quota))
    free = pool.allowed & ~pool.locked
    choices = {
        code: np.flatnonzero(free & (stratum == code)).tolist() for code in np.flatnonzero(left).tolist()
    }
    n_subsets = math.prod(math.comb(len(names), int(left[code])) for code, names in choices.items())
    if n_subsets > EXHAUSTIVE_SUBSETS:
        raise InputError(
            f"exhaustive goes through at most {EXHAUSTIVE_SUBSETS:,} subsets; {size} of "
            f"{train.n_examples} examples make more (10^{math.log10(n_subsets):.1f}); narrow "
            "the pool with allowed="
        )
    by_example = train.dense().T.astype(np.uint8, order="C")
    locked = np.flatnonzero(pool.locked)
    best, lowest = None, math.inf
    every = _subsets([itertools.combinations(names, int(left[code])) for code, names in choices.items()])
    while rows := list(itertools.islice(every, max(1, _CHUNK // by_example.size))):
        sets = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
        sets = np.concatenate([sets, np.broadcast_to(locked, (len(sets), len(locked)))], axis=1)
        counts = np.zeros((len(sets), train.n_models), dtype=np.int64)
        for members in sets.T:
            counts += by_example[members]
        value = line_correlations(id_train, counts / size, eps=eps, id_eps=eps)
        value = np.where(np.isnan(value), np.inf, value**2 if objective == "r2" else value)
        place = int(np.argmin(value))
        if best is None or value[place] < lowest:
            best, lowest = np.sort(sets[place]), float(value[place])
    assert best is not None, "a pool that fits its size has a subset"
    return _found(
        best, train, id_train, validation, id_validation, objective, eps, extras={"n_subsets": n_subsets}
    )


def _subsets(choices: list[Iterator[tuple[int, ...]]]) -> Iterator[tuple[int, ...]]:
    """Every way to choose from each stratum, as one tuple."""
    if len(choices) == 1:  # a product would hold all of it in memory
        return choices[0]
    return (tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*choices))


def _found(
    members: Int64[np.ndarray, " size"],
    train: AnswerTable,
    id_train: Float64[np.ndarray, " m"],
    validation: AnswerTable | None,
    id_validation: Float64[np.ndarray, " v"] | None,
    objective: str,
    eps: float | int,
    *,
    trace: tuple[dict[str, Any], ...] = (),
    extras: Mapping[str, Any] | None = None,
) -> Found:
    """The result, members in the order of the derivative of the objective with respect to their weight."""
    size = len(members)
    accuracy = train.count(members) / size
    value, weights = line_gradient(
        accuracy, unit_probit(id_train, eps=eps, name="id_train"), clip=max(eps, FLOOR / size)
    )
    if objective == "r2":
        weights = 2 * value * weights
    scores = weights @ (train.dense(members) - accuracy[:, None]) / size
    order = np.argsort(scores, kind="stable")
    return Found(
        indices=members[order],
        scores=scores[order],
        r_train=exact_correlation(train, id_train, members, eps),
        r_validation=exact_correlation(validation, id_validation, members, eps),
        trace=trace,
        extras=dict(extras or {}),
    )
