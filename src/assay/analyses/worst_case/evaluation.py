"""Divergences of one circuit for every pair of a sample, block by block, each kept as soon as it is done.

A pair costs the part of the circuit that depends on both inputs; what depends on one is prepared once per
block. Inputs share nothing where cut edges carry zeros or means, where a circuit keeps its edges at spans of
positions, or where what a target reads is normalised target by target; such pairs, and pairs of images, are
runs of one circuit. Logits live for one block of pairs only.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.divergence import (
    Divergence,
    Kernel,
    cross_divergences,
    get_divergence,
    pair_divergences,
    table_divergences,
)
from assay.analyses.worst_case.sampling import PairSample, PromptSet, first_occurrences, task_of
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError
from assay.discovery.heads.shelf import Shelf
from assay.execution import Ablation, PairRunner, PreparedInputs, get_ablation, run_circuit, run_model
from assay.execution.batches import TOKENS_PER_PASS, free_memory
from assay.models import Model


TILE = 128  # inputs a side of one block of a product
LISTED = 8192  # pairs of one block of a list
FORMAT = 1  # raised when blocks are cut or written in another way than before
HELD = 2**25  # numbers of logits, or of images, that are held at a time, per run of single pairs

Rows = Int64[np.ndarray, " _"]
Progress = Callable[[str, int, int], None]


class PairValues(NamedTuple):
    """What is known of each pair; all arrays `[n_pairs]`, or all `[n_clean, n_corrupted]`.

    Attributes:
        divergence: Of the circuit from the model.
        empty: Of the empty circuit, whose output is the model's on the corrupted input.
        argmax_differs: Whether the circuit's largest logit belongs to another token than the model's.
    """

    divergence: Float64[np.ndarray, "..."]
    empty: Float64[np.ndarray, "..."]
    argmax_differs: Bool[np.ndarray, "..."]


class PairEvaluator:
    """Runs one circuit on any pairs of given clean and corrupted inputs.

    Args:
        model: The model.
        circuit: The edges to keep, everywhere or at spans of positions.
        clean: Clean inputs; a pair names them by row.
        corrupted: Corrupted inputs, likewise; not read by an ablation without a second input.
        ablation: What cut edges carry.
        divergence: Key, `Divergence`, or a callable `(model logits, circuit logits) -> [pairs]`.
        runner: A runner of the same model and circuit, to share its weights, where `shares_inputs`.
    """

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        clean: PromptSet,
        corrupted: PromptSet,
        *,
        ablation: str | Ablation = "resample",
        divergence: str | Divergence | Kernel = "kl",
        runner: PairRunner | None = None,
    ) -> None:
        self.model, self.circuit, self.clean, self.corrupted = model, circuit, clean, corrupted
        self.ablation, self.divergence = get_ablation(ablation), get_divergence(divergence)
        # Half of it for inputs that are prepared, half for passes; results depend on it by rounding alone.
        self.memory = free_memory(model.device) * 6 // 10
        self.runner = runner
        if runner is None and shares_inputs(model, circuit, self.ablation):
            self.runner = PairRunner(model, circuit)

    def pairs(self, clean_index: Rows, corrupted_index: Rows) -> PairValues:
        """Divergences of some pairs, given by row numbers of both sides.

        Raises:
            InputError: If the two inputs of a pair are read at different positions.
            NonFiniteError: If logits or a divergence are NaN or infinite; the pair is named.
        """
        read, found = self.clean.positions.numpy()[clean_index], _undefined((len(clean_index),))
        unequal = np.flatnonzero(read != self.corrupted.positions.numpy()[corrupted_index])
        if len(unequal) and self.ablation.paired:
            i, j = int(clean_index[unequal[0]]), int(corrupted_index[unequal[0]])
            raise InputError(
                f"pair ({i}, {j}) joins prompts of {int(self.clean.lengths[i])} and "
                f"{int(self.corrupted.lengths[j])} tokens, but edges can only be patched between prompts of "
                "one length"
            )
        for length in (np.unique(read) + 1).tolist():
            places = np.flatnonzero(read == length - 1)
            if self.runner is None:
                images = self.clean.images
                size = max(1, HELD // max(self.model.n_vocab, 0 if images is None else images[0].numel()))
            else:
                size = min(self._per_pass(self.runner, length), self._kept(self.runner, length))
            for part in np.split(places, range(size, len(places), size)):
                rows, columns = clean_index[part], corrupted_index[part]
                if self.runner is None:
                    logits = self._single_logits(rows, columns)
                else:
                    logits = self._listed_logits(self.runner, rows, columns, length)
                values = self._values(rows, *logits)
                for into, value in zip(found, values, strict=True):
                    into[part] = value
        self._check_finite(found, clean_index, corrupted_index)
        return found

    def table(self, clean_index: Rows, corrupted_index: Rows) -> PairValues:
        """Divergences of every combination of some clean and some corrupted inputs, given by row numbers.

        Raises:
            InputError: If the inputs are not all read at one position.
            NonFiniteError: If logits or a divergence are NaN or infinite; the pair is named.
        """
        sides = (self.clean.positions[clean_index], self.corrupted.positions[corrupted_index])
        read = torch.cat(sides).unique().tolist()
        if len(read) != 1:
            raise InputError(
                f"inputs are read at positions {', '.join(map(str, read))}, but a table of "
                "all pairs needs a single read position; use prompts of one length"
            )
        if self.runner is None:
            clean, other = np.meshgrid(clean_index, corrupted_index, indexing="ij")
            values = self.pairs(clean.ravel(), other.ravel())
            return PairValues(*(each.reshape(clean.shape) for each in values))
        length, found = read[0] + 1, _undefined((len(clean_index), len(corrupted_index)))
        size = self._kept(self.runner, length)
        for column in range(0, len(corrupted_index), size):
            columns = slice(column, column + size)
            corrupted = self._prepared(self.runner, self.corrupted, corrupted_index[columns], length)
            for row in range(0, len(clean_index), size):
                rows = slice(row, row + size)
                values = PairValues(*(each[rows, columns] for each in found))
                self._fill(self.runner, values, clean_index[rows], corrupted, length)
        self._check_finite(found, clean_index[:, None], corrupted_index[None])
        return found

    def _values(self, rows: Rows, model: Tensor, circuit: Tensor, empty: Tensor) -> PairValues:
        clean = self.clean.subset(rows)
        differs = (circuit.argmax(-1) != model.argmax(-1)).cpu().numpy()
        kept, nothing = (pair_divergences(self.divergence, model, run, clean) for run in (circuit, empty))
        return PairValues(kept, nothing, differs)

    # ---- by the parts that pairs share ------------------------------------------------------------

    def _kept(self, runner: PairRunner, length: int) -> int:
        """Inputs of one side that may be prepared at a time."""
        return max(1, self.memory // 4 // runner.bytes_to_prepare(length))

    def _per_pass(self, runner: PairRunner, length: int) -> int:
        """Pairs of one pass."""
        asked = TOKENS_PER_PASS if self.model.device.type == "cpu" else 2**16
        return max(1, min(self.memory // 2 // runner.bytes_per_pair(length), asked // length))

    def _prepared(self, runner: PairRunner, side: PromptSet, rows: Rows, length: int) -> PreparedInputs:
        """Inputs, trimmed behind the read position, after a pass over them."""
        size = max(1, min(TOKENS_PER_PASS // length, 2 * self._kept(runner, length)))
        parts = side.tokens[rows, :length].split(size)
        return PreparedInputs.concatenate(runner.prepare(part, clean=side is self.clean) for part in parts)

    def _fill(
        self, runner: PairRunner, values: PairValues, rows: Rows, corrupted: PreparedInputs, length: int
    ) -> None:
        """Values of every combination: few clean inputs against many corrupted ones at a time."""
        inputs, size = self.clean.subset(rows), self._per_pass(runner, length)
        clean, which = self._prepared(runner, self.clean, rows, length), self.divergence
        values.empty[:] = cross_divergences(which, clean.logits, corrupted.logits, inputs, at_once=size)
        for columns in torch.arange(corrupted.n).split(min(size, corrupted.n)):
            right = corrupted.rows(columns)
            for part in torch.arange(clean.n).split(max(1, size // len(columns))):
                left, place = clean.rows(part), np.ix_(part.numpy(), columns.numpy())
                logits = runner.product(left, right)
                chosen = inputs.subset(part.numpy())
                values.divergence[place] = table_divergences(which, left.logits, logits, chosen)
                differs = logits.argmax(-1) != left.logits.argmax(-1)[:, None]
                values.argmax_differs[place] = differs.cpu().numpy()

    def _listed_logits(
        self, runner: PairRunner, rows: Rows, columns: Rows, length: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of model, circuit and empty circuit, on pairs one after the other."""
        (first, left), (second, right) = (np.unique(each, return_inverse=True) for each in (rows, columns))
        clean = self._prepared(runner, self.clean, first, length)
        corrupted = self._prepared(runner, self.corrupted, second, length)
        at, other = torch.from_numpy(left), torch.from_numpy(right)
        circuit = runner.pairs(clean, corrupted, at, other)
        return clean.logits[at], circuit, corrupted.logits[other]

    # ---- each pair by itself ----------------------------------------------------------------------

    def _single_logits(self, rows: Rows, columns: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Of model, circuit and empty circuit; the model is run once per input."""
        task = task_of(self.clean.subset(rows), self.corrupted.subset(columns))

        def model(side: PromptSet, index: Rows) -> Tensor:
            distinct, back = np.unique(index, return_inverse=True)
            own = side.subset(distinct)
            return run_model(self.model, task_of(own, own), check=False)[back]

        def circuit(kept: Circuit) -> Tensor:
            return run_circuit(kept, self.model, task, ablation=self.ablation, check=False)

        if self.ablation.paired:
            empty = model(self.corrupted, columns)
        else:
            empty = circuit(Circuit.empty(self.circuit.graph))
        return model(self.clean, rows), circuit(self.circuit), empty

    def _check_finite(self, values: PairValues, rows: np.ndarray, columns: np.ndarray) -> None:
        """Refuse NaN and infinite divergences; the first such pair is named."""
        for name, array in zip(("circuit", "empty circuit"), values[:2], strict=True):
            bad = ~np.isfinite(array)
            if bad.any():
                i, j = (int(np.broadcast_to(index, array.shape)[bad][0]) for index in (rows, columns))
                raise NonFiniteError(
                    f"the divergence of the {name} is {array[bad][0]} on the pair of clean input {i}, "
                    f"{self.clean.text(i, None)!r}, and corrupted input {j}, "
                    f"{self.corrupted.text(j, None)!r}: logits are NaN or infinite there. Check the model's "
                    "weights and dtype (float16 overflows)"
                )


def shares_inputs(model: Model, circuit: Circuit, ablation: Ablation) -> bool:
    """Whether pairs are sums of a part of the clean and a part of the corrupted input; see `PairRunner`."""
    summed = model.vision is None and all(block.target_norm is None for block in model.blocks)
    return ablation.key == "resample" and circuit.spans is None and not circuit.partial and summed


def _undefined(shape: tuple[int, ...]) -> PairValues:
    return PairValues(np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_))


# ------------------------------------------------------------------------------- every pair, resumable


def sample_values(
    circuit: Circuit,
    model: Model,
    sample: PairSample,
    divergence: Divergence,
    *,
    shelf: Shelf | None = None,
    progress: Progress | None = None,
) -> PairValues:
    """Values of all pairs of a sample, in its shape; equal pairs are run once.

    The distinct pairs come in parts of a fixed size and order, whatever the machine. What a model in float32
    or less resolves is kept in float32.

    Args:
        circuit: Run on each of them.
        model: The model it departs from.
        sample: The pairs. Inputs that differ in their answers alone are distinct where the divergence reads
            these.
        divergence: What is measured.
        shelf: Where finished blocks are kept and taken from.
        progress: Told of `attack` and the number of pairs done.

    Raises:
        NonFiniteError: For NaN or infinite values; the pair is shown.
        OutputError: If a block cannot be written; earlier blocks stay usable.
    """
    clean, corrupted = (
        side.distinct_with_answers if divergence.needs_answers else side.distinct
        for side in (sample.clean, sample.corrupted)
    )
    rows, columns = clean.first_index, corrupted.first_index
    if sample.pairs is None:
        shape: tuple[int, ...] = (len(rows), len(columns))
        spread: Any = np.ix_(clean.inverse, corrupted.inverse)
    else:
        listed = clean.inverse[sample.pairs[:, 0]], corrupted.inverse[sample.pairs[:, 1]]
        first, spread = first_occurrences(listed[0] * len(columns) + listed[1])
        rows, columns = rows[listed[0][first]], columns[listed[1][first]]
        shape = (len(first),)
    sides = sample.clean, sample.corrupted
    evaluator = PairEvaluator(model, circuit, *sides, ablation=sample.carried, divergence=divergence)
    kind: type[np.floating] = np.float64 if model.result_dtype == torch.float64 else np.float32
    done, total = 0, int(np.prod(shape))
    distinct = PairValues(np.empty(shape, kind), np.empty(shape, kind), np.empty(shape, np.bool_))
    blocks = list(_blocks(shape))
    tell: Progress = progress or (lambda stage, done, total: None)
    tell("attack", 0, total)
    for number, block in enumerate(blocks):
        kept = None if shelf is None else shelf.read("block", number)
        if kept is not None:
            values = PairValues(**kept)
        else:
            run = evaluator.table if sample.pairs is None else evaluator.pairs
            found = run(rows[block[0]], columns[block[-1]])
            values = PairValues(found.divergence.astype(kind), found.empty.astype(kind), found.argmax_differs)
            if shelf is not None:
                shelf.write("block", number, **values._asdict())
        for into, value in zip(distinct, values, strict=True):
            into[block] = value
        done += values.divergence.size
        tell("attack", done, total)
    return PairValues(
        distinct.divergence.astype(np.float64)[spread],
        distinct.empty.astype(np.float64)[spread],
        distinct.argmax_differs[spread],
    )


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Parts of a table, the rows of the first columns first, or of a list."""
    size = LISTED if len(shape) == 1 else TILE
    parts = [[slice(start, min(start + size, n)) for start in range(0, n, size)] for n in shape]
    for block in itertools.product(*reversed(parts)):
        yield block[::-1]
