"""What other subsets of the same size give: random, hardest, screened in one pass, furthest away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets._checks import row_lengths
from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.line import Correlation, clip_of, line_correlations
from assay.analyses.subsets.objective import marginal_scores
from assay.analyses.subsets.problem import Problem
from assay.core.errors import InputError, ShapeError, check_least, check_name, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import spearman_matrix


KINDS = ("random", "hard", "marginal", "distance", "all")
DRAWS = 100
_PERCENTILES = (0.025, 0.975)
_EQUAL_DIGITS = 12  # distances that agree to these are equal: the rest is rounding of the products
_SHARED = ("r", "low", "high", "spearman", "spearman_low", "spearman_high")

MODES = ("nearest", "centroid")
_ROWS = 4096  # in-distribution examples compared at a time
_ENTRIES = 1 << 22  # similarities held at a time
_CANCELLED = 1e-12  # length of a mean of unit vectors that is rounding


@dataclass(frozen=True, kw_only=True)
class BaselineRow(Record):
    """A baseline at one size.

    Attributes:
        kind: `random`, `hard`, `marginal`, `distance` or `all`.
        size: Examples.
        r: Correlation over the models reported on; for `random` the mean over draws. NaN where undefined.
        low: Lower end: of the interval over units; for `random` the 2.5th percentile over draws.
        high: Upper end.
        spearman: Rank correlation.
        spearman_low: Its lower end.
        spearman_high: Its upper end.
        n_draws: Random draws; 1 for the others.
        n_degenerate: Of these, without a correlation.
        correlation: With all its intervals; None for `random`.
    """

    kind: str
    size: int
    r: float
    low: float
    high: float
    spearman: float
    spearman_low: float
    spearman_high: float
    n_draws: int = 1
    n_degenerate: int = 0
    correlation: Correlation | None = None

    @classmethod
    def of(cls, kind: str, size: int, correlation: Correlation) -> "BaselineRow":
        """The row of one subset."""
        return cls(
            kind=kind,
            size=size,
            n_degenerate=int(correlation.degenerate),
            correlation=correlation,
            **{name: getattr(correlation, name) for name in _SHARED},
        )

    @classmethod
    def of_draws(
        cls, size: int, r: Float64[np.ndarray, " draws"], spearman: Float64[np.ndarray, " draws"]
    ) -> "BaselineRow":
        """The row of random subsets: mean and percentiles over the draws in which each is defined."""
        numbers: dict[str, Any] = dict(zip(_SHARED, (*_summary(r), *_summary(spearman)), strict=True))
        return cls(
            kind="random",
            size=size,
            n_draws=len(r),
            n_degenerate=int(np.isnan(r).sum()),
            **numbers,
        )


def _summary(values: Float64[np.ndarray, " n"]) -> tuple[float, float, float]:
    defined = values[np.isfinite(values)]
    if not len(defined):
        return math.nan, math.nan, math.nan
    low, high = np.quantile(defined, _PERCENTILES)
    return float(defined.mean()), float(low), float(high)


def baseline_rows(
    problem: Problem,
    sizes: Sequence[int] | np.ndarray,
    *,
    kinds: Sequence[str] | None = None,
    part: str = "test",
    draws: int = DRAWS,
    mode: Literal["nearest", "centroid"] | str = "nearest",
    **options: Any,
) -> dict[str, tuple[BaselineRow, ...]]:
    """Baselines at every size of a grid, on the models of one part.

    Args:
        problem: Data, split and settings of the selections to compare with: the clip, the seed, what is
            allowed and the strata whose shares are kept come from there.
        sizes: The grid.
        kinds: Among `random`, `hard`, `marginal`, `distance` and `all`. Default: every one that the data
            allow; `distance` needs embeddings.
        part: Models to report on; hard and marginal examples are chosen on the training models.
        draws: Random subsets.
        mode: Of the distance.
        options: Of the intervals over units: `n_resamples` and `level`, as `correlate`.

    Returns:
        By kind, a row per size in the order of `sizes`; one row for `all`, whose size is the whole pool.

    Raises:
        InputError: An unknown kind, a size out of range, or `distance` without embeddings.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 2, Table A.3.
    """
    data = problem.data
    embedded = data.embedding is not None and data.id_embedding is not None
    if kinds is None:
        kinds = [kind for kind in KINDS if kind != "distance" or embedded]
    grid = [int(size) for size in sizes]
    table: dict[str, tuple[BaselineRow, ...]] = {}
    for kind in kinds:
        if kind == "random":
            random_sets = random_draws(problem, grid, part=part, draws=draws)
            table[kind] = tuple(BaselineRow.of_draws(size, *random_sets[size]) for size in grid)
            continue
        pool = problem.settings.pool(data.n_examples)
        subsets = [pool] if kind == "all" else baseline_indices(problem, kind, grid, mode=mode)
        table[kind] = tuple(
            BaselineRow.of(kind, len(each), problem.correlate(each, part, **options)) for each in subsets
        )
    return table


def random_draws(
    problem: Problem, sizes: Sequence[int], *, part: str = "test", draws: int = DRAWS
) -> dict[int, tuple[Float64[np.ndarray, " draws"], Float64[np.ndarray, " draws"]]]:
    """R and rank correlation on subsets drawn uniformly without replacement, for each size.

    Draw d is the start of one order of the pool, the same for every size; R is NaN where the accuracies of a
    draw do not vary over the models. Strata keep their shares, as in a selection.

    Args:
        problem: Data, split and settings.
        sizes: Examples in a subset, 1 to the number allowed.
        part: Models that the correlations are over.
        draws: Number of subsets, at least 1.

    Raises:
        InputError: A size or a number of draws out of range.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 2.
    """
    check_least(1, draws=draws)
    settings, matrix = problem.settings, getattr(problem, part)
    pool = _pool(problem, sizes)
    ends = np.unique(np.asarray(sizes, dtype=np.int64))
    counts = np.empty((draws, len(ends), matrix.n_models))  # whole numbers, or sums of scores
    for draw in range(draws):
        order = pool[stream(settings.seed, f"random-subset/{draw}").permutation(len(pool))]
        if settings.strata is not None:  # quotas of a larger size need not contain those of a smaller one
            rank = np.empty(problem.data.n_examples, dtype=np.int64)
            rank[order] = np.arange(len(order))
            counts[draw] = [matrix.count(each) for each in _lowest(problem, rank, ends.tolist())]
        else:  # every example of an order is counted once
            steps = zip([0, *ends[:-1]], ends, strict=True)
            counts[draw] = np.cumsum([matrix.count(order[start:end]) for start, end in steps], axis=0)
    y, eps = problem.data.id_accuracy[problem.split.part(part)], settings.eps
    by_size = {}
    for place, size in enumerate(ends.tolist()):
        accuracy = counts[:, place] / size
        ranks = np.array([spearman_matrix(np.stack([y, row]))[0, 1] for row in accuracy])
        by_size[size] = (
            line_correlations(y, accuracy, eps=clip_of(settings.clip, size, eps), id_eps=eps),
            ranks,
        )
    return by_size


def baseline_indices(
    problem: Problem,
    kind: str,
    sizes: Sequence[int],
    *,
    mode: Literal["nearest", "centroid"] | str = "nearest",
) -> list[Places]:
    """The examples of a baseline for each size, lowest first, ties to the lower index.

    `hard`: those that the fewest training models get right. `marginal`: the smallest marginal score,
    sum_i z_i X_ij, z the centred unit-norm probit accuracy: one pass over the matrix, each example by its own
    covariance with accuracy. `distance`: the furthest from the in-distribution examples; as these are fixed,
    choosing the furthest one after the other is sorting. Smaller choices are the starts of larger ones,
    unless strata keep their shares.

    Args:
        problem: Data, split and settings.
        kind: `hard`, `marginal` or `distance`.
        sizes: Examples to choose.
        mode: As `distance_scores`.

    Raises:
        InputError: A size out of range, in-distribution accuracies that are all equal, or data without
            embeddings.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884; their code counts the hardest on the test models.
    """
    data = problem.data
    if kind == "hard":
        values: np.ndarray = problem.train.column_sums()
    elif kind == "marginal":
        y = data.id_accuracy[problem.split.train]
        values = marginal_scores(problem.train, y, eps=problem.settings.eps)
    elif kind == "distance":
        if data.embedding is None or data.id_embedding is None:
            raise InputError(
                "the data have no embeddings; give embedding= and id_embedding= to CorrectnessData.of for "
                "the distance baseline"
            )
        values = -distance_scores(data.embedding, data.id_embedding, mode).round(_EQUAL_DIGITS)
    else:
        raise unknown_name("baseline", kind, KINDS)
    return _lowest(problem, values, sizes)


def _pool(problem: Problem, sizes: Sequence[int]) -> Places:
    """Examples that may be chosen, ascending; they hold every size."""
    pool = problem.settings.pool(problem.data.n_examples)
    for size in sizes:
        if not 1 <= size <= len(pool):
            raise InputError(f"size is {size}; expected 1 to {len(pool)} examples")
    return pool


def _lowest(problem: Problem, values: np.ndarray, sizes: Sequence[int]) -> list[Places]:
    """For each size the examples with the lowest values; strata keep their shares."""
    pool, settings = _pool(problem, sizes), problem.settings
    if settings.strata is None:
        order = pool[np.argsort(values[pool], kind="stable")]
        return [order[:size] for size in sizes]
    pools = (
        Pool(len(values), size, strata=settings.strata, allowed=settings.allowed, locked={}) for size in sizes
    )
    return [np.flatnonzero(each.lowest(values)) for each in pools]


# ---------------------------------------------------------------------------------------------- distance


def distance_scores(
    embedding: Float[np.ndarray, "n d"],
    id_embedding: Float[np.ndarray, "n_id d"],
    mode: Literal["nearest", "centroid"] | str = "nearest",
) -> Float64[np.ndarray, " n"]:
    """How far each example lies from the in-distribution ones, by cosine.

    `nearest`: 1 - max_i cos(e_j, e_i) over in-distribution examples i. `centroid`: 1 - cos(e_j, their mean
    direction), the direction of the mean of the unit vectors.

    Args:
        embedding: Of the examples; any length, no row zero.
        id_embedding: Of in-distribution examples, by the same encoder.
        mode: `nearest` or `centroid`.

    Returns:
        In [0, 2]; larger is further.

    Raises:
        InputError: Rows that are zero or not finite, no in-distribution example, or directions that cancel.
        ShapeError: Embeddings of different widths.

    Notes:
        `nearest` takes O(n n_id d) and holds 4 million similarities at a time.
    """
    check_name("kind of distance", mode, MODES)
    if embedding.ndim != 2 or id_embedding.ndim != 2 or embedding.shape[1] != id_embedding.shape[1]:
        raise ShapeError(
            f"embedding has shape {embedding.shape}, id_embedding {id_embedding.shape}; expected rows of "
            "equal width, from one encoder"
        )
    if not len(id_embedding):
        raise InputError("id_embedding is empty; a distance needs at least one in-distribution example")
    ood, known = _directions(embedding, "embedding"), _directions(id_embedding, "id_embedding")
    if mode == "centroid":
        mean = known.mean(axis=0)
        length = float(np.linalg.norm(mean))
        if length < _CANCELLED:
            raise InputError(
                "the directions of id_embedding cancel, so their mean has no direction; use mode='nearest'"
            )
        similarity = ood @ (mean / length)
    else:
        similarity = _nearest(ood, known)
    return np.asarray(np.clip(1 - similarity, 0.0, 2.0))


def _directions(rows: Float[np.ndarray, "n d"], name: str) -> Float64[np.ndarray, "n d"]:
    """Rows of unit length."""
    return np.asarray(rows.astype(np.float64) / row_lengths(rows, name)[:, None])


def _nearest(
    ood: Float64[np.ndarray, "n d"], known: Float64[np.ndarray, "n_id d"]
) -> Float64[np.ndarray, " n"]:
    """Largest cosine of each row with any known one."""
    similarity = np.full(len(ood), -np.inf)
    columns = min(len(known), _ROWS)
    rows = max(1, _ENTRIES // columns)
    for start in range(0, len(ood), rows):
        block = ood[start : start + rows]
        best = similarity[start : start + rows]
        for first in range(0, len(known), columns):
            np.maximum(best, (block @ known[first : first + columns].T).max(axis=1), out=best)
    return similarity
