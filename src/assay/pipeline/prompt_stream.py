"""Prompts for a monitor: known ones to start from, and batches of those that a growing file holds."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from assay.core.errors import FileFormatError, InputError, TokenizationError
from assay.models import Model
from assay.pipeline.image_stream import Batch, Watch
from assay.tasks import is_shapes
from assay.tasks.prompt_set import DRAWN, ArrivingPrompts, draw_prompts, read_prompt


SUFFIX = ".jsonl"


def is_prompts(source: str) -> bool:
    """Whether a source holds prompts: a JSON lines file, or `task:KEY`."""
    return source.startswith(DRAWN) or source.endswith(SUFFIX)


def is_drawn(source: str) -> bool:
    """Whether a source has as many inputs as are asked for: `shapes:DOMAIN`, `task:KEY`."""
    return source.startswith(DRAWN) or is_shapes(source)


def known_prompts(source: str, model: Model, *, n: int, seed: int, skip_bad: bool) -> ArrivingPrompts:
    """Prompts in distribution.

    Args:
        source: A JSON lines file, as `read_prompt` takes its lines, or `task:KEY`.
        model: What reads them.
        n: Prompts drawn from a task.
        seed: Of that draw.
        skip_bad: Pass over lines that the model cannot read.

    Raises:
        FileFormatError: If the file cannot be read, or a line holds no prompt and is not passed over.
        TokenizationError: If the model cannot read a prompt, likewise.
        InputError: If there is no prompt.
    """
    if source.startswith(DRAWN):
        return draw_prompts(source, model, n=n, seed=seed, name="monitor/known")
    path, prompts, skipped = Path(source), [], []
    for number, line in _GrowingFile(path).new(ended=True):
        try:
            prompts.append(read_prompt(line, model, f"{path}, line {number}"))
        except (FileFormatError, TokenizationError):
            if not skip_bad:
                raise
            skipped.append(f"{path}:{number}")
    config = {"file": path.name, "n": len(prompts)}
    return ArrivingPrompts(prompts=tuple(prompts), domain=path.stem, config=config, skipped=tuple(skipped))


def prompt_batches(
    source: str,
    watch: Watch,
    model: Model,
    *,
    done: frozenset[str],
    wait: Callable[[float], bool],
    tell: Callable[[str], None],
    passed: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Batch]:
    """The prompts of a source, a batch at a time; fewer than a batch at the end are left.

    A line counts once it ends in a line break, or when the file is not followed. Its name is `FILE:LINE`,
    lines counted from 1; so the file may only grow.

    Args:
        source: A JSON lines file, or `task:KEY`.
        watch: How; order and transform do not count.
        model: What reads the prompts.
        done: Names of prompts that were observed or passed over before.
        wait: Waits so many seconds; True ends the stream.
        tell: Hears what happens to the file.
        passed: Hears the name of each line that is passed over while following.
        clock: Seconds that no one sets.

    Raises:
        FileFormatError: If the file does not exist at the start, or a line holds no prompt and is not passed
            over.
        InputError: If the file was replaced or cut short.
        TokenizationError: If the model cannot read a prompt that is not passed over.
    """
    if source.startswith(DRAWN):
        yield from _drawn(source, watch, model, done)
        return
    path = Path(source)
    lines, window, skipped, last = (
        _GrowingFile(path),
        dict[str, str | tuple[int, ...]](),
        list[str](),
        clock(),
    )
    while True:
        for number, line in lines.new(ended=not watch.follow, tell=tell if watch.follow else None):
            name = f"{path}:{number}"
            if name in done:
                continue
            try:
                window[name] = read_prompt(line, model, f"{path}, line {number}")
            except (FileFormatError, TokenizationError):
                if not watch.skip_bad:
                    raise
                skipped.append(name)
                if watch.follow:
                    passed(name)
            if len(window) == watch.size:
                prompts = ArrivingPrompts(
                    prompts=tuple(window.values()), domain=path.stem, config={"file": path.name}
                )
                yield Batch(inputs=prompts, sources=tuple(window), skipped=tuple(skipped))
                window, skipped, last = {}, [], clock()
        idle = watch.idle_timeout is not None and clock() - last >= watch.idle_timeout
        if not watch.follow or idle or wait(watch.poll):
            return


def _drawn(source: str, watch: Watch, model: Model, done: frozenset[str]) -> Iterator[Batch]:
    drawn = draw_prompts(source, model, n=max(watch.n, 1), seed=watch.seed, name="monitor/watched")
    for first in range(0, watch.n - watch.size + 1, watch.size):
        rows = range(first, first + watch.size)
        names = tuple(f"{source}/{row}" for row in rows)
        if not done.issuperset(names):
            yield Batch(inputs=drawn.subset(list(rows)), sources=names)


class _GrowingFile:
    """The lines of a file that only grows, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._number, self._inode = 0, 0, 0
        self._gone = False

    def new(self, *, ended: bool, tell: Callable[[str], None] | None = None) -> Iterator[tuple[int, str]]:
        """Number and text of the lines that were added; empty ones count as lines and are left out.

        Args:
            ended: Whether a last line without a line break counts.
            tell: Hears when the file is gone, which is then waited for; None makes it an error.
        """
        try:
            with self._path.open("rb") as file:
                self._check(file.fileno())
                file.seek(self._offset)
                for line in file:
                    if not (line.endswith(b"\n") or ended):
                        return
                    self._offset += len(line)
                    self._number += 1
                    if line.strip():
                        yield self._number, line.decode("utf-8", "replace")
        except OSError as error:
            if tell is None or not self._inode:
                raise FileFormatError(
                    f"cannot read {self._path}: {error.strerror}; give a file of prompts, one JSON line each"
                ) from error
            if not self._gone:
                tell(f"cannot read {self._path} ({error.strerror}); waiting until it is available again")
            self._gone = True

    def _check(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if self._inode and (found.st_ino != self._inode or found.st_size < self._offset):
            raise InputError(
                f"{self._path} was replaced or cut short, but readings name its lines by number; only add "
                "lines at its end, or start another monitor with another file and --out"
            )
        self._inode, self._gone = found.st_ino, False
