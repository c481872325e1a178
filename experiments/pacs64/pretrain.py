"""The two pre-trained starts of the zoo: masked patches of PACS without labels, and labelled `shapes`.

    python experiments/pacs64/pretrain.py --data DIR --work DIR --start mae|shapes

`mae` (He et al. 2022) sees the training images (80 %) of all four domains, the later targets included,
without labels. `shapes` is supervised on the procedural figures of the package and sees no PACS image. A
killed run resumes with identical results.
"""

import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from pacs import DOMAINS, SEED, TRANSFORM, arguments, new_vit, read, split
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import ViTForImageClassification

from assay.core.random import stream, torch_stream
from assay.tasks import SHAPE_CLASSES, SHAPE_DOMAINS, draw_shapes
from assay.zoo import Augmentation


SETTINGS = {
    "mae": {"steps": 1500, "batch": 128, "lr": 1.5e-3, "min_area": 0.4, "visible": 5, "decoder_width": 48},
    "shapes": {"steps": 1500, "batch": 64, "lr": 2e-3, "min_area": 0.8, "images_per_domain": 1200},
}
WEIGHT_DECAY = 0.05
WARMUP = 100
SAVE_EVERY = 100


class MaskedPatches(nn.Module):
    """The encoder on 5 of 16 patches, a decoder of one block that paints the others."""

    def __init__(self, vit: nn.Module, *, visible: int, width: int) -> None:
        super().__init__()
        self.vit, self.visible = vit, visible
        n = vit.config.hidden_size
        self.to_decoder = nn.Linear(n, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.block = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.paint = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 768))

    def forward(self, images: Tensor, order: Tensor) -> Tensor:
        """Mean squared error of the hidden patches, each normalised by its own mean and deviation."""
        embeddings = self.vit.embeddings(images)
        cls, patches = embeddings[:, :1], embeddings[:, 1:]
        seen = order[:, : self.visible, None]
        hidden = torch.cat([cls, patches.gather(1, seen.expand(-1, -1, patches.shape[2]))], dim=1)
        for layer in self.vit.layers:
            hidden = layer(hidden)
        hidden = self.to_decoder(self.vit.layernorm(hidden))
        canvas = self.mask_token.expand(len(images), 16, -1)
        canvas = canvas.scatter(1, seen.expand(-1, -1, canvas.shape[2]), hidden[:, 1:]) + self.positions
        painted = self.paint(self.block(torch.cat([hidden[:, :1], canvas], dim=1)))[:, 1:]
        target = images.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        target = (target - target.mean(2, keepdim=True)) / (target.var(2, keepdim=True) + 1e-4).sqrt()
        error = (painted - target).square().mean(2)
        return error.gather(1, order[:, self.visible :]).mean()


def pretrain(start: str, data: Path, folder: Path) -> None:
    """Train, saving the state now and then, and write the model to `folder/start`."""
    settings = SETTINGS[start]
    model = new_vit(SHAPE_CLASSES, seed=SEED)
    if start == "mae":
        parts = [split(read(data, domain))[0] for domain in DOMAINS]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            learner: nn.Module = MaskedPatches(
                model.vit, visible=settings["visible"], width=settings["decoder_width"]
            )
    else:
        parts = [draw_shapes(domain, settings["images_per_domain"], size=64) for domain in SHAPE_DOMAINS]
        learner = model
    pixels = np.concatenate([part.pixels for part in parts])
    labels = torch.cat([part.labels for part in parts])
    augmentation = Augmentation(min_area=settings["min_area"])
    optimiser = torch.optim.AdamW(learner.parameters(), lr=1.0, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.95))
    state = folder / f"{start}-state.safetensors"
    first, losses = resumed(state, learner, optimiser)
    learner.train()
    began = time.process_time()
    for step in range(first, settings["steps"]):
        rng = stream(SEED, f"pacs64/{start}/{step}")
        rows = rng.choice(len(pixels), settings["batch"], replace=False)
        images = TRANSFORM.normalised(augmentation.apply(pixels[rows], rng))
        rate = (
            settings["lr"]
            * min(1.0, (step + 1) / WARMUP)
            * 0.5
            * (1 + np.cos(np.pi * step / settings["steps"]))
        )
        for group in optimiser.param_groups:
            group["lr"] = rate
        if start == "mae":
            noise = torch.rand(len(rows), 16, generator=torch_stream(SEED, f"pacs64/mask/{step}"))
            loss = learner(images, noise.argsort(1))
        else:
            loss = cross_entropy(learner(images).logits, labels[rows])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % SAVE_EVERY == 0 or step + 1 == settings["steps"]:
            keep(state, learner, optimiser, step + 1, losses)
            spent = time.process_time() - began
            print(f"{start} step {step + 1} loss {np.mean(losses[-100:]):.4f} cpu {spent:.0f} s", flush=True)
    finish(start, model, folder, losses, settings)


def resumed(state: Path, learner: nn.Module, optimiser: torch.optim.AdamW) -> tuple[int, list[float]]:
    """Next step and losses so far; weights and moments are put back in place."""
    if not state.exists():
        return 0, []
    tensors = load_file(state)
    learner.load_state_dict({k.removeprefix("w/"): v for k, v in tensors.items() if k.startswith("w/")})
    for name, parameter in learner.named_parameters():
        if f"m/{name}" in tensors:
            optimiser.state[parameter] = {
                "step": tensors["step"].float(),
                "exp_avg": tensors[f"m/{name}"],
                "exp_avg_sq": tensors[f"v/{name}"],
            }
    return int(tensors["step"]), tensors["losses"].tolist()


def keep(
    state: Path, learner: nn.Module, optimiser: torch.optim.AdamW, step: int, losses: list[float]
) -> None:
    """Everything the next step depends on, under a temporary name first."""
    tensors = {f"w/{name}": value.contiguous() for name, value in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        if parameter in optimiser.state:
            tensors[f"m/{name}"] = optimiser.state[parameter]["exp_avg"]
            tensors[f"v/{name}"] = optimiser.state[parameter]["exp_avg_sq"]
    tensors |= {"step": torch.tensor(step), "losses": torch.tensor(losses, dtype=torch.float64)}
    save_file(tensors, state.with_suffix(".tmp"))
    os.replace(state.with_suffix(".tmp"), state)


def finish(
    start: str, model: ViTForImageClassification, folder: Path, losses: list[float], settings: dict
) -> None:
    """The model with a record of how it came to be."""
    model.eval().save_pretrained(folder / f"{start}.tmp")
    curve = [round(float(np.mean(losses[i : i + 100])), 4) for i in range(0, len(losses), 100)]
    record = {"start": start, **settings, "weight_decay": WEIGHT_DECAY, "loss_per_100_steps": curve}
    (folder / f"{start}.tmp" / "pretraining.json").write_text(json.dumps(record, indent=1) + "\n")
    os.replace(folder / f"{start}.tmp", folder / start)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--start", choices=sorted(SETTINGS), required=True)
    given = parser.parse_args()
    folder = given.work / "starts"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / given.start).exists():
        pretrain(given.start, given.data, folder)


if __name__ == "__main__":
    main()
