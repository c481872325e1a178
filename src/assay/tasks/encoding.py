"""From prompts to token ids: what a tokenizer does to a prompt, its slots, and answers in context."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NO_TOKEN = -1  # fills `answers` and `wrong` where a row has fewer than the longest
_CONTENT = "assay"  # stands for a prompt where only what surrounds it counts


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of a grammar or of a file.

    Attributes:
        text: The prompt as the model reads it; "" when `ids` holds it.
        ids: Token ids of a prompt that has no text, else None.
        whole: Whether nothing is put before `ids`, since they are all that the model is to read.
        answers: Right continuations, as text or ids; each must be one token.
        wrong: Continuations to compare with.
        slots: Slot name to character span in `text`, or to a range `(start, stop)` of `ids`.
        fields: What the prompt is filled with; the names are the task's metadata fields.
        values: All choices behind the prompt, also those that only its corruption uses.
    """

    text: str = ""
    ids: tuple[int, ...] | None = None
    whole: bool = False
    answers: tuple[str | int, ...] = ()
    wrong: tuple[str | int, ...] = ()
    slots: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return repr(self.text) if self.ids is None else f"ids {list(self.ids)}"


class Tokens:
    """A tokenizer as the tasks need it: what it puts before a prompt, nothing behind, answers in context.

    Args:
        tokenizer: A Hugging Face tokenizer.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token. Default: begin it as
            `tokenizer(text)` does; in a chat, as the template does.
        chat: Make every prompt the user's turn of the tokenizer's chat template; the answer begins the next
            turn, so it loses its leading space.
        answer_tokens: `one`: an answer is one token. `first`: it is scored by its first token.

    Raises:
        TokenizationError: If the tokenizer has no such id or no such template, or both are asked for.
        UnknownNameError: For another rule of answers.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        bos: bool | None = None,
        chat: bool = False,
        answer_tokens: str = "one",
    ) -> None:
        check_name("answer_tokens", answer_tokens, ("one", "first"))
        self.tokenizer: Any = tokenizer
        self.chat, self.answer_tokens = chat, answer_tokens
        self._continuations: dict[tuple[str, str], tuple[int, ...] | None] = {}
        if chat and getattr(tokenizer, "chat_template", None) is None:
            raise TokenizationError(
                "chat=True needs a tokenizer with a chat template, but this one has none; set chat to False, "
                "or assign one to tokenizer.chat_template"
            )
        if chat and bos:
            raise TokenizationError(
                "chat=True and bos=True exclude each other: a chat template writes the beginning of a "
                "sequence itself; set bos to False"
            )
        self.prefix = () if chat or bos is False else self._beginning()
        if bos and not self.prefix:
            if tokenizer.bos_token_id is None:
                raise TokenizationError(
                    "bos=True needs a tokenizer with a beginning-of-sequence token, but this one has none; "
                    "leave bos out"
                )
            self.prefix = (int(self.tokenizer.bos_token_id),)

    @property
    def rules(self) -> dict[str, Any]:
        """How prompts and answers become ids: arguments that make this object again from its tokenizer."""
        chat = {"chat": True} if self.chat else {}
        first = {} if self.answer_tokens == "one" else {"answer_tokens": self.answer_tokens}
        return {"bos": bool(self.prefix), **chat, **first}

    @property
    def pad_id(self) -> int:
        """The id put right of a short prompt: the tokenizer's padding token, else its end token, else 0."""
        usual = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(each for each in usual if each is not None))

    @property
    def ordinary_ids(self) -> list[int]:
        """Every id of the vocabulary that is not a special token, ascending."""
        return sorted(set(self.tokenizer.get_vocab().values()) - set(self.tokenizer.all_special_ids))

    def _beginning(self) -> tuple[int, ...]:
        """The ids that the tokenizer itself puts before a text; those behind it are left out."""
        if not self.tokenizer("", add_special_tokens=True)["input_ids"]:
            return ()
        words = map(self.tokenizer.decode, ([each] for each in self.ordinary_ids))
        word = next(word for word in words if self.ids(word))
        whole, alone = tuple(self.tokenizer(word)["input_ids"]), self.ids(word)
        for start in range(len(whole)):
            if whole[start : start + len(alone)] == alone:
                return whole[:start]
        raise TokenizationError(
            f"the tokenizer joins what it puts before a text with its first word {word!r}; pass bos=False"
        )

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of `text` alone: no special tokens, no beginning-of-sequence id."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    # ---- prompts

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[tuple[int, ...], dict[str, int]]]:
        """Ids of each prompt of text, and for each slot the place of the last token of its filler.

        Raises:
            TokenizationError: If a piece of a prompt is unknown to the vocabulary.
        """
        turns, fast = [self.turn_of(prompt.text) for prompt in prompts], bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(
            [text for text, _ in turns], add_special_tokens=False, return_offsets_mapping=fast
        )
        offsets = encoded["offset_mapping"] if fast else [None] * len(prompts)
        rows, twice, unknown, n_before = [], [], self.tokenizer.unk_token_id, len(self.prefix)
        for prompt, (text, shift), ids, around in zip(
            prompts, turns, encoded["input_ids"], offsets, strict=True
        ):
            if unknown in ids and unknown != self.tokenizer.eos_token_id:
                raise TokenizationError(
                    f"prompt {text!r} has a word outside the vocabulary (token {ids.index(unknown)}); "
                    "replace it"
                )
            if n_before and tuple(ids[:n_before]) == self.prefix:
                twice.append(text)
            places = {
                name: n_before + self._token_at(text, end + shift, around)
                for name, (_, end) in prompt.slots.items()
            }
            rows.append((self.prefix + tuple(ids), places))
        if twice:
            warnings.warn(
                f"{len(twice)} of {len(turns)} prompts begin with BOS twice, as {twice[0]!r} has it already; "
                "remove it there, or set bos to False",
                AssayWarning,
                stacklevel=2,
            )
        return rows

    def _token_at(self, text: str, end: int, offsets: Sequence[tuple[int, int]] | None) -> int:
        """The place of the token with the last character of a span."""
        if offsets is None:
            return len(self.ids(text[:end])) - 1
        for index, (start, stop) in enumerate(offsets):
            if start < end <= stop:
                return index
        raise TokenizationError(
            f"the tokenizer drops {text[end - 1 : end]!r} at character {end - 1} of {text!r}; build the task "
            "from token ids instead: PairTask(clean=..., corrupted=..., answers=...)"
        )

    def turn_of(self, text: str) -> tuple[str, int]:
        """The text as the model reads it, and by how many characters its words move.

        Raises:
            TokenizationError: If the chat template changes more of it than white space at its ends.
        """
        if not self.chat:
            return text, 0
        before, after = self._around
        whole = self._templated(text)
        for content in (text, text.strip()):
            if content and whole == before + content + after:
                return whole, len(before) - text.index(content)
        raise TokenizationError(
            f"the chat template changes the text of the prompt {text!r}; write the prompts as the template "
            "has them, and set chat to False"
        )

    @cached_property
    def _around(self) -> tuple[str, str]:
        """What the chat template puts before and after a prompt."""
        before, _, after = self._templated(_CONTENT).rpartition(_CONTENT)
        return before, after

    def _templated(self, text: str) -> str:
        turn = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    # ---- answers

    def scored_by(self, text: str, piece: str) -> int | None:
        """The id by which an answer after the prompt `text` is scored; None if it breaks the rule."""
        context, piece = self._in_turn(text, piece)
        if self.answer_tokens == "one":
            return self.one_token(context, piece)
        ids = self._added(context, piece)
        return ids[0] if ids and ids[0] != self.tokenizer.unk_token_id else None

    def answer_id(self, prompt: Prompt, piece: str, what: str) -> int:
        """`scored_by`, or an error that names the prompt.

        Raises:
            TokenizationError: If the answer breaks the rule.
        """
        scored = self.scored_by(prompt.text, piece)
        if scored is not None:
            return scored
        context, own = self._in_turn(prompt.text, piece)
        count = len(self.continuation(context, own) or self.ids(own))
        fact = "is unknown to the vocabulary" if count == 1 else f"is {count} tokens"
        remedy = "; answer_tokens='first' scores it by its first token" if count > 1 else ""
        raise TokenizationError(
            f"{what} {piece!r} of the prompt {prompt} {fact}; expected exactly one known token, with its "
            f"leading space where the text has one{remedy}"
        )

    def _in_turn(self, text: str, piece: str) -> tuple[str, str]:
        """What an answer stands behind and how it is written: in a chat it begins a turn, without a space."""
        return (self._around[1], piece.lstrip(" ")) if self.chat else (text, piece)

    def continuation(self, context: str, piece: str) -> tuple[int, ...] | None:
        """The ids that `piece` adds after `context`; None if it changes the ids before it."""
        tail = self.tail(context)
        if (tail, piece) not in self._continuations:
            self.learn(tail, [piece])
        return self._continuations[tail, piece]

    def learn(self, context: str, pieces: Iterable[str]) -> None:
        """Look up many continuations of one context in one call, which is much faster than one by one."""
        tail = self.tail(context)
        new = [piece for piece in dict.fromkeys(pieces) if (tail, piece) not in self._continuations]
        if new:
            texts = [tail, *(tail + piece for piece in new)]
            before, *both = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            for piece, ids in zip(new, both, strict=True):
                added = tuple(ids[len(before) :]) if ids[: len(before)] == before else None
                self._continuations[tail, piece] = added

    def one_token(self, context: str, piece: str) -> int | None:
        """The id of `piece` after `context` if it is exactly one known token, else None.

        Where the tokenizer would merge piece and context (" 12" and "80" are one token of GPT-2), the piece
        is still a possible next token: then its own id counts, if that decodes to it.
        """
        added = self._added(context, piece)
        return added[0] if added and len(added) == 1 and added[0] != self.tokenizer.unk_token_id else None

    def _added(self, context: str, piece: str) -> tuple[int, ...] | None:
        """The ids of `piece` after `context`, or its own where they would merge."""
        added = self.continuation(context, piece)
        if added is None and self.tokenizer.decode(self.ids(piece)) == piece:
            return self.ids(piece)
        return added

    @staticmethod
    def tail(text: str) -> str:
        """The last word with the white space around it: enough context to judge what may follow."""
        match = re.search(r"\s?\S+\s*$", text)
        return match.group() if match else text


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
    rows, places = zip(*_rows(prompts, tokens), strict=True)
    if () in rows:
        raise TokenizationError(f"prompt {prompts[rows.index(())]} has no token; give it some text")
    named = dict.fromkeys(name for prompt in prompts for name in prompt.fields)
    fields = {name: [prompt.fields.get(name) for prompt in prompts] for name in named}
    shared = [name for name in places[0] if all(name in each for each in places)]
    textual = tokens is not None and all(prompt.ids is None for prompt in prompts)
    return EncodedPrompts(
        ids=_padded(rows, 0 if tokens is None else tokens.pad_id),
        lengths=torch.tensor([len(row) for row in rows]),
        answers=_scored(prompts, [prompt.answers for prompt in prompts], "answer", tokens),
        wrong=_scored(prompts, [prompt.wrong for prompt in prompts], "wrong answer", tokens),
        slots={name: torch.tensor([each[name] for each in places]) for name in shared},
        fields={**fields, "n_tokens": [len(row) for row in rows]},
        texts=tuple(tokens.turn_of(prompt.text)[0] for prompt in prompts) if tokens and textual else None,
    )


def _rows(prompts: Sequence[Prompt], tokens: Tokens | None) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """The ids of each prompt and the places of its slots."""
    texts = [prompt for prompt in prompts if prompt.ids is None]
    if texts and tokens is None:
        raise TokenizationError(
            f"prompt {texts[0]} is text, but the tokenizer is missing; pass the model's tokenizer, or token "
            "ids"
        )
    encoded = iter(tokens.encode(texts) if tokens and texts else ())
    rows = []
    for prompt in prompts:
        if prompt.ids is None:
            rows.append(next(encoded))
            continue
        if tokens is not None and tokens.chat:
            raise TokenizationError(
                f"prompt {prompt} has no text that a chat template could wrap; set chat to False"
            )
        prefix = () if tokens is None or prompt.whole else tokens.prefix
        places = {name: stop - 1 + len(prefix) for name, (_, stop) in prompt.slots.items()}
        rows.append((prefix + prompt.ids, places))
    return rows


def _scored(
    prompts: Sequence[Prompt], pieces: Sequence[Sequence[str | int]], what: str, tokens: Tokens | None
) -> Int[Tensor, "n n_ids"] | None:
    """Ids of the continuations of each prompt; None if one has none."""
    if not all(pieces):
        return None
    seen: dict[tuple[str, str], int] = {}  # what prompts share is looked up once

    def id_of(prompt: Prompt, piece: str | int) -> int:
        if isinstance(piece, int):
            return piece
        if tokens is None:
            raise TokenizationError(
                f"{what} {piece!r} is text, but the tokenizer is missing; give it as a token id"
            )
        if (key := (tokens.tail(prompt.text), piece)) not in seen:
            seen[key] = tokens.answer_id(prompt, piece, what)
        return seen[key]

    rows = [[id_of(prompt, piece) for piece in own] for prompt, own in zip(prompts, pieces, strict=True)]
    return _padded(rows, NO_TOKEN)


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "n width"]:
    """Rows of unequal length as one matrix, filled on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
