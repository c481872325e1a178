"""Active directions of heads against the gradients of the parameters themselves."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.discovery.heads import fisher_count
from assay.models import Model, load_model
from assay.tasks import PairTask
from assay.tasks.rows import draw_rows


MakeTask = Callable[..., PairTask]


def test_a_head_that_changes_nothing_has_no_active_direction(
    gpt2_tiny64: nn.Module, make_task: MakeTask
) -> None:
    """With the unembedding at zero the loss is flat."""
    module = copy.deepcopy(gpt2_tiny64)
    with torch.no_grad():
        module.lm_head.weight.zero_()
    assert fisher_count(load_model(module), make_task()).flat.tolist() == [0] * 6


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
