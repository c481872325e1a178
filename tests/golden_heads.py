"""The three-layer GPT-2 of the reference data with its prompts, and slow runs with some heads replaced."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from assay.models import Model, load_model
from assay.tasks import PairTask


GOLDEN = Path(__file__).parent / "golden"


def stored() -> dict[str, Any]:
    return json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())


def golden_model() -> Model:
    """In float64."""
    sizes = {"vocab_size": 97, "n_positions": 32, "n_embd": 64, "n_layer": 3, "n_head": 4}
    module = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).double().eval()
    weights = np.load(GOLDEN / "adversarial" / "gpt2_tiny_model.npz")
    state = {name: torch.from_numpy(weights[name]).double() for name in weights.files}
    missing = module.load_state_dict(state, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["lm_head.weight"], [])
    return load_model(module)


def golden_task() -> PairTask:
    found = stored()
    return PairTask(
        clean=torch.tensor(found["tokens"]),
        corrupted=torch.tensor(found["corrupt_tokens"]),
        answers=torch.tensor(found["correct"])[:, None],
        wrong=torch.tensor(found["incorrect"])[:, None],
    )


def outputs(model: Model, tokens: Tensor) -> list[Tensor]:
    with torch.no_grad(), model.tracing() as trace:
        model.forward(tokens)
    return trace.z


def literal_logits(
    model: Model,
    task: PairTask,
    heads: Collection[Sequence[int]],
    values: Sequence[Tensor],
    *,
    last: bool = False,
) -> Tensor:
    """Logits of a plain pass in which hooks write `values` (per block) for some heads, or at the read."""
    places = torch.arange(task.length) == task.positions[:, None]
    written = (places if last else torch.ones_like(places))[:, :, None]
    handles = []
    for layer, head in heads:
        block = model.blocks[layer]
        columns = slice(head * block.d_head, (head + 1) * block.d_head)

        def write(
            module: nn.Module,
            args: tuple[Tensor, ...],
            columns: slice = columns,
            value: Tensor = values[layer],
        ) -> tuple[Tensor, ...]:
            z = args[0].clone()
            z[:, :, columns] = torch.where(written, value[:, :, columns], z[:, :, columns])
            return (z, *args[1:])

        handles.append(block.out.register_forward_pre_hook(write))
    with torch.no_grad():
        logits = model.read(model.forward(task.clean), task.positions)
    for handle in handles:
        handle.remove()
    return logits


def margins(logits: Tensor, task: PairTask) -> np.ndarray:
    return (logits.gather(1, task.answers).mean(1) - logits.gather(1, task.wrong).mean(1)).numpy()


def every_head(model: Model) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
