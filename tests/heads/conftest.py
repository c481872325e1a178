"""The three-layer GPT-2 of the reference data, and tiny tasks for the tiny models."""

from collections.abc import Callable
from typing import Any

import golden_heads
import numpy as np
import pytest
import torch
from torch import nn

from assay.models import Model, load_model
from assay.tasks import PairTask


VOCABULARY = 61  # of the tiny models


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return golden_heads.stored()


@pytest.fixture(scope="session")
def golden_model() -> Model:
    return golden_heads.golden_model()


@pytest.fixture(scope="session")
def golden_task() -> PairTask:
    return golden_heads.golden_task()


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
        drawn = [draw.choice(VOCABULARY, 2 * answers, replace=False) for _ in range(n)]
        right, wrong = torch.from_numpy(np.stack(drawn)).split(answers, dim=1)
        lengths = torch.from_numpy(draw.integers(4, 8, n)) if ragged else torch.full((n,), 7)
        reads = lengths - 1 - (torch.arange(n) % 2 if ragged else 0)
        sides = {"clean": clean, "corrupted": corrupted, "answers": right, "wrong": wrong}
        return PairTask(**sides, lengths=lengths, positions=reads)

    return make
