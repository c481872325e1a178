"""The pairs of a worst case as tokens or images, and what search, other inputs and explanations add."""

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


OPEN_PAIRS, LISTED_PAIRS = 8, 40
LISTED_ITEMS, LISTED_LETTERS, NESTED = 12, 600, 3  # bounds of what is shown of any further part
RUNS = ("model", "circuit", "corrupted")
LINE_BREAK = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
EXTRAS = {
    "search": (
        "Worst pairs found by search",
        "These pairs were searched for, not sampled: they bound the maximum from below and do not enter the "
        "percentiles and certificates above.",
    ),
    "explanation": (
        "What the circuit lacks",
        "Shares of the worst pairs’ divergence that single missing edges would take away, by integrating the "
        "gradient along the path from the circuit to the whole model.",
    ),
}
Document = Mapping[str, Any]

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


def _pair(pair: Document, unit: str, other: _ThirdRun) -> Section:
    """A pair: its numbers, its images or its prompts token by token, the likeliest answers of three runs."""
    clean, corrupted = pair["clean"], pair["corrupted"]
    tokens = [
        (str(first).replace("\n", LINE_BREAK), str(second).replace("\n", LINE_BREAK), first != second)
        for first, second in itertools.zip_longest(
            clean.get("tokens") or (), corrupted.get("tokens") or (), fillvalue=""
        )
    ]
    texts = {"clean": str(clean["text"]), "corrupted": str(corrupted["text"])}
    if other.pictures is not None:
        shown: Block = Figure(pictures=list(_images(pair, other, other.pictures)))
    elif other.side is None:
        shown = Note(text=texts["clean"])
    else:
        prompts = Facts(facts=[("clean", texts["clean"]), (other.side, texts["corrupted"])])
        shown = Interactive(
            template="aligned.html", values={**texts, "side": other.side, "tokens": tokens}, blocks=[prompts]
        )
    return Section(
        blocks=[
            Note(text=_pair_line(pair, unit, other), style="figures"),
            shown,
            *_likeliest(pair.get("top") or {}, pair.get("answer") or {}, other),
        ],
        style="worst-pair",
    )


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
    answer, (agreement, follows_corrupted) = (
        pair.get("answer"),
        following(pair.get("top") or {}, other.followed, "token" if other.pictures is None else "class"),
    )
    line: list[Text] = [
        bold(f"{pair['rank']}."),
        " ",
        Span(significant(pair["divergence"]), "big"),
        f" {unit}",
    ]
    if pair.get("empty") is not None:
        line += [" ", quiet(f"empty circuit {significant(pair['empty'])}")]
    if pair.get("multiplicity", 1) > 1:
        line += [" ", quiet(f"drawn {pair['multiplicity']} times")]
    if pair.get("clean_index") is not None:
        second_row = "" if other.side is None else f", {other.side} {pair['corrupted_index']}"
        line += [" ", quiet(f"clean {pair['clean_index']}{second_row}")]
    reads: Sequence[Document] = pair.get("reads") or ()
    if len(reads) > 1:
        worst = reads[0]
        line += [
            " ",
            quiet(
                f"mean of {len(reads)} reads; the worst, below, is at token {number(worst['position'])}: "
                f"{significant(worst['divergence'])}"
            ),
        ]
    if answer:
        line += [" ", quiet(("answer ", _answer(answer.get("text", ""), other)))]
    if agreement:
        line += [" ", Span(agreement, "following" if follows_corrupted else "quiet")]
    return line


def _answer(text: object, other: _ThirdRun) -> Text:
    """A token as code with its white space, or a class by its name."""
    return code(repr(str(text))) if other.pictures is None else str(text)


def _likeliest(top: Document, answer: Document, other: _ThirdRun) -> list[Table]:
    """Likeliest tokens and logits of the runs side by side, then the rank of the right answer."""
    runs = [name for name in RUNS if top.get(name)]
    if not runs:
        return []

    def cell(run: str, place: int) -> Text:
        if place >= len(top[run]):
            return ""
        token = top[run][place].get("token", "")
        shown = _answer(token, other)
        if answer and token == answer.get("text"):
            shown = Span(shown, "right")
        return (shown, " ", quiet(number(top[run][place].get("logit"))))

    rows: list[list[Text]] = [
        [str(place + 1), *(cell(run, place) for run in runs)]
        for place in range(max(len(top[run]) for run in runs))
    ]
    if answer:
        ranks, logits = answer.get("rank") or {}, answer.get("logit") or {}
        rows.append(
            ["answer", *((f"rank {number(ranks.get(run))} ", quiet(number(logits.get(run)))) for run in runs)]
        )
    return [
        Table(
            columns=columns("", *(other.column if run == "corrupted" else run for run in runs)),
            rows=rows,
            style="tokens",
        )
    ]


def _harmful_inputs(document: Document, unit: str) -> list[Block]:
    if document.get("pictures") is not None:
        return _harmful_images(document, unit)
    tables = [
        Figure(
            blocks=[
                Table(
                    columns=columns(f"{side} prompt") + columns(f"mean, {unit}", "worst", numeric=True),
                    rows=[
                        [str(row["text"]), significant(row["mean"]), significant(row["max"])] for row in rows
                    ],
                    named=False,
                )
            ]
        )
        for key, side in (("worst_clean", "clean"), ("worst_corrupted", second(document)))
        if (rows := document.get(key)) and not single(document)
    ]
    return (
        [
            Note(text="Single prompts that do the most harm", style="heading"),
            Section(blocks=tables, style="pair"),
        ]
        if tables
        else []
    )


def _harmful_images(document: Document, unit: str) -> list[Block]:
    galleries = [
        Figure(
            blocks=[Note(text=f"{side.capitalize()} images that do the most harm", style="heading")],
            pictures=[
                Picture(
                    source=png_source(document["pictures"][key][str(row["index"])]),
                    lines=[
                        str(row["text"]),
                        f"mean {significant(row['mean'])}",
                        f"worst {significant(row['max'])} {unit}",
                    ],
                )
                for row in rows
            ],
        )
        for key, side in (("clean", "clean"), ("corrupted", second(document)))
        if (rows := document.get(f"worst_{key}")) and not single(document)
    ]
    return list(galleries)


# ------------------------------------------------------------------------------------------- optional parts


def extra_sections(document: Document, unit: str) -> list[Section]:
    """What was searched for or explained, as far as the document has it."""
    return [
        Section(title=title, blocks=_extra(name, document, note, unit))
        for name, (title, note) in EXTRAS.items()
        if document.get(name)
    ]


def _extra(name: str, document: Document, note: str, unit: str) -> list[Block]:
    value, other = document[name], _third_run(document)
    pairs = (
        [each for each in value.get("pairs") or () if _is_pair(each)] if isinstance(value, Mapping) else []
    )
    if pairs:
        other = other._replace(pictures=value.get("pictures"))
        value = {key: each for key, each in value.items() if key not in ("pairs", "pictures")}
    if name == "explanation" and isinstance(value, Mapping):
        note = " ".join(filter(None, (note, _missing_sentence(value, unit))))
        value = {
            title: _edges(value[key])
            for key, title in (("missing", "Missing edges"), ("kept", "Kept edges"))
            if value.get(key)
        }
    first, *others = _parts(value) or [[]]
    return [
        Note(text=note, style="reading"),
        *first,
        *(_pair(each, unit, other) for each in pairs[:OPEN_PAIRS]),
        *itertools.chain.from_iterable(others),
    ]


def _is_pair(value: object) -> bool:
    return isinstance(value, Mapping) and {"clean", "corrupted", "divergence", "top"} <= set(value)


def _missing_sentence(explanation: Document, unit: str) -> str:
    """How much the listed edges account for; empty where nothing can be said."""
    missing = explanation.get("missing") or {}
    top = [each for each in missing.get("top") or () if each.get("share") is not None][:LISTED_ITEMS]
    if not top or explanation.get("mean") is None:
        return ""
    gap = missing.get("completeness_gap")
    within = "" if gap is None else f" The scores add up to all of it within {percent(gap)}."
    return (
        f"On {number(explanation['n_pairs'])} pairs the mean divergence of the circuit is "
        f"{significant(explanation['mean'])} {unit}; the {plural(len(top), 'missing edge')} below "
        f"{'accounts' if len(top) == 1 else 'account'} for "
        f"{percent(sum(each['share'] for each in top))} of that.{within}"
    )


def _edges(part: Any) -> Any:
    """Edges by score and their sums; the title says whether they are kept."""
    if not isinstance(part, Mapping):
        return part
    edges = [
        {key: each for key, each in edge.items() if key != "kept"} if isinstance(edge, Mapping) else edge
        for edge in part.get("top") or ()
    ]
    sums = {
        key.replace("_", " "): part[key] for key in ("by_source", "by_target", "by_layer") if part.get(key)
    }
    return {"by score": edges} | sums


def _parts(value: Any, title: str = "", depth: int = 0) -> list[list[Block]]:
    """Any plain JSON as titled facts and tables, cut to a bounded size."""
    if isinstance(value, Mapping):
        facts = [(str(name), each) for name, each in value.items() if _fits_a_line(each)]
        parts = [_facts(title, facts)] if facts else []
        nested = [(name, each) for name, each in value.items() if not _fits_a_line(each) and each]
        for name, each in nested[:LISTED_ITEMS] if depth < NESTED else ():
            parts += _parts(each, f"{title} {name}".strip().replace("_", " "), depth + 1)
        return parts
    if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        records = [_flat(each) for each in value[:LISTED_ITEMS]]
        names = list(dict.fromkeys(name for record in records for name in record))
        table = Table(
            columns=columns(*(name.replace("_", " ") for name in names)),
            rows=[[_shown(record.get(name)) for name in names] for record in records],
            left=len(value) - len(records),
            named=False,
        )
        return [[*_headings(title), table]]
    return [_facts(title, [("", value)])]


def _fits_a_line(value: Any) -> bool:
    """Whether it is a scalar, or a list of scalars, which fits on a line once it is cut."""
    return not isinstance(value, Mapping) and not (
        isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value)
    )


def _headings(title: str) -> list[Note]:
    return [Note(text=title, style="heading")] if title else []


def _facts(title: str, facts: Sequence[tuple[str, Any]]) -> list[Block]:
    shown = Facts(facts=[(name.replace("_", " "), _shown(value)) for name, value in facts[:LISTED_ITEMS]])
    left = len(facts) - LISTED_ITEMS
    note = Note(text=f"{number(left)} more are in the result.", style="quiet note")
    return [*_headings(title), shown, *([note] if left > 0 else [])]


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a record, those of its own records after a dot; longer lists are left out."""
    facts: dict[str, Any] = {}
    for name, value in record.items():
        inner = (
            {f"{name}.{key}": each for key, each in value.items()}
            if isinstance(value, Mapping)
            else {name: value}
        )
        facts |= {str(key): each for key, each in inner.items() if not isinstance(each, Mapping | list)}
    return facts


def _shown(value: Any) -> str:
    if isinstance(value, list):
        more = f", and {number(len(value) - LISTED_ITEMS)} more" if len(value) > LISTED_ITEMS else ""
        return ", ".join(_shown(each) for each in value[:LISTED_ITEMS]) + more
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, float):
        return significant(value)
    return number(value) if isinstance(value, int) else str(value)[:LISTED_LETTERS]
