"""The parts of a gate as a table: number, picture and both verdicts of each."""

from collections.abc import Mapping
from typing import Any

from assay.analyses.calibration.page_tables import LISTED_TASKS
from assay.analyses.calibration.page_words import KINDS, judged_of, number_line
from assay.analyses.calibration.reasons import warning
from assay.analyses.calibration.strips import strip
from assay.page.blocks import Cell, Column, Row, Table
from assay.page.text import Span


Record = Mapping[str, Any]
LISTED_PARTS = 24

_PARTS = (
    Column(name="part"),
    Column(name="number", numeric=True),
    *(Column(name=name) for name in ("against its limit", "with confidence", "published", "remark")),
)


def parts(gate: Record) -> list[Table]:
    """The parts of a gate as rows: number, picture, both verdicts, a word on why there is none.

    Parts of C14 that were not measured are named below the table.
    """
    every = gate["verdict"].get("sub_results") or {}
    listed = LISTED_TASKS if gate["code"] in ("C17", "M93") else LISTED_PARTS
    verdicts = [each for part in list(every.values())[:listed] for each in _with_its_parts(part)]
    absent = [each for each in every.values() if _unmeasured(gate, each)]
    rows = [_part(each) for each in verdicts if not _unmeasured(gate, each)]
    labels = "; ".join(judged_of(each).label for each in absent)
    table = Table(
        columns=_PARTS,
        rows=rows,
        left=max(0, len(every) - listed),
        note=f"Not measured here: {labels}." if labels else "",
        style="gate-parts",
    )
    return [table] if rows else []


def _unmeasured(gate: Record, verdict: Record) -> bool:
    return bool(gate["code"] == "C14" and verdict.get("reason") == "not_applicable")


def _with_its_parts(verdict: Record) -> list[Record]:
    return [verdict, *(verdict.get("sub_results") or {}).values()]


def _part(verdict: Record) -> Row:
    judged = judged_of(verdict)
    mark, word = KINDS.get(judged.published, KINDS["none"])
    value, passes = number_line(judged)
    known, drawing = judged.value is not None, strip(judged)
    because = "" if judged.reason == "degenerate" else judged.because
    cautions = [warning(str(code)) for code in verdict.get("warnings") or ()]
    return Row(
        cells=[
            judged.label,
            value if known else "",
            Cell(drawing=drawing) if drawing else Span(passes if known else "", "quiet"),
            Cell(status=judged.state, mark=KINDS.get(judged.state, KINDS["none"])[0]),
            (Span(mark, "sign"), " ", word),
            Cell(text=" ".join(each for each in (because, *cautions) if each), style="quiet"),
        ]
    )
