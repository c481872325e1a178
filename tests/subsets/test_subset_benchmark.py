"""The benchmark of subsets: what it refuses to save, and when it fails."""

import importlib
import json
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
    assert "for the parts resumed, verdict and accelerator, without --save" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--part", "kernels", "--device", "cpu"],
        ["--device", "cuda"],
        ["--part", "accelerator", "kernels", "--save"],
    ],
)
def test_what_is_measured_on_a_device_is_measured_alone(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(bench, monkeypatch, *arguments)
    assert "need that part alone" in capsys.readouterr().err


def test_missing_kills_and_other_bytes_are_failures(bench: Any) -> None:
    failures = bench.failures
    assert failures({}) == []
    assert failures({"resumed": {"kills": bench.KILLS, "same bytes": True}}) == []
    (few,) = failures({"resumed": {"kills": bench.KILLS - 1, "same bytes": True}})
    assert "killed 9 times, expected 10" in few
    (other,) = failures({"resumed": {"kills": bench.KILLS, "same bytes": False}})
    assert "other bytes" in other


def main(bench: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    for name in ("SHAPES", "JUDGED", "PARTS"):  # options change them
        monkeypatch.setattr(bench, name, dict(getattr(bench, name)))
    monkeypatch.setattr(sys, "argv", ["bench_subsets.py", *arguments])
    bench.main()


def test_layouts_are_compared_on_the_device_that_is_named(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--models", "60", "--examples", "400", "--judged", "10", "20")
    main(bench, monkeypatch, "--part", "accelerator", *small, "--device", "cpu")
    found = json.loads(capsys.readouterr().out)["parts"]["accelerator"]
    assert (found.pop("models"), found.pop("examples"), found.pop("device")) == (60, 400, "cpu")
    assert len(found) == 3
    assert all(row["same sets"] for row in found.values())


def test_without_an_accelerator_its_part_is_skipped(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    main(bench, monkeypatch, "--part", "accelerator")
    told = capsys.readouterr()
    assert json.loads(told.out)["parts"] == {}
    assert "accelerator: skipped; PyTorch finds no accelerator here; --device names one" in told.err
