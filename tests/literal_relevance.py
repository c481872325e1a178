"""Relevance propagation written out: every rule is the product it stands for, its constant factor detached.

A copy of a model gets parts that compute the same, with the gradient of the rule. Its literal run, with one
copy of the stream for each target, then gives the coefficients; nothing of the library's hooks is used.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import literal
from torch import Tensor, nn

from assay.models import Model, load_model
from assay.tasks import Task


ACTIVATIONS = ("act", "act_fn", "activation_fn")  # what libraries call the activation of an MLP


class RuledNorm(nn.Module):
    """LN rule: divided by a constant."""

    constant_scale = True  # for the literal run

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.weight, self.bias = native.weight, getattr(native, "bias", None)
        self.eps = native.eps if hasattr(native, "eps") else native.variance_epsilon
        self.centred = isinstance(native, nn.LayerNorm)
        self.more = float(type(native).__name__.startswith("Gemma"))  # gains of 1 + weight

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        scale = (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        y = x / scale.detach() * (self.weight + self.more)
        return y if self.bias is None else y + self.bias


class RuledActivation(nn.Module):
    """Identity rule: multiplied by a constant."""

    def __init__(self, native: nn.Module) -> None:
        super().__init__()
        self.native = native

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.native(x) / x).detach()


class Halved(nn.Module):
    """Half rule: one half of the product that is read counts, the other is a constant."""

    def __init__(self, native: nn.Module) -> None:
        super().__init__()
        self.native = native

    def forward(self, product: Tensor) -> Tensor:
        return self.native(product / 2 + (product / 2).detach())


def ruled(model: Model, *, identity: bool = True) -> Model:
    """A copy of a model with these parts (or with its own activations); it computes the same."""
    module = deepcopy(model.module)
    for path, part in list(module.named_modules()):
        owner, _, name = path.rpartition(".")
        if isinstance(part, nn.LayerNorm) or type(part).__name__.endswith("RMSNorm"):
            part = RuledNorm(part)
        elif name in ACTIVATIONS and identity:
            part = RuledActivation(part)
        gated_of_timm = hasattr(module.get_submodule(owner), "gate_last") or hasattr(
            module.get_submodule(owner), "fc1_g"
        )
        if name == "down_proj" or (name == "norm" and gated_of_timm):
            part = Halved(part)
        if path:
            module.set_submodule(path, part)
    return load_model(module.eval())


def relevance(
    model: Model, task: Task, loss: Callable[[Tensor], Tensor], differences: literal.Outputs
) -> Tensor:
    """Differences of what sources write, times explicitly propagated coefficients: `[batch, S, R]`."""
    gradients = literal.edge_gradients(ruled(model), task.clean, loss)
    return literal.scores(model, differences, gradients, task.lengths)


def relevance_of_images(model: Model, task: Task) -> Tensor:
    """The same of the cross-entropy of the labels, where corrupted images are patched in."""
    _, clean = literal.run_plain(model, task.clean)
    _, other = literal.run_plain(model, next(task.batches(task.n)).corrupted)
    differences = {name: other[name] - value for name, value in clean.items()}

    def loss(logits: Tensor) -> Tensor:
        return -logits.log_softmax(-1).gather(1, task.labels[:, None])[:, 0]

    return relevance(model, task, loss, differences)
