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

from assay.circuits import (
    EdgeScores,
    certify,
)
from assay.circuits.certified import decide, top_counts
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


def probability_by_parts(scores: EdgeScores, k: int, deletion: float, absolute: bool = True) -> Tensor:
    """Literal: `EdgeScores.top` of the mean of every part, weighted by the probability of that part."""
    assert scores.per_example is not None
    n = len(scores.per_example)
    found = torch.zeros(scores.graph.valid.shape, dtype=torch.float64)
    for kept in itertools.product((False, True), repeat=n):
        if any(kept):
            part = EdgeScores(scores.graph, scores.per_example[torch.tensor(kept)].double().mean(0))
            size = sum(kept)
            weight = (1 - deletion) ** size * deletion ** (n - size)
            found += weight * part.top(k, absolute=absolute).mask.double()
    return found


# ---- frequencies ----------------------------------------------------------------------------------------


def test_frequencies_estimate_the_probability() -> None:
    scores = scores_of(torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
    exact = probability_by_parts(scores, 3, deletion=0.5)
    found = certify(scores, 3, deletion=0.5, resamples=20_000)
    # Five standard errors of a share of 20,000 draws.
    assert (found.frequency - exact).abs().max() < 5 * 0.5 / math.sqrt(20_000)
    inside = (found.low <= exact) & (exact <= found.high)
    assert bool(inside[TINY.valid].all())


def test_worked_case() -> None:
    # One edge is alone on top of every part, the rest are 0: selected unless all examples are deleted.
    edges = torch.zeros(30, 8)
    edges[:, 4] = 1.0
    found = certify(scores_of(edges), 1, deletion=0.9, resamples=1000)
    share = 1 - 0.9**30
    edge = TINY.valid.nonzero()[4].tolist()
    assert abs(found.frequency[*edge] - share) < 0.03
    low = clopper_pearson(round(float(found.frequency[*edge]) * 1000), 1000, level=1 - 0.05 / 8).low
    assert float(found.low[*edge]) == pytest.approx(low, rel=1e-9)
    assert found.radius[*edge] == math.floor(math.log(1.5 - low) / math.log(0.9)) == 5
    assert found.circuit.edges() == [TINY.edge_name(*edge)]
    assert found.excluded.n_edges == 7
    assert found.abstained.n_edges == 0


def test_a_coin_flip_abstains() -> None:
    edges = torch.zeros(400, 8)
    edges[:200, 2], edges[200:, 6] = 1.0, 1.0  # each wins on about half of the parts
    found = certify(scores_of(edges), 1, resamples=100)
    assert found.abstained.mask[TINY.valid].nonzero().squeeze(1).tolist() == [2, 6]
    assert found.radius[found.abstained.mask].tolist() == [-1] * found.abstained.n_edges


def test_every_edge_is_in_one_class() -> None:
    found = certify(noisy(25), 20)
    classes = [found.circuit.mask, found.excluded.mask, found.abstained.mask]
    assert torch.equal(sum(mask.int() for mask in classes), GRAPH.valid.int())
    assert f"{found.circuit.n_edges} included" in repr(found)
    frame = found.to_frame()
    assert frame.columns.tolist() == ["edge", "decision", "frequency", "low", "high", "radius"]
    assert sorted(frame["edge"]) == sorted(found.circuit.edges() + found.abstained.edges())
    assert frame["radius"].isna().tolist() == (frame["decision"] == "abstained").tolist()
    assert found.low[~GRAPH.valid].isnan().all()
    assert (found.frequency[~GRAPH.valid] == 0).all()


def test_the_required_radius_turns_decisions_into_abstentions() -> None:
    scores = noisy(25)
    free, held = (certify(scores, 20, deletion=0.9, radius=radius) for radius in (0, 3))
    assert bool((held.circuit.mask <= free.circuit.mask).all())
    assert held.abstained.n_edges > free.abstained.n_edges
    assert int(held.radius[held.decision != 0].min()) >= 3
    assert held.circuit == free.certified(3)


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
    found = top_counts(table, kept, k, absolute=absolute)
    assert torch.equal(found, literal_counts(table, kept, k, absolute))


def test_a_table_in_several_blocks_is_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randint(-40, 41, (12, 400), generator=torch.Generator().manual_seed(0)).float()
    kept = torch.rand(200, 12, generator=torch.Generator().manual_seed(1)) >= 0.6
    whole = top_counts(table, kept, 30, absolute=True)
    monkeypatch.setattr("assay.circuits.certified._CELLS", 7 * 400)
    assert torch.equal(top_counts(table, kept, 30, absolute=True), whole)


# ---- limits and error rates -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 40])
def test_limits_are_clopper_and_pearsons(n: int) -> None:
    found = decide(n, n + 1, level=0.9, deletion=0.6)
    for count, low, high in zip(range(n + 1), found["low"], found["high"], strict=True):
        one = clopper_pearson(count, n, level=1 - 0.1 / (n + 1))
        # The other one searches for its roots to about 1e-12.
        assert (low, high) == pytest.approx((one.low, one.high), abs=1e-9)


def test_false_decisions_are_as_rare_as_promised() -> None:
    # Edges around the border of decision, where errors are most likely; true probabilities are known.
    rng = np.random.default_rng(0)
    true = np.array([0.5, 0.5, 0.49, 0.51, 0.45, 0.55, 0.9, 0.91, 0.1, 0.09, 0.5, 0.5])
    runs, n, level, deletion = 500, 60, 0.9, 0.6
    wrong, votes = 0, decide(n, len(true), level=level, deletion=deletion)
    for _ in range(runs):
        counts = rng.binomial(n, true)
        decision, radius = votes["decision"][counts], votes["radius"][counts]
        move = np.where(decision != 0, 1 - deletion ** np.maximum(radius, 0), 0.0)
        included, excluded = decision == 1, decision == -1
        # False where the edits that the radius allows would undo the majority.
        wrong += bool(((true[included] - move[included]) <= 0.5).any())
        wrong += bool(((true[excluded] + move[excluded]) >= 0.5).any())
    # 0.1 is promised; the bound adds three standard errors of the simulation.
    assert wrong / runs <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / runs)
    assert wrong > 0


def test_certificates_on_data_hold_with_the_promised_confidence() -> None:
    # End to end: six examples, the true probabilities from all 64 parts, many independent seeds.
    scores = noisy(6, graph=TINY, seed=3)
    true = probability_by_parts(scores, 3, deletion=0.7)[TINY.valid]
    runs, wrong = 150, 0
    for seed in range(runs):
        found = certify(scores, 3, deletion=0.7, resamples=80, level=0.8, seed=seed)
        decision, radius = found.decision[TINY.valid], found.radius[TINY.valid]
        move = 1 - 0.7 ** radius.clamp(min=0).double()
        held = torch.where(decision == 1, true - move > 0.5, true + move < 0.5) | (decision == 0)
        wrong += not bool(held.all())
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
    mu = probability_by_parts(scores_of(torch.stack(before)), k, deletion=deletion)[TINY.valid]
    edited = torch.stack(after) if after else torch.zeros(0, 8, dtype=torch.float64)
    moved = probability_by_parts(scores_of(edited), k, deletion=deletion)[TINY.valid]
    bound = 1 - deletion ** len(edits)
    assert bool(((mu - moved).abs() <= bound + 1e-9).all())
    # So what is decided with that much to spare stays decided.
    assert bool((moved[mu > 0.5 + bound] > 0.5 - 1e-9).all())
    assert bool((moved[mu < 0.5 - bound] < 0.5 + 1e-9).all())


def test_the_bound_is_met_by_a_takeover() -> None:
    # A replaced example that decides alone moves the probability by all that one edit can: 1 - p.
    before = torch.zeros(1, 8, dtype=torch.float64)
    before[0, 3] = 1.0
    after = torch.zeros(1, 8, dtype=torch.float64)
    after[0, 5] = 1.0
    mu, moved = (
        probability_by_parts(scores_of(each), 1, deletion=0.7)[TINY.valid] for each in (before, after)
    )
    assert (mu - moved)[3].item() == pytest.approx(1 - 0.7)


# ---- errors -----------------------------------------------------------------------------------


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
    for scores, said in ((bare, "hold none"), (noisy(4), "needs finite scores")):
        if scores.per_example is not None:
            scores.per_example[2][GRAPH.edge_index("a0.h1->m1")] = float("nan")
        with pytest.raises(InputError, match=said):
            certify(scores, 4)
