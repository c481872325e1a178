"""Relevance patching and information-flow routes on timm's vision transformers, against literal twins."""

import literal_vits
import pytest
import torch
from literal_relevance import vit_with_rules
from small_models import image_task, randomise
from test_timm_vits import BUILDERS, SMALL, build
from timm.layers import GatedMlp, GluMlp, SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges import discover
from assay.discovery.edges.relp import relevance_rules
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
    if model.coupling == "heads":
        with pytest.raises(UnsupportedModelError, match="relp changes the heads of .* depend on each other"):
            discover(model, task, "relp", objective="ce")
        return
    twin = vit_with_rules(module)
    with torch.no_grad():
        embed, other = twin.embed(task.images), twin.embed(task.corrupted)
    ablated = literal_vits.whole(twin, other)[1]
    loss = literal_vits.cross_entropy(task.labels)
    expected = literal_vits.path_scores(twin, embed, ablated, loss, (1.0,))
    settings = {"objective": "ce", "ablation": "resample", "per_example": True}
    found = discover(model, task, "relp", **settings).per_example
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    with relevance_rules(model):
        ruled = module(task.images)
    assert torch.equal(ruled, module(task.images))


def test_routes_equal_their_twin(module: nn.Module) -> None:
    model, twin = load_model(module), literal_vits.literal(module)
    task = image_task(model)
    graph = model.graph
    streams: dict[str, Tensor] = {}

    def stream_of(target: str, outputs: dict[str, Tensor], biases: Tensor) -> Tensor:
        streams[target] = torch.stack([*outputs.values()]).sum(0) + biases
        return streams[target]

    with torch.no_grad():
        _, outputs = literal_vits.run(twin, twin.embed(task.images), stream_of)
    expected = torch.zeros(task.n, graph.n_sources, graph.n_targets, dtype=torch.float64)
    for column, target in enumerate(graph.targets):
        rows = graph.valid[:, column].nonzero().flatten()
        x = streams[target]
        left = torch.stack([(x - outputs[graph.sources[row]]).abs().sum(-1) for row in rows])
        proximity = (x.abs().sum(-1) - left).clamp(min=0)
        expected[:, rows, column] = (proximity / proximity.sum(0)).nan_to_num(0).mean(2).T
    found = discover(model, task, "ifr", per_example=True).per_example
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


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
