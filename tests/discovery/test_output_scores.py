"""The edges into the logits alone, against the same column of the full scores."""

import pytest
import torch
import transformers
import vit_goldens
from torch import nn

from assay.analyses.generalization import dependency_depth_bias
from assay.core.errors import InputError
from assay.discovery.edges import discover, output_scores
from assay.models import load_model
from assay.tasks import ImageTask, load_task


SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
    "initializer_range": 0.3,
}


def images(n: int = 7, size: int = 16) -> ImageTask:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(n, 3, size, size, generator=generator, dtype=torch.float64)
    return ImageTask(images=pixels, corrupted=pixels.flip(0) + 0.1, labels=torch.arange(n) % 2)


@pytest.fixture(scope="module")
def distilled() -> nn.Module:
    """Reads two tokens, so the logits pool."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = transformers.DeiTConfig(**SMALL)
        return transformers.DeiTForImageClassificationWithTeacher(config).double().eval()


@pytest.mark.parametrize("quadrature", ["midpoint", "left", "right"])
@pytest.mark.parametrize("ablation", ["mean-positional", "resample", "zero"])
def test_a_column_of_the_full_scores(quadrature: str, ablation: str) -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    settings = {"steps": 3, "quadrature": quadrature, "ablation": ablation}
    full = discover(model, task, "eap-ig-inputs", per_example=True, **settings)
    found = output_scores(model, task, batch_size=5, **settings)
    torch.testing.assert_close(found.values, full.values[:, -1], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.per_example, full.per_example[:, :, -1], rtol=1e-10, atol=1e-14)


def test_pooled_logits_read_every_position(distilled: nn.Module) -> None:
    model = load_model(distilled)
    full = discover(model, images(), "eap-ig-inputs", objective="pseudo_margin")
    found = output_scores(model, images(), objective="pseudo_margin")
    torch.testing.assert_close(found.values, full.values[:, -1], rtol=1e-10, atol=1e-14)


def test_language_models_too() -> None:
    model = load_model("mini")
    task = load_task("ioi", model, n=6, seed=0)
    full = discover(model, task, "eap-ig-inputs").values[:, -1]
    found = output_scores(model, task).values
    torch.testing.assert_close(found, full, rtol=1e-4, atol=1e-5 * float(full.abs().max()))


@pytest.mark.parametrize("name", vit_goldens.NAMES)
def test_depth_bias_of_the_output(name: str) -> None:
    model, task = vit_goldens.model(name), vit_goldens.task(name)
    full = dependency_depth_bias(discover(model, task, "eap-ig-inputs"), targets="output")
    fast = dependency_depth_bias(output_scores(model, task, per_example=False))
    assert fast == pytest.approx(full, rel=1e-5)


def test_passes_and_record() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    found = output_scores(model, task, per_example=False)
    assert found.details["passes"] == {"forward": 7.0, "backward": 0.0}
    assert found.per_example is None
    assert found.provenance["targets"] == "logits"
    assert found.provenance["quadrature"] == "midpoint"


def test_a_step_count_is_a_number() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    with pytest.raises(InputError, match="steps is True"):
        output_scores(model, task, steps=True)
    with pytest.raises(InputError, match="at least 1|positive"):
        output_scores(model, task, steps=0)


def test_one_image_has_no_mean_to_compare_with() -> None:
    model, task = vit_goldens.model("vit_edges_a"), vit_goldens.task("vit_edges_a")
    with pytest.raises(InputError, match="got 1; give at least 2 examples"):
        output_scores(model, task.subset([0]))
