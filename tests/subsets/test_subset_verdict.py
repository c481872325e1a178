"""Permutations, cross-fits and verdicts: by hand, against literal versions, on matrices of known truth."""

import itertools
import json
import math
import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from planted_subsets import planted_matrix
from scipy import stats as scipy_stats
from scipy.special import ndtr, ndtri

from assay.analyses.subsets import verdict as module
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import AOTIL, line_correlation
from assay.analyses.subsets.overlap import selection_consistency
from assay.analyses.subsets.problem import Problem, Settings
from assay.analyses.subsets.selection import oodselect
from assay.analyses.subsets.splits import folds, split_models
from assay.analyses.subsets.verdict import (
    CrossFit,
    SequentialPermutation,
    SubsetVerdict,
    combine,
    cross_fit,
    judge,
    permute_accuracy,
    reached,
    unit_jackknife,
)
from assay.core.errors import InputError
from assay.core.random import stream


def rng(seed=0):
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------------------ permuting


def parts_of(t, units):
    """Means of the units, and deviations from them."""
    means = np.array([t[units == unit].mean() for unit in range(units.max() + 1)])
    return means, t - means[units]


def test_accuracies_are_dealt_over_models_without_units():
    y = rng().uniform(size=30)
    found = permute_accuracy(y, rng(1))
    assert sorted(found) == sorted(y)
    assert (found != y).any()


@given(st.integers(0, 10_000))
def test_means_are_dealt_over_units_and_residuals_inside_them(seed):
    units = np.repeat(np.arange(6), (2, 3, 4, 5, 6, 4))
    t = rng(seed).normal(size=len(units)).clip(-2.5, 2.5)  # accuracies next to 0 and 1 are moved
    permuted = ndtri(permute_accuracy(ndtr(t), rng(seed + 1), units))
    before, after = (parts_of(each, units) for each in (t, permuted))
    np.testing.assert_allclose(np.sort(before[0]), np.sort(after[0]), atol=1e-9)
    for unit in range(6):
        old, new = (np.sort(each[1][units == unit]) for each in (before, after))
        np.testing.assert_allclose(old, new, atol=1e-9)


def test_runs_in_families_keep_their_means_as_deviations_inside_the_family():
    families, runs, t = np.repeat([0, 1, 2], 8), np.arange(24) // 2, rng().normal(size=24)
    sides = []
    for side in (t, ndtri(permute_accuracy(ndtr(t), rng(1), families, runs))):
        family, rest = parts_of(side, families)
        run, rest = parts_of(rest, runs)
        sides.append([np.sort(family), np.sort(run.reshape(3, 4)), np.sort(rest.reshape(12, 2))])
    for before, after in zip(*sides, strict=True):
        np.testing.assert_allclose(before, after, atol=1e-9)


def test_every_order_of_the_means_is_as_likely_and_0_and_1_survive():
    y, units = ndtr(np.array([-1.0, -1.0, 0.0, 0.0, 1.0, 1.0])), np.repeat([0, 1, 2], 2)
    generator = rng()
    drawn = [tuple(permute_accuracy(y, generator, units)[::2].round(3)) for _ in range(300)]
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert scipy_stats.chisquare(counts).pvalue > 1e-3
    found = permute_accuracy(np.array([0.0, 0.5, 1.0, 0.7]), rng(), np.array([0, 0, 1, 1]))
    assert ((found >= 0) & (found <= 1)).all()


# ------------------------------------------------------------------------------------- sequential test


@pytest.mark.parametrize("name", SMALL)
def test_reached_reruns_give_the_golden_p_values(name):
    golden = values(name)["perm_p"]
    null = np.array(golden["null"])[:, None]
    same, anywhere = reached(np.array([golden["observed"]]), null)
    assert (1 + same.sum()) / (len(null) + 1) == (1 + anywhere.sum()) / (len(null) + 1) == golden["p"]


def test_the_lowest_of_the_sizes_counts_and_an_undefined_rerun_speaks_against():
    nan = np.nan
    null = np.array([[-0.1, -0.3], [0.1, 0.2], [-0.6, 0.0], [nan, 0.1]])
    same, anywhere = reached(np.array([-0.5, -0.2]), null)
    assert same.T.tolist() == [[False, False, True, True], [True, False, False, False]]
    assert anywhere.T.tolist() == [[False, False, True, True], [True, False, True, False]]


class TestSequential:
    def test_its_p_values_by_hand(self):
        """Seven reruns: early after 3 without, limit 2. Of 8 equally likely ranks and their orders."""
        test = SequentialPermutation(n=7, early=3, limit=2)
        no, yes = False, True
        # None of 3: the observed value is the lowest of 4.
        assert test.p_value(np.array([no] * 3)) == 1 / 4
        # One of 7, among the first 3: or none of 3. The lowest two of 8 lie among the last 4 (12 of 56), and
        # the observed value is the lowest of the other 4: 2 / 8 + (12 / 56) / 4.
        assert test.p_value(np.array([yes] + [no] * 6)) == pytest.approx(2 / 8 + 12 / 56 / 4)
        # The second at the seventh rerun: at most one of 6, or none of 3: 2 / 7 + (6 / 42) / 4.
        assert test.p_value(np.array([yes] + [no] * 5 + [yes])) == pytest.approx(2 / 7 + 6 / 42 / 4)
        assert test.p_value(np.array([no, yes, yes])) == 2 / 3
        assert test.p_value(np.array([yes, yes])) == 1
        # Not at an end: as if the missing ones were reached.
        assert test.p_value(np.array([no, yes])) == test.p_value(np.array([no, yes, yes]))
        assert not test.settled(np.array([no, yes]))
        assert all(test.settled(np.array(each)) for each in ([no] * 3, [yes, yes], [yes] + [no] * 6))

    def test_its_p_values_hold_for_every_order_of_the_values(self):
        test, found = SequentialPermutation(n=6, early=3, limit=2), []
        for order in itertools.permutations(range(7)):
            lower = np.array(order[1:]) < order[0]
            found.append(test.p_value(lower[: next(t for t in range(1, 7) if test.settled(lower[:t]))]))
        for value in set(found):
            assert sum(each <= value for each in found) / math.factorial(7) == pytest.approx(value)

    @pytest.mark.parametrize("n", [19, 39, 99])
    def test_it_rejects_at_most_one_null_in_twenty(self, n):
        """By following every course: p depends on how many were reached, and whether one early."""
        test, found = SequentialPermutation.of(n), Counter()
        states = {(0, False): 1.0}
        for t in range(n):
            states, before = Counter(), states
            for (count, soon), weight in before.items():
                course = np.zeros(t, dtype=bool)
                course[:count] = soon
                course[t - count :] |= not soon
                chance = (count + 1) / (t + 2)  # each rank of an exchangeable value is as likely
                for hit, step in ((True, chance), (False, 1 - chance)):
                    longer = np.append(course, hit)
                    if test.settled(longer):
                        found[test.p_value(longer)] += weight * step
                    else:
                        states[count + hit, soon or (hit and t < test.early)] += weight * step
        total = 0.0
        for value in sorted(found):
            total += found[value]
            assert total == pytest.approx(value)  # P(p <= x) = x at each value that p can take
        assert sum(weight for value, weight in found.items() if value <= 0.05) <= 0.05 + 1e-12
        assert n != 99 or (test.early, test.limit) == (27, 4)


# ------------------------------------------------------------------------------------------ cross-fit


def planted_data(seed=3, *, n_models=80, planted=0.3, slope=0.6, n_families=10, groups=None):
    made = planted_matrix(n_models, 240, planted=planted, slope=slope, n_families=n_families, seed=seed)
    return CorrectnessData.of(made.correct, made.id_accuracy, families=made.families, groups=groups)


@pytest.fixture(scope="module")
def planted():
    return planted_data()


@pytest.fixture(scope="module")
def null():
    return planted_data(4, planted=0.0, slope=0.3)


def problem(data, split=None, **settings):
    return Problem(data, split_models(data, split), Settings.of(data, **settings))


def judged(data, *sizes, split=None, settings=None, **options):
    """Verdicts on subsets of some sizes."""
    case = problem(data, split, **(settings or {}))
    own = {size: oodselect(data, size=size, split=split, **(settings or {})) for size in sizes}
    own = {size: subset.correlation["test"] for size, subset in own.items()}
    return judge(case, own, **{"workers": 1} | options)


def data_with(n_models, *, n_examples=30, seed=0, **units):
    skill = rng(seed).uniform(0.5, 0.9, n_models)
    correct = (rng(seed + 1).random((n_models, n_examples)) < skill[:, None]).astype(np.uint8)
    return CorrectnessData.of(correct, skill, **units)


def test_folds_combine_by_their_degrees_of_freedom():
    found = combine(np.array([[-0.5, 0.2], [-0.1, 0.4]]), np.array([23, 13]))
    by_hand = [np.tanh((20 * np.arctanh(a) + 10 * np.arctanh(b)) / 30) for a, b in ((-0.5, -0.1), (0.2, 0.4))]
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)
    perfect = combine(np.array([[-1.0], [0.0]]), np.array([13, 13]))  # does not decide alone
    assert perfect[0] == pytest.approx(np.tanh(np.arctanh(-0.999) / 2))
    assert combine(np.array([[np.nan], [0.3]]), np.array([50, 8]))[0] == pytest.approx(0.3)
    assert np.isnan(combine(np.array([[np.nan], [np.nan]]), np.array([50, 8]))[0])


def test_it_equals_one_selection_per_fold_tested_on_that_fold(planted):
    found, y = cross_fit(problem(planted), [20, 40]), planted.id_accuracy
    for column, size in enumerate((20, 40)):
        r, weights, sets = [], [], []
        for fold, split in enumerate(folds(planted.units("family"), 5)):
            sets.append(Problem(planted, split, Settings()).solve([size], [y])[0][0].indices)
            accuracy = planted.correct[split.test][:, sets[-1]].mean(axis=1)
            np.testing.assert_allclose(found.accuracy[column, split.test], accuracy, rtol=1e-15)
            np.testing.assert_array_equal(found.selections[column][fold], sets[-1])
            r.append(line_correlation(y[split.test], accuracy))
            weights.append(len(split.test) - 3)
        np.testing.assert_allclose(found.fold_correlations[:, column], r, atol=1e-12)
        z = np.arctanh(np.clip(r, -0.999, 0.999))
        assert found.r[column] == pytest.approx(np.tanh(np.average(z, weights=weights)), abs=1e-12)
        assert found.spread[column] == pytest.approx(np.std(r, ddof=1))
        pairs = selection_consistency(sets, 240).to_numpy()[np.triu_indices(5, 1)]
        assert found.consistency[column] == pytest.approx(pairs.mean())
        assert found.low[column] < found.r[column] < found.high[column]
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert CrossFit.from_dict(record).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("units", "kind", "n_folds", "note"),
    [
        ({"families": np.arange(60) % 7, "groups": np.arange(60)}, "family", 5, None),
        ({"families": np.arange(60) % 4, "groups": np.arange(60)}, "family", 4, "only 4 families"),
        ({"families": np.arange(60) % 2, "groups": np.arange(60)}, "group", 5, None),
        ({"groups": np.repeat(np.arange(6), [2, 2, 2, 18, 18, 18])}, "group", 4, "only 6 training runs"),
        ({}, "model", 5, None),
    ],
)
def test_folds_keep_families_whole_else_runs_else_models(units, kind, n_folds, note):
    data = data_with(60, **units)
    fit = cross_fit(problem(data, "random"), [5])
    assert (fit.unit_kind, len(fit.splits)) == (kind, n_folds)
    assert all(split.straddling(data.units(kind)) == 0 for split in fit.splits)
    notes = judged(data, 5, split="random", n_permutations=1)[0].notes
    assert any("folds instead of 5" in each for each in notes) == (note is not None)
    assert note is None or any(note in each for each in notes)


def test_two_units_fill_no_folds():
    data = data_with(40, groups=np.arange(40) % 2)
    with pytest.raises(InputError, match="2 training runs of 40 models are too few for 3 folds"):
        cross_fit(problem(data, "random"), [5])
    with pytest.raises(InputError, match="folds is 2"):
        cross_fit(problem(data, "random"), [5], folds=2)
    (verdict,) = judged(data, 5, split="random")
    assert verdict.status == "inconclusive"
    assert math.isnan(verdict.r)
    assert "are too few for 3 folds" in verdict.reasons[-1]
    assert SubsetVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))).to_dict() == verdict.to_dict()


def test_the_jackknife_equals_leaving_out_each_unit():
    generator, units = rng(), np.repeat(np.arange(9), 5)
    fold_of = units % 3
    x, t = generator.normal(size=(2, 45)) + generator.normal(size=(2, 9))[:, units]

    def z(kept):
        each = [np.corrcoef(x[kept & (fold_of == f)], t[kept & (fold_of == f)])[0, 1] for f in range(3)]
        weights = [int((kept & (fold_of == f)).sum()) - 3 for f in range(3)]
        return np.average(np.arctanh(each), weights=weights)

    every, without = z(np.ones(45, dtype=bool)), np.array([z(units != u) for u in range(9)])
    margin = scipy_stats.t.ppf(0.975, 8) * math.sqrt(8 / 9 * ((without - without.mean()) ** 2).sum())
    found = unit_jackknife(x, t, units, fold_of)
    np.testing.assert_allclose(found, np.tanh([every - margin, every + margin]), atol=1e-10)
    two = np.repeat([0, 1], 4)
    assert all(math.isnan(end) for end in unit_jackknife(x[:8], t[:8], two, two))


# -------------------------------------------------------------------------------------------- verdicts


@pytest.mark.usefixtures("unchecked")  # some thousand selections; the types are checked by the tests above
class TestJudge:
    def test_a_planted_subset_is_supported_and_ends_the_reruns_early(self, planted, monkeypatch):
        permute, begun = module.permute_accuracy, []
        monkeypatch.setattr(module, "permute_accuracy", lambda *given: begun.append(1) or permute(*given))
        for verdict in judged(planted, 20, 40, n_permutations=59, workers=8):
            assert len(begun) == 27 * 5  # idle threads begin no wave that the early end would waste
            assert (verdict.supported, verdict.aotil, verdict.reasons) == (True, True, ())
            assert (verdict.n_permutations, len(verdict.null), verdict.p_value) == (22, 22, 1 / 23)
            assert any("stopped after 22 of 59" in note for note in verdict.notes)
            assert verdict.low < verdict.r < verdict.high < 0
            assert verdict.r <= AOTIL
            assert (verdict.unit_kind, verdict.kind, verdict.n_units) == ("family", "group", 10)

    def test_its_numbers_are_those_of_the_cross_fit_and_its_reruns(self, null):
        """Of waves and of one by one, where they end inside a wave, for any number of workers."""
        verdicts = judged(null, 10, 40, settings={"seed": 3}, workers=3)
        n, test = verdicts[0].n_permutations, SequentialPermutation.of(99)
        assert 0 < n < 99
        assert n % 9
        fit, units, reruns = cross_fit(problem(null, seed=3), [10, 40]), null.units("family"), []
        for place in range(n):
            y = permute_accuracy(null.id_accuracy, stream(3, f"permutation {place}"), units)
            reruns.append(cross_fit(problem(replace(null, id_accuracy=y), seed=3), [10, 40]).r)
        same, anywhere = reached(fit.r, np.array(reruns))
        for column, verdict in enumerate(verdicts):
            found = [getattr(fit, name)[column] for name in ("r", "low", "high")]
            assert [verdict.r, verdict.low, verdict.high] == found
            assert verdict.p_value == test.p_value(anywhere[:, column])
            alone = test.p_value(same[:, column]) if test.settled(same[:, column]) else np.nan
            np.testing.assert_equal(verdict.p_unadjusted, alone)
            assert verdict.null == tuple(np.min(reruns, axis=1))
            assert (verdict.size, verdict.sizes) == ((10, 40)[column], (10, 40))
            assert verdict.fold_sizes == tuple(fit.fold_sizes)

    def test_a_killed_verdict_goes_on_to_the_same_bytes(self, planted, tmp_path):
        whole = [each.to_dict() for each in judged(planted, 20, n_permutations=20)]
        keep = tmp_path / "waves.jsonl"

        def killed(stage, done, total):
            if done >= 18:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            judged(planted, 20, n_permutations=20, keep=keep, progress=killed)
        content = keep.read_bytes()
        assert content.count(b"\n") == 3  # the job and two waves of nine
        keep.write_bytes(content + b"[[-0.1")  # cut off in the middle of a line
        done = []
        again = judged(planted, 20, n_permutations=20, keep=keep, progress=lambda *told: done.append(told))
        assert [each.to_dict() for each in again] == whole
        assert [each for _, each, _ in done] == [9, 18, 20]
        assert keep.read_bytes().startswith(content)
        altered = content.splitlines(keepends=True)
        keep.write_bytes(altered[0] + b"[[0.9], [0.9]]\n" + altered[2])  # what is kept is not computed again
        assert judged(planted, 20, n_permutations=20, keep=keep)[0].null[:2] == (0.9, 0.9)
        with pytest.raises(InputError, match="holds the reruns of another verdict"):
            judged(planted, 20, n_permutations=20, keep=keep, settings={"seed": 1})

    def test_an_interrupt_does_not_wait_for_what_is_under_way(self):
        over, finished = threading.Event(), []
        waiting = []

        def interrupted():
            with module._threads(1) as pool:
                pool.submit(lambda: finished.append(over.wait(30)))
                waiting.append(pool.submit(finished.append, True))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not finished
        assert waiting[0].cancelled()
        over.set()

    def test_two_families_are_measured_by_run_and_support_nothing(self):
        data = planted_data(n_models=60, n_families=2, slope=0.8, groups=range(60))
        (verdict,) = judged(data, 10, n_permutations=1)
        assert not math.isnan(verdict.r)
        assert "2 families" in verdict.reasons[0]

    def test_unknown_units_leave_it_open_but_measured(self, planted):
        (verdict,) = judged(replace(planted, families=None), 30, n_permutations=19)
        assert verdict.status == "inconclusive"
        assert len(verdict.reasons) == 1
        assert "groups and families are missing" in verdict.reasons[0]
        assert verdict.obstacles == verdict.reasons
        assert (verdict.kind, verdict.p_value) == ("free", 0.05)
        assert any("treats them as independent" in note for note in verdict.notes)

    def test_a_split_through_families_is_no_test(self, planted):
        (verdict,) = judged(planted, 30, split="random", n_permutations=19)
        assert "10 of 10 families have models in more than one part" in verdict.reasons[0]
        assert "select with split='family' (--split family)" in verdict.reasons[0]

    def test_too_few_permutations_and_chance_are_reasons(self, planted, null):
        (verdict,) = judged(planted, 30, n_permutations=9)
        assert verdict.reasons == ("p = 0.1 and 9 permutations cannot give less than 0.1: use at least 19",)
        assert verdict.obstacles == ()
        for verdict in judged(null, 10, 40):
            assert not verdict.supported
            assert "not below 0" in verdict.reasons[-1]
        facts = {"size": 20, "sizes": (20, 40), "kind": "group", "unit_kind": "family", "n_units": 10}
        chance = SubsetVerdict(**facts, r=-0.2, p_value=0.0504)
        reason = module._outcome(replace(chance, n_permutations=12), 99, 4)
        assert reason.startswith("p = 0.0504, corrected for 2 sizes, above 0.05: 4 of 12 selections")

    def test_the_interval_of_the_subset_itself_is_told_and_decides_nothing(self, planted):
        subset, case = oodselect(planted, size=20), problem(planted)
        wide = replace(subset.correlation["test"], r=-0.1, high=0.2, n_units=8)
        (verdict,) = judge(case, {20: wide}, n_permutations=19)
        assert verdict.supported
        assert "is -0.10, with an interval that reaches up to 0.20" in verdict.notes[-1]

    def test_what_is_undefined_is_left_out(self):
        # Five families of 12 models; inside two of them every model has the same in-distribution accuracy.
        y = rng(4).uniform(0.5, 0.9, 60)
        y[:24] = np.repeat([0.6, 0.8], 12)
        correct = rng(4).integers(0, 2, (60, 40)).astype(np.uint8)
        data = CorrectnessData.of(correct, y, families=np.repeat(np.arange(5), 12))
        (verdict,) = judged(data, 8, split="random", n_permutations=3)
        # A constant fold is useless to validate and to test on.
        assert sum(map(math.isnan, verdict.fold_correlations)) >= 2
        data = replace(data, correct=np.ones_like(correct), id_accuracy=rng(4).uniform(0.5, 0.9, 60))
        (verdict,) = judged(data, 5, split="random", n_permutations=19)
        assert math.isnan(verdict.r)
        assert "undefined" in verdict.reasons[-1]
        json.dumps(verdict.to_dict(), allow_nan=False)

    def test_quotas_hold_in_every_fold(self, planted):
        strata = np.arange(planted.n_examples) % 2
        fit = cross_fit(problem(planted, strata=strata), [20])
        assert all((strata[chosen] == 0).sum() == 10 for chosen in fit.selections[0])

    def test_nothing_to_judge_is_refused(self, planted):
        with pytest.raises(InputError, match="subsets is 0"):
            judge(problem(planted), {})
        with pytest.raises(InputError, match="n_permutations is 0"):
            judged(planted, 20, n_permutations=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["planted_301", "null_302"])
@pytest.mark.parametrize("size", [pytest.param(50, marks=pytest.mark.slow), 200])
def test_golden_matrices_are_judged_rightly(name, size):
    golden = arrays(name)
    verdict = oodselect(golden["X"], golden["y"], size, families=golden["family"]).verdict
    assert verdict.supported == verdict.aotil == (name == "planted_301")
    if verdict.supported:
        assert (verdict.p_value, verdict.n_permutations) == (1 / 28, 27)
