"""Pages as self-contained HTML: inline styles, script and pictures, and nothing asked of the network."""

import base64
import functools
import hashlib
import re
import threading
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape

from assay.page.blocks import STATUSES, Block, Cell, Figure, Interactive, Page, Row
from assay.page.text import Span, Text, cut_text, number, packed, plain_text


SCRIPTS = ("page.js", "viewer.js")  # of every page, and of pages that draw a circuit
TITLES = 8  # of several pages named in the title

_DRAWING = threading.RLock()  # settings of Matplotlib are of the whole process
_ELEMENTS = ("b", "i", "code", "mark", "sup")  # styles that HTML has elements for


def render_pages(pages: Sequence[Page], *, served: bool = False) -> str:
    """Pages one below the other as one document: styles and scripts inside, everything else forbidden.

    Args:
        pages: At least one.
        served: For `assay serve`: with its navigation, and ids become links of the site.
    """
    articles = []
    for place, page in enumerate(pages):
        with _DRAWING:
            articles.append(_Maker(f"r{place + 1}", served=served).macros.article(page))
    body = re.sub(r"\n\s*\n+", "\n", "\n".join(articles))
    title = " \N{MIDDLE DOT} ".join(page.title for page in pages[:TITLES])
    frame = environment().get_template("frame.html")
    return frame.render(
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
        self.key, self.served, self.statuses = key, served, STATUSES
        self._counts: dict[str, int] = {}
        self.macros: Any = environment().get_template("blocks.html").make_module({"make": self})

    def __call__(self, block: Block) -> Markup:
        """A block as HTML, by the macro of its name."""
        own = (type(block).__name__.lower(), block)
        name, shown = (block.macro, block.values) if isinstance(block, Interactive) else own
        return Markup(getattr(self.macros, name)(shown))

    def text(self, text: Text) -> Markup:
        """Text with its styles."""
        if isinstance(text, str):
            return escape(text)
        if not isinstance(text, Span):
            return Markup("").join(self.text(piece) for piece in text)
        made = self.text(text.text)
        title = Markup(' title="{}"').format(text.title) if text.title else ""
        if text.style == "sign":  # passed over when the page is read out
            made = Markup('<span aria-hidden="true">{}</span>').format(made)
        elif text.style in _ELEMENTS:
            made = Markup("<{0}{1}>{2}</{0}>").format(Markup(text.style), title, made)
        elif text.style:
            made = Markup('<span class="{}"{}>{}</span>').format(text.style, title, made)
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
        name = figure.name or self.numbered("p")
        return Markup(to_svg(figure.draw(), key=f"{self.key}-{name}".rstrip("."), label=figure.label))

    @staticmethod
    def cells(row: Row | Sequence[Cell | Text]) -> list[Cell]:
        """The cells of a row, also of those that are mere text."""
        cells = row.cells if isinstance(row, Row) else row
        return [cell if isinstance(cell, Cell) else Cell(text=cell) for cell in cells]


@functools.cache
def source(name: str) -> str:
    """Text beside the templates that is not a template."""
    return (resources.files("assay.page") / "templates" / name).read_text(encoding="utf-8")


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
