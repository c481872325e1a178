"""Where the time of one circuit goes: the figure of docs/performance.md.

    python experiments/discovery_cost/run.py

The model of `classifier.py`, 64 images, `eap-ig-inputs` with 5 steps, float32, one CPU thread. Five turns
after one to warm up; of these the one with the median total is drawn. Writes `discovery_cost.json` beside
this file and `docs/images/cost-breakdown.svg`.
"""

import json
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from classifier import classifier, images

from assay.analyses.generalization.depth_bias import dependency_depth_bias
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.rank_plots import plot_cost
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.execution.batches import choose_batch_size
from assay.models import Model
from assay.tasks import ImageTask


HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "images" / "cost-breakdown.svg"
IMAGES, TURNS = 64, 5
PARTS = ("forward", "backward", "contraction")


def discovery_cost(model: Model, task: ImageTask) -> dict[str, dict[str, Any]]:
    """Seconds and passes per image of the parts of discovering one circuit and reading its depth bias.

    Plain passes are timed by themselves and multiplied by their number in the discovery; what that leaves of
    its time is the contraction of gradients with activations, hooks and copies.

    Returns:
        `plain-forward` (one pass over all images, for scale), `forward`, `backward`, `contraction`, `metrics`
        (the three depth biases of one circuit): each with `seconds` and `passes`. The contraction is an
        estimate by difference, and below 0 where passes inside the discovery were faster than alone.

    References:
        Peng et al. (2026), arXiv:2604.08192, appendix K.
    """
    settings = InspectionSettings()
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


def _forward_and_backward(model: Model, task: ImageTask, size: int) -> None:
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


def main() -> None:
    model, task = classifier(), images(IMAGES)
    turns = [discovery_cost(model, task) for _ in range(TURNS + 1)][1:]
    turns.sort(key=lambda turn: sum(turn[part]["seconds"] for part in PARTS))
    found = turns[TURNS // 2]
    record = {"images": IMAGES, "tokens": model.n_tokens, "edges": model.graph.n_edges, "cost": found}
    (HERE / "discovery_cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    mpl.rcParams["svg.hashsalt"] = "cost-breakdown"
    ax = plot_cost(found)
    ax.set_xlabel(f"seconds for one circuit on {IMAGES} images")
    ax.figure.savefig(PICTURE, metadata={"Date": None}, bbox_inches="tight")
    total = sum(found[part]["seconds"] for part in PARTS)
    print(f"{total:.2f} s, {total / found['plain-forward']['seconds']:.1f} plain passes")


if __name__ == "__main__":
    main()
