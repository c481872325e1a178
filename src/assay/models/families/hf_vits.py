"""Image classifiers of Hugging Face: ViT, DeiT, DINOv2, and the towers of CLIP and SigLIP."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.models.adapter import FAMILIES
from assay.models.family import Config, Family, Separate, Sizes, Vision, config_facts, config_sizes, pair


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How one class of classifiers reads the final stream.

    Attributes:
        backbone: Its module whose `last_hidden_state` that is.
        heads: Its classifiers, over which logits are averaged.
        features: From the configuration and the final stream to what each classifier reads.
        pools: Whether more positions than the first are read.
        prefix: From the configuration to how many positions come before those of the patches.
    """

    backbone: str
    heads: tuple[str, ...] = ("classifier",)
    features: Callable[[Config, Tensor], tuple[Tensor, ...]] = lambda config, hidden: (hidden[:, 0],)
    pools: bool = False
    prefix: Callable[[Config], int] = lambda config: 1


def _dino_features(config: Config, hidden: Tensor) -> tuple[Tensor, ...]:
    """CLS beside the mean of the patches; registers are not read."""
    return (torch.cat([hidden[:, 0], hidden[:, _dino_prefix(config) :].mean(1)], 1),)


def _dino_prefix(config: Config) -> int:
    return 1 + int(getattr(config, "num_register_tokens", 0))


_DINO_READING = _Reading(backbone="dinov2", features=_dino_features, pools=True, prefix=_dino_prefix)
_READINGS = {
    "ViTForImageClassification": _Reading(backbone="vit"),
    "DeiTForImageClassification": _Reading(backbone="deit", prefix=lambda config: 2),
    "DeiTForImageClassificationWithTeacher": _Reading(
        backbone="deit",
        heads=("cls_classifier", "distillation_classifier"),
        features=lambda config, hidden: (hidden[:, 0], hidden[:, 1]),
        pools=True,
        prefix=lambda config: 2,
    ),
    "Dinov2ForImageClassification": _DINO_READING,
    "Dinov2WithRegistersForImageClassification": replace(_DINO_READING, backbone="dinov2_with_registers"),
    "CLIPForImageClassification": _Reading(
        backbone="vision_model", features=lambda config, hidden: (hidden[:, 1:].mean(1),), pools=True
    ),
    "SiglipForImageClassification": _Reading(
        backbone="vision_model",
        features=lambda config, hidden: (hidden.mean(1),),
        pools=True,
        prefix=lambda config: 0,
    ),
}


def _reading(module: nn.Module) -> _Reading:
    """That of the first class served that a module is, or inherits from."""
    return next(_READINGS[cls.__name__] for cls in type(module).__mro__ if cls.__name__ in _READINGS)


def _refuse(module: nn.Module) -> str | None:
    if not any(cls.__name__ in _READINGS for cls in type(module).__mro__):
        return f"it is not an image classifier; supported classes: {', '.join(_READINGS)}"
    if any(isinstance(module.get_submodule(head), nn.Identity) for head in _reading(module).heads):
        return "it has no classification head (num_labels is 0); save it with one"
    return None


def _config(module: nn.Module) -> Config:
    """The configuration of the vision tower."""
    config: Config = module.config
    return getattr(config, "vision_config", config)


def _hidden(module: nn.Module, images: Tensor) -> Tensor:
    hidden: Tensor = module.get_submodule(_reading(module).backbone)(images).last_hidden_state
    return hidden


def _features(module: nn.Module, hidden: Tensor) -> Tensor:
    parts = _reading(module).features(_config(module), hidden)
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


def _logits(module: nn.Module, hidden: Tensor) -> Tensor:
    reading = _reading(module)
    read = zip(reading.heads, reading.features(_config(module), hidden), strict=True)
    parts: list[Tensor] = [module.get_submodule(head)(part).to(hidden.device) for head, part in read]
    return parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)


def _n_tokens(module: nn.Module) -> int:
    config = _config(module)
    height, width = pair(config.image_size)
    down, across = pair(config.patch_size)
    return (height // down) * (width // across) + _reading(module).prefix(config)


def _classes(module: nn.Module) -> tuple[str, ...] | None:
    config: Config = module.config
    names = tuple(str(config.id2label[index]) for index in range(int(config.num_labels)))
    made_up = all(name == f"LABEL_{index}" for index, name in enumerate(names))
    return None if made_up else names


def _facts(module: nn.Module) -> dict[str, Any]:
    """The configuration without class names, which change no number."""
    return {key: v for key, v in config_facts(module).items() if key not in ("id2label", "label2id")}


def _sizes(module: nn.Module) -> Sizes:
    return config_sizes(_config(module))


_VIT = Family(
    key="vit",
    serves="ViT",
    model_types=("vit",),
    backbone="vit",
    blocks="vit.layers",
    attention_norm="layernorm_before",
    mlp_norm="layernorm_after",
    final_norm="vit.layernorm",
    unembed="classifier",
    attention="attention",
    qkv=Separate(q="attention.q_proj", k="attention.k_proj", v="attention.v_proj"),
    out="attention.o_proj",
    mlp="mlp",
    activation="mlp.activation_fn",
    norm="layer",
    refuse=_refuse,
    sizes=_sizes,
    facts=_facts,
    vision=Vision(
        hidden=_hidden,
        logits=_logits,
        features=_features,
        pools=lambda module: _reading(module).pools,
        image_size=lambda module: pair(_config(module).image_size),
        n_tokens=_n_tokens,
        n_classes=lambda module: int(module.config.num_labels),  # type: ignore[union-attr, arg-type]  # a configuration
        classes=_classes,
    ),
)
_CLIP = replace(
    _VIT,
    key="clip",
    serves="CLIP, vision tower",
    model_types=("clip",),
    backbone="vision_model",
    blocks="vision_model.encoder.layers",
    attention_norm="layer_norm1",
    mlp_norm="layer_norm2",
    final_norm=None,
    attention="self_attn",
    qkv=Separate(q="self_attn.q_proj", k="self_attn.k_proj", v="self_attn.v_proj"),
    out="self_attn.out_proj",
    scaling=lambda attention: attention.scale,
)


def _dino(backbone: str) -> Family:
    return replace(
        _VIT,
        key=backbone.replace("_", "-"),
        serves="DINOv2" + " with registers" * backbone.endswith("registers"),
        model_types=(backbone,),
        backbone=backbone,
        blocks=f"{backbone}.encoder.layer",
        attention_norm="norm1",
        mlp_norm="norm2",
        final_norm=f"{backbone}.layernorm",
        attention_scale="layer_scale1",
        mlp_scale="layer_scale2",
        variant=lambda module: {"activation": None} if module.config.use_swiglu_ffn else {},
    )


for _family in (
    _VIT,
    replace(
        _VIT,
        key="deit",
        serves="DeiT",
        model_types=("deit",),
        backbone="deit",
        blocks="deit.layers",
        final_norm="deit.layernorm",
    ),
    _dino("dinov2"),
    _dino("dinov2_with_registers"),
    _CLIP,
    replace(
        _CLIP,
        key="siglip",
        serves="SigLIP, vision tower",
        model_types=("siglip",),
        final_norm="vision_model.post_layernorm",
    ),
):
    FAMILIES.add(_family.key, _family)
