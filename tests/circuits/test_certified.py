"""Certified circuits: exact frequencies, error rates, and radii that adversarial edits cannot beat."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from assay.circuits import EdgeScores, certify
from assay.circuits.certified import DECISIONS, decide, top_counts
from assay.core.errors import InputError
from assay.graph import build_graph
from assay.stats import clopper_pearson


TINY = build_graph(1, 1)  # 8 edges
GRAPH = build_graph(2, 3)


def scores_of(edges: Float[Tensor, "N E"], graph=TINY) -> EdgeScores:
    per_example = torch.zeros(len(edges), graph.n_sources, graph.n_targets, dtype=edges.dtype)
    per_example[:, graph.valid] = edges
    values = per_example.mean(0) if len(edges) else torch.zeros(graph.n_sources, graph.n_targets)
    return EdgeScores(graph, values, per_example=per_example, provenance={"method": "given"})


def noisy(n: int, seed: int = 0, graph=GRAPH) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    strength = 3 * torch.randn(graph.n_edges, generator=generator) ** 3
    return scores_of(strength + torch.randn(n, graph.n_edges, generator=generator), graph)


def probability_by_parts(scores: EdgeScores, k: int, deletion: float) -> np.ndarray:
    """Literal: `EdgeScores.top` of the mean of every part, weighted by the probability of that part."""
    assert scores.per_example is not None
    n = len(scores.per_example)
    found = torch.zeros(scores.graph.n_edges, dtype=torch.float64)
    for kept in itertools.product((False, True), repeat=n):
        if any(kept):
            part = EdgeScores(scores.graph, scores.per_example[torch.tensor(kept)].double().mean(0))
            size = sum(kept)
            weight = (1 - deletion) ** size * deletion ** (n - size)
            found += weight * part.top(k).mask[scores.graph.valid].double()
    return found.numpy()


# ---- frequencies and decisions --------------------------------------------------------------------------


def test_frequencies_estimate_the_probability() -> None:
    scores = scores_of(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    exact = probability_by_parts(scores, 3, deletion=0.5)
    found = certify(scores, 3, deletion=0.5, resamples=20_000).edges
    # Five standard errors of a share of 20,000 draws.
    assert (found["frequency"] - exact).abs().max() < 5 * 0.5 / math.sqrt(20_000)
    assert ((found["low"] <= exact) & (exact <= found["high"])).all()


def test_worked_case() -> None:
    # One edge is alone on top of every part, the rest are 0: selected unless all examples are deleted.
    edges = torch.zeros(30, 8)
    edges[:, 4] = 1.0
    found = certify(scores_of(edges), 1, deletion=0.9, resamples=1000)
    row = found.edges.iloc[4]
    assert abs(row["frequency"] - (1 - 0.9**30)) < 0.03
    low = clopper_pearson(round(row["frequency"] * 1000), 1000, level=1 - 0.05 / 8).low
    assert row["low"] == pytest.approx(low, rel=1e-9)
    assert row["radius"] == math.floor(math.log(1.5 - low) / math.log(0.9)) == 5
    assert found.circuit.edges() == [TINY.edge_name(*TINY.valid.nonzero()[4].tolist())] == [row["edge"]]
    assert (found.select("excluded").n_edges, found.select("abstained").n_edges) == (7, 0)
    assert "1 included, 7 excluded, 0 abstained" in repr(found)


def test_every_edge_is_in_one_class_and_a_required_radius_leaves_more_open() -> None:
    scores = noisy(25)
    free, held = (certify(scores, 20, deletion=0.9, radius=radius) for radius in (0, 3))
    classes = [free.select(decision).mask.int() for decision in DECISIONS]
    assert torch.equal(sum(classes), GRAPH.valid.int())
    frame = free.to_frame()
    assert sorted(frame["edge"]) == sorted(free.circuit.edges() + free.select("abstained").edges())
    assert frame["frequency"].is_monotonic_decreasing
    assert held.select("abstained").n_edges > free.select("abstained").n_edges
    assert held.edges["radius"].min() >= 3
    assert held.circuit == free.select("included", radius=3)


def test_ablations_that_look_at_all_examples_are_marked() -> None:
    scores = noisy(8)
    for ablation, marked in (("resample", False), ("mean-positional", True)):
        own = EdgeScores(
            GRAPH, scores.values, per_example=scores.per_example, provenance={"ablation": ablation}
        )
        assert ("assumes" in certify(own, 5, resamples=20).provenance) == marked


# ---- counts of selections -------------------------------------------------------------------------------


def literal_counts(table: Tensor, kept: Tensor, k: int, absolute: bool) -> Tensor:
    """One sort per part."""
    counts = torch.zeros(table.shape[1], dtype=torch.int64)
    for part in kept:
        if part.any():
            total = table[part].sum(0)
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
    seed=st.integers(0, 1000),
)
def test_counts_are_those_of_sorting_every_part(
    n: int, n_edges: int, share: float, span: int, absolute: bool, seed: int
) -> None:
    # Whole numbers: sums are exact, so ties are ties and the twin must agree on every one of them.
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-span, span + 1, (n, n_edges), generator=generator).float()
    kept = torch.rand(40, n, generator=generator) >= 0.5
    k = 1 + int(share * (n_edges - 1))
    expected = literal_counts(table, kept, k, absolute)
    assert torch.equal(top_counts(table, kept, k, absolute=absolute), expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("assay.circuits.certified._CELLS", 7 * n_edges)  # in several blocks
        assert torch.equal(top_counts(table, kept, k, absolute=absolute), expected)


# ---- limits and error rates -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 40])
def test_limits_are_clopper_and_pearsons(n: int) -> None:
    found = decide(n, n + 1, level=0.9, deletion=0.6)
    for count, low, high in zip(range(n + 1), found["low"], found["high"], strict=True):
        one = clopper_pearson(count, n, level=1 - 0.1 / (n + 1))
        # The other one searches for its roots to about 1e-12.
        assert (low, high) == pytest.approx((one.low, one.high), abs=1e-9)


def held(true: np.ndarray, decision: np.ndarray, radius: np.ndarray, deletion: float) -> np.ndarray:
    """Whether each decision is right, also after the edits that its radius allows."""
    move = 1 - deletion ** np.maximum(radius, 0)
    right = np.where(decision == "included", true - move > 0.5, true + move < 0.5)
    return right | (decision == "abstained")


def test_false_decisions_are_as_rare_as_promised() -> None:
    # Edges around the border of decision, where errors are most likely; true probabilities are known.
    rng = np.random.default_rng(0)
    true = np.array([0.5, 0.5, 0.49, 0.51, 0.45, 0.55, 0.9, 0.91, 0.1, 0.09, 0.5, 0.5])
    runs, n, level, deletion = 500, 60, 0.9, 0.6
    votes = decide(n, len(true), level=level, deletion=deletion)
    decisions, radii = votes["decision"].to_numpy(), votes["radius"].fillna(0).to_numpy(int)
    wrong = 0
    for _ in range(runs):
        counts = rng.binomial(n, true)
        wrong += not held(true, decisions[counts], radii[counts], deletion).all()
    # 0.1 is promised; the bound adds three standard errors of the simulation.
    assert 0 < wrong / runs <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / runs)


def test_certificates_on_data_hold_with_the_promised_confidence() -> None:
    # End to end: six examples, the true probabilities from all 64 parts, many independent seeds.
    scores = noisy(6, graph=TINY, seed=3)
    true = probability_by_parts(scores, 3, deletion=0.7)
    runs, wrong = 150, 0
    for seed in range(runs):
        found = certify(scores, 3, deletion=0.7, resamples=80, level=0.8, seed=seed).edges
        radius = found["radius"].fillna(0).to_numpy(int)
        wrong += not held(true, found["decision"].to_numpy(), radius, 0.7).all()
    assert wrong / runs <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / runs)


# ---- radii ----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 4),
    edits=st.lists(st.sampled_from(["insert", "delete", "replace"]), min_size=1, max_size=2),
    deletion=st.sampled_from([0.6, 0.75, 0.9]),
    k=st.integers(1, 7),
)
def test_edits_move_the_probability_no_further_than_the_radius_allows(
    seed: int, n: int, edits: list[str], deletion: float, k: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def example() -> Tensor:  # strong enough to take over any part it is in
        return torch.randint(-50, 51, (8,), generator=generator).double()

    before = [torch.randint(-5, 6, (8,), generator=generator).double() for _ in range(n)]
    after = list(before)
    for edit in edits:
        at = int(torch.randint(0, max(1, len(after)), (1,), generator=generator))
        if edit == "insert" or not after:
            after.insert(at, example())
        elif edit == "delete":
            after.pop(at)
        else:
            after[at] = example()
    mu = probability_by_parts(scores_of(torch.stack(before)), k, deletion=deletion)
    edited = torch.stack(after) if after else torch.zeros(0, 8, dtype=torch.float64)
    moved = probability_by_parts(scores_of(edited), k, deletion=deletion)
    assert (np.abs(mu - moved) <= 1 - deletion ** len(edits) + 1e-9).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deletion": 1.0}, "deletion is 1.0"),
        ({"level": 0.0}, "level is 0.0"),
        ({"resamples": 0}, "resamples is 0"),
        ({"radius": -1}, "radius is -1"),
        ({"radius": 1, "resamples": 20}, "not even 20 agreeing parts certify so many edits"),
        ({"k": 0}, "choose k from 1 to"),
    ],
)
def test_certify_refuses(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        certify(noisy(6), **{"k": 4, **options})
    bare = EdgeScores(GRAPH, torch.zeros(GRAPH.n_sources, GRAPH.n_targets))
    for scores, said in ((bare, "needs scores per example"), (noisy(4), "needs finite scores")):
        if scores.per_example is not None:
            scores.per_example[2][GRAPH.edge_index("a0.h1->m1")] = float("nan")
        with pytest.raises(InputError, match=said):
            certify(scores, 4)
