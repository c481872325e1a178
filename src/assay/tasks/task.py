"""A task: clean and corrupted prompts side by side, what is right and wrong about them, where to read.

Token ids are enough; text, slots and the grammar they came from are carried along where they are known.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.errors import InputError, TokenizationError, check_least
from assay.core.machine import count_examples
from assay.core.random import stream
from assay.tasks.checks import PER_ROW, check_rows, check_shapes, check_values, integers


if TYPE_CHECKING:
    from assay.tasks.grammar import Grammar


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, eq=False)
class PairBatch:
    """Some rows of a task, as a model pass takes them.

    Attributes:
        clean: Token ids `[batch, pos]`.
        corrupted: Token ids of the counterparts, same shape.
        answers: Right next tokens `[batch, n_answers]`, -1 where a row has fewer.
        wrong: Tokens to compare with `[batch, n_wrong]`, -1 where a row has fewer; None if there are none.
        lengths: Tokens of each prompt; what stands right of them is padding.
        positions: Position whose logits are read; `[batch, reads]` where there are several, -1 where a row
            has fewer. `answers` and `wrong` are then `[batch, reads, ...]`.
        indices: Row numbers in the task.
    """

    clean: Int[Tensor, "batch pos"]
    corrupted: Int[Tensor, "batch pos"]
    answers: Int[Tensor, "batch ... n_answers"]
    wrong: Int[Tensor, "batch ... n_wrong"] | None
    lengths: Int[Tensor, " batch"]
    positions: Int[Tensor, "batch ..."]
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

    def by_read(self, counted: Bool[Tensor, "batch reads"]) -> "PairBatch":
        """A row for every read position that counts, prompt by prompt, each read there alone."""
        row = counted.nonzero()[:, 0]
        return PairBatch(
            clean=self.clean[row],
            corrupted=self.corrupted[row],
            answers=self.answers[counted],
            wrong=None if self.wrong is None else self.wrong[counted],
            lengths=self.lengths[row],
            positions=self.positions[counted],
            indices=self.indices[row],
        )


def check_read_once(positions: Int[Tensor, "n *reads"], what: str) -> None:
    """Refuse prompts that are read at several positions where only one is served.

    Raises:
        InputError: Naming `what` serves one only.
    """
    if positions.ndim == 2:
        count = int((positions >= 0).sum(1).max())
        raise InputError(
            f"{what} reads prompts at one position, but some here are read at {count}; give each position a "
            "prompt of its own, or score answers of several tokens by the first (answer_tokens='first')"
        )


def map_tensors(batch: T, change: Callable[[Tensor], Tensor]) -> T:
    """A batch (of any kind) with `change` applied to each of its tensors."""
    changed: Any = {name: change(value) for name, value in vars(batch).items() if isinstance(value, Tensor)}
    return replace(batch, **changed)  # type: ignore[type-var]  # a dataclass instance, which T cannot say


class Split(NamedTuple):
    """Two disjoint parts of a task."""

    first: "PairTask"
    second: "PairTask"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PairTask:
    """Pairs of a clean and a corrupted prompt, with answers.

    Args:
        clean: Token ids `[N, T]`; prompts shorter than T are padded on the right.
        corrupted: Token ids of the counterparts, same shape and lengths.
        answers: Right next tokens of the clean prompts `[N, A]`; -1 fills rows that have fewer.
        wrong: Tokens the answers are compared with `[N, W]`, -1 as above; None if there are none.
        lengths: Tokens of each prompt `[N]`, 1..T. Default: T.
        positions: Position whose logits are read `[N]`, within the prompt. Default: its last token. Several
            per prompt: `[N, P]`, -1 filling rows that have fewer; answers are then `[N, P, A]`, at least one
            at each position, and wrong ones `[N, P, W]`, at least one for each prompt, which counts by the
            mean over its positions.
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
    answers: Int[Tensor, "n ... n_answers"]
    wrong: Int[Tensor, "n ... n_wrong"] | None = None
    # Left out, these four are filled in by `__post_init__`, so that readers never meet None.
    lengths: Int[Tensor, " n"] = None  # type: ignore[assignment]
    positions: Int[Tensor, "n ..."] = None  # type: ignore[assignment]
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
        tensors = {name: getattr(self, name) for name in ("clean", "corrupted", "answers", "wrong", *PER_ROW)}
        for name, value in tensors.items():
            if value is not None:
                object.__setattr__(self, name, integers(name, value))
        places = tensors["positions"]
        if places is not None and places.shape[1:] == (1,):  # one per prompt, as usual
            for name, ndim in (("positions", 2), ("answers", 3), ("wrong", 3)):
                value = getattr(self, name)
                if value is not None and value.ndim == ndim:
                    object.__setattr__(self, name, value[:, 0])
        check_shapes(self)
        n, width = self.clean.shape
        defaults: dict[str, Callable[[], Tensor]] = {
            "lengths": lambda: torch.full((n,), width),
            "positions": lambda: self.lengths - 1,
            "ids": lambda: torch.arange(n),
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())
        object.__setattr__(self, "fields", dict(self.fields or {}))
        check_rows(self)
        check_values(self)

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
        rows = torch.as_tensor(indices)
        if rows.ndim != 1 or len(rows) == 0 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise InputError(
                f"subset has {tuple(rows.shape)} of {rows.dtype}; expected a list of at least one row number"
            )
        if int(rows.min()) < 0 or int(rows.max()) >= self.n:
            raise InputError(
                f"subset names rows {int(rows.min())} to {int(rows.max())}, but there are 0 to {self.n - 1}"
            )
        places = rows.tolist()
        changed: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in ("clean", "corrupted", "answers", *PER_ROW)
        }
        changed["wrong"] = None if self.wrong is None else self.wrong[rows]
        changed["fields"] = {name: [values[i] for i in places] for name, values in self.fields.items()}
        changed["slots"] = {name: where[rows] for name, where in self.slots.items()}
        for name in ("texts", "corrupted_texts"):
            lines = getattr(self, name)
            changed[name] = None if lines is None else tuple(lines[i] for i in places)
        return replace(self, **changed)

    def with_donors(self, rows: Int[Tensor, " n"]) -> "PairTask":
        """The same prompts with, as counterparts, the clean prompts of the given rows."""
        return replace(self, corrupted=self.clean[rows], corrupted_texts=None)

    def paired(self, pairs: Int[Tensor, "n_pairs 2"]) -> "PairTask":
        """One row per (clean row, corrupted row); a corrupted row keeps an answer that stands behind it."""
        clean, corrupted = pairs.unbind(1)
        other = self.subset(corrupted)
        return replace(self.subset(clean), corrupted=other.corrupted, corrupted_texts=other.corrupted_texts)

    def split(self, fraction: float, *, seed: int = 0) -> Split:
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
        return Split(*(self.subset(sorted(part.tolist())) for part in (shuffled[:count], shuffled[count:])))

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
        for name in ("clean", "corrupted", "answers", "wrong"):
            ids = getattr(self, name)
            if ids is None or int(ids.max()) < n_vocab:
                continue
            row, *column = (ids >= n_vocab).nonzero()[0].tolist()
            raise TokenizationError(
                f"{name} holds id {int(ids[row, *column])} (prompt {row}, place {column[-1]}), but the "
                f"model's vocabulary ends at {n_vocab - 1}; build the task with this model's own tokenizer"
            )
