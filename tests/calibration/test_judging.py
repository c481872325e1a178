"""Any gate on what a user holds: the same verdict as on the arrays, and a word for what does not belong."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.analyses.calibration import (
    GATES,
    PooledResult,
    ablation_invariance,
    bootstrap_stability,
    calibrate,
    calibrate_all,
    certified_stability,
    choose_groups,
    convergent_validity,
    derived_metrics,
    discriminant_validity,
    distributional_characterization,
    distributional_stability,
    incremental_validity,
    inter_rater,
    measurement_invariance,
    method_invariance,
    multiple_comparisons,
    nomological_validity,
    reliability_suite,
    seed_variance,
)
from assay.analyses.calibration._adapters import ADAPTERS
from assay.circuits import Circuit, HeadCircuit, load_head_circuit
from assay.circuits.heads import Role
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.measurement import Measurement
from assay.core.verdict import ONE_SIDED_95, Verdict
from assay.discovery.heads import (
    HeadScores,
    attribution_patching,
    composition,
    direct_attribution,
    fisher_count,
    head_outputs,
    margin_directions,
    predict_from_weights,
    weight_features,
    weight_scores,
)
from assay.discovery.heads.single_heads import activation_patching, drop_effect
from assay.metrics import measure
from assay.models import Model, load_model
from assay.stats import Estimate
from assay.tasks import PairTask, load_task


HEADS = ((0, 1), (1, 3), (2, 0), (3, 2), (3, 5))
OTHERS = ((0, 0), (1, 1), (2, 2), (3, 3), (3, 4))


@dataclass(frozen=True, kw_only=True)
class World:
    """What a user holds after looking at one model and task."""

    model: Model
    task: PairTask
    circuit: Circuit
    other: Circuit
    heads: HeadCircuit
    kept: Measurement
    dropped: Measurement
    dla: HeadScores
    drop: HeadScores
    patching: HeadScores

    @property
    def members(self) -> np.ndarray:
        return self.heads.members

    @property
    def runs(self) -> tuple[np.ndarray, np.ndarray]:
        return self.kept.components["full"], self.kept.components["keep"]

    def measured(self, **options: Any) -> Measurement:
        return measure(self.circuit, self.model, self.task, "faithfulness", **{"ablation": "mean", **options})


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mini")


@pytest.fixture(scope="module")
def world(model: Model) -> World:
    task = load_task("ioi", model, n=24, seed=0)
    circuit = Circuit.from_heads(model.graph, HEADS)
    heads = HeadCircuit(
        id="five",
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        heads=HEADS,
        roles={
            "first": Role(heads=HEADS[:2], band="early"),
            "second": Role(heads=HEADS[2:], band="late"),
        },
        pathways=(("first", "second"),),
    )
    outputs = head_outputs(model, task)
    return World(
        model=model,
        task=task,
        circuit=circuit,
        other=Circuit.from_heads(model.graph, OTHERS),
        heads=heads,
        kept=measure(circuit, model, task, "faithfulness", ablation="mean"),
        dropped=measure(circuit, model, task, "completeness", ablation="mean"),
        dla=direct_attribution(model, outputs, margin_directions(model, task)),
        drop=drop_effect(model, task),
        patching=activation_patching(model, task),
    )


@pytest.fixture(scope="module")
def second(model: Model) -> tuple[PairTask, HeadScores]:
    task = load_task("sva", model, n=12, seed=0)
    return task, activation_patching(model, task)


def same(found: Verdict, expected: Verdict) -> None:
    """Equal in all they say."""
    assert found.to_dict() == expected.to_dict()


# ---- runs on prompts --------------------------------------------------------------------------------


def test_bootstrap_reads_faithfulness(world: World) -> None:
    expected = bootstrap_stability(*world.runs, task="ioi")
    same(calibrate("bootstrap-stability", world.kept), expected)
    same(calibrate("c11", *world.runs, task="ioi"), expected)
    assert expected.details["metric"] == "C11.bootstrap_faithfulness"


def test_completeness_is_judged_as_completeness(world: World) -> None:
    full, drop = (world.dropped.components[name] for name in ("full", "drop"))
    expected = bootstrap_stability(full, drop, inner="completeness", task="ioi")
    same(calibrate("C11", world.dropped), expected)
    assert expected.values["completeness"] == pytest.approx(world.dropped.value, abs=1e-12)
    with pytest.raises(InputError, match="inner is 'faithfulness', but the measurement is of completeness"):
        calibrate("C11", world.dropped, inner="faithfulness")


def test_a_circuit_beside_its_measurement_is_flagged_where_it_is_empty(world: World) -> None:
    empty = Circuit.from_heads(world.model.graph, [])
    found = calibrate("C11", measure(empty, world.model, world.task, "faithfulness", ablation="mean"), empty)
    assert "empty_circuit" in found.warnings
    assert "empty_circuit" not in calibrate("C11", world.kept, world.circuit).warnings
    with pytest.raises(
        InputError, match=f"of the same circuit.*{world.kept.provenance['circuit']}.*{empty.hash}"
    ):
        calibrate("C11", world.kept, empty)


def test_options_reach_the_gate(world: World) -> None:
    expected = bootstrap_stability(*world.runs, n_boot=50, task="another", seed=7)
    same(calibrate("C11", world.kept, n_boot=50, task="another", seed=7), expected)


def test_units_are_named_by_a_field_of_the_task(world: World) -> None:
    places = np.asarray(world.task.fields["place"])
    expected = bootstrap_stability(*world.runs, unit_id=places, task="ioi")
    same(calibrate("C11", world.kept, unit_id="place", task=world.task), expected)


@pytest.mark.parametrize("field", ["template_id", "type", "category", "class", "domain", "corruption"])
def test_all_gates_group_by_the_same_fields(field: str, world: World) -> None:
    labels = [f"part {row % 2}" for row in range(world.task.n)]
    task = replace(world.task, fields={field: labels}, grammar=None)
    whole = calibrate_all(world.circuit, world.model, task, gates=["C13", "S3"])
    one = calibrate("C13", world.kept, task=task), calibrate("S3", world.dla, world.circuit, task=task)
    expected = calibrate("C13", world.kept, groups=np.array(labels), task=task)
    shares = [each.values["eta_squared"] for each in (whole["C13"], one[0], expected)]
    assert shares == pytest.approx(shares[:1] * 3)
    assert whole["C13"].details["groups_from"] == field.removesuffix("_id")
    groups = [each.sub_results["groups"].values["n_unstable"] for each in (whole["S3"], one[1])]
    assert groups[0] == groups[1]


def test_invariance_finds_groups_in_the_task(world: World) -> None:
    orders = np.asarray(world.task.fields["template_id"])
    lengths = world.task.lengths.numpy()
    by_hand = measurement_invariance(*world.runs, orders, lengths=lengths, task="ioi")
    same(
        calibrate("C13", world.kept, groups="template_id", lengths=world.task.lengths, task=world.task),
        by_hand,
    )
    places = np.asarray(world.task.fields["place"])
    expected = measurement_invariance(*world.runs, places, task="ioi")
    same(calibrate("C13", world.kept, groups="place", task=world.task), expected)
    same(calibrate("C13", world.kept, groups=list(world.task.fields["place"])), expected)


def test_invariance_takes_the_template_where_a_task_has_several(model: Model) -> None:
    task = load_task("ioi", model, n=36, seed=1)
    chosen = choose_groups({"template": np.asarray(task.fields["template_id"])})
    circuit = Circuit.from_heads(model.graph, HEADS)
    found = measure(circuit, model, task, "faithfulness", ablation="mean")
    runs = (found.components["full"], found.components["keep"])
    groups = None if chosen is None else chosen.labels
    same(
        calibrate("C13", found, task=task),
        measurement_invariance(*runs, groups, lengths=task.lengths.numpy(), task="ioi"),
    )


def test_seeds_take_a_pool_and_a_rival(world: World) -> None:
    same(calibrate("C30", world.kept, n_prompts=8), seed_variance(*world.runs, n_prompts=8, task="ioi"))
    rival = measure(world.other, world.model, world.task, "faithfulness", ablation="mean")
    expected = seed_variance(*world.runs, n_prompts=8, y_other=rival.components["keep"], task="ioi")
    same(calibrate("C30", world.kept, rival, n_prompts=8), expected)
    assert "sign_consistency" in expected.details


def test_the_suite_takes_a_pool_or_samples(world: World) -> None:
    effects = world.drop.flat_examples
    assert effects is not None
    expected = reliability_suite(*world.runs, effects, world.members, task="ioi")
    same(calibrate("C16", world.kept, world.drop, world.circuit), expected)
    same(calibrate("C16", *world.runs, effects, world.members, task="ioi"), expected)
    samples = [
        measure(world.circuit, world.model, each, "faithfulness", ablation="mean")
        for each in (load_task("ioi", world.model, n=9, seed=seed) for seed in (3, 4))
    ]
    full, keep = (np.concatenate([each.components[name] for each in samples]) for name in ("full", "keep"))
    expected = reliability_suite(
        full, keep, effects, world.members, sample_id=np.repeat([0, 1], 9), task="ioi"
    )
    same(calibrate("C16", samples, world.drop, world.heads), expected)
    assert len(expected.sub_results["test_retest"].details["scores"]) == 2


METHODS = ("zero", "mean", "noise")


@pytest.fixture(scope="module")
def by_method(world: World) -> dict[str, Measurement]:
    return {method: world.measured(ablation=method) for method in METHODS}


@pytest.mark.parametrize(("gate", "function"), [("M98", ablation_invariance), ("E1b", method_invariance)])
def test_ablations_are_named_by_their_measurements(
    gate: str, function: Callable[..., Verdict], world: World, by_method: dict[str, Measurement]
) -> None:
    runs = {method: each.components["keep"] for method, each in by_method.items()}
    expected = function(world.runs[0], runs)
    same(calibrate(gate, list(by_method.values())), expected)
    same(calibrate(gate, *by_method.values()), expected)
    same(calibrate(gate, by_method), expected)
    same(calibrate(gate, world.runs[0], runs), expected)
    assert set(expected.details["methods"]) == set(METHODS)


def test_draws_of_one_ablation_are_averaged(world: World, by_method: dict[str, Measurement]) -> None:
    draws = [world.measured(ablation="noise", seed=seed) for seed in (0, 1)]
    runs = {
        "mean": by_method["mean"].components["keep"],
        "noise": np.stack([each.components["keep"] for each in draws], axis=1),
    }
    expected = method_invariance(world.runs[0], runs, circuit_size=5, n_heads=32)
    same(calibrate("E1b", by_method["mean"], draws, world.circuit), expected)
    same(calibrate("E1b", {"mean": by_method["mean"], "noise": draws}, world.circuit), expected)
    assert "noise" in expected.details["spread_of_draws"]
    with pytest.raises(InputError, match=r"2 measurements use 'mean' with seeds \[0, 0\]"):
        calibrate("M98", by_method["mean"], by_method["mean"])


def test_increment_over_a_baseline(world: World) -> None:
    rival = measure(world.other, world.model, world.task, "faithfulness", ablation="mean")
    base = rival.components["keep"]
    same(calibrate("C36", world.kept, rival), incremental_validity(*world.runs, base))
    sets = [
        measure(
            Circuit.from_heads(world.model.graph, [(layer, 7) for layer in layers]),
            world.model,
            world.task,
            "faithfulness",
            ablation="mean",
        )
        for layers in ((0, 1), (2, 3), (1, 2))
    ]
    others = {"random": np.stack([each.components["keep"] for each in sets], axis=1)}
    members = np.zeros(32, dtype=bool)
    members[[layer * 8 + head for layer, head in OTHERS]] = True
    expected = incremental_validity(
        *world.runs, base, members=world.members, baseline_members=members, others=others
    )
    same(calibrate("C36", world.kept, rival, {"random": sets}, world.circuit, world.other), expected)
    assert expected.details["others"]["random"]["n_sets"] == 3
    named = calibrate("C36", world.kept, rival, sets[0]).details["others"]
    assert list(named) == ["baseline 2"]


# ---- head scores ------------------------------------------------------------------------------------


def test_agreement_of_scores_by_name(world: World) -> None:
    tables = {each.name: each.flat_examples for each in (world.dla, world.drop, world.patching)}
    for gate, function in (("C12", convergent_validity), ("F59", inter_rater)):
        expected = function(tables, members=world.members, task="ioi")
        same(calibrate(gate, world.dla, world.drop, world.patching, world.circuit), expected)
        same(calibrate(gate, [world.dla, world.drop, world.patching], members=world.heads), expected)
        same(calibrate(gate, world.dla, world.drop, world.patching, members=HEADS), expected)
        same(calibrate(gate, tables, members=world.members, task="ioi"), expected)
        assert expected.reason is None


def test_scores_of_different_methods_have_one_sign(world: World) -> None:
    attribution = attribution_patching(world.model, world.task)
    llc = fisher_count(world.model, world.task, n=8)
    assert attribution.flat_examples is not None
    scores = {
        "attribution-patching": attribution.flat_examples,
        "drop-effect": world.drop.flat_examples,
        "C10": llc.flat,
    }
    expected = convergent_validity(scores, llc_direction="specialised", task="ioi")
    same(calibrate("C12", attribution, world.drop, llc, llc_direction="specialised"), expected)
    assert expected.details["pairs"]["attribution-patching/drop-effect"] > 0


def test_direct_attributions_of_members(world: World) -> None:
    table = world.dla.flat_examples
    assert table is not None
    outputs = head_outputs(world.model, world.task)
    expected = distributional_characterization(
        table, world.members, outputs=outputs.z.double().numpy(), n_heads=8, task="ioi"
    )
    same(calibrate("S1", world.dla, world.circuit, outputs), expected)
    assert expected.values["ratio_layer_matched"] is not None
    assert "effective_rank" in expected.details["per_head"]
    expected = distributional_characterization(table, world.members)
    same(calibrate("S1", table, world.members), expected)
    same(
        calibrate("S1", table, world.circuit),
        distributional_characterization(table, world.members, n_heads=8),
    )
    places = np.asarray(world.task.fields["place"])
    expected = distributional_stability(table[:, world.members], groups=places, task="ioi")
    same(calibrate("S3", world.dla, world.circuit, groups="place", task=world.task), expected)
    same(calibrate("S3", world.dla, HEADS, groups=places), expected)
    assert "groups" in expected.sub_results


def test_drop_effects_of_members(world: World) -> None:
    table = world.drop.flat_examples
    assert table is not None
    expected = certified_stability(table[:, world.members], task="ioi")
    same(calibrate("M3b", world.drop, world.heads), expected)
    counted = [tuple(pair) for pair in np.argwhere(world.members.reshape(4, 8))]  # numpy's whole numbers
    same(calibrate("M3b", world.drop, counted), expected)
    same(calibrate("M3b", table[:, world.members], task="ioi"), expected)
    same(calibrate("M3b", torch.as_tensor(table), world.members, task="ioi"), expected)


def test_derived_metrics_finds_the_row_of_each_score(world: World) -> None:
    attribution = attribution_patching(world.model, world.task)
    llc = fisher_count(world.model, world.task, n=8)
    weights = weight_scores(world.model)
    minimality = measure(world.circuit, world.model, world.task, "minimality", ablation="mean")
    composed = composition(world.model)
    ours = replace(world.heads, task="ioi")
    theirs = replace(world.heads, id="four", task="sva", heads=OTHERS, roles={}, pathways=())
    features = weight_features(world.model)
    predicted = predict_from_weights(features, {"ioi": ours.members, "sva": theirs.members})["ioi"]
    expected = derived_metrics(
        world.members,
        world.patching.flat,
        llc=llc.flat,
        attribution=np.abs(attribution.flat),
        spectral_norm=weights["ov-spectral-norm"].flat,
        sv_entropy=weights["ov-sv-entropy"].flat,
        faithfulness=Estimate(value=world.kept.value, interval=world.kept.interval(ONE_SIDED_95)),
        completeness=Estimate(value=world.dropped.value, interval=world.dropped.interval(ONE_SIDED_95)),
        minimality=np.array([each["importance"] for each in minimality.details["heads"].values()]),
        n_prompts=24,
        composition={"q": composed.q, "k": composed.k, "v": composed.v},
        head_edges=world.heads.head_edges,
        n_heads=8,
        predicted=predicted.predicted,
        published_members=theirs.members,
        task="ioi",
    )
    found = calibrate(
        "C14",
        world.heads,
        [world.patching, llc, attribution, weights["ov-spectral-norm"], weights["ov-sv-entropy"]],
        [world.kept, world.dropped, minimality],
        composed,
        predicted,
        published_members=theirs,
    )
    same(found, expected)
    options = {"faithfulness": world.kept, "n_prompts": 24, "attribution": world.drop, "task": "ioi"}
    same(
        calibrate("C14", world.members, world.patching.flat, **options),
        derived_metrics(
            world.members,
            world.patching.flat,
            faithfulness=Estimate(value=world.kept.value, interval=world.kept.interval(ONE_SIDED_95)),
            n_prompts=24,
            attribution=world.drop.flat,
            task="ioi",
        ),
    )
    missing = {name for name, row in found.sub_results.items() if row.reason == "not_applicable"}
    assert missing == {
        "partial_eta_sq",
        "logit_diff_recovery",
        "pc_ratio_circuit_mean",
        "pc_ratio_noncircuit_mean",
        "pc_ratio_d_prime",
    }


# ---- tasks and circuits -----------------------------------------------------------------------------


def test_discriminant_validity_resamples_gaps_with_effects(
    world: World, second: tuple[PairTask, HeadScores]
) -> None:
    scores = {"ioi": world.patching, "sva": second[1]}
    members = np.zeros(32, dtype=bool)
    members[[layer * 8 + head for layer, head in OTHERS]] = True
    effects, gaps = {}, {}
    for name, each in scores.items():
        assert each.flat_examples is not None
        gaps[name] = each.details["gap"]
        effects[name] = each.flat_examples * each.details["mean_gap"]
    expected = discriminant_validity(effects, {"ioi": world.members, "sva": members}, own="ioi", gaps=gaps)
    same(calibrate("C17", scores, {"ioi": world.circuit, "sva": world.other}, own="ioi"), expected)
    np.testing.assert_allclose(
        expected.details["matrix"][0, 0], world.patching.flat[world.members].mean(), rtol=1e-9
    )
    circuits = {"ioi": world.members, "sva": members}
    same(calibrate("C17", effects, circuits, own="ioi", gaps=gaps), expected)


def test_head_circuits_by_name_file_object_and_circuit(world: World, tmp_path: Path) -> None:
    published = load_head_circuit("ioi_gpt2_wang26")
    expected = nomological_validity(published)
    same(calibrate("C23", "ioi_gpt2_wang26"), expected)
    same(calibrate("C23", published), expected)
    import json

    path = tmp_path / "circuit.json"
    path.write_text(json.dumps(published.to_dict()), encoding="utf-8")
    same(calibrate("C23", path), expected)
    assert calibrate("C23", world.circuit).reason == "not_applicable"


# ---- many results -----------------------------------------------------------------------------------


def test_p_values_as_they_are() -> None:
    p = [0.001, 0.02, 0.3]
    pool = [
        PooledResult(name=f"result {at}", p=each, p_kind="t", passed=each < 0.05)
        for at, each in enumerate(p, start=1)
    ]
    expected = multiple_comparisons(pool)
    same(calibrate("M93", p, p_kind="t"), expected)
    same(calibrate("M93", np.array(p)), expected)
    same(calibrate("M93", *p), expected)
    same(calibrate("M93", pool), expected)
    assert expected.values["n_survivors"] == 2.0


def test_verdicts_of_a_run_bring_their_p_values(world: World) -> None:
    verdicts = {
        "C12": calibrate("C12", world.dla, world.drop, world.patching),
        "M3b": calibrate("M3b", world.drop, world.circuit),
        "C11": calibrate("C11", world.kept),
    }
    found = calibrate("M93", verdicts, task="ioi")
    assert found.values["m"] == 3 + 5
    assert found.details["without_p"] == 1
    assert {each["task"] for each in found.details["results"]} == {"ioi"}
    both = calibrate("M93", {"ioi": verdicts, "again": verdicts})
    assert both.values["m"] == 16
    assert set(both.sub_results) == {"ioi", "again"}


def test_a_measurement_is_compared_with_random_circuits(world: World) -> None:
    measured = world.measured(random_circuits=4)
    values = np.array(measured.baseline["random"]["values"])
    p = (1 + int((values >= measured.value).sum())) / 5
    found = calibrate("M93", measured, measured, world.kept)
    assert [each["p"] for each in found.details["results"]] == [p]
    assert found.details["duplicates"] == 1
    assert found.details["without_p"] == 1


# ---- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", list(GATES))
def test_every_gate_has_an_adapter_and_a_row_of_the_table(key: str) -> None:
    assert key in ADAPTERS
    assert re.search(rf"\| `{key}` \| {GATES[key].code} \| .+ \|", calibrate.__doc__ or "")


@pytest.mark.parametrize("key", list(GATES))
def test_every_gate_says_what_it_takes(key: str, world: World) -> None:
    with pytest.raises(InputError, match=GATES[key].code) as caught:
        calibrate(key, world.task)
    assert "PairTask" in str(caught.value) or ADAPTERS[key].takes in str(caught.value)


@pytest.mark.parametrize("key", list(GATES))
def test_unknown_options_are_refused(key: str, world: World) -> None:
    with pytest.raises(UnknownNameError, match=rf"option of gate '{key}' 'nboots'"):
        calibrate(key, world.kept, nboots=3)


def test_unknown_gates_and_fields(world: World) -> None:
    with pytest.raises(InputError, match="task is of type int; give a task, or its name"):
        calibrate("C11", world.kept, task=3)
    with pytest.raises(UnknownNameError, match="did you mean 'bootstrap-stability'"):
        calibrate("bootstrap-stabilty", world.kept)
    with pytest.raises(UnknownNameError, match="field of task 'ioi' 'plaec'; did you mean 'place'"):
        calibrate("C13", world.kept, groups="plaec", task=world.task)
    with pytest.raises(InputError, match="groups='place' names a field, but the task is missing"):
        calibrate("C13", world.kept, groups="place")


def test_measurements_without_runs_say_how_to_make_one(world: World) -> None:
    bare = replace(world.kept, components={})
    with pytest.raises(InputError, match=r"keeps nothing; measure it again with assay\.measure\(circuit"):
        calibrate("C11", bare)
    divergence = measure(world.circuit, world.model, world.task, "kl", ablation="mean")
    with pytest.raises(InputError, match="needs faithfulness or completeness, not 'kl'"):
        calibrate("C13", divergence)
    ratios = world.measured(aggregate="mean_of_ratios")
    with pytest.raises(InputError, match="aggregate='ratio_of_sums'"):
        calibrate("C11", ratios)
    with pytest.raises(InputError, match="got 2 measurements"):
        calibrate("C11", world.kept, world.dropped)
    with pytest.raises(InputError, match="expected faithfulness, got 'completeness'"):
        calibrate("C36", world.kept, world.dropped)


def elsewhere(thing: Any) -> Any:
    """The same numbers, said to be of another model."""
    other = {**thing.provenance, "model": {"id": "stranger", "weight_hash": "0000"}}
    return replace(thing, provenance=other)


def test_things_of_two_models_are_refused(world: World, by_method: dict[str, Measurement]) -> None:
    stranger = elsewhere(by_method["zero"])
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("M98", (by_method["mean"], stranger)),
        ("C36", (world.kept, elsewhere(world.kept))),
        ("C30", (world.kept, elsewhere(world.kept))),
        ("C12", (world.dla, elsewhere(world.drop))),
        ("F59", (world.dla, elsewhere(world.drop))),
        ("C14", (world.circuit, world.patching, elsewhere(world.kept))),
        ("C16", (world.kept, elsewhere(world.drop), world.circuit)),
        (
            "C17",
            (
                {"a": world.patching, "b": elsewhere(world.patching)},
                {"a": world.circuit, "b": world.circuit},
            ),
        ),
        ("S1", (world.dla, world.circuit, replace_outputs(world))),
    ]
    for gate, things in cases:
        with pytest.raises(InputError, match=rf"{gate} needs inputs of the same model.*mini.*stranger"):
            calibrate(gate, *things)


def replace_outputs(world: World) -> Any:
    return elsewhere(head_outputs(world.model, world.task))


def test_things_of_two_tasks_are_refused(world: World, second: tuple[PairTask, HeadScores]) -> None:
    task, patching = second
    elsewhere_measured = measure(world.circuit, world.model, task, "faithfulness", ablation="zero")
    with pytest.raises(InputError, match=r"M98 needs inputs of the same prompts.*ioi \(n = 24.*sva \(n = 12"):
        calibrate("M98", world.kept, elsewhere_measured)
    with pytest.raises(InputError, match="C12 needs inputs of the same task.*ioi.*sva"):
        calibrate("C12", world.drop, patching)
    with pytest.raises(InputError, match="C16 needs inputs of the same task"):
        calibrate("C16", elsewhere_measured, world.drop, world.circuit)
    shorter = drop_effect(world.model, world.task.subset(range(10)), heads=HEADS)
    with pytest.raises(InputError, match=r"C12 needs inputs of the same prompts.*n = 24.*n = 10"):
        calibrate("C12", world.dla, shorter)
    with pytest.raises(InputError, match="of the same prompts"):
        calibrate("C13", world.kept, groups="place", task=load_task("ioi", world.model, n=24, seed=5))


def test_measurements_of_two_circuits_or_metrics_are_refused(world: World) -> None:
    rival = measure(world.other, world.model, world.task, "faithfulness", ablation="zero")
    with pytest.raises(InputError, match="of the same circuit"):
        calibrate("M98", world.kept, rival)
    with pytest.raises(InputError, match="of the same ablation.*mean.*zero"):
        calibrate("C36", world.kept, rival)
    with pytest.raises(InputError, match="of the same metric.*faithfulness.*completeness"):
        calibrate("M98", world.kept, replace_ablation(world.dropped, "zero"))
    with pytest.raises(InputError, match="does not name its ablation"):
        calibrate("M98", replace(world.kept, provenance={}), world.kept)


def replace_ablation(measurement: Measurement, method: str) -> Measurement:
    return replace(measurement, provenance={**measurement.provenance, "ablation": method})


def test_the_wrong_scores_are_refused(world: World) -> None:
    llc = fisher_count(world.model, world.task, n=8)
    with pytest.raises(InputError, match="M3b needs drop-effect, but these are 'direct-attribution'"):
        calibrate("M3b", world.dla, world.circuit)
    with pytest.raises(InputError, match="S1 needs direct-attribution or dla, but these are 'drop-effect'"):
        calibrate("S1", world.drop, world.circuit)
    with pytest.raises(InputError, match="M3b needs scores per prompt"):
        calibrate("M3b", replace(world.drop, per_example=None), world.circuit)
    with pytest.raises(InputError, match="'drop-effect' cannot become a row"):
        calibrate("C14", world.circuit, world.drop)
    with pytest.raises(InputError, match="llc was given twice"):
        calibrate("C14", world.circuit, llc, llc)
    with pytest.raises(InputError, match="two scores are named 'drop-effect'"):
        calibrate("C12", world.drop, world.drop)
    with pytest.raises(InputError, match="there is no circuit"):
        calibrate("C14", world.patching)
    with pytest.raises(InputError, match=r"it does not use the HeadScores of 'drop-effect'"):
        calibrate("C11", world.kept, world.drop)
    with pytest.raises(InputError, match="missing a required argument: 'y_circuit'"):
        calibrate("C11", np.ones(3))
    with pytest.raises(InputError, match="C23 takes one head circuit.*it is none of these"):
        calibrate("C23", world.dla)
    with pytest.raises(InputError, match="got 1 tables of head scores and no circuit"):
        calibrate("M3b", world.drop)
    with pytest.raises(InputError, match="'a' is a str"):
        calibrate("C12", {"a": "x"})
    with pytest.raises(InputError, match=r"scores of shape \(24, 31\) do not fit"):
        calibrate("S1", np.ones((24, 31)), world.circuit)
    with pytest.raises(InputError, match="got 0 tables of head scores and a circuit .given: Circuit"):
        calibrate("S3", world.circuit)


def test_circuits_of_another_shape_are_refused(world: World) -> None:
    theirs = load_head_circuit("ioi_gpt2_wang26")
    for gate, scores in (("M3b", world.drop), ("S1", world.dla), ("C14", world.patching)):
        with pytest.raises(ShapeError, match="12 layers of 12 heads.*4 of 8"):
            calibrate(gate, scores, theirs)
    with pytest.raises(ShapeError, match=r"members has shape \(5,\)"):
        calibrate("M3b", world.drop, np.ones(5, dtype=bool))
    with pytest.raises(InputError, match=r"head \(9, 0\) is out of range"):
        calibrate("M3b", world.drop, [(9, 0)])


def test_tasks_of_scores_and_circuits_must_be_the_same(world: World) -> None:
    with pytest.raises(InputError, match=r"head scores are of tasks \['ioi'\], circuits of \['sva'\]"):
        calibrate("C17", {"ioi": world.patching}, {"sva": world.circuit})
    published = activation_patching(world.model, world.task, aggregate="mean_of_ratios")
    circuits = {"a": world.circuit, "b": world.circuit}
    with pytest.raises(InputError, match="score all tasks with the same aggregate"):
        calibrate("C17", {"a": world.patching, "b": published}, circuits)


def test_a_circuit_without_its_bands_is_refused(world: World) -> None:
    roles = Circuit.from_heads(world.model.graph, world.heads)
    with pytest.raises(InputError, match="bands and pathways"):
        calibrate("C23", roles)


def test_pools_of_anything_else_are_refused() -> None:
    with pytest.raises(InputError, match="M93 takes .* result 1 is a str"):
        calibrate("M93", "0.03")
    with pytest.raises(InputError, match="p is 1.5"):
        calibrate("M93", [1.5])


def test_fields_of_any_type_are_labels(world: World) -> None:
    fields = {**world.task.fields, "mixed": [None, 1, "a"] * 8, "width": [3, 9] * 12}
    task = replace(world.task, fields=fields)
    expected = measurement_invariance(*world.runs, np.array(["None", "1", "a"] * 8), task="ioi")
    same(calibrate("C13", world.kept, groups="mixed", task=task), expected)
    by_length = measurement_invariance(*world.runs, lengths=np.array([3, 9] * 12), task="ioi")
    same(calibrate("C13", *world.runs, lengths="width", task=task), by_length)


def test_lower_is_better_for_a_divergence(world: World) -> None:
    measured = measure(world.circuit, world.model, world.task, "kl", ablation="mean", random_circuits=4)
    assert measured.direction == "lower"
    values = np.array(measured.baseline["random"]["values"])
    lowest = replace(measured, value=float(values.min()) - 1.0)
    highest = replace(measured, value=float(values.max()) + 1.0)
    for each, p in ((lowest, 0.2), (highest, 1.0)):
        (found,) = calibrate("M93", each, [0.5]).details["results"][:1]
        assert found["p"] == p


def test_a_prediction_of_nothing_is_no_prediction(world: World) -> None:
    circuits = {"ioi": world.members, "sva": np.zeros(32, dtype=bool)}
    prediction = predict_from_weights(weight_features(world.model), circuits)["ioi"]
    assert prediction.reason == "no_members"
    found = calibrate("C14", world.circuit, world.patching, prediction)
    same(found, derived_metrics(world.members, world.patching.flat, task="ioi"))


def test_text_is_no_array_of_margins() -> None:
    with pytest.raises(InputError, match="gates need numbers"):
        calibrate("C11", ["a", "b", "c"], ["d", "e", "f"])
