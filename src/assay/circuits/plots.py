"""Pictures of circuits: where the scores are, and which edges are kept."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from assay.page.draw import INK, MUTED, OPPOSES, RULE, SUPPORTS, Matrix, axes_of, plot_matrix


if TYPE_CHECKING:
    from assay.circuits.certified import CertifiedCircuit
    from assay.circuits.circuit import Circuit
    from assay.circuits.node_scores import NodeScores
    from assay.circuits.scores import EdgeScores

MANY = 2_000  # edges; more are drawn as pixels in a vector picture
NAMED = 48  # edges with a row of their own


def plot_scores(scores: "EdgeScores", ax: Axes | None = None) -> Axes:
    """Draw the share of the summed |score| between each pair of layers, in per cent."""
    graph = scores.graph
    rows, columns = graph.valid.nonzero(as_tuple=True)
    places = graph.source_layer[rows].numpy(), graph.target_layer[columns].numpy() - 1
    values = scores.values.double().abs().reshape(-1, *graph.valid.shape).sum(0)[graph.valid]
    sums, joined = np.zeros((2, graph.n_layers + 1, graph.n_layers + 1))
    np.add.at(sums, places, values.numpy())
    np.add.at(joined, places, 1)  # a pair without any edge stays empty
    layers = [f"layer {layer}" for layer in range(graph.n_layers)]
    matrix = Matrix(
        rows=("input", *layers),
        columns=(*layers, "logits"),
        values=np.where(joined > 0, sums / (sums.sum() or 1.0), np.nan),
        row_title="layer that writes",
        column_title="layer that reads: % of the summed |score|",
    )
    return plot_matrix(matrix, ax, percent=True)


def plot_node_scores(scores: "NodeScores", ax: Axes | None = None) -> Axes:
    """Draw the signed score of each head and MLP, by layer; of neurons the sums. `input` is left out."""
    graph = scores.graph
    values = scores.values.double().reshape(graph.n_sources, -1).sum(1)[1:]
    matrix = Matrix(
        rows=(*(f"head {head}" for head in range(graph.n_heads)), *["MLP"] * graph.n_mlps),
        columns=tuple(f"layer {layer}" for layer in range(graph.n_layers)),
        values=values.view(graph.n_layers, -1).T.numpy(),
        row_title="node",
        column_title="layer",
    )
    return plot_matrix(matrix, ax)


def plot_circuit(circuit: "Circuit", ax: Axes | None = None) -> Axes:
    """Draw the nodes of a circuit, layer by layer upwards from the input, and its edges between them."""
    graph = circuit.graph
    middle, mlp = (graph.n_heads - 1) / 2, float(graph.n_heads)
    places = {"input": (middle, 0.0), "logits": (middle, graph.n_layers + 1.0)}
    for layer in range(graph.n_layers):
        places |= {f"a{layer}.h{head}": (float(head), layer + 0.8) for head in range(graph.n_heads)}
        places |= {f"m{layer}": (mlp, layer + 1.2)} if graph.mlps else {}
    ax = axes_of(ax, 1.6 + 0.36 * (mlp + 1.0), 1.1 + 0.42 * (graph.n_layers + 1))
    ends = circuit.to_networkx()
    heads_of = ends.nodes(data="heads")  # of a key/value head that several share
    edges = {(one, reader) for one, other in ends.edges() for reader in heads_of[other] or (other,)}
    lines = LineCollection(
        [(places[one], places[other]) for one, other in sorted(edges)],
        colors=SUPPORTS,
        linewidths=0.9,
        alpha=min(0.6, max(0.08, 12 / (len(edges) or 1) ** 0.5)),
        zorder=2,
    )
    lines.set_rasterized(len(edges) > MANY)
    ax.add_collection(lines)
    names = set(circuit.nodes())
    used = [place for name, place in places.items() if name in names]  # in the order of the layers
    unused = [place for name, place in places.items() if name not in names]
    for points, colour, size, order in ((unused, RULE, 3.0, 1), (used, INK, 4.5, 3)):
        if points:
            ax.plot(*zip(*points, strict=True), "o", color=colour, markersize=size, zorder=order)
    ax.set_xlim(-0.7, mlp + 0.7)
    ax.set_ylim(-0.5, graph.n_layers + 1.5)
    nodes = {float(head): str(head) for head in range(0, graph.n_heads, max(1, graph.n_heads // 12))}
    nodes |= {mlp: "MLP"} if graph.mlps else {}
    ax.set_xticks(list(nodes), list(nodes.values()) if graph.mlps else None)
    layers = [str(layer) for layer in range(graph.n_layers)]
    ax.set_yticks(range(graph.n_layers + 2), ["input", *layers, "logits"])
    ax.set_xlabel(f"head; {circuit.n_items:,} {circuit.level}s")
    ax.set_ylabel("layer")
    return ax


def plot_certified(certified: "CertifiedCircuit", ax: Axes | None = None) -> Axes:
    """Draw how often each included or open edge was selected, with its interval; the most frequent on top."""
    frame = certified.to_frame().head(NAMED)
    n = len(frame)
    ax = axes_of(ax, 6.6, 1.0 + 0.22 * max(3, n))
    ax.axvline(0.5, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2.5)))
    for place, row in enumerate(frame.to_dict("records")):
        colour = SUPPORTS if row["decision"] == "included" else OPPOSES
        ax.plot([row["low"], row["high"]], [place] * 2, color=colour, linewidth=2.0, alpha=0.55)
        face = colour if row["decision"] == "included" else "none"
        ax.plot(row["frequency"], place, "o", color=colour, markersize=4.5, markerfacecolor=face)
    ax.set_yticks(range(n), frame["edge"].tolist())
    ax.set_ylim(max(n, 1) - 0.5, -0.5)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel(
        f"share of {certified.resamples:,} resamples that select the edge (filled: included, open: abstained)"
    )
    return ax
