"""Gemma 2 and OLMo 2 of the golden files: branches that are normalised before they are added."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from soft_pairs import soft_pairs

from assay import discover
from assay.circuits import Circuit
from assay.execution import run_circuit, run_model
from assay.execution.soft import SoftRunner
from assay.models import Model, load_model
from assay.objectives import get_objective
from assay.tasks import Batch, PairTask


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


def task_loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return get_objective("logit_diff")(logits, logits.detach(), batch)


def near(found: torch.Tensor, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    """Relative to the largest value of the array, as the golden files ask."""
    difference = np.abs(found.double().numpy() - expected).max()
    assert difference <= tolerance * np.abs(expected).max(), difference / np.abs(expected).max()


def test_the_model_is_the_golden_one(golden: Golden) -> None:
    model, task, arrays = golden
    near(run_model(model, task), arrays["logits_clean"][:, -1])
    near(run_model(model, task, corrupted=True), arrays["logits_corrupted"][:, -1])


LEFT = {"method": "eap-ig-inputs", "steps": 5, "quadrature": "left"}


@pytest.mark.parametrize(
    ("array", "treatment", "options"),
    [
        ("scores_eap", "exact", {"method": "eap"}),
        ("scores_eap_ig_left5", "exact", LEFT),
        ("scores_eap_ig_midpoint5", "exact", {"method": "eap-ig-inputs", "steps": 5}),
        ("scores_eap_heads_before_norm", "eap-ig", {"method": "eap"}),
        ("scores_eap_ig_left5_heads_before_norm", "eap-ig", LEFT),
    ],
)
def test_scores_take_heads_by_what_they_add_or_give_to_the_norm(
    golden: Golden, array: str, treatment: str, options: dict[str, Any]
) -> None:
    model, task, arrays = golden
    near(discover(model.treating(treatment), task, **options).values, arrays[array])


@pytest.mark.parametrize("treatment", ["exact", "eap-ig"])
@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_ablated_runs_under_each_treatment(golden: Golden, ablation: str, treatment: str) -> None:
    model, task, arrays = golden
    model = model.treating(treatment)
    expected_runs = arrays[f"logits_{'exact' if treatment == 'exact' else 'per_target'}_{ablation}"]
    for mask, expected in zip(arrays["masks"], expected_runs, strict=True):
        circuit = Circuit(graph=model.graph, mask=torch.from_numpy(mask))
        near(run_circuit(circuit, model, task, ablation=ablation), expected)
        if ablation == "resample":  # a table of pairs is the run of each
            same = torch.arange(task.n)[:, None].expand(-1, 2)
            near(run_circuit(circuit, model, task, pairs=same), expected)


def test_scores_are_of_first_order(golden: Golden) -> None:
    """A run that keeps 1 - t of an edge moves the loss by t times the edge's score."""
    model, task, _ = golden
    scores = discover(model, task, "eap", per_example=True).per_example
    assert scores is not None
    batch = next(task.batches(task.n))
    runner = SoftRunner(model)
    pairs = soft_pairs(runner, task.clean, task.corrupted)
    mask = model.graph.valid.double().requires_grad_()
    loss = task_loss(runner.logits(pairs, mask), batch)
    (slopes,) = torch.autograd.grad(-loss.mean(), mask)
    near((slopes * model.graph.valid), scores.mean(0).double().numpy())


def test_pruning_first_is_another_run(golden: Golden) -> None:
    model, task, arrays = golden
    for mask, expected in zip(arrays["masks_pruned"], arrays["logits_exact_resample_pruned"], strict=True):
        near(run_circuit(Circuit(graph=model.graph, mask=torch.from_numpy(mask)), model, task), expected)
