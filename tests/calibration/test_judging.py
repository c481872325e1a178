"""Any gate on what a user holds: the same verdict as on the arrays, and a word for what does not belong."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from assay.circuits import Circuit, HeadCircuit, load_head_circuit
from assay.circuits.heads import Role
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.core.measurement import ONE_SIDED_95, Measurement, Verdict
from assay.discovery.heads import HeadScores
from assay.discovery.heads.direct import direct_attribution, head_outputs, margin_directions
from assay.discovery.heads.effects import activation_patching, drop_effect
from assay.discovery.heads.gradients import attribution_patching
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
    rival: Measurement

    @property
    def places(self) -> np.ndarray:
        return np.asarray(self.task.fields["place"])

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
    return World(
        model=model,
        task=task,
        circuit=circuit,
        other=Circuit.from_heads(model.graph, OTHERS),
        heads=heads,
        kept=measure(circuit, model, task, "faithfulness", ablation="mean"),
        dropped=measure(circuit, model, task, "completeness", ablation="mean"),
        dla=direct_attribution(model, head_outputs(model, task), margin_directions(model, task)),
        drop=drop_effect(model, task),
        patching=activation_patching(model, task),
        rival=measure(Circuit.from_heads(model.graph, OTHERS), model, task, "faithfulness", ablation="mean"),
    )


@pytest.fixture(scope="module")
def second(model: Model) -> tuple[PairTask, HeadScores]:
    task = load_task("sva", model, n=12, seed=0)
    return task, activation_patching(model, task)


def same(found: Verdict, expected: Verdict) -> None:
    """Equal in all they say."""
    assert found.to_dict() == expected.to_dict()


def members_of(heads: tuple[tuple[int, int], ...]) -> np.ndarray:
    members = np.zeros(32, dtype=bool)
    members[[layer * 8 + head for layer, head in heads]] = True
    return members


def sets_of_heads(w: World) -> list[Measurement]:
    circuits = [Circuit.from_heads(w.model.graph, [(at, 7), (at + 1, 7)]) for at in range(3)]
    return [measure(each, w.model, w.task, "faithfulness", ablation="mean") for each in circuits]


def ablated(w: World) -> dict[str, Measurement]:
    return {how: w.measured(ablation=how) for how in ("zero", "mean", "noise-additive")}


def kept_of(measured: dict[str, Measurement]) -> dict[str, np.ndarray]:
    return {name: each.components["keep"] for name, each in measured.items()}


def tables(w: World) -> dict[str, Any]:
    return {each.name: each.flat_examples for each in (w.dla, w.drop, w.patching)}


P = [0.001, 0.02, 0.3]
POOL = [PooledResult(name=f"result {at}", p=p, p_kind="t", passed=p < 0.05) for at, p in enumerate(P, 1)]
# What `calibrate` says of objects, and the gate's function of arrays.
SAME: dict[str, Callable[[World], tuple[Verdict, Verdict]]] = {
    "C11": lambda w: (calibrate("c11", w.kept), bootstrap_stability(*w.runs, task="ioi")),
    "C11 of completeness": lambda w: (
        calibrate("C11", w.dropped),
        bootstrap_stability(
            w.dropped.components["full"], w.dropped.components["drop"], inner="completeness", task="ioi"
        ),
    ),
    "C11, units by a field": lambda w: (
        calibrate("C11", w.kept, unit_id="place", task=w.task),
        bootstrap_stability(*w.runs, unit_id=w.places, task="ioi"),
    ),
    "C13, groups by a field": lambda w: (
        calibrate("C13", w.kept, groups="place", task=w.task),
        measurement_invariance(*w.runs, w.places, task="ioi"),
    ),
    "C30 of a pool and a rival": lambda w: (
        calibrate("C30", w.kept, y_other=w.rival, n_prompts=8),
        seed_variance(*w.runs, n_prompts=8, y_other=w.rival.components["keep"], task="ioi"),
    ),
    "C16": lambda w: (
        calibrate("C16", w.kept, w.drop, w.circuit),
        reliability_suite(*w.runs, w.drop.flat_examples, w.members, task="ioi"),
    ),
    "M98": lambda w: (
        calibrate("M98", list(ablated(w).values())),
        ablation_invariance(w.runs[0], kept_of(ablated(w))),
    ),
    "C36 beside random sets": lambda w: (
        calibrate(
            "C36",
            w.kept,
            w.rival,
            others={"random": sets_of_heads(w), "other": sets_of_heads(w)[0]},
            members=w.circuit,
            baseline_members=w.other,
        ),
        incremental_validity(
            *w.runs,
            w.rival.components["keep"],
            members=w.members,
            baseline_members=members_of(OTHERS),
            others={
                "random": np.stack([each.components["keep"] for each in sets_of_heads(w)], axis=1),
                "other": sets_of_heads(w)[0].components["keep"],
            },
        ),
    ),
    "C12": lambda w: (
        calibrate("C12", w.dla, w.drop, w.patching, w.circuit),
        convergent_validity(tables(w), members=w.members, task="ioi"),
    ),
    "F59 of a list": lambda w: (
        calibrate("F59", [w.dla, w.drop, w.patching], members=w.heads),
        inter_rater(tables(w), members=w.members, task="ioi"),
    ),
    "S1": lambda w: (
        calibrate("S1", w.dla, w.circuit),
        distributional_characterization(w.dla.flat_examples, w.members, n_heads=8, task="ioi"),
    ),
    "S3, groups by a field": lambda w: (
        calibrate("S3", w.dla, w.circuit, groups="place", task=w.task),
        distributional_stability(w.dla.flat_examples[:, w.members], groups=w.places, task="ioi"),
    ),
    "M3b": lambda w: (
        calibrate("M3b", w.drop, w.heads),
        certified_stability(w.drop.flat_examples[:, w.members], task="ioi"),
    ),
    "M3b of a tensor": lambda w: (
        calibrate("M3b", torch.as_tensor(w.drop.flat_examples[:, w.members]), task="ioi"),
        certified_stability(w.drop.flat_examples[:, w.members], task="ioi"),
    ),
    "C23 by name": lambda w: (
        calibrate("C23", "ioi_gpt2_wang26"),
        nomological_validity(load_head_circuit("ioi_gpt2_wang26")),
    ),
    "M93 of p-values": lambda w: (calibrate("M93", *P), multiple_comparisons(POOL)),
    "M93 of results": lambda w: (calibrate("M93", POOL), multiple_comparisons(POOL)),
}


@pytest.mark.parametrize("what", list(SAME))
def test_objects_are_judged_as_their_arrays(what: str, world: World) -> None:
    found, expected = SAME[what](world)
    same(found, expected)
    assert expected.values


def test_a_circuit_beside_its_measurement_is_flagged_where_it_is_empty(world: World) -> None:
    empty = Circuit.from_heads(world.model.graph, [])
    found = calibrate("C11", measure(empty, world.model, world.task, "faithfulness", ablation="mean"), empty)
    assert "empty_circuit" in found.warnings
    assert "empty_circuit" not in calibrate("C11", world.kept, world.circuit).warnings


@pytest.mark.parametrize("field", ["template_id", "class", "corruption"])
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


def test_draws_of_one_ablation_are_averaged(world: World) -> None:
    draws = [world.measured(ablation="noise-additive", seed=seed) for seed in (0, 1)]
    runs = {
        "mean": world.kept.components["keep"],
        "noise-additive": np.stack([each.components["keep"] for each in draws], axis=1),
    }
    expected = method_invariance(world.runs[0], runs, circuit_size=5, n_heads=32)
    same(calibrate("E1b", world.kept, draws, world.circuit), expected)
    assert "noise-additive" in expected.details["spread_of_draws"]


def test_rows_of_derived_metrics_may_be_objects(world: World) -> None:
    attribution, weights = attribution_patching(world.model, world.task), weight_scores(world.model)
    theirs = replace(world.heads, id="four", task="sva", heads=OTHERS, roles={}, pathways=())
    norms, composed = weights["ov-spectral-norm"], composition(world.model)
    common = {"n_prompts": 24, "composition": {"q": composed.q, "k": composed.k, "v": composed.v}}
    expected = derived_metrics(
        world.members,
        world.patching.flat,
        attribution=np.abs(attribution.flat),
        spectral_norm=norms.flat,
        faithfulness=Estimate(value=world.kept.value, interval=world.kept.interval(ONE_SIDED_95)),
        completeness=Estimate(value=world.dropped.value, interval=world.dropped.interval(ONE_SIDED_95)),
        head_edges=world.heads.head_edges,
        n_heads=8,
        predicted=members_of(OTHERS),
        published_members=theirs.members,
        task="ioi",
        **common,
    )
    objects = {"attribution": attribution, "spectral_norm": norms, "published_members": theirs}
    ratios = {"faithfulness": world.kept, "completeness": world.dropped, "predicted": theirs}
    same(calibrate("C14", world.heads, world.patching, **objects, **ratios, **common), expected)


def test_discriminant_validity_resamples_gaps_with_effects(
    world: World, second: tuple[PairTask, HeadScores]
) -> None:
    scores = {"ioi": world.patching, "sva": second[1]}
    members = members_of(OTHERS)
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


def test_every_gate_has_a_row_of_the_table_and_names_what_it_does_not_use(world: World) -> None:
    for key, gate in GATES.items():
        assert re.search(rf"\| `{key}` \| {gate.code} \| .+ \|", calibrate.__doc__ or "")
        with pytest.raises(InputError, match=f"{gate.code}.*PairTask"):
            calibrate(key, world.task)
        with pytest.raises(UnknownNameError, match=rf"option of gate '{key}' 'nboots'"):
            calibrate(key, world.kept, nboots=3)
        for name in {"n_boot", "n_perm", "strata"} - gate.options:
            with pytest.raises(InputError, match=rf"{gate.code} does not read {name}; C.* do"):
                gate.judge(**{name: 3})
        read = set(re.findall(r"\bhow\.(\w+)", inspect.getsource(gate.function))) - {"level"}
        told = read - {"stream"} | ({"task", "seed"} if "stream" in read else set())
        assert told <= gate.options


def elsewhere(thing: Any) -> Any:
    """The same numbers, said to be of another model."""
    other = {**thing.provenance, "model": {"id": "stranger", "weight_hash": "0000"}}
    return replace(thing, provenance=other)


SAME_FACT = "needs inputs of the same"
REFUSED: dict[str, tuple[str, Callable[[World], object]]] = {
    "field": (
        "field of task 'ioi' 'plaec'; did you mean 'place'",
        lambda w: calibrate("C13", w.kept, groups="plaec", task=w.task),
    ),
    "field of what": ("the task is missing", lambda w: calibrate("C13", w.kept, groups="place")),
    "no runs": (
        "needs the values per prompt of faithfulness",
        lambda w: calibrate("C11", replace(w.kept, components={})),
    ),
    "mean of ratios": (
        "aggregate='ratio_of_sums'",
        lambda w: calibrate("C11", w.measured(aggregate="mean_of_ratios")),
    ),
    "inner": (
        "inner is 'faithfulness', but the measurement is of completeness",
        lambda w: calibrate("C11", w.dropped, inner="faithfulness"),
    ),
    "completeness": (
        "of faithfulness, not this measurement of 'completeness'",
        lambda w: calibrate("C36", w.dropped, w.dropped),
    ),
    "models": (
        rf"C12 {SAME_FACT} model.*mini.*stranger",
        lambda w: calibrate("C12", w.dla, elsewhere(w.drop)),
    ),
    "prompts": (
        rf"C13 {SAME_FACT} prompts",
        lambda w: calibrate("C13", w.kept, groups="place", task=load_task("ioi", w.model, n=24, seed=5)),
    ),
    "ablations": (
        rf"C36 {SAME_FACT} ablation.*mean.*zero",
        lambda w: calibrate("C36", w.kept, w.measured(ablation="zero")),
    ),
    "scores": ("M3b needs drop-effect per prompt", lambda w: calibrate("M3b", w.dla, w.circuit)),
    "name twice": ("two scores are named 'drop-effect'", lambda w: calibrate("C12", w.drop, w.drop)),
    "no circuit": ("there is no circuit", lambda w: calibrate("M3b", w.drop)),
    "of no use": ("does not use the HeadScores", lambda w: calibrate("C11", w.kept, w.drop)),
    "other shape": (
        r"shape \(12, 12\).*\(4, 8\)",
        lambda w: calibrate("M3b", w.drop, load_head_circuit("ioi_gpt2_wang26")),
    ),
    "tasks": ("of the same tasks", lambda w: calibrate("C17", {"ioi": w.patching}, {"sva": w.circuit})),
    "bands": (
        "bands and pathways",
        lambda w: calibrate("C23", Circuit.from_heads(w.model.graph, w.heads)),
    ),
    "p": ("M93 takes .*, not the str", lambda w: calibrate("M93", "0.03")),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_does_not_belong_is_refused_by_name(what: str, world: World) -> None:
    message, call = REFUSED[what]
    with pytest.raises((InputError, ShapeError, UnknownNameError), match=message):
        call(world)
