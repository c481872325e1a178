"""The largest entries of a table of pairs, found by evaluating few of them.

How far a circuit is off on a pair is mostly a matter of its two inputs: some clean inputs are hard whatever
they are paired with, some corrupted ones too. So the table is nearly a sum of row effects, column effects and
a few products,

    K_ij = mu + a_i + b_j + u_i . w_j + c p_ij,

which a fraction of its entries determines; p is a prior known for every pair, such as the divergence of the
empty circuit, if there is one. The search alternates between fitting this to what it knows and evaluating
what the fit, with a bonus for inputs that few evaluations have touched, calls largest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Float64, Int64

from assay.core.errors import InputError, NonFiniteError, ShapeError, check_least
from assay.core.random import stream


Evaluate = Callable[[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]], Float[np.ndarray, " pairs"]]

_Pairs = tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]  # rows and columns

EFFECT_PENALTY = 1.0
FACTOR_PENALTY = 2.0
SWEEPS = 15
BONUS = 0.5
LEAST_BATCH = 50


class FoundPair(NamedTuple):
    """One entry of the table.

    Attributes:
        clean_index: Its row.
        corrupted_index: Its column.
        value: The divergence, as evaluated.
    """

    clean_index: int
    corrupted_index: int
    value: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MatrixSearch:
    """What a search has evaluated.

    Attributes:
        shape: Clean and corrupted inputs of the table.
        pairs: `[n_evaluations, 2]` (clean index, corrupted index), each pair once, in order of evaluation.
        values: Their divergences.
        seed: Root seed of all random draws.
    """

    shape: tuple[int, int]
    pairs: Int64[np.ndarray, "n_evaluations 2"]
    values: Float64[np.ndarray, " n_evaluations"]
    seed: int

    @property
    def n_evaluations(self) -> int:
        """Pairs evaluated."""
        return len(self.values)

    @property
    def max(self) -> float:
        """The largest divergence evaluated: the table's maximum is at least this."""
        return float(self.values.max())

    def best(self, k: int) -> tuple[FoundPair, ...]:
        """The k largest of the evaluated entries; ties by clean, then corrupted index. All, if k is more.

        Raises:
            InputError: If `k` is below 1.
        """
        check_least(1, k=k)
        chosen = self._order[:k]
        return tuple(
            FoundPair(int(i), int(j), float(value))
            for (i, j), value in zip(self.pairs[chosen], self.values[chosen], strict=True)
        )

    @cached_property
    def _order(self) -> Int64[np.ndarray, " n_evaluations"]:
        return np.lexsort((self.pairs[:, 1], self.pairs[:, 0], -self.values)).astype(np.int64)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"MatrixSearch({self.n_evaluations:,} of {rows} x {columns}, max={self.max:.4g})"


def matrix_search(
    evaluate: Evaluate,
    n_clean: int,
    n_corrupted: int,
    budget: int,
    *,
    prior: Float[np.ndarray, "n_clean n_corrupted"] | None = None,
    rank: int = 3,
    start: MatrixSearch | None = None,
    seed: int = 0,
) -> MatrixSearch:
    """Look for the largest entries of a table by evaluating at most `budget` of them.

    First every row and every column once, in random pairs. Then again and again: fit effects and factors to
    the known entries (`fit_table`; factors once more than 3 (n_clean + n_corrupted) entries are known) and
    evaluate the max(50, budget / 20) unseen pairs with the largest

        prediction + s / (2 sqrt(n_i + 1)) + s / (2 sqrt(n_j + 1)),

    n_i and n_j the entries known of row i and column j, s the standard deviation of the residuals. The last
    batch goes by the prediction alone.

    Args:
        evaluate: `(clean_index [pairs], corrupted_index [pairs]) -> [pairs]`, finite. Called with new pairs
            only, in ascending order within a batch.
        n_clean: Rows.
        n_corrupted: Columns.
        budget: Most evaluations, at least the larger of the two counts. Below 2 (n_clean + n_corrupted) the
            effects are hardly determined. A budget of the whole table evaluates all of it.
        prior: What is known of every entry beforehand, in any unit: the slope on it is fitted.
        rank: Factors u_i, w_j per input; 0 fits effects only.
        start: An earlier search of the same table. Its entries are known already and do not count towards the
            budget; only rows and columns that it has left out are opened at random.
        seed: Root seed of the first pairs and of the factors' starting values.

    Returns:
        Every pair known, those of `start` first, with its value. The largest bounds the table's maximum from
        below; the values are not a sample, and no percentile may be read off them.

    Raises:
        InputError: If a count is out of range.
        ShapeError: If `prior` or what `evaluate` returns has another shape.
        NonFiniteError: If an evaluated or prior value is NaN or infinite; the pair is named.

    Notes:
        Memory: some float64 tables of n_clean x n_corrupted. Time for 500 x 500 and 12,500 evaluations: about
        2 seconds beside the evaluations.

    Example:
        >>> table = np.add.outer(np.arange(40.0), np.arange(50.0) ** 2)
        >>> found = matrix_search(lambda i, j: table[i, j], 40, 50, budget=200)
        >>> found.best(1)
        (FoundPair(clean_index=39, corrupted_index=49, value=2440.0),)
    """
    shape = (n_clean, n_corrupted)
    _check_counts(shape, rank, prior)
    entries = _KnownEntries(evaluate, shape, start)
    first = entries.without(_first_pairs(shape, seed))
    _check_budget(budget, shape, len(first[0]))
    total = min(entries.n + budget, n_clean * n_corrupted)
    entries.add(*first)
    batch = max(LEAST_BATCH, budget // 20)
    while (left := total - entries.n) > 0:
        fit = fit_table(
            entries.pairs[:, 0],
            entries.pairs[:, 1],
            entries.values,
            shape,
            rank=rank if entries.n > 3 * (n_clean + n_corrupted) else 0,
            prior=prior,
            seed=seed,
        )
        bonus = BONUS if left > batch else 0.0
        entries.add(*entries.largest_unseen(_promise(fit, entries, bonus), min(batch, left)))
    return MatrixSearch(shape=shape, pairs=entries.pairs, values=entries.values, seed=seed)


class TableFit(NamedTuple):
    """Effects and factors fitted to some entries of a table.

    Attributes:
        prediction: Of every entry.
        residual_sd: Standard deviation of the residuals of the known entries.
        slope: Change of the prediction per unit of the prior; 0 without one.
    """

    prediction: Float64[np.ndarray, "n_clean n_corrupted"]
    residual_sd: float
    slope: float


def fit_table(
    clean_index: Int64[np.ndarray, " known"],
    corrupted_index: Int64[np.ndarray, " known"],
    values: Float64[np.ndarray, " known"],
    shape: tuple[int, int],
    *,
    rank: int = 0,
    prior: Float[np.ndarray, "n_clean n_corrupted"] | None = None,
    sweeps: int = SWEEPS,
    seed: int = 0,
) -> TableFit:
    """Fit K_ij = mu + a_i + b_j + u_i . w_j + c p_ij to some entries by ridge alternating least squares.

    Each step solves for one group of unknowns with the others fixed: mu, c, a, b, u, w. The penalties are 1
    per squared effect and slope and 2 per squared factor, after the known values and the prior have been
    divided by their standard deviations, so that neither the unit of the divergence nor the prior's matters.

    Args:
        clean_index: Row of each known entry.
        corrupted_index: Its column.
        values: The known entries.
        shape: Of the table.
        rank: Factors per row and column.
        prior: The table p.
        sweeps: Passes over all groups.
        seed: Of the factors' starting values; from zero they would never move.

    Notes:
        Values that are all equal predict that value everywhere.
    """
    scale = float(values.std())
    if scale == 0:
        return TableFit(np.full(shape, values[0], dtype=np.float64), 0.0, 0.0)
    rows, columns = clean_index, corrupted_index
    y = values / scale
    covariate, spread = np.zeros_like(y), 0.0
    if prior is not None:
        covariate = prior[rows, columns].astype(np.float64)
        spread = float(covariate.std())
        covariate = (covariate - covariate.mean()) / spread if spread > 0 else np.zeros_like(y)
    sides = _TableSide(rows, columns, shape[0]), _TableSide(columns, rows, shape[1])
    effects = [np.zeros(n) for n in shape]
    draws = stream(seed, "matrix-factors")
    factors = [0.1 * draws.standard_normal((n, rank)) for n in shape]
    mean = slope = 0.0
    for _ in range(sweeps):
        products = np.einsum("kr,kr->k", factors[0][rows], factors[1][columns])
        rest = y - effects[0][rows] - effects[1][columns] - products
        mean = float((rest - slope * covariate).mean())
        slope = float(covariate @ (rest - mean) / (covariate @ covariate + EFFECT_PENALTY))
        rest = y - mean - slope * covariate - products
        effects[0] = sides[0].effects(rest - effects[1][columns])
        effects[1] = sides[1].effects(rest - effects[0][rows])
        if rank:
            rest = y - mean - slope * covariate - effects[0][rows] - effects[1][columns]
            factors[0] = sides[0].factors(rest, factors[1])
            factors[1] = sides[1].factors(rest, factors[0])
    prediction = mean + effects[0][:, None] + effects[1] + factors[0] @ factors[1].T
    if spread > 0:
        assert prior is not None
        prediction += slope * (prior - prior[rows, columns].mean()) / spread
    residuals = y - prediction[rows, columns]
    return TableFit(
        scale * prediction,
        scale * float(residuals.std()),
        scale * slope / spread if spread > 0 else 0.0,
    )


class _TableSide:
    """Least-squares steps for the unknowns of the rows, or with the indices swapped of the columns."""

    def __init__(self, own: Int64[np.ndarray, " known"], other: Int64[np.ndarray, " known"], n: int) -> None:
        self.own, self.other, self.n = own, other, n
        self.counts = np.bincount(own, minlength=n)

    def effects(self, rest: Float64[np.ndarray, " known"]) -> Float64[np.ndarray, " n"]:
        return np.bincount(self.own, rest, self.n) / (self.counts + EFFECT_PENALTY)

    def factors(
        self, rest: Float64[np.ndarray, " known"], others: Float64[np.ndarray, "m rank"]
    ) -> Float64[np.ndarray, "n rank"]:
        """u_i = (sum_j w_j w_j' + penalty)^-1 sum_j r_ij w_j, the sums over the known entries of row i."""
        rank = others.shape[1]
        where = (self.own, self.other)
        shape = (self.n, len(others))
        squares = (others[:, :, None] * others[:, None, :]).reshape(len(others), -1)
        gram = (scipy.sparse.csr_array((np.ones(len(rest)), where), shape) @ squares).reshape(
            self.n, rank, rank
        )
        right = scipy.sparse.csr_array((rest, where), shape) @ others
        solved = np.linalg.solve(gram + FACTOR_PENALTY * np.eye(rank), right[:, :, None])
        return np.asarray(solved[:, :, 0])


class _KnownEntries:
    """The entries evaluated so far."""

    def __init__(self, evaluate: Evaluate, shape: tuple[int, int], start: MatrixSearch | None) -> None:
        if start is not None and start.shape != shape:
            raise ShapeError(f"start searched a table of {start.shape}, but this one has {shape}")
        self.evaluate = evaluate
        self.pairs = np.empty((0, 2), dtype=np.int64) if start is None else start.pairs
        self.values = np.empty(0) if start is None else start.values
        self.seen = np.zeros(shape, dtype=np.bool_)
        self.seen[self.pairs[:, 0], self.pairs[:, 1]] = True

    @property
    def n(self) -> int:
        return len(self.values)

    def without(self, pairs: _Pairs) -> _Pairs:
        """Those of some pairs that open a row or a column."""
        rows, columns = pairs
        counts = self.seen.sum(1), self.seen.sum(0)
        opens = (counts[0][rows] == 0) | (counts[1][columns] == 0)
        return rows[opens], columns[opens]

    def add(self, rows: Int64[np.ndarray, " new"], columns: Int64[np.ndarray, " new"]) -> None:
        """Evaluate new pairs."""
        if not len(rows):
            return
        values = np.asarray(self.evaluate(rows, columns), dtype=np.float64)
        if values.shape != rows.shape:
            raise ShapeError(
                f"the evaluation of {len(rows)} pairs returned shape {values.shape}; expected one number per "
                f"pair, ({len(rows)},)"
            )
        if not np.isfinite(values).all():
            bad = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NonFiniteError(
                f"the divergence of pair (clean {rows[bad]}, corrupted {columns[bad]}) is {values[bad]}, "
                "but a search needs finite values; check the model's logits on these inputs"
            )
        self.seen[rows, columns] = True
        self.pairs = np.concatenate([self.pairs, np.stack([rows, columns], axis=1)])
        self.values = np.concatenate([self.values, values])

    def largest_unseen(
        self, promise: Float64[np.ndarray, "n_clean n_corrupted"], n: int
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The n unseen pairs of largest promise in ascending order; of equals, those of smaller index."""
        unseen = np.flatnonzero(~self.seen)
        chosen = unseen[np.argsort(-promise.ravel()[unseen], kind="stable")[:n]]
        rows, columns = np.unravel_index(np.sort(chosen), self.seen.shape)
        return rows.astype(np.int64), columns.astype(np.int64)


def _promise(fit: TableFit, known: _KnownEntries, bonus: float) -> Float64[np.ndarray, "n_clean n_corrupted"]:
    of_row, of_column = (bonus * fit.residual_sd / np.sqrt(known.seen.sum(axis) + 1) for axis in (1, 0))
    return np.asarray(fit.prediction + of_row[:, None] + of_column)


def _first_pairs(shape: tuple[int, int], seed: int) -> _Pairs:
    """Every row and every column at least once: two shuffled lists side by side, the shorter one repeated."""
    draws = stream(seed, "matrix-search")
    rows, columns = (np.resize(draws.permutation(n), max(shape)) for n in shape)
    order = np.lexsort((columns, rows))
    return rows[order].astype(np.int64), columns[order].astype(np.int64)


def _check_budget(budget: int, shape: tuple[int, int], least: int) -> None:
    if budget < least:
        raise InputError(
            f"budget is {budget:,}, but evaluating each of the {shape[0]:,} clean and {shape[1]:,} "
            f"corrupted inputs once takes {least:,}; give {2 * sum(shape):,} or more"
        )


def _check_counts(shape: tuple[int, int], rank: int, prior: np.ndarray | None) -> None:
    check_least(1, n_clean=shape[0], n_corrupted=shape[1])
    if rank < 0:
        raise InputError(f"rank is {rank}; give 0 (effects only) or more (default 3)")
    if prior is None:
        return
    if prior.shape != shape:
        raise ShapeError(f"prior has shape {prior.shape}; expected {shape}")
    if not np.isfinite(prior).all():
        i, j = np.argwhere(~np.isfinite(prior))[0].tolist()
        raise NonFiniteError(
            f"prior is {prior[i, j]} for pair (clean {i}, corrupted {j}); give finite values"
        )
