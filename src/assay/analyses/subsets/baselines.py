"""What other subsets of the same size give: random, hardest, screened in one pass, furthest away."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.distance import distance_scores
from assay.analyses.subsets.layouts import Matrix
from assay.analyses.subsets.line import EPS, N_RESAMPLES, Correlation, clip_of, correlate, line_correlations
from assay.analyses.subsets.members import interval_units
from assay.analyses.subsets.objective import marginal_scores
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.settings import Settings
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import spearman_matrix


KINDS = ("random", "hard", "marginal", "distance", "all")
DRAWS = 100
_PERCENTILES = (0.025, 0.975)
_EQUAL_DIGITS = 12  # distances that agree to these are equal: the rest is rounding of the products


@dataclass(frozen=True, kw_only=True, eq=False)
class RandomBaseline(Record):
    """The correlation on subsets drawn uniformly, without replacement.

    Attributes:
        size: Examples in each.
        values: R of each draw; NaN where the accuracies of a draw do not vary over the models.
        spearman: Rank correlation of each draw.
    """

    size: int
    values: Float64[np.ndarray, " draws"]
    spearman: Float64[np.ndarray, " draws"]

    @property
    def mean(self) -> float:
        """Mean R over the draws in which it is defined; NaN without one."""
        return _mean(self.values)

    @property
    def low(self) -> float:
        """2.5th percentile over the same draws."""
        return _percentile(self.values, _PERCENTILES[0])

    @property
    def high(self) -> float:
        """97.5th percentile over the same draws."""
        return _percentile(self.values, _PERCENTILES[1])

    @property
    def spearman_mean(self) -> float:
        """Mean rank correlation."""
        return _mean(self.spearman)

    @property
    def spearman_low(self) -> float:
        """2.5th percentile of the rank correlations."""
        return _percentile(self.spearman, _PERCENTILES[0])

    @property
    def spearman_high(self) -> float:
        """97.5th percentile of the rank correlations."""
        return _percentile(self.spearman, _PERCENTILES[1])

    @property
    def n_degenerate(self) -> int:
        """Draws without a correlation."""
        return int(np.isnan(self.values).sum())

    @property
    def row(self) -> "BaselineRow":
        """The same as a row of a table of baselines."""
        return BaselineRow(
            kind="random",
            size=self.size,
            r=self.mean,
            low=self.low,
            high=self.high,
            spearman=self.spearman_mean,
            spearman_low=self.spearman_low,
            spearman_high=self.spearman_high,
            n_draws=len(self.values),
            n_degenerate=self.n_degenerate,
        )


def _mean(values: Float64[np.ndarray, " n"]) -> float:
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else math.nan


def _percentile(values: Float64[np.ndarray, " n"], level: float) -> float:
    defined = values[np.isfinite(values)]
    return float(np.quantile(defined, level)) if len(defined) else math.nan


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

    @property
    def mean(self) -> float:
        """`r`, which is a mean over draws for `random`."""
        return self.r

    @classmethod
    def of(cls, kind: str, size: int, correlation: Correlation) -> "BaselineRow":
        """The row of one subset."""
        shared = ("r", "low", "high", "spearman", "spearman_low", "spearman_high")
        return cls(
            kind=kind,
            size=size,
            n_degenerate=int(correlation.degenerate),
            correlation=correlation,
            **{name: getattr(correlation, name) for name in shared},
        )


# ------------------------------------------------------------------------------------------------ random


def random_baseline(
    data: CorrectnessData,
    models: Int64[np.ndarray, " m"],
    size: int,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    eps: float | int = EPS,
    clip: str = "eps",
    allowed: Bool[np.ndarray, " n"] | None = None,
    strata: Int64[np.ndarray, " n"] | None = None,
) -> RandomBaseline:
    """R over the models on random subsets, drawn uniformly without replacement.

    Args:
        data: The examples and the models.
        models: Models that R is over: those of the test part.
        size: Examples in a subset, 1 to the number allowed.
        draws: Number of subsets, at least 1.
        seed: Root of the draws. Draw d is the start of one order of the pool, the same for every size.
        eps: Clip of the accuracies.
        clip: `eps`, or `half`: clip accuracies on the subset at half an example.
        allowed: Which examples may be drawn. Default: all.
        strata: Code of each example; every stratum keeps its share, as in a selection with `strata`.

    Raises:
        InputError: A size or a number of draws out of range.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 2.
    """
    settings = Settings(seed=seed, eps=eps, clip=clip, allowed=allowed, strata=strata)
    return _random_baselines(data, models, (size,), data.matrix(models), settings, draws)[0]


def _random_baselines(
    data: CorrectnessData,
    models: Int64[np.ndarray, " m"],
    sizes: Sequence[int],
    matrix: Matrix,
    settings: Settings,
    draws: int,
) -> tuple[RandomBaseline, ...]:
    """For several sizes at once: every example of an order is counted once."""
    if draws < 1:
        raise InputError(f"draws is {draws}; at least 1 random subset is needed, {DRAWS} by default")
    pool = _pool(data, settings.allowed)
    for size in sizes:
        _check_size(size, pool)
    ends = np.unique(np.asarray(sizes, dtype=np.int64))
    counts = np.empty((draws, len(ends), len(models)), dtype=np.int64)
    for draw in range(draws):
        order = pool[stream(settings.seed, f"random-subset/{draw}").permutation(len(pool))]
        if settings.strata is not None:  # quotas of a larger size need not contain those of a smaller one
            place_in_order = np.empty(data.n_examples, dtype=np.int64)
            place_in_order[order] = np.arange(len(order))
            for place, size in enumerate(ends.tolist()):
                counts[draw, place] = matrix.count(_by_quota(place_in_order, size, settings))
            continue
        total = np.zeros(len(models), dtype=np.int64)
        for place, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            total = total + matrix.count(order[start:end])
            counts[draw, place] = total
    y = data.id_accuracy[models]
    baselines = {}
    for place, size in enumerate(ends.tolist()):
        accuracy = counts[:, place] / size
        baselines[size] = RandomBaseline(
            size=size,
            values=line_correlations(
                y, accuracy, eps=clip_of(settings.clip, size, settings.eps), id_eps=settings.eps
            ),
            spearman=np.array([spearman_matrix(np.stack([y, row]))[0, 1] for row in accuracy]),
        )
    return tuple(baselines[size] for size in sizes)


def _pool(data: CorrectnessData, allowed: Bool[np.ndarray, " n"] | None) -> Int64[np.ndarray, " pool"]:
    """Examples that may be chosen, ascending."""
    if allowed is None:
        return np.arange(data.n_examples)
    if allowed.shape != (data.n_examples,):
        raise ShapeError(
            f"allowed has shape {allowed.shape}; a mask over the {data.n_examples} examples is needed"
        )
    return np.flatnonzero(allowed)


def _check_size(size: int, pool: Int64[np.ndarray, " pool"]) -> None:
    if not 1 <= size <= len(pool):
        raise InputError(f"size is {size}; a subset of 1 to {len(pool)} examples is possible")


def _by_quota(values: np.ndarray, size: int, settings: Settings) -> Int64[np.ndarray, " size"]:
    """The `size` smallest values, every stratum with its share, as in a selection."""
    pool = Pool(len(values), size, strata=settings.strata, allowed=settings.allowed, locked={})
    return np.flatnonzero(pool.lowest(values))


def _lowest(values: np.ndarray, size: int, pool: Int64[np.ndarray, " pool"]) -> Int64[np.ndarray, " size"]:
    """The `size` examples of the pool with the smallest values, smallest first, ties to the lower index."""
    _check_size(size, pool)
    return pool[np.argsort(values[pool], kind="stable")[:size]]


# ------------------------------------------------------------------------------------------ by one number


def hard_indices(
    data: CorrectnessData,
    models: Int64[np.ndarray, " m"],
    size: int,
    *,
    allowed: Bool[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, " size"]:
    """The examples that the fewest models get right, hardest first, ties to the lower index.

    Args:
        data: The examples and the models.
        models: Training models: on test models the choice would see what it is judged by.
        size: Examples to choose; smaller choices are the starts of larger ones.
        allowed: Which examples may be chosen. Default: all.

    Raises:
        InputError: A size out of range.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884; their code counts on the test models.
    """
    return _lowest(data.matrix(models).column_sums(), size, _pool(data, allowed))


def marginal_indices(
    data: CorrectnessData,
    models: Int64[np.ndarray, " m"],
    size: int,
    *,
    eps: float | int = EPS,
    allowed: Bool[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, " size"]:
    """The examples with the smallest marginal score, sum_i z_i X_ij, z the centred unit-norm probit accuracy.

    One pass over the matrix, no optimisation: each example by its own covariance with accuracy.

    Args:
        data: The examples and the models.
        models: Training models.
        size: Examples to choose; smaller choices are the starts of larger ones.
        eps: Clip of the accuracies.
        allowed: Which examples may be chosen. Default: all.

    Returns:
        Lowest score first, ties to the lower index.

    Raises:
        InputError: A size out of range, or in-distribution accuracies that are all equal.
    """
    scores = marginal_scores(data.matrix(models), data.id_accuracy[models], eps=eps)
    return _lowest(scores, size, _pool(data, allowed))


def distance_indices(
    data: CorrectnessData,
    size: int,
    mode: Literal["nearest", "centroid"] | str = "nearest",
    *,
    allowed: Bool[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, " size"]:
    """The examples furthest from the in-distribution ones, furthest first, ties to the lower index.

    As the in-distribution examples are fixed, choosing the furthest one after the other is sorting; smaller
    choices are the starts of larger ones.

    Args:
        data: With `embedding` and `id_embedding`.
        size: Examples to choose.
        mode: As `distance_scores`.
        allowed: Which examples may be chosen. Default: all.

    Raises:
        InputError: Data without embeddings, or as `distance_scores`.
    """
    return _lowest(-_rounded_distances(data, mode), size, _pool(data, allowed))


def _rounded_distances(data: CorrectnessData, mode: str) -> Float64[np.ndarray, " n"]:
    if data.embedding is None or data.id_embedding is None:
        raise InputError(
            "the data have no embeddings; give embedding= and id_embedding= to CorrectnessData.of for the "
            "distance baseline"
        )
    return distance_scores(data.embedding, data.id_embedding, mode).round(_EQUAL_DIGITS)


# ------------------------------------------------------------------------------------------------- table


def baseline_rows(
    problem: Problem,
    sizes: Sequence[int] | np.ndarray,
    *,
    kinds: Sequence[str] | None = None,
    part: str = "test",
    draws: int = DRAWS,
    mode: Literal["nearest", "centroid"] | str = "nearest",
    n_resamples: int = N_RESAMPLES,
    level: float = 0.95,
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
        n_resamples: Of the intervals over units.
        level: Their coverage.

    Returns:
        By kind, a row per size in the order of `sizes`; one row for `all`, whose size is the whole pool.

    Raises:
        InputError: An unknown kind, a size out of range, or `distance` without embeddings.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 2, Table A.3.
    """
    data, split, settings = problem.data, problem.split, problem.settings
    embedded = data.embedding is not None and data.id_embedding is not None
    if kinds is None:
        kinds = [kind for kind in KINDS if kind != "distance" or embedded]
    for kind in kinds:
        if kind not in KINDS:
            raise unknown_name("baseline", kind, KINDS)
    models, pool = split.part(part), _pool(data, settings.allowed)
    grid = [int(size) for size in sizes]
    for size in grid:
        _check_size(size, pool)
    units = data.unit_codes(interval_units(data, split))[models]
    matrix = data.matrix(models, layout=settings.layout, device=settings.device)

    def row(kind: str, examples: Int64[np.ndarray, " size"]) -> BaselineRow:
        size = len(examples)
        correlation = correlate(
            data.id_accuracy[models],
            matrix.count(examples) / size,
            units=units,
            size=size,
            eps=settings.eps,
            clip=settings.clip,
            n_resamples=n_resamples,
            level=level,
            seed=settings.seed,
        )
        return BaselineRow.of(kind, size, correlation)

    table: dict[str, tuple[BaselineRow, ...]] = {}
    for kind in kinds:
        if kind == "random":
            baselines = _random_baselines(data, models, grid, matrix, settings, draws)
            table[kind] = tuple(each.row for each in baselines)
        elif kind == "all":
            table[kind] = (row(kind, pool),)
        else:
            values = _ranking_values(problem, kind, mode)
            table[kind] = tuple(row(kind, each) for each in _lowest_of_each(values, grid, pool, settings))
    return table


def _ranking_values(problem: Problem, kind: str, mode: str) -> np.ndarray:
    """What the examples of a baseline are the lowest in, one number per example."""
    data, train = problem.data, problem.split.train
    if kind == "hard":
        return problem.train.column_sums()
    if kind == "marginal":
        return marginal_scores(problem.train, data.id_accuracy[train], eps=problem.settings.eps)
    return -_rounded_distances(data, mode)


def _lowest_of_each(
    values: np.ndarray, sizes: Sequence[int], pool: Int64[np.ndarray, " pool"], settings: Settings
) -> list[Int64[np.ndarray, " _"]]:
    """For each size the examples with the lowest values; strata keep their shares."""
    if settings.strata is not None:
        return [_by_quota(values, size, settings) for size in sizes]
    order = _lowest(values, max(sizes, default=1), pool)
    return [order[:size] for size in sizes]
