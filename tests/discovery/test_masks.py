"""Learned masks: the gates against their formulas, the size goal, and a mask that must be found."""

import math

import pytest
import torch
from torch import Tensor, nn

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import GraphMismatchError, InputError, NonFiniteError
from assay.discovery.edges.masks import HardConcrete, MaskSettings, learn_mask
from assay.execution.soft import SoftPairs, SoftRunner
from assay.graph import build_graph
from assay.models import Model, load_model


def divergence(full: Tensor, run: Tensor) -> Tensor:
    p, q = full.log_softmax(1), run.log_softmax(1)
    return (p.exp() * (p - q)).sum(1)


def pairs_of(model: Model, n: int, seed: int = 0) -> SoftPairs:
    generator = torch.Generator().manual_seed(seed)
    clean, corrupted = (torch.randint(1, model.n_vocab, (n, 4), generator=generator) for _ in range(2))
    return SoftRunner(model).prepare(clean, corrupted)


def test_a_gate_by_hand() -> None:
    """Where u = 1/2, there is no noise: sigmoid(a / temperature), stretched."""
    gates = HardConcrete()
    half = torch.tensor([0.5])
    expected = 1.2 / (1 + math.exp(-0.3 / 0.5)) - 0.1
    assert float(gates.sample(torch.tensor([0.3]), half)) == pytest.approx(expected)
    assert float(gates.sample(torch.tensor([4.0]), half)) == 1
    assert float(gates.sample(torch.tensor([-4.0]), half)) == 0
    # Pr(z > 0) = 1/2 where u = 1/2 gives exactly 0: sigmoid = 1/12, a = -temperature ln 11.
    assert float(gates.open_probability(torch.tensor(-0.5 * math.log(11)))) == pytest.approx(0.5)


def test_the_share_of_open_gates_is_the_stated_probability() -> None:
    gates = HardConcrete(temperature=0.7, low=-0.2, high=1.3)
    openness = torch.tensor([-2.0, -0.5, 0.0, 1.5])
    uniform = torch.rand(200_000, 4, generator=torch.Generator().manual_seed(0)).clamp(1e-6, 1 - 1e-6)
    share = (gates.sample(openness, uniform) > 0).float().mean(0)
    # Four standard errors of a share of 200,000 draws.
    torch.testing.assert_close(share, gates.open_probability(openness), rtol=0, atol=0.0045)


def planted(model: Model, circuit: Circuit, runner: SoftRunner, pairs: SoftPairs) -> Tensor:
    with torch.no_grad():
        return runner.logits(pairs, circuit.mask.to(runner.dtype))


def test_a_planted_circuit_is_found_without_a_hint(gpt2_tiny: nn.Module) -> None:
    """The reference is the run of a circuit: its edges are the only mask of that size with no divergence."""
    model = load_model(gpt2_tiny)
    names = ["input->m0", "m0->logits", "m0->a1.h2.v", "a1.h2->logits"]
    circuit = Circuit.from_edges(model.graph, names)
    runner = SoftRunner(model)
    pairs = [pairs_of(model, 16, seed) for seed in range(6)]
    references = [planted(model, circuit, runner, each) for each in pairs]
    turn = iter(range(10**6))

    def draw(step: int) -> SoftPairs:
        return pairs[step % len(pairs)]

    def from_planted(full: Tensor, run: Tensor) -> Tensor:
        return divergence(references[next(turn) % len(pairs)].double(), run)

    learned = learn_mask(
        runner, draw, circuit.n_edges, divergence=from_planted, settings=MaskSettings(steps=120, rate=0.3)
    )
    assert learned.scores.top(circuit.n_edges) == circuit
    means = [step.mean for step in learned.history]
    assert sum(means[-10:]) < 0.2 * sum(means[:10])
    assert min(step.price for step in learned.history) >= 0


def test_the_size_goal_is_met_at_every_step(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    pairs = pairs_of(model, 4)
    learned = learn_mask(
        SoftRunner(model),
        lambda step: pairs,
        20,
        divergence=divergence,
        settings=MaskSettings(steps=12, widen=3.0),
    )
    sizes = [step.size for step in learned.history]
    # 3 times the goal at first, the goal from half-way on. The bound on the openness leaves a little over.
    assert sizes[0] == pytest.approx(20 * (3 - 2 * 2 / 12), rel=0.02)
    assert sizes[6:] == pytest.approx([20] * 6, rel=0.02)


def test_it_starts_from_the_ranking_it_is_given(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    values = torch.randn(model.graph.valid.shape, generator=torch.Generator().manual_seed(3)).exp()
    start = EdgeScores(model.graph, values)
    pairs = pairs_of(model, 4)
    learned = learn_mask(
        SoftRunner(model),
        lambda step: pairs,
        15,
        divergence=divergence,
        start=start,
        settings=MaskSettings(steps=1, rate=1e-6),
    )
    assert learned.scores.top(15) == start.top(15)


def test_the_same_seed_gives_the_same_mask(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    pairs = pairs_of(model, 4)

    def learn(seed: int) -> Tensor:
        settings = MaskSettings(steps=3)
        return learn_mask(
            SoftRunner(model), lambda step: pairs, 15, divergence=divergence, settings=settings, seed=seed
        ).openness

    torch.testing.assert_close(learn(1), learn(1), rtol=0, atol=0)
    assert not torch.equal(learn(1), learn(2))


def test_bad_input_is_named(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    runner, pairs = SoftRunner(model), pairs_of(model, 2)
    other = build_graph(1, 1)
    with pytest.raises(GraphMismatchError, match="start holds scores of another graph"):
        learn_mask(
            runner,
            lambda step: pairs,
            5,
            divergence=divergence,
            start=EdgeScores(other, torch.ones(other.valid.shape)),
        )
    with pytest.raises(InputError, match="every starting score is 0"):
        learn_mask(
            runner,
            lambda step: pairs,
            5,
            divergence=divergence,
            start=EdgeScores(model.graph, torch.zeros(model.graph.valid.shape)),
        )
    with pytest.raises(NonFiniteError, match="the loss of step 0 is nan"):
        learn_mask(runner, lambda step: pairs, 5, divergence=lambda full, run: run.sum(1) * math.nan)
    with pytest.raises(InputError, match="steps >= 1, rate > 0, widen >= 1"):
        MaskSettings(widen=0.5)
    with pytest.raises(InputError, match="temperature > 0, low < 0 and high > 1"):
        HardConcrete(low=0.0)
