"""Pictures of an evaluation over domains, drawn from its document alone."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from assay.analyses.generalization.batches import BASELINES
from assay.analyses.generalization.monitor_plots import plot_curves, plot_domains
from assay.analyses.generalization.rank_plots import layer_matrix
from assay.core.errors import OutputError
from assay.page.draw import INK, MUTED, PAPER, RULE, SUPPORTS, axes_of
from assay.page.matrix import Matrix, plot_matrix


Document = Mapping[str, Any]
CURVES = ("ac", "atc", "cot", "doc")  # baselines drawn beside the shift, where they were measured
NAMES = {
    **BASELINES,
    "mde": "meta-distribution energy",
    "rankme": "RankMe",
    "alpha-req": "alpha-ReQ",
    "always": "an alarm that is always on",
}


def metric_name(key: str, shifts: Mapping[str, Any]) -> str:
    """What a page calls a metric."""
    if key.startswith("ddb-"):
        return f"depth bias ({key.removeprefix('ddb-')})"
    return f"shift ({key})" if key in shifts else NAMES.get(key, key)


def plot_evaluation(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the shift against performance, of calibration and test domains."""
    domains = {name: document[name] for name in ("known", "test")} | {"measure": measure_of(document)}
    return plot_domains({"domains": domains, "distance": {"key": document["distance"]}}, ax)


def measure_of(document: Document) -> str:
    """The measure of performance, for axes and tables."""
    return str(document["settings"]["measure"])


def plot_correlations(document: Document, ax: Axes | None = None) -> Axes:
    """Draw the rank correlation of every metric with performance over the test domains, largest first."""
    found = document["correlations"]
    keys = sorted(
        (key for key in found if found[key]["srcc"] is not None), key=lambda key: -abs(found[key]["srcc"])
    )
    ax = axes_of(ax, 6.0, 0.8 + 0.27 * max(len(keys), 3))
    ax.axvline(0, color=RULE, linewidth=0.8, zorder=0)
    for place, key in enumerate(keys):
        row = found[key]
        if row["low"] is not None:
            ax.plot([row["low"], row["high"]], [place] * 2, color=SUPPORTS, linewidth=2.0, alpha=0.55)
        ax.plot([row["srcc"]], [place], "o", color=INK, markersize=4.5)
        if row["known_srcc"] is not None:
            ax.plot([row["known_srcc"]], [place], "|", color=MUTED, markersize=9)
    shifts = document["test"][0]["shifts"]
    ax.set_yticks(range(len(keys)), [metric_name(key, shifts) for key in keys])
    ax.set_ylim(len(keys) - 0.5, -0.5)
    ax.set_xlim(-1.05, 1.05)
    ax.set_xlabel(f"rank correlation with {measure_of(document)} over the test domains")
    return ax


def drawn_curves(document: Document) -> dict[str, Document]:
    """The curves that are drawn, under their names: the shift first."""
    curves = document["curves"] or {}
    shifts = document["test"][0]["shifts"]
    keys = [document["distance"], *CURVES, "always"]
    return {metric_name(key, shifts): curves[key] for key in keys if key in curves}


def plot_alarm_curves(document: Document, ax: Axes | None = None) -> Axes:
    """Draw F1 of the alarm over performance thresholds."""
    return plot_curves(drawn_curves(document), ax)


def layers_of(document: Document) -> list[str]:
    """Names of the layers of matrices, input first."""
    blocks = document["graph"]["n_layers"]
    if document["settings"]["granularity"] == "block":
        return ["input", *map(str, range(blocks)), "logits"]
    return ["input", *(f"{kind}{block}" for block in range(blocks) for kind in "am"), "logits"]


def motif_matrix(document: Document) -> Matrix:
    """The motif over the test domains."""
    return layer_matrix(document["motif"]["values"], layers_of(document))


def shift_matrix(document: Document, domain: Document) -> Matrix:
    """The rank-shift map of a domain."""
    return layer_matrix(domain["layers"], layers_of(document))


def extremes(document: Document) -> dict[str, Document]:
    """The test domains with the best and the worst performance, one where they are the same."""
    ordered = sorted(document["test"], key=lambda each: -each["performance"])
    best, worst = ordered[0], ordered[-1]
    return {"worst": worst} if best is worst else {"best": best, "worst": worst}


def figures(document: Document) -> dict[str, Callable[[], Axes]]:
    """Everything that can be drawn of an evaluation, by the name of its file."""
    found: dict[str, Callable[[], Axes]] = {"domains": partial(plot_evaluation, document)}
    if any(row["srcc"] is not None for row in document["correlations"].values()):
        found["correlations"] = partial(plot_correlations, document)
    if document["curves"] is not None:
        found["alarms"] = partial(plot_alarm_curves, document)
    if document["motif"]["values"] is not None:
        found["motif"] = partial(plot_matrix, motif_matrix(document))
    for name, domain in extremes(document).items():
        found[f"rank-shift-{name}"] = partial(plot_matrix, shift_matrix(document, domain))
    return found


def save_figures(document: Document, folder: Path) -> list[Path]:
    """Write every figure as a PNG file; returns the paths.

    Raises:
        OutputError: If one cannot be written.
    """
    paths = []
    for name, draw in figures(document).items():
        path = folder / f"{name}.png"
        figure = draw().figure
        assert isinstance(figure, Figure)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, facecolor=PAPER, bbox_inches="tight", metadata={"Software": None})
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error
        paths.append(path)
    return paths
