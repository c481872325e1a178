"""The zeroth-order estimator: slopes of the gradient, an unbiased mean, noise as predicted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import vit_goldens
from scipy import stats
from torch import Tensor, nn

from assay.core.errors import InputError, NonFiniteError
from assay.discovery.edges import Choices, discover
from assay.discovery.edges.eap_ig import EapIgInputs
from assay.discovery.edges.quadrature import Node, quadrature_nodes
from assay.discovery.edges.spsa import _Estimator, spsa_coefficients, spsa_sweep
from assay.execution import get_ablation
from assay.execution.soft import SoftRunner
from assay.models import Model, load_model
from assay.objectives import get_objective
from assay.tasks import PairTask, Task


def settings(**changed: Any) -> Choices:
    chosen = Choices(
        objective=get_objective("logit_diff"),
        ablation=get_ablation("resample"),
        steps=2,
        quadrature="midpoint",
        per_example=True,
        seed=0,
    )
    return replace(chosen, **changed)


def small_task(model: Model, *, n: int = 3, ragged: bool = False) -> PairTask:
    generator = torch.Generator().manual_seed(1)

    def ids(*shape: int) -> Tensor:
        return torch.randint(1, model.n_vocab, shape, generator=generator)

    answers = ids(n, 1)
    lengths = torch.tensor([5, 3, 4] if ragged else [5, 5, 5])[torch.arange(n) % 3]
    return PairTask(
        clean=ids(n, 5),
        corrupted=ids(n, 5),
        answers=answers,
        wrong=(answers + 1) % model.n_vocab,
        lengths=lengths,
    )


def slopes_and_gradients(
    model: Model, task: Task, *, ablation: str, objective: str, epsilon: float = 1e-3, seed: int = 3
) -> tuple[Tensor, Tensor]:
    """Slopes of some random signs at one point, and what the gradient scores say they are."""
    chosen = settings(
        ablation=get_ablation(ablation),
        objective=get_objective(objective),
        steps=1,
        quadrature="midpoint",
        seed=seed,
    )
    bound = model.bind(task)
    prepared = chosen.ablation.prepare(model, bound, batch_size=bound.n, seed=seed)
    batch = next(iter(bound.batches(bound.n)))
    estimator = _Estimator(SoftRunner(model), batch, prepared, chosen, epsilon)
    signs = estimator.signs(4)
    slopes = estimator.slopes(signs, torch.full((4,), 0.5, dtype=torch.float64))
    scores = discover(
        model, task, objective=objective, ablation=ablation, steps=1, per_example=True, seed=seed
    ).per_example
    assert scores is not None
    return slopes, torch.einsum("bsr,kbsr->kb", scores.double(), signs.double())


@pytest.mark.parametrize("ablation", ["resample", "mean", "zero"])
def test_a_slope_is_the_sum_of_signed_gradient_scores(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    slopes, expected = slopes_and_gradients(
        model, small_task(model, ragged=True), ablation=ablation, objective="logit_diff"
    )
    # A third derivative leaves epsilon^2; Llama's norms round to float32, so a difference over 2e-3 keeps 4
    # digits.
    torch.testing.assert_close(slopes, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_slopes_of_images_are_those_of_their_gradients() -> None:
    model = vit_goldens.model("vit_edges_a")
    task = vit_goldens.task("vit_edges_a").subset(torch.arange(3))
    slopes, expected = slopes_and_gradients(model, task, ablation="resample", objective="kl")
    torch.testing.assert_close(slopes, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_orthogonal_signs_give_a_linear_loss_exactly() -> None:
    """By hand: with all sign patterns of three edges, the mean of d r is the gradient itself."""
    gradient = torch.tensor([2.0, -3.0, 0.5], dtype=torch.float64)
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    epsilon = 1e-3
    slopes = ((signs * epsilon) @ gradient - (-signs * epsilon) @ gradient) / (2 * epsilon)
    weights = spsa_coefficients(quadrature_nodes(1), 8)
    torch.testing.assert_close((weights * slopes) @ signs, gradient)
    # One draw alone mixes the edges: 2 + 3 + 0.5 with the signs (+, -, +).
    slope = float(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64) @ gradient)
    assert slope == 5.5


def test_draws_go_round_the_nodes_and_keep_their_weights() -> None:
    nodes = quadrature_nodes(3, "gauss-legendre")
    weights = spsa_coefficients(nodes, 7)
    assert float(weights.sum()) == pytest.approx(1)
    for number, node in enumerate(nodes):
        assert float(weights[number::3].sum()) == pytest.approx(node.weight)


def test_the_mean_is_unbiased_and_its_noise_is_the_sum_of_squares(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task, draws, seeds = small_task(model), 120, 4
    exact = discover(model, task, steps=2).values
    valid = model.graph.valid
    # Each node takes half of the draws and has half of the weight; the noise of an edge is all others.
    predicted = torch.zeros_like(exact)
    for node in quadrature_nodes(2):
        squares = _scores_at(model, task, node.alpha).square()
        predicted += (squares.sum((1, 2), keepdim=True) - squares).sum(0) * node.weight**2 / (draws / 2)
    deviation = (predicted / task.n**2).sqrt()[valid]
    sweeps = [spsa_sweep(model, task, settings(seed=seed), task.n, draws, 1e-3) for seed in range(seeds)]
    z = torch.stack([(sweep.total / task.n - exact)[valid] / deviation for sweep in sweeps])
    # Errors of different edges are uncorrelated: the mean square of m of them is 1 +- sqrt(2 / m).
    assert float(z.square().mean()) == pytest.approx(1, abs=4 * (2 / z.numel()) ** 0.5)
    assert float(z.abs().max()) < stats.norm.isf(0.0005 / z.numel())
    assert abs(float(z.mean())) < 4 / z.numel() ** 0.5
    for sweep in sweeps:
        assert sweep.details["noise"] == pytest.approx(float(deviation.mean()), rel=0.25)


def _scores_at(model: Model, task: PairTask, alpha: float) -> Tensor:
    """Gradient scores of each example at one point of the path."""

    class AtOnePoint(EapIgInputs):
        def nodes(self, settings: Choices) -> tuple[Node, ...]:
            return (Node(alpha=alpha, weight=1.0),)

    found = AtOnePoint().sweep(model, task, settings(), task.n).per_example
    assert found is not None
    return found


def test_noise_falls_with_the_root_of_the_draws(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = small_task(model)
    noise = [spsa_sweep(model, task, settings(), 3, draws, 1e-3).details["noise"] for draws in (20, 320)]
    assert noise[0] / noise[1] == pytest.approx(4, rel=0.35)


def test_estimates_do_not_depend_on_batch_size(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = small_task(model, ragged=True)
    first, second = (spsa_sweep(model, task, settings(), size, 4, 1e-3) for size in (3, 1))
    torch.testing.assert_close(first.total, second.total, rtol=1e-6, atol=1e-9)
    assert first.per_example is not None
    assert second.per_example is not None
    torch.testing.assert_close(first.per_example, second.per_example, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(first.per_example.sum(0), first.total)
    assert first.passes == {"forward": 3 + 2 * 4, "backward": 0.0}
    other = spsa_sweep(model, task, settings(seed=1), 3, 4, 1e-3)
    assert not torch.equal(other.total, first.total)


def test_discover_offers_the_estimator(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = small_task(model)
    found = discover(model, task, estimator="spsa", draws=6, steps=2)
    sweep = spsa_sweep(model, task, settings(per_example=False), 3, 6, 1e-3)
    torch.testing.assert_close(found.values, sweep.total / task.n)
    assert found.details["noise"] == sweep.details["noise"] > 0
    assert found.details["passes"]["backward"] == 0


def test_there_is_no_score_without_an_edge(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    sweep = spsa_sweep(model, small_task(model), settings(), 3, 2, 1e-3)
    assert not bool(sweep.total[~model.graph.valid].any())


@pytest.mark.parametrize(
    ("changed", "draws", "epsilon", "message"),
    [
        ({}, 1, 1e-3, "draws is 1, but each of the 2 nodes"),
        ({"steps": "auto"}, 8, 1e-3, "steps='auto' needs a completeness gap"),
        ({}, 8, 0.0, "epsilon is 0.0; give a positive number"),
        ({}, 8, float("nan"), "epsilon is nan"),
    ],
)
def test_impossible_settings_are_refused(
    gpt2_tiny64: nn.Module, changed: dict[str, Any], draws: int, epsilon: float, message: str
) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match=message):
        spsa_sweep(model, small_task(model), settings(**changed), 3, draws, epsilon)


def test_infinite_slopes_name_the_example(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(NonFiniteError, match="the slope of example 0 is NaN or infinite"):
        spsa_sweep(model, small_task(model), settings(), 3, 2, 1e308)
