"""What a tokenizer does to a prompt: its ids, the token of a slot, one-token continuations."""

import copy
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from assay.core.errors import AssayWarning, TokenizationError, check_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ANSWER_TOKENS = ("one", "first", "each")
Part = tuple[int, int]  # first token of a part of a prompt, and the one behind its last

_CONTENT = "assay"  # stands for a prompt where only what surrounds it counts


def comparable(answer: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether the ids that two answers are scored by differ and are as many."""
    return len(answer) == len(other) and answer != other


class TokenizedPrompt(NamedTuple):
    """A prompt as ids, with ranges of them."""

    ids: tuple[int, ...]
    slots: dict[str, Part]
    start: int  # first token of the prompt's own text


class Tokens:
    """A tokenizer as the tasks need it: what it puts before a prompt, nothing behind, answers in context.

    Args:
        tokenizer: A Hugging Face tokenizer.
        bos: Begin every prompt with the tokenizer's beginning-of-sequence token. Default: begin it as
            `tokenizer(text)` does; in a chat, as the template does.
        chat: Make every prompt the user's turn of the tokenizer's chat template; the answer begins the next
            turn, so it loses its leading space.
        answer_tokens: `one`: an answer is one token. `first`: it is scored by its first token. `each`: by
            every one, behind those before it.

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
        self.tokenizer: Any = tokenizer
        self.prefix: tuple[int, ...] = ()
        self.chat = chat
        self.answer_tokens = answer_tokens
        check_name("answer_tokens", answer_tokens, ANSWER_TOKENS)
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
        if bos is not False and not chat:
            self.prefix = self._beginning()
        if bos and not self.prefix:
            if self.tokenizer.bos_token_id is None:
                raise TokenizationError(
                    "bos=True needs a tokenizer with a beginning-of-sequence token, but this one has none; "
                    "leave bos out"
                )
            self.prefix = (int(self.tokenizer.bos_token_id),)
        self._continuations: dict[tuple[str, str], tuple[int, ...] | None] = {}

    @property
    def rules(self) -> dict[str, Any]:
        """How prompts and answers become ids: arguments that make this object again from its tokenizer."""
        rules: dict[str, Any] = {"bos": bool(self.prefix)}
        if self.chat:
            rules["chat"] = True
        if self.answer_tokens != "one":
            rules["answer_tokens"] = self.answer_tokens
        return rules

    def by_first_token(self) -> "Tokens":
        """The same tokenizer and rules, but an answer is scored by its first token."""
        other = copy.copy(self)
        other.answer_tokens = "first"
        return other

    @property
    def pad_id(self) -> int:
        """The id put right of a short prompt: the tokenizer's padding token, else its end token, else 0."""
        for candidate in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if candidate is not None:
                return int(candidate)
        return 0

    @property
    def ordinary_ids(self) -> list[int]:
        """Every id of the vocabulary that is not a special token, ascending."""
        special = set(self.tokenizer.all_special_ids)
        return sorted(i for i in self.tokenizer.get_vocab().values() if i not in special)

    def _beginning(self) -> tuple[int, ...]:
        """The ids that the tokenizer itself puts before a text; those behind it are left out."""
        if not self.tokenizer("", add_special_tokens=True)["input_ids"]:
            return ()
        special = set(self.tokenizer.all_special_ids)
        words = (self.tokenizer.decode([i]) for i in range(len(self.tokenizer)) if i not in special)
        word = next(word for word in words if self.ids(word))
        whole, alone = tuple(self.tokenizer(word)["input_ids"]), self.ids(word)
        starts = [i for i in range(len(whole)) if whole[i : i + len(alone)] == alone]
        if not starts:
            raise TokenizationError(
                f"the tokenizer joins what it puts before a text with its first word {word!r}; pass bos=False"
            )
        return whole[: starts[0]]

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of `text` alone: no special tokens, no beginning-of-sequence id."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(
        self, texts: Sequence[str], slots: Sequence[Mapping[str, tuple[int, int]]]
    ) -> list[TokenizedPrompt]:
        """Ids of each prompt and, for each slot, the range of tokens of its filler.

        Args:
            texts: Prompts.
            slots: For each prompt, slot name to character span.

        Raises:
            TokenizationError: If a piece of a prompt is unknown to the vocabulary.
        """
        turns = [self.turn_of(text) for text in texts]
        before = len(self._around[0]) if self.chat else 0
        texts = [text for text, _ in turns]
        slots = [
            {name: (start + shift, end + shift) for name, (start, end) in spans.items()}
            for spans, (_, shift) in zip(slots, turns, strict=True)
        ]
        with_offsets = bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=with_offsets)
        unknown = self.tokenizer.unk_token_id
        results, twice = [], []
        for row, (text, spans) in enumerate(zip(texts, slots, strict=True)):
            ids = tuple(encoded["input_ids"][row])
            offsets = encoded["offset_mapping"][row] if with_offsets else None
            if unknown in ids and unknown != self.tokenizer.eos_token_id:
                raise TokenizationError(
                    f"prompt {text!r} has a word outside the vocabulary (token {ids.index(unknown)}); "
                    "replace it"
                )
            shift = len(self.prefix)
            if shift and ids[:shift] == self.prefix:
                twice.append(text)
            where = {
                name: (
                    self._first_token(text, start, offsets) + shift,
                    self._last_token(text, end, offsets) + shift + 1,
                )
                for name, (start, end) in spans.items()
            }
            own = self._first_token(text, before, offsets) if before else 0
            results.append(TokenizedPrompt(self.prefix + ids, where, own + shift))
        if twice:
            fact = (
                f"{len(twice)} of {len(texts)} prompts begin with BOS twice, as {twice[0]!r} has it already"
            )
            warnings.warn(f"{fact}; remove it there, or set bos to False", AssayWarning, stacklevel=2)
        return results

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

    def scored_by(self, text: str, piece: str) -> tuple[int, ...] | None:
        """The ids by which an answer after the prompt `text` is scored; None if it breaks the rule.

        One id; under `each`, all of them.
        """
        if self.chat:
            text, piece = self._around[1], piece.lstrip(" ")
        if self.answer_tokens == "one":
            token = self.one_token(text, piece)
            return None if token is None else (token,)
        ids = self._added(text, piece)
        scored = ids if ids is None or self.answer_tokens == "each" else ids[:1]
        return scored if scored and self.tokenizer.unk_token_id not in scored else None

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
        if not new:
            return
        before, *both = self.tokenizer([tail, *(tail + piece for piece in new)], add_special_tokens=False)[
            "input_ids"
        ]
        for piece, ids in zip(new, both, strict=True):
            added = tuple(ids[len(before) :]) if ids[: len(before)] == before else None
            self._continuations[tail, piece] = added

    def one_token(self, context: str, piece: str) -> int | None:
        """The id of `piece` after `context` if it is exactly one known token, else None.

        Where the tokenizer would merge piece and context (" 12" and "80" are one token of GPT-2), the piece
        is still a possible next token: then its own id counts, if that decodes to it.
        """
        added = self._added(context, piece)
        if added is None or len(added) != 1 or added[0] == self.tokenizer.unk_token_id:
            return None
        return added[0]

    def _added(self, context: str, piece: str) -> tuple[int, ...] | None:
        """The ids of `piece` after `context`, or its own where they would merge."""
        added = self.continuation(context, piece)
        if added is None:
            added = self.ids(piece)
            if self.tokenizer.decode(added) != piece:
                return None
        return added

    @staticmethod
    def tail(text: str) -> str:
        """The last word with the white space around it: enough context to judge what may follow."""
        match = re.search(r"\s?\S+\s*$", text)
        return match.group() if match else text

    def _first_token(self, text: str, start: int, offsets: Sequence[tuple[int, int]] | None) -> int:
        if offsets is None:
            return len(self.ids(text[:start].rstrip()))
        return next((index for index, (_, stop) in enumerate(offsets) if stop > start), len(offsets))

    def _last_token(self, text: str, end: int, offsets: Sequence[tuple[int, int]] | None) -> int:
        if offsets is None:
            return len(self.ids(text[:end])) - 1
        for index, (start, stop) in enumerate(offsets):
            if start < end <= stop:
                return index
        raise TokenizationError(
            f"the tokenizer drops {text[end - 1 : end]!r} at character {end - 1} of {text!r}; build the task "
            "from token ids instead: PairTask(clean=..., corrupted=..., answers=...)"
        )
