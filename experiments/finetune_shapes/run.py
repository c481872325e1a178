"""Plain fine-tuning against circuit-regularised fine-tuning on shapes.

A small ViT that learnt the six figures in the style flat (a model of the embedded zoo) is fine-tuned on few
images in the style sketch. The styles neon and relief are trained on at no point, flat only before. Runs with
one seed see the same images in the same order, so that arms are compared in pairs.

    python experiments/finetune_shapes/run.py WORK_FOLDER [MODEL_FOLDER]

A second call goes on where the first stopped. Writes results.json beside this file and the
picture of the documentation.
"""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import stats

from assay.analyses.generalization import CircuitLoss, Dynamics, finetune, training_dynamics
from assay.models import load_model
from assay.tasks import draw_shapes
from assay.zoo import Recipe, Zoo


HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "docs" / "images" / "finetune-shapes.svg"
BASE = "scratch-full-lr0.003-b64-wd0-s0-c62f7a"
WATCHED = ("flat", "neon", "relief")
SEEDS = (0, 1, 2, 3, 4, 5)
ARMS = {
    "plain": CircuitLoss(weight=0),
    # The only arm that was added when results of the others, all with published weights, had been seen.
    "log 0.01": CircuitLoss(weight=0.01),
    "log 0.05": CircuitLoss(weight=0.05),
    "log 0.2": CircuitLoss(weight=0.2),
    "ratio 0.1": CircuitLoss(weight=0.1, loss="ratio"),
}
RECIPE = Recipe(
    init=BASE,
    lr=5e-4,
    batch_size=32,
    warmup=20,
    steps=150,
    optimiser="adamw",
    head_dropout=0.0,
    validate_every=50,
)


def main(folder: Path, base: Path | None) -> None:
    torch.set_num_threads(1)
    model = Zoo.embedded().load(BASE) if base is None else load_model(base)
    watch = {style: draw_shapes(style, 240, start=5000) for style in WATCHED}
    validation = watch["validation"] = draw_shapes("sketch", 240, start=5000)
    rows: list[dict[str, Any]] = []
    courses: dict[str, Dynamics] = {}
    for seed in SEEDS:
        for arm, settings in ARMS.items():
            place, recipe = folder / f"{arm.replace(' ', '-')}-{seed}", replace(RECIPE, seed=seed)
            images = draw_shapes("sketch", 300, start=300 * seed)
            run = finetune(model, images, validation, place, circuit=settings, recipe=recipe)
            found = training_dynamics(place, validation.sample(128, seed=seed), watch=watch)
            row = {"arm": arm, "seed": seed, "seconds": run.seconds, "weights": run.weights}
            rows.append(row | {"selected": {"step": run.best_step}, "dynamics": found.to_dict()})
            courses.setdefault(arm, found)
            print(arm, seed, f"{run.best_score:.3f}", flush=True)
    document = {
        "base": {"key": BASE, "weights": model.weight_hash},
        "recipe": RECIPE.to_dict(),
        "arms": {arm: settings.to_dict() for arm, settings in ARMS.items()},
        "seeds": list(SEEDS),
        "summary": {arm: summary([row for row in rows if row["arm"] == arm], rows) for arm in ARMS},
        "runs": [compact(row) for row in rows],
    }
    (HERE / "results.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    picture(courses)


def picture(courses: dict[str, Dynamics]) -> None:
    """Three arms of the first seed beside each other."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for ax, arm in zip(figure.subplots(1, 3, sharey=True), ("plain", "log 0.05", "ratio 0.1"), strict=True):
        courses[arm].plot(ax).set_title(arm, loc="left", fontsize=10)
    figure.savefig(PICTURE, metadata={"Date": None})


def last(row: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in row["dynamics"]["readings"] if each["step"] == row["selected"]["step"])


def compact(row: dict[str, Any]) -> dict[str, Any]:
    """What is committed of a run: selection and readings."""
    kept = ("arm", "seed", "seconds", "weights", "selected")
    digits = json.dumps(row["dynamics"]["readings"])
    readings = json.loads(digits, parse_float=lambda number: round(float(number), 6))
    return {name: row[name] for name in kept} | {"readings": readings}


def summary(rows: list[dict[str, Any]], everything: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over seeds, and the mean difference to plain training with the same seed, with its interval."""
    plain = {row["seed"]: row for row in everything if row["arm"] == "plain"}

    def numbers(row: dict[str, Any]) -> dict[str, float]:
        reading = last(row)
        return {
            "validation": reading["scores"]["validation"],
            **{name: reading["scores"][name] for name in WATCHED},
            "depth_bias": reading["depth_bias"],
            "log_deep": math.log(reading["deep"]),
            "log_shallow": math.log(reading["shallow"]),
            "seconds": row["seconds"],
        }

    found: dict[str, Any] = {}
    for name in numbers(rows[0]):
        values = np.array([numbers(row)[name] for row in rows])
        differences = values - np.array([numbers(plain[row["seed"]])[name] for row in rows])
        # Student's t for the mean of so few differences.
        half = stats.t.ppf(0.975, len(rows) - 1) * differences.std(ddof=1) / math.sqrt(len(rows))
        found[name] = {
            "mean": round(float(values.mean()), 4),
            "sd": round(float(values.std(ddof=1)), 4),
            "minus_plain": round(float(differences.mean()), 4),
            "half_width_95": round(float(half), 4),
        }
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
