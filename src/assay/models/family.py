"""What a family of models is: where its parts are, the sizes in its configuration, how images are read."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.core.registry import Registry
from assay.models.attention import Tables


# Entries of a configuration that change no number the model computes.
_NOT_IDENTITY = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})


PostNorm = Literal["exact", "eap-ig"]  # see `Model.treating`

Config = Any  # a Hugging Face configuration: attributes differ per family


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers that shape the graph of one model."""

    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int


def _cross_attention(module: nn.Module) -> str | None:
    asked = getattr(getattr(module, "config", None), "add_cross_attention", False)
    return "cross-attention adds a second reader per block that the graph does not have" if asked else None


def config_sizes(config: Config) -> Sizes:
    """Sizes as a Hugging Face configuration states them."""
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


def height_and_width(size: Any) -> tuple[int, int]:
    """A height and width, which many configurations state as one number."""
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def tower_config(module: Any) -> Config:
    """The configuration of the vision tower."""
    return getattr(module.config, "vision_config", module.config)


def _mean(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


@dataclass(frozen=True, kw_only=True)
class Vision:
    """How an image classifier is run and read; as it stands, one of transformers.

    Attributes:
        backbone: Its module whose `last_hidden_state` is the final norm's output at every position.
        heads: Its classifiers, over which logits are averaged.
        parts: From the module and that output to what each classifier reads.
        pooled: Whether more positions than the first are read (mean pooling, distillation token).
        n_prefix: From the configuration to how many positions come before those of the patches.
    """

    backbone: str
    heads: tuple[str, ...] = ("classifier",)
    parts: Callable[[Any, Tensor], tuple[Tensor, ...]] = lambda module, hidden: (hidden[:, 0],)
    pooled: bool = False
    n_prefix: Callable[[Config], int] = lambda config: 1

    def refuse(self, module: Any) -> str | None:
        """Why a module is not such a classifier, or None."""
        for name in self.heads:
            head = getattr(module, name, None)
            if head is None:
                return f"it is not an image classifier; supported are models with a module {name!r}"
            if isinstance(head, nn.Identity):
                return "it has no classification head (num_labels is 0); save it with one"
        return None

    def hidden(self, module: Any, images: Tensor) -> Tensor:
        """Images `[batch, 3, h, w]` to the final norm's output at every position."""
        return module.get_submodule(self.backbone)(images).last_hidden_state  # type: ignore[no-any-return]  # a tensor

    def features(self, module: Any, hidden: Tensor) -> Tensor:
        """That output to what the classifier reads, `[batch, d_features]`; the mean if there are several."""
        return _mean(list(self.parts(module, hidden)))

    def logits(self, module: Any, hidden: Tensor) -> Tensor:
        """That output to logits. A model that reads position 0 alone is also given that one position."""
        read = zip(self.heads, self.parts(module, hidden), strict=True)
        return _mean([module.get_submodule(head)(part).to(hidden.device) for head, part in read])

    def pools(self, module: Any) -> bool:
        """Whether more positions than the first are read."""
        return self.pooled

    def image_size(self, module: Any) -> tuple[int, int]:
        """Height and width it takes."""
        return height_and_width(tower_config(module).image_size)

    def n_tokens(self, module: Any) -> int:
        """Positions of the stream: patches and prefix tokens."""
        config = tower_config(module)
        (height, width), (down, across) = map(height_and_width, (config.image_size, config.patch_size))
        return (height // down) * (width // across) + self.n_prefix(config)

    def n_classes(self, module: Any) -> int:
        """Width of the logits."""
        return int(module.config.num_labels)

    def classes(self, module: Any) -> tuple[str, ...] | None:
        """Names of the classes, label 0 first; None if the model does not know them."""
        names = tuple(str(module.config.id2label[index]) for index in range(self.n_classes(module)))
        made_up = all(name == f"LABEL_{index}" for index, name in enumerate(names))
        return None if made_up else names


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the parts of one family of transformers are.

    Paths are attribute paths; those of norms, projections and MLP start at a block, the others at
    the module. Adding a family is one of these under `FAMILIES` and nothing else.

    Attributes:
        key: Name of the description.
        serves: Names of published models of this layout.
        model_types: `config.model_type` values it serves.
        classes: Names of the classes of timm it serves, which have no configuration.
        backbone: The module whose call runs embeddings, blocks and the final norm (text).
        blocks: The list of blocks.
        attention_norm, mlp_norm: Norms before attention and MLP; None where the stream itself is read. The
            same path twice: one norm serves both.
        final_norm: Norm before the unembedding; None if there is none.
        unembed: Module from the normalised stream (for images: from the features) to logits.
        attention: The attention module.
        qkv: The three projections of queries, keys and values, or the one module of all. Each is head-major;
            columns of one module are ordered (q|k|v, head, c).
        by_group: Whether a single module has each key/value head beside the queries that read it: columns
            ordered (key/value head, queries|k|v, c).
        out: Output projection of the attention.
        mlp: The module that reads what the MLP reads.
        norm: Kind of the norms; `rms1` is an RMSNorm whose gain is 1 + weight.
        mlps: False where the MLP and its norm are absent or inert: it adds zeros to the stream, and the graph
            has no MLPs.
        mlp_out: The module whose output the MLP adds to the stream, where it is not `mlp`.
        run_mlp: From a block and what its MLP reads, `[1, tokens, d_model]`, to what `mlp_out` gives, where
            that is not calling `mlp`.
        activation: The module that is the MLP's activation function; None where no description says it.
        gated: From a block to the path of the module that reads the product of a gated MLP's two branches;
            None for an MLP without a gate. Raises UnsupportedModelError for an MLP it does not know.
        overwrites: Whether a block changes in place what a projection or its MLP gave.
        head: From the module and normalised stream to logits, where that is not calling `unembed`.
        learned_positions: Whether positions are rows of a table, so that longer prompts cannot be read.
        q_norm, k_norm: Norms of queries and keys behind their projections, if any.
        norms_over: What these see as one vector; see `HeadNorm`.
        attention_scale: Module that scales the attention before it is added (LayerScale), if any.
        branch_norm: Norm of what the heads of a block write together, before it is added; if any.
        mlp_scale: Module that scales or normalises what the MLP writes before it is added, if any.
        scaling: From the attention module to the factor of query-key products.
        window: From a module and the number of a block to how many positions a query sees; None: all.
        softcap: From a module to the cap on scaled products, or None.
        table: From a module and the number of a block to the kind of its rotary tables; None: it does not
            rotate.
        tables: From a block and the arguments of its call to its rotary tables.
        adjacent: Whether rotated entries stand side by side; see `rotate`.
        position_bias: From a module and the number of a block to a function like `AttentionRule.bias`, or
            None.
        parallel: Whether attention and MLP read the same stream.
        variant: Entries of this description that depend on a module's configuration.
        refuse: Reason why a module of this family is not served, or None.
        sizes: Heads and widths of a module.
        facts: What, besides the weights, decides a module's numbers; JSON values.
        vision: How to run and read an image classifier; None for language models.
    """

    key: str
    serves: str
    model_types: tuple[str, ...]
    backbone: str
    blocks: str
    attention_norm: str | None
    mlp_norm: str | None
    final_norm: str | None
    unembed: str
    attention: str
    qkv: tuple[str, ...]
    out: str
    mlp: str
    norm: Literal["layer", "rms", "rms1"]
    by_group: bool = False
    mlps: bool = True
    mlp_out: str | None = None
    run_mlp: Callable[[nn.Module, Tensor], Tensor] | None = None
    activation: str | None = None
    gated: Callable[[nn.Module], str | None] = lambda block: None
    overwrites: bool = False
    head: Callable[[nn.Module, Tensor], Tensor] | None = None
    learned_positions: bool = False
    q_norm: str | None = None
    k_norm: str | None = None
    norms_over: Literal["head", "own", "block"] = "head"
    attention_scale: str | None = None
    branch_norm: str | None = None
    mlp_scale: str | None = None
    scaling: Callable[[Any], float] = lambda attention: attention.scaling
    window: Callable[[Any, int], int | None] = lambda module, layer: None
    softcap: Callable[[Any], float | None] = lambda module: None
    table: Callable[[Any, int], Hashable | None] = lambda module, layer: None
    tables: Callable[[nn.Module, Mapping[str, Any]], Tables] = lambda block, arguments: arguments[
        "position_embeddings"
    ]
    adjacent: bool = False
    position_bias: Callable[[Any, int], Callable[[int], Tensor] | None] = lambda module, layer: None
    parallel: Callable[[Any], bool] = lambda module: False
    variant: Callable[[Any], Mapping[str, Any]] = lambda module: {}
    refuse: Callable[[nn.Module], str | None] = _cross_attention
    sizes: Callable[[Any], Sizes] = lambda module: config_sizes(module.config)
    facts: Callable[[nn.Module], dict[str, Any]] = config_facts
    vision: Vision | None = None
    classes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it serves, in a line."""
        types = f" (type {', '.join(self.model_types)})" if self.model_types else ""
        return f"{self.serves}{types}."

    @property
    def reads(self) -> str:
        """`prompts` or `images`."""
        return "prompts" if self.vision is None else "images"


FAMILIES: Registry[Family] = Registry("family", plural="families", holds=Family)


def serve(family: Family) -> Family:
    """Serve models of a family."""
    return FAMILIES.add(family.key, family)


def like(base: Family, model_type: str, serves: str, **changes: Any) -> Family:
    """Serve models of one type by the description of another, but for some entries."""
    own = {"key": model_type.replace("_", "-"), "serves": serves, "model_types": (model_type,)}
    return serve(replace(base, **{**own, **changes}))


def home_of(root: nn.Module) -> torch.device:
    """The device of a model whose parts may lie on several: that of its first weight, the embedding.

    Inputs, what passes leave behind, sums of gradients and weights in closed forms are there. Native modules
    are given tensors from there (accelerate's hooks take them to the modules) and their outputs come back.
    """
    return next(root.parameters()).device


def submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at an attribute path; an error that names the first missing part otherwise."""
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise UnsupportedModelError(
            f"{type(root).__name__} has no module {path!r} ({error}); its layout differs from the "
            "description of its family"
        ) from error
