"""Pictures of monitors and of evaluations over domains, drawn from their documents alone."""

from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from assay.analyses.generalization.domains import READ
from assay.analyses.generalization.metrics import METRICS, SHARE, reading_direction
from assay.core.errors import InputError
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Monitor

Document = Mapping[str, Any]
NAMES = {metric.name.lower(): metric.name for metric in METRICS.values()}
NAMES["always"] = "an alarm that is always on"
READINGS = {METRICS[key].name.lower(): METRICS[key] for key in READ}
LABELLED_RUNS, LONGEST_RUN = 12, 24  # origins of batches that still fit above the axes, and their letters
DASHED = (0, (4, 2))
DASHES = ("solid", DASHED, (0, (1, 1.6)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "os^Dv"  # these and dashes tell metrics apart where colour cannot


def plot_monitor(monitor: "Monitor", ax: Axes | None = None) -> Axes:
    """Draw the shift of every batch that a monitor observed.

    Raises:
        InputError: Before the first batch.
    """
    if not monitor.readings:
        raise InputError("this monitor has no reading yet; call `observe` with a batch")
    return plot_shift(monitor.to_dict(), ax)


def plot_shift(document: Document, ax: Axes | None = None, *, outputs: bool = False) -> Axes:
    """Draw the shift of every batch, of the circuit or the outputs; known batches are left of the first."""
    ax = axes_of(ax, 8.6, 2.9 if outputs else 3.9)
    readings, kind = document["readings"], "output_shift" if outputs else "shift"
    x = np.array([each["index"] + 1 for each in readings])
    y = np.array([each[kind] for each in readings], dtype=float)
    alarm = np.array([bool(each["alarm"]) for each in readings])
    start, room = x[0] - 1, max(1.0, 0.05 * len(x))
    known = (document["calibration"] or {}).get(f"{kind}s") or ()
    if len(known):
        places = start - room + 0.3 * room * np.resize([-1.0, 0.0, 1.0], len(known))
        ax.plot(places, known, "o", color=MUTED, markersize=3, alpha=0.7, linewidth=0)
        ax.annotate(
            "known", (start - room, 0), xycoords=("data", "axes fraction"), xytext=(0, -12),
            textcoords="offset points", ha="center", va="top", color=MUTED, fontsize=8.5,
            annotation_clip=False,
        )  # fmt: skip
    threshold = None if outputs else (document["threshold"] or {}).get("value")
    limit = document["limits"].get("output shift" if outputs else "circuit shift")
    for value, name, dash, align in (
        (threshold, "threshold", "solid", "bottom"),
        (limit, "conformal limit", DASHED, "top"),
    ):
        if value is not None:
            ax.axhline(value, color=INK, linewidth=0.9, linestyle=dash, zorder=1)
            ax.annotate(
                name, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0),
                textcoords="offset points", va=align, color=INK, fontsize=8.5, annotation_clip=False,
            )  # fmt: skip
    ax.plot(x, y, color=SUPPORTS, linewidth=1.2, zorder=2)
    ax.plot(x[~alarm], y[~alarm], "o", color=SUPPORTS, markersize=4.5, zorder=3)
    ax.plot(x[alarm], y[alarm], "D", color=OPPOSES, markersize=5.5, zorder=4)
    runs = groupby(readings, key=lambda each: clipped(str(each["domain"]), LONGEST_RUN))
    firsts = [(name, next(group)["index"] + 1) for name, group in runs]
    for name, batch in firsts if len(firsts) <= LABELLED_RUNS else ():
        ax.annotate(
            name, (batch - 0.4, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", color=MUTED, fontsize=8.5, annotation_clip=False,
        )  # fmt: skip
    ax.set_xlim(start - 2 * room if len(known) else start + 0.3, start + len(x) + 0.7)
    ticks = MaxNLocator(integer=True).tick_values(x[0], x[-1])
    ax.set_xticks(ticks[(ticks >= x[0]) & (ticks <= x[-1])])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch")
    ax.set_ylabel("shift of the outputs" if outputs else f"circuit shift ({document['distance']['key']})")
    return ax


def plot_domains(document: Document, ax: Axes | None = None, *, threshold: Document | None = None) -> Axes:
    """Draw shift against performance over domains, and what a threshold on the shift stands for.

    Args:
        document: Of a `DomainEvaluation`.
        ax: Where to draw; default a new figure.
        threshold: Record of the threshold in force.
    """
    ax = axes_of(ax, 5.4, 4.0)
    for kind, marker, colour, face, name in (
        ("known", "o", SUPPORTS, PAPER, "calibration domains"),
        ("test", "D", OPPOSES, OPPOSES, "test domains"),
    ):
        if domains := document[kind]:
            ax.plot(
                [each["performance"] for each in domains],
                [each["shifts"][document["distance"]] for each in domains],
                marker, color=colour, markerfacecolor=face, markersize=5, linewidth=0,
                label=f"{len(domains)} {name}",
            )  # fmt: skip
    if threshold:
        ax.axhline(threshold["value"], color=INK, linewidth=0.9)
        if threshold["target"] is not None:
            ax.axvline(threshold["target"], color=INK, linewidth=0.9, linestyle=DASHED)
    ax.set_xlabel(document["settings"]["measure"])
    ax.set_ylabel(f"circuit shift ({document['distance']})")
    _explain(ax)
    return ax


# ----------------------------------------------------------------------------------------- evaluations


def metric_name(key: str, shifts: Mapping[str, Any]) -> str:
    """What a page calls a metric."""
    return f"shift ({key})" if key in shifts else NAMES.get(key, key)


def agreement(key: str, document: Document) -> float:
    """Rank correlation with performance, positive where it has the sign that the metric states."""
    found = document["correlations"][key]["srcc"]
    direction = -1 if key in document["test"][0]["shifts"] else reading_direction(key)
    return float(direction * found if direction else abs(found))


def by_agreement(document: Document) -> list[str]:
    """Metrics whose correlation with performance is defined, the best first."""
    keys = [key for key, row in document["correlations"].items() if row["srcc"] is not None]
    return sorted(keys, key=lambda key: -agreement(key, document))


def plot_correlations(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the rank correlation of every metric with performance over the test domains, the best first."""
    keys = by_agreement(document)
    ax = axes_of(ax, 6.0, 0.8 + 0.27 * max(len(keys), 3))
    ax.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    for place, key in enumerate(keys):
        row = document["correlations"][key]
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [place] * 2, color=SUPPORTS, linewidth=2.0, alpha=0.55)
        ax.plot([row["srcc"]], [place], "o", color=INK, markersize=4.5)
        if row["known_srcc"] is not None:
            ax.plot([row["known_srcc"]], [place], "|", color=MUTED, markersize=9)
    ax.set_yticks(range(len(keys)), [metric_name(key, document["test"][0]["shifts"]) for key in keys])
    ax.set_ylim(len(keys) - 0.5, -0.5)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"rank correlation with {document['settings']['measure']} over the test domains")
    return ax


def drawn_curves(document: Document) -> dict[str, Document]:
    """The curves that are drawn, under their names: the shift, the monitor's baselines, an alarm always."""
    curves, shifts = document["curves"] or {}, document["test"][0]["shifts"]
    shares = (key for key, metric in READINGS.items() if metric.bounds == SHARE)
    keys = [document["distance"], *shares, "always"]
    return {metric_name(key, shifts): curves[key] for key in keys if key in curves}


def plot_alarm_curves(document: Document, ax: Axes | None = None) -> Axes:
    """Draw alarm F1 against the performance threshold: the shift in colour, the others beside it."""
    ax = axes_of(ax, 5.4, 4.4)
    for place, (name, curve) in enumerate(drawn_curves(document).items()):
        x, mean, low, high = (np.array(curve[key], dtype=float) for key in ("deltas", "mean", "low", "high"))
        colour = (SUPPORTS, OPPOSES, MUTED)[min(place, 2)]
        ax.plot(
            x, mean, color=colour, linewidth=1.8 if place == 0 else 1.2, linestyle=DASHES[place % 5],
            marker=MARKERS[place % 5], markersize=3.5, markevery=max(1, len(x) // 10), label=name,
        )  # fmt: skip
        if place == 0:
            ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("performance below which an alarm is due")
    ax.set_ylabel("F1 of the alarm")
    _explain(ax)
    return ax


def _explain(ax: Axes) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)
