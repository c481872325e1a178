"""Both kinds of store for every test of this folder."""

from pathlib import Path

import pytest
from postgres_server import PostgresServer

from assay.store import Store


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new store may be made, on each backend."""
    if request.param == "sqlite":
        return str(tmp_path / "results")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database(arrays=str(tmp_path / "results"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store in a directory; that of the contract is of either kind."""
    return Store(tmp_path / "results")
