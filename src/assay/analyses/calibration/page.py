"""Calibrations as a page: sixteen gates, each with both verdicts, its number as a picture, and what to do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.analyses.calibration import page_parts, page_summary, page_tables, page_words, plots, strips
from assay.analyses.calibration.battery import SCHEMA, CalibrationReport
from assay.analyses.calibration.gate import GATES
from assay.analyses.calibration.judges import JUDGES
from assay.analyses.calibration.names import sentence
from assay.analyses.calibration.quantity import Judged
from assay.analyses.calibration.reasons import warning
from assay.core.errors import InputError
from assay.core.record import MACHINE
from assay.page.blocks import (
    Block,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Page,
    Section,
    Table,
    columns,
    folded_record,
)
from assay.page.form import PAGES, PageForm
from assay.page.text import (
    NARROW,
    Text,
    bold,
    code,
    italic,
    model_text,
    number,
    percent,
    plural,
    quiet,
    task_text,
)


KIND = "calibration"
REQUIRED_OF_GATES = ("key", "code", "name", "question", "on_pass", "on_fail", "verdict")
Document = Mapping[str, Any]


def calibration_document(report: CalibrationReport | Document) -> Document:
    """The document of calibrations, complete.

    Args:
        report: What `assay.calibrate_all` returned, or what its `to_dict` gave.

    Raises:
        InputError: Something else, or a document that lacks a part.
    """
    document: Document = report.to_dict() if isinstance(report, CalibrationReport) else report
    if document.get("kind") != KIND:
        raise InputError(
            f"expected calibrations, as `assay.calibrate_all` returns them; got kind {document.get('kind')!r}"
        )
    document = _FORM.read(document)
    if not document["gates"]:
        raise InputError("the calibration document has no gates; run `assay calibrate` again")
    for gate in document["gates"]:
        missing = [key for key in REQUIRED_OF_GATES if key not in gate]
        if missing:
            raise InputError(
                f"gate {gate.get('code', '?')} of the calibration document lacks {', '.join(missing)}; "
                "it is incomplete"
            )
    return document


def ordered(document: Document) -> list[Mapping[str, Any]]:
    """The gates in the order of the page, those unknown to it last."""
    places = {GATES[key].code: place for place, key in enumerate(JUDGES)}
    return sorted(document["gates"], key=lambda gate: places.get(str(gate["code"]), len(places)))


def calibration_page(report: CalibrationReport | Document) -> Page:
    """Everything that is shown of calibrations."""
    document = calibration_document(report)
    gates = ordered(document)
    return Page(
        kind="calibrations",
        title=page_summary.title(document),
        subject=page_summary.subject_words(document),
        verdict=page_summary.overview(document),
        caveats=page_summary.caveats(document),
        lede=(
            "Each check tests whether a number about the circuit can be trusted. ",
            italic("With confidence"),
            ": the verdict holds for every value that these prompts leave possible; otherwise it is "
            "inconclusive. It is wrong at most one time in twenty for values per prompt that are normal, t "
            "(5) or exponential, also at the limit. ",
            italic("Published rule"),
            ": the framework’s limit applied to the point estimate. There is no overall score: a failed "
            "check forbids the use that it guards, and other checks do not compensate for it.",
        ),
        sections=[
            Section(title="All checks at a glance", blocks=[_glance(gates)]),
            Section(title="The checks one by one", blocks=[_checks(gates, document)]),
        ],
        facts=list(_facts(document)),
        records=list(_records(document)),
        style="calibration",
    )


def _glance(gates: Sequence[Document]) -> Figure:
    return Figure(
        draw=lambda: plots.plot_gates(plots.gate_lines(gates)),
        label="All checks around their limits; the numbers are in the rows below.",
        caption="Every check on its own scale, oriented so that its limit is the line in the middle and "
        "passing is to the right; distances are in units of the limit and compressed to fit. Bars are "
        f"90{NARROW}% intervals: one that crosses the line leaves the check open. Blue passes, vermilion "
        "fails, black lies between, grey is open.",
        name="gates",
    )


def _checks(gates: Sequence[Document], document: Document) -> Interactive:
    """All gates; in a terminal a row each: both verdicts, the number and where it would pass."""
    checks, rows, advice = [], [], []
    for gate in gates:
        check, steps = _check(gate, document)
        checks.append(check)
        numbers = [" ".join(check["status"]), " ".join(check["published"]), check["value"]]
        passes = "; ".join(filter(None, (check["judged"].label, check["passes"])))
        rows.append([gate["code"], gate["name"], *numbers, passes])
        if steps:
            advice.append(Note(text=f"{gate['code']}: {' '.join(steps)}"))
    names = columns("", "check", "with confidence", "published", "number", "of what")
    return Interactive(
        template="checks.html",
        values={"checks": checks, "legend": strips.legend()},
        blocks=[Table(columns=names, rows=rows), *advice],
    )


def _check(gate: Document, document: Document) -> tuple[Document, Sequence[str]]:
    """What the template shows of one gate, and what to do about it."""
    verdict, judged = gate["verdict"], page_words.judged_of(gate["verdict"])
    value, passes = page_words.number_line(judged)
    undefined, parts = judged.value is None, page_parts.parts(gate)
    advice = page_words.advice(gate, document)
    lacking, steps = (advice[:1], advice[1:]) if undefined else ([], advice)
    notes = [
        Note(text=judged.sentence),
        Note(text=page_words.scope(gate), style="quiet"),
        Note(text=(bold("Next."), " ", " ".join(steps)) if steps else ""),
        Note(text=page_words.disagreement(gate), style="quiet"),
        *(Note(text=warning(str(each)), style="warning") for each in verdict.get("warnings") or ()),
    ]
    check = {
        "key": _plain_id(gate["code"]),
        "gate": gate,
        "judged": judged,
        "status": page_words.KINDS.get(judged.state, page_words.KINDS["none"]),
        "published": page_words.published_words(judged.published),
        "value": "" if undefined else value,
        "passes": passes,
        "drawing": strips.strip(judged),
        "lacking": "".join(lacking),
        "words": [note for note in notes if note.text],
        "summary": f"{plural(len(parts[0].rows), 'part')}, all numbers" if parts else "All numbers",
        "more": [
            *parts,
            *page_tables.numbers(gate, document),
            Note(text=_sources(gate, judged), style="quiet note"),
        ],
    }
    return check, advice


def _sources(gate: Document, judged: Judged) -> str:
    """How the interval came about, what the published form lacks, and where it is from."""
    weakness, interval = sentence(str(gate.get("weakness") or "")), judged.interval
    own = interval if interval is not None and not judged.part else None
    parts = [
        f"Interval: {percent(own.level)}, method {own.method}." if own else "",
        f"Weakness of the published form: {weakness}" if weakness else "",
        f"Criterion: {gate['criterion']}." if gate.get("criterion") else "",
        f"Source: {gate['source']}." if gate.get("source") else "",
    ]
    return " ".join(part for part in parts if part)


def _facts(document: Document) -> Iterator[tuple[str, Text]]:
    circuit, task, table = document["circuit"], document["task"], document["table"]
    if "id" in document:
        yield "result", code(document["id"])
    k, n_edges = circuit.get("k"), circuit.get("n_edges")
    size = "" if k is None else f"{number(k)} heads"
    size += "" if n_edges is None else f", {number(n_edges)} edges"
    yield "circuit", (f"{circuit.get('name') or ''} ", quiet(size), " ", code(circuit.get("hash", "")))
    yield "model", model_text(document["model"])
    seed = (task.get("config") or {}).get("seed")
    yield "task", task_text(task, "" if seed is None else f"drawn with seed {seed}")
    pool = f"pool of {number(table['n_pool'])}" if table.get("n_pool") else ""
    yield "prompts", (number(table["n_prompts"]) if "n_prompts" in table else "", " ", quiet(pool))
    if document.get("seed") is not None:
        yield "resampling", f"seed {document['seed']}"
    columns = table.get("columns", (table.get(MACHINE) or {}).get("columns"))
    passes = _passes(document)
    yield (
        "table",
        (
            "" if columns is None else f"{number(len(columns))} columns ",
            "" if passes is None else (quiet(f"{number(passes)} passes to fill it"), " "),
            code(table.get("hash", "")),
        ),
    )
    if document.get("against"):
        yield "against", ", ".join(document["against"])
    if document.get("seconds") is not None:
        yield "took", f"{number(float(document['seconds']), 1)} s"


def _records(document: Document) -> Iterator[Block]:
    if missing := document.get("missing"):
        yield Details(
            summary=f"{plural(len(missing), 'column')} could not be measured",
            blocks=[Facts(facts=list(missing.items()))],
        )
    yield folded_record("Provenance", document.get("provenance") or {})


def _passes(document: Document) -> int | None:
    """Passes that filled the table, as whole passes where the document counts those, else forward passes."""
    table = document.get("table") or {}
    made = table.get("passes") or (table.get(MACHINE) or {}).get("passes") or {}  # apart in a store
    found = made.get("equivalents", made.get("forward"))
    return None if found is None else round(found)


def _plain_id(code: object) -> str:
    """Letters and digits of a code, for an id."""
    return "".join(each for each in str(code) if each.isascii() and each.isalnum()) or "gate"


_FORM = PAGES.add(
    KIND,
    PageForm(noun="calibration", schema=SCHEMA, again="`assay calibrate`", make=calibration_page),
)
