"""How sharp a minimum is: the rise of the loss when every weight moves a little in the worst direction."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from assay.core.errors import InputError, NonFiniteError
from assay.models import Model
from assay.tasks import ImageTask


BATCH_SIZE = 256  # with which sharpness is published


def sharpness(
    model: nn.Module | Model,
    batches: ImageTask | Iterable[tuple[Tensor, Tensor]],
    *,
    batch_size: int = BATCH_SIZE,
    rho: float = 0.001,
    iterations: int = 20,
    adaptive: bool = True,
    normalize_logits: bool = True,
) -> float:
    """How much the loss can rise when every weight moves a little: worst case in an l-infinity ball.

    Args:
        model: A classifier in evaluation mode: images in, logits (or an output with `logits`) out.
        batches: In-distribution validation data: (images, labels) at a time, or a task with labels.
        batch_size: Images of a task taken together, its last batch may be smaller. The worst direction is
            one for the whole batch, so values compare only between equal batch sizes.
        rho: Radius, relative to each weight's magnitude if `adaptive`.
        iterations: Gradient steps per batch.
        adaptive: Scale the ball by the magnitude of each weight.
        normalize_logits: Centre the logits of an example and scale them to length 1, so that their scale does
            not count.

    Returns:
        Mean over batches of the rise of the cross-entropy, nats, >= 0; expected to fall with performance.

    Raises:
        InputError: For a model in training mode, no batch, one that is not a pair of tensors, labels that are
            missing or none of the model's classes, or a radius or number of steps below or at 0.
        NonFiniteError: If the loss is not finite.

    Notes:
        Costs `iterations` forward and backward passes, and 1 + `iterations` forward passes, per batch, and
        the memory of about eight copies of the weights. The model's own weights are never written to.

    References:
        Andriushchenko et al. (2023), arXiv:2302.07011; auto-PGD: Croce and Hein (2020), arXiv:2003.01690.
    """
    module = model if isinstance(model, nn.Module) else model.module
    training = next((name for name, part in module.named_modules() if part.training), None)
    if training is not None:
        raise InputError(f"{training or 'the model'} is in training mode; call model.eval() first")
    names = [name for name, _ in module.named_parameters()]
    weights = [parameter.detach() for parameter in module.parameters()]
    rises = []
    for images, labels in _pairs(batches, batch_size, weights[0]):

        def loss(moved: Sequence[Tensor], images: Tensor = images, labels: Tensor = labels) -> Tensor:
            output = torch.func.functional_call(module, dict(zip(names, moved, strict=True)), (images,))
            logits: Tensor = output if isinstance(output, Tensor) else output.logits
            if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
                raise InputError(
                    f"labels go from {int(labels.min())} to {int(labels.max())}, but the model has "
                    f"{logits.shape[-1]} classes; the class lists of model and data must agree"
                )
            return cross_entropy(_unit_logits(logits) if normalize_logits else logits, labels)

        rises.append(worst_case_rise(loss, weights, rho=rho, iterations=iterations, adaptive=adaptive))
    if not rises:
        raise InputError("sharpness needs at least one batch of (images, labels)")
    return float(np.mean(rises))


def _pairs(
    batches: ImageTask | Iterable[object], batch_size: int, weight: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    if not isinstance(batches, ImageTask):
        for number, given in enumerate(batches):
            match given:
                case (Tensor() as images, Tensor() as labels):
                    yield images.to(weight), labels.to(weight.device)
                case _:
                    raise InputError(
                        f"batch {number} is {type(given).__name__}; give pairs of tensors (images, labels), "
                        "or one ImageTask with labels, not a list of them"
                    )
        return
    if batches.labels is None:
        name = batches.domain or batches.name
        raise InputError(f"sharpness needs labels, but the images of {name!r} have none")
    for batch in batches.batches(batch_size):
        assert batch.labels is not None  # all of the task's images have one
        yield batch.images.to(weight), batch.labels.to(weight.device).long()


def worst_case_rise(
    loss: Callable[[Sequence[Tensor]], Tensor],
    weights: Sequence[Tensor],
    *,
    rho: float = 0.001,
    iterations: int = 20,
    adaptive: bool = True,
) -> float:
    """Largest rise of a loss found by auto-PGD when each weight moves by at most rho (times its magnitude).

    Args:
        loss: From weights like the given ones to a scalar.
        weights: Where the search starts; not changed.
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
    start = [each.detach() for each in weights]
    scale = [each.abs() if adaptive else torch.ones_like(each) for each in start]
    limits = [rho * each for each in scale]
    previous = delta = at = best = [torch.zeros_like(each) for each in start]
    step, improved, last = 2 * rho, 0, 0
    first = worst = _value(loss, start)
    checkpoints = auto_pgd_checkpoints(iterations)
    for iteration in range(iterations):
        gradient = _gradient(loss, start, at)
        target = [
            (d + step * c * g.sign()).clamp(-limit, limit)
            for d, c, g, limit in zip(delta, scale, gradient, limits, strict=True)
        ]
        moved = [0.75 * goal + 0.25 * old for goal, old in zip(target, previous, strict=True)]
        previous, delta = delta, moved
        at = delta
        value = _value(loss, [w + d for w, d in zip(start, delta, strict=True)])
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


def _gradient(
    loss: Callable[[Sequence[Tensor]], Tensor], start: Sequence[Tensor], delta: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    moved = [(w + d).requires_grad_() for w, d in zip(start, delta, strict=True)]
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss(moved), moved, allow_unused=True, materialize_grads=True)
    return tuple(gradients)


def _value(loss: Callable[[Sequence[Tensor]], Tensor], weights: Sequence[Tensor]) -> float:
    with torch.no_grad():
        value = float(loss(weights))
    if not math.isfinite(value):
        raise NonFiniteError(f"the loss is {value}; check the weights and the images for NaN")
    return value


def _unit_logits(logits: Float[Tensor, "n c"]) -> Float[Tensor, "n c"]:
    centred = logits - logits.mean(1, keepdim=True)
    unit: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-10)
    return unit
