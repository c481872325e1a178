"""Batches from folders and drawn shapes: which images, in which order, and what is passed over."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.pipeline.image_stream import (
    FIRST_WATCHED,
    PATIENCE,
    SETTLED,
    Batch,
    Watch,
    batches,
)
from assay.tasks import EvalTransform, draw_shapes


TRANSFORM = EvalTransform(resize=(32, 32))
BROKEN = b"\x89PNG broken"


def watch(size: int = 3, **more: object) -> Watch:
    return Watch(transform=TRANSFORM, size=size, **more)  # type: ignore[arg-type]


def write(folder: Path, name: str, *, grey: int = 50, age: float = 100.0, content: bytes = b"") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 36, 3), grey, dtype=np.uint8)).save(path)
    path.write_bytes(content or path.read_bytes())
    changed = time.time() - age
    os.utime(path, (changed, changed))
    return path


def names(batch: Batch) -> list[str]:
    return [Path(name).name for name in batch.sources]


def test_files_come_in_order_of_time_or_name_and_the_rest_waits(tmp_path: Path) -> None:
    paths = [
        write(tmp_path, name, grey=40 * place, age=50 - place)
        for place, name in enumerate(("c.png", "a.png", "b.jpg", "d.png"))
    ]
    (tmp_path / "notes.txt").write_text("no image")
    (batch,) = batches(str(tmp_path), watch(3))
    assert batch.sources == tuple(map(str, paths[:3]))
    assert batch.inputs.pixels.shape == (3, 32, 32, 3)
    assert [int(image.mean().round()) for image in batch.inputs.pixels] == [0, 40, 80]
    by_name = batches(str(tmp_path), watch(2, order="name"))
    assert [names(each) for each in by_name] == [["a.png", "b.jpg"], ["c.png", "d.png"]]
    done = frozenset(map(str, paths[:2]))
    assert [names(each) for each in batches(str(tmp_path), watch(2), done=done)] == [["b.jpg", "d.png"]]


def test_files_that_cannot_be_read_are_passed_over_on_request(tmp_path: Path) -> None:
    for place in range(7):
        write(tmp_path, f"{place}.png", age=50 - place, content=BROKEN if place in (1, 2, 3, 4) else b"")
    with pytest.raises(FileFormatError, match=r"1\.png cannot be decoded"):
        list(batches(str(tmp_path), watch(2)))
    (batch,) = batches(str(tmp_path), watch(3, skip_bad=True))
    assert names(batch) == ["0.png", "5.png", "6.png"]
    assert [Path(name).name for name in batch.skipped] == ["1.png", "2.png", "3.png", "4.png"]


class Hours:
    """A clock that waiting turns; `do` is what happens meanwhile, one call per wait."""

    def __init__(self, *do: Callable[[], object]) -> None:
        self.now, self.do = 0.0, list(do)
        self.waits: list[float] = []
        self.messages: list[str] = []
        self.passed: list[tuple[float, str]] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return bool(self.do) and self.do.pop(0)() is True

    def follow(self, folder: Path, size: int = 2, **more: object) -> Iterator[Batch]:
        return batches(
            str(folder),
            watch(size, follow=True, **{"poll": 0.5, "idle_timeout": 60.0, **more}),
            wait=self.wait,
            clock=lambda: self.now,
            tell=self.messages.append,
            passed=lambda name: self.passed.append((self.now, Path(name).name)),
        )


def nothing() -> None:
    """Happens while waiting."""


def test_following_waits_for_new_files_and_stops_when_idle_or_asked_to(tmp_path: Path) -> None:
    write(tmp_path, "0.png")
    hours = Hours(
        lambda: [write(tmp_path, name) for name in ("1.png", "2.png")],
        nothing,
        lambda: write(tmp_path, "3.png"),
    )
    stream = list(hours.follow(tmp_path, idle_timeout=1.0))
    assert [names(each) for each in stream] == [["0.png", "1.png"], ["2.png", "3.png"]]
    assert hours.waits == [0.5] * 5  # two after the last batch
    asked = Hours(nothing, lambda: True)
    assert list(asked.follow(tmp_path, 5)) == []
    assert len(asked.waits) == 2


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

    hours = Hours(lambda: put(whole[:40]), lambda: put(whole[:60]), nothing, nothing, lambda: put(whole))
    (batch,) = hours.follow(tmp_path, idle_timeout=8.0, skip_bad=True)
    assert sorted(names(batch)) == ["0.png", "1.png"]
    assert batch.skipped == ()
    assert min(hours.waits) > 0
    if age <= 0:
        assert len(hours.waits) >= 5 + SETTLED / 0.5


def test_a_file_that_stays_broken_is_given_up_in_the_end(tmp_path: Path) -> None:
    for name in ("0.png", "2.png"):
        write(tmp_path, name)
    write(tmp_path, "1.png", content=BROKEN)
    hours = Hours()
    with pytest.raises(FileFormatError, match=r"1\.png cannot be decoded"):
        list(hours.follow(tmp_path, 3, idle_timeout=PATIENCE * 3))
    assert sum(hours.waits) >= PATIENCE
    # Three that can be read are a batch at once; the broken one waits by itself.
    hours = Hours(*[nothing] * 10, lambda: write(tmp_path, "3.png"))
    (batch,) = hours.follow(tmp_path, 3, skip_bad=True, idle_timeout=PATIENCE * 3)
    assert names(batch) == ["0.png", "2.png", "3.png"]


def test_files_and_folders_that_are_taken_away_are_no_error(tmp_path: Path) -> None:
    folder, away = tmp_path / "in", tmp_path / "away"
    for place in range(3):
        write(folder, f"{place}.png", age=50 - place)
    hours = Hours(
        lambda: folder.rename(away),
        nothing,
        nothing,
        lambda: away.rename(folder),
        (folder / "2.png").unlink,
        lambda: [write(folder, f"{place}.png") for place in (3, 4)],
    )
    stream = [names(each) for each in hours.follow(folder, idle_timeout=5.0)]
    assert stream == [["0.png", "1.png"], ["3.png", "4.png"]]
    away_again, back = hours.messages  # once each, however long it is away
    assert "waiting until it is available again" in away_again
    assert back.endswith("is back")


def test_drawn_shapes_are_numbered() -> None:
    first, second = batches("shapes:neon", watch(4, n=10))
    assert [each.sources[0] for each in (first, second)] == [
        f"shapes:neon/{FIRST_WATCHED + place}" for place in (0, 4)
    ]
    expected = draw_shapes("neon", 4, start=FIRST_WATCHED + 4)
    np.testing.assert_array_equal(second.inputs.pixels, expected.pixels)
    rest = list(batches("shapes:neon", watch(4, n=10), done=frozenset(first.sources)))
    assert [each.sources for each in rest] == [second.sources]


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="neon"):
        list(batches("shapes:neom", watch()))
    for follow in (False, True):
        with pytest.raises(FileFormatError, match="not a folder"):
            list(batches(str(tmp_path / "none"), watch(follow=follow)))
    with pytest.raises(UnknownNameError, match="random"):
        watch(order="radom")
    with pytest.raises(InputError, match="at least 2 images"):
        watch(1)
    with pytest.raises(InputError, match="above 0"):
        watch(poll=0.0)


def test_images_that_wait_too_long_for_a_full_batch_are_a_smaller_one(tmp_path: Path) -> None:
    for place in range(5):
        write(tmp_path, f"{place}.png", age=50 - place)
    hours = Hours(lambda: write(tmp_path, "5.png"), *[lambda: None] * 3, lambda: True)
    found = [(hours.now, names(each)) for each in hours.follow(tmp_path, 3, poll=20.0, flush_after=45.0)]
    assert found == [(0.0, ["0.png", "1.png", "2.png"]), (20.0, ["5.png", "3.png", "4.png"])]
    hours = Hours(*[lambda: None] * 5, lambda: True)
    found = [(hours.now, names(each)) for each in hours.follow(tmp_path, 4, poll=20.0, flush_after=45.0)]
    assert found == [(0.0, ["5.png", "0.png", "1.png", "2.png"]), (60.0, ["3.png", "4.png"])]
    alone = Hours(*[lambda: None] * 5, lambda: True)
    assert len(list(alone.follow(tmp_path, 5, poll=20.0, flush_after=45.0))) == 1  # one image is no batch
