"""Results of benchmarks as JSON files, written whole or not at all."""

import json
from pathlib import Path
from typing import TypeVar

from assay.circuits import write_atomically
from assay.core.errors import FileFormatError
from assay.core.record import Record
from assay.core.untrusted import read_object


R = TypeVar("R", bound=Record)


def write_record(path: str | Path, record: Record) -> Path:
    """Write a record, whole or not at all.

    Raises:
        OutputError: If the directory does not exist or cannot be written.
    """
    text = json.dumps(record.to_dict(), indent=1, allow_nan=False, ensure_ascii=False)
    return write_atomically(Path(path), (text + "\n").encode())


def read_record(path: str | Path, kind: type[R], what: str) -> R:
    """What `write_record` wrote; `what` it should be, with its article, for messages.

    Raises:
        FileFormatError: If the file cannot be read or holds something else.
    """
    content = read_object(Path(path), what)
    try:
        return kind.from_dict(content)
    except ValueError as error:
        raise FileFormatError(f"{path} is not {what}: {error}") from error
