"""Operators that are dispatched, in those of a bare pass: on a GPU and at small shapes they are the time.

GPT-2 small's 12 blocks of 12 heads with narrow weights, 8 prompts of 16 tokens, on the CPU. Views and empty
tensors are left out, since they launch nothing. Prints a table; `--save` writes it to benchmarks/results.

    python benchmarks/bench_launches.py [--save]
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from bench_engine import bare_passes, circuits_of, forward, random_task
from torch.utils._python_dispatch import TorchDispatchMode

from assay.discovery.edges import discover
from assay.execution import run_circuit
from assay.models import load_model


NOTHING = (
    "aten.detach",
    "aten.alias",
    "aten._unsafe_view",
    "aten.empty",
    "aten.new_empty",
    "aten.lift_fresh",
)
# Attribution in five bare passes; runs in forward passes, beyond the clean and the corrupted one.
GOALS = {"eap-ig-inputs": 1.5, "published IOI circuit, 963 edges": 3.0, "200 strongest edges": 2.5}


class Launches(TorchDispatchMode):
    """Counts operators while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += not operator.is_view and not str(operator).startswith(NOTHING)
        return operator(*args, **(kwargs or {}))


def launches(job: Callable[[], object]) -> int:
    """How many operators a job dispatches once it has been run before."""
    job()
    with Launches() as counter:
        job()
    return counter.n


def measure() -> pd.DataFrame:
    """Operators of attribution and of runs of circuits."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=48, vocab_size=300, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = load_model(transformers.GPT2LMHeadModel(config).eval())
    task = random_task(model, 8, 16)
    bare = launches(lambda: bare_passes(model, task, every_position=True))
    plain = launches(lambda: forward(model, task))
    count = launches(lambda: discover(model, task, batch_size=8))
    rows = [
        ("five bare passes", bare, 1.0),
        ("forward pass", plain, 1.0),
        ("eap-ig-inputs", count, count / bare),
    ]
    for name, circuit in circuits_of(model, task, "gpt2").items():
        count = launches(lambda circuit=circuit: run_circuit(circuit, model, task, batch_size=8))
        rows.append((name, count, (count - 2 * plain) / plain))
    table = pd.DataFrame(rows, columns=["job", "operators", "ratio"])
    return table.assign(ratio=table.ratio.round(2), goal=table.job.map(GOALS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    table = measure()
    print(table.to_string(index=False, na_rep=""))
    if options.save:
        path = Path(__file__).parent / "results" / "launches.json"
        table.to_json(path, orient="records", indent=1)


if __name__ == "__main__":
    main()
