"""Subsets of the sketches of PACS on 750 small models: the table and the figure of docs/howto/select.md.

    python experiments/pacs64_subsets/run.py [--select] [--permutations 99] [--workers 1]

`--select` selects and judges again from the archive, with free classes (`results/path.json`) and with the
class shares of all sketches (`strata.json`); without it the committed results are read. `published.json` has
the authors' subsets on these models. No model runs: README.md says how the archive was made.
"""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.analyses.subsets import CorrectnessData, SelectionPath, fit_line, selection_path
from assay.core.record import plain


HERE = Path(__file__).parent
RESULTS = HERE / "results"
IMAGE = HERE.parents[1] / "docs" / "images" / "pacs64_subsets_sizes.png"
SEED, DIGITS = 0, 6
# R of the authors' subsets on their test models, Table A.3 of the paper (PACS).
PRINTED = {10: -0.48, 20: -0.33, 50: -0.47, 100: -0.33, 250: -0.30, 500: -0.22, 750: 0.01, 1000: 0.10}
SHOWN = (20, 100, 250, 500, 1000)  # sizes of the table
TICKS = (10, 20, 50, 100, 250, 500, 1000, 2500)


def load(name: str) -> Any:
    """A results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def path_record(path: SelectionPath) -> dict[str, Any]:
    """A sweep, small enough to commit: sets, correlations, verdicts, baselines, classes."""
    data, split = path.problem.data, path.problem.split
    assert data.labels is not None
    rows = []
    for each in path:
        verdict = each.verdict.to_dict()
        accuracy = data.accuracy(each.indices)[split.test]
        rows.append(
            {
                "size": each.size,
                "test": each.correlation["test"].to_dict(),
                "verdict": {name: value for name, value in verdict.items() if name not in ("null", "sizes")},
                "r": {part: found.r for part, found in each.correlation.items()},
                "line": fit_line(data.id_accuracy[split.test], accuracy).to_dict(),
                "classes": np.bincount(data.labels[each.indices], minlength=7),
                "indices": None if each.size == data.n_examples else each.indices,
            }
        )
    return {
        "split": {part: split.part(part) for part in ("train", "validation", "test")},
        "null_minimum": path.verdicts[0].null,
        "sizes": rows,
        "baselines": {str(kind): found.to_dict("records") for kind, found in path.baselines.groupby("kind")},
        "headline": path.headline.size,
    }


def rounded(value: Any) -> Any:
    """Few digits, so that files stay small."""
    return json.loads(json.dumps(value), parse_float=lambda digits: round(float(digits), DIGITS))


def select(n_permutations: int, workers: int) -> None:
    """Both sweeps, judged; models are split by family."""
    data = CorrectnessData.load(RESULTS / "correctness.npz")
    for name, strata in (("path", None), ("strata", "label")):
        path = selection_path(data, split="family", seed=SEED, strata=strata)
        path.judge(n_permutations=n_permutations, workers=workers)
        text = json.dumps(rounded(plain(path_record(path))), indent=1, allow_nan=False)
        # Lists of plain values go on one line.
        text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
        (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def number(value: float) -> str:
    """Two decimals, a minus sign that is one."""
    return f"{value:.2f}".replace("-", "−")


def with_interval(record: Any) -> str:
    """R [low, high]."""
    return f"{number(record['r'])} [{number(record['low'])}, {number(record['high'])}]"


def table() -> Iterator[str]:
    """Rows of docs/howto/select.md; a test compares them."""
    free, fixed = load("path"), {row["size"]: row for row in load("strata")["sizes"]}
    random = {row["size"]: row["r"] for row in free["baselines"]["random"]}
    theirs = {row["size"]: row for row in load("published")["sizes"]}
    for row in free["sizes"]:
        if row["size"] in SHOWN:
            size, verdict = row["size"], row["verdict"]
            yield (
                f"| {size:,} | {verdict['status']} | {verdict['p_value']:.3f} | {with_interval(verdict)} "
                f"| {with_interval(fixed[size]['verdict'])} | {number(random[size])} "
                f"| {number(PRINTED[size])} | {with_interval(theirs[size]['correlation'])} |"
            )


def curve(ax: Axes, sizes: Sequence[int], rows: Sequence[Any], colour: str, label: str) -> None:
    """R with its interval."""
    ax.plot(sizes, [row["r"] for row in rows], color=colour, marker="o", ms=5, lw=1.6, label=label)
    ends = [[row[end] for row in rows] for end in ("low", "high")]
    ax.fill_between(sizes, *ends, color=colour, alpha=0.15, lw=0)


def picture() -> Figure:
    """R against size: free classes, fixed class shares, and the published subsets on these models."""
    figure = Figure(figsize=(13.5, 4.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    titles = ("Our subsets", "Our subsets, class shares of all sketches", "The published subsets")
    for ax, name in zip(axes, ("path", "strata"), strict=False):
        found = load(name)
        sizes = [row["size"] for row in found["sizes"]]
        curve(ax, sizes, [row["test"] for row in found["sizes"]], "#d55e00", "test families")
        curve(ax, sizes, [row["verdict"] for row in found["sizes"]], "#cc79a7", "cross-fitted")
        for kind, colour in (("random", "#666d76"), ("hard", "#22262b"), ("marginal", "#009e73")):
            ax.plot(sizes, [row["r"] for row in found["baselines"][kind]], color=colour, ls=":", label=kind)
    rows = load("published")["sizes"]
    sizes = [row["size"] for row in rows]
    curve(axes[2], sizes, [row["correlation"] for row in rows], "#0072b2", "on all our models")
    for kind, colour in (("same_classes", "#009e73"), ("random", "#666d76")):
        name = kind.replace("same_classes", "random, same classes")
        axes[2].plot(sizes, [row[kind]["mean"] for row in rows], color=colour, label=name)
    axes[2].plot(
        list(PRINTED), list(PRINTED.values()), "x:", color="#22262b", label="on their models (printed)"
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.set_xscale("log")
        ax.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
        ax.minorticks_off()
        ax.axhline(0, color="#666d76", lw=0.8)
        ax.axhline(-0.3, color="#666d76", lw=0.8, ls=":")
        ax.set_ylim(-1, 1)
        ax.set_xlabel("sketches in the subset", fontsize=9)
        ax.set_title(title, fontsize=10, loc="left")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.legend(fontsize=8, frameon=False, loc="upper left")
    axes[0].set_ylabel("R over models, probit accuracies", fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--select", action="store_true", help="select and judge again; hours")
    parser.add_argument("--permutations", type=int, default=99)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    if given.select:
        select(given.permutations, given.workers)
    picture().savefig(IMAGE, dpi=100, facecolor="white")
    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
