"""`assay discover`: scores of all edges, and the strongest as a circuit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.console import echo, print_table, progress_on_stderr
from assay.app.option_groups import CIRCUIT, DISCOVERY, OUTPUT
from assay.app.options import Ablating, Counted, Discovering, OnImages, OnTask, Quadrature
from assay.app.running import Batched, Computing, File, Saving, Seeded, call, check_outputs
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.circuits import Circuit, EdgeScores
    from assay.models import Model
    from assay.store import Store
    from assay.tasks import Task

USUAL_EDGES = 200  # of a circuit without a stated size


@dataclass(frozen=True, kw_only=True)
class DiscoverSettings(
    Computing, Saving, Seeded, Batched, Quadrature, Ablating, Discovering, Counted, OnImages, OnTask
):
    """What is discovered, and which edges are kept.

    Attributes:
        options: Option of the method, NAME=VALUE, e.g. threshold=0.02; repeat for several.
        exact_edges: Edges that exact measures: a circuit, or names like input->a0.h0.q. Default: all.
        top: Keep the K strongest edges, by |score|. Default: 200, or the method's own size.
        threshold: Keep edges whose |score| is at least this.
        greedy: Keep K edges, grown greedily from the logits.
        keep_unconnected: Also keep edges that lie on no path from input to logits.
        save: File for the circuit, e.g. circuit.safetensors.
        scores_out: File for the scores of all edges.
    """

    options: Annotated[tuple[str, ...], DISCOVERY, Parameter(name="--option")] = ()
    exact_edges: Annotated[str | None, DISCOVERY] = None
    top: Annotated[int | None, CIRCUIT] = None
    threshold: Annotated[float | None, CIRCUIT] = None
    greedy: Annotated[int | None, CIRCUIT] = None
    keep_unconnected: Annotated[bool, CIRCUIT] = False
    scores_out: Annotated[Path | None, OUTPUT] = None


@command(CIRCUITS, example="assay discover --task ioi --top 60 --save circuit.safetensors")
def discover(settings: DiscoverSettings) -> None:
    """Score every edge and keep the strongest as a circuit."""
    options = _check(settings)
    check_outputs(settings, settings.scores_out)
    model, task, scores, store = _scores(settings, options)
    circuit = _choose(settings, scores, options)
    _keep(settings, model, task, circuit, store)
    out = settings.path_of(settings.save, "circuit.safetensors")
    files = {
        "circuit": File(out, circuit.save),
        "scores": File(settings.path_of(settings.scores_out, "scores.safetensors"), scores.save),
    }
    settings.deliver(
        _circuit_record(scores, circuit, out),
        files,
        show=lambda: _print_circuit(scores, circuit),
        identity=circuit.hash,
    )


def _check(settings: DiscoverSettings) -> dict[str, Any]:
    """Refuse settings that do not go together; returns the options of the method."""
    from assay import pipeline
    from assay.pipeline.benchmark import parse_options

    method = settings.method
    options = dict(parse_options([f"{method}.{text}" for text in settings.options]).get(method, {}))
    task = settings.task if settings.images is None else None
    call(settings, pipeline.check_options, options=options, task=task)
    if settings.exact_edges is not None and method != "exact":
        raise InputError(
            f"--exact-edges chooses what exact measures, but --method is {method}; remove one of them"
        )
    if sum(choice is not None for choice in (settings.top, settings.threshold, settings.greedy)) > 1:
        raise InputError("--top, --threshold and --greedy exclude each other; give one of them")
    return options


def _subset(settings: DiscoverSettings, model: "Model") -> dict[str, Any]:
    """The option `exact_edges`, by names."""
    from assay.circuits import Circuit
    from assay.pipeline.circuits import read_circuit

    if settings.exact_edges is None:
        return {}
    if "->" in settings.exact_edges:
        return {"edges": tuple(name.strip() for name in settings.exact_edges.split(","))}
    circuit = read_circuit(settings.exact_edges, model.graph, settings.existing_store)
    if not isinstance(circuit, Circuit):
        circuit = Circuit.from_heads(model.graph, circuit)
    return {"edges": tuple(circuit.edges())}


def _scores(settings: DiscoverSettings, options: dict[str, Any]) -> "tuple[Model, Task, EdgeScores, Store]":
    """Model, inputs, the scores of all edges, and the store they are in."""
    from assay import pipeline
    from assay.pipeline.inputs import read_inputs

    with progress_on_stderr() as progress:
        progress("load", 0, 1)
        model = settings.load_model()
        options |= _subset(settings, model)
        task = call(settings, read_inputs, settings.task, settings.images, model)
        store = settings.open_store()
        progress("discover", 0, 1)
        inputs = (model, task, settings.method)
        scores = call(settings, pipeline.discover_stored, *inputs, options=options, store=store)
        progress("discover", 1, 1)
    return model, task, scores, store


def _choose(settings: DiscoverSettings, scores: "EdgeScores", options: dict[str, Any]) -> "Circuit":
    """The edges that are kept."""
    from assay.discovery.edges import get_method

    if settings.threshold is not None:
        circuit = scores.threshold(settings.threshold)
    elif settings.greedy is not None:
        circuit = scores.greedy(settings.greedy)
    elif settings.top is not None:
        circuit = scores.top(settings.top)
    else:
        circuit = get_method(settings.method, **options).select(scores, USUAL_EDGES)
    return circuit if settings.keep_unconnected else circuit.connected()


def _keep(
    settings: DiscoverSettings, model: "Model", task: "Task", circuit: "Circuit", store: "Store"
) -> None:
    """The circuit in the store, by which its hash is found again."""
    from assay.core.record import library_version
    from assay.pipeline.circuits import keep_circuit

    record = {
        "library": library_version(),
        "model": model.describe(),
        "graph": model.graph.fingerprint,
        "task": task.describe(),
        "method": settings.method,
        "circuit": circuit.hash,
    }
    keep_circuit(store, record, circuit, {})


def _circuit_record(scores: "EdgeScores", circuit: "Circuit", out: Path | None) -> dict[str, Any]:
    """What `discover --json` prints."""
    return {
        "circuit": {
            "hash": circuit.hash,
            "n_edges": circuit.n_edges,
            "nodes": circuit.nodes(),
            "edges": _edges(scores, circuit),
        },
        "graph": {**scores.graph.describe(), "n_edges": scores.graph.n_edges},
        "details": dict(scores.details),
        "provenance": dict(circuit.provenance),
        "out": None if out is None else str(out),
    }


def _print_circuit(scores: "EdgeScores", circuit: "Circuit") -> None:
    """Size and strongest edges for reading."""
    edges = _edges(scores, circuit)
    gap = scores.details.get("completeness_gap")
    echo(
        f"{circuit.n_edges:,} of {scores.graph.n_edges:,} edges "
        f"({circuit.n_edges / scores.graph.n_edges:.1%})"
        + ("" if gap is None else f", completeness gap {gap:.2%}")
    )
    if (routing := scores.details.get("routing")) is not None:
        echo(
            f"{routing['changed']:,} of {routing['choices']:,} choices of experts (token and block) differ "
            "between clean and corrupted input"
        )
        if "kept" in routing:
            echo(
                f"loss of the corrupted input: {routing['kept']:.4g} with the experts of the clean input "
                f"(the empty circuit), {routing['followed']:.4g} with its own"
            )
    small = max((abs(edge["score"]) for edge in edges), default=1.0) < 0.01  # four decimals would hide them
    style = "+.2e" if small else "+.4f"
    rows = [[edge["source"], edge["target"], f"{edge['score']:{style}}"] for edge in edges[:20]]
    print_table("", ["source", "target", "score"], rows, right="score")
    if len(edges) > len(rows):
        echo(f"... and {len(edges) - len(rows):,} more")


def _edges(scores: "EdgeScores", circuit: "Circuit") -> list[dict[str, Any]]:
    """Kept edges with their scores, strongest first."""
    kept = set(circuit.edges())
    frame = scores.to_frame()
    rows = zip(frame["source"], frame["target"], frame["score"], strict=True)
    return [
        {"source": source, "target": target, "score": float(score)}
        for source, target, score in rows
        if f"{source}->{target}" in kept
    ]
