"""Results as runs of MLflow and of trackio, on real stores on disk."""

import builtins
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.circuits import load_circuit, load_scores
from assay.core.errors import InputError, MissingExtraError, UnknownNameError
from assay.report.tracking import log_results


pytestmark = [
    # MLflow's tables use a loader that the SQLAlchemy of our own store has deprecated.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:sqlalchemy.exc.SADeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow on an SQLite file: its plain file store is refused by newer versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow's own start
        mlflow = pytest.importorskip("mlflow", reason="NOT TESTED: logging to MLflow, which is not installed")
        place = tmp_path_factory.mktemp("mlflow")
        before = mlflow.get_tracking_uri()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)  # artifacts lie in ./mlruns
            mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
            client = mlflow.MlflowClient()
            client.search_experiments()  # makes the tables, which takes seconds
            yield client
        mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    model = assay.load_model("mini")
    task = assay.load_task("ioi", model, n=8, seed=0)
    scores = assay.discover(model, task, "eap")
    circuit = scores.top(30).connected()
    return {
        "scores": scores,
        "circuit": circuit,
        "faithfulness": assay.measure(circuit, model, task, "faithfulness"),
        "kl": assay.measure(circuit, model, task, "kl"),
    }


def files_of(client: Any, run_id: str) -> dict[str, Path]:
    folder = Path(client.download_artifacts(run_id, "assay"))
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.slow
def test_measurements_become_metrics_parameters_tags_and_files(client: Any, found: dict[str, Any]) -> None:
    run_id = log_results(
        found["faithfulness"], found["kl"], found["circuit"], found["scores"], experiment="audits"
    )
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert client.get_experiment(run.info.experiment_id).name == "audits"
    for name in ("faithfulness", "kl"):
        measured, interval = found[name], found[name].interval()
        expected = {"value": measured.value, "low": interval.low, "high": interval.high, "n": measured.n}
        assert {key: run.data.metrics[f"{name}/{key}"] for key in expected} == pytest.approx(expected)
        assert run.data.tags[f"assay.{name}.id"] == measured.id_hash
        assert run.data.tags[f"assay.{name}.verdict"] == measured.status
    assert run.data.metrics["circuit/n_edges"] == found["circuit"].n_edges
    assert run.data.tags["assay.circuit.id"] == found["circuit"].hash
    assert run.data.params["model.id"] == "mini"
    # What differs between results stands beside each.
    assert run.data.params["faithfulness.metric.key"] == "faithfulness"
    assert run.data.params["kl.metric.key"] == "kl"
    kept = files_of(client, run_id)
    assert set(kept) == {
        "faithfulness.json", "kl.json", "circuit.safetensors", "scores.safetensors", "report.html",
    }  # fmt: skip
    assert json.loads(kept["kl.json"].read_text()) == found["kl"].to_dict()
    assert load_circuit(kept["circuit.safetensors"]) == found["circuit"]
    assert (load_scores(kept["scores.safetensors"]).values == found["scores"].values).all()


def test_the_active_run_is_added_to_and_left_open(client: Any, found: dict[str, Any]) -> None:
    import mlflow

    with mlflow.start_run() as run:
        mlflow.log_param("model.id", "what the user wrote")
        assert log_results(found["kl"]) == run.info.run_id
        assert mlflow.active_run() is not None
        assert log_results(found["kl"]) == run.info.run_id  # once more is not a conflict
    params = client.get_run(run.info.run_id).data.params
    assert params["model.id"] == "what the user wrote"
    assert params["kl.model.id"] == "mini"
    other = client.create_run("0").info.run_id
    assert log_results(found["kl"], run_id=other) == other
    assert client.get_run(other).info.status == "RUNNING"


def test_documents_with_hostile_names_and_undefined_numbers_are_logged(client: Any) -> None:
    hostile = "../../script>\N{SKULL AND CROSSBONES}"
    run_id = log_results(
        {
            "name": hostile,
            "value": math.nan,
            "n": 3,
            "interval": {"low": -math.inf, "high": 0.5},
            "status": "inconclusive",
            "provenance": {"task": {"name": hostile}, "prompt": "x" * 10_000, "empty": {}, "list": [1, 2]},
        },
        {"kind": hostile, "shares": {"above": 0.5, "nested": {"deep": {"deeper": 1.0}}}, "ok": True},
    )
    run = client.get_run(run_id)
    name = "_.._script__"
    assert run.data.metrics == {f"{name}/n": 3.0, f"{name}/high": 0.5, f"{name}-2/shares/above": 0.5}
    assert run.data.tags[f"assay.{name}.verdict"] == "inconclusive"
    assert run.data.params["task.name"] == hostile
    assert len(run.data.params["prompt"]) == 6000
    assert run.data.params["list"] == "[1, 2]"
    assert set(files_of(client, run_id)) == {f"{name}.json", f"{name}-2.json"}


def test_a_stored_result_is_logged_as_it_is_stored(client: Any, tmp_path: Path) -> None:
    store = assay.Store(tmp_path / "results")
    key = store.put("measurement", {"metric": "kl"}, {"name": "kl", "value": 0.25, "n": 4})
    run = client.get_run(log_results(store.get(key)))
    assert run.data.metrics == {"kl/value": 0.25, "kl/n": 4.0}
    assert run.data.tags["assay.kl.id"] == key
    assert run.data.params == {"metric": "kl"}


def test_wrong_calls_are_refused_before_a_run_is_made(client: Any, unchecked: None) -> None:
    before = len(client.search_runs(["0"]))
    with pytest.raises(InputError, match="nothing to log"):
        log_results()
    with pytest.raises(InputError, match="exclude each other"):
        log_results({"value": 1}, run_id="a", experiment="b")
    with pytest.raises(InputError, match="a int is not a result"):
        log_results(3)
    assert len(client.search_runs(["0"])) == before


def test_a_failure_marks_the_new_run(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.report import tracking

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracking, "_write", broken)
    with pytest.raises(OSError, match="No space"):
        log_results({"name": "a", "value": 1.0})
    assert client.search_runs(["0"], max_results=1)[0].info.status == "FAILED"


def test_without_mlflow_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "mlflow":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'circuit-assay\[mlflow\]'"):
        log_results({"name": "a", "value": 1.0})


# ---- trackio ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trackio(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trackio on a folder of its own, which it reads from the environment when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        return pytest.importorskip("trackio", reason="NOT TESTED: logging to trackio, which is not installed")


def of_run(trackio: Any, project: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics and config of a run, as trackio reads them."""
    (run,) = [each for each in trackio.Api().runs(project) if each.name == name]
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs(project, name, run_id=run.id)
    return {key: value for row in rows for key, value in row.items()}, run.config or {}


def test_trackio_gets_the_same_metrics_parameters_tags_and_files(
    trackio: Any, found: dict[str, Any], tmp_path: Path
) -> None:
    name = log_results(
        found["faithfulness"], found["kl"], found["circuit"], tracker="trackio", experiment="audits"
    )
    metrics, config = of_run(trackio, "audits", name)
    for key in ("faithfulness", "kl"):
        measured, interval = found[key], found[key].interval()
        expected = {"value": measured.value, "low": interval.low, "high": interval.high, "n": measured.n}
        assert {part: metrics[f"{key}/{part}"] for part in expected} == pytest.approx(expected)
        assert config[f"assay.{key}.id"] == measured.id_hash
        assert config[f"{key}.metric.key"] == key
    assert config["model.id"] == "mini"
    run = trackio.init("audits", name=name, resume="must", auto_log_cpu=False, embed=False)
    folder = Path(run.use_artifact("assay:latest").download(str(tmp_path)))
    trackio.finish()
    assert {path.name for path in folder.iterdir()} == {
        "faithfulness.json", "kl.json", "circuit.safetensors", "report.html", "config.json",
    }  # fmt: skip
    assert load_circuit(folder / "circuit.safetensors") == found["circuit"]


def test_the_active_run_of_trackio_is_added_to_and_left_open(trackio: Any, found: dict[str, Any]) -> None:
    run = trackio.init("mine", config={"lr": 1}, auto_log_cpu=False, embed=False)
    assert log_results(found["kl"], tracker="trackio") == run.name
    trackio.log({"after": 2.0})
    with pytest.raises(InputError, match="is active, and trackio has one run at a time"):
        log_results(found["kl"], tracker="trackio", experiment="other")
    trackio.finish()
    metrics, config = of_run(trackio, "mine", run.name)
    assert metrics["kl/value"] == pytest.approx(found["kl"].value)
    assert metrics["after"] == 2.0
    assert config["lr"] == 1
    assert (
        log_results(found["faithfulness"], tracker="trackio", run_id=run.name, experiment="mine") == run.name
    )
    assert "faithfulness/value" in of_run(trackio, "mine", run.name)[0]


def test_runs_of_trackio_are_named_with_their_project(trackio: Any, found: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="finds a run by its name in a project"):
        log_results(found["kl"], tracker="trackio", run_id="brave-sunset-0")
    with pytest.raises(InputError, match="'none' does not exist in project 'mine'"):
        log_results(found["kl"], tracker="trackio", run_id="none", experiment="mine")


def test_without_trackio_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'circuit-assay\[trackio\]'"):
        log_results({"name": "a", "value": 1.0}, tracker="trackio")


def test_other_trackers_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="tracker 'wandb'"):
        log_results({"name": "a", "value": 1.0}, tracker="wandb")
