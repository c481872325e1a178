"""Vision models of timm: by name, with a checkpoint of your own, or from a directory that timm wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.core.errors import AssayError, FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.core.untrusted import read_object, refuse_pickle
from assay.models.adapter import FAMILIES
from assay.models.family import pair
from assay.models.timm_import import timm_create_model
from assay.models.timm_reading import is_timm
from assay.models.weight_files import check_shapes, check_sizes, weight_files


def short_name(source: str) -> str:
    """A source as results name it: of a checkpoint its name, since where it lies changes no number."""
    name, at, checkpoint = source.partition("@")
    return f"{name}@{Path(checkpoint).name}" if at and name.startswith("timm:") else source


def is_timm_directory(path: Path) -> bool:
    """Whether `config.json` is timm's: it names an architecture and no model type."""
    config = read_object(path / "config.json")
    return "architecture" in config and "model_type" not in config


def from_timm(location: str, *, allow_pickle: bool) -> nn.Module:
    """The model of `timm:NAME`, `timm:NAME@FILE` or a directory, as timm builds it."""
    config, shapes = Path(location, "config.json"), None
    if location.startswith("timm:"):
        _check_checkpoint(location, allow_pickle=allow_pickle)
    else:
        files = weight_files(Path(location), timm=True, allow_pickle=allow_pickle)
        shapes = check_sizes(config, files, timm=True)
    create_model = timm_create_model(location)
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    try:
        if not location.startswith("timm:"):
            source = f"local-dir:{location}"
            if shapes is not None:
                check_shapes(lambda: create_model(source, pretrained=False), shapes, config)
            module = create_model(source, pretrained=True)
        elif checkpoint:
            module = _timm_checkpoint(name, Path(checkpoint))
        else:
            module = create_model(name, pretrained=True)
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
    return module


def _check_checkpoint(location: str, *, allow_pickle: bool) -> None:
    """Refuse a checkpoint that is missing or a pickle, before timm is asked for."""
    name, _, checkpoint = location.removeprefix("timm:").partition("@")
    if not checkpoint:
        return
    path = Path(checkpoint)
    if not path.is_file():
        raise FileFormatError(f"file {path} does not exist; expected timm:{name}@checkpoint.safetensors")
    if path.suffix == ".safetensors":
        refuse_pickle(path)
    elif not allow_pickle:
        raise UnsafeFileError(
            f"{path} is not a safetensors file, and opening a pickle can run any code. Convert it, or pass "
            "allow_pickle=True if you trust its origin"
        )


def _timm_checkpoint(name: str, path: Path) -> nn.Module:
    """A timm architecture with weights of the user's own; class count and image size follow the weights."""
    create_model = timm_create_model(f"timm:{name}")
    if path.suffix == ".safetensors":
        weights = load_file(path)
    else:
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle fails with whatever its first wrong byte brings about
            raise FileFormatError(f"cannot read {path} as a PyTorch checkpoint: {error}") from error
        weights = weights.get("state_dict", weights)
    arguments = _head_shape(weights, name)
    module = create_model(name, pretrained=False, **arguments)
    served = any(is_timm(module, family.classes) for family in FAMILIES.values())
    if served and (side := _image_side(weights, module)) is not None:
        module = create_model(name, pretrained=False, img_size=side, **arguments)
    module.load_state_dict(weights)
    return module


def _head_shape(weights: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Arguments of `timm.create_model` that the weights of a classifier decide."""
    from timm.models import get_pretrained_cfg

    arguments: dict[str, Any] = {}
    head = getattr(get_pretrained_cfg(name), "classifier", None) or "head"  # two where a model was distilled
    first = weights.get(f"{head if isinstance(head, str) else head[0]}.weight")
    if first is not None:
        arguments["num_classes"] = len(first)
    if "fc_norm.weight" in weights and "norm.weight" not in weights:
        arguments["global_pool"] = "avg"
    return arguments


def _image_side(weights: Mapping[str, Tensor], template: nn.Module) -> int | None:
    """Side of square images that the position table in `weights` is for; None where it fits the template."""
    mine: Any = template
    table, own = weights.get("pos_embed"), getattr(mine, "pos_embed", None)
    if table is None or own is None or table.shape == own.shape:
        return None
    prefix = 0 if getattr(mine, "no_embed_class", False) else int(mine.num_prefix_tokens)
    side = round((table.shape[1] - prefix) ** 0.5)
    if side * side + prefix != table.shape[1]:
        return None
    down, _ = pair(mine.patch_embed.patch_size)
    pixels: int = side * down
    return pixels


def check_channels(module: nn.Module, name: str) -> None:
    """Refuse images of another number of channels than three."""
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    channels = convolutions[0].in_channels if convolutions else 3
    if channels != 3:
        raise UnsupportedModelError(
            f"{name} reads images of {channels} channels, but image tasks are RGB, 3 channels"
        )
