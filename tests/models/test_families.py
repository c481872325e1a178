"""Conformance of every described family, on random small configurations."""

from typing import Any

import literal
import pytest
import torch
import transformers
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums
from assay.discovery.heads.runs import OneByOne, base_run, heads_replaced, outside
from assay.execution import PairRunner, run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import FAMILIES, Model, attention_only, load_model
from assay.tasks import PairTask


COMMON = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
SHORT = {
    "vocab_size": 61,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 16,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
PLAIN = {**COMMON, "num_attention_heads": 3, "intermediate_size": 40, "initializer_range": 0.3}
GROUPED = {**PLAIN, "num_attention_heads": 4, "num_key_value_heads": 2}
WIDE = {**GROUPED, "hidden_size": 32}  # heads of 8, so that a quarter of a head can turn
OPT = {
    **COMMON,
    "num_attention_heads": 4,
    "ffn_dim": 40,
    "word_embed_proj_dim": 24,
    "max_position_embeddings": 16,
    "init_std": 0.3,
    "pad_token_id": 0,
}
GEMMA = {**GROUPED, "head_dim": 8, "sliding_window": 3, "query_pre_attn_scalar": 12, "pad_token_id": 0}
FALCON = {**COMMON, "num_attention_heads": 4, "initializer_range": 0.3}
NEO = {
    **COMMON,
    "num_layers": 2,
    "num_heads": 3,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "max_position_embeddings": 16,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}
NEO.pop("num_hidden_layers")

# Model type and what varies -> entries of its configuration. A new family is a line here.
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": SHORT,
    "gpt2 with scaled layers": {**SHORT, "scale_attn_by_inverse_layer_idx": True},
    "attention_only": {**SHORT, "tie_word_embeddings": False},
    "gpt_neo": NEO,
    "gptj": {**SHORT, "n_head": 2, "rotary_dim": 4},
    "gpt_neox parallel": PLAIN,
    "gpt_neox sequential": {**PLAIN, "use_parallel_residual": False},
    "opt": OPT,
    "opt without final norm": {**OPT, "_remove_final_layer_norm": True},
    "opt with plain norms": {**OPT, "layer_norm_elementwise_affine": False, "enable_bias": False},
    "bloom": {**COMMON, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    "bloom of three heads": {**COMMON, "n_layer": 2, "n_head": 3, "initializer_range": 0.3},
    "falcon with one key": {**FALCON, "multi_query": True},
    "falcon without sharing": {**FALCON, "multi_query": False},
    "falcon sequential with slopes": {
        **FALCON,
        "multi_query": False,
        "parallel_attn": False,
        "alibi": True,
        "bias": True,
    },
    "falcon sequential": {**FALCON, "parallel_attn": False},
    "falcon with two norms": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon with one norm": {
        **FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
    },
    "phi": {**WIDE, "num_key_value_heads": 4},
    "phi with head norms": {**WIDE, "qk_layernorm": True},
    "phi3": {**GROUPED, "pad_token_id": 0},
    "phi3 with a window": {**WIDE, "pad_token_id": 0, "sliding_window": 3, "partial_rotary_factor": 0.5},
    "llama": {**GROUPED, "head_dim": 6},
    "llama with biases": {**GROUPED, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "llama with tied embeddings": {**GROUPED, "tie_word_embeddings": True},
    "mistral with a window": {**GROUPED, "head_dim": 6, "sliding_window": 3},
    "qwen2": GROUPED,
    "qwen2 with a window": {
        **GROUPED,
        "use_sliding_window": True,
        "sliding_window": 3,
        "max_window_layers": 1,
    },
    "qwen3 with head norms": {**GROUPED, "head_dim": 8},
    "mixtral": {
        **GROUPED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    },
    "gemma": {**GROUPED, "head_dim": 8},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
    "gemma2 without caps": {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "gemma3_text": {**GEMMA, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo2": {**GROUPED, "pad_token_id": 0},
    "stablelm": WIDE,
    "stablelm parallel with head norms": {
        **WIDE,
        "use_parallel_residual": True,
        "qk_layernorm": True,
        "use_qkv_bias": True,
    },
    "smollm3": {**GROUPED, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "starcoder2 with a window": {**GROUPED, "sliding_window": 3},
}


def build(name: str) -> nn.Module:
    """A random module of one configuration, norms and biases random too."""
    model_type = name.split()[0]
    attention_only.register()
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[name])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config).double().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return module


@pytest.fixture(params=CONFIGS, scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(build(request.param))


def rounding(model: Model) -> float:
    """How near two runs of a float64 model come: GPT-J and GPT-Neo multiply queries and keys in float32."""
    return 1e-5 if model.family.key in ("gptj", "gpt-neo") else 1e-9


def tokens(model: Model, n: int = 3, length: int = 7) -> Tensor:
    return torch.randint(1, model.n_vocab, (n, length), generator=torch.Generator().manual_seed(5))


def test_sources_and_biases_add_up_to_the_stream(model: Model) -> None:
    ids = tokens(model)
    with torch.no_grad(), model.tracing(streams=True) as trace:
        model.forward(ids)
    total = trace.input.clone()
    for layer, block in enumerate(model.blocks):
        torch.testing.assert_close(trace.attention_in[layer], total, rtol=1e-5, atol=1e-6)
        heads = trace.z[layer].unflatten(-1, (model.n_heads, model.d_head))
        attention = sum(heads[:, :, head] @ block.out_weight()[head] for head in range(model.n_heads))
        if block.out_bias() is not None:
            attention = attention + block.out_bias()
        mlp_in = total if model.graph.parallel else total + attention
        torch.testing.assert_close(trace.mlp_in[layer], mlp_in, rtol=1e-5, atol=1e-6)
        total = total + attention + trace.mlp[layer]
    torch.testing.assert_close(trace.final_in, total, rtol=1e-5, atol=1e-6)


def test_node_by_node_run_is_the_native_forward(model: Model) -> None:
    ids = tokens(model)
    with torch.no_grad():
        expected = model.module(ids).logits
        found, _ = literal.run_plain(model, ids)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    task = PairTask(clean=ids, corrupted=ids, answers=ids[:, :1], objective="ce")
    near = rounding(model)
    torch.testing.assert_close(run_model(model, task), expected[:, -1], rtol=near, atol=near)


def test_closed_form_gradients_are_those_of_autograd(model: Model) -> None:
    """The gradient at each target, contracted with unit differences at every source and position."""
    ids = tokens(model)
    n, length = ids.shape
    positions = torch.tensor([6, 4, 2])
    weights = torch.randn(model.n_vocab, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def loss(logits: Tensor) -> Tensor:
        return (logits.tanh() * weights).sum(-1)

    index = torch.arange(n)
    expected = literal.edge_gradients(model, ids, lambda logits: loss(logits[index, positions]))
    with model.frozen(), model.tracing(gradients=True) as trace:
        hidden = model.forward(ids)
        torch.autograd.grad(loss(model.read(hidden, positions)).sum(), trace.leaf)
    sums = GradientSums(model)
    sums.add(trace, positions, 1.0)
    probe = torch.randn(
        n, length, model.d_model, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    differences = ActivationDifferences(
        model=model,
        input=probe,
        z=[torch.zeros(n, length, model.n_heads, model.d_head, dtype=torch.float64)] * model.n_layers,
        mlp=[torch.zeros_like(probe)] * model.n_layers,
    )
    scores = sums.contract(differences, positions, per_example=True)
    for column, target in enumerate(model.graph.targets):
        product = (probe * expected[target]).sum((1, 2))
        torch.testing.assert_close(scores[:, 0, column], product, rtol=1e-5, atol=1e-6)


def test_resumed_blocks_are_the_forward(model: Model) -> None:
    ids = tokens(model)
    with torch.no_grad(), model.tracing() as trace:
        hidden = model.forward(ids)
    with torch.no_grad():
        for layer in range(model.n_layers):
            torch.testing.assert_close(model.resume(trace.block_in[layer], trace, layer=layer), hidden)


def test_ablated_runs_are_literal_ones(model: Model) -> None:
    """A random circuit by the compiled plan, pair by pair and under its mask as weights; one edge; none."""
    clean, corrupted = tokens(model), tokens(model).flip(0)
    task = PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], objective="ce")
    generator = torch.Generator().manual_seed(4)
    graph = model.graph
    kept = graph.valid & (torch.rand(graph.valid.shape, generator=generator) < 0.6)
    one = graph.valid.clone()
    one[0, graph.channel_target(1, "k")] = False
    with torch.no_grad():
        _, ablated = literal.run_plain(model, corrupted)
        native = model.module(corrupted).logits[:, -1]
        soft = SoftRunner(model)
        pairs = soft.prepare(clean, corrupted)
        for mask in (kept, one, torch.zeros_like(kept)):
            circuit = Circuit(graph=graph, mask=mask)
            expected = literal.run_circuit(model, circuit, clean, ablated)[:, -1]
            runner = PairRunner(model, circuit)
            sides = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
            found = {
                "compiled": run_circuit(circuit, model, task),
                "pairs": runner.pairs(*sides, torch.arange(3), torch.arange(3)),
                "weights": soft.logits(pairs, mask.double()),
            }
            torch.testing.assert_close(found, dict.fromkeys(found, expected), rtol=1e-5, atol=1e-5)
    near, empty = rounding(model), Circuit(graph=graph, mask=torch.zeros_like(kept))
    torch.testing.assert_close(run_circuit(empty, model, task), native, rtol=near, atol=near)


@pytest.mark.parametrize("at_read", [False, True], ids=["everywhere", "at the read position"])
def test_one_head_replaced_is_the_native_run_with_its_output_replaced(model: Model, at_read: bool) -> None:
    task = PairTask(clean=tokens(model), corrupted=tokens(model).roll(1, 0), answers=tokens(model)[:, :1])
    [batch] = task.batches(task.n)
    rows, read = torch.arange(task.n), task.positions
    base, other = base_run(model, task.clean), base_run(model, task.corrupted)
    new = [z.clone() for z in (base if at_read else other).head_z]
    for z, replacement in zip(new, other.head_z, strict=True):
        z[rows, read] = replacement[rows, read]
    one = OneByOne(
        model=model, batch=batch, reading=lambda logits, prompts: logits[:, 7], heads=outside((), model)
    )
    found = (one.at_read if at_read else one.everywhere)(base, new)
    for place in range(model.n_layers * model.n_heads):
        head = divmod(place, model.n_heads)
        replaced = heads_replaced(model, [head], lambda site: new[site.layer].view_as(site.z), batch)
        with torch.no_grad(), replaced:
            expected = model.read(model.forward(task.clean), read)[:, 7]
        torch.testing.assert_close(found[:, place], expected, rtol=1e-5, atol=1e-5)


def test_every_described_model_type_is_tried() -> None:
    """Those of text; `test_vits` tries the others."""
    served = {
        model_type
        for _, family in FAMILIES.items()
        if family.vision is None
        for model_type in family.model_types
    }
    assert served == {name.split()[0] for name in CONFIGS}


# ---- refusals ------------------------------------------------------------------------------------------
