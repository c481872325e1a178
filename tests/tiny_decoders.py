"""Sizes of the suite's tiny decoders: two blocks with grouped queries."""

from typing import Any


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
