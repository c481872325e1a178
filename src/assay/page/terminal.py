"""Pages in a terminal: the verdict, what to know before trusting it, the tables; progress of a long call."""

import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

from assay.core.untrusted import printable
from assay.page import blocks as b
from assay.page.blocks import Block, Cell, Page, Section, Table
from assay.page.text import Text, number, plain_text


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

SHOWN_ROWS, SHOWN_PAIRS = 40, 3  # of a table, and of a row of pairs; the page has them all
# Second lines of cells are left to the page where they are long, or the table is wide; that of a verdict says
# what decided it and stays.
LONG_LINE, WIDE_TABLE = 24, 8


def print_page(page: Page, console: "Console") -> None:
    """Write a page as lines and tables.

    Args:
        page: What is shown.
        console: Where to; what files and names hold is spelled out where a terminal would obey it.
    """
    notes = (f"- {plain_text(note)}" for note in (*page.reasons, *page.caveats))
    head = [*_paragraphs(page.subject, page.verdict, page.remark, *notes), *_all(page.head)]
    parts = [(each.title, [*_all(each.blocks)]) for each in page.sections]
    parts = [part for part in (*parts, ("", [*_lines(b.Facts(facts=page.facts))])) if part[1]]
    for title, lines in [(page.title, head), *parts]:
        for line in _paragraphs(title):
            console.print(line, style="bold", markup=False, highlight=False)
        for each in lines:
            console.print(each, markup=False, highlight=False)
        console.print()


def _lines(block: Block) -> "Iterator[str | RichTable]":
    """A block as lines of text and tables; not what explains a picture or is behind a click."""
    match block:
        case Table() if not block.style.startswith("heat"):  # too wide for lines of text
            yield table_grid(_brief(block))
            left = block.left + max(0, len(block.rows) - SHOWN_ROWS)
            yield from _paragraphs(f"... and {number(left)} more" if left else "", block.note)
        case b.Figure() | b.Interactive() | Section():
            yield from _all(block.blocks)
        case b.Facts():
            yield from _paragraphs(*(f"{name}: {plain_text(fact).strip()}" for name, fact in block.facts))
        case b.Note():
            yield from _paragraphs(block.text)
        case b.Details() if block.printed:
            yield from _all(block.blocks)


def _all(blocks: Sequence[Block]) -> "Iterator[str | RichTable]":
    n_pairs, heading = 0, list[str]()
    for block in blocks:
        n_pairs += isinstance(block, Section)
        if isinstance(block, b.Note) and block.style == "heading":
            heading = [*_paragraphs(block.text)]  # shown once something follows
        elif (n_pairs <= SHOWN_PAIRS or not isinstance(block, Section)) and (lines := [*_lines(block)]):
            yield from (*heading, *lines)
            heading = []


def _brief(table: Table) -> Table:
    """The first rows of a table, without columns of pictures alone."""
    longest = 0 if len(table.columns) > WIDE_TABLE else LONG_LINE
    rows = [row.cells if isinstance(row, b.Row) else row for row in table.rows[:SHOWN_ROWS]]
    rows = [[_short(cell, longest) for cell in cells] for cells in rows]
    texts = replace(table, rows=rows).texts()
    used = [any(len(line) <= place or line[place] for line in texts) for place in range(len(table.columns))]
    rows = [[*compress(cells, used)] for cells in rows]
    return replace(table, columns=[*compress(table.columns, used)], rows=rows)


def _short(cell: Cell | Text, longest: int) -> Cell | Text:
    if isinstance(cell, Cell) and not cell.status and len(plain_text(cell.below)) > longest:
        return replace(cell, below="")
    return cell


def _paragraphs(*texts: Text) -> Iterator[str]:
    yield from filter(None, (printable(plain_text(text)) for text in texts))


def table_grid(table: Table, title: str = "") -> "RichTable":
    """The rows of a table under their headings, for a console of rich.

    Cells are one line each, with control characters spelled out: labels and prompts are other people's.
    """
    from rich.table import Table as RichTable

    grid = RichTable(
        title=printable(title) or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in table.columns:
        heading = printable(plain_text(column.name), lines=False)
        # An id stays in one piece, so that it can be copied; the others give way.
        grid.add_column(
            heading, justify="right" if column.numeric else "left", overflow="fold", no_wrap=heading == "id"
        )
    for texts in table.texts():
        grid.add_row(*(printable(text, lines=False) for text in texts))
    return grid


OFTEN, SELDOM = 0.2, 10.0  # seconds between two pictures of a stage in a notebook, two lines on stderr


class ProgressDisplay:
    """Shows how far a long call is: pass it as `progress=`.

    In a notebook it is one line of all stages, brought up to date in place. Elsewhere, a line on stderr says
    when a stage begins and, every ten seconds, how far it is.

    Example:
        >>> told = ProgressDisplay()
        >>> told("passes", 3, 8)
        >>> told.stages
        {'passes': (3, 8)}
    """

    def __init__(self) -> None:
        self.stages: dict[str, tuple[int, int]] = {}
        self._handle: Any = None
        self._drawn = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Take note.

        Args:
            stage: Its name.
            done: Steps done.
            total: All steps; 0 where unknown.
        """
        begins, waited = stage not in self.stages, time.monotonic() - self._drawn
        self.stages[stage] = (done, total)
        ipython: Any = sys.modules.get("IPython")
        shell = ipython and ipython.get_ipython()
        if shell is not None and "IPKernelApp" in shell.config:  # it can change what it has shown
            if begins or done == total or waited > OFTEN:
                self._draw()
        elif begins or waited > SELDOM:
            self._drawn = time.monotonic()
            count = "..." if begins else _count(done, total)
            sys.stderr.write(f"{printable(stage, lines=False)} {count}\n")

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._handle is None:
            show = importlib.import_module("IPython.display").display  # which has no types
            self._handle = show(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        return "; ".join(f"{stage} {_count(*steps)}" for stage, steps in self.stages.items()) or "not begun"


def _count(done: int, total: int) -> str:
    return f"{done:,} of {total:,}" if total else f"{done:,}"
