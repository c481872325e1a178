"""The published optimiser of subset selection: logits of all examples, descended by Adam with restarts.

The relaxed problem lets every example be in the selection by a share s_j = sigmoid(w_j). All restarts of a
search descend side by side, so that one pass over the answers serves all of them; gradients are in closed
form. The default solver is `swap`; this one is here to compare it with.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from jaxtyping import Bool, Float, Float64, Int64

from assay.analyses.subsets.line import EPS, Accuracies, line_correlation, probit
from assay.analyses.subsets.matrix import Answers
from assay.analyses.subsets.swap import Pool, Solution, unit_probit
from assay.core.errors import check_least, check_name
from assay.core.random import stream


if TYPE_CHECKING:
    import torch

PerTrial = Float64[np.ndarray, " trials"]
PENALTIES = ("softplus", "squared")
RIDGE = 1e-6  # added to both variances and to the mass, as in the authors' loss
_BETAS, _ADAM_EPS = (0.9, 0.999), 1e-8
_LARGEST_BLOCK = 2**22  # logits descended side by side: restarts times examples


@dataclass(frozen=True, kw_only=True)
class AdamParameters:
    """Settings of one descent.

    Attributes:
        learning_rate: Learning rate lr at epoch 0.
        minimum_rate: Learning rate eta_min at epochs `period`, 3 `period`, ...
        period: Epochs T_max from the first learning rate to the minimum; it rises again in the next `period`.
        penalty_weight: Weight lambda of the penalty on the mass once annealed.
        anneal_epochs: Epochs K over which the weight rises from 0 to lambda.
    """

    learning_rate: float
    minimum_rate: float
    period: int
    penalty_weight: float
    anneal_epochs: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> "AdamParameters":
        """One draw from the published ranges: rates log-uniform, weight and integers uniform."""
        return cls(
            learning_rate=10.0 ** rng.uniform(-2, 2),
            minimum_rate=10.0 ** rng.uniform(-3, 0),
            period=int(rng.integers(10, 200, endpoint=True)),
            penalty_weight=float(rng.uniform(0.1, 100)),
            anneal_epochs=int(rng.integers(10, 1000, endpoint=True)),
        )

    def rate_at(self, epoch: int) -> float:
        """Learning rate, eta_min + (lr - eta_min)(1 + cos(pi e / T_max)) / 2, for every e >= 0."""
        cosine = math.cos(math.pi * epoch / self.period)
        return self.minimum_rate + (self.learning_rate - self.minimum_rate) * (1 + cosine) / 2

    def weight_at(self, epoch: int) -> float:
        """Weight of the penalty, lambda (1 - cos(pi min(e / K, 1))) / 2."""
        return self.penalty_weight * 0.5 * (1 - math.cos(math.pi * min(epoch / self.anneal_epochs, 1)))


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The relaxed problem on the training models (Eq. 5 of the paper), judged on the validation models.

    loss(w) = R_ridge(s) + lambda P(sum_j s_j - S), with s = sigmoid(w),
    a_i = sum_j X_ij s_j / (sum_j s_j + 1e-6), and P(u) = softplus(-u) (one-sided) or u^2.

    Attributes:
        train: Training models x examples, in the precision of the descent.
        z_train: In-distribution accuracy of the training models, as `ridge_probit`.
        validation: Validation models x examples.
        z_validation: Their in-distribution accuracy, as `ridge_probit`.
        pool: What a hard set may hold, and S.
        penalty: `softplus` or `squared`.
    """

    train: "torch.Tensor"
    z_train: Accuracies
    validation: "torch.Tensor"
    z_validation: Float64[np.ndarray, " v"]
    pool: Pool
    penalty: str

    def loss(self, w: "torch.Tensor", weights: PerTrial) -> tuple[PerTrial, PerTrial, "torch.Tensor"]:
        """Loss, R_ridge and the gradient of the loss by w, for each row of w."""
        import torch

        soft = torch.sigmoid(w)
        mass = soft.sum(dim=1, dtype=torch.float64).numpy()
        total = mass[:, None] + RIDGE
        accuracy = (self.train @ soft.T).T.double().numpy() / total
        r, q = ridge_correlation(accuracy, self.z_train)
        # dR/ds_j = sum_i q_i (X_ij - a_i) / (sum_k s_k + 1e-6), q_i = dR/da_i.
        q = q / total
        excess = mass - self.pool.size
        if self.penalty == "softplus":
            cost, slope = np.logaddexp(0, -excess), -scipy.special.expit(-excess)
        else:
            cost, slope = excess**2, 2 * excess
        parts = (q, np.sum(q * accuracy, axis=1, keepdims=True), (weights * slope)[:, None])
        pull, level, push = (torch.from_numpy(each).to(w.dtype) for each in parts)
        gradient = (pull @ self.train).sub_(level).add_(push)
        return r + weights * cost, r, gradient.mul_(soft).mul_(1 - soft)

    def members(self, w: "torch.Tensor") -> Bool[np.ndarray, "trials n"]:
        """Per row of w, the hard set: the largest, within each stratum; of equal ones the lower index."""
        return np.stack([self.pool.lowest(-row) for row in w.numpy()])

    def score(self, members: Bool[np.ndarray, "trials n"]) -> PerTrial:
        """R_ridge of each hard set on the validation models."""
        import torch

        # Counts are whole: exact in any order.
        counts = (self.validation @ torch.from_numpy(members).to(self.validation).T).T.double().numpy()
        return ridge_correlation(counts / (self.pool.size + RIDGE), self.z_validation)[0]


def ridge_probit(id_accuracy: Accuracies) -> Accuracies:
    """The side of the authors' correlation that a descent does not change: v / sqrt(var v + 1e-6)."""
    v = probit(id_accuracy)
    v = v - v.mean()
    return np.asarray(v / math.sqrt(np.mean(v * v) + RIDGE))


def ridge_correlation(accuracy: np.ndarray, z: Accuracies) -> tuple[PerTrial, np.ndarray]:
    """R_ridge = cov(u, v) / sqrt((var u + 1e-6)(var v + 1e-6)) and its derivative by each model's accuracy.

    u and v are the probits of the two accuracies, variances those of the population: 0 where models do not
    differ, elsewhere about 1e-5 from R. The derivative is 0 where an accuracy is clipped.
    """
    t = probit(accuracy)
    u = t - t.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.mean(u * u, axis=-1, keepdims=True) + RIDGE)
    r = np.mean(u * z, axis=-1, keepdims=True) / spread
    slope = (z - r * u / spread) / (spread * len(z))
    # d probit / da = 1 / phi(t).
    inside = (accuracy >= EPS) & (accuracy <= 1 - EPS)
    return r[..., 0], np.where(inside, slope * math.sqrt(2 * math.pi) * np.exp(t * t / 2), 0.0)


@dataclass(kw_only=True, eq=False)
class Descent:
    """One restart, from its logits to where it stopped.

    Attributes:
        logits: Logits of the last epoch.
        train: Ridge correlation of the relaxed selection on the training models, before each epoch's step.
        validation: Ridge correlation of the hard set on the validation models, after each epoch's step.
        best_epoch: The first epoch, from 0, with the lowest of these.
    """

    logits: Float[np.ndarray, " examples"] = field(default_factory=lambda: np.empty(0))
    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0


def descend(
    problem: Relaxation, logits: Any, parameters: Sequence[AdamParameters], epochs: int, patience: int
) -> list[Descent]:
    """Descends every row of `logits` with its own parameters; a row stops by itself.

    Args:
        problem: The relaxed problem and its judge.
        logits: Start of each restart, restarts x examples. Not changed.
        parameters: Of each restart.
        epochs: Most epochs of a restart, each a step along the gradient of all examples.
        patience: Epochs without a new minimum on the validation models after which a restart stops.
    """
    import torch

    rows, alive, w = [Descent() for _ in parameters], np.arange(len(parameters)), logits.clone()
    first, second, scores = torch.zeros_like(w), torch.zeros_like(w), np.full(len(rows), np.nan)
    members = np.zeros(w.shape, dtype=bool)
    for epoch in range(epochs):
        weights = np.array([parameters[row].weight_at(epoch) for row in alive.tolist()])
        rates = np.array([parameters[row].rate_at(epoch) for row in alive.tolist()])
        _, r, gradient = problem.loss(w, weights)
        # Kingma and Ba (2015), algorithm 1, in place; the gradient is used up.
        first.mul_(_BETAS[0]).add_(gradient, alpha=1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        scale = torch.from_numpy(rates / (1 - _BETAS[0] ** (epoch + 1))).to(w.dtype)
        root = torch.sqrt(second, out=gradient).div_(math.sqrt(1 - _BETAS[1] ** (epoch + 1))).add_(_ADAM_EPS)
        w.sub_(torch.div(first, root, out=root).mul_(scale[:, None]))
        before, members = members, problem.members(w)
        changed = (members != before).any(axis=1) | (epoch == 0)
        if changed.any():
            scores[changed] = problem.score(members[changed])
        going = np.ones(len(alive), dtype=bool)
        for at, row in enumerate(map(rows.__getitem__, alive)):
            row.train.append(float(r[at]))
            row.validation.append(float(scores[at]))
            if scores[at] < row.validation[row.best_epoch]:
                row.best_epoch = epoch
            going[at] = epoch - row.best_epoch < patience and epoch + 1 < epochs
            if not going[at]:
                row.logits = w[at].clone().numpy()
        if not going.any():
            break
        if not going.all():
            alive, scores, members = alive[going], scores[going], members[going]
            w, first, second = (each[torch.from_numpy(going)] for each in (w, first, second))
    return rows


def adam(
    train: Answers,
    size: int,
    id_train: Accuracies,
    id_validation: Float64[np.ndarray, " v"],
    *,
    validation: Answers,
    trials: int = 20,
    epochs: int = 3000,
    patience: int = 500,
    penalty: str = "softplus",
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    strata: Int64[np.ndarray, " n"] | None = None,
    allowed: Bool[np.ndarray, " n"] | None = None,
) -> Solution:
    """The published optimiser: a relaxed selection descended by Adam, restarted with random settings.

    Each trial draws logits w ~ N(0, 1) and settings, and descends
    R_ridge(s) + lambda_e P(sum s - S), s = sigmoid(w), over the training models. After each epoch the S
    largest logits are scored on the validation models. The trial with the lowest score at its last epoch
    wins.

    Args:
        train: Answers of the training models.
        size: Examples to select.
        id_train: In-distribution accuracy of the training models, in [0, 1].
        id_validation: The same of the validation models.
        validation: Answers of the validation models.
        trials: Restarts.
        epochs: Most epochs of each.
        patience: Epochs without a new validation minimum after which a trial stops.
        penalty: `softplus` holds the mass above `size` and leaves more of it free, as in the authors' code;
            `squared` holds it at `size`, as in the paper.
        parameters: Settings to fix, by the names of `AdamParameters`; the others are drawn.
        seed: Root seed. Trial k is the same in every search that has it, up to rounding.
        strata: Stratum code (>= 0) of every example: the largest logits are then taken by quota, which the
            relaxed problem does not know of.
        allowed: Which examples may be selected; the others are left out from the start.

    Returns:
        Examples by falling logit; `scores` are the logits with the sign turned, so that a low score is a
        harmful example. Correlations are exact, without the ridge of the loss. `trace` has one record per
        trial.

    Raises:
        InputError: For an option out of range, or constraints that cannot be met.

    Notes:
        Each epoch costs two products of the matrix with as many vectors as trials are running, in float32:
        32 times the memory of the bits.
        Probits, rates and correlations are computed in float64.

        The authors search by TPE, one trial after the other, the first ten of them at random.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 5, and the code published with it.
    """
    import torch

    check_least(1, trials=trials, epochs=epochs, patience=patience)
    check_name("penalty", penalty, PENALTIES)
    for name in parameters or {}:
        check_name("parameter of solver='adam'", name, AdamParameters.__dataclass_fields__)
    columns = np.flatnonzero(Pool(train.n_examples, size, strata, allowed).allowed)
    pool = Pool(len(columns), size, None if strata is None else strata[columns])
    for name, accuracies in (("id_train", id_train), ("id_validation", id_validation)):
        unit_probit(accuracies, name)  # refused where they are all the same
    sides = ((train.columns(columns), id_train), (validation.columns(columns), id_validation))
    held_in, held_out = ((x, ridge_probit(y)) for x, y in sides)
    problem = Relaxation(*held_in, *held_out, pool, penalty)
    generators = [stream(seed, f"subset-adam-{trial}") for trial in range(trials)]
    settings = [replace(AdamParameters.drawn(rng), **(parameters or {})) for rng in generators]
    starts = [rng.standard_normal(len(columns)) for rng in generators]
    step = max(1, _LARGEST_BLOCK // len(columns))
    descents: list[Descent] = []
    for at in range(0, trials, step):
        w = torch.from_numpy(np.stack(starts[at : at + step])).to(problem.train)
        descents += descend(problem, w, settings[at : at + step], epochs, patience)
    logits = min(descents, key=lambda each: each.validation[-1]).logits
    places = np.flatnonzero(pool.lowest(-logits))
    order = places[np.argsort(-logits[places], kind="stable")]
    members = columns[order]
    return Solution(
        indices=members,
        scores=-logits[order].astype(np.float64),
        r_train=line_correlation(id_train, train.count(members) / size),
        r_validation=line_correlation(id_validation, validation.count(members) / size),
        trace=tuple(
            {"trial": trial, **asdict(used), "epochs": len(each.validation), "best_epoch": each.best_epoch}
            | {"train": each.train[-1], "validation": each.validation[-1]}
            | {"best_validation": each.validation[each.best_epoch]}
            for trial, (used, each) in enumerate(zip(settings, descents, strict=True))
        ),
    )
