"""Accuracy on the line: by hand, against independent values, and what must hold always."""

import json
import math

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.analyses.subsets.line import (
    Correlation,
    cluster_replicates,
    correlate,
    fit_line,
    line_correlation,
    line_correlations,
    probit,
)
from assay.core.errors import InputError, ShapeError


# ------------------------------------------------------------------------------------------------ by hand


def test_three_points_by_hand():
    # Probits of 0.5 and Phi(1) = 0.8413... are 0 and 1: points (0, 1), (1, 0), (0, 1), so R = -1, slope -1.
    one = scipy_stats.norm.cdf(1.0)
    x, y = np.array([0.5, one, 0.5]), np.array([one, 0.5, one])
    assert line_correlation(x, y) == pytest.approx(-1, abs=1e-12)
    line = fit_line(x, y)
    assert (line.slope, line.intercept) == pytest.approx((-1, 1))
    assert line.residual_sd == pytest.approx(0, abs=1e-12)
    assert line.max_residual == pytest.approx(0, abs=1e-12)


def test_a_line_with_residuals_by_hand():
    # In probits: x = -1, 0, 1 and y = 1, 0, 2: slope 1/2, intercept 1, residuals 1/2, -1, 1/2.
    x, y = scipy_stats.norm.cdf([-1.0, 0.0, 1.0]), scipy_stats.norm.cdf([1.0, 0.0, 2.0])
    line = fit_line(x, y)
    assert (line.slope, line.intercept, line.max_residual) == pytest.approx((0.5, 1, 1))
    assert line.residual_sd == pytest.approx(math.sqrt(1.5 / 3))
    # Eq. 2 with equality for the standard deviation of the residuals: R^2 = 1 - eta^2 / sd^2.
    assert line.r**2 == pytest.approx(1 - line.residual_sd**2 / probit(y).var())


def test_constant_accuracies_have_no_correlation():
    x = np.array([0.5, 0.6, 0.7, 0.8])
    found = correlate(x, np.zeros(4))
    assert found.degenerate
    assert math.isnan(found.r)
    assert found.frac_clipped == 1
    assert found.caution is not None
    assert math.isnan(correlate(np.full(4, 0.5), x).r)
    assert math.isnan(fit_line(np.full(4, 0.5), x).slope)


def test_bad_input_is_named(unchecked):
    x = np.array([0.5, 0.6, 0.7, 0.8])
    with pytest.raises(InputError, match=r"accuracy\[1\] is 1\.5; accuracies are fractions"):
        correlate(x, np.array([0.1, 1.5, 0.2, 0.3]))
    with pytest.raises(InputError, match=r"accuracy\[1\] is nan"):
        correlate(x, np.array([0.1, math.nan, 0.2, 0.3]))
    with pytest.raises(InputError, match=r"id_accuracy\[0\] is 50.*divide them by 100"):
        correlate(100 * x, x)
    for arguments in ((x, x[:3]), (x, x, np.array([0, 1]))):
        with pytest.raises(ShapeError, match="same models"):
            correlate(*arguments)


# ----------------------------------------------------------------------------------------------- goldens


@pytest.mark.parametrize("name", SMALL)
def test_probits_and_edges(name):
    expected, given_ = values(name), arrays(name)
    np.testing.assert_allclose(probit(given_["y"]), expected["probit_y"], rtol=1e-13)
    edge = expected["probit_edge"]
    np.testing.assert_allclose(probit(np.array(edge["inputs"])), edge["outputs"], rtol=1e-12)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("subset", ["full", "sel50", "sel10", "all_wrong"])
def test_correlations_and_intervals(name, subset):
    expected, given_ = values(name)[subset], arrays(name)
    correct = given_["X"].astype(np.int64)
    columns = {"full": np.arange(200), "all_wrong": np.arange(195, 200)}.get(subset)
    columns = given_[subset] if columns is None else columns
    accuracy = correct[:, columns].mean(axis=1)
    found = correlate(given_["y"], accuracy, seed=3)
    assert found.degenerate == expected["degenerate"]
    if found.degenerate:
        return
    np.testing.assert_allclose(accuracy, expected["acc"], rtol=1e-14)
    np.testing.assert_allclose(probit(accuracy), expected["probit_acc"], rtol=1e-12, atol=1e-14)
    assert found.r == pytest.approx(expected["pearson"], abs=1e-12)
    assert found.spearman == pytest.approx(expected["spearman"], abs=1e-12)
    assert [found.fisher_low, found.fisher_high] == pytest.approx(expected["fisher95"], abs=1e-6)
    expected_ranks = expected["spearman_bonett_wright95"]
    assert [found.spearman_low, found.spearman_high] == pytest.approx(expected_ranks, abs=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_cluster_bootstrap_of_given_draws(name):
    expected, given_ = values(name)["cluster_bootstrap"], arrays(name)
    accuracy = given_["X"][:, given_["sel50"]].mean(axis=1)
    units = given_["family"].astype(np.int64)
    found = cluster_replicates(given_["y"], accuracy, np.array(expected["draws"]), units)
    np.testing.assert_allclose(found, expected["pearson"], rtol=1e-10)


# ---------------------------------------------------------------------------------------------- always


@given(st.data())
def test_resamples_equal_their_literal_form(data):
    m = data.draw(st.integers(4, 25))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, y = rng.uniform(size=m), rng.integers(0, 5, m) / 4
    units = rng.integers(0, data.draw(st.integers(1, 6)), m)
    names = np.unique(units)
    draws = rng.choice(names, (20, len(names)))
    found = cluster_replicates(x, y, draws, units)
    for row, value in zip(draws, found, strict=True):
        models = np.concatenate([np.flatnonzero(units == unit) for unit in row])
        expected = line_correlation(x[models], y[models])
        if math.isnan(expected):
            assert math.isnan(value)
        elif not math.isnan(value):  # rounding decides between undefined and perfect in two-point resamples
            assert value == pytest.approx(expected, abs=1e-6)


@given(st.data())
def test_correlation_is_scipys_and_changes_sign_with_the_answers(data):
    m = data.draw(st.integers(4, 30))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, y = rng.uniform(0.1, 0.9, m), rng.uniform(size=m)
    r = line_correlation(x, y)
    assert r == pytest.approx(scipy_stats.pearsonr(probit(x), probit(y)).statistic, abs=1e-10)
    # probit(1 - p) = -probit(p): exact up to the rounding of 1 - p.
    assert line_correlation(x, 1 - y) == pytest.approx(-r, abs=1e-9)
    order = rng.permutation(m)
    assert line_correlation(x[order], y[order]) == pytest.approx(r, abs=1e-12)
    assert line_correlation(np.tile(x, 2), np.tile(y, 2)) == pytest.approx(r, abs=1e-12)
    np.testing.assert_allclose(line_correlations(x, np.stack([y, x])), [r, 1], atol=1e-12)


def test_every_number_survives_json():
    rng = np.random.default_rng(0)
    found = correlate(rng.uniform(size=12), rng.uniform(size=12), units=np.repeat(np.arange(4), 3))
    again = Correlation.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
    assert again == found
    undefined = correlate(rng.uniform(size=12), np.ones(12))
    assert json.dumps(undefined.to_dict(), allow_nan=False)
    assert math.isnan(Correlation.from_dict(undefined.to_dict()).low)


def test_families_widen_the_interval_of_dependent_models():
    # Ten families whose forty models each nearly repeat one another: 400 models, about 10 independent ones.
    rng = np.random.default_rng(1)
    centre = rng.normal(size=(2, 10)) * 0.6
    x, y = scipy_stats.norm.cdf(np.repeat(centre, 40, axis=1) + rng.normal(size=(2, 400)) * 0.05)
    by_model, by_family = correlate(x, y), correlate(x, y, units=np.repeat(np.arange(10), 40))
    assert by_family.high - by_family.low > 2 * (by_model.high - by_model.low)
    assert by_family.n_eff < 40 < by_model.n_eff <= 400
    assert by_family.n_units == 10
    assert by_family.caution is None
    few = correlate(x, y, units=np.repeat(np.arange(5), 80))
    assert few.caution is not None
    assert "5 independent units" in few.caution


def test_models_are_never_more_effective_than_they_are_many():
    # Forty models on a line: resamples hardly differ, as if there were hundreds of models.
    rng = np.random.default_rng(0)
    x = np.linspace(0.2, 0.9, 40)
    found = correlate(x, np.clip(x + rng.normal(size=40) * 1e-3, 0, 1))
    assert found.n_eff == 40


@pytest.mark.parametrize("name", SMALL)
def test_one_more_model_and_one_more_example(name):
    given_, golden = arrays(name), values(name)
    correct, y = given_["X"].astype(np.int64), given_["y"]
    accuracy = correct.mean(axis=1)
    for case in golden["lemma1"]:
        models = given_["order"][: case["n"] + 1]
        found = [line_correlation(y[each], accuracy[each]) for each in (models[:-1], models)]
        assert found == pytest.approx([case["r0"], case["r1"]], rel=1e-12)
    for case in golden["lemma2"]:
        chosen = [*case["base"], case["added"]]
        found = [line_correlation(y, correct[:, each].mean(axis=1)) for each in (chosen[:-1], chosen)]
        assert found == pytest.approx([case["r0"], case["r1"]], rel=1e-12)
