"""Ablated runs: golden values of three families, the slow literal twin, and limits."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import literal
import numpy as np
import pytest
import torch
import transformers
from cut_models import random_prompts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soft_pairs import soft_pairs
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import AssayWarning, GraphMismatchError, InputError, NonFiniteError
from assay.discovery.edges import discover
from assay.execution import CircuitRuns, Mean, PairRunner, SoftRunner, get_ablation, run_circuit, run_model
from assay.execution.batches import assumed_memory, choose_batch_size, with_room
from assay.execution.plan import compile_plan, source_types
from assay.graph import build_graph
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


GOLDEN = Path(__file__).parent.parent / "golden"


def golden_case(name: str, dtype: torch.dtype) -> tuple[Model, dict[str, Any], dict[str, Tensor]]:
    """A model, what is known of its circuits, and arrays of their logits on every pair."""
    described = json.loads((GOLDEN / "adversarial" / f"{name}_circuits.json").read_text())
    model_class = getattr(transformers, described["hf_class"])
    config = model_class.config_class(**described["hf_config"], bos_token_id=0, eos_token_id=0)
    module = model_class(config).to(dtype)
    with np.load(GOLDEN / "adversarial" / f"{name}_model.npz") as weights:
        state = {key: torch.from_numpy(weights[key]).to(dtype) for key in weights.files}
    missing, unexpected = module.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    with np.load(GOLDEN / "adversarial" / f"{name}_case.npz") as case:
        arrays = {key: torch.from_numpy(case[key]) for key in case.files}
    return load_model(module.eval()), described, arrays


@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny", "neox_tiny"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_engine_gives_every_pair_of_every_golden_circuit(name: str, dtype: torch.dtype) -> None:
    model, described, case = golden_case(name, dtype)
    clean, corrupted = case["clean_tokens"], case["corrupted_tokens"]
    n = max(len(clean), len(corrupted))
    rows, columns = torch.arange(n) % len(clean), torch.arange(n) % len(corrupted)
    task = PairTask(clean=clean[rows], corrupted=corrupted[columns], answers=torch.zeros(n, 1).long())
    pairs = torch.cartesian_prod(torch.arange(len(clean)), torch.arange(len(corrupted)))
    soft = SoftRunner(model)
    mixed = soft_pairs(soft, clean[pairs[:, 0]], corrupted[pairs[:, 1]])
    relative = 1e-4 if dtype == torch.float32 else 1e-9 if name == "gpt2_tiny" else 1e-5
    for circuit_name, stored in described["circuits"].items():
        circuit = Circuit.from_edges(model.graph, stored["edges"])
        expected = case[f"logits_last__{circuit_name}"]
        close = {"rtol": 0, "atol": relative * float(expected.abs().max())}
        logits = run_circuit(circuit, model, task, pairs=pairs, batch_size=7).double()
        torch.testing.assert_close(logits.view_as(expected), expected, **close)
        thrice = run_circuit(circuit, model, task, pairs=pairs[[1, 1, 1]]).double()  # one input a side
        torch.testing.assert_close(thrice, expected.flatten(0, 1)[[1, 1, 1]], **close)
        matched = run_circuit(circuit, model, task).double()
        torch.testing.assert_close(matched, expected[rows, columns], **close)
        mask = circuit.mask.to(dtype)
        for each in (mask, mask.expand(len(mixed), -1, -1)):
            found = soft.logits(mixed, each).double()
            torch.testing.assert_close(found, expected.flatten(0, 1), **close)
        runner = PairRunner(model, circuit)
        left, right = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
        torch.testing.assert_close(runner.product(left, right).double(), expected, **close)
        for side, prepared in (("clean", left), ("corrupted", right)):
            native = case[f"model_logits_{side}"][:, -1]
            torch.testing.assert_close(prepared.logits.double(), native, **close)
        full, run = (
            each.log_softmax(-1) for each in (left.logits.double()[:, None], logits.view_as(expected))
        )
        divergence, loose = (full.exp() * (full - run)).sum(2), max(1e-9, relative)
        torch.testing.assert_close(divergence, case[f"kl_last__{circuit_name}"], rtol=loose, atol=loose)


@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny", "neox_tiny"])
def test_node_types_and_live_positions_are_the_golden_ones(name: str) -> None:
    model, described, _ = golden_case(name, torch.float64)
    graph = model.graph
    assert graph.n_edges == described["n_edges_total"]
    for stored in described["circuits"].values():
        circuit = Circuit.from_edges(graph, stored["edges"])
        assert circuit.connected(warn=False).n_edges == stored["pruned_n_edges"]
        clean, ablated = source_types(graph, circuit.mask)
        plan = compile_plan(graph, circuit.mask, resample=True)
        for row, source in enumerate(graph.sources):
            kind = "clean" if clean[row] else "corr" if ablated[row] else "mixed"
            assert kind == stored["node_type"][source]
            if kind == "mixed":
                where = "all" if plan.everywhere[row] else "last" if plan.somewhere[row] else None
                assert where == stored["live_positions"].get(source)


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean", "mean-positional", "noise-additive"])
def test_equals_the_literal_run_under_every_ablation(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task, graph = random_prompts(model, ragged=ablation != "mean-positional"), model.graph
    ablated = literal.ablated_outputs(model, task, ablation)
    circuits = [Circuit.random(graph, int(share * graph.n_edges), seed=3) for share in (0.1, 0.4, 0.9)]
    circuits += [Circuit.empty(graph), Circuit.full(graph), Circuit.from_heads(graph, [(1, 0)])]
    for circuit in circuits:
        expected = literal.run_circuit(model, circuit, task.clean, ablated)
        expected = expected[torch.arange(task.n), task.positions]
        logits = run_circuit(circuit, model, task, ablation=ablation, batch_size=3)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_mean_ablation_averages_real_positions_only(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model, ragged=True)
    _, outputs = literal.run_plain(model, task.clean)
    real = torch.arange(task.length) < task.lengths[:, None]
    for name, value in literal.ablated_outputs(model, task, "mean").items():
        torch.testing.assert_close(value[0, 0], outputs[name][real].mean(0))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 0.95))
def test_limits_hold_for_any_circuit(gpt2_tiny64: nn.Module, seed: int, share: float) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model, n=3, seed=seed)
    circuit = Circuit.random(model.graph, int(share * model.graph.n_edges), seed=seed)
    own = PairTask(clean=task.clean, corrupted=task.clean, answers=task.answers)
    torch.testing.assert_close(run_circuit(circuit, model, own), run_model(model, task))
    torch.testing.assert_close(
        run_circuit(circuit, model, task), run_circuit(circuit.connected(warn=False), model, task)
    )


def test_head_circuits_hold_to_the_golden_interventions() -> None:
    """A head circuit under zero, mean, mean-positional and resample: margins of two other implementations."""
    model, _, _ = golden_case("gpt2_tiny", torch.float64)
    stored = json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())
    task = PairTask(
        clean=torch.tensor(stored["tokens"]),
        corrupted=torch.tensor(stored["corrupt_tokens"]),
        answers=torch.tensor(stored["correct"])[:, None],
        wrong=torch.tensor(stored["incorrect"])[:, None],
    )
    circuit = Circuit.from_heads(model.graph, stored["circuit"])
    for ablation in ("zero", "mean", "mean-positional", "resample"):
        runs = CircuitRuns(model, task, circuit, ablation=ablation)
        np.testing.assert_allclose(runs.margins("keep"), stored["y_keep"][ablation], rtol=1e-9)
        np.testing.assert_allclose(runs.margins("full"), stored["y_full"], rtol=1e-9)
    runs = CircuitRuns(model, task, circuit, ablation="mean")
    np.testing.assert_allclose(runs.margins("drop"), stored["y_drop_mean"], rtol=1e-9)
    np.testing.assert_allclose(runs.margins("empty"), stored["y_empty_mean"], rtol=1e-9)
    np.testing.assert_allclose(
        CircuitRuns(model, task, circuit, ablation="resample").logits("full")[0],
        stored["full_last_logits_row0"],
    )


# ---- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"pairs": torch.tensor([[0, 4]])}, InputError, "index from 0 to 3"),
        ({"pairs": torch.tensor([[-1, 0]])}, InputError, "index from 0 to 3"),
        ({"pairs": torch.empty(0, 2, dtype=torch.long)}, InputError, r"shape \(0, 2\) do not fit"),
        ({"pairs": torch.tensor([[0, 1]]), "ablation": "zero"}, InputError, "'zero' ablation does not use"),
        ({"pairs": torch.tensor([[0, 1]])}, InputError, r"pair \(0, 1\) joins prompts of 5 and 6 tokens"),
        ({"circuit": Circuit.full(build_graph(3, 3))}, GraphMismatchError, "belongs to another model"),
        ({"batch_size": 0}, InputError, "batch_size is 0; expected at least 1"),
        ({"ablation": "zero:ioi"}, InputError, "'zero' ablation takes no mean of 'ioi'"),
        ({"ablation": "mean-positional"}, InputError, "uses the mean of each position"),
    ],
)
def test_what_cannot_be_run_is_refused(
    gpt2_tiny64: nn.Module, unchecked: None, changed: dict, error: type[Exception], message: str
) -> None:
    model = load_model(gpt2_tiny64)
    task = replace(random_prompts(model), lengths=torch.tensor([5, 6, 7, 7]), positions=None)
    with pytest.raises(error, match=message):
        run_circuit(**{"circuit": Circuit.empty(model.graph), "model": model, "task": task, **changed})


def test_other_weights_are_warned_about(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    circuit = Circuit(
        graph=model.graph,
        mask=model.graph.valid,
        provenance={"model": {"id": "other", "weight_hash": "0" * 16}},
    )
    with pytest.warns(AssayWarning, match="discovered on 'other'"):
        run_circuit(circuit, model, random_prompts(model))


def test_overflowing_logits_name_the_example(tiny_module: Callable[..., nn.Module]) -> None:
    module = deepcopy(tiny_module("gpt2", torch.float32))
    model = load_model(module)
    with torch.no_grad():
        module.transformer.wte.weight[5] = torch.inf
    clean = torch.ones(3, 4).long()
    clean[2, 1] = 5
    task = PairTask(clean=clean, corrupted=clean, answers=torch.ones(3, 1).long())
    with pytest.raises(NonFiniteError, match="infinite logits for example 0"):
        run_model(model, task, batch_size=1)
    for circuit in (Circuit.full(model.graph), Circuit.empty(model.graph)):
        pairs = torch.tensor([[0, 0], [2, 1]])
        with pytest.raises(NonFiniteError, match="infinite logits for example 0"):
            run_circuit(circuit, model, task, pairs=pairs)
        assert not bool(run_circuit(circuit, model, task, pairs=pairs, check=False).isfinite().all())


def test_margins_outlive_the_logits_they_came_from(
    gpt2_tiny64: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the byte budget logits are made again, margins are not, and neither changes."""
    from assay.execution import runs as module

    model = load_model(gpt2_tiny64)
    circuits = [Circuit.random(model.graph, 30, seed=seed) for seed in range(4)]
    shared_runs = CircuitRuns(model, random_prompts(model), circuits[0])
    margins = [shared_runs.margins_of(circuit) for circuit in circuits]
    monkeypatch.setattr(module, "LOGIT_BYTES", 1)
    small = CircuitRuns(model, random_prompts(model), circuits[0])
    for circuit, margin in zip(circuits, margins, strict=True):
        np.testing.assert_array_equal(small.margins_of(circuit), margin)
        assert torch.equal(small.logits_of(circuit), shared_runs.logits_of(circuit))
    assert len(small._kept.logits) == 1
    monkeypatch.setattr(module, "run_circuit", None)  # a margin that is known costs no run
    np.testing.assert_array_equal(small.margins_of(circuits[0]), margins[0])


def test_ablated_and_clean_runs_are_made_once_for_all_circuits(gpt2_tiny64: nn.Module) -> None:
    """The second circuit finds the corrupted pass on the shelf; its logits do not change.

    Circuits of all but one or two edges into `logits` read every block of the clean pass.
    """
    model = load_model(gpt2_tiny64)
    task = random_prompts(model, ragged=True)
    first, second = (Circuit.random(model.graph, 30, seed=seed) for seed in (1, 2))
    edges = ["input->logits", "a0.h1->logits"]
    deep = [Circuit.from_edges(model.graph, edges[:number]).dropped() for number in (1, 2)]
    passes = []
    handle = model.module.transformer.h[1].register_forward_pre_hook(lambda module, args: passes.append(1))
    try:
        for ablation, expected in (("resample", 1), ("mean", 1)):
            runs = CircuitRuns(model, task, first, ablation=ablation, batch_size=task.n)
            passes.clear()
            runs.logits_of(first)
            found = runs.logits_of(second)
            assert len(passes) == expected
            torch.testing.assert_close(found, run_circuit(second, model, task, ablation=ablation))
            passes.clear()
            kept = [runs.logits_of(circuit) for circuit in (*deep, second)]
            assert len(passes) == 1
            for circuit, logits in zip((*deep, second), kept, strict=True):
                torch.testing.assert_close(logits, run_circuit(circuit, model, task, ablation=ablation))
    finally:
        handle.remove()


# ---- batches ----------------------------------------------------------------------------------------


def test_a_full_accelerator_gets_half_as_many_examples() -> None:
    tried = []

    def run(size: int) -> int:
        tried.append(size)
        if size > 2:
            raise torch.OutOfMemoryError("no room")
        return size

    assert with_room(run, 11) == 2
    assert tried == [11, 5, 2]
    with pytest.raises(torch.OutOfMemoryError):
        with_room(lambda size: run(size + 2), 4)


def test_batches_obey_what_is_asked_and_what_memory_holds() -> None:
    model = load_model("mini")
    task = load_task("ioi", model, n=20, seed=0)
    assert choose_batch_size(model, task, asked=7) == 7
    assert choose_batch_size(model, task) == 20
    with assumed_memory(1):
        assert choose_batch_size(model, task) == 1


# ---- means over a reference -------------------------------------------------------------------------


def test_a_mean_over_a_reference_by_hand(gpt2_tiny64: nn.Module) -> None:
    """Of the empty circuit only means are left, so each prompt reads what the reference's prompts wrote."""
    model = load_model(gpt2_tiny64)
    task, reference = random_prompts(model, n=3), random_prompts(model, seed=2)
    empty = Circuit.empty(model.graph)
    _, outputs = literal.run_plain(model, reference.clean)
    for per_position in (False, True):
        batch = next(iter(task.batches(3)))
        mean = Mean(per_position=per_position, reference=reference)
        baseline = mean.prepare(model, task, batch_size=2, seed=0).baseline(batch)
        for layer in range(model.n_layers):
            over = outputs[f"m{layer}"].mean(0) if per_position else outputs[f"m{layer}"].mean((0, 1))
            torch.testing.assert_close(baseline.mlp[layer][0], over.expand(7, -1))
        found = run_circuit(empty, model, task, ablation=mean)
        own = run_circuit(empty, model, reference, ablation=Mean(per_position=per_position))
        torch.testing.assert_close(found, own[:1].expand(3, -1))
        runs = CircuitRuns(model, task, empty, ablation=mean)
        assert runs.provenance["ablation"] == mean.key == f"{Mean(per_position=per_position).key}:custom"
        assert runs.provenance["reference"]["data_hash"] == reference.data_hash
    with pytest.raises(InputError, match="uses the mean of each position, but the prompts have lengths"):
        mean.prepare(model, random_prompts(model, length=6), batch_size=2, seed=0)


def test_a_reference_may_be_named(tmp_path: Path) -> None:
    """A file, as `--reference` takes it, gives the means of its prompts, drawn once."""
    model = load_model("mini")
    task = load_task("ioi", model, n=4, seed=0)
    path = tmp_path / "abc.jsonl"
    other = load_task("ioi", model, n=2, seed=9)
    texts = zip(other.texts, other.corrupted_texts, strict=True)
    rows = [{"clean": one, "corrupted": two, "answers": [" the"]} for one, two in texts]
    path.write_text("\n".join(map(json.dumps, rows)))
    mean = get_ablation(f"mean:{path}")
    assert mean == Mean(reference=str(path)) == get_ablation(mean.key)
    circuit = Circuit.from_heads(model.graph, "a2.h3,a3.h0")
    named = run_circuit(circuit, model, task, ablation=mean)
    given = Mean(reference=load_task(str(path), model))
    assert torch.equal(named, run_circuit(circuit, model, task, ablation=given))
    assert not torch.equal(named, run_circuit(circuit, model, task, ablation="mean"))
    scores = discover(model, task, "eap", ablation=mean)
    assert scores.provenance["reference"]["n"] == 2
    assert scores.details["passes"] == {"forward": 1.0, "backward": 1.0}


def test_single_channels_are_cut_in_half_precision() -> None:
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load_model("mini", dtype=dtype)
        circuit = Circuit.random(model.graph, 300, seed=0)
        logits.append(run_circuit(circuit, model, load_task("ioi", model, n=2)))
    assert torch.allclose(*logits, atol=0.5)
