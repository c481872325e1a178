"""Every pair of a sample through an evaluator, block by block, each block kept as soon as it is done."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from assay.analyses.worst_case.evaluation import PairEvaluator, PairValues
from assay.analyses.worst_case.inputs import PairSample, first_occurrences, shown
from assay.circuits import write_atomically
from assay.core.errors import InputError, NonFiniteError, OutputError
from assay.core.record import canonical_json, record_id
from assay.core.untrusted import MALFORMED, parse_json


TILE = 128  # inputs a side of one block of a product
LISTED = 8192  # pairs of one block of a list
FORMAT = 1  # raised when blocks are cut or written in another way than before

Progress = Callable[[str, int, int], None]


class _Block(NamedTuple):
    """Where the values of one block belong among those of all distinct pairs."""

    rows: slice
    columns: slice | None

    @property
    def key(self) -> Any:
        return self.rows if self.columns is None else (self.rows, self.columns)


@dataclass(frozen=True)
class DistinctPairs:
    """The distinct pairs of a sample, and how the sample repeats them.

    Attributes:
        clean_rows: Row in the sample of each distinct clean input.
        corrupted_rows: Row of each distinct corrupted input.
        pairs: `[n, 2]` distinct pairs of distinct inputs; None: every combination.
        spread: Index that takes values of distinct pairs to those of the sample.
    """

    clean_rows: Int64[np.ndarray, " n_clean"]
    corrupted_rows: Int64[np.ndarray, " n_corrupted"]
    pairs: Int64[np.ndarray, "n 2"] | None
    spread: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values of distinct pairs."""
        if self.pairs is not None:
            return (len(self.pairs),)
        return (len(self.clean_rows), len(self.corrupted_rows))

    def blocks(self) -> Iterator[_Block]:
        """Parts of a fixed size, in a fixed order, whatever the machine."""
        if self.pairs is not None:
            for start in range(0, len(self.pairs), LISTED):
                yield _Block(slice(start, min(start + LISTED, len(self.pairs))), None)
            return
        for column in range(0, len(self.corrupted_rows), TILE):
            for row in range(0, len(self.clean_rows), TILE):
                yield _Block(
                    slice(row, min(row + TILE, len(self.clean_rows))),
                    slice(column, min(column + TILE, len(self.corrupted_rows))),
                )

    def listed(self, block: _Block) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Distinct inputs of each pair of a block, one after the other."""
        if self.pairs is not None:
            pairs = self.pairs[block.rows]
            return pairs[:, 0], pairs[:, 1]
        assert block.columns is not None
        rows = np.arange(block.rows.start, block.rows.stop)
        columns = np.arange(block.columns.start, block.columns.stop)
        return np.repeat(rows, len(columns)), np.tile(columns, len(rows))


def distinct_pairs(sample: PairSample, *, with_answers: bool) -> DistinctPairs:
    """The distinct pairs of a sample; with answers, inputs that differ in these alone are distinct."""
    (clean_rows, clean), (corrupted_rows, corrupted) = (
        side.distinct_with_answers if with_answers else side.distinct
        for side in (sample.clean, sample.corrupted)
    )
    if sample.pairs is None:
        return DistinctPairs(clean_rows, corrupted_rows, None, np.ix_(clean, corrupted))
    listed = np.stack([clean[sample.pairs[:, 0]], corrupted[sample.pairs[:, 1]]], axis=1)
    first, inverse = first_occurrences(listed[:, 0] * len(corrupted_rows) + listed[:, 1])
    return DistinctPairs(clean_rows, corrupted_rows, listed[first], inverse)


def n_blocks(distinct: DistinctPairs) -> int:
    """Blocks that the pairs are divided into."""
    return sum(1 for _ in distinct.blocks())


@runtime_checkable
class BlockShelf(Protocol):
    """Where finished blocks of one job are kept and taken from."""

    def read(self, number: int) -> PairValues | None:
        """A finished block; None where there is none."""

    def write(self, number: int, values: PairValues, *, finished: int, total: int) -> None:
        """Keep a block, the one after `finished` of `total`."""


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


def run_blocks(
    evaluator: PairEvaluator,
    sample: PairSample,
    distinct: DistinctPairs,
    *,
    shelf: BlockShelf | None,
    precise: bool,
    progress: Progress,
) -> PairValues:
    """Values of all pairs of a sample, in its shape.

    Args:
        evaluator: Over the distinct inputs.
        sample: What to run.
        distinct: Its distinct pairs.
        shelf: Where finished blocks are kept and taken from.
        precise: Keep float64; otherwise values are rounded to float32, which is what the model resolves.
        progress: Told of `attack` and the number of pairs done.

    Raises:
        NonFiniteError: For NaN or infinite values; the pair is shown.
        OutputError: If a block cannot be written; earlier blocks stay usable.
    """
    total = int(np.prod(distinct.shape))
    kind = _kind(precise=precise)
    found = PairValues(
        np.empty(distinct.shape, kind), np.empty(distinct.shape, kind), np.empty(distinct.shape, np.bool_)
    )
    blocks = list(distinct.blocks())
    done = 0
    progress("attack", 0, total)
    for number, block in enumerate(blocks):
        values = None if shelf is None else shelf.read(number)
        if values is None:
            values = _evaluate(evaluator, sample, distinct, block, kind)
            if shelf is not None:
                shelf.write(number, values, finished=number, total=len(blocks))
        for into, value in zip(found, values, strict=True):
            into[block.key] = value
        done += values.divergence.size
        progress("attack", done, total)
    return PairValues(
        found.divergence.astype(np.float64)[distinct.spread],
        found.empty.astype(np.float64)[distinct.spread],
        found.argmax_differs[distinct.spread],
    )


def run_some_blocks(
    evaluator: PairEvaluator,
    sample: PairSample,
    distinct: DistinctPairs,
    numbers: Collection[int],
    *,
    shelf: BlockShelf,
    precise: bool,
    progress: Progress,
) -> None:
    """Put some blocks on a shelf, by their numbers; those that lie there already are left alone."""
    blocks = [
        (number, block)
        for number, block in enumerate(distinct.blocks())
        if number in numbers and shelf.read(number) is None
    ]
    for done, (number, block) in enumerate(blocks):
        progress("attack", done, len(blocks))
        values = _evaluate(evaluator, sample, distinct, block, _kind(precise=precise))
        shelf.write(number, values, finished=done, total=len(blocks))


def _kind(*, precise: bool) -> type[np.float32] | type[np.float64]:
    return np.float64 if precise else np.float32


def _evaluate(
    evaluator: PairEvaluator,
    sample: PairSample,
    distinct: DistinctPairs,
    block: _Block,
    kind: type[np.float32] | type[np.float64],
) -> PairValues:
    try:
        if block.columns is None:
            values = evaluator.pairs(*distinct.listed(block))
        else:
            values = evaluator.table(block.rows, block.columns)
        return PairValues(values.divergence.astype(kind), values.empty.astype(kind), values.argmax_differs)
    except NonFiniteError as error:
        clean, corrupted = _first_bad(evaluator, *distinct.listed(block))
        rows = int(distinct.clean_rows[clean]), int(distinct.corrupted_rows[corrupted])
        raise NonFiniteError(
            f"the logits of model or circuit are NaN or infinite on the pair of clean input {rows[0]}, "
            f"{shown(sample.clean, rows[0], sample.tokenizer)}, and corrupted input {rows[1]}, "
            f"{shown(sample.corrupted, rows[1], sample.tokenizer)}; check the model's weights and dtype "
            "(float16 overflows)"
        ) from error


def _first_bad(
    evaluator: PairEvaluator, clean: Int64[np.ndarray, " n"], corrupted: Int64[np.ndarray, " n"]
) -> tuple[int, int]:
    """A pair that fails, out of pairs of which one does, by halving."""
    while len(clean) > 1:
        half = len(clean) // 2
        try:
            evaluator.pairs(clean[:half], corrupted[:half])
        except NonFiniteError:
            clean, corrupted = clean[:half], corrupted[:half]
        else:
            clean, corrupted = clean[half:], corrupted[half:]
    return int(clean[0]), int(corrupted[0])
