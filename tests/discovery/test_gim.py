"""Gradient interaction modifications: the reference's numbers, the released package's, a literal twin."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import literal
import numpy as np
import pytest
import torch
import transformers
from cut_models import random_prompts
from literal_relevance import ruled
from small_models import IMAGES, TEXT, build, examples
from test_methods import Literal, assert_scores
from test_relp import hooks_of
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from assay.core.errors import InputError, UnsupportedModelError
from assay.discovery.edges import METHODS, discover
from assay.models import Model, load_model
from assay.tasks import PairTask


NEUTRAL = dict.fromkeys(("temperature", "queries", "keys", "values", "gate", "up"), 1.0)
NEUTRAL |= {"freeze_norms": False}
GOLDEN = Path(__file__).parent.parent / "golden"


# --------------------------------------------------------------------------------------- numbers of others


def golden_model(name: str) -> Model:
    """A model of the reference data in float64."""
    described = json.loads((GOLDEN / f"adversarial/{name}_tiny_circuits.json").read_text())
    model_class = getattr(transformers, described["hf_class"])
    module = model_class(model_class.config_class(**described["hf_config"], bos_token_id=0, eos_token_id=0))
    with np.load(GOLDEN / f"adversarial/{name}_tiny_model.npz") as weights:
        state = {key: torch.from_numpy(weights[key]) for key in weights.files}
    module.double().load_state_dict(state, strict=False)
    return load_model(module.eval())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_set_of_rules_gives_the_reference(name: str, shared: Any) -> None:
    model = golden_model(name)
    described = json.loads(shared("golden/front/gim.json").read_text())[name]
    with np.load(shared(f"golden/front/gim_{name}.npz")) as arrays:
        known = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    answers, wrong = known["answers"][:, None], known["wrong"][:, None]
    task = PairTask(
        clean=known["clean_tokens"], corrupted=known["corrupted_tokens"], answers=answers, wrong=wrong
    )
    graph = model.graph
    targets = [each.replace(".h", ".kv") if each[-1] in "kv" else each for each in described["targets"]]
    columns = [
        graph.target_index(each if each in graph.targets else each.replace(".kv", ".h")) for each in targets
    ]
    assert list(graph.sources) == described["sources"]

    def near(found: Tensor, key: str) -> None:
        largest = float(known[key].abs().max())
        close = 1e-9 if name == "gpt2" else 1e-5  # transformers computes Llama's norms in float32
        torch.testing.assert_close(found[..., columns], known[key], rtol=0, atol=close * largest)

    for rules, given in described["rules"].items():
        options = {"temperature": given["T"], "queries": given["q"], "keys": given["k"], "values": given["v"]}
        options |= {"gate": given["gate"], "up": given["up"], "freeze_norms": given["freeze"]}
        near(discover(model, task, "gim", **options).values, f"scores__{rules}")
    near(discover(model, task, "gim", per_example=True, batch_size=3).per_example, "scores_per_example__gim")
    for quadrature in ("left", "midpoint"):
        found = discover(model, task, "gim", integrated=True, steps=5, quadrature=quadrature)
        near(found.values, f"scores__gim_ig_{quadrature}5")


@pytest.mark.parametrize(
    ("attention", "off"), [("sdpa", ["temperature"]), ("eager", ["queries", "keys", "values"])]
)
def test_gradients_are_those_of_the_released_package(attention: str, off: list[str]) -> None:
    """It explains a logit by token; fused and eager attention get other rules of it."""
    known = json.loads((GOLDEN / "gim_package.json").read_text())
    model, tokens = golden_model("gpt2"), torch.tensor([known["tokens"]])
    other = torch.full_like(tokens, known["baseline"])
    task = PairTask(clean=tokens, corrupted=other, answers=torch.tensor([[known["target"]]]))

    def loss(logits: Tensor, clean: Tensor, batch: Any) -> Tensor:
        return -logits[:, known["target"]]

    found = discover(model, task, "gim", objective=loss, spans="each", **dict.fromkeys(off, 1.0))
    expected = torch.tensor(known[attention], dtype=torch.float64)
    torch.testing.assert_close(found.values[:, 0].sum(-1), expected, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------------------------- literal twin


class Product(torch.autograd.Function):
    """A matrix product whose factors get shares of their gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, shares: tuple[float, float]) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.shares = shares
        return a @ b

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        return ctx.shares[0] * above @ b.mT, ctx.shares[1] * a.mT @ above, None


class Softmax(torch.autograd.Function):
    """A softmax with the Jacobian, without its factor, of one at twice the temperature, row by row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.save_for_backward(scores)
        return scores.softmax(-1)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> Tensor:
        (scores,) = ctx.saved_tensors
        soft = (scores / 2).softmax(-1)
        jacobian = torch.diag_embed(soft) - soft[..., :, None] * soft[..., None, :]
        return (jacobian @ above[..., None])[..., 0]


def twin_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    softcap: float | None = None,
    **rest: object,
) -> tuple[Tensor, None]:
    """Attention as models of transformers call it, head by head of what the library never sees."""
    group = query.shape[1] // key.shape[1]
    heads = []
    for head in range(query.shape[1]):
        keys, values = key[:, head // group], value[:, head // group]
        scores = Product.apply(query[:, head], keys.mT, (0.25, 0.25)) * scaling
        scores = scores if softcap is None else (scores / softcap).tanh() * softcap
        scores = scores if attention_mask is None else scores + attention_mask[:, 0]
        heads.append(Product.apply(Softmax.apply(scores), values, (1.0, 0.5)))
    return torch.stack(heads, 2), None


AttentionInterface.register("twin", twin_attention)
AttentionMaskInterface.register("twin", eager_mask)


def twin_of(model: Model) -> Model:
    """A copy that computes the same, with these rules written into its parts."""
    module = ruled(model, identity=False).module
    module.set_attn_implementation("twin")
    return load_model(module)


SEVERAL = ("gemma2", "gemma3_text", "olmo2", "qwen3 with head norms", "mistral with a window", "opt", "llama")


@pytest.mark.parametrize("ablation", ["resample", "mean", "zero"])
def test_scores_of_prompts_of_several_lengths_equal_their_twin(module64: nn.Module, ablation: str) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    twin = Literal(model, task, "logit_diff", ablation)
    gradients = literal.edge_gradients(twin_of(model), task.clean, twin.loss)
    found = discover(model, task, "gim", ablation=ablation, per_example=True, batch_size=3)
    assert_scores(found, twin.score(gradients))


@pytest.mark.parametrize("name", SEVERAL)
def test_scores_of_other_families_equal_their_twin(name: str) -> None:
    """Norms behind branches, caps, norms of queries and keys, windows, MLPs without a gate."""
    model = load_model(build(name))
    task = random_prompts(model, ragged=True)
    twin = Literal(model, task, "logit_diff", "resample")
    gradients = literal.edge_gradients(twin_of(model), task.clean, twin.loss)
    assert_scores(discover(model, task, "gim", per_example=True), twin.score(gradients))


# ----------------------------------------------------------------------------------------- what switches off


def test_neutral_options_are_eap(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    found = discover(model, task, "gim", **NEUTRAL)
    assert torch.equal(found.values, discover(model, task, "eap").values)
    assert found.provenance["rules"] == []
    gates = ["gate", "up"] if model.family.key == "llama" else []
    on = ["norms", "temperature", "queries", "keys", "values", *gates]
    ruled = discover(model, task, "gim")
    assert (ruled.provenance["rules"], ruled.details["passes"]) == (on, {"forward": 2.0, "backward": 1.0})
    assert "completeness_gap" not in ruled.details


@pytest.mark.parametrize("name", sorted(TEXT | IMAGES))
def test_the_attention_of_every_family_is_the_one_taken_back(name: str) -> None:
    """At a temperature that hardly differs from 1 the rules' own way back gives the gradient."""
    model = load_model(build(name))
    task, objective = examples(model), "logit_diff" if model.vision is None else "ce"
    settings = {"objective": objective, "ablation": "resample"}
    near = discover(model, task, "gim", **settings, **NEUTRAL | {"temperature": 1 + 1e-12}).values
    expected = discover(model, task, "eap", **settings).values
    torch.testing.assert_close(near, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
    assert torch.isfinite(discover(model, task, "gim", **settings).values).all()


def test_branches_of_a_gate_by_hand(llama_tiny64: nn.Module) -> None:
    """silu(g) u with g = gate x and u = up x: a fifth of the gradient to the gate, half of it to up."""
    model = load_model(llama_tiny64)
    mlp = model.blocks[0].mlp
    x = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    gate, up, down = (part.weight.detach() for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    g = (gate @ x.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(nn.functional.silu(g).sum(), g)
    to_gate, to_up = down.sum(0) * slope * (up @ x.detach()) / 5, down.sum(0) * nn.functional.silu(g) / 2
    method = METHODS["gim"].configured(**NEUTRAL | {"gate": 0.2, "up": 0.5})
    with method.rules(model):
        (found,) = torch.autograd.grad(mlp(x).sum(), x)
    torch.testing.assert_close(found, to_gate @ gate + to_up.detach() @ up, rtol=1e-10, atol=1e-10)


def test_rules_change_no_value_and_leave_nothing_behind(module64: nn.Module) -> None:
    model = load_model(module64)
    task = random_prompts(model)
    plain = model.forward(task.clean)
    with METHODS["gim"].rules(model):
        assert torch.equal(model.forward(task.clean), plain)
        with torch.no_grad():
            assert torch.equal(model.forward(task.clean), plain)
    assert hooks_of(module64) == 0


def test_what_has_no_rule_is_named(gpt2_tiny64: nn.Module) -> None:
    class ScaleNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.norm(dim=-1, keepdim=True)

    module = deepcopy(gpt2_tiny64)
    model, task = load_model(module), random_prompts(load_model(module))
    module.transformer.h[1].attn.norm = ScaleNorm()
    for method in ("gim", "relp"):
        with pytest.raises(UnsupportedModelError, match=r"transformer.h.1.attn.norm of .* is a ScaleNorm"):
            discover(model, task, method)
    for options in ({"temperature": 0.0}, {"up": -0.5}):
        with pytest.raises(InputError, match="give a finite number above 0"):
            discover(model, task, "gim", **options)
