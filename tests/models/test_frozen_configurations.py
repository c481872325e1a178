"""Logits and scores of one small model per family stay what they were when they were frozen.

    python tests/models/test_frozen_configurations.py     # computes them again and replaces the frozen file

The models are random, in float64, with the configurations of `test_families` and `test_vits`.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from test_families import build as build_decoder
from test_families import tokens
from test_vits import build as build_vit
from vit_conformance import image_task, randomise

from assay.discovery.edges import discover
from assay.execution import run_circuit, run_model
from assay.models import load_model
from assay.tasks import PairTask


FILE = Path(__file__).parents[1] / "frozen" / "configurations.npz"
DECODERS = (
    "gpt2",
    "attention_only",
    "gpt_neo",
    "gptj",
    "gpt_neox parallel",
    "opt",
    "bloom",
    "falcon with one key",
    "phi",
    "phi3",
    "llama",
    "mistral with a window",
    "qwen2",
    "qwen3 with head norms",
    "mixtral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "olmo2",
    "stablelm",
    "smollm3",
    "starcoder2 with a window",
)
VITS = ("vit", "deit", "dinov2", "clip", "siglip")


def outputs(name: str) -> dict[str, np.ndarray]:
    """Logits of the model and of a circuit of half of its edges, and scores of all edges."""
    if name in DECODERS:
        model = load_model(build_decoder(name))
        task = PairTask(
            clean=tokens(model),
            corrupted=tokens(model).roll(1, 0),
            answers=torch.tensor([[3], [5], [7]]),
            wrong=torch.tensor([[4], [6], [8]]),
        )
    else:
        model = load_model(randomise(build_vit(name)))
        task = image_task(model)
    scores = discover(model, task, "eap-ig-inputs", steps=2)
    half = scores.top(int(model.graph.valid.sum()) // 2)
    return {
        "logits": run_model(model, task).numpy(),
        "ablated": run_circuit(half, model, task).numpy(),
        "scores": scores.values[model.graph.valid].numpy(),
    }


@pytest.mark.parametrize("name", [*DECODERS, *VITS])
def test_logits_and_scores_are_the_frozen_ones(name: str) -> None:
    # GPT-J and GPT-Neo multiply queries and keys in float32.
    tolerance = 1e-5 if name in ("gptj", "gpt_neo") else 1e-9
    with np.load(FILE) as frozen:
        for part, found in outputs(name).items():
            expected = frozen[f"{name}/{part}"]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=tolerance)


if __name__ == "__main__":
    arrays = {f"{name}/{part}": value for name in (*DECODERS, *VITS) for part, value in outputs(name).items()}
    np.savez_compressed(FILE, **arrays)
