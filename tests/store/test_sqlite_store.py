"""A store in a directory, and what disks, other programs and other processes do to it."""

import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import torch
from command_line import invoke
from thorough import one_of

from assay.app.running import Storing
from assay.circuits import write_atomically
from assay.core.errors import FileFormatError, InputError, OutputError
from assay.store import DATABASE_NAME, SCHEMA_VERSION, About, Store, results
from assay.store.arrays import array_path, write_array


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
            "is in SQLite or PostgreSQL, got 'mysql://u:\\*\\*\\*@localhost/x'",
        ),
        ("nonsense://", "cannot read|is in SQLite"),
        ("sqlite:///results.db", r"the database of a results store is DIR/assay\.db, got"),
        (Path("postgresql+psycopg://u:secret@h/db"), "was converted from a URL to a path"),
    ],
)
def test_another_database_is_refused_without_showing_a_password(location: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Store(location)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "sqlite://user:SECRET@",
        "sqlite://user:SECRET@host/assay.db",
        "sqlite:///user:SECRET@host/results.db",
        "postgresql://user:SECRET",
        "postgresql://user:SECRET/db",
        "postgresql://:SECRET@host:x/db",
        "postgresql:///user:SECRET@host/db",
        "postgresql://user:SE@SECRET@host:port/db",
        "postgresql://user:SE/SECRET@host:port/db",
        "postgresql:user:SECRET@host/db",
        "postgresql//user:SECRET@host/db",
        "postgresql//user:SECRET",
        "postgresql;//user:SECRET@host/db",
        "postgres:/user:SECRET@host/db",
        "postgrsql//user:SECRET@host/db",
        "postgresq://user:SECRET@host/db",
        "user:SECRET@host/db",
        "https://user:SECRET@host/db",
        "mysql://host/db?password=SECRET",
        "mysql://host/db?sslPassword=SE@SECRET&x=@",
    ],
)
def test_no_password_of_a_mistyped_url_is_shown_or_written(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Store(location)
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(InputError) as caught:
        Storing(store=str(location)).store_folder()
    assert "SECRET" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_odd_names_of_directories_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run:3@here").mkdir()
    for name in ("run:3@here", "a@b", "a:b", f"{tmp_path}/x:1@y", "./x:1@z", "postgres/runs"):
        assert Store(name).directory == (tmp_path / name).absolute()


# ---- what killed writers leave -------------------------------------------------------------------


def _left(store: Store) -> tuple[Path, Path]:
    """An unfinished file and an array that no result names, as kills leave them."""
    kept = store.put("scores", {}, {}, {"values": torch.arange(3)})
    assert list(store.get(kept).arrays) == ["values"]
    temporary = store.directory / "select" / ".digits.npz.4711.0123abcd"
    temporary.parent.mkdir()
    temporary.write_bytes(b"begun")
    content = write_array(store.directory, "values", torch.arange(4))
    return temporary, array_path(store.directory, content)


def _aged(*files: Path) -> None:
    for path in files:
        os.utime(path, (1e9, 1e9))


def test_what_killed_writers_leave_is_found_and_removed(store: Store) -> None:
    temporary, orphan = _left(store)
    user_s = store.directory / ".notes.txt"
    user_s.write_text("mine")
    assert store.leftovers() == []  # they may be being written
    _aged(user_s, *store.directory.rglob("*.*"))
    found = store.leftovers()
    assert [(each.path, each.kind) for each in found] == [(orphan, "array"), (temporary, "temporary")]
    assert found[1].size == 5
    assert store.verify() == []

    def run(*arguments: str) -> Any:
        return invoke("store", *arguments, "--store", str(store.directory))

    told = run("verify")
    assert told.exit_code == 0
    assert "1 results, 0 problems" in told.stdout
    assert "1 temporary files and 1 arrays of no result" in told.stdout
    planned = json.loads(run("gc", "--dry-run", "--json").stdout)
    assert [each["path"] for each in planned["leftovers"]] == [str(orphan), str(temporary)]
    assert temporary.exists()
    assert "1 temporary files and 1 arrays of no result" in run("gc").stdout
    assert not temporary.exists()
    assert not orphan.exists()
    assert user_s.exists()
    assert store.leftovers(settled=0.0) == []
    assert store.verify() == []
    next((store.directory / "arrays").rglob("*.safetensors")).unlink()
    broken = run("verify", "--json")
    assert broken.exit_code == 1
    assert len(json.loads(broken.stdout)["problems"]) == 1


def test_an_array_that_is_removed_while_its_result_is_put_is_written_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, orphan = _left(store)
    _aged(orphan)
    once, removed = results.write_array, []

    def and_then_others_clear(*arguments: Any) -> str:
        content = once(*arguments)
        if not removed:  # the second time it is written, no other process can clear
            removed.extend(Store(store.directory).remove_leftovers())
            assert [each.path for each in removed] == [orphan]
        return content

    monkeypatch.setattr(results, "write_array", and_then_others_clear)
    kept = store.put("scores", {"seed": 1}, {}, {"values": torch.arange(4)})
    assert store.get(kept).arrays["values"].tolist() == [0, 1, 2, 3]
    assert store.verify() == []


def test_a_stricter_mode_is_kept(tmp_path: Path) -> None:
    def mode(path: Path) -> int:
        return path.stat().st_mode & 0o777

    report = write_atomically(tmp_path / "report.html", b"one")
    usual = mode(report)
    report.chmod(0o600)
    write_atomically(report, b"two")
    assert (mode(report), report.read_bytes()) == (0o600, b"two")
    report.chmod(0o666)
    write_atomically(report, b"three")
    assert mode(report) == usual  # not looser than the umask


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
    with pytest.raises(FileFormatError, match="is a database, but not a results store"):
        Store(tmp_path)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            SCHEMA_VERSION + 1,
            rf"newer version of assay: its schema is {SCHEMA_VERSION + 1}, .* upgrade assay",
        ),
        (2, "was written by assay 0.1.0 and cannot be read. Give another directory or database"),
        (1, "was written by assay 0.1.0 and cannot be read"),
    ],
)
def test_a_store_of_another_version_is_refused_and_kept(store: Store, version: int, message: str) -> None:
    file = store.directory / DATABASE_NAME
    with sqlite3.connect(file) as database:
        database.execute("UPDATE schema SET version = ?", (version,))
    database.close()
    before = file.read_bytes()
    with pytest.raises(FileFormatError, match=message):
        Store(store.directory)
    assert file.read_bytes() == before


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
    assert "does not give this id" in problems[0]
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
    with pytest.raises(OutputError, match=r"full; free some space and run the same command again|I/O error"):
        store.put("scores", {"seed": 1}, {"text": "x" * 200_000})
    assert [each.id for each in store.query()] == [first]
    (disk / "filler").unlink()
    assert store.put("scores", {"seed": 1}, {"text": "x" * 200_000})
    assert store.verify() == []
    assert sorted(path.name for path in store.directory.iterdir()) == [DATABASE_NAME]


def test_a_read_only_disk_refuses_writers_and_serves_readers(mount: Callable[..., Path]) -> None:
    disk = mount("size=2m")
    store = Store(disk / "results")
    key = store.put("measurement", PROVENANCE, {"value": 1}, {"a": torch.arange(3)}, about=About(metric="kl"))
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


@pytest.mark.parametrize("start", one_of([1, 2, 3]))
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
