"""Runs under real-valued masks: golden circuits at their corners, the literal relaxation, gradients."""

from collections.abc import Callable

import literal
import numpy as np
import pytest
import torch
from test_circuit_run import GOLDEN, ablated_outputs, golden_model, random_task
from tiny_decoders import SIZES
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import ShapeError
from assay.execution import run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import Model, load_model


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
    pairs = runner.prepare(clean[index[:, 0]], corrupted[index[:, 1]])
    relative = 1e-9 if name == "gpt2_tiny" else 1e-5
    for circuit_name, stored in described["circuits"].items():
        mask = Circuit.from_edges(model.graph, stored["edges"]).mask.double()
        expected = torch.from_numpy(case[f"logits_last__{circuit_name}"]).flatten(0, 1)
        close = {"rtol": 0, "atol": relative * float(expected.abs().max())}
        torch.testing.assert_close(runner.logits(pairs, mask), expected, **close)
        each = mask.expand(len(pairs), -1, -1)
        torch.testing.assert_close(runner.logits(pairs, each), expected, **close)


def _mistral() -> nn.Module:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(
        MistralConfig(
            **SIZES,
            sliding_window=3,
            attn_implementation="sdpa",
        )
    )


def _qwen3() -> nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            **SIZES,
        )
    )


@pytest.mark.parametrize("build", [_mistral, _qwen3])
def test_windows_and_head_norms_equal_the_circuit_run(build: Callable[[], nn.Module]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = load_model(build().double().eval())
    task = random_task(model, ragged=True)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=2)
    runner = SoftRunner(model)
    pairs = runner.prepare(task.clean, task.corrupted, task.positions)
    logits = runner.logits(pairs, circuit.mask.double())
    torch.testing.assert_close(logits, run_circuit(model, task, circuit), rtol=1e-5, atol=1e-5)


def test_ends_of_the_mask_are_the_model_and_the_corrupted_run(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=True)
    runner = SoftRunner(model)
    pairs = runner.prepare(task.clean, task.corrupted, task.positions)
    ones = torch.ones(model.graph.valid.shape, dtype=torch.float64)
    full = run_model(model, task)
    torch.testing.assert_close(runner.logits(pairs, ones), full, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pairs.model_logits, full, rtol=1e-5, atol=1e-5)
    corrupted = run_model(model, task, corrupted=True)
    torch.testing.assert_close(runner.logits(pairs, 0 * ones), corrupted, rtol=1e-5, atol=1e-5)


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
    logits = runner.logits(runner.prepare(task.clean, task.corrupted, task.positions), mask)
    torch.testing.assert_close(logits, expected[torch.arange(task.n), task.positions], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_central_differences(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, n=3, length=5, ragged=True)
    runner = SoftRunner(model)
    pairs = runner.prepare(task.clean, task.corrupted, task.positions)
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


def test_a_mask_per_pair_runs_each_pair_under_its_own(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_task(model, n=3, ragged=True)
    runner = SoftRunner(model)
    pairs = runner.prepare(task.clean, task.corrupted, task.positions)
    masks = random_mask(model, 3)
    together = runner.logits(pairs, masks)
    for row in range(3):
        torch.testing.assert_close(runner.logits(pairs, masks[row])[row], together[row])


def test_gradients_leave_the_parameters_alone(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = random_task(model, n=2)
    runner = SoftRunner(model)
    mask = random_mask(model).requires_grad_()
    runner.logits(runner.prepare(task.clean, task.corrupted), mask).sum().backward()
    assert mask.grad is not None
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert all(parameter.requires_grad for parameter in model.module.parameters())


def test_bad_shapes_are_named(gpt2_tiny64: nn.Module) -> None:
    runner = SoftRunner(load_model(gpt2_tiny64))
    ids = torch.ones(2, 4, dtype=torch.int64)
    pairs = runner.prepare(ids, ids)
    with pytest.raises(ShapeError, match=r"mask has shape \(3, 3\); expected \(9, 21\)"):
        runner.logits(pairs, torch.ones(3, 3))


@pytest.mark.usefixtures("unchecked")
def test_sides_of_different_shape_are_named(gpt2_tiny64: nn.Module) -> None:
    runner = SoftRunner(load_model(gpt2_tiny64))
    with pytest.raises(ShapeError, match=r"clean is \(2, 4\) and corrupted \(2, 5\)"):
        runner.prepare(torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 5, dtype=torch.int64))
