"""Files of EAP-IG and submissions to MIB's circuit track: scores and circuits of other tools, and for them.

An EAP-IG file (Hanna et al. 2024) is one JSON document

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, ..., "logits": {"in_graph": true}},
     "edges": {"input->a0.h0<q>": {"score": 0.25, "in_graph": true}, ...}}

or a torch file of the same matrices. Older files hold a bare flag per node, or a bare score or flag per edge.
The graph is that of `assay.graph` with one k and one v input per query head, whatever the model's grouping.

A submission (Mueller et al. 2025) is a folder of folders `task_model`, each with one file of importances.
"""

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from assay.circuits.circuit import Circuit
from assay.circuits.files import MOST_CELLS, write_atomically
from assay.circuits.scores import EdgeScores
from assay.core.errors import (
    FileFormatError,
    GraphMismatchError,
    InputError,
    UnsafeFileError,
    check_name,
    writing,
)
from assay.core.untrusted import malformed, parse_json
from assay.graph import CHANNELS, Graph, build_graph


SHARED = ("refuse", "any", "all")
IMPORTANCES = "importances.json"
# Of the names of models in MIB one holds the separator.
_FOLDER = re.compile(
    r"(?!.*\.\.)(?=.{1,200}$)(?P<task>[A-Za-z0-9][A-Za-z0-9._-]*?)_(?P<model>qwen2_5|[A-Za-z0-9][A-Za-z0-9.-]*)"
)
_FORM = "a graph file of EAP-IG at edge level, with cfg, nodes and edges"
_SHOWN = 80  # of a name in a message: hostile files hold long ones

Matrices = tuple[Float64[Tensor, "S R"] | None, Bool[Tensor, "S R"] | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphFile:
    """What an EAP-IG file holds.

    Attributes:
        graph: The graph asked for, else the file's own (a k and v input per query head).
        scores: The edges' scores, positive: keep; None if the file has none.
        circuit: The edges marked as part of the graph; None if none is marked.
    """

    graph: Graph
    scores: EdgeScores | None
    circuit: Circuit | None


# ---- reading --------------------------------------------------------------------------------------------


def read_eap_ig(path: str | Path, graph: Graph | None = None, *, shared: str = "refuse") -> GraphFile:
    """Scores and circuit of a file that EAP-IG or MIB wrote.

    Args:
        path: A `.json` file, or a `.pt` file that holds nothing but tensors and plain values.
        graph: The graph they must fit, `model.graph`. Needed for grouped-query models: such a file has k and
            v edges per query head, and those of a group are joined into the graph's one: scores add up.
            Default: the graph that the file describes.
        shared: What a circuit keeps where the copies of a joined edge disagree: `refuse` the file, or keep
            the edge if `any` or if `all` of them are kept.

    Returns:
        Scores in float64 if a value is not a float32 number, else in float32: a file is read back exactly.

    Raises:
        FileFormatError: A truncated or foreign file, a node- or neuron-level one, missing edges, or a value
            of the wrong kind.
        UnsafeFileError: A torch file that would run code when loaded.
        UnknownNameError: The first edge that the graph does not have.
        NonFiniteError: The first edge whose score is NaN or infinite.
        GraphMismatchError: A file of another model shape.
        InputError: Copies of a joined edge that disagree.

    References:
        Hanna et al. (2024), arXiv:2403.17806; Mueller et al. (2025), arXiv:2504.13151.
    """
    path = Path(path)
    check_name("rule for shared edges", shared, SHARED)
    with malformed(path, _FORM):
        if not path.is_file():
            raise FileFormatError(f"{path} does not exist; expected {_FORM}, .json or .pt")
        document = _torch_document(path) if path.suffix == ".pt" else parse_json(path.read_bytes())
        config = document["cfg"]
        theirs = build_graph(
            config["n_layers"], config["n_heads"], parallel=config.get("parallel_attn_mlp", False)
        )
        if theirs.n_sources * theirs.n_targets > MOST_CELLS:
            raise ValueError(f"cfg describes {theirs.describe()}, more than any file this reads can hold")
        if any("neurons" in str(node) for node in ([*document], *document.get("nodes", {}).values())):
            raise ValueError("it holds circuits of single neurons")
        scores, kept = (_torch_matrices if path.suffix == ".pt" else _json_matrices)(document, theirs)
    ours = graph or theirs
    if not ours.mlps or build_graph(ours.n_layers, ours.n_heads, parallel=ours.parallel) != theirs:
        raise GraphMismatchError(
            f"{path} describes {theirs.describe()}, but the requested graph is {ours.describe()}. Give the "
            "graph of the model that the file was made with"
        )
    found: dict[str, Any] = {"scores": None, "circuit": None}
    provenance = {"format": "eap-ig", "file": path.name, "sign": "positive: keep", "method": "imported"}
    if scores is not None:
        values = torch.zeros(ours.valid.shape, dtype=torch.float64).index_add_(1, copies_of(ours), scores)
        exact = bool((values.float().double() == values).all())
        found["scores"] = EdgeScores(ours, values.float() if exact else values, provenance=provenance)
    if kept is not None and bool(kept.any()):
        mask, split = _joined(kept, ours, shared, path)
        found["circuit"] = Circuit(graph=ours, mask=mask, provenance={**provenance, "split_edges": split})
    return GraphFile(graph=ours, **found)


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
    missing = set(index.values()) - set(places)
    if missing:
        raise ValueError(
            f"{len(missing)} of its {len(index)} edges are missing, the first is "
            f"{theirs.edge_name(*min(missing))!r}"
        )

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
    targets = [re.sub(r"\.([qkv])$", r"<\1>", name) for name in graph.targets]
    edges = graph.valid.nonzero().tolist()
    return {f"{graph.sources[row]}->{targets[column]}": (row, column) for row, column in edges}


def copies_of(ours: Graph) -> Int[Tensor, " R"]:
    """Column of `ours` that each column of the graph with a k and v input per query head is a copy of."""
    share = {"q": 1, "k": ours.n_heads // ours.n_kv_heads, "v": ours.n_heads // ours.n_kv_heads}
    columns = []
    for layer in range(ours.n_layers):
        for channel in CHANNELS:
            of = [head // share[channel] for head in range(ours.n_heads)]
            columns += [ours.channel_target(layer, channel, head) for head in of]
        columns.append(ours.mlp_target(layer))
    return torch.tensor([*columns, ours.n_targets - 1])


def _joined(
    kept: Bool[Tensor, "S R"], ours: Graph, shared: str, path: Path
) -> tuple[Bool[Tensor, "S own"], int]:
    """Flags of `ours`, and how many edges have copies that disagree."""
    columns = copies_of(ours)
    copies = columns.bincount(minlength=ours.n_targets)
    count = torch.zeros(ours.valid.shape, dtype=torch.long).index_add_(1, columns, kept.long())
    split = (count > 0) & (count < copies)
    if shared == "refuse" and bool(split.any()):
        row, column = split.nonzero()[0].tolist()
        raise InputError(
            f"{path} keeps {int(count[row, column])} of the {int(copies[column])} copies of "
            f"{ours.edge_name(row, column)}, which is a single edge here ({int(split.sum())} edges are "
            "split in this way); read it with shared='any' or shared='all', or select a circuit from the "
            "scores"
        )
    return (count == copies if shared == "all" else count > 0) & ours.valid, int(split.sum())


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
    ours, kept = what.graph, what if isinstance(what, Circuit) else circuit
    if not ours.mlps:
        raise GraphMismatchError(
            "EAP-IG graphs have an MLP in every block, so an attention-only graph cannot be written"
        )
    if kept is not None and kept.graph.fingerprint != ours.fingerprint:
        raise GraphMismatchError(
            f"the circuit belongs to the graph {kept.graph.describe()}, the scores to {ours.describe()}"
        )
    theirs = build_graph(ours.n_layers, ours.n_heads, parallel=ours.parallel)
    columns = copies_of(ours)
    mask = torch.zeros_like(theirs.valid) if kept is None else kept.mask[:, columns]
    values = mask.double()
    if isinstance(what, EdgeScores):
        values = (what.values.double() / columns.bincount(minlength=ours.n_targets))[:, columns]
    config = {"n_layers": ours.n_layers, "n_heads": ours.n_heads, "parallel_attn_mlp": ours.parallel}
    nodes = {"logits"} if kept is None else {*kept.nodes(), "logits"}
    score_rows, mask_rows = values.tolist(), mask.tolist()
    document = {
        "cfg": config | ({} if d_model is None else {"d_model": d_model}),
        "nodes": {name: {"in_graph": name in nodes} for name in (*theirs.sources, "logits")},
        "edges": {
            name: {"score": score_rows[row][column], "in_graph": mask_rows[row][column]}
            for name, (row, column) in their_edges(theirs).items()
        },
    }
    return write_atomically(Path(path), json.dumps(document, allow_nan=False).encode())


# ---- submissions to MIB ---------------------------------------------------------------------------------


def load_submission(
    path: str | Path, graph: Graph | Mapping[str, Graph] | None = None
) -> dict[tuple[str, str], EdgeScores]:
    """The importances that a submission to MIB's circuit track holds, by task and model.

    Args:
        path: The folder of a submission, or one of its `task_model` folders.
        graph: The graph that all files must fit, or one per model name; models without one get the graphs
            that their files describe (see `read_eap_ig`).

    Raises:
        FileFormatError: No folder, a folder name without a task and a model, a folder without one file of
            scores; and as `read_eap_ig`.

    Notes:
        Scores are positive where the edge is to be kept. MIB ranks signed scores, highest first, for CPR and
        absolute ones for CMD: use `scores.top(k, absolute=False)` and `scores.top(k)`. Read the circuits of
        an entry of circuits with `read_eap_ig`.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    root, entries = Path(path), {}
    if not root.is_dir():
        raise FileFormatError(
            f"folder {root} does not exist; expected a submission with folders such as ioi_gpt2"
        )
    folders = sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    for folder in folders or [root]:
        match = _FOLDER.fullmatch(folder.name)
        if match is None:
            raise FileFormatError(
                f"folder {folder.name[:_SHOWN]!r} does not name a task and a model; use a name such as "
                "ioi_gpt2"
            )
        own = graph.get(match["model"]) if isinstance(graph, Mapping) else graph
        files = [*folder.glob("[!.]*.json"), *folder.glob("[!.]*.pt")]
        scores = read_eap_ig(files[0], own).scores if len(files) == 1 else None
        if scores is None:
            raise FileFormatError(
                f"{folder} has {len(files)} .json and .pt files; expected one file of scores, {IMPORTANCES}"
            )
        entries[match["task"], match["model"]] = replace(
            scores, provenance={**scores.provenance, **match.groupdict()}
        )
    return entries


def save_submission(
    entries: Mapping[tuple[str, str], EdgeScores],
    path: str | Path,
    *,
    d_model: Mapping[str, int] | None = None,
) -> Path:
    """Write a submission of importances to MIB's circuit track: `task_model/importances.json`.

    Args:
        entries: For each (task, model) the scores, positive: keep.
        path: The folder, made if it is not there. Existing files of the same names are replaced.
        d_model: Width per model name, which MIB's reader asks for.

    Returns:
        The folder.

    Raises:
        InputError: For names that cannot be those of a folder.
        OutputError: If a folder or file cannot be written.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    root = Path(path)
    for (task, model), scores in entries.items():
        match = _FOLDER.fullmatch(f"{task}_{model}")
        if match is None or match.groups() != (task, model):
            raise InputError(
                f"task {task[:_SHOWN]!r} and model {model[:_SHOWN]!r} cannot name a folder; use letters, "
                "digits, '-' and '.', and '_' in the task alone"
            )
        with writing(f"make the folder {root / match[0]}"):
            (root / match[0]).mkdir(parents=True, exist_ok=True)
        write_eap_ig(scores, root / match[0] / IMPORTANCES, d_model=(d_model or {}).get(model))
    return root
