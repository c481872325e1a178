"""Correctness data on disk: `.npz` without pickles, or Parquet with a row per example.

`.npz` arrays: `X` (0 and 1, models by examples) or `X_bits` with `shape` (bit b of `X_bits[r, j]` is X[8 r +
b, j], the least significant bit first); `y`; optional `n_id` (one number or one per model), `model_id`,
`group`, `family`, `example_id`, `label`, `label_name`, `meta_NAME`, `embedding`, `id_embedding`, `images`,
`source` (JSON). What `assay zoo` writes is such a file.

Parquet columns: `example_id`, `label`, `meta_NAME`, `embedding`, `image`, and a boolean `correct:MODEL` per
model; the table of models stands as JSON under `assay-correctness` in the metadata of the schema.
"""

import base64
import importlib
import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import UInt8

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.circuits import write_atomically
from assay.core.errors import (
    AssayError,
    FileFormatError,
    InputError,
    MissingExtraError,
    UnsafeFileError,
    near_matches,
)
from assay.core.machine import free_memory
from assay.core.record import plain
from assay.core.untrusted import (
    MALFORMED,
    check_declared,
    check_rows,
    check_unpacked,
    malformed,
    parquet_table,
    parse_json,
)


SCHEMA = "assay-correctness/1"
SUFFIXES = (".npz", ".parquet")

_ARGUMENTS = {
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
_KEYS = {argument: key for key, argument in _ARGUMENTS.items()}
_NUMBERS = ("y", "n_id", "embedding", "id_embedding")
_DENSE_SAVED = 64_000_000  # entries of the largest matrix that is written as bytes
_BLOCK = 1 << 26  # bytes read at a time
_COLUMNS = 64  # Parquet columns read at a time; a multiple of 8
_METADATA = b"assay-correctness"
_CORRECT = "correct:"
_META = "meta_"
_LARGEST_METADATA = 64 << 20  # Parquet readers refuse metadata of more than 100 MB


def save_correctness(data: CorrectnessData, path: str | os.PathLike[str]) -> Path:
    """Write an archive that `load_correctness` reads back unchanged.

    A packed matrix, and one of more than 64 million entries, is written as bits.

    Args:
        data: What to write.
        path: Ends in `.npz` or `.parquet`.

    Returns:
        The path.

    Raises:
        InputError: If the suffix is another one, or a metadata column holds neither text nor numbers.
        MissingExtraError: If pyarrow is needed and not installed.
        OutputError: If the file cannot be written.
    """
    path = Path(path)
    content = _npz_bytes(data) if _suffix(path) == ".npz" else _parquet_bytes(data)
    return write_atomically(path, content)


def load_correctness(path: str | os.PathLike[str]) -> CorrectnessData:
    """Read an archive: one of `save_correctness`, of `assay zoo`, or made by hand; see the module for its
    keys.

    A matrix that would take more than half of the free memory as bytes is packed while it is read; `source`
    then says so under `packed_while_read`.

    Args:
        path: Ends in `.npz` or `.parquet`.

    Raises:
        FileFormatError: If the file is missing, truncated, no such archive, lacks `X` or `y`, or holds an
            array that no archive has.
        UnsafeFileError: If it holds pickled objects; they are not read.
        InputError: If an array holds what no data can: entries that are not 0 or 1, NaN accuracies or
            accuracies in per cent, ids that repeat, lengths that differ (`ShapeError`); or if it does not fit
            in memory.
        MissingExtraError: If pyarrow is needed and not installed.
    """
    path = Path(path)
    suffix = _suffix(path)
    if not path.is_file():
        raise FileFormatError(f"{path} is no file; give a correctness archive ({' or '.join(SUFFIXES)})")
    found = _read_npz(path) if suffix == ".npz" else _read_parquet(path)
    return _assembled(found, path)


class _Contents(NamedTuple):
    """What a file holds: the matrix, the other arrays by key, and what was noted while reading."""

    matrix: "np.ndarray | PackedMatrix"
    arrays: dict[str, Any]
    source: dict[str, Any] | None
    packed: bool


def _suffix(path: Path) -> str:
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} ends in {path.suffix!r}; a correctness archive ends in .npz or .parquet")
    return path.suffix


def _assembled(found: _Contents, path: Path) -> CorrectnessData:
    arrays = dict(found.arrays)
    if "y" not in arrays:
        raise FileFormatError(f"{path} lacks the array 'y', the in-distribution accuracy of each model")
    for key in _NUMBERS:
        if key in arrays and arrays[key].dtype.kind not in "iuf":
            raise FileFormatError(f"{path}: the array {key!r} holds {arrays[key].dtype}; numbers are needed")
    if "n_id" in arrays and not arrays["n_id"].any():
        del arrays["n_id"]  # 0 is how a zoo writes that nobody knows
    if "label_name" in arrays:
        with malformed(path, "a correctness archive with a list of label names"):
            arrays["label_name"] = tuple(map(str, arrays["label_name"].tolist()))
    meta = {key.removeprefix(_META): arrays.pop(key) for key in list(arrays) if key.startswith(_META)}
    source = {"kind": "archive", "file": path.name} if found.source is None else found.source
    if found.packed:
        source = source | {"packed_while_read": "the matrix as bytes takes more than half of the free memory"}
    for key, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "V":
            raise FileFormatError(
                f"{path}: the array {key!r} holds {array.dtype}; text or numbers are needed"
            )
    try:
        return CorrectnessData.of(
            found.matrix,
            meta=meta,
            source=source,
            **{_ARGUMENTS[key]: array for key, array in arrays.items()},
        )
    except InputError as error:
        named = _KEYS.get(re.split(r"\W", str(error), maxsplit=1)[0])
        where = f"{path}, array {named!r}" if named else str(path)
        raise type(error)(f"{where}: {error}") from error


# ----------------------------------------------------------------------------------------------- matrices


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
    shape, entries, free = (n_models, n_examples), n_models * n_examples, free_memory()
    if 2 * entries <= free:
        return False
    if entries // 4 > free:
        raise InputError(
            f"{what} of {shape[0]} models and {shape[1]} examples does not fit: even packed it takes "
            f"{entries // 8 / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; split the examples over several "
            "files"
        )
    return True


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
    shape = (n_models, n_examples)
    height = -(-shape[0] // 8) if pack else shape[0]
    kept = np.empty((height, shape[1]), dtype=np.uint8)
    row = 0
    for block in blocks:
        bad = ~((block == 0) | (block == 1))
        if bad.any():
            at, column = np.argwhere(bad)[0].tolist()
            raise InputError(
                f"{named(row + at, column)} is {block[at, column]}; every entry must be 0 (wrong) or 1 "
                "(right)"
            )
        ones = block.astype(np.uint8, copy=False)
        if pack:
            kept[row // 8 : row // 8 + -(-len(ones) // 8)] = np.packbits(ones, axis=0, bitorder="little")
        else:
            kept[row : row + len(ones)] = ones
        row += len(block)
    return PackedMatrix(kept, shape[0]) if pack else kept


def _row_of(data: CorrectnessData, place: int) -> UInt8[np.ndarray, " n"]:
    if isinstance(data.correct, PackedMatrix):
        bits: UInt8[np.ndarray, " n"] = (data.correct.bits[place // 8] >> (place % 8)) & 1
        return bits
    row: UInt8[np.ndarray, " n"] = data.correct[place]
    return row


# ----------------------------------------------------------------------------------------------- npz


def _npz_bytes(data: CorrectnessData) -> bytes:
    if isinstance(data.correct, PackedMatrix) or data.correct.size > _DENSE_SAVED:
        packed = data.correct if isinstance(data.correct, PackedMatrix) else PackedMatrix.pack(data.correct)
        arrays = {"X_bits": packed.bits, "shape": np.array([data.n_models, data.n_examples])}
    else:
        arrays = {"X": data.correct}
    for key, argument in _ARGUMENTS.items():
        held = None if key == "X" else getattr(data, argument)
        if held is not None:
            arrays[key] = np.array(held)
    arrays |= {f"{_META}{name}": _plain_column(name, column) for name, column in data.meta.items()}
    arrays["source"] = np.array(json.dumps(plain(data.source)))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **cast("dict[str, Any]", arrays))
    return buffer.getvalue()


def _plain_column(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "O":
        raise InputError(
            f"meta[{name!r}] holds mixed objects, e.g. {column[0]!r}; give text (empty where missing) or "
            "numbers (NaN where missing)"
        )
    return column


def _read_npz(path: Path) -> _Contents:
    with path.open("rb") as file:
        start = file.read(6)
    if start[:1] == b"\x80":
        raise UnsafeFileError(f"{path} is a pickle; it is not read, since that could run code; write an .npz")
    if start == b"\x93NUMPY":
        raise FileFormatError(
            f"{path} is a single array; an .npz archive with at least 'X' and 'y' is needed"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            check_unpacked(archive, path)
            return _read_members(archive, path)
    except AssayError:
        raise
    # Of the zip layer: damaged members, foreign compression, passwords. MemoryError is the machine's.
    except (OSError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error, *MALFORMED) as error:
        raise FileFormatError(
            f"{path} is no correctness archive, or is cut off or damaged: {error}"
        ) from error


def _read_members(archive: zipfile.ZipFile, path: Path) -> _Contents:
    keys = [name.removesuffix(".npy") for name in archive.namelist()]
    for key in keys:
        if key not in (*_ARGUMENTS, "X_bits", "shape", "source") and not key.startswith(_META):
            near = near_matches(key, _ARGUMENTS)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_ARGUMENTS)}, {_META}NAME"
            raise FileFormatError(f"{path} holds an array {key!r} that no correctness archive has; {hint}")
    if ("X" in keys) == ("X_bits" in keys):
        which = "both 'X' and 'X_bits'" if "X" in keys else "neither 'X' nor 'X_bits'"
        raise FileFormatError(f"{path} holds {which}; one of them, models by examples, is needed")
    if "X_bits" in keys and "shape" not in keys:
        raise FileFormatError(f"{path} lacks the array 'shape', the numbers of models and examples of X_bits")
    arrays = {key: _read_array(archive, key, path) for key in keys if key != "X"}
    source = _json(arrays.pop("source"), "source", path) if "source" in arrays else None
    packed = False
    if "X" in keys:
        matrix, packed = _read_matrix(archive, path)
    else:
        matrix = _from_bits(arrays.pop("X_bits"), arrays["shape"], path)
    arrays.pop("shape", None)
    return _Contents(matrix, arrays, source, packed)


def _header(stream: Any, size: int, key: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise FileFormatError(f"{path}: the array {key!r} has the format {version}; plain arrays are read")
    shape, fortran, dtype = read(stream)
    check_declared(shape, dtype, size, key=key, path=path)
    return shape, fortran, dtype


def _read_array(archive: zipfile.ZipFile, key: str, path: Path) -> np.ndarray:
    with archive.open(f"{key}.npy") as member:
        shape, _, dtype = _header(member, archive.getinfo(f"{key}.npy").file_size, key, path)
    size, free = math.prod(shape) * dtype.itemsize, free_memory()
    if size > free:
        raise InputError(f"{path}: {key} takes {size / 1e9:.1f} GB; {free / 1e9:.1f} GB of memory are free")
    with archive.open(f"{key}.npy") as member:
        found: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        member.read()  # at its end the checksum is compared
    return found


def _read_matrix(archive: zipfile.ZipFile, path: Path) -> "tuple[np.ndarray | PackedMatrix, bool]":
    with archive.open("X.npy") as member:
        shape, fortran, dtype = _header(member, archive.getinfo("X.npy").file_size, "X", path)
        if len(shape) != 2 or dtype.kind not in "biuf":
            raise FileFormatError(
                f"{path}: the array 'X' holds {dtype} of shape {shape}; 0 and 1, models by examples, are "
                "needed"
            )
        pack = must_pack(shape[0], shape[1], what=f"{path}: X")
        free = free_memory()
        if fortran and math.prod(shape) * (dtype.itemsize + 2) > free:
            raise InputError(
                f"{path}: X of {shape[0]} x {shape[1]} does not fit in memory, and its column order keeps it "
                "from being packed while it is read; write X in row order, or X_bits"
            )

        def blocks() -> Iterator[np.ndarray]:
            # Columns first: one block, since a part of it is no set of rows.
            wide = max(1, shape[1] * dtype.itemsize)
            step = shape[0] if fortran else 8 * max(1, _BLOCK // (8 * wide))
            for start in range(0, shape[0], max(1, step)):
                height = min(step, shape[0] - start)
                content = member.read(height * wide) if shape[1] else b""
                if len(content) < height * shape[1] * dtype.itemsize:
                    raise FileFormatError(f"{path}: the array 'X' is cut off after row {start}")
                flat = np.frombuffer(content, dtype=dtype)
                yield flat.reshape(shape[1], height).T if fortran else flat.reshape(height, shape[1])
            member.read()

        matrix = gather_rows(
            blocks(), shape[0], shape[1], pack=pack, named=lambda row, column: f"{path}: X[{row}, {column}]"
        )
    return matrix, pack


def _from_bits(bits: np.ndarray, shape: np.ndarray, path: Path) -> PackedMatrix:
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or (shape < 1).any():
        raise FileFormatError(f"{path}: 'shape' is {shape}; the numbers of models and examples are needed")
    n_models, n_examples = shape.tolist()
    needed = (-(-n_models // 8), n_examples)
    if bits.dtype != np.uint8 or bits.shape != needed:
        raise FileFormatError(
            f"{path}: 'X_bits' is {bits.dtype} of shape {bits.shape}; for {n_models} models and {n_examples} "
            f"examples uint8 of shape {needed} is needed: numpy.packbits(X, axis=0, bitorder='little')"
        )
    try:
        return PackedMatrix(bits, n_models)
    except InputError as error:
        raise InputError(f"{path}, array 'X_bits': {error}") from error


def _json(held: Any, key: str, path: Path) -> dict[str, Any]:
    try:
        found = parse_json(str(held))
    except ValueError as error:
        raise FileFormatError(f"{path}: {key!r} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: {key!r} holds a {type(found).__name__}; a JSON object is needed")
    return found


# ----------------------------------------------------------------------------------------------- Parquet


def _arrow() -> tuple[ModuleType, ModuleType]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow; run: pip install 'assay[parquet]'") from error


def _parquet_bytes(data: CorrectnessData) -> bytes:
    arrow, parquet = _arrow()
    columns: dict[str, Any] = {"example_id": arrow.array(data.example_ids.tolist())}
    if data.labels is not None:
        columns["label"] = arrow.array(data.labels)
    for name, column in data.meta.items():
        kept = _plain_column(name, column)
        columns[f"{_META}{name}"] = arrow.array(kept.tolist() if kept.dtype.kind == "U" else kept)
    for name, rows in (("embedding", data.embedding), ("image", data.images)):
        if rows is not None:
            flat = np.ascontiguousarray(rows).reshape(-1)
            columns[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(flat), flat.size // len(rows))
    for place, name in enumerate(data.model_ids):
        columns[f"{_CORRECT}{name}"] = arrow.array(_row_of(data, place).astype(bool))
    content = json.dumps(_model_table(data)).encode()
    if len(content) > _LARGEST_METADATA:
        raise InputError("id_embedding is too large for the metadata of a Parquet file; save as .npz")
    table = arrow.table(columns).replace_schema_metadata({_METADATA: content})
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _model_table(data: CorrectnessData) -> dict[str, Any]:
    per_model = {
        "model_id": data.model_ids,
        "y": data.id_accuracy,
        "n_id": data.n_id,
        "group": data.groups,
        "family": data.families,
    }
    embedding = data.id_embedding
    return {
        "schema": SCHEMA,
        "models": {key: plain(held) for key, held in per_model.items() if held is not None},
        "label_name": plain(data.label_names),
        "image_shape": None if data.images is None else list(data.images.shape[1:]),
        "id_embedding": None
        if embedding is None
        else {
            "shape": list(embedding.shape),
            "float32": base64.b64encode(embedding.astype("<f4").tobytes()).decode(),
        },
        "source": plain(data.source),
    }


def _read_parquet(path: Path) -> _Contents:
    _, parquet = _arrow()
    try:
        with parquet.ParquetFile(path) as file:
            return _read_columns(file, path)
    except AssayError:
        raise
    except (OSError, MemoryError, *MALFORMED) as error:  # pyarrow's own errors are of these kinds
        raise FileFormatError(
            f"{path} is no correctness archive, or is cut off or damaged: {error}"
        ) from error


def _read_columns(file: Any, path: Path) -> _Contents:
    schema = file.schema_arrow
    held = (schema.metadata or {}).get(_METADATA, b"{}")
    table = _json(held.decode(), _METADATA.decode(), path)
    if table.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{path} has no table of models {SCHEMA!r} in its metadata (found: {table.get('schema')!r}); for "
            "a frame of your own use CorrectnessData.from_frame(pandas.read_parquet(path), ...)"
        )
    names = list(schema.names)
    check_rows(file.metadata.num_rows, 1, path)  # columns are read one by one
    models: Mapping[str, list[Any]] = table["models"]
    if unknown := sorted(set(models) - set(_ARGUMENTS)):
        raise FileFormatError(f"{path} holds {unknown[0]!r} of each model, which no correctness archive has")
    arrays: dict[str, Any] = {key: np.array(held) for key, held in models.items()}
    if missing := [name for name in models["model_id"] if f"{_CORRECT}{name}" not in names]:
        raise FileFormatError(f"{path} lacks the column '{_CORRECT}{missing[0]}' of a model in its table")
    for name in names:
        if name in ("example_id", "label") or name.startswith(_META):
            column = parquet_table(file, path, [name]).column(0)
            if column.null_count:
                raise InputError(
                    f"{path}: the column {name!r} has {column.null_count} missing values; fill them"
                )
            held = column.to_numpy()
            arrays[name] = held.astype(str) if held.dtype.kind == "O" else held
    n = file.metadata.num_rows
    for name, key, shape in (
        ("embedding", "embedding", [-1]),
        ("image", "images", table.get("image_shape")),
    ):
        if name in names:
            flat = parquet_table(file, path, [name]).column(0).combine_chunks().flatten().to_numpy()
            arrays[key] = flat.reshape(n, *(shape or [-1]))
    if (kept := table.get("id_embedding")) is not None:
        raw = np.frombuffer(base64.b64decode(kept["float32"]), dtype="<f4")
        arrays["id_embedding"] = raw.reshape(kept["shape"]).astype(np.float32)
    if table.get("label_name") is not None:
        arrays["label_name"] = np.array(table["label_name"])
    matrix, packed = _read_models(file, models["model_id"], n, path)
    return _Contents(matrix, arrays, table.get("source"), packed)


def _read_models(file: Any, names: list[str], n: int, path: Path) -> "tuple[np.ndarray | PackedMatrix, bool]":
    pack = must_pack(len(names), n, what=f"{path}: the matrix")

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(names), _COLUMNS):
            wanted = [f"{_CORRECT}{name}" for name in names[start : start + _COLUMNS]]
            part = parquet_table(file, path, wanted)
            rows = []
            for name in wanted:
                column = part.column(name)
                if column.null_count:
                    raise InputError(f"{path}: the column {name!r} has {column.null_count} missing values")
                rows.append(column.to_numpy())
            yield np.stack(rows)

    matrix = gather_rows(
        blocks(),
        len(names),
        n,
        pack=pack,
        named=lambda row, column: f"{path}: row {column} of the column '{_CORRECT}{names[row]}'",
    )
    return matrix, pack
