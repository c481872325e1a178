"""Submissions to MIB's circuit track: folders of scores or circuits in EAP-IG's format.

A submission (Mueller et al. 2025) is a folder of folders `task_model`, each with either one file of
importances or one file per circuit size.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.circuits.circuit import Circuit
from assay.circuits.eap_ig_files import copies_of, graph_document, read_eap_ig
from assay.circuits.files import write_atomically
from assay.circuits.graph_files import shorten
from assay.circuits.scores import EdgeScores
from assay.core.errors import FileFormatError, InputError, writing
from assay.graph import Graph, build_graph


PERCENTAGES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
IMPORTANCES = "importances.json"
SUFFIXES = (".json", ".pt")
# Names of models in the benchmark; one holds the separator.
MIB_MODELS = ("interpbench", "gpt2", "qwen2_5", "qwen2.5", "gemma2", "llama3")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-_]{0,98}[A-Za-z0-9])?")


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
        each for each in folder.iterdir() if each.suffix in SUFFIXES and not each.name.startswith(".")
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
            f"folder {shorten(name)!r} does not name a task and a model; use a name such as ioi_gpt2"
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
                f"{kind} {shorten(name)!r} cannot be part of a folder name; use letters, digits, '-', '.' "
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
        n_edges = int(circuit.mask[:, copies_of(theirs, circuit.graph)].sum()) if circuit.graph.mlps else 0
        if n_edges > percentage / 100 * theirs.n_edges:
            raise InputError(
                f"the circuit of {task} on {model} for {percentage:g} % keeps {n_edges} of {theirs.n_edges} "
                f"edges ({n_edges / theirs.n_edges:.3%}); give the nine in ascending order"
            )
