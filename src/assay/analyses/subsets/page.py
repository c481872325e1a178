"""Subsets of one or more sizes as a page, from the record of a `SelectionPath`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets import plots
from assay.analyses.subsets.line import AOTIL
from assay.core.errors import by_option
from assay.page.blocks import (
    Block,
    Cell,
    Column,
    Details,
    Facts,
    Figure,
    Note,
    Page,
    Picture,
    Row,
    Section,
    Table,
    columns,
    folded_record,
)
from assay.page.form import PAGES, PageForm
from assay.page.text import MINUS, NARROW, Text, bold, code, interval, number, out_of, percent, rounded
from assay.page.thumbnail import png_source


if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = {
    "family": ("family", "families"),
    "group": ("training run", "training runs"),
    "model": ("model", "models"),
}
SPLITS = {
    "group": "training run",
    "family": "family",
    "random": "model, at random",
    "given": "the caller",
    "fold": "fold",
}
# Heads of the columns of the baselines, and what the caption says of each.
BASELINES = {
    "random": ("random", f"Random: mean and 95{NARROW}% of random subsets. "),
    "hard": ("hardest", "Hardest: examples that the fewest training models classify correctly. "),
    "marginal": (
        "one-pass",
        "One-pass: examples that, taken singly, correlate most negatively with the training models’ "
        "in-distribution accuracy. ",
    ),
    "distance": ("furthest", "Furthest: examples least similar to any in-distribution example. "),
}
MARKS = {"supported": "\N{BLACK CIRCLE}", "inconclusive": "\N{DOTTED CIRCLE}", "not judged": "\N{EN DASH}"}
FEW_MODELS = 20
RELIABLE = 0.8  # share of the variance of in-distribution accuracies that is not sampling noise
CLIPPED = 0.05  # share of models at accuracy 0 or 1
MIXED = 0.75  # share of chosen examples that go against better models each by itself
TALL = 12  # sizes of a table that is not scrolled
FEW_CLASSES = 8  # whose table is shown without a click
LISTED_VALUES = 40
SHOWN_PICTURES = 24  # of a side without a click
Document = Mapping[str, Any]


def subset_page(document: Document) -> Page:
    """Everything that is shown of a subset or of a path over sizes.

    Args:
        document: Of `SelectionPath.to_dict`.
    """
    several = len(document["subsets"]) > 1
    sections = [
        Section(
            title="By size" if several else "Against other subsets of its size", blocks=_by_size(document)
        ),
        Section(title="The models", blocks=_models(document)),
        Section(title="Is it real?", blocks=_real(document)),
        Section(title="What is in it", blocks=_contents(document)),
        Section(title="Data and parameters", blocks=_data(document)),
    ]
    return Page(
        kind="subset",
        title=_title(document),
        verdict=_finding(document),
        status=_status(document),
        reasons=_sentences(document, "reasons"),
        caveats=[*_caveats(document), *_sentences(document, "notes")],
        lede=(
            "R is the correlation, over models, of accuracy on the chosen examples with in-distribution "
            "accuracy, both on probit axes. Below 0, models with higher in-distribution accuracy do worse "
            "here. A search finds a negative R among its own models in any data. The verdict therefore uses "
            f"{_tested_units(document)} that the search did not see, the same search on shuffled "
            "accuracies, and a correction for every size tried."
        ),
        sections=[section for section in sections if section.blocks],
        facts=[("result", code(document["id"])), ("data", code(document["provenance"]["data"]["hash"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="subset",
    )


def _headline(document: Document) -> Document:
    """The subset that the page is about."""
    subset: Document = next(each for each in document["subsets"] if each["size"] == document["size"])
    return subset


def _verdict(document: Document) -> Document:
    """Its verdict; empty where none was asked for."""
    return _headline(document)["verdict"] or {}


def _status(document: Document) -> str:
    return str(_verdict(document).get("status", "unjudged"))


def _unit_name(kind: str, n: int = 2) -> str:
    return UNITS[kind][n != 1]


def _tested_units(document: Document) -> str:
    """What the folds of the cross-fit keep whole."""
    known = _verdict(document) or document["contents"]["data"]
    return _unit_name(known["unit_kind"])


def _signed(value: float | None) -> str:
    return "n/a" if value is None or not math.isfinite(value) else rounded(value)


def _estimate(record: Document) -> str:
    return f"{_signed(record['r'])} {interval(record['low'], record['high'])}".strip()


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3g}"


# ------------------------------------------------------------------------------------------- sentences


def _title(document: Document) -> str:
    """What the page is about; says that better models do worse only where the verdict does."""
    size, pool = number(document["size"]), number(document["contents"]["data"]["n_examples"])
    chosen = f"All {pool} examples" if size == pool else f"The {size} of {pool} examples"
    return {
        "supported": f"{chosen} where better models do worse",
        "inconclusive": f"Among {pool} examples, none were shown on which better models do worse",
    }.get(_status(document), f"{chosen} chosen against better models")


def _finding(document: Document) -> str:
    """The finding as a sentence; R only together with its caveats."""
    verdict, size = _verdict(document), number(document["size"])
    if not verdict:
        return (
            f"Not judged. {size} examples were chosen so that models better in distribution do worse on "
            "them. Whether this also holds for other models was not tested."
        )
    p, tested = verdict["p_value"], len(verdict["sizes"])
    corrected = f", corrected for {tested} sizes" if tested > 1 else ""
    chance = "" if p is None else f" (p {'' if p < 0.001 else '= '}{_p(p)}{corrected})"
    r = f"cross-fitted over held-out {_tested_units(document)}, R is {_estimate(verdict)}{chance}"
    if verdict["status"] != "supported" and verdict["r"] is None:
        return (
            f"Inconclusive. {size} examples were chosen against better models, but this was not tested on "
            "models that took no part in the selection. Do not use the subset as evidence."
        )
    if verdict["status"] != "supported":
        return (
            f"Inconclusive. {size} examples were chosen against better models, but the effect is not "
            f"established: {r}. Do not use the subset as evidence."
        )
    strength = "Accuracy is on the inverse line."
    if not verdict["aotil"]:
        strength = f"The effect is weak: R is above {MINUS}0.3, the limit of an inverse line."
    return (
        f"Supported. On such a subset of {size} examples, models that are better in distribution do worse, "
        f"including models that took no part in the selection: {r}. {strength}{_largest(document)}"
    )


def _largest(document: Document) -> str:
    """The largest supported subset, beside one of lower R."""
    size = document["largest_supported"]
    if size in (None, document["size"]):
        return ""
    largest = next(each for each in document["subsets"] if each["size"] == size)
    return (
        f" This is the size of lowest R among the supported; the largest supported subset has "
        f"{number(size)} examples, with R {_estimate(largest['verdict'])}."
    )


def _sentences(document: Document, name: str) -> list[str]:
    """`reasons` or `notes` of the verdict as sentences, with options as the command line names them."""
    texts = map(by_option, _verdict(document).get(name, ()))
    # A sentence that opens with a symbol (p = ...) keeps it.
    return [
        f"{text[0] if text[1:2] == ' ' else text[0].upper()}{text[1:].rstrip('.')}." for text in texts if text
    ]


def _caveats(document: Document) -> list[str]:
    """What a reader must know before believing or using the subset."""
    return [f"{text.rstrip('.')}." for text in _warnings(document)]


def _warnings(document: Document) -> Iterator[str]:
    contents, subset, verdict = document["contents"], _headline(document), _verdict(document)
    data, split, test = contents["data"], contents["split"], subset["correlation"]["test"]
    full = subset["full"]["test"]["r"]
    if full is not None and full <= AOTIL:
        yield (
            f"On all {number(data['n_examples'])} examples together R is already {_signed(full)}: the pool "
            "as a whole is inverse, and its average hides nothing. If that surprises you, check that "
            "accuracies in distribution are accuracies, not errors, and that 1 means right"
        )
    if contents["classes"] and contents["classes"]["notice"]:
        yield by_option(contents["classes"]["notice"])
    if n := split["straddling"]:
        yield (
            f"{number(n)} {_unit_name(split['unit_kind'], n)} {'has' if n == 1 else 'have'} models both "
            "among those that chose the subset and among those that test it, so R on the test models does "
            "not test new ones"
        )
    if data["unit_kind"] == "model":
        yield (
            "Training runs and families of the models are unknown. Intervals treat each model as "
            "independent and are too narrow if some are not"
        )
    if data["n_models"] < FEW_MODELS:
        yield f"{data['n_models']} models are too few for a reliable correlation over models"
    if test["caution"] and not verdict:  # a verdict has a note of its own on that
        yield f"Test part of the main split: {test['caution']}"
    if (clipped := test["frac_clipped"] or 0) > CLIPPED:
        yield (
            f"{percent(clipped)} of the test models have accuracy 0 or 1 on the subset; R depends on them, "
            "and on how such accuracies are clipped"
        )
    negative = contents["replication"]["chosen"]["negative"]
    if _status(document) == "supported" and negative is not None and negative < MIXED:
        yield (
            f"Only {percent(negative)} of the chosen examples have a correlation below 0 on the test models: "
            "a subset of this size includes unrelated examples. Choose a smaller one"
        )
    hard = _baseline(document, "hard", document["size"])
    r, tested = test["r"], verdict.get("r")
    if hard and None not in (r, hard["r"]) and hard["r"] < r < 0 and (tested is None or tested < 0):
        yield (
            f"The {number(document['size'])} examples that the fewest training models classify correctly "
            f"have R {_signed(hard['r'])} on the test models, below the {_signed(r)} of the subset: "
            "difficulty may explain the result"
        )
    reliability = data["reliability"]
    if reliability is not None and reliability < RELIABLE:
        yield (
            f"Reliability of the in-distribution accuracies is {_signed(reliability)}: "
            f"{percent(min(1.0, 1 - reliability))} of their variance is sampling noise from too few "
            "examples, which moves every R towards 0"
        )


def _baseline(document: Document, kind: str, size: int) -> Document | None:
    rows = document["baselines"]
    return next((row for row in rows if row["kind"] == kind and row["size"] == size), None)


# ---------------------------------------------------------------------------------------------- blocks


def _figure(draw: "Callable[..., Axes]", *part: Any, caption: str, name: str, beside: bool = False) -> Figure:
    """A picture of the record or of parts of it, read out as the first sentence of its caption."""
    label = caption.partition(". ")[0].partition(": ")[0]
    return Figure(draw=partial(draw, *part), label=label, caption=caption, beside=beside, name=name)


def _by_size(document: Document) -> list[Block]:
    subsets, data = document["subsets"], document["contents"]["data"]
    n = subsets[0]["full"]["test"]["n"]
    drawn = _unit_name(document["provenance"]["data"]["interval_units"])
    size = _figure(
        plots.plot_size,
        document,
        caption=f"R over {number(n)} test models. Filled: supported; open: inconclusive; ringed: the size "
        f"shown on this page. Band of the chosen subsets: 95{NARROW}% of resampled {drawn}; band of the "
        f"random subsets: 95{NARROW}% of draws.",
        name="size",
        beside=len(subsets) == 1,
    )
    kinds = [kind for kind in BASELINES if any(row["kind"] == kind for row in document["baselines"])]
    numeric = (
        "p",
        "R, cross-fitted",
        "R, test models",
        "R, validation",
        *(BASELINES[kind][0] for kind in kinds),
    )
    several = f" at any of the {len(subsets)} sizes tried" if len(subsets) > 1 else ""
    table = Table(
        columns=[
            *columns("examples", "share", numeric=True, sort=True),
            Column(name="verdict", sort=True),
            *columns(*numeric, numeric=True, sort=True),
        ],
        rows=[_size_row(each, document, kinds) for each in subsets],
        caption="The verdict is based on the cross-fitted R: selected and judged again for each fold of "
        f"{_tested_units(document)}, so every model is a test model once. p: share of shuffled accuracies "
        f"that reach as low an R{several}. R on the test models is that of the reported subset. R on the "
        "validation models was used during the search and is slightly too low. "
        f"{''.join(BASELINES[kind][1] for kind in kinds)}On all {number(data['n_examples'])} examples R is "
        f"{_estimate(subsets[0]['full']['test'])}.",
        style="subset-sizes",
        tall=len(subsets) > TALL,
    )
    if len(subsets) == 1:
        return [size, table]
    sizes = [each["size"] for each in subsets]
    overlap = _figure(
        plots.plot_consistency,
        document["contents"]["consistency"],
        sizes,
        caption="Overlap of the subsets of every two sizes: 1 if the smaller lies inside the larger, 0 as "
        "for random subsets, vermilion below. This is not evidence that a subset is real: the overlap is as "
        "high in data without an effect.",
        name="consistency",
    )
    largest = document["largest_supported"]
    found = "none is supported" if largest is None else f"{number(largest)} examples"
    return [
        Section(blocks=[size, overlap], style="pair"),
        table,
        Note(text=f"Largest supported subset: {found}.", style="quiet note"),
    ]


def _size_row(subset: Document, document: Document, kinds: Sequence[str]) -> Row:
    verdict, size = subset["verdict"] or {}, subset["size"]
    status, p = verdict.get("status", "not judged"), verdict.get("p_value")
    parts = [verdict, subset["correlation"]["test"], subset["correlation"]["validation"]]
    parts += [_baseline(document, kind, size) for kind in kinds]
    return Row(
        cells=[
            Cell(text=number(size), value=size, style="n"),
            Cell(text=percent(size / document["contents"]["data"]["n_examples"]), value=size, style="quiet"),
            Cell(status=status, mark=MARKS[status]),
            Cell(text="" if p is None else _p(p), value="" if p is None else p),
            *map(_correlation_cell, parts),
        ],
        style="headline" if size == document["size"] else "",
    )


def _correlation_cell(record: Document | None) -> Cell:
    """A correlation with its interval; empty where it was not asked for."""
    if not record:
        return Cell(value="")
    if record["r"] is None:
        return Cell(text="undefined", value="")
    return Cell(text=_signed(record["r"]), below=interval(record["low"], record["high"]), value=record["r"])


def _models(document: Document) -> list[Block]:
    contents, needed = document["contents"], document["contents"]["models_needed"]
    n, n_models = _headline(document)["full"]["test"]["n"], number(contents["data"]["n_models"])
    which = (
        f"{number(plots.DRAWN_MODELS)} of the {number(n)}" if n > plots.DRAWN_MODELS else f"The {number(n)}"
    )
    scatter = _figure(
        plots.plot_scatter,
        contents,
        caption=f"{which} test models, none of which took part in the selection: accuracy on all examples "
        f"and on the {number(document['size'])} chosen ones, with least-squares lines. Both axes use the "
        "normal quantile; points at the end marked 0 or 1 have exactly that accuracy. The lines describe "
        "the main split alone; the verdict is above.",
        name="scatter",
    )
    settled = (
        f"In most random orders it has not settled at {n_models} models: more models would still change it."
    )
    if needed["median"] is not None:
        settled = (
            "In half of the random orders it has settled (each further step changes it by less than "
            f"1{NARROW}%) by {needed['median']:.0f} models; there are {n_models}."
        )
    runs = ", whole training runs at a time" if needed["whole_runs"] else ""
    curve = _figure(
        plots.plot_models,
        needed,
        caption=f"R on all examples as models are added{runs}: random orders and their mean. {settled}",
        name="models",
    )
    return [Section(blocks=[scatter, curve], style="pair")]


def _real(document: Document) -> list[Block]:
    verdict, replication = _verdict(document), document["contents"]["replication"]
    chosen, others = replication["chosen"], replication["others"]
    figures: list[Block] = []
    if verdict.get("null") and verdict["r"] is not None:
        grouped = (
            f", {_tested_units(document)} as wholes and models inside them"
            if verdict["kind"] == "group"
            else ""
        )
        several = ", with the lowest R over all sizes" if len(verdict["sizes"]) > 1 else ""
        null = _figure(
            plots.plot_null,
            verdict,
            caption="The result of the whole procedure if there is no effect: accuracies shuffled "
            f"{number(verdict['n_permutations'])} times{grouped}, then searched and cross-fitted "
            f"again{several}. The line is the observed R.",
            name="null",
        )
        figures.append(null)
    own = _figure(
        plots.plot_replication,
        replication,
        caption="Correlation of each single example, over the test models. Below 0: "
        f"{percent(chosen['negative'])} of the chosen examples and {percent(others['negative'])} of the "
        f"others. Significantly below 0 (false discovery rate 5{NARROW}%): {percent(chosen['discovered'])} "
        f"and {percent(others['discovered'])}.",
        name="replication",
    )
    blocks: list[Block] = [Section(blocks=[*figures, own], style="pair")]
    return [*blocks, _fold_table(verdict)] if verdict.get("fold_correlations") else blocks


def _fold_table(verdict: Document) -> Table:
    """What each fold of the cross-fit gave."""
    caption = "The cross-fit, fold by fold: the models of a fold took no part in choosing its subset."
    if verdict["mean_consistency"] is not None:
        caption += (
            f" The subsets of the folds overlap by {_signed(verdict['mean_consistency'])} on average (1: as "
            "if nested, 0: as random subsets)."
        )
    if verdict["p_unadjusted"] is not None and len(verdict["sizes"]) > 1:
        caption += f" Without the correction for sizes p is {_p(verdict['p_unadjusted'])}."
    folds = range(1, len(verdict["fold_sizes"]) + 1)
    return Table(
        columns=[Column(name="fold"), *columns(*map(str, folds), numeric=True)],
        rows=[
            ["R on its models", *map(_signed, verdict["fold_correlations"])],
            ["models", *(Cell(text=number(n), style="quiet") for n in verdict["fold_sizes"])],
        ],
        caption=caption,
        style="gate-table",
    )


def _contents(document: Document) -> list[Block]:
    classes, prevalence = document["contents"]["classes"], document["contents"]["prevalence"]
    blocks: list[Block] = []
    if any(row["value"] is not None for row in prevalence or ()):
        bars = _figure(
            plots.plot_prevalence,
            prevalence,
            caption="Values that are more (blue) or less (vermilion) frequent in the subset, largest "
            f"difference first, with 95{NARROW}% bootstrap intervals. Filled: significant after correction "
            f"over {len(prevalence)} values.",
            name="prevalence",
            beside=True,
        )
        blocks.append(bars)
    if classes:
        few = len(classes["shares"]) <= FEW_CLASSES
        blocks.append(Details(summary="The classes as a table", blocks=[_class_table(classes)], open=few))
    if prevalence:
        significant = sum(bool(row["significant"]) for row in prevalence)
        summary = f"{significant} of {len(prevalence)} values differ significantly: the table"
        blocks.append(Details(summary=summary, blocks=[_prevalence_table(prevalence)], printed=True))
    return [*blocks, *_examples(document)]


def _class_table(classes: Document) -> Table:
    """Classes by their share among the chosen examples, largest first."""
    inside = {row["class"]: row for row in classes["inside"]}
    rows: list[list[Cell | Text]] = []
    for row in sorted(classes["shares"], key=lambda row: -row["chosen"]):
        own = inside.get(row["class"])
        rows.append(
            [
                str(row["class"]),
                Cell(text=percent(row["chosen"]), value=row["chosen"]),
                Cell(text=percent(row["pool"]), value=row["pool"]),
                "" if row["pool"] == 0 else number(row["chosen"] / row["pool"]),
                "" if own is None else number(own["n"]),
                _correlation_cell(own),
            ]
        )
    named = ("chosen", "pool", "ratio", "chosen examples", "R on them alone, test models")
    return Table(
        columns=[Column(name="class", sort=True), *columns(*named, numeric=True, sort=True)],
        rows=rows,
        style="gate-table",
        tall=True,
    )


def _prevalence_table(prevalence: Sequence[Document]) -> Table:
    """Values with their shares, surest difference first; of numbers the means."""
    ordered = sorted(
        prevalence,
        key=lambda row: (1.0 if row["q_value"] is None else row["q_value"], -abs(row["difference"] or 0.0)),
    )
    rows = []
    for row in ordered[:LISTED_VALUES]:
        name, shown = ("mean", number) if row["value"] is None else (row["value"], percent)
        rows.append(
            [
                row["attribute"],
                bold(name) if row["significant"] else name,
                *(Cell(text=shown(row[side]), value=row[side] or 0.0) for side in ("selected", "pool")),
                Cell(text=number(row["difference"], 3), value=row["difference"] or 0.0),
                Cell(text=interval(row["low"], row["high"], 3), style="quiet"),
                "" if row["ratio"] is None else number(row["ratio"]),
                Cell(value="")
                if row["q_value"] is None
                else Cell(text=_p(row["q_value"]), value=row["q_value"]),
            ]
        )
    return Table(
        columns=[
            *columns("attribute", "value", sort=True),
            *columns("subset", "pool", "difference", numeric=True, sort=True),
            Column(name=f"95{NARROW}% interval", numeric=True),
            *columns("ratio", "q", numeric=True, sort=True),
        ],
        rows=rows,
        left=max(0, len(ordered) - LISTED_VALUES),
        note="q: exact hypergeometric p (for means, Mann-Whitney’s) after Benjamini-Hochberg over all "
        "values.",
        style="gate-table",
        tall=True,
        named=False,
    )


def _examples(document: Document) -> list[Block]:
    examples = document["contents"]["examples"]
    blocks: list[Block] = []
    if gallery := _gallery(examples["chosen"], "Chosen, most harmful first"):
        others = _gallery(examples["others"], "Not chosen, at random")
        below = "Below each: its class and the share of the test models that classify it correctly."
        pair = Section(blocks=[*gallery, *others], style="pair galleries")
        blocks += [pair, Note(text=below, style="quiet note")]
    chosen = examples["chosen"]
    rows: list[list[Cell | Text]] = [
        [
            str(rank),
            each["id"],
            each["label"] or "",
            Cell(text=_facts(each), style="quiet"),
            Cell(text=percent(each["right"]), value=each["right"]),
            Cell(text=_signed(each["r"]), value="" if each["r"] is None else each["r"]),
        ]
        for rank, each in enumerate(chosen, start=1)
    ]
    table = Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *columns("example", "class", "facts", sort=True),
            *columns("test models right", "own correlation", numeric=True, sort=True),
        ],
        rows=rows,
        note="Most harmful first: by the slope of R in each example’s weight. The record lists all "
        f"{number(document['size'])}, by position and name.",
        style="subset-examples",
        tall=True,
        named=False,
    )
    part = out_of(len(chosen), document["size"], "example")
    summary = f"The first {part}" if len(chosen) < document["size"] else part.capitalize()
    return [*blocks, Details(summary=summary, blocks=[table])]


def _gallery(examples: Sequence[Document], title: str) -> list[Figure]:
    """Examples as pictures, the first of them without a click; empty without images."""
    pictures = [
        Picture(
            source=png_source(each["image"]),
            lines=[each["label"] or each["id"], f"{percent(each['right'])} right"],
            title=f"{each['id']}: {_facts(each)}".removesuffix(": "),
        )
        for each in examples
        if each["image"]
    ]
    if not pictures:
        return []
    blocks: list[Block] = [Note(text=title, style="heading"), Figure(pictures=pictures[:SHOWN_PICTURES])]
    if hidden := pictures[SHOWN_PICTURES:]:
        blocks.append(Details(summary=f"{len(hidden)} more", blocks=[Figure(pictures=hidden)]))
    return [Figure(blocks=blocks)]


def _facts(example: Document) -> str:
    return ", ".join(f"{name} {value}" for name, value in example["facts"].items())


def _data(document: Document) -> list[Block]:
    contents, provenance = document["contents"], document["provenance"]
    split, settings, kind = provenance["split"], provenance["settings"], contents["split"]["unit_kind"]
    facts: list[tuple[str, Text]] = [
        (name, number(value) if isinstance(value, int | float) else str(value))
        for name, value in contents["description"].items()
    ]
    for name, part in contents["split"]["parts"].items():
        of = "" if kind == "model" else f" of {number(part['n_units'])} {_unit_name(kind, part['n_units'])}"
        facts.append((f"{name} models", f"{number(part['n_models'])}{of}"))
    how = {
        f"Split by {SPLITS[split['kind']]}, seed {split['seed']}": True,
        "as in the published code": split["compat"],
        f"solver {settings['solver']}": True,
        "only allowed examples": settings["allowed"],
        f"shares of {settings['strata_name']} kept": settings["strata_name"],
    }
    told = [text for text, holds in how.items() if holds]
    told += [f"{name} {value}" for name, value in settings["options"].items()]
    return [Facts(facts=facts), Note(text=f"{'; '.join(told)}.", style="quiet note")]


_FORM = PageForm(
    noun="subset",
    schema="assay-subset-path/2",
    again="`assay select`",
    make=subset_page,
)
PAGES.add("subset", _FORM)
PAGES.add("subset-path", _FORM)
