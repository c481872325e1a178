"""From prompts to padded token ids, and from two lists of prompts to a task of pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import InputError, TokenizationError
from assay.tasks.grammar import Prompt
from assay.tasks.task import PairTask
from assay.tasks.tokens import Tokens


if TYPE_CHECKING:
    from assay.tasks.grammar import Grammar


NO_TOKEN = -1  # fills `answers` and `wrong` where a row has fewer than the longest


class NoPairsError(TokenizationError):
    """No pair has prompts of one token count, or answers that the tokens they are scored by distinguish."""


@dataclass(frozen=True, kw_only=True)
class EncodedPrompts:
    """Prompts as token ids, padded on the right.

    Attributes:
        ids: Token ids `[n, pos]`.
        lengths: Tokens of each row.
        answers: Right next tokens behind each prompt, -1 where a row has fewer; None if a prompt has none.
        wrong: Wrong next tokens, likewise.
        slots: Slot name to position of its last token.
        fields: Field name to one value per prompt; `n_tokens` is among them.
        texts: The prompts as the model reads them; None if one has no text.
    """

    ids: Int[Tensor, "n pos"]
    lengths: Int[Tensor, " n"]
    answers: Int[Tensor, "n n_answers"] | None
    wrong: Int[Tensor, "n n_wrong"] | None
    slots: Mapping[str, Int[Tensor, " n"]]
    fields: Mapping[str, list[Any]]
    texts: tuple[str, ...] | None

    @property
    def positions(self) -> Int[Tensor, " n"]:
        """Read position: the last token of each prompt."""
        return self.lengths - 1


def encode_prompts(prompts: Sequence[Prompt], tokens: Tokens | None) -> EncodedPrompts:
    """Token ids of prompts, their answers as tokens in context, the token of every slot.

    Args:
        prompts: At least one prompt, each of text or of ids.
        tokens: The tokenizer; None is enough for prompts and answers of ids.

    Raises:
        InputError: If there is no prompt.
        TokenizationError: If a prompt has no token, or an answer breaks the rule of `tokens`; the prompt is
            named.
    """
    if not prompts:
        raise InputError("the task is empty; give at least one prompt")
    rows, places = zip(*_tokenized(prompts, tokens), strict=True)
    if () in rows:
        raise TokenizationError(f"prompt {prompts[rows.index(())]} has no token; give it some text")
    named = dict.fromkeys(name for prompt in prompts for name in prompt.fields)
    fields = {name: [prompt.fields.get(name) for prompt in prompts] for name in named}
    texts = None
    if all(prompt.ids is None for prompt in prompts) and tokens is not None:
        texts = tuple(tokens.turn_of(prompt.text)[0] for prompt in prompts)
    return EncodedPrompts(
        ids=_padded(rows, 0 if tokens is None else tokens.pad_id),
        lengths=torch.tensor([len(row) for row in rows]),
        answers=_scored(prompts, [prompt.answers for prompt in prompts], "answer", tokens),
        wrong=_scored(prompts, [prompt.wrong for prompt in prompts], "wrong answer", tokens),
        slots={
            name: torch.tensor([each[name] for each in places])
            for name in places[0]
            if all(name in each for each in places)
        },
        fields={**fields, "n_tokens": [len(row) for row in rows]},
        texts=texts,
    )


def _tokenized(
    prompts: Sequence[Prompt], tokens: Tokens | None
) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """The ids of each prompt and the places of its slots."""
    texts = [prompt for prompt in prompts if prompt.ids is None]
    if texts and tokens is None:
        raise TokenizationError(
            f"prompt {texts[0]} is text, but the tokenizer is missing; pass the model's tokenizer, or token "
            "ids"
        )
    if tokens is not None and tokens.chat and len(texts) < len(prompts):
        prompt = next(prompt for prompt in prompts if prompt.ids is not None)
        raise TokenizationError(
            f"prompt {prompt} has no text that a chat template could wrap; set chat to False"
        )
    encoded = iter(
        tokens.encode([p.text for p in texts], [p.slots for p in texts]) if tokens and texts else ()
    )
    found = []
    for prompt in prompts:
        if prompt.ids is None:
            found.append(next(encoded))
        else:
            prefix = () if tokens is None or prompt.whole else tokens.prefix
            slots = {name: stop - 1 + len(prefix) for name, (_, stop) in prompt.slots.items()}
            found.append((prefix + prompt.ids, slots))
    return found


def _scored(
    prompts: Sequence[Prompt], pieces: Sequence[Sequence[str | int]], what: str, tokens: Tokens | None
) -> Int[Tensor, "n n_ids"] | None:
    """Ids of the continuations of each prompt; None if one has none."""
    if not all(pieces):
        return None
    known: dict[tuple[str, str | int], int] = {}  # what prompts share is looked up once
    rows = []
    for prompt, own in zip(prompts, pieces, strict=True):
        tail = prompt.text if tokens is None else tokens.tail(prompt.text)
        for piece in own:
            if (tail, piece) not in known:
                known[tail, piece] = _id_of(prompt, piece, what, tokens)
        rows.append([known[tail, piece] for piece in own])
    return _padded(rows, NO_TOKEN)


def _id_of(prompt: Prompt, piece: str | int, what: str, tokens: Tokens | None) -> int:
    if isinstance(piece, int):
        return piece
    if tokens is None:
        raise TokenizationError(
            f"{what} {piece!r} is text, but the tokenizer is missing; give it as a token id"
        )
    scored = tokens.scored_by(prompt.text, piece)
    if scored is None:
        context, written = tokens.in_turn(prompt.text, piece)
        count = len(tokens.continuation(context, written) or tokens.ids(written))
        fact = "is unknown to the vocabulary" if count == 1 else f"is {count} tokens"
        raise TokenizationError(
            f"{what} {piece!r} of the prompt {prompt} {fact}; expected exactly one known token, with its "
            "leading space where the text has one"
            + ("; answer_tokens='first' scores it by its first token" if count > 1 else "")
        )
    return scored


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "n width"]:
    """Rows of unequal length as one matrix, filled on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


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

    Pairs are left out where their prompts differ in token count, and, where the first token of an answer
    decides, where right and wrong answers begin with the same. Notes of the task count them, and its `ids`
    are the places of the others.

    Args:
        clean: The prompts.
        corrupted: Their counterparts.
        tokens: The tokenizer; None is enough for ids.
        name: Name of the task.
        grammar: What the prompts were drawn from.
        config: How the task was made.
        notes: What was left out before.

    Raises:
        TokenizationError: If a prompt has no answer, or breaks a rule of `encode_prompts`.
        NoPairsError: If no pair is left.
    """
    left = encode_prompts(clean, tokens)
    right = encode_prompts([replace(each, answers=(), wrong=()) for each in corrupted], tokens)
    equal = left.lengths == right.lengths
    if not bool(equal.any()):
        counts = [side.fields["n_tokens"][0] for side in (left, right)]
        others = f" (all {len(clean)} pairs differ)" if len(clean) > 1 else ""
        raise NoPairsError(
            f"pair 0: clean prompt {clean[0]} has {counts[0]} tokens, corrupted prompt {corrupted[0]} has "
            f"{counts[1]}{others}; patching by position needs equal counts, so use words of one token"
        )
    if left.answers is None:
        without = next(prompt for prompt in clean if not prompt.answers)
        raise TokenizationError(f"prompt {without} has no answer; give at least one")
    kept, reason = equal, "whose prompts differ in token count"
    if (
        bool(equal.all())
        and tokens is not None
        and tokens.answer_tokens == "first"
        and left.wrong is not None
    ):
        same = (left.answers[:, :, None] == left.wrong[:, None]) & (left.answers[:, :, None] >= 0)
        kept, reason = ~same.flatten(1).any(1), "whose right and wrong answers begin with the same token"
        if not bool(kept.any()):
            raise NoPairsError(
                f"answers {clean[0].answers} and wrong answers {clean[0].wrong} of the prompt {clean[0]} "
                f"begin with the same token, as in all {len(clean)} pairs; use answers that differ in it"
            )
    if not bool(kept.all()):
        rows = kept.nonzero().flatten().tolist()
        task = pair_task(
            [clean[row] for row in rows],
            [corrupted[row] for row in rows],
            tokens,
            name=name,
            grammar=grammar,
            config=config,
            notes=(*notes, f"{len(clean) - len(rows)} of {len(clean)} pairs, {reason}, are left out"),
        )
        return replace(task, ids=torch.tensor(rows)[task.ids])
    return PairTask(
        clean=left.ids,
        corrupted=right.ids,
        answers=left.answers,
        wrong=left.wrong,
        lengths=left.lengths,
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
