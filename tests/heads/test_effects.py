"""Effects of single heads: golden tables, hand-worked columns, and each run against a slow literal one."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from heads_under import logits_under
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.discovery.heads import HeadScores, MeasurementTable
from assay.discovery.heads.effects import (
    drop_scores,
    mediation_scores,
    patching_scores,
)
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.single_heads import activation_patching, drop_effect, mediation
from assay.execution.replacements import Setting
from assay.models import Model, load_model
from assay.tasks import PairTask


CLOSE = {"rtol": 1e-9, "atol": 1e-9}


# ---- golden -----------------------------------------------------------------------------------------


def test_golden_patching(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> None:
    found = activation_patching(golden_model, golden_task)
    np.testing.assert_allclose(found.flat, golden["c2_ratio_of_sums"], **CLOSE)
    y_full, y_cor, y_patch = (np.array(golden[name]) for name in ("y_full", "y_cor", "y_patch"))
    gap = y_full - y_cor
    np.testing.assert_allclose(found.details["gap"], gap, **CLOSE)
    np.testing.assert_allclose(found.flat_examples, (y_patch - y_cor[:, None]) / gap.mean(), **CLOSE)
    ratios = activation_patching(golden_model, golden_task, aggregate="mean_of_ratios", batch_size=7)
    np.testing.assert_allclose(ratios.flat, golden["c2_mean_of_ratios"], **CLOSE)


def test_golden_mediation(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> None:
    found = mediation(golden_model, golden_task)
    np.testing.assert_allclose(found.flat, golden["c5_nie"], **CLOSE)
    np.testing.assert_allclose(found.details["fraction"].reshape(-1), golden["c5_fraction"], **CLOSE)
    np.testing.assert_allclose(
        found.details["direct_effect"] + found.values, np.full((3, 4), found.details["mean_total_effect"])
    )
    y_full, y_cross = np.array(golden["y_full"]), np.array(golden["y_cross"])
    np.testing.assert_allclose(found.flat_examples, y_full[:, None] - y_cross, **CLOSE)


def test_golden_drop_effect(golden: dict[str, Any], golden_model: Model, golden_task: PairTask) -> None:
    found = drop_effect(golden_model, golden_task, batch_size=5)
    expected = np.array(golden["y_full"])[:, None] - np.array(golden["y_drop1_mean"])
    np.testing.assert_allclose(found.flat_examples, expected, **CLOSE)
    np.testing.assert_allclose(found.flat, expected.mean(0), **CLOSE)


def test_stored_columns_give_the_scores_of_runs(golden_model: Model, golden_task: PairTask) -> None:
    table = MeasurementTable(golden_model, golden_task, Circuit.from_heads(golden_model.graph, [(0, 1)]))
    y_full, y_cor = table.column("y_full"), table.column("y_cor")
    pairs = (
        (
            patching_scores(y_full, y_cor, table.column("y_patch"), n_heads=4),
            activation_patching(golden_model, golden_task),
        ),
        (
            mediation_scores(y_full, y_cor, table.column("y_cross"), n_heads=4),
            mediation(golden_model, golden_task),
        ),
        (drop_scores(y_full, table.column("y_drop1"), n_heads=4), drop_effect(golden_model, golden_task)),
    )
    for stored, measured in pairs:
        np.testing.assert_allclose(stored.per_example, measured.per_example, rtol=1e-8, atol=1e-10)
        assert (stored.name, stored.sign) == (measured.name, measured.sign)


# ---- by hand ----------------------------------------------------------------------------------------

# Two prompts, two heads. Clean margins 4 and 2, corrupted 0 and -2: gaps 4 and 4.
FULL, CORRUPTED = np.array([4.0, 2.0]), np.array([0.0, -2.0])


def test_patching_by_hand() -> None:
    patched = np.array([[4.0, 1.0], [0.0, -3.0]])
    found = patching_scores(FULL, CORRUPTED, patched, n_heads=2)
    # Head 0: (4 + 2) / 8; head 1: (1 - 1) / 8.
    assert found.values.tolist() == [[0.75, 0.0]]
    assert found.flat_examples is not None
    assert found.flat_examples.tolist() == [[1.0, 0.25], [0.5, -0.25]]
    # With gaps of 4 and 2 the two aggregates differ: (4 + 1) / 6 against (4 / 4 + 1 / 2) / 2.
    uneven = np.array([0.0, 0.0])
    patched = np.array([[4.0, 0.0], [1.0, 0.0]])
    assert patching_scores(FULL, uneven, patched, n_heads=2)[0, 0] == pytest.approx(5 / 6)
    ratios = patching_scores(FULL, uneven, patched, n_heads=2, aggregate="mean_of_ratios")
    assert ratios[0, 0] == pytest.approx(0.75)


def test_patching_is_positive_where_a_head_raises_the_margin() -> None:
    patched = np.array([[4.0, 1.0], [0.0, -3.0]])
    swapped = patching_scores(-FULL, -CORRUPTED, -patched, n_heads=2)  # right and wrong change places
    assert swapped.values.tolist() == [[-0.75, 0.0]]


def test_mediation_by_hand() -> None:
    crossed = np.array([[1.0, 4.0], [-1.0, 3.0]])
    found = mediation_scores(FULL, CORRUPTED, crossed, n_heads=1)
    assert found.values.tolist() == [[3.0], [-0.5]]  # means of (3, 3) and (0, -1)
    assert found.details["fraction"].tolist() == [[0.75], [-0.125]]
    assert found.details["direct_effect"].tolist() == [[1.0], [4.5]]


def test_drop_by_hand() -> None:
    found = drop_scores(FULL, np.array([[1.0, 4.0], [0.0, 3.0]]), n_heads=2)
    assert found.values.tolist() == [[2.5, -0.5]]


def test_prompts_without_a_gap_or_a_number_are_left_out() -> None:
    full, corrupted = np.array([4.0, 2.0, 1.0, np.nan]), np.array([0.0, -2.0, 1.0, 0.0])
    patched = np.array([[4.0, 1.0], [0.0, -3.0], [9.0, 9.0], [1.0, 1.0]])
    found = patching_scores(full, corrupted, patched, n_heads=2)
    assert found.values.tolist() == [[0.75, 0.0]]
    assert found.n_excluded == 2
    patched[1, 1] = np.nan  # one head's run failed: the prompt goes from all heads
    assert patching_scores(full, corrupted, patched, n_heads=2).values.tolist() == [[1.0, 0.25]]
    assert mediation_scores(full, corrupted, patched, n_heads=2).n_excluded == 2
    assert drop_scores(full, patched, n_heads=2).n_excluded == 2


def test_heads_that_were_not_run_have_no_score() -> None:
    table = np.array([[4.0, np.nan], [0.0, np.nan]])
    for found in (
        patching_scores(FULL, CORRUPTED, table, n_heads=2),
        mediation_scores(FULL, CORRUPTED, table, n_heads=2),
        drop_scores(FULL, table, n_heads=2),
    ):
        assert np.isfinite(found.flat).tolist() == [True, False]
        assert (found.n_excluded, found.reason) == (0, None)


def test_effects_without_a_scale_are_undefined() -> None:
    opposed = patching_scores(np.array([1.0, -1.0]), np.zeros(2), np.ones((2, 2)), n_heads=2)
    assert (opposed.reason, np.isnan(opposed.values).all()) == ("zero_denominator", True)
    nothing = patching_scores(FULL, FULL, np.ones((2, 2)), n_heads=2)
    assert (nothing.reason, np.isnan(nothing.values).all()) == ("no_valid_prompt", True)
    for aggregate in ("ratio_of_sums", "mean_of_ratios"):
        empty = patching_scores(FULL[:0], FULL[:0], np.ones((0, 2)), n_heads=2, aggregate=aggregate)
        assert empty.reason == "no_valid_prompt"
    same = mediation_scores(FULL, FULL, np.ones((2, 2)), n_heads=2)
    assert same.details["fraction_reason"] == "zero_denominator"
    assert np.isnan(same.details["fraction"]).all()
    assert same.values.tolist() == [[2.0, 2.0]]
    assert drop_scores(FULL * np.nan, np.ones((2, 2)), n_heads=2).reason == "no_valid_prompt"
    for found in (opposed, nothing, same):
        json.dumps(found.to_dict(), allow_nan=False)


def test_columns_that_do_not_fit_are_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"y_corrupted has shape \(1,\); expected \(2,\)"):
        patching_scores(FULL, CORRUPTED[:1], np.ones((2, 2)), n_heads=2)
    with pytest.raises(ShapeError, match=r"shape \(2,\); expected \[prompts, heads\]"):
        drop_scores(FULL, FULL, n_heads=2)
    with pytest.raises(InputError, match="unknown aggregate 'mean'; "):
        patching_scores(FULL, CORRUPTED, np.ones((2, 2)), n_heads=2, aggregate="mean")


# ---- against literal runs -----------------------------------------------------------------------------


def literal(
    model: Model, tokens: Tensor, layer: int, head: int, value: Tensor, task: PairTask, *, last: bool
) -> np.ndarray:
    """Margins of a plain pass in which a hook writes `value` for one head."""
    block = model.blocks[layer]
    columns = slice(head * block.d_head, (head + 1) * block.d_head)
    rows = torch.arange(task.n)

    def write(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        z = args[0].clone()
        if last:
            z[rows, task.positions, columns] = value[rows, task.positions, columns]
        else:
            z[:, :, columns] = value[:, :, columns]
        return (z, *args[1:])

    handle = block.out.register_forward_pre_hook(write)
    with torch.no_grad():
        logits = model.read(model.forward(tokens), task.positions)
    handle.remove()
    return margins(logits, task)


def margins(logits: Tensor, task: PairTask) -> np.ndarray:
    assert task.wrong is not None
    return (logits.gather(1, task.answers).mean(1) - logits.gather(1, task.wrong).mean(1)).numpy()


def outputs(model: Model, tokens: Tensor) -> list[Tensor]:
    with torch.no_grad(), model.tracing() as trace:
        model.forward(tokens)
    return trace.z


@pytest.mark.parametrize("ragged", [False, True])
def test_every_run_is_the_literal_one(
    module64: nn.Module, make_task: Callable[..., PairTask], ragged: bool
) -> None:
    model, task = load_model(module64), make_task(ragged=ragged)
    clean, corrupted = outputs(model, task.clean), outputs(model, task.corrupted)
    heads = [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    with torch.no_grad():
        full = margins(model.read(model.forward(task.clean), task.positions), task)
        other = margins(model.read(model.forward(task.corrupted), task.positions), task)

    def column(tokens: Tensor, source: list[Tensor], *, last: bool = False) -> np.ndarray:
        each = [literal(model, tokens, layer, head, source[layer], task, last=last) for layer, head in heads]
        return np.stack(each, axis=1)

    close = {"rtol": 1e-5, "atol": 1e-6}  # the engine sums in another order, partly in float32 tables
    patched = activation_patching(model, task, batch_size=4)
    expected = (column(task.corrupted, clean) - other[:, None]) / np.abs((full - other).mean())
    np.testing.assert_allclose(patched.flat_examples, expected, **close)
    crossed = mediation(model, task, batch_size=4)
    np.testing.assert_allclose(
        crossed.flat_examples, full[:, None] - column(task.clean, corrupted, last=True), **close
    )
    everywhere = mediation(model, task, positions="all")
    np.testing.assert_allclose(
        everywhere.flat_examples, full[:, None] - column(task.clean, corrupted), **close
    )
    assert np.abs(everywhere.flat - crossed.flat).max() > 1e-3
    zero = drop_effect(model, task, ablation="zero")
    nothing = [torch.zeros_like(z) for z in clean]
    np.testing.assert_allclose(zero.flat_examples, full[:, None] - column(task.clean, nothing), **close)


@pytest.mark.parametrize("key", list(INTERVENTIONS))
def test_dropping_a_head_is_a_run_with_it_replaced(
    gpt2_tiny64: nn.Module, make_task: Callable[..., PairTask], key: str
) -> None:
    model, task = load_model(gpt2_tiny64), make_task(8)
    found = drop_effect(model, task, ablation=key, draws=2, seed=3, batch_size=3)
    setting = Setting(model=model, task=task, reference=task, batch_size=8, seed=3)
    expected = np.zeros((task.n, model.n_layers * model.n_heads))
    full = margins(logits_under(model, task, key, [], setting=setting), task)
    for setting.draw in range(2):
        for flat in range(expected.shape[1]):
            logits = logits_under(model, task, key, [divmod(flat, model.n_heads)], setting=setting)
            expected[:, flat] += (full - margins(logits, task)) / 2
    kept = np.isfinite(found.flat_examples).all(axis=1)
    assert kept.all() == (key != "resample-donor-same-class")  # no two of these prompts share an answer
    np.testing.assert_allclose(found.flat_examples[kept], expected[kept], rtol=1e-6, atol=1e-9)


def test_prompts_without_a_donor_of_their_answer_are_left_out(
    gpt2_tiny64: nn.Module, make_task: Callable[..., PairTask]
) -> None:
    model, base = load_model(gpt2_tiny64), make_task(5)
    answers = torch.tensor([[1], [1], [2], [3], [2]])
    wrong = torch.full((5, 1), 9)
    task = PairTask(clean=base.clean, corrupted=base.corrupted, answers=answers, wrong=wrong)
    found = drop_effect(model, task, ablation="resample-donor-same-class", draws=1)
    assert found.flat_examples is not None
    assert np.isnan(found.flat_examples).all(axis=1).tolist() == [False, False, False, True, False]
    assert found.n_excluded == 1


@pytest.mark.parametrize("score", [activation_patching, mediation, drop_effect])
def test_a_choice_of_heads_gives_their_scores_alone(
    gpt2_tiny64: nn.Module, make_task: Callable[..., PairTask], score: Callable[..., HeadScores]
) -> None:
    model, task = load_model(gpt2_tiny64), make_task()
    whole, some = score(model, task), score(model, task, heads=[(1, 2), (0, 1)])
    defined = np.isfinite(some.flat)
    assert np.flatnonzero(defined).tolist() == [1, 5]
    np.testing.assert_allclose(some.flat[defined], whole.flat[defined], rtol=1e-9)
    assert some.n_excluded == 0
    with pytest.raises(InputError, match=r"head \(2, 0\)"):
        score(model, task, heads=[(2, 0)])


@pytest.mark.parametrize("objective", ["ce", "kl"])
def test_the_margin_is_the_objective_asked_for(
    gpt2_tiny64: nn.Module, make_task: Callable[..., PairTask], objective: str
) -> None:
    model, task = load_model(gpt2_tiny64), make_task()
    found = drop_effect(model, task, objective=objective, ablation="zero")
    assert (found.unit, found.provenance["objective"]) == ("nats", objective)
    clean, without = (logits_under(model, task, "zero", heads).log_softmax(1) for heads in ([], [(0, 1)]))
    if objective == "ce":
        expected = (clean - without).gather(1, task.answers)[:, 0]
    else:
        expected = (clean.exp() * (clean - without)).sum(1)
    assert found.per_example is not None
    np.testing.assert_allclose(found.per_example[:, 0, 1], expected, rtol=1e-7, atol=1e-10)


def test_wrong_options_are_named(gpt2_tiny64: nn.Module, make_task: Callable[..., PairTask]) -> None:
    model, task = load_model(gpt2_tiny64), make_task()
    with pytest.raises(InputError, match="unknown positions 'first'; known: all, last"):
        mediation(model, task, positions="first")
    with pytest.raises(InputError, match="unknown aggregate 'sum'"):
        activation_patching(model, task, aggregate="sum")
    with pytest.raises(InputError, match="draws is 0; expected at least 1"):
        drop_effect(model, task, draws=0)
    with pytest.raises(UnknownNameError, match="intervention 'means'.*mean-last"):
        drop_effect(model, task, ablation="means")
