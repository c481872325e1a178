"""Pages in a terminal: the verdict, what to know before trusting it, and the tables; pictures as their "
"numbers.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from assay.core.untrusted import printable
from assay.page.blocks import (
    Block,
    CircuitView,
    Code,
    Custom,
    Details,
    Facts,
    Figure,
    Gallery,
    Heading,
    HeatMap,
    Listing,
    Note,
    Page,
    Pair,
    Table,
)
from assay.page.text import Text, number, plain_text


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable


def print_page(page: Page, console: "Console") -> None:
    """Write a page as lines and tables.

    Args:
        page: What is shown.
        console: Where to; what files and names hold is spelled out where a terminal would obey it.
    """

    def say(text: Text, style: str = "") -> None:
        if shown := printable(plain_text(text)):
            console.print(shown, style=style or None, markup=False, highlight=False)

    say(page.title, "bold")
    say(page.subject)
    say(page.verdict)
    say(page.remark)
    for note in (*page.reasons, *page.caveats):
        say(f"- {plain_text(note)}")
    for heading, blocks in (("", page.head), *((each.title, each.blocks) for each in page.sections)):
        lines = [line for block in blocks for line in _lines(block)]
        if lines:
            say("")
            say(heading, "bold")
        for line in lines:
            console.print(line, markup=False, highlight=False)
    for name, fact in page.facts:
        say(f"{name}: {plain_text(fact)}", "dim")


def _lines(block: Block) -> "Iterator[str | RichTable]":
    """A block as lines of text and tables."""
    match block:
        case Table():
            yield from _table(block)
        case HeatMap():
            yield _grid(
                [block.corner, *block.columns],
                [[name, *(c.text for c in cells)] for name, cells in block.rows],
            )
        case Figure():
            yield from _all(block.blocks or _opened(block.more))
            yield from _caption(block.caption)
        case CircuitView():
            yield from _caption(block.caption)
        case Facts():
            yield from (printable(f"{name}: {plain_text(fact)}") for name, fact in block.facts)
        case Note():
            yield from _caption(block.text)
        case Listing():
            yield from (printable(f"- {plain_text(item)}") for item in block.items)
        case Heading():
            yield printable(block.text)
        case Pair():
            yield from _all(block.blocks)
        case Details() if block.open:
            yield from _all(block.blocks)
        case Custom():
            yield from _all(block.blocks)
        case Details() | Code() | Gallery():  # behind a click, or pictures
            return


def _all(blocks: Sequence[Block]) -> "Iterator[str | RichTable]":
    for block in blocks:
        yield from _lines(block)


def _opened(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield from block.blocks if isinstance(block, Details) else (block,)


def _caption(text: Text) -> Iterator[str]:
    if shown := printable(plain_text(text)):
        yield shown


def _table(table: Table) -> "Iterator[str | RichTable]":
    yield table_grid(table)
    yield from _caption(table.caption)
    yield from _caption(table.note)
    if table.left:
        yield f"{number(table.left)} more in the result."


def table_grid(table: Table, title: str = "") -> "RichTable":
    """The rows of a table under their headings.

    Cells are one line each, with control characters spelled out: labels and prompts are other people's.
    """
    numeric = [column.numeric for column in table.columns]
    return _grid([column.name for column in table.columns], table.texts(), numeric, title)


def _grid(
    names: Sequence[Text], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = (), title: str = ""
) -> "RichTable":
    from rich.table import Table as RichTable

    grid = RichTable(
        title=printable(title) or None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for place, name in enumerate(names):
        heading = printable(plain_text(name), lines=False)
        grid.add_column(
            heading,
            justify="right" if numeric and numeric[place] else "left",
            overflow="fold",
            no_wrap=heading == "id",  # in one piece, so that it can be copied; the others give way
        )
    for row in rows:
        grid.add_row(*(printable(cell, lines=False) for cell in row))
    return grid
