"""Graph files of EAP-IG (see `graph_files`): scores and circuits that other tools wrote, or read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.circuits.graph_files import graph_of, read_content, their_edges
from assay.circuits.scores import EdgeScores
from assay.core.errors import GraphMismatchError, InputError, check_name
from assay.graph import Graph, build_graph


SIGN = "positive: keep"
SHARED = ("refuse", "any", "all")


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphFile:
    """What an EAP-IG file holds.

    Attributes:
        graph: The graph asked for, else the file's own (a k and v input per query head).
        scores: The edges' scores, positive: keep; None if the file has none.
        circuit: The edges marked as part of the graph; None if none is marked.
        d_model: Width that the file states, or None.
        provenance: Where it comes from, JSON-able.
    """

    graph: Graph
    scores: EdgeScores | None
    circuit: Circuit | None
    d_model: int | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


# ---- reading --------------------------------------------------------------------------------------------


def read_eap_ig(
    path: str | Path, graph: Graph | None = None, *, shared: str = "refuse", partial: bool = False
) -> GraphFile:
    """Scores and circuit of a file that EAP-IG or MIB wrote.

    Args:
        path: A `.json` file, or a `.pt` file that holds nothing but tensors and plain values.
        graph: The graph they must fit, `model.graph`. Needed for grouped-query models: such a file has k and
            v edges per query head, and those of a group are joined into the graph's one: scores add up.
            Default: the graph that the file describes.
        shared: What a circuit keeps where the copies of a joined edge disagree: `refuse` the file, or keep
            the edge if `any` or if `all` of them are kept.
        partial: Accept a file without all edges; missing ones score 0 and are not kept.

    Returns:
        Scores in float64 if a value is not a float32 number, else in float32: a file is read back exactly.

    Raises:
        FileFormatError: A truncated or foreign file, a node- or neuron-level one, missing edges, or a value
            of the wrong kind; the first offender is named.
        UnsafeFileError: A torch file that would run code when loaded.
        UnknownNameError: The first edge or node that the graph does not have.
        NonFiniteError: The first edge whose score is NaN or infinite.
        GraphMismatchError: A file of another model shape.
        InputError: Copies of a joined edge that disagree.

    References:
        Hanna et al. (2024), arXiv:2403.17806; Mueller et al. (2025), arXiv:2504.13151.
    """
    path = Path(path)
    check_name("rule for shared edges", shared, SHARED)
    content = read_content(path)
    theirs, d_model = graph_of(content.config, path)
    _check_shape(theirs, graph, path)
    scores, kept = content.matrices(theirs, path, partial=partial)
    ours = theirs if graph is None else graph
    provenance = {"format": "eap-ig", "file": path.name, "sign": SIGN, "method": "imported"}
    return GraphFile(
        graph=ours,
        scores=_joined_scores(scores, theirs, ours, provenance),
        circuit=_joined_circuit(kept, theirs, ours, shared, path, provenance),
        d_model=d_model,
        provenance=provenance,
    )


# ---- graphs ---------------------------------------------------------------------------------------------


def _check_shape(theirs: Graph, ours: Graph | None, path: Path) -> None:
    if ours is None:
        return
    if not ours.mlps:
        raise GraphMismatchError(
            f"{path}: EAP-IG graphs have MLPs, but the requested graph is attention-only"
        )
    _check_one_mlp(ours)
    shapes = [(each.n_layers, each.n_heads, each.parallel) for each in (theirs, ours)]
    if shapes[0] != shapes[1]:
        described = ["{} layers of {} heads, parallel {}".format(*shape) for shape in shapes]
        raise GraphMismatchError(
            f"{path} describes {described[0]}, but the requested graph has {described[1]}. Give the graph "
            "of the model that the file was made with"
        )


def _check_one_mlp(ours: Graph) -> None:
    if ours.experts:
        raise GraphMismatchError(
            f"EAP-IG graphs have one MLP per block, but this graph has {ours.experts} experts; use scores "
            "and circuits of the model loaded with experts='together'"
        )


def copies_of(theirs: Graph, ours: Graph) -> Tensor:
    """Column of `ours` that each column of `theirs` is a copy of."""
    group = ours.n_heads // ours.n_kv_heads
    columns = []
    for layer in range(ours.n_layers):
        for channel in "qkv":
            share = 1 if channel == "q" else group
            columns += [ours.channel_target(layer, channel, head // share) for head in range(ours.n_heads)]
        columns.append(ours.mlp_target(layer))
    columns.append(ours.n_targets - 1)
    if len(columns) != theirs.n_targets:
        raise GraphMismatchError(f"{theirs.n_targets} targets do not match {ours.n_targets}")
    return torch.tensor(columns)


def _joined_scores(
    scores: Float64[Tensor, "S R1"] | None, theirs: Graph, ours: Graph, provenance: dict[str, Any]
) -> EdgeScores | None:
    if scores is None:
        return None
    joined = torch.zeros(ours.valid.shape, dtype=torch.float64)
    joined.index_add_(1, copies_of(theirs, ours), scores)
    narrow = joined.float()
    exact = bool((narrow.double() == joined).all())
    return EdgeScores(ours, narrow if exact else joined, provenance=provenance)


def _joined_circuit(
    kept: Bool[Tensor, "S R1"] | None,
    theirs: Graph,
    ours: Graph,
    shared: str,
    path: Path,
    provenance: dict[str, Any],
) -> Circuit | None:
    if kept is None:
        return None
    columns = copies_of(theirs, ours)
    copies = torch.zeros(ours.n_targets).index_add_(0, columns, torch.ones(len(columns)))
    count = torch.zeros(ours.valid.shape).index_add_(1, columns, kept.float())
    split = (count > 0) & (count < copies)
    if shared == "refuse" and bool(split.any()):
        row, column = split.nonzero()[0].tolist()
        raise InputError(
            f"{path} keeps {int(count[row, column])} of the {int(copies[column])} copies of "
            f"{ours.edge_name(row, column)}, which is a single edge here ({int(split.sum())} edges are "
            "split in this way); read it with shared='any' or shared='all', or select a circuit from the "
            "scores"
        )
    mask = count == copies if shared == "all" else count > 0
    return Circuit(
        graph=ours, mask=mask & ours.valid, provenance={**provenance, "split_edges": int(split.sum())}
    )


# ---- writing --------------------------------------------------------------------------------------------


def write_eap_ig(
    what: EdgeScores | Circuit,
    path: str | Path,
    *,
    circuit: Circuit | None = None,
    d_model: int | None = None,
) -> Path:
    """Write scores, a circuit, or both as a JSON file that EAP-IG's `Graph.from_json` reads.

    Args:
        what: Scores, or a circuit.
        path: The file, replaced only once the new one is complete.
        circuit: With scores: the edges to mark as part of the graph. Default: none are, as EAP-IG leaves it
            after attribution.
        d_model: Width of the model, which EAP-IG's own reader asks for; left out by default.

    Raises:
        GraphMismatchError: For an attention-only graph, which the format cannot describe, or a circuit of
            another graph than the scores'.
        OutputError: If the file cannot be written.

    Notes:
        A circuit without scores gets the score 1 for kept edges and 0 for others: EAP-IG's reader wants one.
        An edge into a k or v head that g query heads share becomes g edges of 1/g of its score, which
        `read_eap_ig(path, graph)` adds up again; in a ranking over EAP-IG's edges they stand g times lower.
    """
    scores = what if isinstance(what, EdgeScores) else None
    kept = what if isinstance(what, Circuit) else circuit
    if isinstance(what, Circuit) and circuit is not None:
        raise InputError("give a circuit either as the first argument or with scores, not twice")
    document = graph_document(scores, kept, d_model=d_model)
    return write_atomically(Path(path), json.dumps(document, allow_nan=False).encode())


def graph_document(scores: EdgeScores | None, kept: Circuit | None, *, d_model: int | None) -> dict[str, Any]:
    """The JSON document of scores, a circuit, or both; without scores an edge is scored 1 or 0."""
    given = scores if scores is not None else kept
    if given is None:
        raise InputError("nothing to write; give scores or a circuit")
    ours = given.graph
    if not ours.mlps:
        raise GraphMismatchError(
            "EAP-IG graphs have an MLP in every block, so an attention-only graph cannot be written"
        )
    _check_one_mlp(ours)
    if kept is not None and kept.graph.fingerprint != ours.fingerprint:
        raise GraphMismatchError(
            f"the circuit belongs to the graph {kept.graph.describe()}, the scores to {ours.describe()}"
        )
    theirs = build_graph(ours.n_layers, ours.n_heads, parallel=ours.parallel)
    columns = copies_of(theirs, ours)
    mask = torch.zeros_like(theirs.valid) if kept is None else kept.mask[:, columns]
    if scores is not None:
        copies = torch.zeros(ours.n_targets, dtype=torch.float64)
        copies.index_add_(0, columns, torch.ones(len(columns), dtype=torch.float64))
        values = (scores.values.double() / copies)[:, columns]
    else:
        values = mask.double()
    config: dict[str, Any] = {
        "n_layers": ours.n_layers,
        "n_heads": ours.n_heads,
        "parallel_attn_mlp": ours.parallel,
    }
    if d_model is not None:
        config["d_model"] = d_model
    nodes = set() if kept is None else set(kept.nodes())
    score_rows, mask_rows = values.tolist(), mask.tolist()
    return {
        "cfg": config,
        "nodes": {
            name: {"in_graph": name in nodes or name == "logits"} for name in (*theirs.sources, "logits")
        },
        "edges": {
            name: {"score": score_rows[row][column], "in_graph": mask_rows[row][column]}
            for name, (row, column) in their_edges(theirs).items()
        },
    }
