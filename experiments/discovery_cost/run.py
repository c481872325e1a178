"""Where the time of one circuit goes: the figure of docs/performance.md.

    python experiments/discovery_cost/run.py

The model of `classifier.py`, 64 images, `eap-ig-inputs` with 5 steps, float32, one CPU thread. Five turns
after one to warm up; of these the one with the median total is drawn. Writes `discovery_cost.json` beside
this file and `docs/images/cost-breakdown.svg`.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import torch
from classifier import classifier, images

from assay.analyses.generalization import dependency_depth_bias
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model
from assay.tasks import ImageTask


HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "images" / "cost-breakdown.svg"
IMAGES, TURNS = 64, 5
PARTS = ("forward", "backward", "contraction")


def seconds_of(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def forward_and_backward(model: Model, task: ImageTask) -> None:
    """A pass of every image and its gradient at the pixels, nothing else."""
    with model.frozen():
        for batch in task.batches(IMAGES):
            pixels = batch.images.to(model.dtype).requires_grad_()
            logits = model.vision.logits(model.module, model.forward(pixels))
            torch.autograd.grad(logits.sum(), pixels)


def discovery_cost(model: Model, task: ImageTask) -> dict[str, dict[str, Any]]:
    """Seconds and passes per image of each part: plain passes times their number, and what that leaves."""
    run_model(model, task, batch_size=IMAGES)  # the first pass pays for what later ones find ready
    forward = seconds_of(lambda: run_model(model, task, batch_size=IMAGES))
    both = seconds_of(lambda: forward_and_backward(model, task))
    started = time.perf_counter()
    scores = discover(model, task, "eap-ig-inputs", steps=5)
    total = time.perf_counter() - started
    passes = scores.details["passes"]
    spent = {
        "plain-forward": (forward, {"forward": 1}),
        "forward": (forward * passes["forward"], {"forward": passes["forward"]}),
        "backward": ((both - forward) * passes["backward"], {"backward": passes["backward"]}),
    }
    spent["contraction"] = (total - spent["forward"][0] - spent["backward"][0], {})
    biases = ("output", "deep", "global")
    spent["metrics"] = (
        seconds_of(lambda: [dependency_depth_bias(scores, targets=each) for each in biases]),
        {},
    )
    return {name: {"seconds": seconds, "passes": counts} for name, (seconds, counts) in spent.items()}


def main() -> None:
    model, task = classifier(), images(IMAGES)
    turns = [discovery_cost(model, task) for _ in range(TURNS + 1)][1:]
    turns.sort(key=lambda turn: sum(turn[part]["seconds"] for part in PARTS))
    found = turns[TURNS // 2]
    record = {"images": IMAGES, "tokens": model.n_tokens, "edges": model.graph.n_edges, "cost": found}
    (HERE / "discovery_cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    mpl.rcParams["svg.hashsalt"] = "cost-breakdown"
    seconds = pd.Series({name: part["seconds"] for name, part in found.items()}).sort_values()
    ax = seconds.plot.barh(figsize=(6.6, 2.8), xlabel=f"seconds for one circuit on {IMAGES} images")
    ax.bar_label(ax.containers[0], fmt="%.3g s", padding=5)
    ax.figure.savefig(PICTURE, metadata={"Date": None}, bbox_inches="tight")
    total = sum(found[part]["seconds"] for part in PARTS)
    print(f"{total:.2f} s, {total / found['plain-forward']['seconds']:.1f} plain passes")


if __name__ == "__main__":
    main()
