"""Which family a module or a configuration belongs to, or why it belongs to none."""

from typing import Any

from torch import nn

import assay.models.decoders
import assay.models.vision  # noqa: F401  # both register their descriptions
from assay.core.errors import UnsupportedModelError, near_matches
from assay.core.untrusted import printable
from assay.models.family import FAMILIES, Config, Family


# Why models have no stream from input to output -> starts of their model types and classes of timm.
_NO_STREAM = {
    "it normalises after the addition (post-norm)": ("bert", "roberta", "distilbert", "openai-gpt"),
    "its stages merge patches, so the stream changes its length and width": ("swin",),
    "its layers carry a state from position to position": ("mamba", "rwkv", "falcon_mamba"),
    "some of its layers carry a state from position to position": ("jamba", "bamba", "recurrent_gemma"),
}


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module; timm need not be importable.

    Raises:
        UnsupportedModelError: Naming the module and why it is not served, or the nearest model type.
    """
    of_timm = {cls.__name__ for cls in type(module).__mro__ if cls.__module__.startswith("timm.")}
    config: Config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    for family in FAMILIES.values():
        if of_timm & set(family.classes) or model_type in family.model_types:
            return family
    name = type(module).__name__
    raise _unknown(name, model_type, kind=model_type or name, config=getattr(config, "__dict__", {}))


def family_of_type(model_type: object) -> Family | None:
    """The description of a Hugging Face model type; None if there is none."""
    return next((family for family in FAMILIES.values() if model_type in family.model_types), None)


def refuse_config(config: dict[str, Any], location: str) -> None:
    """Refuse a `config.json` of a model that is not served, before its weights are fetched or read.

    Raises:
        UnsupportedModelError: For quantised weights, a post-norm layout or an unknown model type.
    """
    for field in ("quantization_config", "compression_config"):
        if config.get(field) is not None:
            raise UnsupportedModelError(
                f"{location}: its configuration has {field}, so the stored weights differ from the numbers "
                "it computes with; dequantise it (model.dequantize() of transformers) and save it again"
            )
    model_type = config.get("model_type")
    if isinstance(model_type, str) and family_of_type(model_type) is None:
        raise _unknown(location, model_type, kind=model_type, config=config)


def _unknown(what: str, model_type: object, *, kind: str, config: dict[str, Any]) -> UnsupportedModelError:
    """The error for a model without a description: the reason, or the nearest type that has one."""
    reason = next((why for why, starts in _NO_STREAM.items() if kind.lower().startswith(starts)), None)
    if reason is None and config.get("is_encoder_decoder"):
        reason = "it is an encoder-decoder, where the decoder reads a second stream"
    if reason is not None:
        return UnsupportedModelError(
            f"{what}: {reason}. The residual stream is not a sum of node outputs, so it has no graph here"
        )
    served = sorted(name for family in FAMILIES.values() for name in family.model_types)
    of_timm = sorted(name for family in FAMILIES.values() for name in family.classes)
    near = near_matches(model_type, served, limit=1) if isinstance(model_type, str) else ()
    return UnsupportedModelError(
        f"{what} (model type {printable(repr(model_type))[:80]}) is not supported; supported model types: "
        f"{', '.join(served)}, and timm's {', '.join(of_timm)}."
        + (f" Nearest by name: {near[0]!r}." if near else "")
        + " docs/howto/own-model.md shows how to add a family ('If a model is rejected')"
    )
