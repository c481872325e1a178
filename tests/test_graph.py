import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError, UnknownNameError
from assay.graph import Graph, build_graph


shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())


def literal_edges(graph: Graph) -> set[tuple[str, str]]:
    """Edges by the definition: everything written before a target reads."""
    written, edges = ["input"], set()
    for layer in range(graph.n_layers):
        heads = [f"a{layer}.h{head}" for head in range(graph.n_heads)]
        targets = [f"a{layer}.h{head}.q" for head in range(graph.n_heads)]
        shared = "kv" if graph.n_kv_heads < graph.n_heads else "h"
        targets += [f"a{layer}.{shared}{kv}.{channel}" for channel in "kv" for kv in range(graph.n_kv_heads)]
        edges |= {(source, target) for source in written for target in targets}
        read_by_mlp = written if graph.parallel else written + heads
        if graph.mlps:
            edges |= {(source, f"m{layer}") for source in read_by_mlp}
        written = written + heads + ([f"m{layer}"] if graph.mlps else [])
    return edges | {(source, "logits") for source in written}


@given(shapes)
def test_edges_are_those_of_the_definition(shape: tuple[int, int, int, bool, bool]) -> None:
    layers, groups, per_group, parallel, mlps = shape
    graph = build_graph(layers, groups * per_group, groups, parallel=parallel, mlps=mlps)
    found = {(graph.sources[row], graph.targets[column]) for row, column in graph.valid.nonzero().tolist()}
    assert found == literal_edges(graph)
    assert graph.n_edges == len(found)
    assert (graph.n_sources, graph.n_targets) == (len(graph.sources), len(graph.targets))


@pytest.mark.parametrize(
    ("layers", "heads", "options", "n_edges"),
    [
        (12, 12, {}, 32491),  # GPT-2 small and ViT-B/16
        (3, 3, {}, 172),
        (4, 4, {}, 479),
        (4, 8, {"mlps": False}, 1281),  # the docstring model
    ],
)
def test_published_edge_counts(layers: int, heads: int, options: dict[str, bool], n_edges: int) -> None:
    assert build_graph(layers, heads, **options).n_edges == n_edges


def test_rows_and_columns_follow_the_published_formulas() -> None:
    graph = build_graph(5, 3)
    for layer in range(5):
        for head in range(3):
            assert graph.source_index(f"a{layer}.h{head}") == 1 + layer * 4 + head
            for place, channel in enumerate("qkv"):
                assert graph.target_index(f"a{layer}.h{head}.{channel}") == layer * 10 + place * 3 + head
        assert graph.source_index(f"m{layer}") == 1 + layer * 4 + 3
        assert graph.target_index(f"m{layer}") == layer * 10 + 9
    assert graph.source_layer.tolist() == [0] + [layer + 1 for layer in range(5) for _ in range(4)]
    assert graph.target_layer.tolist() == [layer + 1 for layer in range(5) for _ in range(10)] + [6]


def test_key_and_value_heads_serve_their_group() -> None:
    graph = build_graph(1, 4, 2)
    served = graph.feeds[graph.target_index("a0.kv1.k")].nonzero().squeeze(1).tolist()
    assert [graph.sources[row] for row in served] == ["a0.h2", "a0.h3"]
    assert graph.targets[:8] == (
        *("a0.h0.q", "a0.h1.q", "a0.h2.q", "a0.h3.q"),
        *("a0.kv0.k", "a0.kv1.k", "a0.kv0.v", "a0.kv1.v"),
    )


def test_shared_keys_have_one_spelling() -> None:
    grouped, plain = build_graph(2, 4, 2), build_graph(2, 4)
    assert grouped.edge_name(*grouped.edge_index("m0->a1.kv1.v")) == "m0->a1.kv1.v"
    with pytest.raises(UnknownNameError, match=r"'a1\.h1\.v'.*a1\.kv1\.v"):
        grouped.edge_index("m0->a1.h1.v")
    with pytest.raises(UnknownNameError, match=r"'a1\.kv1\.v'"):
        plain.edge_index("m0->a1.kv1.v")


@pytest.mark.parametrize(
    "name",
    [
        "a1.h2->a3.h0.q",
        "a1.h2->a3.h0<q>",
    ],
)
def test_both_spellings_name_one_edge(name: str) -> None:
    graph = build_graph(4, 4)
    assert graph.edge_name(*graph.edge_index(name)) == "a1.h2->a3.h0.q"


def test_unknown_node_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown target 'a1.h9.q'.*did you mean"):
        build_graph(2, 4).edge_index("a0.h0->a1.h9.q")


def test_edge_against_the_order_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="m1 writes after a0.h0.q reads"):
        build_graph(2, 4).edge_index("m1->a0.h0.q")


def test_edge_without_arrow_is_refused() -> None:
    with pytest.raises(InputError, match="has no '->'"):
        build_graph(2, 4).edge_index("m1")


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 0, None), (2, 4, 3)])
def test_impossible_shapes_are_refused(shape: tuple[int, int, int | None]) -> None:
    with pytest.raises(InputError, match="no such transformer"):
        build_graph(*shape)


def test_fingerprint_tells_topologies_apart() -> None:
    graphs = [
        build_graph(2, 4),
        build_graph(2, 4, 2),
        build_graph(2, 4, parallel=True),
        build_graph(2, 4, mlps=False),
    ]
    assert len({graph.fingerprint for graph in graphs}) == 4
    assert build_graph(2, 4).fingerprint == graphs[0].fingerprint
    assert torch.equal(build_graph(2, 4).valid, graphs[0].valid)
