"""A store in a directory, and what disks, other programs and other processes do to it."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch

from assay.errors import FileFormatError, InputError, OutputError
from assay.store import DATABASE_NAME, SCHEMA_VERSION, Store
from assay.store import database as database_module


PROVENANCE = {"metric": "kl", "seed": 0}


def test_a_store_can_be_named_by_its_url(store: Store) -> None:
    key = store.put("scores", {}, {}, {"values": torch.arange(3)})
    again = Store(f"sqlite:///{store.directory}/{DATABASE_NAME}")
    assert again.get(key).arrays["values"].tolist() == [0, 1, 2]
    assert again.directory == store.directory


@pytest.mark.parametrize("name", ["a?b=c", "a#b", "a%20b", "a b", "日本", "a@b:c"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    key = Store(tmp_path / name).put("scores", {}, {}, {"values": torch.arange(3)})
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["arrays", DATABASE_NAME]
    assert Store(Store(tmp_path / name).location, create=False).has(key)


def test_a_reader_does_not_make_a_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results store at .*: nothing was stored there yet"):
        Store(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot make a results store at .*file"):
        Store(tmp_path / "file" / "results")
    with pytest.raises(OutputError, match="cannot make a results store at .*file"):
        Store(tmp_path / "file")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        (
            "mysql://u:secret@localhost/x",
            "lives in SQLite or PostgreSQL, got 'mysql://u:\\*\\*\\*@localhost/x'",
        ),
        ("nonsense://", "cannot read|lives in SQLite"),
        ("sqlite:///results.db", r"the database of a results store is DIR/assay\.db, got"),
        (Path("postgresql+psycopg://u:secret@h/db"), "was a URL before it became a path"),
    ],
)
def test_another_database_is_refused_without_showing_a_password(location: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Store(location)
    assert "secret" not in str(caught.value)


# ---- other programs -----------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / DATABASE_NAME).write_bytes(b"not a database, but long enough to look at " * 20)
    with pytest.raises(FileFormatError, match="file is not a database"):
        Store(tmp_path)
    assert (tmp_path / DATABASE_NAME).read_bytes().startswith(b"not a database")


def test_another_program_s_database_is_refused_and_kept(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_NAME) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    database.close()
    with pytest.raises(FileFormatError, match="is a database, but no results store"):
        Store(tmp_path)


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    with sqlite3.connect(store.directory / DATABASE_NAME) as database:
        database.execute("UPDATE schema SET version = ?", (SCHEMA_VERSION + 1,))
    database.close()
    with pytest.raises(FileFormatError, match=r"newer version of assay: its schema is 3, .* upgrade assay"):
        Store(store.directory)


# ---- locks --------------------------------------------------------------------------------------


def test_a_writer_waits_for_another_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    impatient = Store(store.directory)
    lock = sqlite3.connect(store.directory / DATABASE_NAME, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(OutputError, match=r"database is locked; another .* `fuser .*assay\.db` lists who"):
        impatient.put("measurement", {}, {})
    assert impatient.find() == []  # readers go on
    lock.execute("ROLLBACK")
    lock.close()
    assert impatient.put("measurement", {}, {})


def test_a_reader_of_a_locked_store_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    impatient = Store(store.directory)
    lock = sqlite3.connect(store.directory / DATABASE_NAME, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with pytest.raises(OutputError, match="cannot read the results store at .*: database is locked"):
        impatient.count()
    lock.close()
    assert impatient.count() == 0


# ---- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9])
def test_a_truncated_database_is_an_error_with_a_name(store: Store, share: float) -> None:
    for seed in range(30):
        store.put("measurement", {"seed": seed}, {"text": "x" * 500}, {"a": torch.arange(3)})
    file = store.directory / DATABASE_NAME
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(FileFormatError, match="truncated|damaged|malformed|not a database"):
        Store(store.directory).verify()


def test_a_changed_row_is_found(store: Store) -> None:
    key = store.put("measurement", PROVENANCE, {"value": 1})
    with sqlite3.connect(store.directory / DATABASE_NAME) as database:
        database.execute("UPDATE results SET provenance = '{}'")
        database.execute("DELETE FROM summaries")
    database.close()
    problems = store.verify()
    assert [each.startswith(f"{key} (measurement): ") for each in problems] == [True, True]
    assert "it does not give this id" in problems[0]
    assert "no summary" in problems[1]


# ---- disks --------------------------------------------------------------------------------------


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`mount(options)`: a small file system of its own, mounted for the test."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(
                f"NO DISK COULD BE MOUNTED, full and read-only disks are untested: {done.stderr.decode()}"
            )
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def hidden_files(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob(".*")]


def test_a_full_disk_leaves_nothing_of_an_array(mount: Callable[..., Path]) -> None:
    store = Store(mount("size=2m") / "results")
    first = store.put("scores", {"seed": 0}, {"value": 1}, {"a": torch.zeros(1000)})
    with pytest.raises(OutputError, match="No space left on device"):
        store.put("scores", {"seed": 1}, {}, {"a": torch.zeros(10), "b": torch.zeros(1_000_000)})
    assert [each.id for each in store.query()] == [first]
    assert hidden_files(store.directory) == []
    assert store.verify() == []
    assert store.put("scores", {"seed": 1}, {}, {"a": torch.zeros(10)})
    assert store.verify() == []


def test_a_full_disk_leaves_nothing_of_a_row(mount: Callable[..., Path]) -> None:
    disk = mount("size=1m")
    store = Store(disk / "results")
    first = store.put("scores", {"seed": 0}, {"value": 1})
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    with pytest.raises(OutputError, match=r"full; make room and run the same command again|I/O error"):
        store.put("scores", {"seed": 1}, {"text": "x" * 200_000})
    assert [each.id for each in store.query()] == [first]
    (disk / "filler").unlink()
    assert store.put("scores", {"seed": 1}, {"text": "x" * 200_000})
    assert store.verify() == []
    assert sorted(path.name for path in store.directory.iterdir()) == [DATABASE_NAME]


def test_a_read_only_disk_refuses_writers_and_serves_readers(mount: Callable[..., Path]) -> None:
    disk = mount("size=2m")
    store = Store(disk / "results")
    key = store.put("measurement", PROVENANCE, {"value": 1}, {"a": torch.arange(3)})
    remount(disk, "ro")
    reader = Store(store.directory, create=False)
    assert reader.get(key).arrays["a"].tolist() == [0, 1, 2]
    assert reader.count(where="metric = kl") == 1
    assert reader.verify() == []
    with pytest.raises(OutputError, match="readonly|read-only"):
        store.put("measurement", {}, {})
    with pytest.raises(OutputError, match="Read-only file system"):
        store.put("measurement", {}, {}, {"a": torch.arange(4)})
    with pytest.raises(OutputError, match="Read-only file system"):
        Store(disk / "other")


def test_an_old_store_on_a_read_only_disk_says_what_to_do(
    mount: Callable[..., Path], version_1: Path
) -> None:
    disk = mount("size=4m")
    shutil.copytree(version_1, disk / "old")
    remount(disk, "ro")
    with pytest.raises(OutputError, match="must be upgraded .* copy it to such a place and open the copy"):
        Store(disk / "old", create=False)


# ---- killed at any point ------------------------------------------------------------------------


def _killed(location: Path, step: int) -> None:
    """Put results until the `step`-th statement or the writing of an array, then die."""
    left = step

    def count(*rest: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sa.event.listen(sa.Engine, "before_cursor_execute", lambda *rest: count())
    sa.event.listen(sa.Engine, "commit", lambda *rest: count())
    write, replace = os.fsync, Path.replace
    os.fsync = lambda handle: (count(), write(handle))[1]  # type: ignore[assignment] # a count before the call
    Path.replace = lambda path, target: (count(), replace(path, target))[1]  # type: ignore[method-assign, assignment] # ditto
    store = Store(location)
    for seed in range(3):
        store.put(
            "scores", {"seed": seed}, {"value": seed}, {"a": torch.tensor([seed]), "b": torch.arange(9)}
        )


@pytest.mark.parametrize("start", [1, 2, 3])
def test_a_writer_killed_at_any_point_leaves_whole_results(tmp_path: Path, start: int) -> None:
    context = multiprocessing.get_context("fork")
    whole = Store(tmp_path / "whole")
    for seed in range(3):
        whole.put(
            "scores", {"seed": seed}, {"value": seed}, {"a": torch.tensor([seed]), "b": torch.arange(9)}
        )
    died = []
    for step in range(start, 70, 3):
        location = tmp_path / str(step)
        writer = context.Process(target=_killed, args=(location, step))
        writer.start()
        writer.join()
        died.append(writer.exitcode == -signal.SIGKILL)
        store = Store(location)
        assert store.verify() == [], step
        for seed in range(3):
            store.put(
                "scores", {"seed": seed}, {"value": seed}, {"a": torch.tensor([seed]), "b": torch.arange(9)}
            )
        assert store.digest() == whole.digest(), step
    assert died[0]
    assert not died[-1], "the last step lies beyond the work: every point before it was tried"
