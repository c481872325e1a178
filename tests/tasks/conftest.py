"""Tokenizers of the task tests: the embedded model's and, where the reference data are there, GPT-2's."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import assay.models


@pytest.fixture(scope="session")
def mini_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(assay.models.__file__).parent / "mini")


@pytest.fixture(scope="session")
def gpt2_tokenizer(shared: Callable[[str], Path]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(shared("data/gpt2_tokenizer"))


@pytest.fixture(scope="session")
def splitting() -> Callable[[int], Any]:
    """A tokenizer that cuts numbers after so many digits: one as Gemma and SmolLM2, three as Llama 3.

    It knows the words of the number tasks; a space before a number is a token.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    text = "The war plan study lasted from the year to"
    words = [*text.split(), *(" " + word for word in text.split()), " "]

    @functools.cache
    def make(width: int) -> Any:
        numbers = [f"{n:0{digits}d}" for digits in range(1, width + 1) for n in range(10**digits)]
        vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["[UNK]", *words, *numbers]))}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        pattern = Regex(rf"\d{{1,{width}}}|\?| ?[^\s\d?]+|\s")
        backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
        backend.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")

    return make


@pytest.fixture(scope="session")
def tokenizer_of(mini_tokenizer: Any, request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """A tokenizer that knows the words of a task: the embedded model's own for its six, else GPT-2's."""

    def find(key: str) -> Any:
        if key == "capital-country":
            return request.getfixturevalue("gpt2_tokenizer")
        return mini_tokenizer

    return find
