"""Correctness archives as Parquet: a row per example, a boolean column per model."""

import base64
import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from assay.analyses.subsets._contents import (
    ARGUMENTS,
    META,
    Contents,
    as_object,
    gather_rows,
    json_object,
    must_pack,
    plain_column,
)
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.placement import has_scores, row_of
from assay.core.errors import FileFormatError, InputError
from assay.core.extras import needs_extra
from assay.core.parquet import check_rows, parquet_table
from assay.core.record import plain


SCHEMA = "assay-correctness/1"
_COLUMNS = 64  # Parquet columns read at a time; a multiple of 8
_METADATA = b"assay-correctness"
_CORRECT = "correct:"
_LARGEST_METADATA = 64 << 20  # Parquet readers refuse metadata of more than 100 MB


def is_archive(path: Path) -> bool:
    """Whether a Parquet file is a correctness archive, not a table."""
    arrow, parquet = pyarrow_modules()
    try:
        return _METADATA in (parquet.read_schema(path).metadata or {})
    except (OSError, arrow.ArrowException) as error:
        raise FileFormatError(f"cannot read {path} as Parquet: {error}") from error


def pyarrow_modules() -> tuple[ModuleType, ModuleType]:
    """`pyarrow` and `pyarrow.parquet`, or the error that names the extra."""
    with needs_extra("parquet", "Parquet needs pyarrow"):
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def parquet_bytes(data: Mapping[str, Any]) -> bytes:
    """The file of the arguments of `CorrectnessData.of`."""
    if has_scores(data["correct"]):
        raise InputError("a Parquet archive holds right and wrong answers; save scores as .npz")
    arrow, parquet = pyarrow_modules()
    columns: dict[str, Any] = {"example_id": arrow.array(data["example_ids"].tolist())}
    if data["labels"] is not None:
        columns["label"] = arrow.array(data["labels"])
    for name, column in data["meta"].items():
        kept = plain_column(name, column)
        columns[f"{META}{name}"] = arrow.array(kept.tolist() if kept.dtype.kind == "U" else kept)
    for name, rows in (("embedding", data["embedding"]), ("image", data["images"])):
        if rows is not None:
            flat = np.ascontiguousarray(rows).reshape(-1)
            columns[name] = arrow.FixedSizeListArray.from_arrays(arrow.array(flat), flat.size // len(rows))
    for place, name in enumerate(data["model_ids"]):
        columns[f"{_CORRECT}{name}"] = arrow.array(row_of(data["correct"], place).astype(bool))
    content = json.dumps(_model_table(data)).encode()
    if len(content) > _LARGEST_METADATA:
        raise InputError("id_embedding is too large for the metadata of a Parquet file; save as .npz")
    table = arrow.table(columns).replace_schema_metadata({_METADATA: content})
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def _model_table(data: Mapping[str, Any]) -> dict[str, Any]:
    per_model = {
        "model_id": data["model_ids"],
        "y": data["id_accuracy"],
        "n_id": data["n_id"],
        "group": data["groups"],
        "family": data["families"],
    }
    embedding = data["id_embedding"]
    return {
        "schema": SCHEMA,
        "models": {key: plain(held) for key, held in per_model.items() if held is not None},
        "label_name": plain(data["label_names"]),
        "image_shape": None if data["images"] is None else list(data["images"].shape[1:]),
        "id_embedding": None
        if embedding is None
        else {
            "shape": list(embedding.shape),
            "float32": base64.b64encode(embedding.astype("<f4").tobytes()).decode(),
        },
        "source": plain(data["source"]),
    }


def read_parquet(path: Path) -> Contents:
    """What the file holds."""
    try:
        with pyarrow_modules()[1].ParquetFile(path) as file:
            return _read_columns(file, path)
    except MemoryError as error:  # what pyarrow says of a damaged file
        raise ValueError(str(error)) from error


def _read_columns(file: Any, path: Path) -> Contents:
    schema = file.schema_arrow
    metadata = (schema.metadata or {}).get(_METADATA, b"{}")
    table = json_object(metadata.decode(), _METADATA.decode(), path)
    if table.get("schema") != SCHEMA:
        raise FileFormatError(
            f"{path} has no table of models {SCHEMA!r} in its metadata (found: {table.get('schema')!r}). "
            "For your own frame use CorrectnessData.from_frame(pandas.read_parquet(path), ...)"
        )
    names = list(schema.names)
    check_rows(file.metadata.num_rows, 1, path)  # columns are read one by one
    models: Mapping[str, list[Any]] = table["models"]
    if unknown := sorted(set(models) - set(ARGUMENTS)):
        raise FileFormatError(
            f"{path} holds {unknown[0]!r} of each model, which is not a field of a correctness archive"
        )
    arrays: dict[str, Any] = {key: np.array(values) for key, values in models.items()}
    if missing := [name for name in models["model_id"] if f"{_CORRECT}{name}" not in names]:
        raise FileFormatError(f"{path} lacks the column '{_CORRECT}{missing[0]}' of a model in its table")
    for name in names:
        if name in ("example_id", "label") or name.startswith(META):
            column = parquet_table(file, path, [name]).column(0)
            if column.null_count:
                raise InputError(
                    f"{path}: the column {name!r} has {column.null_count} missing values; fill them"
                )
            values = column.to_numpy()
            arrays[name] = values.astype(str) if values.dtype.kind == "O" else values
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
    source = table.get("source")
    return Contents(matrix, arrays, None if source is None else as_object(source, "source", path), packed)


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
