"""The picture of all gates: each on a scale of its own, around one line that is its limit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.analyses.calibration.page_words import KINDS, judged_of, published_words
from assay.analyses.calibration.quantity import Judged
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.analyses.calibration.battery import CalibrationReport

COLOURS = {"pass": SUPPORTS, "moderate": INK, "fail": OPPOSES}
_CONFIDENT, _PUBLISHED = 1.06, 1.5  # places of the two columns of verdicts


@dataclass(frozen=True, kw_only=True)
class GateLine:
    """A gate in the picture of all.

    Attributes:
        code, name: Of the gate.
        state: Its verdict with confidence, a key of `KINDS`.
        published: The published verdict.
        value, low, high, published_value: Places in (-1, 1): 0 is the limit of a pass, right of it passes.
    """

    code: str
    name: str
    state: str
    published: str
    value: float | None
    low: float | None
    high: float | None
    published_value: float | None


def relative(judged: Judged, value: float | None) -> float | None:
    """Where a number is if the limit of a pass is 0 and passing is to the right; in (-1, 1).

    The distance is counted in units of the limit itself (of 0.1 where that is 0) and bent, x / (1 + |x|), so
    that every number has a place: half way to the edge lies one unit.
    """
    if value is None or judged.rule is None:
        return None
    distance = (value - judged.rule.pass_at) / judged.unit * (1 if judged.rule.higher else -1)
    return distance / (1 + abs(distance))


def gate_lines(gates: Sequence[Mapping[str, Any]]) -> list[GateLine]:
    """What the picture of all gates draws, in the order given."""
    return [_gate_line(gate, judged_of(gate["verdict"])) for gate in gates]


def _gate_line(gate: Mapping[str, Any], judged: Judged) -> GateLine:
    interval = judged.interval
    ends = [] if interval is None else [relative(judged, each) for each in (interval.low, interval.high)]
    low, high = sorted(each for each in ends if each is not None) or (None, None)
    return GateLine(
        code=str(gate["code"]),
        name=str(gate["name"]),
        state=judged.state if judged.state in KINDS else "none",
        published=judged.published,
        value=relative(judged, judged.value),
        low=low,
        high=high,
        published_value=relative(judged, judged.published_value),
    )


def plot_gates(lines: Sequence[GateLine], ax: "Axes | None" = None) -> "Axes":
    """Draw a line per gate: the interval around its limit, the published number, both verdicts as text."""
    ax = axes_of(ax, 9.2, 0.9 + 0.3 * len(lines))
    ax.set_facecolor("none")
    ax.axvspan(0, 1.02, color=SUPPORTS, alpha=0.06, linewidth=0)
    ax.axvspan(-1.02, 0, color=OPPOSES, alpha=0.05, linewidth=0)
    ax.plot([0, 0], [-0.6, len(lines) - 0.4], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
    for at, line in enumerate(lines):
        _draw_line(ax, at, line)
    for x, text in ((_CONFIDENT, "with confidence"), (_PUBLISHED, "published")):
        ax.text(x, -0.95, text, va="center", color=INK, fontsize=8.5, clip_on=False)
    ax.text(-0.98, -0.95, "\N{LEFTWARDS ARROW} fails", va="center", color=MUTED, fontsize=8.5)
    ax.text(0.98, -0.95, "passes \N{RIGHTWARDS ARROW}", va="center", ha="right", color=MUTED, fontsize=8.5)
    ax.text(0, -0.95, "limit", va="center", ha="center", color=MUTED, fontsize=8.5)
    names = [f"{clipped(line.name, 36)}  {clipped(line.code, 8)}" for line in lines]
    ax.set_yticks(range(len(lines)), names, parse_math=False)
    ax.tick_params(axis="y", length=0, colors=INK)
    ax.set_ylim(len(lines) - 0.4, -1.4)
    ax.set_xlim(-1.02, 1.82)
    ax.set_xticks([])
    ax.set_xlabel(
        "distance from the limit in units of the limit, drawn shorter the further it is", loc="left"
    )
    ax.xaxis.set_label_position("top")
    for spine in ax.spines.values():
        spine.set_visible(False)
    _explain_signs(ax)
    return ax


def _draw_line(ax: "Axes", at: int, line: GateLine) -> None:
    colour = COLOURS.get(line.state, MUTED)
    if line.low is not None and line.high is not None:
        ax.plot([line.low, line.high], [at, at], color=colour, linewidth=3, solid_capstyle="butt")
    if line.value is not None:
        ax.plot([-1.02, 1.02], [at, at], color=RULE, linewidth=0.6, zorder=0)
        filled = colour if line.low is not None else PAPER
        ax.plot(line.value, at, "o", color=colour, markersize=6, markerfacecolor=filled, markeredgewidth=1.6)
    else:
        ax.text(-0.98, at, KINDS[line.state][1], va="center", color=MUTED, fontsize=8, style="italic")
    if line.published_value is not None:
        ax.plot(
            line.published_value,
            at,
            "D",
            color=COLOURS.get(line.published, MUTED),
            markersize=8.5,
            markerfacecolor="none",
            markeredgewidth=1,
            zorder=4,
        )
    for x, state, word in (
        (_CONFIDENT, line.state, KINDS[line.state][1]),
        (_PUBLISHED, line.published, published_words(line.published)[1]),
    ):
        ax.text(x, at, word, va="center", color=COLOURS.get(state, MUTED), fontsize=8.5, clip_on=False)


def _explain_signs(ax: "Axes") -> None:
    from matplotlib.lines import Line2D

    signs = (
        ("number with interval", "o", 6, 3, INK),
        ("without", "o", 6, 0, PAPER),
        ("number of the published rule", "D", 8, 0, "none"),
    )
    handles = [
        Line2D(
            [],
            [],
            color=INK,
            marker=marker,
            markersize=size,
            linewidth=width,
            markerfacecolor=face,
            label=label,
        )
        for label, marker, size, width, face in signs
    ]
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        ncols=3,
        frameon=False,
        fontsize=8.5,
        labelcolor=MUTED,
    )


def plot_calibration(report: "CalibrationReport", ax: "Axes | None" = None) -> "Axes":
    """Draw the gates of a calibration around the limit of a pass."""
    return plot_gates(gate_lines(report.to_dict()["gates"]), ax)
