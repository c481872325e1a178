"""What the image classifiers of timm share: how they are run and read, their sizes, and what is refused."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from assay.core.errors import UnsupportedModelError
from assay.models.family import Sizes, Vision, pair


def is_timm(module: nn.Module, classes: Collection[str]) -> bool:
    """Whether a module is of one of these classes of timm, or inherits; timm need not be importable."""
    return any(cls.__name__ in classes and cls.__module__.startswith("timm.") for cls in type(module).__mro__)


def why_refused(module: nn.Module) -> str | None:
    """The first thing that makes the stream something else than a sum of node outputs, or unreadable."""
    part: Any = module
    if getattr(part, "attn_pool", None) is not None:
        return "it pools with attention (attn_pool), a reader that the graph does not have"
    if part.global_pool not in ("token", "avg", "max", "avgmax"):
        return f"global_pool is {part.global_pool!r}; served are 'token', 'avg', 'max' and 'avgmax'"
    if isinstance(part.head, nn.Identity):
        return "it has no classification head (num_classes is 0); create it with one"
    if part.patch_embed.img_size is None or getattr(part, "dynamic_img_size", False):
        return "it takes images of any size; create it with a fixed img_size"
    if not isinstance(getattr(part, "patch_drop", None), nn.Identity | None):
        return "it drops patches (patch_drop); create it with patch_drop_rate=0"
    if part.grad_checkpointing:
        return "it runs its blocks twice (grad_checkpointing); call module.set_grad_checkpointing(False)"
    for number, block in enumerate(part.blocks):
        if (kind := type(block).__name__) != "Block":
            return (
                f"blocks.{number} is a {kind}; supported are blocks that normalise before attention and MLP"
            )
        attention = block.attn
        if (kind := type(attention).__name__) != "Attention":
            return f"blocks.{number} has a {kind}; supported is plain multi-head attention"
        if getattr(attention, "gate", None) is not None:
            return f"blocks.{number} gates its attention output (attn.gate)"
        if not isinstance(getattr(attention, "norm", nn.Identity()), nn.Identity):
            return f"blocks.{number} normalises the outputs of all its heads together (attn.norm)"
        if not isinstance(block.norm1, nn.LayerNorm):
            return f"blocks.{number} has norm {type(block.norm1).__name__}; supported is LayerNorm"
    return None


def gated(block: nn.Module) -> str | None:
    """Where a gated MLP's product is read: its norm, which is a placeholder where it has none."""
    kind = type(block.get_submodule("mlp")).__name__
    if kind not in ("Mlp", "GluMlp", "SwiGLU"):
        raise UnsupportedModelError(
            f"the MLP is a {kind}, which is not supported, because the place of its gate is unknown; "
            "supported are Mlp, GluMlp and SwiGLU"
        )
    return None if kind == "Mlp" else "mlp.norm"


def sizes(module: Any) -> Sizes:
    """Heads and widths, from the first block."""
    block = module.blocks[0]
    out, n_heads = block.attn.proj, int(block.attn.num_heads)
    return Sizes(
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_model=int(out.out_features),
        d_head=int(out.in_features) // n_heads,
    )


def facts(module: nn.Module, kind: str) -> dict[str, Any]:
    """What, besides the weights, decides the numbers of a module of a class of timm."""
    part: Any = module
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
        "image_size": list(_image_size(module)),
        "patch": list(part.patch_embed.patch_size),
        "prefix": int(part.num_prefix_tokens),
        "no_embed_class": bool(getattr(part, "no_embed_class", False)),
        "pool_include_prefix": bool(getattr(part, "pool_include_prefix", False)),
    }


def _image_size(module: nn.Module) -> tuple[int, int]:
    part: Any = module
    return pair(part.patch_embed.img_size)


def _n_tokens(module: nn.Module) -> int:
    part: Any = module
    return int(part.patch_embed.num_patches) + int(part.num_prefix_tokens)


def _classes(module: nn.Module) -> tuple[str, ...] | None:
    stored = getattr(module, "pretrained_cfg", None)
    names = stored.get("label_names") if isinstance(stored, Mapping) else None
    n_classes = int(module.num_classes)  # type: ignore[arg-type]  # an int on every class served
    if isinstance(names, Mapping):  # class number, a string once it has been through JSON, to name
        numbered = {int(number): name for number, name in names.items()}
        names = [numbered[number] for number in range(n_classes) if number in numbered]
    return tuple(str(name) for name in names) if names and len(names) == n_classes else None


def preprocessing(module: nn.Module) -> dict[str, Any] | None:
    """What a timm model knows about its images, with the size it takes now; None if it knows nothing."""
    stored = getattr(module, "pretrained_cfg", None)
    if not isinstance(stored, Mapping) or not stored:
        return None
    kept = {key: value for key, value in stored.items() if key not in ("file", "source")}  # where it lay
    return {**kept, "input_size": [3, *_image_size(module)]}


TIMM_VISION = Vision(
    hidden=lambda module, images: module.forward_features(images),  # type: ignore[operator]  # a method of timm's
    logits=lambda module, hidden: module.forward_head(hidden),  # type: ignore[operator]  # likewise
    features=lambda module, hidden: module.forward_head(hidden, pre_logits=True),  # type: ignore[operator]  # likewise
    pools=lambda module: module.global_pool != "token" or hasattr(module, "head_dist"),
    image_size=_image_size,
    n_tokens=_n_tokens,
    n_classes=lambda module: int(module.num_classes),  # type: ignore[arg-type]  # an int there
    classes=_classes,
)
