"""Planted tables hold what they say."""

import numpy as np
import pytest
from planted import (
    attributions,
    head_effects,
    items,
    methods,
    output_logits,
    paired_runs,
    pooled_results,
    profile,
    raters,
    role_circuit,
    runs,
    shifted_heads,
    task_effects,
)
from scipy import stats

from assay.core.errors import InputError


def test_runs_have_the_faithfulness_and_spread_asked_for() -> None:
    made = runs(np.random.default_rng(0), 30_000, sd=0.3, faithfulness=0.7, shifts=(-0.1, 0.0, 0.1))
    influence = (made.y_circuit - 0.7 * made.y_full) / made.y_full.mean()
    assert made.y_circuit.sum() / made.y_full.sum() == pytest.approx(0.7, abs=0.01)
    for group, shift in enumerate((-0.1, 0.0, 0.1)):
        members = made.groups == group
        assert influence[members].mean() == pytest.approx(shift, abs=0.01)
        assert influence[members].std() == pytest.approx(0.3, rel=0.03)


def test_methods_differ_by_their_shifts() -> None:
    full, found = methods(np.random.default_rng(1), 20_000, sd=0.3, shifts=(0.0, -0.2, 0.1))
    scores = [each.sum() / full.sum() for each in found.values()]
    assert scores == pytest.approx([0.8, 0.6, 0.9], abs=0.01)
    with pytest.raises(InputError, match="2 shifts for 3 methods"):
        methods(np.random.default_rng(1), 10, sd=0.3, shifts=(0.0, 0.1))


def test_profiles_and_items_have_the_reliability_asked_for() -> None:
    effects = profile(np.random.default_rng(2), 40, 20_000, reliability=0.7)
    assert effects.mean(axis=0).var() == pytest.approx(1 / 0.7, rel=0.05)  # ICC(3,k): 1 of that is the heads'
    table = items(np.random.default_rng(3), 20_000, 15, alpha=0.88)
    alpha = 15 / 14 * (1 - table.var(axis=0).sum() / table.sum(axis=1).var())
    assert alpha == pytest.approx(0.88, abs=0.01)


def test_scores_of_heads_agree_as_asked() -> None:
    scores = raters(np.random.default_rng(4), 2, 20_000, rho=0.62)
    assert stats.spearmanr(scores["method0"], scores["method1"]).statistic == pytest.approx(0.62, abs=0.02)
    sampled = raters(np.random.default_rng(4), 2, 50, rho=0.62, n_prompts=4000, noise=2.0)
    assert sampled["method0"].std(axis=0).mean() == pytest.approx(2.0, rel=0.02)


def test_members_stand_out_by_what_was_asked() -> None:
    heads = shifted_heads(np.random.default_rng(5), d_prime=1.5, k=10_000, n_heads=20_000)
    inside, outside = heads.scores[heads.members], heads.scores[~heads.members]
    assert inside.mean() - outside.mean() == pytest.approx(1.5, abs=0.05)
    effects = attributions(np.random.default_rng(6), ratio=4.0, n_prompts=20_000, n_heads=30)
    size = np.abs(effects.scores.mean(axis=0))
    assert size[effects.members].mean() / size[~effects.members].mean() == pytest.approx(4.0, abs=0.15)
    means = head_effects(np.random.default_rng(7), 20_000, (0.8, 0.0, -1.0), sd=0.5).mean(axis=0)
    assert means == pytest.approx([0.8, 0.0, -1.0], abs=0.02)


def test_circuits_act_on_their_own_task() -> None:
    made = task_effects(np.random.default_rng(8), own=0.3, other=0.1, n_prompts=4000)
    for a, members in made.circuits.items():
        for b, effects in made.effects.items():
            assert effects[:, members].mean() == pytest.approx(0.3 if a == b else 0.1, abs=0.005)


def test_roles_follow_the_pathways() -> None:
    circuit = role_circuit(np.random.default_rng(9), ordered=True)
    assert tuple(circuit.depths.values()) == (0, 0, 1, 2, 3, 3)
    assert circuit.mean_layers["r0"] < circuit.mean_layers["r5"]


def test_a_circuit_gains_what_was_asked_over_the_baseline() -> None:
    made = paired_runs(np.random.default_rng(10), delta=0.2, n=20_000)
    assert (made.y_keep - made.y_baseline).sum() / made.y_full.sum() == pytest.approx(0.2, abs=0.01)


def test_results_of_nulls_are_uniform_and_of_effects_small() -> None:
    p = np.array([each.p for each in pooled_results(np.random.default_rng(11), n_real=3000, n_null=3000)])
    assert np.median(p[3000:]) == pytest.approx(0.5, abs=0.03)
    assert (p[:3000] < 0.01).mean() > 0.8


def test_outputs_differ_by_the_noise_asked_for() -> None:
    full, circuit = output_logits(np.random.default_rng(12), 50, noise=0.5)
    assert (circuit - full).std() == pytest.approx(0.5, rel=0.02)
    assert full.std() == pytest.approx(3.0, rel=0.02)
