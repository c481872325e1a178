"""Correlations and rank agreement against scipy, enumeration and golden values."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as scipy_stats

from assay.core.errors import DegenerateDataWarning, InputError, ShapeError
from assay.core.random import stream
from assay.stats import fagin_tau_rows, kendall_tau, kendall_tau_rows, pearson, spearman


GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "topk_agreement.json").read_text())
CORRELATIONS = [pearson, spearman, kendall_tau]
PAIRS = st.integers(3, 12).flatmap(
    lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=st.integers(-5, 5)) for _ in range(2)])
)


def varies(x: np.ndarray) -> bool:
    return bool((x != x[0]).any())


# ------------------------------------------------------------------------------------------- correlations


@given(PAIRS)
def test_correlations_agree_with_scipy(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    if not (varies(x) and varies(y)):
        return
    assert pearson(x, y) == pytest.approx(scipy_stats.pearsonr(x, y).statistic, abs=1e-12)
    assert spearman(x, y) == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)
    assert kendall_tau(x, y) == pytest.approx(scipy_stats.kendalltau(x, y).statistic, abs=1e-12)


@pytest.mark.parametrize("correlation", CORRELATIONS)
def test_correlations_are_symmetric_and_odd(correlation: object) -> None:
    x, y = stream(0, "pairs").normal(size=(2, 20))
    r = correlation(x, y)  # type: ignore[operator]
    assert r == pytest.approx(correlation(y, x), abs=1e-12)  # type: ignore[operator]
    assert r == pytest.approx(-correlation(-x, y), abs=1e-12)  # type: ignore[operator]


def test_rank_correlations_ignore_increasing_transforms() -> None:
    x, y = stream(0, "pairs").normal(size=(2, 20))
    for correlation in (spearman, kendall_tau):
        assert correlation(np.exp(x), y**3) == pytest.approx(correlation(x, y), abs=1e-12)


def test_spearman_uses_average_ranks() -> None:
    # Ranks of x: 1.5, 1.5, 3; of y: 1, 2, 3. r = 1.5 / root(1.5 * 2).
    assert spearman(np.array([0, 0, 1]), np.array([1, 2, 3])) == pytest.approx(1.5 / math.sqrt(3.0))


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_pearson_survives_extreme_scales(scale: float) -> None:
    x, y = stream(0, "pairs").normal(size=(2, 20))
    assert pearson(scale * x, y) == pytest.approx(pearson(x, y), abs=1e-9)


@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize(
    ("x", "y"),
    [([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]), ([1.0], [2.0]), ([], [])],
)
def test_undefined_correlations_are_nan_with_a_warning(
    correlation: object, x: list[float], y: list[float]
) -> None:
    with pytest.warns(DegenerateDataWarning, match="is undefined"):
        r = correlation(np.array(x), np.array(y))  # type: ignore[operator]
    assert math.isnan(r)


def test_unequal_lengths_are_refused(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"got shapes \(3,\) and \(2,\)"):
        pearson(np.ones(3), np.ones(2))


def test_non_finite_pairs_are_refused() -> None:
    with pytest.raises(InputError, match="drop those pairs first"):
        spearman(np.array([1.0, np.nan]), np.array([1.0, 2.0]))


# ------------------------------------------------------------------------------------------- rows


@given(
    st.integers(2, 7).flatmap(
        lambda n: st.tuples(*[hnp.arrays(np.float64, (4, n), elements=st.integers(0, 3)) for _ in range(2)])
    )
)
def test_row_wise_tau_equals_the_plain_one(pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = pair
    rows = kendall_tau_rows(x, y)
    for row, a, b in zip(rows, x, y, strict=True):
        if varies(a) and varies(b):
            assert row == pytest.approx(scipy_stats.kendalltau(a, b).statistic, abs=1e-12)
        else:
            assert math.isnan(row)


def test_row_wise_tau_of_equal_rows_is_exactly_one() -> None:
    x = stream(0, "rows").normal(size=(50, 10))
    assert (kendall_tau_rows(x, x) == 1.0).all()
    assert (kendall_tau_rows(x, -x) == -1.0).all()


def test_unused_entries_do_not_count() -> None:
    x, y = np.array([[1.0, 2.0, 3.0, 9.0]]), np.array([[1.0, 2.0, 3.0, -9.0]])
    used = np.array([[True, True, True, False]])
    assert kendall_tau_rows(x, y)[0] == 0.0
    assert kendall_tau_rows(x, y, used=used)[0] == 1.0
    assert math.isnan(kendall_tau_rows(x, y, used=np.array([[True, False, False, False]]))[0])


# ------------------------------------------------------------------------------------------- Fagin


def literal_fagin(a: list[int], b: list[int]) -> float:
    """The four rules, pair by pair."""
    distance = 0.0
    for i, j in itertools.combinations(sorted({*a, *b}), 2):
        in_a, in_b = [item for item in (i, j) if item in a], [item for item in (i, j) if item in b]
        if len(in_a) == 2 and len(in_b) == 2:
            distance += (a.index(i) < a.index(j)) != (b.index(i) < b.index(j))
        elif len(in_a) == 2 or len(in_b) == 2:
            both, single = (a, in_b) if len(in_a) == 2 else (b, in_a)
            if not single:
                distance += 0.5
            else:
                other = j if single[0] == i else i
                distance += both.index(other) < both.index(single[0])
        else:
            distance += 1
    k = len(a)
    return 1 - 2 * distance / (k * k + k * (k - 1) / 2)


@given(st.integers(1, 6).flatmap(lambda k: st.tuples(*[st.permutations(range(9)).map(lambda p: p[:k])] * 2)))
def test_fagin_equals_its_four_rules(lists: tuple[list[int], list[int]]) -> None:
    a, b = lists
    found = fagin_tau_rows(np.array([a]), np.array([b]))[0]
    assert found == pytest.approx(literal_fagin(a, b), abs=1e-12)
    assert found == pytest.approx(fagin_tau_rows(np.array([b]), np.array([a]))[0], abs=1e-12)


def test_fagin_spans_from_disjoint_to_identical() -> None:
    a = np.array([[4, 2, 7], [4, 2, 7]])
    assert fagin_tau_rows(a, np.array([[4, 2, 7], [1, 0, 3]])).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["mode"])
def test_fagin_matches_golden_lists(case: dict) -> None:
    for prompt in case["per_prompt"]:
        for entry in prompt.values():
            if "fagin_tau" in entry:
                lists = [np.array([entry[side]]) for side in ("top_full", "top_circuit")]
                assert fagin_tau_rows(*lists)[0] == pytest.approx(entry["fagin_tau"], rel=1e-9)
