"""Position-aware circuits against ordinary ones on `mini`, at equal numbers of kept (edge, span) pairs.

Scores of `eap-ig-inputs` on 100 prompts of each task; circuits by |score|; recovery of the margin (0: the
empty circuit, 1: the model) under resampling on 100 other prompts. An ordinary circuit keeps its edges at
every span, and a position-aware one of as many pairs chooses where. `same edges` keeps as many pairs as the
ordinary circuit has edges.

Writes results.json beside this file; five minutes on one core.

    python experiments/positions/run.py [--only ioi]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import assay
from assay.circuits import Circuit
from assay.discovery.edges import discover
from assay.execution import CircuitRuns
from assay.models.planted import planted_model
from assay.tasks import PairTask


HERE = Path(__file__).parent
SPANS = {"ioi": "each", "greater-than": "each", "induction": "slots"}
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
N = 100


def cancellation(values: torch.Tensor) -> float:
    """Share of sum |score| over edges and spans that cancels within an edge."""
    return 1 - float(values.sum(0).abs().sum() / values.abs().sum())


def curve(name: str) -> Iterator[dict[str, Any]]:
    """One task: both kinds of circuits, size after size; what is known after each."""
    model = assay.load_model("mini")
    found_on, measured_on = (assay.load_task(name, model, n=N, seed=seed) for seed in (0, 1))
    scores = discover(model, found_on, spans=SPANS[name])
    ordinary = scores.total()
    shared = CircuitRuns(model, measured_on, Circuit.empty(model.graph))
    result: dict[str, Any] = {
        "spans": list(scores.spans.names),
        "slots": scores.n_slots,
        "edges": model.graph.n_edges,
        "cancelled": cancellation(scores.values),
        "sizes": [],
    }
    for share in SHARES:
        n_edges = int(share * model.graph.n_edges)
        blind = ordinary.top(n_edges).everywhere(scores.spans)
        row: dict[str, Any] = {"edges": n_edges, "slots": blind.n_edges}
        circuits = {
            "ordinary": blind,
            "position-aware": scores.top(blind.n_edges),
            "same edges": scores.top(n_edges),
        }
        for kind, circuit in circuits.items():
            found = assay.measure(circuit, model, measured_on, "faithfulness-norm", runs=shared.of(circuit))
            interval = found.interval()
            row[kind] = {
                "recovery": found.value,
                "low": interval.low,
                "high": interval.high,
                "kept": circuit.n_edges,
                "connected": circuit.connected().n_edges,
                "different_edges": circuit.anywhere().n_edges,
            }
        result["sizes"].append(row)
        print(name, json.dumps(row), flush=True)
        yield result


def planted() -> dict[str, Any]:
    """A planted model: are the strongest pairs true edges, and how many pairs are enough?"""
    known = planted_model("duplicate/gpt2/interfering")
    drawn = known.examples(48)
    task = PairTask(
        clean=drawn.clean, corrupted=drawn.corrupted, answers=drawn.answers, wrong=drawn.wrong, name="planted"
    )
    scores = discover(known.model, task, spans="each")
    frame = scores.to_frame()
    true = [
        f"{source}->{target}" in known.edges
        for source, target in zip(frame.source, frame.target, strict=True)
    ]
    everywhere = Circuit.from_edges(known.model.graph, known.edges).everywhere(scores.spans)
    recovery = {
        str(k): assay.measure(scores.top(k), known.model, task, "faithfulness-norm").value
        for k in (5, 10, 20, everywhere.n_edges)
    }
    return {
        "true_edges": len(known.edges),
        "positions": task.length,
        "leading_pairs_that_are_true": true.index(False),
        "pairs_of_true_edges": everywhere.n_edges,
        "recovery_of_true_edges": assay.measure(everywhere, known.model, task, "faithfulness-norm").value,
        "recovery_of_strongest_pairs": recovery,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[*SPANS, "planted"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = HERE / "results.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in SPANS:
        if arguments.only in (None, name):
            for known in curve(name):
                results[name] = known
                path.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.only in (None, "planted"):
        results["planted"] = planted()
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
