"""Tables of pages in a terminal."""

from typing import TYPE_CHECKING

from assay.core.untrusted import printable
from assay.page.blocks import Table
from assay.page.text import plain_text


if TYPE_CHECKING:
    from rich.table import Table as RichTable


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
        grid.add_column(
            heading,
            justify="right" if column.numeric else "left",
            overflow="fold",
            no_wrap=heading == "id",  # in one piece, so that it can be copied; the others give way
        )
    for texts in table.texts():
        grid.add_row(*(printable(text, lines=False) for text in texts))
    return grid
