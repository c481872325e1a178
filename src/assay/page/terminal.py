"""Pages in a terminal: the verdict, what to know before trusting it, and the tables; no pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING

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
