"""Small files that want to become large: refused before the memory is asked for."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from reader_guard import watched

import assay
from assay.circuits import read_eap_ig
from assay.errors import AssayError, FileFormatError, InputError
from assay.subsets import load_published
from assay.subsets.data import CorrectnessData
from assay.tasks import read_npz, read_parquet
from assay.tasks.image_files import read_images
from assay.tasks.load import read_pairs
from assay.untrusted import load_npz, parse_json, parse_toml
from assay.zoo import Correctness


SIDE = 60_000  # squared, three bytes each: 10.8 GB


def png(side: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1 << 20), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def gif(side: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, side, side, 0)
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", side, side, 0x80, 0, 0)
        + bytes(6)
        + frame
        + b"\x02\x02\x4c\x01\x00;"
    )


def bmp(side: int) -> bytes:
    return (
        b"BM"
        + struct.pack("<IHHI", 1000, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 1, 1, 0, 0)
    )


def ppm(side: int) -> bytes:
    return f"P6 {side} {side} 255 ".encode() + bytes(100)


def tiff(side: int) -> bytes:
    tags = [
        (256, 4, side),
        (257, 4, side),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 200),
        (277, 3, 1),
        (278, 4, side),
        (279, 4, 100),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", len(tags)) + entries + bytes(200)


def webp(side: int) -> bytes:
    side = min(side, 16_383)  # more the format cannot say: 268 million pixels
    bits = (side - 1) | (side - 1) << 14
    body = b"VP8L" + struct.pack("<I", 20) + b"\x2f" + struct.pack("<I", bits) + bytes(15)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize("made", [png, gif, bmp, ppm, tiff, webp], ids=lambda made: made.__name__)
def test_images_that_declare_huge_sizes(made: Callable[[int], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"bomb.{made.__name__}"
    path.write_bytes(made(SIDE))
    with watched(), pytest.raises(FileFormatError, match=r"bomb\."):
        read_images([path])


def test_images_inside_archives_are_held_to_the_same(tmp_path: Path) -> None:
    content = np.frombuffer(png(SIDE), dtype=np.uint8)
    np.savez_compressed(tmp_path / "images.npz", blob=content, offsets=np.array([0, len(content)]))
    with watched(), pytest.raises(FileFormatError):
        read_npz(tmp_path / "images.npz")


# ------------------------------------------------------------------------------------------ archives


def zipped(path: Path, members: dict[str, tuple[bytes, int]]) -> Path:
    """An archive of members with a head and so many zeros behind it, written without ever being in memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (head, zeros) in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(head)
                for start in range(0, zeros, 1 << 24):
                    member.write(bytes(min(1 << 24, zeros - start)))
    return path


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


READERS = pytest.mark.parametrize(
    "read", [CorrectnessData.load, Correctness.load, load_published, read_npz, load_npz]
)


@READERS
def test_arrays_that_declare_what_is_not_there(read: Callable[[Path], object], tmp_path: Path) -> None:
    names = ("X", "y") if read == CorrectnessData.load else ("images", "ids")
    for shape in ((10**12,), (10**6, 10**6), (2**62, 4), (10**9,)):
        path = zipped(tmp_path / "data.npz", {name: (header(shape), 100) for name in names})
        with watched(), pytest.raises(FileFormatError, match="declares"):
            read(path)


@pytest.fixture(scope="module")
def gigabyte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1.1 GB of zeros in a megabyte."""
    size = 1_100_000_000
    return zipped(tmp_path_factory.mktemp("large") / "data.npz", {"images": (header((size,)), size)})


@READERS
def test_archives_larger_than_the_memory(
    read: Callable[[Path], object], gigabyte: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gigabyte.stat().st_size < 2_000_000
    memory = psutil.virtual_memory()._replace(available=1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with watched(), pytest.raises(FileFormatError, match="memory are free"):
        read(gigabyte)


@READERS
def test_archives_that_lie_about_their_packed_size(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = zipped(tmp_path / "data.npz", {"X": (header((10,)), 10)})
    content = path.read_bytes()
    # The size before packing in the central directory becomes 4 GB; the data stay as they are.
    at = content.rindex(b"PK\x01\x02") + 24
    path.write_bytes(content[:at] + struct.pack("<I", 0xFFFFFFF0) + content[at + 4 :])
    with watched(), pytest.raises(FileFormatError):
        read(path)


def test_parquet_tables_of_few_bytes_and_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from assay.runner.subset_data import read_data

    n = 3_000_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([b"x" * 100]))
    parquet.write_table(pa.table({"image": column, "model": column}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1_000_000
    memory = psutil.virtual_memory()._replace(available=1 << 28)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    for read in (read_parquet, read_data):
        with watched(), pytest.raises(FileFormatError, match="memory are free"):
            read(tmp_path / "bomb.parquet")


# ------------------------------------------------------------------------------------------ text


def test_nesting_and_numbers_without_end(tmp_path: Path) -> None:
    for text in (
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "9" * 100_000,
        "-" + "9" * 5000,
    ):
        with pytest.raises(ValueError):
            parse_json(text)
    for text in (
        "a = " + "[" * 50_000 + "]" * 50_000,
        "a = " + "{b=" * 50_000,
        "a = " + "9" * 100_000,
        "a." * 50_000,
    ):
        with pytest.raises(ValueError):
            parse_toml(text)


def test_graphs_that_would_fill_the_memory(tmp_path: Path) -> None:
    for layers, heads in ((10**6, 10**6), (10**12, 1), (1, 10**12), (2000, 2000)):
        content = {"cfg": {"n_layers": layers, "n_heads": heads}, "nodes": {}, "edges": {"a": 1}}
        (tmp_path / "graph.json").write_text(json.dumps(content))
        with watched(), pytest.raises(FileFormatError, match="more than any file"):
            read_eap_ig(tmp_path / "graph.json")


@pytest.mark.parametrize(
    "change",
    [
        {"n_layer": 10**9},
        {"n_embd": 10**9},
        {"vocab_size": 10**12},
        {"n_positions": 10**12},
        {"n_inner": 10**12},
        {"n_head": 10**9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_configurations_of_models_far_larger_than_their_weights(
    change: dict[str, int], tmp_path: Path
) -> None:
    import shutil

    from assay.models.loading import MINI

    shutil.copytree(MINI, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    names = {
        "n_layer": "num_hidden_layers",
        "n_embd": "hidden_size",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
    }
    content = json.loads(config.read_text())
    for name, value in change.items():
        content[name if name in content else names.get(name, name)] = value
    config.write_text(json.dumps(content))
    with watched(), pytest.raises(AssayError):
        assay.load_model(tmp_path / "model")


def test_billions_of_prompts_are_not_promised_by_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"clean": [' + "1," * 9 + '99999999999999999999], "corrupted": [1], "answers": [1]}\n')
    with watched(), pytest.raises((FileFormatError, InputError)):
        read_pairs(path)
