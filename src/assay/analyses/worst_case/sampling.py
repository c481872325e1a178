"""Which clean and corrupted inputs are run, and in which pairs.

Draws come from named streams under one root seed, a prompt at a time, so the first k inputs of a longer
sample are the sample of k, and samples under different prefixes are independent. An image takes the place of
token ids by its number among the distinct images of a task.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.nn import functional

from assay.core.errors import InputError, TokenizationError, check_least, check_name
from assay.core.random import stream
from assay.core.record import plain
from assay.execution import Ablation, get_ablation
from assay.execution.ablation import Mean
from assay.page.draw import thumbnail
from assay.tasks import Grammar, ImageTask, PairTask, Prompt, Task, Tokens, encode_prompts


INPUTS = "inputs"  # of ablations that read no second input
PROTOCOLS = ("all", "matched", "iid", "file", INPUTS)
DONOR = "resample-donor"
BLOCK = 2**14  # prompts that exist at a time while a sample is drawn
N_BASELINE = 200  # prompts that ablated values are measured over
CORRUPTED = "corrupted."  # prefix of a field that belongs to the corrupted input


# ------------------------------------------------------------------------------------------ the inputs


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
        positions: Position whose logits are read.
        answers: Right next tokens `[n, n_answers]`, -1 where a row has fewer; None where there are none.
        wrong: Tokens the answers are compared with, likewise.
        texts: The inputs as text; None where there is none.
        slots: Slot name to the token position of its filler in each input `[n]`.
        fields: Field name to one value per input; names without the prefix `corrupted.`, on either side.
        images: Every distinct image, as a model reads it; None for prompts.
    """

    tokens: Int[Tensor, "n pos"]
    lengths: Int[Tensor, " n"]
    positions: Int[Tensor, " n"]
    answers: Int[Tensor, "n n_answers"] | None = None
    wrong: Int[Tensor, "n n_wrong"] | None = None
    texts: tuple[str, ...] | None = None
    slots: Mapping[str, Int[Tensor, " n"]] = field(default_factory=dict)
    fields: Mapping[str, list[Any]]
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
        rows = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        places = rows.tolist()
        return PromptSet(
            tokens=self.tokens[rows],
            lengths=self.lengths[rows],
            positions=self.positions[rows],
            answers=None if self.answers is None else self.answers[rows],
            wrong=None if self.wrong is None else self.wrong[rows],
            texts=None if self.texts is None else tuple(self.texts[i] for i in places),
            slots={name: where[rows] for name, where in self.slots.items()},
            fields={name: [values[i] for i in places] for name, values in self.fields.items()},
            images=self.images,
        )

    def text(self, row: int, tokenizer: Any) -> str:
        """An input as text; its ids where there is no tokenizer."""
        if self.texts is not None:
            return self.texts[row]
        ids = self.tokens[row, : int(self.lengths[row])].tolist()
        return " ".join(map(str, ids)) if tokenizer is None else str(tokenizer.decode(ids))


def _distinct(*columns: Tensor) -> DistinctInputs:
    return first_occurrences(torch.cat([each.reshape(len(each), -1) for each in columns], dim=1).numpy())


def first_occurrences(values: Int64[np.ndarray, "n ..."]) -> DistinctInputs:
    """The distinct numbers of a list, or rows of a table, in order of first occurrence."""
    axis = None if values.ndim == 1 else 0
    _, first, inverse = np.unique(values, axis=axis, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return DistinctInputs(first_index=first[order], inverse=np.argsort(order)[inverse.ravel()])


@dataclass(frozen=True)
class ClassNames:
    """Names of classes, in the place of a tokenizer: what a row of logits is about.

    Attributes:
        names: Label 0 first; None where only numbers are known.
    """

    names: tuple[str, ...] | None

    def decode(self, classes: Sequence[int]) -> str:
        """The name of each class."""
        return " ".join(f"class {each}" if self.names is None else self.names[each] for each in classes)


_IDENTITY: tuple[str, ...] = ("protocol", "n_pairs", "independent", "paired", "reuse_clean", "own_rows")
_IDENTITY += ("seed", "streams", "data_hash", "task")


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
    def carried(self) -> Ablation:
        """What cut edges carry in the runs of the sample; measured once for all of them."""
        found = edge_ablation(self.ablation)
        if self.reference is None:
            return found
        assert isinstance(found, Mean)  # nothing else is measured and draws nothing
        return replace(found, reference=task_of(self.reference, self.reference))

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
        record = {name: plain(getattr(self, name)) for name in _IDENTITY}
        record |= {"n_clean": self.clean.n, "n_corrupted": self.corrupted.n}
        if self.ablation != "resample":
            n_reference = None if self.reference is None else self.reference.n
            record |= {"ablation": self.ablation, "n_reference": n_reference}
        return record


def edge_ablation(key: str) -> Ablation:
    """The ablation of edges behind a key; a donor's values are those of a corrupted input.

    Raises:
        InputError: For an ablation that draws its values anew in every run.
    """
    found = get_ablation("resample" if key == DONOR else key)
    if found.draws > 1:
        raise InputError(
            f"{found.key!r} ablation draws other values in every run, so a divergence would belong to the "
            "draw as much as to the input; use resample, resample-donor, zero, mean or mean-positional"
        )
    return found


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


def prompt_set(prompts: Sequence[Prompt], tokens: Tokens) -> PromptSet:
    """Prompts of a grammar as the inputs of one side."""
    encoded = encode_prompts(prompts, tokens)
    alike = {
        name: getattr(encoded, name)
        for name in ("lengths", "positions", "answers", "wrong", "texts", "slots")
    }
    return PromptSet(tokens=encoded.ids, fields=dict(encoded.fields), **alike)


# ------------------------------------------------------------------------------------------ the sample


def sample_pairs(
    task: Task,
    protocol: str = "all",
    n_clean: int = 1000,
    n_corrupted: int = 1000,
    *,
    ablation: str = "resample",
    seed: int = 0,
    reuse_clean: bool = False,
    independent: bool = True,
    prefix: str = "",
) -> PairSample:
    """Draw clean and corrupted inputs of a task and pair them.

    Args:
        task: Inputs come from its grammar; where it has none, they are drawn from its rows.
        protocol: `all`: every combination of `n_clean` clean and `n_corrupted` corrupted inputs, the latter
            made from clean prompts drawn for them alone. `matched`: `n_clean` pairs of a clean prompt and its
            own corruption. `iid`: `n_clean` pairs with both inputs drawn anew and independently. `file`: the
            task's own pairs in order. `inputs`, for ablations that read no second input: `n_clean` prompts,
            all rows of a task without a grammar.
        n_clean: Clean inputs, or pairs under `matched` and `iid`.
        n_corrupted: Corrupted inputs of `all`; the other protocols have as many as pairs.
        ablation: What cut edges carry. `resample-donor`: the second inputs are clean ones too.
        seed: Root seed of all random draws.
        reuse_clean: `all` only: corrupt the clean prompts of the sample instead of fresh ones, as the
            published runs did. Such a sample supports no certificate.
        independent: Whether rows of a task without a grammar are independent draws of what they stand for.
        prefix: Put before the names of the streams; samples under different prefixes are independent.

    Returns:
        The sample. Under `all` with both counts equal to the number of rows of the task, all of its rows in
        order, not a draw.

    Raises:
        InputError: If a count is below 1, or the prompts of `all` or the two of a pair differ in length.
        UnknownNameError: If there is no such protocol.

    References:
        uit de Bos and Garriga-Alonso (2024), arXiv:2407.15166, section 3.
    """
    check_name("protocol", protocol, PROTOCOLS)
    check_least(1, n_clean=n_clean, n_corrupted=n_corrupted)
    check_ablation(ablation, protocol)
    _check_reuse(reuse_clean, protocol, n_clean, n_corrupted)
    grammar, streams, facts = grammar_of(task), dict[str, str](), dict[str, Any]()

    def draws(name: str) -> np.random.Generator:
        streams[name] = prefix + name
        return stream(seed, prefix + name)

    alike = ablation == DONOR or protocol == INPUTS  # the second inputs are clean ones, or none
    crossed_rows = protocol == "all" and n_clean == n_corrupted == task.n and not reuse_clean
    own_rows = grammar is None or protocol == "file" or crossed_rows
    n_second = n_corrupted if protocol == "all" else n_clean
    counterparts = protocol == "matched" or reuse_clean
    if grammar is None or own_rows:
        clean, corrupted = _own_sides(task, alike=alike)
        facts = {"own_rows": True, "independent": independent, "paired": crossed_rows}
        if protocol not in ("file", INPUTS) and not crossed_rows:
            rows = draws("clean").integers(task.n, size=n_clean)
            others = rows if counterparts else draws("corrupted").integers(task.n, size=n_second)
            clean, corrupted = clean.subset(rows), corrupted.subset(others)
            # Draws from the rows at hand, not from what the rows stand for.
            facts |= {"independent": False, "paired": reuse_clean}
    elif protocol == INPUTS:
        (clean,) = (corrupted,) = _drawn(grammar, n_clean, draws("clean"), list)
    else:
        facts, rng, changes = {"paired": reuse_clean}, draws("clean"), draws("corrupted")
        corrupt = list if ablation == DONOR else partial(grammar.corrupt, rng=changes)
        if counterparts:
            clean, corrupted = _drawn(grammar, n_clean, rng, list, corrupt)
        else:
            (clean,) = _drawn(grammar, n_clean, rng, list)
            (corrupted,) = _drawn(grammar, n_second, draws("corrupted:clean"), corrupt)
    reference = None
    if edge_ablation(ablation).measured:
        reference = clean if grammar is None else _drawn(grammar, N_BASELINE, draws("baseline"), list)[0]
    sample = PairSample(
        protocol=protocol,
        clean=clean,
        corrupted=corrupted,
        pairs=None if protocol == "all" else np.stack([np.arange(clean.n)] * 2, axis=1),
        reuse_clean=reuse_clean,
        seed=seed,
        streams=streams,
        tokenizer=task.tokenizer if isinstance(task, PairTask) else ClassNames(task.classes),
        task=_described(task, own_rows=own_rows),
        heatmap_fields=() if protocol == INPUTS else _heatmap_fields(task, ablation),
        ablation=ablation,
        reference=reference,
        **facts,
    )
    check_lengths(sample)
    return sample


def check_ablation(ablation: str, protocol: str) -> None:
    """Refuse a protocol whose second inputs an ablation has no use for, and the other way about."""
    fitting: tuple[str, ...] = ("all", "iid")
    if ablation == DONOR:
        reads = "a second, clean input"
    elif edge_ablation(ablation).paired:
        reads, fitting = "a second input", ("all", "matched", "iid", "file")
    else:
        reads, fitting = "no second input", (INPUTS,)
    if protocol not in fitting:
        names = " or ".join(map(repr, fitting))
        raise InputError(f"{ablation!r} ablation reads {reads}; use protocol {names} instead of {protocol!r}")


def _check_reuse(reuse_clean: bool, protocol: str, n_clean: int, n_corrupted: int) -> None:
    if reuse_clean and (protocol != "all" or n_clean != n_corrupted):
        raise InputError(
            f"reuse_clean corrupts each clean prompt of protocol 'all', but protocol is {protocol!r} with "
            f"n_clean={n_clean} and n_corrupted={n_corrupted}; choose 'all' and make the counts equal"
        )


def _described(task: Task, *, own_rows: bool) -> Mapping[str, Any]:
    """A task in the record of a sample: how it draws, not which prompts it holds, where prompts are fresh."""
    if own_rows:
        return task.describe()
    drawn_from = {name: value for name, value in task.config.items() if name not in ("n", "seed")}
    return {"name": task.name, "config": drawn_from}


def _heatmap_fields(task: Task, ablation: str) -> tuple[tuple[str, str], ...]:
    """Pairs of fields worth a table: those that a grammar names; of images and their donors, the labels."""
    if isinstance(task, ImageTask):
        return (("label", "corrupted.label"),) if ablation == DONOR else ()
    grammar = grammar_of(task)
    return () if grammar is None else grammar.heatmap_fields


def grammar_of(task: Task) -> Grammar | None:
    """What fresh inputs of a task are drawn from; None for images and for prompts that are given."""
    return task.grammar if isinstance(task, PairTask) else None


def usual_protocol(task: Task, ablation: str = "resample") -> str:
    """The protocol of a worst case that names none.

    Single inputs where the ablation reads no second one; of a task without a grammar its own pairs, or, as
    donors, every combination of its inputs; else every combination of what is drawn.
    """
    if not edge_ablation(ablation).paired:
        return INPUTS
    return "file" if grammar_of(task) is None and ablation != DONOR else "all"


def check_lengths(sample: PairSample) -> None:
    """All inputs of a product, or the two of each pair, have one length and are read at one position."""
    clean, corrupted = sample.clean, sample.corrupted
    sizes = torch.cat([torch.stack([side.lengths, side.positions], 1) for side in (clean, corrupted)])
    if sample.pairs is None:
        first, second = np.zeros(len(sizes), dtype=np.int64), np.arange(len(sizes))
    else:
        first, second = sample.pairs[:, 0], clean.n + sample.pairs[:, 1]
    unequal = (sizes[first] != sizes[second]).any(1).nonzero()
    if len(unequal):
        shown = []
        for row in (int(each[int(unequal[0])]) for each in (first, second)):
            side, at = (clean, row) if row < clean.n else (corrupted, row - clean.n)
            shown.append(f"{int(sizes[row, 0])} tokens: {side.text(at, sample.tokenizer)!r}")
        raise TokenizationError(
            f"prompts that are run together need one token count, but these differ: {'; '.join(shown)}. "
            "Restrict the task to one template and fillers of one token, or use protocol 'matched'"
        )


def _drawn(
    grammar: Grammar, n: int, rng: np.random.Generator, *made: Callable[[list[Prompt]], Sequence[Prompt]]
) -> list[PromptSet]:
    """What each of `made` makes of n fresh prompts, block by block: prompts take ten times their ids."""
    blocks = []
    for start in range(0, n, BLOCK):
        prompts = grammar.draw(min(BLOCK, n - start), rng)
        blocks.append([prompt_set(make(prompts), grammar.tokens) for make in made])
    return [_joined(parts, grammar.tokens.pad_id) for parts in zip(*blocks, strict=True)]


def _joined(parts: Sequence[PromptSet], pad_id: int) -> PromptSet:
    """Prompts of several blocks as if they had been encoded together."""

    def column(name: str, fill: int) -> Tensor | None:
        tables = [getattr(part, name) for part in parts]
        if any(table is None for table in tables):
            return None
        width = max(table.shape[1] for table in tables)
        return torch.cat([functional.pad(table, (0, width - table.shape[1]), value=fill) for table in tables])

    tokens, lengths = column("tokens", pad_id), torch.cat([part.lengths for part in parts])
    assert tokens is not None
    slots = [name for name in parts[0].slots if all(name in part.slots for part in parts)]
    fields = dict.fromkeys(name for part in parts for name in part.fields if name != "n_tokens")
    texts = [part.texts for part in parts if part.texts is not None]
    return PromptSet(
        tokens=tokens,
        lengths=lengths,
        positions=lengths - 1,
        answers=column("answers", -1),
        wrong=column("wrong", -1),
        texts=tuple(chain.from_iterable(texts)) if len(texts) == len(parts) else None,
        slots={name: torch.cat([part.slots[name] for part in parts]) for name in slots},
        fields={
            name: [value for part in parts for value in part.fields.get(name, [None] * part.n)]
            for name in (*fields, "n_tokens")
        },
    )


def _own_sides(task: Task, *, alike: bool) -> tuple[PromptSet, PromptSet]:
    """The two sides of a task's own pairs, or its clean side twice."""
    clean, second = _sides(task)
    corrupted = clean if alike else second
    if corrupted is None:
        raise InputError(
            f"the images of {task.name!r} have no counterparts, but resample ablation takes values from "
            "them; use ablation 'resample-donor' (values of other images), zero, mean or "
            "mean-positional, or give ImageTask(corrupted=...)"
        )
    return clean, corrupted


def _sides(task: Task) -> tuple[PromptSet, PromptSet | None]:
    """The two sides of a task's own pairs; images without counterparts have one."""
    if isinstance(task, ImageTask):
        return _sides_of_images(task)
    fields = {name: list(values) for name, values in task.fields.items()}
    clean = PromptSet(
        tokens=task.clean,
        lengths=task.lengths,
        positions=task.positions,
        answers=task.answers,
        wrong=task.wrong,
        texts=task.texts,
        slots=dict(task.slots),
        fields={name: values for name, values in fields.items() if not name.startswith(CORRUPTED)},
    )
    corrupted = PromptSet(
        tokens=task.corrupted,
        lengths=task.lengths,
        positions=task.positions,
        texts=task.corrupted_texts,
        fields={
            name.removeprefix(CORRUPTED): values
            for name, values in fields.items()
            if name.startswith(CORRUPTED)
        },
    )
    return clean, corrupted


# ---------------------------------------------------------------------------------------------- images


def _sides_of_images(task: ImageTask) -> tuple[PromptSet, PromptSet | None]:
    """The images of a task and their counterparts, equal ones under one number."""
    names, labels = ClassNames(task.classes), task.labels
    known = [""] * task.n if labels is None else [names.decode([label]) for label in labels.tolist()]
    kept: list[Tensor] = []
    numbers: dict[bytes, int] = {}

    def numbered(images: Tensor) -> Tensor:
        rows = []
        for image in images:
            key = hashlib.sha256(image.contiguous().numpy().tobytes()).digest()
            if key not in numbers:
                numbers[key] = len(kept)
                kept.append(image)
            rows.append([numbers[key]])
        return torch.tensor(rows)

    def side(tokens: Tensor, name: str, stock: Tensor, **facts: Any) -> PromptSet:
        texts = tuple(
            f"{name} {number}{f' ({label})' if label else ''}"
            for number, label in zip(task.ids.tolist(), known, strict=True)
        )
        lengths = torch.ones(task.n, dtype=torch.long)
        return PromptSet(
            tokens=tokens, lengths=lengths, positions=lengths - 1, texts=texts, images=stock, **facts
        )

    rows = [numbered(each) for each in (task.clean, task.corrupted) if each is not None]
    stock = torch.stack(kept)
    fields = {name: list(values) for name, values in task.fields.items()}
    if labels is not None:
        fields.setdefault("label", known)
    answers = None if labels is None else task.answers
    clean = side(rows[0], "image", stock, answers=answers, wrong=task.wrong, fields=fields)
    if task.corrupted is None:
        return clean, None
    return clean, side(rows[1], "counterpart of image", stock, fields={})


def pictures_of(
    stock: Float[Tensor, "n_distinct 3 h w"], numbers: Sequence[int], config: Mapping[str, Any]
) -> list[str]:
    """Images as PNG data URIs, as they were before a model's normalisation.

    Args:
        stock: Normalised images.
        numbers: Which of them.
        config: How the images were made; without an entry `normalise`, values are stretched to what the
            stock holds.
    """
    rule = config.get("normalise")
    if rule is None:
        low, high = float(stock.min()), float(stock.max())
        shown = (stock[list(numbers)].double() - low) / max(high - low, 1e-12) * 255
    else:
        mean, std = (torch.tensor(rule[name], dtype=torch.float64)[:, None, None] for name in ("mean", "std"))
        shown = (stock[list(numbers)].double() * std + mean) / rule["rescale"]
    pixels = shown.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [thumbnail(each) for each in pixels]
