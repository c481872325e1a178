"""The default solver: exchange examples along the gradient, from covariance to correlation.

The objective of a set of S examples over the training models, with c_i the correct answers of model i on it,
is

    F_rho = u.z / sqrt(u.u + rho),   t_i = Phi^-1(clip(c_i / S, e, 1 - e)),   u = t - mean(t),

with z the centred, unit-norm probit of in-distribution accuracy. At rho = 0 this is the correlation R; a
large rho turns it into covariance screening, which hardly overfits. The solver follows rho from large to 0,
exchanges blocks of members for outsiders at every step, and keeps the set with the lowest R on the validation
models.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Real

from assay.analyses.subsets.line import DEGENERATE, EPS, Accuracies, Places, probit
from assay.analyses.subsets.matrix import Answers, whole_weights
from assay.core.errors import InputError
from assay.core.record import Record


KAPPAS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)  # rho in units of ||u||^2 at the start
MAX_ITERATIONS = 200  # gradients per kappa
PATIENCE = 40  # accepted steps without a lower validation R before the next kappa
MIN_GAIN = 1e-9
FLOOR = 0.25  # the objective clips accuracies at this share of an example
_RECOUNTED = 1 / 64  # share of the examples from which counting a set costs less than counting its change

# Size, in-distribution accuracy of the training models, and of the validation models.
Task = tuple[int, Float64[np.ndarray, " m"], Float64[np.ndarray, " v"]]
Codes = Int64[np.ndarray, " n"]  # stratum of each example
Mask = Bool[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution(Record):
    """What a solver returns.

    Attributes:
        indices: The S examples in rank order, most harmful first.
        scores: One per example, ascending. For `swap`: the derivative of the objective with respect to the
            weight of the example; negative ones lower R. For `adam`: the logit with the sign turned.
        r_train: R of the set on the models it was selected on: optimistic, not a result to report.
        r_validation: R on the validation models, slightly optimistic, being the stopping rule. NaN where
            undefined.
        trace: One entry per stage of the solver.
    """

    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    r_train: float
    r_validation: float
    trace: tuple[dict[str, Any], ...] = ()


Solve = Generator[np.ndarray, np.ndarray, Solution]  # yields weights, is sent products, returns the set

# ------------------------------------------------------------------------------- what may be selected


def stratum_quota(strata: Int64[np.ndarray, " n"], size: int) -> Int64[np.ndarray, " strata"]:
    """Members per stratum in proportion to its share, by largest remainder; ties to the lower stratum.

    Args:
        strata: Stratum of every example of the pool, codes >= 0.
        size: Members in all, at most the pool.

    Returns:
        One number per code up to the largest; they sum to `size` and none exceeds its stratum.

    Example:
        >>> stratum_quota(np.array([0, 0, 0, 1, 1, 2]), 4).tolist()
        [2, 1, 1]
    """
    quota, remainder = np.divmod(np.bincount(strata).astype(np.int64) * size, max(1, len(strata)))
    quota[np.argsort(-remainder, kind="stable")[: size - int(quota.sum())]] += 1
    return quota


class Pool:
    """The examples that a selection of `size` may come from.

    Args:
        n_examples: N.
        size: S.
        strata: Stratum code (>= 0) of every example: each keeps its share of the allowed. Default: no quotas.
        allowed: Which examples may be selected. Default: all.

    Raises:
        InputError: If no selection meets all of them.
    """

    def __init__(self, n_examples: int, size: int, strata: Codes | None = None, allowed: Mask | None = None):
        self.size = size
        self.allowed = np.ones(n_examples, dtype=bool) if allowed is None else allowed
        self.strata = np.zeros(n_examples, dtype=np.int64) if strata is None else strata
        n_allowed, n_strata = int(self.allowed.sum()), len(np.unique(self.strata[self.allowed]))
        if not 1 <= size <= n_allowed:
            raise InputError(
                f"size is {size}; choose between 1 and {n_allowed}, the examples that are allowed"
            )
        if n_strata > size:
            raise InputError(f"size is {size}, but there are {n_strata} strata; merge some, or select more")
        quota = stratum_quota(self.strata[self.allowed], size)
        self.quota = np.pad(quota, (0, int(self.strata.max()) + 1 - len(quota)))
        # A sort by this many bits of index below a whole gradient is the stable sort by gradient.
        self._bits = n_examples.bit_length()

    def lowest(self, scores: Real[np.ndarray, " n"]) -> Mask:
        """The selection of lowest scores, by quota; ties to the lower index."""
        inside = np.zeros(len(self.allowed), dtype=bool)
        places = np.flatnonzero(self.allowed)
        values = scores[places]
        if len(self.quota) == 1:  # several times as fast as a sort
            limit = np.partition(values, self.size - 1)[self.size - 1]
            below = values < limit
            inside[places[below]] = True
            inside[places[values == limit][: self.size - int(below.sum())]] = True
            return inside
        order, stratum, rank = self._by_stratum(places[np.argsort(values, kind="stable")])
        inside[order[rank < self.quota[stratum]]] = True
        return inside

    def pairs(self, gradient: np.ndarray, inside: Mask, block: int) -> tuple[Places, Places]:
        """At most `block` exchanges that lower the linearised objective, the largest gain first.

        The members of largest and the outsiders of smallest gradient, paired by rank, inside strata; ties go
        to the lower index, between strata to the lower stratum.

        Args:
            gradient: Whole numbers up to 2**24.
            inside: The members.
            block: Largest number of pairs.

        Returns:
            Members and outsiders, position by position.
        """
        whole = gradient.astype(np.int64)
        # Only the best can take part; inside strata, by rank, that may be any.
        most = block if len(self.quota) == 1 else len(whole)
        sides = [(-whole, inside), (whole, self.allowed & ~inside)]
        grouped = [self._by_stratum(self._ascending(values, among, most)) for values, among in sides]
        counts = [np.bincount(stratum, minlength=len(self.quota)) for _, stratum, _ in grouped]
        shared = np.minimum(*counts)
        leaving, entering = (side[rank < shared[stratum]] for side, stratum, rank in grouped)
        gain = whole[leaving] - whole[entering]
        order = np.argsort(-gain, kind="stable")[:block]
        order = order[gain[order] > 0]
        return leaving[order], entering[order]

    def _ascending(self, whole: Int64[np.ndarray, " n"], among: Bool[np.ndarray, " n"], most: int) -> Places:
        candidates = np.flatnonzero(among)
        key = (whole[candidates] << self._bits) | candidates
        if most < len(key):
            key = np.partition(key, most)[:most]
        key.sort()
        return key & ((1 << self._bits) - 1)

    def _by_stratum(self, ordered: Places) -> tuple[Places, Places, Places]:
        """A stable sort by stratum, the stratum of each, and the rank of each inside it."""
        grouped = ordered[np.argsort(self.strata[ordered], kind="stable")]
        stratum = self.strata[grouped]
        sizes = np.bincount(stratum, minlength=len(self.quota))
        return grouped, stratum, np.arange(len(grouped)) - np.repeat(np.cumsum(sizes) - sizes, sizes)


# ----------------------------------------------------------------------------------------- objective


def centred(t: Accuracies, z: Accuracies, ridge: float = 0.0) -> tuple[float, Accuracies, float]:
    """F_rho = u.z / d, u = t - mean(t) of probits t and d = sqrt(u.u + ridge); 0, u and 1 where undefined."""
    u = t - t.mean()
    squares = float(u @ u)
    norm = float(np.sqrt((squares if squares > DEGENERATE else 0.0) + ridge))
    return (float(u @ z) / norm, u, norm) if norm else (0.0, u, 1.0)


def line_gradient(accuracy: Accuracies, z: Accuracies, ridge: float, clip: float) -> tuple[float, Accuracies]:
    """F_rho and q_i = (z_i - F u_i / d) / d * sqrt(2 pi) exp(t_i^2 / 2), with d = sqrt(u.u + rho).

    The derivative of F_rho with respect to the weight of example j is sum_i q_i (X_ij - a_i) / S.

    Args:
        accuracy: Selected accuracy a of every model, in [0, 1].
        z: Centred, unit-norm probit of in-distribution accuracy (`unit_probit`).
        ridge: rho >= 0.
        clip: Accuracies are clipped to [clip, 1 - clip]; a clipped model has the slope at the clip
            (straight-through), so that it can be moved.

    Notes:
        Where d = 0 the correlation is undefined; value 0 and the direction of the covariance (d = 1) come
        back, so that a solver can leave such a set.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4; the ridge is not in it.
    """
    t = probit(accuracy, eps=clip)
    value, u, norm = centred(t, z, ridge)
    return value, (z - value * u / norm) / norm * np.sqrt(2 * np.pi) * np.exp(t * t / 2)


def unit_probit(id_accuracy: Accuracies, name: str) -> Accuracies:
    """Centred probit accuracies of unit Euclidean norm.

    Raises:
        InputError: If all are the same; the message calls them `name`.
    """
    z = probit(id_accuracy)
    z = z - z.mean()
    squares = float(z @ z)
    if not squares > DEGENERATE:
        raise InputError(f"{name}: all accuracies are equal; a correlation over models needs different ones")
    return np.asarray(z / np.sqrt(squares))


def marginal_scores(train: Answers, id_train: Accuracies) -> Float64[np.ndarray, " n"]:
    """Covariance over models of each example's correctness with in-distribution accuracy: sum_i z_i X_ij.

    z is the centred probit of in-distribution accuracy, of unit norm. The S lowest are the start of `swap`
    and the baseline "marginal". An example that every model gets right, or none, scores 0.

    Args:
        train: Answers of the training models.
        id_train: Their in-distribution accuracy, in [0, 1].

    Raises:
        InputError: If all models have the same accuracy.
    """
    z = unit_probit(id_train, "id_train")
    # Two exact passes, the rounding of the first being the weights of the second: about 14 digits.
    coarse, scale = whole_weights(z)
    fine, fine_scale = whole_weights(z - coarse / scale)
    sums = train.weigh(np.stack([coarse, fine])).astype(np.float64)
    return np.asarray(sums[0] / scale + sums[1] / fine_scale)


# -------------------------------------------------------------------------------------------- solver


def swap(
    train: Answers,
    tasks: Sequence[Task],
    *,
    validation: Answers,
    strata: Codes | None = None,
    allowed: Mask | None = None,
) -> list[Solution]:
    """For each task the S examples on which the correlation of out- with in-distribution accuracy is lowest.

    For every kappa of `KAPPAS`, each from where the last one ended: take the gradient at rho = kappa
    ||u_start||^2, pair the members of largest with the outsiders of smallest gradient, exchange a block of
    pairs if the objective falls, else halve the block. Deterministic: no learning rate, no restarts. Ties go
    to the lower index, and gradients are sums of whole numbers (`whole_weights`), so that the set does not
    depend on how answers are held, on threads, on the device or on the other tasks.

    Args:
        train: Answers of the training models, m models x N examples.
        tasks: Sets to select, side by side: one pass over the matrix serves all.
        validation: Answers of the validation models. The set of lowest validation R on the whole way is
            kept, the start included.
        strata: Stratum code (>= 0) of every example. The set has every stratum's share of the allowed
            examples (`stratum_quota`), and exchanges stay inside strata.
        allowed: Which examples may be selected. Default: all.

    Returns:
        The best set of each task by validation. Its trace has per kappa: `iterations` (gradients),
        `accepted` (steps), `block` (at the end), `r_train`, `r_validation` (at the end) and
        `best_r_validation` (so far).

    Raises:
        InputError: If size and strata cannot be met, or the accuracies of a side do not vary.

    Notes:
        One pass over the matrix per iteration, 30 to 600 of them.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4 for the objective; the solver is not in it.
    """
    accuracies = {id(y): y for _, y, _ in tasks}  # sizes share their accuracies, and with them these scores
    scores = {key: marginal_scores(train, y) for key, y in accuracies.items()}
    solves = []
    for size, y, y_validation in tasks:
        sides = _Side(train, y, size, "id_train"), _Side(validation, y_validation, size, "id_validation")
        solves.append(_solve(*sides, Pool(train.n_examples, size, strata, allowed), scores[id(y)]))
    sets: dict[int, Solution] = {}
    weights = {place: next(solve) for place, solve in enumerate(solves)}
    while weights:
        products = train.weigh(np.stack(list(weights.values())))
        for place, product in zip(list(weights), products, strict=True):
            try:
                weights[place] = solves[place].send(product)
            except StopIteration as end:
                sets[place] = end.value
                del weights[place]
    return [sets[place] for place in range(len(solves))]


class _Side:
    """One part of the models, with its counts on the current set."""

    def __init__(self, answers: Answers, id_accuracy: Accuracies, size: int, name: str):
        self.answers, self.size, self.z = answers, size, unit_probit(id_accuracy, name)
        self.counts: np.ndarray = np.zeros(answers.n_models)

    def after(self, leaving: Places, entering: Places, inside: Mask) -> np.ndarray:
        """Counts once members are exchanged for outsiders."""
        if len(leaving) <= _RECOUNTED * len(inside):
            return np.asarray(self.counts + (self.answers.count(entering) - self.answers.count(leaving)))
        members = inside.copy()
        members[leaving], members[entering] = False, True
        return self.answers.count(np.flatnonzero(members))

    def r(self, counts: np.ndarray | None = None) -> float:
        """R as it is reported, without ridge; infinite where undefined, which is never better."""
        t = probit((self.counts if counts is None else counts) / self.size)
        value, u, _ = centred(t, self.z)
        return value if float(u @ u) > DEGENERATE else math.inf


def _solve(training: _Side, held_out: _Side, pool: Pool, scores: np.ndarray) -> Solve:
    """One task: yields whole weights of the training models, is sent `weights @ X`, returns its set."""
    size, clip = pool.size, max(EPS, FLOOR / pool.size)
    inside = pool.lowest(scores)
    for side in (training, held_out):
        side.counts = side.answers.count(np.flatnonzero(inside))
    t = probit(training.counts / size, eps=clip)
    spread = float(np.sum((t - t.mean()) ** 2))
    # A start without spread sets no unit; then it is that of models one standard deviation apart.
    spread = spread if spread > DEGENERATE else float(len(t))
    # The set of lowest validation R, with what is needed to order its members.
    best = held_out.r(), inside.copy(), training.counts, KAPPAS[0] * spread
    trace: list[dict[str, Any]] = []
    for kappa in KAPPAS:
        ridge, block, lowest = kappa * spread, max(1, size // 2), held_out.r()
        iterations = accepted = stale = 0
        while block and iterations < MAX_ITERATIONS and stale < PATIENCE:
            value, weights = line_gradient(training.counts / size, training.z, ridge, clip)
            gradient = yield whole_weights(weights)[0]
            iterations += 1
            # A smaller block takes the first of these pairs: a rejected step costs neither pass nor sort.
            leaving, entering = pool.pairs(gradient, inside, block)
            if not len(leaving):
                break
            while block:
                leaving, entering = leaving[:block], entering[:block]
                counts = training.after(leaving, entering, inside)
                if centred(probit(counts / size, eps=clip), training.z, ridge)[0] < value - MIN_GAIN:
                    break
                block = len(leaving) // 2
            if not block:
                break
            accepted += 1
            held_out.counts = held_out.after(leaving, entering, inside)
            training.counts = counts
            inside[leaving], inside[entering] = False, True
            now = held_out.r()
            stale = 0 if now < lowest else stale + 1
            lowest = min(now, lowest)
            if now < best[0]:
                best = now, inside.copy(), counts, ridge
        stage = {"kappa": kappa, "iterations": iterations, "accepted": accepted, "block": block}
        r = {"r_train": training.r(), "r_validation": held_out.r(), "best_r_validation": best[0]}
        trace.append(stage | {name: each if each < math.inf else math.nan for name, each in r.items()})
    r_validation, inside, counts, ridge = best
    accuracy = counts / size
    _, weights = line_gradient(accuracy, training.z, ridge, clip)
    whole, scale = whole_weights(weights)
    gradient = yield whole
    reported = [each if each < math.inf else math.nan for each in (training.r(counts), r_validation)]
    members = np.flatnonzero(inside)
    members = members[np.argsort(gradient[members], kind="stable")]
    return Solution(
        indices=members,
        scores=(gradient[members].astype(np.float64) / scale - float(weights @ accuracy)) / size,
        r_train=reported[0],
        r_validation=reported[1],
        trace=tuple(trace),
    )
