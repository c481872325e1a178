"""Where the time of one circuit goes: the figure of docs/performance.md.

    python experiments/discovery_cost/run.py

A ViT of the shape of ViT-Ti (12 blocks of 3 heads, width 192; random weights), 64 drawn images of 96 x 96
pixels (37 tokens), `eap-ig-inputs` with 5 steps, float32, one CPU thread. Five turns after one to warm up; of
these the one with the median total is drawn. Writes `discovery_cost.json` beside this file and
`docs/images/cost-breakdown.svg`.
"""

import json
from pathlib import Path

import matplotlib as mpl
import torch
from transformers import ViTConfig, ViTForImageClassification

import assay
from assay.analyses.generalization.cost import discovery_cost
from assay.analyses.generalization.rank_plots import plot_cost
from assay.tasks import EvalTransform, draw_shapes


HERE = Path(__file__).parent
PICTURE = HERE.parent.parent / "docs" / "images" / "cost-breakdown.svg"
IMAGES, SIDE, TURNS = 64, 96, 5
PARTS = ("forward", "backward", "contraction")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=SIDE,
        patch_size=16,
        num_labels=6,
    )
    model = assay.load_model(ViTForImageClassification(config).eval())
    task = draw_shapes("flat", IMAGES, size=SIDE).task(EvalTransform(resize=(SIDE, SIDE)))
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
