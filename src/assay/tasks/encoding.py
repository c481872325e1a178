"""From prompts to token ids: what a tokenizer does to a prompt, its slots, and answers in context."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import AssayWarning, InputError, TokenizationError, check_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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


class Tokens:
    """A tokenizer as the tasks need it: what it puts before a prompt, nothing behind, answers in context.

    Args:
        tokenizer: A Hugging Face tokenizer; None is enough for prompts and answers of ids.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token. Default: begin it as
            `tokenizer(text)` does; in a chat, as the template does.
        chat: Make every prompt the user's turn of the tokenizer's chat template; the answer begins the next
            turn, so it loses its leading space.
        answer_tokens: `one`: an answer is one token. `first`: it is scored by its first token.

    Raises:
        TokenizationError: If the tokenizer has no such id or no such template.
        UnknownNameError: For another rule of answers.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase | None",
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
            raise TokenizationError("chat=True needs a chat template; assign one to tokenizer.chat_template")
        begins = tokenizer is not None and (not chat if bos is None else bos)
        self.prefix = self._beginning() if begins else ()
        if bos and not self.prefix:
            if (first := getattr(tokenizer, "bos_token_id", None)) is None:
                raise TokenizationError("the tokenizer has no beginning-of-sequence token; leave bos out")
            self.prefix = (int(first),)

    @property
    def rules(self) -> dict[str, Any]:
        """How prompts and answers become ids: arguments that make this object again from its tokenizer."""
        chat = {"chat": True} if self.chat else {}
        first = {} if self.answer_tokens == "one" else {"answer_tokens": self.answer_tokens}
        return {"bos": bool(self.prefix), **chat, **first}

    @property
    def pad_id(self) -> int:
        """The id put right of a short prompt: the tokenizer's padding token, else its end token, else 0."""
        usual = [getattr(self.tokenizer, name, None) for name in ("pad_token_id", "eos_token_id")]
        return int(next((each for each in usual if each is not None), 0))

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
        raise TokenizationError(f"the tokenizer joins its beginning with the word {word!r}; pass bos=False")

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of `text` alone: no special tokens, no beginning-of-sequence id."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    # ---- prompts

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[tuple[int, ...], dict[str, int]]]:
        """Ids of each prompt, and for each slot the place of the last token of its filler.

        Raises:
            TokenizationError: If a piece of a prompt is unknown to the vocabulary, text has no tokenizer, or
                a chat is asked for but there is no text.
        """
        texts = iter(self._encode_texts([prompt for prompt in prompts if prompt.ids is None]))
        rows = []
        for prompt in prompts:
            if prompt.ids is None:
                ids, places = next(texts)
                prefix = self.prefix
            elif self.chat:
                raise TokenizationError(f"prompt {prompt} has no text for a chat template; set chat to False")
            else:
                ids, places = prompt.ids, {name: stop - 1 for name, (_, stop) in prompt.slots.items()}
                prefix = () if prompt.whole else self.prefix
            rows.append((prefix + ids, {name: at + len(prefix) for name, at in places.items()}))
        return rows

    def _encode_texts(self, prompts: Sequence[Prompt]) -> list[tuple[tuple[int, ...], dict[str, int]]]:
        """Ids of prompts of text without what begins them, and the places of their slots among these."""
        if not prompts:
            return []
        if self.tokenizer is None:
            raise TokenizationError(f"prompt {prompts[0]} is text, but the tokenizer is missing; pass it")
        turns = [self.turn_of(prompt.text) for prompt in prompts]
        encoded = self.tokenizer([text for text, _ in turns], add_special_tokens=False)
        rows, twice, unknown = [], list[str](), self.tokenizer.unk_token_id
        for row, (prompt, (text, shift)) in enumerate(zip(prompts, turns, strict=True)):
            ids = tuple(encoded["input_ids"][row])
            if unknown in ids and unknown != self.tokenizer.eos_token_id:
                place = ids.index(unknown)
                raise TokenizationError(f"prompt {text!r} has a word outside the vocabulary (token {place})")
            ends = {name: end + shift - 1 for name, (_, end) in prompt.slots.items()}
            places = {name: encoded.char_to_token(row, end) for name, end in ends.items()}
            if None in places.values():
                fact = f"the tokenizer drops the end of a slot of {text!r}"
                raise TokenizationError(f"{fact}; build a PairTask from token ids instead")
            if self.prefix and ids[: len(self.prefix)] == self.prefix:
                twice.append(text)
            rows.append((ids, places))
        if twice:
            fact = f"{len(twice)} of {len(turns)} prompts begin with BOS twice, as {twice[0]!r} has one"
            warnings.warn(f"{fact}; remove it there, or set bos to False", AssayWarning, stacklevel=2)
        return rows

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
        fact = f"the chat template changes the text of the prompt {text!r}"
        raise TokenizationError(f"{fact}; write prompts as the template has them, and set chat to False")

    @cached_property
    def _around(self) -> tuple[str, str]:
        """What the chat template puts before and after a prompt."""
        before, _, after = self._templated("assay").rpartition("assay")
        return before, after

    def _templated(self, text: str) -> str:
        turn = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    # ---- answers

    def scored_by(self, text: str, piece: str) -> int | None:
        """The id by which an answer after the prompt `text` is scored; None if it breaks the rule."""
        ids = self._possible(*self._in_turn(text, piece))
        return ids[0] if ids and (len(ids) == 1 or self.answer_tokens == "first") else None

    def answer_id(self, prompt: Prompt, piece: str | int, what: str) -> int:
        """`scored_by`, or an error that names the prompt.

        Raises:
            TokenizationError: If the answer breaks the rule, or is text without a tokenizer.
        """
        if isinstance(piece, int):
            return piece
        if self.tokenizer is None:
            raise TokenizationError(f"{what} {piece!r} is text, but the tokenizer is missing; pass it")
        if (scored := self.scored_by(prompt.text, piece)) is not None:
            return scored
        context, own = self._in_turn(prompt.text, piece)
        count = len(self.continuation(context, own) or self.ids(own))
        fact = "is unknown to the vocabulary" if count == 1 else f"is {count} tokens"
        remedy = "; answer_tokens='first' scores it by its first token" if count > 1 else ""
        expected = "expected exactly one known token, with its leading space where the text has one"
        raise TokenizationError(f"{what} {piece!r} of the prompt {prompt} {fact}; {expected}{remedy}")

    def _in_turn(self, text: str, piece: str) -> tuple[str, str]:
        """What an answer stands behind and how it is written: in a chat it begins a turn, without a space."""
        return (self._around[1], piece.lstrip(" ")) if self.chat else (text, piece)

    def continuation(self, context: str, piece: str) -> tuple[int, ...] | None:
        """The ids that `piece` adds after `context`; None if it changes the ids before it."""
        if (key := (self.tail(context), piece)) not in self._continuations:
            before, both = self.tokenizer([key[0], "".join(key)], add_special_tokens=False)["input_ids"]
            added = tuple(both[len(before) :]) if both[: len(before)] == before else None
            self._continuations[key] = added
        return self._continuations[key]

    def one_token(self, context: str, piece: str) -> int | None:
        """The id of `piece` after `context` if it is exactly one known token, else None."""
        ids = self._possible(context, piece)
        return ids[0] if len(ids) == 1 else None

    def _possible(self, context: str, piece: str) -> tuple[int, ...]:
        """The ids of `piece` after `context`; none if the first is unknown or the two cannot be parted.

        Where the tokenizer would merge piece and context (" 12" and "80" are one token of GPT-2), the piece
        is still a possible next token: then its own ids count, if they decode to it.
        """
        ids = self.continuation(context, piece)
        if ids is None:
            own = self.ids(piece)
            ids = own if self.tokenizer.decode(own) == piece else ()
        return () if ids[:1] == (self.tokenizer.unk_token_id,) else ids

    @staticmethod
    def tail(text: str) -> str:
        """The last word with the white space around it: enough context to judge what may follow."""
        match = re.search(r"\s?\S+\s*$", text)
        return match.group() if match else text


def encode_prompts(prompts: Sequence[Prompt], tokens: Tokens) -> EncodedPrompts:
    """Token ids of prompts, their answers as tokens in context, the token of every slot.

    Args:
        prompts: At least one prompt, each of text or of ids.
        tokens: The tokenizer.

    Raises:
        InputError: If there is no prompt.
        TokenizationError: If a prompt has no token, or an answer breaks the rule of `tokens`; the prompt is
            named.
    """
    if not prompts:
        raise InputError("the task is empty; give at least one prompt")
    rows, places = zip(*tokens.encode(prompts), strict=True)
    if () in rows:
        raise TokenizationError(f"prompt {prompts[rows.index(())]} has no token; give it some text")
    scored: dict[str, Tensor | None] = {"answers": None, "wrong": None}
    for name, what in (("answers", "answer"), ("wrong", "wrong answer")):
        if all(getattr(prompt, name) for prompt in prompts):
            ids = [[tokens.answer_id(each, piece, what) for piece in getattr(each, name)] for each in prompts]
            scored[name] = _padded(ids, -1)
    named = dict.fromkeys(name for prompt in prompts for name in prompt.fields)
    fields = {name: [prompt.fields.get(name) for prompt in prompts] for name in named}
    shared = [name for name in places[0] if all(name in each for each in places)]
    textual = all(prompt.ids is None for prompt in prompts)
    return EncodedPrompts(
        ids=_padded(rows, tokens.pad_id),
        lengths=torch.tensor([len(row) for row in rows]),
        **scored,
        slots={name: torch.tensor([each[name] for each in places]) for name in shared},
        fields={**fields, "n_tokens": [len(row) for row in rows]},
        texts=tuple(tokens.turn_of(prompt.text)[0] for prompt in prompts) if textual else None,
    )


def _padded(rows: Sequence[Sequence[int]], fill: int) -> Int[Tensor, "n width"]:
    """Rows of unequal length as one matrix, filled on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
