"""Images for a monitor: known ones to start from, and batches of those that arrive."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from assay.core.errors import FileFormatError, InputError, ShapeError, check_name
from assay.core.random import stream
from assay.tasks import EvalTransform, ImageTask, find_domains, is_shapes, read_files
from assay.tasks.image_reading import image_paths, left_out
from assay.tasks.image_source import SHAPES


ORDERS = ("time", "name", "random")
FIRST_WATCHED = 2_000_000  # number of the first drawn image to watch, which no model was trained on
SETTLED = 1.0  # seconds without a change after which a file counts as written
PATIENCE = 30.0  # the same for a file that cannot be decoded: its writer may be slow


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Images to observe.

    Attributes:
        inputs: As many as were asked for.
        sources: Their names: paths, or `shapes:DOMAIN/NUMBER`.
        skipped: Names of those that could not be read and were passed over since the batch before.
        note: What may make the batch unlike others, for a message; else empty.
    """

    inputs: ImageTask
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
        flush_after: Seconds that an image waits for a full batch while following; then those that wait, two
            or more, are a smaller one. None: they wait for ever.
    """

    transform: EvalTransform
    size: int
    n: int = 0
    order: str = "time"
    seed: int = 0
    skip_bad: bool = False
    follow: bool = False
    poll: float = 1.0
    idle_timeout: float | None = None
    flush_after: float | None = None

    def __post_init__(self) -> None:
        check_name("order of files", self.order, ORDERS)
        if self.size < 2 or self.poll <= 0 or (self.idle_timeout is not None and self.idle_timeout < 0):
            raise InputError(
                f"batches of {self.size} images, poll {self.poll} s, idle timeout {self.idle_timeout} s; "
                "expected at least 2 images, and times above 0"
            )


def _rest(seconds: float) -> bool:
    """Wait; nothing asks to stop."""
    time.sleep(seconds)
    return False


def _unheard(text: str) -> None:
    """A message, or the name of a file, to be ignored."""


def batches(
    source: str,
    watch: Watch,
    *,
    done: frozenset[str] = frozenset(),
    wait: Callable[[float], bool] = _rest,
    clock: Callable[[], float] = time.monotonic,
    tell: Callable[[str], None] = _unheard,
    passed: Callable[[str], None] = _unheard,
) -> Iterator[Batch]:
    """The images of a source, a batch at a time; fewer than a batch at the end are left.

    While following, a file counts as written once it has not changed for a second, and one that cannot be
    decoded is looked at again until it has not changed for `PATIENCE` seconds: a slow upload is not a broken
    file. A file that stays broken counts once it is given up, whether or not a batch is full; what is still
    broken when the stream ends for lack of new images is given up then. A name counts once, also if its file
    goes and comes back. A folder that vanishes is waited for.

    Args:
        source: `shapes:DOMAIN` or a folder, searched with its folders.
        watch: How.
        done: Names of images that were observed or passed over before.
        wait: Waits so many seconds; True ends the stream.
        clock: Seconds that no one sets; a wall clock may jump.
        tell: Hears what happens to the folder.
        passed: Hears the name of each file that is passed over while following, when it is given up.

    Raises:
        FileFormatError: If the folder does not exist at the start, or a file cannot be read and is not passed
            over.
    """
    if is_shapes(source):
        yield from _drawn_batches(source, watch, done)
        return
    folder = Path(source)
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give one that holds images, or shapes:DOMAIN")
    for note in left_out(image_paths(folder)[1], folder.name):
        tell(note)
    if not watch.follow:
        fresh = [path for path in _files(folder, watch) if str(path) not in done]
        yield from _file_batches(folder, fresh, watch)
        return
    arrivals = _Arrivals(folder, watch, done, clock, tell, passed)
    last = clock()
    while True:
        ready = arrivals.ready()
        for size in (watch.size, None):  # full batches, then those that have waited too long
            waiting = arrivals.left(ready)
            if size is None and not arrivals.overdue(waiting):
                break
            for batch in _file_batches(folder, waiting, replace(watch, size=size or len(waiting)), arrivals):
                arrivals.take(batch)
                yield batch
                last = clock()
        if watch.idle_timeout is not None and clock() - last >= watch.idle_timeout:
            arrivals.end()
            return
        if wait(watch.poll):
            return


Stamp = tuple[int, int]  # size, and when it was last written in nanoseconds


class _Arrivals:
    """What lies in a followed folder, and which of its files can be read by now."""

    def __init__(
        self,
        folder: Path,
        watch: Watch,
        done: frozenset[str],
        clock: Callable[[], float],
        tell: Callable[[str], None],
        passed: Callable[[str], None],
    ) -> None:
        self._folder, self._watch, self._clock, self._tell, self._pass = folder, watch, clock, tell, passed
        self._taken = set(done)
        self._passed: list[str] = []  # since the batch before
        self._decoded: dict[Path, Stamp] = {}
        self._since: dict[Path, tuple[Stamp, float]] = {}  # how a file looked, and since when
        self._undecoded: dict[Path, Stamp] = {}
        self._gone = False

    def ready(self) -> list[Path]:
        """Files not taken yet that are no longer being written, in order."""
        now = self._clock()
        try:
            fresh = [path for path in _files(self._folder, self._watch) if str(path) not in self._taken]
        except (FileFormatError, OSError) as error:
            if not self._gone:
                self._tell(f"cannot read {self._folder} ({error}); waiting until it is available again")
            self._gone = True
            return []
        if self._gone:
            self._tell(f"{self._folder} is back")
            self._gone = False
        looks = {path: stamp for path in fresh if (stamp := _stamp(path))}
        self._since = {
            path: before if (before := self._since.get(path)) and before[0] == stamp else (stamp, now)
            for path, stamp in looks.items()
        }
        self._undecoded = {path: stamp for path, stamp in self._undecoded.items() if looks.get(path) == stamp}
        return [path for path in fresh if path in looks and self._settled(path, now)]

    def _settled(self, path: Path, now: float) -> bool:
        (_, changed), since = self._since[path]
        if path in self._undecoded:
            return now - since >= PATIENCE
        # Old by the wall clock, or, where that clock was set back, seen unchanged for as long.
        return time.time() - changed / 1e9 >= SETTLED or now - since >= SETTLED

    def left(self, paths: list[Path]) -> list[Path]:
        """Those of the files that are in no batch."""
        return [path for path in paths if str(path) not in self._taken]

    def overdue(self, paths: list[Path]) -> bool:
        """Whether one of these files, two or more, has waited too long for a full batch."""
        after, now = self._watch.flush_after, self._clock()
        if after is None or len(paths) < 2:
            return False
        return any(now - self._since[path][1] >= after for path in paths)

    def put_off(self, paths: list[Path]) -> set[Path]:
        """Those of the files that could not be decoded to be looked at again."""
        now, later = self._clock(), set()
        for path in paths:
            stamp, since = self._since[path]
            found = _stamp(path)
            if found is None or found != stamp or now - since < PATIENCE:
                later.add(path)
                if found is not None:
                    self._undecoded[path] = stamp
        return later

    def untried(self, paths: list[Path]) -> list[Path]:
        """Those of the files that were not decoded as they look now."""
        return [path for path in paths if self._decoded.get(path) != self._since[path][0]]

    def tried(self, paths: Iterable[Path]) -> None:
        """These could be decoded."""
        self._decoded |= {path: self._since[path][0] for path in paths}

    def give_up(self, paths: Iterable[Path]) -> None:
        """These are passed over."""
        for path in paths:
            self._taken.add(str(path))
            self._undecoded.pop(path, None)
            self._passed.append(str(path))
            self._pass(str(path))

    def end(self) -> None:
        """Nothing more is waited for: what could not be decoded by now is passed over."""
        if self._watch.skip_bad:
            self.give_up(list(self._undecoded))

    def passed(self) -> list[str]:
        """Names of files passed over since this was last asked."""
        names, self._passed = self._passed, []
        return names

    def take(self, batch: Batch) -> None:
        """These are done."""
        self._taken |= set(batch.sources)
        for name in batch.sources:
            self._decoded.pop(Path(name), None)


def _file_batches(
    folder: Path, paths: list[Path], watch: Watch, arrivals: _Arrivals | None = None
) -> Iterator[Batch]:
    """Full batches of these files, in order."""
    mixed = len({path.parent for path in paths}) > 1
    queue = list(paths)
    while len(queue) >= watch.size:
        read: list[Path] = []
        skipped: list[str] = []
        parts: list[ImageTask] = []
        while queue and len(read) < watch.size:
            chosen, queue = queue[: watch.size - len(read)], queue[watch.size - len(read) :]
            part, bad = _read(chosen, folder, watch, arrivals)
            if part is not None:
                parts.append(part)
                read += [Path(name) for name in part.fields["path"]]
            skipped += bad
        if len(read) < watch.size:
            return  # more may come
        if arrivals is not None:
            skipped = arrivals.passed()
        folders = {path.parent for path in read}
        yield Batch(
            inputs=_joined(parts),
            sources=tuple(map(str, read)),
            skipped=tuple(skipped),
            note=f"all images of this batch lie in {folders.pop().name}/, others in other folders; if these "
            "folders are classes, use --order random"
            if mixed and len(folders) == 1
            else "",
        )
    if arrivals is not None and (untried := arrivals.untried(queue)):
        _read(untried, folder, watch, arrivals)  # a broken file does not wait for a full batch to count


def _read(
    paths: list[Path], folder: Path, watch: Watch, arrivals: _Arrivals | None
) -> tuple[ImageTask | None, list[str]]:
    """Those of the files that can be read, and the names of those to pass over."""
    patient = watch.skip_bad or arrivals is not None
    found = read_files(paths, domain=folder.name).with_transform(watch.transform)
    try:
        part = found.held(skip_bad=patient)
    except InputError as error:
        if not patient or isinstance(error, ShapeError):
            raise
        part = None  # none of them can be read
    bad = list(paths) if part is None else [Path(name) for name in part.skipped]
    if arrivals is not None:
        later = arrivals.put_off(bad)
        bad = [path for path in bad if path not in later]
        if bad and not watch.skip_bad:
            read_files(bad[:1], domain=folder.name).with_transform(watch.transform).held()
            raise FileFormatError(
                f"{bad[0]} could not be decoded before but now can; run the same command again to read it"
            )
        arrivals.tried(path for path in paths if path not in later and path not in bad)
        arrivals.give_up(bad)
    return part, [str(path) for path in bad]


def _joined(parts: list[ImageTask]) -> ImageTask:
    """Images of one size that were read in several parts, as one task."""
    if len(parts) == 1:
        return parts[0]
    pixels = np.concatenate([part.pixels for part in parts if part.pixels is not None])
    paths = [path for part in parts for path in part.fields["path"]]
    rows = torch.arange(len(pixels))
    return replace(parts[0], pixels=pixels, rows=rows, ids=rows, fields={"path": paths})


def _files(folder: Path, watch: Watch) -> list[Path]:
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder any more")
    files = [
        path for path in image_paths(folder)[0] if not any(part.startswith(".") for part in path.parts[-2:])
    ]
    if watch.order == "time":
        changed = {path: stamp[1] for path in files if (stamp := _stamp(path))}
        return sorted(changed, key=lambda path: (changed[path], path))
    if watch.order == "random":
        return [files[place] for place in stream(watch.seed, "monitor/order").permutation(len(files))]
    return files


def _stamp(path: Path) -> Stamp | None:
    """How a file looks; None if it is gone by now."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _drawn_batches(source: str, watch: Watch, done: frozenset[str]) -> Iterator[Batch]:
    for first in range(FIRST_WATCHED, FIRST_WATCHED + watch.n - watch.size + 1, watch.size):
        for domain, images in find_domains(source, n=watch.size, seed=watch.seed, start=first).items():
            names = tuple(f"{SHAPES}:{domain}/{first + place}" for place in range(watch.size))
            if not done.issuperset(names):
                yield Batch(inputs=images.with_transform(watch.transform).held(), sources=names)
