"""Streams of images: equal to the same images in memory, whatever the source, the workers and the batch."""

import gc
import io
import itertools
import os
import shutil
import signal
import tarfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from assay.core.errors import FileFormatError, InputError, ShapeError, WorkerError
from assay.discovery.edges import discover, output_scores
from assay.execution import run_model
from assay.tasks import (
    EvalTransform,
    ImageListing,
    ImageStream,
    ImageTask,
    ReadOptions,
    draw_shapes,
    list_dataset,
    list_files,
    list_image_folder,
    list_imagenet_c,
    list_npz,
    list_parquet,
    list_shards,
    list_table,
    list_tar,
    load_images,
    stream_images,
)
from assay.tasks.image_decoding import Arrays, Decoding, usual_workers
from assay.tasks.image_tables import TableLayout
from assay.tasks.seen import example_codes
from assay.zoo import Zoo


DRAWN = draw_shapes("flat", 70)
CLASSES = DRAWN.classes
assert CLASSES is not None
assert DRAWN.labels is not None
TRANSFORM = EvalTransform(resize=(32, 32))


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


FILES = [png(pixels) for pixels in DRAWN.pixels]
LABELS = DRAWN.labels.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images") / "flat"
    for number, (content, label) in enumerate(zip(FILES, LABELS, strict=True)):
        path = root / CLASSES[label] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_tar(path: Path, first: int, last: int) -> Path:
    with tarfile.open(path, "w") as archive:
        for number in range(first, last):
            add(archive, f"./{number:02}.png", FILES[number])
            add(archive, f"./{number:02}.cls", str(LABELS[number]).encode())
            add(archive, f"./{number:02}.json", b'{"number": %d, "more": {}}' % number)
    return path


class Items(Dataset[Any]):
    def __len__(self) -> int:
        return DRAWN.n

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        return Image.fromarray(DRAWN.pixels[row]), LABELS[row]


class Passing(IterableDataset[Any]):
    """A stream of rows; may end earlier the second time."""

    def __init__(self, second: int = DRAWN.n) -> None:
        self.lengths = [DRAWN.n, second]

    def __iter__(self) -> Iterator[Any]:
        n = self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]
        return (Items()[row] for row in range(n))


def npz(folder: Path) -> ImageListing:
    np.savez_compressed(folder / "a.npz", images=DRAWN.pixels, labels=DRAWN.labels)
    return list_npz(folder / "a.npz")


def stored_npz(folder: Path) -> ImageListing:
    blob = np.frombuffer(b"".join(FILES), np.uint8)
    offsets = np.cumsum([0, *map(len, FILES)])
    np.savez(folder / "b.npz", blob=blob, offsets=offsets, labels=DRAWN.labels)
    return list_npz(folder / "b.npz")


def parquet(folder: Path) -> ImageListing:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"image": [{"bytes": file, "path": None} for file in FILES], "label": LABELS})
    pytest.importorskip("pyarrow.parquet").write_table(table, folder / "c.parquet", row_group_size=32)
    return list_parquet(folder / "c.parquet")


def tar(folder: Path) -> ImageListing:
    return list_tar(write_tar(folder / "d.tar", 0, DRAWN.n))


def shards(folder: Path) -> ImageListing:
    ends = [0, 40, 60, DRAWN.n]
    paths = [write_tar(folder / f"{a:02}.tar", a, b) for a, b in itertools.pairwise(ends)]
    return list_shards(paths, domain="d")


def items(folder: Path) -> ImageListing:
    return list_dataset(Items())


def passing(folder: Path) -> ImageListing:
    return list_dataset(Passing())


def table(folder: Path) -> ImageListing:
    rows = ["number,label"]
    for number, (content, label) in enumerate(zip(FILES, LABELS, strict=True)):
        (folder / f"{number}.png").write_bytes(content)
        rows.append(f"{number},{label}")
    (folder / "metadata.csv").write_text("\n".join(rows))
    return list_table(folder, TableLayout(path="{number}.png", label="label"))


SOURCES = [npz, stored_npz, parquet, tar, shards, items, passing, table]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_any_source_is_the_same_images(
    source: Callable[[Path], ImageListing], workers: int, tmp_path: Path
) -> None:
    stream = source(tmp_path).stream(ReadOptions(transform=TRANSFORM, workers=workers))
    expected = DRAWN.task(TRANSFORM)
    for size in (9, 70):
        batches = list(stream.batches(size))
        assert torch.equal(torch.cat([batch.images for batch in batches]), expected.images)
        assert torch.cat([batch.labels for batch in batches]).tolist() == LABELS  # type: ignore[misc]
    assert example_codes(stream, paired=False).tolist() == example_codes(expected, paired=False).tolist()
    some = stream.subset([65, 3, 3, 40])  # back and forth, over the borders of shards
    assert example_codes(some, paired=False).tolist() == [0, 1, 1, 2]
    assert torch.equal(some.loaded().images, expected.images[[65, 3, 3, 40]])
    assert some.ids.tolist() == [65, 3, 3, 40]


def test_the_array_reader_and_the_stream_agree_on_what_they_know(folder: Path) -> None:
    options = ReadOptions(transform=TRANSFORM, n=20, seed=3)
    listing = list_image_folder(folder, classes=CLASSES)
    task, stream = listing.read(options).task(TRANSFORM), listing.stream(options)
    assert torch.equal(stream.loaded().images, task.images)
    for name in ("n", "domain", "fields", "classes", "name", "config", "image_size"):
        assert getattr(stream, name) == getattr(task, name), name
    assert torch.equal(stream.ids, task.ids)
    assert stream.describe().keys() == task.describe().keys()


@pytest.fixture(scope="module")
def model() -> Any:
    zoo = Zoo.embedded()
    return zoo.load(zoo.keys[0])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_engine_finds_the_same_in_a_stream(model: Any, folder: Path, workers: int) -> None:
    task = load_images(folder, model, n=24, seed=1)
    stream = stream_images(folder, model, ReadOptions(n=24, seed=1, workers=workers))
    for method in ("eap", "eap-ig-inputs"):
        chosen = {"objective": "pseudo_margin", "batch_size": 7}
        found = discover(model, stream, method, **chosen)
        assert torch.equal(found.values, discover(model, task, method, **chosen).values)
    assert torch.equal(output_scores(model, stream).values, output_scores(model, task).values)
    logits = run_model(model, stream)
    assert torch.equal(logits, run_model(model, task))
    foiled = discover(model, stream.with_runner_up(logits), "eap", objective="logit_diff")
    same = discover(model, task.with_runner_up(logits), "eap", objective="logit_diff")
    assert torch.equal(foiled.values, same.values)


def test_one_decoding_serves_every_normalisation() -> None:
    counted = Counted(DRAWN.pixels)
    stream = ImageStream(pictures=counted, transform=TRANSFORM)
    other = EvalTransform(resize=(32, 32), mean=(0.2, 0.3, 0.4), std=(1.0, 0.5, 2.0))
    tasks = [stream.bound(17), stream.with_transform(other).bound(5), stream.bound(17)]
    for some in stream.decoded(32):
        batches = [task.normalised(some) for task in tasks]
        assert batches[0].images is batches[2].images  # one normalisation is computed once
        rows = some.indices.tolist()
        for batch, transform in zip(batches, (TRANSFORM, other), strict=False):
            assert torch.equal(batch.images, transform.normalised(DRAWN.pixels[rows]))
        assert batches[1].lengths.tolist() == [5] * len(rows)
    assert counted.asked == DRAWN.n


class Counted(Arrays):
    """Counts what is asked for."""

    def __init__(self, pixels: np.ndarray) -> None:
        super().__init__("drawn", pixels)
        self.asked = 0

    def content(self, row: int) -> Any:
        self.asked += 1
        return super().content(row)


@pytest.mark.slow
def test_nothing_is_held_but_a_batch() -> None:
    stream = ImageStream(pictures=Arrays("drawn", DRAWN.pixels), transform=TRANSFORM)
    earlier: list[weakref.ref[torch.Tensor]] = []
    for batch in stream.batches(5):
        gc.collect()
        assert [each() for each in earlier] == [None] * len(earlier)
        earlier.append(weakref.ref(batch.images))


def test_an_order_is_random_by_its_seed_and_begins_with_a_sample() -> None:
    stream = ImageStream(pictures=Arrays("drawn", DRAWN.pixels), transform=TRANSFORM)
    ids = stream.shuffled(1).ids
    assert sorted(ids.tolist()) == list(range(DRAWN.n))
    assert ids.tolist() != stream.shuffled(2).ids.tolist()
    assert torch.equal(stream.shuffled(1).first(10).ids, ids[:10])


def test_the_same_pictures_have_one_hash_however_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing, options = list_image_folder(folder, classes=CLASSES), ReadOptions(transform=TRANSFORM)
    stream, images = listing.stream(options), listing.read(options)
    expected = images.task(TRANSFORM).data_hash
    alike = (
        stream,
        stream.held(),
        stream.loaded(),
        images.stream(TRANSFORM),
        listing.stream(options).shuffled(0),
    )
    assert [each.data_hash == expected for each in alike] == [True, True, True, True, False]
    part = stream.subset([5, 2])
    assert part.data_hash == images.subset([5, 2]).task(TRANSFORM).data_hash
    another = listing.stream(options)
    for _ in another.batches(7):
        pass
    monkeypatch.setattr(Decoding, "pieces", lambda *_: pytest.fail("pictures were read again"))
    assert another.data_hash == expected


def test_a_picture_that_changed_and_kept_its_size_is_another(folder: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(folder, tmp_path / "flat"))
    hashes = []
    for _ in range(2):
        hashes.append(
            list_image_folder(copied, classes=CLASSES).stream(ReadOptions(transform=TRANSFORM)).data_hash
        )
        by_size = sorted(copied.rglob("*.png"), key=lambda path: path.stat().st_size)
        by_size[-1].write_bytes(by_size[0].read_bytes().ljust(by_size[-1].stat().st_size, b"\0"))
    assert hashes[0] != hashes[1]


def test_the_identity_of_a_stream_knows_files_order_labels_and_transform(folder: Path) -> None:
    listing = list_image_folder(folder, classes=CLASSES)
    stream = listing.stream(ReadOptions(transform=TRANSFORM))
    assert stream.data_hash == listing.stream(ReadOptions(transform=TRANSFORM, workers=2)).data_hash
    assert stream.source_hash == listing.stream(ReadOptions(transform=TRANSFORM, workers=2)).source_hash
    others = [
        stream.subset(range(69)),
        stream.shuffled(0),
        stream.with_transform(EvalTransform(resize=(32, 32), mean=(0.1, 0.1, 0.1))),
        list_image_folder(folder, classes=CLASSES[::-1]).stream(ReadOptions(transform=TRANSFORM)),
    ]
    assert len({stream.data_hash, *(other.data_hash for other in others)}) == 5
    assert len({stream.source_hash, *(other.source_hash for other in others)}) == 5


def test_severities_of_imagenet_c_are_domains(tmp_path: Path) -> None:
    for place in ("fog/1/cat", "fog/3/dog"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "0.png").write_bytes(FILES[0])
    found = list_imagenet_c(tmp_path, severities=(1, 3))
    streams = {name: listing.stream(ReadOptions(transform=TRANSFORM)) for name, listing in found.items()}
    assert {name: stream.labels.tolist() for name, stream in streams.items()} == {"fog/1": [0], "fog/3": [1]}  # type: ignore[union-attr]


# ---- bad input ------------------------------------------------------------------------------------


def hostile(folder: Path) -> dict[str, bytes]:
    """Files that are no images that can be used, by name."""
    long = io.BytesIO()
    Image.new("RGB", (60_000, 1)).save(long, format="PNG")  # 3.8 million wide with a shorter side of 64
    deep = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep, format="PNG")
    bomb = bytearray(FILES[0])
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2  # declares 3.6 billion pixels
    return {
        "cut": FILES[0][: len(FILES[0]) // 2],
        "empty": b"",
        "text": b"<html>",
        "bomb": bytes(bomb),
        "long": long.getvalue(),
        "deep": deep.getvalue(),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_hostile_images_are_named_or_skipped_and_shift_nothing(tmp_path: Path, workers: int) -> None:
    shorter = EvalTransform(resize=64, crop=(32, 32))
    for number in range(6):
        (tmp_path / f"{number}.png").write_bytes(FILES[number])
    bad = [f"{number}-{name}.png" for number, name in enumerate(hostile(tmp_path))]
    for name, content in zip(bad, hostile(tmp_path).values(), strict=True):
        (tmp_path / name).write_bytes(content)
    paths = sorted(tmp_path.iterdir())
    listing = list_files(paths)
    stream = listing.stream(ReadOptions(transform=shorter, skip_bad=True, workers=workers))
    assert [Path(name).name for name in stream.skipped] == bad
    assert stream.config["skipped"] == 6
    assert [paths[number].name for number in stream.ids.tolist()] == [f"{number}.png" for number in range(6)]
    good = list_files([paths[number] for number in stream.ids.tolist()])
    assert torch.equal(stream.loaded().images, good.read(ReadOptions(transform=shorter)).task(shorter).images)
    strict = listing.stream(ReadOptions(transform=shorter, workers=workers))
    with pytest.raises(FileFormatError, match=r"0-cut\.png cannot be decoded .* skip_bad"):
        list(strict.batches(4))
    with pytest.raises(InputError, match="none of the 1 images of 'x' can be decoded"):
        list_files(paths[:1], domain="x").stream(ReadOptions(skip_bad=True))


def test_what_was_read_before_a_bad_image_is_given(folder: Path, tmp_path: Path) -> None:
    paths = [*sorted(folder.rglob("*.png"))[:5], tmp_path / "gone.png"]
    got = []
    with pytest.raises(FileFormatError, match=r"gone\.png cannot be decoded"):
        got += list(list_files(paths).stream(ReadOptions(transform=TRANSFORM)).batches(2))
    batches = list_files(paths).stream(ReadOptions(transform=TRANSFORM)).batches(2)
    assert [next(batches).indices.tolist(), next(batches).indices.tolist()] == [[0, 1], [2, 3]]


def test_images_of_different_sizes_are_named_across_pieces() -> None:
    class Growing(Arrays):
        def content(self, row: int) -> Any:
            return np.zeros((8 if row < 40 else 9, 8, 3), np.uint8)

    stream = ImageStream(pictures=Growing("x", DRAWN.pixels), transform=EvalTransform(resize=None))
    with pytest.raises(ShapeError, match="x, image 40 is 9 x 8, but x, image .* is 8 x 8"):
        list(stream.batches(20))


class Dying(Arrays):
    """Ends the worker that asks for a late image, as a kernel out of memory does."""

    def content(self, row: int) -> Any:
        if row == 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().content(row)


def test_a_worker_that_dies_says_what_to_do() -> None:
    stream = ImageStream(pictures=Dying("x", DRAWN.pixels), transform=TRANSFORM, workers=1)
    batches = stream.batches(16)
    assert next(batches).indices.tolist() == list(range(16))
    with pytest.raises(WorkerError, match=r"process that decodes images ended .*\(--workers 0\)"):
        list(batches)


def test_a_stream_that_ends_earlier_than_it_was_counted_is_named() -> None:
    listing = list_dataset(Passing(second=50))
    with pytest.raises(InputError, match="ended after 50 rows, but it had 70 when they were counted"):
        listing.read(ReadOptions(transform=TRANSFORM))


def test_shards_that_do_not_fit_together_are_named(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", 0, 3)
    np.savez(tmp_path / "b.npz", images=DRAWN.pixels[:2])
    with pytest.raises(InputError, match="shards of the kinds .npz, .tar"):
        list_shards([first, tmp_path / "b.npz"], domain="x")
    np.savez(tmp_path / "c.npz", images=DRAWN.pixels[:2], labels=np.array([0, 1]))
    with pytest.raises(InputError, match=r"only one of .*b\.npz and .*c\.npz has labels"):
        list_shards([tmp_path / "b.npz", tmp_path / "c.npz"], domain="x")
    np.savez(tmp_path / "d.npz", images=DRAWN.pixels[:2], class_names=np.array(["a"]))
    with pytest.raises(InputError, match=r"d\.npz has the classes \('a',\), but .*b\.npz None"):
        list_shards([tmp_path / "b.npz", tmp_path / "d.npz"], domain="x")


def test_damaged_tar_shards_are_named(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar", 0, 4).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 4 + 100])
    with pytest.raises(FileFormatError, match=r"cut\.tar"):
        list_tar(tmp_path / "cut.tar").read(ReadOptions(transform=TRANSFORM))
    with tarfile.open(tmp_path / "z.tar", "w:gz") as archive:
        add(archive, "0.png", FILES[0])
    with pytest.raises(FileFormatError, match=r"z\.tar is not a plain tar file.*unpack compressed shards"):
        list_tar(tmp_path / "z.tar")
    with tarfile.open(tmp_path / "word.tar", "w") as archive:
        add(archive, "0.png", FILES[0])
        add(archive, "0.cls", b"cat")
    with pytest.raises(FileFormatError, match=r"0\.cls of .*word\.tar holds b'cat'; expected the number"):
        list_tar(tmp_path / "word.tar")


def test_facts_of_a_tar_shard_are_fields(tmp_path: Path) -> None:
    listing = tar(tmp_path)
    assert listing.fields["number"] == list(range(DRAWN.n))
    assert listing.fields["key"][:2] == ["00", "01"] or listing.fields["key"][0].endswith("00")
    assert "more" not in listing.fields


@pytest.mark.parametrize("workers", [-1, 1.5, True])
def test_workers_are_counted(workers: Any) -> None:
    with pytest.raises((InputError, TypeError), match="workers"):
        ReadOptions(workers=workers)


def test_few_images_start_no_workers() -> None:
    assert usual_workers(10) == 0
    assert 1 <= usual_workers(100_000) <= 8


def test_a_prompt_model_takes_no_stream() -> None:
    assert isinstance(
        ImageStream(pictures=Arrays("x", DRAWN.pixels), transform=TRANSFORM).stand_in(3), ImageTask
    )
