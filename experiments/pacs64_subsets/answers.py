"""What weak and better models answer to the selected sketches; writes `results/answers.json`.

python experiments/pacs64_subsets/answers.py --work DIR
"""

import argparse
import json
from pathlib import Path

import numpy as np
from analyse import read, write
from images import RESULTS


SIZES = (20, 100, 500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="predictions of the models")
    given = parser.parse_args()
    data, _ = read()
    assert data.labels is not None
    assert data.label_names is not None
    n = data.n_examples
    predicted = []
    for name in data.model_ids:
        with np.load(given.work / "models" / f"{name}.npz") as archive:
            predicted.append(archive["predicted"][-n:])  # the sketches come last
    answers = np.stack(predicted)
    if not np.array_equal(answers == data.labels, data.columns(np.arange(n)).astype(bool)):
        raise SystemExit("predictions and correctness.npz are of different models; run collect.py again")
    ordered = np.argsort(data.id_accuracy, kind="stable")
    thirds = dict(zip(("lowest", "middle", "highest"), np.array_split(ordered, 3), strict=True))
    found = {}
    for row in json.loads((RESULTS / "path.json").read_text(encoding="utf-8"))["sizes"]:
        if row["size"] not in SIZES:
            continue
        chosen = np.array(row["indices"])
        found[row["size"]] = {
            data.label_names[code]: {
                "n": len(chosen[data.labels[chosen] == code]),
                **{
                    third: np.bincount(
                        answers[np.ix_(models, chosen[data.labels[chosen] == code])].ravel(), minlength=7
                    )
                    / (len(models) * np.sum(data.labels[chosen] == code))
                    for third, models in thirds.items()
                },
            }
            for code in np.unique(data.labels[chosen]).tolist()
        }
    write("answers", {"classes": data.label_names, "sizes": found})


if __name__ == "__main__":
    main()
