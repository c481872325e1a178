"""The tables and the picture of docs/theory/planted.md, from what `measure_truth` gives."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from assay.analyses.benchmark import choose_entries, detect, planted_task
from assay.analyses.benchmark.contenders import take_turn
from assay.models.planted import planted_model
from assay.page.blocks import Column, Table
from assay.page.draw import INK, MUTED, OPPOSES, PAPER, RULE, SUPPORTS, axes_of
from assay.page.text import number


GOOD, NEARLY_PERFECT = 0.95, 0.99  # AUROCs whose shares of models the table counts
LISTED = 8  # models named of those that a method misses
CELL = (0.46, 0.2)  # inches
CHANCE = 0.5


def measure_truth(
    model: str, methods: Sequence[str], *, options: Mapping[str, Any], n: int, seed: int
) -> pd.DataFrame:
    """Does a true edge of a planted model score higher than any other? A row per method and objective."""
    planted = planted_model(model)
    task = planted_task(planted, n=n, seed=seed)
    how: dict[str, Any] = {"ablation": None, "batch_size": None, "seed": seed}
    rows = []
    for entry in choose_entries(methods, options):
        for objective in ("logit_diff", "kl"):
            row, scores = take_turn(entry, planted.model, task, objective=objective, **how)
            facts = {"model": model, "method": entry.name, "objective": objective, "reason": row.reason}
            facts |= {"n_edges": planted.model.graph.n_edges, "n_true": len(planted.edges)}
            if scores is not None:
                facts |= {"seconds": row.seconds, **vars(detect(scores, planted.edges))}
            rows.append(facts)
    return pd.DataFrame(rows)


def methods_table(truth: pd.DataFrame) -> Table:
    """A row per method and objective: shares of models, the hardest model, the cost."""
    rows = []
    for (method, objective), of in truth.groupby(["method", "objective"], sort=False):
        served = of.dropna(subset="auroc")
        lowest = served.auroc.min()
        hardest = served.model[served.auroc.idxmin()] if len(served) and lowest < 1 else "n/a"
        shares = [(served.auroc >= limit).sum() / len(of) for limit in (GOOD, NEARLY_PERFECT)]
        rows.append(
            [
                method,
                objective,
                f"{len(served)} of {len(of)}",
                *(f"{each:.0%}" for each in shares),
                number(served.auroc.median(), 3),
                number(lowest, 3),
                hardest,
                number(served.average_precision.mean(), 3),
                number(served.recall.mean(), 3),
                number(float(served.seconds.sum()), 1) if len(served) else "n/a",
            ]
        )
    columns = (
        "method", "objective", "served", "≥.95", "≥.99", "median", "lowest", "hardest", "precision", "recall",
        "seconds",
    )  # fmt: skip
    return _table(columns, rows, words=("method", "objective", "hardest"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str]) -> Table:
    return Table(columns=[Column(name=name, numeric=name not in words) for name in columns], rows=rows)


def misses(truth: pd.DataFrame) -> list[str]:
    """For each method, the models whose circuit it misses (AUROC below .95) under its best objective."""
    sentences = []
    for method, of in truth.dropna(subset="auroc").groupby("method", sort=False):
        best = of.groupby("model").auroc.max()
        missed = sorted((value, model) for model, value in best.items() if value < GOOD)
        named = ", ".join(f"{model} ({number(value, 3)})" for value, model in missed[:LISTED])
        more = f" and {len(missed) - LISTED} more" if len(missed) > LISTED else ""
        sentences.append(
            f"{method} misses {len(missed)} of {len(best)} models{f': {named}{more}' if missed else ''}"
        )
    return sentences


def facts(truth: pd.DataFrame, settings: Mapping[str, object]) -> str:
    """What was measured, in a sentence."""
    lowest = number(truth.groupby("model").auroc.max().min(), 3)
    return (
        f"{truth.model.nunique()} models, {truth.method.nunique()} methods, {settings['n']} examples of each "
        f"model, seed {settings['seed']}, resample ablation. The best method of each model reaches an "
        f"AUROC of at least {lowest}.\n"
    )


def plot_truth(truth: pd.DataFrame) -> Axes:
    """Draw a panel per objective: planted models downwards, methods across, AUROC in the cells.

    Cells are inked by how far the AUROC is from chance, 0.5: the one colour above it, the other below. A dot
    stands where a method did not serve.
    """
    objectives = truth.dropna(subset="auroc").objective.unique()
    n_methods, n_models, n_panels = truth.method.nunique(), truth.model.nunique(), len(objectives)
    width = 2.6 + CELL[0] * n_methods * n_panels + 0.3 * n_panels
    figure = Figure(figsize=(width, 1.9 + CELL[1] * n_models), layout="constrained")
    axes = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
    for ax, objective in zip(axes, objectives, strict=True):
        _panel(ax, truth, objective)
    for ax in axes[1:]:
        ax.tick_params(labelleft=False)
    first: Axes = axes[0]
    return first


def _panel(ax: Axes, truth: pd.DataFrame, objective: str) -> None:
    axes_of(ax, 0.0, 0.0)
    models, methods = truth.model.unique(), truth.method.unique()
    table = truth[truth.objective == objective].pivot(index="model", columns="method", values="auroc")
    values = table.reindex(index=models, columns=methods).to_numpy()
    # One image with rules over it rather than a patch for each cell: a tenth of the file.
    ax.imshow(_colours(values), interpolation="none", aspect="auto", zorder=0)
    for cuts, rule in ((len(methods), ax.axvline), (len(models), ax.axhline)):
        for cut in range(cuts + 1):
            rule(cut - 0.5, color=PAPER, linewidth=1.2, zorder=1)
    for (row, column), value in np.ndenumerate(values):
        defined = math.isfinite(value)
        dark = defined and _ink(value) > 0.8
        ax.text(
            column,
            row,
            _auroc(value) if defined else "·",
            ha="center",
            va="center",
            fontsize=6.5,
            color=PAPER if dark else INK if defined else MUTED,
        )
    ax.set_xlim(-0.55, len(methods) - 0.45)
    ax.set_ylim(len(models) - 0.45, -0.55)
    ax.set_xticks(range(len(methods)), methods, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(models)), models)
    ax.tick_params(length=0, labelsize=7.5)
    ax.set_xlabel("method; cells: AUROC of |score|")
    ax.set_title(objective, fontsize=9, color=INK, loc="left")
    for spine in ax.spines.values():
        spine.set_visible(False)


def _ink(value: float) -> float:
    """Distance of an AUROC from chance, in [0, 1]."""
    return min(1.0, abs(value - CHANCE) / (1 - CHANCE))


def _colours(values: np.ndarray) -> np.ndarray:
    """Cells on paper: light where nothing was served, inked by the distance from chance elsewhere."""
    paper, rule, above, below = (np.array(to_rgb(name)) for name in (PAPER, RULE, SUPPORTS, OPPOSES))
    cells = np.tile(paper + 0.25 * (rule - paper), (*values.shape, 1))
    for place in zip(*np.nonzero(np.isfinite(values)), strict=True):
        # Squared, so that the last hundredths, where good methods differ, can be distinguished by eye.
        part = 0.95 * _ink(values[place]) ** 2
        cells[place] += part * ((above if values[place] >= CHANCE else below) - cells[place])
    return cells


def _auroc(value: float) -> str:
    """Two decimals; 1 only where it is exactly 1, so that .995 and above is shown as .99+."""
    if value == 1:
        return "1"
    return ".99+" if value >= 0.995 else f"{value:.2f}".replace("0.", ".", 1)
