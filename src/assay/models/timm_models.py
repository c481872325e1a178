"""Vision models of timm: by name, or from a directory that timm wrote."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from assay.core.errors import FileFormatError, MissingExtraError, install_command
from assay.models.family import height_and_width


_DECLARED: list[torch.library.Library] = []  # declarations last as long as these objects


def timm_create_model(wanted: str) -> Callable[..., nn.Module]:
    """`timm.create_model`, imported on the first call.

    Args:
        wanted: What needs it, for the error.

    Raises:
        MissingExtraError: If timm is not installed or cannot be imported.
    """
    try:
        _import_torchvision()
        # By name, since a folder called timm is found as an empty package.
        from timm import create_model
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(
            f"{wanted!r} is a timm model, but timm cannot be imported ({error}); install it with "
            f"{install_command('vision')}"
        ) from error
    built: Callable[..., nn.Module] = create_model
    return built


def _import_torchvision() -> None:
    """Import torchvision, which timm imports, also one built for CUDA beside a CPU build of PyTorch.

    Its operators do not load there, and its import fails when it registers shape rules for some. Models call
    none of them, so that their signatures are enough.
    """
    try:
        import torchvision
    except RuntimeError:
        _DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _DECLARED[-1].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401 - again, for its effect: the rules now find their operators


def from_timm(source: str | Path) -> nn.Module:
    """The model of `timm:NAME` or a directory, as timm builds it.

    Raises:
        FileFormatError: If timm does not build it.
        MissingExtraError: If timm is not installed.
    """
    name = f"local-dir:{source}" if isinstance(source, Path) else source.removeprefix("timm:")
    create_model = timm_create_model(str(source))
    try:
        return create_model(name, pretrained=True).eval()
    except Exception as error:  # a damaged file fails with whatever its first wrong byte brings about
        raise FileFormatError(
            f"cannot load {str(source)!r} with timm: {error}. Expected 'timm:NAME', or a directory with "
            "timm's config.json and model.safetensors"
        ) from error


def preprocessing(module: nn.Module) -> dict[str, Any] | None:
    """What a timm model knows about its images, with the size it takes now; None if it knows nothing."""
    stored: Any = getattr(module, "pretrained_cfg", None)
    if not isinstance(stored, Mapping) or not stored:
        return None
    kept = {key: value for key, value in stored.items() if key not in ("file", "source")}  # where it lay
    patches: Any = module.patch_embed
    return {**kept, "input_size": [3, *height_and_width(patches.img_size)]}
