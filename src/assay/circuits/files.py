"""Matrices of edges on disk: one safetensors file each, with JSON metadata and a content hash."""

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from assay.core.errors import FileFormatError, GraphMismatchError, OutputError
from assay.core.untrusted import MALFORMED, malformed, parse_json, refuse_pickle
from assay.graph import Graph, build_graph


if TYPE_CHECKING:
    from assay.circuits.spans import Spans

FORMAT = 1
# Kinds of files that position-aware circuits and scores had to themselves.
FORMER_KINDS = {"position circuit": "circuit", "position scores": "scores"}
MOST_CELLS = 1 << 27  # of a matrix of edges that a file may ask for
# Where a file is written before it gets its name: what a kill leaves. SQLite has a journal beside its own.
TEMPORARY = re.compile(r"\..+\.\d+\.[0-9a-f]{8}(-journal)?")


def write_atomically(path: Path, content: bytes) -> Path:
    """Write under a temporary name in the same directory, then rename.

    The permissions are those of the user's umask, or stricter where those of a file that is replaced are.

    Raises:
        OutputError: If the directory does not exist or cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    exclusive = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        most = stat.S_IMODE(path.stat(follow_symlinks=False).st_mode) if path.exists() else 0o666
        with os.fdopen(os.open(temporary, exclusive, most & 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}; nothing was changed, choose a writable directory"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written, nothing is left either
            temporary.unlink(missing_ok=True)
    return path


def shipped(folder: str) -> dict[str, Any]:
    """The JSON files that come with the package in a folder of this one, by name."""
    files = resources.files("assay.circuits").joinpath(folder).iterdir()
    return {file.name.removesuffix(".json"): file for file in files if file.name.endswith(".json")}


def _digest(arrays: dict[str, Tensor], metadata: str) -> str:
    digest = hashlib.sha256(metadata.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {tuple(array.shape)} {array.dtype}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_arrays(path: Path, arrays: dict[str, Tensor], metadata: dict[str, Any]) -> Path:
    """Write named tensors with JSON metadata and a hash of both, whole or not at all.

    Args:
        path: The file.
        arrays: Flags are kept as bytes.
        metadata: With the `kind` that `read_arrays` asks for.

    Raises:
        OutputError: If the file cannot be written.
    """
    flags = {name: array.to(torch.uint8) for name, array in arrays.items() if array.dtype == torch.bool}
    arrays = {name: array.contiguous() for name, array in (arrays | flags).items()}
    text = json.dumps({"format": FORMAT, **metadata}, sort_keys=True, default=str)
    return write_atomically(path, save(arrays, {"assay": text, "sha256": _digest(arrays, text)}))


def read_arrays(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and metadata that `write_arrays` wrote.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
    """
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist; give a {kind} file")
    refuse_pickle(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    # Beside its own errors, safetensors fails as torch does for a type that torch lacks, and for empty files.
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise FileFormatError(
            f"{path} is not a readable safetensors file ({error}); it may be truncated, so save it again"
        ) from error
    if "assay" not in header or _digest(arrays, header["assay"]) != header.get("sha256"):
        raise FileFormatError(
            f"{path} is not a {kind} written by .save(), or was changed since (hash mismatch); restore it or "
            "make it again"
        )
    with malformed(path, f"a {kind} written by .save()"):
        metadata: dict[str, Any] = parse_json(header["assay"])
        if metadata["format"] > FORMAT:
            raise FileFormatError(
                f"{path} has format {metadata['format']}, this version reads up to {FORMAT}; update assay"
            )
        if kind not in (metadata["kind"], FORMER_KINDS.get(metadata["kind"])):
            raise FileFormatError(f"{path} holds {metadata['kind']!r}, not {kind!r}; give a {kind} file")
    return arrays, metadata


def real_numbers(array: Tensor) -> Tensor:
    """The array, if it holds floating-point numbers; a ValueError where it holds something else."""
    if not array.dtype.is_floating_point:
        raise ValueError(f"its numbers are {array.dtype}; expected floating-point numbers")
    return array


def write_edges(
    path: str | Path,
    graph: Graph,
    arrays: dict[str, Tensor],
    *,
    spans: "Spans | None" = None,
    **metadata: Any,
) -> Path:
    """Write matrices of edges with the graph and spans that they index, as `write_arrays` does."""
    of = {"graph": graph.describe(), "fingerprint": graph.fingerprint}
    at = {} if spans is None else {"spans": spans.describe()}
    return write_arrays(Path(path), arrays, {**of, **at, **metadata})


def check_graph(what: str, own: Graph, asked: Graph) -> None:
    """Refuse what belongs to another graph than the one asked for."""
    if own.fingerprint != asked.fingerprint:
        text = f"{what} belongs to another model: its graph is {own.describe()}"
        raise GraphMismatchError(f"{text}, but the requested one is {asked.describe()}")


def read_edges(
    path: str | Path, kind: str, graph: Graph | None
) -> tuple[Graph, dict[str, Tensor], dict[str, Any]]:
    """Graph, matrices and metadata that `write_edges` wrote.

    Args:
        path: The file.
        kind: What it must hold.
        graph: The graph it must belong to; default: the one it was saved with.

    Raises:
        FileFormatError: If the file is truncated, tampered with, of another kind or too new.
        GraphMismatchError: If it belongs to another graph.
    """
    arrays, metadata = read_arrays(Path(path), kind)
    with malformed(path, f"a {kind} written by .save()"):
        stored = build_graph(**metadata["graph"])
        if any(type(value) not in (int, bool) for value in metadata["graph"].values()):
            raise ValueError(f"its graph is described by {metadata['graph']}")
        if stored.n_sources * stored.n_targets > MOST_CELLS:  # before its matrices are built
            raise ValueError(f"its graph is {metadata['graph']}, which is too large to be read")
        if metadata["fingerprint"] != stored.fingerprint:
            raise ValueError("graph description and fingerprint disagree")
    check_graph(str(path), stored, graph or stored)
    return stored, arrays, metadata
