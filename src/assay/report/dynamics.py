"""The course of a training run as a picture: scores, depth bias, and the two sides that it is made of."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.core.errors import InputError
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of


if TYPE_CHECKING:
    from assay.analyses.generalization.dynamics import Dynamics

STEPS, BIAS = "training steps (circuits of {n} images)", "depth bias\nlog(deep / shallow)"
# Colour, marker and dash of each set of images, in order; colour is never the only mark.
_MARKS = ((INK, "o", "-"), (SUPPORTS, "s", "--"), (OPPOSES, "^", "-."), (MUTED, "D", ":"))


def plot_run(dynamics: "Dynamics", ax: Axes | None = None) -> Axes:
    """Draw scores, depth bias and both its sides along a training run; on given axes the depth bias alone."""
    if ax is None:
        first: Axes = plot_dynamics({"training run": dynamics}).axes[0]
        return first
    _draw_bias(axes_of(ax, 0.0, 0.0), dynamics)
    ax.set_xlabel(STEPS.format(n=dynamics.facts["images"]["n"]))
    ax.set_ylabel(BIAS)
    return ax


def plot_dynamics(runs: "Mapping[str, Dynamics]") -> Figure:
    """Draw a column per run: scores above, depth bias in the middle, both its sides below.

    Args:
        runs: One to four by title. Bands are 95 % intervals over images.

    Raises:
        InputError: If there is no run, or more than four.
    """
    if not 1 <= len(runs) <= 4:
        raise InputError(f"got {len(runs)} runs; a figure holds 1 to 4")
    figure = Figure(figsize=(1.4 + 2.9 * len(runs), 6.4), layout="constrained", facecolor=PAPER)
    grid = figure.subplots(3, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, (title, run) in enumerate(runs.items()):
        frame, facts = run.to_frame(), run.facts
        above, middle, below = (axes_of(ax, 0.0, 0.0) for ax in grid[:, column])
        for ax in (above, middle, below):
            ax.set_facecolor(PAPER)
            ax.grid(axis="y", color=RULE, linewidth=0.6)
        scores = dict.fromkeys(name for each in run.readings for name in each.scores)
        sides = [f"{side}: {_blocks(*facts[f'{side}_blocks'])}" for side in ("deep", "shallow")]
        positive = [np.where(frame[side] > 0, frame[side], np.nan) for side in ("deep", "shallow")]
        drawn = {above: {name: frame[name].to_numpy() for name in scores}}
        drawn[below] = dict(zip(sides, positive, strict=True))
        for (ax, lines), marks in zip(drawn.items(), (_MARKS, _MARKS[1:]), strict=True):
            for place, (label, values) in enumerate(lines.items()):
                colour, marker, dash = marks[place % len(marks)]
                ax.plot(frame["step"], values, dash, color=colour, marker=marker, ms=3.5, lw=1.2, label=label)
            if lines:
                ax.legend(frameon=False, fontsize=7.5, labelcolor=INK, loc="best")
        above.set_title(title, loc="left", fontsize=10, color=INK)
        above.set_ylim(0, 1)
        _draw_bias(middle, run)
        below.set_yscale("log")
        below.set_xlabel(STEPS.format(n=facts["images"]["n"]))
    for ax, label in zip(grid[:, 0], ("score", BIAS, "sum of |score|\ninto logits, nats"), strict=True):
        ax.set_ylabel(label)
    return figure


def _blocks(first: int, last: int) -> str:
    return f"block {first}" if first == last else f"blocks {first} to {last}"


def _draw_bias(ax: Axes, dynamics: "Dynamics") -> None:
    frame = dynamics.to_frame()
    low, high = (frame[name].astype(float).to_numpy() for name in ("low", "high"))
    ax.axhline(0, color=MUTED, linewidth=0.7)
    ax.fill_between(frame["step"].to_numpy(), low, high, color=INK, alpha=0.15, linewidth=0)
    ax.plot(frame["step"], frame["depth_bias"], color=INK, marker="o", markersize=3.5, linewidth=1.2)
