"""A circuit as a page of its own: the viewer, with attention patterns and weights per prompt where given."""

from collections.abc import Mapping
from typing import Any

from assay.circuits import Circuit, EdgeScores, ExportedCircuit, NodeRoles
from assay.core.errors import GraphMismatchError, InputError, check_least
from assay.core.record import library_version, plain
from assay.execution.attention_patterns import attention_pattern
from assay.models import Model
from assay.page.blocks import Page, Section
from assay.page.circuit import graph_of
from assay.page.form import PAGES, PageForm
from assay.page.text import EDGES_LIMIT, code, cut_text, model_text, number, percent
from assay.page.viewer import circuit_view, edges_table, packed_pattern, packed_weights
from assay.tasks import PairTask


SCHEMA = "assay-circuit/1"
KIND = "circuit-view"
PROMPTS = 3  # whose patterns and weights are kept unless told otherwise
PATTERN_BYTES = 600_000  # of all attention patterns of a page
LONGEST = 160  # tokens of a prompt whose patterns are kept
Document = Mapping[str, Any]


def circuit_document(
    circuit: Circuit,
    *,
    scores: EdgeScores | None = None,
    examples: EdgeScores | None = None,
    roles: NodeRoles | None = None,
    model: Model | None = None,
    task: PairTask | None = None,
    prompts: int = PROMPTS,
) -> dict[str, Any]:
    """What `save_report` needs to show a circuit in the viewer.

    Args:
        circuit: The circuit. Of edges at spans, those kept at some span are shown.
        scores: Scores of its edges; without them every edge weighs 1.
        examples: Scores with `per_example`, whose examples are the first prompts of the task; the page can
            then show the weights on single prompts. Default: `scores`, if they have them.
        roles: Roles and labels of nodes. Default: the published roles of a circuit made from heads.
        model: With a task: the attention patterns of the circuit's heads are kept.
        task: The prompts.
        prompts: First prompts of the task that are shown, at least 1.

    Returns:
        Plain JSON of schema `assay-circuit/1`.

    Raises:
        GraphMismatchError: If scores or roles belong to another graph.
        InputError: For a circuit without edges, for prompts below 1, or for examples without `per_example`.

    Notes:
        One forward pass per prompt where a model and a task are given. Patterns are rounded to 1/255 and take
        at most 600 kB: heads with the weaker edges are left out, and a note on the page names them.
    """
    check_least(1, prompts=prompts)
    exported = ExportedCircuit(circuit=circuit, scores=scores, roles=roles or NodeRoles.of(circuit))
    if examples is None and scores is not None and scores.per_example is not None:
        examples = scores
    graph, edges = circuit.graph, exported.edges[:EDGES_LIMIT]
    assert exported.roles is not None
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "graph": {**graph.describe(), "n_edges": graph.n_edges, "fingerprint": graph.fingerprint},
        "circuit": {"hash": circuit.hash, "n_edges": len(exported.edges), "n_nodes": len(exported.nodes)},
        "model": None if model is None else model.describe(),
        "task": None if task is None else task.name,
        "scored": scores is not None,
        "edges": [
            {"source": edge.source, "target": edge.target, "score": edge.score, "rank": rank, "kept": True}
            for rank, edge in enumerate(edges, start=1)
        ],
        "roles": exported.roles.to_dict(),
        "attention": _attention(exported, model, task, prompts),
        "examples": _examples(exported, examples, task, prompts),
        "provenance": plain(dict(circuit.provenance)),
        "library": library_version(),
    }


def _attention(
    exported: ExportedCircuit, model: Model | None, task: PairTask | None, prompts: int
) -> dict[str, Any] | None:
    """Patterns of the circuit's heads on the first prompts, those with the strongest edges first."""
    if model is None or task is None:
        return None
    if model.graph.fingerprint != exported.circuit.graph.fingerprint:
        raise GraphMismatchError(f"the circuit does not belong to {model.id}: their graphs differ")
    rows = [row for row in range(min(prompts, task.n)) if int(task.lengths[row]) <= LONGEST]
    patterns = [attention_pattern(model, task, row).numpy() for row in rows]
    heads = _heads(exported)
    each = sum(4 * pattern.shape[-1] ** 2 / 3 for pattern in patterns) or 1
    kept = heads[: int(PATTERN_BYTES / each)]
    notes = []
    if len(kept) < len(heads):
        notes.append(
            f"Patterns of {len(kept)} of {len(heads)} heads are kept, those with the strongest edges."
        )
    if len(rows) < min(prompts, task.n):
        notes.append(f"Prompts of more than {LONGEST} tokens are left out.")
    return {
        "note": " ".join(notes),
        "prompts": [{"text": prompt_text(task, row), "tokens": prompt_tokens(task, row)} for row in rows],
        "heads": {
            f"a{layer}.h{head}": [packed_pattern(pattern[layer, head]) for pattern in patterns]
            for layer, head in (kept if rows else ())
        },
    }


def _heads(exported: ExportedCircuit) -> list[tuple[int, int]]:
    """Heads of the circuit, strongest edge first."""
    graph = exported.circuit.graph
    rows = {
        graph.head_source(layer, head): (layer, head)
        for layer in range(graph.n_layers)
        for head in range(graph.n_heads)
    }
    found: dict[tuple[int, int], None] = {}
    for edge in exported.edges:
        column = graph.target_index(edge.target)
        for row in (graph.source_index(edge.source), *graph.feeds[column].nonzero().flatten().tolist()):
            if row in rows:
                found.setdefault(rows[row])
    return list(found)


def _examples(
    exported: ExportedCircuit, scores: EdgeScores | None, task: PairTask | None, prompts: int
) -> list[dict[str, Any]] | None:
    """Weights of the shown edges on the first prompts."""
    if scores is None:
        return None
    graph = exported.circuit.graph
    if scores.per_example is None:
        raise InputError("examples has no scores per example; discover with per_example=True")
    if scores.graph.fingerprint != graph.fingerprint:
        raise GraphMismatchError("examples belong to another graph than the circuit")
    edges = exported.edges[:EDGES_LIMIT]
    rows = [graph.source_index(edge.source) for edge in edges]
    columns = [graph.target_index(edge.target) for edge in edges]
    return [
        {
            "text": f"prompt {row + 1}" if task is None or row >= task.n else prompt_text(task, row),
            **packed_weights(scores.per_example[row, rows, columns].tolist()),
        }
        for row in range(min(prompts, len(scores.per_example)))
    ]


def prompt_tokens(task: PairTask, row: int) -> list[str]:
    """The tokens of a clean prompt as text."""
    ids = task.clean[row, : int(task.lengths[row])].tolist()
    return [str(each) if task.tokenizer is None else task.tokenizer.decode([each]) for each in ids]


def prompt_text(task: PairTask, row: int) -> str:
    """A clean prompt for a list to choose from, with its number."""
    text = task.texts[row] if task.texts is not None else "".join(prompt_tokens(task, row))
    return f"{row + 1}: {cut_text(text.strip(), 200)}"


# ---- the page -----------------------------------------------------------------------------------


def circuit_page(document: Document) -> Page:
    """Everything that is shown of a circuit.

    Args:
        document: What `circuit_document` made.
    """
    circuit, graph = document["circuit"], document["graph"]
    edges, n_edges = document["edges"], circuit["n_edges"]
    caption = "Scores are attributions: positive where ablating the edge hurts." if document["scored"] else ""
    if not document["scored"]:
        caption = "This circuit has no scores, so all edges are drawn alike."
    if len(edges) < n_edges:
        caption += f" The strongest {number(len(edges))} of {number(n_edges)} edges are drawn."
    parts = {"attention patterns": document["attention"], "weights on single prompts": document["examples"]}
    lacking = [name for name, part in parts.items() if not part]
    if lacking:
        caption += f" The page was made without {' and '.join(lacking)}."
    model = document["model"]
    return Page(
        kind="circuit",
        title=f"A circuit of {number(n_edges)} edges" + (f" in {model['id']}" if model else ""),
        verdict=(
            f"{number(n_edges)} of {number(graph['n_edges'])} edges "
            f"({percent(n_edges / graph['n_edges'])}) between {number(circuit['n_nodes'])} nodes."
        ),
        sections=[
            Section(
                title="The circuit",
                blocks=[
                    circuit_view(
                        graph,
                        edges,
                        caption=caption.strip(),
                        scored=document["scored"],
                        extras=document,
                        more=[edges_table(edges)],
                    )
                ],
            )
        ],
        facts=[
            ("circuit", code(circuit["hash"])),
            *([("model", model_text(model))] if model else []),
            *([("task", document["task"])] if document["task"] else []),
            ("graph", code(graph_of(graph).fingerprint)),
            ("version", document["library"]),
        ],
    )


PAGES.add(
    KIND,
    PageForm(noun="circuit", schema=SCHEMA, again="circuit_document", make=circuit_page),
)
