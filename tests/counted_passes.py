"""Passes that really run, to hold plans against: forward-equivalents over single prompts or images."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.vit.modeling_vit import ViTLayer

from assay.execution import PairRunner, forward
from assay.execution.runner import CircuitRunner
from assay.execution.soft import SoftRunner, mask_cost
from assay.models import loading


BLOCKS = (GPT2Block, ViTLayer)


@contextmanager
def counted(n_layers: int, *, backward: int = 1) -> Iterator[list[float]]:
    """Examples of every pass made inside, by models of so many blocks.

    A run of native blocks counts as the share of the blocks that it goes through, a run of a circuit as one
    pass, a run under a mask as `mask_cost` says. What a circuit run reads of a clean pass belongs to
    it. The pass that checks a model when it is loaded is start-up, which plans leave out.

    Args:
        n_layers: Blocks of a whole pass.
        backward: What a backward pass through a block counts: 2 where parameters learn.
    """
    found: list[float] = []
    outside: list[bool] = []

    def note(output: torch.Tensor, cost: float, back: float) -> None:
        if outside:
            return
        found.append(cost)
        if output.requires_grad:
            output.register_hook(lambda gradient: found.append(back))

    def passed(module: nn.Module, args: object, output: Any) -> None:
        if isinstance(module, BLOCKS):
            hidden = output[0] if isinstance(output, tuple) else output
            share = len(hidden) / n_layers
            note(hidden, share, backward * share)

    def left_out(function: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            outside.append(True)
            try:
                return function(*args, **named)
            finally:
                outside.pop()

        return run

    def per_row(function: Any, cost: Any) -> Any:
        def run(self: Any, *args: Any, **named: Any) -> Any:
            output = function(self, *args, **named)
            rows = output.shape[:-1].numel() * cost(self.model)
            note(output, rows, rows)
            return output

        return run

    hook = nn.modules.module.register_module_forward_hook(passed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "clean_pass", left_out(forward.clean_pass))
        patch.setattr(loading, "check_conformance", left_out(loading.check_conformance))
        for runner, name in ((CircuitRunner, "logits"), (PairRunner, "product"), (PairRunner, "pairs")):
            patch.setattr(runner, name, per_row(getattr(runner, name), lambda model: 1))
        patch.setattr(SoftRunner, "logits", per_row(SoftRunner.logits, mask_cost))
        yield found
    hook.remove()
