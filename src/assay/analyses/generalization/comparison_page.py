"""Rankings of several targets as a page: the tables of the paper, the universal motif."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from assay.analyses.generalization.picking import CORRELATIONS
from assay.analyses.generalization.ranking_page import fixed, missing_note, no_motif
from assay.analyses.generalization.ranking_plots import layer_matrix
from assay.page.blocks import Block, Cell, Figure, Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.matrix import plot_matrix
from assay.page.text import Text, bold, code, number, plural


Document = Mapping[str, Any]


def ranking_comparison_page(document: Document) -> Page:
    """What is shown of several rankings side by side; their own pages follow.

    Args:
        document: What `RankingComparison.to_dict` gave.
    """
    known = [metric for metric in document["metrics"] if metric["average"] is not None]
    best = max(known, key=lambda metric: metric["average"], default=None)
    verdict = "No target has labels, so metrics cannot be compared."
    if best is not None:
        size = fixed(best["average"], 3)
        verdict = f"{best['name']} has the largest mean correlation with performance, signs aside: {size}."
    blind = fixed(document["random"], 3)
    chance = f" A blind pick has an expected regret of {blind}." if blind else ""
    table = Table(
        columns=columns("metric")
        + columns(*_heads(document), "average ± SEM", "expected regret", "targets", numeric=True),
        rows=[
            [
                metric["name"],
                *_correlations(metric["per_dataset"] or {}, metric, document["datasets"]),
                fixed(metric["regret"], 3),
                Cell(text=number(metric["n_tasks"]), title=", ".join(["without:", *metric["missing"]])),
            ]
            for metric in document["metrics"]
        ],
        caption="Magnitudes of correlations over models, averaged over the targets of a dataset; average "
        "and standard error of all cells, as published. The standard error describes spread, not confidence: "
        f"cells share models and images.{chance}",
        style="rank-worth",
    )
    ratios = _ratio_summaries(document)
    return Page(
        kind="comparison of rankings",
        title=f"Metrics over {len(document['rankings'])} targets",
        verdict=verdict,
        caveats=[
            f"{each['target']['domain']}: {note}"
            for each in document["rankings"]
            for note in missing_note(each)
        ],
        sections=[
            Section(
                title="Size of the correlation of metrics with performance",
                blocks=[table, *_universal_motif(document["motif"])],
            ),
            *([Section(title="Share of the blocks that count as deep", blocks=ratios)] if ratios else []),
        ],
        facts=[("result", code(document["id"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="rank",
    )


def _heads(document: Document) -> list[str]:
    return [name for dataset in document["datasets"] for name in (f"{dataset} R²", "rank corr.", "Kendall")]


def _correlations(per_dataset: Document, whole: Document, datasets: Sequence[str]) -> list[Text]:
    """The cells of every dataset, then their average and its standard error."""
    cells = [
        fixed((per_dataset.get(dataset) or {}).get(name), 2) for dataset in datasets for name in CORRELATIONS
    ]
    average = whole["average"]
    return [*cells, "" if average is None else bold(f"{fixed(average, 3)} ± {fixed(whole['sem'], 3)}")]


def _ratio_summaries(document: Document) -> list[Block]:
    """Correlations of each depth bias over tau, a row per tau, as the published ablations."""
    rows = [
        [
            f"DDB {targets}",
            f"{each['ratio']:g}",
            *_correlations(each["per_dataset"], each, document["datasets"]),
        ]
        for targets, table in (document.get("ratios") or {}).items()
        for each in table
    ]
    table = Table(
        columns=columns("metric") + columns("ratio", *_heads(document), "average ± SEM", numeric=True),
        rows=rows,
        caption="Magnitudes of correlations of the depth bias with performance for each share of the blocks.",
        style="gate-table",
    )
    return [table] if rows else []


def _universal_motif(motif: Document) -> list[Block]:
    if motif["values"] is None:
        return no_motif("universal motif", motif)
    caption = (
        f"Universal motif: the mean of the motifs of {plural(len(motif['tasks']), 'target')}, each scaled by "
        "its largest entry."
    )
    picture = partial(plot_matrix, layer_matrix(motif["values"], motif["layers"]))
    return [
        Figure(draw=picture, label="The universal motif.", caption=caption, name="universal", beside=True)
    ]


PAGES.add(
    "ranking-comparison",
    PageForm(
        noun="comparison of rankings",
        schema="assay-ranking-comparison/1",
        again="`assay rank`",
        make=ranking_comparison_page,
    ),
)
