"""Data sets that are loaded already, of the `datasets` library or of PyTorch: images, and rows of prompts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from assay.core.errors import InputError, ShapeError, unknown_name
from assay.tasks.image_files import DEFAULTS, RawImage, ReadOptions, decoded_set
from assay.tasks.image_set import ImageSet
from assay.tasks.rows import Rows


_ROW = "\N{NUMBER SIGN}row"  # a field that no column is called
IMAGE, LABEL = ("image", "img"), ("label",)  # columns that are taken where no type tells
_FORMS = (
    "clean, corrupted and answers (and wrong); MIB's prompt, its answer and counterfactuals; or questions "
    "with their choices"
)
_FIRST = ({"clean", "corrupted", "answers"}, {"prompt"}, {"question"})  # what the forms have at least


@runtime_checkable
class MapStyle(Protocol):
    """Rows that have numbers."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, row: Any) -> Any:
        """One of them."""


@runtime_checkable
class Columnar(MapStyle, Protocol):
    """A `datasets.Dataset`, as far as it is read here."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""

    @property
    def features(self) -> Mapping[str, Any]:
        """Type of each column."""

    def with_format(self, kind: None) -> Any:
        """The same rows as plain Python values."""


def check_loaded(dataset: object) -> MapStyle:
    """The data set, if its rows have numbers.

    Raises:
        InputError: For several splits, a stream, anything else, and for no rows at all.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        splits = [str(each) for each in dataset]
        raise InputError(
            f"the data set is a {kind} of the splits {', '.join(splits)}; give one, e.g. "
            f"dataset[{next(iter(splits), '')!r}]"
        )
    if not isinstance(dataset, MapStyle):
        raise InputError(
            f"the data set is a {kind}, whose rows have no numbers; expected a map-style data set (of "
            "PyTorch, or datasets.Dataset). Take a part of a stream: "
            "datasets.Dataset.from_list(list(stream.take(1000)))"
        )
    if len(dataset) == 0:
        raise InputError(f"the data set ({kind}) has no rows; give one that has some")
    return dataset


def name_of(dataset: object) -> tuple[str, dict[str, str]]:
    """What a data set is called, and its split, where it names one."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    split = getattr(dataset, "split", None)
    return str(name or type(dataset).__name__), {} if split is None else {"split": str(split)}


# ----------------------------------------------------------------------------------------------------- images


def read_dataset(
    dataset: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    ids: str | Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    domain: str | None = None,
    options: ReadOptions = DEFAULTS,
) -> ImageSet:
    """One domain from a data set that is loaded already.

    Rows are drawn before any image is decoded, and each image is decoded once.

    Args:
        dataset: A map-style data set of PyTorch, whose items are `(image, label)` or images (of PIL, or 8-bit
            or 0..1 tensors and arrays, before any normalisation); or a `datasets.Dataset`, of which a format
            or transform that was set does not count.
        image: Column of the images. Default: the only column of images, else `image` or `img`.
        label: Column of the labels. Default: the only column of class labels, else `label`; without one the
            images are unlabelled.
        ids: Number of each row, or the column that holds it. Default: 0, 1, ...
        classes: Names of the classes, label 0 first. Where the data have names, labels follow them into this
            order. Default: the names of the data.
        domain: Name of the domain. Default: what the data set calls itself.
        options: Transform, sample, bad images.

    Returns:
        The images; every other column of plain values is a field.

    Raises:
        InputError: If the data set has no rows or no numbers for them, a column cannot be told, or labels or
            values of images are not as expected.
        UnknownNameError: If there is no such column.
        FileFormatError: If an image cannot be decoded and is not skipped.

    Example:
        >>> drawn = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 1, 0]))
        >>> read_dataset(drawn).labels.tolist()
        [0, 1, 1, 0]
    """
    found = check_loaded(dataset)
    name, split = name_of(dataset)
    if isinstance(found, Columnar):
        read: _Columns | _Items = _Columns(found, image, label)
    elif image or label:
        raise InputError(f"a {type(dataset).__name__} has no columns; leave out image and label")
    else:
        read = _Items(found)
    images = decoded_set(
        [RawImage(f"image {row} of {name}", read.picture(row)) for row in range(len(found))],
        labels=None,
        ids=_numbers(ids, found),
        fields={**read.fields, _ROW: range(len(found))},
        classes=None,
        domain=name if domain is None else domain,
        config={"layout": "dataset", "source": name, **split},
        options=options,
    )
    fields = dict(images.fields)
    labels = read.labels(fields.pop(_ROW))
    names = None if read.names is None else tuple(read.names)
    if classes is not None:
        labels, names = _in_order(labels, names, tuple(classes)), tuple(classes)
    held = None if labels is None else np.array(labels, dtype=np.int64)
    return replace(images, fields=fields, labels=held, classes=names)


def _in_order(
    labels: list[int] | None, names: tuple[str, ...] | None, classes: tuple[str, ...]
) -> list[int] | None:
    """Labels of a data set's own classes as those of a model."""
    if labels is None or names is None or names == classes:
        return labels
    if strange := sorted({names[label] for label in labels if 0 <= label < len(names)} - set(classes)):
        raise InputError(
            f"the data set has images of the classes {', '.join(strange[:5])}, which are none of "
            f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}; rename its classes, or leave "
            "their images out"
        )
    return [classes.index(names[label]) if 0 <= label < len(names) else label for label in labels]


def _numbers(ids: str | Sequence[int] | None, dataset: MapStyle) -> Int64[np.ndarray, " n"] | None:
    """The number of each row."""
    if ids is None:
        return None
    if isinstance(ids, str):
        if not isinstance(dataset, Columnar):
            raise InputError(
                f"ids is {ids!r}, but a {type(dataset).__name__} has no columns; give the numbers"
            )
        ids = list(dataset.with_format(None)[_column(dataset, ids)])
    found = np.asarray(ids)
    if found.shape != (len(dataset),) or found.dtype.kind not in "iu":
        raise InputError(
            f"ids are {found.dtype} of shape {found.shape}; expected {len(dataset)} whole numbers"
        )
    return found.astype(np.int64)


class _Items:
    """Items `(image, label)` or images, as PyTorch's data sets give them; each is asked for once."""

    def __init__(self, dataset: MapStyle) -> None:
        self._dataset = dataset
        self._found: dict[int, int] = {}
        named = getattr(dataset, "classes", None)
        whole = isinstance(named, list | tuple) and all(isinstance(each, str) for each in named)
        self.names: Sequence[str] | None = named if whole else None
        self.fields: Mapping[str, Sequence[Any]] = {}

    def picture(self, row: int) -> Callable[[], Any]:
        return lambda: self._picture(row)

    def _picture(self, row: int) -> Any:
        item = self._dataset[row]
        if isinstance(item, tuple | list):
            if len(item) < 2:
                raise InputError(
                    f"item {row} of the data set has {len(item)} entries; expected (image, label)"
                )
            self._found[row] = _whole(item[1], row)
            item = item[0]
        return _eight_bits(item, row)

    def labels(self, rows: Sequence[int]) -> list[int] | None:
        """The labels of rows whose images were asked for."""
        if not self._found:
            return None
        if missing := [row for row in rows if row not in self._found]:
            raise InputError(f"item {missing[0]} of the data set has no label, but others do")
        return [self._found[row] for row in rows]


class _Columns:
    """The columns of a `datasets.Dataset`, whose images are decoded here."""

    def __init__(self, dataset: Columnar, image: str | None, label: str | None) -> None:
        types = {name: type(kind).__name__ for name, kind in dataset.features.items()}
        picture = _chosen(dataset, image, "Image", IMAGE, "image", types)
        if picture is None:
            raise InputError(
                f"the data set has the columns {', '.join(types)}, none of images; name it with "
                "image='COLUMN'"
            )
        labelled = _chosen(dataset, label, "ClassLabel", LABEL, "label", types)
        plain = dataset.with_format(None)
        self._pictures = plain.select_columns([picture])
        if types[picture] == "Image":  # its files are decoded as files of a folder are
            undecoded = type(dataset.features[picture])(decode=False)
            self._pictures = self._pictures.cast_column(picture, undecoded)
        self._picture, self._label = picture, labelled
        self._labels: Sequence[Any] = () if labelled is None else plain[labelled]
        kind = None if labelled is None else dataset.features[labelled]
        self.names: Sequence[str] | None = getattr(kind, "names", None)
        values = [name for name, kind in types.items() if kind in ("Value", "ClassLabel")]
        self.fields = {name: plain[name] for name in values if name not in (picture, labelled)}

    def picture(self, row: int) -> Callable[[], Any]:
        return lambda: self._content(row)

    def _content(self, row: int) -> Any:
        cell = self._pictures[row][self._picture]
        if isinstance(cell, Mapping):
            content, path = cell.get("bytes"), cell.get("path")
            if content is None and path is None:
                raise InputError(f"row {row} of the data set has no image; drop such rows with filter")
            return Path(str(path)) if content is None else content
        return cell if isinstance(cell, bytes) else _eight_bits(np.asarray(cell), row)

    def labels(self, rows: Sequence[int]) -> list[int] | None:
        """The labels of rows."""
        return None if self._label is None else [_whole(self._labels[row], row) for row in rows]


def _column(dataset: Columnar, name: str) -> str:
    if name not in dataset.column_names:
        raise unknown_name("column of the data set", name, dataset.column_names)
    return name


def _chosen(
    dataset: Columnar,
    name: str | None,
    kind: str,
    usual: Sequence[str],
    option: str,
    types: Mapping[str, str],
) -> str | None:
    """The column that is named, that has the type, or that has a usual name."""
    if name is not None:
        return _column(dataset, name)
    typed = [each for each in types if types[each] == kind]
    if len(typed) > 1:
        raise InputError(
            f"the data set has the columns {', '.join(typed)} of type {kind}; choose one with "
            f"{option}={typed[0]!r}"
        )
    return next(iter([*typed, *(each for each in usual if each in types)]), None)


def _whole(value: Any, row: int) -> int:
    """A label."""
    found = value.item() if isinstance(value, Tensor | np.generic) and value.ndim == 0 else value
    if type(found) is not int:
        raise InputError(
            f"the label of row {row} is {str(value)[:80]!r} ({type(value).__name__}); expected the number of "
            "a class, e.g. by dataset.class_encode_column('label')"
        )
    return found


def _eight_bits(value: Any, row: int) -> Any:
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


# ---------------------------------------------------------------------------------------------------- prompts


class _Records(Mapping[int, str | dict[str, Any]]):
    """Rows by their number, from 1, read when they are asked for."""

    def __init__(self, dataset: MapStyle, columns: Mapping[str, str]) -> None:
        plain = dataset.with_format(None) if isinstance(dataset, Columnar) else dataset
        self._dataset: Any = plain
        self._columns = {own: name for name, own in columns.items()}

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._dataset) + 1))

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = self._dataset[number - 1]
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} of the data set is a {type(row).__name__}; expected named columns"
            )
        record = {self._columns.get(str(name), str(name)): value for name, value in row.items()}
        for name in {"answers", "wrong"} & set(record):
            if isinstance(record[name], str):
                record[name] = [record[name]]
        return record


def loaded_rows(dataset: Any, *, columns: Mapping[str, str] | None = None, expected: str) -> Rows:
    """The rows of a data set that is loaded already, as those of a file.

    Args:
        dataset: A `datasets.Dataset`, or a map-style data set whose items are mappings.
        columns: What a row should be called -> the data set's column. Text in the columns of answers is one
            answer.
        expected: What a row should be, for messages.

    Raises:
        InputError: If the data set has no rows or no numbers for them, or columns of no known form.
        UnknownNameError: If there is no such column.
    """
    found, columns = check_loaded(dataset), dict(columns or {})
    first = found[0]
    if not isinstance(first, Mapping):
        raise InputError(
            f"the items of the data set are {type(first).__name__}; expected rows with the columns {_FORMS}"
        )
    for name in columns.values():
        if name not in first:
            raise unknown_name("column of the data set", name, [str(each) for each in first])
    named = _Records(found, columns)
    if not any(each <= set(named[1]) for each in _FIRST):
        raise InputError(
            f"the data set has the columns {', '.join(map(str, first))}; expected {_FORMS}. Say which is "
            "which, e.g. columns={'clean': 'COLUMN', 'corrupted': 'COLUMN', 'answers': 'COLUMN'}"
        )
    return Rows(f"data set {name_of(dataset)[0]}", "row", named, expected)
