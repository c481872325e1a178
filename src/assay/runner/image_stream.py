"""Images for a monitor: known ones to start from, and batches of those that arrive."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from assay.errors import FileFormatError, InputError, ShapeError, unknown_name
from assay.rng import stream
from assay.tasks import EvalTransform, ImageSet, ReadOptions, find_domains, is_shapes
from assay.tasks.image_files import SUFFIXES, read_images
from assay.tasks.image_source import SHAPES


ORDERS = ("time", "name", "random")
# Numbers of drawn images that no model was trained on: known ones, and those to watch.
FIRST_KNOWN, FIRST_WATCHED = 1_000_000, 2_000_000
SETTLED = 1.0  # seconds that a file must be old: it may still be written


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Images to observe.

    Attributes:
        images: As many as were asked for.
        sources: Their names: paths, or `shapes:DOMAIN/NUMBER`.
        skipped: Names of files that could not be read and were passed over.
        note: What may make the batch unlike others, for a message; else empty.
    """

    images: ImageSet
    sources: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How images are taken from a source.

    Attributes:
        transform: The model's.
        size: Images of a batch.
        n: Images drawn from a `shapes:` source.
        order: Of files: `time` (of change, then name), `name`, or `random`.
        seed: Of the random order and of drawn images.
        skip_bad: Pass over files that cannot be read.
        follow: Wait for new files when there are too few.
        poll: Seconds between looks.
        idle_timeout: Seconds without a new batch after which to stop; None waits for ever.
    """

    transform: EvalTransform
    size: int
    n: int = 0
    order: str = "time"
    seed: int = 0
    skip_bad: bool = False
    follow: bool = False
    poll: float = 2.0
    idle_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise unknown_name("order of files", self.order, ORDERS)
        if self.size < 2 or self.poll <= 0 or (self.idle_timeout is not None and self.idle_timeout < 0):
            raise InputError(
                f"batches of {self.size} images, poll {self.poll} s, idle timeout {self.idle_timeout} s: at "
                "least 2 images, and times above 0 are needed"
            )


def known_images(
    source: str, transform: EvalTransform, *, n: int, classes: tuple[str, ...] | None, options: ReadOptions
) -> ImageSet:
    """Images in distribution: with labels from a folder per class or from `shapes:`, else without.

    Args:
        source: `shapes:DOMAIN`, a folder with a folder per class, or a folder of images.
        transform: The model's.
        n: Images drawn from a `shapes:` source.
        classes: The model's, in the order of its labels; None takes the folders' names.
        options: Seed and bad files; its transform and sample do not count.
    """
    found = find_domains(source, start=FIRST_KNOWN, drawn=n)
    if len(found) != 1:
        raise InputError(
            f"{source} holds {len(found)} domains ({', '.join(each.name for each in found)}); name the "
            "one that the model was made for"
        )
    return found[0].read(replace(options, transform=transform, n=None), classes)


def batches(
    source: str,
    watch: Watch,
    *,
    done: frozenset[str] = frozenset(),
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Batch]:
    """The images of a source, a batch at a time; fewer than a batch at the end are left.

    Args:
        source: `shapes:DOMAIN` or a folder, searched with its folders.
        watch: How.
        done: Names of images that were observed or passed over before.
        sleep: Waits; a test may put images into the folder here.

    Raises:
        FileFormatError: If the folder does not exist, or a file cannot be read and is not passed over.
    """
    if is_shapes(source):
        yield from _drawn_batches(source, watch, done)
        return
    folder = Path(source)
    taken, idle = set(done), 0.0
    while True:
        fresh = [
            path
            for path in _files(folder, order=watch.order, seed=watch.seed)
            if str(path) not in taken and not (watch.follow and _is_new(path))
        ]
        for batch in _file_batches(folder, fresh, watch):
            taken |= {*batch.sources, *batch.skipped}
            idle = 0.0
            yield batch
        if not watch.follow or (watch.idle_timeout is not None and idle >= watch.idle_timeout):
            return
        sleep(watch.poll)
        idle += watch.poll


def _file_batches(folder: Path, paths: list[Path], watch: Watch) -> Iterator[Batch]:
    """Full batches of these files, in order."""
    options = ReadOptions(transform=watch.transform, skip_bad=watch.skip_bad)
    mixed = len({path.parent for path in paths}) > 1
    queue = list(paths)
    while len(queue) >= watch.size:
        read: list[Path] = []
        skipped: list[str] = []
        parts: list[ImageSet] = []
        while queue and len(read) < watch.size:
            chosen, queue = queue[: watch.size - len(read)], queue[watch.size - len(read) :]
            try:
                part = read_images(chosen, domain=folder.name, options=options)
            except InputError as error:
                if not watch.skip_bad or isinstance(error, ShapeError):
                    raise
                skipped += [str(path) for path in chosen]  # none of them can be read
                continue
            parts.append(part)
            read += [Path(name) for name in part.fields["path"]]
            skipped += part.skipped
        if len(read) < watch.size:
            return  # more may come
        folders = {path.parent for path in read}
        yield Batch(
            images=_joined(parts),
            sources=tuple(map(str, read)),
            skipped=tuple(skipped),
            note=f"all images of this batch lie in {folders.pop().name}/, others in other folders; if these "
            "are classes, take --order random"
            if mixed and len(folders) == 1
            else "",
        )


def _joined(parts: list[ImageSet]) -> ImageSet:
    if len(parts) == 1:
        return parts[0]
    pixels = np.concatenate([part.pixels for part in parts])
    paths = [path for part in parts for path in part.fields["path"]]
    return replace(parts[0], pixels=pixels, ids=np.arange(len(pixels)), fields={"path": paths})


def _files(folder: Path, *, order: str, seed: int) -> list[Path]:
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is no folder; give one that holds images, or shapes:DOMAIN")
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts[-2:])
    )
    if order == "time":
        changed = {path: _changed(path) for path in found}
        return sorted((path for path in found if changed[path]), key=lambda path: (changed[path], path))
    if order == "random":
        return [found[place] for place in stream(seed, "monitor/order").permutation(len(found))]
    return found


def _is_new(path: Path) -> bool:
    return time.time() - _changed(path) / 1e9 < SETTLED


def _changed(path: Path) -> int:
    """When a file was last written, in nanoseconds; 0 if it is gone by now."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _drawn_batches(source: str, watch: Watch, done: frozenset[str]) -> Iterator[Batch]:
    options = ReadOptions(transform=watch.transform, seed=watch.seed)
    for first in range(FIRST_WATCHED, FIRST_WATCHED + watch.n - watch.size + 1, watch.size):
        for domain in find_domains(source, start=first, drawn=watch.size):
            names = tuple(f"{SHAPES}:{domain.name}/{first + place}" for place in range(watch.size))
            if not done.issuperset(names):
                yield Batch(images=domain.read(options, None), sources=names)
