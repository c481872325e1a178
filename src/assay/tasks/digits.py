"""The `colour-digits` data set: handwritten digits in two colours, where the colour is the misleading cue.

The digits are those that scikit-learn ships (8 x 8 pixels), enlarged, turned and moved a little, and painted
on black. The class of an image is `low` (0 to 4) or `high` (5 to 9); its colour matches its label with a
chosen probability, the `agreement`, which makes the domain: 0.9 to train on, 0.5 and 0.1 to test what was
learned. Every image has counterparts in which one of the two cues, or both, show the other class and
nothing else is changed, so that the circuit that reads the digit and the one that reads the colour can be
distinguished.

Everything about an image comes from the stream `colour-digits/SPLIT/ID` of the seed, so an image depends on
nothing but its number.
"""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64, UInt8
from PIL import Image

from assay.core.errors import InputError, check_name
from assay.core.random import stream
from assay.tasks.image_transform import EvalTransform
from assay.tasks.images import ImageTask


DIGIT_CLASSES = ("low", "high")
DIGIT_COLOURS = ("orange", "blue")  # the colour of a class stands at its number
DIGIT_SWAPS = ("digit", "colour", "both")
COLOUR_DIGITS = "colour-digits"

SIDE = 28
N_TEST = 500  # of the 1,797 handwritten digits; the others are for training
_PAINT = np.array([(255, 150, 20), (60, 160, 255)], dtype=np.float64)  # a pair for colour-blind readers too
_MARGIN = 2  # empty pixels round the 8 x 8, so that interpolation ends in black


def draw_digits(
    n: int,
    *,
    agreement: float = 0.9,
    seed: int = 0,
    split: str = "train",
    swap: str | None = None,
    label_noise: float = 0.0,
    size: int = SIDE,
    start: int = 0,
) -> ImageTask:
    """Coloured digits of one domain, or their counterparts; image number i shows a digit of class i modulo 2.

    Args:
        n: Number of images, 1 or more; a longer draw begins with the shorter one.
        agreement: Probability that the colour is the one of the label, 0 .. 1. The same image number with a
            higher agreement shows the same digit.
        seed: Root seed of all random draws.
        split: `train` or `test`: of which handwritten digits. They share none.
        swap: None for the images themselves. `digit`: the same colour on a digit of the other class;
            `colour`: the same digit in the other colour; `both`: a digit of the other class in the other
            colour. Place, size, turn and brightness stay. These are counterparts, to be ablated with.
        label_noise: Probability that the label is the other class than the digit's, 0 .. 1; the colour
            follows the label, so with noise it can be the better cue.
        size: Height and width in pixels, 14 or more.
        start: Number of the first image: disjoint ranges give disjoint draws.

    Returns:
        `n` images with labels, ids `start` to `start + n - 1`, and the fields `digit` (0 .. 9), `colour`
        (`orange` means `low`, `blue` means `high`), `agrees` (whether colour and label do) and `source`
        (row of `sklearn.datasets.load_digits`). The domain is `agreement-0.9` or alike. Of counterparts the
        label is that of the digit shown, noise as in the image.

    Raises:
        UnknownNameError: If there is no such split or swap.
        InputError: If a share is outside 0 .. 1, or `n`, `size` or `start` is too small.

    References:
        Arjovsky et al. (2019), arXiv:1907.02893 (coloured MNIST: two classes, label noise, colour).
        Alpaydin and Kaynak (1998), UCI Optical Recognition of Handwritten Digits, as in scikit-learn.

    Example:
        >>> images = draw_digits(4, agreement=1.0)
        >>> images.pixels.shape, images.fields["colour"]
        ((4, 28, 28, 3), ['orange', 'blue', 'orange', 'blue'])
        >>> draw_digits(4, agreement=1.0, swap="colour").fields["colour"]
        ['blue', 'orange', 'blue', 'orange']
    """
    check_name("split of coloured digits", split, ("train", "test"))
    if swap is not None:
        check_name("swap of coloured digits", swap, DIGIT_SWAPS)
    if not (0 <= agreement <= 1 and 0 <= label_noise <= 1):
        raise InputError(f"agreement is {agreement}, label_noise {label_noise}; expected probabilities")
    if n < 1 or size < 14 or start < 0:
        raise InputError(f"n={n}, size={size}, start={start}; give at least 1 image of 14 pixels, from 0")
    ids = range(start, start + n)
    # The version is raised when the same arguments draw other images than before.
    about = {"generator": COLOUR_DIGITS, "generator_version": 1}
    how: dict[str, Any] = {"agreement": float(agreement), "label_noise": float(label_noise), "split": split}
    how |= {"swap": swap, "seed": seed, "size": size}
    drawn = [_draw(number, **how) for number in ids]
    images, labels, digits, colours, sources = zip(*drawn, strict=True)
    return ImageTask(
        pixels=np.stack(images),
        labels=torch.tensor(labels),
        ids=torch.tensor(ids),
        domain=f"agreement-{agreement:g}",
        fields={
            "digit": list(digits),
            "colour": [DIGIT_COLOURS[colour] for colour in colours],
            "agrees": [colour == label for colour, label in zip(colours, labels, strict=True)],
            "source": list(sources),
        },
        classes=DIGIT_CLASSES,
        name=COLOUR_DIGITS,
        config=about | how | {"start": start, "n": n},
    )


def digits_task(
    model: Any,
    n: int = 200,
    *,
    swap: str = "both",
    answer: str = "label",
    agreement: float = 0.9,
    seed: int = 0,
    start: int = 0,
) -> ImageTask:
    """Coloured digits with counterparts, as an image classifier of two classes reads them.

    They are of the split `test`. The other class is the foil; objective and ablation are `logit_diff` and
    `resample` unless told otherwise.

    Args:
        model: A loaded image classifier of two classes; its stored transform is applied.
        n: Number of images.
        swap: What the counterparts change: `digit`, `colour` or `both`; see `draw_digits`.
        answer: What counts as right: `label`, the class of the digit, or `colour`, the class that the colour
            stands for. With `swap="colour"` the latter asks what carries the colour.
        agreement: Probability that the colour is the one of the label. 0.5 makes the two cues independent.
        seed: Root seed of all random draws.
        start: Number of the first image.

    Raises:
        UnknownNameError: If there is no such swap, split or answer.
        InputError: If the model reads prompts or has other classes, or as for `draw_digits`.

    Example:
        >>> task = digits_task(load_model("colour-digits"), 6, swap="colour", answer="colour")
        >>> task.clean.shape, task.objective, task.ablation
        (torch.Size([6, 3, 28, 28]), 'logit_diff', 'resample')
    """
    check_name("answer of coloured digits", answer, ("label", "colour"))
    if model.vision is None or model.n_classes != len(DIGIT_CLASSES):
        raise InputError(f"{model.id} is not a classifier of the 2 classes; use load_model('colour-digits')")
    how = {"agreement": agreement, "seed": seed, "split": "test", "size": model.image_size[0], "start": start}
    images, others = (draw_digits(n, swap=each, **how) for each in (None, swap))
    task = images.with_transform(EvalTransform.for_model(model))
    colours = torch.tensor([DIGIT_COLOURS.index(colour) for colour in images.fields["colour"]])
    right = colours if answer == "colour" else task.answers[:, 0]
    shown = {"counterparts": {**others.config, "domain": others.domain}, "answer": answer}
    return replace(
        task,
        corrupted=replace(others, transform=task.transform).clean,
        labels=right,
        foils=1 - right[:, None],
        objective="logit_diff",
        ablation="resample",
        config={**task.config, **shown},
    )


# ------------------------------------------------------------------------------------------------- images


def _draw(
    number: int, *, agreement: float, label_noise: float, seed: int, split: str, swap: str | None, size: int
) -> tuple[UInt8[np.ndarray, "h w 3"], int, int, int, int]:
    """Image `number`; its label, digit and colour, and the row of the handwritten digit.

    Each fact is always the same draw of its stream, so counterparts share the rest.
    """
    rng = stream(seed, f"{COLOUR_DIGITS}/{split}/{number}")
    shown = number % 2
    sources = []
    for kind in (shown, 1 - shown):
        rows = _rows(split)[5 * kind + int(rng.integers(5))]
        sources.append(int(rows[int(rng.random() * len(rows))]))
    noisy, agrees = rng.random() < label_noise, rng.random() < agreement
    side, turn = rng.uniform(0.75, 0.95), rng.uniform(-0.2, 0.2)
    left, top = rng.uniform(-0.07, 0.07, 2)
    brightness = rng.uniform(0.7, 1.0)
    label = shown ^ int(noisy)
    colour = (label if agrees else 1 - label) ^ int(swap in ("colour", "both"))
    other = int(swap in ("digit", "both"))
    source, label = sources[other], label ^ other

    ink = np.pad(_handwritten()[0][source], _MARGIN)
    # Pillow wants, for every pixel of the result, where to read in the original.
    step = 8 / (side * size)
    cos, sin = step * np.cos(turn), step * np.sin(turn)
    x, y = size * (0.5 + left), size * (0.5 + top)
    middle = 4 + _MARGIN
    back = (cos, sin, middle - cos * x - sin * y, -sin, cos, middle + sin * x - cos * y)
    painted = Image.fromarray(ink).transform(
        (size, size), Image.Transform.AFFINE, back, Image.Resampling.BICUBIC
    )
    shade = np.clip(np.asarray(painted, dtype=np.float64) / 16, 0, 1)[..., None]
    pixels = np.rint(shade * brightness * _PAINT[colour]).astype(np.uint8)
    return pixels, label, int(_handwritten()[1][source]), colour, source


@functools.cache
def _handwritten() -> tuple[Float32[np.ndarray, "1797 8 8"], Int64[np.ndarray, " 1797"]]:
    """Ink, 0 .. 16, and values of the digits that scikit-learn ships."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images.astype(np.float32), digits.target.astype(np.int64)


@functools.cache
def _rows(split: str) -> tuple[Int64[np.ndarray, " _"], ...]:
    """Rows of each digit in a split. Always the same: a trained model must not meet its digits in a test."""
    values = _handwritten()[1]
    order = stream(0, f"{COLOUR_DIGITS}/split").permutation(len(values))
    rows = np.sort(order[:N_TEST] if split == "test" else order[N_TEST:])
    return tuple(rows[values[rows] == digit] for digit in range(10))
