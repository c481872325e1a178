from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.discovery.heads import attribution_patching, separation
from assay.discovery.heads.scores import member_flags
from assay.models import Model, load_model
from assay.tasks import PairTask


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


def test_equal_inputs_have_no_effect(model64: Model, make_task: MakeTask) -> None:
    task = make_task()
    same = PairTask(clean=task.clean, corrupted=task.clean, answers=task.answers, wrong=task.wrong)
    assert not attribution_patching(model64, same).per_example.any()


def test_results_do_not_depend_on_the_batch_size(model64: Model, make_task: MakeTask) -> None:
    task = make_task(ragged=True)
    first, second = (attribution_patching(model64, task, batch_size=size) for size in (1, 4))
    np.testing.assert_allclose(first.per_example, second.per_example, rtol=1e-7, atol=1e-9)


def test_the_model_is_left_as_it_was(module64: nn.Module, make_task: MakeTask) -> None:
    model = load_model(module64)
    asking = [parameter.requires_grad for parameter in module64.parameters()]
    attribution_patching(model, make_task())
    assert [parameter.requires_grad for parameter in module64.parameters()] == asking
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in module64.modules())
    assert all(parameter.grad is None for parameter in module64.parameters())


def test_another_objective_can_be_attributed(model64: Model, make_task: MakeTask) -> None:
    task = make_task()
    scores = attribution_patching(model64, task, objective="ce")
    assert scores.unit == "nats"
    assert scores.provenance["objective"] == "ce"
    assert not np.allclose(scores.values, attribution_patching(model64, task).values)


def test_a_task_without_wrong_outputs_is_refused(model64: Model, make_task: MakeTask) -> None:
    task = make_task()
    bare = PairTask(clean=task.clean, corrupted=task.corrupted, answers=task.answers)
    with pytest.raises(InputError, match="the task has no `wrong`"):
        attribution_patching(model64, bare)
