"""Sharpness: golden values, worked cases, refusals."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from assay.analyses.generalization.sharpness import auto_pgd_checkpoints, sharpness, worst_case_rise
from assay.core.errors import InputError, NonFiniteError


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "baselines.json").read_text())
with np.load(FOLDER / "baselines.npz") as _file:
    ARRAYS = dict(_file)


def golden_classifier(dtype: torch.dtype = torch.float64) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 4))
    module.load_state_dict(
        {
            key[6:]: torch.from_numpy(value)
            for key, value in ARRAYS.items()
            if key[:6] == "sharp_" and "." in key
        }
    )
    return module.to(dtype).eval()


def golden_batches(dtype: torch.dtype = torch.float64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = torch.from_numpy(ARRAYS["sharp_x"]).to(dtype), torch.from_numpy(ARRAYS["sharp_y"])
    return list(zip(x.split(16), y.split(16), strict=True))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("default", {}),
        ("rho0.1", {"rho": 0.1}),
        ("rho0.05_nonadaptive_raw_logits", {"rho": 0.05, "adaptive": False, "normalize_logits": False}),
        ("rho0.2_iters50", {"rho": 0.2, "iterations": 50}),
    ],
)
def test_sharpness_equals_the_golden_values(key: str, settings: dict[str, object]) -> None:
    got = sharpness(golden_classifier(), golden_batches(), **settings)
    assert got == pytest.approx(GOLDEN[f"ref_sharpness_{key}"]["loss_increase"], rel=1e-6)


def test_checkpoints_are_the_published_ones() -> None:
    assert auto_pgd_checkpoints(20) == (5, 9, 12, 15, 16, 18, 19)
    assert all(at < 7 for at in auto_pgd_checkpoints(7))


def test_a_linear_loss_rises_to_the_corner_of_the_ball() -> None:
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

    def loss(moved: torch.Tensor) -> torch.Tensor:
        return 3 * moved[0] - moved[1] + 4 * moved[2]

    assert worst_case_rise(loss, weights, rho=0.1) == pytest.approx(0.1 * (3 + 2 + 2))
    assert worst_case_rise(loss, weights, rho=0.1, adaptive=False) == pytest.approx(0.1 * (3 + 1 + 4))


def test_weights_and_gradients_of_the_model_stay() -> None:
    module = golden_classifier()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    first = sharpness(module, golden_batches(), rho=0.1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in module.parameters())
    assert sharpness(module, golden_batches(), rho=0.1) == first


def test_outputs_with_logits_are_classifiers_too() -> None:
    class Wordy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = golden_classifier()

        def forward(self, images: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(images))

    expected = sharpness(golden_classifier(), golden_batches())
    assert sharpness(Wordy().eval(), golden_batches()) == expected


def test_no_point_of_the_ball_found_at_random_is_worse() -> None:
    module, (images, labels) = golden_classifier(), golden_batches()[0]
    found = sharpness(module, [(images, labels)], rho=0.1, normalize_logits=False)
    start = float(cross_entropy(module(images), labels).detach())
    generator = torch.Generator().manual_seed(0)
    rises = []
    for _ in range(200):
        moved = {
            name: w * (1 + 0.1 * (2 * torch.rand(w.shape, generator=generator, dtype=w.dtype) - 1))
            for name, w in module.state_dict().items()
        }
        rises.append(
            float(cross_entropy(torch.func.functional_call(module, moved, (images,)), labels)) - start
        )
    assert 0 < max(rises) < found


# ------------------------------------------------------------------------------------------ refusals


def test_bad_input_is_refused() -> None:
    module, batches = golden_classifier(), golden_batches()
    with pytest.raises(InputError, match="at least one batch"):
        sharpness(module, [])
    with pytest.raises(InputError, match="a label is outside the 4 classes"):
        sharpness(module, [(images, labels + 1) for images, labels in batches])
    for wrong in ({"rho": 0.0}, {"iterations": 0}):
        with pytest.raises(InputError, match="give a radius above 0 and at least 1 step"):
            sharpness(module, batches, **wrong)
    with pytest.raises(NonFiniteError, match="loss is nan"):
        sharpness(module, [(batches[0][0] * math.nan, batches[0][1])])
    module[1].train()
    with pytest.raises(InputError, match="a part of it, is in training mode"):
        sharpness(module, batches)
