"""Worst cases of image classifiers: pairs of images, donors, single images."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from single_runs import half_of, literal

from assay.analyses.worst_case import WorstCase, worst_case
from assay.analyses.worst_case.page import worst_case_page
from assay.analyses.worst_case.sampling import pictures_of
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.models import Model, load_model
from assay.page.html import render_pages
from assay.tasks import ImageTask
from assay.tasks.digits import digits_task, draw_digits


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("colour-digits")


@pytest.fixture(scope="module")
def digits(model: Model) -> ImageTask:
    return digits_task(model, 12)


@pytest.fixture(scope="module")
def circuit(model: Model) -> Circuit:
    return half_of(model)


def test_own_pairs_are_runs_of_the_circuit(model: Model, digits: ImageTask, circuit: Circuit) -> None:
    found = worst_case(circuit, model, digits)
    assert (found.protocol, found.divergence.shape) == ("file", (12,))
    assert found.divergence == pytest.approx(
        literal(model, digits, circuit, ablation="resample"), rel=1e-4, abs=1e-7
    )
    nothing = literal(model, digits, Circuit.empty(model.graph), ablation="resample")
    assert found.empty == pytest.approx(nothing, rel=1e-4)
    assert worst_case(Circuit.full(model.graph), model, digits).divergence.max() < 1e-6


def test_donors_are_other_images_and_need_no_counterparts(
    model: Model, digits: ImageTask, circuit: Circuit
) -> None:
    bare = ImageTask(images=digits.clean, labels=digits.labels)
    found = worst_case(circuit, model, bare, ablation="resample-donor")
    assert (found.protocol, found.divergence.shape) == ("all", (12, 12))
    assert np.diag(found.divergence).max() < 1e-6  # an image is no donor that changes itself
    donor = bare.with_donors(torch.tensor([(i + 1) % 12 for i in range(12)]))
    by_hand = literal(model, donor, circuit, ablation="resample")
    assert found.divergence[np.arange(12), (np.arange(12) + 1) % 12] == pytest.approx(
        by_hand, rel=1e-4, abs=1e-6
    )
    with pytest.raises(InputError, match="have no counterparts.*use ablation 'resample-donor'"):
        worst_case(circuit, model, bare)


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean-positional"])
def test_single_images_where_no_second_one_is_read(
    ablation: str, model: Model, digits: ImageTask, circuit: Circuit
) -> None:
    found = worst_case(circuit, model, digits, ablation=ablation)
    assert (found.protocol, found.divergence.shape) == ("inputs", (12,))
    assert found.divergence == pytest.approx(
        literal(model, digits, circuit, ablation=ablation), rel=1e-4, abs=1e-7
    )
    assert found.to_dict()["worst_corrupted"] == []


def test_certificates_or_the_reason_why_none_holds(model: Model, circuit: Circuit) -> None:
    digits = digits_task(model, 70)
    cases: tuple[tuple[dict[str, Any], int | str], ...] = (
        ({}, "not declared independent"),
        ({"independent": True}, 70),
        ({"protocol": "all", "independent": True}, 35),
        ({"protocol": "iid", "n_clean": 5, "independent": True}, "drawn more than once"),
        ({"ablation": "zero"}, "with independent=True"),
        ({"ablation": "zero", "independent": True}, 70),
        ({"ablation": "mean", "independent": True}, "measured on the inputs that were run"),
        ({"ablation": "resample-donor"}, "not declared independent"),
    )
    for options, expected in cases:
        found = worst_case(circuit, model, digits, **options)
        if isinstance(expected, int):
            assert found.certificate(0.95).n == expected
            continue
        with pytest.raises(InputError, match=expected):
            found.certificate(0.95)
        assert "Nothing: " in render_pages([worst_case_page(found.to_dict())])


def test_a_saved_result_keeps_its_images(
    model: Model, digits: ImageTask, circuit: Circuit, tmp_path: Path
) -> None:
    found = worst_case(circuit, model, digits)
    path = found.save(tmp_path / "w.safetensors")
    loaded = WorstCase.load(path, model=model, circuit=circuit)
    assert loaded.worst(2) == found.worst(2)
    assert loaded.pictures == WorstCase.load(path).pictures == found.pictures


def test_a_page_shows_the_images_and_speaks_of_images(
    model: Model, digits: ImageTask, circuit: Circuit
) -> None:
    document = worst_case(circuit, model, digits, ablation="resample-donor").to_dict()
    worst = document["worst"][0]
    assert worst["clean"]["text"].startswith("image ")
    assert {token["token"] for token in worst["top"]["model"]} == {"low", "high"}
    page = worst_case_page(document)
    html = render_pages([page])
    assert "prompt" not in f"{page.verdict} {page.remark} {page.caveats} {page.lede}"
    assert html.count('<img src="data:image/png;base64,') >= 2 * len(document["worst"])
    assert "values from the other image" in page.lede
    address = {side: dict.fromkeys(each, "http://x/y.png") for side, each in document["pictures"].items()}
    with pytest.raises(InputError, match="documents hold images as data:image/png"):
        worst_case_page(document | {"pictures": address})


def test_pictures_are_the_pixels_before_normalisation(model: Model, digits: ImageTask) -> None:
    (shown,) = pictures_of(digits.clean, [3], digits.config)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(shown.partition(",")[2]))))
    assert (pixels == draw_digits(12, split="test").pixels[3]).all()
    (stretched,) = pictures_of(torch.tensor([[[[-1.0, 3.0]]] * 3]).reshape(1, 3, 1, 2), [0], {})
    black_white = np.asarray(Image.open(io.BytesIO(base64.b64decode(stretched.partition(",")[2]))))
    assert black_white[0].tolist() == [[0, 0, 0], [255, 255, 255]]
