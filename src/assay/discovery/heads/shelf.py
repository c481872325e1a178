"""Arrays of one job on disk: named blocks that are added and never changed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.circuits.files import read_arrays, write_arrays, write_atomically
from assay.core.errors import FileFormatError, InputError, writing
from assay.core.record import canonical_json
from assay.core.untrusted import malformed, read_object


class Shelf:
    """The folder of one job: its record in `job.json`, a safetensors file per block.

    Args:
        folder: It is made if it does not exist.
        identity: Content hash of the record.
        record: What the arrays are a function of.

    Raises:
        InputError: If the folder holds another job; the facts that differ are named.
        FileFormatError: If its record cannot be read.
        OutputError: If the folder cannot be written.
    """

    def __init__(self, folder: Path, identity: str, record: Mapping[str, Any]) -> None:
        self.folder, self.identity, path = folder, identity, folder / "job.json"
        with writing(f"make the folder {folder}", "choose a writable one"):
            folder.mkdir(parents=True, exist_ok=True)
        text = canonical_json({"hash": identity, "record": dict(record)})
        if not path.exists():
            write_atomically(path, text.encode())
            return
        found, own = read_object(path, "the record of a job"), json.loads(text)["record"]
        with malformed(path, "the record of a job"):
            stored = dict(found["record"])
        if found.get("hash") != identity:
            differing = sorted(key for key in {*stored, *own} if stored.get(key) != own.get(key))
            raise InputError(
                f"the blocks in {folder} belong to another {', '.join(differing)}: their hash is "
                f"{found.get('hash')}, expected {identity}. Give this job its own folder"
            )

    def _path(self, name: str, number: int) -> Path:
        return self.folder / f"{name.replace('/', '~')}.{number:08d}.safetensors"

    def read(self, name: str, number: int = 0) -> dict[str, np.ndarray] | None:
        """The arrays of a block; None where there is none, or where its file is damaged or of another job."""
        path = self._path(name, number)
        try:
            arrays, header = read_arrays(path, name)
            if header.get("job") != self.identity or any(array.is_complex() for array in arrays.values()):
                return None
            with malformed(path, name):
                return {key: array.numpy() for key, array in arrays.items()}
        except FileFormatError:
            return None

    def write(self, name: str, number: int, **arrays: np.ndarray) -> None:
        """Add a block, whole or not at all."""
        tensors = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in arrays.items()}
        write_arrays(self._path(name, number), tensors, {"kind": name, "job": self.identity})
