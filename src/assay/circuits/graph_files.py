"""Graph files of EAP-IG: scores and circuits that other tools wrote, or read.

An EAP-IG file (Hanna et al. 2024) is one JSON document

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, ..., "logits": {"in_graph": true}},
     "edges": {"input->a0.h0<q>": {"score": 0.25, "in_graph": true}, ...}}

or a torch file of the same matrices. Older files hold a bare flag per node, or a bare score or flag per edge.
The graph is that of `assay.graph` with one k and one v input per query head, whatever the model's grouping.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from assay.circuits.files import MOST_CELLS
from assay.core.errors import (
    FileFormatError,
    NonFiniteError,
    UnknownNameError,
    UnsafeFileError,
    near_matches,
)
from assay.core.untrusted import MALFORMED, malformed, parse_json
from assay.graph import Graph, build_graph


_SHOWN = 80


@dataclass(frozen=True, kw_only=True)
class GraphFileContent:
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
                    f"{path}: only {count} of {len(self.edges)} edges have a {what}; expected all or none"
                )

        def matrix(values: list[Any], dtype: torch.dtype) -> Tensor:
            filled = torch.zeros(graph.valid.shape, dtype=dtype)
            at = torch.tensor([index[name] for name, _ in values])
            filled[at[:, 0], at[:, 1]] = torch.tensor([value for _, value in values], dtype=dtype)
            return filled

        kept = matrix(flags, torch.bool) if flags else torch.zeros_like(graph.valid)
        return (matrix(scores, torch.float64) if scores else None), (kept if bool(kept.any()) else None)


def read_content(path: Path) -> GraphFileContent:
    """What a file holds, checked as far as it can be without a graph to fit."""
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist; expected a graph file, .json or .pt")
    return _read_torch(path) if path.suffix == ".pt" else _read_json(path)


def _read_json(path: Path) -> GraphFileContent:
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
                f"{path} has nodes but no edges: a node-level file does not score edges; export it at "
                "edge level"
            )
        raise FileFormatError(
            f"{path} is not an EAP-IG graph file: {', '.join(missing)} should be an object; found the keys "
            f"{[shorten(key) for key in list(document)[:8]]}"
        )
    config, nodes = document["cfg"], document["nodes"]
    _check_nodes(nodes, graph_of(config, path)[0], path)
    edges = {name: _edge_values(name, value, path) for name, value in document["edges"].items()}
    if not edges:
        raise FileFormatError(
            f"{path} has nodes but no edges: a node-level file does not score edges; export it at edge level"
        )
    return GraphFileContent(config=config, edges=edges)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{shorten(name)!r} occurs twice in one object")
            seen.add(name)
    return content


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
                f"{path}: node {name!r} has neurons, but circuits of single neurons are not supported; "
                "export at edge level"
            )


_TORCH_KEYS = ("cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph")


def _read_torch(path: Path) -> GraphFileContent:
    import pickle

    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} is rejected: it holds more than tensors and plain values, or is not a torch file, so "
            "loading it could run code. Export it as JSON (EAP-IG: graph.to_json)"
        ) from error
    # A damaged archive fails with whatever its first wrong byte brings about.
    except (EOFError, OSError, *MALFORMED) as error:
        raise FileFormatError(
            f"{path} is not a readable torch file ({shorten(str(error))}); it may be truncated, so export it "
            "again"
        ) from error
    if not isinstance(document, dict) or any(key not in document for key in _TORCH_KEYS):
        came = list(document)[:8] if isinstance(document, dict) else type(document).__name__
        raise FileFormatError(
            f"{path} is not an EAP-IG graph file: needs {', '.join(_TORCH_KEYS)}; found {came}"
        )
    if "neurons_in_graph" in document or "neurons_scores" in document:
        raise FileFormatError(
            f"{path} has neurons, but circuits of single neurons are not supported; export at edge level"
        )
    with malformed(path, "a graph file with lists of nodes"):
        sources, targets = (tuple(map(str, document[key])) for key in ("src_nodes", "dst_nodes"))
    matrices = (document["edges_scores"], document["edges_in_graph"])
    if any(
        not isinstance(each, Tensor) or tuple(each.shape) != (len(sources), len(targets)) for each in matrices
    ):
        shapes = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in matrices]
        raise FileFormatError(
            f"{path}: edges_scores and edges_in_graph are {shapes}, but {len(sources)} sources and "
            f"{len(targets)} targets are named"
        )
    graph, _ = graph_of(document["cfg"], path)
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
    return GraphFileContent(config=document["cfg"], edges=edges)


# ---- graphs ---------------------------------------------------------------------------------------------


def graph_of(config: Any, path: Path) -> tuple[Graph, int | None]:
    """The graph that a file's `cfg` describes: a k and v input per query head, always with MLPs."""
    if not isinstance(config, Mapping):
        raise FileFormatError(f"{path}: cfg is a {type(config).__name__}; expected n_layers and n_heads")
    sizes = [config.get(key) for key in ("n_layers", "n_heads")]
    if any(not isinstance(size, int) or isinstance(size, bool) or size < 1 for size in sizes):
        raise FileFormatError(
            f"{path}: cfg has n_layers={shorten(repr(sizes[0]))} and n_heads={shorten(repr(sizes[1]))}; "
            "expected whole numbers of at least 1"
        )
    layers, heads = (int(size) for size in sizes if size is not None)
    if layers * (heads + 1) * layers * (3 * heads + 1) > MOST_CELLS:
        raise FileFormatError(
            f"{path}: cfg describes {layers} layers of {heads} heads, more than any file this reads can hold"
        )
    parallel = config.get("parallel_attn_mlp", False)
    if not isinstance(parallel, bool):
        raise FileFormatError(
            f"{path}: parallel_attn_mlp is {shorten(repr(parallel))}; expected true or false"
        )
    width = config.get("d_model")
    return build_graph(layers, heads, parallel=parallel), width if isinstance(width, int) else None


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
        return UnknownNameError(f"{shown}: it has no '->'; write edges as in 'input->a0.h0<q>'")
    for kind, end, known in (("source", source, set(graph.sources)), ("target", target, targets)):
        if end not in known:
            return UnknownNameError(
                f"{shown}: a graph of {graph.n_layers} layers and {graph.n_heads} heads has no {kind} "
                f"{shorten(end)!r}{_near(end, known)}"
            )
    return UnknownNameError(f"{shown}: {source} writes after {target} reads")
