"""Any pairs out of two lists of inputs: equal to the one-pair engine however they are asked for."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from assay.analyses.worst_case import pair_divergence as divergence_module
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.inputs import PromptSet
from assay.analyses.worst_case.pair_divergence import cross_divergences, get_divergence, table_divergences
from assay.analyses.worst_case.rerun import rerun
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError
from assay.execution import PairRunner
from assay.metrics.outputs import divergences
from assay.models import Model, load_model


def prompts(model: Model, n: int, length: int, seed: int, *, ragged: bool = False) -> PromptSet:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, model.n_vocab, (n, length), generator=generator)
    tokens[:, 0] = 3
    lengths = torch.randint(3, length + 1, (n,), generator=generator) if ragged else torch.full((n,), length)
    return PromptSet(
        tokens=tokens,
        lengths=lengths,
        positions=lengths - 1,
        answers=torch.randint(1, 9, (n, 1), generator=generator),
        wrong=torch.randint(10, 19, (n, 2), generator=generator),
        fields={"row": list(range(n))},
    )


def expected_values(
    model: Model, circuit: Circuit, clean: PromptSet, corrupted: PromptSet, i: Tensor, j: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    full, kept, other = rerun(model, circuit, clean.subset(i.numpy()), corrupted.subset(j.numpy()))
    return (
        divergences(full.numpy(), kept.numpy())["kl"],
        divergences(full.numpy(), other.numpy())["kl"],
        (full.argmax(1) != kept.argmax(1)).numpy(),
    )


@pytest.mark.parametrize("memory", [None, 1])
def test_tables_and_lists_equal_the_one_pair_engine(gpt2_tiny64: nn.Module, memory: int | None) -> None:
    """With memory for all inputs, and with memory for none."""
    model = load_model(gpt2_tiny64)
    clean, corrupted = prompts(model, 5, 6, 0), prompts(model, 7, 6, 1)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    evaluator = PairEvaluator(model, circuit, clean, corrupted, memory=memory)
    i, j = torch.cartesian_prod(torch.arange(5), torch.arange(7)).T
    expected = expected_values(model, circuit, clean, corrupted, i, j)
    table = evaluator.table(slice(None), slice(None))
    listed = evaluator.pairs(i.numpy(), j.numpy())
    part = evaluator.table(slice(1, 4), slice(5, 7))
    for at, value in enumerate(expected):
        np.testing.assert_allclose(table[at].ravel(), value, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(listed[at], value, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(part[at], table[at][1:4, 5:7], rtol=1e-9, atol=1e-12)


def test_repeated_inputs_are_run_once_and_counted_every_time(
    gpt2_tiny64: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(gpt2_tiny64)
    once, other = prompts(model, 3, 6, 0), prompts(model, 4, 6, 1)
    circuit = Circuit.random(model.graph, 20, seed=0)
    evaluator = PairEvaluator(model, circuit, once.subset([0, 1, 0, 2, 0]), other)
    passes = []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda tokens: passes.append(len(tokens)) or forward(tokens))
    table = evaluator.table(slice(None), slice(None)).divergence
    np.testing.assert_array_equal(table[0], table[2])
    np.testing.assert_array_equal(table[0], table[4])
    assert (table[0] != table[1]).all()
    # 3 distinct clean and 4 corrupted inputs, one input of each side to learn what it takes in memory.
    assert sum(passes) == 3 + 4 + 2


def test_inputs_of_several_lengths_pair_within_their_length(module64: nn.Module) -> None:
    model = load_model(module64)
    clean, corrupted = (prompts(model, 6, 7, seed, ragged=True) for seed in (0, 1))
    lengths = torch.full((6,), 4)
    corrupted = PromptSet(
        tokens=corrupted.tokens, lengths=lengths, positions=lengths - 1, fields=corrupted.fields
    )
    same = np.flatnonzero(clean.lengths.numpy() == 4)
    assert len(same)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    evaluator = PairEvaluator(model, circuit, clean, corrupted)
    i, j = torch.cartesian_prod(torch.from_numpy(same), torch.arange(6)).T
    expected = expected_values(model, circuit, clean, corrupted, i, j)
    found = evaluator.pairs(i.numpy(), j.numpy())
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-7)
    unequal = int(np.flatnonzero(clean.lengths.numpy() != 4)[0])
    with pytest.raises(InputError, match=rf"pair \({unequal}, 2\) joins prompts of \d and 4 tokens"):
        evaluator.pairs(np.array([unequal]), np.array([2]))
    with pytest.raises(InputError, match="a table of all pairs needs a single read position"):
        evaluator.table(slice(None), slice(None))


def test_other_divergences_use_each_clean_input_s_own_answers(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    clean, corrupted = prompts(model, 4, 6, 0), prompts(model, 3, 6, 1)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    evaluator = PairEvaluator(model, circuit, clean, corrupted, divergence="logit-diff-gap")
    i, j = torch.cartesian_prod(torch.arange(4), torch.arange(3)).T
    full, kept, _ = rerun(model, circuit, clean.subset(i.numpy()), corrupted.subset(j.numpy()))
    assert clean.answers is not None
    assert clean.wrong is not None
    margins = [
        logits.gather(1, clean.answers[i])[:, 0] - logits.gather(1, clean.wrong[i]).mean(1)
        for logits in (full, kept)
    ]
    expected = (margins[0] - margins[1]).abs().numpy()
    np.testing.assert_allclose(evaluator.pairs(i.numpy(), j.numpy()).divergence, expected, rtol=1e-7)
    found = evaluator.table(slice(None), slice(None)).divergence
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-7)


@pytest.mark.parametrize("which", ["full", "empty"])
def test_the_ends(module32: nn.Module, which: str) -> None:
    model = load_model(module32)
    clean, corrupted = prompts(model, 4, 6, 0), prompts(model, 3, 6, 1)
    circuit = getattr(Circuit, which)(model.graph)
    found = PairEvaluator(model, circuit, clean, corrupted).table(slice(None), slice(None))
    if which == "full":
        np.testing.assert_allclose(found.divergence, 0, atol=1e-12)
        assert not found.argmax_differs.any()
    else:
        np.testing.assert_allclose(found.divergence, found.empty, rtol=1e-4, atol=1e-6)


def test_a_pair_without_finite_logits_is_named(neox_tiny64: nn.Module) -> None:
    model = load_model(neox_tiny64)
    clean, corrupted = prompts(model, 2, 6, 0), prompts(model, 3, 6, 1)
    clean.tokens[1, 2] = corrupted.tokens[:, 2] = 5
    clean.tokens[0, 2] = 6
    evaluator = PairEvaluator(model, Circuit.random(model.graph, 30, seed=0), clean, corrupted)
    embedding = model.module.get_input_embeddings().weight
    before = embedding.detach().clone()
    try:
        with torch.no_grad():
            embedding[6] = torch.inf
        with pytest.raises(NonFiniteError, match=r"pair \(clean 0, corrupted 1\)"):
            evaluator.pairs(np.array([1, 0]), np.array([0, 1]))
        with pytest.raises(FloatingPointError, match=r"pair \(clean 0, corrupted 0\)"):
            evaluator.table(slice(None), slice(None))
    finally:
        with torch.no_grad():
            embedding.copy_(before)


def test_memory_must_be_a_number_of_bytes(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    side = prompts(model, 2, 6, 0)
    with pytest.raises(InputError, match="memory is 0"):
        PairEvaluator(model, Circuit.empty(model.graph), side, side, memory=0)


def peak_of(call: Callable[[], object]) -> int:
    """Most bytes of tensors that a call holds at a time, beyond what was there before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as made:
        call()
    results = made.profiler.kineto_results
    found = sorted((each.start_ns(), each.nbytes()) for each in results.events() if each.name() == "[memory]")
    return max(itertools.accumulate(size for _, size in found))


def test_preparing_and_pairing_obey_the_memory_given() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_head=8, n_embd=128, vocab_size=60, n_positions=16)
    model = load_model(transformers.GPT2LMHeadModel(config).eval())
    clean, corrupted = prompts(model, 30, 12, 0), prompts(model, 40, 12, 1)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=4)
    runner = PairRunner(model, circuit)

    def table(memory: int) -> np.ndarray:
        evaluator = PairEvaluator(model, circuit, clean, corrupted, memory=memory, runner=runner)
        return evaluator.table(slice(None), slice(None)).divergence

    roomy = table(2**30)
    tight = 12 * 2**20
    assert peak_of(lambda: table(2**30)) > 4 * tight
    assert peak_of(lambda: table(tight)) < tight
    np.testing.assert_allclose(table(tight), roomy, rtol=1e-4, atol=1e-6)


def test_what_preparing_takes_is_foreseen() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        hidden_size=128,
        intermediate_size=512,
        vocab_size=60,
    )
    model = load_model(transformers.LlamaForCausalLM(config).eval())
    runner = PairRunner(model, Circuit.random(model.graph, model.graph.n_edges // 2, seed=4))
    tokens = prompts(model, 24, 12, 0).tokens
    for clean in (True, False):
        foreseen = 24 * runner.bytes_to_prepare(12)
        assert (
            foreseen / 6 < peak_of(lambda clean=clean: runner.prepare(tokens, clean=clean)) < 1.1 * foreseen
        )


@pytest.mark.parametrize("key", ["kl", "js", "logit-diff-gap"])
def test_the_empty_circuit_costs_one_matrix_product(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    model, other = (torch.randn(n, 11, generator=generator) * 4 for n in (5, 7))
    found = get_divergence(key)
    tokens = {}
    if found.needs_answers:
        tokens = {name: torch.randint(0, 11, (5, 2), generator=generator) for name in ("answers", "wrong")}
    expected = table_divergences(found, model, other[None].expand(5, -1, -1), **tokens)
    if key == "kl":  # no pair by itself
        monkeypatch.delattr(divergence_module, "_kl_table")
    for at_once in (1, 3, 100):
        values = cross_divergences(found, model, other, **tokens, at_once=at_once)
        np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)
