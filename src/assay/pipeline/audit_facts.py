"""Facts of an audit that take a computation: its examples, the drawn edges and the drawn curve."""

from bisect import bisect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from assay.circuits import Circuit
from assay.execution import CircuitRuns
from assay.metrics import faithfulness_curve
from assay.metrics.curve import FRACTIONS
from assay.metrics.metric import SIGNED_MARGINS
from assay.metrics.plots import CurveData, curve_data
from assay.page.text import EDGES_LIMIT
from assay.pipeline.sizing import SizedCircuit
from assay.tasks import PairTask, Task, Tokens


OPENED_EDGES = 150  # of a larger circuit, a drawing opens on so many at most
LISTED_EDGES = 600  # edges that a drawing shows at least, so that its circuit can be enlarged
EXAMPLES = 3
RANDOM_PER_SIZE = 4  # random circuits at each published size of the curve of a full audit


def task_facts(runs: CircuitRuns) -> dict[str, Any]:
    """The measured prompts or images: counts, the model's own success, a few examples."""
    task, margins = runs.task, runs.margins("full")
    signed, prompts = runs.objective in SIGNED_MARGINS, isinstance(task, PairTask)
    bos = _with_bos(task)
    return {
        "name": task.name,
        "inputs": "prompts" if prompts else "images",
        "n": task.n,
        "seed": task.config.get("seed"),
        "objective": runs.objective,
        "ablation": runs.ablation,
        "data_hash": task.data_hash,
        **({} if bos is None else {"bos": bos}),
        "accuracy": float((margins > 0).mean()) if signed else None,
        "mean_margin": float(margins.mean()) if signed else None,
        "examples": [
            _example(task, row) | {"margin": float(margins[row]) if signed else None}
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


def _example(task: PairTask, row: int) -> dict[str, Any]:
    """One pair for reading, with its right and wrong words."""
    tokenizer = task.tokenizer

    def decode(ids: torch.Tensor) -> str:
        return " ".join(map(str, ids.tolist())) if tokenizer is None else str(tokenizer.decode(ids.tolist()))

    def words(ids: torch.Tensor | None) -> list[str]:
        return [] if ids is None else [decode(each[None]).strip() for each in ids[row].flatten() if each >= 0]

    sides = {
        "clean": (task.texts, task.clean, task.lengths),
        "corrupted": (task.corrupted_texts, task.corrupted, task.corrupted_lengths),
    }
    return {
        **{
            side: decode(ids[row, : int(lengths[row])]) if texts is None else texts[row]
            for side, (texts, ids, lengths) in sides.items()
        },
        "answers": words(task.answers),
        "wrong": words(task.wrong),
    }


def curve_facts(
    sized: SizedCircuit, runs: CircuitRuns, faithfulness: Mapping[str, Any], *, target: float, full: bool
) -> CurveData:
    """Faithfulness by size to draw, with CPR and CMD of the published sizes, and random circuits.

    Args:
        sized: The circuit, whose own size is drawn too.
        runs: Its runs on the measured examples.
        faithfulness: The record of its normalised faithfulness, with random circuits of its size.
        target: Normalised faithfulness that the size was searched for.
        full: Draw a finer curve, and run random circuits at each published size.
    """
    n_edges, of = runs.model.graph.n_edges, (sized.scores, runs.model, runs.task)
    published = faithfulness_curve(*of, runs=runs, random_circuits=RANDOM_PER_SIZE if full else 0)
    more = np.geomspace(0.005, 0.5, 14) if full else ()
    sizes = sorted({sized.size, *(int(share * n_edges) for share in (*FRACTIONS, *more))} - {0})
    # Half an edge more, so that taking the integer part gives the size back.
    shares = [min((size + 0.5) / n_edges, 1.0) for size in sizes]
    drawn = faithfulness_curve(*of, runs=runs, fractions=shares)
    random, at = published.random, published.n_edges
    values = (faithfulness["baseline"].get("random") or {}).get("values")
    if random is None and values:
        random, at = np.array(values, dtype=float)[:, None], np.array([sized.size])
    if random is not None and np.isfinite(random).all():
        data = curve_data(drawn, random[:, at > 0], at[at > 0] / n_edges)
    else:
        data = curve_data(drawn)
    return replace(
        data,
        fractions=tuple((drawn.n_edges / n_edges).tolist()),
        cpr=published.cpr,
        cmd=published.cmd,
        target=target,
        chosen=sized.size / n_edges,
        chosen_value=faithfulness["value"],
    )


def drawing_facts(sized: SizedCircuit, runs: CircuitRuns) -> dict[str, Any]:
    """The strongest edges by rank: those the circuit was cut from and more, as far as can be drawn.

    The drawing of a large circuit opens on an `excerpt`: as many of the strongest edges as leave at most 150
    that are connected (more where those leave none), with their share of the circuit's attribution and what
    they keep alone.
    """
    scores, graph, circuit = sized.scores, sized.scores.graph, sized.circuit

    def connected(size: int) -> Circuit:
        return scores.top(size).connected(warn=False)

    shown, excerpt = None, None
    if circuit.n_edges > OPENED_EDGES:
        sizes = range(1, min(sized.size, EDGES_LIMIT))
        size = bisect(sizes, OPENED_EDGES, key=lambda size: connected(size).n_edges)
        size += not connected(size).n_edges
        shown, shares = connected(size), [(size + 0.5) / graph.n_edges, 1.0]
        curve = faithfulness_curve(scores, runs.model, runs.task, runs=runs, fractions=shares)
        part, whole = (float(scores.values[each.mask].abs().sum()) for each in (shown, circuit))
        record = curve.points[0].to_dict()
        excerpt = {
            "size": size,
            "n_edges": shown.n_edges,
            "attribution": part / whole if whole else None,
            "faithfulness": {"value": record["value"], **record["interval"]},
        }
    flat = scores.values.double().abs().masked_fill(~graph.valid, -torch.inf).flatten()
    count = min(graph.n_edges, max(LISTED_EDGES, min(sized.size, EDGES_LIMIT)))
    order = torch.sort(flat, descending=True, stable=True).indices[:count]
    edges = []
    for rank, place in enumerate(order.tolist(), start=1):
        row, column = divmod(place, graph.n_targets)
        edge = {"source": graph.sources[row], "target": graph.targets[column], "rank": rank}
        edge |= {"score": float(scores.values[row, column]), "kept": bool(circuit.mask[row, column])}
        edges.append(edge | ({"shown": True} if shown is not None and shown.mask[row, column] else {}))
    return {"edges": edges, "excerpt": excerpt}
