"""The course of a training run as a picture: scores, depth bias, and the two sides that it is made of."""

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of


if TYPE_CHECKING:
    from assay.analyses.generalization.dynamics import Dynamics

STEPS, BIAS = "training steps (circuits of {n} images)", "depth bias\nlog(deep / shallow)"
# Colour, marker and dash of each set of images, in order; colour is never the only mark.
_MARKS = ((INK, "o", "-"), (SUPPORTS, "s", "--"), (OPPOSES, "^", "-."), (MUTED, "D", ":"))


def plot_run(dynamics: "Dynamics", ax: Axes | None = None) -> Axes:
    """Draw the depth bias along a training run, with its 95 % interval over images."""
    ax = axes_of(ax, 5.2, 3.2)
    frame = dynamics.to_frame().astype({"low": float, "high": float})
    ax.axhline(0, color=MUTED, linewidth=0.7)
    ax.fill_between(frame["step"], frame["low"], frame["high"], color=INK, alpha=0.15, linewidth=0)
    ax.plot(frame["step"], frame["depth_bias"], color=INK, marker="o", markersize=3.5, linewidth=1.2)
    ax.set(xlabel=STEPS.format(n=dynamics.facts["images"]["n"]), ylabel=BIAS)
    return ax


def plot_dynamics(runs: "Mapping[str, Dynamics]") -> Figure:
    """Draw a column per run: scores above, depth bias in the middle, both its sides below.

    Args:
        runs: By title, at least one. Bands are 95 % intervals over images.
    """
    figure = Figure(figsize=(1.4 + 2.9 * len(runs), 6.4), layout="constrained", facecolor=PAPER)
    grid = figure.subplots(3, len(runs), sharex="col", sharey="row", squeeze=False)
    for (above, middle, below), (title, run) in zip(grid.T, runs.items(), strict=True):
        plot_run(run, middle)
        frame, facts = run.to_frame(), run.facts
        scores = dict.fromkeys(name for each in run.readings for name in each.scores)
        sides = {f"{side}: {_blocks(*facts[f'{side}_blocks'])}": side for side in ("deep", "shallow")}
        positive = {label: np.where(frame[side] > 0, frame[side], np.nan) for label, side in sides.items()}
        for ax, lines, marks in (
            (axes_of(above, 0.0, 0.0), {name: frame[name].to_numpy() for name in scores}, _MARKS),
            (axes_of(below, 0.0, 0.0), positive, _MARKS[1:]),
        ):
            for (label, values), (colour, marker, dash) in zip(lines.items(), cycle(marks), strict=False):
                ax.plot(frame["step"], values, dash, color=colour, marker=marker, ms=3.5, lw=1.2, label=label)
            if lines:
                ax.legend(frameon=False, fontsize=7.5, labelcolor=INK, loc="best")
        above.set_title(title, loc="left", fontsize=10, color=INK)
        above.set_ylim(0, 1)
        below.set(yscale="log", xlabel=middle.get_xlabel())
    for ax in grid.flat:
        ax.set_facecolor(PAPER)
        ax.grid(axis="y", color=RULE, linewidth=0.6)
        ax.label_outer()
    for ax, label in zip(grid[:, 0], ("score", BIAS, "sum of |score|\ninto logits, nats"), strict=True):
        ax.set_ylabel(label)
    return figure


def _blocks(first: int, last: int) -> str:
    return f"block {first}" if first == last else f"blocks {first} to {last}"
