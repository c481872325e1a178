"""Images that arrive: batches of the files of a folder, which may be followed, or of drawn ones."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from assay.core.errors import FileFormatError
from assay.tasks import EvalTransform, ImageTask, find_domains, is_shapes, read_files
from assay.tasks.image_reading import image_paths
from assay.tasks.image_source import SHAPES


FIRST_WATCHED = 2_000_000  # number of the first drawn image to watch, which no model was trained on
SETTLED = 1.0  # seconds without a change after which a file counts as written
PATIENCE = 30.0  # the same for a file that cannot be decoded: its writer may be slow
POLL = 1.0  # seconds between two looks at a folder


def batches(
    source: str,
    *,
    transform: EvalTransform,
    size: int,
    n: int = 0,
    seed: int = 0,
    follow: bool = False,
    flush_after: float | None = None,
    done: Collection[str] = (),
    skip: Callable[[str], object] = lambda name: None,
    tell: Callable[[str], object] = lambda text: None,
    wait: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ImageTask]:
    """The images of a source, a batch at a time, in order of their time; fewer than a batch at the end wait.

    While following, a file counts as written once it has not changed for a second, and one that cannot be
    decoded is tried again when it has not changed for `PATIENCE` seconds: a slow upload is not a broken file.
    Else the next run tries one that changed so recently.
    A name counts once, also if its file goes and comes back. A folder that vanishes is waited for.

    Args:
        source: `shapes:DOMAIN` or a folder, searched with its folders.
        transform: The model's.
        size: Images of a batch.
        n: Images drawn from a `shapes:` source.
        seed: Of drawn images.
        follow: Wait for new files when there are too few.
        flush_after: Seconds that an image waits for a full batch while following; then those that wait, two
            or more, are a smaller one. None: they wait for ever.
        done: Names of images that were observed or passed over before.
        skip: Hears the name of each file that is passed over because it cannot be read.
        tell: Hears what happens to the folder, and what may make a batch unlike others.
        wait: Waits so many seconds; True ends the stream.
        clock: Seconds that no one sets; a wall clock may jump.

    Returns:
        Held in 8 bits; the field `path` has the names: paths, or `shapes:DOMAIN/NUMBER`.

    Raises:
        FileFormatError: If the folder does not exist at the start.
    """
    if is_shapes(source):
        yield from _drawn(source, transform, size, n, seed, done)
        return
    folder, taken, gone = _opened(source, tell), {*done}, False
    parts: list[ImageTask] = []  # decoded images that wait for a full batch,
    waiting_since = 0.0  # the first of them since then
    # How a file looked (time of its change, size), since when, and when it is due to be decoded.
    seen: dict[Path, tuple[tuple[float, int], float, float]] = {}
    while True:
        now, stamps = clock(), _stamps(folder)
        if gone != (not folder.is_dir()):
            gone = not gone
            tell(f"{folder} is {'not available; waiting until it is back' if gone else 'back'}")
        before, seen = seen, {}
        for path, stamp in stamps.items():
            if str(path) not in taken:
                fresh = follow and time.time() - stamp[0] < SETTLED
                old = before.get(path)
                seen[path] = old if old and old[0] == stamp else (stamp, now, now + SETTLED * fresh)
        ready = [path for path, (_, _, due) in seen.items() if now >= due]
        while ready:
            room = size - sum(part.n for part in parts)
            chosen, ready = ready[:room], ready[room:]
            images, bad = _decoded(chosen, folder, transform)
            for path in bad:
                stamp, first, _ = seen[path]
                if (now - first if follow else abs(time.time() - stamp[0])) >= PATIENCE:
                    taken.add(str(path))
                    skip(str(path))
                elif follow:
                    seen[path] = (stamp, first, first + PATIENCE)
                else:
                    tell(f"{path} cannot be decoded yet; run again")
            if images is not None:
                waiting_since = waiting_since if parts else now
                parts.append(images)
                taken |= {*images.fields["path"]}
            if sum(part.n for part in parts) == size:
                batch, parts = _joined(parts), []
                yield batch
        overdue = follow and flush_after is not None and now - waiting_since >= flush_after
        if overdue and sum(part.n for part in parts) > 1:
            batch, parts = _joined(parts), []
            yield batch
        if not follow:
            if rest := sum(part.n for part in parts):
                tell(f"{rest} of {size} images for the next batch; run again when there are more")
            return
        if wait(POLL):
            return


def _opened(source: str, tell: Callable[[str], object]) -> Path:
    """The folder of a source; `tell` hears why its batches may differ from the known ones."""
    folder = Path(source)
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give one that holds images, or shapes:DOMAIN")
    paths, notes = image_paths(folder)
    if len({path.parent for path in paths}) > 1:
        notes += (f"if folders of {folder.name} are classes, their batches differ from mixed known ones",)
    for note in notes:
        tell(note)
    return folder


def _joined(parts: Sequence[ImageTask]) -> ImageTask:
    """Decoded images as one task."""
    pixels = np.concatenate([part.pixels for part in parts if part.pixels is not None])
    rows, notes = torch.arange(len(pixels)), tuple(note for part in parts for note in part.notes)
    names = [name for part in parts for name in part.fields["path"]]
    return replace(parts[0], pixels=pixels, rows=rows, ids=rows, fields={"path": names}, notes=notes)


def _decoded(
    paths: list[Path], folder: Path, transform: EvalTransform
) -> tuple[ImageTask | None, list[Path]]:
    """Those of the files that can be read, and those that cannot."""
    try:
        images = read_files(paths, domain=folder.name).with_transform(transform).held(skip_bad=True)
    except FileFormatError:  # none of them can be read
        return None, paths
    return images, list(map(Path, images.skipped))


def _stamps(folder: Path) -> dict[Path, tuple[float, int]]:
    """Times of change and sizes of the images below a folder, the oldest first."""
    stamps = {}
    with suppress(OSError):  # a folder went while it was searched
        for path in image_paths(folder)[0]:
            with suppress(OSError):  # a file went
                stat = path.stat()
                stamps[path] = (stat.st_mtime, stat.st_size)
    return dict(sorted(stamps.items(), key=lambda each: (each[1][0], each[0])))


def _drawn(
    source: str, transform: EvalTransform, size: int, n: int, seed: int, done: Collection[str]
) -> Iterator[ImageTask]:
    for first in range(FIRST_WATCHED, FIRST_WATCHED + n - size + 1, size):
        for domain, images in find_domains(source, n=size, seed=seed, start=first).items():
            names = [f"{SHAPES}:{domain}/{number}" for number in range(first, first + size)]
            if not set(names) <= set(done):
                yield replace(images.with_transform(transform).held(), fields={"path": names})
