"""The import of timm, also beside a torchvision whose compiled part does not fit this PyTorch."""

import importlib.util
import sys
from collections.abc import Callable

import torch
from torch import nn

from assay.core.errors import MissingExtraError
from assay.core.extras import install_command


# What torchvision's Python part registers shape rules for on import, wherever its compiled part is.
_SIGNATURES = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
# The declarations last as long as this object.
_DECLARED: list[torch.library.Library] = []


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
    """Import torchvision, which timm imports; declare its operators where its compiled part did not load.

    A torchvision built for CUDA cannot load its operators beside a CPU build of PyTorch. Its import then
    fails when it registers shape rules for them. Models and transforms call none of them, so their names and
    signatures are enough. Operators that exist stay as they are.
    """
    if importlib.util.find_spec("torchvision") is None:
        return  # timm's own import then names what is missing
    try:
        import torchvision
    except RuntimeError:
        extension = sys.modules.get("torchvision.extension")
        missing = [name for name in _SIGNATURES if not hasattr(torch.ops.torchvision, name)]
        if extension is None or extension._has_ops() or not missing:
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(_SIGNATURES[name])
        _DECLARED.append(library)
        import torchvision  # noqa: F401
