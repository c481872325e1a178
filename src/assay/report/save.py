"""Any result, or several, as one self-contained page; no model is needed for it."""

import importlib
import os
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from assay.circuits import write_atomically
from assay.core.errors import InputError, writing
from assay.core.measurement import Measurement
from assay.metrics.curve import FaithfulnessCurve
from assay.metrics.page import is_measurement, measurements_page
from assay.page.blocks import PAGES, Document, Note, Page, PageForm, Section, schema_of
from assay.page.text import bounded, record_text
from assay.report.circuit_page import curve_page
from assay.report.sweep import sweep_page
from assay.store import Store, StoredResult


# Where the page of each kind is made; it registers itself when its module is imported.
_MODULES = {
    "audit": "assay.pipeline.audit_page",
    "benchmark": "assay.analyses.benchmark.page",
    "calibration": "assay.analyses.calibration.page",
    "check": "assay.pipeline.check",
    "domain-evaluation": "assay.analyses.generalization.monitor_page",
    "monitor": "assay.analyses.generalization.monitor_page",
    "ranking": "assay.analyses.generalization.ranking_page",
    "ranking-comparison": "assay.analyses.generalization.ranking_page",
    "subset": "assay.analyses.subsets.page",
    "subset-path": "assay.analyses.subsets.page",
    "worst_case": "assay.analyses.worst_case.page",
}


def save_report(path: str | os.PathLike[str], *results: object) -> Path:
    """Write one self-contained HTML page about audits, rankings, subsets, monitors, measurements, or several.

    Args:
        path: The file to write (its directory is made if needed); replaced only when complete.
        results: What `assay.audit`, `assay.worst_case`, `assay.calibrate_all`, `assay.rank`,
            `assay.selection_path` returned, an `assay.Monitor` with readings, or the
            documents that they stored; a `Measurement` or a list of them make a table; a
            `Page` is taken as it is. A curve of `assay.faithfulness_curve` is shown with one of its circuits.

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
    with writing(f"make {path.parent} for the report", "choose another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, text.encode())


def render(*results: object) -> str:
    """The page as a string; see `save_report`."""
    from assay.page.html import render_pages

    flat = [one for each in results for one in (each if isinstance(each, list | tuple) else [each])]
    pages: list[Page] = []
    for measured, group in groupby(flat, key=lambda each: isinstance(each, Measurement)):
        for result in [[*group]] if measured else group:  # those one after another share a table
            pages += pages_of(result)
    if not pages:
        raise InputError("a report needs at least one audit result or measurement; got none")
    return render_pages(pages)


def pages_of(result: object) -> list[Page]:
    """What is shown of a result: one page, or several where it has parts with pages of their own."""
    if isinstance(result, Page):
        return [result]
    if isinstance(pages := getattr(result, "pages", None), list):
        return pages
    if isinstance(result, FaithfulnessCurve):
        return [curve_page(result)]
    if isinstance(result, list) and result and all(isinstance(each, Measurement) for each in result):
        return [measurements_page([bounded(each.to_dict()) for each in result])]
    # A subset has a record too, which leaves out what its page shows.
    made = getattr(result, "document", None) or getattr(result, "to_dict", lambda: result)
    document = made() if callable(made) else made
    if not isinstance(document, Mapping):
        raise InputError(
            f"cannot make a report from {type(result).__name__}. Pass audits, worst cases, calibrations, "
            "rankings, subsets, monitors, their documents, measurements or lists of measurements"
        )
    document = bounded(document)
    if is_measurement(document):
        return [measurements_page([document])]
    form = _form(document)
    parts = [document.get("worst_case"), document.get("calibration"), *(document.get("rankings") or ())]
    others = (page for part in parts if part and "schema" in part for page in pages_of(part))
    return [form.make(form.read(document)), *others]


def _form(document: Document) -> PageForm:
    """The form of a document by its kind; that of an audit names none."""
    kind = str(document.get("kind"))
    if kind not in PAGES:
        importlib.import_module(_MODULES.get(kind, _MODULES["audit"]))
    return PAGES[kind if kind in PAGES else "audit"]


def stored_pages(store: Store, result: StoredResult) -> list[Page]:
    """The pages of a stored result, or its record as one where its kind does not have a page."""
    if result.kind == "sweep":
        return [sweep_page(store, result.id)]
    document = {"kind": result.kind, **result.payload}  # the store knows the kind of what names none
    if is_measurement(document) or schema_of(document) == _form(document).schema:
        return pages_of(document)
    kind, record = result.kind.replace("_", " "), record_text(result.document())
    return [
        Page(
            kind=kind,
            title=f"{kind.capitalize()} {result.id}",
            lede="A result of this kind does not have its own page; this is its record.",
            sections=[Section(title="Record", blocks=[Note(text=record, style="code")])],
        )
    ]
