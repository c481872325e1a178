"""Runs under real-valued masks: golden circuits at their corners, the literal relaxation, gradients."""

import literal
import numpy as np
import pytest
import torch
import vit_goldens
from soft_pairs import soft_pairs
from test_circuit_run import GOLDEN, ablated_outputs, golden_model, random_task
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import ShapeError
from assay.execution import get_ablation, run_circuit, run_model
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model, load_model
from assay.tasks import Task


def random_mask(model: Model, *batch: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch, model.graph.n_sources, model.graph.n_targets)
    return torch.rand(shape, generator=generator, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:a name like 'a1.h1.k'")  # the file has the older names
@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny", "neox_tiny"])
def test_binary_masks_give_every_golden_circuit(name: str) -> None:
    model, described = golden_model(name, torch.float64)
    case = np.load(GOLDEN / "adversarial" / f"{name}_case.npz")
    clean, corrupted = torch.from_numpy(case["clean_tokens"]), torch.from_numpy(case["corrupted_tokens"])
    index = torch.cartesian_prod(torch.arange(len(clean)), torch.arange(len(corrupted)))
    runner = SoftRunner(model)
    pairs = soft_pairs(runner, clean[index[:, 0]], corrupted[index[:, 1]])
    relative = 1e-9 if name == "gpt2_tiny" else 1e-5
    for circuit_name, stored in described["circuits"].items():
        mask = Circuit.from_edges(model.graph, stored["edges"]).mask.double()
        expected = torch.from_numpy(case[f"logits_last__{circuit_name}"]).flatten(0, 1)
        close = {"rtol": 0, "atol": relative * float(expected.abs().max())}
        torch.testing.assert_close(runner.logits(pairs, mask), expected, **close)
        each = mask.expand(len(pairs), -1, -1)
        torch.testing.assert_close(runner.logits(pairs, each), expected, **close)


def test_fractions_equal_the_literal_interpolation(module64: nn.Module) -> None:
    """Every target's own stream, w a + (1 - w) b edge by edge, nothing shared with the runner."""
    model = load_model(module64)
    task = random_task(model)
    mask, graph = random_mask(model), model.graph
    corrupted = ablated_outputs(model, task, "resample")

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        total = biases
        for source, value in outputs.items():
            weight = mask[graph.source_index(source), graph.target_index(target)]
            total = total + weight * value + (1 - weight) * corrupted[source]
        return total

    expected, _ = literal.run(model, task.clean, stream_of)
    runner = SoftRunner(model)
    logits = runner.logits(soft_pairs(runner, task.clean, task.corrupted, task.positions), mask)
    torch.testing.assert_close(logits, expected[torch.arange(task.n), task.positions], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_central_differences(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, n=3, length=5, ragged=True)
    runner = SoftRunner(model)
    pairs = soft_pairs(runner, task.clean, task.corrupted, task.positions)
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


# ---- any ablation, images, a mask per position ----------------------------------------------------------


CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def prepared(model: Model, task: Task, ablation: str) -> tuple[SoftRunner, SoftPairs]:
    task = model.bind(task)
    runner = SoftRunner(model)
    ready = get_ablation(ablation).prepare(model, task, batch_size=task.n, seed=0)
    return runner, runner.prepare_batch(next(iter(task.batches(task.n))), ready)


@pytest.mark.parametrize("ablation", ["resample", "zero", "mean", "noise"])
def test_binary_masks_are_the_circuit_run_under_every_ablation(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=True)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=1)
    runner, pairs = prepared(model, task, ablation)
    expected = run_circuit(circuit, model, task, ablation=ablation)
    torch.testing.assert_close(runner.logits(pairs, circuit.mask.double()), expected, **CLOSE)
    torch.testing.assert_close(pairs.model_logits, run_model(model, task), **CLOSE)


@pytest.mark.parametrize("name", vit_goldens.NAMES)
@pytest.mark.parametrize("ablation", ["resample", "mean-positional"])
def test_binary_masks_are_the_circuit_run_of_images(name: str, ablation: str) -> None:
    model = vit_goldens.model(name)
    task = vit_goldens.task(name)
    for seed in range(2):
        circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=seed)
        runner, pairs = prepared(model, task, ablation)
        expected = run_circuit(circuit, model, task, ablation=ablation)
        torch.testing.assert_close(runner.logits(pairs, circuit.mask.double()), expected, **CLOSE)


def test_masks_per_position_equal_the_literal_interpolation(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model)
    graph = model.graph
    shape = (task.n, task.length, *graph.valid.shape)
    mask = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    corrupted = ablated_outputs(model, task, "resample")

    def stream_of(target: str, outputs: literal.Outputs, biases: Tensor) -> Tensor:
        total = biases
        for source, value in outputs.items():
            weight = mask[:, :, graph.source_index(source), graph.target_index(target), None]
            total = total + weight * value + (1 - weight) * corrupted[source]
        return total

    expected, _ = literal.run(model, task.clean, stream_of)
    runner, pairs = prepared(model, task, "resample")
    found = runner.logits(pairs, mask)
    torch.testing.assert_close(found, expected[torch.arange(task.n), task.positions], **CLOSE)


def test_masks_of_other_shapes_are_refused(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model)
    runner, pairs = prepared(model, task, "resample")
    with pytest.raises(ShapeError, match=r"mask has shape \(2, 1, .*for one per position"):
        runner.logits(pairs, torch.ones((2, 1, *model.graph.valid.shape), dtype=torch.float64))
