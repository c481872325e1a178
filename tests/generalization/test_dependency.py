"""Dependency matrix and depth bias: worked cases, golden values, properties, refusals."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.analyses.generalization import (
    dependency_depth_bias,
    dependency_matrix,
    output_depth_bias,
)
from assay.analyses.generalization.dependency import DepthRule
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, UnknownNameError
from assay.graph import Graph, build_graph


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "ddb.json").read_text())
with np.load(FOLDER / "ddb.npz") as _file:
    ARRAYS = dict(_file)
SHAPES = ("12x12", "3x2", "6x4", "5x3")
GRAPHS = {
    "vit": build_graph(4, 3),
    "grouped": build_graph(3, 4, 2),
    "parallel": build_graph(4, 2, parallel=True),
    "attention-only": build_graph(3, 2, mlps=False),
}


def golden_scores(shape: str) -> EdgeScores:
    n_layers, n_heads = map(int, shape.split("x"))
    return EdgeScores(build_graph(n_layers, n_heads), torch.from_numpy(ARRAYS[f"scores_{shape}"]))


def random_scores(graph: Graph, seed: int = 0) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    shape = (graph.n_sources, graph.n_targets)
    return EdgeScores(graph, torch.randn(shape, generator=generator, dtype=torch.float64))


def layer_of(name: str, n_layers: int) -> int:
    """The layer of a node, read off its name."""
    if name == "input":
        return 0
    return n_layers + 1 if name == "logits" else int(name[1:].split(".")[0]) + 1


def literal_matrix(scores: EdgeScores) -> np.ndarray:
    graph = scores.graph
    matrix = np.zeros((graph.n_layers + 2, graph.n_layers + 2))
    for row, source in enumerate(graph.sources):
        for column, target in enumerate(graph.targets):
            if graph.valid[row, column]:
                where = layer_of(source, graph.n_layers), layer_of(target, graph.n_layers)
                matrix[where] += abs(float(scores.values[row, column]))
    return matrix


# ------------------------------------------------------------------------------------------- matrix


@pytest.mark.parametrize("shape", SHAPES)
def test_matrices_equal_the_golden_ones(shape: str) -> None:
    matrix = dependency_matrix(golden_scores(shape))
    np.testing.assert_allclose(matrix.numpy(), ARRAYS[f"idm_sum_{shape}"], rtol=1e-12, atol=1e-14)


def test_the_mean_equals_that_of_the_authors_code() -> None:
    matrix = dependency_matrix(golden_scores("12x12"), reduce="mean")
    np.testing.assert_allclose(matrix.numpy(), ARRAYS["ref_idm_mean_12x12"], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("key", GRAPHS)
def test_the_matrix_equals_an_edge_by_edge_sum(key: str) -> None:
    scores = random_scores(GRAPHS[key])
    np.testing.assert_allclose(dependency_matrix(scores).numpy(), literal_matrix(scores), rtol=1e-12)


def test_sublayers_add_up_to_blocks() -> None:
    scores = random_scores(GRAPHS["vit"])
    fine = dependency_matrix(scores, granularity="sublayer")
    n = GRAPHS["vit"].n_layers
    owner = torch.tensor([0, *(1 + half // 2 for half in range(2 * n)), n + 1])
    coarse = torch.zeros(n + 2, n + 2, dtype=torch.float64)
    for i, row in enumerate(owner.tolist()):
        for j, column in enumerate(owner.tolist()):
            coarse[row, column] += fine[i, j]
    torch.testing.assert_close(coarse, dependency_matrix(scores))
    # heads of block 0 are layer 1 and feed its MLP, layer 2
    assert fine[1, 2] > 0
    assert float(fine.diagonal().sum()) == 0


# --------------------------------------------------------------------------------------- depth bias


@pytest.mark.parametrize("shape", SHAPES)
def test_depth_bias_equals_the_golden_values(shape: str) -> None:
    scores = golden_scores(shape)
    cases = GOLDEN[shape].get("symmetric", GOLDEN[shape])
    for key, expected in cases.items():
        assert bias(scores, key) == pytest.approx(expected, rel=1e-9, abs=1e-12), key


def test_reference_sets_equal_the_golden_values() -> None:
    scores = golden_scores("12x12")
    for key, expected in GOLDEN["12x12"]["reference_sets"].items():
        assert bias(scores, key, sets="reference") == pytest.approx(expected, rel=1e-9), key


def test_reference_sets_give_the_ratios_of_the_authors_code() -> None:
    """Their ratio to the output counts the input as shallow except at 0.3; the others never do."""
    scores = golden_scores("12x12")
    for key, expected in GOLDEN["12x12"]["ref_raw_ratio"].items():
        counted = key.endswith("out") and "0.3" not in key
        got = bias(scores, f"{key}|include_input={counted}", sets="reference")
        assert math.exp(got) == pytest.approx(expected, rel=1e-6), key


def bias(scores: EdgeScores, key: str, sets: str = "symmetric") -> float:
    tau, targets, counted = key.split("|")
    return dependency_depth_bias(
        scores,
        targets={"out": "output"}.get(targets, targets),
        ratio=float(tau.removeprefix("tau=")),
        include_input=counted.endswith("True"),
        sets=sets,
    )


def test_a_case_worked_by_hand() -> None:
    graph = build_graph(3, 1)
    values = torch.zeros(graph.n_sources, graph.n_targets, dtype=torch.float64)
    for edge, score in {
        "input->logits": 5.0,
        "a0.h0->logits": -1.0,
        "m0->logits": 1.0,
        "m1->logits": 7.0,
        "m2->logits": -6.0,
        "m0->m2": 4.0,
        "a2.h0->m2": 3.0,
        "m0->a1.h0.q": 10.0,
    }.items():
        values[graph.edge_index(edge)] = score
    scores = EdgeScores(graph, values)
    assert dependency_depth_bias(scores) == pytest.approx(math.log(6 / 2))
    assert dependency_depth_bias(scores, include_input=True) == pytest.approx(math.log(6 / 7))
    assert dependency_depth_bias(scores, targets="deep") == pytest.approx(math.log(9 / 6))
    assert dependency_depth_bias(scores, targets="global") == pytest.approx(math.log(9 / 16))


@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.sampled_from(["output", "deep", "global"]))
def test_scale_and_signs_change_nothing(seed: int, scale: float, targets: str) -> None:
    scores = random_scores(GRAPHS["vit"], seed)
    scaled = EdgeScores(scores.graph, -scale * scores.values)
    expected = dependency_depth_bias(scores, targets=targets)
    assert dependency_depth_bias(scaled, targets=targets) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("include_input", [False, True])
def test_the_output_alone_needs_only_the_edges_into_the_logits(include_input: bool) -> None:
    scores = golden_scores("6x4")
    short = output_depth_bias(scores.graph, scores.values[:, -1], include_input=include_input)
    assert short == dependency_depth_bias(scores, include_input=include_input)


def test_no_deep_edge_is_the_floor_and_no_edge_is_undefined() -> None:
    graph = build_graph(2, 1)
    values = torch.zeros(graph.n_sources, graph.n_targets)
    with pytest.warns(DegenerateDataWarning, match="all scores of edges from deep or shallow"):
        assert math.isnan(dependency_depth_bias(EdgeScores(graph, values)))
    values[1, -1] = 1.0
    assert dependency_depth_bias(EdgeScores(graph, values)) == pytest.approx(math.log(1e-12))


# ---------------------------------------------------------------------------------------- layer sets


@pytest.mark.parametrize(
    ("n_layers", "ratio", "size"),
    [(12, 0.3, 3), (10, 0.3, 3), (12, 0.1, 1), (12, 0.5, 6), (3, 0.5, 1), (2, 0.01, 1)],
)
def test_sets_hold_a_fraction_of_the_blocks(n_layers: int, ratio: float, size: int) -> None:
    assert DepthRule(ratio=ratio).layers(n_layers) == ((1, size), (n_layers + 1 - size, n_layers))


@pytest.mark.parametrize("ratio", [0.0, -0.1, 0.51, math.nan])
def test_ratios_outside_the_range_are_refused(ratio: float) -> None:
    with pytest.raises(InputError, match=r"ratio is .*\(0, 0.5\]"):
        DepthRule(ratio=ratio).layers(12)


def test_models_that_a_rule_does_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="a model of 1 block has no two sides"):
        DepthRule().layers(1)
    with pytest.raises(InputError, match="exist for 12 blocks, not for 6; use sets='symmetric'"):
        DepthRule(sets="reference").layers(6)


def test_unknown_choices_list_the_known_ones() -> None:
    scores = random_scores(GRAPHS["vit"])
    with pytest.raises(UnknownNameError, match="did you mean 'output'"):
        dependency_depth_bias(scores, targets="outputs")
    with pytest.raises(UnknownNameError, match="unknown sets 'all'; known: reference, symmetric"):
        dependency_depth_bias(scores, sets="all")
    with pytest.raises(UnknownNameError, match="unknown reduce"):
        dependency_matrix(scores, reduce="max")
    with pytest.raises(UnknownNameError, match="did you mean 'sublayer'"):
        dependency_matrix(scores, granularity="sublayers")


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_matrix_is_refused() -> None:
    for wrong in (
        torch.ones(3, 4),
        torch.full((4, 4), math.nan),
        torch.full((4, 4), math.inf),
        -torch.eye(4),
    ):
        with pytest.raises(InputError, match="expected a square dependency matrix of finite sums"):
            dependency_depth_bias(wrong)
    with pytest.raises(NonFiniteError, match="score of m0->logits is inf"):
        output_depth_bias(build_graph(2, 1), torch.tensor([0.0, 0.0, math.inf, 0.0, 0.0]))
