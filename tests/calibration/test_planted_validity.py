"""How often the gates err in worlds whose truth is known.

A gate promises at most 5 % false passes and 5 % false fails; `allowed` is what such a gate exceeds in one
count of a hundred. The power is that of a reference simulation, less the same slack.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from assay.calibration.agreement import convergent_validity, inter_rater
from assay.calibration.discriminant import discriminant_validity
from assay.calibration.distribution import distributional_characterization
from assay.calibration.multiplicity import multiple_comparisons
from assay.calibration.planted import (
    attributions,
    paired_runs,
    pooled_results,
    raters,
    role_circuit,
    shifted_heads,
    task_effects,
)
from assay.calibration.signal import derived_metrics
from assay.calibration.validity import incremental_validity, nomological_validity


REPETITIONS = 60
ALLOWED = int(stats.binom.ppf(0.99, REPETITIONS, 0.05))

World = Callable[[np.random.Generator, int], str]


def _c12(n_methods: int, n_heads: int, rho: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        scores = raters(rng, n_methods, n_heads, rho=rho)
        return convergent_validity(scores, n_boot=120, n_perm=1, seed=seed).status

    return run


def _c12_prompts(rho: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        scores = raters(rng, 3, 144, rho=rho, n_prompts=20, noise=2.0)
        return convergent_validity(scores, n_boot=100, n_perm=1, seed=seed).status

    return run


def _f59(n_heads: int, rho: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        scores = raters(rng, 3, n_heads, rho=rho)
        return inter_rater(scores, signed=tuple(scores), n_boot=120, n_perm=1, seed=seed).status

    return run


def _c14(d_prime: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        world = shifted_heads(rng, d_prime=d_prime)
        return derived_metrics(world.members, world.scores, seed=seed).status

    return run


def _c17(other: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        world = task_effects(rng, own=0.3, other=other)
        return discriminant_validity(world.effects, world.circuits, n_boot=300, seed=seed).status

    return run


def _c23(*, ordered: bool) -> World:
    return lambda rng, seed: nomological_validity(role_circuit(rng, ordered=ordered), seed=seed).status


def _c36(delta: float) -> World:
    return lambda rng, seed: incremental_validity(**vars(paired_runs(rng, delta=delta))).status


def _s1(ratio: float) -> World:
    def run(rng: np.random.Generator, seed: int) -> str:
        world = attributions(rng, ratio=ratio)
        return distributional_characterization(
            world.scores, world.members, n_boot=200, n_perm=1, seed=seed
        ).status

    return run


def _m93(n_real: int, n_null: int) -> World:
    return lambda rng, seed: multiple_comparisons(pooled_results(rng, n_real=n_real, n_null=n_null)).status


def counts(world: World) -> dict[str, int]:
    found = [world(np.random.default_rng([2024, i]), i) for i in range(REPETITIONS)]
    return {status: found.count(status) for status in ("pass", "fail", "inconclusive")}


def least(power: float) -> int:
    return int(stats.binom.ppf(0.01, REPETITIONS, power))


@pytest.mark.parametrize(
    ("world", "power"),
    [
        pytest.param(_c12(4, 144, 0.76), 1.0, id="C12"),
        pytest.param(_c12(3, 16, 0.89), 0.94, id="C12-small"),
        pytest.param(_f59(144, 0.62), 1.0, id="F59"),
        pytest.param(_c14(2.0), 0.98, id="C14"),
        pytest.param(_c17(0.02), 1.0, id="C17"),
        pytest.param(_c23(ordered=True), 1.0, id="C23"),
        pytest.param(_c36(0.2), 1.0, id="C36"),
        pytest.param(_s1(4.0), 1.0, id="S1"),
        pytest.param(_m93(30, 20), 1.0, id="M93"),
    ],
)
def test_a_gate_passes_where_it_should(world: World, power: float) -> None:
    found = counts(world)
    assert found["fail"] <= ALLOWED
    assert found["pass"] >= least(power)


@pytest.mark.parametrize(
    ("world", "power"),
    [
        pytest.param(_c12(4, 144, 0.24), 1.0, id="C12"),
        pytest.param(_c12(4, 144, 0.0), 1.0, id="C12-chance"),
        pytest.param(_c12(3, 16, 0.0), 0.92, id="C12-small"),
        pytest.param(_f59(144, 0.0), 0.995, id="F59"),
        pytest.param(_f59(12, 0.0), 0.0, id="F59-small"),
        pytest.param(_c14(0.3), 0.82, id="C14"),
        pytest.param(_c17(0.2), 1.0, id="C17"),
        pytest.param(_c23(ordered=False), 0.0, id="C23"),
        pytest.param(_c36(-0.2), 1.0, id="C36"),
        pytest.param(_s1(1.0), 1.0, id="S1"),
        pytest.param(_m93(0, 50), 0.0, id="M93"),
    ],
)
def test_a_gate_fails_where_it_should(world: World, power: float) -> None:
    found = counts(world)
    assert found["pass"] <= ALLOWED
    assert found["fail"] >= least(power)


@pytest.mark.parametrize(
    "world",
    [pytest.param(_c36(0.0), id="C36"), pytest.param(_s1(2.0), id="S1")],
)
def test_at_the_threshold_neither_side_wins(world: World) -> None:
    found = counts(world)
    assert found["pass"] <= ALLOWED
    assert found["fail"] <= ALLOWED


def test_noise_within_prompts_does_not_fail_methods_that_agree() -> None:
    """Plain percentiles over prompts, biased towards 0 by the noise of resampling, fail most such samples."""
    assert counts(_c12_prompts(0.62))["fail"] <= ALLOWED


def test_worlds_are_what_they_say() -> None:
    rng = np.random.default_rng(7)
    scores = raters(rng, 2, 20_000, rho=0.62)
    assert stats.spearmanr(scores["method0"], scores["method1"]).statistic == pytest.approx(0.62, abs=0.02)
    heads = shifted_heads(rng, d_prime=1.5, k=10_000, n_heads=20_000)
    assert heads.scores[heads.members].mean() - heads.scores[~heads.members].mean() == pytest.approx(
        1.5, abs=0.05
    )
    circuit = role_circuit(rng, ordered=True)
    assert tuple(circuit.depths.values()) == (0, 0, 1, 2, 3, 3)
    runs = paired_runs(rng, delta=0.2, n=20_000)
    assert (runs.y_keep - runs.y_baseline).sum() / runs.y_full.sum() == pytest.approx(0.2, abs=0.01)
    effects = attributions(rng, ratio=4.0, n_prompts=20_000, n_heads=30)
    size = np.abs(effects.scores.mean(axis=0))
    assert size[effects.members].mean() / size[~effects.members].mean() == pytest.approx(4.0, abs=0.15)
