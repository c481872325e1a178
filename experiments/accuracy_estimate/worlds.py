"""Worlds of covariate shift: a labelling that never changes, a classifier that learnt it, inputs that move.

A world draws clusters at several distances from the origin (inputs in distribution), a random labelling of
the whole space that is least certain around the origin, and a small classifier trained on 400 examples.
Labels follow the labelling everywhere, so every change of its inputs is covariate shift: accuracy changes
because labels become less certain, or because the classifier is wrong where it has seen little. A family is
a kind of change with a direction and a rate of its own; severities 1 to 5 take it further.

Calibration goes as in a monitor. Labelled examples are split: readings learn from one part, domains are
changed copies of the other, with examples drawn anew for each. A batch to be judged has new examples.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from assay.analyses.generalization.batches import Labelled, Outputs, label_free
from assay.core.random import stream


N_INPUTS, N_CLASSES, N_CLUSTERS, WIDTH = 6, 4, 6, 24
N_TRAIN, N_REFERENCE, STEPS = 400, 1024, 120
CHANGES = ("move", "stretch", "spread", "mix", "turn", "pull")
LEAVES = ("far", "point", "elsewhere")  # inputs leave what was calibrated
UNSEEN = "blown-up"  # they leave, but a saturated classifier shows the same outputs, features and circuit
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of change and its direction."""

    kind: str
    direction: Array
    other: Array
    weights: Array
    rate: float
    fade: float


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Inputs before a change, and what decides their labels wherever they are moved to.

    Attributes:
        cluster: Of each.
        x: Inputs in distribution.
        noise: Standard normal, used by a change that spreads.
        luck: Gumbel noise of the classes, with which the labelling of the world draws a label.
    """

    cluster: NDArray[np.int64]
    x: Array
    noise: Array
    luck: Array

    def __len__(self) -> int:
        return len(self.x)

    def of(self, rows: NDArray[np.int64]) -> "Examples":
        return Examples(
            cluster=self.cluster[rows], x=self.x[rows], noise=self.noise[rows], luck=self.luck[rows]
        )


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """One hidden layer of tanh."""

    hidden: Array
    hidden_bias: Array
    out: Array
    out_bias: Array

    def features(self, x: Array) -> Array:
        return np.asarray(np.tanh(x @ self.hidden + self.hidden_bias))

    def logits(self, x: Array) -> Array:
        return self.features(x) @ self.out + self.out_bias

    def edges(self, x: Array) -> Array:
        """Magnitude of the mean of activation times gradient of the predicted logit, an entry per weight."""
        h = self.features(x)
        chosen = (h @ self.out + self.out_bias).argmax(1)
        to_out = np.zeros_like(self.out)
        for c in range(N_CLASSES):
            to_out[:, c] = (h * (chosen == c)[:, None]).sum(0) * self.out[:, c] / len(x)
        back = self.out[:, chosen].T * (1 - h**2)
        to_hidden = self.hidden * (x.T @ back) / len(x)
        return np.abs(np.concatenate([to_hidden.ravel(), to_out.ravel()]))


class World:
    """Inputs, labelling and classifier of one seed."""

    def __init__(self, seed: int) -> None:
        rng = stream(seed, "accuracy/world")
        self.centres = rng.normal(0, 1, (N_CLUSTERS, N_INPUTS)) * np.linspace(0.4, 2.4, N_CLUSTERS)[:, None]
        self.truth = (
            rng.normal(0, 0.35, (N_INPUTS, 16)),
            rng.normal(0, 2.5, (16, N_CLASSES)),
        )
        x, y = self.labelled(self.examples(rng, N_TRAIN))
        self.model = trained(rng, x, y)
        self.reference = self.model.edges(self.examples(rng, N_REFERENCE).x)

    def examples(
        self, rng: np.random.Generator, n: int, family: Family | None = None, severity: float = 0.0
    ) -> Examples:
        """New examples in distribution; a family that mixes chooses their clusters."""
        cluster = rng.choice(N_CLUSTERS, n, p=shares_of(family, severity))
        return Examples(
            cluster=cluster,
            x=self.centres[cluster] + rng.normal(0, 0.5, (n, N_INPUTS)),
            noise=rng.normal(size=(n, N_INPUTS)),
            luck=rng.gumbel(size=(n, N_CLASSES)),
        )

    def labelled(
        self, examples: Examples, family: Family | None = None, severity: float = 0.0
    ) -> tuple[Array, NDArray[np.int64]]:
        """Inputs under a change, and their labels from the labelling of the world."""
        x = examples.x if family is None else changed(examples, family, severity)
        first, second = self.truth
        return x, np.asarray((np.tanh(x @ first) @ second + examples.luck).argmax(1))

    def family(self, rng: np.random.Generator, kinds: tuple[str, ...] = CHANGES) -> Family:
        """A family from the law of the world."""
        direction = rng.normal(size=N_INPUTS)
        other = rng.normal(size=N_INPUTS)
        direction /= np.linalg.norm(direction)
        other -= other @ direction * direction
        return Family(
            kind=str(rng.choice(kinds)),
            direction=direction,
            other=other / np.linalg.norm(other),
            weights=rng.dirichlet(np.ones(N_CLUSTERS)) + 1e-3,
            rate=float(rng.uniform(0.5, 1.5)),
            fade=float(rng.uniform(0.05, 0.45)),
        )

    def outputs(self, x: Array) -> Outputs:
        return Outputs(logits=torch.from_numpy(self.model.logits(x)), features=self.model.features(x))

    def readings(self, x: Array, known: Labelled) -> dict[str, float]:
        """What a monitor sees of a batch; the circuit shift is that of the classifier's weights."""
        w, v = self.reference, self.model.edges(x)
        return {
            "spearman": 1 - float(spearmanr(w, v).statistic),
            "cosine": 1 - float(w @ v / np.linalg.norm(w) / np.linalg.norm(v)),
            "l2": float(np.linalg.norm(w - v)),
            **label_free(self.outputs(x), known),
        }

    def accuracy(self, x: Array, y: NDArray[np.int64]) -> float:
        return float((self.model.logits(x).argmax(1) == y).mean())


def shares_of(family: Family | None, severity: float) -> Array:
    """Shares of the clusters under a family."""
    if family is None or family.kind != "mix":
        return np.full(N_CLUSTERS, 1 / N_CLUSTERS)
    shares = family.weights ** (family.rate * severity / 2)
    return np.asarray(shares / shares.sum())


def changed(examples: Examples, family: Family, severity: float) -> Array:
    """Inputs under a family at a severity; what stays calibrated also fades to the origin."""
    x = examples.x
    if family.kind in CHANGES:
        x = x * np.exp(-family.fade * severity)
    u, v, step = family.direction, family.other, family.rate * severity
    along, across = x @ u, x @ v
    if family.kind == "move":
        return x + 0.5 * step * u
    if family.kind == "stretch":
        return x + np.outer(along, u) * 0.4 * step
    if family.kind == "spread":
        return x + 0.35 * step * examples.noise
    if family.kind == "turn":
        angle = 0.3 * step
        return (
            x
            + np.outer((np.cos(angle) - 1) * along - np.sin(angle) * across, u)
            + np.outer(np.sin(angle) * along + (np.cos(angle) - 1) * across, v)
        )
    if family.kind == "pull":
        return 0.5 * u + (x - 0.5 * u) * np.exp(-0.3 * step)
    if family.kind == "far":
        return x + 5.0 * severity * u
    if family.kind == "point":
        return 5.0 * severity * u + 0.1 * x
    if family.kind == "blown-up":
        return x * (1 + 1.5 * severity)
    if family.kind == "elsewhere":
        return 6.0 * severity * u + np.outer(6.0 * examples.noise[:, 0], v) + 0.3 * x
    return x  # a mixture changes before


def trained(rng: np.random.Generator, x: Array, y: NDArray[np.int64]) -> Classifier:
    """Adam on the cross-entropy, all examples at once."""
    parameters = [
        rng.normal(0, 1 / np.sqrt(N_INPUTS), (N_INPUTS, WIDTH)),
        np.zeros(WIDTH),
        rng.normal(0, 1 / np.sqrt(WIDTH), (WIDTH, N_CLASSES)),
        np.zeros(N_CLASSES),
    ]
    first = [np.zeros_like(each) for each in parameters]
    second = [np.zeros_like(each) for each in parameters]
    target = np.eye(N_CLASSES)[y]
    for step in range(1, STEPS + 1):
        hidden, hidden_bias, out, out_bias = parameters
        h = np.tanh(x @ hidden + hidden_bias)
        logits = h @ out + out_bias
        p = np.exp(logits - logits.max(1, keepdims=True))
        error = (p / p.sum(1, keepdims=True) - target) / len(x)
        back = error @ out.T * (1 - h**2)
        gradients = [x.T @ back, back.sum(0), h.T @ error, error.sum(0)]
        for each, gradient, m, s in zip(parameters, gradients, first, second, strict=True):
            m += 0.1 * (gradient - m)
            s += 0.001 * (gradient**2 - s)
            each -= 0.03 * (m / (1 - 0.9**step)) / (np.sqrt(s / (1 - 0.999**step)) + 1e-8)
    return Classifier(
        hidden=parameters[0], hidden_bias=parameters[1], out=parameters[2], out_bias=parameters[3]
    )
