"""Consensus of several methods: a case by hand, a literal twin, and what units and order must not change."""

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.circuits import EdgeScores
from assay.core.errors import GraphMismatchError, InputError, UnknownNameError
from assay.discovery.edges import consensus
from assay.graph import Graph, build_graph


TINY = build_graph(1, 1)  # 8 edges
GRAPH = build_graph(2, 2)


def scores_of(edges: Sequence[float | int], method: str = "given", graph: Graph = TINY) -> EdgeScores:
    values = torch.zeros(graph.valid.shape, dtype=torch.float64)
    values[graph.valid] = torch.tensor(list(edges), dtype=torch.float64)
    return EdgeScores(graph, values, provenance={"method": method, "task": {"id": "t"}, "objective": "kl"})


def edges_of(scores: EdgeScores) -> list[float]:
    return scores.values[scores.graph.valid].tolist()


FIRST = scores_of([8, -4, 2, 1, 0, 0, -1, 0], "eap")
SECOND = scores_of([0.01, 0.02, 0.04, -0.01, 0, 0, 0, 0], "ifr")


def test_mean_ranks_by_hand() -> None:
    # Strengths (1 the largest of 8): first 8 7 6 4.5 2 2 4.5 2, second 5.5... by ascending mean ranks.
    first = [8, 7, 6, 4.5, 2, 2, 4.5, 2]
    second = [5.5, 7, 8, 5.5, 2.5, 2.5, 2.5, 2.5]
    sign = [1, 1, 1, -1, 0, 0, -1, 0]  # edge 1: -7/8 against +7/8, the first listed decides: below
    found = edges_of(consensus([FIRST, SECOND]))
    for edge, value in enumerate(found):
        if edge != 1:
            assert value == pytest.approx(sign[edge] * (first[edge] + second[edge]) / 16)
    assert found[1] == pytest.approx(-14 / 16)
    assert edges_of(consensus([SECOND, FIRST]))[1] == pytest.approx(14 / 16)


def test_mean_scores_by_hand() -> None:
    # Mean absolute scores: 2 and 0.01.
    found = edges_of(consensus([FIRST, SECOND], "mean-score"))
    assert found == pytest.approx([2.5, 0, 2.5, -0.25, 0, 0, -0.25, 0])


def test_votes_by_hand() -> None:
    found = consensus([FIRST, SECOND, FIRST], "vote", k=2)
    assert edges_of(found) == pytest.approx([2 / 3, -1, 1 / 3, 0, 0, 0, 0, 0])
    assert found.threshold(0.5).mask[TINY.valid].nonzero().squeeze(1).tolist() == [0, 1]
    weighted = consensus([FIRST, SECOND], "vote", k=2, weights=[1, 3])
    assert edges_of(weighted) == pytest.approx([0.25, 1, 0.75, 0, 0, 0, 0, 0])


def literal_mean_rank(given: list[EdgeScores], weights: list[float]) -> list[float]:
    """Edge by edge, by counting."""
    rows = [edges_of(each) for each in given]
    n_edges, share = len(rows[0]), [weight / sum(weights) for weight in weights]
    result = []
    for edge in range(n_edges):
        strengths = []
        for row in rows:
            larger = sum(abs(value) > abs(row[edge]) for value in row)
            equal = sum(abs(value) == abs(row[edge]) for value in row)
            rank = larger + (equal + 1) / 2
            strengths.append(1 - (rank - 1) / n_edges)
        signs = [math.copysign(1, row[edge]) if row[edge] else 0 for row in rows]
        votes = [
            sum(w * s for w, s in zip(share, signs, strict=True)),
            sum(w * s * t for w, s, t in zip(share, signs, strengths, strict=True)),
            *signs,
        ]
        sign = next((math.copysign(1, vote) for vote in votes if abs(vote) > 1e-12), 0)
        result.append(sign * sum(w * t for w, t in zip(share, strengths, strict=True)))
    return result


scores_lists = st.lists(
    st.lists(st.integers(-4, 4), min_size=8, max_size=8).map(scores_of), min_size=2, max_size=4
)


@settings(max_examples=60)
@given(scores_lists, st.lists(st.sampled_from([0.5, 1, 2]), min_size=4, max_size=4))
def test_mean_ranks_are_those_of_counting(several: list[EdgeScores], weights: list[float]) -> None:
    weights = weights[: len(several)]
    found = edges_of(consensus(several, weights=weights))
    assert found == pytest.approx(literal_mean_rank(several, weights), abs=1e-12)
    assert all(-1 <= value <= 1 for value in found)


@settings(max_examples=40)
@given(scores_lists, st.sampled_from(["mean-rank", "vote", "mean-score"]), st.floats(1e-6, 1e6))
def test_units_do_not_matter(several: list[EdgeScores], rule: str, unit: float) -> None:
    if rule == "mean-score" and any(not each.values.any() for each in several):
        return
    k = 3 if rule == "vote" else None
    scaled = [EdgeScores(TINY, several[0].values * unit, provenance={}), *several[1:]]
    assert edges_of(consensus(scaled, rule, k=k)) == pytest.approx(edges_of(consensus(several, rule, k=k)))


@settings(max_examples=40)
@given(scores_lists, st.sampled_from(["mean-rank", "vote", "mean-score"]))
def test_turning_every_sign_turns_the_consensus(several: list[EdgeScores], rule: str) -> None:
    if rule == "mean-score" and any(not each.values.any() for each in several):
        return
    k = 3 if rule == "vote" else None
    turned = [EdgeScores(TINY, -each.values) for each in several]
    assert edges_of(consensus(turned, rule, k=k)) == pytest.approx(
        [-value for value in edges_of(consensus(several, rule, k=k))]
    )


def test_a_method_with_itself_keeps_its_order() -> None:
    values = torch.randn(GRAPH.valid.shape, generator=torch.Generator().manual_seed(0))
    scores = EdgeScores(GRAPH, values)
    for rule in ("mean-rank", "mean-score"):
        found = consensus([scores, scores], rule)
        assert found.top(9) == scores.top(9)
        assert found.top(9, absolute=False) == scores.top(9, absolute=False)
        assert found.details["agreement"] == pytest.approx(1)
    assert consensus([scores, scores], "vote", k=9).threshold(0.5) == scores.top(9)


def with_examples(n: int, seed: int, task: str = "ioi") -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    table: Tensor = torch.randn(n, *GRAPH.valid.shape, generator=generator) * GRAPH.valid
    return EdgeScores(GRAPH, table.mean(0), per_example=table, provenance={"task": {"id": task}})


def test_scores_per_example_are_joined_where_that_means_something() -> None:
    first, second = with_examples(6, 0), with_examples(6, 1)
    found = consensus([first, second], "mean-score", weights=[2, 1])
    assert found.per_example is not None
    torch.testing.assert_close(found.per_example.mean(0), found.values, rtol=1e-5, atol=1e-6)
    assert consensus([first, second]).per_example is None
    assert consensus([first, with_examples(5, 1)], "mean-score").per_example is None
    assert consensus([first, with_examples(6, 1, "docstring")], "mean-score").per_example is None
    assert consensus([first, EdgeScores(GRAPH, second.values)], "mean-score").per_example is None


def test_the_record_names_the_methods_and_what_they_share() -> None:
    found = consensus([FIRST, SECOND], weights=[3, 1])
    assert found.provenance["method"] == "consensus"
    assert found.provenance["objective"] == "kl"
    assert found.provenance["weights"] == [0.75, 0.25]
    assert [each["method"] for each in found.provenance["of"]] == ["eap", "ifr"]
    assert found.details["methods"] == ["eap", "ifr"]
    assert math.isnan(consensus([FIRST, scores_of([0] * 8)]).details["agreement"])


@pytest.mark.parametrize(
    ("several", "options", "error", "message"),
    [
        ([FIRST], {}, InputError, "at least 2 methods; got 1"),
        ([], {}, InputError, "got 0"),
        ([FIRST, SECOND], {"rule": "mean-ranks"}, UnknownNameError, "did you mean 'mean-rank'"),
        ([FIRST, SECOND], {"rule": "vote"}, InputError, "needs k"),
        ([FIRST, SECOND], {"rule": "vote", "k": 9}, InputError, "choose k from 1 to 8"),
        ([FIRST, SECOND], {"k": 3}, InputError, r"select with \.top\(k\) afterwards"),
        ([FIRST, SECOND], {"weights": [1.0]}, InputError, "1 weights for 2 methods"),
        ([FIRST, SECOND], {"weights": [1.0, -1.0]}, InputError, "at least 0"),
        ([FIRST, SECOND], {"weights": [0.0, 0.0]}, InputError, "not all 0"),
        ([FIRST, SECOND], {"weights": [1.0, math.nan]}, InputError, "finite"),
        ([FIRST, scores_of([0] * 8, "ugs")], {"rule": "mean-score"}, InputError, "scores of ugs are all 0"),
        ([FIRST, scores_of([1] * 46, "acdc", GRAPH)], {}, GraphMismatchError, "acdc scores the graph"),
    ],
)
def test_consensus_refuses(several: list, options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        consensus(several, **options)
