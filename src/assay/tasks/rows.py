"""Rows of files and of loaded data sets, by their number; and samples of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int64
from torch import Tensor

from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.parquet import read_parquet_file
from assay.core.random import stream
from assay.core.untrusted import parse_json


TASK_FILES = (".jsonl", ".parquet")  # what the name of a file of prompts ends in


def draw_rows(total: int, n: int | None, *, seed: int, what: str = "images") -> Int64[np.ndarray, " k"]:
    """`n` of `total` row numbers without replacement, ascending; all of them if `n` is None or not smaller.

    The stream is `images/sample` of the seed, or that of another `what`.
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the {what}")
    if n is None or n >= total:
        return np.arange(total)
    return np.sort(stream(seed, f"{what}/sample").choice(total, n, replace=False))


def chosen_rows(indices: Any, total: int) -> Int[Tensor, " k"]:
    """Row numbers of a task of `total` rows, for `subset`.

    Raises:
        InputError: If there is none, or one is out of range.
    """
    rows = torch.as_tensor(indices)
    if rows.ndim != 1 or len(rows) == 0 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise InputError(
            f"subset has {tuple(rows.shape)} of {rows.dtype}; expected a list of at least one row number"
        )
    if int(rows.min()) < 0 or int(rows.max()) >= total:
        raise InputError(
            f"subset names rows {int(rows.min())} to {int(rows.max())}, but there are 0 to {total - 1}"
        )
    return rows.long()


def by_size(value: str) -> tuple[int, str]:
    """Sorts numbers by size, and before words."""
    return (int(value), "") if value.isdecimal() else (2**63, value)


def is_task_file(name: str | PathLike[str]) -> bool:
    """Whether a task is named by a file, not by a registered key."""
    return Path(name).suffix in TASK_FILES


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a file or data set, read when they are asked for.

    Attributes:
        source: The file, or what messages call the data set.
        unit: What it calls a row: `line` or `row`.
        numbers: Number of each row, from 1; empty lines have none.
        read: A row of this number.
        columns: What a row should be called -> the column that holds it, where the names differ.
    """

    source: Path | str
    unit: str
    numbers: Sequence[int]
    read: Callable[[int], Any]
    columns: Mapping[str, str]

    def where(self, number: int) -> str:
        """A row, as messages name it."""
        return f"{self.source}, {self.unit} {number}"

    def record(self, number: int) -> dict[str, Any]:
        """One row by the names of its columns; a text in `answers` or `wrong` is one of them.

        Raises:
            FileFormatError: If it is not an object of JSON; file and line are named.
            UnknownNameError: If there is no such column.
        """
        try:
            row = self.read(number)
        except ValueError as error:
            raise FileFormatError(f"{self.where(number)}: not JSON ({error}); expected an object") from error
        if not isinstance(row, Mapping):
            raise FileFormatError(
                f"{self.where(number)}: got a {type(row).__name__}; expected named columns, as an object of "
                "JSON"
            )
        for column in self.columns.values():
            check_name(f"column of {self.source}", column, row)
        names = {column: name for name, column in self.columns.items()}
        record: dict[str, Any] = {names.get(str(column), str(column)): value for column, value in row.items()}
        for name in ("answers", "wrong"):
            if isinstance(record.get(name), str):
                record[name] = [record[name]]
        return record


def read_rows(source: Any, columns: Mapping[str, str] | None = None) -> Rows:
    """The rows of a JSON lines file, a parquet file, or a data set that is loaded already.

    Args:
        source: A path, of parquet where it ends in `.parquet`; a `datasets.Dataset`; or a map-style data set
            whose items are mappings.
        columns: As in `Rows`.

    Raises:
        FileFormatError: If the file is missing, empty or not what its name says.
        InputError: If the data set has no rows or no numbers for them.
        MissingExtraError: If pyarrow is needed and not installed.
    """
    name: Path | str
    if not isinstance(source, str | Path):
        loaded = check_loaded(source)
        plain = loaded.with_format(None) if hasattr(loaded, "column_names") else loaded
        name, unit, numbers = f"data set {name_of(source)[0]}", "row", list(range(1, len(loaded) + 1))
        read = lambda number: plain[number - 1]  # noqa: E731 - three readers of a row
    elif Path(source).suffix == ".parquet":
        records = read_parquet_file(Path(source), extra="parquet").to_pylist()
        name, unit, numbers = Path(source), "row", list(range(1, len(records) + 1))
        read = lambda number: records[number - 1]  # noqa: E731
    else:
        try:
            lines = Path(source).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"cannot read task file {source}: {error}") from error
        numbers = [number for number, line in enumerate(lines, start=1) if line.strip()]
        name, unit = Path(source), "line"
        read = lambda number: parse_json(lines[number - 1])  # noqa: E731
    if not numbers:
        raise FileFormatError(f"task file {source} has no rows; expected one JSON object per {unit}")
    return Rows(source=name, unit=unit, numbers=numbers, read=read, columns=columns or {})


# ---- data sets that are loaded already ------------------------------------------------------------


def check_loaded(dataset: Any) -> Any:
    """The data set, if its rows have numbers.

    Raises:
        InputError: For several splits, a stream, anything else, and for no rows at all.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, Mapping):
        raise InputError(
            f"the data set is a {kind} of the splits {', '.join(map(str, dataset))}; give one, e.g. "
            f"dataset[{next(iter(dataset), '')!r}]"
        )
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
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
