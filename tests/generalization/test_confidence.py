"""Calibrated confidence, norms of outputs, closeness of features: worked cases, literal twins, properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from assay.analyses.generalization import baselines
from assay.core.errors import InputError, ShapeError


def of_confidences(*largest: float) -> np.ndarray:
    """Logits of two classes whose first has these probabilities."""
    p = np.array(largest)
    return np.log(np.stack([p, 1 - p], axis=1))


def outputs(seed: int, n: int = 40, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(n, classes)), rng.integers(0, classes, n)


def test_calibrated_confidence_worked_by_hand() -> None:
    # Sorted confidences .6 .7 .8 .9, right: no, yes, no, yes. Isotonic: 0, 1/2, 1/2, 1.
    known, labels = of_confidences(0.6, 0.7, 0.8, 0.9), np.array([1, 0, 1, 0])
    assert baselines.cbpe(known, labels, of_confidences(0.9)) == pytest.approx(1.0)
    assert baselines.cbpe(known, labels, of_confidences(0.75, 0.99)) == pytest.approx(0.75)  # (1/2 + 1) / 2
    assert baselines.cbpe(known, labels, of_confidences(0.65)) == pytest.approx(
        0.25
    )  # half way from 0 to 1/2
    assert baselines.cbpe(known, labels, of_confidences(0.51)) == pytest.approx(0.0)


@given(st.integers(0, 500))
@settings(max_examples=20)
def test_calibration_gives_the_known_accuracy_back(seed: int) -> None:
    logits, labels = outputs(seed)
    # isotonic regression keeps the mean of what it fits
    assert baselines.cbpe(logits, labels, logits) == pytest.approx(float((logits.argmax(1) == labels).mean()))


def test_weights_calibrate_for_the_target() -> None:
    # One confidence, two groups that a feature separates: right in one, wrong in the other.
    rng = np.random.default_rng(0)
    known, group = of_confidences(*[0.8] * 200), np.repeat([0, 1], 100)
    features, new = group[:, None] + rng.normal(0, 0.3, (200, 1)), 1 + rng.normal(0, 0.3, (100, 1))
    target = of_confidences(*[0.8] * 100)
    plain = baselines.cbpe(known, group, target)
    weighted = baselines.m_cbpe(known, group, target, id_features=features, features=new)
    assert plain == pytest.approx(0.5)
    assert weighted < 0.15  # the target is the group with wrong answers
    assert baselines.m_cbpe(known, group, target) == pytest.approx(
        0.5
    )  # outputs do not tell the groups apart


def literal_mano(logits: np.ndarray, p: int, threshold: float) -> float:
    n, k = logits.shape
    certain = sum(-math.log(v) / k for row in softmax(logits, axis=1) for v in row) / n
    total = 0.0
    for row in logits:
        if certain > threshold:
            q = list(softmax(row))
        else:
            v = [1 + x + x**2 / 2 for x in row]
            q = [each - min(v) for each in v]
            q = [each / sum(q) for each in q] if sum(q) else q
        total += sum(each**p for each in q)
    return float((total / (n * k)) ** (1 / p))


@given(st.integers(0, 500), st.sampled_from([1.0, 5.0]))
@settings(max_examples=30)
def test_the_norm_is_that_of_the_definition(seed: int, threshold: float) -> None:
    logits, _ = outputs(seed, n=9)
    expected = literal_mano(logits, 4, threshold)
    assert baselines.mano(logits, threshold=threshold) == pytest.approx(expected)
    assert 0 <= expected <= 3 ** (-1 / 4) + 1e-12


def test_the_norm_worked_by_hand() -> None:
    # v = 1, 2.5, 5 -> q = 0, 1.5/5.5, 4/5.5
    q = np.array([0, 1.5, 4.0]) / 5.5
    assert baselines.mano(np.array([[0.0, 1.0, 2.0]])) == pytest.approx(((q**4).sum() / 3) ** 0.25)
    assert baselines.mano(np.array([[1.0, 1.0]])) == 0.0
    certain = np.array([[50.0, 0.0]])
    assert baselines.mano(certain) == pytest.approx(0.5**0.25)
    with pytest.raises(InputError, match="p is 0"):
        baselines.mano(certain, p=0)


def test_closeness_is_minus_the_energy_distance() -> None:
    x, y = np.array([[-1.0], [1.0]]), np.array([[2.0], [2.0]])
    # 2 * mean(3, 3, 1, 1) - mean(0, 2, 2, 0) - 0 = 4 - 1; the known rows have variance 1
    assert baselines.feature_closeness(x, y) == pytest.approx(-math.sqrt(3))
    assert baselines.feature_closeness(x, x) == 0.0
    assert baselines.feature_closeness(10 * x, 10 * y) == pytest.approx(-math.sqrt(3))


@given(st.integers(0, 500))
@settings(max_examples=15)
def test_the_order_of_images_changes_nothing(seed: int) -> None:
    known, labels = outputs(seed)
    new, _ = outputs(seed + 1, n=15)
    mixed, order = np.random.default_rng(seed).permutation(40), np.random.default_rng(seed).permutation(15)
    for estimate in (baselines.cbpe, baselines.m_cbpe):
        assert estimate(known[mixed], labels[mixed], new[order]) == pytest.approx(
            estimate(known, labels, new),
            abs=1e-4,  # the solver of the classifier stops at a tolerance
        )
    assert baselines.mano(new[order]) == pytest.approx(baselines.mano(new))
    assert baselines.feature_closeness(known[mixed], new[order]) == pytest.approx(
        baselines.feature_closeness(known, new)
    )


@pytest.mark.usefixtures("unchecked")
def test_tables_that_do_not_fit_are_refused() -> None:
    known, labels = outputs(0)
    with pytest.raises(ShapeError, match="2 classes, but id_logits 3"):
        baselines.cbpe(known, labels, known[:, :2])
    with pytest.raises(InputError, match="one side only"):
        baselines.m_cbpe(known, labels, known, features=known)
    with pytest.raises(ShapeError, match="the same columns"):
        baselines.m_cbpe(known, labels, known, id_features=known, features=known[:, :2])
    with pytest.raises(ShapeError, match="2 columns, but id_features 3"):
        baselines.feature_closeness(known, known[:, :2])
