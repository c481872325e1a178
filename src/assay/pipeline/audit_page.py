"""The page of an audit: its finding, the circuit, its curve, where it lives, every number."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from assay.metrics.page import LEGEND, OPEN, measurement_rows, measurement_table, with_parts
from assay.metrics.plots import plot_curve
from assay.page import text as words
from assay.page.blocks import (
    Column,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Page,
    Section,
    Table,
    folded_record,
)
from assay.page.form import PAGES, PageForm
from assay.page.graph import circuit_view, edges_table, shared_kv, signed
from assay.page.matrix import matrix_table, plot_matrix
from assay.page.text import (
    EDGES_LIMIT,
    NARROW,
    Span,
    Text,
    code,
    cut_text,
    italic,
    listed,
    model_text,
    number,
    percent,
    plain_text,
    quiet,
    task_text,
)
from assay.pipeline.audit import SCHEMA, Audit
from assay.pipeline.audit_plots import agreement_data, curve_data, head_data, layer_data, plot_agreement
from assay.pipeline.audit_words import caveats, inputs, strongest_heads, verdict


LISTED_WORDS = 6
EXAMPLES = 12  # prompts shown
PROMPT_LIMIT = 600  # characters of a prompt: what differs is found word by word
REPLACEMENTS = {
    "resample": "on the corrupted prompt",
    "zero": "if its source were silent",
    "mean": "on average over the prompts",
    "mean-positional": "on average over the prompts at that position",
}
Document = Mapping[str, Any]


def audit_page(audit: Audit) -> Page:
    """Everything that is shown of an audit.

    Args:
        audit: What `assay.audit` made.
    """
    task, circuit, discovery = audit.task, audit.reported, audit.discovery
    apart = " that were not used to rank its edges" if discovery["held_out"] else ""
    return Page(
        kind="circuit audit",
        title=audit.title,
        verdict=verdict(audit),
        caveats=caveats(audit),
        lede=(
            f"Every edge outside the circuit was ablated ({circuit.get('ablation', task['ablation'])}) "
            f"and the "
            f"model run on n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{number(task['n'])} {inputs(audit)} of ",
            italic(task["name"]),
            f"{apart}. Brackets hold 95{NARROW}% intervals.",
        ),
        sections=[
            Section(title="The task", blocks=[_task(audit)]),
            Section(title="The circuit", blocks=[_circuit(audit)]),
            Section(
                title="How much of the behaviour it keeps",
                blocks=[
                    make(audit, part)
                    for make, part in ((_curve, audit.curve), (_agreement, audit.topk))
                    if part is not None
                ],
            ),
            Section(
                title="Where it lives",
                blocks=[Section(blocks=[_heads(audit), _layers(audit)], style="pair")],
            ),
            Section(title="Every number", blocks=[_numbers(audit)]),
            *_not_run(audit),
            Section(title="How it was made", blocks=[_method(audit)]),
        ],
        facts=list(_facts(audit)),
        records=[folded_record("The record behind the result’s id", audit.provenance.get("record", {}))],
    )


# ------------------------------------------------------------------------------------------------ the task


def _task(audit: Audit) -> Interactive | Note:
    """Prompts side by side, and what the model does with them; of images the latter alone."""
    task = audit.task
    if not task.get("examples"):
        return Note(text=_behaviour(audit))
    examples = [_example(example) for example in task.get("examples", [])[:EXAMPLES]]
    return Interactive(
        template="prompts.html",
        values={"examples": examples, "aside": _behaviour(audit)},
        blocks=[Note(text=_behaviour(audit))],
    )


def _behaviour(audit: Audit) -> Text:
    task, kind, right = audit.task, inputs(audit), ""
    if task["accuracy"] is not None:
        margin = task["mean_margin"]
        ending = "" if margin is None else f", with a mean margin of {number(margin)}"
        right = f"The model prefers the right answer on {percent(task['accuracy'])} of the {kind}{ending}. "
    ablation = REPLACEMENTS.get(task["ablation"], f"under {task['ablation']}").replace("prompt", kind[:-1])
    return (
        f"{right}Objective: ",
        italic(task["objective"]),
        f". An ablated edge carries its value {ablation}.{BEGINNINGS[task.get('bos')]}",
    )


BEGINNINGS = {
    None: "",
    True: " Prompts begin with the tokenizer's beginning-of-sequence token (BOS).",
    False: " Prompts do not begin with the beginning-of-sequence token (BOS) that the tokenizer adds.",
}


def _example(example: Document) -> dict[str, Any]:
    clean, corrupted = (cut_text(str(example[side]), PROMPT_LIMIT) for side in ("clean", "corrupted"))
    return {
        "clean": _changed_words(clean, corrupted),
        "corrupted": _changed_words(corrupted, clean),
        "answers": _shortened(example.get("answers", [])),
        "wrong": _shortened(example.get("wrong", [])),
        "margin": example.get("margin"),
    }


def _shortened(answers: Sequence[object]) -> list[str]:
    """Words as they are, or the first and the last few of many."""
    listed = [str(word) for word in answers]
    if len(listed) <= LISTED_WORDS:
        return listed
    return [*listed[:3], "\N{HORIZONTAL ELLIPSIS}", listed[-1], f"({len(listed)} in all)"]


def _changed_words(text: str, other: str) -> Text:
    """The text, with what differs from the other prompt marked."""
    pieces, others = re.findall(r"\s+|\w+|[^\w\s]", text), re.findall(r"\s+|\w+|[^\w\s]", other)
    matcher = difflib.SequenceMatcher(None, pieces, others, autojunk=False)
    parts: list[Text] = []
    for tag, start, stop, _, _ in matcher.get_opcodes():
        if stop > start:
            part = "".join(pieces[start:stop])
            parts.append(part if tag == "equal" else Span(part, "mark"))
    return parts


# ------------------------------------------------------------------------------------------------ pictures


def _circuit(audit: Audit) -> Interactive:
    edges = audit.edges[:EDGES_LIMIT]
    caption = _circuit_caption(audit, len(edges), shared_kv(audit.graph))
    excerpt = audit.excerpt
    drawn: Sequence[Document] = edges
    if excerpt is not None:
        drawn = [{**edge, "kept": "shown" in edge} for edge in edges]
    return circuit_view(
        audit.graph,
        drawn,
        size=(excerpt or audit.reported)["size"],
        caption=caption,
        curve=_with_excerpt(audit.curve, excerpt) if excerpt else audit.curve,
        blocks=[Note(text=_excerpt_words(excerpt)), _readers(edges)] if excerpt else (),
        more=[edges_table(edges)],
    )


def _with_excerpt(curve: Document | None, excerpt: Document) -> dict[str, Any]:
    """Faithfulness by size, with that of the edges on which the drawing opens."""
    known = {} if curve is None else dict(zip(curve["n_edges"], curve["values"], strict=True))
    known[excerpt["size"]] = excerpt["faithfulness"]["value"]
    return {"n_edges": sorted(known), "values": [known[size] for size in sorted(known)]}


def _excerpt_words(excerpt: Document) -> str:
    """What share of a circuit the drawing opens on, and what that keeps alone."""
    found = words.estimate(*(excerpt["faithfulness"][key] for key in ("value", "low", "high")))
    return (
        f"The drawing opens on the {number(excerpt['n_edges'])} strongest edges that are connected. They "
        f"carry {percent(excerpt['attribution'])} of the circuit’s attribution (sum of |score|); alone they "
        f"reach a normalised faithfulness of {' '.join(found).strip()}."
    )


def _readers(edges: Sequence[Document]) -> Facts:
    """The edges on which the drawing opens, by the input that they enter, the strongest first."""
    read: dict[str, list[str]] = {}
    for edge in edges:
        if "shown" in edge:
            source = f"{edge['source']} ({plain_text(signed(edge['score']))})"
            read.setdefault(edge["target"], []).append(source)
    return Facts(facts=[(target, f"reads {listed(sources)}") for target, sources in read.items()])


def _circuit_caption(audit: Audit, n_drawn: int, shared_kv: int) -> Text:
    circuit, method = audit.reported, audit.method
    size, n_edges, n_listed = circuit["size"], circuit["n_edges"], len(audit.edges)
    unconnected = " less those on no path from input to logits" if size > n_edges else ""
    parts: list[Text] = [
        f"The circuit: {number(n_edges)} of {number(audit.graph['n_edges'])} edges, the strongest "
        f"{number(size)}{unconnected}. Scores are {method['key']} attributions ({method['objective']}, "
        f"{method['ablation']} ablation), means over n = {number(audit.discovery['n'])} discovery "
        f"{inputs(audit)}."
    ]
    if audit.excerpt is not None:
        parts.append(f" {_excerpt_words(audit.excerpt)}")
    if shared_kv > 1:
        parts += [
            f" Keys and values are shared by {shared_kv} heads and drawn at the first of them; ",
            code("kv0"),
            f" is read by heads 0 to {shared_kv - 1}.",
        ]
    if n_listed > n_drawn:
        parts += [
            f" The strongest {number(n_drawn)} of {number(n_listed)} edges listed in the result are drawn; ",
            code(f"assay show {audit.provenance['id']} --json"),
            " prints all of them.",
        ]
    elif size > n_drawn:
        upto = "The slider goes up to the" if audit.excerpt is not None else "Only the"
        ending = "." if audit.excerpt is not None else " are drawn."
        parts.append(f" {upto} strongest {number(n_drawn)} edges{ending}")
    hint = (
        " Hover a node or an edge to see what it reads and writes; click it to keep it picked. The "
        "controls change the size of the circuit and what of it is shown."
    )
    return [*parts, Span(hint, "script-only")]


def _curve(audit: Audit, facts: Document) -> Figure:
    curve = curve_data(audit)
    caption = (
        "Normalised faithfulness of the strongest edges, pruned to connected circuits, by size "
        f"(n = {number(curve.n)} {inputs(audit)}; band: 95{NARROW}% interval)."
    )
    if curve.random_fractions:
        n_circuits = facts["random"]["n_circuits"]
        mark, sizes = ("Dashed", "each") if len(curve.random_fractions) > 1 else ("Square", "the chosen")
        caption += f" {mark}: {n_circuits} random circuits of {sizes} size, mean and range."
    if facts["cpr"] is not None:
        caption += (
            f" With edges ranked by {facts.get('ranking', '|score|')}, the area under the curve "
            f"(CPR) is {number(facts['cpr'])} and its mean distance from 1 (CMD) "
            f"{number(facts['cmd'])}."
        )
    random = dict(zip(curve.random_fractions, curve.random_values, strict=True))
    columns = ["edges", "share", "normalised faithfulness", "interval", *(["random"] if random else [])]
    rows = [
        [
            number(size),
            percent(share),
            number(value),
            words.interval(low, high),
            *(["" if share not in random else number(random[share])] if random else []),
        ]
        for size, share, value, low, high in zip(
            curve.n_edges, curve.fractions, curve.values, curve.low, curve.high, strict=True
        )
    ]
    return Figure(
        draw=partial(plot_curve, curve),
        label=f"Faithfulness by circuit size on {curve.n} {inputs(audit)}; the numbers are in the table.",
        caption=caption,
        more=[_numbers_table(columns, rows)],
        beside=True,
        name="curve",
    )


def _numbers_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Details:
    """The numbers of a picture, all flush right but the intervals."""
    return Details(
        summary="Numbers",
        blocks=[
            Table(
                columns=[Column(name=name, numeric=name != "interval") for name in columns],
                rows=rows,
                named=False,
            )
        ],
    )


def _agreement(audit: Audit, topk: Document) -> Figure:
    agreement, kind = agreement_data(audit), inputs(audit)
    caption = (
        f"Top-K agreement on n = {number(agreement.n)} {kind}, with 95{NARROW}% intervals; squares: random "
        "circuits of equal size; ticks: chance."
    )
    if topk["label_top1_full"] is not None:
        caption += (
            f" The right answer is ranked first by the model on {percent(topk['label_top1_full'])} of "
            f"{inputs(audit)}, "
            f"by the circuit on {percent(topk['label_top1_circuit'])}."
        )
    if topk["patterns"]:
        caption += f" Reading: {', '.join(key.replace('_', ' ') for key in topk['patterns'])}."
    rows = [
        [
            str(k),
            number(agreement.values[place]),
            words.interval(agreement.low[place], agreement.high[place]),
            number(agreement.random[place]),
            number(agreement.chance[place]),
            number(agreement.tau[place]),
        ]
        for place, k in enumerate(agreement.k)
    ]
    return Figure(
        draw=partial(plot_agreement, agreement),
        label=f"Top-K agreement of circuit and model on {agreement.n} {kind}; the numbers are in the table.",
        caption=caption,
        more=[_numbers_table(["K", "agreement", "interval", "random", "chance", "rank agreement τ"], rows)],
        beside=True,
        name="agreement",
    )


def _heads(audit: Audit) -> Figure:
    heads = head_data(audit)
    return Figure(
        draw=partial(plot_matrix, heads),
        label="Attribution of each head, signed; the numbers are in the table.",
        blocks=[Note(text=strongest_heads(audit))],
        caption=f"Each head’s summed outgoing attribution over n = {number(audit.discovery['n'])} "
        f"{inputs(audit)}, in units of the objective: the first-order effect of ablating the head. Blue "
        "supports, vermilion opposes.",
        more=[Details(summary="Numbers", blocks=[matrix_table(heads)])],
        name="heads",
    )


def _layers(audit: Audit) -> Figure:
    layers = layer_data(audit)
    return Figure(
        draw=partial(plot_matrix, layers, percent=True),
        label="Share of all attribution between each writing and reading layer; the numbers are in the "
        "table.",
        caption="Share of all attribution (sum of |score|, per cent) on edges from the writing layer "
        "(rows) to "
        f"the reading layer (columns); n = {number(audit.discovery['n'])}.",
        more=[Details(summary="Numbers", blocks=[matrix_table(layers, percent=True)])],
        name="layers",
    )


# Rows of the table by their metrics, with what they are called; the judged list lengths of top-K follow.
MAIN = {
    "faithfulness": "faithfulness",
    "faithfulness-norm": "normalised faithfulness",
    "completeness": "completeness",
    "kl": "KL divergence",
}


def _numbers(audit: Audit) -> Figure:
    """Six rows with their limits; everything else that was measured is behind a click."""
    records = {each["name"]: each for each in audit.measurements}
    main = [{**records[key], "name": name, "parts": {}} for key, name in MAIN.items() if key in records]
    judged = []
    if topk := records.get("topk"):
        judged = [key for key, part in topk["parts"].items() if key in topk["verdict"]["thresholds"]]
        main += [_agreement_record(topk, key) for key in judged]
    headed = (*MAIN, "topk")
    rest = [*audit.other_ablations, *(each for key, each in records.items() if key not in headed)]
    for record in (records[key] for key in headed if key in records):
        shown = {f"topk: {key}" for key in judged}
        rest += [{**part, "name": name} for name, part in [*with_parts(record)][1:] if name not in shown]
    return Figure(
        blocks=[measurement_table(measurement_rows(main))],
        caption=f"What was measured on the circuit of figure 1. {LEGEND}",
        kind="Table",
        more=[Details(summary="More numbers", blocks=[measurement_table(measurement_rows(rest))])],
        name="numbers",
    )


def _agreement_record(topk: Document, key: str) -> dict[str, Any]:
    """One list length of top-K agreement, which is undecided where the whole rests on these examples."""
    part = topk["parts"][key]
    random = ((topk.get("baseline") or {}).get("random") or {}).get("parts") or {}
    record = {**part, "name": f"top-{key.partition('@')[2]} agreement", "warnings": topk["warnings"]}
    record["baseline"] = {"random": {"value": random.get(key)}}
    if (reason := topk["verdict"].get("reason")) in OPEN:
        record |= {"status": topk["status"], "verdict": {**part["verdict"], "reason": reason}}
    return record


# ------------------------------------------------------------------------------------------------ provenance


def _method(audit: Audit) -> Section:
    task, circuit, discovery = audit.task, audit.reported, audit.discovery
    method, kind = audit.method, inputs(audit)
    steps = f", {method['steps']} steps of the {method['quadrature']} rule" if method["steps"] else ""
    drawn = "" if task["seed"] is None else f" drawn with seed {discovery['seed']}"
    made: list[Text] = [
        "Every edge was scored with ",
        italic(method["key"]),
        f"{steps}, on {number(discovery['n'])} {kind}{drawn}, with weights in {audit.model['dtype']}.",
    ]
    if method["completeness_gap"] is not None:
        made.append(
            " The scores out of the input add up to the effect of corrupting it within "
            f"{percent(method['completeness_gap'])}."
        )
    there = circuit["discovery_faithfulness"]
    made.append(
        " The edges were ranked by |score|; the reported circuit is the smallest swept one whose normalised "
        f"faithfulness is at least {number(circuit['target'])} on those {kind}"
        f"{'' if there is None else f' ({number(there)})'}"
        f"{' and on those it was measured on' if circuit.get('confirmed') else ''}."
    )
    if discovery["held_out"]:
        sizing = " They were used for the size alone: it grew until the target held on them as well."
        measured = (
            f"Every measurement above was made on {number(task['n'])} other {kind} of the same source, "
            f"without {kind} that occur in both draws.{sizing if circuit.get('confirmed') else ''}"
        )
    else:
        measured = f"Measurement used the same {kind} as discovery."
    measured += (
        f" Intervals resample {kind}; they say how the numbers would move with other {kind} of this "
        "kind, not "
        "with another model or another wording."
    )
    return Section(blocks=[Note(text=made), Note(text=measured)], style="columns")


def _facts(audit: Audit) -> Iterator[tuple[str, Text]]:
    model, task, graph = audit.model, audit.task, audit.graph
    provenance = audit.provenance
    parameters = f", {number(model['n_parameters'])} parameters" if model["n_parameters"] else ""
    shape = f"{model['n_layers']} layers × {model['n_heads']} heads, width {model['d_model']}{parameters}"
    yield "result", code(provenance["id"])
    yield "model", model_text(model, f"{model['family']}, {shape}")
    yield "task", task_text(task, "" if task["seed"] is None else f"seed {task['seed']}")
    yield "circuit", code(audit.reported["id"])
    nodes = f"{number(graph['n_sources'])} sources × {number(graph['n_targets'])} targets, "
    yield "graph", (nodes, quiet("hash"), " ", code(graph["fingerprint"]))
    machine = [f"{name} {value}" for name, value in (provenance.get("machine") or {}).items()]
    created = audit.created
    notes = [(" ", quiet(note)) for note in ([created] if created else []) + machine]
    yield "made by", (provenance["library"], *notes)


def _not_run(audit: Audit) -> list[Section]:
    """What was not run, why, and how it is had; nothing where everything was run."""
    if not audit.left_out:
        return []
    table = Table(
        columns=[
            Column(name="not run"),
            Column(name="why"),
            Column(name="option"),
        ],
        rows=[
            [
                each.what,
                each.reason,
                code(each.option) if each.option.startswith(("-", "assay")) else each.option,
            ]
            for each in audit.left_out
        ],
        named=False,
    )
    return [Section(title="What was not run", blocks=[table])]


PAGES.add(
    "audit",
    PageForm(
        noun="audit document",
        schema=SCHEMA,
        again="`assay audit`",
        make=lambda document: audit_page(
            Audit.from_dict({key: value for key, value in document.items() if key != "kind"})
        ),
    ),
)
