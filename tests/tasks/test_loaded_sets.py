"""Data sets of PyTorch and of the `datasets` library as images and as prompts."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset

import assay
from assay.core.errors import FileFormatError, InputError, ShapeError, UnknownNameError
from assay.tasks import (
    EvalTransform,
    draw_shapes,
    read_dataset,
)
from assay.zoo import Zoo


DRAWN = draw_shapes("flat", 12)
CLASSES = list(DRAWN.classes or ())
assert DRAWN.labels is not None


@pytest.fixture(scope="module")
def datasets() -> Any:
    reason = "NOT TESTED: data sets of the library `datasets`, which is not installed"
    return pytest.importorskip("datasets", reason=reason)


class Items(Dataset[Any]):
    """Images and labels as torchvision's data sets give them; counts what is asked for."""

    classes = CLASSES

    def __init__(self, form: str) -> None:
        self.form, self.asked = form, [0] * DRAWN.n

    def __len__(self) -> int:
        return DRAWN.n

    def __getitem__(self, row: int) -> Any:
        self.asked[row] += 1
        assert DRAWN.labels is not None
        pixels, label = DRAWN.pixels[row], int(DRAWN.labels[row])
        channels_first = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        return {
            "pil": lambda: (Image.fromarray(pixels), label),
            "bytes": lambda: (channels_first, torch.tensor(label)),
            "floats": lambda: (channels_first / 255, label),
            "array": lambda: [pixels, np.int64(label), {"more": 1}],
        }[self.form]()


@pytest.mark.parametrize("form", ["pil", "bytes", "floats", "array"])
def test_items_of_a_torch_data_set_are_images_and_labels(form: str) -> None:
    items = Items(form)
    images = read_dataset(items)
    assert items.asked == [1] * DRAWN.n  # for the labels
    assert (images.held().pixels == DRAWN.pixels).all()
    assert (images.labels == DRAWN.labels).all()
    assert images.classes == DRAWN.classes
    assert images.ids.tolist() == list(range(DRAWN.n))
    assert images.domain == images.name == "Items"


def test_a_sample_is_drawn_before_anything_is_decoded() -> None:
    items = Items("pil")
    images = read_dataset(items, n=5, seed=3)
    other = DRAWN.sample(5, seed=3)
    assert sum(items.asked) == 5
    assert (images.held().pixels == other.pixels).all()
    assert images.ids.tolist() == other.ids.tolist()


def test_a_model_is_given_a_data_set_like_any_images() -> None:
    zoo = Zoo.embedded()
    model = zoo.load(zoo.keys[0])
    task = assay.load_images(Items("pil"), model, n=6, seed=1)
    rows = task.ids.tolist()
    expected = DRAWN.subset(rows).with_transform(EvalTransform.for_model(model))
    assert torch.equal(task.clean, expected.clean)
    assert task.labels is not None
    assert expected.labels is not None
    assert torch.equal(task.labels, expected.labels)
    part = assay.load_images(Subset(Items("pil"), [3, 1]), model)
    assert torch.equal(
        part.clean[1], DRAWN.subset([1]).with_transform(EvalTransform.for_model(model)).clean[0]
    )


def test_labels_follow_the_names_of_the_classes() -> None:
    turned = CLASSES[::-1]
    images = read_dataset(Items("pil")).with_classes(turned)
    assert images.classes == tuple(turned)
    assert images.labels is not None
    assert DRAWN.labels is not None
    assert [turned[label] for label in images.labels] == [CLASSES[label] for label in DRAWN.labels]


class One(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


BLACK = Image.new("RGB", (8, 8))


def test_images_without_labels_are_unlabelled() -> None:
    assert read_dataset(One(BLACK, BLACK)).labels is None
    assert read_dataset(One(torch.zeros(8, 8))).held().pixels.shape == (1, 8, 8, 3)
    grey = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    assert (read_dataset(One(grey)).held().pixels == grey[0].numpy()[None, ..., None]).all()


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (
            {"train": One(BLACK)},
            InputError,
            r"is a dict of the splits train; give one, e.g. dataset\['train'\]",
        ),
        (
            iter([BLACK]),
            InputError,
            "is a list_iterator, whose rows have no numbers; expected a map-style data",
        ),
        (One(), InputError, r"the data set \(One\) has no rows"),
        (One((BLACK, "cat")), InputError, r"the label of row 0 is 'cat' \(str\); expected the number"),
        (One((BLACK, 0), BLACK), InputError, "item 1 of the data set has no label, but others do"),
        (One(("cat.png", 0)), FileFormatError, "the image 0 of One cannot be decoded .*cat.png"),
        (
            One((torch.randn(3, 8, 8), 0)),
            FileFormatError,
            "image 0 of One cannot be decoded .the image has values from -.* expected 0 to 1 or 8 bits.",
        ),
        (One((torch.full((3, 8, 8), torch.nan), 0)), FileFormatError, "values from nan to nan"),
        (One((torch.zeros(5, 8, 7), 0)), FileFormatError, r"of shape \(5, 8, 7\); expected .*\[3, H, W\]"),
        (One((torch.zeros(3, 8, 8, dtype=torch.long), 0)), FileFormatError, "is int64 .* expected uint8"),
        (One((BLACK, 0), (Image.new("RGB", (9, 8)), 0)), ShapeError, "1 of One is 8 x 9"),
        (One((BLACK, -1)), InputError, "labels holds -1"),
    ],
)
def test_other_items_are_refused(dataset: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_dataset(dataset).held()


# ---- the library `datasets` ---------------------------------------------------------------------


def encoded(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture
def pictures(datasets: Any) -> Any:
    """A set as the hub has it: `img`, class labels, a fact, a text."""
    features = datasets.Features(
        {"img": datasets.Image(), "fine": datasets.ClassLabel(names=CLASSES),
         "place": datasets.Value("string"), "number": datasets.Value("int64"),
         "box": datasets.List(datasets.Value("int64"))}
    )  # fmt: skip
    assert DRAWN.labels is not None
    columns = {
        "img": [{"bytes": encoded(each), "path": None} for each in DRAWN.pixels],
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
    assert DRAWN.labels is not None
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


def test_bad_images_of_a_data_set_are_named_or_skipped(datasets: Any) -> None:
    cells = [{"bytes": b"no image", "path": None}, {"bytes": encoded(DRAWN.pixels[0]), "path": None}]
    bad = datasets.Dataset.from_dict(
        {"image": cells}, features=datasets.Features({"image": datasets.Image()})
    )
    with pytest.raises(FileFormatError, match="the image 0 of .* cannot be decoded"):
        read_dataset(bad).held()
    images = read_dataset(bad).held(skip_bad=True)
    assert images.ids.tolist() == [1]
    assert len(images.skipped) == 1


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


def test_tensors_alone_are_a_data_set() -> None:
    images = read_dataset(TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 1, 0])))
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 1, 0]
