"""Differentiable scores and the circuit loss: reference values, a slow version, conventions and bad input."""

import math

import pytest
import torch
import vit_goldens
from torch import Tensor, nn

import assay
from assay.analyses.generalization import output_depth_bias
from assay.analyses.generalization.circuit_loss import CircuitLoss, depth_loss, live_scores
from assay.analyses.generalization.dependency import LayerSets
from assay.core.errors import InputError, NonFiniteError, UnknownNameError
from assay.models import Model


def tiny_vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = ViTForImageClassification(
            ViTConfig(
                hidden_size=24,
                num_hidden_layers=2,
                num_attention_heads=3,
                intermediate_size=40,
                image_size=16,
                patch_size=8,
                num_labels=5,
                initializer_range=0.3,
            )
        )
    return module.double().eval()


@pytest.fixture
def model() -> Model:
    return assay.load_model(tiny_vit())


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 16, 16, generator=generator, dtype=torch.float64)


# ---------------------------------------------------------------------------------------- reference data


@pytest.mark.parametrize("name", vit_goldens.NAMES)
@pytest.mark.parametrize("variant", ["eap_ig_detach_g", "eap_ig_detach_actdiff"])
def test_scores_loss_and_every_gradient_norm_are_those_of_the_public_code(name: str, variant: str) -> None:
    reference = vit_goldens.facts(name)["circuit_finetune"]
    expected = reference[variant.removeprefix("eap_ig_")]
    model = assay.load_model(vit_goldens.module(name))
    found = live_scores(model, vit_goldens.task(name).images, variant=variant, steps=4)
    assert list(model.graph.sources[1:]) == expected["names"]

    # The gradient is stored in float64 and agrees to rounding.
    first = torch.tensor(reference["g_ref_cls_first"], dtype=torch.float64)
    torch.testing.assert_close(found.gradient[0, 0], first, rtol=1e-10, atol=0)
    assert float(found.gradient.norm()) == pytest.approx(reference["g_ref_norm"], rel=1e-12)
    # The reference adds the scores up in float32, and they come out small beside what is added: 1e-7 of the
    # largest is all that is known of them, and of what is derived from them.
    scores = torch.tensor(expected["scores"], dtype=torch.float64)
    accuracy = 5e-7 * float(scores.abs().max())
    torch.testing.assert_close(found.values[1:].detach(), scores, rtol=0, atol=accuracy)

    depth = model.n_layers
    term = depth_loss(model.graph, found.values, LayerSets((1, 1), (depth, depth)))
    assert term.value.item() == pytest.approx(expected["loss_neg_ddb_out_block0_vs_last"], rel=3e-7)
    term.value.backward()
    parameters = dict(model.module.named_parameters())
    assert len(expected["grad_norms"]) >= 27
    for timm_name, norm in expected["grad_norms"].items():
        state = {timm_name: vit_goldens.tensor(name, f"state/{timm_name}")}
        gradients = [parameters[each].grad for each in vit_goldens.hugging_face_names(state)]
        got = sum(float((gradient**2).sum()) for gradient in gradients if gradient is not None) ** 0.5
        assert got == pytest.approx(norm, rel=5e-7, abs=1e-12), timm_name


# ------------------------------------------------------------------------------- definitions, done slowly


def slow_scores(module: nn.Module, images: Tensor, steps: int, *, second: bool) -> Tensor:
    """Scores of one-by-one node outputs `z_h W_O[h]` against per-image autograd through the whole model."""
    streams: list[Tensor] = []
    outputs: list[Tensor] = []
    hooks = []
    for layer in module.vit.layers:

        def heads(attention: nn.Module, args: tuple[Tensor, ...]) -> None:
            weight = attention.weight
            for part in range(3):
                columns = slice(8 * part, 8 * part + 8)
                outputs.append(args[0][..., columns] @ weight[:, columns].T)

        hooks.append(layer.attention.o_proj.register_forward_pre_hook(heads))
        hooks.append(layer.mlp.register_forward_hook(lambda part, args, output: outputs.append(output)))
    hooks.append(module.vit.layernorm.register_forward_pre_hook(lambda part, args: streams.append(args[0])))
    entering = module.vit.embeddings(images)
    outputs.append(entering)
    clean = module(images).logits.detach()
    for hook in hooks:
        hook.remove()
    nodes, outputs = outputs[:], []
    gradient = torch.zeros_like(entering)  # at every position; all but the first come out as 0
    for k in range(1, steps):
        mixed = entering.mean(0) + k / steps * (entering - entering.mean(0))
        for layer in module.vit.layers:
            mixed = layer(mixed)
        mixed = mixed if second else mixed.detach().requires_grad_()
        logits = module.classifier(module.vit.layernorm(mixed)[:, 0])
        divergence = torch.nn.functional.kl_div(
            logits.log_softmax(-1), clean.softmax(-1), reduction="batchmean"
        )
        scaled = divergence / logits.shape[1]
        gradient = gradient + torch.autograd.grad(scaled, mixed, create_graph=second)[0] / steps
    if second:
        nodes = [node.detach() for node in nodes]
    return torch.stack([((node.detach().mean(0) - node) * gradient).sum() for node in nodes])


@pytest.mark.parametrize("variant", ["eap_ig_detach_g", "eap_ig_detach_actdiff"])
def test_scores_and_their_gradients_equal_the_slow_definition(
    variant: str, model: Model, images: Tensor
) -> None:
    slow = slow_scores(model.module, images, 3, second=variant == "eap_ig_detach_actdiff")
    fast = live_scores(model, images, variant=variant, steps=3).values
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-14)
    weights = [model.module.vit.layers[0].attention.o_proj.weight, model.module.vit.layers[0].mlp.fc1.weight]
    direction = torch.linspace(-1, 1, len(slow), dtype=torch.float64)
    expected = torch.autograd.grad((slow * direction).sum(), weights)
    for got, want in zip(torch.autograd.grad((fast * direction).sum(), weights), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-14)


def test_parameters_that_do_not_learn_get_no_gradient(images: Tensor) -> None:
    module = tiny_vit()
    module.requires_grad_(False)
    module.vit.layers[0].mlp.fc1.weight.requires_grad_(True)
    live_scores(assay.load_model(module), images).values.sum().backward()
    learned = [name for name, parameter in module.named_parameters() if parameter.grad is not None]
    assert learned == ["vit.layers.0.mlp.fc1.weight"]


# ------------------------------------------------------------------------------------------------- the loss


def test_log_and_ratio_by_hand() -> None:
    graph = assay.graph.build_graph(2, 1)  # sources: input a0.h0 m0 a1.h0 m1
    scores = torch.tensor([9.0, -1.0, 1.0, 2.0, -6.0], dtype=torch.float64, requires_grad=True)
    sets = LayerSets((1, 1), (2, 2))
    log = depth_loss(graph, scores, sets)
    assert (log.deep.item(), log.shallow.item()) == (8.0, 2.0)
    assert log.value.item() == pytest.approx(-math.log(4))
    assert log.value.item() == pytest.approx(-output_depth_bias(graph, scores.detach()), rel=1e-9)
    (gradient,) = torch.autograd.grad(log.value, scores)
    expected = torch.tensor([0.0, -0.5, 0.5, -0.125, 0.125], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)
    ratio = depth_loss(graph, scores, sets, loss="ratio")
    assert ratio.value.item() == pytest.approx(0.25)


def test_a_model_with_a_zero_classifier_is_left_alone(images: Tensor) -> None:
    module = tiny_vit()
    nn.init.zeros_(module.classifier.weight)
    value, readings = CircuitLoss().on(module)(images)
    assert (value.item(), readings) == (0, {"deep": 0, "shallow": 0})
    value.backward()
    assert all(p.grad is None or not p.grad.any() for p in module.parameters())


def test_descending_the_loss_raises_the_depth_bias(images: Tensor) -> None:
    module = tiny_vit()
    loss = CircuitLoss(weight=1.0).on(module)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.002)
    values = []
    for _ in range(15):
        optimiser.zero_grad()
        value = loss(images).value
        value.backward()
        optimiser.step()
        values.append(value.item())
    assert values[-1] < values[0] - 0.05


def test_weight_zero_measures_and_trains_nothing(images: Tensor) -> None:
    value, readings = CircuitLoss(weight=0).on(tiny_vit())(images)
    assert value.item() == 0
    assert not value.requires_grad
    assert readings["deep"] > 0


# ------------------------------------------------------------------------------------------------ settings


def test_settings_come_back_and_the_published_blocks_have_a_name() -> None:
    settings = CircuitLoss(weight=0.05, sets="reference")
    assert CircuitLoss.from_dict(settings.to_dict()) == settings
    assert settings.rule.layers(12) == LayerSets((1, 4), (10, 12))
    assert CircuitLoss().rule.layers(12) == LayerSets((1, 3), (10, 12))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weight": -0.1}, r"weight \(lambda\) of the circuit loss is -0.1 .* a weight of 0 or more"),
        ({"weight": math.inf}, r"weight \(lambda\) of the circuit loss is inf"),
        ({"steps": 1}, r"steps \(m\) 1; give .* 2 steps or more"),
        ({"ratio": 0.6}, r"fraction of the blocks in \(0, 0.5\]"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CircuitLoss(**wrong)


def test_unknown_names_list_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="eap_ig_detach_g"):
        CircuitLoss(variant="eap_ig_detach")
    with pytest.raises(UnknownNameError, match="log"):
        CircuitLoss(loss="lag")


def test_models_and_batches_without_scores_are_refused(images: Tensor) -> None:
    module = tiny_vit()
    term = CircuitLoss().on(module)
    with pytest.raises(InputError, match=r"a batch of 1 image equals its mean.* use 2 or more"):
        term(images[:1])
    module.vit.layers[1].train()
    with pytest.raises(InputError, match=r"in training mode.* call module.eval\(\) first"):
        term(images)
    with pytest.raises(InputError, match="mini is a language model"):
        live_scores(assay.load_model("mini"), torch.zeros(2, 3, 8, 8))
    with torch.no_grad():
        module.classifier.bias[0] = math.nan
    with pytest.raises(NonFiniteError, match="classifier.bias"):
        CircuitLoss().on(module)
