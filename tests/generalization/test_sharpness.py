"""Sharpness: golden values, worked cases, models as they are loaded, refusals."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

from assay.analyses.generalization import baselines
from assay.analyses.generalization.sharpness import auto_pgd_checkpoints, sharpness, worst_case_rise
from assay.core.errors import InputError, NonFiniteError
from assay.tasks import EvalTransform, draw_shapes


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
    weights = [torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64)]

    def loss(moved: list[torch.Tensor]) -> torch.Tensor:
        return 3 * moved[0][0] - moved[0][1] + 4 * moved[1][0]

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


def tiny_vit() -> transformers.ViTForImageClassification:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=6,
    )
    return transformers.ViTForImageClassification(config).eval()


def test_a_task_is_taken_in_batches_and_the_model_stays_to_the_bit() -> None:
    module = tiny_vit()
    module.vit.embeddings.cls_token.requires_grad_(False)
    kept = {name: (tensor, tensor.clone()) for name, tensor in module.state_dict(keep_vars=True).items()}
    asks = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    task = draw_shapes("flat", 20).with_transform(EvalTransform())
    found = sharpness(module, task, batch_size=8, iterations=4)
    cut = [(task.clean[rows], task.labels[rows]) for rows in torch.arange(20).split(8)]
    assert found == sharpness(module, cut, iterations=4) > 0
    assert found != sharpness(module, task, iterations=4)  # one batch of all, as published: up to 256
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert tensor is kept[name][0], name
        assert torch.equal(tensor, kept[name][1]), name
    assert asks == {name: parameter.requires_grad for name, parameter in module.named_parameters()}
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not module.training


def test_images_take_the_dtype_of_the_weights() -> None:
    task = draw_shapes("flat", 8).with_transform(EvalTransform())
    single, double = (
        sharpness(tiny_vit().to(dtype), task, iterations=2) for dtype in (torch.float32, torch.float64)
    )
    assert single == pytest.approx(double, rel=1e-3)


def test_it_is_reached_among_the_baselines() -> None:
    assert baselines.sharpness is sharpness


def test_a_direction_per_batch_rises_at_least_as_far() -> None:
    """Batches may each take their own worst direction; a single one has to serve them all."""
    module, batches = golden_classifier(), golden_batches()
    whole = [tuple(torch.cat(part) for part in zip(*batches, strict=True))]
    assert sharpness(module, batches, rho=0.1) > sharpness(module, whole, rho=0.1)


# ------------------------------------------------------------------------------------------ refusals


def test_models_in_training_mode_are_refused() -> None:
    module = golden_classifier()
    module[1].train()
    with pytest.raises(InputError, match="1 is in training mode"):
        sharpness(module, golden_batches())
    with pytest.raises(InputError, match="the model is in training mode"):
        sharpness(module.train(), golden_batches())


def test_labels_must_be_there_and_fit_the_model() -> None:
    images = draw_shapes("flat", 6)
    unlabelled = type(images)(pixels=images.pixels, domain="flat").with_transform(EvalTransform())
    with pytest.raises(InputError, match="sharpness needs labels, but the images of 'flat' have none"):
        sharpness(tiny_vit(), unlabelled)
    task = images.with_transform(EvalTransform())
    with pytest.raises(InputError, match="labels go from 1 to 6, but the model has 6 classes"):
        sharpness(tiny_vit(), [(task.clean, task.labels + 1)])


def test_batches_that_are_no_pairs_are_refused() -> None:
    task = draw_shapes("flat", 6).with_transform(EvalTransform())
    with pytest.raises(InputError, match="batch 0 is ImageTask; give pairs of tensors"):
        sharpness(tiny_vit(), iter([task]))
    with pytest.raises(InputError, match="batch 1 is Tensor"):
        sharpness(tiny_vit(), iter([(task.clean, task.labels), task.clean]))


def test_settings_out_of_range_are_refused() -> None:
    module, batches = golden_classifier(), golden_batches()
    with pytest.raises(InputError, match="at least one batch"):
        sharpness(module, [])
    with pytest.raises(InputError, match="batch_size is 0"):
        sharpness(tiny_vit(), draw_shapes("flat", 6).with_transform(EvalTransform()), batch_size=0)
    with pytest.raises(InputError, match="rho is 0.0"):
        sharpness(module, batches, rho=0.0)
    with pytest.raises(InputError, match="iterations 0"):
        sharpness(module, batches, iterations=0)
    with pytest.raises(NonFiniteError, match="loss is nan"):
        sharpness(module, [(batches[0][0] * math.nan, batches[0][1])])
