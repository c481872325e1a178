"""Readings on disk: complete lines survive, torn ones are cut off."""

import json
from pathlib import Path

import pytest

from assay.analyses.generalization.monitor import Journal
from assay.core.errors import FileFormatError, OutputError


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "deep" / "log.jsonl")
    assert journal.read() == []
    journal.append("monitor", {"a": 1, "bad": float("nan")})
    journal.append("reading", {"b": [1.5, "ü"]})
    assert journal.read() == [("monitor", {"a": 1, "bad": None}), ("reading", {"b": [1.5, "ü"]})]
    assert len((tmp_path / "deep" / "log.jsonl").read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize("tail", ['{"kind": "reading", "b"', "x" * 10000, '{"kind": "reading"}'])
def test_a_torn_last_line_is_ignored_and_then_cut_off(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "log.jsonl"
    journal = Journal(path)
    journal.append("monitor", {})
    with path.open("a", encoding="utf-8") as file:
        file.write(tail)
    assert journal.read() == [("monitor", {})]
    journal.append("reading", {"index": 0})
    assert journal.read() == [("monitor", {}), ("reading", {"index": 0})]
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["monitor", "reading"]


def test_a_file_that_is_only_a_torn_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("{" * 9000)
    journal = Journal(path)
    assert journal.read() == []
    journal.append("monitor", {})
    assert journal.read() == [("monitor", {})]


@pytest.mark.parametrize("line", ["no json", "[1]", '{"no": "kind"}'])
def test_a_bad_complete_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"kind": "monitor"}}\n{line}\n')
    with pytest.raises(FileFormatError, match="line 2 of .*log.jsonl"):
        Journal(path).read()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"):
        Journal(tmp_path / "file" / "log.jsonl").append("monitor", {})
