"""Divergences of one circuit for any pairs out of fixed lists of clean and corrupted inputs.

Inputs are prepared once and kept while memory allows; a pair then costs the part of the circuit that
depends on both inputs. Logits live for one block of pairs only.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from assay.analyses.worst_case.inputs import PromptSet
from assay.analyses.worst_case.pair_divergence import (
    Divergence,
    Kernel,
    cross_divergences,
    get_divergence,
    table_divergences,
)
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError
from assay.execution import PairRunner, PreparedInputs
from assay.execution.batches import TOKENS_PER_PASS, free_memory
from assay.execution.forward import check_circuit
from assay.models import Model


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


class NonFinitePairError(NonFiniteError):
    """The first pair, by row numbers of both sides, whose divergence is NaN or infinite."""

    def __init__(self, message: str, clean: int, corrupted: int) -> None:
        super().__init__(message)
        self.clean, self.corrupted = clean, corrupted


@dataclass(eq=False)
class _PreparedSide:
    """Inputs of one read position, trimmed behind it, and what has been prepared of them.

    `example` is one of them, and `nbytes` what one takes once it is prepared.
    """

    tokens: Tensor
    clean: bool
    example: int
    nbytes: int = 0
    whole: PreparedInputs | None = None
    recent: OrderedDict[bytes, PreparedInputs] = field(default_factory=OrderedDict)


@dataclass(eq=False)
class _PositionGroup:
    """All inputs of one read position."""

    clean: _PreparedSide
    corrupted: _PreparedSide
    keep_all: bool = False


class PairEvaluator:
    """Runs one circuit on any pairs of given clean and corrupted inputs.

    Args:
        model: The model.
        circuit: The edges to keep.
        clean: Clean inputs; a pair names them by row. Equal rows are run once.
        corrupted: Corrupted inputs, likewise.
        divergence: Key, `Divergence`, or a callable `(model logits, circuit logits) -> [pairs]`.
        memory: Bytes to spend, half on inputs that are prepared and half on the passes that prepare and pair
            them; one input of each side is prepared whatever it takes. Default: 60 % of what is free. Results
            do not depend on it beyond rounding.
        runner: A runner of the same model and circuit, to share its weights.

    Raises:
        GraphMismatchError: If the circuit belongs to another graph.
        InputError: If `memory` is below 1.
    """

    def __init__(
        self,
        model: Model,
        circuit: Circuit,
        clean: PromptSet,
        corrupted: PromptSet,
        *,
        divergence: str | Divergence | Kernel = "kl",
        memory: int | None = None,
        runner: PairRunner | None = None,
    ) -> None:
        if memory is not None and memory < 1:
            raise InputError(f"memory is {memory}; give a number of bytes, or None to choose by free memory")
        check_circuit(model, circuit)
        self.model, self.circuit = model, circuit
        self.clean, self.corrupted = clean, corrupted
        self.divergence = get_divergence(divergence)
        self.memory = free_memory(model.device) * 6 // 10 if memory is None else memory
        self.runner = PairRunner(model, circuit) if runner is None else runner
        self._clean_at, self._corrupted_at = (_positions(side) for side in (clean, corrupted))
        self._clean_row, self._corrupted_row = (_distinct_rows(side) for side in (clean, corrupted))
        self._groups: dict[int, _PositionGroup] = {}

    # ---- what callers ask for ---------------------------------------------------------------------

    def pairs(
        self, clean_index: Int64[np.ndarray, " pairs"], corrupted_index: Int64[np.ndarray, " pairs"]
    ) -> PairValues:
        """Divergences of some pairs, given by row numbers of both sides.

        Raises:
            InputError: If the two inputs of a pair are read at different positions.
            NonFiniteError: If logits or a divergence are NaN or infinite; the pair is named.
        """
        self._check_positions(clean_index, corrupted_index)
        found = PairValues(
            np.empty(len(clean_index)),
            np.empty(len(clean_index)),
            np.empty(len(clean_index), dtype=np.bool_),
        )
        positions = self._clean_at[clean_index]
        for position in np.unique(positions).tolist():
            group = self._group(position)
            for chosen in self._portions(group, np.flatnonzero(positions == position)):
                rows = self._clean_row[clean_index[chosen]], self._corrupted_row[corrupted_index[chosen]]
                values = self._listed(group, *rows, chosen, clean_index, corrupted_index)
                for into, value in zip(found, values, strict=True):
                    into[chosen] = value
        return found

    def table(self, rows: slice, columns: slice) -> PairValues:
        """Divergences of every combination of some clean (`rows`) and some corrupted inputs (`columns`).

        Raises:
            InputError: If the inputs are not all read at one position.
            NonFiniteError: If logits or a divergence are NaN or infinite; the pair is named.
        """
        clean_index, corrupted_index = (
            np.arange(side.n)[chosen] for side, chosen in ((self.clean, rows), (self.corrupted, columns))
        )
        positions = np.unique(
            np.concatenate([self._clean_at[clean_index], self._corrupted_at[corrupted_index]])
        )
        if len(positions) != 1:
            raise InputError(
                f"inputs are read at positions {', '.join(map(str, positions.tolist()))}, but a table of "
                "all pairs needs a single read position; use prompts of one length"
            )
        group = self._group(int(positions[0]))
        clean_rows, back_clean = np.unique(self._clean_row[clean_index], return_inverse=True)
        corrupted_rows, back_corrupted = np.unique(self._corrupted_row[corrupted_index], return_inverse=True)
        shape = (len(clean_rows), len(corrupted_rows))
        found = PairValues(np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_))
        for left, right in self._tiles(group, *shape):
            values = self._tile(group, clean_rows[left], corrupted_rows[right])
            for into, value in zip(found, values, strict=True):
                into[left, right] = value
        full = np.ix_(back_clean, back_corrupted)
        values = PairValues(*(value[full] for value in found))
        check_finite_pairs(values, clean_index[:, None], corrupted_index[None])
        return values

    # ---- preparing inputs -------------------------------------------------------------------------

    def _group(self, position: int) -> _PositionGroup:
        if position not in self._groups:
            sides = []
            for side, at, row in (
                (self.clean, self._clean_at, self._clean_row),
                (self.corrupted, self._corrupted_at, self._corrupted_row),
            ):
                # Distinct rows of all positions, so that row numbers need no translation.
                first = np.unique(row, return_index=True)[1]
                tokens = side.tokens[torch.from_numpy(first), : position + 1].clone()
                sides.append((tokens, torch.from_numpy(at[first] == position)))
            clean, corrupted = (
                _PreparedSide(tokens, clean=clean, example=int(here.nonzero()[0]))
                for clean, (tokens, here) in zip((True, False), sides, strict=True)
            )
            group = _PositionGroup(clean=clean, corrupted=corrupted)
            for each in (clean, corrupted):
                each.nbytes = self._prepare(each, np.array([each.example])).nbytes
            group.keep_all = self._fits(group)
            self._groups[position] = group
        return self._groups[position]

    def _prepare(self, side: _PreparedSide, rows: Int64[np.ndarray, " n"]) -> PreparedInputs:
        length = side.tokens.shape[1]
        fits = self.memory // 2 // self.runner.bytes_to_prepare(length)
        parts = torch.from_numpy(rows).split(max(1, min(TOKENS_PER_PASS // length, fits)))
        return PreparedInputs.concatenate(
            self.runner.prepare(side.tokens[part], clean=side.clean) for part in parts
        )

    def _prepared(
        self, group: _PositionGroup, side: _PreparedSide, rows: Int64[np.ndarray, " n"]
    ) -> PreparedInputs:
        """Prepared inputs: out of all of them where they fit in memory, else made and kept for a while."""
        if group.keep_all:
            if side.whole is None:
                side.whole = self._prepare(side, np.arange(len(side.tokens)))
            return side.whole.rows(torch.from_numpy(rows))
        key = rows.tobytes()
        if key not in side.recent:
            # Each side may hold half of what is for prepared inputs; one block is, whatever its size.
            while side.recent and (
                sum(each.n for each in side.recent.values()) + len(rows) > self._inputs_kept(side)
            ):
                side.recent.popitem(last=False)
            side.recent[key] = self._prepare(side, rows)
        side.recent.move_to_end(key)
        return side.recent[key]

    def _inputs_kept(self, side: _PreparedSide) -> int:
        """Inputs of one side that may be kept where not all can."""
        return max(1, self.memory // 4 // side.nbytes)

    def _fits(self, group: _PositionGroup) -> bool:
        """Whether all inputs can be prepared at once."""
        if len(np.unique(self._clean_at)) > 1 or len(np.unique(self._corrupted_at)) > 1:
            return False
        needed = sum(side.nbytes * len(side.tokens) for side in (group.clean, group.corrupted))
        return needed <= self.memory // 2

    # ---- running pairs ----------------------------------------------------------------------------

    def _pairs_per_pass(self, group: _PositionGroup) -> int:
        length = group.clean.tokens.shape[1]
        free = max(1, self.memory // 2 // self.runner.bytes_per_pair(length))
        asked = TOKENS_PER_PASS // length if self.model.device.type == "cpu" else 2**16 // length
        return max(1, min(free, asked))

    def _portions(self, group: _PositionGroup, places: Int64[np.ndarray, " n"]) -> Iterator[np.ndarray]:
        size = self._pairs_per_pass(group)
        if not group.keep_all:
            size = min(size, *(self._inputs_kept(side) for side in (group.clean, group.corrupted)))
        return (places[start : start + size] for start in range(0, len(places), size))

    def _tiles(self, group: _PositionGroup, n_clean: int, n_corrupted: int) -> Iterator[tuple[slice, slice]]:
        """Parts of a table whose inputs can be prepared at once."""
        sizes = [n_clean, n_corrupted]
        if not group.keep_all:
            sides = (group.clean, group.corrupted)
            sizes = [min(n, self._inputs_kept(side)) for n, side in zip(sizes, sides, strict=True)]
        for column in range(0, n_corrupted, sizes[1]):
            for row in range(0, n_clean, sizes[0]):
                yield slice(row, row + sizes[0]), slice(column, column + sizes[1])

    def _blocks(
        self, group: _PositionGroup, n_clean: int, n_corrupted: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of a table: few clean inputs against many corrupted ones, as many pairs as suit a pass."""
        size = self._pairs_per_pass(group)
        width = min(size, n_corrupted)
        for columns in torch.arange(n_corrupted).split(width):
            for rows in torch.arange(n_clean).split(max(1, size // len(columns))):
                yield rows, columns

    def _tile(
        self,
        group: _PositionGroup,
        rows: Int64[np.ndarray, " n_clean"],
        columns: Int64[np.ndarray, " n_corrupted"],
    ) -> PairValues:
        """Values of every combination of some distinct inputs."""
        clean = self._prepared(group, group.clean, rows)
        corrupted = self._prepared(group, group.corrupted, columns)
        shape = (len(rows), len(columns))
        at_once = self._pairs_per_pass(group)
        anchor = cross_divergences(
            self.divergence, clean.logits, corrupted.logits, **self._answers(rows), at_once=at_once
        )
        values = PairValues(np.empty(shape), anchor, np.empty(shape, dtype=np.bool_))
        for block in self._blocks(group, *shape):
            left, right = clean.rows(block[0]), corrupted.rows(block[1])
            logits = self.runner.product(left, right)
            answers = self._answers(rows[block[0].numpy()])
            place = np.ix_(*(part.numpy() for part in block))
            values.divergence[place] = table_divergences(self.divergence, left.logits, logits, **answers)
            differs = logits.argmax(-1) != left.logits.argmax(-1)[:, None]
            values.argmax_differs[place] = differs.cpu().numpy()
        return values

    def _listed(
        self,
        group: _PositionGroup,
        rows: Int64[np.ndarray, " n"],
        columns: Int64[np.ndarray, " n"],
        chosen: Int64[np.ndarray, " n"],
        clean_index: Int64[np.ndarray, " pairs"],
        corrupted_index: Int64[np.ndarray, " pairs"],
    ) -> PairValues:
        """Values of pairs of distinct inputs, one after the other."""
        clean_rows, back_clean = np.unique(rows, return_inverse=True)
        corrupted_rows, back_corrupted = np.unique(columns, return_inverse=True)
        clean = self._prepared(group, group.clean, clean_rows)
        corrupted = self._prepared(group, group.corrupted, corrupted_rows)
        left, right = (torch.from_numpy(back.ravel()) for back in (back_clean, back_corrupted))
        logits = self.runner.pairs(clean, corrupted, left, right)
        model = clean.logits[left]
        answers = self._answers(rows)
        values = PairValues(
            table_divergences(self.divergence, model, logits[:, None], **answers)[:, 0],
            table_divergences(self.divergence, model, corrupted.logits[right][:, None], **answers)[:, 0],
            (logits.argmax(-1) != model.argmax(-1)).cpu().numpy(),
        )
        check_finite_pairs(values, clean_index[chosen], corrupted_index[chosen])
        return values

    def _answers(self, rows: Int64[np.ndarray, " n"]) -> dict[str, Tensor | None]:
        if not self.divergence.needs_answers:
            return {}
        first = torch.from_numpy(np.unique(self._clean_row, return_index=True)[1][rows])
        return {
            name: None if ids is None else ids[first]
            for name, ids in (("answers", self.clean.answers), ("wrong", self.clean.wrong))
        }

    # ---- checks -----------------------------------------------------------------------------------

    def _check_positions(
        self, clean_index: Int64[np.ndarray, " pairs"], corrupted_index: Int64[np.ndarray, " pairs"]
    ) -> None:
        unequal = np.flatnonzero(self._clean_at[clean_index] != self._corrupted_at[corrupted_index])
        if len(unequal):
            i, j = int(clean_index[unequal[0]]), int(corrupted_index[unequal[0]])
            raise InputError(
                f"pair ({i}, {j}) joins prompts of {int(self.clean.lengths[i])} and "
                f"{int(self.corrupted.lengths[j])} tokens, but edges can only be patched between prompts of "
                "one length"
            )


def check_finite_pairs(
    values: PairValues,
    clean_index: Int64[np.ndarray, "..."],
    corrupted_index: Int64[np.ndarray, "..."],
) -> None:
    """Refuse NaN and infinite divergences; the first such pair is named by row numbers of both sides."""
    for name, array in (
        ("divergence", values.divergence),
        ("divergence of the empty circuit", values.empty),
    ):
        bad = ~np.isfinite(array)
        if bad.any():
            i, j = (
                int(np.broadcast_to(index, array.shape)[bad][0]) for index in (clean_index, corrupted_index)
            )
            raise NonFinitePairError(
                f"the {name} of pair (clean {i}, corrupted {j}) is {array[bad][0]}: the logits of the "
                "model or of the circuit are NaN or infinite there. Check the model's weights and dtype "
                "(float16 overflows)",
                i,
                j,
            )


def _positions(side: PromptSet) -> Int64[np.ndarray, " n"]:
    return np.asarray(side.positions.numpy(), dtype=np.int64)


def _distinct_rows(side: PromptSet) -> Int64[np.ndarray, " n"]:
    """Which distinct input each row is: tokens up to the read position are all that counts."""
    visible = torch.arange(side.tokens.shape[1]) <= side.positions[:, None]
    rows = torch.cat([side.positions[:, None], side.tokens.where(visible, -1)], 1)
    ids = [] if side.answers is None else [side.answers]
    ids += [] if side.wrong is None else [side.wrong]
    # Answers are facts of the prompt; rows that differ in them alone are kept apart.
    _, inverse = np.unique(torch.cat([rows, *ids], 1).numpy(), axis=0, return_inverse=True)
    return np.asarray(inverse.ravel(), dtype=np.int64)
