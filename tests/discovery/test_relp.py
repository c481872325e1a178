"""Relevance patching: the rules one by one, a literal twin, conservation, what it leaves as it was."""

import math
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import pytest
import torch
import transformers
from cut_models import random_prompts
from literal_relevance import relevance, relevance_of_images
from small_models import IMAGE, build, image_task, randomise
from test_methods import Literal, assert_scores
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges import discover
from assay.discovery.edges.relp import relevance_rules
from assay.models import load_model


# ------------------------------------------------------------------------------------- rules worked by hand


def gradient(output: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of an output's sum."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(output(x).sum(), x)
    return found


def test_identity_rule_by_hand() -> None:
    """GELU is x Phi(x): the coefficient is Phi(x), where the gradient is Phi(x) + x phi(x)."""
    module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=5, n_positions=4, n_embd=4, n_layer=1, n_head=1, activation_function="gelu"
        )
    )
    model = load_model(module.double().eval())
    act = module.transformer.h[0].mlp.act
    x = torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
    phi = torch.tensor([0.022750131948179, 0.5, 0.841344746068543], dtype=torch.float64)
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    with relevance_rules(model):
        torch.testing.assert_close(gradient(act, x), phi, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(act, x), phi + x * density, rtol=1e-12, atol=1e-12)


def test_norm_rule_by_hand(gpt2_tiny64: nn.Module, llama_tiny64: nn.Module) -> None:
    """(e_i - 1/d) gain / sigma for LayerNorm, e_i gain / rms for RMSNorm; a gradient has no part along x."""
    x = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for module, centred in ((gpt2_tiny64, True), (llama_tiny64, False)):
        model = load_model(module)
        norm = model.blocks[1].mlp_norm.module
        kept = x - x.mean() if centred else x
        scale = kept.square().mean().sqrt()
        expected = torch.zeros(24, dtype=torch.float64)
        expected[3] = norm.weight.detach()[3] / scale
        expected = expected - expected.mean() if centred else expected
        with relevance_rules(model):
            found = gradient(lambda x, norm=norm: norm(x)[3], x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # eps; float32 norms of Llama
        assert float(gradient(lambda x, norm=norm: norm(x)[3], x) @ x) == pytest.approx(0, abs=1e-4)


def test_half_rule_by_hand(llama_tiny64: nn.Module) -> None:
    """silu(g) u with g = gate x and u = up x: half of silu(g) / g u to the gate, half of silu(g) to up."""
    model = load_model(llama_tiny64)
    mlp = model.blocks[0].mlp
    x = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate, up, down = (part.weight.detach() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    above = down.sum(0)
    to_gate = above * (gate @ x).sigmoid() * (up @ x) / 2
    to_up = above * nn.functional.silu(gate @ x) / 2
    with relevance_rules(model):
        torch.testing.assert_close(gradient(mlp, x), to_gate @ gate + to_up @ up, rtol=1e-10, atol=1e-10)


# --------------------------------------------------------------------------------------------- literal twins


@pytest.mark.parametrize("ablation", ["resample", "mean", "zero"])
def test_scores_equal_their_twin(module64: nn.Module, ablation: str) -> None:
    """Differences times explicitly propagated coefficients."""
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    twin = Literal(model, task, "logit_diff", ablation)
    found = discover(model, task, "relp", ablation=ablation, per_example=True, batch_size=3)
    assert_scores(found, relevance(model, task, twin.loss, twin.differences))


def quick_vit() -> nn.Module:
    config = transformers.ViTConfig(**IMAGE, hidden_act="quick_gelu", layer_norm_eps=1e-3)
    return randomise(transformers.ViTForImageClassification(config))


@pytest.mark.parametrize("built", [quick_vit, partial(build, "deit with a teacher")], ids=["vit", "deit"])
def test_scores_of_images_equal_their_twin(built: Callable[[], nn.Module]) -> None:
    model = load_model(built())
    task = model.bind(image_task(model))
    options = {"objective": "ce", "ablation": "resample", "per_example": True, "batch_size": 3}
    found = discover(model, task, "relp", **options).per_example
    torch.testing.assert_close(found, relevance_of_images(model, task), rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------- what it leaves as it was


def hooks_of(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_rules_change_no_value_and_leave_nothing_behind(module64: nn.Module) -> None:
    """To the bit, with and without gradients; hooks go also after an error."""
    model = load_model(module64)
    task = random_prompts(model)
    plain = model.forward(task.clean)
    with relevance_rules(model):
        assert torch.equal(model.forward(task.clean), plain)
        with torch.no_grad():
            assert torch.equal(model.forward(task.clean), plain)
        assert hooks_of(module64) > 0
    assert torch.equal(model.forward(task.clean), plain)

    def loss(logits: Tensor, clean: Tensor, batch: object) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        discover(model, task, "relp", objective=loss)
    assert hooks_of(module64) == 0
    assert all(parameter.requires_grad for parameter in module64.parameters())


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        (nn.Sigmoid(), "the activation Sigmoid of .* is 0.5 at 0"),
        (nn.ReLU(inplace=True), "overwrites its input"),
    ],
    ids=["not zero at zero", "in place"],
)
def test_parts_without_a_rule_are_named(gpt2_tiny64: nn.Module, activation: nn.Module, message: str) -> None:
    module = deepcopy(gpt2_tiny64)
    module.transformer.h[1].mlp.act = activation
    model = load_model(module)
    with pytest.raises(UnsupportedModelError, match=message):
        discover(model, random_prompts(model), "relp")
    assert hooks_of(module) == 0
