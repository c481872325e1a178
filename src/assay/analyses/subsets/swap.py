"""The default solver: exchange examples along the gradient, from covariance to correlation, in whole counts.

The objective of a set of S examples over the training models, with c_i the correct answers of model i on it,
is

    F_rho = u.z / sqrt(u.u + rho),   t_i = Phi^-1(clip(c_i / S, e, 1 - e)),   u = t - mean(t),

with z the centred, unit-norm probit of in-distribution accuracy. At rho = 0 this is the correlation R; a
large rho turns it into covariance screening, which hardly overfits. The solver follows rho from large to 0,
exchanges blocks of members for outsiders at every step, and keeps the set with the lowest R on the validation
models.
"""

import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Float64, Integer, Num

from assay.analyses.subsets._arrays import Accuracies
from assay.analyses.subsets._exchange import Pairs, Pool
from assay.analyses.subsets.layouts import AnswerTable, whole_weights
from assay.analyses.subsets.line import DEGENERATE, EPS, probit
from assay.analyses.subsets.objective import (
    FLOOR,
    Found,
    centred,
    line_gradient,
    marginal_scores,
    unit_probit,
)
from assay.analyses.subsets.placement import fewest_products, for_many
from assay.core.errors import AssayWarning


T = TypeVar("T")
_Asking = Generator[np.ndarray, np.ndarray, T]  # yields whole weights of models, is sent weights @ X


KAPPAS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)  # rho in units of ||u||^2 at the start
LAST_KAPPA_WITHOUT_VALIDATION = 0.1
MAX_ITERATIONS = 200  # gradients per kappa
PATIENCE = 40  # accepted steps without a lower validation R before the next kappa
MIN_GAIN = 1e-9


@dataclass(frozen=True, kw_only=True, eq=False)
class SwapTask:
    """One set to select.

    Attributes:
        size: S, examples to select.
        id_train: In-distribution accuracy of the training models, in [0, 1].
        id_validation: That of the validation models; None without any.
        start: Members to start from instead of the lowest marginal scores. Fewer than S are extended by
            the lowest entries of the gradient of R at that set.
        fixed: Members of a smaller set that may not leave, for nested sets.
    """

    size: int
    id_train: Accuracies
    id_validation: Float64[np.ndarray, " v"] | None = None
    start: Integer[np.ndarray, " s"] | None = None
    fixed: Integer[np.ndarray, " f"] | None = None


def swap(
    train: AnswerTable,
    id_train: Accuracies,
    size: int,
    *,
    id_validation: Float64[np.ndarray, " v"] | None = None,
    start: Integer[np.ndarray, " s"] | None = None,
    fixed: Integer[np.ndarray, " f"] | None = None,
    **options: Any,
) -> Found:
    """The S examples on which the correlation of out- with in-distribution accuracy is lowest.

    For every kappa of `KAPPAS`, each from where the last one ended: take the gradient at rho = kappa
    ||u_start||^2, pair the members of largest with the outsiders of smallest gradient, exchange a block of
    pairs if the objective falls, else halve the block. Deterministic: no learning rate, no restarts. Ties go
    to the lower index, and gradients are sums of whole numbers (`whole_weights`), so that the set does not
    depend on the layout of the matrices, on threads or on the device.

    Args:
        train: Correctness of the training models, m models x N examples.
        id_train: Their held-out in-distribution accuracy, in [0, 1].
        size: S, examples to select.
        id_validation: As of `SwapTask`.
        start: As of `SwapTask`.
        fixed: As of `SwapTask`.
        options: All others of `swap_together`.

    Returns:
        The best set by validation. Its trace has per kappa: `iterations` (gradients), `accepted` (steps),
        `block` (at the end), `r_train`, `r_validation` (at the end) and `best_r_validation` (so far).

    Raises:
        InputError: If size, strata and constraints cannot all be met, or the accuracies of a side do not
        vary.

    Notes:
        Shapes and names are checked by `assay.oodselect`, which calls it.
        One pass over the matrix per iteration, 30 to 600 of them. Without validation models the last kappa is
        0.1, where overfitting is still mild; the last set is kept, with a warning.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4 for the objective; the solver is not in it.
    """
    task = SwapTask(size=size, id_train=id_train, id_validation=id_validation, start=start, fixed=fixed)
    return swap_together(train, [task], **options)[0]


def swap_together(
    train: AnswerTable,
    tasks: Sequence[SwapTask],
    *,
    validation: AnswerTable | None = None,
    strata: Integer[np.ndarray, " strata"] | None = None,
    allowed: Bool[np.ndarray, " mask"] | None = None,
    must_include: Integer[np.ndarray, " k"] | None = None,
    objective: str = "r",
    eps: float | int = EPS,
    keep_path: bool = False,
) -> list[Found]:
    """`swap` for each of several tasks, side by side: the same sets, with a pass over the matrix for all.

    Args:
        train: As of `swap`.
        tasks: Sets to select, none of which leads to another.
        validation: Correctness of the validation models on the same examples. The set of lowest validation R
            on the whole way is kept, the start included.
        strata: Stratum code (>= 0) of every example. The set has every stratum's share of the allowed
            examples (`stratum_quota`), and exchanges stay inside strata.
        allowed: Which examples may be selected; default all.
        must_include: Examples that are always selected.
        objective: `r` minimises R; `r2` minimises R^2, for sets on which the two accuracies are unrelated,
            and starts from the examples whose marginal score is nearest 0.
        eps: Clip of accuracies before the probit; the objective clips at max(eps, 0.25 / S).
        keep_path: Give the start and the set after every accepted step in `extras["path"]`, a tuple of dicts
            with `kappa` (None at the start), `r_train`, `r_validation` and ascending `indices`.
    """
    kappas = [each for each in KAPPAS if validation is not None or each >= LAST_KAPPA_WITHOUT_VALIDATION]
    trajectories = []
    for task in tasks:
        pool = Pool(
            train.n_examples,
            task.size,
            strata=strata,
            allowed=allowed,
            locked={"must_include": must_include, "fixed": task.fixed},
        )
        held_out = None
        if validation is not None and task.id_validation is not None:
            held_out = _ModelPart(validation, task.id_validation, task.size, eps, "id_validation")
        trajectory = _Trajectory(
            training=_ModelPart(train, task.id_train, task.size, eps, "id_train"),
            held_out=held_out,
            pool=pool,
            square=objective == "r2",
            keep_path=keep_path,
        )
        trajectories.append(trajectory)
    # Sizes share their accuracies, and with them the marginal scores.
    accuracies = {id(task.id_train): task.id_train for task in tasks}
    scores = {key: marginal_scores(train, each, eps=eps) for key, each in accuracies.items()}
    runs = [
        each.solve(scores[id(task.id_train)], task.start, kappas)
        for each, task in zip(trajectories, tasks, strict=True)
    ]
    found = _side_by_side(runs, train)
    if validation is None:
        warnings.warn(
            f"validation models are missing: swap stopped after kappa = {LAST_KAPPA_WITHOUT_VALIDATION} and "
            "kept the last set. Give validation= and id_validation=, which choose when to stop",
            AssayWarning,
            stacklevel=3,
        )
    return found


def _side_by_side(runs: Sequence[_Asking[Found]], matrix: AnswerTable) -> list[Found]:
    """What runs return that ask for products with the matrix: at each turn one product for all that ask."""
    found: dict[int, Found] = {}
    many, fewest = for_many(matrix, len(runs)), fewest_products()
    asked = {place: next(run) for place, run in enumerate(runs)}
    while asked:
        products = (many if len(asked) >= fewest else matrix).weigh_many(np.stack(list(asked.values())))
        for place, product in zip(list(asked), products, strict=True):
            try:
                asked[place] = runs[place].send(product)
            except StopIteration as end:
                found[place] = end.value
                del asked[place]
    return [found[place] for place in range(len(runs))]


class _ModelPart:
    """One part of the models, with its counts on the current set."""

    def __init__(self, matrix: AnswerTable, id_accuracy: np.ndarray, size: int, eps: float | int, name: str):
        self.matrix, self.size, self.eps = matrix, size, eps
        self.z = unit_probit(id_accuracy, eps=eps, name=name)
        self.counts = np.zeros(matrix.n_models, dtype=np.int64)

    def after(self, pairs: Pairs, inside: Bool[np.ndarray, " n"]) -> Num[np.ndarray, " m"]:
        """Counts once the pairs are exchanged."""
        if len(pairs.leaving) > self.matrix.few * self.matrix.n_examples:
            members = inside.copy()
            members[pairs.leaving], members[pairs.entering] = False, True
            return self.matrix.count(np.flatnonzero(members))
        return np.asarray(self.counts + self.matrix.gained(pairs.entering, pairs.leaving))

    def r(self, counts: np.ndarray | None = None) -> float:
        """R as it is reported: no ridge, clipped at eps; NaN where undefined."""
        counts = self.counts if counts is None else counts
        line = centred(probit(counts / self.size, eps=self.eps), self.z)
        return float("nan") if line.constant else line.value


class _Best(NamedTuple):
    """The set kept so far, with what is needed to order its members."""

    inside: np.ndarray
    counts: np.ndarray
    ridge: float
    r_validation: float


class _Linearised(NamedTuple):
    """The objective at a set and its gradient, without the parts that are the same for every example.

    The derivative with respect to the weight of example j is (gradient_j / scale - weights.a) / S.
    """

    value: float
    gradient: Float[np.ndarray, " n"]  # whole numbers
    scale: float
    weights: Float64[np.ndarray, " m"]


class _Trajectory:
    """State of one solve: the set, the counts of both sides, the best set and the trace."""

    def __init__(
        self, *, training: _ModelPart, held_out: _ModelPart | None, pool: Pool, square: bool, keep_path: bool
    ):
        self.training, self.held_out, self.pool, self.square = training, held_out, pool, square
        self.clip = max(training.eps, FLOOR / pool.size)
        self.trace: list[dict[str, Any]] = []
        self.path: list[dict[str, Any]] | None = [] if keep_path else None

    def solve(self, scores: np.ndarray, start: np.ndarray | None, kappas: Sequence[float]) -> _Asking[Found]:
        """The whole way, from the members of `start`, else from the lowest marginal scores."""
        yield from self.begin(scores, start)
        for kappa in kappas:
            yield from self.descend(kappa)
        return (yield from self.found())

    def begin(self, scores: np.ndarray, start: np.ndarray | None) -> _Asking[None]:
        """Takes the start; its spread is the unit of the ridge."""
        training, size = self.training, self.pool.size
        if self.square:
            scores = np.abs(scores)
        if start is not None:
            start = self.pool.checked(start, "start")
            if len(start) < size:
                accuracy = training.matrix.count(start) / max(1, len(start))
                scores = (yield from self.linearised(accuracy, 0.0)).gradient.astype(np.float64)
            scores = scores.copy()  # other runs start from them
            scores[start] = -np.inf
        self.inside = self.pool.lowest(scores)
        members = np.flatnonzero(self.inside)
        for side in (training, self.held_out):
            if side is not None:
                side.counts = side.matrix.count(members)
        t = probit(training.counts / size, eps=self.clip)
        spread = float(np.sum((t - t.mean()) ** 2))
        # A start without spread sets no unit; then it is that of models one standard deviation apart.
        self.spread = spread if spread > DEGENERATE else float(len(t))
        self.keep(KAPPAS[0] * self.spread)
        self.record(None)

    def linearised(self, accuracy: np.ndarray, ridge: float) -> _Asking[_Linearised]:
        """One pass over the training matrix."""
        value, weights = line_gradient(accuracy, self.training.z, ridge=ridge, clip=self.clip)
        if self.square:
            value, weights = value * value, 2 * value * weights
        whole, scale = whole_weights(weights)
        return _Linearised(value, (yield whole), scale, weights)

    def objective(self, counts: np.ndarray, ridge: float) -> float:
        value = centred(probit(counts / self.pool.size, eps=self.clip), self.training.z, ridge).value
        return value * value if self.square else value

    def r_validation(self) -> float:
        return float("nan") if self.held_out is None else self.held_out.r()

    def judged(self) -> float:
        """What is kept low on the validation models; an undefined R is never better."""
        r = self.r_validation()
        return float("inf") if np.isnan(r) else r * r if self.square else r

    def descend(self, kappa: float) -> _Asking[None]:
        """One stage: exchanges at a fixed ridge until none helps, or validation has not improved for long."""
        ridge = kappa * self.spread
        block = max(1, self.pool.size // 2)
        iterations = accepted = stale = 0
        lowest = self.judged()
        while block and iterations < MAX_ITERATIONS and stale < PATIENCE:
            here = yield from self.linearised(self.training.counts / self.pool.size, ridge)
            iterations += 1
            # A smaller block takes the first of these pairs, so that a rejected step costs no pass and no
            # sort.
            pairs = self.pool.pairs(here.gradient, self.inside, block)
            if not len(pairs.leaving):
                break
            while block:
                step = Pairs(pairs.leaving[:block], pairs.entering[:block])
                counts = self.training.after(step, self.inside)
                if self.objective(counts, ridge) < here.value - MIN_GAIN:
                    break
                block = len(step.leaving) // 2
            if not block:
                break
            accepted += 1
            self.exchange(step, counts)
            if self.held_out is None:
                self.keep(ridge)
            else:
                now = self.judged()
                stale = 0 if now < lowest else stale + 1
                lowest = min(now, lowest)
                if now < self.lowest:
                    self.keep(ridge)
            self.record(kappa)
        self.trace.append(
            {
                "kappa": kappa,
                "iterations": iterations,
                "accepted": accepted,
                "block": block,
                "r_train": self.training.r(),
                "r_validation": self.r_validation(),
                "best_r_validation": self.best.r_validation,
            }
        )

    def exchange(self, pairs: Pairs, counts: np.ndarray) -> None:
        if self.held_out is not None:
            self.held_out.counts = self.held_out.after(pairs, self.inside)
        self.training.counts = counts
        self.inside[pairs.leaving], self.inside[pairs.entering] = False, True

    def keep(self, ridge: float) -> None:
        """Makes the current set the best one."""
        self.lowest = self.judged()
        self.best = _Best(self.inside.copy(), self.training.counts, ridge, self.r_validation())

    def record(self, kappa: float | None) -> None:
        if self.path is not None:
            r = {"r_train": self.training.r(), "r_validation": self.r_validation()}
            self.path.append({"kappa": kappa, **r, "indices": np.flatnonzero(self.inside)})

    def found(self) -> _Asking[Found]:
        """The best set, its members ordered by the gradient at it."""
        best, size = self.best, self.pool.size
        accuracy = best.counts / size
        there = yield from self.linearised(accuracy, best.ridge)
        members = np.flatnonzero(best.inside)
        members = members[np.argsort(there.gradient[members], kind="stable")]
        gradient = there.gradient[members].astype(np.float64) / there.scale
        return Found(
            indices=members,
            scores=(gradient - float(there.weights @ accuracy)) / size,
            r_train=self.training.r(best.counts),
            r_validation=best.r_validation,
            trace=tuple(self.trace),
            extras={} if self.path is None else {"path": tuple(self.path)},
        )
