"""Where each prompt is read and what is right and wrong there, as token ids.

A prompt is read at its last token, or at positions of its own (`Prompt.reads`). An answer of several tokens
that is scored by each of them is read where each is predicted: its tokens but the last stand behind the
prompt (teacher forcing), and the token at place j is compared with those at place j of the wrong answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import InputError, TokenizationError
from assay.tasks.checks import NO_POSITION, NO_TOKEN
from assay.tasks.grammar import Prompt
from assay.tasks.tokens import Tokens


Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PromptReads:
    """Where one prompt is read.

    Attributes:
        positions: Numbers of tokens.
        answers: Right next tokens at each.
        wrong: Wrong next tokens at each; None if the prompt has none.
        forced: Tokens of the answer that stand behind the prompt.
    """

    positions: tuple[int, ...]
    answers: tuple[Ids, ...]
    wrong: tuple[Ids, ...] | None
    forced: Ids = ()


class Reader:
    """Finds the reads of prompts under one tokenizer; what prompts share is looked up once.

    Args:
        tokens: The tokenizer; None is enough for prompts and answers of ids.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self.tokens = tokens
        self._known: dict[tuple[str, str, tuple[str | int, ...]], tuple[Ids, ...]] = {}

    def of(self, prompt: Prompt, row: Sequence[int], start: int) -> PromptReads:
        """The reads of a prompt whose tokens are `row`, its own ones from place `start` on.

        Raises:
            TokenizationError: If an answer breaks a rule of tokens, or wrong answers cannot be compared with
                the right one token by token; the prompt is named.
            InputError: If it is read outside its tokens.
        """
        if prompt.reads:
            return self._at_own_places(prompt, row, start)
        right = self._scored(prompt, prompt.text, prompt.answers, "answer")
        wrong = self._scored(prompt, prompt.text, prompt.wrong, "wrong answer")
        last = len(row) - 1
        if all(len(ids) == 1 for ids in (*right, *wrong)):
            ids = [tuple(first for (first,) in each) for each in (right, wrong)]
            return PromptReads(positions=(last,), answers=(ids[0],), wrong=(ids[1],) if wrong else None)
        answer = self._only(prompt, right)
        for other, piece in zip(wrong, prompt.wrong, strict=True):
            if len(other) != len(answer) or other == answer:
                raise TokenizationError(
                    f"wrong answer {piece!r} of the prompt {prompt} is {_counted(other)}, the answer "
                    f"{prompt.answers[0]!r} {_counted(answer)}; to be compared token by token, they must "
                    "differ and have the same number of tokens"
                )
        # Where a wrong answer has the right token, there is nothing to compare.
        compared = tuple(
            tuple(dict.fromkeys(other[place] for other in wrong if other[place] != token))
            for place, token in enumerate(answer)
        )
        return PromptReads(
            positions=tuple(last + place for place in range(len(answer))),
            answers=tuple((token,) for token in answer),
            wrong=compared if wrong else None,
            forced=answer[:-1],
        )

    def _only(self, prompt: Prompt, right: tuple[Ids, ...]) -> Ids:
        if len(right) > 1:
            raise TokenizationError(
                f"prompt {prompt} has {len(right)} right answers, of which some have several tokens, but "
                "only one can stand behind the prompt; give one, or answer_tokens='first'"
            )
        return right[0]

    def _at_own_places(self, prompt: Prompt, row: Sequence[int], start: int) -> PromptReads:
        tokens, length = self.tokens, len(row) - start
        if tokens is not None and tokens.chat:
            raise InputError(
                f"prompt {prompt} is read at positions counted in its own tokens, which a chat template "
                "moves; set chat to False"
            )
        positions, answers, wrong = [], [], []
        for read in prompt.reads:
            if not -length <= read.position < length:
                raise InputError(
                    f"prompt {prompt} is read at position {read.position}, but has {length} tokens; count "
                    "from 0, or from -1 at the end"
                )
            place = read.position % length
            at = start + place
            if at in positions:
                raise InputError(f"prompt {prompt} is read at position {place} twice; give each one once")
            text = prompt.text
            if prompt.ids is None and place < length - 1:
                assert tokens is not None
                text = tokens.tokenizer.decode(list(row[start : at + 1]))
            right = self._scored(prompt, text, read.answers, "answer")
            other = self._scored(prompt, text, read.wrong, "wrong answer")
            if any(len(ids) != 1 for ids in (*right, *other)):
                raise TokenizationError(
                    f"prompt {prompt} has an answer of several tokens at position {at}; give one token at "
                    "each position, or leave positions out, so that answer_tokens='each' reads behind the "
                    "prompt"
                )
            positions.append(at)
            answers.append(tuple(first for (first,) in right))
            wrong.append(tuple(first for (first,) in other))
        return PromptReads(
            positions=tuple(positions),
            answers=tuple(answers),
            wrong=tuple(wrong) if any(wrong) else None,
        )

    def _scored(
        self, prompt: Prompt, context: str, pieces: tuple[str | int, ...], what: str
    ) -> tuple[Ids, ...]:
        """Ids of some continuations of a text."""
        key = (context if self.tokens is None else self.tokens.tail(context), what, pieces)
        if key not in self._known:
            self._known[key] = tuple(_ids_of(prompt, context, piece, what, self.tokens) for piece in pieces)
        return self._known[key]


def _counted(ids: Ids) -> str:
    return f"{len(ids)} token{'' if len(ids) == 1 else 's'}"


def _ids_of(prompt: Prompt, context: str, piece: str | int, what: str, tokens: Tokens | None) -> Ids:
    if isinstance(piece, int):
        return (piece,)
    if tokens is None:
        raise TokenizationError(
            f"{what} {piece!r} is text, but the tokenizer is missing; give it as a token id"
        )
    scored = tokens.scored_by(context, piece)
    if scored is None:
        count = len(tokens.continuation(context, piece) or tokens.ids(piece))
        fact = "is unknown to the vocabulary" if count == 1 else f"is {count} tokens"
        several = count > 1 and tokens.answer_tokens == "one"
        raise TokenizationError(
            f"{what} {piece!r} of the prompt {prompt} {fact}; expected exactly one known token, with its "
            "leading space where the text has one"
            + ("; answer_tokens='first' scores it by its first token, 'each' by all" if several else "")
        )
    return scored


@dataclass(frozen=True, kw_only=True)
class ReadTables:
    """The reads of several prompts: `[n]` and `[n, ids]`; `[n, reads]` and `[n, reads, ids]` if one has more.

    Attributes:
        positions: Read positions, -1 where a row has fewer.
        answers: Right next tokens, -1 where there are fewer; None if a prompt has none.
        wrong: Wrong next tokens, likewise.
    """

    positions: Int[Tensor, "n *reads"]
    answers: Int[Tensor, "n *reads n_answers"] | None
    wrong: Int[Tensor, "n *reads n_wrong"] | None


def tables_of(reads: Sequence[PromptReads]) -> ReadTables:
    """The reads of several prompts as tensors."""
    answered = all(ids for each in reads for ids in each.answers)
    compared = all(each.wrong is not None for each in reads)
    if all(len(each.positions) == 1 for each in reads):
        return ReadTables(
            positions=torch.tensor([each.positions[0] for each in reads]),
            answers=_padded([each.answers[0] for each in reads]) if answered else None,
            wrong=_padded([each.wrong[0] for each in reads if each.wrong is not None]) if compared else None,
        )
    width = max(len(each.positions) for each in reads)
    places = [(*each.positions, *[NO_POSITION] * (width - len(each.positions))) for each in reads]
    return ReadTables(
        positions=torch.tensor(places),
        answers=_by_place([each.answers for each in reads], width) if answered else None,
        wrong=_by_place([each.wrong or () for each in reads], width) if compared else None,
    )


def _padded(rows: Sequence[Ids]) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[NO_TOKEN] * (width - len(row))] for row in rows])


def _by_place(rows: Sequence[Sequence[Ids]], width: int) -> Tensor:
    flat = [ids for row in rows for ids in (*row, *[()] * (width - len(row)))]
    table: Tensor = _padded(flat).unflatten(0, (len(rows), width))
    return table
