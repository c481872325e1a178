"""The benchmark of subsets: what it refuses to save, and when it fails."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest


FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which sets the number of threads for its own process only."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return importlib.import_module("bench_subsets")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--part", "resumed", "--models", "60", "--save"],
        ["--part", "verdict", "--judged", "20", "--save"],
        ["--part", "large", "--examples", "300"],
    ],
)
def test_another_problem_is_neither_saved_nor_another_part(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_subsets.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        bench.main()
    assert "for the parts resumed and verdict, without --save" in capsys.readouterr().err


def test_missing_kills_and_other_bytes_are_failures(bench: Any) -> None:
    failures = bench.failures
    assert failures({}) == []
    assert failures({"resumed": {"kills": bench.KILLS, "same bytes": True}}) == []
    (few,) = failures({"resumed": {"kills": bench.KILLS - 1, "same bytes": True}})
    assert "killed 9 times, expected 10" in few
    (other,) = failures({"resumed": {"kills": bench.KILLS, "same bytes": False}})
    assert "other bytes" in other
