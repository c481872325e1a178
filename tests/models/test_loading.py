"""Models from directories, the hub and modules: what is read with them, and what is refused by name."""

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from copy import deepcopy
from fnmatch import fnmatch
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
    HubError,
    InputError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    TokenizationError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import load_model
from assay.models.loading import MINI, check_description, choose_dtype
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


def tiny(kind: str, **changes: Any) -> nn.Module:
    """A small GPT-2 or ViT."""
    sizes = {"vocab_size": 61, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 32}
    if kind == "vit":
        return vit(**changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.GPT2Config(**{**sizes, "bos_token_id": 0, "eos_token_id": 0, **changes})
        return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture(params=["gpt2", "vit"])
def module(request: pytest.FixtureRequest) -> nn.Module:
    return tiny(request.param)


@pytest.fixture
def saved(module: nn.Module, tmp_path: Path) -> Path:
    module.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# ---- directories


def test_a_saved_directory_is_the_same_model(saved: Path, module: nn.Module) -> None:
    loaded = load_model(saved)
    assert (loaded.id, loaded.tokenizer, loaded.module.training) == ("model", None, False)
    assert loaded.weight_hash == load_model(module).weight_hash
    wide, half = (load_model(saved, dtype=dtype) for dtype in (torch.float64, torch.bfloat16))
    assert (wide.result_dtype, wide.describe()["dtype"]) == (torch.float64, "float64")
    assert (half.dtype, half.result_dtype) == (torch.bfloat16, torch.float32)
    assert wide.weight_hash != loaded.weight_hash


@pytest.mark.parametrize("build", [deit, deit_with_teacher])
def test_both_classifiers_of_a_configuration_are_told_apart(
    build: Callable[[], nn.Module], tmp_path: Path
) -> None:
    module = build()
    module.save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert type(model.module) is type(module)
    with torch.no_grad():
        torch.testing.assert_close(run_model(model, images()), module(images().images).logits)


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


def test_class_names_are_read_and_change_no_identity(tmp_path: Path) -> None:
    vit(**named()).save_pretrained(tmp_path / "named")
    model = load_model(tmp_path / "named")
    assert model.classes == SHAPES
    without = load_model(vit())
    assert without.classes is None  # LABEL_0 ... are made up by transformers
    assert model.weight_hash == without.weight_hash


def test_preprocessing_is_read(tmp_path: Path) -> None:
    vit().save_pretrained(tmp_path)
    with pytest.warns(AssayWarning, match="the model does not state how to prepare its images"):
        assert EvalTransform.for_model(load_model(tmp_path)).mean == (0.5, 0.5, 0.5)
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
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    model = load_model(tmp_path)
    assert model.preprocessing == content
    transform = EvalTransform.for_model(model)
    assert (transform.mean, transform.resample, transform.resize) == ((0.4, 0.5, 0.6), "bicubic", (32, 32))
    task = draw_shapes("flat", 6, size=32).with_transform(transform)
    assert run_model(model, task).shape == (6, 6)


def test_pickled_weights_are_refused_unless_trusted(saved: Path, module: nn.Module) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(module.state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match=r"weights in 'pytorch_model.bin'.*allow_pickle=True"):
        load_model(saved)
    assert load_model(saved, allow_pickle=True).weight_hash == load_model(module).weight_hash


def changed(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def without(folder: Path, part: str) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if part not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


# What is done to a saved GPT-2 -> the error.
DAMAGE: list[tuple[Callable[[Path], Any], type[Exception], str]] = [
    (lambda at: (at / "config.json").unlink(), FileFormatError, r"has no config\.json"),
    (lambda at: (at / "model.safetensors").unlink(), FileFormatError, "has no weights"),
    (
        lambda at: (at / "model.safetensors").write_bytes((at / "model.safetensors").read_bytes()[:100]),
        FileFormatError,
        "cannot load .* as a causal language model",
    ),
    (lambda at: without(at, "mlp.c_fc.bias"), FileFormatError, r"missing keys .* \(2 of 28 weights\)"),
    (lambda at: changed(at / "config.json", vocab_size=33), FileFormatError, "cannot load|not a complete"),
    (
        lambda at: (at / "adapter_config.json").write_text("{}"),
        UnsupportedModelError,
        "holds an adapter of PEFT; merge it",
    ),
    (
        lambda at: changed(at / "config.json", model_type="bert"),
        UnsupportedModelError,
        "normalises after the addition",
    ),
    (
        lambda at: changed(at / "config.json", model_type="zzz"),
        UnsupportedModelError,
        "'zzz'.* not supported",
    ),
]


@pytest.mark.parametrize(("damage", "error", "message"), DAMAGE)
def test_damaged_directories_are_refused(
    damage: Callable[[Path], Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    tiny("gpt2").save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message):
        load_model(tmp_path)


def test_a_backbone_without_a_head_is_no_classifier(tmp_path: Path) -> None:
    """A random head would be made up for it."""
    transformers.ViTModel(transformers.ViTConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(FileFormatError, match=r"not a complete checkpoint: missing keys classifier\.bias"):
        load_model(tmp_path)


def test_what_is_not_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    reasons = {
        "gpt_neox_japanese": r"is not supported; .*Nearest by name: 'gpt_neox'\. docs/howto/own-model\.md",
        "swinv2": "its stages merge patches.*not a sum of node outputs",
        "mamba2": "its layers carry a state.*not a sum of node outputs",
        "t5": "it is an encoder-decoder.*not a sum of node outputs",
    }
    for model_type, reason in reasons.items():
        config = {"model_type": model_type, "is_encoder_decoder": model_type == "t5"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModelError, match=reason):
            check_description(tmp_path)
    page = Path(__file__).resolve().parents[2] / "docs/howto/own-model.md"
    assert "## If a model is rejected" in page.read_text()


def test_a_missing_shard_is_named(tmp_path: Path, tiny_module: Callable[..., nn.Module]) -> None:
    tiny_module("llama", torch.float32).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = min(tmp_path.glob("*.safetensors"))
    shard.unlink()
    with pytest.raises(FileFormatError, match=rf"has no weights {shard.name}; expected"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("asked", "device", "stored", "chosen"),
    [
        ("auto", "cpu", torch.bfloat16, torch.float32),
        (None, "cpu", torch.float64, torch.float64),
        ("auto", "cpu", None, torch.float32),
        ("auto", "cuda", torch.bfloat16, torch.bfloat16),
        ("auto", "cuda", torch.float64, torch.float64),
        ("auto", "cuda", None, torch.float32),
        (torch.float16, "cpu", torch.float64, torch.float16),
    ],
)
def test_the_number_type_follows_checkpoint_and_device(
    asked: Any, device: str, stored: torch.dtype | None, chosen: torch.dtype
) -> None:
    assert choose_dtype(asked, torch.device(device), stored) is chosen


def test_devices_and_types_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match=r"device 'npu' does not exist: PyTorch .* here has cpu"):
        load_model("mini", device="npu")
    with pytest.raises(InputError, match="expected 'auto', bfloat16"):
        load_model("mini", dtype=torch.int8)


# ---- the hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub with one repository, acme/tiny, in the place of the client's: what was asked of it."""
    import huggingface_hub

    calls: list[dict[str, Any]] = []
    shutil.copytree(MINI, tmp_path / "hub")
    for name in ("pytorch_model.bin", "modeling_tiny.py"):
        (tmp_path / "hub" / name).write_text("never fetched")

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name, **options})
        if name != "acme/tiny":
            raise OSError("Repository Not Found")
        cache = tmp_path / COMMIT
        cache.mkdir(exist_ok=True)
        for file in (tmp_path / "hub").iterdir():
            if any(fnmatch(file.name, pattern) for pattern in options["allow_patterns"]):
                shutil.copy(file, cache)
        return str(cache)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_repository_loads_like_its_directory(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    mini, model = load_model("mini"), load_model("acme/tiny@step3000", token="let-me-in")
    assert model.describe() == {**mini.describe(), "id": "acme/tiny", "revision": COMMIT}
    assert len(model.tokenizer) == len(mini.tokenizer)
    assert {(each["revision"], each["token"]) for each in asked} == {("step3000", "let-me-in")}
    fetched = {file.name for file in (tmp_path / COMMIT).iterdir()}
    assert "model.safetensors" in fetched
    assert not {"pytorch_model.bin", "modeling_tiny.py"} & fetched


def test_what_the_hub_does_not_give_is_named(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(HubError, match="cannot load 'acme/other': it is not a directory, .*Not Found"):
        load_model("acme/other")
    changed(tmp_path / "hub/config.json", model_type="gpt2s")
    with pytest.raises(UnsupportedModelError, match=r"'gpt2s'\) is not supported.*Nearest by name: 'gpt2'"):
        load_model("acme/tiny")
    assert not (tmp_path / COMMIT / "model.safetensors").exists()  # refused before its weights are fetched
    with pytest.raises(InputError, match="revision applies only to ids of the Hugging Face Hub"):
        load_model("mini", revision="main")


# ---- modules


def test_a_live_module_is_used_as_it_is(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    assert model.module is gpt2_tiny
    with pytest.raises(InputError, match="used unchanged"):
        load_model(gpt2_tiny, dtype=torch.float64)


def test_modules_that_are_not_served_are_refused(tiny_module: Callable[..., nn.Module]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"Linear \(model type None\).*gpt2.*VisionTransformer"):
        load_model(nn.Linear(2, 2))
    with pytest.raises(UnsupportedModelError, match="second reader per block"):
        load_model(tiny("gpt2", add_cross_attention=True))
    with pytest.raises(UnsupportedModelError, match="ViTModel: it is not an image classifier; supported"):
        load_model(transformers.ViTModel(transformers.ViTConfig(**SMALL)).eval())
    with pytest.raises(UnsupportedModelError, match=r"no classification head \(num_labels is 0\)"):
        load_model(vit(num_labels=0))
    with pytest.raises(UnsupportedModelError, match="reads images of 1 channels, but image tasks are RGB"):
        load_model(vit(num_channels=1))
    with torch.device("meta"):
        empty = tiny("gpt2")
    with pytest.raises(UnsupportedModelError, match=r"weight 'transformer\.wte\.weight' .* no values"):
        load_model(empty)
    broken = tiny("gpt2")
    with torch.no_grad():
        broken.get_parameter("transformer.h.1.mlp.c_fc.weight")[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"weight 'transformer.h.1.mlp.c_fc.weight' .* NaN"):
        load_model(broken)


# ---- the hash of the weights


def swapped_heads(weight: torch.Tensor) -> None:
    weight.data[:, [0, 1]] = weight.data[:, [1, 0]]


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.__setitem__((0, 0), 1.0),
        lambda weight: weight.data.mul_(2),
        lambda weight: weight.data.numpy().__setitem__((3, 4), 9.0),
        lambda weight: setattr(weight, "data", weight.data + 1),
        swapped_heads,
    ],
    ids=["in place", "data", "numpy", "replaced", "sum kept"],
)
def test_weight_hash_follows_changes(gpt2_tiny: nn.Module, change: Callable[[torch.Tensor], None]) -> None:
    module = deepcopy(gpt2_tiny)
    model = load_model(module)
    weight, before = module.transformer.h[0].attn.c_proj.weight, model.describe()["weight_hash"]
    kept = weight.detach().clone()
    with torch.no_grad():
        change(weight)
    assert model.describe()["weight_hash"] == load_model(module).weight_hash != before
    weight.data = kept
    assert model.weight_hash == before


def test_refreshing_sees_a_change_of_one_number_of_a_large_weight() -> None:
    model = load_model("mini")
    weight, before = model.module.transformer.wte.weight, model.weight_hash
    weight.data[0, 1] += 1
    model.refresh()
    assert model.weight_hash != before


def test_the_hash_knows_what_changes_a_number(gpt2_tiny: nn.Module) -> None:
    other = deepcopy(gpt2_tiny)
    other.config.activation_function = "relu"
    assert load_model(other).weight_hash != load_model(gpt2_tiny).weight_hash
    wider = vit(layer_norm_eps=1e-3)
    wider.load_state_dict(vit().state_dict())
    assert load_model(wider).weight_hash != load_model(vit()).weight_hash


# ---- tasks that do not fit


def test_prompts_longer_than_the_positions_are_refused(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    ids = torch.ones(2, 33).long()
    task = PairTask(clean=ids, corrupted=ids, answers=ids[:, :1], wrong=ids[:, :1] + 1)
    for call in (run_model, discover):
        with pytest.raises(TokenizationError, match="has 33 tokens, but the model reads only 32"):
            call(model, task)


@pytest.mark.parametrize(
    ("kind", "rope", "longest"),
    [
        ("Llama", {"rope_type": "dynamic", "factor": 2.0}, 15),
        (
            "Llama",
            {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            None,
        ),
        ("Phi3", {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}, 8),
    ],
)
def test_prompts_beyond_the_original_length_are_refused_where_frequencies_depend_on_it(
    kind: str, rope: dict[str, Any], longest: int | None
) -> None:
    """Logits would depend on padding, and on the prompts that ran before."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        pad_token_id=0,
        original_max_position_embeddings=8,
        rope_parameters={"rope_theta": 1e4, "original_max_position_embeddings": 8, **rope},
    )
    with torch.random.fork_rng(devices=[]):
        model = load_model(getattr(transformers, f"{kind}ForCausalLM")(config).eval())
    assert model.n_positions == longest
    for length in (8, 15, 16):
        ids = torch.ones(2, length).long()
        task = PairTask(clean=ids, corrupted=ids, answers=ids[:, :1], wrong=ids[:, :1] + 1)
        if longest is None or length <= longest:
            assert run_model(model, task).shape == (2, 61)
        else:
            with pytest.raises(
                TokenizationError, match=f"{length} tokens, but the model reads only {longest}"
            ):
                run_model(model, task)


def test_training_mode_is_refused_also_of_a_part() -> None:
    module = vit()
    model = load_model(module)
    module.train()
    for call in (run_model, discover):
        with pytest.raises(InputError, match=r"training mode.*call module\.eval\(\) first"):
            call(model, images())
    module.eval()
    module.get_submodule("vit.layers.1").train()
    with pytest.raises(InputError, match=r"^vit\.layers\.1 of ViTForImageClassification is in training mode"):
        run_model(model, images())


def test_tasks_that_do_not_fit_are_refused(gpt2_tiny: nn.Module) -> None:
    model, text, ids = load_model(vit(**named())), load_model(gpt2_tiny), torch.ones(3, 5).long()
    prompts = PairTask(clean=ids, corrupted=ids, answers=ids[:, :1])
    refusals: list[tuple[Any, Any, type[Exception], str]] = [
        (model, prompts, InputError, "reads images, but the task 'custom' holds prompts"),
        (text, images(), InputError, "reads prompts, but the task 'custom' holds images"),
        (model, images(size=16), ShapeError, "are 16 x 16, but the model reads 32 x 32"),
        (model, images(labels=torch.tensor([0, 1, 6, 2])), InputError, "class 6; the model has 0 to 5"),
        (
            model,
            images(labels=torch.zeros(4).long(), classes=SHAPES[::-1]),
            InputError,
            "in the same order: model .*, data",
        ),
    ]
    for which, task, error, message in refusals:
        with pytest.raises(error, match=message):
            discover(which, task)
    with pytest.raises(InputError, match="is a language model"):
        _ = text.classes


# ---- timm, which is not installed here


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
