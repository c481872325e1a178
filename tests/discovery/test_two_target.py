"""One ranking for margin and distribution: its attributions, its formula, how its weight is chosen."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from cut_models import random_prompts
from torch import nn

from assay.circuits import Circuit, EdgeScores, Level
from assay.core.errors import InputError
from assay.discovery.edges import discover
from assay.discovery.edges.two_target import chosen_lean, rank
from assay.metrics import measure
from assay.models import Model, load_model
from assay.tasks import PairTask


def test_rank_by_hand() -> None:
    """Shares of d are 1/4, 3/4, 0; of c 1/5, 2/5, 2/5, of g 1/2, 0, 1/2; helping 1/3, 0, 2/3 and 1, 0, 0."""
    divergence, ends, by_rules = (
        torch.tensor([row], dtype=torch.float64)
        for row in ([-1.0, 3.0, 0.0], [1.0, -2.0, 2.0], [1.0, 0.0, -1.0])
    )
    found = rank(divergence, ends, by_rules, 0.3)
    expected = torch.tensor([[0.25 + 0.35 + 0.2, 0.75 + 0.2, 0.45 + 0.1]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert float(found.sum()) == pytest.approx(2.3, rel=1e-12)


def attributed(model: Model, task: PairTask, **settings: Any) -> list[torch.Tensor]:
    """The three attributions by the methods that they are named after."""
    ends = {**settings, "steps": 1}
    first, last = (
        discover(model, task, "eap-ig-inputs", objective="logit_diff", **{**ends, "quadrature": each}).values
        for each in ("left", "right")
    )
    divergence = discover(model, task, "eap-ig-inputs", objective="kl", **settings).values
    by_rules = discover(model, task, "gim", objective="logit_diff", **settings).values
    return [divergence, (first + last) / 2, by_rules]


@pytest.mark.parametrize("level", ["node", "neuron"])
def test_nodes_and_neurons_rank_by_their_own_attributions(gpt2_tiny64: nn.Module, level: Level) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model)
    found = discover(model, task, "two-target", level=level, steps=2)
    expected = rank(*attributed(model, task, level=level, steps=2), found.details["lean"])
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"quadrature": "left"}, {"ablation": "mean"}], ids=str)
def test_attributions_share_their_runs(module64: nn.Module, settings: dict[str, str]) -> None:
    """Each is what its own method gives, also at points of the path that are runs made anyway."""
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    found = discover(model, task, "two-target", lean=0.2, steps=3, batch_size=3, **settings)
    expected = rank(*attributed(model, task, steps=3, **settings), 0.2)
    torch.testing.assert_close(found.values, expected, rtol=1e-9, atol=1e-12)
    passes = found.details["passes"]
    paired = settings.get("ablation") is None
    assert (passes["forward"], passes["backward"]) == (6.0 if paired else 7.0, 6.0)
    assert found.details["lean"] == 0.2


def test_the_weight_is_chosen_on_runs_and_reported(gpt2_tiny64: nn.Module, unchecked: None) -> None:
    """By what circuits keep of margin and distribution; a divergence gives way to the task's objective."""
    model = load_model(gpt2_tiny64)
    task = random_prompts(model)
    found, three = discover(model, task, "two-target", steps=2), attributed(model, task, steps=2)

    def kept(lean: float, size: int) -> tuple[float, float]:
        circuit = EdgeScores(model.graph, rank(*three, lean).float()).top(size).connected(warn=False)
        empty = Circuit.empty(model.graph)
        lost, whole = (measure(each, model, task, "kl").value for each in (circuit, empty))
        return measure(circuit, model, task, "faithfulness-norm").value, 1 - lost / whole

    assert found.details["lean"] == chosen_lean(kept, model.graph.n_edges)
    again = discover(model, task, "two-target", steps=2, objective="kl", lean=found.details["lean"])
    torch.testing.assert_close(again.values, found.values, rtol=1e-12, atol=0)
    with pytest.raises(InputError, match="needs a margin"):
        discover(model, replace(task, objective="kl"), "two-target", steps=1)
    with pytest.raises(InputError, match="which is 0 at the clean run"):
        discover(model, task, "two-target", steps=1, quadrature="right")
    for lean in (-0.1, math.inf, "1"):
        with pytest.raises(InputError, match="give a number of at least 0"):
            discover(model, task, "two-target", lean=lean)


def test_the_chosen_weight_keeps_the_same_share_of_both() -> None:
    """Where k edges keep 1 - .8 k^-.5 of the distribution, enough from 64 on, and .7 + lean of the margin."""
    sizes = []

    def kept(lean: float, size: int) -> tuple[float, float]:
        sizes.append(size)
        return 0.7 + lean, 1 - 0.8 / size**0.5

    assert chosen_lean(kept, 1000) == pytest.approx(0.2, abs=0.05)
    assert 64 <= sizes[-1] <= 64 * 1.35
    assert len(sizes) <= 8


@pytest.mark.parametrize("family", ["gpt2_tiny64", "llama_tiny64"])
def test_under_zero_the_margin_is_attributed_at_the_clean_run(
    family: str, request: pytest.FixtureRequest
) -> None:
    """A path that begins with a stream of zeros, where norms pass on huge gradients."""
    model = load_model(request.getfixturevalue(family))
    task = random_prompts(model)
    found = discover(model, task, "two-target", ablation="zero", lean=0.2, steps=2)
    settings: dict[str, Any] = {"ablation": "zero", "steps": 2}
    divergence = discover(model, task, "eap-ig-inputs", objective="kl", **settings).values
    at_the_clean_run, by_rules = (
        discover(model, task, key, objective="logit_diff", ablation="zero").values for key in ("eap", "gim")
    )
    torch.testing.assert_close(
        found.values, rank(divergence, at_the_clean_run, by_rules, 0.2), rtol=1e-9, atol=1e-12
    )
