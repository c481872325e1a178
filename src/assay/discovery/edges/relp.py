"""Relevance patching: attribution patching whose backward pass follows layer-wise relevance propagation.

The rules of relevance propagation are linear maps with coefficients from the forward pass, so they are
what autograd does once a few native modules are told which of their factors count as constants. Hooks
do that; no module is replaced, and every value of the forward pass stays what it is, to the bit.
(Rezaei Jafari et al. 2025, arXiv:2508.21258.)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges.eap_ig import Node, PathGradient
from assay.discovery.edges.method import METHODS, Choices
from assay.models import Block, Model, Norm
from assay.models.block import constant_scale, replace_gradient
from assay.models.family import submodule


@dataclass(frozen=True, kw_only=True)
class Relp(PathGradient):
    """Relevance patching: `eap` with propagation coefficients in the place of the gradient.

    score(u, v) = E_x [ sum_t (a~_u,t - a_u,t) . g_v,t ], with g_v what arrives at the input of v when the
    derivative of the objective by the logits is sent back through the clean run by these rules:

    | part | rule | coefficient |
    |---|---|---|
    | LayerNorm, RMSNorm (of queries, keys, branches too) | LN | the scale 1 / sigma is a constant |
    | activation function f | identity | f(x) / x in the place of f'(x) |
    | linear maps | 0 | the weights, as in the gradient; biases take their share with them |
    | gated MLP, f(gate) * up | half | half of the gradient to either factor |
    | attention | none | the gradient, as in the demonstrations of the published code |

    Notes:
        Cost: one clean forward and backward pass and the pass that gives the ablated values; the rules
        add elementwise work only.
        At x = 0 the identity rule uses the limit f'(0); f must vanish at 0 (GELU, SiLU and ReLU do).
        Where f is ReLU the rule is the gradient itself.

    References:
        Rezaei Jafari et al. (2025), arXiv:2508.21258. Rules: Ali et al. (2022), ICML, for LN;
        Rezaei Jafari et al. (2024), NeurIPS, for identity; Arras et al. (2019) for half; Montavon et al.
        (2019) for 0.
    """

    key = "relp"
    source = "Rezaei Jafari et al. 2025, arXiv:2508.21258"
    constant_scale = True

    def nodes(self, settings: Choices) -> Sequence[Node]:
        return (Node(1.0, 1.0),)

    def rules(self, model: Model) -> AbstractContextManager[None]:
        return relevance_rules(model)


METHODS.add(Relp.key, Relp())


@contextmanager
def relevance_rules(model: Model) -> Iterator[None]:
    """Inside, a backward pass through the native modules propagates relevance coefficients.

    Values of the forward pass do not change. Passes without gradients are left alone.

    Args:
        model: The model; its hooks are removed at the end, also after an error.

    Raises:
        UnsupportedModelError: If a norm or an MLP is of a kind without a rule; it is named.
    """
    with ExitStack() as hooks:

        def add(module: nn.Module, hook: Callable[..., Tensor | None]) -> None:
            hooks.callback(module.register_forward_hook(hook).remove)

        for module, norm in every_norm(model, Relp.key).items():
            add(module, constant_scale(norm))
        shared: set[nn.Module] = set()
        for block in model.blocks:
            activation, gated = _mlp_parts(block) if model.graph.mlps else (None, None)
            if activation is not None and activation not in shared:  # one instance may serve several blocks
                add(activation, _identity(activation, model))
                shared.add(activation)
            if gated is not None:
                hooks.callback(gated.register_forward_pre_hook(_half).remove)
        yield


# ------------------------------------------------------------------------------------------------ the rules


def _identity(activation: nn.Module, model: Model) -> Callable[..., Tensor | None]:
    """Identity rule: the activation is multiplication by f(x) / x."""
    slope = _slope_at_zero(activation, model)

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        x = args[0]
        if not x.requires_grad:
            return None
        zero = x.detach() == 0
        ratio = torch.where(zero, slope.to(x.device), output.detach() / x.detach().masked_fill(zero, 1))
        return replace_gradient(output, x * ratio)

    return hook


def _slope_at_zero(activation: nn.Module, model: Model) -> Tensor:
    """f'(0), which f(x) / x tends to; refuses activations where it tends to nothing."""
    name = type(activation).__name__
    if getattr(activation, "inplace", False):
        raise UnsupportedModelError(
            f"relp: the activation {name} of {model.id} overwrites its input; build the model with "
            "inplace=False"
        )
    zero = torch.zeros((), dtype=model.dtype, device=model.device, requires_grad=True)
    with torch.enable_grad():
        value = activation.forward(zero)  # not a call: hooks on the module are not meant for this
        (slope,) = torch.autograd.grad(value, zero)
    if value.item() != 0:
        raise UnsupportedModelError(
            f"relp: the activation {name} of {model.id} is {value.item():.3g} at 0, but the identity rule "
            "divides by its input and needs an activation that is 0 there (GELU, SiLU, ReLU); use "
            "method='eap'"
        )
    return slope


def _half(module: nn.Module, args: tuple[Tensor, ...]) -> None:
    """Half rule: what a product passes on is shared between its two factors."""
    if args[0].requires_grad:
        args[0].register_hook(lambda gradient: gradient / 2)


# -------------------------------------------------------------------------------------- where they apply


def every_norm(model: Model, method: str) -> dict[nn.Module, Norm]:
    """Every norm of the module, in blocks and behind them.

    Raises:
        UnsupportedModelError: For a norm that is neither a LayerNorm nor an RMSNorm; it is named.
    """
    described = [model.final_norm]
    for block in model.blocks:
        described += (block.attention_norm, block.mlp_norm)[: 1 + model.graph.mlps]
        described += [norm for norm in (block.branch_norm, block.target_norm) if norm is not None]
    norms = {norm.module: norm for norm in described if norm.module is not None and norm.kind is not None}
    for path, part in model.module.named_modules():
        kind = _norm_kind(part, model)
        if kind is not None and part not in norms:
            norms[part] = Norm(module=part, kind=kind)
        if part not in norms and "norm" in type(part).__name__.lower() and not list(part.children()):
            raise UnsupportedModelError(
                f"{method} has rules for LayerNorm and RMSNorm, but {path} of {model.id} is a "
                f"{type(part).__name__}; use method='eap'"
            )
    return norms


def _norm_kind(part: nn.Module, model: Model) -> Literal["layer", "rms", "rms1"] | None:
    if isinstance(part, nn.LayerNorm):
        return "layer"
    # Each architecture of transformers has an RMSNorm class of its own, with the same gain in all places.
    own: Literal["rms", "rms1"] = "rms1" if model.family.norm == "rms1" else "rms"
    return own if type(part).__name__.lower().endswith("rmsnorm") else None


def _mlp_parts(block: Block) -> tuple[nn.Module, nn.Module | None]:
    """The activation of a block's MLP, and the module that reads the product of its branches, if gated."""
    family = block.family
    if family.activation is None:
        raise UnsupportedModelError(
            f"relp needs the activation of the MLP, which the description of family {family.key!r} does not "
            "name; add `activation` to it, or use method='eap'"
        )
    path = family.gated(block.module)
    gated = None if path is None else submodule(block.module, path)
    return submodule(block.module, family.activation), gated
