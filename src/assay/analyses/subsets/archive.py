"""Correctness data on disk: `.npz` without pickles, or Parquet with a row per example.

`.npz` arrays: `X` (models by examples, 0 and 1; or float32, scores between them) or `X_bits` with
`shape` (bit b of `X_bits[r, j]` is X[8 r + b, j], the least significant bit first); `y`; optional `n_id`
(one number or one per model), `model_id`, `group`, `family`, `example_id`, `label`, `label_name`,
`meta_NAME`, `embedding`, `id_embedding`, `images`, `source` (JSON). What `assay zoo` writes is such a
file.

Parquet columns: `example_id`, `label`, `meta_NAME`, `embedding`, `image`, and a boolean `correct:MODEL` per
model; the table of models stands as JSON under `assay-correctness` in the metadata of the schema.
"""

import contextlib
import io
import json
import math
import os
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from assay.analyses.subsets._contents import (
    ARGUMENTS,
    META,
    Contents,
    gather_rows,
    json_object,
    must_pack,
    plain_column,
)
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.parquet import parquet_bytes, read_parquet
from assay.analyses.subsets.placement import has_scores
from assay.circuits import write_atomically
from assay.core.errors import AssayError, FileFormatError, InputError, near_matches
from assay.core.machine import free_memory
from assay.core.record import plain
from assay.core.untrusted import DAMAGED_ZIP, NpzMember, malformed, open_npz


SUFFIXES = (".npz", ".parquet")
_KEYS = {argument: key for key, argument in ARGUMENTS.items()}
_NUMBERS = ("y", "n_id", "embedding", "id_embedding")
_DENSE_SAVED = 64_000_000  # entries of the largest matrix that is written as bytes
_BLOCK = 1 << 26  # bytes read at a time


def write_archive(data: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the arguments of `CorrectnessData.of`; see `CorrectnessData.save`."""
    path = Path(path)
    return write_atomically(path, _npz_bytes(data) if _suffix(path) == ".npz" else parquet_bytes(data))


def read_archive(path: Path) -> dict[str, Any]:
    """The arguments of `CorrectnessData.of` that a file holds; see `CorrectnessData.load`."""
    suffix = _suffix(path)
    if not path.is_file():
        raise FileFormatError(f"{path} is not a file; give a correctness archive ({' or '.join(SUFFIXES)})")
    try:
        return _arguments(_read_npz(path) if suffix == ".npz" else read_parquet(path), path)
    except AssayError:
        raise
    except DAMAGED_ZIP as error:
        raise FileFormatError(
            f"{path} is not a correctness archive, or is truncated or damaged: {error}"
        ) from error


@contextlib.contextmanager
def naming_arrays(path: Path | str, **others: Path | None) -> Iterator[None]:
    """Errors of `CorrectnessData.of` name the file, and the array instead of the argument.

    Args:
        path: The file, or what to call the data.
        **others: Arrays that lie in another file, by name.
    """
    try:
        yield
    except InputError as error:
        named = _KEYS.get(re.split(r"\W", str(error), maxsplit=1)[0])
        where = f"{others.get(named) or path}, array {named!r}" if named else str(path)
        raise type(error)(f"{where}: {error}") from error


def _suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} ends in {path.suffix!r}; a correctness archive ends in .npz or .parquet")
    return path.suffix


def _arguments(found: Contents, path: Path) -> dict[str, Any]:
    arrays = dict(found.arrays)
    if "y" not in arrays:
        raise FileFormatError(f"{path} lacks the array 'y', the in-distribution accuracy of each model")
    for key in _NUMBERS:
        if key in arrays and arrays[key].dtype.kind not in "iuf":
            raise FileFormatError(f"{path}: the array {key!r} holds {arrays[key].dtype}; expected numbers")
    if "n_id" in arrays and not arrays["n_id"].any():
        del arrays["n_id"]  # a zoo writes 0 for an unknown number
    if "label_name" in arrays:
        with malformed(path, "a correctness archive with a list of label names"):
            arrays["label_name"] = tuple(map(str, arrays["label_name"].tolist()))
    meta = {key.removeprefix(META): arrays.pop(key) for key in list(arrays) if key.startswith(META)}
    source = {"kind": "archive", "file": path.name} if found.source is None else found.source
    if found.packed:
        source = source | {"packed_while_read": "the matrix as bytes takes more than half of the free memory"}
    for key, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "V":
            raise FileFormatError(f"{path}: the array {key!r} holds {array.dtype}; expected text or numbers")
    arguments = {"correct": found.matrix, "meta": meta, "source": source, "scores": has_scores(found.matrix)}
    return arguments | {ARGUMENTS[key]: array for key, array in arrays.items()}


# ----------------------------------------------------------------------------------------------- npz


def _npz_bytes(data: Mapping[str, Any]) -> bytes:
    correct = data["correct"]
    arrays = {
        key: np.array(data[argument])
        for key, argument in ARGUMENTS.items()
        if key != "X" and data[argument] is not None
    }
    if isinstance(correct, PackedMatrix) or (correct.size > _DENSE_SAVED and not has_scores(correct)):
        packed = correct if isinstance(correct, PackedMatrix) else PackedMatrix.pack(correct)
        arrays |= {"X_bits": packed.bits, "shape": np.array([packed.n_models, packed.n_examples])}
    else:
        arrays["X"] = correct
    arrays |= {f"{META}{name}": plain_column(name, column) for name, column in data["meta"].items()}
    arrays["source"] = np.array(json.dumps(plain(data["source"])))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **cast("dict[str, Any]", arrays))
    return buffer.getvalue()


def _read_npz(path: Path) -> Contents:
    with open_npz(path) as (archive, members):
        _check_names(members, path)
        arrays = {key: member.array(archive) for key, member in members.items() if key != "X"}
        source = json_object(arrays.pop("source"), "source", path) if "source" in arrays else None
        matrix: np.ndarray | PackedMatrix
        packed = False
        if "X" not in members:
            matrix = _from_bits(arrays.pop("X_bits"), arrays["shape"], path)
        elif members["X"].dtype == np.float32:  # scores
            matrix = members["X"].array(archive)
            if matrix.ndim == 2 and all(((row == 0) | (row == 1)).all() for row in matrix):
                matrix = matrix.astype(np.uint8)
        else:
            matrix, packed = _read_matrix(archive, members["X"], path)
    arrays.pop("shape", None)
    return Contents(matrix, arrays, source, packed)


def _check_names(names: Collection[str], path: Path) -> None:
    """Raises `FileFormatError` unless an archive has one matrix and else only arrays that are known."""
    for key in names:
        if key not in (*ARGUMENTS, "X_bits", "shape", "source") and not key.startswith(META):
            near = near_matches(key, ARGUMENTS)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(ARGUMENTS)}, {META}NAME"
            raise FileFormatError(f"{path} holds an unknown array {key!r}; {hint}")
    if ("X" in names) == ("X_bits" in names):
        which = "both 'X' and 'X_bits'" if "X" in names else "neither 'X' nor 'X_bits'"
        raise FileFormatError(f"{path} holds {which}; expected one of them, models by examples")
    if "X_bits" in names and "shape" not in names:
        raise FileFormatError(f"{path} lacks the array 'shape', the numbers of models and examples of X_bits")


def _read_matrix(
    archive: zipfile.ZipFile, member: NpzMember, path: Path
) -> "tuple[np.ndarray | PackedMatrix, bool]":
    shape, dtype, by_rows = member.shape, member.dtype, member.by_rows
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise FileFormatError(
            f"{path}: the array 'X' holds {dtype} of shape {shape}; expected 0 and 1, models by examples"
        )
    pack = must_pack(shape[0], shape[1], what=f"{path}: X")
    if not by_rows and math.prod(shape) * (dtype.itemsize + 2) > free_memory():
        raise InputError(
            f"{path}: X of {shape[0]} x {shape[1]} does not fit into memory, and its column order "
            "prevents packing while it is read. Write X in row order, or X_bits"
        )

    with archive.open(member.info) as stream:
        stream.read(member.start)

        def blocks() -> Iterator[np.ndarray]:
            # Columns first: one block, since a part of it is not a set of rows.
            wide = max(1, shape[1] * dtype.itemsize)
            step = 8 * max(1, _BLOCK // (8 * wide)) if by_rows else shape[0]
            for start in range(0, shape[0], max(1, step)):
                height = min(step, shape[0] - start)
                content = stream.read(height * wide) if shape[1] else b""
                if len(content) < height * shape[1] * dtype.itemsize:
                    raise FileFormatError(f"{path}: the array 'X' is truncated after row {start}")
                flat = np.frombuffer(content, dtype=dtype)
                yield flat.reshape(height, shape[1]) if by_rows else flat.reshape(shape[1], height).T
            stream.read()  # at its end the checksum is compared

        matrix = gather_rows(
            blocks(), shape[0], shape[1], pack=pack, named=lambda row, column: f"{path}: X[{row}, {column}]"
        )
    return matrix, pack


def _from_bits(bits: np.ndarray, shape: np.ndarray, path: Path) -> PackedMatrix:
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 1).any():
        raise FileFormatError(f"{path}: 'shape' is {shape}; expected the numbers of models and examples")
    n_models, n_examples = shape.tolist()
    needed = (-(-n_models // 8), n_examples)
    if bits.dtype != np.uint8 or bits.shape != needed:
        raise FileFormatError(
            f"{path}: 'X_bits' is {bits.dtype} of shape {bits.shape}; expected uint8 of shape {needed} for "
            f"{n_models} models and {n_examples} examples: numpy.packbits(X, axis=0, bitorder='little')"
        )
    try:
        return PackedMatrix(bits, n_models)
    except InputError as error:
        raise InputError(f"{path}, array 'X_bits': {error}") from error
