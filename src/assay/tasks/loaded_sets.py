"""Data sets that are loaded already, of the `datasets` library or of PyTorch: images, and rows of prompts."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from PIL import Image
from torch import Tensor

from assay.core.errors import InputError, ShapeError, check_name, unknown_name
from assay.tasks.image_decoding import LabelledPicture, PerProcess, Pictures
from assay.tasks.image_listing import DEFAULTS, ImageListing, ReadOptions
from assay.tasks.image_set import ImageSet
from assay.tasks.rows import Rows


IMAGE, LABEL = ("image", "img"), ("label",)  # columns that are taken where no type tells
MARKED = 64  # images that stand for a data set without names of files
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
    """`list_dataset`, read: rows are drawn before any image is decoded, and each image is decoded once.

    Example:
        >>> drawn = torch.utils.data.TensorDataset(torch.zeros(4, 3, 8, 8), torch.tensor([0, 1, 1, 0]))
        >>> read_dataset(drawn).labels.tolist()
        [0, 1, 1, 0]
    """
    return list_dataset(dataset, image=image, label=label, ids=ids, classes=classes, domain=domain).read(
        options
    )


def list_dataset(
    dataset: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    ids: str | Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    domain: str | None = None,
) -> ImageListing:
    """One domain from a data set that is loaded already.

    Args:
        dataset: A map-style data set of PyTorch, whose items are `(image, label)` or images (of PIL, or 8-bit
            or 0..1 tensors and arrays, before any normalisation); or a `datasets.Dataset`, of which a format
            or transform that was set does not count; or a stream of either library, which each pass reads
            from its start.
        image: Column of the images. Default: the only column of images, else `image` or `img`.
        label: Column of the labels. Default: the only column of class labels, else `label`; without one the
            images are unlabelled.
        ids: Number of each row, or the column that holds it. Default: 0, 1, ...
        classes: Names of the classes, label 0 first. Where the data have names, labels follow them into this
            order. Default: the names of the data.
        domain: Name of the domain. Default: what the data set calls itself.

    Returns:
        The listing; every other column of plain values is a field.

    Raises:
        InputError: If the data set has no rows, a column cannot be told, or labels are not as expected.
        UnknownNameError: If there is no such column.

    Notes:
        The items of a data set of PyTorch are asked for their labels with their images; a stream of such
        images therefore reads all items once before it starts. A stream of either library is gone through
        once to count its rows.
    """
    found = check_loaded(_Counted(dataset) if _is_stream(dataset) else dataset)
    name, split = name_of(dataset)
    if not isinstance(found, Columnar | _Counted) and (image or label):
        raise InputError(f"a {type(dataset).__name__} has no columns; leave out image and label")
    wanted = None if classes is None else tuple(classes)
    read: _Columns | _Items
    if isinstance(found, Columnar):
        read = _Columns(found, name, image, label, wanted)
    else:
        read = _Items(found, name, wanted, columns=(image, label))
    return ImageListing(
        pictures=read,
        labels=read.labels(),
        ids=_numbers(ids, found),
        fields=read.fields,
        classes=wanted or (None if read.names is None else tuple(read.names)),
        domain=name if domain is None else domain,
        config={"layout": "dataset", "source": name, **split},
    )


def _in_order(label: int | None, names: Sequence[str] | None, classes: tuple[str, ...] | None) -> int | None:
    """A label of a data set's own classes as one of a model."""
    if label is None or names is None or classes is None or not 0 <= label < len(names):
        return label
    if names[label] not in classes:
        raise InputError(
            f"the data set has images of the class {names[label]}, which is none of "
            f"{', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}; rename its classes, or leave "
            "their images out"
        )
    return classes.index(names[label])


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


def _is_stream(dataset: Any) -> bool:
    """Whether rows have no numbers, but can be gone through again and again."""
    return (
        not isinstance(dataset, MapStyle | Mapping)
        and hasattr(dataset, "__iter__")
        and not hasattr(dataset, "__next__")  # which an iterator has: it can be read once
    )


class _Counted:
    """A stream of rows by their numbers, counted once; each process reads it from front to back."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._n = sum(1 for _ in dataset)
        self._open = PerProcess(self._opened)

    def _opened(self) -> "_Front":
        return _Front(self._dataset, self._n)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: int) -> Any:
        return self._open().item(row)


class _Front:
    """The rows of a stream, the next of which can be had at once."""

    def __init__(self, dataset: Any, n: int) -> None:
        self._dataset, self._n = dataset, n
        self._rest, self._next = iter(dataset), 0

    def close(self) -> None:
        """Let go of the place in the stream."""
        self._rest = iter(())

    def item(self, row: int) -> Any:
        if row < self._next:
            self._rest, self._next = iter(self._dataset), 0
        for item in self._rest:
            self._next += 1
            if self._next > row:
                return item
        raise InputError(
            f"the stream ended after {self._next} rows, but it had {self._n} when they were counted; give "
            "one that does not change between passes"
        )


class _Items(Pictures):
    """Items `(image, label)` or images, as PyTorch's data sets give them."""

    labelled = True  # or not: an item tells

    def __init__(
        self,
        dataset: MapStyle,
        name: str,
        classes: tuple[str, ...] | None,
        columns: tuple[str | None, str | None],
    ) -> None:
        self._dataset, self._name, self._classes, self._columns = dataset, name, classes, columns
        if isinstance(dataset, _Counted):
            self.most_workers = 1  # streams deal their rows to workers themselves, in an order of their own
        named = getattr(dataset, "classes", None)
        whole = isinstance(named, list | tuple) and all(isinstance(each, str) for each in named)
        self.names: Sequence[str] | None = named if whole else None
        self.fields: Mapping[str, Sequence[Any]] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def name(self, row: int) -> str:
        return f"image {row} of {self._name}"

    def content(self, row: int) -> LabelledPicture:
        item, label = self._dataset[row], None
        if isinstance(item, Mapping):
            image, *more = self._named(item)
            item = (image, *more) if more else image
        if isinstance(item, tuple | list):
            if len(item) < 2:
                raise InputError(
                    f"item {row} of the data set has {len(item)} entries; expected (image, label)"
                )
            item, label = item[0], _in_order(_whole(item[1], row), self.names, self._classes)
        return LabelledPicture(_eight_bits(item, row), label)

    def _named(self, record: Mapping[str, Any]) -> tuple[Any, ...]:
        """Image and label, if there is one, of a row of a stream of named columns."""
        found = []
        for asked, usual in zip(self._columns, (IMAGE, LABEL), strict=True):
            name = next((name for name in ((asked,) if asked else usual) if name in record), None)
            if name is None and (asked or usual is IMAGE):
                raise unknown_name("column of the data set", asked or IMAGE[0], map(str, record))
            found += [] if name is None else [record[name]]
        return tuple(found)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._name} {len(self)} {list(rows)}"
        # Neither class nor length tells two data sets apart, so some images speak for all.
        for row in list(rows)[:: max(1, len(rows) // MARKED)]:
            pixels = np.asarray(self.content(row).content)
            yield f"{row} {pixels.shape} {hashlib.sha256(pixels.tobytes()).hexdigest()}"

    def labels(self) -> None:
        """They come with the images."""


class _Columns(Pictures):
    """The columns of a `datasets.Dataset`, whose images are decoded here."""

    def __init__(
        self,
        dataset: Columnar,
        name: str,
        image: str | None,
        label: str | None,
        classes: tuple[str, ...] | None,
    ) -> None:
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
        self._name, self._picture, self._classes = name, picture, classes
        self._labels: Sequence[Any] | None = None if labelled is None else plain[labelled]
        self._print = str(getattr(dataset, "_fingerprint", ""))
        kind = None if labelled is None else dataset.features[labelled]
        self.names: Sequence[str] | None = getattr(kind, "names", None)
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
        return cell if isinstance(cell, bytes) else _eight_bits(np.asarray(cell), row)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._name} {self._print} {self._picture} {list(rows)}"

    def labels(self) -> Int64[np.ndarray, " n"] | None:
        """The label of each row."""
        if self._labels is None:
            return None
        whole = (_whole(label, row) for row, label in enumerate(self._labels))
        return np.array([_in_order(label, self.names, self._classes) for label in whole], dtype=np.int64)


def _column(dataset: Columnar, name: str) -> str:
    check_name("column of the data set", name, dataset.column_names)
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
