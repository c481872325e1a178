"""Any pairs out of two lists of inputs: equal to the one-pair engine however they are asked for."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.analyses.worst_case.divergence import cross_divergences, get_divergence, table_divergences
from assay.analyses.worst_case.evaluation import PairEvaluator
from assay.analyses.worst_case.sampling import PromptSet, task_of
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError, ShapeError, UnknownNameError
from assay.execution import run_circuit, run_model
from assay.execution.batches import assumed_memory
from assay.metrics.divergence import divergences
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
    task = task_of(clean.subset(i.numpy()), corrupted.subset(j.numpy()))
    full, kept = run_model(model, task), run_circuit(circuit, model, task)
    other = run_model(model, task, corrupted=True)
    return (
        divergences(full.numpy(), kept.numpy())["kl"],
        divergences(full.numpy(), other.numpy())["kl"],
        (full.argmax(1) != kept.argmax(1)).numpy(),
    )


@pytest.mark.parametrize("memory", [2**30, 2])
def test_tables_and_lists_equal_the_one_pair_engine(gpt2_tiny64: nn.Module, memory: int) -> None:
    """With memory for all inputs, and with memory for none."""
    model = load_model(gpt2_tiny64)
    clean, corrupted = prompts(model, 5, 6, 0), prompts(model, 7, 6, 1)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    with assumed_memory(memory):
        evaluator = PairEvaluator(model, circuit, clean, corrupted)
    i, j = torch.cartesian_prod(torch.arange(5), torch.arange(7)).T
    expected = expected_values(model, circuit, clean, corrupted, i, j)
    table = evaluator.table(np.arange(5), np.arange(7))
    listed = evaluator.pairs(i.numpy(), j.numpy())
    part = evaluator.table(np.arange(1, 4), np.arange(5, 7))
    for at, value in enumerate(expected):
        np.testing.assert_allclose(table[at].ravel(), value, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(listed[at], value, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(part[at], table[at][1:4, 5:7], rtol=1e-9, atol=1e-12)


def test_inputs_of_several_lengths_pair_within_their_length(module64: nn.Module) -> None:
    model = load_model(module64)
    clean, corrupted = (prompts(model, 6, 7, seed, ragged=True) for seed in (0, 1))
    lengths = torch.full((6,), 4)
    corrupted = replace(corrupted, lengths=lengths, positions=lengths - 1)
    same, others = (np.flatnonzero((clean.lengths.numpy() == 4) == kept) for kept in (True, False))
    circuit = Circuit.random(model.graph, model.graph.n_edges // 3, seed=4)
    evaluator = PairEvaluator(model, circuit, clean, corrupted)
    i, j = torch.cartesian_prod(torch.from_numpy(same), torch.arange(6)).T
    expected = expected_values(model, circuit, clean, corrupted, i, j)
    for value, wanted in zip(evaluator.pairs(i.numpy(), j.numpy()), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-7)
    with pytest.raises(InputError, match=rf"pair \({others[0]}, 2\) joins prompts of \d and 4 tokens"):
        evaluator.pairs(others[:1], np.array([2]))
    with pytest.raises(InputError, match="a table of all pairs needs a single read position"):
        evaluator.table(np.arange(6), np.arange(6))


def test_a_pair_without_finite_logits_is_named(neox_tiny64: nn.Module) -> None:
    model = load_model(copy.deepcopy(neox_tiny64))
    clean, corrupted = prompts(model, 2, 6, 0), prompts(model, 3, 6, 1)
    clean.tokens[1, 2] = corrupted.tokens[:, 2] = 5
    clean.tokens[0, 2] = 6
    evaluator = PairEvaluator(model, Circuit.random(model.graph, 30, seed=0), clean, corrupted)
    with torch.no_grad():
        model.module.get_input_embeddings().weight[6] = torch.inf
    with pytest.raises(NonFiniteError, match="clean input 0, .*, and corrupted input 1"):
        evaluator.pairs(np.array([1, 0]), np.array([0, 1]))
    with pytest.raises(FloatingPointError, match="clean input 0, .*, and corrupted input 0"):
        evaluator.table(np.arange(2), np.arange(3))


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def inputs(n: int, **tokens: Tensor) -> PromptSet:
    zeros = torch.zeros(n, dtype=torch.long)
    return PromptSet(tokens=zeros[:, None], lengths=zeros + 1, positions=zeros, fields={}, **tokens)


def test_divergences_by_hand() -> None:
    """Of p = (1/2, 1/2) and c = (1/4, 3/4); 0 for p itself."""
    model, same = logits_of(0.5, 0.5)[None], logits_of(0.5, 0.5) + 7
    circuit = torch.stack([logits_of(0.25, 0.75), same])[None]
    p, c = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    js = sum((each * np.log(2 * each / (p + c))).sum() / 2 for each in (p, c))
    kl = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    reverse = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    for key, value in {"kl": kl, "reverse-kl": reverse, "js": js, "tv": 0.25}.items():
        found = table_divergences(get_divergence(key), model, circuit, inputs(1))
        np.testing.assert_allclose(found, [[value, 0]], atol=1e-12)


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 60))
def test_the_table_form_of_kl_is_the_sum_over_outputs(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = torch.randn(3, 11, generator=generator) * scale
    circuit = model[:, None] + torch.randn(3, 4, 11, generator=generator) * scale * 1e-3
    found = table_divergences(get_divergence("kl"), model, circuit, inputs(3))
    for j in range(4):
        expected = divergences(model.numpy(), circuit[:, j].numpy())["kl"]
        np.testing.assert_allclose(found[:, j], expected, rtol=1e-9, atol=1e-11)
    assert (found >= 0).all()


def test_logit_difference_gap_uses_the_answers_of_the_clean_input() -> None:
    model = torch.tensor([[3.0, 1.0, 0.0], [0.0, 5.0, 1.0]])
    circuit = torch.tensor([[[1.0, 1.0, 0.0]], [[0.0, 2.0, 2.0]]])
    ids = {"answers": torch.tensor([[0, -1], [1, -1]]), "wrong": torch.tensor([[1, 2], [2, -1]])}
    found = table_divergences(get_divergence("logit-diff-gap"), model, circuit, inputs(2, **ids))
    # (3 - 0.5) - (1 - 0.5) = 2 and (5 - 1) - (2 - 2) = 4
    np.testing.assert_allclose(found, [[2.0], [4.0]])


def test_a_callable_of_a_known_name_is_still_the_callers_and_what_is_no_divergence_is_refused() -> None:
    def kl(model: Tensor, circuit: Tensor) -> Tensor:
        return (model - circuit).abs().amax(1)

    model, circuit = torch.zeros(2, 3), torch.arange(12.0).view(2, 2, 3)
    found = table_divergences(get_divergence(kl), model, circuit, inputs(2))
    np.testing.assert_allclose(found, [[2, 5], [8, 11]])
    with pytest.raises(ShapeError, match=r"returned \(\); expected one number per pair, shape \(4,\)"):
        table_divergences(get_divergence(lambda a, b: (a - b).mean()), model, circuit, inputs(2))
    with pytest.raises(InputError, match="these inputs have none"):
        table_divergences(get_divergence("logit_diff_gap"), model, circuit, inputs(2))
    with pytest.raises(UnknownNameError, match="kl"):
        get_divergence("klx")


@pytest.mark.parametrize("key", ["kl", "js", "logit-diff-gap"])
def test_the_empty_circuit_is_compared_by_products_of_whole_sides(key: str) -> None:
    generator = torch.Generator().manual_seed(0)
    model, other = (torch.randn(n, 11, generator=generator) * 4 for n in (5, 7))
    clean = inputs(
        5, **{name: torch.randint(0, 11, (5, 2), generator=generator) for name in ("answers", "wrong")}
    )
    expected = table_divergences(get_divergence(key), model, other[None].expand(5, -1, -1), clean)
    for at_once in (1, 3, 100):
        values = cross_divergences(get_divergence(key), model, other, clean, at_once=at_once)
        np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)
