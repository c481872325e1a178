"""Permutation nulls: by hand, against literal versions, and on matrices of known truth."""

import itertools
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from goldens import SMALL, values
from hypothesis import given
from hypothesis import strategies as st
from planted_subsets import planted_matrix
from scipy import stats as scipy_stats
from scipy.special import ndtr, ndtri

from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.permutation import (
    Exchange,
    SequentialPermutation,
    permutation_p,
    permute_accuracy,
    run_permutations,
)
from assay.core.errors import InputError, UnknownNameError


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def planted():
    made = planted_matrix(60, 240, planted=0.3, slope=0.6, n_families=10, seed=3)
    return CorrectnessData.of(made.correct, made.id_accuracy, families=made.families)


@pytest.fixture(scope="module")
def independent():
    generator = rng(5)
    skill = generator.uniform(0.6, 0.9, 60)
    correct = generator.random((60, 150)) < skill[:, None]
    return CorrectnessData.of(correct, skill, groups=range(60))


# ------------------------------------------------------------------------------------------ permuting


class TestPermuteAccuracy:
    def test_free_deals_the_given_values_anew(self):
        y = rng().uniform(size=30)
        found = permute_accuracy(y, None, rng(1), "free")
        assert sorted(found) == sorted(y)
        assert (found != y).any()

    @given(st.integers(0, 10_000))
    def test_group_keeps_unit_means_and_residuals_as_multisets(self, seed):
        units = np.repeat(np.arange(6), (2, 3, 4, 5, 6, 4))
        t = rng(seed).normal(size=len(units))
        found = ndtri(permute_accuracy(ndtr(t), units, rng(seed + 1)))
        before, after = (
            (np.array([v[units == u].mean() for u in range(6)]), [v[units == u] for u in range(6)])
            for v in (t, found)
        )
        np.testing.assert_allclose(np.sort(before[0]), np.sort(after[0]), atol=1e-9)
        for mean, values_before, mean_after, values_after in zip(*before, *after, strict=True):
            np.testing.assert_allclose(
                np.sort(values_before - mean), np.sort(values_after - mean_after), atol=1e-9
            )

    def test_units_of_one_model_are_a_free_permutation(self):
        y = rng().uniform(0.1, 0.9, 20)
        found = permute_accuracy(y, np.arange(20), rng(1), "group")
        np.testing.assert_allclose(np.sort(found), np.sort(y), atol=1e-12)

    def test_runs_in_families_keep_their_means_as_deviations_inside_the_family(self):
        families = np.repeat([0, 1, 2], 8)
        runs = np.arange(24) // 2
        t = rng().normal(size=24)
        found = ndtri(permute_accuracy(ndtr(t), families, rng(1), "group", within=runs))

        def parts(v):
            family = np.array([v[families == f].mean() for f in range(3)])
            run = np.array([v[runs == r].mean() for r in range(12)]) - family[np.arange(12) // 4]
            return family, run.reshape(3, 4), v - family[families] - run[runs]

        before, after = parts(t), parts(found)
        np.testing.assert_allclose(np.sort(before[0]), np.sort(after[0]), atol=1e-9)
        np.testing.assert_allclose(np.sort(before[1], axis=1), np.sort(after[1], axis=1), atol=1e-9)
        np.testing.assert_allclose(
            np.sort(before[2].reshape(12, 2)), np.sort(after[2].reshape(12, 2)), atol=1e-9
        )

    def test_every_order_of_the_means_is_as_likely(self):
        y, units = ndtr(np.array([-1.0, -1.0, 0.0, 0.0, 1.0, 1.0])), np.repeat([0, 1, 2], 2)
        generator = rng()
        drawn = [tuple(permute_accuracy(y, units, generator)[::2].round(3)) for _ in range(300)]
        counts = np.unique(drawn, axis=0, return_counts=True)[1]
        assert len(counts) == 6
        assert scipy_stats.chisquare(counts).pvalue > 1e-3

    def test_accuracies_of_zero_and_one_survive(self):
        y = np.array([0.0, 0.5, 1.0, 0.7])
        found = permute_accuracy(y, np.array([0, 0, 1, 1]), rng())
        assert ((found >= 0) & (found <= 1)).all()

    def test_its_errors_say_what_to_give(self, unchecked):
        y = np.full(4, 0.5)
        with pytest.raises(UnknownNameError, match="kind of permutation"):
            permute_accuracy(y, None, rng(), "block")
        with pytest.raises(InputError, match="groups= or families="):
            permute_accuracy(y, None, rng(), "group")
        with pytest.raises(InputError, match="each training run must belong to one family"):
            permute_accuracy(y, np.array([0, 0, 1, 1]), rng(), within=np.array([0, 1, 1, 2]))

    def test_the_default_follows_what_is_known(self, planted, independent):
        unknown = replace(independent, groups=None)
        assert (Exchange.of(planted).kind, Exchange.of(planted).unit_kind) == ("group", "family")
        assert (Exchange.of(unknown).kind, Exchange.of(unknown).unit_kind) == ("free", "model")
        with pytest.raises(InputError, match="but they are unknown"):
            Exchange.of(unknown, "group")

    def test_a_permutation_does_not_depend_on_those_before(self, planted):
        exchange = Exchange.of(planted)
        first = exchange.draw(planted.id_accuracy, 0, 7)
        exchange.draw(planted.id_accuracy, 0, 3)
        assert (exchange.draw(planted.id_accuracy, 0, 7) == first).all()
        assert (exchange.draw(planted.id_accuracy, 1, 7) != first).any()


# ------------------------------------------------------------------------------------------- p-values


@pytest.mark.parametrize("name", SMALL)
def test_p_values_equal_golden_ones(name):
    golden = values(name)
    null = np.array(golden["perm_p"]["null"])[:, None]
    p, adjusted = permutation_p(np.array([golden["perm_p"]["observed"]]), null)
    assert p[0] == adjusted[0] == golden["perm_p"]["p"]


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 30))
def test_p_values_equal_their_definition_and_a_sweep_never_lowers_them(seed, k, b):
    generator = rng(seed)
    observed, null = generator.normal(size=k).round(1), generator.normal(size=(b, k)).round(1)
    p, adjusted = permutation_p(observed, null)
    for s in range(k):
        assert p[s] == (1 + sum(null[i, s] <= observed[s] for i in range(b))) / (b + 1)
        assert adjusted[s] == (1 + sum(null[i].min() <= observed[s] for i in range(b))) / (b + 1)
    assert (adjusted >= p).all()


def test_an_undefined_rerun_speaks_against_and_an_undefined_result_has_no_p():
    nan = np.nan
    p, adjusted = permutation_p(np.array([-0.5, nan]), np.array([[nan, 0.0], [0.1, nan], [nan, nan]]))
    np.testing.assert_array_equal(p, [0.75, nan])
    np.testing.assert_array_equal(adjusted, [0.75, nan])


def outcomes(test: SequentialPermutation, chance: Callable[[int, int], float]) -> dict[float, float]:
    """Probability of each p-value, by following every course of a test.

    Args:
        test: The test.
        chance: That the next rerun is reached, after t reruns of which c were.
    """
    found: Counter[float] = Counter()
    # All that p depends on: how many were reached, and whether one of the first `early`.
    states = {(0, False): 1.0}
    for t in range(test.n):
        states, before = Counter(), states
        for (count, soon), weight in before.items():
            reached = np.zeros(t, dtype=bool)
            reached[:count] = soon
            reached[t - count :] |= not soon
            for hit, step in ((True, chance(t, count)), (False, 1 - chance(t, count))):
                course = np.append(reached, hit)
                if test.settled(course):
                    found[test.p_value(course)] += weight * step
                else:
                    states[count + hit, soon or (hit and t < test.early)] += weight * step
    assert not states
    return found


def exchangeable(t: int, count: int) -> float:
    """The chance of rank after rank if observed and permuted values are exchangeable."""
    return (count + 1) / (t + 2)


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
        test = SequentialPermutation(n=6, early=3, limit=2)
        found = []
        for order in itertools.permutations(range(7)):
            reached = np.array(order[1:]) < order[0]
            stops = next(t for t in range(1, 7) if test.settled(reached[:t]))
            found.append(test.p_value(reached[:stops]))
        for value in set(found):
            assert sum(each <= value for each in found) / math.factorial(7) == pytest.approx(value)

    @pytest.mark.parametrize("n", [19, 39, 59, 79, 99])
    def test_it_rejects_at_most_one_null_in_twenty(self, n):
        test = SequentialPermutation.of(n, 0.05)
        total, found = 0.0, outcomes(test, exchangeable)
        for value in sorted(found):
            total += found[value]
            assert total == pytest.approx(value)  # P(p <= x) = x at each value that p can take
        assert sum(weight for value, weight in found.items() if value <= 0.05) <= 0.05 + 1e-12

    @given(st.integers(0, 10_000), st.sampled_from([19, 59, 99, 199]))
    def test_ties_and_more_reached_reruns_never_lower_p(self, seed, n):
        generator, test = rng(seed), SequentialPermutation.of(n, 0.05)
        fewer = generator.random(n) < generator.choice([0.01, 0.05, 0.3])
        more = fewer | (generator.random(n) < 0.05)

        def p(reached):
            return test.p_value(reached[: next(t for t in range(1, n + 1) if test.settled(reached[:t]))])

        assert p(fewer) <= p(more)
        # What came before the end never promised a lower one.
        assert all(test.p_value(fewer[:t]) >= p(fewer) for t in range(n))

    def test_it_decides_as_the_fixed_number_does_where_that_is_clear(self):
        """Share supported at a fixed chance of a reached rerun, and the reruns of a strong case."""
        test = SequentialPermutation.of(99, 0.05)
        supported = {
            chance: sum(w for p, w in outcomes(test, lambda *_, c=chance: c).items() if p <= 0.05)
            for chance in (0.001, 0.01, 0.1, 0.2)
        }
        fixed = {chance: scipy_stats.binom.cdf(4, 99, chance) for chance in supported}
        for chance, share in supported.items():
            assert share == pytest.approx(fixed[chance], abs=0.06), chance
        assert test.early == 27  # of 99, where nothing reaches the observed value


# --------------------------------------------------------------------------------------------- reruns


class TestRuns:
    @pytest.mark.parametrize("workers", [1, 3])
    def test_results_come_in_order_and_progress_counts(self, workers):
        told = []
        found = run_permutations(
            lambda place: place * place, 7, workers=workers, progress=lambda *each: told.append(each)
        )
        assert found == [0, 1, 4, 9, 16, 25, 36]
        assert told == [("permutations", done, 7) for done in range(1, 8)]

    @pytest.mark.parametrize("workers", [1, 2, 5])
    def test_an_early_end_falls_on_the_same_place_with_any_number_of_workers(self, workers):
        found = run_permutations(
            lambda place: place, 20, workers=workers, settled=lambda found: max(found) >= 4
        )
        assert found == [0, 1, 2, 3, 4]

    def test_each_worker_uses_one_thread_of_torch(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            found = run_permutations(lambda place: torch.get_num_threads(), 4, workers=2)
            assert torch.get_num_threads() == 2
        finally:
            torch.set_num_threads(before)
        assert found == [1] * 4

    @pytest.mark.parametrize("workers", [1, 3])
    def test_an_error_beyond_the_early_end_is_none(self, workers):
        """Where the first place takes long enough for the third, which fails, to be done before it."""
        failed = threading.Event()

        def rerun(place):
            if place == 2:
                failed.set()
                raise ZeroDivisionError
            if place == 0:
                failed.wait(10 if workers > 2 else 0)
            return place

        found = run_permutations(rerun, 9, workers=workers, settled=lambda found: len(found) == 2)
        assert found == [0, 1]

    @pytest.mark.parametrize("workers", [1, 3])
    @pytest.mark.parametrize("end", [4, 7])
    def test_nothing_beyond_the_likely_end_is_begun_before_it(self, workers, end):
        begun, at_the_end = [], []

        def rerun(place):
            begun.append(place)
            return place

        def settled(found):
            if len(found) == 4:
                at_the_end.extend(begun)
            return len(found) == end

        found = run_permutations(rerun, 9, workers=workers, settled=settled, likely_end=4)
        assert found == list(range(end))
        assert at_the_end == [0, 1, 2, 3]

    def test_an_interrupt_does_not_wait_for_what_is_under_way(self):
        begun, over, done = threading.Event(), threading.Event(), []

        def rerun(place):
            if place:
                begun.set()
                over.wait(30)
                done.append(place)
            return place

        def interrupt(*told):
            begun.wait(30)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_permutations(rerun, 9, workers=2, progress=interrupt)
        assert not done
        over.set()

    def test_an_error_in_a_rerun_is_raised(self):
        with pytest.raises(ZeroDivisionError):
            run_permutations(lambda place: 1 // place, 3)
