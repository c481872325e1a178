"""A task: clean and corrupted prompts side by side, what is right and wrong about them, where to read.

Token ids are enough; text, slots and the grammar they came from are carried along where they are known.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from assay.core.errors import InputError, ShapeError, TokenizationError, check_least, check_name
from assay.core.machine import COUNTING
from assay.core.random import stream
from assay.tasks.encoding import Prompt, Tokens, encode_prompts
from assay.tasks.grammar import Grammar


AnyBatch = TypeVar("AnyBatch")


def map_tensors(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """A batch (of any kind) with `change` applied to each of its tensors."""
    changed: Any = {name: change(value) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **changed)  # type: ignore[type-var]  # a dataclass instance, which no variable says


@dataclass(frozen=True, kw_only=True, eq=False)
class PairBatch:
    """Some rows of a task, as a model pass takes them.

    Attributes:
        clean: Token ids `[batch, pos]`.
        corrupted: Token ids of the counterparts, same shape.
        answers: Right next tokens `[batch, n_answers]`, -1 where a row has fewer.
        wrong: Tokens to compare with `[batch, n_wrong]`, -1 where a row has fewer; None if there are none.
        lengths: Tokens of each prompt; what stands right of them is padding.
        positions: Position whose logits are read.
        indices: Row numbers in the task.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    answers: Int[Tensor, "batch n_answers"]
    wrong: Int[Tensor, "batch n_wrong"] | None
    lengths: Int[Tensor, " batch"]
    positions: Int[Tensor, " batch"]
    indices: Int[Tensor, " batch"]

    @property
    def ids(self) -> Int[Tensor, " batch"]:
        """What weights of resamples follow: row numbers."""
        return self.indices

    @property
    def width(self) -> int:
        """Positions of the widest prompt, padding included."""
        return self.clean.shape[1]

    def to(self, device: torch.device | str) -> "PairBatch":
        """The same batch with every tensor on `device`."""
        return map_tensors(self, lambda tensor: tensor.to(device))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PairTask:
    """Pairs of a clean and a corrupted prompt, with answers.

    Args:
        clean: Token ids `[N, T]`; prompts shorter than T are padded on the right.
        corrupted: Token ids of the counterparts, same shape and lengths.
        answers: Right next tokens of the clean prompts `[N, A]`; -1 fills rows that have fewer.
        wrong: Tokens the answers are compared with `[N, W]`, -1 as above; None if there are none.
        lengths: Tokens of each prompt `[N]`, 1..T. Default: T.
        positions: Position whose logits are read `[N]`, within the prompt. Default: its last token.
        ids: Number of each pair where it came from `[N]`: its line in a file. Default: its row. No result
            depends on it.
        fields: Facts about each prompt, name to list of N; those of the corrupted prompt under
            `corrupted.` + name.
        name: Name of the task in results.
        objective: Key of the objective used unless told otherwise.
        ablation: Key of the ablation used unless told otherwise.
        texts: Clean prompts as text.
        corrupted_texts: Corrupted prompts as text.
        slots: Slot name to the token position of its filler in each clean prompt `[N]`.
        tokenizer: Tokenizer of the ids, used to show them.
        grammar: What the prompts were drawn from, so that more can be drawn.
        config: How the task was made (JSON values): part of every result's provenance.
        pad_id: Id that fills short rows.
        notes: What was left out of the pairs, a sentence each, for every result on them.

    Raises:
        InputError: If there is no prompt, a length or position is out of range, an id is negative, a row
            has no answer, or an answer is also wrong.
        ShapeError: If shapes or number types do not fit together.

    Example:
        >>> ids = torch.tensor([[3, 4, 5], [3, 6, 5]])
        >>> task = PairTask(clean=ids, corrupted=ids.flip(0), answers=torch.tensor([[7], [8]]))
        >>> task.n, task.length, task.positions.tolist()
        (2, 3, [2, 2])
    """

    clean: Int[Tensor, "n pos"]
    corrupted: Int[Tensor, "n pos"]
    answers: Int[Tensor, "n n_answers"]
    wrong: Int[Tensor, "n n_wrong"] | None = None
    # Left out, these are filled in by `__post_init__`, so that readers never meet None.
    lengths: Int[Tensor, " n"] = None  # type: ignore[assignment] # until `__post_init__`
    positions: Int[Tensor, " n"] = None  # type: ignore[assignment] # until `__post_init__`
    ids: Int[Tensor, " n"] = None  # type: ignore[assignment] # until `__post_init__`
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    name: str = "custom"
    objective: str = "logit_diff"
    ablation: str = "resample"
    texts: tuple[str, ...] | None = None
    corrupted_texts: tuple[str, ...] | None = None
    slots: Mapping[str, Int[Tensor, " n"]] = field(default_factory=dict)
    tokenizer: Any = None
    grammar: Grammar | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    pad_id: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in (*_OF_IDS, *_PER_ROW)}
        values = {name: _integers(name, value) for name, value in given.items() if value is not None}
        _check_shapes(values)
        n, length = values["clean"].shape
        values.setdefault("lengths", torch.full((n,), length))
        values.setdefault("positions", values["lengths"] - 1)
        values.setdefault("ids", torch.arange(n))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _check_values(self)

    def describe(self) -> dict[str, Any]:
        """Identity of the prompts as it enters records."""
        facts = {"name": self.name, "data_hash": self.data_hash, "n": self.n, "config": dict(self.config)}
        return facts | ({"notes": list(self.notes)} if self.notes else {})

    def __repr__(self) -> str:
        return f"PairTask({self.name!r}, n={self.n}, length={self.length}, objective={self.objective!r})"

    @property
    def n(self) -> int:
        """Number of pairs."""
        return len(self.clean)

    @property
    def length(self) -> int:
        """Width T of the token matrix: tokens of the longest prompt."""
        return self.clean.shape[1]

    @cached_property
    def data_hash(self) -> str:
        """SHA-256 over all values that a result depends on, padding left out, and shapes, 64 hex digits."""
        digest = hashlib.sha256()
        prompt = torch.arange(self.length) < self.lengths[:, None]
        for name in ("clean", "corrupted", "answers", "wrong", "lengths", "positions"):
            value = getattr(self, name)
            if value is not None and value.ndim == 2:
                inside = prompt if name in ("clean", "corrupted") else value >= 0
                used = inside.any(0).nonzero().flatten().tolist()
                value = value.where(inside, -1)[:, : max(used, default=-1) + 1]
            shape = "none" if value is None else str(tuple(value.shape))
            digest.update(f"{name}{shape}".encode())
            if value is not None:
                digest.update(value.contiguous().numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def subset(self, indices: Int[Tensor, " k"] | Sequence[int]) -> "PairTask":
        """The pairs in these rows, in this order.

        Args:
            indices: Row numbers, 0 .. n - 1; repeats are allowed.

        Raises:
            InputError: If there is none, or one is out of range.
        """
        rows = chosen_rows(indices, self.n)
        names = (*_OF_IDS, *_PER_ROW, "fields", "slots", "texts", "corrupted_texts")
        return replace(self, **{name: _taken(getattr(self, name), rows) for name in names})

    def where(self, **values: Any) -> "PairTask":
        """The pairs whose fields have these values, e.g. `task.where(order="ABBA")`.

        Args:
            values: Field to the value it must have, or to its text.

        Raises:
            UnknownNameError: If the pairs have no such field.
            InputError: If no pair has the values.
        """
        for name in values:
            check_name(f"field of {self.name}", name, self.fields)
        asked = [(self.fields[name], str(value)) for name, value in values.items()]
        rows = [row for row in range(self.n) if all(str(each[row]) == text for each, text in asked)]
        if not rows:
            raise InputError(f"none of the {self.n} pairs of {self.name!r} has the values {values}")
        note = f"{self.n - len(rows)} of {self.n} pairs have other values of {', '.join(values)}"
        return replace(self.subset(rows), notes=(*self.notes, note) if len(rows) < self.n else self.notes)

    def inputs(self, *, paired: bool) -> Iterator[tuple[Hashable, Hashable, int]]:
        """Clean prompt, corrupted prompt if `paired` (else None) and read position of each row."""
        other = prompt_tokens(self.corrupted, self.lengths) if paired else [None] * self.n
        return zip(prompt_tokens(self.clean, self.lengths), other, self.positions.tolist(), strict=True)

    def with_donors(self, rows: Int[Tensor, " n"]) -> "PairTask":
        """The same prompts with, as counterparts, the clean prompts of the given rows."""
        return replace(self, corrupted=self.clean[rows], corrupted_texts=None)

    def paired(self, pairs: Int[Tensor, "n_pairs 2"]) -> "PairTask":
        """One row per (clean row, corrupted row); a corrupted row keeps an answer that stands behind it."""
        clean, corrupted = pairs.unbind(1)
        other = self.subset(corrupted)
        return replace(self.subset(clean), corrupted=other.corrupted, corrupted_texts=other.corrupted_texts)

    def split(self, fraction: float, *, seed: int = 0) -> tuple["PairTask", "PairTask"]:
        """Two disjoint random parts; rows keep their order.

        Args:
            fraction: Share of the pairs in the first part, in (0, 1); each part gets at least one.
            seed: Seed of the stream `split`.
        """
        if not 0 < fraction < 1 or self.n < 2:
            text = f"got {fraction} and {self.n}"
            raise InputError(f"split needs a fraction in (0, 1) and at least 2 pairs; {text}")
        count = min(max(round(fraction * self.n), 1), self.n - 1)
        shuffled = stream(seed, "split").permutation(self.n)
        first, second = (self.subset(sorted(rows.tolist())) for rows in (shuffled[:count], shuffled[count:]))
        return first, second

    def batches(self, batch_size: int) -> Iterator[PairBatch]:
        """The pairs in order, `batch_size` at a time (the last batch may be smaller)."""
        check_least(1, batch_size=batch_size)
        for rows in torch.arange(self.n).split(batch_size):
            columns = {name: getattr(self, name) for name in (*_OF_IDS, "lengths", "positions")}
            taken: Any = {name: None if value is None else value[rows] for name, value in columns.items()}
            yield PairBatch(**taken, indices=rows)
            COUNTING.get()(int(rows[-1]) + 1, self.n)

    def validate(self, n_vocab: int, n_positions: int | None = None) -> None:
        """Check every token id against a model's vocabulary, and the length against what it reads.

        Raises:
            TokenizationError: If an id is `n_vocab` or more, or the longest prompt has more than
                `n_positions` tokens.
        """
        if n_positions is not None and self.length > n_positions:
            text = f"the longest prompt of {self.name!r} has {self.length} tokens"
            raise TokenizationError(f"{text}, but the model reads only {n_positions}")
        for name in _OF_IDS:
            ids = getattr(self, name)
            if ids is not None and (most := int(ids.max())) >= n_vocab:
                text = f"{name} of {self.name!r} holds id {most}, but the vocabulary ends at {n_vocab - 1}"
                raise TokenizationError(f"{text}; use this model's own tokenizer")


# ---- out of prompts


class NoPairsError(TokenizationError):
    """No pair has prompts of one token count, or answers that the tokens they are scored by distinguish."""


def pair_task(
    clean: Sequence[Prompt],
    corrupted: Sequence[Prompt],
    tokens: Tokens,
    *,
    name: str,
    grammar: Grammar | None = None,
    config: Mapping[str, Any] | None = None,
) -> PairTask:
    """A task out of clean prompts and, in the same order, their corrupted counterparts.

    Pairs are left out where their prompts differ in token count, and, where the first token of an answer
    decides, where right and wrong answers begin with the same. Notes of the task count them, and its `ids`
    are their places in the two lists.

    Args:
        clean: The prompts.
        corrupted: Their counterparts.
        tokens: The tokenizer.
        name: Name of the task.
        grammar: What the prompts were drawn from.
        config: How the task was made.

    Raises:
        TokenizationError: If a prompt has no answer, or breaks a rule of `encode_prompts`.
        NoPairsError: If no pair is left.
    """
    left = encode_prompts(clean, tokens)
    right = encode_prompts([replace(each, answers=(), wrong=()) for each in corrupted], tokens)
    if left.answers is None:
        without = next(prompt for prompt in clean if not prompt.answers)
        raise TokenizationError(f"prompt {without} has no answer; give at least one")
    kept, reason = left.lengths == right.lengths, "whose prompts differ in token count"
    if bool(kept.all()) and tokens.answer_tokens == "first" and left.wrong is not None:
        kept = ~_common(left.answers, left.wrong)
        reason = "whose right and wrong answers begin with the same token"
    rows = kept.nonzero().flatten().tolist()
    if not rows:
        one, other = f"{clean[0]} has {left.lengths[0]}", f"{corrupted[0]} has {right.lengths[0]}"
        text = f"pair 0: clean prompt {one} tokens, corrupted prompt {other}"
        raise NoPairsError(f"{text} ({len(clean)} of {len(clean)} pairs, {reason}, would be left out)")
    facts: dict[str, Any] = {"name": name, "grammar": grammar, "config": config or {}}
    if len(rows) < len(clean):
        note = f"{len(clean) - len(rows)} of {len(clean)} pairs, {reason}, are left out"
        task = pair_task([clean[row] for row in rows], [corrupted[row] for row in rows], tokens, **facts)
        return replace(task, ids=torch.tensor(rows)[task.ids], notes=(note, *task.notes))
    facts |= {name: getattr(left, name) for name in ("answers", "wrong", "lengths", "texts", "slots")}
    return PairTask(
        clean=left.ids,
        corrupted=right.ids,
        fields={**left.fields, **{f"corrupted.{key}": values for key, values in right.fields.items()}},
        objective="logit_diff" if grammar is None else grammar.objective,
        corrupted_texts=right.texts,
        tokenizer=tokens.tokenizer,
        pad_id=tokens.pad_id,
        **facts,
    )


def _common(answers: Int[Tensor, "n n_answers"], wrong: Int[Tensor, "n n_wrong"]) -> Bool[Tensor, " n"]:
    """Rows in which an answer is also a wrong one."""
    return ((answers[:, :, None] == wrong[:, None]) & (answers[:, :, None] >= 0)).flatten(1).any(1)


# ---- rows


def _taken(value: Any, rows: Int[Tensor, " k"]) -> Any:
    """The rows of one attribute."""
    if isinstance(value, Mapping):
        return {name: _taken(each, rows) for name, each in value.items()}
    if value is None or isinstance(value, Tensor):
        return None if value is None else value[rows]
    return type(value)(value[row] for row in rows.tolist())


def prompt_tokens(ids: Int[Tensor, "n pos"], lengths: Int[Tensor, " n"]) -> list[Hashable]:
    """Token ids of each prompt, without padding."""
    return [tuple(row[:length]) for row, length in zip(ids.tolist(), lengths.tolist(), strict=True)]


def draw_rows(total: int, n: int | None, *, seed: int, what: str = "images") -> Int64[np.ndarray, " k"]:
    """`n` of `total` row numbers without replacement, ascending; all of them if `n` is None or not smaller.

    The stream is `images/sample` of the seed, or that of another `what`.
    """
    if n is not None and n < 1:
        raise InputError(f"n is {n}; give at least 1 of the {what}")
    if n is None or n >= total:
        return np.arange(total)
    return np.sort(stream(seed, f"{what}/sample").choice(total, n, replace=False))


def chosen_rows(indices: Any, total: int) -> Int[Tensor, " k"]:
    """Row numbers of a task of `total` rows, for `subset`; an error unless they are there."""
    rows = torch.as_tensor(indices)
    whole = rows.ndim == 1 and len(rows) > 0 and not rows.is_floating_point() and rows.dtype != torch.bool
    if not whole or int(rows.min()) < 0 or int(rows.max()) >= total:
        text = f"subset is {str(rows.tolist())[:80]}; expected a list of at least one row number"
        raise InputError(f"{text}, 0 to {total - 1}")
    return rows.long()


# ---- checks

_OF_IDS = ("clean", "corrupted", "answers", "wrong")
_PER_ROW = ("lengths", "positions", "ids")  # with a number for each pair


def _integers(name: str, value: Any) -> Tensor:
    """An integer tensor as int64 on the CPU."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        kind = getattr(value, "dtype", type(value).__name__)
        raise ShapeError(f"{name} is {kind}; give a tensor of integers, e.g. torch.tensor([[5, 7]])")
    return value.detach().to("cpu", torch.long)


def _check_shapes(values: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose shapes do not fit together."""
    shape, corrupted = tuple(values["clean"].shape), tuple(values["corrupted"].shape)
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"clean has shape {shape}; expected [N, T], one row of ids per prompt, at least one")
    if corrupted != shape:
        text = f"clean has shape {shape}, but corrupted {corrupted}"
        raise ShapeError(f"{text}; every corrupted prompt needs the token count of its clean one")
    for name, value in values.items():
        n_axes = 1 if name in _PER_ROW else 2
        if value.ndim != n_axes or len(value) != shape[0] or 0 in value.shape:
            expected = f"[{shape[0]}], a number" if n_axes == 1 else f"[{shape[0]}, at least 1], token ids"
            raise ShapeError(f"{name} has shape {tuple(value.shape)}; expected {expected} for each prompt")


def _check_values(task: PairTask) -> None:
    """Refuse ids, lengths and positions out of range, and columns without one entry per prompt."""
    columns: dict[str, Any] = {f"field {name!r}": values for name, values in task.fields.items()}
    columns |= {f"slot {name!r}": places for name, places in task.slots.items()}
    columns |= {name: getattr(task, name) for name in ("texts", "corrupted_texts") if getattr(task, name)}
    for name, values in columns.items():
        if len(values) != task.n:
            raise ShapeError(f"{name} has {len(values)} entries for {task.n} prompts; give one per prompt")
    refusals = [(getattr(task, name) < 0, f"{name} holds a negative token id") for name in _OF_IDS[:2]]
    for name in _OF_IDS[2:]:
        if (ids := getattr(task, name)) is not None:
            refusals.append((ids < -1, f"{name} holds a negative id other than -1, which fills short rows"))
            refusals.append(((ids < 0).all(1), f"{name} names no token"))
    lengths, positions = task.lengths, task.positions
    refusals.append(((lengths < 1) | (lengths > task.length), f"lengths is out of range 1..{task.length}"))
    refusals.append(((positions < 0) | (positions >= lengths), "positions lies outside its prompt"))
    if task.wrong is not None:
        refusals.append((_common(task.answers, task.wrong), "an answer is also a wrong answer"))
    for bad, fact in refusals:
        if bool(bad.any()):
            raise InputError(f"{fact} (prompt {int(bad.reshape(task.n, -1).any(1).nonzero()[0])})")
