"""Effects of single heads: golden tables, hand-worked columns, and each run against a slow literal one."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from golden_heads import every_head, literal_logits, margins, outputs
from heads_under import logits_under
from torch import Tensor

from assay.discovery.heads.effects import (
    activation_patching,
    drop_effect,
    drop_scores,
    mediation,
    mediation_scores,
    patching_scores,
)
from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.runs import HeadMargins
from assay.execution.ablation import Setting
from assay.models import Model
from assay.tasks import PairTask


MakeTask = Callable[..., PairTask]


def test_golden_patching_and_mediation(
    golden: dict[str, Any], golden_model: Model, golden_task: PairTask
) -> None:
    y_full, y_cor, y_patch = (np.array(golden[name]) for name in ("y_full", "y_cor", "y_patch"))
    gap = y_full - y_cor
    patched = activation_patching(golden_model, golden_task)
    ratios = activation_patching(golden_model, golden_task, aggregate="mean_of_ratios", batch_size=7)
    mediated = mediation(golden_model, golden_task)
    for found, expected in (
        (patched.flat, golden["c2_ratio_of_sums"]),
        (patched.details["gap"], gap),
        (patched.flat_examples, (y_patch - y_cor[:, None]) / gap.mean()),
        (ratios.flat, golden["c2_mean_of_ratios"]),
        (mediated.flat, golden["c5_nie"]),
        (mediated.details["fraction"].reshape(-1), golden["c5_fraction"]),
        (mediated.flat_examples, y_full[:, None] - golden["y_cross"]),
        (mediated.details["direct_effect"], mediated.details["mean_total_effect"] - mediated.values),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


# Two prompts, two heads. Clean margins 4 and 2, corrupted 0 and -2: gaps 4 and 4.
FULL, CORRUPTED = np.array([4.0, 2.0]), np.array([0.0, -2.0])


def margins_of(one: Any, full: np.ndarray = FULL, corrupted: np.ndarray = CORRUPTED) -> HeadMargins:
    return HeadMargins(y_full=full, y_corrupted=corrupted, y_one=np.array(one))


def test_scores_by_hand() -> None:
    patched = patching_scores(margins_of([[4.0, 1.0], [0.0, -3.0]]), n_heads=2)
    assert patched.values.tolist() == [[0.75, 0.0]]  # (4 + 2) / 8 and (1 - 1) / 8
    assert patched.flat_examples.tolist() == [[1.0, 0.25], [0.5, -0.25]]
    # With gaps of 4 and 2 the two aggregates differ: (4 + 1) / 6 against (4 / 4 + 1 / 2) / 2.
    uneven = margins_of([[4.0, 0.0], [1.0, 0.0]], corrupted=np.zeros(2))
    assert patching_scores(uneven, n_heads=2)[0, 0] == pytest.approx(5 / 6)
    assert patching_scores(uneven, n_heads=2, aggregate="mean_of_ratios")[0, 0] == pytest.approx(0.75)
    mediated = mediation_scores(margins_of([[1.0, 4.0], [-1.0, 3.0]]), n_heads=1)
    assert mediated.values.tolist() == [[3.0], [-0.5]]  # means of (3, 3) and (0, -1)
    assert mediated.details["fraction"].tolist() == [[0.75], [-0.125]]
    assert mediated.details["direct_effect"].tolist() == [[1.0], [4.5]]
    assert drop_scores(margins_of([[1.0, 4.0], [0.0, 3.0]]), n_heads=2).values.tolist() == [[2.5, -0.5]]


def test_prompts_without_a_gap_or_a_number_are_left_out() -> None:
    full, corrupted = np.array([4.0, 2.0, 1.0, np.nan]), np.array([0.0, -2.0, 1.0, 0.0])
    margins = margins_of([[4.0, 1.0], [0.0, -3.0], [9.0, 9.0], [1.0, 1.0]], full, corrupted)
    found = patching_scores(margins, n_heads=2)
    assert (found.values.tolist(), found.n_excluded) == ([[0.75, 0.0]], 2)
    margins.y_one[1, 1] = np.nan  # one head's run failed: the prompt goes from all heads
    assert patching_scores(margins, n_heads=2).values.tolist() == [[1.0, 0.25]]
    nothing_of_one = margins_of([[4.0, np.nan], [0.0, np.nan]])
    for score in (patching_scores, mediation_scores, drop_scores):
        assert score(margins, n_heads=2).n_excluded == (3 if score is patching_scores else 2)
        found = score(nothing_of_one, n_heads=2)
        assert np.isfinite(found.flat).tolist() == [True, False]
        assert (found.n_excluded, found.reason) == (0, None)


def test_effects_without_a_scale_are_undefined() -> None:
    opposed = patching_scores(margins_of(np.ones((2, 2)), np.array([1.0, -1.0]), np.zeros(2)), n_heads=2)
    without_gap = margins_of(np.ones((2, 2)), corrupted=FULL)
    nothing, same = (score(without_gap, n_heads=2) for score in (patching_scores, mediation_scores))
    for found, reason in ((opposed, "zero_denominator"), (nothing, "no_valid_prompt"), (same, None)):
        assert (found.reason, np.isnan(found.values).all()) == (reason, reason is not None)
        json.dumps(found.to_dict(), allow_nan=False)
    assert same.values.tolist() == [[2.0, 2.0]]
    assert same.details["fraction_reason"] == "zero_denominator"
    assert np.isnan(same.details["fraction"]).all()
    empty = margins_of(np.ones((0, 2)), FULL[:0], FULL[:0])
    for aggregate in ("ratio_of_sums", "mean_of_ratios"):
        assert patching_scores(empty, n_heads=2, aggregate=aggregate).reason == "no_valid_prompt"
    assert drop_scores(margins_of(np.ones((2, 2)), FULL * np.nan), n_heads=2).reason == "no_valid_prompt"


@pytest.mark.parametrize("ragged", [False, True])
def test_every_run_is_the_literal_one(model64: Model, make_task: MakeTask, ragged: bool) -> None:
    model, task = model64, make_task(ragged=ragged)
    clean, corrupted = outputs(model, task.clean), outputs(model, task.corrupted)
    turned = replace(task, clean=task.corrupted)
    full, other = (margins(literal_logits(model, each, [], clean), task) for each in (task, turned))

    def column(task: PairTask, source: list[Tensor], *, last: bool = False) -> np.ndarray:
        runs = [literal_logits(model, task, [head], source, last=last) for head in every_head(model)]
        return np.stack([margins(logits, task) for logits in runs], axis=1)

    patched = activation_patching(model, task, batch_size=4)
    expected = (column(turned, clean) - other[:, None]) / np.abs((full - other).mean())
    close = {"rtol": 1e-5, "atol": 1e-6}  # the engine sums in another order, partly in float32 tables
    np.testing.assert_allclose(patched.flat_examples, expected, **close)
    crossed, everywhere = mediation(model, task, batch_size=4), mediation(model, task, positions="all")
    assert np.abs(everywhere.flat - crossed.flat).max() > 1e-3
    zero = drop_effect(model, task, ablation="zero")
    for found, values, last in (
        (crossed, corrupted, True),
        (everywhere, corrupted, False),
        (zero, [torch.zeros_like(z) for z in clean], False),
    ):
        effect = full[:, None] - column(task, values, last=last)
        np.testing.assert_allclose(found.flat_examples, effect, **close)


@pytest.mark.parametrize("key", list(INTERVENTIONS))
def test_dropping_a_head_is_a_run_with_it_replaced(gpt2: Model, make_task: MakeTask, key: str) -> None:
    model, task = gpt2, make_task(8)
    found, draws = drop_effect(model, task, ablation=key, seed=3, batch_size=3), INTERVENTIONS[key].draws
    setting = Setting(model=model, task=task, reference=task, batch_size=8, seed=3)
    expected = np.zeros((task.n, model.n_layers * model.n_heads))
    full = margins(logits_under(model, task, key, [], setting=setting), task)
    for setting.draw in range(draws):
        for flat in range(expected.shape[1]):
            logits = logits_under(model, task, key, [divmod(flat, model.n_heads)], setting=setting)
            expected[:, flat] += (full - margins(logits, task)) / draws
    kept = np.isfinite(found.flat_examples).all(axis=1)
    assert kept.all() == (key != "resample-donor-same-class")  # no two of these prompts share an answer
    np.testing.assert_allclose(found.flat_examples[kept], expected[kept], rtol=1e-6, atol=1e-9)


def test_the_margin_is_the_objective_asked_for(gpt2: Model, make_task: MakeTask) -> None:
    model, task = gpt2, make_task()
    clean, without = (logits_under(model, task, "zero", heads).log_softmax(1) for heads in ([], [(0, 1)]))
    expected = {
        "ce": (clean - without).gather(1, task.answers)[:, 0],
        "kl": (clean.exp() * (clean - without)).sum(1),
    }
    for objective, effect in expected.items():
        found = drop_effect(model, task, objective=objective, ablation="zero")
        assert (found.unit, found.provenance["objective"]) == ("nats", objective)
        np.testing.assert_allclose(found.per_example[:, 0, 1], effect, rtol=1e-7, atol=1e-10)
