"""What an audit runs by default, in full and within a budget, and that its plan holds."""

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, invoke
from counted_passes import counted
from transformers import GPT2Config, GPT2LMHeadModel

from assay.analyses.worst_case import worst_case
from assay.circuits import Circuit
from assay.core.errors import AssayError, InputError, UnknownNameError
from assay.metrics import measure
from assay.models import Model, load_model
from assay.pipeline import Audit, AuditOptions, audit, draw_prompts
from assay.pipeline.audit_plan import N_FULL, STAGES, AuditPlan, scope_of
from assay.pipeline.budget import read_budget
from assay.report.save import render
from assay.tasks import ImageTask, load_images


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return invoke


@pytest.fixture(scope="module")
def mini() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def usual(mini: Model) -> Audit:
    return audit(mini, "ioi", n=24)


@pytest.fixture(scope="module")
def digits() -> Model:
    return load_model("colour-digits")


def planned(model: Model, **options: Any) -> int:
    return AuditOptions(**options).settled(model)[0].passes


# ---- what is run --------------------------------------------------------------------------------


def test_the_default_audit_of_a_small_gpt2_plans_at_most_6600_passes() -> None:
    config = GPT2Config(
        n_layer=12, n_head=12, n_embd=48, vocab_size=64, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = load_model(GPT2LMHeadModel(config))
    assert model.graph.n_edges == 32_491
    stages = AuditPlan(model=model).stages
    assert sum(stage.passes for stage in stages) <= 6600
    assert {stage.runs for stage in stages if stage.stage == "faithfulness curve"} == {9}  # and the model
    whole = AuditPlan(model=model, n=N_FULL, scope=scope_of(full=True)).stages
    assert sum(stage.passes for stage in whole) > 70_000


def test_a_default_audit_reads_everything_from_few_runs(usual: Audit) -> None:
    document = usual.document
    assert [each["name"] for each in usual.measurements] == [
        "faithfulness-norm",
        "faithfulness",
        "completeness",
        "kl",
        "ce-delta",
        "topk",
    ]
    assert {gate["code"] for gate in document["calibration"]["gates"]} == {"C11", "C13", "C23", "M93"}
    assert document["worst_case"]["protocol"] == "file"
    assert document["worst_case"]["n_pairs"] == document["task"]["n"]
    assert len(document["random"]["values"]) == 5
    assert document["curve"]["random"]["n_circuits"] == 5
    assert usual.curve is not None
    assert document["circuit"]["size"] in usual.curve["n_edges"]
    assert {each["stage"] for each in usual.left_out} == {"attack", "curve", "minimality", "calibrate"}
    assert {each["option"] for each in usual.left_out} == {"--full"}
    assert all(each["passes"] > 0 for each in usual.left_out)


def test_a_large_circuit_says_what_its_strongest_edges_keep_alone(mini: Model, usual: Audit) -> None:
    excerpt, edges = usual.document["excerpt"], usual.document["edges"]
    names = [f"{edge['source']}->{edge['target']}" for edge in edges if "shown" in edge]
    shown = Circuit.from_edges(mini.graph, names)
    assert shown.n_edges == excerpt["n_edges"] <= 150 < usual.circuit.n_edges
    assert set(names) == set(usual.scores.top(excerpt["size"]).connected().edges())
    assert usual.scores.top(excerpt["size"] + 1).connected().n_edges > 150
    scores = usual.scores.values.abs()
    share = scores[shown.mask].sum() / scores[usual.circuit.mask].sum()
    assert excerpt["attribution"] == pytest.approx(float(share))
    task = draw_prompts(mini, "ioi", n=24, seed=0).measured
    alone = measure(shown, mini, task, "faithfulness-norm")
    assert excerpt["faithfulness"]["value"] == pytest.approx(alone.value, rel=1e-5)
    assert excerpt["faithfulness"]["low"] == pytest.approx(alone.interval().low, rel=1e-4)
    small = audit(mini, "ioi", n=24, target=0.2, skip=STAGES)
    assert small.circuit.n_edges <= 150
    assert "excerpt" not in small.document
    assert not any("shown" in edge for edge in small.document["edges"])


def test_the_worst_of_its_own_pairs_is_what_running_the_pairs_gives(mini: Model, usual: Audit) -> None:
    draws = draw_prompts(mini, "ioi", n=24, seed=0)
    other = worst_case(usual.circuit, mini, draws.measured, protocol="file").to_dict()
    found = usual.document["worst_case"]
    assert found["summary"]["absolute"]["max"] == pytest.approx(other["summary"]["absolute"]["max"], rel=1e-2)
    assert found["worst"][0]["clean_index"] == other["worst"][0]["clean_index"]
    assert not found["certificates"]


def test_the_first_number_stands_beside_its_values_under_zero_and_mean(mini: Model, usual: Audit) -> None:
    others = {each["provenance"]["ablation"]: each for each in usual.document["other_ablations"]}
    assert list(others) == ["zero", "mean"]
    task = draw_prompts(mini, "ioi", n=24, seed=0).measured
    for key, each in others.items():
        alone = measure(usual.circuit, mini, task, "faithfulness-norm", ablation=key)
        assert each["value"] == pytest.approx(alone.value, rel=1e-5)
        assert f"faithfulness norm, {key} ablation" in " ".join(render(usual).split())
        assert f"faithfulness-norm, {key} ablation" in usual.to_frame()["name"].tolist()
    first = usual.document["circuit"]["faithfulness"]["value"]
    assert max(abs(each["value"] - first) for each in others.values()) > 0.2
    assert "name the ablation with the number" in render(usual)


def test_the_gates_of_a_default_audit_judge_its_own_runs(usual: Audit) -> None:
    gates = {gate["code"]: gate["verdict"] for gate in usual.document["calibration"]["gates"]}
    named = {each["name"]: each for each in usual.measurements}
    assert named["faithfulness"]["value"] in [
        pytest.approx(value) for value in gates["C11"]["values"].values()
    ]
    assert usual.document["calibration"]["table"]["n_pool"] == usual.document["task"]["n"]


def test_stages_that_are_skipped_are_null_and_listed(mini: Model, tmp_path: Path) -> None:
    found = audit(mini, "ioi", n=12, skip=["curve", "random", "attack", "calibrate"], out=tmp_path)
    for key in ("curve", "random", "worst_case", "calibration"):
        assert found.document[key] is None
    assert found.curve is None
    listed = {each["stage"]: each for each in found.left_out}
    assert listed.keys() == set(STAGES)
    assert listed["curve"]["reason"] == "left out by --skip"
    assert listed["curve"]["passes"] == 9 * 12
    page = (tmp_path / "report.html").read_text()
    assert "What was not run" in page
    assert "no --skip curve" in page
    assert json.loads(json.dumps(found.document, allow_nan=False)) == found.document


def test_an_unknown_stage_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="unknown stage to skip 'atack'; did you mean 'attack'"):
        audit("no-such-model", skip=["atack"])


def test_a_long_file_is_audited_on_a_part_of_it(mini: Model) -> None:
    task = draw_prompts(mini, "ioi", n=300, seed=0).measured
    plan, draws = AuditOptions(task=task).settled(mini)
    assert plan.n == draws.discovery.n == draws.measured.n == 100
    plan, draws = AuditOptions(task=task, full=True).settled(mini)
    assert draws.discovery.n + draws.measured.n == task.n


# ---- budgets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("600", (600, "passes")),
        (600, (600, "passes")),
        ("600s", (600, "seconds")),
        ("10m", (600, "seconds")),
        ("1.5h", (5400, "seconds")),
    ],
)
def test_a_budget_is_passes_or_a_time(text: str | int, found: tuple[float, str]) -> None:
    assert read_budget(text) == found


@pytest.mark.parametrize("text", ["", "ten", "-5", "10 m", "10min", "1e3", "0", "0s", "m", "1.5", True])
def test_another_budget_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="give passes as a whole number, or a time as 600s, 10m or 2h"):
        audit("no-such-model", budget=text)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [500, 1000, 3000, 8000, 30_000, 1_000_000])
def test_a_budget_picks_what_fits(mini: Model, budget: int) -> None:
    plan, draws = AuditOptions(budget=budget).settled(mini)
    assert plan.passes <= budget
    assert draws.discovery.n + draws.measured.n == 2 * plan.n
    richer = AuditOptions(budget=4 * budget).settled(mini)[0]
    assert (richer.n, len(richer.left_out)) != (plan.n, len(plan.left_out)) or not plan.left_out
    if budget == 500:
        assert {each.option for each in plan.left_out if each.stage == "curve"} == {"a larger --budget"}
    if budget == 1_000_000:
        assert not plan.left_out
        assert plan.n == 200


def test_a_time_counts_by_a_pass_timed_here(mini: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.pipeline.auditing.pass_seconds", lambda *args, **kwargs: 0.1)
    assert planned(mini, budget="5m") == planned(mini, budget=3000) <= 3000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pass_seconds", "n", "left_out"),
    [
        (0.0001, 200, set()),
        (0.001, 100, {"calibrate"}),
        (0.0045, 100, {"attack", "curve", "calibrate", "minimality"}),
        (0.05, 10, {"attack", "random", "curve", "calibrate", "minimality"}),
    ],
)
def test_a_time_picks_stages_and_n_that_fit(
    mini: Model, monkeypatch: pytest.MonkeyPatch, pass_seconds: float, n: int, left_out: set[str]
) -> None:
    for module in ("auditing", "cost"):
        monkeypatch.setattr(f"assay.pipeline.{module}.pass_seconds", lambda *args, **kwargs: pass_seconds)
    cost = AuditOptions(budget="30s").cost(mini)
    assert cost.seconds is not None
    assert cost.seconds <= 30
    assert (cost.n, {each.stage for each in cost.left_out}) == (n, left_out)


def test_a_budget_below_the_cost_of_discovery_is_refused(mini: Model) -> None:
    with pytest.raises(
        InputError,
        match="a budget of 100 passes is below the cost of discovery: 140 passes for n = 10; give more",
    ):
        audit(mini, budget=100)
    with pytest.raises(
        InputError, match="below the cost of the smallest audit: .* for n = 10, of which discovery takes 140"
    ):
        audit(mini, budget=150)
    with pytest.raises(InputError, match="below the cost of discovery: 1,400 passes for n = 100"):
        audit(mini, n=100, budget=1000)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"n": 30}, {"budget": 1500}, {"budget": 8000}], ids=str)
def test_a_plan_is_an_upper_bound_and_not_a_loose_one(mini: Model, options: dict[str, Any]) -> None:
    plan = planned(mini, **options)
    with counted(mini.n_layers) as found:
        audit(mini, "ioi", **options)
    assert sum(found) <= plan <= 2 * sum(found)


# ---- images -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_images_are_audited_from_the_command_line(run: Run, tmp_path: Path) -> None:
    small = ("audit", "--model", "colour-digits", "--n", "20", "--out", "out")
    found = run(*small, "--images", "colour-digits", "--json")
    assert found.exit_code == 0
    document = json.loads(found.stdout)
    assert document["task"]["inputs"] == "images"
    assert document["calibration"] is None
    assert (document["worst_case"]["protocol"], document["worst_case"]["n_pairs"]) == ("file", 20)
    reasons = {each["stage"]: each["reason"] for each in document["left_out"]}
    assert reasons["calibrate"] == "needs prompts; the inputs are images"
    assert document["circuit"]["faithfulness"]["value"] >= 0.5
    page = Path("out/report.html").read_text()
    assert "20 images of" in page
    assert "needs prompts; the inputs are images" in page
    again = run(*small, "--task", "colour-digits")
    assert "taken from the store" in again.stdout


def test_images_of_ones_own_without_labels_are_audited(digits: Model) -> None:
    images = load_images("colour-digits", digits, n=44)
    own = ImageTask(images=images.images)
    found = audit(digits, own, skip=["curve"])
    assert not {"ce-delta", "topk"} & {each["name"] for each in found.measurements}
    assert found.document["topk"] is None
    assert {each["reason"] for each in found.left_out if each["stage"] == "topk"} == {
        "the images have no labels"
    }
    assert "Top-K agreement" not in render(found)
    assert found.document["discovery"]["held_out"]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan, draws = AuditOptions(task=own.subset(range(20))).settled(digits)
    assert not draws.held_out
    assert any("40 or more images" in str(each.message) for each in told)
    assert not plan.held_out


def test_a_model_and_inputs_of_another_kind_are_refused(digits: Model, mini: Model) -> None:
    with pytest.raises(AssayError):
        audit(mini, images="colour-digits")


# ---- a dry run ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dry_run_tells_passes_time_and_bytes(run: Run) -> None:
    found = run("audit", "--model", "mini", "--task", "ioi", "--budget", "3000", "--dry-run", "--json")
    plan = json.loads(found.stdout)
    assert plan["passes"] == sum(stage["passes"] for stage in plan["stages"]) <= 3000
    assert plan["seconds"] == pytest.approx(plan["passes"] * plan["pass_seconds"])
    assert plan["bytes"] > 4 * 800_000  # the weights alone
    assert plan["stored_bytes"] > 0
    assert {each["stage"] for each in plan["left_out"]} >= {"attack", "curve"}
    text = run("audit", "--task", "ioi", "--n", "5", "--skip", "attack,calibrate", "--dry-run").stdout
    assert "not run: the gates (left out by --skip; to run it: no --skip calibrate)" in text
    assert "of memory" in text
    assert re.search(r"about .+ here for the passes alone, at \S+ ms a pass; loading", text)
