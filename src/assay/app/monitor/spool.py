"""Images that a service is posted: checked, kept on the disk in order, handed out a window at a time.

What was accepted lies in the monitor's directory before the answer is sent, so a kill costs none of it. A
file counts as observed once a reading names it, whatever became of the file; so it is observed once.
"""

import io
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from assay.analyses.generalization.journal import Journal
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, OutputError
from assay.core.untrusted import printable
from assay.pipeline.image_stream import Batch, Watch, joined
from assay.pipeline.monitor_directory import READINGS
from assay.tasks import ImageSet, ReadOptions
from assay.tasks.image_files import SUFFIXES, read_images
from assay.tasks.image_transform import BROKEN, read_rgb


POSTED = "posted"  # source of a monitor that is posted its images, and the folder in its directory
MOST_WAITING = 10_000  # images
MOST_PIXELS = 25_000_000  # of one image
MOST_STRETCHED = 32  # times that one side may be as long as the other: resizing multiplies the pixels
FORMATS = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}
_NUMBERED = re.compile(r"([0-9]{9})-")


class SpoolFullError(InputError):
    """As many images wait as may."""


class SpoolClosedError(InputError):
    """The monitor does not take images: it is starting, or has ended."""


@dataclass(frozen=True, kw_only=True)
class PostedImage:
    """An image as it came.

    Attributes:
        content: The bytes of a PNG, JPEG or WebP file.
        name: What its sender calls it; may be empty.
    """

    content: bytes
    name: str = ""


def check_image(image: PostedImage, label: str) -> str:
    """Decode an image to see that it can be.

    Args:
        image: What came.
        label: What messages call it.

    Returns:
        The suffix of its format.

    Raises:
        InputError: For another format, too many pixels, one side much longer than the other, and for what
            cannot be decoded.
    """
    try:
        with Image.open(io.BytesIO(image.content), formats=tuple(FORMATS)) as opened:
            kind, (width, height) = str(opened.format), opened.size
        if width * height <= MOST_PIXELS and max(width, height) <= MOST_STRETCHED * min(width, height):
            read_rgb(image.content)
            return FORMATS[kind]
    except BROKEN as error:  # an InputError is a ValueError, one of these
        reason = printable(str(error), lines=False)[:200]
        raise InputError(
            f"{label} cannot be read ({type(error).__name__}: {reason}); send PNG, JPEG or WebP, 8 bits"
        ) from error
    raise InputError(
        f"{label} has {width} x {height} pixels; send at most {MOST_PIXELS:,}, and no side more than "
        f"{MOST_STRETCHED} times as long as the other"
    )


class Spool:
    """The images that wait to be observed by one monitor, and those of its batches with pictures.

    Threads may share it.

    Args:
        out: The monitor's directory; the images lie in `posted/` below it.
        window: Images that are observed together.
        most_waiting: Images that wait at most.
    """

    def __init__(self, out: Path, *, window: int, most_waiting: int = MOST_WAITING) -> None:
        self._out, self.window, self._most = out, window, most_waiting
        self._waiting, self._observed = out / POSTED / "waiting", out / POSTED / "observed"
        self._lock = threading.Lock()
        self._names: list[str] = []  # that wait, in order
        # Passed over since the last reading, in order: files that cannot be read, windows without a shift.
        self._skipped: list[str] = []
        self._undefined: list[str] = []
        self._next = 1
        self._open = False

    def open(self) -> None:
        """Take up what waits from an earlier run; to be called by the one process that holds the directory.

        Raises:
            OutputError: If the folders cannot be made or read.
            FileFormatError: If the readings cannot be read.
        """
        readings = [content for kind, content in Journal(self._out / READINGS).read() if kind == "reading"]
        named = ("sources", "skipped", "undefined")
        done = {str(name) for each in readings for kind in named for name in each.get(kind, ())}
        try:
            for folder in (self._waiting, self._observed):
                folder.mkdir(parents=True, exist_ok=True)
            waiting, observed = (
                {each.name for each in folder.iterdir() if _NUMBERED.match(each.name)}
                for folder in (self._waiting, self._observed)
            )
            for name in waiting & done:
                (self._waiting / name).replace(self._observed / name)
        except OSError as error:
            raise _unusable(self._out, error) from error
        passed = sorted(observed - done)  # what no reading names was passed over
        undefined = [name for name in passed if _is_image(self._observed / name)]
        with self._lock:
            self._names, self._undefined = sorted(waiting - done), undefined
            self._skipped = [name for name in passed if name not in undefined]
            self._next = 1 + max((_number(name) for name in waiting | observed | done), default=0)
            self._open = True

    def close(self) -> None:
        """Take no more images."""
        with self._lock:
            self._open = False

    @property
    def waiting(self) -> int:
        """Images that are not observed yet."""
        return len(self._names)

    def add(self, images: Sequence[PostedImage]) -> list[str]:
        """Take images, all or none.

        Args:
            images: At least one.

        Returns:
            The names under which readings will list them: a number, then what their sender calls them.

        Raises:
            InputError: For an image that cannot be observed; it is named.
            SpoolFullError, SpoolClosedError: If they cannot be taken now.
            OutputError: If they cannot be written.
        """
        suffixes = [
            check_image(image, f"image {place} ({printable(image.name, lines=False)[:80]!r})")
            for place, image in enumerate(images, 1)
        ]
        with self._lock:
            if not self._open:
                raise SpoolClosedError("the monitor does not take images now: it is starting, or has ended")
            if len(self._names) + len(images) > self._most:
                raise SpoolFullError(
                    f"{len(self._names)} images wait already and at most {self._most} may; send these "
                    f"{len(images)} later"
                )
            names = [
                f"{number:09d}-{_plain(image.name, suffix)}"
                for number, (image, suffix) in enumerate(zip(images, suffixes, strict=True), self._next)
            ]
            self._next += len(names)
            written = []
            try:
                for name, image in zip(names, images, strict=True):
                    written.append(write_atomically(self._waiting / name, image.content))
                _sync(self._waiting)
            except OSError:  # OutputError is one
                for path in written:
                    path.unlink(missing_ok=True)
                raise
            self._names += names
        return names

    def batches(
        self,
        watch: Watch,
        *,
        wait: Callable[[float], bool],
        tell: Callable[[str], None],
        keep: Callable[[], Collection[str]],
    ) -> Iterator[Batch]:
        """Windows of images in the order they came, until `wait` says to stop.

        A window is done with once the next is asked for; images passed over are listed by the window
        after them.

        Args:
            watch: Size and transform.
            wait: Waits so many seconds; True ends the stream.
            tell: Hears of a file that can no longer be read.
            keep: Names of observed images whose files stay; asked after every reading.
        """
        options = ReadOptions(transform=watch.transform)
        window: dict[str, ImageSet] = {}
        while True:
            with self._lock:
                fresh = [name for name in self._names if name not in window]
            for name in fresh[: watch.size - len(window)]:
                try:
                    window[name] = read_images([self._waiting / name], domain=POSTED, options=options)
                except FileFormatError as error:
                    self._pass_over([name], self._skipped)
                    tell(f"skipped {name}: {error}")
            if len(window) == watch.size:
                yield Batch(
                    inputs=joined(list(window.values())),
                    sources=tuple(window),
                    skipped=tuple(self._skipped),
                    undefined=tuple(self._undefined),
                )
                if not self._undefined or self._undefined[-1] not in window:
                    self._settle(list(window), keep())
                window = {}
            elif len(fresh) + len(window) < watch.size and wait(watch.poll):
                return

    def pass_over(self, batch: Batch) -> None:
        """The shift of the window at hand is undefined."""
        self._pass_over(batch.sources, self._undefined)

    def _pass_over(self, names: Sequence[str], others: list[str]) -> None:
        """These wait no longer, or they would fill the queue; the next reading names them and the others."""
        others += names
        self._take_off(names)
        for name in others[: -self._most]:  # nor may they fill the disk, or memory
            (self._observed / name).unlink(missing_ok=True)
        del others[: -self._most]

    def _take_off(self, names: Sequence[str]) -> None:
        """These wait no longer."""
        for name in names:
            with suppress(FileNotFoundError):  # removed by hand: it counts all the same
                (self._waiting / name).replace(self._observed / name)
        gone = set(names)
        with self._lock:
            self._names = [name for name in self._names if name not in gone]

    def _settle(self, names: Sequence[str], keep: Collection[str]) -> None:
        """A reading names these; of all that readings name, the files of some stay."""
        self._take_off(names)
        self._skipped.clear()
        self._undefined.clear()
        for path in self._observed.iterdir():
            if path.name not in keep:
                path.unlink(missing_ok=True)


def _number(name: str) -> int:
    found = _NUMBERED.match(name)
    return int(found[1]) if found else 0


def _plain(name: str, suffix: str) -> str:
    """A file name of what a sender calls an image: no path, no sign that a shell or a page could mean."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name)[-80:].strip(".-")
    return stem if Path(stem).suffix.lower() in SUFFIXES else f"{stem or 'image'}{suffix}"


def _is_image(path: Path) -> bool:
    try:
        read_images([path], options=ReadOptions())
    except FileFormatError:
        return False
    return True


def _sync(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(out: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot keep posted images in {out}: {error.strerror}; choose another directory")
