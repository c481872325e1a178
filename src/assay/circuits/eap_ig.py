"""Graph files of EAP-IG: scores and circuits that other tools wrote, or read.

An EAP-IG file (Hanna et al. 2024) is one JSON document

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, ..., "logits": {"in_graph": true}},
     "edges": {"input->a0.h0<q>": {"score": 0.25, "in_graph": true}, ...}}

or a torch file of the same matrices. Older files hold a bare flag per node, or a bare score or flag per edge.
The graph is that of `assay.graph` with one k and one v input per query head, whatever the model's grouping.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import write_atomically
from assay.circuits.scores import EdgeScores
from assay.core.errors import (
    FileFormatError,
    GraphMismatchError,
    InputError,
    NonFiniteError,
    UnknownNameError,
    UnsafeFileError,
    near_matches,
    unknown_name,
)
from assay.core.untrusted import MALFORMED, malformed, parse_json
from assay.graph import Graph, build_graph


SIGN = "positive: keep"
SHARED = ("refuse", "any", "all")
_MOST_CELLS = 1 << 27  # of a matrix that a file's description may ask for
_SHOWN = 80


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
    if shared not in SHARED:
        raise unknown_name("rule for shared edges", shared, SHARED)
    if not path.is_file():
        raise FileFormatError(f"no file at {path}; expected a graph file, .json or .pt")
    content = _read_torch(path) if path.suffix == ".pt" else _read_json(path)
    theirs, d_model = _graph_of(content.config, path)
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


@dataclass(frozen=True, kw_only=True)
class _Content:
    """A parsed file: the model's description and, per edge name, a score and a flag, None where absent."""

    config: Mapping[str, Any]
    edges: Mapping[str, tuple[float | None, bool | None]]

    def matrices(
        self, graph: Graph, path: Path, *, partial: bool
    ) -> tuple[Float64[Tensor, "S R"] | None, Bool[Tensor, "S R"] | None]:
        """Scores and flags on the graph; None where no edge has one."""
        index = their_edges(graph)
        if (unknown := next((name for name in self.edges if name not in index), None)) is not None:
            raise _unknown_edge(unknown, graph, path)
        if len(self.edges) < len(index) and not partial:
            first = next(name for name in index if name not in self.edges)
            raise FileFormatError(
                f"{path} holds {len(self.edges)} of the {len(index)} edges of its graph; the first that is "
                f"missing is {first!r}. Complete it, or read it with partial=True: missing edges score 0 and "
                "are not kept"
            )
        scores = [(name, score) for name, (score, _) in self.edges.items() if score is not None]
        flags = [(name, flag) for name, (_, flag) in self.edges.items() if flag is not None]
        bad = next(((name, score) for name, score in scores if not math.isfinite(score)), None)
        if bad is not None:
            raise NonFiniteError(
                f"{path}: the score of {bad[0]!r} is {bad[1]}; every edge needs a finite score"
            )
        for count, what in ((len(scores), "score"), (len(flags), "in_graph flag")):
            if 0 < count < len(self.edges):
                raise FileFormatError(
                    f"{path}: {count} of {len(self.edges)} edges have a {what}; all or none are expected"
                )

        def matrix(values: list[Any], dtype: torch.dtype) -> Tensor:
            filled = torch.zeros(graph.valid.shape, dtype=dtype)
            at = torch.tensor([index[name] for name, _ in values])
            filled[at[:, 0], at[:, 1]] = torch.tensor([value for _, value in values], dtype=dtype)
            return filled

        kept = matrix(flags, torch.bool) if flags else torch.zeros_like(graph.valid)
        return (matrix(scores, torch.float64) if scores else None), (kept if bool(kept.any()) else None)


def _read_json(path: Path) -> _Content:
    try:
        document = parse_json(path.read_bytes(), pairs=_without_duplicates)
    except ValueError as error:
        raise FileFormatError(
            f"{path} is not a readable JSON document ({shorten(str(error))}); it may be truncated, so export "
            "it again"
        ) from error
    if not isinstance(document, dict):
        raise FileFormatError(
            f"{path} holds a {type(document).__name__}, not an object with cfg, nodes, edges"
        )
    missing = [key for key in ("cfg", "nodes", "edges") if not isinstance(document.get(key), dict)]
    if missing:
        if missing == ["edges"]:
            raise FileFormatError(
                f"{path} has nodes but no edges: a node-level file scores no edges; export it at edge level"
            )
        raise FileFormatError(
            f"{path} is not an EAP-IG graph file: {', '.join(missing)} should be an object; found the keys "
            f"{[shorten(key) for key in list(document)[:8]]}"
        )
    config, nodes = document["cfg"], document["nodes"]
    _check_nodes(nodes, _graph_of(config, path)[0], path)
    edges = {name: _edge_values(name, value, path) for name, value in document["edges"].items()}
    if not edges:
        raise FileFormatError(
            f"{path} has nodes but no edges: a node-level file scores no edges; export it at edge level"
        )
    return _Content(config=config, edges=edges)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{shorten(name)!r} stands twice in one object")
            seen.add(name)
    return found


def _edge_values(name: str, value: Any, path: Path) -> tuple[float | None, bool | None]:
    """Score and flag of an edge in the current form, an object, or a bare score or flag of an older one."""
    if isinstance(value, dict):
        score, flag = value.get("score"), value.get("in_graph")
    else:
        score, flag = (None, value) if isinstance(value, bool) else (value, None)
    if (score is None and flag is None) or isinstance(score, bool | str | list | dict):
        raise FileFormatError(
            f"{path}: edge {shorten(name)!r} is {shorten(repr(value))}; expected an object with a number as "
            "score, an in_graph flag, or both"
        )
    if flag is not None and not isinstance(flag, bool):
        raise FileFormatError(
            f"{path}: in_graph of edge {shorten(name)!r} is {shorten(repr(flag))}; expected true or false"
        )
    try:
        return (None if score is None else float(score)), flag
    except OverflowError:  # a whole number beyond the floats
        return math.inf, flag


def _check_nodes(nodes: Mapping[str, Any], graph: Graph, path: Path) -> None:
    known = {*graph.sources, "logits"}
    for name, value in nodes.items():
        if name not in known:
            raise UnknownNameError(
                f"{path}: unknown node {shorten(name)!r} in a graph of {graph.n_layers} layers and "
                f"{graph.n_heads} heads{_near(name, known)}"
            )
        if isinstance(value, dict) and "neurons" in value:
            raise FileFormatError(
                f"{path}: node {name!r} has neurons; circuits of single neurons are not read, export at edge "
                "level"
            )


_TORCH_KEYS = ("cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph")


def _read_torch(path: Path) -> _Content:
    import pickle

    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} is refused: it holds more than tensors and plain values, or is no torch file; loading "
            "it could run code. Export it as JSON (EAP-IG: graph.to_json)"
        ) from error
    # A damaged archive fails with whatever its first wrong byte brings about.
    except (EOFError, OSError, *MALFORMED) as error:
        raise FileFormatError(
            f"{path} is not a readable torch file ({shorten(str(error))}); it may be truncated, so export it "
            "again"
        ) from error
    if not isinstance(document, dict) or any(key not in document for key in _TORCH_KEYS):
        found = list(document)[:8] if isinstance(document, dict) else type(document).__name__
        raise FileFormatError(
            f"{path} is not an EAP-IG graph file: needs {', '.join(_TORCH_KEYS)}; found {found}"
        )
    if "neurons_in_graph" in document or "neurons_scores" in document:
        raise FileFormatError(
            f"{path} has neurons; circuits of single neurons are not read, export at edge level"
        )
    with malformed(path, "a graph file with lists of nodes"):
        sources, targets = (tuple(map(str, document[key])) for key in ("src_nodes", "dst_nodes"))
    matrices = (document["edges_scores"], document["edges_in_graph"])
    if any(
        not isinstance(each, Tensor) or tuple(each.shape) != (len(sources), len(targets)) for each in matrices
    ):
        shapes = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in matrices]
        raise FileFormatError(
            f"{path}: edges_scores and edges_in_graph are {shapes}; {len(sources)} sources and "
            f"{len(targets)} targets are named"
        )
    graph, _ = _graph_of(document["cfg"], path)
    known = set(their_edges(graph))
    score_rows, flag_rows = (each.tolist() for each in matrices)
    # The matrices have cells where the graph has no edge, filled with anything.
    edges = {
        f"{source}->{target}": (float(score_rows[row][column]), bool(flag_rows[row][column]))
        for row, source in enumerate(sources)
        for column, target in enumerate(targets)
        if f"{source}->{target}" in known
    }
    for kind, names, theirs in (
        ("source", sources, set(graph.sources)),
        ("target", targets, {their_target(name) for name in graph.targets}),
    ):
        for name in names:
            if name not in theirs:
                raise UnknownNameError(
                    f"{path}: unknown {kind} {shorten(str(name))!r}{_near(str(name), theirs)}"
                )
    return _Content(config=document["cfg"], edges=edges)


# ---- graphs ---------------------------------------------------------------------------------------------


def _graph_of(config: Any, path: Path) -> tuple[Graph, int | None]:
    """The graph that a file's `cfg` describes: a k and v input per query head, always with MLPs."""
    if not isinstance(config, Mapping):
        raise FileFormatError(f"{path}: cfg is a {type(config).__name__}; expected n_layers and n_heads")
    sizes = [config.get(key) for key in ("n_layers", "n_heads")]
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise FileFormatError(
            f"{path}: cfg has n_layers={shorten(repr(sizes[0]))} and n_heads={shorten(repr(sizes[1]))}; "
            "whole numbers of at least 1 are needed"
        )
    layers, heads = (int(size) for size in sizes if size is not None)
    if layers * (heads + 1) * layers * (3 * heads + 1) > _MOST_CELLS:
        raise FileFormatError(
            f"{path}: cfg describes {layers} layers of {heads} heads, more than any file this reads can hold"
        )
    parallel = config.get("parallel_attn_mlp", False)
    if not isinstance(parallel, bool):
        raise FileFormatError(
            f"{path}: parallel_attn_mlp is {shorten(repr(parallel))}; true or false is needed"
        )
    width = config.get("d_model")
    return build_graph(layers, heads, parallel=parallel), width if isinstance(width, int) else None


def _check_shape(theirs: Graph, ours: Graph | None, path: Path) -> None:
    if ours is None:
        return
    if not ours.mlps:
        raise GraphMismatchError(f"{path}: EAP-IG graphs have MLPs, the graph asked for is attention-only")
    shapes = [(each.n_layers, each.n_heads, each.parallel) for each in (theirs, ours)]
    if shapes[0] != shapes[1]:
        described = ["{} layers of {} heads, parallel {}".format(*shape) for shape in shapes]
        raise GraphMismatchError(
            f"{path} describes {described[0]}; the graph asked for has {described[1]}. Give the graph of the "
            "model that the file was made with"
        )


def their_target(name: str) -> str:
    """EAP-IG's spelling of a target: `a0.h3<q>` for `a0.h3.q`."""
    return f"{name[:-2]}<{name[-1]}>" if name[-2:-1] == "." else name


def their_edges(graph: Graph) -> dict[str, tuple[int, int]]:
    """Row and column of each edge by EAP-IG's name, in edge order."""
    targets = [their_target(name) for name in graph.targets]
    return {
        f"{graph.sources[row]}->{targets[column]}": (row, column)
        for row, column in graph.valid.nonzero().tolist()
    }


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
        raise GraphMismatchError(f"{theirs.n_targets} targets do not map on {ours.n_targets}")
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
            f"{ours.edge_name(row, column)}, which is one edge here ({int(split.sum())} edges are split so); "
            "read it with shared='any' or shared='all', or select a circuit from the scores"
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
    document = graph_document(scores, kept, d_model=d_model, always_scored=True)
    return write_atomically(Path(path), json.dumps(document, allow_nan=False).encode())


def graph_document(
    scores: EdgeScores | None, kept: Circuit | None, *, d_model: int | None, always_scored: bool
) -> dict[str, Any]:
    """The JSON document of scores, a circuit, or both; an edge without a score is scored 1 or 0 if asked."""
    given = scores if scores is not None else kept
    if given is None:
        raise InputError("there is nothing to write: give scores or a circuit")
    ours = given.graph
    if not ours.mlps:
        raise GraphMismatchError(
            "EAP-IG graphs have an MLP in every block; this graph is attention-only and cannot be written"
        )
    if kept is not None and kept.graph.fingerprint != ours.fingerprint:
        raise GraphMismatchError(
            f"the circuit is of a graph {kept.graph.describe()}, the scores of {ours.describe()}"
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
    with_score = scores is not None or always_scored
    score_rows, mask_rows = values.tolist(), mask.tolist()
    return {
        "cfg": config,
        "nodes": {
            name: {"in_graph": name in nodes or name == "logits"} for name in (*theirs.sources, "logits")
        },
        "edges": {
            name: ({"score": score_rows[row][column]} if with_score else {})
            | {"in_graph": mask_rows[row][column]}
            for name, (row, column) in their_edges(theirs).items()
        },
    }


# ---- messages -------------------------------------------------------------------------------------------


def shorten(text: str) -> str:
    """Text of a file for a message: hostile files hold long names."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _near(name: str, known: set[str]) -> str:
    near = near_matches(shorten(name), known)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _unknown_edge(name: str, graph: Graph, path: Path) -> UnknownNameError:
    """Which end of an edge is unknown, or that the order is wrong."""
    source, arrow, target = name.partition("->")
    shown = f"{path}: unknown edge {shorten(name)!r}"
    targets = {their_target(each) for each in graph.targets}
    if not arrow:
        return UnknownNameError(f"{shown}: it has no '->'; edges are written like 'input->a0.h0<q>'")
    for kind, end, known in (("source", source, set(graph.sources)), ("target", target, targets)):
        if end not in known:
            return UnknownNameError(
                f"{shown}: a graph of {graph.n_layers} layers and {graph.n_heads} heads has no {kind} "
                f"{shorten(end)!r}{_near(end, known)}"
            )
    return UnknownNameError(f"{shown}: {source} writes after {target} reads")
