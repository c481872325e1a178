"""What a tokenizer does to a prompt: its ids, the token of a slot, one-token continuations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.errors import TokenizationError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokens:
    """A tokenizer as the tasks need it: no special tokens of its own, answers judged in context.

    Args:
        tokenizer: A Hugging Face tokenizer.
        bos: Put the tokenizer's beginning-of-sequence id before every prompt.

    Raises:
        TokenizationError: If `bos` is asked of a tokenizer that has no such id.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", *, bos: bool = False) -> None:
        self.tokenizer: Any = tokenizer
        self.prefix: tuple[int, ...] = ()
        if bos:
            if self.tokenizer.bos_token_id is None:
                raise TokenizationError(
                    "bos=True needs a tokenizer with a beginning-of-sequence token, but this one has none; "
                    "set bos to False"
                )
            self.prefix = (int(self.tokenizer.bos_token_id),)
        self._continuations: dict[tuple[str, str], tuple[int, ...] | None] = {}

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

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of `text` alone: no special tokens, no beginning-of-sequence id."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(
        self, texts: Sequence[str], slots: Sequence[Mapping[str, tuple[int, int]]]
    ) -> list[tuple[tuple[int, ...], dict[str, int]]]:
        """Ids of each prompt and, for each slot, the index of the last token of its filler.

        Args:
            texts: Prompts.
            slots: For each prompt, slot name to character span.

        Raises:
            TokenizationError: If a piece of a prompt is unknown to the vocabulary.
        """
        with_offsets = bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(list(texts), add_special_tokens=False, return_offsets_mapping=with_offsets)
        unknown = self.tokenizer.unk_token_id
        results = []
        for row, (text, spans) in enumerate(zip(texts, slots, strict=True)):
            ids = tuple(encoded["input_ids"][row])
            offsets = encoded["offset_mapping"][row] if with_offsets else None
            if unknown in ids and unknown != self.tokenizer.eos_token_id:
                raise TokenizationError(
                    f"prompt {text!r} has a word outside the vocabulary (token {ids.index(unknown)}); "
                    "replace it"
                )
            where = {name: self._last_token(text, end, offsets) for name, (_, end) in spans.items()}
            shift = len(self.prefix)
            results.append((self.prefix + ids, {name: at + shift for name, at in where.items()}))
        return results

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
        added = self.continuation(context, piece)
        if added is None:
            added = self.ids(piece)
            if self.tokenizer.decode(added) != piece:
                return None
        if len(added) != 1 or added[0] == self.tokenizer.unk_token_id:
            return None
        return added[0]

    @staticmethod
    def tail(text: str) -> str:
        """The last word with the white space around it: enough context to judge what may follow."""
        match = re.search(r"\s?\S+\s*$", text)
        return match.group() if match else text

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
