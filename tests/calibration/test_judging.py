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
from assay.analyses.calibration.inputs import READERS
from assay.circuits import Circuit, HeadCircuit, load_head_circuit
from assay.circuits.heads import Role
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.measurement import Measurement
from assay.core.verdict import ONE_SIDED_95, Verdict
from assay.discovery.heads import HeadScores
from assay.discovery.heads.direct import direct_attribution, head_outputs, margin_directions
from assay.discovery.heads.effects import activation_patching, drop_effect
from assay.discovery.heads.gradients import attribution_patching, fisher_count
from assay.discovery.heads.membership import predict_from_weights, weight_features
from assay.discovery.heads.weights import composition, weight_scores
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


# ---- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", list(GATES))
def test_every_gate_has_a_reader_and_a_row_of_the_table(key: str, world: World) -> None:
    assert key in READERS
    assert re.search(rf"\| `{key}` \| {GATES[key].code} \| .+ \|", calibrate.__doc__ or "")
    with pytest.raises(InputError, match=f"{GATES[key].code}.*PairTask"):
        calibrate(key, world.task)
    with pytest.raises(UnknownNameError, match=rf"option of gate '{key}' 'nboots'"):
        calibrate(key, world.kept, nboots=3)


def elsewhere(thing: Any) -> Any:
    """The same numbers, said to be of another model."""
    other = {**thing.provenance, "model": {"id": "stranger", "weight_hash": "0000"}}
    return replace(thing, provenance=other)


SAME = "needs inputs of the same"
REFUSED: dict[str, tuple[str, Callable[[World], object]]] = {
    "gate": ("did you mean 'bootstrap-stability'", lambda w: calibrate("bootstrap-stabilty", w.kept)),
    "field": (
        "field of task 'ioi' 'plaec'; did you mean 'place'",
        lambda w: calibrate("C13", w.kept, groups="plaec", task=w.task),
    ),
    "field of what": ("the task is missing", lambda w: calibrate("C13", w.kept, groups="place")),
    "no runs": ("needs the values per prompt", lambda w: calibrate("C11", replace(w.kept, components={}))),
    "mean of ratios": (
        "aggregate='ratio_of_sums'",
        lambda w: calibrate("C11", w.measured(aggregate="mean_of_ratios")),
    ),
    "two measurements": ("got 2 measurements", lambda w: calibrate("C11", w.kept, w.dropped)),
    "metric": ("expected faithfulness", lambda w: calibrate("C36", w.kept, w.dropped)),
    "models": (rf"C12 {SAME} model.*mini.*stranger", lambda w: calibrate("C12", w.dla, elsewhere(w.drop))),
    "prompts": (
        rf"C13 {SAME} prompts",
        lambda w: calibrate("C13", w.kept, groups="place", task=load_task("ioi", w.model, n=24, seed=5)),
    ),
    "ablations": (
        rf"C36 {SAME} ablation.*mean.*zero",
        lambda w: calibrate("C36", w.kept, w.measured(ablation="zero")),
    ),
    "no ablation": ("name its ablation", lambda w: calibrate("M98", replace(w.kept, provenance={}), w.kept)),
    "scores": ("M3b needs drop-effect per prompt", lambda w: calibrate("M3b", w.dla, w.circuit)),
    "no prompts": (
        "M3b needs drop-effect per prompt",
        lambda w: calibrate("M3b", replace(w.drop, per_example=None), w.circuit),
    ),
    "row": ("'drop-effect' serves no row", lambda w: calibrate("C14", w.circuit, w.drop)),
    "row twice": ("was given already", lambda w: calibrate("C14", w.circuit, w.patching, w.patching)),
    "name twice": ("two scores are named 'drop-effect'", lambda w: calibrate("C12", w.drop, w.drop)),
    "no circuit": ("got 1 tables of head scores and no circuit", lambda w: calibrate("M3b", w.drop)),
    "of no use": ("does not use the HeadScores", lambda w: calibrate("C11", w.kept, w.drop)),
    "no scores": ("'a' is a str", lambda w: calibrate("C12", {"a": "x"})),
    "no fit": (r"shape \(24, 31\) do not fit", lambda w: calibrate("S1", np.ones((24, 31)), w.circuit)),
    "other shape": (
        r"shape \(12, 12\).*\(4, 8\)",
        lambda w: calibrate("M3b", w.drop, load_head_circuit("ioi_gpt2_wang26")),
    ),
    "flags": (r"shape \(5,\)", lambda w: calibrate("M3b", w.drop, np.ones(5, dtype=bool))),
    "head": (r"head \(9, 0\) is out of range", lambda w: calibrate("M3b", w.drop, [(9, 0)])),
    "tasks": ("of the same tasks", lambda w: calibrate("C17", {"ioi": w.patching}, {"sva": w.circuit})),
    "bands": (
        "bands and pathways",
        lambda w: calibrate("C23", Circuit.from_heads(w.model.graph, w.heads)),
    ),
    "p": ("M93 takes .* result 1 is a str", lambda w: calibrate("M93", "0.03")),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_does_not_belong_is_refused_by_name(what: str, world: World) -> None:
    message, call = REFUSED[what]
    with pytest.raises((InputError, ShapeError, UnknownNameError), match=message):
        call(world)


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
