"""Predicted peak memory against that of the run: attribution, a circuit's run and a plain pass.

What a run holds at most beyond the weights: predicted by `peak_bytes`, which does not run it, and measured,
on a CPU from the events of PyTorch's allocator, on a GPU by `torch.cuda.max_memory_allocated`. Weights are
random.

    python benchmarks/bench_plan.py [--shape gpt2 llama-6 gemma2-6] [--length 16 512] [--steps 2]
        [--device cpu] [--dtype float32] [--save]
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from allocator import peak_on_cpu
from bench_engine import SHAPES, random_model, random_task

from assay.circuits import Circuit
from assay.discovery.edges import discover, get_method
from assay.discovery.edges.running import resolve
from assay.execution import CircuitRunner, run_circuit, run_model
from assay.execution.forward import circuit_run, plain_run
from assay.execution.memory import peak_bytes
from assay.models import Model
from assay.tasks import PairTask


BATCH = {16: 8}  # examples by length; else 1


def measured_on_gpu(job: Callable[[], object]) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    job()
    return torch.cuda.max_memory_allocated() - before


def row(
    name: str, predict: Callable[[], int | None], job: Callable[[], object], device: str
) -> dict[str, Any]:
    started = time.perf_counter()
    predicted = predict()
    took = time.perf_counter() - started
    measured = (peak_on_cpu if device == "cpu" else measured_on_gpu)(job)
    assert predicted is not None
    return {
        "run": name,
        "predicted MiB": round(predicted / 2**20, 1),
        "measured MiB": round(measured / 2**20, 1),
        "off by": round(predicted / measured - 1, 4),
        "seconds to predict": round(took, 1),
    }


def rows(model: Model, task: PairTask, steps: int, device: str) -> list[dict[str, Any]]:
    method, n = get_method("eap-ig-inputs"), task.n
    asked = resolve(model, task, method, method.choices(task, steps=steps), batch_size=n)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 10, seed=0)
    runner = CircuitRunner(model, circuit, resample=asked.settings.ablation.paired)
    return [
        row(
            "discover eap-ig-inputs",
            asked.peak_bytes,
            lambda: discover(model, task, steps=steps, batch_size=n),
            device,
        ),
        row(
            "run of a circuit, a tenth of the edges",
            lambda: peak_bytes(model, task, circuit_run(runner, circuit, asked.settings.ablation)),
            lambda: run_circuit(model, task, circuit, batch_size=n),
            device,
        ),
        row(
            "plain pass",
            lambda: peak_bytes(model, task, plain_run),
            lambda: run_model(model, task, batch_size=n),
            device,
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=["gpt2", "llama-6", "gemma2-6"])
    parser.add_argument("--length", type=int, nargs="+", default=[16, 512])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    table = []
    for shape in options.shape:
        model = random_model(shape, options.device, options.dtype)
        for length in options.length:
            task = random_task(model, BATCH.get(length, 1), length)
            for each in rows(model, task, options.steps, options.device):
                table.append({"shape": shape, "length": length, "batch": task.n, **each})
                print(json.dumps(table[-1]), flush=True)
    machine = {"device": options.device, "dtype": options.dtype, "torch": torch.__version__}
    result = {"name": "plan of memory", "steps": options.steps, "machine": machine, "rows": table}
    print(json.dumps(result))
    if options.save:
        name = f"plan_{options.device}_{options.dtype}.json"
        (Path(__file__).parent / "results" / name).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
