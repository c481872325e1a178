"""`ImageTask`: what it holds and refuses, how it is cut, and what is the same in memory and in files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_files import CLASSES, DRAWN, write_folder

from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.discovery.edges import discover, output_scores
from assay.execution import run_model
from assay.models import Model
from assay.tasks import EvalTransform, ImageTask, find_domains, images, load_images
from assay.tasks.examples import example_codes
from assay.zoo import Zoo


TRANSFORM = EvalTransform(resize=(32, 32))
ONE = torch.tensor([0, 1, 0, 0, 0, 0])


def floats(n: int = 6, side: int = 8) -> torch.Tensor:
    return torch.arange(n * 3 * side * side, dtype=torch.float32).reshape(n, 3, side, side) / 100


def task(n: int = 6) -> ImageTask:
    return ImageTask(
        images=floats(n),
        corrupted=-floats(n),
        labels=torch.arange(n) % 2,
        domain="photo",
        fields={"path": [f"{i}.png" for i in range(n)]},
        classes=("cat", "dog"),
    )


def eight_bits(n: int = 7) -> ImageTask:
    pixels = np.arange(n, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 5, 3), dtype=np.uint8)
    return ImageTask(
        pixels=pixels,
        labels=torch.arange(n) % 3,
        domain="photo",
        fields={"site": ["b", "a"] * (n // 2) + ["b"] * (n % 2), "slide": [str(i % 2) for i in range(n)]},
        classes=("x", "y", "z"),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("images") / "flat")


@pytest.fixture(scope="module")
def model() -> Model:
    zoo = Zoo.embedded()
    return zoo.load(zoo.keys[0])


def in_files(folder: Path) -> ImageTask:
    (found,) = find_domains(folder).values()
    return found.with_transform(TRANSFORM)


@pytest.mark.parametrize("kind", ["normalised", "pixels", "files"])
def test_a_subset_keeps_ids_and_columns(kind: str, folder: Path) -> None:
    whole = {"normalised": task, "pixels": eight_bits, "files": lambda: in_files(folder)}[kind]()
    part = whole.subset([4, 1, 1])
    assert part.ids.tolist() == [4, 1, 1]
    assert all(part.fields[name] == [values[i] for i in (4, 1, 1)] for name, values in whole.fields.items())
    assert torch.equal(part.labels, whole.labels[[4, 1, 1]])
    assert torch.equal(part.clean, whole.clean[[4, 1, 1]])
    assert torch.equal(part.subset([1]).clean[0], whole.clean[1])
    assert part.corrupted is None or torch.equal(part.corrupted, -part.clean)


def test_hashes_are_those_of_earlier_versions() -> None:
    """The keys of zoos' records, and of results on drawn images."""
    drawn = DRAWN.subset(range(6))
    assert drawn.source_hash[:16] == "0f7cf51d06c49f55"
    assert drawn.data_hash[:8] == "d8a37186"
    (unread,) = find_domains("shapes:flat", n=4).values()
    assert unread.source_hash[:16] == "29bce80dba0840f8", "the same in every process"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, InputError, "'custom' has no images"),
        ({"images": floats().to(torch.uint8)}, ShapeError, "torch.uint8 .*expected normalised images"),
        ({"images": floats() / 0}, NonFiniteError, "first in row 0"),
        ({"images": floats(), "corrupted": floats(5)}, ShapeError, "needs a counterpart"),
        ({"images": floats(), "labels": torch.tensor([0, 0, -1, 0, 0, 0])}, InputError, r"\[6\] from -1"),
        ({"images": floats(), "fields": {"site": ["a"]}}, ShapeError, "site has 1 entries for 6"),
        ({"images": floats(), "labels": [0.5] * 6}, ShapeError, "labels is torch.float32; give integers"),
        ({"images": floats(), "foils": ONE}, ShapeError, r"foils is \[6\] from 0; give \[6, at least 1\]"),
        ({"images": floats(), "labels": 2 * ONE, "classes": ("a", "b")}, InputError, "2 .image 1.*2 classes"),
        ({"images": floats(), "labels": ONE, "foils": ONE[:, None]}, InputError, "foil of image 0 is its"),
        ({"pixels": np.zeros((2, 4, 4, 3))}, ShapeError, r"float64 of shape .* uint8 \[N, H, W, 3\]"),
    ],
)
def test_bad_tasks_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageTask(**arguments)


def test_labels_follow_the_classes_of_a_model() -> None:
    task().validate((8, 8), ["cat", "dog"])
    for wrong, error in ((((16, 16),), ShapeError), (((8, 8), ["dog", "cat"]), InputError)):
        with pytest.raises(error, match=r"8 x 8, but the model reads 16|classes in the same order: model"):
            task().validate(*wrong)
    turned = eight_bits().with_classes(["z", "y", "x", "w"])
    assert turned.labels.tolist() == [2, 1, 0, 2, 1, 0, 2]
    with pytest.raises(InputError, match="has images of z, which are not among the classes x, y"):
        eight_bits().with_classes(["x", "y"])
    compared = replace(eight_bits().subset([0, 1]), foils=torch.tensor([[2], [2]]))
    assert compared.with_classes(["z", "y", "x"]).foils.tolist() == [[0], [0]]
    with pytest.raises(InputError, match="has images or foils of z, which"):
        compared.with_classes(["y", "x"])
    # A class that no image shows needs no name in the model.
    assert eight_bits().subset([0, 1]).with_classes(["y", "x"]).labels.tolist() == [1, 0]


def test_parts_samples_and_fields_divide_the_images() -> None:
    parts = eight_bits().parts(3, seed=4)
    assert [part.domain for part in parts] == ["photo/1", "photo/2", "photo/3"]
    assert sorted(part.n for part in parts) == [2, 2, 3]
    assert sorted(torch.cat([part.ids for part in parts]).tolist()) == list(range(7))
    first, again, other = ([p.ids.tolist() for p in eight_bits().parts(3, seed=s)] for s in (4, 4, 5))
    assert first == again != other
    drawn = eight_bits().sample(4, seed=1)
    assert drawn.ids.tolist() == sorted(set(drawn.ids.tolist()))
    assert drawn.pixels[:, 0, 0, 0].tolist() == drawn.ids.tolist()
    sites = eight_bits().by_field("site", "slide")
    divided = {name: part.ids.tolist() for name, part in sites.items()}
    assert divided == {"a/slide 1": [1, 3, 5], "b/slide 0": [0, 2, 4, 6]}


# ------------------------------------------------------------------------------------- in memory and in files


@pytest.mark.parametrize("workers", [0, 2])
def test_the_engine_finds_the_same_in_files(model: Model, folder: Path, workers: int) -> None:
    held = load_images(folder, model, n=24, seed=1)
    lazy = load_images(folder, model, n=24, seed=1, workers=workers, hold=False)
    assert (held.pixels is None, lazy.source is None) == (False, False)
    for method in ("eap", "eap-ig-inputs"):
        chosen = {"objective": "pseudo_margin", "batch_size": 7}
        found = discover(model, lazy, method, **chosen)
        assert torch.equal(found.values, discover(model, held, method, **chosen).values)
    assert torch.equal(output_scores(model, lazy).values, output_scores(model, held).values)
    logits = run_model(model, lazy)
    assert torch.equal(logits, run_model(model, held))
    assert torch.equal(run_model(model, DRAWN), run_model(model, DRAWN.for_model(model)))


def test_the_same_pictures_have_one_hash_however_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_files(folder)
    order = [int(Path(name).stem) for name in whole.fields["path"]]
    expected = DRAWN.subset(order).with_transform(TRANSFORM).data_hash
    for each in (in_files(folder), whole.held(), ImageTask(images=whole.clean, labels=whole.labels)):
        assert each.data_hash == expected
    others = [whole.subset(range(69)), whole.subset(range(69, -1, -1)), whole.with_classes(CLASSES[::-1])]
    others.append(whole.with_transform(EvalTransform(resize=(32, 32), mean=(0.1, 0.1, 0.1))))
    for identity in ("data_hash", "source_hash"):
        assert len({getattr(each, identity) for each in (whole, *others)}) == 5
    assert example_codes(whole.subset([65, 3, 3, 40]), paired=False).tolist() == [0, 1, 1, 2]
    another = in_files(folder)
    assert len(list(another.batches(7))) == 10
    monkeypatch.setattr(images, "ahead", lambda *_, **__: pytest.fail("pictures were read again"))
    assert another.data_hash == expected


def test_images_larger_than_the_memory_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "free_memory", lambda: 11 * 32 * 32 * 3)
    with pytest.raises(InputError, match="12 images of 'flat' with 32 x 32 pixels take .* a smaller n"):
        in_files(folder).subset(range(12)).held()
    assert in_files(folder).subset(range(11)).held().n == 11
