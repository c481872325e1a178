"""Files and text that somebody else wrote: parsed, unpacked and shown without trusting them.

Every failure is an error with a name: nesting too deep for the parser, arrays that a file declares and does
not hold, pickles, text that a terminal would obey.
"""

import json
import math
import re
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError
from assay.core.machine import free_memory


if TYPE_CHECKING:
    import numpy as np


# What content of the wrong shape makes ordinary code fail with. MemoryError is not among them: sizes are
# compared with what a file holds before anything is allocated.
MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
    tokenize.TokenError,  # of NumPy's headers
)

# Damaged members, foreign compression (NotImplementedError is a RuntimeError), passwords, broken headers.
DAMAGED_ZIP = (OSError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error, *MALFORMED)

_LONE_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ZIP_RATIO = 1100  # deflate cannot do better than 1032 : 1
_SIZES = ("compress_size", "file_size")
LEAST_BOMB = 1 << 30  # bytes; what is smaller is unpacked without a look at the memory
# Controls but tab and line break, and the marks that turn the direction of text around.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_BREAKS = {"\t": "\\t", "\n": "\\n"}


def parse_json(text: str | bytes, *, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """A JSON document.

    Args:
        text: As a file holds it.
        pairs: Makes an object of its keys and values; default: a `dict`, in which the last of equal keys
            counts.

    Raises:
        ValueError: For everything that is none: text that is cut off, bytes that are no UTF-8, nesting too
            deep for the parser, half of a surrogate pair, which no file could be written with again.
    """
    try:
        content = text if isinstance(text, str) else text.decode("utf-8-sig")
        document = json.loads(content, object_pairs_hook=pairs)
        if _LONE_SURROGATE.search(content):
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document.

    Raises:
        ValueError: For everything that is none, nesting too deep for the parser included.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_object(
    path: Path,
    what: str = "a JSON file",
    *,
    parse: Callable[[str], Any] = parse_json,
    error: type[AssayError] = FileFormatError,
) -> dict[str, Any]:
    """The object that a file of JSON, or of another format, holds.

    Args:
        path: The file.
        what: What it should be, with its article.
        parse: From its text, UTF-8, to what it holds; a ValueError says why it is not of the format.
        error: Raised for a file that cannot be read, is not of the format, or holds something else.
    """
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except OSError as failure:
        raise error(f"cannot read {path}: {failure.strerror or failure}; give {what}") from failure
    except ValueError as failure:  # not of the format, or not UTF-8
        raise error(f"{path} is not {what}: {failure}") from failure
    if not isinstance(content, dict):
        raise error(f"{path} is not {what}: it holds a {type(content).__name__}")
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
    except DAMAGED_ZIP as error:
        raise FileFormatError(
            f"{path} is not an archive of arrays (.npz), or is cut off or damaged: {error}"
        ) from error


def _arrays(archive: zipfile.ZipFile) -> "dict[str, np.ndarray]":
    """The arrays of an archive, none larger than its part of it, and all no larger than the memory."""
    from numpy.lib import format as npy  # not above: commands show their help without it

    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if len(members) < len(archive.infolist()):
        raise ValueError("it holds an array twice")
    packed, unpacked = (sum(getattr(each, key) for each in members.values()) for key in _SIZES)
    if unpacked > _ZIP_RATIO * max(1, packed):
        raise ValueError(f"it declares {unpacked:,} bytes in {packed:,}, more than compression can reach")
    if unpacked > LEAST_BOMB and unpacked > (free := free_memory()):
        raise FileFormatError(
            f"{archive.filename} takes {unpacked / 1e9:.1f} GB unpacked and {free / 1e9:.1f} GB of memory "
            "are free; split it over several files"
        )
    for key, info in members.items():
        with archive.open(info) as stream:
            readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
            shape, _, dtype = readers[npy.read_magic(stream)](stream)
        if dtype.hasobject:
            raise UnsafeFileError(
                f"{archive.filename}: the array {key!r} holds pickled objects, which could run code; save "
                "text as an array of strings (dtype 'U')"
            )
        # Of a type without width any number of elements takes no byte.
        needed = math.prod(shape) * max(1, dtype.itemsize)
        if min(shape, default=0) < 0 or needed > info.file_size:
            raise ValueError(
                f"array {key!r} declares {dtype} of shape {shape}, {needed:,} bytes, and {info.file_size:,} "
                "are there"
            )
    arrays = {}
    for key, info in members.items():
        with archive.open(info) as stream:
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
    return shown if lines else re.sub(r"[\t\n]", lambda found: _BREAKS[found[0]], shown)
