"""Every pair of a sample through an evaluator, block by block, each block kept as soon as it is done."""

import itertools
import json
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Int64

from assay.analyses.worst_case.evaluation import NonFinitePairError, PairValues
from assay.analyses.worst_case.inputs import PairSample, first_occurrences, shown
from assay.analyses.worst_case.pair_divergence import Divergence
from assay.analyses.worst_case.row_by_row import ablation_of, evaluator_of
from assay.circuits import Circuit, write_atomically
from assay.core.errors import InputError, NonFiniteError, OutputError
from assay.core.record import canonical_json
from assay.core.untrusted import parse_json
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
        self.directory, path = directory, directory / "job.json"
        job = {"format": FORMAT, **json.loads(canonical_json(job))}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            earlier = parse_json(path.read_text(encoding="utf-8")) if path.exists() else job
        except OSError as error:
            raise OutputError(f"cannot use {directory} for blocks: {error.strerror}") from error
        except ValueError:
            earlier = None  # some other program's file
        if not isinstance(earlier, dict) or earlier != job:
            known = earlier if isinstance(earlier, dict) else {}
            names = ", ".join(name for name in job if known.get(name) != job[name])
            raise InputError(
                f"{directory} contains the blocks of another job (different: {names}); give another "
                "directory, or delete this one"
            )
        write_atomically(path, json.dumps(job, indent=1).encode())

    def path(self, number: int) -> Path:
        return self.directory / f"block-{number:06d}.npz"

    def read(self, number: int) -> PairValues | None:
        """A finished block; None where there is none, or where its file is damaged."""
        try:
            with np.load(BytesIO(self.path(number).read_bytes()), allow_pickle=False) as arrays:
                return PairValues(**arrays)
        except (OSError, EOFError, ValueError, TypeError, BadZipFile):
            return None

    def write(self, number: int, values: PairValues, *, finished: int, total: int) -> None:
        content = BytesIO()
        np.savez(content, **values._asdict())
        try:
            write_atomically(self.path(number), content.getvalue())
        except OutputError as error:
            raise OutputError(
                f"{error}. {finished} of {total} blocks are saved in {self.directory}: free some space and "
                "run the same command again to resume"
            ) from error


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
