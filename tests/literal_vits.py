"""Slow, literal vision transformers: node by node, one copy of the stream per reader.

Written from the classifiers' own modules (Hugging Face or timm) and nothing of the engine; graphs only lend
the order of node names.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.graph import Graph, build_graph


Outputs = dict[str, Tensor]  # node -> what it writes to the stream, [batch, pos, d_model]
Edge = tuple[str, str]  # (source, target)
Loss = Callable[[Tensor], Tensor]  # logits [batch, classes] -> [batch]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One block, written as functions of the stream.

    Attributes:
        norm: Norm before attention.
        project: Channel (q, k, v) -> weight `[heads, d_head, d_model]` and bias `[heads, d_head]`.
        adjust: Channel (q, k) -> norm of a head after the projection.
        scale: Of the query-key products.
        out: Output weight `[heads, d_model, d_head]`, LayerScale included.
        constant: Output bias `[d_model]`, LayerScale included.
        mlp: What the MLP adds to the stream it reads.
    """

    norm: Callable[[Tensor], Tensor]
    project: dict[str, tuple[Tensor, Tensor]]
    adjust: dict[str, Callable[[Tensor], Tensor]]
    scale: float
    out: Tensor
    constant: Tensor
    mlp: Callable[[Tensor], Tensor]

    def mixed(self, number: int, streams: dict[str, Tensor]) -> Tensor:
        """The mixed values of one head, given its own stream for each channel."""
        group = len(self.project["q"][0]) // len(self.project["k"][0])
        parts = {}
        for channel, (weight, bias) in self.project.items():
            place = number if channel == "q" else number // group
            parts[channel] = self.norm(streams[channel]) @ weight[place].T + bias[place]
        for channel, adjust in self.adjust.items():
            parts[channel] = adjust(parts[channel])
        scores = parts["q"] @ parts["k"].transpose(1, 2) * self.scale
        return scores.softmax(-1) @ parts["v"]

    def written(self, mixed: Sequence[Tensor]) -> list[Tensor]:
        """What each head adds to the stream, given the mixed values of all."""
        return [z @ weight.T for z, weight in zip(mixed, self.out, strict=True)]


@dataclass(frozen=True, kw_only=True)
class LiteralVit:
    """A classifier: images to the stream entering block 0, blocks, final stream to logits."""

    embed: Callable[[Tensor], Tensor]
    layers: tuple[Layer, ...]
    read: Callable[[Tensor], Tensor]

    @property
    def n_heads(self) -> int:
        return len(self.layers[0].out)

    @property
    def graph(self) -> Graph:
        return build_graph(len(self.layers), self.n_heads, len(self.layers[0].project["k"][0]))


def literal(module: nn.Module) -> LiteralVit:
    """The literal form of a Hugging Face or timm classifier."""
    native: Any = module
    return _timm(native) if hasattr(native, "patch_embed") else _hugging_face(native)


# ------------------------------------------------------------------------------------------ reading modules


def _rows(projection: nn.Linear, first: int, n_heads: int, d_head: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of `n_heads` heads whose rows begin at `first`."""
    rows = slice(first, first + n_heads * d_head)
    weight = projection.weight.detach()[rows].reshape(n_heads, d_head, -1)
    bias = torch.zeros_like(projection.weight[:, 0]) if projection.bias is None else projection.bias
    return weight, bias.detach()[rows].reshape(n_heads, d_head)


def _out(projection: nn.Linear, gamma: Tensor, n_heads: int) -> tuple[Tensor, Tensor]:
    weight = projection.weight.detach() * gamma[:, None]
    constant = torch.zeros_like(gamma) if projection.bias is None else projection.bias.detach() * gamma
    return weight.reshape(len(gamma), n_heads, -1).transpose(0, 1), constant


def _timm(module: Any) -> LiteralVit:
    layers = [_timm_layer(block) for block in module.blocks]

    def embed(images: Tensor) -> Tensor:
        return module.norm_pre(module._pos_embed(module.patch_embed(images)))

    def read(stream: Tensor) -> Tensor:
        x = module.norm(stream)
        if hasattr(module, "head_dist"):
            return (module.head(x[:, 0]) + module.head_dist(x[:, 1])) / 2
        prefix = 0 if getattr(module, "pool_include_prefix", False) else module.num_prefix_tokens
        patches = x[:, prefix:]
        pooled = {
            "token": lambda: x[:, 0],
            "avg": lambda: patches.mean(1),
            "max": lambda: patches.amax(1),
            "avgmax": lambda: (patches.mean(1) + patches.amax(1)) / 2,
        }[module.global_pool]()
        return module.head(module.fc_norm(pooled))

    return LiteralVit(embed=embed, layers=tuple(layers), read=read)


def _timm_layer(block: Any) -> Layer:
    attention = block.attn
    heads = attention.num_heads
    width = attention.proj.in_features // heads
    out, constant = _out(attention.proj, branch_factors(block, 1), heads)
    mlp_gamma = branch_factors(block, 2)
    normed = not isinstance(attention.q_norm, nn.Identity)
    return Layer(
        norm=block.norm1,
        project={
            channel: _rows(attention.qkv, third * heads * width, heads, width)
            for third, channel in enumerate("qkv")
        },
        adjust={"q": attention.q_norm, "k": attention.k_norm} if normed else {},
        scale=width**-0.5,
        out=out,
        constant=constant,
        mlp=lambda x: block.mlp(block.norm2(x)) * mlp_gamma,
    )


def branch_factors(block: Any, branch: int) -> Tensor:
    """The scale of the attention (1) or the MLP (2), or ones."""
    scale = getattr(getattr(block, f"ls{branch}", None), "gamma", None)
    return torch.ones_like(block.attn.proj.weight[:, 0].detach()) if scale is None else scale.detach()


def _hugging_face(module: Any) -> LiteralVit:
    backbone = module.vit if hasattr(module, "vit") else module.deit
    heads = module.config.num_attention_heads
    layers = [
        _layer(
            block.attention,
            heads,
            block.layernorm_before,
            lambda x, block=block: block.mlp(block.layernorm_after(x)),
        )
        for block in backbone.layers
    ]

    def read(stream: Tensor) -> Tensor:
        x = backbone.layernorm(stream)
        if hasattr(module, "distillation_classifier"):
            return (module.cls_classifier(x[:, 0]) + module.distillation_classifier(x[:, 1])) / 2
        return module.classifier(x[:, 0])

    return LiteralVit(embed=backbone.embeddings, layers=tuple(layers), read=read)


def _layer(
    attention: Any, heads: int, norm: Callable[[Tensor], Tensor], mlp: Callable[[Tensor], Tensor]
) -> Layer:
    """A block with three projections and one output projection, named as transformers names them."""
    width = attention.o_proj.weight.shape[1] // heads
    out, constant = _out(attention.o_proj, torch.ones_like(attention.o_proj.weight[:, 0]).detach(), heads)
    return Layer(
        norm=norm,
        project={channel: _rows(getattr(attention, f"{channel}_proj"), 0, heads, width) for channel in "qkv"},
        adjust={},
        scale=width**-0.5,
        out=out.detach(),
        constant=constant.detach(),
        mlp=mlp,
    )


# ------------------------------------------------------------------------------------------------- running


def run(
    vit: LiteralVit, embed: Tensor, stream_of: Callable[[str, Outputs, Tensor], Tensor]
) -> tuple[Tensor, Outputs]:
    """Run node by node; `stream_of(target, outputs so far, biases so far)` is what a target reads."""
    outputs: Outputs = {"input": embed}
    biases = torch.zeros_like(embed[0, 0])
    for number, layer in enumerate(vit.layers):
        names = [f"a{number}.h{head}" for head in range(vit.n_heads)]
        streams: dict[str, Tensor] = {}
        mixed = []
        for head, name in enumerate(names):
            targets = {channel: _reader(layer, name, head, channel) for channel in "qkv"}
            for target in targets.values():
                if target not in streams:
                    streams[target] = stream_of(target, outputs, biases)
            mixed.append(layer.mixed(head, {channel: streams[target] for channel, target in targets.items()}))
        outputs.update(zip(names, layer.written(mixed), strict=True))
        biases = biases + layer.constant
        outputs[f"m{number}"] = layer.mlp(stream_of(f"m{number}", outputs, biases))
    return vit.read(stream_of("logits", outputs, biases)), outputs


def _reader(layer: Layer, name: str, head: int, channel: str) -> str:
    """The target that gives a head a channel: keys and values may be shared."""
    group = len(layer.project["q"][0]) // len(layer.project["k"][0])
    if channel == "q" or group == 1:
        return f"{name}.{channel}"
    return f"{name.split('.')[0]}.kv{head // group}.{channel}"


def _everything(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
    return torch.stack([*outputs.values()]).sum(0) + biases


def whole(vit: LiteralVit, embed: Tensor) -> tuple[Tensor, Outputs]:
    """The unablated model."""
    with torch.no_grad():
        return run(vit, embed, _everything)


def with_edges(vit: LiteralVit, embed: Tensor, kept: Collection[Edge], ablated: Outputs) -> Tensor:
    """Logits where each target reads kept sources of this run and ablated values of all others."""

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        total = torch.zeros_like(embed) + biases
        for source, value in outputs.items():
            total = total + (value if (source, target) in kept else ablated[source])
        return total

    with torch.no_grad():
        return run(vit, embed, stream_of)[0]


def gradients(vit: LiteralVit, embed: Tensor, loss: Loss) -> Outputs:
    """Gradient of the summed loss at every target's own copy of the stream."""
    copies: dict[str, Tensor] = {}

    def stream_of(target: str, outputs: Outputs, biases: Tensor) -> Tensor:
        copies[target] = torch.zeros_like(embed, requires_grad=True)
        return _everything(target, outputs, biases) + copies[target]

    with torch.enable_grad():
        logits, _ = run(vit, embed, stream_of)
        found = torch.autograd.grad(loss(logits).sum(), list(copies.values()), allow_unused=True)
    # Nothing depends on the last block's queries and MLP outside the tokens that are read.
    return {
        target: torch.zeros_like(embed) if gradient is None else gradient
        for target, gradient in zip(copies, found, strict=True)
    }


# ------------------------------------------------------------------------------------------------- scoring


def edges(graph: Graph) -> list[Edge]:
    """All edges, in order."""
    return [(graph.sources[row], graph.targets[column]) for row, column in graph.valid.nonzero().tolist()]


def path_scores(
    vit: LiteralVit, embed: Tensor, ablated: Outputs, loss: Loss, alphas: Sequence[float]
) -> Tensor:
    """sum_t (ablated - clean source) . mean over alphas of the gradient, per example: `[batch, S, R]`.

    The gradients are those of runs whose input is ablated + alpha (clean - ablated); alphas of (1,) are EAP.
    """
    graph = vit.graph
    _, clean = whole(vit, embed)
    start = ablated["input"].expand_as(embed)
    along = [gradients(vit, start + alpha * (embed - start), loss) for alpha in alphas]
    scores = embed.new_zeros(len(embed), graph.n_sources, graph.n_targets)
    for source, target in edges(graph):
        mean = torch.stack([found[target] for found in along]).mean(0)
        value = ((ablated[source] - clean[source]) * mean).sum((1, 2))
        scores[:, graph.source_index(source), graph.target_index(target)] = value
    return scores


def cross_entropy(labels: Tensor) -> Loss:
    """-log p(label)."""
    return lambda logits: -logits.log_softmax(-1)[torch.arange(len(labels)), labels]


def means(outputs: Outputs) -> Outputs:
    """Mean over examples at each position."""
    return {name: value.mean(0, keepdim=True) for name, value in outputs.items()}
