"""The registry, `measure` and `compare`: of arrays, of real models, golden values of a tiny GPT-2."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from array_runs import GRAPH, ArrayRuns, margin_runs
from counted_passes import counted
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.circuits import Circuit
from assay.core.errors import InputError, UnknownNameError
from assay.core.measurement import Measurement
from assay.core.random import stream, torch_stream
from assay.core.record import record_id
from assay.execution import CircuitRuns
from assay.metrics import (
    METRICS,
    difference,
    find_metric,
    measure,
    measure_runs,
    measurement_provenance,
)
from assay.metrics.metric import MetricSpec, random_like, record
from assay.models import Model, load_model
from assay.stats import RatioOfSums, mean_of, ratio_of
from assay.tasks import PairTask


# -------------------------------------------------------------------------------------------- registry


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


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("faithfulness", "faithfulness"),
        ("ce_delta", "ce-delta"),
        ("D05", "topk"),
        ("d05", "topk"),
        ("D02", "faithfulness"),
        ("D02.completeness", "completeness"),
        ("D03", "kl"),
        ("D04", "ce-delta"),
        ("C4b", "minimality"),
        ("D01", "output-divergence"),
        ("C4", "scrub-recovery"),
        ("C4.scrub_kl", "scrub-kl"),
    ],
)
def test_metrics_are_found_by_key_id_and_code(name: str, key: str) -> None:
    assert find_metric(name).key == key


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("faithfullness", {}, UnknownNameError, "did you mean 'faithfulness'"),
        ("faithfulness", {"agregate": "x"}, UnknownNameError, "'agregate'; did you mean 'aggregate'"),
        ("faithfulness", {"aggregate": "median"}, UnknownNameError, "unknown aggregate"),
        ("kl", {"random_circuits": -1}, InputError, "random_circuits is -1"),
    ],
)
def test_what_cannot_be_measured_is_refused(name: str, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        measure_runs(margin_runs(full=[1.0], keep=[1.0]), name, **options)


def test_options_and_parts_enter_the_identity() -> None:
    runs = rich_runs()
    plain, other = measure_runs(runs, "topk"), measure_runs(runs, "topk", support="union")
    assert plain.provenance["metric"]["options"]["support"] == "full"
    assert plain.id_hash != other.id_hash
    assert plain.parts["acc@5"].id_hash not in (plain.id_hash, plain.parts["acc@10"].id_hash)
    assert plain.id_hash == measure_runs(rich_runs(), "topk", support="full").id_hash
    assert measure_runs(rich_runs(seed=1), "topk").id_hash != plain.id_hash


def test_the_identity_is_known_before_anything_runs() -> None:
    runs = rich_runs()
    provenance = measurement_provenance(runs, "D05", support="union")
    assert not runs.asked
    assert record_id("measurement", provenance) == measure_runs(runs, "topk", support="union").id_hash


@pytest.fixture
def registered() -> Iterator[str]:
    """A metric of someone else's, taken out of the registry again."""

    def compute(runs: CircuitRuns, spec: MetricSpec, *, scale: float = 1.0) -> Measurement:
        """Mean margin of the model."""
        used = np.ones(runs.task.n, dtype=bool)
        return record(spec, {"y": scale * runs.margins("full")}, mean_of("y"), used=used)

    facts: dict[str, Any] = {"id": "Z1.mean_margin", "name": "mean margin", "unit": "logits"}
    METRICS.add("mean-margin", MetricSpec(key="mean-margin", runs=("full",), compute=compute, **facts))
    yield "mean-margin"
    del METRICS._entries["mean-margin"]


def test_a_metric_can_be_added(registered: str) -> None:
    measured = measure_runs(margin_runs(full=[1.0, 2.0]), registered, scale=2.0)
    assert (measured.value, measured.unit, measured.status) == (3.0, "logits", "none")
    assert find_metric("Z1").options == {"scale": 1.0}


@pytest.mark.parametrize("mlps", [True, False])
def test_random_head_circuits_have_as_many_heads_and_the_same_mlps(mlps: bool) -> None:
    circuit = Circuit.from_heads(GRAPH, [(0, 1), (1, 0)], mlps=mlps)
    others = [random_like(circuit, seed=0, index=index) for index in range(20)]
    assert {len(other.heads or ()) for other in others} == {2}
    assert len({other.hash for other in others}) > 1
    assert {bool(other.mask[GRAPH.mlp_source(0)].any()) for other in others} == {mlps}


def test_random_circuits_stand_beside_the_measurement() -> None:
    runs = rich_runs()
    circuits = [random_like(runs.circuit, seed=0, index=index) for index in range(3)]
    full = runs.given["full"]
    share = {circuit.hash: 0.25 * (1 + index) for index, circuit in enumerate(circuits)}
    for circuit in circuits:
        runs.others[circuit.hash] = full * share[circuit.hash]
        runs.others[circuit.dropped().hash] = full
    empty = Circuit.from_heads(GRAPH, [])
    runs.others[empty.hash] = full / 8
    runs.others[empty.dropped().hash] = full
    measured = measure_runs(runs, "faithfulness", random_circuits=3)
    random = measured.baseline["random"]
    expected = [share[circuit.hash] for circuit in circuits]
    assert random["values"] == pytest.approx(expected)
    assert (random["value"], random["n"]) == (pytest.approx(np.mean(expected)), 3)
    assert random["sd"] == pytest.approx(np.std(expected, ddof=1))
    assert measured.baseline["empty"]["value"] == pytest.approx(1 / 8)
    dropped = measure_runs(runs, "completeness", random_circuits=3)
    assert dropped.baseline["random"]["values"] == pytest.approx([0.0, 0.0, 0.0])
    assert measured.id_hash != measure_runs(runs, "faithfulness").id_hash


# ------------------------------------------------------------------------------------------- measuring


GOLDEN = Path(__file__).parent.parent / "golden"


MEASURED = list(METRICS)


@pytest.fixture(scope="module")
def model(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("llama"))


def draw_task(seed: int, n: int = 8) -> PairTask:
    generator = torch_stream(seed, "task")
    clean, corrupted = (torch.randint(1, 61, (n, 5), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], wrong=(clean[:, :1] + 1) % 60)


TASK = draw_task(0)


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_runs_on_heads_of_a_real_model(key: str, model: Model) -> None:
    circuit = Circuit.from_heads(model.graph, [(0, 1), (1, 2)])
    measured = assay.measure(circuit, model, TASK, key)
    assert measured.n + measured.n_excluded == TASK.n
    json.dumps(measured.to_dict(), allow_nan=False)
    assert measured.provenance["circuit"] == circuit.hash
    assert measured.provenance["metric"]["key"] == key


KEYS = ("faithfulness", "kl", "topk", "faithfulness-norm")


@pytest.mark.parametrize("key", KEYS)
def test_where_nothing_is_ablated_nothing_passes(key: str, model: Model) -> None:
    task, circuit = draw_task(1, 24), Circuit.random(model.graph, 60, seed=1)
    same = replace(task, corrupted=task.clean)
    measured = assay.measure(circuit, model, same, key)
    assert (measured.n, measured.n_excluded, measured.status) == (0, 0, "inconclusive")
    assert measured.verdict.reason == measured.reason == "few_prompts"
    assert measured.to_dict()["notes"] == [
        "24 of the 24 pairs of 'custom' equal their counterparts; nothing is ablated on them, so they are "
        "left out"
    ]
    assert assay.measure(circuit, model, same, key, ablation="zero").n == 24  # reads no counterpart
    corrupted = task.corrupted.clone()
    corrupted[:9] = task.clean[:9]
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
    runs = CircuitRuns(model, TASK, full)
    # float32: a circuit run adds the same numbers in another order.
    assert measure(full, model, TASK, "faithfulness", runs=runs).value == pytest.approx(1.0, abs=1e-4)
    assert measure(full, model, TASK, "faithfulness-norm", runs=runs).value == pytest.approx(1.0, abs=1e-4)
    assert measure(full, model, TASK, "kl", runs=runs).value == pytest.approx(0.0, abs=1e-6)
    assert measure(full, model, TASK, "topk", runs=runs).value == 1.0


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


@pytest.fixture(scope="module")
def golden() -> dict:
    return json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())


@pytest.fixture(scope="module")
def golden_runs(golden: dict) -> CircuitRuns:
    """The head circuit of the reference data under mean ablation, on its three-layer GPT-2 in float64."""
    config = GPT2Config(
        vocab_size=97, n_positions=32, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    module = GPT2LMHeadModel(config).double().eval()
    weights = np.load(GOLDEN / "adversarial" / "gpt2_tiny_model.npz")
    state = {name: torch.from_numpy(weights[name]).double() for name in weights.files}
    missing = module.load_state_dict(state, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["lm_head.weight"], [])
    task = PairTask(
        clean=torch.tensor(golden["tokens"]),
        corrupted=torch.tensor(golden["corrupt_tokens"]),
        answers=torch.tensor(golden["correct"])[:, None],
        wrong=torch.tensor(golden["incorrect"])[:, None],
    )
    model = load_model(module)
    return CircuitRuns(model, task, Circuit.from_heads(model.graph, golden["circuit"]), ablation="mean")


def of(runs: CircuitRuns, metric: str, **options: Any) -> Measurement:
    return measure(runs.circuit, runs.model, runs.task, metric, runs=runs, **options)


def test_golden_recoveries(golden: dict, golden_runs: CircuitRuns) -> None:
    assert of(golden_runs, "faithfulness").value == pytest.approx(golden["faithfulness"]["mean"], rel=1e-9)
    assert of(golden_runs, "faithfulness-norm").value == pytest.approx(
        golden["faithfulness_norm_mean"], rel=1e-9
    )
    assert of(golden_runs, "completeness").value == pytest.approx(golden["completeness_mean"], rel=1e-9)


def test_golden_divergence_and_cross_entropy(golden: dict, golden_runs: CircuitRuns) -> None:
    np.testing.assert_allclose(of(golden_runs, "kl").per_example, golden["kl_keep"]["mean"], rtol=1e-9)
    full, keep, drop = (np.array(golden[f"ce_{run}"]) for run in ("full", "keep_mean", "drop_mean"))
    measured = of(golden_runs, "ce-delta")
    np.testing.assert_allclose(measured.per_example, drop - full, rtol=1e-9, atol=1e-12)
    assert measured.parts["keep"].value == pytest.approx((keep - full).mean(), rel=1e-9)
    assert measured.parts["ratio"].value == pytest.approx((drop - full).mean() / (keep - full).mean())


def test_golden_top_k(golden: dict, golden_runs: CircuitRuns) -> None:
    details = of(golden_runs, "topk").details
    for k, expected in golden["d05_mean"].items():
        assert details["acc"][int(k)] == pytest.approx(expected["acc"], rel=1e-9)
        if expected["tau"] is not None:
            assert details["tau"][int(k)] == pytest.approx(expected["tau"], rel=1e-9)


def test_golden_minimality(golden: dict, golden_runs: CircuitRuns) -> None:
    measured = of(golden_runs, "minimality")
    without = np.array(golden["y_minus1_mean"]).sum(axis=0) / np.sum(golden["y_full"])
    expected = golden["faithfulness"]["mean"] - without
    heads = measured.details["heads"]
    assert list(heads) == [f"a{layer}.h{head}" for layer, head in golden["circuit"]]
    assert [each["importance"] for each in heads.values()] == pytest.approx(expected.tolist(), rel=1e-9)
    assert measured.value == pytest.approx(expected.mean(), rel=1e-9)


@pytest.mark.parametrize("ablation", ["zero", "mean", "mean-positional", "resample"])
def test_golden_faithfulness_under_each_ablation(
    ablation: str, golden: dict, golden_runs: CircuitRuns
) -> None:
    measured = measure(
        golden_runs.circuit, golden_runs.model, golden_runs.task, "faithfulness", ablation=ablation
    )
    assert measured.value == pytest.approx(golden["faithfulness"][ablation], rel=1e-9)
    np.testing.assert_allclose(measured.components["keep"], golden["y_keep"][ablation], rtol=1e-9)


# ------------------------------------------------------------------------------------------- comparing


def measurement(statistic: RatioOfSums, seed: int = 0, **components: list[float]) -> Measurement:
    table = {name: np.array(values) for name, values in components.items()}
    used = np.isfinite(np.stack(list(table.values()))).all(axis=0)
    sums = np.array([table[name][used].sum() for name in statistic.components])
    value = float(statistic.of_sums(sums, int(used.sum())))
    return Measurement(
        id="X1",
        name="x",
        value=value,
        n=int(used.sum()),
        n_excluded=int((~used).sum()),
        components=table,
        statistic=statistic,
        seed=seed,
    )


def test_two_ratios_over_the_same_sums_are_one_ratio_by_hand() -> None:
    one, two = ({"keep": keep, "full": [2.0, 4.0, 6.0]} for keep in ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]))
    statistic = ratio_of("keep", "full")
    made = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert made.value == pytest.approx((9 - 6) / 12)
    assert made.statistic == RatioOfSums(
        numerator={"b/keep": 1.0, "a/keep": -1.0}, denominator={"a/full": 1.0}
    )
    assert made.parts["a"].value == 0.5
    assert made.parts["b"].value == 0.75


def test_ratios_over_other_sums_are_resampled_together() -> None:
    statistic = ratio_of("keep", "full")
    one = {"keep": [1.0, 2.0, 3.0], "full": [2.0, 4.0, 6.0]}
    two = {"keep": [2.0, 2.0, 5.0], "full": [4.0, 4.0, 8.0]}
    made = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert made.value == pytest.approx(9 / 16 - 6 / 12)
    drawn = np.array([[0, 0, 2], [1, 2, 2]])
    assert made.value_on(drawn) == pytest.approx([9 / 16 - 5 / 10, 12 / 20 - 8 / 16])


def test_a_row_that_one_side_lacks_counts_for_neither() -> None:
    statistic = mean_of("x")
    made = difference(
        measurement(statistic, x=[1.0, np.nan, 3.0, 5.0]), measurement(statistic, x=[2.0, 9.0, 5.0, np.nan])
    )
    assert made.value == pytest.approx((1 + 2) / 2)
    assert (made.n, made.n_excluded) == (2, 2)
    assert made.per_example is not None
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


@pytest.fixture(scope="module")
def pairs() -> PairTask:
    generator = torch_stream(0, "pairs")
    clean, corrupted = (torch.randint(1, 61, (12, 5), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], wrong=(clean[:, :1] + 1) % 60)


@pytest.mark.parametrize("key", MEASURED)
def test_every_metric_differs_by_what_measure_gives(key: str, model: Model, pairs: PairTask) -> None:
    a, b = (Circuit.random(model.graph, 60, seed=seed) for seed in (1, 2))
    made = assay.compare(a, b, model, pairs, key)
    one, two = (assay.measure(circuit, model, pairs, key) for circuit in (a, b))
    if one.n == two.n == made.n:
        assert made.value == pytest.approx(two.value - one.value, abs=1e-12, nan_ok=True)
    assert made.parts["a"].value == pytest.approx(one.value, nan_ok=True)
    assert made.parts["b"].value == pytest.approx(two.value, nan_ok=True)
    assert made.status == "none"
    json.dumps(made.to_dict(), allow_nan=False)


def test_measurements_of_other_things_are_refused(model: Model, pairs: PairTask) -> None:
    head, heads = (Circuit.from_heads(model.graph, each) for each in ("a0.h1", "a0.h1,a1.h0"))
    made = assay.compare(head, heads, model, pairs, "faithfulness")
    assert made.provenance["b"]["circuit"] == heads.hash
    ends = made.interval()
    assert f"b - a = {made.value:.4g} fraction [{ends.low:.4g}, {ends.high:.4g}]" in repr(made)
    one = assay.measure(head, model, pairs, "kl")
    with pytest.raises(InputError, match="measurements of 12 and of 5 examples"):
        difference(one, assay.measure(head, model, pairs.subset(range(5)), "kl"))
    with pytest.raises(InputError, match="cannot compare kl with topk"):
        difference(one, assay.measure(head, model, pairs, "topk"))
