"""What a tokenizer does to a prompt: its ids, the token of a slot, one-token continuations."""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayWarning, TokenizationError, check_name


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_CONTENT = "assay"  # stands for a prompt where only what surrounds it counts


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
        self.prefix: tuple[int, ...] = ()
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
        if bos is not False and not chat:
            self.prefix = self._beginning()
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
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return int(next(each for each in known if each is not None))

    @property
    def ordinary_ids(self) -> list[int]:
        """Every id of the vocabulary that is not a special token, ascending."""
        return sorted(set(self.tokenizer.get_vocab().values()) - set(self.tokenizer.all_special_ids))

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

    # ------------------------------------------------------------------------------------------ prompts

    def encode(
        self, texts: Sequence[str], slots: Sequence[Mapping[str, tuple[int, int]]]
    ) -> list[tuple[tuple[int, ...], dict[str, int]]]:
        """Ids of each prompt, and for each slot the place of the last token of its filler.

        Args:
            texts: Prompts.
            slots: For each prompt, slot name to character span.

        Raises:
            TokenizationError: If a piece of a prompt is unknown to the vocabulary.
        """
        turns = [self.turn_of(text) for text in texts]
        encoded = self.tokenizer(
            [text for text, _ in turns],
            add_special_tokens=False,
            return_offsets_mapping=bool(self.tokenizer.is_fast),
        )
        offsets = encoded["offset_mapping"] if self.tokenizer.is_fast else [None] * len(texts)
        rows = zip(turns, encoded["input_ids"], offsets, slots, strict=True)
        prompts, twice, unknown = [], [], self.tokenizer.unk_token_id
        for (text, shift), ids, around, spans in rows:
            if unknown in ids and unknown != self.tokenizer.eos_token_id:
                raise TokenizationError(
                    f"prompt {text!r} has a word outside the vocabulary (token {ids.index(unknown)}); "
                    "replace it"
                )
            before = len(self.prefix)
            if before and tuple(ids[:before]) == self.prefix:
                twice.append(text)
            places = {name: self._token_at(text, end + shift, around) for name, (_, end) in spans.items()}
            prompts.append((self.prefix + tuple(ids), {name: at + before for name, at in places.items()}))
        if twice:
            warnings.warn(
                f"{len(twice)} of {len(texts)} prompts begin with BOS twice, as {twice[0]!r} has it already; "
                "remove it there, or set bos to False",
                AssayWarning,
                stacklevel=2,
            )
        return prompts

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

    # ------------------------------------------------------------------------------------------ answers

    def scored_by(self, text: str, piece: str) -> int | None:
        """The id by which an answer after the prompt `text` is scored; None if it breaks the rule."""
        context, piece = self.in_turn(text, piece)
        if self.answer_tokens == "one":
            return self.one_token(context, piece)
        ids = self._added(context, piece)
        return ids[0] if ids and ids[0] != self.tokenizer.unk_token_id else None

    def in_turn(self, text: str, piece: str) -> tuple[str, str]:
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
        known = added is not None and len(added) == 1 and added[0] != self.tokenizer.unk_token_id
        return added[0] if added and known else None

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
