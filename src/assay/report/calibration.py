"""Calibrations as a page: sixteen gates, each with both verdicts, its number as a picture, and what to do."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from matplotlib import rc_context

from assay.core.errors import InputError, OutputError
from assay.core.record import MACHINE, plain
from assay.page.blocks import (
    Block,
    Code,
    Column,
    Custom,
    Details,
    Facts,
    Figure,
    Heading,
    HeatCell,
    HeatMap,
    Note,
    Page,
    Section,
    Table,
)
from assay.page.draw import PAPER
from assay.page.text import NARROW, Text, code, italic, number, plural, quiet
from assay.report import calibration_plots, calibration_tables, calibration_words
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
    figure = calibration_plots.draw_gates(ordered(calibration_document(report)))
    metadata = {"Date": None} if ending == "svg" else {"Software": None}
    try:
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": KIND}):
            figure.savefig(path, dpi=150, facecolor=PAPER, metadata=metadata)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return path


def ordered(document: Document) -> list[Mapping[str, Any]]:
    """The gates in the order of the page, those unknown to it last."""
    places = {code: place for place, code in enumerate(RULES)}
    return sorted(document["gates"], key=lambda gate: places.get(str(gate["code"]), len(places)))


def calibration_page(report: HasRecord | Document) -> Page:
    """Everything that is shown of calibrations."""
    document = calibration_document(report)
    gates = ordered(document)
    model, task = document["model"].get("id", "a model"), document["task"].get("name", "its task")
    return Page(
        kind="calibrations",
        title=f"What can be trusted of the measurements on a circuit of {model} for {task}",
        subject=calibration_words.subject_words(document),
        verdict=calibration_words.overview(document),
        caveats=calibration_words.caveats(document),
        lede=(
            "Each check asks whether a number about the circuit deserves trust. ",
            italic("With confidence"),
            ": the verdict holds for every value that these prompts leave possible, and is wrong at most "
            "one time "
            "in twenty for values per prompt that are normal, t (5) or exponential, at the limit too; "
            "where they "
            "leave both outcomes possible it is inconclusive. ",
            italic("Published rule"),
            ": the limit of the framework applied to the number as it came out. There is no overall score: a "
            "failed check forbids the use that it guards, and no other check makes up for it.",
        ),
        sections=[
            Section(title="All checks at a glance", blocks=[_glance(gates)]),
            Section(
                title="The checks one by one",
                blocks=[
                    Custom(
                        template="gates.html",
                        values=[_gate(gate, document) for gate in gates],
                        blocks=[_brief(gates), *_advice(gates, document)],
                    )
                ],
            ),
        ],
        facts=list(_facts(document)),
        records=list(_records(document)),
        style="calibration",
    )


def _glance(gates: Sequence[Document]) -> Figure:
    return Figure(
        draw=lambda: calibration_plots.plot_gates(calibration_plots.rows(gates)),
        label="All checks around their limits; the numbers are in the rows below.",
        caption="Every check on a scale of its own, turned so that its limit is the line in the middle "
        "and passing "
        "is to the right; the distance is counted in units of the limit and bent so that all fits. Bars are "
        f"90{NARROW}% intervals: one that crosses the line leaves the check open. Blue passes, vermilion "
        f"fails, "
        "black lies between, grey is open.",
        name="gates",
    )


def _brief(gates: Sequence[Document]) -> Table:
    """The checks as lines, for a terminal."""
    rows = []
    for gate in gates:
        shown = headline(gate)
        value, passes = calibration_words.number_line(shown)
        mark, word = calibration_words.KINDS[calibration_words.kind(gate["verdict"], shown)]
        published = calibration_words.published_words(str(gate["verdict"].get("published")))
        rows.append([gate["code"], gate["name"], value, passes, f"{mark} {word}", " ".join(published)])
    names = ("", "check", "number", "passes", "with confidence", "published rule")
    return Table(columns=[Column(name=name) for name in names], rows=rows)


def _advice(gates: Sequence[Document], document: Document) -> Iterator[Note]:
    """What to do about the checks that do not pass, for a terminal."""
    for gate in gates:
        if steps := calibration_words.advice(gate, document):
            yield Note(text=f"{gate['code']}: {' '.join(steps)}")


def _gate(gate: Document, document: Document) -> dict[str, Any]:
    """One check and what unfolds below it."""
    verdict = gate["verdict"]
    shown = headline(gate)
    state = calibration_words.kind(verdict, shown)
    value, passes = calibration_words.number_line(shown)
    return {
        "id": _plain_id(gate["code"]),
        "code": gate["code"],
        "name": gate["name"],
        "question": gate["question"],
        "class": state.replace(" ", "-"),
        "mark": calibration_words.KINDS[state],
        "published": calibration_words.published_words(str(verdict.get("published"))),
        "label": shown.label,
        "value": value,
        "passes": passes,
        "strip": calibration_plots.strip(shown, state),
        "undefined": shown.value is None,
        "meaning": calibration_words.meaning(gate, state),
        "scope": calibration_words.scope(gate),
        "next": calibration_words.advice(gate, document),
        "differs": calibration_words.disagreement(gate, state),
        "warnings": [calibration_words.warning(str(each)) for each in verdict.get("warnings") or ()],
        "parts": calibration_tables.parts(gate),
        "parts_left": calibration_tables.parts_left(gate),
        "unmeasured": calibration_tables.unmeasured(gate),
        "blocks": list(_numbers(gate, document)),
        "note": _sources(gate, calibration_tables.interval_words(shown, verdict)),
    }


def _numbers(gate: Document, document: Document) -> Iterator[Block]:
    """Everything a check computed."""
    if heat := calibration_tables.heat(gate):
        yield Heading(text="Mean effect of each circuit on each task")
        yield HeatMap(
            corner="circuit \\ task",
            columns=heat["columns"],
            rows=[
                (
                    row["name"],
                    [
                        HeatCell(
                            text=cell["shown"],
                            ink=cell["ink"],
                            title=cell["title"],
                            style=("minus" if cell["minus"] else "plus")
                            + (" deep" if cell["deep"] else "")
                            + (" found" if cell["own"] else ""),
                        )
                        for cell in row["cells"]
                    ],
                )
                for row in heat["rows"]
            ],
            style="effects",
        )
        left = f" {number(heat['left'])} tasks more are in the result." if heat["left"] else ""
        note = "Outlined: a circuit on its own task, which should be far larger than the rest of its row."
        yield Note(text=note + left, style="quiet note")
    for table in calibration_tables.tables(gate, document):
        yield Heading(text=table["title"])
        verb = "is" if table["left"] == 1 else "are"
        left = f"{number(table['left'])} more {verb} in the result. " if table["left"] else ""
        yield Table(
            columns=[Column(name=name, numeric=bool(numeric)) for name, numeric in table["columns"]],
            rows=table["rows"],
            note=left + table["note"],
            style="gate-table",
        )
    if facts := calibration_tables.facts(gate):
        yield Heading(text="Numbers and limits")
        yield Facts(facts=facts)


def _sources(gate: Document, interval: str) -> str:
    """How the interval came about, what the published form lacks, and where it is from."""
    weakness = calibration_words.sentence(str(gate.get("weakness") or ""))
    parts = [
        interval,
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
    model = document["model"]
    weights = (model.get("weight_hash") or "")[:16]
    yield "model", (f"{model.get('id', '')} ", quiet("hash of the weights"), " ", code(weights))
    seed = (task.get("config") or {}).get("seed")
    drawn = "" if seed is None else (quiet(f"drawn with seed {seed}"), " ")
    data = code((task.get("data_hash") or "")[:16])
    yield "task", (f"{task.get('name', '')} ", drawn, quiet("hash of the data"), " ", data)
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
    record = json.dumps(plain(document.get("provenance") or {}), indent=2, sort_keys=True)
    yield Details(summary="Provenance", blocks=[Code(text=record)])


def _passes(document: Document) -> int | None:
    """Passes that filled the table, as whole passes where the document counts those, else forward passes."""
    table = document.get("table") or {}
    made = table.get("passes") or (table.get(MACHINE) or {}).get("passes") or {}  # apart in a store
    found = made.get("equivalents", made.get("forward"))
    return None if found is None else round(found)


def _plain_id(code: object) -> str:
    """Letters and digits of a code, for an id."""
    return "".join(each for each in str(code) if each.isascii() and each.isalnum()) or "gate"
