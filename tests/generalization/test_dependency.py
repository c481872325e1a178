"""Dependency matrix, depth bias, motif, distances: golden values, worked cases, literal versions."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import linalg
from scipy import stats as scipy_stats

from assay.analyses.generalization import (
    circuit_shift,
    dependency_depth_bias,
    dependency_matrix,
    motif,
    rank_shift_map,
    resampled_depth_bias,
    universal_motif,
)
from assay.analyses.generalization.dependency import DepthRule
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, GraphMismatchError, InputError, UnknownNameError
from assay.discovery.edges import OutputScores
from assay.graph import Graph, build_graph
from assay.stats import ResampledValue, poisson_weights


FOLDER = Path(__file__).parent.parent / "golden" / "generalization"
GOLDEN = json.loads((FOLDER / "ddb.json").read_text())
with np.load(FOLDER / "ddb.npz") as _file:
    ARRAYS = dict(_file)
SHAPES = ("12x12", "3x2", "6x4", "5x3")
with np.load(FOLDER / "motif.npz") as _file:
    MOTIFS = dict(_file)
MOTIF_FACTS = json.loads((FOLDER / "motif.json").read_text())
DISTANCES_OF = json.loads((FOLDER / "css.json").read_text())
with np.load(FOLDER / "css.npz") as _file:
    SHIFTS = dict(_file)
GRAPHS = {
    "vit": build_graph(4, 3),
    "grouped": build_graph(3, 4, 2),
    "parallel": build_graph(4, 2, parallel=True),
    "attention-only": build_graph(3, 2, mlps=False),
}


def golden_scores(shape: str) -> EdgeScores:
    n_layers, n_heads = map(int, shape.split("x"))
    return EdgeScores(build_graph(n_layers, n_heads), torch.from_numpy(ARRAYS[f"scores_{shape}"]))


def random_scores(graph: Graph, seed: int = 0, **provenance: object) -> EdgeScores:
    generator = torch.Generator().manual_seed(seed)
    shape = (graph.n_sources, graph.n_targets)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return EdgeScores(graph, values, provenance=provenance)


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
    if shape == "12x12":  # the mean, of the authors' code
        matrix = dependency_matrix(golden_scores(shape), reduce="mean")
        np.testing.assert_allclose(matrix.numpy(), ARRAYS["ref_idm_mean_12x12"], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("key", GRAPHS)
def test_the_matrix_equals_an_edge_by_edge_sum(key: str) -> None:
    scores = random_scores(GRAPHS[key])
    np.testing.assert_allclose(dependency_matrix(scores).numpy(), literal_matrix(scores), rtol=1e-12)


# --------------------------------------------------------------------------------------- depth bias


@pytest.mark.parametrize("shape", SHAPES)
def test_depth_bias_equals_the_golden_values(shape: str) -> None:
    scores = golden_scores(shape)
    cases = GOLDEN[shape].get("symmetric", GOLDEN[shape])
    for key, expected in cases.items():
        assert bias(scores, key) == pytest.approx(expected, rel=1e-9, abs=1e-12), key


def test_reference_sets_equal_the_golden_values_and_give_the_ratios_of_the_authors_code() -> None:
    """Their ratio to the output counts the input as shallow except at 0.3; the others never do."""
    scores = golden_scores("12x12")
    for key, expected in GOLDEN["12x12"]["reference_sets"].items():
        assert bias(scores, key, sets="reference") == pytest.approx(expected, rel=1e-9), key
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


def test_no_deep_edge_is_the_floor_and_no_edge_is_undefined() -> None:
    graph = build_graph(2, 1)
    values = torch.zeros(graph.n_sources, graph.n_targets)
    with pytest.warns(DegenerateDataWarning, match="all scores of edges from deep or shallow"):
        assert math.isnan(dependency_depth_bias(EdgeScores(graph, values)))
    values[1, -1] = 1.0
    assert dependency_depth_bias(EdgeScores(graph, values)) == pytest.approx(math.log(1e-12))


# ---------------------------------------------------------------------------------------- layer sets


@pytest.mark.usefixtures("unchecked")
def test_what_has_no_depth_bias_is_refused() -> None:
    for n, ratio, size in [(12, 0.3, 3), (10, 0.3, 3), (12, 0.5, 6), (3, 0.5, 1), (2, 0.01, 1)]:
        assert DepthRule(ratio=ratio).layers(n) == (slice(1, size + 1), slice(n + 1 - size, n + 1))
    for ratio in (0.0, 0.51, math.nan):
        with pytest.raises(InputError, match=r"ratio is .*\(0, 0.5\]"):
            DepthRule(ratio=ratio)
    for rule, n in ((DepthRule(), 1), (DepthRule(sets="reference"), 6)):
        with pytest.raises(InputError, match=f"a model of {n} blocks does not fit"):
            rule.layers(n)
    scores = random_scores(GRAPHS["vit"])
    for wrong, message in (
        ({"targets": "outputs"}, "did you mean 'output'"),
        ({"sets": "all"}, "sets 'all'"),
    ):
        with pytest.raises(UnknownNameError, match=message):
            dependency_depth_bias(scores, **wrong)
    for matrix in (torch.ones(3, 4), torch.full((4, 4), math.nan), -torch.eye(4)):
        with pytest.raises(InputError, match="expected a square dependency matrix of finite sums"):
            dependency_depth_bias(matrix)


# ------------------------------------------------------------------------------------------ resamples


SMALL = build_graph(4, 2)


def sample(n: int, seed: int, *, noise: float = 1.0, resamples: int = 60) -> EdgeScores:
    """Scores of n examples around the same means, and their mean under resamples as engines keep it."""
    rng = np.random.default_rng(seed)
    means = np.exp(np.random.default_rng(99).standard_normal(SMALL.n_edges)) * 0.2
    edges = means + noise * rng.standard_normal((n, SMALL.n_edges))
    shares = poisson_weights(np.arange(n), resamples, seed=seed).astype(float)
    shares /= shares.sum(1, keepdims=True)
    spread = np.sqrt(n * ((shares - 1 / n) ** 2).sum(1, keepdims=True))
    drawn = edges.mean(0) + (shares @ edges - edges.mean(0)) / spread
    values = torch.zeros(SMALL.valid.shape, dtype=torch.float64)
    values[SMALL.valid] = torch.from_numpy(edges.mean(0))
    return EdgeScores(SMALL, values, resampled=torch.from_numpy(drawn).float(), details={"n": n})


@pytest.mark.parametrize(
    "options", [{}, {"targets": "deep", "ratio": 0.5}, {"targets": "global", "include_input": True}]
)
def test_resampled_biases_are_those_of_each_resample(options: dict[str, Any]) -> None:
    scores = sample(12, 1)
    found = resampled_depth_bias(scores, **options)
    assert found.value == pytest.approx(dependency_depth_bias(scores, **options), rel=1e-12)
    for b in (0, 7):
        values = torch.zeros(SMALL.valid.shape, dtype=torch.float64)
        values[SMALL.valid] = scores.resampled[b].double()
        literal = dependency_depth_bias(EdgeScores(SMALL, values), **options)
        assert found.draws[b] == pytest.approx(literal, rel=1e-9)


def test_scores_into_the_logits_alone_give_the_same() -> None:
    scores = sample(20, 1)
    drawn = torch.zeros(60, *SMALL.valid.shape)
    drawn[:, SMALL.valid] = scores.resampled
    columns = {"values": scores.values[:, -1], "resampled": drawn[:, :, -1], "per_example": None}
    output = OutputScores(graph=SMALL, **columns, provenance={}, details={"n": 20})
    assert dependency_depth_bias(output) == pytest.approx(dependency_depth_bias(scores), rel=1e-12)
    whole, fast = resampled_depth_bias(scores), resampled_depth_bias(output)
    np.testing.assert_allclose(fast.draws, whole.draws, rtol=1e-9)
    with pytest.raises(InputError, match="needs scores of other edges than those into the logits"):
        resampled_depth_bias(output, targets="deep")
    with pytest.raises(InputError, match="discover with resamples=200"):
        resampled_depth_bias(EdgeScores(SMALL, scores.values))


def test_errors_are_the_spread_of_samples() -> None:
    """Of 300 samples of 30 images, noise as large as the scores; their standard deviation has 4 % error."""
    found = [resampled_depth_bias(sample(30, seed), targets="global") for seed in range(300)]
    values, errors = np.array([[each.value, each.error] for each in found]).T
    assert np.sqrt((errors**2).mean()) / values.std(ddof=1) == pytest.approx(1, abs=0.12)


def test_intervals_by_hand() -> None:
    noise = np.random.default_rng(0).standard_normal(400)
    found = ResampledValue(value=1.0, draws=7 + 2 * noise, n=9, bounds=(0.5, 100.0))
    assert found.error == pytest.approx(2 * noise.std(ddof=1))
    interval = found.interval(level=0.9)
    assert interval.high == pytest.approx(1 + scipy_stats.t.ppf(0.95, 8) * found.error)
    assert interval.low == 0.5
    holes = ResampledValue(value=1.0, draws=np.where(np.arange(400) < 100, np.nan, noise), n=9)
    assert holes.error == pytest.approx(noise[100:].std(ddof=1))
    cases = {"degenerate": (np.full(400, 2.0), 9), "undefined": (noise[:9], 9), "too_few": (noise, 1)}
    for reason, (draws, n) in cases.items():
        assert ResampledValue(value=2.0, draws=draws, n=n).interval().reason == reason
    one, other = (replace(found, draws=found.draws + shift, key=key) for shift, key in ((0, "a"), (1, "b")))
    with pytest.raises(InputError, match="a paired difference needs equal"):
        one - other
    assert (one - replace(other, key="a")).error < 1e-12


# --------------------------------------------------------------------------------------------- motifs


def zoo(seed: int, n: int = 12, size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    matrices = torch.rand(n, size, size, generator=generator, dtype=torch.float64).triu(1)
    return matrices, torch.rand(n, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("task", [0, 1, 2])
def test_motifs_equal_the_golden_ones(task: int) -> None:
    found = motif(MOTIFS[f"idm_{task}"], MOTIFS[f"gt_{task}"])
    np.testing.assert_allclose(found.loadings, MOTIFS[f"loadings_{task}"], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.weights, MOTIFS[f"weights_minnorm_{task}"], rtol=1e-8, atol=1e-10)
    expected = MOTIF_FACTS[f"task{task}"]
    assert found.correlation == pytest.approx(expected["canonical_corr_unregularised"], rel=1e-9)
    assert found.correlation == pytest.approx(expected["sklearn_cca_corr"], rel=1e-9)
    assert (found.n, int(found.used.sum())) == (expected["n"], expected["n_entries_used"])
    found = motif(MOTIFS[f"idm_{task}"], MOTIFS[f"gt_{task}"], kind="weights", ridge=1.0)
    np.testing.assert_allclose(found.values, MOTIFS[f"weights_ridge1_{task}"], rtol=1e-8, atol=1e-12)
    assert found.correlation == pytest.approx(expected["canonical_corr_ridge1"], rel=1e-9)


@pytest.mark.parametrize("kind", ["loadings", "weights"])
def test_universal_motifs_equal_the_golden_ones(kind: str) -> None:
    motifs = [motif(MOTIFS[f"idm_{task}"], MOTIFS[f"gt_{task}"], kind=kind) for task in range(3)]
    expected = MOTIFS[f"universal_{kind}_maxabs"]
    np.testing.assert_allclose(universal_motif(motifs), expected, rtol=1e-8, atol=1e-10)


def test_matrices_without_a_motif_are_refused() -> None:
    matrices = torch.zeros(4, 3, 3, dtype=torch.float64)
    matrices[:, 0, 1] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    with pytest.warns(DegenerateDataWarning, match="uncorrelated with every entry"):
        assert math.isnan(motif(matrices, [0.0, 0.0, 1.0, 1.0]).loadings[0, 1])
    matrices, performance = zoo(0)
    bad = matrices.clone()
    bad[4, 0, 1] = math.nan
    for *wrong, ridge in (
        (matrices[:2], performance[:2], 0.0),
        (list(matrices), performance[:11].tolist(), 0.0),
        (bad, performance, 0.0),
        (matrices, performance, -1.0),
    ):
        with pytest.raises(InputError, match="a motif needs 3 matrices or more, a performance of each"):
            motif(*wrong, ridge=ridge)
    for wrong in ((matrices, torch.full((12,), 0.5)), (matrices[:1].expand(12, 3, 3), performance)):
        with pytest.raises(InputError, match="all dependency matrices, or all performances, are equal"):
            motif(*wrong)
    with pytest.raises(UnknownNameError, match="did you mean 'loadings'"):
        motif(matrices, performance, kind="loading")
    found = motif(list(matrices), performance.tolist())
    with pytest.raises(InputError, match="loadings of shape .*weights of shape"):
        universal_motif([found, motif(*zoo(1), kind="weights")])
    with pytest.raises(InputError, match="motif 1 is NaN, or 0"):
        universal_motif([found, replace(found, loadings=torch.zeros_like(found.loadings))])


# ------------------------------------------------------------------------------------------ distances


TINY = build_graph(1, 1)  # sources input, a0.h0, m0; targets q, k, v, m0, logits


def golden_pair(pair: str) -> tuple[EdgeScores, EdgeScores]:
    shape, which = pair.split("|")
    graph = build_graph(*map(int, shape.split("x")))
    known, new = (EdgeScores(graph, torch.from_numpy(SHIFTS[f"{shape}_{name}"])) for name in ("id", which))
    return known, new


def tiny_scores(**edges: float) -> EdgeScores:
    """Scores of the one-block graph; `input_q=1.0` stands for the edge from input to the query."""
    names = {"q": "a0.h0.q", "k": "a0.h0.k", "v": "a0.h0.v", "head": "a0.h0", "mlp": "m0"}
    values = torch.zeros(TINY.n_sources, TINY.n_targets, dtype=torch.float64)
    for edge, score in edges.items():
        source, target = (names.get(end, end) for end in edge.split("_"))
        values[TINY.edge_index(f"{source}->{target}")] = score
    return EdgeScores(TINY, values)


@pytest.mark.parametrize("pair", DISTANCES_OF)
def test_distances_and_maps_equal_the_golden_values(pair: str) -> None:
    known, new = golden_pair(pair)
    golden = DISTANCES_OF[pair]
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
        expected = SHIFTS[f"{pair.replace('|', '_')}_rankshift_{key}"]
        got = rank_shift_map(known, new, absolute=absolute).numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


# --------------------------------------------------------------------------------------- worked cases


def test_overlap_worked_by_hand() -> None:
    before = tiny_scores(input_q=5.0, input_mlp=-4.0, mlp_logits=3.0, head_mlp=1.0)
    after = tiny_scores(input_q=5.0, input_v=4.0, mlp_logits=3.0, input_logits=2.0)
    # by sign the negative edge is last, so the first tie at 0 or the head's edge comes in
    for weights in ("abs", "signed"):
        got = circuit_shift(before, after, distance="jaccard", top_k=3, weights=weights)
        assert got == pytest.approx(1 - 2 / 4)
    # paths: input -> m0 -> logits before; input -> logits is not chosen, input -> head leads nowhere
    assert circuit_shift(before, after, distance="jaccard", top_k=3, prune=True) == 1.0


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


@pytest.mark.parametrize("key", ["vit", "grouped"])
def test_graph_distances_equal_those_of_graphs_built_edge_by_edge(key: str) -> None:
    graph = GRAPHS[key]
    pair = random_scores(graph, 0), random_scores(graph, 1)
    whole = [literal_spectrum(each, graph.valid) for each in pair]
    assert circuit_shift(*pair, distance="laplacian") == pytest.approx(math.dist(*whole))
    times = [10 ** (-2 + 4 * at / 249) for at in range(250)]
    chosen = [literal_spectrum(each, each.top(12).mask) for each in pair]
    signatures = [[sum(math.exp(-t * x) for x in values) / len(values) for t in times] for values in chosen]
    assert circuit_shift(*pair, distance="netlsd", top_k=12) == pytest.approx(math.dist(*signatures))


# -------------------------------------------------------------------------------- undefined and refused


def test_undefined_distances_are_nan_with_a_warning() -> None:
    constant = EdgeScores(GRAPHS["vit"], torch.ones(GRAPHS["vit"].n_sources, GRAPHS["vit"].n_targets))
    with pytest.warns(DegenerateDataWarning, match="scores are constant"):
        assert math.isnan(circuit_shift(constant, random_scores(GRAPHS["vit"], 0)))
    nowhere = tiny_scores(input_q=1.0)
    with pytest.warns(DegenerateDataWarning, match="netlsd is undefined.*no chosen edge"):
        assert math.isnan(circuit_shift(nowhere, nowhere, distance="netlsd", top_k=1, prune=True))
    assert circuit_shift(nowhere, nowhere, distance="jaccard", top_k=1, prune=True) == 0.0


def test_circuits_that_do_not_compare_are_refused() -> None:
    pair = random_scores(GRAPHS["vit"], 0), random_scores(GRAPHS["vit"], 1)
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
        rank_shift_map(pair[0], random_scores(GRAPHS["grouped"], 0))
    a, b = (random_scores(GRAPHS["vit"], 0, model={"weight_hash": text}) for text in ("aa", "bb"))
    with pytest.raises(GraphMismatchError, match=r"different weights \(aa and bb\)"):
        circuit_shift(a, b)
    for setting in ("method", "objective", "ablation", "steps", "quadrature"):
        a, b = (random_scores(GRAPHS["vit"], 0, **{setting: value}) for value in ("one", "other"))
        with pytest.raises(InputError, match=f"{setting} is 'one' and 'other'; use the same"):
            circuit_shift(a, b)
        circuit_shift(a, random_scores(GRAPHS["vit"], 0))  # a record without the setting is not compared
    other = random_scores(GRAPHS["vit"], 0, method="eap", options={"estimator": "other", "orders": (1, 2)})
    with pytest.raises(InputError, match=r"options is \{'estimator': 'other'.*\} and \{\}; use the same"):
        circuit_shift(other, random_scores(GRAPHS["vit"], 0, method="eap"))
    read = random_scores(GRAPHS["vit"], 1, method="eap", options={"estimator": "other", "orders": [1, 2]})
    circuit_shift(other, read)  # a file holds lists
