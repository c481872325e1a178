"""What each model with a left-out domain shows on known, corrupted and new images: readings, kept.

    python experiments/pacs64/left_out_read.py --data DIR --work DIR

Per model and domain, `WORK/left_out_readings/DOMAIN/seed-N/NAME.npz`: edge scores of every circuit image;
logits, features and labels of every image. What lies there is not made again; models that are trained later
are added by a further call.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from left_out_train import sources
from measure import circuit_task, outputs
from pacs import DOMAINS, SEED, arguments, read, split

import assay
from assay.core.random import stream
from assay.tasks import CORRUPTIONS, ImageSet, corrupt


SEVERITIES = ("1", "3", "5")  # of five; the nine stylisations have none
CORRUPTED_IMAGES = 400  # ID validation images that are corrupted
CIRCUIT_IMAGES = 100  # a batch: what a circuit is found on
REFERENCE_BATCHES = 8  # of ID validation images, each with a circuit of its own
PARTS = 3  # of the left-out domain


def corruptions() -> list[str]:
    """27 of the 39: severities 1, 3 and 5 of the six corruptions, and the stylisations."""
    return [key for key in CORRUPTIONS if key[-2] != "-" or key[-1] in SEVERITIES]


def domains(images: dict[str, ImageSet], left_out: str, seed: int) -> Iterator[tuple[str, ImageSet]]:
    """ID validation images; those of each source; parts of the left-out domain; corrupted ID images.

    The ID images that are corrupted are no others' reference: readings learn nothing from their labels.
    """
    validation = sources(images, left_out, seed)[1]
    some = validation.sample(CORRUPTED_IMAGES, seed=SEED)
    yield "id", validation.subset(np.flatnonzero(~np.isin(np.asarray(validation.ids), np.asarray(some.ids))))
    for number, part in enumerate(images[left_out].parts(PARTS, seed=SEED), start=1):
        yield f"new/{left_out}-{number}", part
    for other in DOMAINS:
        if other != left_out:
            yield f"source/{other}", split(images[other], seed)[1]
    for key in corruptions():
        yield f"corrupted/{key}", corrupt(some, key, seed=SEED)


def edges(model: assay.Model, images: ImageSet) -> np.ndarray:
    """Edge scores of each image of a batch, `[n, n_edges]`; its circuit is their mean."""
    task = circuit_task(images, images.n)
    found = assay.discover(model, task, "eap-ig-inputs", steps=5, batch_size=100, seed=SEED, per_example=True)
    assert found.per_example is not None
    return found.per_example.float().numpy()[:, model.graph.valid.numpy()]


def reading(model: assay.Model, images: ImageSet, batches: int) -> dict[str, np.ndarray]:
    """Edge scores of so many batches of drawn images; logits and features of all."""
    drawn = images.sample(batches * CIRCUIT_IMAGES, seed=SEED)
    order = stream(SEED, f"pacs64/batches/{images.domain}").permutation(drawn.n)
    found = [edges(model, drawn.subset(rows)) for rows in np.split(order, batches)]
    logits, features = outputs(model, images)
    return {"edges": np.stack(found), "logits": logits, "features": features, "labels": images.labels}


def read_model(folder: Path, images: dict[str, ImageSet], left_out: str, seed: int, place: Path) -> None:
    """All readings of one model that are not there yet."""
    model = assay.load_model(folder)
    for name, part in domains(images, left_out, seed):
        path = place / f"{name}.npz"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = reading(model, part, REFERENCE_BATCHES if name == "id" else 1)
        np.savez(path.with_suffix(".tmp.npz"), **arrays)
        os.replace(path.with_suffix(".tmp.npz"), path)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seed", type=int, help="read the models of this seed alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = {domain: read(given.data, domain) for domain in DOMAINS}
    for folder in sorted((given.work / "left_out").glob("*/seed-*"), key=lambda each: each.name):
        left_out, seed = folder.parent.name, int(folder.name.partition("-")[2])
        if given.seed not in (None, seed) or not (folder / "training.json").exists():
            continue
        began, cpu = time.time(), time.process_time()
        read_model(folder, images, left_out, seed, given.work / "left_out_readings" / left_out / folder.name)
        print(
            f"{left_out}, seed {seed}: {time.time() - began:.0f} s, cpu {time.process_time() - cpu:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
