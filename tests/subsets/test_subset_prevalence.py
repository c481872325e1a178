"""What a selection holds more of than its pool, and how its classes mix."""

import json
import math
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from assay.analyses.subsets._columns import MISSING
from assay.analyses.subsets.composition import (
    ClassComposition,
    ClassCorrelation,
    class_composition,
    class_correlations,
)
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import correlate
from assay.analyses.subsets.prevalence import (
    PrevalenceShift,
    hypergeometric_p,
    presence_shift,
    prevalence_shift,
)
from assay.analyses.subsets.selection import oodselect
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.stats import benjamini_hochberg


def literal_p(k: int, s: int, K: int, n: int) -> float:
    """Sum of the probabilities not larger than the observed one, in whole numbers."""
    ways = {h: comb(K, h) * comb(n - K, s - h) for h in range(max(0, s + K - n), min(s, K) + 1)}
    return float(Fraction(sum(each for each in ways.values() if each <= ways[k]), comb(n, s)))


def pool(n: int = 300, seed: int = 0) -> tuple[np.ndarray, dict[str, Any], np.ndarray]:
    """A selection of 60 that prefers women and high scores, attributes and labels of its pool."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["F", "M"], n)
    score = rng.normal(size=n)
    weight = np.exp(1.5 * (sex == "F") + 0.8 * score)
    chosen = rng.choice(n, 60, replace=False, p=weight / weight.sum())
    attributes = {"sex": sex, "score": score, "site": rng.integers(0, 3, n), "noise": rng.normal(size=n)}
    return chosen, attributes, rng.integers(0, 4, n)


# -------------------------------------------------------------------------------------------- shares


def test_shares_by_hand() -> None:
    found = prevalence_shift([0, 1, 2], {"kind": ["a", "a", "b", "b", "b", "b"]})
    first, second = found.of("kind")
    assert (first.value, first.n_selected, first.n_pool) == ("a", 2, 2)
    assert first.selected == 2 / 3
    assert first.pool == 1 / 3
    assert first.difference == 1 / 3
    assert first.ratio == 2.0
    # Of 20 draws of 3 from 6: overlap 0, 1, 2 in 4, 12, 4.
    assert first.p_value == pytest.approx(8 / 20)
    assert second.difference == -first.difference
    assert second.p_value == pytest.approx(first.p_value)
    assert first.low <= first.difference <= first.high
    assert not first.numeric


@pytest.mark.parametrize("name", SMALL)
def test_golden_prevalence(name: str) -> None:
    inputs, golden = arrays(name), values(name)["prevalence"]
    resamples = golden["resamples"]
    draws = tuple(np.array([each[side] for each in resamples]) for side in ("sel", "pool"))
    found = prevalence_shift(
        inputs[golden["selection"]],
        {"meta": inputs["meta"]},
        labels=inputs["labels"].astype(np.int64),
        draws=draws,
    )
    row = next(row for row in found.of("meta") if row.value == "1")
    assert row.selected == golden["p_selected"]
    assert row.pool == golden["p_pool"]
    assert row.difference == pytest.approx(golden["difference"], abs=1e-15)
    assert row.ratio == pytest.approx(golden["ratio"], abs=1e-14)
    assert row.p_value == pytest.approx(golden["hypergeom_two_sided_p"], abs=1e-12)
    ends = np.quantile(golden["resampled_difference"], [0.025, 0.975])
    np.testing.assert_allclose([row.low, row.high], ends, atol=1e-14)
    assert found.n_resamples == len(resamples)
    assert found.seed is None
    counts = [(row.n_selected, row.n_pool) for row in found.of("label")]
    assert [each for each, _ in counts] == golden["label_counts_selected"]
    assert [each for _, each in counts] == golden["label_counts_pool"]


@given(st.integers(1, 40), st.data())
def test_the_p_value_is_exact(n: int, data: st.DataObject) -> None:
    s, K = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    k = data.draw(st.integers(max(0, s + K - n), min(s, K)))
    assert hypergeometric_p(k, s, K, n) == pytest.approx(literal_p(k, s, K, n), abs=1e-12)


def test_the_p_value_is_exact_in_a_large_pool() -> None:
    assert hypergeometric_p(100, 1000, 5100, 150_000) == pytest.approx(
        literal_p(100, 1000, 5100, 150_000), rel=1e-9
    )


def test_an_impossible_overlap_is_refused() -> None:
    with pytest.raises(InputError, match="an overlap of 4 is impossible for 3 and 5 of 9"):
        hypergeometric_p(4, 3, 5, 9)


@given(st.integers(0, 2**32 - 1))
def test_values_of_an_attribute_complement_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 50))
    chosen = rng.permutation(n)[: rng.integers(1, n + 1)]
    found = prevalence_shift(chosen, {"a": rng.integers(0, 4, n)}, n_resamples=20)
    assert sum(row.n_selected for row in found.rows) == len(chosen)
    assert sum(row.selected for row in found.rows) == pytest.approx(1)
    assert sum(row.pool for row in found.rows) == pytest.approx(1)
    assert sum(row.difference for row in found.rows) == pytest.approx(0, abs=1e-12)
    assert all(row.n_pool > 0 and 0 < row.p_value <= 1 + 1e-12 for row in found.rows)


def test_every_p_value_is_adjusted_with_all_others() -> None:
    chosen, attributes, labels = pool()
    found = prevalence_shift(chosen, attributes, labels=labels, crossed=[("sex", "site")])
    wanted = benjamini_hochberg(np.array([row.p_value for row in found.rows]))
    np.testing.assert_array_equal([row.q_value for row in found.rows], wanted)
    assert len(found.rows) == 4 + 2 + 3 + 6 + 2
    assert {row.attribute for row in found.significant} >= {"sex", "score"}
    assert {row.attribute for row in found.significant}.isdisjoint({"noise", "site", "label"})
    assert all(row.significant == (row.q_value <= 0.05) for row in found.rows)
    assert found.significant[0].p_value == min(row.p_value for row in found.rows)


def test_multinomial_counts_have_the_spread_of_literal_resamples() -> None:
    chosen, attributes, _ = pool()
    n, b = 300, 4000
    rng = np.random.default_rng(5)
    draws = (rng.integers(0, 60, (b, 60)), rng.integers(0, n, (b, n)))
    drawn = prevalence_shift(chosen, attributes, n_resamples=b)
    literal = prevalence_shift(chosen, attributes, draws=draws)
    for one, other in zip(drawn.rows, literal.rows, strict=True):
        # Percentiles of 4,000 resamples are good to about 3 % of the width.
        width = other.high - other.low
        assert one.low == pytest.approx(other.low, abs=0.06 * width)
        assert one.high == pytest.approx(other.high, abs=0.06 * width)


def test_literal_resamples_word_by_word() -> None:
    chosen, attributes, _ = pool()
    rng = np.random.default_rng(5)
    draws = (rng.integers(0, 60, (30, 60)), rng.integers(0, 300, (30, 300)))
    found = prevalence_shift(chosen, attributes, draws=draws, level=0.8)
    sex, score = np.asarray(attributes["sex"]), np.asarray(attributes["score"])
    shares = [np.mean(sex[chosen[a]] == "F") - np.mean(sex[b] == "F") for a, b in zip(*draws, strict=True)]
    means = [score[chosen[a]].mean() - score[b].mean() for a, b in zip(*draws, strict=True)]
    for row, differences in ((found.of("sex")[0], shares), (found.of("score")[0], means)):
        np.testing.assert_allclose([row.low, row.high], np.quantile(differences, [0.1, 0.9]), atol=1e-12)


def test_an_interval_does_not_depend_on_the_other_attributes() -> None:
    chosen, attributes, labels = pool()
    alone = prevalence_shift(chosen, {"sex": attributes["sex"]})
    among = prevalence_shift(chosen, attributes, labels=labels)
    for one, other in zip(alone.of("sex"), among.of("sex"), strict=True):
        assert (one.low, one.high) == (other.low, other.high)
    assert prevalence_shift(chosen, {"sex": attributes["sex"]}, seed=1).rows[0].low != alone.rows[0].low


def test_the_whole_pool_does_not_shift() -> None:
    _, attributes, labels = pool()
    found = prevalence_shift(np.arange(300), attributes, labels=labels)
    assert found.significant == ()
    assert all(row.difference == pytest.approx(0, abs=1e-15) for row in found.rows)
    assert all(row.p_value == pytest.approx(1) for row in found.rows if not row.numeric)
    assert all(math.isnan(row.p_value) for row in found.rows if row.numeric)


def test_uniform_draws_are_called_different_as_often_as_promised() -> None:
    # 300 selections drawn at random: the exact test is conservative, so at most 5 % with room for chance.
    rng = np.random.default_rng(11)
    kind = rng.random(400) < 0.3
    hits = [
        hypergeometric_p(int(kind[rng.permutation(400)[:80]].sum()), 80, int(kind.sum()), 400) <= 0.05
        for _ in range(300)
    ]
    assert 0.01 <= np.mean(hits) <= 0.08


# --------------------------------------------------------------------------------------------- numbers


def test_numeric_attributes_compare_means() -> None:
    chosen, attributes, _ = pool()
    found = prevalence_shift(chosen, attributes)
    (row,) = found.of("score")
    score = np.asarray(attributes["score"])
    rest = np.setdiff1d(np.arange(300), chosen)
    assert row.numeric
    assert row.value is None
    assert math.isnan(row.ratio)
    assert row.difference == pytest.approx(score[chosen].mean() - score.mean(), abs=1e-14)
    assert row.difference > 0
    wanted = scipy_stats.mannwhitneyu(score[chosen], score[rest]).pvalue
    assert row.p_value == pytest.approx(wanted, rel=1e-12)
    assert row.low < row.difference < row.high
    assert row.excludes_zero


def test_numeric_can_be_chosen() -> None:
    chosen, attributes, _ = pool()
    assert len(prevalence_shift(chosen, attributes, numeric=["site"]).of("site")) == 1
    with pytest.raises(UnknownNameError, match="did you mean 'site'"):
        prevalence_shift(chosen, attributes, numeric=["sit"])
    with pytest.raises(InputError, match="a numeric attribute must hold numbers"):
        prevalence_shift(chosen, attributes, numeric=["sex"])


def test_constant_numbers_do_not_shift() -> None:
    found = prevalence_shift([0, 1], {"x": np.full(9, 3.5)})
    assert found.rows[0].p_value == 1.0
    assert (found.rows[0].low, found.rows[0].high) == (0.0, 0.0)


# --------------------------------------------------------------------------------------------- missing


def test_missing_values_are_a_value_of_their_own() -> None:
    sex = np.array(["F", None, "M", "", math.nan, "F"], dtype=object)
    age = np.array([30.0, math.nan, 40.0, 50.0, math.nan, 60.0])
    found = prevalence_shift([0, 1, 4], {"sex": sex, "age": age})
    assert {row.value: (row.n_selected, row.n_pool) for row in found.of("sex")} == {
        "F": (1, 2),
        "M": (0, 1),
        MISSING: (2, 3),
    }
    mean, missing = found.of("age")
    assert (mean.n_selected, mean.n_pool) == (1, 4)
    assert mean.difference == 30.0 - 45.0
    assert (missing.value, missing.n_selected, missing.n_pool) == (MISSING, 2, 2)


def test_numbers_that_are_all_missing_have_no_mean() -> None:
    found = prevalence_shift([0], {"age": np.full(4, math.nan)})
    mean, missing = found.of("age")
    assert math.isnan(mean.difference)
    assert math.isnan(mean.p_value)
    assert (missing.selected, missing.pool, missing.p_value) == (1.0, 1.0, 1.0)
    assert not mean.significant


def test_what_pandas_holds_as_not_available_is_missing() -> None:
    pd = pytest.importorskip("pandas")
    column = pd.Series(["a", None, "b", "a"], dtype="string")
    found = prevalence_shift([0, 1], {"x": column})
    assert {row.value for row in found.rows} == {"a", "b", MISSING}


# --------------------------------------------------------------------------------------------- columns


def test_crossed_attributes_are_compared_too() -> None:
    sex = ["F", "F", "M", "M", "F", None]
    group = ["x", "y", "x", "y", "x", "x"]
    found = prevalence_shift([0, 4], {"sex": sex, "group": group}, crossed=[("sex", "group")])
    rows = {row.value: row for row in found.of("sex x group")}
    assert set(rows) == {"F x x", "F x y", "M x x", "M x y", f"{MISSING} x x"}
    assert (rows["F x x"].n_selected, rows["F x x"].n_pool) == (2, 2)
    assert rows["F x x"].p_value == pytest.approx(1 / comb(6, 2))
    with_label = prevalence_shift([0, 4], {"sex": sex}, labels=[0, 1, 1, 0, 0, 1], crossed=[("label", "sex")])
    assert with_label.of("label x sex")


def test_integers_sort_by_size_and_classes_by_code() -> None:
    found = prevalence_shift(
        [0, 1], {"n": [10, 9, 2, 2]}, labels=[2, 0, 0, 1], label_names=["zebra", "ant", "mole"]
    )
    assert [row.value for row in found.of("n")] == ["2", "9", "10"]
    assert [row.value for row in found.of("label")] == ["zebra", "ant", "mole"]
    assert found.rows[0].attribute == "label"


def test_an_attribute_that_names_examples_is_left_out() -> None:
    names = [f"file_{place}" for place in range(1001)]
    found = prevalence_shift([0, 1], {"file": names, "x": np.arange(1001) % 2})
    assert found.left_out == ("file",)
    assert {row.attribute for row in found.rows} == {"x"}
    with pytest.raises(InputError, match="nothing to compare: file have more than 1000 values"):
        prevalence_shift([0, 1], {"file": names})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": [0]}, "nothing to compare: give labels="),
        ({"indices": [0, 0], "labels": [0, 1]}, "indices holds 0 more than once"),
        ({"indices": [5], "labels": [0, 1]}, r"indices holds 5; positions must lie in \[0, 1\]"),
        ({"indices": [], "labels": [0, 1]}, r"indices has shape \(0,\)"),
        ({"indices": [0], "attributes": {"label": [0, 1]}}, "attributes holds 'label'"),
        ({"indices": [0], "attributes": {"a": [0, 1], "b": [0]}}, r"b has shape \(1,\)"),
        (
            {"indices": [0], "labels": [0, 3], "label_names": ["a"]},
            "labels run from 0 to 3, but label_names lists only 1",
        ),
        ({"indices": [0], "labels": [0, 1], "level": 1.0}, "level=1.0"),
        ({"indices": [0], "labels": [0, 1], "n_resamples": 0}, "n_resamples=0"),
        ({"indices": [0], "attributes": {"a": [0, 1]}, "crossed": [("a", "a")]}, "two or more different"),
        ({"indices": [0], "attributes": {"a": [0, 1]}, "crossed": [("a", "b")]}, "unknown categorical"),
    ],
)
def test_arguments_out_of_range_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prevalence_shift(**arguments)


def test_given_draws_must_fit() -> None:
    with pytest.raises(ShapeError, match=r"draws have shapes \(3, 1\) and \(3, 4\); expected resamples by 2"):
        prevalence_shift([0, 1], labels=[0, 1, 0, 1], draws=(np.zeros((3, 1), int), np.zeros((3, 4), int)))
    with pytest.raises(InputError, match=r"draws run from 0 to 2; positions must lie in \[0, 1\]"):
        prevalence_shift(
            [0, 1], labels=[0, 1, 0, 1], draws=(np.full((3, 2), 2) * [0, 1], np.zeros((3, 4), int))
        )


def test_a_record_gives_the_value_back() -> None:
    chosen, attributes, labels = pool()
    attributes["gap"] = np.where(np.arange(300) < 250, math.nan, 1.0)
    for found in (
        prevalence_shift(chosen, attributes, labels=labels),
        prevalence_shift(chosen, attributes),
        prevalence_shift(np.arange(300), attributes),
    ):
        record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        back = PrevalenceShift.from_dict(record)
        assert back.to_dict() == record
        assert len(back.significant) == len(found.significant)
        assert math.isnan(back.largest_class_ratio) == math.isnan(found.largest_class_ratio)


# --------------------------------------------------------------------------------------------- classes


def test_class_shares_by_size_by_hand() -> None:
    labels = [0, 0, 1, 1, 1, 1, 3, 3]
    found = class_composition([[0, 1], [0, 1, 2, 6]], labels, ["dog", "cat", "never", "horse"])
    assert found.names == ("dog", "cat", "horse")
    assert found.sizes.tolist() == [2, 4]
    np.testing.assert_array_equal(found.counts, [[2, 0, 0], [2, 1, 1]])
    np.testing.assert_array_equal(found.shares, [[1, 0, 0], [0.5, 0.25, 0.25]])
    np.testing.assert_array_equal(found.pool_shares, [0.25, 0.5, 0.25])
    np.testing.assert_array_equal(found.ratios, [[4, 0, 0], [2, 0.5, 1]])
    assert found.largest_ratio.tolist() == [4, 2]
    assert "class 'dog' makes up 100% of the selection and 25% of the pool, 4.0 times" in (
        found.notice(0) or ""
    )
    assert found.notice(1) is None


@given(st.integers(0, 2**32 - 1))
def test_composition_equals_counting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, 40)
    sets = [rng.permutation(40)[: rng.integers(1, 41)] for _ in range(3)]
    found = class_composition(sets, labels)
    for row, each in zip(found.shares, sets, strict=True):
        assert row.sum() == pytest.approx(1)
        for name, share in zip(found.names, row, strict=True):
            assert share == np.mean(labels[each] == int(name))


def test_names_may_stand_for_classes() -> None:
    found = class_composition([[0, 1]], ["dog", "cat", "cat"])
    assert found.names == ("cat", "dog")
    assert found.counts.tolist() == [[1, 1]]


def test_a_composition_record_gives_the_value_back() -> None:
    found = class_composition([[0, 1], [2]], [0, 1, 1])
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert ClassComposition.from_dict(record).to_dict() == record


def test_a_composition_needs_labels_and_selections() -> None:
    with pytest.raises(InputError, match="labels are missing"):
        class_composition([[0]])
    with pytest.raises(InputError, match="sets is empty"):
        class_composition([], [0, 1])
    with pytest.raises(InputError, match=r"sets\[1\] holds 7"):
        class_composition([[0], [7]], [0, 1])
    with pytest.raises(ShapeError, match=r"labels has shape \(1, 2\)"):
        class_composition([[0]], [[0, 1]])


def small_data() -> CorrectnessData:
    inputs = arrays("small_101")
    return CorrectnessData.of(
        inputs["X"],
        inputs["y"],
        groups=np.arange(40),
        labels=inputs["labels"].astype(np.int64),
        label_names=["w", "x", "y", "z"],
        meta={"meta": inputs["meta"]},
    )


def test_a_selection_brings_its_labels_and_attributes() -> None:
    data = small_data()
    selection = oodselect(data, size=30)
    given_ = prevalence_shift(selection.indices, data.meta, labels=data.labels, label_names=data.label_names)
    assert prevalence_shift(selection).to_dict() == given_.to_dict()
    assert class_composition(selection).counts.sum() == 30
    assert class_composition(selection).names == data.label_names


def test_the_correlation_within_each_class() -> None:
    data = small_data()
    selection = oodselect(data, size=30)
    found = class_correlations(selection)
    assert sum(each.size for each in found) == 30
    test = selection.split.test
    for each in found:
        assert data.labels is not None
        assert data.label_names is not None
        members = selection.indices[data.labels[selection.indices] == data.label_names.index(each.name)]
        literal = correlate(data.id_accuracy[test], data.columns(members)[test].mean(axis=1))
        assert each.correlation.r == pytest.approx(literal.r, abs=1e-12, nan_ok=True)
        assert each.correlation.n == len(test)
        record = json.loads(json.dumps(each.to_dict(), allow_nan=False))
        assert ClassCorrelation.from_dict(record).to_dict() == record


def test_counts_that_no_selection_has_are_refused() -> None:
    (row,) = presence_shift(np.arange(4), 10, {"a": (3, 5)}, n_resamples=5).rows
    assert (row.selected, row.pool, row.p_value) == (0.75, 0.5, pytest.approx(110 / 210))
    for places, message in (([0, 0, 1], "0 more than once"), ([0, 10], "holds 10")):
        with pytest.raises(InputError, match=message):
            presence_shift(np.array(places), 10, {"a": (1, 2)})
    with pytest.raises(InputError, match="held is empty"):
        presence_shift(np.arange(4), 10, {})
    for counts in ((-1, 5), (5, 5), (3, 2), (3, 11), (0, 0), (1, 8)):
        with pytest.raises(InputError, match=f"^{counts[0]} of 4 .* {counts[1]} of 10 in the pool hold 'a'"):
            presence_shift(np.arange(4), 10, {"a": counts})


def test_classes_of_a_selection_without_labels_are_refused() -> None:
    inputs = arrays("small_101")
    selection = oodselect(inputs["X"], inputs["y"], 30, groups=np.arange(40))
    with pytest.raises(InputError, match="the data have no labels"):
        class_correlations(selection)
    with pytest.raises(InputError, match="labels are missing"):
        class_composition(selection)
    with pytest.raises(InputError, match="nothing to compare"):
        prevalence_shift(selection)


def test_the_class_that_explains_most_of_a_selection_is_named() -> None:
    labels = np.repeat(["common", "rare", "rest"], [300, 10, 690])
    chosen = np.concatenate([np.arange(65), 300 + np.arange(5), 310 + np.arange(30)])
    found = class_composition([chosen], labels)
    assert found.ratios[0].tolist() == pytest.approx([65 / 100 / 0.3, 5 / 100 / 0.01, 30 / 100 / 0.69])
    notice = found.notice()
    assert notice is not None
    assert notice.startswith("class 'common' makes up 65% of the selection and 30% of the pool, 2.2 times")


# ------------------------------------------------------------------------------------------ kinds of columns


def test_whole_numbers_of_many_values_are_compared_by_their_mean() -> None:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, 400)
    older = np.argsort(-(age + rng.normal(0, 30, 400)), kind="stable")[:100]
    (row,) = prevalence_shift(older, {"age": age}, n_resamples=20).rows
    assert row.value is None
    assert row.significant
    assert row.selected == pytest.approx(age[older].mean())
    hospital = prevalence_shift(older, {"hospital": age % 5}, n_resamples=20)
    assert [each.value for each in hospital.rows] == ["0", "1", "2", "3", "4"]  # a code


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ([np.bool_(True), np.bool_(False)] * 20, ["False", "True"]),
        ([np.int64(1), np.int64(2)] * 20, ["1", "2"]),
        ([np.int64(1), None] * 20, ["1", "missing"]),
        ([np.float64(0.5), np.float64(np.nan)] * 20, [None, "missing"]),
        ([np.float32(0.5), np.float32(2.5)] * 20, [None]),
        ([np.str_("a"), None] * 20, ["a", "missing"]),
    ],
)
def test_objects_of_numpy_are_values(column: list[Any], values: list[str | None]) -> None:
    found = prevalence_shift(np.arange(7), {"x": np.array(column, dtype=object)}, n_resamples=5)
    assert [row.value for row in found.rows] == values
