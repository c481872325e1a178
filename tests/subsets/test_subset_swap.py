"""The default solver: by hand, against independent values, against a slow literal version."""

import itertools

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted_subsets import planted_matrix
from scipy.special import ndtr, ndtri

from assay.analyses.subsets._exchange import stratum_quota
from assay.analyses.subsets.line import line_correlation
from assay.analyses.subsets.objective import Found, line_gradient, marginal_scores, unit_probit
from assay.analyses.subsets.placement import as_matrix
from assay.analyses.subsets.swap import KAPPAS, swap
from assay.core.errors import AssayWarning, InputError


EPS = 1e-6

# Four models, probits of in-distribution accuracy -1.5, -0.5, 0.5, 1.5, hence z = (-3, -1, 1, 3) / sqrt(20).
HAND_ID = ndtr(np.array([-1.5, -0.5, 0.5, 1.5]))
HAND = np.array([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=np.uint8)


def solve(correct, id_accuracy, size, *, train, validation, layout="dense", **options) -> Found:
    def matrix(rows):
        return as_matrix(correct, rows, layout=layout, device="cpu" if layout == "accelerator" else None)

    if validation is not None:
        options |= {"validation": matrix(validation), "id_validation": id_accuracy[validation]}
    return swap(matrix(train), id_accuracy[train], size, **options)


# ------------------------------------------------------------------------------------------------ literal


def clipped_probit(p, clip):
    return ndtri(np.clip(p, clip, 1 - clip))


def literal_swap(
    X, y, S, score, Xv=None, yv=None, strata=None, allowed=None, locked=(), square=False, start=None
):
    """Section by section as defined, with full stable sorts of a dense float64 matrix.

    Marginal scores are given: those of equal value by chance (all right, all wrong) are ordered by rounding.
    """
    m, N = X.shape
    X = X.astype(np.float64)
    z = clipped_probit(y, EPS) - clipped_probit(y, EPS).mean()
    z = z / np.sqrt(z @ z)
    strata = np.zeros(N, dtype=int) if strata is None else strata
    allowed = np.ones(N, dtype=bool) if allowed is None else allowed
    locked = {int(j) for j in locked}
    e = max(EPS, 0.25 / S)

    def norms(t, rho):
        u = t - t.mean()
        squares = u @ u if u @ u > 1e-18 else 0.0
        d = np.sqrt(squares + rho)
        return u, d

    def objective(c, rho):
        u, d = norms(clipped_probit(c / S, e), rho)
        F = u @ z / d if d else 0.0
        return F * F if square else F

    def gradient(a, rho):
        t = clipped_probit(a, e)
        u, d = norms(t, rho)
        F, d = (u @ z / d, d) if d else (0.0, 1.0)
        q = (z - F * u / d) / d * np.sqrt(2 * np.pi) * np.exp(t * t / 2)
        q = 2 * F * q if square else q
        total = np.abs(q).sum()
        return np.rint(q * ((2**24 - m) / total)) @ X if total else np.zeros(N)

    def held_out_r(members):
        if Xv is None:
            return np.nan
        t = clipped_probit(Xv[:, sorted(members)].sum(axis=1) / S, EPS)
        zv = clipped_probit(yv, EPS) - clipped_probit(yv, EPS).mean()
        u = t - t.mean()
        return u @ (zv / np.sqrt(zv @ zv)) / np.sqrt(u @ u) if u @ u > 1e-18 else np.nan

    def judged(members):
        r = held_out_r(members)
        return np.inf if np.isnan(r) else r * r if square else r

    pool = [j for j in range(N) if allowed[j]]
    shares = [S * sum(strata[j] == h for j in pool) / len(pool) for h in range(strata.max() + 1)]
    quota = [int(S * sum(strata[j] == h for j in pool) // len(pool)) for h in range(strata.max() + 1)]
    rest = sorted(range(len(quota)), key=lambda h: (-round(shares[h] - quota[h], 9), h))
    for h in rest[: S - sum(quota)]:
        quota[h] += 1

    score = np.abs(score) if square else score.copy()
    if start is not None:
        if len(start) < S:
            score = gradient(X[:, start].sum(axis=1) / len(start), 0.0)
        score[start] = -np.inf
    members = set(locked)
    for h, wanted in enumerate(quota):
        free = [j for j in pool if strata[j] == h and j not in locked]
        held = sum(strata[j] == h for j in locked)
        members |= set(sorted(free, key=lambda j: (score[j], j))[: wanted - held])

    def counts(members):
        return X[:, sorted(members)].sum(axis=1)

    t = clipped_probit(counts(members) / S, e)
    spread = ((t - t.mean()) ** 2).sum()
    spread = spread if spread > 1e-18 else float(m)
    best = (judged(members), set(members), 10 * spread)
    for kappa in KAPPAS if Xv is not None else KAPPAS[:5]:
        rho, b = kappa * spread, max(1, S // 2)
        iterations = stale = 0
        lowest = judged(members)
        while b and iterations < 200 and stale < 40:
            iterations += 1
            g = gradient(counts(members) / S, rho)
            pairs = []
            for h in range(len(quota)):
                inside = [j for j in sorted(members) if strata[j] == h and j not in locked]
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
            if Xv is None or value < best[0]:
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


def fits(strata, allowed, size, locked):
    quota = np.zeros(strata.max() + 1, dtype=int)
    found = stratum_quota(strata[allowed], size)
    quota[: len(found)] = found
    return np.all(np.bincount(strata[locked], minlength=len(quota)) <= quota)


@settings(max_examples=60)
@given(
    problem=problems(),
    stratified=st.booleans(),
    locks=st.integers(0, 3),
    square=st.booleans(),
    layout=st.sampled_from(["dense", "packed", "accelerator"]),
)
def test_the_solver_equals_its_literal_version(problem, stratified, locks, square, layout):
    correct, id_accuracy, size = problem["correct"], problem["id_accuracy"], problem["size"]
    train, validation = problem["train"], problem["validation"]
    pool = np.flatnonzero(problem["allowed"])
    locked = problem["generator"].choice(pool, min(locks, size, len(pool)), replace=False)
    strata = problem["strata"] if stratified else None
    assume(strata is None or len(np.unique(strata[problem["allowed"]])) <= size)
    assume(strata is None or fits(strata, problem["allowed"], size, locked))
    found = solve(
        correct,
        id_accuracy,
        size,
        train=train,
        validation=validation,
        layout=layout,
        allowed=problem["allowed"],
        must_include=locked,
        strata=strata,
        objective="r2" if square else "r",
    )
    expected, r = literal_swap(
        correct[train],
        id_accuracy[train],
        size,
        marginal_scores(as_matrix(correct, train), id_accuracy[train]),
        correct[validation],
        id_accuracy[validation],
        strata=strata,
        allowed=problem["allowed"],
        locked=locked,
        square=square,
    )
    assert found.indices.tolist() == expected
    assert found.r_validation == pytest.approx(r, abs=1e-12, nan_ok=True)
    assert len(set(expected)) == size
    assert problem["allowed"][found.indices].all()
    assert np.isin(locked, found.indices).all()


@settings(max_examples=25)
@given(problem=problems(), share=st.floats(0.1, 1))
def test_a_given_start_equals_the_literal_version(problem, share):
    correct, id_accuracy, size = problem["correct"], problem["id_accuracy"], problem["size"]
    train, validation = problem["train"], problem["validation"]
    pool = np.flatnonzero(problem["allowed"])
    start = problem["generator"].choice(pool, max(1, int(share * size)), replace=False)
    options = {"allowed": problem["allowed"], "start": start}
    found = solve(correct, id_accuracy, size, train=train, validation=validation, **options)
    expected, _ = literal_swap(
        correct[train],
        id_accuracy[train],
        size,
        marginal_scores(as_matrix(correct, train), id_accuracy[train]),
        correct[validation],
        id_accuracy[validation],
        **options,
    )
    assert found.indices.tolist() == expected


@settings(max_examples=20)
@given(problem=problems())
def test_without_validation_it_warns_and_keeps_the_last_set(problem):
    correct, id_accuracy, size = problem["correct"], problem["id_accuracy"], problem["size"]
    train = problem["train"]
    with pytest.warns(AssayWarning, match=r"validation models are missing: swap stopped after kappa = 0\.1"):
        found = solve(correct, id_accuracy, size, train=train, validation=None)
    expected, _ = literal_swap(
        correct[train],
        id_accuracy[train],
        size,
        marginal_scores(as_matrix(correct, train), id_accuracy[train]),
    )
    assert found.indices.tolist() == expected
    assert np.isnan(found.r_validation)
    assert [stage["kappa"] for stage in found.trace] == [10, 3, 1, 0.3, 0.1]


# ------------------------------------------------------------------------------------------------ by hand


def test_marginal_scores_by_hand():
    found = marginal_scores(as_matrix(HAND), HAND_ID)
    np.testing.assert_allclose(found, np.array([-4, 4, -3, 3, 0]) / np.sqrt(20), atol=1e-12)


def test_two_examples_of_five_by_hand():
    # The start holds examples 0 and 2; models get 2, 1, 0, 0 of them right. Clipped at 1/8 the probits are
    # (x, 0, -x, -x), centred x (5, 1, -3, -3) / 4, and R = -28 / sqrt(44 * 20). No exchange is lower.
    found = solve(HAND, HAND_ID, 2, train=np.arange(4), validation=np.arange(4))
    assert sorted(found.indices.tolist()) == [0, 2]
    r = {
        pair: line_correlation(HAND_ID, HAND[:, pair].mean(axis=1))
        for pair in itertools.combinations(range(5), 2)
    }
    assert found.r_train == found.r_validation == pytest.approx(r[0, 2], abs=1e-12)
    assert r[0, 2] == np.nanmin(list(r.values()))
    gradient = line_gradient(np.array([1, 0.5, 0, 0]), unit_probit(HAND_ID), clip=1 / 8)
    assert gradient.value == pytest.approx(-28 / np.sqrt(44 * 20), abs=1e-12)


def test_an_exchange_by_hand():
    # From example 3, of which the score is 3, a swap must reach example 0, of which it is -4.
    found = solve(
        HAND, HAND_ID, 1, train=np.arange(4), validation=np.arange(4), start=np.array([3]), keep_path=True
    )
    assert found.indices.tolist() == [0]
    assert found.extras["path"][0]["indices"].tolist() == [3]
    assert found.extras["path"][0]["kappa"] is None
    assert found.trace[0]["accepted"] >= 1


def test_identical_examples_are_taken_in_their_order():
    correct = np.repeat(HAND, 6, axis=1)  # examples 0 to 5 are the same, and so on
    found = solve(correct, HAND_ID, 3, train=np.arange(4), validation=np.arange(4))
    # From 0, 1, 2 it is worth to let one go for a copy of old example 2: the lower index first, out and in.
    assert sorted(found.indices.tolist()) == [1, 2, 12]


def test_quotas_by_largest_remainder():
    assert stratum_quota(np.array([0] * 5 + [1] * 3 + [2] * 2), 4).tolist() == [2, 1, 1]  # 2, 1.2, 0.8
    assert stratum_quota(np.array([1, 1, 0, 0]), 3).tolist() == [2, 1]  # a tie goes to the lower stratum
    assert stratum_quota(np.array([0, 3, 3]), 3).tolist() == [1, 0, 0, 2]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.data())
def test_quotas_sum_to_the_size_and_lie_within_one_of_the_share(strata, data):
    size = data.draw(st.integers(0, len(strata)))
    strata = np.array(strata)
    quota = stratum_quota(strata, size)
    present = np.bincount(strata)
    assert quota.sum() == size
    assert np.all(quota <= present)
    assert np.all(np.abs(quota - size * present / len(strata)) < 1)


# ------------------------------------------------------------------------------------------------ gradient


@pytest.mark.parametrize("name", SMALL)
def test_gradient_against_independent_values(name):
    data, expected = arrays(name), values(name)["soft"]
    weights = 1 / (1 + np.exp(-data["w"]))
    accuracy = data["X"] @ weights / weights.sum()
    found = line_gradient(accuracy, unit_probit(data["y"]))
    assert found.value == pytest.approx(expected["value"], abs=1e-12)
    gradient = found.weights @ (data["X"] - accuracy[:, None]) / weights.sum()
    np.testing.assert_allclose(gradient, expected["grad"], atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 20.0]), st.integers(3, 30))
def test_gradient_against_finite_differences(seed, ridge, n_models):
    generator = np.random.default_rng(seed)
    accuracy = generator.uniform(0.1, 0.9, n_models)
    z = unit_probit(generator.uniform(0.5, 0.9, n_models))
    direction = generator.standard_normal(n_models)
    found = line_gradient(accuracy, z, ridge=ridge)
    step = 1e-6
    values = [line_gradient(accuracy + sign * step * direction, z, ridge=ridge).value for sign in (1, -1)]
    # Central differences: an error of step^2 and of rounding / step.
    assert found.weights @ direction == pytest.approx(
        (values[0] - values[1]) / (2 * step), abs=1e-4, rel=1e-4
    )


def test_a_clipped_model_keeps_the_slope_at_the_clip():
    z = unit_probit(np.array([0.5, 0.6, 0.7, 0.9]))
    at, beyond = (line_gradient(np.array([low, 0.5, 0.4, 0.6]), z, clip=0.1) for low in (0.1, 0.0))
    assert at.value == beyond.value
    assert np.array_equal(at.weights, beyond.weights)
    assert np.abs(at.weights[0]) > 0


def test_models_that_all_agree_give_the_direction_of_the_covariance():
    z = unit_probit(np.array([0.5, 0.6, 0.7, 0.9]))
    found = line_gradient(np.full(4, 0.5), z)
    assert found.value == 0
    np.testing.assert_allclose(found.weights, z * np.sqrt(2 * np.pi), atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("layout", ["dense", "packed", "accelerator"])
def test_marginal_scores_against_independent_values(name, layout):
    data, golden = arrays(name), values(name)
    train = np.array(golden["split42"]["train"])
    found = marginal_scores(as_matrix(data["X"], train, layout=layout, device="cpu"), data["y"][train])
    np.testing.assert_allclose(found, golden["marginal_train"]["score"], atol=1e-12)
    assert sorted(np.argsort(found, kind="stable")[:20].tolist()) == golden["marginal_train"]["top20"]


@pytest.mark.parametrize("name", SMALL)
def test_quotas_against_independent_values(name):
    data, expected = arrays(name), values(name)["stratified_top50"]
    strata = data["labels"].astype(np.int64)
    quota = stratum_quota(strata, 50)
    assert quota.tolist() == expected["quota"]
    chosen = [
        np.flatnonzero(strata == h)[np.argsort(data["scores"][strata == h])[:k]] for h, k in enumerate(quota)
    ]
    assert np.sort(np.concatenate(chosen)).tolist() == expected["index"]


# ------------------------------------------------------------------------------------------------ planted


def halves_of(name, split):
    golden = values(name)["splits"][split]
    return golden, *(np.array(golden[part]) for part in ("train", "val", "test"))


@pytest.mark.parametrize("split", ["split42", "family"])
def test_planted_subsets_are_found_as_well_as_by_the_prototype(split):
    data = arrays("planted_301")
    golden, train, validation, test = halves_of("planted_301", split)
    for size, expected in golden["sizes"].items():
        found = solve(data["X"], data["y"], int(size), train=train, validation=validation)
        r = line_correlation(data["y"][test], data["X"][test][:, found.indices].mean(axis=1))
        assert r <= expected["prototype_fast"]["test"] + 0.02
        assert found.r_validation == pytest.approx(expected["prototype_fast"]["val"], abs=0.02)


@pytest.mark.parametrize("layout", ["packed", "accelerator"])
def test_layouts_and_repeated_runs_give_the_same_bits(layout):
    data = arrays("planted_301")
    _, train, validation, _ = halves_of("planted_301", "split42")
    runs = [
        solve(data["X"], data["y"], 200, train=train, validation=validation, layout=name)
        for name in ("dense", layout, layout)
    ]
    for run in runs[1:]:
        assert run.indices.tobytes() == runs[0].indices.tobytes()
        assert run.scores.tobytes() == runs[0].scores.tobytes()
        assert (run.r_train, run.r_validation, run.trace) == (
            runs[0].r_train,
            runs[0].r_validation,
            runs[0].trace,
        )


@pytest.mark.parametrize("split", ["split42", "family"])
def test_a_null_matrix_runs(split):
    data = arrays("null_302")
    _, train, validation, _ = halves_of("null_302", split)
    found = solve(data["X"], data["y"], 50, train=train, validation=validation)
    assert found.r_train < found.r_validation  # optimism: what is fitted looks better than what is held out


def test_most_of_a_generated_planted_set_is_found():
    planted = planted_matrix(200, 1500, seed=3)
    order = np.random.default_rng(0).permutation(200)
    train, validation, test = order[:120], order[120:160], order[160:]
    found = solve(planted.correct, planted.id_accuracy, 150, train=train, validation=validation)
    assert np.isin(found.indices, planted.planted).mean() > 0.8
    assert (
        line_correlation(planted.id_accuracy[test], planted.correct[test][:, found.indices].mean(axis=1))
        < -0.5
    )


# ------------------------------------------------------------------------------------------------ properties


@pytest.fixture(scope="module")
def small():
    """A matrix, its accuracies, and the train and validation rows of a split."""
    planted = planted_matrix(60, 300, seed=1)
    return planted.correct, planted.id_accuracy, {"train": np.arange(36), "validation": np.arange(36, 60)}


def test_all_examples_are_returned_at_full_size(small):
    correct, id_accuracy, split = small
    found = solve(correct, id_accuracy, 300, **split)
    assert sorted(found.indices.tolist()) == list(range(300))
    full = line_correlation(id_accuracy[:36], correct[:36].mean(axis=1))
    assert found.r_train == pytest.approx(full, abs=1e-12)


def test_members_are_ordered_by_their_scores(small):
    correct, id_accuracy, split = small
    found = solve(correct, id_accuracy, 40, **split)
    assert np.all(np.diff(found.scores) >= 0)
    # At fixed mass the derivatives of the members sum to 0, each being weighted by the same s_j.
    assert found.scores.sum() == pytest.approx(0, abs=1e-6)


def test_the_kept_set_is_the_best_of_its_path(small):
    correct, id_accuracy, split = small
    found = solve(correct, id_accuracy, 40, keep_path=True, **split)
    path = found.extras["path"]
    assert len(path) == 1 + sum(stage["accepted"] for stage in found.trace)
    assert found.r_validation == min(step["r_validation"] for step in path)
    best = min(path, key=lambda step: step["r_validation"])
    assert sorted(found.indices.tolist()) == best["indices"].tolist()
    assert found.r_train == best["r_train"]
    for step in path:
        accuracy = correct[36:60][:, step["indices"]].mean(axis=1)
        assert step["r_validation"] == pytest.approx(
            line_correlation(id_accuracy[36:60], accuracy), abs=1e-12
        )
    assert [stage["kappa"] for stage in found.trace] == list(KAPPAS)
    assert found.trace[-1]["best_r_validation"] == found.r_validation


def test_without_being_asked_no_path_is_kept(small):
    correct, id_accuracy, split = small
    assert "path" not in solve(correct, id_accuracy, 40, **split).extras


def test_models_may_come_in_any_order(small):
    correct, id_accuracy, split = small
    expected = solve(correct, id_accuracy, 40, **split)
    order = np.concatenate(
        [np.random.default_rng(0).permutation(36), 36 + np.random.default_rng(1).permutation(24)]
    )
    found = solve(correct[order], id_accuracy[order], 40, **split)
    assert set(found.indices.tolist()) == set(expected.indices.tolist())


def test_examples_may_come_in_any_order(small):
    correct, id_accuracy, split = small
    expected = solve(correct, id_accuracy, 40, **split)
    order = np.random.default_rng(0).permutation(300)
    found = solve(correct[:, order], id_accuracy, 40, **split)
    overlap = len(set(order[found.indices].tolist()) & set(expected.indices.tolist()))
    assert overlap >= 38  # examples with equal columns may stand for each other
    assert found.r_validation == pytest.approx(expected.r_validation, abs=1e-3)


def test_every_model_twice_selects_the_same_examples(small):
    correct, id_accuracy, split = small
    expected = solve(correct, id_accuracy, 40, **split)
    twice = {part: np.repeat(rows, 2) for part, rows in split.items()}
    found = solve(correct, id_accuracy, 40, **twice)
    assert set(found.indices.tolist()) == set(expected.indices.tolist())
    assert found.r_train == pytest.approx(expected.r_train, abs=1e-12)


def test_constant_examples_do_not_change_the_scores_of_others(small):
    correct, id_accuracy, _ = small
    constant = np.concatenate([correct, np.ones((60, 5), np.uint8), np.zeros((60, 5), np.uint8)], axis=1)
    found = marginal_scores(as_matrix(constant), id_accuracy)
    np.testing.assert_allclose(found[:300], marginal_scores(as_matrix(correct), id_accuracy), atol=1e-12)
    np.testing.assert_allclose(found[300:], 0, atol=1e-11)


def test_strata_keep_their_share(small):
    correct, id_accuracy, split = small
    strata = np.arange(300) % 3 * np.arange(300) % 2
    found = solve(correct, id_accuracy, 41, strata=strata, **split)
    assert np.bincount(strata[found.indices], minlength=2).tolist() == stratum_quota(strata, 41).tolist()


def test_fixed_members_make_nested_sets(small):
    correct, id_accuracy, split = small
    previous = solve(correct, id_accuracy, 20, **split)
    for size in (20, 35, 60, 300):
        found = solve(correct, id_accuracy, size, fixed=previous.indices, **split)
        assert set(previous.indices.tolist()) <= set(found.indices.tolist())
        assert len(found.indices) == size
        previous = found


def test_uncorrelated_subsets_are_nearer_zero_than_a_random_one(small):
    correct, id_accuracy, split = small
    found = solve(correct, id_accuracy, 60, objective="r2", **split)
    assert abs(found.r_train) < 0.2
    assert found.r_validation**2 == pytest.approx(found.trace[-1]["best_r_validation"] ** 2)


def test_a_start_without_any_spread_can_be_left():
    # All-wrong examples come first by index among equal scores; from there every gradient is that of the
    # covariance.
    generator = np.random.default_rng(0)
    correct = np.concatenate(
        [np.zeros((20, 6), np.uint8), generator.integers(0, 2, (20, 30), np.uint8)], axis=1
    )
    id_accuracy = generator.uniform(0.3, 0.9, 20)
    found = solve(
        correct, id_accuracy, 5, train=np.arange(12), validation=np.arange(12, 20), start=np.arange(5)
    )
    assert found.r_train < 0
    assert np.isfinite(found.r_validation)


def test_inputs_are_not_changed(small):
    correct, id_accuracy, split = small
    before = correct.copy(), id_accuracy.copy()
    allowed, start = np.ones(300, dtype=bool), np.arange(10)
    solve(correct, id_accuracy, 20, allowed=allowed, start=start, must_include=np.array([3]), **split)
    assert np.array_equal(correct, before[0])
    assert np.array_equal(id_accuracy, before[1])
    assert allowed.all()
    assert start.tolist() == list(range(10))


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (0, {}, "size is 0; choose between 1 and the 5 examples"),
        (6, {}, "size is 6; choose between 1 and the 5 examples"),
        (3, {"allowed": np.array([1, 1, 0, 0, 0], bool)}, "size is 3, but allowed leaves only 2 examples"),
        (1, {"must_include": np.array([0, 1])}, "size is 1, but must_include holds 2 examples"),
        (
            2,
            {"must_include": np.array([0, 1]), "fixed": np.array([2])},
            "size is 2, but must_include and fixed already holds 3",
        ),
        (2, {"start": np.array([0, 1, 2])}, "size is 2, but start holds 3 examples"),
        (
            2,
            {"fixed": np.array([4]), "allowed": np.array([1, 1, 1, 1, 0], bool)},
            "fixed holds example 4, which allowed excludes",
        ),
        (
            2,
            {"strata": np.array([0, 0, 0, 1, 1]), "must_include": np.array([3, 4])},
            "must_include holds 2 examples of stratum 1, whose quota at size 2 is 1",
        ),
    ],
)
def test_constraints_that_cannot_be_met_are_named(size, options, message):
    with pytest.raises(InputError, match=message):
        solve(HAND, HAND_ID, size, train=np.arange(4), validation=np.arange(4), **options)


def test_equal_accuracies_are_refused():
    matrix = as_matrix(HAND)
    with pytest.raises(InputError, match="id_train: all accuracies are equal"):
        swap(matrix, np.full(4, 0.5), 2, validation=matrix, id_validation=HAND_ID)
    with pytest.raises(InputError, match="id_validation: all accuracies are equal"):
        swap(matrix, HAND_ID, 2, validation=matrix, id_validation=np.full(4, 0.5))
