"""Time of what is computed from circuits of a ViT-B/16: depth bias, shift, intervals, motif; no model runs.

Scores are random, on the graph of 12 blocks of 12 heads (32,491 edges). The unit of the ratios is one sort of
as many numbers in the same process, which no rank can do without. Also the corruptions of one image of 224
pixels a side. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_generalization.py [--threads 2] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy
import torch

from assay.analyses.generalization import (
    DISTANCES,
    circuit_shift,
    dependency_depth_bias,
    dependency_matrix,
    motif,
    rank_shift_map,
    resampled_depth_bias,
)
from assay.circuits import EdgeScores
from assay.discovery.edges import OutputScores
from assay.graph import Graph, build_graph
from assay.tasks import CORRUPTIONS, ImageTask, corrupt


MODELS = 144  # of the published zoo, for the motif
EXAMPLES = 100


def best(call: Callable[[], object], repeats: int = 7) -> float:
    """Shortest of several runs, seconds."""
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def scores(graph: Graph, seed: int) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    return EdgeScores(graph, torch.randn(graph.n_sources, graph.n_targets, generator=generator))


def metrics() -> dict[str, object]:
    graph = build_graph(12, 12)
    a, b = scores(graph, 0), scores(graph, 1)
    numbers = a.values[graph.valid].double().numpy()
    unit = best(lambda: np.sort(numbers, kind="stable"), 20)
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randn(200, graph.n_sources, generator=generator)
    outputs = OutputScores(
        graph=graph,
        values=drawn.mean(0),
        per_example=None,
        provenance={},
        details={"n": EXAMPLES},
        resampled=drawn,
    )
    matrices = torch.rand(MODELS, 14, 14, generator=generator)
    performance = torch.rand(MODELS, generator=generator).tolist()
    calls: dict[str, tuple[Callable[[], object], float | None]] = {
        "dependency matrix": (lambda: dependency_matrix(a), 0.05),
        "depth bias, output": (lambda: dependency_depth_bias(a), 0.05),
        "depth bias, deep": (lambda: dependency_depth_bias(a, targets="deep"), 0.05),
        "depth bias, global": (lambda: dependency_depth_bias(a, targets="global"), 0.05),
        "depth bias, edges into the logits alone": (lambda: dependency_depth_bias(outputs), 0.05),
    }
    for key in DISTANCES:
        limit = 0.05 if key in ("spearman", "cosine", "l2") else 1.0
        calls[f"shift, {key}"] = (lambda key=key: circuit_shift(a, b, distance=key), limit)
    calls["rank-shift map"] = (lambda: rank_shift_map(a, b), None)
    calls[f"interval of the depth bias, {EXAMPLES} examples"] = (
        lambda: resampled_depth_bias(outputs).interval(),
        None,
    )
    calls[f"motif of {MODELS} models"] = (lambda: motif(matrices, performance), None)
    found: dict[str, object] = {"edges": graph.n_edges, "seconds of a sort": round(unit, 6)}
    for name, (call, limit) in calls.items():
        seconds = best(call)
        found[name] = {"ms": round(1000 * seconds, 3), "sorts": round(seconds / unit, 1)} | (
            {"goal in ms": 1000 * limit} if limit else {}
        )
    return found


def corruptions() -> dict[str, object]:
    generator = np.random.default_rng(0)
    images = ImageTask(pixels=generator.integers(0, 256, (1, 224, 224, 3), dtype=np.uint8), domain="noise")
    families: dict[str, list[float]] = {}
    for key, entry in CORRUPTIONS.items():
        families.setdefault(entry.family, []).append(best(lambda key=key: corrupt(images, key).held(), 2))
    means = {family: round(1000 * sum(times) / len(times), 1) for family, times in families.items()}
    return {"ms per image": means, "all 39, ms": round(1000 * sum(map(sum, families.values())), 0)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    document = {
        "benchmark": "generalization",
        "machine": {
            "device": "cpu",
            "threads": options.threads,
            "dtype": "float64",
            "torch": torch.__version__,
            "scipy": scipy.__version__,
            "python": platform.python_version(),
        },
        "ViT-B/16 circuits": metrics(),
        "corruptions, 224 x 224": corruptions(),
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / "generalization_cpu.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
