"""Train a small vision transformer on paintings, cartoons and photos, and keep what it makes of every sketch.

python experiments/pacs64_subsets/embed.py --data DIR

Writes `results/embedding.npz`: for every sketch of the archive, and for the held-out images in distribution,
the features before the last layer, reduced to 32 dimensions. A minute or two of one CPU core. No sketch is
trained on.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from analyse import read as read_archive
from images import ID_DOMAINS, OOD_DOMAIN, RESULTS, SEED, read, training_rows
from networks import outputs, train_network
from recipes import Recipe


# Edge maps, because networks on colours give nearly all sketches, black on white, one class.
RECIPE = Recipe(
    estimator="vit",
    kind="edges",
    features="edges-image",
    subset="all",
    settings={"width": 64, "rate": 1e-3, "epochs": 14, "depth": 4, "augmentation": "flip-shift"},
    draw=0,
)
DIMENSIONS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .npz files")
    given = parser.parse_args()
    torch.set_num_threads(1)
    domains = [read(given.data, domain) for domain in ID_DOMAINS]
    pixels = np.concatenate([each.pixels for each in domains])
    labels = np.concatenate([np.asarray(each.labels) for each in domains])
    train = np.concatenate([training_rows(each) for each in domains])
    model = train_network(RECIPE, pixels, labels, np.flatnonzero(train), SEED)
    sketches, data = read(given.data, OOD_DOMAIN), read_archive()[0]
    place = {path: row for row, path in enumerate(np.asarray(sketches.fields["paths"]).tolist())}
    asked = sketches.pixels[[place[name] for name in data.example_ids.tolist()]]
    accuracy = {
        "held out": np.mean(outputs(model, pixels[~train], RECIPE.kind).argmax(axis=1) == labels[~train]),
        "sketches": np.mean(outputs(model, asked, RECIPE.kind).argmax(axis=1) == data.labels),
    }
    body = model[:-1]
    seen, known, ood = (outputs(body, part, RECIPE.kind) for part in (pixels[train], pixels[~train], asked))
    # Principal directions of the training images; not centred, because distances are by cosine.
    directions = np.linalg.svd(seen, full_matrices=False)[2][:DIMENSIONS].T
    kept = float(((ood @ directions) ** 2).sum() / (ood**2).sum())
    found = {name: float(value) for name, value in accuracy.items()} | {"share kept of sketches": kept}
    np.savez_compressed(
        RESULTS / "embedding.npz",
        embedding=(ood @ directions).astype(np.float16),
        id_embedding=(known @ directions).astype(np.float16),
        facts=json.dumps(found),
    )
    print(found)


if __name__ == "__main__":
    main()
