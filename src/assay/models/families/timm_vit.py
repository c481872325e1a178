"""timm's `VisionTransformer`."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.models.adapter import FAMILIES
from assay.models.family import Family, Fused, Sizes, Vision, pair


def is_timm_vit(module: nn.Module) -> bool:
    """Whether a module is timm's `VisionTransformer` or inherits from it; timm need not be importable."""
    return any(
        cls.__name__ == "VisionTransformer" and cls.__module__.startswith("timm.")
        for cls in type(module).__mro__
    )


def _refuse_timm(module: nn.Module) -> str | None:
    """The first thing that makes the stream something else than a sum of node outputs, or unreadable."""
    part: Any = module
    if getattr(part, "attn_pool", None) is not None:
        return "it pools with attention (attn_pool), a reader that the graph does not have"
    if part.global_pool not in ("token", "avg", "max", "avgmax"):
        return f"global_pool is {part.global_pool!r}; served are 'token', 'avg', 'max' and 'avgmax'"
    if isinstance(part.head, nn.Identity):
        return "it has no classification head (num_classes is 0); create it with one"
    if part.patch_embed.img_size is None or part.dynamic_img_size:
        return "it takes images of any size; create it with a fixed img_size"
    if type(part.patch_drop).__name__ != "Identity":
        return "it drops patches (patch_drop); create it with patch_drop_rate=0"
    if part.grad_checkpointing:
        return "it runs its blocks twice (grad_checkpointing); call module.set_grad_checkpointing(False)"
    for number, block in enumerate(part.blocks):
        reason = _refuse_block(block)
        if reason is not None:
            return f"blocks.{number} {reason}"
    return None


def _refuse_block(block: Any) -> str | None:
    if type(block).__name__ != "Block":
        return f"is a {type(block).__name__}; supported are blocks that normalise before attention and MLP"
    attention = block.attn
    if type(attention).__name__ != "Attention":
        return f"has a {type(attention).__name__}; supported is plain multi-head attention"
    if not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):
        return "normalises all heads together before the output projection (attn.norm)"
    if getattr(attention, "gate", None) is not None:
        return "gates its attention output (attn.gate)"
    if not isinstance(block.norm1, nn.LayerNorm):
        return f"has norm {type(block.norm1).__name__}; supported is LayerNorm"
    return None


def _timm_gated(block: nn.Module) -> str | None:
    """Where a gated MLP's product is read: its norm, which is a placeholder where it has none."""
    kind = type(block.get_submodule("mlp")).__name__
    if kind not in ("Mlp", "GluMlp", "SwiGLU"):
        raise UnsupportedModelError(
            f"the MLP is a {kind}, which is not supported, because the place of its gate is unknown; "
            "supported are Mlp, GluMlp and SwiGLU"
        )
    return None if kind == "Mlp" else "mlp.norm"


def _timm_sizes(module: nn.Module) -> Sizes:
    attention: Any = module.get_submodule("blocks.0.attn")
    return Sizes(
        n_heads=int(attention.num_heads),
        n_kv_heads=int(attention.num_heads),
        d_model=int(attention.qkv.in_features),
        d_head=int(attention.head_dim),
    )


def _timm_facts(module: nn.Module) -> dict[str, Any]:
    part: Any = module
    kind: Literal["VisionTransformerDistilled", "VisionTransformer"] = (
        "VisionTransformerDistilled" if hasattr(module, "head_dist") else "VisionTransformer"
    )
    first = part.blocks[0]
    return {
        "class": kind,
        "depth": len(part.blocks),
        "heads": int(first.attn.num_heads),
        "mlp": type(first.mlp).__name__,
        "activation": str(first.mlp.act),
        "gate_last": bool(getattr(first.mlp, "gate_last", False)),
        "pool": part.global_pool,
        "eps": float(first.norm1.eps),
        "image_size": list(_timm_image_size(module)),
        "patch": list(part.patch_embed.patch_size),
        "prefix": int(part.num_prefix_tokens),
        "no_embed_class": bool(part.no_embed_class),
        "pool_include_prefix": bool(getattr(part, "pool_include_prefix", False)),
    }


def _timm_image_size(module: nn.Module) -> tuple[int, int]:
    part: Any = module
    return pair(part.patch_embed.img_size)


def _timm_tokens(module: nn.Module) -> int:
    part: Any = module
    return int(part.patch_embed.num_patches) + int(part.num_prefix_tokens)


def _timm_classes(module: nn.Module) -> tuple[str, ...] | None:
    stored = getattr(module, "pretrained_cfg", None)
    names = stored.get("label_names") if isinstance(stored, Mapping) else None
    n_classes = int(module.num_classes)  # type: ignore[arg-type]  # an int on every VisionTransformer
    if isinstance(names, Mapping):  # class number, a string once it has been through JSON, to name
        numbered = {int(number): name for number, name in names.items()}
        names = [numbered[number] for number in range(n_classes) if number in numbered]
    return tuple(str(name) for name in names) if names and len(names) == n_classes else None


def timm_preprocessing(module: nn.Module) -> dict[str, Any] | None:
    """What a timm model knows about its images, with the size it takes now; None if it knows nothing."""
    stored = getattr(module, "pretrained_cfg", None)
    if not isinstance(stored, Mapping) or not stored:
        return None
    kept = {key: value for key, value in stored.items() if key not in ("file", "source")}  # where it lay
    return {**kept, "input_size": [3, *_timm_image_size(module)]}


FAMILIES.add(
    "timm-vit",
    Family(
        key="timm-vit",
        serves="timm's VisionTransformer, any pooling but attention",
        model_types=(),
        backbone="",
        blocks="blocks",
        attention_norm="norm1",
        mlp_norm="norm2",
        final_norm="norm",
        unembed="head",
        attention="attn",
        qkv=Fused(path="attn.qkv"),
        out="attn.proj",
        mlp="mlp",
        activation="mlp.act",
        gated=_timm_gated,
        norm="layer",
        q_norm="attn.q_norm",
        k_norm="attn.k_norm",
        attention_scale="ls1",
        mlp_scale="ls2",
        scaling=lambda attention: attention.scale,
        refuse=_refuse_timm,
        sizes=_timm_sizes,
        facts=_timm_facts,
        vision=Vision(
            hidden=lambda module, images: module.forward_features(images),  # type: ignore[operator]  # a method of timm's
            logits=lambda module, hidden: module.forward_head(hidden),  # type: ignore[operator]  # likewise
            features=lambda module, hidden: module.forward_head(hidden, pre_logits=True),  # type: ignore[operator]  # likewise
            pools=lambda module: module.global_pool != "token" or hasattr(module, "head_dist"),
            image_size=_timm_image_size,
            n_tokens=_timm_tokens,
            n_classes=lambda module: int(module.num_classes),  # type: ignore[arg-type]  # an int there
            classes=_timm_classes,
        ),
    ),
)


def check_vision_weights(module: nn.Module, name: str) -> None:
    """Refuse images of another number of channels than three."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    channels = convolutions[0].in_channels if convolutions else 3
    if channels != 3:
        raise UnsupportedModelError(
            f"{name} reads images of {channels} channels, but image tasks are RGB, 3 channels"
        )


def head_shape(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the weights of a plain `VisionTransformer` decide."""
    arguments: dict[str, Any] = {}
    if "head.weight" in weights:
        arguments["num_classes"] = int(weights["head.weight"].shape[0])
    if "fc_norm.weight" in weights and "norm.weight" not in weights:
        arguments["global_pool"] = "avg"
    return arguments


def image_side(weights: Mapping[str, Tensor], template: nn.Module) -> int | None:
    """Side of square images that the position table in `weights` is for; None where it fits the template."""
    mine: Any = template
    table = weights.get("pos_embed")
    if table is None or mine.pos_embed is None or table.shape == mine.pos_embed.shape:
        return None
    prefix = 0 if mine.no_embed_class else int(mine.num_prefix_tokens)
    side = round((table.shape[1] - prefix) ** 0.5)
    if side * side + prefix != table.shape[1]:
        return None
    down, _ = pair(mine.patch_embed.patch_size)
    pixels: int = side * down
    return pixels
