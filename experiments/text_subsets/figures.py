"""The picture of `docs/text-subsets.md`, made of the committed results: `docs/images/text_subsets.png`.

python experiments/text_subsets/figures.py
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from run import RESULTS, analyses
from scipy.special import ndtri

from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.line import probit


PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "text_subsets.png"
INK, MUTED = "#22262b", "#666d76"
# Okabe and Ito's palette.
COLOURS = ("#0072b2", "#009e73", "#d55e00", "#cc79a7")
MARKERS = ("o", "s", "^", "D")
TICKS = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)


def bare(ax: Axes, title: str) -> None:
    """No box, small ticks, a title at the left."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8, colors=INK)
    ax.set_title(title, fontsize=10, loc="left")


def over_training(ax: Axes, data: CorrectnessData) -> None:
    """Accuracy of every run on the four kinds of prompts of the pool."""
    steps = np.array([int(name.rsplit("-", 1)[1]) for name in data.model_ids])
    grid = np.unique(steps)
    for place, (attractor, number) in enumerate(
        (attractor, number) for attractor in ("congruent", "incongruent") for number in ("singular", "plural")
    ):
        members = np.flatnonzero((data.meta["attractor"] == attractor) & (data.meta["number"] == number))
        accuracy = data.accuracy(members)
        colour = COLOURS[place]
        for run in sorted(set(data.groups or ())):
            rows = np.flatnonzero(np.array(data.groups) == run)
            ax.plot(steps[rows], accuracy[rows], color=colour, lw=0.5, alpha=0.25)
        means = [accuracy[steps == step].mean() for step in grid]
        label = f"{attractor}, {number} subject"
        ax.plot(grid, means, color=colour, marker=MARKERS[place], ms=5, lw=1.8, label=label)
    ax.set_xlabel("training steps", fontsize=9)
    ax.set_ylabel("accuracy on the prompts to select from", fontsize=9)
    ax.set_ylim(-0.36, 1.04)  # room for the legend
    ax.set_yticks(np.linspace(0, 1, 6))
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    bare(ax, "Every run (thin) and their mean")


def scatter(ax: Axes, data: CorrectnessData, found: Any) -> None:
    """Accuracies before the rule in probit axes, on all prompts and on the selected ones."""
    indices = np.array(found["indices"])
    sets = (
        ("all", np.arange(data.n_examples), MUTED, "o"),
        (f"{len(indices)} selected", indices, COLOURS[2], "^"),
    )
    for label, members, colour, marker in sets:
        accuracy = data.accuracy(members)
        # A model that has none or all right is drawn at half a prompt.
        shown = np.clip(accuracy, 0.5 / len(members), 1 - 0.5 / len(members))
        ax.scatter(
            probit(data.id_accuracy), probit(shown), s=16, color=colour, marker=marker, alpha=0.6, label=label
        )
    inside = [tick for tick in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95) if tick <= data.id_accuracy.max() + 0.01]
    ax.set_xticks(ndtri(inside), [f"{tick:g}" for tick in inside])
    ax.set_yticks(ndtri(TICKS), [f"{tick:g}" for tick in TICKS])
    ax.set_xlabel("accuracy in distribution", fontsize=9)
    ax.set_ylabel("accuracy on the prompts", fontsize=9)
    ax.legend(fontsize=8, frameon=False, loc="lower left")
    bare(ax, f"Before the rule: {data.n_models} models")


def by_size(ax: Axes, results: Any) -> None:
    """Cross-fitted R against size for each analysis, and R of random prompts on its test models."""
    for place, (name, found) in enumerate(results.items()):
        rows = [row for row in found["rows"] if row["verdict"]["r"] is not None]
        sizes = [row["size"] for row in rows]
        fitted = [row["verdict"] for row in rows]
        ax.plot(
            sizes,
            [row["r"] for row in fitted],
            color=COLOURS[place],
            marker=MARKERS[place],
            ms=5,
            lw=1.5,
            label=name,
        )
        ends = [
            np.array([row[end] if row[end] is not None else np.nan for row in fitted], dtype=float)
            for end in ("low", "high")
        ]
        ax.fill_between(sizes, *ends, color=COLOURS[place], alpha=0.12, lw=0)
        ax.plot(sizes, [row["random"]["r"] for row in rows], color=COLOURS[place], lw=1.2, ls="--")
    ax.plot([], [], color=INK, lw=1.2, ls="--", label="random prompts")
    ax.axhline(0, color=MUTED, lw=0.8)
    ax.axhline(-0.3, color=MUTED, lw=0.8, ls=":")
    ax.set_xscale("log")
    ax.set_xticks([10, 20, 50, 100, 250, 500], ["10", "20", "50", "100", "250", "500"])
    ax.minorticks_off()
    ax.set_ylim(-1.05, 1.05)
    ax.set_xlabel("prompts in the subset", fontsize=9)
    ax.set_ylabel("R over models, cross-fitted over runs", fontsize=9)
    ax.legend(fontsize=8, frameon=False, loc="lower left", ncols=2)
    bare(ax, "Four analyses")


def main() -> None:
    data = CorrectnessData.load(RESULTS / "answers.npz")
    results = json.loads((RESULTS / "selections.json").read_text(encoding="utf-8"))
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    over_training(left, data)
    scatter(middle, analyses(data)["before the rule"][0], results["before the rule"])
    by_size(right, results)
    figure.savefig(PICTURE, dpi=100, facecolor="white")


if __name__ == "__main__":
    main()
