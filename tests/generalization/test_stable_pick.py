"""A pick that takes as many images as it needs, on small untrained classifiers and drawn images."""

import json
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_vits import untrained_vit

import assay
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.pick_page import verdict
from assay.analyses.generalization.ranking import rank_models
from assay.analyses.generalization.stable_pick import StablePick, pick_until_stable
from assay.core.errors import InputError
from assay.core.random import stream
from assay.report import save_report
from assay.tasks import ImageSet, draw_shapes


FEW = InspectionSettings(draws=60, steps=2)
MODELS = {f"m{seed}": assay.load_model(untrained_vit(seed)) for seed in range(3)}
for model in MODELS.values():
    model.preprocessing = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
IMAGES = draw_shapes("sketch", 48, size=32)


def picked(**more: object) -> StablePick:
    return pick_until_stable(MODELS, IMAGES, settings=FEW, first=12, **more)


@pytest.fixture(scope="module")
def pick() -> StablePick:
    return picked()


def rows(images: ImageSet, order: np.ndarray) -> ImageSet:
    return images.subset(order.tolist())


def test_every_look_is_the_ranking_of_the_first_images(pick: StablePick) -> None:
    order = stream(0, "rank/order").permutation(48)
    assert [look.n for look in pick.looks] == [12, 24, 48][: len(pick.looks)]
    for look in pick.looks:
        models = {name: MODELS[name] for name in look.models}
        whole = rank_models(models, rows(IMAGES, order[: look.n]), metrics=["ddb-output"], settings=FEW)
        expected = dict(zip(whole.names, whole.column("ddb-output").values, strict=True))
        assert {name: row["value"] for name, row in look.models.items()} == pytest.approx(expected)


def test_it_tells_what_it_took_and_who_is_left(pick: StablePick) -> None:
    assert pick.pick in pick.remaining
    out = [name for look in pick.looks for name in look.dropped]
    assert sorted([*out, *pick.remaining]) == ["m0", "m1", "m2"]
    assert pick.decided == (len(pick.remaining) == 1)
    assert pick.passes == sum(look.n * len(look.models) * (1 + 2 + 2) for look in pick.looks)
    assert set(pick.to_frame()["n"]) == {look.n for look in pick.looks}


def test_it_is_undecided_where_the_images_are_used_up() -> None:
    short = picked(error=1e-9)
    assert (short.stopped, short.n) == ("images", 48)
    assert "Undecided after 48 of 48 images (all were used)" in verdict(short.to_dict())


def test_the_document_is_json_and_its_page_has_a_picture(pick: StablePick, tmp_path: Path) -> None:
    document = pick.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    text = save_report(tmp_path / "pick.html", document).read_text()
    assert text.count('role="img"') == 1
    assert all(name in text for name in MODELS)


def test_passes_on_the_own_domain_count(tmp_path: Path) -> None:
    own = draw_shapes("flat", 10, size=32, start=500)
    asked = {"metric": "atc", "id_data": own, "error": 1e-9}
    first = 3 * (12 + 10)  # a forward pass over each image of both domains
    again = [look.passes for look in picked(**asked).looks]
    assert again == [first, 3 * (24 + 10), 3 * (48 + 10)]
    kept = picked(**asked, cache=tmp_path)
    assert [look.passes for look in kept.looks] == [first, 3 * 24, 3 * 48]


CHANGED: dict[str, Any] = {
    "models": {name: MODELS[name] for name in ("m0", "m1")},
    "target": IMAGES.subset(range(1, 48)),
    "metric": "average-confidence",
    "id_data": draw_shapes("flat", 11, size=32, start=500),
    "labels": False,
    "ratio": 0.5,
    "include_input": True,
    "sets": "reference",
    "error": 0.04,
    "first": 24,
}
SETTINGS: dict[str, Any] = {
    "objective": "js",
    "ablation": "mean",
    "steps": 1,
    "quadrature": "left",
    "sharpness_batch": 8,
    "draws": 50,
    "seed": 1,
}
ALIKE = {"cache", "progress", "batch_size", "missing"}  # which change no number


def changes() -> list[tuple[str, dict[str, Any]]]:
    """Every argument of a pick, and every setting, with another value than that of `identity`."""
    arguments = [name for name in signature(pick_until_stable).parameters if name not in {*ALIKE, "settings"}]
    settings = [each.name for each in fields(InspectionSettings) if each.name not in ALIKE]
    one = [(name, {name: CHANGED[name]}) for name in arguments]
    return one + [(name, {"settings": replace(FEW, **{name: SETTINGS[name]})}) for name in settings]


def identity(**more: Any) -> str:
    usual: dict[str, Any] = {
        "models": MODELS,
        "target": IMAGES,
        "metric": "doc",
        "id_data": draw_shapes("flat", 10, size=32, start=500),
        "settings": FEW,
        "first": 48,
    }
    asked = usual | more
    return pick_until_stable(asked.pop("models"), asked.pop("target"), **asked).id


@pytest.fixture(scope="module")
def usual() -> str:
    return identity()


@pytest.mark.parametrize(("name", "change"), changes())
def test_whatever_can_change_a_number_changes_the_id(usual: str, name: str, change: dict[str, Any]) -> None:
    assert identity(**change) != usual, name


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("atc", "needs labelled images of the models' own domain"),
        ("energy", "does not say which models are better"),
        ("agreement-line", "all models at once"),
        ("id-accuracy", "does not read the target"),
    ],
)
def test_metrics_that_cannot_pick_are_refused(metric: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        picked(metric=metric)
