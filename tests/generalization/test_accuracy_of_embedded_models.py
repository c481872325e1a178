"""The estimate of accuracy on a trained model: fitted on its corrupted images, checked on new ones."""

import numpy as np
import pytest

import assay
from assay.analyses.generalization import (
    Monitor,
    calibrate_on_corruptions,
    discover_reference,
    split_known,
)
from assay.execution import run_model
from assay.tasks import EvalTransform, ImageSet, corrupt, draw_shapes
from assay.zoo import Zoo


WINDOW = 24


def flat(batches: int, start: int) -> ImageSet:
    return draw_shapes("flat", batches * WINDOW, start=1_000_000 + start)


@pytest.mark.slow
def test_new_corrupted_batches_lie_in_the_interval_or_it_says_why_not() -> None:
    zoo = Zoo.embedded()
    best = max(zoo.entries, key=lambda entry: entry.id_accuracy)
    model = assay.load_model(str(zoo.folder(best.key)))
    transform = EvalTransform.for_model(model)
    reference = discover_reference(model, flat(4, 0).task(transform), batch=WINDOW, steps=2)
    learn, corrupted = split_known(flat(8, 1000), WINDOW)
    assert learn is not None
    domains = calibrate_on_corruptions(
        model, reference, corrupted, n=WINDOW, labelled=learn, transform=transform
    )
    estimator = domains.accuracy_estimator()
    assert (estimator.n_families, estimator.offered, estimator.pool) == (16, 0.9, 4 * WINDOW)
    assert estimator.silence == ""
    # It follows real shifts of circuits: families left out are predicted far better than by a constant.
    assert estimator.backtest.error < 0.5 * estimator.backtest.mean_error

    monitor = Monitor(model, reference, labelled=learn, estimator=estimator, transform=transform)
    held, accuracies = [], []
    for place, key in enumerate(("fog-3", "gaussian-noise-2", "solarize")):
        images = corrupt(flat(1, 4000 + 100 * place), key, seed=7)
        estimate = monitor.observe(images).estimate
        assert estimate is not None
        assert images.labels is not None
        accuracy = float((run_model(model, images.task(transform)).argmax(1).numpy() == images.labels).mean())
        accuracies.append(accuracy)
        if estimate.interval is None:
            assert estimate.reason
        else:
            held.append(accuracy in estimate.interval)
    # The batches share one calibration; that all lie in their 90 % intervals is what these images give.
    assert held
    assert all(held), (held, accuracies)
    assert np.ptp(accuracies) > 0.4  # the batches are not all alike
