"""Every script of examples/ runs and prints."""

import runpy
import sys
from pathlib import Path

import pytest


SCRIPTS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


@pytest.mark.usefixtures("unchecked")  # as for a reader
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_there_are_examples() -> None:
    assert SCRIPTS
