"""Coloured digits: seeded, two cues that can be swapped apart, splits that share no handwriting."""

from typing import Any

import numpy as np
import pytest
import torch

from assay import load_model
from assay.core.errors import InputError, UnknownNameError
from assay.tasks import (
    DIGIT_CLASSES,
    EvalTransform,
    ImageTask,
    digits_source,
    digits_task,
    draw_digits,
    load_images,
)
from assay.tasks.digits import _PAINT, DIGIT_COLOURS, DIGIT_SWAPS


def colours_of(images: ImageTask) -> np.ndarray:
    """The class that each colour stands for."""
    return np.array([DIGIT_COLOURS.index(colour) for colour in images.fields["colour"]])


def hues(images: ImageTask) -> np.ndarray:
    """Which paint the pixels of each image are, whatever the field says."""
    seen = images.pixels.reshape(images.n, -1, 3).astype(float).sum(1)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    paint = _PAINT / np.linalg.norm(_PAINT, axis=1, keepdims=True)
    return np.argmax(seen @ paint.T, axis=1)


@pytest.mark.parametrize("swap", [None, *DIGIT_SWAPS])
def test_an_image_depends_on_its_number_alone(swap: str | None) -> None:
    how = {"agreement": 0.5, "seed": 3, "split": "train", "swap": swap}
    whole, part = draw_digits(9, **how), draw_digits(4, start=5, **how)
    np.testing.assert_array_equal(part.pixels, whole.pixels[5:])
    assert part.ids.tolist() == [5, 6, 7, 8]
    assert part.fields["digit"] == whole.fields["digit"][5:]


def test_fields_say_what_the_pixels_show_as_often_as_asked() -> None:
    images = draw_digits(600, agreement=0.1, size=14)
    digits, labels = np.array(images.fields["digit"]), images.labels.numpy()
    assert labels.tolist() == (digits >= 5).astype(int).tolist() == [0, 1] * 300
    assert sorted(set(digits.tolist())) == list(range(10))
    np.testing.assert_array_equal(hues(images), colours_of(images))
    np.testing.assert_array_equal(images.fields["agrees"], colours_of(images) == labels)
    assert abs(float(np.mean(images.fields["agrees"])) - 0.1) <= 4 * np.sqrt(0.09 / 600)
    assert (images.domain, images.classes) == ("agreement-0.1", DIGIT_CLASSES)
    noisy = draw_digits(600, agreement=1.0, label_noise=0.25, size=14)
    wrong = noisy.labels.numpy() != (np.array(noisy.fields["digit"]) >= 5)
    assert abs(wrong.mean() - 0.25) < 0.07
    np.testing.assert_array_equal(colours_of(noisy), noisy.labels.numpy())


@pytest.mark.parametrize("swap", DIGIT_SWAPS)
def test_a_swap_changes_its_cue_and_nothing_else(swap: str) -> None:
    images, others = (draw_digits(60, agreement=0.6, split="test", swap=each) for each in (None, swap))
    new_digit, new_colour = swap in ("digit", "both"), swap in ("colour", "both")
    assert ((images.labels != others.labels) == new_digit).all()
    assert ((colours_of(images) != colours_of(others)) == new_colour).all()
    assert (images.fields["source"] == others.fields["source"]) == (not new_digit)
    np.testing.assert_array_equal(hues(others), colours_of(others))


def test_splits_share_no_handwriting_whatever_the_seed() -> None:
    train, test = (
        {row for seed in (0, 1) for row in draw_digits(400, seed=seed, split=split, size=14).fields["source"]}
        for split in ("train", "test")
    )
    assert not train & test
    assert max(train | test) < 1797


# --------------------------------------------------------------------------------------------------- tasks


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("colour-digits")


@pytest.mark.parametrize("swap", DIGIT_SWAPS)
def test_a_task_pairs_every_image_with_its_counterpart(model: Any, swap: str) -> None:
    task = digits_task(model, 12, swap=swap, seed=3, start=5)
    transform = EvalTransform.for_model(model)
    for tensor, each in ((task.clean, None), (task.corrupted, swap)):
        pixels = draw_digits(12, seed=3, split="test", swap=each, start=5).pixels
        torch.testing.assert_close(tensor, transform.normalised(pixels), rtol=0, atol=0)
    assert (task.foils[:, 0] == 1 - task.labels).all()
    assert task.labels.tolist() == [1, 0] * 6
    assert (task.objective, task.ablation) == ("logit_diff", "resample")
    assert task.config["counterparts"]["swap"] == swap
    answered = digits_task(model, 40, agreement=0.5, swap=swap, answer="colour")
    assert [DIGIT_COLOURS[label] for label in answered.labels.tolist()] == list(answered.fields["colour"])


def test_a_source_names_agreement_and_swap(model: Any) -> None:
    assert [digits_source(name) for name in ("shapes:flat", "colour-digits.npz")] == [None, None]
    assert digits_source("colour-digits:0.5/colour") == {"agreement": 0.5, "swap": "colour"}
    drawn = digits_task(model, 6, agreement=0.5, swap="colour")
    assert load_images("colour-digits:0.5/colour", model, n=6).data_hash == drawn.data_hash
    assert load_images("colour-digits", model, n=6).data_hash == digits_task(model, 6).data_hash


def test_bad_arguments_are_refused(model: Any) -> None:
    for call, arguments, message in (
        (draw_digits, {"n": 0}, "n=0, size=28, start=0; give at least 1 image"),
        (draw_digits, {"n": 2, "agreement": 1.5}, "agreement is 1.5.* expected probabilities"),
        (draw_digits, {"n": 2, "split": "validation"}, "known: test, train"),
        (digits_source, {"source": "colour-digits:much"}, "a probability"),
        (digits_source, {"source": "colour-digits:0.5/size"}, "swap of coloured digits"),
        (digits_task, {"model": model, "answer": "shape"}, "answer"),
        (digits_task, {"model": load_model("mini")}, "mini is not a classifier of the 2 classes"),
    ):
        with pytest.raises((InputError, UnknownNameError), match=message):
            call(**arguments)
