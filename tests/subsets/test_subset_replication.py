"""Replication by examples, by halves of the models, and on examples held out."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from planted_subsets import planted_matrix
from scipy import stats as scipy_stats

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.holdout import ExampleHoldout, example_features, example_holdout
from assay.analyses.subsets.line import probit
from assay.analyses.subsets.placement import as_matrix
from assay.analyses.subsets.replication import (
    ExampleReplication,
    HalfReplication,
    example_correlations,
    replicate_examples,
    replicate_halves,
    slope_p_values,
)
from assay.analyses.subsets.selection import oodselect
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.stats import benjamini_hochberg


@pytest.fixture(scope="module")
def planted():
    """A matrix whose planted examples lie apart in the first coordinate of an embedding."""
    made = planted_matrix(100, 240, planted=0.25, slope=0.7, n_families=10, seed=3)
    generator = np.random.default_rng(0)
    inverse = np.isin(np.arange(240), made.planted)
    embedding = generator.normal(size=(240, 3))
    embedding[:, 0] += 3 * inverse
    return CorrectnessData.of(
        made.correct,
        made.id_accuracy,
        families=made.families,
        embedding=embedding,
        meta={"kind": np.where(inverse, "night", "day"), "noise": generator.normal(size=240)},
        labels=generator.integers(0, 3, 240),
    ), inverse


@pytest.fixture(scope="module")
def selection(planted):
    return oodselect(planted[0], size=40, seed=3)


@pytest.fixture(scope="module")
def null_selection():
    made = planted_matrix(100, 240, planted=0.0, n_families=10, seed=4)
    return oodselect(made.correct, made.id_accuracy, 40, families=made.families)


# ------------------------------------------------------------------------------------ example by example


@pytest.mark.parametrize("layout", ["dense", "packed"])
def test_correlations_of_examples_equal_numpy_and_constant_ones_have_none(layout):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 2, (21, 17)).astype(np.uint8)
    x[:, 3], x[:, 5] = 0, 1
    y = generator.uniform(0.3, 0.9, 21)
    found = example_correlations(as_matrix(x, layout=layout), y)
    for j in range(17):
        if j in (3, 5):
            assert math.isnan(found[j])
        else:
            assert found[j] == pytest.approx(np.corrcoef(x[:, j], probit(y))[0, 1], abs=1e-12)
    assert np.isnan(example_correlations(as_matrix(x, layout=layout), np.full(21, 0.5))).all()


def test_chunks_of_columns_change_nothing(monkeypatch):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 2, (12, 50)).astype(np.uint8), generator.uniform(0.3, 0.9, 12)
    whole = example_correlations(as_matrix(x), y)
    monkeypatch.setattr("assay.analyses.subsets.replication._ENTRIES", 12 * 7)
    # BLAS sums in an order that depends on the width.
    np.testing.assert_allclose(whole, example_correlations(as_matrix(x, layout="packed"), y), atol=1e-14)


def test_slope_p_values_equal_those_of_a_correlation_test():
    generator = np.random.default_rng(1)
    a, b = generator.normal(size=(2, 15))
    expected = scipy_stats.pearsonr(a, b, alternative="less")
    found = slope_p_values(np.array([expected.statistic, np.nan, -1.0, 1.0]), 13)
    np.testing.assert_allclose(found, [expected.pvalue, 1.0, 0.0, 1.0], atol=1e-12)
    assert np.isnan(slope_p_values(np.array([0.1]), math.nan)).all()


class TestExamples:
    def test_planted_examples_come_back_one_by_one(self, selection, planted):
        found = replicate_examples(selection)
        assert found.share_negative > 0.8
        assert found.share_discovered > 0.4
        assert found.pool_share_negative < 0.3
        assert found.pool_share_discovered < found.share_discovered
        data, test = planted[0], selection.split.test
        z = probit(data.id_accuracy[test])
        varying = np.flatnonzero(np.isfinite(found.r))
        r = [np.corrcoef(data.correct[test, selection.indices[k]], z)[0, 1] for k in varying]
        np.testing.assert_allclose(found.r[varying], r, atol=1e-12)
        assert len(varying) == 40 - found.n_constant
        df = min(selection.correlation["test"].n_eff, len(test)) - 2
        assert found.degrees_of_freedom == pytest.approx(max(df, 1.0))
        assert found.share_discovered == np.mean(benjamini_hochberg(found.p_values) <= 0.05)
        assert found.counts.sum() == len(varying)
        assert found.pool_counts.sum() <= 200

    def test_without_such_examples_none_comes_back(self, null_selection):
        found = replicate_examples(null_selection)
        assert found.share_discovered < 0.05
        assert found.share_negative < 0.8

    def test_an_example_that_all_get_right_is_no_discovery(self, selection):
        correct = selection.data.correct.copy()
        correct[:, selection.indices[:2]] = 1
        found = replicate_examples(replace(selection, data=replace(selection.data, correct=correct)))
        assert found.n_constant == replicate_examples(selection).n_constant + 2
        assert (found.p_values[:2] == 1).all()

    def test_json_brings_it_back(self, selection):
        found = replicate_examples(selection)
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert ExampleReplication.from_dict(record).to_dict() == found.to_dict()

    def test_its_errors_say_what_to_give(self, selection):
        with pytest.raises(InputError, match="level is 1"):
            replicate_examples(selection, level=1.0)
        with pytest.raises(InputError, match="load_subset"):
            replicate_examples(replace(selection, data=None))


# ---------------------------------------------------------------------------------- halves of the models


@pytest.mark.usefixtures("unchecked")
class TestHalves:
    def test_halves_agree_on_planted_examples_more_than_under_permutation(self, selection):
        found = replicate_halves(selection, n_permutations=9, workers=2)
        assert found.p_value == 0.1
        assert found.normalised > max(found.null)
        assert sum(found.n_models) == len(selection.split.train)
        assert found.kind == "group"
        assert min(found.n_units) >= 2
        assert replicate_halves(selection, n_permutations=9, workers=1).to_dict() == found.to_dict()
        assert HalfReplication.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()

    def test_it_wants_a_permutation(self, selection):
        with pytest.raises(InputError, match="n_permutations is 0"):
            replicate_halves(selection, n_permutations=0)


# ------------------------------------------------------------------------------------------ other examples


@pytest.mark.usefixtures("unchecked")
class TestHoldout:
    def test_features_that_tell_planted_examples_predict_the_subset(self, selection, planted):
        found = example_holdout(selection)
        assert found.features == "embedding"
        assert found.n_features == 3
        assert found.auroc > 0.7
        assert found.correlation.r < -0.3
        assert found.describable
        assert len(np.unique(found.predicted)) == found.size == 40
        assert planted[1][found.predicted].mean() > 0.7
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert ExampleHoldout.from_dict(record).to_dict() == found.to_dict()

    def test_noise_predicts_nothing(self, selection):
        noise = np.random.default_rng(1).normal(size=(240, 2))
        found = example_holdout(selection, noise)
        assert found.features == "given"
        assert 0.3 < found.auroc < 0.7
        assert found.correlation.r > example_holdout(selection, ["kind"]).correlation.r + 0.3

    def test_quotas_and_allowed_examples_are_kept(self, planted):
        allowed = np.arange(240) < 180
        sub = oodselect(planted[0], size=20, allowed=allowed, strata="label")
        found = example_holdout(sub, folds=3)
        assert allowed[found.predicted].all()

    def test_its_errors_say_what_to_give(self, selection):
        with pytest.raises(InputError, match="folds is 1"):
            example_holdout(selection, folds=1)
        with pytest.raises(InputError, match="cannot fill 60 folds"):
            example_holdout(selection, folds=60)
        with pytest.raises(UnknownNameError, match="kind"):
            example_holdout(selection, "kinds")
        with pytest.raises(ShapeError, match="one row for each of 240"):
            example_holdout(selection, np.zeros((3, 2)))
        bare = replace(selection.data, embedding=None, meta={}, labels=None)
        with pytest.raises(InputError, match="no embedding, metadata or labels"):
            example_holdout(replace(selection, data=bare))
        with pytest.raises(InputError, match="the data have no embedding"):
            example_holdout(replace(selection, data=bare), "embedding")


def test_metadata_become_columns_and_missing_values_one_of_their_own(planted):
    phi, name = example_features(planted[0], "meta")
    assert name == "meta"
    assert phi.shape == (240, 2 + 1 + 3)
    data = replace(
        planted[0], meta={"x": np.where(np.arange(240) < 5, np.nan, np.arange(240.0))}, labels=None
    )
    phi, name = example_features(data, ["x"])
    assert name == "x"
    assert phi.shape == (240, 2)
    assert phi[:5, 1].all()
    assert phi[0, 0] == pytest.approx(np.arange(5.0, 240.0).mean())
