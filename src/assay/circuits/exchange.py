"""Files of other tools: scores and circuits of EAP-IG and MIB, read and written, and graphs for Neuronpedia.

An EAP-IG file (Hanna et al. 2024) is one JSON document

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, ..., "logits": {"in_graph": true}},
     "edges": {"input->a0.h0<q>": {"score": 0.25, "in_graph": true}, ...}}

or a torch file of the same matrices. Older files hold a bare flag per node, or a bare score or flag per edge.
At node level nodes have a "score", at neuron level "neurons_scores" and the flags "neurons": of `input` and
an MLP `[d_model]`, of a head `[n_heads, d_model]`, all heads of its layer; the last such block counts.
The graph is that of `assay.graph` with one k and one v input per query head, whatever the model's grouping.

Submissions to MIB (Mueller et al. 2025) are folders of such files, `task_model/importances.json`.
"""

import io
import json
import pickle
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from assay.circuits.circuit import Circuit, edges_among, reader_of
from assay.circuits.files import MOST_CELLS, check_graph, write_atomically
from assay.circuits.node_scores import NodeScores, Scores
from assay.circuits.scores import EdgeScores
from assay.core.errors import AssayWarning, FileFormatError, GraphMismatchError, InputError, UnsafeFileError
from assay.core.record import library_version
from assay.core.untrusted import malformed, parse_json
from assay.graph import Graph, build_graph


_FORM = "a graph file of EAP-IG, with cfg, nodes and edges"
_SHOWN = 80  # of a name in a message: hostile files hold long ones

# What nodes and neurons have: the key in torch files, and that of a node in JSON.
_OF_NODES = {"nodes_scores": "score", "neurons_scores": "neurons_scores", "neurons_in_graph": "neurons"}

Matrices = tuple[Float64[Tensor, "S R"] | None, Bool[Tensor, "S R"] | None]


class GraphFile(NamedTuple):
    """What an EAP-IG file holds.

    Attributes:
        graph: The graph asked for, else the file's own (a k and v input per query head).
        scores: The edges' scores, positive: keep; None if the file has none, or nodes' scores and zeros.
        circuit: What is marked as part of the graph: edges, or nodes or neurons where the file has scores or
            flags of these; None if nothing is marked.
        node_scores: The nodes' scores, NaN where one has none; None if the file has none.
        neuron_scores: Those of neurons.
    """

    graph: Graph
    scores: EdgeScores | None
    circuit: Circuit | None
    node_scores: NodeScores | None = None
    neuron_scores: NodeScores | None = None


# ---- EAP-IG: reading ------------------------------------------------------------------------------------


def read_eap_ig(path: str | Path, graph: Graph | None = None) -> GraphFile:
    """Scores and circuit of a file that EAP-IG or MIB wrote.

    Args:
        path: A `.json` file, or a `.pt` file that holds nothing but tensors and plain values.
        graph: The graph they must fit, `model.graph`. Needed for grouped-query models: such a file has k and
            v edges per query head, and those of a group are joined into the graph's one: scores add up.
            An edge is in the circuit if any of its copies is; a warning, and `split_edges` of the circuit's
            provenance, count those whose copies disagree. Default: the graph that the file describes.

    Returns:
        Scores in float64 if a value is not a float32 number, else in float32: a file is read back exactly.

    Raises:
        FileFormatError: A truncated or foreign file, missing edges, a value of the wrong kind, or a circuit
            of neurons that cuts edges among its nodes, too.
        UnsafeFileError: A torch file that would run code when loaded.
        UnknownNameError: The first edge or node that the graph does not have.
        NonFiniteError: The first edge whose score is NaN or infinite, or node whose score is infinite.
        GraphMismatchError: A file of another model shape.

    References:
        Hanna et al. (2024), arXiv:2403.17806; Mueller et al. (2025), arXiv:2504.13151.
    """
    path = Path(path)
    with malformed(path, _FORM):
        if not path.is_file():
            raise FileFormatError(f"{path} does not exist; expected {_FORM}, .json or .pt")
        torch_file = path.suffix == ".pt"
        document = _torch_document(path) if torch_file else parse_json(path.read_bytes())
        config = document["cfg"]
        theirs = build_graph(
            config["n_layers"], config["n_heads"], parallel=config.get("parallel_attn_mlp", False)
        )
        if theirs.n_sources * theirs.n_targets > MOST_CELLS:
            raise ValueError(f"cfg describes {theirs.describe()}, more than any file this reads can hold")
        scores, kept = (_torch_matrices if torch_file else _json_matrices)(document, theirs)
        flags, of_nodes = (_torch_nodes if torch_file else _json_nodes)(document, theirs)
    ours = graph or theirs
    if not ours.mlps or _unshared(ours) != theirs:
        text = f"{path} describes {theirs.describe()}, but the requested graph is {ours.describe()}"
        raise GraphMismatchError(f"{text}. Give the graph of the model that the file was made with")
    provenance = {"format": "eap-ig", "file": path.name, "sign": "positive: keep", "method": "imported"}
    edge_scores = circuit = None
    found: dict[str, NodeScores] = {}
    for kind in ("nodes", "neurons"):
        if (of_kind := of_nodes.get(f"{kind}_scores")) is not None:
            found[kind] = NodeScores(ours, _exact(of_kind), provenance={**provenance, "level": kind[:-1]})
    if scores is not None and (not found or bool(scores.any())):
        values = torch.zeros(ours.valid.shape, dtype=torch.float64).index_add_(1, copies_of(ours), scores)
        edge_scores = EdgeScores(ours, _exact(values), provenance=provenance)
    if kept is not None and bool(kept.any()):
        mask, split = _joined(kept, ours)
        if split:
            text = f"{path} keeps some of the copies of {split} edges that are single ones here"
            warnings.warn(f"{text}; the circuit keeps them", AssayWarning, stacklevel=2)
        circuit = Circuit(graph=ours, mask=mask, provenance={**provenance, "split_edges": split})
        cells = of_nodes.get("neurons_in_graph", flags if "nodes" in found else None)
        if cells is not None:
            cells = (cells != 0) & flags.view(-1, *[1] * (cells.ndim - 1))
            whole = not bool((edges_among(ours, cells) & ~mask).any())
            if whole and bool(cells.any()):
                circuit = Circuit.from_cells(ours, cells, provenance)
            elif cells.ndim == 2:
                raise FileFormatError(
                    f"{path} cuts edges among nodes with kept neurons; give one or the other"
                )
    return GraphFile(ours, edge_scores, circuit, found.get("nodes"), found.get("neurons"))


def _exact(values: Tensor) -> Tensor:
    """In float32 where that holds the same numbers."""
    narrow = values.float()
    return narrow if torch.equal(narrow.double().nan_to_num(), values.nan_to_num()) else values


def _block(graph: Graph, name: str) -> int | slice:
    """Rows whose neurons a file lists under a node: of a head those of all heads of its layer."""
    row = graph.source_index(name[:_SHOWN])
    if not name.startswith("a"):
        return row
    first = graph.head_source(int(name[1:].partition(".")[0]))
    return slice(first, first + graph.n_heads)


def _json_nodes(document: Mapping[str, Any], theirs: Graph) -> tuple[Tensor, dict[str, Tensor]]:
    """Flags of the nodes, and their scores and neurons as far as the file has some."""
    flags, of_nodes = torch.zeros(theirs.n_sources, dtype=torch.bool), dict[str, Tensor]()
    for name, node in document["nodes"].items():
        if name == "logits":
            continue
        row, node = theirs.source_index(name[:_SHOWN]), node if isinstance(node, dict) else {"in_graph": node}
        flags[row] = bool(node.get("in_graph"))
        for key, theirs_key in _OF_NODES.items():
            if theirs_key not in node:
                continue
            width = [] if key == "nodes_scores" else [_width(document, theirs)]
            unset = 0.0 if key == "neurons_in_graph" else torch.nan
            if key not in of_nodes:
                of_nodes[key] = torch.full((len(flags), *width), unset, dtype=torch.float64)
            values = of_nodes[key]
            place = _block(theirs, name) if width else row
            part = torch.tensor(node[theirs_key], dtype=torch.float64)
            if part.shape != values[place].shape:
                shape = tuple(values[place].shape)
                raise ValueError(f"{theirs_key} of {name} has shape {tuple(part.shape)}, expected {shape}")
            values[place] = part
    return flags, of_nodes


def _width(document: Mapping[str, Any], theirs: Graph) -> int:
    width: int = document["cfg"]["d_model"]
    if theirs.n_sources * width > MOST_CELLS:
        raise ValueError(f"cfg describes {width} neurons per node, more than any file this reads can hold")
    return width


def _torch_nodes(document: Mapping[str, Any], theirs: Graph) -> tuple[Tensor, dict[str, Tensor]]:
    """Flags of the nodes, and their scores and neurons as far as the file has some."""
    rows = torch.tensor([theirs.source_index(str(name)) for name in document["src_nodes"]])

    def ordered(values: Tensor) -> Tensor:
        filled = torch.zeros(theirs.n_sources, *values.shape[1:], dtype=torch.float64)
        filled[rows] = values.double()
        return filled

    of_nodes = {key: ordered(document[key]) for key in _OF_NODES if document.get(key) is not None}
    return ordered(document["nodes_in_graph"]) != 0, of_nodes


def _json_matrices(document: Mapping[str, Any], theirs: Graph) -> Matrices:
    """Scores and flags on the file's graph; None where no edge has one."""
    index = their_edges(theirs)
    places, scores, kept = [], [], []
    for name, value in document["edges"].items():
        places.append(index[name] if name in index else theirs.edge_index(name[:_SHOWN]))
        if not isinstance(value, dict):  # of an older file
            value = {"in_graph": value} if isinstance(value, bool) else {"score": value}
        scores.append(value.get("score"))
        kept.append(value.get("in_graph"))
    if missing := set(index.values()) - set(places):
        first = theirs.edge_name(*min(missing))
        raise ValueError(f"{len(missing)} of its {len(index)} edges are missing, the first is {first!r}")

    def matrix(values: list[Any], dtype: torch.dtype) -> Tensor | None:
        if all(value is None for value in values):
            return None
        filled = torch.zeros(theirs.valid.shape, dtype=dtype)
        filled[tuple(zip(*places, strict=True))] = torch.tensor(values, dtype=dtype)
        return filled

    return matrix(scores, torch.float64), matrix(kept, torch.bool)


def _torch_document(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} is rejected: it holds more than tensors and plain values, or is not a torch file, so "
            "loading it could run code. Export it as JSON (EAP-IG: graph.to_json)"
        ) from error
    except (EOFError, OSError) as error:
        raise ValueError(f"it may be truncated: {error}") from error
    return document


def _torch_matrices(document: Mapping[str, Any], theirs: Graph) -> Matrices:
    """Scores and flags on the file's graph; its matrices hold anything where the graph has no edge."""
    rows = torch.tensor([theirs.source_index(str(name)) for name in document["src_nodes"]])
    columns = torch.tensor([theirs.target_index(str(name)) for name in document["dst_nodes"]])

    def matrix(key: str, dtype: torch.dtype) -> Tensor:
        filled = torch.zeros(theirs.valid.shape, dtype=dtype)
        filled[rows[:, None], columns] = document[key].to(dtype)
        return filled.masked_fill(~theirs.valid, 0)

    return matrix("edges_scores", torch.float64), matrix("edges_in_graph", torch.bool)


def their_edges(graph: Graph) -> dict[str, tuple[int, int]]:
    """Row and column of each edge by EAP-IG's name, `input->a0.h3<q>`, in edge order."""
    targets = _their_targets(graph)
    edges = graph.valid.nonzero().tolist()
    return {f"{graph.sources[row]}->{targets[column]}": (row, column) for row, column in edges}


def _their_targets(graph: Graph) -> list[str]:
    return [re.sub(r"\.([qkv])$", r"<\1>", name) for name in graph.targets]


def _unshared(ours: Graph) -> Graph:
    """The graph with a k and v input per query head."""
    return build_graph(ours.n_layers, ours.n_heads, parallel=ours.parallel)


def copies_of(ours: Graph) -> Int[Tensor, " R"]:
    """Column of `ours` that each column of the graph with a k and v input per query head is a copy of."""
    group = ours.n_heads // ours.n_kv_heads

    def shared(name: str) -> str:
        head = re.fullmatch(r"(a\d+)\.h(\d+)\.([kv])", name)
        return name if group == 1 or head is None else f"{head[1]}.kv{int(head[2]) // group}.{head[3]}"

    return torch.tensor([ours.target_index(shared(name)) for name in _unshared(ours).targets])


def _joined(kept: Bool[Tensor, "S R"], ours: Graph) -> tuple[Bool[Tensor, "S own"], int]:
    """Edges of `ours` of which a copy is kept, and how many have copies that disagree."""
    columns = copies_of(ours)
    count = torch.zeros(ours.valid.shape, dtype=torch.long).index_add_(1, columns, kept.long())
    split = (count > 0) & (count < columns.bincount(minlength=ours.n_targets))
    return (count > 0) & ours.valid, int(split.sum())


# ---- EAP-IG: writing ------------------------------------------------------------------------------------


def write_eap_ig(
    what: Scores | Circuit,
    path: str | Path,
    *,
    circuit: Circuit | None = None,
    d_model: int | None = None,
) -> Path:
    """Write scores, a circuit, or both as a file that EAP-IG's `Graph.from_json` or `from_pt` reads.

    Args:
        what: Scores of edges, nodes or neurons, or a circuit of these.
        path: The file, replaced only once the new one is complete: `.pt`, or JSON under any other ending.
        circuit: With scores: the edges to mark as part of the graph. Default: none are, as EAP-IG leaves it
            after attribution.
        d_model: Width of the model, which EAP-IG's own reader asks for; left out by default where there are
            no neurons.

    Raises:
        GraphMismatchError: For an attention-only graph, which the format cannot describe, or a circuit of
            another graph than the scores'.
        OutputError: If the file cannot be written.

    Notes:
        A circuit without scores gets the score 1 for kept edges (and nodes) and 0 for others: EAP-IG's reader
        wants one. Edges of scored nodes and neurons get 0, and nodes without a score none.
        An edge into a k or v head that g query heads share becomes g edges of 1/g of its score, which
        `read_eap_ig(path, graph)` adds up again; in a ranking over EAP-IG's edges they stand g times lower.
    """
    ours, kept = what.graph, what if isinstance(what, Circuit) else circuit
    if not ours.mlps:
        raise GraphMismatchError("EAP-IG graphs have MLPs, so an attention-only graph cannot be written")
    if kept is not None:
        check_graph("the circuit", kept.graph, ours)
    theirs = _unshared(ours)
    columns = copies_of(ours)
    mask = torch.zeros_like(theirs.valid) if kept is None else kept.mask[:, columns]
    values, of_nodes = mask.double(), dict[str, Tensor]()
    if isinstance(what, EdgeScores):
        values = (what.values.double() / columns.bincount(minlength=ours.n_targets))[:, columns]
    elif isinstance(what, NodeScores):
        values, of_nodes = 0 * values, {f"{what.level}s_scores": what.values}
    elif what.level == "node":
        of_nodes = {"nodes_scores": what.items.double()}
    if kept is not None and kept.level == "neuron":
        of_nodes["neurons_in_graph"] = kept.items
    widths = {each.shape[1] for each in of_nodes.values() if each.ndim == 2}
    widths |= set() if d_model is None else {d_model}
    if len(widths) > 1:
        raise InputError(f"scores, circuit and d_model are of nodes with {sorted(widths)} neurons; give one")
    d_model = widths.pop() if widths else None
    config = {"n_layers": ours.n_layers, "n_heads": ours.n_heads, "parallel_attn_mlp": ours.parallel}
    config |= {} if d_model is None else {"d_model": d_model}
    nodes = {"logits"} if kept is None else {*kept.nodes(), "logits"}
    if Path(path).suffix == ".pt":
        content = {
            "cfg": config,
            "src_nodes": list(theirs.sources),
            "dst_nodes": _their_targets(theirs),
            "edges_scores": values,
            "edges_in_graph": mask,
            "nodes_in_graph": torch.tensor([name in nodes for name in theirs.sources]),
            **of_nodes,
        }
        torch.save(content, written := io.BytesIO())
        return write_atomically(Path(path), written.getvalue())
    score_rows, mask_rows = values.tolist(), mask.tolist()
    document = {
        "cfg": config,
        "nodes": {name: _json_node(theirs, name, name in nodes, of_nodes) for name in theirs.sources}
        | {"logits": {"in_graph": True}},
        "edges": {
            name: {"score": score_rows[row][column], "in_graph": mask_rows[row][column]}
            for name, (row, column) in their_edges(theirs).items()
        },
    }
    return write_atomically(Path(path), json.dumps(document).encode())  # NaN: a neuron without a score


def _json_node(graph: Graph, name: str, in_graph: bool, of_nodes: Mapping[str, Tensor]) -> dict[str, Any]:
    node: dict[str, Any] = {"in_graph": in_graph}
    for key, values in of_nodes.items():
        part = values[graph.source_index(name) if values.ndim == 1 else _block(graph, name)]
        if not bool(part.isnan().all()):
            node[_OF_NODES[key]] = part.tolist()
    return node


# ---- Neuronpedia ----------------------------------------------------------------------------------------


def scored_edges(circuit: Circuit, scores: EdgeScores | None = None) -> list[tuple[str, str, float]]:
    """Source, target and score of the edges of a circuit, the strongest first; without scores each weighs 1.

    Of edges at spans, those kept at some span are listed. Ablating an edge of a positive score hurts.

    Raises:
        GraphMismatchError: If the scores belong to another graph.
        InputError: For a circuit without edges, and scores of nodes or neurons.
    """
    graph, mask = circuit.graph, circuit.anywhere().mask
    if scores is not None:
        if scores.level != "edge":
            raise InputError(f"an export takes scores of edges; these are of {scores.level}s")
        check_graph("the table of scores", scores.graph, graph)
    if circuit.n_edges == 0:
        raise InputError("the circuit keeps no edge, so there is nothing to export")
    values = mask.double() if scores is None else scores.total().values
    places = mask.nonzero().tolist()
    edges = [
        (graph.sources[row], graph.targets[column], float(values[row, column])) for row, column in places
    ]
    return sorted(edges, key=lambda edge: -abs(edge[2]))


def attribution_graph(
    circuit: Circuit, *, scores: EdgeScores | None = None, model: str = "", tokens: Sequence[str] = ()
) -> dict[str, Any]:
    """The circuit as an attribution graph of Neuronpedia: `metadata`, `qParams`, `nodes` and `links`.

    Notes:
        The format has one link between two nodes, so the scores of the query, key and value edges between
        them are summed. Its nodes stand at token positions; circuits of edges have none, so the input stands
        at the first and everything else at the last token. Heads have the feature type `attention head`.

    References:
        The JSON schema that Neuronpedia publishes for uploads (hijohnnylin/neuronpedia, graph-schema.json).
    """
    edges = scored_edges(circuit, scores)
    ends = {end for source, target, _ in edges for end in (source, reader_of(target))}
    nodes = _nodes(circuit.graph, ends, max(0, len(tokens) - 1))
    links: dict[tuple[str, str], float] = {}
    for source, target, score in edges:
        pair = nodes[source]["node_id"], nodes[reader_of(target)]["node_id"]
        links[pair] = links.get(pair, 0.0) + score
    info = {
        "description": f"Circuit of {len(edges):,} edges among heads and MLPs.",
        "generator": {"name": "assay", "version": library_version()},
    }
    return {
        "metadata": {
            "slug": f"assay-{circuit.hash}",
            "scan": model or "unknown",
            "prompt_tokens": list(tokens) or ["prompt"],
            "prompt": "".join(tokens),
            "info": info,
        },
        "qParams": {"linkType": "both", "pinnedIds": [], "supernodes": [], "clickedId": "", "sg_pos": ""},
        "nodes": list(nodes.values()),
        "links": [{"source": one, "target": other, "weight": sum_} for (one, other), sum_ in links.items()],
    }


def _nodes(graph: Graph, named: set[str], last: int) -> dict[str, dict[str, Any]]:
    """Some nodes, by name; features of a layer are its heads, the key/value heads they share, and its MLP."""
    heads = [f"h{head}" for head in range(graph.n_heads)] + [f"kv{head}" for head in range(graph.n_kv_heads)]
    places = {"input": ("E", 0, "embedding"), "logits": (str(graph.n_layers), 0, "logit")}
    for layer in map(str, range(graph.n_layers)):
        for feature, head in enumerate(heads):
            places[f"a{layer}.{head}"] = layer, feature, "attention head"
        places[f"m{layer}"] = layer, len(heads), "mlp"
    nodes = {}
    for name in (each for each in places if each in named):
        layer, feature, kind = places[name]
        position = 0 if name == "input" else last
        nodes[name] = {
            "node_id": f"{layer}_{feature}_{position}",
            "feature": feature,
            "layer": layer,
            "ctx_idx": position,
            "feature_type": kind,
            "jsNodeId": f"{layer}_{feature}-{position}",
            "clerp": name,
        }
    return nodes


def export_circuit(
    path: str | Path,
    circuit: Circuit,
    *,
    scores: EdgeScores | None = None,
    model: str = "",
    tokens: Sequence[str] = (),
) -> Path:
    """Write a circuit as an attribution graph of Neuronpedia, a `.json` file.

    Args:
        path: The file.
        circuit: The circuit.
        scores: Scores of its edges; without them every edge weighs 1.
        model: Id of the model, e.g. `gpt2`.
        tokens: Those of a prompt of the task.

    Raises:
        OutputError: If the file cannot be written.
    """
    document = attribution_graph(circuit, scores=scores, model=model, tokens=tokens)
    return write_atomically(Path(path), json.dumps(document, indent=1, allow_nan=False).encode())
