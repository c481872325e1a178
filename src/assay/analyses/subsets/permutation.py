"""Permutations of in-distribution accuracies, reruns under them, and the p-values that follow."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float64, Int64
from scipy import special

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
    return np.asarray(special.ndtr(dealt + _dealt_inside(residual, coarse, rng)))


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
        known = data.unit_kind != "model"
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
    """Threads to use: as asked, else one per available core; one where an accelerator does the work."""
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; expected at least 1, or None for one per core")
    if settings.layout == "accelerator":
        return 1
    if workers is not None:
        return workers
    return usable_cores()


def run_permutations(
    rerun: Callable[[int], T],
    n: int,
    *,
    workers: int = 1,
    progress: Progress | None = None,
    stage: str = "permutations",
    settled: Callable[[Sequence[T]], bool] | None = None,
    batch: int = 10,
) -> list[T]:
    """`rerun(0), ..., rerun(n - 1)` on threads, one BLAS thread each: the same for any number of workers.

    Args:
        rerun: What to do for each place; draws from a stream of its own.
        n: How many.
        workers: Threads.
        progress: Called with stage, done and total.
        stage: Its name.
        settled: Asked after every `batch`; True ends the run early.
        batch: Runs between two questions, the same whatever the number of workers.
    """
    from threadpoolctl import threadpool_limits

    results: list[T] = []
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        width = n if settled is None else batch
        for start in range(0, n, width):
            for each in pool.map(rerun, range(start, min(start + width, n))):
                results.append(each)
                if progress is not None:
                    progress(stage, len(results), n)
            if settled is not None and len(results) < n and settled(results):
                break
    return results


# ------------------------------------------------------------------------------------------- p-values


def reached(
    observed: Float64[np.ndarray, " n_sizes"], null: Float64[np.ndarray, "n_permutations n_sizes"]
) -> tuple[Int64[np.ndarray, " n_sizes"], Int64[np.ndarray, " n_sizes"]]:
    """How many permutations were at least as low: at the same size, and at any size.

    A permutation whose correlation at a size is undefined counts as having reached it there: undefined is no
    evidence for the subset.
    """
    undefined = np.isnan(null)
    # Accuracies dealt out and back through the probit differ in the last bits.
    observed = observed + _ROUNDING
    same = undefined | (null <= observed)
    lowest = np.min(np.where(undefined, np.inf, null), axis=1, keepdims=True, initial=np.inf)
    anywhere = undefined | (lowest <= observed)
    return same.sum(axis=0), anywhere.sum(axis=0)


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
    same, anywhere = reached(observed, null)
    defined = ~np.isnan(observed)
    total = len(null) + 1
    return np.where(defined, (1 + same) / total, np.nan), np.where(defined, (1 + anywhere) / total, np.nan)
