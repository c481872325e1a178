"""Low-rank adapters of PEFT, merged on a copy: circuits read weights, and a merged weight is one matrix."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.core.errors import FileFormatError, MissingExtraError, UnsafeFileError, UnsupportedModelError
from assay.core.extras import install_command
from assay.core.untrusted import MALFORMED, printable, read_object, refuse_pickle


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Settings of an `adapter_config.json` that say which numbers are added to which weights.
_READ = frozenset(
    [
        "r",
        "lora_alpha",
        "target_modules",
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "lora_bias",
        "fan_in_fan_out",
        "layers_to_transform",
        "layers_pattern",
    ]
)
# Settings that change more than that, some by code of their own.
_REFUSED = frozenset(
    [
        "modules_to_save",
        "trainable_token_indices",
        "layer_replication",
        "megatron_config",
        "target_parameters",
        "alora_invocation_tokens",
        "use_qalora",
        "arrow_config",
        "monteclora_config",
        "velora_config",
        "kasa_config",
        "use_bdlora",
        "lora_ga_config",
        "loftq_config",
        "corda_config",
        "ensure_weight_tying",
    ]
)
# Settings of training, or of where an adapter comes from; `bias` and `init_lora_weights` are looked at apart.
_WITHOUT_EFFECT = frozenset(
    [
        "task_type",
        "peft_type",
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "lora_dropout",
        "bias",
        "init_lora_weights",
        "megatron_core",
        "eva_config",
        "qalora_group_size",
        "runtime_config",
    ]
)
# Starts that leave the base model as it is.
_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A module with its adapters merged.

    Attributes:
        module: The merged module; what no adapter changes is shared with the adapted one.
        adapters: Facts by name of adapter: its kind, scalings and a hash of its weights.
        base: Parameters of the model without its adapters, by the names they have there.
    """

    module: nn.Module
    adapters: Mapping[str, Any]
    base: Mapping[str, Tensor]


def is_adapted(module: nn.Module) -> bool:
    """Whether a module is a `PeftModel`."""
    return any(
        kind.__name__ == "PeftModel" and kind.__module__.startswith("peft.") for kind in type(module).__mro__
    )


def merge_adapters(adapted: Any) -> Merged:
    """Merge the active adapters of a `PeftModel`; the model itself is not changed.

    Raises:
        UnsupportedModelError: If an active adapter is not LoRA or DoRA, or adapters are disabled.
    """
    layers = [part for part in adapted.modules() if hasattr(part, "lora_A") and hasattr(part, "base_layer")]
    names = list(adapted.active_adapters)
    for name in names:
        kind = getattr(adapted.peft_config[name].peft_type, "value", adapted.peft_config[name].peft_type)
        if kind != "LORA":
            raise UnsupportedModelError(
                f"adapter {name!r} of {type(adapted).__name__} is {kind}; only LoRA and DoRA can be merged. "
                "Merge it yourself (merge_and_unload()) if it can be"
            )
        if wrapped := adapted.peft_config[name].modules_to_save:
            raise UnsupportedModelError(
                f"adapter {name!r} of {type(adapted).__name__} replaces whole modules (modules_to_save: "
                f"{', '.join(wrapped)}); merge it yourself (merge_and_unload())"
            )
    if any(layer.disable_adapters for layer in layers):
        raise UnsupportedModelError(
            f"the adapters of {type(adapted).__name__} are disabled; enable them, or pass get_base_model()"
        )
    facts = {name: _facts(name, layers) for name in names}
    # Only the weights that adapters change are copied.
    changed = {id(each) for layer in layers for each in (*layer.parameters(), *layer.buffers())}
    shared = [each for each in (*adapted.parameters(), *adapted.buffers()) if id(each) not in changed]
    own = copy.deepcopy(adapted, {id(each): each for each in shared})
    base = {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in adapted.get_base_model().named_parameters()
        if "lora_" not in name
    }
    try:
        return Merged(module=own.merge_and_unload(progressbar=False), adapters=facts, base=base)
    except MALFORMED as error:
        raise UnsupportedModelError(
            f"PEFT cannot merge the adapters of {type(adapted).__name__}: {printable(str(error))[:300]}"
        ) from error


def _facts(name: str, layers: list[Any]) -> dict[str, Any]:
    digest = hashlib.sha256()
    own = [layer for layer in layers if name in layer.lora_A]
    for number, layer in enumerate(own):
        for path, weight in sorted(layer.named_parameters()):
            if f".{name}." in f".{path}.":
                digest.update(f"{number} {path} {tuple(weight.shape)} {weight.dtype}".encode())
                digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    variants = {type(layer.lora_variant[name]).__name__ for layer in own if name in layer.lora_variant}
    return {
        "type": "+".join(["LORA", *sorted(variants)]),
        "scaling": sorted({float(layer.scaling[name]) for layer in own}),
        "hash": digest.hexdigest()[:16],
    }


# --------------------------------------------------------------------------------------------------- files


@dataclass(frozen=True, kw_only=True)
class Base:
    """The model that an adapter changes: a directory or a hub id, and its revision."""

    name: str
    revision: str | None


def base_of(directory: Path, name: str) -> Base:
    """The model that an adapter on disk changes; `name` is what the adapter was asked for by.

    Raises:
        FileFormatError: If the adapter names none.
    """
    config = read_object(directory / CONFIG)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if (directory / "config.json").is_file():
        raise FileFormatError(
            f"{directory} holds both a model (config.json) and an adapter ({CONFIG}); keep them in two "
            "directories, with the path of the model as base_model_name_or_path"
        )
    if not isinstance(base, str) or not base:
        raise FileFormatError(
            f"{directory / CONFIG} names no base_model_name_or_path; load the base model and the adapter "
            "with PEFT and pass the PeftModel"
        )
    beside = directory / base
    base = str(beside) if beside.is_dir() else base
    if base == name or (Path(base) / CONFIG).is_file():
        raise FileFormatError(f"{directory / CONFIG} names another adapter as its base, {base!r}")
    return Base(name=base, revision=revision if isinstance(revision, str) else None)


def attach(module: nn.Module, directory: Path) -> nn.Module:
    """The `PeftModel` of a base model and the adapter of a directory, from safetensors.

    Raises:
        MissingExtraError: If peft is not installed.
        UnsupportedModelError: For anything but LoRA and DoRA.
        UnsafeFileError: If there are no safetensors.
        FileFormatError: If the adapter does not fit the model.
    """
    try:
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    except ImportError as error:
        raise MissingExtraError(
            f"{directory} is an adapter of PEFT, which cannot be imported ({error}); install it with "
            f"{install_command('adapters')}"
        ) from error
    config, file = read_object(directory / CONFIG), directory / WEIGHTS
    served = _READ | _WITHOUT_EFFECT
    kind, more = config.get("peft_type"), sorted(name for name in config.keys() - served if config[name])
    if config.get("init_lora_weights") not in _STARTS:
        more.append("init_lora_weights")
    if kind != "LORA" or more or config.get("bias", "none") != "none":
        named = ", ".join(printable(name)[:60] for name in more or ["bias"])
        unknown = " (a setting this version does not know)" if set(more) - _REFUSED - served else ""
        what = f"LORA with {named}{unknown}" if kind == "LORA" else printable(str(kind))[:40]
        raise UnsupportedModelError(
            f"{directory} is an adapter of the kind {what}; only LoRA and DoRA are merged. Merge it with "
            "PEFT (merge_and_unload()) and save the model"
        )
    if not file.is_file():
        raise UnsafeFileError(f"{directory} has no {WEIGHTS}; other files of weights are not read")
    refuse_pickle(file)
    try:
        settings = {name: value for name, value in config.items() if name in _READ and value is not None}
        adapted: nn.Module = get_peft_model(module, LoraConfig(**settings))
        weights = load_file(file)
        result: Any = set_peft_model_state_dict(adapted, weights)
    except (OSError, SafetensorError, *MALFORMED) as error:
        raise FileFormatError(
            f"{directory} does not fit the model it names: {printable(str(error))[:300]}"
        ) from error
    problems = [*result.unexpected_keys, *(key for key in result.missing_keys if "lora_" in key)]
    if problems:
        raise FileFormatError(
            f"{file} does not fit the model it names: {len(problems)} weights are missing or unknown, e.g. "
            f"{printable(problems[0])[:200]}"
        )
    return adapted.eval()
