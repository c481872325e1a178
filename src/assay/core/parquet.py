"""Parquet that somebody else wrote: decoded only where it fits into the memory."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assay.core.errors import FileFormatError
from assay.core.extras import needs_extra
from assay.core.machine import free_memory
from assay.core.untrusted import LEAST_BOMB, MALFORMED


_CELL = 64  # bytes of a cell of a table in memory, at least
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}  # bytes of a value; of the other types 8
_ROWS = 1 << 16  # decoded at a time


def check_rows(n_rows: int, n_columns: int, path: Path) -> None:
    """Refuse a table that a few bytes on disk make too long for the memory.

    Args:
        n_rows: As the file declares.
        n_columns: Likewise.
        path: The file, for the message.

    Raises:
        FileFormatError: If its cells would not fit.
    """
    needed = _CELL * n_rows * n_columns
    if needed > LEAST_BOMB // 8 and needed > (free := free_memory()):
        raise FileFormatError(
            f"{path} declares {n_rows:,} rows of {n_columns} columns, about {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB of memory are free; split it over several files"
        )


def read_parquet_file(path: Path, *, extra: str, most: int | None = None) -> Any:
    """A parquet file as a `pyarrow.Table` without dictionaries.

    Args:
        path: The file.
        extra: The extra of this package that brings pyarrow, for the message.
        most: As of `parquet_table`.

    Raises:
        FileFormatError: If it is not a parquet file, or does not fit into the memory.
        MissingExtraError: If pyarrow is not installed.
    """
    with open_parquet(path, extra=extra) as file:
        return parquet_table(file, path, most=most)


@contextmanager
def open_parquet(path: Path, *, extra: str) -> Iterator[Any]:
    """An open `pyarrow.parquet.ParquetFile`; arguments and errors as of `read_parquet_file`."""
    with needs_extra(extra, "reading parquet needs pyarrow"):
        parquet = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            check_rows(file.metadata.num_rows, len(file.schema_arrow.names), path)
            yield file
    except FileFormatError:
        raise
    except (OSError, MemoryError, *MALFORMED) as error:  # pyarrow's own errors are of these kinds
        raise FileFormatError(f"cannot read {path} as parquet: {error}") from error


def parquet_table(file: Any, path: Path, columns: list[str] | None = None, *, most: int | None = None) -> Any:
    """A table of an open `pyarrow.parquet.ParquetFile`, decoded, if that fits into the free memory.

    A file holds a text that many cells repeat once, so its size and the sizes it declares say little. What is
    decoded is counted, some rows at a time.

    Args:
        file: The open file.
        path: The file, for messages.
        columns: Names of those to read; default: all.
        most: Bytes that the table may take; default: half of the free memory.

    Returns:
        A `pyarrow.Table` without dictionaries.

    Raises:
        FileFormatError: If it takes more than that, or pyarrow finds none.
    """
    pa = importlib.import_module("pyarrow")

    free, largest, declared = free_memory(), 1, 0
    most = free // 2 if most is None else most
    for group in range(file.metadata.num_row_groups):
        described = file.metadata.row_group(group)
        for place in range(described.num_columns):
            chunk = described.column(place)
            if columns is None or chunk.path_in_schema.split(".")[0] in columns:
                width = _WIDTHS.get(chunk.physical_type, 8) + (file.schema.column(place).length or 0)
                declared += max(chunk.total_uncompressed_size, width * chunk.num_values)
                largest = max(largest, chunk.total_uncompressed_size)
    _check_decoded(declared, most, path)
    # No text is longer than its part of the file, so this many rows take at most a quarter of the limit.
    rows = min(_ROWS, max(1, most // 4 // largest))
    decoded, batches = 0, []
    schema = pa.schema(
        [field.with_type(_decoded_type(field.type)) for field in file.schema_arrow],
        metadata=file.schema_arrow.metadata,
    )
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
    try:
        for batch in file.iter_batches(batch_size=rows, columns=columns):
            batches.append(batch.select(schema.names).cast(schema))
            decoded += batches[-1].nbytes
            _check_decoded(decoded, most, path)
        return pa.Table.from_batches(batches, schema=schema)
    except MemoryError as error:
        raise FileFormatError(
            f"{path} takes more memory decoded than there is ({free / 1e9:.1f} GB are free); split it over "
            "several files"
        ) from error


def _check_decoded(size: int, most: int, path: Path) -> None:
    if size > LEAST_BOMB // 8 and size > most:
        raise FileFormatError(
            f"{path} takes {size / 1e9:.1f} GB or more decoded, twice that while it is read; at most "
            f"{most / 1e9:.1f} GB are decoded with the memory that is free. Split it over several files"
        )


def _decoded_type(kind: Any) -> Any:
    """The Arrow type that holds every value itself: no dictionaries or views, at any depth."""
    pa = importlib.import_module("pyarrow")

    if pa.types.is_dictionary(kind):
        return _decoded_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_decoded_type(each.type)) for each in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded_type(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_decoded_type(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_decoded_type(kind.value_type)))
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return views.get(kind, kind)
