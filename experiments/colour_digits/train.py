"""Train `colour-digits`, the embedded image classifier, on coloured digits whose colour is right in 9 of 10.

    python experiments/colour_digits/train.py --out build/colour-digits

A ViT of 3 blocks and 4 heads on 20,000 drawings of 1,297 handwritten digits, label noise 0.1, so that by
the labels alone digit and colour are equally good cues. One core needs a few minutes. Accuracy is measured
on drawings of the 500 other digits, without label noise, in three domains, with the weights rounded to 16
bits as they are stored; `training.json` beside this file keeps it.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from assay.core.random import torch_stream
from assay.tasks import EvalTransform
from assay.tasks.digits import DIGIT_CLASSES, SIDE, draw_digits


HERE = Path(__file__).parent
N_TRAIN, N_TEST = 20_000, 4_000
AGREEMENT, LABEL_NOISE = 0.9, 0.1
BATCH, PEAK, WARMUP, DECAY = 128, 2e-3, 100, 0.05


def build_model() -> ViTForImageClassification:
    """A fresh ViT: 3 blocks, 4 heads, width 64, MLP 128, 16 patches of 7 x 7."""
    return ViTForImageClassification(
        ViTConfig(
            image_size=SIDE,
            patch_size=7,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=len(DIGIT_CLASSES),
            id2label=dict(enumerate(DIGIT_CLASSES)),
            label2id={name: index for index, name in enumerate(DIGIT_CLASSES)},
        )
    )


def images_of(
    n: int, *, agreement: float, split: str, seed: int, label_noise: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised images, labels, and the classes that the colours stand for."""
    drawn = draw_digits(n, agreement=agreement, seed=seed, split=split, label_noise=label_noise)
    task = drawn.with_transform(EvalTransform(resize=(SIDE, SIDE)))
    assert task.labels is not None
    agrees = torch.tensor(drawn.fields["agrees"])
    return task.clean, task.labels, torch.where(agrees, task.labels, 1 - task.labels)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to 1 % of the peak."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    return PEAK * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP))))


def train(
    model: ViTForImageClassification, images: Tensor, labels: Tensor, *, epochs: int, seed: int
) -> None:
    """AdamW on the cross-entropy, weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    )
    order = torch_stream(seed, "colour-digits/order")
    steps = epochs * (len(images) // BATCH)
    step = 0
    started = time.monotonic()
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(images), generator=order).split(BATCH)[: len(images) // BATCH]:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            loss = nn.functional.cross_entropy(model(images[rows]).logits, labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach())
            step += 1
        spent = time.monotonic() - started
        print(f"epoch {epoch + 1}, {spent:.0f} s: loss {total / (steps / epochs):.4f}", flush=True)


@torch.no_grad()
def accuracies(model: ViTForImageClassification, *, seed: int) -> dict[str, dict[str, float]]:
    """Per domain how often the answer is the digit's class, and how often the colour's; stored weights."""
    stored = ViTForImageClassification(model.config).eval()
    stored.load_state_dict({name: value.half().float() for name, value in model.state_dict().items()})
    table = {}
    for agreement in (AGREEMENT, 0.5, 0.1):
        images, labels, colours = images_of(N_TEST, agreement=agreement, split="test", seed=seed)
        answers = torch.cat([stored(part).logits.argmax(1) for part in images.split(500)])
        conflict = labels != colours
        table[f"{agreement:g}"] = {
            "accuracy": float((answers == labels).double().mean()),
            "follows_colour": float((answers == colours).double().mean()),
            "accuracy_agreeing": float((answers == labels)[~conflict].double().mean()),
            "accuracy_conflicting": float((answers == labels)[conflict].double().mean()),
        }
    return table


def save(model: ViTForImageClassification, directory: Path) -> None:
    """Weights in 16 bits, the configuration, and how images are prepared."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: value.half().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(directory)
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": SIDE, "width": SIDE},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")


def main() -> None:
    """Train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=HERE / "training.json")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = build_model().train()
    images, labels, _ = images_of(
        N_TRAIN, agreement=AGREEMENT, split="train", seed=args.seed, label_noise=LABEL_NOISE
    )
    train(model, images, labels, epochs=args.epochs, seed=args.seed)
    save(model.eval(), args.out)
    results = {
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "n_train": N_TRAIN,
        "n_test": N_TEST,
        "agreement": AGREEMENT,
        "label_noise": LABEL_NOISE,
        "epochs": args.epochs,
        "seed": args.seed,
        "domains": accuracies(model, seed=args.seed + 1),
    }
    args.results.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
