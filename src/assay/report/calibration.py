"""Calibrations as a page: sixteen gates, each with both verdicts, its number as a picture, and what to do."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from matplotlib import rc_context

from assay.core.errors import InputError, OutputError
from assay.core.record import MACHINE, plain
from assay.report import calibration_figures, calibration_tables, calibration_words, figures
from assay.report.calibration_headlines import RULES, headline


KIND, SCHEMA = "calibration", "assay-calibration/1"
REQUIRED = ("model", "task", "circuit", "table", "gates")
REQUIRED_OF_GATES = ("key", "code", "name", "question", "on_pass", "on_fail", "verdict")
Document = Mapping[str, Any]


@runtime_checkable
class HasRecord(Protocol):
    """A result that can write itself down, such as a `CalibrationReport`."""

    def to_dict(self) -> dict[str, Any]:
        """Its document, plain JSON."""


def is_calibration(document: object) -> bool:
    """Whether a document is that of calibrations."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def calibration_document(report: HasRecord | Document) -> Document:
    """The document of calibrations, complete.

    Args:
        report: What `assay.calibrate_all` returned, or what its `to_dict` gave.

    Raises:
        InputError: Something else, or a document that lacks a part.
    """
    document = report.to_dict() if isinstance(report, HasRecord) else report
    if not is_calibration(document):
        raise InputError(
            "calibrations are needed, as `assay.calibrate_all` returns them; got kind "
            f"{document.get('kind')!r}"
        )
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"these calibrations have schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay calibrate` again to make them"
        )
    missing = [key for key in REQUIRED if key not in document]
    if missing:
        raise InputError(f"the calibration document lacks {', '.join(missing)}; it is incomplete")
    if not document["gates"]:
        raise InputError("the calibration document holds no gate; run `assay calibrate` again")
    for gate in document["gates"]:
        missing = [key for key in REQUIRED_OF_GATES if key not in gate]
        if missing:
            raise InputError(
                f"gate {gate.get('code', '?')} of the calibration document lacks {', '.join(missing)}; "
                "it is incomplete"
            )
    return document


def calibration_figure(report: HasRecord | Document, path: str | os.PathLike[str]) -> Path:
    """Write one picture of all gates: intervals around a line that is each gate's limit, and both verdicts.

    Args:
        report: What `assay.calibrate_all` returned, or its document.
        path: Ends in `.png` or `.svg`.

    Returns:
        The path written.

    Raises:
        InputError: Another ending, or something that is not a calibration.
        OutputError: The file cannot be written.
    """
    path = Path(path)
    ending = path.suffix.lstrip(".").lower()
    if ending not in ("png", "svg"):
        raise InputError(f"pictures are written as .png or .svg; got {path.name!r}")
    figure = calibration_figures.draw_gates(ordered(calibration_document(report)))
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": KIND}):
            figure.savefig(path, dpi=150, facecolor=figures.PAPER, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return path


def ordered(document: Document) -> list[Mapping[str, Any]]:
    """The gates in the order of the page, those unknown to it last."""
    places = {code: place for place, code in enumerate(RULES)}
    return sorted(document["gates"], key=lambda gate: places.get(str(gate["code"]), len(places)))


def calibration_view(report: HasRecord | Document, key: str) -> dict[str, Any]:
    """Everything the template of calibrations needs."""
    document = calibration_document(report)
    gates = ordered(document)
    model, task = document["model"].get("id", "a model"), document["task"].get("name", "its task")
    axes = calibration_figures.plot_gates(calibration_figures.rows(gates))
    return {
        "key": key,
        "kind": KIND,
        "calibration": document,
        "title": f"What can be trusted of the measurements on a circuit of {model} for {task}",
        "subject": calibration_words.subject_words(document),
        "verdict": calibration_words.overview(document),
        "caveats": calibration_words.caveats(document),
        "passes": _passes(document),
        "drawn": (document["task"].get("config") or {}).get("seed"),
        "picture": figures.to_svg(
            axes,
            key=f"{key}-gates",
            label="All checks around their limits; the numbers are in the rows below.",
        ),
        "gates": [_gate(gate, document, key) for gate in gates],
        "record": json.dumps(plain(document.get("provenance") or {}), indent=2, sort_keys=True),
    }


def _gate(gate: Document, document: Document, key: str) -> dict[str, Any]:
    """One row of the page and what unfolds below it."""
    verdict = gate["verdict"]
    shown = headline(gate)
    state = calibration_words.kind(verdict, shown)
    value, passes = calibration_words.number_line(shown)
    return {
        "id": f"{key}-{_plain_id(gate['code'])}",
        "code": gate["code"],
        "name": gate["name"],
        "question": gate["question"],
        "criterion": gate.get("criterion", ""),
        "kind": state,
        "class": state.replace(" ", "-"),
        "mark": calibration_words.KINDS[state],
        "published": calibration_words.published_words(str(verdict.get("published"))),
        "label": shown.label,
        "value": value,
        "passes": passes,
        "strip": calibration_figures.strip(shown, state),
        "undefined": shown.value is None,
        "meaning": calibration_words.meaning(gate, state),
        "scope": calibration_words.scope(gate),
        "next": calibration_words.advice(gate, document),
        "differs": calibration_words.disagreement(gate, state),
        "warnings": [calibration_words.warning(str(each)) for each in verdict.get("warnings") or ()],
        "parts": calibration_tables.parts(gate),
        "parts_left": calibration_tables.parts_left(gate),
        "unmeasured": calibration_tables.unmeasured(gate),
        "tables": calibration_tables.tables(gate, document),
        "heat": calibration_tables.heat(gate),
        "facts": calibration_tables.facts(gate),
        "interval": calibration_tables.interval_words(shown, verdict),
        "weakness": calibration_words.sentence(str(gate.get("weakness") or "")),
        "source": gate.get("source", ""),
    }


def _passes(document: Document) -> int | None:
    """Passes that filled the table, as whole passes where the document counts those, else forward passes."""
    table = document.get("table") or {}
    made = table.get("passes") or (table.get(MACHINE) or {}).get("passes") or {}  # apart in a store
    found = made.get("equivalents", made.get("forward"))
    return None if found is None else round(found)


def _plain_id(code: object) -> str:
    """Letters and digits of a code, for an id."""
    return "".join(each for each in str(code) if each.isascii() and each.isalnum()) or "gate"
