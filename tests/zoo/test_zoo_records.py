"""Records of a zoo: what is kept is what would be made again, and what does not fit is made again."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from assay.core.errors import AssayError, FileFormatError, InputError, NonFiniteError, OutputError, ShapeError
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model
from assay.tasks import EvalTransform, ImageSet, draw_shapes
from assay.zoo import Correctness, Zoo, ZooEntry, correctness, edge_scores, predict, save_model
from assay.zoo.records import data_key, image_reading, task_for


TRANSFORM = EvalTransform(resize=(32, 32))
IMAGES = draw_shapes("sketch", 18)
WITHIN = draw_shapes("flat", 12, start=100)


def module(seed: int, image_size: int = 32) -> ViTForImageClassification:
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=image_size,
        patch_size=16,
        num_labels=6,
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    return ViTForImageClassification(config).eval()


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    """Two random models, one with a known accuracy."""
    entries = []
    for number, accuracy in ((0, 0.5), (1, 0.25)):
        key = f"model-{number}"
        place = save_model(
            module(number), tmp_path / "models" / key, transform=TRANSFORM, classes=IMAGES.classes
        )
        path = place.relative_to(tmp_path).as_posix()
        entries.append(ZooEntry(key=key, path=path, id_accuracy=accuracy, recipe={"init": "random"}))
    zoo = Zoo(
        path=tmp_path,
        name="pair",
        entries=tuple(entries),
        id_domain="flat",
        classes=IMAGES.classes,
        data={"n_validation": 40},
    )
    zoo.save()
    return zoo


def record(zoo: Zoo, images: ImageSet, key: str = "model-0") -> Path:
    return zoo.path / "records" / data_key(images) / f"{key}.npz"


def test_logits_are_those_of_the_model_and_are_kept(zoo: Zoo) -> None:
    found = predict(zoo, "model-0", IMAGES)
    model = zoo.load("model-0")
    direct = run_model(model, task_for(model, IMAGES)).numpy()
    assert np.array_equal(found.logits, direct)
    assert found.logits.dtype == np.float32
    assert np.array_equal(found.ids, IMAGES.ids)
    assert found.accuracy == np.mean(direct.argmax(axis=1) == IMAGES.labels)
    with np.load(record(zoo, IMAGES), allow_pickle=False) as file:
        assert np.array_equal(file["logits"], direct)
        assert str(file["weight_hash"]) == model.weight_hash
        assert file["labels"].dtype == file["ids"].dtype == np.int64


def test_a_record_is_read_and_not_made_again(zoo: Zoo) -> None:
    predict(zoo, "model-0", IMAGES)
    path = record(zoo, IMAGES)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **{**arrays, "logits": arrays["logits"] + 1})
    assert np.array_equal(predict(zoo, "model-0", IMAGES).logits, arrays["logits"] + 1)
    assert np.array_equal(predict(zoo, "model-0", IMAGES, keep=False).logits, arrays["logits"])


@pytest.mark.parametrize("damage", ["cut", "weights", "images"])
def test_a_record_that_does_not_fit_is_made_again(zoo: Zoo, damage: str) -> None:
    wanted = predict(zoo, "model-0", IMAGES).logits
    path = record(zoo, IMAGES)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    else:
        name = {"weights": "weight_hash", "images": "data_hash"}[damage]
        with np.load(path) as file:
            arrays = dict(file)
        other = {"logits": wanted * 0, name: np.array("0" * 16), "request_hash": np.array("")}
        np.savez(path, **{**arrays, **other})
    assert np.array_equal(predict(zoo, "model-0", IMAGES).logits, wanted)
    assert np.array_equal(predict(zoo, "model-0", IMAGES).logits, wanted)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the models that are loaded from here on."""
    keys: list[str] = []
    load = Zoo.load

    def counted(self: Zoo, key: str, **options: Any) -> Model:
        keys.append(key)
        return load(self, key, **options)

    monkeypatch.setattr(Zoo, "load", counted)
    return keys


def test_a_record_is_read_without_loading_the_model(zoo: Zoo, loaded: list[str], tmp_path: Path) -> None:
    first = zoo.correctness(IMAGES, id_images=WITHIN)
    assert loaded == ["model-0", "model-0", "model-1", "model-1"]
    again = zoo.correctness(IMAGES, id_images=WITHIN)
    assert len(loaded) == 4
    assert np.array_equal(again.correct, first.correct)
    assert np.array_equal(again.id_accuracy, first.id_accuracy)
    beside = tmp_path / "beside"
    predict(zoo, "model-0", IMAGES, keep=beside)
    predict(zoo, "model-0", IMAGES, keep=beside)
    assert len(loaded) == 5
    assert (beside / data_key(IMAGES) / "model-0.npz").is_file()


@pytest.mark.parametrize(
    "changed", ["weights", "settings", "labels", "pixels", "classes", "dtype", "adapter", "version", "older"]
)
def test_what_changes_predictions_loads_the_model(
    zoo: Zoo, loaded: list[str], monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    before = predict(zoo, "model-0", IMAGES)
    images, options = IMAGES, {}
    folder = zoo.folder("model-0")
    if changed == "weights":
        save_model(module(5), folder, transform=TRANSFORM, classes=IMAGES.classes)
    elif changed == "settings":
        other = dataclasses.replace(TRANSFORM, mean=(0.0, 0.0, 0.0))
        save_model(module(0), folder, transform=other, classes=IMAGES.classes)
    elif changed == "labels":
        images = dataclasses.replace(IMAGES, labels=IMAGES.labels[::-1].copy())
    elif changed == "pixels":  # in place
        images = dataclasses.replace(IMAGES, pixels=IMAGES.pixels.copy())
        predict(zoo, "model-0", images)
        images.pixels[:] = 255 - images.pixels
    elif changed == "version":
        monkeypatch.setattr("assay.zoo.records.library_version", lambda: "later")
    elif changed == "classes":
        images = dataclasses.replace(IMAGES, classes=IMAGES.classes[::-1])
    elif changed == "dtype":
        options["dtype"] = torch.float64
    elif changed == "adapter":  # whose base lies elsewhere
        (folder / "adapter_config.json").write_text("{}")
    else:  # a record of before files were hashed
        path = record(zoo, IMAGES)
        with np.load(path) as file:
            arrays = {name: values for name, values in file.items() if name != "request_hash"}
        np.savez(path, **arrays)
    if changed in ("classes", "adapter"):
        with pytest.raises(AssayError):
            predict(zoo, "model-0", images)
    else:
        found = predict(zoo, "model-0", images, **options)
        assert np.array_equal(found.logits, before.logits) == (changed in ("labels", "version", "older"))
        assert np.array_equal(found.labels, images.labels)
        assert np.array_equal(predict(zoo, "model-0", images, **options).logits, found.logits)
    assert loaded == ["model-0"] * 2


def test_a_record_of_before_is_read_where_nothing_can_be_written(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = predict(zoo, "model-0", IMAGES)

    def refuse(*_: object) -> None:
        raise OutputError("read-only")

    monkeypatch.setattr("assay.zoo.records.library_version", lambda: "later")
    monkeypatch.setattr("assay.zoo.records.write_atomically", refuse)
    assert np.array_equal(predict(zoo, "model-0", IMAGES).logits, before.logits)


def test_how_a_model_reads_images_is_kept(zoo: Zoo, loaded: list[str]) -> None:
    first = image_reading(zoo, "model-0")
    assert (first.image_size, first.classes) == ((32, 32), IMAGES.classes)
    assert EvalTransform.for_model(first) == EvalTransform.for_model(zoo.load("model-0"))
    loaded.clear()
    assert image_reading(zoo, "model-0") == first
    assert loaded == []
    path = zoo.path / "records" / "model-0.json"
    path.write_bytes(path.read_bytes()[:40])
    assert image_reading(zoo, "model-0") == first
    other = dataclasses.replace(TRANSFORM, mean=(0.0, 0.0, 0.0))
    save_model(module(0), zoo.folder("model-0"), transform=other, classes=IMAGES.classes)
    assert EvalTransform.for_model(image_reading(zoo, "model-0")).mean == (0.0, 0.0, 0.0)
    assert loaded == ["model-0"] * 2


def test_images_without_labels_have_logits_but_no_right_answers(zoo: Zoo) -> None:
    found = predict(zoo, "model-0", dataclasses.replace(IMAGES, labels=None))
    assert (found.labels == -1).all()
    with pytest.raises(InputError, match="18 of 18 images have no label"):
        _ = found.correct


def test_the_matrix_says_who_is_right_where(zoo: Zoo) -> None:
    matrix = zoo.correctness(IMAGES)
    assert matrix.correct.shape == (2, 18)
    assert matrix.correct.dtype == np.uint8
    for row, key in zip(matrix.correct, matrix.keys, strict=True):
        logits = predict(zoo, key, IMAGES).logits
        assert row.tolist() == [
            int(a == b) for a, b in zip(logits.argmax(axis=1), IMAGES.labels, strict=True)
        ]
    assert matrix.id_accuracy.tolist() == [0.5, 0.25]
    assert (matrix.n_id, matrix.domain, matrix.families) == (40, "sketch", ("random", "random"))
    assert matrix.accuracy.tolist() == matrix.correct.mean(axis=1).tolist()


def test_accuracy_in_distribution_can_be_measured(zoo: Zoo) -> None:
    matrix = correctness(zoo, IMAGES, id_images=WITHIN)
    assert matrix.n_id == 12
    assert matrix.id_accuracy.tolist() == [predict(zoo, key, WITHIN).accuracy for key in zoo.keys]
    plain = Zoo.open(zoo.path / "models")
    assert np.isnan(plain.correctness(IMAGES).id_accuracy).all()
    with pytest.raises(
        InputError, match=r"in-distribution accuracy of 2 models is unknown, e\.g\. of model-0"
    ):
        plain.correctness(IMAGES).save(zoo.path / "matrix.npz")


def test_the_file_is_the_archive_of_oodselect(zoo: Zoo) -> None:
    matrix = zoo.correctness(IMAGES)
    path = matrix.save(zoo.path / "sketch.npz")
    with np.load(path, allow_pickle=False) as file:
        assert file["X"].dtype == np.uint8
        assert file["X"].shape == (2, 18)
        assert file["y"].tolist() == [0.5, 0.25]
        assert int(file["n_id"]) == 40
        assert file["model_id"].tolist() == file["group"].tolist() == ["model-0", "model-1"]
        assert file["family"].tolist() == ["random", "random"]
        assert file["example_id"].tolist() == [f"sketch/{number}" for number in IMAGES.ids]
        assert file["label"].tolist() == IMAGES.labels.tolist()
    again = Correctness.load(path)
    assert np.array_equal(again.correct, matrix.correct)
    assert (again.keys, again.domain, again.n_id) == (matrix.keys, matrix.domain, matrix.n_id)
    path.write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="is not a correctness matrix"):
        Correctness.load(path)
    twice = dataclasses.replace(matrix, ids=matrix.ids * 0)
    with pytest.raises(InputError, match="two images of 'sketch' have the same id"):
        twice.save(path)


def test_circuits_are_kept_per_settings(zoo: Zoo) -> None:
    model = zoo.load("model-0")
    direct = discover(model, task_for(model, IMAGES), steps=2)
    found = edge_scores(zoo, "model-0", IMAGES, steps=2)
    assert torch.equal(found.values, direct.values)
    (path,) = (zoo.path / "circuits").glob(f"{data_key(IMAGES)}-*/model-0.safetensors")
    before = path.stat().st_mtime_ns
    assert torch.equal(edge_scores(zoo, "model-0", IMAGES, steps=2).values, direct.values)
    assert path.stat().st_mtime_ns == before
    edge_scores(zoo, "model-0", IMAGES, steps=3)
    assert len(list((zoo.path / "circuits").glob("*/model-0.safetensors"))) == 2


@pytest.mark.parametrize("damage", ["cut", "other model"])
def test_a_circuit_that_does_not_fit_is_made_again(zoo: Zoo, damage: str) -> None:
    wanted = edge_scores(zoo, "model-0", IMAGES, steps=2)
    (path,) = (zoo.path / "circuits").glob("*/model-0.safetensors")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    else:
        edge_scores(zoo, "model-1", IMAGES, steps=2).save(path)
    assert torch.equal(edge_scores(zoo, "model-0", IMAGES, steps=2).values, wanted.values)
    assert torch.equal(edge_scores(zoo, "model-0", IMAGES, steps=2).values, wanted.values)


def test_models_and_images_that_do_not_fit_are_named(zoo: Zoo) -> None:
    with pytest.raises(ShapeError, match="model 'model-0' of the zoo 'pair': .*16 x 16"):
        predict(zoo, "model-0", draw_shapes("flat", 6, size=16))
    renamed = dataclasses.replace(IMAGES, classes=("a", "b", "c", "d", "e", "f"))
    with pytest.raises(InputError, match="model 'model-0' of the zoo 'pair': .*the same classes"):
        zoo.correctness(renamed)
    with pytest.raises(InputError, match="have no labels, but correctness needs them"):
        zoo.correctness(dataclasses.replace(IMAGES, labels=None))
    with pytest.raises(InputError, match="has no trained model, but this needs at least 1; train"):
        dataclasses.replace(zoo, entries=()).correctness(IMAGES)
    broken = module(3)
    with torch.no_grad():
        broken.classifier.bias[2] = torch.nan
    save_model(broken, zoo.path / "models" / "model-1", transform=TRANSFORM, classes=IMAGES.classes)
    with pytest.raises(NonFiniteError, match="model 'model-1' of the zoo 'pair'"):
        zoo.correctness(IMAGES)
