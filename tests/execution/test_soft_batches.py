"""Runs under real-valued masks for any ablation, for images, and with a mask per position."""

import literal
import pytest
import torch
import vit_goldens
from test_circuit_run import ablated_outputs, random_task
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import ShapeError
from assay.execution import get_ablation, run_circuit, run_model
from assay.execution.soft import SoftPairs, SoftRunner
from assay.models import Model, load_model
from assay.tasks import Task


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
    expected = run_circuit(model, task, circuit, ablation=ablation)
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
        expected = run_circuit(model, task, circuit, ablation=ablation)
        torch.testing.assert_close(runner.logits(pairs, circuit.mask.double()), expected, **CLOSE)


def test_repeated_examples_take_masks_of_their_own(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=True)
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand((2 * task.n, *model.graph.valid.shape), generator=generator, dtype=torch.float64)
    for ablation in ("resample", "mean"):
        runner, pairs = prepared(model, task, ablation)
        twice = runner.logits(pairs.take(torch.arange(task.n).repeat(2)), masks)
        for half in (slice(0, task.n), slice(task.n, 2 * task.n)):
            torch.testing.assert_close(twice[half], runner.logits(pairs, masks[half]))


def test_equal_masks_at_all_positions_are_one_mask(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=True)
    runner, pairs = prepared(model, task, "resample")
    mask = torch.rand(
        model.graph.valid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4)
    )
    everywhere = mask.expand(1, pairs.embedded.shape[1], *mask.shape)
    torch.testing.assert_close(runner.logits(pairs, everywhere), runner.logits(pairs, mask))
    each = everywhere.expand(len(pairs), -1, -1, -1)
    torch.testing.assert_close(runner.logits(pairs, each), runner.logits(pairs, mask))


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
