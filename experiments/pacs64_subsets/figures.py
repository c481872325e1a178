"""Pictures of the committed results: reads `results/`, writes `docs/images/pacs64_subsets_*.png`.

python experiments/pacs64_subsets/figures.py --data DIR --published FILE

The images are read for the gallery alone.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from analyse import read
from images import HERE, OOD_DOMAIN
from images import read as read_images
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from published import load_published
from scipy.special import ndtri
from tables import PRINTED, load

from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.line import fit_line, probit


PICTURES = HERE.parents[1] / "docs" / "images"
INK, MUTED = "#22262b", "#666d76"
OURS, THEIRS, HARD, MARGINAL = "#d55e00", "#0072b2", "#22262b", "#009e73"
# Okabe and Ito's palette for the seven classes.
CLASS_COLOURS = ("#d55e00", "#56b4e9", "#e69f00", "#009e73", "#0072b2", "#999999", "#cc79a7")
TICKS = (0.001, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 0.99)
ACROSS, DOWN = 16, 2


def save(figure: Figure, name: str) -> None:
    """A picture for the documentation."""
    figure.savefig(PICTURES / f"pacs64_subsets_{name}.png", dpi=100, facecolor="white")


def bare(ax: Axes) -> None:
    """No box, small ticks."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8, colors=INK)


def size_axis(ax: Axes, label: str) -> None:
    """Subset sizes, and the limits that R is read against."""
    ax.set_xscale("log")
    ticks = (10, 20, 50, 100, 250, 500, 1000, 2500)
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.axhline(0, color=MUTED, lw=0.8)
    ax.axhline(-0.3, color=MUTED, lw=0.8, ls=":")
    ax.set_ylim(-1, 1)
    ax.set_xlabel("sketches in the subset", fontsize=9)
    ax.set_title(label, fontsize=10, loc="left")
    bare(ax)


def curve(
    ax: Axes,
    sizes: Sequence[int],
    rows: Sequence[Any],
    colour: str,
    marker: str,
    label: str,
    dash: Any = "-",
    hollow: bool = False,
) -> None:
    """R with its interval. Large hollow markers leave a curve beneath them visible."""
    face, width = ("none", 9) if hollow else (colour, 5)
    values = [row["r"] for row in rows]
    ax.plot(sizes, values, color=colour, marker=marker, mfc=face, ms=width, lw=1.6, ls=dash, label=label)
    ends = [[row[end] for row in rows] for end in ("low", "high")]
    ax.fill_between(sizes, *ends, color=colour, alpha=0.15, lw=0)


def sizes(found: Any, strata: Any, published: Any) -> None:
    """R against size: our subsets and baselines, at fixed class mix, and the published ones on our models."""
    figure = Figure(figsize=(13.5, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharey=True)
    for ax, record, label in (
        (left, found, "Our subsets"),
        (middle, strata, "Our subsets, class shares of all sketches"),
    ):
        sizes = [row["size"] for row in record["sizes"]]
        curve(ax, sizes, [row["test"] for row in record["sizes"]], OURS, "o", "test families")
        curve(
            ax,
            sizes,
            [row["verdict"] for row in record["sizes"]],
            "#cc79a7",
            "D",
            "cross-fitted",
            (0, (4, 2)),
        )
        random = record["baselines"]["random"]
        ax.fill_between(
            sizes,
            [row["low"] for row in random],
            [row["high"] for row in random],
            color=MUTED,
            alpha=0.25,
            lw=0,
        )
        ax.plot(sizes, [row["r"] for row in random], color=MUTED, lw=1.2, label="random")
        for kind, colour, marker in (("hard", HARD, "s"), ("marginal", MARGINAL, "^")):
            values = [row["r"] for row in record["baselines"][kind]]
            ax.plot(sizes, values, color=colour, marker=marker, ms=4, lw=1.1, ls=":", label=kind)
        size_axis(ax, label)
        ax.legend(fontsize=8, frameon=False, loc="upper left")
    rows = published["sizes"]
    sizes = [row["size"] for row in rows]
    curve(right, sizes, [row["correlation"] for row in rows], THEIRS, "o", "on all our models")
    same = [row["same_classes"] for row in rows]
    right.fill_between(
        sizes, [row["low"] for row in same], [row["high"] for row in same], color=MARGINAL, alpha=0.25, lw=0
    )
    right.plot(sizes, [row["mean"] for row in same], color=MARGINAL, lw=1.2, label="random, same classes")
    any_class = [row["random"]["mean"] for row in rows]
    right.plot(sizes, any_class, color=MUTED, lw=1.2, label="random")
    right.plot(
        list(PRINTED),
        list(PRINTED.values()),
        color=HARD,
        marker="x",
        ls=":",
        lw=1.1,
        label="on their models (printed)",
    )
    size_axis(right, "The published subsets")
    right.legend(fontsize=8, frameon=False, loc="upper left")
    left.set_ylabel("R over models, probit accuracies", fontsize=9)
    save(figure, "sizes")


def scatter(data: CorrectnessData, found: Any, theirs: np.ndarray) -> None:
    """Accuracies in probit axes: all sketches, our subset, the published one."""
    size = found["headline"]
    ours = next(np.array(row["indices"]) for row in found["sizes"] if row["size"] == size)
    test, every = np.array(found["split"]["test"]), np.arange(data.n_models)
    panels = (
        (f"All {data.n_examples:,} sketches\n{len(test)} test models", np.arange(data.n_examples), test, INK),
        (f"Our {size:,} sketches\n{len(test)} test models", ours, test, OURS),
        (f"The published {len(theirs):,} sketches\n{len(every)} models", theirs, every, THEIRS),
    )
    figure = Figure(figsize=(12.5, 4.5), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for ax, (title, examples, models, colour) in zip(axes, panels, strict=True):
        y, accuracy = data.id_accuracy[models], data.accuracy(examples)[models]
        # A model without a single right answer is drawn at half an answer.
        shown = np.clip(accuracy, 0.5 / len(examples), 1 - 0.5 / len(examples))
        ax.scatter(probit(y), probit(shown), s=12, color=colour, alpha=0.45, lw=0)
        line = fit_line(y, accuracy)
        ends = np.array([y.min(), y.max()])
        ax.plot(probit(ends), line.intercept + line.slope * probit(ends), color=INK, lw=1.6)
        ax.set_title(f"{title}: R = {line.r:.2f}, slope {line.slope:.2f}".replace("-", "−"), fontsize=9.5)
        ax.set_xlabel("accuracy on held-out paintings, cartoons, photos", fontsize=9)
        inside = [
            tick for tick in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7) if y.min() - 0.03 <= tick <= y.max() + 0.03
        ]
        ax.set_xticks(ndtri(inside), [f"{tick:g}" for tick in inside])
        ax.set_yticks(ndtri(TICKS), [f"{tick:g}" for tick in TICKS])
        ax.set_ylim(ndtri(0.0006), ndtri(0.97))
        bare(ax)
    axes[0].set_ylabel("accuracy on the sketches", fontsize=9)
    save(figure, "scatter")


def classes(found: Any, published: Any, data: CorrectnessData) -> None:
    """Class shares against size, ours and published, and R of each class by itself."""
    assert data.label_names is not None
    figure = Figure(figsize=(12.5, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    for ax, record, title in ((left, found, "Our subsets"), (middle, published, "The published subsets")):
        rows = record["sizes"]
        counts = np.array([row["classes"] for row in rows], dtype=float)
        shares = (counts / counts.sum(axis=1, keepdims=True)).T
        positions = np.arange(len(rows))
        below = np.zeros(len(rows))
        for share, colour, name in zip(shares, CLASS_COLOURS, data.label_names, strict=True):
            ax.bar(positions, share, bottom=below, color=colour, width=0.85, label=name)
            below += share
        ax.set_xticks(positions, [f"{row['size']:,}" for row in rows], rotation=90)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_xlabel("sketches in the subset", fontsize=9)
        bare(ax)
    left.set_ylabel("share of the subset", fontsize=9)
    middle.legend(fontsize=8, ncols=4, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    one = load("whole")["classes"]
    for place, record in enumerate(one.values()):
        found_r = record["correlation"]
        ends = [[found_r["r"] - found_r["low"]], [found_r["high"] - found_r["r"]]]
        right.errorbar([found_r["r"]], [place], xerr=ends, fmt="o", color=CLASS_COLOURS[place], ms=6)
    right.axvline(0, color=MUTED, lw=0.8)
    right.set_yticks(range(len(one)), [f"{name} ({record['n']})" for name, record in one.items()])
    right.invert_yaxis()
    right.set_xlabel("R over all models on every sketch of the class", fontsize=9)
    right.set_title("A class by itself", fontsize=10, loc="left")
    bare(right)
    save(figure, "classes")


def gallery(pictures: np.ndarray, groups: Sequence[tuple[str, np.ndarray]]) -> None:
    """The first sketches of several subsets."""
    figure = Figure(figsize=(ACROSS * 0.72, len(groups) * (DOWN * 0.72 + 0.34)), layout="constrained")
    for part, (title, rows) in zip(
        figure.subfigures(len(groups), 1, squeeze=False)[:, 0], groups, strict=True
    ):
        axes = part.subplots(DOWN, ACROSS)
        for ax in axes.ravel():
            ax.set_axis_off()
        for ax, row in zip(axes.ravel(), rows, strict=False):
            ax.imshow(pictures[row])
        part.suptitle(title, fontsize=10, x=0.01, ha="left")
    save(figure, "gallery")


def one_by_one(examples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The first of each class, then the second of each, and so on; shown class by class."""
    found = np.array([], dtype=np.int64)
    by_class = [examples[labels[examples] == code] for code in range(labels.max() + 1)]
    for turn in range(len(examples)):
        found = np.append(found, [each[turn] for each in by_class if turn < len(each)])
        if len(found) >= ACROSS * DOWN:
            break
    found = found[: ACROSS * DOWN]
    return found[np.argsort(labels[found], kind="stable")]


def compare(splits: Any, held_out: Any) -> None:
    """Selections beside baselines for both class mixes, and sketches predicted from features."""
    figure = Figure(figsize=(13.5, 8.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True)
    titles = {"any": "Any class mix", "fixed": "Class shares of all sketches"}
    for column, (mix, title) in enumerate(titles.items()):
        top, bottom = axes[:, column]
        cell = splits[f"family, {mix}"]
        sizes, fitted = splits["sizes"], cell["cross_fitted"]
        curve(top, sizes, fitted["selection"], OURS, "o", "selection")
        curve(top, sizes, fitted["marginal"], MARGINAL, "^", "one-pass", ":")
        curve(top, sizes, fitted["hard"], HARD, "s", "hardest", ":")
        top.plot(
            sizes, [row["r"] for row in cell["baselines"]["random"]], color=MUTED, lw=1.2, label="random"
        )
        size_axis(top, f"{title}: cross-fitted over families")
        top.legend(fontsize=8, frameon=False, loc="upper left")
        cell, sizes = held_out[mix], held_out["sizes"]
        curve(bottom, sizes, cell["selection"], OURS, "o", "selection")
        rules = (("embedding", THEIRS, "D", "-"), ("class", "#cc79a7", "v", "--"))
        for name, colour, marker, dash in rules:
            rows = [row["correlation"] for row in cell[name]]
            curve(bottom, sizes, rows, colour, marker, f"predicted from the {name}", dash)
        curve(bottom, sizes, cell["distance"], HARD, "s", "furthest in the embedding", ":", hollow=True)
        rows = cell["embedding"]
        bottom.plot(sizes, [row["random_mean"] for row in rows], color=MUTED, lw=1.2, label="random")
        size_axis(bottom, f"{title}: new sketches, on test families")
        bottom.legend(fontsize=8, frameon=False, loc="upper left", ncols=2)
        for ax in (top, bottom):
            ax.set_xlim(15, 1300)
    for ax in axes[:, 0]:
        ax.set_ylabel("R over models, probit accuracies", fontsize=9)
    save(figure, "compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .npz files")
    parser.add_argument("--published", type=Path, required=True, help="released selections of PACS, .npz")
    given = parser.parse_args()
    data, _ = read()
    found, strata, published = load("path"), load("strata"), load("published")
    released = load_published(given.published)
    place = {name: column for column, name in enumerate(data.example_ids.tolist())}
    theirs = {
        size: np.array([place[f"{OOD_DOMAIN}/{name}"] for name in released[size].tolist()])
        for size in (100, 500)
    }
    sizes(found, strata, published)
    scatter(data, found, theirs[500])
    classes(found, published, data)
    compare(load("splits"), load("holdout"))
    size = found["headline"]
    ours, fixed = (
        next(np.array(row["indices"]) for row in record["sizes"] if row["size"] == record["headline"])
        for record in (found, strata)
    )
    assert data.labels is not None
    dogs = np.setdiff1d(np.flatnonzero(data.labels == 0), np.concatenate([ours, theirs[500]]))
    groups = (
        (f"Ours, size {size:,}: the first {ACROSS * DOWN}", ours),
        (
            f"Ours at fixed class shares, size {len(fixed):,}: the first of each class",
            one_by_one(fixed, data.labels),
        ),
        (f"Published, size 100: the first {ACROSS * DOWN}", theirs[100]),
        (f"Dogs of neither: {ACROSS * DOWN} of {len(dogs)}", dogs[:: max(1, len(dogs) // (ACROSS * DOWN))]),
    )
    gallery(read_images(given.data, OOD_DOMAIN).pixels, groups)


if __name__ == "__main__":
    main()
