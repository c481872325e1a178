"""Scores by gradients: golden values, finite differences, and the gradients of the parameters themselves."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.discovery.heads.gradients import attribution_patching, fisher_count
from assay.discovery.heads.membership import separation
from assay.discovery.heads.scores import member_flags
from assay.models import Model, load_model
from assay.tasks import PairTask
from assay.tasks.rows import draw_rows


MakeTask = Callable[..., PairTask]


def test_golden_attribution(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> None:
    """The publication's score has the other sign: the change of the margin, not its loss."""
    scores = attribution_patching(golden_model, golden_task)
    published = -np.array(golden["attribution_patching"])
    np.testing.assert_allclose(scores.flat_examples, published, rtol=1e-9, atol=1e-11)
    members = member_flags(tuple((layer, head) for layer, head in golden["circuit"]), 3, 4)
    found = separation(np.abs(scores.flat), members)
    assert found.auroc == pytest.approx(golden["attribution_auroc_abs_mean"], rel=1e-12)


def margin_with_head(
    model: Model, task: PairTask, flat: int, share: float
) -> tuple[np.ndarray, list[torch.Tensor]]:
    """Margins with one head moved by a share of the way to its output on the corrupted input."""
    layer, head = divmod(flat, model.n_heads)
    with torch.no_grad(), model.tracing() as clean:
        model.forward(task.clean)
    with torch.no_grad(), model.tracing() as corrupted:
        model.forward(task.corrupted)
    real = torch.arange(task.length) < task.lengths[:, None]
    columns = slice(head * model.d_head, (head + 1) * model.d_head)
    step = (corrupted.z[layer] - clean.z[layer])[..., columns] * real[..., None] * share

    def move(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = args[0].clone()
        z[..., columns] += step
        return (z,)

    handle = model.blocks[layer].out.register_forward_pre_hook(move)
    with torch.no_grad():
        logits = model.read(model.forward(task.clean), task.positions).double()
    handle.remove()
    rows = torch.arange(task.n)
    return (logits[rows, task.answers[:, 0]] - logits[rows, task.wrong[:, 0]]).numpy(), clean.z


def test_attribution_is_the_slope_of_the_patch(model64: Model, make_task: MakeTask) -> None:
    task = make_task(4, ragged=True)
    scores = attribution_patching(model64, task)
    step = 1e-3
    for flat in range(model64.n_layers * model64.n_heads):
        up, _ = margin_with_head(model64, task, flat, step)
        down, _ = margin_with_head(model64, task, flat, -step)
        # Central differences; Llama's float32 norms and rotary tables limit the agreement.
        np.testing.assert_allclose(
            scores.flat_examples[:, flat], (down - up) / (2 * step), rtol=2e-3, atol=2e-3
        )


def test_the_model_is_left_as_it_was(module64: nn.Module, make_task: MakeTask) -> None:
    model = load_model(module64)
    asking = [parameter.requires_grad for parameter in module64.parameters()]
    attribution_patching(model, make_task())
    assert [parameter.requires_grad for parameter in module64.parameters()] == asking
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in module64.modules())
    assert all(parameter.grad is None for parameter in module64.parameters())


def test_one_example_is_too_few(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    model = load_model(gpt2_tiny64)
    few = fisher_count(model, make_task(), n=1)
    assert (few.reason, few.values.any()) == ("too_few", False)
    with pytest.raises(InputError, match="n is 0"):
        fisher_count(model, make_task(), n=0)


def literal_count(module: nn.Module, task: PairTask, flat: int) -> int:
    """Through the gradients of the parameters themselves, one example at a time."""
    module = copy.deepcopy(module)
    model = load_model(module)
    layer, head = divmod(flat, model.n_heads)
    block, d_head = model.blocks[layer], model.d_head
    rows = []
    for i in range(task.n):
        module.zero_grad()
        one = task.subset([i])
        logits = model.read(model.forward(one.clean), one.positions)
        (-logits.log_softmax(1).gather(1, one.answers)).sum().backward()
        outs = [part.weight.grad for part in block.qkv]
        outs = [g.T if isinstance(m, nn.Linear) else g for g, m in zip(outs, block.qkv, strict=True)]
        value = block.channels(outs)[:, model.n_heads + model.n_kv_heads + block.kv_head(head)]
        out = block.out.weight.grad.T if isinstance(block.out, nn.Linear) else block.out.weight.grad
        rows.append(torch.cat([value.flatten(), out[head * d_head : (head + 1) * d_head].flatten()]))
    variance = torch.stack(rows).var(0)
    return int((variance > 0.01 * variance.max()).sum())


def test_counts_are_those_of_the_parameter_gradients(module64: nn.Module, make_task: MakeTask) -> None:
    model, task = load_model(module64), make_task(5, ragged=True)
    scores = fisher_count(model, task)
    expected = [literal_count(module64, task, flat) for flat in range(scores.values.size)]
    assert scores.details["counts"] == expected
    np.testing.assert_allclose(scores.flat, np.array(expected) / (2 * math.log(5)))
    assert len(set(expected)) > 1  # heads of a layer differ
    assert fisher_count(model, task, batch_size=2).details["counts"] == expected


def test_a_sample_of_the_examples_counts(golden_model: Model, golden_task: PairTask) -> None:
    twenty = fisher_count(golden_model, golden_task)
    assert twenty.details["n"] == 20
    rows = draw_rows(golden_task.n, 20, seed=0, what="examples")
    assert rows.max() >= 20  # a file may list kind after kind
    sampled = fisher_count(golden_model, golden_task.subset(rows.tolist()), n=50)
    np.testing.assert_array_equal(twenty.values, sampled.values)
    other = fisher_count(golden_model, golden_task, seed=1)
    assert not np.array_equal(twenty.values, other.values)
