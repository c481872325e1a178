"""Pictures of measurements: a number with its interval and limits, and faithfulness by size."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.record import Record
from assay.page.draw import INK, MUTED, PAPER, RULE, SUPPORTS, axes_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.metrics.curve import FaithfulnessCurve


@dataclass(frozen=True, kw_only=True)
class CurveData(Record):
    """Faithfulness against circuit size, with its interval band and random circuits of the same sizes.

    Attributes:
        n_edges: Circuit sizes, ascending.
        fractions: The same as shares of all edges, in (0, 1].
        values, low, high: Normalised faithfulness (0 empty circuit, 1 model) and its interval; NaN undefined.
        random_fractions: Sizes at which random circuits ran; empty where none did.
        random_values, random_low, random_high: Their mean and range.
        target: The faithfulness asked for, or None.
        chosen: Share of edges that the reported circuit was cut from, or None.
        chosen_value: Its faithfulness, or None.
        n: Prompts behind each value.
        n_random: Random circuits of each size.
        cpr, cmd: Area under the curve of the published sizes, and its mean distance from 1.
    """

    n_edges: tuple[int, ...]
    fractions: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    random_fractions: tuple[float, ...] = ()
    random_values: tuple[float, ...] = ()
    random_low: tuple[float, ...] = ()
    random_high: tuple[float, ...] = ()
    target: float | None = None
    chosen: float | None = None
    chosen_value: float | None = None
    n: int
    n_random: int
    cpr: float
    cmd: float


def plot_measurement(measurement: Measurement, ax: "Axes | None" = None) -> "Axes":
    """Draw a value with its interval, its parts of the same unit below it, and the limits of its rule.

    Raises:
        InputError: If the value and all its parts are undefined.
    """
    parts = {measurement.name: measurement} | {
        name: part for name, part in measurement.parts.items() if part.unit == measurement.unit
    }
    rows = {name: part for name, part in parts.items() if math.isfinite(part.value)}
    if not rows:
        raise InputError(f"cannot plot {measurement.name}: it is undefined ({measurement.reason})")
    ax = axes_of(ax, 6.6, 0.9 + 0.34 * max(2, len(rows)))
    rule, random = measurement.rule, (measurement.baseline.get("random") or {}).get("value")
    limits = () if rule is None else (rule.pass_at, rule.fail_at)
    for limit in (each for each in limits if each is not None):
        ax.axvline(limit, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    for place, (name, part) in enumerate(rows.items()):
        interval = part.interval()
        ax.plot([interval.low, interval.high], [place] * 2, color=SUPPORTS, linewidth=2.2)
        face = SUPPORTS if name == measurement.name else PAPER
        ax.plot([part.value], [place], "o", color=SUPPORTS, markersize=6, markerfacecolor=face)
    if random is not None:
        ax.plot([random], [0], "s", color=MUTED, markersize=5, markerfacecolor="none")
    ax.set_yticks(range(len(rows)), [name.replace("-", " ") for name in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    unit = f", {measurement.unit}" if measurement.unit else ""
    marks = (["dotted: limits"] if rule else []) + (["square: random circuits"] if random is not None else [])
    notes = "; ".join([f"n = {measurement.n}", "line: 95 % interval", *marks])
    ax.set_xlabel(f"{measurement.name.replace('-', ' ')}{unit}\n({notes})")
    return ax


def curve_data(
    curve: "FaithfulnessCurve", random: np.ndarray | None = None, at: np.ndarray | None = None
) -> CurveData:
    """What is drawn of a curve.

    Args:
        curve: The curve.
        random: Faithfulness of random circuits, `[n_draws, n_sizes]`; default: those of the curve.
        at: Their shares of all edges.
    """
    low, high = curve.band()
    lines = {"fractions": curve.fractions, "values": curve.values, "low": low, "high": high}
    if random is None or at is None:
        random, at = curve.random, curve.fractions
    if random is not None:
        lines |= {"random_fractions": at, "random_values": random.mean(0)}
        lines |= {"random_low": random.min(0), "random_high": random.max(0)}
    numbers: dict[str, Any] = {name: tuple(each.tolist()) for name, each in lines.items()}
    numbers |= {"n": curve.points[0].n, "n_random": 0 if random is None else len(random)}
    return CurveData(n_edges=tuple(curve.n_edges.tolist()), cpr=curve.cpr, cmd=curve.cmd, **numbers)


def plot_faithfulness(curve: "FaithfulnessCurve", ax: "Axes | None" = None) -> "Axes":
    """Draw faithfulness against size with its interval, and random circuits of the same sizes."""
    return plot_curve(curve_data(curve), ax)


def plot_curve(data: CurveData, ax: "Axes | None" = None) -> "Axes":
    """Draw the faithfulness curve on a logarithmic axis of circuit size."""
    from matplotlib.ticker import NullFormatter

    ax = axes_of(ax, 6.6, 4.0)
    ax.set_xscale("log")
    for level in (0, 1):
        ax.axhline(level, color=RULE, linewidth=0.8, zorder=0)
    x, random_x = np.array(data.fractions), np.array(data.random_fractions)
    ax.fill_between(x, data.low, data.high, color=SUPPORTS, alpha=0.16, linewidth=0)
    ax.plot(x, data.values, "o-", color=SUPPORTS, linewidth=1.8, markersize=3.5, label="strongest edges")
    if len(random_x):
        ax.fill_between(random_x, data.random_low, data.random_high, color=MUTED, alpha=0.16, linewidth=0)
        ax.vlines(random_x, data.random_low, data.random_high, color=MUTED, linewidth=0.6)
        ax.plot(
            random_x,
            data.random_values,
            "s--",
            color=MUTED,
            linewidth=1.2,
            markersize=3,
            label="random edges",
        )
    if data.target is not None:
        dotted = (0, (1, 2.5))
        ax.axhline(data.target, color=MUTED, linewidth=0.8, linestyle=dotted, label=f"target {data.target:g}")
    if data.chosen is not None and data.chosen_value is not None:
        at = [data.chosen], [data.chosen_value]
        ax.scatter(*at, s=81, facecolors="none", edgecolors=INK, zorder=5, label="this circuit")
    total, smallest = data.n_edges[-1] / data.fractions[-1], data.fractions[0]
    ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if tick >= smallest * 0.99]
    ax.set_xticks(ticks, [f"{100 * tick:g} %\n{max(1, round(tick * total)):,}" for tick in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("edges kept (share and number)")
    ax.set_ylabel("normalised faithfulness")
    finite = [value for value in (*data.values, *data.low, *data.high, 0, 1) if math.isfinite(value)]
    ax.set_ylim(max(min(finite), -1) - 0.05, min(max(finite), 2) + 0.08)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, labelcolor=MUTED)
    return ax
