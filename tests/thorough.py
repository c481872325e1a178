"""One case of what takes long in the ordinary suite; the others with ASSAY_THOROUGH."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(cases: Iterable[Any], *ordinary: Any) -> list[Any]:
    """The cases of `pytest.mark.parametrize`, of which the ordinary suite runs those named, or the first."""
    listed = list(cases)
    kept = ordinary or listed[:1]
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in listed]
