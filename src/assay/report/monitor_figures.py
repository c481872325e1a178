"""Pictures of a monitor: `*_data` says what will be drawn, from the document alone, `plot_*` draws it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped
from assay.page.matrix import Matrix


Document = Mapping[str, Any]
LABELLED_RUNS = 12  # origins of batches that still fit below the axis
# Dash and marker tell metrics apart where colour cannot.
STYLES: tuple[tuple[Any, str], ...] = (
    ("solid", "o"),
    ((0, (4, 2)), "s"),
    ((0, (1, 1.6)), "^"),
    ((0, (6, 2, 1, 2)), "D"),
    ((0, (3, 1, 1, 1, 1, 1)), "v"),
)


@dataclass(frozen=True, kw_only=True)
class ShiftData:
    """Shift over the batches.

    Attributes:
        index: Numbers of the batches, from 1.
        values, low, high: Shift and its interval; NaN where undefined.
        alarm: Whether the rule in force went off; False where there is none.
        known: Shifts of the batches in distribution.
        threshold: Shift above which the threshold rule goes off, or None.
        limit: The same for the conformal rule.
        runs: First batch and name of each stretch of batches of one origin.
        level: Coverage of the intervals.
        distance: Key of the distance.
    """

    index: tuple[int, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    alarm: tuple[bool, ...]
    known: tuple[float, ...]
    threshold: float | None
    limit: float | None
    runs: tuple[tuple[int, str], ...]
    level: float
    distance: str


@dataclass(frozen=True, kw_only=True)
class EvidenceData:
    """Capital of the sequential test after each batch; `needed`, 1 / alpha, raises the alarm."""

    index: tuple[int, ...]
    values: tuple[float, ...]
    needed: float


@dataclass(frozen=True, kw_only=True)
class CurvesData:
    """F1 of the alarm against the performance threshold: a line and a band for each metric."""

    deltas: tuple[float, ...]
    names: tuple[str, ...]
    mean: tuple[tuple[float, ...], ...]
    low: tuple[tuple[float, ...], ...]
    high: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class DomainsData:
    """Performance and shift of calibration and test domains, and the threshold in both units."""

    known: tuple[tuple[float, float], ...]
    test: tuple[tuple[float, float], ...]
    target: float | None
    threshold: float | None
    measure: str
    distance: str


def shift_data(document: Document) -> ShiftData:
    """The shifts of a monitor's document."""
    readings = document["readings"]
    ends = [each["interval"] for each in readings]
    runs: list[tuple[int, str]] = []
    for each in readings:
        if not runs or runs[-1][1] != clipped(str(each["domain"]), 24):
            runs.append((each["index"] + 1, clipped(str(each["domain"]), 24)))
    return ShiftData(
        index=tuple(each["index"] + 1 for each in readings),
        values=tuple(each["shift"] for each in readings),
        low=_numbers([each["low"] for each in ends]),
        high=_numbers([each["high"] for each in ends]),
        alarm=tuple(bool(each["alarm"]) for each in readings),
        known=tuple((document.get("calibration") or {}).get("shifts") or ()),
        threshold=(document.get("threshold") or {}).get("value"),
        limit=(document.get("conformal") or {}).get("limit"),
        runs=tuple(runs),
        level=document["level"],
        distance=document["distance"]["key"],
    )


def evidence_data(document: Document) -> EvidenceData | None:
    """The capital of the sequential test; None where it does not run."""
    readings = [each for each in document["readings"] if each["e_value"] is not None]
    if not readings:
        return None
    return EvidenceData(
        index=tuple(each["index"] + 1 for each in readings),
        values=tuple(each["e_value"] for each in readings),
        needed=1 / document["alpha"],
    )


def layers_data(document: Document, reading: Document) -> Matrix | None:
    """The rank-shift map of a reading; NaN where no edge joins two layers. None where it was not kept."""
    if not reading["layers"]:
        return None
    graph = document["graph"]
    values = np.array(reading["layers"], dtype=float)
    last = len(values) - 1
    rows, columns = np.indices(values.shape)
    own = (rows == columns) & (rows > 0) & (rows < last) & (graph["mlps"] and not graph["parallel"])
    values[~((rows < columns) | own)] = np.nan
    blocks = [str(layer) for layer in range(last - 1)]
    return Matrix(
        rows=("input", *blocks),
        columns=(*blocks, "logits"),
        values=values[:-1, 1:],  # nothing is written by logits or read by the input
        row_title="layer that writes",
        column_title="layer that reads",
    )


def curves_data(domains: Document) -> CurvesData | None:
    """Alarm F1 of the record of a calibration on domains; None where it holds no curve."""
    curves = domains.get("curves") or {}
    if not curves:
        return None
    return CurvesData(
        deltas=tuple(next(iter(curves.values()))["deltas"]),
        names=tuple(curves),
        mean=tuple(_numbers(each["mean"]) for each in curves.values()),
        low=tuple(_numbers(each["low"]) for each in curves.values()),
        high=tuple(_numbers(each["high"]) for each in curves.values()),
    )


def domains_data(document: Document, domains: Document) -> DomainsData:
    """Shift against performance, with the document's threshold."""
    key = document["distance"]["key"]
    threshold = document.get("threshold") or {}

    def points(found: Sequence[Document]) -> tuple[tuple[float, float], ...]:
        return tuple((each["performance"], each["shifts"][key]) for each in found)

    return DomainsData(
        known=points(domains["known"]),
        test=points(domains["test"]),
        target=threshold.get("target"),
        threshold=threshold.get("value"),
        measure=domains["measure"],
        distance=key,
    )


def plot_shift(data: ShiftData, ax: Axes | None = None) -> Axes:
    """Draw the shift of every batch with its interval; known batches stand to the left of the first."""
    ax = axes_of(ax, 8.6, 3.9)
    x, y = np.array(data.index), np.array(data.values)
    alarm = np.array(data.alarm, dtype=bool)
    right = max(len(x), 1) + 0.7
    room = max(1.0, 0.05 * len(x))
    if data.known:
        places = -room + 0.3 * room * np.resize([-1.0, 0.0, 1.0], len(data.known))
        ax.plot(places, data.known, "o", color=MUTED, markersize=3, alpha=0.7, linewidth=0)
        ax.annotate(
            "known", (-room, 0), xycoords=("data", "axes fraction"), xytext=(0, -12),
            textcoords="offset points", ha="center", va="top", color=MUTED, fontsize=8.5,
            annotation_clip=False,
        )  # fmt: skip
    levels = [
        (value, name, dash)
        for value, name, dash in (
            (data.threshold, "threshold", "solid"),
            (data.limit, "conformal limit", (0, (4, 2))),
        )
        if value is not None
    ]
    for value, name, dash in levels:
        ax.axhline(value, color=INK, linewidth=0.9, linestyle=dash, zorder=1)
        ax.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
            va="center" if len(levels) == 1 else "bottom" if value == max(levels)[0] else "top", color=INK,
            fontsize=8.5, annotation_clip=False,
        )  # fmt: skip
    ax.fill_between(x, data.low, data.high, color=SUPPORTS, alpha=0.15, linewidth=0, zorder=0)
    ax.plot(x, y, color=SUPPORTS, linewidth=1.2, zorder=2)
    ax.plot(x[~alarm], y[~alarm], "o", color=SUPPORTS, markersize=4.5, zorder=3)
    ax.plot(x[alarm], y[alarm], "D", color=OPPOSES, markersize=5.5, zorder=4)
    if len(data.runs) <= LABELLED_RUNS:
        for place, (first, name) in enumerate(data.runs):
            if place:
                ax.axvline(first - 0.5, color=RULE, linewidth=0.8, zorder=0)
            ax.annotate(
                name, (first - 0.4, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                textcoords="offset points", color=MUTED, fontsize=8.5, annotation_clip=False,
            )  # fmt: skip
    ax.set_xlim((-2 * room) if data.known else 0.3, right)
    ax.set_xticks(_whole(len(x)))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch")
    ax.set_ylabel(f"circuit shift ({data.distance})")
    return ax


def plot_evidence(data: EvidenceData, ax: Axes | None = None) -> Axes:
    """Draw the capital of the sequential test; it may be looked at after every batch."""
    ax = axes_of(ax, 8.6, 2.4)
    ax.set_yscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(data.needed, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.annotate(
        f"alarm at {data.needed:g}", (1, data.needed), xycoords=("axes fraction", "data"), xytext=(-2, 3),
        textcoords="offset points", ha="right", color=INK, fontsize=8.5,
    )  # fmt: skip
    values = np.array(data.values)
    ax.plot(data.index, values, color=SUPPORTS, linewidth=1.4)
    over = values >= data.needed
    index = np.array(data.index)
    ax.plot(index[~over], values[~over], "o", color=SUPPORTS, markersize=3.5)
    ax.plot(index[over], values[over], "D", color=OPPOSES, markersize=4.5)
    ax.set_xlim(0.3, index.max() + 0.7)
    ax.set_xticks(_whole(len(index)))
    ax.set_xlabel("batch")
    ax.set_ylabel("e-value")
    return ax


def plot_curves(data: CurvesData, ax: Axes | None = None) -> Axes:
    """Draw alarm F1 against the performance threshold: the first metric in colour, the others beside it."""
    ax = axes_of(ax, 5.4, 4.4)
    x = np.array(data.deltas)
    for place, name in enumerate(data.names):
        dash, marker = STYLES[place % len(STYLES)]
        colour = SUPPORTS if place == 0 else (OPPOSES if place == 1 else MUTED)
        ax.plot(
            x, data.mean[place], color=colour, linewidth=1.8 if place == 0 else 1.2, linestyle=dash,
            marker=marker, markersize=3.5, markevery=max(1, len(x) // 10), label=name,
        )  # fmt: skip
        if place == 0:
            ax.fill_between(x, data.low[place], data.high[place], color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("performance below which an alarm is due")
    ax.set_ylabel("F1 of the alarm")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)
    return ax


def plot_domains(data: DomainsData, ax: Axes | None = None) -> Axes:
    """Draw shift against performance: what a threshold on the shift stands for."""
    ax = axes_of(ax, 5.4, 4.0)
    for points, marker, name, face in (
        (data.known, "o", "calibration domains", PAPER),
        (data.test, "D", "test domains", OPPOSES),
    ):
        if points:
            xs, ys = zip(*points, strict=True)
            ax.plot(
                xs, ys, marker, color=SUPPORTS if face == PAPER else OPPOSES, markerfacecolor=face,
                markersize=5, linewidth=0, label=f"{len(points)} {name}",
            )  # fmt: skip
    if data.threshold is not None:
        ax.axhline(data.threshold, color=INK, linewidth=0.9)
    if data.target is not None and math.isfinite(data.target):
        ax.axvline(data.target, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_xlabel(data.measure)
    ax.set_ylabel(f"circuit shift ({data.distance})")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)
    return ax


def _numbers(values: Sequence[float | int | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)


def _whole(n: int) -> list[int]:
    """Some batch numbers from 1 to n, at most about ten."""
    step = next(s for power in range(12) for s in (10**power, 2 * 10**power, 5 * 10**power) if n / s <= 10)
    return sorted({1, *range(step, n + 1, step)}) if n else []
