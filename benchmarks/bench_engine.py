"""Cost of attribution and of ablated runs, as ratios to the model's own passes in the same run.

GPT-2-small shape or another of `SHAPES`, random weights. Prints one JSON document; `--save` writes it to
benchmarks/results. On a GPU also peak memory, and how far scores are from those of float32.

    python benchmarks/bench_engine.py [--shape gpt2] [--threads 2] [--repeats 5] [--device cpu]
        [--dtype float32] [--save]
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from assay.circuits import Circuit, published_circuit
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, CircuitRunner
from assay.execution.forward import clean_pass
from assay.models import Model, load_model
from assay.tasks import PairTask


STEPS = 5

LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
}
LLAMA_8B = {**LLAMA_1B, "hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128}
GEMMA2_2B = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256000,
}
# Name -> model type and configuration. Where blocks are cut off, so is the vocabulary: the unembedding would
# outweigh them, and passes that compute it at every position are what attribution is compared with.
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": ("gpt2", {}),
    "llama-6": ("llama", {**LLAMA_1B, "num_hidden_layers": 6, "vocab_size": 32000}),
    "gemma2-6": ("gemma2", {**GEMMA2_2B, "num_hidden_layers": 6, "vocab_size": 32000}),
    "llama-1b": ("llama", {**LLAMA_1B, "num_hidden_layers": 16}),
    "llama-8b": ("llama", {**LLAMA_8B, "num_hidden_layers": 32}),
}
GOALS = {"gemma2-6": 1.45}  # times bare passes, with norms behind branches treated as `exact`; else 1.35


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
    backbone = module.get_submodule(model.family.backbone)
    with model.frozen():
        for _ in range(STEPS):
            start = module.get_input_embeddings()(tokens).detach().requires_grad_()
            if every_position:
                logits = module(inputs_embeds=start, use_cache=False).logits[:, -1]
            else:
                hidden = backbone(inputs_embeds=start, use_cache=False).last_hidden_state
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


def random_model(shape: str, device: str, dtype: str) -> Model:
    """A model of a shape, its weights drawn on the device."""
    model_type, entries = SHAPES[shape]
    config = transformers.AutoConfig.for_model(model_type, **entries)
    torch.manual_seed(0)
    with torch.device(device):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return load_model(module.eval())


def random_task(model: Model, batch: int, length: int) -> PairTask:
    """Random tokens, and an answer against a wrong one."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, min(model.n_vocab, 50000), (2, batch, length), generator=generator)
    answers = torch.zeros(batch, 1).long()
    return PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, wrong=answers + 1)


def circuits_of(model: Model, task: PairTask, shape: str) -> dict[str, Circuit]:
    """Circuits to run: published ones where the graph is GPT-2's, else of their size."""
    scores = discover(model, task, steps=2)
    circuits = {"full mask": Circuit.full(model.graph)}
    if shape == "gpt2":
        circuits["published IOI circuit, 963 edges"] = published_circuit("ioi_gpt2")
        circuits["published greater-than circuit, 235 edges"] = published_circuit("greater_than_gpt2")
    else:
        circuits["963 edges grown from the logits"] = scores.greedy(963)
    circuits["200 strongest edges"] = scores.top(200)
    circuits["200 edges grown from the logits"] = scores.greedy(200)
    circuits["all but 200 edges"] = ~scores.top(200)
    return circuits


def on_gpu(model: Model, task: PairTask, batch: int) -> dict[str, float]:
    """Peak memory of attribution in bytes, and that of the weights; in half precision the drift of scores."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    scores = discover(model, task, steps=STEPS, batch_size=batch)
    found = {
        "peak bytes": torch.cuda.max_memory_allocated(),
        "bytes of the weights": sum(weight.nbytes for weight in model.module.parameters()),
    }
    drift = scores.details.get("drift")
    return {**found, **({} if drift is None else {"drift of the scores": drift})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = random_model(options.shape, options.device, options.dtype)
    task = random_task(model, options.batch, options.length)
    circuits = circuits_of(model, task, options.shape)
    scores: Callable[..., object] = partial(discover, model, task, steps=STEPS, batch_size=options.batch)
    jobs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(model, task),
        "bare": lambda: bare_passes(model, task, every_position=True),
        "bare, logits where read": lambda: bare_passes(model, task, every_position=False),
        "eap-ig-inputs": scores,
        "eap-ig-inputs per example": partial(scores, per_example=True),
        "eap-ig-inputs of neurons": partial(scores, level="neuron"),
        "eap": partial(scores, "eap"),
        "gim": partial(scores, "gim"),
    }
    attribution = interleaved(jobs, options.repeats, options.device)

    def times(name: str, other: str) -> float:
        return round(attribution[name] / attribution[other], 3)

    of_circuits = {name: circuit_job(model, task, circuit) for name, circuit in circuits.items()}
    runs = interleaved({"forward": jobs["forward"], **of_circuits}, 2 * options.repeats, options.device)
    result: dict[str, Any] = {
        "benchmark": "engine",
        "shape": {
            "model": f"{options.shape}, random weights",
            "blocks": model.n_layers,
            "vocabulary": model.n_vocab,
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
            "goal": {"times bare passes": GOALS.get(options.shape, 1.35), "forward-equivalents": 11.5},
            "times bare passes": times("eap-ig-inputs", "bare"),
            "times bare passes that read one position": times("eap-ig-inputs", "bare, logits where read"),
            "forward-equivalents": times("eap-ig-inputs", "forward"),
            "forward-equivalents per example": times("eap-ig-inputs per example", "forward"),
            "forward-equivalents of eap": times("eap", "forward"),
            "gim, times eap": times("gim", "eap"),
            "neurons, times edges": times("eap-ig-inputs of neurons", "eap-ig-inputs"),
        },
        "ablated run in forward passes": {
            "goal": {"full mask": 1.15, "963 edges": 0.9, "200 strongest edges": 0.8},
            **{
                name: {
                    "forwards": round(runs[name] / runs["forward"], 3),
                    "connected edges": circuit.connected().n_edges,
                }
                for name, circuit in circuits.items()
            },
        },
    }
    if options.device != "cpu":
        result["memory and drift"] = on_gpu(model, task, options.batch)
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        device = "cpu" if options.device == "cpu" else f"gpu_t{options.length}"
        shape = "" if options.shape == "gpt2" else f"_{options.shape}"
        name = f"engine{shape}_{device}_{options.dtype}.json"
        (Path(__file__).parent / "results" / name).write_text(text + "\n")


if __name__ == "__main__":
    main()
