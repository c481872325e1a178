"""Any result, or several, as one self-contained page; no model is needed for it."""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from assay.circuits import write_atomically
from assay.core.errors import InputError, writing
from assay.core.measurement import Measurement
from assay.metrics.page import is_measurement, measurements_page
from assay.page.blocks import Page
from assay.page.form import PAGES, Document, PageForm, schema_of
from assay.page.text import bounded


VERDICT = {"status", "published", "values", "thresholds"}


@runtime_checkable
class HasDocument(Protocol):
    """A result that holds the document of its page."""

    @property
    def document(self) -> Document:
        """What the page is made from."""


@runtime_checkable
class HasPages(Protocol):
    """A result whose pages are made once."""

    @property
    def pages(self) -> list[Page]:
        """Its page, then those of its parts."""


@runtime_checkable
class HasRecord(Protocol):
    """A result that can write itself down, such as a `WorstCase`."""

    def to_dict(self) -> dict[str, Any]:
        """Its document, plain JSON."""


# What one page, or several, are about.
Subject = HasPages | HasDocument | HasRecord | Document | Page | list[Measurement]
Reportable = HasPages | HasDocument | HasRecord | Document | Page | Measurement | Sequence[Measurement]


# Where the page of each kind is made; it registers itself when its module is imported.
_MODULES = {
    "audit": "assay.pipeline.audit_page",
    "calibration": "assay.analyses.calibration.page",
    "circuit-view": "assay.report.circuit_page",
    "domain-evaluation": "assay.analyses.generalization.evaluation_page",
    "monitor": "assay.analyses.generalization.monitor_page",
    "ranking": "assay.analyses.generalization.page",
    "ranking-comparison": "assay.analyses.generalization.comparison_page",
    "subset": "assay.analyses.subsets.page",
    "subset-path": "assay.analyses.subsets.page",
    "worst_case": "assay.analyses.worst_case.page",
}


def _parts(document: Document) -> list[Document]:
    """Documents inside a document that have pages of their own."""
    parts = [document.get("worst_case"), document.get("calibration"), *(document.get("rankings") or ())]
    return [part for part in parts if part and "schema" in part]


def save_report(path: str | os.PathLike[str], *results: Reportable) -> Path:
    """Write one self-contained HTML page about audits, rankings, subsets, monitors, measurements, or several.

    Args:
        path: The file to write (its directory is made if needed); replaced only when complete.
        results: What `assay.audit`, `assay.worst_case`, `assay.calibrate_all`, `assay.rank`,
            `assay.oodselect` or `assay.selection_path` returned, an `assay.Monitor` with readings, or the
            documents that they stored; a `Measurement` or a list of them make a table; a
            `Page` is taken as it is.

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


def render(*results: Reportable, served: bool = False) -> str:
    """The page as a string; see `save_report`.

    Args:
        results: As for `save_report`.
        served: For `assay serve`: ids become links of the site.
    """
    if not results:
        raise InputError("a report needs at least one audit result or measurement; got none")
    from assay.page.html import render_pages

    return render_pages([page for group in _grouped(results) for page in pages_of(group)], served=served)


def pages_of(result: Subject) -> list[Page]:
    """What is shown of a result: one page, or several where it has parts with pages of their own."""
    if isinstance(result, Page):
        return [result]
    if isinstance(result, HasPages):
        return result.pages
    if isinstance(result, list):
        return [measurements_page([bounded(each.to_dict()) for each in result])]
    document = bounded(_document(result))
    if is_measurement(document):
        return [measurements_page([document])]
    return [page_of(document), *(page for part in _parts(document) for page in pages_of(part))]


def page_of(document: Document) -> Page:
    """The page of a document, its texts cut to a length already, without those of its parts."""
    form = _form(document)
    return form.make(form.read(document))


def _grouped(
    results: Sequence[Reportable],
) -> list[Subject]:
    """Measurements given one after another share a table."""
    groups: list[Subject] = []
    for result in results:
        if not isinstance(result, Measurement | Sequence):
            groups.append(result)
            continue
        measurements = [result] if isinstance(result, Measurement) else [*result]
        if not measurements:
            raise InputError("one of the lists of measurements is empty; remove it")
        for each in measurements:
            if not isinstance(each, Measurement):
                raise _refused(each)
        if groups and isinstance(groups[-1], list):
            groups[-1] += measurements
        else:
            groups.append(measurements)
    return groups


def _document(result: HasDocument | HasRecord | Document) -> Document:
    """The document of a result, checked."""
    document: object = None
    if isinstance(result, HasDocument):  # a subset has a record too, which leaves out what its page shows
        document = result.document
    if document is None:
        document = result.to_dict() if isinstance(result, HasRecord) else result
    if not isinstance(document, Mapping):
        raise _refused(result)
    if "schema" not in document and not is_measurement(document) and document.keys() >= VERDICT:
        raise InputError(
            f"a report needs whole calibrations; got one verdict alone (status {document['status']!r}), "
            "without its gate and circuit. Give the result of `assay.calibrate_all`; gates=[...] makes it "
            "judge single gates"
        )
    return document


def _form(document: Document) -> PageForm:
    """The form of a document by its kind; that of an audit names none."""
    kind = document.get("kind")
    if not isinstance(kind, str) or (kind not in _MODULES and kind not in PAGES):
        kind = "audit"
    if kind in _MODULES:
        importlib.import_module(_MODULES[kind])
    return PAGES[kind]


def is_reportable(document: Document) -> bool:
    """Whether `save_report` makes a page of a document."""
    return is_measurement(document) or schema_of(document) == _form(document).schema


def _refused(result: object) -> InputError:
    return InputError(
        f"cannot make a report from {type(result).__name__}. Pass audits, worst cases, calibrations, "
        "rankings, subsets, monitors, their documents, measurements or lists of measurements"
    )
