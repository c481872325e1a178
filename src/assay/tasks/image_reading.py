"""Pictures in their source, and how they become arrays of pixels: in this thread or in others beside it."""

import abc
import functools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from assay.core.errors import FileFormatError
from assay.core.machine import DECODING
from assay.tasks.image_transform import BROKEN, EvalTransform, read_rgb


T = TypeVar("T")
R = TypeVar("R")
# Formats that Pillow knows by name and cannot decode, or only by another program.
_NOT_DECODED = frozenset(("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"))
WAITING = 64  # decoded images of each worker that wait at most


class Pictures(abc.ABC):
    """Abstract: images in their source, not decoded yet. Several threads may read it at once.

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
        self.turns = DECODING.get()[1]
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

    def decoded(self, row: int, transform: EvalTransform) -> UInt8[np.ndarray, "h w 3"]:
        """One picture after resize and crop.

        Raises:
            FileFormatError: If it cannot be decoded, is too large, or does not fit the transform.
        """
        try:
            image, turned = read_rgb(self.content(row), turns=self.turns)
            if turned:
                self.turned.add(row)
            return transform.pixels(image)
        except (MemoryError, *BROKEN) as error:
            raise FileFormatError(
                f"the image {self.name(row)} cannot be decoded ({str(error) or type(error).__name__}); "
                "repair or remove it, or leave such files out with skip_bad where that is an option"
            ) from error


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


def image_paths(folder: Path, domain: str = "") -> tuple[list[Path], tuple[str, ...]]:
    """Every image below a folder, sorted by path; and a note that counts other files by their ending.

    Hidden files and folders are passed over.
    """
    paths, others = [], Counter[str]()
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.suffix.lower() in endings():
            paths.append(path)
        elif path.is_file():
            others[path.suffix.lower() or "no ending"] += 1
    counts = ", ".join(f"{count} {ending}" for ending, count in sorted(others.items()))
    text = f"files of {domain or folder.name} were left out by their endings: {counts}"
    if others.total() == 1:
        text = f"file of {domain or folder.name} was left out by its ending: {counts}"
    return paths, (f"{others.total()} {text}",) if others else ()


def ahead(function: Callable[[T], R], items: Iterable[T], workers: int, *, waiting: int = 1) -> Iterator[R]:
    """`function` of each item in order, by threads; so many items of each, and one more, wait at most.

    Args:
        function: Decodes: Pillow, numpy and torch let other threads run meanwhile.
        items: What it is called with.
        workers: Threads beside this one; 0: none.
        waiting: Items of each thread.
    """
    if workers == 0:
        yield from map(function, items)
        return
    pool, futures = ThreadPoolExecutor(workers), deque[Future[R]]()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) > workers * waiting:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:  # perhaps in one of the threads, where garbage is collected: it cannot wait for itself
        pool.shutdown(wait=False, cancel_futures=True)
