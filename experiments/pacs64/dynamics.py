"""Training dynamics: the depth bias of two models over their checkpoints, next to OOD accuracy.

    python experiments/pacs64/dynamics.py --data DIR --work DIR

Among the models whose weights all trained: the one with the highest and the one with the lowest mean OOD
accuracy. Writes `results/dynamics.json`; needs `results/models.json`.
"""

import json
from typing import Any

import torch
from analyse import write
from measure import circuit_task, outputs
from pacs import DOMAINS, RESULTS, arguments, read, split

import assay
from assay.analyses.generalization import dependency_depth_bias
from assay.discovery.edges import output_scores


def main() -> None:
    given = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    images = {domain: read(given.data, domain) for domain in DOMAINS}
    zoos = json.loads((RESULTS / "models.json").read_text())
    full = [
        (sum(each["accuracy"] for each in row["targets"].values()) / len(row["targets"]), domain, row["key"])
        for domain, rows in zoos.items()
        for row in rows
        if row["recipe"]["mode"] == "full"
    ]
    found: dict[str, Any] = {}
    for name, (accuracy, domain, key) in {"highest": max(full), "lowest": min(full)}.items():
        validation = split(images[domain])[1]
        steps = []
        folder = given.work / "zoo" / domain / "models" / key / "checkpoints"
        for place in sorted(folder.iterdir(), key=lambda each: int(each.name)):
            model = assay.load_model(place)
            row: dict[str, Any] = {"step": int(place.name), "id_accuracy": accuracy_of(model, validation)}
            row["targets"] = {
                target: {
                    "accuracy": accuracy_of(model, images[target]),
                    "ddb_output": dependency_depth_bias(
                        output_scores(model, circuit_task(images[target]), per_example=False)
                    ),
                }
                for target in DOMAINS
                if target != domain
            }
            steps.append(row)
            print(domain, key, row, flush=True)
        found[name] = {"id_domain": domain, "key": key, "mean_ood_accuracy": accuracy, "steps": steps}
    write("dynamics", found)


def accuracy_of(model: assay.Model, images: Any) -> float:
    """Share of right answers."""
    return float((outputs(model, images)[0].argmax(1) == images.labels.numpy()).mean())


if __name__ == "__main__":
    main()
