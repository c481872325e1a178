"""The environment itself: timm beside the package, over the same PyTorch."""

import importlib.metadata
from pathlib import Path

import timm
import torch

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
