"""What the two statistics of a monitor find, and how often they go off in vain: docs/howto/monitor.md.

    python experiments/pacs64/alarms.py --data DIR --work DIR

A ViT is trained on 400 photos. Of the other photos, 200 are the reference (circuit and known outputs), and
the rest is cut into random batches of 20, 50 and 100, in groups of ten: each batch in turn is the new one and
the other nine are known, at a rate of 0.2, so that each statistic is tested at 0.1. Batches of art paintings,
cartoons and sketches are compared with the same known ones. Writes `results/alarms.json`; ten minutes on a
core.
"""

import json
from typing import Any

import numpy as np
import torch
from pacs import DOMAINS, RESULTS, SEED, TRANSFORM, arguments, new_vit, read

from assay.analyses.generalization.alarms import CIRCUIT, OUTPUTS, AlarmRules, Calibration
from assay.analyses.generalization.dependency import circuit_like, circuit_shift, output_shift
from assay.analyses.generalization.inspection import inspect_model
from assay.analyses.generalization.monitor import discover_reference, probabilities
from assay.core.random import stream
from assay.models import Model, load_model
from assay.tasks import ImageTask
from assay.zoo import Recipe, train


WINDOWS, RATE, GROUP, SPLITS, NEW = (20, 50, 100), 0.2, 10, 6, 20
TRAINED, VALIDATED, REFERENCE = 400, 60, 200


def shifts_of(model: Model, images: ImageTask, window: int, known: Any) -> list[tuple[float, float]]:
    """Both shifts of disjoint batches."""
    reference, outputs = known
    found = []
    for start in range(0, images.n - window + 1, window):
        task = images.subset(range(start, start + window)).with_transform(TRANSFORM)
        scores = circuit_like(model, task, reference)
        moved = output_shift(outputs, probabilities(inspect_model(model, task, ("logits",))))
        found.append((circuit_shift(reference, scores), moved))
    return found


def found_by(known: list[tuple[float, float]], new: tuple[float, float], window: int) -> list[bool]:
    """Whether the circuit, the outputs, or one of them raises the alarm."""
    shifts, moved = zip(*known, strict=True)
    calibration = Calibration(shifts=shifts, output_shifts=moved, n=window)
    rules = AlarmRules(asked="conformal", alpha=RATE, seed=SEED).calibrated(calibration)
    alone = [value > rules.limits[name] for name, value in zip((CIRCUIT, OUTPUTS), new, strict=True)]
    return [*alone, bool(rules.verdict(*new)["alarm"])]


def main() -> None:
    given = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    photos = read(given.data, "photo")
    order = stream(SEED, "pacs64/alarms").permutation(photos.n)
    parts = np.split(order, np.cumsum([TRAINED, VALIDATED, REFERENCE]))
    trained, validated, reference, rest = (photos.subset(part) for part in parts)
    recipe = Recipe(init="scratch", mode="full", lr=1e-3, batch_size=64, steps=400, warmup=20, seed=SEED)
    folder = given.work / "alarms" / recipe.key
    vit = new_vit(photos.classes, seed=SEED)
    run = train(vit, trained, validated, recipe, folder, transform=TRANSFORM)
    model = load_model(folder)
    results: dict[str, Any] = {"rate": RATE, "known": GROUP - 1, "id accuracy": run.best_score, "windows": {}}
    others = {name: read(given.data, name) for name in DOMAINS if name != "photo"}
    for window in WINDOWS:
        known = (
            discover_reference(model, reference.with_transform(TRANSFORM), batch=window),
            probabilities(inspect_model(model, reference.with_transform(TRANSFORM), ("logits",))),
        )
        new = {
            name: shifts_of(model, images.sample(NEW * window, seed=SEED), window, known)
            for name, images in others.items()
        }
        rows: dict[str, list[list[bool]]] = {name: [] for name in ("photo", *new)}
        for split in range(SPLITS):
            mixed = stream(split, "pacs64/alarms/split").permutation(rest.n)
            batches = shifts_of(model, rest.subset(mixed), window, known)
            for start in range(0, len(batches) - GROUP + 1, GROUP):
                group = batches[start : start + GROUP]
                for place, one in enumerate(group):
                    nine = [*group[:place], *group[place + 1 :]]
                    rows["photo"].append(found_by(nine, one, window))
                    for name, shifts in new.items():
                        rows[name] += [found_by(nine, each, window) for each in shifts[place::GROUP]]
        results["windows"][str(window)] = {
            name: dict(
                zip((CIRCUIT, OUTPUTS, "either"), np.mean(each, axis=0).round(3).tolist(), strict=True)
            )
            for name, each in rows.items()
        }
        text = json.dumps(results, indent=1)
        (RESULTS / "alarms.json").write_text(text + "\n", encoding="utf-8")
        print(window, results["windows"][str(window)], flush=True)


if __name__ == "__main__":
    main()
