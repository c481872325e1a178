"""After deployment: how far the circuit of the best model moves on domains of known and of new kinds.

    python experiments/pacs64/monitor.py --data DIR --work DIR

The model with the best ID accuracy of both zoos. Per domain, under `WORK/monitored`: `NAME.safetensors` (edge
scores) and `NAME.npz` (logits and features of the same images, accuracy on all images of the domain).
"""

import json
import os
from pathlib import Path

import numpy as np
import torch
from measure import circuit, circuit_task, outputs
from pacs import DOMAINS, ID_DOMAINS, SEED, arguments, read, split

import assay
from assay.tasks import CORRUPTIONS, ImageTask, corrupt


IMAGES = 300  # per domain, for circuits and for output-based scores alike


def best_model(work: Path) -> tuple[str, Path, float]:
    """ID domain, folder and ID accuracy of the model that validates best; the first of equals."""
    found = [
        (domain, path.parent, float(json.loads(path.read_text())["best_score"]))
        for domain in ID_DOMAINS
        for path in sorted((work / "zoo" / domain / "models").glob("*/training.json"))
    ]
    return max(found, key=lambda each: each[2])


def domains(data: Path, id_domain: str) -> dict[str, ImageTask]:
    """The ID validation images, their 39 corruptions, and thirds of the other three PACS domains."""
    validation = split(read(data, id_domain))[1]
    found = {"id": validation}
    found |= {f"known/{key}": corrupt(validation, key, seed=SEED).held() for key in CORRUPTIONS}
    for other in DOMAINS:
        if other != id_domain:
            for number, part in enumerate(read(data, other).parts(3, seed=SEED), start=1):
                found[f"new/{other}-{number}"] = part
    return found


def main() -> None:
    given = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    id_domain, folder, accuracy = best_model(given.work)
    print(f"{folder.name} of {id_domain}, ID accuracy {accuracy:.3f}", flush=True)
    model = assay.load_model(folder)
    place = given.work / "monitored" / id_domain / folder.name
    for name, images in domains(given.data, id_domain).items():
        path = place / f"{name}.npz"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        logits, features = outputs(model, images)
        rows = np.searchsorted(images.ids, images.sample(IMAGES, seed=SEED).ids)
        circuit(model, circuit_task(images, IMAGES)).save(path.with_suffix(".safetensors"))
        np.savez(
            path.with_suffix(".tmp.npz"),
            logits=logits[rows],
            features=features[rows],
            accuracy=np.float64((logits.argmax(1) == images.labels.numpy()).mean()),
            n=np.int64(images.n),
        )
        os.replace(path.with_suffix(".tmp.npz"), path)
        print(f"{name}: accuracy {(logits.argmax(1) == images.labels.numpy()).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
