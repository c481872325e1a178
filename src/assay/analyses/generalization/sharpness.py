"""How sharp a minimum is: the rise of the loss when every weight moves a little in the worst direction."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from assay.core.errors import InputError, NonFiniteError
from assay.models import Model


Weights = Float[Tensor, " n"]  # all of them in one row
Loss = Callable[[Tensor], Tensor]  # of the weights


def sharpness(
    model: nn.Module | Model,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    normalize_logits: bool = True,
    **search: Any,
) -> float:
    """How much the loss can rise when every weight moves a little: worst case in an l-infinity ball.

    Args:
        model: A classifier in evaluation mode: images in, logits (or an output with `logits`) out.
        batches: In-distribution validation data, (images, labels) at a time. The worst direction is one for
            the whole batch, so values compare only between equal batch sizes; published with 256 images.
        normalize_logits: Centre the logits of an example and scale them to length 1, so that their scale does
            not count.
        search: `rho`, `iterations` and `adaptive` of `worst_case_rise`.

    Returns:
        Mean over batches of the rise of the cross-entropy, nats, >= 0; expected to fall with performance.

    Raises:
        InputError: For a model in training mode, no batch, labels outside the model's classes, or a radius or
            number of steps below or at 0.
        NonFiniteError: If the loss is not finite.

    Notes:
        Costs `iterations` forward and backward passes, and 1 + `iterations` forward passes, per batch, and
        the memory of about nine copies of the weights. The model's own weights are never written to.

    References:
        Andriushchenko et al. (2023), arXiv:2302.07011; auto-PGD: Croce and Hein (2020), arXiv:2003.01690.
    """
    module = model if isinstance(model, nn.Module) else model.module
    if any(part.training for part in module.modules()):
        raise InputError("the model, or a part of it, is in training mode; call model.eval() first")
    weights = dict(module.named_parameters())
    start = parameters_to_vector(weights.values()).detach()
    rises = []
    for images, labels in batches:
        seen, truth = images.to(start), labels.to(start.device).long()

        def loss(moved: Tensor, images: Tensor = seen, labels: Tensor = truth) -> Tensor:
            parts = moved.split([each.numel() for each in weights.values()])
            shaped = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
            output = torch.func.functional_call(module, shaped, (images,))
            logits: Tensor = output if isinstance(output, Tensor) else output.logits
            if not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
                raise InputError(f"a label is outside the {logits.shape[-1]} classes of the model")
            if normalize_logits:
                logits = logits - logits.mean(1, keepdim=True)
                logits = logits / logits.norm(dim=1, keepdim=True).clamp_min(1e-10)
            return cross_entropy(logits, labels)

        rises.append(worst_case_rise(loss, start, **search))
    if not rises:
        raise InputError("sharpness needs at least one batch of (images, labels)")
    return float(np.mean(rises))


def worst_case_rise(
    loss: Loss, start: Weights, *, rho: float = 0.001, iterations: int = 20, adaptive: bool = True
) -> float:
    """Largest rise of a loss found by auto-PGD when each weight moves by at most rho (times its magnitude).

    Args:
        loss: From weights to a scalar.
        start: Weights where the search starts; not changed.
        rho: Radius, > 0.
        iterations: Gradient steps, >= 1.
        adaptive: Scale radius and steps by the magnitude of each weight.

    Returns:
        loss at the worst weights - loss at the start, >= 0.

    Raises:
        InputError: For a radius or number of steps out of range.
        NonFiniteError: If the loss is not finite.

    References:
        Croce and Hein (2020), arXiv:2003.01690, algorithm 1, with the momentum of 0.25 on the last position.
    """
    if not rho > 0 or iterations < 1:
        raise InputError(
            f"rho is {rho} and iterations {iterations}; give a radius above 0 and at least 1 step"
        )
    scale = start.abs() if adaptive else torch.ones_like(start)
    previous = delta = at = best = torch.zeros_like(start)
    step, improved, last = 2 * rho, 0, 0
    first = worst = _value(loss, start)
    checkpoints = auto_pgd_checkpoints(iterations)
    for iteration in range(iterations):
        moved = (start + at).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(moved), moved)
        target = (delta + step * scale * gradient.sign()).clamp(-rho * scale, rho * scale)
        at = 0.75 * target + 0.25 * previous
        previous, delta = delta, at
        value = _value(loss, start + delta)
        if value > worst:
            worst, best, improved = value, delta, improved + 1
        # The other published condition, no progress at an unchanged step, is a case of this one.
        if iteration in checkpoints:
            if improved < 0.75 * (iteration - last):
                step, at = step / 2, best
            improved, last = 0, iteration
    return worst - first


def auto_pgd_checkpoints(iterations: int) -> tuple[int, ...]:
    """Iterations after which auto-PGD may halve its step: ceil(p_j iterations) below `iterations`.

    p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06).

    Example:
        >>> auto_pgd_checkpoints(20)
        (5, 9, 12, 15, 16, 18, 19)
    """
    checkpoints: list[int] = []
    before, now = 0.0, 0.22
    while math.ceil(now * iterations) < iterations:
        checkpoints.append(math.ceil(now * iterations))
        before, now = now, now + max(now - before - 0.03, 0.06)
    return tuple(dict.fromkeys(checkpoints))


def _value(loss: Loss, weights: Weights) -> float:
    with torch.no_grad():
        value = float(loss(weights))
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss is {value}; check the weights and the images for NaN")
    return value
