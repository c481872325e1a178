"""Pictures of monitors and of evaluations over domains, drawn from their documents alone."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from assay.analyses.generalization.metrics import METRICS, reading_direction
from assay.analyses.generalization.ranking_plots import layer_matrix
from assay.core.errors import InputError
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, clipped
from assay.page.matrix import Matrix


if TYPE_CHECKING:
    from assay.analyses.generalization.monitor import Monitor

Document = Mapping[str, Any]
CURVES = ("ac", "atc", "cot", "doc")  # baselines drawn beside the shift, where they were measured
NAMES = {
    **{metric.name.lower(): metric.name for metric in METRICS.values()},
    "always": "an alarm that is always on",
}
LABELLED_RUNS, LONGEST_RUN = 12, 24  # origins of batches that still fit below the axis, and their letters
DASHED = (0, (4, 2))
# Dash and marker tell metrics apart where colour cannot.
STYLES: tuple[tuple[Any, str], ...] = (
    ("solid", "o"),
    (DASHED, "s"),
    ((0, (1, 1.6)), "^"),
    ((0, (6, 2, 1, 2)), "D"),
    ((0, (3, 1, 1, 1, 1, 1)), "v"),
)


def statistic_name(document: Document) -> str:
    """What the rules compare, for an axis."""
    return f"circuit shift ({document['distance']['key']})"


def known_shifts(document: Document, *, outputs: bool = False) -> tuple[float, ...]:
    """Shifts of the known batches."""
    known = document.get("calibration") or {}
    return tuple(known.get("output_shifts" if outputs else "shifts") or ())


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
    readings, key = document["readings"], "output_shift" if outputs else "shift"
    x = np.array([each["index"] + 1 for each in readings])
    y = np.array([each[key] for each in readings], dtype=float)
    alarm = np.array([bool(each["alarm"]) for each in readings])
    start, room = int(x[0]) - 1, max(1.0, 0.05 * len(x))
    known = known_shifts(document, outputs=outputs)
    if known:
        places = start - room + 0.3 * room * np.resize([-1.0, 0.0, 1.0], len(known))
        ax.plot(places, known, "o", color=MUTED, markersize=3, alpha=0.7, linewidth=0)
        ax.annotate(
            "known", (start - room, 0), xycoords=("data", "axes fraction"), xytext=(0, -12),
            textcoords="offset points", ha="center", va="top", color=MUTED, fontsize=8.5,
            annotation_clip=False,
        )  # fmt: skip
    _draw_levels(ax, document, outputs=outputs)
    ax.plot(x, y, color=SUPPORTS, linewidth=1.2, zorder=2)
    ax.plot(x[~alarm], y[~alarm], "o", color=SUPPORTS, markersize=4.5, zorder=3)
    ax.plot(x[alarm], y[alarm], "D", color=OPPOSES, markersize=5.5, zorder=4)
    _name_runs(ax, readings)
    ax.set_xlim(start - 2 * room if known else start + 0.3, start + len(x) + 0.7)
    ax.set_xticks(_whole(start + 1, start + len(x)))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("batch")
    ax.set_ylabel("shift of the outputs" if outputs else statistic_name(document))
    return ax


def _draw_levels(ax: Axes, document: Document, *, outputs: bool) -> None:
    """Lines above which the rules go off."""
    levels = [
        (value, name, dash)
        for value, name, dash in (
            (None if outputs else (document.get("threshold") or {}).get("value"), "threshold", "solid"),
            (
                (document.get("outputs" if outputs else "conformal") or {}).get("limit"),
                "conformal limit",
                DASHED,
            ),
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


def _name_runs(ax: Axes, readings: Sequence[Document]) -> None:
    """Write each stretch of batches of one origin above its first."""
    runs = [
        (next(group)["index"] + 1, name)
        for name, group in groupby(readings, key=lambda each: clipped(str(each["domain"]), LONGEST_RUN))
    ]
    if len(runs) > LABELLED_RUNS:
        return
    for place, (batch, name) in enumerate(runs):
        if place:
            ax.axvline(batch - 0.5, color=RULE, linewidth=0.8, zorder=0)
        ax.annotate(
            name, (batch - 0.4, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", color=MUTED, fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def plot_evidence(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the capital of the sequential test; it may be looked at after every batch."""
    ax = axes_of(ax, 8.6, 2.4)
    readings = [each for each in document["readings"] if each["e_value"] is not None]
    index = np.array([each["index"] + 1 for each in readings])
    values, needed = np.array([each["e_value"] for each in readings]), 1 / document["alpha"]
    ax.set_yscale("log")
    ax.axhline(1, color=RULE, linewidth=0.8, zorder=0)
    ax.axhline(needed, color=INK, linewidth=0.9, linestyle=DASHED)
    ax.annotate(
        f"alarm at {needed:g}", (1, needed), xycoords=("axes fraction", "data"), xytext=(-2, 3),
        textcoords="offset points", ha="right", color=INK, fontsize=8.5,
    )  # fmt: skip
    ax.plot(index, values, color=SUPPORTS, linewidth=1.4)
    over = values >= needed
    ax.plot(index[~over], values[~over], "o", color=SUPPORTS, markersize=3.5)
    ax.plot(index[over], values[over], "D", color=OPPOSES, markersize=4.5)
    ax.set_xlim(index.min() - 0.7, index.max() + 0.7)
    ax.set_xticks(_whole(int(index.min()), int(index.max())))
    ax.set_xlabel("batch")
    ax.set_ylabel("e-value")
    return ax


def plot_curves(curves: Mapping[str, Document], ax: Axes | None = None) -> Axes:
    """Draw alarm F1 against the performance threshold: the first metric in colour, the others beside it.

    Args:
        curves: Name of a metric -> `deltas`, and `mean`, `low`, `high` of the F1 at each.
        ax: Where to draw; default a new figure.
    """
    ax = axes_of(ax, 5.4, 4.4)
    for place, (name, curve) in enumerate(curves.items()):
        x, mean, low, high = (np.array(curve[key], dtype=float) for key in ("deltas", "mean", "low", "high"))
        dash, marker = STYLES[place % len(STYLES)]
        colour = SUPPORTS if place == 0 else (OPPOSES if place == 1 else MUTED)
        ax.plot(
            x, mean, color=colour, linewidth=1.8 if place == 0 else 1.2, linestyle=dash,
            marker=marker, markersize=3.5, markevery=max(1, len(x) // 10), label=name,
        )  # fmt: skip
        if place == 0:
            ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("performance below which an alarm is due")
    ax.set_ylabel("F1 of the alarm")
    _explain(ax)
    return ax


def plot_domains(document: Document, ax: Axes | None = None) -> Axes:
    """Draw shift against performance: what a threshold on the shift stands for."""
    ax = axes_of(ax, 5.4, 4.0)
    domains, key, threshold = (
        document["domains"],
        document["distance"]["key"],
        document.get("threshold") or {},
    )
    for kind, marker, colour, face, name in (
        ("known", "o", SUPPORTS, PAPER, "calibration domains"),
        ("test", "D", OPPOSES, OPPOSES, "test domains"),
    ):
        if domains[kind]:
            ax.plot(
                [each["performance"] for each in domains[kind]],
                [each["shifts"][key] for each in domains[kind]],
                marker, color=colour, markerfacecolor=face, markersize=5, linewidth=0,
                label=f"{len(domains[kind])} {name}",
            )  # fmt: skip
    value, target = threshold.get("value"), threshold.get("target")
    if value is not None:
        ax.axhline(value, color=INK, linewidth=0.9)
    if target is not None and math.isfinite(target):
        ax.axvline(target, color=INK, linewidth=0.9, linestyle=DASHED)
    ax.set_xlabel(domains["measure"])
    ax.set_ylabel(statistic_name(document))
    _explain(ax)
    return ax


def metric_name(key: str, shifts: Mapping[str, Any]) -> str:
    """What a page calls a metric."""
    if key.startswith("ddb-"):
        return f"depth bias ({key.removeprefix('ddb-')})"
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


def plot_evaluation(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the shift against performance, of calibration and test domains."""
    domains = {name: document[name] for name in ("known", "test")} | {"measure": measure_of(document)}
    return plot_domains({"domains": domains, "distance": {"key": document["distance"]}}, ax)


def measure_of(document: Document) -> str:
    """The measure of performance, for axes and tables."""
    return str(document["settings"]["measure"])


def plot_correlations(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the rank correlation of every metric with performance over the test domains, the best first."""
    found = document["correlations"]
    keys = by_agreement(document)
    ax = axes_of(ax, 6.0, 0.8 + 0.27 * max(len(keys), 3))
    ax.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    for place, key in enumerate(keys):
        row = found[key]
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [place] * 2, color=SUPPORTS, linewidth=2.0, alpha=0.55)
        ax.plot([row["srcc"]], [place], "o", color=INK, markersize=4.5)
        if row["known_srcc"] is not None:
            ax.plot([row["known_srcc"]], [place], "|", color=MUTED, markersize=9)
    shifts = document["test"][0]["shifts"]
    ax.set_yticks(range(len(keys)), [metric_name(key, shifts) for key in keys])
    ax.set_ylim(len(keys) - 0.5, -0.5)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"rank correlation with {measure_of(document)} over the test domains")
    return ax


def drawn_curves(document: Document) -> dict[str, Document]:
    """The curves that are drawn, under their names: the shift first."""
    curves = document["curves"] or {}
    shifts = document["test"][0]["shifts"]
    keys = [document["distance"], *CURVES, "always"]
    return {metric_name(key, shifts): curves[key] for key in keys if key in curves}


def plot_alarm_curves(document: Document, ax: Axes | None = None) -> Axes:
    """Draw F1 of the alarm over performance thresholds."""
    return plot_curves(drawn_curves(document), ax)


def layers_of(document: Document) -> list[str]:
    """Names of the layers of matrices, input first."""
    blocks = document["graph"]["n_layers"]
    if document["settings"]["granularity"] == "block":
        return ["input", *map(str, range(blocks)), "logits"]
    return ["input", *(f"{kind}{block}" for block in range(blocks) for kind in "am"), "logits"]


def motif_matrix(document: Document) -> Matrix:
    """The motif over the test domains."""
    return layer_matrix(document["motif"]["values"], layers_of(document))


def shift_matrix(document: Document, domain: Document) -> Matrix:
    """The rank-shift map of a domain."""
    return layer_matrix(domain["layers"], layers_of(document))


def extremes(document: Document) -> dict[str, Document]:
    """The test domains with the best and the worst performance, one where they are the same."""
    ordered = sorted(document["test"], key=lambda each: -each["performance"])
    best, worst = ordered[0], ordered[-1]
    return {"worst": worst} if best is worst else {"best": best, "worst": worst}


def _explain(ax: Axes) -> None:
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8.5, labelcolor=MUTED)


def _whole(start: int, end: int) -> list[int]:
    """Some batch numbers from start to end, at most about ten."""
    n = end - start + 1
    step = next(s for power in range(12) for s in (10**power, 2 * 10**power, 5 * 10**power) if n / s <= 10)
    rest = list(range(-(-start // step) * step, end + 1, step))
    return rest if rest and rest[0] - start < step / 2 else [start, *rest]
