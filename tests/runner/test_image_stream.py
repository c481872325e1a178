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
    FIRST_KNOWN,
    FIRST_WATCHED,
    PATIENCE,
    SETTLED,
    Batch,
    Watch,
    batches,
    known_images,
)
from assay.tasks import EvalTransform, ReadOptions, draw_shapes


TRANSFORM = EvalTransform(resize=(32, 32))


def watch(size: int = 3, **more: object) -> Watch:
    return Watch(transform=TRANSFORM, size=size, **more)  # type: ignore[arg-type]


def write(folder: Path, name: str, grey: int, *, age: float = 100.0) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((40, 36, 3), grey, dtype=np.uint8)).save(path)
    changed = time.time() - age
    os.utime(path, (changed, changed))
    return path


def greys(found: object) -> list[int]:
    return [int(image.mean().round()) for image in found.inputs.pixels]  # type: ignore[attr-defined]


def test_files_come_in_order_of_time_and_the_rest_waits(tmp_path: Path) -> None:
    for place, name in enumerate(("c.png", "a.png", "b.jpg", "d.png")):
        write(tmp_path, name, 40 * place, age=50 - place)
    (tmp_path / "notes.txt").write_text("no image")
    found = list(batches(str(tmp_path), watch(3)))
    assert [greys(each) for each in found] == [[0, 40, 80]]
    assert found[0].sources == tuple(str(tmp_path / name) for name in ("c.png", "a.png", "b.jpg"))
    assert found[0].inputs.pixels.shape == (3, 32, 32, 3)
    by_name = list(batches(str(tmp_path), watch(2, order="name")))
    assert [greys(each) for each in by_name] == [[40, 80], [0, 120]]


def test_a_random_order_follows_the_seed(tmp_path: Path) -> None:
    for place in range(12):
        write(tmp_path, f"{place:02}.png", 20 * place)
    first, again, other = (
        [
            name
            for each in batches(str(tmp_path), watch(4, order="random", seed=seed))
            for name in each.sources
        ]
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert sorted(first) == sorted(other)


def test_what_was_done_is_not_given_again(tmp_path: Path) -> None:
    paths = [str(write(tmp_path, f"{place}.png", 30 * place, age=50 - place)) for place in range(6)]
    found = list(batches(str(tmp_path), watch(2), done=frozenset(paths[:3])))
    assert [each.sources for each in found] == [(paths[3], paths[4])]


def test_files_that_cannot_be_read_are_passed_over_on_request(tmp_path: Path) -> None:
    for place in range(7):
        path = write(tmp_path, f"{place}.png", 30 * place, age=50 - place)
        if place in (1, 2, 3, 4):
            path.write_bytes(b"\x89PNG broken")
            os.utime(path, (time.time() - 50 + place,) * 2)
    with pytest.raises(FileFormatError, match=r"1\.png cannot be decoded"):
        list(batches(str(tmp_path), watch(2)))
    (found,) = batches(str(tmp_path), watch(3, skip_bad=True))
    assert greys(found) == [0, 150, 180]
    assert [Path(name).name for name in found.skipped] == ["1.png", "2.png", "3.png", "4.png"]


def test_images_of_several_sizes_need_a_transform_that_makes_them_equal(tmp_path: Path) -> None:
    write(tmp_path, "a.png", 10)
    Image.new("RGB", (50, 50)).save(tmp_path / "b.png")
    loose = Watch(transform=EvalTransform(resize=None), size=2, skip_bad=True)
    with pytest.raises(InputError, match="give a transform"):
        list(batches(str(tmp_path), loose))


def test_a_batch_of_one_folder_among_many_is_noted(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        write(tmp_path, name, 50)
    found = list(batches(str(tmp_path), watch(2, order="name")))
    assert "cat/" in found[0].note
    assert "--order random" in found[0].note
    write(tmp_path, "loose.png", 50)
    assert not next(batches(str(tmp_path / "cat"), watch(2))).note


class Hours:
    """A clock that waiting turns; `do` is what happens meanwhile, one call per wait."""

    def __init__(self, *do: Callable[[], object]) -> None:
        self.now, self.waits, self.do, self.heard = 1000.0, [], list(do), []  # type: ignore[var-annotated] # by use

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        if self.do:
            return self.do.pop(0)() is True
        return False

    def follow(self, folder: Path, size: int = 2, **more: object) -> Iterator[Batch]:
        settings = watch(size, follow=True, **{"poll": 0.5, "idle_timeout": 60.0, **more})
        return batches(str(folder), settings, wait=self.wait, clock=lambda: self.now, tell=self.heard.append)


def nothing() -> None:
    """Happens while waiting."""


def names(found: Batch) -> list[str]:
    return [Path(name).name for name in found.sources]


def test_following_waits_for_new_files_and_stops_when_idle(tmp_path: Path) -> None:
    write(tmp_path, "0.png", 10)
    hours = Hours(
        lambda: [write(tmp_path, name, 10) for name in ("1.png", "2.png")],
        nothing,
        lambda: write(tmp_path, "3.png", 10),
    )
    found = list(hours.follow(tmp_path, idle_timeout=1.0))
    assert [names(each) for each in found] == [["0.png", "1.png"], ["2.png", "3.png"]]
    assert hours.waits == [0.5] * 5  # two after the last batch


def test_following_ends_when_asked_to(tmp_path: Path) -> None:
    write(tmp_path, "0.png", 10)
    hours = Hours(nothing, lambda: True)
    assert list(hours.follow(tmp_path)) == []
    assert len(hours.waits) == 2


def test_following_leaves_a_file_that_is_still_being_written(tmp_path: Path) -> None:
    write(tmp_path, "0.png", 10)
    late = write(tmp_path, "1.png", 10, age=0)
    content = late.read_bytes()

    def grow() -> None:
        late.write_bytes(content[: 20 * (len(hours.waits) + 1)])

    grow_first = content[:20]
    late.write_bytes(grow_first)
    hours = Hours(grow, grow, lambda: late.write_bytes(content))
    (found,) = hours.follow(tmp_path, idle_timeout=8.0)
    assert names(found) == ["0.png", "1.png"]
    assert len(hours.waits) >= 3 + SETTLED / 0.5


@pytest.mark.parametrize("age", [-86400.0, 86400.0], ids=["future", "past"])
def test_a_jump_of_the_wall_clock_neither_hides_nor_breaks_a_file(tmp_path: Path, age: float) -> None:
    """A file whose time lies ahead counts once it rests; one that only looks old is not passed over."""
    write(tmp_path, "0.png", 10)
    late = write(tmp_path, "1.png", 30, age=age)
    content = late.read_bytes()
    stamp = late.stat().st_mtime

    def put(part: bytes) -> None:
        late.write_bytes(part)
        os.utime(late, (stamp, stamp))

    put(content[:50])
    hours = Hours(*[nothing] * 5, lambda: put(content))
    (found,) = hours.follow(tmp_path, idle_timeout=8.0, skip_bad=True)
    assert sorted(names(found)) == ["0.png", "1.png"]
    assert found.skipped == ()
    assert min(hours.waits) > 0


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_that_stays_broken_is_given_up_in_the_end(tmp_path: Path, skip_bad: bool) -> None:
    for name in ("0.png", "1.png", "2.png"):
        write(tmp_path, name, 10)
    write(tmp_path, "1.png", 10).write_bytes(b"\x89PNG broken")
    hours = Hours()
    stream = hours.follow(tmp_path, 3, skip_bad=skip_bad, idle_timeout=PATIENCE * 3)
    hours.do = [nothing] * 10 + [lambda: write(tmp_path, "3.png", 10)]
    if skip_bad:
        (found,) = stream
        # Three that can be read are a batch at once; the broken one waits by itself.
        assert names(found) == ["0.png", "2.png", "3.png"]
        return
    hours.do = []
    with pytest.raises(FileFormatError, match=r"1\.png cannot be decoded"):
        list(stream)
    assert sum(hours.waits) >= PATIENCE


def test_broken_files_count_without_a_full_batch(tmp_path: Path) -> None:
    """Given up after the same patience; the next batch names them once more."""
    write(tmp_path, "0.png", 10)
    write(tmp_path, "1.png", 10).write_bytes(b"\x89PNG broken")
    hours, passed = Hours(), []
    settings = watch(3, follow=True, poll=0.5, idle_timeout=PATIENCE * 3, skip_bad=True)
    hours.do = [*[nothing] * 100, lambda: [write(tmp_path, name, 10) for name in ("2.png", "3.png")]]
    stream = batches(
        str(tmp_path),
        settings,
        wait=hours.wait,
        clock=lambda: hours.now,
        passed=lambda name: passed.append((hours.now - 1000, Path(name).name)),
    )
    (found,) = stream
    ((when, name),) = passed
    assert name == "1.png"
    assert PATIENCE <= when < 50
    assert names(found) == ["0.png", "2.png", "3.png"]
    assert [Path(each).name for each in found.skipped] == ["1.png"]


def test_what_is_broken_when_nothing_more_comes_counts_too(tmp_path: Path) -> None:
    write(tmp_path, "1.png", 10).write_bytes(b"\x89PNG broken")
    hours, passed = Hours(), []
    settings = watch(3, follow=True, poll=0.5, idle_timeout=2.0, skip_bad=True)
    assert (
        list(batches(str(tmp_path), settings, wait=hours.wait, clock=lambda: hours.now, passed=passed.append))
        == []
    )
    assert passed == [str(tmp_path / "1.png")]


def test_files_that_are_taken_away_are_no_error(tmp_path: Path) -> None:
    for place in range(3):
        write(tmp_path, f"{place}.png", 10)
    stream = Hours().follow(tmp_path, 2, idle_timeout=1.0)
    assert len(next(stream).sources) == 2
    for path in tmp_path.iterdir():
        path.unlink()
    assert list(stream) == []


def test_a_folder_that_vanishes_is_waited_for_and_nothing_counts_twice(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for place in range(2):
        write(folder, f"{place}.png", 10)
    hours = Hours(
        lambda: folder.rename(tmp_path / "away"),
        nothing,
        nothing,
        lambda: (tmp_path / "away").rename(folder),
        lambda: [write(folder, f"{place}.png", 10) for place in (2, 3)],
    )
    found = list(hours.follow(folder, idle_timeout=5.0))
    assert [names(each) for each in found] == [["0.png", "1.png"], ["2.png", "3.png"]]
    assert len(hours.heard) == 2  # once each, however long it is away
    assert "waiting until it is available again" in hours.heard[0]
    assert hours.heard[1].endswith("is back")
    with pytest.raises(FileFormatError, match="not a folder"):
        list(Hours().follow(tmp_path / "never"))


def test_drawn_shapes_are_numbered_and_apart_from_known_ones() -> None:
    found = list(batches("shapes:neon", watch(4, n=10)))
    assert [each.sources[0] for each in found] == [f"shapes:neon/{FIRST_WATCHED + k}" for k in (0, 4)]
    expected = draw_shapes("neon", 4, start=FIRST_WATCHED + 4)
    np.testing.assert_array_equal(found[1].inputs.pixels, expected.pixels)
    known = known_images("shapes:neon", TRANSFORM, n=4, classes=None, options=ReadOptions())
    assert known.ids.tolist() == list(range(FIRST_KNOWN, FIRST_KNOWN + 4))
    rest = list(batches("shapes:neon", watch(4, n=10), done=frozenset(found[0].sources)))
    assert [each.sources for each in rest] == [found[1].sources]


def test_known_images_have_labels_where_folders_are_classes(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png", "dog/2.png"):
        write(tmp_path, name, 50)
    found = known_images(str(tmp_path), TRANSFORM, n=1, classes=("dog", "cat"), options=ReadOptions())
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 0]
    flat = known_images(str(tmp_path / "dog"), TRANSFORM, n=1, classes=("dog",), options=ReadOptions())
    assert flat.labels is None
    assert flat.n == 2
    with pytest.raises(InputError, match="outside the classes"):
        known_images(str(tmp_path), TRANSFORM, n=1, classes=("cow",), options=ReadOptions())


def test_wrong_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="neon"):
        list(batches("shapes:neom", watch()))
    with pytest.raises(FileFormatError, match="not a folder"):
        list(batches(str(tmp_path / "none"), watch()))
    with pytest.raises(UnknownNameError, match="random"):
        watch(order="radom")
    with pytest.raises(InputError, match="at least 2 images"):
        watch(1)
    with pytest.raises(InputError, match="above 0"):
        watch(poll=0.0)
