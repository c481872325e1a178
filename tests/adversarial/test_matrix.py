from collections.abc import Callable

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from assay.analyses.worst_case import matrix
from assay.analyses.worst_case.matrix import fit_table, matrix_search
from assay.core.errors import InputError, NonFiniteError, ShapeError


class Table:
    """A table that counts what is asked of it."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.asked: list[tuple[int, int]] = []

    def __call__(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        self.asked += list(zip(rows.tolist(), columns.tolist(), strict=True))
        return np.asarray(self.values[rows, columns])


def low_rank(n: int, m: int, rank: int, seed: int) -> np.ndarray:
    draws = np.random.default_rng(seed)
    effects = np.add.outer(draws.exponential(size=n), draws.exponential(size=m))
    return np.asarray(effects + draws.standard_normal((n, rank)) @ draws.standard_normal((rank, m)))


def everything(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.indices(shape).reshape(2, -1)
    return rows, columns


# ---------------------------------------------------------------------------------------------- the fit


def test_one_sweep_by_hand() -> None:
    """Known: (0,0)=1, (0,1)=3, (1,0)=5; their mean is 3 and their variance 8/3.

    In units of the standard deviation: mu = 3; a_0 = (-2 + 0)/(2 + 1) = -2/3, a_1 = 2/(1 + 1) = 1; then
    b_0 = (-2 + 2/3 + 2 - 1)/(2 + 1) = -1/9, b_1 = (0 + 2/3)/(1 + 1) = 1/3.
    """
    fit = fit_table(np.array([0, 0, 1]), np.array([0, 1, 0]), np.array([1.0, 3.0, 5.0]), (2, 2), sweeps=1)
    expected = 3 + np.add.outer([-2 / 3, 1], [-1 / 9, 1 / 3])
    np.testing.assert_allclose(fit.prediction, expected, rtol=1e-12)


def test_a_step_for_the_factors_is_the_ridge_solution_of_each_row() -> None:
    draws = np.random.default_rng(1)
    rows, columns = np.array([0, 0, 0, 2, 2, 1]), np.array([0, 1, 3, 1, 2, 3])
    rest, others = draws.standard_normal(6), draws.standard_normal((4, 2))
    found = matrix._TableSide(rows, columns, 4).factors(rest, others)
    for row in range(4):
        design = others[columns[rows == row]]
        left = design.T @ design + matrix.FACTOR_PENALTY * np.eye(2)
        np.testing.assert_allclose(
            found[row], np.linalg.solve(left, design.T @ rest[rows == row]), atol=1e-12
        )
    assert not found[3].any()  # a row without known entries has no factors


def test_the_fit_is_where_every_step_leaves_it() -> None:
    """After many sweeps the gradient of the penalised squares is zero in the row effects."""
    table = low_rank(12, 9, 0, seed=3)
    rows, columns = everything(table.shape)
    fit = fit_table(rows, columns, table.ravel(), table.shape, sweeps=300)
    a = (fit.prediction - fit.prediction.mean(0)).mean(1) / table.std()  # effects up to a common shift
    residual = (table - fit.prediction) / table.std()
    np.testing.assert_allclose(residual.sum(1) - residual.sum(1).mean(), a - a.mean(), atol=1e-9)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_table_of_the_fitted_form_is_nearly_recovered_from_a_part_of_it(rank: int) -> None:
    table = low_rank(60, 50, rank, seed=rank)
    known = np.random.default_rng(0).choice(table.size, size=1500, replace=False)
    rows, columns = np.unravel_index(known, table.shape)
    fit = fit_table(rows, columns, table[rows, columns], table.shape, rank=rank, sweeps=60)
    off = (fit.prediction - table).std() / table.std()
    assert off < 0.15
    if rank:
        without = fit_table(rows, columns, table[rows, columns], table.shape, rank=0, sweeps=60)
        assert (without.prediction - table).std() / table.std() > 0.6


def test_the_slope_on_a_prior_is_found_in_its_own_unit() -> None:
    draws = np.random.default_rng(5)
    prior = draws.exponential(size=(40, 30))
    table = 7.0 * prior + 2.0
    rows, columns = draws.integers(40, size=300), draws.integers(30, size=300)
    fit = fit_table(rows, columns, table[rows, columns], table.shape, prior=prior)
    assert fit.slope == pytest.approx(7.0, rel=0.02)
    np.testing.assert_allclose(fit.prediction, table, rtol=0.05)
    scaled = fit_table(rows, columns, table[rows, columns], table.shape, prior=1000 * prior)
    np.testing.assert_allclose(scaled.prediction, fit.prediction, rtol=1e-9)


def test_a_prior_of_one_value_says_nothing() -> None:
    table = low_rank(8, 8, 0, seed=1)
    rows, columns = everything(table.shape)
    plain = fit_table(rows, columns, table.ravel(), table.shape)
    fitted = fit_table(rows, columns, table.ravel(), table.shape, prior=np.full(table.shape, 3.0))
    np.testing.assert_array_equal(fitted.prediction, plain.prediction)
    assert fitted.slope == 0


@hypothesis.given(scale=strategies.sampled_from([1e-6, 0.1, 30.0]))
def test_the_unit_of_the_values_does_not_matter(scale: float) -> None:
    table = low_rank(15, 11, 2, seed=2)
    rows, columns = everything(table.shape)
    plain = fit_table(rows, columns, table.ravel(), table.shape, rank=2)
    fitted = fit_table(rows, columns, scale * table.ravel(), table.shape, rank=2)
    np.testing.assert_allclose(fitted.prediction, scale * plain.prediction, rtol=1e-6)
    assert fitted.residual_sd == pytest.approx(scale * plain.residual_sd)


def test_equal_values_predict_themselves() -> None:
    fit = fit_table(np.array([0, 1]), np.array([1, 0]), np.array([0.25, 0.25]), (2, 3), rank=1)
    assert (fit.prediction == 0.25).all()
    assert fit.residual_sd == 0


# ------------------------------------------------------------------------------------------- the search


@hypothesis.given(
    n=strategies.integers(1, 12),
    m=strategies.integers(1, 12),
    extra=strategies.integers(0, 160),
    seed=strategies.integers(0, 3),
)
def test_the_budget_is_kept_and_no_pair_is_evaluated_twice(n: int, m: int, extra: int, seed: int) -> None:
    table = Table(low_rank(n, m, 1, seed))
    budget = max(n, m) + extra
    found = matrix_search(table, n, m, budget, seed=seed)
    assert len(table.asked) == len(set(table.asked)) == found.n_evaluations == min(budget, n * m)
    assert {i for i, _ in table.asked} == set(range(n))
    assert {j for _, j in table.asked} == set(range(m))
    assert [tuple(pair) for pair in found.pairs.tolist()] == table.asked
    np.testing.assert_array_equal(found.values, table.values[found.pairs[:, 0], found.pairs[:, 1]])


@pytest.fixture(scope="module")
def heavy() -> np.ndarray:
    """A table like those of divergences: effects times effects, and noise."""
    draws = np.random.default_rng(4)
    hard = [draws.lognormal(sigma=0.8, size=200) for _ in range(2)]
    return np.asarray(np.multiply.outer(*hard) * draws.lognormal(sigma=0.1, size=(200, 200)))


def top(table: np.ndarray, k: int) -> set[tuple[int, int]]:
    order = np.argsort(-table.ravel())[:k]
    return set(zip(*(part.tolist() for part in np.unravel_index(order, table.shape)), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_the_worst_pairs_are_found_with_a_twentieth_of_the_evaluations(heavy: np.ndarray, seed: int) -> None:
    budget = heavy.size // 20
    found = matrix_search(Table(heavy), *heavy.shape, budget, seed=seed)
    worst = {(pair.clean_index, pair.corrupted_index) for pair in found.best(10)}
    assert len(worst & top(heavy, 10)) >= 9
    drawn = np.random.default_rng(seed).choice(heavy.size, budget, replace=False)
    by_chance = set(zip(*(part.tolist() for part in np.unravel_index(drawn, heavy.shape)), strict=True))
    assert len(by_chance & top(heavy, 10)) <= 3


def test_a_prior_leads_to_where_it_points() -> None:
    draws = np.random.default_rng(7)
    prior = draws.exponential(size=(80, 80))  # no row or column stands out
    table = prior + 0.05 * draws.standard_normal((80, 80))
    found = matrix_search(Table(table), 80, 80, 320, prior=prior, seed=1)
    blind = matrix_search(Table(table), 80, 80, 320, seed=1)
    assert len({pair[:2] for pair in found.best(20)} & top(table, 20)) >= 18
    assert len({pair[:2] for pair in blind.best(20)} & top(table, 20)) <= 5


def test_one_seed_gives_one_search_and_another_seed_another(heavy: np.ndarray) -> None:
    runs = [matrix_search(Table(heavy), *heavy.shape, 900, seed=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0].pairs, runs[1].pairs)
    assert not np.array_equal(runs[0].pairs, runs[2].pairs)


def test_of_equal_values_those_of_smaller_index_come_first() -> None:
    found = matrix_search(Table(np.full((6, 7), 0.5)), 6, 7, 20, seed=0)
    assert [pair[:2] for pair in found.best(42)] == sorted(map(tuple, found.pairs.tolist()))
    first = set(map(tuple, found.pairs[:7].tolist()))
    later = [tuple(pair) for pair in found.pairs[7:].tolist()]
    assert later == [pair for pair in np.ndindex(6, 7) if pair not in first][:13]


def test_the_best_are_sorted_and_all_of_them_can_be_asked_for() -> None:
    table = low_rank(5, 4, 1, seed=8)
    found = matrix_search(Table(table), 5, 4, 20)
    best = found.best(100)
    assert [pair.value for pair in best] == sorted(table.ravel().tolist(), reverse=True)
    assert found.max == table.max() == best[0].value
    with pytest.raises(InputError, match="k is 0"):
        found.best(0)


# ---------------------------------------------------------------------------------------------- errors


def _returning(value: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda rows, columns: value[: len(rows)]


def test_bad_arguments_are_named() -> None:
    table = Table(np.ones((4, 6)))
    with pytest.raises(
        InputError, match=r"budget is 5, .* 4 clean and 6 corrupted .* takes 6; give 20 or more"
    ):
        matrix_search(table, 4, 6, 5)
    with pytest.raises(InputError, match="n_corrupted is 0"):
        matrix_search(table, 4, 0, 5)
    with pytest.raises(InputError, match="rank is -1"):
        matrix_search(table, 4, 6, 10, rank=-1)
    with pytest.raises(ShapeError, match=r"prior has shape \(6, 4\); expected \(4, 6\)"):
        matrix_search(table, 4, 6, 10, prior=np.ones((6, 4)))
    broken = np.ones((4, 6))
    broken[2, 5] = np.inf
    with pytest.raises(NonFiniteError, match=r"prior is inf for pair \(clean 2, corrupted 5\)"):
        matrix_search(table, 4, 6, 10, prior=broken)
    assert not table.asked


def test_a_value_that_is_no_number_names_its_pair() -> None:
    table = np.zeros((3, 3))
    table[1] = np.nan
    with pytest.raises(NonFiniteError, match=r"pair \(clean 1, corrupted \d\) is nan"):
        matrix_search(Table(table), 3, 3, 3)


def test_an_evaluation_of_another_length_is_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"3 pairs returned shape \(2,\)"):
        matrix_search(_returning(np.ones(2)), 3, 3, 3)
