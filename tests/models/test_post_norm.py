"""Norms behind branches (Gemma 2, OLMo 2): what each treatment changes, and what none of them does.

Ablated runs, scores of `eap` and of integrals over inputs are held by golden files (`test_golden_families`).
"""

import copy
from typing import Any

import literal
import pytest
import torch
from literal_relevance import relevance
from small_models import build, text_task
from torch import Tensor

from assay.core.errors import UnsupportedModelError
from assay.discovery.edges import discover, quadrature_nodes
from assay.discovery.edges.outputs import output_scores
from assay.discovery.heads import discover_heads
from assay.discovery.heads.direct import direct_attribution, head_outputs, margin_directions
from assay.discovery.heads.gradients import attribution_patching
from assay.discovery.heads.weights import weight_scores
from assay.metrics import measure
from assay.models import Model, load_model
from assay.tasks import PairTask


TREATMENTS = ("exact", "eap-ig")
STEPS = 3


@pytest.fixture(params=["gemma2", "olmo2"], scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    return load_model(build(request.param))


@pytest.fixture(scope="module")
def task(model: Model) -> PairTask:
    return text_task(model)


def near(found: Tensor, expected: Tensor) -> None:
    """Relative to the largest: transformers computes these norms in float32."""
    atol = 2e-6 * float(expected.abs().max())
    torch.testing.assert_close(found.double(), expected.detach().double(), rtol=0, atol=atol)


# ---- literal twins


class Twin:
    """Scores node by node: every group moves by itself, every target has its own stream."""

    def __init__(self, model: Model, task: PairTask) -> None:
        self.model, self.task = model, task
        batch = next(iter(task.batches(task.n)))
        logits, self.clean = literal.run_plain(model, task.clean)
        _, self.corrupted = literal.run_plain(model, task.corrupted)
        read = logits[torch.arange(task.n), task.positions].detach()
        self.loss = literal.loss_of(model, "logit_diff", batch, task.positions, read)
        self.heads = [
            [f"a{layer}.h{head}" for head in range(model.n_heads)] for layer in range(model.n_layers)
        ]

    def differences(self, treatment: str) -> literal.Outputs:
        """Of what sources write; with `eap-ig`, heads before the norm behind them."""
        moved = {name: self.corrupted[name] - self.clean[name] for name in self.clean}
        for layer, names in enumerate(self.heads if treatment == "eap-ig" else ()):
            clean, corrupted = (
                self.before_norm(layer, each) for each in (self.task.clean, self.task.corrupted)
            )
            moved |= dict(zip(names, corrupted - clean, strict=True))
        return moved

    def before_norm(self, layer: int, tokens: Tensor) -> Tensor:
        """What each head of a block gives to the norm behind it, `[head, batch, pos, d_model]`."""
        weight: Any = self.model.blocks[layer].out.weight
        with torch.no_grad(), self.model.tracing() as trace:
            self.model.forward(tokens)
        z = trace.head_z[layer].unflatten(-1, (self.model.n_heads, -1))
        return torch.einsum("bphc,hcd->hbpd", z, weight.detach().T.unflatten(0, (self.model.n_heads, -1)))

    def scores(self, treatment: str) -> Tensor:
        """Groups move along straight lines of what they add, or of what they give to the norm."""
        moved = self.differences(treatment)
        found = torch.zeros(self.task.n, *self.model.graph.valid.shape, dtype=torch.float64)
        for group in (["input"], *self.heads, *([f"m{layer}"] for layer in range(self.model.n_layers))):
            rows = [self.model.graph.source_index(name) for name in group]
            for node in quadrature_nodes(STEPS):
                at = {name: self.clean[name] + (1 - node.alpha) * moved[name] for name in group}
                if treatment == "eap-ig" and group in self.heads:
                    layer = self.heads.index(group)
                    start, norm = (
                        self.before_norm(layer, self.task.clean),
                        self.model.blocks[layer].branch_norm,
                    )
                    y = (start + (1 - node.alpha) * torch.stack([moved[name] for name in group])).sum(0)
                    assert norm is not None
                    at = {name: torch.zeros_like(y) for name in group} | {group[0]: norm(y).detach()}
                gradients = literal.edge_gradients(self.model, self.task.clean, self.loss, override=at)
                part = literal.scores(self.model, moved, gradients, self.task.lengths)
                found[:, rows] += node.weight * part[:, rows]
        return found


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_scores_equal_their_twin(model: Model, task: PairTask, treatment: str) -> None:
    treated, twin = model.treating(treatment), Twin(model, task)
    found = discover(treated, task, "eap-ig-activations", steps=STEPS, per_example=True).per_example
    assert found is not None
    near(found, twin.scores(treatment))
    found = discover(treated, task, "relp", per_example=True).per_example
    assert found is not None
    near(found, relevance(model, task, twin.loss, twin.differences(treatment)))
    for ablation in ("resample", "mean"):
        whole = discover(treated, task, "eap-ig-inputs", ablation=ablation, steps=STEPS).values
        near(output_scores(treated, task, ablation=ablation, steps=STEPS).values, whole[:, -1])


# ---- what cuts nothing knows no treatment


def scores_without_cuts(model: Model, task: PairTask) -> dict[str, Any]:
    """Values and provenance of everything that reads a model without cutting edges."""
    outputs = head_outputs(model, task)
    routes = discover(model, task, "ifr")
    found: dict[str, Any] = {"ifr": (routes.values, routes.provenance)}
    heads = {
        "direct": direct_attribution(model, outputs, margin_directions(model, task)),
        "attribution": attribution_patching(model, task),
        "ov-norm": weight_scores(model)["ov-spectral-norm"],
    } | {
        name: discover_heads(model, task, name)
        for name in ("dla", "attribution-patching", "activation-magnitude", "drop-effect", "spectral-norm")
    }
    return found | {name: (torch.from_numpy(each.values), each.provenance) for name, each in heads.items()}


def test_scores_that_cut_nothing_do_not_depend_on_the_treatment(model: Model, task: PairTask) -> None:
    expected = scores_without_cuts(model, task)
    for treatment in TREATMENTS:
        for name, (values, provenance) in scores_without_cuts(model.treating(treatment), task).items():
            torch.testing.assert_close(values, expected[name][0], rtol=0, atol=0, msg=f"{name}, {treatment}")
            assert provenance == expected[name][1], (name, treatment)
            assert "post_norm" not in provenance["model"], name


# ---- number types below float32


def test_gains_of_one_plus_weight_keep_their_digits_in_bfloat16(task: PairTask) -> None:
    half = load_model(build("gemma2").bfloat16())
    block: Any = half.blocks[0]
    for norm in (block.attention_norm, block.branch_norm):
        torch.testing.assert_close(norm.gain, 1 + norm.module.weight.detach().float(), rtol=0, atol=0)
    plain = block.out.weight.detach().float().T.unflatten(0, (half.n_heads, half.d_head))
    torch.testing.assert_close(block.out_weight(), plain * block.branch_norm.gain, rtol=0, atol=0)
    wide = load_model(copy.deepcopy(half.module).float())
    for treatment in TREATMENTS:  # the drift compares one treatment
        low, high = (discover(each.treating(treatment), task, "eap") for each in (half, wide))
        drift = float((low.values - high.values).norm() / high.values.norm())
        assert 0 < drift < 0.3
        assert low.details["drift"] == pytest.approx(drift, rel=1e-4)


def test_single_edges_are_cut_with_norms_of_the_run(model: Model, task: PairTask) -> None:
    scores = discover(model, task, "acdc", threshold=0.1)
    loss = measure(scores.threshold(0.1, absolute=False), model, task, "kl").value
    assert scores.details["loss"] == pytest.approx(loss, rel=1e-4)
    with pytest.raises(UnsupportedModelError, match="cannot be cut with post_norm='eap-ig'"):
        discover(model.treating("eap-ig"), task, "exact")
