"""The page of other models on a subset: what gates say, each model against the line, correlations."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from assay.analyses.subsets.evaluation import KIND, SCHEMA
from assay.analyses.subsets.page_tables import correlation_cell
from assay.analyses.subsets.page_words import ends, signed
from assay.analyses.subsets.probit_plots import plot_evaluation
from assay.analyses.subsets.quality import Understood
from assay.analyses.subsets.splits import PARTS
from assay.page.blocks import Block, Cell, Facts, Figure, Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import Text, code, first, interval, number, out_of, percent, plural


Document = Mapping[str, Any]
FEW = 4  # models below which no correlation over them is shown
TALL = 12  # models of a table that is not scrolled; sentences on gates


def evaluation_page(document: Document) -> Page:
    """What is shown of other models on a subset."""
    subset, n_models = document["subset"], document["data"]["n_models"]
    test, status = subset["test"], (subset["verdict"] or {}).get("status", "not known")
    reasons = gate_sentences(document, "fail") + gate_sentences(document, "inconclusive")
    sections = [Section(title="The models", blocks=[_figure(document), _model_table(document)])]
    if n_models >= FEW:
        sections.append(Section(title="Over the models", blocks=_over_models(document)))
    if understood := document["data"].get("understood"):
        rows = Understood.from_dict(understood).rows()
        sections.append(Section(title="How the answers were read", blocks=[Facts(facts=rows)]))
    return Page(
        kind="subset evaluation",
        title=f"{plural(n_models, 'model')} on a subset of {plural(subset['size'], 'example')}",
        verdict=_verdict(document),
        status=document["status"],
        reasons=[*reasons[:TALL], *([f"{number(len(reasons) - TALL)} more"] if len(reasons) > TALL else [])],
        caveats=[*document["caveats"], *(_of_correlations(document) if n_models >= FEW else ())],
        lede=f"The subset has {out_of(subset['size'], subset['n_examples'], 'example')}, selected "
        f"with {plural(subset['n_models'], 'model')}; its verdict is {status}, R over its test models "
        f"{signed(test['r'])} {ends(test['low'], test['high'])}. The "
        f"{plural(document['data']['n_examples'], 'example')} given include "
        f"{out_of(document['n_matched'], subset['size'], 'example')} of the subset.",
        sections=sections,
        facts=[("result", code(document["id"])), ("subset", code(subset["id"]))],
        records=[folded_record("Provenance", document["provenance"])],
    )


def gate_sentences(document: Document, status: str) -> list[str]:
    """Models that fail a gate, or do not settle it, each with the reading behind it."""
    return [
        f"{each['model']} {'fails' if status == 'fail' else 'does not settle'} {gate}: {_reading(each, gate)}"
        for each in document["models"]
        for gate, judged in each["gates"].items()
        if judged == status
    ]


def _reading(model: Document, gate: str) -> str:
    reading = model[re.findall("[a-z_]+", gate)[0]] or dict.fromkeys(("value", "low", "high"))
    return f"{number(reading['value'], 3)} {interval(reading['low'], reading['high'], 3)}".strip()


def _verdict(document: Document) -> str:
    """Whether the gates passed, and mean accuracies."""
    n, models = len(document["models"]), document["models"]
    subset, all_ = (sum(each[of]["value"] for each in models) / n for of in ("accuracy", "accuracy_all"))
    found = f"{'Mean accuracy' if n > 1 else 'Accuracy'} is {percent(subset)} on the subset"
    judged = {"pass": "Passed. ", "fail": "Failed. ", "inconclusive": "Undecided. "}
    return f"{judged.get(document['status'], '')}{found} and {percent(all_)} on all examples."


def _figure(document: Document) -> Figure:
    level = percent(document["level"])
    about = f"Probit axes; exact {level} intervals of the accuracies."
    if document["models"][0]["id_accuracy"] is not None:
        about += (
            " Lines: least squares through the test models of the selection; bands: where "
            f"{level} of further models like them are expected."
        )
    return Figure(
        draw=partial(plot_evaluation, document),
        label="Accuracy of the models on the subset and on all examples; the table has the numbers",
        caption=about,
        beside=True,
        name="models",
    )


def _model_table(document: Document) -> Table:
    models, left = first(document["models"])
    names = [name + all_ for all_ in ("", "_all") for name in ("accuracy", "expected", "residual")]
    heads = ("subset", "expected", "residual", "all examples", "expected", "residual")
    seen = any(each.get("part") in PARTS for each in models)
    return Table(
        columns=[
            *columns("model", *(["in the selection"] if seen else []), *document["gates"], sort=True),
            *columns("in distribution", *heads, numeric=True, sort=True),
        ],
        rows=[
            [
                each["model"],
                *([each.get("part")] if seen else []),
                *(Cell(status=status) for status in each["gates"].values()),
                number(each["id_accuracy"], 3),
                *(_cell(each[name]) for name in names),
            ]
            for each in models
        ],
        left=left,
        caption="Expected: the accuracy at which the line of the selection’s test models puts a model with "
        "this accuracy in distribution, with its prediction interval. Residual: distance from the line, in "
        "probits.",
        tall=len(models) > TALL,
    )


def _cell(reading: Document | None) -> Cell:
    if reading is None or reading["value"] is None:
        return Cell()
    below = interval(reading["low"], reading["high"])
    return Cell(text=number(reading["value"], 3), below=below, value=reading["value"])


def _of_correlations(document: Document) -> list[str]:
    """What a reader must know of the correlations over the models, also in a terminal."""
    sizes = document["sizes"]
    known = [each["with_full"]["r"] for each in sizes if each["with_full"]["r"] is not None]
    rated = any(each["id_accuracy"] is not None for each in document["models"])  # a caveat says that none is
    shown = [*(sizes if rated else ()), *(each["with_full"] for each in sizes)]
    found = [
        f"R over these models: {why}." for why in sorted({each.get("caution") or "" for each in shown}) if why
    ]
    if len(known) > 1:
        found.append(
            f"The weakest R with accuracy on all examples, of {len(known)} sizes: {signed(min(known))}."
        )
    return found


def _over_models(document: Document) -> list[Block]:
    rows: list[list[Cell | Text]] = [
        [number(each["size"]), number(each["n_matched"]), *map(correlation_cell, (each, each["with_full"]))]
        for each in document["sizes"]
    ]
    heads = ("examples", "matched", "R with accuracy in distribution", "R with accuracy on all examples")
    text = (
        "R with accuracy on all examples: whether the subset keeps the order of these models, the check for "
        "models without in-distribution data, such as zero-shot ones. Both sides are out of distribution, so "
        "a high R does not show that a model is robust."
    )
    return [Table(columns=columns(*heads, numeric=True), rows=rows, caption=text, named=False)]


PAGES.add(
    KIND, PageForm(noun="evaluation", schema=SCHEMA, again="`assay select evaluate`", make=evaluation_page)
)
