from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from assay.core.errors import InconsistentRunError
from assay.discovery.heads.direct import (
    HeadOutputs,
    direct_attribution,
    head_outputs,
    margin_directions,
)
from assay.execution import run_model
from assay.models import Model
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


def test_golden_attribution(
    golden: dict[str, Any], golden_model: Model, golden_task: PairTask, golden_outputs: HeadOutputs
) -> None:
    scores = direct_attribution(golden_model, golden_outputs, margin_directions(golden_model, golden_task))
    near = {"rtol": 1e-9, "atol": 1e-11}
    np.testing.assert_allclose(scores.flat_examples, golden["dla_difference_frozen_norm"], **near)
    np.testing.assert_allclose(scores.details["rest"], golden["dla_rest_frozen_norm"], **near)
    np.testing.assert_allclose(scores.details["margin"], golden["y_full"], **near)
    assert scores.details["additivity_gap"] < 1e-12
    direction = margin_directions(golden_model, golden_task, "correct")
    bare = direct_attribution(golden_model, golden_outputs, direction, norm="none")
    np.testing.assert_allclose(bare.flat_examples, golden["dla_correct_no_norm"], **near)
    assert bare.details == {}


# ---- every family ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
def test_the_parts_add_up_to_the_margin(model64: Model, make_task: MakeTask, ragged: bool) -> None:
    task = make_task(ragged=ragged, answers=2)
    scores = direct_attribution(model64, head_outputs(model64, task), margin_directions(model64, task))
    total = scores.flat_examples.sum(1) + scores.details["rest"]
    # Rotary tables and RMS norms of transformers are float32 even in a float64 model.
    np.testing.assert_allclose(total, margins(model64, task), rtol=1e-5, atol=1e-5)


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


# ---- limits and errors ----------------------------------------------------------------------------


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
