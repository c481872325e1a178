"""How many models the correlation over models needs."""

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from goldens import SMALL, arrays, values
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from scipy import stats as scipy_stats

from assay.analyses.subsets.line import probit
from assay.analyses.subsets.model_curve import ModelsNeeded, models_needed, prefix_correlations
from assay.core.errors import InputError, ShapeError, UnknownNameError


# Welford's update and the two-pass formula differ by rounding only.
ROUNDING = 1e-12


def literal(
    y: np.ndarray, a: np.ndarray, order: list[int], start: int, step: int, tol: float
) -> dict[str, Any]:
    """R(k) by a fresh correlation per size, with the definitions of `first` and `stable` word by word."""
    sizes = [*range(start, len(y), step), len(y)]
    x, z = (special.ndtri(np.clip(each, 1e-6, 1 - 1e-6)) for each in (y, a))
    curve = [float(np.corrcoef(x[order[:k]], z[order[:k]])[0, 1]) for k in sizes]
    change = [math.nan] + [abs(b - a) / abs(a) for a, b in itertools.pairwise(curve)]
    below = [k for k, c in zip(sizes, change, strict=True) if c < tol]
    stable = [
        k
        for place, k in enumerate(sizes)
        if place > 0 and all(change[i] < tol for i in range(place, len(sizes)))
    ]
    return {
        "k": sizes,
        "curve": curve,
        "change": change,
        "first": min(below, default=None),
        "stable": min(stable, default=None),
    }


def accuracies(seed: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=m)
    return special.ndtr(z), special.ndtr(0.7 * z + 0.5 * rng.normal(size=m))


@pytest.mark.parametrize("name", SMALL)
def test_golden_curve(name: str) -> None:
    inputs, golden = arrays(name), values(name)["n_models"]
    found = models_needed(
        inputs["y"],
        inputs["X"].mean(axis=1),
        orders=[inputs["order"]],
        start=golden["start"],
        step=golden["step"],
        tol=golden["tol"],
    )
    assert found.k.tolist() == golden["k"]
    np.testing.assert_allclose(found.curves[0], golden["pearson"], atol=ROUNDING)
    np.testing.assert_allclose(
        found.relative_change[0],
        [math.nan if each is None else each for each in golden["relative_change"]],
        atol=1e-10,  # a ratio of differences
    )
    assert found.first == (golden["first"],)
    assert found.stable == (golden["stable"],)
    assert found.median == (math.nan if golden["stable"] is None else golden["stable"])


@given(
    st.integers(0, 10_000), st.integers(6, 40), st.integers(3, 8), st.integers(1, 9), st.floats(0.001, 0.5)
)
def test_one_pass_equals_a_fresh_correlation_per_size(
    seed: int, m: int, start: int, step: int, tol: float
) -> None:
    y, a = accuracies(seed, m)
    order = np.random.default_rng(seed).permutation(m)
    found = models_needed(y, a, orders=[order], start=start, step=step, tol=tol)
    wanted = literal(y, a, order.tolist(), min(start, m), step, tol)
    assert found.k.tolist() == wanted["k"]
    np.testing.assert_allclose(found.curves[0], wanted["curve"], atol=1e-9)
    assert found.first == (wanted["first"],)
    assert found.stable == (wanted["stable"],)


def test_settled_means_settled_from_there_on() -> None:
    y, a = accuracies(3, 12)
    found = models_needed(y, a, orders=[range(12)], start=3, step=1, tol=0.1)
    change = found.relative_change[0, 1:]
    last_large = int(np.flatnonzero(change >= 0.1)[-1]) if (change >= 0.1).any() else -1
    assert found.stable[0] == (None if last_large == len(change) - 1 else found.k[last_large + 2])
    assert found.first[0] == found.k[1 + int(np.argmax(change < 0.1))]


def test_the_last_size_is_every_model_and_does_not_depend_on_the_order() -> None:
    y, a = accuracies(4, 47)
    found = models_needed(y, a, seed=5)
    assert found.k.tolist() == [10, 20, 30, 40, 47]
    assert found.curves.shape == (20, 5)
    np.testing.assert_allclose(found.curves[:, -1], found.curves[0, -1], atol=ROUNDING)
    r = scipy_stats.pearsonr(probit(y), probit(a)).statistic
    assert found.curves[0, -1] == pytest.approx(r, abs=ROUNDING)
    assert found.mean[-1] == pytest.approx(r, abs=ROUNDING)


def test_random_orders_have_one_seed() -> None:
    y, a = accuracies(4, 47)
    first, again, other = (models_needed(y, a, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.curves, again.curves)
    assert (first.curves[:, 0] != other.curves[:, 0]).all()


def test_whole_runs_are_added() -> None:
    y, a = accuracies(7, 12)
    groups = ["b"] * 5 + ["a"] * 3 + ["c"] * 4
    # Units in the order of their models: b = 0..4, a = 5..7, c = 8..11; the order takes c, a, b.
    found = models_needed(y, a, groups=groups, orders=[[2, 1, 0]], start=4, step=2, tol=0.5)
    assert found.unit == "group"
    assert found.n_units == 3
    assert found.k.tolist() == [4, 6, 8, 10, 12]
    assert found.n_used[0].tolist() == [4, 7, 12, 12, 12]
    x, z = probit(y), probit(a)
    for column, members in ((0, [8, 9, 10, 11]), (1, [8, 9, 10, 11, 5, 6, 7]), (2, list(range(12)))):
        assert found.curves[0, column] == pytest.approx(
            np.corrcoef(x[members], z[members])[0, 1], abs=ROUNDING
        )
    # No run was added at the last two sizes: they say nothing about whether R has settled.
    assert np.isnan(found.relative_change[0, 3:]).all()
    assert found.stable[0] in (None, 7, 12)
    assert models_needed(y, a, groups=groups, unit="model").unit == "model"


def test_runs_of_one_model_equal_models() -> None:
    y, a = accuracies(8, 30)
    order = np.random.default_rng(0).permutation(30)
    by_run = models_needed(y, a, groups=np.arange(30), orders=[order], start=5, step=5)
    by_model = models_needed(y, a, orders=[order], start=5, step=5)
    np.testing.assert_array_equal(by_run.curves, by_model.curves)
    assert by_run.stable == by_model.stable


def test_an_order_that_never_settles_counts_as_infinite() -> None:
    def made(*stable: int | None) -> ModelsNeeded:
        shape = (len(stable), 1)
        return ModelsNeeded(
            k=np.array([50]),
            n_used=np.full(shape, 50),
            curves=np.full(shape, 0.5),
            relative_change=np.full(shape, np.nan),
            first=stable,
            stable=stable,
            tol=0.01,
            unit="model",
            n_units=50,
            seed=0,
        )

    some = made(20, None, 30)
    assert some.median == 30
    assert some.range[0] == 20
    assert math.isnan(some.range[1])
    assert some.n_never == 1
    assert math.isnan(made(20, None).median)
    assert made(20, 30).median == 25


def test_constant_accuracies_have_no_curve() -> None:
    y, _ = accuracies(9, 20)
    found = models_needed(y, np.full(20, 0.5))
    assert np.isnan(found.curves).all()
    assert np.isnan(found.mean).all()
    assert set(found.stable) == {None}
    assert found.to_dict()["median"] is None


@given(st.integers(0, 10_000), st.integers(2, 30))
def test_prefix_correlations_are_correlations_of_prefixes(seed: int, m: int) -> None:
    x, y = np.random.default_rng(seed).normal(size=(2, 3, m))
    found = prefix_correlations(x, y)
    assert np.isnan(found[:, 0]).all()
    for n in range(2, m + 1):
        for row in range(3):
            assert found[row, n - 1] == pytest.approx(np.corrcoef(x[row, :n], y[row, :n])[0, 1], abs=1e-9)


def test_a_record_gives_the_value_back() -> None:
    y, a = accuracies(4, 47)
    found = models_needed(y, a, groups=np.arange(47) // 5, tol=0.001)
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    back = ModelsNeeded.from_dict(record)
    assert back.to_dict() == record
    assert record["n_models"] == back.n_models == 47
    np.testing.assert_array_equal(back.curves, found.curves)
    assert back.stable == found.stable


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": 2}, "start=2, step=10"),
        ({"step": 0}, "step=0"),
        ({"tol": 0.0}, "tol=0.0"),
        ({"orders": 0}, "orders is 0"),
        ({"orders": []}, "orders is empty"),
        ({"orders": [[0, 0, 1]]}, r"orders\[0\] is not a permutation of the 12 units 0 to 11"),
        ({"unit": "group"}, "give groups="),
        ({"id_accuracy": np.full(12, 1.5)}, r"id_accuracy\[0\] is 1.5"),
        ({"id_accuracy": np.full(2, 0.5), "accuracy": np.full(2, 0.5)}, "holds 2 models"),
    ],
)
def test_arguments_out_of_range_are_named(changed: dict[str, Any], message: str) -> None:
    y, a = accuracies(4, 12)
    given_ = {"id_accuracy": y, "accuracy": a} | changed
    with pytest.raises(InputError, match=message):
        models_needed(**given_)


def test_shapes_and_names_are_checked() -> None:
    y, a = accuracies(4, 12)
    with pytest.raises(ShapeError, match=r"id_accuracy has shape \(12,\) and accuracy \(11,\)"):
        models_needed(y, a[:11])
    with pytest.raises(ShapeError, match=r"accuracy has shape \(12, 1\)"):
        models_needed(y, a[:, None])
    with pytest.raises(ShapeError, match="groups holds 3 names for 12 models"):
        models_needed(y, a, groups=["a", "b", "c"])
    with pytest.raises(UnknownNameError, match="did you mean 'model'"):
        models_needed(y, a, unit="models")
