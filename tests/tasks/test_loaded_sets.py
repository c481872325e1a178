"""Data sets of PyTorch and of the `datasets` library as images and as prompts."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from picture_files import png
from PIL import Image
from torch.utils.data import Dataset, Subset

import assay
from assay.core.errors import FileFormatError, InputError, ShapeError, UnknownNameError
from assay.tasks import EvalTransform, draw_shapes, read_dataset
from assay.zoo import Zoo


DRAWN = draw_shapes("flat", 12)
CLASSES = list(DRAWN.classes or ())
assert DRAWN.labels is not None


@pytest.fixture(scope="module")
def datasets() -> Any:
    reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
    return pytest.importorskip("datasets", reason=reason)


class One(Dataset[Any]):
    """The items given; counts what is asked for."""

    def __init__(self, *items: Any) -> None:
        self.items, self.asked = items, [0] * len(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        self.asked[row] += 1
        return self.items[row]


class Items(One):
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


def test_a_model_is_given_a_data_set_like_any_images() -> None:
    zoo = Zoo.embedded()
    model = zoo.load(zoo.keys[0])
    task = assay.load_images(Items("pil"), model, n=6, seed=1)
    expected = DRAWN.subset(task.ids).with_transform(EvalTransform.for_model(model))
    assert torch.equal(task.clean, expected.clean)
    assert torch.equal(task.labels, expected.labels)
    part = assay.load_images(Subset(Items("pil"), [3, 1]), model)
    assert torch.equal(part.clean[1], DRAWN.subset([1]).for_model(model).clean[0])


def test_items_are_fetched_one_at_a_time_by_any_number_of_threads() -> None:
    class Alone(One):
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
    assert read_dataset(One(BLACK, BLACK)).labels is None
    grey = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    for each in (grey, grey[0], grey[0].numpy(), grey[0] / 255):
        assert (read_dataset(One(each)).held().pixels == grey[0].numpy()[None, ..., None]).all()


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            {"train": One(BLACK)},
            InputError,
            r"is a dict of the splits train; give one, e.g. dataset\['train'",
        ),
        (iter([BLACK]), InputError, "is a list_iterator, whose rows have no numbers; expected a map-style"),
        (One((BLACK, "cat")), InputError, r"the label of row 0 is 'cat' \(str\); expected the number"),
        (One((BLACK, 0), BLACK), InputError, "item 1 of the data set has no label, but others do"),
        (One((torch.randn(3, 8, 8), 0)), FileFormatError, "image has values from -.* expected 0 to 1 or 8"),
        (One((torch.zeros(5, 8, 7), 0)), FileFormatError, r"of shape \(5, 8, 7\); expected .*\[3, H, W\]"),
        (One((BLACK, 0), (Image.new("RGB", (9, 8)), 0)), ShapeError, "1 of One is 8 x 9"),
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


# ---- prompts ------------------------------------------------------------------------------------

ROWS = [
    {
        "prompt": f"Then, {a} and {b} went to the store. {b} gave a ring to",
        "counterfactual": f"Then, {a} and {b} went to the store. {a} gave a ring to",
        "answer": f" {a}",
        "other": f" {b}",
        "topic": "rings",
    }
    for a, b in (("Mary", "John"), ("John", "Mary"), ("James", "Mary"))
]
COLUMNS = {"clean": "prompt", "corrupted": "counterfactual", "answers": "answer", "wrong": "other"}


class Table(One):
    """Rows with names, of PyTorch."""


def check_pairs(task: Any) -> None:
    model = assay.load_model("mini")
    assert task.texts[0] == ROWS[0]["prompt"]
    assert task.corrupted_texts[2] == ROWS[2]["counterfactual"]
    assert model.tokenizer.decode(task.answers[0]) == " Mary"
    assert model.tokenizer.decode(task.wrong[0]) == " John"
    assert task.fields["topic"] == ["rings"] * 3


def test_rows_of_a_data_set_are_pairs() -> None:
    model = assay.load_model("mini")
    task = assay.load_task(Table(*ROWS), model, columns=COLUMNS)
    check_pairs(task)
    drawn = assay.load_task(Table(*ROWS), model, columns=COLUMNS, n=2, seed=1)
    assert drawn.n == 2
    assert drawn.config["seed"] == 1
    assert list(drawn.texts) == [ROWS[number - 1]["prompt"] for number in drawn.ids.tolist()]


@pytest.mark.parametrize(
    ("rows", "columns", "error", "message"),
    [
        (ROWS, {"clean": "prompts"}, UnknownNameError, "Table 'prompts'; did you mean 'prompt'"),
        ([{"text": "a", "label": 1}], None, FileFormatError,
         "Table, row 1: no 'clean' and no 'corrupted' .* columns={'clean': 'COLUMN'"),
        ([("a", "b")], None, FileFormatError, "Table, row 1: got a tuple; expected named columns"),
        ([{**ROWS[0], "answer": 3}], COLUMNS, FileFormatError, "data set Table, row 1: 'answers' is 3"),
    ],
)  # fmt: skip
def test_rows_of_no_known_form_are_refused(
    rows: list[Any], columns: dict[str, str] | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        assay.load_task(Table(*rows), assay.load_model("mini"), columns=columns)


def test_columns_of_files_have_names_too(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    check_pairs(assay.load_task(file, assay.load_model("mini"), columns=COLUMNS))


def test_a_data_set_of_the_library_is_read_as_pairs_and_as_mibs_rows(datasets: Any) -> None:
    model = assay.load_model("mini")
    check_pairs(assay.load_task(datasets.Dataset.from_list(ROWS), model, columns=COLUMNS))
    published = [
        {
            "prompt": row["prompt"],
            "choices": [row["answer"].strip(), row["other"].strip()],
            "answerKey": 0,
            "metadata": {"topic": row["topic"]},
            "s2_io_flip_counterfactual": {
                "prompt": row["counterfactual"],
                "choices": [row["answer"].strip(), row["other"].strip()],
                "answerKey": 1,
            },
        }
        for row in ROWS
    ]
    check_pairs(assay.load_task(datasets.Dataset.from_list(published), model))
