"""One self-contained page from stored results: inline styles, script and pictures, no network, no model."""

import base64
import functools
import hashlib
import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jinja2

from assay.circuits import write_atomically
from assay.core.errors import InputError, OutputError
from assay.core.measurement import Measurement
from assay.report import tail_words, words
from assay.report.adversarial import HasRecord, is_worst_case, worst_case_view
from assay.report.audit_page import SCHEMA, audit_view
from assay.report.bounds import PAGE_LIMIT, bounded, cut_text
from assay.report.calibration import calibration_view, is_calibration
from assay.report.claim_page import claim_view, is_claim
from assay.report.comparison_page import comparison_view, is_comparison
from assay.report.measurement_page import is_measurement, measurements_view
from assay.report.monitor_page import is_monitor, monitor_view
from assay.report.overview_page import is_overview, overview_view
from assay.report.rank_page import is_ranking, ranking_views
from assay.report.subset_page import SUBSETS, is_subset, subset_view


ROOM_FOR_FRAME = 100_000  # bytes for styles, script and titles
TITLES = 8  # of several results named in the title
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


_DRAWING = threading.RLock()  # settings of Matplotlib are of the whole process


def render(*results: Reportable, served: bool = False) -> str:
    """The page as a string; see `save_report`.

    Args:
        results: As for `save_report`.
        served: For `assay serve`: ids become links of the site.
    """
    if not results:
        raise InputError("a report needs at least one audit result or measurement; got none")
    with _DRAWING:
        views = [
            view
            for place, result in enumerate(_grouped(results), start=1)
            for view in _views(result, f"r{place}")
        ]
    articles, room = [], PAGE_LIMIT - ROOM_FOR_FRAME
    for place, view in enumerate(views):
        article = _article(view, served=served)
        if len(article.encode()) > room:
            articles.append(_left_out(views[place:], alone=place == 0))
            break
        articles.append(article)
        room -= len(article.encode())
    title = " \N{MIDDLE DOT} ".join(str(view["title"]) for view in views[:TITLES])
    return page("\n".join(articles), title=title, served=served)


def _article(view: Mapping[str, Any], *, served: bool) -> str:
    """One article of a page."""
    made = environment().get_template("article.html").render(view=view, words=words, served=served)
    return re.sub(r"\n\s*\n+", "\n", made)


def _left_out(views: Sequence[Mapping[str, Any]], *, alone: bool) -> str:
    """The note in place of articles that would make the page too large."""
    return (
        environment()
        .get_template("left_out.html")
        .render(
            titles=[view["title"] for view in views[:TITLES]],
            n=len(views),
            alone=alone,
            limit=PAGE_LIMIT // 1_000_000,
        )
    )


def page(body: str, *, title: str, served: bool = False) -> str:
    """A whole page around its articles: styles and script inside, everything else forbidden.

    Args:
        body: HTML that is safe to show.
        title: Text of the window's title.
        served: With the navigation of `assay serve`.
    """
    style, script = _source("report.css"), _source("report.js")
    return (
        environment()
        .get_template("report.html")
        .render(
            body=_numbered(body),
            title=cut_text(title),
            style=style,
            script=script,
            served=served,
            policy=content_policy(),
        )
    )


def _numbered(body: str) -> str:
    """The captions of a page numbered in its order, whatever parts it is made of."""
    counts = {"Figure": 0, "Table": 0}

    def number(match: re.Match[str]) -> str:
        counts[match[1]] += 1
        return f"<b>{match[1]} {counts[match[1]]}.</b>"

    return re.sub(r"<b>(Figure|Table) [0-9]+\.</b>", number, body)


@functools.cache
def _source(name: str) -> str:
    """Text of a template that is not a template."""
    templates = environment()
    assert templates.loader is not None
    return templates.loader.get_source(templates, name)[0]


@functools.cache
def content_policy() -> str:
    """The pages' Content-Security-Policy: nothing remote, and no script but the one of the page itself."""
    digest = hashlib.sha256(f"\n{_source('report.js')}\n".encode()).digest()
    script = f"'sha256-{base64.b64encode(digest).decode()}'"
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {script}; img-src data:; "
        "base-uri 'none'; form-action 'self'"
    )


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, compiled once."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        number=words.number,
        percent=words.percent,
        interval=lambda pair: words.interval(*pair),
        field_name=tail_words.field_name,
        significant=tail_words.significant,
    )
    return templates


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
        return [measurements_view([bounded(each.to_dict()) for each in result], key)]
    document = bounded(_document(result))
    if is_measurement(document):
        return [measurements_view([document], key)]
    for known, view in _ONE_ARTICLE:
        if known(document):
            return [view(document, key)]
    if is_ranking(document):
        return ranking_views(document, key)
    views = [audit_view(document, key)]
    if worst := document.get("worst_case"):
        views.append(worst_case_view(worst, f"{key}-worst"))
    if calibration := document.get("calibration"):
        views.append(calibration_view(calibration, f"{key}-calibration"))
    return views


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


_ONE_ARTICLE = (
    (is_worst_case, worst_case_view),
    (is_calibration, calibration_view),
    (is_claim, claim_view),
    (is_monitor, monitor_view),
    (is_subset, subset_view),
    (is_overview, overview_view),
    (is_comparison, comparison_view),
)
_KNOWN = (is_ranking, is_measurement, *(known for known, _ in _ONE_ARTICLE))
