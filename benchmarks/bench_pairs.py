"""Cost of all pairs of clean and corrupted inputs, as ratios in one run.

Two comparisons. On `mini` with its IOI circuit: pairs per second of the pair evaluator against the
published protocol, which spends a pass on the corrupted input, a masked pass that adds up every edge, and a
pass of the model on every pair. At the shape of GPT-2 small (random weights) with the published circuits:
seconds per pair, divergences of circuit and empty circuit included, in units of one plain forward pass.
Prints one JSON document; `--save` writes it to benchmarks/results.

    python benchmarks/bench_pairs.py [--threads 2] [--side 200] [--device cpu] [--million] [--save]
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.sampling import PromptSet, sample_pairs
from assay.circuits import Circuit, published_circuit
from assay.discovery.edges import discover
from assay.execution import PairRunner
from assay.models import Model, load_model
from assay.tasks import load_task


sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import literal


BATCH = 128  # pairs per pass of the published protocol here; the published code took one pair at a time
N_EDGES = 204  # size of the IOI circuit that an audit of `mini` finds


def clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def published_protocol(
    model: Model, circuit: Circuit, clean: torch.Tensor, corrupted: torch.Tensor
) -> np.ndarray:
    """KL of each pair by three passes of its own; native passes wherever the model has one."""
    found = []
    for x, other in zip(clean.split(BATCH), corrupted.split(BATCH), strict=True):
        with torch.no_grad():
            x, other = x.to(model.device), other.to(model.device)
            with model.tracing() as trace:
                model.forward(other)
            full = model.module(x, use_cache=False).logits[:, -1].double().log_softmax(1)
            ablated = {"input": trace.input}
            for layer, block in enumerate(model.blocks):
                z = trace.z[layer].unflatten(-1, (model.n_heads, model.d_head))
                for head in range(model.n_heads):
                    ablated[f"a{layer}.h{head}"] = z[:, :, head] @ block.out_weight()[head]
                ablated[f"m{layer}"] = trace.mlp[layer]
            run = literal.run_circuit(model, circuit, x, ablated)[:, -1].double().log_softmax(1)
        found.append((full.exp() * (full - run)).sum(1).cpu().numpy())
    return np.concatenate(found)


def on_mini(side: int, repeats: int, device: torch.device) -> dict[str, object]:
    """All pairs of `side` x `side` IOI inputs; the published protocol on some of them."""
    model = load_model("mini", device=device)
    task = load_task("ioi", model, n=200)
    circuit = discover(model, task).top(N_EDGES).connected()
    sample = sample_pairs(task, "all", side, side, seed=1)
    n_slow = 4 * BATCH
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(side, size=n_slow), rng.integers(side, size=n_slow)
    slow_times, fast_times = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        expected = published_protocol(
            model, circuit, sample.clean.tokens[rows], sample.corrupted.tokens[columns]
        )
        slow_times.append((time.perf_counter() - started) / n_slow)
        started = time.perf_counter()
        # A new evaluator each time: preparing the inputs belongs to the cost.
        evaluator = PairEvaluator(model, circuit, sample.clean, sample.corrupted)
        table = evaluator.table(np.arange(side), np.arange(side))
        fast_times.append((time.perf_counter() - started) / side**2)
    gap = np.abs(table.divergence[rows, columns] - expected)
    return {
        "circuit edges": circuit.n_edges,
        "pairs": side**2,
        "seconds per pair": {"published protocol": min(slow_times), "pair evaluator": min(fast_times)},
        "ratio": round(min(slow_times) / min(fast_times), 2),
        "goal": 5,
        "largest difference in nats": float(gap.max()),
        "largest divergence": float(table.divergence.max()),
    }


def on_gpt2(
    name: str, length: int, shared: int, n_clean: int, n_corrupted: int, repeats: int, device: torch.device
) -> dict[str, object]:
    """Seconds per pair of a published circuit in plain forward passes, inputs prepared in the same time."""
    torch.manual_seed(0)
    model = load_model(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().to(device))
    first = torch.randint(50000, (length,))

    circuit = published_circuit(name)
    clean, corrupted = (inputs(n, length, first[:shared]) for n in (n_clean, n_corrupted))
    runner = PairRunner(model, circuit)
    forward_times, prepare_times, pair_times = [], [], []
    for turn in range(repeats + 1):
        started = clock(device)
        with torch.no_grad():
            model.module(clean.tokens[:8].to(device), use_cache=False)
        forward = (clock(device) - started) / min(8, n_clean)
        evaluator = PairEvaluator(model, circuit, clean, corrupted, runner=runner)
        started = clock(device)
        runner.prepare(clean.tokens, clean=True)
        runner.prepare(corrupted.tokens, clean=False)
        prepare = (clock(device) - started) / (n_clean + n_corrupted)
        started = clock(device)
        # The circuit, both divergences and the likeliest tokens, beside the inputs.
        evaluator.table(np.arange(n_clean), np.arange(n_corrupted))
        pair = (clock(device) - started - prepare * (n_clean + n_corrupted)) / (n_clean * n_corrupted)
        if turn:  # the first turn warms up
            forward_times.append(forward)
            prepare_times.append(prepare)
            pair_times.append(pair)
    forward, prepare, pair = min(forward_times), min(prepare_times), min(pair_times)
    return {
        "length": length,
        "shared first tokens": shared,
        "per pair, in plain forward passes": round(pair / forward, 3),
        "preparing an input, in plain forward passes": round(prepare / forward, 3),
        "1000 x 1000 pairs, inputs included": round((pair + 2 * prepare / 1000) / forward, 3),
        "goal": 0.8 if name.startswith("ioi") else 0.4,
        "seconds": {"forward": round(forward, 5), "pair": round(pair, 5)},
        "hours for a million pairs": round(1e6 * (pair + 2 * prepare / 1000) / 3600, 2),
    }


def inputs(n: int, length: int, first: torch.Tensor) -> PromptSet:
    """Random prompts that begin alike."""
    tokens = torch.randint(50000, (n, length))
    tokens[:, : len(first)] = first
    lengths = torch.full((n,), length)
    return PromptSet(tokens=tokens, lengths=lengths, positions=lengths - 1, fields={})


def million(device: torch.device) -> dict[str, object]:
    """A million IOI pairs, inputs prepared once, in blocks."""
    torch.manual_seed(0)
    model = load_model(transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().to(device))
    clean, corrupted = (inputs(1000, 15, torch.zeros(0).long()) for _ in range(2))
    evaluator = PairEvaluator(model, published_circuit("ioi_gpt2"), clean, corrupted)
    started = clock(device)
    evaluator.table(np.arange(1000), np.arange(1000))
    return {"seconds": round(clock(device) - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--million", action="store_true", help="run a million pairs at the shape of GPT-2")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    counts = (4, 128) if device.type == "cpu" else (64, 512)
    result: dict[str, object] = {
        "benchmark": "pairs",
        "machine": {
            "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
            "threads": options.threads,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "mini, IOI": on_mini(options.side, options.repeats, device),
        "GPT-2 small shape": {
            "published IOI circuit": on_gpt2("ioi_gpt2", 15, 2, *counts, options.repeats, device),
            "published greater-than circuit": on_gpt2(
                "greater_than_gpt2", 10, 1, *counts, options.repeats, device
            ),
        },
    }
    if options.million:
        result["a million IOI pairs"] = million(device)
    text = json.dumps(result, indent=2)
    print(text)
    if options.save:
        name = f"pairs_{'cpu' if options.device == 'cpu' else 'gpu'}_float32.json"
        (Path(__file__).parent / "results" / name).write_text(text + "\n")


if __name__ == "__main__":
    main()
