"""`measure` on real models: limits, shared runs, provenance, and golden values of a tiny GPT-2."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from counted_passes import counted
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import assay
from assay.circuits import Circuit
from assay.core.errors import GraphMismatchError, InputError
from assay.core.measurement import Measurement
from assay.core.random import torch_stream
from assay.execution import CircuitRuns
from assay.metrics import METRICS, measure
from assay.models import Model, load_model
from assay.tasks import PairTask


GOLDEN = Path(__file__).parent.parent / "golden"
MEASURED = [key for key, spec in METRICS.items() if spec.compute is not None]


@pytest.fixture(scope="module")
def model(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("llama"))


def draw_task(seed: int, n: int = 8) -> PairTask:
    generator = torch_stream(seed, "task")
    clean, corrupted = (torch.randint(1, 61, (n, 5), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], wrong=(clean[:, :1] + 1) % 60)


TASK = draw_task(0)


@pytest.mark.parametrize("key", MEASURED)
@pytest.mark.parametrize("kind", ["edges", "heads"])
def test_every_metric_runs_on_a_real_model(key: str, kind: str, model: Model) -> None:
    graph = model.graph
    circuit = (
        Circuit.from_heads(graph, [(0, 1), (1, 2)]) if kind == "heads" else Circuit.random(graph, 60, seed=1)
    )
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


def test_the_empty_circuit_is_the_corrupted_model(model: Model) -> None:
    empty = Circuit.empty(model.graph)
    assert measure(empty, model, TASK, "faithfulness-norm").value == pytest.approx(0.0, abs=1e-6)
    assert measure(empty, model, TASK, "kl-faithfulness").value == pytest.approx(0.0, abs=1e-6)
    assert measure(empty, model, TASK, "completeness").value == pytest.approx(0.0, abs=1e-4)


def test_shared_runs_give_the_same_number_and_identity(model: Model) -> None:
    circuit = Circuit.random(model.graph, 60, seed=1)
    runs = CircuitRuns(model, TASK, circuit, ablation="mean", seed=3)
    shared = measure(circuit, model, TASK, "kl", runs=runs)
    alone = measure(circuit, model, TASK, "kl", ablation="mean", seed=3)
    assert shared.value == alone.value
    assert shared.id_hash == alone.id_hash
    assert measure(circuit, model, TASK, "kl", seed=3).id_hash != alone.id_hash


def test_batch_size_changes_neither_number_nor_identity(model: Model) -> None:
    circuit = Circuit.random(model.graph, 60, seed=1)
    whole, parts = (measure(circuit, model, TASK, "faithfulness", batch_size=size) for size in (None, 3))
    assert parts.value == pytest.approx(whole.value, rel=1e-5)
    assert parts.id_hash == whole.id_hash


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


def test_runs_of_another_circuit_are_refused(model: Model) -> None:
    runs = CircuitRuns(model, TASK, Circuit.random(model.graph, 60, seed=1))
    with pytest.raises(InputError, match="another circuit, model or task"):
        measure(Circuit.random(model.graph, 60, seed=2), model, TASK, "kl", runs=runs)


def test_a_circuit_of_another_model_is_refused(model: Model, gpt2_tiny: nn.Module) -> None:
    other = load_model(gpt2_tiny)
    with pytest.raises(GraphMismatchError):
        measure(Circuit.full(other.graph), model, TASK, "kl")


def test_random_circuits_of_equal_size_and_the_empty_one_stand_beside(model: Model) -> None:
    circuit = Circuit.random(model.graph, 60, seed=1)
    measured = measure(circuit, model, TASK, "topk", random_circuits=3)
    random = measured.baseline["random"]
    assert len(random["values"]) == 3
    assert set(random["parts"]) == set(measured.parts)
    empty = measure(Circuit.empty(model.graph), model, TASK, "topk")
    assert measured.baseline["empty"]["value"] == empty.value
    json.dumps(measured.to_dict(), allow_nan=False)


# ------------------------------------------------------------------------------------------- golden model


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


def test_golden_margins(golden: dict, golden_runs: CircuitRuns) -> None:
    expected = {"full": "y_full", "drop": "y_drop_mean", "empty": "y_empty_mean"}
    for which, name in expected.items():
        np.testing.assert_allclose(golden_runs.margins(which), golden[name], rtol=1e-9)
    np.testing.assert_allclose(golden_runs.margins("keep"), golden["y_keep"]["mean"], rtol=1e-9)


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
