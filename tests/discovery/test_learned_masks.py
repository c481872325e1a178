"""Learned masks (uniform gradient sampling, nested), where the good circuit is known."""

import math
import warnings
from copy import deepcopy

import pytest
import torch
from cut_models import random_prompts
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.circuits import EdgeScores
from assay.core.errors import AssayError, AssayWarning, InputError
from assay.discovery.edges import METHODS, discover
from assay.discovery.edges.masked_runs import MaskedRuns
from assay.discovery.edges.ugs import _sample, reweighted
from assay.execution.soft import SoftRunner
from assay.graph import build_graph
from assay.models import Model, load_model
from assay.tasks import PairTask


QUICK = {"ugs": {"updates": 3, "samples": 2}, "nested": {"updates": 3}}


def learned(model: Model, task: PairTask, method: str, **options: object) -> EdgeScores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssayWarning)  # a few updates never settle
        return discover(model, task, method, **QUICK[method] | options)


# ---- uniform gradient sampling, by hand ----------------------------------------------------------


def test_a_mask_entry_by_hand() -> None:
    """With p = 1/2 the window is 1/4: u = .5 is the middle, .6 lies inside, .3 below, .7 above."""
    probability = torch.full((1, 4), 0.5, dtype=torch.float64)
    uniform = torch.tensor([[[0.5, 0.6, 0.3, 0.7]]], dtype=torch.float64)
    mask, inside = _sample(probability, uniform, torch.ones(1, 4, dtype=torch.bool))
    torch.testing.assert_close(mask, torch.tensor([[[0.5, 0.1, 1.0, 0.0]]], dtype=torch.float64))
    assert inside.tolist() == [[[True, True, False, False]]]


@given(p=st.floats(0.02, 0.98), seed=st.integers(0, 100))
def test_the_mean_of_an_entry_is_its_probability(p: float, seed: int) -> None:
    """The window lies symmetrically about p, inside (0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand((20_000, 1, 1), generator=generator, dtype=torch.float64)
    mask, _ = _sample(torch.tensor([[p]], dtype=torch.float64), uniform, torch.ones(1, 1, dtype=torch.bool))
    assert abs(float(mask.mean()) - p) < 4 * math.sqrt(p * (1 - p) / 20_000) + 1e-3


def test_gradients_of_a_linear_loss_are_its_slope() -> None:
    """With a loss sum_e c_e a_e the estimate is c_e for every edge that some draw saw inside its window."""
    generator = torch.Generator().manual_seed(0)
    slope = torch.rand((4, 6), generator=generator, dtype=torch.float64)
    uniform = torch.rand((8, 4, 6), generator=generator, dtype=torch.float64)
    mask, inside = _sample(torch.full_like(slope, 0.5), uniform, torch.ones(4, 6, dtype=torch.bool))
    mask = mask.requires_grad_()
    (found,) = torch.autograd.grad((mask * slope).sum() / len(uniform), mask)
    estimate = reweighted((found * inside).sum(0), inside)
    seen = inside.any(0)
    assert 0 < int(seen.sum()) < seen.numel()
    torch.testing.assert_close(estimate, slope.where(seen, 0))


# ---- what all find ------------------------------------------------------------------------------


def with_silent_nodes(module: nn.Module) -> tuple[Model, Tensor]:
    """A copy in which half of the nodes write nothing, and the edges that touch none of them."""
    silenced = deepcopy(module)
    model = load_model(silenced)
    graph = model.graph
    silent = [graph.head_source(0, 1), graph.mlp_source(0), graph.head_source(1, 0), graph.head_source(1, 2)]
    with torch.no_grad():
        for layer, block in enumerate(silenced.transformer.h):
            for head in range(model.n_heads):
                if graph.head_source(layer, head) in silent:
                    block.attn.c_proj.weight[head * model.d_head : (head + 1) * model.d_head] = 0
            if graph.mlp_source(layer) in silent:
                block.mlp.c_proj.weight.zero_()
                block.mlp.c_proj.bias.zero_()
    useful = graph.valid.clone()
    useful[silent] = False
    useful[:, graph.feeds[:, silent].any(1)] = False
    return model, useful


@pytest.mark.parametrize("method", sorted(QUICK))
@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_edges_that_carry_nothing_are_closed(gpt2_tiny64: nn.Module, method: str, ablation: str) -> None:
    model, useful = with_silent_nodes(gpt2_tiny64)
    task = random_prompts(model, n=6)
    options: dict[str, dict[str, object]] = {
        "ugs": {"samples": 3, "rate": 0.15, "price": 1e-2},
        "nested": {"warm_start": None},
    }
    scores = learned(model, task, method, ablation=ablation, updates=60, examples=6, **options[method]).values
    # Of every pair of a useful and a silent edge, nearly always the useful one is the more open.
    first, second = scores[useful], scores[model.graph.valid & ~useful]
    assert float((first[:, None] > second).double().mean()) > 0.9


def test_an_edge_worth_its_price_starts_undecided(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    values = torch.full(model.graph.valid.shape, 0.01) * model.graph.valid
    values[0, 0], values[0, 1] = 0.1, 0.001
    method = {"warm_start": EdgeScores(model.graph, values), "price": 0.01, "rate": 1e-9, "updates": 1}
    found = learned(model, random_prompts(model), "ugs", **method).values
    torch.testing.assert_close(found[0, 2], torch.tensor(0.5))
    torch.testing.assert_close(found[0, 0], torch.tensor(10 / 11), rtol=1e-4, atol=0)  # odds of score / price
    torch.testing.assert_close(found[0, 1], torch.tensor(1 / 11), rtol=1e-4, atol=0)


def test_examples_are_drawn_in_rounds(gpt2_tiny: nn.Module) -> None:
    model = load_model(gpt2_tiny)
    task = model.bind(random_prompts(model, n=7))
    runs = MaskedRuns(model, task, METHODS["ugs"].choices(task), 7, examples=3, updates=7)
    rows = torch.cat([runs.rows_of(step) for step in range(7)]).tolist()
    assert all(sorted(rows[first : first + 7]) == list(range(7)) for first in (0, 7, 14))


@pytest.mark.parametrize("ablation", ["resample", "mean"])
@pytest.mark.parametrize("method", sorted(QUICK))
def test_examples_that_come_again_are_prepared_once(
    gpt2_tiny64: nn.Module, method: str, ablation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for them they are prepared at every step, which gives the same scores."""
    model = load_model(gpt2_tiny64)
    options = {"updates": 6, "examples": 3, "ablation": ablation}
    once = learned(model, random_prompts(model, n=5), method, **options)
    monkeypatch.setattr(SoftRunner, "bytes_prepared", lambda self, length: 2**60)
    anew = learned(model, random_prompts(model, n=5), method, **options)
    torch.testing.assert_close(once.values, anew.values, rtol=1e-4, atol=1e-5)
    spent, more = (found.details["passes"] for found in (once, anew))
    drawn = 24 if method == "nested" else 18  # which runs every example with all edges cut, first
    again = (drawn / 5 - 1) * (1 + (ablation == "resample"))
    assert more["forward"] - spent["forward"] == pytest.approx(again)
    assert more["backward"] == spent["backward"]


@pytest.mark.parametrize("method", sorted(QUICK))
def test_what_has_not_settled_says_so(gpt2_tiny: nn.Module, method: str) -> None:
    model = load_model(gpt2_tiny)
    # Two downward steps leave every gate above 1/2 and the third closes it; a single step reorders the rest.
    options: dict[str, dict[str, object]] = {
        "ugs": {"updates": 3, "rate": 0.4, "price": 100.0, "samples": 2},
        "nested": {"updates": 2, "rate": 9.0, "sizes": "log"},
    }
    with pytest.warns(AssayWarning, match=rf"{method} has not settled after \d updates.*updates=\d"):
        scores = discover(model, random_prompts(model), method, **options[method])
    assert scores.details["converged"] is False


# ---- errors ----------------------------------------------------------------------------------------


def broken(logits: Tensor, clean_logits: Tensor, batch: object) -> Tensor:
    return logits.sum(1) * math.nan


OTHER = build_graph(3, 3)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("ugs", {"price": 0.0}, "price of ugs is 0.0; give a finite number above 0"),
        ("ugs", {"updates": 300.0}, "option updates of ugs is 300.0; expected the type of its default, 300"),
        ("ugs", {"updates": 0}, "updates of ugs is 0; expected at least 1"),
        ("ugs", {"rate": -1.0}, "rate of ugs is -1.0; give a step size above 0"),
        ("ugs", {"objective": broken}, "the loss of update 0 of ugs is NaN"),
        ("nested", {"sizes": "logs"}, "unknown sizes of nested 'logs'; did you mean 'log'"),
        ("nested", {"temperature": 0.0}, "temperature of nested is 0.0; give a finite number above 0"),
        ("nested", {"objective": broken, "warm_start": None}, "the loss of update 0 of nested is NaN"),
        ("ugs", {"warm_start": "eap"}, "eap takes the gradient at the clean run only"),
        ("nested", {"warm_start": "eap-ig-input"}, "eap-ig-input"),
        ("ugs", {"warm_start": EdgeScores(OTHER, OTHER.valid.float())}, "holds scores of another graph"),
    ],
)
def test_settings_that_cannot_be_served_are_refused(
    gpt2_tiny: nn.Module, unchecked: None, method: str, options: dict[str, object], message: str
) -> None:
    model = load_model(gpt2_tiny)
    with pytest.raises(AssayError, match=message):
        discover(model, random_prompts(model), method, **options)


@pytest.mark.parametrize("method", ["eap", "eap-ig-inputs", "eap-ig-activations", "relp", *sorted(QUICK)])
def test_objectives_without_a_gradient_are_refused(gpt2_tiny: nn.Module, method: str) -> None:
    def accuracy(logits: Tensor, clean_logits: Tensor, batch: object) -> Tensor:
        return (logits.argmax(1) != clean_logits.argmax(1)).float()

    model = load_model(gpt2_tiny)
    with pytest.raises(InputError, match=r"objective 'accuracy' has no gradient.*'acdc' or 'exact'"):
        discover(model, random_prompts(model), method, objective=accuracy)
