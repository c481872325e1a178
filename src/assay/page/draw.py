"""How pictures look, and how one becomes inline SVG.

Drawing uses `Figure` objects only: no pyplot state, no global theme. Colours are named here once; in inline
SVG they become CSS variables, so that one picture serves light, dark and printed pages.
"""

import html
import io
import re
import warnings
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib is imported where something is drawn: a terminal shows pages without pictures.

PAPER, INK, MUTED, RULE = "#fdfcf8", "#22262b", "#666d76", "#d8d5cc"
LONGEST_TICK, LONGEST_LABEL = 40, 120  # characters of a name at an axis, of any other text
SUPPORTS, OPPOSES = "#0b67a8", "#c5501c"

_CSS_VARIABLES = {
    PAPER: "--paper",
    INK: "--ink",
    MUTED: "--muted",
    RULE: "--rule",
    SUPPORTS: "--supports",
    OPPOSES: "--opposes",
}


def _tame(figure: "Figure") -> None:
    """Texts of a picture are names as they are: no formula between dollars, none that fills the picture."""
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter, LogFormatterSciNotation

    class PlainPowers(LogFormatterSciNotation):
        """Ticks of a logarithmic axis without markup: 0.01, 1, 1,000, 10⁶; none where matplotlib has none."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return plain_power(x) if super().__call__(x, pos) else ""

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        for ticks in (axis.major, axis.minor):
            if isinstance(ticks.formatter, LogFormatter):
                ticks.formatter = PlainPowers(labelOnlyBase=ticks.formatter.labelOnlyBase)
                ticks.formatter.set_axis(axis)
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if any(len(label) > LONGEST_TICK for label in labels):
            axis.set_ticks(axis.get_ticklocs(), [clipped(label, LONGEST_TICK) for label in labels])
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(clipped(text.get_text(), LONGEST_LABEL))


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def plain_power(x: float | int) -> str:
    """A number as a tick label: plain from 0.001 to 10,000, else with a power of ten.

    Example:
        >>> plain_power(0.01), plain_power(1000), plain_power(1e-6), plain_power(2e7)
        ('0.01', '1,000', '10⁻⁶', '2·10⁷')
    """
    if x == 0 or 1e-3 <= abs(x) <= 1e4:
        return f"{x:,g}"
    digits, _, power = f"{x:e}".partition("e")
    digits = f"{float(digits):g}"
    shown = f"10{str(int(power)).translate(_SUPERSCRIPTS)}"
    return shown if digits == "1" else f"{digits}·{shown}"


def clipped(text: str, most: int) -> str:
    """A text, or its beginning."""
    return text if len(text) <= most else text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def to_svg(ax: "Axes", *, label: str, key: str) -> str:
    """The figure of `ax` as one inline `<svg>` element for HTML.

    Text stays text, metadata and unused ids are dropped, ids that are needed get the prefix `key`
    (so that many pictures fit one page), colours of this module become CSS variables, and the
    same picture always gives the same string.

    Args:
        ax: Axes of a finished drawing.
        label: Text alternative, read out instead of the picture.
        key: Prefix of ids, unique on the page.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    _tame(figure)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        # Names may leave no room for the axes; the picture is then drawn without fitting it to them.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<title>.*?</title>", "", text, flags=re.DOTALL)
    hundredths = re.compile(r"(\.\d\d)\d+")  # of a point
    text = re.sub(r"<[^>]+>", lambda tag: hundredths.sub(r"\1", tag[0]), text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"|<path d="[^"]*" style="fill: none"/>', "", text)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda name: f' id="{key}-{name[1]}"' if name[1] in used else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{key}-", text)
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for colour, variable in _CSS_VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', text)
    assert view is not None
    width = float(view[1].split()[2])
    opening = (
        f'<svg class="plot" viewBox="{view[1]}" style="max-width:{width * 4 / 3:.0f}px" role="img" '
        f'aria-label="{html.escape(label)}">'
    )
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    text = re.sub(r"\s*\n\s*", "\n", text).strip()
    # Of the boxes of a path no more than their ends.
    return re.sub(r"M (\S+) (\S+)\nL (\S+) \2\nL \3 (\S+)\nL \1 \4\nz\n", r"M\1 \2H\3V\4H\1z", text)


def axes_of(ax: "Axes | None", width: float, height: float) -> "Axes":
    """The axes given, or new ones of this size in inches, in the style of the report."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(width, height), layout="constrained").subplots()
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
        ax.spines[side].set_linewidth(0.7)
    ax.tick_params(colors=MUTED, width=0.7, length=3, labelsize=8.5, which="both")
    ax.tick_params(which="minor", length=2)
    ax.xaxis.label.set(color=INK, fontsize=9)
    ax.yaxis.label.set(color=INK, fontsize=9)
    return ax
