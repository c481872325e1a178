"""Gates of edge pruning against their formulas, and the goal for the size of the circuit."""

import math

import pytest
import torch
from torch import nn

from assay.circuits import EdgeScores
from assay.core.errors import InputError
from assay.discovery.edges import discover
from assay.discovery.edges.pruning import open_probability, sample_gates
from assay.models import Model, load_model
from assay.tasks import PairTask


def prompts(model: Model) -> PairTask:
    generator = torch.Generator().manual_seed(0)
    clean, corrupted = (torch.randint(1, model.n_vocab, (4, 4), generator=generator) for _ in range(2))
    return PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1])


def test_a_gate_by_hand() -> None:
    """Where u = 1/2, there is no noise: sigmoid(a / temperature), stretched."""
    half = torch.tensor([0.5])
    expected = 1.2 / (1 + math.exp(-0.3 / 0.5)) - 0.1
    assert float(sample_gates(torch.tensor([0.3]), half)) == pytest.approx(expected)
    assert float(sample_gates(torch.tensor([4.0]), half)) == 1
    assert float(sample_gates(torch.tensor([-4.0]), half)) == 0
    # Pr(z > 0) = 1/2 where u = 1/2 gives exactly 0: sigmoid = 1/12, a = -temperature ln 11.
    assert float(open_probability(torch.tensor(-0.5 * math.log(11)))) == pytest.approx(0.5)


def test_the_share_of_open_gates_is_the_stated_probability() -> None:
    openness = torch.tensor([-2.0, -0.5, 0.0, 1.5])
    uniform = torch.rand(200_000, 4, generator=torch.Generator().manual_seed(0)).clamp(1e-6, 1 - 1e-6)
    share = (sample_gates(openness, uniform) > 0).float().mean(0)
    # Four standard errors of a share of 200,000 draws.
    torch.testing.assert_close(share, open_probability(openness), rtol=0, atol=0.0045)


@pytest.mark.filterwarnings("ignore:edge-pruning has not settled")
def test_the_size_goal_is_met_whatever_the_updates(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    for updates in (1, 7, 12):
        details = discover(model, prompts(model), "edge-pruning", n_edges=20, updates=updates).details
        # The goal stands at twice the size at first, and at the size from half-way on.
        goal = 20 * (2 - min(1.0, 2 * updates / updates))
        assert details["expected_edges"] == pytest.approx(goal, rel=0.02)


@pytest.mark.filterwarnings("ignore:edge-pruning has not settled")
def test_it_starts_from_the_ranking_it_is_given(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    values = torch.randn(model.graph.valid.shape, generator=torch.Generator().manual_seed(3)).exp()
    start, task = EdgeScores(model.graph, values), prompts(model)
    options = {"n_edges": 15, "updates": 1, "rate": 1e-6}
    scores = discover(model, task, "edge-pruning", warm_start=start, **options)
    assert scores.top(15) == start.top(15)
    zeros = EdgeScores(model.graph, torch.zeros(model.graph.valid.shape))
    with pytest.raises(InputError, match="every starting score is 0"):
        discover(model, task, "edge-pruning", warm_start=zeros, **options)
