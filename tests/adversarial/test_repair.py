"""Repair: circuits that fit their size, swaps by hand, disjoint draws, and a start that can be mended."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.repair import disjoint_samples, repair
from assay.analyses.worst_case.repair_search import exchanged, largest_top
from assay.circuits import Circuit, EdgeScores
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.discovery.edges import discover
from assay.discovery.edges.masks import MaskSettings
from assay.graph import build_graph
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


def random_scores(model: Model, seed: int = 0) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    return EdgeScores(model.graph, torch.randn(model.graph.valid.shape, generator=generator))


def own_task(model: Model, n: int = 60, length: int = 5, seed: int = 0) -> PairTask:
    generator = torch.Generator().manual_seed(seed)
    clean, corrupted = (torch.randint(1, model.n_vocab, (n, length), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], objective="ce")


@pytest.mark.parametrize("n_edges", [1, 5, 20, 75])
def test_the_largest_top_is_connected_and_no_larger_one_fits(gpt2_tiny: nn.Module, n_edges: int) -> None:
    scores = random_scores(load_model(gpt2_tiny))
    circuit = largest_top(scores, n_edges)
    sizes = [scores.top(k).connected(warn=False).n_edges for k in range(1, scores.graph.n_edges + 1)]
    assert circuit.n_edges == max(size for size in sizes if size <= n_edges)
    assert circuit == circuit.connected(warn=False)


def test_a_swap_by_hand() -> None:
    """The least useful kept edge goes, the most useful missing one that fits comes."""
    graph = build_graph(1, 1)
    circuit = Circuit.from_edges(graph, ["input->m0", "m0->logits", "input->logits"])
    scores = torch.zeros(graph.valid.shape)
    for name, score in {
        "input->m0": 3.0,
        "m0->logits": 2.0,
        "input->logits": -1.0,
        "a0.h0->logits": 5.0,  # on no path: no channel of the head is kept
        "a0.h0->m0": 0.5,
        "input->a0.h0.v": 4.0,
    }.items():
        scores[graph.edge_index(name)] = score
    # With both ends of the head's path the circuit has four edges; that is one too many.
    assert exchanged(circuit, scores, 1, 3).edges() == ["input->m0", "m0->logits"]
    expected = Circuit.from_edges(graph, ["input->m0", "m0->logits", "input->a0.h0.v", "a0.h0->logits"])
    assert exchanged(circuit, scores, 1, 4) == expected


def test_a_random_start_is_mended_by_either_method(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    task = own_task(model, n=240)
    start = Circuit.random(model.graph, 40, seed=1)
    for method, options in (
        ("mask", {"settings": MaskSettings(steps=60, rate=0.3), "batch_size": 16}),
        ("swap", {"rounds": 3}),
    ):
        found = repair(start, model, task, method=method, percentile=0.9, **options)
        assert found.improved
        assert found.circuit.n_edges <= 40
        assert found.circuit == found.circuit.connected()
        assert found.after.divergence.mean() < found.before.divergence.mean()
        assert np.quantile(found.after.divergence, 0.9) < np.quantile(found.before.divergence, 0.9)
        chosen = next(each for each in found.candidates if each.circuit == found.circuit)
        assert chosen.bound == min(
            each.bound for each in found.candidates if each.mean <= found.candidates[0].mean
        )
        assert found.candidates[0].origin == "start"
        assert found.circuit.provenance["parents"] == [start.hash]
        assert found.cost["soft_backward"] > 0
        document = json.loads(json.dumps(found.to_dict()))
        assert document["improved"]
        assert document["after"]["summary"]["absolute"]["mean"] == pytest.approx(
            found.after.divergence.mean()
        )


def test_the_two_judgements_are_runs_of_the_two_circuits(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    task = own_task(model, n=120)
    start = Circuit.random(model.graph, 40, seed=1)
    found = repair(start, model, task, method="swap", percentile=0.9, rounds=1)
    rows = found.samples["certificate"]
    assert rows["n_pairs"] == 40
    sample = disjoint_samples(task, None, {"discovery": 4000, "validation": 4000, "certificate": 10_000}, 0)[
        "certificate"
    ]
    index = np.arange(40)
    for judged in (found.before, found.after):
        values = PairEvaluator(model, judged.circuit, sample.clean, sample.corrupted).pairs(index, index)
        np.testing.assert_allclose(judged.divergence, values.divergence)
        np.testing.assert_allclose(found.empty, values.empty)


def test_parts_of_a_task_are_disjoint_and_draws_have_streams_of_their_own(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    counts = {"discovery": 50, "validation": 50, "certificate": 50}
    samples = disjoint_samples(own_task(model, n=90), None, counts, 0)
    rows = [{tuple(row) for row in sample.clean.tokens.tolist()} for sample in samples.values()]
    assert [len(each) for each in rows] == [30, 30, 30]
    assert len(set.union(*rows)) == sum(map(len, rows))

    task = load_task("ioi", load_model("mini"), n=4)
    samples = disjoint_samples(task, None, counts, 0)
    names = [set(sample.streams.values()) for sample in samples.values()]
    assert all(len(each) == 3 for each in names)
    assert len(set.union(*names)) == sum(map(len, names))
    assert {sample.protocol for sample in samples.values()} == {"iid"}


def test_a_grammar_task_is_repaired_from_scores(gpt2_tiny: nn.Module) -> None:
    model = load_model("mini")
    task = load_task("greater-than", model, n=8)
    scores = discover(model, task, "eap", objective="prob_diff")
    found = repair(
        scores,
        model,
        task,
        n_edges=40,
        percentile=0.9,
        n_discovery=64,
        n_validation=60,
        n_certificate=50,
        settings=MaskSettings(steps=12),
        batch_size=8,
    )
    assert found.before.circuit == largest_top(scores, 40)
    assert [each.origin for each in found.candidates] == ["start", *(f"step {n}" for n in (9, 10, 11, 12))]
    assert found.training is not None
    assert len(found.training.history) == 12
    assert len(found.after.divergence) == 50
    assert found.cost["soft_forward"] == 12 * 8


def test_nothing_better_leaves_the_start(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    full = Circuit.full(model.graph)
    found = repair(full, model, own_task(model), method="swap", rounds=2, percentile=0.5)
    assert not found.improved
    assert found.circuit == full
    assert found.after.divergence is found.before.divergence


def test_bad_input_is_named(gpt2_tiny: nn.Module, unchecked: None) -> None:
    model = load_model(gpt2_tiny)
    task, scores, start = own_task(model), random_scores(model), Circuit.random(model.graph, 30)
    with pytest.raises(UnknownNameError, match="unknown repair method 'mask-swap'"):
        repair(start, model, task, method="mask-swap")
    with pytest.raises(InputError, match="scores alone do not set a size"):
        repair(scores, model, task)
    with pytest.raises(InputError, match=r"tail is 1\.5; expected a fraction in \[0, 1\]"):
        repair(start, model, task, tail=1.5)
    with pytest.raises(InputError, match="alpha is 1; expected a number strictly between 0 and 1"):
        repair(start, model, task, alpha=1)
    with pytest.raises(InputError, match="n_edges is 10, but the circuit to repair has 30 edges"):
        repair(start, model, task, n_edges=10)
    with pytest.raises(InputError, match="the circuit to repair has no edges"):
        repair(Circuit.empty(model.graph), model, task)
    with pytest.raises(InputError, match="this task has no grammar; use protocol='file'"):
        repair(start, model, task, protocol="iid")
    with pytest.raises(InputError, match="the task has 5 pairs of its own"):
        repair(start, model, task.subset(range(5)))
    other = build_graph(1, 1)
    foreign = EdgeScores(other, torch.ones(other.valid.shape))
    with pytest.raises(GraphMismatchError, match="the scores belong to another model"):
        repair(foreign, model, task, n_edges=3)

    def no_number(full: Tensor, run: Tensor) -> Tensor:
        return run.sum(1) * float("nan")

    with pytest.raises(FloatingPointError, match="NaN"):
        repair(start, model, task, divergence=no_number)
