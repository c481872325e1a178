"""Values as a notebook shows them: small tables in HTML, escaped, nothing to fetch and nothing to run."""

import html
import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np


if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Word of a verdict -> its mark; the word is always beside it, so that colour carries nothing alone.
MARKS: Mapping[str, tuple[str, str]] = {
    "pass": ("\N{CHECK MARK}", "#1b7837"),
    "moderate": ("\N{ALMOST EQUAL TO}", "#8a6d00"),
    "fail": ("\N{BALLOT X}", "#b2182b"),
    "inconclusive": ("?", "#5a5a5a"),
    "none": ("\N{EN DASH}", "#5a5a5a"),
}
MOST_ROWS = 24
MOST_TEXT = 200  # characters of one cell
NAME = 48  # characters of a cell that stays on one line
_TABLE = "border-collapse:collapse;margin:2px 0"
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top;background:none;border:none"


class Shown(ABC):
    """A result that has a picture: `plot` draws it, and a notebook shows it below a summary.

    Attributes:
        drawn_by: `module:function` that draws it on axes or a new figure. Named, so that results, which lie
            below pictures, load no plotting library before one is asked for.
    """

    drawn_by: ClassVar[str]

    def plot(self, ax: "Axes | None" = None) -> "Axes | np.ndarray":
        """Draw the result.

        Args:
            ax: Where to draw. Default: a new figure.

        Returns:
            The axes; an array of them where a new figure has several panels.
        """
        drawn = named(self.drawn_by)(self, ax)
        panels = drawn.get_figure().axes
        return drawn if ax is not None or len(panels) == 1 else np.array(panels)

    def _repr_html_(self) -> str:
        shown: str = named("assay.page.notebook:with_picture")(self._summary(), self.plot)
        return shown

    @abstractmethod
    def _summary(self) -> str:
        """The HTML above the picture, made by `card` or `table`."""


class Carded:
    """A value without a picture, which a notebook shows as a card.

    Attributes:
        carded_by: `module:function` that writes the HTML, with `card` or `table`. Named, as in `Shown`.
    """

    carded_by: ClassVar[str]

    def _repr_html_(self) -> str:
        shown: str = named(self.carded_by)(self)
        return shown


def named(place: str) -> Any:
    """The function that `module:function` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def number(value: float | int | None, digits: int = 4) -> str:
    """A number in few characters; `undefined` for NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "undefined"
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "\N{INFINITY}" if value > 0 else "\N{MINUS SIGN}\N{INFINITY}"
    return f"{value:.{digits}g}"


def ends(low: float | None, high: float | None, level: float = 0.95) -> str:
    """An interval with its coverage."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return f"{100 * level:g} % interval undefined"
    return f"[{number(low)}, {number(high)}] ({100 * level:g} %)"


def card(
    title: str,
    rows: Iterable[tuple[str, object]],
    *,
    status: str | None = None,
    id: str | None = None,  # noqa: A002 - what the values call it
    picture: str = "",
) -> str:
    """One value: a heading, a row per fact, the verdict in a word with a mark, where it came from.

    Args:
        title: What it is.
        rows: Name and text of each fact; None is left out. All of it is escaped.
        status: `pass`, `moderate`, `fail`, `inconclusive` or `none`.
        id: Hash of its provenance.
        picture: HTML below the facts, made by this module.
    """
    cells = [(name, _text(value)) for name, value in rows if value is not None]
    if len(cells) > MOST_ROWS:
        cells = [*cells[: MOST_ROWS - 1], ("...", f"{len(cells) - MOST_ROWS + 1} more")]
    body = "".join(
        f'<tr style="background:none"><th scope="row" style="{_CELL};font-weight:normal;opacity:.75">'
        f'{html.escape(name)}</th><td style="{_CELL}">{text}</td></tr>'
        for name, text in cells
    )
    facts = f'<table style="{_TABLE}"><tbody>{body}</tbody></table>' if body else ""
    verdict = "" if status is None else f" {badge(status)}"
    source = "" if id is None else f'<div style="opacity:.75">id <code>{html.escape(id)}</code></div>'
    return (
        '<div style="font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:60em">'
        f"<div><strong>{_text(title)}</strong>{verdict}</div>"
        f"{facts}{picture}{source}</div>"
    )


def badge(status: str) -> str:
    """The word of a verdict with its mark."""
    mark, colour = MARKS.get(status, ("", "#5a5a5a"))
    return (
        f'<span style="border:1px solid {colour};color:{colour};background:#fff;padding:0 5px">'
        f'<span aria-hidden="true">{mark}</span> {html.escape(status)}</span>'
    )


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **more: str | None) -> str:
    """Several values: a heading and a small table; a column named `verdict` gets marks.

    Args:
        title: What they are.
        columns: Their names.
        rows: As many cells each; the first `MOST_ROWS` are shown.
        more: `id`, as in `card`.
    """
    head = "".join(
        f'<th scope="col" style="{_CELL};opacity:.75">{html.escape(each)}</th>' for each in columns
    )
    shown = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_CELL}{";white-space:nowrap" if len(str(cell)) <= NAME else ""}">'
            f"{badge(str(cell)) if name == 'verdict' else _text(cell)}</td>"
            for name, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    left = len(rows) - MOST_ROWS
    note = f"<div>... {left} more; <code>.to_frame()</code> has all</div>" if left > 0 else ""
    inner = (
        f'<table style="{_TABLE}"><thead><tr style="background:none">{head}</tr>'
        f"</thead><tbody>{shown}</tbody></table>{note}"
    )
    return card(title, (), picture=inner, id=more.get("id"))


def _text(value: object) -> str:
    """Escaped, one line, not too long; numbers as `number` writes them."""
    if isinstance(value, float | int) and not isinstance(value, bool):
        return number(value)
    text = " ".join(str(value).split())
    if len(text) > MOST_TEXT:
        text = text[: MOST_TEXT - 3] + "..."
    return html.escape(text)
