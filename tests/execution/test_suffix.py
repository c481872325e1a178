"""Cuts towards the input: every hypothesis against the runner of whole circuits."""

from collections.abc import Callable

import pytest
import torch
from cut_models import NAMES, model_and_task, random_prompts
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError, ShapeError
from assay.discovery.edges import discover
from assay.execution import ABLATIONS, SuffixRunner, run_circuit, run_model
from assay.models import Model, load_model
from assay.tasks import Task


def prepared(model: Model, task: Task, ablation: str, *, keep: bool = True, size: int = 3) -> SuffixRunner:
    runner = SuffixRunner(model, keep=keep)
    ablated = ABLATIONS[ablation].prepare(model, task, batch_size=size, seed=0)
    clean = [
        runner.add(batch.clean, ablated.baseline(batch), batch.positions) for batch in task.batches(size)
    ]
    torch.testing.assert_close(torch.cat(clean), run_model(model, task))
    return runner


def literally(model: Model, task: Task, mask: Tensor, ablation: str) -> Tensor:
    return run_circuit(model, task, Circuit(graph=model.graph, mask=mask), ablation=ablation)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ablation", "keep"), [("resample", True), ("zero", False)])
def test_hypotheses_are_the_runs_of_their_circuits(
    name: str, ablation: str, keep: bool, tiny_module: Callable[..., nn.Module]
) -> None:
    """Three random sets of cuts per target, one of them committed, from `logits` down to the input."""
    model, task = model_and_task(name, tiny_module)
    runner = prepared(model, task, ablation, keep=keep)
    generator = torch.Generator().manual_seed(3)
    for target in reversed(range(model.graph.n_targets)):
        if not runner.live(target):
            continue
        sources = runner.kept[:, target].nonzero().squeeze(1).tolist()
        cuts = torch.rand(3, len(sources), generator=generator) < torch.tensor([[0.3], [0.6], [0.8]])
        found = torch.cat(list(runner.logits(target, sources, cuts)), 1)
        chosen = target % 3
        mask = runner.kept.clone()
        mask[sources, target] = ~cuts[chosen]
        expected = literally(model, task, mask, ablation)
        torch.testing.assert_close(found[chosen], expected, rtol=1e-9, atol=1e-9)
        runner.commit(chosen)
        assert runner.kept[sources, target].tolist() == (~cuts[chosen]).tolist()


def test_targets_without_a_way_to_the_logits_are_dead(tiny_module: Callable[..., nn.Module]) -> None:
    """A key is alive while any head that shares it is; positions follow from what reads the node."""
    model, task = model_and_task("llama", tiny_module)
    graph = model.graph
    runner = prepared(model, task, "resample")
    last = graph.n_targets - 1
    assert not runner.everywhere(last)
    # Only head 1 of the last block keeps its way to the logits; heads 0 and 1 share keys and values.
    gone = [graph.source_index(name) for name in ("a1.h0", "a1.h2", "a1.h3", "m1")]
    list(runner.logits(last, gone, torch.ones(1, 4, dtype=torch.bool)))
    runner.commit(0)
    alive = {target for target in graph.targets if runner.live(graph.target_index(target))}
    assert {"a1.h1.q", "a1.kv0.k", "a1.kv0.v"} == {target for target in alive if target.startswith("a1")}
    assert "m1" not in alive
    assert runner.everywhere(graph.target_index("a1.kv0.k"))
    assert not runner.everywhere(graph.target_index("a1.h1.q"))
    assert runner.everywhere(graph.target_index("m0"))
    with pytest.raises(InputError, match=r"m1 has no path to the logits through kept edges"):
        list(runner.logits(graph.target_index("m1"), [0], torch.ones(1, 1, dtype=torch.bool)))


def test_single_cuts_of_the_whole_model_are_the_exact_scores(tiny_module: Callable[..., nn.Module]) -> None:
    model, task = model_and_task("gpt2", tiny_module)
    graph = model.graph
    exact = discover(model, task, "exact", objective="ce").values
    runner = prepared(model, task, "resample")
    clean = run_model(model, task).log_softmax(1)
    answers = task.answers[:, 0]
    rows = torch.arange(task.n)
    for target in reversed(range(graph.n_targets)):
        sources = graph.valid[:, target].nonzero().squeeze(1).tolist()
        single = torch.eye(len(sources), dtype=torch.bool)
        logits = torch.cat(list(runner.logits(target, sources, single)), 1)
        damage = clean[rows, answers] - logits.log_softmax(2)[:, rows, answers]
        torch.testing.assert_close(damage.mean(1), exact[sources, target], rtol=1e-9, atol=1e-12)


def test_half_precision_follows_the_runner_of_circuits(tiny_module: Callable[..., nn.Module]) -> None:
    model = load_model(tiny_module("gpt2", torch.bfloat16))
    task = random_prompts(model, 3, 5, ragged=False)
    runner = prepared(model, task, "resample")
    last = model.graph.n_targets - 1
    cuts = torch.zeros(1, 5, dtype=torch.bool)
    cuts[0, :3] = True
    found = torch.cat(list(runner.logits(last, list(range(5)), cuts)), 1)[0]
    mask = model.graph.valid.clone()
    mask[:3, -1] = False
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, literally(model, task, mask, "resample"), rtol=0.05, atol=0.3)


def test_nothing_to_commit(tiny_module: Callable[..., nn.Module]) -> None:
    model, task = model_and_task("gpt2", tiny_module)
    runner = prepared(model, task, "zero")
    with pytest.raises(InputError, match="nothing to commit; request logits first"):
        runner.commit(0)


def test_calls_that_cannot_be_served(tiny_module: Callable[..., nn.Module], unchecked: None) -> None:
    model, task = model_and_task("gpt2", tiny_module)
    runner = prepared(model, task, "zero")
    last = model.graph.n_targets - 1
    one = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"cuts has shape \(1, 1\); expected .* 2 columns"):
        list(runner.logits(last, [0, 1], one))
    list(runner.logits(last, [0], one))
    runner.commit(0)
    with pytest.raises(InputError, match="the edge input->logits is not kept"):
        list(runner.logits(last, [0], one))
    batch = next(task.batches(2))
    baseline = ABLATIONS["zero"].prepare(model, task, batch_size=2, seed=0).baseline(batch)
    with pytest.raises(InputError, match="add all examples before that"):
        runner.add(batch.clean, baseline, batch.positions)
    first = model.graph.target_index("m0")
    list(runner.logits(first, [0], one))
    runner.commit(0)
    with pytest.raises(InputError, match="edges before logits were already cut, .* in reverse order"):
        list(runner.logits(last, [1], one))
