"""Values of the public classes: a line for each, progress of long calls, tables."""

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from planted_subsets import planted_matrix

import assay
from assay.core.measurement import Measurement
from assay.tasks import EvalTransform


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    scores = assay.discover(model, task, "eap")
    circuit = scores.top(30).connected()
    return {
        "model": model,
        "task": task,
        "scores": scores,
        "circuit": circuit,
        "measurement": assay.measure(circuit, model, task, "faithfulness"),
        "curve": assay.faithfulness_curve(scores, model, task, fractions=[0.01, 0.1, 1.0]),
        "worst": assay.worst_case(circuit, model, task, n_clean=4, n_corrupted=4),
    }


def classifier() -> assay.Model:
    zoo = assay.Zoo.embedded()
    return zoo.load(zoo.keys[0])


def public_values(things: dict[str, Any], tmp_path: Path) -> dict[str, object]:
    """One value of each public class."""
    model, task = things["model"], things["task"]
    images = assay.tasks.draw_shapes("sketch", 20)
    store = assay.Store(tmp_path)
    store.put("scores", {"seed": 0}, {})
    data = planted_matrix(60, 120)
    path = assay.selection_path(data.correct, data.id_accuracy, [20, 40], groups=range(60))
    progress = assay.ProgressDisplay()
    progress("passes", 3, 8)
    return {
        "Circuit": things["circuit"],
        "CircuitRuns": assay.CircuitRuns(model, task, things["circuit"]),
        "CorrectnessData": assay.CorrectnessData.of(data.correct, data.id_accuracy),
        "EdgeScores": things["scores"],
        "Graph": model.graph,
        "HeadScores": assay.discover_heads(model, task, "drop-effect"),
        "ImageStream": assay.stream_images("shapes:sketch", classifier(), assay.tasks.ReadOptions(n=4)),
        "ImageTask": images.task(EvalTransform(resize=None)),
        "Interval": things["measurement"].interval(),
        "Measurement": things["measurement"],
        "Model": model,
        "Monitor": assay.Monitor(model, things["scores"], threshold=0.3, baselines=False),
        "PairTask": task,
        "ProgressDisplay": progress,
        "SelectionPath": path,
        "Store": store,
        "Subset": path[20],
        "Verdict": assay.calibrate("bootstrap-stability", things["measurement"]),
        "WorstCase": things["worst"],
        "Zoo": assay.Zoo.embedded(),
    }


def test_every_public_class_names_itself(things: dict[str, Any], tmp_path: Path) -> None:
    classes = {name for name in assay.__all__ if inspect.isclass(getattr(assay, name))}
    values = public_values(things, tmp_path)
    assert values.keys() == classes - {"AssayError"}  # which is raised, and then shown as any error
    for name, value in values.items():
        assert type(value) is getattr(assay, name)
        assert 8 < len(repr(value)) < 2000, name


def test_outside_a_notebook_progress_is_a_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    progress = assay.ProgressDisplay()
    for stage, done in (("train", 0), ("train", 1), ("train", 2), ("select", 0)):
        progress(stage, done, 2)
    assert capsys.readouterr().err == "train ...\nselect ...\n"
    assert repr(progress) == "train 2 of 2; select 0 of 2"


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


def test_nodes_of_a_circuit_are_drawn_in_the_same_order_in_every_process(things: dict[str, Any]) -> None:
    drawn = things["circuit"].plot().lines[-1].get_xydata().tolist()
    assert len(drawn) == len(things["circuit"].nodes())
    assert [y for _, y in drawn[:2]] == [0, things["model"].n_layers + 1]  # input, logits
    assert drawn[2:] == sorted(drawn[2:], key=lambda place: (place[1], place[0]))


def test_tables_have_a_row_per_thing_and_typed_columns(things: dict[str, Any]) -> None:
    measured = things["measurement"].to_frame()
    assert list(measured.columns[:2]) == ["example", "value"]
    assert len(measured) == 8
    assert measured["value"].mean() == pytest.approx(things["measurement"].value)
    assert measured.dtypes["example"] == np.int64
    assert set(measured.dtypes[1:]) == {np.dtype(np.float64)}
    curve = things["curve"].to_frame()
    assert curve["fraction"].tolist() == [0.01, 0.1, 1.0]
    assert curve["faithfulness"].tolist() == pytest.approx(things["curve"].values.tolist())
    assert (curve["low"] <= curve["high"]).all()
    assert curve.dtypes["kept_edges"] == np.int64
    assert curve["random_mean"].isna().all()
    worst = things["worst"].to_frame()
    assert len(worst) == things["worst"].divergence.size
    row = worst.iloc[6]
    assert row["divergence"] == things["worst"].divergence[int(row["clean"]), int(row["corrupted"])]
    assert (worst.dtypes["clean"], worst.dtypes["argmax_differs"]) == (np.int64, np.bool_)


def test_a_measurement_without_examples_says_so() -> None:
    with pytest.raises(assay.core.errors.InputError, match="keeps no values per example"):
        Measurement(id="a", name="a", value=1.0, n=1).to_frame()
