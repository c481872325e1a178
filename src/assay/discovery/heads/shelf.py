"""Columns of a measurement table on disk: blocks of rows that are added and never changed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.circuits.files import read_arrays, real_numbers, write_arrays, write_atomically
from assay.core.errors import FileFormatError, InputError, UnsafeFileError, writing
from assay.core.untrusted import parse_json


RECORD = "table.json"
KIND = "block of a measurement table"
_REMEDY = "delete it, and it will be measured again"


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
        path = folder / RECORD
        with writing(f"make the folder {folder}", "choose a writable one"):
            folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._check(path, record)
        else:
            content = {"hash": identity, "record": dict(record)}
            write_atomically(path, json.dumps(content, indent=1, allow_nan=False).encode())

    def _check(self, path: Path, record: Mapping[str, Any]) -> None:
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
            identity, stored = found["hash"], dict(found["record"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FileFormatError(
                f"{path} is not the record of a measurement table ({error!r}). It may be incomplete: "
                "restore it or give another folder"
            ) from error
        if identity != self.identity:
            differing = sorted(key for key in {*stored, *record} if stored.get(key) != record.get(key))
            raise InputError(
                f"the table in {path.parent} belongs to another {', '.join(differing)}: its hash is "
                f"{identity}, expected {self.identity}. Give this table its own folder"
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
        try:
            arrays, header = read_arrays(path, KIND)
            values = real_numbers(arrays["values"]).numpy()
        except UnsafeFileError:
            raise
        except (FileFormatError, KeyError, ValueError) as error:
            raise FileFormatError(f"{error}; {_REMEDY}") from error
        for key, value in self._header(column).items():
            if header.get(key) != value:
                raise FileFormatError(
                    f"{path} has {key} {header.get(key)!r}, expected {value!r}: it belongs to another "
                    f"table; {_REMEDY}"
                )
        return np.asarray(values, dtype=np.float64)

    def write(self, column: str, start: int, values: Float64[np.ndarray, "*shape"]) -> None:
        """Add a block; one that is there already stays as it is."""
        path = self._path(column, start)
        if path.exists():
            return
        arrays = {"values": torch.from_numpy(np.ascontiguousarray(values))}
        write_arrays(path, arrays, {"kind": KIND, **self._header(column)})

    def _header(self, column: str) -> dict[str, str]:
        return {"table": self.identity, "column": column}
