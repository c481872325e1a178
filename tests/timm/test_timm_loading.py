"""timm models from names, checkpoints and directories; what is read with them and what is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.layers import Attention, RmsNorm
from timm.models import vision_transformer
from timm.models._hub import save_for_hf
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from assay.core.errors import FileFormatError, InputError, UnsupportedModelError
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import load_model
from assay.tasks import EvalTransform, ImageTask, draw_shapes


NAME = "vit_tiny_patch16_224"
TINY: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 3}
SMALL: dict[str, Any] = {**TINY, "img_size": 16, "patch_size": 8, "num_classes": 5}


@pytest.fixture(autouse=True)
def _seed() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def made(**changes: Any) -> nn.Module:
    """A registered architecture with other sizes, weights and all."""
    options = {**TINY, "img_size": 32, "num_classes": 6, **changes}
    return timm.create_model(options.pop("name", NAME), pretrained=False, **options).eval()


def images(size: tuple[int, int] = (32, 32), n: int = 4, **rest: Any) -> ImageTask:
    return ImageTask(images=torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(0)), **rest)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    names = {"label_names": ["circle", "square", "triangle", "star", "cross", "moon"]}
    save_for_hf(made(), str(tmp_path / "my-timm"), safe_serialization=True, model_config=names)
    return tmp_path / "my-timm"


def change(path: Path, **entries: Any) -> None:
    """Rewrite some entries of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


# ---- directories ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"global_pool": "avg", "drop_rate": 0.1},
        {"reg_tokens": 2, "init_values": 0.1},
        {"name": "deit_tiny_distilled_patch16_224"},
        {"name": "vit_tiny_patch16_224", "img_size": (32, 48), "pre_norm": True},
    ],
    ids=lambda changes: " ".join(changes) or "plain",
)
def test_a_saved_directory_is_the_same_model(changes: dict[str, Any], tmp_path: Path) -> None:
    module = made(**changes)
    save_for_hf(module, str(tmp_path / "saved"), safe_serialization=True)
    model = load_model(tmp_path / "saved")
    assert (model.id, model.family.key, model.tokenizer) == ("saved", "timm-vit", None)
    assert not model.module.training
    assert model.weight_hash == load_model(module).weight_hash
    task = images(model.image_size)
    with torch.no_grad():
        torch.testing.assert_close(run_model(model, task), module(task.clean))


def test_class_names_and_preprocessing_are_read(saved: Path) -> None:
    model = load_model(saved)
    assert model.classes == ("circle", "square", "triangle", "star", "cross", "moon")
    assert model.preprocessing is not None
    assert model.preprocessing["input_size"] == [3, 32, 32]
    assert not {"file", "source"} & model.preprocessing.keys()
    transform = EvalTransform.for_model(model)
    assert (transform.crop, transform.resize) == ((32, 32), 35)  # 32 / 0.9
    assert (transform.mean, transform.resample) == ((0.5, 0.5, 0.5), "bicubic")
    task = draw_shapes("flat", 6, size=32).with_transform(transform)
    assert discover(model, ImageTask(images=task.clean), steps=2).values.shape[0] == model.graph.n_sources


def test_class_names_by_number(saved: Path) -> None:
    """A mapping is allowed too; its keys are strings once they have been through JSON."""
    before = load_model(saved).weight_hash
    change(saved / "config.json", label_names={str(i): f"kind {i}" for i in (5, 4, 3, 2, 1, 0)})
    model = load_model(saved)
    assert (model.classes, model.weight_hash) == (tuple(f"kind {i}" for i in range(6)), before)
    change(saved / "config.json", label_names={"0": "only one"})
    assert load_model(saved).classes is None


def _drop_a_tensor(path: Path) -> None:
    file = path / "model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if name != "head.bias"}, file)


def _seven_classes(path: Path) -> None:
    """The argument of the architecture goes before the entry."""
    stored = json.loads((path / "config.json").read_text())
    change(path / "config.json", num_classes=7, model_args={**stored["model_args"], "num_classes": 7})


# The error -> what was done to a saved model.
DAMAGE: dict[str, Callable[[Path], object]] = {
    r"cannot load .* with timm: .*header": lambda path: os.truncate(path / "model.safetensors", 1000),
    r'cannot load .* with timm: (?s:.*)Missing key\(s\) in state_dict: "head.bias"': _drop_a_tensor,
    r"Unknown model \(nope\)": lambda path: change(path / "config.json", architecture="nope"),
    "unexpected keyword .*sauce": lambda path: change(path / "config.json", model_args={"sauce": 1}),
    "size mismatch for head.weight": _seven_classes,
    r"config\.json is not a JSON file": lambda path: (path / "config.json").write_text("{"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_directories_are_refused(saved: Path, message: str) -> None:
    DAMAGE[message](saved)
    with pytest.raises(FileFormatError, match=message):
        load_model(saved)


def test_unknown_names() -> None:
    with pytest.raises(FileFormatError, match=r"'timm:vit_minuscule' with timm: Unknown model.*timm:NAME"):
        load_model("timm:vit_minuscule")


# ---- refusals ------------------------------------------------------------------------------------------


class Gated(Attention):
    """Attention whose output passes a gate, an option no constructor of a whole model hands on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, gated=True)


Gated.__name__ = "Attention"

OTHER = "blocks.0.* does not compute what its weights and the description of family 'timm-vit' imply"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "attention pooling": ({"global_pool": "map"}, r"pools with attention \(attn_pool\)"),
    "no pooling": ({"global_pool": ""}, r"global_pool is ''; served are 'token', 'avg', 'max' and 'avgmax'"),
    "parallel": (
        {"block_fn": vision_transformer.ParallelScalingBlock},
        "blocks of type ParallelS",
    ),
    "parallel things": (
        {"block_fn": vision_transformer.ParallelThingsBlock},
        "blocks of type ParallelT",
    ),
    "gate": ({"attn_layer": Gated}, OTHER),
    "differential attention": ({"attn_layer": "diff"}, OTHER),
    "RMS norm": ({"norm_layer": RmsNorm}, OTHER),
    "norm of all heads": ({"scale_attn_norm": True}, OTHER),
    "any size": ({"dynamic_img_size": True}, "takes images of any size; create it with a fixed img_size"),
    "no head": ({"num_classes": 0}, r"no classification head \(num_classes is 0\)"),
    "dropped patches": ({"patch_drop_rate": 0.2}, r"drops patches \(patch_drop\)"),
    "grey": ({"in_chans": 1}, "reads images of 1 channels, but image tasks are RGB, 3 channels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_graph_does_not_have_is_refused(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(VisionTransformer(**{**SMALL, **options}).eval())


def test_a_device_map_is_refused_before_anything_is_loaded(saved: Path) -> None:
    for source in (saved, "timm:vit_tiny_patch16_224"):
        with pytest.raises(InputError, match="device_map applies only to checkpoints of transformers"):
            load_model(source, device_map="auto")


def test_other_modules_of_timm_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"^ResNet .*supported.*, and timm's VisionTr"):
        load_model(timm.create_model("resnet10t", pretrained=False).eval())
    module = VisionTransformer(**SMALL).eval()
    module.set_grad_checkpointing(True)  # hooks would see a recomputed block twice
    with pytest.raises(UnsupportedModelError, match=r"call module\.set_grad_checkpointing\(False\)"):
        load_model(module)


@pytest.mark.parametrize(
    "code",
    [
        "from assay import load_model; print(load_model(sys.argv[1]).n_layers)",
        "from assay.zoo import initial_module as built; "
        "print(len(built('scratch', 'abcde', architecture='timm:vit_tiny_patch16_224').module.blocks))",
    ],
    ids=["load_model", "zoo"],
)
def test_a_fresh_process_imports_timm_without_help(tmp_path: Path, code: str) -> None:
    """Whatever PyTorch torchvision's compiled part was built for; nothing of this folder runs before."""
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=5)
    save_for_hf(module, str(tmp_path), safe_serialization=True)
    command = [sys.executable, "-c", f"import sys; {code}"]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "12", done.stderr
