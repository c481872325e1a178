"""Arrays of results: one safetensors file each, under the SHA-256 of its bytes."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, KeysView, Mapping
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, check_name, writing


class StoredArrays:
    """The arrays of one stored result by name, each read and verified when it is asked for.

    Not a `Mapping`: run-time type checks of that type would read an array of every result they meet.
    """

    def __init__(self, directory: Path, contents: Mapping[str, str]) -> None:
        self._directory = directory
        self._contents = dict(contents)

    def __getitem__(self, name: str) -> Tensor:
        """The array as a CPU tensor.

        Raises:
            UnknownNameError: The result has no array of this name.
            FileFormatError: The file is missing or its content changed.
        """
        check_name("array", name, self._contents)
        return safetensors.torch.load(read_array(self._directory, self._contents[name]))["value"]

    def keys(self) -> KeysView[str]:
        """Names of the arrays; with `[]` this lets `dict(arrays)` read them all."""
        return self._contents.keys()

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each array's file, which nothing is read for."""
        return dict(self._contents)

    def __contains__(self, name: object) -> bool:
        return name in self._contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)

    def __repr__(self) -> str:
        return f"StoredArrays({', '.join(self._contents)})"


def array_path(directory: Path, content: str) -> Path:
    """The file of an array."""
    return directory / "arrays" / content[:2] / f"{content}.safetensors"


def write_array(directory: Path, name: str, value: Tensor | np.ndarray) -> str:
    """Write one array under its content hash, unless it is there; returns the hash.

    Raises:
        InputError: What safetensors cannot hold.
        OutputError: The file cannot be written; no part of it is left.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))
        data = safetensors.torch.save({"value": tensor.detach().cpu().contiguous()})
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"array {name!r} must be a dense array of real numbers: {error}") from error
    content = hashlib.sha256(data).hexdigest()
    path = array_path(directory, content)
    # Compared in full: a file that was damaged since is written again, and so is one that was just removed.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if path.read_bytes() == data:
            return content
    with writing(f"make {path.parent} for an array"):
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(f"write {path}", "nothing was stored"):
        write_atomically(path, data)
        _make_durable(path.parent)
    return content


def read_array(directory: Path, content: str) -> bytes:
    """The file of an array, its bytes checked against their hash.

    Raises:
        FileFormatError: It is missing or was changed.
    """
    path = array_path(directory, content)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise FileFormatError(
            f"the array file {path} of a stored result is missing; copy it back from the original store, "
            "because `arrays` is part of the store"
        ) from error
    except OSError as error:
        raise FileFormatError(f"cannot read the array file {path}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != content:
        raise FileFormatError(f"{path} was changed after it was stored: its content does not match its name")
    return data


def _make_durable(folder: Path) -> None:
    """A new name survives a power cut once its folder is on disk; the row that names it is written later."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # a system that opens no folders keeps names itself
    try:
        with writing(f"write {folder} to disk"):
            os.fsync(handle)
    finally:
        os.close(handle)
