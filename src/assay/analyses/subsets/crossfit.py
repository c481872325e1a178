"""A cross-fit over units that no selection has seen: select without a fold of the models, test on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Float64, Int64, Real

from assay.analyses.subsets._arrays import Accuracies, Places, Units
from assay.analyses.subsets.consistency import consistency_within
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import MIN_MODELS, UnitSums, clip_of, probit
from assay.analyses.subsets.permutation import run_permutations
from assay.analyses.subsets.problem import Problem, Shelf, check_sizes, computed
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import ModelSplit, copies_note, folds
from assay.core.errors import InputError
from assay.core.record import Record


FOLDS = 5
MIN_FOLDS = 3  # test, validation, train
INTERVAL_LEVEL = 0.95
WORDS = {"family": "families", "group": "training runs", "model": "models"}
_CLIP = 0.999  # of |R_k| before atanh: a fold of few models can reach 1

_TOGETHER = 75  # runs of the solver side by side: three reruns of 25 sizes take 0.77 of their time one by one
_DENSE_ENTRIES = 4e8  # of all folds together: 1.6 GB of float32, beyond which folds are packed


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossFit(Record):
    """Selections of each size on all folds of the models but one, tested on that one.

    Attributes:
        sizes: Examples selected, k sizes.
        unit_kind: What is kept whole: `family`, `group` (training run) or `model`.
        n_units: How many of them.
        splits: Parts of the models of each of the K folds.
        fold_sizes: `[K]` models tested.
        fold_correlations: `[K, k]` R_k on the models of a fold; NaN where undefined.
        r: Per size, R_cf = tanh(sum (n_k - 3) atanh(R_k) / sum (n_k - 3)) over the defined folds.
        low: Per size, lower end of the jackknife over units, selections fixed; NaN where undefined.
        high: Its upper end.
        level: Two-sided coverage.
        spread: Per size, standard deviation of the R_k (ddof 1).
        consistency: Per size, mean J_norm of the pairs of the K selections; NaN where undefined.
        accuracy: `[k, M]` accuracy of every model on the subset selected without it; NaN in a fold without.
        selections: Per size, the K selections, most harmful example first; empty in a fold whose training or
            validation models do not differ in in-distribution accuracy.
    """

    sizes: tuple[int, ...]
    unit_kind: str
    n_units: int
    splits: tuple[ModelSplit, ...]
    fold_sizes: Int64[np.ndarray, " n_folds"]
    fold_correlations: Float64[np.ndarray, "n_folds k"]
    r: Float64[np.ndarray, " k"]
    low: Float64[np.ndarray, " k"]
    high: Float64[np.ndarray, " k"]
    level: float
    spread: Float64[np.ndarray, " k"]
    consistency: Float64[np.ndarray, " k"]
    accuracy: Float64[np.ndarray, "k m"]
    selections: tuple[tuple[Int64[np.ndarray, " _"], ...], ...]


def combine(
    correlations: Float64[np.ndarray, "*batch n_folds k"], n_models: Int64[np.ndarray, " n_folds"]
) -> Float64[np.ndarray, "*batch k"]:
    """R_cf = tanh(sum_k (n_k - 3) atanh(R_k) / sum_k (n_k - 3)), |R_k| at most 0.999.

    Args:
        correlations: R_k; an undefined fold (NaN) is left out.
        n_models: Models of each fold, at least 4.

    Returns:
        In (-1, 1); NaN where no fold is defined.

    Example:
        >>> combine(np.array([[-0.5], [-0.1]]), np.array([23, 13])).round(4).tolist()
        [-0.3796]
    """
    return np.asarray(np.tanh(_combined(correlations, n_models)))


def _combined(
    correlations: Float64[np.ndarray, "*batch n_folds k"], n_models: Real[np.ndarray, "*rows n_folds"]
) -> Float64[np.ndarray, "*batch k"]:
    """The weighted mean of atanh(R_k) over the defined folds; NaN without one."""
    weights = np.where(np.isnan(correlations), 0.0, (n_models - 3.0)[..., None])
    z = np.arctanh(np.clip(np.nan_to_num(correlations), -_CLIP, _CLIP))
    total = weights.sum(axis=-2)
    mean = np.full(total.shape, np.nan)
    np.divide((weights * z).sum(axis=-2), total, out=mean, where=total > 0)
    return mean


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldPlan:
    """Which units are kept whole, and the folds they fill.

    Attributes:
        splits: The folds; None where no three of them would hold enough models.
        units: Codes of the units.
        unit_kind: What they are.
        notes: What was done about too few of them.
    """

    splits: tuple[ModelSplit, ...] | None
    units: Int64[np.ndarray, " m"]
    unit_kind: str
    notes: tuple[str, ...]

    @property
    def n_units(self) -> int:
        """How many units there are."""
        return len(np.unique(self.units))


def plan_folds(data: CorrectnessData, k: int = FOLDS, *, seed: int = 0) -> FoldPlan:
    """Folds that keep families whole, else training runs, else models.

    With fewer units than folds, or folds of fewer than 4 models, there are fewer folds, at least 3. With
    fewer than 3 families training runs are kept whole where they are known, and nothing is supported. Copies
    of a model are one unit. `seed` deals the units.

    Raises:
        InputError: For fewer than 3 folds.
    """
    if k < MIN_FOLDS:
        raise InputError(f"folds is {k}; expected at least {MIN_FOLDS}: one each to test, validate and train")
    kind = data.unit_kind
    if kind == "family" and len(np.unique(data.units)) < MIN_FOLDS and data.groups is not None:
        kind = "group"
    units = data.unit_codes(kind)
    n_units = len(np.unique(units))
    copied = tuple(filter(None, [copies_note(data.copies)]))
    for wanted in range(min(k, n_units), MIN_FOLDS - 1, -1):
        try:
            splits = tuple(folds(units, wanted, seed=seed, copies=data.copies))
        except InputError:
            continue
        note = f"{wanted} folds instead of {k}, because there are only {n_units} {WORDS[kind]}"
        notes = (*copied, note) if wanted < k else copied
        return FoldPlan(splits=splits, units=units, unit_kind=kind, notes=notes)
    return FoldPlan(splits=None, units=units, unit_kind=kind, notes=copied)


class FoldRuns:
    """Selections on every fold, with matrices that are made once and shared by all reruns."""

    def __init__(
        self,
        data: CorrectnessData,
        splits: Sequence[ModelSplit],
        sizes: tuple[int, ...],
        settings: Settings,
        *,
        path: str = "independent",
    ) -> None:
        entries = len(splits) * data.n_models * data.n_examples
        if settings.layout == "auto" and settings.device in (None, "cpu") and entries > _DENSE_ENTRIES:
            settings = replace(settings, layout="packed")
        self.sizes, self.settings, self.path = sizes, settings, path
        self.problems = [Problem(data, split, settings) for split in splits]
        self.n_models = np.array([len(split.test) for split in splits], dtype=np.int64)

    @property
    def wave(self) -> int:
        """How many reruns go side by side: the same results as one by one, for fewer passes.

        27 of 99 reruns are the fewest that can support a subset, and waves of 1, 3 or 9 fill them.
        """
        if self.settings.solver != "swap":
            return 1
        # In one step each rerun solves all sizes, or one size: from scratch, and warm also from the last.
        each = {"independent": len(self.sizes), "warm": 2, "nested": 1}[self.path]
        return next(wave for wave in (9, 3, 1) if wave == 1 or wave * each <= _TOGETHER)

    def select(self, fold: int, accuracies: Sequence[Accuracies]) -> list[list[Places]]:
        """Per accuracies of the models, the selection of each size; empty where these do not differ."""
        problem = self.problems[fold]
        differing = [y for y in accuracies if not problem.constant_part(y)]
        solved = iter(problem.solve_paths(self.sizes, differing, path=self.path) if differing else ())
        empty = [np.empty(0, dtype=np.int64) for _ in self.sizes]
        return [
            empty if problem.constant_part(y) else [each.indices for each in next(solved)] for y in accuracies
        ]

    def test(self, fold: int, selections: Sequence[Places], id_accuracy: Accuracies) -> list[float]:
        """R_k of given selections on the models that a fold tests; NaN for an empty one."""
        problem = self.problems[fold]
        return [problem.correlation(each, id_accuracy) if len(each) else math.nan for each in selections]

    def rerun(self, fold: int, accuracies: Sequence[Accuracies]) -> list[list[float]]:
        """R_k per size under each of several vectors of accuracies."""
        selected = self.select(fold, accuracies)
        return [self.test(fold, each, y) for each, y in zip(selected, accuracies, strict=True)]


def cross_fit(
    data: CorrectnessData,
    sizes: int | Sequence[int] | np.ndarray,
    *,
    settings: Settings,
    k: int = FOLDS,
    y: Accuracies | None = None,
    level: float = INTERVAL_LEVEL,
) -> CrossFit:
    """Select without a fold of the models, test on it, for every fold: each model is tested once.

    Units (families, else training runs, else models; copies are one) are dealt to K folds. Fold j
    is tested, fold j + 1 validates, the others are selected on. A single split into disjoint parts often
    tests on two or three families, whose accidents no interval can cover.

    Args:
        data: Models by examples.
        sizes: Examples to select, one size or several.
        settings: Of the solver.
        k: Folds; fewer if there are too few units.
        y: In-distribution accuracies to use instead of the data's.
        level: Two-sided coverage of the interval.

    Returns:
        R_cf per size with what it is made of. The K selections differ; none of them is the one to hand on.

    Raises:
        InputError: If the units do not fill 3 folds of at least 4 models.

    Notes:
        The interval leaves out each unit in turn and holds the selections fixed: it is about these K subsets
        on further models. Nominal 95 % covered 93 to 99 % in a simulation with 8 to 40 dependent units, where
        the percentile bootstrap over units covered 79 to 96 % and Fisher's interval, which takes models as
        independent, 20 to 75 %.
    """
    checked = check_sizes([sizes] if isinstance(sizes, int | np.integer) else sizes, data.n_examples)
    plan = plan_folds(data, k, seed=settings.seed)
    if plan.splits is None:
        raise InputError(no_folds(plan))
    runs = FoldRuns(data, plan.splits, checked, settings)
    accuracies = data.id_accuracy if y is None else np.asarray(y, dtype=np.float64)
    return fit_folds(data, plan, runs, accuracies, level=level)


def no_folds(plan: FoldPlan) -> str:
    """Why there is no cross-fit."""
    return (
        f"{plan.n_units} {WORDS[plan.unit_kind]} of {len(plan.units)} models are too few for {MIN_FOLDS} "
        f"folds of at least {MIN_MODELS} models, copies counted once, so no test on unseen models is "
        "possible. Give models of more training runs or families"
    )


def fit_folds(
    data: CorrectnessData,
    plan: FoldPlan,
    runs: FoldRuns,
    y: Accuracies,
    *,
    level: float,
    shelf: Shelf = computed,
    workers: int = 1,
) -> CrossFit:
    """The cross-fit of one run of the folds under accuracies y; each fold is a part of the job."""
    assert plan.splits is not None
    settings, pool = runs.settings, runs.settings.pool(data.n_examples)

    def select(fold: int) -> list[Places]:
        kept = shelf(f"fold {fold}", lambda: [each.tolist() for each in runs.select(fold, [y])[0]])
        return [np.array(each, dtype=np.int64) for each in kept]

    by_fold = run_permutations(select, len(plan.splits), workers=workers)
    fold_of = np.empty(data.n_models, dtype=np.int64)
    for fold, split in enumerate(plan.splits):
        fold_of[split.test] = fold
    accuracy = np.full((len(runs.sizes), data.n_models), np.nan)
    low, high, consistency = np.full((3, len(runs.sizes)), np.nan)
    selections = tuple(zip(*by_fold, strict=True))
    for row, (size, of_size) in enumerate(zip(runs.sizes, selections, strict=True)):
        for problem, examples in zip(runs.problems, of_size, strict=True):
            if len(examples):
                accuracy[row, problem.split.test] = problem.accuracy(examples)
        known = np.isfinite(accuracy[row])
        if known.any():
            clip = clip_of(settings.clip, size, settings.eps)
            x, t = probit(y[known], eps=settings.eps), probit(accuracy[row, known], eps=clip)
            low[row], high[row] = unit_jackknife(x, t, plan.units[known], fold_of[known], level=level)
            consistency[row] = consistency_within([each for each in of_size if len(each)], pool).mean
    correlations = np.array([runs.test(fold, each, y) for fold, each in enumerate(by_fold)])
    return CrossFit(
        sizes=runs.sizes,
        unit_kind=plan.unit_kind,
        n_units=plan.n_units,
        splits=plan.splits,
        fold_sizes=runs.n_models,
        fold_correlations=correlations,
        r=combine(correlations, runs.n_models),
        low=low,
        high=high,
        level=level,
        spread=correlations.std(axis=0, ddof=1),
        consistency=consistency,
        accuracy=accuracy,
        selections=selections,
    )


def unit_jackknife(
    x: Accuracies, t: Accuracies, units: Units, fold_of: Units, *, level: float = INTERVAL_LEVEL
) -> tuple[float, float]:
    """Interval of R_cf from leaving out each unit in turn, selections fixed.

    z -+ q sqrt((U - 1) / U sum_u (z_u - mean z)^2) back through tanh, z_u the combined atanh without unit u
    and q Student's quantile with U - 1 degrees of freedom.

    Args:
        x: Probit in-distribution accuracies.
        t: Probit accuracies on the subset that was selected without the model's fold.
        units: Unit of each model.
        fold_of: Fold of each model; a unit lies in one.
        level: Two-sided coverage.

    Returns:
        Both ends; NaN with fewer than 3 units, or where R_cf is undefined.

    References:
        Efron and Stein (1981), doi:10.1214/aos/1176345462.
    """
    names, first = np.unique(units, return_index=True)
    n_units = len(names)
    if n_units < 3:
        return math.nan, math.nan
    sums, home = UnitSums(x, t, units), fold_of[first]
    weights = np.concatenate([np.ones((1, n_units)), 1.0 - np.eye(n_units)])  # all units, then all but each
    folds = [home == fold for fold in np.unique(home)]
    each = [sums.correlations(weights[:, inside], inside, at_least=MIN_MODELS) for inside in folds]
    n, r = (np.stack(column, axis=-1) for column in zip(*each, strict=True))
    z, *others = _combined(r[..., None], n)[:, 0]
    spread = math.sqrt((n_units - 1) / n_units * float(np.sum((np.array(others) - np.mean(others)) ** 2)))
    margin = float(scipy.special.stdtrit(n_units - 1, (1 + level) / 2)) * spread
    return math.tanh(z - margin), math.tanh(z + margin)
