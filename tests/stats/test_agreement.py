"""Agreement of raters against worked cases, golden values, literal versions and invariances."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats as scipy_stats

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError
from assay.core.random import stream
from assay.stats import (
    intraclass_correlation,
    kappa_matrix,
    kendall_w,
    pearson_matrix,
    spearman,
    spearman_matrix,
    top_members,
)


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
CONCORDANCE = json.loads((GOLDEN / "kendall_w.json").read_text())
KAPPA = json.loads((GOLDEN / "cohen_kappa.json").read_text())
ICC = json.loads((GOLDEN / "icc.json").read_text())
CONVERGENT = json.loads((GOLDEN / "convergent.json").read_text())
RATINGS = arrays.arrays(
    np.float64,
    st.tuples(st.integers(2, 5), st.integers(2, 9)),
    elements=st.integers(-4, 4).map(float),
)


def number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


# --------------------------------------------------------------------------------------------- concordance


@pytest.mark.parametrize("case", CONCORDANCE, ids=lambda case: f"{case['mode']}-{case['items']}")
def test_concordance_matches_golden_values(case: dict) -> None:
    found = kendall_w(np.array(case["scores"]), rng=stream(0, "w"), n_permutations=200)
    assert found.w.value == pytest.approx(case["W_tie_corrected"], rel=1e-9, abs=1e-12)
    pairs = found.spearman[np.triu_indices(found.n_raters, k=1)]
    expected = np.array([number(each) for each in case["pairwise_spearman"]])
    assert pairs == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert found.mean_spearman == pytest.approx(number(case["mean_spearman"]), rel=1e-9, nan_ok=True)
    if "friedman_chi2" in case:
        assert found.chi_square.statistic == pytest.approx(case["friedman_chi2"], rel=1e-9)
        assert found.chi_square.p_value == pytest.approx(case["friedman_p"], rel=1e-9)


def test_concordance_of_two_raters_by_hand() -> None:
    # Ranks (1 2 3) and (1 3 2): sums 2, 5, 5, S = 6, W = 72 / (4 * 24).
    found = kendall_w(np.array([[1.0, 2.0, 3.0], [1.0, 9.0, 2.0]]), rng=stream(0, "w"))
    assert found.w.value == 0.75
    # Orders of the second relative to the first with W >= 0.75: three of six.
    assert found.permutation.p_value == pytest.approx(0.5, abs=3.5 * 0.5 / 100)


@given(RATINGS, st.integers(0, 2**32 - 1))
def test_concordance_depends_on_ranks_alone(scores: np.ndarray, seed: int) -> None:
    found = kendall_w(scores, rng=np.random.default_rng(0), n_permutations=20)
    rng = np.random.default_rng(seed)
    moved = rng.permutation(np.exp(scores / 3)[:, rng.permutation(scores.shape[1])])
    other = kendall_w(moved, rng=np.random.default_rng(0), n_permutations=20)
    assert other.w.value == pytest.approx(found.w.value, nan_ok=True)
    if found.w.defined:
        assert 0 <= found.w.value <= 1 + 1e-12
    else:
        assert found.w.reason == "zero_variance"
        assert (scores == scores[:, :1]).all()


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_without_ties_concordance_is_a_mean_rank_correlation(m: int, seed: int) -> None:
    found = kendall_w(np.random.default_rng(seed).normal(size=(m, 7)), rng=stream(0, "w"), n_permutations=1)
    assert found.w.value == pytest.approx((1 + (m - 1) * found.mean_spearman) / m)


def test_the_permutation_test_is_exact_under_the_null_and_sees_agreement() -> None:
    rng = stream(0, "null raters")
    p_values = [
        kendall_w(rng.normal(size=(3, 8)), rng=rng, n_permutations=199).permutation.p_value
        for _ in range(400)
    ]
    assert np.mean(np.array(p_values) <= 0.05) == pytest.approx(0.05, abs=3.5 * math.sqrt(0.0475 / 400))
    alike = kendall_w(np.tile(np.arange(20.0), (3, 1)), rng=rng)
    assert alike.w.value == 1.0
    assert alike.permutation.p_value == 1 / 10_001


def test_all_orders_of_few_items_are_what_permutations_sample() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 4.0], [2.0, 1.0, 3.0, 3.0]])
    ranks = scipy_stats.rankdata(scores, axis=1)
    spread = [
        ((ranks[0] + ranks[1][list(order)] - 5) ** 2).sum() for order in itertools.permutations(range(4))
    ]
    exact = np.mean(np.array(spread) >= ((ranks.sum(axis=0) - 5) ** 2).sum() - 1e-9)
    found = kendall_w(scores, rng=stream(0, "orders"))
    assert found.permutation.p_value == pytest.approx(exact, abs=0.02)


def test_too_few_or_only_constant_raters_are_undefined() -> None:
    for shape in ((1, 5), (3, 1), (0, 4)):
        found = kendall_w(np.ones(shape), rng=stream(0, "w"))
        assert found.w.reason == found.chi_square.reason == found.permutation.reason == "too_few"
        assert math.isnan(found.w.value)
        json.dumps(found.to_dict(), allow_nan=False)
    assert kendall_w(np.ones((3, 4)), rng=stream(0, "w")).permutation.reason == "zero_variance"
    with pytest.raises(NonFiniteError, match="scores hold nan"):
        kendall_w(np.full((2, 2), math.nan), rng=stream(0, "w"))
    with pytest.raises(InputError, match="n_permutations is 0; expected at least 1"):
        kendall_w(np.ones((3, 4)), rng=stream(0, "w"), n_permutations=0)


@given(arrays.arrays(np.float64, (2, 3, 6), elements=st.integers(-3, 3).map(float)))
def test_matrices_of_correlations_are_the_literal_pairs(batch: np.ndarray) -> None:
    ranks, values = spearman_matrix(batch), pearson_matrix(batch)
    for at, i, j in itertools.product(range(2), range(3), range(3)):
        a, b = batch[at, i], batch[at, j]
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            assert math.isnan(ranks[at, i, j])
            assert math.isnan(values[at, i, j])
        else:
            assert ranks[at, i, j] == pytest.approx(spearman(a, b), abs=1e-12)
            assert values[at, i, j] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-12)


def test_matrices_of_correlations_at_their_limits() -> None:
    assert np.isnan(pearson_matrix(np.ones((2, 1)))).all()
    assert pearson_matrix(np.array([[1e200, 2e200], [1e-200, 3e-200]])) == pytest.approx(np.ones((2, 2)))
    for matrix in (pearson_matrix, spearman_matrix):
        with pytest.raises(InputError, match="NaN or infinite"):
            matrix(np.array([[1.0, math.nan]]))


# --------------------------------------------------------------------------------------------- chosen sets


@pytest.mark.parametrize("case", KAPPA, ids=lambda case: f"n{case['n']}-k{case['k']}")
def test_chosen_sets_and_kappa_match_golden_values(case: dict) -> None:
    members = [top_members(np.array(scores), case["k"]) for scores in case["scores"]]
    assert [np.flatnonzero(each).tolist() for each in members] == case["topk_members"]
    for key, kappa in case["pairwise_kappa"].items():
        first, second = (members[int(at)] for at in key.split("_"))
        found = kappa_matrix(np.stack([first, second]))[0, 1]
        assert found == pytest.approx(number(kappa), rel=1e-9, nan_ok=True)


def test_ties_go_to_the_lower_index_and_nan_ranks_last() -> None:
    assert np.flatnonzero(top_members(np.array([1.0, 3.0, 1.0, -0.0, 0.0]), 2)).tolist() == [0, 1]
    assert np.flatnonzero(top_members(np.array([0.0, -0.0, 0.0]), 2)).tolist() == [0, 1]
    with pytest.warns(DegenerateDataWarning, match="nan_scores: 1 scores are NaN"):
        chosen = top_members(np.array([math.nan, -math.inf, 2.0]), 2)
    assert chosen.tolist() == [False, True, True]
    for k in (-1, 4):
        with pytest.raises(InputError, match=f"k is {k} of 3 scores; expected a number between 0 and 3"):
            top_members(np.ones(3), k)


@given(arrays.arrays(np.bool_, (3, 12)))
def test_kappa_is_symmetric_and_blind_to_which_category_counts(members: np.ndarray) -> None:
    matrix = kappa_matrix(members)
    assert np.array_equal(matrix, matrix.T, equal_nan=True)
    assert kappa_matrix(~members) == pytest.approx(matrix, nan_ok=True)
    for row in range(3):
        if 0 < members[row].sum() < 12:
            assert matrix[row, row] == 1.0
    a, b = members[0], members[1]
    agreement = np.mean(a == b)
    chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    if chance < 1:
        assert matrix[0, 1] == pytest.approx((agreement - chance) / (1 - chance), abs=1e-12)


# ------------------------------------------------------------------------------------ intraclass correlation


@pytest.mark.parametrize("case", ICC, ids=lambda case: f"{case['targets']}x{case['raters']}")
def test_intraclass_correlations_match_golden_values(case: dict) -> None:
    found = intraclass_correlation(np.array(case["ratings"]), level=0.95)
    assert (found.ms_targets, found.ms_raters, found.ms_error) == pytest.approx(
        (case["ms_targets"], case["ms_raters"], case["ms_error"]), rel=1e-9
    )
    forms = {
        "icc2_1": found.agreement,
        "icc2_k": found.agreement_mean,
        "icc3_1": found.consistency,
        "icc3_k": found.consistency_mean,
    }
    for name, estimate in forms.items():
        assert estimate.value == pytest.approx(case[name]["icc"], rel=1e-9)
        assert estimate.interval is not None
        assert (estimate.interval.low, estimate.interval.high) == pytest.approx(case[name]["ci95"], rel=1e-9)
    assert found.targets_test.statistic == pytest.approx(case["icc3_1"]["F"], rel=1e-9)
    assert found.targets_test.p_value == pytest.approx(case["icc3_1"]["p"], rel=1e-9)


@pytest.mark.parametrize("case", CONVERGENT, ids=lambda case: f"{len(case['scores'])}-methods")
def test_scores_of_several_methods_match_golden_values(case: dict) -> None:
    table = np.array([[scores[head] for head in case["common_heads"]] for scores in case["scores"].values()])
    rho = spearman_matrix(table)
    assert rho[np.triu_indices(len(table), k=1)].mean() == pytest.approx(case["mean_rho"], rel=1e-9)
    scaled = (table - table.mean(axis=1, keepdims=True)) / table.std(axis=1, ddof=1, keepdims=True)
    for key, scores in (("icc_raw", table), ("icc_zscored", scaled)):
        found = intraclass_correlation(scores.T)
        assert found.agreement.value == pytest.approx(case[key]["icc2_1"], rel=1e-9)
        assert found.agreement_mean.value == pytest.approx(case[key]["icc2_k"], rel=1e-9)


def test_one_sided_bounds_of_the_mean_are_those_of_f() -> None:
    found = intraclass_correlation(np.array(ICC[0]["ratings"])).consistency_mean
    f = ICC[0]["icc3_1"]["F"]
    assert found.interval is not None
    assert found.interval.level == 0.90
    assert found.interval.low == pytest.approx(1 - scipy_stats.f.ppf(0.95, 7, 14) / f)
    assert found.interval.high == pytest.approx(1 - scipy_stats.f.ppf(0.05, 7, 14) / f)


def test_rows_with_missing_cells_are_dropped_and_counted() -> None:
    ratings = np.array(ICC[0]["ratings"])
    holed = np.vstack([ratings, [[math.nan, 1.0, 2.0], [1.0, math.inf, 2.0]]])
    found = intraclass_correlation(holed)
    assert found.n_dropped == 2
    assert found.n_targets == len(ratings)
    assert found.agreement == intraclass_correlation(ratings).agreement


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 10), st.floats(-3, 3))
def test_intraclass_correlations_ignore_unit_and_order(seed: int, scale: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    ratings = rng.normal(size=(6, 1)) + rng.normal(size=(6, 3))
    found = intraclass_correlation(ratings)
    moved = intraclass_correlation(rng.permutation(scale * ratings + shift)[:, [2, 0, 1]])
    for name in ("agreement", "agreement_mean", "consistency", "consistency_mean"):
        assert getattr(moved, name).value == pytest.approx(getattr(found, name).value, rel=1e-6, abs=1e-9)
    shifted = intraclass_correlation(ratings + np.array([0.0, 5.0, -9.0]))
    assert shifted.consistency.value == pytest.approx(found.consistency.value, rel=1e-6, abs=1e-9)
    assert shifted.agreement.value < max(found.agreement.value, 0.5)


def test_ratings_without_variance() -> None:
    same = intraclass_correlation(np.full((4, 3), 0.1) * 3)
    shifted = intraclass_correlation(np.tile([0.1, 0.2, 0.7], (4, 1)))
    for found in (same, shifted):
        for name in ("agreement", "agreement_mean", "consistency", "consistency_mean"):
            estimate = getattr(found, name)
            assert math.isnan(estimate.value)
            assert estimate.reason == "zero_variance"
            assert not estimate.interval.defined
    perfect = intraclass_correlation(np.tile(np.arange(5.0)[:, None] / 3, (1, 3)))
    for name in ("agreement", "agreement_mean", "consistency", "consistency_mean"):
        estimate = getattr(perfect, name)
        assert (estimate.value, estimate.interval.low, estimate.interval.high) == (1.0, 1.0, 1.0)
        assert estimate.interval.reason == "degenerate"
    additive = intraclass_correlation(np.arange(4.0)[:, None] + np.array([0.0, 2.0, 1.0]))
    assert additive.consistency.value == additive.consistency_mean.value == 1.0
    assert (
        0 < additive.agreement.interval.low < additive.agreement.value < additive.agreement.interval.high < 1
    )
    cancelling = intraclass_correlation(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert cancelling.consistency_mean.reason == "no_target_variance"
    assert cancelling.consistency.value == -1.0
    assert cancelling.agreement.reason == cancelling.agreement_mean.reason == "negative_variance"
    for shape in ((1, 3), (4, 1), (0, 2)):
        few = intraclass_correlation(np.ones(shape))
        assert few.agreement.reason == few.targets_test.reason == "too_few"
        json.dumps(few.to_dict(), allow_nan=False)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 4))
def test_bounds_enclose_the_estimate(seed: int, n: int, k: int) -> None:
    found = intraclass_correlation(np.random.default_rng(seed).normal(size=(n, k)))
    for name in ("agreement", "agreement_mean", "consistency", "consistency_mean"):
        estimate = getattr(found, name)
        if estimate.defined:
            assert estimate.value <= 1
            if name.startswith("consistency"):
                assert estimate.interval.low <= estimate.value <= estimate.interval.high <= 1


def test_the_bounds_of_consistency_hold_as_often_as_they_say() -> None:
    rng, n_worlds = stream(0, "icc worlds"), 600
    truth, misses = 0.75, np.zeros(2)  # k = 3 raters, equal variances: 3 / (3 + 1)
    for _ in range(n_worlds):
        ratings = rng.normal(size=(12, 1)) + rng.normal(size=(12, 3))
        bounds = intraclass_correlation(ratings).consistency_mean.interval
        assert bounds is not None
        misses += (bounds.low > truth, bounds.high < truth)
    assert (np.abs(misses / n_worlds - 0.05) < 3.5 * math.sqrt(0.0475 / n_worlds)).all()
