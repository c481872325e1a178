"""Runs under real-valued masks: the literal relaxation, and gradients."""

from collections.abc import Callable

import literal
import pytest
import torch
from cut_models import NAMES, model_and_task, random_prompts
from torch import Tensor, nn

from assay.core.errors import ShapeError
from assay.execution import get_ablation, run_model, soft
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model, load_model
from assay.tasks import Task


def random_mask(model: Model, *batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch, model.graph.n_sources, model.graph.n_targets)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


def prepared(model: Model, task: Task) -> tuple[SoftRunner, SoftPairs]:
    runner = SoftRunner(model)
    ready = get_ablation("resample").prepare(model, task, batch_size=task.n, seed=0)
    return runner, runner.prepare_batch(next(iter(task.batches(task.n))), ready)


@pytest.mark.parametrize("by_position", [False, True])
def test_fractions_equal_the_literal_interpolation(module64: nn.Module, by_position: bool) -> None:
    """Every target's own stream, w a + (1 - w) b edge by edge, nothing shared with the runner."""
    model = load_model(module64)
    task, graph = random_prompts(model), model.graph
    mask = random_mask(model, *[task.n, task.length][: 2 * by_position])
    corrupted = literal.ablated_outputs(model, task, "resample")

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        total = biases
        for source, value in outputs.items():
            weight = mask[..., graph.source_index(source), graph.target_index(target), None]
            total = total + weight * value + (1 - weight) * corrupted[source]
        return total

    expected, _ = literal.run(model, task.clean, stream_of)
    runner, pairs = prepared(model, task)
    found = runner.logits(pairs, mask)
    torch.testing.assert_close(found, expected[torch.arange(task.n), task.positions], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pairs.model_logits, run_model(model, task), rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_central_differences(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_prompts(model, n=3, length=5, ragged=True)
    runner, pairs = prepared(model, task)
    weights = torch.randn(3, model.n_vocab, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def value(mask: Tensor) -> Tensor:
        return (runner.logits(pairs, mask).log_softmax(1) * weights).sum()

    mask = random_mask(model).requires_grad_()
    (gradient,) = torch.autograd.grad(value(mask), mask)
    assert bool((gradient[~model.graph.valid] == 0).all())
    # Norms of the llama are float32 inside: a wider step and tolerance. The error of the stencil is step^4.
    step, close = (1e-2, 3e-3) if model.family.key == "llama" else (1e-4, 1e-7)
    edges = model.graph.valid.nonzero()
    chosen = edges[torch.randperm(len(edges), generator=torch.Generator().manual_seed(2))[:25]]
    for row, column in chosen.tolist():
        moved = torch.zeros_like(mask)
        moved[row, column] = step
        with torch.no_grad():
            near = float(value(mask + moved) - value(mask - moved))
            far = float(value(mask + 2 * moved) - value(mask - 2 * moved))
        expected = (8 * near - far) / (12 * step)
        assert float(gradient[row, column]) == pytest.approx(expected, rel=close, abs=close)


@pytest.mark.parametrize("name", [*NAMES, "eap-ig"])
@pytest.mark.parametrize("together", [1, 1000])
def test_gradients_of_shared_weights_are_sums(
    name: str, together: int, tiny_module: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the examples and positions that share them, however many blocks share a product."""
    model, task = model_and_task("post-norm" if name == "eap-ig" else name, tiny_module)
    model = model.treating("eap-ig") if name == "eap-ig" else model
    runner, pairs = prepared(model, task)
    shared, along, step = random_mask(model), random_mask(model, seed=1), 1e-3

    def value(mask: Tensor) -> Tensor:
        return runner.logits(pairs, mask).logsumexp(1).sum()

    def gradient(*rows: int) -> Tensor:
        leaf = shared.expand(*rows, -1, -1).clone().requires_grad_()
        (found,) = torch.autograd.grad(value(leaf), leaf)
        return found

    expected = gradient()
    rise = float(value(shared + step * along) - value(shared - step * along)) / (2 * step)
    # Norms of some are float32 inside.
    assert float((expected * along).sum()) == pytest.approx(rise, rel=1e-3, abs=1e-3)
    monkeypatch.setattr(soft, "TOGETHER", together)
    each, everywhere, single = gradient(task.n), gradient(task.n, task.length), gradient(1, task.length)
    totals = [gradient(), each.sum(0), everywhere.sum((0, 1)), single.sum((0, 1))]
    torch.testing.assert_close(totals, [expected] * 4, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        [each, single[0]], [everywhere.sum(1), everywhere.sum(0)], rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("by_example", [False, True])
def test_cells_weigh_what_a_source_sends(gpt2_tiny64: nn.Module, by_example: bool) -> None:
    """Every target's own stream, a_u - b_u weighted dimension by dimension; and gradients by differences."""
    model = load_model(gpt2_tiny64)
    task, graph = random_prompts(model), model.graph
    mask = random_mask(model)
    generator = torch.Generator().manual_seed(3)
    shape = (*[task.n][:by_example], graph.n_sources, model.d_model)
    cells = torch.rand(shape, generator=generator, dtype=torch.float64)
    corrupted = literal.ablated_outputs(model, task, "resample")

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        total = biases
        for source, value in outputs.items():
            row = graph.source_index(source)
            weight = mask[row, graph.target_index(target)] * cells[..., row, :]
            weight = weight[:, None] if by_example else weight
            total = total + weight * value + (1 - weight) * corrupted[source]
        return total

    expected, _ = literal.run(model, task.clean, stream_of)
    runner, pairs = prepared(model, task)
    cells.requires_grad_()
    found = runner.logits(pairs, mask, cells=cells)
    torch.testing.assert_close(found, expected[torch.arange(task.n), task.positions], rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(found.square().sum(), cells)
    moved = torch.zeros_like(cells).index_fill_(-2, torch.tensor([2, 4]), 1e-6)
    with torch.no_grad():
        values = [runner.logits(pairs, mask, cells=cells + sign * moved).square().sum() for sign in (1, -1)]
    assert float((gradient * moved).sum()) == pytest.approx(float(values[0] - values[1]) / 2, rel=1e-5)


def test_what_cannot_be_run_is_refused(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_prompts(model)
    runner, pairs = prepared(model, task)
    with pytest.raises(ShapeError, match=r"mask has shape \(2, 1, .*for one per position"):
        runner.logits(pairs, torch.ones((2, 1, *model.graph.valid.shape), dtype=torch.float64))
    cells = torch.ones(9, model.graph.n_sources, model.d_model, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"cells have shape \(9, .*for one set per pair"):
        runner.logits(pairs, random_mask(model), cells=cells)
    logits = runner.logits(pairs, random_mask(model).requires_grad_()).sum()
    logits.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="can be taken once; run it again"):
        logits.backward()
