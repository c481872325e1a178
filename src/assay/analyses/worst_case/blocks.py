"""Every pair of a sample through an evaluator, block by block, each block kept as soon as it is done."""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from assay.analyses.worst_case.evaluation import NonFinitePairError, PairValues
from assay.analyses.worst_case.inputs import PairSample, first_occurrences, shown
from assay.analyses.worst_case.pair_divergence import Divergence
from assay.analyses.worst_case.row_by_row import ablation_of, evaluator_of
from assay.circuits import Circuit, write_atomically
from assay.core.errors import InputError, NonFiniteError, OutputError
from assay.core.record import canonical_json, record_id
from assay.core.untrusted import MALFORMED, parse_json
from assay.models import Model


TILE = 128  # inputs a side of one block of a product
LISTED = 8192  # pairs of one block of a list
FORMAT = 1  # raised when blocks are cut or written in another way than before

Progress = Callable[[str, int, int], None]


class FolderShelf:
    """A directory that keeps the finished blocks of one job.

    Args:
        directory: Made if it does not exist.
        job: What the values are a function of.

    Raises:
        InputError: If the directory holds the blocks of another job.
        OutputError: If it cannot be written.
    """

    def __init__(self, directory: Path, job: Mapping[str, Any]) -> None:
        self.directory = directory
        self.id = record_id("worst_case_blocks", job)
        path = directory / "job.json"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            earlier = parse_json(path.read_text(encoding="utf-8")) if path.exists() else None
        except OSError as error:
            raise OutputError(f"cannot use {directory} for blocks: {error.strerror}") from error
        except ValueError:
            earlier = {}  # some other program's file
        if earlier is None:
            content = {"format": FORMAT, "id": self.id, "job": json.loads(canonical_json(job))}
            write_atomically(path, json.dumps(content, indent=1).encode())
        elif not isinstance(earlier, dict) or earlier.get("id") != self.id or earlier.get("format") != FORMAT:
            raise InputError(
                f"{directory} contains the blocks of another job ({_difference(earlier, job)}); give "
                "another directory, or delete this one"
            )

    def path(self, number: int) -> Path:
        return self.directory / f"block-{number:06d}.safetensors"

    def read(self, number: int) -> PairValues | None:
        """A finished block; None where there is none, or where its file is not what was written."""
        path = self.path(number)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                header = parse_json((file.metadata() or {}).get("assay", "{}"))
                arrays = {name: file.get_tensor(name).numpy() for name in PairValues._fields}
        except (SafetensorError, OSError, *MALFORMED):
            return None
        if not isinstance(header, dict):
            return None
        if header.get("job") != self.id or header.get("sha256") != _digest(arrays):
            return None
        return PairValues(**arrays)

    def write(self, number: int, values: PairValues, *, finished: int, total: int) -> None:
        arrays = {name: np.ascontiguousarray(value) for name, value in values._asdict().items()}
        tensors = {name: torch.from_numpy(value) for name, value in arrays.items()}
        # One entry: safetensors writes several in no fixed order, and equal blocks are to be equal files.
        header = json.dumps({"job": self.id, "sha256": _digest(arrays)})
        try:
            write_atomically(self.path(number), save(tensors, {"assay": header}))
        except OutputError as error:
            raise OutputError(
                f"{error}. {finished} of {total} blocks are saved in {self.directory}: free some space and "
                "run the same command again to resume"
            ) from error


def _difference(known: Any, job: Mapping[str, Any]) -> str:
    """What tells two jobs apart, for a message."""
    theirs = known.get("job") if isinstance(known, dict) else None
    ours = json.loads(canonical_json(job))
    if not isinstance(theirs, dict):
        return "its job.json was not written by this library"
    names = [name for name in ours if theirs.get(name) != ours[name]]
    return f"different: {', '.join(names) or 'format'}"


def _digest(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class PairBlocks:
    """The distinct pairs of a sample in parts of a fixed size, in a fixed order, whatever the machine.

    Args:
        circuit: Run on each of them.
        model: The model it departs from.
        sample: The pairs, repetitions included. Inputs that differ in their answers alone are distinct where
            the divergence reads these.
        divergence: What is measured.
        memory: Bytes that the evaluator may take; default: a share of what is free.
    """

    def __init__(
        self,
        circuit: Circuit,
        model: Model,
        sample: PairSample,
        divergence: Divergence,
        *,
        memory: int | None = None,
    ) -> None:
        clean, corrupted = (
            side.distinct_with_answers if divergence.needs_answers else side.distinct
            for side in (sample.clean, sample.corrupted)
        )
        self.sample, self.rows = sample, (clean.first_index, corrupted.first_index)
        self.shape: tuple[int, ...] = (len(clean.first_index), len(corrupted.first_index))
        self._pairs: Int64[np.ndarray, "n 2"] | None = None
        self._spread: Any = np.ix_(clean.inverse, corrupted.inverse)
        if sample.pairs is not None:
            listed = np.stack(
                [clean.inverse[sample.pairs[:, 0]], corrupted.inverse[sample.pairs[:, 1]]], axis=1
            )
            first, self._spread = first_occurrences(listed[:, 0] * self.shape[1] + listed[:, 1])
            self._pairs, self.shape = listed[first], (len(first),)
        # What a model in float32 or less resolves is kept in float32.
        self._kind = np.float64 if model.result_dtype == torch.float64 else np.float32
        sides = sample.clean.subset(self.rows[0]), sample.corrupted.subset(self.rows[1])
        self._evaluator = evaluator_of(
            model,
            circuit,
            *sides,
            ablation=sample.ablation,
            carried=ablation_of(sample),
            divergence=divergence,
            memory=memory,
        )
        size = TILE if self._pairs is None else LISTED
        parts = [[slice(start, min(start + size, n)) for start in range(0, n, size)] for n in self.shape]
        self._blocks = [block[::-1] for block in itertools.product(*reversed(parts))]

    def run(self, shelf: FolderShelf | None, progress: Progress) -> PairValues:
        """Values of all pairs of the sample, in its shape.

        Args:
            shelf: Where finished blocks are kept and taken from.
            progress: Told of `attack` and the number of pairs done.

        Raises:
            NonFiniteError: For NaN or infinite values; the pair is shown.
            OutputError: If a block cannot be written; earlier blocks stay usable.
        """
        total, done = int(np.prod(self.shape)), 0
        distinct = PairValues(*(np.empty(self.shape, kind) for kind in (self._kind, self._kind, np.bool_)))
        progress("attack", 0, total)
        for number, block in enumerate(self._blocks):
            values = None if shelf is None else shelf.read(number)
            if values is None:
                values = self._evaluate(block)
                if shelf is not None:
                    shelf.write(number, values, finished=number, total=len(self._blocks))
            for into, value in zip(distinct, values, strict=True):
                into[block] = value
            done += values.divergence.size
            progress("attack", done, total)
        return PairValues(
            distinct.divergence.astype(np.float64)[self._spread],
            distinct.empty.astype(np.float64)[self._spread],
            distinct.argmax_differs[self._spread],
        )

    def _evaluate(self, block: tuple[slice, ...]) -> PairValues:
        try:
            if self._pairs is None:
                values = self._evaluator.table(*block)
            else:
                values = self._evaluator.pairs(*self._pairs[block].T)
        except NonFinitePairError as error:
            clean, corrupted = int(self.rows[0][error.clean]), int(self.rows[1][error.corrupted])
            sample = self.sample
            raise NonFiniteError(
                f"the logits of model or circuit are NaN or infinite on the pair of clean input {clean}, "
                f"{shown(sample.clean, clean, sample.tokenizer)}, and corrupted input {corrupted}, "
                f"{shown(sample.corrupted, corrupted, sample.tokenizer)}; check the model's weights and "
                "dtype (float16 overflows)"
            ) from error
        return PairValues(
            values.divergence.astype(self._kind), values.empty.astype(self._kind), values.argmax_differs
        )
