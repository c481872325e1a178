"""What the tests of worst-case evaluation share."""

from pathlib import Path
from typing import Any

import pytest

import assay.models


@pytest.fixture(scope="session")
def mini_tokenizer() -> Any:
    """The tokenizer of the embedded model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(assay.models.__file__).parent / "mini")
