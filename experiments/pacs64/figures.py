"""Pictures of the committed results: reads `results/*.json`, writes `results/*.png`; needs no model.

python experiments/pacs64/figures.py
"""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.analyses.generalization.ranking_page import layer_matrix
from assay.page.draw import plot_matrix


RESULTS = Path(__file__).parent / "results"
# Okabe and Ito's palette, with a marker each for those who see no colours.
TASK_STYLE = (
    ("#0072b2", "o"),
    ("#e69f00", "s"),
    ("#009e73", "^"),
    ("#cc79a7", "D"),
    ("#d55e00", "v"),
    ("#56b4e9", "P"),
)
INK, MUTED = "#22262b", "#666d76"
# Rows of Tables 1 and 3 of Peng et al. (2026): PACS columns R2, SRCC, KRCC.
PUBLISHED = {
    "ID Accuracy": "ID accuracy",
    "Sharpness": "Sharpness",
    "AC": "AC",
    "ANE": "ANE",
    "MDE": "MDE",
    "RankMe": "RankMe",
    "alpha-ReQ": "alpha-ReQ",
    "ATC": "ATC",
    "DDB_global": "DDB global",
    "DDB_deep": "DDB deep",
    "DDB_out": "DDB output",
}


def load(name: str) -> Any:
    """A results file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def save(figure: Figure, name: str) -> None:
    """A picture for the documentation."""
    figure.savefig(RESULTS / f"{name}.png", dpi=110, facecolor="white")


def bare(ax: Axes) -> None:
    """No box, small ticks."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8, colors=INK)


# ------------------------------------------------------------------------------------- before deployment


def scatter(models: Mapping[str, Any], predictors: list[str]) -> None:
    """Every predictor against accuracy; a point is a model on a target."""
    figure = Figure(figsize=(10, 10.2), layout="constrained")
    axes = figure.subplots(4, 4).ravel()
    tasks = [(domain, target) for domain, rows in models.items() for target in rows[0]["targets"]]
    for ax, name in zip(axes, predictors, strict=False):
        for (domain, target), (colour, marker) in zip(tasks, TASK_STYLE, strict=True):
            rows = [row["targets"][target] for row in models[domain]]
            ax.plot(
                [row[name] for row in rows],
                [row["accuracy"] for row in rows],
                marker,
                color=colour,
                ms=4.5,
                alpha=0.75,
                mec="white",
                mew=0.4,
                label=f"{domain} to {target}",
            )
        ax.set_xlabel(name, fontsize=9)
        bare(ax)
    for ax in axes[::4]:
        ax.set_ylabel("accuracy on target", fontsize=9)
    for ax in axes[len(predictors) :]:
        ax.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[-2].legend(handles, labels, loc="center left", fontsize=9, frameon=False, title="ID to target")
    save(figure, "scatter")


def averages(found: Mapping[str, Any]) -> None:
    """Average of |R2|, |SRCC|, |KRCC| per predictor, interval over models, the paper's PACS values."""
    rows = sorted(found["predictors"].items(), key=lambda each: each[1]["average"]["value"])
    published = published_average()
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    ax = figure.subplots()
    for place, (name, row) in enumerate(rows):
        low, high = row["average"]["interval"]
        colour = "#d55e00" if name.startswith("DDB") else "#0072b2"
        ax.plot([low, high], [place, place], color=colour, lw=2)
        ax.plot(row["average"]["value"], place, "o", color=colour, ms=6, label="_")
        if name in published:
            ax.plot(published[name], place, "x", color=INK, ms=7, mew=1.6)
    ax.plot([], [], "o-", color="#d55e00", lw=2, label="circuits, 95 % interval over models")
    ax.plot([], [], "o-", color="#0072b2", lw=2, label="no circuits")
    ax.plot([], [], "x", color=INK, ms=7, mew=1.6, ls="", label="paper, PACS, 72 to 144 ViT-B/16")
    ax.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=9)
    ax.set_xlim(0, 1)
    ax.set_xlabel("mean of R2, |SRCC| and |KRCC| over six tasks", fontsize=9)
    bare(ax)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    save(figure, "averages")


def published_average() -> dict[str, float]:
    """Mean of the three PACS cells of the paper's Table 1, as committed beside the results."""
    with (RESULTS.parent / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "1"]
    return {
        PUBLISHED[row["method"]]: float(np.mean([float(row[key]) for key in ("r2", "srcc", "krcc")]))
        for row in rows
    }


def motifs(found: Mapping[str, Any]) -> None:
    """Loadings of each task and their mean; red: more dependence goes with better performance."""
    panels = [*found["tasks"].items(), ("universal", found["universal"])]
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes = figure.subplots(2, 4).ravel()
    for ax, (name, values) in zip(axes, panels, strict=False):
        drawn = image(ax, np.array(values, dtype=float), 1.0)
        ax.set_title(name.replace("-", " to ").replace("_", " "), fontsize=9.5)
    axes[-1].axis("off")
    bar = figure.colorbar(drawn, cax=axes[-1].inset_axes((0.12, 0.05, 0.09, 0.9)))
    bar.set_label("loading: correlation of an entry\nwith the canonical variate", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    for ax in axes[:7:4]:
        ax.set_ylabel("source layer", fontsize=9)
    for ax in axes[4:7]:
        ax.set_xlabel("target layer", fontsize=9)
    save(figure, "motifs")


def image(ax: Axes, values: np.ndarray, limit: float) -> Any:
    """Upper triangle of a layer-by-layer map, cells without edges left empty."""
    size = len(values)
    shown = np.ma.masked_where(values == 0, values)
    drawn = ax.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
    names = ["in", *map(str, range(size - 2)), "out"]
    ax.set_xticks(range(size), names, fontsize=7)
    ax.set_yticks(range(size), names, fontsize=7)
    ax.spines[:].set_visible(False)
    return drawn


def tau(found: Mapping[str, Any]) -> None:
    """Mean |SRCC| over tasks for each ratio tau and the paper's curve over three data sets."""
    with (RESULTS.parent / "published.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "tau"]
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    for ax, name in zip(figure.subplots(1, 3, sharey=True), ("output", "deep", "global"), strict=True):
        ours = found["tau"][name]
        ratios = [float(each) for each in ours]
        ax.plot(ratios, [row["srcc"] for row in ours.values()], "o-", color="#d55e00", label="here, |SRCC|")
        ax.plot(
            ratios,
            [row["srcc_signed"] for row in ours.values()],
            "s--",
            color="#e69f00",
            label="here, signed",
        )
        paper = next(row for row in rows if row["method"] == name)
        ax.plot(
            ratios, [float(paper[f"tau_{each:g}"]) for each in ratios], "x-", color=INK, label="paper, |SRCC|"
        )
        ax.axhline(0, color=MUTED, lw=0.8)
        ax.set_title(f"DDB {name}", fontsize=10)
        ax.set_xlabel("ratio tau", fontsize=9)
        ax.set_xticks(ratios)
        bare(ax)
    figure.axes[0].set_ylabel("SRCC, mean over tasks", fontsize=9)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=9, frameon=False
    )
    save(figure, "tau")


# -------------------------------------------------------------------------------------- after deployment


def shifts(found: Mapping[str, Any]) -> None:
    """Four scores against accuracy over the domains."""
    shown = ("CSS spearman", "CSS jaccard", "ATC", "COT")
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for ax, key in zip(figure.subplots(1, 4, sharey=True), shown, strict=True):
        for prefix, colour, marker, label in (
            ("known/", "#56b4e9", "o", "39 corruptions of ID images"),
            ("new/", "#d55e00", "D", "nine new domains"),
            ("id", INK, "*", "ID validation images"),
        ):
            rows = [row for name, row in found["domains"].items() if name.startswith(prefix)]
            size = 11 if prefix == "id" else 5.5
            ax.plot(
                [r[key] for r in rows],
                [r["accuracy"] for r in rows],
                marker,
                color=colour,
                ms=size,
                label=label,
            )
        ax.set_xlabel(key, fontsize=9)
        bare(ax)
    figure.axes[0].set_ylabel("accuracy", fontsize=9)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=9,
        frameon=False,
    )
    save(figure, "shifts")


def alarms(found: Mapping[str, Any]) -> None:
    """F1 of the alarm over thresholds of performance."""
    styles = {
        "CSS spearman": ("#d55e00", "-"),
        "CSS jaccard": ("#e69f00", "-"),
        "CSS cosine": ("#cc79a7", "-"),
        "ATC": ("#0072b2", "--"),
        "COT": ("#56b4e9", "--"),
        "MDE": ("#009e73", "--"),
    }
    deltas = found["deltas"]
    contested = [delta for delta, due in zip(deltas, found["due"], strict=True) if 0 < due < 9]
    figure = Figure(figsize=(7.6, 4), layout="constrained")
    ax = figure.subplots()
    if contested:
        ax.axvspan(contested[0], contested[-1], color="#f0ede4", zorder=0)
        ax.text(contested[0] + 0.003, 1.02, "contested: some domains due, some not", fontsize=8, color=MUTED)
    for key, (colour, dash) in styles.items():
        values = [np.nan if each is None else each for each in found["scores"][key]["alarm_f1"]["mean"]]
        ax.plot(deltas, values, dash, color=colour, lw=1.8, label=key)
    n = sum(name.startswith("new/") for name in found["domains"])
    always = [2 * due / (due + n) for due in found["due"]]
    ax.plot(deltas, always, ":", color=INK, lw=1.8, label="alarm always")
    ax.set_ylim(-0.03, 1.09)
    ax.set_xlabel("performance threshold: an alarm is due below this accuracy", fontsize=9)
    ax.set_ylabel("mean F1 over 100 calibration subsets", fontsize=9)
    bare(ax)
    figure.legend(loc="outside right center", fontsize=9, frameon=False)
    save(figure, "alarms")


def rank_shift(found: Mapping[str, Any]) -> None:
    """Where the circuit of the monitored model moves, mean over three parts of each new domain."""
    maps = {name: np.array(values) for name, values in found["rank_shift"].items()}
    limit = max(float(np.abs(values).max()) for values in maps.values())
    figure = Figure(figsize=(9.4, 3.3), layout="constrained")
    axes = figure.subplots(1, 3)
    for ax, (name, values) in zip(axes, maps.items(), strict=True):
        drawn = image(ax, values, limit)
        ax.set_title(f"{found['id_domain']} to {name.replace('_', ' ')}", fontsize=10)
        ax.set_xlabel("target layer", fontsize=9)
    axes[0].set_ylabel("source layer", fontsize=9)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
    bar.set_label("mean change of rank / edges", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    save(figure, "rank_shift")


def motif_domains(found: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """The motif of one model over domains, beside that over models on the tasks of its ID domain."""
    home = found["id_domain"]
    tasks = [values for name, values in before["tasks"].items() if name.startswith(f"{home}-")]
    panels = {
        f"before: 15 models, mean of {len(tasks)} tasks": np.mean(tasks, axis=0),
        "after: one model, nine new domains": np.array(found["new"]["loadings"]),
        "after: one model, 39 corruptions": np.array(found["known"]["loadings"]),
    }
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    for ax, (title, values) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        layers = ["in", *map(str, range(len(values) - 2)), "out"]
        plot_matrix(layer_matrix(values, layers), ax)
        ax.set_title(title, fontsize=10)
    save(figure, "motif_domains")


def dynamics(found: Mapping[str, Any]) -> None:
    """Depth bias and accuracy over training steps of two models."""
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, (name, model) in enumerate(found.items()):
        steps = [row["step"] for row in model["steps"]]
        for target in model["steps"][0]["targets"]:
            colour, marker = TASK_STYLE[("art_painting", "cartoon", "photo", "sketch").index(target)]
            for ax, key in zip(axes[:, column], ("ddb_output", "accuracy"), strict=True):
                values = [row["targets"][target][key] for row in model["steps"]]
                ax.plot(steps, values, marker=marker, color=colour, ms=5, lw=1.5, label=f"to {target}")
        axes[1, column].plot(
            steps, [row["id_accuracy"] for row in model["steps"]], "k:", label="ID validation"
        )
        recipe = model["key"].rsplit("-", 1)[0]
        axes[0, column].set_title(f"{name} OOD accuracy: {model['id_domain']},\n{recipe}", fontsize=9)
        axes[1, column].set_xlabel("training step", fontsize=9)
        axes[1, column].legend(fontsize=8, frameon=False, ncols=2, loc="upper right")
    axes[0, 0].set_ylabel("DDB output", fontsize=9)
    axes[1, 0].set_ylabel("accuracy", fontsize=9)
    axes[1, 0].set_ylim(0, 0.95)
    for ax in axes.ravel():
        bare(ax)
    save(figure, "dynamics")


def main() -> None:
    found = load("correlations")
    scatter(load("models"), list(found["predictors"]))
    averages(found)
    motifs(load("motifs"))
    tau(found)
    watched = load("monitoring")
    shifts(watched)
    alarms(watched)
    rank_shift(watched)
    motif_domains(load("motif_domains"), load("motifs"))
    dynamics(load("dynamics"))


if __name__ == "__main__":
    main()
