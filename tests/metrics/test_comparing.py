"""`compare`: paired differences of two circuits, by hand, against `measure`, and simulated at no effect."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import assay
from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.random import stream, torch_stream
from assay.metrics import METRICS, difference
from assay.models import Model, load_model
from assay.stats import RatioOfSums, mean_of, paired_difference, ratio_of
from assay.tasks import PairTask


def measurement(statistic: RatioOfSums, seed: int = 0, **components: list[float]) -> Measurement:
    table = {name: np.array(values) for name, values in components.items()}
    used = np.isfinite(np.stack(list(table.values()))).all(axis=0)
    sums = np.array([table[name][used].sum() for name in statistic.components])
    value = float(statistic.of_sums(sums, int(used.sum())))
    return Measurement(
        id="X1",
        name="x",
        value=value,
        n=int(used.sum()),
        n_excluded=int((~used).sum()),
        components=table,
        statistic=statistic,
        seed=seed,
    )


def test_two_ratios_over_the_same_sums_are_one_ratio_by_hand() -> None:
    one, two = ({"keep": keep, "full": [2.0, 4.0, 6.0]} for keep in ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]))
    statistic = ratio_of("keep", "full")
    made = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert made.value == pytest.approx((9 - 6) / 12)
    assert made.statistic == RatioOfSums(
        numerator={"b/keep": 1.0, "a/keep": -1.0}, denominator={"a/full": 1.0}
    )
    assert made.parts["a"].value == 0.5
    assert made.parts["b"].value == 0.75


def test_ratios_over_other_sums_are_resampled_together() -> None:
    statistic = ratio_of("keep", "full")
    one = {"keep": [1.0, 2.0, 3.0], "full": [2.0, 4.0, 6.0]}
    two = {"keep": [2.0, 2.0, 5.0], "full": [4.0, 4.0, 8.0]}
    made = difference(measurement(statistic, **one), measurement(statistic, **two))
    assert made.value == pytest.approx(9 / 16 - 6 / 12)
    drawn = np.array([[0, 0, 2], [1, 2, 2]])
    assert made.value_on(drawn) == pytest.approx([9 / 16 - 5 / 10, 12 / 20 - 8 / 16])


def test_a_row_that_one_side_lacks_counts_for_neither() -> None:
    statistic = mean_of("x")
    made = difference(
        measurement(statistic, x=[1.0, np.nan, 3.0, 5.0]), measurement(statistic, x=[2.0, 9.0, 5.0, np.nan])
    )
    assert made.value == pytest.approx((1 + 2) / 2)
    assert (made.n, made.n_excluded) == (2, 2)
    assert made.per_example is not None
    np.testing.assert_array_equal(made.per_example, [1.0, np.nan, 2.0, np.nan])


def test_shares_differ_by_the_mean_of_bounded_values() -> None:
    statistic = mean_of("hit", bounds=(0.0, 1.0))
    made = difference(measurement(statistic, hit=[0.0] * 12), measurement(statistic, hit=[0.0] * 11 + [1.0]))
    interval = made.interval()
    assert interval.method == "betting"
    assert made.value == pytest.approx(1 / 12)
    assert -1 < interval.low < 0 < made.value < interval.high < 1


@pytest.mark.parametrize("effect", [0.0, 0.02])
def test_the_paired_interval_holds_a_small_effect(effect: float) -> None:
    """The sides share most of their noise: what is left of it decides, and 95 % is held within error."""
    statistic = ratio_of("keep", "full")
    held, narrower, n, draws = 0, 0, 40, 300
    for draw in range(draws):
        rng = stream(draw, "paired")
        full = rng.normal(3.0, 1.0, n)
        shared = 0.7 * full + rng.normal(0, 1.0, n)
        one, two = (shared + rng.normal(size, 0.2, n) for size in (0.0, 3 * effect))
        made = difference(
            measurement(statistic, draw, keep=list(one), full=list(full)),
            measurement(statistic, draw, keep=list(two), full=list(full)),
        )
        interval = made.interval()
        held += interval.low <= effect <= interval.high
        apart = [part.interval() for part in (made.parts["a"], made.parts["b"])]
        narrower += interval.high - interval.low < min(each.high - each.low for each in apart)
    assert held / draws > 0.92
    assert narrower == draws


def test_statistics_of_different_scale_stay_apart() -> None:
    one, two = mean_of("x"), mean_of("x", scale=2.0)
    statistic, components = paired_difference((one, {"x": np.ones(3)}), (two, {"x": np.ones(3)}))
    assert list(components) == ["a/x", "b/x"]
    assert float(statistic.of_sums(np.array([3.0, 3.0]), 3)) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def model(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("llama"))


@pytest.fixture(scope="module")
def task() -> PairTask:
    generator = torch_stream(0, "task")
    clean, corrupted = (torch.randint(1, 61, (12, 5), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], wrong=(clean[:, :1] + 1) % 60)


@pytest.mark.parametrize("key", [key for key, spec in METRICS.items() if spec.compute is not None])
def test_every_metric_differs_by_what_measure_gives(key: str, model: Model, task: PairTask) -> None:
    a, b = (Circuit.random(model.graph, 60, seed=seed) for seed in (1, 2))
    made = assay.compare(a, b, model, task, key)
    one, two = (assay.measure(circuit, model, task, key) for circuit in (a, b))
    if one.n == two.n == made.n:
        assert made.value == pytest.approx(two.value - one.value, abs=1e-12, nan_ok=True)
    assert made.parts["a"].value == pytest.approx(one.value, nan_ok=True)
    assert made.parts["b"].value == pytest.approx(two.value, nan_ok=True)
    assert made.status == "none"
    json.dumps(made.to_dict(), allow_nan=False)


def test_a_circuit_does_not_differ_from_itself(model: Model, task: PairTask) -> None:
    circuit = Circuit.random(model.graph, 60, seed=1)
    interval = assay.compare(circuit, circuit, model, task, "kl").interval()
    assert (interval.low, interval.high) == (0, 0)


def test_measurements_of_other_things_are_refused(model: Model, task: PairTask) -> None:
    head, heads = (Circuit.from_heads(model.graph, each) for each in ("a0.h1", "a0.h1,a1.h0"))
    made = assay.compare(head, heads, model, task, "faithfulness")
    assert made.provenance["b"]["circuit"] == heads.hash
    ends = made.interval()
    assert f"b - a = {made.value:.4g} fraction [{ends.low:.4g}, {ends.high:.4g}]" in repr(made)
    one = assay.measure(head, model, task, "kl")
    with pytest.raises(InputError, match="measurements of 12 and of 5 examples"):
        difference(one, assay.measure(head, model, task.subset(range(5)), "kl"))
    with pytest.raises(InputError, match="cannot compare kl with topk"):
        difference(one, assay.measure(head, model, task, "topk"))
