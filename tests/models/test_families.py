"""Every family of text and images conforms, and computes what it did when its numbers were frozen.

python tests/models/test_families.py     # computes the frozen file again and replaces it
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from conformance import Conformance, Twin
from small_models import IMAGES, TEXT, build, examples

from assay.circuits.exchange import copies_of
from assay.core.errors import UnsupportedModelError
from assay.discovery.edges import discover
from assay.discovery.heads.runs import OneByOne, base_run, heads_replaced, outside
from assay.execution import run_circuit, run_model
from assay.models import FAMILIES, load_model
from assay.models.conformance import check_conformance


@pytest.fixture(params=[*TEXT, *IMAGES], scope="module")
def twin(request: pytest.FixtureRequest) -> Twin:
    return Twin(load_model(build(request.param)))


class TestFamilies(Conformance):
    pass


@pytest.mark.parametrize("at_read", [False, True], ids=["everywhere", "at the read position"])
@pytest.mark.parametrize("name", TEXT)
def test_one_head_replaced_is_the_native_run_with_its_output_replaced(name: str, at_read: bool) -> None:
    model = load_model(build(name))
    task = examples(model)
    [batch] = task.batches(task.n)
    rows, read = torch.arange(task.n), task.positions
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    new = [z.clone() for z in (base if at_read else other).head_z]
    for z, replacement in zip(new, other.head_z, strict=True):
        z[rows, read] = replacement[rows, read]
    one = OneByOne(
        model=model, batch=batch, reading=lambda logits, prompts: logits[:, 3], heads=outside((), model)
    )
    found = (one.at_read if at_read else one.everywhere)(base, new)
    for place in range(model.n_layers * model.n_heads):
        head = divmod(place, model.n_heads)
        replaced = heads_replaced(model, [head], lambda site: new[site.layer].view_as(site.z), batch)
        with torch.no_grad(), replaced:
            expected = model.read(model.forward(task.clean), read)[:, 3]
        torch.testing.assert_close(found[:, place], expected, rtol=1e-5, atol=1e-5)


def test_projections_without_a_bias_beside_some_that_have_one_count_as_zero() -> None:
    module: Any = build("llama with biases")
    for layer in module.model.layers:
        layer.self_attn.k_proj.bias = None
    block = load_model(module).blocks[0]
    stream = torch.randn(3, 24, dtype=torch.float64)
    closed = torch.einsum("nd,dch->nch", stream, block.qkv_weight()) + block.qkv_bias()
    torch.testing.assert_close(block.project(stream), closed)


@pytest.mark.parametrize("name", ["llama with biases", "qwen3 with head norms", "gemma2"])
def test_an_ungrouped_model_is_the_same_with_a_key_and_value_for_each_query_head(name: str) -> None:
    module = build(name)
    model = load_model(module)
    other, task = model.ungrouped(), examples(model)
    check_conformance(other)
    torch.testing.assert_close(run_model(other, task), run_model(model, task), rtol=0, atol=0)
    assert (other.n_kv_heads, other.describe()["ungrouped"], other.ungrouped()) == (4, True, other)
    assert (model.n_kv_heads, module.config.num_key_value_heads) == (2, 2)  # untouched
    shared = copies_of(model.graph)
    whole, parts = (discover(each, task, "eap").values.double() for each in (model, other))
    torch.testing.assert_close(torch.zeros_like(whole).index_add_(1, shared, parts), whole)
    half = parts[:, [other.graph.target_index(f"a0.h{head}.k") for head in (0, 1)]]
    assert not torch.allclose(half[:, 0], half[:, 1])  # scores of their own


def test_what_cannot_be_ungrouped_is_named() -> None:
    for name in ("phi3", "olmo2"):
        with pytest.raises(UnsupportedModelError, match=r"cannot be ungrouped"):
            load_model(build(name)).ungrouped()


def test_every_described_model_type_is_tried() -> None:
    served = {model_type for family in FAMILIES.values() for model_type in family.model_types}
    assert served == {name.split()[0] for name in (*TEXT, *IMAGES)}


# ---- frozen numbers -------------------------------------------------------------------------------------


FILE = Path(__file__).parents[1] / "frozen" / "configurations.npz"
FROZEN = (
    "gpt2",
    "attention_only",
    "gpt_neo",
    "gptj",
    "gpt_neox parallel",
    "opt",
    "bloom",
    "falcon with one key",
    "phi",
    "phi3",
    "llama",
    "mistral with a window",
    "qwen2",
    "qwen3 with head norms",
    "mixtral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "olmo2",
    "stablelm",
    "smollm3",
    "starcoder2 with a window",
    *("vit", "deit", "dinov2", "clip", "siglip"),
)


def outputs(name: str) -> dict[str, np.ndarray]:
    """Logits of the model and of a circuit of half of its edges, and scores of all edges."""
    model = load_model(build(name))
    task = examples(model)
    scores = discover(model, task, "eap-ig-inputs", steps=2)
    half = scores.top(int(model.graph.valid.sum()) // 2)
    return {
        "logits": run_model(model, task).numpy(),
        "ablated": run_circuit(half, model, task).numpy(),
        "scores": scores.values[model.graph.valid].numpy(),
    }


@pytest.mark.parametrize("name", FROZEN)
def test_logits_and_scores_are_the_frozen_ones(name: str) -> None:
    # GPT-J and GPT-Neo multiply queries and keys in float32.
    tolerance = 1e-5 if name in ("gptj", "gpt_neo") else 1e-9
    with np.load(FILE) as frozen:
        for part, found in outputs(name).items():
            expected = frozen[f"{name}/{part}"]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=tolerance)


if __name__ == "__main__":
    arrays = {f"{name}/{part}": value for name in FROZEN for part, value in outputs(name).items()}
    np.savez_compressed(FILE, **arrays)
