"""Information-flow routes: golden values, a case worked by hand, a literal twin, limits."""

import literal
import pytest
import torch
import vit_goldens
from cut_models import random_prompts
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from assay.discovery.edges import discover
from assay.discovery.edges.ifr import _importance
from assay.models import Model, load_model
from assay.tasks import PairTask


# ------------------------------------------------------------------------------------------- golden values


@pytest.mark.parametrize("name", vit_goldens.NAMES)
def test_scores_and_greedy_circuit_of_the_reference(name: str) -> None:
    """Every target, `logits` too, is read at all positions.

    The same edges but for ties: q, k and v of a block are equal; the reference orders them otherwise.
    """
    scores = discover(vit_goldens.model(name), vit_goldens.task(name), "ifr")
    torch.testing.assert_close(scores.values, vit_goldens.tensor(name, "ref/ifr"), rtol=1e-9, atol=1e-12)
    found, expected = scores.greedy(40).mask, vit_goldens.tensor(name, "ref/ifr_greedy40_in_graph")
    assert found.sum() == expected.sum()
    only_here, only_there = scores.values[found & ~expected], scores.values[expected & ~found]
    torch.testing.assert_close(only_here.sort().values, only_there.sort().values, rtol=1e-12, atol=0)
    assert len(only_here) == {"vit_edges_a": 0, "vit_edges_prenorm_c": 1}[name]


# -------------------------------------------------------------------------------------------- worked by hand


def by_hand() -> tuple[Model, PairTask]:
    """One block of width 2 with one head, on one token.

    The token writes (3, 1). Normalised that is (1, -1), of which the head keeps the first number and writes
    (1, 0). The MLP writes (0, -2) whatever it reads.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=3, n_positions=4, n_embd=2, n_layer=1, n_head=1, layer_norm_epsilon=0.0)
    module = GPT2LMHeadModel(config).double().eval()
    block = module.transformer.h[0]
    with torch.no_grad():
        for parameter in (*block.attn.parameters(), *block.mlp.parameters()):
            parameter.zero_()
        module.transformer.wpe.weight.zero_()
        module.transformer.wte.weight[:] = torch.tensor([3.0, 1.0])
        block.attn.c_attn.weight[:, 4:] = torch.eye(2)
        block.attn.c_proj.weight[0, 0] = 1.0
        block.mlp.c_proj.bias[:] = torch.tensor([0.0, -2.0])
    ids = torch.tensor([[1]])
    return load_model(module), PairTask(
        clean=ids, corrupted=ids, answers=ids, wrong=1 - ids, lengths=ids[:, 0]
    )


def test_shares_worked_by_hand() -> None:
    """m0 reads (4, 1), of norm 5: without the input 1 is left, without the head 4; proximities 4 and 1.

    The logits read (4, -1), of norm 5: 3 is left without the input, 4 without the head, 5 without m0;
    proximities 2, 1 and 0.
    """
    model, task = by_hand()
    values = discover(model, task, "ifr").values  # of q, k, v, m0 and logits, which read input, head and m0
    by_source = [[1, 1, 1, 4 / 5, 2 / 3], [0, 0, 0, 1 / 5, 1 / 3], [0, 0, 0, 0, 0]]
    torch.testing.assert_close(values, torch.tensor(by_source, dtype=torch.float64), rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------------- literal twin


def literal_ifr(model: Model, task: PairTask) -> Tensor:
    """Position by position, source by source; `[batch, S, R]`."""
    graph = model.graph
    streams: dict[str, Tensor] = {}

    def stream_of(target: str, outputs: dict[str, Tensor], biases: Tensor) -> Tensor:
        streams[target] = literal.plain_stream(target, outputs, biases)
        return streams[target]

    with torch.no_grad():
        _, outputs = literal.run(model, task.clean, stream_of)
    scores = torch.zeros(task.n, graph.n_sources, graph.n_targets, dtype=torch.float64)
    for column, target in enumerate(graph.targets):
        rows = graph.valid[:, column].nonzero().flatten().tolist()
        for example in range(task.n):
            length = int(task.lengths[example])
            for position in range(length):
                x = streams[target][example, position]
                left = [(x - outputs[graph.sources[row]][example, position]).abs().sum() for row in rows]
                proximity = [max(0.0, float(x.abs().sum() - distance)) for distance in left]
                for row, value in zip(rows, proximity, strict=True):
                    if sum(proximity) > 0:
                        scores[example, row, column] += value / sum(proximity) / length
    return scores


def test_shares_equal_their_twin_whatever_the_chunks(
    module64: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequential, parallel and grouped-query blocks; all tokens, four or one at a time."""
    model = load_model(module64)
    task = random_prompts(model, ragged=True)
    expected = literal_ifr(model, task)
    # transformers takes the norms of Llama in float32 even inside a float64 model
    close = {"rtol": 0, "atol": 2e-6}
    for chunk in (2**20, 4 * 8 * model.graph.n_sources * model.d_model, 1):
        monkeypatch.setattr("assay.discovery.edges.ifr.CHUNK_BYTES", chunk)
        monkeypatch.setattr("assay.discovery.edges.ifr.SLICE_BYTES", {"cpu": chunk, "cuda": 1})
        found = discover(model, task, "ifr", per_example=True, batch_size=3)
        torch.testing.assert_close(found.per_example, expected, **close)
        torch.testing.assert_close(found.values, expected.mean(0), **close)


def test_ablation_and_objective_do_not_matter(gpt2_tiny: nn.Module) -> None:
    """Not even a pass is spent on them."""
    model = load_model(gpt2_tiny)
    task = random_prompts(model)
    plain = discover(model, task, "ifr", objective="kl")
    found = discover(model, task, "ifr", objective="ce", ablation="mean")
    assert torch.equal(found.values, plain.values)
    assert found.details["passes"] == {"forward": 1.0, "backward": 0.0}
    assert found.details["ignores"] == ["objective", "ablation"]
    assert found.provenance["ablation"] == "mean"


# ------------------------------------------------------------------------------------------------ properties

vectors = st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3)


@given(st.lists(vectors, min_size=1, max_size=5), vectors, st.floats(0.125, 8, width=32))
def test_shares_are_shares(written: list[list[float]], rest: list[float], factor: float) -> None:
    """In [0, 1], summing to 1 or to 0; the same at any scale; in the order of the sources."""
    outputs = torch.tensor([written], dtype=torch.float64)
    x = outputs.sum(1) + torch.tensor([rest], dtype=torch.float64)
    share = _importance(x, outputs)
    assert bool((share >= 0).all())
    assert float(share.sum()) in (0, pytest.approx(1))
    torch.testing.assert_close(_importance(-x, -outputs), share)
    torch.testing.assert_close(_importance(x, outputs.flip(1)), share.flip(1))
    if float(x.abs().sum()) > 1e-3:
        scaled = _importance(factor * x, factor * outputs)
        torch.testing.assert_close(scaled, share, rtol=1e-6, atol=1e-6)


def test_writers_that_lead_away_share_nothing() -> None:
    """Both overshoot: without either, more is left than is read."""
    x = torch.tensor([[1.0, 0.0]])
    outputs = torch.tensor([[[-9.0, 0.0], [10.0, 10.0]]])
    assert _importance(x, outputs).tolist() == [[0, 0]]
