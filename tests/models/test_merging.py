"""Adapters of PEFT: the merged model computes what the adapted one does, which stays as it was."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.core.errors import FileFormatError, UnsafeFileError, UnsupportedModelError
from assay.models import load_model


peft = pytest.importorskip("peft")
IDS = torch.arange(12)[None]


@pytest.fixture
def base(tiny_module: Callable[..., nn.Module]) -> nn.Module:
    return deepcopy(tiny_module("llama", torch.float64))


def adapted(base: nn.Module, **settings: Any) -> Any:
    """With an adapter whose every weight is drawn."""
    wanted = {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "o_proj", "up_proj"], **settings}
    module = peft.get_peft_model(base, peft.LoraConfig(**wanted)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if "lora_" in name:
                weight.copy_(weight.abs() + 0.1 if "magnitude" in name else torch.randn_like(weight) / 5)
    return module


LORA_BIAS = {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, "lora_bias": True}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {}),
        ("llama", {"use_dora": True}),
        ("llama", {"use_rslora": True, "rank_pattern": {"q_proj": 2}}),
        ("gpt2", LORA_BIAS),
    ],
)
def test_the_merged_model_computes_what_the_adapted_one_does(
    family: str, settings: dict[str, Any], tiny_module: Callable[..., nn.Module]
) -> None:
    base = deepcopy(tiny_module(family, torch.float64))
    plain = load_model(base)
    before, hash_before = base(IDS).logits.detach(), plain.weight_hash
    module = adapted(base, **settings)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    wanted = module(IDS).logits.detach()
    model = load_model(module)
    found = model.module(IDS).logits.detach()
    assert float((wanted - before).abs().max()) > 1e-2
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert model.weight_hash != hash_before
    assert model.describe()["base"] == {"id": type(base).__name__, "weight_hash": hash_before}
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    mine, theirs = model.module.get_input_embeddings().weight, module.get_input_embeddings().weight
    assert mine.data_ptr() == theirs.data_ptr(), "what no adapter changes is shared"
    facts = model.describe()["adapters"]["default"]
    assert facts["type"].startswith("LORA")
    assert facts["scaling"][-1] == pytest.approx(7 / 3 if not settings.get("use_rslora") else 7 / 2**0.5)


def test_a_bias_without_a_place_is_refused(base: nn.Module) -> None:
    with pytest.warns(UserWarning, match="merging LoRA weights won't be possible"):
        module = adapted(base, lora_bias=True)
    with pytest.raises(UnsupportedModelError, match="PEFT cannot merge the adapters of PeftModel"):
        load_model(module)


def test_the_hash_of_an_adapter_sees_its_weights(base: nn.Module) -> None:
    module = adapted(base)
    first = load_model(module)
    with torch.no_grad():
        next(weight for name, weight in module.named_parameters() if "lora_B" in name)[0, 0] += 1e-3
    second = load_model(module)
    assert first.describe()["adapters"] != second.describe()["adapters"]
    assert first.weight_hash != second.weight_hash


@pytest.fixture
def folders(base: nn.Module, tmp_path: Path) -> Path:
    """`base`, and `adapter` that names it as its neighbour."""
    base.save_pretrained(tmp_path / "base")
    module = adapted(base)
    module.save_pretrained(tmp_path / "adapter")
    change(tmp_path, base_model_name_or_path="../base")
    torch.save(module(IDS).logits.detach(), tmp_path / "logits")
    return tmp_path


def change(folders: Path, **entries: object) -> None:
    file = folders / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


def test_an_adapter_on_disk_is_merged_into_the_model_it_names(folders: Path) -> None:
    model = load_model(folders / "adapter", device="cpu")
    assert (model.id, model.dtype) == ("adapter", torch.float64)
    torch.testing.assert_close(
        model.module(IDS).logits.detach(), torch.load(folders / "logits"), rtol=1e-6, atol=1e-6
    )
    assert model.describe()["adapters"]["default"]["scaling"] == [pytest.approx(7 / 3)]
    base = load_model(folders / "base", device="cpu")
    assert model.describe()["base"] == {"id": "base", "weight_hash": base.weight_hash}


@pytest.mark.filterwarnings("ignore:Adapter 'default'.* invalid shape")  # PEFT, of the biases
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"use_rslora": True}),
        ("llama", {"use_dora": True}),
        ("llama", {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"up_proj": 11}}),
        ("llama", {"layers_to_transform": [1], "layers_pattern": "layers"}),
        ("llama", {"target_modules": "all-linear", "exclude_modules": ["k_proj", "gate_proj"]}),
        ("gpt2", LORA_BIAS),
    ],
)
def test_settings_on_disk_that_change_the_function_are_honoured(
    family: str, settings: dict[str, Any], tiny_module: Callable[..., nn.Module], tmp_path: Path
) -> None:
    base = deepcopy(tiny_module(family, torch.float64))
    base.save_pretrained(tmp_path / "base")
    module = adapted(base, **settings)
    module.save_pretrained(tmp_path / "adapter")
    change(tmp_path, base_model_name_or_path="../base")
    found = load_model(tmp_path / "adapter", device="cpu").module(IDS).logits
    torch.testing.assert_close(found.detach(), module(IDS).logits.detach(), rtol=1e-6, atol=1e-6)


def test_other_adapters_are_refused_by_name(folders: Path, tiny_module: Callable[..., nn.Module]) -> None:
    for entries, named in (
        ({"peft_type": "LOHA"}, "the kind LOHA"),
        ({"modules_to_save": ["lm_head"]}, "LORA with modules_to_save"),
        ({"megatron_config": {"a": 1}}, "LORA with megatron_config"),
        ({"init_lora_weights": "pissa"}, "LORA with init_lora_weights"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "LORA with layer_replication"),
        ({"bias": "all"}, "LORA with bias"),
        (
            {"use_newest": True, "warped": {"by": 2}},
            r"LORA with use_newest, warped \(a setting this version does not know\)",
        ),
    ):
        file = folders / "adapter" / "adapter_config.json"
        original = file.read_text()
        change(folders, **entries)
        with pytest.raises(UnsupportedModelError, match=f"{named}; only LoRA and DoRA"):
            load_model(folders / "adapter")
        file.write_text(original)
    other = peft.get_peft_model(
        deepcopy(tiny_module("llama", torch.float64)), peft.LoHaConfig(r=2, target_modules=["q_proj"])
    )
    with pytest.raises(UnsupportedModelError, match="adapter 'default' of PeftModel is LOHA"):
        load_model(other)


def test_files_that_do_not_belong_together_are_named(folders: Path) -> None:
    change(folders, r=4)
    with pytest.raises(FileFormatError, match="does not fit the model it names"):
        load_model(folders / "adapter")
    change(folders, r=3, target_modules=["q_proj", "o_proj", "up_proj", "k_proj"])
    with pytest.raises(FileFormatError, match="weights are missing or unknown"):
        load_model(folders / "adapter")
    change(folders, base_model_name_or_path=".")
    with pytest.raises(FileFormatError, match="another adapter as its base"):
        load_model(folders / "adapter")
    (folders / "adapter" / "config.json").write_text("{}")
    with pytest.raises(FileFormatError, match="holds both a model"):
        load_model(folders / "adapter")


def test_pickled_adapters_are_refused(folders: Path) -> None:
    (folders / "adapter" / "adapter_model.safetensors").rename(folders / "adapter" / "adapter_model.bin")
    with pytest.raises(UnsafeFileError, match="has no adapter_model.safetensors"):
        load_model(folders / "adapter")
