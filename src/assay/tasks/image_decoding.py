"""From pictures in a source to arrays of pixels, some at a time, in this process or in workers beside it."""

import abc
import hashlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from assay.core.errors import AssayError, FileFormatError, InputError, ShapeError, WorkerError
from assay.core.machine import decoding_workers, usable_cores
from assay.tasks.image_transform import BROKEN, EvalTransform, as_rgb, read_rgb


T = TypeVar("T", bound="Closes")

PIECE = 32  # images that a worker decodes at a time; two pieces of each worker wait at most
FEW = 256  # images below which starting workers takes longer than decoding
MOST_WORKERS = 8  # unless asked for more


@dataclass(frozen=True)
class LabelledPicture:
    """Content of a picture whose source gives the label only with it."""

    content: Any
    label: int | None


class Pictures(abc.ABC):
    """Abstract: images in their source, not decoded yet. Worker processes get a copy.

    Attributes:
        most_workers: Workers that can share the source; None: any number.
        labelled: Whether `content` is `LabelledPicture`.
    """

    most_workers: int | None = None
    labelled: ClassVar[bool] = False

    @cached_property
    def digests(self) -> dict[str, dict[int, bytes]]:
        """Digests of the images read so far, by transform and row."""
        return {}

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abc.abstractmethod
    def name(self, row: int) -> str:
        """What a message calls a picture."""

    @abc.abstractmethod
    def content(self, row: int) -> Any:
        """A file's path, its bytes, 8-bit pixels, or an image of PIL."""

    @abc.abstractmethod
    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        """What identifies pictures and costs no reading of them: names, sizes, checksums that are stored."""


@runtime_checkable
class Closes(Protocol):
    """What is open until it is closed."""

    def close(self) -> None:
        """Close it."""


class PerProcess(Generic[T]):
    """An open file, opened anew in each process: a worker that shared one would move its place for others.

    It is closed with this value.

    Args:
        make: Opens it.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[int, T] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_make": self._make, "_made": None}

    def __call__(self) -> T:
        """The file of this process."""
        if self._made is None or self._made[0] != os.getpid():
            self.close()
            self._made = os.getpid(), self._make()
        return self._made[1]

    def close(self) -> None:
        """Close what is open."""
        if self._made is not None:
            self._made[1].close()
        self._made = None

    def __del__(self) -> None:
        self.close()


class Files(Pictures):
    """Files below a folder, or anywhere.

    Args:
        names: Path of each, as messages have it.
        root: What the names are relative to; None if they are not.
    """

    def __init__(self, names: Sequence[str], root: Path | None = None) -> None:
        self._names, self._root = names, root

    def __len__(self) -> int:
        return len(self._names)

    def name(self, row: int) -> str:
        return self._names[row]

    def content(self, row: int) -> Path:
        name = self._names[row]
        return Path(name) if self._root is None else self._root / name

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            try:
                size = self.content(row).stat().st_size
            except OSError:
                size = -1
            yield f"{self._names[row]} {size}"


class Arrays(Pictures):
    """Pictures in memory: 8-bit pixels `[N, H, W, 3]`."""

    def __init__(self, source: str, pixels: UInt8[np.ndarray, "n h w 3"]) -> None:
        self._source, self._pixels = source, pixels

    def __len__(self) -> int:
        return len(self._pixels)

    def name(self, row: int) -> str:
        return f"{self._source}, image {row}"

    def content(self, row: int) -> UInt8[np.ndarray, "h w 3"]:
        found: UInt8[np.ndarray, "h w 3"] = self._pixels[row]
        return found

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            yield hashlib.sha256(self._pixels[row].tobytes()).hexdigest()


def decoded(name: str, content: Any, transform: EvalTransform | None) -> UInt8[np.ndarray, "h w 3"]:
    """One picture after resize and crop.

    Args:
        name: What messages call it.
        content: As of `Pictures.content`.
        transform: Its geometry is applied; None keeps the picture as it is.

    Raises:
        FileFormatError: If it cannot be decoded, or is too large.
        InputError: If it does not fit the transform.
    """
    where = content if isinstance(content, Path) else name
    try:
        if isinstance(content, np.ndarray):
            if transform is None:
                return content
            image = Image.fromarray(content)
        elif isinstance(content, Image.Image):
            image = as_rgb(content)
        else:
            image = read_rgb(content)
    except (MemoryError, *BROKEN) as error:
        raise _broken(where, error) from error
    try:
        return (transform or EvalTransform(resize=None)).pixels(image)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except (MemoryError, *BROKEN) as error:
        raise _broken(where, error) from error


def _broken(where: object, error: Exception) -> FileFormatError:
    return FileFormatError(
        f"the image {where} cannot be decoded ({str(error) or type(error).__name__}); repair it, or skip "
        "such files with skip_bad (--skip-bad)"
    )


@dataclass(kw_only=True, eq=False)
class Piece:
    """Some pictures, decoded.

    Attributes:
        rows: Those that could be decoded, in the order asked for.
        pixels: Their pixels `[k, H, W, 3]`, uint8; or, normalised, `[k, 3, H, W]`; None if none is wanted.
        labels: Their labels, where the source gives them with the pictures; else empty.
        bad: Why the others could not.
    """

    rows: list[int]
    pixels: Tensor | None
    labels: list[int | None]
    bad: dict[int, AssayError]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How pictures are decoded.

    Attributes:
        transform: Its geometry is applied; None keeps pictures as they are.
        normalise: Apply its numbers, too.
        keep: Give the pixels; else only what can be decoded is learned, and the labels.
        workers: Processes beside this one; 0: none.
    """

    transform: EvalTransform | None
    normalise: bool = False
    keep: bool = True
    workers: int = 0

    def pieces(self, pictures: Pictures, groups: Sequence[Sequence[int]]) -> Iterator[Piece]:
        """Groups of pictures, decoded, in their order.

        Args:
            pictures: The source.
            groups: Row numbers of the pictures of each piece.

        Raises:
            WorkerError: If a worker process ended without being asked to.
            AssayError: What reading a source raises that is not the fault of a single picture.
        """
        workers = min(self.workers, len(groups), self.workers if (m := pictures.most_workers) is None else m)
        loader: DataLoader[Any] = DataLoader(
            _Decoder(pictures, self),
            batch_sampler=[list(group) for group in groups],
            num_workers=workers,
            collate_fn=_as_it_is,
            generator=torch.Generator(),  # the global one stays as it is
        )
        yield from loaded_by(loader)


def loaded_by(loader: DataLoader[Any]) -> Iterator[Any]:
    """What a loader gives; an exception among it is raised.

    Args:
        loader: Its data set hands errors over instead of raising them.

    Raises:
        WorkerError: If a worker process ended without being asked to.
    """
    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    answers = iter(loader)
    if before is not None and threading.current_thread() is threading.main_thread():
        # torch's own handler raises wherever the main process happens to be; without it, where we wait.
        signal.signal(signal.SIGCHLD, before)
    while True:
        try:
            piece = next(answers)
        except StopIteration:
            return
        except (RuntimeError, ConnectionError, EOFError) as error:
            # What a worker raised itself is "Caught ... in DataLoader worker"; a lost connection is to one.
            ended = str(error).startswith("DataLoader worker") if isinstance(error, RuntimeError) else True
            if not ended or str(error).startswith("Caught "):
                raise
            raise WorkerError(
                f"a process that decodes images ended ({str(error) or 'EOF'}); the machine may be out of "
                "memory. Run again with fewer workers, or decode in this "
                "process with workers=0 (--workers 0)"
            ) from error
        if isinstance(piece, Exception):
            raise piece
        yield piece


class _Decoder(Dataset[Any]):
    """What runs in a worker."""

    def __init__(self, pictures: Pictures, how: Decoding) -> None:
        self._pictures, self._how = pictures, how

    def __getitems__(self, rows: Sequence[int]) -> "Piece | Exception":
        try:
            return self._piece(rows)
        except AssayError as error:  # as it is, rather than as a text with the worker's traceback
            return error

    def _piece(self, rows: Sequence[int]) -> Piece:
        pictures, how = self._pictures, self._how
        arrays: list[np.ndarray] = []
        good: list[int] = []
        labels: list[int | None] = []
        bad: dict[int, AssayError] = {}
        for row in rows:
            try:
                content = pictures.content(row)
                if isinstance(content, LabelledPicture):
                    label, content = content.label, content.content
                else:
                    label = None
                pixels = decoded(pictures.name(row), content, how.transform)
            except FileFormatError as error:
                bad[row] = error
                continue
            if arrays and pixels.shape != arrays[0].shape:
                raise unequal(pictures, row, pixels.shape, good[0], arrays[0].shape)
            good.append(row)
            labels.append(label)
            if how.keep or not arrays:
                arrays.append(pixels)
        stacked = np.stack(arrays) if how.keep and arrays else None
        kept = None
        if stacked is not None and how.normalise:
            assert how.transform is not None
            kept = how.transform.normalised(stacked)
        elif stacked is not None:
            kept = torch.from_numpy(stacked)
        return Piece(rows=good, pixels=kept, labels=labels if pictures.labelled else [], bad=bad)


def _as_it_is(piece: Any) -> Any:
    return piece


def unequal(
    pictures: Pictures, row: int, shape: Sequence[int], first: int, first_shape: Sequence[int]
) -> ShapeError:
    """Two pictures that differ in size."""
    return ShapeError(
        f"{pictures.name(row)} is {shape[0]} x {shape[1]}, but {pictures.name(first)} is "
        f"{first_shape[0]} x {first_shape[1]}; give a transform that makes the images equal in size"
    )


def groups_of(rows: Sequence[int], size: int = PIECE) -> list[list[int]]:
    """Rows in pieces of so many at most, in their order."""
    return [list(rows[first : first + size]) for first in range(0, len(rows), size)]


def usual_workers(n: int) -> int:
    """Processes that decode unless told otherwise: none for few images, else one per core, at most 8.

    `--workers` of a command tells otherwise.
    """
    if (asked := decoding_workers()) is not None:
        return asked
    if n < FEW or multiprocessing.current_process().daemon:  # which may not have processes of its own
        return 0
    return min(MOST_WORKERS, usable_cores())


def check_workers(workers: int | None) -> None:
    """Refuse a number of workers that cannot be."""
    if workers is not None and (type(workers) is not int or workers < 0):
        raise InputError(f"workers is {workers!r}; give 0 (decode in this process) or more")


def chained(parts: Sequence[Pictures]) -> Pictures:
    """Several sources as one, in their order."""
    return parts[0] if len(parts) == 1 else _Chained(parts)


class _Chained(Pictures):
    def __init__(self, parts: Sequence[Pictures]) -> None:
        self._parts = parts
        self._starts = [0, *itertools.accumulate(len(part) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def _of(self, row: int) -> tuple[Pictures, int]:
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._parts[part], row - self._starts[part]

    def name(self, row: int) -> str:
        part, inside = self._of(row)
        return part.name(inside)

    def content(self, row: int) -> Any:
        part, inside = self._of(row)
        return part.content(inside)

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            part, inside = self._of(row)
            yield from part.marks([inside])
