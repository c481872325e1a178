"""A task: clean and corrupted prompts side by side, what is right and wrong about them, where to read.

Token ids are enough; text, slots and the grammar they came from are carried along where they are known.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import InputError, ShapeError, TokenizationError, check_least, check_name
from assay.core.machine import count_examples
from assay.core.random import stream
from assay.tasks.batches import PairBatch
from assay.tasks.rows import chosen_rows


if TYPE_CHECKING:
    from assay.tasks.grammar import Grammar


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
    # Left out, these four are filled in by `__post_init__`, so that readers never meet None.
    lengths: Int[Tensor, " n"] = None  # type: ignore[assignment]
    positions: Int[Tensor, " n"] = None  # type: ignore[assignment]
    ids: Int[Tensor, " n"] = None  # type: ignore[assignment]
    fields: Mapping[str, Sequence[Any]] = None  # type: ignore[assignment]
    name: str = "custom"
    objective: str = "logit_diff"
    ablation: str = "resample"
    texts: tuple[str, ...] | None = None
    corrupted_texts: tuple[str, ...] | None = None
    slots: Mapping[str, Int[Tensor, " n"]] = field(default_factory=dict)
    tokenizer: Any = None
    grammar: "Grammar | None" = None
    config: Mapping[str, Any] = field(default_factory=dict)
    pad_id: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*_OF_IDS, *_PER_ROW):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _integers(name, value))
        _check_shapes(self)
        defaults: dict[str, Callable[[], Tensor]] = {
            "lengths": lambda: torch.full((self.n,), self.length),
            "positions": lambda: self.lengths - 1,
            "ids": lambda: torch.arange(self.n),
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())
        object.__setattr__(self, "fields", dict(self.fields or {}))
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
        places = rows.tolist()
        changed: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("clean", "corrupted", "answers", *_PER_ROW)
        }
        changed["wrong"] = None if self.wrong is None else self.wrong[rows]
        changed["fields"] = {name: [values[i] for i in places] for name, values in self.fields.items()}
        changed["slots"] = {name: where[rows] for name, where in self.slots.items()}
        for name in ("texts", "corrupted_texts"):
            lines = getattr(self, name)
            changed[name] = None if lines is None else tuple(lines[i] for i in places)
        return replace(self, **changed)

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
        rows = [
            row
            for row in range(self.n)
            if all(str(self.fields[name][row]) == str(value) for name, value in values.items())
        ]
        if not rows:
            asked = ", ".join(f"{name}={value!r}" for name, value in values.items())
            raise InputError(f"none of the {self.n} pairs of {self.name!r} has {asked}; check the values")
        note = f"{self.n - len(rows)} of {self.n} pairs have other values of {', '.join(values)}"
        return replace(self.subset(rows), notes=(*self.notes, note) if len(rows) < self.n else self.notes)

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
            raise InputError(
                f"split needs a fraction in (0, 1) and at least 2 pairs; got {fraction} and {self.n}"
            )
        count = min(max(round(fraction * self.n), 1), self.n - 1)
        shuffled = stream(seed, "split").permutation(self.n)
        first, second = (self.subset(sorted(rows.tolist())) for rows in (shuffled[:count], shuffled[count:]))
        return first, second

    def batches(self, batch_size: int) -> Iterator[PairBatch]:
        """The pairs in order, `batch_size` at a time (the last batch may be smaller)."""
        check_least(1, batch_size=batch_size)
        for rows in torch.arange(self.n).split(batch_size):
            yield PairBatch(
                clean=self.clean[rows],
                corrupted=self.corrupted[rows],
                answers=self.answers[rows],
                wrong=None if self.wrong is None else self.wrong[rows],
                lengths=self.lengths[rows],
                positions=self.positions[rows],
                indices=rows,
            )
            count_examples(int(rows[-1]) + 1, self.n)

    def validate(self, n_vocab: int, n_positions: int | None = None) -> None:
        """Check every token id against a model's vocabulary, and the length against what it reads.

        Raises:
            TokenizationError: If an id is `n_vocab` or more (the first such prompt is named), or the longest
                prompt has more than `n_positions` tokens.
        """
        if n_positions is not None and self.length > n_positions:
            raise TokenizationError(
                f"the longest prompt of {self.name!r} has {self.length} tokens, but the model reads only "
                f"{n_positions}; make the prompts shorter"
            )
        for name in _OF_IDS:
            ids = getattr(self, name)
            if ids is None or int(ids.max()) < n_vocab:
                continue
            row, place = (ids >= n_vocab).nonzero()[0].tolist()
            raise TokenizationError(
                f"{name} holds id {int(ids[row, place])} (prompt {row}, place {place}), but the "
                f"model's vocabulary ends at {n_vocab - 1}; build the task with this model's own tokenizer"
            )


# -------------------------------------------------------------------------------------------------- checks

_OF_IDS = ("clean", "corrupted", "answers", "wrong")
_PER_ROW = ("lengths", "positions", "ids")  # with a number for each pair


def _integers(name: str, value: Any) -> Tensor:
    """An integer tensor as int64 on the CPU."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        raise ShapeError(
            f"{name} is {getattr(value, 'dtype', type(value).__name__)}; give a tensor of integers, e.g. "
            "torch.tensor([[5, 7]])"
        )
    return value.detach().to("cpu", torch.long)


def _check_shapes(task: PairTask) -> None:
    """Refuse tensors whose shapes do not fit together."""
    shape = tuple(task.clean.shape)
    if len(shape) != 2 or 0 in shape:
        raise ShapeError(f"clean has shape {shape}; expected [N, T], one row of ids per prompt, at least one")
    if tuple(task.corrupted.shape) != shape:
        raise ShapeError(
            f"clean has shape {shape}, but corrupted {tuple(task.corrupted.shape)}; every corrupted prompt "
            "needs the token count of its clean one"
        )
    for name in _PER_ROW:
        value = getattr(task, name)
        if value is not None and value.shape != (shape[0],):
            raise ShapeError(
                f"{name} has shape {tuple(value.shape)}; expected [{shape[0]}], one number per prompt"
            )
    for name in ("answers", "wrong"):
        value = getattr(task, name)
        if value is not None and (value.ndim != 2 or len(value) != shape[0] or value.shape[1] == 0):
            raise ShapeError(
                f"{name} has shape {tuple(value.shape)}; expected [{shape[0]}, at least 1]: one row of "
                "single-token ids per prompt (-1 fills rows that have fewer)"
            )


def _check_values(task: PairTask) -> None:
    """Refuse ids, lengths and positions out of range, and columns without one entry per prompt."""
    columns: dict[str, Any] = {f"field {name!r}": values for name, values in task.fields.items()}
    columns |= {f"slot {name!r}": places for name, places in task.slots.items()}
    columns |= {name: getattr(task, name) for name in ("texts", "corrupted_texts") if getattr(task, name)}
    for name, values in columns.items():
        if len(values) != task.n:
            raise ShapeError(f"{name} has {len(values)} entries for {task.n} prompts; give one per prompt")
    for name in ("clean", "corrupted"):
        _refuse(getattr(task, name) < 0, f"{name} holds a negative token id", "pad on the right with pad_id")
    for name in ("answers", "wrong"):
        if (ids := getattr(task, name)) is not None:
            _refuse(ids < -1, f"{name} holds a negative id other than -1", "-1 alone means 'none'")
            _refuse(~(ids >= 0).any(1), f"{name} names no token", "give every prompt one")
    outside = (task.lengths < 1) | (task.lengths > task.length)
    _refuse(outside, f"lengths is out of range 1..{task.length}", "count the tokens before the padding")
    outside = (task.positions < 0) | (task.positions >= task.lengths)
    _refuse(outside, "positions lies outside its prompt", "count from 0; the last token is lengths - 1")
    if task.wrong is not None:
        same = (task.answers[:, :, None] == task.wrong[:, None]) & (task.answers[:, :, None] >= 0)
        _refuse(same, "an answer is also a wrong answer", "an id can be only one of them")


def _refuse(bad: Tensor, fact: str, remedy: str) -> None:
    """Raise for the first row in which `bad` holds."""
    if bool(bad.any()):
        row = int(bad.reshape(len(bad), -1).any(1).nonzero()[0])
        raise InputError(f"{fact} (prompt {row}); {remedy}")
