"""What a selection finds where nothing is: the whole selection, run again under permuted accuracies."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float64, Int64
from scipy import special

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import Matrix
from assay.analyses.subsets.line import clip_of, line_correlation, probit
from assay.analyses.subsets.selection import Problem, Settings, check_size
from assay.analyses.subsets.splits import PARTS, ModelSplit, unit_codes
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.machine import usable_cores
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import benjamini_hochberg


Kind = Literal["free", "group"]
Progress = Callable[[str, int, int], None]
T = TypeVar("T")
Sizes = Sequence[int] | Int64[np.ndarray, " n_sizes"]

KINDS = ("free", "group")
AOTL = "aotl"
N_PERMUTATIONS = 99
LIBERAL = (
    "liberal: the simulated examples are independent given the in-distribution accuracy, and real ones are "
    "not, so its null is too narrow and its p-value too small"
)
_PROBIT_STEPS = 12  # Newton steps at most; four to six are usual
_FAR = 6.0  # |alpha + beta z| at which Phi is taken as 0 or 1: separable examples stop there
_ROUNDING = 1e-12
_COLUMNS = 1 << 21  # entries worked on at a time


# ------------------------------------------------------------------------------------------ permuting


def permute_accuracy(
    id_accuracy: Float64[np.ndarray, " m"],
    units: Int64[np.ndarray, " m"] | None,
    rng: np.random.Generator,
    kind: Kind = "group",
    *,
    within: Int64[np.ndarray, " m"] | None = None,
) -> Float64[np.ndarray, " m"]:
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
    if kind not in KINDS:
        raise unknown_name("kind of permutation", kind, KINDS)
    if kind == "free":
        return y[rng.permutation(len(y))]
    if units is None:
        raise InputError(
            "kind='group' permutes units and none are known; give groups= or families=, or 'free'"
        )
    coarse = unit_codes(units)
    if coarse.shape != y.shape:
        raise ShapeError(f"units has shape {coarse.shape}, id_accuracy {y.shape}: one unit per model")
    t = probit(y)
    means = _means(t, coarse)
    found = means[rng.permutation(len(means))][coarse]
    residual = t - means[coarse]
    if within is not None:
        fine = unit_codes(within)
        if not nested(fine, coarse):
            raise InputError(
                "a unit of `within` lies in two of `units`; training runs belong to one family each"
            )
        deviations = _means(residual, fine)
        home = np.zeros(len(deviations), dtype=np.int64)
        home[fine] = coarse
        found += _dealt_inside(deviations, home, rng)[fine]
        residual, coarse = residual - deviations[fine], fine
    return np.asarray(special.ndtr(found + _dealt_inside(residual, coarse, rng)))


def nested(fine: Int64[np.ndarray, " m"], coarse: Int64[np.ndarray, " m"]) -> bool:
    """Whether every fine unit lies in one coarse unit."""
    return len(np.unique(fine)) == len(np.unique(np.stack([fine, coarse]), axis=1).T)


def _means(values: Float64[np.ndarray, " m"], codes: Int64[np.ndarray, " m"]) -> Float64[np.ndarray, " n"]:
    return np.bincount(codes, weights=values) / np.bincount(codes)


def _dealt_inside(
    values: Float64[np.ndarray, " m"], codes: Int64[np.ndarray, " m"], rng: np.random.Generator
) -> Float64[np.ndarray, " m"]:
    """`values` permuted among the places of equal code."""
    found = np.empty_like(values)
    found[np.argsort(codes, kind="stable")] = values[np.lexsort((rng.random(len(codes)), codes))]
    return found


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
        known = data.families is not None or data.groups is not None
        if kind is None:
            kind = "group" if known else "free"
        if kind not in KINDS:
            raise unknown_name("kind of permutation", kind, KINDS)
        if kind == "free":
            return cls(kind=kind, units=None, within=None, unit_kind="model")
        if not known:
            raise InputError(
                "kind='group' permutes units and none are known; give the data groups= or families=, or ask "
                "for kind='free'"
            )
        within = None
        if data.families is not None and data.groups is not None:
            runs = unit_codes(data.groups)
            within = runs if nested(runs, unit_codes(data.families)) else None
        return cls(kind=kind, units=data.units, within=within, unit_kind=data.unit_kind)

    def draw(
        self, id_accuracy: Float64[np.ndarray, " m"], seed: int, place: int
    ) -> Float64[np.ndarray, " m"]:
        """Permutation number `place` under a seed, whatever was drawn before."""
        rng = stream(seed, f"permutation {place}")
        return permute_accuracy(id_accuracy, self.units, rng, self.kind, within=self.within)


# ------------------------------------------------------------------------------------- running it again


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A selection problem and the rows of its test models: matrices made once, shared by all reruns."""

    problem: Problem
    test: Matrix

    @classmethod
    def of(cls, data: CorrectnessData, split: ModelSplit, settings: Settings) -> "Parts":
        """The matrices of a split, laid out as the settings ask."""
        return cls(
            problem=Problem.of(data, split, settings),
            test=data.matrix(split.test, layout=settings.layout, device=settings.device),
        )

    @property
    def split(self) -> ModelSplit:
        """The parts of the models."""
        return self.problem.split

    def select(self, id_accuracy: Float64[np.ndarray, " m"], size: int) -> Int64[np.ndarray, " size"]:
        """One run of the solver on the training and validation models, under these accuracies."""
        return self.problem.solve(size, id_accuracy=id_accuracy).indices

    def accuracy(self, examples: Int64[np.ndarray, " size"], part: str = "test") -> Float64[np.ndarray, " n"]:
        """Accuracy of the models of a part on examples."""
        matrix = {"train": self.problem.train, "validation": self.problem.validation, "test": self.test}[part]
        return np.asarray(matrix.count(examples), dtype=np.float64) / len(examples)

    def correlation(
        self,
        examples: Int64[np.ndarray, " size"],
        id_accuracy: Float64[np.ndarray, " m"],
        part: str = "test",
    ) -> float:
        """R of a part on examples; NaN where it is undefined."""
        settings = self.problem.settings
        eps = clip_of(settings.clip, len(examples), settings.eps)
        return line_correlation(
            id_accuracy[self.split.part(part)], self.accuracy(examples, part), eps=eps, id_eps=settings.eps
        )


def n_workers(workers: int | None, settings: Settings) -> int:
    """Threads to use: as asked, else one per available core; one where an accelerator does the work."""
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}; at least 1 is needed, or None for one per core")
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

    found: list[T] = []
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
        width = n if settled is None else batch
        for start in range(0, n, width):
            for each in pool.map(rerun, range(start, min(start + width, n))):
                found.append(each)
                if progress is not None:
                    progress(stage, len(found), n)
            if settled is not None and len(found) < n and settled(found):
                break
    return found


# ------------------------------------------------------------------------------------------- p-values


def reached(
    observed: Float64[np.ndarray, " n_sizes"], null: Float64[np.ndarray, "n_permutations n_sizes"]
) -> tuple[Int64[np.ndarray, " n_sizes"], Int64[np.ndarray, " n_sizes"]]:
    """How many permutations were at least as low: at the same size, and at any size.

    A permutation whose correlation at a size is undefined counts as having reached it there: undefined is no
    evidence for the subset.
    """
    undefined = np.isnan(null)
    observed = (
        observed + _ROUNDING
    )  # accuracies dealt out and back through the probit differ in the last bits
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


def correct_over_sets(p_values: Sequence[float | int] | np.ndarray) -> Float64[np.ndarray, " n"]:
    """Benjamini-Hochberg over data sets, or over out-of-distribution environments of one.

    Args:
        p_values: One per set, each already corrected for its sweep over sizes; NaN for a set not tested.

    Returns:
        Smallest false discovery rate at which each set would count; NaN where the p-value is.

    References:
        Benjamini and Hochberg (1995), doi:10.1111/j.2517-6161.1995.tb02031.x.

    Example:
        >>> correct_over_sets([0.01, 0.04, 0.3]).round(3).tolist()
        [0.03, 0.06, 0.3]
    """
    return benjamini_hochberg(np.asarray(p_values, dtype=np.float64))


def checked_sizes(size: int | Sizes, n_examples: int) -> tuple[int, ...]:
    """One size or several, as a tuple.

    Raises:
        InputError: For no size, or one outside [1, N].
    """
    sizes = (int(size),) if isinstance(size, int | np.integer) else tuple(size)
    if not sizes:
        raise InputError("no size given; at least one is needed")
    return tuple(check_size(each, n_examples) for each in sizes)


# ---------------------------------------------------------------------------------------------- nulls


@dataclass(frozen=True, kw_only=True, eq=False)
class PermutationNull(Record):
    """The selection of some sizes against itself where in-distribution accuracy says nothing.

    Attributes:
        kind: `free`, `group`, or `aotl` for the parametric null.
        sizes: Examples selected, k sizes.
        n_permutations: Reruns B.
        observed: Part (`train`, `validation`, `test`) -> R per size, of the real accuracies.
        null: Part -> `[B, k]` R of the reruns; NaN where undefined.
        p_values: Per size, on the test models; NaN where the observed R is undefined.
        p_adjusted: The same, corrected for having looked at all k sizes.
        optimism: Per size, mean train minus mean test R of the reruns: what the optimiser finds in noise.
        unit_kind: What was permuted: `family`, `group` (training run) or `model`.
        note: What to beware of, else None.
    """

    kind: str
    sizes: tuple[int, ...]
    n_permutations: int
    observed: Mapping[str, Float64[np.ndarray, " k"]]
    null: Mapping[str, Float64[np.ndarray, "n_permutations k"]]
    p_values: Float64[np.ndarray, " k"]
    p_adjusted: Float64[np.ndarray, " k"]
    optimism: Float64[np.ndarray, " k"]
    unit_kind: str
    note: str | None = None

    @property
    def p_value(self) -> float:
        """Of the smallest adjusted size; with one size, its p-value."""
        return float(np.nanmin(self.p_adjusted)) if np.isfinite(self.p_adjusted).any() else math.nan


def numbers(values: Iterable[Any]) -> Float64[np.ndarray, "..."]:
    """Numbers of a record, null as NaN."""
    return np.array(values, dtype=np.float64)  # numpy reads None as NaN


def permutation_null(
    data: CorrectnessData,
    size: int | Sizes,
    split: ModelSplit,
    *,
    settings: Settings,
    kind: Kind | None = None,
    n_permutations: int = N_PERMUTATIONS,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PermutationNull:
    """The whole selection run again under permuted in-distribution accuracies, on one split of the models.

    Args:
        data: Models by examples.
        size: Examples to select; with several, p-values are also corrected for the sweep.
        split: Parts of the models; the permuted accuracies are those of all parts.
        settings: Of the solver.
        kind: `group` permutes units, `free` models; see `permute_accuracy`. Default: `group` where training
            runs or families are known.
        n_permutations: Reruns B; the smallest possible p is 1 / (B + 1).
        seed: Root seed; every permutation has a stream of its own.
        workers: Threads, which share the matrices. Default: one per core. The result does not depend on it.
        progress: Called with stage, reruns done and their number.

    Notes:
        A split whose parts share families or training runs makes accidents of a family look like findings on
        held-out models; `kind="group"` has their dependence in its null, `free` has not (false positives in
        up to a third of simulated data sets).
    """
    if n_permutations < 1:
        raise InputError(
            f"n_permutations is {n_permutations}; at least 1 is needed, {N_PERMUTATIONS} by default"
        )
    sizes = checked_sizes(size, data.n_examples)
    exchange = Exchange.of(data, kind)
    parts = Parts.of(data, split, settings)
    y = data.id_accuracy

    def rerun(place: int) -> Float64[np.ndarray, "3 k"]:
        return selected_correlations(parts, exchange.draw(y, seed, place), sizes)

    observed = run_permutations(lambda _: selected_correlations(parts, y, sizes), 1)[0]
    drawn = run_permutations(rerun, n_permutations, workers=n_workers(workers, settings), progress=progress)
    return _null(exchange.kind, sizes, observed, np.stack(drawn), unit_kind=exchange.unit_kind)


def selected_correlations(
    parts: Parts, id_accuracy: Float64[np.ndarray, " m"], sizes: tuple[int, ...]
) -> Float64[np.ndarray, "3 k"]:
    """R on train, validation and test models of the subset selected at each size."""
    found = np.full((len(PARTS), len(sizes)), np.nan)
    for column, size in enumerate(sizes):
        examples = parts.select(id_accuracy, size)
        found[:, column] = [parts.correlation(examples, id_accuracy, part) for part in PARTS]
    return found


def _null(
    kind: str,
    sizes: tuple[int, ...],
    observed: Float64[np.ndarray, "3 k"],
    drawn: Float64[np.ndarray, "n_permutations 3 k"],
    *,
    unit_kind: str,
    note: str | None = None,
) -> PermutationNull:
    test = PARTS.index("test")
    p_values, p_adjusted = permutation_p(observed[test], drawn[:, test])
    means = np.full((len(PARTS), len(sizes)), np.nan)
    defined = np.isfinite(drawn).all(axis=0)
    means[defined] = drawn.mean(axis=0)[defined]
    return PermutationNull(
        kind=kind,
        sizes=sizes,
        n_permutations=len(drawn),
        observed={part: observed[row] for row, part in enumerate(PARTS)},
        null={part: drawn[:, row] for row, part in enumerate(PARTS)},
        p_values=p_values,
        p_adjusted=p_adjusted,
        optimism=means[PARTS.index("train")] - means[test],
        unit_kind=unit_kind,
        note=note,
    )


# -------------------------------------------------------------------------------------- parametric null


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemCurves:
    """P(model i is right on example j) = Phi(alpha_j + beta_j z_i), z the standardised probit(y).

    Attributes:
        alpha: Per example.
        beta: Per example; negative for an example that better models get wrong more often.
    """

    alpha: Float64[np.ndarray, " n_examples"]
    beta: Float64[np.ndarray, " n_examples"]


def fit_item_curves(
    matrix: Matrix, id_accuracy: Float64[np.ndarray, " m"], *, steps: int = _PROBIT_STEPS
) -> ItemCurves:
    """Probit regression of every example on in-distribution accuracy, all at once, by Fisher scoring.

    Args:
        matrix: Models by examples.
        id_accuracy: Of the same models.
        steps: At most; columns stop at a change below 1e-8.

    Notes:
        Half a right and half a wrong answer at mean ability are added to every example, so that constant and
        separable ones have finite curves. Curves are held within |alpha + beta z| <= 6 during the fit.
    """
    t = probit(id_accuracy)
    spread = t.std()
    z = (t - t.mean()) / (spread if spread > 0 else 1.0)
    design = np.stack([np.ones_like(z), z], axis=1)
    n = matrix.n_examples
    alpha, beta = np.empty(n), np.empty(n)
    for columns in column_chunks(n, matrix.n_models):
        x = matrix.dense(columns).astype(np.float64)
        a, b = _fit_chunk(x, design, steps)
        alpha[columns], beta[columns] = a, b
    return ItemCurves(alpha=alpha, beta=beta)


def column_chunks(n_examples: int, n_models: int) -> Iterable[Int64[np.ndarray, " k"]]:
    """Places of examples, so many at a time that a dense chunk over the models stays small."""
    width = max(1, _COLUMNS // max(n_models, 1))
    for start in range(0, n_examples, width):
        yield np.arange(start, min(start + width, n_examples))


def _fit_chunk(
    x: Float64[np.ndarray, "m k"], design: Float64[np.ndarray, "m 2"], steps: int
) -> tuple[Float64[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    m, k = x.shape
    a = special.ndtri((x.sum(axis=0) + 0.5) / (m + 1))
    b = np.zeros(k)
    one, z = design.T
    for _ in range(steps):
        eta = np.clip(a + np.outer(z, b), -_FAR, _FAR)
        density = np.exp(-0.5 * eta * eta) / math.sqrt(2 * math.pi)
        p = special.ndtr(eta)
        variance = p * special.ndtr(-eta)
        working, weight = (x - p) * density / variance, density * density / variance
        # The pseudo-answers at z = 0: half right, half wrong.
        at_zero = np.clip(a, -_FAR, _FAR)
        d0, p0 = np.exp(-0.5 * at_zero * at_zero) / math.sqrt(2 * math.pi), special.ndtr(at_zero)
        v0 = p0 * special.ndtr(-at_zero)
        ga = one @ working + (0.5 - p0) * d0 / v0
        gb = z @ working
        haa = one @ weight + d0 * d0 / v0
        hab, hbb = z @ weight, (z * z) @ weight
        determinant = haa * hbb - hab * hab
        sound = determinant > 1e-12 * np.maximum(haa * hbb, 1e-300)
        safe = np.where(sound, determinant, 1.0)
        da = np.where(sound, (hbb * ga - hab * gb) / safe, ga / haa)
        db = np.where(sound, (haa * gb - hab * ga) / safe, 0.0)
        shrink = np.minimum(1.0, 1.0 / np.maximum(np.maximum(np.abs(da), np.abs(db)), 1e-300))
        a, b = np.clip(a + shrink * da, -_FAR, _FAR), np.clip(b + shrink * db, -_FAR, _FAR)
        if max(np.abs(da).max(initial=0.0), np.abs(db).max(initial=0.0)) < 1e-8:
            break
    return a, b


def aotl_null(
    data: CorrectnessData,
    size: int | Sizes,
    split: ModelSplit,
    *,
    settings: Settings,
    n_simulations: int = N_PERMUTATIONS,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> PermutationNull:
    """The selection against data simulated on the line: no example has a negative slope. Parametric, LIBERAL.

    Every example is fitted as P(X_ij = 1) = Phi(alpha_j + max(beta_j, 0) z_i) with z the standardised
    probit(y); an example with beta_j < 0 keeps its accuracy and loses its slope. Answers are drawn anew,
    independent given the curves, and the selection is run on them with the real accuracies.

    Args:
        data: Models by examples; curves are fitted on all models.
        size: Examples to select, one size or several.
        split: Parts of the models.
        settings: Of the solver.
        n_simulations: Data sets drawn.
        seed: Root seed; every simulation has a stream of its own.
        workers: Threads; each holds one simulated matrix, M x N bytes whatever the layout. The result does
            not depend on it.
        progress: Called with stage, simulations done and their number.

    Returns:
        `kind` is `aotl` and `note` says why its p-value must not carry a verdict: the simulated answers have
        no residual dependence, real ones have, so real data reach lower correlations even without such a
        subset.
    """
    if n_simulations < 1:
        raise InputError(
            f"n_simulations is {n_simulations}; at least 1 is needed, {N_PERMUTATIONS} by default"
        )
    sizes = checked_sizes(size, data.n_examples)
    y = data.id_accuracy
    curves = fit_item_curves(data.matrix(layout=settings.layout, device=settings.device), y)
    t = probit(y)
    z = (t - t.mean()) / (t.std() or 1.0)
    rising = np.maximum(curves.beta, 0.0)
    share = data.example_accuracy()
    level = np.where(curves.beta < 0, special.ndtri((share * len(y) + 0.5) / (len(y) + 1)), curves.alpha)

    def simulate(rng: np.random.Generator) -> np.ndarray:
        drawn = np.empty((len(y), data.n_examples), dtype=np.uint8)
        for columns in column_chunks(data.n_examples, len(y)):
            p = special.ndtr(level[columns] + np.outer(z, rising[columns]))
            drawn[:, columns] = rng.random(p.shape) < p
        return drawn

    def rerun(place: int) -> Float64[np.ndarray, "3 k"]:
        drawn = simulate(stream(seed, f"aotl simulation {place}"))
        return selected_correlations(Parts.of(replace(data, correct=drawn), split, settings), y, sizes)

    parts = Parts.of(data, split, settings)
    observed = run_permutations(lambda _: selected_correlations(parts, y, sizes), 1)[0]
    drawn = run_permutations(
        rerun, n_simulations, workers=n_workers(workers, settings), progress=progress, stage="simulations"
    )
    return _null(AOTL, sizes, observed, np.stack(drawn), unit_kind="model", note=LIBERAL)
