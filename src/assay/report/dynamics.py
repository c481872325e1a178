"""The course of a training run as a picture: scores, depth bias, and the two sides that it is made of."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.core.errors import InputError
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of, save_picture


if TYPE_CHECKING:
    from assay.analyses.generalization.dynamics import Dynamics

Document = Mapping[str, Any]
SCHEMA = "assay-dynamics/1"
STEPS, BIAS = "training steps (circuits of {n} images)", "depth bias\nlog(deep / shallow)"
# Colour, marker and dash of each set of images, in order; colour is never the only mark.
_MARKS = ((INK, "o", "-"), (SUPPORTS, "s", "--"), (OPPOSES, "^", "-."), (MUTED, "D", ":"))


@dataclass(frozen=True, kw_only=True)
class DynamicsData:
    """What is drawn of one run; every tuple has a value per step, NaN where undefined.

    Attributes:
        steps: Training steps of the checkpoints, ascending.
        scores: Score, 0 to 1, by name of the set.
        depth_bias, low, high: Logarithm of deep over shallow, and its interval.
        deep, shallow: Sums of |score| into the logits, nats.
        deep_blocks, shallow_blocks: First and last block of each side, for readers.
        n: Images that the circuits were measured on.
    """

    steps: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]
    depth_bias: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    deep: tuple[float, ...]
    shallow: tuple[float, ...]
    deep_blocks: str
    shallow_blocks: str
    n: int


def dynamics_data(document: Document) -> DynamicsData:
    """Read the document of `training_dynamics(...).to_dict()`, or one that holds it under `dynamics`.

    Raises:
        InputError: If it is no such document.
    """
    document = document.get("dynamics", document)
    if document.get("schema") != SCHEMA or not document.get("readings"):
        raise InputError(
            f"this is not a document of training dynamics: schema {document.get('schema')!r}, expected "
            f"{SCHEMA!r}"
        )
    rows = document["readings"]

    def column(name: str) -> tuple[float, ...]:
        return tuple(math.nan if row.get(name) is None else float(row[name]) for row in rows)

    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return DynamicsData(
        steps=tuple(int(row["step"]) for row in rows),
        scores={name: tuple(float(row["scores"].get(name, math.nan)) for row in rows) for name in names},
        depth_bias=column("depth_bias"),
        low=column("low"),
        high=column("high"),
        deep=column("deep"),
        shallow=column("shallow"),
        deep_blocks=_blocks(document["deep_blocks"]),
        shallow_blocks=_blocks(document["shallow_blocks"]),
        n=int(document["images"]["n"]),
    )


def _blocks(bounds: list[int]) -> str:
    first, last = bounds
    return f"block {first}" if first == last else f"blocks {first} to {last}"


def plot_run(dynamics: "Dynamics", ax: Axes | None = None) -> Axes:
    """Draw scores, depth bias and both its sides along a training run; on given axes the depth bias alone."""
    data = dynamics_data(dynamics.to_dict())
    if ax is None:
        first: Axes = plot_dynamics({"training run": data}).axes[0]
        return first
    _draw_bias(axes_of(ax, 0.0, 0.0), data)
    ax.set_xlabel(STEPS.format(n=data.n))
    ax.set_ylabel(BIAS)
    return ax


def plot_dynamics(runs: Mapping[str, DynamicsData]) -> Figure:
    """A column per run, by its title: scores above, depth bias in the middle, both its sides below.

    Raises:
        InputError: If there is no run, or more than four.
    """
    if not 1 <= len(runs) <= 4:
        raise InputError(f"got {len(runs)} runs; a figure holds 1 to 4")
    figure = Figure(figsize=(1.4 + 2.9 * len(runs), 6.4), layout="constrained", facecolor=PAPER)
    grid = figure.subplots(3, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, (title, data) in enumerate(runs.items()):
        above, middle, below = (axes_of(ax, 0.0, 0.0) for ax in grid[:, column])
        for ax in (above, middle, below):
            ax.set_facecolor(PAPER)
            ax.grid(axis="y", color=RULE, linewidth=0.6)
        above.set_title(title, loc="left", fontsize=10, color=INK)
        for number, (name, values) in enumerate(data.scores.items()):
            colour, marker, dash = _MARKS[number % len(_MARKS)]
            above.plot(data.steps, values, dash, color=colour, marker=marker, ms=3.5, lw=1.2, label=name)
        above.set_ylim(0, 1)
        if data.scores:
            above.legend(frameon=False, fontsize=7.5, labelcolor=INK, ncols=2, loc="best")
        _draw_bias(middle, data)
        for label, values, (colour, marker, dash) in (
            (f"deep: {data.deep_blocks}", data.deep, (SUPPORTS, "s", "-")),
            (f"shallow: {data.shallow_blocks}", data.shallow, (OPPOSES, "^", "--")),
        ):
            shown = np.where(np.array(values) > 0, values, np.nan)
            below.plot(data.steps, shown, dash, color=colour, marker=marker, ms=3.5, lw=1.2, label=label)
        below.set_yscale("log")
        below.legend(frameon=False, fontsize=7.5, labelcolor=INK)
        below.set_xlabel(STEPS.format(n=data.n))
    grid[0, 0].set_ylabel("score")
    grid[1, 0].set_ylabel(BIAS)
    grid[2, 0].set_ylabel("sum of |score|\ninto logits, nats")
    return figure


def _draw_bias(ax: Any, data: DynamicsData) -> None:
    ax.axhline(0, color=MUTED, linewidth=0.7)
    ax.fill_between(data.steps, data.low, data.high, color=INK, alpha=0.15, linewidth=0)
    ax.plot(data.steps, data.depth_bias, color=INK, marker="o", markersize=3.5, linewidth=1.2)


def dynamics_figure(
    runs: Document | Mapping[str, Document], path: str | os.PathLike[str], *, title: str = "training run"
) -> Path:
    """Write the course of one or several training runs as a picture, bands are 95 % intervals over images.

    Args:
        runs: A document, as `training_dynamics(...).to_dict()` or `circuit.json` gives it, or up to four by
            title.
        path: Ends in `.png` or `.svg`.
        title: Of the only run.

    Returns:
        The path written.

    Raises:
        InputError: Another ending, no document, or more than four.
        OutputError: The file cannot be written.
    """
    several = {title: runs} if "schema" in runs else runs
    return save_picture(
        lambda: plot_dynamics({name: dynamics_data(run) for name, run in several.items()}).axes[0],
        path,
        key="dynamics",
    )
