"""Tables as Markdown, for files that are read where no page is shown."""

from collections.abc import Iterable

from assay.page.blocks import Table
from assay.page.text import plain_text


def markdown_table(table: Table) -> str:
    """The table of pipes; numbers are set flush right."""
    rules = ["---:" if column.numeric else "---" for column in table.columns]
    lines = [_line(plain_text(column.name) for column in table.columns), _line(rules)]
    return "\n".join([*lines, *(_line(texts) for texts in table.texts())]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
