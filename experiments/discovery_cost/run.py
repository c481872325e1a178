"""Where the time of one circuit goes: the figure of docs/performance.md.

    python experiments/discovery_cost/run.py

The model of `classifier.py`, 64 images, `eap-ig-inputs` with 5 steps, float32, one CPU thread. Five turns
after one to warm up; of these the one with the median total is drawn. Writes `discovery_cost.json` beside
this file and `docs/images/cost-breakdown.svg`.
"""

import json
from pathlib import Path

import matplotlib as mpl
from classifier import classifier, images

from assay.analyses.generalization.cost import discovery_cost
from assay.analyses.generalization.rank_plots import plot_cost


HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "images" / "cost-breakdown.svg"
IMAGES, TURNS = 64, 5
PARTS = ("forward", "backward", "contraction")


def main() -> None:
    model, task = classifier(), images(IMAGES)
    turns = [discovery_cost(model, task) for _ in range(TURNS + 1)][1:]
    turns.sort(key=lambda turn: sum(turn[part]["seconds"] for part in PARTS))
    found = turns[TURNS // 2]
    record = {"images": IMAGES, "tokens": model.n_tokens, "edges": model.graph.n_edges, "cost": found}
    (HERE / "discovery_cost.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    mpl.rcParams["svg.hashsalt"] = "cost-breakdown"
    ax = plot_cost(found)
    ax.set_xlabel(f"seconds for one circuit on {IMAGES} images")
    ax.figure.savefig(PICTURE, metadata={"Date": None}, bbox_inches="tight")
    total = sum(found[part]["seconds"] for part in PARTS)
    print(f"{total:.2f} s, {total / found['plain-forward']['seconds']:.1f} plain passes")


if __name__ == "__main__":
    main()
