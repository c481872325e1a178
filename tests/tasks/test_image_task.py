"""`ImageTask` and `ImageSet`: what they hold, what they refuse, how they are cut."""

import numpy as np
import pytest
import torch

from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.tasks import EvalTransform, ImageSet, ImageTask


def images(n: int = 6, side: int = 8) -> torch.Tensor:
    return torch.arange(n * 3 * side * side, dtype=torch.float32).reshape(n, 3, side, side) / 100


def task(n: int = 6) -> ImageTask:
    return ImageTask(
        images=images(n),
        corrupted=-images(n),
        labels=torch.arange(n) % 2,
        domain="photo",
        fields={"path": [f"{i}.png" for i in range(n)]},
        classes=("cat", "dog"),
    )


def image_set(n: int = 7) -> ImageSet:
    pixels = np.arange(n, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 5, 3), dtype=np.uint8)
    return ImageSet(
        pixels=pixels,
        labels=np.arange(n) % 3,
        domain="photo",
        fields={"site": ["b", "a"] * (n // 2) + ["b"] * (n % 2)},
        classes=("x", "y", "z"),
    )


def test_defaults_are_those_of_images() -> None:
    plain = ImageTask(images=images())
    assert (plain.objective, plain.ablation) == ("kl", "mean-positional")
    assert plain.corrupted is None
    assert plain.labels is None
    assert plain.ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert plain.describe()["domain"] == ""


def test_batches_cover_the_task_in_order() -> None:
    whole = task()
    batches = list(whole.batches(4))
    assert [len(batch.images) for batch in batches] == [4, 2]
    assert torch.equal(torch.cat([batch.images for batch in batches]), whole.images)
    assert batches[1].corrupted is not None
    assert torch.equal(batches[1].corrupted, -batches[1].images)
    assert batches[1].indices.tolist() == [4, 5]
    assert batches[0].to("cpu").labels is not None


def test_a_subset_keeps_ids_fields_and_counterparts() -> None:
    part = task().subset([4, 1, 1])
    assert part.ids.tolist() == [4, 1, 1]
    assert part.fields["path"] == ["4.png", "1.png", "1.png"]
    assert part.corrupted is not None
    assert torch.equal(part.corrupted, -part.images)
    assert part.labels is not None
    assert part.labels.tolist() == [0, 1, 1]


def test_the_hash_follows_every_value_that_a_result_depends_on() -> None:
    base = task()
    changed = images()
    changed[3, 1, 2, 2] += 1
    others = [
        ImageTask(images=changed, corrupted=-images(), labels=base.labels),
        ImageTask(images=images(), corrupted=-changed, labels=base.labels),
        ImageTask(images=images(), labels=base.labels),
        ImageTask(images=images(), corrupted=-images(), labels=1 - base.labels),
        ImageTask(images=images().double(), corrupted=-images(), labels=base.labels),
    ]
    assert len({base.data_hash, *(other.data_hash for other in others)}) == 6
    again = ImageTask(images=images(), corrupted=-images(), labels=base.labels, domain="elsewhere")
    assert again.data_hash == base.data_hash


def test_counterparts_take_the_dtype_of_the_images() -> None:
    mixed = ImageTask(images=images().double(), corrupted=images())
    assert mixed.corrupted is not None
    assert mixed.corrupted.dtype == torch.float64


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"images": images().to(torch.uint8)}, ShapeError, "torch.uint8; give normalised images"),
        ({"images": [1.0]}, ShapeError, "images is list"),
        ({"images": images().permute(0, 2, 3, 1)}, ShapeError, r"\(6, 8, 8, 3\).*permute\(0, 3, 1, 2\)"),
        ({"images": images()[:, :1]}, ShapeError, r"\(6, 1, 8, 8\); expected \[N, 3, H, W\]"),
        ({"images": images()[:0]}, InputError, "the task is empty"),
        ({"images": images(), "corrupted": images(5)}, ShapeError, "needs a counterpart"),
        ({"images": images(), "labels": torch.zeros(6)}, ShapeError, "labels is torch.float32"),
        ({"images": images(), "labels": torch.zeros(5, dtype=torch.long)}, ShapeError, r"expected \[6\]"),
        ({"images": images(), "labels": torch.tensor([0, 0, -1, 0, 0, 0])}, InputError, r"-1 \(image 2\)"),
        ({"images": images(), "ids": torch.arange(5)}, ShapeError, "ids has shape"),
        ({"images": images(), "fields": {"site": ["a"]}}, ShapeError, "field 'site' has 1 entries for 6"),
        ({"images": images(), "classes": ("a", "a")}, InputError, "listed twice"),
        (
            {"images": images(), "labels": torch.tensor([0, 2, 0, 0, 0, 0]), "classes": ("a", "b")},
            InputError,
            r"labels holds 2 \(image 1\), but there are 2 classes",
        ),
    ],
)
def test_bad_tasks_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageTask(**arguments)


def test_nan_images_are_named() -> None:
    bad = images()
    bad[2, 0, 3, 3] = float("nan")
    bad[5, 0, 0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"2 of 6 images, first in row 2 \(id 12\)"):
        ImageTask(images=bad, ids=torch.arange(10, 16))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rows", [[], [6], [-1], [0.5]])
def test_rows_that_do_not_exist_are_refused(rows: list) -> None:
    with pytest.raises(InputError, match="subset"):
        task().subset(torch.tensor(rows))


def test_batches_of_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="batch_size is 0"):
        next(task().batches(0))


def test_a_task_is_checked_against_what_the_model_reads() -> None:
    whole = task()
    whole.validate((8, 8), ["cat", "dog"])
    with pytest.raises(ShapeError, match="are 8 x 8, but the model reads 16 x 16"):
        whole.validate((16, 16))
    with pytest.raises(InputError, match=r"only the model has \['owl'\], only the data \['dog'\]"):
        whole.validate((8, 8), ["cat", "owl"])
    with pytest.raises(InputError, match="order differs"):
        whole.validate((8, 8), ["dog", "cat"])


# ------------------------------------------------------------------------------------------- 8-bit sets


def test_parts_are_disjoint_and_cover_the_set() -> None:
    parts = image_set().parts(3, seed=4)
    assert [part.domain for part in parts] == ["photo/1", "photo/2", "photo/3"]
    assert sorted(part.n for part in parts) == [2, 2, 3]
    ids = np.concatenate([part.ids for part in parts])
    assert sorted(ids) == list(range(7))
    assert [part.ids.tolist() for part in image_set().parts(3, seed=4)] == [p.ids.tolist() for p in parts]
    assert [p.ids.tolist() for p in image_set().parts(3, seed=5)] != [p.ids.tolist() for p in parts]
    with pytest.raises(InputError, match="give 1 to 7"):
        image_set().parts(8)


def test_a_sample_is_ordered_and_seeded() -> None:
    drawn = image_set().sample(4, seed=1)
    assert drawn.ids.tolist() == sorted(set(drawn.ids.tolist()))
    assert (drawn.pixels[:, 0, 0, 0] == drawn.ids).all()
    assert image_set().sample(4, seed=1).ids.tolist() == drawn.ids.tolist()
    assert image_set().sample(99).n == 7
    with pytest.raises(InputError, match="give at least 1 of the images"):
        image_set().sample(0)


def test_a_field_splits_a_set_into_domains() -> None:
    sites = image_set().by_field("site")
    assert list(sites) == ["a", "b"]
    assert sites["a"].ids.tolist() == [1, 3, 5]
    assert sites["b"].domain == "b"
    with pytest.raises(UnknownNameError, match="site"):
        image_set().by_field("sites")


def test_a_set_becomes_a_normalised_task() -> None:
    transform = EvalTransform(mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 2.0))
    made = image_set().task(transform)
    expected = (image_set().pixels / 255 - [0.0, 0.5, 1.0]) / [1.0, 0.5, 2.0]
    assert made.images.dtype == torch.float32
    np.testing.assert_allclose(made.images.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-7)
    assert made.classes == ("x", "y", "z")
    assert made.config["normalise"]["std"] == [1.0, 0.5, 2.0]


def test_counterparts_must_be_of_the_same_images() -> None:
    whole = image_set()
    assert whole.task(corrupted=whole).corrupted is not None
    with pytest.raises(InputError, match="do not have the ids"):
        whole.task(corrupted=whole.subset([1, 0, 2, 3, 4, 5, 6]))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"pixels": np.zeros((2, 4, 4, 3))}, ShapeError, "float64 of shape"),
        ({"pixels": np.zeros((2, 4, 4), dtype=np.uint8)}, ShapeError, r"uint8 \[N, H, W, 3\]"),
        (
            {"pixels": np.zeros((0, 4, 4, 3), dtype=np.uint8), "domain": "fog"},
            InputError,
            "'fog' has no images",
        ),
    ],
)
def test_bad_sets_are_refused(arguments: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImageSet(**arguments)
