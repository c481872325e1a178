"""Cost of attribution on a vision transformer, as ratios to the model's own passes in the same run.

ViT-B/16 shape, random weights. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_vit.py [--threads 2] [--repeats 3] [--batch 8] [--device cpu] [--dtype float32]
"""

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from bench_engine import interleaved

from assay.analyses.generalization import dependency_depth_bias
from assay.discovery.edges import discover, output_scores
from assay.models import Model, load_model
from assay.tasks import ImageTask


STEPS = 5


def bare_passes(model: Model, task: ImageTask) -> None:
    """STEPS forward and backward passes with gradients of activations only."""
    images = task.clean.to(model.device, model.dtype)
    with model.frozen():
        for _ in range(STEPS):
            with torch.no_grad():
                embedded = model.module.vit.embeddings(images)
            start = embedded.detach().requires_grad_()
            hidden = start
            for block in model.blocks:
                hidden = block.module(hidden)
            logits = model.module.classifier(model.module.vit.layernorm(hidden)[:, 0])
            torch.autograd.grad((logits[:, 0] - logits[:, 1]).float().sum(), start)


def forward(model: Model, task: ImageTask) -> None:
    """One plain forward pass."""
    with torch.no_grad():
        model.module(task.clean.to(model.device, model.dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)).eval()
    model = load_model(module.to(options.device, getattr(torch, options.dtype)))
    task = ImageTask(images=torch.randn(options.batch, 3, 224, 224))
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(model, task),
        "bare": lambda: bare_passes(model, task),
        "eap-ig-inputs": lambda: discover(model, task, steps=STEPS, batch_size=options.batch),
        "output scores": lambda: output_scores(model, task, steps=STEPS, batch_size=options.batch),
    }
    seconds = interleaved(jobs, options.repeats, options.device)
    full = discover(model, task, steps=STEPS, batch_size=options.batch)
    slow = dependency_depth_bias(full, targets="output")
    fast = dependency_depth_bias(output_scores(model, task, steps=STEPS))
    ratios = {name: seconds[name] / seconds["forward"] for name in seconds}
    result = {
        "benchmark": "vit",
        "shape": {
            "model": "ViT-B/16, random weights",
            "batch": options.batch,
            "tokens": model.n_tokens,
            "edges": model.graph.n_edges,
            "steps": STEPS,
        },
        "machine": {
            "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
            "threads": options.threads,
            "dtype": options.dtype,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": {name: round(value, 4) for name, value in seconds.items()},
        "eap-ig-inputs": {
            "goal": {"times bare passes": 1.2, "forward-equivalents, published": 12.9},
            "times bare passes": round(seconds["eap-ig-inputs"] / seconds["bare"], 3),
            "forward-equivalents": round(ratios["eap-ig-inputs"], 2),
            "bare passes in forward-equivalents": round(ratios["bare"], 2),
        },
        "depth bias of the output": {
            "goal": {"forward-equivalents": 7.5, "relative difference": 1e-5},
            "forward-equivalents": round(ratios["output scores"], 2),
            "fast": fast,
            "full": slow,
            "relative difference": abs(fast - slow) / abs(slow),
        },
    }
    if "drift" in full.details:
        result["drift from float32"] = full.details["drift"]
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        kind = "" if options.device == "cpu" else f"_{options.device}_{options.dtype}"
        (Path(__file__).parent / "results" / f"vit{kind}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
