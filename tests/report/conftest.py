"""A made-up audit document for every test of the report; no model is loaded here."""

from collections.abc import Callable
from typing import Any

import pytest
from synthetic import synthetic_document


Document = dict[str, Any]


@pytest.fixture
def document() -> Document:
    return synthetic_document()


@pytest.fixture
def make_document() -> Callable[..., Document]:
    return synthetic_document
