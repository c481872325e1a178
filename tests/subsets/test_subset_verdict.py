"""Cross-fitting and verdicts: by hand, against literal versions, and on matrices of known truth."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from goldens import arrays
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from planted_subsets import planted_matrix
from scipy import stats as scipy_stats

from assay.analyses.subsets import crossfit
from assay.analyses.subsets.consistency import selection_consistency
from assay.analyses.subsets.crossfit import CrossFit, FoldRuns, combine, cross_fit, plan_folds, unit_jackknife
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import AOTIL, correlate, line_correlation, probit
from assay.analyses.subsets.page_words import sentences, signed
from assay.analyses.subsets.path import selection_path
from assay.analyses.subsets.permutation import Exchange, SequentialPermutation, reached
from assay.analyses.subsets.problem import Problem, make_problem
from assay.analyses.subsets.selection import oodselect
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import folds
from assay.analyses.subsets.verdict import (
    UNKNOWN_UNITS,
    SubsetVerdict,
    _judged,
    _reasons,
    judge_sizes,
    untested,
)
from assay.core.errors import InputError


EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "subset_verdicts"


@pytest.fixture(scope="module")
def planted():
    made = planted_matrix(80, 240, planted=0.3, slope=0.6, n_families=10, seed=3)
    return CorrectnessData.of(made.correct, made.id_accuracy, families=made.families)


@pytest.fixture(scope="module")
def planted_selections(planted):
    return tuple(oodselect(planted, size=size) for size in (20, 40))


@pytest.fixture(scope="module")
def null():
    made = planted_matrix(80, 240, planted=0.0, n_families=10, seed=4)
    return CorrectnessData.of(made.correct, made.id_accuracy, families=made.families)


def data_with(n_models, *, n_examples=30, seed=0, **units):
    generator = np.random.default_rng(seed)
    skill = generator.uniform(0.5, 0.9, n_models)
    return CorrectnessData.of(generator.random((n_models, n_examples)) < skill[:, None], skill, **units)


# ----------------------------------------------------------------------------------------- combination


def test_folds_combine_by_their_degrees_of_freedom():
    found = combine(np.array([[-0.5, 0.2], [-0.1, 0.4]]), np.array([23, 13]))
    by_hand = [np.tanh((20 * np.arctanh(a) + 10 * np.arctanh(b)) / 30) for a, b in ((-0.5, -0.1), (0.2, 0.4))]
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)


def test_a_perfect_fold_does_not_decide_alone_and_an_undefined_one_is_left_out():
    assert combine(np.array([[-1.0], [0.0]]), np.array([13, 13]))[0] == pytest.approx(
        np.tanh(np.arctanh(-0.999) / 2)
    )
    assert combine(np.array([[np.nan], [0.3]]), np.array([50, 8]))[0] == pytest.approx(0.3)
    assert np.isnan(combine(np.array([[np.nan], [np.nan]]), np.array([50, 8]))[0])


@given(st.integers(0, 10_000))
def test_a_combination_lies_between_its_folds(seed):
    generator = np.random.default_rng(seed)
    each = generator.uniform(-0.99, 0.99, (5, 1))
    found = combine(each, generator.integers(4, 60, 5))[0]
    assert each.min() - 1e-12 <= found <= each.max() + 1e-12


# ----------------------------------------------------------------------------------------------- folds


class TestPlan:
    def test_families_are_kept_whole_where_they_are_known(self):
        plan = plan_folds(data_with(60, families=np.arange(60) % 7, groups=np.arange(60)))
        assert plan.unit_kind == "family"
        assert plan.n_units == 7
        assert all(split.straddling(plan.units) == 0 for split in plan.splits)
        assert len(plan.splits) == 5
        assert plan.notes == ()

    def test_few_families_fill_fewer_folds_rather_than_be_torn_apart(self):
        plan = plan_folds(data_with(60, families=np.arange(60) % 3, groups=np.arange(60)))
        assert plan.unit_kind == "family"
        assert len(plan.splits) == 3

    def test_two_families_are_measured_by_run_and_support_nothing(self, unchecked):
        made = planted_matrix(60, 80, planted=0.4, slope=0.8, n_families=2, seed=3)
        data = CorrectnessData.of(made.correct, made.id_accuracy, groups=range(60), families=made.families)
        assert plan_folds(data).unit_kind == "group"
        verdict = judge_sizes(data, (oodselect(data, size=10),), n_permutations=1)[0]
        assert not math.isnan(verdict.r)
        assert verdict.status == "inconclusive"
        assert "2 families" in verdict.reasons[0]

    def test_few_units_fill_fewer_folds(self):
        plan = plan_folds(data_with(40, families=np.arange(40) % 4))
        assert len(plan.splits) == 4
        assert "4 folds instead of 5, because there are only 4 families" in plan.notes[0]

    def test_folds_of_too_few_models_become_fewer(self):
        plan = plan_folds(data_with(14, groups=np.arange(14)))
        assert len(plan.splits) == 3
        assert min(len(split.test) for split in plan.splits) >= 4

    @settings(max_examples=25)
    @given(st.lists(st.integers(1, 12), min_size=3, max_size=12), st.integers(3, 6))
    def test_it_plans_what_can_be_folded(self, counts, k):
        units = np.repeat(np.arange(len(counts)), counts)
        assume(len(units) >= 12)
        plan = plan_folds(data_with(len(units), n_examples=2, groups=units), k)
        if plan.splits is None:
            with pytest.raises(InputError):
                folds(units, 3)
        else:
            assert 3 <= len(plan.splits) <= k

    def test_two_units_fill_none(self):
        data = data_with(40, groups=np.arange(40) % 2)
        assert plan_folds(data).splits is None
        with pytest.raises(InputError, match="2 training runs of 40 models are too few for 3 folds"):
            cross_fit(data, 5, settings=Settings())
        with pytest.raises(InputError, match="folds is 2"):
            plan_folds(data, 2)


# ---------------------------------------------------------------------------------------- cross-fitting


class TestCrossFit:
    def test_it_equals_one_selection_per_fold_tested_on_that_fold(self, planted):
        found = cross_fit(planted, [20, 40], settings=Settings())
        y = planted.id_accuracy
        for column, size in enumerate((20, 40)):
            each, weights, sets = [], [], []
            for fold, split in enumerate(folds(planted.units, 5)):
                chosen = Problem(planted, split, Settings()).solve(size).indices
                accuracy = planted.accuracy_on(chosen, split.test)
                np.testing.assert_array_equal(found.accuracy[column, split.test], accuracy)
                np.testing.assert_array_equal(found.selections[column][fold], chosen)
                each.append(line_correlation(y[split.test], accuracy))
                weights.append(len(split.test) - 3)
                sets.append(chosen)
            np.testing.assert_allclose(found.fold_correlations[:, column], each, atol=1e-12)
            z = np.arctanh(np.clip(each, -0.999, 0.999))
            assert found.r[column] == pytest.approx(np.tanh(np.average(z, weights=weights)), abs=1e-12)
            assert found.spread[column] == pytest.approx(np.std(each, ddof=1))
            assert found.consistency[column] == selection_consistency(sets, planted.n_examples).mean
            assert found.low[column] < found.r[column] < found.high[column]
        assert sorted(np.concatenate([split.test for split in found.splits])) == list(range(80))

    def test_other_accuracies_can_be_given(self, planted):
        y = Exchange.of(planted).draw(planted.id_accuracy, 0, 0)
        found = cross_fit(planted, 20, settings=Settings(), y=y)
        assert found.r[0] == cross_fit(replace(planted, id_accuracy=y), 20, settings=Settings()).r[0]

    def test_packed_and_dense_matrices_agree(self, planted):
        dense, packed = (
            cross_fit(planted, 30, settings=Settings(layout=layout)).r[0] for layout in ("dense", "packed")
        )
        assert dense == pytest.approx(packed, abs=1e-3)

    def test_json_brings_it_back(self, planted):
        found = cross_fit(planted, [20, 240], settings=Settings())
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert math.isnan(found.consistency[1])  # all examples: nothing to compare
        assert CrossFit.from_dict(record).to_dict() == found.to_dict()


class TestJackknife:
    def test_it_equals_leaving_out_each_unit(self):
        generator = np.random.default_rng(0)
        units = np.repeat(np.arange(9), 5)
        fold_of = units % 3
        x, t = generator.normal(size=(2, 45)) + generator.normal(size=(2, 9))[:, units]

        def z(kept):
            each = [np.corrcoef(x[kept & (fold_of == f)], t[kept & (fold_of == f)])[0, 1] for f in range(3)]
            n = [int((kept & (fold_of == f)).sum()) - 3 for f in range(3)]
            return np.average(np.arctanh(each), weights=n)

        all_models = np.ones(45, dtype=bool)
        without = np.array([z(units != u) for u in range(9)])
        margin = scipy_stats.t.ppf(0.975, 8) * math.sqrt(8 / 9 * ((without - without.mean()) ** 2).sum())
        expected = np.tanh([z(all_models) - margin, z(all_models) + margin])
        np.testing.assert_allclose(unit_jackknife(x, t, units, fold_of), expected, atol=1e-10)

    def test_a_fold_of_one_unit_is_left_out_with_it(self):
        generator = np.random.default_rng(1)
        units = np.repeat(np.arange(4), 6)
        low, high = unit_jackknife(*generator.normal(size=(2, 24)), units, units)
        assert -1 <= low < high <= 1

    def test_it_is_undefined_for_two_units(self):
        x, t = np.random.default_rng(0).normal(size=(2, 8))
        units = np.repeat([0, 1], 4)
        assert all(math.isnan(end) for end in unit_jackknife(x, t, units, units))

    def test_it_covers_where_the_interval_of_fisher_does_not(self):
        generator, covered, fisher = np.random.default_rng(2), 0, 0
        units = np.repeat(np.arange(25), 16)
        for _ in range(200):
            x, t = (
                math.sqrt(0.85) * generator.normal(size=25)[units]
                + math.sqrt(0.15) * generator.normal(size=400)
                for _ in range(2)
            )
            low, high = unit_jackknife(x, t, units, units % 5)
            z = np.arctanh((low + high) / 2) if low + high else 0.0
            covered += low <= 0 <= high
            fisher += abs(z) <= 1.96 / math.sqrt(400 - 15)
        assert covered >= 180  # 190 wanted; 180 is 3 standard errors below
        assert fisher <= 140


# -------------------------------------------------------------------------------------------- verdicts


def test_a_verdict_passes_the_type_checks(planted, planted_selections):
    assert judge_sizes(planted, planted_selections, n_permutations=2, workers=2)[1].size == 40


@pytest.mark.usefixtures("unchecked")  # some thousand selections; the types are checked by the tests above
class TestJudge:
    def test_a_planted_subset_is_supported(self, planted, planted_selections):
        found = judge_sizes(planted, planted_selections, n_permutations=19)
        for verdict in found:
            assert verdict.status == "supported"
            assert verdict.supported
            assert verdict.aotil
            assert verdict.reasons == ()
            assert verdict.p_value == 0.05
            assert verdict.n_permutations == 19
            assert verdict.low < verdict.r < verdict.high < 0
            assert verdict.r <= AOTIL
            assert verdict.unit_kind == "family"
            assert verdict.kind == "group"
            assert verdict.n_units == 10

    def test_its_numbers_are_those_of_the_cross_fit_and_its_reruns(self, null):
        selections = tuple(oodselect(null, size=size) for size in (10, 40))
        found = judge_sizes(null, selections, n_permutations=5, seed=3)
        n, test = found[0].n_permutations, SequentialPermutation.of(5, 0.05)
        fit = cross_fit(null, [10, 40], settings=selections[0].settings)
        reruns = np.array(
            [
                cross_fit(
                    null, [10, 40], settings=Settings(), y=Exchange.of(null).draw(null.id_accuracy, 3, b)
                ).r
                for b in range(n)
            ]
        )
        same, anywhere = reached(fit.r, reruns)
        for column, verdict in enumerate(found):
            assert (verdict.r, verdict.low, verdict.high) == (
                fit.r[column],
                fit.low[column],
                fit.high[column],
            )
            assert verdict.p_value == test.p_value(anywhere[:, column])
            alone = test.p_value(same[:, column]) if test.settled(same[:, column]) else np.nan
            np.testing.assert_equal(verdict.p_unadjusted, alone)
            assert verdict.null == tuple(reruns.min(axis=1))
            assert verdict.sizes == (10, 40)
            assert verdict.size == (10, 40)[column]
            assert verdict.fold_sizes == tuple(fit.fold_sizes)

    def test_no_such_examples_are_inconclusive_with_the_reason(self, null):
        verdict = oodselect(null, size=30).judge(n_permutations=19)
        assert verdict.status == "inconclusive"
        assert not verdict.aotil
        assert not verdict.supported
        assert any("not below 0" in reason or "above 0.05" in reason for reason in verdict.reasons)

    def test_the_p_of_one_size_is_nan_where_only_the_sweep_is_settled(self):
        """Two reruns reach -0.4 at the other size only, one is undefined at this size; both count in p."""
        n, sizes = np.nan, (10, 20)
        data = data_with(40, groups=range(40))
        fit = replace(cross_fit(data, sizes, settings=Settings(), k=3), r=np.array([-0.4, -0.5]))
        null = np.array([[0.1, -0.6], [0.2, -0.7], [n, 0.0], [n, n]])
        test = SequentialPermutation(n=99, early=27, limit=4)
        chosen = oodselect(data, size=10)
        verdict = _judged(untested(data, chosen, plan_folds(data), sizes), data, chosen, fit, null, test)
        assert verdict.p_value == 1.0
        assert np.isnan(verdict.p_unadjusted)
        reason = next(each for each in verdict.reasons if each.startswith("p = 1"))
        assert "corrected for 2 sizes, above 0.05: 4 of 4 selections (stopped there, of 99)" in reason

    def test_an_early_end_is_told_and_no_worker_count_changes_anything(self, null):
        selections = (oodselect(null, size=30),)
        early, two = (
            judge_sizes(null, selections, n_permutations=19, workers=workers)[0] for workers in (1, 2)
        )
        assert early.to_dict() == two.to_dict()
        assert early.n_permutations < 19
        assert any("stopped after" in note for note in early.notes)
        assert early.p_value > 0.05

    def test_a_strong_subset_ends_the_reruns_early_and_p_allows_for_it(self, planted, planted_selections):
        early = judge_sizes(planted, planted_selections, n_permutations=59, workers=2)
        for verdict in early:
            assert verdict.supported
            assert verdict.n_permutations == len(verdict.null) == 22
            assert verdict.p_value == 1 / 23
            assert any("stopped after 22 of 59" in note for note in verdict.notes)

    def test_parts_of_an_interrupted_run_are_taken_and_change_nothing(self, planted, planted_selections):
        known: dict[str, object] = {}
        made: list[str] = []

        def shelf(part, compute):
            if part not in known:
                made.append(part)
                known[part] = json.loads(json.dumps(compute()).replace("NaN", "null"))
            return known[part]

        whole = judge_sizes(planted, planted_selections, n_permutations=12, workers=2)[0]
        kept = judge_sizes(planted, planted_selections, n_permutations=12, workers=2, shelf=shelf)[0]
        assert len(made) == len(set(made)) == 5 * (1 + 2)  # nine reruns go side by side, then three
        for part in ("fold 2", "permutations 0 to 8, fold 4", "permutations 9 to 11, fold 0"):
            del known[part]
        again = judge_sizes(planted, planted_selections, n_permutations=12, workers=1, shelf=shelf)[0]
        assert len(made) == 5 * (1 + 2) + 3
        assert whole.to_dict() == kept.to_dict() == again.to_dict()

    @pytest.mark.parametrize("path", ["independent", "warm", "nested"])
    def test_reruns_side_by_side_are_those_one_by_one(self, monkeypatch, null, path):
        """Also where they end inside a wave: what it holds beyond is not counted."""
        selections = tuple(selection_path(null, sizes=[20, 30], path=path, baselines=False))
        told: list[tuple[str, int, int]] = []
        together = judge_sizes(null, selections, path=path, progress=lambda *each: told.append(each))
        monkeypatch.setattr(crossfit, "_TOGETHER", 1)
        alone = judge_sizes(null, selections, path=path)
        assert [each.to_dict() for each in together] == [each.to_dict() for each in alone]
        assert together[0].n_permutations % 9
        assert [done for _, done, _ in told] == [9 * (place + 1) for place in range(len(told))]

    def test_the_accelerator_layout_runs_all_of_it(self, null):
        """Solver, folds and permutations as on a device, here the CPU: the numbers of the packed layout."""
        found = []
        for layout in ("packed", "accelerator"):
            path = selection_path(
                null, sizes=[10, 20, 30, 40, 60], layout=layout, device="cpu", baselines=False
            )
            found.append([each.to_dict() for each in path.judge(n_permutations=2)])
        assert found[0] == found[1]

    def test_unknown_units_leave_it_open_but_measured(self, planted):
        data = replace(planted, families=None)
        verdict = judge_sizes(data, (oodselect(data, size=30),), n_permutations=19)[0]
        assert verdict.status == "inconclusive"
        assert verdict.reasons == (UNKNOWN_UNITS,)
        assert verdict.kind == "free"
        assert verdict.r < AOTIL
        assert verdict.p_value == 0.05
        assert any("treats them as independent" in note for note in verdict.notes)

    def test_independent_runs_are_said_to_be_so(self):
        made = planted_matrix(60, 200, planted=0.3, slope=0.6, n_families=60, seed=1)
        sub = oodselect(made.correct, made.id_accuracy, 20, groups=range(60))
        verdict = sub.judge(n_permutations=19)
        assert verdict.supported
        assert verdict.unit_kind == "group"

    def test_a_split_through_families_is_no_test(self, planted):
        sub = oodselect(planted, size=30, split="random")
        verdict = judge_sizes(planted, (sub,), n_permutations=19)[0]
        assert verdict.status == "inconclusive"
        assert "10 of 10 families have models in more than one part" in verdict.reasons[0]
        assert "select with split='family' (--split family)" in verdict.reasons[0]
        shown = sentences({"verdict": verdict.to_dict()}, "reasons")[0]
        assert "select with --split family." in shown
        assert "split=" not in shown

    def test_too_few_units_are_a_reason_and_no_crash(self):
        data = data_with(40, groups=np.arange(40) % 2)
        verdict = oodselect(data, size=5, split="random").verdict
        assert verdict.status == "inconclusive"
        assert math.isnan(verdict.r)
        assert math.isnan(verdict.p_value)
        assert any("are too few for 3 folds" in reason for reason in verdict.reasons)
        assert (
            SubsetVerdict.from_dict(json.loads(json.dumps(verdict.to_dict()))).to_dict() == verdict.to_dict()
        )

    def test_too_few_permutations_are_a_reason(self, planted):
        verdict = judge_sizes(planted, (oodselect(planted, size=30),), n_permutations=9)[0]
        assert verdict.status == "inconclusive"
        assert "use at least 19" in verdict.reasons[0]
        assert verdict.reasons[0].startswith("p = 0.1 and 9 permutations cannot give less than 0.1:")

    @pytest.mark.parametrize("p", [0.05042, 0.0501, 0.05 + 1e-12])
    def test_a_p_value_above_the_level_is_not_printed_as_the_level(self, planted, planted_selections, p):
        """The default 99 permutations can give 0.0504."""
        judged = judge_sizes(planted, planted_selections[:1], n_permutations=19)[0]
        assert judged.p_value == 0.05
        above = replace(judged, p_value=p, sizes=(20,), p_unadjusted=p)
        (reason,) = _reasons(planted, planted_selections[0], above, 99, 4)
        printed = reason.split(",")[0].removeprefix("p = ")
        assert float(printed) > 0.05
        assert float(printed) == pytest.approx(p, abs=5e-5)

    def test_the_interval_of_the_subset_itself_is_told_and_decides_nothing(self, planted, planted_selections):
        selection = planted_selections[0]
        test = selection.split.test
        wide = correlate(
            planted.id_accuracy[test],
            np.random.default_rng(0).uniform(0.2, 0.8, len(test)),
            units=np.arange(len(test)) % 8,
        )
        doubtful = replace(selection, correlation={**selection.correlation, "test": wide})
        assert wide.n_units == 8
        assert wide.high > 0
        verdict = judge_sizes(planted, (doubtful,), n_permutations=19)[0]
        assert verdict.supported
        found = f"is {signed(wide.r)}, with an interval that reaches up to {signed(wide.high)}"
        assert found in verdict.notes[-1]
        assert f"models {found}" in sentences({"verdict": verdict.to_dict()}, "notes")[-1]
        told = judge_sizes(planted, (selection,), n_permutations=19)[0].notes
        assert not any("R of the subset itself" in note for note in told)

    def test_accuracies_that_do_not_vary_are_undefined_and_no_crash(self):
        data = data_with(40, groups=np.arange(40))
        data = replace(data, correct=np.ones_like(data.correct))
        sub = oodselect(data, size=5)
        verdict = judge_sizes(data, (sub,), n_permutations=19)[0]
        assert verdict.status == "inconclusive"
        assert math.isnan(verdict.r)
        assert "undefined" in verdict.reasons[0]
        json.dumps(verdict.to_dict(), allow_nan=False)

    def test_json_brings_it_back(self, planted, planted_selections):
        found = judge_sizes(planted, planted_selections[:1], n_permutations=2)[0]
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert SubsetVerdict.from_dict(record).to_dict() == found.to_dict()

    def test_its_errors_say_what_to_give(self, planted, planted_selections):
        with pytest.raises(InputError, match="selections are missing"):
            judge_sizes(planted, ())
        with pytest.raises(InputError, match="n_permutations is 0"):
            judge_sizes(planted, planted_selections, n_permutations=0)
        other = oodselect(planted, size=30, objective="r2")
        with pytest.raises(InputError, match="different settings"):
            judge_sizes(planted, (planted_selections[0], other))
        with pytest.raises(InputError, match="but a verdict presupposes a search for the most negative"):
            judge_sizes(planted, (other,))

    def test_quotas_hold_in_every_rerun(self, planted):
        strata = np.arange(planted.n_examples) % 2
        sub = oodselect(planted, size=20, strata=strata)
        fit = cross_fit(planted, 20, settings=sub.settings)
        assert all((strata[chosen] == 0).sum() == 10 for chosen in fit.selections[0])

    def test_accuracies_of_models_are_those_behind_the_folds(self, planted):
        fit = cross_fit(planted, 30, settings=Settings())
        split = fit.splits[2]
        t, x = probit(fit.accuracy[0, split.test]), probit(planted.id_accuracy[split.test])
        assert np.corrcoef(x, t)[0, 1] == pytest.approx(fit.fold_correlations[2, 0])


# ------------------------------------------------------------------------------------- data of record


def test_folds_without_differing_accuracies_are_left_out(unchecked):
    # Five families of 12 models; inside two of them every model has the same in-distribution accuracy.
    rng = np.random.default_rng(4)
    families = np.repeat(np.arange(5), 12)
    y = rng.uniform(0.5, 0.9, 60)
    y[:24] = np.repeat([0.6, 0.8], 12)
    correct = rng.integers(0, 2, (60, 40)).astype(np.uint8)
    data = CorrectnessData.of(correct, y, families=families)
    verdict = judge_sizes(data, (oodselect(data, size=8, split="random"),), n_permutations=3)[0]
    # A constant fold is useless to validate and to test on.
    assert sum(map(math.isnan, verdict.fold_correlations)) >= 2
    assert any("undefined in" in note for note in verdict.notes)
    assert verdict.status == "inconclusive"


def test_families_on_both_sides_of_the_main_split_are_told(unchecked):
    made = planted_matrix(60, 80, planted=0.3, slope=0.6, n_families=6, seed=3)
    data = CorrectnessData.of(made.correct, made.id_accuracy, groups=range(60), families=made.families)
    verdict = judge_sizes(data, (oodselect(data, size=10),), n_permutations=1, folds=3)[0]
    assert any("families have models in more than one part" in note for note in verdict.notes)


@pytest.mark.usefixtures("unchecked")
def test_the_golden_null_is_not_supported_apart_by_families():
    golden = arrays("null_302")
    sub = oodselect(golden["X"], golden["y"], 200, families=golden["family"])
    verdict = judge_sizes(sub.data, (sub,))[0]
    assert verdict.status == "inconclusive"
    assert not verdict.aotil


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", [50, 200, 1200])
def test_golden_matrices_are_judged_rightly_at_every_size(size):
    golden = arrays("planted_301")
    verdict = oodselect(golden["X"], golden["y"], size, families=golden["family"]).verdict
    assert verdict.supported
    assert verdict.aotil
    assert (verdict.p_value, verdict.n_permutations) == (1 / 28, 27)
    golden = arrays("null_302")
    verdict = oodselect(golden["X"], golden["y"], size, families=golden["family"]).verdict
    assert not verdict.supported


@pytest.fixture
def experiment(monkeypatch):
    """The modules of experiments/subset_verdicts, on small data sets."""
    monkeypatch.syspath_prepend(str(EXPERIMENT))
    for name in ("run", "rules", "structures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import rules
    import run
    import structures

    monkeypatch.setattr(run, "SIZE", 30)
    monkeypatch.setattr(run, "draw", lambda *a, **k: structures.draw(*a, **k, n_models=120, n_examples=300))
    cells = {cell: (*values[:2], 120, 300, 30) for cell, values in rules.CELLS.items()}
    monkeypatch.setattr(rules, "CELLS", cells)
    yield rules
    for name in ("run", "rules", "structures"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("unchecked")
def test_the_experiment_counts_its_small_form(experiment):
    run = experiment.run
    records = [run.judge_one((cell, name, 0)) for cell in run.CELLS for name in run.STRUCTURES]
    assert json.loads(json.dumps(records)) == records
    assert "units apart" in run.table(run.summarize(records), "null")
    again = run.judge_one(("null", "8 families", 0))
    assert again | {"seconds": 0} == records[0] | {"seconds": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_the_rules_are_counted_on_the_verdicts_of_the_product(experiment):
    records = [experiment.judge_one((cell, "25 families", 2)) for cell in ("null", "planted")]
    for record in records:
        assert experiment.declared(record)["crossfit"] == (record["status"] == "supported")
    rows = experiment.summarize(records)["rows"]
    assert [(row["cell"], row["count"]["crossfit"]) for row in rows] == [("null", 0), ("planted", 1)]
    counts = np.bincount(experiment.draw(experiment.UNEQUAL, 0).units)
    assert len(counts) == 25
    assert counts.max() > 5 * counts.min() > 0


def test_the_committed_results_are_the_summaries_of_their_lines(experiment):
    run = experiment.run
    summary = json.loads((EXPERIMENT / "results" / "summary.json").read_text())
    assert run.summarize(run.done())["rows"] == summary["rows"]
    rules = json.loads((EXPERIMENT / "results" / "rules.json").read_text())
    assert experiment.summarize(run.done(experiment.LINES))["rows"] == rules["rows"]
    for row in rules["rows"]:
        if row["cell"] == "null":
            assert row["n"] >= 300
            assert row["count"]["crossfit"] <= 0.05 * row["n"]
        elif row["cell"] == "limit":  # the rate is 5 % there: chance may exceed it
            assert row["interval"]["crossfit"][0] <= 0.05


def test_reruns_follow_the_path_of_the_selections(unchecked, planted):
    problem = make_problem(planted)
    splits = plan_folds(planted, 3).splits
    runs = FoldRuns(planted, splits, (10, 30), problem.settings, path="nested")
    for fold in range(3):
        ((small, large),) = runs.select(fold, [planted.id_accuracy])
        assert set(small.tolist()) <= set(large.tolist())
    found = selection_path(planted, sizes=[10, 30], path="nested", baselines=False)
    first, _ = found.judge(n_permutations=1, folds=3)
    alone = cross_fit(planted, 10, settings=problem.settings, k=3)
    assert first.r == pytest.approx(alone.r[0])  # nothing comes before the first size of a path


@pytest.mark.parametrize(("device", "layout"), [(None, "packed"), ("cpu", "packed"), ("meta", "auto")])
def test_folds_stay_on_the_device_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, device: str | None, layout: str
) -> None:
    monkeypatch.setattr(crossfit, "_DENSE_ENTRIES", 1)
    data = CorrectnessData.of(np.eye(12, dtype=np.uint8), np.linspace(0.5, 0.9, 12), groups=range(12))
    runs = FoldRuns(data, folds(data.units, 3), (2,), Settings(device=device))
    assert {each.settings.layout for each in runs.problems} == {layout}
    assert {each.settings.device for each in runs.problems} == {device}
