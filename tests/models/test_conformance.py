"""Modules that compute something else than their weights say are refused when they are loaded."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.models import FAMILIES, Model, load_model
from assay.models.conformance import check_conformance


class Adapter(nn.Module):
    """A linear layer with a low-rank change beside it; `weight` is the base layer's, as in PEFT."""

    def __init__(self, base: nn.Module, scale: float = 0.05) -> None:
        super().__init__()
        self.base_layer, self.scale = base, scale
        weight: Any = base.weight
        into, out = weight.shape[::-1] if isinstance(base, nn.Linear) else weight.shape
        self.down = nn.Parameter(torch.randn(into, 2, dtype=weight.dtype))
        self.up = nn.Parameter(torch.randn(2, out, dtype=weight.dtype))

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        return self.base_layer.bias  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.scale * (x @ self.down @ self.up)


class AdaptedLinear(nn.Linear):
    """The same as a kind of linear layer, so that its weight is read the right way round."""

    def __init__(self, base: nn.Linear, scale: float = 0.05) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None)
        self.load_state_dict(base.state_dict())
        self.to(base.weight.dtype)
        self.change = nn.Parameter(scale * torch.randn_like(base.weight))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.change.T


class Quantised(nn.Module):
    """A linear layer that keeps whole numbers and a scale."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().max() / 127
        rounded = (base.weight.detach() / scale).round().to(torch.int8)
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self.scale, self.bias = scale, base.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def swap(module: nn.Module, path: str, wrap: Callable[[Any], nn.Module]) -> nn.Module:
    """A copy of a module with one part wrapped."""
    changed = copy.deepcopy(module)
    parent, _, name = path.rpartition(".")
    owner = changed.get_submodule(parent)
    torch.manual_seed(0)
    setattr(owner, name, wrap(getattr(owner, name)))
    return changed.eval()


PARTS = [
    ("llama", "model.layers.0.self_attn.k_proj"),
    ("llama", "model.layers.1.self_attn.v_proj"),
    ("llama", "lm_head"),
    ("gpt2", "transformer.h.1.attn.c_attn"),
    ("gpt2", "transformer.h.0.attn.c_proj"),
    ("neox", "gpt_neox.layers.0.attention.query_key_value"),
]


@pytest.mark.parametrize(("kind", "path"), PARTS)
def test_an_adapter_around_a_projection_is_named(
    kind: str, path: str, tiny_module: Callable[..., nn.Module]
) -> None:
    """Scores were made of the base layer's weights, without an error."""
    message = rf"{path} \(Adapter\) of .* does not compute .*merge adapters \(merge_and_unload\(\)\)"
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(swap(tiny_module(kind), path, Adapter))


@pytest.mark.parametrize("wrap", [AdaptedLinear, Quantised])
@pytest.mark.parametrize("part", ["q_proj", "o_proj"])
def test_layers_that_keep_something_else_than_their_weight_are_named(
    part: str, wrap: Callable[..., nn.Module], tiny_module: Callable[..., nn.Module]
) -> None:
    path = f"model.layers.1.self_attn.{part}"
    with pytest.raises(
        UnsupportedModelError, match=rf"{path} .*dequantise the weights first \(model\.dequantize\(\)\)"
    ):
        load_model(swap(tiny_module("llama"), path, wrap))


def test_logits_that_are_changed_behind_the_unembedding_are_seen(
    tiny_module: Callable[..., nn.Module],
) -> None:
    module = copy.deepcopy(tiny_module("gpt2"))
    kept = module.forward

    def capped(*args: Any, **kwargs: Any) -> Any:
        output = kept(*args, **kwargs)
        output.logits = 0.5 * torch.tanh(output.logits / 0.5)
        return output

    module.forward = capped  # type: ignore[method-assign]
    with pytest.raises(UnsupportedModelError, match="the logits is off|the logits .* off"):
        load_model(module)


@pytest.mark.parametrize(
    ("kind", "change", "part"),
    [
        ("neox", {"by_group": False}, "its heads"),
        ("neox", {"parallel": lambda module: False}, "post_attention_layernorm .*its output"),
        ("llama", {"norm": "layer"}, "its output"),
        ("gpt2", {"mlp": "ln_2"}, "what it adds to the stream"),
        ("gpt2", {"mlps": False}, "what it adds to the stream"),
    ],
)
def test_a_wrong_description_is_seen(
    kind: str, change: dict[str, Any], part: str, tiny_module: Callable[..., nn.Module]
) -> None:
    module = tiny_module(kind)
    described = load_model(module).family
    family = replace(FAMILIES[described.key], **change)
    with pytest.raises(UnsupportedModelError, match=part):
        check_conformance(Model(module, family, name="other"))


def test_loading_changes_neither_mode_nor_random_numbers(tiny_module: Callable[..., nn.Module]) -> None:
    module = copy.deepcopy(tiny_module("gpt2"))
    module.train()
    module.get_submodule("transformer.h.0").eval()
    modes = [part.training for part in module.modules()]
    before = {name: each.clone() for name, each in module.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load_model(module)
    assert torch.equal(torch.rand(4), expected)
    assert [part.training for part in module.modules()] == modes
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_below_float32_an_adapter_is_seen_all_the_same(
    dtype: torch.dtype, tiny_module: Callable[..., nn.Module]
) -> None:
    module = copy.deepcopy(tiny_module("llama")).to(dtype)
    with pytest.raises(UnsupportedModelError, match="q_proj"):
        load_model(swap(module, "model.layers.1.self_attn.q_proj", lambda base: AdaptedLinear(base, 0.2)))


def test_image_classifiers_are_looked_at_too() -> None:
    module = load_model("colour-digits").module
    path = next(name for name, _ in module.named_modules() if name.endswith(("q_proj", "attn.qkv")))
    with pytest.raises(UnsupportedModelError, match=path):
        load_model(swap(module, path, Adapter))
