"""What other subsets of the same size give: random, hardest, screened in one pass, furthest away."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Float64

from assay.analyses.subsets.line import Accuracies, Places, Units, correlate, line_correlations
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.splits import interval_unit_kind
from assay.analyses.subsets.swap import Pool, marginal_scores
from assay.core.errors import InputError, ShapeError
from assay.core.random import stream
from assay.stats import spearman_matrix


DRAWS = 100
_PERCENTILES = (0.025, 0.975)
_EQUAL_DIGITS = 12  # distances that agree to these are equal: the rest is rounding of the products
_R, _RHO = ("r", "low", "high"), ("spearman", "spearman_low", "spearman_high")


def baselines(problem: Problem, sizes: Sequence[int], *, draws: int = DRAWS) -> pd.DataFrame:
    """Baselines at every size of a grid, on the test models.

    `random`: subsets drawn uniformly. `hard`: the examples that the fewest training models get right.
    `marginal`: the smallest marginal score, each example by its own covariance with accuracy. `distance`,
    where the data have embeddings: the furthest from the in-distribution examples. `all`: the whole pool.
    Ties go to the lower index; strata keep their shares.

    Args:
        problem: Data, split and settings of the selections to compare with.
        sizes: The grid.
        draws: Random subsets. Draw d is the start of one order of the pool, the same for every size.

    Returns:
        A row per kind and size, one for `all`, with `kind`, `size`; `r`, `low`, `high` and `spearman`,
        `spearman_low`, `spearman_high`: the correlation and its interval over units, for `random` the mean
        and the 2.5th and 97.5th percentile over the draws; `n_draws`, and `n_degenerate` of them undefined.

    Raises:
        InputError: For a size out of range.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 2, Table A.3; their code counts the hardest on the
        test models.
    """
    data, settings, models = problem.data, problem.settings, problem.split.test
    y, units = data.id_accuracy[models], data.units(interval_unit_kind(data, problem.split))[models]
    pools = {size: Pool(data.n_examples, size, settings.strata, settings.allowed) for size in sizes}
    accuracies = _random(problem, pools, draws)
    rows: list[tuple[Any, ...]] = []
    for size in sizes:
        r = line_correlations(y, accuracies[size])
        rho = np.array([spearman_matrix(np.stack([y, each]))[0, 1] for each in accuracies[size]])
        rows.append(("random", size, *_spread(r), *_spread(rho), draws, int(np.isnan(r).sum())))
    for kind, values in baseline_values(problem):
        for size in sizes:
            members = np.flatnonzero(pools[size].lowest(values))
            rows.append((kind, size, *_numbers(problem, members, y, units)))
    rows.append(("all", len(problem.pool), *_numbers(problem, problem.pool, y, units)))
    return pd.DataFrame(rows, columns=["kind", "size", *_R, *_RHO, "n_draws", "n_degenerate"])


def baseline_values(problem: Problem) -> Iterator[tuple[str, np.ndarray]]:
    """By baseline, a number per example; the lowest are chosen."""
    data, models = problem.data, problem.split.train
    yield "hard", data.example_accuracy(models)
    yield "marginal", marginal_scores(problem.answers["train"], data.id_accuracy[models])
    if data.embedding is not None and data.id_embedding is not None:
        yield "distance", -distance_scores(data.embedding, data.id_embedding).round(_EQUAL_DIGITS)


def _random(problem: Problem, pools: dict[int, Pool], draws: int) -> dict[int, np.ndarray]:
    """Accuracies of the test models on random subsets of each size."""
    ends, places, test = sorted(pools), problem.pool, problem.answers["test"]
    counts = np.empty((draws, len(ends), test.n_models))  # whole numbers, or sums of scores
    for draw in range(draws):
        order = places[stream(problem.settings.seed, f"random-subset/{draw}").permutation(len(places))]
        if problem.settings.strata is not None:  # a larger size need not contain a smaller one
            rank = np.empty(problem.data.n_examples, dtype=np.int64)
            rank[order] = np.arange(len(order))
            counts[draw] = [test.count(np.flatnonzero(pools[size].lowest(rank))) for size in ends]
        else:  # every example of an order is counted once
            steps = zip([0, *ends[:-1]], ends, strict=True)
            counts[draw] = np.cumsum([test.count(order[start:end]) for start, end in steps], axis=0)
    return {size: counts[:, place] / size for place, size in enumerate(ends)}


def _spread(values: Float64[np.ndarray, " draws"]) -> tuple[float, ...]:
    """Mean and percentiles over the draws in which a number is defined."""
    defined = values[np.isfinite(values)]
    if not len(defined):
        return (math.nan,) * 3
    return float(defined.mean()), *np.quantile(defined, _PERCENTILES).tolist()


def _numbers(problem: Problem, members: Places, y: Accuracies, units: Units) -> tuple[Any, ...]:
    """The rest of the row of one set."""
    test = correlate(y, problem.accuracy(members), units, seed=problem.settings.seed)
    return *(getattr(test, name) for name in (*_R, *_RHO)), 1, int(test.degenerate)


def distance_scores(
    embedding: Float[np.ndarray, "n d"], id_embedding: Float[np.ndarray, "n_id d"]
) -> Float64[np.ndarray, " n"]:
    """How far each example lies from the in-distribution ones: 1 - max_i cos(e_j, e_i).

    Args:
        embedding: Of the examples; any length, no row zero.
        id_embedding: Of in-distribution examples, by the same encoder.

    Returns:
        In [0, 2]; larger is further. As the in-distribution examples are fixed, choosing the furthest one
        after the other is sorting.

    Raises:
        InputError: Rows that are zero, which have no direction.
        ShapeError: Embeddings of different widths, or no in-distribution example.
    """
    from sklearn.neighbors import NearestNeighbors

    if embedding.ndim != 2 or embedding.shape[1:] != id_embedding.shape[1:] or not len(id_embedding):
        raise ShapeError(
            f"embedding is {embedding.shape}, id_embedding {id_embedding.shape}; give equal widths"
        )
    for name, rows in (("embedding", embedding), ("id_embedding", id_embedding)):
        if len(zero := np.flatnonzero(~rows.any(axis=1))):
            raise InputError(f"{name}[{zero[0]}] is zero, so it has no direction; drop such examples")
    known = NearestNeighbors(n_neighbors=1, metric="cosine").fit(id_embedding.astype(np.float64))
    return np.asarray(known.kneighbors(embedding.astype(np.float64))[0][:, 0])
