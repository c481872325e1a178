"""What is provable about the correlation of a subset: bounds, invariances, what every solver must keep."""

import math

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from assay.analyses.subsets.baselines import baseline_indices
from assay.analyses.subsets.consistency import selection_consistency
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import DenseMatrix
from assay.analyses.subsets.line import EPS, fit_line, line_correlation, probit
from assay.analyses.subsets.objective import marginal_scores
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.settings import SOLVERS, Settings
from assay.analyses.subsets.splits import ModelSplit


CLIPS = (EPS, 0.02, 0.2)  # the first makes the Lipschitz constant 2e5, the last 3.6


def steepest(eps):
    """Largest slope of the clipped probit, L."""
    return math.sqrt(2 * math.pi) * math.exp(float(probit(eps)) ** 2 / 2)


def centred(accuracy, eps=EPS):
    t = probit(accuracy, eps=eps)
    return t - t.mean()


def one_more_model_bound(x, y):
    """L1: by how much the last of the points can have moved the correlation of those before it."""
    n = len(x) - 1
    parts = [(side[-1] - side[:-1].mean()) ** 2 / side[:-1].var() for side in (probit(x), probit(y))]
    return sum(parts) / (n + 1)


def change_bound(before, after):
    """L2: by how much a correlation can differ between two vectors of accuracies."""
    u, v = centred(before), centred(after)
    return 2 * np.linalg.norm(v - u) / (np.linalg.norm(u) + np.linalg.norm(v))


def problem(seed, m, n):
    rng = np.random.default_rng(seed)
    y = rng.uniform(0.3, 0.95, m)
    chance = np.clip(y[:, None] + rng.normal(size=n) * 0.3, 0.02, 0.98)
    return rng, (rng.uniform(size=(m, n)) < chance).astype(np.uint8), y


cases = st.tuples(st.integers(0, 2**32), st.integers(4, 20), st.integers(2, 25))


# ------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("name", SMALL)
def test_one_more_model_in_the_goldens(name):
    given_ = arrays(name)
    accuracy = given_["X"].mean(axis=1)
    for case in values(name)["lemma1"]:
        models = given_["order"][: case["n"] + 1]
        x, y = given_["y"][models], accuracy[models]
        assert line_correlation(x[:-1], y[:-1]) == pytest.approx(case["r0"], rel=1e-12)
        assert line_correlation(x, y) == pytest.approx(case["r1"], rel=1e-12)
        assert one_more_model_bound(x, y) == pytest.approx(case["bound"], rel=1e-9)
        assert abs(case["r1"] - case["r0"]) <= case["bound"]


@given(seed=st.integers(0, 2**32), n=st.integers(3, 40), far=st.floats(0, 1))
def test_one_more_model_moves_the_correlation_by_at_most_a_share(seed, n, far):
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0.2, 0.8, n + 1), rng.uniform(0.2, 0.8, n + 1)
    x[-1], y[-1] = far, 1 - far  # also far outside, up to both ends of the scale
    change = abs(line_correlation(x, y) - line_correlation(x[:-1], y[:-1]))
    assert change <= one_more_model_bound(x, y) + 1e-9


@pytest.mark.parametrize("name", SMALL)
def test_one_more_example_in_the_goldens(name):
    given_ = arrays(name)
    correct, y = given_["X"].astype(np.int64), given_["y"]
    for case in values(name)["lemma2"]:
        before = correct[:, case["base"]].mean(axis=1)
        after = correct[:, [*case["base"], case["added"]]].mean(axis=1)
        assert line_correlation(y, before) == pytest.approx(case["r0"], rel=1e-12)
        assert line_correlation(y, after) == pytest.approx(case["r1"], rel=1e-12)
        assert change_bound(before, after) == pytest.approx(case["bound"], rel=1e-9)
        assert abs(case["r1"] - case["r0"]) <= case["bound"]


@given(case=cases, data=st.data())
def test_any_change_of_a_selection_moves_the_correlation_by_at_most_its_bound(case, data):
    rng, correct, y = problem(*case)
    n = correct.shape[1]
    before, after = (
        correct[:, rng.permutation(n)[: data.draw(st.integers(1, n))]].mean(axis=1) for _ in range(2)
    )
    r = [line_correlation(y, accuracy) for accuracy in (before, after)]
    assume(not np.isnan(r).any())
    assert abs(r[1] - r[0]) <= change_bound(before, after) + 1e-9


@given(case=cases, eps=st.sampled_from(CLIPS))
def test_one_more_example_moves_no_accuracy_by_more_than_its_share(case, eps):
    rng, correct, _ = problem(*case)
    m, n = correct.shape
    order = rng.permutation(n)
    size = int(rng.integers(1, n))
    before, after = (correct[:, order[:k]].mean(axis=1) for k in (size, size + 1))
    assert np.abs(after - before).max() <= 1 / (size + 1) + 1e-12
    # Hence the change of the probits, through the steepest slope of the clipped probit.
    moved = np.linalg.norm(centred(after, eps) - centred(before, eps))
    assert moved <= steepest(eps) * math.sqrt(m) / (size + 1) + 1e-12


@given(case=cases, eps=st.sampled_from(CLIPS), data=st.data())
def test_the_correlation_is_lipschitz_in_soft_selections_of_one_mass(case, eps, data):
    rng, correct, y = problem(*case)
    n = correct.shape[1]
    mass = data.draw(st.floats(0.5, n / 2))
    soft = rng.dirichlet(np.full(n, 5.0), size=2) * mass
    soft[1] = soft[0] + data.draw(st.sampled_from([1e-3, 0.1, 1.0])) * (soft[1] - soft[0])
    before, after = (correct @ each / mass for each in soft)
    r = [line_correlation(y, accuracy, eps=eps) for accuracy in (before, after)]
    assume(not np.isnan(r).any())
    largest = np.linalg.svd(correct.astype(float), compute_uv=False)[0]
    bound = steepest(eps) * largest * np.linalg.norm(soft[1] - soft[0]) / mass
    u, v = centred(before, eps), centred(after, eps)
    assert np.linalg.norm(v - u) <= bound + 1e-9
    assert abs(r[1] - r[0]) <= 2 * bound / (np.linalg.norm(u) + np.linalg.norm(v)) + 1e-9


@given(seed=st.integers(0, 2**32), m=st.integers(4, 40))
def test_a_line_with_small_residuals_has_a_strong_correlation(seed, m):
    # Eq. 2: R^2 >= 1 - eta^2 / sd^2, with the largest residual; the sign of R is that of the slope.
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.1, 0.9, m)
    y = np.clip(x * rng.choice([-0.5, 0.5]) + 0.5 + rng.normal(size=m) * rng.uniform(0, 0.3), 0, 1)
    line = fit_line(x, y)
    assume(not math.isnan(line.r))
    assert line.r**2 >= 1 - line.max_residual**2 / probit(y).var() - 1e-9
    assert np.sign(line.r) == np.sign(line.slope)


# -------------------------------------------------------------------------------------------- invariances


@given(case=cases)
def test_the_correlation_sees_neither_order_nor_copies_nor_scale(case):
    rng, correct, y = problem(*case)
    m, n = correct.shape
    soft = rng.uniform(size=n)

    def r(matrix, id_accuracy, weights):
        return line_correlation(id_accuracy, np.clip(matrix @ weights / weights.sum(), 0, 1))

    expected = r(correct, y, soft)
    assume(not math.isnan(expected))
    models, examples = rng.permutation(m), rng.permutation(n)
    assert r(correct[models][:, examples], y[models], soft[examples]) == pytest.approx(expected, abs=1e-9)
    assert r(np.repeat(correct, 2, axis=0), np.repeat(y, 2), soft) == pytest.approx(expected, abs=1e-9)
    assert r(correct, y, 7.5 * soft) == pytest.approx(expected, abs=1e-9)
    # Wrong for right turns every probit around.
    assert r(1 - correct, y, soft) == pytest.approx(-expected, abs=1e-9)
    assert line_correlation(1 - y, np.clip(correct @ soft / soft.sum(), 0, 1)) == pytest.approx(
        -expected, abs=1e-9
    )


@given(case=cases, constant=st.integers(0, 1))
def test_examples_that_tell_no_models_apart_score_zero_and_change_no_other(case, constant):
    _, correct, y = problem(*case)
    m = len(y)
    plain = marginal_scores(DenseMatrix(correct), y)
    beside = np.concatenate([correct, np.full((m, 3), constant, dtype=np.uint8)], axis=1)
    found = marginal_scores(DenseMatrix(beside), y)
    np.testing.assert_allclose(found[:-3], plain, atol=1e-12)
    np.testing.assert_allclose(found[-3:], 0, atol=1e-12)


@given(seed=st.integers(0, 2**32), data=st.data())
def test_hard_and_distant_sets_grow(seed, data):
    rng, correct, y = problem(seed, 8, 20)
    embedding = rng.normal(size=(20, 3)).astype(np.float32)
    known = rng.normal(size=(6, 3)).astype(np.float32)
    held = CorrectnessData.of(correct, y, embedding=embedding, id_embedding=known)
    small, large = sorted(data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=2)))
    train = np.arange(5)
    case = Problem(held, ModelSplit(train=train, validation=train, test=train, kind="given"), Settings())
    for kind, mode in (("hard", "nearest"), ("distance", "nearest"), ("distance", "centroid")):
        first, second = baseline_indices(case, kind, [small, large], mode=mode)
        (alone,) = baseline_indices(case, kind, [small], mode=mode)
        assert set(first) == set(alone) <= set(second)


@given(st.data())
def test_normalised_consistency_is_at_most_one(data):
    n = data.draw(st.integers(4, 30))
    sizes = data.draw(st.lists(st.integers(1, n), min_size=2, max_size=4, unique=True))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sets = [rng.permutation(n)[:size] for size in sorted(sizes)]
    found = np.asarray(selection_consistency(sets, n).normalised)
    assert (found[np.isfinite(found)] <= 1 + 1e-12).all()


# ------------------------------------------------------------------------------------------------ solvers


QUICK = {"adam": {"trials": 2, "epochs": 20}}


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("solver", sorted(SOLVERS))
def test_every_solver_returns_a_set_of_the_size_and_the_whole_pool_when_asked_for_it(solver, seed):
    _, correct, y = problem(seed, 24, 12)
    sides = DenseMatrix(correct[:16]), y[:16]
    held_out = {"validation": DenseMatrix(correct[16:]), "id_validation": y[16:]}
    for size in (1, 5, 12):
        found = SOLVERS[solver](*sides, size, **held_out, **QUICK.get(solver, {}))
        assert len(set(found.indices.tolist())) == size
        assert 0 <= found.indices.min() <= found.indices.max() < 12
        assert found.scores.shape == (size,)
        assert (np.diff(found.scores) >= -1e-12).all()
        for r, models in ((found.r_train, slice(0, 16)), (found.r_validation, slice(16, 24))):
            expected = line_correlation(y[models], correct[models][:, found.indices].mean(axis=1))
            assert r == pytest.approx(expected, abs=1e-12, nan_ok=True)
    full = line_correlation(y[:16], correct[:16].mean(axis=1))
    assert found.r_train == pytest.approx(full, abs=1e-12, nan_ok=True)
