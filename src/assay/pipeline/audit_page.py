"""The page of an audit: the finding, the circuit, its curve, where it lives, every number."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import InputError
from assay.core.measurement import FEW_PROMPTS
from assay.metrics.page import (
    LEGEND,
    OPEN,
    CurveData,
    measurement_rows,
    measurement_table,
    overshoot_text,
    plot_curve,
    with_parts,
)
from assay.page import blocks
from assay.page import text as words
from assay.page.blocks import (
    PAGES,
    Block,
    Column,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Page,
    PageForm,
    Section,
    Table,
)
from assay.page.draw import Matrix, matrix_table, plot_matrix
from assay.page.graph import TERMINAL_ROWS, circuit_view, graph_of, signed
from assay.page.text import NARROW, Span, Text, code, italic, listed, number, percent, quiet, rounded
from assay.pipeline.audit_result import SCHEMA, STRONGEST, Audit, heads_by_strength


if TYPE_CHECKING:
    from matplotlib.axes import Axes


PROMPT_LIMIT = 600  # characters of a prompt: what differs is found word by word
LISTED_ANSWERS = 6  # of a prompt that are named
UNSOLVED = "task_not_solved"
AXES = ("head", "layer")
MOST_APART = 0.20  # of faithfulness under two ablations, from which a sentence names the ablations
# Rows of the table by their metrics, with what they are called; the judged list lengths of top-K follow.
MAIN = {
    "faithfulness": "faithfulness",
    "faithfulness-norm": "normalised faithfulness",
    "completeness": "completeness",
    "kl": "KL divergence",
}
Document = Mapping[str, Any]


def _size(audit: Audit) -> tuple[int, int, str]:
    """What the circuit keeps, out of how many, and what they are: edges or nodes."""
    circuit = audit.reported
    if "level" not in circuit:
        return circuit["n_edges"], audit.graph["n_edges"], "edges"
    return len({*circuit["nodes"]} - {"logits"}), graph_of(audit.graph).n_sources, "nodes"


def audit_page(audit: Audit) -> Page:
    """Everything that is shown of an audit.

    Args:
        audit: What `assay.audit` made.
    """
    task, what = audit.task, _size(audit)[2]
    apart = f" that were not used to rank its {what}" if audit.discovery["held_out"] else ""
    sections: dict[str, Sequence[Block]] = {
        "The task": [_task(audit)],
        "The circuit": [_circuit(audit)],
        "How much of the behaviour it keeps": [] if audit.curve is None else [_curve(audit, audit.curve)],
        "Where it lives": [_heads(audit)],
        "Every number": [_numbers(audit)],
        "What was not run": [Facts(facts=[*audit.left_out.items()])] if audit.left_out else [],
        "How it was made": [Note(text=_method(audit)), _rankings(audit)],
    }
    return Page(
        kind="circuit audit",
        title=f"A circuit for {task['name']} in {audit.model['id']}",
        verdict=verdict(audit),
        caveats=caveats(audit),
        lede=(
            f"Every {what[:-1]} outside the circuit was ablated ({task['ablation']}) and the model run on "
            f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{number(task['n'])} {task['inputs']} of ",
            italic(task["name"]),
            f"{apart}. Brackets hold 95{NARROW}% intervals.",
        ),
        sections=[Section(title=title, blocks=inside) for title, inside in sections.items() if inside],
        facts=_facts(audit),
        records=[
            blocks.folded_record("The record behind the result’s id", audit.provenance.get("record", {}))
        ],
    )


# ---- the finding ---------------------------------------------------------------------------------


def solved(audit: Audit) -> bool:
    """Whether the model shows a behaviour on the measured prompts that a circuit could keep."""
    first = audit.measurements[0]
    return first["value"] is not None and UNSOLVED not in first["warnings"]


def verdict(audit: Audit) -> str:
    """The finding of an audit in one sentence."""
    circuit, task, (kept, total, what) = audit.reported, audit.task, _size(audit)
    first, *others = audit.measurements
    if first["n"] == 0 and first["reason"] == FEW_PROMPTS:
        return (
            f"Every pair of {task['name']} equals its counterpart, so nothing is ablated and faithfulness is "
            "undefined."
        )
    if not solved(audit):
        accuracy = task["accuracy"]
        right = "" if accuracy is None else f" (right on {percent(accuracy)} of the {task['inputs']})"
        return f"{audit.model['id']} does not solve {task['name']}{right}, so faithfulness is undefined."
    sentence = (
        f"{number(kept)} of {number(total)} {what} ({percent(kept / total)}) {_reached(circuit)} "
        f"a normalised faithfulness of {_estimate(first)} (0: empty circuit, 1: model)"
    )
    for plain in (each for each in others if each["name"] == "faithfulness" and each["value"] is not None):
        if rounded(plain["value"]) != rounded(first["value"]):
            sentence += f", a plain faithfulness of {_estimate(plain)} (share of the model’s margin)"
    sentence += f" and {_estimate(audit.distribution)} of the output distribution"
    random = first["baseline"].get("random") or {}
    if random.get("value") is not None:
        sentence += f"; random circuits of that size reach {rounded(random['value'])} normalised"
    if kept >= total:
        where = " on both halves" if audit.discovery["held_out"] else ""
        sentence = f"No smaller circuit of the sweep reaches what was asked for{where}: {sentence}"
    return f"{sentence}."


def _reached(circuit: Document) -> str:
    """Which targets the circuit meets on the measured examples, before what it keeps."""
    margin, distribution = (circuit["reached"][name] for name in ("faithfulness", "distribution"))
    if margin and distribution:
        return "reach"
    if not circuit["target_kl"]:
        return "do not reach the target, with"
    if margin or distribution:
        return f"reach the target of {'faithfulness' if margin else 'the distribution'} alone, with"
    return "reach neither target, with"


def _estimate(record: Document) -> str:
    """A number with its interval, two decimals."""
    ends = record["interval"] or {}
    return f"{rounded(record['value'])} {words.interval(ends.get('low'), ends.get('high'))}".strip()


def _targets(circuit: Document) -> str:
    """What was asked of the circuit."""
    low, share = circuit["target"], circuit["target_kl"]
    asked = f"the margin (the interval of faithfulness between {number(low)} and {number(2 - low)})"
    return f"{asked} and {percent(share)} of the output distribution" if share else asked


def _ranked(audit: Audit) -> str:
    """The first of the ranking that the circuit was cut from."""
    what = _size(audit)[2]
    return f"strongest {what} by |score|" if audit.reported["absolute"] else f"{what} of highest signed score"


def caveats(audit: Audit) -> list[str]:
    """What a reader must know before trusting the verdict; empty when there is nothing."""
    notes, kind = [f"{text}." for text in audit.task["notes"]], audit.task["inputs"]
    first, circuit = audit.measurements[0], audit.reported
    value = first["value"]
    if "unstable_denominator" in first["warnings"]:
        notes.append(
            f"On these {number(first['n'])} {kind} the model’s gain over the empty circuit is within three "
            "standard errors of 0, and normalised faithfulness divides by it. Give more, so that it is known."
        )
    if not solved(audit):
        notes.append("The figures below describe the model’s arithmetic, not a behaviour.")
    else:
        if not all(circuit["reached"].values()):
            notes.append(
                f"The size was chosen to keep {_targets(circuit)} on the discovery {kind} "
                f"(faithfulness {rounded(circuit['discovery_faithfulness'])}, distribution "
                f"{rounded(circuit['discovery_distribution'])} there); on those measured here the circuit "
                "does not keep this."
            )
        others = [each for each in audit.other_ablations if each["value"] is not None]
        if any(abs(each["value"] - value) > MOST_APART for each in others):
            apart = [f"{rounded(each['value'])} under {each['provenance']['ablation']}" for each in others]
            notes.append(
                f"Normalised faithfulness is {rounded(value)} under {audit.task['ablation']} ablation, but "
                f"{listed(apart)}: name the ablation with the number."
            )
        failing = [each for each in _main_rows(audit) if each["verdict"]["status"] == "fail"]
        if failing:
            names = listed([f"{each['name']} ({rounded(each['value'])})" for each in failing])
            end = "fails its limit" if len(failing) == 1 else "fail their limits"
            notes.append(f"Not everything is kept: {names} {end}.")
    if not audit.discovery["held_out"]:
        other = ", or other prompts with --measure-on FILE" if kind == "prompts" else ""
        notes.append(
            f"Discovery and measurement used the same {kind}, so the numbers are optimistic and no verdict "
            f"is conclusive. Give 40 or more distinct {kind}, of which half are then held out{other}."
        )
    gap = audit.method.get("completeness_gap")
    if gap is not None and gap > 0.05:
        notes.append(f"The completeness gap of the attribution is {percent(gap)}: take more --steps.")
    return notes


# ---- the sections --------------------------------------------------------------------------------


def _task(audit: Audit) -> Interactive | Note:
    """Prompts side by side, and what the model does with them; of images the latter alone."""
    task, right = audit.task, ""
    kind = task["inputs"]
    if task["accuracy"] is not None:
        right = (
            f"The model prefers the right answer on {percent(task['accuracy'])} of the {kind}, with a mean "
            f"margin of {number(task['mean_margin'])}. "
        )
    lacking = " Prompts lack the BOS token that the tokenizer adds." if task.get("bos") is False else ""
    aside: Text = (f"{right}Objective: ", italic(task["objective"]), f".{lacking}")
    values = {"examples": [_example(each) for each in task["examples"]], "aside": aside}
    note = Note(text=aside)
    return Interactive(macro="prompts", values=values, blocks=[note]) if task["examples"] else note


def _example(example: Document) -> Document:
    """A pair of prompts with what differs marked, and its answers, of many the first and the last."""
    clean, corrupted = (words.cut_text(example[side], PROMPT_LIMIT) for side in ("clean", "corrupted"))
    sides = {"clean": _marked(clean, corrupted), "corrupted": _marked(corrupted, clean)}
    answers = {name: [*map(str, example.get(name) or ())] for name in ("answers", "wrong")}
    for name, texts in answers.items():
        if len(texts) > LISTED_ANSWERS:
            answers[name] = [*texts[:3], "\N{HORIZONTAL ELLIPSIS}", texts[-1], f"({len(texts)} in all)"]
    return {**example, **sides, **answers}


def _marked(text: str, other: str) -> Text:
    """The text, with the words marked that the other does not have there."""
    pieces, others = (re.findall(r"\s+|\w+|[^\w\s]", each) for each in (text, other))
    found = difflib.SequenceMatcher(None, pieces, others, autojunk=False).get_opcodes()
    parts = [(tag, "".join(pieces[start:stop])) for tag, start, stop, _, _ in found]
    return [part if tag == "equal" else Span(part, "mark") for tag, part in parts if part]


def _circuit(audit: Audit) -> Interactive:
    circuit, task, method, excerpt = audit.reported, audit.task, audit.method, audit.excerpt
    edges = audit.edges[: words.EDGES_LIMIT]
    size, n_edges, curve = circuit["size"], circuit["n_edges"], audit.curve
    n_kept, total, what = _size(audit)
    unconnected = " less those on no path from input to logits" if size > n_kept else ""
    caption = (
        f"The circuit: {number(n_kept)} of {number(total)} {what}, the {number(size)} "
        f"{_ranked(audit)}{unconnected}. Scores are {method['key']} attributions ({task['objective']}, "
        f"{task['ablation']} ablation), means over n = {number(audit.discovery['n'])} discovery "
        f"{task['inputs']}."
    )
    drawn: Document | None = None if curve is None else {"n_edges": curve.n_edges, "values": curve.values}
    if excerpt is not None:
        known = {} if curve is None else dict(zip(curve.n_edges, curve.values, strict=True))
        known[excerpt["size"]] = excerpt["faithfulness"]["value"]
        drawn = {"n_edges": sorted(known), "values": [known[size] for size in sorted(known)]}
        kept = words.estimate(*(excerpt["faithfulness"][key] for key in ("value", "low", "high")))
        caption += (
            f" The drawing opens on the first {number(excerpt['n_edges'])} edges that are connected. "
            f"They carry {percent(excerpt['attribution'])} of the circuit’s attribution (sum of |score|); "
            f"alone they reach a normalised faithfulness of {' '.join(kept).strip()}."
        )
    if (shared := audit.graph["n_heads"] // audit.graph["n_kv_heads"]) > 1:
        caption += f" Keys and values are shared by {shared} heads and drawn at the first of them."
    if what == "nodes":
        caption += " An edge is drawn with the score of the node that writes it."
        if n_edges > len(edges):
            caption += f" The {number(len(edges))} edges out of the strongest nodes are drawn."
        view = circuit_view(audit.graph, edges, n_edges=n_edges, caption=caption)
        return replace(view, blocks=[Note(text=caption), _strongest_nodes(audit)])
    if size > len(edges):
        caption += f" At most the first {number(len(edges))} edges are drawn."
    opened = (excerpt or circuit)["size"]
    return circuit_view(audit.graph, edges, n_edges=n_edges, size=opened, caption=caption, curve=drawn)


def _strongest_nodes(audit: Audit) -> Table:
    """What a terminal lists of a circuit of nodes."""
    scores = {edge["source"]: edge["score"] for edge in audit.edges}  # the strongest node first
    rows = [[name, signed(score)] for name, score in scores.items()][:TERMINAL_ROWS]
    note = f"The {len(rows)} strongest of {number(_size(audit)[0])} nodes."
    return Table(columns=[Column(name="node"), Column(name="score", numeric=True)], rows=rows, note=note)


def plot_audit(audit: Audit, ax: "Axes | None" = None) -> "Axes":
    """Draw the faithfulness curve of an audit, with its circuit on it."""
    if audit.curve is None:
        raise InputError("this audit was made without the curve; run it again without --skip curve")
    return plot_curve(audit.curve, ax)


def _curve(audit: Audit, curve: CurveData) -> Figure:
    kind, random = audit.task["inputs"], ""
    if curve.random_fractions:
        mark, sizes = ("Dashed", "each") if len(curve.random_fractions) > 1 else ("Square", "the chosen")
        random = f" {mark}: {curve.n_random} random circuits of {sizes} size, mean and range."
    lines = (curve.n_edges, curve.fractions, curve.values, curve.low, curve.high)
    rows = [
        [number(size), percent(share), *words.estimate(value, low, high)]
        for size, share, value, low, high in zip(*lines, strict=True)
    ]
    what = _size(audit)[2]
    pruned = ", pruned to what is connected" if what == "edges" else ""
    heads = blocks.columns(what, "share", "normalised faithfulness", numeric=True)
    heads.append(Column(name="interval"))
    return Figure(
        draw=partial(plot_audit, audit),
        label=f"Faithfulness by circuit size on {curve.n} {kind}; the numbers are in the table.",
        caption=(
            f"Normalised faithfulness of the {_ranked(audit)}{pruned}, "
            f"by size (n = {number(curve.n)} {kind}; band: 95{NARROW}% interval).{random} The area under the "
            f"curve (CPR) is {number(curve.cpr)} and its mean distance from 1 (CMD) {number(curve.cmd)}. "
            f"{overshoot_text(curve)}".strip()
        ),
        more=[Details(summary="Numbers", blocks=[Table(columns=heads, rows=rows, named=False)])],
        beside=True,
        name="curve",
    )


def strongest_heads(audit: Audit) -> str:
    """The heads of the circuit with the largest attribution."""
    heads = list(heads_by_strength(audit).items())[:STRONGEST]
    if not heads:
        return "The circuit contains no head."
    names = [f"{name} ({words.plain_text(signed(value))})" for name, value in heads]
    return f"Strongest heads of the circuit, by summed outgoing attribution: {listed(names)}."


def head_data(audit: Audit) -> Matrix:
    """Summed score of each head's outgoing edges: rows are heads, columns layers in forward order."""
    values = np.array(audit.per_head, dtype=float).T
    rows, names = (tuple(f"{name} {i}" for i in range(n)) for name, n in zip(AXES, values.shape, strict=True))
    return Matrix(rows=rows, columns=names, values=values, row_title=AXES[0], column_title=AXES[1])


def _heads(audit: Audit) -> Figure:
    heads = head_data(audit)
    meaning = (
        "in units of the objective: the first-order effect of ablating it. Blue supports, vermilion opposes"
    )
    if audit.method["key"] == "two-target":
        meaning = "sums of shares of three attributions, without unit or direction"
    return Figure(
        draw=partial(plot_matrix, heads),
        label="Attribution of each head, signed; the numbers are in the table.",
        blocks=[Note(text=strongest_heads(audit))],
        caption=(
            f"Each head’s summed outgoing attribution over n = {number(audit.discovery['n'])} "
            f"{audit.task['inputs']}, {meaning}."
        ),
        more=[Details(summary="Numbers", blocks=[matrix_table(heads)])],
        name="heads",
    )


def _judged(topk: Document | None) -> list[str]:
    """The list lengths of top-K agreement that have limits."""
    return [key for key in topk["parts"] if key in topk["verdict"]["thresholds"]] if topk else []


def _main_rows(audit: Audit) -> list[dict[str, Any]]:
    """The six numbers that have limits."""
    records = {each["name"]: each for each in audit.measurements}
    main = [{**records[key], "name": name, "parts": {}} for key, name in MAIN.items() if key in records]
    return main + [_agreement(records["topk"], key) for key in _judged(records.get("topk"))]


def _numbers(audit: Audit) -> Figure:
    """Six rows with their limits; everything else that was measured is behind a click."""
    records = {each["name"]: each for each in audit.measurements}
    headed = [each for key in (*MAIN, "topk") if (each := records.get(key))]
    rest = [
        audit.distribution,
        *audit.other_ablations,
        *(each for each in audit.measurements if each not in headed),
    ]
    shown = {f"topk: {key}" for key in _judged(records.get("topk"))}
    parts = [part for record in headed for part in [*with_parts(record)][1:]]
    rest += [{**part, "name": name} for name, part in parts if name not in shown]
    return Figure(
        blocks=[measurement_table(measurement_rows(_main_rows(audit)))],
        caption=f"What was measured on the circuit of figure 1. {LEGEND}",
        kind="Table",
        more=[Details(summary="More numbers", blocks=[measurement_table(measurement_rows(rest))])],
        name="numbers",
    )


def _agreement(topk: Document, key: str) -> dict[str, Any]:
    """One list length of top-K agreement, which is undecided where the whole rests on these examples."""
    part, reason = topk["parts"][key], topk["verdict"].get("reason")
    random = (topk["baseline"].get("random") or {}).get("parts") or {}
    record = {**part, "name": f"top-{key.partition('@')[2]} agreement", "warnings": topk["warnings"]}
    record["baseline"] = {"random": {"value": random.get(key)}}
    if reason in OPEN:
        record |= {"status": topk["status"], "verdict": {**part["verdict"], "reason": reason}}
    return record


def _method(audit: Audit) -> Text:
    task, circuit, discovery, method = audit.task, audit.reported, audit.discovery, audit.method
    kind, what = task["inputs"], _size(audit)[2]
    steps = f", {method['steps']} steps of the {method['quadrature']} rule" if method["steps"] else ""
    drawn = "" if task["seed"] is None else f" drawn with seed {discovery['seed']}"
    measured = f"measured on the same {kind}."
    if discovery["held_out"]:
        grown = "; where needed, it was grown until it kept this there too" if circuit["confirmed"] else ""
        measured = f"measured on {number(task['n'])} other {kind} of the same source{grown}."
    return (
        f"Every {what[:-1]} was scored with ",
        italic(method["key"]),
        f"{steps}, on {number(discovery['n'])} {kind}{drawn}. The circuit is the smallest swept set of the "
        f"{_ranked(audit)} that keeps {_targets(circuit)} there "
        f"({rounded(circuit['discovery_faithfulness'])} and {rounded(circuit['discovery_distribution'])}), "
        f"{measured} Intervals resample {kind}: they say how numbers would move with other {kind} of this "
        "kind, not with another model or another wording.",
    )


def _rankings(audit: Audit) -> Table:
    """Orders of the edges that were tried for a circuit, and what that took."""
    what = _size(audit)[2]
    heads = [
        *blocks.columns("scores", f"{what} by"),
        *blocks.columns(f"{what} needed", "circuits", numeric=True),
    ]
    heads.append(Column(name="passes per example", numeric=True))
    rows = []
    for each in audit.reported["rankings"]:
        passes = each["passes"] or {}
        needed = "no fewer" if each["size"] is None else number(each["size"])
        rows.append(
            [
                each["method"],
                "size of score" if each["absolute"] else "signed score",
                needed,
                number(each["circuits"]),
                ", ".join(f"{n:,g} {name}" for name, n in passes.items()),
            ]
        )
    caption = f"Tried on the discovery {audit.task['inputs']}, each below the size that one before it needs."
    return Table(columns=heads, rows=rows, caption=caption)


def _facts(audit: Audit) -> list[tuple[str, Text]]:
    model, task, provenance = audit.model, audit.task, audit.provenance
    graph = graph_of(audit.graph)
    parameters = f", {number(model['n_parameters'])} parameters" if model["n_parameters"] else ""
    shape = f"{graph.n_layers} layers × {graph.n_heads} heads, width {model['d_model']}{parameters}"
    machine = [f"{name} {value}" for name, value in (provenance.get("machine") or {}).items()]
    nodes = f"{number(graph.n_sources)} sources × {number(graph.n_targets)} targets, "
    return [
        ("result", code(provenance["id"])),
        ("model", words.model_text(model, f"{model['family']}, {shape}")),
        ("task", words.task_text(task, "" if task["seed"] is None else f"seed {task['seed']}")),
        ("circuit", code(audit.reported["id"])),
        ("graph", (nodes, quiet("hash"), " ", code(graph.fingerprint))),
        ("made by", (provenance["library"], *((" ", quiet(note)) for note in (audit.created, *machine)))),
    ]


PAGES.add(
    "audit",
    PageForm(
        noun="audit document",
        schema=SCHEMA,
        again="`assay audit`",
        make=lambda document: audit_page(Audit.from_dict(document)),
    ),
)
