"""Names inside files: none leads out of the chosen directory, none reaches a terminal raw."""

import json
import os
import pty
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest

from assay.app.cli import run
from assay.app.delivery import echo, print_json, print_table, say
from assay.core.errors import FileFormatError
from assay.core.untrusted import printable
from assay.zoo import Zoo


HOSTILE = "a\x1b[2J\x1b]0;owned\x07\r\x9b31m\u202eb"
OUTSIDE = ("../out", "/tmp/out", "a/../../out", "..", ".", ".hidden", "a\0b", "a\\b", "", "x" * 300, "a\nb")


# ------------------------------------------------------------------------------------------ paths


def open_zoo(folder: Path, **changed: object) -> Zoo:
    entry = {"key": "m0", "path": "models/m0", "status": "done", **changed}
    facts = {"id_domain": None, "classes": None, "data": {}, "selection": None}
    content = {"schema": "assay-zoo/1", "name": "z", **facts, "models": [entry]}
    (folder / "zoo.json").write_text(json.dumps(content))
    return Zoo.open(folder)


def test_names_in_a_zoo_stay_inside(tmp_path: Path) -> None:
    assert open_zoo(tmp_path).keys == ("m0",)
    for name in OUTSIDE:
        with pytest.raises(FileFormatError, match="invalid model name"):
            open_zoo(tmp_path, key=name)
    for place in ("../out", "/etc", "models/../../out"):
        for changed in ({"path": place}, {"checkpoints": [{"step": 1, "path": place}]}):
            with pytest.raises(FileFormatError, match="outside the zoo"):
                open_zoo(tmp_path, **changed)


# ------------------------------------------------------------------------------------------ terminals


def obeyed(text: str) -> list[str]:
    """Characters that a terminal acts on, but line breaks, tabs and the colours of our own tables."""
    plain = text.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\r\n", "\n")
    return [each for each in plain if each in "\x1b\r\x07\x9b\u202e\x7f"]


def test_what_is_printed_is_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HOSTILE, ["name", HOSTILE], [[HOSTILE, "two\nlines\tand a tab"]])
    echo(HOSTILE)
    say(HOSTILE)
    print_json({HOSTILE: HOSTILE + "\x7f"})
    out, err = capsys.readouterr()
    assert obeyed(out.replace("\u202e", "")) == []
    assert obeyed(err) == []
    assert "\\x1b[2J" in out
    assert "two\\nlines\\tand a tab" in out
    for text in ("naïve café", "日本語", "עברית", "emoji 🙂", "a\nb\tc", "\\x1b"):
        assert printable(text) == text


@pytest.mark.usefixtures("unchecked")  # as for a user
def test_errors_about_hostile_prompts_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"clean": HOSTILE, "corrupted": [1, 3], "answers": [HOSTILE, HOSTILE]}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line) + "\n")
    monkeypatch.chdir(tmp_path)
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, redirect_stdout(terminal), redirect_stderr(terminal):
        assert run(["discover", "--task", "prompts.jsonl", "--store", "store"]) in (1, 2)
    seen = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    said = seen.decode()
    assert "error:" in said
    assert not any(each in said for each in ("\x1b[2J", "\x1b]0", "\x9b", "\u202e"))
