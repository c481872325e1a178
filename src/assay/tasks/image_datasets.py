"""Images of data sets that are loaded already, of the `datasets` library or of PyTorch."""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from assay.core.errors import InputError, check_name
from assay.tasks.files import check_loaded, name_of
from assay.tasks.image_reading import Pictures
from assay.tasks.image_transform import read_rgb
from assay.tasks.images import ImageTask
from assay.tasks.task import draw_rows


MARKED = 64  # images that stand for a data set without names of files


def read_dataset(
    dataset: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    n: int | None = None,
    seed: int = 0,
) -> ImageTask:
    """One domain from a data set that is loaded already; images are decoded when they are needed.

    Args:
        dataset: A map-style data set of PyTorch, whose items are `(image, label)` or images (of PIL, or 8-bit
            or 0..1 tensors `[C, H, W]` and arrays `[H, W, C]`, before any normalisation); or a
            `datasets.Dataset`, of which a format or transform that was set does not count.
        image: Column of the images. Default: the only column of the type `Image`.
        label: Column of the labels. Default: the only column of the type `ClassLabel`; without one the images
            are unlabelled.
        n: A random sample of this many rows; None: all.
        seed: Of the sample.

    Returns:
        The images; every other column of plain values is a field.

    Raises:
        InputError: If the data set has no rows, a column cannot be told, or labels are not as expected.
        UnknownNameError: If there is no such column.

    Notes:
        The items of a data set of PyTorch give their labels with their images, so the items of the sample are
        read once for them.

    Example:
        >>> drawn = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 1, 0]))
        >>> read_dataset(drawn).labels.tolist()
        [0, 1, 1, 0]
    """
    loaded = check_loaded(dataset)
    name, split = name_of(dataset)
    source: _Columns | _Items
    source = _Columns(loaded, name, image, label) if hasattr(loaded, "column_names") else _Items(loaded, name)
    rows = draw_rows(len(loaded), n, seed=seed).tolist()
    labels = [_whole(source.label(row), row) for row in rows]
    missing = [row for row, number in zip(rows, labels, strict=True) if number is None]
    if missing and len(missing) < len(rows):
        raise InputError(f"item {missing[0]} of the data set has no label, but others do")
    return ImageTask(
        source=source,
        rows=torch.tensor(rows),
        labels=None if missing else torch.tensor(labels),
        fields={key: [values[row] for row in rows] for key, values in source.fields.items()},
        classes=None if source.classes is None else tuple(source.classes),
        domain=name,
        name=name,
        config={"layout": "dataset", "source": name, **split, "n": n, "seed": seed},
    )


class _Items(Pictures):
    """Items `(image, label)` or images, as PyTorch's data sets give them."""

    fields: Mapping[str, Sequence[Any]] = {}

    def __init__(self, dataset: Any, name: str) -> None:
        super().__init__(len(dataset), name)
        self._dataset, self._lock = dataset, threading.Lock()
        named = getattr(dataset, "classes", None)
        self.classes: Sequence[str] | None = named if isinstance(named, list | tuple) else None

    def content(self, row: int) -> Any:
        with self._lock:  # a data set may seek in one file, or keep other state
            item = self._dataset[row]
        return item[0] if isinstance(item, tuple | list) else item

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._title} {len(self)} {list(rows)}"
        # Neither class nor length tells two data sets apart, so some images speak for all.
        for row in list(rows)[:: max(1, len(rows) // MARKED)]:
            pixels = np.asarray(read_rgb(self.content(row))[0])
            yield f"{row} {pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}"

    def label(self, row: int) -> Any:
        """The label of a row, for which its item is read; None if it has none."""
        item = self._dataset[row]
        return item[1] if isinstance(item, tuple | list) and len(item) > 1 else None


class _Columns(Pictures):
    """The columns of a `datasets.Dataset`, whose images are decoded here."""

    def __init__(self, dataset: Any, name: str, image: str | None, label: str | None) -> None:
        super().__init__(len(dataset), name)
        types = {column: type(kind).__name__ for column, kind in dataset.features.items()}
        picture = _column(image, "Image", "image", types)
        labelled = _column(label, "ClassLabel", "label", types)
        if picture is None:
            text = f"the data set has the columns {', '.join(types)}, none of images"
            raise InputError(f"{text}; name it with image='COLUMN'")
        plain = dataset.with_format(None)
        self._pictures = plain.select_columns([picture])
        if types[picture] == "Image":  # its files are decoded as files of a folder are
            undecoded = type(dataset.features[picture])(decode=False)
            self._pictures = self._pictures.cast_column(picture, undecoded)
        self._picture = picture
        self._labels: Sequence[Any] | None = None if labelled is None else plain[labelled]
        self._print = str(getattr(dataset, "_fingerprint", ""))
        self.classes: Sequence[str] | None = getattr(dataset.features.get(labelled), "names", None)
        values = [column for column, kind in types.items() if kind in ("Value", "ClassLabel")]
        self.fields = {column: plain[column] for column in values if column not in (picture, labelled)}

    def content(self, row: int) -> Any:
        cell = self._pictures[row][self._picture]
        if not isinstance(cell, Mapping):
            return cell if isinstance(cell, bytes) else np.asarray(cell)
        if cell.get("bytes") is None and cell.get("path") is None:
            raise InputError(f"row {row} of the data set has no image; drop such rows with filter")
        return Path(str(cell["path"])) if cell.get("bytes") is None else cell["bytes"]

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._title} {self._print} {self._picture} {list(rows)}"

    def label(self, row: int) -> Any:
        """The label of a row; None if there are none."""
        return None if self._labels is None else self._labels[row]


def _column(name: str | None, kind: str, option: str, types: Mapping[str, str]) -> str | None:
    """The column that is named, or the only one of the type."""
    if name is not None:
        check_name("column of the data set", name, types)
        return name
    typed = [each for each in types if types[each] == kind]
    if len(typed) > 1:
        text = f"the data set has the columns {', '.join(typed)} of type {kind}"
        raise InputError(f"{text}; choose one with {option}={typed[0]!r}")
    return typed[0] if typed else None


def _whole(value: Any, row: int) -> int | None:
    number = value.item() if isinstance(value, Tensor | np.generic) and value.ndim == 0 else value
    if not (number is None or type(number) is int):
        text = (
            f"the label of row {row} is {str(value)[:80]!r} ({type(value).__name__}); expected the number of"
        )
        raise InputError(f"{text} a class, e.g. by dataset.class_encode_column('label')")
    return None if number is None else int(number)
