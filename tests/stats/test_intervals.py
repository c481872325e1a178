"""Intervals against worked cases, golden values, scipy and their own coverage."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.core.errors import InputError
from assay.core.random import stream
from assay.stats import (
    bootstrap_interval,
    clopper_pearson,
    delta_interval,
    draw_counts,
    fieller_interval,
    fisher_z_interval,
    ratio_of,
)


GOLDEN = Path(__file__).parent.parent / "golden"
BOOTSTRAP = json.loads((GOLDEN / "bootstrap.json").read_text())


def ratio(sums: np.ndarray, n: int) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def mean(sums: np.ndarray, n: int) -> np.ndarray:
    return np.asarray(sums[..., 0] / n)


# ------------------------------------------------------------------------------------------- bootstrap


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_of_a_ratio_matches_golden_values_on_the_same_draws(case: dict, method: str) -> None:
    values = np.array([case["num"], case["den"]])
    draws = np.array(case["index_draws"])
    interval = bootstrap_interval(
        values, ratio, rng=stream(0, "unused"), method=method, draws=draws, n_resamples=len(draws)
    )
    expected = case[f"{method}_95"]
    if expected is None:  # degenerate: the file says that both ends are the point
        expected = [case["faithfulness"]] * 2
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
def test_replicates_of_a_ratio_match_golden_values(case: dict) -> None:
    values = np.array([case["num"], case["den"]])
    draws = np.array(case["index_draws"])
    sums = draw_counts(values.shape[1], len(draws), stream(0, "unused"), draws) @ values.T
    replicates = ratio_of("num", "den").of_sums(sums, values.shape[1])
    np.testing.assert_allclose(replicates, case["boot_values"], rtol=1e-9)


def test_bca_agrees_with_scipy_on_a_skewed_sample() -> None:
    values = stream(3, "skewed").exponential(size=60)
    ours = bootstrap_interval(values[None], mean, rng=stream(3, "draws"), n_resamples=20_000)
    theirs = scipy_stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(5)
    ).confidence_interval
    # Two independent sets of 20,000 resamples: Monte-Carlo error of an end is about 1 % of the half-width.
    tolerance = 0.02 * (ours.high - ours.low)
    assert ours.low == pytest.approx(theirs.low, abs=tolerance)
    assert ours.high == pytest.approx(theirs.high, abs=tolerance)


def test_bca_of_a_skewed_sample_leans_to_the_long_tail() -> None:
    values = stream(3, "skewed").exponential(size=40)
    interval = bootstrap_interval(values[None], mean, rng=stream(0, "draws"))
    assert interval.high - values.mean() > values.mean() - interval.low > 0


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_covers_about_as_often_as_it_says(method: str) -> None:
    rng = stream(11, "coverage")
    hits = 0
    for _ in range(200):
        interval = bootstrap_interval(
            rng.normal(2.0, 1.0, (1, 60)), mean, rng=rng, method=method, n_resamples=400
        )
        hits += 2.0 in interval
    # 95 % nominal, a little below at n = 60; 200 trials have a standard error of 1.6 points.
    assert 0.88 <= hits / 200 <= 0.99


def test_counts_add_up_and_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.stats import intervals

    whole = draw_counts(7, 50, stream(1, "counts"))
    monkeypatch.setattr(intervals, "_BLOCK", 21)
    assert (draw_counts(7, 50, stream(1, "counts")) == whole).all()
    assert (whole.sum(axis=1) == 7).all()


def test_the_same_stream_gives_the_same_interval() -> None:
    values = stream(0, "data").normal(size=(1, 30))
    first, second = (bootstrap_interval(values, mean, rng=stream(5, "draws")) for _ in range(2))
    assert first == second
    assert first != bootstrap_interval(values, mean, rng=stream(6, "draws"))


def test_a_higher_level_is_wider() -> None:
    values = stream(0, "data").normal(size=(1, 30))
    narrow, wide = (
        bootstrap_interval(values, mean, rng=stream(5, "draws"), level=level) for level in (0.8, 0.99)
    )
    assert wide.low < narrow.low < values.mean() < narrow.high < wide.high


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_examples_have_no_interval(n: int) -> None:
    interval = bootstrap_interval(np.ones((1, n)), mean, rng=stream(0, "draws"))
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.reason == "too_few"


def test_constant_data_give_the_point_and_say_so() -> None:
    interval = bootstrap_interval(np.full((1, 9), 0.1), mean, rng=stream(0, "draws"))
    assert (interval.low, interval.high) == (pytest.approx(0.1), pytest.approx(0.1))
    assert interval.low == interval.high
    assert interval.reason == "degenerate"


def test_undefined_replicates_leave_the_interval_undefined() -> None:
    values = np.array([[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]])  # a third of the draws has no denominator
    interval = bootstrap_interval(values, ratio_of("a", "b")._of_pair, rng=stream(0, "draws"))
    assert interval.reason == "undefined_replicates"
    assert not interval.defined


def test_bca_falls_back_to_percentiles_when_all_replicates_lie_on_one_side() -> None:
    def away(sums: np.ndarray, n: int) -> np.ndarray:
        total = np.asarray(sums[..., 0])
        return np.where(total == 6.0, 100.0, total)

    # None of the given draws reaches the sum of the sample itself, which the function sends far away.
    values = np.array([[1.0, 2.0, 3.0]])
    draws = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 1]] * 10)
    interval = bootstrap_interval(values, away, rng=stream(0, "draws"), draws=draws, n_resamples=30)
    assert (interval.method, interval.reason) == ("percentile", "bca_undefined")


def test_an_unknown_bootstrap_method_is_refused() -> None:
    with pytest.raises(InputError, match="unknown bootstrap method .basic.; did you mean .bca"):
        bootstrap_interval(np.ones((1, 3)), mean, rng=stream(0, "draws"), method="basic")


@pytest.mark.parametrize("n_resamples", [0, -3])
def test_no_resamples_are_refused(n_resamples: int) -> None:
    with pytest.raises(InputError, match="n_resamples"):
        draw_counts(3, n_resamples, stream(0, "draws"))


# ------------------------------------------------------------------------------------------- delta, Fieller


def test_delta_interval_of_a_mean_is_students() -> None:
    values = np.array([1.0, 2.0, 4.0, 7.0])
    expected = scipy_stats.t.interval(0.9, 3, values.mean(), scipy_stats.sem(values))
    interval = delta_interval(values.mean(), values, level=0.9)
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("case", BOOTSTRAP, ids=lambda case: case["name"])
def test_linearised_values_match_the_golden_influence_and_standard_error(case: dict) -> None:
    values = np.array([case["num"], case["den"]])
    linear = ratio_of("num", "den").linearised(values)
    np.testing.assert_allclose(linear - case["faithfulness"], case["influence"], atol=1e-12)
    error = linear.std(ddof=1) / math.sqrt(len(linear))
    assert error == pytest.approx(case["delta_se_ddof1"], rel=1e-9, abs=1e-12)


def test_fieller_ends_solve_its_equation() -> None:
    rng = stream(2, "fieller")
    den = rng.normal(3.0, 1.0, 25)
    num = 0.7 * den + rng.normal(0.0, 0.5, 25)
    interval = fieller_interval(num, den, level=0.9)
    t = scipy_stats.t.ppf(0.95, 24)
    for end in (interval.low, interval.high):
        rest = num - end * den
        assert rest.mean() ** 2 == pytest.approx(t**2 * rest.var(ddof=1) / 25, rel=1e-9)
    assert interval.low < num.sum() / den.sum() < interval.high


def test_fieller_of_a_constant_denominator_is_students() -> None:
    num = np.array([1.0, 2.0, 4.0, 7.0])
    interval = fieller_interval(num, np.full(4, 2.0))
    student = delta_interval(num.mean() / 2, num / 2)
    assert (interval.low, interval.high) == pytest.approx((student.low, student.high), rel=1e-12)


def test_fieller_is_unbounded_where_the_denominator_may_be_zero() -> None:
    interval = fieller_interval(np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.1, 0.2]))
    assert interval.reason == "unbounded"
    assert not interval.defined


@pytest.mark.parametrize(
    "interval",
    [delta_interval(1.0, np.array([1.0])), fieller_interval(np.array([1.0]), np.array([1.0]))],
    ids=["delta", "fieller"],
)
def test_one_example_has_no_spread(interval: object) -> None:
    assert interval.reason == "too_few"  # type: ignore[attr-defined]


def test_zero_spread_is_named() -> None:
    assert delta_interval(2.0, np.full(5, 2.0)).reason == "degenerate"
    shaky = np.array([1.0, -1.1, 0.2])
    exact = fieller_interval(2 * shaky, shaky)  # every resample has this ratio, however small the sums
    assert (exact.low, exact.high, exact.reason) == (pytest.approx(2.0), pytest.approx(2.0), "degenerate")


# ------------------------------------------------------------------------------- shares, correlations


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Closed forms: 0 of n ends at 1 - (alpha/2)^(1/n), n of n starts at (alpha/2)^(1/n).
    [(0, 10, 0.0, 1 - 0.025**0.1), (10, 10, 0.025**0.1, 1.0), (1, 2, 1 - math.sqrt(0.975), math.sqrt(0.975))],
)
def test_clopper_pearson_has_its_closed_forms(successes: int, n: int, low: float, high: float) -> None:
    interval = clopper_pearson(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-12)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_clopper_pearson_mirrors_when_successes_become_failures(case: tuple[int, int]) -> None:
    successes, n = case
    interval, mirror = clopper_pearson(successes, n), clopper_pearson(n - successes, n)
    assert interval.low == pytest.approx(1 - mirror.high, abs=1e-9)
    assert 0 <= interval.low <= successes / n <= interval.high <= 1


def test_clopper_pearson_without_trials_is_undefined() -> None:
    assert clopper_pearson(0, 0).reason == "too_few"


def test_clopper_pearson_refuses_impossible_counts() -> None:
    with pytest.raises(InputError, match="successes is 4 of n = 3"):
        clopper_pearson(4, 3)


def test_fisher_z_has_its_textbook_value() -> None:
    # r = 0.5, n = 28: z = 0.5493 +- 1.96 / 5.
    interval = fisher_z_interval(0.5, 28)
    margin = scipy_stats.norm.ppf(0.975) / 5
    ends = [math.tanh(math.atanh(0.5) + sign * margin) for sign in (-1, 1)]
    assert [interval.low, interval.high] == pytest.approx(ends, rel=1e-12)


def test_fisher_z_of_ranks_is_wider() -> None:
    plain, ranks = (fisher_z_interval(0.6, 40, kind=kind) for kind in ("pearson", "spearman"))
    assert ranks.low < plain.low
    assert plain.high < ranks.high
    assert math.atanh(ranks.high) - math.atanh(0.6) == pytest.approx(
        scipy_stats.norm.ppf(0.975) * math.sqrt((1 + 0.18) / 37), rel=1e-9
    )


@given(st.floats(-0.99, 0.99), st.integers(4, 500))
def test_fisher_z_is_odd_in_r(r: float, n: int) -> None:
    interval, mirror = fisher_z_interval(r, n), fisher_z_interval(-r, n)
    assert interval.low == pytest.approx(-mirror.high, abs=1e-12)
    assert -1 <= interval.low < r < interval.high <= 1


@pytest.mark.parametrize(
    ("r", "n", "reason"), [(0.5, 3, "too_few"), (math.nan, 30, "undefined"), (1.0, 30, "degenerate")]
)
def test_fisher_z_names_degenerate_cases(r: float, n: int, reason: str) -> None:
    assert fisher_z_interval(r, n).reason == reason


def test_fisher_z_refuses_other_input() -> None:
    with pytest.raises(InputError, match="expected a correlation in"):
        fisher_z_interval(1.2, 30)
    with pytest.raises(InputError, match="known: pearson, spearman"):
        fisher_z_interval(0.2, 30, kind="kendall")
