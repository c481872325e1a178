"""CSV files and the figure of docs/published-models.md, from what run.py measured.

    python experiments/published_models/tables.py WORK [--images docs/images]

Intervals are percentiles of 2,000 paired resamples of the prompts (numpy seed 0): rankings of one task share
them, so that a difference of two rankings is taken within each resample.
"""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

import matplotlib as mpl


mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from run import DEFAULT, SIZES


HERE = Path(__file__).parent
DRAWS = 2000
NAMES = {"smollm2-135m": "SmolLM2 135M", "gemma3-270m": "Gemma 3 270M"}
STYLES = {
    (DEFAULT, "own", "size"): ("EAP-IG, by size", "C0", "-"),
    (DEFAULT, "own", "signed"): ("EAP-IG, signed", "C0", ":"),
    (DEFAULT, "kl", "size"): ("EAP-IG on KL, by size", "C2", "-"),
    ("relp", "own", "size"): ("RelP, by size", "C1", "-"),
    ("relp", "own", "signed"): ("RelP, signed", "C1", ":"),
    ("ugs", "kl", "size"): ("learned mask (UGS), by probability", "C3", "-"),
    ("random", "own", "size"): ("random", "0.6", "-"),
}


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def ends(draws: np.ndarray, name: str) -> dict[str, np.ndarray]:
    """Both ends of 95 % intervals from `[draws, sizes]`."""
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    return {f"{name}_low": low, f"{name}_high": high}


def task_curves(folder: Path) -> Iterator[pd.DataFrame]:
    """Rows of one model and task: a frame for each ranking."""
    reference = arrays(folder / "reference.npz")
    once = np.isfinite(reference["empty_kl"])  # a prompt that was drawn again has no number of its own
    full, empty = reference["full"][once], reference["empty_margin"][once]
    weights = np.random.default_rng(0).multinomial(full.size, np.full(full.size, 1 / full.size), size=DRAWS)
    everyone = np.ones((1, full.size))

    def statistics(table: Mapping[str, np.ndarray], w: np.ndarray) -> dict[str, np.ndarray]:
        """Each number at each size, `[draws, sizes]`, from weights of prompts `[draws, prompts]`."""
        margin, kl, top1, top5 = (w @ table[key][:, once].T for key in ("margin", "kl", "top1", "top5"))
        whole, nothing, total = w @ full, w @ empty, w.sum(1)
        return {
            "faithfulness": margin / whole[:, None],
            "normalised": (margin - nothing[:, None]) / (whole - nothing)[:, None],
            "kl": kl / total[:, None],
            "top1": top1 / total[:, None],
            "top5": top5 / total[:, None],
        }

    by_default = statistics(arrays(folder / f"curve+{DEFAULT}+own+size.npz"), weights)["normalised"]
    for path in sorted(folder.glob("curve+*.npz")):
        _, method, objective, ranking = path.stem.split("+")
        table = arrays(path)
        values, drawn = statistics(table, everyone), statistics(table, weights)
        columns = {"asked": table["sizes"], "edges": table["edges"]}
        for name, value in values.items():
            columns[name] = value[0]
            if name in ("faithfulness", "normalised", "kl"):
                columns |= ends(drawn[name], name)
        columns |= ends(drawn["normalised"] - by_default, "difference")
        frame = pd.DataFrame(columns)
        yield frame.assign(method=method, objective=objective, ranking=ranking)


def curves(work: Path) -> pd.DataFrame:
    """All curves of both models."""
    frames = []
    for model in SIZES:
        for folder in sorted((work / model).iterdir()):
            if (folder / f"curve+{DEFAULT}+own+size.npz").exists():
                frames += [each.assign(model=model, task=folder.name) for each in task_curves(folder)]
    keys = ["model", "task", "method", "objective", "ranking"]
    table = pd.concat(frames)
    return table[[*keys, *(name for name in table if name not in keys)]]


def references(work: Path) -> pd.DataFrame:
    """Margin of the model, and margin and KL of the empty circuit, for each task."""
    rows = []
    for model in SIZES:
        for path in sorted((work / model).glob("*/reference.npz")):
            margins = arrays(path)
            once = np.isfinite(margins["empty_kl"])  # a prompt that was drawn again has no number of its own
            margins = {name: values[once] for name, values in margins.items() if values.size == once.size}
            rows.append(
                {
                    "model": model,
                    "task": path.parent.name,
                    "n": margins["full"].size,
                    "right": (margins["full"] > 0).mean(),
                    "margin": margins["full"].mean(),
                    "empty_margin": margins["empty_margin"].mean(),
                    "empty_kl": margins["empty_kl"].mean(),
                }
            )
    return pd.DataFrame(rows)


# ---------------------------------------------------------------------------------------- figures


def draw_curves(table: pd.DataFrame, empty: pd.DataFrame, task: str, path: Path) -> None:
    """Normalised faithfulness and KL by size, a column for each model."""
    figure, axes = plt.subplots(2, len(SIZES), figsize=(9, 5.4), sharex="col", layout="constrained")
    for column, model in enumerate(SIZES):
        here = table[(table.model == model) & (table.task == task)]
        for (method, objective, ranking), (name, colour, line) in STYLES.items():
            one = here[(here.method == method) & (here.objective == objective) & (here.ranking == ranking)]
            for row, number in enumerate(("normalised", "kl")):
                if len(one):
                    axes[row, column].plot(one.asked, one[number], line, color=colour, label=name)
                    low, high = one[f"{number}_low"], one[f"{number}_high"]
                    axes[row, column].fill_between(one.asked, low, high, color=colour, alpha=0.12, lw=0)
        nothing = empty[(empty.model == model) & (empty.task == task)].empty_kl.item()
        axes[1, column].axhline(nothing, color="0.4", lw=0.8, ls="--")
        axes[1, column].annotate("empty circuit", (here.asked.min(), nothing), fontsize=8, va="bottom")
        axes[0, column].axhline(1, color="0.4", lw=0.8, ls="--")
        axes[0, column].set(xscale="log", title=NAMES[model], ylim=(-0.6, 3.4))
        axes[1, column].set(xlabel="strongest edges asked for", ylim=(0, None))
    axes[0, 0].set_ylabel("normalised faithfulness")
    axes[1, 0].set_ylabel("KL(model, circuit), nats")
    axes[0, 0].legend(fontsize=8, frameon=False)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--images", type=Path, default=HERE.parents[1] / "docs" / "images")
    options = parser.parse_args()
    tables = {"curves": curves(options.work), "references": references(options.work)}
    for name, table in tables.items():
        table.to_csv(HERE / f"{name}.csv", index=False, float_format="%.4g")
        print(HERE / f"{name}.csv", len(table))
    plt.rcParams.update({"svg.hashsalt": "published", "svg.fonttype": "none", "font.size": 9})
    path = options.images / "published-models-ioi.svg"
    draw_curves(tables["curves"], tables["references"], "ioi", path)


if __name__ == "__main__":
    main()
