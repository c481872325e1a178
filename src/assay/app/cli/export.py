"""`assay export`: a circuit for other programs, or as a page of its own."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from assay.app.cli.parsing import CIRCUITS, command
from assay.app.delivery import Storing, Talking, echo, make_room
from assay.app.options import CIRCUIT, INPUTS, OUTPUT, Count
from assay.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class CircuitExportSettings(Talking, Storing):
    """What is exported, with what, and where to.

    Attributes:
        scores: File of edge scores. Default: those of the result, or 1 for every edge.
        model: Model: with --task, the page gets attention patterns.
        task: Registered task or file of prompts.
        prompts: First prompts of the task that the page shows.
        save: File to write: .html, or .json (attribution graph of Neuronpedia).
    """

    scores: Annotated[Path | None, CIRCUIT, Parameter(metavar="FILE")] = None
    model: Annotated[str | None, INPUTS] = None
    task: Annotated[str | None, INPUTS] = None
    prompts: Annotated[Count, INPUTS] = 3
    save: Annotated[Path, OUTPUT] = Path("circuit.html")


@command(CIRCUITS, example="assay export circuit.safetensors --save circuit.html")
def export(circuit: Annotated[str, Parameter(name="CIRCUIT")], /, *, settings: CircuitExportSettings) -> None:
    """Write a circuit for other programs, or as a page.

    The ending of --save chooses the format.

    Args:
        circuit: Circuit file, or the id of a stored audit, circuit or scores.
        settings: The options.
    """
    from assay.circuits import export_circuit, load_scores
    from assay.models import load_model
    from assay.pipeline.circuits import circuit_with_scores
    from assay.report.circuit_page import circuit_page, prompt_tokens
    from assay.report.save import save_report
    from assay.tasks import PairTask, load_task

    if settings.save.suffix not in (".html", ".json"):
        raise InputError(
            f"--save {settings.save} ends in {settings.save.suffix or 'nothing'!r}; a circuit is exported as "
            ".html or .json"
        )
    if (settings.model is None) != (settings.task is None):
        raise InputError("--model and --task go together: give both, or neither")
    kept, scores, made_for = circuit_with_scores(circuit, settings.existing_store)
    if settings.scores is not None:
        scores = load_scores(settings.scores, kept.graph)
    given: dict[str, Any] = {}
    if settings.model is not None and settings.task is not None:
        given["model"] = load_model(settings.model)
        given["task"] = load_task(settings.task, given["model"], n=settings.prompts)
        if not isinstance(given["task"], PairTask):
            raise InputError(f"--task {settings.task} has images; attention patterns are shown of prompts")
    out = make_room(settings.save)
    if out.suffix == ".html":
        save_report(out, circuit_page(kept, scores=scores, prompts=settings.prompts, **given))
    else:
        tokens = prompt_tokens(given["task"], 0) if given else []
        export_circuit(out, kept, scores=scores, model=settings.model or made_for, tokens=tokens)
    document = {"circuit": kept.hash, "n_edges": kept.anywhere().n_edges, "saved": str(out)}
    settings.deliver(document, show=lambda: echo(f"{out}"))
