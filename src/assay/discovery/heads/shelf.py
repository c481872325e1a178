"""Columns of a measurement table on disk: blocks of rows that are added and never changed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.circuits.files import read_arrays, real_numbers, write_arrays, write_atomically
from assay.core.errors import FileFormatError, InputError, writing
from assay.core.untrusted import malformed, read_object


KIND = "block of a measurement table"


class Shelf:
    """The folder of one table: its record in `table.json`, a safetensors file per block of rows of a column.

    Args:
        folder: It is made if it does not exist.
        identity: Content hash of the record.
        record: What the table is a function of.

    Raises:
        InputError: If the folder holds the table of something else; the facts that differ are named.
        FileFormatError: If its record cannot be read.
        OutputError: If the folder cannot be written.
    """

    def __init__(self, folder: Path, identity: str, record: Mapping[str, Any]) -> None:
        self.folder, self.identity = folder, identity
        path = folder / "table.json"
        with writing(f"make the folder {folder}", "choose a writable one"):
            folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            content = {"hash": identity, "record": dict(record)}
            write_atomically(path, json.dumps(content, indent=1, allow_nan=False).encode())
            return
        found = read_object(path, "the record of a measurement table")
        with malformed(path, "the record of a measurement table"):
            stored = dict(found["record"])
        if found.get("hash") != identity:
            differing = sorted(key for key in {*stored, *record} if stored.get(key) != record.get(key))
            raise InputError(
                f"the table in {folder} belongs to another {', '.join(differing)}: its hash is "
                f"{found.get('hash')}, expected {identity}. Give this table its own folder"
            )

    def _path(self, column: str, start: int) -> Path:
        return self.folder / f"{column.replace('/', '~')}.{start:08d}.safetensors"

    def has(self, column: str, start: int = 0) -> bool:
        """Whether the block of a column that begins at a row is there."""
        return self._path(column, start).exists()

    def read(self, column: str, start: int = 0) -> Float64[np.ndarray, "*shape"]:
        """One block.

        Raises:
            FileFormatError: If the file is truncated, changed, or of another table.
        """
        path = self._path(column, start)
        arrays, header = read_arrays(path, KIND)
        if (header.get("table"), header.get("column")) != (self.identity, column):
            raise FileFormatError(
                f"{path} holds {header.get('column')!r} of the table {header.get('table')!r}, expected "
                f"{column!r} of {self.identity!r}; delete it, and it will be measured again"
            )
        with malformed(path, KIND):
            return np.asarray(real_numbers(arrays["values"]).numpy(), dtype=np.float64)

    def write(self, column: str, start: int, values: Float64[np.ndarray, "*shape"]) -> None:
        """Add a block; one that is there already stays as it is."""
        path = self._path(column, start)
        if not path.exists():
            arrays = {"values": torch.from_numpy(np.ascontiguousarray(values))}
            write_arrays(path, arrays, {"kind": KIND, "table": self.identity, "column": column})
