"""Single heads replaced: golden tables, the circuit engine, and the one-token form against the whole one."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import ShapeError
from assay.discovery.heads.runs import base_run, one_head_replaced, one_head_replaced_at_read
from assay.execution import get_ablation, run_circuit
from assay.models import Model, load_model
from assay.tasks import PairTask


sys.path.insert(0, str(Path(__file__).parent.parent / "execution"))

from test_circuit_run import GOLDEN, golden_model, random_task


def margin_of(task: PairTask):
    """Answer minus wrong answer, for the prompts that the rows belong to."""

    def margin(logits: Tensor, rows: Tensor) -> Tensor:
        assert task.wrong is not None
        return (logits.gather(1, task.answers[rows]) - logits.gather(1, task.wrong[rows]))[:, 0]

    return margin


def test_golden_tables() -> None:
    """Dropped under mean ablation, patched clean into corrupted, and corrupted into clean at the end."""
    model, _ = golden_model("gpt2_tiny", torch.float64)
    stored = json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())
    task = PairTask(
        clean=torch.tensor(stored["tokens"]),
        corrupted=torch.tensor(stored["corrupt_tokens"]),
        answers=torch.tensor(stored["correct"])[:, None],
        wrong=torch.tensor(stored["incorrect"])[:, None],
    )
    margin, read = margin_of(task), task.positions
    clean, corrupted = base_run(model, task.clean), base_run(model, task.corrupted)
    batch = next(iter(task.batches(task.n)))
    mean = get_ablation("mean").prepare(model, task, batch_size=task.n, seed=0).baseline(batch)
    close = {"rtol": 1e-9, "atol": 1e-9}
    dropped = one_head_replaced(model, clean, mean.z, read, margin)
    np.testing.assert_allclose(dropped.numpy(), stored["y_drop1_mean"], **close)
    patched = one_head_replaced(model, corrupted, clean.z, read, margin)
    np.testing.assert_allclose(patched.numpy(), stored["y_patch"], **close)
    last = [z[torch.arange(task.n), read] for z in corrupted.z]
    crossed = one_head_replaced_at_read(model, clean, last, read, margin)
    np.testing.assert_allclose(crossed.numpy(), stored["y_cross"], **close)


def with_wrong(task: PairTask) -> PairTask:
    wrong = (task.answers + 1) % 50 + 1
    return PairTask(
        clean=task.clean, corrupted=task.corrupted, answers=task.answers, wrong=wrong, lengths=task.lengths
    )


@pytest.mark.parametrize("ragged", [False, True])
def test_a_dropped_head_is_the_circuit_without_it(module64: nn.Module, ragged: bool) -> None:
    model = load_model(module64)
    task = with_wrong(random_task(model, ragged=ragged))
    margin = margin_of(task)
    corrupted = base_run(model, task.corrupted)
    found = one_head_replaced(model, base_run(model, task.clean), corrupted.z, task.positions, margin)
    rows = torch.arange(task.n)
    for place in range(model.n_layers * model.n_heads):
        layer, head = divmod(place, model.n_heads)
        without = Circuit.full(model.graph).without_head(layer, head)
        logits = run_circuit(model, task, without, ablation="resample")
        torch.testing.assert_close(found[:, place], margin(logits, rows).double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ragged", [False, True])
def test_one_token_is_enough_where_only_the_last_position_changes(module64: nn.Module, ragged: bool) -> None:
    model = load_model(module64)
    task = with_wrong(random_task(model, ragged=ragged))
    margin, read, rows = margin_of(task), task.positions, torch.arange(task.n)
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    changed = []
    for z, replacement in zip(base.z, other.z, strict=True):
        z = z.clone()
        z[rows, read] = replacement[rows, read]
        changed.append(z)
    expected = one_head_replaced(model, base, changed, read, margin)
    found = one_head_replaced_at_read(model, base, [z[rows, read] for z in other.z], read, margin)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (found - margin(model.read(model.forward(task.clean), read), rows)[:, None]).abs().max() > 1e-3


def test_a_choice_of_heads_keeps_its_order(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = with_wrong(random_task(model))
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    arguments = (model, base, other.z, task.positions, margin_of(task))
    whole = one_head_replaced(*arguments)
    chosen = [(1, 2), (0, 1), (1, 0)]
    places = [layer * model.n_heads + head for layer, head in chosen]
    torch.testing.assert_close(one_head_replaced(*arguments, heads=chosen), whole[:, places])


def test_heads_replaced_by_themselves_change_nothing(module32: nn.Module) -> None:
    model = load_model(module32)
    task = with_wrong(random_task(model))
    margin, rows = margin_of(task), torch.arange(task.n)
    base = base_run(model, task.clean)
    with torch.no_grad():
        full = margin(model.read(model.forward(task.clean), task.positions), rows).double()
    same = one_head_replaced(model, base, base.z, task.positions, margin)
    torch.testing.assert_close(same, full[:, None].expand_as(same), rtol=1e-4, atol=1e-4)


def test_a_run_costs_the_blocks_above_its_head(gpt2_tiny64: nn.Module) -> None:
    model: Model = load_model(gpt2_tiny64)
    task = with_wrong(random_task(model))
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    entered: list[int] = []
    hooks = [
        block.module.register_forward_pre_hook(lambda module, args, layer=layer: entered.append(layer))
        for layer, block in enumerate(model.blocks)
    ]
    one_head_replaced(model, base, other.z, task.positions, margin_of(task))
    for hook in hooks:
        hook.remove()
    assert entered == [1]  # all heads of block 0 at once; none of the last block needs another block


def test_replacements_of_another_width_are_refused(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = with_wrong(random_task(model))
    base = base_run(model, task.clean)
    with pytest.raises(ShapeError, match="replacement of block 0 has width 23; expected 3 heads of 8"):
        one_head_replaced(model, base, [z[..., :-1] for z in base.z], task.positions, margin_of(task))
