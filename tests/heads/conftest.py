"""The three-layer GPT-2 of the reference data, and tiny tasks for the tiny models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from assay.models import Model, load_model
from assay.tasks import PairTask


VOCABULARY = 61  # of the tiny models

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "tiny_gpt2_heads.json").read_text())


@pytest.fixture(scope="session")
def golden_model() -> Model:
    config = GPT2Config(
        vocab_size=97, n_positions=32, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    module = GPT2LMHeadModel(config).double().eval()
    weights = np.load(GOLDEN / "adversarial" / "gpt2_tiny_model.npz")
    state = {name: torch.from_numpy(weights[name]).double() for name in weights.files}
    missing = module.load_state_dict(state, strict=False)
    assert (missing.missing_keys, missing.unexpected_keys) == (["lm_head.weight"], [])
    return load_model(module)


@pytest.fixture(scope="session")
def golden_task(golden: dict[str, Any]) -> PairTask:
    return PairTask(
        clean=torch.tensor(golden["tokens"]),
        corrupted=torch.tensor(golden["corrupt_tokens"]),
        answers=torch.tensor(golden["correct"])[:, None],
        wrong=torch.tensor(golden["incorrect"])[:, None],
    )


@pytest.fixture
def gpt2(gpt2_tiny64: nn.Module) -> Model:
    return load_model(gpt2_tiny64)


@pytest.fixture(scope="session")
def model64(module64: nn.Module) -> Model:
    """The tiny float64 model of each family in turn."""
    return load_model(module64)


@pytest.fixture(scope="session")
def make_task() -> Callable[..., PairTask]:
    """`make_task(n=6, seed=0, ragged=False, answers=1)`: random prompts of 7 tokens, or of 4 to 7."""

    def make(n: int = 6, *, seed: int = 0, ragged: bool = False, answers: int = 1) -> PairTask:
        draw = np.random.default_rng(seed)
        clean, corrupted = (torch.from_numpy(draw.integers(0, VOCABULARY, (n, 7))) for _ in range(2))
        outputs = torch.from_numpy(
            np.stack([draw.choice(VOCABULARY, 2 * answers, replace=False) for _ in range(n)])
        )
        lengths = torch.from_numpy(draw.integers(4, 8, n)) if ragged else torch.full((n,), 7)
        positions = lengths - 1 if not ragged else (lengths - 1 - torch.arange(n) % 2)
        return PairTask(
            clean=clean,
            corrupted=corrupted,
            answers=outputs[:, :answers],
            wrong=outputs[:, answers:],
            lengths=lengths,
            positions=positions,
        )

    return make
