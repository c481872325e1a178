"""Does a subset come back: example by example on other models, or selected on halves of the models?"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Accuracies
from assay.analyses.subsets.consistency import consistency_within
from assay.analyses.subsets.layouts import AnswerTable
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.permutation import Exchange, Kind, n_workers, run_permutations
from assay.analyses.subsets.problem import Problem, Progress, Shelf, computed
from assay.analyses.subsets.splits import halves
from assay.core.errors import check_fraction, check_least
from assay.core.record import Record
from assay.stats import benjamini_hochberg


LEVEL = 0.05
N_HALVES_NULL = 19
N_BINS = 40
_TOGETHER = 10  # selections side by side, which make one part of a job
_LEAST_DF = 1.0
_ENTRIES = 1 << 21  # of the matrix worked on at a time


# ------------------------------------------------------------------------------------ example by example


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleReplication(Record):
    """Each example by itself on the test models: is a right answer rarer among better models?

    Attributes:
        r: Correlation over test models of being right with probit(y), of each selected example in rank order;
            NaN where all models agree.
        degrees_of_freedom: n_eff - 2 of the test of each; NaN where it is undefined.
        n_models: Test models.
        share_negative: Share of the subset with r < 0, of those that vary.
        share_discovered: Share of the subset with Benjamini-Hochberg q <= 0.05; constant examples have p = 1.
        pool_share_negative: The same of the unselected examples.
        pool_share_discovered: The same of the unselected examples, corrected among themselves.
        n_constant: Selected examples on which all test models agree.
        edges: `[41]` ends of the bins of r.
        counts: Selected examples per bin.
        pool_counts: Unselected examples per bin.
        level: Of the false discovery rate.
    """

    r: Float64[np.ndarray, " size"]
    degrees_of_freedom: float
    n_models: int
    share_negative: float
    share_discovered: float
    pool_share_negative: float
    pool_share_discovered: float
    n_constant: int
    edges: Float64[np.ndarray, " n_edges"]
    counts: Int64[np.ndarray, " n_bins"]
    pool_counts: Int64[np.ndarray, " n_bins"]
    level: float = LEVEL

    @property
    def p_values(self) -> Float64[np.ndarray, " size"]:
        """One-sided t p-value of each selected example; 1 where all models agree."""
        return slope_p_values(self.r, self.degrees_of_freedom)


def replicate_examples(selection: SelectedExamples, *, level: float = LEVEL) -> ExampleReplication:
    """Test every selected example, and every other one, on the models that took no part in selecting.

    r_j = correlation over test models of X_j with probit(y); one-sided t test of r_j < 0 with n_eff - 2
    degrees of freedom, n_eff the independent models that would spread as much as the cluster bootstrap of the
    test R; Benjamini-Hochberg among the selected and among the others.

    Args:
        selection: With its data.
        level: Of the false discovery rate, in (0, 1).

    Returns:
        Shares in [0, 1]; those discovered NaN where n_eff is undefined, those negative NaN where no example
        varies.

    Raises:
        InputError: For a selection loaded without data, or a level outside (0, 1).

    Notes:
        In simulations the share discovered was .7 to .9 in strong planted sets, and 0 where no example had a
        negative slope. n_eff is at most the number of models: resampling can only say that they are fewer.
    """
    check_fraction(level=level)
    data = selection.require_data("replication of examples")
    models = selection.split.test
    r = example_correlations(selection.problem.test, data.id_accuracy[models], eps=selection.settings.eps)
    n_eff = selection.correlation["test"].n_eff
    df = max(_LEAST_DF, min(n_eff, float(len(models))) - 2) if not math.isnan(n_eff) else math.nan
    edges = np.linspace(-1.0, 1.0, N_BINS + 1)
    inside, outside = r[selection.indices], r[np.setdiff1d(selection.pool, selection.indices)]
    counts = [np.histogram(side[np.isfinite(side)], edges)[0].astype(np.int64) for side in (inside, outside)]
    return ExampleReplication(
        r=inside,
        degrees_of_freedom=df,
        n_models=len(models),
        share_negative=_share_negative(inside),
        share_discovered=_share_discovered(inside, df, level),
        pool_share_negative=_share_negative(outside),
        pool_share_discovered=_share_discovered(outside, df, level),
        n_constant=int(np.isnan(inside).sum()),
        edges=edges,
        counts=counts[0],
        pool_counts=counts[1],
        level=level,
    )


def example_correlations(
    matrix: AnswerTable, id_accuracy: Accuracies, *, eps: float | int = 1e-6
) -> Float64[np.ndarray, " n"]:
    """Pearson correlation over models of being right on an example with probit(y), for every example.

    Args:
        matrix: Models by examples, in any layout; read in chunks of columns.
        id_accuracy: Of the same models.
        eps: Clip of the accuracies.

    Returns:
        In [-1, 1]; NaN where all models agree, and everywhere where all have one in-distribution accuracy.
    """
    z = probit(id_accuracy, eps=eps)
    z = z - z.mean()
    length = math.sqrt(float(z @ z))
    r = np.full(matrix.n_examples, np.nan)
    if length * length < 1e-18:
        return r
    m = matrix.n_models
    width = max(1, _ENTRIES // max(m, 1))
    for start in range(0, matrix.n_examples, width):
        block = r[start : start + width]
        x = matrix.dense(np.arange(start, start + len(block))).astype(np.float64)
        count = x.sum(axis=0)
        spread = np.sqrt(count * (m - count) / m)
        np.divide(z @ x, spread * length, out=block, where=spread > 0)
        np.clip(block, -1.0, 1.0, out=block)
    return r


def slope_p_values(r: Float64[np.ndarray, " n"], df: float | int) -> Float64[np.ndarray, " n"]:
    """One-sided p of a correlation below 0: P(T <= r sqrt(df / (1 - r^2))), T Student's with df degrees.

    Args:
        r: Correlations; NaN (no variation) gives 1.
        df: Degrees of freedom; NaN gives NaN.
    """
    if math.isnan(df):
        return np.full(len(r), np.nan)
    with np.errstate(divide="ignore"):
        t = np.where(np.isnan(r), 0.0, r) * np.sqrt(df / (1 - np.nan_to_num(r) ** 2))
    return np.where(np.isnan(r), 1.0, scipy.special.stdtr(df, t))


def _share_negative(r: Float64[np.ndarray, " n"]) -> float:
    varying = r[np.isfinite(r)]
    return float(np.mean(varying < 0)) if len(varying) else math.nan


def _share_discovered(r: Float64[np.ndarray, " n"], df: float, level: float) -> float:
    if math.isnan(df) or len(r) == 0:
        return math.nan
    return float(np.mean(benjamini_hochberg(slope_p_values(r, df)) <= level))


# ---------------------------------------------------------------------------------- halves of the models


@dataclass(frozen=True, kw_only=True, eq=False)
class HalfReplication(Record):
    """Two selections from halves of the training models that share no unit.

    Attributes:
        normalised: J_norm of the two: 1 the same set, 0 as alike as two random draws; NaN where undefined.
        jaccard: |A and B| / |A or B|.
        null: J_norm of two such selections under permuted in-distribution accuracies.
        p_value: (1 + number of null values at least as high) / (B + 1); NaN where `normalised` is.
        n_models: Models of the two halves.
        n_units: Their units.
        kind: What was permuted: `group` (units) or `free` (models).
    """

    normalised: float
    jaccard: float
    null: tuple[float, ...]
    p_value: float
    n_models: tuple[int, int]
    n_units: tuple[int, int]
    kind: str


def replicate_halves(
    selection: SelectedExamples,
    *,
    n_permutations: int = N_HALVES_NULL,
    kind: Kind | None = None,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    shelf: Shelf = computed,
) -> HalfReplication:
    """Select twice, on disjoint halves of the training units, and compare the two sets with each other.

    Both are stopped by the same validation models, which alone makes them alike: the number means something
    only beside the same number under permuted in-distribution accuracies.

    Args:
        selection: With its data; its size, settings and split are used.
        n_permutations: Permutations behind the null, at least 1.
        kind: `group` permutes units, `free` models; see `permute_accuracy`. Default: `group` where training
            runs or families are known.
        seed: Root seed. Default: that of the selection.
        workers: Threads. Default: one per core. The result does not depend on it.
        progress: Called with stage, parts done and their number.
        shelf: Of an interrupted run, by name: the selections of each half.

    Raises:
        InputError: For a selection without data, or if a half would hold fewer than 4 models.

    Notes:
        Overlap over sizes of one path is not evidence; overlap over models is, and this is the variant that
        tells them apart. Two selections per permutation.
    """
    check_least(1, n_permutations=n_permutations)
    data, settings = selection.require_data("replication on halves"), selection.settings
    seed = settings.seed if seed is None else seed
    parts = halves(selection.split.train, data.units, seed=seed)
    problems = [Problem(data, replace(selection.split, train=half), settings) for half in parts]
    exchange = Exchange.of(data, kind)

    drawn = [exchange.draw(data.id_accuracy, seed, place) for place in range(n_permutations)]
    accuracies = [data.id_accuracy, *drawn]

    def select(place: int) -> list[list[int]]:
        half, first = place % 2, place // 2 * _TOGETHER
        some = accuracies[first : first + _TOGETHER]

        def compute() -> list[list[int]]:
            return [found.indices.tolist() for (found,) in problems[half].solve_paths([selection.size], some)]

        kept: list[list[int]] = shelf(f"half {half}, accuracies {first} to {first + len(some) - 1}", compute)
        return kept

    parts_done = run_permutations(
        select,
        2 * math.ceil(len(accuracies) / _TOGETHER),
        workers=n_workers(workers, settings),
        progress=progress,
        stage="halves under permuted accuracies",
    )
    overlaps = [
        consistency_within([np.array(each, dtype=np.int64) for each in pair], selection.pool)
        for first, second in zip(parts_done[::2], parts_done[1::2], strict=True)
        for pair in zip(first, second, strict=True)
    ]
    normalised, *null = [float(each.normalised[0, 1]) for each in overlaps]
    jaccard = float(overlaps[0].jaccard[0, 1])
    # An undefined overlap is not evidence against chance.
    n_reached = sum(math.isnan(each) or each >= normalised for each in null)
    return HalfReplication(
        normalised=normalised,
        jaccard=jaccard,
        null=tuple(null),
        p_value=math.nan if math.isnan(normalised) else (1 + n_reached) / (1 + n_permutations),
        n_models=(len(parts[0]), len(parts[1])),
        n_units=(len(np.unique(data.units[parts[0]])), len(np.unique(data.units[parts[1]]))),
        kind=exchange.kind,
    )
