"""Relevance patching on timm's vision transformers, against its literal twin."""

import pytest
import torch
from literal_relevance import relevance_of_images
from small_models import image_task, randomise
from test_timm_vits import BUILDERS, SMALL, build
from timm.layers import GatedMlp, GluMlp, SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges import discover
from assay.models import load_model


MODULES = {
    **{name: lambda name=name: build(name) for name in BUILDERS},
    "packed gated MLP": lambda: randomise(VisionTransformer(**SMALL, mlp_layer=SwiGLUPacked)),
    "MLP with a norm": lambda: randomise(VisionTransformer(**SMALL, scale_mlp_norm=True)),
}


@pytest.fixture(params=MODULES, scope="module")
def module(request: pytest.FixtureRequest) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        return MODULES[request.param]()


def test_relevance_equals_its_twin(module: nn.Module) -> None:
    model = load_model(module)
    task = image_task(model)
    settings = {"objective": "ce", "ablation": "resample", "per_example": True}
    found = discover(model, task, "relp", **settings).per_example
    torch.testing.assert_close(found, relevance_of_images(model, model.bind(task)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mlp_layer": GatedMlp}, "the MLP is a GatedMlp.*supported are Mlp, GluMlp and SwiGLU"),
        ({"mlp_layer": GluMlp, "act_layer": nn.Sigmoid}, "the activation Sigmoid of .* is 0.5 at 0"),
    ],
    ids=["unknown", "not zero at zero"],
)
def test_mlps_without_a_rule_are_refused(options: dict[str, type[nn.Module]], message: str) -> None:
    model = load_model(randomise(VisionTransformer(**SMALL, **options)))
    with pytest.raises(UnsupportedModelError, match=message):
        discover(model, image_task(model), "relp", objective="ce")
