"""What `docs/theory/planted.md` and the pages that use planted models as examples quote.

Every figure at one setting: 32 pairs, seed 0, float32, `resample`, `logit_diff` (where nothing else is said),
as in the table of `docs/truth.md`, whose `experiments/discovery_benchmark/truth.json` has the AUROC of every
method.

    python experiments/planted/run.py [--part NAME ...]

Parts: `plain` (every model: accuracy, faithfulness of the true edges, separation by `exact`, `eap-ig-inputs`
and `eap`, `relp` with a constant pattern, `acdc` at threshold 0.1), `examples` (single edges), `consensus`,
`vision`. Writes each part into results.json beside this file.
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
from assay.discovery.edges import consensus
from assay.models.planted import Planted, planted_model, planted_names, vit
from assay.stats import auroc


N, SEED, ACCURACY_PAIRS, IMAGES = 32, 0, 512, 2000
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
def read_logits(planted: Planted, ids: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
    """Logits of prompts (where each is read) or images."""
    logits: torch.Tensor = planted.model.module(ids).logits
    if logits.ndim == 2:
        return logits
    rows = torch.arange(len(logits))
    return logits[rows, -1 if positions is None else positions]


def accuracy(planted: Planted) -> float:
    """Share of prompts whose right answer (or class) has a greater logit than every wrong one and all others.

    `greater-than` has several right answers: there, and in no other program, only right against wrong counts.
    """
    drawn = planted.examples(ACCURACY_PAIRS, seed=SEED)
    logits = read_logits(planted, drawn.clean, drawn.positions)
    if drawn.answers is None or drawn.wrong is None:
        assert drawn.labels is not None
        return short(torch.eq(logits.argmax(1), drawn.labels).double().mean().item())
    if planted.name.startswith("greater-than"):
        right = (logits.gather(1, drawn.answers) > logits.gather(1, drawn.wrong)).all(1)
    else:
        right = logits.argmax(1) == drawn.answers[:, 0]
    return short(right.double().mean().item())


def difference(planted: Planted, side: str) -> float:
    """Mean logit difference of the clean answers on one side of the pairs."""
    drawn = planted.examples(N, seed=SEED)
    logits = read_logits(planted, getattr(drawn, side), drawn.positions)
    assert drawn.answers is not None
    assert drawn.wrong is not None
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
        row["relp, attention=values"] = area(assay.discover(model, task, "relp", attention="values"), planted)
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
    text = {name: row for name, row in rows.items() if "/vit/" not in name}
    easy = {
        name: row for name, row in text.items() if name.rpartition("/")[2] in ("bare", "inert", "interfering")
    }
    values = {name: row["relp, attention=values"] for name, row in easy.items()}
    faithful = [row["faithfulness"] for row in text.values()]
    return {
        "text_models": len(text),
        "plain_models": len(easy),
        "lowest_accuracy": min(row["accuracy"] for row in text.values()),
        "faithfulness": [min(faithful), max(faithful)],
        "lowest_ratio_on_plain_models": {
            key: min(row[key]["ratio"] for row in easy.values()) for key in SEPARATED
        },
        "largest_false_exact_on_plain_models": max(row["exact"]["largest_false"] for row in easy.values()),
        "relp, attention=values, plain models below 1": {
            name: area for name, area in values.items() if area < 1
        },
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
    planted = planted_model("induction/gpt2/inert", seed=SEED)
    scores = assay.discover(planted.model, planted_task(planted, N, SEED), "ifr")
    graph = scores.graph
    into = {source: scores.values[row, -1].item() for row, source in enumerate(graph.sources)}
    found[f"{planted.name}, ifr into {graph.targets[-1]}"] = {source: short(into[source]) for source in into}
    return found


def joined() -> dict[str, Any]:
    """AUROC of three methods and of what consensus makes of them, with `random` as a fourth too."""
    found: dict[str, Any] = {}
    keys = ("eap", "clean-corrupted", "eap-ig-inputs")
    names = [f"{program}/gpt2/interfering" for program in ("induction", "duplicate", "greater-than")]
    names += [f"{program}/gpt2/saturated" for program in ("induction", "duplicate", "greater-than")]
    for name in (*names, "duplicate/gpt2/vote"):
        planted = planted_model(name, seed=SEED)
        task = planted_task(planted, N, SEED)
        several = {key: assay.discover(planted.model, task, key) for key in keys}
        row = {key: area(scores, planted) for key, scores in several.items()}
        more = [*several.values(), assay.discover(planted.model, task, "random")]
        for rule in ("mean-rank", "mean-score"):
            row[rule] = area(consensus(list(several.values()), rule), planted)
            row[f"{rule}, with random"] = area(consensus(more, rule), planted)
        found[name] = row
    return found


@torch.no_grad()
def norm_spread(planted: Planted, images: torch.Tensor) -> float:
    """Largest relative spread of the standard deviation that one LayerNorm divides by."""
    spread: list[float] = []

    def look(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        scale = inputs[0].std(-1, correction=0)
        spread.append(float(scale.max() / scale.min() - 1))

    module = planted.model.module
    hooks = [
        part.register_forward_pre_hook(look)
        for part in module.modules()
        if isinstance(part, torch.nn.LayerNorm)
    ]
    module(images)
    for hook in hooks:
        hook.remove()
    return short(max(spread))


@torch.no_grad()
def vision() -> dict[str, Any]:
    """The planted vision transformer."""
    found: dict[str, Any] = {}
    for extras in ("bare", "inert", "interfering"):
        planted = planted_model(f"patch-marker/vit/{extras}", seed=SEED)
        images = planted.examples(IMAGES, seed=SEED)
        logits = torch.cat([planted.model.module(part).logits for part in images.clean.split(100)])  # type: ignore[no-untyped-call]
        assert images.labels is not None
        right = logits.gather(1, images.labels[:, None]) - logits.gather(1, 1 - images.labels[:, None])
        found[extras] = {
            "images": IMAGES,
            "right": int((right > 0).sum()),
            "lowest_margin": short(float(right.min())),
            "norm_spread": norm_spread(planted, images.clean[:N]),
        }
        found[extras] |= separations(vit.CONSTANT, extras, SEED, SEPARATED)
    for seed in (0, 1):
        found[f"interfering, constant 100, seed {seed}"] = separations(
            100.0, "interfering", seed, ("eap", "eap-ig-inputs")
        )
    return found


def separations(constant: float, extras: str, seed: int, keys: tuple[str, ...]) -> dict[str, Any]:
    """Smallest true and largest other score with a given constant register; `seed` is that of the extras."""
    kept, vit.CONSTANT = vit.CONSTANT, constant
    try:
        planted = planted_model(f"patch-marker/vit/{extras}", seed=seed)
    finally:
        vit.CONSTANT = kept
    with torch.enable_grad():
        task = planted_task(planted, N, SEED)
        return {key: separation(assay.discover(planted.model, task, key), planted) for key in keys}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": plain,
    "examples": examples,
    "consensus": joined,
    "vision": vision,
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
