"""Predictions to the committed archive: which model is right on which sketch, and what each model is.

python experiments/pacs64_subsets/collect.py --data DIR --work DIR
"""

import csv
import json

import numpy as np
from images import OOD_DOMAIN, RESULTS, arguments
from recipes import recipes
from train import prepare

from assay.analyses.subsets import CorrectnessData


COLUMNS = ("name", "family", "estimator", "kind", "features", "subset", "settings")


def main() -> None:
    given = arguments(__doc__).parse_args()
    table = prepare(given.data, given.work)
    done = [each for each in recipes() if (given.work / "models" / f"{each.name}.npz").exists()]
    predicted, seconds, asked = [], [], None
    for recipe in done:
        with np.load(given.work / "models" / f"{recipe.name}.npz") as archive:
            predicted.append(archive["predicted"])
            seconds.append(float(archive["seconds"]))
            if asked is not None and not np.array_equal(asked, archive["rows"]):
                raise SystemExit(f"{recipe.name} was asked other images; delete its file and train it again")
            asked = archive["rows"]
    assert asked is not None, "no model has been trained"
    # Settings drawn twice give the same model where nothing is random; one of them is enough.
    first = np.sort(np.unique(np.stack(predicted), axis=0, return_index=True)[1])
    print(f"{len(done) - len(first)} models answer everything as another does: left out")
    answers = np.stack(predicted)[first]
    done, seconds = [done[place] for place in first], [seconds[place] for place in first]
    right = answers == table["labels"][asked]
    sketch = table["domains"][asked] == OOD_DOMAIN
    rows = asked[sketch]
    names = tuple(map(str, table["class_names"]))
    data = CorrectnessData.of(
        right[:, sketch].astype(np.uint8),
        right[:, ~sketch].mean(axis=1),
        model_ids=[each.name for each in done],
        groups=[each.name for each in done],
        families=[each.family for each in done],
        example_ids=table["paths"][rows],
        labels=table["labels"][rows].astype(np.int64),
        label_names=names,
        source={"data": "PACS at 64 x 64, sketch", "script": "experiments/pacs64_subsets"},
    )
    RESULTS.mkdir(exist_ok=True)
    data.save(RESULTS / "correctness.npz")
    with (RESULTS / "models.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        shares = [f"predicts_{name}" for name in names]
        writer.writerow([*COLUMNS, "seconds", "id_accuracy", "accuracy", *shares])
        for place, recipe in enumerate(done):
            record = recipe.to_dict() | {"settings": json.dumps(dict(recipe.settings))}
            counts = np.bincount(answers[place, sketch], minlength=len(names)) / sketch.sum()
            numbers = (data.id_accuracy[place], data.accuracy()[place], *counts)
            facts = [record[column] for column in COLUMNS]
            writer.writerow([*facts, f"{seconds[place]:.2f}", *(f"{each:.5f}" for each in numbers)])
    print(f"{len(done)} models of {len(recipes())}, {sum(seconds) / 60:.0f} CPU minutes; {data}")


if __name__ == "__main__":
    main()
