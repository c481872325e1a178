"""Position-aware circuits against ordinary ones on `mini` and IOI, at equal numbers of pairs.

Scores of `eap-ig-inputs` on 100 prompts; circuits by |score|; recovery of the margin (0: the
empty circuit, 1: the model) under resampling on 100 other prompts. An ordinary circuit keeps its edges at
every span, and a position-aware one of as many pairs chooses where. `same edges` keeps as many pairs as the
ordinary circuit has edges.

Writes results.json, the table of docs/theory/positions.md; minutes on one core.

    python experiments/positions/run.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import assay
from assay.circuits import Circuit
from assay.discovery.edges import discover
from assay.execution import CircuitRuns


HERE = Path(__file__).parent
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
N = 100


def cancellation(values: torch.Tensor) -> float:
    """Share of sum |score| over edges and spans that cancels within an edge."""
    return 1 - float(values.sum(0).abs().sum() / values.abs().sum())


def curve() -> Iterator[dict[str, Any]]:
    """Both kinds of circuits, size after size; what is known after each."""
    model = assay.load_model("mini")
    found_on, measured_on = (assay.load_task("ioi", model, n=N, seed=seed) for seed in (0, 1))
    scores = discover(model, found_on, spans="each")
    ordinary = scores.total()
    shared = CircuitRuns(model, measured_on, Circuit.empty(model.graph))
    result: dict[str, Any] = {
        "spans": list(scores.spans.names),
        "slots": int(scores.slots.sum()),
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
        print(json.dumps(row), flush=True)
        yield result


def main() -> None:
    torch.set_num_threads(1)
    for known in curve():
        (HERE / "results.json").write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
