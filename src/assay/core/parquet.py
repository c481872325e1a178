"""Parquet that somebody else wrote: decoded only where it fits into the memory."""

import importlib
from pathlib import Path
from typing import Any

from assay.core.errors import FileFormatError
from assay.core.extras import needs_extra
from assay.core.machine import free_memory
from assay.core.untrusted import LEAST_BOMB, MALFORMED


_ROWS = 1 << 16  # decoded at a time


def read_parquet_file(path: Path, *, extra: str, most: int | None = None) -> Any:
    """A parquet file as a `pyarrow.Table` without dictionaries, if that fits into the free memory.

    A file holds a text that many cells repeat once, so its size and the sizes it declares say little. What is
    decoded is counted, some rows at a time.

    Args:
        path: The file.
        extra: The extra of this package that brings pyarrow, for the message.
        most: Bytes that the table may take; default: half of the free memory.

    Raises:
        FileFormatError: If it is not a parquet file, takes more than that, or has a dictionary within a list
            or a struct.
        MissingExtraError: If pyarrow is not installed.
    """
    with needs_extra(extra, "reading parquet needs pyarrow"):
        parquet = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            return _table(file, path, free_memory() // 2 if most is None else most)
    except FileFormatError:
        raise
    except (OSError, MemoryError, *MALFORMED) as error:  # pyarrow's own errors are of these kinds
        raise FileFormatError(f"cannot read {path} as parquet: {error}") from error


def _table(file: Any, path: Path, most: int) -> Any:
    """A table of an open `pyarrow.parquet.ParquetFile` of at most so many bytes."""
    pa = importlib.import_module("pyarrow")
    columns, chunks = [*range(len(file.schema))], list[Any]()
    for group in range(file.metadata.num_row_groups):
        # No row is read. Asked for its columns, a footer that contradicts itself ends the process; a reader
        # over them raises.
        list(file.reader.iter_batches(0, row_groups=[group], column_indices=columns))
        chunks += map(file.metadata.row_group(group).column, columns)
    _check_memory(sum(max(each.total_uncompressed_size, 8 * each.num_values) for each in chunks), most, path)
    fields = [
        field.with_type(_decoded(field.type, f"{path}, column {field.name},")) for field in file.schema_arrow
    ]
    schema = pa.schema(fields, metadata=file.schema_arrow.metadata)
    # No text is longer than its part of the file, so this many rows take at most a quarter of the limit.
    largest = max((each.total_uncompressed_size for each in chunks), default=1) or 1
    rows = min(_ROWS, max(1, most // 4 // largest))
    decoded, batches = 0, []
    for batch in file.iter_batches(batch_size=rows):
        batches.append(batch.cast(schema))
        decoded += batches[-1].nbytes
        _check_memory(decoded, most, path)
    return pa.Table.from_batches(batches, schema=schema)


def _check_memory(size: int, most: int, path: Path) -> None:
    if size > max(most, LEAST_BOMB // 8):
        raise FileFormatError(
            f"{path} takes {size / 1e9:.1f} GB or more decoded; at most {most / 1e9:.1f} GB are decoded with "
            "the memory that is free. Split it over several files"
        )


def _decoded(kind: Any, what: str) -> Any:
    """The Arrow type that holds every value itself: no dictionary, no view."""
    pa = importlib.import_module("pyarrow")
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kind = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)
    if "dictionary<" in str(kind) or "_view" in str(kind):
        raise FileFormatError(f"{what} has a dictionary inside a {kind}; write the file with plain values")
    return kind
