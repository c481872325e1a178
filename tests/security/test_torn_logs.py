"""Files that are read again after a kill, cut off at every place: taken up, made again, or named."""

import json
from pathlib import Path

import numpy as np
import pytest

from assay.analyses.generalization.journal import Journal
from assay.analyses.worst_case.blocks import FolderShelf, PairValues
from assay.core.errors import AssayError, FileFormatError, InputError
from assay.discovery.heads.shelf import RECORD
from assay.discovery.heads.shelf import Shelf as TableShelf
from assay.zoo import Zoo
from assay.zoo.records import _read_record


def cuts(content: bytes, n: int = 60) -> list[bytes]:
    """The content cut off at some places, the first and the last byte among them."""
    places = sorted({0, 1, len(content) - 1, *np.linspace(0, len(content) - 1, n).astype(int).tolist()})
    return [content[:place] for place in places]


@pytest.mark.filterwarnings("error")
def test_readings(tmp_path: Path) -> None:
    """A line counts once it ends: the others before it are kept, and the next is written after them."""
    journal = Journal(tmp_path / "readings.jsonl")
    lines = [("reading", {"index": index, "shift": 0.5, "text": "naïve 🙂"}) for index in range(4)]
    for kind, content in lines:
        journal.append(kind, content)
    whole = journal.path.read_bytes()
    for cut in cuts(whole, 200):
        journal.path.write_bytes(cut)
        kept = journal.read()
        assert kept == lines[: cut.count(b"\n")]
        journal.append("reading", {"index": 9})
        assert journal.read() == [*kept, ("reading", {"index": 9})]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "readings.jsonl")
    for line in (
        b"{",
        b"[]",
        b"3",
        b'{"a": 1}',
        b"\xff",
        b"[" * 100_000,
        b'{"kind": "\\ud800"}',
        b"",
        b"\x00",
    ):
        journal.path.write_bytes(b'{"kind": "monitor"}\n' + line + b"\n")
        with pytest.raises(FileFormatError, match="line 2"):
            journal.read()


def test_blocks_of_pairs_are_run_again(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(2, 3)
    shelf = FolderShelf(tmp_path / "kept", {"seed": 0})
    shelf.write(0, PairValues(values, values + 1, values > 2), finished=0, total=1)
    whole = shelf.path(0).read_bytes()
    for cut in cuts(whole):
        shelf.path(0).write_bytes(cut)
        assert shelf.read(0) is None
    shelf.path(0).write_bytes(whole)
    assert shelf.read(0) is not None
    record = (tmp_path / "kept" / "job.json").read_bytes()
    for cut in cuts(record)[:-1]:
        (tmp_path / "kept" / "job.json").write_bytes(cut)
        with pytest.raises(InputError, match="another job"):
            FolderShelf(tmp_path / "kept", {"seed": 0})


def test_measurement_tables(tmp_path: Path) -> None:
    def make() -> TableShelf:
        return TableShelf(tmp_path / "table", "0" * 16, {"seed": 0})

    make().write("y_drop1", 0, np.arange(6.0))
    block = next((tmp_path / "table").glob("*.safetensors"))
    for path, read in ((tmp_path / "table" / RECORD, make), (block, lambda: make().read("y_drop1"))):
        whole = path.read_bytes()
        read()
        for cut in cuts(whole):
            path.write_bytes(cut)
            with pytest.raises(FileFormatError):
                read()
        path.write_bytes(whole)


def test_records_of_a_zoo_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "record.npz"
    hashes = {"weight_hash": "a", "data_hash": "b"}
    np.savez_compressed(path, logits=np.eye(3), labels=np.arange(3), ids=np.arange(3), **hashes)
    assert _read_record(path) is not None
    for cut in cuts(path.read_bytes()):
        path.write_bytes(cut)
        assert _read_record(path) is None


def test_the_list_of_a_zoo(tmp_path: Path) -> None:
    facts = {"id_domain": None, "classes": None, "data": {}, "selection": None}
    content = {"schema": "assay-zoo/1", "name": "z", **facts, "models": [{"key": "m", "path": "m"}]}
    path = tmp_path / "zoo.json"
    path.write_text(json.dumps(content))
    Zoo.open(tmp_path)
    for cut in cuts(path.read_bytes()):
        path.write_bytes(cut)
        with pytest.raises(AssayError):
            Zoo.open(tmp_path)
