"""Which family a module or a configuration belongs to, or why it belongs to none."""

from collections.abc import Iterable
from typing import Any

from torch import nn

import assay.models.families  # noqa: F401  # registers all descriptions
from assay.core.errors import UnsupportedModelError, near_matches
from assay.core.untrusted import printable
from assay.models.adapter import FAMILIES
from assay.models.family import Config, Family
from assay.models.timm_reading import is_timm


# Layouts that are not additive pre-norm streams: the module that shows it, and why it matters.
_REFUSED = {
    "bert": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "roberta": ("attention.output.LayerNorm", "normalises after the addition (post-norm)"),
    "distilbert": ("sa_layer_norm", "normalises after the addition (post-norm)"),
    "openai-gpt": ("ln_1", "normalises after the addition (post-norm)"),
}
# Starts of model types and of classes of timm whose models have no stream from input to output.
_NO_STREAM = {
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
    if model_type in _REFUSED:
        suffix, why = _REFUSED[model_type]
        name_found = next((name for name, _ in module.named_modules() if name.endswith(suffix)), suffix)
        raise UnsupportedModelError(
            f"{type(module).__name__}: module {name_found!r} {why}, so the residual stream is not a sum of "
            "node outputs; "
            "only pre-norm models are supported"
        )
    settings = vars(config) if config is not None else {}
    raise _unknown(type(module).__name__, model_type, settings)


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
    if isinstance(model_type, str) and model_type in _REFUSED:
        suffix, why = _REFUSED[model_type]
        raise UnsupportedModelError(
            f"{location}: a {model_type!r} block has {suffix!r}, which {why}, so the residual "
            "stream is not a sum of "
            "node outputs; only pre-norm models are supported"
        )
    if isinstance(model_type, str) and family_of_type(model_type) is None:
        _refuse_layout(location, model_type, two_streams=bool(config.get("is_encoder_decoder")))
        raise _unknown(location, model_type, config)


def _unknown(what: str, model_type: object, settings: Iterable[str]) -> UnsupportedModelError:
    """The error for a model type without a description: it names the nearest that have one."""
    served = sorted(name for family in FAMILIES.values() for name in family.model_types)
    of_timm = sorted(name for family in FAMILIES.values() for name in family.classes)
    nearest = []
    if isinstance(model_type, str) and (near := near_matches(model_type, served, limit=1)):
        nearest.append(f"{near[0]!r} by name")
    if (alike := _nearest_by_settings(set(settings), served)) is not None:
        nearest.append(f"{alike!r} by the settings of its configuration")
    return UnsupportedModelError(
        f"{what} (model type {printable(repr(model_type))[:80]}) is not supported; supported model types: "
        f"{', '.join(served)}, and timm's {', '.join(of_timm)}."
        + (f" Nearest: {', '.join(nearest)}." if nearest else "")
        + " docs/howto/own-model.md shows how to add a family ('If a model is rejected')"
    )


def _nearest_by_settings(settings: set[str], served: Iterable[str]) -> str | None:
    """The model type whose configuration shares most names of settings, those of all models left out."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    general = set(vars(PretrainedConfig())) | {"model_type", "architectures", "torch_dtype", "auto_map"}
    own = settings - general
    best, most = None, 0.5  # with less in common, two models share the widths that every transformer has
    for model_type in served:
        if own and model_type in CONFIG_MAPPING:
            other = set(vars(CONFIG_MAPPING[model_type]())) - general
            alike = len(own & other) / len(own | other)
            if alike > most:
                best, most = model_type, alike
    return best
