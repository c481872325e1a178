"""The circuit loss: reference values, a slow version, bad input; fine-tuning with it, and its dynamics."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import vit_goldens
from small_vits import untrained_vit
from torch import Tensor, nn

import assay
from assay.analyses.generalization import Dynamics, dependency_depth_bias, finetune, training_dynamics
from assay.analyses.generalization.circuit_loss import CircuitLoss, depth_loss, live_scores
from assay.core.errors import InputError
from assay.models import Model
from assay.tasks import SHAPE_CLASSES, EvalTransform, ImageTask, draw_shapes
from assay.zoo import Recipe, TrainingRun
from assay.zoo.models import weights_hash


def tiny_vit() -> nn.Module:
    return copy.deepcopy(untrained_vit(3, layers=2, classes=5)).double()


@pytest.fixture
def model() -> Model:
    return assay.load_model(tiny_vit())


@pytest.fixture
def images() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 3, 32, 32, generator=generator, dtype=torch.float64)


# ---------------------------------------------------------------------------------------- reference data


@pytest.mark.parametrize("name", vit_goldens.NAMES)
@pytest.mark.parametrize("variant", ["eap_ig_detach_g", "eap_ig_detach_actdiff"])
def test_scores_loss_and_every_gradient_norm_are_those_of_the_public_code(name: str, variant: str) -> None:
    reference = vit_goldens.facts(name)["circuit_finetune"]
    expected = reference[variant.removeprefix("eap_ig_")]
    model = assay.load_model(vit_goldens.module(name))
    values, gradient = live_scores(model, vit_goldens.task(name).images, variant=variant, steps=4)
    assert list(model.graph.sources[1:]) == expected["names"]

    # The gradient is stored in float64 and agrees to rounding.
    first = torch.tensor(reference["g_ref_cls_first"], dtype=torch.float64)
    torch.testing.assert_close(gradient[0, 0], first, rtol=1e-10, atol=0)
    assert float(gradient.norm()) == pytest.approx(reference["g_ref_norm"], rel=1e-12)
    # The reference adds the scores up in float32, and they come out small beside what is added: 1e-7 of the
    # largest is all that is known of them, and of what is derived from them.
    scores = torch.tensor(expected["scores"], dtype=torch.float64)
    accuracy = 5e-7 * float(scores.abs().max())
    torch.testing.assert_close(values[1:].detach(), scores, rtol=0, atol=accuracy)

    depth = model.n_layers
    loss, _, _ = depth_loss(model.graph, values, (slice(1, 2), slice(depth, depth + 1)))
    assert loss.item() == pytest.approx(expected["loss_neg_ddb_out_block0_vs_last"], rel=3e-7)
    loss.backward()
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
    fast = live_scores(model, images, variant=variant, steps=3)[0]
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-14)
    weights = [model.module.vit.layers[0].attention.o_proj.weight, model.module.vit.layers[0].mlp.fc1.weight]
    direction = torch.linspace(-1, 1, len(slow), dtype=torch.float64)
    expected = torch.autograd.grad((slow * direction).sum(), weights)
    for got, want in zip(torch.autograd.grad((fast * direction).sum(), weights), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-14)


# ------------------------------------------------------------------------------------------------- the loss


def test_log_and_ratio_by_hand() -> None:
    graph = assay.graph.build_graph(2, 1)  # sources: input a0.h0 m0 a1.h0 m1
    scores = torch.tensor([9.0, -1.0, 1.0, 2.0, -6.0], dtype=torch.float64, requires_grad=True)
    sets = (slice(1, 2), slice(2, 3))
    log, deep, shallow = depth_loss(graph, scores, sets)
    assert (deep.item(), shallow.item()) == (8.0, 2.0)
    assert log.item() == pytest.approx(-math.log(4))
    (gradient,) = torch.autograd.grad(log, scores)
    expected = torch.tensor([0.0, -0.5, 0.5, -0.125, 0.125], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)
    ratio, _, _ = depth_loss(graph, scores, sets, loss="ratio")
    assert ratio.item() == pytest.approx(0.25)


def test_a_model_with_a_zero_classifier_is_left_alone(images: Tensor) -> None:
    module = tiny_vit()
    nn.init.zeros_(module.classifier.weight)
    value, readings = CircuitLoss().on(module)(images)
    assert (value.item(), readings) == (0, {"deep": 0, "shallow": 0})
    value.backward()
    assert all(p.grad is None or not p.grad.any() for p in module.parameters())
    value, readings = CircuitLoss(weight=0).on(tiny_vit())(images)  # measures, and trains nothing
    assert (value.item(), value.requires_grad) == (0, False)
    assert readings["deep"] > 0


def test_settings_models_and_batches_without_scores_are_refused(images: Tensor) -> None:
    for wrong, message in {
        ("weight", -0.1): "weight is -0.1 .* give 0 or more",
        ("steps", 1): "steps 1; give .* 2 or more",
        ("ratio", 0.6): r"fraction of the blocks in \(0, 0.5\]",
        ("variant", "eap_ig_detach"): "eap_ig_detach_g",
        ("loss", "lag"): "log",
    }.items():
        with pytest.raises(InputError, match=message):
            CircuitLoss(**dict([wrong]))
    term = CircuitLoss().on(tiny_vit())
    with pytest.raises(InputError, match=r"a batch of 1 image equals its mean.* use 2 or more"):
        term(images[:1])
    with pytest.raises(InputError, match="mini is a language model"):
        live_scores(assay.load_model("mini"), torch.zeros(2, 3, 8, 8))


# ------------------------------------------------------------------------- fine-tuning, and its dynamics


TRANSFORM = EvalTransform(resize=(32, 32))
RECIPE = Recipe(
    lr=1e-3, batch_size=12, steps=6, warmup=1, optimiser="adamw", validate_every=2, head_dropout=0.0
)


def shapes_vit() -> nn.Module:
    module = copy.deepcopy(untrained_vit(layers=2))
    module.config.id2label = dict(enumerate(SHAPE_CLASSES))
    return module


def shapes(domain: str = "flat", n: int = 36, start: int = 0) -> ImageTask:
    return draw_shapes(domain, n, start=start)


def tuned(folder: Path, circuit: CircuitLoss | None = None, recipe: Recipe = RECIPE) -> TrainingRun:
    sets = shapes(), shapes(start=100, n=24)
    return finetune(shapes_vit(), *sets, folder, circuit=circuit, recipe=recipe, transform=TRANSFORM)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    return tuned(tmp_path_factory.mktemp("finetune") / "run")


@pytest.fixture(scope="module")
def course(finished: TrainingRun) -> Dynamics:
    probe = shapes(start=100, n=24)
    return training_dynamics(finished.folder, probe, watch={"validation": probe})


def test_the_folder_is_a_model_with_the_history_of_its_loss(finished: TrainingRun, tmp_path: Path) -> None:
    assert weights_hash(assay.load_model(finished.folder).module) == finished.weights
    assert CircuitLoss.from_dict(finished.loss_term) == CircuitLoss()
    assert finished.checkpoints == (0, 2, 4, 6)
    assert len(finished.history["deep"]) == len(finished.history["term"]) == 6
    # The loss changes the weights, and a weight of 0 is plain training.
    plain = tuned(tmp_path / "plain", CircuitLoss(weight=0))
    assert plain.loss_term is None
    assert "term" not in plain.history
    assert plain.weights != finished.weights
    with pytest.raises(InputError, match=r"loss_term.weight is 0.1 there, 0.2 here"):
        tuned(finished.folder, CircuitLoss(weight=0.2))


# ---------------------------------------------------------------------------------------------- dynamics


def test_readings_are_the_depth_bias_of_the_full_circuit(finished: TrainingRun, course: Dynamics) -> None:
    reading = course.readings[-1]
    model = assay.load_model(finished.folder / "checkpoints" / "6")
    probe = shapes(start=100, n=24).with_transform(TRANSFORM)
    scores = assay.discover(model, probe, "eap-ig-inputs", steps=5)
    column = scores.values[:, -1].abs()
    assert reading["deep"] == pytest.approx(float(column[5:].sum()), rel=1e-4)
    assert reading["shallow"] == pytest.approx(float(column[1:5].sum()), rel=1e-4)
    assert reading["depth_bias"] == pytest.approx(dependency_depth_bias(scores), rel=1e-4)
    assert reading["low"] < reading["depth_bias"] < reading["high"]


def test_dynamics_of_a_folder_are_those_of_its_checkpoints(
    finished: TrainingRun, course: Dynamics, tmp_path: Path
) -> None:
    assert course.to_frame()["step"].tolist() == [0, 2, 4, 6]
    scores = {row["step"]: row["score"] for row in finished.curve}
    assert {row["step"]: row["scores"]["validation"] for row in course.readings[1:]} == scores
    assert course.facts["deep_blocks"] == [1, 1]
    # The kept model stands for its step where no checkpoint does.
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "0").symlink_to(finished.folder / "checkpoints" / "0")
    for name in ("training.json", "config.json", "model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).symlink_to(finished.folder / name)
    fewer = training_dynamics(tmp_path, shapes(start=100, n=24)).readings
    assert [row["step"] for row in fewer] == [0, finished.best_step]
    whole = {row["step"]: row["depth_bias"] for row in course.readings}
    assert fewer[1]["depth_bias"] == whole[finished.best_step]


# ---------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_trained_or_followed_is_refused(finished: TrainingRun, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trains the head alone"):
        tuned(tmp_path / "run", recipe=replace(RECIPE, mode="linear"))
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="has no checkpoint"):
        training_dynamics(tmp_path, shapes())
    with pytest.raises(InputError, match="and 1 images; give 1 and 2, or more"):
        training_dynamics(finished.folder, shapes(n=1))
    with pytest.raises(InputError, match="have no labels"):
        training_dynamics(finished.folder, shapes(), watch={"sketch": replace(shapes(), labels=None)})
