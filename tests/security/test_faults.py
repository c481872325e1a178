"""Full and sealed disks, clocks that jump, files torn by a kill: what was there stays, all is named."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import invoke

import assay
from assay.analyses.generalization.monitor import append_line, read_lines
from assay.analyses.subsets import CorrectnessData
from assay.circuits import write_eap_ig
from assay.core.errors import FileFormatError, OutputError
from assay.discovery.heads.shelf import Shelf
from assay.graph import build_graph
from assay.zoo.archive import _read_logits


REPOSITORY = Path(__file__).resolve().parents[2]
GRAPH = build_graph(4, 8)


# ---- disks --------------------------------------------------------------------------------------


def mount(place: Path, *arguments: str) -> bool:
    return not subprocess.run(["mount", *arguments, str(place)], check=False, capture_output=True).returncode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or not mount(place, "-t", "tmpfs", "-o", f"size={64 << 10}", "tmpfs"):
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
    "scores": lambda path, seed: scores(seed).save(path / "scores.safetensors"),
    "correctness": save_correctness,
    "eap-ig": lambda path, seed: write_eap_ig(scores(seed), path / "scores.json"),  # never fits
}


def files_in(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "filler"]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_or_read_only_disk_keeps_what_was_there(name: str, small_disk: Path) -> None:
    if name != "eap-ig":
        WRITERS[name](small_disk, 0)
        fill(small_disk)
    before = files_in(small_disk)
    with pytest.raises(OutputError, match="No space left"):
        WRITERS[name](small_disk, 1)
    assert files_in(small_disk) == before
    assert mount(small_disk, "-o", "remount,ro")
    with pytest.raises(OutputError, match="Read-only"):
        WRITERS[name](small_disk, 1)
    assert files_in(small_disk) == before


def test_a_full_disk_keeps_readings_and_leaves_no_half_of_a_report(small_disk: Path) -> None:
    path = small_disk / "readings.jsonl"
    append_line(path, "monitor", {"id": "0"})
    fill(small_disk)
    with pytest.raises(OutputError):
        append_line(path, "reading", {"index": 0, "text": "x" * 8000})
    command = ("audit", "--n", "8", "--steps", "1", "--n-random", "1", "--quiet")
    outcome = invoke(*command, "--store", small_disk / "store", "--out", small_disk / "out")
    assert (outcome.exit_code, "error:" in outcome.stderr) == (1, True)
    left = [path for path in small_disk.rglob("*") if path.is_file()]
    assert not [path for path in left if path.name.startswith(".") or path.suffix == ".html"]
    (small_disk / "filler").unlink()
    before = read_lines(path)
    assert ("monitor", {"id": "0"}) in before
    append_line(path, "reading", {"index": -1})
    assert read_lines(path) == [*before, ("reading", {"index": -1})]


# ---- torn files ---------------------------------------------------------------------------------


def cuts(content: bytes, n: int = 60) -> list[bytes]:
    """The content cut off at some places, the first and the last byte among them."""
    places = sorted({0, 1, len(content) - 1, *np.linspace(0, len(content) - 1, n).astype(int).tolist()})
    return [content[:place] for place in places]


@pytest.mark.filterwarnings("error")
def test_readings_count_once_their_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    lines = [("reading", {"index": index, "shift": 0.5, "text": "naïve 🙂"}) for index in range(4)]
    for kind, reading in lines:
        append_line(path, kind, reading)
    for cut in cuts(path.read_bytes(), 200):
        path.write_bytes(cut)
        whole = read_lines(path)
        assert whole == lines[: cut.count(b"\n")]
        append_line(path, "reading", {"index": 9})
        assert read_lines(path) == [*whole, ("reading", {"index": 9})]


@pytest.mark.parametrize("line", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"kind": "\\ud800"}', b"", b"\x00"])
def test_a_damaged_line_in_the_middle_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    path.write_bytes(b'{"kind": "monitor"}\n' + line + b"\n")
    with pytest.raises(FileFormatError, match="line 2"):
        read_lines(path)


Torn = tuple[Path, Callable[[], object]]


def block(folder: Path) -> Torn:
    shelf = Shelf(folder, "0" * 16, {"seed": 0})
    shelf.write("y_drop1", 0, values=np.arange(6.0), flags=np.arange(6) > 2)
    return next(folder.glob("*.safetensors")), lambda: shelf.read("y_drop1")


def record_of_a_zoo(folder: Path) -> Torn:
    path = folder / "record.npz"
    np.savez_compressed(path, logits=np.eye(3))
    return path, lambda: _read_logits(path)


@pytest.mark.parametrize("make", [block, record_of_a_zoo])
def test_a_torn_file_is_made_again(make: Callable[[Path], Torn], tmp_path: Path) -> None:
    path, read = make(tmp_path)
    assert read() is not None
    for cut in cuts(path.read_bytes()):
        path.write_bytes(cut)
        assert read() is None


# ---- networks -------------------------------------------------------------------------


@pytest.mark.skipif("ASSAY_OFFLINE" not in os.environ, reason="not run by .ci/offline")
def test_the_continuous_run_has_no_other_interface_than_loopback() -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Network is unreachable" in found.stderr
