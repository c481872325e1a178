"""`assay export`: a circuit for other programs, or as a page of its own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.console import echo, print_json
from assay.app.option_groups import CIRCUIT, DISCOVERY, INPUTS, OUTPUT, Count
from assay.app.options import Beginning
from assay.app.running import Storing, Talking, make_room
from assay.core.errors import InputError


if TYPE_CHECKING:
    from assay.circuits import EdgeScores, ExportedCircuit
    from assay.models import Model
    from assay.tasks import PairTask


@dataclass(frozen=True, kw_only=True)
class CircuitExportSettings(Talking, Storing, Beginning):
    """What is exported, with what, and where to.

    Attributes:
        scores: File of edge scores. Default: those of the result, or 1 for every edge.
        roles: Roles and labels of nodes, a file saved in the circuit viewer.
        model: Model: with --task, the page gets attention patterns and weights on single prompts.
        task: Registered task or file of prompts.
        prompts: First prompts of the task that the page shows.
        method: Method that scores edges on single prompts.
        save: File to write: .html, .json (attribution graph of Neuronpedia), .dot, .graphml, .svg or .pdf.
    """

    scores: Annotated[Path | None, CIRCUIT, Parameter(metavar="FILE")] = None
    roles: Annotated[Path | None, CIRCUIT, Parameter(metavar="FILE")] = None
    model: Annotated[str | None, INPUTS] = None
    task: Annotated[str | None, INPUTS] = None
    prompts: Annotated[Count, INPUTS] = 3
    method: Annotated[str, DISCOVERY] = "eap-ig-inputs"
    save: Annotated[Path, OUTPUT] = Path("circuit.html")


@command(CIRCUITS, example="assay export circuit.safetensors --save circuit.pdf")
def export(circuit: Annotated[str, Parameter(name="CIRCUIT")], /, *, settings: CircuitExportSettings) -> None:
    """Write a circuit for other programs, or as a page.

    The ending of --save chooses the format.

    Args:
        circuit: Circuit file, or the id of a stored audit, circuit or scores.
        settings: The options.
    """
    from assay.circuits import export_circuit
    from assay.circuits.export import FORMATS
    from assay.report import circuit_document, save_report

    if settings.save.suffix not in (".html", *FORMATS):
        raise InputError(
            f"--save {settings.save} ends in {settings.save.suffix or 'nothing'!r}; a circuit is exported as "
            f".html, {', '.join(FORMATS)}"
        )
    if (settings.model is None) != (settings.task is None):
        raise InputError("--model and --task go together: give both, or neither")
    exported = _exported(circuit, settings)
    model, task = _inputs(settings)
    out = make_room(settings.save)
    if out.suffix == ".html":
        document = circuit_document(
            exported.circuit,
            scores=exported.scores,
            examples=_examples(settings, model, task, exported),
            roles=exported.roles,
            model=model,
            task=task,
            prompts=settings.prompts,
        )
        save_report(out, document)
    else:
        export_circuit(out, _with_prompt(exported, model, task))
    if settings.json:
        print_json({"circuit": exported.circuit.hash, "n_edges": len(exported.edges), "saved": str(out)})
    else:
        echo(f"{out}")


def _exported(named: str, settings: CircuitExportSettings) -> "ExportedCircuit":
    """The circuit, with scores and roles of files where they are given."""
    from assay.circuits import NodeRoles, load_roles, load_scores
    from assay.pipeline.circuits import circuit_with_scores

    found = circuit_with_scores(named, settings.existing_store)
    circuit, scores = found.circuit, found.scores
    if settings.scores is not None:
        scores = load_scores(settings.scores, circuit.graph)
    roles = NodeRoles.of(circuit) if settings.roles is None else load_roles(settings.roles, circuit.graph)
    return replace(found, scores=scores, roles=roles, model=settings.model or found.model)


def _inputs(settings: CircuitExportSettings) -> "tuple[Model | None, PairTask | None]":
    """Model and prompts where they are named."""
    if settings.model is None or settings.task is None:
        return None, None
    from assay.models import load_model
    from assay.tasks import PairTask, load_task

    model = load_model(settings.model)
    task = load_task(settings.task, model, n=settings.prompts, bos=settings.bos)
    if not isinstance(task, PairTask):
        raise InputError(f"--task {settings.task} has images; attention patterns are shown of prompts")
    return model, task


def _examples(
    settings: CircuitExportSettings,
    model: "Model | None",
    task: "PairTask | None",
    exported: "ExportedCircuit",
) -> "EdgeScores | None":
    """Scores of the edges on each prompt."""
    if model is None or task is None:
        return None
    from assay.core.errors import GraphMismatchError
    from assay.discovery.edges import discover

    if model.graph.fingerprint != exported.circuit.graph.fingerprint:
        raise GraphMismatchError(f"the circuit does not belong to {model.id}: their graphs differ")
    return discover(model, task, settings.method, per_example=True)


def _with_prompt(
    exported: "ExportedCircuit", model: "Model | None", task: "PairTask | None"
) -> "ExportedCircuit":
    """The circuit with the first prompt of a task, for formats that show one."""
    from dataclasses import replace

    from assay.report.circuit_page import prompt_tokens

    if model is None or task is None:
        return exported
    tokens: list[Any] = prompt_tokens(task, 0)
    return replace(exported, prompt="".join(tokens), tokens=tuple(tokens))
