"""Information-flow routes: golden values, a case worked by hand, a literal twin, limits."""

import literal
import pytest
import torch
import vit_goldens
from hypothesis import given
from hypothesis import strategies as st
from test_methods import ABLATION_KEYS, random_task
from torch import Tensor, nn
from vit_goldens import NAMES

from assay.circuits import EdgeScores
from assay.discovery.edges import discover
from assay.discovery.edges.ifr import _importance
from assay.models import Model, load_model
from assay.tasks import PairTask


# ------------------------------------------------------------------------------------------- golden values


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_scores_of_the_reference(name: str) -> None:
    """Every target, `logits` too, is read at all positions."""
    found = discover(vit_goldens.model(name), vit_goldens.task(name), "ifr")
    torch.testing.assert_close(found.values, vit_goldens.tensor(name, "ref/ifr"), rtol=1e-9, atol=1e-12)


def test_greedy_circuit_of_the_reference(name: str) -> None:
    """The same edges but for ties: q, k and v of a block are equal; the reference orders them otherwise."""
    model = vit_goldens.model(name)
    scores = discover(model, vit_goldens.task(name), "ifr")
    found = scores.greedy(40).mask
    expected = vit_goldens.tensor(name, "ref/ifr_greedy40_in_graph")
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
    scores = discover(model, task, "ifr")
    share = {edge: float(scores.values[model.graph.edge_index(edge)]) for edge in model_edges(model)}
    assert share == pytest.approx(
        {
            "input->a0.h0.q": 1,
            "input->a0.h0.k": 1,
            "input->a0.h0.v": 1,
            "input->m0": 4 / 5,
            "a0.h0->m0": 1 / 5,
            "input->logits": 2 / 3,
            "a0.h0->logits": 1 / 3,
            "m0->logits": 0,
        },
        abs=1e-12,
    )


def model_edges(model: Model) -> list[str]:
    return [model.graph.edge_name(row, column) for row, column in model.graph.valid.nonzero().tolist()]


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


def assert_scores(found: EdgeScores, expected: Tensor) -> None:
    # transformers takes the norms of Llama in float32 even inside a float64 model
    torch.testing.assert_close(found.per_example, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(found.values, expected.mean(0), rtol=0, atol=2e-6)


@pytest.mark.parametrize("ragged", [False, True])
def test_shares_equal_their_twin(module64: nn.Module, ragged: bool) -> None:
    """Sequential, parallel and grouped-query blocks; prompts of one and of several lengths."""
    model = load_model(module64)
    task = random_task(model, ragged=ragged)
    assert_scores(discover(model, task, "ifr", per_example=True, batch_size=3), literal_ifr(model, task))


def test_chunks_do_not_matter(module64: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token at a time, and one difference at a time."""
    model = load_model(module64)
    task = random_task(model, ragged=True)
    whole = discover(model, task, "ifr", per_example=True)
    monkeypatch.setattr("assay.discovery.edges.ifr.CHUNK_BYTES", 1)
    monkeypatch.setattr("assay.discovery.edges.ifr.SLICE_BYTES", {"cpu": 1, "cuda": 1})
    torch.testing.assert_close(discover(model, task, "ifr").values, whole.values)
    monkeypatch.setattr(
        "assay.discovery.edges.ifr.CHUNK_BYTES", 4 * 8 * model.graph.n_sources * model.d_model
    )
    parts = discover(model, task, "ifr", per_example=True)
    torch.testing.assert_close(parts.per_example, whole.per_example)


# ------------------------------------------------------------------------------------------- what it ignores


@pytest.mark.parametrize("ablation", ABLATION_KEYS)
def test_ablation_and_objective_do_not_matter(gpt2_tiny: nn.Module, ablation: str) -> None:
    """Not even a pass is spent on them."""
    model = load_model(gpt2_tiny)
    task = random_task(model)
    plain = discover(model, task, "ifr", objective="kl")
    found = discover(model, task, "ifr", objective="ce", ablation=ablation)
    assert torch.equal(found.values, plain.values)
    assert found.details["passes"] == {"forward": 1.0, "backward": 0.0}
    assert found.details["ignores"] == ["objective", "ablation"]
    assert found.provenance["ablation"] == ablation


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
