"""What `exact` costs on a ViT-Ti, and one run of the whole model per edge: figures of docs/theory/exact.md.

    python experiments/discovery_cost/exact.py

The model of `classifier.py`, 2 images, float32, one CPU thread, seconds of the processor. All edges into one
target of a shallow, a middle and a deep block. How far the two ways are apart is given in nats, and once more
with the divergence of the same float32 logits computed in float64. Writes `exact.json` beside this file.
"""

import json
import time
from pathlib import Path
from typing import Any

import torch
from classifier import classifier, images
from torch import Tensor

import assay
from assay.circuits import Circuit
from assay.discovery.edges import METHODS
from assay.discovery.edges.patching import runs_apart, runs_from_targets
from assay.execution import get_ablation
from assay.objectives import get_objective


IMAGES, TARGETS = 2, ("a2.h0.q", "m6", "a10.h1.v")
WAYS = {"one run per edge": runs_apart, "from targets on": runs_from_targets}


def main() -> None:
    model = classifier()
    task = model.bind(images(IMAGES))
    (batch,) = task.batches(IMAGES)
    baseline = get_ablation(task.ablation).prepare(model, task, batch_size=IMAGES, seed=0).baseline(batch)
    edges = [f"{source}->{target}" for target in TARGETS for source in _sources(model, target)]
    wanted = Circuit.from_edges(model.graph, edges).mask
    seconds: dict[str, float] = {}

    def damages(name: str, objective: Any = None) -> Tensor:
        settings = METHODS["exact"].choices(task, objective=objective)
        started = time.process_time()
        with torch.no_grad():
            found = {place[:2]: place[2] for place in WAYS[name](model, batch, baseline, settings, wanted)}
        seconds.setdefault(name, time.process_time() - started)
        return torch.stack([found[place] for place in sorted(found)])

    first, second = map(damages, WAYS)
    exact = [damages(name, _kl_in_float64) for name in WAYS]
    record = {
        "edges": len(edges),
        "all_edges": model.graph.n_edges,
        "images": IMAGES,
        "seconds": seconds,
        "speed_up": seconds["one run per edge"] / seconds["from targets on"],
        "largest_damage": float(first.abs().max()),
        "largest_difference": float((first - second).abs().max()),
        "largest_difference_kl_in_float64": float((exact[0] - exact[1]).abs().max()),
    }
    Path(__file__).with_name("exact.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(record)


def _kl_in_float64(logits: Tensor, clean_logits: Tensor, batch: Any) -> Tensor:
    return get_objective("kl").loss(logits.double(), clean_logits.double(), batch)


def _sources(model: assay.Model, target: str) -> list[str]:
    column = model.graph.targets.index(target)
    return [model.graph.sources[row] for row in model.graph.valid[:, column].nonzero().flatten().tolist()]


if __name__ == "__main__":
    main()
