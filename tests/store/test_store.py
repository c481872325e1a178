"""A store on both databases: what is put comes back, whatever happens meanwhile."""

import json
import multiprocessing
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
import torch
from postgres_server import PASSWORD, PostgresServer

from assay.core.errors import FileFormatError, InputError, OutputError, UnknownNameError
from assay.store import DATABASE_NAME, SCHEMA_VERSION, About, Store


PROVENANCE: dict[str, Any] = {"metric": "kl", "seed": 0, "machine": {"host": "a"}}
HOSTILE = 'd\'où "x"; DROP TABLE results; -- %_\\ 日本 🤖 <script>'


@pytest.fixture
def store(location: str) -> Store:
    return Store(location)


@pytest.fixture
def directory(tmp_path: Path) -> Store:
    """A store in a directory."""
    return Store(tmp_path / "results")


def put(store: Store, place: int, **about: Any) -> str:
    return store.put("own", {"place": place}, {"value": place}, about=About(seed=place, **about))


# ---- values -------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was_put(store: Store) -> None:
    payload = {"value": 0.25, "tuple": (1, np.arange(2)), "undefined": float("nan"), HOSTILE: "a\0b"}
    about = About(model="mini", task=HOSTILE, metric="kl", n=20, seed=0, value=0.25, name="a\0b")
    arrays = {"scores": torch.arange(6.0).view(2, 3).bfloat16().T, "mask": np.array([True, False])}
    key = store.put("measurement", PROVENANCE, payload, arrays, about=about)
    found = Store(store.location, create=False).get(key)
    assert found.payload == {"value": 0.25, "tuple": [1, [0, 1]], "undefined": None, HOSTILE: "a\0b"}
    assert found.provenance == PROVENANCE
    assert (found.task, found.n, found.value, found.name) == (HOSTILE, 20, 0.25, "a\ufffdb")
    assert set(found.arrays) == {"scores", "mask"}
    assert torch.equal(found.arrays["scores"], arrays["scores"])
    assert found.arrays["scores"].dtype == torch.bfloat16
    assert found.arrays["mask"].tolist() == [True, False]
    json.dumps(found.document())


def test_what_cannot_be_kept_is_refused(directory: Store) -> None:
    with pytest.raises(InputError, match="only JSON values and arrays can be kept"):
        directory.put("measurement", {"x": object()}, {})
    with pytest.raises(InputError, match="arrays must be dense"):
        directory.put("measurement", {}, {}, {"a": torch.eye(2).to_sparse()})
    assert directory.count() == 0


def test_the_same_work_again_changes_nothing(store: Store) -> None:
    key = store.put("measurement", PROVENANCE, {"value": 1}, {"a": torch.zeros(2)})
    assert store.put("measurement", PROVENANCE, {"value": 2}, {"a": torch.ones(2)}) == key
    assert store.get(key).payload == {"value": 1}
    assert store.get(key).arrays["a"].tolist() == [0, 0]


# ---- looking up ---------------------------------------------------------------------------------


def test_a_beginning_is_enough_unless_several_begin_so(directory: Store) -> None:
    keys = [put(directory, place) for place in range(40)]
    assert directory.get(keys[0]).seed == 0
    assert directory.get(keys[1][:10].upper()).seed == 1
    letter = max("0123456789abcdef", key=lambda each: sum(key.startswith(each) for key in keys))
    with pytest.raises(InputError, match="is ambiguous, give more digits: "):
        directory.get(letter)
    for wrong in ("", "xyz", "no-id"):
        with pytest.raises(UnknownNameError, match="up to 16 hex digits"):
            directory.get(wrong)
    with pytest.raises(UnknownNameError, match="no result in .* begins with"):
        directory.get("0" * 16)


def test_a_circuit_s_hash_finds_the_circuit_then_the_audit_then_the_newest(store: Store) -> None:
    first = put(store, 0, circuit="c0ffee")
    put(store, 1, circuit="c0ffee")
    assert store.get("c0ff").seed == 1
    audit = store.put("audit", {}, {}, about=About(circuit="c0ffee"))
    assert store.get("c0ffee").id == audit
    circuit = store.put("circuit", {}, {}, about=About(circuit="c0ffee"))
    assert store.get("c0ffee").id == circuit
    assert store.get(first).seed == 0


def test_results_are_found_by_their_columns(store: Store) -> None:
    for place in range(5):
        put(store, place, task="ioi" if place % 2 else None, value=-place / 10 if place else None)
    store.put("circuit", {}, {})

    def seeds(**asked: Any) -> list[int | None]:
        return [each.seed for each in store.query(**asked)]

    assert seeds(kind="own", order="seed") == [0, 1, 2, 3, 4]
    assert seeds(kind="own", order="-value") == [1, 2, 3, 4, 0]
    assert seeds(task="ioi") == [1, 3]
    assert seeds(kind="own", task=None) == [0, 2, 4]
    assert seeds(seed=[1, 2, 9]) == [1, 2]
    assert seeds(kind="own", order="seed", limit=2, offset=1) == [1, 2]
    assert seeds(kind="own", order="seed", offset=3) == [3, 4]
    assert store.count() == 6
    assert store.count("own", task="ioi") == 2
    assert [each.payload["value"] for each in store.results("own", seed=[3, 1])] == [1, 3]
    with pytest.raises(UnknownNameError, match="unknown column 'tsak'; did you mean 'task'"):
        store.query(tsak="ioi")
    with pytest.raises(UnknownNameError, match="unknown column 'payload'"):
        store.query(order="payload")


def test_the_frame_has_a_row_per_result_and_dotted_columns(directory: Store) -> None:
    directory.put("m", {"task": {"name": "ioi"}}, {"value": 1, "deep": {"x": 2}}, about=About(metric="kl"))
    frame = directory.to_frame("m")
    columns = ["kind", "metric", "payload.value", "payload.deep.x"]
    assert frame[columns].to_numpy().tolist() == [["m", "kl", 1, 2]]
    assert frame["provenance.task.name"].item() == "ioi"
    assert frame.index.tolist() == [each.id for each in directory.query()]
    assert directory.to_frame("none").empty


# ---- the whole ----------------------------------------------------------------------------------


def test_removal_is_whole_and_keeps_what_others_refer_to(store: Store) -> None:
    circuit = store.put("circuit", {}, {}, {"mask": torch.ones(2)}, about=About(circuit="c0ffee"))
    other = put(store, 0, circuit="c0ffee")
    naming = store.put("sweep", {}, {"jobs": [other]})
    for key, reason in ((circuit, other), (other, naming)):
        with pytest.raises(InputError, match=f"{key} cannot be removed, because {reason} refer to it"):
            store.remove([key])
    with pytest.raises(UnknownNameError):
        store.remove([naming, "f" * 16])
    assert store.count() == 3
    assert {each.id for each in store.remove([circuit, other, naming[:8]])} == {circuit, other, naming}
    assert store.count() == 0
    assert not any((store.directory / "arrays").iterdir())


def test_a_merge_adds_what_is_missing(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    known = put(store, 0)
    put(other, 0)
    new = other.put("scores", {}, {"x": 1}, {"a": torch.arange(3)}, about=About(task="ioi"))
    assert store.merge(other) == [new]
    assert store.merge(other) == []
    assert store.get(new).arrays["a"].tolist() == [0, 1, 2]
    assert store.query("scores") == other.query("scores")
    assert store.get(known).seed == 0
    assert store.verify() == []
    put(other, 1)
    with sqlite3.connect(tmp_path / "other" / DATABASE_NAME) as database:
        database.execute("UPDATE results SET provenance = '{}' WHERE seed = 1")
    database.close()
    with pytest.raises(FileFormatError, match="the provenance of .* was changed"):
        store.merge(other)


def test_damage_is_named_and_never_read(directory: Store, tmp_path: Path) -> None:
    keys = [directory.put("scores", {"n": n}, {}, {"a": torch.arange(n)}) for n in range(1, 5)]
    changed, missing, edited, torn = keys
    file = directory.directory / "arrays"
    with (file / f"{changed}.safetensors").open("ab") as out:
        out.write(b"x")
    (file / f"{missing}.safetensors").unlink()
    with sqlite3.connect(directory.directory / DATABASE_NAME) as database:
        database.execute("UPDATE results SET provenance = '{}' WHERE id = ?", [edited])
        database.execute("UPDATE results SET payload = '{\"x\": ' WHERE id = ?", [torn])
    for key, message in ((changed, "was changed after it was stored"), (missing, "No such file")):
        with pytest.raises(FileFormatError, match=message):
            assert directory.get(key).arrays
    with pytest.raises(FileFormatError, match=f"payload of result {torn} was damaged"):
        directory.get(torn)
    problems = directory.verify()
    assert {line[:16] for line in problems} == set(keys)
    with pytest.raises(FileFormatError):
        Store(tmp_path / "other").merge(directory)
    directory.remove(keys)
    assert directory.verify() == []
    put(directory, 0)
    database_file = directory.directory / DATABASE_NAME
    with sqlite3.connect(database_file) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, 'id TEXT NOT NULL', 'id TEXT')")
    database.close()
    with sqlite3.connect(database_file) as database:
        database.execute("UPDATE results SET id = NULL")
    database.close()
    for read in (directory.query, lambda: directory.to_frame(), directory.verify):
        with pytest.raises(FileFormatError, match="a row of .* lost its id"):
            read()
    database_file.write_bytes(database_file.read_bytes().replace(b"CREATE TABLE", b"CREATE \xb2ABLE", 1))
    with pytest.raises(FileFormatError, match="is damaged, or is not a results store: .*codec can't decode"):
        Store(directory.directory)


def test_what_killed_writers_leave_is_removed(store: Store) -> None:
    key = store.put("scores", {}, {}, {"a": torch.arange(3)})
    arrays = store.directory / "arrays"
    (arrays / "notes.txt").write_text("mine")
    left = [arrays / f"{'0' * 16}.safetensors", arrays / ".x.safetensors.12.0123abcd"]
    for path in left:
        path.write_bytes(b"half")
    assert store.clean() == []  # they may be being written
    os.utime(left[0], (0, time.time() - 7200))
    assert store.clean() == left[:1]
    assert store.clean(settled=0) == left[1:]
    assert store.get(key).arrays["a"].tolist() == [0, 1, 2]


# ---- several processes --------------------------------------------------------------------------


def _writer(location: str, worker: int, count: int) -> None:
    store = Store(location)
    for index in range(count):
        store.put("own", {"worker": worker, "index": index}, {}, {"a": torch.tensor([worker, index])})
        store.put("common", {"index": index}, {"by": worker}, {"a": torch.tensor([worker, index])})


def test_processes_that_write_at_the_same_time_lose_nothing(location: str) -> None:
    context = multiprocessing.get_context("fork")  # the store below was opened before
    store = Store(location)
    workers = [context.Process(target=_writer, args=(location, worker, 8)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (store.count("own"), store.count("common")) == (24, 8)
    assert store.verify() == []  # of each common result, row and arrays are of one writer
    assert all(each.arrays["a"][0] == each.payload["by"] for each in store.results("common"))


def test_a_writer_keeps_others_out_before_it_looks(directory: Store) -> None:
    """Files that `clean` finds without a row stay without one until they are removed."""
    other = sqlite3.connect(directory.directory / DATABASE_NAME, timeout=0)
    with directory._transaction(write=True), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.close()


def test_a_killed_writer_leaves_whole_results(tmp_path: Path) -> None:
    Store(tmp_path)
    worker = multiprocessing.get_context("fork").Process(target=_writer, args=(str(tmp_path), 0, 10_000))
    worker.start()
    while Store(tmp_path).count() < 5:
        time.sleep(0.01)
    os.kill(worker.pid or 0, signal.SIGKILL)
    worker.join()
    store = Store(tmp_path)
    assert store.verify() == []
    store.clean(settled=0)
    assert len(list((tmp_path / "arrays").iterdir())) == store.count()


# ---- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a?b=c", "a#b", "a%20b", "日本", "a@b:c"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    key = put(Store(tmp_path / name), 0)
    assert Store(Store(tmp_path / name).location, create=False).has(key)


def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot make a results store at .*file"):
        Store(tmp_path / "file" / "results")


@pytest.mark.parametrize(
    "location", ["mysql://user:secret@host/db", "postgresql://user:secret@host/db", "postgres//:secret://x"]
)
def test_another_database_is_refused_without_its_password(location: str) -> None:
    with pytest.raises(InputError, match="a results store is a directory or postgresql") as caught:
        Store(location)
    assert "secret" not in str(caught.value)


def test_an_earlier_store_another_database_and_no_database_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, 0)
    file = tmp_path / DATABASE_NAME
    with sqlite3.connect(file) as database:
        database.execute("UPDATE schema SET version = 3")
    with pytest.raises(FileFormatError, match=f"has version 3, and .* reads {SCHEMA_VERSION}"):
        Store(tmp_path)
    with sqlite3.connect(file) as database:
        database.execute("DROP TABLE schema")
    with pytest.raises(FileFormatError, match="is a database, but not a results store"):
        Store(tmp_path)
    file.write_bytes(b"no database at all" * 100)
    with pytest.raises(FileFormatError, match="is damaged, or is not a results store"):
        Store(tmp_path)
    (tmp_path / "arrays").mkdir(exist_ok=True)
    file.write_bytes(b"")
    with pytest.raises(FileFormatError, match="empty, but arrays of results lie beside it"):
        Store(tmp_path)


# ---- PostgreSQL ---------------------------------------------------------------------------------


def test_the_password_is_shown_nowhere(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database(arrays=str(tmp_path))
    store = Store(url)
    assert PASSWORD in store.location
    assert PASSWORD not in repr(store) + store.shown
    wrong = sa.make_url(url).set(password="not-it").render_as_string(hide_password=False)
    with pytest.raises(OutputError, match="cannot use the results store at") as caught:
        Store(wrong)
    assert "not-it" not in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_arrays_out_of_reach_say_what_to_give(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.database(arrays=str(tmp_path / "arrays of it"))
    key = Store(url).put("scores", {}, {}, {"a": torch.arange(3)})
    there = sa.make_url(url).update_query_dict({"arrays": str(tmp_path / "elsewhere")})
    with pytest.raises(FileFormatError, match=r"restore it, or pass \?arrays=DIR"):
        assert Store(there.render_as_string(hide_password=False)).get(key).arrays
