"""Models that have seen three domains of PACS and never the fourth, several per left-out domain.

    python experiments/pacs64/left_out_train.py --data DIR --work DIR [--seed N ...]

Models go to `WORK/left_out/DOMAIN/seed-N`. A finished model is not trained again, a killed one resumes.
"""

import time

import numpy as np
import torch
from pacs import DOMAINS, TRANSFORM, arguments, new_vit, read, split

from assay.tasks import ImageSet
from assay.zoo import Recipe, train


SEEDS = (0, 1)
RECIPE = {
    "init": "scratch",
    "optimiser": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.05,
    "batch_size": 64,
    "steps": 500,
    "warmup": 30,
    "validate_every": 125,
}


def joined(parts: list[ImageSet], name: str) -> ImageSet:
    """The images of several domains as one, numbered through."""
    return ImageSet(
        pixels=np.concatenate([each.pixels for each in parts]),
        ids=np.arange(sum(each.n for each in parts)),
        domain=name,
        name="pacs64",
        classes=parts[0].classes,
        labels=np.concatenate([each.labels for each in parts]),
    )


def sources(images: dict[str, ImageSet], left_out: str, seed: int) -> tuple[ImageSet, ImageSet]:
    """Training and validation images of the three domains that are not left out."""
    halves = [split(images[each], seed) for each in DOMAINS if each != left_out]
    return joined([a for a, _ in halves], f"not-{left_out}"), joined(
        [b for _, b in halves], f"not-{left_out}"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seed", type=int, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = {domain: read(given.data, domain) for domain in DOMAINS}
    for seed in given.seed or SEEDS:
        for left_out in DOMAINS:
            began, cpu = time.time(), time.process_time()
            train_set, validation_set = sources(images, left_out, seed)
            run = train(
                new_vit(train_set.classes, seed=seed),
                train_set,
                validation_set,
                Recipe(seed=seed, **RECIPE),
                given.work / "left_out" / left_out / f"seed-{seed}",
                transform=TRANSFORM,
            )
            print(
                f"without {left_out}, seed {seed}: id accuracy {run.best_score:.3f} at step {run.best_step}, "
                f"{time.time() - began:.0f} s, cpu {time.process_time() - cpu:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
