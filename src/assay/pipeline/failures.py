"""What went wrong in a sweep: a log of JSON lines beside the store. Failures are not results."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.core.errors import writing
from assay.core.untrusted import parse_json


FOLDER = "sweeps"  # inside a store


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why one attempt of a job did not end well.

    Attributes:
        kind: `error` (the job raised), `input` (it raised what it would raise again), `died` (its worker
            ended), `timeout`, `memory`, or `lost` (it returned, and its row is not in the store).
        message: One line, with the reason.
        trace: Where it was raised, if it was.
    """

    kind: str
    message: str
    trace: str = ""

    @property
    def permanent(self) -> bool:
        """Whether another attempt would fail alike."""
        return self.kind == "input"


class FailureLog:
    """The log of one sweep, `sweeps/NAME.jsonl` beside its store; made at the first failure.

    Args:
        directory: Of the store.
        name: Of the sweep.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self.path = Path(directory) / FOLDER / f"{name}.jsonl"

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a line, with the time.

        Raises:
            OutputError: If it cannot be written.
        """
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), **record})
        with writing(f"write the log of failures {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab+") as file:
                # What a kill cut off stays a line of its own; appending writes at the end wherever we read.
                file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
                broken = file.read(1) not in (b"", b"\n")
                file.write(b"\n" * broken + line.encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """The lines, oldest first; those that a kill cut off are left out."""
        if not self.path.exists():
            return []
        failures = []
        for line in self.path.read_bytes().splitlines():
            try:
                record = parse_json(line)
            except ValueError:  # cut off
                continue
            if isinstance(record, dict):
                failures.append(record)
        return failures
