"""What the tests of worst-case evaluation share."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import assay.models
from assay.models import Model, load_model
from assay.tasks import PairTask


@pytest.fixture(scope="session")
def mini_tokenizer() -> Any:
    """The tokenizer of the embedded model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(assay.models.__file__).parent / "mini")


GOLDEN = Path(__file__).parent.parent / "golden" / "adversarial"


@pytest.fixture(scope="module")
def tiny(tiny_module: Callable[..., nn.Module]) -> Model:
    return load_model(tiny_module("gpt2"))


@functools.cache
def _golden_model(name: str, dtype: torch.dtype) -> tuple[Model, dict[str, Any]]:
    import transformers

    described = json.loads((GOLDEN / f"{name}_circuits.json").read_text())
    model_class = getattr(transformers, described["hf_class"])
    config = model_class.config_class(**described["hf_config"], bos_token_id=0, eos_token_id=0)
    module = model_class(config).to(dtype)
    with np.load(GOLDEN / f"{name}_model.npz") as weights:
        state = {key: torch.from_numpy(weights[key]).to(dtype) for key in weights.files}
    module.load_state_dict(state, strict=False)
    return load_model(module.eval()), described


@pytest.fixture(scope="session")
def golden_model() -> Callable[..., tuple[Model, dict[str, Any]]]:
    """`golden_model(name, dtype)`: a model of the reference data and its description; do not change it."""
    return _golden_model


def _ids_task(n: int = 8, length: int = 6, *, seed: int = 0, vocabulary: int = 61) -> PairTask:
    """Pairs of random ids with a field on either side; clean row 1 repeats row 0."""
    draw = torch.Generator().manual_seed(seed)
    clean, corrupted = torch.randint(1, vocabulary, (2, n, length), generator=draw)
    clean[1], corrupted[1] = clean[0], corrupted[0]
    kinds = [f"kind {i % 3}" for i in range(n)]
    kinds[1] = kinds[0]
    return PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=torch.randint(0, vocabulary // 2, (n, 1), generator=draw),
        wrong=torch.randint(vocabulary // 2, vocabulary, (n, 1), generator=draw),
        fields={"kind": kinds, "corrupted.kind": kinds},
        name="ids",
    )


@pytest.fixture(scope="session")
def ids_task() -> Callable[..., PairTask]:
    """`ids_task(n=8, length=6, seed=0)`: pairs of random ids for the tiny models."""
    return _ids_task
