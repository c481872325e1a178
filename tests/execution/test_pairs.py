"""Pairs of prepared inputs: the literal run, and what may not matter."""

import literal
import pytest
import torch
from torch import Tensor, nn

from assay.circuits import Circuit
from assay.core.errors import InputError
from assay.execution import PairRunner, PreparedInputs
from assay.models import Model, load_model


def inputs_of(model: Model, n: int, length: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, model.n_vocab, (n, length), generator=generator)


@pytest.mark.parametrize("shared", [0, 3, 7])
def test_equals_the_literal_run(module64: nn.Module, shared: int) -> None:
    """Pair by pair, node by node; also where all inputs begin alike, or are one input."""
    model = load_model(module64)
    clean, corrupted = (inputs_of(model, n, 7, seed) for n, seed in ((2, 1), (3, 2)))
    clean[:, :shared], corrupted[:, :shared] = (clean[0, :shared],) * 2
    _, ablated = literal.run_plain(model, corrupted)
    graph = model.graph
    circuits = [Circuit.random(graph, int(share * graph.n_edges), seed=5) for share in (0.1, 0.4, 0.9)]
    circuits += [Circuit.empty(graph), Circuit.full(graph), Circuit.from_heads(graph, [(1, 0)])]
    for circuit in circuits:
        runner = PairRunner(model, circuit)
        left, right = runner.prepare(clean, clean=True), runner.prepare(corrupted, clean=False)
        with torch.no_grad():
            rows = [literal.run_circuit(model, circuit, each.expand(3, -1), ablated)[:, -1] for each in clean]
        torch.testing.assert_close(runner.product(left, right), torch.stack(rows), rtol=1e-5, atol=1e-5)


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
        found = runner.pairs(left, right, torch.zeros_like(index), index)
        torch.testing.assert_close(found, whole[0, index])
    assert right.nbytes == 5 * right.rows(torch.tensor([0])).nbytes
    with pytest.raises(InputError, match="6 tokens, the corrupted ones 5"):
        runner.product(left, runner.prepare(tokens[:, :5], clean=False))
