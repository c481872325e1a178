"""The picture of `results/left_out.json`: accuracy against the corrected shift, a panel per left-out domain.

python experiments/pacs64/left_out_figure.py
"""

import json

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pacs import DOMAINS, RESULTS


MARKS = {"corrupted": ("o", "#999999"), "source": ("s", "#0072B2"), "new": ("^", "#D55E00")}
NAMES = {"corrupted": "corrupted ID images", "source": "known domains", "new": "left-out domain"}


def main() -> None:
    content = json.loads((RESULTS / "left_out.json").read_text())
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(DOMAINS), sharey=True, sharex=True)
    for ax, left_out in zip(axes, DOMAINS, strict=True):
        models = [each for each in content["models"] if each["left_out"] == left_out]
        for kind, (mark, colour) in MARKS.items():
            points = [each for model in models for each in model["domains"] if each["kind"] == kind]
            ax.scatter(
                [each["excess"] for each in points],
                [each["accuracy"] for each in points],
                marker=mark,
                s=16,
                color=colour,
                label=NAMES[kind] if left_out == DOMAINS[0] else None,
            )
        for model in models:
            ax.axhline(model["id_accuracy"], color="black", lw=0.6, ls=":")
        ax.set_title(f"without {left_out} ({len(models)} models)", fontsize=9)
        ax.set_xlabel("shift beyond the noise floor")
    axes[0].set_ylabel("accuracy")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(RESULTS / "left_out.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
