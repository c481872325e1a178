"""Domains with known performance: numbers as by hand, thresholds, curves, records."""

import io
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from small_vits import untrained_vit

from assay.analyses.generalization import (
    DISTANCES,
    alarm_curve,
    baselines,
    circuit_shifts,
)
from assay.analyses.generalization.domains import (
    Domain,
    DomainCalibration,
    calibrate_on_corruptions,
    measure_domains,
    split_known,
)
from assay.analyses.generalization.monitor import Monitor
from assay.analyses.generalization.monitor_page import monitor_page
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.page.terminal import print_page
from assay.tasks import EvalTransform, corrupt, draw_shapes


KEYS = ("gaussian-noise-5", "solarize", "fog-1")
TRANSFORM = EvalTransform()
AS_IS = EvalTransform(resize=None, crop=None)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit())


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, draw_shapes("flat", 12).with_transform(EvalTransform()), steps=2)


@pytest.fixture(scope="module")
def calibration(model: Model, reference: EdgeScores) -> DomainCalibration:
    return calibrate_on_corruptions(
        model,
        reference,
        draw_shapes("flat", 18, start=100),
        corruptions=KEYS,
        labelled=draw_shapes("flat", 18, start=200),
        transform=TRANSFORM,
        seed=3,
    )


def shown_on_terminal(document: Mapping[str, Any]) -> str:
    text = io.StringIO()
    print_page(monitor_page(document), Console(file=text, width=200))
    return text.getvalue()


def test_a_domain_has_the_numbers_of_its_images(
    model: Model, reference: EdgeScores, calibration: DomainCalibration
) -> None:
    pool = draw_shapes("flat", 18, start=100)
    whole = corrupt(pool, "solarize", seed=3).with_transform(TRANSFORM)
    rows = np.sort(stream(3, "domains/solarize").permutation(18)[:12])
    task = whole.subset(rows.tolist())
    assert [each.domain for each in calibration.known] == list(KEYS)
    found = calibration.known[1]
    assert (found.n, found.n_labelled) == (12, 18)  # as many as the reference rests on, and all
    assert found.shifts == circuit_shifts(reference, discover(model, task, steps=2))
    logits = run_model(model, task)
    assert whole.labels is not None
    assert pool.labels is not None
    everything = run_model(model, whole)
    assert found.performance == baselines.id_accuracy(everything, whole.labels)
    assert task.labels is not None
    learn = draw_shapes("flat", 18, start=200)
    known = run_model(model, learn.with_transform(TRANSFORM))
    assert learn.labels is not None
    assert found.baselines["atc"] == baselines.atc(known, learn.labels, logits)
    assert found.baselines["cot"] == baselines.cot(learn.labels, logits)
    assert calibration.metrics == (*DISTANCES, "ac", "ane", "atc", "doc", "cot")


def test_a_pool_is_split_by_id_and_small_ones_are_not() -> None:
    pool = draw_shapes("flat", 100, start=7)
    learn, corrupted = split_known(pool, 10, seed=1)
    assert learn is not None
    assert (learn.n, corrupted.n) == (50, 50)
    assert sorted([*learn.ids.tolist(), *corrupted.ids.tolist()]) == sorted(pool.ids.tolist())
    mixed = split_known(pool.subset(np.random.default_rng(0).permutation(100)), 10, seed=1)
    assert mixed.learn is not None
    assert set(mixed.learn.ids.tolist()) == set(learn.ids.tolist())
    assert set(split_known(pool, 10, seed=2).corrupt.ids.tolist()) != set(corrupted.ids.tolist())
    # 60 images, windows of 10: half would do, 20 leave four windows; 25: one window to learn from.
    sizes = [
        (0 if each.learn is None else each.learn.n, each.corrupt.n)
        for each in (split_known(pool.subset(range(n)), 10) for n in (90, 60, 45, 25, 20, 19))
    ]
    assert sizes == [(45, 45), (20, 40), (10, 35), (10, 15), (10, 10), (0, 19)]


def test_the_threshold_is_what_a_monitor_takes(
    model: Model, reference: EdgeScores, calibration: DomainCalibration
) -> None:
    nearest = min(calibration.known, key=lambda each: abs(each.performance - 0.5))
    threshold = calibration.threshold(0.5, method="nearest")
    assert (threshold.domain, threshold.value) == (nearest.domain, nearest.shifts["spearman"])
    assert Monitor(model, reference, threshold).rule == "threshold"
    between = calibration.threshold(0.5)
    assert between.method == "isotonic"
    assert calibration.threshold(0.5, metric="ac").higher_is_shift is False
    with pytest.raises(UnknownNameError, match="spearman"):
        calibration.threshold(0.5, metric="spear")


def test_a_record_brings_everything_back(calibration: DomainCalibration) -> None:
    record = json.loads(json.dumps(calibration.to_dict(), allow_nan=False))
    again = DomainCalibration.from_dict(record)
    assert again.known == calibration.known
    assert again.provenance["images"]["seed"] == 3
    with pytest.raises(FileFormatError, match="domain-shifts"):
        DomainCalibration.from_dict({"schema": "other"})


def planted(n: int, seed: int, *, slope: float) -> tuple[Domain, ...]:
    """Domains whose shift falls with performance exactly and whose confidence knows nothing."""
    rng = np.random.default_rng(seed)
    return tuple(
        Domain(
            domain=f"{seed}/{place}",
            n=10,
            performance=performance,
            shifts={"spearman": slope * (1 - performance)},
            baselines={"ac": float(rng.random())},
        )
        for place, performance in enumerate(rng.uniform(0.4, 1.0, n).tolist())
    )


def test_the_curve_of_a_perfect_shift_is_near_one_and_of_noise_is_not() -> None:
    domains = DomainCalibration(known=planted(39, 0, slope=2.0), test=planted(12, 1, slope=2.0))
    found = domains.curves(deltas=(0.6, 0.7, 0.8), n_subsets=40, subset_size=20)
    assert found.keys() == {"spearman", "ac"}
    assert np.nanmean(found["spearman"].mean) > 0.9
    assert np.nanmean(found["ac"].mean) < 0.75
    literal = alarm_curve(
        [each.score("ac") for each in domains.known],
        [each.performance for each in domains.known],
        [each.score("ac") for each in domains.test],
        [each.performance for each in domains.test],
        deltas=(0.6, 0.7, 0.8),
        n_subsets=40,
        subset_size=20,
        higher_is_shift=False,
    )
    np.testing.assert_array_equal(found["ac"].f1, literal.f1)
    assert domains.correlations()["spearman"].srcc == pytest.approx(-1)


def test_curves_need_test_domains() -> None:
    with pytest.raises(InputError, match="test domains are missing"):
        DomainCalibration(known=planted(5, 0, slope=1.0)).curves()


def test_what_cannot_be_measured_is_refused(model: Model, reference: EdgeScores) -> None:
    flat = draw_shapes("flat", 12, start=50).with_transform(TRANSFORM)
    with pytest.raises(InputError, match="domains are missing"):
        measure_domains(model, reference, {})
    with pytest.raises(InputError, match="is given twice"):
        measure_domains(model, reference, [("a", flat), ("a", flat)])

    with pytest.raises(InputError, match="no labels"):
        measure_domains(model, reference, {"a": replace(flat, labels=None)})
    with pytest.raises(UnknownNameError, match="fog"):
        calibrate_on_corruptions(model, reference, draw_shapes("flat", 12), corruptions=["fog"])


def test_progress_names_each_domain(model: Model, reference: EdgeScores) -> None:
    seen: list[tuple[str, int, int]] = []
    found = measure_domains(
        model,
        reference,
        {
            "a": draw_shapes("flat", 6, start=50).with_transform(EvalTransform()),
            "b": draw_shapes("neon", 6, start=50).with_transform(EvalTransform()),
        },
        progress=lambda *each: seen.append(each),
    )
    assert seen == [("a", 0, 0), ("b", 1, 0)]
    assert found[0].baselines.keys() == {"ac", "ane"}
    assert not math.isnan(found[1].performance)
