"""What pages are made of. A result says what it shows in these blocks; a renderer knows blocks and no result.

`assay.page.html` and `assay.page.terminal` render whole pages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError
from assay.core.registry import Registry
from assay.page.text import Span, Text, plain_text, record_text


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Status -> mark and word, for every verdict of every page.
STATUSES = {
    "pass": ("\N{BLACK CIRCLE}", "pass"),
    "moderate": ("\N{CIRCLE WITH LEFT HALF BLACK}", "moderate"),
    "fail": ("\N{WHITE CIRCLE}", "fail"),
    "inconclusive": ("\N{DOTTED CIRCLE}", "inconclusive"),
    "none": ("\N{EN DASH}", "no verdict"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says.
        below: A second, quieter line.
        value: What its column is sorted by; default: the text.
        drawing: A small picture, an SVG element that is shown as it is.
        status: Key of `STATUSES`, shown as mark and word after the text, or any word with a class of its own.
        mark: Mark before the status; default: that of `STATUSES`.
        style: Class of the style sheet.
        title: What a pointer over it shows.
        span: Columns it covers.
        ink: Share of full colour of a cell of a heat map, in per cent.
    """

    text: Text = ""
    below: Text = ""
    value: int | float | str | None = None
    drawing: str = ""
    status: str = ""
    mark: str = ""
    style: str = ""
    title: str = ""
    span: int = 1
    ink: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        numeric: Set flush right.
        sort: Whether a reader can sort by it.
        arrow: Mark beside the heading, e.g. of which way is better.
        sorted: `ascending` or `descending` where the rows come in the order of this column.
        title: What a pointer over it shows.
    """

    name: Text
    numeric: bool = False
    sort: bool = False
    sorted: str = ""
    arrow: str = ""
    title: str = ""


def columns(*names: Text, numeric: bool = False, sort: bool = False) -> list[Column]:
    """Neighbouring columns of one kind."""
    return [Column(name=name, numeric=numeric, sort=sort) for name in names]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table whose line has a class of its own."""

    cells: Sequence["Cell | Text"]
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under headings; the first cell of a row names it.

    Attributes:
        columns: The headings.
        rows: A cell per column, or fewer where cells span.
        caption: What it shows.
        left: Rows that were left out.
        note: What stands below, outside the caption.
        style: Class of the style sheet.
        title: Heading inside the table, for tables beside each other.
        tall: May be scrolled inside the page.
        named: The first cell is the heading of its row.
    """

    columns: Sequence[Column]
    rows: Sequence[Row | Sequence[Cell | Text]]
    caption: Text = ""
    left: int = 0
    note: Text = ""
    style: str = ""
    title: str = ""
    tall: bool = False
    named: bool = True

    def texts(self) -> list[list[str]]:
        """The rows without their styles."""
        rows = [row.cells if isinstance(row, Row) else row for row in self.rows]
        return [[_one_line(cell) for cell in cells] for cells in rows]


def heat_map(
    title: str, *, corner: str, names: Sequence[str], rows: Sequence[Sequence[Cell | Text]], style: str = ""
) -> Table:
    """A matrix whose cells are tinted by their `ink`.

    Args:
        title: Its heading.
        corner: What rows and columns are.
        names: Of the columns.
        rows: The name of a row, then its cells.
        style: More classes of the style sheet.
    """
    heads = [Column(name=corner), *columns(*(Span(name, "turned") for name in names))]
    return Table(columns=heads, rows=rows, title=title, style=f"heat {style}".strip())


def _one_line(cell: Cell | Text) -> str:
    if not isinstance(cell, Cell):
        return plain_text(cell)
    mark, word = STATUSES.get(cell.status, (cell.mark, cell.status))
    parts = (plain_text(cell.text), f"{mark} {word}".strip(), plain_text(cell.below))
    return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture, or other blocks, with a caption.

    Attributes:
        draw: Makes its axes: the public plot function of a result, with what it draws.
        label: What is read out in its place.
        pictures: Images beside each other, shown instead of a picture.
        blocks: Shown instead of a picture, e.g. a table that shares its caption with others.
        caption: What it shows.
        kind: Word before the number of the caption: `Figure`, `Table`, or nothing for none.
        more: Blocks behind a click, below the caption, e.g. the numbers as a table.
        note: What stands directly below the picture.
        beside: The caption stands at its side.
        style: Class of the style sheet.
        name: Last part of the anchor.
    """

    draw: "Callable[[], Axes] | None" = None
    label: str = ""
    pictures: Sequence["Picture"] = ()
    blocks: Sequence["Block"] = ()
    caption: Text = ""
    kind: str = "Figure"
    more: Sequence["Block"] = ()
    note: Text = ""
    beside: bool = False
    style: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image of a figure, e.g. `data:image/png;base64,...`, and the lines below it."""

    source: str
    lines: Sequence[Text]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with what they are."""

    facts: Sequence[tuple[str, Text]]


@dataclass(frozen=True, kw_only=True)
class Note:
    """A paragraph.

    Attributes:
        text: What it says.
        style: `` for running text, `heading` for a heading inside a section, `code` for a record as it is,
            `quiet` for a remark, `reading` before a figure.
    """

    text: Text
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class Details:
    """Blocks behind a click.

    Attributes:
        summary: What is clicked.
        blocks: What it opens.
        printed: Whether a terminal shows the blocks though they are not open.
        style: Class of the style sheet.
        name: Last part of the anchor.
    """

    summary: Text
    blocks: Sequence["Block"]
    printed: bool = False
    style: str = ""
    name: str = ""


def folded_record(summary: Text, record: Any) -> Details:
    """A record as JSON behind a click, e.g. how a result came to be."""
    return Details(summary=summary, blocks=[Note(text=record_text(record), style="code")])


@dataclass(frozen=True, kw_only=True)
class Interactive:
    """A part of a page that earns HTML of its own, such as the viewer of a circuit.

    Attributes:
        macro: Its macro in `templates/blocks.html`.
        values: What it shows.
        blocks: What a terminal shows in its place.
    """

    macro: str
    values: Any
    blocks: Sequence["Block"] = ()


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page under a heading; inside another part, blocks that lie beside each other.

    Attributes:
        title: The heading; empty inside another part.
        blocks: What it holds.
        style: Class of the style sheet inside another part, e.g. `pair` for two columns.
    """

    title: str = ""
    blocks: Sequence["Block"]
    style: str = ""


Block = Table | Figure | Facts | Note | Details | Interactive | Section


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that is shown of a result.

    Attributes:
        kind: What the result is, in small print above the title.
        title: Its title.
        verdict: The finding, in a sentence or two.
        status: Class of the verdict, where it has one.
        subject: What the verdict is about, where the title does not say.
        remark: What else belongs to the verdict, in smaller type, e.g. what an alarm promises.
        reasons: Why the verdict is what it is, a line each.
        caveats: What a reader must know before trusting the verdict.
        lede: How to read the page.
        head: Blocks that belong to the heading.
        sections: The parts.
        facts: Identity of the result and of what it was made from.
        records: What stands behind the identity, behind a click.
        style: Class of the article.
    """

    kind: str
    title: str
    verdict: Text = ""
    status: str = ""
    subject: Text = ""
    remark: Text = ""
    reasons: Sequence[Text] = ()
    caveats: Sequence[Text] = ()
    lede: Text = ""
    head: Sequence[Block] = ()
    sections: Sequence[Section] = ()
    facts: Sequence[tuple[str, Text]] = ()
    records: Sequence[Block] = ()
    style: str = ""


Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PageForm:
    """A kind of document that has a page.

    Attributes:
        noun: What a message calls it.
        schema: The version that is read; empty for documents that do not name one.
        again: What makes such a document anew.
        make: Its page, from a document that `read` has checked.
    """

    noun: str
    schema: str
    again: str
    make: Callable[[Document], Page]

    def read(self, document: Document) -> Document:
        """The document, whose missing entries are answered by name.

        Raises:
            InputError: For another version, with what to do.
        """
        if schema_of(document) != self.schema:
            raise InputError(
                f"this {self.noun} has schema {schema_of(document)!r}; this version reads "
                f"{self.schema!r}: run {self.again} again to make one"
            )
        return _Named(document, self.noun)


def schema_of(document: Document) -> str:
    """Name and version of the form that a document is written in; empty where it names none."""
    return str(document.get("schema") or document.get("format") or "")


class _Named(dict[str, Any]):
    """A document that tells what it is where an entry is missing."""

    def __init__(self, document: Document, noun: str) -> None:
        super().__init__(document)
        self._noun = noun

    def __missing__(self, key: str) -> Any:
        raise InputError(f"the document of the {self._noun} lacks {key}; it is incomplete")


# By the kind that a document names.
PAGES: Registry[PageForm] = Registry("page", holds=PageForm)
