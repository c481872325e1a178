"""What a correctness archive holds, and the matrix of it, packed while it is read where memory is short."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.analyses.subsets._checks import require_binary
from assay.analyses.subsets.layouts import PackedMatrix
from assay.core.errors import FileFormatError, InputError
from assay.core.machine import free_memory
from assay.core.untrusted import parse_json


META = "meta_"
ARGUMENTS = {
    "X": "correct",
    "y": "id_accuracy",
    "n_id": "n_id",
    "model_id": "model_ids",
    "group": "groups",
    "family": "families",
    "example_id": "example_ids",
    "label": "labels",
    "label_name": "label_names",
    "embedding": "embedding",
    "id_embedding": "id_embedding",
    "images": "images",
}


class Contents(NamedTuple):
    """What a file holds: the matrix, the other arrays by key, and what was noted while reading."""

    matrix: np.ndarray | PackedMatrix
    arrays: dict[str, Any]
    source: dict[str, Any] | None
    packed: bool


def plain_column(name: str, column: np.ndarray) -> np.ndarray:
    """The column, unless it holds objects."""
    if column.dtype.kind == "O":
        raise InputError(
            f"meta[{name!r}] holds mixed objects, e.g. {column[0]!r}; give text (empty where missing) or "
            "numbers (NaN where missing)"
        )
    return column


def json_object(text: Any, key: str, path: Path) -> dict[str, Any]:
    """The JSON object that an archive keeps under a key."""
    try:
        value = parse_json(str(text))
    except ValueError as error:
        raise FileFormatError(f"{path}: {key!r} is not JSON: {error}") from error
    return as_object(value, key, path)


def as_object(value: Any, key: str, path: Path) -> dict[str, Any]:
    """A JSON object that an archive keeps under a key."""
    if not isinstance(value, dict):
        raise FileFormatError(f"{path}: {key!r} holds a {type(value).__name__}; expected a JSON object")
    return value


def must_pack(n_models: int, n_examples: int, *, what: str) -> bool:
    """Whether a matrix takes more than half of the free memory as bytes, so that it is packed while it is
    read.

    Args:
        n_models: M.
        n_examples: N.
        what: What it is, for the message.

    Raises:
        InputError: If it does not fit in memory even when packed.
    """
    entries, free = n_models * n_examples, free_memory()
    if entries // 4 > free:
        raise InputError(
            f"{what} of {n_models} models and {n_examples} examples does not fit into memory: even packed "
            f"it takes {entries // 8 / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. Split the examples "
            "over several files"
        )
    return 2 * entries > free


def gather_rows(
    blocks: Iterator[np.ndarray],
    n_models: int,
    n_examples: int,
    *,
    pack: bool,
    named: Callable[[int, int], str],
) -> "np.ndarray | PackedMatrix":
    """One matrix of blocks of rows, without a second copy of it.

    Args:
        blocks: Rows in order; every block but the last holds a multiple of 8.
        n_models: Rows in all.
        n_examples: Columns.
        pack: Whether to keep bits; see `must_pack`.
        named: What to call an entry, from its row and column.

    Raises:
        InputError: If an entry is neither 0 nor 1.
    """
    height = -(-n_models // 8) if pack else n_models
    matrix = np.empty((height, n_examples), dtype=np.uint8)
    row = 0
    for block in blocks:
        require_binary(block, named, row)
        ones = block.astype(np.uint8, copy=False)
        if pack:
            matrix[row // 8 : -(-(row + len(ones)) // 8)] = np.packbits(ones, axis=0, bitorder="little")
        else:
            matrix[row : row + len(ones)] = ones
        row += len(block)
    return PackedMatrix(matrix, n_models) if pack else matrix
