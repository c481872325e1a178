"""Cuts towards the input: every hypothesis against the runner of whole circuits."""

from collections.abc import Callable

import pytest
import torch
from cut_models import NAMES, model_and_task
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.execution import ABLATIONS, CutRunner, run_circuit, run_model
from assay.models import Model
from assay.tasks import Task


def prepared(model: Model, task: Task, ablation: str, *, size: int = 3) -> CutRunner:
    runner = CutRunner(model)
    ablated = ABLATIONS[ablation].prepare(model, task, batch_size=size, seed=0)
    clean = [
        runner.add(batch.clean, ablated.baseline(batch), batch.positions) for batch in task.batches(size)
    ]
    torch.testing.assert_close(torch.cat(clean), run_model(model, task))
    return runner


def literally(model: Model, task: Task, mask: Tensor, ablation: str) -> Tensor:
    return run_circuit(Circuit(graph=model.graph, mask=mask), model, task, ablation=ablation)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_hypotheses_are_the_runs_of_their_circuits(
    name: str, ablation: str, tiny_module: Callable[..., nn.Module]
) -> None:
    """Three random sets of cuts per target, one of them committed, from `logits` down to the input."""
    model, task = model_and_task(name, tiny_module)
    runner = prepared(model, task, ablation)
    generator = torch.Generator().manual_seed(3)
    for target in reversed(range(model.graph.n_targets)):
        if runner.inlet(target) is None:
            continue
        sources = runner.kept[:, target].nonzero().squeeze(1).tolist()
        cuts = torch.rand(3, len(sources), generator=generator) < torch.tensor([[0.3], [0.6], [0.8]])
        found = torch.cat(list(runner.logits(target, sources, cuts)), 1)
        chosen = target % 3
        mask = runner.kept.clone()
        mask[sources, target] = ~cuts[chosen]
        expected = literally(model, task, mask, ablation)
        close = 1e-5 if name == "post-norm" else 1e-9  # its norms work in float32
        torch.testing.assert_close(found[chosen], expected, rtol=close, atol=close)
        runner.cut(target, [row for row, gone in zip(sources, cuts[chosen].tolist(), strict=True) if gone])
        assert runner.kept[sources, target].tolist() == (~cuts[chosen]).tolist()


def test_targets_without_a_way_to_the_logits_are_dead(tiny_module: Callable[..., nn.Module]) -> None:
    """A key is alive while any head that shares it is; positions follow from what reads the node."""
    model, task = model_and_task("llama", tiny_module)
    graph = model.graph
    runner = prepared(model, task, "resample")
    last = graph.n_targets - 1
    assert not runner.inlet(last).everywhere
    # Only head 1 of the last block keeps its way to the logits; heads 0 and 1 share keys and values.
    runner.cut(last, [graph.source_index(name) for name in ("a1.h0", "a1.h2", "a1.h3", "m1")])
    inlets = {target: runner.inlet(graph.target_index(target)) for target in graph.targets}
    alive = {target for target, inlet in inlets.items() if inlet is not None}
    assert {"a1.h1.q", "a1.kv0.k", "a1.kv0.v"} == {target for target in alive if target.startswith("a1")}
    assert "m1" not in alive
    assert inlets["a1.kv0.k"].everywhere
    assert not inlets["a1.h1.q"].everywhere
    assert inlets["m0"].everywhere
