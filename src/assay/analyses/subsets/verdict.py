"""Is the subset real? A cross-fit over units, its reruns under permuted accuracies, and what follows."""

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets import line
from assay.analyses.subsets.copies import copies_note
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import Accuracies, Correlation, Places, Progress, Units, UnitSums, probit
from assay.analyses.subsets.overlap import selection_consistency
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.splits import ModelSplit
from assay.analyses.subsets.splits import folds as folds_of
from assay.core.errors import InputError, check_least
from assay.core.machine import usable_cores
from assay.core.random import stream
from assay.core.record import Record


FOLDS = 5
MIN_FOLDS = 3  # test, validation, train
N_PERMUTATIONS = 99
INTERVAL_LEVEL = 0.95
LEAST_PERMUTATIONS = math.ceil(1 / line.LEVEL) - 1  # with which the smallest p-value reaches the level
WORDS = {"family": "families", "group": "training runs", "model": "models"}
_CLIP = 0.999  # of |R_k| before atanh: a fold of few models can reach 1
_TOGETHER = 75  # runs of the solver side by side: three reruns of 25 sizes take 0.77 of their time one by one

_ROUNDING = 1e-12
_GIVEN_UP_FROM = 3  # reached reruns that a fixed number allows, from which one is given up for an early end

Reached = Bool[np.ndarray, "n k"]  # which of n reruns came out at least as low, for each of k sizes
PerSize = Float64[np.ndarray, " k"]

# --------------------------------------------------------------------------------------- permutations


def permute_accuracy(
    id_accuracy: Accuracies, rng: np.random.Generator, units: Units | None = None, within: Units | None = None
) -> Accuracies:
    """In-distribution accuracies dealt out anew, so that they say nothing about any example.

    Without units they are dealt over all models. With units, probit(y) is the mean of its unit plus a
    residual: means are dealt over the units and residuals over the models of a unit, and Phi leads back, so
    that models of a unit stay as alike as they were. To deal freely where models are alike calls chance a
    finding.

    Args:
        id_accuracy: In [0, 1].
        rng: Source of the permutation.
        units: Family or training run of each model, codes 0, 1, ...
        within: Finer units, each inside one of `units` (training runs in families): their means, as
            deviations from the mean of their unit, are dealt over those of the same unit, and residuals
            inside them.

    Returns:
        In (0, 1). Without units the same values in another order.
    """
    if units is None:
        return id_accuracy[rng.permutation(len(id_accuracy))]
    t = probit(id_accuracy)
    means = _means(t, units)
    dealt = means[rng.permutation(len(means))][units]
    residual = t - means[units]
    if within is not None:
        deviations = _means(residual, within)
        home = np.zeros(len(deviations), dtype=np.int64)
        home[within] = units
        dealt += _dealt_inside(deviations, home, rng)[within]
        residual, units = residual - deviations[within], within
    return np.asarray(scipy.special.ndtr(dealt + _dealt_inside(residual, units, rng)))


def _means(values: Accuracies, codes: Units) -> np.ndarray:
    return np.bincount(codes, weights=values) / np.bincount(codes)


def _dealt_inside(values: Accuracies, codes: Units, rng: np.random.Generator) -> Accuracies:
    """`values` permuted among the places of equal code."""
    dealt = np.empty_like(values)
    dealt[np.argsort(codes, kind="stable")] = values[np.lexsort((rng.random(len(codes)), codes))]
    return dealt


def reached(observed: Float64[np.ndarray, " k"], null: Float64[np.ndarray, "n k"]) -> tuple[Reached, Reached]:
    """Which permutations were at least as low: at the same size, and at any size.

    A permutation whose correlation at a size is undefined counts as having reached it there: undefined is not
    evidence for the subset. The minimum over sizes corrects for the sweep (Westfall and Young 1993).
    """
    undefined = np.isnan(null)
    # Accuracies dealt out and back through the probit differ in the last bits.
    observed = observed + _ROUNDING
    lowest = np.min(np.where(undefined, np.inf, null), axis=1, keepdims=True, initial=np.inf)
    return undefined | (null <= observed), undefined | (lowest <= observed)


@dataclass(frozen=True, kw_only=True)
class SequentialPermutation:
    """A permutation test that ends once its outcome is settled, in either direction, with an exact p-value.

    A rerun is *reached* where it comes out at least as low as the observed value. The test ends at the first
    of: `early` reruns of which none is reached; the `limit`-th reached one; n reruns.

    Order the outcomes from strong to weak: the early end; the ends at n, by their count c < `limit`; the ends
    at the limit, the later the stronger. p is the probability, under the null, of the outcome or a stronger
    one:

        p = 1 / (early + 1)                 at the early end,
        p = (c + 1) / (n + 1) + e(n, c + 1) with c reached of n,
        p = limit / t + e(t - 1, limit)     where rerun t is the limit-th reached one.

    The first terms are P(at most k - 1 reached of t) = k / (t + 1): the observed value and t reruns are
    exchangeable, so each rank is as likely. e(t, k) is the probability of none reached among the first
    `early` and at least k among t. This needs the k lowest of all t + 1 values to lie among the t - early
    later ones, and, whatever these are, the observed value to be the lowest of the other early + 1:

        e(t, k) = C(t - early, k) / C(t + 1, k) / (early + 1).

    Each outcome's event contains those of the stronger ones, so P(p <= x) <= x for every x, with equality at
    the values that p can take; ties only raise p. The test at a level is p <= level. It gives up one reached
    rerun in ten (at least one) of those that the test with n reruns allows, for the early end.

    Attributes:
        n: Reruns at most.
        early: Reruns after which, none being reached, the test ends; n where too few leave nothing to give
            up.
        limit: Reached reruns at which it ends.

    References:
        Besag and Clifford (1991), doi:10.1093/biomet/78.2.301, for the end at a number of reached reruns.

    Example:
        >>> test = SequentialPermutation.of(99, 0.05)
        >>> test.early, test.limit
        (27, 4)
        >>> round(test.p_value(np.zeros(27, dtype=bool)), 4), test.p_value(np.ones(4, dtype=bool))
        (0.0357, 1.0)
    """

    n: int
    early: int
    limit: int

    @classmethod
    def of(cls, n: int, level: float = line.LEVEL) -> "SequentialPermutation":
        """The test with at most n reruns that rejects with probability at most `level` under the null."""
        allowed = int(level * (n + 1) + _ROUNDING)
        if allowed < _GIVEN_UP_FROM:
            return cls(n=n, early=n, limit=max(1, allowed))
        limit = allowed - max(1, allowed // 10)
        tests = (cls(n=n, early=early, limit=limit) for early in range(math.ceil(1 / level) - 1, n + 1))
        return next(test for test in tests if test._tail(n, limit) <= level)

    def _tail(self, t: int, k: int) -> float:
        """P(at most k - 1 reached of t, or none of the first `early`)."""
        missed = math.comb(max(0, t - self.early), k) / math.comb(t + 1, k) / (self.early + 1)
        return k / (t + 1) + missed

    def settled(self, reached: Bool[np.ndarray, " t"]) -> bool:
        """Whether these reruns, in order, are all it takes."""
        early = len(reached) >= self.early and not reached[: self.early].any()
        return early or len(reached) >= self.n or int(reached.sum()) >= self.limit

    def p_value(self, reached: Bool[np.ndarray, " t"]) -> float:
        """The p-value after these reruns, in order; before an end the largest that it could become."""
        missing = np.ones(max(0, self.n - len(reached)), dtype=bool)
        places = np.flatnonzero(np.concatenate([reached, missing])[: self.n])
        if not len(places) or places[0] >= self.early:
            return 1 / (self.early + 1)
        if len(places) < self.limit:
            return self._tail(self.n, len(places) + 1)
        return self._tail(int(places[self.limit - 1]), self.limit)


# ------------------------------------------------------------------------------------------ cross-fit


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
    r: PerSize
    low: PerSize
    high: PerSize
    spread: PerSize
    consistency: PerSize
    accuracy: Float64[np.ndarray, "k m"]
    selections: tuple[tuple[Int64[np.ndarray, " _"], ...], ...]


def combine(correlations: np.ndarray, n_models: np.ndarray) -> np.ndarray:
    """R_cf = tanh(sum_k (n_k - 3) atanh(R_k) / sum_k (n_k - 3)), |R_k| at most 0.999.

    Args:
        correlations: R_k, `[..., n_folds, k]`; an undefined fold (NaN) is left out.
        n_models: Models of each fold, at least 4, `[..., n_folds]`.

    Returns:
        In (-1, 1); NaN where no fold is defined.

    Example:
        >>> combine(np.array([[-0.5], [-0.1]]), np.array([23, 13])).round(4).tolist()
        [-0.3796]
    """
    weights = np.where(np.isnan(correlations), 0.0, (n_models - 3.0)[..., None])
    z = np.arctanh(np.clip(np.nan_to_num(correlations), -_CLIP, _CLIP))
    total = weights.sum(axis=-2)
    mean = np.full(total.shape, np.nan)
    np.divide((weights * z).sum(axis=-2), total, out=mean, where=total > 0)
    return np.asarray(np.tanh(mean))


class _Deal(NamedTuple):
    """Which units are kept whole, and the folds they fill; none where no three would hold enough models."""

    splits: list[ModelSplit]
    units: Units
    unit_kind: str
    n_units: int
    notes: tuple[str, ...]

    @property
    def too_few(self) -> str:
        return (
            f"{self.n_units} {WORDS[self.unit_kind]} of {len(self.units)} models are too few for "
            f"{MIN_FOLDS} folds of at least {line.MIN_MODELS} models, copies counted once. Give models of "
            "more training runs or families"
        )


def _dealt(data: CorrectnessData, k: int, seed: int) -> _Deal:
    """Folds that keep families whole, else training runs, else models; copies of a model are one unit.

    With fewer units than folds, or folds of fewer than 4 models, there are fewer folds, at least 3. With
    fewer than 3 families training runs are kept whole where they are known, and nothing is supported.
    """
    if k < MIN_FOLDS:
        raise InputError(f"folds is {k}; expected at least {MIN_FOLDS}: one each to test, validate and train")
    kind = data.unit_kind
    if kind == "family" and len(np.unique(data.units(kind))) < MIN_FOLDS and data.groups is not None:
        kind = "group"
    units = data.units(kind)
    n_units, splits = len(np.unique(units)), list[ModelSplit]()
    for wanted in range(min(k, n_units), MIN_FOLDS - 1, -1):
        with contextlib.suppress(InputError):
            splits = folds_of(units, wanted, seed=seed, copies=data.copies)
            break
    short = f"{len(splits)} folds instead of {k}, because there are only {n_units} {WORDS[kind]}"
    notes = copies_note(data.copies), short if 0 < len(splits) < k else None
    return _Deal(splits, units, kind, n_units, tuple(filter(None, notes)))


def cross_fit(problem: Problem, sizes: Sequence[int], *, folds: int = FOLDS, workers: int = 1) -> CrossFit:
    """Select without a fold of the models, test on it, for every fold: each model is tested once.

    Units (families, else training runs, else models; copies are one) are dealt to K folds. Fold j
    is tested, fold j + 1 validates, the others are selected on. A single split into disjoint parts often
    tests on two or three families, whose accidents no interval can cover.

    Args:
        problem: Data and settings; its split is not used.
        sizes: Examples to select.
        folds: K; fewer if there are too few units.
        workers: Threads.

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
    deal = _dealt(problem.data, folds, problem.settings.seed)
    if not deal.splits:
        raise InputError(deal.too_few)
    with _threads(workers) as pool:
        return _cross_fit([replace(problem, split=split) for split in deal.splits], deal, sizes, pool)


def _cross_fit(
    fitted: Sequence[Problem], deal: _Deal, sizes: Sequence[int], pool: ThreadPoolExecutor
) -> CrossFit:
    """`cross_fit` of problems whose splits are the folds."""
    data, n = fitted[0].data, len(fitted[0].pool)
    y, fold_of = data.id_accuracy, np.empty(data.n_models, dtype=np.int64)
    by_fold = list(pool.map(lambda fold: _select(fold, sizes, [y])[0], fitted))
    accuracy = np.full((len(sizes), data.n_models), np.nan)
    low, high, consistency = np.full((3, len(sizes)), np.nan)
    for number, (fold, sets) in enumerate(zip(fitted, by_fold, strict=True)):
        fold_of[fold.split.test] = number
        for row, members in enumerate(sets):
            accuracy[row, fold.split.test] = fold.accuracy(members) if len(members) else math.nan
    selections = tuple(zip(*by_fold, strict=True))
    for row, sets in enumerate(selections):
        places = [np.searchsorted(fitted[0].pool, each) for each in sets if len(each)]
        if places:
            pairs = selection_consistency(places, n).to_numpy()[np.triu_indices(len(places), k=1)]
            pairs = pairs[np.isfinite(pairs)]
            consistency[row] = pairs.mean() if len(pairs) else math.nan
            known = np.isfinite(accuracy[row])
            x, t = probit(y[known]), probit(accuracy[row, known])
            low[row], high[row] = unit_jackknife(x, t, deal.units[known], fold_of[known])
    r = np.array([_test(fold, sets, y) for fold, sets in zip(fitted, by_fold, strict=True)])
    fold_sizes = np.array([len(fold.split.test) for fold in fitted])
    return CrossFit(
        sizes=tuple(sizes),
        unit_kind=deal.unit_kind,
        n_units=deal.n_units,
        splits=tuple(deal.splits),
        fold_sizes=fold_sizes,
        fold_correlations=r,
        r=combine(r, fold_sizes),
        low=low,
        high=high,
        spread=r.std(axis=0, ddof=1),
        consistency=consistency,
        accuracy=accuracy,
        selections=selections,
    )


def _select(fold: Problem, sizes: Sequence[int], accuracies: Sequence[Accuracies]) -> list[list[Places]]:
    """Per accuracies the selection of each size; empty where training or validation models do not differ."""
    sides, empty = (fold.split.train, fold.split.validation), [np.empty(0, dtype=np.int64)] * len(sizes)
    differing = [y for y in accuracies if all(np.ptp(probit(y[side])) > 0 for side in sides)]
    selected = iter(fold.select_all(sizes, differing) if differing else [])
    return [next(selected) if any(y is each for each in differing) else empty for y in accuracies]


def _test(fold: Problem, selections: Sequence[Places], y: Accuracies) -> list[float]:
    """R_k of selections on the models that a fold tests; NaN for empty ones."""
    return fold.tested(selections, y) if len(selections[0]) else [math.nan] * len(selections)


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of one thread of BLAS and torch each; Ctrl-C does not wait for what they have begun."""
    import torch
    from threadpoolctl import threadpool_limits

    of_others, waits = torch.get_num_threads(), False
    pool = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield pool
        waits = True
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)
        torch.set_num_threads(of_others)


def unit_jackknife(x: Accuracies, t: Accuracies, units: Units, fold_of: Units) -> tuple[float, float]:
    """Interval of R_cf from leaving out each unit in turn, selections fixed.

    z -+ q sqrt((U - 1) / U sum_u (z_u - mean z)^2) back through tanh, z_u the combined atanh without unit u
    and q Student's quantile with U - 1 degrees of freedom.

    Args:
        x: Probit in-distribution accuracies.
        t: Probit accuracies on the subset that was selected without the model's fold.
        units: Unit of each model.
        fold_of: Fold of each model; a unit lies in one.

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
    each = [sums.correlations(weights[:, inside], inside) for inside in folds]
    n, r = (np.stack(column, axis=-1) for column in zip(*each, strict=True))
    r[n < line.MIN_MODELS] = math.nan
    z, *others = np.arctanh(combine(r[..., None], n)[:, 0])
    spread = math.sqrt((n_units - 1) / n_units * float(np.sum((np.array(others) - np.mean(others)) ** 2)))
    margin = float(scipy.special.stdtrit(n_units - 1, (1 + INTERVAL_LEVEL) / 2)) * spread
    return math.tanh(z - margin), math.tanh(z + margin)


# ------------------------------------------------------------------------------------------- verdict


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

    status: str = "inconclusive"
    aotil: bool = False
    r: float = math.nan
    low: float = math.nan
    high: float = math.nan
    level: float = INTERVAL_LEVEL
    p_value: float = math.nan
    p_unadjusted: float = math.nan
    size: int
    sizes: tuple[int, ...]
    n_permutations: int = 0
    kind: str
    unit_kind: str
    n_units: int
    fold_correlations: tuple[float, ...] = ()
    fold_sizes: tuple[int, ...] = ()
    spread: float = math.nan
    mean_consistency: float = math.nan
    null: tuple[float, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def supported(self) -> bool:
        """Whether the status is `supported`."""
        return self.status == "supported"

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons for which no outcome of the test could be supported; its own outcome comes after them."""
        return self.reasons[:-1] if self.r >= 0 or self.p_value > line.LEVEL else self.reasons


def judge(
    problem: Problem,
    own: Mapping[int, Correlation],
    *,
    n_permutations: int = N_PERMUTATIONS,
    folds: int = FOLDS,
    workers: int | None = None,
    keep: Path | None = None,
    progress: Progress | None = None,
) -> list[SubsetVerdict]:
    """A verdict for each subset of a sweep over sizes, corrected for the sweep.

    Supported iff the units of the problem's split are disjoint between its parts and R_cf < 0 with
    adjusted p <= 0.05. `aotil` iff also R_cf <= -0.3.

    Args:
        problem: Data, split and settings that the subsets were selected with.
        own: All sizes that were looked at, each with the correlation of its subset on the test models.
        n_permutations: Reruns of the whole cross-fit, at most; below 19 no p can reach 0.05.
        folds: Folds of the models; fewer if there are too few units.
        workers: Threads, which share the matrices. Default: one per core. The result does not depend on it.
        keep: File to which finished reruns are appended. A verdict that was killed goes on from it, to the
            same bytes.
        progress: Called with stage, reruns done and their number.

    Raises:
        InputError: For no size, no permutation, or a file that holds the reruns of another verdict.

    Notes:
        A rerun costs one selection per fold and size. Units of the folds are families,
        else training runs, else models; of the main split training runs, or families where only these are
        known.

        The reruns end once every size is settled, as supported or not: `SequentialPermutation` on those whose
        lowest R_cf over the sizes is at most that of the size. It errs in at most 5 % of the sweeps without
        any such subset.

        The interval of the subset's own R on the test models is a note, not a condition: the permutations
        keep the level without it, and the condition costs power where the split tests on few runs of
        near-copies.

        The level is exact for sizes that were fixed beforehand.

        No size is left out of the reruns because its own R_cf is not below 0: the minimum over sizes must be
        taken over the same sizes in each rerun. Such sizes end after few steps of the solver anyway.

    References:
        The paper has no such test. Phipson and Smyth (2010), doi:10.2202/1544-6115.1585 (p-values);
        Westfall and Young (1993) (the minimum over sizes).
    """
    data = problem.data
    workers = usable_cores() if workers is None else workers
    check_least(1, subsets=len(own), n_permutations=n_permutations, workers=workers)
    deal = _dealt(data, folds, problem.settings.seed)
    # What the null deals out: families, else training runs, else (None) models; and runs in families.
    free = data.unit_kind == "model" and len(np.unique(data.copies)) == data.n_models
    both = data.families is not None and data.groups is not None
    units = None if free else data.units(), data.units("group") if both else None
    reasons = tuple(_unit_reasons(problem))
    known: dict[str, Any] = {"unit_kind": deal.unit_kind, "n_units": deal.n_units, "notes": deal.notes}
    known |= {"sizes": tuple(own), "kind": "free" if free else "group"}
    if not deal.splits:
        return [SubsetVerdict(size=size, **known, reasons=(*reasons, deal.too_few)) for size in own]
    test = SequentialPermutation.of(n_permutations)
    fitted = [replace(problem, split=split) for split in deal.splits]
    with _threads(workers) as pool:
        fit = _cross_fit(fitted, deal, tuple(own), pool)
        null = _null(fitted, units, fit, test, pool, keep, progress)
    same, anywhere = reached(fit.r, null)
    lowest = np.where(np.isnan(null), np.inf, null).min(axis=1)
    known |= {"n_permutations": len(null), "fold_sizes": tuple(fit.fold_sizes.tolist())}
    known |= {"null": tuple(np.where(np.isinf(lowest), np.nan, lowest).tolist())}
    verdicts = []
    for column, (size, correlation) in enumerate(own.items()):
        known |= {name: float(getattr(fit, name)[column]) for name in ("r", "low", "high", "spread")}
        tested, alone = not math.isnan(known["r"]), same[:, column]
        verdict = SubsetVerdict(
            **known,
            size=size,
            p_unadjusted=test.p_value(alone) if tested and test.settled(alone) else math.nan,
            p_value=test.p_value(anywhere[:, column]) if tested else math.nan,
            fold_correlations=tuple(fit.fold_correlations[:, column].tolist()),
            mean_consistency=float(fit.consistency[column]),
        )
        outcome = _outcome(verdict, test.n, int(anywhere[:, column].sum()))
        against = (*reasons, outcome) if outcome else reasons
        status = "inconclusive" if against else "supported"
        notes = (*deal.notes, *_notes(correlation, verdict, test.n))
        aotil = not against and verdict.r <= line.AOTIL
        verdicts.append(replace(verdict, status=status, aotil=aotil, reasons=against, notes=notes))
    return verdicts


def _null(
    fitted: Sequence[Problem],
    units: tuple[Units | None, Units | None],
    fit: CrossFit,
    test: SequentialPermutation,
    pool: ThreadPoolExecutor,
    keep: Path | None,
    progress: Progress | None,
) -> Float64[np.ndarray, "n k"]:
    """R_cf per size of the reruns, as many as it takes.

    Waves of reruns go side by side on each fold: the same results as one by one, for fewer passes. 27 of 99
    reruns are the fewest that can support a subset, and waves of 1, 3 or 9 fill them.
    """
    settings = fitted[0].settings
    together = _TOGETHER if settings.solver == "swap" else 1
    width = next((each for each in (9, 3) if each * len(fit.sizes) <= together), 1)
    waves = [range(start, min(start + width, test.n)) for start in range(0, test.n, width)]

    def rerun(fold: Problem, wave: range) -> list[list[float]]:
        streams = (stream(settings.seed, f"permutation {place}") for place in wave)
        drawn = [permute_accuracy(fold.data.id_accuracy, each, *units) for each in streams]
        return [_test(fold, each, y) for each, y in zip(_select(fold, fit.sizes, drawn), drawn, strict=True)]

    def settled(null: Float64[np.ndarray, "n k"]) -> bool:
        anywhere = reached(fit.r, null)[1]
        return all(test.settled(column) for column in anywhere.T[fit.r < 0])

    finished = [] if keep is None else _finished_waves(keep, fitted[0], fit, test.n)
    likely_end = math.ceil(test.early / width)  # no later wave is begun before these are done
    running: list[list[Future[list[list[float]]]]] = [[] for _ in finished]
    for number in range(len(waves)):
        if number >= len(finished):
            due = waves[len(running) : likely_end if number < likely_end else len(waves)]
            running += [[pool.submit(rerun, fold, wave) for fold in fitted] for wave in due]
            by_fold = np.array([future.result() for future in running[number]])
            finished.append(combine(by_fold.swapaxes(0, 1), fit.fold_sizes))
            if keep is not None:
                with keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(finished[number].tolist()) + "\n")
        null = np.concatenate(finished[: number + 1])
        if progress is not None:
            progress("permutations", len(null), test.n)
        if settled(null):
            break
    # What a wave holds beyond the end counts for nothing.
    return null[: next((n for n in range(1, len(null)) if settled(null[:n])), len(null))]


def _finished_waves(keep: Path, problem: Problem, fit: CrossFit, n: int) -> list[np.ndarray]:
    """What a killed verdict left: a line of JSON per wave, after one that names the job.

    Raises:
        InputError: If the file is of another job.
    """
    job = repr((problem.data.hash, problem.settings.to_dict(), fit.sizes, n)).encode()
    digest = hashlib.sha256(job + b"".join(each.tobytes() for sets in fit.selections for each in sets))
    header = json.dumps({"verdict": digest.hexdigest()[:16]}).encode() + b"\n"
    content = keep.read_bytes() if keep.exists() else b""
    whole = content[: content.rfind(b"\n") + 1] or header  # less a line that the kill cut off
    if not whole.startswith(header):
        raise InputError(f"{keep} holds the reruns of another verdict; delete it, or give another file")
    if whole != content:
        keep.write_bytes(whole)
    return [np.array(json.loads(line), dtype=np.float64) for line in whole.splitlines()[1:]]


def _unit_reasons(problem: Problem) -> Iterator[str]:
    """Whether families are enough for folds, and units disjoint between the parts of the split."""
    data, split = problem.data, problem.split
    kind = "group" if data.groups is not None else data.unit_kind
    n = MIN_FOLDS if data.families is None else len(np.unique(data.units("family")))
    if n < MIN_FOLDS:
        yield f"the models are of {n} families; give models of at least {MIN_FOLDS}, to keep families whole"
    elif kind == "model":
        yield (
            "groups and families are missing, so the tested models may depend on the others. Give groups= "
            "(--groups) or families= (--families), or --groups model if each model is a run of its own"
        )
    elif across := split.straddling(units := data.units(kind)):
        yield (
            f"{across} of {len(np.unique(units))} {WORDS[kind]} have models in more than one part of the "
            f"split, so the tested models are not new: select with split={kind!r} (--split {kind})"
        )


def _outcome(verdict: SubsetVerdict, n: int, n_reached: int) -> str | None:
    """What of the test speaks against support: what failed, by how much, and what to do."""
    p, done, n_sizes = verdict.p_value, verdict.n_permutations, len(verdict.sizes)
    if math.isnan(verdict.r):
        return (
            "the cross-fitted correlation is undefined: models do not differ on the subset; try a larger size"
        )
    if verdict.r >= 0:
        return (
            f"the cross-fitted correlation is {verdict.r:.2f}, not below 0. Examples on which better models "
            "do worse may exist only at a smaller size, or not at all"
        )
    if p <= line.LEVEL:
        return None
    if n < LEAST_PERMUTATIONS:
        least = f"cannot give less than {1 / (n + 1):.3g}: use at least {LEAST_PERMUTATIONS}"
        return f"p = {p:.3g} and {n} permutations {least}"
    swept = f", corrected for {n_sizes} sizes" if n_sizes > 1 else ""
    more = "independent runs" if verdict.unit_kind == "model" else WORDS[verdict.unit_kind]
    return (
        f"p = {p:.3g}{swept}, above {line.LEVEL}: {n_reached} of {done} selections made under permuted "
        "in-distribution accuracies came out as low or undefined; models of more "
        f"{more}{', or fewer sizes,' if swept else ''} would make the test more powerful"
    )


def _notes(own: Correlation, verdict: SubsetVerdict, n: int) -> Iterator[str]:
    """What else to know."""
    if (done := verdict.n_permutations) < n:
        yield f"stopped after {done} of {n} permutations, when every size was settled; p allows for this"
    tested = "independent units of test models"
    for what, n_units in ((WORDS[verdict.unit_kind], verdict.n_units), (tested, own.n_units)):
        if n_units < line.RELIABLE_UNITS:
            yield f"{n_units} {what}: with fewer than {line.RELIABLE_UNITS} the interval of R is unreliable"
    if verdict.r < 0 and not own.high < 0:
        yield (
            f"R of the subset itself on its {own.n} test models is {own.r:.2f}, with an interval that "
            f"reaches up to {own.high:.2f}. The verdict rests on the cross-fit of all models; to be sure of "
            "this very subset, evaluate it on further models"
        )
    if verdict.kind == "free":
        yield "the p-value permutes models freely and treats them as independent"
