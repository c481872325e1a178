"""What a family of models is: where its parts are, and the sizes in its configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError


# Entries of a configuration that change no number the model computes.
_NOT_IDENTITY = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})


Config = Any  # a Hugging Face configuration: attributes differ per family


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers that shape the graph of one model."""

    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int


def config_sizes(module: nn.Module) -> Sizes:
    """Sizes as a Hugging Face configuration states them."""
    config: Config = module.config
    n_heads, d_model = int(config.num_attention_heads), int(config.hidden_size)
    return Sizes(
        n_heads=n_heads,
        n_kv_heads=int(getattr(config, "num_key_value_heads", None) or n_heads),
        d_model=d_model,
        d_head=int(getattr(config, "head_dim", None) or d_model // n_heads),
    )


def config_facts(module: nn.Module) -> dict[str, Any]:
    """Configuration entries that change what the model computes; part of its hash."""
    config: Config = module.config
    return {key: value for key, value in config.to_dict().items() if key not in _NOT_IDENTITY}


@dataclass(frozen=True, kw_only=True)
class Vision:
    """How an image classifier is run and read; every entry is a function of the native module.

    Attributes:
        hidden: Images `[batch, 3, h, w]` to the final norm's output at every position.
        logits: That output, `[batch, pos, d_model]`, to logits. A model that reads position 0 alone is also
            given that one position.
        features: That output to what the classifier reads, `[batch, d_features]`.
        pools: Whether more positions than the first are read (mean pooling, distillation token).
        image_size: Height and width it takes.
        n_tokens: Positions of the stream: patches and prefix tokens.
        n_classes: Width of the logits.
        classes: Names of the classes, label 0 first; None if the model does not know them.
    """

    hidden: Callable[[nn.Module, Tensor], Tensor]
    logits: Callable[[nn.Module, Tensor], Tensor]
    features: Callable[[nn.Module, Tensor], Tensor]
    pools: Callable[[nn.Module], bool]
    image_size: Callable[[nn.Module], tuple[int, int]]
    n_tokens: Callable[[nn.Module], int]
    n_classes: Callable[[nn.Module], int]
    classes: Callable[[nn.Module], tuple[str, ...] | None]


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
        backbone: The module whose call runs embeddings, blocks and the final norm (text).
        blocks: The list of blocks.
        attention_norm, mlp_norm: Norms before attention and MLP.
        final_norm: Norm before the unembedding.
        unembed: Module from the normalised stream (for images: from the features) to logits.
        attention: The attention module.
        qkv: Layout of the query/key/value projections.
        out: Output projection of the attention.
        mlp: The MLP module.
        mlps: False where that module and its norm are absent or inert: it adds zeros to the stream, and
            the graph has no MLPs.
        activation: The module that is the MLP's activation function; None where no description says it.
        gated: From a block to the path of the module that reads the product of a gated MLP's two branches;
            None for an MLP without a gate. Raises UnsupportedModelError for an MLP it does not know.
        norm: Kind of the norms.
        learned_positions: Whether positions are rows of a table, so that longer prompts cannot be read.
        q_norm, k_norm: Per-head norms after the projections, if any.
        attention_scale, mlp_scale: Modules that scale a branch before it is added (LayerScale), if any.
        scaling: Attribute of the attention module: what query-key products are multiplied by.
        parallel: Whether attention and MLP read the same stream.
        refuse: Reason why a module of this family is not served, or None.
        sizes: Heads and widths of a module.
        facts: What, besides the weights, decides a module's numbers; JSON values.
        vision: How to run and read an image classifier; None for language models.
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
    mlps: bool = True
    activation: str | None = None
    gated: Callable[[nn.Module], str | None] = lambda block: None
    learned_positions: bool = False
    q_norm: str | None = None
    k_norm: str | None = None
    attention_scale: str | None = None
    mlp_scale: str | None = None
    scaling: str = "scaling"
    parallel: Callable[[nn.Module], bool] = lambda module: False
    refuse: Callable[[nn.Module], str | None] = lambda module: None
    sizes: Callable[[nn.Module], Sizes] = config_sizes
    facts: Callable[[nn.Module], dict[str, Any]] = config_facts
    vision: Vision | None = None

    @property
    def summary(self) -> str:
        """What it serves, in a line."""
        kind = "decoders" if self.vision is None else "image classifiers"
        if not self.model_types:
            return f"timm's VisionTransformer: {kind} with any of its poolings but attention."
        return f"Hugging Face {kind} of type {', '.join(self.model_types)}."


def submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at an attribute path; an error that names the first missing part otherwise."""
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"{type(root).__name__} has no module {path!r} ({error}); its layout differs from the "
            "description of its family"
        ) from error
