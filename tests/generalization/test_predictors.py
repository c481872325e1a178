"""Every ranking metric against a literal version on repeated rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import Float64
from planted_zoo import GRAPH, features_of, planted

from assay.analyses.generalization import baselines
from assay.analyses.generalization.dependency import DepthRule, dependency_depth_bias, output_depth_bias
from assay.analyses.generalization.inspection import Inspection, answers_of
from assay.analyses.generalization.predictor import (
    PREDICTORS,
    MetricEstimate,
    MetricEvidence,
    group_shifts,
    performance,
    pulls_of,
)
from assay.analyses.generalization.predictors import DEFAULT_METRICS, FAST_METRICS, ORDER
from assay.analyses.generalization.spectra import image_groups
from assay.stats import poisson_weights
from assay.stats.intervals import draw_counts


DRAWS = 30


def rows_of(counts: Float64[np.ndarray, " n"]) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts.astype(int))


def evidence(target: Inspection, known: Inspection | None, **more: object) -> MetricEvidence:
    return MetricEvidence(
        target=target,
        known=known,
        counts=poisson_weights(target.ids, DRAWS, seed=1).astype(np.float64),
        known_counts=None if known is None else poisson_weights(known.ids, DRAWS, seed=2).astype(np.float64),
        **more,
    )


@pytest.fixture
def shown() -> MetricEvidence:
    return evidence(planted(0.4), planted(0.7, n=80))


def one(key: str, given: MetricEvidence) -> MetricEstimate:
    return PREDICTORS[key].of([given])[0]


def test_every_metric_has_a_place_and_the_default_leaves_out_the_slowest() -> None:
    assert set(ORDER) == set(PREDICTORS)
    assert set(ORDER) - set(DEFAULT_METRICS) == {"sharpness"}
    assert set(DEFAULT_METRICS) - set(FAST_METRICS) == {"ddb-deep", "ddb-global"}


@pytest.mark.parametrize(
    ("key", "of"),
    [
        ("average-confidence", baselines.average_confidence),
        ("negative-entropy", baselines.average_negative_entropy),
        ("energy", baselines.energy),
    ],
)
def test_metrics_of_logits_are_resampled_by_rows(key: str, of, shown: MetricEvidence) -> None:
    found = one(key, shown)
    assert found.value == pytest.approx(of(shown.target.logits))
    literal = np.array([of(shown.target.logits[rows_of(counts)]) for counts in shown.counts])
    if key == "energy":  # a set of N images has an inner value above log N: as of the images themselves
        literal = np.log(np.exp(literal) - np.log(shown.counts.sum(1) / shown.target.n))
    np.testing.assert_allclose(found.draws, literal, rtol=1e-10)


@pytest.mark.parametrize("key", ["atc", "doc"])
def test_estimates_of_accuracy_resample_both_sides(key: str, shown: MetricEvidence) -> None:
    of = getattr(baselines, key)
    known, target = shown.known, shown.target
    found = one(key, shown)
    assert found.value == pytest.approx(of(known.logits, known.labels, target.logits))
    literal = []
    for counts, known_counts in zip(shown.counts, shown.known_counts, strict=True):
        rows, kept = rows_of(counts), rows_of(known_counts)
        literal.append(of(known.logits[kept], known.labels[kept], target.logits[rows]))
    np.testing.assert_allclose(found.draws, literal, rtol=1e-12)


def test_a_faultless_model_passes_every_image_in_atc() -> None:
    known = planted(0.5)
    certain = replace(known, **answers_of(10 * np.eye(4)[known.labels]))
    found = one("atc", evidence(planted(0.3), certain))
    assert found.value == 1.0
    np.testing.assert_array_equal(found.draws, 1.0)


def test_output_bias_is_the_bias_of_the_resampled_mean(shown: MetricEvidence) -> None:
    found = one("ddb-output", shown)
    assert found.value == pytest.approx(
        output_depth_bias(GRAPH, torch.from_numpy(shown.target.output_scores))
    )
    literal = [output_depth_bias(GRAPH, torch.from_numpy(row)) for row in shown.target.output_draws]
    np.testing.assert_allclose(found.draws, literal, rtol=1e-9)


@pytest.mark.parametrize("targets", ["deep", "global"])
def test_biases_of_matrices_follow_their_replicates(targets: str, shown: MetricEvidence) -> None:
    found = one(f"ddb-{targets}", replace(shown, rule=DepthRule(ratio=0.5)))
    target = shown.target
    assert found.value == pytest.approx(
        dependency_depth_bias(torch.from_numpy(target.dependency), targets=targets, ratio=0.5)
    )
    literal = [
        dependency_depth_bias(torch.from_numpy(each.astype(np.float64)), targets=targets, ratio=0.5)
        for each in target.dependency_draws
    ]
    np.testing.assert_allclose(found.draws, literal, rtol=1e-9)


@pytest.mark.parametrize("measure", ["accuracy", "macro-f1"])
def test_performance_is_resampled_by_rows(measure: str) -> None:
    shown = planted(0.3, n=30)
    labels = np.where(shown.labels == 3, 2, shown.labels)  # class 3 never occurs
    counts = draw_counts(30, DRAWS, np.random.default_rng(3))
    found = performance(shown, labels, counts, measure)
    literal = [
        baselines.id_accuracy(shown.logits[rows], labels[rows], measure=measure)
        for rows in map(rows_of, counts)
    ]
    np.testing.assert_allclose(found.draws, literal, rtol=1e-12)
    assert found.value == pytest.approx(baselines.id_accuracy(shown.logits, labels, measure=measure))


def test_id_accuracy_reads_the_known_images(shown: MetricEvidence) -> None:
    known = shown.known
    assert one("id-accuracy", shown).value == pytest.approx((known.predictions == known.labels).mean())


def test_sharpness_is_resampled_by_batches(shown: MetricEvidence) -> None:
    found = one("sharpness", shown)
    batches = shown.known.sharpness
    assert found.value == pytest.approx(batches.mean())
    assert len(set(np.round(found.draws, 12))) > 3
    assert batches.min() <= found.draws.min() <= found.draws.max() <= batches.max()


def test_one_sharpness_batch_has_a_value_and_no_interval() -> None:
    found = one("sharpness", evidence(planted(0.4), planted(0.7, n_batches=1)))
    assert math.isfinite(found.value)
    assert found.draws is None
    assert "one batch has no interval" in found.reason


@pytest.mark.parametrize(("key", "of"), [("rankme", baselines.rankme), ("alpha-req", baselines.alpha_req)])
def test_spectra_are_linearised_around_their_value(key: str, of, shown: MetricEvidence) -> None:
    found, features = one(key, shown), features_of(0.4)
    assert found.value == pytest.approx(of(features), rel=1e-9)
    without = np.array([of(np.delete(features, group, axis=0)) for group in image_groups(60, shown.seed)])
    literal = found.value + pulls_of(without) @ group_shifts(shown.counts, shown.seed)
    np.testing.assert_allclose(found.draws, literal, rtol=1e-8)
    untouched = one(key, replace(shown, counts=np.ones((DRAWS, shown.target.n))))
    np.testing.assert_allclose(untouched.draws, found.value, rtol=1e-12)
    assert 0 < found.draws.std() < abs(found.value)


def test_linearised_replicates_have_the_spread_of_a_mean() -> None:
    counts = draw_counts(200, 400, np.random.default_rng(4))
    x = np.random.default_rng(5).normal(size=200)
    pulls = pulls_of(np.array([np.delete(x, group).mean() for group in image_groups(200, 0)]))
    draws = x.mean() + pulls @ group_shifts(counts, 0)
    assert draws.std() == pytest.approx(x.std() / math.sqrt(200), rel=0.35)
    assert np.corrcoef(draws, counts @ x)[0, 1] > 0.2  # paired with the resamples of the images


def test_cot_has_replicates_from_both_sides(shown: MetricEvidence) -> None:
    found = one("cot", shown)
    assert found.value == pytest.approx(baselines.cot(shown.known.labels, shown.target.logits))
    assert found.draws.std() > 0
    assert ((found.draws >= 0) & (found.draws <= 1)).all()


def test_the_prices_of_cot_give_its_value_and_the_spread_of_resampled_matches(shown: MetricEvidence) -> None:
    labels, logits = shown.known.labels, shown.target.logits
    match = baselines.matched(labels, logits)
    assert match.of_examples.mean() + match.of_classes[labels].mean() == pytest.approx(match.gain)
    literal = []
    for row, known_row in zip(shown.counts[:30], shown.known_counts[:30], strict=True):
        drawn, known_drawn = (np.repeat(np.arange(len(x)), x.astype(int)) for x in (row, known_row))
        literal.append(baselines.cot(labels[known_drawn], logits[drawn]))
    # The programme is the least of its prices' sums, so prices of other weights never give less.
    assert (one("cot", shown).draws[:30] >= np.array(literal) - 1e-9).all()
    assert np.std(one("cot", shown).draws[:30]) == pytest.approx(np.std(literal), rel=0.3)


def test_cot_of_too_many_images_waits_to_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, shown: MetricEvidence
) -> None:
    monkeypatch.setattr("assay.analyses.generalization.predictors.COT_LIMIT", 100)
    found = one("cot", shown)
    assert math.isnan(found.value)
    assert "240 unknowns" in found.reason
    by_name = replace(shown, asked=frozenset({"cot"}))
    assert math.isfinite(one("cot", by_name).value)
    unread = replace(by_name, target=replace(shown.target, logits=None))
    assert one("cot", unread).reason == "the models were inspected without logits"


def test_agreement_line_looks_at_all_models_together() -> None:
    everyone = [evidence(planted(q, seed=1), planted(q + 0.2, n=80, seed=1)) for q in (0.1, 0.3, 0.5, 0.8)]
    found = PREDICTORS["agreement-line"].of(everyone)
    line = baselines.agreement_on_the_line(
        np.stack([each.known.predictions for each in everyone]),
        everyone[0].known.labels,
        np.stack([each.target.predictions for each in everyone]),
    )
    np.testing.assert_allclose([each.value for each in found], line)
    rows, kept = rows_of(everyone[0].counts[7]), rows_of(everyone[0].known_counts[7])
    again = baselines.agreement_on_the_line(
        np.stack([each.known.predictions[kept] for each in everyone]),
        everyone[0].known.labels[kept],
        np.stack([each.target.predictions[rows] for each in everyone]),
    )
    np.testing.assert_allclose([each.draws[7] for each in found], again)


def test_two_models_have_no_agreement_line_and_the_reason_is_said() -> None:
    found = PREDICTORS["agreement-line"].of([evidence(planted(q), planted(q)) for q in (0.2, 0.6)])
    assert all(math.isnan(each.value) for each in found)
    assert "at least 3 models" in found[0].reason


def test_a_metric_without_enough_data_is_nan_with_its_reason() -> None:
    found = one("alpha-req", evidence(planted(0.4, width=8), None))
    assert math.isnan(found.value)
    assert "non-zero eigenvalues" in found.reason


def test_what_predicts_best_is_highest_after_orientation() -> None:
    values = np.array([0.5, 1.1, 3.0])
    assert PREDICTORS["alpha-req"].oriented(values).argmax() == 1
    assert PREDICTORS["sharpness"].oriented(values).argmax() == 0
    assert PREDICTORS["rankme"].oriented(values).argmax() == 2
    assert PREDICTORS["energy"].oriented(values) is None
    assert not PREDICTORS["energy"].ranks
