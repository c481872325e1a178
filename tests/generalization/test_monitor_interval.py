"""The interval of a shift: equal to a literal jackknife, covering what it says."""

import math

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

from assay.analyses.generalization import DISTANCES, circuit_shift
from assay.analyses.generalization.intervals import shift_interval
from assay.circuits import EdgeScores
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.graph import build_graph


GRAPH = build_graph(3, 3)


def scores_of(n: int, *, seed: int = 0, noise: float = 0.5) -> tuple[EdgeScores, EdgeScores]:
    generator = torch.Generator().manual_seed(seed)
    shape = (GRAPH.n_sources, GRAPH.n_targets)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    apart = mean + noise * torch.randn((n, *shape), generator=generator, dtype=torch.float64)
    apart = apart.where(GRAPH.valid, 0)
    reference = mean + 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    return EdgeScores(GRAPH, reference), EdgeScores(GRAPH, apart.mean(0), per_example=apart)


@pytest.mark.parametrize("distance", list(DISTANCES))
def test_the_interval_is_that_of_a_literal_jackknife(distance: str) -> None:
    reference, found = scores_of(8)
    assert found.per_example is not None
    rows = list(found.per_example)
    left_out = []
    for place in range(8):
        rest = torch.stack(rows[:place] + rows[place + 1 :]).mean(0)
        left_out.append(circuit_shift(reference, EdgeScores(GRAPH, rest), distance=distance))
    shift = circuit_shift(reference, found, distance=distance)
    error = math.sqrt(7 / 8 * sum((each - np.mean(left_out)) ** 2 for each in left_out))
    margin = scipy_stats.t.ppf(0.95, 7) * error
    interval = shift_interval(reference, found, distance=distance, level=0.9)
    least, most = DISTANCES[distance].bounds
    assert interval.low == pytest.approx(max(least, shift - margin), abs=1e-12)
    assert interval.high == pytest.approx(min(most, shift + margin), abs=1e-12)
    assert interval.method == "jackknife"
    assert interval.level == 0.9


def test_it_covers_the_mean_shift_of_batches_of_its_size() -> None:
    rng = np.random.default_rng(7)
    shape = (GRAPH.n_sources, GRAPH.n_targets)
    mean = rng.standard_normal(shape)
    reference = EdgeScores(GRAPH, torch.from_numpy(mean + 0.4 * rng.standard_normal(shape)))

    def batch() -> EdgeScores:
        apart = torch.from_numpy(mean + 3 * rng.standard_normal((24, *shape)))
        apart = apart.where(GRAPH.valid, 0)
        return EdgeScores(GRAPH, apart.mean(0), per_example=apart)

    truth = float(np.mean([circuit_shift(reference, batch()) for _ in range(300)]))
    inside = [truth in shift_interval(reference, batch()) for _ in range(150)]
    assert np.mean(inside) >= 0.9  # nominal 0.95; the error of 150 cases is 0.018


def test_equal_images_leave_no_doubt() -> None:
    _, found = scores_of(4, noise=0.0)
    reference, _ = scores_of(4, seed=1)
    interval = shift_interval(reference, found)
    assert interval.low == pytest.approx(interval.high, abs=1e-9)


def test_one_image_and_no_scores_apart() -> None:
    reference, found = scores_of(1)
    assert shift_interval(reference, found).reason == "too_few"
    with pytest.raises(InputError, match="per_example=True"):
        shift_interval(reference, reference)


def test_a_constant_circuit_has_no_interval() -> None:
    reference, found = scores_of(3)
    flat = EdgeScores(GRAPH, torch.ones(GRAPH.n_sources, GRAPH.n_targets))
    with pytest.warns(match="constant"):
        interval = shift_interval(flat, found)
    assert interval.reason == "undefined"
    assert reference.graph == found.graph


def test_bad_requests_are_refused() -> None:
    reference, found = scores_of(3)
    with pytest.raises(UnknownNameError, match="spearman"):
        shift_interval(reference, found, distance="spearmann")
    with pytest.raises(InputError, match="level is 2"):
        shift_interval(reference, found, level=2.0)
    other = build_graph(2, 2)
    with pytest.raises(GraphMismatchError):
        shift_interval(EdgeScores(other, torch.ones(other.n_sources, other.n_targets)), found)
