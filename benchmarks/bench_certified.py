"""Cost of certified discovery: 1,000 deletion resamples against the attribution that they resample.

Attribution is `eap-ig-inputs` with a score per example; both run in one process and are compared in seconds
of processor time, which other work hardly stretches (on an accelerator: in seconds of the clock).
The embedded model on its own task (200 prompts), and the shape of GPT-2 small with random weights, with 21
times as many edges. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_certified.py [--threads 1] [--device cpu] [--prompts 20] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import assay
from assay.circuits import EdgeScores, certify
from assay.models import Model, load_model
from assay.tasks import PairTask


RESAMPLES = 1000
REPEATS = 2
LENGTH = 16
GOAL = 0.05


def gpt2_shape(device: str) -> Model:
    torch.manual_seed(0)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=0)
    return load_model(transformers.GPT2LMHeadModel(config).eval().to(device))


def prompts(n: int, vocabulary: int = 50257) -> PairTask:
    torch.manual_seed(1)
    ids = torch.randint(1, vocabulary, (2, n, LENGTH))
    answers = torch.stack([torch.randperm(vocabulary)[:2] for _ in range(n)])
    return PairTask(clean=ids[0], corrupted=ids[1], answers=answers[:, :1], wrong=answers[:, 1:])


def seconds(work: Callable[[], Any], repeats: int, device: str) -> tuple[float, Any]:
    """The fastest of some runs, and what the last one returned."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    times, result = [], None
    for _ in range(repeats):
        started = clock()
        result = work()
        times.append(clock() - started)
    return min(times), result


def measure(model: Model, task: Any, repeats: int, device: str) -> dict[str, Any]:
    def attribute() -> EdgeScores:
        return assay.discover(model, task, "eap-ig-inputs", per_example=True)

    certify_of = {
        "top 1 %": lambda scores: certify(scores, max(1, scores.graph.n_edges // 100), resamples=RESAMPLES),
        "top 10 %": lambda scores: certify(scores, scores.graph.n_edges // 10, resamples=RESAMPLES),
        "top 10 %, signed, 0.9 deleted": lambda scores: certify(
            scores, scores.graph.n_edges // 10, resamples=RESAMPLES, deletion=0.9, absolute=False
        ),
    }
    assay.discover(model, task.subset(torch.arange(2)), "eap-ig-inputs", per_example=True)  # first use
    attribution, scores = seconds(attribute, repeats, device)
    found: dict[str, Any] = {
        "examples": task.n,
        "edges": scores.graph.n_edges,
        "seconds of the attribution": round(attribution, 4),
    }
    for name, run in certify_of.items():
        taken, certified = seconds(lambda run=run: run(scores), repeats, device)
        found[name] = {
            "seconds": round(taken, 4),
            "share of the attribution": round(taken / attribution, 4),
            "included": certified.circuit.n_edges,
            "excluded": certified.select("excluded").n_edges,
            "abstained": certified.select("abstained").n_edges,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    mini = assay.load_model("mini")
    if options.device != "cpu":
        mini = load_model(mini.module.to(options.device), tokenizer=mini.tokenizer)
    document = {
        "benchmark": "certified",
        "machine": {
            "device": options.device,
            "threads": options.threads,
            "dtype": "float32",
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "resamples": RESAMPLES,
        "goal, share of the attribution": GOAL,
        "mini, ioi": measure(mini, assay.load_task("ioi", mini, n=200, seed=0), REPEATS, options.device),
        "GPT-2 small shape, random weights": measure(
            gpt2_shape(options.device), prompts(options.prompts), REPEATS, options.device
        ),
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.save:
        path = Path(__file__).parent / "results" / f"certified_{options.device}_float32.json"
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
