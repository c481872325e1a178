"""Gemma 2 and OLMo 2 of the golden files: branches that are normalised before they are added."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from assay import discover
from assay.circuits import Circuit
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model
from assay.tasks import PairTask


Golden = tuple[Model, PairTask, dict[str, np.ndarray]]


@pytest.fixture(params=["gemma2", "olmo2"], scope="module")
def golden(request: pytest.FixtureRequest, shared: Callable[[str], Path]) -> Golden:
    files = shared("golden/families")
    described = json.loads((files / f"{request.param}.json").read_text())
    with np.load(files / f"{request.param}.npz") as archive:
        arrays = dict(archive)
    config = transformers.AutoConfig.for_model(described["model_type"], **described["config"])
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
    weights = {
        name.removeprefix("weight/"): torch.from_numpy(value).double()
        for name, value in arrays.items()
        if name.startswith("weight/")
    }
    missing, unexpected = module.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    module.tie_weights()
    model = load_model(module.eval())
    assert list(model.graph.sources) == described["sources"]
    task = PairTask(
        clean=torch.from_numpy(arrays["clean"]),
        corrupted=torch.from_numpy(arrays["corrupted"]),
        answers=torch.from_numpy(arrays["answers"]),
        wrong=torch.from_numpy(arrays["wrong"]),
        objective="logit_diff",
    )
    return model, task, arrays


def near(found: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    """Relative to the largest value of the array, as the golden files ask."""
    difference = np.abs(found.double().numpy() - expected).max()
    assert difference <= tolerance * np.abs(expected).max(), difference / np.abs(expected).max()


def test_the_model_is_the_golden_one(golden: Golden) -> None:
    model, task, arrays = golden
    near(run_model(model, task), arrays["logits_clean"][:, -1])
    near(run_model(model, task, corrupted=True), arrays["logits_corrupted"][:, -1])


@pytest.mark.parametrize(
    ("array", "options"),
    [
        ("scores_eap", {"method": "eap"}),
        ("scores_eap_ig_left5", {"method": "eap-ig-inputs", "steps": 5, "quadrature": "left"}),
        ("scores_eap_ig_midpoint5", {"method": "eap-ig-inputs", "steps": 5}),
    ],
)
def test_scores_take_heads_by_what_they_add(golden: Golden, array: str, options: dict[str, Any]) -> None:
    model, task, arrays = golden
    near(discover(model, task, **options).values, arrays[array])


@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_ablated_runs_with_the_scale_of_the_run(golden: Golden, ablation: str) -> None:
    model, task, arrays = golden
    for mask, expected in zip(arrays["masks"], arrays[f"logits_exact_{ablation}"], strict=True):
        circuit = Circuit(graph=model.graph, mask=torch.from_numpy(mask))
        near(run_circuit(model, task, circuit, ablation=ablation), expected)


def test_pruning_first_is_another_run(golden: Golden) -> None:
    model, task, arrays = golden
    for mask, expected in zip(arrays["masks_pruned"], arrays["logits_exact_resample_pruned"], strict=True):
        near(run_circuit(model, task, Circuit(graph=model.graph, mask=torch.from_numpy(mask))), expected)
