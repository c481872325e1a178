"""Small files that want to become large: refused before the memory is asked for."""

import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from reader_guard import watched

import assay
from assay.analyses.subsets import load_published
from assay.analyses.subsets.data import CorrectnessData
from assay.circuits import read_eap_ig
from assay.core.errors import FileFormatError, InputError
from assay.core.untrusted import load_npz, parse_json, parse_toml
from assay.tasks import ReadOptions, image_decoding, read_npz, read_parquet
from assay.tasks.image_files import read_images
from assay.tasks.load import read_pairs
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


def test_images_just_above_the_limit_of_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.tasks.corruptions import _read_textures

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64)
    (tmp_path / "textures").mkdir()
    for side, fits in ((8, True), (9, False), (11, False)):  # up to 11 x 11 Pillow only warns
        path = tmp_path / "textures" / "image.png"
        Image.new("RGB", (side, side)).save(path)
        if fits:
            assert read_images([path]).pixels.shape == (1, 8, 8, 3)
            assert len(_read_textures(path.parent)) == 1
            continue
        with pytest.raises(FileFormatError, match="exceeds limit of 64 pixels"):
            read_images([path])
        with pytest.raises(FileFormatError, match="exceeds limit of 64 pixels"):
            _read_textures(path.parent)


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
    return zipped(
        tmp_path_factory.mktemp("large") / "data.npz", {"images": (header((1100, 1000, 1000)), size)}
    )


@pytest.mark.slow
@READERS
def test_archives_larger_than_the_memory(
    read: Callable[[Path], object], gigabyte: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gigabyte.stat().st_size < 2_000_000
    monkeypatch.setattr(image_decoding, "MOST_WORKERS", 0)  # the watch does not see into other processes
    memory = psutil.virtual_memory()._replace(available=1 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with watched(), pytest.raises((FileFormatError, InputError), match="memory are free"):
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


@READERS
@pytest.mark.parametrize("kind", ["|V0", "|S0", "<U0"])
def test_elements_without_width_are_counted(
    read: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    names = ("X", "y") if read == CorrectnessData.load else ("images", "ids")
    path = zipped(tmp_path / "data.npz", {name: (header((2 * 10**8,), kind), 0) for name in names})
    with watched(), pytest.raises(FileFormatError, match="declares"):
        read(path)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [True, False], ids=["dictionary", "plain"])
def test_parquet_cells_that_a_file_holds_once(
    stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of a megabyte in 4,000 cells: 4 GB in half a kilobyte, whose metadata declare a megabyte."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from assay.pipeline.subset_data import read_data

    path = tmp_path / "bomb.parquet"
    column = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(4000, dtype=np.int32)), pa.array([b"x" * 1_000_000])
    )
    inner = pa.StructArray.from_arrays([column], ["bytes"])
    for image in (column, inner):
        table = pa.table({"image": image, "model": pa.array([0] * 4000)})
        parquet.write_table(table, path, compression="zstd", store_schema=stored)
        assert path.stat().st_size < 10_000
        memory = psutil.virtual_memory()._replace(available=1 << 28)
        monkeypatch.setattr(psutil, "virtual_memory", lambda memory=memory: memory)
        with watched(), pytest.raises(FileFormatError, match="memory are free"):
            read_data(path)
        with watched(), pytest.raises(FileFormatError, match="image 0 cannot be decoded"):
            read_parquet(path, options=ReadOptions(workers=0))  # a few cells at a time; the first is no image
    memory = psutil.virtual_memory()._replace(available=1 << 50)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with watched(), pytest.raises(FileFormatError, match="image 0 cannot be decoded"):
        read_parquet(path, options=ReadOptions(workers=0))


def test_parquet_lists_of_one_row_and_many_elements(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = tmp_path / "bomb.parquet"
    one = pa.ListArray.from_arrays(pa.array([0, 30_000_000]), pa.array(np.zeros(30_000_000)))
    parquet.write_table(pa.table({"image": one}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    with pytest.MonkeyPatch.context() as patch:
        memory = psutil.virtual_memory()._replace(available=1 << 28)
        patch.setattr(psutil, "virtual_memory", lambda: memory)
        with watched(), pytest.raises(FileFormatError, match="expected a column image with encoded files"):
            read_parquet(path)


def test_parquet_tables_of_few_bytes_and_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from assay.pipeline.subset_data import read_data

    n = 3_000_000
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([b"x" * 100]))
    parquet.write_table(pa.table({"image": column, "model": column}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 1_000_000
    memory = psutil.virtual_memory()._replace(available=1 << 28)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    for read in (read_parquet, read_data):
        with watched(), pytest.raises(FileFormatError, match="memory are free"):
            read(tmp_path / "bomb.parquet")


# ------------------------------------------------------------------------------------------ stores


def test_payloads_nested_thousands_deep(tmp_path: Path) -> None:
    import sqlite3

    from assay.store import DATABASE_NAME, Store

    store = Store(tmp_path)
    deep: object = 1
    for _ in range(5000):
        deep = {"a": deep}
    for record in ({"deep": deep}, {"deep": [deep]}):
        with pytest.raises(InputError, match="nested more than 100 levels"):
            store.put("measurement", {}, record)
        with pytest.raises(InputError, match="nested more than 100 levels"):
            store.put("measurement", record, {})
    identity = store.put("measurement", {}, {"value": 1.0})
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("UPDATE results SET payload = ?", ('{"a":' * 5000 + "1" + "}" * 5000,))
    database.close()
    for read in (lambda: store.get(identity), lambda: list(store.results()), store.to_frame):
        with pytest.raises(FileFormatError, match="the payload of result .* was damaged"):
            read()
    assert len(store.verify()) == 1


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
        {"num_labels": 10**9},
        {"head_dim": 10**9},
        {"num_key_value_heads": 10**9},
        {"made_up": {"of": [10**9]}},
    ],
)
def test_configurations_of_models_far_larger_than_their_weights(
    change: dict[str, int], tmp_path: Path
) -> None:
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
    with watched(), pytest.raises(FileFormatError, match="do not belong together"):
        assay.load_model(tmp_path / "model")
    assay.load_model("mini")
    # What sizes nothing may be as large as it likes.
    content = json.loads((MINI / "config.json").read_text())
    config.write_text(json.dumps(content | {"rope_theta": 10**9, "max_length": 10**9}))
    with watched():
        assay.load_model(tmp_path / "model")


def test_an_architecture_far_larger_than_the_weights_beside_it(tmp_path: Path) -> None:
    from assay.models.loading import MINI

    shutil.copy(MINI / "model.safetensors", tmp_path)
    for change in (
        {"num_classes": 10**9},
        {"model_args": {"num_classes": 10**9}},
        {"model_args": {"depth": 10**4}},
        {"model_args": {"img_size": [10**9, 16]}},
        {"pretrained_cfg": {"num_classes": 10**9}},
    ):
        content = {"architecture": "vit_tiny_patch16_224", **change}
        (tmp_path / "config.json").write_text(json.dumps(content))
        with watched(), pytest.raises(FileFormatError, match="do not belong together"):
            assay.load_model(tmp_path)


def test_billions_of_prompts_are_not_promised_by_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"clean": [' + "1," * 9 + '99999999999999999999], "corrupted": [1], "answers": [1]}\n')
    with watched(), pytest.raises((FileFormatError, InputError)):
        read_pairs(path)
