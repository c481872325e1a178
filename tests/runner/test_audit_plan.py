"""What an audit runs by default and in full."""

import json
from pathlib import Path

import pytest
from command_line import invoke

from assay.analyses.worst_case import worst_case
from assay.circuits import Circuit
from assay.core.errors import AssayError, AssayWarning
from assay.metrics import measure
from assay.models import Model, load_model
from assay.page.blocks import Details, Figure, Table
from assay.pipeline import Audit, draw_prompts
from assay.pipeline.audit import audit
from assay.pipeline.audit_scope import STAGES
from assay.pipeline.inputs import divide
from assay.report.save import render
from assay.tasks import ImageTask, load_images


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def usual(mini: Model) -> Audit:
    return audit(mini, "ioi", n=24)


# ---- what is run --------------------------------------------------------------------------------


def test_a_default_audit_reads_everything_from_few_runs(usual: Audit) -> None:
    document = usual.to_dict()
    named = {each["name"]: each for each in usual.measurements}
    assert list(named) == ["faithfulness-norm", "faithfulness", "completeness", "kl", "ce-delta", "topk"]
    gates = {gate["code"]: gate["verdict"] for gate in document["calibration"]["gates"]}
    assert set(gates) == {"C11", "C13", "C23", "M93"}
    judged = [pytest.approx(value) for value in gates["C11"]["values"].values()]
    assert named["faithfulness"]["value"] in judged
    n = document["task"]["n"]
    assert (document["worst_case"]["protocol"], document["worst_case"]["n_pairs"]) == ("file", n)
    assert document["calibration"]["table"]["n_pool"] == n
    assert len(document["random"]["values"]) == document["curve"]["random"]["n_circuits"] == 5
    assert usual.curve is not None
    assert document["circuit"]["size"] in usual.curve["n_edges"]
    assert {each.stage for each in usual.left_out} == {"attack", "curve", "minimality", "calibrate"}
    assert {each.option for each in usual.left_out} == {"--full"}


def test_six_rows_with_limits_and_the_rest_behind_a_click(usual: Audit) -> None:
    (section,) = (each for each in usual.page().sections if each.title == "Every number")
    (figure,) = section.blocks
    assert isinstance(figure, Figure)
    (table,), (more,) = figure.blocks, figure.more
    assert isinstance(table, Table)
    assert isinstance(more, Details)
    limits = [*["at least 0.8"] * 3, "at most 0.1 nats", "at least 0.95", "at least 0.9"]
    assert [row[3] for row in table.texts()] == limits
    (folded,) = more.blocks
    assert isinstance(folded, Table)
    assert len(folded.rows) == 13
    assert usual.pages is usual.pages


def test_a_large_circuit_says_what_its_strongest_edges_keep_alone(mini: Model, usual: Audit) -> None:
    document = usual.to_dict()
    excerpt = document["excerpt"]
    names = {f"{edge['source']}->{edge['target']}" for edge in document["edges"] if "shown" in edge}
    shown = Circuit.from_edges(mini.graph, sorted(names))
    assert shown.n_edges == excerpt["n_edges"] <= 150 < usual.circuit.n_edges
    assert names == set(usual.scores.top(excerpt["size"]).connected().edges())
    assert usual.scores.top(excerpt["size"] + 1).connected().n_edges > 150
    scores = usual.scores.values.abs()
    share = float(scores[shown.mask].sum() / scores[usual.circuit.mask].sum())
    assert excerpt["attribution"] == pytest.approx(share)
    alone = measure(shown, mini, draw_prompts(mini, "ioi", n=24, seed=0).measured, "faithfulness-norm")
    assert excerpt["faithfulness"]["value"] == pytest.approx(alone.value, rel=1e-5)
    assert excerpt["faithfulness"]["low"] == pytest.approx(alone.interval().low, rel=1e-4)
    small = audit(mini, "ioi", n=24, target=0.2, skip=STAGES)
    assert small.circuit.n_edges <= 150
    assert "excerpt" not in small.to_dict()


def test_the_worst_of_its_own_pairs_is_what_running_the_pairs_gives(mini: Model, usual: Audit) -> None:
    draws = draw_prompts(mini, "ioi", n=24, seed=0)
    other = worst_case(usual.circuit, mini, draws.measured, protocol="file").to_dict()
    found = usual.to_dict()["worst_case"]
    assert found["summary"]["absolute"]["max"] == pytest.approx(other["summary"]["absolute"]["max"], rel=1e-2)
    assert found["worst"][0]["clean_index"] == other["worst"][0]["clean_index"]
    assert not found["certificates"]


def test_the_first_number_stands_beside_its_values_under_zero_and_mean(mini: Model, usual: Audit) -> None:
    others = {each["provenance"]["ablation"]: each for each in usual.to_dict()["other_ablations"]}
    assert list(others) == ["zero", "mean"]
    task = draw_prompts(mini, "ioi", n=24, seed=0).measured
    for key, each in others.items():
        alone = measure(usual.circuit, mini, task, "faithfulness-norm", ablation=key)
        assert each["value"] == pytest.approx(alone.value, rel=1e-5)
        assert f"faithfulness norm, {key} ablation" in " ".join(render(usual).split())
        assert f"faithfulness-norm, {key} ablation" in usual.to_frame()["name"].tolist()
    first = usual.to_dict()["circuit"]["faithfulness"]["value"]
    assert max(abs(each["value"] - first) for each in others.values()) > 0.2
    assert "name the ablation with the number" in render(usual)


def test_stages_that_are_skipped_are_null_and_listed(mini: Model, tmp_path: Path) -> None:
    found = audit(mini, "ioi", n=12, skip=["curve", "random", "attack", "calibrate"], out=tmp_path)
    document = found.to_dict()
    assert [document[key] for key in ("curve", "random", "worst_case", "calibration")] == [None] * 4
    listed = {each.stage: each.reason for each in found.left_out}
    assert listed.keys() == set(STAGES)
    assert listed["curve"] == "left out by --skip"
    page = (tmp_path / "report.html").read_text()
    assert "What was not run" in page
    assert "no --skip curve" in page
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_a_long_file_is_audited_on_a_part_of_it(mini: Model) -> None:
    task = draw_prompts(mini, "ioi", n=300, seed=0).measured
    halves = divide(mini, task)
    assert halves.discovery.n == halves.measured.n == 100
    halves = divide(mini, task, full=True)
    assert halves.discovery.n + halves.measured.n == task.n


# ---- images -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_images_are_audited_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("audit", "--model", "colour-digits", "--n", "20", "--out", "out")
    outcome = invoke(*small, "--images", "colour-digits", "--json")
    assert outcome.exit_code == 0
    document = json.loads(outcome.stdout)
    assert document["task"]["inputs"] == "images"
    assert document["calibration"] is None
    assert (document["worst_case"]["protocol"], document["worst_case"]["n_pairs"]) == ("file", 20)
    reasons = {each["stage"]: each["reason"] for each in document["left_out"]}
    assert reasons["calibrate"] == "needs prompts; the inputs are images"
    assert document["circuit"]["faithfulness"]["value"] >= 0.5
    page = Path("out/report.html").read_text()
    assert "20 images of" in page
    assert reasons["calibrate"] in page
    assert "taken from the store" in invoke(*small, "--task", "colour-digits").stdout


def test_images_of_ones_own_without_labels_are_audited(mini: Model) -> None:
    digits = load_model("colour-digits")
    own = ImageTask(images=load_images("colour-digits", digits, n=44).images)
    found = audit(digits, own, skip=["curve"])
    document = found.to_dict()
    assert not {"ce-delta", "topk"} & {each["name"] for each in found.measurements}
    assert document["topk"] is None
    assert {each.reason for each in found.left_out if each.stage == "topk"} == {"the images have no labels"}
    assert "Top-K agreement" not in render(found)
    assert document["discovery"]["held_out"]
    with pytest.warns(AssayWarning, match="40 or more images"):
        assert not divide(digits, own.subset(range(20))).held_out
    with pytest.raises(AssayError):
        audit(mini, images="colour-digits")
