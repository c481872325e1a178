"""Where the time of a circuit goes: forward and backward passes, contraction, metrics."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from assay.analyses.generalization.depth_bias import dependency_depth_bias
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.predictor import PREDICTORS
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.tasks import ImageStream, ImageTask


OWN_DOMAIN = "own domain"  # how stages on the images of the models' own domain end


def passes_per_image(metrics: Sequence[str], steps: int, *, known: bool) -> dict[str, int]:
    """Passes per image and model of each stage that some metric needs.

    Forward and backward passes are counted alike.

    Args:
        metrics: Keys of `PREDICTORS`.
        steps: Quadrature nodes.
        known: Whether there are labelled images of the models' own domain; stages on those end in
            `OWN_DOMAIN`.
    """
    needs = frozenset[str]().union(*(PREDICTORS[key].needs for key in metrics))
    stages = {"logits and features": 1}
    if "edge-scores" in needs:
        stages["scores of all edges"] = 2 + 2 * steps
    elif "output-scores" in needs:
        stages["scores of edges into the logits"] = 2 + steps
    if known and "known" in needs:
        stages[f"logits, {OWN_DOMAIN}"] = 1
        if "sharpness" in needs:
            stages[f"sharpness, {OWN_DOMAIN}"] = 61
    return stages


def discovery_cost(
    model: Model, task: ImageTask | ImageStream, *, settings: InspectionSettings | None = None
) -> dict[str, dict[str, Any]]:
    """Seconds and passes per image of the parts of discovering one circuit and reading its depth bias.

    Plain passes are timed by themselves and multiplied by their number in the discovery; what that leaves of
    its time is the contraction of gradients with activations, hooks and copies.

    Args:
        model: An image classifier in evaluation mode.
        task: The images.
        settings: How scores are measured.

    Returns:
        `plain-forward` (one pass over all images, for scale), `forward`, `backward`, `contraction`, `metrics`
        (the three depth biases of one circuit): each with `seconds` and `passes`. The contraction is an
        estimate by difference, and below 0 where passes inside the discovery were faster than alone.

    References:
        Peng et al. (2026), arXiv:2604.08192, appendix K.
    """
    settings = settings or InspectionSettings()
    size = choose_batch_size(model, model.bind(task), asked=settings.batch_size)
    run_model(model, task, batch_size=size)  # the first pass pays for what later ones find ready
    forward = _timed(lambda: run_model(model, task, batch_size=size))
    both = _timed(lambda: _forward_and_backward(model, task, size))
    started = time.perf_counter()
    scores = discover(model, task, "eap-ig-inputs", **settings.of_discovery)
    total = time.perf_counter() - started
    passes = scores.details["passes"]
    spent = {
        "plain-forward": (forward, {"forward": 1}),
        "forward": (forward * passes["forward"], {"forward": passes["forward"]}),
        "backward": ((both - forward) * passes["backward"], {"backward": passes["backward"]}),
    }
    rest = total - spent["forward"][0] - spent["backward"][0]
    spent["contraction"] = (rest, {})
    spent["metrics"] = (
        _timed(
            lambda: [dependency_depth_bias(scores, targets=each) for each in ("output", "deep", "global")]
        ),
        {},
    )
    return {name: {"seconds": seconds, "passes": counts} for name, (seconds, counts) in spent.items()}


def _forward_and_backward(model: Model, task: ImageTask | ImageStream, size: int) -> None:
    """A pass of every image and its gradient at the pixels, nothing else."""
    vision = model.vision
    assert vision is not None  # `bind` refused other models
    with model.frozen():
        for batch in task.batches(size):
            images = batch.images.to(model.device, model.dtype).requires_grad_()
            logits = vision.logits(model.module, model.forward(images))
            torch.autograd.grad(logits.sum(), images)


def _timed(run: Any) -> float:
    """Seconds of a call, until the device is done."""
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started
