"""Subsets of one or more sizes as a page, from the record of a `SelectionPath`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets import plots
from assay.analyses.subsets.coherence import LABEL
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
from assay.page.text import MINUS, NARROW, Text, bold, code, interval, number, percent, rounded
from assay.page.thumbnail import png_source


if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = {
    "family": ("family", "families"),
    "group": ("training run", "training runs"),
    "model": ("model", "models"),
}
SPLITS = {"group": "training run", "random": "model, at random", "given": "the caller"}
# Heads of the columns of the baselines, and what the caption says of each.
BASELINES = {
    "random": ("random", f"Random: mean and 95{NARROW}% of random subsets. "),
    "hard": ("hardest", "Hardest: examples that the fewest training models classify correctly. "),
    "marginal": ("one-pass", "One-pass: examples that, taken singly, correlate most negatively. "),
    "distance": ("furthest", "Furthest: examples least similar to any in-distribution example. "),
}
MARKS = {"supported": "\N{BLACK CIRCLE}", "inconclusive": "\N{DOTTED CIRCLE}", "not judged": "\N{EN DASH}"}
FEW_MODELS = 20
LARGE_RATIO = 2.0  # of class shares, beyond which a subset is largely a choice of classes
CLIPPED = 0.05  # share of models at accuracy 0 or 1
MIXED = 0.75  # share of chosen examples that go against better models each by itself
TALL = 12  # sizes of a table that is not scrolled
LISTED_VALUES = 40
SHOWN_PICTURES = 24  # of a side without a click
Document = Mapping[str, Any]


def subset_page(document: Document) -> Page:
    """Everything that is shown of a subset or of a path over sizes.

    Args:
        document: Of `SelectionPath.to_dict`.
    """
    contents, several = document["contents"], len(document["subsets"]) > 1
    subset = next(each for each in document["subsets"] if each["size"] == document["size"])
    verdict, pool = subset["verdict"] or {}, number(contents["data"]["n_examples"])
    tested = UNITS[(verdict or contents["data"])["unit_kind"]][1]
    status, size = verdict.get("status", "unjudged"), number(document["size"])
    chosen = f"All {pool} examples" if size == pool else f"The {size} of {pool} examples"
    titles = {
        "supported": f"{chosen} where better models do worse",
        "inconclusive": f"Among {pool} examples, none were shown on which better models do worse",
        "unjudged": f"{chosen} chosen against better models",
    }
    sections = {
        "By size" if several else "Against other subsets of its size": _by_size(document, tested),
        "The models": _models(document, subset),
        "Is it real?": _real(contents["replication"], verdict, tested),
        "What is in it": _contents(contents, size),
        "Data and parameters": _data(document),
    }
    notes = [_sentence(note) for note in verdict.get("notes", ())]
    return Page(
        kind="subset",
        title=titles[status],
        verdict=_finding(document, verdict, tested),
        status=status,
        reasons=[_sentence(reason) for reason in verdict.get("reasons", ())],
        caveats=[*_caveats(document, subset, verdict), *notes],
        lede=(
            "R is the correlation, over models, of accuracy on the chosen examples with in-distribution "
            "accuracy, both on probit axes. A search finds a negative R among its own models in any data, so "
            f"the verdict uses {tested} that the search did not see, the search on shuffled accuracies, and "
            "a correction for every size tried."
        ),
        sections=[Section(title=title, blocks=blocks) for title, blocks in sections.items() if blocks],
        facts=[("result", code(document["id"])), ("data", code(document["provenance"]["data"]["hash"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="subset",
    )


def _sentence(text: str) -> str:
    """A reason or a note, with options as the command line names them; a symbol that opens it stays."""
    text = by_option(text).rstrip(".")
    return f"{text if text[1:2] == ' ' else text[0].upper() + text[1:]}."


def _signed(value: float | None) -> str:
    return "n/a" if value is None else rounded(value)


def _estimate(record: Document) -> str:
    return f"{_signed(record['r'])} {interval(record['low'], record['high'])}".strip()


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3g}"


def _finding(document: Document, verdict: Document, tested: str) -> str:
    """The finding as a sentence; R only together with its caveats."""
    size, largest = number(document["size"]), document["largest_supported"]
    against = f"{size} examples were chosen against better models"
    if not verdict:
        return f"Not judged. {against}. Whether this also holds for other models was not tested."
    if verdict["r"] is None:
        untested = "but not tested on models that took no part in the selection"
        return f"Inconclusive. {against}, {untested}. Do not use the subset as evidence."
    p, n_sizes = verdict["p_value"], len(verdict["sizes"])
    corrected = f", corrected for {n_sizes} sizes" if n_sizes > 1 else ""
    chance = "" if p is None else f" (p {'' if p < 0.001 else '= '}{_p(p)}{corrected})"
    r = f"cross-fitted over held-out {tested}, R is {_estimate(verdict)}{chance}"
    if verdict["status"] != "supported":
        return f"Inconclusive. {against}, but {r}. Do not use the subset as evidence."
    strength = "Accuracy is on the inverse line."
    if not verdict["aotil"]:
        strength = f"The effect is weak: R is above {MINUS}0.3, the limit of an inverse line."
    if largest != document["size"]:
        other = next(each["verdict"] for each in document["subsets"] if each["size"] == largest)
        beside = f"the largest supported subset has {number(largest)} examples, with R {_estimate(other)}"
        strength += f" This is the lowest R among the supported; {beside}."
    return (
        f"Supported. On such a subset of {size} examples, models that are better in distribution do worse, "
        f"including models that took no part in the selection: {r}. {strength}"
    )


def _caveats(document: Document, subset: Document, verdict: Document) -> list[str]:
    """What a reader must know before believing or using the subset."""
    contents, test, size = document["contents"], subset["correlation"]["test"], number(document["size"])
    data, full = contents["data"], subset["full"]["test"]["r"]
    negative = contents["replication"]["chosen"]["negative"]
    clipped = test["frac_clipped"] or 0.0
    hard, r = _baseline(document, "hard", document["size"])["r"], test["r"]
    cross_fitted = r if verdict.get("r") is None else verdict["r"]
    harder = None not in (r, hard) and hard < r < 0 and cross_fitted < 0
    supported = verdict.get("status") == "supported"
    classes = [row for row in contents["prevalence"] if row["attribute"] == LABEL]
    classes = [row for row in classes if row["selected"] > LARGE_RATIO * row["pool"]]
    # A rare class has a large ratio long before it makes up much of a subset.
    none = {"selected": None, "pool": None, "value": None}
    worst = max(classes, key=lambda row: row["difference"], default=none)
    # Each with whether it applies.
    cautions = [
        (
            full is not None and full <= AOTIL,
            f"On all {number(data['n_examples'])} examples R is already {_signed(full)}. If that surprises "
            "you, check that accuracies in distribution are not errors, and that 1 means right.",
        ),
        (
            bool(classes),
            f"{percent(worst['selected'])} of the subset is of class {worst['value']}, "
            f"{percent(worst['pool'])} of the pool. The subset may be a class rather than a failure mode; "
            "select with --strata label to see what remains at the class mix of the pool.",
        ),
        # A verdict has reasons and notes of its own on these.
        (
            data["unit_kind"] == "model" and not verdict,
            "Training runs and families are unknown. Intervals treat each model as independent and are too "
            "narrow if some are not.",
        ),
        (bool(test["caution"]) and not verdict, f"Test part of the main split: {test['caution']}."),
        (data["n_models"] < FEW_MODELS, f"{data['n_models']} models are too few for a reliable correlation."),
        (
            clipped > CLIPPED,
            f"{percent(clipped)} of the test models have accuracy 0 or 1 on the subset; R depends on how "
            "these are clipped.",
        ),
        (
            supported and negative is not None and negative < MIXED,
            f"Only {percent(negative)} of the chosen examples have a correlation below 0 on the test models: "
            "a subset of this size includes unrelated examples. Choose a smaller one.",
        ),
        (
            harder,
            f"The {size} examples that the fewest training models classify correctly have R {_signed(hard)} "
            f"on the test models, below the {_signed(r)} of the subset: difficulty may explain the result.",
        ),
    ]
    return [text for applies, text in cautions if applies]


def _baseline(document: Document, kind: str, size: int) -> Document:
    """A row of the baselines; an undefined one where there is none."""
    rows = document["baselines"]
    missing = {"r": None, "low": None, "high": None}
    return next((row for row in rows if row["kind"] == kind and row["size"] == size), missing)


# ---------------------------------------------------------------------------------------------- blocks


def _figure(draw: "Callable[..., Axes]", *part: Any, caption: str, name: str, beside: bool = False) -> Figure:
    """A picture of the record or of parts of it, read out as the first sentence of its caption."""
    label = caption.partition(". ")[0].partition(": ")[0]
    return Figure(draw=partial(draw, *part), label=label, caption=caption, beside=beside, name=name)


def _by_size(document: Document, tested: str) -> list[Block]:
    subsets, contents = document["subsets"], document["contents"]
    full, several = subsets[0]["full"]["test"], len(subsets) > 1
    drawn = UNITS[document["provenance"]["data"]["interval_units"]][1]
    size = _figure(
        plots.plot_size,
        document,
        caption=f"R over {number(full['n'])} test models. Filled: supported; ringed: the size of this page. "
        f"Bands: 95{NARROW}% of resampled {drawn}, and of draws of random subsets.",
        name="size",
        beside=not several,
    )
    present = {row["kind"] for row in document["baselines"]}
    kinds = [kind for kind in BASELINES if kind in present]
    rows = []
    for subset in subsets:
        verdict = subset["verdict"] or {"status": "not judged", "p_value": None, "r": None}
        share, status = subset["size"] / contents["data"]["n_examples"], verdict["status"]
        parts = [verdict, subset["correlation"]["test"], subset["correlation"]["validation"]]
        parts += [_baseline(document, kind, subset["size"]) for kind in kinds]
        cells = [
            Cell(text=number(subset["size"]), value=subset["size"], style="n"),
            Cell(text=percent(share), value=share, style="quiet"),
            Cell(status=status, mark=MARKS[status]),
            _cell(verdict["p_value"], _p),
            *map(_correlation_cell, parts),
        ]
        rows.append(Row(cells=cells, style="headline" if subset["size"] == document["size"] else ""))
    heads = ["p", "R, cross-fitted", "R, test models", "R, validation"]
    anywhere = f" at any of the {len(subsets)} sizes tried" if several else ""
    table = Table(
        columns=[
            *columns("examples", "share", numeric=True, sort=True),
            Column(name="verdict", sort=True),
            *columns(*heads, *(BASELINES[kind][0] for kind in kinds), numeric=True, sort=True),
        ],
        rows=rows,
        caption=f"The verdict is based on the cross-fitted R: selected again without each fold of {tested}, "
        f"tested on it. p: share of shuffled accuracies that reach as low an R{anywhere}. R on validation "
        f"models was used by the search. {''.join(BASELINES[kind][1] for kind in kinds)}On all "
        f"{number(contents['data']['n_examples'])} examples R is {_estimate(full)}.",
        style="subset-sizes",
        tall=len(subsets) > TALL,
    )
    if not several:
        return [size, table]
    overlap = _figure(
        plots.plot_consistency,
        contents["consistency"],
        [each["size"] for each in subsets],
        caption="Overlap of the subsets of every two sizes: 1 if the smaller lies inside the larger, 0 as "
        "for random subsets, vermilion below. It is as high in data without an effect.",
        name="consistency",
    )
    largest = document["largest_supported"]
    found = "none is supported" if largest is None else f"{number(largest)} examples"
    note = Note(text=f"Largest supported subset: {found}.", style="quiet note")
    return [Section(blocks=[size, overlap], style="pair"), table, note]


def _cell(value: Any, shown: Callable[[Any], str]) -> Cell:
    """A number that a column is sorted by; empty where there is none."""
    return Cell(value="") if value is None else Cell(text=shown(value), value=value)


def _correlation_cell(record: Document) -> Cell:
    """A correlation with its interval; empty where there is none."""
    if record["r"] is None:
        return Cell(text="undefined" if "n" in record else "", value="")
    return Cell(text=_signed(record["r"]), below=interval(record["low"], record["high"]), value=record["r"])


def _models(document: Document, subset: Document) -> list[Block]:
    contents, needed = document["contents"], document["contents"]["models_needed"]
    n, n_models = subset["full"]["test"]["n"], number(contents["data"]["n_models"])
    part = f"{number(plots.DRAWN_MODELS)} of the " if n > plots.DRAWN_MODELS else "The "
    scatter = _figure(
        plots.plot_scatter,
        contents,
        caption=f"{part}{number(n)} test models: accuracy on all and on the {number(document['size'])} "
        "chosen examples, with least-squares lines. Both axes use the normal quantile.",
        name="scatter",
    )
    settled = f"In most random orders it has not settled at {n_models} models: more would still change it."
    if needed["median"] is not None:
        median = f"{needed['median']:.0f} of {n_models} models"
        settled = (
            f"In half of the orders each further step changes it by less than 1{NARROW}% from {median} on."
        )
    runs = ", whole training runs at a time" if needed["whole_runs"] else ""
    caption = f"R on all examples as models are added{runs}: random orders and their mean. {settled}"
    curve = _figure(plots.plot_models, needed, caption=caption, name="models")
    return [Section(blocks=[scatter, curve], style="pair")]


def _real(replication: Document, verdict: Document, tested: str) -> list[Block]:
    chosen, others = replication["chosen"], replication["others"]
    blocks: list[Block] = []
    if verdict.get("null") and verdict["r"] is not None:
        grouped = f", {tested} as wholes and models inside them" if verdict["kind"] == "group" else ""
        lowest = ", with the lowest R over all sizes" if len(verdict["sizes"]) > 1 else ""
        null = _figure(
            plots.plot_null,
            verdict,
            caption="The whole procedure if there is no effect: accuracies shuffled "
            f"{number(verdict['n_permutations'])} times{grouped}, searched and cross-fitted again{lowest}.",
            name="null",
            beside=True,
        )
        blocks.append(null)
    if verdict.get("fold_correlations"):
        pairs = zip(verdict["fold_correlations"], verdict["fold_sizes"], strict=True)
        folds = f"R by fold: {', '.join(f'{_signed(r)} ({n} models)' for r, n in pairs)}."
        if verdict["mean_consistency"] is not None:
            overlap = _signed(verdict["mean_consistency"])
            folds += (
                f" The subsets of the folds overlap by {overlap} (1: as if nested, 0: as random subsets)."
            )
        if verdict["p_unadjusted"] is not None and len(verdict["sizes"]) > 1:
            folds += f" Without the correction for sizes p is {_p(verdict['p_unadjusted'])}."
        blocks.append(Note(text=folds))
    single = (
        f"Example by example, over the test models: {percent(chosen['negative'])} of the chosen examples "
        f"and {percent(others['negative'])} of the others have a correlation below 0; "
        f"{percent(chosen['discovered'])} and {percent(others['discovered'])} significantly (false discovery "
        f"rate 5{NARROW}%)."
    )
    return [*blocks, Note(text=single)]


def _contents(contents: Document, size: str) -> list[Block]:
    prevalence, examples, blocks = contents["prevalence"], contents["examples"], list[Block]()
    if any(row["value"] is not None for row in prevalence):
        bars = _figure(
            plots.plot_prevalence,
            prevalence,
            caption="Values that are more (blue) or less (vermilion) frequent in the subset, with "
            f"95{NARROW}% bootstrap intervals. Filled: significant among {len(prevalence)} values.",
            name="prevalence",
            beside=True,
        )
        blocks.append(bars)
    if prevalence:
        significant = sum(bool(row["significant"]) for row in prevalence)
        summary = f"{significant} of {len(prevalence)} values differ significantly: the table"
        blocks.append(Details(summary=summary, blocks=[_prevalence_table(prevalence)], printed=True))
    if any(each["image"] for each in examples["chosen"]):
        titles = {"chosen": "Chosen, most harmful first", "others": "Not chosen, at random"}
        galleries = [_gallery(examples[side], title) for side, title in titles.items() if examples[side]]
        below = "Below each: its class and the share of the test models that classify it correctly."
        blocks += [Section(blocks=galleries, style="pair galleries"), Note(text=below, style="quiet note")]
    rows: list[list[Cell | Text]] = [
        [
            str(rank),
            each["id"],
            each["label"] or "",
            Cell(text=each["facts"], style="quiet"),
            _cell(each["right"], percent),
            _cell(each["r"], rounded),
        ]
        for rank, each in enumerate(examples["chosen"], start=1)
    ]
    table = Table(
        columns=[
            Column(name="rank", numeric=True, sort=True),
            *columns("example", "class", "facts", sort=True),
            *columns("test models right", "own correlation", numeric=True, sort=True),
        ],
        rows=rows,
        note=f"Most harmful first: by the slope of R in each example’s weight. The record lists all {size}.",
        style="subset-examples",
        tall=True,
        named=False,
    )
    return [*blocks, Details(summary=f"{len(rows)} of the {size} examples", blocks=[table])]


def _prevalence_table(prevalence: Sequence[Document]) -> Table:
    """Values with their shares, surest difference first; of numbers the means."""

    def surest(row: Document) -> tuple[float, float]:
        return (1.0 if row["q_value"] is None else row["q_value"], -abs(row["difference"] or 0.0))

    rows: list[list[Cell | Text]] = []
    for row in sorted(prevalence, key=surest)[:LISTED_VALUES]:
        name, shown = ("mean", number) if row["value"] is None else (row["value"], percent)
        difference, between = row["difference"], interval(row["low"], row["high"], 3)
        rows.append(
            [
                row["attribute"],
                bold(name) if row["significant"] else name,
                *(_cell(row[side], shown) for side in ("selected", "pool")),
                Cell(text=number(difference, 3), below=between, value=difference or 0.0),
                _cell(row["q_value"], _p),
            ]
        )
    heads = ("subset", "pool", f"difference, 95{NARROW}% interval", "q")
    return Table(
        columns=[*columns("attribute", "value", sort=True), *columns(*heads, numeric=True, sort=True)],
        rows=rows,
        left=max(0, len(prevalence) - LISTED_VALUES),
        note="q: exact hypergeometric p (of means, Mann-Whitney’s) after Benjamini-Hochberg over all values.",
        style="gate-table",
        tall=True,
        named=False,
    )


def _gallery(examples: Sequence[Document], title: str) -> Figure:
    """Examples as pictures, the first of them without a click."""
    pictures = [
        Picture(
            source=png_source(each["image"]),
            lines=[each["label"] or each["id"], f"{percent(each['right'])} right"],
            title=f"{each['id']}: {each['facts']}".removesuffix(": "),
        )
        for each in examples
    ]
    blocks: list[Block] = [Note(text=title, style="heading"), Figure(pictures=pictures[:SHOWN_PICTURES])]
    if hidden := pictures[SHOWN_PICTURES:]:
        blocks.append(Details(summary=f"{len(hidden)} more", blocks=[Figure(pictures=hidden)]))
    return Figure(blocks=blocks)


def _data(document: Document) -> list[Block]:
    contents, provenance = document["contents"], document["provenance"]
    split, settings, kind = provenance["split"], provenance["settings"], contents["split"]["unit_kind"]
    facts: list[tuple[str, Text]] = [
        (name, number(value) if isinstance(value, int | float) else str(value))
        for name, value in contents["description"].items()
    ]
    for name, n in contents["split"]["n_units"].items():
        of = "" if kind == "model" else f" of {number(n)} {UNITS[kind][n != 1]}"
        facts.append((f"{name} models", f"{number(contents['split']['n_models'][name])}{of}"))
    how = {
        f"Split by {SPLITS.get(split['kind'], split['kind'])}, seed {split['seed']}": True,
        "as in the published code": split["compat"],
        f"solver {settings['solver']}": True,
        "only allowed examples": settings["allowed"],
        f"shares of {settings['strata_name']} kept": settings["strata_name"],
    }
    told = [text for text, holds in how.items() if holds]
    told += [f"{name} {value}" for name, value in settings["options"].items()]
    return [Facts(facts=facts), Note(text=f"{'; '.join(told)}.", style="quiet note")]


_FORM = PageForm(noun="subset", schema="assay-subset-path/2", again="`assay select`", make=subset_page)
PAGES.add("subset", _FORM)
PAGES.add("subset-path", _FORM)
