"""Readers of image files: every layout, samples and ids, files that are broken or do not belong."""

import hashlib
import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.core.errors import (
    FileFormatError,
    InputError,
    MissingExtraError,
    ShapeError,
    UnknownNameError,
    UnsafeFileError,
)
from assay.tasks import (
    EvalTransform,
    ImageSet,
    ReadOptions,
    TableLayout,
    read_domains,
    read_image_folder,
    read_imagenet_c,
    read_npz,
    read_parquet,
    read_table,
)


def save(path: Path, value: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def encoded(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (5, 4), (value, value, value)).save(file, format="PNG")
    return file.getvalue()


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    """Two domains, three classes; the second domain lacks one; a file that is not an image."""
    for number, name in enumerate(["art/dog/1.png", "art/dog/2.jpg", "art/cat/1.png", "art/owl/sub/1.PNG"]):
        save(tmp_path / name, 10 * number)
    save(tmp_path / "photo/owl/1.png", 77)
    (tmp_path / "art/dog/notes.txt").write_text("no image")
    return tmp_path


def values(images: ImageSet) -> list[int]:
    return images.pixels[:, 0, 0, 0].tolist()


def test_domains_share_the_labels_of_all_classes(pacs: Path) -> None:
    domains = read_domains(pacs)
    assert list(domains) == ["art", "photo"]
    art, photo = domains["art"], domains["photo"]
    assert art.classes == photo.classes == ("cat", "dog", "owl")
    assert art.labels is not None
    assert photo.labels is not None
    assert art.labels.tolist() == [0, 1, 1, 2]
    assert photo.labels.tolist() == [2]
    assert art.fields["path"] == ["cat/1.png", "dog/1.png", "dog/2.jpg", "owl/sub/1.PNG"]
    assert values(art) == [20, 0, 10, 30]
    assert (art.n, art.domain, art.pixels.shape) == (4, "art", (4, 4, 6, 3))
    assert list(read_domains(pacs, domains=["photo"])) == ["photo"]


def test_a_sample_is_read_alone_and_keeps_its_ids(pacs: Path) -> None:
    (pacs / "art/cat/1.png").write_bytes(b"broken")
    drawn = [read_drawn(pacs, seed) for seed in range(6)]
    whole = [None, 0, 10, 30]
    for images in (found for found in drawn if found is not None):
        assert values(images) == [whole[number] for number in images.ids]
    assert any(images is None for images in drawn)
    assert any(images is not None for images in drawn)


def read_drawn(root: Path, seed: int) -> ImageSet | None:
    """Two of the four images; None if the broken one is among them."""
    try:
        return read_domains(root, domains=["art"], options=ReadOptions(n=2, seed=seed))["art"]
    except FileFormatError:
        return None


def test_classes_of_a_model_set_the_labels_or_are_refused(pacs: Path) -> None:
    images = read_image_folder(pacs / "photo", classes=["owl", "dog"])
    assert images.labels is not None
    assert images.labels.tolist() == [0]
    assert images.classes == ("owl", "dog")
    with pytest.raises(InputError, match=r"class folders \['cat'\] outside the classes"):
        read_image_folder(pacs / "art", classes=["owl", "dog"])


@pytest.mark.parametrize("content", [b"", b"no image", encoded(9)[:40]])
def test_broken_images_are_named_or_skipped_and_counted(pacs: Path, content: bytes) -> None:
    (pacs / "art/dog/1.png").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"dog/1\.png cannot be decoded"):
        read_image_folder(pacs / "art")
    kept = read_image_folder(pacs / "art", options=ReadOptions(skip_bad=True))
    assert kept.skipped == ("dog/1.png",)
    assert kept.ids.tolist() == [0, 2, 3]
    assert values(kept) == [20, 10, 30]
    assert kept.labels is not None
    assert kept.labels.tolist() == [0, 1, 2]
    assert kept.task().config["skipped"] == 1


def test_a_truncated_jpeg_is_broken(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    (tmp_path / "x").mkdir()
    Image.fromarray(noise).save(tmp_path / "x/1.jpg")
    whole = (tmp_path / "x/1.jpg").read_bytes()
    (tmp_path / "x/1.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match="truncated"):
        read_image_folder(tmp_path)
    with pytest.raises(InputError, match="none of the 1 images"):
        read_image_folder(tmp_path, options=ReadOptions(skip_bad=True))


def test_a_tiff_whose_offset_is_a_fraction_is_broken(pacs: Path) -> None:
    """Its first strip is said to lie at a floating-point place, at which Pillow's reader trips."""
    file = io.BytesIO()
    Image.new("RGB", (6, 4), (9, 9, 9)).save(file, "TIFF")
    content = bytearray(file.getvalue())
    entry = content.index(struct.pack("<HH", 273, 4))  # StripOffsets, a long number
    content[entry + 2 : entry + 4] = struct.pack("<H", 11)  # a float
    (pacs / "art" / "dog" / "8.tiff").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"dog/8\.tiff cannot be decoded"):
        read_image_folder(pacs / "art")


def test_more_than_8_bits_are_refused_rather_than_cut_off(pacs: Path) -> None:
    deep = np.linspace(0, 65535, 24).astype(np.uint16).reshape(4, 6)
    Image.fromarray(deep).save(pacs / "art" / "dog" / "9.png")
    with pytest.raises(FileFormatError, match=r"dog/9\.png cannot be decoded .*more than 8 bits; scale it"):
        read_image_folder(pacs / "art")
    assert read_image_folder(pacs / "art", options=ReadOptions(skip_bad=True)).skipped == ("dog/9.png",)
    with pytest.raises(InputError, match="mode F, with more than 8 bits"):
        EvalTransform().pixels(Image.fromarray(np.ones((4, 6), dtype=np.float32)))


def test_an_image_that_does_not_fit_the_transform_is_named(pacs: Path) -> None:
    options = ReadOptions(transform=EvalTransform(resize=None, crop=(5, 5)))
    with pytest.raises(InputError, match=r"\.png: an image of 4 x 6 is smaller than the crop"):
        read_image_folder(pacs / "art", options=options)


def test_skipped_files_are_counted_in_the_record(pacs: Path) -> None:
    (pacs / "art" / "dog" / "7.png").write_bytes(b"")
    images = read_image_folder(pacs / "art", options=ReadOptions(skip_bad=True))
    assert images.skipped == ("dog/7.png",)
    assert images.task().config["skipped"] == 1
    assert images.subset([0]).skipped == ("dog/7.png",)


def test_images_of_different_sizes_need_a_transform(pacs: Path) -> None:
    save(pacs / "art/owl/9.png", 5, size=(9, 9))
    with pytest.raises(ShapeError, match=r"owl/9\.png is 9 x 9, but dog/1\.png is 4 x 6"):
        read_image_folder(pacs / "art")
    transform = EvalTransform(resize=4, crop=(4, 4), resample="bicubic")
    images = read_image_folder(pacs / "art", options=ReadOptions(transform=transform))
    assert images.pixels.shape == (5, 4, 4, 3)
    assert images.config["geometry"] == {"resize": 4, "crop": [4, 4], "resample": "bicubic"}


def test_empty_and_absent_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="nowhere is not a folder"):
        read_domains(tmp_path / "nowhere")
    with pytest.raises(InputError, match="has no folder"):
        read_domains(tmp_path)
    (tmp_path / "art").mkdir()
    with pytest.raises(InputError, match="has no class folder"):
        read_domains(tmp_path)
    (tmp_path / "art/dog").mkdir()
    with pytest.raises(InputError, match="domain 'art' has no image"):
        read_domains(tmp_path)
    with pytest.raises(UnknownNameError, match="did you mean 'art'"):
        read_domains(tmp_path, domains=["arts"])


def test_the_layout_of_imagenet_c(tmp_path: Path) -> None:
    for severity in (1, 5):
        save(tmp_path / f"fog/{severity}/n01/a.JPEG", severity)
        save(tmp_path / f"snow/{severity}/n02/a.JPEG", 10 * severity)
    domains = read_imagenet_c(tmp_path, severities=(1, 5), classes=["n01", "n02"])
    assert list(domains) == ["fog/1", "fog/5", "snow/1", "snow/5"]
    assert values(domains["snow/5"]) == [50]
    assert domains["snow/5"].labels is not None
    assert domains["snow/5"].labels.tolist() == [1]
    assert list(read_imagenet_c(tmp_path, corruptions=["fog"], severities=(5,))) == ["fog/5"]
    # without a list, labels still mean the same where a domain lacks a class
    unnamed = read_imagenet_c(tmp_path, severities=(1, 5))["snow/5"]
    assert unnamed.classes == ("n01", "n02")
    assert unnamed.labels is not None
    assert unnamed.labels.tolist() == [1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty has no folders; expected empty/CORRUPTION/SEVERITY"):
        read_imagenet_c(tmp_path / "empty")
    (tmp_path / "empty").rmdir()
    with pytest.raises(UnknownNameError, match="corruption of"):
        read_imagenet_c(tmp_path, corruptions=["frost"])
    with pytest.raises(FileFormatError, match="2 is not a folder"):
        read_imagenet_c(tmp_path, severities=(2,))


# -------------------------------------------------------------------------------------------------- tables


@pytest.fixture
def camelyon(tmp_path: Path) -> Path:
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    rows = [("004", 4, 1, 9, 1, 0, 0, 0), ("004", 4, 2, 9, 0, 0, 0, 1), ("020", 2, 3, 9, 1, 20, 1, 0)]
    rows.append(("041", 1, 4, 9, 0, 30, 2, 0))
    for number, row in enumerate(rows):
        lines.append(",".join(map(str, (number, *row))))
        patient, node, x, y = row[:4]
        folder = f"patches/patient_{patient}_node_{node}"
        save(tmp_path / f"{folder}/patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png", 10 * x)
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    return tmp_path


def test_camelyon17_as_wilds_has_it(camelyon: Path) -> None:
    images = read_table(camelyon, "camelyon17")
    assert images.classes == ("normal", "tumor")
    assert images.labels is not None
    assert images.labels.tolist() == [1, 0, 1, 0]
    assert images.fields["wilds_split"] == ["train", "id_val", "val", "test"]
    assert images.fields["patient"] == ["004", "004", "020", "041"]
    hospitals = images.by_field("center")
    assert {name: values(part) for name, part in hospitals.items()} == {"0": [10, 20], "1": [30], "2": [40]}
    second = read_table(camelyon, "camelyon17", where={"center": ["1", "2"], "tumor": "0"})
    assert (second.ids.tolist(), second.domain) == ([3], "center=1,2+tumor=0")


def test_fmow_as_wilds_has_it(tmp_path: Path) -> None:
    rows = [
        ("train", "zoo", "FRA", "2009-05-01T00:00:00Z"),
        ("seq", "zoo", "FRA", "2009-05-01T00:00:00Z"),
        ("val", "airport", "KEN", "2012-12-31T23:00:00Z"),
        ("val", "airport", "KEN", "2013-01-01T00:00:00Z"),
        ("test", "airport", "XXX", "2016-01-01T00:00:00Z"),
        ("train", "airport", "KEN", "2016-01-01T00:00:00Z"),
    ]
    table = ["split,category,country_code,timestamp", *(",".join(row) for row in rows)]
    (tmp_path / "rgb_metadata.csv").write_text("\n".join(table))
    (tmp_path / "country_code_mapping.csv").write_text("alpha-3,region\nFRA,Europe\nKEN,Africa\n")
    for number in (0, 2, 3, 4, 5):
        save(tmp_path / f"images/rgb_img_{number}.png", number)
    images = read_table(tmp_path, "fmow")
    assert images.classes == ("airport", "zoo")
    assert values(images) == images.ids.tolist() == [0, 2, 3, 4, 5]
    assert images.fields["wilds_split"] == ["train", "id_val", "val", "test", ""]
    assert images.fields["region"] == ["Europe", "Africa", "Africa", "Other", "Africa"]


def test_fmow_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    table = tmp_path / "rgb_metadata.csv"
    table.write_text("split,category,country_code,timestamp\ntrain,zoo,FRA,n/a\n")
    (tmp_path / "country_code_mapping.csv").write_text("alpha-3,region\nFRA,Europe\n")
    with pytest.raises(FileFormatError, match=r"metadata\.csv is not a table of this layout \(ValueError"):
        read_table(tmp_path, "fmow")
    table.write_text("split,category,country_code,timestamp\ntrain,zoo,FRA\n")
    with pytest.raises(FileFormatError, match="row 0 and the header differ"):
        read_table(tmp_path, "fmow")
    table.write_text("split,category,country_code\ntrain,zoo,FRA\n")
    with pytest.raises(UnknownNameError, match="timestamp"):
        read_table(tmp_path, "fmow")


def test_tables_that_do_not_fit_are_named(camelyon: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'camelyon17'"):
        read_table(camelyon, "camelyon")
    with pytest.raises(UnknownNameError, match="did you mean 'center'"):
        read_table(camelyon, "camelyon17", where={"centre": "1"})
    with pytest.raises(InputError, match="has center=9"):
        read_table(camelyon, "camelyon17", where={"center": "9"})
    layout = TableLayout(path="{x_coord}.png", label="center", classes=("0", "1"))
    with pytest.raises(InputError, match=r"holds \['2'\]"):
        read_table(camelyon, layout)
    with pytest.raises(FileFormatError, match=r"1\.png cannot be decoded"):
        read_table(camelyon, layout, where={"center": "0"})
    with pytest.raises(FileFormatError, match=r"cannot read the table .*none\.csv"):
        read_table(camelyon, TableLayout(table="none.csv", path="", label=""))
    (camelyon / "metadata.csv").write_text("a,b\n1\n")
    with pytest.raises(FileFormatError, match="row 0 and the header differ in the number of columns"):
        read_table(camelyon, TableLayout(path="{a}", label="b"))


# ------------------------------------------------------------------------------------------------ archives


def test_pacs_at_64_is_read_to_the_pixel(shared: Callable[[str], Path]) -> None:
    folder = shared("data/pacs64")
    images = read_npz(folder / "photo.npz")
    facts = json.loads((folder / "manifest.json").read_text())
    assert hashlib.sha256(images.pixels.tobytes()).hexdigest() == facts["domains"]["photo"]["sha256_pixels"]
    assert images.labels is not None
    assert np.bincount(images.labels).tolist() == facts["domains"]["photo"]["class_counts"]
    assert list(images.classes or ()) == facts["classes"]
    assert str(images.fields["paths"][0]).startswith("photo/dog/")
    parts = images.parts(3)
    assert sum(part.n for part in parts) == images.n


def test_a_sample_of_pacs_is_decoded_alone(shared: Callable[[str], Path]) -> None:
    path = shared("data/pacs64/sketch.npz")
    transform = EvalTransform(resize=(32, 32), resample="bicubic")
    images = read_npz(path, options=ReadOptions(transform=transform, n=20, seed=1))
    assert images.pixels.shape == (20, 32, 32, 3)
    assert len(set(images.ids.tolist())) == 20
    assert images.task(transform).images.abs().max() <= 1


def test_plain_archives(tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(
        tmp_path / "a.npz", images=pixels, labels=np.array([1, 0]), site=np.array(["x", "y"]), k=np.eye(3)
    )
    images = read_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(images.pixels, pixels)
    assert images.fields == {"site": ["x", "y"]}
    assert images.domain == "a"
    np.savez(tmp_path / "grey.npz", images=pixels[..., 0])
    assert (
        read_npz(tmp_path / "grey.npz", domain="g").pixels[1, 2, 3].tolist() == [int(pixels[1, 2, 3, 0])] * 3
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": np.zeros(3)}, r"holds \['pictures'\]; expected images, or blob and offsets"),
        ({"images": np.zeros((2, 4, 4, 3))}, "images of .* are float64"),
        ({"images": np.zeros((2, 4, 4, 3), np.uint8), "labels": np.zeros(2)}, "expected 2 integers"),
        ({"blob": np.zeros(9, np.uint8), "offsets": np.array([0, 5, 12])}, "do not cut its blob of 9 bytes"),
        ({"blob": np.zeros(9, np.uint8), "offsets": np.array([0.0, 9.0])}, "do not cut its blob of 9 bytes"),
        ({"blob": np.zeros(9, np.uint8), "offsets": np.array([0, 9])}, "image 0 cannot be decoded"),
        (
            {"images": np.zeros((2, 4, 4, 3), np.uint8), "class_names": np.array("cat")},
            r"class_names of .* have shape \(\); expected a list",
        ),
    ],
)
def test_archives_that_hold_something_else(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(FileFormatError, match=message):
        read_npz(tmp_path / "a.npz")


def test_an_archive_without_images_is_an_empty_domain(tmp_path: Path) -> None:
    np.savez(tmp_path / "none.npz", images=np.zeros((0, 4, 4, 3), np.uint8))
    with pytest.raises(InputError, match="domain 'none' has no image"):
        read_npz(tmp_path / "none.npz")


def test_pickles_and_broken_archives_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UnsafeFileError, match="pickled"):
        read_npz(tmp_path / "p.npz")
    whole = (tmp_path / "p.npz").read_bytes()
    (tmp_path / "t.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("t.npz", "absent.npz"):
        with pytest.raises(FileFormatError, match=name):
            read_npz(tmp_path / name)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An import of either then fails as if it were missing, whatever another test has imported before.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"needs pyarrow; run: pip install 'circuit-assay\[vision\]'"):
        read_parquet(tmp_path / "a.parquet")


def test_parquet_as_datasets_writes_it(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    cells = [{"bytes": encoded(7), "path": "a.png"}, {"bytes": encoded(8), "path": "b.png"}]
    table = arrow.table({"image": cells, "label": [1, 0], "site": ["x", "y"]})
    described = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    parquet.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps(described)}), tmp_path / "a.parquet"
    )
    images = read_parquet(tmp_path / "a.parquet")
    assert values(images) == [7, 8]
    assert images.labels is not None
    assert images.labels.tolist() == [1, 0]
    assert images.classes == ("cat", "dog")
    assert images.fields == {"site": ["x", "y"]}
    parquet.write_table(arrow.table({"label": [1]}), tmp_path / "b.parquet")
    with pytest.raises(FileFormatError, match=r"holds \['label'\]; expected a column image"):
        read_parquet(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(FileFormatError, match="cannot read .* as parquet"):
        read_parquet(tmp_path / "c.parquet")
