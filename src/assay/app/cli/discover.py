"""`assay discover`: scores of all edges, and the strongest as a circuit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import File, Saving, check_outputs, echo, print_table, progress_on_stderr
from assay.app.options import CIRCUIT, DISCOVERY, INPUTS, OUTPUT, RARE, Count, call, parse_options
from assay.app.settings import Ablating, Discovering, OnImages, OnTask, Quadrature, RunningModels
from assay.core.errors import InputError
from assay.core.machine import COUNTING, entered


if TYPE_CHECKING:
    from assay.circuits import Circuit, EdgeScores

USUAL_EDGES = 200  # of a circuit without a stated size


@dataclass(frozen=True, kw_only=True)
class DiscoverSettings(RunningModels, Saving, Quadrature, Ablating, Discovering, OnImages, OnTask):
    """What is discovered, and which edges are kept.

    Attributes:
        n: Prompts or images to discover on, in total. Default: 200; all of a file or folder.
        options: Option of the method, NAME=VALUE, e.g. threshold=0.02; repeat for several.
        top: Keep the K strongest edges, by |score|. Default: 200, or the method's own size.
        threshold: Keep edges whose |score| is at least this.
        greedy: Keep K edges, grown greedily from the logits.
        keep_unconnected: Also keep edges that lie on no path from input to logits.
        save: File for the circuit, e.g. circuit.safetensors.
        scores_out: File for the scores of all edges.
    """

    n: Annotated[Count | None, INPUTS] = None
    options: Annotated[tuple[str, ...], DISCOVERY, Parameter(name="--option")] = ()
    top: Annotated[int | None, CIRCUIT] = None
    threshold: Annotated[float | None, CIRCUIT] = None
    greedy: Annotated[int | None, CIRCUIT] = None
    keep_unconnected: Annotated[bool, RARE] = False
    scores_out: Annotated[Path | None, OUTPUT] = None


@command(CIRCUITS, example="assay discover --task ioi --top 60 --save circuit.safetensors")
def discover(settings: DiscoverSettings) -> None:
    """Score every edge and keep the strongest as a circuit."""
    from assay.core.record import library_version
    from assay.pipeline.circuits import keep_circuit
    from assay.pipeline.prompts import read_inputs
    from assay.pipeline.stage import check_options, discovery_stage

    if sum(choice is not None for choice in (settings.top, settings.threshold, settings.greedy)) > 1:
        raise InputError("--top, --threshold and --greedy exclude each other; give one of them")
    method = settings.method
    options = parse_options([f"{method}.{text}" for text in settings.options]).get(method, {})
    call(settings, check_options, options=options)
    check_outputs(settings, settings.scores_out)
    with progress_on_stderr() as progress:
        progress("load", 0, 1)
        model = settings.load_model()
        task = call(settings, read_inputs, settings.task, settings.images, model)
        store = settings.open_store()
        progress("discover", 0, task.n)
        stage = call(settings, discovery_stage, model, task, method, options=options)
        with entered(COUNTING, lambda *done: progress("discover", *done)):
            scores = stage.run(store).value
        progress("discover", task.n, task.n)
    circuit = _choose(settings, scores, options)
    facts = {"graph": model.graph.fingerprint, "task": task.describe(), "method": method}
    record = {"library": library_version(), "model": model.describe(), **facts, "circuit": circuit.hash}
    keep_circuit(store, record, circuit, {})
    edges, out = _edges(scores, circuit), settings.path_of(settings.save, "circuit.safetensors")
    own = {"hash": circuit.hash, "n_edges": circuit.n_edges, "nodes": circuit.nodes(), "edges": edges}
    document = {
        "circuit": own,
        "graph": {**scores.graph.describe(), "n_edges": scores.graph.n_edges},
        "details": dict(scores.details),
        "provenance": dict(circuit.provenance),
        "out": None if out is None else str(out),
    }
    files = {
        "circuit": File(out, circuit.save),
        "scores": File(settings.path_of(settings.scores_out, "scores.safetensors"), scores.save),
    }
    settings.deliver(
        document, files, show=lambda: _print_circuit(scores, circuit, edges), identity=circuit.hash
    )


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


def _print_circuit(scores: "EdgeScores", circuit: "Circuit", edges: list[dict[str, Any]]) -> None:
    """Size and strongest edges for reading."""
    gap = scores.details.get("completeness_gap")
    echo(
        f"{circuit.n_edges:,} of {scores.graph.n_edges:,} edges "
        f"({circuit.n_edges / scores.graph.n_edges:.1%})"
        + ("" if gap is None else f", completeness gap {gap:.2%}")
    )
    small = max((abs(edge["score"]) for edge in edges), default=1.0) < 0.01  # four decimals would hide them
    style = "+.2e" if small else "+.4f"
    rows = [[edge["source"], edge["target"], f"{edge['score']:{style}}"] for edge in edges[:20]]
    print_table("", ["source", "target", "score"], rows, right=("score",))
    if len(edges) > len(rows):
        echo(f"... and {len(edges) - len(rows):,} more")


def _edges(scores: "EdgeScores", circuit: "Circuit") -> list[dict[Any, Any]]:
    """The circuit's edges with their scores, strongest first."""
    names, frame = circuit.edges(), scores.to_frame()[["source", "target", "score"]]
    return frame[(frame.source + "->" + frame.target).isin(names)].to_dict("records")
