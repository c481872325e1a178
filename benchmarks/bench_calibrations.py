"""Passes and time of the calibrations: the shared table against gates that run everything anew.

Counts do not depend on the width of a model, so they are taken on a narrow model with the blocks and heads of
GPT-2 small and the published IOI circuit of 26 heads. The price of single-head runs is measured at full size
in plain forward passes of the same process. `--end-to-end` fills the whole table at full size with random
weights and judges all sixteen gates. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_calibrations.py [--threads 2] [--device cpu] [--end-to-end] [--save]
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import transformers

import assay
from assay.circuits import load_head_circuit
from assay.discovery.heads import MeasurementTable
from assay.models import Model, load_model
from assay.tasks import PairTask


P = 40  # prompts, the published default
LENGTH = 16
SEVEN = ("C11", "C13", "C16", "C30", "M98", "E1b", "M3b")
CIRCUIT = "ioi_gpt2_wang26"


def published_passes(k: int) -> dict[str, int]:
    """Forward passes of the published gates, each from scratch: 40 prompts, 60 for C13, a pool for C30."""
    return {
        "C11": P + 2 * P * 1001,  # full, then full and circuit for every resample and the point estimate
        "C13": 60 + 2 * 60 + 60,
        "C16": 360 + 200 + P * (k + 2),  # three samples, split halves, one head dropped at a time
        "C30": 100 + 5 * 2 * P,
        "M98": P + 3 * 2 * P + P,
        "E1b": P + 3 * 2 * P,
        "M3b": 20 * k * 32 * 2,  # 20 subsamples of 32 prompts, with and without each head
    }


def model_of(width: int, vocabulary: int, device: str) -> Model:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=width, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0)
    return load_model(transformers.GPT2LMHeadModel(config).eval().to(device))


def prompts(n: int, vocabulary: int) -> PairTask:
    torch.manual_seed(1)
    ids = torch.randint(1, vocabulary, (2, n, LENGTH))
    answers = torch.stack([torch.randperm(vocabulary)[:2] for _ in range(n)])
    return PairTask(
        clean=ids[0], corrupted=ids[1], answers=answers[:, :1], wrong=answers[:, 1:], ablation="mean"
    )


def counts() -> dict[str, object]:
    """Passes of gates and tables, and the time of all gates once the table is filled."""
    vocabulary = 500
    model, task, pool = model_of(48, vocabulary, "cpu"), prompts(P, vocabulary), prompts(2 * P, vocabulary)
    circuit = load_head_circuit(CIRCUIT)
    published = published_passes(circuit.k)
    found: dict[str, object] = {
        "heads": circuit.k,
        "published passes": published | {"sum": sum(published.values())},
    }
    for profile in ("circuit", "all"):
        report = assay.calibrate_all(circuit, model, task, pool=pool, gates=SEVEN, profile=profile)
        passes = report.table.passes["forward"]
        found[f"seven gates, C16's profile over {profile} heads"] = {
            "passes": round(passes, 1),
            "times fewer": round(sum(published.values()) / passes, 1),
        }
    found["goal for the seven"] = 100
    report = assay.calibrate_all(circuit, model, task, pool=pool)
    seconds = {key: value for key, value in report.seconds.items() if key != "table"}
    whole = (
        1000 + P * (144 + 144) * 0.5 + P * 144 / LENGTH
    )  # section 5: half of the layers on average, or one token
    found["all sixteen"] = {
        "passes": {key: round(value, 1) for key, value in report.table.passes.items()},
        "runs of single heads": 3 * P * 144 + P * circuit.k,
        "stated": {"single-head runs": 17_900, "as forward passes": round(whole)},
        "seconds of the gates on the filled table": round(sum(seconds.values()), 3),
        "slowest": max(seconds, key=lambda key: seconds[key]),
        "goal in seconds": 2,
    }
    return found


def single_heads(device: str, n: int = 8, repeats: int = 2) -> dict[str, object]:
    """One head dropped at a time at the shape of GPT-2 small, in plain forward passes per head and prompt."""
    model, task = model_of(768, 50257, device), prompts(n, 50257)
    forward, dropped, patched, crossed = [], [], [], []

    def clock() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    for turn in range(repeats + 1):
        started = clock()
        with torch.no_grad():
            model.read(model.forward(task.clean.to(device)), task.positions.to(device))
        plain = (clock() - started) / n
        table = MeasurementTable(model, task, [(0, 0)])
        table.column("y_full")
        times = []
        for name in ("y_drop1", "y_patch", "y_cross"):
            started = clock()
            table.column(name)
            times.append((clock() - started) / (n * 144))
        if turn:
            forward.append(plain)
            for into, seconds in zip((dropped, patched, crossed), times, strict=True):
                into.append(seconds)
    unit = min(forward)
    return {
        "seconds of a forward pass": unit,
        "y_drop1": round(min(dropped) / unit, 3),
        "y_patch": round(min(patched) / unit, 3),
        "y_cross, one token": round(min(crossed) / unit, 3),
        "goal for y_drop1": 0.6,
    }


def end_to_end(device: str) -> dict[str, object]:
    """The published IOI circuit at the shape of GPT-2 small with random weights: the numbers mean nothing."""
    model, task = model_of(768, 50257, device), prompts(P, 50257)
    started = time.perf_counter()
    with torch.no_grad():
        model.read(model.forward(task.clean.to(device)), task.positions.to(device))
    plain = (time.perf_counter() - started) / P
    report = assay.calibrate_all(CIRCUIT, model, task, pool=prompts(2 * P, 50257))
    seconds = {key: value for key, value in report.seconds.items() if key != "table"}
    return {
        "prompts": P,
        "heads": report.table.k,
        "passes": {key: round(value, 1) for key, value in report.table.passes.items()},
        "seconds of the table": round(report.seconds["table"], 1),
        "in plain forward passes": round(report.seconds["table"] / plain),
        "seconds of the gates": round(sum(seconds.values()), 2),
        "verdicts": report.counts(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--end-to-end", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    document: dict[str, object] = {
        "benchmark": "calibrations",
        "machine": {
            "device": options.device,
            "threads": options.threads,
            "dtype": "float32",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "passes": counts(),
        "single heads, GPT-2 small shape, in forward passes": single_heads(options.device),
    }
    if options.end_to_end:
        document["end to end, GPT-2 small shape"] = end_to_end(options.device)
    text = json.dumps(document, indent=1)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / f"calibrations_{options.device}_float32.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
