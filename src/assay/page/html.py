"""Pages as self-contained HTML: inline styles, script and pictures, and nothing asked of the network."""

import base64
import functools
import hashlib
import re
import threading
from collections.abc import Sequence

import jinja2
from markupsafe import Markup, escape

from assay.page.blocks import STATUSES, Block, Cell, Drawing, Figure, Interactive, Page, Row, Table
from assay.page.text import Span, Text, cut_text, number, packed, plain_text


PAGE_LIMIT = 3_000_000  # bytes of a page, whatever its results hold
ROOM_FOR_FRAME = 180_000  # bytes for styles, scripts and titles
SCRIPTS = ("page.js", "viewer.js")  # of every page, and of pages that draw a circuit
TITLES = 8  # of several pages named in the title

_DRAWING = threading.RLock()  # settings of Matplotlib are of the whole process
_ELEMENTS = {"b": "b", "i": "i", "code": "code", "mark": "mark", "sup": "sup"}


def render_pages(pages: Sequence[Page], *, served: bool = False) -> str:
    """Pages one below the other as one document.

    Args:
        pages: At least one; what does not fit `PAGE_LIMIT` is named at the end.
        served: For `assay serve`: ids become links of the site.
    """
    articles, room = [], PAGE_LIMIT - ROOM_FOR_FRAME
    for place, each in enumerate(pages):
        article = render_article(each, f"r{place + 1}", served=served)
        size = len(article.encode())
        if size > room:
            articles.append(_left_out(pages[place:], alone=place == 0))
            break
        articles.append(article)
        room -= size
    title = " \N{MIDDLE DOT} ".join(page.title for page in pages[:TITLES])
    return frame("\n".join(articles), title=title, served=served)


def render_article(page: Page, key: str, *, served: bool = False) -> str:
    """One page as an article, for a document of several or for a notebook.

    Args:
        page: What is shown.
        key: Identifier of the article; anchors and pictures of it begin with it.
        served: Whether ids are links of the site.
    """
    with _DRAWING:
        made = _template("article.html").render(page=page, make=_Maker(key, served=served))
    return re.sub(r"\n\s*\n+", "\n", made)


def frame(body: str, *, title: str, served: bool = False) -> str:
    """A whole document around articles: styles and scripts inside, everything else forbidden.

    Args:
        body: HTML that is safe to show.
        title: Text of the window's title.
        served: With the navigation of `assay serve`.
    """
    return _template("frame.html").render(
        body=body,
        title=cut_text(title),
        style=source("page.css"),
        scripts=[source(name) for name in (SCRIPTS if '<figure class="viewer' in body else SCRIPTS[:1])],
        served=served,
        policy=content_policy(),
    )


class _Maker:
    """What the templates need to make the blocks of one article."""

    def __init__(self, key: str, *, served: bool) -> None:
        self.key, self.served = key, served
        self.statuses = STATUSES
        self._counts: dict[str, int] = {}
        self._macros = _template("blocks.html").make_module({"make": self})

    def __call__(self, block: Block) -> Markup:
        """A block as HTML, by the macro of its name."""
        if isinstance(block, Interactive):
            return Markup(_template(block.template).render(values=block.values, make=self))
        return Markup(getattr(self._macros, type(block).__name__.lower())(block))

    def text(self, text: Text) -> Markup:
        """Text with its styles."""
        if isinstance(text, str):
            return escape(text)
        if not isinstance(text, Span):
            return Markup("").join(self.text(piece) for piece in text)
        inner = self.text(text.text)
        element = _ELEMENTS.get(text.style)
        title = Markup(' title="{}"').format(text.title) if text.title else ""
        if not text.style:
            made = inner
        elif text.style == "sign":  # passed over when the page is read out
            made = Markup('<span aria-hidden="true">{}</span>').format(inner)
        elif element:
            made = Markup("<{0}{1}>{2}</{0}>").format(Markup(element), title, inner)
        else:
            made = Markup('<span class="{}"{}>{}</span>').format(text.style, title, inner)
        if text.link and self.served:
            return Markup('<a href="{}">{}</a>').format(text.link, made)
        return made

    def numbered(self, kind: str) -> str:
        """`Figure 1.`, then `Figure 2.`: captions are numbered as they come."""
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind} {self._counts[kind]}."

    def svg(self, figure: Figure) -> Markup:
        """The picture of a figure."""
        from assay.page.draw import to_svg

        assert figure.draw is not None
        self._counts["picture"] = self._counts.get("picture", 0) + 1
        name = figure.name or f"p{self._counts['picture']}"
        return Markup(to_svg(figure.draw(), key=f"{self.key}-{name}", label=figure.label))

    def drawing(self, drawing: Drawing) -> Markup:
        """A small picture."""
        return Markup(drawing.svg)

    @staticmethod
    def rows(table: Table) -> list[tuple[str, list[Cell]]]:
        """The style of each row, and its cells."""
        rows = [row if isinstance(row, Row) else Row(cells=row) for row in table.rows]
        return [
            (row.style, [cell if isinstance(cell, Cell) else Cell(text=cell) for cell in row.cells])
            for row in rows
        ]


def _left_out(pages: Sequence[Page], *, alone: bool) -> str:
    """The note in place of articles that would make the document too large."""
    titles = [page.title for page in pages[:TITLES]]
    return _template("left_out.html").render(
        titles=titles, n=len(pages), alone=alone, limit=PAGE_LIMIT // 1_000_000
    )


def _template(name: str) -> jinja2.Template:
    return environment().get_template(name)


@functools.cache
def source(name: str) -> str:
    """Text beside the templates that is not a template."""
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


@functools.cache
def content_policy() -> str:
    """The pages' Content-Security-Policy: nothing remote, and no scripts but their own."""
    digests = [hashlib.sha256(f"\n{source(name)}\n".encode()).digest() for name in SCRIPTS]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'self'"
    )


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, compiled once."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("assay.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(number=number, plain=plain_text, packed=packed)
    return templates
