import multiprocessing
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.errors import FileFormatError, InputError, OutputError, UnknownNameError
from assay.measurement import record_id
from assay.store import DATABASE_NAME, ID_LENGTH, SCHEMA_VERSION, Store


PROVENANCE: dict[str, Any] = {
    "metric": "kl",
    "seed": 0,
    "task": {"name": "ioi", "n": 20},
    "machine": {"host": "a"},
}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def files_below(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


# ---------------------------------------------------------------------------------------------- identity


def test_machine_facts_are_no_part_of_the_identity() -> None:
    elsewhere = {**PROVENANCE, "machine": {"host": "b", "seconds": 3.5}}
    assert record_id("measurement", PROVENANCE) == record_id("measurement", elsewhere)


def test_kind_and_every_other_fact_are_part_of_the_identity() -> None:
    variants = [
        record_id("measurement", PROVENANCE),
        record_id("scores", PROVENANCE),
        record_id("measurement", {**PROVENANCE, "seed": 1}),
        record_id("measurement", {**PROVENANCE, "task": {"name": "ioi", "n": 21}}),
        record_id("measurement", {}),
    ]
    assert len(set(variants)) == len(variants)


def test_the_identity_worked_by_hand() -> None:
    # printf '{"kind":"measurement","provenance":{"seed":0}}' | sha256sum
    assert record_id("measurement", {"seed": 0, "machine": {}}) == "68a3417c3d9f6222"


@pytest.mark.parametrize("value", [b"bytes", Path("x"), object(), torch.float32])
def test_a_value_that_json_cannot_hold_is_refused(store: Store, value: object) -> None:
    with pytest.raises(InputError, match="only JSON values and arrays can be kept"):
        store.put("measurement", {"x": value}, {})
    with pytest.raises(InputError, match="only JSON values and arrays can be kept"):
        store.put("measurement", {}, {"x": value})
    assert store.find() == []


def test_tuples_arrays_and_undefined_numbers_are_kept_as_json_says_them(store: Store) -> None:
    payload = {"size": (1, 2), "curve": np.array([0.5, 1.0]), "value": float("nan"), "n": np.int64(3)}
    key = store.put("measurement", {"steps": (1, 2)}, payload)
    assert store.get(key).payload == {"size": [1, 2], "curve": [0.5, 1.0], "value": None, "n": 3}
    assert key == record_id("measurement", {"steps": [1, 2]})


# --------------------------------------------------------------------------------------------- round trip


def test_a_result_comes_back_as_it_was_put(store: Store) -> None:
    key = store.put("measurement", PROVENANCE, {"value": 0.25, "reason": None, "low": [1, 2]})
    result = store.get(key)
    assert (result.id, result.kind) == (key, "measurement")
    assert len(key) == ID_LENGTH
    assert result.provenance == PROVENANCE
    assert result.payload == {"value": 0.25, "reason": None, "low": [1, 2]}
    assert dict(result.arrays) == {}
    assert result.created.endswith("+00:00")


@pytest.mark.parametrize(
    "array",
    [
        torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
        torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).T,
        torch.arange(6, dtype=torch.int64),
        torch.tensor([True, False]),
        torch.zeros(2, dtype=torch.bfloat16),
        torch.tensor(1.5, dtype=torch.float64),
        torch.empty(0, 4),
        torch.ones(2, requires_grad=True),
    ],
    ids=str,
)
def test_tensors_come_back_equal_in_their_own_dtype(store: Store, array: torch.Tensor) -> None:
    found = store.get(store.put("scores", {}, {}, {"values": array})).arrays["values"]
    assert found.dtype == array.dtype
    assert torch.equal(found, array.detach())


@pytest.mark.parametrize(
    "array", [np.linspace(0, 1, 7), np.ones((2, 3), order="F"), np.array(2.0), np.ones(4)[::-1]]
)
def test_numpy_arrays_come_back_as_tensors(store: Store, array: np.ndarray) -> None:
    array.flags.writeable = False
    found = store.get(store.put("scores", {}, {}, {"values": array})).arrays["values"]
    assert found.shape == array.shape
    assert np.array_equal(found.numpy(), array)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([object()]), torch.zeros(2, dtype=torch.complex128)]
)
def test_an_array_that_is_not_numeric_is_refused_by_name(store: Store, array: Any) -> None:
    with pytest.raises(InputError, match="array 'labels' must be a dense array of real numbers"):
        store.put("scores", {}, {}, {"labels": array})
    assert store.find() == []


def test_a_reader_of_another_process_sees_what_was_put(store: Store) -> None:
    key = store.put("scores", PROVENANCE, {}, {"values": torch.arange(3)})
    again = Store(store.directory, create=False)
    assert torch.equal(again.get(key).arrays["values"], torch.arange(3))


def test_a_store_can_be_named_by_its_url(store: Store) -> None:
    key = store.put("scores", {}, {}, {"values": torch.arange(3)})
    assert Store(f"sqlite:///{store.directory}/{DATABASE_NAME}").get(key).arrays["values"].tolist() == [
        0,
        1,
        2,
    ]


# -------------------------------------------------------------------------------------------- idempotence


def test_putting_the_same_work_twice_changes_nothing(store: Store) -> None:
    first = store.put("scores", PROVENANCE, {"value": 1}, {"values": torch.arange(3)})
    before = files_below(store.directory), store.get(first).created
    second = store.put("scores", {**PROVENANCE, "machine": {}}, {"value": 2}, {"values": torch.arange(4)})
    assert second == first
    assert store.get(first).payload == {"value": 1}
    assert (files_below(store.directory), store.get(first).created) == before


def test_equal_arrays_share_one_file(store: Store) -> None:
    for seed in range(3):
        store.put("scores", {"seed": seed}, {}, {"values": torch.arange(3), "again": torch.arange(3)})
    assert len(list(store.directory.rglob("*.safetensors"))) == 1


def test_has_tells_whether_work_was_done(store: Store) -> None:
    key = record_id("measurement", PROVENANCE)
    assert not store.has(key)
    assert store.put("measurement", PROVENANCE, {}) == key
    assert store.has(key)
    assert not store.has(key[:6])  # a prefix is no identity


# ---------------------------------------------------------------------------------------------- look-ups


def test_a_unique_beginning_of_an_id_is_enough(store: Store) -> None:
    key = store.put("measurement", PROVENANCE, {})
    assert store.get(key[:4]).id == key
    assert store.get(f" {key[:8].upper()} ").id == key


def test_an_ambiguous_beginning_lists_the_matches(store: Store) -> None:
    keys = sorted(store.put("measurement", {"seed": seed}, {}) for seed in range(17))
    digit = next(key[0] for key in keys if sum(other[0] == key[0] for other in keys) > 1)
    matches = [key for key in keys if key[0] == digit]
    with pytest.raises(
        InputError, match=rf"'{digit}' is ambiguous, give more digits: {matches[0]} \(measurement"
    ):
        store.get(digit)


def test_a_long_list_of_matches_is_cut(store: Store) -> None:
    same_start = [seed for seed in range(400) if record_id("measurement", {"seed": seed}).startswith("0")]
    for seed in same_start[:11]:
        store.put("measurement", {"seed": seed}, {})
    with pytest.raises(InputError, match=r"'0' is ambiguous.*, and more$"):
        store.get("0")


@pytest.mark.parametrize("prefix", ["0" * ID_LENGTH, "fffffff"])
def test_an_unknown_id_is_an_error(store: Store, prefix: str) -> None:
    with pytest.raises(UnknownNameError, match=f"no result in .* begins with '{prefix}'"):
        store.get(prefix)


@pytest.mark.parametrize("prefix", ["", "xyz", "%", "ab_"])
def test_what_is_no_id_is_an_error(store: Store, prefix: str) -> None:
    store.put("measurement", PROVENANCE, {})
    with pytest.raises(UnknownNameError, match="a result id is up to 16 hex digits, got"):
        store.get(prefix)


def test_an_unknown_array_lists_those_there_are(store: Store) -> None:
    result = store.get(store.put("scores", {}, {}, {"values": torch.arange(3)}))
    assert "vlaues" not in result.arrays
    with pytest.raises(UnknownNameError, match="unknown array 'vlaues'; did you mean 'values'"):
        result.arrays["vlaues"]


@pytest.fixture
def filled(store: Store) -> Store:
    for seed in range(3):
        for task in ("ioi", "sva"):
            provenance = {"seed": seed, "task": {"name": task}, "tolerance": 0.1 * seed, "exact": seed == 0}
            store.put("measurement", provenance, {"value": seed / 2, "interval": {"low": 0.0}, "list": [1]})
    store.put("circuit", {"seed": 0}, {"n_edges": 7})
    return store


@pytest.mark.parametrize(
    ("kind", "filters", "count"),
    [
        (None, {}, 7),
        ("measurement", {}, 6),
        ("circuit", {}, 1),
        ("nothing", {}, 0),
        (None, {"seed": 0}, 3),
        ("measurement", {"seed": 0}, 2),
        (None, {"task__name": "ioi"}, 3),
        (None, {"task__name": "ioi", "seed": 2}, 1),
        (None, {"tolerance": 0.1}, 2),
        (None, {"exact": True}, 2),
        (None, {"exact": False}, 4),
        (None, {"missing": 1}, 0),
        (None, {"task__name__deeper": "ioi"}, 0),
    ],
)
def test_find_filters_by_kind_and_provenance(
    filled: Store, kind: str | None, filters: dict[str, Any], count: int
) -> None:
    found = filled.find(kind, **filters)
    assert len(found) == count
    assert all(kind in (None, result.kind) for result in found)


def test_find_returns_the_oldest_first(filled: Store) -> None:
    found = filled.find()
    assert [result.created for result in found] == sorted(result.created for result in found)
    assert found[-1].kind == "circuit"


def test_a_filter_on_a_container_is_refused(filled: Store) -> None:
    with pytest.raises(InputError, match="filter 'task' must be text, a number or a boolean"):
        filled.find(task={"name": "ioi"})


def test_the_frame_has_a_row_per_result_and_a_column_per_scalar(filled: Store) -> None:
    frame = filled.to_frame("measurement", task__name="ioi")
    assert frame["payload.value"].tolist() == [0.0, 0.5, 1.0]
    assert set(frame.columns) == {
        "kind",
        "created",
        "payload.value",
        "payload.interval.low",
        "provenance.seed",
        "provenance.task.name",
        "provenance.tolerance",
        "provenance.exact",
    }
    assert [filled.get(key).payload["value"] for key in frame.index] == [0.0, 0.5, 1.0]
    assert filled.to_frame("nothing").empty


# ------------------------------------------------------------------------------------------- broken places


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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_refuses_writers_and_serves_readers(store: Store) -> None:
    key = store.put("measurement", PROVENANCE, {"value": 1})
    for path in [*store.directory.rglob("*"), store.directory]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with pytest.raises(OutputError, match="cannot write"):
        store.put("measurement", {}, {})
    assert Store(store.directory).get(key).payload == {"value": 1}


def test_arrays_that_cannot_be_written_leave_nothing_behind(store: Store) -> None:
    (store.directory / "arrays").write_text("in the way")
    with pytest.raises(OutputError, match="cannot make .* for an array"):
        store.put("scores", {}, {}, {"values": torch.arange(3)})
    assert store.find() == []
    assert files_below(store.directory) == ["arrays", DATABASE_NAME]


def test_a_failed_write_of_an_array_removes_its_temporary_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        store.put("scores", {}, {}, {"values": torch.arange(3)})
    assert files_below(store.directory) == [DATABASE_NAME]


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    with sqlite3.connect(store.directory / DATABASE_NAME) as database:
        database.execute("UPDATE schema SET version = ?", (SCHEMA_VERSION + 1,))
    database.close()
    with pytest.raises(FileFormatError, match="written by a newer version of assay: its schema is 2"):
        Store(store.directory)


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


@pytest.mark.parametrize("place", ["head", "middle", "end", "empty"])
def test_a_changed_array_is_found_when_it_is_read(store: Store, place: str) -> None:
    key = store.put("scores", {}, {"value": 1}, {"values": torch.arange(100)})
    (path,) = store.directory.rglob("*.safetensors")
    data = bytearray(path.read_bytes())
    if place == "empty":
        data = bytearray()
    else:
        data[{"head": 0, "middle": len(data) // 2, "end": -1}[place]] ^= 1
    path.write_bytes(data)
    result = store.get(key)
    assert result.payload == {"value": 1}
    with pytest.raises(FileFormatError, match="was changed after it was stored"):
        result.arrays["values"]


def test_a_missing_array_file_is_named(store: Store) -> None:
    key = store.put("scores", {}, {}, {"values": torch.arange(100)})
    (path,) = store.directory.rglob("*.safetensors")
    path.unlink()
    with pytest.raises(FileFormatError, match=f"array file .*{path.name} of a stored result is missing"):
        store.get(key).arrays["values"]


@pytest.mark.parametrize("url", ["postgresql://u:secret@localhost/assay", "mysql://localhost/x"])
def test_another_database_is_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(InputError, match="a results store lives in SQLite for now") as caught:
        Store(url)
    assert "secret" not in str(caught.value)


def test_a_database_of_another_name_is_refused() -> None:
    with pytest.raises(InputError, match=r"the database of a results store is DIR/assay\.db, got"):
        Store("sqlite:///results.db")


# --------------------------------------------------------------------------------------- several processes


def _writer(directory: Path, worker: int, count: int, failures: Any) -> None:
    try:
        store = Store(directory)
        for index in range(count):
            store.put(
                "own", {"worker": worker, "index": index}, {}, {"values": torch.tensor([worker, index])}
            )
            store.put("common", {"index": index}, {}, {"values": torch.tensor([index])})
    except Exception as error:
        failures.put(repr(error))
        raise


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """All of them also race to make the store."""
    workers, count = 2, 25
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    processes = [
        context.Process(target=_writer, args=(tmp_path, each, count, failures)) for each in range(workers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert failures.empty(), failures.get()
    store = Store(tmp_path, create=False)
    assert len(store.find("own")) == workers * count
    assert len(store.find("common")) == count
    for result in store.find():
        expected = [result.provenance[key] for key in ("worker", "index") if key in result.provenance]
        assert result.arrays["values"].tolist() == expected
    assert not list((tmp_path / "arrays").rglob(".*"))


def test_a_writer_waits_for_another_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.store.BUSY_SECONDS", 0.05)
    impatient = Store(store.directory)
    lock = sqlite3.connect(store.directory / DATABASE_NAME, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with pytest.raises(OutputError, match="database is locked"):
        impatient.put("measurement", {}, {})
    assert impatient.find() == []  # readers go on
    lock.execute("ROLLBACK")
    lock.close()
    assert impatient.put("measurement", {}, {})
