"""Files that are read again after a kill, cut off at every place: taken up, made again, or named."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from assay.analyses.generalization.journal import Journal
from assay.analyses.worst_case.blocks import FolderShelf, PairValues
from assay.core.errors import AssayError, FileFormatError, InputError
from assay.discovery.heads.shelf import RECORD, Shelf
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
    for cut in cuts(journal.path.read_bytes(), 200):
        journal.path.write_bytes(cut)
        whole = journal.read()
        assert whole == lines[: cut.count(b"\n")]
        journal.append("reading", {"index": 9})
        assert journal.read() == [*whole, ("reading", {"index": 9})]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"3", b'{"a": 1}', b"\xff", b"[" * 100_000, b'{"kind": "\\ud800"}', b"", b"\x00"]
)
def test_a_damaged_line_in_the_middle_is_named(line: bytes, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "readings.jsonl")
    journal.path.write_bytes(b'{"kind": "monitor"}\n' + line + b"\n")
    with pytest.raises(FileFormatError, match="line 2"):
        journal.read()


Torn = tuple[Path, Callable[[], object]]


def blocks(folder: Path) -> Torn:
    values = np.arange(6.0).reshape(2, 3)
    shelf = FolderShelf(folder, {"seed": 0})
    shelf.write(0, PairValues(values, values + 1, values > 2), finished=0, total=1)
    return shelf.path(0), lambda: shelf.read(0)


def job_of_blocks(folder: Path) -> Torn:
    blocks(folder)
    return folder / "job.json", lambda: FolderShelf(folder, {"seed": 0})


def table(folder: Path) -> Torn:
    Shelf(folder, "0" * 16, {"seed": 0}).write("y_drop1", 0, np.arange(6.0))
    block = next(folder.glob("*.safetensors"))
    return block, lambda: Shelf(folder, "0" * 16, {"seed": 0}).read("y_drop1")


def record_of_a_table(folder: Path) -> Torn:
    return table(folder)[0].with_name(RECORD), lambda: Shelf(folder, "0" * 16, {"seed": 0})


def record_of_a_zoo(folder: Path) -> Torn:
    hashes = {"weight_hash": "a", "data_hash": "b"}
    path = folder / "record.npz"
    np.savez_compressed(path, logits=np.eye(3), labels=np.arange(3), ids=np.arange(3), **hashes)
    return path, lambda: _read_record(path)


def list_of_a_zoo(folder: Path) -> Torn:
    facts = {"id_domain": None, "classes": None, "data": {}, "selection": None}
    content = {"schema": "assay-zoo/1", "name": "z", **facts, "models": [{"key": "m", "path": "m"}]}
    (folder / "zoo.json").write_text(json.dumps(content))
    return folder / "zoo.json", lambda: Zoo.open(folder)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (blocks, None),
        (job_of_blocks, InputError),
        (table, FileFormatError),
        (record_of_a_table, FileFormatError),
        (record_of_a_zoo, None),
        (list_of_a_zoo, AssayError),
    ],
)
def test_a_torn_file_is_made_again_or_named(
    make: Callable[[Path], Torn], error: type[AssayError] | None, tmp_path: Path
) -> None:
    path, read = make(tmp_path)
    assert read() is not None
    for cut in cuts(path.read_bytes()):
        path.write_bytes(cut)
        if error is None:
            assert read() is None
            continue
        with pytest.raises(error):
            read()
