"""torchvision's operators: declared where its compiled part did not load, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


# A torchvision whose import registers a shape rule, as the real one does, and a timm that imports it.
PACKAGES = {
    "torchvision/__init__.py": """
        import torch
        from . import extension
        @torch.library.register_fake("torchvision::nms")
        def rule(dets, scores, iou_threshold): return dets
    """,
    "timm/__init__.py": """
        import torchvision
        def create_model(): pass
    """,
}
EXTENSIONS = {
    "did-not-load": "def _has_ops(): return False",
    "loaded": """
        import torch
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor boxes_of_the_build, Tensor scores, float iou_threshold) -> Tensor")
        def _has_ops(): return True
    """,
    "loaded-without-them": "def _has_ops(): return True",
}
CODE = """
from assay.models.timm_models import timm_create_model
timm_create_model("timm:x")
import torch
print(torch.ops.torchvision.nms.default._schema)
"""


def imported(directory: Path, extension: str) -> subprocess.CompletedProcess[str]:
    for name, text in {**PACKAGES, "torchvision/extension.py": EXTENSIONS[extension]}.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        path.write_text("\n".join(line[indent:] for line in lines))
    paths = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize(
    ("extension", "first"), [("did-not-load", "Tensor dets"), ("loaded", "Tensor boxes_of_the_build")]
)
def test_operators_are_declared_only_where_the_build_did_not_load(
    tmp_path: Path, extension: str, first: str
) -> None:
    done = imported(tmp_path, extension)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"torchvision::nms({first}")


def test_a_build_that_loaded_is_not_mended(tmp_path: Path) -> None:
    done = imported(tmp_path, "loaded-without-them")
    assert "MissingExtraError: 'timm:x' is a timm model, but timm cannot be imported" in done.stderr
    assert "torchvision::nms" in done.stderr
