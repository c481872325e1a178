"""What `docs/theory/planted.md` and the pages that use planted models as examples quote.

Every figure at one setting: 32 pairs, seed 0, float32, `resample`, `logit_diff` (where nothing else is said),
as in the table of `docs/truth.md`, whose `experiments/discovery_benchmark/truth.json` has the AUROC of every
method.

    python experiments/planted/run.py [--part NAME ...]

Parts: `plain` (every model: accuracy, faithfulness of the true edges, separation by `exact`, `eap-ig-inputs`
and `eap`, `acdc` at threshold 0.1), `examples` (single edges). Writes each
part into results.json beside this file.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import assay
from assay.analyses.benchmark import planted_task
from assay.circuits import Circuit, EdgeScores
from assay.models.planted import Planted, planted_model, planted_names
from assay.stats import auroc


N, SEED, ACCURACY_PAIRS = 32, 0, 512
SEPARATED = ("exact", "eap-ig-inputs", "eap")
SATURATED = ("induction", "duplicate", "two-hop")
THRESHOLD = 0.1  # of acdc


def numbers(scores: EdgeScores) -> np.ndarray:
    """|score| of every edge."""
    return scores.values.abs()[scores.graph.valid].double().numpy()


def truth(planted: Planted) -> np.ndarray:
    """Which of them are true."""
    graph = planted.model.graph
    return Circuit.from_edges(graph, planted.edges).mask[graph.valid].numpy()


def short(value: float) -> float:
    """Five digits."""
    return float(f"{value:.5g}")


def area(scores: EdgeScores, planted: Planted) -> float:
    """AUROC of |score| for the true edges."""
    return short(auroc(numbers(scores), truth(planted)).value)


def separation(scores: EdgeScores, planted: Planted) -> dict[str, float]:
    """Smallest true and largest false |score|."""
    found, true = numbers(scores), truth(planted)
    low, high = float(found[true].min()), float(found[~true].max())
    return {"smallest_true": short(low), "largest_false": short(high), "ratio": short(low / high)}


def score(scores: EdgeScores, edge: str) -> float:
    """Of one edge, with its sign."""
    return short(float(scores.values[scores.graph.edge_index(edge)]))


@torch.no_grad()
def read_logits(planted: Planted, ids: torch.Tensor) -> torch.Tensor:
    """Logits at the end of prompts."""
    logits: torch.Tensor = planted.model.module(ids).logits[:, -1]
    return logits


def accuracy(planted: Planted) -> float:
    """Share of prompts whose right answer has a greater logit than the wrong one and all others.

    `greater-than` has several right answers: there, and in no other program, only right against wrong counts.
    """
    drawn = planted.examples(ACCURACY_PAIRS, seed=SEED)
    logits = read_logits(planted, drawn.clean)
    if planted.name.startswith("greater-than"):
        right = (logits.gather(1, drawn.answers) > logits.gather(1, drawn.wrong)).all(1)
    else:
        right = logits.argmax(1) == drawn.answers[:, 0]
    return short(right.double().mean().item())


def difference(planted: Planted, side: str) -> float:
    """Mean logit difference of the clean answers on one side of the pairs."""
    drawn = planted.examples(N, seed=SEED)
    logits = read_logits(planted, getattr(drawn, side))
    return (logits.gather(1, drawn.answers) - logits.gather(1, drawn.wrong)).mean().item()


def plain() -> dict[str, Any]:
    """Every model."""
    found: dict[str, Any] = {}
    for name in planted_names():
        planted = planted_model(name, seed=SEED)
        model, task = planted.model, planted_task(planted, N, SEED)
        row: dict[str, Any] = {"n_edges": model.graph.n_edges, "n_true": len(planted.edges)}
        circuit = Circuit.from_edges(model.graph, planted.edges)
        row["accuracy"] = accuracy(planted)
        row["faithfulness"] = short(assay.measure(circuit, model, task, "faithfulness").value)
        for key in SEPARATED:
            row[key] = separation(assay.discover(model, task, key), planted)
        for objective in ("kl", "logit_diff"):
            scores = assay.discover(model, task, "acdc", objective=objective, threshold=THRESHOLD)
            kept = set(scores.threshold(THRESHOLD, absolute=False).edges())
            row[f"acdc, {objective}"] = {
                "missing": sorted(set(planted.edges) - kept),
                "more": len(kept - set(planted.edges)),
                "loss": short(float(scores.details["loss"])),
            }
        found[name] = row
    return {"summary": summary(found), "models": found}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """What the pages say of all models."""
    easy = {name: row for name, row in rows.items() if name.endswith(("/bare", "/interfering"))}
    faithful = [row["faithfulness"] for row in rows.values()]
    return {
        "models": len(rows),
        "plain_models": len(easy),
        "lowest_accuracy": min(row["accuracy"] for row in rows.values()),
        "faithfulness": [min(faithful), max(faithful)],
        "lowest_ratio_on_plain_models": {
            key: min(row[key]["ratio"] for row in easy.values()) for key in SEPARATED
        },
        "largest_false_exact_on_plain_models": max(row["exact"]["largest_false"] for row in easy.values()),
        "acdc finds exactly the circuit": {
            key: sum(not row[key]["missing"] and not row[key]["more"] for row in rows.values())
            for key in ("acdc, kl", "acdc, logit_diff")
        },
        "acdc lacks edges": {
            key: [name for name, row in rows.items() if row[key]["missing"]]
            for key in ("acdc, kl", "acdc, logit_diff")
        },
    }


def examples() -> dict[str, Any]:
    """Single edges that the pages name."""
    found: dict[str, Any] = {}
    for program in SATURATED:
        planted = planted_model(f"{program}/gpt2/saturated", seed=SEED)
        task = planted_task(planted, N, SEED)
        edges = [edge for edge in planted.edges if edge.endswith((".q", ".k"))]
        found[planted.name] = {
            key: {edge: score(scores, edge) for edge in edges}
            for key in ("exact", "eap", "relp", "clean-corrupted", "eap-ig-inputs")
            for scores in (assay.discover(planted.model, task, key),)
        }
    planted = planted_model("greater-than/gpt2/saturated", seed=SEED)
    task, (edge,) = planted_task(planted, N, SEED), [edge for edge in planted.edges if edge.endswith(".k")]
    false = ~truth(planted)
    found[planted.name] = {"edge": edge, "exact": score(assay.discover(planted.model, task, "exact"), edge)}
    for steps in (5, 20, 100):
        scores = assay.discover(planted.model, task, "eap-ig-inputs", steps=steps)
        found[planted.name][f"eap-ig-inputs, {steps} steps"] = {
            "score": score(scores, edge),
            "largest_false": short(float(numbers(scores)[false].max())),
            "auroc": area(scores, planted),
        }
    planted = planted_model("duplicate/gpt2/vote", seed=SEED)
    task = planted_task(planted, N, SEED)
    voters = [edge for edge in planted.edges if any(f"a2.h{head}" in edge for head in range(3))]
    whole = difference(planted, "clean") - difference(planted, "corrupted")
    found[planted.name] = {"edges_of_voters": voters, "whole_vote": short(whole)}
    for key in ("exact", "eap", "eap-ig-inputs"):
        scores = assay.discover(planted.model, task, key)
        sizes = [abs(score(scores, edge)) for edge in voters]
        found[planted.name][key] = {
            "smallest": min(sizes),
            "largest": max(sizes),
            "auroc": area(scores, planted),
        }
    planted = planted_model("induction/gpt2/interfering", seed=SEED)
    scores = assay.discover(planted.model, planted_task(planted, N, SEED), "ifr")
    graph = scores.graph
    into = {source: scores.values[row, -1].item() for row, source in enumerate(graph.sources)}
    found[f"{planted.name}, ifr into {graph.targets[-1]}"] = {source: short(into[source]) for source in into}
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": plain,
    "examples": examples,
}


def main() -> None:
    """Measure the parts asked for, keep the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    torch.set_num_threads(1)
    path = Path(__file__).with_name("results.json")
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results["settings"] = {
        "library": assay.__version__,
        "n": N,
        "seed": SEED,
        "dtype": "float32",
        "ablation": "resample",
        "objective": "logit_diff",
        "pairs of accuracy": ACCURACY_PAIRS,
    }
    for part in parser.parse_args().part or PARTS:
        started = time.process_time()
        results[part] = PARTS[part]()
        print(part, f"{time.process_time() - started:.0f} s", flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
