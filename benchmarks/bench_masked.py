"""Cost of runs under real-valued masks, in forward passes of the same model over the same prompts.

Eight prompts of IOI (15 tokens under the published SmolLM2) under one mask for all and under one mask each,
without and with the gradient in the mask, and the drawing of a training step's examples. Processor seconds on
one thread, the fastest of several repetitions; the jobs take turns. Prints one JSON document; `--save` writes
it to benchmarks/results.

    python benchmarks/bench_masked.py [--model .real/smollm2-135m] [--n 8] [--repeats 5] [--save]
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from assay.discovery.edges import METHODS
from assay.discovery.edges.masked_runs import Drawn, MaskedRuns
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


PUBLISHED = ".real/smollm2-135m"
GOALS = {"forward": 2.5, "forward and backward": 5.0}


def interleaved(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Processor seconds of the fastest repetition of each job."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            started = time.process_time()
            job()
            if turn:  # the first turn warms up
                times[name].append(time.process_time() - started)
    return {name: min(values) for name, values in times.items()}


def losses(drawn: Drawn, mask: Tensor, *, gradient: bool) -> None:
    """The objective of all examples under a mask, and perhaps its gradient."""
    with torch.set_grad_enabled(gradient):
        loss = drawn.losses(mask.requires_grad_(gradient)).sum()
        if gradient:
            torch.autograd.grad(loss, mask)


def compare(model: Model, task: PairTask, repeats: int) -> dict[str, object]:
    """Seconds and ratios of all jobs."""

    @torch.no_grad()
    def forward() -> None:
        model.read(model.forward(task.clean), task.positions)

    settings = METHODS["nested"].choices(task)
    runs = MaskedRuns(model, task, settings, task.n, examples=task.n, updates=100)
    drawn = runs.draw(0)
    generator = torch.Generator().manual_seed(0)
    masks = {
        "one mask": torch.rand(model.graph.valid.shape, generator=generator),
        "a mask per example": torch.rand((task.n, *model.graph.valid.shape), generator=generator),
    }
    jobs: dict[str, Callable[[], object]] = {"bare": forward, "drawing": lambda: runs.draw(1)}
    for name, mask in masks.items():
        jobs[f"{name}, forward"] = partial(losses, drawn, mask, gradient=False)
        jobs[f"{name}, both"] = partial(losses, drawn, mask, gradient=True)
    seconds = interleaved(jobs, repeats)
    ratio = {name: round(value / seconds["bare"], 2) for name, value in seconds.items()}
    return {
        "seconds of a forward pass": round(seconds["bare"], 3),
        "in forward passes": {
            name: {"forward": ratio[f"{name}, forward"], "forward and backward": ratio[f"{name}, both"]}
            for name in masks
        },
        "goal": GOALS,
        "drawing the examples of a step": ratio["drawing"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=PUBLISHED)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    if options.model == PUBLISHED and not Path(PUBLISHED).exists():
        parser.exit(message=f"{PUBLISHED} is missing; make it with 'make real'\n")
    torch.set_num_threads(1)
    model = load_model(options.model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names of the grammar that its tokenizer splits
        task = model.bind(load_task("ioi", model, n=options.n, seed=0))
    result = {
        "benchmark": "masked",
        "machine": {"threads": 1, "torch": torch.__version__, "python": platform.python_version()},
        "model": model.id,
        "edges": model.graph.n_edges,
        "prompts": task.n,
        "tokens": task.length,
        **compare(model, task, options.repeats),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / "masked.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
