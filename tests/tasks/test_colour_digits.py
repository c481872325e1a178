"""Coloured digits: seeded, two cues that can be swapped apart, splits that share no handwriting."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


def labels_of(images: ImageTask) -> np.ndarray:
    assert images.labels is not None
    return images.labels.numpy()


def colours_of(images: ImageTask) -> np.ndarray:
    """The class that each colour stands for."""
    return np.array([DIGIT_COLOURS.index(colour) for colour in images.fields["colour"]])


def hues(images: ImageTask) -> np.ndarray:
    """Which paint the pixels of each image are, whatever the field says."""
    seen = images.pixels.reshape(images.n, -1, 3).astype(float).sum(1)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    paint = _PAINT / np.linalg.norm(_PAINT, axis=1, keepdims=True)
    return np.argmax(seen @ paint.T, axis=1)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 50),
    start=st.integers(0, 30),
    n=st.integers(1, 6),
    agreement=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    swap=st.sampled_from([None, *DIGIT_SWAPS]),
    split=st.sampled_from(["train", "test"]),
)
def test_an_image_depends_on_its_number_alone(
    seed: int, start: int, n: int, agreement: float, swap: str | None, split: str
) -> None:
    def drawn(n: int, start: int) -> ImageTask:
        return draw_digits(n, agreement=agreement, seed=seed, split=split, swap=swap, start=start)

    whole, part = drawn(start + n, 0), drawn(n, start)
    np.testing.assert_array_equal(part.pixels, whole.pixels[start:])
    assert part.ids.tolist() == list(range(start, start + n))
    assert part.fields["digit"] == whole.fields["digit"][start:]


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_are_digits_and_pixels_are_painted_as_the_fields_say(split: str) -> None:
    images = draw_digits(200, agreement=0.5, split=split)
    digits = np.array(images.fields["digit"])
    assert labels_of(images).tolist() == (digits >= 5).astype(int).tolist()
    assert labels_of(images).tolist() == [0, 1] * 100
    assert sorted(set(digits.tolist())) == list(range(10))
    np.testing.assert_array_equal(hues(images), colours_of(images))
    np.testing.assert_array_equal(images.fields["agrees"], colours_of(images) == labels_of(images))
    assert images.pixels.max((1, 2, 3)).min() > 100
    assert images.classes == DIGIT_CLASSES


@pytest.mark.parametrize("agreement", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_colour_agrees_with_the_label_as_often_as_asked(agreement: float) -> None:
    images = draw_digits(600, agreement=agreement, size=14)
    share = float(np.mean(images.fields["agrees"]))
    assert abs(share - agreement) <= 4 * np.sqrt(agreement * (1 - agreement) / 600)
    assert images.domain == f"agreement-{agreement:g}"


def test_label_noise_flips_labels_and_the_colour_follows_the_label() -> None:
    images = draw_digits(600, agreement=1.0, label_noise=0.25, size=14)
    wrong = labels_of(images) != (np.array(images.fields["digit"]) >= 5)
    assert abs(wrong.mean() - 0.25) < 0.07
    np.testing.assert_array_equal(colours_of(images), labels_of(images))


@pytest.mark.parametrize("swap", DIGIT_SWAPS)
def test_a_swap_changes_its_cue_and_nothing_else(swap: str) -> None:
    images, others = (draw_digits(60, agreement=0.6, split="test", swap=each) for each in (None, swap))
    new_digit, new_colour = swap in ("digit", "both"), swap in ("colour", "both")
    assert ((labels_of(images) != labels_of(others)) == new_digit).all()
    assert ((colours_of(images) != colours_of(others)) == new_colour).all()
    assert (images.fields["source"] == others.fields["source"]) == (not new_digit)
    np.testing.assert_array_equal(others.ids, images.ids)
    np.testing.assert_array_equal(hues(others), colours_of(others))


def test_splits_share_no_handwriting_whatever_the_seed() -> None:
    sources = [
        {row for seed in (0, 1) for row in draw_digits(400, seed=seed, split=split, size=14).fields["source"]}
        for split in ("train", "test")
    ]
    assert not sources[0] & sources[1]
    assert max(sources[0] | sources[1]) < 1797


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0, size=28, start=0; expected at least 1 image"),
        ({"size": 13}, "size=13"),
        ({"start": -1}, "start=-1"),
        ({"agreement": 1.5}, "agreement is 1.5.* expected probabilities"),
        ({"agreement": float("nan")}, "agreement is nan"),
        ({"label_noise": -0.1}, "label_noise -0.1"),
        ({"split": "validation"}, "known: test, train"),
        ({"swap": "color"}, "unknown swap of coloured digits 'color'; did you mean 'colour'"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        draw_digits(**{"n": 2, **arguments})


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
    assert task.labels is not None
    assert task.foils is not None
    assert (task.foils[:, 0] == 1 - task.labels).all()
    assert task.labels.tolist() == [1, 0] * 6
    assert (task.objective, task.ablation) == ("logit_diff", "resample")
    assert task.config["counterparts"]["swap"] == swap


def test_the_answer_can_be_the_colour(model: Any) -> None:
    task = digits_task(model, 40, agreement=0.5, answer="colour")
    assert task.labels is not None
    assert [DIGIT_COLOURS[label] for label in task.labels.tolist()] == list(task.fields["colour"])
    assert digits_task(model, 40, agreement=0.5).data_hash != task.data_hash


def test_tasks_that_no_model_can_be_given_are_refused(model: Any) -> None:
    with pytest.raises(UnknownNameError, match="answer"):
        digits_task(model, 4, answer="shape")
    with pytest.raises(UnknownNameError, match="swap"):
        digits_task(model, 4, swap="none")
    with pytest.raises(InputError, match="mini is not a classifier of the 2 classes"):
        digits_task(load_model("mini"), 4)
    wide = SimpleNamespace(id="wide", vision=True, n_classes=2, image_size=(28, 56))
    with pytest.raises(InputError, match="wide reads 28 x 56"):
        digits_task(wide, 4)


# ------------------------------------------------------------------------------------------------- sources


def test_a_source_names_agreement_and_swap(model: Any) -> None:
    assert digits_source("shapes:flat") is None
    assert digits_source("colour-digits.npz") is None
    found = digits_source("colour-digits:0.5/colour")
    assert found is not None
    assert (found.agreement, found.swap, found.domains) == (0.5, "colour", (0.5,))
    given, drawn = (
        load_images("colour-digits:0.5/colour", model, n=6),
        digits_task(model, 6, agreement=0.5, swap="colour"),
    )
    assert given.data_hash == drawn.data_hash
    assert load_images("colour-digits", model, n=6).data_hash == digits_task(model, 6).data_hash


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("colour-digits:much", "'much'; expected a probability"),
        ("colour-digits:1.1", "'1.1'; expected a probability"),
        ("colour-digits:0.5/size", "swap of coloured digits"),
    ],
)
def test_a_bad_source_is_refused(source: str, message: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=message):
        digits_source(source)
