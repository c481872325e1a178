"""GPT-2's attention blocks without MLPs, the shape of `attn-only-4l` (Nanda).

The blocks are those of transformers; where their MLP and its norm stand, nothing is computed and zeros are
added. Imported when such a model is loaded, since it imports transformers.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn


class AttentionOnlyConfig(transformers.GPT2Config):
    """`GPT2Config` of a model without MLPs."""

    model_type = "attention_only"

    def __init__(self, **entries: Any) -> None:  # else it is made of the fields, and entries are more
        super().__init__(**entries)


class NoMLP(nn.Module):
    """Stands where the blocks of GPT-2 have their MLP, and adds nothing to the stream."""

    def forward(self, stream: Tensor) -> Tensor:
        return torch.zeros_like(stream)


class AttentionOnlyForCausalLM(transformers.GPT2LMHeadModel):
    """`GPT2LMHeadModel` whose blocks have attention alone; the unembedding is its own, with a bias."""

    config_class = AttentionOnlyConfig
    _tied_weights_keys = {}  # the unembedding is a matrix of its own

    def __init__(self, config: AttentionOnlyConfig) -> None:
        super().__init__(config)
        for block in self.transformer.h:
            block.ln_2, block.mlp = nn.Identity(), NoMLP()
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size)
        self.post_init()  # type: ignore[no-untyped-call]  # transformers does not annotate it


def register() -> None:
    """Let transformers read directories whose `config.json` names this type of model."""
    transformers.AutoConfig.register(AttentionOnlyConfig.model_type, AttentionOnlyConfig, exist_ok=True)
    transformers.AutoModelForCausalLM.register(AttentionOnlyConfig, AttentionOnlyForCausalLM, exist_ok=True)
