"""The default solver: by hand, against independent values, a slow literal version and all subsets."""

import itertools
import json

import numpy as np
import pytest
from goldens import FOLDER, SMALL, arrays, values
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted_subsets import planted_matrix
from scipy.special import ndtr, ndtri

from assay.analyses.subsets.line import line_correlation, line_correlations, probit
from assay.analyses.subsets.matrix import Answers
from assay.analyses.subsets.swap import (
    FLOOR,
    KAPPAS,
    Pool,
    Solution,
    line_gradient,
    marginal_scores,
    stratum_quota,
    swap,
    unit_probit,
)
from assay.core.errors import InputError


EPS = 1e-6

# Four models, probits of in-distribution accuracy -1.5, -0.5, 0.5, 1.5, hence z = (-3, -1, 1, 3) / sqrt(20).
HAND_ID = ndtr(np.array([-1.5, -0.5, 0.5, 1.5]))
HAND = np.array([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=np.uint8)
ALL = {"train": np.arange(4), "validation": np.arange(4)}


def solve(correct, id_accuracy, size, *, train, validation, **options) -> Solution:
    held_out = Answers.of(correct, validation)
    task = (size, id_accuracy[train], id_accuracy[validation])
    return swap(Answers.of(correct, train), [task], validation=held_out, **options)[0]


# ------------------------------------------------------------------------------------------------ literal


def clipped_probit(p, clip):
    return ndtri(np.clip(p, clip, 1 - clip))


def literal_swap(X, y, S, score, Xv, yv, strata=None, allowed=None):
    """Section by section as defined, with full stable sorts of a dense float64 matrix.

    Marginal scores are given: those of equal value by chance (all right, all wrong) are ordered by rounding.
    """
    m, N = X.shape
    X = X.astype(np.float64)
    z = clipped_probit(y, EPS) - clipped_probit(y, EPS).mean()
    z = z / np.sqrt(z @ z)
    strata = np.zeros(N, dtype=int) if strata is None else strata
    allowed = np.ones(N, dtype=bool) if allowed is None else allowed
    e = max(EPS, 0.25 / S)

    def norms(t, rho):
        u = t - t.mean()
        squares = u @ u if u @ u > 1e-18 else 0.0
        d = np.sqrt(squares + rho)
        return u, d

    def objective(c, rho):
        u, d = norms(clipped_probit(c / S, e), rho)
        return u @ z / d if d else 0.0

    def gradient(a, rho):
        t = clipped_probit(a, e)
        u, d = norms(t, rho)
        F, d = (u @ z / d, d) if d else (0.0, 1.0)
        q = (z - F * u / d) / d * np.sqrt(2 * np.pi) * np.exp(t * t / 2)
        total = np.abs(q).sum()
        return np.rint(q * ((2**24 - m) / total)) @ X if total else np.zeros(N)

    def held_out_r(members):
        t = clipped_probit(Xv[:, sorted(members)].sum(axis=1) / S, EPS)
        zv = clipped_probit(yv, EPS) - clipped_probit(yv, EPS).mean()
        u = t - t.mean()
        return u @ (zv / np.sqrt(zv @ zv)) / np.sqrt(u @ u) if u @ u > 1e-18 else np.nan

    def judged(members):
        r = held_out_r(members)
        return np.inf if np.isnan(r) else r

    pool = [j for j in range(N) if allowed[j]]
    shares = [S * sum(strata[j] == h for j in pool) / len(pool) for h in range(strata.max() + 1)]
    quota = [int(S * sum(strata[j] == h for j in pool) // len(pool)) for h in range(strata.max() + 1)]
    rest = sorted(range(len(quota)), key=lambda h: (-round(shares[h] - quota[h], 9), h))
    for h in rest[: S - sum(quota)]:
        quota[h] += 1

    members = set()
    for h, wanted in enumerate(quota):
        members |= set(sorted((j for j in pool if strata[j] == h), key=lambda j: (score[j], j))[:wanted])

    def counts(members):
        return X[:, sorted(members)].sum(axis=1)

    t = clipped_probit(counts(members) / S, e)
    spread = ((t - t.mean()) ** 2).sum()
    spread = spread if spread > 1e-18 else float(m)
    best = (judged(members), set(members), 10 * spread)
    for kappa in KAPPAS:
        rho, b = kappa * spread, max(1, S // 2)
        iterations = stale = 0
        lowest = judged(members)
        while b and iterations < 200 and stale < 40:
            iterations += 1
            g = gradient(counts(members) / S, rho)
            pairs = []
            for h in range(len(quota)):
                inside = [j for j in sorted(members) if strata[j] == h]
                outside = [j for j in pool if strata[j] == h and j not in members]
                inside = sorted(inside, key=lambda j: -g[j])
                outside = sorted(outside, key=lambda j: g[j])
                pairs += [(out, into) for out, into in zip(inside, outside, strict=False)]
            pairs = sorted(pairs, key=lambda pair: -(g[pair[0]] - g[pair[1]]))[:b]
            pairs = [pair for pair in pairs if g[pair[1]] < g[pair[0]]]
            if not pairs:
                break
            now = objective(counts(members), rho)
            while b:
                changed = pairs[:b]
                new = (members - {out for out, _ in changed}) | {into for _, into in changed}
                if objective(counts(new), rho) < now - 1e-9:
                    break
                b = min(b, len(pairs)) // 2
            if not b:
                break
            members = new
            value = judged(members)
            stale = 0 if value < lowest else stale + 1
            lowest = min(lowest, value)
            if value < best[0]:
                best = (value, set(members), rho)
    _, members, rho = best
    g = gradient(counts(members) / S, rho)
    return sorted(members, key=lambda j: (g[j], j)), held_out_r(members)


@st.composite
def problems(draw):
    n_train, n_validation = draw(st.integers(4, 14)), draw(st.integers(4, 8))
    n_examples = draw(st.integers(4, 40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    skill = generator.standard_normal(n_train + n_validation)
    slopes = generator.normal(0.2, 1, n_examples)
    correct = (generator.standard_normal((len(skill), n_examples)) < np.outer(skill, slopes)).astype(np.uint8)
    id_accuracy = np.round(ndtr(skill), draw(st.sampled_from([1, 3])))
    assume(len(set(id_accuracy[:n_train])) > 1)
    assume(len(set(id_accuracy[n_train:])) > 1)
    allowed = generator.random(n_examples) < draw(st.sampled_from([1.0, 0.8]))
    assume(allowed.sum() >= 2)
    return {
        "correct": correct,
        "id_accuracy": id_accuracy,
        "size": draw(st.integers(1, int(allowed.sum()))),
        "train": np.arange(n_train),
        "validation": np.arange(n_train, len(skill)),
        "allowed": allowed,
        "strata": generator.integers(0, draw(st.integers(1, 4)), n_examples),
        "generator": generator,
    }


@settings(max_examples=80)
@given(problem=problems(), stratified=st.booleans())
def test_the_solver_equals_its_literal_version(problem, stratified):
    correct, y, size, allowed = (problem[name] for name in ("correct", "id_accuracy", "size", "allowed"))
    train, validation = problem["train"], problem["validation"]
    strata = problem["strata"] if stratified else None
    assume(strata is None or len(np.unique(strata[allowed])) <= size)
    options = {"strata": strata, "allowed": allowed}
    found = solve(correct, y, size, train=train, validation=validation, **options)
    score = marginal_scores(Answers.of(correct, train), y[train])
    sides = [(correct[each], y[each]) for each in (train, validation)]
    expected, r = literal_swap(*sides[0], size, score, *sides[1], **options)
    assert found.indices.tolist() == expected
    assert found.r_validation == pytest.approx(r, abs=1e-12, nan_ok=True)
    assert len(set(expected)) == size
    assert allowed[found.indices].all()


def every_subset(correct, id_accuracy, size, eps):
    """R of each subset of a size, in lexicographic order."""
    sets = np.array(list(itertools.combinations(range(correct.shape[1]), size)))
    accuracy = correct[:, sets].mean(axis=2).T
    if eps == EPS:
        return sets, line_correlations(id_accuracy, accuracy)
    x, t = probit(id_accuracy), probit(accuracy, eps=eps)
    return sets, np.array([np.corrcoef(x, row)[0, 1] if np.ptp(row) else np.nan for row in t])


def test_the_solver_comes_close_to_the_best_subset():
    # Judged on the training models themselves, so that it keeps the lowest training R on its way.
    size, gaps, starts = 5, [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        y = rng.uniform(0.3, 0.95, 100)
        chance = np.clip(y[:, None] + 0.3 * rng.normal(size=16), 0.02, 0.98)
        correct = (rng.uniform(size=chance.shape) < chance).astype(np.uint8)
        eps = FLOOR / size
        sets, r = every_subset(correct, y, size, eps)
        found = np.sort(solve(correct, y, size, train=np.arange(100), validation=np.arange(100)).indices)
        first = np.sort(np.argsort(marginal_scores(Answers.of(correct), y), kind="stable")[:size])
        of = {tuple(each): value for each, value in zip(sets.tolist(), r, strict=True)}
        gaps.append(of[tuple(found.tolist())] - np.nanmin(r))
        starts.append(of[tuple(first.tolist())] - np.nanmin(r))
    assert min(gaps) >= -1e-12
    assert np.median(gaps) < 0.01
    assert np.median(gaps) < np.median(starts)


def test_correlation_is_neither_submodular_nor_supermodular():
    golden = json.loads((FOLDER / "non_submodular.json").read_text())
    y, signs = np.array(golden["id_accuracy"]), []
    for case in golden["cases"]:
        correct = np.array(case["X"], dtype=np.uint8)
        found = {}
        for name in ("0", "03", "012", "0123"):
            accuracy = correct[:, [int(digit) for digit in name]].mean(axis=1)
            ends = (probit(each, eps=golden["clip"]) for each in (y, accuracy))
            found[name] = np.corrcoef(*ends)[0, 1]
            assert found[name] == pytest.approx(case[f"r_{name}"], rel=1e-9)
        signs.append(np.sign(found["03"] - found["0"] - (found["0123"] - found["012"])))
    # A set function has gains that never rise (submodular) or never fall (supermodular) with the set: not R.
    assert sorted(signs) == [-1, 1]


# ------------------------------------------------------------------------------------------------ by hand


def test_marginal_scores_by_hand():
    found = marginal_scores(Answers.of(HAND), HAND_ID)
    np.testing.assert_allclose(found, np.array([-4, 4, -3, 3, 0]) / np.sqrt(20), atol=1e-12)


def test_two_examples_of_five_by_hand():
    # The start holds examples 0 and 2; models get 2, 1, 0, 0 of them right. Clipped at 1/8 the probits are
    # (x, 0, -x, -x), centred x (5, 1, -3, -3) / 4, and R = -28 / sqrt(44 * 20). No exchange is lower.
    found = solve(HAND, HAND_ID, 2, **ALL)
    assert sorted(found.indices.tolist()) == [0, 2]
    sets, r = every_subset(HAND, HAND_ID, 2, EPS)
    assert found.r_train == found.r_validation == pytest.approx(np.nanmin(r), abs=1e-12)
    assert sets[np.nanargmin(r)].tolist() == [0, 2]
    value, _ = line_gradient(np.array([1, 0.5, 0, 0]), unit_probit(HAND_ID, "y"), 0.0, 1 / 8)
    assert value == pytest.approx(-28 / np.sqrt(44 * 20), abs=1e-12)


def test_identical_examples_are_taken_in_their_order():
    correct = np.repeat(HAND, 6, axis=1)  # examples 0 to 5 are the same, and so on
    found = solve(correct, HAND_ID, 3, **ALL)
    # From 0, 1, 2 it is worth to let one go for a copy of old example 2: the lower index first, out and in.
    assert sorted(found.indices.tolist()) == [1, 2, 12]


def test_quotas_by_largest_remainder():
    assert stratum_quota(np.array([0] * 5 + [1] * 3 + [2] * 2), 4).tolist() == [2, 1, 1]  # 2, 1.2, 0.8
    assert stratum_quota(np.array([1, 1, 0, 0]), 3).tolist() == [2, 1]  # a tie goes to the lower stratum
    assert stratum_quota(np.array([0, 3, 3]), 3).tolist() == [1, 0, 0, 2]


# ------------------------------------------------------------------------------------------------ gradient


@pytest.mark.parametrize("name", SMALL)
def test_gradient_against_independent_values(name):
    data, expected = arrays(name), values(name)["soft"]
    weights = 1 / (1 + np.exp(-data["w"]))
    accuracy = data["X"] @ weights / weights.sum()
    value, q = line_gradient(accuracy, unit_probit(data["y"], "y"), 0.0, EPS)
    assert value == pytest.approx(expected["value"], abs=1e-12)
    gradient = q @ (data["X"] - accuracy[:, None]) / weights.sum()
    np.testing.assert_allclose(gradient, expected["grad"], atol=1e-12)


def test_degenerate_accuracies_keep_a_direction():
    z = unit_probit(np.array([0.5, 0.6, 0.7, 0.9]), "y")
    at, beyond = (line_gradient(np.array([low, 0.5, 0.4, 0.6]), z, 0.0, 0.1) for low in (0.1, 0.0))
    assert at[0] == beyond[0]
    assert np.array_equal(at[1], beyond[1])  # a clipped model keeps the slope at the clip
    assert np.abs(at[1][0]) > 0
    value, q = line_gradient(np.full(4, 0.5), z, 0.0, EPS)  # models that agree: that of the covariance
    assert value == 0
    np.testing.assert_allclose(q, z * np.sqrt(2 * np.pi), atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_marginal_scores_and_quotas_against_independent_values(name):
    data, golden = arrays(name), values(name)
    train = np.array(golden["split42"]["train"])
    found = marginal_scores(Answers.of(data["X"], train), data["y"][train])
    np.testing.assert_allclose(found, golden["marginal_train"]["score"], atol=1e-12)
    assert np.flatnonzero(Pool(200, 20).lowest(found)).tolist() == golden["marginal_train"]["top20"]
    strata, expected = data["labels"].astype(np.int64), golden["stratified_top50"]
    assert stratum_quota(strata, 50).tolist() == expected["quota"]
    assert np.flatnonzero(Pool(200, 50, strata).lowest(data["scores"])).tolist() == expected["index"]


# ------------------------------------------------------------------------------------------------ planted


@pytest.mark.parametrize("split", ["split42", "family"])
def test_planted_subsets_are_found_as_well_as_by_the_prototype(split):
    data, golden = arrays("planted_301"), values("planted_301")["splits"][split]
    train, validation, test = (np.array(golden[part]) for part in ("train", "val", "test"))
    sides = Answers.of(data["X"], train), Answers.of(data["X"], validation)
    sizes, y = [int(size) for size in golden["sizes"]], data["y"]
    together = swap(sides[0], [(size, y[train], y[validation]) for size in sizes], validation=sides[1])
    for size, found in zip(sizes, together, strict=True):
        expected = golden["sizes"][str(size)]["prototype_fast"]
        r = line_correlation(y[test], data["X"][test][:, found.indices].mean(axis=1))
        assert r <= expected["test"] + 0.02
        assert found.r_validation == pytest.approx(expected["val"], abs=0.02)
    alone = solve(data["X"], y, sizes[1], train=train, validation=validation)
    assert alone.to_dict() == together[1].to_dict()


# ---------------------------------------------------------------------------------------------- properties


@pytest.fixture(scope="module")
def small():
    """A matrix, its accuracies, and the train and validation rows of a split."""
    planted = planted_matrix(60, 300, seed=1)
    return planted.correct, planted.id_accuracy, {"train": np.arange(36), "validation": np.arange(36, 60)}


def test_scores_of_0_and_1_select_as_right_and_wrong_answers_do(small):
    correct, id_accuracy, split = small
    bits = solve(correct, id_accuracy, 40, **split)
    scores = solve(correct.astype(np.float32), id_accuracy, 40, **split)
    assert scores.to_dict() == bits.to_dict()


def test_the_trace_counts_and_inputs_are_not_changed(small):
    correct, id_accuracy, split = small
    before = correct.copy(), id_accuracy.copy()
    found = solve(correct, id_accuracy, 40, **split)
    assert [stage["kappa"] for stage in found.trace] == list(KAPPAS)
    assert found.trace[-1]["best_r_validation"] == found.r_validation
    assert found.r_validation <= min(stage["r_validation"] for stage in found.trace)
    accuracy = correct[36:60][:, found.indices].mean(axis=1)
    assert found.r_validation == pytest.approx(line_correlation(id_accuracy[36:60], accuracy), abs=1e-12)
    accuracy = correct[:36][:, found.indices].mean(axis=1)
    assert found.r_train == pytest.approx(line_correlation(id_accuracy[:36], accuracy), abs=1e-12)
    # At fixed mass the derivatives of the members sum to 0, each being weighted by the same s_j.
    assert np.all(np.diff(found.scores) >= 0)
    assert found.scores.sum() == pytest.approx(0, abs=1e-6)
    assert np.array_equal(correct, before[0])
    assert np.array_equal(id_accuracy, before[1])


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (0, {}, "size is 0; choose between 1 and 5"),
        (3, {"allowed": np.array([1, 1, 0, 0, 0], bool)}, "between 1 and 2, the examples that are allowed"),
        (2, {"strata": np.array([0, 1, 2, 2, 2])}, "there are 3 strata; merge some"),
    ],
)
def test_constraints_that_cannot_be_met_are_named(size, options, message):
    with pytest.raises(InputError, match=message):
        solve(HAND, HAND_ID, size, **ALL, **options)
    same = {"id_train": HAND_ID, "id_validation": HAND_ID}
    for name in same:
        task = (2, *(same | {name: np.full(4, 0.5)}).values())
        with pytest.raises(InputError, match=f"{name}: all accuracies are equal"):
            swap(Answers.of(HAND), [task], validation=Answers.of(HAND))
