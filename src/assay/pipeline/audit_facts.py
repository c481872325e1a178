"""Facts of an audit: what its document says of model, examples, circuit, curve and numbers."""

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from assay.circuits import Circuit, EdgeScores
from assay.discovery.edges import get_method
from assay.execution import CircuitRuns
from assay.graph import Graph
from assay.metrics import FaithfulnessCurve, faithfulness_curve
from assay.metrics.curve import FRACTIONS
from assay.metrics.metric import SIGNED_MARGINS
from assay.models import Model
from assay.page.text import EDGES_LIMIT
from assay.pipeline.prompts import Division
from assay.pipeline.runs import RunSettings
from assay.pipeline.sizing import SizedCircuit
from assay.tasks import PairTask, Task, Tokens


OPENED_EDGES = 150  # of a larger circuit, a drawing opens on so many at most
LISTED_EDGES = 600  # edges that a drawing shows at least, so that its circuit can be enlarged
EXAMPLES = 3

TITLES = {
    "ioi": "indirect-object identification",
    "greater-than": "greater-than",
    "docstring": "docstring completion",
    "induction": "induction",
    "sva": "subject\N{EN DASH}verb agreement",
    "gendered-pronoun": "gendered pronouns",
    "arithmetic": "two-digit arithmetic",
    "capital-country": "capitals of countries",
    "mcqa": "multiple-choice questions",
}


def facts_of(
    halves: Division,
    settings: RunSettings,
    sized: SizedCircuit,
    runs: CircuitRuns,
    records: Mapping[str, Mapping[str, Any]],
    *,
    method: str,
    steps: int | str,
    target: float,
) -> dict[str, Any]:
    """What an audit's document says of examples, circuit and measurements.

    Args:
        halves: The examples.
        settings: How circuits were run.
        sized: The circuit.
        runs: Its runs on the measured examples.
        records: `Measurement.to_dict` by the key of the metric.
        method: Key of the discovery method.
        steps: Its quadrature nodes, as asked for.
        target: Normalised faithfulness that the size was searched for.
    """
    model, name, faithfulness = settings.model, runs.task.name, records["faithfulness-norm"]
    shown = _opening(sized)
    facts: dict[str, Any] = {
        "title": f"A circuit for {TITLES.get(name, name)} in {model.id}",
        "model": _model_facts(model),
        "task": _task_facts(runs),
        "discovery": {
            "n": halves.discovery.n,
            "seed": settings.seed,
            "data_hash": halves.discovery.data_hash,
            "held_out": halves.held_out,
        },
        "graph": _graph_facts(model.graph),
        "method": _method_facts(sized.scores, method, steps, runs.objective, runs.ablation),
        "edges": _listed_edges(sized, shown),
        "circuit": _circuit_facts(sized, target, faithfulness),
        "random": _random_facts(faithfulness, sized.circuit.n_edges),
        "measurements": list(records.values()),
        "topk": _agreement_facts(records["topk"]) if "topk" in records else None,
        "per_layer": _layer_table(sized.scores),
        "per_head": _head_table(sized.scores),
    }
    return facts if shown is sized else facts | {"excerpt": _excerpt_facts(shown, sized, runs)}


def _model_facts(model: Model) -> dict[str, Any]:
    """What a report says about the model."""
    return {
        **model.describe(),
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "n_kv_heads": model.n_kv_heads,
        "d_model": model.d_model,
        "n_parameters": model.n_parameters,
    }


def _task_facts(runs: CircuitRuns) -> dict[str, Any]:
    """What a report says about the prompts or images: counts, the model's own success, a few examples."""
    task = runs.task
    margins = runs.margins("full")
    signed = runs.objective in SIGNED_MARGINS
    return {
        "name": task.name,
        "inputs": "prompts" if isinstance(task, PairTask) else "images",
        "n": task.n,
        "seed": task.config.get("seed"),
        "objective": runs.objective,
        "ablation": runs.ablation,
        "data_hash": task.data_hash,
        **({} if (bos := _with_bos(task)) is None else {"bos": bos}),
        "accuracy": float((margins > 0).mean()) if signed else None,
        "mean_margin": float(margins.mean()) if signed else None,
        "examples": [
            _example(task, row, float(margins[row]) if signed else None)
            for row in range(min(EXAMPLES, task.n))
            if isinstance(task, PairTask)
        ],
        "notes": list(runs.notes),
    }


def _with_bos(task: Task) -> bool | None:
    """Whether prompts begin with a BOS token; None where the tokenizer adds none, and a chat template may."""
    if not isinstance(task, PairTask) or task.config.get("chat"):
        return None
    prefix = () if task.texts is None or task.tokenizer is None else Tokens(task.tokenizer).prefix
    if task.config.get("bos") or not prefix:
        return True if task.config.get("bos") else None
    return bool((task.clean[:, : len(prefix)] == torch.tensor(prefix)).all())


def _example(task: PairTask, row: int, margin: float | None) -> dict[str, Any]:
    """One prompt for reading."""

    def decode(ids: torch.Tensor) -> str:
        if task.tokenizer is None:
            return " ".join(str(int(number)) for number in ids)
        text: str = task.tokenizer.decode(ids.tolist())
        return text

    def prompt(texts: Sequence[str] | None, ids: torch.Tensor, lengths: torch.Tensor) -> str:
        if texts is not None:
            return texts[row]
        return decode(ids[row, : int(lengths[row])])

    def words(ids: torch.Tensor | None) -> list[str]:
        known = [] if ids is None else [number for number in ids[row].flatten() if number >= 0]
        return [decode(number[None]).strip() for number in known]

    return {
        "clean": prompt(task.texts, task.clean, task.lengths),
        "corrupted": prompt(task.corrupted_texts, task.corrupted, task.corrupted_lengths),
        "answers": words(task.answers),
        "wrong": words(task.wrong),
        "margin": margin,
    }


def _opening(sized: SizedCircuit) -> SizedCircuit:
    """What a drawing opens on: the circuit, or of a large one the strongest edges that are connected.

    Those are at most 150, but where so few of the strongest leave none on a path from input to logits.
    """
    if sized.circuit.n_edges <= OPENED_EDGES:
        return sized

    def circuit_of(size: int) -> Circuit:
        return sized.scores.top(size).connected(warn=False)

    sizes = range(1, min(sized.size, EDGES_LIMIT))
    size = bisect(sizes, OPENED_EDGES, key=lambda size: circuit_of(size).n_edges)
    size += not circuit_of(size).n_edges
    return replace(sized, size=size, circuit=circuit_of(size))


def _excerpt_facts(shown: SizedCircuit, sized: SizedCircuit, runs: CircuitRuns) -> dict[str, Any]:
    """What a drawing opens on: its size, its share of the circuit's attribution, what it keeps alone."""
    shares = [(shown.size + 0.5) / runs.model.graph.n_edges, 1.0]
    curve = faithfulness_curve(shown.scores, runs.model, runs.task, runs=runs, fractions=shares)
    part, whole = (float(sized.scores.values[each.circuit.mask].abs().sum()) for each in (shown, sized))
    record = curve.points[0].to_dict()
    return {
        "size": shown.size,
        "n_edges": shown.circuit.n_edges,
        "attribution": part / whole if whole else None,
        "faithfulness": {"value": record["value"], **record["interval"]},
    }


def _listed_edges(sized: SizedCircuit, shown: SizedCircuit) -> list[dict[str, Any]]:
    """The strongest edges by rank: those the circuit was cut from and more, as far as can be drawn.

    Where a drawing opens on less than the circuit, those that it shows are marked.
    """
    scores, circuit, graph = sized.scores, sized.circuit, sized.scores.graph
    flat = scores.values.double().abs().masked_fill(~graph.valid, -torch.inf).flatten()
    count = min(graph.n_edges, max(LISTED_EDGES, min(sized.size, EDGES_LIMIT)))
    order = torch.sort(flat, descending=True, stable=True).indices[:count]
    edges = []
    for rank, place in enumerate(order.tolist(), start=1):
        row, column = divmod(place, graph.n_targets)
        edges.append(
            {
                "source": graph.sources[row],
                "target": graph.targets[column],
                "score": float(scores.values[row, column]),
                "rank": rank,
                "kept": bool(circuit.mask[row, column]),
                **({"shown": True} if shown is not sized and shown.circuit.mask[row, column] else {}),
            }
        )
    return edges


def drawn_fractions(n_edges: int, size: int, *, finer: bool) -> list[float]:
    """Shares for a drawn curve: the published ones, the reported circuit’s own, and more between them."""
    more = np.geomspace(0.005, 0.5, 14) if finer else ()
    sizes = {int(share * n_edges) for share in (*FRACTIONS, *more)} | {size}
    # Half an edge more, so that taking the integer part gives the size back.
    return [min((each + 0.5) / n_edges, 1.0) for each in sorted(sizes - {0})]


def _graph_facts(graph: Graph) -> dict[str, Any]:
    return {
        **graph.describe(),
        "n_edges": graph.n_edges,
        "n_sources": graph.n_sources,
        "n_targets": graph.n_targets,
        "fingerprint": graph.fingerprint,
    }


def _method_facts(
    scores: EdgeScores, method: str, steps: int | str, objective: str, ablation: str
) -> dict[str, Any]:
    """How the edges were scored, and what that took."""
    details = scores.details
    return {
        "key": method,
        "objective": objective,
        "ablation": ablation,
        "steps": details.get("steps", steps) if get_method(method).integrates else None,
        "quadrature": "midpoint",
        **{key: details.get(key) for key in ("completeness_gap", "seconds", "passes")},
        **{key: details[key] for key in ("routing",) if key in details},
    }


def curve_facts(curve: FaithfulnessCurve, fine: FaithfulnessCurve) -> dict[str, Any]:
    """A curve to draw (`fine`), with CPR, CMD and random circuits of the published sizes (`curve`).

    Sizes count edges asked for; `fractions` are those sizes over all edges.
    """
    published, drawn = curve.to_dict(), fine.to_dict()
    n_edges = fine.circuits[0].graph.n_edges
    facts = {key: drawn[key] for key in ("n_edges", "ranking", "kept_edges", "values", "low", "high", "n")}
    facts |= {
        "fractions": [size / n_edges for size in drawn["n_edges"]],
        "cpr": published["cpr"]["value"],
        "cmd": published["cmd"]["value"],
        "random": None,
    }
    if curve.random is not None and np.isfinite(curve.random).all():
        ran = curve.n_edges > 0
        facts["random"] = {
            "n_circuits": len(curve.random),
            "fractions": curve.n_edges[ran] / n_edges,
            "values": curve.random.mean(axis=0)[ran],
            "low": curve.random.min(axis=0)[ran],
            "high": curve.random.max(axis=0)[ran],
        }
    return facts


def _circuit_facts(sized: SizedCircuit, target: float, faithfulness: Mapping[str, Any]) -> dict[str, Any]:
    """The reported circuit: size, share, and its faithfulness on the measured prompts."""
    circuit = sized.circuit
    interval = faithfulness["interval"]
    return {
        "id": circuit.hash,
        "size": sized.size,
        "n_edges": circuit.n_edges,
        "fraction": circuit.n_edges / circuit.graph.n_edges,
        "n_nodes": len(circuit.nodes()),
        "nodes": circuit.nodes(),
        "target": target,
        "faithfulness": {"value": faithfulness["value"], **interval},
        "discovery_faithfulness": sized.faithfulness,
        "confirmed": sized.confirmed,
        "sweep": list(sized.sweep),
        "provenance": dict(circuit.provenance),
    }


def random_of_curve(faithfulness: Mapping[str, Any], sized: SizedCircuit) -> dict[str, Any] | None:
    """Random circuits of the chosen size alone, as the curve draws them; None where none ran."""
    found = _random_facts(faithfulness, sized.size)
    if found is None or found["mean"] is None:
        return None
    ends = {"values": found["mean"], "low": found["low"], "high": found["high"]}
    share = sized.size / sized.circuit.graph.n_edges
    return {"n_circuits": found["n_circuits"], "fractions": [share], **{key: [ends[key]] for key in ends}}


def _random_facts(faithfulness: Mapping[str, Any], n_edges: int) -> dict[str, Any] | None:
    """Random circuits of the same number of edges: mean and range of their faithfulness."""
    if not faithfulness.get("baseline"):
        return None
    random = faithfulness["baseline"]["random"]
    defined = [value for value in random["values"] if value is not None]
    return {
        "n_circuits": random["n"],
        "n_edges": n_edges,
        "values": random["values"],
        "mean": random["value"],
        "low": min(defined, default=None),
        "high": max(defined, default=None),
    }


def _agreement_facts(topk: Mapping[str, Any]) -> dict[str, Any]:
    """Top-K agreement by K, with random circuits and chance beside it."""
    parts = topk["parts"]
    sizes = sorted(int(key.partition("@")[2]) for key in parts if key.startswith("acc@"))
    accuracy = [parts[f"acc@{k}"] for k in sizes]
    random = ((topk.get("baseline") or {}).get("random") or {}).get("parts", {})
    return {
        "k": sizes,
        "agreement": [part["value"] for part in accuracy],
        "low": [part["interval"]["low"] for part in accuracy],
        "high": [part["interval"]["high"] for part in accuracy],
        "random": [random.get(f"acc@{k}") for k in sizes],
        "chance": [topk["details"]["chance"][str(k)] for k in sizes],
        "tau": [parts.get(f"tau@{k}", {}).get("value") for k in sizes],
        "label_top1_full": parts["label-top1-full"]["value"],
        "label_top1_circuit": parts["label-top1-circuit"]["value"],
        "patterns": list(topk["details"].get("patterns", [])),
        "n": topk["n"],
    }


def _layer_table(scores: EdgeScores) -> dict[str, Any]:
    """Sum of |score| over the edges between each writing and each reading layer."""
    layers = [f"layer {layer}" for layer in range(scores.graph.n_layers)]
    return {"rows": ["input", *layers], "columns": [*layers, "logits"], "values": scores.layer_sums()}


def _head_table(scores: EdgeScores) -> list[list[float]]:
    """`[layer][head]`: summed signed score of the edges that leave each head."""
    graph = scores.graph
    sums = scores.values.double().sum(1)
    return [
        [float(sums[graph.head_source(layer, head)]) for head in range(graph.n_heads)]
        for layer in range(graph.n_layers)
    ]
