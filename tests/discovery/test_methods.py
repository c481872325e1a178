"""Every edge method against its slow literal twin, and what holds for all of them."""

import warnings
from copy import deepcopy

import literal
import numpy as np
import pytest
import torch
from cut_models import random_prompts
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from small_models import TEXT, build
from torch import Tensor, nn

from assay.circuits import Circuit, EdgeScores
from assay.core.errors import AssayWarning, InputError, ShapeError
from assay.discovery.edges import METHODS, discover, gradients, quadrature_nodes
from assay.execution.batches import assumed_memory
from assay.models import Model, load_model
from assay.tasks import PairTask, load_task


STEPS = 3
ABLATION_KEYS = ("resample", "zero", "mean", "mean-positional", "noise-additive")


class Literal:
    """Twin of all methods: per-example scores from node-by-node runs."""

    def __init__(self, model: Model, task: PairTask, objective: str, ablation: str) -> None:
        self.model, self.task = model, task
        batch = next(iter(task.batches(task.n)))
        logits, self.clean = literal.run_plain(model, task.clean)
        clean_logits = logits[torch.arange(task.n), task.positions].detach()
        self.loss = literal.loss_of(model, objective, batch, task.positions, clean_logits)
        self.clean_loss = self.loss(logits)
        self.ablated = literal.ablated_outputs(model, task, ablation)
        self.differences = {name: (self.ablated[name] - self.clean[name]).detach() for name in self.clean}

    def at(self, names: list[str], alpha: float) -> dict[str, Tensor]:
        return {
            name: (self.ablated[name] + alpha * (self.clean[name] - self.ablated[name])).detach()
            for name in names
        }

    def gradient_mean(self, runs: list[tuple[float, dict[str, Tensor]]]) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for weight, override in runs:
            gradients = literal.edge_gradients(self.model, self.task.clean, self.loss, override=override)
            total = {name: total.get(name, 0) + weight * gradient for name, gradient in gradients.items()}
        return total

    def score(self, gradients: dict[str, Tensor]) -> Tensor:
        return literal.scores(self.model, self.differences, gradients, self.task.lengths)

    def eap(self) -> Tensor:
        return self.score(self.gradient_mean([(1.0, {})]))

    def clean_corrupted(self) -> Tensor:
        corrupted = literal.edge_gradients(self.model, self.task.corrupted, self.loss)
        clean = literal.edge_gradients(self.model, self.task.clean, self.loss)
        return self.score({name: (clean[name] + corrupted[name]) / 2 for name in clean})

    def eap_ig_inputs(self, rule: str = "midpoint") -> Tensor:
        nodes = quadrature_nodes(STEPS, rule)
        return self.score(
            self.gradient_mean([(node.weight, self.at(["input"], node.alpha)) for node in nodes])
        )

    def eap_ig_activations(self, rule: str = "midpoint") -> Tensor:
        groups = [["input"]]
        for layer in range(self.model.n_layers):
            groups += [[f"a{layer}.h{head}" for head in range(self.model.n_heads)], [f"m{layer}"]]
        scores = torch.zeros(1)
        for group in groups:
            nodes = quadrature_nodes(STEPS, rule)
            part = self.score(
                self.gradient_mean([(node.weight, self.at(group, node.alpha)) for node in nodes])
            )
            rows = [self.model.graph.source_index(name) for name in group]
            own = torch.zeros(self.model.graph.n_sources, 1)
            own[rows] = 1
            scores = scores + part * own
        return scores

    def exact(self) -> Tensor:
        graph = self.model.graph
        scores = torch.zeros(self.task.n, graph.n_sources, graph.n_targets, dtype=torch.float64)
        for row, column in graph.valid.nonzero().tolist():
            mask = graph.valid.clone()
            mask[row, column] = False
            logits = literal.run_circuit(
                self.model, Circuit(graph=graph, mask=mask), self.task.clean, self.ablated
            )
            scores[:, row, column] = self.loss(logits) - self.clean_loss
        return scores


def assert_scores(found: EdgeScores, expected: Tensor) -> None:
    assert found.per_example is not None
    # transformers takes norms and rotary tables of Llama and NeoX in float32 even inside a float64 model
    expected = expected.detach()
    atol = 2e-6 * float(expected.abs().max())
    torch.testing.assert_close(found.per_example, expected.detach(), rtol=0, atol=atol)
    torch.testing.assert_close(found.values, expected.detach().mean(0), rtol=0, atol=atol)


@pytest.mark.parametrize("ablation", ABLATION_KEYS)
@pytest.mark.parametrize("objective", ["logit_diff", "kl"])
def test_gradient_methods_equal_their_twins(module64: nn.Module, objective: str, ablation: str) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=ablation != "mean-positional")
    twin = Literal(model, task, objective, ablation)
    expected = {"eap-ig-inputs": twin.eap_ig_inputs, "eap-ig-activations": twin.eap_ig_activations}
    expected |= {"eap": twin.eap} if objective == "logit_diff" else {}
    expected |= {"clean-corrupted": twin.clean_corrupted} if ablation == "resample" else {}
    settings = {"objective": objective, "ablation": ablation, "steps": STEPS, "batch_size": 3}
    for method, scores in expected.items():
        assert_scores(discover(model, task, method, per_example=True, **settings), scores())


@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_exact_equals_its_twin(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = random_prompts(model, n=2, length=4)
    found = discover(model, task, "exact", ablation=ablation, per_example=True)
    assert_scores(found, Literal(model, task, "logit_diff", ablation).exact())


@pytest.mark.parametrize("rule", ["left", "right", "gauss-legendre"])
@pytest.mark.parametrize("ablation", ["resample", "zero"])
def test_every_quadrature_equals_its_twin(gpt2_tiny64: nn.Module, rule: str, ablation: str) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model)
    settings = {"ablation": ablation, "steps": STEPS, "quadrature": rule, "per_example": True}
    found = discover(model, task, objective="kl", **settings)
    assert_scores(found, Literal(model, task, "kl", ablation).eap_ig_inputs(rule))
    found = discover(model, task, "eap-ig-activations", **settings)
    assert_scores(found, Literal(model, task, "logit_diff", ablation).eap_ig_activations(rule))


def test_blocks_that_overwrite_what_their_mlp_gave() -> None:
    model = load_model(build("falcon with one key"))
    task = random_prompts(model)
    found = discover(model, task, "eap-ig-activations", steps=STEPS, per_example=True)
    assert_scores(found, Literal(model, task, "logit_diff", "resample").eap_ig_activations())


@pytest.mark.parametrize("method", ["eap-ig-inputs", "eap-ig-activations"])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox parallel", "attention_only"])
def test_blocks_that_share_a_product_score_as_they_do_alone(
    family: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = {"num_hidden_layers": 7} if "n_layer" not in TEXT[family] else {"n_layer": 7}
    monkeypatch.setitem(TEXT, family, {**TEXT[family], **depth})
    model = load_model(build(family))
    task = random_prompts(model, ragged=True)
    found = []
    monkeypatch.setattr(gradients, "TOGETHER_BYTES", {"cpu": 1})
    for together in (1, 160):
        monkeypatch.setattr(gradients, "TARGETS_TOGETHER", together)
        for apart in (False, True):
            scores = discover(model, task, method, steps=2, per_example=apart)
            found.append(scores.values)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-12, atol=1e-13)


@given(st.integers(1, 40), st.sampled_from(["midpoint", "left", "right", "gauss-legendre"]))
def test_quadrature_integrates_a_line(steps: int, rule: str) -> None:
    nodes = quadrature_nodes(steps, rule)
    assert sum(node.weight for node in nodes) == pytest.approx(1)
    bias = {"left": -0.5 / steps, "right": 0.5 / steps}.get(rule, 0.0)
    assert sum(node.weight * node.alpha for node in nodes) == pytest.approx(0.5 + bias)


def test_completeness_gap_is_the_one_of_the_definition(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model)
    for ablation in ("resample", "mean"):
        scores = discover(model, task, ablation=ablation, steps=40)
        twin = Literal(model, task, "logit_diff", ablation)
        ablated_input = literal.run(
            model, task.clean, literal.plain_stream, override={"input": twin.ablated["input"]}
        )[0]
        effect = float((twin.loss(ablated_input) - twin.clean_loss).detach().mean())
        gap = abs(float(scores.values[0].sum()) - effect) / abs(effect)
        assert scores.details["completeness_gap"] == pytest.approx(gap, rel=1e-6, abs=1e-9)
        assert gap < 0.01


# ---- what holds for every method -----------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Methods that learn take a few updates here; that these do not settle is a matter of their own tests.
QUICK: dict[str, dict[str, int]] = {
    "ugs": {"updates": 2, "samples": 2},
    "nested": {"updates": 2},
}


def quickly(model: Model, task: PairTask, method: str, **options: object) -> EdgeScores:
    with warnings.catch_warnings():
        if method in QUICK:
            warnings.simplefilter("ignore", AssayWarning)
        return discover(model, task, method, steps=2, **QUICK.get(method, {}), **options)


class TestEveryMethod:
    def scores(self, module: nn.Module, method: str, **options: object) -> EdgeScores:
        model = load_model(module)
        return quickly(model, random_prompts(model, n=3, length=4), method, **options)

    def test_batch_size_does_not_matter(self, gpt2_tiny64: nn.Module, method: str) -> None:
        whole = self.scores(gpt2_tiny64, method, batch_size=3)
        torch.testing.assert_close(self.scores(gpt2_tiny64, method, batch_size=2).values, whole.values)

    def test_examples_average_to_the_values(self, gpt2_tiny64: nn.Module, method: str) -> None:
        if not METHODS[method].keeps_examples:
            with pytest.raises(InputError, match=rf"{method} decides on all examples together"):
                self.scores(gpt2_tiny64, method, per_example=True)
            return
        scores = self.scores(gpt2_tiny64, method, per_example=True)
        torch.testing.assert_close(scores.per_example.mean(0), scores.values)

    def test_edges_outside_the_graph_score_zero(self, gpt2_tiny: nn.Module, method: str) -> None:
        scores = self.scores(gpt2_tiny, method)
        assert scores.values.dtype == torch.float32
        assert not scores.values[~scores.graph.valid].any()


# ---- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eap", "gim", "relp"])
@pytest.mark.parametrize("objective", ["kl", "js"])
def test_objectives_that_are_stationary_are_refused(
    gpt2_tiny64: nn.Module, method: str, objective: str
) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match="zero gradient.*eap-ig-inputs"):
        discover(model, random_prompts(model), method, objective=objective)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "a whole number of at least 1"),
        ({"quadrature": "midpiont"}, "did you mean 'midpoint'"),
        ({"method": "clean-corrupted", "ablation": "zero"}, "needs the run on the corrupted input"),
        ({"method": "eap-ig-input"}, "did you mean 'eap-ig-inputs'"),
        ({"objective": "logit-dif"}, "did you mean 'logit_diff'"),
        ({"ablation": "resampel"}, "did you mean 'resample'"),
        ({"batch_size": 0}, "at least 1"),
        ({"steps": 2.7}, "a whole number of at least 1"),
        ({"objective": "kl", "steps": 1, "quadrature": "right"}, "all scores would be 0"),
    ],
)
def test_settings_no_method_can_serve_are_refused(
    gpt2_tiny64: nn.Module, unchecked: None, options: dict[str, object], message: str
) -> None:
    model = load_model(gpt2_tiny64)
    with pytest.raises(InputError, match=message):
        discover(model, random_prompts(model), **options)


def test_losses_that_are_not_per_example_are_refused(gpt2_tiny64: nn.Module, unchecked: None) -> None:
    model = load_model(gpt2_tiny64)
    for loss in (lambda logits, clean, batch: logits.mean(), lambda logits, clean, batch: logits[:, :1]):
        with pytest.raises(ShapeError, match="one floating-point loss per example"):
            discover(model, random_prompts(model), objective=loss)


# ---- the embedded model --------------------------------------------------------------------------------


def agreement(model: Model, task: PairTask) -> tuple[float, float]:
    """Pearson over all edges, Spearman over the 200 strongest of either, of estimate and exact damage."""
    valid = model.graph.valid
    estimate = discover(model, task).values[valid].double().numpy()
    exact = discover(model, task, "exact").values[valid].double().numpy()
    strongest = np.union1d(np.argsort(-abs(estimate))[:200], np.argsort(-abs(exact))[:200])
    return pearsonr(estimate, exact).statistic, spearmanr(estimate[strongest], exact[strongest]).statistic


@pytest.mark.slow
def test_estimates_and_exact_damage_agree_above_nine_tenths() -> None:
    """Of `docs/performance.md`."""
    model = load_model("mini")
    assert min(agreement(model, load_task("ioi", model, n=100, seed=0))) > 0.9


# ---- number types and memory ---------------------------------------------------------------------------


def test_half_precision_scores_report_their_drift(gpt2_tiny: nn.Module) -> None:
    half = load_model(deepcopy(gpt2_tiny).to(torch.bfloat16))
    task = random_prompts(half)
    scores = discover(half, task)
    reference = discover(load_model(deepcopy(half.module).float()), task)
    drift = float((scores.values - reference.values).norm() / reference.values.norm())
    assert scores.values.dtype == torch.float32
    assert 0 < drift < 0.1
    assert scores.details["drift"] == pytest.approx(drift, rel=0.05)
    assert "drift" not in reference.details


def test_a_batch_that_does_not_fit_is_split(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = random_prompts(model)
    whole = discover(model, task, batch_size=task.n)
    with assumed_memory(1):
        split = discover(model, task, batch_size=task.n)
    assert (whole.details["batch_size"], split.details["batch_size"]) == (task.n, 1)
    torch.testing.assert_close(split.values, whole.values)


@pytest.mark.parametrize("ablation", ["mean", "mean-positional"])
def test_the_passes_that_measured_the_means_are_the_clean_ones(
    ablation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept or made again: the same scores, one forward pass apart."""
    model = load_model("mini")
    task = random_prompts(model, n=5)
    settings = {"ablation": ablation, "steps": 2, "batch_size": 2, "per_example": True}
    kept = discover(model, task, "eap-ig-inputs", **settings)
    monkeypatch.setattr("assay.discovery.edges.method.KEPT_BYTES", 0)
    again = discover(model, task, "eap-ig-inputs", **settings)
    assert torch.equal(kept.values, again.values)
    assert torch.equal(kept.per_example, again.per_example)
    assert again.details["passes"]["forward"] - kept.details["passes"]["forward"] == pytest.approx(1)
