"""Images in files that hold many: `.npz` archives, Parquet, tar shards of WebDataset.

A listing reads labels and facts, not images. Images are read one at a time, a block of a Parquet row group at
most, so a shard may be larger than the memory.
"""

import importlib
import itertools
import math
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Int64

from assay.core.errors import FileFormatError, InputError
from assay.core.machine import free_memory
from assay.core.parquet import open_parquet, parquet_table
from assay.core.untrusted import (
    DAMAGED_ZIP,
    MALFORMED,
    NpzMember,
    malformed,
    npz_members,
    parse_json,
)
from assay.tasks.image_decoding import PerProcess, Pictures, chained
from assay.tasks.image_listing import DEFAULTS, ImageListing, ReadOptions
from assay.tasks.image_set import ImageSet
from assay.tasks.image_tar import list_tar


_BLOCK = 128  # rows of a Parquet file that are decoded at a time
_FAR = 1 << 26  # bytes; a jump ahead in an archive that is not made by reading


def read_npz(path: str | Path, *, domain: str | None = None, options: ReadOptions = DEFAULTS) -> ImageSet:
    """`list_npz`, read; see there and `ImageListing.read` for arguments and errors."""
    return list_npz(path, domain=domain).read(options)


def read_parquet(path: str | Path, *, domain: str | None = None, options: ReadOptions = DEFAULTS) -> ImageSet:
    """`list_parquet`, read; see there and `ImageListing.read` for arguments and errors."""
    return list_parquet(path, domain=domain).read(options)


def list_shards(paths: Sequence[Path], *, domain: str) -> ImageListing:
    """One domain in several files of one kind, in the order given.

    Args:
        paths: `.npz`, `.parquet` or `.tar` files.
        domain: Name of the domain.

    Raises:
        InputError: If there is none, they are of several kinds, differ in their classes, or only some have
            labels.
        FileFormatError: If one cannot be read.
    """
    suffixes = {path.suffix for path in paths}
    if len(suffixes) != 1 or not suffixes <= SHARDS.keys():
        kinds = ", ".join(sorted(suffixes)) or "none"
        raise InputError(f"{domain} has shards of the kinds {kinds}; expected one of {', '.join(SHARDS)}")
    parts = [SHARDS[path.suffix](path, domain=domain) for path in paths]
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if part.classes != first.classes:
            raise InputError(
                f"{path} has the classes {part.classes}, but {paths[0]} {first.classes}; write all "
                "shards with one list of classes"
            )
        if (part.labels is None) is not (first.labels is None):
            raise InputError(f"only one of {paths[0]} and {path} has labels; label all shards, or none")
    shared = [name for name in first.fields if all(name in part.fields for part in parts)]
    labels = [part.labels for part in parts if part.labels is not None]
    return ImageListing(
        pictures=chained([part.pictures for part in parts]),
        labels=np.concatenate(labels) if labels else None,
        fields={name: [value for part in parts for value in part.fields[name]] for name in shared},
        classes=first.classes,
        domain=domain,
        config={**first.config, "source": domain, "shards": len(parts)} if len(parts) > 1 else first.config,
    )


# ---------------------------------------------------------------------------------------------------- npz


def list_npz(path: str | Path, *, domain: str | None = None) -> ImageListing:
    """One domain from a NumPy archive without pickles.

    Args:
        path: Holds `images` (uint8 `[N, H, W, 3]` or grey `[N, H, W]`), or encoded files back to back as
            `blob` (uint8) with `offsets` (`[N + 1]`). Optional: `labels` `[N]`, `class_names`; every other
            array of length N becomes a field.
        domain: Name of the domain. Default: the file's name.

    Raises:
        FileFormatError: If the file is no such archive.
        UnsafeFileError: If an array of the archive is a pickle.
    """
    path = Path(path)
    members = npz_members(path)
    with malformed(path, "an archive of images"):
        pictures = _npz_pictures(path, members)
        n = len(pictures)
        facts = {name: members.pop(name, None) for name in ("labels", "class_names")}
        labels, names = (None if fact is None else fact.read(path) for fact in facts.values())
        if labels is not None and (labels.shape != (n,) or labels.dtype.kind not in "iu"):
            raise FileFormatError(
                f"labels of {path} are {labels.dtype} {labels.shape}; expected {n} integers"
            )
        if names is not None and names.ndim != 1:
            raise FileFormatError(f"class_names of {path} have shape {names.shape}; expected a list of names")
        fields = {key: each.read(path).tolist() for key, each in members.items() if each.shape == (n,)}
    return ImageListing(
        pictures=pictures,
        labels=None if labels is None else labels.astype(np.int64),
        fields=fields,
        classes=None if names is None else tuple(str(name) for name in names),
        domain=path.stem if domain is None else domain,
        config={"layout": "npz", "source": path.name},
    )


def _npz_pictures(path: Path, members: dict[str, NpzMember]) -> "NpzRows":
    """Takes what holds the images out of `members`."""
    if "images" in members:
        images = members.pop("images")
        grey = len(images.shape) == 3
        whole = images.dtype == np.uint8 and images.by_rows and (grey or len(images.shape) == 4)
        if not whole or not (grey or images.shape[3] == 3):
            order = "" if images.by_rows else " in Fortran order"
            raise FileFormatError(
                f"images of {path} are {images.dtype} {images.shape}{order}; expected uint8 [N, H, W, 3] or "
                "[N, H, W], rows first"
            )
        ends = np.arange(images.shape[0] + 1, dtype=np.int64) * math.prod(images.shape[1:])
        return NpzRows(path, images, ends, images.shape[1:])
    if {"blob", "offsets"} <= members.keys():
        blob, ends = members.pop("blob"), members.pop("offsets").read(path)
        ordered = blob.dtype == np.uint8 and len(blob.shape) == 1 and ends.ndim == 1 and len(ends) > 1
        ordered = ordered and ends.dtype.kind in "iu"
        inside = ordered and 0 <= ends[0] <= ends[-1] <= blob.shape[0]
        if not inside or (np.diff(ends.astype(np.int64)) < 0).any():
            raise FileFormatError(
                f"offsets of {path} do not cut its blob of {math.prod(blob.shape)} bytes into images"
            )
        return NpzRows(path, blob, ends.astype(np.int64), None)
    raise FileFormatError(f"{path} holds {sorted(members)}; expected images, or blob and offsets")


class NpzRows(Pictures):
    """Slices of an array in an archive, read one at a time.

    Args:
        path: The archive.
        member: The array.
        ends: First byte of each slice, and the end of the last.
        shape: Of the pixels of a slice; None: slices are encoded files.
    """

    def __init__(
        self, path: Path, member: NpzMember, ends: Int64[np.ndarray, " ends"], shape: tuple[int, ...] | None
    ) -> None:
        self._path, self._member, self._ends, self._shape = path, member, ends, shape
        self._stored = member.info.compress_type == zipfile.ZIP_STORED
        self._open = PerProcess(self._opened)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def name(self, row: int) -> str:
        return f"{self._path.name}, image {row}"

    def content(self, row: int) -> Any:
        start, stop = int(self._ends[row]), int(self._ends[row + 1])
        try:
            found = self._bytes(self._member.start + start, stop - start, last=row + 1 == len(self))
        except DAMAGED_ZIP as error:
            raise FileFormatError(f"{self.name(row)} of {self._path} is damaged: {error}") from error
        if len(found) < stop - start:
            raise FileFormatError(f"{self.name(row)} of {self._path} is cut off; restore the file")
        if self._shape is None:
            return found
        pixels = np.frombuffer(found, np.uint8).reshape(self._shape)
        return np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else pixels

    def _opened(self) -> zipfile.ZipExtFile:
        return cast("zipfile.ZipExtFile", zipfile.ZipFile(self._path).open(self._member.info))

    def _bytes(self, start: int, size: int, *, last: bool) -> bytes:
        stream = self._open()
        # Read from front to back, the checksum is compared at the end; a far jump goes past it.
        if self._stored and not 0 <= start - stream.tell() <= _FAR:
            with self._path.open("rb") as file:
                file.seek(self._member.info.header_offset + 26)
                name, extra = struct.unpack("<HH", file.read(4))
                file.seek(self._member.info.header_offset + 30 + name + extra + start)
                return file.read(size)
        stream.seek(start)
        found = stream.read(size)
        if last:
            stream.read()
        return found

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._member.key} {self._member.shape} {self._member.info.CRC} {list(rows)}"


# ------------------------------------------------------------------------------------------------ Parquet


def list_parquet(path: str | Path, *, domain: str | None = None) -> ImageListing:
    """One domain from a Parquet file as the `datasets` library writes it; needs the extra `vision`.

    Args:
        path: Column `image` holds encoded files (`bytes`, or a struct with `bytes`), column `label` integers
            (optional); every other column of plain values becomes a field. Class names come from the file's
            own description.
        domain: Name of the domain. Default: the file's name.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        FileFormatError: If the file is no such table.
    """
    path = Path(path)
    with open_parquet(path, extra="vision") as file:
        kinds = {field.name: str(field.type) for field in file.schema_arrow}
        binary = "image" in kinds and "binary" in kinds["image"]
        if not binary or file.metadata.num_rows == 0:
            raise FileFormatError(f"{path} holds {list(kinds)}; expected a column image with encoded files")
        others = [name for name in kinds if name != "image" and "binary" not in kinds[name]]
        table = parquet_table(file, path, others)
        columns = {name: table.column(name).to_pylist() for name in others}
        groups = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        described = file.schema_arrow.metadata or {}
    labels = columns.pop("label", None)
    if labels is not None and not all(isinstance(label, int) for label in labels):
        raise FileFormatError(f"column label of {path} must hold integers only")
    with malformed(path, "a table of the datasets library"):
        info = parse_json(described.get(b"huggingface", b"{}")).get("info", {})
        names = info.get("features", {}).get("label", {}).get("names")
        names = None if names is None else tuple(map(str, names))
        numbers = None if labels is None else np.array(labels, dtype=np.int64)
    return ImageListing(
        pictures=ParquetRows(path, groups),
        labels=numbers,
        fields={
            name: values
            for name, values in columns.items()
            if not any(isinstance(value, dict | list | bytes) for value in values)
        },
        classes=names,
        domain=path.stem if domain is None else domain,
        config={"layout": "parquet", "source": path.name},
    )


class ParquetRows(Pictures):
    """The column `image` of a Parquet file, a block of rows at a time.

    Args:
        path: The file.
        groups: Rows of each row group.
    """

    def __init__(self, path: Path, groups: Sequence[int]) -> None:
        self._path = path
        self._starts = [0, *itertools.accumulate(groups)]
        self._open = PerProcess(self._opened)

    def __len__(self) -> int:
        return self._starts[-1]

    def name(self, row: int) -> str:
        return f"{self._path.name}, image {row}"

    def _opened(self) -> "_Blocks":
        return _Blocks(self._path, self._starts)

    def content(self, row: int) -> bytes:
        try:
            cell = self._open().cell(row)
        except (OSError, *MALFORMED) as error:  # pyarrow's own errors are of these kinds
            raise FileFormatError(f"cannot read image {row} of {self._path}: {error}") from error
        found = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(found, bytes):
            raise FileFormatError(f"row {row} of {self._path} holds no encoded file; drop such rows")
        return found

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield f"{self._path.name} {self._path.stat().st_size} {self._starts} {list(rows)}"


class _Blocks:
    """Rows of a row group from front to back, as many as were decoded together."""

    def __init__(self, path: Path, starts: list[int]) -> None:
        self._file = importlib.import_module("pyarrow.parquet").ParquetFile(path)
        self._starts = starts
        # A file holds a text that many cells repeat once, but no cell is longer than its part of the file.
        largest = max(1, *(_image_bytes(self._file, group) for group in range(len(starts) - 1)))
        self._rows = min(_BLOCK, max(1, free_memory() // 8 // largest))
        self._cells: Any = ()
        self._first, self._group = 0, -1
        self._rest: Iterator[Any] = iter(())

    def close(self) -> None:
        self._file.close()

    def cell(self, row: int) -> Any:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        if group != self._group or row < self._first:
            self._rest = self._file.iter_batches(self._rows, row_groups=[group], columns=["image"])
            self._group, self._first, self._cells = group, self._starts[group], next(self._rest).column(0)
        while row >= self._first + len(self._cells):
            self._first += len(self._cells)
            self._cells = next(self._rest).column(0)
        return self._cells[row - self._first].as_py()


def _image_bytes(file: Any, group: int) -> int:
    """Bytes that the images of a row group declare, unpacked."""
    described = file.metadata.row_group(group)
    chunks = [described.column(place) for place in range(described.num_columns)]
    return sum(
        each.total_uncompressed_size for each in chunks if each.path_in_schema.split(".")[0] == "image"
    )


SHARDS: Mapping[str, Callable[..., ImageListing]] = {
    ".npz": list_npz,
    ".parquet": list_parquet,
    ".tar": list_tar,
}
