"""Single heads replaced: golden tables, the circuit engine, and the one-token form against the whole one."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.discovery.heads.runs import OneByOne, base_run, outside
from assay.execution import run_circuit
from assay.models import Model, load_model
from assay.tasks import PairTask


sys.path.insert(0, str(Path(__file__).parent.parent / "execution"))

from test_circuit_run import random_task


def margin_of(task: PairTask):
    """Answer minus wrong answer, for the prompts that the rows belong to."""

    def margin(logits: Tensor, rows: Tensor) -> Tensor:
        assert task.wrong is not None
        return (logits.gather(1, task.answers[rows]) - logits.gather(1, task.wrong[rows]))[:, 0]

    return margin


def task_of(model: Model, *, ragged: bool = False) -> PairTask:
    task = random_task(model, ragged=ragged)
    wrong = (task.answers + 1) % 50 + 1
    return PairTask(
        clean=task.clean, corrupted=task.corrupted, answers=task.answers, wrong=wrong, lengths=task.lengths
    )


def one_of(model: Model, task: PairTask) -> OneByOne:
    [batch] = task.batches(task.n)
    return OneByOne(model=model, batch=batch, reading=margin_of(task), heads=outside((), model))


@pytest.mark.parametrize("ragged", [False, True])
def test_a_dropped_head_is_the_circuit_without_it(module64: nn.Module, ragged: bool) -> None:
    model = load_model(module64)
    task = task_of(model, ragged=ragged)
    found = one_of(model, task).everywhere(base_run(model, task.clean), base_run(model, task.corrupted).z)
    for place, (layer, head) in enumerate(outside((), model)):
        without = Circuit.full(model.graph).without_head(layer, head)
        logits = run_circuit(without, model, task, ablation="resample")
        expected = margin_of(task)(logits, torch.arange(task.n)).double()
        torch.testing.assert_close(found[:, place], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ragged", [False, True])
def test_one_token_is_enough_where_only_the_last_position_changes(module64: nn.Module, ragged: bool) -> None:
    model = load_model(module64)
    task = task_of(model, ragged=ragged)
    one, read, rows = one_of(model, task), task.positions, torch.arange(task.n)
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    changed = [z.clone() for z in base.z]
    for z, replacement in zip(changed, other.z, strict=True):
        z[rows, read] = replacement[rows, read]
    expected, found = one.everywhere(base, changed), one.at_read(base, other.z)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    clean = one.reading(model.read(model.forward(task.clean), read), rows)
    assert (found - clean[:, None]).abs().max() > 1e-3


def test_a_run_costs_the_blocks_above_its_head(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = task_of(model)
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    entered: list[int] = []
    hooks = [
        block.module.register_forward_pre_hook(lambda module, args, layer=layer: entered.append(layer))
        for layer, block in enumerate(model.blocks)
    ]
    one_of(model, task).everywhere(base, other.z)
    for hook in hooks:
        hook.remove()
    assert entered == [1]  # all heads of block 0 at once; none of the last block needs another block
