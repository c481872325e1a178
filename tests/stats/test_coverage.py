"""Certificates hold as often as they say: several sizes, percentiles and kinds of sample, by counting.

A bound of rank k falls short of the percentile x_p exactly if at least k values lie below x_p, so coverage
needs no sorting. `experiments/certificates` does the same at length and through `certificate` itself.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import special
from scipy import stats as scipy_stats

from assay.core.random import stream
from assay.stats import certificate


EXPERIMENT = Path(__file__).parents[2] / "experiments" / "certificates"
# Effects of the clean input, of the corrupted one, and of the pair.
EFFECTS = {
    "pair": (0.0, 0.0, 1.0),
    "clean": (1.0, 0.0, 0.0),
    "both": (1.0, 1.0, 0.3),
    "weak": (0.2, 0.2, 1.0),
}


def below(kind: str, shape: tuple[int, int], p: float, n_trials: int, *, steps: bool) -> np.ndarray:
    """Whether each value lies below the percentile of its distribution, `[trials, n_clean, n_corrupted]`."""
    rows, columns, noise = EFFECTS[kind]
    rng = stream(0, f"{kind} {shape} {p} {steps}")
    values = rows * rng.normal(size=(n_trials, shape[0], 1)) + columns * rng.normal(
        size=(n_trials, 1, shape[1])
    )
    values = (
        values + noise * rng.normal(size=(n_trials, *shape))
        if noise
        else np.broadcast_to(values, (n_trials, *shape))
    )
    truth = math.hypot(*EFFECTS[kind]) * float(special.ndtri(p))
    return np.asarray(np.floor(2 * values) < math.floor(2 * truth) if steps else values < truth)


def slack(failure: float, n_trials: int) -> float:
    """Three and a half standard errors of an observed share."""
    return 3.5 * math.sqrt(failure * (1 - failure) / n_trials)


@pytest.mark.parametrize("steps", [False, True], ids=["continuous", "steps"])
@pytest.mark.parametrize(("n", "p", "delta"), [(59, 0.95, 0.95), (300, 0.9, 0.99), (700, 0.99, 0.8)])
def test_independent_values(n: int, p: float, delta: float, steps: bool) -> None:
    n_trials = 2000
    made = certificate(np.arange(float(n)), p, delta=delta)
    assert made.order is not None
    counts = below("pair", (n, 1), p, n_trials, steps=steps).sum(axis=(1, 2))
    observed = float((counts >= made.order).mean())
    assert observed <= made.failure + slack(made.failure, n_trials)
    if not steps:  # exact for continuous values
        assert observed >= made.failure - slack(made.failure, n_trials)


@pytest.mark.parametrize("steps", [False, True], ids=["continuous", "steps"])
@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.parametrize(
    ("shape", "p", "delta"), [((30, 30), 0.8, 0.9), ((60, 25), 0.7, 0.8), ((120, 120), 0.95, 0.8)]
)
def test_crossed_values(shape: tuple[int, int], p: float, delta: float, kind: str, steps: bool) -> None:
    n_trials = 600
    made = certificate(np.zeros(shape), p, delta=delta)
    assert (made.method, made.rigorous) == ("ustat", True)
    assert made.order is not None
    low = below(kind, shape, p, n_trials, steps=steps)
    observed = float((low.sum(axis=(1, 2)) >= made.order).mean())
    assert observed <= made.failure + slack(made.failure, n_trials)


def test_the_published_rule_is_no_theorem() -> None:
    # Two by two, the third smallest: 3 or 4 of 4 independent values below the median, 5/16; it says 1/4.
    made = certificate(np.zeros((2, 2)), 0.5, epsilon=0.01, method="published")
    assert (made.order, made.failure, made.rigorous) == (3, 0.25, False)
    n_trials = 20_000
    counts = below("pair", (2, 2), 0.5, n_trials, steps=False).sum(axis=(1, 2))
    observed = float((counts >= 3).mean())
    assert observed == pytest.approx(5 / 16, abs=slack(5 / 16, n_trials))
    assert observed > made.failure + slack(made.failure, n_trials)
    sound = certificate(np.zeros((2, 2)), 0.5, epsilon=0.01)
    assert sound.failure >= 5 / 16


def test_the_sound_bound_is_not_far_above_what_shared_effects_need() -> None:
    # Where only the clean input matters, the U-statistic bound may fail as often as m values of their own.
    shape, p = (400, 400), 0.9
    made, least = certificate(np.zeros(shape), p), scipy_stats.binom.ppf(0.95, 400, p) / 400
    assert made.order is not None
    assert least < made.order / 160_000 < least + 0.01


def test_crossed_pairs_taken_for_independent_ones_fail_their_claim() -> None:
    n_trials, shape, p = 400, (60, 60), 0.9
    naive = certificate(np.zeros(3600), p)
    assert naive.order is not None
    for kind in ("clean", "both"):
        counts = below(kind, shape, p, n_trials, steps=False).sum(axis=(1, 2))
        assert (counts >= naive.order).mean() > naive.failure + 0.2


def test_the_long_simulation_found_no_sound_certificate_wanting() -> None:
    found = json.loads((EXPERIMENT / "coverage.json").read_text())["records"]
    sound = [each for each in found if each["method"] in ("order-statistic", "ustat")]
    assert len(sound) > 60
    assert {each["sample"] for each in sound} == {each["sample"] for each in found}
    for each in sound:
        assert each["high"] >= each["stated"], each
        assert each["low"] <= each["observed"] <= each["high"]
    naive = [each for each in found if each["method"] == "as if independent"]
    assert min(each["high"] for each in naive) < 0.6
