"""Pairs of prepared inputs: golden values of every pair, the literal run, and what may not matter."""

import literal
import numpy as np
import pytest
import torch
from test_circuit_run import GOLDEN, golden_model
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import PairRunner, PreparedInputs
from assay.models import load_model


@pytest.mark.filterwarnings("ignore:a name like 'a1.h1.k'")  # the file has the older names
@pytest.mark.parametrize("name", ["gpt2_tiny", "llama_tiny", "neox_tiny"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_pair_of_every_golden_circuit(name: str, dtype: torch.dtype) -> None:
    model, described = golden_model(name, dtype)
    case = np.load(GOLDEN / "adversarial" / f"{name}_case.npz")
    clean, corrupted = torch.from_numpy(case["clean_tokens"]), torch.from_numpy(case["corrupted_tokens"])
    relative = (1e-9 if name == "gpt2_tiny" else 1e-5) if dtype == torch.float64 else 1e-4
    for circuit_name, stored in described["circuits"].items():
        runner = PairRunner(model, Circuit.from_edges(model.graph, stored["edges"]))
        left, right = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
        expected = torch.from_numpy(case[f"logits_last__{circuit_name}"])
        close = {"rtol": 0, "atol": relative * float(expected.abs().max())}
        torch.testing.assert_close(runner.product(left, right).double(), expected, **close)
        rows, columns = (torch.randint(n, (9,)) for n in expected.shape[:2])
        found = runner.pairs(left, right, rows, columns).double()
        torch.testing.assert_close(found, expected[rows, columns], **close)
        model_logits = torch.from_numpy(case["model_logits_clean"])[:, -1]
        torch.testing.assert_close(left.logits.double(), model_logits, **close)
        model_logits = torch.from_numpy(case["model_logits_corrupted"])[:, -1]
        torch.testing.assert_close(right.logits.double(), model_logits, **close)


def literal_pairs(model, circuit: Circuit, clean: Tensor, corrupted: Tensor) -> Tensor:
    """`[n_clean, n_corrupted, d_vocab]` at the last position, pair by pair, node by node."""
    _, ablated = literal.run_plain(model, corrupted)
    rows = []
    for tokens in clean:
        with torch.no_grad():
            logits = literal.run_circuit(model, circuit, tokens.expand(len(corrupted), -1), ablated)
        rows.append(logits[:, -1])
    return torch.stack(rows)


def inputs_of(model, n: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, model.n_vocab, (n, length), generator=generator)


@pytest.mark.parametrize("shared", [0, 3, 7])
def test_equals_the_literal_run(module64: nn.Module, shared: int) -> None:
    """Also where all inputs begin alike, or are one input."""
    model = load_model(module64)
    clean, corrupted = (inputs_of(model, n, 7, seed) for n, seed in ((2, 1), (3, 2)))
    clean[:, :shared], corrupted[:, :shared] = (clean[0, :shared],) * 2
    graph = model.graph
    circuits = [Circuit.random(graph, int(share * graph.n_edges), seed=5) for share in (0.1, 0.4, 0.9)]
    circuits += [Circuit.empty(graph), Circuit.full(graph), Circuit.from_heads(graph, [(1, 0)])]
    for circuit in circuits:
        runner = PairRunner(model, circuit)
        left, right = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
        expected = literal_pairs(model, circuit, clean, corrupted)
        torch.testing.assert_close(runner.product(left, right), expected, rtol=1e-5, atol=1e-5)


def test_prepared_inputs_are_rows(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    runner = PairRunner(model, Circuit.random(model.graph, model.graph.n_edges // 2, seed=1))
    tokens = inputs_of(model, 5, 6, 0)
    right = runner.prepare(tokens, clean=False)
    joined = PreparedInputs.concatenate(
        runner.prepare(part, clean=False) for part in (tokens[:2], tokens[2:])
    )
    left = runner.prepare(tokens[:1], clean=True)
    whole = runner.product(left, right)
    torch.testing.assert_close(whole[0, 0], left.logits[0])  # the same input on both sides: the model
    torch.testing.assert_close(runner.product(left, joined), whole)
    for index in (torch.tensor([1, 2, 3]), torch.tensor([4, 0, 2])):
        torch.testing.assert_close(runner.product(left, right.rows(index)), whole[:, index])
    assert right.nbytes == 5 * right.rows(torch.tensor([0])).nbytes


def test_inputs_of_two_lengths_are_refused(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    runner = PairRunner(model, Circuit.random(model.graph, 20, seed=0))
    left = runner.prepare(torch.full((1, 4), 9), clean=True)
    right = runner.prepare(torch.full((1, 5), 9), clean=False)
    with pytest.raises(InputError, match="4 tokens, the corrupted ones 5"):
        runner.product(left, right)
