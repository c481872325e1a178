"""Is the subset real? A cross-fit over units that no selection has seen, and the verdict that rests on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64
from scipy import special

from assay.analyses.subsets.consistency import consistency_within
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import AOTIL, MIN_MODELS, RELIABLE_UNITS, clip_of, probit
from assay.analyses.subsets.permutation import (
    N_PERMUTATIONS,
    Exchange,
    Parts,
    Progress,
    Sizes,
    checked_sizes,
    n_workers,
    permutation_p,
    reached,
    run_permutations,
)
from assay.analyses.subsets.selection import Settings, Subset
from assay.analyses.subsets.splits import ModelSplit, folds, unit_codes
from assay.core.errors import InputError
from assay.core.record import Record


LEVEL = 0.05
FOLDS = 5
MIN_FOLDS = 3  # test, validation, train
INTERVAL_LEVEL = 0.95
BATCH = 10  # reruns between two looks at whether the verdict is settled
_CLIP = 0.999  # of |R_k| before atanh: a fold of few models can reach 1
_CONSTANT = 1e-12  # of a fold's sum of squares, relative to that of all models
_DENSE_ENTRIES = 4e8  # of all folds together: 1.6 GB of float32, beyond which folds are packed
_WORDS = {"family": "families", "group": "training runs", "model": "models"}
UNKNOWN_UNITS = (
    "which models share a training run or a family was not given, so nobody knows whether the models tested "
    "are independent of those selected on: give groups= or families=, or groups=range(M) if every model is "
    "an independent run"
)


# ---------------------------------------------------------------------------------------- cross-fitting


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
    weights = np.where(np.isnan(correlations), 0.0, (n_models - 3.0)[:, None])
    z = np.arctanh(np.clip(np.nan_to_num(correlations), -_CLIP, _CLIP))
    total = weights.sum(axis=-2)
    found = np.full(total.shape, np.nan)
    np.divide((weights * z).sum(axis=-2), total, out=found, where=total > 0)
    return np.tanh(found)


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


def plan_folds(data: CorrectnessData, k: int = FOLDS) -> FoldPlan:
    """Folds that keep families whole, else training runs, else models.

    With fewer units than folds, or folds of fewer than 4 models, there are fewer folds, at least 3. With
    fewer than 3 families training runs are kept whole where they are known, and nothing is supported.

    Raises:
        InputError: For fewer than 3 folds.
    """
    if k < MIN_FOLDS:
        raise InputError(
            f"folds is {k}; at least {MIN_FOLDS} are needed: one each to test, validate and train"
        )
    units, kind, notes = data.units, data.unit_kind, []
    n_units = len(np.unique(units))
    if kind == "family" and n_units < MIN_FOLDS and data.groups is not None:
        units, kind = unit_codes(data.groups), "group"
        n_units = len(np.unique(units))
    for wanted in range(min(k, n_units), MIN_FOLDS - 1, -1):
        held = _fold_sizes(units, wanted)
        if held.min() >= MIN_MODELS:
            if wanted < k:
                notes.append(f"{wanted} folds instead of {k}: {n_units} {_WORDS[kind]} fill no more")
            return FoldPlan(
                splits=tuple(folds(units, wanted)), units=units, unit_kind=kind, notes=tuple(notes)
            )
    return FoldPlan(splits=None, units=units, unit_kind=kind, notes=tuple(notes))


def _fold_sizes(units: Int64[np.ndarray, " m"], k: int) -> Int64[np.ndarray, " k"]:
    """Models per fold when the largest unit goes to the smallest fold, as `folds` does it."""
    held = np.zeros(k, dtype=np.int64)
    for count in np.sort(np.unique(units, return_counts=True)[1])[::-1]:
        held[np.argmin(held)] += count
    return held


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
        self.parts = [Parts.of(data, split, settings) for split in splits]
        self.n_models = np.array([len(split.test) for split in splits], dtype=np.int64)

    def select(self, id_accuracy: Float64[np.ndarray, " m"]) -> list[list[Int64[np.ndarray, " _"]]]:
        """The selection of each size (outer) on each fold (inner)."""
        by_fold = [self._select_on(parts, id_accuracy) for parts in self.parts]
        return [list(of_size) for of_size in zip(*by_fold, strict=True)]

    def _select_on(
        self, parts: Parts, id_accuracy: Float64[np.ndarray, " m"]
    ) -> list[Int64[np.ndarray, " _"]]:
        """The selection of each size on one fold; empty where its accuracies leave nothing to select by."""
        sides = (id_accuracy[parts.split.train], id_accuracy[parts.split.validation])
        if any(np.ptp(probit(side, eps=self.settings.eps)) == 0 for side in sides):
            return [np.empty(0, dtype=np.int64) for _ in self.sizes]
        found = parts.problem.solve_path(self.sizes, path=self.path, id_accuracy=id_accuracy)
        return [each.indices for each in found]

    def correlations(
        self,
        selections: Sequence[Sequence[Int64[np.ndarray, " _"]]],
        id_accuracy: Float64[np.ndarray, " m"],
    ) -> Float64[np.ndarray, "n_folds k"]:
        """R_k of given selections on the models tested."""
        found = [
            [
                parts.correlation(examples, id_accuracy) if len(examples) else math.nan
                for parts, examples in zip(self.parts, of_size, strict=True)
            ]
            for of_size in selections
        ]
        return np.array(found, dtype=np.float64).T

    def rerun(self, id_accuracy: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " k"]:
        """R_cf per size under other accuracies."""
        return combine(self.correlations(self.select(id_accuracy), id_accuracy), self.n_models)


def cross_fit(
    data: CorrectnessData,
    sizes: int | Sizes,
    *,
    settings: Settings,
    k: int = FOLDS,
    y: Float64[np.ndarray, " m"] | None = None,
    level: float = INTERVAL_LEVEL,
) -> CrossFit:
    """Select without a fold of the models, test on it, for every fold: each model is tested once.

    Units (families, else training runs, else models) go to K folds, the largest to the smallest fold. Fold j
    is tested, fold j + 1 validates, the others are selected on. A single split into disjoint parts often
    tests on two or three families, whose accidents no interval can cover.

    Args:
        data: Models by examples.
        sizes: Examples to select, one size or several.
        settings: Of the solver.
        k: Folds; fewer where the units fill no more.
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
    sizes = checked_sizes(sizes, data.n_examples)
    plan = plan_folds(data, k)
    if plan.splits is None:
        raise InputError(no_folds(plan))
    runs = FoldRuns(data, plan.splits, sizes, settings)
    accuracies = data.id_accuracy if y is None else np.asarray(y, dtype=np.float64)
    return _fitted(data, plan, runs, accuracies, level=level)


def no_folds(plan: FoldPlan) -> str:
    """Why there is no cross-fit."""
    return (
        f"{plan.n_units} {_WORDS[plan.unit_kind]} of {len(plan.units)} models do not fill {MIN_FOLDS} folds "
        f"of at least {MIN_MODELS} models: nothing can be tested on models that no selection has seen; give "
        "models of more training runs or families"
    )


def _fitted(
    data: CorrectnessData,
    plan: FoldPlan,
    runs: FoldRuns,
    y: Float64[np.ndarray, " m"],
    *,
    level: float,
) -> CrossFit:
    assert plan.splits is not None
    selections = run_permutations(lambda _: runs.select(y), 1)[0]
    each = runs.correlations(selections, y)
    accuracy = np.full((len(runs.sizes), data.n_models), np.nan)
    for row, of_size in enumerate(selections):
        for parts, examples in zip(runs.parts, of_size, strict=True):
            if len(examples):
                accuracy[row, parts.split.test] = parts.accuracy(examples)
    fold_of = np.empty(data.n_models, dtype=np.int64)
    for fold, split in enumerate(plan.splits):
        fold_of[split.test] = fold
    ends = np.array(
        [
            unit_jackknife(
                probit(y[known], eps=runs.settings.eps),
                probit(row[known], eps=clip_of(runs.settings.clip, size, runs.settings.eps)),
                plan.units[known],
                fold_of[known],
                level=level,
            )
            for row, size in zip(accuracy, runs.sizes, strict=True)
            for known in [np.isfinite(row)]
        ]
    ).T
    several = len(plan.splits) > 1
    defined = np.isfinite(each).all(axis=0)
    spread = np.full(len(runs.sizes), np.nan)
    if several and defined.any():
        spread[defined] = each[:, defined].std(axis=0, ddof=1)
    return CrossFit(
        sizes=runs.sizes,
        unit_kind=plan.unit_kind,
        n_units=plan.n_units,
        splits=plan.splits,
        fold_sizes=runs.n_models,
        fold_correlations=each,
        r=combine(each, runs.n_models),
        low=ends[0],
        high=ends[1],
        level=level,
        spread=spread,
        consistency=np.array(
            [
                consistency_within(
                    [each for each in of_size if len(each)], runs.settings.pool(data.n_examples)
                ).mean
                if any(map(len, of_size))
                else math.nan
                for of_size in selections
            ],
            dtype=np.float64,
        ),
        accuracy=accuracy,
        selections=tuple(tuple(of_size) for of_size in selections),
    )


def unit_jackknife(
    x: Float64[np.ndarray, " m"],
    t: Float64[np.ndarray, " m"],
    units: Int64[np.ndarray, " m"],
    fold_of: Int64[np.ndarray, " m"],
    *,
    level: float = INTERVAL_LEVEL,
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
    names, place = np.unique(units, return_inverse=True)
    n_units, n_folds = len(names), int(fold_of.max()) + 1
    if n_units < 3:
        return math.nan, math.nan
    x, t = x - x.mean(), t - t.mean()
    each = (np.ones_like(x), x, t, x * x, t * t, x * t)
    sums = np.stack([np.bincount(place, weights=values, minlength=n_units) for values in each])
    home = np.zeros(n_units, dtype=np.int64)
    home[place] = fold_of
    # First all units, then all but each.
    kept = np.concatenate([np.ones((1, n_units)), 1.0 - np.eye(n_units)])
    weighted, total = np.zeros(len(kept)), np.zeros(len(kept))
    for fold in range(n_folds):
        inside = home == fold
        n, sx, st, sxx, stt, sxt = sums[:, inside] @ kept[:, inside].T
        count = np.maximum(n, 1)
        vx, vt, vxt = sxx - sx * sx / count, stt - st * st / count, sxt - sx * st / count
        sound = (n >= MIN_MODELS) & (vx > _CONSTANT * (x @ x)) & (vt > max(_CONSTANT * (t @ t), 1e-18))
        r = np.where(sound, vxt / np.sqrt(np.where(sound, vx * vt, 1.0)), 0.0)
        weight = np.where(sound, n - 3, 0.0)
        weighted += weight * np.arctanh(np.clip(r, -_CLIP, _CLIP))
        total += weight
    if not (total > 0).all():
        return math.nan, math.nan
    z, *without = weighted / total
    spread = math.sqrt((n_units - 1) / n_units * float(np.sum((np.array(without) - np.mean(without)) ** 2)))
    margin = float(special.stdtrit(n_units - 1, (1 + level) / 2)) * spread
    return math.tanh(z - margin), math.tanh(z + margin)


# -------------------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetVerdict(Record):
    """Whether accuracy on a subset falls with in-distribution accuracy on models that no selection has seen.

    Attributes:
        status: `supported`, or `inconclusive` with the reasons. There is no status for the contrary: a
            selection that fails to show a subset does not show that there is none.
        aotil: Supported, and R_cf is at most -0.3.
        r: R_cf, the cross-fitted correlation; NaN where undefined.
        low: Lower end of its jackknife over units.
        high: Upper end.
        level: Two-sided coverage.
        p_value: Permutation p of R_cf, corrected for all sizes tried; NaN where undefined.
        p_unadjusted: For this size alone.
        size: Examples of the subset.
        sizes: All sizes tried.
        n_permutations: Reruns behind the p-value: fewer than asked for once it could no longer get to 0.05.
        kind: What was permuted: `group` (units) or `free` (models).
        unit_kind: What the folds keep whole: `family`, `group` (training run) or `model`.
        n_units: How many of them.
        fold_correlations: R_k.
        fold_sizes: Models of each fold.
        spread: Standard deviation of the R_k; NaN where one is undefined.
        mean_consistency: Mean J_norm of the pairs of the K selections; no evidence by itself.
        null: Lowest R_cf over the sizes of each rerun; NaN where undefined.
        reasons: Why it is inconclusive, in words; empty where it is supported.
        notes: What else to know.
    """

    status: str
    aotil: bool
    r: float
    low: float
    high: float
    level: float
    p_value: float
    p_unadjusted: float
    size: int
    sizes: tuple[int, ...]
    n_permutations: int
    kind: str
    unit_kind: str
    n_units: int
    fold_correlations: tuple[float, ...]
    fold_sizes: tuple[int, ...]
    spread: float
    mean_consistency: float
    null: tuple[float, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def supported(self) -> bool:
        """Whether the status is `supported`."""
        return self.status == "supported"


def judge_sizes(
    data: CorrectnessData,
    selections: Sequence[Subset],
    *,
    path: str = "independent",
    n_permutations: int = N_PERMUTATIONS,
    folds: int = FOLDS,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    stop_early: bool = True,
    batch: int = BATCH,
) -> tuple[SubsetVerdict, ...]:
    """A verdict for each selection of a sweep over sizes, corrected for the sweep.

    Supported iff the units of the selection's own split are disjoint between its parts, R_cf < 0 with
    adjusted p <= 0.05, and, where that split tests on 8 or more units, the upper end of the cluster bootstrap
    of its test R is below 0. `aotil` iff also R_cf <= -0.3.

    Args:
        data: Models by examples.
        selections: All sizes that were looked at, selected on the same data with the same settings.
        path: How one size led to the next (`Problem.solve_path`); the reruns go the same way.
        n_permutations: Reruns of the whole cross-fit; below 19 no p can reach 0.05.
        folds: Folds of the models; fewer where the units fill no more.
        seed: Root seed. Default: that of the selections.
        workers: Threads, which share the matrices. Default: one per core. The result does not depend on it.
        progress: Called with stage, reruns done and their number.
        stop_early: End the permutations once so many have reached every R_cf that none can be supported any
            more. The status is the same as without; p rests on fewer reruns.
        batch: Reruns between two looks at that.

    Raises:
        InputError: For no selection, selections with different settings, or no permutation.

    Notes:
        A rerun costs one selection per fold and size, on a warm path two. Units of the folds are families,
        else training runs, else models; of the main split training runs, or families where only these are
        known.

    References:
        The paper has no such test. Phipson and Smyth (2010), doi:10.2202/1544-6115.1585 (p-values);
        Westfall and Young (1993) (the minimum over sizes).
    """
    if not selections:
        raise InputError("no selection to judge; give at least one")
    if n_permutations < 1:
        raise InputError(
            f"n_permutations is {n_permutations}; at least 1 is needed, {N_PERMUTATIONS} by default"
        )
    settings = selections[0].settings
    seed = settings.seed if seed is None else seed
    record = settings.record()
    for other in selections[1:]:
        if other.settings.record() != record:
            raise InputError(
                f"selections of size {selections[0].size} and {other.size} were made with different "
                "settings; judge them apart"
            )
    sizes = checked_sizes([each.size for each in selections], data.n_examples)
    plan = plan_folds(data, folds)
    if plan.splits is None:
        return tuple(
            untested(data, each, plan, sizes, (*_unit_reasons(data, each), no_folds(plan)))
            for each in selections
        )
    runs = FoldRuns(data, plan.splits, sizes, settings, path=path)
    y = data.id_accuracy
    fit = _fitted(data, plan, runs, y, level=INTERVAL_LEVEL)
    exchange = Exchange.of(data)

    def settled(found: Sequence[Float64[np.ndarray, " k"]]) -> bool:
        # Once (1 + count) / (B + 1) exceeds the level, no further rerun can bring it back.
        count = np.where(fit.r < 0, reached(fit.r, np.stack(found))[1], n_permutations)
        return bool((1 + count > LEVEL * (n_permutations + 1)).all())

    drawn = run_permutations(
        lambda place: runs.rerun(exchange.draw(y, seed, place)),
        n_permutations,
        workers=n_workers(workers, settings),
        progress=progress,
        settled=settled if stop_early else None,
        batch=batch,
    )
    null = np.stack(drawn)
    p_unadjusted, p_adjusted = permutation_p(fit.r, null)
    counts = reached(fit.r, null)[1]
    defined = np.isfinite(null).any(axis=1)
    lowest = np.full(len(null), np.nan)
    lowest[defined] = np.nanmin(null[defined], axis=1)
    found = []
    for column, selection in enumerate(selections):
        verdict = SubsetVerdict(
            status="inconclusive",
            aotil=False,
            r=float(fit.r[column]),
            low=float(fit.low[column]),
            high=float(fit.high[column]),
            level=fit.level,
            p_value=float(p_adjusted[column]),
            p_unadjusted=float(p_unadjusted[column]),
            size=selection.size,
            sizes=sizes,
            n_permutations=len(null),
            kind=exchange.kind,
            unit_kind=fit.unit_kind,
            n_units=fit.n_units,
            fold_correlations=tuple(fit.fold_correlations[:, column].tolist()),
            fold_sizes=tuple(fit.fold_sizes.tolist()),
            spread=float(fit.spread[column]),
            mean_consistency=float(fit.consistency[column]),
            null=tuple(lowest.tolist()),
            reasons=(),
            notes=(),
        )
        reasons = _reasons(data, selection, verdict, int(counts[column]), n_permutations)
        supported = not reasons
        found.append(
            replace(
                verdict,
                status="supported" if supported else "inconclusive",
                aotil=supported and verdict.r <= AOTIL,
                reasons=reasons,
                notes=plan.notes + _notes(selection, verdict, n_permutations),
            )
        )
    return tuple(found)


def untested(
    data: CorrectnessData,
    selection: Subset,
    plan: FoldPlan,
    sizes: tuple[int, ...],
    reasons: tuple[str, ...],
) -> SubsetVerdict:
    """The verdict where no cross-fit is possible or none was asked for."""
    nan = math.nan
    return SubsetVerdict(
        status="inconclusive",
        aotil=False,
        r=nan,
        low=nan,
        high=nan,
        level=INTERVAL_LEVEL,
        p_value=nan,
        p_unadjusted=nan,
        size=selection.size,
        sizes=sizes,
        n_permutations=0,
        kind=Exchange.of(data).kind,
        unit_kind=plan.unit_kind,
        n_units=plan.n_units,
        fold_correlations=(),
        fold_sizes=(),
        spread=nan,
        mean_consistency=nan,
        null=(),
        reasons=reasons,
        notes=plan.notes,
    )


def _unit_reasons(data: CorrectnessData, selection: Subset) -> list[str]:
    """Whether units are disjoint between the parts of the main split, and families enough for folds."""
    if data.families is not None and len(set(data.families)) < MIN_FOLDS:
        return [
            f"the models are of {len(set(data.families))} families: no {MIN_FOLDS} folds keep families "
            "apart, and an accident of a family would pass for a finding; models of more families are needed"
        ]
    names, word = (data.groups, "training runs") if data.groups is not None else (data.families, "families")
    if names is None:
        return [UNKNOWN_UNITS]
    across = selection.split.straddling(unit_codes(names))
    if across == 0:
        return []
    fix = "group" if data.groups is not None else "family"
    return [
        f"{across} of {len(set(names))} {word} have models in more than one part of the split "
        f"({selection.split.kind}), so the models tested are not new: select with split={fix!r}"
    ]


def _reasons(
    data: CorrectnessData, selection: Subset, verdict: SubsetVerdict, count: int, asked: int
) -> tuple[str, ...]:
    """What speaks against support, in plain words: what failed, by how much, and what to do."""
    found = _unit_reasons(data, selection)
    units = _WORDS[verdict.unit_kind]
    if math.isnan(verdict.r):
        found.append(
            "the cross-fitted correlation is undefined: in no fold do the accuracies on the subset vary "
            "over the models; try a larger size"
        )
    elif verdict.r >= 0:
        found.append(
            f"the cross-fitted correlation is {verdict.r:+.2f}, not below 0: on {units} that took no part in "
            "the selection, accuracy on the subset does not fall with in-distribution accuracy; a smaller "
            "size may hold such examples, or there are none"
        )
    if not math.isnan(verdict.p_value) and verdict.p_value > LEVEL:
        if LEVEL * (asked + 1) < 1:
            found.append(
                f"p = {verdict.p_value:.3g} and {asked} permutations cannot give less than "
                f"{1 / (asked + 1):.3g}: ask for at least {math.ceil(1 / LEVEL) - 1}"
            )
        else:
            several = len(verdict.sizes) > 1
            swept = (
                f", corrected for {len(verdict.sizes)} sizes ({verdict.p_unadjusted:.3g} for this one alone)"
                if several
                else ""
            )
            more = "independent runs" if verdict.unit_kind == "model" else units
            early = verdict.n_permutations < asked
            ended = f" (stopped there, of {asked}: {LEVEL} was out of reach)" if early else ""
            advice = f"; models of more {more}{', or fewer sizes,' if several else ''} would sharpen the test"
            found.append(
                f"p = {verdict.p_value:.3g}{swept}, above {LEVEL}: {count} of {verdict.n_permutations} "
                f"selections{ended} made under permuted in-distribution accuracies came out as low"
                f"{advice if verdict.r < 0 else ''}"
            )
    test = selection.correlation["test"]
    if test.n_units >= RELIABLE_UNITS and not test.high < 0:
        found.append(
            f"the interval of R on the {test.n} test models, over {test.n_units} units, reaches up to "
            f"{test.high:+.2f}: this very subset may not be on an inverse line; test it on further models"
            if not math.isnan(test.high)
            else f"R of this subset on the {test.n} test models is undefined: try a larger size"
        )
    return tuple(found)


def _notes(selection: Subset, verdict: SubsetVerdict, asked: int) -> tuple[str, ...]:
    found = []
    undefined = sum(map(math.isnan, verdict.fold_correlations))
    if 0 < undefined < len(verdict.fold_correlations):
        found.append(
            f"R is undefined in {undefined} of {len(verdict.fold_correlations)} folds, where accuracies do "
            "not vary over the models; they are left out"
        )
    if verdict.n_permutations < asked:
        found.append(
            f"stopped after {verdict.n_permutations} of {asked} permutations, when none of the sizes could "
            "be supported any more"
        )
    if verdict.n_units < RELIABLE_UNITS:
        found.append(
            f"{verdict.n_units} {_WORDS[verdict.unit_kind]}: with fewer than {RELIABLE_UNITS} the interval "
            "of R is unreliable"
        )
    test = selection.correlation["test"]
    if test.n_units < RELIABLE_UNITS:
        found.append(
            f"the test models come from {test.n_units} independent unit{'s' if test.n_units != 1 else ''}; "
            f"the interval of R on them is no part of the verdict below {RELIABLE_UNITS}"
        )
    if verdict.r < 0 and test.r > 0:
        found.append(
            f"R of the subset itself on its {test.n} test models is {test.r:+.2f}, above 0, though the "
            "cross-fit is below: look at the folds"
        )
    data = selection.data
    if data is not None and data.families is not None and data.groups is not None:
        across = selection.split.straddling(unit_codes(data.families))
        if across:
            found.append(
                f"{across} families have models in more than one part of the split of this subset, so that "
                "its own test R may be an accident of a family; the cross-fit keeps families whole, and "
                "split='family' does so here too"
            )
    if verdict.kind == "free":
        found.append("the p-value permutes models freely and takes them as independent")
    return tuple(found)
