"""The pictures of docs/colour-digits.md, from `circuits.json` and from drawings.

python experiments/colour_digits/figures.py
"""

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from assay.tasks import draw_digits


HERE = Path(__file__).parent
IMAGES = HERE.parents[1] / "docs" / "images"
COLUMNS = 12


def examples() -> Figure:
    """Test images and their three counterparts."""
    figure = Figure(figsize=(9, 3.1), layout="constrained")
    rows = {"image": None, "swap digit": "digit", "swap colour": "colour", "swap both": "both"}
    axes = figure.subplots(len(rows), 1)
    for axis, (name, swap) in zip(axes, rows.items(), strict=True):
        drawn = draw_digits(COLUMNS, agreement=0.9, split="test", swap=swap)
        axis.imshow(np.concatenate(list(drawn.pixels), axis=1), interpolation="nearest")
        axis.set_ylabel(name, rotation=0, ha="right", va="center")
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def curves() -> Figure:
    """Faithfulness against size: each circuit on its own task and on the other."""
    results = json.loads((HERE / "circuits.json").read_text())
    crossed = results["faithfulness_crossed"]
    lines = {
        "digit circuit, digit task": (results["cues"]["digit"]["faithfulness"], "#0072B2", "-", "o"),
        "colour circuit, colour task": (results["cues"]["colour"]["faithfulness"], "#D55E00", "-", "s"),
        "colour circuit, digit task": (crossed["colour_circuit_on_digit"], "#0072B2", ":", "s"),
        "digit circuit, colour task": (crossed["digit_circuit_on_colour"], "#D55E00", ":", "o"),
    }
    figure = Figure(figsize=(6.5, 3.4), layout="constrained")
    axis = figure.subplots()
    for name, (values, colour, dash, marker) in lines.items():
        axis.plot(
            list(map(int, values)), list(values.values()), dash, marker=marker, ms=4, color=colour, label=name
        )
    axis.set_xlabel(f"edges of largest |score|, of {results['n_edges']}")
    axis.set_ylabel("faithfulness")
    axis.axhline(1, color="0.8", lw=0.8, zorder=0)
    axis.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Draw and write."""
    mpl.use("agg")
    for name, figure in (
        ("colour-digits", examples()),
        ("colour-digits-circuits", curves()),
    ):
        figure.savefig(IMAGES / f"{name}.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
