"""The golden vision transformers as timm's own models, weights under their own names."""

from functools import cache
from typing import Any

import pytest
import torch
import vit_goldens
from timm.models.vision_transformer import VisionTransformer
from vit_goldens import NAMES

from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import Model, load_model


@cache
def model(name: str, dtype: torch.dtype = torch.float64) -> Model:
    config: dict[str, Any] = vit_goldens.facts(name)["config"]
    module = VisionTransformer(
        img_size=config["img_size"],
        patch_size=config["patch_size"],
        embed_dim=config["embed_dim"],
        depth=config["depth"],
        num_heads=config["num_heads"],
        mlp_ratio=config["mlp_ratio"],
        num_classes=config["num_classes"],
        pre_norm=config["pre_norm"],
        norm_layer=lambda width, **where: torch.nn.LayerNorm(width, eps=config["norm_eps"], **where),
    )
    state = {
        key.removeprefix("state/"): torch.from_numpy(value.copy())
        for key, value in vit_goldens.arrays(name).items()
        if key.startswith("state/")
    }
    module.load_state_dict(state, strict=True)
    return load_model(module.to(dtype).eval())


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_logits_and_graph(name: str) -> None:
    found = run_model(model(name), vit_goldens.task(name))
    torch.testing.assert_close(found, vit_goldens.tensor(name, "ref/logits"), rtol=1e-7, atol=1e-12)
    assert model(name).graph.n_edges == vit_goldens.facts(name)["n_edges"]


SCORES = [
    ("direct/ig_inputs", {"method": "eap-ig-inputs", "quadrature": "left"}),
    ("direct/ig_inputs_midpoint", {"method": "eap-ig-inputs"}),
    ("direct/ig_activations_own", {"method": "eap-ig-activations", "quadrature": "right"}),
]


@pytest.mark.parametrize(("key", "settings"), SCORES, ids=[key for key, _ in SCORES])
def test_every_edge(name: str, key: str, settings: dict[str, str]) -> None:
    expected = vit_goldens.tensor(name, key)
    found = discover(model(name), vit_goldens.task(name), steps=5, **settings).values
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)
