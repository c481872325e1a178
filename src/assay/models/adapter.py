"""A native transformer seen through one interface: where its parts are, and how to run them.

A `Family` is a frozen description (module paths, layouts); `Model` binds it to a live module. The
module itself is never changed: hooks live inside context managers, and gradients are taken with
respect to activations only.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.errors import InputError, NonFiniteError, UnsupportedModelError
from assay.graph import Graph, build_graph
from assay.models.tracing import BlockCall, FinalOutput, ProjectionOutput, StopForward, Trace


# Entries of a configuration that change no number the model computes.
_NOT_IDENTITY = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})

Config = Any  # a Hugging Face configuration: attributes differ per family


@dataclass(frozen=True, kw_only=True)
class Separate:
    """Three projection modules, each head-major."""

    q: str
    k: str
    v: str

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.q, self.k, self.v)


@dataclass(frozen=True, kw_only=True)
class Fused:
    """One projection module for q, k and v.

    Attributes:
        path: Module path inside a block.
        per_head: False for columns ordered (q|k|v, head, c); True for (head, q|k|v, c).
    """

    path: str
    per_head: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the parts of one family of transformers are.

    Paths are attribute paths; those of norms, projections and MLP start at a block, the others at
    the module. Adding a family is one of these and nothing else.

    Attributes:
        key: Name of the description.
        model_types: `config.model_type` values it serves.
        backbone: The module whose call runs embeddings, blocks and the final norm.
        blocks: The list of blocks.
        attention_norm, mlp_norm: Norms before attention and MLP.
        final_norm: Norm before the unembedding.
        unembed: Module from the normalised stream to logits.
        attention: The attention module; it holds `scaling`.
        qkv: Layout of the query/key/value projections.
        out: Output projection of the attention.
        mlp: The MLP module.
        norm: Kind of the norms.
        learned_positions: Whether positions are rows of a table, so that longer prompts cannot be read.
        q_norm, k_norm: Per-head norms after the projections, if any.
        parallel: Whether attention and MLP read the same stream, from the configuration.
        refuse: Reason why a configuration of this family is not served, or None.
    """

    key: str
    model_types: tuple[str, ...]
    backbone: str
    blocks: str
    attention_norm: str
    mlp_norm: str
    final_norm: str
    unembed: str
    attention: str
    qkv: Separate | Fused
    out: str
    mlp: str
    norm: Literal["layer", "rms"]
    learned_positions: bool = False
    q_norm: str | None = None
    k_norm: str | None = None
    parallel: Callable[[Config], bool] = lambda config: False
    refuse: Callable[[Config], str | None] = lambda config: None


def submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at an attribute path; an error that names the first missing part otherwise."""
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"{type(root).__name__} has no module {path!r} ({error}); its layout differs from the "
            "description of its family"
        ) from error


def _matrix(projection: nn.Module) -> Float[Tensor, "d_in d_out"]:
    """Weight of a linear map as `[d_in, d_out]`, whichever way the module stores it."""
    weight = projection.weight
    assert isinstance(weight, Tensor)
    return weight.T if isinstance(projection, nn.Linear) else weight


def _bias(projection: nn.Module) -> Tensor | None:
    bias = getattr(projection, "bias", None)
    return bias if isinstance(bias, Tensor) else None


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """A LayerNorm or RMSNorm module and its numbers."""

    module: nn.Module
    kind: Literal["layer", "rms"]

    @property
    def gain(self) -> Float[Tensor, " d_model"]:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    @property
    def eps(self) -> float:
        for name in ("eps", "variance_epsilon"):
            value = getattr(self.module, name, None)
            if isinstance(value, float):
                return value
        raise UnsupportedModelError(
            f"norm {type(self.module).__name__} states neither eps nor variance_epsilon"
        )

    def standardise(
        self, x: Float[Tensor, "*batch d_model"]
    ) -> tuple[Float[Tensor, "*batch d_model"], Float[Tensor, "*batch 1"]]:
        """Input without gain and shift, and the scale it was divided by, in at least float32."""
        x = x if x.dtype == torch.float64 else x.float()
        if self.kind == "layer":
            variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
            inverse = torch.rsqrt(variance + self.eps)
            return (x - mean) * inverse, inverse
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * inverse, inverse

    def centre(self, y: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The mean-free part for LayerNorm, the input itself for RMSNorm."""
        return y - y.mean(-1, keepdim=True) if self.kind == "layer" else y


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One block of a model: its modules and their weights in one layout.

    Channels are ordered q heads, k heads, v heads; `n_channels = n_heads + 2 n_kv_heads`.
    """

    module: nn.Module
    family: Family
    n_heads: int
    n_kv_heads: int
    d_head: int
    attention_norm: Norm
    mlp_norm: Norm
    qkv: tuple[nn.Module, ...]
    out: nn.Module
    mlp: nn.Module
    q_norm: nn.Module | None
    k_norm: nn.Module | None
    scaling: float
    window: int | None

    @property
    def n_channels(self) -> int:
        return self.n_heads + 2 * self.n_kv_heads

    def channels(self, outputs: Sequence[Tensor]) -> Float[Tensor, "*batch n_channels d_head"]:
        """Outputs (or gradients) of the q/k/v projection modules in the common channel layout."""
        if len(outputs) == 3:
            return torch.cat([part.unflatten(-1, (-1, self.d_head)) for part in outputs], -2)
        fused: Tensor = outputs[0]
        if isinstance(self.family.qkv, Fused) and self.family.qkv.per_head:
            by_head: Tensor = fused.unflatten(-1, (self.n_heads, 3, self.d_head))
            return by_head.transpose(-3, -2).flatten(-3, -2)
        split: Tensor = fused.unflatten(-1, (-1, self.d_head))
        return split

    def qkv_weight(self) -> Float[Tensor, "d_model n_channels d_head"]:
        """Projection weights in the common channel layout."""
        return self.channels([_matrix(part).detach() for part in self.qkv])

    def qkv_bias(self) -> Float[Tensor, "n_channels d_head"] | None:
        """Projection biases in the common channel layout."""
        biases = [_bias(part) for part in self.qkv]
        if all(bias is None for bias in biases):
            return None
        filled = [
            _matrix(part).new_zeros(_matrix(part).shape[1]) if bias is None else bias.detach()
            for part, bias in zip(self.qkv, biases, strict=True)
        ]
        return self.channels(filled)

    def out_weight(self) -> Float[Tensor, "n_heads d_head d_model"]:
        """Output projection per head."""
        weight: Tensor = _matrix(self.out).detach().unflatten(0, (self.n_heads, self.d_head))
        return weight

    def out_bias(self) -> Float[Tensor, " d_model"] | None:
        """Output projection bias: part of the stream, of no source."""
        bias = _bias(self.out)
        return None if bias is None else bias.detach()

    def kv_head(self, head: int) -> int:
        """The key/value head that serves a query head."""
        return head * self.n_kv_heads // self.n_heads


class Model:
    """A supported transformer with its graph. Make one with `load_model`.

    Attributes:
        module: The native module, untouched.
        tokenizer: Its tokenizer, or None.
        family: The description that fits it.
        graph: Its residual-stream graph.
        id: Hub id, directory name, `mini`, or the class name of a live module.
    """

    def __init__(self, module: nn.Module, family: Family, *, tokenizer: Any = None, name: str) -> None:
        self.module = module
        self.family = family
        self.tokenizer = tokenizer
        self.id = name
        config: Config = module.config
        reason = family.refuse(config)
        if reason is not None:
            raise UnsupportedModelError(f"{type(module).__name__}: {reason}")
        self.n_heads = int(config.num_attention_heads)
        self.n_kv_heads = int(getattr(config, "num_key_value_heads", None) or self.n_heads)
        self.d_model = int(config.hidden_size)
        self.d_head = int(getattr(config, "head_dim", None) or self.d_model // self.n_heads)
        self.blocks = tuple(self._block(block) for block in _children(submodule(module, family.blocks)))
        self.n_layers = len(self.blocks)
        self.final_norm = Norm(module=submodule(module, family.final_norm), kind=family.norm)
        self.unembed_module = submodule(module, family.unembed)
        self.graph: Graph = build_graph(
            self.n_layers, self.n_heads, self.n_kv_heads, parallel=family.parallel(config)
        )
        self._hashed: tuple[tuple[tuple[int, int], ...], str] | None = None
        self.n_parameters = sum(parameter.numel() for parameter in module.parameters())
        for path, parameter in module.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise NonFiniteError(
                    f"weight {path!r} of {name} holds NaN or infinite values; reload or retrain the model"
                )

    def _block(self, block: nn.Module) -> Block:
        family = self.family
        attention = submodule(block, family.attention)
        window = getattr(attention, "sliding_window", None)
        config: Config = self.module.config
        if window is None and config.model_type == "mistral":
            window = getattr(config, "sliding_window", None)
        return Block(
            module=block,
            family=family,
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
            d_head=self.d_head,
            attention_norm=Norm(module=submodule(block, family.attention_norm), kind=family.norm),
            mlp_norm=Norm(module=submodule(block, family.mlp_norm), kind=family.norm),
            qkv=tuple(submodule(block, path) for path in family.qkv.paths),
            out=submodule(block, family.out),
            mlp=submodule(block, family.mlp),
            q_norm=_optional(block, family.q_norm),
            k_norm=_optional(block, family.k_norm),
            scaling=float(attention.scaling),  # type: ignore[arg-type]  # a float on every attention class served
            window=window,
        )

    @property
    def dtype(self) -> torch.dtype:
        """Number type of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def result_dtype(self) -> torch.dtype:
        """Number type of results: float64 for a float64 model, else float32."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    @property
    def n_vocab(self) -> int:
        """Rows of the token embedding."""
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]  # every pre-trained model class has it
        return int(embedding.weight.shape[0])

    @property
    def n_positions(self) -> int | None:
        """Longest prompt that can be read, for models with a table of positions; else None."""
        config: Config = self.module.config
        return int(config.max_position_embeddings) if self.family.learned_positions else None

    @property
    def weight_hash(self) -> str:
        """SHA-256 over the configuration and all parameters: names, shapes, types, bytes (16 hex digits).

        Made again after a parameter has changed in place.
        """
        parameters = sorted(self.module.named_parameters())
        state = tuple((parameter.data_ptr(), parameter._version) for _, parameter in parameters)
        if self._hashed is None or self._hashed[0] != state:
            config: Config = self.module.config
            facts = {key: value for key, value in config.to_dict().items() if key not in _NOT_IDENTITY}
            digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
            for name, parameter in parameters:
                digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
                digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
            self._hashed = (state, digest.hexdigest()[:16])
        return self._hashed[1]

    def __repr__(self) -> str:
        return (
            f"Model({self.id!r}, family={self.family.key!r}, n_layers={self.n_layers}, "
            f"n_heads={self.n_heads}, "
            f"d_model={self.d_model}, n_edges={self.graph.n_edges})"
        )

    def describe(self) -> dict[str, Any]:
        """Identity of the model as it enters provenance and reports."""
        return {
            "id": self.id,
            "family": self.family.key,
            "weight_hash": self.weight_hash,
            "dtype": str(self.dtype)[6:],
        }

    # ---- running ------------------------------------------------------------------------------

    def unembed(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of final-norm outputs."""
        logits: Tensor = self.unembed_module(hidden)
        return logits

    def read(
        self, hidden: Float[Tensor, "batch pos d_model"], positions: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch d_vocab"]:
        """Logits at one position per example."""
        return self.unembed(hidden[torch.arange(len(hidden), device=hidden.device), positions])

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        """Output of the final norm, by the native modules.

        Right padding needs no mask: a causal position never attends to later ones.
        """
        if self.module.training:
            raise InputError(
                f"{self.id} is in training mode, so dropout would change its numbers; call "
                "module.eval() first"
            )
        # A plain nn.Module to the type checker; every pre-trained model class has these.
        embedding = self.module.get_input_embeddings()  # type: ignore[operator]
        backbone = submodule(self.module, self.family.backbone)
        return backbone(inputs_embeds=embedding(tokens), use_cache=False).last_hidden_state  # type: ignore[no-any-return]

    def resume(
        self, hidden: Float[Tensor, "batch pos d_model"], trace: Trace, *, layer: int = 0
    ) -> Float[Tensor, "batch pos d_model"]:
        """Run the native blocks from `layer` on, with the arguments a traced pass gave them."""
        for block, (args, kwargs) in zip(self.blocks[layer:], trace.calls[layer:], strict=True):
            output = block.module(hidden, *args, **kwargs)
            hidden = output[0] if isinstance(output, tuple) else output
        final: Tensor = self.final_norm.module(hidden)
        return final

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Parameters ask for no gradient inside; a backward pass then costs about one forward pass."""
        asking = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        for parameter in asking:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in asking:
                parameter.requires_grad_(True)

    @contextmanager
    def tracing(
        self,
        *,
        sources: bool = True,
        gradients: bool = False,
        streams: bool = False,
        until: int | None = None,
    ) -> Iterator[Trace]:
        """Record the native pass made inside into the returned trace (one pass per trace).

        Args:
            sources: Keep what each source writes (`input`, `z`, `mlp`) and the block arguments.
            gradients: Keep what closed-form gradients need: norm inputs, projection outputs, and the
                gradients at projection and norm outputs once `backward` has run.
            streams: Keep the norm inputs and projection outputs.
            until: End the pass before this block; what lies behind it is not computed.
        """
        trace = Trace()
        streams = streams or gradients

        def catch(site: str, layer: int, part: int, tensor: Tensor) -> None:
            # A tensor hook, not a module backward hook: it sees exactly this tensor's gradient.
            if gradients and tensor.requires_grad:
                tensor.register_hook(
                    lambda gradient: trace.gradients.__setitem__((site, layer, part), gradient)
                )

        with ExitStack() as hooks:

            def on_input(module: nn.Module, function: Callable[..., object]) -> None:
                handle = module.register_forward_pre_hook(function, with_kwargs=True)
                hooks.callback(handle.remove)

            def on_output(module: nn.Module, function: Callable[..., None]) -> None:
                hooks.callback(module.register_forward_hook(function).remove)

            for layer, block in enumerate(self.blocks):
                if layer == until:
                    on_input(block.module, BlockCall(trace, layer, stop=True))
                    break
                if sources:
                    on_input(block.module, BlockCall(trace, layer, leaf=gradients and layer == 0))
                    on_input(block.out, lambda module, args, kwargs: trace.z.append(args[0].detach()))
                    on_output(block.mlp, lambda module, args, output: trace.mlp.append(output.detach()))
                if streams:
                    on_input(
                        block.attention_norm.module,
                        lambda module, args, kwargs: trace.attention_in.append(args[0].detach()),
                    )
                    on_input(
                        block.mlp_norm.module,
                        lambda module, args, kwargs: trace.mlp_in.append(args[0].detach()),
                    )
                    for part, projection in enumerate(block.qkv):
                        on_output(projection, ProjectionOutput(trace, layer, part, catch))
                    on_output(
                        block.mlp_norm.module,
                        lambda module, args, output, layer=layer: catch("mlp", layer, 0, output),
                    )
            if streams and until is None:
                on_output(self.final_norm.module, FinalOutput(trace, catch))
            try:
                yield trace
            except StopForward:
                assert until is not None


def _children(blocks: nn.Module) -> list[nn.Module]:
    return list(blocks.children())


def _optional(block: nn.Module, path: str | None) -> nn.Module | None:
    if path is None:
        return None
    return dict(block.named_modules()).get(path)
