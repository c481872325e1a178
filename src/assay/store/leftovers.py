"""What killed writers leave in a store: files that were not finished, and arrays that no result names."""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sqlalchemy as sa

from assay.circuits.files import TEMPORARY
from assay.core.errors import writing
from assay.store.tables import ARRAYS


SETTLED = 3600.0  # seconds: a file unchanged for so long is not being written any more
_ARRAY = re.compile(r"([0-9a-f]{64})\.safetensors")


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A file of a store that no result needs.

    Attributes:
        path: Where it lies.
        kind: `temporary`, a file that was not finished, or `array`, one that no result names.
        size: Bytes.
    """

    path: Path
    kind: Literal["temporary", "array"]
    size: int


def find_leftovers(connection: sa.Connection, directory: Path, *, settled: float) -> list[Leftover]:
    """Files that killed writers left, by path.

    Args:
        connection: To the database that names the arrays.
        directory: Of the store. Links in it are not followed.
        settled: Seconds since the last change of a file, at least.
    """
    named = set(connection.execute(sa.select(ARRAYS.c.content)).scalars())
    newest = time.time() - settled
    found = []
    for folder, _, names in os.walk(directory):
        of_arrays = Path(folder).parent == directory / "arrays"
        for name in names:
            kind: Literal["temporary", "array"]
            if TEMPORARY.fullmatch(name):
                kind = "temporary"
            elif of_arrays and (match := _ARRAY.fullmatch(name)) and match[1] not in named:
                kind = "array"
            else:
                continue
            path = Path(folder, name)
            try:
                facts = path.lstat()
            except FileNotFoundError:  # its writer has just given it its name
                continue
            if facts.st_mtime <= newest:
                found.append(Leftover(path=path, kind=kind, size=facts.st_size))
    return sorted(found, key=lambda each: each.path)


def lock_arrays(connection: sa.Connection) -> None:
    """Let no result be stored until the transaction ends; those of SQLite exclude each other anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text(f"LOCK TABLE {ARRAYS.name} IN SHARE ROW EXCLUSIVE MODE"))


def remove_leftovers(connection: sa.Connection, directory: Path, *, settled: float) -> list[Leftover]:
    """Remove what `find_leftovers` finds.

    No result is stored meanwhile: one that names an array that goes here writes it again, see `Store.put`.

    Raises:
        OutputError: A file cannot be removed; those before it are.
    """
    lock_arrays(connection)
    found = find_leftovers(connection, directory, settled=settled)
    for each in found:
        with writing(f"remove {each.path}"):
            each.path.unlink(missing_ok=True)
    return found
