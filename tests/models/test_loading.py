import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from assay.core.errors import (
    FileFormatError,
    HubError,
    InputError,
    NonFiniteError,
    TokenizationError,
    UnsafeFileError,
    UnsupportedModelError,
)
from assay.discovery.edges import discover
from assay.execution import run_model
from assay.models import load_model
from assay.tasks import PairTask, load_task


@pytest.fixture
def saved(gpt2_tiny: nn.Module, tmp_path: Path) -> Path:
    gpt2_tiny.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_directory_is_the_same_model(saved: Path, gpt2_tiny: nn.Module) -> None:
    loaded = load_model(saved)
    assert loaded.id == "model"
    assert loaded.tokenizer is None
    assert loaded.weight_hash == load_model(gpt2_tiny).weight_hash
    assert not loaded.module.training


def test_weights_can_be_loaded_in_another_number_type(saved: Path) -> None:
    assert load_model(saved, dtype=torch.float64).result_dtype == torch.float64
    half = load_model(saved, dtype=torch.bfloat16)
    assert (half.dtype, half.result_dtype) == (torch.bfloat16, torch.float32)


def test_live_module_is_used_as_it_is(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    assert model.module is gpt2_tiny
    with pytest.raises(InputError, match="used unchanged"):
        load_model(gpt2_tiny, dtype=torch.float64)


def test_weight_hash_sees_one_changed_weight(gpt2_tiny: nn.Module) -> None:
    other = deepcopy(gpt2_tiny)
    with torch.no_grad():
        other.transformer.h[0].mlp.c_fc.bias[0] += 1e-3
    assert load_model(other).weight_hash != load_model(gpt2_tiny).weight_hash


def test_pickled_weights_are_refused_unless_trusted(saved: Path, gpt2_tiny: nn.Module) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(gpt2_tiny.state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(UnsafeFileError, match=r"weights in 'pytorch_model.bin'.*allow_pickle=True"):
        load_model(saved)
    assert load_model(saved, allow_pickle=True).weight_hash == load_model(gpt2_tiny).weight_hash


def test_truncated_weights_are_refused(saved: Path) -> None:
    content = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(content[:100])
    with pytest.raises(FileFormatError, match="cannot load .* as a causal language model"):
        load_model(saved)


def test_directories_without_a_model_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(FileFormatError, match="has no weights"):
        load_model(tmp_path)


def test_adapters_are_to_be_merged_first(saved: Path) -> None:
    """Transformers would load one that lies beside the weights by itself."""
    (saved / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(UnsupportedModelError, match="holds an adapter of PEFT; merge it"):
        load_model(saved)


def test_post_norm_checkpoint_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "is_decoder": true}')
    (tmp_path / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(UnsupportedModelError, match="normalises after the addition"):
        load_model(tmp_path)


def test_unreachable_hub_id_says_what_was_expected() -> None:
    with pytest.raises(HubError, match="cannot load 'no-such/model'.*not a directory"):
        load_model("no-such/model")


def test_nan_weights_are_named(gpt2_tiny: nn.Module) -> None:
    broken = deepcopy(gpt2_tiny)
    with torch.no_grad():
        broken.transformer.h[1].mlp.c_fc.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"weight 'transformer.h.1.mlp.c_fc.weight' .* NaN"):
        load_model(broken)


def test_incomplete_checkpoints_are_refused(tmp_path: Path, tiny_module: Callable[..., nn.Module]) -> None:
    """A missing tensor must not be filled with random numbers."""
    from safetensors.torch import load_file, save_file

    directory = tmp_path / "model"
    tiny_module("llama", torch.float32).save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if name != "lm_head.weight"},
        directory / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(FileFormatError, match=r"not a complete checkpoint: missing keys lm_head\.weight"):
        load_model(directory)


def test_weights_of_another_shape_are_refused(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "vocab_size": 33}))
    with pytest.raises(FileFormatError, match="cannot load|not a complete checkpoint"):
        load_model(saved)


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


def test_a_store_does_not_find_results_of_changed_weights(tmp_path: Path) -> None:
    model = load_model("mini")
    task = load_task("ioi", model, n=4, seed=0)
    first = discover(model, task, "eap")
    model.module.transformer.h[0].attn.c_proj.weight.data.mul_(2)
    second = discover(model, task, "eap")
    assert first.provenance["model"]["weight_hash"] != second.provenance["model"]["weight_hash"]


def test_weight_hash_knows_the_configuration(gpt2_tiny: nn.Module) -> None:
    other = deepcopy(gpt2_tiny)
    other.config.activation_function = "relu"
    assert load_model(other).weight_hash != load_model(gpt2_tiny).weight_hash


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
