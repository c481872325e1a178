"""Models from directories, the hub and modules: what is read with them, and what is refused by name."""

import json
import os
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
from small_models import IMAGE, PLAIN, WIDE, build, examples
from torch import nn

from assay.core.errors import (
    AssayWarning,
    FileFormatError,
    HubError,
    InputError,
    MissingExtraError,
    NonFiniteError,
    TokenizationError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import load_model
from assay.models.loading import MINI, check_description, choose_dtype
from assay.tasks import EvalTransform, ImageTask, PairTask, draw_shapes


SHAPES = ("circle", "cross", "moon", "square", "star", "triangle")
NAMED = {"id2label": dict(enumerate(SHAPES)), "label2id": {name: i for i, name in enumerate(SHAPES)}}


def vit(**changes: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.ViTForImageClassification(transformers.ViTConfig(**{**IMAGE, **changes})).eval()


def images(n: int = 4, size: int = 16, **rest: Any) -> ImageTask:
    pixels = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))
    return ImageTask(images=pixels, **rest)


# ---- directories


@pytest.mark.parametrize("kind", ["gpt2", "vit", "deit", "deit with a teacher", "clip"])
def test_a_saved_directory_is_the_same_model(kind: str, tmp_path: Path) -> None:
    """Two classes read DeiT's configuration; that of CLIP describes a text model that is not held."""
    module = build(kind)
    module.save_pretrained(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert (loaded.id, loaded.tokenizer, loaded.module.training) == ("model", None, False)
    assert type(loaded.module) is type(module)
    model = load_model(module)
    assert torch.equal(run_model(loaded, examples(model)), run_model(model, examples(model)))
    if kind != "clip":  # whose two parts state a number type of their own once they are saved
        assert loaded.weight_hash == model.weight_hash
    half = load_model(tmp_path / "model", dtype=torch.bfloat16)
    assert (loaded.result_dtype, loaded.describe()["dtype"]) == (torch.float64, "float64")
    assert (half.dtype, half.result_dtype) == (torch.bfloat16, torch.float32)
    assert half.weight_hash != loaded.weight_hash


def test_what_lies_beside_the_weights_of_a_classifier_is_read(tmp_path: Path) -> None:
    vit(num_labels=6, **NAMED).save_pretrained(tmp_path)
    model, without = load_model(tmp_path), load_model(vit(num_labels=6))
    assert (model.classes, without.classes) == (SHAPES, None)  # LABEL_0 ... are made up by transformers
    assert model.weight_hash == without.weight_hash
    with pytest.warns(AssayWarning, match="the model does not state how to prepare its images"):
        assert EvalTransform.for_model(model).mean == (0.5, 0.5, 0.5)
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.25, 0.3],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": 16, "width": 16},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    model = load_model(tmp_path)
    assert model.preprocessing == content
    transform = EvalTransform.for_model(model)
    assert (transform.mean, transform.resample, transform.resize) == ((0.4, 0.5, 0.6), "bicubic", (16, 16))
    assert run_model(model, draw_shapes("flat", 6, size=16).with_transform(transform)).shape == (6, 6)


def test_pickled_weights_are_refused_unless_trusted(tmp_path: Path) -> None:
    module = build("gpt2")
    module.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match=r"weights in 'pytorch_model.bin'.*allow_pickle=True"):
        load_model(tmp_path)
    assert load_model(tmp_path, allow_pickle=True).weight_hash == load_model(module).weight_hash


def changed(path: Path, **entries: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def without(folder: Path, part: str) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if part not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


# The error -> what was done to a saved GPT-2.
DAMAGE: dict[str, Callable[[Path], Any]] = {
    r"cannot read .*config\.json": lambda at: (at / "config.json").unlink(),
    r"no file named model\.safetensors.* Expected a": lambda at: (at / "model.safetensors").unlink(),
    "cannot load .* as a causal language model": lambda at: os.truncate(at / "model.safetensors", 100),
    r"missing keys .* \(2 of 28 weights\)": lambda at: without(at, "mlp.c_fc.bias"),
    "cannot load|not a complete checkpoint": lambda at: changed(at / "config.json", vocab_size=33),
    "holds an adapter of PEFT; merge it": lambda at: (at / "adapter_config.json").write_text("{}"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_directories_are_refused(message: str, tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path)
    DAMAGE[message](tmp_path)
    with pytest.raises((FileFormatError, UnsupportedModelError), match=message):
        load_model(tmp_path)


def test_a_backbone_without_a_head_is_no_classifier(tmp_path: Path) -> None:
    """A random head would be made up for it."""
    transformers.ViTModel(transformers.ViTConfig(**IMAGE)).save_pretrained(tmp_path)
    with pytest.raises(FileFormatError, match=r"not a complete checkpoint: missing keys classifier\.bias"):
        load_model(tmp_path)


def test_what_is_not_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    reasons = {
        "gpt_neox_japanese": r"is not supported; .*Nearest by name: 'gpt_neox'\. docs/howto/own-model\.md",
        "bert": "it normalises after the addition.*not a sum of node outputs",
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


def test_the_number_type_follows_checkpoint_and_device() -> None:
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    for asked, device, stored, chosen in (
        ("auto", "cpu", half, single),
        (None, "cpu", double, double),
        ("auto", "cpu", None, single),
        ("auto", "cuda", half, half),
        ("auto", "cuda", double, double),
        ("auto", "cuda", None, single),
        (torch.float16, "cpu", double, torch.float16),
    ):
        assert choose_dtype(asked, torch.device(device), stored) is chosen
    with pytest.raises(InputError, match=r"device 'npu' does not exist: PyTorch .* here has cpu"):
        load_model("mini", device="npu")
    with pytest.raises(InputError, match="expected 'auto', or torch.bfloat16"):
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
    for name in ("mini", "planted:duplicate/gpt2/vote"):
        with pytest.raises(InputError, match="revision applies only to ids of the Hugging Face Hub"):
            load_model(name, revision="main")
    with pytest.raises(InputError, match="device_map applies only to checkpoints of transformers"):
        load_model("planted:duplicate/gpt2/vote", device_map="auto")


# ---- modules


def test_a_live_module_is_used_as_it_is(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    assert model.module is gpt2_tiny
    for options in ({"dtype": torch.float64}, {"device": "cpu"}, {"device_map": "auto"}, {"revision": "v1"}):
        with pytest.raises(InputError, match="used unchanged"):
            load_model(gpt2_tiny, **options)


def small_gpt2(**entries: Any) -> nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**PLAIN, **entries})).eval()


def with_nan() -> nn.Module:
    broken = small_gpt2()
    with torch.no_grad():
        broken.get_parameter("transformer.h.1.mlp.c_fc.weight")[0, 0] = torch.nan
    return broken


REFUSED: dict[str, Callable[[], nn.Module]] = {
    r"Linear \(model type None\).*gpt2.*VisionTransformer": lambda: nn.Linear(2, 2),
    "second reader per block": lambda: small_gpt2(add_cross_attention=True),
    "ViTModel: it is not an image classifier": lambda: transformers.ViTModel(transformers.ViTConfig(**IMAGE)),
    r"no classification head \(num_labels is 0\)": lambda: vit(num_labels=0),
    "reads images of 1 channels, but image tasks are RGB": lambda: vit(num_channels=1),
    r"weight 'transformer\.wte\.weight' .* on device meta": lambda: small_gpt2().to("meta"),
    r"weight 'transformer\.h\.1\.mlp\.c_fc\.weight' .* NaN": with_nan,
}


@pytest.mark.parametrize("message", REFUSED)
def test_modules_that_are_not_served_are_refused(message: str) -> None:
    with pytest.raises((UnsupportedModelError, NonFiniteError), match=message):
        load_model(REFUSED[message]())


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


def test_the_hash_knows_one_number_of_a_large_weight_once_it_is_refreshed() -> None:
    model = load_model("mini")
    before = model.weight_hash
    model.module.transformer.wte.weight.data[0, 1] += 1
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


def prompts(length: int) -> PairTask:
    ids = torch.ones(2, length).long()
    return PairTask(clean=ids, corrupted=ids, answers=ids[:, :1], wrong=ids[:, :1] + 1)


def test_prompts_longer_than_the_positions_are_refused(gpt2_tiny: nn.Module) -> None:
    for call in (run_model, discover):
        with pytest.raises(TokenizationError, match="has 33 tokens, but the model reads only 32"):
            call(load_model(gpt2_tiny), prompts(33))


ROPES: dict[str, tuple[dict[str, Any], int | None]] = {  # model type -> its rotary entries, longest prompt
    "llama": ({"rope_type": "dynamic", "factor": 2.0}, 15),
    "mistral": ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1, "high_freq_factor": 4}, None),
    "phi3": ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [9.0] * 4}, 8),
}


@pytest.mark.parametrize("kind", ROPES)
def test_prompts_beyond_the_original_length_are_refused_where_frequencies_depend_on_it(kind: str) -> None:
    """Logits would depend on padding, and on the prompts that ran before."""
    rope, longest = ROPES[kind]
    entries = {"max_position_embeddings": 16, "pad_token_id": 0, "original_max_position_embeddings": 8}
    rope = {"rope_theta": 1e4, "original_max_position_embeddings": 8, **rope}
    config = transformers.AutoConfig.for_model(kind, **{**WIDE, **entries}, rope_parameters=rope)
    with torch.random.fork_rng(devices=[]):
        model = load_model(transformers.AutoModelForCausalLM.from_config(config).eval())
    assert model.n_positions == longest
    for length in (8, 15, 16):
        task = prompts(length)
        if longest is None or length <= longest:
            assert run_model(model, task).shape == (2, 61)
        else:
            message = f"{length} tokens, but the model reads only {longest}"
            with pytest.raises(TokenizationError, match=message):
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
    model, text, zeros = load_model(vit(num_labels=6, **NAMED)), load_model(gpt2_tiny), torch.zeros(4).long()
    refusals: list[tuple[Any, Any, str]] = [
        (model, prompts(5), "reads images, but the task 'custom' holds prompts"),
        (text, images(), "reads prompts, but the task 'custom' holds images"),
        (model, images(size=32), "are 32 x 32, but the model reads 16 x 16"),
        (model, images(labels=torch.tensor([0, 1, 6, 2])), "class 6; the model has 0 to 5"),
        (model, images(labels=zeros, classes=SHAPES[::-1]), "in the same order: model .*, data"),
    ]
    for which, task, message in refusals:
        with pytest.raises(InputError, match=message):
            discover(which, task)
    with pytest.raises(InputError, match="is a language model"):
        _ = text.classes


# ---- timm, which is not installed here


def test_timm_models_need_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224"}))
    save_file({"head.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    needed = r"is a timm model.*pip install 'circuit-assay\[vision\]'"
    for source in ("timm:vit_tiny_patch16_224", str(tmp_path)):
        with pytest.raises(MissingExtraError, match=needed):
            load_model(source)
