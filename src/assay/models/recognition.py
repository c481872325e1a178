"""Which family a module or a configuration belongs to, or why it belongs to none."""

from typing import Any

from torch import nn

import assay.models.families  # noqa: F401  # registers all descriptions
from assay.core.errors import UnsupportedModelError, near_matches
from assay.core.untrusted import printable
from assay.models.adapter import FAMILIES
from assay.models.family import Config, Family
from assay.models.timm_reading import is_timm


_AFTER = "it normalises after the addition (post-norm)"
# Starts of model types and of classes of timm whose models have no stream from input to output, and why.
_NO_STREAM = {
    "bert": _AFTER,
    "roberta": _AFTER,
    "distilbert": _AFTER,
    "openai-gpt": _AFTER,
    "swin": "its stages merge patches, so the stream changes its length and width",
    "mamba": "its layers carry a state from position to position",
    "rwkv": "its layers carry a state from position to position",
    "falcon_mamba": "its layers carry a state from position to position",
    "jamba": "some of its layers carry a state from position to position",
    "bamba": "some of its layers carry a state from position to position",
    "recurrent_gemma": "some of its layers carry a state from position to position",
}


def _refuse_layout(what: str, kind: str, *, two_streams: bool) -> None:
    """Refuse what is known to have no residual stream of its own length and width, with the reason."""
    reason = next((why for start, why in _NO_STREAM.items() if kind.lower().startswith(start)), None)
    if reason is None and two_streams:
        reason = "it is an encoder-decoder, where the decoder reads a second stream"
    if reason is not None:
        raise UnsupportedModelError(
            f"{what}: {reason}. The residual stream is not a sum of node outputs, so it has no graph here"
        )


def family_of(module: nn.Module) -> Family:
    """The description that fits a live module.

    Raises:
        UnsupportedModelError: Naming the module found and why it is not served, or the nearest model types.
    """
    for family in FAMILIES.values():
        if is_timm(module, family.classes):
            return family
    config: Config = getattr(module, "config", None)
    model_type = getattr(config, "model_type", None)
    known = family_of_type(model_type)
    if known is not None:
        return known
    two_streams = bool(getattr(config, "is_encoder_decoder", False))
    _refuse_layout(type(module).__name__, model_type or type(module).__name__, two_streams=two_streams)
    raise _unknown(type(module).__name__, model_type)


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
        _refuse_layout(location, model_type, two_streams=bool(config.get("is_encoder_decoder")))
        raise _unknown(location, model_type)


def _unknown(what: str, model_type: object) -> UnsupportedModelError:
    """The error for a model type without a description: it names the nearest that has one."""
    served = sorted(name for family in FAMILIES.values() for name in family.model_types)
    of_timm = sorted(name for family in FAMILIES.values() for name in family.classes)
    near = near_matches(model_type, served, limit=1) if isinstance(model_type, str) else ()
    return UnsupportedModelError(
        f"{what} (model type {printable(repr(model_type))[:80]}) is not supported; supported model types: "
        f"{', '.join(served)}, and timm's {', '.join(of_timm)}."
        + (f" Nearest by name: {near[0]!r}." if near else "")
        + " docs/howto/own-model.md shows how to add a family ('If a model is rejected')"
    )
