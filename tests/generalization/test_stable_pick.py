"""A pick that takes as many images as it needs, on small untrained classifiers and drawn images."""

import json
from pathlib import Path

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


def test_a_budget_stops_before_a_look_that_it_does_not_cover(tmp_path: Path) -> None:
    first = 12 * 3 * 5
    short = picked(budget=first + 1, error=1e-9)
    assert (short.stopped, short.n, short.passes) == ("budget", 12, first)
    assert "Undecided after 12 of 48 images (the budget is used up)" in verdict(short.to_dict())
    text = save_report(tmp_path / "pick.html", short).read_text()
    assert "Raise --budget to go on." in text
    with pytest.raises(InputError, match="the first look at 12 images takes 180"):
        picked(budget=first - 1)


def test_the_document_is_json_and_its_page_has_a_picture(pick: StablePick, tmp_path: Path) -> None:
    document = pick.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    text = save_report(tmp_path / "pick.html", document).read_text()
    assert text.count('role="img"') == 1
    assert all(name in text for name in MODELS)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("energy", "does not say which models are better"),
        ("agreement-line", "all models at once"),
        ("id-accuracy", "does not read the target"),
    ],
)
def test_metrics_that_cannot_pick_are_refused(metric: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        picked(metric=metric)
