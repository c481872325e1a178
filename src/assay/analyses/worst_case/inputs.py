"""The inputs of a worst-case evaluation: clean and corrupted prompts or images, and the pairs of them."""

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.nn import functional

from assay.analyses.worst_case.image_inputs import (
    ClassNames,
    image_fields,
    image_names,
    numbered,
)
from assay.core.record import laid_out, plain, same
from assay.tasks import (
    ImageTask,
    PairTask,
    Prompt,
    Task,
    Tokens,
    encode_prompts,
)
from assay.tasks.encoding import NO_TOKEN


_OTHER = "corrupted."  # prefix of a task's fields that belong to the corrupted prompt


class DistinctInputs(NamedTuple):
    """Which of many inputs are the same.

    Attributes:
        first_index: Row of the first occurrence of each distinct input, ascending.
        inverse: Which distinct input each row is.
    """

    first_index: Int64[np.ndarray, " n_distinct"]
    inverse: Int64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PromptSet:
    """The inputs of one side, clean or corrupted; an input may occur more than once.

    Attributes:
        tokens: Token ids `[n, pos]`, padded on the right; of images `[n, 1]`, their rows in `images`.
        lengths: Tokens of each input.
        positions: Position whose logits are read; `[n, reads]` where there are several, -1 where a row has
            fewer.
        answers: Right next tokens `[n, n_answers]` (`[n, reads, n_answers]`), -1 where a row has fewer; None
            where there are none.
        wrong: Tokens the answers are compared with, likewise.
        texts: The inputs as text; None where there is none.
        slots: Slot name to the token position of its filler in each input `[n]`.
        fields: Field name to one value per input; names without the prefix `corrupted.`, on either side.
        prompts: The grammar's prompts behind them; None for inputs that no grammar made, and for more than
            100,000, whose prompts would take gigabytes.
        images: Every distinct image, as a model reads it; None for prompts.
    """

    tokens: Int[Tensor, "n pos"]
    lengths: Int[Tensor, " n"]
    positions: Int[Tensor, "n ..."]
    answers: Int[Tensor, "n ..."] | None = None
    wrong: Int[Tensor, "n ..."] | None = None
    texts: tuple[str, ...] | None = None
    slots: Mapping[str, Int[Tensor, " n"]] = field(default_factory=dict)
    fields: Mapping[str, list[Any]]
    prompts: tuple[Prompt, ...] | None = None
    images: Float[Tensor, "n_images 3 h w"] | None = None

    @property
    def n(self) -> int:
        """Number of inputs, repetitions counted."""
        return len(self.tokens)

    @cached_property
    def distinct(self) -> DistinctInputs:
        """The distinct inputs in order of first occurrence: token sequence and read position, or image."""
        return _distinct(self.lengths, self.positions, self.tokens)

    @cached_property
    def distinct_with_answers(self) -> DistinctInputs:
        """The same, with inputs that differ only in their answers or wrong answers kept distinct."""
        known = [ids for ids in (self.answers, self.wrong) if ids is not None]
        return _distinct(self.lengths, self.positions, self.tokens, *known)

    def subset(self, indices: Int[np.ndarray, " k"] | Sequence[int]) -> "PromptSet":
        """The inputs in these rows, in this order; rows may repeat."""
        chosen = np.asarray(indices, dtype=np.int64)
        rows = torch.from_numpy(chosen)
        places = chosen.tolist()
        return PromptSet(
            tokens=self.tokens[rows],
            lengths=self.lengths[rows],
            positions=self.positions[rows],
            answers=None if self.answers is None else self.answers[rows],
            wrong=None if self.wrong is None else self.wrong[rows],
            texts=None if self.texts is None else tuple(self.texts[i] for i in places),
            slots={name: where[rows] for name, where in self.slots.items()},
            fields={name: [values[i] for i in places] for name, values in self.fields.items()},
            prompts=None if self.prompts is None else tuple(self.prompts[i] for i in places),
            images=self.images,
        )

    @staticmethod
    def concatenate(parts: "Sequence[PromptSet]", *, pad_id: int = 0) -> "PromptSet":
        """The inputs of several sets, one after the other; short rows are filled with `pad_id`."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.fields)
        texts = [part.texts for part in parts if part.texts is not None]
        prompts = [part.prompts for part in parts if part.prompts is not None]
        return PromptSet(
            tokens=stacked([part.tokens for part in parts], pad_id),
            lengths=torch.cat([part.lengths for part in parts]),
            positions=torch.cat([part.positions for part in parts]),
            answers=stacked([part.answers for part in parts], NO_TOKEN),
            wrong=stacked([part.wrong for part in parts], NO_TOKEN),
            texts=tuple(itertools.chain(*texts)) if len(texts) == len(parts) else None,
            slots={
                name: torch.cat([part.slots[name] for part in parts])
                for name in parts[0].slots
                if all(name in part.slots for part in parts)
            },
            fields={
                name: [
                    value for part in parts for value in part.fields.get(name, itertools.repeat(None, part.n))
                ]
                for name in names
            },
            prompts=tuple(itertools.chain(*prompts)) if len(prompts) == len(parts) else None,
        )

    def __repr__(self) -> str:
        return f"PromptSet(n={self.n}, length={self.tokens.shape[1]})"


_IDENTITY = {
    **same("protocol", "n_pairs", "independent", "paired", "reuse_clean", "own_rows"),
    **same("population", "seed", "streams", "data_hash", "task"),
    "n_clean": "clean.n",
    "n_corrupted": "corrupted.n",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PairSample:
    """Clean and corrupted inputs, the pairs to run, and what may be concluded from them.

    Attributes:
        protocol: `all`, `matched`, `iid`, `file` or `inputs`.
        clean: The clean inputs.
        corrupted: The inputs whose activations cut edges carry; under `inputs`, where no ablated value comes
            from a second input, the clean ones.
        pairs: `[n_pairs, 2]` (clean index, corrupted index); None: every combination of the two sides.
        independent: Whether the draws behind a certificate are independent: inputs of each side (`all`) or
            pairs. For a task's own rows the user declares it.
        paired: Whether every combination is run and corrupted input i is the counterpart of clean input i:
            the two sides are then not independent of each other.
        reuse_clean: Whether the corrupted inputs were made from the clean ones of the same sample.
        own_rows: Whether the pairs or inputs are rows of the task, rather than draws of its grammar.
        population: Number of distinct inputs that exist on each side, `clean` and `corrupted`; None where
            they are not counted.
        seed: Root seed of all random draws.
        streams: What each stream of draws was named; empty where nothing was drawn.
        tokenizer: Tokenizer of the ids, used to show them; of images, the names of their classes.
        task: Identity of the task, JSON-able.
        heatmap_fields: Pairs of fields worth a table of their own.
        ablation: What cut edges carry; `resample-donor`: values of another clean input.
        reference: Inputs that ablated values are measured over; None where they need none. They were drawn
            for this alone if `streams` names `baseline`.
    """

    protocol: str
    clean: PromptSet
    corrupted: PromptSet
    pairs: Int64[np.ndarray, "n_pairs 2"] | None = None
    independent: bool = True
    paired: bool = False
    reuse_clean: bool = False
    own_rows: bool = False
    population: Mapping[str, int | None]
    seed: int = 0
    streams: Mapping[str, str]
    tokenizer: Any = None
    task: Mapping[str, Any]
    heatmap_fields: tuple[tuple[str, str], ...] = ()
    ablation: str = "resample"
    reference: PromptSet | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the divergences: `[n_clean, n_corrupted]`, or `[n_pairs]`."""
        return (self.clean.n, self.corrupted.n) if self.pairs is None else (len(self.pairs),)

    @property
    def n_pairs(self) -> int:
        """Number of pairs, repetitions counted."""
        return int(np.prod(self.shape))

    @cached_property
    def data_hash(self) -> str:
        """SHA-256 over every number that the divergences depend on, 64 hex digits."""
        digest = hashlib.sha256(self.protocol.encode())
        for side in filter(None, (self.clean, self.corrupted, self.reference)):
            for array in (side.tokens, side.lengths, side.positions, side.answers):
                digest.update(b"none" if array is None else str(tuple(array.shape)).encode())
                if array is not None:
                    digest.update(array.contiguous().numpy().astype("<i8").tobytes())
        if self.clean.images is not None:
            digest.update(self.clean.images.contiguous().numpy().tobytes())
        if self.pairs is not None:
            digest.update(f"pairs{self.pairs.shape}".encode() + self.pairs.astype("<i8").tobytes())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Identity of the sample as it enters records, JSON-able."""
        record: dict[str, Any] = plain(laid_out(self, _IDENTITY))
        if self.ablation != "resample":
            record |= {
                "ablation": self.ablation,
                "n_reference": None if self.reference is None else self.reference.n,
            }
        return record

    def __repr__(self) -> str:
        return f"PairSample({self.protocol!r}, n_pairs={self.n_pairs:,}, seed={self.seed})"


@overload
def stacked(tables: Sequence[Tensor], fill: int) -> Tensor: ...
@overload
def stacked(tables: Sequence[Tensor | None], fill: int) -> Tensor | None: ...
def stacked(tables: Sequence[Tensor | None], fill: int) -> Tensor | None:
    """Tables of several widths as one, filled on the right; None where one is missing."""
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return None
    width = max(table.shape[1] for table in known)
    return torch.cat([functional.pad(table, (0, width - table.shape[1]), value=fill) for table in known])


def _distinct(*columns: Tensor) -> DistinctInputs:
    return first_occurrences(torch.cat([each.reshape(len(each), -1) for each in columns], dim=1).numpy())


def first_occurrences(values: Int64[np.ndarray, "n ..."]) -> DistinctInputs:
    """The distinct numbers of a list, or rows of a table, in order of first occurrence."""
    axis = None if values.ndim == 1 else 0
    _, first, inverse = np.unique(values, axis=axis, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return DistinctInputs(
        first_index=first[order].astype(np.int64), inverse=rank[inverse.ravel()].astype(np.int64)
    )


def prompt_set(prompts: Sequence[Prompt], tokens: Tokens, *, keep: bool = True) -> PromptSet:
    """Prompts of a grammar as the inputs of one side.

    Args:
        prompts: The prompts.
        tokens: The tokenizer.
        keep: Whether they stay with their ids.
    """
    encoded = encode_prompts(prompts, tokens)
    return PromptSet(
        tokens=encoded.ids,
        lengths=encoded.lengths,
        positions=encoded.positions,
        answers=encoded.answers,
        wrong=encoded.wrong,
        texts=encoded.texts,
        slots=encoded.slots,
        fields=dict(encoded.fields),
        prompts=tuple(prompts) if keep else None,
    )


def names_of(task: Task) -> Any:
    """What decodes the rows of logits: a tokenizer, or the names of classes."""
    return task.tokenizer if isinstance(task, PairTask) else ClassNames(task.classes)


def sides_of(task: Task) -> dict[str, PromptSet]:
    """The two sides of a task's own pairs; images without counterparts have one."""
    if isinstance(task, ImageTask):
        return _sides_of_images(task)
    own = {name: list(values) for name, values in task.fields.items() if not name.startswith(_OTHER)}
    other = {
        name.removeprefix(_OTHER): list(values)
        for name, values in task.fields.items()
        if name.startswith(_OTHER)
    }
    return {
        "clean": PromptSet(
            tokens=task.clean,
            lengths=task.lengths,
            positions=task.positions,
            answers=task.answers,
            wrong=task.wrong,
            texts=task.texts,
            slots=dict(task.slots),
            fields=own,
        ),
        "corrupted": PromptSet(
            tokens=task.corrupted,
            lengths=task.lengths,
            positions=task.positions,
            texts=task.corrupted_texts,
            fields=other,
        ),
    }


def _sides_of_images(task: ImageTask) -> dict[str, PromptSet]:
    found = numbered(task)

    def side(numbers: Tensor, **facts: Any) -> PromptSet:
        length = torch.ones(task.n, dtype=torch.long)
        return PromptSet(tokens=numbers, lengths=length, positions=length - 1, images=found.stock, **facts)

    sides = {
        "clean": side(
            found.clean,
            answers=None if task.labels is None else task.answers,
            wrong=task.wrong,
            texts=image_names(task),
            fields=image_fields(task),
        )
    }
    if found.corrupted is not None:
        names = image_names(task, "counterpart of image")
        sides["corrupted"] = side(found.corrupted, texts=names, fields={})
    return sides


def task_of(clean: PromptSet, corrupted: PromptSet) -> Task:
    """Two sides of as many inputs, row by row, as the engine of one pair reads them."""
    if clean.images is not None:
        stock = clean.images
        return ImageTask(images=stock[clean.tokens[:, 0]], corrupted=stock[corrupted.tokens[:, 0]])
    width = max(clean.tokens.shape[1], corrupted.tokens.shape[1])
    tokens = [functional.pad(side.tokens, (0, width - side.tokens.shape[1])) for side in (clean, corrupted)]
    return PairTask(
        clean=tokens[0],
        corrupted=tokens[1],
        answers=torch.zeros((clean.n, 1), dtype=torch.long) if clean.answers is None else clean.answers,
        lengths=clean.lengths,
        positions=clean.positions,
        slots=clean.slots,
    )


def shown(side: PromptSet, row: int, tokenizer: Any) -> str:
    """One input for a message."""
    if side.texts is not None:
        return repr(side.texts[row])
    ids = side.tokens[row, : int(side.lengths[row])].tolist()
    return f"ids {ids}" if tokenizer is None else repr(tokenizer.decode(ids))
