"""Files and loaded data sets of tasks, row by row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from assay.core.errors import FileFormatError, InputError, unknown_name
from assay.core.parquet import read_parquet_file
from assay.core.random import stream
from assay.core.untrusted import parse_json


TASK_FILES = (".jsonl", ".parquet")  # what the name of a file of prompts ends in
_FORMS = (
    "clean, corrupted and answers (and wrong); MIB's prompt, its answer and counterfactuals; or questions "
    "with their choices"
)
_FIRST = ({"clean", "corrupted", "answers"}, {"prompt"}, {"question"})  # what the forms have at least


def draw_rows(total: int, n: int | None, *, seed: int, what: str = "images") -> Int64[np.ndarray, " k"]:
    """`n` of `total` row numbers without replacement, ascending; all of them if `n` is None or not smaller.

    The stream is `images/sample` of the seed, or that of another `what`.
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the {what}")
    if n is None or n >= total:
        return np.arange(total)
    return np.sort(stream(seed, f"{what}/sample").choice(total, n, replace=False))


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


# ---- data sets that are loaded already ------------------------------------------------------------


@runtime_checkable
class MapStyle(Protocol):
    """Rows that have numbers."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, row: Any) -> Any:
        """One of them."""


@runtime_checkable
class Columnar(MapStyle, Protocol):
    """A `datasets.Dataset`, as far as it is read here."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""

    @property
    def features(self) -> Mapping[str, Any]:
        """Type of each column."""

    def with_format(self, kind: None) -> Any:
        """The same rows as plain Python values."""


def check_loaded(dataset: object) -> MapStyle:
    """The data set, if its rows have numbers.

    Raises:
        InputError: For several splits, a stream, anything else, and for no rows at all.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        splits = [str(each) for each in dataset]
        raise InputError(
            f"the data set is a {kind} of the splits {', '.join(splits)}; give one, e.g. "
            f"dataset[{next(iter(splits), '')!r}]"
        )
    if not isinstance(dataset, MapStyle):
        raise InputError(
            f"the data set is a {kind}, whose rows have no numbers; expected a map-style data set (of "
            "PyTorch, or datasets.Dataset). Take a part of a stream: "
            "datasets.Dataset.from_list(list(stream.take(1000)))"
        )
    if len(dataset) == 0:
        raise InputError(f"the data set ({kind}) has no rows; give one that has some")
    return dataset


def name_of(dataset: object) -> tuple[str, dict[str, str]]:
    """What a data set is called, and its split, where it names one."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
    split = getattr(dataset, "split", None)
    return str(name or type(dataset).__name__), {} if split is None else {"split": str(split)}


class _Records(Mapping[int, str | dict[str, Any]]):
    """Rows by their number, from 1, read when they are asked for."""

    def __init__(self, dataset: MapStyle, columns: Mapping[str, str]) -> None:
        plain = dataset.with_format(None) if isinstance(dataset, Columnar) else dataset
        self._dataset: Any = plain
        self._columns = {own: name for name, own in columns.items()}

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, len(self._dataset) + 1))

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = self._dataset[number - 1]
        if not isinstance(row, Mapping):
            raise InputError(
                f"row {number} of the data set is a {type(row).__name__}; expected named columns"
            )
        record = {self._columns.get(str(name), str(name)): value for name, value in row.items()}
        for name in {"answers", "wrong"} & set(record):
            if isinstance(record[name], str):
                record[name] = [record[name]]
        return record


def loaded_rows(dataset: Any, *, columns: Mapping[str, str] | None = None, expected: str) -> Rows:
    """The rows of a data set that is loaded already, as those of a file.

    Args:
        dataset: A `datasets.Dataset`, or a map-style data set whose items are mappings.
        columns: What a row should be called -> the data set's column. Text in the columns of answers is one
            answer.
        expected: What a row should be, for messages.

    Raises:
        InputError: If the data set has no rows or no numbers for them, or columns of no known form.
        UnknownNameError: If there is no such column.
    """
    found, columns = check_loaded(dataset), dict(columns or {})
    first = found[0]
    if not isinstance(first, Mapping):
        raise InputError(
            f"the items of the data set are {type(first).__name__}; expected rows with the columns {_FORMS}"
        )
    for name in columns.values():
        if name not in first:
            raise unknown_name("column of the data set", name, [str(each) for each in first])
    named = _Records(found, columns)
    if not any(each <= set(named[1]) for each in _FIRST):
        raise InputError(
            f"the data set has the columns {', '.join(map(str, first))}; expected {_FORMS}. Say which is "
            "which, e.g. columns={'clean': 'COLUMN', 'corrupted': 'COLUMN', 'answers': 'COLUMN'}"
        )
    return Rows(f"data set {name_of(dataset)[0]}", "row", named, expected)
