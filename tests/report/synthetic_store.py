"""A store with an audit, measurements of made-up rows, a worst case, gates and a sweep; and what it is of."""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from type_checks import no_type_checks

import assay
from assay.core.measurement import Measurement, Rule
from assay.core.random import stream
from assay.pipeline.audit_result import Audit
from assay.stats.intervals import mean_of
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
    measurement: str
    calibration: str
    worst_case: str
    sweep: str


@cache
def mini() -> SimpleNamespace:
    """The embedded model with prompts, scores, a circuit and one measurement of it."""
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=40, seed=0)
    scores = assay.discover(model, task, "eap")
    circuit = scores.top(100).connected()
    measured = assay.measure(circuit, model, task, "kl")
    return SimpleNamespace(model=model, task=task, scores=scores, circuit=circuit, measured=measured)


@cache
def made_audit() -> Audit:
    """An audit of the embedded model without its worst case and gates."""
    with no_type_checks():
        return assay.audit(mini().model, "ioi", n=24, n_random=2, skip=("attack", "calibrate"))


def measurement(name="kl", *, model="mini", task="ioi", seed=0, shift=0.0, n=40) -> Measurement:
    """A mean of made-up rows; equal `task` and `n` mean the same examples."""
    rows = stream(7, f"{task} {n}").normal(0.4, 0.1, n) + stream(seed, name).normal(shift, 0.01, n)
    provenance = {
        "library": "0.1.0",
        "model": {"id": model, "weight_hash": "ab" * 8},
        "task": {"name": task, "data_hash": f"hash of {task}", "n": n},
        "metric": {"key": name, "options": {}},
        "circuit": f"circuit{seed}",
        "seed": seed,
    }
    facts = {"id": f"D03.{name}", "name": name, "n": n, "unit": "nats", "direction": "lower"}
    numbers = {"value": float(rows.mean()), "per_example": rows, "components": {"row": rows}}
    rule = Rule(pass_at=0.5, higher=False)
    return Measurement(**facts, **numbers, statistic=mean_of("row"), rule=rule, provenance=provenance)


def put_measurement(store: Store, made: Measurement) -> str:
    """Store it as the runner does."""
    interval, record = made.interval(), made.provenance
    facts = {"model": record["model"]["id"], "task": record["task"]["name"], "circuit": record["circuit"]}
    numbers = {"n": made.n, "value": made.value, "low": interval.low, "high": interval.high}
    about = About(**facts, **numbers, metric=made.name, seed=record["seed"], status=made.status)
    return store.put("measurement", record, made.to_dict(), made.arrays(), about=about)


def _put_audit(store: Store, *, model: str, task: str, seed: int) -> str:
    """The audit under other names, with one more measurement, which depends on the seed."""
    audit = made_audit()
    document = audit.to_dict()
    document["model"]["id"], document["task"]["name"] = model, task
    made = measurement("made-up", model=model, task=task, seed=seed, shift=0.05 * seed)
    put_measurement(store, made)
    document["measurements"] = [*document["measurements"], made.to_dict()]
    record = {"job": "audit", "model": {"id": model}, "measured": {"name": task}, "seed": seed}
    arrays = {"scores": audit.scores.values, "mask": audit.circuit.mask}
    about = About(model=model, task=task, metric="faithfulness-norm", seed=seed, name="an audit")
    return store.put("audit", record, document, arrays, about=about)


def fill(store: Store, *, model: str = "mini", task: str = "ioi", metric: str = "faithfulness") -> Filled:
    """One of everything that a store can hold and a page can show."""
    made, jobs = mini(), list[dict[str, Any]]()
    for other in ("greater-than", task):
        for method in ("eap", "acdc"):
            row = measurement(metric, model=model, task=other, seed=len(jobs), shift=0.02 * len(jobs))
            job = {"name": f"measure {model} {other} {method}", "kind": "measure", "status": "done"}
            jobs.append(job | {"record": {"method": method}, "results": [put_measurement(store, row)]})
    failed = {"name": f"attack {model} {task}", "kind": "attack", "status": "failed", "results": []}
    jobs.append(failed | {"error": f"OutOfMemory: {model} needs more than 4 GiB"})
    facts: dict[str, Any] = {"model": {"id": model}, "task": {"name": task}}
    about = About(model=model, task=task)
    graph = made.scores.graph
    worst = assay.worst_case(made.circuit, made.model, made.task, n_clean=6, n_corrupted=6).to_dict()
    gates = assay.calibrate_all(made.circuit, made.model, made.task, gates=["C11", "C23"]).to_dict()
    gates["model"]["id"], gates["task"]["name"] = model, task
    sweep = {"name": "methods", "jobs": [{"id": f"{place:016x}", **job} for place, job in enumerate(jobs)]}
    return Filled(
        audits=tuple(_put_audit(store, model=model, task=task, seed=seed) for seed in (0, 1)),
        scores=store.put(
            "scores",
            {**facts, "method": "eap"},
            {"graph": graph.describe(), "details": {"seconds": 1.0}},
            {"values": made.scores.values},
            about=replace(about, method="eap"),
        ),
        measurement=put_measurement(store, measurement(metric, model=model, task=task, seed=9)),
        calibration=store.put("calibration", {"table": facts}, gates, about=replace(about, name="2 gates")),
        worst_case=store.put(
            "worst_case",
            {**facts, "divergence": "kl"},
            worst,
            about=replace(about, metric="kl", value=worst["summary"]["absolute"]["max"]),
        ),
        sweep=store.put(
            "sweep", {"name": "methods", "plan": {"models": [model]}}, sweep, about=About(name="methods")
        ),
    )
