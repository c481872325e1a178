"""Conformance of every described family, on random small configurations."""

from collections.abc import Callable

import literal
import pytest
import torch
import transformers
from torch import Tensor, nn

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges.gradients import ActivationDifferences, GradientSums
from assay.execution import run_model
from assay.models import FAMILIES, Model, load_model
from assay.models.attention_only import AttentionOnlyConfig, AttentionOnlyForCausalLM
from assay.tasks import PairTask


COMMON = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0}
GROUPED = {
    **COMMON,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "initializer_range": 0.3,
}

CONFIGS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=61,
            n_embd=24,
            n_layer=2,
            n_head=3,
            n_positions=16,
            initializer_range=0.3,
            bos_token_id=0,
            eos_token_id=0,
        )
    ),
    "gpt2 with scaled layers": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=61,
            n_embd=24,
            n_layer=2,
            n_head=3,
            n_positions=16,
            initializer_range=0.3,
            scale_attn_by_inverse_layer_idx=True,
            bos_token_id=0,
            eos_token_id=0,
        )
    ),
    "attention_only": lambda: AttentionOnlyForCausalLM(
        AttentionOnlyConfig(
            vocab_size=61,
            n_embd=24,
            n_layer=2,
            n_head=3,
            n_positions=16,
            initializer_range=0.3,
            tie_word_embeddings=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    ),
    "gpt_neox parallel": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            **COMMON, num_attention_heads=3, intermediate_size=40, initializer_range=0.3
        )
    ),
    "gpt_neox sequential": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            **COMMON,
            num_attention_heads=3,
            intermediate_size=40,
            initializer_range=0.3,
            use_parallel_residual=False,
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED, head_dim=6)),
    "llama with biases": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**GROUPED, head_dim=8, attention_bias=True, mlp_bias=True)
    ),
    "mistral with a window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**GROUPED, head_dim=6, sliding_window=3)
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)),
    "qwen3 with head norms": lambda: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**GROUPED, head_dim=6)
    ),
}


@pytest.fixture(params=CONFIGS, scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = CONFIGS[request.param]().double().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return load_model(module)


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
    torch.testing.assert_close(run_model(model, task), expected[:, -1], rtol=1e-9, atol=1e-9)


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


def small_bert() -> nn.Module:
    return transformers.BertLMHeadModel(
        transformers.BertConfig(
            vocab_size=61,
            hidden_size=24,
            num_hidden_layers=1,
            num_attention_heads=3,
            intermediate_size=40,
            is_decoder=True,
        )
    )


def small_gemma() -> nn.Module:
    config = transformers.Gemma2Config(**GROUPED, head_dim=6, pad_token_id=0)
    return transformers.Gemma2ForCausalLM(config)


def small_olmo() -> nn.Module:
    return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**GROUPED, pad_token_id=0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            small_bert,
            r"BertLMHeadModel: module 'bert.encoder.layer.0.attention.output.LayerNorm' normalises "
            r"after the addition",
        ),
        (small_gemma, r"'model.layers.0.post_attention_layernorm' normalises the branch output"),
        (small_olmo, r"'model.layers.0.post_attention_layernorm' normalises the branch output"),
    ],
)
def test_streams_that_are_not_sums_are_refused(build: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(build().eval())


def test_unknown_modules_are_refused_by_name() -> None:
    message = r"Linear \(model type None\).*supported model types: .*gpt2.*VisionTransformer"
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(nn.Linear(2, 2))


def test_cross_attention_is_refused() -> None:
    config = transformers.GPT2Config(
        vocab_size=61,
        n_embd=24,
        n_layer=1,
        n_head=3,
        add_cross_attention=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    with pytest.raises(UnsupportedModelError, match="second reader per block"):
        load_model(transformers.GPT2LMHeadModel(config).eval())
