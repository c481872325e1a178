"""Norms behind branches (Gemma 2, OLMo 2): what each treatment changes, and what none of them does."""

import copy
from typing import Any

import literal
import pytest
import torch
import transformers
from tiny_decoders import SIZES, VOCABULARY
from torch import Tensor, nn

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


def tiny(kind: str, dtype: torch.dtype = torch.float64) -> Model:
    """A random model of two blocks with norms behind its branches, gains off their defaults."""
    config = transformers.AutoConfig.for_model(
        kind,
        **SIZES,
        max_position_embeddings=32,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").double()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return load_model(module.to(dtype).eval())


@pytest.fixture(params=["gemma2", "olmo2"], scope="module")
def model(request: pytest.FixtureRequest) -> Model:
    return tiny(request.param)


@pytest.fixture(scope="module")
def task() -> PairTask:
    generator = torch.Generator().manual_seed(1)
    clean, corrupted = torch.randint(1, VOCABULARY, (2, 4, 6), generator=generator)
    answers = torch.arange(1, 5)[:, None]
    return PairTask(clean=clean, corrupted=corrupted, answers=answers, wrong=answers + 7)


def near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    """Relative to the largest: transformers computes these norms in float32."""
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=0, atol=tolerance * float(expected.abs().max())
    )


# ------------------------------------------------------------------------- eap-ig-activations, by a twin


class Twin:
    """`eap-ig-activations` node by node: every group moves by itself, every target has its own stream."""

    def __init__(self, model: Model, task: PairTask) -> None:
        self.model, self.task = model, task
        batch = next(iter(task.batches(task.n)))
        logits, self.clean = literal.run_plain(model, task.clean)
        _, self.corrupted = literal.run_plain(model, task.corrupted)
        read = logits[torch.arange(task.n), task.positions].detach()
        self.loss = literal.loss_of(model, "logit_diff", batch, task.positions, read)

    def gradients(self, override: dict[str, Tensor]) -> dict[str, Tensor]:
        override = {name: value.detach() for name, value in override.items()}
        return literal.edge_gradients(self.model, self.task.clean, self.loss, override=override)

    def scores(self, groups: list[list[str]]) -> Tensor:
        """Groups move along straight lines of what they add to the stream."""
        differences = {name: (self.corrupted[name] - self.clean[name]).detach() for name in self.clean}
        found = torch.zeros(self.task.n, *self.model.graph.valid.shape, dtype=torch.float64)
        for group in groups:
            rows = [self.model.graph.source_index(name) for name in group]
            for node in quadrature_nodes(STEPS):
                at = {name: self.clean[name] + (1 - node.alpha) * differences[name] for name in group}
                part = literal.scores(self.model, differences, self.gradients(at), self.task.lengths)
                found[:, rows] += node.weight * part[:, rows]
        return found

    def scores_before_norms(self, layer: int) -> Tensor:
        """Heads of a block move along straight lines of what they give to the norm behind them."""
        block, names = self.model.blocks[layer], [f"a{layer}.h{head}" for head in range(self.model.n_heads)]
        norm = block.branch_norm
        assert norm is not None
        weight = block.out.weight.detach().T.unflatten(0, (self.model.n_heads, -1))  # type: ignore[union-attr, operator]

        def written(tokens: Tensor) -> Tensor:
            with torch.no_grad(), self.model.tracing() as trace:
                self.model.forward(tokens)
            z = trace.head_z[layer].unflatten(-1, (self.model.n_heads, -1))
            return torch.einsum("bphc,hcd->hbpd", z, weight)

        clean, corrupted = written(self.task.clean), written(self.task.corrupted)
        found = torch.zeros(self.task.n, *self.model.graph.valid.shape, dtype=torch.float64)
        for node in quadrature_nodes(STEPS):
            y = (corrupted + node.alpha * (clean - corrupted)).sum(0)
            at = {name: torch.zeros_like(y) for name in names} | {names[0]: norm(y)}
            gradients = self.gradients(at)
            moved = dict.fromkeys(self.clean, torch.zeros_like(y))
            for head, name in enumerate(names):
                moved[name] = corrupted[head] - clean[head]
            found += node.weight * literal.scores(self.model, moved, gradients, self.task.lengths)
        return found


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_integrals_over_activations_equal_their_twin(model: Model, task: PairTask, treatment: str) -> None:
    found = discover(
        model.treating(treatment), task, "eap-ig-activations", steps=STEPS, per_example=True
    ).per_example
    assert found is not None
    twin = Twin(model, task)
    heads = [[f"a{layer}.h{head}" for head in range(model.n_heads)] for layer in range(model.n_layers)]
    others = [["input"], *([f"m{layer}"] for layer in range(model.n_layers))]
    expected = twin.scores(others)
    if treatment == "exact":
        expected += twin.scores(heads)
    else:
        for layer in range(model.n_layers):
            expected += twin.scores_before_norms(layer)
    near(found, expected)


# --------------------------------------------------------------------------- the column of the logits


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("ablation", ["resample", "mean"])
def test_output_scores_are_a_column_under_each_treatment(
    model: Model, task: PairTask, treatment: str, ablation: str
) -> None:
    treated = model.treating(treatment)
    whole = discover(treated, task, "eap-ig-inputs", ablation=ablation, steps=STEPS).values
    near(output_scores(treated, task, ablation=ablation, steps=STEPS).values, whole[:, -1])


# ---------------------------------------------------------------- what cuts nothing knows no treatment


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


# ------------------------------------------------------------------------------- number types below float32


def test_gains_of_one_plus_weight_keep_their_digits_in_bfloat16() -> None:
    block = tiny("gemma2", torch.bfloat16).blocks[0]
    assert block.branch_norm is not None
    for norm in (block.attention_norm, block.branch_norm):
        weight: Tensor = norm.module.weight  # type: ignore[union-attr, assignment]
        assert norm.gain is not None
        torch.testing.assert_close(norm.gain, 1 + weight.detach().float(), rtol=0, atol=0)
    plain = block.out.weight.detach().float().T.unflatten(0, (4, 6))  # type: ignore[union-attr, operator]
    torch.testing.assert_close(block.out_weight(), plain * block.branch_norm.gain, rtol=0, atol=0)


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_drift_compares_one_treatment(task: PairTask, treatment: str) -> None:
    half = tiny("gemma2", torch.bfloat16)
    wide = load_model(copy.deepcopy(half.module).float())
    low, high = (discover(each.treating(treatment), task, "eap") for each in (half, wide))
    drift = float((low.values - high.values).norm() / high.values.norm())
    assert 0 < drift < 0.1
    assert low.details["drift"] == pytest.approx(drift, rel=1e-4)


def test_single_edges_are_cut_with_norms_of_the_run(model: Model, task: PairTask) -> None:
    scores = discover(model, task, "acdc", threshold=0.1)
    loss = measure(scores.threshold(0.1, absolute=False), model, task, "kl").value
    assert scores.details["loss"] == pytest.approx(loss, rel=1e-4)
    with pytest.raises(UnsupportedModelError, match="cannot be cut with post_norm='eap-ig'"):
        discover(model.treating("eap-ig"), task, "exact")


# ------------------------------------------------------------------------------------- runs made earlier


# ------------------------------------------------------------------------------------------ relp, by a twin


class RuledNorm(nn.Module):
    """LN rule: divided by a constant."""

    constant_scale = True  # for the literal run

    def __init__(self, native: Any, *, plus_one: bool) -> None:
        super().__init__()
        self.weight, self.plus_one = native.weight, plus_one
        self.eps = native.eps if hasattr(native, "eps") else native.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt().detach()
        return x * scale * (self.weight + 1 if self.plus_one else self.weight)


class RuledActivation(nn.Module):
    """Identity rule: multiplied by a constant."""

    def __init__(self, native: nn.Module) -> None:
        super().__init__()
        self.native = native

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.native(x) / x).detach()


class Halved(nn.Module):
    """Half rule: one half of the product that is read counts, the other is a constant."""

    def __init__(self, native: nn.Module) -> None:
        super().__init__()
        self.native = native

    def forward(self, x: Tensor) -> Tensor:
        return self.native(x / 2 + (x / 2).detach())


def ruled(model: Model) -> Model:
    """A copy whose modules are the linear parts that the rules make of them, under a constant 1/rms."""
    module = copy.deepcopy(model.module)
    for path, part in list(module.named_modules()):
        name = type(part).__name__
        if name.endswith("RMSNorm"):
            module.set_submodule(path, RuledNorm(part, plus_one=name.startswith("Gemma")))
        elif path.endswith("act_fn"):
            module.set_submodule(path, RuledActivation(part))
        elif path.endswith("down_proj"):
            module.set_submodule(path, Halved(part))
    return load_model(module.eval())


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_relevance_equals_its_twin(model: Model, task: PairTask, treatment: str) -> None:
    twin = Twin(ruled(model), task)
    gradients = twin.gradients({})
    moved = {name: twin.corrupted[name] - twin.clean[name] for name in twin.clean}
    if treatment == "eap-ig":
        for layer, block in enumerate(model.blocks):
            with torch.no_grad():
                traces = []
                for tokens in (task.clean, task.corrupted):
                    with model.tracing() as trace:
                        model.forward(tokens)
                    traces.append(trace)
            z = (traces[1].head_z[layer] - traces[0].head_z[layer]).unflatten(-1, (model.n_heads, -1))
            weight = block.out.weight.detach().T.unflatten(0, (model.n_heads, -1))  # type: ignore[union-attr, operator]
            for head in range(model.n_heads):
                moved[f"a{layer}.h{head}"] = z[..., head, :] @ weight[head]
    found = discover(model.treating(treatment), task, "relp", per_example=True).per_example
    assert found is not None
    near(found, literal.scores(twin.model, moved, gradients, task.lengths).detach())
