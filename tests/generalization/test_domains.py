"""Domains with known performance: numbers as by hand, thresholds, correlations, curves, records."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_vits import untrained_vit

from assay.analyses.generalization import DISTANCES, alarm_curve, baselines, circuit_shifts
from assay.analyses.generalization.alarms import DELTAS
from assay.analyses.generalization.domains import (
    Domain,
    DomainEvaluation,
    EvaluationSettings,
    calibrate_on_corruptions,
    measure_domains,
    split_known,
)
from assay.analyses.generalization.monitor import Monitor
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, UnknownNameError
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, corrupt, draw_shapes


KEYS = ("gaussian-noise-5", "solarize", "fog-1")
TRANSFORM = EvalTransform()


@pytest.fixture(scope="module")
def model() -> Model:
    made = load_model(untrained_vit())
    made.preprocessing = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    return made


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, draw_shapes("flat", 12).with_transform(TRANSFORM), steps=2)


@pytest.fixture(scope="module")
def calibration(model: Model, reference: EdgeScores) -> DomainEvaluation:
    return calibrate_on_corruptions(
        model,
        reference,
        draw_shapes("flat", 18, start=100),
        settings=EvaluationSettings(n=12, seed=3),
        corruptions=KEYS,
        labelled=draw_shapes("flat", 18, start=200),
    )


def test_performance_rests_on_all_images_and_everything_else_on_a_sample(
    model: Model, reference: EdgeScores, calibration: DomainEvaluation
) -> None:
    pool = draw_shapes("flat", 18, start=100)
    whole = corrupt(pool, "solarize", seed=3).with_transform(TRANSFORM)
    rows = np.sort(stream(3, "domains/solarize").permutation(18)[:12])
    task = whole.subset(rows.tolist())
    assert [each.domain for each in calibration.known] == list(KEYS)
    found, scores = calibration.known[1], discover(model, task, steps=2)
    assert (found.n, found.n_labelled) == (12, 18)
    assert found.shifts == circuit_shifts(reference, scores)
    logits, everything = run_model(model, task), run_model(model, whole)
    assert found.performance == baselines.id_accuracy(everything, whole.labels)
    macro = EvaluationSettings(measure="macro-f1")
    (other,) = measure_domains(model, reference, {"solarize": whole}, settings=macro)
    assert other.performance == baselines.id_accuracy(everything, whole.labels, measure="macro-f1")
    learn = draw_shapes("flat", 18, start=200)
    known = run_model(model, learn.with_transform(TRANSFORM))
    assert found.baselines["atc"] == baselines.atc(known, learn.labels, logits)
    assert found.baselines["cot"] == baselines.cot(learn.labels, logits)
    assert found.baselines["mde"] == pytest.approx(baselines.energy(logits))
    # Twelve images have too few eigenvalues for alpha-ReQ: it is left out.
    assert calibration.metrics == (*DISTANCES, "ac", "ane", "atc", "doc", "cot", "mde", "rankme")


def test_a_pool_is_split_by_id_and_small_ones_are_not() -> None:
    pool = draw_shapes("flat", 100, start=7)
    learn, corrupted = split_known(pool, 10, seed=1)
    assert sorted([*learn.ids.tolist(), *corrupted.ids.tolist()]) == sorted(pool.ids.tolist())
    mixed, _ = split_known(pool.subset(np.random.default_rng(0).permutation(100)), 10, seed=1)
    assert set(mixed.ids.tolist()) == set(learn.ids.tolist())
    # 60 images, windows of 10: half would do, 20 leave four windows; 25: one window to learn from.
    sizes = [
        (0 if first is None else first.n, rest.n)
        for first, rest in (split_known(pool.subset(range(n)), 10) for n in (90, 60, 45, 25, 20, 19))
    ]
    assert sizes == [(45, 45), (20, 40), (10, 35), (10, 15), (10, 10), (0, 19)]


def test_the_threshold_is_what_a_monitor_takes(
    model: Model, reference: EdgeScores, calibration: DomainEvaluation
) -> None:
    nearest = min(calibration.known, key=lambda each: abs(each.performance - 0.5))
    threshold = calibration.threshold(0.5, method="nearest")
    assert (threshold.domain, threshold.value) == (nearest.domain, nearest.shifts["spearman"])
    assert Monitor(model, reference, threshold).rules.rule == "threshold"
    assert calibration.threshold(0.5, metric="ac").higher_is_shift is False
    with pytest.raises(UnknownNameError, match="spearman"):
        calibration.threshold(0.5, metric="spear")


def test_a_domain_that_was_kept_is_not_measured_again(
    model: Model, reference: EdgeScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = draw_shapes("neon", 6).with_transform(TRANSFORM)
    first = measure_domains(model, reference, {"neon": images}, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(type(images), "held", lambda self: pytest.fail("measured again"))
        assert measure_domains(model, reference, {"neon": images}, cache=tmp_path) == first
    for changed in ({"settings": EvaluationSettings(measure="macro-f1")}, {"labelled": images}):
        measure_domains(model, reference, {"neon": images}, cache=tmp_path, **changed)
    assert len([*tmp_path.glob("*.json")]) == 3
    path.write_text("{")
    with pytest.raises(FileFormatError, match=path.name):
        measure_domains(model, reference, {"neon": images}, cache=tmp_path)


# ---- what goes with performance -----------------------------------------------------------------


def domain(name: str, performance: float, shift: float, *, mde: float = 0.0) -> Domain:
    numbers = {"shifts": {"spearman": shift}, "baselines": {"ac": performance**2, "mde": mde}}
    return Domain(domain=name, n=10, n_labelled=20, performance=performance, **numbers)


def evaluation() -> DomainEvaluation:
    """Six domains whose shift falls with performance, and a calibration that knows it exactly."""
    rates = np.linspace(0.3, 0.9, 6).tolist()
    test = [domain(f"d{place}", rate, 1 - rate, mde=-rate) for place, rate in enumerate(rates)]
    known = [domain(f"k{place}", rate, 1 - rate, mde=-rate) for place, rate in enumerate((0.4, 0.6, 0.8))]
    return DomainEvaluation(model={"id": "small"}, reference={}, known=tuple(known), test=tuple(test))


def test_correlations_are_signed_and_agree_in_the_direction_that_a_metric_states() -> None:
    found = evaluation().correlations
    assert found["spearman"]["srcc"] == pytest.approx(-1)
    assert found["spearman"]["r2"] == pytest.approx(1)
    assert found["ac"]["krcc"] == pytest.approx(1)
    assert found["ac"]["known_srcc"] == pytest.approx(1)
    assert [found[key]["agreement"] for key in ("spearman", "ac", "mde")] == pytest.approx([1, 1, 1])
    assert (found["spearman"]["name"], found["ac"]["name"]) == ("shift (spearman)", "AC")


def test_the_f1_of_an_alarm_is_the_mean_of_its_curve_where_some_alarms_are_due() -> None:
    made = evaluation()
    # Learned of MDE: it falls with performance over the calibration domains.
    assert [made.direction(key) < 0 for key in ("spearman", "ac", "mde")] == [True, False, True]
    found = made.alarm_f1
    known, test = (
        ([each.baselines["ac"] for each in of], [each.performance for each in of])
        for of in (made.known, made.test)
    )
    # From 0.5 to 0.9 two to five of six domains are due, below 0.5 two of them as well: all but the last.
    literal = alarm_curve(*known, *test, subset_size=3, higher_is_shift=False)[:41]
    assert found["ac"] == pytest.approx(literal.mean())
    due = np.array([sum(rate < delta for rate in test[1]) for delta in DELTAS[:41]])
    assert found["always"] == pytest.approx(np.mean(2 * due / (6 + due)))
    assert found["spearman"] > found["always"]
    assert replace(made, known=()).alarm_f1 is None


def test_a_record_is_finite_json_and_comes_back_and_a_frame_says_what_a_domain_was_for() -> None:
    again = DomainEvaluation.from_dict(json.loads(json.dumps(evaluation().to_dict(), allow_nan=False)))
    assert (again.known, again.test, again.id) == (evaluation().known, evaluation().test, evaluation().id)
    frame = evaluation().to_frame()
    assert frame["use"].tolist() == ["calibration"] * 3 + ["test"] * 6
    assert frame["spearman"].tolist()[:3] == pytest.approx([0.6, 0.4, 0.2])
