"""The small networks of the grid: two convolutional ones, a vision transformer and an MLP-mixer."""

from typing import Any

import numpy as np
import torch
from images import GREY_WEIGHTS, gradients, pooled
from recipes import Recipe
from torch import Tensor, nn


CLASSES = 7
BATCH = 64
POSITIONS = 16  # patches of 8 x 8 in 32 x 32


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Attention(nn.Module):
    """Self-attention with 4 heads over `[batch, pos, d]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.heads = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.heads(x, x, x, need_weights=False)[0]


class Tokens(nn.Module):
    """Patches of 8 x 8 with learned positions, `[batch, 16, width]`."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, width, 8, stride=8)
        self.position = nn.Parameter(0.02 * torch.randn(POSITIONS, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x).flatten(2).transpose(1, 2) + self.position


class Transposed(nn.Module):
    """An MLP over positions instead of channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(POSITIONS, 32), nn.GELU(), nn.Linear(32, POSITIONS))

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)


class MeanOverPositions(nn.Module):
    """`[batch, pos, d]` to `[batch, d]`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def convolution(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Convolution, batch norm, rectifier."""
    layers = (nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
    return nn.Sequential(*layers)


def network(kind: str, channels: int, settings: dict[str, Any]) -> nn.Sequential:
    """An untrained network for 32 x 32 images."""
    width = settings["width"]
    if kind in ("cnn", "residual-cnn"):
        body: list[nn.Module] = [convolution(channels, width, 2)]
        for stage in range(2):
            now = width * 2**stage
            if kind == "residual-cnn":
                body.append(Residual(convolution(now, now, 1), convolution(now, now, 1)))
            body.append(convolution(now, 2 * now, 2))
        if settings["pool"] == "mean":
            return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(64 * width, CLASSES))
    blocks: list[nn.Module] = []
    for _ in range(settings["depth"]):
        mix: nn.Module = Attention(width) if kind == "vit" else Transposed(width)
        mlp = (nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        blocks += [Residual(mix), Residual(*mlp)]
    head = (nn.LayerNorm(width), MeanOverPositions(), nn.Linear(width, CLASSES))
    return nn.Sequential(Tokens(channels, width), *blocks, *head)


def inputs(pixels: np.ndarray, kind: str) -> Tensor:
    """`[n, channels, 32, 32]`, about zero mean and unit spread."""
    rgb = pixels.astype(np.float32) / 255
    if kind == "rgb":
        return torch.from_numpy(pooled(rgb, 32).transpose(0, 3, 1, 2).copy()) * 4 - 2
    grey = rgb @ GREY_WEIGHTS
    values = pooled(gradients(grey)[0], 32) * 6 - 1 if kind == "edges" else pooled(grey, 32) * 4 - 2
    return torch.from_numpy(values.astype(np.float32))[:, None]


def augmented(batch: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Mirror images and shifts of up to 3 pixels for a whole batch; grey for half of the batches."""
    if kind == "none":
        return batch
    flip = torch.rand(len(batch), generator=generator) < 0.5
    batch = torch.where(flip[:, None, None, None], batch.flip(-1), batch)
    down, right = torch.randint(-3, 4, (2,), generator=generator).tolist()
    batch = torch.roll(batch, (down, right), dims=(2, 3))
    if kind == "flip-shift-grey" and batch.shape[1] == 3 and torch.rand(1, generator=generator).item() < 0.5:
        batch = batch.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    return batch


def train_network(
    recipe: Recipe, pixels: np.ndarray, labels: np.ndarray, rows: np.ndarray, seed: int
) -> nn.Sequential:
    """A network trained on `rows`, in evaluation mode; its last layer gives the classes."""
    settings = dict(recipe.settings)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        seen = inputs(pixels[rows], recipe.kind)
        model = network(recipe.estimator, seen.shape[1], settings)
    wanted = torch.from_numpy(labels[rows].astype(np.int64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["rate"], weight_decay=0.05)
    steps = settings["epochs"] * (len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings["rate"], total_steps=steps + 1)
    for _ in range(settings["epochs"]):
        order = torch.randperm(len(rows), generator=generator)
        for chosen in order[: len(rows) // BATCH * BATCH].split(BATCH):
            batch = augmented(seen[chosen], settings["augmentation"], generator)
            loss = nn.functional.cross_entropy(model(batch), wanted[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def outputs(model: nn.Module, pixels: np.ndarray, kind: str) -> np.ndarray:
    """What a network, or the layers of one before its last, gives for each image."""
    return torch.cat([model(inputs(part, kind)) for part in np.array_split(pixels, 10)]).numpy()


def predict_network(
    recipe: Recipe, pixels: np.ndarray, labels: np.ndarray, rows: np.ndarray, asked: np.ndarray, seed: int
) -> np.ndarray:
    """Train a network on `rows` and return its predicted classes for `asked`."""
    model = train_network(recipe, pixels, labels, rows, seed)
    return outputs(model, pixels[asked], recipe.kind).argmax(axis=1)
