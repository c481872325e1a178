"""The zoo: every recipe of the grid on each in-distribution domain.

    python experiments/pacs64/train.py --data DIR --work DIR [--batch 64|32] [--domain NAME]

Models go to `WORK/zoo/DOMAIN/models/KEY`. A finished model is not trained again, a killed one resumes with
identical results.
"""

import time
from pathlib import Path

import torch
from pacs import ID_DOMAINS, SEED, TRANSFORM, arguments, new_vit, read, split
from transformers import ViTForImageClassification

from assay.zoo import Recipe, train


STEPS = 250
# Of models whose every weight trains; the others are evaluated once, at their best step.
CHECKPOINTS = (0, 25, 50, 100, 250)
RATES = {"full": (3e-4, 1e-3, 3e-3), "linear": (3e-3, 1e-2, 3e-2)}
# A linear probe of random features is left out, as in the published zoo.
STARTS = {"scratch": ("full",), "shapes": ("full", "linear"), "mae": ("full", "linear")}


def recipes(batch_size: int) -> list[Recipe]:
    """Half of the grid: three learning rates for each of five starts and modes."""
    return [
        Recipe(
            init=start,
            mode=mode,
            lr=rate,
            batch_size=batch_size,
            weight_decay=0.05,
            warmup=20,
            steps=STEPS,
            optimiser="adamw",
            seed=SEED,
            validate_every=50,
        )
        for start, modes in STARTS.items()
        for mode in modes
        for rate in RATES[mode]
    ]


def initial(start: str, classes: tuple[str, ...], work: Path) -> ViTForImageClassification:
    """A new head on random or pre-trained blocks."""
    model = new_vit(classes, seed=SEED)
    if start != "scratch":
        body = ViTForImageClassification.from_pretrained(work / "starts" / start).vit
        model.vit.load_state_dict(body.state_dict())
    return model


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, choices=(64, 32), action="append", help="half of the grid")
    parser.add_argument("--domain", choices=ID_DOMAINS, action="append")
    given = parser.parse_args()
    torch.set_num_threads(1)
    parts = {domain: split(read(given.data, domain)) for domain in given.domain or ID_DOMAINS}
    for batch in given.batch or (64, 32):
        for recipe in recipes(batch):
            for domain, (train_set, validation_set) in parts.items():
                began, cpu = time.time(), time.process_time()
                run = train(
                    initial(recipe.init, train_set.classes, given.work),
                    train_set,
                    validation_set,
                    recipe,
                    given.work / "zoo" / domain / "models" / recipe.key,
                    transform=TRANSFORM,
                    checkpoints=CHECKPOINTS if recipe.mode == "full" else (),
                )
                print(
                    f"{domain} {recipe.key}: id accuracy {run.best_score:.3f} at step {run.best_step}, "
                    f"{time.time() - began:.0f} s, cpu {time.process_time() - cpu:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
