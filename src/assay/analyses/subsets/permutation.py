"""Permutations of in-distribution accuracies, reruns under them, and the p-values that follow."""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets._arrays import Accuracies, Units
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.problem import Progress
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import unit_codes
from assay.core.errors import InputError, ShapeError, check_name
from assay.core.machine import usable_cores
from assay.core.random import stream


Kind = Literal["free", "group"]
T = TypeVar("T")

KINDS = ("free", "group")
N_PERMUTATIONS = 99
_ROUNDING = 1e-12
_GIVEN_UP_FROM = 3  # reached reruns that a fixed number allows, from which one is given up for an early end


# ------------------------------------------------------------------------------------------ permuting


def permute_accuracy(
    id_accuracy: Accuracies,
    units: Units | None,
    rng: np.random.Generator,
    kind: Kind = "group",
    *,
    within: Units | None = None,
) -> Accuracies:
    """In-distribution accuracies dealt out anew, so that they say nothing about any example.

    `free` deals them over all models. `group` writes probit(y) as the mean of its unit plus a residual, deals
    the means over the units and the residuals over the models of a unit, and goes back through Phi: models of
    a unit stay as alike as they were. `free` with models that are alike calls chance a finding.

    Args:
        id_accuracy: In [0, 1].
        units: Family or training run of each model, as codes; None for `kind="free"`.
        rng: Source of the permutation.
        kind: `free` or `group`.
        within: Finer units, each inside one of `units` (training runs in families): their means, as
            deviations from the mean of their unit, are dealt over those of the same unit, and residuals
            inside them.

    Returns:
        In (0, 1). For `free` the given values in another order.

    Raises:
        InputError: For another kind, `group` without units, or finer units that cross the coarse ones.
    """
    y = np.asarray(id_accuracy, dtype=np.float64)
    _check_kind(kind, known=units is not None)
    if kind == "free" or units is None:
        return y[rng.permutation(len(y))]
    coarse = unit_codes(units)
    if coarse.shape != y.shape:
        raise ShapeError(f"units has shape {coarse.shape}, id_accuracy {y.shape}; give one unit per model")
    t = probit(y)
    means = _means(t, coarse)
    dealt = means[rng.permutation(len(means))][coarse]
    residual = t - means[coarse]
    if within is not None:
        fine = unit_codes(within)
        if not nested(fine, coarse):
            raise InputError(
                "a unit of `within` lies in two of `units`; each training run must belong to one family"
            )
        deviations = _means(residual, fine)
        home = np.zeros(len(deviations), dtype=np.int64)
        home[fine] = coarse
        dealt += _dealt_inside(deviations, home, rng)[fine]
        residual, coarse = residual - deviations[fine], fine
    return np.asarray(scipy.special.ndtr(dealt + _dealt_inside(residual, coarse, rng)))


def _check_kind(kind: str, *, known: bool) -> None:
    check_name("kind of permutation", kind, KINDS)
    if kind == "group" and not known:
        raise InputError(
            "kind='group' permutes units, but they are unknown; give groups= or families=, or use 'free'"
        )


def nested(fine: Units, coarse: Units) -> bool:
    """Whether every fine unit lies in one coarse unit."""
    return len(np.unique(fine)) == len(np.unique(np.stack([fine, coarse]), axis=1).T)


def _means(values: Accuracies, codes: Units) -> Float64[np.ndarray, " n"]:
    return np.bincount(codes, weights=values) / np.bincount(codes)


def _dealt_inside(values: Accuracies, codes: Units, rng: np.random.Generator) -> Accuracies:
    """`values` permuted among the places of equal code."""
    dealt = np.empty_like(values)
    dealt[np.argsort(codes, kind="stable")] = values[np.lexsort((rng.random(len(codes)), codes))]
    return dealt


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """What is exchangeable under the null: how accuracies are dealt out anew.

    Attributes:
        kind: `free` or `group`.
        units: Family of each model, or its training run where no families are known; None for `free`.
        within: Training runs where they are nested in families.
        unit_kind: What `units` are: `family`, `group` or `model`.
    """

    kind: Kind
    units: Int64[np.ndarray, " m"] | None
    within: Int64[np.ndarray, " m"] | None
    unit_kind: str

    @classmethod
    def of(cls, data: CorrectnessData, kind: Kind | None = None) -> "Exchange":
        """What fits the data: `group` where runs or families are known, unless `kind` says else."""
        known = data.unit_kind != "model" or len(np.unique(data.copies)) < data.n_models
        kind = kind or ("group" if known else "free")
        _check_kind(kind, known=known)
        if kind == "free":
            return cls(kind=kind, units=None, within=None, unit_kind="model")
        # Runs lie inside families: `CorrectnessData` holds no others.
        both = data.families is not None and data.groups is not None
        within = data.unit_codes("group") if both else None
        return cls(kind=kind, units=data.units, within=within, unit_kind=data.unit_kind)

    def draw(self, id_accuracy: Accuracies, seed: int, place: int) -> Accuracies:
        """Permutation number `place` under a seed, whatever was drawn before."""
        rng = stream(seed, f"permutation {place}")
        return permute_accuracy(id_accuracy, self.units, rng, self.kind, within=self.within)


# ------------------------------------------------------------------------------------- running it again


def n_workers(workers: int | None, settings: Settings) -> int:
    """Threads to use: as asked, else one per available core, or one where an accelerator does the work."""
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected at least 1, or None for one per core")
    if workers is not None:
        return workers
    return 1 if settings.on_accelerator else usable_cores()


def run_permutations(
    rerun: Callable[[int], T],
    n: int,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    stage: str = "permutations",
    settled: Callable[[Sequence[T]], bool] | None = None,
    likely_end: int = 0,
) -> list[T]:
    """`rerun(0), ..., rerun(n - 1)` on threads, one of BLAS and torch each: same for any number of workers.

    Args:
        rerun: What to do for each place; draws from a stream of its own.
        n: How many.
        workers: Threads.
        progress: Called with stage, done and total.
        stage: Its name.
        settled: Asked after every result, in order; True ends the run early, and what other threads have
            begun by then is left out.
        likely_end: How many results are likely to settle it: no more is begun before these are there.

    Raises:
        KeyboardInterrupt: At once; what threads have begun goes on.
    """
    from threadpoolctl import threadpool_limits

    results: list[T] = []
    with threadpool_limits(limits=1, user_api="blas"), _threads(workers) as pool:
        for result in _in_order(lambda place: pool.submit(rerun, place), n, workers, likely_end):
            results.append(result)
            if progress is not None:
                progress(stage, len(results), n)
            if settled is not None and settled(results):
                break
    return results


@contextlib.contextmanager
def _threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """Threads of one thread of torch each; Ctrl-C does not wait for what they have begun."""
    import torch

    of_others = torch.get_num_threads()
    pool, waits = ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)), True
    try:
        yield pool
    except KeyboardInterrupt:
        waits = False
        raise
    finally:
        pool.shutdown(wait=waits, cancel_futures=True)
        torch.set_num_threads(of_others)


def _in_order(begin: Callable[[int], Future[T]], n: int, workers: int, likely_end: int = 0) -> Iterator[T]:
    """Results by place, and the error of a place once it is the first missing one.

    Those under way and those that wait for the first missing one are at most `workers`.
    """
    places = list(range(n))  # to begin, ascending
    running: dict[Future[T], int] = {}
    ahead: dict[int, Future[T]] = {}
    for head in range(n):
        while head not in ahead:
            while places and len(running) < workers:
                full = len(running) + len(ahead) >= workers
                if places[0] != head and (full or head < likely_end <= places[0]):
                    break
                place = places.pop(0)
                running[begin(place)] = place
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                ahead[running.pop(future)] = future
        yield ahead.pop(head).result()


# ------------------------------------------------------------------------------------------- p-values


def reached(
    observed: Float64[np.ndarray, " n_sizes"], null: Float64[np.ndarray, "n_permutations n_sizes"]
) -> tuple[Bool[np.ndarray, "n_permutations n_sizes"], Bool[np.ndarray, "n_permutations n_sizes"]]:
    """Which permutations were at least as low: at the same size, and at any size.

    A permutation whose correlation at a size is undefined counts as having reached it there: undefined is no
    evidence for the subset.
    """
    undefined = np.isnan(null)
    # Accuracies dealt out and back through the probit differ in the last bits.
    observed = observed + _ROUNDING
    lowest = np.min(np.where(undefined, np.inf, null), axis=1, keepdims=True, initial=np.inf)
    return undefined | (null <= observed), undefined | (lowest <= observed)


def permutation_p(
    observed: Float64[np.ndarray, " n_sizes"], null: Float64[np.ndarray, "n_permutations n_sizes"]
) -> tuple[Float64[np.ndarray, " n_sizes"], Float64[np.ndarray, " n_sizes"]]:
    """One-sided p-values of low correlations, for each size by itself and corrected for the sweep over sizes.

    p(S) = (1 + #{R_b(S) <= R(S)}) / (B + 1), p_adj(S) = (1 + #{min over S' of R_b(S') <= R(S)}) / (B + 1).

    Args:
        observed: R per size; NaN gives NaN.
        null: R per permutation and size; NaN counts as reached.

    References:
        Phipson and Smyth (2010), doi:10.2202/1544-6115.1585; Westfall and Young (1993), minimum-statistic
        correction.

    Example:
        >>> null = np.array([[-0.1, -0.3], [0.1, 0.2], [-0.6, 0.0]])
        >>> p, adjusted = permutation_p(np.array([-0.5, -0.2]), null)
        >>> p.tolist(), adjusted.tolist()
        ([0.5, 0.5], [0.5, 0.75])
    """
    defined, total = ~np.isnan(observed), len(null) + 1
    same, anywhere = (
        np.where(defined, (1 + each.sum(axis=0)) / total, np.nan) for each in reached(observed, null)
    )
    return same, anywhere


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
    def of(cls, n: int, level: float) -> "SequentialPermutation":
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
