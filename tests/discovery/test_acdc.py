"""ACDC against the algorithm as published: one run of a circuit after the other, for each edge."""

import math
from collections.abc import Callable

import pytest
import torch
import transformers
from cut_models import TEXT, model_and_task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.analyses.benchmark import planted_task
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError, UnknownNameError
from assay.discovery.edges import acdc as module
from assay.discovery.edges import discover
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model
from assay.models.planted import planted_model
from assay.objectives import get_objective
from assay.tasks import PairTask, Task


def check(
    model: Model, task: Task, ablation: str, objective: str, threshold: float, order: str = "reverse"
) -> int:
    """Values, kept edges and loss of the algorithm, one run after the other, no edge left out."""
    options = {"objective": objective, "ablation": ablation, "threshold": threshold, "order": order}
    found = discover(model, task, "acdc", batch_size=3, **options)
    graph, batch = model.graph, next(iter(task.batches(task.n)))
    loss_of, clean = get_objective(objective), run_model(model, task)
    mask, values = graph.valid.clone(), torch.zeros(graph.valid.shape, dtype=torch.float64)

    def measured() -> float:
        logits = run_circuit(Circuit(graph=graph, mask=mask), model, task, ablation=ablation)
        return float(loss_of(logits, clean, batch).mean())

    loss = measured()
    for target in reversed(range(graph.n_targets)):
        rows = graph.valid[:, target].nonzero().squeeze(1).tolist()
        for row in reversed(rows) if order == "reverse" else rows:
            mask[row, target] = False
            new = measured()
            values[row, target] = new - loss
            mask[row, target] = new - loss >= threshold
            loss = loss if mask[row, target] else new
    assert torch.equal(found.threshold(threshold, absolute=False).mask, mask)
    torch.testing.assert_close(found.values, values, rtol=0, atol=1e-9)
    assert found.details["loss"] == pytest.approx(loss, abs=1e-9)
    assert found.details["n_kept"] == int(mask.sum())
    assert found.details["tested"] + found.details["skipped_dead"] == graph.n_edges
    return int(mask.sum())


@pytest.mark.parametrize(
    ("name", "ablation", "objective", "threshold"),
    [
        ("gpt2", "resample", "kl", 0.03),
        ("neox", "zero", "ce", 0.01),
        ("llama", "resample", "logit_diff_max", 0.1),
        ("window", "mean", "pseudo_margin", 0.01),
        ("vit", "mean-positional", "kl", 0.01),
        ("pooled", "resample", "js", 0.003),
    ],
)
def test_equals_the_published_algorithm(
    name: str, ablation: str, objective: str, threshold: float, tiny_module: Callable[..., nn.Module]
) -> None:
    model, task = model_and_task(name, tiny_module)
    kept = check(model, task, ablation, objective, threshold)
    assert 0 < kept < model.graph.n_edges


@pytest.mark.parametrize("order", module.ORDERS)
def test_extreme_thresholds(order: str, tiny_module: Callable[..., nn.Module]) -> None:
    """0 cuts what lowers the loss and nothing else; a huge one cuts every edge, as measured on the way."""
    model, task = model_and_task("gpt2", tiny_module)
    assert 0 < check(model, task, "resample", "ce", 0.0, order) < model.graph.n_edges
    assert check(model, task, "resample", "ce", math.inf, order) == 0


# --------------------------------------------------------------------------------------- worked by hand


def two_writers() -> nn.Module:
    """One block whose two heads each write u = (1, -1, 0, 0) for any input, on a stream e = (0, 0, 1, -1).

    The final norm turns e + c u into (c, -c, 1, -1) sqrt(2 / (1 + c^2)) for c writers, c u into
    (1, -1, 0, 0) sqrt(2), and the logit of token 0 is its first entry.
    """
    config = transformers.GPT2Config(
        vocab_size=5,
        n_positions=4,
        n_embd=4,
        n_layer=1,
        n_head=2,
        layer_norm_epsilon=1e-12,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        model.transformer.wte.weight[:, 2], model.transformer.wte.weight[:, 3] = 1.0, -1.0
        attention = model.transformer.h[0].attn
        attention.c_attn.bias[8] = attention.c_attn.bias[10] = 1.0  # first value channel of each head
        attention.c_proj.weight[0] = attention.c_proj.weight[2] = torch.tensor([1.0, -1.0, 0.0, 0.0]).double()
        model.lm_head.weight[0, 0] = 1.0
    return model


def minus_first_logit(logits: Tensor, clean_logits: Tensor, batch: object) -> Tensor:
    return -logits[:, 0]


@pytest.mark.parametrize(
    ("order", "first", "second"), [("reverse", "a0.h1", "a0.h0"), ("forward", "a0.h0", "a0.h1")]
)
def test_of_two_redundant_heads_the_second_visited_stays(order: str, first: str, second: str) -> None:
    model = load_model(two_writers())
    task = PairTask(
        clean=torch.tensor([[1, 2]]), corrupted=torch.tensor([[3, 4]]), answers=torch.tensor([[0]])
    )
    found = discover(
        model, task, "acdc", objective=minus_first_logit, ablation="zero", threshold=0.5, order=order
    )
    assert found.threshold(0.5, absolute=False).edges() == [f"{second}->logits"]
    value = {
        edge: float(found.values[model.graph.edge_index(edge)])
        for edge in (f"{first}->logits", f"{second}->logits", "m0->logits", "input->logits", "input->a0.h0.v")
    }
    # From c = 2 to c = 1: 2 sqrt(2/5) - 1. Then to c = 0: a rise of 1, or of sqrt(2) once e is cut.
    before_e = order == "reverse"
    assert value[f"{first}->logits"] == pytest.approx(2 * math.sqrt(2 / 5) - 1 if before_e else 0.0, abs=1e-9)
    assert value["m0->logits"] == 0
    assert value[f"{second}->logits"] == pytest.approx(1.0 if before_e else math.sqrt(2), abs=1e-9)
    # Cutting e lets the norm magnify what is left: (c, -c, 1, -1) becomes (1, -1, 0, 0) sqrt(2).
    full = 1.0 if before_e else 2 * math.sqrt(2 / 5)
    assert value["input->logits"] == pytest.approx(full - math.sqrt(2), abs=1e-9)
    assert value["input->a0.h0.v"] == pytest.approx(0, abs=1e-12)
    assert found.details["loss"] == pytest.approx(-math.sqrt(2), abs=1e-9)
    assert found.details["clean_loss"] == pytest.approx(-2 * math.sqrt(2 / 5), abs=1e-9)
    assert found.details["n_kept"] == 1


# ------------------------------------------------------------------------------------------- what holds


@given(threshold=st.floats(1e-5, 1.0), name=st.sampled_from(TEXT), order=st.sampled_from(module.ORDERS))
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_scores_say_of_the_circuit(
    threshold: float, name: str, order: str, tiny_module: Callable[..., nn.Module]
) -> None:
    """Rises of the cut edges add up to the loss of the circuit, and each is below the threshold."""
    model, task = model_and_task(name, tiny_module)
    scores = discover(model, task, "acdc", threshold=threshold, order=order)
    circuit = scores.threshold(threshold, absolute=False)
    cut = model.graph.valid & ~circuit.mask
    assert bool((scores.values[cut] < threshold).all())
    assert scores.details["loss"] == pytest.approx(float(scores.values[cut].sum()), abs=1e-9)
    assert scores.details["loss"] < threshold * int(cut.sum()) + 1e-9
    logits = run_circuit(circuit, model, task)
    loss = get_objective("kl")(logits, run_model(model, task), next(task.batches(task.n))).mean()
    assert scores.details["loss"] == pytest.approx(float(loss), abs=1e-9)
    # Edges into dead targets are cut, so every edge that is kept has a way to the logits.
    reaching = torch.zeros(model.graph.n_targets, dtype=torch.bool)
    reaching[-1] = True
    for row in reversed(range(model.graph.n_sources)):
        if bool((circuit.mask[row] & reaching).any()):
            reaching |= model.graph.feeds[:, row]
    assert not bool(circuit.mask[:, ~reaching].any())


@pytest.mark.parametrize("name", ["llama", "pooled"])
def test_neither_batches_nor_hypotheses_per_pass_change_the_result(
    name: str, tiny_module: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = model_and_task(name, tiny_module, 5)
    threshold = {"llama": 0.01, "pooled": 0.003}[name]
    expected = discover(model, task, "acdc", objective="kl", threshold=threshold)
    again = discover(model, task, "acdc", objective="kl", threshold=threshold)
    assert torch.equal(expected.values, again.values)
    for positions, batch_size in ((1, 5), (60, 2), (10**6, 1)):
        monkeypatch.setattr(module, "POSITIONS_PER_PASS", {"cpu": positions, "cuda": positions})
        found = discover(model, task, "acdc", objective="kl", threshold=threshold, batch_size=batch_size)
        torch.testing.assert_close(found.values, expected.values, rtol=0, atol=1e-11)
        assert torch.equal(
            found.threshold(threshold, absolute=False).mask,
            expected.threshold(threshold, absolute=False).mask,
        )
        for fact in ("n_kept", "tested", "skipped_dead"):
            assert found.details[fact] == expected.details[fact]
        if positions == 1:
            assert found.details["runs"] == found.details["tested"]
        assert found.details["tested"] <= found.details["runs"] <= 2 * model.graph.n_edges


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("induction/gpt2/interfering", 0),
        ("duplicate/gpt2/vote", 3),  # one of three voters: two suffice
    ],
)
def test_circuits_of_planted_models(name: str, missing: int) -> None:
    planted = planted_model(name)
    scores = discover(planted.model, planted_task(planted, n=16), "acdc", threshold=0.1)
    found = set(scores.threshold(0.1, absolute=False).edges())
    assert found <= set(planted.edges)
    assert len(planted.edges) - len(found) == missing


# --------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_searched_is_refused(tiny_module: Callable[..., nn.Module]) -> None:
    model, task = model_and_task("gpt2", tiny_module)

    def broken(logits: Tensor, clean_logits: Tensor, batch: object) -> Tensor:
        loss = (logits - clean_logits).square().sum(1)
        return loss.where(loss == 0, math.nan)

    with pytest.raises(UnknownNameError, match=r"unknown acdc option 'treshold'.*threshold"):
        discover(model, task, "acdc", treshold=0.1)
    with pytest.raises(InputError, match="threshold is -1"):
        discover(model, task, "acdc", threshold=-1.0)
    with pytest.raises(NonFiniteError, match="objective 'broken' is NaN or infinite for example 0"):
        discover(model, task, "acdc", objective=broken)
