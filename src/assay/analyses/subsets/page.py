"""A chosen subset as a page: the verdict as a sentence, then what it rests on and what is in the subset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from assay.analyses.subsets import content_plots, plots, probit_plots
from assay.analyses.subsets import page_tables as tables
from assay.analyses.subsets import page_words as words
from assay.analyses.subsets.page_words import share, signed, unit_name
from assay.page.blocks import Block, Details, Facts, Figure, Note, Page, Section, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import NARROW, Text, code, number, out_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes


FEW_CLASSES = 8  # whose table is shown without a click
SPLITS = {
    "group": "training run",
    "family": "family",
    "random": "model, at random",
    "given": "the caller",
    "fold": "fold",
}
PLACES = ("train", "validation", "test")  # of the models of a split; they stay in the document
Document = Mapping[str, Any]


def subset_page(document: Document) -> Page:
    """Everything that is shown of a chosen subset or of a path over sizes.

    Args:
        document: What `Subset.document` or `SelectionPath.document` gave.
    """
    several = len(document["rows"]) > 1
    sections = [
        Section(
            title="By size" if several else "Against other subsets of its size", blocks=_by_size(document)
        ),
        Section(title="The models", blocks=_models(document)),
        Section(title="Is it real?", blocks=_real(document)),
        Section(title="What is in it", blocks=_contents(document)),
        Section(title="How much it depends on size and models", blocks=_sensitivity(document)),
        Section(title="Data and parameters", blocks=_data(document)),
    ]
    return Page(
        kind="subset",
        title=words.title(document),
        verdict=words.verdict(document),
        status=words.status(document),
        reasons=words.sentences(document, "reasons"),
        caveats=[*words.caveats(document), *words.sentences(document, "notes")],
        lede=words.lede(document),
        sections=[section for section in sections if section.blocks],
        facts=[("result", code(document["id"])), ("data", code(document["data"]["hash"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="subset",
    )


def _figure(
    draw: "Callable[..., Axes]",
    part: Document,
    label: str,
    caption: Text,
    *,
    name: str,
    beside: bool = False,
    wide: bool = False,
) -> Figure:
    """A picture of the document or of a part of it."""
    return Figure(
        draw=partial(draw, part),
        label=f"{label}; the text has the numbers.",
        caption=caption,
        beside=beside,
        wide=wide,
        name=name,
    )


def _pair(figures: Sequence[Block]) -> list[Block]:
    return [Section(blocks=figures, style="pair")] if figures else []


# ------------------------------------------------------------------------------------------------- sizes


def _by_size(document: Document) -> list[Block]:
    pictures = _size_pictures if len(document["rows"]) > 1 else _comparison
    blocks = [*pictures(document), tables.judged_sizes_table(document)]
    if document["largest"]:
        blocks.append(tables.largest_table(document["largest"]))
    if document.get("unrefined"):
        blocks.append(Note(text=document["unrefined"], style="quiet note"))
    return blocks


def _size_pictures(document: Document) -> list[Block]:
    n = document["full"]["test"]["n"]
    drawn = unit_name(document["interval_units"])
    caption = (
        f"R over {number(n)} test models. Filled dots: supported; open: inconclusive; ringed: the size "
        f"shown on this page. Band of the chosen subsets: {round(100 * document['level'])}{NARROW}% of "
        f"resampled {drawn}; band of the random subsets: 95{NARROW}% of draws."
    )
    ranks = (
        "The same with ranks of the accuracies instead of probits: without clipping or the assumption "
        "of a straight line."
    )
    label = f"over {n} held-out models against subset size"
    return _pair(
        [
            _figure(plots.plot_size, document, f"Correlation {label}", caption, name="size"),
            _figure(
                partial(plots.plot_size, statistic="spearman"),
                document,
                f"Rank correlation {label}",
                ranks,
                name="ranks",
            ),
        ]
    )


def _comparison(document: Document) -> list[Block]:
    n = document["full"]["test"]["n"]
    drawn = unit_name(document["interval_units"])
    random = f", for random subsets the range of 95{NARROW}% of draws"
    caption = (
        f"R over {number(n)} test models with {round(100 * document['level'])}{NARROW}% intervals over "
        f"resampled {drawn}{random if 'random' in words.baselines(document) else ''}. At or below the "
        "dotted line, accuracy counts as on the inverse line."
    )
    label = f"Correlation over {n} held-out models on the subset and on others of its size"
    return [_figure(plots.plot_comparison, document, label, caption, name="comparison", beside=True)]


# ------------------------------------------------------------------------------------------------ models


def _models(document: Document) -> list[Block]:
    n, drawn = document["full"]["test"]["n"], min(document["full"]["test"]["n"], probit_plots.DRAWN_MODELS)
    which = f"{number(drawn)} of the {number(n)}" if drawn < n else f"The {number(n)}"
    blocks: list[Block] = [
        _figure(
            probit_plots.plot_scatter,
            document,
            "Accuracy of held-out models, probit axes",
            f"{which} test models, none of which took part in the selection: accuracy on all examples and "
            f"on the {number(document['size'])} chosen ones, with least-squares lines. Both axes use the "
            "normal quantile; points at the end marked 0 or 1 have exactly that accuracy. The lines "
            "describe the main split alone; the verdict is above.",
            name="scatter",
            beside=True,
        )
    ]
    if len(probit_plots.example_sets(document)) == len(probit_plots.SETS):
        three = _figure(
            probit_plots.plot_three,
            document,
            "Accuracy of held-out models on all, the chosen and the other examples",
            "The same models on all, on the chosen and on the other examples.",
            name="three",
            wide=True,
        )
        blocks.append(three)
    accuracies = _figure(
        probit_plots.plot_accuracies,
        document,
        "Histograms of accuracy in and out of distribution",
        f"Accuracies of all {number(document['data']['n_models'])} models, including those that chose the "
        "subset; counts on a logarithmic axis.",
        name="accuracies",
        wide=True,
    )
    return [*blocks, accuracies]


# -------------------------------------------------------------------------------------------- is it real


def _real(document: Document) -> list[Block]:
    blocks = _pair([*_null(document), *_replication(document["replication"])])
    if (document["verdict"] or {}).get("fold_correlations"):
        blocks.append(tables.fold_table(document["verdict"]))
    return [*blocks, *_halves(document)]


def _null(document: Document) -> list[Block]:
    null = document["null"]
    if not null or null["observed"] is None:
        return []
    grouped = f", {words.tested_units(document)} as wholes and models inside them"
    caption = (
        f"The result of the whole procedure if there is no effect: accuracies shuffled {number(null['n'])} "
        f"times{grouped if null['kind'] == 'group' else ''}, then searched and cross-fitted "
        f"again{', with the lowest R over all sizes' if null['n_sizes'] > 1 else ''}. The line is the "
        "observed R."
    )
    return [_figure(plots.plot_null, null, "Null distribution of the lowest R", caption, name="null")]


def _replication(replication: Document | None) -> list[Block]:
    if not replication:
        return []
    chosen, others = replication["selected"], replication["pool"]
    caption = (
        f"Correlation of each single example, over the test models. Below 0: {share(chosen['negative'])} of "
        f"the chosen examples and {share(others['negative'])} of the others. Significantly below 0 (false "
        f"discovery rate 5{NARROW}%): {share(chosen['discovered'])} and {share(others['discovered'])}."
    )
    label = "Correlations of single examples over held-out models"
    return [_figure(plots.plot_replication, replication, label, caption, name="replication")]


def _halves(document: Document) -> list[Block]:
    halves = document["halves"]
    if not halves or halves.get("overlap") is None:
        return []
    shuffled = ""
    if halves["null_mean"] is not None:
        p = "" if halves["p_value"] is None else words.p_value(halves["p_value"])
        shuffled = (
            f"; under shuffled accuracies {signed(halves['null_mean'])} on average "
            f"({number(len(halves['null']))} shuffles, p {p})"
        )
    text = (
        f"Chosen twice, once by each half of the {unit_name(document['data']['unit_kind'])} that chose it, "
        f"the two subsets overlap by {signed(halves['overlap'])} (1: as if nested, 0: as random "
        f"subsets){shuffled}. Only the difference between the two numbers is evidence."
    )
    return [Note(text=text)]


# ---------------------------------------------------------------------------------------------- contents


def _contents(document: Document) -> list[Block]:
    composition, prevalence = document["composition"], document["prevalence"]
    blocks = _pair([*_class_picture(document), *_prevalence_picture(prevalence)])
    if composition:
        blocks.append(
            Details(
                summary="The classes as a table",
                blocks=[tables.class_table(document)],
                open=len(composition["names"]) <= FEW_CLASSES,
            )
        )
    if prevalence:
        significant = sum(bool(row["significant"]) for row in prevalence["rows"])
        summary = f"{significant} of {len(prevalence['rows'])} values differ significantly: the table"
        table = tables.prevalence_table(prevalence)
        blocks.append(Details(summary=summary, blocks=[table], printed=True))
    return [*blocks, *_words(document), *_examples(document)]


def _words(document: Document) -> list[Block]:
    """N-grams and phrases, or why there are none."""
    blocks: list[Block] = []
    grams = document.get("ngrams") or {}
    if reason := grams.get("reason"):
        blocks.append(Note(text=f"Words and phrases of the texts were not compared: {reason}."))
    elif grams:
        significant = sum(bool(row["significant"]) for row in grams["rows"])
        summary = f"{significant} of {len(grams['rows'])} words and phrases of the texts differ significantly"
        table = tables.prevalence_table(grams)
        blocks.append(Details(summary=summary, blocks=[table], open=bool(significant), printed=True))
    if described := document.get("description"):
        blocks += [Note(text=text) for text in words.description(described)]
        if described.get("scores"):
            blocks.append(tables.phrase_table(described))
    return blocks


def _class_picture(document: Document) -> list[Block]:
    if not document["composition"]:
        return []
    caption = f"Share of each class among the {number(document['size'])} chosen examples and in the pool."
    if len(document["composition"]["rows"]) >= content_plots.FEW_SIZES:
        caption = (
            "Share of each class by size. The classes that change most are named; arrows at the right mark "
            "their shares in the pool."
        )
    return [
        _figure(content_plots.plot_composition, document, "Class shares", caption, name="composition"),
    ]


def _prevalence_picture(prevalence: Document | None) -> list[Block]:
    if prevalence is None or not content_plots.most_different(prevalence):
        return []
    caption = (
        "Values that are more (blue) or less (vermilion) frequent in the subset, largest difference first, "
        f"with 95{NARROW}% bootstrap intervals. Filled: significant after correction over "
        f"{len(prevalence['rows'])} values."
    )
    label = "Differences of shares between subset and pool"
    return [_figure(content_plots.plot_prevalence, prevalence, label, caption, name="prevalence")]


def _examples(document: Document) -> list[Block]:
    examples = document["examples"]
    blocks: list[Block] = []
    chosen = tables.gallery(examples["selected"], "Chosen, most harmful first")
    if chosen:
        others = tables.gallery(examples["others"], "Not chosen, at random")
        below = "Below each: its class and the share of the test models that classify it correctly."
        blocks += [
            Section(blocks=[*chosen, *others], style="pair galleries"),
            Note(text=below, style="quiet note"),
        ]
    if examples["selected"]:
        n = min(len(examples["selected"]), tables.PICTURES)
        part = out_of(n, document["size"], "example")
        summary = f"The first {part}" if n < document["size"] else part.capitalize()
        blocks.append(Details(summary=summary, blocks=[tables.example_table(document)]))
    return blocks


# ------------------------------------------------------------------------------- what it hangs on, the data


def _sensitivity(document: Document) -> list[Block]:
    consistency, needed = document["consistency"], document["models_needed"]
    figures: list[Block] = []
    notes: list[Block] = []
    if consistency and len(consistency["sizes"]) > 1:
        overlap = _figure(
            plots.plot_consistency,
            consistency,
            "Overlap of the subsets of every two sizes",
            "Overlap of the subsets of every two sizes: 1 if the smaller lies inside the larger, 0 as for "
            "random subsets, vermilion below. This is not evidence that a subset is real: the overlap is as "
            "high in data without an effect.",
            name="consistency",
        )
        figures.append(overlap)
    if (held_out := document.get("holdout")) and held_out["correlation"]:
        label = "Correlations on the subset, on new examples that a rule picks, and on random ones"
        figures.append(_figure(plots.plot_holdout, document, label, words.holdout(document), name="holdout"))
    elif held_out:
        notes.append(Note(text=words.holdout(document), style="quiet note"))
    if needed:
        runs = ", whole training runs at a time" if needed["unit"] == "group" else ""
        curve = _figure(
            plots.plot_models,
            needed,
            "Correlation against the number of models",
            f"R on all examples as models are added{runs}: random orders and their mean. "
            f"{words.settled(document)}",
            name="models",
        )
        figures.append(curve)
    return [*_pair(figures), *notes]


def _data(document: Document) -> list[Block]:
    split, settings = document["split"], document["settings"]
    published = ", as in the published code" if split["compat"] else ""
    parameters = {
        "settings": settings,
        "split": {name: value for name, value in split.items() if name not in PLACES},
    }
    how = [
        f"Split by {SPLITS[split['kind']]}, seed {split['seed']}{published}",
        f"solver {settings['solver']}",
    ]
    return [
        Facts(facts=[*_quality(document["data"]), *_parts(split)]),
        Note(text=f"{'; '.join([*how, *words.departures(document)])}.", style="quiet note"),
        folded_record("All parameters", parameters),
    ]


def _quality(data: Document) -> list[tuple[str, Text]]:
    """What the correctness matrix is made of."""
    quality = data.get("quality") or {}
    facts: list[tuple[str, Text]] = [
        ("models", number(data["n_models"])),
        ("examples", number(data["n_examples"])),
    ]
    for name, n in (("training runs", data["n_groups"]), ("families", data["n_families"])):
        if n is not None:
            facts.append((name, number(n)))
    if quality:
        facts += [
            ("accuracy in distribution", " to ".join(map(share, quality["id_accuracy"]))),
            ("accuracy on all examples", " to ".join(map(share, quality["accuracy"]))),
            ("all models right", f"{number(quality['n_all_right'])} examples"),
            ("all models wrong", f"{number(quality['n_all_wrong'])} examples"),
            ("repeated models", number(quality["n_duplicates"])),
        ]
    if quality.get("reliability") is not None:
        facts.append(("reliability in distribution", signed(quality["reliability"])))
    return facts


def _parts(split: Document) -> list[tuple[str, Text]]:
    """Models and units of the parts of the main split."""
    kind = split["unit_kind"]
    facts: list[tuple[str, Text]] = []
    for name, part in split["parts"].items():
        units = f" of {number(part['n_units'])} {unit_name(kind, part['n_units'])}"
        facts.append((f"{name} models", number(part["n_models"]) + ("" if kind == "model" else units)))
    return facts


_STORED = (
    "this is a stored selection without its data, so its page cannot be made; read it with "
    "`assay.load_subset(path, data)` and give that"
)
_SUBSET = PageForm(
    noun="subset",
    schema="assay-subset/1",
    again="`assay select`",
    make=subset_page,
    relatives={"assay-selection/1": _STORED, "assay-selection-path/1": _STORED},
)
PAGES.add("subset", _SUBSET)
PAGES.add("subset-path", replace(_SUBSET, schema="assay-subset-path/1"))
