"""`assay discover`: scores of all edges, and the strongest as a circuit."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import File, Saving, check_outputs, echo, print_table, progress_on_stderr
from assay.app.options import CIRCUIT, DISCOVERY, INPUTS, OUTPUT, RARE, Count, call, parse_options
from assay.app.settings import Ablating, Discovering, OnAnyImages, OnAnyTask, Quadrature, RunningModels
from assay.core.errors import InputError
from assay.core.machine import COUNTING, entered


if TYPE_CHECKING:
    from assay.circuits import Circuit, Scores

USUAL_METHOD = "eap-ig-inputs"


@dataclass(frozen=True, kw_only=True)
class DiscoverSettings(RunningModels, Saving, Quadrature, Ablating, Discovering, OnAnyImages, OnAnyTask):
    """What is discovered, and which edges are kept.

    Attributes:
        n: Prompts or images to discover on, in total. Default: 200; all of a file or folder.
        level: What is scored and kept: edges, nodes (heads, MLPs, input) or neurons of nodes.
        options: Option of the method, NAME=VALUE, e.g. threshold=0.02; repeat for several.
        top: Keep the K strongest, by |score|. Default: 200 edges (or the method's size), 20 nodes,
            2,000 neurons.
        threshold: Keep what has a |score| of at least this.
        greedy: Keep K edges, grown greedily from the logits.
        keep_unconnected: Also keep edges that lie on no path from input to logits.
        save: File for the circuit, e.g. circuit.safetensors.
        scores_out: File for the scores.
    """

    n: Annotated[Count | None, INPUTS] = None
    level: Annotated[Literal["edge", "node", "neuron"], DISCOVERY] = "edge"
    options: Annotated[tuple[str, ...], DISCOVERY, Parameter(name="--option")] = ()
    top: Annotated[Count | None, CIRCUIT] = None
    threshold: Annotated[float | None, CIRCUIT] = None
    greedy: Annotated[Count | None, CIRCUIT] = None
    keep_unconnected: Annotated[bool, RARE] = False
    scores_out: Annotated[Path | None, OUTPUT] = None


@command(CIRCUITS, example="assay discover --task ioi --top 60 --save circuit.safetensors")
def discover(settings: DiscoverSettings) -> None:
    """Score every edge or node; keep the strongest as a circuit."""
    from assay.core.record import library_version
    from assay.pipeline.circuits import keep_circuit
    from assay.pipeline.prompts import read_inputs
    from assay.pipeline.stage import check_options, discovery_stage

    if sum(choice is not None for choice in (settings.top, settings.threshold, settings.greedy)) > 1:
        raise InputError("--top, --threshold and --greedy exclude each other; give one of them")
    if settings.greedy is not None and settings.level != "edge":
        raise InputError(f"--greedy grows circuits of edges; use --top with --level {settings.level}")
    method = settings.method or USUAL_METHOD
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
    kept, out = _kept(scores, circuit), settings.path_of(settings.save, "circuit.safetensors")
    own = {"hash": circuit.hash, "n_edges": circuit.n_edges, "nodes": circuit.nodes()}
    document = {
        "circuit": own | {"edges" if circuit.level == "edge" else "scores": kept},
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
        document, files, show=lambda: _print_circuit(scores, circuit, kept), identity=circuit.hash
    )


def _choose(settings: DiscoverSettings, scores: "Scores", options: dict[str, Any]) -> "Circuit":
    """The edges, nodes or neurons that are kept."""
    from assay.circuits import EdgeScores
    from assay.discovery.edges import get_method
    from assay.pipeline.circuits import USUAL_ITEMS

    usual = USUAL_ITEMS[scores.level]
    if settings.threshold is not None:
        circuit = scores.threshold(settings.threshold)
    elif settings.top is not None:
        circuit = scores.top(settings.top)
    elif not isinstance(scores, EdgeScores):
        circuit = scores.top(min(usual, scores.n_items))
    elif settings.greedy is not None:
        circuit = scores.greedy(settings.greedy)
    else:
        circuit = get_method(settings.method or USUAL_METHOD, **options).select(scores, usual)
    return circuit if settings.keep_unconnected else circuit.connected()


def _print_circuit(scores: "Scores", circuit: "Circuit", kept: list[dict[Any, Any]]) -> None:
    """Size and strongest edges, nodes or neurons for reading."""
    gap, what = scores.details.get("completeness_gap"), f"{circuit.level}s"
    echo(
        f"{circuit.n_items:,} of {scores.n_items:,} {what} ({circuit.n_items / scores.n_items:.1%})"
        + ("" if gap is None else f", completeness gap {gap:.2%}")
    )
    small = max((abs(each["score"]) for each in kept), default=1.0) < 0.01  # four decimals would hide them
    style = "+.2e" if small else "+.4f"
    rows = [[*map(str, [*each.values()][:-1]), f"{each['score']:{style}}"] for each in kept[:20]]
    if kept:
        print_table("", [*kept[0]], rows, right=("score",))
    if len(kept) > len(rows):
        echo(f"... and {len(kept) - len(rows):,} more")


def _kept(scores: "Scores", circuit: "Circuit") -> list[dict[Any, Any]]:
    """What the circuit keeps of its level, with its scores, strongest first."""
    frame, own = scores.to_frame(), circuit.to_frame()
    columns = [name for name in ("source", "target", "node", "neuron") if name in own]
    return frame.merge(own[columns], on=columns)[[*columns, "score"]].to_dict("records")
