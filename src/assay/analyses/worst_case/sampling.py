"""Which clean and corrupted inputs are run, and in which pairs: the protocols.

Draws come from named streams under one root seed, a prompt at a time, so the first k inputs of a longer
sample are the sample of k, and samples under different prefixes are independent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from assay.analyses.worst_case.image_inputs import no_counterparts
from assay.analyses.worst_case.inputs import (
    PairSample,
    PromptSet,
    names_of,
    prompt_set,
    shown,
    sides_of,
)
from assay.analyses.worst_case.row_by_row import DONOR, edge_ablation
from assay.core.errors import InputError, TokenizationError, check_least, check_name
from assay.core.random import stream
from assay.tasks import Grammar, ImageTask, PairTask, Prompt, Task


INPUTS = "inputs"  # of ablations that read no second input
PROTOCOLS = ("all", "matched", "iid", "file", INPUTS)
N_BASELINE = 200  # prompts that ablated values are measured over
KEPT_PROMPTS = 100_000  # of larger samples only ids, texts and fields are kept
PIECE = 10_000  # prompts drawn and encoded at a time


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
    if reuse_clean and protocol != "all":
        raise InputError(f"reuse_clean belongs to protocol 'all'; protocol {protocol!r} does not use it")
    check_ablation(ablation, protocol)
    draw = _PairDraw(task, protocol, n_clean, n_corrupted, seed, prefix, ablation)
    if protocol == "file" or (protocol == INPUTS and draw.grammar is None):
        sample = draw.rows(independent=independent)
    elif protocol == "all" and n_clean == n_corrupted == task.n and not reuse_clean:
        sample = draw.rows(independent=independent, paired=True)
    elif draw.grammar is None:
        sample = draw.resampled(reuse_clean=reuse_clean)
    else:
        sample = draw.drawn(reuse_clean=reuse_clean)
    check_lengths(sample)
    return sample


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


@dataclass(frozen=True)
class _PairDraw:
    """What the protocols have in common: the task, the counts, the streams."""

    task: Task
    protocol: str
    n_clean: int
    n_corrupted: int
    seed: int
    prefix: str
    ablation: str

    @property
    def grammar(self) -> Grammar | None:
        return grammar_of(self.task)

    @cached_property
    def sides(self) -> dict[str, PromptSet]:
        """The two sides of the task's rows; donors are clean inputs."""
        sides = sides_of(self.task)
        if self.protocol == INPUTS or self.ablation == DONOR:
            sides["corrupted"] = sides["clean"]
        elif isinstance(self.task, ImageTask) and self.task.corrupted is None:
            raise no_counterparts(self.task)
        return sides

    def reference(self) -> PromptSet | None:
        """What ablated values are measured over: fresh prompts where there is a grammar, else the rows."""
        if not edge_ablation(self.ablation).measured:
            return None
        if self.grammar is None:
            return self.sides["clean"]
        return self.encoded(self.grammar.draw(N_BASELINE, self.stream("baseline")), keep=False)

    def stream(self, name: str) -> np.random.Generator:
        return stream(self.seed, self.prefix + name)

    def sample(
        self, clean: PromptSet, corrupted: PromptSet, streams: Sequence[str] = (), **facts: Any
    ) -> PairSample:
        grammar, task = self.grammar, self.task
        if grammar is None:
            counts: dict[str, int | None] = {
                name: len(side.distinct.first_index) for name, side in self.sides.items()
            }
        else:
            counts = {"clean": grammar.population, "corrupted": grammar.corrupted_population}
            if self.protocol == INPUTS or self.ablation == DONOR:
                counts["corrupted"] = grammar.population
        reference = self.reference()
        if reference is not None and grammar is not None:
            streams = [*streams, "baseline"]
        if self.protocol != "all" and "pairs" not in facts:
            facts["pairs"] = np.stack([np.arange(clean.n)] * 2, axis=1)
        return PairSample(
            protocol=self.protocol,
            clean=clean,
            corrupted=corrupted,
            population=counts,
            seed=self.seed,
            streams={name: self.prefix + name for name in streams},
            tokenizer=names_of(task),
            task=task.describe() if grammar is None or facts.get("own_rows") else _drawn_from(task),
            heatmap_fields=self.heatmap_fields,
            ablation=self.ablation,
            reference=reference,
            **facts,
        )

    @property
    def heatmap_fields(self) -> tuple[tuple[str, str], ...]:
        if self.protocol == INPUTS:
            return ()
        if isinstance(self.task, ImageTask) and self.ablation == DONOR:
            return (("label", "corrupted.label"),)
        return () if self.grammar is None else self.grammar.heatmap_fields

    def rows(self, *, independent: bool, paired: bool = False) -> PairSample:
        """The task as it is."""
        sides = self.sides
        return self.sample(
            sides["clean"], sides["corrupted"], own_rows=True, independent=independent, paired=paired
        )

    def resampled(self, *, reuse_clean: bool) -> PairSample:
        """Rows of a task without a grammar, drawn with replacement."""
        sides = self.sides
        clean_rows = self.stream("clean").integers(self.task.n, size=self.n_clean)
        self._check_reuse(reuse_clean)
        if self.protocol == "matched" or reuse_clean:
            others, streams = clean_rows, ["clean"]
        else:
            count = self.n_clean if self.protocol == "iid" else self.n_corrupted
            others = self.stream("corrupted").integers(self.task.n, size=count)
            streams = ["clean", "corrupted"]
        return self.sample(
            sides["clean"].subset(clean_rows),
            sides["corrupted"].subset(others),
            streams,
            own_rows=True,
            independent=False,  # draws from the rows at hand, not from what the rows stand for
            paired=reuse_clean,
            reuse_clean=reuse_clean,
        )

    def drawn(self, *, reuse_clean: bool) -> PairSample:
        """Fresh prompts of the task's grammar."""
        grammar = self.grammar
        assert grammar is not None
        self._check_reuse(reuse_clean)
        counterparts = self.protocol == "matched" or reuse_clean
        if self.protocol == INPUTS:
            prompts = grammar.draw(self.n_clean, self.stream("clean"))
            side = self.encoded(prompts, keep=self.n_clean <= KEPT_PROMPTS)
            return self.sample(side, side, ["clean"])
        corrupt = grammar.corrupt if self.ablation != DONOR else _unchanged
        # Piece by piece: prompts are large, and of a million of them only the ids and fields are kept.
        sides: tuple[list[PromptSet], list[PromptSet]] = ([], [])
        rng, changes = self.stream("clean"), self.stream("corrupted")
        for count in _pieces(self.n_clean):
            prompts = grammar.draw(count, rng)
            sides[0].append(self.encoded(prompts, keep=self.n_clean <= KEPT_PROMPTS))
            if counterparts:
                changed = corrupt(prompts, changes)
                sides[1].append(self.encoded(changed, keep=self.n_clean <= KEPT_PROMPTS))
        if not counterparts:
            rng = self.stream("corrupted:clean")
            total = self.n_clean if self.protocol == "iid" else self.n_corrupted
            for count in _pieces(total):
                prompts = grammar.draw(count, rng)
                changed = corrupt(prompts, changes)
                sides[1].append(self.encoded(changed, keep=total <= KEPT_PROMPTS))
        clean, corrupted = (PromptSet.concatenate(parts, pad_id=grammar.tokens.pad_id) for parts in sides)
        return self.sample(
            clean,
            corrupted,
            ["clean", "corrupted", *([] if counterparts else ["corrupted:clean"])],
            paired=reuse_clean,
            reuse_clean=reuse_clean,
        )

    def _check_reuse(self, reuse_clean: bool) -> None:
        if reuse_clean and self.n_corrupted != self.n_clean:
            raise InputError(
                f"reuse_clean corrupts each of the {self.n_clean} clean prompts, but n_corrupted is "
                f"{self.n_corrupted}; make the two equal"
            )

    def encoded(self, prompts: Sequence[Prompt], *, keep: bool = True) -> PromptSet:
        """Prompts of the grammar as token ids; see `prompt_set`."""
        assert self.grammar is not None
        return prompt_set(prompts, self.grammar.tokens, keep=keep)


def _drawn_from(task: Task) -> dict[str, Any]:
    """What a fresh draw depends on: how the task draws, not which prompts it holds."""
    config = {name: value for name, value in task.config.items() if name not in ("n", "seed")}
    return {"name": task.name, "config": config}


def _unchanged(prompts: Sequence[Prompt], rng: np.random.Generator) -> Sequence[Prompt]:
    """Donors are clean prompts."""
    return prompts


def check_ablation(ablation: str, protocol: str) -> None:
    """Refuse a protocol whose second inputs an ablation has no use for, and the other way about."""
    paired = edge_ablation(ablation).paired
    if not paired and protocol != INPUTS:
        raise InputError(
            f"{ablation!r} ablation reads no second input, so there are no pairs; use protocol {INPUTS!r} "
            f"instead of {protocol!r}"
        )
    if paired and protocol == INPUTS:
        raise InputError(
            f"protocol {INPUTS!r} runs single inputs, but {ablation!r} ablation takes values from a second "
            "one; use 'all', 'matched', 'iid' or 'file'"
        )
    if ablation == DONOR and protocol not in ("all", "iid"):
        raise InputError(
            f"{DONOR!r} ablation takes values from another clean input, but protocol {protocol!r} pairs a "
            "prompt with its own corruption; use 'all' or 'iid'"
        )


def _pieces(total: int) -> Iterator[int]:
    """Sizes of the pieces of a draw."""
    for start in range(0, total, PIECE):
        yield min(PIECE, total - start)


def check_lengths(sample: PairSample) -> None:
    """All inputs of a product, or the two of each pair, have one length and are read at one position."""
    clean, corrupted = sample.clean, sample.corrupted
    if sample.pairs is not None:
        rows = torch.from_numpy(sample.pairs)
        for name in ("lengths", "positions"):
            both = torch.cat([getattr(clean, name), getattr(corrupted, name)])
            left, right = both[: clean.n][rows[:, 0]], both[clean.n :][rows[:, 1]]
            if not torch.equal(left, right):
                pair = int((left != right).nonzero()[0])
                first, second = sample.pairs[pair].tolist()
                raise TokenizationError(
                    f"pair {pair}: clean prompt {shown(clean, first, sample.tokenizer)} has {name} "
                    f"{left[pair].tolist()}, corrupted prompt {shown(corrupted, second, sample.tokenizer)} "
                    f"has {right[pair].tolist()}, but the two must agree. Restrict the task to one template "
                    "and fillers of one token"
                )
        return
    for name, what in (("lengths", "tokens"), ("positions", "as read position")):
        values = torch.cat([getattr(clean, name), getattr(corrupted, name)])
        lengths = torch.unique(values).tolist()
        if len(lengths) > 1:
            examples = []
            for value in lengths[:4]:
                row = values.tolist().index(value)
                side, at = (clean, row) if row < clean.n else (corrupted, row - clean.n)
                examples.append(f"{value} {what}: {shown(side, at, sample.tokenizer)}")
            raise TokenizationError(
                "combining all prompts needs a single token count, but these differ: "
                + "; ".join(examples)
                + ". Restrict the task to one template, or use protocol 'matched'"
            )
