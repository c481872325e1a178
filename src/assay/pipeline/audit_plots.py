"""The pictures of an audit: its curve, top-K agreement, attribution of heads and of pairs of layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from assay.core.errors import InputError
from assay.metrics.plots import CurveData, plot_curve
from assay.page.draw import MUTED, RULE, SUPPORTS, axes_of
from assay.page.matrix import Matrix
from assay.pipeline.audit import Audit


if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def curve_data(audit: Audit) -> CurveData:
    """The faithfulness curve of an audit."""
    curve, circuit = audit.curve, audit.reported
    if curve is None:
        raise InputError("this audit was made without the curve; run it again without --skip curve")
    random = curve.get("random") or {}
    faithfulness = circuit.get("faithfulness") or {}
    return CurveData(
        n_edges=tuple(curve["n_edges"]),
        fractions=tuple(curve["fractions"]),
        values=_floats(curve["values"]),
        low=_floats(curve.get("low") or [None] * len(curve["values"])),
        high=_floats(curve.get("high") or [None] * len(curve["values"])),
        random_fractions=tuple(random.get("fractions", [])),
        random_values=_floats(random.get("values", [])),
        random_low=_floats(random.get("low", [])),
        random_high=_floats(random.get("high", [])),
        target=float(circuit["target"]),
        chosen=circuit["size"] / audit.graph["n_edges"],
        chosen_value=faithfulness.get("value"),
        n=int(curve["n"]),
    )


def agreement_data(audit: Audit) -> AgreementData:
    """Top-K agreement of an audit."""
    topk = audit.topk
    if topk is None:
        raise InputError("this audit has no top-K agreement; it needs labels")
    size = len(topk["k"])
    return AgreementData(
        k=tuple(topk["k"]),
        values=_floats(topk["agreement"]),
        low=_floats(topk.get("low") or [None] * size),
        high=_floats(topk.get("high") or [None] * size),
        random=_floats(topk.get("random") or [None] * size),
        chance=_floats(topk.get("chance") or [None] * size),
        tau=_floats(topk.get("tau") or [None] * size),
        n=int(topk["n"]),
    )


def layer_data(audit: Audit) -> Matrix:
    """Share of the summed |score| between each pair of layers; rows write, columns read; NaN: no edges."""
    table = audit.per_layer
    values = np.array(table["values"], dtype=float)
    first_reader = np.maximum(np.arange(values.shape[0]) - 1, 0)
    values[np.arange(values.shape[1])[None, :] < first_reader[:, None]] = np.nan
    total = np.nansum(values)
    return Matrix(
        rows=tuple(table["rows"]),
        columns=tuple(table["columns"]),
        values=values / total if total > 0 else values,
        row_title="writes",
        column_title="reads",
    )


def head_data(audit: Audit) -> Matrix:
    """Summed score of each head's outgoing edges: rows are heads, columns layers in forward order."""
    values = np.array(audit.per_head, dtype=float).T
    return Matrix(
        rows=tuple(f"head {head}" for head in range(values.shape[0])),
        columns=tuple(f"layer {layer}" for layer in range(values.shape[1])),
        values=values,
        row_title="head",
        column_title="layer",
    )


def plot_audit(audit: Audit, ax: "Axes | None" = None) -> "Axes":
    """Draw the faithfulness curve of an audit, with its circuit on it."""
    return plot_curve(curve_data(audit), ax)


def plot_agreement(data: AgreementData, ax: "Axes | None" = None) -> "Axes":
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


def _floats(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else float(value) for value in values)
