import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from assay.core.errors import InconsistentRunError, InputError, ShapeError
from assay.discovery.heads import (
    HeadOutputs,
    activation_magnitude,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import PairTask


MakeTask = Callable[..., PairTask]


def margins(model: Model, task: PairTask) -> np.ndarray:
    logits = run_model(model, task).double()
    rows = torch.arange(task.n)[:, None]
    return (logits[rows, task.answers].mean(1) - logits[rows, task.wrong].mean(1)).numpy()


# ---- golden ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden_outputs(golden_model: Model, golden_task: PairTask) -> HeadOutputs:
    return head_outputs(golden_model, golden_task)


def test_golden_attribution_with_the_norm_frozen(
    golden: dict[str, Any], golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs
) -> None:
    scores = direct_attribution(golden_model, golden_outputs, margin_directions(golden_model, golden_task))
    np.testing.assert_allclose(
        scores.flat_examples, golden["dla_difference_frozen_norm"], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(scores.details["rest"], golden["dla_rest_frozen_norm"], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(scores.details["margin"], golden["y_full"], rtol=1e-9)
    np.testing.assert_allclose(scores.values, scores.per_example.mean(0), rtol=1e-12)
    assert scores.details["additivity_gap"] < 1e-12


def test_golden_attribution_without_the_norm(
    golden: dict[str, Any], golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs
) -> None:
    direction = margin_directions(golden_model, golden_task, "correct")
    scores = direct_attribution(golden_model, golden_outputs, direction, norm="none")
    np.testing.assert_allclose(scores.flat_examples, golden["dla_correct_no_norm"], rtol=1e-9, atol=1e-12)
    assert scores.details == {}


def test_golden_magnitude(golden: dict[str, Any], golden_model: Model, golden_outputs: HeadOutputs) -> None:
    scores = activation_magnitude(golden_model, golden_outputs)
    np.testing.assert_allclose(scores.flat, golden["activation_magnitude"], rtol=1e-9)


# ---- every family ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
def test_the_parts_add_up_to_the_margin(model64: Model, make_task: MakeTask, ragged: bool) -> None:
    task = make_task(ragged=ragged, answers=2)
    scores = direct_attribution(model64, head_outputs(model64, task), margin_directions(model64, task))
    total = scores.flat_examples.sum(1) + scores.details["rest"]
    # Rotary tables and RMS norms of transformers are float32 even in a float64 model.
    np.testing.assert_allclose(total, margins(model64, task), rtol=1e-5, atol=1e-5)


def test_float32_models_add_up_within_the_tolerance(module32: nn.Module, make_task: MakeTask) -> None:
    model, task = load_model(module32), make_task()
    scores = direct_attribution(model, head_outputs(model, task), margin_directions(model, task))
    assert scores.details["additivity_gap"] < 1e-5
    np.testing.assert_allclose(scores.details["margin"], margins(model, task), rtol=1e-4, atol=1e-4)


def test_attribution_is_that_of_the_written_vector(model64: Model, make_task: MakeTask) -> None:
    task = make_task()
    outputs = head_outputs(model64, task)
    u = margin_directions(model64, task)
    raw = direct_attribution(model64, outputs, u, norm="none")
    frozen = direct_attribution(model64, outputs, u)
    gain, norm = model64.final_norm.gain.double(), model64.final_norm
    for i in range(task.n):
        x = outputs.final[i].double()
        if norm.kind == "layer":
            scale = (x.var(correction=0) + norm.eps).sqrt()
        else:
            scale = (x.square().mean() + norm.eps).sqrt()
        read = gain * u[i]
        read = (read - read.mean() if norm.kind == "layer" else read) / scale
        for flat in range(model64.n_layers * model64.n_heads):
            layer, head = divmod(flat, model64.n_heads)
            written = outputs.z[i, flat].double() @ model64.blocks[layer].out_weight()[head].double()
            assert raw.flat_examples[i, flat] == pytest.approx(float(written @ u[i]), rel=1e-9, abs=1e-12)
            assert frozen.flat_examples[i, flat] == pytest.approx(float(written @ read), rel=1e-9, abs=1e-12)


def test_results_do_not_depend_on_the_batch_size(model64: Model, make_task: MakeTask) -> None:
    task = make_task(ragged=True)
    first, second = (head_outputs(model64, task, batch_size=size) for size in (1, 4))
    for name in ("z", "input", "mlp", "final", "normed"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=1e-9, atol=1e-10)


# ---- where to read --------------------------------------------------------------------------------


def test_positions_can_be_given_and_pooled(model64: Model, make_task: MakeTask) -> None:
    task = make_task()
    own = head_outputs(model64, task)
    same = head_outputs(model64, task, positions=task.positions[:, None])
    assert torch.equal(own.z, same.z)
    both = torch.stack([task.positions - 2, task.positions], 1)
    pooled = head_outputs(model64, task, positions=both)
    earlier = head_outputs(model64, task, positions=task.positions - 2)
    torch.testing.assert_close(pooled.z, (own.z + earlier.z) / 2)
    # Pooled before the norm, parts still add up: to the margin of the pooled stream.
    scores = direct_attribution(model64, pooled, margin_directions(model64, task))
    assert scores.details["additivity_gap"] < 1e-6


def test_positions_outside_the_prompt_are_refused(
    gpt2_tiny64: nn.Module, make_task: MakeTask, unchecked: None
) -> None:
    model, task = load_model(gpt2_tiny64), make_task()
    with pytest.raises(InputError, match=r"positions \[7\] of example 0 lie outside its 7 tokens"):
        head_outputs(model, task, positions=task.lengths)
    with pytest.raises(ShapeError, match=r"expected \[6\] or \[6, n_read\]"):
        head_outputs(model, task, positions=task.positions[:3])


# ---- limits and errors ----------------------------------------------------------------------------


def test_a_silent_head_has_no_effect(gpt2_tiny64: nn.Module, make_task: MakeTask) -> None:
    module = copy.deepcopy(gpt2_tiny64)
    with torch.no_grad():
        module.transformer.h[1].attn.c_proj.weight[8:16] = 0  # head (1, 1)
    model, task = load_model(module), make_task()
    scores = direct_attribution(model, head_outputs(model, task), margin_directions(model, task))
    assert scores[1, 1] == 0
    assert scores[1, 0] != 0


def test_examples_with_infinite_activations_are_excluded(
    golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs
) -> None:
    z = golden_outputs.z.clone()
    z[3, 2, 0] = torch.nan
    spoiled = replace(golden_outputs, z=z)
    scores = direct_attribution(golden_model, spoiled, margin_directions(golden_model, golden_task))
    assert scores.n_excluded == 1
    kept = np.delete(scores.per_example, 3, axis=0)
    np.testing.assert_allclose(scores.values, kept.mean(0), rtol=1e-12)


def test_parts_that_do_not_add_up_are_an_error(
    golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs
) -> None:
    wrong = replace(golden_outputs, mlp=golden_outputs.mlp * 1.01)
    with pytest.raises(InconsistentRunError, match="differ from the margin by"):
        direct_attribution(golden_model, wrong, margin_directions(golden_model, golden_task))


def test_impossible_directions_are_refused(
    golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs, unchecked: None
) -> None:
    with pytest.raises(InputError, match="has no wrong outputs"):
        margin_directions(golden_model, replace(golden_task, wrong=None))
    with pytest.raises(ShapeError, match=r"expected \[24, 64\]"):
        direct_attribution(golden_model, golden_outputs, torch.zeros(3, 64, dtype=torch.float64))
