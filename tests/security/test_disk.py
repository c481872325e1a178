"""A disk that is full or may not be written: a named error, what was there stays, nothing half is left."""

import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay.analyses.generalization.journal import Journal
from assay.analyses.subsets.data import CorrectnessData
from assay.circuits import save_submission, write_eap_ig
from assay.core.errors import AssayError, OutputError
from assay.graph import build_graph


SIZE = 64 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not made:
        pytest.skip("SMALL FILE SYSTEMS CANNOT BE MOUNTED HERE: tests of a full disk need root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def filled(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


GRAPH = build_graph(4, 8)


def scores(scale: float) -> assay.EdgeScores:
    return assay.EdgeScores(GRAPH, torch.full(GRAPH.valid.shape, scale).where(GRAPH.valid, 0))


def correctness(seed: int) -> CorrectnessData:
    rng = np.random.default_rng(seed)
    return CorrectnessData.of(rng.integers(0, 2, (9, 4000)).astype(np.uint8), rng.uniform(0.5, 1, 9))


WRITERS: dict[str, Callable[[Path, int], object]] = {
    "circuit": lambda path, seed: assay.Circuit.random(GRAPH, 100, seed=seed).save(
        path / "circuit.safetensors"
    ),
    "scores": lambda path, seed: scores(1.0 + seed).save(path / "scores.safetensors"),
    "eap-ig": lambda path, seed: write_eap_ig(scores(1.0 + seed), path / "graph.json"),
    "submission": lambda path, seed: save_submission({("ioi", "gpt2"): scores(1.0 + seed)}, path),
    "correctness": lambda path, seed: correctness(seed).save(path / "data.npz"),
}


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "filler"
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_keeps_what_was_there(name: str, small_disk: Path) -> None:
    write = WRITERS[name]
    if name in ("eap-ig", "submission"):
        # Larger than the disk: these are never written at all.
        with pytest.raises(OutputError, match="No space left"):
            write(small_disk, 0)
        assert content(small_disk) == {}
        return
    write(small_disk, 0)
    before = content(small_disk)
    filled(small_disk)
    with pytest.raises(OutputError, match="No space left"):
        write(small_disk, 1)
    assert content(small_disk) == before


def test_a_full_disk_keeps_the_readings_so_far(small_disk: Path) -> None:
    journal = Journal(small_disk / "readings.jsonl")
    journal.append("monitor", {"id": "0"})
    filled(small_disk)
    with pytest.raises(OutputError):
        journal.append("reading", {"index": 0, "text": "x" * 8000})
    (small_disk / "filler").unlink()
    kept = journal.read()
    journal.append("reading", {"index": -1})
    assert journal.read() == [*kept, ("reading", {"index": -1})]


@pytest.mark.parametrize("name", WRITERS)
def test_a_read_only_directory(name: str, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OutputError, match="Read-only"):
        WRITERS[name](small_disk, 0)
    assert content(small_disk) == {}


def test_commands_on_a_full_disk_and_a_read_only_one(small_disk: Path) -> None:
    """An audit says what it could not write and leaves no half of a report."""
    from command_line import invoke

    small = ["--n", "8", "--steps", "1", "--n-random", "1"]
    arguments = ["audit", "--model", "mini", "--task", "ioi", *small, "--quiet"]
    place = ["--store", str(small_disk / "store"), "--out", str(small_disk / "out")]
    filled(small_disk)
    full = invoke(*arguments, *place)
    assert full.exit_code == 1, full.output
    assert "error:" in full.output
    (small_disk / "filler").unlink()
    for path in small_disk.rglob("*"):
        assert not path.is_file() or path.name.startswith("assay.db") or not path.name.startswith("."), path
        assert path.suffix != ".html"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    sealed = invoke(*arguments, "--store", str(small_disk / "other"), "--out", str(small_disk / "x"))
    assert sealed.exit_code == 1, sealed.output
    assert "error:" in sealed.output


def test_files_are_not_for_everyone_to_write(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, write in WRITERS.items():
            (tmp_path / name).mkdir()
            write(tmp_path / name, 0)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert not path.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP), path
        assert not path.name.startswith("."), path


def test_a_path_that_is_a_directory_or_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "taken.safetensors").mkdir()
    for place in (tmp_path / "file" / "circuit.safetensors", tmp_path / "taken.safetensors"):
        with pytest.raises(OutputError):
            scores(1.0).save(place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken.safetensors"]
    with pytest.raises(AssayError):
        assay.load_scores(tmp_path / "taken.safetensors")
    assert json.dumps((tmp_path / "file").read_text()) == '"x"'
