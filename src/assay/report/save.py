"""Any result, or several, as one self-contained page; no model is needed for it."""

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from assay.circuits import write_atomically
from assay.core.errors import InputError, OutputError
from assay.core.measurement import Measurement
from assay.metrics.page import is_measurement, measurements_page
from assay.page.blocks import Page
from assay.page.html import render_pages
from assay.page.text import bounded


VERDICT = {"status", "published", "values", "thresholds"}
Document = Mapping[str, Any]


@runtime_checkable
class HasDocument(Protocol):
    """A result that holds the document of its page."""

    @property
    def document(self) -> Document:
        """What the page is made from."""


@runtime_checkable
class HasRecord(Protocol):
    """A result that can write itself down, such as a `WorstCase`."""

    def to_dict(self) -> dict[str, Any]:
        """Its document, plain JSON."""


Reportable = HasDocument | HasRecord | Document | Measurement | Sequence[Measurement]


@dataclass(frozen=True, kw_only=True)
class PageForm:
    """A kind of document that has a page.

    Attributes:
        noun: What a message calls it.
        schema: The version that is read.
        again: What makes such a document anew.
        maker: Module and function that make its pages.
        required: Entries without which there is no page.
        relatives: What to do with documents of other schemas that look like it, by schema.
    """

    noun: str
    schema: str
    again: str
    maker: str
    required: tuple[str, ...]
    relatives: Mapping[str, str] = field(default_factory=dict)

    def check(self, document: Document) -> None:
        """Refuse another version, and a document that is incomplete.

        Raises:
            InputError: With what to do.
        """
        if advice := self.relatives.get(str(document.get("schema"))):
            raise InputError(advice)
        if document.get("schema") != self.schema:
            raise InputError(
                f"this {self.noun} has schema {document.get('schema')!r}; this version reads "
                f"{self.schema!r}: "
                f"run {self.again} again to make one"
            )
        if missing := [name for name in self.required if name not in document]:
            raise InputError(f"the document of the {self.noun} lacks {', '.join(missing)}; it is incomplete")

    def pages(self, document: Document) -> list[Page]:
        """What is shown of a document: its page, or its page and those of its parts."""
        module, _, name = self.maker.partition(":")
        make: Callable[[Document], Page] = getattr(importlib.import_module(module), name)
        return [make(document), *(page for part in _parts(document) for page in pages_of(part))]


_SELECTION = (
    "this is a stored selection without its data, so its page cannot be made; read it with "
    "`assay.load_subset(path, data)` and give that"
)
_SUBSET = PageForm(
    noun="subset",
    schema="assay-subset/1",
    again="`assay select`",
    maker="assay.analyses.subsets.page:subset_page",
    required=(
        "data",
        "interval_units",
        "split",
        "size",
        "rows",
        "full",
        "verdict",
        "null",
        "largest",
        "consistency",
        "composition",
        "prevalence",
        "replication",
        "halves",
        "models_needed",
        "models",
        "lines",
        "examples",
        "settings",
        "provenance",
    ),
    relatives={"assay-selection/1": _SELECTION, "assay-selection-path/1": _SELECTION},
)

# By the kind that a document names; that of an audit names none.
FORMS: Mapping[str, PageForm] = {
    "audit": PageForm(
        noun="audit document",
        schema="assay-audit/1",
        again="`assay audit`",
        maker="assay.report.audit:audit_page",
        required=(
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
        ),
    ),
    "worst_case": PageForm(
        noun="worst case",
        schema="assay-worst-case/1",
        again="`assay attack`",
        maker="assay.analyses.worst_case.page:worst_case_page",
        required=(
            "protocol",
            "independent",
            "n_pairs",
            "n_clean",
            "n_corrupted",
            "model",
            "task",
            "circuit",
            "unit",
            "divergence",
            "summary",
            "histogram",
            "certificates",
            "worst",
        ),
    ),
    "claim": PageForm(
        noun="result of a claim",
        schema="assay-claim-result/1",
        again="`assay claim`",
        maker="assay.analyses.claims.page:claim_page",
        required=(
            "claim",
            "hash",
            "registration",
            "tests",
            "replication",
            "evidence",
            "checklist",
            "tier",
            "tables",
        ),
    ),
    "monitor": PageForm(
        noun="monitor",
        schema="assay-monitor/1",
        again="`assay monitor`",
        maker="assay.analyses.generalization.monitor_page:monitor_page",
        required=(
            "model",
            "graph",
            "reference",
            "settings",
            "distance",
            "alpha",
            "level",
            "guarantee",
            "readings",
        ),
    ),
    "calibration": PageForm(
        noun="calibration",
        schema="assay-calibration/1",
        again="`assay calibrate`",
        maker="assay.analyses.calibration.page:calibration_page",
        required=("model", "task", "circuit", "table", "gates"),
    ),
    "comparison": PageForm(
        noun="comparison",
        schema="assay-comparison/1",
        again="`assay report --compare`",
        maker="assay.report.comparison_page:comparison_page",
        required=("a", "b", "circuits", "measurements", "changes", "level"),
    ),
    "overview": PageForm(
        noun="overview",
        schema="assay-overview/1",
        again="`assay report`",
        maker="assay.report.overview_page:overview_page",
        required=("of", "name", "n_results", "n_measurements", "measurements", "metrics", "others", "gates"),
    ),
    "ranking": PageForm(
        noun="ranking",
        schema="assay-ranking/1",
        again="`assay rank`",
        maker="assay.analyses.generalization.page:ranking_page",
        required=(
            "target",
            "measure",
            "models",
            "performance",
            "metrics",
            "absent",
            "layers",
            "motif",
            "costs",
            "provenance",
        ),
    ),
    "ranking-comparison": PageForm(
        noun="comparison of rankings",
        schema="assay-ranking-comparison/1",
        again="`assay rank`",
        maker="assay.analyses.generalization.page:ranking_comparison_page",
        required=("datasets", "metrics", "motif", "rankings", "provenance"),
    ),
    "subset": _SUBSET,
    "subset-path": replace(_SUBSET, schema="assay-subset-path/1"),
}


def _parts(document: Document) -> list[Document]:
    """Documents inside a document that have pages of their own."""
    parts = [document.get("worst_case"), document.get("calibration"), *(document.get("rankings") or ())]
    return [part for part in parts if part and "schema" in part]


def save_report(path: str | os.PathLike[str], *results: Reportable) -> Path:
    """Write one self-contained HTML page about audits, rankings, subsets, monitors, measurements, or several.

    Args:
        path: The file to write (its directory is made if needed); replaced only when complete.
        results: What `assay.audit`, `assay.worst_case`, `assay.calibrate_all`, `run_claim`, `assay.rank`,
            `assay.oodselect` or `assay.selection_path` returned, an `assay.Monitor` with readings, or the
            documents that they stored; a `Measurement` or a list of them make a table.

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


def render(*results: Reportable, served: bool = False) -> str:
    """The page as a string; see `save_report`.

    Args:
        results: As for `save_report`.
        served: For `assay serve`: ids become links of the site.
    """
    if not results:
        raise InputError("a report needs at least one audit result or measurement; got none")
    return render_pages([page for group in _grouped(results) for page in pages_of(group)], served=served)


def pages_of(result: HasDocument | HasRecord | Document | list[Measurement]) -> list[Page]:
    """What is shown of a result: one page, or several where it has parts with pages of their own."""
    if isinstance(result, list):
        return [measurements_page([bounded(each.to_dict()) for each in result])]
    document = bounded(_document(result))
    if is_measurement(document):
        return [measurements_page([document])]
    return FORMS[_kind(document)].pages(document)


def _grouped(results: Sequence[Reportable]) -> list[HasDocument | HasRecord | Document | list[Measurement]]:
    """Measurements given one after another share a table."""
    groups: list[HasDocument | HasRecord | Document | list[Measurement]] = []
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
    if is_measurement(document):
        return document
    if "schema" not in document and document.keys() >= VERDICT:
        raise InputError(
            f"a report needs whole calibrations; got one verdict alone (status {document['status']!r}), "
            "without its gate and circuit. Give the result of `assay.calibrate_all`; gates=[...] makes it "
            "judge single gates"
        )
    FORMS[_kind(document)].check(document)
    return document


def _kind(document: Document) -> str:
    kind = document.get("kind")
    return kind if isinstance(kind, str) and kind in FORMS else "audit"


def is_reportable(document: Document) -> bool:
    """Whether `save_report` makes a page of a document."""
    schemas = {form.schema for form in FORMS.values()}
    return is_measurement(document) or document.get("schema") in schemas


def _refused(result: object) -> InputError:
    return InputError(
        f"cannot make a report from {type(result).__name__}. Pass audits, worst cases, calibrations, "
        "claims, rankings, subsets, monitors, their documents, measurements or lists of measurements"
    )
