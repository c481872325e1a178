"""A store filled without a model: audits, measurements with their rows, gates, a sweep."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from synthetic import synthetic_document, synthetic_worst_case
from synthetic_calibration import synthetic_calibration

from assay.core.measurement import Measurement
from assay.core.random import stream
from assay.core.verdict import Rule
from assay.graph import build_graph
from assay.page.graph import graph_of
from assay.stats.statistic import mean_of
from assay.store import About, Store


# What a page must show as it is: HTML, JavaScript, quotes, marks that turn the direction, ends of elements.
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&{{ 7 * 7 }}"
    "</title></style></textarea>javascript:alert(3)\u202eevil\u202c\u200f ; OR 1=1"
)


@dataclass(frozen=True, kw_only=True)
class Filled:
    """Ids of what a store was filled with."""

    audits: tuple[str, str]
    scores: str
    circuit: str
    measurement: str
    calibration: str
    worst_case: str
    sweep: str
    failed: str


def measurement(
    name: str = "kl",
    *,
    model: str = "mini",
    task: str = "ioi",
    seed: int = 0,
    shift: float = 0.0,
    n: int = 40,
) -> Measurement:
    """A mean of made-up rows; equal `task` and `n` mean the same examples."""
    rows = stream(7, f"{task} {n}").normal(0.4, 0.1, n) + stream(seed, name).normal(shift, 0.01, n)
    return Measurement(
        id=f"D03.{name}",
        name=name,
        statistic=mean_of("row"),
        components={"row": rows},
        per_example=rows,
        value=float(rows.mean()),
        n=n,
        unit="nats",
        direction="lower",
        rule=Rule(pass_at=0.5, higher=False),
        provenance={
            "library": "0.1.0",
            "model": {"id": model, "weight_hash": "ab" * 8},
            "task": {"name": task, "data_hash": f"hash of {task}", "n": n},
            "metric": {"key": name, "options": {}},
            "circuit": f"circuit{seed}",
            "seed": seed,
        },
    )


def put_measurement(store: Store, made: Measurement) -> str:
    """Store it as the runner does."""
    interval, record = made.interval(), made.provenance
    about = About(
        model=record["model"]["id"],
        task=record["task"]["name"],
        metric=made.name,
        n=made.n,
        seed=record["seed"],
        value=made.value,
        low=interval.low,
        high=interval.high,
        status=made.status,
        circuit=record["circuit"],
    )
    return store.put("measurement", record, made.to_dict(), made.arrays(), about=about)


def put_audit(store: Store, *, model: str, task: str, seed: int, n: int = 40) -> str:
    """An audit whose circuit depends on the seed, with one measurement of its own."""
    document = synthetic_document()
    document["model"]["id"], document["task"]["name"] = model, task
    graph = graph_of(document["graph"])
    made = measurement(model=model, task=task, seed=seed, shift=0.05 * seed, n=n)
    put_measurement(store, made)
    document["measurements"] = [*document["measurements"], made.to_dict()]
    scores = torch.zeros(graph.n_sources, graph.n_targets)
    mask = torch.zeros_like(scores, dtype=torch.bool)
    for place, edge in enumerate(document["edges"]):
        row, column = graph.source_index(edge["source"]), graph.target_index(edge["target"])
        scores[row, column] = edge["score"] * (1 + 0.1 * seed)
        mask[row, column] = edge["kept"] and (place + seed) % 5 != 0
    record = {
        "job": "audit",
        "model": {"id": model},
        "measured": {"name": task},
        "seed": seed,
        "library": "0.1.0",
    }
    (headline,) = (each for each in document["measurements"] if each["name"] == "faithfulness-norm")
    about = About(
        model=model,
        task=task,
        metric="faithfulness-norm",
        **{key: headline[key] for key in ("n", "value", "status")},
        **{key: headline["interval"][key] for key in ("low", "high")},
        seed=seed,
        name=f"{document['circuit']['n_edges']:,} edges",
        circuit=document["circuit"]["id"],
    )
    return store.put("audit", record, document, {"scores": scores, "mask": mask}, about=about)


def fill(store: Store, *, model: str = "mini", task: str = "ioi", metric: str = "faithfulness") -> Filled:
    """One of everything that a store can hold and a page can show."""
    audits = tuple(put_audit(store, model=model, task=task, seed=seed) for seed in (0, 1))
    jobs: list[dict[str, Any]] = []
    for other in ("greater-than", task):
        for method in ("eap", "acdc"):
            made = measurement(metric, model=model, task=other, seed=len(jobs), shift=0.02 * len(jobs))
            key = put_measurement(store, made)
            jobs.append(
                {
                    "name": f"measure {model} {other} {method}",
                    "id": f"{len(jobs):016x}",
                    "kind": "measure",
                    "status": "done",
                    "record": {"method": method},
                    "results": [key],
                }
            )
    failed = f"attack {model} {task}"
    jobs.append(
        {
            "name": failed,
            "id": "f" * 16,
            "kind": "attack",
            "status": "failed",
            "error": f"OutOfMemory: {model} needs more than 4 GiB",
            "results": [],
        }
    )
    graph = build_graph(2, 3)
    values = torch.from_numpy(
        np.where(graph.valid.numpy(), stream(0, "scores").normal(size=graph.valid.shape), 0)
    )
    shape = {"graph": graph.describe(), "details": {"seconds": 1.0}}
    facts: dict[str, Any] = {"model": {"id": model}, "task": {"name": task}}
    about = About(model=model, task=task)
    calibration = synthetic_calibration()
    calibration["model"]["id"], calibration["task"]["name"] = model, task
    worst = synthetic_worst_case()
    return Filled(
        audits=(audits[0], audits[1]),
        scores=store.put(
            "scores",
            {**facts, "method": "eap"},
            shape,
            {"values": values.float()},
            about=replace(about, method="eap"),
        ),
        circuit=store.put(
            "circuit", {"model": {"id": model}}, shape, {"mask": graph.valid}, about=About(model=model)
        ),
        measurement=put_measurement(store, measurement(metric, model=model, task=task, seed=9)),
        calibration=store.put(
            "calibration",
            {"table": facts, "gates": ["a", "b"]},
            calibration,
            about=replace(about, name="2 gates", circuit=calibration["circuit"]["hash"]),
        ),
        worst_case=store.put(
            "worst_case",
            {**facts, "divergence": "kl"},
            worst,
            about=replace(about, metric="kl", value=worst["summary"]["absolute"]["max"]),
        ),
        sweep=store.put(
            "sweep",
            {"name": "methods", "plan": {"models": [model]}},
            {"name": "methods", "jobs": jobs},
            about=About(name="methods"),
        ),
        failed=failed,
    )
