"""Agreement of raters, internal consistency, detection: golden values, worked cases, literal versions."""

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

from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.stats import (
    auroc,
    average_precision,
    cronbach_alpha,
    d_prime,
    intraclass_correlation,
    kappa_matrix,
    kendall_w,
    pearson,
    pearson_matrix,
    precision_at,
    spearman,
    spearman_brown,
    spearman_matrix,
    top_members,
)


# ---------------------------------------------------------------------------------- concordance, sets, ICC


GOLDEN = Path(__file__).parent.parent / "golden" / "calibrations"


CONCORDANCE = json.loads((GOLDEN / "kendall_w.json").read_text())


KAPPA = json.loads((GOLDEN / "cohen_kappa.json").read_text())


ICC = json.loads((GOLDEN / "icc.json").read_text())


CONVERGENT = json.loads((GOLDEN / "convergent.json").read_text())


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


def test_concordance_of_two_raters_by_hand() -> None:
    # Ranks (1 2 3) and (1 3 2): sums 2, 5, 5, S = 6, W = 72 / (4 * 24).
    found = kendall_w(np.array([[1.0, 2.0, 3.0], [1.0, 9.0, 2.0]]), rng=stream(0, "w"))
    assert found.w.value == 0.75
    # Orders of the second relative to the first with W >= 0.75: three of six.
    assert found.permutation.p_value == pytest.approx(0.5, abs=3.5 * 0.5 / 100)


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


def test_the_bounds_of_consistency_hold_as_often_as_they_say() -> None:
    rng, n_worlds = stream(0, "icc worlds"), 600
    truth, misses = 0.75, np.zeros(2)  # k = 3 raters, equal variances: 3 / (3 + 1)
    for _ in range(n_worlds):
        ratings = rng.normal(size=(12, 1)) + rng.normal(size=(12, 3))
        bounds = intraclass_correlation(ratings).consistency_mean.interval
        assert bounds is not None
        misses += (bounds.low > truth, bounds.high < truth)
    assert (np.abs(misses / n_worlds - 0.05) < 3.5 * math.sqrt(0.0475 / n_worlds)).all()


# --------------------------------------------------------------------------------------------- reliability


FOLDER = Path(__file__).parent.parent / "golden" / "calibrations"


HALVES = json.loads((FOLDER / "spearman_brown.json").read_text())


ALPHA = json.loads((FOLDER / "cronbach_alpha.json").read_text())


TABLES = arrays.arrays(
    np.float64,
    st.tuples(st.integers(3, 12), st.integers(2, 6)),
    elements=st.floats(-5, 5).map(lambda x: round(x, 3)),
)


@pytest.mark.parametrize("case", HALVES["prophecy"], ids=str)
def test_prophecy_matches_golden_values(case: dict) -> None:
    found = spearman_brown(case["r"], factor=float(case["length_factor"]))
    assert found.value == pytest.approx(case["prophecy"], rel=1e-9)


def test_split_halves_match_golden_values() -> None:
    x = np.array(HALVES["odd_even"]["x"])
    r = pearson(x[0::2], x[1::2])
    assert r == pytest.approx(HALVES["odd_even"]["pearson_r"], rel=1e-9)
    assert spearman_brown(r).value == pytest.approx(HALVES["odd_even"]["corrected"], rel=1e-9)
    profile = HALVES["head_profile"]
    table = np.array(profile["effects_prompt_by_head"])
    first, second = table[profile["first_half"]].mean(axis=0), table[profile["second_half"]].mean(axis=0)
    assert spearman_brown(pearson(first, second)).value == pytest.approx(
        profile["corrected_pearson"], rel=1e-9
    )
    assert spearman_brown(spearman(first, second)).value == pytest.approx(
        profile["corrected_spearman"], rel=1e-9
    )


@pytest.mark.parametrize("case", ALPHA, ids=lambda case: f"{case['prompts']}x{case['items']}")
def test_alpha_matches_golden_values(case: dict) -> None:
    table = np.array(case["scores_prompt_by_item"])
    found = cronbach_alpha(table)
    assert found.alpha.value == pytest.approx(case["alpha"], rel=1e-9)
    for level, ends in ((0.90, case["feldt_one_sided_95"]), (0.95, case["feldt_ci95"])):
        bounds = cronbach_alpha(table, level=level).alpha.interval
        assert bounds is not None
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
        assert consistency.interval is not None
        assert found.alpha.interval is not None
        assert consistency.interval.low == pytest.approx(found.alpha.interval.low, rel=1e-6, abs=1e-6)


# ----------------------------------------------------------------------------------------------- detection


DETECTION = json.loads((Path(__file__).parent.parent / "golden" / "signal_detection.json").read_text())


LABELLED = st.integers(2, 15).flatmap(
    lambda n: st.tuples(
        arrays.arrays(np.float64, n, elements=st.integers(-3, 3).map(float)), arrays.arrays(np.bool_, n)
    )
)


@pytest.mark.parametrize("case", DETECTION["gaussian"], ids=lambda case: str(len(case["signal"])))
def test_distances_of_groups_match_golden_values(case: dict) -> None:
    signal, noise = np.array(case["signal"]), np.array(case["noise"])
    assert d_prime(signal, noise).value == pytest.approx(case["d_prime"], rel=1e-9)
    found = auroc(np.concatenate([signal, noise]), np.arange(len(signal) + len(noise)) < len(signal))
    assert found.value == pytest.approx(case["auroc"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", DETECTION["auroc"], ids=["continuous", "ties"])
def test_ranking_scores_match_golden_values(case: dict) -> None:
    scores, members = np.array(case["scores"]), np.array(case["labels"], dtype=bool)
    k = int(members.sum())
    assert auroc(scores, members).value == pytest.approx(case["auroc"], rel=1e-9)
    assert average_precision(scores, members).value == pytest.approx(case["average_precision"], rel=1e-9)
    assert precision_at(scores, members, k).value == pytest.approx(case["precision_at_k"], rel=1e-9)


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


# ------------------------------------------------------------------------------------------- at the limits


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
        (lambda: top_members(np.ones(3), 4), InputError, "k is 4 of 3 scores"),
        (lambda: auroc(np.ones(2), np.ones(3, dtype=bool)), ShapeError, "give a flag per score"),
        (
            lambda: auroc(np.array([1.0, math.nan]), np.array([True, False])),
            NonFiniteError,
            "scores hold nan",
        ),
    ],
)
def test_bad_input_is_named(refused: Any, error: type, message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        refused()
