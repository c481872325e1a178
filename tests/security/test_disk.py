"""A disk that is full or may not be written: a named error, what was there stays, nothing half is left."""

import contextlib
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import invoke

import assay
from assay.analyses.generalization.journal import Journal
from assay.analyses.subsets import CorrectnessData
from assay.circuits import save_submission, write_eap_ig
from assay.core.errors import AssayError, OutputError
from assay.graph import build_graph


SIZE = 64 << 10
GRAPH = build_graph(4, 8)


def mount(place: Path, *arguments: str) -> bool:
    return not subprocess.run(["mount", *arguments, str(place)], check=False, capture_output=True).returncode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or not mount(place, "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs"):
        pytest.skip("SMALL FILE SYSTEMS CANNOT BE MOUNTED HERE: tests of a full disk need root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def scores(seed: int) -> assay.EdgeScores:
    return assay.EdgeScores(GRAPH, torch.full(GRAPH.valid.shape, 1.0 + seed).where(GRAPH.valid, 0))


def save_correctness(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    correct = rng.integers(0, 2, (9, 4000)).astype(np.uint8)
    CorrectnessData.of(correct, rng.uniform(0.5, 1, 9)).save(folder / "data.npz")


WRITERS: dict[str, Callable[[Path, int], object]] = {
    "circuit": lambda path, seed: assay.Circuit.random(GRAPH, 100, seed=seed).save(path / "c.safetensors"),
    "scores": lambda path, seed: scores(seed).save(path / "scores.safetensors"),
    "correctness": save_correctness,
    # Larger than the disk: these are never written at all.
    "eap-ig": lambda path, seed: write_eap_ig(scores(seed), path / "graph.json"),
    "submission": lambda path, seed: save_submission({("ioi", "gpt2"): scores(seed)}, path),
}


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "filler"
    }


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_or_read_only_disk_keeps_what_was_there(name: str, small_disk: Path) -> None:
    write = WRITERS[name]
    if name not in ("eap-ig", "submission"):
        write(small_disk, 0)
        assert content(small_disk)
        fill(small_disk)
    before = content(small_disk)
    with pytest.raises(OutputError, match="No space left"):
        write(small_disk, 1)
    assert content(small_disk) == before
    assert mount(small_disk, "-o", "remount,ro")
    with pytest.raises(OutputError, match="Read-only"):
        write(small_disk, 1)
    assert content(small_disk) == before


def test_a_full_disk_keeps_the_readings_so_far(small_disk: Path) -> None:
    journal = Journal(small_disk / "readings.jsonl")
    journal.append("monitor", {"id": "0"})
    fill(small_disk)
    with pytest.raises(OutputError):
        journal.append("reading", {"index": 0, "text": "x" * 8000})
    (small_disk / "filler").unlink()
    before = journal.read()
    assert ("monitor", {"id": "0"}) in before
    journal.append("reading", {"index": -1})
    assert journal.read() == [*before, ("reading", {"index": -1})]


def test_an_audit_leaves_no_half_of_a_report(small_disk: Path) -> None:
    command = ["audit", "--model", "mini", "--task", "ioi", "--n", "8", "--steps", "1", "--n-random", "1"]
    place = ["--store", str(small_disk / "store"), "--out", str(small_disk / "out")]
    fill(small_disk)
    full = invoke(*command, "--quiet", *place)
    for path in small_disk.rglob("*"):
        assert not path.is_file() or not path.name.startswith("."), path
        assert path.suffix != ".html"
    assert mount(small_disk, "-o", "remount,ro")
    sealed = invoke(*command, "--quiet", *place)
    for outcome in (full, sealed):
        assert outcome.exit_code == 1, outcome.output
        assert "error:" in outcome.output


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
            scores(0).save(place)
    assert content(tmp_path) == {"file": b"x"}
    with pytest.raises(AssayError):
        assay.load_scores(tmp_path / "taken.safetensors")
