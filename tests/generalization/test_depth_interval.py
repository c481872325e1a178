"""Intervals of the depth bias: slow literal versions, coverage, degenerate cases, refusals."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from assay.analyses.generalization import dependency_depth_bias, depth_bias_interval, output_depth_bias
from assay.circuits import EdgeScores
from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.core.random import stream
from assay.graph import build_graph


GRAPH = build_graph(4, 2)


def scores_of(n: int, seed: int = 0, noise: float = 0.5) -> torch.Tensor:
    """Scores of `n` examples around one circuit."""
    generator = torch.Generator().manual_seed(seed)
    shape = (GRAPH.n_sources, GRAPH.n_targets)
    centre = torch.randn(shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return centre + noise * torch.randn((n, *shape), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("targets", ["output", "deep", "global"])
@pytest.mark.parametrize("include_input", [False, True])
def test_percentiles_are_those_of_a_slow_bootstrap(targets: str, include_input: bool) -> None:
    per_example = scores_of(12)
    options = {"targets": targets, "include_input": include_input}
    found = depth_bias_interval(
        GRAPH, per_example, **options, method="percentile", n_resamples=200, level=0.9, seed=3
    )
    draws = stream(3, "depth-bias/bootstrap").integers(0, 12, (200, 12))
    slow = [dependency_depth_bias(EdgeScores(GRAPH, per_example[rows].mean(0)), **options) for rows in draws]
    np.testing.assert_allclose((found.low, found.high), np.quantile(slow, [0.05, 0.95]), rtol=1e-10)


@pytest.mark.parametrize("targets", ["output", "global"])
def test_the_jackknife_leaves_one_image_out_at_a_time(targets: str) -> None:
    per_example = scores_of(9)
    found = depth_bias_interval(GRAPH, per_example, targets=targets, level=0.8)
    means = [per_example[[j for j in range(9) if j != i]].mean(0) for i in range(9)]
    without = [dependency_depth_bias(EdgeScores(GRAPH, mean), targets=targets) for mean in means]
    value = dependency_depth_bias(EdgeScores(GRAPH, per_example.mean(0)), targets=targets)
    margin = stats.t.ppf(0.9, 8) * math.sqrt(8 / 9 * np.sum((np.array(without) - np.mean(without)) ** 2))
    assert (found.low, found.high) == pytest.approx((value - margin, value + margin), rel=1e-10)
    assert (found.method, found.level, found.reason) == ("jackknife", 0.8, None)


@pytest.mark.parametrize("method", ["jackknife", "bca", "percentile"])
def test_the_edges_into_the_logits_suffice_for_the_output(method: str) -> None:
    per_example = scores_of(30)
    whole = depth_bias_interval(GRAPH, per_example, method=method)
    alone = depth_bias_interval(GRAPH, per_example[:, :, -1], method=method)
    assert whole == alone
    point = output_depth_bias(GRAPH, per_example[:, :, -1].mean(0))
    assert whole.low < point < whole.high
    assert (whole.method, whole.reason) == (method, None)


def test_the_seed_decides_and_more_examples_narrow_it() -> None:
    for method in ("jackknife", "bca"):
        wide, narrow = (depth_bias_interval(GRAPH, scores_of(n), method=method) for n in (20, 320))
        assert narrow.half_width < wide.half_width / 2
        assert depth_bias_interval(GRAPH, scores_of(20), method=method) == wide
        other = depth_bias_interval(GRAPH, scores_of(20), method=method, seed=1)
        assert (other == wide) == (method == "jackknife")  # which draws nothing


def test_nominal_intervals_hold_the_mean_bias_of_as_many_images() -> None:
    """Also where noise drowns the scores of single images, at which a bootstrap fails (see its notes)."""
    for noise in (0.5, 5.0):
        samples = [scores_of(30, seed, noise)[:, :, -1] for seed in range(240)]
        mean = np.mean([output_depth_bias(GRAPH, each.mean(0)) for each in samples])
        found = [depth_bias_interval(GRAPH, each) for each in samples[:80]]
        inside = sum(each.low <= mean <= each.high for each in found)
        assert inside >= 68  # 76 of 80 expected at 95 %; fewer than 68 is a chance of one in 5000


@pytest.mark.parametrize("method", ["jackknife", "bca"])
def test_equal_examples_have_an_interval_of_one_point(method: str) -> None:
    same = scores_of(1).expand(5, -1, -1)
    found = depth_bias_interval(GRAPH, same, method=method)
    assert found.low == found.high == pytest.approx(output_depth_bias(GRAPH, same[0, :, -1]))
    assert found.reason == "degenerate"


@pytest.mark.parametrize(("method", "reason"), [("jackknife", "undefined"), ("bca", "undefined_replicates")])
def test_undefined_intervals_say_why(method: str, reason: str) -> None:
    alone = depth_bias_interval(GRAPH, scores_of(1), method=method)
    assert math.isnan(alone.low)
    assert alone.reason == "too_few"
    nothing = depth_bias_interval(GRAPH, torch.zeros(6, GRAPH.n_sources), method=method)
    assert math.isnan(nothing.high)
    assert nothing.reason == reason


@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_is_refused() -> None:
    per_example = scores_of(6)
    with pytest.raises(InputError, match="discover with per_example=True"):
        depth_bias_interval(GRAPH, None)
    with pytest.raises(ShapeError, match=r"shape \(6, 3\).*\[n, 13, 29\] or.*\[n, 13\]"):
        depth_bias_interval(GRAPH, torch.zeros(6, 3))
    with pytest.raises(ShapeError, match="targets='deep' needs others"):
        depth_bias_interval(GRAPH, per_example[:, :, -1], targets="deep")
    with pytest.raises(UnknownNameError, match="did you mean 'output'"):
        depth_bias_interval(GRAPH, per_example, targets="out")
    with pytest.raises(InputError, match=r"ratio is 0.7"):
        depth_bias_interval(GRAPH, per_example, ratio=0.7)
    with pytest.raises(UnknownNameError, match="did you mean 'jackknife'"):
        depth_bias_interval(GRAPH, per_example, method="jacknife")
    with pytest.raises(InputError, match=r"level is 95"):
        depth_bias_interval(GRAPH, per_example, level=95)
    per_example[4, 1, -1] = math.nan
    with pytest.raises(NonFiniteError, match="example 4"):
        depth_bias_interval(GRAPH, per_example)
