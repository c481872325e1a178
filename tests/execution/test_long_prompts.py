"""Attention over long prompts: blocks of queries give what all queries at once give."""

import pytest
import torch
import transformers
from soft_pairs import soft_pairs
from torch import Tensor

from assay.circuits import Circuit
from assay.execution import SoftRunner, run_circuit
from assay.models import attention as attention_module
from assay.models import load_model
from assay.models.attention import AttentionRule, PlacedAttention
from assay.tasks import PairTask


T = 23
RULES = {
    "causal": AttentionRule(scaling=0.3),
    "window": AttentionRule(scaling=0.3, window=5),
    "softcap": AttentionRule(scaling=0.3, softcap=2.0),
    "softcap and window": AttentionRule(scaling=0.3, softcap=2.0, window=9),
    "alibi": AttentionRule(scaling=0.3, bias=lambda n: torch.arange(n) * torch.tensor([[[0.1]], [[0.2]]])),
}


def mixed(
    rule: AttentionRule, channels: tuple[Tensor, ...], *, queries: int = T, grouped: bool = True
) -> Tensor:
    attention = PlacedAttention([rule], {}, length=T, causal=True, read=None)
    q, k, v = channels
    kv = [0, 0] if grouped else None
    k, v = (k[:, :1], v[:, :1]) if grouped else (k, v)
    return attention.mix(0, q[:, :, -queries:], k, v, everywhere=True, heads=[0, 1], kv_of_head=kv)


def literal(rule: AttentionRule, channels: tuple[Tensor, ...], *, grouped: bool) -> Tensor:
    """Query by query."""
    q, k, v = channels
    rows = []
    for head in range(2):
        kv = 0 if grouped else head
        for t in range(T):
            first = 0 if rule.window is None else max(0, t - rule.window + 1)
            scores = (q[:, head, t : t + 1] * k[:, kv, first : t + 1]).sum(-1) * rule.scaling
            if rule.softcap is not None:
                scores = rule.softcap * torch.tanh(scores / rule.softcap)
            if rule.bias is not None:
                scores = scores + rule.bias(T)[head, 0, first : t + 1]
            rows.append((scores.softmax(-1)[..., None] * v[:, kv, first : t + 1]).sum(1))
    return torch.stack(rows, 1).unflatten(1, (2, T))


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "LONG", 6)
    monkeypatch.setattr(attention_module, "QUERIES", 4)


def channels(*, graded: bool = False) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(3, 2, T, 4, generator=generator, dtype=torch.float64).requires_grad_(graded)
        for _ in range(3)
    )


@pytest.mark.parametrize("name", sorted(RULES))
def test_blocks_of_queries_are_the_literal_attention(name: str, blocks: None) -> None:
    """Also of the queries behind a shared prefix alone."""
    rule = RULES[name]
    for grouped in (False, True):
        expected = literal(rule, channels(), grouped=grouped)
        torch.testing.assert_close(mixed(rule, channels(), grouped=grouped), expected, rtol=0, atol=1e-12)
    found = mixed(rule, channels(), queries=11)
    torch.testing.assert_close(found, expected[:, :, -11:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", sorted(RULES))
def test_gradients_through_blocks(name: str, blocks: None) -> None:
    weights = torch.randn(3, 2, T, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = []
    for run in (mixed, literal):
        leaves = channels(graded=True)
        total = (run(RULES[name], leaves, grouped=True) * weights).sum()
        gradients.append(torch.autograd.grad(total, leaves))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


WIDE = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4}
WIDE |= {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
SHAPES: dict[str, dict[str, int]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": WIDE,
    "gemma2": {**WIDE, "sliding_window": 24},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_circuits_on_long_prompts_padded_on_the_right(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {**SHAPES[shape], "vocab_size": 101, "bos_token_id": 0, "eos_token_id": 0}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(shape, **entries)
    model = load_model(transformers.AutoModelForCausalLM.from_config(config).double().eval())
    tokens = torch.randint(1, 60, (2, 3, T), generator=torch.Generator().manual_seed(0))
    answers, lengths = torch.zeros(3, 1).long(), torch.tensor([T, 14, 9])
    task = PairTask(clean=tokens[0], corrupted=tokens[1], answers=answers, lengths=lengths)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    soft = SoftRunner(model)
    pairs = soft_pairs(soft, task.clean, task.corrupted, task.positions)
    mask = model.graph.valid.double() * 0.7

    def run() -> tuple[Tensor, Tensor, Tensor]:
        leaf = mask.clone().requires_grad_()
        logits = soft.logits(pairs, leaf)
        (gradient,) = torch.autograd.grad(logits.logsumexp(1).sum(), leaf)
        return run_circuit(circuit, model, task), logits.detach(), gradient

    at_once = run()
    monkeypatch.setattr(attention_module, "LONG", 6)
    monkeypatch.setattr(attention_module, "QUERIES", 4)
    for found, expected in zip(run(), at_once, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
