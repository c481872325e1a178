"""Sizes of the suite's tiny decoders: two blocks with grouped queries."""

from typing import Any

import transformers


VOCABULARY = 61  # prime: a transposed or flattened vocabulary axis cannot pass unnoticed

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 40,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def mixture(kind: str, experts: int, **more: Any) -> transformers.PretrainedConfig:
    """A mixture of experts of these sizes, two per token, each run by itself.

    Args:
        kind: `mixtral` or `olmoe`.
        experts: How many a block has.
        **more: Replaces or adds settings.
    """
    settings = {name: value for name, value in SIZES.items() if name != "head_dim"}
    settings |= {
        {"mixtral": "num_local_experts", "olmoe": "num_experts"}[kind]: experts,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    }
    return transformers.AutoConfig.for_model(kind, **(settings | more))
