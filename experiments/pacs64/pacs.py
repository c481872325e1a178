"""What `alarms.py` needs: the images, their split, the architecture."""

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from assay.core.random import stream
from assay.tasks import EvalTransform, ImageTask


HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
ID_DOMAINS = ("cartoon", "sketch")
SEED = 0
TRAIN_SHARE = 0.8
TRANSFORM = EvalTransform(resize=None)  # the files are 64 x 64 already; pixels to [-1, 1]


def arguments(description: str) -> argparse.ArgumentParser:
    """The two folders that every script needs."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .npz files")
    parser.add_argument("--work", type=Path, required=True, help="what is made; not committed")
    return parser


def read(data: Path, domain: str) -> ImageTask:
    """All images of one domain, with labels."""
    with np.load(data / f"{domain}.npz") as archive:
        files = np.split(archive["blob"], archive["offsets"][1:-1])
        return ImageTask(
            pixels=np.stack([np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in files]),
            labels=torch.from_numpy(archive["labels"].astype(np.int64)),
            fields={"paths": archive["paths"].tolist()},
            domain=domain,
            classes=tuple(archive["class_names"].tolist()),
            name=f"{domain}.npz",
        )


def training_rows(images: ImageTask, seed: int = SEED) -> np.ndarray:
    """True for the 80 % of every class that models learn from, drawn with `seed`."""
    rng = stream(seed, f"pacs64/split/{images.domain}")
    train = np.zeros(images.n, dtype=bool)
    labels = images.labels.numpy()
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        train[rows[: round(TRAIN_SHARE * len(rows))]] = True
    return train


def split(images: ImageTask, seed: int = SEED) -> tuple[ImageTask, ImageTask]:
    """Training and validation images."""
    train = training_rows(images, seed)
    return images.subset(np.flatnonzero(train)), images.subset(np.flatnonzero(~train))


def new_vit(classes: tuple[str, ...], *, seed: int) -> ViTForImageClassification:
    """A ViT of 8 blocks with 4 heads and width 96 on 16 x 16 patches, weights drawn with `seed`."""
    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=8,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=64,
        patch_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.057,  # the usual 0.02 is made for a width of 768; this is 0.02 sqrt(768 / 96)
        id2label=dict(enumerate(classes)),
        label2id={name: number for number, name in enumerate(classes)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ViTForImageClassification(config)
