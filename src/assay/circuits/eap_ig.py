"""Files of EAP-IG and submissions to MIB's circuit track: scores and circuits of other tools, and for them.

An EAP-IG file (Hanna et al. 2024) is one JSON document

    {"cfg": {"n_layers": 12, "n_heads": 12, "parallel_attn_mlp": false, "d_model": 768},
     "nodes": {"input": {"in_graph": true}, "a0.h0": {"in_graph": false}, ..., "logits": {"in_graph": true}},
     "edges": {"input->a0.h0<q>": {"score": 0.25, "in_graph": true}, ...}}

or a torch file of the same matrices. Older files hold a bare flag per node, or a bare score or flag per edge.
The graph is that of `assay.graph` with one k and one v input per query head, whatever the model's grouping.

A submission (Mueller et al. 2025) is a folder of folders `task_model`, each with either one file of
importances or one file per circuit size.
"""

import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    NonFiniteError,
    UnknownNameError,
    UnsafeFileError,
    check_name,
    unknown_name,
    writing,
)
from assay.core.untrusted import malformed, parse_json
from assay.graph import Graph, build_graph


SIGN = "positive: keep"
SHARED = ("refuse", "any", "all")
PERCENTAGES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # of the edges, in MIB's nine circuits
IMPORTANCES = "importances.json"
# Names of models in MIB; one holds the separator.
MIB_MODELS = ("interpbench", "gpt2", "qwen2_5", "qwen2.5", "gemma2", "llama3")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-_]{0,98}[A-Za-z0-9])?")
_FORM = "a graph file of EAP-IG at edge level, with cfg, nodes and edges"
_SHOWN = 80  # of a name in a message: hostile files hold long ones

Edges = Mapping[
    str, tuple[float | None, bool | None]
]  # name in the file -> score and flag, where there is one


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
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist; expected {_FORM}, .json or .pt")
    with malformed(path, _FORM):
        config, edges = _read_torch(path) if path.suffix == ".pt" else _read_json(path)
        theirs, width = _their_graph(config, path), config.get("d_model")
    ours = theirs if graph is None else graph
    if not ours.mlps:
        raise GraphMismatchError(
            f"{path}: EAP-IG graphs have MLPs, but the requested graph is attention-only"
        )
    shapes = [(each.n_layers, each.n_heads, each.parallel) for each in (theirs, ours)]
    if shapes[0] != shapes[1]:
        described = ["{} layers of {} heads, parallel {}".format(*shape) for shape in shapes]
        raise GraphMismatchError(
            f"{path} describes {described[0]}, but the requested graph has {described[1]}. Give the graph "
            "of the model that the file was made with"
        )
    scores, kept = _matrices(edges, theirs, path, partial=partial)
    provenance = {"format": "eap-ig", "file": path.name, "sign": SIGN, "method": "imported"}
    return GraphFile(
        graph=ours,
        scores=None if scores is None else _joined_scores(scores, ours, provenance),
        circuit=None if kept is None else _joined_circuit(kept, ours, shared, path, provenance),
        d_model=width if isinstance(width, int) else None,
        provenance=provenance,
    )


def _read_json(path: Path) -> tuple[Mapping[str, Any], Edges]:
    document = parse_json(path.read_bytes())
    if any(isinstance(node, dict) and "neurons" in node for node in document["nodes"].values()):
        raise ValueError("it holds circuits of single neurons")
    edges = {name: _score_and_flag(name, value) for name, value in document["edges"].items()}
    if not edges:
        raise ValueError("it scores nodes, and no edges")
    return document["cfg"], edges


def _score_and_flag(name: str, value: Any) -> tuple[float | None, bool | None]:
    """Values of an edge in the current form, an object, or a bare score or flag of an older one."""
    if not isinstance(value, dict):
        value = {"in_graph": value} if isinstance(value, bool) else {"score": value}
    score, flag = value.get("score"), value.get("in_graph")
    scored = type(score) in (int, float)
    if not (scored or score is None) or not isinstance(flag, bool | None) or score is flag:  # both are None
        raise ValueError(
            f"edge {name[:_SHOWN]!r} is {value!r}; expected a number as score, true or false as in_graph, or "
            "both"
        )
    return (float(score) if scored else None), flag


def _read_torch(path: Path) -> tuple[Mapping[str, Any], Edges]:
    try:
        document = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafeFileError(
            f"{path} is rejected: it holds more than tensors and plain values, or is not a torch file, so "
            "loading it could run code. Export it as JSON (EAP-IG: graph.to_json)"
        ) from error
    except (EOFError, OSError) as error:
        raise ValueError(f"it may be truncated: {error}") from error
    if "neurons_in_graph" in document or "neurons_scores" in document:
        raise ValueError("it holds circuits of single neurons")
    theirs = _their_graph(document["cfg"], path)
    sources, targets = (list(map(str, document[key])) for key in ("src_nodes", "dst_nodes"))
    matrices = [document[key] for key in ("edges_scores", "edges_in_graph")]
    if any(tuple(each.shape) != (len(sources), len(targets)) for each in matrices):
        raise ValueError(
            f"edges_scores and edges_in_graph are {[tuple(each.shape) for each in matrices]}, but "
            f"{len(sources)} sources and {len(targets)} targets are named"
        )
    known, ends = their_edges(theirs), {*theirs.sources, *map(their_target, theirs.targets)}
    # The matrices have cells where the graph has no edge, filled with anything.
    edges = {
        name: (float(score), bool(flag))
        for source, *row in zip(sources, *(each.tolist() for each in matrices), strict=True)
        for target, score, flag in zip(targets, *row, strict=True)
        if (name := f"{source}->{target}") in known or not {source, target} <= ends
    }
    return document["cfg"], edges


def _their_graph(config: Mapping[str, Any], path: Path) -> Graph:
    """The graph that a file's `cfg` describes: a k and v input per query head, always with MLPs."""
    layers, heads = config["n_layers"], config["n_heads"]
    parallel = config.get("parallel_attn_mlp", False)
    if not type(layers) is type(heads) is int or min(layers, heads) < 1 or type(parallel) is not bool:
        raise ValueError(
            f"cfg has n_layers={layers!r}, n_heads={heads!r} and parallel_attn_mlp={parallel!r}; expected "
            "whole numbers of at least 1, and true or false"
        )
    if layers * (heads + 1) * layers * (3 * heads + 1) > MOST_CELLS:
        raise FileFormatError(
            f"{path}: cfg describes {layers} layers of {heads} heads, more than any file this reads can hold"
        )
    return build_graph(layers, heads, parallel=parallel)


def _matrices(
    edges: Edges, theirs: Graph, path: Path, *, partial: bool
) -> tuple[Float64[Tensor, "S R"] | None, Bool[Tensor, "S R"] | None]:
    """Scores and flags on the file's graph; None where no edge has one."""
    index = their_edges(theirs)
    for name in edges:
        if name not in index:
            raise _unknown_edge(name, theirs, path)
    if len(edges) < len(index) and not partial:
        first = next(name for name in index if name not in edges)
        raise FileFormatError(
            f"{path} holds {len(edges)} of the {len(index)} edges of its graph; the first that is missing is "
            f"{first!r}. Complete it, or read it with partial=True: missing edges score 0 and are not kept"
        )
    rows, columns = zip(*(index[name] for name in edges), strict=True)
    found: list[Tensor | None] = []
    for place, what, dtype in ((0, "score", torch.float64), (1, "in_graph flag", torch.bool)):
        values: list[Any] = [value[place] for value in edges.values() if value[place] is not None]
        if 0 < len(values) < len(edges):
            raise FileFormatError(
                f"{path}: only {len(values)} of {len(edges)} edges have a {what}; expected all or none"
            )
        matrix = torch.zeros(theirs.valid.shape, dtype=dtype)
        if values:
            matrix[rows, columns] = torch.tensor(values, dtype=dtype)
        found.append(matrix if values else None)
    scores, kept = found
    if scores is not None and not bool(scores.isfinite().all()):
        name = next(name for name, at in index.items() if not bool(scores[at].isfinite()))
        raise NonFiniteError(
            f"{path}: the score of {name!r} is {scores[index[name]].item()}; every edge needs a finite score"
        )
    return scores, kept if kept is not None and bool(kept.any()) else None


def _unknown_edge(name: str, theirs: Graph, path: Path) -> UnknownNameError:
    """Which end of an edge is unknown, or that the order is wrong."""
    source, _, target = name.partition("->")
    shown = f"edge {name[:_SHOWN]!r} in {path}"
    for kind, end, known in (
        ("source", source, theirs.sources),
        ("target", target, list(map(their_target, theirs.targets))),
    ):
        if end not in known:
            return unknown_name(f"{kind} of {shown}", end[:_SHOWN], known)
    return UnknownNameError(f"unknown {shown}: {source} writes after {target} reads")


def their_target(name: str) -> str:
    """EAP-IG's spelling of a target: `a0.h3<q>` for `a0.h3.q`."""
    return f"{name[:-2]}<{name[-1]}>" if name[-2:-1] == "." else name


def their_edges(graph: Graph) -> dict[str, tuple[int, int]]:
    """Row and column of each edge by EAP-IG's name, in edge order."""
    targets = list(map(their_target, graph.targets))
    return {
        f"{graph.sources[row]}->{targets[column]}": (row, column)
        for row, column in graph.valid.nonzero().tolist()
    }


# ---- shared keys and values -----------------------------------------------------------------------------


def copies_of(ours: Graph) -> Int[Tensor, " R"]:
    """Column of `ours` that each column of the graph with a k and v input per query head is a copy of."""
    group = ours.n_heads // ours.n_kv_heads
    columns = []
    for layer in range(ours.n_layers):
        for channel in "qkv":
            share = 1 if channel == "q" else group
            columns += [ours.channel_target(layer, channel, head // share) for head in range(ours.n_heads)]
        columns.append(ours.mlp_target(layer))
    return torch.tensor([*columns, ours.n_targets - 1])


def _joined_scores(scores: Float64[Tensor, "S R"], ours: Graph, provenance: Mapping[str, Any]) -> EdgeScores:
    joined = torch.zeros(ours.valid.shape, dtype=torch.float64).index_add_(1, copies_of(ours), scores)
    narrow = joined.float()
    exact = bool((narrow.double() == joined).all())
    return EdgeScores(ours, narrow if exact else joined, provenance=provenance)


def _joined_circuit(
    kept: Bool[Tensor, "S R"], ours: Graph, shared: str, path: Path, provenance: Mapping[str, Any]
) -> Circuit:
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
    main = scores if scores is not None else kept
    assert main is not None  # both callers give one
    ours = main.graph
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


# ---- submissions to MIB ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmissionEntry:
    """One task and model of a submission: importances, or circuits from small to large.

    Attributes:
        task: As the folder spells it, e.g. `ioi` or `arc-easy`.
        model: Likewise, e.g. `gpt2`.
        scores: Importances, positive: keep; None for an entry of circuits.
        circuits: Circuits by number of edges; empty for importances.
    """

    task: str
    model: str
    scores: EdgeScores | None
    circuits: tuple[Circuit, ...] = ()


def load_submission(
    path: str | Path,
    graph: Graph | Mapping[str, Graph] | None = None,
    *,
    shared: str = "refuse",
    partial: bool = False,
) -> tuple[SubmissionEntry, ...]:
    """Everything a submission to MIB's circuit track holds.

    Args:
        path: The folder of a submission, or one of its `task_model` folders.
        graph: The graph that all files must fit, or one per model name; models without one get the graphs
            that their files describe (see `read_eap_ig`).
        shared: As in `read_eap_ig`.
        partial: As in `read_eap_ig`.

    Returns:
        One entry per task and model, by folder name.

    Raises:
        FileFormatError: No folder, a folder name without a task and a model, a folder that holds neither one
            file with scores nor circuits only; and as `read_eap_ig`.

    Notes:
        MIB ranks signed scores, highest first, for CPR and absolute ones for CMD: use
        `scores.top(k, absolute=False)` and `scores.top(k)`.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileFormatError(
            f"folder {root} does not exist; expected a submission with folders such as ioi_gpt2"
        )
    folders = sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    folders = folders or [root]
    return tuple(_load_entry(folder, graph, shared=shared, partial=partial) for folder in folders)


def _load_entry(
    folder: Path, graph: Graph | Mapping[str, Graph] | None, *, shared: str, partial: bool
) -> SubmissionEntry:
    task, model = split_folder_name(folder.name)
    files = sorted(
        each for each in folder.iterdir() if each.suffix in (".json", ".pt") and not each.name.startswith(".")
    )
    if not files:
        raise FileFormatError(
            f"{folder} has no .json or .pt file; expected {IMPORTANCES} or one file per circuit"
        )
    own = graph.get(model) if isinstance(graph, Mapping) else graph
    read = [read_eap_ig(each, own, shared=shared, partial=partial) for each in files]
    if len(read) == 1 and read[0].scores is not None:
        scores = read[0].scores
        record = {**scores.provenance, "task": task, "model": model}
        labelled = EdgeScores(scores.graph, scores.values, provenance=record)
        return SubmissionEntry(task=task, model=model, scores=labelled)
    if len(read) > 1:
        for file, each in zip(files, read, strict=True):
            if each.circuit is None and each.scores is not None and bool(each.scores.values.any()):
                raise FileFormatError(
                    f"{file} holds scores but lies beside {len(files) - 1} other file(s); expected one file "
                    "with scores, or files that each hold a circuit"
                )
    circuits = [each.circuit or Circuit.empty(each.graph) for each in read]
    ordered = tuple(sorted(circuits, key=lambda circuit: circuit.n_edges))
    return SubmissionEntry(task=task, model=model, scores=None, circuits=ordered)


def split_folder_name(name: str) -> tuple[str, str]:
    """Task and model of a folder `task_model`: the last `_` divides them, but for models that hold one.

    Raises:
        FileFormatError: If there are not two parts.

    Example:
        >>> split_folder_name("arithmetic_addition_llama3"), split_folder_name("ioi_qwen2_5")
        (('arithmetic_addition', 'llama3'), ('ioi', 'qwen2_5'))
    """
    for model in MIB_MODELS:
        if name.endswith(f"_{model}") and name != f"_{model}":
            return name.removesuffix(f"_{model}"), model
    task, _, model = name.rpartition("_")
    if not task or not model:
        raise FileFormatError(
            f"folder {name[:_SHOWN]!r} does not name a task and a model; use a name such as ioi_gpt2"
        )
    return task, model


def save_submission(
    entries: Mapping[tuple[str, str], EdgeScores | Sequence[Circuit]],
    path: str | Path,
    *,
    d_model: Mapping[str, int] | None = None,
) -> Path:
    """Write a submission to MIB's circuit track: `task_model/importances.json`, or one file per circuit.

    Args:
        entries: For each (task, model) the scores, or the circuits of the sizes MIB asks for: nine, with at
            most 0.1, 0.2, 0.5, 1, 2, 5, 10, 20 and 50 % of the edges, in this order.
        path: The folder, made if it is not there. Existing files of the same names are replaced.
        d_model: Width per model name, which MIB's reader asks for.

    Returns:
        The folder.

    Raises:
        InputError: For names that cannot be folder names, no entries, or circuits that are not nine or too
            large.
        OutputError: If a folder or file cannot be written.

    Notes:
        Circuits are files `0.1.json` to `50.json` whose scores are 0. Scores are written as they are:
        positive means keep. MIB wants at least two tasks and two models, which is not checked.

    References:
        Mueller et al. (2025), arXiv:2504.13151.
    """
    if not entries:
        raise InputError("the submission is empty; give scores or circuits for at least one (task, model)")
    root = Path(path)
    documents: dict[Path, dict[str, Any]] = {}
    for (task, model), what in entries.items():
        folder = root / _folder_name(task, model)
        width = None if d_model is None else d_model.get(model)
        if isinstance(what, EdgeScores):
            documents[folder / IMPORTANCES] = graph_document(what, None, d_model=width)
            continue
        _check_sizes(what, task, model)
        for percentage, circuit in zip(PERCENTAGES, what, strict=True):
            name = f"{percentage:g}.json"
            documents[folder / name] = graph_document(None, circuit, d_model=width)
    for file, document in documents.items():  # all are made before the first is written
        with writing(f"make the folder {file.parent}"):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(document, allow_nan=False).encode())
    return root


def _folder_name(task: str, model: str) -> str:
    for kind, name in (("task", task), ("model", model)):
        if not _NAME.fullmatch(name) or ".." in name:
            raise InputError(
                f"{kind} {name[:_SHOWN]!r} cannot be part of a folder name; use letters, digits, '-', '.' "
                "and '_'"
            )
    folder = f"{task}_{model}"
    if split_folder_name(folder) != (task, model):
        raise InputError(
            f"the folder {folder!r} would be read as task and model {split_folder_name(folder)}; write the "
            "model with '-' or '.' instead of '_'"
        )
    return folder


def _check_sizes(circuits: Sequence[Circuit], task: str, model: str) -> None:
    if len(circuits) != len(PERCENTAGES):
        raise InputError(
            f"{task} on {model} has {len(circuits)} circuits; expected one for each of {PERCENTAGES} % of "
            "the edges"
        )
    for percentage, circuit in zip(PERCENTAGES, circuits, strict=True):
        # A shared k or v edge counts once per query head in the benchmark's graph.
        theirs = build_graph(circuit.graph.n_layers, circuit.graph.n_heads, parallel=circuit.graph.parallel)
        n_edges = int(circuit.mask[:, copies_of(circuit.graph)].sum()) if circuit.graph.mlps else 0
        if n_edges > percentage / 100 * theirs.n_edges:
            raise InputError(
                f"the circuit of {task} on {model} for {percentage:g} % keeps {n_edges} of {theirs.n_edges} "
                f"edges ({n_edges / theirs.n_edges:.3%}); give the nine in ascending order"
            )
