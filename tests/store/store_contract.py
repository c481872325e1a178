"""What every store keeps, whatever database is under it: one class of tests.

A backend of your own is tested by a subclass whose fixture `location` gives the location of a new, empty
store; `directory` is where its arrays shall lie.
"""

import json
import math
import multiprocessing
import os
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import sqlalchemy as sa
import torch
from hypothesis import strategies as st
from type_checks import no_type_checks

from assay.core.errors import FileFormatError, InputError, OutputError, UnknownNameError
from assay.core.record import record_id
from assay.store import ID_LENGTH, About, Store, export_results
from assay.store.about import COLUMNS


PROVENANCE: dict[str, Any] = {
    "metric": "kl",
    "seed": 0,
    "task": {"name": "ioi", "n": 20},
    "machine": {"host": "a"},
}
HOSTILE = 'd\'où "x"; DROP TABLE results; -- %_\\ 日本 🤖 <script>'


def files_below(directory: Path) -> list[str]:
    """Names of all files of a store but its database and its mark."""
    own = ("assay.db", "assay-store")
    return sorted(path.name for path in directory.rglob("*") if path.is_file() and path.name not in own)


def _writer(location: str, worker: int, count: int, failures: Any) -> None:
    try:
        store = Store(location)
        for index in range(count):
            store.put(
                "own", {"worker": worker, "index": index}, {}, {"values": torch.tensor([worker, index])}
            )
            store.put("common", {"index": index}, {}, {"values": torch.tensor([index])})
    except Exception as error:
        failures.put(repr(error))
        raise


def _fail_after(n: int) -> Any:
    """A stand-in for `sqlalchemy.delete` that fails at the call after the first n."""
    calls = []

    def stand_in(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > n:
            raise RuntimeError("the plug was pulled")
        return DELETE(*arguments)

    return stand_in


DELETE = sa.delete

# ---- what Python would answer -------------------------------------------------------------------

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**60), 2**60),
    st.sampled_from([0.1, 0.5, -0.0, 1.0, 2.5, 1e300, 5e-324, 0.1 + 0.2, 0.9064234324055439, 1e22]),
    st.text("aAbé日'\"\\%_ .🤖", max_size=3),
    st.sampled_from(["null", "true", "1", "2.5", HOSTILE]),
)
# What is stored may hold a NUL, at which SQLite ends a text; conditions cannot.
_STORED = _SCALARS | st.sampled_from(["a\0b", "a\0", "\0", "1\0", "A\0bé", "\\\0", "\\u0000"])
_PATHS = ("payload.x", "payload.deep.x", 'payload."a.b"', "provenance.x", "provenance.deep.é")


def _answer(found: object, operator: str, wanted: object) -> bool:
    """Whether a condition holds of a value."""
    if operator == "!=":
        return found is not None and not _answer(found, "=", wanted)
    if wanted is None:
        return found is None
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted and operator == "="
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return _compare(found, operator, wanted)
    if isinstance(found, str) and isinstance(wanted, str):
        if operator == "~":
            return _lower(wanted) in _lower(found)
        return _compare(found, operator, wanted)
    return False


def _compare(found: Any, operator: str, wanted: Any) -> bool:
    return bool(
        {
            "=": found == wanted,
            "<": found < wanted,
            "<=": found <= wanted,
            ">": found > wanted,
            ">=": found >= wanted,
        }.get(operator, False)
    )


def _lower(text: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


def _inside(record: Any, path: str) -> object:
    keys = ["a.b"] if path.endswith('"a.b"') else path.split(".")[1:]
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


class StoreContract:
    """Tests of one backend; `location` is a fixture of the subclass."""

    @pytest.fixture
    def store(self, location: str) -> Store:
        return Store(location)

    # ---- values ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("value", [b"bytes", Path("x"), object(), torch.float32])
    def test_a_value_that_json_cannot_hold_is_refused(self, store: Store, value: object) -> None:
        with pytest.raises(InputError, match="only JSON values and arrays can be kept"):
            store.put("measurement", {"x": value}, {})
        with pytest.raises(InputError, match="only JSON values and arrays can be kept"):
            store.put("measurement", {}, {"x": value})
        assert store.find() == []

    def test_tuples_arrays_and_undefined_numbers_are_kept_as_json_says_them(self, store: Store) -> None:
        payload = {"size": (1, 2), "curve": np.array([0.5, 1.0]), "value": float("nan"), "n": np.int64(3)}
        key = store.put("measurement", {"steps": (1, 2)}, payload)
        assert store.get(key).payload == {"size": [1, 2], "curve": [0.5, 1.0], "value": None, "n": 3}
        assert key == record_id("measurement", {"steps": [1, 2]})

    def test_a_result_comes_back_as_it_was_put(self, store: Store) -> None:
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
    def test_tensors_come_back_equal_in_their_own_dtype(self, store: Store, array: torch.Tensor) -> None:
        found = store.get(store.put("scores", {}, {}, {"values": array})).arrays["values"]
        assert found.dtype == array.dtype
        assert torch.equal(found, array.detach())

    @pytest.mark.parametrize(
        "array", [np.linspace(0, 1, 7), np.ones((2, 3), order="F"), np.array(2.0), np.ones(4)[::-1]]
    )
    def test_numpy_arrays_come_back_as_tensors(self, store: Store, array: np.ndarray) -> None:
        array.flags.writeable = False
        found = store.get(store.put("scores", {}, {}, {"values": array})).arrays["values"]
        assert found.shape == array.shape
        assert np.array_equal(found.numpy(), array)

    @pytest.mark.parametrize(
        "array", [np.array(["a"]), np.array([object()]), torch.zeros(2, dtype=torch.complex128)]
    )
    def test_an_array_that_is_not_numeric_is_refused_by_name(self, store: Store, array: Any) -> None:
        with pytest.raises(InputError, match="array 'labels' must be a dense array of real numbers"):
            store.put("scores", {}, {}, {"labels": array})
        assert store.find() == []

    def test_a_reader_of_another_process_sees_what_was_put(self, store: Store) -> None:
        key = store.put("scores", PROVENANCE, {}, {"values": torch.arange(3)})
        again = Store(store.location, create=False)
        assert torch.equal(again.get(key).arrays["values"], torch.arange(3))

    def test_putting_the_same_work_twice_changes_nothing(self, store: Store) -> None:
        first = store.put("scores", PROVENANCE, {"value": 1}, {"values": torch.arange(3)})
        before = files_below(store.directory), store.get(first).created
        second = store.put("scores", {**PROVENANCE, "machine": {}}, {"value": 2}, {"values": torch.arange(4)})
        assert second == first
        assert store.get(first).payload == {"value": 1}
        assert (files_below(store.directory), store.get(first).created) == before

    def test_equal_arrays_share_one_file(self, store: Store) -> None:
        for seed in range(3):
            store.put("scores", {"seed": seed}, {}, {"values": torch.arange(3), "again": torch.arange(3)})
        assert len(list(store.directory.rglob("*.safetensors"))) == 1

    def test_has_tells_whether_work_was_done(self, store: Store) -> None:
        key = record_id("measurement", PROVENANCE)
        assert not store.has(key)
        assert store.put("measurement", PROVENANCE, {}) == key
        assert store.has(key)
        assert not store.has(key[:6])  # a prefix is not an identity

    def test_a_unique_beginning_of_an_id_is_enough(self, store: Store) -> None:
        key = store.put("measurement", PROVENANCE, {})
        assert store.get(key[:4]).id == key
        assert store.get(f" {key[:8].upper()} ").id == key

    def test_an_ambiguous_beginning_lists_the_matches(self, store: Store) -> None:
        keys = sorted(store.put("measurement", {"seed": seed}, {}) for seed in range(17))
        digit = next(key[0] for key in keys if sum(other[0] == key[0] for other in keys) > 1)
        matches = [key for key in keys if key[0] == digit]
        with pytest.raises(
            InputError, match=rf"'{digit}' is ambiguous, give more digits: {matches[0]} \(measurement"
        ):
            store.get(digit)

    def test_a_long_list_of_matches_is_cut(self, store: Store) -> None:
        same_start = [seed for seed in range(400) if record_id("measurement", {"seed": seed}).startswith("0")]
        for seed in same_start[:11]:
            store.put("measurement", {"seed": seed}, {})
        with pytest.raises(InputError, match=r"'0' is ambiguous.*, and more$"):
            store.get("0")

    @pytest.mark.parametrize("prefix", ["0" * ID_LENGTH, "fffffff"])
    def test_an_unknown_id_is_an_error(self, store: Store, prefix: str) -> None:
        with pytest.raises(UnknownNameError, match=f"no result in .* begins with '{prefix}'"):
            store.get(prefix)

    @pytest.mark.parametrize("prefix", ["", "xyz", "%", "ab_"])
    def test_what_is_no_id_is_an_error(self, store: Store, prefix: str) -> None:
        store.put("measurement", PROVENANCE, {})
        with pytest.raises(UnknownNameError, match="a result id is up to 16 hex digits, got"):
            store.get(prefix)

    def test_an_unknown_array_lists_those_there_are(self, store: Store) -> None:
        result = store.get(store.put("scores", {}, {}, {"values": torch.arange(3)}))
        assert "vlaues" not in result.arrays
        with pytest.raises(UnknownNameError, match="unknown array 'vlaues'; did you mean 'values'"):
            result.arrays["vlaues"]

    @pytest.fixture
    def filled(self, store: Store) -> Store:
        for seed in range(3):
            for task in ("ioi", "sva"):
                provenance = {
                    "seed": seed,
                    "task": {"name": task},
                    "tolerance": 0.1 * seed,
                    "exact": seed == 0,
                }
                store.put(
                    "measurement", provenance, {"value": seed / 2, "interval": {"low": 0.0}, "list": [1]}
                )
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
        self, filled: Store, kind: str | None, filters: dict[str, Any], count: int
    ) -> None:
        found = filled.find(kind, **filters)
        assert len(found) == count
        assert all(kind in (None, result.kind) for result in found)

    def test_find_returns_the_oldest_first(self, filled: Store) -> None:
        found = filled.find()
        assert [result.created for result in found] == sorted(result.created for result in found)
        assert found[-1].kind == "circuit"

    def test_a_filter_on_a_container_is_refused(self, filled: Store) -> None:
        with pytest.raises(InputError, match="filter 'task' must be text, a number or a boolean"):
            filled.find(task={"name": "ioi"})

    def test_the_frame_has_a_row_per_result_and_a_column_per_scalar(self, filled: Store) -> None:
        frame = filled.to_frame("measurement", task__name="ioi")
        assert frame["payload.value"].tolist() == [0.0, 0.5, 1.0]
        assert set(frame.columns) == {
            "kind",
            "created",
            "method",
            "payload.value",
            "payload.interval.low",
            "provenance.seed",
            "provenance.task.name",
            "provenance.tolerance",
            "provenance.exact",
        }
        assert [filled.get(key).payload["value"] for key in frame.index] == [0.0, 0.5, 1.0]
        assert filled.to_frame("nothing").empty

    def test_arrays_that_cannot_be_written_leave_nothing_behind(self, store: Store) -> None:
        (store.directory / "arrays").write_text("in the way")
        with pytest.raises(OutputError, match="cannot make .* for an array"):
            store.put("scores", {}, {}, {"values": torch.arange(3)})
        assert store.find() == []
        assert files_below(store.directory) == ["arrays"]

    def test_a_failed_write_of_an_array_removes_its_temporary_file(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OutputError, match="No space left on device"):
            store.put("scores", {}, {}, {"values": torch.arange(3)})
        assert files_below(store.directory) == []

    @pytest.mark.parametrize("place", ["head", "middle", "end", "empty"])
    def test_a_changed_array_is_found_when_it_is_read(self, store: Store, place: str) -> None:
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

    def test_a_missing_array_file_is_named(self, store: Store) -> None:
        key = store.put("scores", {}, {}, {"values": torch.arange(100)})
        (path,) = store.directory.rglob("*.safetensors")
        path.unlink()
        with pytest.raises(FileFormatError, match=f"array file .*{path.name} of a stored result is missing"):
            store.get(key).arrays["values"]

    def test_processes_that_write_at_the_same_time_lose_nothing(self, location: str) -> None:
        """All of them also race to make the store."""
        workers, count = 2, 25
        context = multiprocessing.get_context("fork")
        failures = context.SimpleQueue()
        processes = [
            context.Process(target=_writer, args=(location, each, count, failures)) for each in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert failures.empty(), failures.get()
        store = Store(location, create=False)
        assert len(store.find("own")) == workers * count
        assert len(store.find("common")) == count
        for result in store.find():
            expected = [result.provenance[key] for key in ("worker", "index") if key in result.provenance]
            assert result.arrays["values"].tolist() == expected
        assert not list(store.directory.rglob(".*"))

    def test_hostile_text_is_kept_and_found(self, store: Store) -> None:
        payload = {HOSTILE: HOSTILE, "value": 1.0, "inner": {"text": HOSTILE}}
        about = About(task=HOSTILE)
        key = store.put("measurement", {"task": {"name": HOSTILE}, "note": HOSTILE}, payload, about=about)
        assert store.get(key).payload == payload
        quoted = json.dumps(HOSTILE)
        for where in (
            f"task = {HOSTILE}",
            f"task = {quoted}",
            f"payload.inner.text = {quoted}",
            "task ~ drop table",
        ):
            assert [each.id for each in store.query(where=where)] == [key], where
        assert [each.id for each in store.find(note=HOSTILE)] == [key]
        assert store.count(where="task = d'où") == 0

    def test_text_that_no_database_column_holds_is_kept(self, store: Store) -> None:
        payload = {"nul": "a\0b", "half": "\ud800", "value": 2.0}
        key = store.put("measurement", {"task": {"name": "a\0b"}}, payload, about=About(task="a\0b"))
        assert store.get(key).payload == payload
        assert store.query("measurement")[0].task == "a\ufffdb"
        other = store.put("measurement", {"seed": 1}, {"value": 3.0, "text": "\\udots \\u0000"})
        assert [each.id for each in store.query(where="payload.value = 3")] == [other]
        assert [each.id for each in store.query(where="payload.text ~ dots")] == [other]

    def test_half_of_a_pair_in_a_provenance_is_refused(self, store: Store) -> None:
        with pytest.raises(InputError, match="half a surrogate pair"):
            store.put("measurement", {"x": "\ud800"}, {})

    @pytest.mark.parametrize("kind", ["", "x" * 65, "a\0"])
    def test_a_kind_that_is_no_name_is_refused(self, store: Store, kind: str) -> None:
        with pytest.raises(InputError, match="a kind is text of 1 to 64 characters"):
            store.put(kind, {}, {})

    def test_any_json_comes_back(self, store: Store) -> None:
        keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
        values = st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | keys,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
            max_leaves=8,
        )
        documents = st.dictionaries(keys, values, max_size=4)

        @hypothesis.settings(max_examples=25, deadline=None)
        @hypothesis.given(provenance=documents, payload=documents)
        def check(provenance: dict[str, Any], payload: dict[str, Any]) -> None:
            with no_type_checks():
                key = store.put("any", provenance, payload)
                found = store.get(key)
                if found.payload == payload:  # else the same provenance came before
                    assert list(found.payload) == list(payload)
                assert {**found.provenance, "machine": 0} == {**provenance, "machine": 0}
                assert key == record_id("any", provenance)

        check()
        assert store.verify() == []

    # ---- questions ------------------------------------------------------------------------------

    @pytest.fixture
    def measured(self, store: Store) -> Store:
        """Measurements whose value is a tenth of their seed; those of odd seed have no verdict."""
        for seed in range(6):
            provenance = {
                "model": {"id": "mini" if seed < 4 else "gpt2"},
                "task": {"name": "ioi", "n": 20},
                "metric": {"key": "kl"},
                "method": "eap",
                "seed": seed,
                "circuit": "c0ffee",
            }
            interval = {"low": 0.1 * seed - 1, "high": 0.1 * seed + 1}
            payload = {"value": 0.1 * seed, "interval": interval, "n": 20}
            about = About(
                model=provenance["model"]["id"],
                task="ioi",
                method="eap",
                metric="kl",
                n=20,
                seed=seed,
                value=0.1 * seed,
                **interval,
                status=None if seed % 2 else "pass",
                circuit="c0ffee",
                size=10 * seed,
            )
            status = {} if seed % 2 else {"status": "pass"}
            store.put("measurement", provenance, payload | status, about=about)
        provenance = {"model": {"id": "mini"}, "method": {"key": "acdc"}, "seed": 9}
        about = About(model="mini", method="acdc", seed=9)
        store.put("scores", provenance, {"details": {"a": 1}}, about=about)
        return store

    @pytest.mark.parametrize(
        ("where", "seeds"),
        [
            ((), [0, 1, 2, 3, 4, 5, 9]),
            ("model = gpt2", [4, 5]),
            ("model=gpt2", [4, 5]),
            ("model == gpt2", [4, 5]),
            ("model != gpt2", [0, 1, 2, 3, 9]),
            (["model = mini", "value > 0.15"], [2, 3]),
            ("value >= 0.2", [2, 3, 4, 5]),
            ("value < 0.1", [0]),
            ("value <= 1e-1", [0, 1]),
            ("value = 0", [0]),
            ("value = null", [9]),
            ("value != null", [0, 1, 2, 3, 4, 5]),
            ("status = null", [1, 3, 5, 9]),
            ("status != fail", [0, 2, 4]),
            ("verdict = pass", [0, 2, 4]),
            ('task = "ioi and metric = kl"', []),
            ("task = ioi and others; and more", []),
            ("model ~ MIN", [0, 1, 2, 3, 9]),
            ("metric = kl", [0, 1, 2, 3, 4, 5]),
            ("method < b", [9]),
            ("seed > 2.5", [3, 4, 5, 9]),
            ("n = 20", [0, 1, 2, 3, 4, 5]),
            ("circuit = c0ffee", [0, 1, 2, 3, 4, 5]),
            ("size >= 30", [3, 4, 5]),
            ("low < -0.85", [0, 1]),
            ("provenance.seed = 3", [3]),
            ("provenance.task.name = ioi", [0, 1, 2, 3, 4, 5]),
            ("provenance.model.id = mini", [0, 1, 2, 3, 9]),
            ("payload.interval.high > 1.25", [3, 4, 5]),
            ("payload.details.a = 1", [9]),
            ("payload.details = null", [0, 1, 2, 3, 4, 5]),
            ("payload.status = pass", [0, 2, 4]),
            ('provenance.task.n = "20"', []),
            ("created > 2020-01-01", [0, 1, 2, 3, 4, 5, 9]),
            ("created ~ +00:00", [0, 1, 2, 3, 4, 5, 9]),
        ],
    )
    def test_conditions_choose_results(self, measured: Store, where: Any, seeds: list[int]) -> None:
        assert [found.seed for found in measured.query(where=where, order="seed")] == seeds
        assert measured.count(where=where) == len(seeds)

    def test_a_summary_says_what_a_result_is(self, measured: Store) -> None:
        (found,) = measured.query("measurement", where="seed = 2")
        assert (found.model, found.task, found.method, found.metric) == ("mini", "ioi", "eap", "kl")
        assert (found.n, found.seed, found.value, found.status) == (20, 2, 0.2, "pass")
        assert (found.low, found.high) == (0.1 * 2 - 1, 0.1 * 2 + 1)
        assert found.about == "kl of eap on ioi in mini"
        assert found == measured.get(found.id).summary
        assert measured.get(found.id).created == found.created

    @pytest.mark.parametrize(
        ("order", "seeds"),
        [
            ("created", [0, 1, 2, 3, 4, 5, 9]),
            ("-created", [9, 5, 4, 3, 2, 1, 0]),
            ("-value", [5, 4, 3, 2, 1, 0, 9]),
            ("value", [0, 1, 2, 3, 4, 5, 9]),
            ("-seed", [9, 5, 4, 3, 2, 1, 0]),
        ],
    )
    def test_results_come_in_the_order_asked_for(self, measured: Store, order: str, seeds: list[int]) -> None:
        assert [found.seed for found in measured.query(order=order)] == seeds
        assert [found.seed for found in measured.query(order=order, limit=3, offset=1)] == seeds[1:4]
        assert [found.seed for found in measured.query(order=order, offset=5)] == seeds[5:]
        assert measured.query(order=order, limit=0) == []

    def test_ties_break_by_id(self, measured: Store) -> None:
        found = [each.id for each in measured.query("measurement", order="model")]
        gpt2 = sorted(each.id for each in measured.query(where="model = gpt2"))
        assert found[:2] == gpt2
        assert [each.id for each in measured.query(order="-metric")][:6] == sorted(found, reverse=True)

    @pytest.mark.parametrize(
        ("where", "message"),
        [
            ("modle = mini", r"unknown column 'modle'; did you mean 'model'.*payload\.modle"),
            ("payloda.value = 1", "unknown document 'payloda'; did you mean 'payload'"),
            ("payload = 1", r"payload is a document; name a field inside it, e.g. payload\.seed"),
            (
                "model",
                "cannot read the condition 'model'; write KEY OP VALUE with OP one of = != < <= > >= ~",
            ),
            ("model =", "cannot read the condition"),
            ("= mini", "cannot read the condition"),
            ("", "cannot read the condition"),
            ("value > high", "value compares with a number or null, got 'high'"),
            ("value ~ 1", "~ searches text, but value is a number"),
            ("value > null", "null is only equal or not"),
            ("payload.x < true", "true is only equal or not"),
            ("payload.x ~ 1", "quote the number"),
            ("value > 1e999", "outside the range of numbers"),
            ('payload.x = "unfinished', "cannot read .* as quoted text"),
            (
                "task = ioi and metric = kl",
                "looks like several conditions.*each separately.*in double quotes",
            ),
            ("value > 0.1 OR payload.x.y>=3", "looks like several conditions"),
            ("task = ioi; metric ~ kl", "looks like several conditions"),
            ("metric = kl, task = ioi", "looks like several conditions"),
            ("metric = kl and not task = ioi", "looks like several conditions"),
            ("metric = kl && task = ioi", "looks like several conditions"),
            ('task = "ioi" and payload."a b" != 1', "looks like several conditions"),
            ("task === ioi", "none of the operators = != < <= > >= ~; .* begins with = in double quotes"),
            ("task =~ io", "none of the operators"),
            ('payload."" = 1', "a path cannot contain a key such as ''"),
        ],
    )
    def test_a_condition_that_cannot_be_read_says_how_to_write_it(
        self, store: Store, where: str, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            store.query(where=where)

    def test_an_unknown_order_names_near_columns(self, store: Store) -> None:
        with pytest.raises(
            UnknownNameError, match="unknown column to order by 'creatd'; did you mean 'created'"
        ):
            store.query(order="-creatd")
        with pytest.raises(InputError, match="limit counts results, from 0 and below 2.63; got -1"):
            store.query(limit=-1)
        with pytest.raises(InputError, match="offset counts results"):
            store.query(offset=2**70)

    def test_an_id_that_looks_like_a_number_is_an_id(self, store: Store) -> None:
        identity = store.put("measurement", {"seed": 0}, {"value": 0.5})
        assert [each.id for each in store.query(where=f"id = {identity}")] == [identity]
        assert store.query(where="id = 8056198544e01753") == []
        with pytest.raises(InputError, match="NUL or half a character"):
            store.query(where='model = "\\ud800"')

    def test_a_text_with_a_nul_is_not_its_beginning(self, store: Store) -> None:
        long = store.put("any", {"x": "ioi\0more"}, {"x": "ioi\0more"})
        short = store.put("any", {"x": "ioi"}, {"x": "ioi"})
        for document in ("provenance", "payload"):
            assert [each.id for each in store.query(where=f"{document}.x = ioi")] == [short]
            assert [each.id for each in store.query(where=f"{document}.x != ioi")] == [long]
        assert [each.id for each in store.find("any", x="ioi")] == [short]

    def test_conditions_hold_as_in_python(self, store: Store) -> None:
        documents: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        record = st.fixed_dictionaries(
            {},
            optional={
                "x": _STORED | st.lists(st.integers(), max_size=1),
                "deep": st.fixed_dictionaries({}, optional={"x": _STORED, "é": _STORED}) | _STORED,
                "a.b": _STORED,
            },
        )

        @hypothesis.settings(
            max_examples=40, deadline=None, database=None, phases=[hypothesis.Phase.generate]
        )
        @hypothesis.given(provenance=record, payload=record)
        def fill(provenance: dict[str, Any], payload: dict[str, Any]) -> None:
            provenance = {**provenance, "number": len(documents)}
            documents.append((store.put("any", provenance, payload), provenance, payload))

        @hypothesis.settings(max_examples=150, deadline=None)
        @hypothesis.given(
            path=st.sampled_from(_PATHS),
            operator=st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "~"]),
            wanted=_SCALARS,
        )
        def check(path: str, operator: str, wanted: Any) -> None:
            text = isinstance(wanted, str)
            ordered = text or (isinstance(wanted, int | float) and not isinstance(wanted, bool))
            hypothesis.assume(operator in ("=", "!=") or ordered)
            hypothesis.assume(operator != "~" or text)
            expected = {
                key
                for key, provenance, payload in documents
                if _answer(
                    _inside(payload if path.startswith("payload") else provenance, path), operator, wanted
                )
            }
            with no_type_checks():
                found = {each.id for each in store.query(where=f"{path} {operator} {json.dumps(wanted)}")}
            assert found == expected

        with no_type_checks():
            fill()
        check()

    def test_a_measurement_has_the_method_that_found_its_circuit(self, store: Store) -> None:
        def put(kind: str, number: int, **facts: Any) -> None:
            store.put(kind, {"number": number}, {}, about=About(**facts))

        for number, (method, circuit) in enumerate(
            (("eap", "a"), ("acdc", "b"), ("eap-ig-inputs", "a"), ("ugs", None))
        ):
            put("circuit", number, method=method, circuit=circuit)
        for number, circuit in enumerate(("a", "b", "c")):
            put("measurement", number, metric="kl", circuit=circuit, value=1.0)
        put("measurement", 3, metric="kl", circuit="a", method="own", value=1.0)
        put("measurement", 4, metric="kl", value=1.0)

        def found(*where: str) -> list[tuple[str | None, str | None]]:
            chosen = store.query("measurement", where=list(where), order="method")
            return [(each.circuit, each.method) for each in chosen]

        nothing = [("c", None), (None, None)]
        assert found()[:3] == [("b", "acdc"), ("a", "eap"), ("a", "own")]
        assert sorted(found()[3:], key=str) == sorted(nothing, key=str)
        assert found("method = eap") == found("method = eap-ig-inputs") == [("a", "eap")]
        assert found("method = acdc", "value > 0") == [("b", "acdc")]
        assert found("method ~ ig") == [("a", "eap")]
        assert found("method != eap") == [("b", "acdc"), ("a", "eap"), ("a", "own")]
        assert found("method != null") == [("b", "acdc"), ("a", "eap"), ("a", "own")]
        assert sorted(found("method = null"), key=str) == sorted(nothing, key=str)
        assert found("method = nothing") == []
        assert store.count("measurement", where="method = eap") == 1
        # Another task's circuit may be the same; a circuit without a method has none.
        put("circuit", 4, method="random", task="sva", circuit="a")
        put("circuit", 5, circuit="a")
        assert found("method = random") == []
        assert [each.method for each in store.query("circuit", where="circuit = a")].count(None) == 1
        assert store.count("circuit", where="method = eap") == 1
        assert [each.method for each in store.query("circuit", where="method = ugs")] == ["ugs"]
        frame = store.to_frame("measurement", where="method = eap")
        assert list(frame["method"]) == ["eap"]
        store.put("note", {"a": 1}, {"provenance": {"source": "paper"}, "circuit": "a"})
        (note,) = store.to_frame("note").to_dict("records")
        assert (note["method"], note["payload.provenance.source"]) == (None, "paper")

    def test_the_frame_takes_conditions_an_order_and_a_limit(self, measured: Store) -> None:
        frame = measured.to_frame("measurement", where="value > 0.05", order="-value", limit=2, method="eap")
        assert frame["provenance.seed"].tolist() == [5, 4]
        assert math.isnan(measured.to_frame()["payload.value"].iloc[-1])

    # ---- the whole ------------------------------------------------------------------------------

    def test_the_digest_knows_content_and_nothing_else(self, store: Store, tmp_path: Path) -> None:
        other = Store(tmp_path / "other")
        assert store.digest() == other.digest()
        facts = {"seconds": 1.0, "machine": {"host": "a"}, "deep": [{"created": "now", "x": 1}]}
        later = {"seconds": 2.0, "machine": {"host": "b"}, "deep": [{"created": "then", "x": 1}]}
        store.put("scores", PROVENANCE, {"value": 1.5, **facts}, {"a": torch.arange(3)})
        store.put("audit", {"seed": 1}, {"text": "日本"})
        other.put("audit", {"seed": 1}, {"text": "日本"})
        assert store.digest() != other.digest()
        assert store.digest(["audit"]) == other.digest(["audit"])
        other.put("scores", {**PROVENANCE, "machine": {}}, {"value": 1.5, **later}, {"a": torch.arange(3)})
        assert store.digest() == other.digest()
        assert store.digest(kinds=["scores"]) == other.digest(kinds=["scores"]) != store.digest()

    @pytest.mark.parametrize(
        ("payload", "values"),
        [({"value": 2}, [0]), ({"value": 1}, [1]), ({"value": 1, "deep": {"x": None}}, [0])],
    )
    def test_the_digest_sees_every_change(
        self, store: Store, tmp_path: Path, payload: dict[str, Any], values: list[int]
    ) -> None:
        other = Store(tmp_path / "other")
        store.put("scores", PROVENANCE, {"value": 1}, {"a": torch.tensor([0])})
        other.put("scores", PROVENANCE, payload, {"a": torch.tensor(values)})
        assert store.digest() != other.digest()

    def test_a_whole_store_verifies(self, measured: Store) -> None:
        measured.put("scores", {"seed": 77}, {}, {"a": torch.arange(3)})
        assert measured.verify() == []

    def test_verify_names_what_is_missing_or_changed(self, store: Store) -> None:
        store.put("scores", {"seed": 1}, {}, {"a": torch.arange(3), "b": torch.arange(4)})
        store.put("scores", {"seed": 2}, {}, {"c": torch.arange(3)})
        first, second = sorted(store.directory.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
        first.unlink()
        second.write_bytes(second.read_bytes()[:-1])
        problems = store.verify()
        assert len(problems) == 3
        assert sum("is missing" in each for each in problems) == 2
        assert sum("was changed after it was stored" in each for each in problems) == 1

    # ---- changing it ----------------------------------------------------------------------------

    def test_what_is_removed_is_gone_with_the_arrays_that_only_it_had(self, store: Store) -> None:
        shared, own = torch.arange(3), torch.arange(4)
        first = store.put("scores", {"seed": 1}, {}, {"a": shared, "b": own})
        second = store.put("scores", {"seed": 2}, {}, {"a": shared})
        (removed,) = store.remove([first[:8]])
        assert (removed.id, store.has(first), store.count()) == (first, False, 1)
        assert len(files_below(store.directory)) == 1
        assert store.get(second).arrays["a"].tolist() == [0, 1, 2]
        assert store.verify() == []
        assert store.put("scores", {"seed": 1}, {}, {"a": shared, "b": own}) == first
        assert store.verify() == []

    def test_what_others_refer_to_stays_unless_forced_and_so_does_all_else(self, store: Store) -> None:
        scores = store.put("scores", {"seed": 1}, {}, {"a": torch.arange(3)})
        job = store.put("job", {"seed": 1}, {"results": [scores]})
        circuit = store.put("circuit", {"seed": 1}, {}, about=About(circuit="ab" * 8))
        measured = store.put("measurement", {"seed": 1}, {}, about=About(circuit="ab" * 8))
        alone = store.put("audit", {"seed": 1}, {})
        before = store.digest()
        for identity, other in ((scores, job), (circuit, measured)):
            with pytest.raises(
                InputError, match=f"{identity} cannot be removed, because {other} refer to it"
            ):
                store.remove([alone, identity])
        for wrong in ("ab" * 4, "0" * 16):  # the hash of a circuit, and nothing at all
            with pytest.raises(UnknownNameError, match="begins"):
                store.remove([alone, wrong])
        assert store.digest() == before
        assert {each.id for each in store.remove([scores, job])} == {scores, job}
        store.remove([circuit], force=True)
        assert {each.id for each in store.query()} == {measured, alone}

    def test_a_removal_that_fails_removes_nothing(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = [store.put("scores", {"seed": seed}, {}, {"a": torch.arange(3 + seed)}) for seed in range(3)]
        before = store.digest()
        with monkeypatch.context() as full:
            full.setattr("assay.store.changing.CHUNK", 1)
            full.setattr("assay.store.changing.sa.delete", _fail_after(5))
            with pytest.raises(RuntimeError, match="pulled"):
                store.remove(keys)
        assert (store.digest(), store.verify()) == (before, [])
        with monkeypatch.context() as killed:
            killed.setattr("assay.store.results.remove_files", _fail_after(0))
            with pytest.raises(RuntimeError, match="pulled"):
                store.remove(keys)
        assert store.verify() == []
        assert store.count() == 0
        assert len(store.remove_leftovers(settled=0.0)) == 3

    def test_a_merge_adds_what_is_missing_and_nothing_twice(self, store: Store, tmp_path: Path) -> None:
        other = Store(tmp_path / "other")
        for each in (store, other):
            machine = {"host": each.url}
            each.put("scores", {"seed": 0, "machine": machine}, {"seconds": 1}, {"a": torch.arange(3)})
        key = other.put("audit", {"seed": 1}, {"x": None}, {"b": torch.arange(5)}, about=About(value=0.5))
        assert store.merge(other) == [key]
        assert (store.merge(other), store.merge(store)) == ([], [])
        assert store.digest() == other.digest()
        assert store.verify() == []
        (summary,) = store.query("audit")
        assert (summary, summary.value) == (*other.query("audit"), 0.5)

    def test_a_merge_of_what_differs_is_refused_by_name_and_adds_nothing(
        self, store: Store, tmp_path: Path
    ) -> None:
        other = Store(tmp_path / "other")
        key = store.put("scores", {"seed": 0}, {"x": 1}, {"a": torch.arange(3)})
        other.put("scores", {"seed": 0}, {"x": 2}, {"a": torch.arange(3)})
        other.put("scores", {"seed": 1}, {})
        with pytest.raises(InputError, match=f"both stores hold {key}, but with different content"):
            store.merge(other)
        assert store.count() == 1

    def test_an_interrupted_merge_goes_on_and_a_damaged_array_is_not_taken(
        self, store: Store, tmp_path: Path
    ) -> None:
        other = Store(tmp_path / "other")
        keys = {other.put("scores", {"seed": seed}, {}, {"a": torch.arange(3 + seed)}) for seed in range(2)}
        last = other.get(max(keys))
        file = next(other.directory.rglob(f"{last.arrays.hashes['a']}*"))
        whole = file.read_bytes()
        file.write_bytes(whole[:-1])
        with pytest.raises(FileFormatError, match="was changed after it was stored"):
            store.merge(other)
        assert [each.id for each in store.query()] == [min(keys)]
        assert store.verify() == []
        file.write_bytes(whole)
        assert store.merge(other) == [max(keys)]
        assert store.digest() == other.digest()

    def test_parquet_holds_the_columns_and_the_records(self, store: Store, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        about = About(model="mini", metric="kl", n=5, value=0.5, low=0.25, high=1.0)
        key = store.put("measurement", {"seed": 0}, {"unit": "nats", "x": None}, about=about)
        store.put("scores", {"seed": 1}, {})
        (path,) = export_results(store, tmp_path / "new" / "all.parquet")
        table = parquet.read_table(path)
        assert table.column_names == [*COLUMNS, "provenance", "payload"]
        assert [str(table.schema.field(name).type) for name in ("value", "n", "id")] == [
            "double", "int64", "string",
        ]  # fmt: skip
        first, second = table.to_pylist()
        assert (first["id"], first["value"], first["n"], first["task"]) == (key, 0.5, 5, None)
        assert json.loads(first["payload"]) == {"unit": "nats", "x": None}
        assert (second["kind"], second["value"]) == ("scores", None)
        files = export_results(store, tmp_path / "kinds")
        assert {file.name: n for file, n in files.items()} == {"measurement.parquet": 1, "scores.parquet": 1}
        assert export_results(store, tmp_path / "kl.parquet", where="metric = kl") == {
            tmp_path / "kl.parquet": 1
        }
        with pytest.raises(InputError, match="nothing to export"):
            export_results(store, tmp_path / "none.parquet", kind="audit")
        with pytest.raises(InputError, match=r"does not end in \.parquet"):
            export_results(store, tmp_path / "all.csv")

    def test_a_store_opens_again_by_its_location(self, store: Store) -> None:
        key = store.put("scores", PROVENANCE, {}, {"a": torch.arange(3)})
        again = Store(store.location)
        assert again.directory == store.directory
        assert again.get(key).arrays["a"].tolist() == [0, 1, 2]
        assert again.digest() == store.digest()
