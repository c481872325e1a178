"""Vision models of timm: by name, with a checkpoint of your own, or from a directory that timm wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.core.untrusted import read_object, refuse_pickle
from assay.models.checkpoints import weight_files
from assay.models.timm_import import timm_create_model


def short_name(source: str) -> str:
    """A source as results name it: of a checkpoint its name, since where it lies changes no number."""
    name, at, checkpoint = source.partition("@")
    return f"{name}@{Path(checkpoint).name}" if at and name.startswith("timm:") else source


def is_timm_directory(path: Path) -> bool:
    """Whether `config.json` is timm's: it names an architecture and no model type."""
    if not (path / "config.json").is_file():
        return False
    config = read_object(path / "config.json")
    return "architecture" in config and "model_type" not in config


def from_timm(location: str, *, allow_pickle: bool) -> nn.Module:
    """The model of `timm:NAME`, `timm:NAME@FILE` or a directory, as timm builds it."""
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    named = location.startswith("timm:")
    if not named:
        weight_files(Path(location), allow_pickle=allow_pickle)
    elif checkpoint:
        _check_checkpoint(name, Path(checkpoint), allow_pickle=allow_pickle)
    create_model = timm_create_model(location)
    try:
        if not named:
            return create_model(f"local-dir:{location}", pretrained=True)
        if not checkpoint:
            return create_model(name, pretrained=True)
        return _with_own_weights(create_model, name, Path(checkpoint))
    except AssayError:
        raise
    except (
        OSError,
        ValueError,
        RuntimeError,
        TypeError,  # a config.json with arguments that the architecture does not take
        AssertionError,  # or with such that exclude each other
        SafetensorError,
    ) as error:
        raise FileFormatError(
            f"cannot load {location!r} with timm: {error}. Expected 'timm:NAME', "
            "'timm:NAME@checkpoint.safetensors', or a directory with timm's config.json and model.safetensors"
        ) from error


def _check_checkpoint(name: str, path: Path, *, allow_pickle: bool) -> None:
    """Refuse a checkpoint that is missing or a pickle, before timm is asked for."""
    if not path.is_file():
        raise FileFormatError(f"file {path} does not exist; expected timm:{name}@checkpoint.safetensors")
    if path.suffix == ".safetensors":
        refuse_pickle(path)
    elif not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code. Convert it, or pass "
            "allow_pickle=True if you trust its origin"
        )


def _with_own_weights(create_model: Callable[..., nn.Module], name: str, path: Path) -> nn.Module:
    """A timm architecture with weights of the user's own, which decide its number of classes."""
    from timm.models import get_pretrained_cfg

    if path.suffix == ".safetensors":
        weights = load_file(path)
    else:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle fails with whatever its first wrong byte brings about
            raise FileFormatError(f"cannot read {path} as a PyTorch checkpoint: {error}") from error
        weights = weights.get("state_dict", weights)
    arguments: dict[str, Any] = {}
    head = getattr(get_pretrained_cfg(name), "classifier", None) or "head"  # two where a model was distilled
    first = weights.get(f"{head if isinstance(head, str) else head[0]}.weight")
    if first is not None:
        arguments["num_classes"] = len(first)
    if "fc_norm.weight" in weights and "norm.weight" not in weights:
        arguments["global_pool"] = "avg"
    module = create_model(name, pretrained=False, **arguments)
    module.load_state_dict(weights)
    return module


def check_channels(module: nn.Module, name: str) -> None:
    """Refuse images of another number of channels than three."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    channels = convolutions[0].in_channels if convolutions else 3
    if channels != 3:
        raise UnsupportedModelError(
            f"{name} reads images of {channels} channels, but image tasks are RGB, 3 channels"
        )
