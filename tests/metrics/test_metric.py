"""The registry, `measure` and `compare`: of arrays, of real models, golden values of a tiny GPT-2."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from array_runs import GRAPH, ArrayRuns, margin_runs
from counted_passes import counted
from golden_heads import golden_model, golden_task, stored
from torch import nn

import assay
from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.core.measurement import Measurement
from assay.core.random import stream, torch_stream
from assay.core.record import record_id
from assay.metrics import (
    METRICS,
    difference,
    find_metric,
    measure,
    measure_runs,
    measurement_provenance,
)
from assay.metrics.metric import random_like
from assay.models import Model, load_model
from assay.stats import RatioOfSums, mean_of, ratio_of
from assay.tasks import PairTask


# Of given arrays: metrics that run the model themselves have tests of their own.
OF_ARRAYS = [key for key in METRICS if key not in ("scrub-recovery", "scrub-kl")]


def rich_runs(n: int = 30, seed: int = 0) -> ArrayRuns:
    """Runs of every kind, on a head circuit, over 20 outputs."""
    rng = stream(seed, "rich")
    circuit = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)])
    full = rng.normal(size=(n, 20))
    full[:, 0] += 3
    damage = {"keep": 0.5, "drop": 2.5, "empty": 4.0}
    logits = {which: full + 0.3 * rng.normal(size=full.shape) for which in damage}
    for which, margin in damage.items():
        logits[which][:, 0] -= margin
    others = {
        circuit.without_head(*head).hash: full + rng.normal(size=full.shape) for head in circuit.kept_heads()
    }
    return ArrayRuns(
        answers=[[0]] * n, wrong=[[1]] * n, circuit=circuit, others=others, seed=seed, full=full, **logits
    )


@pytest.mark.parametrize("key", OF_ARRAYS)
def test_every_metric_leaves_its_input_alone_and_asks_for_the_runs_it_declares(key: str) -> None:
    runs = rich_runs()
    before = {which: logits.clone() for which, logits in runs.given.items()}
    measured = measure_runs(runs, key)
    for which, logits in runs.given.items():
        assert (logits == before[which]).all()
    assert {each for each in runs.asked if each in before} == set(METRICS[key].runs)
    low, high = METRICS[key].range
    assert low <= measured.value <= high
    assert measured.direction == METRICS[key].direction
    assert measured.provenance["metric"]["key"] == key


@pytest.mark.parametrize("key", OF_ARRAYS)
def test_every_metric_survives_one_and_no_usable_example(key: str) -> None:
    single = rich_runs()
    for logits in (single.given, single.others):
        for which in logits:
            logits[which][1:] = np.nan
    measured = measure_runs(single, key)
    assert measured.n + measured.n_excluded == 30
    assert measured.n <= 1
    json.dumps(measured.to_dict(), allow_nan=False)
    nothing = rich_runs()
    nothing.given["full"][:] = np.nan
    measured = measure_runs(nothing, key)
    assert measured.n == 0
    assert measured.reason == "no_valid_prompt"
    assert (measured.passed, measured.status in ("inconclusive", "none")) == (None, True)


def test_metrics_are_found_by_key_id_and_code() -> None:
    for key, names in {
        "faithfulness": ("faithfulness", "D02"),
        "ce-delta": ("ce_delta", "D04"),
        "topk": ("D05", "d05"),
        "completeness": ("D02.completeness",),
        "kl": ("D03",),
        "minimality": ("C4b",),
        "output-divergence": ("D01",),
        "scrub-recovery": ("C4",),
        "scrub-kl": ("C4.scrub_kl",),
    }.items():
        assert {find_metric(name).key for name in names} == {key}


def test_what_cannot_be_measured_is_refused() -> None:
    for name, options, error, message in (
        ("faithfullness", {}, UnknownNameError, "did you mean 'faithfulness'"),
        ("faithfulness", {"agregate": "x"}, UnknownNameError, "'agregate'; did you mean 'aggregate'"),
        ("faithfulness", {"aggregate": "median"}, UnknownNameError, "unknown aggregate"),
        ("kl", {"random_circuits": -1}, InputError, "random_circuits is -1"),
    ):
        with pytest.raises(error, match=message):
            measure_runs(margin_runs(full=[1.0], keep=[1.0]), name, **options)


def test_options_and_parts_enter_the_identity_which_is_known_before_anything_runs() -> None:
    runs = rich_runs()
    provenance = measurement_provenance(runs, "D05", support="union")
    assert not runs.asked
    plain, other = measure_runs(runs, "topk"), measure_runs(runs, "topk", support="union")
    assert record_id("measurement", provenance) == other.id_hash
    assert plain.provenance["metric"]["options"]["support"] == "full"
    assert plain.id_hash != other.id_hash
    assert plain.parts["acc@5"].id_hash not in (plain.id_hash, plain.parts["acc@10"].id_hash)
    assert plain.id_hash == measure_runs(rich_runs(), "topk", support="full").id_hash
    assert measure_runs(rich_runs(seed=1), "topk").id_hash != plain.id_hash


def test_random_circuits_stand_beside_the_measurement() -> None:
    runs = rich_runs()
    circuits = [random_like(runs.circuit, seed=0, index=index) for index in range(3)]
    full = runs.given["full"]
    share = {circuit.hash: 0.25 * (1 + index) for index, circuit in enumerate(circuits)}
    empty = Circuit.from_heads(GRAPH, [])
    for circuit in (*circuits, empty):
        runs.others[circuit.hash] = full * share.get(circuit.hash, 1 / 8)
        runs.others[circuit.dropped().hash] = full
    measured = measure_runs(runs, "faithfulness", random_circuits=3)
    random, expected = measured.baseline["random"], [share[circuit.hash] for circuit in circuits]
    assert random["values"] == pytest.approx(expected)
    assert (random["value"], random["n"]) == (pytest.approx(np.mean(expected)), 3)
    assert random["sd"] == pytest.approx(np.std(expected, ddof=1))
    assert measured.baseline["empty"]["value"] == pytest.approx(1 / 8)
    dropped = measure_runs(runs, "completeness", random_circuits=3)
    assert dropped.baseline["random"]["values"] == pytest.approx([0.0, 0.0, 0.0])
    assert measured.id_hash != measure_runs(runs, "faithfulness").id_hash
    # As many heads, and the same MLPs.
    for mlps in (True, False):
        heads = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)], mlps=mlps)
        others = [random_like(heads, seed=0, index=index) for index in range(20)]
        assert {len(other.heads or ()) for other in others} == {2}
        assert len({other.hash for other in others}) > 1
        assert {bool(other.mask[GRAPH.mlp_source(0)].any()) for other in others} == {mlps}


@pytest.fixture(scope="module")
def model(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("llama"))


def draw_task(seed: int, n: int = 8) -> PairTask:
    generator = torch_stream(seed, "task")
    clean, corrupted = (torch.randint(1, 61, (n, 5), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], wrong=(clean[:, :1] + 1) % 60)


TASK = draw_task(0)


KEYS = ("faithfulness", "kl", "topk", "faithfulness-norm")


@pytest.mark.parametrize("key", KEYS)
def test_where_nothing_is_ablated_nothing_passes(key: str, model: Model) -> None:
    task, circuit = draw_task(1, 24), Circuit.random(model.graph, 60, seed=1)
    same = replace(task, corrupted=task.clean)
    measured = assay.measure(circuit, model, same, key)
    assert (measured.n, measured.n_excluded, measured.status) == (0, 0, "inconclusive")
    assert measured.verdict.reason == measured.reason == "few_prompts"
    assert measured.to_dict()["notes"][0].startswith("24 of the 24 pairs of 'custom' equal their")
    assert assay.measure(circuit, model, same, key, ablation="zero").n == 24  # reads no counterpart
    corrupted = torch.cat([task.clean[:9], task.corrupted[9:]])
    mixed = assay.measure(circuit, model, replace(task, corrupted=corrupted), key)
    alone = assay.measure(circuit, model, task.subset(range(9, 24)), key)
    assert (mixed.n, mixed.n_excluded, len(mixed.notes)) == (15, 0, 1)
    assert mixed.value == pytest.approx(alone.value, nan_ok=True)
    assert np.isnan(mixed.arrays()[f"components/{mixed.statistic.components[0]}"][:9]).all()


@pytest.mark.parametrize("key", KEYS)
def test_copies_count_once(key: str, model: Model) -> None:
    task, circuit = draw_task(1, 12), Circuit.random(model.graph, 60, seed=1)
    once, five = (
        assay.measure(circuit, model, task.subset(rows), key) for rows in (range(12), [*range(12)] * 5)
    )
    assert five.n == once.n == 12
    assert five.value == pytest.approx(once.value)
    ends = [(each.interval().low, each.interval().high) for each in (five, once)]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)
    assert five.verdict.status == once.verdict.status
    sixty = assay.measure(circuit, model, task.subset([0] * 60), key)
    assert (sixty.n, sixty.verdict.reason) == (1, "few_prompts")


def test_copies_with_other_answers_count_at_their_mean(model: Model) -> None:
    task, circuit = draw_task(1, 12), Circuit.random(model.graph, 60, seed=1)
    other = replace(task, answers=task.answers + 1, wrong=task.wrong + 1)
    parts = [assay.measure(circuit, model, each, "faithfulness") for each in (task, other)]
    both = {name: torch.cat([getattr(task, name), getattr(other, name)]) for name in ("answers", "wrong")}
    joined = replace(task.subset([*range(12)] * 2), **both)
    measured = assay.measure(circuit, model, joined, "faithfulness")
    mean = np.mean([part.components["keep"] for part in parts], axis=0)
    np.testing.assert_allclose(measured.components["keep"][:12], mean)
    assert measured.n == 12


def test_a_curve_counts_different_examples(model: Model) -> None:
    scores = assay.discover(model, draw_task(1, 12), "eap")
    curve = assay.faithfulness_curve(scores, model, draw_task(0, 12).subset([*range(12)] * 2))
    assert curve.area.n == 12
    assert "same_prompts" not in curve.area.warnings
    assert "same_prompts" in assay.faithfulness_curve(scores, model, draw_task(1, 12)).area.warnings


def test_one_circuit_on_its_own_prompts_has_one_verdict(model: Model) -> None:
    task = draw_task(0, 24)
    found = assay.discover(model, task, "eap").top(model.graph.n_edges)
    unknown = replace(found, provenance={})
    own, fresh = (assay.measure(each, model, task, "kl") for each in (found, unknown))
    assert (own.status, own.verdict.reason, own.passed) == ("inconclusive", "same_prompts", True)
    assert fresh.status == "pass"
    assert own.id_hash != fresh.id_hash  # or a store would give one for the other
    assert own.to_dict()["status"] == own.to_dict()["verdict"]["status"] == own.status


def test_the_full_circuit_is_the_model(model: Model) -> None:
    full = Circuit.full(model.graph)
    found = measure(full, model, TASK, ["faithfulness", "faithfulness-norm", "kl", "topk"])
    # float32: a circuit run adds the same numbers in another order.
    assert [each.value for each in found] == pytest.approx([1.0, 1.0, 0.0, 1.0], abs=1e-4)


def test_several_metrics_share_their_passes(model: Model) -> None:
    circuit = Circuit.random(model.graph, 60, seed=1)
    with counted(model.graph.n_layers) as one:
        alone = measure(circuit, model, TASK, "kl")
    with counted(model.graph.n_layers) as several:
        found = measure(circuit, model, TASK, ["kl", "topk", "faithfulness"])
    assert [each.name for each in found] == ["kl", "topk", "faithfulness"]
    assert (found[0].value, found[0].id_hash) == (alone.value, alone.id_hash)
    assert one
    assert several == one


def test_golden_measurements_of_heads_under_mean_ablation() -> None:
    """The head circuit of the reference data on its three-layer GPT-2 in float64."""
    golden, model, task = stored(), golden_model(), golden_task()
    circuit, close = Circuit.from_heads(model.graph, golden["circuit"]), {"rtol": 1e-9, "atol": 1e-12}
    keys = ["faithfulness", "faithfulness-norm", "completeness", "kl", "ce-delta", "topk", "minimality"]
    found = dict(zip(keys, measure(circuit, model, task, keys, ablation="mean"), strict=True))
    recovered = golden["faithfulness"]["mean"]
    expected = [recovered, golden["faithfulness_norm_mean"], golden["completeness_mean"]]
    np.testing.assert_allclose([found[key].value for key in keys[:3]], expected, **close)
    np.testing.assert_allclose(found["kl"].per_example, golden["kl_keep"]["mean"], **close)
    full, keep, drop = (np.array(golden[f"ce_{run}"]) for run in ("full", "keep_mean", "drop_mean"))
    np.testing.assert_allclose(found["ce-delta"].per_example, drop - full, **close)
    parts = found["ce-delta"].parts
    np.testing.assert_allclose(parts["keep"].value, (keep - full).mean(), **close)
    np.testing.assert_allclose(parts["ratio"].value, (drop - full).mean() / (keep - full).mean(), **close)
    for k, expected in golden["d05_mean"].items():
        for name, value in expected.items():
            if value is not None:
                assert found["topk"].details[name][int(k)] == pytest.approx(value, rel=1e-9)
    without = np.array(golden["y_minus1_mean"]).sum(axis=0) / np.sum(golden["y_full"])
    heads = found["minimality"].details["heads"]
    assert list(heads) == [f"a{layer}.h{head}" for layer, head in golden["circuit"]]
    importance = [each["importance"] for each in heads.values()]
    np.testing.assert_allclose(importance, recovered - without, rtol=1e-9)
    assert found["minimality"].value == pytest.approx((recovered - without).mean(), rel=1e-9)
    for ablation in ("zero", "mean", "mean-positional", "resample"):
        kept = measure(circuit, model, task, "faithfulness", ablation=ablation)
        assert kept.value == pytest.approx(golden["faithfulness"][ablation], rel=1e-9)
        np.testing.assert_allclose(kept.components["keep"], golden["y_keep"][ablation], rtol=1e-9)


def measurement(statistic: RatioOfSums, seed: int = 0, **components: list[float]) -> Measurement:
    table = {name: np.array(values) for name, values in components.items()}
    used = np.isfinite(np.stack(list(table.values()))).all(axis=0)
    n, sums = int(used.sum()), np.array([table[name][used].sum() for name in statistic.components])
    facts: dict[str, Any] = {"id": "X1", "name": "x", "n": n, "n_excluded": len(used) - n, "seed": seed}
    value = float(statistic.of_sums(sums, n))
    return Measurement(**facts, value=value, components=table, statistic=statistic)


def test_differences_by_hand() -> None:
    statistic = ratio_of("keep", "full")
    one, two = ({"keep": keep, "full": [2.0, 4.0, 6.0]} for keep in ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]))
    made = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert made.value == pytest.approx((9 - 6) / 12)
    pooled = {"numerator": {"b/keep": 1.0, "a/keep": -1.0}, "denominator": {"a/full": 1.0}}
    assert made.statistic == RatioOfSums(**pooled)  # over the same sums: one ratio
    assert (made.parts["a"].value, made.parts["b"].value) == (0.5, 0.75)
    # Over others both are resampled together.
    two |= {"full": [4.0, 4.0, 8.0]}
    other = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert other.value == pytest.approx(9 / 16 - 6 / 12)
    drawn = np.array([[0, 0, 2], [1, 2, 2]])
    assert other.value_on(drawn) == pytest.approx([9 / 16 - 5 / 10, 12 / 20 - 8 / 16])
    # A row that one side lacks counts for neither.
    means = ([1.0, np.nan, 3.0, 5.0], [2.0, 9.0, 5.0, np.nan])
    made = difference(*(measurement(mean_of("x"), x=values) for values in means))
    assert (made.value, made.n, made.n_excluded) == (pytest.approx((1 + 2) / 2), 2, 2)
    np.testing.assert_array_equal(made.per_example, [1.0, np.nan, 2.0, np.nan])


@pytest.mark.parametrize("effect", [0.0, 0.02])
def test_the_paired_interval_holds_a_small_effect(effect: float) -> None:
    """The sides share most of their noise: what is left of it decides, and 95 % is held within error."""
    statistic = ratio_of("keep", "full")
    held, narrower, n, draws = 0, 0, 40, 300
    for draw in range(draws):
        rng = stream(draw, "paired")
        full = rng.normal(3.0, 1.0, n)
        shared = 0.7 * full + rng.normal(0, 1.0, n)
        one, two = (shared + rng.normal(size, 0.2, n) for size in (0.0, 3 * effect))
        made = difference(
            measurement(statistic, draw, keep=list(one), full=list(full)),
            measurement(statistic, draw, keep=list(two), full=list(full)),
        )
        interval = made.interval()
        held += interval.low <= effect <= interval.high
        apart = [part.interval() for part in (made.parts["a"], made.parts["b"])]
        narrower += interval.high - interval.low < min(each.high - each.low for each in apart)
    assert held / draws > 0.92
    assert narrower == draws


@pytest.mark.parametrize("key", METRICS)
def test_every_metric_measures_and_compares_heads_and_edges(key: str, model: Model) -> None:
    a, b = Circuit.from_heads(model.graph, [(0, 1), (1, 2)]), Circuit.random(model.graph, 60, seed=2)
    made = assay.compare(a, b, model, TASK, key)
    one, two = (assay.measure(circuit, model, TASK, key) for circuit in (a, b))
    for circuit, each, part in ((a, one, made.parts["a"]), (b, two, made.parts["b"])):
        assert each.n + each.n_excluded == TASK.n
        assert (each.provenance["circuit"], each.provenance["metric"]["key"]) == (circuit.hash, key)
        assert part.value == pytest.approx(each.value, nan_ok=True)
        assert len(each.to_frame()) == TASK.n
    if one.n == two.n == made.n:
        assert made.value == pytest.approx(two.value - one.value, abs=1e-12, nan_ok=True)
    assert made.status == "none"
    json.dumps([each.to_dict() for each in (one, two, made)], allow_nan=False)


def test_measurements_of_other_things_are_refused(model: Model) -> None:
    head, heads = (Circuit.from_heads(model.graph, each) for each in ("a0.h1", "a0.h1,a1.h0"))
    made = assay.compare(head, heads, model, TASK, "faithfulness")
    assert made.provenance["b"]["circuit"] == heads.hash
    ends = made.interval()
    assert f"b - a = {made.value:.4g} fraction [{ends.low:.4g}, {ends.high:.4g}]" in repr(made)
    one = assay.measure(head, model, TASK, "kl")
    with pytest.raises(InputError, match="measurements of 8 and of 5 examples"):
        difference(one, assay.measure(head, model, TASK.subset(range(5)), "kl"))
    with pytest.raises(InputError, match="cannot compare kl with topk"):
        difference(one, assay.measure(head, model, TASK, "topk"))
