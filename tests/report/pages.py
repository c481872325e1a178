"""One small real result of every kind that has a page, each made once in a process."""

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from generalization.small_vits import untrained_vit
from planted_subsets import planted_matrix
from planted_zoo import SETTINGS, inspected, planted
from synthetic_store import Filled, fill, made_audit, mini
from type_checks import no_type_checks

import assay
from assay.analyses.generalization.domains import DomainEvaluation, EvaluationSettings, measure_domains
from assay.analyses.generalization.inspection import METRICS
from assay.analyses.generalization.monitor import Monitor
from assay.analyses.generalization.ranking import Ranking, comparison_document, rank_inspections
from assay.circuits import Circuit, EdgeScores
from assay.circuits.exchange import scored_edges
from assay.graph import build_graph
from assay.page.blocks import Page
from assay.pipeline.check import Check, CheckedCircuit, CheckedPart
from assay.pipeline.compare import compare_page
from assay.pipeline.lock import CircuitPart
from assay.report.circuit_page import circuit_page
from assay.report.sweep import sweep_page
from assay.store import Store
from assay.tasks import EvalTransform, corrupt, draw_shapes


Document = dict[str, Any]
TRANSFORM = EvalTransform()
BENCHMARK = Path(__file__).parents[2] / "experiments" / "discovery_benchmark" / "mini-ioi.json"


def _audit() -> Document:
    return made_audit().to_dict()


def _whole_audit() -> Document:
    return {**_audit(), "worst_case": document("worst_case"), "calibration": document("calibration")}


def _worst_case() -> Document:
    made = mini()
    found = assay.worst_case(made.circuit, made.model, made.task, "all", n_clean=60, n_corrupted=60)
    return found.to_dict()


def _worst_case_with_extras() -> Document:
    """Of prompts with their own corruptions, and what a search and an explanation add."""
    made = mini()
    given = {"protocol": "matched", "n_clean": 24, "n_corrupted": 24, "thresholds": (5.0,)}
    found = assay.worst_case(made.circuit, made.model, made.task, **given).to_dict()
    edge = {"source": "m0", "target": "logits", "score": 0.7, "share": 0.28, "kept": False}
    sums = {"by_target": {"logits": 0.7}, "by_layer": {"block 1": 0.6}}
    missing = {"difference": 2.5, "completeness_gap": 0.018, "top": [edge], **sums}
    return found | {
        "search": {"max": 12.9, "n_evaluations": 4896, "pairs": found["worst"][:3]},
        "explanation": {"n_pairs": 10, "mean": 2.5, "missing": missing, "kept": None},
    }


def _some_gates() -> Document:
    """Of one that passes, one that is open, one that fails and one with parts."""
    made = document("calibration")
    return made | {"gates": [each for each in made["gates"] if each["code"] in ("C11", "C13", "C14", "M98")]}


def _calibration() -> Document:
    made = mini()
    other = assay.load_task("greater-than", made.model, n=made.task.n, seed=0)
    circuit = assay.discover(made.model, other, "eap").top(100).connected()
    against = [(other, circuit)]
    task = assay.load_task("ioi", made.model, n=40, seed=1)  # not those that the circuit was found on
    return assay.calibrate_all(made.circuit, made.model, task, against=against, groups="object").to_dict()


def _circuit() -> Page:
    made = mini()
    return circuit_page(made.scores.top(40), scores=made.scores, model=made.model, task=made.task, prompts=2)


def listed(circuit: Circuit, scores: EdgeScores | None = None) -> list[Document]:
    """The edges of a circuit as a viewer takes them."""
    return [
        {"source": source, "target": target, "score": score, "rank": rank, "kept": True}
        for rank, (source, target, score) in enumerate(scored_edges(circuit, scores), start=1)
    ]


@cache
def ranked(*, labelled: bool = True, seed: int = 0) -> Ranking:
    """Five planted models by all metrics but one."""
    qualities = (0.1, 0.5, 0.9, 0.3, 0.7)
    shown = {f"q<{q:g}>": planted(q, seed=seed, labelled=labelled) for q in qualities}
    known = {f"q<{q:g}>": planted(q, n=80, seed=seed + 5) for q in qualities}
    metrics = [key for key in METRICS if key != "cot"]
    return rank_inspections(inspected(shown, known), metrics=metrics, settings=SETTINGS)


@cache
def _planted_subsets() -> SimpleNamespace:
    data = planted_matrix(60, 120, planted=0.3, slope=0.6, n_families=12, seed=5)
    path = assay.selection_path(data.correct, data.id_accuracy, [20, 40], families=data.families)
    path.judge()
    return SimpleNamespace(data=data, path=path)


@cache
def vit() -> SimpleNamespace:
    """An image classifier with the edges of its circuit on images of one style."""
    model = assay.load_model(untrained_vit(seed=1))
    scores = assay.discover(model, draw_shapes("flat", 24).with_transform(TRANSFORM), steps=2)
    return SimpleNamespace(model=model, scores=scores)


def _monitor() -> Document:
    """Two batches as known, two of other styles, which raise the alarm."""
    monitor = Monitor(vit().model, vit().scores, alpha=0.2)
    monitor.calibrate(draw_shapes("flat", 108, start=1000).with_transform(TRANSFORM), batch_size=12)
    for style, start in (("flat", 2000), ("flat", 2100), ("neon", 500), ("sketch", 600)):
        monitor.observe(draw_shapes(style, 12, start=start).with_transform(TRANSFORM))
    return monitor.to_dict()


@cache
def evaluated() -> DomainEvaluation:
    """A model on its own images, on three corruptions of them and on four other styles."""
    labelled = draw_shapes("flat", 18, start=100).with_transform(TRANSFORM)
    settings = EvaluationSettings(n=12)
    flat = draw_shapes("flat", 16, start=700)
    known = {f"flat+{key}": corrupt(flat, key) for key in ("fog-1", "fog-5", "solarize")}
    test = {style: draw_shapes(style, 16, start=800) for style in ("neon", "sketch", "stripes", "relief")}
    domains = {name: each.with_transform(TRANSFORM) for name, each in {"flat": flat, **known, **test}.items()}
    own, *measured = measure_domains(vit().model, vit().scores, domains, labelled=labelled, settings=settings)
    return DomainEvaluation(
        model=vit().model.describe(),
        reference={"method": "eap-ig-inputs", "steps": 2, "task": {"name": "shapes", "n": 24}},
        settings=settings,
        own=own,
        known=tuple(measured[:3]),
        test=tuple(measured[3:]),
    )


@cache
def stored(names: str | None = None) -> tuple[Store, Filled]:
    """A store of results; with `names` that text is in every name they hold. It stays for the process."""
    store = Store(Path(tempfile.mkdtemp(prefix="pages-")) / "store")
    if names is None:
        return store, fill(store)
    return store, fill(store, model=f"m{names}", task=f"t{names}", metric=f"k{names}")


def _check() -> Document:
    """A circuit that is kept, one without a head, and one whose task the model no longer solves."""
    numbers = {"low": 0.9, "high": 0.95, "error": 0.01, "margin": 0.05}
    value = CircuitPart(name="faithfulness-norm", value=0.93, **numbers)
    head = CircuitPart(name="a3.h4", value=0.4, low=0.37, high=0.43, error=0.015, margin=0.2)
    gone = replace(head, value=0.0, low=0.0, high=0.0)
    kept = (CheckedPart(then=value, now=value, p_value=1.0), CheckedPart(then=head, now=head, p_value=1.0))
    lost = (kept[0], CheckedPart(then=head, now=gone, p_value=1e-9))
    edges = ({"edge": "a3.h4->logits", "then": 4.7, "now": 0.0},)
    facts = {"n_edges": 222, "n": 50, "n_looks": 2, "locked_accuracy": 1.0, "p_kept": 0.01}
    solved = {"accuracy": 1.0, "p_solved": (1.0, 1.0)}
    lines = (
        CheckedCircuit(name="ioi", verdict="kept", reason="it is", parts=kept, **facts, **solved),
        CheckedCircuit(
            name="sva", verdict="lost", reason="a3.h4 is 0", parts=lost, edges=edges, **facts, **solved
        ),
        CheckedCircuit(
            name="own",
            verdict="unsolved",
            reason="38 %",
            parts=kept,
            accuracy=0.38,
            p_solved=(1.0, 0.001),
            **facts,
        ),
    )
    model = {"id": "mini", "weight_hash": "ab" * 8, "dtype": "float32"}
    return Check(
        lock="circuits.lock.toml",
        model={**model, "id": "copy", "weight_hash": "cd" * 8},
        locked_model=model,
        alpha=0.05,
        looks=(25, 50, 100),
        seed=2,
        circuits=lines,
    ).to_dict()


# By the kind that a document names; then what no document names, and documents that say something else.
MAKERS: dict[str, Callable[[], Any]] = {
    "audit": _audit,
    "worst_case": _worst_case,
    "calibration": _calibration,
    "ranking": lambda: ranked().to_dict(),
    "ranking-comparison": lambda: comparison_document({"targets": [ranked(), ranked(seed=1)]}),
    "subset-path": lambda: _planted_subsets().path.to_dict(),
    "monitor": _monitor,
    "domain-evaluation": lambda: evaluated().to_dict(),
    "check": _check,
    "benchmark": lambda: {"kind": "benchmark", **json.loads(BENCHMARK.read_text(encoding="utf-8"))},
    "circuit-view": _circuit,
    "measurements": lambda: [mini().measured],
    "sweep": lambda: sweep_page(stored()[0], "methods"),
    "comparison": lambda: compare_page(stored()[0], *stored()[1].audits),
    "worst case with extras": _worst_case_with_extras,
    "some gates": _some_gates,
    "whole audit": _whole_audit,
}
KINDS = tuple(MAKERS)[:14]
DOCUMENTS = KINDS[:10]


@cache
def _made(kind: str) -> Any:
    with no_type_checks():
        return MAKERS[kind]()


def document(kind: str) -> Any:
    """What a page of this kind is made of, yours to change."""
    return copy.deepcopy(_made(kind))


def large_document(n_edges: int = 5_000) -> Document:
    """An audit of a graph as large as GPT-2's whose drawing opens on what is connected of 60 edges."""
    graph = build_graph(12, 12)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(graph.n_sources, graph.n_targets, generator=generator).exp()
    values[0], values[:, -1] = 12 * values[0], 25 * values[:, -1]
    scores = EdgeScores(graph, values)
    edges = listed(scores.top(n_edges), scores)
    shown = {(edge["source"], edge["target"]) for edge in listed(scores.top(60).connected())}
    for edge in edges:
        if (edge["source"], edge["target"]) in shown:
            edge["shown"] = True
    made = document("audit")
    share = {"value": 0.2, "low": 0.1, "high": 0.3, "level": 0.95}
    made["excerpt"] = {"size": 60, "n_edges": len(shown), "attribution": 0.25, "faithfulness": share}
    made["circuit"] |= {"size": n_edges, "n_edges": n_edges}
    described = graph.describe() | {"n_edges": graph.n_edges, "fingerprint": graph.fingerprint}
    return {**made, "graph": {**made["graph"], **described}, "edges": edges}
