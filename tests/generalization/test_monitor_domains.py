"""Domains with known performance: numbers as by hand, thresholds, curves, records."""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from small_vits import untrained_vit

from assay.analyses.generalization import (
    DISTANCES,
    alarm_curve,
    baselines,
    circuit_shift,
    circuit_shifts,
)
from assay.analyses.generalization.batches import BASELINES
from assay.analyses.generalization.domain_shifts import (
    DomainCalibration,
    DomainShift,
    calibrate_on_corruptions,
    measure_domains,
)
from assay.analyses.generalization.journal import Reading
from assay.analyses.generalization.known_parts import check_apart, split_known
from assay.analyses.generalization.monitor_page import monitor_page
from assay.analyses.generalization.monitoring import Monitor
from assay.circuits import EdgeScores
from assay.core.errors import FileFormatError, InputError, UnknownNameError
from assay.core.random import stream
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model
from assay.page.terminal import print_page
from assay.tasks import EvalTransform, ImageSet, ImageStream, corrupt, draw_shapes
from assay.tasks.image_decoding import Arrays


KEYS = ("gaussian-noise-5", "solarize", "fog-1")
TRANSFORM = EvalTransform()
AS_IS = EvalTransform(resize=None, crop=None)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(untrained_vit())


@pytest.fixture(scope="module")
def reference(model: Model) -> EdgeScores:
    return discover(model, draw_shapes("flat", 12).task(), steps=2)


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
    whole = corrupt(pool, "solarize", seed=3).task(TRANSFORM)
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
    assert found.batch_performance == baselines.id_accuracy(logits, task.labels)
    assert found.batch_performance != found.performance
    draws = stream(3, "domains/resamples").integers(18, size=(100, 18))
    right = everything.argmax(1) == whole.labels
    assert found.performance_draws[7] == pytest.approx(right[draws[7]].double().mean().item(), abs=1e-6)
    assert calibration.clean == baselines.id_accuracy(run_model(model, pool.task(TRANSFORM)), pool.labels)
    learn = draw_shapes("flat", 18, start=200)
    known = run_model(model, learn.task(TRANSFORM))
    assert learn.labels is not None
    assert found.baselines["atc"] == baselines.atc(known, learn.labels, logits)
    assert found.baselines["cot"] == baselines.cot(learn.labels, logits)
    assert found.baselines["m-cbpe"] == baselines.m_cbpe(known, learn.labels, logits)
    assert calibration.metrics == (*DISTANCES, *BASELINES)


def test_clean_images_and_families_of_corruptions_carry_the_estimate(
    model: Model, reference: EdgeScores, calibration: DomainCalibration
) -> None:
    assert calibration.clean_domain is not None
    assert calibration.clean_domain.domain == "clean"
    estimator = calibration.accuracy_estimator()
    assert estimator.names == ("spearman", "cosine", "l2", *BASELINES)
    assert estimator.families == ("clean", "gaussian-noise", "solarize", "fog")
    assert estimator.id_performance == calibration.clean_domain.performance
    assert estimator.performance == tuple(
        each.batch_performance for each in (calibration.clean_domain, *calibration.known)
    )
    assert (estimator.n, estimator.pool) == (12, 18)
    with pytest.raises(InputError, match="clean images were not measured"):
        replace(
            calibration, clean_domain=replace(calibration.clean_domain, batch_performance=math.nan)
        ).accuracy_estimator()
    with pytest.raises(InputError, match="clean images were not measured"):
        replace(calibration, clean_domain=None).accuracy_estimator()
    with pytest.raises(InputError, match="hold 12, 13 images"):
        replace(calibration, clean_domain=replace(calibration.clean_domain, n=13)).accuracy_estimator()


def test_readings_carry_the_estimate_and_the_page_shows_it(
    model: Model, reference: EdgeScores, calibration: DomainCalibration
) -> None:
    pool, batch = draw_shapes("flat", 18, start=200), draw_shapes("flat", 12, start=300)
    # Every domain three times makes twelve families, so that a test without many discoveries speaks.
    few = calibration.accuracy_estimator()
    many = replace(
        few,
        readings=3 * few.readings,
        performance=tuple(each / 8 for each in range(1, 5)) * 3,
        families=tuple(f"{name}-{i}" for i in range(3) for name in few.families),
        id_performance=1.0,
        pool=48,
    )
    for estimator in (few, many):
        monitor = Monitor(model, reference, labelled=pool, estimator=estimator, transform=TRANSFORM)
        reading = monitor.observe(batch)
        estimate = reading.estimate
        assert estimate is not None
        assert set(BASELINES) == set(reading.baselines)
        shifts = {key: circuit_shift(reference, discover(model, batch.task(TRANSFORM), steps=2), distance=key)
                  for key in ("spearman", "cosine", "l2")}  # fmt: skip
        assert estimate == estimator.estimate({**shifts, **reading.baselines}, n=12)
        assert Reading.from_dict(json.loads(json.dumps(reading.to_dict(), allow_nan=False))) == reading
        shown = shown_on_terminal(json.loads(json.dumps(monitor.to_dict())))
        assert "Accuracy without labels" in shown
        assert ("cannot say" in shown) == (estimate.interval is None)
    assert "4 families of domains were calibrated" in few.estimate(dict.fromkeys(few.names, 0.5), n=12).reason


def test_a_pool_is_split_by_id_and_small_ones_are_not() -> None:
    pool = draw_shapes("flat", 100, start=7)
    learn, corrupted = split_known(pool, 10, seed=1)
    assert learn is not None
    assert (learn.n, corrupted.n) == (50, 50)
    assert sorted([*learn.ids, *corrupted.ids]) == sorted(pool.ids)
    mixed = split_known(pool.subset(np.random.default_rng(0).permutation(100)), 10, seed=1)
    assert mixed.learn is not None
    assert set(mixed.learn.ids) == set(learn.ids)
    assert set(split_known(pool, 10, seed=2).corrupt.ids) != set(corrupted.ids)
    # 60 images, windows of 10: half would do, 20 leave four windows; 25: one window to learn from.
    sizes = [
        (0 if each.learn is None else each.learn.n, each.corrupt.n)
        for each in (split_known(pool.subset(range(n)), 10) for n in (90, 60, 45, 25, 20, 19))
    ]
    assert sizes == [(45, 45), (20, 40), (10, 35), (10, 15), (10, 10), (0, 19)]
    overlapping = pool.subset(np.flatnonzero(np.isin(pool.ids, [*learn.ids, *corrupted.ids[:5]])))
    with pytest.raises(InputError, match="5 of the 50 images to corrupt are among the 55"):
        check_apart(corrupted, overlapping)
    check_apart(corrupted, draw_shapes("neon", 100, start=7))  # of the same ids, but other images


class Together(Arrays):
    """Gives one mark for all rows it is asked for, as a column of a table of images does."""

    def marks(self, rows: Sequence[int]) -> Iterator[str]:
        yield "\n".join(super().marks(rows))


def test_images_in_both_parts_are_counted_one_by_one() -> None:
    pool = draw_shapes("flat", 20)
    # Ids 0, 0, 1, 2, 3 beside 0, 0, 1, 9, 3: the second of id 0 and those of 1 and 3 are in both.
    first = replace(pool.subset([0, 1, 2, 3, 4]), ids=np.array([0, 0, 1, 2, 3]))
    second = replace(pool.subset([5, 1, 2, 3, 4]), ids=np.array([0, 0, 1, 9, 3]))

    def stream_of(images: ImageSet) -> ImageStream:
        pictures = Together("shapes", images.pixels)
        return ImageStream(pictures=pictures, transform=AS_IS, ids=torch.from_numpy(images.ids))

    for one in (first, stream_of(first)):
        for other in (second, stream_of(second)):
            with pytest.raises(InputError, match="3 of the 5 images to corrupt are among the 5"):
                check_apart(one, other)
            check_apart(one.subset([0, 3]), other)
            check_apart(one.subset([3]), other.subset([3]))


def test_domains_that_share_their_images_give_no_estimate(calibration: DomainCalibration) -> None:
    assert calibration.clean_domain is not None
    domains = [replace(calibration.clean_domain, domain=f"new-{i}") for i in range(12)]
    estimator = replace(calibration, known=tuple(domains)).accuracy_estimator()
    assert estimator.silence.startswith(
        "the calibration domains of 12 images are drawn from 18; 48 are needed"
    )


def test_readings_of_earlier_logs_have_no_estimate(model: Model, reference: EdgeScores) -> None:
    monitor = Monitor(model, reference, transform=TRANSFORM)
    document = monitor.observe(draw_shapes("flat", 12, start=300)).to_dict()
    assert document.pop("estimate") is None
    assert Reading.from_dict(document).estimate is None
    earlier = monitor.to_dict()
    assert earlier.pop("estimator") is None
    del earlier["readings"][0]["estimate"]
    assert "Accuracy without labels" not in shown_on_terminal(earlier)


def test_the_threshold_is_what_a_monitor_takes(
    model: Model, reference: EdgeScores, calibration: DomainCalibration
) -> None:
    nearest = min(calibration.known, key=lambda each: abs(each.performance - 0.5))
    threshold = calibration.threshold(0.5, method="nearest")
    assert (threshold.domain, threshold.value) == (nearest.domain, nearest.shifts["spearman"])
    assert Monitor(model, reference, threshold).rule == "threshold"
    between = calibration.threshold(0.5)
    assert between.method == "isotonic"
    assert between.interval is not None
    assert between.interval.low <= between.value <= between.interval.high
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


def planted(n: int, seed: int, *, slope: float) -> tuple[DomainShift, ...]:
    """Domains whose shift falls with performance exactly and whose confidence knows nothing."""
    rng = np.random.default_rng(seed)
    return tuple(
        DomainShift(
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
    flat = draw_shapes("flat", 12, start=50).task(TRANSFORM)
    with pytest.raises(InputError, match="domains are missing"):
        measure_domains(model, reference, {})
    with pytest.raises(InputError, match="is given twice"):
        measure_domains(model, reference, [("a", flat), ("a", flat)])
    from dataclasses import replace

    with pytest.raises(InputError, match="no labels"):
        measure_domains(model, reference, {"a": replace(flat, labels=None)})
    with pytest.raises(UnknownNameError, match="fog"):
        calibrate_on_corruptions(model, reference, draw_shapes("flat", 12), corruptions=["fog"])


def test_progress_names_each_domain(model: Model, reference: EdgeScores) -> None:
    seen: list[tuple[str, int, int]] = []
    found = measure_domains(
        model,
        reference,
        {"a": draw_shapes("flat", 6, start=50).task(), "b": draw_shapes("neon", 6, start=50).task()},
        progress=lambda *each: seen.append(each),
    )
    assert seen == [("a", 0, 0), ("b", 1, 0)]
    assert found[0].baselines.keys() == {"ac", "ane", "mano"}
    assert not math.isnan(found[1].performance)
