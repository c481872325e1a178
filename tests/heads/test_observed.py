"""Scores of heads that are observed in one pass: direct effects, gradients, information."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from golden_heads import every_head, literal_logits, margins, outputs
from torch import nn

from assay.core.errors import InconsistentRunError, InputError
from assay.discovery.heads import HeadScores
from assay.discovery.heads.direct import direct_attribution, head_outputs, margin_directions
from assay.discovery.heads.gradients import attribution_patching, fisher_count
from assay.discovery.heads.information import causation_entropy
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import PairTask
from assay.tasks.task import draw_rows


MakeTask = Callable[..., PairTask]


def test_golden_attribution(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> None:
    outputs, u = head_outputs(golden_model, golden_task), margin_directions(golden_model, golden_task)
    scores = direct_attribution(golden_model, outputs, u)
    direction = margin_directions(golden_model, golden_task, "correct")
    bare = direct_attribution(golden_model, outputs, direction, norm="none")
    for found, name in (
        (scores.flat_examples, "dla_difference_frozen_norm"),
        (scores.details["rest"], "dla_rest_frozen_norm"),
        (scores.details["margin"], "y_full"),
        (bare.flat_examples, "dla_correct_no_norm"),
    ):
        np.testing.assert_allclose(found, golden[name], rtol=1e-9, atol=1e-11)
    assert (scores.details["additivity_gap"] < 1e-12, bare.details) == (True, {})
    # An example with an infinite activation is left out; parts that do not add up are an error.
    z = outputs.z.clone()
    z[3, 2, 0] = torch.nan
    spoiled = direct_attribution(golden_model, replace(outputs, z=z), u)
    assert spoiled.n_excluded == 1
    np.testing.assert_allclose(spoiled.values, np.delete(scores.per_example, 3, axis=0).mean(0), rtol=1e-12)
    with pytest.raises(InconsistentRunError, match="differ from the margin by"):
        direct_attribution(golden_model, replace(outputs, mlp=outputs.mlp * 1.01), u)


@pytest.mark.parametrize("ragged", [False, True])
def test_attribution_is_that_of_the_written_vector(model64: Model, make_task: MakeTask, ragged: bool) -> None:
    task = make_task(ragged=ragged, answers=2)
    outputs, u = head_outputs(model64, task), margin_directions(model64, task)
    raw = direct_attribution(model64, outputs, u, norm="none")
    frozen = direct_attribution(model64, outputs, u)
    # Rotary tables and RMS norms of transformers are float32 even in a float64 model.
    total = frozen.flat_examples.sum(1) + frozen.details["rest"]
    np.testing.assert_allclose(total, margins(run_model(model64, task), task), rtol=1e-5, atol=1e-5)
    gain, norm = model64.final_norm.gain.double(), model64.final_norm
    for i in range(task.n):
        x, read = outputs.final[i].double(), gain * u[i]
        if norm.kind == "layer":
            read = (read - read.mean()) / (x.var(correction=0) + norm.eps).sqrt()
        else:
            read = read / (x.square().mean() + norm.eps).sqrt()
        for flat, (layer, head) in enumerate(every_head(model64)):
            written = outputs.z[i, flat].double() @ model64.blocks[layer].out_weight()[head].double()
            assert raw.flat_examples[i, flat] == pytest.approx(float(written @ u[i]), rel=1e-9, abs=1e-12)
            assert frozen.flat_examples[i, flat] == pytest.approx(float(written @ read), rel=1e-9, abs=1e-12)


def test_attribution_is_the_slope_of_the_patch(model64: Model, make_task: MakeTask) -> None:
    task, step = make_task(4, ragged=True), 1e-3
    scores = attribution_patching(model64, task)
    clean, corrupted = outputs(model64, task.clean), outputs(model64, task.corrupted)
    real = (torch.arange(task.length) < task.lengths[:, None])[..., None]
    for flat, head in enumerate(every_head(model64)):
        ends = []  # a share of the way to the output on the corrupted input, and back
        for share in (step, -step):
            moved = [x + share * real * (y - x) for x, y in zip(clean, corrupted, strict=True)]
            ends.append(margins(literal_logits(model64, task, [head], moved), task))
        # Central differences; Llama's float32 norms and rotary tables limit the agreement.
        slope = (ends[1] - ends[0]) / (2 * step)
        np.testing.assert_allclose(scores.flat_examples[:, flat], slope, rtol=2e-3, atol=2e-3)


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
    assert not np.array_equal(twenty.values, fisher_count(golden_model, golden_task, seed=1).values)
    few = fisher_count(golden_model, golden_task, n=1)
    assert (few.reason, few.values.any()) == ("too_few", False)
    with pytest.raises(InputError, match="n is 0"):
        fisher_count(golden_model, golden_task, n=0)


def scores_of(x: np.ndarray) -> HeadScores:
    return HeadScores.from_flat("x", x.shape[1] // 2, x.mean(0), per_example=x)


def literal_information(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """By least squares with intercept, one column at a time."""
    design = np.column_stack([np.ones(len(y)), given])
    left_x = x - design @ np.linalg.lstsq(design, x, rcond=None)[0]
    left_y = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    r = np.corrcoef(left_x, left_y)[0, 1]
    return -0.5 * math.log(1 - min(r**2, 0.998))


def planted(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Twelve heads; the target is 2 x_1 - x_7 + noise, and x_2 is an echo of x_1."""
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((n, 12))
    x[:, 2] = x[:, 1] + 0.5 * draw.standard_normal(n)
    return x, 2 * x[:, 1] - x[:, 7] + 0.5 * draw.standard_normal(n)


def test_planted_parents_are_found_and_echoes_left_out() -> None:
    x, y = planted()
    found = causation_entropy(scores_of(x), y)
    assert found.details["parents"] == [(0, 1), (1, 1)]
    assert found.flat[2] < 0.02  # alone the echo knows almost as much as x_1
    assert causation_entropy(scores_of(x), y, max_parents=0).flat[2] > 0.3
    assert (found.warnings, found.unit) == ((), "nats")
    # Dense scores are by partial correlations given the other parents.
    for j in range(12):
        others = x[:, [parent for parent in (1, 7) if parent != j]]
        assert found.flat[j] == pytest.approx(literal_information(x[:, j], y, others), rel=1e-9, abs=1e-12)
    gain = literal_information(x[:, 1], y, np.empty((300, 0)))
    assert found.details["gains"][0] == pytest.approx(gain)
    x[:, 4] = 3 - 2 * y  # a copy of the target, beside which nothing is left to tell
    copied = causation_entropy(scores_of(x), y)
    assert copied.details["parents"] == [(0, 4)]
    assert copied.flat[[4, 1, 7]] == pytest.approx([-0.5 * math.log(0.002), 0, 0], abs=1e-12)


def test_pure_noise_rarely_has_parents() -> None:
    draw = np.random.default_rng(5)
    chosen = [
        causation_entropy(scores_of(draw.standard_normal((200, 8))), draw.standard_normal(200), seed=i)
        for i in range(60)
    ]
    with_parents = sum(bool(found.details["parents"]) for found in chosen)
    assert with_parents <= 9  # 5 % of 60 is 3; more than 9 has probability 0.001


def test_undefined_cases_have_reasons() -> None:
    x, y = planted(9)  # at most two parents
    bounded = causation_entropy(scores_of(x), y, permutations=1)
    assert len(bounded.details["parents"]) <= 2
    assert bounded.warnings == ("fewer_than_200_examples",)
    constant = causation_entropy(scores_of(planted(20)[0]), np.ones(20))
    few = causation_entropy(scores_of(x[:6]), y[:6])
    assert (few.reason, constant.reason) == ("too_few", "constant_target")
    assert np.isnan([few.values, constant.values]).all()
    # Examples that are not finite are left out.
    x, y = planted(60)
    spoiled, target = x.copy(), y.copy()
    spoiled[3, 5], target[7] = np.nan, np.inf
    found, kept = causation_entropy(scores_of(spoiled), target), np.delete(np.arange(60), [3, 7])
    np.testing.assert_array_equal(found.flat, causation_entropy(scores_of(x[kept]), y[kept]).flat)
    assert (found.details["n"], found.details["n_excluded"]) == (58, 2)
