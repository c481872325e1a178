"""The directory of a monitor: its files, one process that writes, a last line that a kill may cut short."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

from assay.core.errors import FileFormatError, OutputError


LOCK = ".lock"
READINGS, DOCUMENT, PAGE = "readings.jsonl", "monitor.json", "monitor.html"
REFERENCE, OUTPUTS, DOMAINS = "reference.safetensors", "known-outputs.safetensors", "domains.json"


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep a monitor's directory from a second process while entered; makes it if need be.

    Raises:
        OutputError: If another process holds it, or it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("ab")
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror}; choose another directory") from error
    with file:
        try:
            alone = lock_descriptor(file.fileno(), blocking=False)
        except OSError as error:
            raise OutputError(
                f"cannot lock {out / LOCK}: {error.strerror}; choose another directory"
            ) from error
        if not alone:
            raise OutputError(
                f"{out} is in use by another monitor that still runs; stop it, or choose another directory"
            )
        yield


def torn_line(readings: Path) -> bool:
    """Whether the last line of a file of readings was cut short, by a kill or a full disk."""
    try:
        with readings.open("rb") as file:
            file.seek(0, 2)
            if not file.tell():
                return False
            file.seek(-1, 2)
            return file.read() != b"\n"
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileFormatError(f"cannot read {readings}: {error.strerror}") from error
