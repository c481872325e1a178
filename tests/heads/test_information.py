import math

import numpy as np
import pytest

from assay.discovery.heads import HeadScores
from assay.discovery.heads.information import causation_entropy
from assay.discovery.heads.membership import separation, set_overlap
from assay.discovery.heads.scores import member_flags


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
    members = np.zeros(12, dtype=bool)
    members[[1, 7]] = True
    assert separation(found.flat, members).auroc == 1.0
    assert set_overlap(member_flags(tuple(found.details["parents"]), 2, 6), members).f1 == 1.0
    assert found.flat[2] < 0.02  # alone the echo knows almost as much as x_1
    assert causation_entropy(scores_of(x), y, max_parents=0).flat[2] > 0.3
    assert found.warnings == ()
    assert found.unit == "nats"


def test_dense_scores_are_partial_correlations_given_the_other_parents() -> None:
    x, y = planted(seed=3)
    found = causation_entropy(scores_of(x), y)
    parents = np.flatnonzero(member_flags(tuple(found.details["parents"]), 2, 6)).tolist()
    for j in range(12):
        others = x[:, [parent for parent in parents if parent != j]]
        assert found.flat[j] == pytest.approx(literal_information(x[:, j], y, others), rel=1e-9, abs=1e-12)
    assert found.details["gains"][0] == pytest.approx(
        literal_information(x[:, parents[0]], y, np.empty((300, 0)))
    )


def test_pure_noise_rarely_has_parents() -> None:
    draw = np.random.default_rng(5)
    chosen = [
        causation_entropy(scores_of(draw.standard_normal((200, 8))), draw.standard_normal(200), seed=i)
        for i in range(60)
    ]
    with_parents = sum(bool(found.details["parents"]) for found in chosen)
    assert with_parents <= 9  # 5 % of 60 is 3; more than 9 has probability 0.001


def test_a_copy_of_the_target_has_the_highest_information() -> None:
    x, y = planted()
    x[:, 4] = 3 - 2 * y
    found = causation_entropy(scores_of(x), y)
    assert found.flat[4] == pytest.approx(-0.5 * math.log(0.002))
    assert found.details["parents"] == [(0, 4)]
    assert found.flat[[1, 7]] == pytest.approx([0, 0], abs=1e-12)  # nothing is left to tell


def test_undefined_cases_have_reasons() -> None:
    x, y = planted(9)  # at most two parents
    bounded = causation_entropy(scores_of(x), y, permutations=1)
    assert len(bounded.details["parents"]) <= 2
    assert bounded.warnings == ("fewer_than_200_examples",)
    few = causation_entropy(scores_of(x[:6]), y[:6])
    assert (few.reason, np.isnan(few.values).all()) == ("too_few", True)
    constant = causation_entropy(scores_of(planted(20)[0]), np.ones(20))
    assert (constant.reason, np.isnan(constant.values).all()) == ("constant_target", True)


def test_examples_that_are_not_finite_are_left_out() -> None:
    x, y = planted(60)
    spoiled, target = x.copy(), y.copy()
    spoiled[3, 5], target[7] = np.nan, np.inf
    found = causation_entropy(scores_of(spoiled), target)
    kept = np.delete(np.arange(60), [3, 7])
    expected = causation_entropy(scores_of(x[kept]), y[kept])
    np.testing.assert_array_equal(found.flat, expected.flat)
    assert (found.details["n"], found.details["n_excluded"]) == (58, 2)
