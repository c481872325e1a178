"""The circuit of `--circuit`: a file, heads, a published name, or an id of the store."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from assay.circuits import Circuit, EdgeScores, HeadCircuit, NodeScores, Scores, load_circuit
from assay.circuits.circuit import HUB
from assay.circuits.files import check_graph
from assay.circuits.naming import named_circuit
from assay.core.errors import InputError, UnknownNameError
from assay.graph import Graph
from assay.page.graph import graph_of
from assay.store import About, Store, StoredResult


USUAL_ITEMS = {"edge": 200, "node": 20, "neuron": 2_000}  # a circuit without a stated size keeps so many
_ID = re.compile(r"[0-9a-fA-F]{4,64}")


def read_circuit(
    text: str, graph: Graph, store: Callable[[], Store | None] = lambda: None
) -> Circuit | HeadCircuit:
    """The circuit that a command names.

    Args:
        text: As `named_circuit` takes it; else the id of a stored circuit or audit, or the hash of a circuit
            that one of these holds, or the beginning of either.
        graph: The graph that it must belong to.
        store: Opens the store in which ids are looked up, once there is one to look up.

    Raises:
        UnknownNameError: For text that names nothing.
        InputError: For the id of a result without a circuit.
        GraphMismatchError: For a circuit of another graph.
    """
    try:
        return named_circuit(text, graph)
    except UnknownNameError:
        if not _ID.fullmatch(text) or (opened := store()) is None:
            raise
    return stored_circuit(opened.get(text), graph)


def stored_circuit(found: StoredResult, graph: Graph | None = None) -> Circuit:
    """The circuit of a stored result.

    Raises:
        InputError: If the result is neither a circuit nor an audit.
        GraphMismatchError: If the circuit belongs to another graph.
    """
    if found.kind not in ("circuit", "audit"):
        raise InputError(
            f"{found.id} is a {found.kind} and does not hold a circuit; see `assay store ls --kind circuit`"
        )
    of = found.payload["circuit"] if found.kind == "audit" else found.payload
    own = graph_of(found.payload["graph"])
    check_graph(f"the circuit of {found.id}", own, graph or own)
    heads = of.get("heads")
    return Circuit(
        graph=graph or own,
        mask=found.arrays["mask"].bool(),
        heads=None if heads is None else tuple(map(tuple, heads)),
        provenance=of["provenance"],
        cells=None if (cells := found.arrays.get("cells")) is None else cells.bool(),
    )


def circuit_with_scores(text: str, store: Callable[[], Store]) -> tuple[Circuit, EdgeScores | None, str]:
    """A circuit with the scores of its edges, where it was chosen by some, and the name of its model.

    Args:
        text: A circuit file, or the id of a stored audit, circuit or scores. Of scores it is the strongest
            edges or nodes that lie on a path.
        store: Opens the store in which ids are looked up.

    Raises:
        InputError: For a file that does not exist, or a result without a circuit.
    """
    if text.startswith(HUB) or Path(text).is_file():
        return load_circuit(text), None, ""
    if Path(text).suffix or Path(text).name != text:
        raise InputError(
            f"{text} does not exist; give a circuit file or the id of a stored result (see `assay store ls`)"
        )
    found = store().get(text)
    if found.kind not in ("audit", "scores"):
        return stored_circuit(found), None, found.model or ""
    of_audit = found.kind == "audit"
    level = found.payload["circuit"].get("level") if of_audit else found.provenance.get("level")
    values, graph = found.arrays["scores" if of_audit else "values"], graph_of(found.payload["graph"])
    scores: Scores = (NodeScores if level else EdgeScores)(graph, values)
    if of_audit:
        circuit = stored_circuit(found)
    else:
        circuit = scores.top(min(USUAL_ITEMS[scores.level], scores.n_items)).connected(warn=False)
    return circuit, scores if isinstance(scores, EdgeScores) else None, found.model or ""


def keep_circuit(store: Store, record: Mapping[str, Any], circuit: Circuit, facts: Mapping[str, Any]) -> str:
    """Store a circuit; returns its id.

    Args:
        store: Where it is kept.
        record: What it is a function of, with its `model` and, where it was found here, `task` and `method`.
        circuit: The circuit.
        facts: What else is known of it.
    """
    payload = {
        "graph": circuit.graph.describe(),
        "hash": circuit.hash,
        "n_edges": circuit.n_edges,
        "heads": circuit.heads,
        "provenance": dict(circuit.provenance),
        **facts,
    }
    task, method = record.get("task", {}), record.get("method")
    about = About(
        model=record["model"]["id"],
        task=task.get("name"),
        method=method,
        n=task.get("n"),
        seed=record.get("seed", task.get("config", {}).get("seed")),
        name=", ".join(part for part in (method, f"{circuit.n_items} {circuit.level}s") if part),
        circuit=circuit.hash,
        size=circuit.n_items,
        ablation=record.get("ablation"),
    )
    return store.put("circuit", record, payload, circuit.arrays(), about=about)
