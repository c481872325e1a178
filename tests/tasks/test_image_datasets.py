"""Data sets of PyTorch and of the `datasets` library as images."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from picture_files import png
from PIL import Image
from torch.utils.data import Dataset, Subset

from assay.core.errors import FileFormatError, InputError, ShapeError, UnknownNameError
from assay.tasks import draw_shapes, read_dataset


DRAWN = draw_shapes("flat", 12)
CLASSES = list(DRAWN.classes or ())
assert DRAWN.labels is not None


@pytest.fixture(scope="module")
def datasets() -> Any:
    reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
    return pytest.importorskip("datasets", reason=reason)


class Listed(Dataset[Any]):
    """The items given; counts what is asked for."""

    def __init__(self, *items: Any) -> None:
        self.items, self.asked = items, [0] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        self.asked[row] += 1
        return self.items[row]


class Items(Listed):
    """Images and labels as torchvision's data sets give them."""

    classes = CLASSES

    def __init__(self, form: str) -> None:
        make = {
            "pil": lambda pixels, label: (Image.fromarray(pixels), label),
            "bytes": lambda pixels, label: (torch.from_numpy(pixels).permute(2, 0, 1), torch.tensor(label)),
            "floats": lambda pixels, label: (torch.from_numpy(pixels).permute(2, 0, 1) / 255, label),
            "array": lambda pixels, label: [pixels, np.int64(label), {"more": 1}],
        }[form]
        super().__init__(*map(make, DRAWN.pixels, DRAWN.labels.tolist()))


@pytest.mark.parametrize("form", ["pil", "bytes", "floats", "array"])
def test_items_of_a_torch_data_set_are_images_and_labels(form: str) -> None:
    items = Items(form)
    images = read_dataset(items)
    assert items.asked == [1] * DRAWN.n  # for the labels
    assert (images.held().pixels == DRAWN.pixels).all()
    assert (images.labels == DRAWN.labels).all()
    assert (images.classes, images.domain, images.name) == (DRAWN.classes, "Items", "Items")
    sampled = read_dataset(items := Items(form), n=5, seed=3)
    assert sum(items.asked) == 5
    assert (sampled.held().pixels == DRAWN.sample(5, seed=3).pixels).all()
    assert (read_dataset(Subset(items, [3, 1])).held().pixels == DRAWN.pixels[[3, 1]]).all()


def test_items_are_fetched_one_at_a_time_by_any_number_of_threads() -> None:
    class Alone(Listed):
        inside = 0

        def __getitem__(self, row: int) -> Any:
            self.inside += 1
            assert self.inside == 1
            time.sleep(0.001)
            self.inside -= 1
            return self.items[row]

    items = [np.full((8, 8, 3), row, np.uint8) for row in range(200)]
    images = replace(read_dataset(Alone(*items)), workers=4)
    assert images.held().pixels[:, 0, 0, 0].tolist() == list(range(200))


BLACK = Image.new("RGB", (8, 8))


def test_images_without_labels_are_unlabelled() -> None:
    assert read_dataset(Listed(BLACK, BLACK)).labels is None
    grey = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    for each in (grey, grey[0], grey[0].numpy(), grey[0] / 255):
        assert (read_dataset(Listed(each)).held().pixels == grey[0].numpy()[None, ..., None]).all()


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            {"train": Listed(BLACK)},
            InputError,
            r"is a dict of the splits train; give one, e.g. dataset\['train'",
        ),
        (iter([BLACK]), InputError, "is a list_iterator, whose rows have no numbers; expected a map-style"),
        (Listed((BLACK, "cat")), InputError, r"the label of row 0 is 'cat' \(str\); expected the number"),
        (Listed((BLACK, 0), BLACK), InputError, "item 1 of the data set has no label, but others do"),
        (
            Listed((torch.randn(3, 8, 8), 0)),
            FileFormatError,
            "values from -.* expected 0 to 1 or 8",
        ),
        (Listed((torch.zeros(5, 8, 7), 0)), FileFormatError, r"of shape \(5, 8, 7\); expected .*\[3, H, W\]"),
        (Listed((BLACK, 0), (Image.new("RGB", (9, 8)), 0)), ShapeError, "1 of Listed is 8 x 9"),
    ],
)
def test_other_items_are_refused(dataset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_dataset(dataset).held()


# ---- the library `datasets` ---------------------------------------------------------------------


@pytest.fixture
def pictures(datasets: Any) -> Any:
    """A set as the hub has it: `img`, class labels, a fact, a text."""
    features = datasets.Features(
        {"img": datasets.Image(), "fine": datasets.ClassLabel(names=CLASSES),
         "place": datasets.Value("string"), "number": datasets.Value("int64"),
         "box": datasets.List(datasets.Value("int64"))}
    )  # fmt: skip
    columns = {
        "img": [{"bytes": png(each), "path": None} for each in DRAWN.pixels],
        "fine": DRAWN.labels.tolist(),
        "place": [f"place {row % 3}" for row in range(DRAWN.n)],
        "number": [50 + row for row in range(DRAWN.n)],
        "box": [[1, 2]] * DRAWN.n,
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_columns_of_a_data_set_are_found_by_their_types(pictures: Any) -> None:
    images = read_dataset(pictures.with_format("torch"), n=7, seed=2)
    rows = images.ids.tolist()
    assert len(rows) == 7
    assert (images.held().pixels == DRAWN.pixels[rows]).all()
    assert (images.labels == DRAWN.labels[rows]).all()
    assert images.classes == DRAWN.classes
    assert images.fields == {
        "place": [f"place {row % 3}" for row in rows],
        "number": [50 + row for row in rows],
    }
    assert set(images.by_field("place")) == {"place 0", "place 1", "place 2"}


def test_what_the_columns_do_not_tell_is_asked_for(datasets: Any, pictures: Any) -> None:
    second = pictures.select_columns("img").rename_column("img", "img2")
    twice = datasets.concatenate_datasets([pictures, second], axis=1)
    with pytest.raises(InputError, match="columns img, img2 of type Image; choose one with image='img'"):
        read_dataset(twice)
    assert read_dataset(twice, image="img2").n == DRAWN.n
    with pytest.raises(UnknownNameError, match="column of the data set 'imgs'"):
        read_dataset(pictures, image="imgs")
    with pytest.raises(
        InputError, match="columns fine, place, number, box, none of images; name it with image="
    ):
        read_dataset(pictures.remove_columns("img"))
    assert read_dataset(pictures.remove_columns("fine")).labels is None
    with pytest.raises(InputError, match=r"the label of row 0 is 'place 0' \(str\)"):
        read_dataset(pictures, label="place")
    with pytest.raises(InputError, match="DatasetDict of the splits train, test; give one"):
        read_dataset(datasets.DatasetDict(train=pictures, test=pictures))
    with pytest.raises(InputError, match="is a IterableDataset, whose rows have no numbers"):
        read_dataset(pictures.to_iterable_dataset())
