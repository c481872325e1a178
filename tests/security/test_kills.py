"""Sweeps killed at random times leave what an undisturbed one leaves; the harness is an experiment's."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from postgres_server import PostgresServer


SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "kills" / "run.py"


@pytest.fixture(scope="module")
def kills() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("kills_of_sweeps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
def test_fifty_kills_lose_and_double_nothing(kills: ModuleType, tmp_path: Path) -> None:
    found = kills.run(kills=50, seeds=range(10), folder=tmp_path)
    assert found["disagreements"] == []
    assert found["kills"] == 50


@pytest.mark.slow
def test_kills_and_restarts_of_the_server(
    kills: ModuleType, tmp_path: Path, postgres: PostgresServer
) -> None:
    found = kills.run(kills=10, seeds=range(6), folder=tmp_path, server=postgres)
    assert found["disagreements"] == []
    assert found["restarts_of_the_server"] > 0


def test_what_is_compared_would_show(kills: ModuleType) -> None:
    expected = kills.Round(digest="a", kinds={"job": 2})
    for wrong in (
        kills.Round(digest="b", kinds={"job": 2}),
        kills.Round(digest="a", kinds={"job": 3}),
        kills.Round(digest="a", kinds={"job": 2}, problems=["row x"]),
    ):
        assert len(kills.disagreements(expected, [wrong])) == 1
    assert kills.disagreements(expected, [kills.Round(digest="a", kinds={"job": 2})]) == []
