"""The environment itself: timm beside the package, over the same PyTorch."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from timm.models import save_for_hf

import assay


def test_timm_builds_a_vision_transformer_and_runs_it() -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224",
        pretrained=False,
        img_size=32,
        depth=2,
        num_classes=7,
        embed_dim=24,
        num_heads=3,
    )
    with torch.no_grad():
        logits = model.eval()(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


def test_the_package_is_the_one_of_this_checkout() -> None:
    assert Path(assay.__file__).is_relative_to(Path(__file__).resolve().parents[2])
    assert assay.build_graph(2, 2).n_edges > 0


def test_pytorch_is_the_one_of_the_base_environment() -> None:
    """Installing torchvision must not have brought a second PyTorch."""
    assert ".venv-timm" not in str(torch.__file__)
    assert importlib.metadata.version("torch").split("+")[0] == torch.__version__.split("+")[0]


@pytest.mark.parametrize(
    "code",
    [
        "from assay import load_model; print(load_model(sys.argv[1]).n_layers)",
        "from assay.zoo import initial_module as built; "
        "print(len(built('scratch', 'abcde', architecture='timm:vit_tiny_patch16_224').module.blocks))",
    ],
    ids=["load_model", "zoo"],
)
def test_a_fresh_process_imports_timm_without_help(tmp_path: Path, code: str) -> None:
    """Whatever PyTorch torchvision's compiled part was built for; nothing of this folder runs before."""
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=5)
    save_for_hf(module, str(tmp_path), safe_serialization=True)
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "12", done.stderr
