"""The tests of this folder need timm, which lives in an environment of its own: `make test-timm`."""

import importlib.util
from pathlib import Path

import torch


# A folder called timm is found as a namespace even without the package, torchvision is not.
_TORCHVISION = importlib.util.find_spec("torchvision")
_OPERATORS: torch.library.Library | None = None

collect_ignore_glob = ["test_*.py"] if _TORCHVISION is None else []


def pytest_report_header() -> str | None:
    if _TORCHVISION is None:
        return "tests/timm: left out, timm is not installed here; run `make test-timm`"
    return None


def _define_vision_operators(package: Path) -> None:
    """Let `import torchvision` succeed when its compiled part does not fit the installed PyTorch.

    A torchvision built for CUDA cannot load its operators beside a CPU build of PyTorch, and then fails
    on import when it registers shape rules for them. Models and transforms need none of them, so their
    names and signatures are enough.
    """
    global _OPERATORS
    try:
        torch.ops.load_library(str(package / "_C.so"))
    except OSError:
        _OPERATORS = torch.library.Library("torchvision", "DEF")
        _OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _OPERATORS.define(
            "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
            "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor"
        )


if _TORCHVISION is not None and _TORCHVISION.origin is not None:
    _define_vision_operators(Path(_TORCHVISION.origin).parent)
