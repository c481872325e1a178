"""From prompts to padded token ids, and from two lists of prompts to a task of pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import InputError, TokenizationError
from assay.tasks.grammar import Prompt
from assay.tasks.reads import PromptReads, Reader, tables_of
from assay.tasks.task import PairTask
from assay.tasks.tokens import TokenizedPrompt, Tokens


if TYPE_CHECKING:
    from assay.tasks.grammar import Grammar


@dataclass(frozen=True, kw_only=True)
class EncodedPrompts:
    """Prompts as token ids, padded on the right.

    Attributes:
        ids: Token ids `[n, pos]`.
        lengths: Tokens of each row.
        positions: Read position, usually the last token of each prompt; several as in `PairTask`.
        answers: Right next tokens, -1 where a row has fewer; None if a prompt has none.
        wrong: Wrong next tokens, likewise.
        forced: Tokens of the answer at the end of each row, behind the prompt.
        slots: Slot name to position of its last token.
        fields: Field name to one value per prompt; `n_tokens` is among them.
        texts: The prompts as the model reads them; None if one has no text.
    """

    ids: Int[Tensor, "n pos"]
    lengths: Int[Tensor, " n"]
    positions: Int[Tensor, "n ..."]
    answers: Int[Tensor, "n ... n_answers"] | None
    wrong: Int[Tensor, "n ... n_wrong"] | None
    forced: tuple[tuple[int, ...], ...]
    slots: Mapping[str, Int[Tensor, " n"]]
    fields: Mapping[str, list[Any]]
    texts: tuple[str, ...] | None


def encode_prompts(
    prompts: Sequence[Prompt], tokens: Tokens | None, *, behind: Sequence[tuple[int, ...]] | None = None
) -> EncodedPrompts:
    """Token ids of prompts, their answers as tokens in context, the token of every slot.

    Args:
        prompts: At least one prompt, each of text or of ids.
        tokens: The tokenizer; None is enough for prompts and answers of ids.
        behind: Tokens that stand behind each prompt, for counterparts of prompts whose answers do; answers of
            their own are then not looked at.

    Raises:
        InputError: If there is no prompt, or one is read outside its tokens.
        TokenizationError: If a prompt has no token, or an answer breaks the rule of `tokens`; the prompt is
            named.
    """
    if not prompts:
        raise InputError("the task is empty; give at least one prompt")
    tokenized = _tokenize(prompts, tokens)
    rows = [each.ids for each in tokenized]
    for prompt, row in zip(prompts, rows, strict=True):
        if not row:
            raise TokenizationError(f"prompt {prompt} has no token; give it some text")
    if behind is None:
        reader = Reader(tokens)
        reads = [
            reader.of(prompt, each.ids, each.start) for prompt, each in zip(prompts, tokenized, strict=True)
        ]
        behind = [each.forced for each in reads]
    else:
        reads = [PromptReads(positions=(len(row) - 1,), answers=((),), wrong=None) for row in rows]
    known = tables_of(reads)
    n_tokens = [len(row) for row in rows]
    rows = [(*row, *ids) for row, ids in zip(rows, behind, strict=True)]
    spans = [each.slots for each in tokenized]
    slots = {
        name: torch.tensor([place[name][1] - 1 for place in spans])
        for name in spans[0]
        if all(name in place and place[name][0] < place[name][1] for place in spans)
    }
    names = dict.fromkeys(name for prompt in prompts for name in prompt.fields)
    fields = {name: [prompt.fields.get(name) for prompt in prompts] for name in names}
    return EncodedPrompts(
        ids=padded(rows, 0 if tokens is None else tokens.pad_id),
        lengths=torch.tensor([len(row) for row in rows]),
        positions=known.positions,
        answers=known.answers,
        wrong=known.wrong,
        forced=tuple(behind),
        slots=slots,
        fields={**fields, "n_tokens": n_tokens},
        texts=_texts(prompts, tokens) if all(p.ids is None for p in prompts) else None,
    )


def pair_task(
    clean: Sequence[Prompt],
    corrupted: Sequence[Prompt],
    tokens: Tokens | None,
    *,
    name: str,
    grammar: "Grammar | None" = None,
    config: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> PairTask:
    """A task out of clean prompts and, in the same order, their corrupted counterparts.

    Pairs that no grammar made are left out where their prompts differ in token count. Where the first token
    of an answer decides, so are pairs whose right and wrong answers begin with the same. Notes of the task
    count them, and its `ids` are the places of the others.

    Args:
        clean: The prompts.
        corrupted: Their counterparts.
        tokens: The tokenizer; None is enough for ids.
        name: Name of the task.
        grammar: What the prompts were drawn from; both prompts of its pairs must have as many tokens.
        config: How the task was made.
        notes: What was left out before.

    Raises:
        TokenizationError: If a pair of a grammar differs in token count, or a prompt breaks a rule of
            `encode_prompts`.
        NoPairsError: If no pair is left.
    """
    left = encode_prompts(clean, tokens)
    right = encode_prompts(corrupted, tokens, behind=left.forced)

    def only(rows: list[int], reason: str) -> PairTask:
        note = f"{len(clean) - len(rows)} of {len(clean)} pairs, {reason}, are left out"
        task = pair_task(
            [clean[row] for row in rows],
            [corrupted[row] for row in rows],
            tokens,
            name=name,
            grammar=grammar,
            config=config,
            notes=(*notes, note),
        )
        return replace(task, ids=torch.tensor(rows)[task.ids])

    equal = (left.lengths == right.lengths).nonzero().flatten().tolist()
    if len(equal) < len(clean):
        if grammar is not None or not equal:
            raise _unequal(clean, corrupted, left, right, every=not equal)
        return only(equal, "whose prompts differ in token count")
    if left.answers is None:
        without = next(
            prompt for prompt in clean if not all(each.answers for each in prompt.reads or (prompt,))
        )
        raise TokenizationError(f"prompt {without} has no answer; give at least one")
    if tokens is not None and tokens.answer_tokens == "first":
        apart = _told_apart(clean, left)
        if len(apart) < len(clean):
            return only(apart, "whose right and wrong answers begin with the same token")
    return PairTask(
        clean=left.ids,
        corrupted=right.ids,
        answers=left.answers,
        wrong=left.wrong,
        lengths=left.lengths,
        positions=left.positions,
        fields={**left.fields, **{f"corrupted.{key}": values for key, values in right.fields.items()}},
        name=name,
        objective="logit_diff" if grammar is None else grammar.objective,
        texts=left.texts,
        corrupted_texts=right.texts,
        slots=left.slots,
        tokenizer=None if tokens is None else tokens.tokenizer,
        grammar=grammar,
        config=config or {},
        pad_id=0 if tokens is None else tokens.pad_id,
        notes=notes,
    )


def _texts(prompts: Sequence[Prompt], tokens: Tokens | None) -> tuple[str, ...]:
    return tuple(prompt.text if tokens is None else tokens.turn_of(prompt.text)[0] for prompt in prompts)


class NoPairsError(TokenizationError):
    """No pair has prompts of one token count, or answers that the tokens they are scored by distinguish."""


def _unequal(
    clean: Sequence[Prompt],
    corrupted: Sequence[Prompt],
    left: EncodedPrompts,
    right: EncodedPrompts,
    *,
    every: bool,
) -> TokenizationError:
    """What is wrong with the first pair whose prompts differ in token count."""
    row = int((left.lengths != right.lengths).nonzero()[0])
    counts = [side.fields["n_tokens"][row] for side in (left, right)]
    others = f" (all {len(clean)} pairs differ)" if every and len(clean) > 1 else ""
    kind = NoPairsError if every else TokenizationError
    return kind(
        f"pair {row}: clean prompt {clean[row]} has {counts[0]} tokens, corrupted prompt {corrupted[row]} "
        f"has {counts[1]}{others}; patching by position needs equal counts, so use words of one token"
    )


def _told_apart(prompts: Sequence[Prompt], encoded: EncodedPrompts) -> list[int]:
    """The rows none of whose right answers begins with the token of a wrong one."""
    if encoded.answers is None or encoded.wrong is None or encoded.positions.ndim == 2:
        return list(range(len(prompts)))
    same = (encoded.answers[:, :, None] == encoded.wrong[:, None]) & (encoded.answers[:, :, None] >= 0)
    alike = same.flatten(1).any(1)
    if bool(alike.all()):
        _, right, wrong = same.nonzero()[0].tolist()
        others = f", and so do those of all {len(prompts)} pairs" if len(prompts) > 1 else ""
        raise NoPairsError(
            f"answer {prompts[0].answers[right]!r} and wrong answer {prompts[0].wrong[wrong]!r} of the "
            f"prompt {prompts[0]} begin with the same token{others}; use answers that differ in it"
        )
    rows: list[int] = (~alike).nonzero().flatten().tolist()
    return rows


def padded(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "n width"]:
    """Rows of unequal length as one matrix, filled on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


def _tokenize(prompts: Sequence[Prompt], tokens: Tokens | None) -> list[TokenizedPrompt]:
    written = [i for i, prompt in enumerate(prompts) if prompt.ids is None]
    if written and tokens is None:
        raise TokenizationError(
            f"prompt {prompts[written[0]]} is text, but the tokenizer is missing; pass the model's "
            "tokenizer, or token ids"
        )
    if tokens is not None and tokens.chat and len(written) < len(prompts):
        prompt = next(prompt for prompt in prompts if prompt.ids is not None)
        raise TokenizationError(
            f"prompt {prompt} has no text that a chat template could wrap; set chat to False"
        )
    found = []
    for prompt in prompts:
        prefix = () if tokens is None or prompt.whole else tokens.prefix
        shift = len(prefix)
        slots = {name: (start + shift, stop + shift) for name, (start, stop) in prompt.slots.items()}
        found.append(TokenizedPrompt(prefix + (prompt.ids or ()), slots, shift))
    if tokens is not None and written:
        coded = tokens.encode([prompts[i].text for i in written], [prompts[i].slots for i in written])
        for i, each in zip(written, coded, strict=True):
            found[i] = each
    return found
