"""Cost of attribution and of ablated runs, as ratios to the model's own passes in the same run.

GPT-2-small shape, random weights. Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_engine.py [--threads 2] [--repeats 5] [--device cpu] [--dtype float32] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from assay.circuits import Circuit, published_circuit
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRunner
from assay.execution.forward import clean_pass
from assay.models import Model, load_model
from assay.tasks import PairTask


STEPS = 5


def interleaved(jobs: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, float]:
    """Shortest time of each job; the jobs take turns, so that a slow moment of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            started = time.perf_counter()
            job()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in times.items()}


def bare_passes(model: Model, task: PairTask, *, every_position: bool) -> None:
    """STEPS forward and backward passes with gradients of activations only."""
    module, tokens = model.module, task.clean.to(model.device)
    with model.frozen():
        for _ in range(STEPS):
            start = module.transformer.wte(tokens).detach().requires_grad_()
            if every_position:
                logits = module(inputs_embeds=start, use_cache=False).logits[:, -1]
            else:
                hidden = module.transformer(inputs_embeds=start, use_cache=False).last_hidden_state
                logits = module.lm_head(hidden[:, -1])
            torch.autograd.grad((logits[:, 0] - logits[:, 1]).float().sum(), start)


def forward(model: Model, task: PairTask) -> None:
    """One plain forward pass with logits at every position."""
    with torch.no_grad():
        model.module(task.clean.to(model.device), use_cache=False)


def circuit_job(model: Model, task: PairTask, circuit: Circuit) -> Callable[[], object]:
    """The circuit run itself, ablated activations given; the clean part it needs is inside."""
    batch = next(iter(task.batches(task.n))).to(model.device)
    runner = CircuitRunner(model, circuit, resample=True)
    baseline = ABLATIONS["resample"].prepare(model, task, batch_size=task.n, seed=0).baseline(batch)

    def job() -> None:
        if runner.plan.everything:
            with torch.no_grad():
                model.read(model.forward(batch.clean), batch.positions)
        else:
            runner.logits(clean_pass(model, runner, batch.clean), baseline, batch.positions)

    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    module = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    model = load_model(module.to(options.device, getattr(torch, options.dtype)))
    shape = (options.batch, options.length)
    task = PairTask(
        clean=torch.randint(50000, shape),
        corrupted=torch.randint(50000, shape),
        answers=torch.zeros(options.batch, 1).long(),
        wrong=torch.ones(options.batch, 1).long(),
    )
    scores = discover(model, task, steps=2)
    top = scores.top(200)
    circuits = {
        "full mask": Circuit.full(model.graph),
        "published IOI circuit, 963 edges": published_circuit("ioi_gpt2"),
        "published greater-than circuit, 235 edges": published_circuit("greater_than_gpt2"),
        "200 strongest edges": top,
        "200 edges grown from the logits": scores.greedy(200),
        "all but 200 edges": ~top,
    }
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(model, task),
        "bare": lambda: bare_passes(model, task, every_position=True),
        "bare, logits where read": lambda: bare_passes(model, task, every_position=False),
        "eap-ig-inputs": lambda: discover(model, task, steps=STEPS, batch_size=options.batch),
        "eap-ig-inputs per example": lambda: discover(
            model, task, steps=STEPS, batch_size=options.batch, per_example=True
        ),
        "eap": lambda: discover(model, task, "eap", batch_size=options.batch),
    }
    attribution = interleaved(jobs, options.repeats, options.device)
    runs = interleaved(
        {
            "forward": jobs["forward"],
            **{name: circuit_job(model, task, circuit) for name, circuit in circuits.items()},
        },
        2 * options.repeats,
        options.device,
    )
    result = {
        "benchmark": "engine",
        "shape": {
            "model": "GPT-2 small, random weights",
            "batch": options.batch,
            "length": options.length,
            "steps": STEPS,
        },
        "machine": {
            "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
            "threads": options.threads,
            "dtype": options.dtype,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "seconds": {name: round(value, 4) for name, value in attribution.items()},
        "attribution": {
            "goal": {"times bare passes": 1.35, "forward-equivalents": 11.5},
            "times bare passes": round(attribution["eap-ig-inputs"] / attribution["bare"], 3),
            "times bare passes that read one position": round(
                attribution["eap-ig-inputs"] / attribution["bare, logits where read"], 3
            ),
            "forward-equivalents": round(attribution["eap-ig-inputs"] / attribution["forward"], 2),
            "forward-equivalents per example": round(
                attribution["eap-ig-inputs per example"] / attribution["forward"], 2
            ),
            "forward-equivalents of eap": round(attribution["eap"] / attribution["forward"], 2),
        },
        "ablated run in forward passes": {
            "goal": {"full mask": 1.15, "published IOI circuit, 963 edges": 0.9, "200 strongest edges": 0.8},
            **{
                name: {
                    "forwards": round(runs[name] / runs["forward"], 3),
                    "connected edges": circuit.connected().n_edges,
                    "plan": CircuitRunner(model, circuit, resample=True).plan.counts(),
                }
                for name, circuit in circuits.items()
            },
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        name = f"engine_{'cpu' if options.device == 'cpu' else 'gpu'}_{options.dtype}.json"
        (Path(__file__).parent / "results" / name).write_text(text + "\n")


if __name__ == "__main__":
    main()
