"""Pictures in their source, and how they become arrays of pixels: in this process or in workers beside it."""

import abc
import functools
import multiprocessing
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from assay.core.errors import AssayError, FileFormatError, InputError, ShapeError, WorkerError
from assay.core.machine import decoding_workers, turns_images, usable_cores
from assay.tasks.image_transform import BROKEN, EvalTransform, read_rgb


PIECE = 32  # images that a worker decodes at a time; two pieces of each worker wait at most
FEW = 256  # images below which starting workers takes longer than decoding
MOST_WORKERS = 8  # unless asked for more
# Formats that Pillow knows by name and cannot decode, or only by another program.
_NOT_DECODED = frozenset(("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"))


class Pictures(abc.ABC):
    """Abstract: images in their source, not decoded yet. Worker processes get a copy.

    Args:
        n: How many there are.
        title: What messages call them together.

    Attributes:
        size: Height and width, where resize and crop were applied already; None: they are to be applied.
        turns: Whether images are turned as their EXIF orientation says.
        turned: Rows of the images read so far that were turned.
        digests: Digests of the images read so far, by transform and row.
    """

    size: tuple[int, int] | None = None

    def __init__(self, n: int, title: str = "") -> None:
        self._n, self._title = n, title
        self.turns = turns_images()
        self.turned: set[int] = set()
        self.digests: dict[str, dict[int, bytes]] = {}

    def __len__(self) -> int:
        return self._n

    def name(self, row: int) -> str:
        """What a message calls a picture."""
        return f"{row} of {self._title}"

    @abc.abstractmethod
    def content(self, row: int) -> Any:
        """What `read_rgb` takes: a file's path or bytes, pixels, or an image of PIL."""

    @abc.abstractmethod
    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        """What identifies pictures and costs no reading of them: names and sizes."""

    def decoded(self, row: int, transform: EvalTransform | None) -> tuple[UInt8[np.ndarray, "h w 3"], bool]:
        """One picture after resize and crop, and whether it was turned.

        Args:
            row: Which.
            transform: Its geometry is applied; None keeps the picture as it is.

        Raises:
            FileFormatError: If it cannot be decoded, or is too large.
            InputError: If it does not fit the transform.
        """
        try:
            image, turned = read_rgb(self.content(row), turns=self.turns)
            try:
                return (transform or EvalTransform(resize=None)).pixels(image), turned
            except InputError as error:
                misfit = InputError(f"{self.name(row)}: {error}")
        except (MemoryError, *BROKEN) as error:
            raise FileFormatError(
                f"the image {self.name(row)} cannot be decoded ({str(error) or type(error).__name__}); "
                "repair it, or skip such files with skip_bad (--skip-bad)"
            ) from error
        raise misfit


class Files(Pictures):
    """Files below a folder, or anywhere.

    Args:
        names: Path of each, as messages have it.
        root: What the names are relative to; None if they are not.
    """

    def __init__(self, names: Sequence[str], root: Path | None = None) -> None:
        super().__init__(len(names))
        self._names, self.root = names, root

    def name(self, row: int) -> str:
        return str(self.content(row))

    def content(self, row: int) -> Path:
        return (self.root or Path()) / self._names[row]

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        for row in rows:
            path = self.content(row)
            size = path.stat().st_size if path.exists() else -1
            yield f"{self._names[row]} {size}" + ("" if self.turns else " not turned")


# ---------------------------------------------------------------------------------------------------- files


@functools.cache
def endings() -> frozenset[str]:
    """Endings of the files that Pillow reads, in lower case, with the dot."""
    Image.init()
    readable = (Image.OPEN.keys() - _NOT_DECODED) | {"MPO"}  # which the reader of JPEG opens
    return frozenset(ending for ending, kind in Image.EXTENSION.items() if kind in readable)


def image_paths(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Every image below a folder, sorted by path, and how many other files there are, by their ending."""
    paths, others = [], Counter[str]()
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in endings():
            paths.append(path)
        elif not path.name.startswith(".") and path.is_file():
            others[path.suffix.lower() or "no ending"] += 1
    return paths, others


def left_out(others: Mapping[str, int], domain: str) -> tuple[str, ...]:
    """A note that counts the files left out by their ending; none where there are none."""
    if not others:
        return ()
    counts = ", ".join(f"{count} {ending}" for ending, count in sorted(others.items()))
    return (f"{sum(others.values())} files of {domain} were left out by their endings: {counts}",)


# ------------------------------------------------------------------------------------------------- decoding


@dataclass(kw_only=True, eq=False)
class Piece:
    """Some pictures, decoded.

    Attributes:
        rows: Those that could be decoded, in the order asked for.
        pixels: Their pixels `[k, H, W, 3]`, uint8; or, normalised, `[k, 3, H, W]`; None if none is wanted.
        bad: Why the others could not.
        turned: Those that were turned by their EXIF orientation.
    """

    rows: list[int] = field(default_factory=list)
    pixels: Tensor | None = None
    bad: dict[int, AssayError] = field(default_factory=dict)
    turned: list[int] = field(default_factory=list)


class _Decoder(Dataset[Any]):
    """What runs in a worker: pieces, and errors as they are rather than as texts with a traceback."""

    def __init__(
        self, pictures: Pictures, transform: EvalTransform | None, *, normalise: bool, keep: bool
    ) -> None:
        self.pictures, self.transform = pictures, transform
        self.normalise, self.keep = normalise, keep

    def __getitems__(self, rows: Sequence[int]) -> Piece | AssayError:
        piece, arrays = Piece(), list[np.ndarray]()
        for row in rows:
            try:
                pixels, turned = self.pictures.decoded(row, self.transform)
            except FileFormatError as error:
                piece.bad[row] = error
                continue
            except AssayError as error:
                return error
            if arrays and pixels.shape != arrays[0].shape:
                return unequal(self.pictures, row, pixels.shape, piece.rows[0], arrays[0].shape)
            piece.rows.append(row)
            piece.turned += [row] if turned else []
            if self.keep or not arrays:
                arrays.append(pixels)
        if self.keep and arrays and self.normalise:
            assert self.transform is not None
            piece.pixels = self.transform.normalised(np.stack(arrays))
        elif self.keep and arrays:
            piece.pixels = torch.from_numpy(np.stack(arrays))
        return piece


def decode(
    pictures: Pictures,
    groups: Sequence[Sequence[int]],
    transform: EvalTransform | None,
    *,
    normalise: bool = False,
    keep: bool = True,
    workers: int = 0,
) -> Iterator[Piece]:
    """Groups of pictures, decoded, in their order.

    Args:
        pictures: The source.
        groups: Row numbers of the pictures of each piece.
        transform: Its geometry is applied; None keeps pictures as they are.
        normalise: Apply its numbers, too.
        keep: Give the pixels; else only what can be decoded is learned.
        workers: Processes beside this one; 0: none.

    Raises:
        AssayError: Of pictures that do not fit the transform or each other.
        WorkerError: If a worker ended without being asked to.
    """
    loader: DataLoader[Any] = DataLoader(
        _Decoder(pictures, transform, normalise=normalise, keep=keep),
        batch_sampler=[list(group) for group in groups],
        num_workers=min(workers, len(groups)),
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # the global one stays as it is
    )
    for piece in loaded_by(loader):
        pictures.turned.update(piece.turned)
        yield piece


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
            if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
                raise
            raise WorkerError(
                f"a process that decodes images ended ({str(error) or 'EOF'}); the machine may be out of "
                "memory. Run again with fewer workers, or decode in this "
                "process with workers=0 (--workers 0)"
            ) from error
        if isinstance(piece, Exception):
            raise piece
        yield piece


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
