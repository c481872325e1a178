"""A store for every test of this folder."""

from pathlib import Path

import pytest

from assay.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in a directory; that of the contract is of either kind."""
    return Store(tmp_path / "results")
