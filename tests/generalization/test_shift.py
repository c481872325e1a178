"""Distances of circuits: worked cases, golden values, slow literal graphs, properties, refusals."""

import json
import math
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg

from assay.analyses.generalization import (
    DISTANCES,
    circuit_shift,
    rank_shift_map,
)
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, UnknownNameError
from assay.graph import Graph, build_graph


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "css.json").read_text())
with np.load(FOLDER / "css.npz") as _file:
    ARRAYS = dict(_file)
VIT = build_graph(4, 3)
GROUPED = build_graph(3, 4, 2)
TINY = build_graph(1, 1)  # sources input, a0.h0, m0; targets q, k, v, m0, logits


def golden_pair(pair: str) -> tuple[EdgeScores, EdgeScores]:
    shape, which = pair.split("|")
    graph = build_graph(*map(int, shape.split("x")))
    known, new = (EdgeScores(graph, torch.from_numpy(ARRAYS[f"{shape}_{name}"])) for name in ("id", which))
    return known, new


def random_scores(graph: Graph, seed: int, **provenance: object) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    shape = (graph.n_sources, graph.n_targets)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return EdgeScores(graph, values, provenance=provenance)


def tiny_scores(**edges: float) -> EdgeScores:
    """Scores of the one-block graph; `input_q=1.0` stands for the edge from input to the query."""
    names = {"q": "a0.h0.q", "k": "a0.h0.k", "v": "a0.h0.v", "head": "a0.h0", "mlp": "m0"}
    values = torch.zeros(TINY.n_sources, TINY.n_targets, dtype=torch.float64)
    for edge, score in edges.items():
        source, target = (names.get(end, end) for end in edge.split("_"))
        values[TINY.edge_index(f"{source}->{target}")] = score
    return EdgeScores(TINY, values)


@pytest.mark.parametrize("pair", GOLDEN)
def test_distances_and_maps_equal_the_golden_values(pair: str) -> None:
    known, new = golden_pair(pair)
    golden = GOLDEN[pair]
    for weights in ("abs", "signed"):
        for distance, key in (("l2", "l2"), ("cosine", "cosine_dissim"), ("spearman", "srcc_dissim")):
            got = circuit_shift(known, new, distance=distance, weights=weights)
            # 1 - r cancels: the reference keeps about 1e-16 / 1e-3 of its digits
            assert got == pytest.approx(golden[f"direct|{key}|{weights}"], rel=1e-9, abs=1e-13)
        for distance, key in (("jaccard", "jaccard_dissim"), ("netlsd", "netlsd")):
            for pruned in (False, True):
                expected = golden[f"direct|{key}|abs={weights == 'abs'}|prune={pruned}"]
                chosen = {"weights": weights, "prune": pruned, "top_k": golden["k"]}
                got = circuit_shift(known, new, distance=distance, **chosen)
                assert got == pytest.approx(expected, rel=1e-7, abs=1e-12)  # spectra of 100 nodes
    for normalized, key in ((True, "normalized"), (False, "combinatorial")):
        got = circuit_shift(known, new, distance="laplacian", normalized=normalized)
        assert got == pytest.approx(golden[f"direct|laplacian_full|{key}"], rel=1e-8)
    for absolute, key in ((True, "abs"), (False, "signed")):
        expected = ARRAYS[f"{pair.replace('|', '_')}_rankshift_{key}"]
        got = rank_shift_map(known, new, absolute=absolute).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


# --------------------------------------------------------------------------------------- worked cases


def test_vectors_worked_by_hand() -> None:
    before = tiny_scores(input_q=3.0, mlp_logits=-4.0)
    after = tiny_scores(input_q=4.0, mlp_logits=3.0)
    assert circuit_shift(before, after, distance="l2") == pytest.approx(math.sqrt(2))
    assert circuit_shift(before, after, distance="l2", weights="signed") == pytest.approx(math.sqrt(50))
    assert circuit_shift(before, after, distance="cosine") == pytest.approx(1 - 24 / 25)
    assert circuit_shift(before, after, distance="cosine", weights="signed") == pytest.approx(1)


def test_overlap_worked_by_hand() -> None:
    before = tiny_scores(input_q=5.0, input_mlp=-4.0, mlp_logits=3.0, head_mlp=1.0)
    after = tiny_scores(input_q=5.0, input_v=4.0, mlp_logits=3.0, input_logits=2.0)
    # by sign the negative edge is last, so the first tie at 0 or the head's edge comes in
    for weights in ("abs", "signed"):
        got = circuit_shift(before, after, distance="jaccard", top_k=3, weights=weights)
        assert got == pytest.approx(1 - 2 / 4)
    # paths: input -> m0 -> logits before; input -> logits is not chosen, input -> head leads nowhere
    assert circuit_shift(before, after, distance="jaccard", top_k=3, prune=True) == 1.0


def test_spectra_worked_by_hand() -> None:
    """One joined pair of nodes: eigenvalues 0 and 2w, or 0 and 2 when scaled; lonely nodes give 0."""
    before, after = tiny_scores(input_q=1.0, input_k=-2.0), tiny_scores(input_q=1.0)
    assert circuit_shift(before, after, distance="laplacian", normalized=False) == pytest.approx(6 - 2)
    assert circuit_shift(before, after, distance="laplacian") == pytest.approx(0, abs=1e-12)
    assert circuit_shift(before, tiny_scores(), distance="laplacian") == pytest.approx(2)
    triangle = tiny_scores(input_q=1.0, input_mlp=1.0, head_mlp=1.0)  # 0, 1.5, 1.5 and one lonely node
    expected = math.dist([0, 0, 1.5, 1.5], [0, 0, 0, 2])
    assert circuit_shift(triangle, after, distance="laplacian") == pytest.approx(expected)


def test_heat_signatures_worked_by_hand() -> None:
    """A pair of nodes against a triangle, whose untouched fourth node is left out."""
    pair = tiny_scores(input_q=1.0)
    triangle = tiny_scores(input_q=1.0, input_mlp=1.0, head_mlp=1.0)
    times = 10 ** np.linspace(-2, 2, 250)
    # the strongest edge of the triangle is its first, so both are asked for three, two of them of score 0
    with_ties = (1 + np.exp(-2 * times)) / 2
    expected = np.linalg.norm(with_ties - (1 + 2 * np.exp(-1.5 * times)) / 3)
    # input->q, ->k, ->v join the same two nodes
    assert circuit_shift(pair, triangle, distance="netlsd", top_k=3) == pytest.approx(expected)


def test_rank_shifts_worked_by_hand() -> None:
    before = tiny_scores(input_q=1.0, input_mlp=2.0, mlp_logits=3.0)
    after = tiny_scores(input_q=1.0, input_mlp=-4.0, mlp_logits=3.0)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    n = TINY.n_edges  # 8: four from the input to block 0, one to the logits, head->m0, two to the logits
    expected[0, 1], expected[1, 2] = 1 / n / 4, -1 / n / 2
    torch.testing.assert_close(rank_shift_map(before, after), expected)
    torch.testing.assert_close(rank_shift_map(before, after, absolute=True), expected.abs())


def test_a_missing_number_of_edges_means_200_at_most_all() -> None:
    pair = golden_pair("12x12|far")
    for distance in ("jaccard", "netlsd"):
        assert circuit_shift(*pair, distance=distance) == circuit_shift(*pair, distance=distance, top_k=200)
    small = random_scores(TINY, 0), random_scores(TINY, 1)
    assert circuit_shift(*small, distance="jaccard") == 0.0
    whole = circuit_shift(*small, distance="laplacian", top_k=TINY.n_edges)
    assert circuit_shift(*small, distance="laplacian") == whole


# ------------------------------------------------------------------------------------ literal versions


def literal_spectrum(scores: EdgeScores, mask: torch.Tensor) -> np.ndarray:
    """Edge by edge, with names; a shared key or value head is spread over its query heads."""
    graph = scores.graph
    joined = nx.Graph()
    for row, source in enumerate(graph.sources):
        for column in range(graph.n_targets):
            if mask[row, column]:
                readers = [name for at, name in enumerate(graph.sources) if graph.feeds[column, at]]
                for reader in readers or ["logits"]:
                    weight = abs(float(scores.values[row, column])) / len(readers or ["logits"])
                    old = joined.get_edge_data(source, reader, {"weight": 0.0})["weight"]
                    joined.add_edge(source, reader, weight=old + weight)
    return np.sort(linalg.eigvalsh(nx.normalized_laplacian_matrix(joined).toarray()))


@pytest.mark.parametrize("graph", [VIT, GROUPED], ids=["vit", "grouped"])
def test_graph_distances_equal_those_of_graphs_built_edge_by_edge(graph: Graph) -> None:
    pair = random_scores(graph, 0), random_scores(graph, 1)
    whole = [literal_spectrum(each, graph.valid) for each in pair]
    assert circuit_shift(*pair, distance="laplacian") == pytest.approx(math.dist(*whole))
    times = [10 ** (-2 + 4 * at / 249) for at in range(250)]
    chosen = [literal_spectrum(each, each.top(12).mask) for each in pair]
    signatures = [[sum(math.exp(-t * x) for x in values) / len(values) for t in times] for values in chosen]
    assert circuit_shift(*pair, distance="netlsd", top_k=12) == pytest.approx(math.dist(*signatures))


# ------------------------------------------------------------------------------------------ properties


@pytest.mark.parametrize("distance", DISTANCES)
@given(seeds=st.tuples(st.integers(0, 500), st.integers(0, 500)), scale=st.floats(1e-3, 1e3))
def test_distances_are_symmetric_bounded_0_for_equals_and_free_of_scale(
    distance: str, seeds: tuple[int, int], scale: float
) -> None:
    a, b = (random_scores(VIT, seed) for seed in seeds)
    high = {"spearman": 2.0, "cosine": 2.0, "jaccard": 1.0}.get(distance, math.inf)
    forth = circuit_shift(a, b, distance=distance, top_k=20)
    assert -1e-12 <= forth <= high + 1e-12
    assert circuit_shift(b, a, distance=distance, top_k=20) == pytest.approx(forth, abs=1e-12)
    assert circuit_shift(a, a, distance=distance, top_k=20) == pytest.approx(0, abs=1e-12)
    if distance != "l2":
        scaled = EdgeScores(VIT, scale * b.values)
        assert circuit_shift(a, scaled, distance=distance, top_k=20) == pytest.approx(forth, abs=1e-9)


# -------------------------------------------------------------------------------- undefined and refused


def test_undefined_distances_are_nan_with_a_warning() -> None:
    constant = EdgeScores(VIT, torch.ones(VIT.n_sources, VIT.n_targets))
    with pytest.warns(DegenerateDataWarning, match="scores are constant"):
        assert math.isnan(circuit_shift(constant, random_scores(VIT, 0)))
    nowhere = tiny_scores(input_q=1.0)
    with pytest.warns(DegenerateDataWarning, match="netlsd is undefined.*no chosen edge"):
        assert math.isnan(circuit_shift(nowhere, nowhere, distance="netlsd", top_k=1, prune=True))
    assert circuit_shift(nowhere, nowhere, distance="jaccard", top_k=1, prune=True) == 0.0


def test_circuits_that_do_not_compare_are_refused() -> None:
    pair = random_scores(VIT, 0), random_scores(VIT, 1)
    with pytest.raises(UnknownNameError, match="unknown distance 'spearmn'; did you mean 'spearman'"):
        circuit_shift(*pair, distance="spearmn")
    with pytest.raises(UnknownNameError, match="unknown weights 'both'; known: abs, signed"):
        circuit_shift(*pair, weights="both")
    with pytest.raises(InputError, match="every score is 0"):
        circuit_shift(tiny_scores(input_q=1.0), tiny_scores(), distance="cosine")
    for k in (0, 9):
        with pytest.raises(InputError, match=f"top_k is {k}; expected 1 to 8"):
            circuit_shift(tiny_scores(), tiny_scores(), distance="jaccard", top_k=k)
    with pytest.raises(GraphMismatchError, match="different graphs.*'n_layers': 4.*'n_layers': 3"):
        rank_shift_map(pair[0], random_scores(GROUPED, 0))
    a, b = (random_scores(VIT, 0, model={"weight_hash": text}) for text in ("aa", "bb"))
    with pytest.raises(GraphMismatchError, match=r"different weights \(aa and bb\)"):
        circuit_shift(a, b)
    for setting in ("method", "objective", "ablation", "steps", "quadrature"):
        a, b = (random_scores(VIT, 0, **{setting: value}) for value in ("one", "other"))
        with pytest.raises(InputError, match=f"{setting} is 'one' and 'other'; use the same"):
            circuit_shift(a, b)
        circuit_shift(a, random_scores(VIT, 0))  # a record without the setting is not compared
    other = random_scores(VIT, 0, method="eap", options={"estimator": "other", "orders": (1, 2)})
    with pytest.raises(InputError, match=r"options is \{'estimator': 'other'.*\} and \{\}; use the same"):
        circuit_shift(other, random_scores(VIT, 0, method="eap"))
    read = random_scores(VIT, 1, method="eap", options={"estimator": "other", "orders": [1, 2]})
    circuit_shift(other, read)  # a file holds lists
