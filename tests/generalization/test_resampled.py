"""The depth bias from resamples, against literal loops and exact variances."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from assay.analyses.generalization import (
    dependency_depth_bias,
    resampled_depth_bias,
)
from assay.circuits import EdgeScores
from assay.core.errors import InputError, UnknownNameError
from assay.discovery.edges import OutputScores
from assay.discovery.edges.sums import WeightedSums
from assay.graph import build_graph
from assay.stats import ResampledValue


GRAPH = build_graph(4, 2)
B = 60


def sample(n: int, seed: int, *, noise: float = 1.0, resamples: int = B) -> EdgeScores:
    """Scores of n examples around the same means, with the sums an engine keeps of them."""
    rng = np.random.default_rng(seed)
    means = np.exp(np.random.default_rng(99).standard_normal(GRAPH.n_edges)) * 0.2
    apart = torch.zeros(n, *GRAPH.valid.shape, dtype=torch.float64)
    apart[:, GRAPH.valid] = torch.from_numpy(means + noise * rng.standard_normal((n, GRAPH.n_edges)))
    drawn = drawn_means(apart, resamples, seed)
    details = {"n": n}
    return EdgeScores(GRAPH, apart.mean(0), per_example=apart, resampled=drawn, details=details)


def drawn_means(apart: torch.Tensor, resamples: int, seed: int) -> torch.Tensor:
    n, edges = len(apart), apart[:, GRAPH.valid]
    sums = WeightedSums.of(edges, torch.arange(n), resamples, seed)
    return sums.means(edges.sum(0), n)


def at(scores: EdgeScores, row: torch.Tensor) -> EdgeScores:
    values = torch.zeros(GRAPH.valid.shape, dtype=torch.float64)
    values[GRAPH.valid] = row.double()
    return EdgeScores(GRAPH, values)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": "deep", "ratio": 0.5},
        {"targets": "global", "include_input": True},
    ],
)
def test_depth_bias_of_each_resample(options: dict[str, Any]) -> None:
    scores = sample(12, 1)
    found = resampled_depth_bias(scores, **options)
    assert found.value == pytest.approx(dependency_depth_bias(scores, **options), rel=1e-12)
    for b in (0, 7):
        drawn = dependency_depth_bias(at(scores, scores.resampled[b]), **options)
        assert found.draws[b] == pytest.approx(drawn, rel=1e-9)


def test_scores_into_the_logits_alone_give_the_same() -> None:
    scores = sample(20, 1)
    drawn = torch.zeros(B, *GRAPH.valid.shape)
    drawn[:, GRAPH.valid] = scores.resampled
    output = OutputScores(
        graph=GRAPH,
        values=scores.values[:, -1],
        per_example=None,
        resampled=drawn[:, :, -1],
        provenance={},
        details={"n": 20},
    )
    whole, fast = resampled_depth_bias(scores), resampled_depth_bias(output)
    np.testing.assert_allclose(fast.draws, whole.draws, rtol=1e-9)
    assert fast.error == pytest.approx(whole.error)
    with pytest.raises(InputError, match="needs scores of other edges than those into the logits"):
        resampled_depth_bias(output, targets="deep")


def test_errors_are_those_of_a_literal_bootstrap() -> None:
    """Drawing images with replacement, a resample after the other; each side has 1.6 % Monte Carlo error."""
    new = sample(40, 1, resamples=2000)
    rng = np.random.default_rng(5)
    apart = new.per_example
    literal = []
    for _ in range(2000):
        mean = apart[torch.from_numpy(rng.integers(0, 40, 40))].mean(0)
        moved = EdgeScores(GRAPH, new.values + (mean - new.values) * np.sqrt(40 / 39))
        literal.append(dependency_depth_bias(moved, targets="global"))
    found = resampled_depth_bias(new, targets="global")
    assert found.error == pytest.approx(np.std(literal, ddof=1), rel=0.06)


def test_draws_pair_up_by_images_and_seed() -> None:
    """Of two models on the same images; those of other images, or of another seed, are refused."""
    rng = np.random.default_rng(0)
    first = sample(60, 1)
    apart = first.per_example + 0.05 * torch.from_numpy(rng.standard_normal(first.per_example.shape))

    def of(each: torch.Tensor, key: str) -> ResampledValue:
        details = {"n": len(each), "resamples_key": key}
        drawn = drawn_means(each, B, 1)
        return resampled_depth_bias(EdgeScores(GRAPH, each.mean(0), resampled=drawn, details=details))

    one, other = of(first.per_example, "a"), of(apart, "a")
    difference = one - other
    assert difference.value == one.value - other.value
    assert difference.error < 0.5 * one.error
    for unpaired in (of(apart[1:], "a"), of(apart, "b")):
        with pytest.raises(InputError, match="needs the same resamples of the same examples"):
            one - unpaired


def test_intervals_by_hand() -> None:
    noise = np.random.default_rng(0).standard_normal(400)
    found = ResampledValue(value=1.0, draws=7 + 2 * noise, n=9, bounds=(0.5, 100.0))
    assert found.error == pytest.approx(2 * noise.std(ddof=1))
    interval = found.interval(level=0.9)
    assert interval.high == pytest.approx(1 + scipy_stats.t.ppf(0.95, 8) * found.error)
    assert interval.low == 0.5
    assert ResampledValue(value=2.0, draws=np.full(400, 2.0), n=9).interval().reason == "degenerate"
    small = ResampledValue(value=1e-12, draws=1e-12 + 3e-13 * noise, n=9).interval()
    assert small.reason is None
    assert small.high - 1e-12 == pytest.approx(scipy_stats.t.ppf(0.975, 8) * 3e-13 * noise.std(ddof=1))
    assert ResampledValue(value=0.0, draws=np.zeros(400), n=9).interval().reason == "degenerate"
    assert ResampledValue(value=1.0, draws=noise[:9], n=9).interval().reason == "undefined"
    holes = ResampledValue(value=1.0, draws=np.where(np.arange(400) < 100, np.nan, noise), n=9)
    assert holes.error == pytest.approx(noise[100:].std(ddof=1))
    assert ResampledValue(value=1.0, draws=noise, n=1).interval().reason == "too_few"
    with pytest.raises(InputError, match="level is 1"):
        found.interval(level=1.0)


def test_errors_are_the_spread_of_samples() -> None:
    """Of 300 samples of 30 images, noise as large as the scores; their standard deviation has 4 % error."""
    found = [resampled_depth_bias(sample(30, seed), targets="global") for seed in range(300)]
    values, errors = np.array([[each.value, each.error] for each in found]).T
    assert np.sqrt((errors**2).mean()) / values.std(ddof=1) == pytest.approx(1, abs=0.12)


def test_what_cannot_be_resampled() -> None:
    with pytest.raises(InputError, match="discover with resamples=200"):
        resampled_depth_bias(EdgeScores(GRAPH, sample(5, 1).values))
    with pytest.raises(UnknownNameError, match="targets"):
        resampled_depth_bias(sample(5, 1), targets="logits")
    with pytest.raises(InputError, match="ratio is 0.7"):
        resampled_depth_bias(sample(5, 1), ratio=0.7)


def test_equal_images_leave_no_doubt_and_nothing_has_no_interval() -> None:
    interval = resampled_depth_bias(sample(4, 1, noise=0.0)).interval()
    assert interval.low == pytest.approx(interval.high, abs=1e-5)
    zeros = torch.zeros(GRAPH.valid.shape)
    nothing = EdgeScores(GRAPH, zeros, resampled=torch.zeros(B, GRAPH.n_edges), details={"n": 6})
    assert resampled_depth_bias(nothing).interval().reason == "undefined"
