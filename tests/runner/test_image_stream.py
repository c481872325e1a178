"""Batches from folders and drawn shapes: which images, in which order, and what is passed over."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from assay.core.errors import FileFormatError, UnknownNameError
from assay.pipeline.image_stream import FIRST_WATCHED, PATIENCE, SETTLED, batches
from assay.tasks import EvalTransform, ImageTask, draw_shapes


TRANSFORM = EvalTransform(resize=(32, 32))
BROKEN = b"\x89PNG broken"


def read(folder: Path | str, size: int = 3, **more: Any) -> Iterator[ImageTask]:
    return batches(str(folder), transform=TRANSFORM, size=size, **more)


def write(folder: Path, name: str, *, grey: int = 50, age: float = 100.0, content: bytes = b"") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 36, 3), grey, dtype=np.uint8)).save(path)
    path.write_bytes(content or path.read_bytes())
    changed = time.time() - age
    os.utime(path, (changed, changed))
    return path


def names(batch: ImageTask) -> list[str]:
    return [Path(name).name for name in batch.fields["path"]]


def test_files_come_in_order_of_time_and_the_rest_waits(tmp_path: Path) -> None:
    files = enumerate(("c.png", "a.png", "b.jpg", "d.png"))
    paths = [write(tmp_path, name, grey=40 * place, age=50 - place) for place, name in files]
    (tmp_path / "notes.txt").write_text("no image")
    write(tmp_path, ".hidden.png")
    heard: list[str] = []
    (batch,) = read(tmp_path, tell=heard.append)
    assert batch.fields["path"] == [*map(str, paths[:3])]
    assert batch.pixels.shape == (3, 32, 32, 3)
    assert [int(image.mean().round()) for image in batch.pixels] == [0, 40, 80]
    waiting = "1 of 3 images for the next batch; run again when there are more"
    assert heard == [f"1 file of {tmp_path.name} was left out by its ending: 1 .txt", waiting]
    write(tmp_path, "cat/e.png")
    done = [*map(str, paths[:2])]
    assert [names(each) for each in read(tmp_path, 2, done=done, tell=heard.append)] == [["e.png", "b.jpg"]]
    assert "are classes" in heard[3]


def test_files_that_cannot_be_read_are_passed_over_and_named_once(tmp_path: Path) -> None:
    for place in range(7):
        write(tmp_path, f"{place}.png", age=50 - place, content=BROKEN if place in (1, 2, 3, 4) else b"")
    skipped: list[str] = []
    (batch,) = read(tmp_path, skip=skipped.append)
    assert names(batch) == ["0.png", "5.png", "6.png"]
    assert [Path(name).name for name in skipped] == ["1.png", "2.png", "3.png", "4.png"]
    again: list[str] = []
    assert [*read(tmp_path, 7, skip=again.append, done=skipped)] == []
    assert again == []
    # One image that is smaller than the crop of the model takes no other with it.
    small = write(tmp_path, "small.png", age=60)
    Image.new("RGB", (8, 8)).save(small)
    os.utime(small, (0, 0))
    cropped = EvalTransform(resize=None, crop=(36, 36))
    (batch,) = batches(str(tmp_path), transform=cropped, size=3, skip=again.append, done=skipped)
    assert (names(batch), again) == (["0.png", "5.png", "6.png"], [str(small)])


class Hours:
    """A clock that waiting turns; `do` is what happens meanwhile, one call per wait; then it ends."""

    def __init__(self, *do: Callable[[], object], idle: float = 0.0) -> None:
        self.now, self.do, self.idle = 0.0, list(do), idle
        self.waits: list[float] = []
        self.messages: list[str] = []
        self.skipped: list[tuple[float, str]] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        if self.do:
            self.do.pop(0)()
            return False
        self.idle -= seconds
        return self.idle <= 0

    def follow(self, folder: Path, size: int = 2, **more: Any) -> Iterator[ImageTask]:
        def skip(name: str) -> None:
            self.skipped.append((self.now, Path(name).name))

        heard = {"tell": self.messages.append, "skip": skip}
        return read(folder, size, follow=True, wait=self.wait, clock=lambda: self.now, **heard, **more)


def nothing() -> None:
    """Happens while waiting."""


@pytest.mark.parametrize("age", [0.0, -86400.0, 86400.0], ids=["now", "future", "past"])
def test_a_file_counts_once_it_is_whole_whatever_its_clock_says(tmp_path: Path, age: float) -> None:
    write(tmp_path, "0.png")
    whole = write(tmp_path, "1.png").read_bytes()
    write(tmp_path, "1.png", age=age, content=whole[:20])
    stamp = (tmp_path / "1.png").stat().st_mtime

    def put(part: bytes) -> None:
        (tmp_path / "1.png").write_bytes(part)
        if age:
            os.utime(tmp_path / "1.png", (stamp, stamp))

    hours = Hours(lambda: put(whole[:40]), lambda: put(whole[:60]), lambda: put(whole), idle=8.0)
    (batch,) = hours.follow(tmp_path)
    assert sorted(names(batch)) == ["0.png", "1.png"]
    assert hours.skipped == []
    if age <= 0:
        assert len(hours.waits) >= 3 + SETTLED


def test_a_file_that_stays_broken_is_given_up_in_the_end(tmp_path: Path) -> None:
    for name in ("0.png", "2.png"):
        write(tmp_path, name)
    write(tmp_path, "1.png", content=BROKEN)
    # Three that can be read are a batch at once; the broken one is named when it is given up.
    hours = Hours(*[nothing] * 10, lambda: write(tmp_path, "3.png"), idle=3 * PATIENCE)
    (batch,) = hours.follow(tmp_path, 3)
    assert names(batch) == ["0.png", "2.png", "3.png"]
    ((moment, name),) = hours.skipped
    assert (name, moment >= PATIENCE) == ("1.png", True)


def test_a_folder_that_is_taken_away_is_waited_for_and_a_name_counts_once(tmp_path: Path) -> None:
    folder, away = tmp_path / "in", tmp_path / "away"
    for place in range(3):
        write(folder, f"{place}.png", age=50 - place)
    hours = Hours(
        lambda: folder.rename(away),
        nothing,
        nothing,
        lambda: away.rename(folder),
        lambda: [write(folder, f"{place}.png") for place in (0, 3)],
        idle=5.0,
    )
    stream = [names(each) for each in hours.follow(folder)]
    assert stream == [["0.png", "1.png"], ["2.png", "3.png"]]
    gone, back = hours.messages  # once each, however long it is away
    assert "waiting until it is back" in gone
    assert back.endswith("is back")


def test_drawn_shapes_are_numbered(tmp_path: Path) -> None:
    first, second = read("shapes:neon", 4, n=10)
    starts = [each.fields["path"][0] for each in (first, second)]
    assert starts == [f"shapes:neon/{FIRST_WATCHED + place}" for place in (0, 4)]
    expected = draw_shapes("neon", 4, start=FIRST_WATCHED + 4)
    np.testing.assert_array_equal(second.pixels, expected.pixels)
    rest = list(read("shapes:neon", 4, n=10, done=first.fields["path"]))
    assert [each.fields["path"] for each in rest] == [second.fields["path"]]
    with pytest.raises(UnknownNameError, match="neon"):
        list(read("shapes:neom", n=3))
    with pytest.raises(FileFormatError, match="not a folder"):
        list(read(tmp_path / "none"))


def test_images_that_wait_too_long_for_a_full_batch_are_a_smaller_one(tmp_path: Path) -> None:
    for place in range(5):
        write(tmp_path, f"{place}.png", age=50 - place)
    hours = Hours(*[nothing] * 60, idle=1.0)
    found = [(hours.now, names(each)) for each in hours.follow(tmp_path, 3, flush_after=45.0)]
    assert found == [(0.0, ["0.png", "1.png", "2.png"]), (45.0, ["3.png", "4.png"])]
    hours = Hours(*[nothing] * 60, idle=1.0)
    assert len(list(hours.follow(tmp_path, 4, flush_after=45.0))) == 1  # one image is no batch


def test_a_file_that_may_still_be_written_is_left_for_the_next_run(tmp_path: Path) -> None:
    write(tmp_path, "0.png")
    whole = write(tmp_path, "1.png").read_bytes()
    write(tmp_path, "1.png", age=5.0, content=whole[:40])
    heard: list[str] = []
    assert [*read(tmp_path, 2, skip=heard.append, tell=heard.append)] == []
    assert heard[0] == f"{tmp_path / '1.png'} cannot be decoded yet; run again"
    write(tmp_path, "1.png", age=1.0)
    assert len([*read(tmp_path, 2)]) == 1
