"""The images of PACS at 64 x 64, their split, and the features that the models of this experiment see."""

import sys
from pathlib import Path

import numpy as np
import torch

from assay.core.random import stream


HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "pacs64"))  # behind this folder, whose scripts have the same names

from pacs import arguments, read, training_rows  # noqa: E402, F401 - of that folder, for the scripts of this one


RESULTS = HERE / "results"
ID_DOMAINS = ("art_painting", "cartoon", "photo")
OOD_DOMAIN = "sketch"
SEED = 0
GREY_WEIGHTS = np.array([0.299, 0.587, 0.114], dtype=np.float32)
# Kind of feature -> its variants. A kind is half of a family, so that variants of one kind stay together.
FEATURES = {
    "grey": ("grey8", "grey16", "grey32"),
    "rgb": ("rgb8", "rgb16"),
    "pca": ("pca40", "pca100"),
    "hog": ("hog8", "hog16"),
    "edges": ("edges8", "edges16"),
    "colour": ("colour-histogram", "colour-joint", "colour-grid"),
    "texture": ("lbp-global", "lbp-grid"),
    "spectrum": ("spectrum-square", "spectrum-polar"),
    "random-conv": ("random-conv5", "random-conv9"),
    "patches": ("patches64", "patches128"),
    "combined": ("combined-shape", "combined-all"),
}
# Side by side; each column is standardised before a model sees it.
COMBINED = {
    "combined-shape": ("hog8", "edges8", "patches64"),
    "combined-all": ("hog8", "lbp-grid", "colour-grid", "patches128"),
}


def pooled(images: np.ndarray, side: int) -> np.ndarray:
    """Means over squares: `[n, 64, 64, ...]` to `[n, side, side, ...]`."""
    block = images.shape[1] // side
    shape = (len(images), side, block, side, block, *images.shape[3:])
    return images.reshape(shape).mean(axis=(2, 4))


def gradients(grey: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Magnitude and unsigned orientation in [0, pi) of central differences."""
    down, right = np.zeros_like(grey), np.zeros_like(grey)
    down[:, 1:-1] = grey[:, 2:] - grey[:, :-2]
    right[:, :, 1:-1] = grey[:, :, 2:] - grey[:, :, :-2]
    return np.hypot(down, right), np.mod(np.arctan2(down, right), np.pi)


def oriented_gradients(grey: np.ndarray, cell: int, bins: int = 9) -> np.ndarray:
    """Histograms of oriented gradients (Dalal and Triggs, 2005), each cell normalised with its neighbours."""
    magnitude, orientation = gradients(grey)
    position = orientation / np.pi * bins
    lower = np.floor(position).astype(int)
    share = (position - lower).astype(np.float32)
    side = grey.shape[1] // cell
    cells = np.zeros((len(grey), side, side, bins), dtype=np.float32)
    for each in range(bins):
        part = magnitude * ((lower % bins == each) * (1 - share) + ((lower + 1) % bins == each) * share)
        cells[..., each] = pooled(part, side)
    energy = np.pad((cells**2).sum(axis=-1), ((0, 0), (1, 1), (1, 1)), mode="edge")
    around = sum(energy[:, i : i + side, j : j + side] for i in range(3) for j in range(3))
    return np.minimum(cells / np.sqrt(around + 1e-4)[..., None], 0.4).reshape(len(grey), -1)


def binary_patterns(grey: np.ndarray) -> np.ndarray:
    """Local binary patterns of the eight neighbours (Ojala et al., 2002), a code of 0 to 255 per pixel."""
    centre = grey[:, 1:-1, 1:-1]
    codes = np.zeros(centre.shape, dtype=np.uint8)
    around = ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0))
    for bit, (i, j) in enumerate(around):
        shifted = grey[:, i : i + centre.shape[1], j : j + centre.shape[2]]
        codes |= (shifted > centre + 0.02).astype(np.uint8) << bit
    return codes


def turns(codes: np.ndarray) -> np.ndarray:
    """Rotation-invariant uniform patterns: the number of set bits, or 9 where bits change more than twice."""
    table = np.array([[code >> bit & 1 for bit in range(8)] for code in range(256)])
    changes = (table != np.roll(table, 1, axis=1)).sum(axis=1)
    return np.where(changes <= 2, table.sum(axis=1), 9).astype(np.uint8)[codes]


def histograms(values: np.ndarray, bins: int, side: int) -> np.ndarray:
    """Shares of the codes 0 to bins - 1 in a grid of side x side cells, `[n, side * side * bins]`."""
    parts = []
    for rows in np.array_split(np.arange(values.shape[1]), side):
        for columns in np.array_split(np.arange(values.shape[2]), side):
            cell = values[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].reshape(len(values), -1)
            offset = cell.astype(np.int64) + bins * np.arange(len(values))[:, None]
            parts.append(np.bincount(offset.ravel(), minlength=bins * len(values)).reshape(-1, bins))
    return np.concatenate(parts, axis=1).astype(np.float32) / values[0].size


def spectrum(grey: np.ndarray, *, polar: bool) -> np.ndarray:
    """Log power of the Fourier transform: 16 x 16 low frequencies, or 10 radii times 8 directions."""
    windowed = (grey - grey.mean(axis=(1, 2), keepdims=True)) * np.outer(np.hanning(64), np.hanning(64))
    power = np.abs(np.fft.fftshift(np.fft.fft2(windowed), axes=(1, 2))) ** 2
    if not polar:
        return np.log(power[:, 24:40, 32:48].reshape(len(grey), -1) + 1e-3)
    y, x = np.mgrid[-32:32, -32:32]
    ring = np.clip(np.log2(np.hypot(y, x) + 1e-9) * 2, 0, 9.99).astype(int)
    cell = ring * 8 + (np.mod(np.arctan2(y, x), np.pi) / np.pi * 8).astype(int) % 8
    member = np.eye(80)[cell.ravel()]
    mean = power.reshape(len(grey), -1) @ member / np.maximum(member.sum(axis=0), 1)
    return np.log(mean[:, member.sum(axis=0) > 0] + 1e-3)


def convolved(inputs: np.ndarray, filters: np.ndarray, bias: np.ndarray, *, triangle: bool) -> np.ndarray:
    """Rectified responses of `filters` averaged over a 2 x 2 grid; `inputs` `[n, channels, 64, 64]`."""
    found = []
    kernel, shift = torch.from_numpy(filters), torch.from_numpy(bias)
    for start in range(0, len(inputs), 200):
        response = torch.nn.functional.conv2d(
            torch.from_numpy(inputs[start : start + 200]), kernel, shift, stride=2
        )
        if triangle:  # above the mean response of all filters (Coates et al., 2011)
            response = response - response.mean(dim=1, keepdim=True)
        found.append(torch.nn.functional.adaptive_avg_pool2d(response.relu(), 2).flatten(1).numpy())
    return np.concatenate(found)


def patch_filters(grey: np.ndarray, train: np.ndarray, centres: int) -> np.ndarray:
    """Centres of 6 x 6 patches of training images, cleaned by whitening; `[centres, 36]`."""
    from sklearn.cluster import MiniBatchKMeans

    rng = stream(SEED, f"patches/{centres}")
    rows = rng.choice(np.flatnonzero(train), 20_000)
    corners = rng.integers(0, 58, (20_000, 2))
    patches = np.stack(
        [grey[r, i : i + 6, j : j + 6].ravel() for r, (i, j) in zip(rows, corners, strict=True)]
    )
    patches = (patches - patches.mean(axis=1, keepdims=True)) / (patches.std(axis=1, keepdims=True) + 0.05)
    values, vectors = np.linalg.eigh(np.cov(patches.T))
    whiten = (vectors / np.sqrt(values + 0.1)) @ vectors.T
    model = MiniBatchKMeans(centres, n_init=1, random_state=0, batch_size=2_000).fit(patches @ whiten)
    filters = model.cluster_centers_ @ whiten
    return (filters - filters.mean(axis=1, keepdims=True)).astype(np.float32)


def features(pixels: np.ndarray, train: np.ndarray) -> dict[str, np.ndarray]:
    """Every variant of every kind for all images.

    Args:
        pixels: `[n, 64, 64, 3]` uint8 of all four domains.
        train: `[n]` bool, rows that may be learned from (PCA and patches use them, without labels).

    Returns:
        Name of the variant -> `[n, d]` float32.
    """
    from sklearn.decomposition import PCA

    rgb = pixels.astype(np.float32) / 255
    grey = rgb @ GREY_WEIGHTS
    flat = {f"grey{side}": pooled(grey, side) for side in (8, 16, 32)}
    flat |= {f"rgb{side}": pooled(rgb, side) for side in (8, 16)}
    small = pooled(rgb, 32).reshape(len(rgb), -1)
    reduced = (
        PCA(100, svd_solver="randomized", random_state=0, whiten=True).fit(small[train]).transform(small)
    )
    flat |= {"pca40": reduced[:, :40], "pca100": reduced}
    flat |= {f"hog{cell}": oriented_gradients(grey, cell) for cell in (8, 16)}
    magnitude, _ = gradients(grey)
    flat |= {f"edges{side}": pooled(magnitude, side) for side in (8, 16)}
    levels = (pixels // 32).astype(np.int64)
    flat["colour-histogram"] = np.concatenate([histograms(levels[..., c], 8, 1) for c in range(3)], axis=1)
    joint = (pixels // 64).astype(np.int64) @ np.array([16, 4, 1])
    flat["colour-joint"] = histograms(joint, 64, 1)
    means = pooled(rgb, 4)
    spread = np.sqrt(np.maximum(pooled(rgb**2, 4) - means**2, 0))
    flat["colour-grid"] = np.concatenate([means, spread], axis=-1)
    codes = binary_patterns(grey)
    flat |= {"lbp-global": histograms(codes, 256, 1), "lbp-grid": histograms(turns(codes), 10, 4)}
    flat |= {"spectrum-square": spectrum(grey, polar=False), "spectrum-polar": spectrum(grey, polar=True)}
    channels = np.ascontiguousarray(rgb.transpose(0, 3, 1, 2)) - 0.5
    for size in (5, 9):
        rng = stream(SEED, f"random-conv/{size}")
        filters = rng.normal(0, 1 / np.sqrt(3 * size**2), (64, 3, size, size)).astype(np.float32)
        bias = rng.normal(0, 0.1, 64).astype(np.float32)
        flat[f"random-conv{size}"] = convolved(channels, filters, bias, triangle=False)
    for centres in (64, 128):
        filters = patch_filters(grey, train, centres).reshape(centres, 1, 6, 6)
        flat[f"patches{centres}"] = convolved(
            grey[:, None], filters, np.zeros(centres, np.float32), triangle=True
        )
    found = {name: np.asarray(each, np.float32).reshape(len(rgb), -1) for name, each in flat.items()}
    for name, parts in COMBINED.items():
        found[name] = np.concatenate([found[part] for part in parts], axis=1)
    return found
