"""Gradient interaction modifications: `eap` with a backward pass that accounts for how parts interact.

A saturated softmax hides what would take over if one of its inputs went, a norm makes its inputs share one
scale, and a product hands each factor the whole of its gradient. The rules soften the first, freeze the
second and share out the third; every value of the forward pass stays what it is, to the bit.
(Edin et al. 2025, arXiv:2505.17630.)
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import InputError, UnsupportedModelError
from assay.discovery.edges.eap_ig import Node, PathGradient, quadrature_nodes
from assay.discovery.edges.method import METHODS, Choices
from assay.discovery.edges.relp import every_norm
from assay.models import Block, Model
from assay.models.attention import AttentionRule, PlacedAttention
from assay.models.block import constant_scale
from assay.models.family import submodule


@dataclass(frozen=True, kw_only=True)
class Gim(PathGradient):
    """Gradient interaction modifications: `eap` with other rules for norms, attention and gated MLPs.

    With s the scores of attention (scaled, capped, masked), P = softmax(s), z = P v, and a bar for the
    gradient that arrives:

    | part | rule |
    |---|---|
    | LayerNorm, RMSNorm (of queries, keys, branches too) | the scale 1 / sigma is a constant |
    | softmax | s- = R (P- - sum R P-) along the keys, R = softmax(s / temperature), P- = z- v |
    | product of queries and keys | q- = s- k and k- = s- q, both by the scale of s, each times its share |
    | product of pattern and values | v- = `values` P z- |
    | gated MLP, f(gate) up | what either branch gets, by `gate` and `up` |
    | everything else | the gradient |

    An option at its neutral value (1, or False) switches its rule off; with all of them neutral the method is
    `eap`. Experts of a mixture count as one MLP without a gate.

    Attributes:
        temperature: T of the softmax that the gradient goes through, > 0.
        queries: Share of the gradient that passes on to queries, > 0; so `keys` and `values`.
        gate, up: The same for the branches of a gated MLP.
        freeze_norms: Whether scales of norms are constants.
        integrated: Average such gradients over `steps` nodes between the ablated and the clean input, as
            `eap-ig-inputs` does. The published method takes the clean run alone.

    Notes:
        Cost: as `eap`. Memory of the backward pass: a few `[n_heads, pos, pos]` of one block, per example.
        Scores do not add up to the effect of the input, so no completeness gap is reported.

    References:
        Edin et al. (2025), arXiv:2505.17630. The released package leaves out some of the rules on models of
        transformers; here all hold on every family.
    """

    key = "gim"
    source = "Edin et al. 2025, arXiv:2505.17630"

    temperature: float = 2.0
    queries: float = 0.25
    keys: float = 0.25
    values: float = 0.5
    gate: float = 0.5
    up: float = 0.5
    freeze_norms: bool = True
    integrated: bool = False

    @property
    def constant_scale(self) -> bool:  # type: ignore[override]  # one option decides, here and in the passes
        return self.freeze_norms

    def check_options(self) -> None:
        super().check_options()
        for name in ("temperature", "queries", "keys", "values", "gate", "up"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(
                    f"option {name} of gim is {getattr(self, name)}; give a finite number above 0 (at 1 the "
                    "rule is off)"
                )

    def nodes(self, settings: Choices) -> Sequence[Node]:
        return quadrature_nodes(settings.steps, settings.quadrature) if self.integrated else (Node(1.0, 1.0),)

    def uses_steps(self) -> bool:
        return self.integrated

    def describe(self, model: Model) -> dict[str, Any]:
        """Which rules change the gradient of this model."""
        on = {
            "norms": self.freeze_norms,
            **{name: getattr(self, name) != 1 for name in ("temperature", "queries", "keys", "values")},
            **{name: getattr(self, name) != 1 and _is_gated(model) for name in ("gate", "up")},
        }
        return {"rules": [name for name, changes in on.items() if changes]}

    def bytes_per_example(self, model: Model, length: int, settings: Choices) -> int:
        steps = settings.steps if self.integrated else 1
        more = 2 * (steps - 1) * model.n_layers * model.d_model * length + 6 * model.n_heads * length**2
        return super().bytes_per_example(model, length, settings) + model.result_dtype.itemsize * more

    @contextmanager
    def rules(self, model: Model) -> Iterator[None]:
        """Inside, a backward pass through the native modules follows the rules.

        Values of the forward pass do not change. Passes without gradients are left alone.

        Args:
            model: The model; its hooks are removed at the end, also after an error.

        Raises:
            UnsupportedModelError: If a norm or an MLP is of a kind without a rule; it is named.
        """
        with ExitStack() as hooks:
            if self.freeze_norms:
                for module, norm in every_norm(model, self.key).items():
                    hooks.callback(module.register_forward_hook(constant_scale(norm)).remove)
            if not self.temperature == self.queries == self.keys == self.values == 1:
                for layer in range(model.n_layers):
                    hooks.enter_context(_RuledAttention(model, layer, self))
            if model.graph.mlps and not self.gate == self.up == 1:
                self._damp_gates(model, hooks)
            yield

    def _damp_gates(self, model: Model, hooks: ExitStack) -> None:
        """Both branches through the product that they make, the gate's again where its share is another."""
        activations: set[nn.Module] = set()  # one instance may serve several blocks
        for block in model.blocks:
            path = block.family.gated(block.module)
            if path is None:
                continue
            product = submodule(block.module, path)
            hooks.callback(product.register_forward_pre_hook(_damping(self.up)).remove)
            if self.gate == self.up:
                continue
            if block.family.activation is None:
                raise UnsupportedModelError(
                    f"gim: the description of family {block.family.key!r} does not name the activation of "
                    "its gated MLP; add `activation` to it, or give `gate` and `up` the same value"
                )
            activation = submodule(block.module, block.family.activation)
            if activation not in activations:
                hooks.callback(activation.register_forward_hook(_damping(self.gate / self.up)).remove)
                activations.add(activation)


METHODS.add(Gim.key, Gim())


def _is_gated(model: Model) -> bool:
    return model.graph.mlps and model.blocks[0].family.gated(model.blocks[0].module) is not None


def _damping(share: float) -> Callable[..., Tensor | None]:
    """A hook before or behind a module: what it is given, or gives, passes on a share of its gradient."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor | None = None) -> Tensor | None:
        value = args[0] if output is None else output
        if not value.requires_grad:
            return None
        alias = value.view_as(value)
        alias.register_hook(lambda gradient: gradient * share)
        return alias

    return hook


class _RuledAttention(ExitStack):
    """Hooks by which the gradient goes through the attention of one block by the rules.

    The native attention gives the values. What it gave is then made a function of the outputs of the
    projections anew, so that its own graph is cut off.
    """

    def __init__(self, model: Model, layer: int, method: Gim) -> None:
        super().__init__()
        self.model, self.layer, self.method = model, layer, method
        self.block: Block = model.blocks[layer]
        self.arguments: Mapping[str, Any] = {}
        self.projected: list[Tensor] = []
        entering = self.block.module.register_forward_pre_hook(self._enter, with_kwargs=True)
        leaving = self.block.out.register_forward_pre_hook(self._leave)
        between = [part.register_forward_hook(self._project) for part in self.block.qkv]
        for handle in (entering, leaving, *between):
            self.callback(handle.remove)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.arguments, self.projected = kwargs, []

    def _project(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.projected.append(output)

    def _leave(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        z, block, rule = args[0], self.block, self.block.rule
        if not z.requires_grad:
            return None
        channels = block.channels(self.projected).transpose(-3, -2)
        queries, keys, values = channels.split([block.n_heads, block.n_kv_heads, block.n_kv_heads], -3)
        tables = {}
        if rule.table is not None:
            cos, sin = block.family.tables(block.module, self.arguments)
            tables[rule.table] = cos.to(z.device), sin.to(z.device)
        length, causal = z.shape[1], self.model.causal
        placed = PlacedAttention(self.model.rules, tables, length=length, causal=causal, read=None)
        queries = placed.queries(self.layer, queries, range(block.n_heads), everywhere=True)
        keys = placed.keys(self.layer, keys, range(block.n_kv_heads))
        self.projected = []
        mixed: Tensor = _Mixed.apply(z.detach(), queries, keys, values, self)  # type: ignore[no-untyped-call]  # torch's
        return (mixed, *args[1:])


class _Mixed(torch.autograd.Function):
    """Outputs of heads that are there already, with the gradient of the rules."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, queries: Tensor, keys: Tensor, values: Tensor, attention: _RuledAttention
    ) -> Tensor:
        ctx.save_for_backward(queries, keys, values)
        ctx.attention = attention
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values = ctx.saved_tensors
        block, method = ctx.attention.block, ctx.attention.method
        by_head = gradient.unflatten(-1, (block.n_heads, block.d_head)).transpose(1, 2)
        into = damped_attention(
            block.rule, method, queries, keys, values, by_head, causal=ctx.attention.model.causal
        )
        return (None, *into, None)


def damped_attention(
    rule: AttentionRule,
    method: Gim,
    queries: Float[Tensor, "n heads pos d_head"],
    keys: Float[Tensor, "n kv pos d_head"],
    values: Float[Tensor, "n kv pos d_head"],
    gradient: Float[Tensor, "n heads pos d_head"],
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries, keys and values get of the gradient at the outputs of the heads.

    The queries of all heads that share a key are taken as queries of one head, so that what they send to it
    adds up in one product.
    """
    n_kv, length = keys.shape[1], keys.shape[-2]
    n_shared = queries.shape[1] // n_kv

    def together(x: Tensor) -> Tensor:
        by_key: Tensor = x.unflatten(1, (n_kv, n_shared))
        return by_key.flatten(2, 3)

    queries, above = together(queries), together(gradient)
    scores, slope = queries @ keys.transpose(-2, -1) * rule.scaling, None
    if rule.softcap is not None:
        share = torch.tanh(scores / rule.softcap)
        scores, slope = share * rule.softcap, 1 - share.square()
    apart = scores.unflatten(2, (n_shared, length))
    if rule.bias is not None:
        apart = apart + rule.bias(length).detach().to(scores).view(n_kv, n_shared, 1, length)
    if causal:
        places = torch.arange(length, device=scores.device)
        apart = apart.masked_fill(~rule.allowed(places[:, None] - places), -torch.inf)
    scores = apart.flatten(2, 3)
    pattern = scores.softmax(-1)
    soft = pattern if method.temperature == 1 else (scores / method.temperature).softmax(-1)
    at_scores = soft * (above @ values.transpose(-2, -1))
    at_scores = at_scores - soft * at_scores.sum(-1, keepdim=True)
    at_scores = at_scores if slope is None else at_scores * slope
    return (
        (at_scores @ keys * (method.queries * rule.scaling)).unflatten(2, (n_shared, length)).flatten(1, 2),
        at_scores.transpose(-2, -1) @ queries * (method.keys * rule.scaling),
        pattern.transpose(-2, -1) @ above * method.values,
    )
