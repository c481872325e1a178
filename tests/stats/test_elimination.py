"""Dropping candidates that cannot be the best: sizes, errors, margins, and the loop over a growing sample."""

import math

import numpy as np
import pytest
from scipy import stats

from assay.core.errors import InputError
from assay.stats.elimination import (
    Candidates,
    eliminate,
    look_error,
    look_sizes,
    paired_leads,
)


def test_looks_double_and_end_with_everything() -> None:
    assert look_sizes(1000) == (64, 128, 256, 512, 1000)
    assert look_sizes(64) == (64,)
    assert look_sizes(20) == (20,)
    assert look_sizes(9, 2) == (2, 4, 8, 9)
    with pytest.raises(InputError, match="a sample of 0"):
        look_sizes(0)


def test_errors_of_all_looks_stay_below_the_error() -> None:
    spent = [look_error(look, 0.05) for look in range(1, 200)]
    assert spent[0] == 0.025
    assert sum(spent[:3]) == pytest.approx(0.05 * 3 / 4)
    assert sum(spent) < 0.05


def test_a_margin_is_that_of_student_and_twice_the_bias() -> None:
    draws = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 1.0]])
    found = paired_leads(Candidates(values=np.array([2.0, 0.0]), draws=draws), 3, error=0.04, n_pairs=2)
    apart = draws[:, 0] - draws[:, 1]  # 1, 2, 3, 3: mean 2.25, the lead is 2
    expected = stats.t.ppf(1 - 0.04 / 4, 2) * apart.std(ddof=1) + 2 * 0.25
    assert found.leads[0, 1] == 2.0
    assert found.margins[0, 1] == pytest.approx(expected)
    assert found.margins[1, 0] == pytest.approx(expected)
    assert found.beaten() == {}


def test_whoever_is_far_behind_is_named_with_the_surest_leader() -> None:
    rng = np.random.default_rng(0)
    values = np.array([0.0, 5.0, 9.0, math.nan])
    draws = values + rng.normal(0, [0.1, 0.1, 0.1, 0.1], (400, 4))
    found = paired_leads(Candidates(values=values, draws=draws), 1000, error=0.05, n_pairs=6)
    assert found.beaten() == {0: 2, 1: 2}
    assert np.isinf(found.margins[3]).all()


def test_replicates_that_are_often_undefined_drop_nobody() -> None:
    draws = np.tile([0.0, 9.0], (100, 1))
    draws[:6, 0] = math.nan
    sample = Candidates(values=np.array([0.0, 9.0]), draws=draws)
    assert paired_leads(sample, 100, error=0.05, n_pairs=1).beaten() == {}
    draws[5:6, 0] = 0.0
    assert paired_leads(sample, 100, error=0.05, n_pairs=1).beaten() == {0: 1}


def means(x: np.ndarray, asked: list[tuple[int, tuple[int, ...]]]):
    rng = np.random.default_rng(1)

    def measure(n: int, remaining: tuple[int, ...]) -> Candidates | None:
        asked.append((n, remaining))
        part = x[:n][:, list(remaining)]
        counts = rng.multinomial(n, np.full(n, 1 / n), 200)
        return Candidates(values=part.mean(0), draws=counts @ part / n)

    return measure


def test_losers_are_not_measured_again() -> None:
    x = np.random.default_rng(2).normal([0.0, 0.9, 1.0, -3.0], 1.0, (4096, 4))
    asked: list[tuple[int, tuple[int, ...]]] = []
    looks = eliminate(4, look_sizes(4096), means(x, asked))
    assert asked[0] == (64, (0, 1, 2, 3))
    assert looks[0].dropped.keys() == {0, 3}
    assert all(remaining == (1, 2) for _, remaining in asked[1:])
    assert looks[-1].left in ((2,), (1, 2))
    assert [look.error for look in looks[:2]] == [0.025, 0.05 / 6]


def test_it_ends_when_one_is_left() -> None:
    x = np.random.default_rng(3).normal([0.0, 5.0], 1.0, (512, 2))
    assert [look.n for look in eliminate(2, look_sizes(512), means(x, []))] == [64]
    with pytest.raises(InputError, match="1 candidates"):
        eliminate(1, (64,), means(x, []))


def test_equal_candidates_are_seldom_dropped() -> None:
    dropped = 0
    for seed in range(60):
        x = np.random.default_rng([7, seed]).normal(0.0, 1.0, (256, 3))
        dropped += any(look.dropped for look in eliminate(3, look_sizes(256), means(x, [])))
    assert dropped <= 6  # at most 5 % are; 60 draws of a share of 5 % exceed 6 in 3 of 100 cases
