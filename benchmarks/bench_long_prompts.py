"""Peak memory of runs of a circuit over long prompts: blocks of queries against all queries at once.

Small models with random weights on the CPU; the peak beyond the weights, from the events of PyTorch's
allocator. Native passes (clean and ablated) run in their own attention kernel, which for a cap (Gemma 2) or
slopes (BLOOM) keeps weights of all queries by all keys: `mixing` is the engine's own attention alone.

    python benchmarks/bench_long_prompts.py [--length 512 2048 4096] [--save]
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from allocator import peak_on_cpu
from bench_engine import random_task

from assay.circuits import Circuit
from assay.execution import run_circuit
from assay.models import Model, attention, load_model
from assay.models.attention import PlacedAttention


SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS = {
    "llama, causal": ("llama", {**SIZES, "num_key_value_heads": 2, "vocab_size": 101}),
    "mistral, window of 128": (
        "mistral",
        {**SIZES, "num_key_value_heads": 2, "vocab_size": 101, "sliding_window": 128, "head_dim": 16},
    ),
    "gemma 2, cap and window": (
        "gemma2",
        {**SIZES, "num_key_value_heads": 2, "vocab_size": 101, "sliding_window": 128, "head_dim": 16},
    ),
    "bloom, slopes": ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 101}),
}


def build(name: str) -> Model:
    model_type, entries = MODELS[name]
    rest = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if model_type != "bloom":
        rest["max_position_embeddings"] = 8192
    config = transformers.AutoConfig.for_model(model_type, **entries, **rest)
    torch.manual_seed(0)
    return load_model(transformers.AutoModelForCausalLM.from_config(config).eval())


def mixing(model: Model, length: int) -> Callable[[], object]:
    """The attention of block 0 over given channels of one example."""
    q, k, v = torch.randn(3, 1, model.n_heads, length, model.d_head)
    placed = PlacedAttention(model.rules, {}, length=length, causal=True, read=None)
    return lambda: placed.mix(0, q, k, v, everywhere=True, heads=range(model.n_heads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    blocks, rows = attention.LONG, []
    for name in MODELS:
        model = build(name)
        circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=0)
        for length in options.length:
            task = random_task(model, 1, length)
            row: dict[str, object] = {"model": name, "length": length}
            for kind, limit in (("at once", 10**9), ("in blocks", blocks)):
                attention.LONG = limit
                mixed = peak_on_cpu(mixing(model, length))
                run = peak_on_cpu(partial(run_circuit, model, task, circuit, batch_size=1))
                row[f"mixing {kind}, MiB"] = round(mixed / 2**20, 2)
                row[f"run of a circuit {kind}, MiB"] = round(run / 2**20, 2)
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.save:
        shape = {"blocks": 2, "heads": 4, "width": 64, "batch": 1, "dtype": "float32"}
        document = {"name": "long prompts", "shape": shape, "rows": rows}
        path = Path(__file__).parent / "results" / "long_prompts_cpu.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
