"""The published optimiser: independent golden values, its schedule and search, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from goldens import SMALL, arrays, values
from hypothesis import given, settings
from hypothesis import strategies as st
from pretend_devices import FIRST, pretending

import assay
from assay.analyses.subsets import _descent
from assay.analyses.subsets import adam as module
from assay.analyses.subsets._descent import AdamParameters, AdamTarget, Judge, Relaxation, descend
from assay.analyses.subsets._exchange import Pool
from assay.analyses.subsets.adam import adam
from assay.analyses.subsets.layouts import DenseMatrix, PackedMatrix
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.objective import Found
from assay.analyses.subsets.placement import DeviceMatrix
from assay.analyses.subsets.settings import Settings
from assay.core.errors import InputError, UnknownNameError


def relaxation(correct, id_accuracy, size, penalty="softplus", objective="r"):
    return Relaxation(
        correct=torch.from_numpy(correct).double(),
        target=AdamTarget.of(id_accuracy, 1e-6),
        size=size,
        penalty=penalty,
        objective=objective,
    )


def judge(correct, id_accuracy, size, objective="r"):
    return Judge(
        correct=torch.from_numpy(correct).double(),
        target=AdamTarget.of(id_accuracy, 1e-6),
        pool=Pool(correct.shape[1], size, locked={}),
        objective=objective,
    )


# ----------------------------------------------------------------------------------------------- goldens


@pytest.mark.parametrize("name", SMALL)
def test_relaxed_correlation_and_gradient(name):
    expected, given_ = values(name)["soft"], arrays(name)
    soft = torch.sigmoid(torch.from_numpy(given_["w"]))[None]
    r, gradient = relaxation(given_["X"], given_["y"], 50).correlation(soft, soft.sum(dim=1).numpy())
    np.testing.assert_allclose(r, [expected["reference_value"]], rtol=1e-12)
    np.testing.assert_allclose(gradient[0], expected["reference_grad"], rtol=1e-9, atol=1e-14)
    # Without the ridge it is the correlation that is reported, about 1e-5 away.
    exact = line_correlation(given_["y"], (given_["X"] @ soft[0].numpy()) / float(soft.sum()))
    assert exact == pytest.approx(expected["value"], rel=1e-12)
    assert 0 < abs(exact - r[0]) < 1e-4


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("penalty", ["softplus", "squared"])
def test_loss_and_its_gradient_by_the_logits(name, penalty):
    expected, given_ = values(name)[f"loss_{penalty}"], arrays(name)
    problem = relaxation(given_["X"], given_["y"], expected["S"], penalty)
    loss, _, gradient = problem.loss(torch.from_numpy(given_["w"])[None], np.array([expected["penalty"]]))
    np.testing.assert_allclose(loss, [expected["value"]], rtol=1e-12)
    np.testing.assert_allclose(gradient[0], expected["grad"], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("subset", ["full", "sel50", "sel10", "all_wrong"])
def test_hard_sets_have_the_published_correlation(name, subset):
    expected, given_ = values(name)[subset], arrays(name)
    columns = {"full": np.arange(200), "all_wrong": np.arange(195, 200)}.get(subset)
    columns = given_[subset] if columns is None else columns
    members = torch.zeros((1, 200), dtype=torch.bool)
    members[0, columns] = True
    found = judge(given_["X"], given_["y"], len(columns)).score(members)
    assert found[0] == pytest.approx(expected["reference_pearson"], rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", SMALL)
def test_descent_epoch_by_epoch(name):
    golden, given_ = values(name), arrays(name)
    expected, split = golden["adam"], golden["split42"]
    named = expected["hparams"]
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
    train, validation = (np.array(split[part]) for part in ("train", "val"))
    problem = relaxation(given_["X"][train], given_["y"][train], named["S"])
    held_out = judge(given_["X"][validation], given_["y"][validation], named["S"])
    w = torch.from_numpy(given_["w"])[None]
    for last in (1, 5, 20):
        found = descend(problem, held_out, w, [parameters], epochs=last, patience=500, keep="last")[0]
        # Constant examples have gradients near 0, which Adam's division by their size amplifies.
        np.testing.assert_allclose(found.logits, expected["w"][str(last)], rtol=1e-9, atol=1e-9)
    assert found.epochs == 20
    np.testing.assert_allclose(found.train, expected["train_corr"], rtol=1e-9)
    np.testing.assert_allclose(found.validation, expected["val_corr"], rtol=1e-9)
    assert found.best_epoch == int(np.argmin(expected["val_corr"]))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [10, 50])
def test_hard_set_is_the_largest_logits(name, size):
    held_out = judge(arrays(name)["X"], arrays(name)["y"], size)
    found = held_out.members(torch.from_numpy(arrays(name)["w"])[None])
    assert np.flatnonzero(found[0]).tolist() == values(name)["top"][str(size)]


def test_a_search_finds_what_the_published_optimiser_finds():
    golden, given_ = values("planted_301")["splits"]["split42"], arrays("planted_301")
    train, validation, test = (np.array(golden[part]) for part in ("train", "val", "test"))
    found = adam(
        DenseMatrix(given_["X"][train]),
        given_["y"][train],
        1200,
        validation=DenseMatrix(given_["X"][validation]),
        id_validation=given_["y"][validation],
        trials=5,
        epochs=300,
    )
    expected = golden["sizes"]["1200"]["adam_5_trials"]
    r_test = line_correlation(given_["y"][test], given_["X"][test][:, found.indices].mean(axis=1))
    # Five other draws of the same ranges, and fewer epochs: near, where all examples have 0.99.
    assert found.r_validation < expected["val"] + 0.05
    assert r_test < expected["test"] + 0.05


# --------------------------------------------------------------------------------------------- gradients


@settings(max_examples=25)
@given(st.data())
def test_gradients_are_those_of_the_loss(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    m, n = data.draw(st.integers(4, 10)), data.draw(st.integers(3, 12))
    correct = rng.integers(0, 2, (m, n), dtype=np.uint8)
    penalty = data.draw(st.sampled_from(["softplus", "squared"]))
    objective = data.draw(st.sampled_from(["r", "r2"]))
    problem = relaxation(correct, rng.uniform(0.2, 0.9, m), data.draw(st.integers(1, n)), penalty, objective)
    w = torch.from_numpy(rng.normal(size=(1, n)))
    # As the authors have it: the loss written down, and differentiated by machine.
    leaf = w.clone().requires_grad_()
    soft = torch.sigmoid(leaf[0])
    a = problem.correct @ soft / (soft.sum() + 1e-6)
    u = torch.special.ndtri(a.clamp(1e-6, 1 - 1e-6))
    u = u - u.mean()
    r = (u * torch.from_numpy(problem.target.centred)).mean() / torch.sqrt((u * u).mean() + 1e-6)
    excess = soft.sum() - problem.size
    cost = torch.nn.functional.softplus(-excess) if penalty == "softplus" else excess**2
    literal = (r**2 if objective == "r2" else r) + 1.7 * cost
    literal.backward()
    loss, _, gradient = problem.loss(w, np.array([1.7]))
    assert loss[0] == pytest.approx(float(literal.detach()), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-6, atol=1e-9)


def test_a_clipped_model_pulls_nothing():
    correct = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.uint8)
    id_accuracy = np.array([0.5, 0.6, 0.7, 0.8])
    _, slope = AdamTarget.of(id_accuracy, 1e-6).correlation(correct.mean(axis=1))
    assert slope[0] == 0
    assert slope[3] == 0
    assert slope[1] < 0 < slope[2]


# ------------------------------------------------------------------------------------------ the hard set


@given(st.data())
def test_largest_entries_equal_a_stable_sort(data):
    rows = data.draw(st.integers(1, 3))
    n = data.draw(st.integers(1, 20))
    drawn = st.lists(st.integers(-3, 3), min_size=rows * n, max_size=rows * n)
    found = np.array(data.draw(drawn), dtype=np.float32).reshape(rows, n)
    count = data.draw(st.integers(0, n))
    chosen = _descent._largest(torch.from_numpy(found), count)
    for row, mask in zip(found, chosen.numpy(), strict=True):
        assert np.flatnonzero(mask).tolist() == sorted(np.argsort(-row, kind="stable")[:count].tolist())
    with pretending():  # where another function finds the threshold
        elsewhere = _descent._largest(torch.from_numpy(found).to(FIRST), count).cpu()
    assert torch.equal(elsewhere, chosen)


# ----------------------------------------------------------------------------------------------- schedule


def test_the_rate_falls_for_a_period_and_rises_for_the_next():
    parameters = AdamParameters(
        learning_rate=2.0, minimum_rate=0.5, period=10, penalty_weight=8.0, anneal_epochs=4
    )
    assert [parameters.rate_at(e) for e in (0, 5, 10, 15, 20)] == pytest.approx([2, 1.25, 0.5, 1.25, 2])
    assert [parameters.weight_at(e) for e in (0, 2, 4, 400)] == pytest.approx([0, 4, 8, 8])


def test_settings_come_from_the_published_ranges():
    rng = np.random.default_rng(0)
    drawn = [module.draw_parameters(rng) for _ in range(2000)]
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
    assert {type(each.period) for each in drawn} == {int}
    assert {10, 200} <= {each.period for each in drawn}  # both ends


# ------------------------------------------------------------------------------------------------- search


@pytest.fixture
def problem():
    """A quarter of 80 examples on the inverse line: matrices and accuracies of 40 and 16 models."""
    rng = np.random.default_rng(5)
    y = rng.uniform(0.55, 0.95, 56)
    chance = np.where(np.arange(80) < 20, 1.4 - y[:, None], y[:, None])
    correct = (rng.uniform(size=chance.shape) < chance).astype(np.uint8)
    return {
        "train": DenseMatrix(correct[:40]),
        "id_train": y[:40],
        "size": 12,
        "validation": DenseMatrix(correct[40:]),
        "id_validation": y[40:],
        "trials": 4,
        "epochs": 150,
        "parameters": {"learning_rate": 0.3, "period": 50},
    }


def ranks(found: Found) -> list[int]:
    return found.indices.tolist()


def test_a_search_finds_planted_examples(problem):
    found = adam(**problem)
    assert np.mean(found.indices < 20) > 0.8
    assert found.r_train < -0.6
    counts = problem["train"].count(found.indices)
    assert found.r_train == pytest.approx(line_correlation(problem["id_train"], counts / 12), abs=1e-15)
    held_out = problem["validation"].count(found.indices)
    assert found.r_validation == line_correlation(problem["id_validation"], held_out / 12)
    assert np.all(np.diff(found.scores) >= 0)
    assert len(found.trace) == 4
    assert found.extras["parameters"]["learning_rate"] == 0.3
    assert {row["period"] for row in found.trace} == {50}
    assert len({row["penalty_weight"] for row in found.trace}) == 4


def test_a_search_repeats_itself_and_depends_on_the_seed(problem):
    found = adam(**problem, seed=3)
    again = adam(**problem, seed=3)
    assert ranks(found) == ranks(again)
    assert found.trace == again.trace
    assert np.array_equal(found.scores, again.scores)
    assert found.trace != adam(**problem, seed=4).trace


def test_trials_do_not_depend_on_their_number_or_on_those_beside_them(problem, monkeypatch):
    every = adam(**problem, precision="float64")
    fewer = adam(**{**problem, "trials": 2}, precision="float64")
    for one, other in zip(every.trace[:2], fewer.trace, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    monkeypatch.setattr(module, "_LARGEST_BLOCK", 80)  # one at a time
    alone = adam(**problem, precision="float64")
    assert ranks(alone) == ranks(every)


def test_the_winner_is_the_trial_with_the_lowest_kept_epoch(problem):
    for keep, column in (("last", "validation"), ("best", "best_validation")):
        found = adam(**problem, keep=keep)
        kept = [row[column] for row in found.trace]
        assert found.extras["trial"] == int(np.argmin(kept))
        # The exact correlation differs from the kept one by the ridge alone.
        assert found.r_validation == pytest.approx(min(kept), abs=1e-3)
    assert adam(**problem, keep="best").r_validation <= adam(**problem).r_validation + 1e-3


def test_a_trial_stops_after_epochs_without_a_new_minimum(problem):
    found = adam(**{**problem, "epochs": 400, "trials": 6}, patience=20)
    for row in found.trace:
        assert row["epochs"] == min(400, row["best_epoch"] + 1 + 20)
    assert len({row["epochs"] for row in found.trace}) > 1
    # A trial that goes on after others have stopped is the same as one by itself.
    patient = adam(**{**problem, "epochs": 400, "trials": 6}, patience=20, precision="float64")
    for trial in (0, 2):
        single = adam(**{**problem, "epochs": 400, "trials": trial + 1}, patience=20, precision="float64")
        assert single.trace[trial]["epochs"] == patient.trace[trial]["epochs"]


def test_penalties_hold_the_mass_at_the_size_or_above(problem):
    correct, y = problem["train"].dense(), problem["id_train"]
    held_out = judge(problem["validation"].dense(), problem["id_validation"], 12)
    rows = AdamParameters(
        learning_rate=0.2, minimum_rate=0.01, period=200, penalty_weight=50.0, anneal_epochs=10
    )
    w = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 80)))
    mass = {}
    for penalty in ("softplus", "squared"):
        for size in (12, 60):
            found = descend(
                relaxation(correct, y, size, penalty),
                held_out,
                w,
                [rows],
                epochs=250,
                patience=250,
                keep="last",
            )[0]
            mass[penalty, size] = float(torch.sigmoid(torch.from_numpy(found.logits)).sum())
    assert mass["squared", 12] == pytest.approx(12, abs=0.1)
    assert mass["squared", 60] == pytest.approx(60, abs=0.1)
    assert mass["softplus", 60] > 59  # held from below
    assert mass["softplus", 12] > 15  # mass above the size is free


def test_the_weakest_correlation_is_another_objective(problem):
    lowest, weakest = adam(**problem), adam(**problem, objective="r2")
    assert abs(weakest.r_train) < 0.4 < abs(lowest.r_train)
    assert all(row["validation"] >= 0 for row in weakest.trace)


def test_single_and_double_precision_agree_at_first(problem):
    single, double = (
        adam(**{**problem, "epochs": 3}, precision=precision) for precision in ("float32", "float64")
    )
    assert ranks(single) == ranks(double)
    np.testing.assert_allclose(single.scores, double.scores, rtol=1e-4)


def on_device(problem, device):
    """The same problem in the layout of an accelerator."""
    matrices = {name: problem[name].dense() for name in ("train", "validation")}
    return problem | {name: DeviceMatrix(each, device=device) for name, each in matrices.items()}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "r2", "penalty": "squared", "keep": "best"},
        {"patience": 20, "epochs": 400, "trials": 6},
        {"precision": "float64", "strata": np.arange(80) % 4, "must_include": np.array([71])},
        {"allowed": np.arange(80) % 2 == 1},
    ],
)
def test_layouts_give_the_same_bits(problem, options):
    packed = {name: PackedMatrix.pack(problem[name].dense()) for name in ("train", "validation")}
    one = adam(**{**problem, **packed, **options})
    for held in (problem, on_device(problem, "cpu")):
        other = adam(**{**held, **options})
        assert ranks(one) == ranks(other)
        assert one.trace == other.trace
        assert np.array_equal(one.scores, other.scores)


def test_a_job_with_an_accelerator_selects_the_same():
    data = assay.CorrectnessData.of(np.tri(30, 80, 20, dtype=np.uint8), np.linspace(0.4, 0.8, 30))
    given_ = {"size": 9, "solver": "adam", "trials": 2, "epochs": 20, "groups": range(30)}
    one = assay.oodselect(data.correct, data.id_accuracy, layout="packed", **given_)
    other = assay.oodselect(data.correct, data.id_accuracy, layout="accelerator", device="cpu", **given_)
    assert one.indices.tolist() == other.indices.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"patience": 5},  # some restarts end before others
        {"objective": "r2", "penalty": "squared", "keep": "best"},
        {"strata": np.arange(80) % 4, "must_include": np.array([71])},
        {"allowed": np.arange(80) % 2 == 1},
    ],
)
def test_a_descent_keeps_to_its_device(problem, options):
    """On a pretend one, where tensors of two places cannot meet, with the same bits."""
    given_ = {**problem, "epochs": 30, **options}
    with pretending():
        found = adam(**on_device(given_, FIRST))
    expected = adam(**on_device(given_, "cpu"))
    assert ranks(found) == ranks(expected)
    assert found.trace == expected.trace


def test_only_a_gpu_under_adam_is_part_of_the_identity():
    """Its sums round differently; counts of `swap` and the layouts of the CPU do not."""
    assert Settings(solver="adam", device="cuda:1").record()["device"] == "cuda"
    known = set(Settings().record())
    for given_ in (
        {"solver": "swap", "device": "cuda"},
        {"solver": "adam", "device": "cpu", "layout": "accelerator"},
        {"solver": "adam", "layout": "packed"},
    ):
        assert set(Settings(**given_).record()) == known


def test_apple_devices_are_refused_before_tensors_are_made(problem, monkeypatch):
    """They have no float64, so the first tensor would fail with another message."""
    held = on_device(problem, "cpu")
    for name in ("train", "validation"):
        held[name].device = torch.device("mps")
    monkeypatch.setattr(DeviceMatrix, "tensor", lambda *_: pytest.fail("a tensor was made"))
    with pytest.raises(InputError, match="which device 'mps' cannot; remove device and layout"):
        adam(**held)


@pytest.mark.gpu
@pytest.mark.parametrize("strata", [None, np.arange(80) % 4])
def test_a_gpu_descends_as_the_cpu_does(problem, strata):
    """In float64, whose rounding 150 epochs do not make visible."""
    given_ = {**problem, "precision": "float64", "strata": strata}
    one, other = adam(**given_), adam(**on_device(given_, "cuda"))
    assert ranks(one) == ranks(other)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-6)


def test_all_examples_are_all_examples(problem):
    assert sorted(ranks(adam(**{**problem, "size": 80, "epochs": 2}))) == list(range(80))


# -------------------------------------------------------------------------------------------- constraints


def test_only_allowed_examples_are_selected(problem):
    allowed = np.arange(80) % 2 == 1
    found = adam(**problem, allowed=allowed)
    assert (found.indices % 2 == 1).all()
    # The others might as well not be there.
    odd = np.arange(1, 80, 2)
    alone = adam(
        **{name: value for name, value in problem.items() if name not in ("train", "validation")},
        train=DenseMatrix(problem["train"].dense(odd)),
        validation=DenseMatrix(problem["validation"].dense(odd)),
    )
    assert ranks(found) == odd[alone.indices].tolist()


def test_what_must_be_in_is_in(problem):
    found = adam(**problem, must_include=np.array([70, 75]))
    assert sorted(ranks(found)[:2]) == [70, 75]
    assert np.isneginf(found.scores[:2]).all()
    assert np.isfinite(found.scores[2:]).all()


def test_strata_keep_their_share(problem):
    strata = np.arange(80) % 4
    found = adam(**problem, strata=strata, must_include=np.array([71]))
    assert np.bincount(strata[found.indices]).tolist() == [3, 3, 3, 3]
    assert 71 in found.indices


# ------------------------------------------------------------------------------------------------- errors


def test_bad_options_are_named(problem):
    data = assay.CorrectnessData.of(np.eye(30, 80, dtype=np.uint8), np.linspace(0.4, 0.8, 30))
    for options, message in (
        ({"penalty": "hinge"}, "unknown penalty 'hinge'"),
        ({"keep": "first"}, "unknown keep 'first'"),
        ({"search": "tpe"}, "unknown search 'tpe'"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"parameters": {"lr": 1.0}}, "unknown parameter of solver='adam' 'lr'"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            assay.oodselect(data, size=9, solver="adam", trials=1, epochs=1, **options)
    for options, message in (
        ({"trials": 0}, "trials is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"patience": 0}, "patience is 0"),
        ({"size": 81}, "size is 81"),
        ({"parameters": {"period": 2.5}}, "a whole number of at least 1"),
        ({"parameters": {"learning_rate": -1.0}}, "a finite number of at least 0"),
        ({"allowed": np.arange(80) < 5}, "allowed leaves only 5"),
        ({"id_train": np.full(40, 0.5)}, "id_train"),
        ({"id_validation": np.full(16, 0.5)}, "id_validation"),
    ):
        with pytest.raises(InputError, match=message):
            adam(**{**problem, **options})


def test_matrices_too_large_for_floating_point_are_refused(problem, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST_BYTES", 56 * 80 * 4 - 1)
    with pytest.raises(InputError, match=r"(?s)56 models x 80 examples.*solver='swap'"):
        adam(**problem)
    monkeypatch.setattr(module, "_LARGEST_BYTES", 56 * 80 * 4)
    adam(**{**problem, "epochs": 1})


def test_the_ridge_makes_constant_accuracies_uncorrelated():
    id_accuracy = np.array([0.5, 0.6, 0.7, 0.8])
    target = AdamTarget.of(id_accuracy, 1e-6)
    assert target.correlation(np.zeros(4))[0] == 0
    accuracy = np.array([[0.1, 0.3, 0.2, 0.4], [0.4, 0.2, 0.3, 0.1]])
    exact = [line_correlation(id_accuracy, row) for row in accuracy]
    found = target.correlation(accuracy)[0]
    np.testing.assert_allclose(found, exact, atol=1e-4)
    assert (np.abs(found) < np.abs(exact)).all()
