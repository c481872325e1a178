"""The noise floor of a shift: a case by hand, a literal twin, batches without shift, and what is refused."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from assay.analyses.generalization.noise_floor import (
    BLOCKS,
    HALVINGS,
    NoiseFloor,
    block_means,
    spearman_brown,
)
from assay.analyses.generalization.reference import Reference
from assay.analyses.generalization.shift import DISTANCES, circuit_shift
from assay.analyses.generalization.signatures import SIGNATURES
from assay.circuits import EdgeScores
from assay.core.errors import InputError, ShapeError, UnknownNameError
from assay.graph import Graph, build_graph


GRAPH, WIDER = build_graph(1, 2), build_graph(2, 2)


def scores_of(graph: Graph, row: np.ndarray) -> EdgeScores:
    import torch

    values = torch.zeros(graph.valid.shape, dtype=torch.float64)
    values[graph.valid] = torch.from_numpy(row)
    return EdgeScores(graph, values)


def draw(rng: np.random.Generator, mean: np.ndarray, noise: np.ndarray, n: int) -> np.ndarray:
    return mean + noise * rng.standard_normal((n, len(mean)))


def one_edge(mean: float, spread: float) -> np.ndarray:
    """Blocks that differ along one halving alone: its halves are 2 * spread apart, the others equal."""
    blocks = np.zeros((BLOCKS, GRAPH.n_edges))
    blocks[:, 0] = mean + spread * np.where(HALVINGS[0], 1, -1)
    return blocks


def test_halvings_part_every_two_blocks_equally_often() -> None:
    signs = np.where(HALVINGS, 1, -1)
    assert (signs.sum(1) == 0).all()
    apart = (HALVINGS[:, :, None] != HALVINGS[:, None, :]).sum(0)
    assert set(apart[~np.eye(BLOCKS, dtype=bool)]) == {4}


def test_l2_by_hand() -> None:
    # Means 1, 3, 1, 3: each is 4/3 from the mean of the others, so d_0^2 = 16/9 against three batches and
    # 16/9 * (1 + 1/4) / (1 + 1/3) = 5/3 against four. The reference is 2.
    known = np.stack([one_edge(mean, 0.5) for mean in (1.0, 3.0, 1.0, 3.0)])
    floor = NoiseFloor(graph=GRAPH, blocks=known, n=8, distance="l2")
    as_noisy = floor.of_blocks(one_edge(6.0, 0.5))
    assert as_noisy.floor == pytest.approx(math.sqrt(5 / 3))
    assert as_noisy.value == pytest.approx(math.sqrt(4**2 - 5 / 3))
    # Halves twice as far apart: four times the squared floor.
    noisier = floor.of_blocks(one_edge(6.0, 1.0))
    assert noisier.floor == pytest.approx(math.sqrt(20 / 3))
    assert noisier.value == pytest.approx(math.sqrt(4**2 - 20 / 3))
    below = floor.of_blocks(one_edge(2.5, 0.5))  # nearer than sampling makes it: 1/4 - 5/3 < 0
    assert below.value == pytest.approx(-math.sqrt(5 / 3 - 1 / 4))


def test_spearman_agrees_with_a_literal_twin() -> None:
    rng = np.random.default_rng(3)
    mean = rng.standard_normal(GRAPH.n_edges)
    known = np.stack([block_means(draw(rng, mean, 0.8 + 0 * mean, 19)) for _ in range(5)])
    batch = block_means(draw(rng, np.roll(mean, 1), 0.8 + 0 * mean, 19))
    found = NoiseFloor(graph=GRAPH, blocks=known, n=19).of_blocks(batch)

    sizes = [len(each) for each in np.array_split(range(19), BLOCKS)]

    def average(blocks: np.ndarray, rows: list[int]) -> np.ndarray:
        return sum(sizes[row] * blocks[row] for row in rows) / sum(sizes[row] for row in rows)

    def agreement(a: np.ndarray, b: np.ndarray) -> float:
        return float(scipy_stats.spearmanr(np.abs(a), np.abs(b)).statistic)

    def of_halves(blocks: np.ndarray, without: int | None) -> float:
        found = []
        for inside in HALVINGS:
            sides = [
                [row for row in range(BLOCKS) if inside[row] == side and row != without]
                for side in (True, False)
            ]
            found.append(agreement(average(blocks, sides[0]), average(blocks, sides[1])))
        return float(np.mean(found))

    whole = [average(each, list(range(BLOCKS))) for each in known]
    s_rr = float(np.mean([of_halves(each, None) for each in known]))
    alone = [
        agreement(whole[j], np.mean([each for k, each in enumerate(whole) if k != j], axis=0))
        for j in range(5)
    ]
    growth = math.sqrt(spearman_brown(s_rr, 10.0) / spearman_brown(s_rr, 8.0))
    s_0 = float(np.mean(alone)) * growth

    def excess(blocks: np.ndarray, reference: np.ndarray, grown: float, without: int | None) -> float:
        rows = [row for row in range(BLOCKS) if row != without]
        near = agreement(average(blocks, rows), reference) * grown
        return 1 - near / (s_0 * math.sqrt(of_halves(blocks, without) / s_rr))

    def jackknife(blocks: np.ndarray, reference: np.ndarray, grown: float) -> float:
        left = np.array([excess(blocks, reference, grown, row) for row in range(BLOCKS)])
        return (BLOCKS - 1) / BLOCKS * float(((left - left.mean()) ** 2).sum())

    reference = np.mean(whole, axis=0)
    assert found.floor == pytest.approx(1 - s_0 * math.sqrt(of_halves(batch, None) / s_rr))
    assert found.value == pytest.approx(excess(batch, reference, 1.0, None))
    others = [np.mean([each for k, each in enumerate(whole) if k != j], axis=0) for j in range(5)]
    spread = np.var([excess(known[j], others[j], growth, None) for j in range(5)], ddof=1)
    usual = np.mean([jackknife(known[j], others[j], growth) for j in range(5)])
    error = math.sqrt(spread * (jackknife(batch, reference, 1.0) / usual + 1 / 5))
    margin = scipy_stats.t.ppf(0.975, 1 / (1 / 4 + 1 / 7)) * error
    assert found.interval.low == pytest.approx(found.value - margin)
    assert found.interval.high == pytest.approx(found.value + margin)


def test_a_batch_whose_halves_share_nothing_is_held_against_the_floor_of_the_reference() -> None:
    # Batches along edge 0 or 1: 1/sqrt(5) from the mean of the others, halves alike. Each block of the new
    # batch has an edge of its own, 1 to 8: halves have cosine 0, and 1/4 with the reference, edges 0 and 1.
    edges = np.eye(WIDER.n_edges)
    known = np.stack([np.tile(edges[place], (BLOCKS, 1)) for place in (0, 1, 0, 1)])
    floor = NoiseFloor(graph=WIDER, blocks=known, n=8, distance="cosine")
    apart = floor.of_blocks(edges[1:9])
    assert apart.floor == pytest.approx(1 - 1 / math.sqrt(5))
    assert apart.value == pytest.approx(1 - math.sqrt(5) / 4)
    assert math.isfinite(apart.interval.low)


def test_noise_alone_in_place_of_a_circuit_raises_the_alarm_every_time() -> None:
    rng = np.random.default_rng(5)
    mean = 2 * rng.standard_normal(WIDER.n_edges)
    known = np.stack([block_means(draw(rng, mean, 1.5 + 0 * mean, 16)) for _ in range(16)])
    floor = NoiseFloor(graph=WIDER, blocks=known, n=16)
    limit = max(floor.excess(draw(rng, mean, 1.5 + 0 * mean, 16)).value for _ in range(19))
    changed = [floor.excess(draw(rng, 0 * mean, 5 + 0 * mean, 16)) for _ in range(60)]
    assert min(each.value for each in changed) > limit
    # Most have halves without similarity, so the floor of the reference alone.
    assert np.mean([each.floor < 0.3 for each in changed]) > 0.8


def test_a_reference_whose_batches_share_nothing_has_no_floor() -> None:
    known = np.tile(np.eye(WIDER.n_edges)[1:9], (4, 1, 1))  # every block has an edge of its own
    floor = NoiseFloor(graph=WIDER, blocks=known, n=8, distance="cosine")
    assert not floor.common
    assert math.isnan(floor.of_blocks(known[0]).value)
    reference = Reference(scores=scores_of(WIDER, known.mean((0, 1))), blocks=known.astype("f4"), batch=8)
    assert reference.floor("cosine") is None
    assert "of 8 inputs of the reference have no cosine similarity" in reference.without_floor("cosine")
    assert reference.floor("l2") is not None
    assert reference.without_floor("l2") == ""


def test_the_excess_is_0_on_average_without_shift_and_its_interval_holds_it() -> None:
    rng = np.random.default_rng(1)
    mean = rng.standard_normal(WIDER.n_edges) * 2
    noise = 1 + 3 * rng.random(WIDER.n_edges)  # of an image: as large as the means
    values, held, shifts = [], 0, []
    for _ in range(80):
        known = np.stack([block_means(draw(rng, mean, noise, 16)) for _ in range(12)])
        floor = NoiseFloor(graph=WIDER, blocks=known, n=16)
        excess = floor.excess(draw(rng, mean, noise, 16))
        values.append(excess.value)
        shifts.append(1 - (1 - excess.value) * (1 - excess.floor))
        held += excess.interval.low <= 0 <= excess.interval.high
    # The raw shift is all noise; a ratio of estimates keeps a small bias.
    assert np.mean(shifts) > 5 * np.std(shifts) / math.sqrt(80)
    assert abs(np.mean(values)) < 0.2 * np.mean(shifts)
    assert 0.90 <= held / 80 <= 1


def test_a_real_shift_stays_and_more_noise_alone_does_not_count() -> None:
    rng = np.random.default_rng(2)
    mean = 3 * rng.standard_normal(GRAPH.n_edges)
    noise = np.full(GRAPH.n_edges, 2.0)
    known = np.stack([block_means(draw(rng, mean, noise, 16)) for _ in range(16)])
    floor = NoiseFloor(graph=GRAPH, blocks=known, n=16, distance="cosine")
    moved = [floor.excess(draw(rng, np.roll(mean, 1), noise, 16)).value for _ in range(20)]
    noisy = [floor.excess(draw(rng, mean, 1.5 * noise, 16)) for _ in range(40)]
    true = circuit_shift(scores_of(GRAPH, mean), scores_of(GRAPH, np.roll(mean, 1)), distance="cosine")
    assert np.mean(moved) == pytest.approx(true, abs=0.1)
    assert np.mean([each.floor for each in noisy]) > 1.5 * np.mean(
        [floor.excess(draw(rng, mean, noise, 16)).floor for _ in range(20)]
    )
    assert abs(np.mean([each.value for each in noisy])) < 0.05


@pytest.mark.parametrize("distance", sorted(DISTANCES))
def test_signatures_give_the_registered_distances(distance: str) -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, GRAPH.n_edges))
    form = SIGNATURES[distance]
    vectors = form.vectors(GRAPH, np.stack([a, b]))
    expected = circuit_shift(scores_of(GRAPH, a), scores_of(GRAPH, b), distance=distance)
    assert float(form.distance(vectors[0], vectors[1])) == pytest.approx(expected, abs=1e-12)


def test_every_distance_has_a_floor() -> None:
    assert set(SIGNATURES) == set(DISTANCES)


def test_block_means_weigh_to_the_mean() -> None:
    rows = np.random.default_rng(0).standard_normal((21, 5))
    sizes = np.array([len(each) for each in np.array_split(range(21), BLOCKS)])
    assert (sizes @ block_means(rows) / 21) == pytest.approx(rows.mean(0))


def test_too_little_for_halves_is_said_by_name() -> None:
    blocks = np.ones((4, BLOCKS, GRAPH.n_edges))
    with pytest.raises(
        InputError, match="holds 3 batches of 8 inputs; a noise floor needs 4 or more, which are 32"
    ):
        NoiseFloor(graph=GRAPH, blocks=blocks[:3], n=8)
    with pytest.raises(InputError, match="a batch of 7 inputs is too small for halves"):
        NoiseFloor(graph=GRAPH, blocks=blocks, n=7)
    with pytest.raises(UnknownNameError, match="distance with a noise floor"):
        NoiseFloor(graph=GRAPH, blocks=blocks, n=8, distance="euclid")
    with pytest.raises(ShapeError, match=r"scores \[9, .*expected\s\[8"):
        NoiseFloor(graph=GRAPH, blocks=blocks, n=8).excess(np.ones((9, GRAPH.n_edges)))
