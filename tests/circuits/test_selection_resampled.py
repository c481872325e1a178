"""Bootstrap-consistent selection and counts of selections, against slow literal twins."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from assay.circuits import EdgeScores
from assay.circuits.resampling import resample_weights, top_counts
from assay.core.errors import InputError
from assay.graph import build_graph


GRAPH = build_graph(2, 3)


def scores_of(edges: Float[Tensor, "N E"], graph=GRAPH) -> EdgeScores:
    """Scores with these per-example values on the graph's edges."""
    per_example = torch.zeros(len(edges), graph.n_sources, graph.n_targets, dtype=edges.dtype)
    per_example[:, graph.valid] = edges
    return EdgeScores(graph, per_example.mean(0), per_example=per_example, provenance={"method": "given"})


def random_scores(n: int, seed: int = 0) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    strength = torch.randn(GRAPH.n_edges, generator=generator) ** 3
    return scores_of(strength + torch.randn(n, GRAPH.n_edges, generator=generator))


# ---- consistent -----------------------------------------------------------------------------------------


def test_an_edge_of_changing_sign_is_passed_over() -> None:
    edges = torch.zeros(10, GRAPH.n_edges)
    edges[:, 4] = 1.0  # always 1
    edges[:, 7] = torch.tensor([9.0, -7.0] * 5)  # mean 1 as well, but nobody agrees
    edges[:, 9] = -0.5  # always -1/2
    scores = scores_of(edges)
    circuit = scores.consistent(3)
    assert circuit.mask[GRAPH.valid].nonzero().squeeze(1).tolist() == [4, 9]
    assert circuit.provenance["qualified"] == 2
    assert circuit.provenance["selection"] == "consistent"
    assert scores.consistent(1, absolute=False).mask[GRAPH.valid].nonzero().squeeze(1).tolist() == [4]


def test_consistent_edges_are_those_of_the_quantiles() -> None:
    scores = random_scores(25)
    resamples, level = 400, 0.9
    counts = torch.from_numpy(resample_weights("bootstrap", 25, resamples, 0.0, 3))
    assert scores.per_example is not None
    means = (counts @ scores.per_example.flatten(1).double() / 25).sort(0).values
    tail = 20  # of 400: the 5 % and 95 % quantiles
    expected = (means[tail] > 0) | (means[-tail - 1] < 0)
    found = scores.consistent(GRAPH.n_edges, level=level, resamples=resamples, seed=3).mask
    assert torch.equal(found, expected.view_as(found) & GRAPH.valid)
    assert 0 < found.sum() < GRAPH.n_edges


def test_consistent_equals_top_where_the_examples_agree() -> None:
    edges = (torch.arange(GRAPH.n_edges) + 1.0).repeat(6, 1)
    edges[:, ::2] *= -1
    scores = scores_of(edges)
    assert scores.consistent(20) == scores.top(20)
    assert scores.consistent(20, absolute=False) == scores.top(20, absolute=False)


def test_consistent_depends_on_the_seed_alone() -> None:
    scores = random_scores(12)
    masks = [scores.consistent(GRAPH.n_edges, resamples=40, seed=seed).mask for seed in (1, 1, 2, 3, 4)]
    assert torch.equal(masks[0], masks[1])
    assert not all(torch.equal(masks[0], other) for other in masks[2:])


def test_about_the_share_of_null_edges_qualifies() -> None:
    edges = torch.randn(60, GRAPH.n_edges, generator=torch.Generator().manual_seed(5))
    share = scores_of(edges).consistent(GRAPH.n_edges, level=0.9).n_edges / GRAPH.n_edges
    assert 0.02 < share < 0.25  # 0.1 expected, the edges sharing their resamples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, "level is 1.0"),
        ({"resamples": 0}, "resamples is 0"),
        ({"resamples": 39}, "use at least 40 resamples"),
    ],
)
def test_consistent_refuses(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_scores(8).consistent(4, **options)


def test_consistent_needs_examples() -> None:
    bare = EdgeScores(GRAPH, torch.zeros(GRAPH.n_sources, GRAPH.n_targets))
    with pytest.raises(InputError, match=r"discover\(\.\.\., per_example=True\)"):
        bare.consistent(4)
    with pytest.raises(InputError, match="at least 2 examples to resample, but these scores have 1"):
        scores_of(torch.ones(1, GRAPH.n_edges)).consistent(4)
    with pytest.raises(InputError, match="choose k from 1 to"):
        random_scores(4).consistent(0)


def test_a_score_that_is_not_finite_is_named() -> None:
    scores = random_scores(4)
    assert scores.per_example is not None
    scores.per_example[2][GRAPH.edge_index("a0.h1->m1")] = float("nan")
    with pytest.raises(InputError, match=r"score of a0\.h1->m1 on example 2 is nan"):
        scores.consistent(4)


# ---- counts of selections -------------------------------------------------------------------------------


def literal_counts(table: Tensor, weights: Tensor, k: int, absolute: bool) -> Tensor:
    """One sort per resample."""
    counts = torch.zeros(table.shape[1], dtype=torch.int64)
    for row in weights:
        if row.sum() > 0:
            total = row @ table
            order = torch.sort(total.abs() if absolute else total, descending=True, stable=True).indices
            counts[order[:k]] += 1
    return counts


@settings(max_examples=60)
@given(
    n=st.integers(1, 6),
    n_edges=st.integers(1, 500),
    share=st.floats(0, 1),
    span=st.sampled_from([1, 3, 1000]),
    absolute=st.booleans(),
    how=st.sampled_from(["deletion", "bootstrap"]),
    seed=st.integers(0, 1000),
)
def test_counts_are_those_of_sorting_every_resample(
    n: int, n_edges: int, share: float, span: int, absolute: bool, how: str, seed: int
) -> None:
    # Whole numbers: sums are exact, so ties are ties and the twin must agree on every one of them.
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-span, span + 1, (n, n_edges), generator=generator).float()
    table *= torch.randint(0, 2, (n_edges,), generator=generator) + 1  # uneven columns
    k = 1 + int(share * (n_edges - 1))
    weights = torch.from_numpy(resample_weights(how, n, 40, 0.5, seed)).float()
    assert torch.equal(
        top_counts(table, weights, k, absolute=absolute), literal_counts(table, weights, k, absolute)
    )


def test_counts_of_a_wide_table_are_those_of_sorting_every_resample() -> None:
    # Wide enough that most edges are ruled out unranked.
    generator = torch.Generator().manual_seed(0)
    strength = torch.randint(-3, 4, (4000,), generator=generator) ** 5
    table = (strength + torch.randint(-40, 41, (12, 4000), generator=generator)).float()
    weights = torch.from_numpy(resample_weights("deletion", 12, 200, 0.6, 0)).float()
    for k in (1, 30, 900):
        for absolute in (True, False):
            assert torch.equal(
                top_counts(table, weights, k, absolute=absolute),
                literal_counts(table, weights, k, absolute),
            )


def test_no_part_left_counts_nothing() -> None:
    assert top_counts(torch.ones(2, 5), torch.zeros(3, 2), 2, absolute=True).tolist() == [0] * 5


def test_deletions_have_their_rate_and_draws_their_number() -> None:
    kept = resample_weights("deletion", 50, 2000, 0.7, 0)
    assert set(np.unique(kept)) == {0.0, 1.0}
    assert abs(kept.mean() - 0.3) < 0.01
    drawn = resample_weights("bootstrap", 50, 20, 0.7, 0)
    assert (drawn.sum(1) == 50).all()
