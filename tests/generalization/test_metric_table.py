"""Every ranking metric against a literal version on repeated rows."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from planted_zoo import GRAPH, features_of, planted

from assay.analyses.generalization import baselines, metrics
from assay.analyses.generalization.dependency import DepthRule, dependency_depth_bias, output_depth_bias
from assay.analyses.generalization.inspection import Inspection, answers_of
from assay.analyses.generalization.metrics import DEFAULT_METRICS, METRICS, Estimate, Weights, estimate
from assay.analyses.generalization.spectra import image_groups
from assay.stats import poisson_weights
from assay.stats.intervals import draw_counts


DRAWS = 30


def rows_of(counts: Float64[np.ndarray, " n"]) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts.astype(int))


class Case(NamedTuple):
    """What one model showed, and how often each image counts."""

    target: Inspection
    known: Inspection | None
    weights: Weights

    @property
    def counts(self) -> np.ndarray:
        return self.weights.target[1:]

    @property
    def known_counts(self) -> np.ndarray:
        return self.weights.known[1:]


def drawn(shown: Inspection, seed: int) -> np.ndarray:
    return np.concatenate([baselines.once(shown.n), poisson_weights(shown.ids, DRAWS, seed=seed)])


def case(target: Inspection, known: Inspection | None, **more: object) -> Case:
    v = {} if known is None else {"known": drawn(known, 2)}
    return Case(target, known, Weights(target=drawn(target, 1), **v, **more))


@pytest.fixture
def shown() -> Case:
    return case(planted(0.4), planted(0.7, n=80))


def one(key: str, given: Case) -> Estimate:
    return estimate(METRICS[key], [given[:2]], given.weights)


def value_and_draws(key: str, given: Case) -> tuple[float, np.ndarray]:
    value, *draws = one(key, given).rows[:, 0]
    return value, np.array(draws)


def test_the_default_leaves_out_the_slowest_metric() -> None:
    assert set(METRICS) - set(DEFAULT_METRICS) == {"sharpness"}
    assert all(key == metric.key for key, metric in METRICS.items())


@pytest.mark.parametrize(
    ("key", "of"),
    [
        ("average-confidence", baselines.average_confidence),
        ("negative-entropy", baselines.average_negative_entropy),
        ("energy", baselines.energy),
    ],
)
def test_metrics_of_logits_are_resampled_by_rows(key: str, of, shown: Case) -> None:
    value, draws = value_and_draws(key, shown)
    assert value == pytest.approx(of(shown.target.logits))
    literal = np.array([of(shown.target.logits[rows_of(counts)]) for counts in shown.counts])
    if key == "energy":  # a set of N images has an inner value above log N: as of the images themselves
        literal = np.log(np.exp(literal) - np.log(shown.counts.sum(1) / shown.target.n))
    np.testing.assert_allclose(draws, literal, rtol=1e-10)


@pytest.mark.parametrize("key", ["atc", "doc"])
def test_estimates_of_accuracy_resample_both_sides(key: str, shown: Case) -> None:
    of = getattr(baselines, key)
    known, target = shown.known, shown.target
    value, draws = value_and_draws(key, shown)
    assert value == pytest.approx(of(known.logits, known.labels, target.logits))
    literal = []
    for counts, known_counts in zip(shown.counts, shown.known_counts, strict=True):
        rows, kept = rows_of(counts), rows_of(known_counts)
        literal.append(of(known.logits[kept], known.labels[kept], target.logits[rows]))
    np.testing.assert_allclose(draws, literal, rtol=1e-12)


def test_a_faultless_model_passes_every_image_in_atc() -> None:
    known = planted(0.5)
    certain = replace(known, **answers_of(10 * np.eye(4)[known.labels]))
    np.testing.assert_array_equal(one("atc", case(planted(0.3), certain)).rows, 1.0)


def test_output_bias_is_the_bias_of_the_resampled_mean(shown: Case) -> None:
    value, draws = value_and_draws("ddb-output", shown)
    assert value == pytest.approx(output_depth_bias(GRAPH, torch.from_numpy(shown.target.output_scores)))
    literal = [output_depth_bias(GRAPH, torch.from_numpy(row)) for row in shown.target.output_draws]
    np.testing.assert_allclose(draws, literal, rtol=1e-9)


@pytest.mark.parametrize("targets", ["deep", "global"])
def test_biases_of_matrices_follow_their_replicates(targets: str, shown: Case) -> None:
    ruled = shown._replace(weights=replace(shown.weights, rule=DepthRule(ratio=0.5)))
    value, draws = value_and_draws(f"ddb-{targets}", ruled)
    target = shown.target
    assert value == pytest.approx(
        dependency_depth_bias(torch.from_numpy(target.dependency), targets=targets, ratio=0.5)
    )
    literal = [
        dependency_depth_bias(torch.from_numpy(each.astype(np.float64)), targets=targets, ratio=0.5)
        for each in target.dependency_draws
    ]
    np.testing.assert_allclose(draws, literal, rtol=1e-9)


@pytest.mark.parametrize("measure", ["accuracy", "macro-f1"])
def test_performance_is_resampled_by_rows(measure: str) -> None:
    known = planted(0.3, n=30)
    labels = np.where(known.labels == 3, 2, known.labels)  # class 3 never occurs
    given = case(known, replace(known, labels=labels), measure=measure)
    value, draws = value_and_draws("id-accuracy", given)
    literal = [
        baselines.id_accuracy(known.logits[rows], labels[rows], measure=measure)
        for rows in map(rows_of, given.known_counts)
    ]
    np.testing.assert_allclose(draws, literal, rtol=1e-12)
    assert value == pytest.approx(baselines.id_accuracy(known.logits, labels, measure=measure))


def test_sharpness_is_resampled_by_batches(shown: Case) -> None:
    value, draws = value_and_draws("sharpness", shown)
    batches = shown.known.sharpness
    assert value == pytest.approx(batches.mean())
    assert len(set(np.round(draws, 12))) > 3
    assert batches.min() <= draws.min() <= draws.max() <= batches.max()


def test_one_sharpness_batch_has_a_value_and_no_interval() -> None:
    found = one("sharpness", case(planted(0.4), planted(0.7, n_batches=1)))
    assert math.isfinite(found.rows[0, 0])
    assert np.isnan(found.rows[1:]).all()


@pytest.mark.parametrize(("key", "of"), [("rankme", baselines.rankme), ("alpha-req", baselines.alpha_req)])
def test_spectra_are_linearised_around_their_value(key: str, of, shown: Case) -> None:
    (value, draws), features = value_and_draws(key, shown), features_of(0.4)
    assert value == pytest.approx(of(features), rel=1e-9)
    groups, n = image_groups(60, 0), shown.target.n
    without = np.array([of(np.delete(features, group, axis=0)) for group in groups])
    literal = []
    for counts in shown.counts:
        over = [(counts[group].mean() * n / counts.sum() - 1) * math.sqrt(len(group)) for group in groups]
        pulls = (len(groups) - 1) / len(groups) * (without.mean() - without)
        literal.append(value + sum(pulls * np.array(over)))
    np.testing.assert_allclose(draws, literal, rtol=1e-8)
    assert 0 < draws.std() < abs(value)


def test_linearised_replicates_have_the_spread_of_a_mean() -> None:
    counts = draw_counts(200, 400, np.random.default_rng(4))
    x = np.random.default_rng(5).normal(size=200)
    values = [x.mean(), *(np.delete(x, group).mean() for group in image_groups(200, 0))]
    draws = metrics.linearised(values, Weights(target=counts))
    assert draws.std() == pytest.approx(x.std() / math.sqrt(200), rel=0.35)
    assert np.corrcoef(draws, counts @ x)[0, 1] > 0.2  # paired with the resamples of the images


def test_the_prices_of_cot_give_its_value_and_the_spread_of_resampled_matches(shown: Case) -> None:
    labels, logits = shown.known.labels, shown.target.logits
    value, draws = value_and_draws("cot", shown)
    assert value == pytest.approx(baselines.cot(labels, logits))
    assert ((draws >= 0) & (draws <= 1)).all()
    match = baselines.matched(labels, logits)
    assert match.of_examples.mean() + match.of_classes[labels].mean() == pytest.approx(match.gain)
    literal = [
        baselines.cot(labels[rows_of(known_counts)], logits[rows_of(counts)])
        for counts, known_counts in zip(shown.counts, shown.known_counts, strict=True)
    ]
    # The programme is the least of its prices' sums, so prices of other weights never give less.
    assert (draws >= np.array(literal) - 1e-9).all()
    assert np.std(draws) == pytest.approx(np.std(literal), rel=0.3)


def test_agreement_line_looks_at_all_models_together() -> None:
    everyone = [case(planted(q, seed=1), planted(q + 0.2, n=80, seed=1)) for q in (0.1, 0.3, 0.5, 0.8)]
    labels = everyone[0].known.labels
    known, new = (np.stack([each[place].predictions for each in everyone]) for place in (1, 0))
    found = estimate(METRICS["agreement-line"], [each[:2] for each in everyone], everyone[0].weights)
    np.testing.assert_allclose(found.rows[0], baselines.agreement_line(known, labels, new)[0])
    rows, kept = rows_of(everyone[0].counts[7]), rows_of(everyone[0].known_counts[7])
    again = baselines.agreement_line(known[:, kept], labels[kept], new[:, rows])[0]
    np.testing.assert_allclose(found.rows[8], again)


def test_a_metric_without_enough_data_is_nan_with_its_reason() -> None:
    pair = [case(planted(q), planted(q)) for q in (0.2, 0.6)]
    found = estimate(METRICS["agreement-line"], [each[:2] for each in pair], pair[0].weights)
    assert np.isnan(found.rows).all()
    assert "at least 3 models" in found.reason
    found = one("alpha-req", case(planted(0.4, width=8), None))
    assert np.isnan(found.rows).all()
    assert "non-zero eigenvalues" in found.reason


def test_readings_are_the_same_numbers_of_all_images_under_short_names() -> None:
    target, known = planted(0.4, width=8), planted(0.7, n=80)
    values, absent = metrics.readings(("average-confidence", "doc", "alpha-req"), target, known)
    assert values == {
        "ac": pytest.approx(baselines.average_confidence(target.logits)),
        "doc": pytest.approx(baselines.doc(known.logits, known.labels, target.logits)),
    }
    assert "non-zero eigenvalues" in absent["alpha-req"]
    assert metrics.readings(("average-confidence", "doc"), target, None)[0].keys() == {"ac"}


def test_what_predicts_best_is_highest_after_orientation() -> None:
    values = np.array([0.5, 1.1, 3.0])
    assert METRICS["alpha-req"].oriented(values).argmax() == 1
    assert METRICS["sharpness"].oriented(values).argmax() == 0
    assert METRICS["rankme"].oriented(values).argmax() == 2
    assert METRICS["energy"].oriented(values) is None
