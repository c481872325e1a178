"""Is the subset real? The verdict that rests on a cross-fit and its reruns under permuted accuracies."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
from jaxtyping import Float64

from assay.analyses.subsets.crossfit import (
    FOLDS,
    INTERVAL_LEVEL,
    MIN_FOLDS,
    WORDS,
    CrossFit,
    FoldPlan,
    FoldRuns,
    combine,
    fit_folds,
    no_folds,
    plan_folds,
)
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import AOTIL, LEVEL, RELIABLE_UNITS, Correlation
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.objective import check_inverse
from assay.analyses.subsets.page_words import p_value, signed
from assay.analyses.subsets.permutation import (
    N_PERMUTATIONS,
    Exchange,
    SequentialPermutation,
    n_workers,
    reached,
    run_permutations,
)
from assay.analyses.subsets.problem import Progress, Shelf, check_sizes, computed
from assay.core.errors import InputError, check_least
from assay.core.record import Record


LEAST_PERMUTATIONS = math.ceil(1 / LEVEL) - 1  # with which the smallest p-value reaches the level
WEAKEST = "not tested: a verdict is about the most negative correlation, and objective r2 selects the weakest"
UNKNOWN_UNITS = (
    "groups and families are missing, so it is unknown whether the tested models are independent of those "
    "selected on. Give groups= (--groups) or families= (--families), or groups=range(M) (--groups model) if "
    "every model is an independent run"
)


class JudgeOptions(TypedDict, total=False):
    """Keywords of `Subset.judge` and `SelectionPath.judge`."""

    n_permutations: int
    folds: int
    workers: int | None
    progress: Progress | None
    shelf: Shelf


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
        p_value: Permutation p of R_cf, corrected for all sizes tried; valid however early the reruns ended;
            NaN where undefined.
        p_unadjusted: For this size alone; NaN where the reruns ended before it was settled.
        size: Examples of the subset.
        sizes: All sizes tried.
        n_permutations: Reruns: fewer than asked for once every size was settled (`SequentialPermutation`).
        kind: What was permuted: `group` (units) or `free` (models).
        unit_kind: What the folds keep whole: `family`, `group` (training run) or `model`.
        n_units: How many of them.
        fold_correlations: R_k.
        fold_sizes: Models of each fold.
        spread: Standard deviation of the R_k; NaN where one is undefined.
        mean_consistency: Mean J_norm of the pairs of the K selections; no evidence by itself.
        null: Lowest R_cf over the sizes of each rerun; NaN where undefined.
        reasons: Why it is inconclusive; empty where it is supported.
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

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons for which no outcome of the test could be supported; its own outcome comes after them."""
        failed = self.r >= 0 or self.p_value > LEVEL
        return self.reasons[:-1] if failed else self.reasons


def judge_sizes(
    data: CorrectnessData,
    selections: Sequence[SelectedExamples],
    *,
    path: str = "independent",
    n_permutations: int = N_PERMUTATIONS,
    folds: int = FOLDS,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    shelf: Shelf = computed,
) -> tuple[SubsetVerdict, ...]:
    """A verdict for each selection of a sweep over sizes, corrected for the sweep.

    Supported iff the units of the selection's own split are disjoint between its parts and R_cf < 0 with
    adjusted p <= 0.05. `aotil` iff also R_cf <= -0.3.

    Args:
        data: Models by examples.
        selections: All sizes that were looked at, selected on the same data with the same settings.
        path: How one size led to the next (`Problem.solve_path`); the reruns go the same way.
        n_permutations: Reruns of the whole cross-fit, at most; below 19 no p can reach 0.05.
        folds: Folds of the models; fewer if there are too few units.
        seed: Root seed. Default: that of the selections.
        workers: Threads, which share the matrices. Default: one per core. The result does not depend on it.
        progress: Called with stage, reruns done and their number.
        shelf: Of an interrupted run, by name: the selections of each fold and the R_k of each fold of each
            rerun.

    Raises:
        InputError: For no selection, selections with different settings or the objective `r2`, or no
            permutation.

    Notes:
        A rerun costs one selection per fold and size, on a warm path two. Units of the folds are families,
        else training runs, else models; of the main split training runs, or families where only these are
        known.

        The reruns end once every size is settled, as supported or not: `SequentialPermutation` on those whose
        lowest R_cf over the sizes is at most that of the size. It errs in at most 5 % of the sweeps without
        any such subset.

        The interval of the subset's own R on the test models is a note, not a condition: the permutations
        keep the level without it, and the condition costs power where the split tests on few runs of
        near-copies (`experiments/subset_verdicts`).

        The level is exact for sizes that were fixed beforehand. Sizes of `SelectionPath.refined` were chosen
        under the observed accuracies, while the reruns keep to them.

        No size is left out of the reruns because its own R_cf is not below 0: the minimum over sizes must be
        taken over the same sizes in each rerun. Such sizes end after few steps of the solver anyway.

    References:
        The paper has no such test. Phipson and Smyth (2010), doi:10.2202/1544-6115.1585 (p-values);
        Westfall and Young (1993) (the minimum over sizes).
    """
    _check(selections, n_permutations)
    settings = selections[0].settings
    seed = settings.seed if seed is None else seed
    sizes = check_sizes([each.size for each in selections], data.n_examples)
    plan = plan_folds(data, folds, seed=settings.seed)
    if plan.splits is None:
        return tuple(
            untested(data, each, plan, sizes, (*_unit_reasons(data, each), no_folds(plan)))
            for each in selections
        )
    runs = FoldRuns(data, plan.splits, sizes, settings, path=path)
    threads = n_workers(workers, settings)
    fit = fit_folds(data, plan, runs, data.id_accuracy, level=INTERVAL_LEVEL, shelf=shelf, workers=threads)
    test = SequentialPermutation.of(n_permutations, LEVEL)
    null = _null(data, runs, fit, test, seed=seed, threads=threads, progress=progress, shelf=shelf)
    return tuple(
        _judged(untested(data, each, plan, sizes), data, each, fit, null, test) for each in selections
    )


def _null(
    data: CorrectnessData,
    runs: FoldRuns,
    fit: CrossFit,
    test: SequentialPermutation,
    *,
    seed: int,
    threads: int,
    progress: Progress | None,
    shelf: Shelf,
) -> Float64[np.ndarray, "n k"]:
    """R_cf per size of the reruns, as many as it takes; each fold of a wave of them is a part of the job."""
    exchange, n_folds = Exchange.of(data), len(runs.problems)

    def rerun(place: int) -> list[list[float]]:
        wave, fold = divmod(place, n_folds)
        reruns = range(wave * runs.wave, min((wave + 1) * runs.wave, test.n))

        def compute() -> list[list[float]]:
            return runs.rerun(fold, [exchange.draw(data.id_accuracy, seed, each) for each in reruns])

        name = f"permutations {reruns[0]} to {reruns[-1]}, fold {fold}"
        kept: list[list[float]] = shelf(name, compute)
        return kept

    def combined(folds: Sequence[list[list[float]]]) -> Float64[np.ndarray, "n k"]:
        waves = range(0, len(folds), n_folds)
        each = [np.array(folds[start : start + n_folds], dtype=np.float64) for start in waves]
        return combine(np.concatenate(each, axis=1).swapaxes(0, 1), runs.n_models)

    def settled(null: Float64[np.ndarray, "n k"]) -> bool:
        anywhere = reached(fit.r, null)[1]
        return all(test.settled(column) for column in anywhere.T[fit.r < 0])

    def told(stage: str, done: int, total: int) -> None:
        if progress is not None and done % n_folds == 0:
            progress(stage, min(done // n_folds * runs.wave, test.n), test.n)

    folds = run_permutations(
        rerun,
        math.ceil(test.n / runs.wave) * n_folds,
        workers=threads,
        progress=told,
        settled=lambda folds: len(folds) % n_folds == 0 and settled(combined(folds)),
        likely_end=math.ceil(test.early / runs.wave) * n_folds,
    )
    null = combined(folds)
    # What a wave holds beyond the end counts for nothing.
    return null[: next((n for n in range(1, len(null)) if settled(null[:n])), len(null))]


def _judged(
    verdict: SubsetVerdict,
    data: CorrectnessData,
    selection: SelectedExamples,
    fit: CrossFit,
    null: Float64[np.ndarray, "n k"],
    test: SequentialPermutation,
) -> SubsetVerdict:
    """The verdict of one size, filled with what the cross-fit and its reruns gave."""
    column = fit.sizes.index(selection.size)
    same, anywhere = (each[:, column] for each in reached(fit.r, null))
    known = not math.isnan(fit.r[column])
    defined = np.isfinite(null).any(axis=1)
    lowest = np.where(defined, np.where(np.isnan(null), np.inf, null).min(axis=1), np.nan)
    verdict = replace(
        verdict,
        r=float(fit.r[column]),
        low=float(fit.low[column]),
        high=float(fit.high[column]),
        p_unadjusted=test.p_value(same) if known and test.settled(same) else math.nan,
        p_value=test.p_value(anywhere) if known else math.nan,
        n_permutations=len(null),
        fold_correlations=tuple(fit.fold_correlations[:, column].tolist()),
        fold_sizes=tuple(fit.fold_sizes.tolist()),
        spread=float(fit.spread[column]),
        mean_consistency=float(fit.consistency[column]),
        null=tuple(lowest.tolist()),
    )
    reasons = tuple(_reasons(data, selection, verdict, test.n, int(anywhere.sum())))
    return replace(
        verdict,
        status="inconclusive" if reasons else "supported",
        aotil=not reasons and verdict.r <= AOTIL,
        reasons=reasons,
        notes=verdict.notes + tuple(_notes(selection, verdict, test.n)),
    )


def _check(selections: Sequence[SelectedExamples], n_permutations: int) -> None:
    """Raises `InputError` unless there are selections, all with the same settings, and permutations."""
    if not selections:
        raise InputError("selections are missing; give at least one")
    check_least(1, n_permutations=n_permutations)
    check_inverse(selections[0].settings.objective, "a verdict")
    for other in selections[1:]:
        if other.settings.record() != selections[0].settings.record():
            raise InputError(
                f"selections of size {selections[0].size} and {other.size} were made with different "
                "settings; judge them separately"
            )


def untested(
    data: CorrectnessData,
    selection: SelectedExamples,
    plan: FoldPlan,
    sizes: tuple[int, ...],
    reasons: tuple[str, ...] = (),
) -> SubsetVerdict:
    """The verdict where no cross-fit is possible or none was asked for."""
    undefined = ("r", "low", "high", "p_value", "p_unadjusted", "spread", "mean_consistency")
    empty: dict[str, Any] = dict.fromkeys(undefined, math.nan)
    empty |= dict.fromkeys(("fold_correlations", "fold_sizes", "null"), ())
    return SubsetVerdict(
        status="inconclusive",
        aotil=False,
        level=INTERVAL_LEVEL,
        size=selection.size,
        sizes=sizes,
        n_permutations=0,
        kind=Exchange.of(data).kind,
        unit_kind=plan.unit_kind,
        n_units=plan.n_units,
        reasons=reasons,
        notes=plan.notes,
        **empty,
    )


def _unit_reasons(data: CorrectnessData, selection: SelectedExamples) -> Iterator[str]:
    """Whether units are disjoint between the parts of the main split, and families enough for folds."""
    if data.families is not None and (n := len(np.unique(data.units))) < MIN_FOLDS:
        yield (
            f"the models are of {n} families, too few for {MIN_FOLDS} folds that keep "
            "families apart. An accident of one family could pass for a finding; add models of more families"
        )
        return
    kind = data.kind_of_units(by_family=False)
    if kind == "model":
        yield UNKNOWN_UNITS
        return
    units = data.unit_codes(kind)
    if across := selection.split.straddling(units):
        yield (
            f"{across} of {len(np.unique(units))} {WORDS[kind]} have models in more than one part of the "
            f"split ({selection.split.kind}), so the tested models are not new: select with split={kind!r} "
            f"(--split {kind})"
        )


def _reasons(
    data: CorrectnessData, selection: SelectedExamples, verdict: SubsetVerdict, asked: int, n_reached: int
) -> Iterator[str]:
    """What speaks against support, in plain words: what failed, by how much, and what to do."""
    yield from _unit_reasons(data, selection)
    if math.isnan(verdict.r):
        yield (
            "the cross-fitted correlation is undefined: in every fold the accuracies on the subset are "
            "equal for all models; try a larger size"
        )
    elif verdict.r >= 0:
        yield (
            f"the cross-fitted correlation is {signed(verdict.r)}, not below 0: on "
            f"{WORDS[verdict.unit_kind]} that took no part in the selection, accuracy on the subset does not "
            "fall with in-distribution accuracy. Such examples may exist only at a smaller size, or not at "
            "all"
        )
    elif verdict.p_value > LEVEL:
        yield _chance(verdict, asked, n_reached)


def _own_interval(test: Correlation) -> str:
    """That R of the subset itself is not shown to be negative, though R_cf is."""
    if math.isnan(test.high):
        found = "has no interval"
    else:
        found = f"is {signed(test.r)}, with an interval that reaches up to {signed(test.high)}"
    return (
        f"R of the subset itself on its {test.n} test models {found}: this split leaves open whether it "
        "is below 0. The verdict rests on the cross-fit, which tests all models on subsets selected in the "
        "same way; to be sure of this very subset, evaluate it on further models"
    )


def _chance(verdict: SubsetVerdict, asked: int, n_reached: int) -> str:
    """What a p-value above the level says."""
    if asked < LEAST_PERMUTATIONS:
        return (
            f"p = {p_value(verdict.p_value)} and {asked} permutations cannot give less than "
            f"{p_value(1 / (asked + 1))}: use at least {LEAST_PERMUTATIONS}"
        )
    n_sizes, done = len(verdict.sizes), verdict.n_permutations
    several = n_sizes > 1
    settled = not math.isnan(verdict.p_unadjusted)
    alone = f" ({p_value(verdict.p_unadjusted)} for this one alone)" if settled else ""
    swept = f", corrected for {n_sizes} sizes{alone}" if several else ""
    ended = f" (stopped there, of {asked})" if done < asked else ""
    more = "independent runs" if verdict.unit_kind == "model" else WORDS[verdict.unit_kind]
    return (
        f"p = {p_value(verdict.p_value)}{swept}, above {LEVEL}: {n_reached} of {done} selections{ended} made "
        f"under permuted in-distribution accuracies came out as low or undefined; models of more {more}"
        f"{', or fewer sizes,' if several else ''} would make the test more powerful"
    )


def _notes(selection: SelectedExamples, verdict: SubsetVerdict, asked: int) -> Iterator[str]:
    """What else to know."""
    undefined, n_folds = sum(map(math.isnan, verdict.fold_correlations)), len(verdict.fold_correlations)
    if 0 < undefined < n_folds:
        yield (
            f"R is undefined in {undefined} of {n_folds} folds, where all models have the same accuracy; "
            "these folds are left out"
        )
    if verdict.n_permutations < asked:
        yield (
            f"stopped after {verdict.n_permutations} of {asked} permutations, when it was settled for every "
            "size whether they support it; p allows for this"
        )
    if verdict.n_units < RELIABLE_UNITS:
        yield (
            f"{verdict.n_units} {WORDS[verdict.unit_kind]}: with fewer than {RELIABLE_UNITS} the interval "
            "of R is unreliable"
        )
    test = selection.correlation["test"]
    if test.n_units < RELIABLE_UNITS:
        yield (
            f"the test models come from {test.n_units} independent unit{'s' if test.n_units != 1 else ''}; "
            f"below {RELIABLE_UNITS}, the interval of R on them is unreliable"
        )
    if verdict.r < 0 and not test.high < 0:
        yield _own_interval(test)
    data = selection.data
    across = 0
    if data is not None and data.families is not None and data.groups is not None:
        across = selection.split.straddling(data.units)
    if across:
        yield (
            f"{across} families have models in more than one part of the split of this subset, so its own "
            "test R may be an accident of one family; the cross-fit keeps families whole, and "
            "split='family' (--split family) does so here too"
        )
    if verdict.kind == "free":
        yield "the p-value permutes models freely and treats them as independent"
