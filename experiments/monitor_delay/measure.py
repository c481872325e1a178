"""Readings for the delay of alarms: every batch is measured once, streams are put together afterwards.

    python experiments/monitor_delay/measure.py --work DIR

The best of the twelve embedded models. Per source, `WORK/SOURCE.npz`: mean edge scores of the 8 blocks of
each batch of 32 images, and logits and features of its images.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

import assay
from assay.analyses.generalization.batches import image_task
from assay.analyses.generalization.noise_floor import block_means
from assay.tasks import ImageSet, corrupt, draw_shapes
from assay.zoo import Zoo


WINDOW = 32
KNOWN = "flat"
REFERENCE, QUIET, CHANGED = 16, 240, 60  # batches
# The known style for the reference, and again for known and quiet batches; then the changes.
SOURCES = {
    "reference": REFERENCE,
    "flat": QUIET,
    "sketch": CHANGED,
    "fog-1": CHANGED,
    "gaussian-noise-1": CHANGED,
}
SETTINGS = {"method": "eap-ig-inputs", "steps": 5}


def batch_of(source: str, number: int) -> ImageSet:
    """A batch of images that no other batch and no training holds."""
    first = 3_000_000 + 100_000 * list(SOURCES).index(source) + number * WINDOW
    style = source if source == "sketch" else KNOWN
    images = draw_shapes(style, WINDOW, start=first)
    return images if source in ("reference", "flat", "sketch") else corrupt(images, source)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    zoo = Zoo.embedded()
    best = max(zoo.entries, key=lambda each: each.id_accuracy)
    model = assay.load_model(str(zoo.folder(best.key)))
    for source, n_batches in SOURCES.items():
        path = work / f"{source}.npz"
        if path.exists():
            continue
        blocks, logits, features, labels = [], [], [], []
        for number in range(n_batches):
            task = image_task(model, batch_of(source, number))
            scores = assay.discover(
                model, task, SETTINGS["method"], steps=SETTINGS["steps"], per_example=True
            )
            blocks.append(block_means(scores.per_example[:, model.graph.valid].double().numpy()))
            logits.append(assay.execution.run_model(model, task).numpy())
            features.append(model.features(task.images).numpy())
            labels.append(task.labels.numpy())
        arrays = {"blocks": blocks, "logits": logits, "features": features, "labels": labels}
        temporary = path.with_suffix(".tmp.npz")
        np.savez(temporary, **{name: np.stack(each) for name, each in arrays.items()})
        os.replace(temporary, path)
        accuracy = np.mean(np.stack(logits).argmax(-1) == np.stack(labels))
        print(f"{source}: {n_batches} batches, accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
