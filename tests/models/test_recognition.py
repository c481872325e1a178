"""What is said of an architecture that has no description, of weights without values, of absent devices."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from assay.core.errors import FileFormatError, InputError, UnsupportedModelError
from assay.models import load_model
from assay.models.checkpoints import check_description
from assay.models.placing import choose_dtype


def described(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path) -> None:
    message = (
        r"'gpt_neox_japanese'\) is not supported; .*Nearest by name: 'gpt_neox'\. docs/howto/own-model\.md"
    )
    with pytest.raises(UnsupportedModelError, match=message):
        check_description(described(tmp_path, model_type="gpt_neox_japanese"))
    with pytest.raises(UnsupportedModelError, match=r"timm's VisionTransformer\. docs/howto") as caught:
        load_model(described(tmp_path, model_type="zzz"))
    assert "Nearest" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "swinv2"}, "its stages merge patches"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "it is an encoder-decoder"),
        ({"model_type": "mamba2"}, "its layers carry a state"),
    ],
)
def test_what_is_no_sum_is_refused_with_the_reason(
    config: dict[str, object], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{reason}.*not a sum of node outputs"):
        check_description(described(tmp_path, **config))


def test_the_page_that_the_error_names_is_there() -> None:
    page = Path(__file__).resolve().parents[2] / "docs/howto/own-model.md"
    assert "## If a model is rejected" in page.read_text()


def test_a_module_without_values_is_refused(tiny_module: Callable[..., nn.Module]) -> None:
    module = tiny_module("gpt2", torch.float32)
    with torch.device("meta"):
        empty = type(module)(module.config).eval()
    message = r"weight 'transformer\.wte\.weight' of GPT2LMHeadModel has no values \(device 'meta'\).*load"
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(empty)


@pytest.mark.parametrize("device", ["cuda:3", "mps", "npu"])
def test_a_device_that_is_not_there(device: str) -> None:
    if torch.accelerator.is_available():
        pytest.skip("another list of devices")
    with pytest.raises(InputError, match=rf"device '{device}' does not exist: PyTorch .* here has cpu"):
        load_model("mini", device=device)


def test_a_missing_shard_is_named(tmp_path: Path, tiny_module: Callable[..., nn.Module]) -> None:
    tiny_module("llama", torch.float32).save_pretrained(tmp_path, max_shard_size="20KB")
    shard = min(tmp_path.glob("*.safetensors"))
    shard.unlink()
    message = rf"has no weights {shard.name}; expected"
    with pytest.raises(FileFormatError, match=message):
        load_model(tmp_path)


def test_missing_weights_are_counted_and_named(tmp_path: Path, tiny_module: Callable[..., nn.Module]) -> None:
    from safetensors.torch import load_file, save_file

    tiny_module("llama", torch.float32).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "down_proj" not in name}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    dropped = sorted(set(weights) - set(kept))
    message = rf"missing keys {', '.join(dropped)} \({len(dropped)} of {len(weights)} weights\)"
    with pytest.raises(FileFormatError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("asked", "device", "stored", "chosen"),
    [
        ("auto", "cpu", torch.bfloat16, torch.float32),
        (None, "cpu", torch.float64, torch.float64),
        ("auto", "cpu", None, torch.float32),
        ("auto", "cuda", torch.bfloat16, torch.bfloat16),
        ("auto", "cuda", torch.float16, torch.float16),
        ("auto", "cuda", torch.float32, torch.float32),
        ("auto", "cuda", torch.float64, torch.float64),
        ("auto", "cuda", None, torch.float32),
        (torch.float16, "cpu", torch.float64, torch.float16),
    ],
)
def test_the_number_type_follows_checkpoint_and_device(
    asked: object, device: str, stored: torch.dtype | None, chosen: torch.dtype
) -> None:
    assert choose_dtype(asked, torch.device(device), stored) is chosen


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_types_that_layers_cannot_compute_with_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(InputError, match="expected 'auto', bfloat16"):
        load_model("mini", dtype=dtype)


@pytest.mark.parametrize(
    ("stored", "loaded"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32)]
)
def test_a_checkpoint_in_float64_stays(
    stored: torch.dtype, loaded: torch.dtype, tmp_path: Path, tiny_module: Callable[..., nn.Module]
) -> None:
    tiny_module("llama", torch.float32).to(stored).save_pretrained(tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert {parameter.dtype for parameter in model.module.parameters()} == {loaded}
    assert model.describe()["dtype"] == str(loaded)[6:]
