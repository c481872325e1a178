"""One self-contained page from stored results: inline styles, script and pictures, no network, no model."""

import difflib
import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jinja2

from assay.circuits import write_atomically
from assay.errors import InputError, OutputError
from assay.measurement import Measurement, plain
from assay.report import figures, tail_words, words
from assay.report.adversarial import HasRecord, is_worst_case, worst_case_view
from assay.report.calibration import calibration_view, is_calibration
from assay.report.claim_page import claim_view, is_claim
from assay.report.layout import circuit_layout
from assay.report.monitor_page import is_monitor, monitor_view
from assay.report.rank_page import is_ranking, ranking_views
from assay.report.subset_page import SUBSETS, is_subset, subset_view


SCHEMA = "assay-audit/1"
LISTED_WORDS = 6
REQUIRED = (
    "title",
    "model",
    "task",
    "discovery",
    "graph",
    "method",
    "edges",
    "curve",
    "circuit",
    "measurements",
    "topk",
    "per_layer",
    "per_head",
    "provenance",
)
VERDICT = {"status", "published", "values", "thresholds"}
Document = Mapping[str, Any]


@runtime_checkable
class HasDocument(Protocol):
    """A result that holds its own audit document."""

    @property
    def document(self) -> Document:
        """The audit document."""


Reportable = HasDocument | HasRecord | Document | Measurement | Sequence[Measurement]


def save_report(path: str | os.PathLike[str], *results: Reportable) -> Path:
    """Write one self-contained HTML page about audits, rankings, subsets, monitors, measurements, or several.

    Args:
        path: The file to write (its directory is made if needed); replaced only when complete.
        results: What `assay.audit`, `assay.worst_case`, `assay.calibrate_all`, `assay.claims.run_claim`,
            `assay.rank`, `assay.oodselect` or `assay.selection_path` returned, an `assay.Monitor` with
            readings, or the documents that they stored; a `Measurement` or a list of them make a table.

    Returns:
        The path written.

    Raises:
        InputError: If nothing is given, or something else.
        OutputError: If the file cannot be written; an old file is then left as it was.

    Notes:
        The page holds its styles, script and pictures; it asks the network for nothing.
    """
    path = Path(path)
    text = render(*results)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot make {path.parent} for the report: {error.strerror}; choose another place"
        ) from error
    return write_atomically(path, text.encode())


def render(*results: Reportable) -> str:
    """The page as a string; see `save_report`."""
    if not results:
        raise InputError("a report needs at least one audit result or measurement; got none")
    views = [
        view
        for place, result in enumerate(_grouped(results), start=1)
        for view in _views(result, f"r{place}")
    ]
    environment = _environment()
    loader = environment.loader
    assert loader is not None
    page = environment.get_template("report.html").render(
        views=views,
        style=loader.get_source(environment, "report.css")[0],
        script=loader.get_source(environment, "report.js")[0],
        words=words,
    )
    return re.sub(r"\n\s*\n+", "\n", page)


@functools.cache
def _environment() -> jinja2.Environment:
    """The templates, compiled once."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=words.number,
        percent=words.percent,
        interval=lambda pair: words.interval(*pair),
        field_name=tail_words.field_name,
        significant=tail_words.significant,
    )
    return environment


def _grouped(results: Sequence[Reportable]) -> list[HasDocument | HasRecord | Document | list[Measurement]]:
    """Measurements given one after another share a table."""
    groups: list[HasDocument | HasRecord | Document | list[Measurement]] = []
    for result in results:
        if not isinstance(result, Measurement | Sequence):
            groups.append(result)
            continue
        found = [result] if isinstance(result, Measurement) else [*result]
        if not found:
            raise InputError("one of the lists of measurements is empty; leave it out")
        for each in found:
            if not isinstance(each, Measurement):
                raise _refused(each)
        if groups and isinstance(groups[-1], list):
            groups[-1] += found
        else:
            groups.append(found)
    return groups


def _refused(result: object) -> InputError:
    return InputError(
        "a report is made from audits, worst cases, calibrations, claims, rankings, subsets, monitors, their "
        "documents, measurements and lists of measurements; "
        f"got {type(result).__name__}, which is none of these"
    )


def _views(result: HasDocument | HasRecord | Document | list[Measurement], key: str) -> list[dict[str, Any]]:
    """What the template shows of a result: one article, or an audit's and those of its further parts."""
    if isinstance(result, list):
        return [_measurements_view(result, key)]
    document = _document(result)
    if is_worst_case(document):
        return [worst_case_view(document, key)]
    if is_calibration(document):
        return [calibration_view(document, key)]
    if is_claim(document):
        return [claim_view(document, key)]
    if is_monitor(document):
        return [monitor_view(document, key)]
    if is_ranking(document):
        return ranking_views(document, key)
    if is_subset(document):
        return [subset_view(document, key)]
    views = [_audit_view(document, key)]
    if worst := document.get("worst_case"):
        views.append(worst_case_view(worst, f"{key}-worst"))
    if calibration := document.get("calibration"):
        views.append(calibration_view(calibration, f"{key}-calibration"))
    return views


def _measurements_view(found: list[Measurement], key: str) -> dict[str, Any]:
    records = [each.to_dict() for each in found]
    tasks = {str((each.provenance.get("task") or {}).get("name") or "") for each in found}
    models = {str((each.provenance.get("model") or {}).get("id") or "") for each in found}
    rows = []
    for measured, record in zip(found, records, strict=True):
        task = (measured.provenance.get("task") or {}).get("name")
        named = record | {"name": f"{record['name']} on {task}"} if task and len(tasks) > 1 else record
        rows += _measurement_rows(named)
    where = [" and ".join(sorted(names - {""})) for names in (tasks, models)]
    title = "Measurements" + "".join(
        f" {word} {names}" for word, names in zip(("on", "in"), where, strict=True) if names
    )
    return {
        "key": key,
        "title": title,
        "rows": rows,
        "records": [
            {
                "name": record["name"],
                "hash": measured.id_hash,
                "text": json.dumps(plain(measured.provenance), indent=2, sort_keys=True),
            }
            for measured, record in zip(found, records, strict=True)
        ],
    }


def _document(result: HasDocument | HasRecord | Document) -> Document:
    document: object = result
    if isinstance(result, SUBSETS):  # they have a record too, which leaves out what a page shows
        document = result.document
    elif isinstance(result, HasRecord):
        document = result.to_dict()
    elif isinstance(result, HasDocument):
        document = result.document
    if not isinstance(document, Mapping):
        raise _refused(result)
    if any(known(document) for known in _KNOWN):
        return document
    if "schema" not in document and document.keys() >= VERDICT:
        raise InputError(
            "a report is made from calibrations as a whole; got one verdict alone "
            f"(status {document['status']!r}), which names neither its gate nor the circuit: give what "
            "`assay.calibrate_all` returns; gates=[...] makes it judge single gates"
        )
    if document.get("schema") != SCHEMA:
        raise InputError(
            f"this document has schema {document.get('schema')!r}; this version reads {SCHEMA!r}: "
            "run `assay audit` again to make one"
        )
    missing = [key for key in REQUIRED if key not in document]
    if missing:
        raise InputError(f"the audit document lacks {', '.join(missing)}; it is incomplete")
    return document


_KNOWN = (is_worst_case, is_calibration, is_claim, is_monitor, is_ranking, is_subset)


def _audit_view(document: Document, key: str) -> dict[str, Any]:
    curve, agreement = figures.curve_data(document), figures.agreement_data(document)
    layers, heads = figures.layer_data(document), figures.head_data(document)
    layout = circuit_layout(document)
    kept = [edge.get("kept", False) for edge in document["edges"]]
    on = {0, len(layout.nodes) - 1}
    for edge, keep in zip(layout.edges, kept, strict=True):
        if keep:
            on |= {edge.source, *edge.feeds}
    return {
        "key": key,
        "title": document["title"],
        "document": document,
        "verdict": words.verdict(document),
        "caveats": words.caveats(document),
        "examples": [_example(example) for example in document["task"].get("examples", [])],
        "layout": layout,
        "kept": kept,
        "on": on,
        "script_data": {
            "size": document["circuit"]["size"],
            "total": document["graph"]["n_edges"],
            "nodes": [node.name for node in layout.nodes],
            "edges": [[edge.source, list(edge.feeds), edge.target_name, edge.score] for edge in layout.edges],
            "curve": {"n_edges": curve.n_edges, "values": document["curve"]["values"]},
        },
        "curve": curve,
        "agreement": agreement,
        "layers": layers,
        "heads": heads,
        "pictures": {
            name: figures.to_svg(axes, key=f"{key}-{name}", label=f"{label}; the numbers are in the table.")
            for name, axes, label in (
                (
                    "curve",
                    figures.plot_curve(curve),
                    f"Faithfulness against circuit size on {curve.n} prompts",
                ),
                (
                    "agreement",
                    figures.plot_agreement(agreement),
                    f"Top-K agreement of circuit and model on {agreement.n} prompts",
                ),
                ("heads", figures.plot_matrix(heads), "Attribution of each head, signed"),
                (
                    "layers",
                    figures.plot_matrix(layers, percent=True),
                    "Share of all attribution between each writing and reading layer",
                ),
            )
        },
        "rows": [row for measurement in document["measurements"] for row in _measurement_rows(measurement)],
        "record": json.dumps(document["provenance"].get("record", {}), indent=2, sort_keys=True),
    }


def _example(example: Document) -> dict[str, Any]:
    clean, corrupted = example["clean"], example["corrupted"]
    return {
        "clean": _changed_words(clean, corrupted),
        "corrupted": _changed_words(corrupted, clean),
        "answers": _shortened(example.get("answers", [])),
        "wrong": _shortened(example.get("wrong", [])),
        "margin": example.get("margin"),
    }


def _shortened(found: Sequence[object]) -> list[str]:
    """Words as they are, or the first and the last few of many."""
    listed = [str(word) for word in found]
    if len(listed) <= LISTED_WORDS:
        return listed
    return [*listed[:3], "\N{HORIZONTAL ELLIPSIS}", listed[-1], f"({len(listed)} in all)"]


def _changed_words(text: str, other: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it differs from the other prompt."""
    pieces, others = re.findall(r"\s+|\w+|[^\w\s]", text), re.findall(r"\s+|\w+|[^\w\s]", other)
    result = []
    for tag, start, stop, _, _ in difflib.SequenceMatcher(None, pieces, others, autojunk=False).get_opcodes():
        if stop > start:
            result.append(("".join(pieces[start:stop]), tag != "equal"))
    return result


def _measurement_rows(measurement: Document) -> list[dict[str, Any]]:
    """A measurement and its parts, less one that is the measurement itself."""
    parts = measurement.get("parts") or {}
    listed = [(measurement["name"], measurement)]
    for name, part in parts.items():
        if part.get("statistic") is None or part["statistic"] != measurement.get("statistic"):
            listed.append((f"{measurement['name']}: {name}", part))
    return [_measurement_row(name, each) for name, each in listed]


def _measurement_row(name: str, measurement: Document) -> dict[str, Any]:
    interval = measurement.get("interval") or {}
    digits = words.precision(interval.get("low"), interval.get("high"))
    mark, status = words.STATUSES.get(measurement.get("status") or "none", words.STATUSES["none"])
    return {
        "id": measurement["id"],
        "name": name.replace("-", " "),
        "value": measurement.get("value"),
        "shown": words.number(measurement.get("value"), digits),
        "interval": words.interval(interval.get("low"), interval.get("high"), digits),
        "method": interval.get("method"),
        "no_interval": str(interval.get("reason") or "").replace("_", " "),
        "random": ((measurement.get("baseline") or {}).get("random") or {}).get("value"),
        "n": measurement.get("n"),
        "n_excluded": measurement.get("n_excluded", 0),
        "unit": words.UNITS.get(measurement.get("unit") or "", measurement.get("unit") or ""),
        "direction": words.DIRECTIONS.get(measurement.get("direction") or "report", ""),
        "mark": mark,
        "status": status,
        "meaning": words.meaning(measurement),
        "warnings": [str(code).replace("_", " ") for code in measurement.get("warnings") or ()],
        "reason": words.reason(measurement) if measurement.get("value") is None else "",
        "strip": figures.strip_data(measurement),
    }
