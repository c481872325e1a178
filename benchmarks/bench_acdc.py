"""Cost of greedy edge removal, as ratios in one run.

Two ways to the same circuit of `mini`: `acdc`, and the runner of compiled circuits asked once per edge. The
second is timed on a random sample of the edges, each under the cuts that the search had made when it came to
that edge; its time is that of the sample times the edges. Its rises and decisions are compared with `acdc`'s.
Processor seconds on one thread, since a search is a long chain of small steps. Prints one JSON document;
`--save` writes it to benchmarks/results.

    python benchmarks/bench_acdc.py [--n 8] [--threshold 0.02] [--sample 60] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRunner, run_model
from assay.models import Model, load_model
from assay.objectives import OBJECTIVES
from assay.tasks import PairTask, load_task


def compiled(model: Model, task: PairTask) -> Callable[[Tensor], float]:
    """The mean divergence of the run of a mask of kept edges."""
    batch = next(task.batches(task.n))
    baseline = ABLATIONS["resample"].prepare(model, task, batch_size=task.n, seed=0).baseline(batch)
    with torch.no_grad(), model.tracing() as trace:
        model.forward(task.clean)
    clean, divergence = run_model(model, task).double(), OBJECTIVES["kl"]

    def loss(mask: Tensor) -> float:
        runner = CircuitRunner(model, Circuit(graph=model.graph, mask=mask), resample=True)
        return float(
            divergence(runner.logits(trace, baseline, batch.positions).double(), clean, batch).mean()
        )

    return loss


def seconds(function: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Processor seconds of the fastest repetition, and what it returned."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        result = function()
        times.append(time.process_time() - started)
    return min(times), result


def sampled(
    model: Model, scores: EdgeScores, loss: Callable[[Tensor], float], threshold: float, count: int
) -> dict[str, Any]:
    """Seconds per edge on some edges in the order of the search; its rises against the scores."""
    graph, kept = model.graph, scores.threshold(threshold, absolute=False).mask
    visited = [
        (source, target)
        for target in reversed(range(graph.n_targets))
        for source in reversed(graph.valid[:, target].nonzero().squeeze(1).tolist())
    ]
    generator = torch.Generator().manual_seed(0)
    chosen = set(torch.randperm(len(visited), generator=generator)[:count].tolist())
    mask, spent, gaps, differ = graph.valid.clone(), 0.0, [], 0
    for place, edge in enumerate(visited):
        before = loss(mask) if place in chosen else 0.0
        mask[edge] = False
        if place in chosen:
            took, after = seconds(lambda: loss(mask))
            spent += took
            gaps.append(abs(after - before - float(scores.values[edge])))
            differ += (after - before >= threshold) != bool(kept[edge])
        mask[edge] = kept[edge]
    return {
        "seconds per edge": spent / len(chosen),
        "edges sampled": len(chosen),
        "decisions that differ": differ,
        "largest difference of a rise": max(gaps),
    }


def compare(model: Model, task: PairTask, threshold: float, count: int) -> dict[str, object]:
    """One search, and a sample of `count` edges of the slow one."""

    def forward() -> None:
        with torch.no_grad():
            model.unembed(model.forward(task.clean))

    plain, _ = seconds(forward, 5)
    took, scores = seconds(lambda: discover(model, task, "acdc", threshold=threshold), 3)
    slow = sampled(model, scores, compiled(model, task), threshold, count)
    spent = slow.pop("seconds per edge") * model.graph.n_edges
    return {
        "threshold": threshold,
        "edges": model.graph.n_edges,
        "kept": scores.threshold(threshold, absolute=False).n_edges,
        "tested": scores.details["tested"],
        "hypotheses evaluated": scores.details["runs"],
        "seconds of a plain forward pass": round(plain, 5),
        "acdc": {"seconds": round(took, 3), "forward passes": round(took / plain, 1)},
        "compiled run per edge": {
            "seconds": round(spent, 2),
            "times acdc": round(spent / took, 1),
            "forward passes": round(spent / plain),
            **slow,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.02])
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mini = load_model("mini")
    task = load_task("ioi", mini, n=options.n, seed=0)
    result = {
        "benchmark": "acdc",
        "machine": {
            "device": "cpu",
            "threads": 1,
            "dtype": "float32",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "examples": options.n,
        "mini, IOI": [compare(mini, task, threshold, options.sample) for threshold in options.threshold],
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / "acdc_cpu_float32.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
