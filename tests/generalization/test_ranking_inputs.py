"""What a ranking is given as images: a folder is listed once, decoded once per size."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_vits import untrained_vit

import assay
from assay.analyses.generalization import inspection
from assay.analyses.generalization.inspection import InspectionSettings
from assay.analyses.generalization.ranking import rank_models
from assay.core.errors import InputError
from assay.models import Model
from assay.tasks import draw_shapes, load_images
from assay.tasks.image_reading import Files


STORED = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
OTHER = {**STORED, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
FEW = InspectionSettings(draws=20, steps=2)
METRICS = ["ddb-output", "average-confidence", "rankme", "cot"]


def model(seed: int, preprocessing: dict[str, object]) -> Model:
    found = assay.load_model(untrained_vit(seed))
    return Model(found.module, found.family, name=f"vit-{seed}", preprocessing=preprocessing)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shapes = draw_shapes("sketch", 18, size=40, seed=3)
    for number, (pixels, label) in enumerate(zip(shapes.pixels, shapes.labels, strict=True)):
        place = tmp_path / "sketch" / shapes.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number:02}.png")
    return tmp_path / "sketch"


def test_a_folder_is_decoded_once_for_all_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"a": model(0, STORED), "b": model(1, STORED), "c": model(2, OTHER)}
    decoded: list[int] = []
    content = Files.content
    monkeypatch.setattr(Files, "content", lambda files, row: decoded.append(row) or content(files, row))
    found = rank_models(models, folder, id_data=folder, metrics=METRICS, settings=FEW)
    assert sorted(decoded) == sorted([*range(18)] * 2)  # the target, and the own domain
    monkeypatch.undo()
    literal = rank_models(
        models, lambda each: load_images(folder, each), id_data=folder, metrics=METRICS, settings=FEW
    )
    for key in METRICS:
        np.testing.assert_allclose(found.column(key).values, literal.column(key).values, rtol=1e-5)


def test_logits_are_kept_for_transport_that_is_small_or_asked_for_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.analyses.generalization.metrics.COT_LIMIT", 100)  # of 18 * 6 unknowns
    models = {"a": model(0, STORED), "b": model(1, STORED)}
    asked_parts: list[set[str]] = []
    inspect = inspection.inspect_model

    def noted(model, task, parts, **options):
        asked_parts.append(set(parts))
        return inspect(model, task, parts, **options)

    monkeypatch.setattr(inspection, "inspect_model", noted)
    usual = rank_models(models, folder, id_data=folder, settings=FEW)
    with pytest.raises(InputError, match="108 unknowns; name the metric"):
        usual.column("cot")
    assert asked_parts == [{"features", "output-scores", "edge-scores"}, set()] * 2
    named = rank_models(models, folder, id_data=folder, metrics=["cot"], settings=FEW)
    assert np.isfinite(named.column("cot").values).all()
    assert asked_parts[4:] == [{"logits"}, set()] * 2
    assert all(each.logits is None and each.spectra is None for each in named.inspections)
