"""What `exact` costs on a ViT-Ti, and one run of the whole model per edge: figures of docs/performance.md.

    python experiments/discovery_cost/exact.py

A ViT of the shape of ViT-Ti (12 blocks of 3 heads, width 192; random weights), 2 drawn images of 96 x 96
pixels (37 tokens), float32, one CPU thread, seconds of the processor. All edges into one target of a shallow,
a middle and a deep block. Writes `exact.json` beside this file.
"""

import json
import time
from pathlib import Path

import torch
from transformers import ViTConfig, ViTForImageClassification

import assay
from assay.circuits import Circuit
from assay.discovery.edges import METHODS
from assay.discovery.edges.patching import _runs_apart, _suffix_runs
from assay.execution import get_ablation
from assay.tasks import EvalTransform, draw_shapes


SIDE, IMAGES, TARGETS = 96, 2, ("a2.h0.q", "m6", "a10.h1.v")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=SIDE,
        patch_size=16,
        num_labels=6,
    )
    model = assay.load_model(ViTForImageClassification(config).eval())
    task = model.bind(draw_shapes("flat", IMAGES, size=SIDE).task(EvalTransform(resize=(SIDE, SIDE))))
    settings = METHODS["exact"].choices(task)
    (batch,) = task.batches(IMAGES)
    baseline = get_ablation(task.ablation).prepare(model, task, batch_size=IMAGES, seed=0).baseline(batch)
    edges = [f"{source}->{target}" for target in TARGETS for source in _sources(model, target)]
    wanted = Circuit.from_edges(model.graph, edges).mask
    seconds, damages = {}, {}
    for name, runs in (("one run per edge", _runs_apart), ("from targets on", _suffix_runs)):
        started = time.process_time()
        with torch.no_grad():
            damages[name] = {place[:2]: place[2] for place in runs(model, batch, baseline, settings, wanted)}
        seconds[name] = time.process_time() - started
    first, second = damages.values()
    largest = max(float(each.abs().max()) for each in first.values())
    apart = max(float((first[place] - second[place]).abs().max()) for place in first) / largest
    record = {"edges": len(edges), "all_edges": model.graph.n_edges, "images": IMAGES, "seconds": seconds}
    record |= {"speed_up": seconds["one run per edge"] / seconds["from targets on"], "largest_error": apart}
    Path(__file__).with_name("exact.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(record)


def _sources(model: assay.Model, target: str) -> list[str]:
    column = model.graph.targets.index(target)
    return [model.graph.sources[row] for row in model.graph.valid[:, column].nonzero().flatten().tolist()]


if __name__ == "__main__":
    main()
