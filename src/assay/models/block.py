"""The blocks of a live module, each with the matrices that attribution reads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from assay.models.attention import AttentionRule, HeadNorm
from assay.models.family import Family, Sizes, home_of, submodule


def _wide(value: Tensor) -> Tensor:
    """A tensor in at least float32."""
    return value if value.dtype == torch.float64 else value.float()


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """A LayerNorm or RMSNorm module and its numbers; without a module, the stream as it is.

    Attributes:
        module: The native module; None where there is no norm.
        kind: `layer`, `rms`, or `rms1` for an RMSNorm whose gain is 1 + weight; None without a module.
    """

    module: nn.Module | None
    kind: Literal["layer", "rms", "rms1"] | None

    def __call__(self, stream: Tensor) -> Tensor:
        """The native output, on the device of the stream."""
        if self.module is None:
            return stream
        normed: Tensor = self.module(stream)
        return normed.to(stream.device)

    @property
    def gain(self) -> Float[Tensor, " d_model"] | None:
        """Factors behind the scale, in at least float32; None where all are 1."""
        weight = getattr(self.module, "weight", None)
        if not isinstance(weight, Tensor):
            return None
        wide = _wide(weight.detach())
        return wide + 1 if self.kind == "rms1" else wide  # in a half type 1 + weight loses most of the weight

    @property
    def shift(self) -> Float[Tensor, " d_model"] | None:
        """What is added at the end; None where nothing is."""
        shift = getattr(self.module, "bias", None)
        return shift.detach() if isinstance(shift, Tensor) else None

    @property
    def eps(self) -> float:
        module: Any = self.module
        return float(module.eps if hasattr(module, "eps") else module.variance_epsilon)

    def scaled_by_gain(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """`x` times the gain, rounded once to the type of `x`."""
        gain = self.gain
        return x if gain is None else (x * gain.to(x.device)).to(x.dtype)

    def standardise(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch 1"]]:
        """Input without gain and shift, and the scale it was divided by, in at least float32."""
        x = self.centre(_wide(x))
        if self.kind is None:
            return x, x.new_ones(*x.shape[:-1], 1)
        # On CPU `torch.var_mean` takes ten times as long.
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * inverse, inverse

    def centre(self, y: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The mean-free part for LayerNorm, the input itself otherwise."""
        return y - y.mean(-1, keepdim=True) if self.kind == "layer" else y


def constant_scale(norm: Norm) -> Callable[..., Tensor | None]:
    """A forward hook for a norm's module: its gradient is that of a norm whose scale is a constant."""

    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        x = args[0].to(output.device)
        if not x.requires_grad:
            return None
        inverse = norm.standardise(x.detach())[1].to(x.dtype)
        return replace_gradient(output, norm.scaled_by_gain(norm.centre(x) * inverse))

    return hook


def replace_gradient(value: Tensor, linear: Tensor) -> Tensor:
    """`value` to the bit, with the gradient of `linear`: what is added to it is exactly zero."""
    return value.detach() + (linear - linear.detach())


class Block:
    """One block of a model as its family describes it: its modules, and their weights in one layout.

    A norm behind the heads of the block is `branch_norm` where a head writes what it adds behind that norm,
    and `target_norm` where a head writes what it gives to the norm, which targets apply to what they read.

    Channels are ordered q heads, k heads, v heads; `n_channels = n_heads + 2 n_kv_heads`.

    Weights are given on the device of the whole model (`home`), wherever those of this block lie. What is run
    natively comes back on the device of what it was given.

    Args:
        root: The module of the whole model.
        layer: The number of the block.
        module: The module of the block.
        family: The description.
        sizes: Heads and widths.
        per_target: Whether targets apply a norm behind the heads to what they read of them.
    """

    def __init__(
        self,
        root: nn.Module,
        layer: int,
        module: nn.Module,
        family: Family,
        sizes: Sizes,
        *,
        per_target: bool,
    ) -> None:
        def optional(path: str | None) -> nn.Module | None:
            """The module at a path; None where nothing or a placeholder stands there."""
            part = None if path is None else dict(module.named_modules()).get(path)
            return None if isinstance(part, nn.Identity) else part

        def head_norm(path: str | None) -> HeadNorm | None:
            norm = optional(path)
            return None if norm is None else HeadNorm(module=norm, over=family.norms_over)

        self.root, self.module, self.family = root, module, family
        self.n_heads, self.n_kv_heads, self.d_head = sizes.n_heads, sizes.n_kv_heads, sizes.d_head
        self.attention_norm = bind_norm(module, family, family.attention_norm)
        self.mlp_norm = bind_norm(module, family, family.mlp_norm)
        self.qkv = tuple(submodule(module, path) for path in family.qkv)
        self.out, self.mlp = submodule(module, family.out), submodule(module, family.mlp)
        self.attention_scale, self.mlp_scale = optional(family.attention_scale), optional(family.mlp_scale)
        self.mlp_out = self.mlp_scale or submodule(module, family.mlp_out or family.mlp)
        behind = None if family.branch_norm is None else bind_norm(module, family, family.branch_norm)
        self.branch_norm: Norm | None = None if per_target else behind
        self.target_norm: Norm | None = behind if per_target else None
        self.rule = AttentionRule(
            scaling=float(family.scaling(submodule(module, family.attention))),
            window=family.window(root, layer),
            softcap=family.softcap(root),
            table=family.table(root, layer),
            adjacent=family.adjacent,
            q_norm=head_norm(family.q_norm),
            k_norm=head_norm(family.k_norm),
            bias=family.position_bias(root, layer),
        )

    @property
    def home(self) -> torch.device:
        """The device of the whole model `root`; see `home_of`."""
        return home_of(self.root)

    @property
    def n_channels(self) -> int:
        return self.n_heads + 2 * self.n_kv_heads

    def channels(self, outputs: Sequence[Tensor]) -> Float[Tensor, "*batch n_channels d_head"]:
        """Outputs (or gradients) of the q/k/v projection modules in the common channel layout."""
        if len(outputs) == 3:
            return torch.cat([part.unflatten(-1, (-1, self.d_head)) for part in outputs], -2)
        fused: Tensor = outputs[0]
        if self.family.by_group:
            groups = fused.unflatten(-1, (self.n_kv_heads, -1, self.d_head))
            queries, keys, values = groups[..., :-2, :], groups[..., -2, :], groups[..., -1, :]
            return torch.cat([queries.flatten(-3, -2), keys, values], -2)
        split: Tensor = fused.unflatten(-1, (-1, self.d_head))
        return split

    def qkv_weight(self) -> Float[Tensor, "d_model n_channels d_head"]:
        """Projection weights in the common channel layout."""
        return self.channels([self._matrix(part) for part in self.qkv])

    def project(self, normed: Float[Tensor, "*n d_model"]) -> Float[Tensor, "*n n_channels d_head"]:
        """q/k/v of what the projections read, by the native modules."""
        return self.channels([projection(normed).to(normed.device) for projection in self.qkv])

    def _matrix(self, projection: nn.Module) -> Float[Tensor, "d_in d_out"]:
        """Weight of a linear map as `[d_in, d_out]`, whichever way the module stores it."""
        weight = projection.weight
        assert isinstance(weight, Tensor)
        weight = weight.detach().to(self.home)
        return weight.T if isinstance(projection, nn.Linear) else weight

    def _bias(self, projection: nn.Module) -> Tensor | None:
        bias = getattr(projection, "bias", None)
        return bias.detach().to(self.home) if isinstance(bias, Tensor) else None

    def _gamma(self, scale: nn.Module) -> Float[Tensor, " d_model"]:
        """The factors of a LayerScale module, its only parameter."""
        (gamma,) = scale.parameters()
        return gamma.detach().to(self.home)

    def qkv_bias(self) -> Float[Tensor, "n_channels d_head"] | None:
        """Projection biases in the common channel layout."""
        biases = [self._bias(part) for part in self.qkv]
        if all(bias is None for bias in biases):
            return None
        pairs = zip(biases, map(self._matrix, self.qkv), strict=True)
        return self.channels([torch.zeros_like(like[0]) if bias is None else bias for bias, like in pairs])

    def out_weight(self) -> Float[Tensor, "n_heads d_head d_model"]:
        """Output projection per head, the scale of the branch included.

        Of a branch norm, in at least float32, all but its 1/rms, which runs keep with the heads' outputs: see
        `rescaled`.
        """
        weight: Tensor = self._matrix(self.out).unflatten(0, (self.n_heads, self.d_head))
        if self.branch_norm is not None:
            return self.branch_norm.scaled_by_gain(self.branch_norm.centre(_wide(weight)))
        return weight if self.attention_scale is None else weight * self._gamma(self.attention_scale)

    def write(self, z: Float[Tensor, "*n width"]) -> Float[Tensor, "*n d_model"]:
        """What the attention adds to the stream for these outputs of its heads, by the native modules."""
        written: Tensor = self.out(z).to(z.device)
        norm = self.branch_norm or self.target_norm
        if norm is not None:
            return norm(written)
        if self.attention_scale is not None:
            written = self.attention_scale(written).to(z.device)
        return written

    def out_bias(self) -> Float[Tensor, " d_model"] | None:
        """Output projection bias (scaled as the branch is): part of the stream, of no source.

        Behind a branch norm its shift; the projection has no bias there, see `conformance`.
        """
        if self.branch_norm is not None:
            shift = self.branch_norm.shift
            return None if shift is None else shift.to(self.home)
        bias = self._bias(self.out)
        if bias is None or self.attention_scale is None:
            return bias
        return bias * self._gamma(self.attention_scale)

    def rescaled(self, z: Float[Tensor, "*n heads pos d_head"]) -> Float[Tensor, "*n heads pos d_head"]:
        """Outputs of all heads as their output projection reads them, from those of the attention.

        Before a branch norm they are times the 1/rms of what they write together: a head writes o_h = r G
        p_h, p_h = z_h W_O^h, r one number per position that all heads of the block share. So z is kept as
        r z, and everything else is as without such a norm.
        """
        if self.branch_norm is None:
            return z
        written = z.movedim(-3, -2).flatten(-2) @ self._matrix(self.out).to(z.dtype)
        scale = self.branch_norm.standardise(written)[1]
        return (z * scale.unsqueeze(-3)).to(z.dtype)

    @property
    def shares_norm(self) -> bool:
        """Whether attention and MLP read the output of one norm, or both the stream itself."""
        return self.attention_norm.module is self.mlp_norm.module

    def run_mlp(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """What the MLP adds to the stream it reads: norm, MLP, scale."""
        normed = self.mlp_norm(stream).reshape(1, -1, stream.shape[-1])  # some read no other number of axes
        run = self.family.run_mlp
        output: Tensor = self.mlp(normed) if run is None else run(self.module, normed)
        output = output if self.mlp_scale is None else self.mlp_scale(output)
        return output.to(stream.device).view(stream.shape)

    def kv_head(self, head: int) -> int:
        """The key/value head that serves a query head."""
        return head * self.n_kv_heads // self.n_heads


def bind_norm(root: nn.Module, family: Family, path: str | None) -> Norm:
    """The norm at a path from `root`; without a path or with a placeholder there, none."""
    module = None if path is None else submodule(root, path)
    kind = None if module is None or isinstance(module, nn.Identity) else family.norm
    return Norm(module=module, kind=kind)


def bind_blocks(
    module: nn.Module, family: Family, sizes: Sizes, *, per_target: bool = False
) -> tuple[Block, ...]:
    """All blocks of a module in order, as the description of its family says.

    Args:
        module: The module.
        family: Its description.
        sizes: Its heads and widths.
        per_target: Whether targets apply a norm behind the heads of a block to what they read of them.
    """
    blocks = enumerate(submodule(module, family.blocks).children())
    return tuple(Block(module, *each, family, sizes, per_target=per_target) for each in blocks)
