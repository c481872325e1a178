"""`ImageTask`: what it holds, what it refuses, how it is cut, and what is the same in memory and in files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from picture_files import CLASSES, DRAWN, LABELS, write_folder

from assay.core.errors import FileFormatError, InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.discovery.edges import discover, output_scores
from assay.execution import run_model
from assay.models import Model
from assay.tasks import EvalTransform, ImageTask, find_domains, image_reading, images, load_images
from assay.tasks.examples import example_codes
from assay.zoo import Zoo


TRANSFORM = EvalTransform(resize=(32, 32))


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


def test_batches_cover_the_task_in_order() -> None:
    whole = task()
    batches = list(whole.batches(4))
    assert [len(batch.images) for batch in batches] == [4, 2]
    assert torch.equal(torch.cat([batch.images for batch in batches]), whole.clean)
    assert batches[1].corrupted is not None
    assert torch.equal(batches[1].corrupted, -batches[1].images)
    assert batches[1].indices.tolist() == [4, 5]
    assert batches[0].to("cpu").labels is not None


@pytest.mark.parametrize("kind", ["normalised", "pixels", "files"])
def test_a_subset_keeps_ids_and_columns(kind: str, folder: Path) -> None:
    whole = {"normalised": task, "pixels": eight_bits, "files": lambda: in_files(folder)}[kind]()
    part = whole.subset([4, 1, 1])
    assert part.ids.tolist() == [4, 1, 1]
    assert all(part.fields[name] == [values[i] for i in (4, 1, 1)] for name, values in whole.fields.items())
    assert part.labels is not None
    assert whole.labels is not None
    assert torch.equal(part.labels, whole.labels[[4, 1, 1]])
    assert torch.equal(part.clean, whole.clean[[4, 1, 1]])
    assert torch.equal(part.subset([1]).clean[0], whole.clean[1])
    assert part.corrupted is None or torch.equal(part.corrupted, -part.clean)


def test_the_hash_follows_every_value_that_a_result_depends_on() -> None:
    base = task()
    changed = floats()
    changed[3, 1, 2, 2] += 1
    others = [
        ImageTask(images=changed, corrupted=-floats(), labels=base.labels),
        ImageTask(images=floats(), corrupted=-changed, labels=base.labels),
        ImageTask(images=floats(), labels=base.labels),
        ImageTask(images=floats(), corrupted=-floats(), labels=1 - base.labels),
        ImageTask(images=floats().double(), corrupted=-floats(), labels=base.labels),
    ]
    assert len({base.data_hash, *(other.data_hash for other in others)}) == 6
    again = ImageTask(images=floats(), corrupted=-floats(), labels=base.labels, domain="elsewhere")
    assert again.data_hash == base.data_hash


def test_hashes_are_those_of_earlier_versions() -> None:
    """The keys of zoos' records, and of results on drawn images."""
    drawn = DRAWN.subset(range(6))
    assert drawn.source_hash[:16] == "0f7cf51d06c49f55"
    assert drawn.data_hash[:8] == "d8a37186"
    for source, expected in (("shapes:flat", "29bce80dba0840f8"), ("colour-digits:0.5", "31c7c028b0e5000e")):
        (unread,) = find_domains(source, n=4).values()
        assert unread.source_hash[:16] == expected, "the same in every process"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, InputError, "'custom' has no images"),
        ({"images": floats().to(torch.uint8)}, ShapeError, "torch.uint8; give normalised images"),
        ({"images": floats().permute(0, 2, 3, 1)}, ShapeError, r"\(6, 8, 8, 3\).*permute\(0, 3, 1, 2\)"),
        ({"images": floats()[:, :1]}, ShapeError, r"\(6, 1, 8, 8\); expected \[N, 3, H, W\]"),
        ({"images": floats()[:0], "domain": "fog"}, InputError, "'fog' has no images"),
        ({"images": floats(), "corrupted": floats(5)}, ShapeError, "needs a counterpart"),
        ({"images": floats(), "labels": torch.zeros(6)}, ShapeError, "labels is torch.float32"),
        ({"images": floats(), "labels": torch.zeros(5, dtype=torch.long)}, ShapeError, r"expected \[6\]"),
        ({"images": floats(), "labels": torch.tensor([0, 0, -1, 0, 0, 0])}, InputError, r"-1 \(image 2\)"),
        ({"images": floats(), "ids": torch.arange(5)}, ShapeError, "ids has shape"),
        ({"images": floats(), "fields": {"site": ["a"]}}, ShapeError, "field 'site' has 1 entries for 6"),
        (
            {"images": floats(), "labels": torch.tensor([0, 2, 0, 0, 0, 0]), "classes": ("a", "b")},
            InputError,
            r"labels holds 2 \(image 1\), but there are 2 classes",
        ),
        ({"images": floats(), "foils": torch.zeros(6, 0, dtype=torch.long)}, ShapeError, "at least 1"),
        ({"pixels": np.zeros((2, 4, 4, 3))}, ShapeError, "float64 of shape"),
        ({"pixels": np.zeros((2, 4, 4), dtype=np.uint8)}, ShapeError, r"uint8 \[N, H, W, 3\]"),
    ],
)
def test_bad_tasks_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageTask(**arguments)


def test_nan_images_are_named() -> None:
    bad = floats()
    bad[2, 0, 3, 3] = float("nan")
    bad[5, 0, 0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"2 of 6 images, first in row 2 \(id 12\)"):
        ImageTask(images=bad, ids=torch.arange(10, 16))


def test_a_task_is_checked_against_what_the_model_reads() -> None:
    whole = task()
    whole.validate((8, 8), ["cat", "dog"])
    with pytest.raises(ShapeError, match="are 8 x 8, but the model reads 16 x 16"):
        whole.validate((16, 16))
    with pytest.raises(InputError, match=r"the same classes in the same order: model \['dog', 'cat'\]"):
        whole.validate((8, 8), ["dog", "cat"])


def test_labels_follow_the_classes_of_a_model() -> None:
    turned = eight_bits().with_classes(["z", "y", "x", "w"])
    assert turned.labels is not None
    assert turned.labels.tolist() == [2, 1, 0, 2, 1, 0, 2]
    with pytest.raises(InputError, match="has images of z, which are not among the classes x, y"):
        eight_bits().with_classes(["x", "y"])
    compared = replace(eight_bits().subset([0, 1]), foils=torch.tensor([[2], [2]]))
    assert compared.with_classes(["z", "y", "x"]).foils.tolist() == [[0], [0]]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="has images or foils of z, which"):
        compared.with_classes(["y", "x"])
    # A class that no image shows needs no name in the model.
    assert eight_bits().subset([0, 1]).with_classes(["y", "x"]).labels.tolist() == [1, 0]  # type: ignore[union-attr]


def test_parts_are_disjoint_and_cover_the_images() -> None:
    parts = eight_bits().parts(3, seed=4)
    assert [part.domain for part in parts] == ["photo/1", "photo/2", "photo/3"]
    assert sorted(part.n for part in parts) == [2, 2, 3]
    assert sorted(torch.cat([part.ids for part in parts]).tolist()) == list(range(7))
    assert [part.ids.tolist() for part in eight_bits().parts(3, seed=4)] == [p.ids.tolist() for p in parts]
    assert [p.ids.tolist() for p in eight_bits().parts(3, seed=5)] != [p.ids.tolist() for p in parts]
    with pytest.raises(InputError, match="give 1 to 7"):
        eight_bits().parts(8)


def test_a_sample_is_ordered_and_seeded() -> None:
    drawn = eight_bits().sample(4, seed=1)
    assert drawn.pixels is not None
    assert drawn.ids.tolist() == sorted(set(drawn.ids.tolist()))
    assert drawn.pixels[:, 0, 0, 0].tolist() == drawn.ids.tolist()
    assert eight_bits().sample(4, seed=1).ids.tolist() == drawn.ids.tolist()
    assert eight_bits().sample(99).n == 7
    with pytest.raises(InputError, match="give at least 1 of the images"):
        eight_bits().sample(0)


def test_fields_split_images_into_domains() -> None:
    sites = eight_bits().by_field("site")
    assert list(sites) == ["a", "b"]
    assert sites["a"].ids.tolist() == [1, 3, 5]
    assert sites["b"].domain == "b"
    assert list(eight_bits().by_field("site", "slide")) == ["a/slide 1", "b/slide 0"]
    with pytest.raises(UnknownNameError, match="site"):
        eight_bits().by_field("sites")


def test_pixels_are_normalised_by_a_transform() -> None:
    transform = EvalTransform(resize=99, mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 2.0))
    whole = eight_bits()
    made = whole.with_transform(transform)
    assert whole.pixels is not None
    expected = (whole.pixels / 255 - [0.0, 0.5, 1.0]) / [1.0, 0.5, 2.0]
    assert made.clean.dtype == torch.float32
    np.testing.assert_allclose(made.clean.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-7)
    assert made.config["normalise"]["std"] == [1.0, 0.5, 2.0]
    with pytest.raises(InputError, match="given normalised; to apply a transform"):
        task().with_transform(transform)


# ------------------------------------------------------------------------------------- in memory and in files


@pytest.mark.parametrize("workers", [0, 1, 2])
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
    foiled = discover(model, lazy.with_runner_up(logits), "eap", objective="logit_diff")
    same = discover(model, held.with_runner_up(logits), "eap", objective="logit_diff")
    assert torch.equal(foiled.values, same.values)


def test_a_model_gives_its_own_transform_to_images_without_one(model: Model) -> None:
    own = DRAWN.with_transform(EvalTransform.for_model(model))
    assert torch.equal(run_model(model, DRAWN), run_model(model, own))
    drawn = find_domains("shapes:flat", n=4)["flat"]
    assert torch.equal(run_model(model, drawn), run_model(model, DRAWN.subset(range(4))))


def test_the_same_pictures_have_one_hash_however_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_files(folder)
    order = [int(Path(name).stem) for name in whole.fields["path"]]
    expected = DRAWN.subset(order).with_transform(TRANSFORM).data_hash
    for each in (in_files(folder), whole.held(), ImageTask(images=whole.clean, labels=whole.labels)):
        assert each.data_hash == expected
    assert whole.subset([5, 2]).data_hash == DRAWN.subset([order[5], order[2]]).data_hash
    copies = whole.subset([65, 3, 3, 40])
    assert example_codes(copies, paired=False).tolist() == [0, 1, 1, 2]
    another = in_files(folder)
    for _ in another.batches(7):
        pass
    monkeypatch.setattr(images, "decode", lambda *_, **__: pytest.fail("pictures were read again"))
    assert another.data_hash == expected


def test_the_identity_of_files_knows_order_labels_and_transform(folder: Path) -> None:
    whole = in_files(folder)
    others = [
        whole.subset(range(69)),
        whole.subset(range(69, -1, -1)),
        whole.with_transform(EvalTransform(resize=(32, 32), mean=(0.1, 0.1, 0.1))),
        whole.with_classes(CLASSES[::-1]),
    ]
    assert len({whole.data_hash, *(other.data_hash for other in others)}) == 5
    assert len({whole.source_hash, *(other.source_hash for other in others)}) == 5


def test_a_picture_that_changed_and_kept_its_size_is_another(tmp_path: Path) -> None:
    copied, hashes = write_folder(tmp_path / "flat"), []
    for _ in range(2):
        hashes.append(in_files(copied).data_hash)
        by_size = sorted(copied.rglob("*.png"), key=lambda path: path.stat().st_size)
        by_size[-1].write_bytes(by_size[0].read_bytes().ljust(by_size[-1].stat().st_size, b"\0"))
    assert hashes[0] != hashes[1]


def test_bad_files_are_named_or_left_out_and_counted(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "flat", 8)
    (broken,) = root.rglob("3.png")
    broken.write_bytes(b"no image")
    found = in_files(root)
    for read in (found.held, lambda: list(found.batches(3))):
        with pytest.raises(FileFormatError, match=r"3\.png cannot be decoded .* skip_bad"):
            read()
    held, readable = found.held(skip_bad=True), found.readable()
    for kept in (held, readable, held.subset([0])):
        assert kept.skipped == (str(broken),)
        assert kept.config["skipped"] == 1
        assert kept.notes == ("1 files of flat were skipped",)
    bad = found.fields["path"].index(str(broken.relative_to(root)))
    assert held.ids.tolist() == readable.ids.tolist() == [row for row in range(8) if row != bad]
    assert torch.equal(held.clean, readable.clean)
    with pytest.raises(InputError, match="none of the 1 images of 'flat' can be decoded, e.g. .*3.png"):
        found.subset([bad]).held(skip_bad=True)


def test_images_that_do_not_fit_into_the_memory_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "free_memory", lambda: 11 * 32 * 32 * 3)
    with pytest.raises(InputError, match="12 images of 'flat' with 32 x 32 pixels take .* a sample with n="):
        in_files(folder).subset(range(12)).held()
    assert in_files(folder).subset(range(11)).held().n == 11


def test_a_sample_of_files_is_read_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    content = image_reading.Files.content
    monkeypatch.setattr(
        image_reading.Files, "content", lambda files, row: asked.append(row) or content(files, row)
    )
    (found,) = find_domains(folder, n=5, seed=3).values()
    held = found.with_transform(TRANSFORM).held()
    assert asked == held.ids.tolist() == found.rows.tolist()
    assert held.labels is not None
    assert [LABELS[int(Path(name).stem)] for name in held.fields["path"]] == [
        CLASSES.index(held.classes[label])  # type: ignore[index]
        for label in held.labels.tolist()
    ]
