"""The pairs of a worst case as tokens or images, and what a search and an explanation add to them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from assay.analyses.worst_case.page_words import following, kind, second, significant, single
from assay.page.blocks import (
    Block,
    Details,
    Facts,
    Figure,
    Interactive,
    Note,
    Picture,
    Section,
    Table,
    columns,
)
from assay.page.text import Span, Text, bold, code, number, percent, plural, quiet
from assay.page.thumbnail import png_source


OPEN_PAIRS, LISTED_PAIRS, LISTED_EDGES = 8, 40, 12
RUNS = ("model", "circuit", "corrupted")
LINE_BREAK = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
Document = Mapping[str, Any]


class _ThirdRun(NamedTuple):
    """The run beside model and circuit, by its names."""

    run: str
    column: str
    followed: str
    side: str | None  # what the second input is called
    pictures: Mapping[str, Mapping[str, str]] | None = None  # of images, by side and row

    @property
    def answers(self) -> str:
        """What the outputs are about."""
        return "tokens" if self.pictures is None else "classes"


def _third_run(document: Document) -> _ThirdRun:
    of, pictures = kind(document), document.get("pictures")
    if single(document):
        return _ThirdRun("empty circuit", "empty circuit", "the empty circuit", None, pictures)
    side = second(document)
    return _ThirdRun(f"model on the {side} {of}", f"model, {side} {of}", f"the {side} {of}", side, pictures)


# ---------------------------------------------------------------------------------------------- worst pairs


def worst_pairs(document: Document, unit: str) -> list[Block]:
    """The worst pairs, and the inputs whose pairs are worst on average."""
    other = _third_run(document)
    pairs = [_pair(each, unit, other) for each in document["worst"][:LISTED_PAIRS]]
    if not pairs:
        return [Note(text="None were kept."), *_harmful_inputs(document, unit)]
    marked = "" if single(document) or other.pictures is not None else "Differing tokens are marked. "
    blocks: list[Block] = [
        Note(
            text=f"{marked}The columns compare the most likely {other.answers} and logits of the model on "
            f"the clean {kind(document)}, of the circuit, and of the {other.run}; they show whether the "
            f"circuit merely followed {other.followed}.",
            style="reading",
        ),
        *pairs[:OPEN_PAIRS],
    ]
    if folded := pairs[OPEN_PAIRS:]:
        blocks.append(Details(summary=f"{len(folded)} more", blocks=folded))
    if (left := len(document["worst"]) - LISTED_PAIRS) > 0:
        blocks.append(Note(text=f"{number(left)} more are in the result.", style="quiet"))
    return [*blocks, *_harmful_inputs(document, unit)]


def _pair(pair: Document, unit: str, other: _ThirdRun) -> Section:
    """A pair: its numbers, its images or its prompts token by token, the likeliest answers of three runs."""
    texts = {side: str(pair[side]["text"]) for side in ("clean", "corrupted")}
    if other.pictures is not None:
        shown: Block = Figure(pictures=list(_images(pair, other, other.pictures)))
    elif other.side is None:
        shown = Note(text=texts["clean"])
    else:
        tokens = [
            (str(first).replace("\n", LINE_BREAK), str(second).replace("\n", LINE_BREAK), first != second)
            for first, second in itertools.zip_longest(
                pair["clean"].get("tokens") or (), pair["corrupted"].get("tokens") or (), fillvalue=""
            )
        ]
        prompts = Facts(facts=[("clean", texts["clean"]), (other.side, texts["corrupted"])])
        values = {**texts, "side": other.side, "tokens": tokens}
        shown = Interactive(template="aligned.html", values=values, blocks=[prompts])
    line = Note(text=_pair_line(pair, unit, other), style="figures")
    return Section(blocks=[line, shown, *_likeliest(pair, other)], style="worst-pair")


def _images(pair: Document, other: _ThirdRun, pictures: Mapping[str, Mapping[str, str]]) -> Iterator[Picture]:
    """The images of a pair, with their names and facts."""
    for side, name in (("clean", "clean"), ("corrupted", other.side)):
        if name is None:
            return
        facts = ", ".join(f"{field} {value}" for field, value in pair[side]["fields"].items())
        yield Picture(
            source=png_source(pictures[side][str(pair[f"{side}_index"])]),
            lines=[str(pair[side]["text"]), name, facts],
            title=facts,
        )


def _pair_line(pair: Document, unit: str, other: _ThirdRun) -> Text:
    top, what = pair.get("top") or {}, "token" if other.pictures is None else "class"
    agreement, follows_corrupted = following(top, other.followed, what)
    second_row = "" if other.side is None else f", {other.side} {pair['corrupted_index']}"
    facts = [
        f"empty circuit {significant(pair['empty'])}",
        f"drawn {pair['multiplicity']} times" if pair["multiplicity"] > 1 else "",
        f"clean {pair['clean_index']}{second_row}",
    ]
    line: list[Text] = [
        bold(f"{pair['rank']}."),
        " ",
        Span(significant(pair["divergence"]), "big"),
        f" {unit}",
    ]
    line += itertools.chain.from_iterable((" ", quiet(each)) for each in facts if each)
    if answer := pair.get("answer"):
        line += [" ", quiet(("answer ", _answer(answer["text"], other)))]
    if agreement:
        line += [" ", Span(agreement, "following" if follows_corrupted else "quiet")]
    return line


def _answer(text: object, other: _ThirdRun) -> Text:
    """A token as code with its white space, or a class by its name."""
    return code(repr(str(text))) if other.pictures is None else str(text)


def _likeliest(pair: Document, other: _ThirdRun) -> list[Table]:
    """Likeliest tokens and logits of the runs side by side, then the rank of the right answer."""
    top, answer = pair.get("top") or {}, pair.get("answer") or {}
    runs = [name for name in RUNS if top.get(name)]

    def cell(run: str, place: int) -> Text:
        if place >= len(top[run]):
            return ""
        token = top[run][place]
        shown = _answer(token["token"], other)
        shown = Span(shown, "right") if answer and token["token"] == answer["text"] else shown
        return (shown, " ", quiet(number(token["logit"])))

    rows: list[list[Text]] = [
        [str(place + 1), *(cell(run, place) for run in runs)]
        for place in range(max((len(top[run]) for run in runs), default=0))
    ]
    if answer:
        ranks, logits = answer["rank"], answer["logit"]
        rows.append(
            ["answer", *((f"rank {number(ranks[run])} ", quiet(number(logits[run]))) for run in runs)]
        )
    names = columns("", *(other.column if run == "corrupted" else run for run in runs))
    return [Table(columns=names, rows=rows, style="tokens")] if runs else []


def _harmful_inputs(document: Document, unit: str) -> list[Block]:
    """The inputs of either side whose pairs are worst on average."""
    if single(document):
        return []
    found = {
        "clean": ("clean", document.get("worst_clean") or ()),
        "corrupted": (second(document), document.get("worst_corrupted") or ()),
    }
    if document.get("pictures") is not None:
        return [
            Figure(
                blocks=[Note(text=f"{name.capitalize()} images that do the most harm", style="heading")],
                pictures=[
                    Picture(
                        source=png_source(document["pictures"][side][str(row["index"])]),
                        lines=[
                            str(row["text"]),
                            f"mean {significant(row['mean'])}",
                            f"worst {significant(row['max'])} {unit}",
                        ],
                    )
                    for row in rows
                ],
            )
            for side, (name, rows) in found.items()
            if rows
        ]
    tables = [
        Table(
            columns=columns(f"{name} prompt") + columns(f"mean, {unit}", "worst", numeric=True),
            rows=[[str(row["text"]), significant(row["mean"]), significant(row["max"])] for row in rows],
            named=False,
        )
        for name, rows in found.values()
        if rows
    ]
    heading = Note(text="Single prompts that do the most harm", style="heading")
    return (
        [heading, Section(blocks=[Figure(blocks=[each]) for each in tables], style="pair")] if tables else []
    )


# --------------------------------------------------------------------------------- search and explanation


def searched_pairs(search: Document, document: Document, unit: str) -> Section:
    """The worst pairs that a search found."""
    note = (
        "These pairs were searched for, not sampled: they bound the maximum from below and do not enter the "
        f"percentiles and certificates above. {plural(search['n_evaluations'], 'evaluation')}, "
        f"{significant(search['max'])} {unit} at most."
    )
    other = _third_run(document)
    pairs = [_pair(each, unit, other) for each in search["pairs"][:OPEN_PAIRS]]
    return Section(title="Worst pairs found by search", blocks=[Note(text=note, style="reading"), *pairs])


def missing_edges(explanation: Document, unit: str) -> Section:
    """How much of the worst pairs' divergence single edges take away."""
    missing, kept = explanation["missing"], explanation.get("kept")
    strongest = missing["top"][:LISTED_EDGES]
    share = sum(each["share"] for each in strongest if each["share"] is not None)
    note = (
        "Shares of the worst pairs’ divergence that single missing edges would take away, by integrating the "
        "gradient along the path from the circuit to the whole model. On "
        f"{number(explanation['n_pairs'])} pairs the mean divergence of the circuit is "
        f"{significant(explanation['mean'])} {unit}; "
        f"the strongest {plural(len(strongest), 'edge')} below account for {percent(share)} of that. "
        f"The scores add up to all of it within {percent(missing['completeness_gap'])}."
    )
    blocks = [Note(text=note, style="reading"), *_edges("Missing edges", missing)]
    return Section(
        title="What the circuit lacks", blocks=blocks + (_edges("Kept edges", kept) if kept else [])
    )


def _edges(title: str, part: Document) -> list[Block]:
    """The strongest edges, and their sums by target and by layer."""
    edges = [
        [each["source"], each["target"], number(each["score"], 3), percent(each["share"])]
        for each in part["top"][:LISTED_EDGES]
    ]
    tables = [
        Table(columns=columns("source", "target") + columns("score", "share", numeric=True), rows=edges),
        *(_sums(name, part[f"by_{name}"]) for name in ("target", "layer")),
    ]
    return [Note(text=title, style="heading"), Section(blocks=tables, style="pair")] if edges else []


def _sums(name: str, sums: Mapping[str, float]) -> Table:
    rows: Sequence[Sequence[Text]] = [[each, number(score, 3)] for each, score in sums.items()]
    return Table(
        columns=columns(f"by {name}") + columns("score", numeric=True),
        rows=[[*row] for row in rows[:LISTED_EDGES]],
        left=max(0, len(rows) - LISTED_EDGES),
    )
