"""All gates on one table: the same arrays as by hand, what is missing said, nothing run twice."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.analyses.calibration import (
    GATES,
    bootstrap_stability,
    certified_stability,
    derived_metrics,
)
from assay.analyses.calibration.battery import CalibrationReport, Columns, calibrate_all, further_prompts
from assay.circuits import HeadCircuit, Role
from assay.core.errors import GraphMismatchError, InputError, ShapeError, UnknownNameError
from assay.core.record import record_id
from assay.models import Model
from assay.tasks import PairTask, load_task


HEADS = ((0, 1), (1, 2), (1, 5), (2, 0), (2, 3))


@pytest.fixture(scope="module")
def model() -> Model:
    return assay.load_model("mini")


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    return load_task("ioi", model, n=20)


@pytest.fixture(scope="module")
def described() -> HeadCircuit:
    roles = {
        "first": Role(heads=((0, 1),), band="early"),
        "second": Role(heads=((1, 2), (1, 5)), band="mid"),
        "third": Role(heads=((2, 0),), band="midlate"),
        "fourth": Role(heads=((2, 3),), band="late"),
    }
    return HeadCircuit(
        id="made-up",
        n_layers=4,
        n_heads=8,
        heads=HEADS,
        roles=roles,
        pathways=(("first", "second"), ("second", "third"), ("third", "fourth")),
    )


@pytest.fixture(scope="module")
def report(
    model: Model, task: PairTask, described: HeadCircuit, tmp_path_factory: pytest.TempPathFactory
) -> CalibrationReport:
    others = [
        (load_task(name, model, n=10), [(0, 0), (2, 3)]) for name in ("greater-than", "gendered-pronoun")
    ]
    return calibrate_all(
        described,
        model,
        task,
        against=others,
        published=[(0, 1), (3, 3)],
        groups="object",
        random_sets=2,
        folder=tmp_path_factory.mktemp("tables"),
    )


def test_all_sixteen_in_the_frameworks_order(report: CalibrationReport) -> None:
    codes = [GATES[key].code for key in report.verdicts]
    assert codes == [
        *("C11", "C12", "C13", "C14", "C16", "C17", "C23", "C30", "C36", "F59", "S1", "S3", "M93", "M98"),
        *("E1b", "M3b"),
    ]
    assert ("C11" in report, "seed-variance" in report, "C99" in report) == (True, True, False)
    assert dict(report)["bootstrap-stability"] is report["C11"]
    assert all(verdict.table_hash == report.table.hash for verdict in report.verdicts.values())
    assert all(verdict.reason != "not_applicable" for verdict in report.verdicts.values())
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [gate["key"] for gate in document["gates"]] == list(report.verdicts)
    assert (document["circuit"]["k"], document["circuit"]["name"]) == (5, "made-up")
    assert document["against"] == ["greater-than", "gendered-pronoun"]
    assert sum(document["summary"]["status"].values()) == 16
    assert list(report.to_frame()["code"]) == codes
    assert report["C13"].details["groups_from"] == report.facts["groups"] == "object"
    assert sum(report["C13"].details["sizes"]) <= report.table.n_pool == 120


def test_verdicts_are_those_of_the_gates_on_the_columns(report: CalibrationReport, task: PairTask) -> None:
    table = report.table
    how = {"circuit_size": 5, "n_heads": 32, "task": "ioi"}
    by_hand = bootstrap_stability(table.column("y_full"), table.column("y_keep/mean"), **how)
    assert report["C11"].values == by_hand.values
    assert report["C11"].sub_results["completeness"].values["completeness"] == pytest.approx(
        1 - table.column("y_drop/mean").sum() / table.column("y_full").sum()
    )
    effects = table.column("y_full")[:, None] - table.column("y_drop1")
    lost = float((table.column("y_full") - table.column("y_cor")).mean())
    alone = certified_stability(effects[:, table.places], smallest=0.01 * lost, task="ioi", seed=42)
    assert report["certified-stability"].values == alone.values
    size = {name: np.abs(table.column(name).mean(axis=0)) for name in ("dla", "dla_correct")}
    ratio = {name: each[table.members].mean() / each[~table.members].mean() for name, each in size.items()}
    assert report["S1"].values["value"] == pytest.approx(ratio["dla_correct"])
    assert report["S1"].sub_results["difference"].values["value"] == pytest.approx(ratio["dla"])


def test_forwarded_rows_of_the_derived_metrics(report: CalibrationReport, task: PairTask) -> None:
    rows = report["C14"].sub_results
    found = assay.measure(report.table.circuit, report.table.model, task, "faithfulness", ablation="mean")
    assert rows["faithfulness"].values["value"] == pytest.approx(found.value, rel=1e-5)
    minimal = assay.measure(report.table.circuit, report.table.model, task, "minimality", ablation="mean")
    assert rows["minimality_mean_importance"].values["value"] == pytest.approx(minimal.value, abs=1e-5)
    assert rows["node_overlap_jaccard"].values["value"] == pytest.approx(1 / 6)
    assert rows["partial_eta_sq"].values == report["C13"].values
    assert rows["ov_composition_pval"].reason is None
    assert rows["hit_rate"].values["value"] is not None
    patching = assay.discover_heads(report.table.model, task, "activation-patching")
    alone = derived_metrics(report.table.members, patching.flat).sub_results["d_prime"]
    assert rows["d_prime"].values["value"] == pytest.approx(alone.values["value"], rel=1e-4)


def test_a_prompt_that_corruption_leaves_alone_is_no_scale(model: Model, task: PairTask) -> None:
    """Its gap is 0: whatever a head restores there is a share of nothing."""
    corrupted = task.corrupted.clone()
    corrupted[3] = task.clean[3]
    same = replace(task, corrupted=corrupted)
    found = calibrate_all(HEADS, model, same, gates=["C12", "C17"], against=[(task, HEADS)])
    assert found["C17"].details["n_prompts"] == {"ioi": task.n - 1, "ioi'": task.n}
    assert found["C12"].details["n_dropped"] == 1


def test_a_second_run_makes_no_pass(report: CalibrationReport, model: Model, task: PairTask) -> None:
    assert report.table.passes["forward"] > 0
    assert report.table.head_circuit is not None
    again = calibrate_all(
        report.table.head_circuit,
        model,
        task,
        gates=["M98", "S1", "M3b"],
        folder=report.table.folder.parent,
    )
    assert again.table.passes == {"forward": 0.0, "backward": 0.0}
    assert again["M98"].to_dict() == report["M98"].to_dict()


def test_a_gate_that_lost_a_method_stays_open(model: Model, task: PairTask) -> None:
    """No two prompts have the same length, so no prompt can give another its activations."""
    few = task.subset(range(5))
    lengths = torch.tensor([int(few.lengths[0]) - at for at in range(5)])
    odd = PairTask(
        clean=few.clean, corrupted=few.corrupted, answers=few.answers, wrong=few.wrong, lengths=lengths
    )
    found = calibrate_all(HEADS, model, odd, gates=["M98", "E1b"])
    assert "the 5 prompts all have different lengths" in found.missing["y_keep/resample-donor"]
    assert (found["M98"].status, found["M98"].reason) == ("inconclusive", "method_missing")
    assert found["M98"].published in ("pass", "fail")
    assert found["E1b"].reason != "method_missing"


@pytest.mark.parametrize("heads", [(), tuple((layer, head) for layer in range(4) for head in range(8))])
def test_empty_and_full_circuits_end_in_verdicts(
    model: Model, task: PairTask, heads: Sequence[tuple[int, int]]
) -> None:
    found = calibrate_all(list(heads), model, task.subset(range(12)))
    assert len(found.verdicts) == 16
    flag = "trivial_circuit" if heads else "empty_circuit"
    assert flag in found["C11"].warnings
    assert flag in found["M98"].warnings
    assert found["C36"].status == "inconclusive"
    assert found["C36"].reason is not None
    if heads:
        assert found["C11"].values["faithfulness"] == pytest.approx(1)
        assert found["M98"].status == "pass"


def test_input_that_fits_nothing_is_refused(model: Model, task: PairTask) -> None:
    for heads, options, error, message in (
        (HEADS, {"gates": ["C99"]}, UnknownNameError, "gate"),
        (HEADS, {"groups": "colour"}, UnknownNameError, "field of task 'ioi' 'colour'.*object"),
        (HEADS, {"groups": "object", "pool": replace(task, fields={})}, UnknownNameError, "field of pool"),
        (HEADS, {"unit_id": np.array(["a", "b"])}, ShapeError, "unit_id"),
        (HEADS, {"random_sets": -1}, InputError, "random_sets"),
        ([(2, 1, 3)], {}, InputError, "not a pair"),
        ("ioi_gpt2_wang26", {}, GraphMismatchError, "."),
    ):
        with pytest.raises(error, match=message):
            calibrate_all(heads, model, task, **options)
    report = calibrate_all(HEADS, model, task, gates=["C11"])
    with pytest.raises(UnknownNameError, match="gate of this report"):
        report["M3b"]


def test_copies_of_a_prompt_are_one_unit(model: Model, task: PairTask) -> None:
    gates = ["C11", "C14", "C30"]
    once: Any = calibrate_all(HEADS, model, task, gates=gates, pool=task.subset([0]))
    twice = task.subset([*range(20), *range(20)])
    units = np.array([*range(20), *range(20)])
    copied: Any = calibrate_all(HEADS, model, twice, gates=gates, pool=twice, unit_id=units)
    assert copied["C11"].values == once["C11"].values
    assert copied["C14"].sub_results["faithfulness"] == once["C14"].sub_results["faithfulness"]
    assert copied.facts["table"]["n_prompts"] == 20
    assert copied.facts["task"]["notes"] == [
        "20 of the 40 pairs of 'ioi' are copies of others and are not counted again"
    ]
    by_unit: Any = calibrate_all(HEADS, model, task, gates=gates, unit_id=np.arange(20) // 2)
    assert by_unit["C30"].details["n_units"] < once["C30"].details["n_prompts"] + by_unit.table.n_pool - 20


def test_few_prompts_and_prompts_without_a_corruption_give_no_verdict(model: Model, task: PairTask) -> None:
    same = replace(task, corrupted=task.clean)
    few = task.subset([*range(9), *range(9)])
    for prompts, ablation in ((same, "resample"), (few, "resample"), (few, "mean")):
        found = calibrate_all(HEADS, model, prompts, gates=["C11", "C30", "M3b"], ablation=ablation)
        assert {verdict.status for verdict in found.values()} == {"inconclusive"}
        assert {"few_prompts"} <= {verdict.reason for verdict in found.values()}
    found = calibrate_all(HEADS, model, same, gates=["C11"], ablation="mean")  # reads no counterpart
    assert found.facts["table"]["n_prompts"] == 20


def test_all_that_changes_a_verdict_changes_the_record(
    model: Model, task: PairTask, described: HeadCircuit
) -> None:
    def record(circuit: Any, prompts: PairTask, **options: Any) -> str:
        return record_id("calibration", Columns(circuit=circuit, model=model, task=prompts, **options).record)

    assert record(described, task) == record(described, task)
    other = replace(described, pathways=(("first", "third"), ("third", "second"), ("second", "fourth")))
    relabelled = replace(task, fields={**task.fields, "object": [str(row % 3) for row in range(task.n)]})
    assert len({record(each, task) for each in (described, other, list(HEADS))}) == 3
    assert record(described, task, groups="object") != record(described, relabelled, groups="object")


def test_a_task_without_wrong_answers_is_judged_by_what_it_has(model: Model, task: PairTask) -> None:
    bare = PairTask(clean=task.clean, corrupted=task.corrupted, answers=task.answers, objective="ce")
    assert further_prompts(bare, seed=0) is None
    found = calibrate_all(HEADS, model, bare)
    assert len(found.verdicts) == 16
    assert found["C13"].reason == found["C17"].reason == found["C23"].reason == "not_applicable"
    assert (found["C13"].details["fields"], found["C30"].reason) == ([], "pool_too_small")
    assert set(found.missing) == {"ocse", "ov_norm", "dla"}
    assert len(found["C12"].details["pairs"]) == 3  # of C2, C5 and C10
    assert found["C12"].reason is None
