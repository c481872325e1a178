"""Pages of a circuit, in the viewer, and of a faithfulness curve with one of its circuits."""

from functools import partial
from typing import Any

from assay.circuits import Circuit, EdgeScores
from assay.circuits.exchange import scored_edges
from assay.core.errors import GraphMismatchError
from assay.core.record import library_version
from assay.execution.forward import attention_pattern
from assay.graph import Graph
from assay.metrics.curve import FaithfulnessCurve
from assay.metrics.page import (
    LEGEND,
    NOTABLE,
    measurement_rows,
    measurement_table,
    overshoot_text,
    plot_faithfulness,
)
from assay.models import Model
from assay.page import text as words
from assay.page.blocks import Figure, Note, Page, Section, folded_record
from assay.page.graph import circuit_view, packed_pattern
from assay.page.text import EDGES_LIMIT, NARROW, Text, bounded, code, cut_text, model_text, number, percent
from assay.tasks import PairTask


PROMPTS = 3  # whose patterns are kept unless told otherwise
PATTERN_BYTES = 600_000  # of all attention patterns of a page
LONGEST = 160  # tokens of a prompt whose patterns are kept
ENOUGH = 0.9  # faithfulness of the circuit that the page of a curve shows


def circuit_page(
    circuit: Circuit,
    *,
    scores: EdgeScores | None = None,
    model: Model | None = None,
    task: PairTask | None = None,
    prompts: int = PROMPTS,
) -> Page:
    """A circuit in the viewer, for `save_report`.

    Args:
        circuit: The circuit. Of edges at spans, those kept at some span are shown.
        scores: Scores of its edges; without them every edge weighs 1.
        model: With a task: the attention patterns of the circuit's heads are shown.
        task: The prompts.
        prompts: First prompts of the task that are shown.

    Raises:
        GraphMismatchError: If scores or model belong to another graph.
        InputError: For a circuit without edges.

    Notes:
        One forward pass per prompt where a model and a task are given. Patterns are rounded to 1/255 and take
        at most 600 kB: heads with the weaker edges are left out, and a note on the page names them.
    """
    listed = scored_edges(circuit, scores)
    graph, n_edges, scored = circuit.graph, len(listed), scores is not None
    edges = [
        {"source": source, "target": target, "score": score, "rank": rank, "kept": True}
        for rank, (source, target, score) in enumerate(listed[:EDGES_LIMIT], start=1)
    ]
    attention = None
    if model is not None and task is not None:
        attention = _attention(graph, listed, model, task, prompts)
    caption = "Scores are attributions: positive where ablating the edge hurts."
    if all(score >= 0 for _, _, score in listed):
        caption = "No score is negative: the larger it is, the more the edge matters."
    if not scored:
        caption = "This circuit has no scores, so all edges are drawn alike."
    if len(edges) < n_edges:
        caption += f" The strongest {number(len(edges))} of {number(n_edges)} edges are drawn."
    if attention is None:
        caption += " The page was made without attention patterns."
    drawn: dict[str, Any] = {"n_edges": n_edges, "scored": scored, "attention": attention}
    view = circuit_view(graph.describe(), edges, caption=caption, **drawn)
    facts: list[tuple[str, Text]] = [("circuit", code(circuit.hash))]
    title = f"A circuit of {number(n_edges)} edges" + (f" in {cut_text(model.id)}" if model else "")
    if model is not None:
        facts.append(("model", model_text(bounded(model.describe()))))
    if task is not None:
        facts.append(("task", cut_text(task.name)))
    return Page(
        kind="circuit",
        title=title,
        verdict=f"{number(n_edges)} of {number(graph.n_edges)} edges ({percent(n_edges / graph.n_edges)}) "
        f"between {number(len(circuit.nodes()))} nodes.",
        sections=[Section(title="The circuit", blocks=[view])],
        facts=[*facts, ("graph", code(graph.fingerprint)), ("version", library_version())],
    )


def curve_page(curve: FaithfulnessCurve) -> Page:
    """A curve with its integrals, and the circuit to look at, for `save_report`.

    That circuit is the one of the largest faithfulness where some exceed the model, else the smallest that
    keeps a faithfulness of 0.9.
    """
    records = [bounded(each.to_dict()) for each in (curve.area, curve.distance)]
    areas = [
        f"{each['name'].upper()} {words.rounded(each['value'])} "
        f"{words.interval(each['interval']['low'], each['interval']['high'])}".strip()
        for each in records
    ]
    picture = Figure(
        draw=partial(plot_faithfulness, curve),
        label="Faithfulness by circuit size.",
        caption=(
            f"Normalised faithfulness by size (n = {curve.points[0].n}; band: 95{NARROW}% intervals) of "
            f"{curve.convention}."
        ),
    )
    table = Figure(blocks=[measurement_table(measurement_rows(records))], caption=LEGEND, kind="Table")
    place = int(curve.values.argmax() if curve.overshoot > NOTABLE else (curve.values >= ENOUGH).argmax())
    circuit = curve.circuits[place]
    sections = [Section(title="Faithfulness by size", blocks=[picture, table])]
    if circuit.n_edges:  # an undefined curve may have an empty one
        heading = f"The circuit of faithfulness {words.rounded(curve.values[place])}"
        view = circuit_page(circuit, scores=curve.scores if isinstance(curve.scores, EdgeScores) else None)
        sections += [Section(title=heading, blocks=[Note(text=view.verdict), *view.sections[0].blocks])]
    return Page(
        kind="faithfulness curve",
        title=f"Faithfulness by circuit size on {curve.provenance['task']['name']}",
        verdict=f"{' and '.join(areas)}. {overshoot_text(curve)}".strip(),
        sections=sections,
        records=[folded_record("How it came to be", curve.provenance)],
    )


def _attention(
    graph: Graph, edges: list[tuple[str, str, float]], model: Model, task: PairTask, prompts: int
) -> dict[str, Any]:
    """Patterns of the circuit's heads on the first prompts, those with the strongest edges first."""
    if model.graph.fingerprint != graph.fingerprint:
        raise GraphMismatchError(f"the circuit does not belong to {model.id}: their graphs differ")
    rows = [row for row in range(min(prompts, task.n)) if int(task.lengths[row]) <= LONGEST]
    patterns = [attention_pattern(model, task, row).numpy() for row in rows]
    heads = dict[str, None]()  # strongest edge first
    for source, target, _ in edges:
        fed = graph.feeds[graph.target_index(target)].nonzero().flatten().tolist()
        nodes = (source, *(graph.sources[row] for row in fed))
        heads |= dict.fromkeys(node for node in nodes if ".h" in node)
    room = int(PATTERN_BYTES / (sum(4 * pattern.shape[-1] ** 2 / 3 for pattern in patterns) or 1))
    note = f"Patterns of {room} of {len(heads)} heads are kept, those with the strongest edges. "
    short = f"Prompts of more than {LONGEST} tokens are left out."
    places = {name: [int(part[1:]) for part in name.split(".")] for name in [*heads][: room if rows else 0]}
    return {
        "note": note * (room < len(heads)) + short * (len(rows) < min(prompts, task.n)),
        "prompts": [
            {"text": f"{row + 1}: {cut_text(''.join(tokens).strip(), 200)}", "tokens": tokens}
            for row, tokens in ((row, prompt_tokens(task, row)) for row in rows)
        ],
        "heads": {
            name: [packed_pattern(pattern[layer, head]) for pattern in patterns]
            for name, (layer, head) in places.items()
        },
    }


def prompt_tokens(task: PairTask, row: int) -> list[str]:
    """The tokens of a clean prompt as text."""
    ids = task.clean[row, : int(task.lengths[row])].tolist()
    return [str(each) if task.tokenizer is None else task.tokenizer.decode([each]) for each in ids]
