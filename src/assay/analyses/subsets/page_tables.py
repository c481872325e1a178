"""What the page of a chosen subset lists: sizes, folds, classes, attributes, single examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.analyses.subsets.page_words import (
    NAMES,
    baselines,
    class_shares,
    ends,
    p_value,
    share,
    signed,
    tested_units,
)
from assay.page import text as words
from assay.page.blocks import Block, Cell, Column, Details, Figure, Note, Picture, Row, Table, columns
from assay.page.text import MINUS, NARROW, Span, Text, bold, quiet
from assay.page.thumbnail import png_source


# Heads of the columns of the table by size, and what its caption says of each.
HEADS = {"random": "random", "hard": "hardest", "marginal": "one-pass", "distance": "furthest"}
ESTIMATES = ("p", "R, cross-fitted", "R, test models", "rank corr.", "R, validation")
MEANINGS = {
    "random": "Random: mean and 95{percent} of random subsets. ",
    "hard": "Hardest: examples that the fewest training models classify correctly. ",
    "marginal": "One-pass: examples that, taken singly, correlate most negatively with the training models’ "
    "in-distribution accuracy. ",
    "distance": "Furthest: examples least similar to any in-distribution example. ",
}
MARKS = {"supported": "\N{BLACK CIRCLE}", "inconclusive": "\N{DOTTED CIRCLE}", "not judged": "\N{EN DASH}"}
RULES = {
    "val": f"R on the validation models at most {MINUS}0.3",
    "ci": "and the upper end of the interval on the test models too",
    "paper": f"R on the test models at most {MINUS}0.3, as published (looks at the test models)",
}
TALL = 12  # sizes of a table that is not scrolled
PICTURES = 48  # examples of a side, at most
SHOWN_PICTURES = 24  # of these without a click
LISTED_VALUES = 40
Document = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------- sizes


def judged_sizes_table(document: Document) -> Table:
    """A row per size: the verdict, R on each part of the models, and that of the baselines."""
    kinds = baselines(document)
    return Table(
        columns=[
            *columns("examples", "share", numeric=True, sort=True),
            Column(name="verdict", sort=True),
            *columns(*ESTIMATES, numeric=True, sort=True),
            *(Column(name=HEADS[kind], numeric=True, sort=True, title=NAMES[kind]) for kind in kinds),
        ],
        rows=[_size_row(row, document, kinds) for row in document["rows"]],
        caption=_size_caption(document, kinds),
        style="subset-sizes",
        tall=len(document["rows"]) > TALL,
    )


def _size_row(row: Document, document: Document, kinds: Sequence[str]) -> Row:
    judged = row.get("verdict") or {}
    status = judged.get("status", "not judged")
    p = "" if judged.get("p_value") is None else p_value(judged["p_value"])
    size = row["size"]
    return Row(
        cells=[
            Cell(text=words.number(size), value=size, style="n"),
            Cell(text=share(size / document["data"]["n_examples"]), value=size, style="quiet"),
            Cell(status=status, mark=MARKS[status]),
            Cell(text=p, value=p),
            correlation_cell(row.get("verdict")),
            _tested_cell(row["test"]),
            correlation_cell(row["test"], "spearman"),
            correlation_cell(row["validation"]),
            *(correlation_cell(row.get(kind)) for kind in kinds),
        ],
        style="headline" if size == document["size"] else "",
    )


def correlation_cell(record: Document | None, statistic: str = "r") -> Cell:
    """A correlation with its interval; empty where it was not asked for."""
    if record is None or record.get(statistic) is None:
        return Cell(text="" if record is None else "undefined", value="")
    prefix = "" if statistic == "r" else f"{statistic}_"
    return Cell(
        text=signed(record[statistic]),
        below=ends(record.get(f"{prefix}low"), record.get(f"{prefix}high")),
        value=f"{record[statistic]:.6f}",
    )


def _tested_cell(test: Document) -> Cell:
    """R on the test models with its interval and, below that, Fisher's; both also in a terminal."""
    cell, fisher = correlation_cell(test), ends(test.get("fisher_low"), test.get("fisher_high"))
    below = (cell.below, " ", Span(f"Fisher {fisher}", "line")) if fisher else cell.below
    return replace(cell, below=below, kept=True)


def _size_caption(document: Document, kinds: Sequence[str]) -> str:
    n_tested = len((document["verdict"] or {}).get("sizes") or ())
    tried = f" at any of the {n_tested} sizes tried" if n_tested > 1 else ""
    full = document["full"]["test"]
    whole = "undefined" if full["r"] is None else f"{signed(full['r'])} {ends(full['low'], full['high'])}"
    return (
        "The verdict is based on the cross-fitted R: selected and judged again for each fold of "
        f"{tested_units(document)}, so every model is a test model once. p: share of shuffled accuracies "
        f"that reach as low an R{tried}. R on the test models is that of the reported subset; the Fisher "
        "interval holds if these are independent. R on the validation models was used during the search "
        "and is slightly too low. "
        f"{''.join(MEANINGS[kind].format(percent=f'{NARROW}%') for kind in kinds)}On all "
        f"{words.number(document['data']['n_examples'])} examples R is {whole}."
    )


def largest_table(largest: Sequence[Document]) -> Table:
    """The largest subset on the inverse line by each rule."""
    return Table(
        columns=[
            *columns("rule", ""),
            Column(name="largest subset", numeric=True),
            Column(name="verdict"),
            Column(name="R, test models", numeric=True),
        ],
        rows=[_largest_row(each) for each in largest],
        caption="The largest subset on the inverse line, by three rules, among the sizes above. If the "
        "verdict is inconclusive, so is this size.",
        style="gate-table",
    )


def _largest_row(largest: Document) -> list[Cell | Text]:
    meaning = Cell(text=RULES[largest["rule"]], style="meaning")
    if largest["size"] is None:
        return [largest["rule"], meaning, "none", "", ""]
    correlation = (
        signed(largest.get("r")),
        " ",
        quiet(ends(largest.get("low"), largest.get("high"))),
    )
    return [largest["rule"], meaning, words.number(largest["size"]), str(largest["status"]), correlation]


def fold_table(judged: Document) -> Table:
    """What each fold of the cross-fit gave.

    Args:
        judged: The verdict of a document, with its folds.
    """
    caption = "The cross-fit, fold by fold: the models of a fold took no part in choosing its subset."
    if judged.get("mean_consistency") is not None:
        caption += (
            f" The subsets of the folds overlap by {signed(judged['mean_consistency'])} on average (1: as "
            "if nested, 0: as random subsets)."
        )
    if judged["p_unadjusted"] is not None and len(judged.get("sizes") or ()) > 1:
        caption += f" Without the correction for sizes p is {p_value(judged['p_unadjusted'])}."
    folds = range(1, len(judged["fold_sizes"]) + 1)
    return Table(
        columns=[Column(name="fold"), *columns(*map(str, folds), numeric=True)],
        rows=[
            ["R on its models", *(signed(r) for r in judged["fold_correlations"])],
            ["models", *(Cell(text=words.number(n), style="quiet") for n in judged["fold_sizes"])],
        ],
        caption=caption,
        style="gate-table",
    )


# ---------------------------------------------------------------------------------------------- contents


def class_table(document: Document) -> Table:
    """Classes by their share among the chosen examples, largest first."""
    per_class = {each["label"]: each for each in (document["composition"].get("per_class") or ())}
    inside = any(each.get("r") is not None for each in per_class.values())
    rows = []
    for each in sorted(class_shares(document), key=lambda each: -each.chosen):
        row: list[Cell | Text] = [
            each.name,
            Cell(text=share(each.chosen), value=f"{each.chosen:.6f}"),
            Cell(text=share(each.pool), value=f"{each.pool:.6f}"),
            "" if each.pool == 0 else words.number(each.chosen / each.pool),
        ]
        if inside:
            own = per_class.get(each.name) or {}
            row.append("" if own.get("n") is None else words.number(int(own["n"])))
            row.append("" if own.get("r") is None else signed(own["r"]))
        rows.append(row)
    named = ["chosen", "pool", "ratio"]
    named += ["chosen examples", "R on them alone, test models"] if inside else []
    return Table(
        columns=[Column(name="class", sort=True), *columns(*named, numeric=True, sort=True)],
        rows=rows,
        style="gate-table",
        tall=True,
    )


def prevalence_table(prevalence: Document) -> Table:
    """Attribute values with their shares, surest difference first; of numbers the means."""
    ordered = sorted(
        prevalence["rows"],
        key=lambda row: (1.0 if row["q_value"] is None else row["q_value"], -abs(row["difference"] or 0.0)),
    )
    return Table(
        columns=[
            *columns("attribute", "value", sort=True),
            *columns("subset", "pool", "difference", numeric=True, sort=True),
            Column(name=f"95{NARROW}% interval", numeric=True),
            *columns("ratio", "q", numeric=True, sort=True),
        ],
        rows=[_prevalence_row(row) for row in ordered[:LISTED_VALUES]],
        left=max(0, len(ordered) - LISTED_VALUES),
        note="q: exact hypergeometric p (for means, Mann-Whitney’s) after Benjamini-Hochberg over all "
        "values.",
        style="gate-table",
        tall=True,
        named=False,
    )


def _prevalence_row(row: Document) -> list[Cell | Text]:
    def shown(name: str) -> Cell:
        numeric = row.get("numeric") or name not in ("selected", "pool")
        text = words.number(row[name], 3) if numeric else share(row[name])
        return Cell(text=text, value=_sorted_by(row[name]))

    name = "mean" if row.get("numeric") else row["value"]
    return [
        row["attribute"],
        bold(name) if row["significant"] else name,
        shown("selected"),
        shown("pool"),
        shown("difference"),
        Cell(text=words.interval(row["low"], row["high"], 3), style="quiet"),
        "" if row.get("ratio") is None else words.number(row["ratio"]),
        Cell(value="") if row["q_value"] is None else shown("q_value"),
    ]


def phrase_table(described: Document) -> Table:
    """Phrases by how far they fit the chosen examples better than the others, best first."""
    return Table(
        columns=[
            Column(name="phrase", sort=True),
            *columns("AUROC", "difference", "q", numeric=True, sort=True),
        ],
        rows=[
            [
                bold(each["phrase"]) if each["significant"] else each["phrase"],
                _scored(each, "auroc", "auroc_"),
                _scored(each, "difference", ""),
                Cell(text=p_value(each["q_value"]), value=each["q_value"]),
            ]
            for each in described["scores"]
        ],
        note=f"{words.number(described['n_selected'])} chosen examples against "
        f"{words.number(described['n_comparison'])} of the pool that were not chosen. AUROC above 0.5 and a "
        "difference of mean cosines above 0: more true of the chosen ones. q: rank-sum test after "
        "Benjamini-Hochberg over the phrases.",
        style="gate-table",
        named=False,
    )


def _scored(score: Document, name: str, prefix: str) -> Cell:
    low, high = score[f"{prefix}low"], score[f"{prefix}high"]
    interval = words.interval(low, high, 3)
    return Cell(text=words.number(score[name], 3), below=interval, value=f"{score[name]:.6f}")


def _sorted_by(value: float | int | None) -> float | int | str:
    return "" if value is None else value


# ---------------------------------------------------------------------------------------------- examples


def example_table(document: Document) -> Table:
    """The chosen examples, most harmful first."""
    examples = document["examples"]["selected"][:PICTURES]
    labelled = examples[0]["label"] is not None
    described = any(each.get("meta") for each in examples)
    rows = []
    for rank, each in enumerate(examples, start=1):
        row: list[Cell | Text] = [str(rank), str(each["id"])]
        row += [_label(each)] if labelled else []
        row += [Cell(text=_meta(each), style="quiet")] if described else []
        row += [
            Cell(text=share(each["right"]), value="" if each["right"] is None else f"{each['right']:.6f}"),
            Cell(text=signed(each["r"]), value="" if each["r"] is None else f"{each['r']:.6f}"),
        ]
        rows.append(row)
    named = ["example", *(["class"] if labelled else []), *(["facts"] if described else [])]
    return Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *columns(*named, sort=True),
            *columns("test models right", "own correlation", numeric=True, sort=True),
        ],
        rows=rows,
        note="Most harmful first: by the slope of R in each example’s weight. The document lists all "
        f"{words.number(document['size'])}, by position and name.",
        style="subset-examples",
        tall=True,
        named=False,
    )


def gallery(examples: Sequence[Document], title: str) -> list[Figure]:
    """Examples as pictures, the first of them without a click; empty without images."""
    pictures = [_picture(each) for each in examples[:PICTURES] if each.get("image")]
    if not pictures:
        return []
    shown, hidden = pictures[:SHOWN_PICTURES], pictures[SHOWN_PICTURES:]
    blocks: list[Block] = [Note(text=title, style="heading"), Figure(pictures=shown)]
    if hidden:
        blocks.append(Details(summary=f"{len(hidden)} more", blocks=[Figure(pictures=hidden)]))
    return [Figure(blocks=blocks)]


def _picture(example: Document) -> Picture:
    """An image with what is known of it."""
    name, meta = str(example["id"]), _meta(example)
    return Picture(
        source=png_source(example["image"]),
        lines=[_label(example) or name, f"{share(example['right'])} right"],
        title=f"{name}: {meta}" if meta else name,
    )


def _label(example: Document) -> str:
    return "" if example["label"] is None else str(example["label"])


def _meta(example: Document) -> str:
    return ", ".join(f"{name} {value}" for name, value in (example.get("meta") or {}).items())
