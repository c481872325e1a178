"""Image classifiers from files: what is read with them, what is refused, and tasks that do not fit them."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from assay.core.errors import (
    AssayWarning,
    FileFormatError,
    InputError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.discovery.edges import discover, output_scores
from assay.execution import run_model
from assay.models import Model, load_model
from assay.tasks import EvalTransform, ImageTask, PairTask, draw_shapes


SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 6,
    "initializer_range": 0.3,
}
SHAPES = ("circle", "cross", "moon", "square", "star", "triangle")


def named(names: tuple[str, ...] = SHAPES) -> dict[str, Any]:
    """Configuration entries of class names."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}


def vit(**changes: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.ViTForImageClassification(transformers.ViTConfig(**{**SMALL, **changes})).eval()


def deit() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return transformers.DeiTForImageClassification(transformers.DeiTConfig(**SMALL)).eval()


def deit_with_teacher() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = transformers.DeiTConfig(**SMALL)
        return transformers.DeiTForImageClassificationWithTeacher(config).eval()


def images(n: int = 4, size: int = 32, **rest: Any) -> ImageTask:
    pixels = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))
    return ImageTask(images=pixels, **rest)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    vit().save_pretrained(tmp_path / "my-vit")
    return tmp_path / "my-vit"


# ---- directories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [vit, deit, deit_with_teacher])
def test_a_saved_directory_is_the_same_model(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    module = build()
    module.save_pretrained(tmp_path / "saved")
    model = load_model(tmp_path / "saved")
    assert (model.id, model.tokenizer, model.module.training) == ("saved", None, False)
    assert type(model.module) is type(module)
    assert model.weight_hash == load_model(module).weight_hash
    with torch.no_grad():
        expected = module(images().images).logits
    torch.testing.assert_close(run_model(model, images()), expected)


def test_a_tower_without_the_vocabulary_of_its_configuration_loads(tmp_path: Path) -> None:
    """`config.json` of CLIP describes a text model too, whose weights a classifier does not hold."""
    tower = {name: value for name, value in SMALL.items() if name not in ("num_labels", "initializer_range")}
    config = transformers.CLIPConfig(vision_config=tower, num_labels=6)
    with torch.random.fork_rng(devices=[]):
        module = transformers.CLIPForImageClassification(config).eval()
    module.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = module(images().images).logits
    torch.testing.assert_close(run_model(load_model(tmp_path), images()), expected)


def test_number_type_and_identity(saved: Path) -> None:
    wide = load_model(saved, dtype=torch.float64)
    assert wide.result_dtype == torch.float64
    record = wide.describe()
    assert (record["family"], record["dtype"]) == ("vit", "float64")
    assert record["weight_hash"] != load_model(saved).weight_hash


def test_class_names_are_read_and_change_no_identity(tmp_path: Path) -> None:
    vit(**named()).save_pretrained(tmp_path / "named")
    model = load_model(tmp_path / "named")
    assert model.classes == SHAPES
    without = load_model(vit())
    assert without.classes is None  # LABEL_0 ... are made up by transformers
    assert model.weight_hash == without.weight_hash


def test_what_changes_a_number_changes_the_identity() -> None:
    other = vit(layer_norm_eps=1e-3)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), vit().parameters(), strict=True):
            mine.copy_(theirs)
    assert load_model(other).weight_hash != load_model(vit()).weight_hash


def test_preprocessing_is_read(saved: Path) -> None:
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.25, 0.3],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": 32, "width": 32},
    }
    (saved / "preprocessor_config.json").write_text(json.dumps(content))
    model = load_model(saved)
    assert model.preprocessing == content
    transform = EvalTransform.for_model(model)
    assert (transform.mean, transform.resample, transform.resize) == ((0.4, 0.5, 0.6), "bicubic", (32, 32))
    task = draw_shapes("flat", 6, size=32).with_transform(transform)
    assert run_model(model, task).shape == (6, 6)


def test_without_preprocessing_a_warning_says_what_is_assumed(saved: Path) -> None:
    model = load_model(saved)
    assert model.preprocessing is None
    with pytest.warns(AssayWarning, match="the model does not state how to prepare its images"):
        assert EvalTransform.for_model(model).mean == (0.5, 0.5, 0.5)


def test_pickled_weights_are_refused_unless_trusted(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(vit().state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match=r"weights in 'pytorch_model.bin'"):
        load_model(saved)
    assert load_model(saved, allow_pickle=True).weight_hash == load_model(vit()).weight_hash


def test_truncated_weights_are_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileFormatError, match="cannot load .* image classifier: "):
        load_model(saved)


def test_a_backbone_without_a_head_is_no_classifier(tmp_path: Path) -> None:
    """A random head would be made up for it."""
    transformers.ViTModel(transformers.ViTConfig(**SMALL)).save_pretrained(tmp_path / "backbone")
    with pytest.raises(FileFormatError, match=r"not a complete checkpoint: missing keys classifier\.bias"):
        load_model(tmp_path / "backbone")


def test_nan_weights_are_named(saved: Path) -> None:
    path = saved / "model.safetensors"
    weights = load_file(path)
    weights["classifier.bias"][2] = torch.nan
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(NonFiniteError, match=r"weight 'classifier\.bias' of my-vit holds NaN"):
        load_model(saved)


# ---- modules -------------------------------------------------------------------------------------------


def test_live_modules_without_a_head_are_refused() -> None:
    config = transformers.ViTConfig(**SMALL)
    with pytest.raises(UnsupportedModelError, match="ViTModel: it is not an image classifier; supported"):
        load_model(transformers.ViTModel(config).eval())
    with pytest.raises(UnsupportedModelError, match=r"no classification head \(num_labels is 0\)"):
        load_model(vit(num_labels=0))


def test_a_subclass_of_a_served_class_is_served() -> None:
    class MyOwn(transformers.ViTForImageClassification):
        """A classifier of one's own, without a change."""

    assert load_model(MyOwn(transformers.ViTConfig(**SMALL)).eval()).n_classes == 6


def test_grey_images_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="reads images of 1 channels, but image tasks are RGB"):
        load_model(vit(num_channels=1))


def test_training_mode_is_refused_also_of_a_part() -> None:
    module = vit()
    model = load_model(module)
    module.train()
    for call in (run_model, discover, output_scores):
        with pytest.raises(InputError, match=r"training mode.*call module\.eval\(\) first"):
            call(model, images())
    module.eval()
    module.vit.layers[1].train()
    with pytest.raises(InputError, match=r"^vit\.layers\.1 of ViTForImageClassification is in training mode"):
        run_model(model, images())


# ---- tasks that do not fit -----------------------------------------------------------------------------


@pytest.fixture
def model() -> Model:
    return load_model(vit(**named()))


def test_prompts_for_images_and_the_other_way_round(model: Model, gpt2_tiny: nn.Module) -> None:
    ids = torch.ones(3, 5).long()
    prompts = PairTask(clean=ids, corrupted=ids, answers=ids[:, :1])
    text = load_model(gpt2_tiny)
    for call in (run_model, discover):
        with pytest.raises(InputError, match=r"reads images, but the task 'custom' holds prompts"):
            call(model, prompts)
        with pytest.raises(InputError, match=r"reads prompts, but the task 'custom' holds images"):
            call(text, images())


def test_a_language_model_has_no_classes(gpt2_tiny: nn.Module) -> None:
    text = load_model(gpt2_tiny)
    assert text.vision is None
    with pytest.raises(InputError, match="is a language model"):
        _ = text.classes


def test_images_of_another_size(model: Model) -> None:
    for call in (run_model, discover, output_scores):
        with pytest.raises(ShapeError, match=r"are 16 x 16, but the model reads 32 x 32"):
            call(model, images(size=16))


def test_labels_beyond_the_classes(model: Model) -> None:
    task = images(labels=torch.tensor([0, 1, 6, 2]))
    with pytest.raises(InputError, match="labels hold class 6, but the model has classes 0 to 5"):
        discover(model, task)


def test_other_class_names(model: Model) -> None:
    others = images(labels=torch.zeros(4).long(), classes=(*SHAPES[:5], "hexagon"))
    with pytest.raises(InputError, match="in the same order: model .*'triangle'., data .*'hexagon'"):
        run_model(model, others)
    turned = images(labels=torch.zeros(4).long(), classes=SHAPES[::-1])
    with pytest.raises(InputError, match="in the same order"):
        run_model(model, turned)


def test_one_image_has_no_mean(model: Model) -> None:
    with pytest.raises(InputError, match="give at least 2 examples"):
        discover(model, images(1))


# ---- timm, which is not installed here -----------------------------------------------------------------


def test_timm_models_need_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    directory = tmp_path / "of-timm"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}))
    weights = directory / "model.safetensors"
    save_file({"head.bias": torch.zeros(2)}, weights)
    for source in ("timm:vit_tiny_patch16_224", str(directory)):
        with pytest.raises(
            MissingExtraError, match=r"is a timm model.*pip install 'circuit-assay\[vision\]'"
        ):
            load_model(source)


def test_a_folder_called_timm_is_not_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds a folder as an empty package."""
    (tmp_path / "timm").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    if importlib.util.find_spec("timm").origin is not None:
        pytest.skip("timm is installed")
    with pytest.raises(MissingExtraError, match="cannot import name 'create_model'"):
        load_model("timm:vit_tiny_patch16_224")
