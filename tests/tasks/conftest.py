"""Tokenizers of the task tests: the embedded model's and, where the reference data are there, GPT-2's."""

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
def tokenizer_of(mini_tokenizer: Any, request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """A tokenizer that knows the words of a task: the embedded model's own for its six, else GPT-2's."""

    def find(key: str) -> Any:
        if key == "capital-country":
            return request.getfixturevalue("gpt2_tokenizer")
        return mini_tokenizer

    return find
