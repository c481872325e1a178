"""Small files that want to become large: refused before the memory is asked for."""

import io
import json
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from reader_guard import watched

from assay.analyses.subsets import CorrectnessData
from assay.analyses.subsets.files import read_data
from assay.circuits import read_eap_ig
from assay.core import untrusted
from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import load_npz, parse_json
from assay.store import DATABASE_NAME, Store
from assay.tasks import read_files


SIDE = 60_000  # squared, three bytes each: 10.8 GB


def free(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """So many bytes are free from now on."""
    memory = psutil.virtual_memory()._replace(available=size)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def png(side: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(1 << 20), 9))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def test_images_that_declare_huge_sizes(tmp_path: Path) -> None:
    for name, content in (("png", png(SIDE)), ("ppm", f"P6 {SIDE} {SIDE} 255 ".encode() + bytes(100))):
        path = tmp_path / f"bomb.{name}"
        path.write_bytes(content)
        with watched(), pytest.raises(FileFormatError, match=r"bomb\."):
            read_files([path]).held()


# ------------------------------------------------------------------------------------------ archives


def zipped(path: Path, names: tuple[str, ...], head: bytes, zeros: int) -> Path:
    """An archive of members with a head and so many zeros behind it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in names:
            archive.writestr(f"{name}.npy", head + bytes(zeros))
    return path


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize("read", [CorrectnessData.load, load_npz])
def test_archives(read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, names = tmp_path / "data.npz", ("X", "y") if read == CorrectnessData.load else ("images", "ids")
    lies = [header(shape) for shape in ((10**12,), (10**6, 10**6), (2**62, 4), (10**9,))]
    for head in [*lies, *(header((2 * 10**8,), kind) for kind in ("|V0", "|S0", "<U0"))]:
        zipped(path, names, head, 0)
        with watched(), pytest.raises(FileFormatError, match="declares"):
            read(path)
    monkeypatch.setattr(untrusted, "LEAST_BOMB", 1 << 20)
    free(monkeypatch, 1 << 25)
    zipped(path, ("images",), header((40, 1000, 1000)), 40_000_000)
    with watched(), pytest.raises((FileFormatError, InputError), match="memory are free"):
        read(path)


@pytest.mark.parametrize("stored", [True, False], ids=["dictionary", "plain"])
def test_parquet_cells_that_a_file_holds_once(stored: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """A text of a megabyte in 1,000 cells: 1 GB in half a kilobyte, whose metadata declare a megabyte."""
    path = tmp_path / "bomb.parquet"
    cells = pa.array(np.zeros(1000, dtype=np.int32))
    column = pa.DictionaryArray.from_arrays(cells, pa.array([b"x" * 1_000_000]))
    free(monkeypatch, 1 << 28)
    inner = pa.StructArray.from_arrays([column], ["bytes"])
    for image, problem in ((column, "GB are decoded"), (inner, "dictionary")):
        table = pa.table({"image": image, "model": cells})
        parquet.write_table(table, path, compression="zstd", store_schema=stored)
        assert path.stat().st_size < 10_000
        with watched(), pytest.raises(FileFormatError, match=problem if stored else "GB are decoded"):
            read_data(path)


# ------------------------------------------------------------------------------------------ nesting


def test_nesting_and_numbers_without_end() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 100_000):
        with pytest.raises(ValueError):
            parse_json(text)


def test_payloads_nested_thousands_deep(tmp_path: Path) -> None:
    store = Store(tmp_path)
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    for provenance, payload in (({}, {"deep": [deep]}), ({"deep": deep}, {})):
        with pytest.raises(InputError, match="nested too deeply"):
            store.put("measurement", provenance, payload)
    identity = store.put("measurement", {}, {"value": 1.0})
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("UPDATE results SET payload = ?", ('{"a":' * 5000 + "1" + "}" * 5000,))
    database.close()
    for read in (lambda: store.get(identity), lambda: list(store.results()), store.to_frame):
        with pytest.raises(FileFormatError, match="was damaged"):
            read()
    assert len(store.verify()) == 1


# ------------------------------------------------------------------------------------------ sizes in words


@pytest.mark.parametrize(("layers", "heads"), [(10**12, 1), (1, 10**12), (2000, 2000)])
def test_graphs_that_would_fill_the_memory(layers: int, heads: int, tmp_path: Path) -> None:
    content = {"cfg": {"n_layers": layers, "n_heads": heads}, "nodes": {}, "edges": {"a": 1}}
    (tmp_path / "graph.json").write_text(json.dumps(content))
    with watched(), pytest.raises(FileFormatError, match="more than any file"):
        read_eap_ig(tmp_path / "graph.json")
