"""Passes that really run: forward-equivalents over single prompts or images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.vit.modeling_vit import ViTLayer

from assay.execution.runner import CircuitRunner


@contextmanager
def counted(n_layers: int) -> Iterator[list[float]]:
    """Examples of every pass made inside, by models of so many blocks.

    A run of native blocks counts as the share of the blocks that it goes through, forward and backward alike,
    a run of a circuit as one pass.
    """
    found: list[float] = []

    def note(output: torch.Tensor, cost: float) -> None:
        found.append(cost)
        if output.requires_grad:
            output.register_hook(lambda gradient: found.append(cost))

    def passed(module: nn.Module, args: object, output: Any) -> None:
        if isinstance(module, ViTLayer):
            hidden = output[0] if isinstance(output, tuple) else output
            note(hidden, len(hidden) / n_layers)

    run = CircuitRunner.logits

    def logits(self: CircuitRunner, *args: Any, **named: Any) -> torch.Tensor:
        output = run(self, *args, **named)
        note(output, output.shape[:-1].numel())
        return output

    hook = nn.modules.module.register_module_forward_hook(passed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CircuitRunner, "logits", logits)
        yield found
    hook.remove()
