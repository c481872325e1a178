"""Correlations, raters, consistency, detection: golden values, worked cases, scipy, literal versions."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import stats as scipy_stats

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.stats import (
    auroc,
    average_precision,
    cronbach_alpha,
    d_prime,
    fagin_tau_rows,
    intraclass_correlation,
    kappa_matrix,
    kendall_tau,
    kendall_tau_rows,
    kendall_w,
    pearson,
    pearson_matrix,
    precision_at,
    spearman,
    spearman_brown,
    spearman_matrix,
    top_members,
)


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"
CONCORDANCE = json.loads((GOLDEN / "kendall_w.json").read_text())
ICC = json.loads((GOLDEN / "icc.json").read_text())


def number(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


@pytest.mark.parametrize("case", CONCORDANCE, ids=lambda case: f"{case['mode']}-{case['items']}")
def test_concordance_matches_golden_values(case: dict) -> None:
    found = kendall_w(np.array(case["scores"]), rng=stream(0, "w"), n_permutations=200)
    assert found.w.value == pytest.approx(case["W_tie_corrected"], rel=1e-9, abs=1e-12)
    pairs = found.spearman[np.triu_indices(len(found.spearman), k=1)]
    expected = np.array([number(each) for each in case["pairwise_spearman"]])
    assert pairs == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert found.mean_spearman == pytest.approx(number(case["mean_spearman"]), rel=1e-9, nan_ok=True)
    if "friedman_chi2" in case:
        assert found.chi_square.statistic == pytest.approx(case["friedman_chi2"], rel=1e-9)
        assert found.chi_square.p_value == pytest.approx(case["friedman_p"], rel=1e-9)


def test_the_permutation_test_is_exact_under_the_null_and_sees_agreement() -> None:
    rng = stream(0, "null raters")
    worlds = [kendall_w(rng.normal(size=(3, 8)), rng=rng, n_permutations=199) for _ in range(400)]
    rejected = np.mean([found.permutation.p_value <= 0.05 for found in worlds])
    assert rejected == pytest.approx(0.05, abs=3.5 * math.sqrt(0.0475 / 400))
    alike = kendall_w(np.tile(np.arange(20.0), (3, 1)), rng=rng)
    assert (alike.w.value, alike.permutation.p_value) == (1.0, 1 / 10_001)
    # Ranks (1 2 3) and (1 3 2): sums 2, 5, 5, S = 6, W = 72 / (4 * 24), which three of six orders reach.
    two = kendall_w(np.array([[1.0, 2.0, 3.0], [1.0, 9.0, 2.0]]), rng=rng)
    assert two.w.value == 0.75
    assert two.permutation.p_value == pytest.approx(0.5, abs=3.5 * 0.5 / 100)


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


def test_ties_go_to_the_lower_index_and_nan_ranks_last() -> None:
    assert np.flatnonzero(top_members(np.array([1.0, 3.0, 1.0, -0.0, 0.0]), 2)).tolist() == [0, 1]
    assert np.flatnonzero(top_members(np.array([0.0, -0.0, 0.0]), 2)).tolist() == [0, 1]
    with pytest.warns(DegenerateDataWarning, match="nan_scores: 1 scores are NaN"):
        chosen = top_members(np.array([math.nan, -math.inf, 2.0]), 2)
    assert chosen.tolist() == [False, True, True]


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


def test_the_bounds_of_consistency_hold_as_often_as_they_say() -> None:
    rng, n_worlds = stream(0, "icc worlds"), 600
    truth, misses = 0.75, np.zeros(2)  # k = 3 raters, equal variances: 3 / (3 + 1)
    for _ in range(n_worlds):
        ratings = rng.normal(size=(12, 1)) + rng.normal(size=(12, 3))
        bounds = intraclass_correlation(ratings).consistency_mean.interval
        misses += (bounds.low > truth, bounds.high < truth)
    assert (np.abs(misses / n_worlds - 0.05) < 3.5 * math.sqrt(0.0475 / n_worlds)).all()


HALVES = json.loads((GOLDEN / "spearman_brown.json").read_text())
ALPHA = json.loads((GOLDEN / "cronbach_alpha.json").read_text())
TABLES = arrays.arrays(
    np.float64,
    st.tuples(st.integers(3, 12), st.integers(2, 6)),
    elements=st.floats(-5, 5).map(lambda x: round(x, 3)),
)


def test_split_halves_match_golden_values() -> None:
    for case in HALVES["prophecy"]:
        found = spearman_brown(case["r"], factor=float(case["length_factor"]))
        assert found.value == pytest.approx(case["prophecy"], rel=1e-9)
    x = np.array(HALVES["odd_even"]["x"])
    r = pearson(x[0::2], x[1::2])
    found = (r, spearman_brown(r).value)
    assert found == pytest.approx([HALVES["odd_even"][key] for key in ("pearson_r", "corrected")], rel=1e-9)
    profile = HALVES["head_profile"]
    table = np.array(profile["effects_prompt_by_head"])
    halves = [table[profile[f"{half}_half"]].mean(axis=0) for half in ("first", "second")]
    for name, correlation in (("pearson", pearson), ("spearman", spearman)):
        corrected = spearman_brown(correlation(*halves)).value
        assert corrected == pytest.approx(profile[f"corrected_{name}"], rel=1e-9)


@pytest.mark.parametrize("case", ALPHA, ids=lambda case: f"{case['prompts']}x{case['items']}")
def test_alpha_matches_golden_values(case: dict) -> None:
    table = np.array(case["scores_prompt_by_item"])
    found = cronbach_alpha(table)
    assert found.alpha.value == pytest.approx(case["alpha"], rel=1e-9)
    for level, ends in ((0.90, case["feldt_one_sided_95"]), (0.95, case["feldt_ci95"])):
        bounds = cronbach_alpha(table, level=level).alpha.interval
        assert (bounds.low, bounds.high) == pytest.approx(ends, rel=1e-9)
    assert found.standardised.value == pytest.approx(case["standardized_alpha"], rel=1e-9)
    assert found.sign_aligned.value == pytest.approx(case["sign_aligned_alpha"], rel=1e-9)


@given(TABLES, st.integers(0, 2**32 - 1))
def test_alpha_ignores_order_and_equals_the_consistency_of_means(table: np.ndarray, seed: int) -> None:
    found = cronbach_alpha(table)
    rng = np.random.default_rng(seed)
    shuffled = cronbach_alpha(rng.permutation(rng.permutation(table), axis=1))
    assert shuffled.alpha.value == pytest.approx(found.alpha.value, rel=1e-9, abs=1e-9, nan_ok=True)
    moved = cronbach_alpha(table + np.arange(table.shape[1]))
    assert moved.alpha.value == pytest.approx(found.alpha.value, rel=1e-6, abs=1e-6, nan_ok=True)
    if found.alpha.defined and found.alpha.value > -50:
        consistency = intraclass_correlation(table).consistency_mean
        assert consistency.value == pytest.approx(found.alpha.value, rel=1e-6, abs=1e-6)
        assert consistency.interval.low == pytest.approx(found.alpha.interval.low, rel=1e-6, abs=1e-6)


DETECTION = json.loads((Path(__file__).parent.parent / "golden" / "signal_detection.json").read_text())
LABELLED = st.integers(2, 15).flatmap(
    lambda n: st.tuples(
        arrays.arrays(np.float64, n, elements=st.integers(-3, 3).map(float)), arrays.arrays(np.bool_, n)
    )
)


def test_distances_and_rankings_match_golden_values() -> None:
    for case in DETECTION["gaussian"]:
        signal, noise = np.array(case["signal"]), np.array(case["noise"])
        assert d_prime(signal, noise).value == pytest.approx(case["d_prime"], rel=1e-9)
        found = auroc(np.concatenate([signal, noise]), np.arange(len(signal) + len(noise)) < len(signal))
        assert found.value == pytest.approx(case["auroc"], rel=1e-9, abs=1e-12)
    for case in DETECTION["auroc"]:
        scores, members = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
        at_k = precision_at(scores, members, int(members.sum())).value
        values = [auroc(scores, members).value, average_precision(scores, members).value, at_k]
        names = ("auroc", "average_precision", "precision_at_k")
        assert values == pytest.approx([case[name] for name in names], rel=1e-9)


@given(LABELLED)
def test_ranking_scores_are_the_literal_ones(labelled: tuple[np.ndarray, np.ndarray]) -> None:
    scores, members = labelled
    if members.all() or not members.any():
        reason = "no_others" if members.all() else "no_members"
        for score in (auroc, average_precision):
            found = score(scores, members)
            assert math.isnan(found.value)
            assert found.reason == reason
        return
    pairs = [(a > b) + (a == b) / 2 for a in scores[members] for b in scores[~members]]
    assert auroc(scores, members).value == pytest.approx(np.mean(pairs))
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = scores >= threshold
        reached = members[taken].sum() / members.sum()
        total, recall = total + (reached - recall) * members[taken].mean(), reached
    assert average_precision(scores, members).value == pytest.approx(total)


@pytest.mark.parametrize("case", ICC, ids=lambda case: f"{case['targets']}x{case['raters']}")
def test_intraclass_correlations_match_golden_values(case: dict) -> None:
    ratings = np.array(case["ratings"])
    holed = np.vstack([ratings, np.full((1, ratings.shape[1]), math.nan)])
    found = intraclass_correlation(holed, level=0.95)
    assert found.agreement.value == pytest.approx(case["icc2_1"]["icc"], rel=1e-9)
    assert found.agreement_mean.value == pytest.approx(case["icc2_k"]["icc"], rel=1e-9)
    mean, bounds = found.consistency_mean, found.consistency_mean.interval
    assert mean.value == pytest.approx(case["icc3_k"]["icc"], rel=1e-9)
    assert (bounds.low, bounds.high) == pytest.approx(case["icc3_k"]["ci95"], rel=1e-9)


def test_what_does_not_vary_is_undefined_for_a_reason() -> None:
    rng = stream(0, "w")
    for shape in ((1, 5), (3, 1), (0, 4)):
        assert kendall_w(np.ones(shape), rng=rng).permutation.reason == "too_few"
        assert intraclass_correlation(np.ones(shape)).agreement.reason == "too_few"
    assert kendall_w(np.ones((3, 4)), rng=rng).w.reason == "zero_variance"
    assert intraclass_correlation(np.tile([0.1, 0.2, 0.7], (4, 1))).agreement.reason == "zero_variance"
    perfect = intraclass_correlation(np.tile(np.arange(5.0)[:, None] / 3, (1, 3)))
    ends = perfect.consistency_mean.interval
    assert (perfect.agreement.value, ends.low, ends.high, ends.reason) == (1.0, 1.0, 1.0, "degenerate")
    cancelling = intraclass_correlation(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    assert cancelling.consistency_mean.reason == "no_target_variance"
    assert cancelling.agreement.reason == cancelling.agreement_mean.reason == "negative_variance"
    json.dumps(cancelling.to_dict(), allow_nan=False)
    found = cronbach_alpha(np.outer(np.arange(5.0), [1.0, -1.0]))
    assert (found.alpha.reason, found.standardised.reason) == ("zero_variance", "pole")
    assert found.sign_aligned.value == pytest.approx(1.0)
    partly = cronbach_alpha(np.column_stack([np.arange(5.0), np.ones(5), np.arange(5.0)]))
    assert (partly.standardised.reason, partly.alpha.value) == ("zero_variance", pytest.approx(0.75))
    assert partly.item_rest == pytest.approx([1.0, math.nan, 1.0], nan_ok=True)
    assert cronbach_alpha(np.ones((1, 5))).alpha.reason == "too_few"
    assert (spearman_brown(math.nan).reason, spearman_brown(-1.0).reason) == ("undefined", "pole")
    assert d_prime(np.ones(1), np.arange(4.0)).reason == "too_few"
    assert d_prime(np.full(3, 0.1) * 3, np.full(4, 0.7)).reason == "zero_variance"
    assert precision_at(np.ones(3), np.array([True, False, True]), 0).reason == "too_few"
    assert precision_at(np.ones(3), np.array([True, False, True]), 2).value == 0.5


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda: kendall_w(np.full((2, 2), math.nan), rng=stream(0, "w")), NonFiniteError, "scores hold nan"),
        (lambda: kendall_w(np.ones((3, 4)), rng=stream(0, "w"), n_permutations=0), InputError, "at least 1"),
        (lambda: pearson_matrix(np.array([[1.0, math.nan]])), InputError, "NaN or infinite"),
        (lambda: spearman_matrix(np.array([[1.0, math.inf]])), InputError, "NaN or infinite"),
        (lambda: top_members(np.ones(3), 4), InputError, "k is 4 of 3 scores; expected .* 0 and 3"),
        (lambda: auroc(np.ones(2), np.ones(3, dtype=bool)), ShapeError, "give a flag per score"),
        (lambda: auroc(np.array([1.0, math.nan]), np.eye(2)[0] > 0), NonFiniteError, "scores hold nan"),
    ],
)
def test_bad_input_is_named(refused: Any, error: type, message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        refused()


CORRELATIONS = [pearson, spearman, kendall_tau]


PAIRS = st.integers(3, 12).flatmap(
    lambda n: st.tuples(*[arrays.arrays(np.float64, n, elements=st.integers(-5, 5)) for _ in range(2)])
)


def varies(x: np.ndarray) -> bool:
    return bool((x != x[0]).any())


@given(PAIRS)
def test_correlations_agree_with_scipy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    if not (varies(x) and varies(y)):
        return
    assert pearson(x, y) == pytest.approx(scipy_stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)
    assert kendall_tau(x, y) == pytest.approx(scipy_stats.kendalltau(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_pearson_survives_extreme_scales(scale: float) -> None:
    x, y = stream(0, "pairs").normal(size=(2, 20))
    assert pearson(scale * x, y) == pytest.approx(pearson(x, y), abs=1e-9)


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.tuples(*[arrays.arrays(np.float64, (4, n), elements=st.integers(0, 3))] * 2)
    )
)
def test_row_wise_tau_equals_the_plain_one(pair: tuple[np.ndarray, np.ndarray]) -> None:
    expected = [
        scipy_stats.kendalltau(a, b).statistic if varies(a) and varies(b) else math.nan
        for a, b in zip(*pair, strict=True)
    ]
    assert kendall_tau_rows(*pair) == pytest.approx(np.array(expected), abs=1e-12, nan_ok=True)


def test_unused_entries_do_not_count() -> None:
    x, y = np.array([[1.0, 2.0, 3.0, 9.0]]), np.array([[1.0, 2.0, 3.0, -9.0]])
    used = np.array([[True, True, True, False]])
    assert kendall_tau_rows(x, y)[0] == 0.0
    assert kendall_tau_rows(x, y, used=used)[0] == 1.0
    assert math.isnan(kendall_tau_rows(x, y, used=np.array([[True, False, False, False]]))[0])


def literal_fagin(a: list[int], b: list[int]) -> float:
    """The four rules, pair by pair."""
    distance = 0.0
    for i, j in itertools.combinations(sorted({*a, *b}), 2):
        in_a, in_b = [item for item in (i, j) if item in a], [item for item in (i, j) if item in b]
        if len(in_a) == 2 and len(in_b) == 2:
            distance += (a.index(i) < a.index(j)) != (b.index(i) < b.index(j))
        elif len(in_a) == 2 or len(in_b) == 2:
            both, single = (a, in_b) if len(in_a) == 2 else (b, in_a)
            if not single:
                distance += 0.5
            else:
                other = j if single[0] == i else i
                distance += both.index(other) < both.index(single[0])
        else:
            distance += 1
    k = len(a)
    return 1 - 2 * distance / (k * k + k * (k - 1) / 2)


@given(st.integers(1, 6).flatmap(lambda k: st.tuples(*[st.permutations(range(9)).map(lambda p: p[:k])] * 2)))
def test_fagin_equals_its_four_rules(lists: tuple[list[int], list[int]]) -> None:
    a, b = lists
    found = fagin_tau_rows(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(literal_fagin(a, b), abs=1e-12)
    assert found == pytest.approx(fagin_tau_rows(np.array([b]), np.array([a]))[0], abs=1e-12)


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_what_has_no_correlation_is_nan_with_a_warning_or_refused(correlation: Any, unchecked: None) -> None:
    flat, rising = np.full(3, 0.1), np.arange(3.0)
    for x, y in ((flat, rising), (rising, flat), (rising[:1], rising[:1]), (rising[:0], rising[:0])):
        with pytest.warns(DegenerateDataWarning, match="is undefined"):
            assert math.isnan(correlation(x, y))
    with pytest.raises(ShapeError, match=r"got shapes \(3,\) and \(2,\)"):
        correlation(np.ones(3), np.ones(2))
    with pytest.raises(InputError, match="drop those pairs first"):
        correlation(np.array([1.0, np.nan]), np.array([1.0, 2.0]))
    x = stream(0, "pairs").normal(size=20)
    assert (correlation(x, x), correlation(x, -x)) == (1.0, -1.0)  # exactly, or an interval is not degenerate
