"""Other packages join by entry points: every kind, from a real distribution, and none breaks the others."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import assay


PACKAGE = Path(__file__).parent / "plugin_package"
SOURCE = str(Path(assay.__file__).parent.parent)  # the package under test, wherever it is imported from
POINTS = {
    "methods": "shelf-method = shelf_plugins:method",
    "metrics": "shelf-metric = shelf_plugins:metric",
    "gates": "shelf-gate = shelf_plugins:gate",
    "tasks": "shelf-task = shelf_plugins:ShelfTask",
    "ablations": "shelf-ablation = shelf_plugins:ablation",
    "objectives": "shelf_objective = shelf_plugins:objective",
    "families": "shelf-family = shelf_plugins:family",
    "distances": "shelf-distance = shelf_plugins:distance",
    "pages": "shelf-page = shelf_plugins:page_form",
}
KIND = {"families": "models"}  # what `assay list` calls a group
KINDS = {
    KIND.get(group, group): point.partition(" ")[0] for group, point in POINTS.items() if group != "pages"
}


def install(place: Path, name: str, points: dict[str, list[str]]) -> None:
    """A distribution as pip leaves it: metadata beside the modules."""
    info = place / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [f"[assay.{group}]\n" + "\n".join(each) + "\n" for group, each in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for module in PACKAGE.glob("*.py"):
        (place / module.name).write_bytes(module.read_bytes())


def run(place: Path, code: str) -> Any:
    """What a fresh interpreter prints as JSON; the registries of this one have looked already."""
    finished = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", f"import json, warnings, assay\n{code}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(place), SOURCE]), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process says that finds one entry of every kind: used by name first, listed last."""
    place = tmp_path_factory.mktemp("shelf")
    install(place, "assay-shelf", {group: [point] for group, point in POINTS.items()})
    found: dict[str, Any] = run(
        place,
        f"""
import shelf_plugins, transformers
from assay.analyses.calibration.battery import Columns
from assay.report.save import render
model = assay.load_model("mini")
task = assay.load_task("shelf-task", model, n=12, seed=0, length=6)
scores = assay.discover(model, task, "shelf-method", objective="shelf_objective", ablation="shelf-ablation")
measured = assay.measure(scores.top(20), model, task, "shelf-metric")
names = {{
    "provenance": {{name: scores.provenance[name] for name in ("method", "objective", "ablation")}},
    "task": scores.provenance["task"]["name"],
    "metric": [measured.name, measured.n, measured.id],
    "gate": assay.calibrate("shelf-gate", [1.0, 2.0], [1.0, 2.0]).status,
    "of a code": assay.calibrate("X2", [1.0, 2.0], [1.0]).status,
    "distance": assay.circuit_shift(scores, scores, distance="shelf-distance"),
}}
task = assay.load_task("ioi", model, n=12, seed=0)
heads = [(0, 1), (2, 3)]
report = assay.calibrate_all(heads, model, task, gates=["shelf-gate", "C11"])
every = Columns(circuit=heads, model=model, task=task).keys
measured = assay.measure(assay.Circuit.full(model.graph), model, task, "shelf-metric")
reports = {{
    "gates": list(report), "verdict": report["X2"].to_dict(), "every": [len(every), every[-1]],
    "calibration": render(report), "measurement": render(measured),
    "page": render({{
        "kind": "shelf-page", "schema": "shelf/1", "name": measured.name,
        "margins": measured.per_example.tolist(),
    }}),
}}
sizes = {{"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16}}
module = transformers.GPT2LMHeadModel(shelf_plugins.ShelfConfig(**sizes, bos_token_id=0, eos_token_id=0))
loaded = assay.load_model(module.eval())
family = {{"family": loaded.family.key, "layers": loaded.graph.n_layers, "heads": loaded.graph.n_heads}}
keys = {{kind: assay.list(kind).keys for kind in {sorted(KINDS)}}}
print(json.dumps({{"names": names, "reports": reports, "keys": keys, "family": family}}))
""",
    )
    return found


def test_every_kind_is_listed_works_by_its_name_and_is_rendered(shelf: dict[str, Any]) -> None:
    for kind, key in KINDS.items():
        assert key in shelf["keys"][kind]
        assert len(shelf["keys"][kind]) > 1
    found = shelf["names"]
    assert found["provenance"]["method"] == "shelf-method"
    assert "shelf_objective" in json.dumps(found["provenance"]["objective"])
    assert "shelf-ablation" in json.dumps(found["provenance"]["ablation"])
    assert "shelf-task" in found["task"]
    assert found["metric"] == ["shelf-metric", 12, "X1.shelf"]
    assert (found["gate"], found["of a code"], found["distance"]) == ("pass", "fail", 0.0)
    assert shelf["family"] == {"family": "shelf-family", "layers": 2, "heads": 3}
    reports = shelf["reports"]
    assert reports["gates"] == ["bootstrap-stability", "shelf-gate"]
    assert (reports["verdict"]["status"], reports["verdict"]["values"]) == ("pass", {"n": 12.0})
    assert reports["every"] == [17, "shelf-gate"]
    assert "Does it pass?" in reports["calibration"]
    assert "How far the model prefers its answers, whatever the circuit." in reports["measurement"]
    assert "Shelf page of shelf-metric" in reports["page"]


BROKEN = {
    "shelf-import": ("shelf_broken:method", "RuntimeError: its own dependency is missing"),
    "shelf-absent": ("shelf_nowhere:method", "No module named 'shelf_nowhere'"),
    "shelf-attribute": ("shelf_plugins:nothing", "has no attribute 'nothing'"),
    "shelf-type": ("shelf_plugins:metric", "not an object of assay.discovery.edges.method.EdgeMethod"),
    "shelf-class": ("shelf_plugins:ShelfMethod", "not an object of assay.discovery.edges.method.EdgeMethod"),
    "shelf-name": ("shelf_plugins:method", "its key is 'shelf-method'; the entry point must have the same"),
}


def test_a_broken_entry_is_named_with_its_package_and_breaks_no_other(tmp_path: Path) -> None:
    points = [f"{name} = {value}" for name, (value, _) in BROKEN.items()]
    install(
        tmp_path,
        "assay-broken",
        {
            "methods": [*points, "shelf-method = shelf_plugins:method", "eap = shelf_plugins:method"],
            "tasks": ["shelf-instance = shelf_plugins:method"],
        },
    )
    found = run(
        tmp_path,
        f"""
from assay.discovery.edges import METHODS
from assay.core.errors import PluginError
from assay.tasks import TASKS
said = {{}}
for name in {list(BROKEN)}:
    try:
        METHODS[name]
    except PluginError as error:
        said[name] = str(error)
try:
    TASKS["shelf-instance"]
except PluginError as error:
    said["shelf-instance"] = str(error)
with warnings.catch_warnings(record=True) as heard:
    warnings.simplefilter("always")
    keys = assay.list("methods").keys
    assay.list("methods")
print(json.dumps({{
    "said": said,
    "heard": [str(each.message) for each in heard],
    "keys": keys,
    "works": METHODS["shelf-method"].key,
    "eap": type(METHODS["eap"]).__module__,
    "missing": "shelf-import" in METHODS,
}}))
""",
    )
    for name, (value, problem) in BROKEN.items():
        assert found["said"][name].startswith(f"method {name!r} of the package assay-broken 1.2 ({value}) ")
        assert problem in found["said"][name]
    assert "not a subclass of assay.tasks.grammar.Grammar" in found["said"]["shelf-instance"]
    assert found["works"] == "shelf-method"
    assert found["eap"] == "assay.discovery.edges.eap_ig"
    assert found["missing"] is False
    assert not set(BROKEN) & set(found["keys"])
    assert "shelf-method" in found["keys"]
    # Each once, however often one asks: those above, and the key that is taken.
    assert len(found["heard"]) == len(BROKEN) + 1
    assert "method 'eap' of the package assay-broken 1.2" in " ".join(found["heard"])
