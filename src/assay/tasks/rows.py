"""Files of tasks, row by row: JSON lines and parquet."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from assay.core.errors import FileFormatError
from assay.core.parquet import read_parquet_file
from assay.core.untrusted import parse_json


TASK_FILES = (".jsonl", ".parquet")  # what the name of a file of prompts ends in


def is_task_file(name: str | PathLike[str]) -> bool:
    """Whether a task is named by a file, not by a registered key."""
    return Path(name).suffix in TASK_FILES


@dataclass(frozen=True)
class Rows:
    """Rows of a file, parsed when they are asked for.

    Attributes:
        path: The file; of a data set that is loaded already, what messages call it.
        unit: What the file calls a row: `line` or `row`.
        contents: Number of each row, from 1, to its text or its record; empty lines are left out.
        expected: What a row should be, for messages.
    """

    path: Path | str
    unit: str
    contents: Mapping[int, str | dict[str, Any]]
    expected: str

    def where(self, number: int) -> str:
        """A row, as messages name it."""
        return f"{self.path}, {self.unit} {number}"

    def record(self, number: int) -> dict[str, Any]:
        """One row as a JSON object.

        Raises:
            FileFormatError: If it is not one; file and line are named.
        """
        content = self.contents[number]
        if isinstance(content, dict):
            return content
        try:
            record = parse_json(content)
        except ValueError as error:
            raise FileFormatError(
                f"{self.where(number)}: not JSON ({error}); expected {self.expected}"
            ) from error
        if not isinstance(record, dict):
            raise FileFormatError(
                f"{self.where(number)}: got a {type(record).__name__}; expected a JSON object: "
                f"{self.expected}"
            )
        return record


def read_rows(path: str | Path, *, what: str, expected: str) -> Rows:
    """The rows of a JSON lines file, or of a parquet file where the name ends in `.parquet`.

    Args:
        path: The file; text is UTF-8.
        what: What the rows are, in the plural, for messages.
        expected: What a row should be, for messages.

    Raises:
        FileFormatError: If the file is missing, empty or not what its name says.
        MissingExtraError: If pyarrow is needed and not installed.
    """
    path = Path(path)
    contents: dict[int, str | dict[str, Any]]
    if path.suffix == ".parquet":
        records = read_parquet_file(path, extra="parquet").to_pylist()
        contents, unit = dict(enumerate(records, start=1)), "row"
    else:
        contents, unit = _lines(path), "line"
    if not contents:
        raise FileFormatError(
            f"task file {path} has no {what}; expected one JSON object per {unit}: {expected}"
        )
    return Rows(path, unit, contents, expected)


def _lines(path: Path) -> dict[int, str | dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise FileFormatError(f"cannot read task file {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"task file {path} is not UTF-8 text: {error}") from error
    return {number: line for number, line in enumerate(lines, start=1) if line.strip()}
