"""`assay select evaluate` and `export`: a subset as a test set for new models, and for others."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from assay.app.cli.parsing import GATE_FIRED, app, command
from assay.app.cli.select import AnswerSettings
from assay.app.console import echo, progress_on_stderr, say
from assay.app.delivery import Reporting, Storing, Talking, check_outputs, make_room
from assay.app.options import INPUTS, OUTPUT, RUNNING


@dataclass(frozen=True, kw_only=True)
class EvaluateSubsetSettings(Talking, Storing, Reporting, AnswerSettings):
    """What new models must reach on a subset.

    Attributes:
        order: data: columns without names, in the order of the data behind the subset.
        gate: Limit, 'accuracy >= 0.6'; exit code 3 if no value in a 95 % interval is within.
    """

    order: Annotated[str | None, INPUTS] = None
    gate: Annotated[tuple[str, ...], RUNNING] = ()


@command(
    parent=app["select"],
    example="assay select evaluate subset.json new.csv --gate 'accuracy >= 0.6' --report new.html",
)
def evaluate(
    subset: Annotated[str, Parameter(name="SUBSET")],
    predictions: Annotated[Path, Parameter(name="PREDICTIONS")],
    /,
    *,
    settings: EvaluateSubsetSettings,
) -> int:
    """Evaluate new models on a saved subset.

    Accuracy on the subset and on all examples, where the lines of the selection expect it, and the
    correlations over the models.

    Args:
        subset: File of --subset, or the id of a stored selection, with all of its sizes.
        predictions: Answers of the new models on these examples, as `assay select` reads them.
        settings: The options.
    """
    from assay.analyses.subsets.evaluation_page import gate_sentences
    from assay.pipeline.subset_evaluation import evaluate_models, read_gates, read_subsets
    from assay.store import About

    gates = read_gates(settings.gate)
    check_outputs(settings)
    subsets = read_subsets(subset, settings.existing_store)
    with progress_on_stderr() as progress:
        data = settings.read(predictions, progress, at_least=1, folder=settings.store_folder()).data
    document = evaluate_models(subsets, data, gates, order=settings.order)
    about = About(
        task=f"subset {subsets[0].id[:8]}", n=document["n_matched"], status=document["status"] or None
    )
    identity = settings.open_store().put(document["kind"], document["provenance"], document, about=about)
    settings.deliver(document, settings.files(document, "evaluation.json"), identity=identity)
    for each in gate_sentences(document, "fail"):
        say(f"gate: {each}")
    return GATE_FIRED if document["status"] == "fail" else 0


@dataclass(frozen=True, kw_only=True)
class ExportSubsetSettings(Talking, Storing):
    """Where a subset goes.

    Attributes:
        save: File to write: .txt, .csv, .parquet, .md or .json (card), .jsonld (Croissant).
        licence: Licence of the data, e.g. CC-BY-4.0, for the card and Croissant.
    """

    save: Annotated[Path, OUTPUT] = Path("card.md")
    licence: Annotated[str | None, OUTPUT] = None


@command(parent=app["select"], example="assay select export finding/selection.json --licence CC-BY-4.0")
def export(
    selection: Annotated[str, Parameter(name="SELECTION")], /, *, settings: ExportSubsetSettings
) -> None:
    """Write a subset for others.

    Its card, its ids, a table or Croissant: the ending of --save chooses.

    Args:
        selection: selection.json (--save of `assay select`), or the id of a stored selection.
        settings: The options.
    """
    from assay.analyses.subsets.export import check_format, export_subset
    from assay.pipeline.subset_evaluation import read_selection

    check_format(settings.save)
    document = read_selection(selection, settings.existing_store)
    saved = export_subset(make_room(settings.save), document, settings.licence)
    settings.deliver(
        {"id": document["id"], "size": document["size"], "saved": str(saved)}, show=lambda: echo(f"{saved}")
    )
