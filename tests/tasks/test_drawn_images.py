"""Drawn images: shapes true to their geometry; digits with two cues that can be swapped apart."""

from typing import Any

import numpy as np
import pytest
import torch

from assay import load_model
from assay.core.errors import InputError, UnknownNameError
from assay.tasks import (
    DIGIT_CLASSES,
    SHAPE_CLASSES,
    SHAPE_DOMAINS,
    EvalTransform,
    ImageTask,
    digits_source,
    digits_task,
    draw_digits,
    draw_shapes,
    load_images,
)
from assay.tasks.digits import _PAINT, DIGIT_COLOURS, DIGIT_SWAPS


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("colour-digits")


@pytest.mark.parametrize("domain", SHAPE_DOMAINS)
def test_a_shape_depends_on_its_number_alone_and_shows_its_class(domain: str) -> None:
    whole = draw_shapes(domain, 12, seed=2)
    later = draw_shapes(domain, 3, seed=2, start=6)
    np.testing.assert_array_equal(later.pixels, whole.pixels[6:9])
    assert later.ids.tolist() == [6, 7, 8]
    assert (draw_shapes(domain, 12, seed=3).pixels != whole.pixels).any((1, 2, 3)).all()
    assert (whole.classes, np.bincount(whole.labels).tolist()) == (SHAPE_CLASSES, [2] * 6)
    assert whole.pixels.std((1, 2)).max(1).min() > 10


def colours_of(images: ImageTask) -> np.ndarray:
    """The class of each colour, after the pixels were seen to be of that paint."""
    seen = images.pixels.reshape(images.n, -1, 3).astype(float).sum(1)
    paint = _PAINT / np.linalg.norm(_PAINT, axis=1, keepdims=True)
    hues = np.argmax(seen @ paint.T, axis=1)
    np.testing.assert_array_equal(hues, [DIGIT_COLOURS.index(colour) for colour in images.fields["colour"]])
    return hues


def test_fields_of_digits_say_what_the_pixels_show_as_often_as_asked() -> None:
    images = draw_digits(600, agreement=0.1, size=14)
    digits, labels = np.array(images.fields["digit"]), images.labels.numpy()
    assert labels.tolist() == (digits >= 5).astype(int).tolist() == [0, 1] * 300
    assert sorted(set(digits.tolist())) == list(range(10))
    np.testing.assert_array_equal(images.fields["agrees"], colours_of(images) == labels)
    assert abs(float(np.mean(images.fields["agrees"])) - 0.1) <= 4 * np.sqrt(0.09 / 600)
    assert (images.domain, images.classes) == ("agreement-0.1", DIGIT_CLASSES)
    noisy = draw_digits(600, agreement=1.0, label_noise=0.25, size=14)
    wrong = noisy.labels.numpy() != (np.array(noisy.fields["digit"]) >= 5)
    assert abs(wrong.mean() - 0.25) < 0.07
    np.testing.assert_array_equal(colours_of(noisy), noisy.labels.numpy())
    train, test = (
        {row for seed in (0, 1) for row in draw_digits(400, seed=seed, split=split, size=14).fields["source"]}
        for split in ("train", "test")
    )
    assert not train & test  # the splits share no handwriting, whatever the seed


@pytest.mark.parametrize("swap", DIGIT_SWAPS)
def test_a_swap_changes_its_cue_and_nothing_else(model: Any, swap: str) -> None:
    how = {"agreement": 0.6, "seed": 3, "split": "test"}
    images, others = (draw_digits(60, swap=each, **how) for each in (None, swap))
    new_digit, new_colour = swap in ("digit", "both"), swap in ("colour", "both")
    assert ((images.labels != others.labels) == new_digit).all()
    assert ((colours_of(images) != colours_of(others)) == new_colour).all()
    assert (images.fields["source"] == others.fields["source"]) == (not new_digit)
    np.testing.assert_array_equal(draw_digits(4, swap=swap, start=5, **how).pixels, others.pixels[5:9])
    # A task pairs every image with its counterpart.
    task = digits_task(model, 12, swap=swap, agreement=0.6, seed=3, start=5)
    transform = EvalTransform.for_model(model)
    for tensor, drawn in ((task.clean, images), (task.corrupted, others)):
        assert torch.equal(tensor, transform.normalised(drawn.pixels[5:17]))
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


def test_what_cannot_be_drawn_is_refused(model: Any) -> None:
    for call, arguments, message in (
        (draw_shapes, {"domain": "sketches", "n": 1}, "did you mean 'sketch'"),
        (draw_shapes, {"domain": "flat", "n": 1, "size": 15}, "at least 1 image of 16 pixels"),
        (draw_digits, {"n": 0}, "n=0, size=28, start=0; give at least 1 image"),
        (draw_digits, {"n": 2, "agreement": 1.5}, "agreement is 1.5.* expected probabilities"),
        (draw_digits, {"n": 2, "split": "validation"}, "known: test, train"),
        (digits_source, {"source": "colour-digits:much"}, "a probability"),
        (digits_task, {"model": model, "answer": "shape"}, "answer"),
        (digits_task, {"model": load_model("mini")}, "mini is not a classifier of the 2 classes"),
    ):
        with pytest.raises((InputError, UnknownNameError), match=message):
            call(**arguments)
