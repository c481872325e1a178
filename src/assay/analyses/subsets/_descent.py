"""The relaxed problem of the published optimiser, and its descent by Adam, restarts side by side."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from jaxtyping import Float, Float64

from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.line import probit


if TYPE_CHECKING:
    import torch

RIDGE = 1e-6  # added to both variances and to the mass, as in the authors' loss
_BETAS, _ADAM_EPS = (0.9, 0.999), 1e-8


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

    def rate_at(self, epoch: int) -> float:
        """Learning rate, eta_min + (lr - eta_min)(1 + cos(pi e / T_max)) / 2, for every e >= 0."""
        cosine = math.cos(math.pi * epoch / self.period)
        return self.minimum_rate + (self.learning_rate - self.minimum_rate) * (1 + cosine) / 2

    def weight_at(self, epoch: int) -> float:
        """Weight of the penalty, lambda (1 - cos(pi min(e / K, 1))) / 2."""
        return self.penalty_weight * 0.5 * (1 - math.cos(math.pi * min(epoch / self.anneal_epochs, 1)))


def draw_parameters(generator: np.random.Generator) -> AdamParameters:
    """One draw from the published ranges: rates log-uniform, weight and integers uniform."""
    return AdamParameters(
        learning_rate=10.0 ** generator.uniform(-2, 2),
        minimum_rate=10.0 ** generator.uniform(-3, 0),
        period=int(generator.integers(10, 200, endpoint=True)),
        penalty_weight=float(generator.uniform(0.1, 100)),
        anneal_epochs=int(generator.integers(10, 1000, endpoint=True)),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class AdamTarget:
    """The in-distribution side of the authors' correlation, which a descent does not change.

    R_ridge = cov(u, v) / sqrt((var u + 1e-6)(var v + 1e-6)), u and v the probits of the two accuracies,
    variances those of the population: 0 where models do not differ, elsewhere about 1e-5 from R.
    """

    centred: Float64[np.ndarray, " models"]  # v / sqrt(var v + ridge), v the centred probits
    eps: float | int

    @classmethod
    def of(cls, id_accuracy: Float64[np.ndarray, " models"], eps: float | int) -> "AdamTarget":
        v = probit(id_accuracy, eps=eps)
        v = v - v.mean()
        return cls(centred=v / math.sqrt(np.mean(v * v) + RIDGE), eps=eps)

    def correlation(
        self, accuracy: Float64[np.ndarray, "... models"]
    ) -> tuple[Float64[np.ndarray, "..."], Float64[np.ndarray, "... models"]]:
        """Ridge correlation and its derivative by each model's accuracy, which is 0 where that is clipped."""
        t = probit(accuracy, eps=self.eps)
        u = t - t.mean(axis=-1, keepdims=True)
        spread = np.sqrt(np.mean(u * u, axis=-1, keepdims=True) + RIDGE)
        r = np.mean(u * self.centred, axis=-1, keepdims=True) / spread
        slope = (self.centred - r * u / spread) / (spread * len(self.centred))
        # d probit / da = 1 / phi(t).
        inside = (accuracy >= self.eps) & (accuracy <= 1 - self.eps)
        slope = np.where(inside, slope * math.sqrt(2 * math.pi) * np.exp(t * t / 2), 0.0)
        return r[..., 0], slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Relaxation:
    """The relaxed problem on the training models (Eq. 5 of the paper).

    loss(w) = R_ridge(s) + lambda P(sum_j s_j - S), or R_ridge^2 for `objective="r2"`, with s = sigmoid(w),
    a_i = sum_j X_ij s_j / (sum_j s_j + 1e-6), and P(u) = softplus(-u) (one-sided) or u^2.
    """

    correct: "torch.Tensor"  # models x examples, in the precision of the descent
    target: AdamTarget
    size: int
    penalty: str
    objective: str

    def correlation(
        self, soft: "torch.Tensor", mass: Float64[np.ndarray, " trials"]
    ) -> tuple[Float64[np.ndarray, " trials"], "torch.Tensor"]:
        """R_ridge of each row of s, and its gradient by s; `mass` is the sum of each row.

        dR/ds_j = sum_i q_i (X_ij - a_i) / (sum_k s_k + 1e-6), q_i = dR/da_i.
        """
        total = mass[:, None] + RIDGE
        accuracy = _numbers((self.correct @ soft.T).T) / total
        r, q = self.target.correlation(accuracy)
        q = q / total
        gradient = _like(self.correct, q) @ self.correct
        gradient -= _like(gradient, np.sum(q * accuracy, axis=1, keepdims=True))
        return r, gradient

    def loss(
        self, logits: "torch.Tensor", weights: Float64[np.ndarray, " trials"]
    ) -> tuple[Float64[np.ndarray, " trials"], Float64[np.ndarray, " trials"], "torch.Tensor"]:
        """Loss, R_ridge and the gradient of the loss by w, for each row of w."""
        import torch

        soft = torch.sigmoid(logits)
        mass = _numbers(soft.sum(dim=1, dtype=torch.float64))
        r, gradient = self.correlation(soft, mass)
        value = r
        if self.objective == "r2":
            value = r**2
            gradient *= _like(gradient, 2 * r[:, None])
        excess = mass - self.size
        if self.penalty == "softplus":
            cost, slope = np.logaddexp(0, -excess), -scipy.special.expit(-excess)
        else:
            cost, slope = excess**2, 2 * excess
        gradient += _like(gradient, (weights * slope)[:, None])
        return value + weights * cost, r, gradient.mul_(soft).mul_(1 - soft)


def _numbers(values: "torch.Tensor") -> np.ndarray:
    """A small tensor of any device, as float64 of the CPU."""
    return values.cpu().double().numpy()


def _like(tensor: "torch.Tensor", values: np.ndarray) -> "torch.Tensor":
    """Small float64 values where a tensor is, in its precision."""
    import torch

    return torch.from_numpy(values).to(tensor.dtype).to(tensor.device)


@dataclass(kw_only=True, eq=False)
class Descent:
    """One restart, from its logits to where it stopped.

    Attributes:
        logits: Logits of the epoch that is kept.
        train: Ridge correlation of the relaxed selection on the training models, before each epoch's step.
        validation: Ridge correlation of the S largest logits on the validation models, after each epoch's
            step; its square for `objective="r2"`.
        best_epoch: The first epoch, from 0, with the lowest of these.
    """

    logits: Float[np.ndarray, " examples"] = field(default_factory=lambda: np.empty(0))
    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = 0

    @property
    def epochs(self) -> int:
        """Epochs run."""
        return len(self.validation)

    def record(self) -> dict[str, Any]:
        """What the trace of the solver says of it."""
        return {
            "epochs": self.epochs,
            "best_epoch": self.best_epoch,
            "train": self.train[-1],
            "validation": self.validation[-1],
            "best_validation": self.validation[self.best_epoch],
        }

    def note(self, r: float, score: float) -> bool:
        """Take up an epoch; whether its score is the lowest so far."""
        better = not self.validation or score < self.validation[self.best_epoch]
        self.best_epoch = self.epochs if better else self.best_epoch
        self.train.append(r)
        self.validation.append(score)
        return better


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Scores logits by the hard set they mean, on the validation models."""

    correct: "torch.Tensor"  # models x examples
    target: AdamTarget
    pool: Pool
    objective: str

    def members(self, logits: "torch.Tensor") -> "torch.Tensor":
        """Per row of logits, which are the largest, within each stratum; of equal ones the lower index."""
        import torch

        if self.pool.strata is None:
            return _largest(logits, self.pool.size)
        lowest = np.stack([self.pool.lowest(-row) for row in logits.cpu().numpy()])
        return torch.from_numpy(lowest).to(logits.device)

    def score(self, members: "torch.Tensor") -> Float64[np.ndarray, " trials"]:
        """R_ridge of each set, or its square."""
        counts = _numbers((self.correct @ members.to(self.correct.dtype).T).T)  # whole: exact in any order
        r = self.target.correlation(counts / (self.pool.size + RIDGE))[0]
        return r**2 if self.objective == "r2" else r


def _largest(values: "torch.Tensor", count: int) -> "torch.Tensor":
    """The `count` largest entries of each row; of equal ones the lower index."""
    import torch

    n = values.shape[1]
    if count in (0, n):
        return torch.full(values.shape, count == n, device=values.device)
    if values.device.type == "cpu":  # numpy is several times as fast there
        threshold = torch.from_numpy(np.partition(values.numpy(), n - count, axis=1)[:, n - count, None])
    else:
        threshold = values.kthvalue(n - count + 1, dim=1, keepdim=True).values
    members = values >= threshold
    too_many = (members.sum(dim=1) - count).tolist()
    for row in np.flatnonzero(np.array(too_many) > 0).tolist():
        ties = (values[row] == threshold[row]).nonzero()[:, 0]
        members[row, ties[len(ties) - too_many[row] :]] = False
    return members


def descend(
    problem: Relaxation,
    judge: Judge,
    logits: "torch.Tensor",
    parameters: Sequence[AdamParameters],
    *,
    epochs: int,
    patience: int,
    keep: str,
) -> list[Descent]:
    """Descends every row of `logits` with its own parameters; a row stops by itself.

    Args:
        problem: The relaxed problem.
        judge: The validation models.
        logits: Start of each restart, restarts x examples. Not changed.
        parameters: Of each restart.
        epochs: Most epochs of a restart, each a step along the gradient of all examples.
        patience: Epochs without a new minimum on the validation models after which a restart stops.
        keep: `last` or `best`: the epoch whose logits are kept.

    Returns:
        One descent per row.
    """
    import torch

    rows = [Descent() for _ in parameters]
    alive = np.arange(len(rows))
    w = logits.clone()
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    members = torch.zeros_like(w, dtype=torch.bool)
    scores = np.full(len(rows), np.nan)
    for epoch in range(epochs):
        running = [parameters[row] for row in alive.tolist()]
        weights = np.array([each.weight_at(epoch) for each in running])
        rates = np.array([each.rate_at(epoch) for each in running])
        _, r, gradient = problem.loss(w, weights)
        _step(w, gradient, first, second, rates, epoch)
        now = judge.members(w)
        changed = (now != members).any(dim=1).cpu().numpy() | (epoch == 0)
        if changed.any():
            scores[changed] = judge.score(now[torch.from_numpy(changed).to(w.device)])
        members = now
        going = np.ones(len(alive), dtype=bool)
        for at, row in enumerate(alive.tolist()):
            better = rows[row].note(float(r[at]), float(scores[at]))
            going[at] = epoch - rows[row].best_epoch < patience and epoch + 1 < epochs
            if better if keep == "best" else not going[at]:
                rows[row].logits = w[at].clone().cpu().numpy()
        if not going.any():
            break
        if not going.all():
            left = torch.from_numpy(np.flatnonzero(going)).to(w.device)
            alive, scores = alive[going], scores[going]
            w, first, second, members = w[left], first[left], second[left], members[left]
    return rows


def _step(
    w: "torch.Tensor",
    gradient: "torch.Tensor",
    first: "torch.Tensor",
    second: "torch.Tensor",
    rates: Float64[np.ndarray, " trials"],
    epoch: int,
) -> None:
    """One step of Adam (Kingma and Ba 2015, algorithm 1), in place; `gradient` is used up."""
    import torch

    beta1, beta2 = _BETAS
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    scale = _like(w, rates / (1 - beta1 ** (epoch + 1)))
    root = torch.sqrt(second, out=gradient).div_(math.sqrt(1 - beta2 ** (epoch + 1))).add_(_ADAM_EPS)
    w.sub_(torch.div(first, root, out=root).mul_(scale[:, None]))
