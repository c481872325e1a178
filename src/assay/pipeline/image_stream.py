"""Images that arrive: batches of the files of a folder, which may be followed, or of drawn ones."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from assay.core.errors import FileFormatError, InputError, ShapeError
from assay.tasks import EvalTransform, ImageTask, find_domains, is_shapes, read_files
from assay.tasks.image_reading import image_paths, left_out
from assay.tasks.image_source import SHAPES


FIRST_WATCHED = 2_000_000  # number of the first drawn image to watch, which no model was trained on
SETTLED = 1.0  # seconds without a change after which a file counts as written
PATIENCE = 30.0  # the same for a file that cannot be decoded: its writer may be slow
POLL = 1.0  # seconds between two looks at a folder
Stamp = tuple[int, int]  # time of the last change in nanoseconds, and size


def _rest(seconds: float) -> bool:
    """Wait; nothing asks to stop."""
    time.sleep(seconds)
    return False


def _unheard(text: str) -> None:
    """A message, or the name of a file, to be ignored."""


def batches(
    source: str,
    *,
    transform: EvalTransform,
    size: int,
    n: int = 0,
    seed: int = 0,
    skip_bad: bool = False,
    follow: bool = False,
    flush_after: float | None = None,
    done: Collection[str] = (),
    skip: Callable[[str], None] = _unheard,
    tell: Callable[[str], None] = _unheard,
    wait: Callable[[float], bool] = _rest,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ImageTask]:
    """The images of a source, a batch at a time, in order of their time; fewer than a batch at the end wait.

    While following, a file counts as written once it has not changed for a second, and one that cannot be
    decoded is tried again when it has not changed for `PATIENCE` seconds: a slow upload is not a broken file.
    A name counts once, also if its file goes and comes back. A folder that vanishes is waited for.

    Args:
        source: `shapes:DOMAIN` or a folder, searched with its folders.
        transform: The model's.
        size: Images of a batch.
        n: Images drawn from a `shapes:` source.
        seed: Of drawn images.
        skip_bad: Pass over files that cannot be read.
        follow: Wait for new files when there are too few.
        flush_after: Seconds that an image waits for a full batch while following; then those that wait, two
            or more, are a smaller one. None: they wait for ever.
        done: Names of images that were observed or passed over before.
        skip: Hears the name of each file that is passed over.
        tell: Hears what happens to the folder, and what may make a batch unlike others.
        wait: Waits so many seconds; True ends the stream.
        clock: Seconds that no one sets; a wall clock may jump.

    Returns:
        Held in 8 bits; the field `path` has the names: paths, or `shapes:DOMAIN/NUMBER`.

    Raises:
        FileFormatError: If the folder does not exist at the start, or a file cannot be read and is not passed
            over.
    """
    if is_shapes(source):
        yield from _drawn(source, transform, size, n, seed, done)
        return
    folder = Path(source)
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give one that holds images, or shapes:DOMAIN")
    for note in left_out(image_paths(folder)[1], folder.name):
        tell(note)
    taken, waiting, gone, mixed = {*done}, _Waiting(), False, False
    since: dict[Path, tuple[Stamp, float]] = {}  # how a file looked, and since when
    broken: dict[Path, Stamp] = {}  # files that could not be decoded as they looked
    while True:
        now, stamps = clock(), _stamps(folder)
        if gone != (not folder.is_dir()):
            gone = not gone
            tell(f"{folder} is {'not available; waiting until it is back' if gone else 'back'}")
        since = {
            path: since[path] if path in since and since[path][0] == stamp else (stamp, now)
            for path, stamp in stamps.items()
            if str(path) not in taken
        }
        ready = [
            path
            for path, (stamp, first) in since.items()
            if not follow
            or now - first >= (PATIENCE if broken.get(path) == stamp else SETTLED)
            or (broken.get(path) != stamp and time.time() - stamp[0] / 1e9 >= SETTLED)
        ]
        while ready:
            chosen, ready = ready[: size - len(waiting.names)], ready[size - len(waiting.names) :]
            images, bad = _decoded(chosen, folder, transform)
            for path in bad:
                stamp, first = since[path]
                if _stamp(path) != stamp or (follow and now - first < PATIENCE):
                    broken[path] = stamp  # it is looked at again
                elif not skip_bad:
                    raise FileFormatError(
                        f"the image {path} cannot be decoded; repair it, or skip such files with --skip-bad"
                    )
                else:
                    taken.add(str(path))
                    skip(str(path))
            if images is not None:
                waiting.add(images, now)
                taken |= {*waiting.names}
            if len(waiting.names) == size:
                batch = waiting.take()
                folders = {Path(name).parent for name in batch.fields["path"]}
                if not mixed and len(folders) == 1 < len({path.parent for path in stamps}):
                    mixed = True
                    tell(
                        f"all images of a batch lie in {folders.pop().name}/, others in other folders; if "
                        "these folders are classes, batches of one class differ from mixed known ones"
                    )
                yield batch
        overdue = flush_after is not None and now - waiting.first >= flush_after
        if follow and overdue and len(waiting.names) > 1:
            yield waiting.take()
        if not follow or wait(POLL):
            return


class _Waiting:
    """Decoded images that wait for a full batch."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.first = 0.0  # when the first of them came
        self._parts: list[ImageTask] = []

    def add(self, images: ImageTask, now: float) -> None:
        """Some more."""
        self.first = self.first if self.names else now
        self.names += images.fields["path"]
        self._parts.append(images)

    def take(self) -> ImageTask:
        """All of them, as one task."""
        parts, names = self._parts, self.names
        self._parts, self.names = [], []
        pixels = np.concatenate([part.pixels for part in parts if part.pixels is not None])
        rows = torch.arange(len(pixels))
        notes = tuple(note for part in parts for note in part.notes)
        return replace(parts[0], pixels=pixels, rows=rows, ids=rows, fields={"path": names}, notes=notes)


def _decoded(
    paths: list[Path], folder: Path, transform: EvalTransform
) -> tuple[ImageTask | None, list[Path]]:
    """Those of the files that can be read, and those that cannot."""
    try:
        images = read_files(paths, domain=folder.name).with_transform(transform).held(skip_bad=True)
    except ShapeError:
        raise
    except InputError:  # none of them can be read
        return None, paths
    return images, list(map(Path, images.skipped))


def _stamps(folder: Path) -> dict[Path, Stamp]:
    """How the images below a folder look, the oldest first; hidden ones are left out."""
    try:
        paths = image_paths(folder)[0]
    except OSError:  # a folder went while it was searched
        return {}
    shown = (path for path in paths if not any(part.startswith(".") for part in path.parts[-2:]))
    stamps = {path: stamp for path in shown if (stamp := _stamp(path))}
    return dict(sorted(stamps.items(), key=lambda each: (each[1][0], each[0])))


def _stamp(path: Path) -> Stamp | None:
    """How a file looks; None if it is gone by now."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _drawn(
    source: str, transform: EvalTransform, size: int, n: int, seed: int, done: Collection[str]
) -> Iterator[ImageTask]:
    for first in range(FIRST_WATCHED, FIRST_WATCHED + n - size + 1, size):
        for domain, images in find_domains(source, n=size, seed=seed, start=first).items():
            names = [f"{SHAPES}:{domain}/{number}" for number in range(first, first + size)]
            if not set(names) <= set(done):
                yield replace(images.with_transform(transform).held(), fields={"path": names})
