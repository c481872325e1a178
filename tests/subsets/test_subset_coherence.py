"""What selections hold: overlap over sizes, classes and facts, single examples, models needed."""

import json
import math
from fractions import Fraction
from math import comb

import numpy as np
import pandas as pd
import pytest
from goldens import FOLDER, SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from planted_subsets import planted_embedding
from scipy import special
from scipy import stats as scipy_stats

from assay.analyses.subsets.coherence import (
    example_correlations,
    models_needed,
    prevalence_shift,
    replicate_examples,
    slope_p_values,
)
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.overlap import expected_jaccard, selection_consistency
from assay.analyses.subsets.selection import Subset, oodselect
from assay.core.errors import InputError
from assay.stats import benjamini_hochberg


EXACT = 1e-11  # golden values have 12 decimals


@pytest.fixture(scope="module")
def planted() -> CorrectnessData:
    """600 examples with embeddings; the 120 on which better models do worse lie apart, and are dim."""
    data = planted_embedding(0, "cluster")
    dim = data.embedding[:, 0] > 1.5
    rng = np.random.default_rng(0)
    return CorrectnessData.of(
        data,
        labels=np.where(dim & (rng.uniform(size=600) < 0.9), "dog", "cat"),
        meta={"light": np.where(dim, "dim", "bright"), "size": rng.normal(size=600) + 2 * dim},
    )


@pytest.fixture(scope="module")
def subset(planted: CorrectnessData) -> Subset:
    return oodselect(planted, size=60)


# ------------------------------------------------------------------------------------ overlap over sizes


def literal_expectation(first: int, second: int, n: int) -> Fraction:
    """E[h / (a + b - h)] in whole numbers, counting draws of `first` that share h with a fixed set."""
    total = Fraction(0)
    for h in range(max(0, first + second - n), min(first, second) + 1):
        ways = comb(second, h) * comb(n - second, first - h)
        total += Fraction(ways, comb(n, first)) * Fraction(h, first + second - h)
    return total


def test_two_of_four_by_hand() -> None:
    # h = 0, 1, 2 with probability 1/6, 4/6, 1/6: E = 4/6 * 1/3 + 1/6 = 7/18.
    overlap = selection_consistency([[0, 1], [1, 2]], 4).iloc[0, 1]
    assert overlap == pytest.approx((1 / 3 - 7 / 18) / (1 - 7 / 18), abs=EXACT)


@pytest.mark.parametrize("name", SMALL)
def test_golden_overlaps(name: str) -> None:
    for case in values(name)["jaccard"]:
        found = selection_consistency(case["sets"], case["universe"])
        np.testing.assert_allclose(found, np.array(case["normalised"], dtype=float), atol=EXACT)


def test_golden_overlap_of_the_published_sizes() -> None:
    for case in json.loads((FOLDER / "jaccard_published.json").read_text()).values():
        if not isinstance(case, dict) or "sizes" not in case:
            continue
        expected = np.array(case["expected_random"], dtype=float)
        for i, j in [(0, 1), (2, 5)]:
            ours = expected_jaccard(*sorted((case["sizes"][i], case["sizes"][j])), case["universe"])
            assert ours == pytest.approx(expected[i, j], abs=1e-9)


@given(st.integers(2, 30), st.data())
def test_overlaps_equal_the_literal_ones(n: int, data: st.DataObject) -> None:
    some = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    one, other = data.draw(some), data.draw(some)
    a, b = sorted((len(one), len(other)))
    shared, chance, most = len(set(one) & set(other)), literal_expectation(a, b, n), Fraction(a, b)
    literal = math.nan
    if most > chance:
        literal = float((Fraction(shared, a + b - shared) - chance) / (most - chance))
    np.testing.assert_allclose(selection_consistency([one, other], n).iloc[0, 1], literal, atol=EXACT)


@pytest.mark.parametrize("places", [[], [0, 0], [0, 9], [True, False], [0.5]])
def test_what_is_not_a_selection_is_refused(places: list[float]) -> None:
    with pytest.raises(InputError, match=r"expected places in \[0, 8\], each once"):
        selection_consistency([places, [1]], 9)


# ----------------------------------------------------------------------------------- classes and facts


@pytest.mark.parametrize("name", SMALL)
def test_golden_prevalence(name: str) -> None:
    inputs, golden = arrays(name), values(name)["prevalence"]
    facts = pd.DataFrame({"label": inputs["labels"], "meta": inputs["meta"]})
    found = prevalence_shift(inputs[golden["selection"]], facts)
    row = found[(found["attribute"] == "meta") & (found["value"] == "1")].iloc[0]
    assert (row["selected"], row["pool"]) == (golden["p_selected"], golden["p_pool"])
    assert row["difference"] == pytest.approx(golden["difference"], abs=1e-15)
    assert row["ratio"] == pytest.approx(golden["ratio"], abs=1e-14)
    assert row["p_value"] == pytest.approx(golden["hypergeom_two_sided_p"], abs=1e-12)
    labels = found[found["attribute"] == "label"]
    assert labels["n_selected"].tolist() == golden["label_counts_selected"]
    assert labels["n_pool"].tolist() == golden["label_counts_pool"]


def test_a_subset_is_compared_in_classes_facts_and_numbers(subset: Subset) -> None:
    found = prevalence_shift(subset)
    assert found["attribute"].tolist() == ["label"] * 2 + ["light"] * 2 + ["size"] * 4
    sure = found[found["significant"]]
    assert {("label", "dog"), ("light", "dim")} <= set(zip(sure["attribute"], sure["value"], strict=True))
    quarters = found[found["attribute"] == "size"]
    assert quarters["n_pool"].tolist() == [150] * 4
    assert quarters["n_selected"].sum() == subset.size
    np.testing.assert_array_equal(found["q_value"], benjamini_hochberg(found["p_value"].to_numpy()))


def test_missing_and_whole_numbers() -> None:
    facts = pd.DataFrame({
        "code": [10, 9, 9, 10, 2, 2], "age": [1.0, None, 3.0, 4.0, 5.0, 6.0],
        "light": ["dim", None, "", "dim", "bright", "bright"], "id": [f"e{k}" for k in range(6)],
    })  # fmt: skip
    found = prevalence_shift([0, 1], facts, n_resamples=50)
    by = {name: rows["value"].tolist() for name, rows in found.groupby("attribute", sort=False)}
    assert by["code"] == ["2", "9", "10"]  # by size
    assert by["age"][-1] == "missing"
    assert len(by["age"]) == 5  # and four quarters
    assert by["light"] == ["bright", "dim", "missing"]
    assert "id" in by
    with pytest.raises(InputError, match="nothing to compare: give columns with at most 1,000 values"):
        prevalence_shift([0], pd.DataFrame({"id": [f"e{k}" for k in range(1001)]}))


# ------------------------------------------------------------------------------------ example by example


@pytest.mark.parametrize("scores", [False, True])
def test_correlations_of_examples_equal_numpy_and_constant_ones_have_none(scores: bool) -> None:
    rng = np.random.default_rng(3)
    y = rng.uniform(0.5, 0.9, 30)
    shown = rng.uniform(size=(30, 7))
    x = shown.astype(np.float32) if scores else (shown < 0.5).astype(np.uint8)
    x[:, 0] = 1
    r = example_correlations(x, y)
    assert math.isnan(r[0])
    literal = [np.corrcoef(x[:, j].astype(float), special.ndtri(y))[0, 1] for j in range(1, 7)]
    np.testing.assert_allclose(r[1:], literal, atol=1e-12)


def test_planted_examples_come_back_one_by_one(subset: Subset) -> None:
    test = replicate_examples(subset)
    chosen, others = test[test["chosen"]], test[~test["chosen"]]
    assert (chosen["r"].dropna() < 0).mean() > 0.8 > 0.3 > (others["r"].dropna() < 0).mean()
    assert (chosen["q_value"] <= 0.05).mean() > 0.05 > (others["q_value"] <= 0.05).mean()
    assert len(chosen) == subset.size
    np.testing.assert_array_equal(chosen["q_value"], benjamini_hochberg(chosen["p_value"].to_numpy()))
    t = 0.3 * math.sqrt(7 / (1 - 0.09))
    np.testing.assert_allclose(slope_p_values(np.array([0.3, np.nan]), 7.0), [scipy_stats.t.cdf(t, 7), 1.0])


# ------------------------------------------------------------------------------------------ models needed


@pytest.mark.parametrize("name", SMALL)
def test_golden_curve(name: str) -> None:
    inputs, golden = arrays(name), values(name)["n_models"]
    needed = models_needed(
        inputs["y"], inputs["X"].mean(axis=1), orders=[inputs["order"]],
        start=golden["start"], step=golden["step"], tolerance=golden["tol"],
    )  # fmt: skip
    assert needed.k.tolist() == golden["k"]
    np.testing.assert_allclose(needed.curves[0], golden["pearson"], atol=1e-12)
    assert needed.stable == (golden["stable"],)
    median = math.nan if golden["stable"] is None else golden["stable"]
    assert needed.median == pytest.approx(median, nan_ok=True)


@given(st.integers(0, 10_000), st.integers(6, 40), st.integers(3, 9))
def test_a_curve_equals_a_fresh_correlation_per_size(seed: int, m: int, step: int) -> None:
    rng = np.random.default_rng(seed)
    y, a, order = rng.uniform(0.3, 0.9, m), rng.uniform(0.3, 0.9, m), rng.permutation(m)
    needed = models_needed(y, a, orders=[order], start=step, step=step, tolerance=0.1)
    for k, r in zip(needed.k, needed.curves[0], strict=True):
        literal = np.corrcoef(special.ndtri(y[order[:k]]), special.ndtri(a[order[:k]]))[0, 1]
        assert r == pytest.approx(literal, abs=1e-9)
    change = np.abs(np.diff(needed.curves[0]) / needed.curves[0][:-1])
    stable = [int(k) for at, k in enumerate(needed.k[1:]) if (change[at:] < 0.1).all()]
    assert needed.stable == (stable[0] if stable else None,)


def test_whole_runs_are_added() -> None:
    rng = np.random.default_rng(0)
    needed = models_needed(rng.uniform(size=24), rng.uniform(size=24), groups=np.arange(24) // 6, orders=2)
    assert needed.whole_runs
    assert needed.n_used.tolist() == [[12, 24, 24]] * 2
