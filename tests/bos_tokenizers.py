"""Tokenizers that put tokens of their own around every text, as those of Llama, Gemma and T5 do."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

import assay.models


SHAPES = {"bos": "<s> $A", "bos-eos": "<s> $A </s>", "eos": "$A </s>", "two": "<s> <unk> $A", "none": "$A"}


def adding(shape: str, **named: Any) -> Any:
    """A tokenizer with the words of the embedded model's own that adds what a template of `SHAPES` says."""
    fast = Tokenizer.from_file(str(Path(assay.models.__file__).parent / "mini" / "tokenizer.json"))
    fast.add_special_tokens(["<s>", "</s>"])
    ids = [(token, fast.token_to_id(token)) for token in ("<s>", "</s>", "<unk>")]
    fast.post_processor = processors.TemplateProcessing(single=SHAPES[shape], special_tokens=ids)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **named}
    return PreTrainedTokenizerFast(tokenizer_object=fast, **names)


class Letters(PreTrainedTokenizer):
    """A tokenizer in Python, of single letters and without offsets: a BOS before them, an EOS behind."""

    def __init__(self) -> None:
        self.letters = [" ", *"abcdefghijklmnopqrstuvwxyz"]
        super().__init__(bos_token="<s>", eos_token="</s>", unk_token="<unk>")

    @property
    def vocab_size(self) -> int:
        return len(self.letters)

    def get_vocab(self) -> dict[str, int]:
        return {letter: place for place, letter in enumerate(self.letters)} | self.added_tokens_encoder

    def _tokenize(self, text: str, **named: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self.letters.index(token)

    def _convert_id_to_token(self, index: int) -> str:
        return self.letters[index]

    def build_inputs_with_special_tokens(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None
    ) -> list[int]:
        return [self.bos_token_id, *token_ids_0, self.eos_token_id]
