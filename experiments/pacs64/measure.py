"""Before deployment: what every model of both zoos says about the three domains that it was not trained on.

    python experiments/pacs64/measure.py --data DIR --work DIR

Per model, under `WORK/measured/DOMAIN/KEY`: `outputs.npz` (logits and features of the ID validation images
and of all target images), `sharpness.json`, `TARGET.safetensors` (edge scores). What lies there is not made
again; models that are trained later are added by a further call.
"""

import json
import os
import time

import numpy as np
import torch
from pacs import DOMAINS, ID_DOMAINS, SEED, TRANSFORM, arguments, read, split

import assay
from assay.analyses.generalization.baselines import sharpness
from assay.tasks import ImageTask


CIRCUIT_IMAGES = 200
SHARPNESS_IMAGES = 128  # half of the published batch
BATCH = 100


def circuit_task(images: ImageTask, n: int = CIRCUIT_IMAGES) -> ImageTask:
    """The images that a circuit is found on; their labels are left behind."""
    drawn = images.sample(n, seed=SEED)
    return ImageTask(
        pixels=drawn.pixels, ids=drawn.ids, domain=drawn.domain, name="pacs64", classes=drawn.classes
    ).with_transform(TRANSFORM)


def outputs(model: assay.Model, images: ImageTask) -> tuple[np.ndarray, np.ndarray]:
    """Logits and features (final norm of the CLS token) of every image, from one pass."""
    with torch.inference_mode():
        features = torch.cat(
            [
                model.features(TRANSFORM.normalised(images.pixels[start : start + 256]))
                for start in range(0, images.n, 256)
            ]
        )
        logits = model.module.get_submodule("classifier")(features)
    return logits.numpy(), features.numpy()


def circuit(model: assay.Model, task: ImageTask) -> assay.EdgeScores:
    """Edge scores in the way that all circuits of this experiment are found."""
    return assay.discover(model, task, "eap-ig-inputs", steps=5, batch_size=BATCH, seed=SEED)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--domain", choices=ID_DOMAINS, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = {domain: read(given.data, domain) for domain in DOMAINS}
    tasks = {domain: circuit_task(each) for domain, each in images.items()}
    validation = {domain: split(images[domain])[1] for domain in ID_DOMAINS}
    pairs = [
        (domain, folder)
        for domain in given.domain or ID_DOMAINS
        for folder in sorted((given.work / "zoo" / domain / "models").iterdir())
        if (folder / "training.json").exists()
    ]
    for number, (domain, folder) in enumerate(pairs, start=1):
        place = given.work / "measured" / domain / folder.name
        place.mkdir(parents=True, exist_ok=True)
        targets = [each for each in DOMAINS if each != domain]
        wanted = [place / f"{each}.safetensors" for each in targets]
        if all(path.exists() for path in (*wanted, place / "outputs.npz", place / "sharpness.json")):
            continue
        began = time.process_time()
        model = assay.load_model(folder)
        if not (place / "outputs.npz").exists():
            arrays = {}
            for name, part in {"validation": validation[domain], **{t: images[t] for t in targets}}.items():
                arrays[f"{name}/logits"], arrays[f"{name}/features"] = outputs(model, part)
            np.savez(place / "outputs.tmp.npz", **arrays)
            os.replace(place / "outputs.tmp.npz", place / "outputs.npz")
        passed = time.process_time()
        for target, path in zip(targets, wanted, strict=True):
            if not path.exists():
                circuit(model, tasks[target]).save(path)
        found = time.process_time()
        if not (place / "sharpness.json").exists():
            batch = validation[domain].sample(SHARPNESS_IMAGES, seed=SEED).with_transform(TRANSFORM)
            value = sharpness(model, [(batch.clean, batch.labels)])
            (place / "sharpness.tmp").write_text(json.dumps({"sharpness": value}))
            os.replace(place / "sharpness.tmp", place / "sharpness.json")
        print(
            f"{number}/{len(pairs)} {domain} {folder.name}: cpu {passed - began:.0f} s outputs, "
            f"{found - passed:.0f} s circuits, {time.process_time() - found:.0f} s sharpness",
            flush=True,
        )


if __name__ == "__main__":
    main()
