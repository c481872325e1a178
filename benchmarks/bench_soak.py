"""Memory of a process that discovers and measures again and again, each time with another task and circuit.

python benchmarks/bench_soak.py [--rounds 500] [--save]
"""

import argparse
import gc
import json
from pathlib import Path
from statistics import median

import psutil
import torch

from assay.discovery.edges import discover
from assay.metrics import measure
from assay.models import load_model
from assay.tasks import load_task


WINDOW = 50  # rounds until the allocator has the pages that it keeps, and rounds of a median
METRICS = ("faithfulness-norm", "kl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, process = load_model("mini"), psutil.Process()
    resident = []
    for turn in range(options.rounds):
        task = load_task("ioi", model, n=16, seed=turn)
        circuit = discover(model, task, steps=2).top(50 + turn % 200)
        for metric in METRICS:
            measure(circuit, model, task, metric)
        gc.collect()
        resident.append(process.memory_info().rss)
    settled = resident[WINDOW:] or resident
    first, last = median(settled[:WINDOW]), median(settled[-WINDOW:])
    result = {
        "benchmark": "soak",
        "rounds": options.rounds,
        "metrics": METRICS,
        f"resident MiB, median of {WINDOW} rounds": {
            f"from round {start + 1}": round(median(resident[start : start + WINDOW]) / 2**20, 1)
            for start in range(0, options.rounds, WINDOW)
        },
        "goal": 0.02,
        "growth of the median since it settled": round(last / first - 1, 4),
        "highest round above the settled median": round(max(settled) / first - 1, 4),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        (Path(__file__).parent / "results" / "soak.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
