"""Readings of a monitor, and their file: a JSON line each, forced to the disk before anyone relies on it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from assay.core.errors import FileFormatError, InputError, OutputError
from assay.core.record import Record, plain
from assay.core.untrusted import parse_json


@dataclass(frozen=True, kw_only=True)
class Reading(Record):
    """What a monitor saw in one batch.

    Attributes:
        index: Number of the batch, from 0.
        time: When it was observed, ISO 8601 in UTC.
        n: Images.
        shift: Distance of the batch's circuit from the reference's; larger means more shift.
        alarm: What the monitor's rule says; None where it has no rule.
        alarms: The same for every rule that could be applied.
        p_value: Conformal p-value against the known batches; None without them.
        e_value: Capital of the sequential test, at most 1 on average while nothing changes; None without it.
        baselines: Keys of `BASELINES`, see `label_free`; they fall as the model is less sure.
        layers: Rank-shift map, `[L + 1][L + 1]`, rows write and columns read.
        domain: What the batch says of its origin.
        data_hash: Of the images.
        sources: Names of the files, where known.
        skipped: Files since the batch before that could not be read.
        seconds: Discovery took so long.
    """

    index: int
    time: str
    n: int
    shift: float
    alarm: bool | None
    alarms: Mapping[str, bool] = field(default_factory=dict)
    p_value: float | None = None
    e_value: float | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[tuple[float, ...], ...] = ()
    domain: str = ""
    data_hash: str = ""
    sources: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """All files that it names: observed and unreadable."""
        return (*self.sources, *self.skipped)


class Journal:
    """A file of JSON lines that only grows.

    A line counts once it ends in a line break. What an interrupted write left after the last one is cut off
    before the next is written, so a kill costs at most the line that was being written.

    Args:
        path: The file; its folder is made when the first line is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, kind: str, content: Mapping[str, Any]) -> None:
        """Write one line and force it to the disk.

        Raises:
            OutputError: If the file cannot be written.
        """
        line = json.dumps({"kind": kind, **plain(content)}, allow_nan=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                _cut_torn_line(file)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(
                f"cannot write to {self.path}: {error.strerror}. The readings so far are saved; choose a "
                "writable place"
            ) from error

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """All complete lines as (kind, content), in order; empty where there is no file.

        Raises:
            FileFormatError: If a complete line is no JSON object with a kind.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileFormatError(f"cannot read {self.path}: {error.strerror}") from error
        entries = []
        for number, line in enumerate(text.split(b"\n")[:-1], start=1):
            try:
                content = parse_json(line)
                kind = content.pop("kind")
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise FileFormatError(
                    f"line {number} of {self.path} is not a record of a monitor; restore the file or choose "
                    "another"
                ) from error
            entries.append((str(kind), content))
        return entries


class MonitorLog:
    """The journal of one monitor: what it watches first, then known batches and readings.

    Args:
        path: The file.
        header: What is watched and how.
        identity: Of the header: a file of another monitor is refused.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], identity: str) -> None:
        self._journal, self._header, self._id = Journal(path), header, identity
        self._begun = False

    def add(self, kind: str, content: Mapping[str, Any]) -> None:
        """Add a line; the header comes before the first, so a failed start leaves no file.

        Raises:
            OutputError: If the file cannot be written.
        """
        if not self._begun:
            self._journal.append("monitor", {**self._header, "id": self._id})
            self._begun = True
        self._journal.append(kind, content)

    def earlier(self) -> list[tuple[str, dict[str, Any]]]:
        """What the file holds after its header: the kind of each line, and its content.

        Raises:
            InputError: If it belongs to another monitor.
            FileFormatError: If it cannot be read.
        """
        entries = self._journal.read()
        if not entries:
            return []
        kind, first = entries[0]
        if kind != "monitor" or first.get("id") != self._id:
            names = (name for name in self._header if name != "library")
            differs = [name for name in names if first.get(name) != plain(self._header[name])]
            raise InputError(
                f"the readings in {self._journal.path} belong to another monitor (different: "
                f"{', '.join(differs) or 'its record'}); choose another place for the readings of this one"
            )
        self._begun = True
        return entries[1:]


def _cut_torn_line(file: BinaryIO) -> None:
    """Drop what stands after the last line break."""
    size = file.seek(0, os.SEEK_END)
    end = size
    while end:
        start = max(0, end - 4096)
        file.seek(start)
        place = file.read(end - start).rfind(b"\n")
        if place >= 0:
            end = start + place + 1
            break
        end = start
    if end < size:
        file.truncate(end)
