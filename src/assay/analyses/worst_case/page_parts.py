"""Parts of the page of a worst case: the words of a document, its percentiles, fields, pairs and edges."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.page.blocks import (
    Block,
    Cell,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Picture,
    Row,
    Section,
    Table,
    columns,
    heat_map,
)
from assay.page.draw import png_source
from assay.page.text import MINUS, Span, Text, bold, code, listed, number, percent, plural, quiet


Document = Mapping[str, Any]
STATISTICS = {"mean": "mean", "std": "standard deviation", "min": "least", "p50": "median", "max": "worst"}
NAMED = 4  # field values named in a sentence
OPEN_PAIRS, LISTED_PAIRS, LISTED_EDGES = 8, 40, 12
SPARSE = 20  # inputs below which a value or a cell is marked
LISTED_TESTS = 60
LARGEST_SIDE, PRINTED_SIDE = 24, 14  # lines drawn at most, and columns up to which numbers fit into cells
LEAST_INK, INK_RANGE, DEEP = 6, 84, 55  # per cent of full colour; above `DEEP` the number is set in paper
LINE_BREAK = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"


def significant(value: float | int | None) -> str:
    """A divergence with three significant digits, since tails span orders of magnitude; `n/a` undefined."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".removesuffix(".").replace("-", MINUS)


class Words:
    """What the inputs and values of a document are called.

    Attributes:
        single: Whether each value belongs to one input, as the ablation reads no second one.
        pictures: Of images, by side and row; None for prompts.
        of: What an input is.
        answer: What an output is about.
        noun: What a value belongs to, in the plural.
        counted: What of the sample is independent: inputs where pairs share them, else the pairs.
        second: What the second input of a pair is called.
        unit: Unit of the divergence as it stands behind a number.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.single = bool(document["protocol"] == "inputs")
        self.pictures: Mapping[str, Mapping[str, str]] | None = document.get("pictures")
        self.of, self.answer = ("prompt", "token") if self.pictures is None else ("image", "class")
        self.noun = f"{self.of}s" if self.single else "pairs"
        self.counted = "inputs" if document["protocol"] in ("all", "inputs") else "pairs"
        self.second = "donor" if document.get("ablation") == "resample-donor" else "corrupted"
        unit = str(document["unit"])
        self.unit = {"fraction": "of 1", "user": "units"}.get(unit, unit)

    def count(self, what: str, distinct: str = "") -> str:
        """Distinct `pairs`, `clean` or `corrupted` inputs, and how many draws they come from, if more."""
        n = self.document[f"n_{what}"]
        known = self.document.get(f"n_distinct_{what}", n)
        return number(known) + distinct + ("" if n == known else f" ({number(n)} draws)")


def certified(document: Document) -> dict[str, Document]:
    """By percentile, as `p99`, the first certificate that is a theorem; one with a bound if there is any."""
    sound: dict[str, Document] = {}
    for each in sorted(document["certificates"], key=lambda each: each["bound"] is None):
        if each["rigorous"]:
            sound.setdefault(f"p{100 * each['percentile']:.10g}", each)
    return sound


# ---------------------------------------------------------------------------------------------- fields


def field_blocks(fields: Document, words: Words) -> list[Block]:
    """Values whose pairs are worse than others, and a heat map for each pair of fields."""
    tests = list(fields.get("tests") or ())
    blocks: list[Block] = [Note(text=_finding(tests, words))]
    if tests:
        blocks.append(_tests(tests, words))
    return [*blocks, *(_heat_figure(each, words.unit) for each in fields.get("heatmaps") or ())]


def _field_name(field: str) -> str:
    """A field with the side that it belongs to, when that is the corrupted one."""
    name = field.removeprefix("corrupted.").replace("_", " ")
    return f"corrupted {name}" if field.startswith("corrupted.") else name


def _finding(tests: Sequence[Document], words: Words) -> str:
    """A sentence on the field values of bad pairs, or of bad prompts or images."""
    if not tests:
        return f"The {words.of}s of this task have no fields to compare."
    bad, share = [each for each in tests if each["significant"]], percent(tests[0]["pooled"])
    above = "above the pooled 99th percentile more often than chance explains"
    if not bad:
        return f"None of {number(len(tests))} field values lies {above} ({share} of all {words.noun} do)."
    values = [
        f"{_field_name(each['field'])} “{each['value']}” ({percent(each['exceed'])} of its {words.noun})"
        for each in bad[:NAMED]
    ]
    names = listed(values + ([f"{len(bad) - NAMED} more"] if len(bad) > NAMED else []))
    lie = "lies" if len(bad) == 1 else "lie"
    return f"{names[0].upper()}{names[1:]} {lie} {above}; of all {words.noun} {share} do."


def _tests(tests: Sequence[Document], words: Words) -> Figure:
    """Significant values, then those with enough inputs."""
    order = sorted(tests, key=lambda test: (not test["significant"], test["n_inputs"] < SPARSE))
    numbers = ("n_inputs", "n_pairs", "mean", "exceed", "p_value", "q_value")
    three = partial(number, digits=3)
    shown: tuple[Callable[[Any], str], ...] = (number, number, significant, percent, three, three)
    rows = []
    for test in order[:LISTED_TESTS]:
        others = [_field_name(alias) for alias in test.get("aliases") or ()]
        cells: list[Cell | Text] = [
            (_field_name(test["field"]), quiet(f" also {', '.join(others)}") if others else ""),
            Cell(text=str(test["value"]), style="value"),
        ]
        for name, show in zip(numbers, shown, strict=True):
            cells.append(Cell(text=show(test[name]), value="" if test[name] is None else test[name]))
        few = quiet(" few inputs") if test["n_inputs"] < SPARSE else ""
        cells.append((bold("worse") if test["significant"] else "", few))
        rows.append(Row(cells=cells, style="found" if test["significant"] else ""))
    heads = ("inputs", "draws" if words.single else "pairs", f"mean, {words.unit}")
    table = Table(
        columns=[
            *columns("field", "value", sort=True),
            *columns(*heads, "above the pooled 99th percentile", "p", "q", numeric=True, sort=True),
            *columns("finding", sort=True),
        ],
        rows=rows,
        left=max(0, len(tests) - LISTED_TESTS),
        style="field-tests",
        tall=True,
        named=False,
    )
    return Figure(
        blocks=[table],
        caption=f"Field values whose {words.noun} lie above the pooled 99th percentile more often than all "
        f"{words.noun} do. p: values reassigned to {words.of}s at random"
        f"{'' if words.single else ' (not to pairs)'} reach the same share; q: Benjamini-Hochberg over the "
        "values of a field; worse: q at most 0.05.",
        kind="Table",
    )


def _heat_figure(table: Document, unit: str) -> Figure:
    """The largest divergence of each cell; of a large table the rows and columns with the largest."""
    maxima = np.array(table["max"], dtype=float)
    rows, lines = _largest_lines(maxima), _largest_lines(maxima.T)
    fields = [_field_name(table[key]) for key in ("rows_field", "columns_field")]
    cells = heat_map(
        "worst",
        corner=" \\ ".join(fields),
        names=[str(table["columns"][column]) for column in lines],
        rows=_heat_rows(table, rows, lines, maxima[np.ix_(rows, lines)]),
        style="" if len(lines) <= PRINTED_SIDE else "fine",
    )
    sizes = [len(table[side]) for side in ("rows", "columns")]
    counts = zip((len(rows), len(lines)), sizes, fields, strict=True)
    cuts = [f"{n} of {size} values of {name}" for n, size, name in counts if n < size]
    cut = f" Shown: the {' and '.join(cuts)} with the largest maxima." if cuts else ""
    n_sparse = sum(0 < n < SPARSE for row in table["n_inputs"] for n in row)
    n_worse = sum(bool(each) for row in table["significant"] for each in row)
    caption = (
        f"Largest divergence by {fields[0]} (rows) and {fields[1]} (columns), {unit}; darker means larger."
        f"{cut} Grey: fewer than {SPARSE} distinct inputs ({n_sparse} of {sizes[0] * sizes[1]} cells); the "
        "maximum of a cell grows with its number of pairs. Outlined: cells above the pooled 99th percentile "
        f"significantly more often than all are ({n_worse})."
    )
    return Figure(blocks=[Section(blocks=[cells], style="panels")], caption=caption)


def _largest_lines(values: np.ndarray) -> list[int]:
    """Which rows of a table to show: all in order, or those with the largest entries, largest first."""
    if len(values) <= LARGEST_SIDE:
        return list(range(len(values)))
    reach = np.nan_to_num(values, nan=-math.inf).max(axis=1)
    return [int(row) for row in np.argsort(-reach, kind="stable")[:LARGEST_SIDE]]


def _heat_rows(
    table: Document, rows: Sequence[int], lines: Sequence[int], values: np.ndarray
) -> list[list[Cell | Text]]:
    """Cells with ink from the least to the largest."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    inks = LEAST_INK + INK_RANGE * np.nan_to_num((values - low) / max(high - low, 1e-300))

    def cell(row: int, column: int, value: float, ink: int) -> Cell:
        n, n_inputs, q_value, worse = (
            table[name][row][column] for name in ("n", "n_inputs", "q_value", "significant")
        )
        place = f"{table['rows'][row]}, {table['columns'][column]}"
        if not math.isfinite(value):
            return Cell(ink=ink, style="none", title=f"{place}; no pairs")
        styles = {"sparse": n_inputs < SPARSE, "found": worse, "deep": ink > DEEP and n_inputs >= SPARSE}
        return Cell(
            text=significant(value) if len(lines) <= PRINTED_SIDE else "",
            ink=ink,
            style=" ".join(name for name, holds in styles.items() if holds),
            title=f"{place}; {significant(value)}, n = {number(n)}; {number(n_inputs)} inputs; "
            f"q = {number(q_value)}",
        )

    return [
        [str(table["rows"][row]), *map(cell, [row] * len(lines), lines, *each)]
        for row, *each in zip(rows, values.tolist(), inks.round().astype(int).tolist(), strict=True)
    ]


# ----------------------------------------------------------------------------------------- worst pairs


def worst_pairs(document: Document, words: Words) -> list[Block]:
    """The worst pairs, and the inputs whose pairs are worst on average."""
    pairs = [_pair(each, words) for each in document["worst"][:LISTED_PAIRS]]
    if not pairs:
        return [Note(text="None were kept."), *_harmful_inputs(document, words)]
    marked = "" if words.single or words.pictures is not None else "Differing tokens are marked. "
    third = "empty circuit" if words.single else f"model on the {words.second} {words.of}"
    reading = (
        f"{marked}The columns compare the likeliest outputs and their logits of the model on the clean "
        f"{words.of}, of the circuit, and of the {third}, which the circuit may merely have followed."
    )
    blocks: list[Block] = [Note(text=reading, style="reading"), *pairs[:OPEN_PAIRS]]
    if folded := pairs[OPEN_PAIRS:]:
        blocks.append(Details(summary=f"{len(folded)} more", blocks=folded))
    if (left := len(document["worst"]) - LISTED_PAIRS) > 0:
        blocks.append(Note(text=f"{number(left)} more are in the result.", style="quiet"))
    return [*blocks, *_harmful_inputs(document, words)]


def _pair(pair: Document, words: Words) -> Section:
    """A pair: its numbers, its images or its prompts token by token, the likeliest answers of three runs."""
    sides = {"clean": "clean"} if words.single else {"clean": "clean", "corrupted": words.second}
    texts = {side: str(pair[side]["text"]) for side in sides}
    shown: Block = Note(text=texts["clean"])
    if words.pictures is not None:
        pictures = []
        for side, name in sides.items():
            facts = ", ".join(f"{field} {value}" for field, value in pair[side]["fields"].items())
            source = png_source(words.pictures[side][str(pair[f"{side}_index"])])
            pictures.append(Picture(source=source, lines=[texts[side], name, facts], title=facts))
        shown = Figure(pictures=pictures)
    elif not words.single:
        each = (pair[side].get("tokens") or () for side in sides)
        tokens = [
            (str(first).replace("\n", LINE_BREAK), str(other).replace("\n", LINE_BREAK), first != other)
            for first, other in itertools.zip_longest(*each, fillvalue="")
        ]
        prompts = Facts(facts=[(name, texts[side]) for side, name in sides.items()])
        values = {**texts, "side": words.second, "tokens": tokens}
        shown = Interactive(macro="aligned", values=values, blocks=[prompts])
    blocks = [Note(text=_pair_line(pair, words), style="figures"), shown, *_likeliest(pair, words)]
    return Section(blocks=blocks, style="worst-pair")


def _pair_line(pair: Document, words: Words) -> Text:
    facts: list[Text] = [f"empty circuit {significant(pair['empty'])}"]
    if pair["multiplicity"] > 1:
        facts.append(f"drawn {pair['multiplicity']} times")
    other = "" if words.single else f", {words.second} {pair['corrupted_index']}"
    facts.append(f"clean {pair['clean_index']}{other}")
    if pair.get("answer"):
        facts.append(("answer ", _token(pair["answer"]["text"], words)))
    size = Span(significant(pair["divergence"]), "big")
    line: list[Text] = [bold(f"{pair['rank']}."), " ", size, f" {words.unit}"]
    for fact in facts:
        line += [" ", quiet(fact)]
    return line


def _token(text: object, words: Words) -> Text:
    """A token as code with its white space, or a class by its name."""
    return code(repr(str(text))) if words.pictures is None else str(text)


def _likeliest(pair: Document, words: Words) -> list[Table]:
    """Likeliest tokens and logits of the runs side by side, then the rank of the right answer."""
    top, answer = pair.get("top") or {}, pair.get("answer") or {}
    third = "empty circuit" if words.single else f"model, {words.second} {words.of}"
    names = {"model": "model", "circuit": "circuit", "corrupted": third}
    runs = {run: name for run, name in names.items() if top.get(run)}
    if not runs:
        return []

    def cell(token: Document | None) -> Text:
        if token is None:
            return ""
        shown = _token(token["token"], words)
        right = answer and token["token"] == answer["text"]
        return (Span(shown, "right") if right else shown, " ", quiet(number(token["logit"])))

    places = itertools.zip_longest(*(top[run] for run in runs))
    rows: list[list[Text]] = [[str(rank), *map(cell, each)] for rank, each in enumerate(places, start=1)]
    if answer:
        ranks = ((f"rank {number(answer['rank'][run])} ", answer["logit"][run]) for run in runs)
        rows.append(["answer", *((rank, quiet(number(logit))) for rank, logit in ranks)])
    return [Table(columns=columns("", *runs.values()), rows=rows, style="tokens")]


def _harmful_inputs(document: Document, words: Words) -> list[Block]:
    """The inputs of either side whose pairs are worst on average."""
    if words.single:
        return []
    tables: list[Block] = []
    for side, name in (("clean", "clean"), ("corrupted", words.second)):
        rows = document.get(f"worst_{side}") or ()
        heads = columns(f"{name} {words.of}") + columns(f"mean, {words.unit}", "worst", numeric=True)
        cells = [[str(row["text"]), significant(row["mean"]), significant(row["max"])] for row in rows]
        if rows:
            tables.append(Figure(blocks=[Table(columns=heads, rows=cells, named=False)]))
    heading = Note(text=f"Single {words.of}s that do the most harm", style="heading")
    return [heading, Section(blocks=tables, style="pair")] if tables else []


# ------------------------------------------------------------------------------ search and explanation


def searched_pairs(search: Document, words: Words) -> Section:
    """The worst pairs that a search found."""
    note = (
        "These pairs were searched for, not sampled: they bound the maximum from below and do not enter the "
        f"percentiles and certificates above. {plural(search['n_evaluations'], 'evaluation')}, "
        f"{significant(search['max'])} {words.unit} at most."
    )
    pairs = [_pair(each, words) for each in search["pairs"][:OPEN_PAIRS]]
    return Section(title="Worst pairs found by search", blocks=[Note(text=note, style="reading"), *pairs])


def missing_edges(explanation: Document, words: Words) -> Section:
    """How much of the worst pairs' divergence single edges take away."""
    missing = explanation["missing"]
    strongest = missing["top"][:LISTED_EDGES]
    share = sum(each["share"] for each in strongest if each["share"] is not None)
    note = (
        "Shares of the worst pairs’ divergence that single missing edges would take away, by integrating the "
        "gradient along the path from the circuit to the whole model. On "
        f"{number(explanation['n_pairs'])} pairs the mean divergence of the circuit is "
        f"{significant(explanation['mean'])} {words.unit}; "
        f"the strongest {plural(len(strongest), 'edge')} below account for {percent(share)} of that. "
        f"The scores add up to all of it within {percent(missing['completeness_gap'])}."
    )
    blocks: list[Block] = [Note(text=note, style="reading")]
    for title, part in (("Missing edges", missing), ("Kept edges", explanation.get("kept"))):
        if not part or not part["top"]:
            continue
        rows = [
            [each["source"], each["target"], number(each["score"], 3), percent(each["share"])]
            for each in part["top"][:LISTED_EDGES]
        ]
        heads = columns("source", "target") + columns("score", "share", numeric=True)
        tables = [Table(columns=heads, rows=rows)]
        for name in ("target", "layer"):
            sums = [[each, number(score, 3)] for each, score in part[f"by_{name}"].items()]
            heads = columns(f"by {name}") + columns("score", numeric=True)
            left = max(0, len(sums) - LISTED_EDGES)
            tables.append(Table(columns=heads, rows=sums[:LISTED_EDGES], left=left))
        blocks += [Note(text=title, style="heading"), Section(blocks=tables, style="pair")]
    return Section(title="What the circuit lacks", blocks=blocks)
