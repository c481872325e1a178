"""Files and text that somebody else wrote: parsed, unpacked and shown without trusting them.

Every failure is an error with a name: nesting too deep for the parser, arrays that a file declares and does
not hold, pickles, text that a terminal would obey.
"""

import importlib
import json
import math
import re
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError, needs_extra
from assay.core.machine import free_memory


if TYPE_CHECKING:
    import numpy as np

# What content of the wrong shape makes ordinary code fail with. MemoryError is not among them: sizes are
# compared with what a file holds before anything is allocated. A RecursionError is a RuntimeError.
MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

# Damaged members, foreign compression (NotImplementedError is a RuntimeError), passwords, broken headers.
_BROKEN = (OSError, EOFError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)

_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
LEAST_BOMB = 1 << 30  # bytes; what is smaller is unpacked without a look at the memory
# Controls but tab and line break, and the marks that turn the direction of text around.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def parse_json(text: str | bytes) -> Any:
    """A JSON document, as a file holds it.

    Raises:
        ValueError: For everything that is none: text that is cut off, bytes that are no UTF-8, nesting too
            deep for the parser, half of a surrogate pair, which no file could be written with again.
    """
    try:
        content = text if isinstance(text, str) else text.decode("utf-8-sig")
        document = json.loads(content)
        if _LONE_SURROGATE.search(content):
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


def read_object(path: Path, what: str = "a JSON file") -> dict[str, Any]:
    """The object that a file of JSON holds, or of TOML where its name ends in `.toml`.

    Args:
        path: The file.
        what: What it should be, with its article.

    Raises:
        FileFormatError: For a file that cannot be read, is not of its format, or holds something else.
    """
    try:
        text = path.read_bytes()
        content = tomllib.loads(text.decode()) if path.suffix == ".toml" else parse_json(text)
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}; give {what}") from error
    except (ValueError, RecursionError) as error:  # not of the format, or not UTF-8
        raise FileFormatError(f"{path} is not {what}: {error}") from error
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} is not {what}: it holds a {type(content).__name__}")
    return content


@contextmanager
def malformed(path: object, what: str) -> Iterator[None]:
    """Failures of ordinary code over the content of a file become one error that names the file.

    Args:
        path: The file.
        what: What it should have been, with its article.

    Raises:
        FileFormatError: For anything of `MALFORMED` that is not an error of this package already.
    """
    try:
        yield
    except AssayError:
        raise
    except MALFORMED as error:
        raise FileFormatError(
            f"{path} is not {what} ({type(error).__name__}: {printable(str(error))[:300]}); restore it or "
            "make it again"
        ) from error


def refuse_pickle(path: Path) -> None:
    """Refuse a pickle, or a PyTorch file, that stands where safetensors are expected.

    Raises:
        UnsafeFileError: If it begins as one; it is not opened further.
    """
    with path.open("rb") as file:
        start = file.read(9)
    # Safetensors begin with the length of a JSON object: eight bytes, any first one, then a brace.
    if start[8:9] != b"{" and (start[:1] == b"\x80" or start[:2] == b"PK"):
        raise UnsafeFileError(
            f"{path} is a pickle or a PyTorch file, which could run code; convert it to safetensors"
        )


def load_npz(path: str | Path) -> "dict[str, np.ndarray]":
    """The arrays of an `.npz` archive, by name.

    Each array is compared with the size of its part of the archive, and all of them with the free memory,
    before anything is unpacked.

    Raises:
        FileFormatError: If the file is no such archive, is cut off, or declares other arrays than it holds.
        UnsafeFileError: If it is a pickle or an array of it holds pickled objects; they are not read.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if file.read(1) == b"\x80":
                raise UnsafeFileError(f"{path} is a pickle, which could run code; write an .npz")
        with zipfile.ZipFile(path) as archive:
            return _arrays(archive)
    except AssayError:
        raise
    except (*_BROKEN, *MALFORMED) as error:
        raise FileFormatError(
            f"{path} is not an archive of arrays (.npz), or is cut off or damaged: {error}"
        ) from error


def _arrays(archive: zipfile.ZipFile) -> "dict[str, np.ndarray]":
    """The arrays of an archive, none larger than its part of it, and all no larger than the memory."""
    from numpy.lib import format as npy  # not above: commands show their help without it

    unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > LEAST_BOMB and unpacked > (free := free_memory()):
        raise FileFormatError(
            f"{archive.filename} takes {unpacked / 1e9:.1f} GB unpacked and {free / 1e9:.1f} GB of memory "
            "are free; split it over several files"
        )
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    arrays = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        with archive.open(info) as stream:
            shape, _, dtype = readers[npy.read_magic(stream)](stream)
            if dtype.hasobject:
                raise UnsafeFileError(
                    f"{archive.filename}: the array {key!r} holds pickled objects, which could run code; "
                    "save text as an array of strings (dtype 'U')"
                )
            # Of a type without width any number of elements takes no byte.
            needed = math.prod(shape) * max(1, dtype.itemsize)
            if min(shape, default=0) < 0 or needed > info.file_size:
                raise ValueError(
                    f"array {key!r} declares {dtype} of shape {shape}, {needed:,} bytes, and "
                    f"{info.file_size:,} are there"
                )
            stream.seek(0)
            arrays[key] = npy.read_array(stream, allow_pickle=False)
            stream.read()  # at its end the checksum is compared
    return arrays


def printable(text: str, *, lines: bool = True) -> str:
    r"""Text as a terminal may be given it: escape sequences and the like are spelled out.

    Args:
        text: Any text; names, prompts and labels of files hold what their authors wished.
        lines: Keep line breaks and tabs; False spells them out too, for a cell of a table.

    Example:
        >>> printable("a\x1b[2Jb\r")
        'a\\x1b[2Jb\\r'
    """
    shown = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown if lines else shown.replace("\t", "\\t").replace("\n", "\\n")


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
    plain = [_decoded(each.type, f"{path}, column {each.name},") for each in file.schema_arrow]
    fields = [each.with_type(kind) for each, kind in zip(file.schema_arrow, plain, strict=True)]
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
