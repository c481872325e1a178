"""Greedy and exhaustive selection: by hand, against their literal forms, and what they say of the default."""

import itertools
import json
import math

import numpy as np
import pytest
import small_solvers
from goldens import FOLDER
from hypothesis import given, settings
from hypothesis import strategies as st
from small_solvers import exhaustive, greedy

from assay.analyses.subsets.layouts import DenseMatrix, PackedMatrix
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.objective import marginal_scores
from assay.analyses.subsets.swap import swap
from assay.core.errors import InputError


def random_problem(rng, m, n):
    y = rng.uniform(0.4, 0.95, m)
    chance = np.clip(
        0.5 + rng.normal(size=n) * 0.6 * (y[:, None] - y.mean()) + rng.normal(size=n) * 0.2, 0, 1
    )
    return (rng.uniform(size=(m, n)) < chance).astype(np.uint8), y


def value(correct, y, members, objective="r", eps=1e-6):
    r = line_correlation(y, correct[:, members].mean(axis=1), eps=eps)
    return r**2 if objective == "r2" else r


# ------------------------------------------------------------------------------------------------- by hand


def test_three_subsets_by_hand():
    # Four models of rising skill. Column 0 rises with it, column 1 falls, column 2 falls for three of four.
    correct = np.array([[0, 1, 1], [0, 1, 1], [1, 0, 0], [1, 0, 1]], dtype=np.uint8)
    y = np.array([0.5, 0.6, 0.7, 0.8])
    one = exhaustive(DenseMatrix(correct), y, 1)
    assert one.indices.tolist() == [1]
    assert one.extras["n_subsets"] == 3
    two = exhaustive(DenseMatrix(correct), y, 2)
    # {0, 1} is right half the time for all: undefined. {0, 2} rises weakly. {1, 2} falls: 1, 1, 0, 1/2.
    assert math.isnan(value(correct, y, [0, 1]))
    assert sorted(two.indices.tolist()) == [1, 2]
    assert two.r_train == value(correct, y, [1, 2]) < 0
    # By itself, column 2 falls at the third model and rises at the last: the weakest of the three.
    assert exhaustive(DenseMatrix(correct), y, 1, objective="r2").indices.tolist() == [2]
    everything = exhaustive(DenseMatrix(correct), y, 3)
    assert sorted(everything.indices.tolist()) == [0, 1, 2]


def test_ranks_follow_the_derivative_at_the_set():
    rng = np.random.default_rng(2)
    correct, y = random_problem(rng, 30, 12)
    found = exhaustive(DenseMatrix(correct), y, 5)
    assert (np.diff(found.scores) >= 0).all()
    # Weight 1 + h on one member: by finite differences, with the clip of the objective.
    h = 1e-5
    for example, score in zip(found.indices, found.scores, strict=True):
        weights = np.zeros(12)
        weights[found.indices] = 1
        value_at = []
        for step in (-h, h):
            moved = weights.copy()
            moved[example] += step
            value_at.append(line_correlation(y, correct @ moved / moved.sum(), eps=0.05))
        at = correct[:, found.indices].mean(axis=1)
        if ((at > 0.05) & (at < 0.95)).all():
            assert score == pytest.approx((value_at[1] - value_at[0]) / (2 * h), abs=1e-6)


# --------------------------------------------------------------------------------------------- exhaustive


@settings(max_examples=30)
@given(st.data())
def test_exhaustive_equals_its_literal_form(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n = data.draw(st.integers(2, 9))
    size = data.draw(st.integers(1, n))
    objective = data.draw(st.sampled_from(["r", "r2"]))
    correct, y = random_problem(rng, data.draw(st.integers(4, 12)), n)
    allowed = None
    if data.draw(st.booleans()):
        allowed = rng.uniform(size=n) < 0.8
        allowed[rng.permutation(n)[:size]] = True
    must = np.flatnonzero(np.ones(n, dtype=bool) if allowed is None else allowed)[: rng.integers(0, size + 1)]
    found = exhaustive(
        PackedMatrix.pack(correct), y, size, objective=objective, allowed=allowed, must_include=must
    )
    values = {
        members: value(correct, y, list(members), objective)
        for members in itertools.combinations(range(n), size)
        if set(must) <= set(members) and (allowed is None or allowed[list(members)].all())
    }
    assert found.extras["n_subsets"] == len(values)
    members = tuple(sorted(found.indices.tolist()))
    assert members in values
    defined = [each for each in values.values() if not math.isnan(each)]
    if defined:
        assert values[members] == pytest.approx(min(defined), abs=1e-9)


def test_chunks_change_nothing(monkeypatch):
    correct, y = random_problem(np.random.default_rng(0), 10, 11)
    whole = exhaustive(DenseMatrix(correct), y, 4)
    monkeypatch.setattr(small_solvers, "_CHUNK", 7 * correct.size)
    parts = exhaustive(DenseMatrix(correct), y, 4)
    assert whole.indices.tolist() == parts.indices.tolist()


def test_equal_subsets_give_the_first():
    correct = np.tile(np.array([[1], [1], [0], [0], [1]], dtype=np.uint8), (1, 6))
    found = exhaustive(DenseMatrix(correct), np.array([0.5, 0.6, 0.7, 0.8, 0.9]), 2)
    assert sorted(found.indices.tolist()) == [0, 1]
    constant = exhaustive(DenseMatrix(np.ones((4, 5), dtype=np.uint8)), np.array([0.5, 0.6, 0.7, 0.8]), 2)
    assert sorted(constant.indices.tolist()) == [0, 1]
    assert math.isnan(constant.r_train)


@pytest.mark.parametrize("solver", [greedy, exhaustive])
def test_strata_keep_their_share(solver):
    correct, y = random_problem(np.random.default_rng(1), 20, 14)
    strata = np.arange(14) % 2
    found = solver(DenseMatrix(correct), y, 4, strata=strata, must_include=np.array([3]))
    assert np.bincount(strata[found.indices]).tolist() == [2, 2]
    assert 3 in found.indices
    if solver is exhaustive:
        pairs = itertools.product(
            itertools.combinations(range(0, 14, 2), 2), ((3, k) for k in range(1, 14, 2) if k != 3)
        )
        best = min(value(correct, y, [*even, *odd]) for even, odd in pairs)
        assert found.r_train == pytest.approx(best, abs=1e-12)
        assert found.extras["n_subsets"] == math.comb(7, 2) * 6


# -------------------------------------------------------------------------------------------------- greedy


@settings(max_examples=20)
@given(st.data())
def test_greedy_equals_its_literal_form(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n = data.draw(st.integers(11, 18))
    size = data.draw(st.integers(1, n))
    objective = data.draw(st.sampled_from(["r", "r2"]))
    correct, y = random_problem(rng, data.draw(st.integers(4, 15)), n)
    matrix = DenseMatrix(correct)
    found = greedy(matrix, y, size, objective=objective)
    members = np.argsort(marginal_scores(matrix, y), kind="stable")[: min(10, size)].tolist()
    for k in range(len(members) + 1, size + 1):
        values = {
            j: value(correct, y, [*members, j], objective, eps=0.25 / k) for j in set(range(n)) - set(members)
        }
        defined = [each for each in values.values() if not math.isnan(each)]
        step = found.trace[k - 11]
        if defined:
            assert step["objective"] == pytest.approx(min(defined), abs=1e-7)
            assert values[step["example"]] == pytest.approx(min(defined), abs=1e-7)
        members.append(step["example"])
    assert sorted(members) == sorted(found.indices.tolist())
    assert len(found.trace) == max(0, size - 10)


def test_greedy_goes_down_on_a_plain_case():
    correct, y = random_problem(np.random.default_rng(3), 80, 300)
    found = greedy(DenseMatrix(correct), y, 40)
    steps = [row["objective"] for row in found.trace]
    assert len(steps) == 30
    assert min(steps) < steps[0] < 0
    assert found.r_train < -0.8


@pytest.mark.parametrize("solver", [greedy, exhaustive])
def test_validation_models_are_reported_and_decide_nothing(solver):
    correct, y = random_problem(np.random.default_rng(4), 24, 12)
    alone = solver(DenseMatrix(correct[:16]), y[:16], 4)
    judged = solver(
        DenseMatrix(correct[:16]), y[:16], 4, validation=DenseMatrix(correct[16:]), id_validation=y[16:]
    )
    assert alone.indices.tolist() == judged.indices.tolist()
    assert math.isnan(alone.r_validation)
    assert judged.r_validation == value(correct[16:], y[16:], judged.indices)
    assert judged.r_train == value(correct[:16], y[:16], judged.indices)


@pytest.mark.parametrize("solver", [greedy, exhaustive])
def test_the_whole_pool_is_the_whole_pool(solver):
    correct, y = random_problem(np.random.default_rng(5), 12, 9)
    assert sorted(solver(DenseMatrix(correct), y, 9).indices.tolist()) == list(range(9))


# --------------------------------------------------------------------------------- one against another


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), n=st.integers(11, 15), size=st.integers(1, 15))
def test_nothing_beats_exhaustive(seed, n, size):
    size = min(size, n)
    correct, y = random_problem(np.random.default_rng(seed), 12, n)
    matrix = DenseMatrix(correct)
    best = exhaustive(matrix, y, size).r_train
    for other in (greedy(matrix, y, size), swap(matrix, y, size, validation=matrix, id_validation=y)):
        assert math.isnan(other.r_train) or best <= other.r_train + 1e-12


def test_the_default_solver_comes_close_to_the_best_subset():
    # Judged on the training models themselves, so that swap keeps the lowest training R on its way; with the
    # clip of its objective, so that both minimise the same.
    size, eps = 6, 0.25 / 6
    gaps, marginal_gaps = [], []
    for seed in range(12):
        correct, y = random_problem(np.random.default_rng(seed), 100, 18)
        matrix = DenseMatrix(correct)
        best = exhaustive(matrix, y, size, eps=eps).r_train
        found = swap(matrix, y, size, validation=matrix, id_validation=y, eps=eps)
        start = np.argsort(marginal_scores(matrix, y, eps=eps), kind="stable")[:size]
        gaps.append(found.r_train - best)
        marginal_gaps.append(value(correct, y, start, eps=eps) - best)
    # Measured: the best of the 18,564 subsets in 8 of 12 cases, and 0.025 above it at most.
    assert min(gaps) >= -1e-12
    assert np.median(gaps) < 0.005
    assert max(gaps) < 0.05
    assert np.median(marginal_gaps) > 0.005


def test_correlation_is_neither_submodular_nor_supermodular():
    golden = json.loads((FOLDER / "non_submodular.json").read_text())
    y, eps = np.array(golden["id_accuracy"]), golden["clip"]
    signs = []
    for case in golden["cases"]:
        correct = np.array(case["X"], dtype=np.uint8)
        found = {
            name: value(correct, y, [int(digit) for digit in name], eps=eps)
            for name in ("0", "03", "012", "0123")
        }
        for name, r in found.items():
            assert r == pytest.approx(case[f"r_{name}"], rel=1e-9)
        on_small, on_large = found["03"] - found["0"], found["0123"] - found["012"]
        signs.append(np.sign(on_small - on_large))
    # A set function has gains that never rise (submodular) or never fall (supermodular) with the set: not R.
    assert sorted(signs) == [-1, 1]


# -------------------------------------------------------------------------------------------------- limits


def test_limits_are_named():
    y = np.array([0.5, 0.6, 0.7, 0.8])
    with pytest.raises(InputError, match=r"at most 5000 examples, there are 5001"):
        greedy(DenseMatrix(np.ones((4, 5001), dtype=np.uint8)), y, 3)
    with pytest.raises(InputError, match=r"at most 1,000,000 subsets; 20 of 300 .*10\^30\.9"):
        exhaustive(DenseMatrix(np.ones((4, 300), dtype=np.uint8)), y, 20)
    # Just below and above a million: 1,000,000 of one, and 1,415 * 1,414 / 2 = 1,000,405.
    with pytest.raises(InputError, match="2 of 1415"):
        exhaustive(DenseMatrix(np.ones((4, 1415), dtype=np.uint8)), y, 2)


@pytest.mark.parametrize("solver", [greedy, exhaustive])
def test_bad_input_is_named(solver):
    correct, y = random_problem(np.random.default_rng(0), 6, 12)
    matrix = DenseMatrix(correct)
    for options, message in (
        ({"size": 13}, "size is 13"),
        ({"size": 0}, "size is 0"),
        ({"allowed": np.arange(12) < 2}, "allowed leaves only 2"),
        ({"id_train": np.full(6, 0.5)}, "id_train"),
    ):
        arguments = {"id_train": y, "size": 3, **options}
        with pytest.raises(InputError, match=message):
            solver(matrix, arguments.pop("id_train"), arguments.pop("size"), **arguments)
