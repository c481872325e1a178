"""Explanations of pairs: golden scores, a case worked by hand, completeness, grouping."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.analyses.worst_case.explain import explain
from assay.circuits import Circuit
from assay.core.errors import InputError, NonFiniteError
from assay.execution import run_circuit, run_model
from assay.models import Model, load_model
from assay.tasks import PairTask


GOLDEN = Path(__file__).parent.parent / "golden" / "adversarial"


def golden_pairs(model: Model) -> tuple[Model, Tensor, Tensor]:
    case = np.load(GOLDEN / "gpt2_tiny_case.npz")
    clean, corrupted = (torch.from_numpy(case[f"{side}_tokens"]) for side in ("clean", "corrupted"))
    index = torch.cartesian_prod(torch.arange(len(clean)), torch.arange(len(corrupted)))
    return model, clean[index[:, 0]], corrupted[index[:, 1]]


@pytest.mark.parametrize("name", ["node_induced", "random30", "all_but_20"])
def test_scores_are_the_golden_ones(name: str, golden_model: Callable[..., tuple[Model, dict]]) -> None:
    model, described = golden_model("gpt2_tiny", torch.float64)
    expected = json.loads((GOLDEN / "gpt2_tiny_explain.json").read_text())["circuits"][name]
    circuit = Circuit.from_edges(model.graph, described["circuits"][name]["edges"])
    found = explain(circuit, *golden_pairs(model), kept=False, batch_size=20)
    assert found.divergence == pytest.approx(expected["mean_kl"], rel=1e-9)
    assert found.missing.total == pytest.approx(expected["sum_scores"], rel=1e-9)
    assert found.missing.completeness_gap == pytest.approx(expected["completeness_gap_relative"], rel=1e-6)
    scores = torch.zeros(model.graph.valid.shape, dtype=torch.float64)
    for source, target, score in expected["cut_edge_scores"]:
        scores[model.graph.source_index(source), model.graph.target_index(target)] = score
    torch.testing.assert_close(found.missing.values, scores, rtol=1e-8, atol=1e-9)


def random_pairs(model: Model, n: int = 6, length: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randint(1, model.n_vocab, (n, length), generator=generator)
    corrupted = torch.randint(1, model.n_vocab, (n, length), generator=generator)
    return clean, corrupted, torch.randint(2, length, (n,), generator=generator)


def divergences(model: Model, circuit: Circuit, clean: Tensor, corrupted: Tensor, read: Tensor) -> Tensor:
    task = PairTask(clean=clean, corrupted=corrupted, answers=clean[:, :1], positions=read)
    full, run = (
        logits.double().log_softmax(1)
        for logits in (run_model(model, task), run_circuit(circuit, model, task))
    )
    return (full.exp() * (full - run)).sum(1)


def test_scores_of_both_kinds_share_out_the_measured_differences(module64: nn.Module) -> None:
    model = load_model(module64)
    clean, corrupted, read = random_pairs(model)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=1)
    found = explain(circuit, model, clean, corrupted, positions=read, steps=64)
    here = float(divergences(model, circuit, clean, corrupted, read).mean())
    empty = float(divergences(model, Circuit.empty(model.graph), clean, corrupted, read).mean())
    assert found.divergence == pytest.approx(here, rel=1e-4)
    assert found.empty == pytest.approx(empty, rel=1e-4)
    assert found.missing.total == pytest.approx(here, rel=0.01)
    assert found.kept.total == pytest.approx(empty - here, rel=0.01, abs=0.02)
    assert found.missing.completeness_gap < 0.01
    assert bool((found.missing.values[circuit.mask] == 0).all())
    assert bool((found.kept.values[~circuit.mask] == 0).all())


def test_one_edge_gets_the_whole_difference(gpt2_tiny64: nn.Module) -> None:
    """With a single cut edge the integral is the divergence; with a single kept one, what it takes away."""
    model = load_model(gpt2_tiny64)
    clean, corrupted, read = random_pairs(model)
    graph = model.graph
    row, column = graph.edge_index("input->m0")
    mask = graph.valid.clone()
    mask[row, column] = False
    nearly = Circuit(graph=graph, mask=mask)
    found = explain(nearly, model, clean, corrupted, positions=read, steps=200, kept=False)
    expected = float(divergences(model, nearly, clean, corrupted, read).mean())
    assert float(found.missing.values[row, column]) == pytest.approx(expected, rel=1e-3)
    assert expected > 0.01
    (edge,) = found.missing.top(5)
    assert (edge.source, edge.target, edge.kept) == ("input", "m0", False)
    assert edge.share == pytest.approx(1, rel=1e-3)

    single = Circuit.from_edges(graph, ["input->logits"])
    found = explain(single, model, clean, corrupted, positions=read, steps=200)
    taken = float(found.kept.values[graph.edge_index("input->logits")])
    assert taken == pytest.approx(found.empty - found.divergence, rel=1e-3)
    assert found.kept.top(3)[0].score == taken


def test_groups_add_up(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    clean, corrupted, _ = random_pairs(model)
    circuit = Circuit.random(model.graph, model.graph.n_edges // 2, seed=1)
    found = explain(circuit, model, clean, corrupted)
    missing = found.missing
    by_source, by_target, by_layer = missing.by_source(), missing.by_target(), missing.by_layer()
    for groups in (by_source, by_target, by_layer):
        assert sum(groups.values()) == pytest.approx(missing.total)
    assert list(by_layer) == ["block 0", "block 1", "logits"]
    assert by_layer["logits"] == by_target["logits"] == pytest.approx(float(missing.values[:, -1].sum()))
    assert by_source["input"] == pytest.approx(float(missing.values[0].sum()))
    assert list(by_source.values()) == sorted(by_source.values(), reverse=True)
    document = json.loads(json.dumps(found.to_dict()))
    assert [edge["score"] for edge in document["missing"]["top"]] == [each.score for each in missing.top(20)]
    assert document["kept"]["top"][0]["kept"]


def test_a_full_circuit_lacks_nothing_and_bad_input_is_named(gpt2_tiny64: nn.Module) -> None:
    model = load_model(gpt2_tiny64)
    clean, corrupted, _ = random_pairs(model, n=2)
    found = explain(Circuit.full(model.graph), model, clean, corrupted, kept=False)
    assert (found.missing.top(3), found.missing.total, found.kept) == ([], 0, None)
    assert found.divergence == pytest.approx(0, abs=1e-9)

    def broken(full: Tensor, run: Tensor) -> Tensor:
        return (run - full).square().sum(1) * torch.tensor([1.0, float("nan")])

    for options, error, match in (
        ({"divergence": "logit_diff"}, InputError, "'logit_diff' is not a divergence from the model"),
        ({"steps": 0}, InputError, "steps is 0"),
        ({"divergence": broken}, NonFiniteError, "divergence of pair 1 is NaN"),
    ):
        with pytest.raises(error, match=match):
            explain(Circuit.empty(model.graph), model, clean, corrupted, **options)
