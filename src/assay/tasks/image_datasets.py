"""Images of data sets that are loaded already, of the `datasets` library or of PyTorch."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from assay.core.errors import InputError, ShapeError, check_name
from assay.tasks.image_reading import Pictures
from assay.tasks.images import ImageTask
from assay.tasks.rows import Columnar, MapStyle, check_loaded, draw_rows, name_of


IMAGE, LABEL = ("image", "img"), ("label",)  # columns that are taken where no type tells
MARKED = 64  # images that stand for a data set without names of files


def read_dataset(
    dataset: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    domain: str | None = None,
    n: int | None = None,
    seed: int = 0,
) -> ImageTask:
    """One domain from a data set that is loaded already; images are decoded when they are needed.

    Args:
        dataset: A map-style data set of PyTorch, whose items are `(image, label)` or images (of PIL, or 8-bit
            or 0..1 tensors and arrays, before any normalisation); or a `datasets.Dataset`, of which a format
            or transform that was set does not count.
        image: Column of the images. Default: the only column of images, else `image` or `img`.
        label: Column of the labels. Default: the only column of class labels, else `label`; without one the
            images are unlabelled.
        domain: Name of the domain. Default: what the data set calls itself.
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
    if not isinstance(loaded, Columnar) and (image or label):
        raise InputError(f"a {type(dataset).__name__} has no columns; leave out image and label")
    source: _Columns | _Items
    source = _Columns(loaded, name, image, label) if isinstance(loaded, Columnar) else _Items(loaded, name)
    rows = torch.from_numpy(draw_rows(len(loaded), n, seed=seed))
    return ImageTask(
        source=source,
        rows=rows,
        labels=source.labels(rows.tolist()),
        fields={key: [values[row] for row in rows.tolist()] for key, values in source.fields.items()},
        classes=None if source.classes is None else tuple(source.classes),
        domain=name if domain is None else domain,
        name=name,
        config={"layout": "dataset", "source": name, **split, "n": n, "seed": seed},
    )


class _Items(Pictures):
    """Items `(image, label)` or images, as PyTorch's data sets give them."""

    fields: Mapping[str, Sequence[Any]] = {}

    def __init__(self, dataset: MapStyle, name: str) -> None:
        super().__init__()
        self._dataset, self._name = dataset, name
        named = getattr(dataset, "classes", None)
        whole = isinstance(named, list | tuple) and all(isinstance(each, str) for each in named)
        self.classes: Sequence[str] | None = named if whole else None

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, row: int) -> str:
        return f"image {row} of {self._name}"

    def content(self, row: int) -> Any:
        return _picture(self._item(row)[0], row)

    def _item(self, row: int) -> tuple[Any, int | None]:
        item = self._dataset[row]
        if not isinstance(item, tuple | list):
            return item, None
        if len(item) < 2:
            raise InputError(f"item {row} of the data set has {len(item)} entries; expected (image, label)")
        return item[0], _whole(item[1], row)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._name} {len(self)} {list(rows)}"
        # Neither class nor length tells two data sets apart, so some images speak for all.
        for row in list(rows)[:: max(1, len(rows) // MARKED)]:
            pixels = np.asarray(self.content(row))
            yield f"{row} {pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}"

    def labels(self, rows: Sequence[int]) -> Int[Tensor, " n"] | None:
        """The labels of some rows, for which their items are read."""
        labels = [self._item(row)[1] for row in rows]
        if all(label is None for label in labels):
            return None
        if None in labels:
            raise InputError(f"item {rows[labels.index(None)]} of the data set has no label, but others do")
        return torch.tensor(labels)


class _Columns(Pictures):
    """The columns of a `datasets.Dataset`, whose images are decoded here."""

    def __init__(self, dataset: Columnar, name: str, image: str | None, label: str | None) -> None:
        super().__init__()
        types = {name: type(kind).__name__ for name, kind in dataset.features.items()}
        picture = _chosen(image, "Image", IMAGE, "image", types)
        if picture is None:
            raise InputError(
                f"the data set has the columns {', '.join(types)}, none of images; name it with "
                "image='COLUMN'"
            )
        labelled = _chosen(label, "ClassLabel", LABEL, "label", types)
        plain = dataset.with_format(None)
        self._pictures = plain.select_columns([picture])
        if types[picture] == "Image":  # its files are decoded as files of a folder are
            undecoded = type(dataset.features[picture])(decode=False)
            self._pictures = self._pictures.cast_column(picture, undecoded)
        self._name, self._picture = name, picture
        self._labels: Sequence[Any] | None = None if labelled is None else plain[labelled]
        self._print = str(getattr(dataset, "_fingerprint", ""))
        kind = None if labelled is None else dataset.features[labelled]
        self.classes: Sequence[str] | None = getattr(kind, "names", None)
        values = [name for name, kind in types.items() if kind in ("Value", "ClassLabel")]
        self.fields = {name: plain[name] for name in values if name not in (picture, labelled)}

    def __len__(self) -> int:
        return len(self._pictures)

    def name(self, row: int) -> str:
        return f"image {row} of {self._name}"

    def content(self, row: int) -> Any:
        cell = self._pictures[row][self._picture]
        if isinstance(cell, Mapping):
            content, path = cell.get("bytes"), cell.get("path")
            if content is None and path is None:
                raise InputError(f"row {row} of the data set has no image; drop such rows with filter")
            return Path(str(path)) if content is None else content
        return cell if isinstance(cell, bytes) else _picture(np.asarray(cell), row)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._name} {self._print} {self._picture} {list(rows)}"

    def labels(self, rows: Sequence[int]) -> Int[Tensor, " n"] | None:
        """The labels of some rows."""
        if self._labels is None:
            return None
        return torch.tensor([_whole(self._labels[row], row) for row in rows])


def _chosen(
    name: str | None, kind: str, usual: Sequence[str], option: str, types: Mapping[str, str]
) -> str | None:
    """The column that is named, that has the type, or that has a usual name."""
    if name is not None:
        check_name("column of the data set", name, types)
        return name
    typed = [each for each in types if types[each] == kind]
    if len(typed) > 1:
        raise InputError(
            f"the data set has the columns {', '.join(typed)} of type {kind}; choose one with "
            f"{option}={typed[0]!r}"
        )
    return next(iter([*typed, *(each for each in usual if each in types)]), None)


def _whole(value: Any, row: int) -> int:
    """A label."""
    number = value.item() if isinstance(value, Tensor | np.generic) and value.ndim == 0 else value
    if type(number) is not int:
        raise InputError(
            f"the label of row {row} is {str(value)[:80]!r} ({type(value).__name__}); expected the number of "
            "a class, e.g. by dataset.class_encode_column('label')"
        )
    return number


def _picture(value: Any, row: int) -> Any:
    """An image of PIL, or the 8-bit pixels `[H, W, 3]` of a tensor or array."""
    if isinstance(value, Image.Image):
        return value
    if not isinstance(value, Tensor | np.ndarray):
        raise InputError(
            f"the image of row {row} is a {type(value).__name__}; expected an image of PIL, a tensor "
            "[3, H, W] or an array [H, W, 3]"
        )
    first = isinstance(value, Tensor)  # channels come first in tensors, last in arrays
    pixels = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    pixels = pixels[None] if pixels.ndim == 2 and first else pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim == 3 and pixels.shape[0 if first else 2] not in (1, 3):
        first = not first
    if pixels.ndim != 3 or pixels.shape[0 if first else 2] not in (1, 3):
        raise ShapeError(
            f"the image of row {row} has shape {tuple(value.shape)}; expected [3, H, W] or [H, W, 3]"
        )
    pixels = np.moveaxis(pixels, 0, 2) if first else pixels
    if pixels.dtype.kind == "f":
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= 0 and high <= 1):
            raise InputError(
                f"the image of row {row} has values from {low:.3g} to {high:.3g}; expected 0 to 1 or 8 bits. "
                "Leave out the normalisation of the data set: that of the model is applied"
            )
        pixels = (pixels * 255).round().astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ShapeError(f"the image of row {row} is {pixels.dtype}; expected uint8, or floats from 0 to 1")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
