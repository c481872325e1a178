"""The published optimiser: independent golden values, its schedule and search, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from goldens import SMALL, arrays, values
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.analyses.subsets import adam as module
from assay.analyses.subsets.adam import (
    AdamParameters,
    Relaxation,
    adam,
    descend,
    ridge_correlation,
    ridge_probit,
)
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.matrix import Answers
from assay.analyses.subsets.swap import Pool
from assay.core.errors import InputError, UnknownNameError


def relaxation(correct, id_accuracy, size, penalty="softplus", *, validation=None, id_validation=None):
    """In double precision; judged on the training models where no others are given."""
    train = torch.from_numpy(correct).double()
    held_out = train if validation is None else torch.from_numpy(validation).double()
    y = id_accuracy if validation is None else id_validation
    pool = Pool(correct.shape[1], size)
    return Relaxation(train, ridge_probit(id_accuracy), held_out, ridge_probit(y), pool, penalty)


# ----------------------------------------------------------------------------------------------- goldens


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("penalty", ["softplus", "squared"])
def test_loss_and_its_gradient_by_the_logits(name, penalty):
    golden, given_ = values(name), arrays(name)
    expected, w = golden[f"loss_{penalty}"], torch.from_numpy(given_["w"])[None]
    problem = relaxation(given_["X"], given_["y"], expected["S"], penalty)
    loss, r, gradient = problem.loss(w, np.array([expected["penalty"]]))
    np.testing.assert_allclose(loss, [expected["value"]], rtol=1e-12)
    np.testing.assert_allclose(gradient[0], expected["grad"], rtol=1e-9, atol=1e-14)
    # Without a penalty its gradient by the shares is that of the published correlation.
    soft = torch.sigmoid(w[0]).numpy()
    _, _, slope = problem.loss(w, np.zeros(1))
    np.testing.assert_allclose(r, [golden["soft"]["reference_value"]], rtol=1e-12)
    by_share = slope[0].numpy() / (soft * (1 - soft))
    np.testing.assert_allclose(by_share, golden["soft"]["reference_grad"], rtol=1e-9, atol=1e-14)
    # Without the ridge it is the correlation that is reported, about 1e-5 away.
    exact = line_correlation(given_["y"], (given_["X"] @ soft) / soft.sum())
    assert exact == pytest.approx(golden["soft"]["value"], rel=1e-12)
    assert 0 < abs(exact - r[0]) < 1e-4


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("subset", ["full", "sel50", "sel10", "all_wrong"])
def test_hard_sets_have_the_published_correlation(name, subset):
    expected, given_ = values(name)[subset], arrays(name)
    columns = {"full": np.arange(200), "all_wrong": np.arange(195, 200)}.get(subset)
    columns = given_[subset] if columns is None else columns
    members = np.zeros((1, 200), dtype=bool)
    members[0, columns] = True
    found = relaxation(given_["X"], given_["y"], len(columns)).score(members)
    assert found[0] == pytest.approx(expected["reference_pearson"], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [10, 50])
def test_hard_set_is_the_largest_logits(name, size):
    problem = relaxation(arrays(name)["X"], arrays(name)["y"], size)
    found = problem.members(torch.from_numpy(arrays(name)["w"])[None])
    assert np.flatnonzero(found[0]).tolist() == values(name)["top"][str(size)]


@pytest.mark.parametrize("name", SMALL)
def test_descent_epoch_by_epoch(name):
    golden, given_ = values(name), arrays(name)
    expected, named = golden["adam"], golden["adam"]["hparams"]
    parameters = AdamParameters(
        learning_rate=named["lr"],
        minimum_rate=named["eta_min"],
        period=named["T_max"],
        penalty_weight=named["penalty"],
        anneal_epochs=named["penalty_anneal_iters"],
    )
    epochs = range(20)
    np.testing.assert_allclose([parameters.rate_at(e) for e in epochs], expected["lr"], rtol=1e-12)
    np.testing.assert_allclose([parameters.weight_at(e) for e in epochs], expected["penalty"], atol=1e-14)
    train, validation = (np.array(golden["split42"][part]) for part in ("train", "val"))
    x, y = given_["X"], given_["y"]
    held_out = {"validation": x[validation], "id_validation": y[validation]}
    problem = relaxation(x[train], y[train], named["S"], **held_out)
    w = torch.from_numpy(given_["w"])[None]
    for last in (1, 5, 20):
        found = descend(problem, w, [parameters], last, 500)[0]
        # Constant examples have gradients near 0, which Adam's division by their size amplifies.
        np.testing.assert_allclose(found.logits, expected["w"][str(last)], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.train, expected["train_corr"], rtol=1e-9)
    np.testing.assert_allclose(found.validation, expected["val_corr"], rtol=1e-9)
    assert found.best_epoch == int(np.argmin(expected["val_corr"]))


def test_a_search_finds_what_the_published_optimiser_finds():
    golden, given_ = values("planted_301")["splits"]["split42"], arrays("planted_301")
    train, validation, test = (np.array(golden[part]) for part in ("train", "val", "test"))
    y, options = given_["y"], {"trials": 5, "epochs": 300}
    held_out = {"validation": Answers.of(given_["X"], validation), "id_validation": y[validation]}
    found = adam(Answers.of(given_["X"], train), 1200, y[train], **held_out, **options)
    expected = golden["sizes"]["1200"]["adam_5_trials"]
    r_test = line_correlation(y[test], given_["X"][test][:, found.indices].mean(axis=1))
    # Five other draws of the same ranges, and fewer epochs: near, where all examples have 0.99.
    assert found.r_validation < expected["val"] + 0.05
    assert r_test < expected["test"] + 0.05


# --------------------------------------------------------------------------------------------- gradients


PROBLEMS = st.tuples(st.integers(0, 2**32), st.integers(4, 10), st.integers(3, 12))


@settings(max_examples=25)
@given(PROBLEMS, st.sampled_from(module.PENALTIES), st.data())
def test_gradients_are_those_of_the_loss(case, penalty, data):
    seed, m, n = case
    rng = np.random.default_rng(seed)
    correct, y = rng.integers(0, 2, (m, n), dtype=np.uint8), rng.uniform(0.2, 0.9, m)
    problem = relaxation(correct, y, data.draw(st.integers(1, n)), penalty)
    w = torch.from_numpy(rng.normal(size=(1, n)))
    # As the authors have it: the loss written down, and differentiated by machine.
    leaf = w.clone().requires_grad_()
    soft = torch.sigmoid(leaf[0])
    a = problem.train @ soft / (soft.sum() + 1e-6)
    u = torch.special.ndtri(a.clamp(1e-6, 1 - 1e-6))
    u = u - u.mean()
    r = (u * torch.from_numpy(problem.z_train)).mean() / torch.sqrt((u * u).mean() + 1e-6)
    excess = soft.sum() - problem.pool.size
    literal = r + 1.7 * (torch.nn.functional.softplus(-excess) if penalty == "softplus" else excess**2)
    literal.backward()
    loss, _, gradient = problem.loss(w, np.array([1.7]))
    assert loss[0] == pytest.approx(float(literal.detach()), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-6, atol=1e-9)


def test_a_clipped_model_pulls_nothing_and_constant_accuracies_are_uncorrelated():
    z = ridge_probit(np.array([0.5, 0.6, 0.7, 0.8]))
    _, slope = ridge_correlation(np.array([[0.0, 0.5, 0.5, 1.0]]), z)
    assert slope[0, 0] == slope[0, 3] == 0
    assert slope[0, 1] < 0 < slope[0, 2]
    assert ridge_correlation(np.full((1, 4), 0.5), z)[0].tolist() == [0]


# ----------------------------------------------------------------------------------------------- schedule


def test_settings_come_from_the_published_ranges():
    rng = np.random.default_rng(0)
    drawn = [AdamParameters.drawn(rng) for _ in range(2000)]
    for name, low, high in (
        ("learning_rate", 1e-2, 1e2),
        ("minimum_rate", 1e-3, 1),
        ("period", 10, 200),
        ("penalty_weight", 0.1, 100),
        ("anneal_epochs", 10, 1000),
    ):
        found = np.array([getattr(each, name) for each in drawn])
        assert low <= found.min() < low + 0.02 * (high - low)
        assert found.max() <= high
        middle = math.sqrt(low * high) if name.endswith("rate") else (low + high) / 2
        assert np.median(found) == pytest.approx(middle, rel=0.2 if name.endswith("rate") else 0.06)
    assert {10, 200} <= {each.period for each in drawn}  # both ends


# ------------------------------------------------------------------------------------------------- search


@pytest.fixture
def problem():
    """A quarter of 80 examples on the inverse line: answers and accuracies of 40 and 16 models."""
    rng = np.random.default_rng(5)
    y = rng.uniform(0.55, 0.95, 56)
    chance = np.where(np.arange(80) < 20, 1.4 - y[:, None], y[:, None])
    correct = (rng.uniform(size=chance.shape) < chance).astype(np.uint8)
    return {
        "train": Answers.of(correct[:40]),
        "id_train": y[:40],
        "size": 12,
        "validation": Answers.of(correct[40:]),
        "id_validation": y[40:],
        "trials": 4,
        "epochs": 150,
        "parameters": {"learning_rate": 0.3, "period": 50},
    }


def test_a_search_finds_planted_examples(problem):
    found, again, other = (adam(**problem, seed=seed) for seed in (0, 0, 4))
    assert found.to_dict() == again.to_dict()
    assert found.trace != other.trace
    assert np.mean(found.indices < 20) > 0.8
    assert found.r_train < -0.6
    for side in ("train", "validation"):
        accuracy = problem[side].count(found.indices) / 12
        assert getattr(found, f"r_{side}") == line_correlation(problem[f"id_{side}"], accuracy)
    assert np.all(np.diff(found.scores) >= 0)
    assert {row["period"] for row in found.trace} == {50}
    assert len({row["penalty_weight"] for row in found.trace}) == 4
    # The trial of the lowest last epoch wins; the exact correlation differs from it by the ridge alone.
    assert found.r_validation == pytest.approx(min(row["validation"] for row in found.trace), abs=1e-3)


def test_trials_do_not_depend_on_those_beside_them(problem, monkeypatch):
    every = adam(**problem | {"epochs": 40})
    monkeypatch.setattr(module, "_LARGEST_BLOCK", 80)  # one at a time
    alone = adam(**problem | {"epochs": 40})
    assert alone.indices.tolist() == every.indices.tolist()
    for one, other in zip(every.trace, alone.trace, strict=True):
        assert one == pytest.approx(other, rel=1e-3)


def test_a_trial_stops_after_epochs_without_a_new_minimum(problem):
    found = adam(**problem | {"epochs": 400, "trials": 6}, patience=20)
    for row in found.trace:
        assert row["epochs"] == min(400, row["best_epoch"] + 1 + 20)
    assert len({row["epochs"] for row in found.trace}) > 1


def test_penalties_hold_the_mass_at_the_size_or_above():
    rng = np.random.default_rng(0)
    correct, y = rng.integers(0, 2, (30, 80), dtype=np.uint8), rng.uniform(0.3, 0.9, 30)
    rates = {"learning_rate": 0.2, "minimum_rate": 0.01, "period": 200}
    rows = AdamParameters(**rates, penalty_weight=50.0, anneal_epochs=10)
    w, mass = torch.from_numpy(rng.normal(size=(1, 80))), {}
    for penalty in ("softplus", "squared"):
        for size in (12, 60):
            found = descend(relaxation(correct, y, size, penalty), w, [rows], 250, 250)[0]
            mass[penalty, size] = float(torch.sigmoid(torch.from_numpy(found.logits)).sum())
    assert mass["squared", 12] == pytest.approx(12, abs=0.2)
    assert mass["squared", 60] == pytest.approx(60, abs=0.2)
    assert mass["softplus", 60] > 59  # held from below


def test_only_what_is_allowed_is_selected_by_quota(problem):
    allowed, strata = np.arange(80) % 2 == 0, np.arange(80) % 8 // 4
    found = adam(**problem | {"epochs": 40}, allowed=allowed, strata=strata)
    assert allowed[found.indices].all()
    assert np.bincount(strata[found.indices]).tolist() == [6, 6]
    everything = adam(**problem | {"size": 40, "epochs": 5}, allowed=allowed)
    assert np.sort(everything.indices).tolist() == np.flatnonzero(allowed).tolist()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"trials": 0}, InputError, "trials is 0"),
        ({"penalty": "hinge"}, UnknownNameError, "penalty"),
        ({"parameters": {"rate": 0.1}}, UnknownNameError, "parameter of solver='adam'"),
        ({"id_train": np.full(40, 0.5)}, InputError, "id_train: all accuracies are equal"),
        ({"size": 81}, InputError, "size is 81"),
    ],
)
def test_bad_options_are_named(problem, options, error, message):
    with pytest.raises(error, match=message):
        adam(**problem | options)
