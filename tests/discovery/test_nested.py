"""Nested masks: the sigmoid top-k, the sizes drawn, and the ranking that comes of them."""

import json
import math
import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from cut_models import random_prompts
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.circuits import EdgeScores
from assay.core.errors import AssayWarning, InputError
from assay.core.random import torch_stream
from assay.discovery.edges import METHODS, discover
from assay.discovery.edges.masked_runs import MaskedRuns
from assay.discovery.edges.nested import TopK, draw_size, weights_of
from assay.models import load_model
from assay.objectives import OBJECTIVES


@pytest.fixture(scope="module")
def published(shared: Callable[[str], Path]) -> dict[str, Any]:
    return dict(json.loads(shared("golden/front/selection.json").read_text())["matryoshka"])


def wide(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_masks_and_their_gradients_are_the_published_ones(published: dict[str, Any]) -> None:
    for case in published["cases"]:
        scores = wide(published["scores"]).requires_grad_()
        mask = TopK.apply(scores, case["k"], published["T"])
        (gradient,) = torch.autograd.grad(mask, scores, wide(published["cotangent"]))
        torch.testing.assert_close(mask.detach(), wide(case["mask"]), rtol=0, atol=1e-9)
        torch.testing.assert_close(gradient, wide(case["vjp"]), rtol=0, atol=1e-9)


def test_sizes_are_the_published_ones(published: dict[str, Any]) -> None:
    for sizes, expected in published["k"].items():
        found = [draw_size(float(u), published["total"], sizes) for u in published["uniform_numbers"]]
        assert found == pytest.approx(expected, abs=1e-9)
    assert [draw_size(u, 100, "log_both") for u in (0.0, 0.25, 0.75, 1.0)] == pytest.approx([1, 10, 90, 1])
    assert [draw_size(u, 10_000, "shares") for u in (0.0, 2 / 3, 1.0)] == pytest.approx([10, 1000, 10_000])
    assert draw_size(0.0, 100, "shares") == 1


def test_thirty_steps_of_adam_are_the_published_ones(published: dict[str, Any]) -> None:
    training, worth = published["training"], wide(published["training"]["a"])
    scores = torch.zeros_like(worth).requires_grad_()
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for step in range(training["steps"]):
        mask = TopK.apply(scores, training["k_cycle"][step % 3], published["T"])
        optimizer.zero_grad()
        (-(worth * mask).sum() - 0.1 * (worth * mask.square()).sum()).backward()
        optimizer.step()
    torch.testing.assert_close(scores.detach(), wide(training["final_scores"]), rtol=0, atol=1e-7)
    assert scores.argsort(descending=True).tolist() == training["ranking"]


@given(seed=st.integers(0, 100), share=st.floats(0.001, 0.999), spread=st.floats(0, 3))
def test_a_mask_adds_up_to_its_size_and_teaches_differences_alone(
    seed: int, share: float, spread: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores, cotangent = spread * torch.randn(2, 40, generator=generator, dtype=torch.float64)
    mask = TopK.apply(scores.requires_grad_(), 40 * share, 0.5)
    assert float(mask.detach().sum()) == pytest.approx(40 * share, abs=1e-9)
    (gradient,) = torch.autograd.grad(mask, scores, cotangent)
    assert abs(float(gradient.sum())) <= 1e-6 * max(1.0, float(gradient.abs().sum()))


# ---- the ranking -------------------------------------------------------------------------------------


def ranked(module: nn.Module, **options: Any) -> Any:
    model = load_model(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssayWarning)  # a few updates never settle
        return discover(model, random_prompts(model), "nested", **{"updates": 4, "examples": 2} | options)


def test_equal_seeds_give_equal_rankings(gpt2_tiny: nn.Module) -> None:
    first, again, other = (ranked(gpt2_tiny, seed=seed).values for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_it_starts_from_the_ranks_of_what_it_is_given(gpt2_tiny: nn.Module, unchecked: None) -> None:
    """Edge r begins 2 ln r below the first: sizes and signs of the starting scores do not count."""
    model = load_model(gpt2_tiny)
    values = torch.randn(model.graph.valid.shape, generator=torch.Generator().manual_seed(3))
    start = EdgeScores(model.graph, values.where(model.graph.valid, 0))
    found = ranked(gpt2_tiny, warm_start=start, updates=1, rate=1e-9)
    assert found.top(15) == start.top(15)
    strongest = found.values[model.graph.valid].sort(descending=True).values
    assert float(strongest[0] - strongest[4]) == pytest.approx(2 * math.log(5), abs=1e-4)
    assert float(strongest[-1]) == 1
    even = ranked(gpt2_tiny, warm_start=None, updates=1, rate=1e-9).values[model.graph.valid]
    torch.testing.assert_close(even, torch.ones_like(even))
    refused = r"holds scores of edges, of shape \({}9, 21\); give scores of {}"
    with pytest.raises(InputError, match=refused.format("", r"nodes, of shape \(9,\)")):
        ranked(gpt2_tiny, warm_start=start, level="node")
    at_spans = discover(model, random_prompts(model), "eap", spans="each")
    with pytest.raises(InputError, match=refused.format(r"\d, ", r"edges, of shape \(9, 21\)")):
        ranked(gpt2_tiny, warm_start=at_spans)
    with pytest.raises(InputError, match="exact does not score neurons"):
        ranked(gpt2_tiny, warm_start="exact", level="neuron")
    with pytest.raises(InputError, match="warm_start of nested is a Tensor"):
        ranked(gpt2_tiny, warm_start=values)


def test_a_training_is_the_literal_one(gpt2_tiny64: nn.Module) -> None:
    """Loss of both targets in units of the empty circuit's, sizes by the golden ratio, a T that falls."""
    model, updates = load_model(gpt2_tiny64), 6
    task, valid = model.bind(random_prompts(model)), model.graph.valid
    drawn = MaskedRuns(model, task, METHODS["nested"].choices(task), 4, examples=4, updates=1).draw(0)
    clean = drawn.pairs.model_logits

    def lost(mask: Tensor) -> Tensor:
        logits = drawn.runner.logits(drawn.pairs, mask)
        margin = OBJECTIVES["logit_diff"](logits, clean, drawn.batch)
        departure = margin - OBJECTIVES["logit_diff"](clean, clean, drawn.batch)
        divergence = (clean.softmax(1) * (clean.log_softmax(1) - logits.log_softmax(1))).sum(1)
        return torch.stack([departure.square().mean(), divergence.mean()])

    scores = torch.zeros(model.graph.n_edges, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=0.1)
    whole = lost(torch.zeros(valid.shape, dtype=torch.float64)).detach()
    first = float(torch.rand((), generator=torch_stream(0, "mask-sizes")))
    for step in range(updates):
        size = len(scores) * 1000 ** ((first + step * 0.6180339887498949) % 1 - 1)
        temperature = 0.5 / 5 ** max(0.0, 2 * step / updates - 1)
        kept = TopK.apply(scores, max(1.0, size), temperature)
        mask = torch.zeros(valid.shape, dtype=torch.float64).masked_scatter(valid, kept)
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, (1 - step / updates) / 0.3)
        optimizer.zero_grad()
        (lost(mask) / whole).sum().backward()
        optimizer.step()
    found = ranked(gpt2_tiny64, updates=updates, examples=4, warm_start=None).values[valid]
    expected = (scores - scores.min() + 1).detach()
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", ["node", "neuron"])
def test_nodes_that_carry_nothing_come_last(gpt2_tiny64: nn.Module, level: str) -> None:
    module = deepcopy(gpt2_tiny64)
    with torch.no_grad():
        module.transformer.h[0].mlp.c_proj.weight.zero_()
        module.transformer.h[0].mlp.c_proj.bias.zero_()
    found = ranked(module, level=level, warm_start=None, updates=40, examples=6, ablation="mean")
    assert found.level == level
    silent = torch.zeros_like(found.values, dtype=torch.bool)
    silent[found.graph.mlp_source(0)] = True
    others, silenced = found.values[~silent], found.values[silent]
    assert len(silenced) == (module.config.n_embd if level == "neuron" else 1)
    assert float((others[:, None] > silenced).double().mean()) > 0.8


def test_nodes_weigh_their_edges_and_neurons_their_dimensions(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    graph = model.graph
    shares = torch.rand(graph.n_sources, model.d_model, dtype=torch.float64)
    mask, cells = weights_of(model, "node", shares[:, 0])
    assert cells is None
    torch.testing.assert_close(mask, shares[:, :1] * graph.valid)
    mask, cells = weights_of(model, "neuron", shares)
    torch.testing.assert_close(mask, graph.valid.double())
    assert cells is shares
