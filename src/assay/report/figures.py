"""Pictures of an audit: `*_data` says what will be drawn, `plot_*` draws it, `to_svg` makes it inline SVG.

Every builder reads the audit document (a plain dict) and nothing else. Drawing uses `Figure`
objects only: no pyplot state, no global theme. Colours are named here once; in inline SVG they
become CSS variables, so that one picture serves light, dark and printed pages.
"""

import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter, LogFormatterSciNotation, NullFormatter


PAPER, INK, MUTED, RULE = "#fdfcf8", "#22262b", "#666d76", "#d8d5cc"
_RAISED = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
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
Document = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CurveData:
    """Faithfulness against circuit size, with its interval band and random circuits of the same sizes.

    Attributes:
        n_edges: Circuit sizes, ascending.
        fractions: The same as shares of all edges, in (0, 1].
        values, low, high: Normalised faithfulness (0 empty circuit, 1 model) and its interval; NaN undefined.
        random_fractions: Sizes at which random circuits ran; empty where none did.
        random_values, random_low, random_high: Their mean and range.
        target: The faithfulness asked for.
        chosen: Share of edges that the reported circuit was cut from, or None.
        chosen_value: Its faithfulness, or None.
        n: Prompts behind each value.
    """

    n_edges: tuple[int, ...]
    fractions: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    random_fractions: tuple[float, ...]
    random_values: tuple[float, ...]
    random_low: tuple[float, ...]
    random_high: tuple[float, ...]
    target: float
    chosen: float | None
    chosen_value: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class AgreementData:
    """Top-K agreement of circuit and model: one row per K.

    Attributes:
        k: The list lengths.
        values, low, high: Mean overlap share in [0, 1] and its interval.
        random: Mean of random circuits of equal size; NaN where not run.
        chance: Expected overlap of two random lists, K / vocabulary; NaN where unknown.
        tau: Kendall's tau-b inside the model’s top K; NaN where undefined.
        n: Prompts.
    """

    k: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    random: tuple[float, ...]
    chance: tuple[float, ...]
    tau: tuple[float, ...]
    n: int


@dataclass(frozen=True, kw_only=True)
class MatrixData:
    """A labelled matrix; `values` is `[rows, columns]`, NaN where there is no cell."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray
    row_title: str
    column_title: str


@dataclass(frozen=True, kw_only=True)
class StripData:
    """One value on its own short axis; places are per cent of the axis length, `None` where absent.

    `good` is the stretch of the axis on which the verdict would be a pass.
    """

    value: float | None
    low: float | None
    high: float | None
    threshold: float | None
    random: float | None
    good: tuple[float, float] | None
    label: str


def strip_data(measurement: Document) -> StripData | None:
    """A measurement against its threshold; None where the value is undefined."""
    value = measurement.get("value")
    threshold = ((measurement.get("verdict") or {}).get("thresholds") or {}).get("pass")
    if value is None:
        return None
    interval = measurement.get("interval") or {}
    low, high = interval.get("low"), interval.get("high")
    direction = measurement.get("direction")
    random = ((measurement.get("baseline") or {}).get("random") or {}).get("value")
    shown = [number for number in (value, low, high, threshold, random) if number is not None]
    first, last = min(0.0, *shown), max(1.0 if direction == "target" else 0.0, *shown)
    room = (last - first) * 0.06 or 1.0
    first, last = (first - room if first < 0 else first), last + room

    def place(number: float | None) -> float | None:
        return None if number is None else round(100 * (number - first) / (last - first), 1)

    at = place(threshold)
    good = None
    if at is not None and direction in ("higher", "target"):
        good = (at, 100.0)
    elif at is not None and direction == "lower":
        good = (0.0, at)
    words = f"axis from {first:.3g} to {last:.3g}"
    if threshold is not None:
        words += f", threshold {threshold:g}"
    return StripData(
        value=place(value),
        low=place(low),
        high=place(high),
        threshold=at,
        random=place(random),
        good=good,
        label=words,
    )


def curve_data(document: Document) -> CurveData:
    """The faithfulness curve of an audit document."""
    curve, circuit = document["curve"], document["circuit"]
    random = curve.get("random") or {}
    faithfulness = circuit.get("faithfulness") or {}
    return CurveData(
        n_edges=tuple(curve["n_edges"]),
        fractions=tuple(curve["fractions"]),
        values=_numbers(curve["values"]),
        low=_numbers(curve.get("low") or [None] * len(curve["values"])),
        high=_numbers(curve.get("high") or [None] * len(curve["values"])),
        random_fractions=tuple(random.get("fractions", [])),
        random_values=_numbers(random.get("values", [])),
        random_low=_numbers(random.get("low", [])),
        random_high=_numbers(random.get("high", [])),
        target=float(circuit["target"]),
        chosen=circuit["size"] / document["graph"]["n_edges"],
        chosen_value=faithfulness.get("value"),
        n=int(curve["n"]),
    )


def agreement_data(document: Document) -> AgreementData:
    """Top-K agreement of an audit document."""
    topk = document["topk"]
    size = len(topk["k"])
    return AgreementData(
        k=tuple(topk["k"]),
        values=_numbers(topk["agreement"]),
        low=_numbers(topk.get("low") or [None] * size),
        high=_numbers(topk.get("high") or [None] * size),
        random=_numbers(topk.get("random") or [None] * size),
        chance=_numbers(topk.get("chance") or [None] * size),
        tau=_numbers(topk.get("tau") or [None] * size),
        n=int(topk["n"]),
    )


def layer_data(document: Document) -> MatrixData:
    """Share of the summed |score| between each pair of layers; rows write, columns read; NaN: no edges."""
    table = document["per_layer"]
    values = np.array(table["values"], dtype=float)
    first_reader = np.maximum(np.arange(values.shape[0]) - 1, 0)
    values[np.arange(values.shape[1])[None, :] < first_reader[:, None]] = np.nan
    total = np.nansum(values)
    return MatrixData(
        rows=tuple(table["rows"]),
        columns=tuple(table["columns"]),
        values=values / total if total > 0 else values,
        row_title="writes",
        column_title="reads",
    )


def head_data(document: Document) -> MatrixData:
    """Summed score of each head's outgoing edges: rows are heads, columns layers in forward order."""
    values = np.array(document["per_head"], dtype=float).T
    return MatrixData(
        rows=tuple(f"head {head}" for head in range(values.shape[0])),
        columns=tuple(f"layer {layer}" for layer in range(values.shape[1])),
        values=values,
        row_title="head",
        column_title="layer",
    )


def plot_curve(data: CurveData, ax: Axes | None = None) -> Axes:
    """Draw the faithfulness curve on a logarithmic axis of circuit size."""
    ax = axes_of(ax, 6.6, 4.0)
    x = np.array(data.fractions)
    total = data.n_edges[-1] / data.fractions[-1]
    ax.set_xscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(0, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(data.target, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2.5)), zorder=1)
    ax.annotate(
        f"target {data.target:g}",
        (0, data.target),
        xycoords=("axes fraction", "data"),
        xytext=(3, 3),
        textcoords="offset points",
        color=MUTED,
    )
    if data.random_fractions:
        random_x = np.array(data.random_fractions)
        ax.fill_between(random_x, data.random_low, data.random_high, color=MUTED, alpha=0.16, linewidth=0)
        ax.plot(
            random_x,
            data.random_values,
            color=MUTED,
            linewidth=1.2,
            linestyle=(0, (4, 2)),
            marker="s",
            markersize=3,
        )
        _label_line(ax, random_x, data.random_values, "random edges", MUTED)
    ax.fill_between(x, data.low, data.high, color=SUPPORTS, alpha=0.16, linewidth=0)
    ax.plot(x, data.values, color=SUPPORTS, linewidth=1.8, marker="o", markersize=3.5)
    _label_line(ax, x, data.values, "strongest edges", SUPPORTS)
    if data.chosen is not None and data.chosen_value is not None:
        ax.plot(
            [data.chosen], [data.chosen_value], "o", markersize=9, markerfacecolor="none", color=INK, zorder=5
        )
        ax.annotate(
            "this circuit",
            (data.chosen, data.chosen_value),
            xytext=(9, -16),
            textcoords="offset points",
            color=INK,
        )
    smallest = data.fractions[0]
    ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if tick >= smallest * 0.99]
    ax.set_xticks(ticks, [f"{100 * tick:g} %\n{max(1, round(tick * total)):,}" for tick in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("edges kept (share and number)")
    ax.set_ylabel("normalised faithfulness")
    finite = [value for value in (*data.values, *data.low, *data.high, 0, 1) if math.isfinite(value)]
    ax.set_ylim(max(min(finite), -1) - 0.05, min(max(finite), 2) + 0.08)
    return ax


def plot_agreement(data: AgreementData, ax: Axes | None = None) -> Axes:
    """Draw top-K agreement: a point with its interval per K, random circuits and chance beside it."""
    ax = axes_of(ax, 6.6, 0.95 + 0.42 * len(data.k))
    rows = np.arange(len(data.k))
    for row, value in zip(rows, data.values, strict=True):
        ax.plot([0, 1], [row, row], color=RULE, linewidth=0.8, zorder=0)
        ax.plot([data.low[row], data.high[row]], [row, row], color=SUPPORTS, linewidth=2.2)
        names = ("circuit", "random circuits", "chance") if row == 0 else ("", "", "")
        ax.plot([value], [row], "o", color=SUPPORTS, markersize=6, label=names[0])
        ax.plot(
            [data.random[row]], [row], "s", color=MUTED, markersize=5, markerfacecolor="none", label=names[1]
        )
        ax.plot([data.chance[row]], [row], "|", color=MUTED, markersize=9, label=names[2])
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
        handletextpad=0.2,
    )
    ax.set_yticks(rows, [f"top {k}" for k in data.k])
    ax.set_ylim(len(data.k) - 0.5, -0.5)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("mean share of the model’s top K that the circuit also ranks in its top K")
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    return ax


def plot_matrix(data: MatrixData, ax: Axes | None = None, *, percent: bool = False) -> Axes:
    """Draw a matrix as cells whose ink grows with |value|; hue gives the sign, digits the value.

    Args:
        data: Rows are drawn from top to bottom.
        ax: Where to draw; default a new figure of fitting size.
        percent: Print values as whole per cents instead of two significant digits.
    """
    n_rows, n_columns = data.values.shape
    cell = 0.52 if max(n_rows, n_columns) <= 14 else 0.3
    ax = axes_of(ax, 0.9 + cell * n_columns, 0.75 + cell * 0.72 * n_rows)
    largest = np.nanmax(np.abs(data.values)) if np.isfinite(data.values).any() else 0.0
    printed = max(n_rows, n_columns) <= 14
    exponent = 0 if percent or not 0 < largest < 0.1 else math.floor(math.log10(largest))
    for (row, column), value in np.ndenumerate(data.values):
        if not math.isfinite(value):
            continue
        share = abs(value) / largest if largest > 0 else 0.0
        place = (column - 0.47, row - 0.46)
        ax.add_patch(Rectangle(place, 0.94, 0.92, facecolor=RULE, alpha=0.25, linewidth=0))
        ax.add_patch(
            Rectangle(
                place,
                0.94,
                0.92,
                facecolor=SUPPORTS if value >= 0 else OPPOSES,
                alpha=round(0.9 * share, 3),
                linewidth=0,
            )
        )
        if printed and share >= 0.02:
            text = f"{100 * value:.0f}" if percent else _short(value / 10**exponent)
            ink = PAPER if share > 0.6 else INK
            ax.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink)
    ax.set_xlim(-0.55, n_columns - 0.45)
    ax.set_ylim(n_rows - 0.45, -0.55)
    step = 1 if max(n_rows, n_columns) <= 14 else 2
    ax.set_xticks(range(0, n_columns, step), [_last_word(name) for name in data.columns[::step]])
    ax.set_yticks(range(0, n_rows, step), [_last_word(name) for name in data.rows[::step]])
    ax.tick_params(length=0)
    scaled = f" (numbers in units of 10{str(exponent).translate(_RAISED)})" if exponent else ""
    ax.set_xlabel(data.column_title + scaled)
    ax.set_ylabel(data.row_title)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def _tame(figure: Figure) -> None:
    """Texts of a picture are names as they are: no formula between dollars, none that fills the picture."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for formatter, put in (
                (axis.get_major_formatter(), axis.set_major_formatter),
                (axis.get_minor_formatter(), axis.set_minor_formatter),
            ):
                if isinstance(formatter, LogFormatter):
                    put(_PlainPowers(labelOnlyBase=formatter.labelOnlyBase))
            labels = [label.get_text() for label in axis.get_ticklabels()]
            if any(len(label) > LONGEST_TICK for label in labels):
                axis.set_ticks(axis.get_ticklocs(), [clipped(label, LONGEST_TICK) for label in labels])
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_text(clipped(text.get_text(), LONGEST_LABEL))


class _PlainPowers(LogFormatterSciNotation):
    """Ticks of a logarithmic axis without markup: 0.01, 1, 1,000, 10⁶."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """The label, or nothing where matplotlib writes none."""
        return plain_power(x) if super().__call__(x, pos) else ""


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


def to_svg(ax: Axes, *, label: str, key: str) -> str:
    """The figure of `ax` as one inline `<svg>` element for HTML.

    Text stays text, metadata and unused ids are dropped, ids that are needed get the prefix `key`
    (so that many pictures fit one page), colours of this module become CSS variables, and the
    same picture always gives the same string.

    Args:
        ax: Axes of a finished drawing.
        label: Text alternative, read out instead of the picture.
        key: Prefix of ids, unique on the page.
    """
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    _tame(figure)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        # Names may leave no room for the axes; the picture is then drawn without fitting it to them.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<title>.*?</title>", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", text))
    names = {name for pair in used for name in pair if name}
    text = re.sub(
        r' id="([^"]+)"', lambda match: f' id="{key}-{match[1]}"' if match[1] in names else "", text
    )
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{key}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{key}-\1"', text)
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", text)
    for colour, variable in _CSS_VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', text)
    assert view is not None
    width = float(view[1].split()[2])
    opening = (
        f'<svg class="plot" viewBox="{view[1]}" style="max-width:{width * 4 / 3:.0f}px" role="img" '
        f'aria-label="{_attribute(label)}">'
    )
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def axes_of(ax: Axes | None, width: float, height: float) -> Axes:
    """The axes given, or new ones of this size in inches, in the style of the report."""
    if ax is None:
        ax = Figure(figsize=(width, height), layout="constrained").subplots()
        assert isinstance(ax, Axes)
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


def _label_line(ax: Axes, x: np.ndarray, y: Sequence[float], text: str, colour: str) -> None:
    """Write a line's name to the left of where it first rises above one half."""
    values = np.array(y)
    above = np.flatnonzero(values > 0.5)
    if not len(above) or above[0] == 0:
        return
    after = int(above[0])
    part = (0.5 - values[after - 1]) / (values[after] - values[after - 1])
    if not math.isfinite(part):
        return
    crossing = x[after - 1] * (x[after] / x[after - 1]) ** part
    ax.annotate(
        text,
        (crossing, 0.5),
        xytext=(-8, 0),
        textcoords="offset points",
        color=colour,
        ha="right",
        va="center",
    )


def _numbers(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


def _short(value: float) -> str:
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
    return text.replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}")


def _last_word(name: str) -> str:
    return name.rsplit(" ", 1)[-1]


def _attribute(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
