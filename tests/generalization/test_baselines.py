"""Baselines: golden values, worked cases, slow literal versions, refusals."""

import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import nn

from assay.analyses.generalization import baselines
from assay.analyses.generalization.baselines import auto_pgd_checkpoints, sharpness, worst_case_rise
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, UnknownNameError


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "baselines.json").read_text())
with np.load(FOLDER / "baselines.npz") as _file:
    ARRAYS = dict(_file)


# ------------------------------------------------------------------------------------------ golden


@pytest.mark.parametrize("which", ["id", "ood"])
def test_statistics_of_outputs_equal_the_golden_values(which: str) -> None:
    logits, labels = ARRAYS[f"{which}_logits"], ARRAYS[f"{which}_labels"]
    expected = GOLDEN[f"ref_outputs_{which}"]
    for of, key in (
        (baselines.average_confidence, "avg_confidence"),
        (baselines.average_negative_entropy, "avg_negative_entropy"),
        (baselines.energy, "EMD_score"),
    ):
        assert of(logits) == pytest.approx(expected[key], rel=1e-6)  # float32 in the authors' code
    assert baselines.energy(logits, log=False) == pytest.approx(GOLDEN[f"mde_no_log_{which}"], rel=1e-12)
    for measure, key in (("accuracy", "acc"), ("macro-f1", "f1")):
        found = baselines.id_accuracy(logits, labels, measure=measure)
        assert found == pytest.approx(expected[key], rel=1e-12)


@pytest.mark.parametrize("score", ["maxconf", "negentropy"])
def test_thresholds_of_confidence_equal_the_golden_values(score: str) -> None:
    known, labels, new = ARRAYS["id_logits"], ARRAYS["id_labels"], ARRAYS["ood_logits"]
    expected = GOLDEN[f"ref_atc_{score}"]
    assert baselines.atc(known, labels, new, score=score) == pytest.approx(expected["ood_estimate"])
    assert baselines.atc(known, labels, known, score=score) == pytest.approx(expected["id_estimate"])


@pytest.mark.parametrize("which", ["tall", "wide"])
def test_spectra_of_features_equal_the_golden_values(which: str) -> None:
    features = ARRAYS[f"features_{which}"]
    for options, key, rel in (
        ({}, "rankme_published", 1e-9),
        # centred in float32 there, which leaves a last singular value above 0
        ({"center": True}, "rankme_centered_singular", 1e-6),
        ({"variant": "eigenvalue_ratio"}, "ref_rankme_eigen", 1e-5),  # float32 there
    ):
        assert baselines.rankme(features, **options) == pytest.approx(GOLDEN[f"{key}_{which}"], rel=rel)
    assert baselines.alpha_req(features) == pytest.approx(GOLDEN[f"alpha_direct_{which}"], rel=1e-9)
    assert baselines.alpha_req(features) == pytest.approx(GOLDEN[f"ref_alpha_{which}"], rel=1e-5)


# --------------------------------------------------------------------------------- accuracy estimates


def literal_atc(scores: np.ndarray, correct: np.ndarray) -> float:
    """The scan as published."""
    order = np.argsort(scores, kind="stable")
    scores, correct = scores[order], correct[order]
    false_positives, false_negatives = int((~correct).sum()), 0
    best, threshold = false_positives, 0.0
    for score, right in zip(scores, correct, strict=True):
        if right:
            false_negatives += 1
        else:
            false_positives -= 1
        if abs(false_positives - false_negatives) < best:
            best, threshold = abs(false_positives - false_negatives), float(score)
    return threshold


@given(st.integers(0, 5000), st.integers(1, 40))
def test_the_threshold_is_that_of_the_published_scan(seed: int, n: int) -> None:
    generator = np.random.default_rng(seed)
    scores, new = generator.integers(1, 12, n) / 12, np.arange(13) / 12  # ties
    correct = generator.random(n) < generator.random()
    (share,) = baselines.passing(scores, correct, new, baselines.once(n), baselines.once(13))
    assert share == pytest.approx((new >= literal_atc(scores, correct)).mean(), abs=1e-12)
    # Without a wrong answer it is the 0 that the scan starts from.
    logits = np.array([[2.0, 0.0], [0.0, 3.0]])
    for score, estimate in (("maxconf", 1.0), ("negentropy", 0.0)):
        assert baselines.atc(logits, np.array([0, 1]), logits / 9, score=score) == estimate


def test_a_drop_of_confidence_is_a_drop_of_accuracy() -> None:
    known = np.log(np.array([[0.9, 0.1], [0.9, 0.1]]))
    new = np.log(np.array([[0.6, 0.4], [0.3, 0.7]]))
    assert baselines.doc(known, np.array([0, 0]), new) == pytest.approx(1 - (0.9 - 0.65))
    assert baselines.doc(new, np.array([1, 0]), known) == pytest.approx(0.25)


def whole_programme(labels: np.ndarray, p: np.ndarray) -> float:
    """Every cell of the plan at once."""
    m, n_classes = p.shape
    rows = np.kron(np.eye(m), np.ones(n_classes))
    columns = np.kron(np.ones(m), np.eye(n_classes))
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
    found = optimize.linprog(
        -p.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([np.full(m, 1 / m), shares])
    )
    return -float(found.fun)


@given(st.integers(0, 1000), st.integers(2, 12), st.integers(1, 20))
@settings(max_examples=25)
def test_transport_is_the_best_plan_of_all(seed: int, n_classes: int, n_labels: int) -> None:
    """The shares need not be multiples of 1 / m, and most classes may lack a label."""
    generator = np.random.default_rng(seed)
    logits, labels = 3 * generator.normal(size=(17, n_classes)), generator.integers(0, n_classes, n_labels)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert baselines.cot(labels, logits) == pytest.approx(whole_programme(labels, p), abs=1e-8)


def test_the_line_is_fitted_to_pairs_of_models() -> None:
    known = np.array([[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]])
    new = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 1]])
    normal = NormalDist()
    x = [normal.inv_cdf(share) for share in (6 / 8, 5 / 8, 7 / 8)]
    y = [normal.inv_cdf(share) for share in (3 / 4, 1 / 4, 2 / 4)]
    slope, _ = np.polyfit(x, y, 1)
    accuracy = np.array([normal.inv_cdf(1 - 1e-6), normal.inv_cdf(6 / 8), normal.inv_cdf(5 / 8)])
    pairs = np.array([[1, 1, 0], [1, 0, 1], [0, 1, 1]]) / 2
    expected = np.linalg.solve(pairs, np.array(y) + slope * (pairs @ accuracy - np.array(x)))
    (found,) = baselines.agreement_line(known, np.zeros(8, dtype=np.int64), new)
    assert found == pytest.approx([normal.cdf(each) for each in expected])


# ------------------------------------------------------------------------------------------ refusals


def test_bad_logits_and_labels_are_refused() -> None:
    logits = np.zeros((3, 2))
    with pytest.raises(InputError, match="label 2 of example 1 is outside the 2 classes"):
        baselines.id_accuracy(logits, np.array([0, 2, 0]))
    bad = logits.copy()
    bad[2, 0] = math.nan
    with pytest.raises(InputError, match="logits of example 2 hold NaN"):
        baselines.average_confidence(bad)
    with pytest.raises(InputError, match="have 9 nonzero eigenvalues; alpha-ReQ needs 20"):
        baselines.alpha_req(np.random.default_rng(0).normal(size=(10, 40)))
    with pytest.raises(UnknownNameError, match="unknown score"):
        baselines.atc(np.eye(3), np.arange(3), np.eye(3), score="entropy")
    with pytest.warns(DegenerateDataWarning, match="do not vary"):
        assert math.isnan(baselines.rankme(np.ones((4, 3)), center=True))
    with pytest.warns(DegenerateDataWarning, match="one example"):
        assert math.isnan(baselines.energy(np.zeros((1, 3))))
    tensor = torch.from_numpy(ARRAYS["id_logits"]).requires_grad_()
    assert baselines.average_confidence(tensor) == baselines.average_confidence(ARRAYS["id_logits"])
    zeros = np.zeros((3, 4), dtype=np.int64)
    with pytest.raises(InputError, match="at least 3 models; got 2"):
        baselines.agreement_line(zeros[:2], zeros[0], zeros[:2])
    assert np.isnan(baselines.agreement_line(zeros, zeros[0], zeros)).all()  # every pair agrees equally often


# ------------------------------------------------------------------------------------------ sharpness


def golden_classifier() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4)).double()
    prefix = "sharp_"
    named = {
        key.removeprefix(prefix): torch.from_numpy(each) for key, each in ARRAYS.items() if prefix in key
    }
    module.load_state_dict({key: each for key, each in named.items() if "." in key})
    return module.eval()


def golden_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = torch.from_numpy(ARRAYS["sharp_x"]).double(), torch.from_numpy(ARRAYS["sharp_y"])
    return list(zip(x.split(16), y.split(16), strict=True))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("default", {}),
        ("rho0.1", {"rho": 0.1}),
        ("rho0.05_nonadaptive_raw_logits", {"rho": 0.05, "adaptive": False, "normalize_logits": False}),
        ("rho0.2_iters50", {"rho": 0.2, "iterations": 50}),
    ],
)
def test_sharpness_equals_the_golden_values(key: str, settings: dict[str, object]) -> None:
    got = sharpness(golden_classifier(), golden_batches(), **settings)
    assert got == pytest.approx(GOLDEN[f"ref_sharpness_{key}"]["loss_increase"], rel=1e-6)
    assert auto_pgd_checkpoints(20) == (5, 9, 12, 15, 16, 18, 19)


def test_a_linear_loss_rises_to_the_corner_of_the_ball() -> None:
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def loss(moved: torch.Tensor) -> torch.Tensor:
        return 3 * moved[0] - moved[1] + 4 * moved[2]

    assert worst_case_rise(loss, weights, rho=0.1) == pytest.approx(0.1 * (3 + 2 + 2))
    assert worst_case_rise(loss, weights, rho=0.1, adaptive=False) == pytest.approx(0.1 * (3 + 1 + 4))


def test_weights_and_gradients_of_the_model_stay() -> None:
    module = golden_classifier()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = sharpness(module, golden_batches(), rho=0.1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())
    assert sharpness(module, golden_batches(), rho=0.1) == first


def test_sharpness_refuses_bad_input() -> None:
    module, batches = golden_classifier(), golden_batches()
    with pytest.raises(InputError, match="at least one batch"):
        sharpness(module, [])
    with pytest.raises(InputError, match="a label is outside the 4 classes"):
        sharpness(module, [(images, labels + 1) for images, labels in batches])
    for wrong in ({"rho": 0.0}, {"iterations": 0}):
        with pytest.raises(InputError, match="give a rho above 0 and 1 step or more"):
            sharpness(module, batches, **wrong)
    with pytest.raises(NonFiniteError, match="loss is nan"):
        sharpness(module, [(batches[0][0] * math.nan, batches[0][1])])
    module[1].train()
    with pytest.raises(InputError, match="a part of it, is in training mode"):
        sharpness(module, batches)
