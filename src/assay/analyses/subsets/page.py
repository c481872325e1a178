"""Subsets of one or more sizes as a page, from the record of a `SelectionPath`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from assay.analyses.subsets import plots
from assay.analyses.subsets.coherence import LABEL
from assay.analyses.subsets.line import AOTIL
from assay.core.errors import by_option
from assay.page import blocks
from assay.page.blocks import PAGES, Block, Cell, Figure, Note, PageForm, Section, columns
from assay.page.draw import png_source
from assay.page.text import MINUS, NARROW, code, interval, number, p_value, percent


UNITS = {"family": "families", "group": "training runs", "model": "models"}
# Heads of the columns of the baselines, and what the caption says of each.
BASELINES = {
    "random": ("random", f"Random: mean and 95{NARROW}% of random subsets. "),
    "hard": ("hardest", "Hardest: examples that the fewest training models classify correctly. "),
    "marginal": ("one-pass", "One-pass: examples that, taken singly, correlate most negatively. "),
    "distance": ("furthest", "Furthest: examples least similar to any in-distribution example. "),
}
MARKS = {"supported": "\N{BLACK CIRCLE}", "inconclusive": "\N{DOTTED CIRCLE}", "not judged": "\N{EN DASH}"}
LARGE_RATIO = 2.0  # of class shares, beyond which a subset is largely a choice of classes
CLIPPED = 0.05  # share of models at accuracy 0 or 1
SHOWN_PICTURES = 24  # of a side
Document = Mapping[str, Any]


def subset_page(document: Document) -> blocks.Page:
    """Everything that is shown of a path over sizes.

    Args:
        document: Of `SelectionPath.to_dict`.
    """
    contents, several = document["contents"], len(document["subsets"]) > 1
    subset = next(each for each in document["subsets"] if each["size"] == document["size"])
    verdict, pool = subset["verdict"] or {}, number(contents["data"]["n_examples"])
    tested = UNITS[(verdict or contents["data"])["unit_kind"]]
    status, size = verdict.get("status", "unjudged"), number(document["size"])
    chosen = f"All {pool} examples" if size == pool else f"The {size} of {pool} examples"
    titles = {
        "supported": f"{chosen} where better models do worse",
        "inconclusive": f"Among {pool} examples, none were shown on which better models do worse",
        "unjudged": f"{chosen} chosen against better models",
    }
    sections = {
        "By size" if several else "Against other subsets of its size": _by_size(document, tested),
        "The models": _models(document),
        "Is it real?": _real(contents["replication"], verdict, tested),
        "What is in it": _contents(contents, size),
    }
    return blocks.Page(
        kind="subset",
        title=titles[status],
        verdict=_finding(document, verdict, tested),
        status=status,
        reasons=[_sentence(reason) for reason in verdict.get("reasons", ())],
        caveats=[*_caveats(document, subset, verdict), *map(_sentence, verdict.get("notes", ()))],
        lede=(
            "R is the correlation, over models, of accuracy on the chosen examples with in-distribution "
            "accuracy, both on probit axes. A search finds a negative R among its own models in any data, so "
            f"the verdict uses {tested} that the search did not see, the search on shuffled accuracies, and "
            "a correction for every size tried."
        ),
        sections=[Section(title=title, blocks=parts) for title, parts in sections.items()],
        facts=[("result", code(document["id"])), ("data", code(document["provenance"]["data"]["hash"]))],
        records=[
            blocks.folded_record("Data", contents["description"] | contents["split"]),
            blocks.folded_record("Provenance", document["provenance"]),
        ],
        style="subset",
    )


def _sentence(text: str) -> str:
    """A reason or a note, with options as the command line names them; a symbol that opens it stays."""
    text = by_option(text).rstrip(".")
    return f"{text if text[1:2] == ' ' else text[0].upper() + text[1:]}."


def _estimate(record: Document) -> str:
    return f"{number(record['r'])} {interval(record['low'], record['high'])}".strip()


def _finding(document: Document, verdict: Document, tested: str) -> str:
    """The finding as a sentence; R only together with its caveats."""
    size, largest = number(document["size"]), document["largest_supported"]
    against = f"{size} examples were chosen against better models"
    if not verdict:
        return f"Not judged. {against}. Whether this also holds for other models was not tested."
    p, n_sizes = p_value(verdict["p_value"]), len(verdict["sizes"])
    corrected = f", corrected for {n_sizes} sizes" if n_sizes > 1 else ""
    chance = f" (p {p if p.startswith('<') else f'= {p}'}{corrected})" if p else ""
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
    test, full, cautions = subset["correlation"]["test"], subset["full"]["test"]["r"], []
    hard, r = _baseline(document, "hard", document["size"])["r"], test["r"]
    if full is not None and full <= AOTIL:
        cautions.append(
            f"On all examples R is already {number(full)}. If that surprises you, check that accuracies in "
            "distribution are not errors, and that 1 means right."
        )
    # A rare class has a large ratio long before it makes up much of a subset.
    cautions += [
        f"{percent(row['selected'])} of the subset is of class {row['value']}, {percent(row['pool'])} of the "
        "pool. The subset may be a class rather than a failure mode; select with --strata label to see what "
        "remains at the class mix of the pool."
        for row in document["contents"]["prevalence"]
        if row["attribute"] == LABEL and row["selected"] > max(0.5, LARGE_RATIO * row["pool"])
    ]
    if (test["frac_clipped"] or 0) > CLIPPED:
        share = percent(test["frac_clipped"])
        cautions.append(f"{share} of the test models have accuracy 0 or 1 on the subset, and are clipped.")
    if None not in (r, hard) and hard < r < 0 and (verdict.get("r") or r) < 0:
        cautions.append(
            f"The {number(document['size'])} hardest examples have R {number(hard)}, below the {number(r)} "
            "of the subset: difficulty may explain the result."
        )
    return cautions


def _baseline(document: Document, kind: str, size: int) -> Document:
    """A row of the baselines; an undefined one where there is none."""
    rows = document["baselines"]
    missing = {"r": None, "low": None, "high": None}
    return next((row for row in rows if row["kind"] == kind and row["size"] == size), missing)


# ---------------------------------------------------------------------------------------------- blocks


def _figure(name: str, caption: str, draw: Callable[..., Any], *part: Any, beside: bool = False) -> Figure:
    """A picture of the record or of parts of it, read out as the first sentence of its caption."""
    label = caption.partition(". ")[0].partition(": ")[0]
    return Figure(draw=partial(draw, *part), label=label, caption=caption, beside=beside, name=name)


def _by_size(document: Document, tested: str) -> list[Block]:
    subsets, full = document["subsets"], document["subsets"][0]["full"]["test"]
    drawn = UNITS[document["provenance"]["data"]["interval_units"]]
    caption = (
        f"R over {number(full['n'])} test models. Hollow: inconclusive; ringed: the size of this page. "
        f"Intervals: 95{NARROW}% of resampled {drawn}; band: of draws of random subsets."
    )
    figures: list[Block] = [_figure("size", caption, plots.plot_size, document)]
    if (overlap := document["contents"]["consistency"]) is not None:
        caption = (
            "Overlap of the subsets of every two sizes: 1 if the smaller lies inside the larger, 0 as "
            "for random subsets, vermilion below. It is as high in data without an effect."
        )
        sizes = [each["size"] for each in subsets]
        figures.append(_figure("consistency", caption, plots.plot_consistency, overlap, sizes))
    kinds = [kind for kind in BASELINES if any(row["kind"] == kind for row in document["baselines"])]
    rows = []
    for subset in subsets:
        verdict = subset["verdict"] or {"status": "not judged", "p_value": None, "r": None}
        others = [_baseline(document, kind, subset["size"]) for kind in kinds]
        estimates = [verdict, subset["correlation"]["test"], *others]
        cells = [
            Cell(text=number(subset["size"]), value=subset["size"], style="n"),
            Cell(status=verdict["status"], mark=MARKS[verdict["status"]]),
            _cell(verdict["p_value"], p_value),
            *(_cell(each["r"], number, interval(each.get("low"), each.get("high"))) for each in estimates),
        ]
        rows.append(blocks.Row(cells=cells, style="headline" if subset["size"] == document["size"] else ""))
    heads = ("p", "R, cross-fitted", "R, test models", *(BASELINES[kind][0] for kind in kinds))
    largest = document["largest_supported"]
    table = blocks.Table(
        columns=[
            *columns("examples", numeric=True, sort=True),
            *columns("verdict", sort=True),
            *columns(*heads, numeric=True, sort=True),
        ],
        rows=rows,
        caption=f"The verdict is based on the cross-fitted R: selected again without each fold of {tested}, "
        "tested on it. p: share of shuffled accuracies that reach as low an R at any size tried. "
        f"{''.join(BASELINES[kind][1] for kind in kinds)}On all examples R is {_estimate(full)}.",
        note=f"Largest supported subset: {'none' if largest is None else f'{number(largest)} examples'}.",
        style="subset-sizes",
        tall=True,
    )
    return [Section(blocks=figures, style="pair"), table]


def _cell(value: Any, shown: Callable[[Any], str], below: str = "") -> Cell:
    """A number that a column is sorted by; empty where there is none."""
    return Cell(value="") if value is None else Cell(text=shown(value), below=below, value=value)


def _models(document: Document) -> list[Block]:
    contents, needed = document["contents"], document["contents"]["models_needed"]
    settled = f"In most orders it has not settled at {number(contents['data']['n_models'])} models."
    if needed["median"] is not None:
        settled = f"In half of the orders it changes by less than 1{NARROW}% from {needed['median']:.0f} on."
    runs = ", whole training runs at a time" if needed["whole_runs"] else ""
    added = f"R on all examples as models are added{runs}: random orders and their mean. {settled}"
    size = number(document["size"])
    accuracies = f"Test models: accuracy on all and on the {size} chosen examples, with least-squares lines."
    scatter = _figure("scatter", accuracies, plots.plot_scatter, contents)
    curve = _figure("models", added, plots.plot_models, needed)
    return [Section(blocks=[scatter, curve], style="pair")]


def _real(replication: Document, verdict: Document, tested: str) -> list[Block]:
    chosen, others = replication["chosen"], replication["others"]
    shown: list[Block] = []
    if verdict.get("null") and verdict["r"] is not None:
        grouped = f", {tested} as wholes and models inside them" if verdict["kind"] == "group" else ""
        caption = (
            "The whole procedure if there is no effect: accuracies shuffled "
            f"{number(verdict['n_permutations'])} times{grouped}, searched and cross-fitted again."
        )
        shown.append(_figure("null", caption, plots.plot_null, verdict, beside=True))
    if verdict.get("fold_correlations"):
        folds = f"R by fold: {', '.join(map(number, verdict['fold_correlations']))}."
        overlap = f"The subsets of the folds overlap by {number(verdict['mean_consistency'])}"
        shown.append(Note(text=f"{folds} {overlap} (1: as if nested, 0: as random subsets)."))
    single = (
        f"Example by example, over the test models: {percent(chosen['negative'])} of the chosen examples "
        f"and {percent(others['negative'])} of the others have a correlation below 0; "
        f"{percent(chosen['discovered'])} and {percent(others['discovered'])} significantly (false discovery "
        f"rate 5{NARROW}%)."
    )
    return [*shown, Note(text=single)]


def _contents(contents: Document, size: str) -> list[Block]:
    prevalence, examples, shown = contents["prevalence"], contents["examples"], list[Block]()
    if prevalence:
        caption = (
            "Values that are more (blue) or less (vermilion) frequent in the subset, with "
            f"95{NARROW}% bootstrap intervals. Filled: significant (false discovery rate 5{NARROW}%)."
        )
        shown.append(_figure("prevalence", caption, plots.plot_prevalence, prevalence, beside=True))
    if any(each["image"] for each in examples["chosen"]):
        sides = {"chosen": "Chosen, most harmful first.", "others": "Not chosen, at random."}
        for side, text in sides.items():
            pictures = [
                blocks.Picture(
                    source=png_source(each["image"]),
                    lines=[each["label"] or each["id"], f"{percent(each['right'])} right"],
                )
                for each in examples[side][:SHOWN_PICTURES]
            ]
            shown.append(Figure(pictures=pictures, caption=text))
    rows = [
        [
            each["id"],
            each["label"] or "",
            each["facts"],
            _cell(each["right"], percent),
            _cell(each["r"], number),
        ]
        for each in examples["chosen"]
    ]
    heads = ("test models right", "own correlation")
    table = blocks.Table(
        columns=[*columns("example", "class", "facts"), *columns(*heads, numeric=True, sort=True)],
        rows=rows,
        note=f"Most harmful first: by the slope of R in each example’s weight. The record lists all {size}.",
        style="subset-examples",
        tall=True,
    )
    return [*shown, blocks.Details(summary=f"{len(rows)} of the {size} examples", blocks=[table])]


_AGAIN = "`assay.selection_path` or `assay select`"
for _kind in ("subset", "subset-path"):  # the first is refused with how to make the second
    PAGES.add(_kind, PageForm(noun="subset", schema="assay-subset-path/2", again=_AGAIN, make=subset_page))
