"""Values of the public classes: a line for each, progress of long calls, tables."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import assay
from assay.core.machine import COUNTING, entered


def test_in_a_notebook_progress_is_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, value: object) -> None:
            shown.append(("update", repr(value)))

    def display(value: object, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(("display", repr(value)))
        return Handle()

    kernel = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    progress = assay.ProgressDisplay()
    for done in range(1001):
        progress("attack", done, 1000)
    progress("search", 1, 0)
    assert [kind for kind, _ in shown].count("display") == 1
    assert shown[0] == ("display", "attack 0 of 1,000")
    assert shown[-2:] == [("update", "attack 1,000 of 1,000"), ("update", "attack 1,000 of 1,000; search 1")]
    assert len(shown) < 50


def test_a_pass_over_a_task_tells_how_many_examples_it_has_read() -> None:
    task, told = assay.load_task("ioi", assay.load_model("mini"), n=5), list[tuple[int, int]]()
    with entered(COUNTING, lambda done, n: told.append((done, n))):
        assert len(list(task.batches(2))) == 3
    list(task.batches(2))
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_tables_have_a_row_per_thing_and_typed_columns() -> None:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    scores = assay.discover(model, task, "eap")
    circuit = scores.top(30).connected()
    measurement = assay.measure(circuit, model, task, "faithfulness")
    measured = measurement.to_frame()
    assert list(measured.columns[:2]) == ["example", "value"]
    assert measured["value"].mean() == pytest.approx(measurement.value)
    assert measured.dtypes["example"] == np.int64
    assert set(measured.dtypes[1:]) == {np.dtype(np.float64)}
    drawn = assay.faithfulness_curve(scores, model, task, fractions=[0.01, 0.1, 1.0])
    curve = drawn.to_frame()
    assert curve["fraction"].tolist() == [0.01, 0.1, 1.0]
    assert curve["faithfulness"].tolist() == pytest.approx(drawn.values.tolist())
    assert (curve["low"] <= curve["high"]).all()
    assert curve.dtypes["kept_edges"] == np.int64
    assert curve["random_mean"].isna().all()
    pairs = assay.worst_case(circuit, model, task, n_clean=4, n_corrupted=4)
    worst = pairs.to_frame()
    row = worst.iloc[6]
    assert row["divergence"] == pairs.divergence[int(row["clean"]), int(row["corrupted"])]
    assert (worst.dtypes["clean"], worst.dtypes["argmax_differs"]) == (np.int64, np.bool_)
