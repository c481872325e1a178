"""Relevance patching: the rules one by one, a literal twin, conservation, what it leaves as it was."""

import math
from collections.abc import Callable
from copy import deepcopy

import literal
import literal_relevance
import literal_vits
import pytest
import torch
import transformers
from literal_relevance import vit_with_rules
from small_models import image_task, randomise
from test_methods import Literal, assert_scores, random_task
from torch import Tensor, nn

from assay.core.errors import InputError, UnsupportedModelError
from assay.discovery.edges import discover
from assay.discovery.edges.relp import relevance_rules
from assay.models import Model, load_model
from assay.tasks import PairTask


def vit(**options: object) -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL_VIT, **options))


SMALL_VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": 5,
}
VITS: dict[str, Callable[[], nn.Module]] = {
    "vit": vit,
    "vit with quick gelu": lambda: vit(hidden_act="quick_gelu", layer_norm_eps=1e-3),
    "deit with a teacher": lambda: transformers.DeiTForImageClassificationWithTeacher(
        transformers.DeiTConfig(**SMALL_VIT)
    ),
}


# ------------------------------------------------------------------------------------- rules worked by hand


def gradient(output: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of an output's sum."""
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(output(x).sum(), x)
    return found


def test_identity_rule_by_hand() -> None:
    """GELU is x Phi(x): the coefficient is Phi(x), where the gradient is Phi(x) + x phi(x)."""
    module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=5, n_positions=4, n_embd=4, n_layer=1, n_head=1, activation_function="gelu"
        )
    )
    model = load_model(module.double().eval())
    act = module.transformer.h[0].mlp.act
    x = torch.tensor([-2.0, 0.0, 1.0], dtype=torch.float64)
    phi = torch.tensor([0.022750131948179, 0.5, 0.841344746068543], dtype=torch.float64)
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    with relevance_rules(model):
        torch.testing.assert_close(gradient(act, x), phi, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(act, x), phi + x * density, rtol=1e-12, atol=1e-12)


def test_norm_rule_by_hand(gpt2_tiny64: nn.Module, llama_tiny64: nn.Module) -> None:
    """(e_i - 1/d) gain / sigma for LayerNorm, e_i gain / rms for RMSNorm; a gradient has no part along x."""
    x = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for module, centred in ((gpt2_tiny64, True), (llama_tiny64, False)):
        model = load_model(module)
        norm = model.blocks[1].mlp_norm.module
        kept = x - x.mean() if centred else x
        scale = kept.square().mean().sqrt()
        expected = torch.zeros(24, dtype=torch.float64)
        expected[3] = norm.weight.detach()[3] / scale
        expected = expected - expected.mean() if centred else expected
        with relevance_rules(model):
            found = gradient(lambda x, norm=norm: norm(x)[3], x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # eps; float32 norms of Llama
        assert float(gradient(lambda x, norm=norm: norm(x)[3], x) @ x) == pytest.approx(0, abs=1e-4)


def test_half_rule_by_hand(llama_tiny64: nn.Module) -> None:
    """silu(g) u with g = gate x and u = up x: half of silu(g) / g u to the gate, half of silu(g) to up."""
    model = load_model(llama_tiny64)
    mlp = model.blocks[0].mlp
    x = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate, up, down = (part.weight.detach() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    above = down.sum(0)
    to_gate = above * (gate @ x).sigmoid() * (up @ x) / 2
    to_up = above * nn.functional.silu(gate @ x) / 2
    with relevance_rules(model):
        torch.testing.assert_close(gradient(mlp, x), to_gate @ gate + to_up @ up, rtol=1e-10, atol=1e-10)


# --------------------------------------------------------------------------------------------- literal twins


def literal_relp(model: Model, task: PairTask, ablation: str) -> Tensor:
    """Differences times explicitly propagated coefficients: `[batch, S, R]`."""
    twin = Literal(model, task, "logit_diff", ablation)
    arrived, logits = literal_relevance.coefficients(model, task.clean, twin.loss)
    native = literal.run_plain(model, task.clean)[0]
    torch.testing.assert_close(logits, native, rtol=1e-5, atol=1e-5)  # the twin runs the same model
    return literal.scores(model, twin.differences, arrived, task.lengths)


@pytest.mark.parametrize("ablation", ["resample", "mean", "zero"])
def test_scores_equal_their_twin(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = random_task(model, ragged=True)
    found = discover(model, task, "relp", ablation=ablation, per_example=True, batch_size=3)
    assert_scores(found, literal_relp(model, task, ablation))


@pytest.mark.parametrize("name", VITS)
def test_scores_of_images_equal_their_twin(name: str) -> None:
    module = randomise(VITS[name]())
    model, twin = load_model(module), vit_with_rules(module)
    task = image_task(model)
    with torch.no_grad():
        embed, other = twin.embed(task.images), twin.embed(task.corrupted)
    loss = literal_vits.cross_entropy(task.labels)
    ablated = literal_vits.whole(twin, other)[1]
    expected = literal_vits.path_scores(twin, embed, ablated, loss, (1.0,))
    found = discover(
        model,
        task,
        "relp",
        objective="ce",
        ablation="resample",
        per_example=True,
        batch_size=3,
    )
    torch.testing.assert_close(found.per_example, expected, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------- what it leaves as it was


def hooks_of(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_rules_change_no_value(module64: nn.Module) -> None:
    """To the bit, with and without gradients."""
    model = load_model(module64)
    tokens = random_task(model).clean
    plain = model.forward(tokens)
    with relevance_rules(model):
        assert torch.equal(model.forward(tokens), plain)
        with torch.no_grad():
            assert torch.equal(model.forward(tokens), plain)
    assert torch.equal(model.forward(tokens), plain)


def test_hooks_go_also_after_an_error(module64: nn.Module) -> None:
    model = load_model(module64)

    def fail() -> None:
        with relevance_rules(model):
            assert hooks_of(module64) > 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert hooks_of(module64) == 0

    def loss(logits: Tensor, clean: Tensor, batch: object) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        discover(model, random_task(model), "relp", objective=loss)
    assert hooks_of(module64) == 0
    assert all(parameter.requires_grad for parameter in module64.parameters())


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("objective", ["kl", "js"])
def test_objectives_that_are_stationary_are_refused(gpt2_tiny64: nn.Module, objective: str) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match="zero gradient.*eap-ig-inputs"):
        discover(model, random_task(model), "relp", objective=objective)


def changed(module: nn.Module, change: Callable[[nn.Module], None]) -> Model:
    copy = deepcopy(module)
    change(copy)
    return load_model(copy)


def set_activation(activation: nn.Module) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module.transformer.h[1].mlp, "act", activation)


class OtherNorm(nn.Module):
    """The arithmetic that the family describes, in a class of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(24, dtype=torch.float64)), 1e-5
        self.bias = nn.Parameter(torch.zeros(24, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, (24,), self.weight, self.bias, self.eps)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_activation(nn.Sigmoid()), "the activation Sigmoid of .* is 0.5 at 0"),
        (set_activation(nn.ReLU(inplace=True)), "overwrites its input"),
    ],
    ids=["not zero at zero", "in place"],
)
def test_parts_without_a_rule_are_named(
    gpt2_tiny64: nn.Module, change: Callable[[nn.Module], None], message: str
) -> None:
    model = changed(gpt2_tiny64, change)
    with pytest.raises(UnsupportedModelError, match=message):
        discover(model, random_task(model), "relp")
    assert hooks_of(model.module) == 0


def test_norms_are_known_by_their_description(gpt2_tiny64: nn.Module) -> None:
    def change(norm: nn.Module) -> Callable[[nn.Module], None]:
        return lambda module: setattr(module.transformer.h[1], "ln_2", norm.double().eval())

    native, other = (changed(gpt2_tiny64, change(norm)) for norm in (nn.LayerNorm(24), OtherNorm()))
    torch.testing.assert_close(
        discover(other, random_task(other), "relp").values,
        discover(native, random_task(native), "relp").values,
    )
