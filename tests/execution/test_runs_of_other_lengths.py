"""Ablated runs whose corrupted prompts have another length: worked by hand, limits, one edge more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import literal
import pytest
import torch
from cut_models import TEXT, model_and_task
from torch import Tensor, nn
from unequal import CLEAN, CORRUPTED, unequal_task

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import run_circuit, run_model
from assay.execution.baseline import at_counterparts
from assay.metrics import measure
from assay.models import Model, load_model
from assay.tasks import PairTask


@pytest.fixture(params=TEXT)
def model(request: pytest.FixtureRequest, tiny_module: Callable[..., nn.Module]) -> Model:
    return model_and_task(request.param, tiny_module)[0]


def test_what_stands_at_each_counterpart_by_hand() -> None:
    value = torch.tensor([[[1.0], [2.0], [3.0]]])
    found = at_counterparts(value, torch.tensor([[0, -1, 2]]))
    assert found.tolist() == [[[1.0], [0.0], [3.0]]]
    assert at_counterparts(value, torch.tensor([[-1, 1]]), torch.tensor([[[9.0]]])).tolist() == [
        [[9.0], [2.0]]
    ]


@contextmanager
def adding(module: nn.Module, change: Tensor) -> Iterator[None]:
    """What a module reads is moved by a fixed amount."""
    handle = module.register_forward_pre_hook(lambda module, args: (args[0] + change, *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def test_one_cut_worked_by_hand(gpt2_tiny64: nn.Module) -> None:
    """Clean A B C D against corrupted E F C, with the edge `input` -> m1 cut.

    The MLP of block 1 reads at A its stream without A's embedding, for A has no counterpart; at B E's
    embedding in place of B's; at C F's; at D C's. Nothing else changes, so the native model with the input of
    that MLP moved gives the logits.
    """
    model = load_model(gpt2_tiny64)
    clean, corrupted = torch.tensor([[11, 12, 13, 14]]), torch.tensor([[15, 16, 13]])
    task = PairTask(
        clean=clean,
        corrupted=corrupted,
        answers=torch.tensor([[1]]),
        alignment=torch.tensor([[-1, 0, 1, 2]]),
    )
    wte, wpe = (gpt2_tiny64.get_submodule(f"transformer.{name}").weight.detach() for name in ("wte", "wpe"))
    own = wte[clean] + wpe[:4]
    carried = torch.stack([torch.zeros(24), wte[15] + wpe[0], wte[16] + wpe[1], wte[13] + wpe[2]])
    mask = model.graph.valid.clone()
    mask[0, model.graph.mlp_target(1)] = False
    with torch.no_grad(), adding(gpt2_tiny64.get_submodule("transformer.h.1.ln_2"), carried - own):
        expected = gpt2_tiny64(clean).logits[:, -1]
    found = run_circuit(model, task, Circuit(graph=model.graph, mask=mask))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_full_and_empty_circuits_are_the_model_on_prompts_as_they_are(model: Model) -> None:
    task = unequal_task(model)
    with torch.no_grad():
        clean, corrupted = (
            torch.cat([model.module(ids[row : row + 1, :n]).logits[:, -1] for row, n in enumerate(lengths)])
            for ids, lengths in ((task.clean, CLEAN), (task.corrupted, CORRUPTED))
        )
    near = {"rtol": 1e-6, "atol": 1e-6}  # RMSNorm is float32 in transformers
    torch.testing.assert_close(run_model(model, task), clean, **near)
    torch.testing.assert_close(run_model(model, task, corrupted=True), corrupted, **near)
    for batch_size in (1, 3, None):
        full, empty = (
            run_circuit(model, task, circuit, batch_size=batch_size)
            for circuit in (Circuit.full(model.graph), Circuit.empty(model.graph))
        )
        torch.testing.assert_close(full, clean, **near)
        torch.testing.assert_close(empty, corrupted, **near)


def expected(model: Model, task: PairTask, mask: Tensor) -> Tensor:
    circuit = Circuit(graph=model.graph, mask=mask)
    assert task.alignment is not None
    logits = literal.run_aligned(model, circuit, task.clean, task.corrupted, task.alignment)
    return logits[torch.arange(task.n), task.positions]


def test_edges_cut_one_after_the_other_are_literal_runs(model: Model) -> None:
    """From the whole model to no edge at all, nodes that lose their last edge among them."""
    task = unequal_task(model)
    graph = model.graph
    edges = graph.valid.nonzero()
    order = edges[torch.randperm(len(edges), generator=torch.Generator().manual_seed(0))]
    mask = graph.valid.clone()
    for number, (row, column) in enumerate(order.tolist()):
        mask[row, column] = False
        if number % 8 == 0:
            found = run_circuit(model, task, Circuit(graph=graph, mask=mask.clone()))
            torch.testing.assert_close(found, expected(model, task, mask), rtol=1e-5, atol=1e-5)


def test_a_head_that_keeps_nothing_writes_what_it_wrote_in_the_corrupted_run(gpt2_tiny64: nn.Module) -> None:
    """One edge of its queries kept, it attends over clean tokens instead: the definition has a jump here."""
    model = load_model(gpt2_tiny64)
    graph, task = model.graph, unequal_task(model, slice(0, 1))
    mask = graph.valid.clone()
    head = graph.head_source(1)
    mask[:, [graph.channel_target(1, channel, 0) for channel in "qkv"]] = False
    found = run_circuit(model, task, Circuit(graph=graph, mask=mask))
    assert "a1.h0" in literal.keeping_nothing(model, Circuit(graph=graph, mask=mask))
    same = graph.valid.clone()
    same[head] = False  # its own edges cut instead: those behind it read the same
    torch.testing.assert_close(found, run_circuit(model, task, Circuit(graph=graph, mask=same)))
    mask[0, graph.channel_target(1, "q", 0)] = True
    other = run_circuit(model, task, Circuit(graph=graph, mask=mask))
    torch.testing.assert_close(other, expected(model, task, mask), rtol=1e-9, atol=1e-9)
    assert float((other - found).abs().max()) > 1e-3


def test_several_read_positions(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = unequal_task(model, slice(2, 4))
    positions = torch.tensor([[5, 4], [6, 0]])
    answers = task.answers[:, None].expand(-1, 2, -1)
    several = PairTask(
        clean=task.clean,
        corrupted=task.corrupted,
        lengths=task.lengths,
        corrupted_lengths=task.corrupted_lengths,
        alignment=task.alignment,
        answers=answers,
        positions=positions,
    )
    generator = torch.Generator().manual_seed(3)
    mask = model.graph.valid & (torch.rand(model.graph.valid.shape, generator=generator) < 0.5)
    for kept in (mask, torch.zeros_like(mask)):
        circuit = Circuit(graph=model.graph, mask=kept)
        found = run_circuit(model, several, circuit)
        logits = literal.run_aligned(model, circuit, task.clean, task.corrupted, task.alignment)
        at_reads = logits[torch.arange(2)[:, None], positions]
        if bool(kept.any()):
            torch.testing.assert_close(found, at_reads, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, run_model(model, several, corrupted=True), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("metric", ["faithfulness-norm", "kl", "completeness"])
def test_metrics_read_these_runs(metric: str, gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = unequal_task(model)
    whole = measure(Circuit.full(model.graph), model, task, metric)
    assert whole.n == 4
    if metric == "faithfulness-norm":
        assert whole.value == pytest.approx(1)
        assert measure(Circuit.empty(model.graph), model, task, metric).value == pytest.approx(0)


def test_other_ablations_do_not_look_at_the_corrupted_prompt(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    task = unequal_task(model)
    plain = PairTask(
        clean=task.clean, corrupted=task.clean, lengths=task.lengths, answers=task.answers, wrong=task.wrong
    )
    circuit = Circuit.random(model.graph, 30, seed=0)
    for ablation in ("zero", "mean", "noise"):
        found, same = (run_circuit(model, each, circuit, ablation=ablation) for each in (task, plain))
        assert torch.equal(found, same)


@pytest.mark.parametrize("post_norm", ["frozen", "per-target", "eap-ig"])
def test_other_treatments_of_branch_norms_are_refused(post_norm: str) -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    model = load_model(Gemma2ForCausalLM(config).double().eval())
    task, circuit = unequal_task(model), Circuit.random(model.graph, 20, seed=0)
    with pytest.raises(
        InputError, match=f"resampling under post_norm='{post_norm}' needs clean and corrupted"
    ):
        run_circuit(model, task, circuit, post_norm=post_norm)
