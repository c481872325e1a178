"""Results of benchmarks as JSON files: written whole or not at all, read with what is undefined as NaN."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.circuits import write_atomically
from assay.core.errors import FileFormatError
from assay.core.untrusted import parse_json


def write_json(path: str | Path, record: Mapping[str, Any]) -> Path:
    """Write a finite record, whole or not at all.

    Returns:
        The path.
    """
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False)
    return write_atomically(Path(path), (text + "\n").encode())


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        FileFormatError: If the file is missing or holds no JSON object.
    """
    path = Path(path)
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileFormatError(
            f"cannot read {path}: {error.strerror}; give the path of a JSON file"
        ) from error
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise FileFormatError(f"{path} holds a {type(record).__name__}; expected a JSON object")
    return record


def number(value: float | int | None) -> float:
    """A number of a JSON record, undefined ones as NaN."""
    return math.nan if value is None else float(value)
