"""Rankings of several targets as a page: the tables of the paper, the universal motif."""

from collections.abc import Mapping, Sequence
from typing import Any

from assay.analyses.generalization import rank_words as words
from assay.analyses.generalization.page import matrix_figure, no_motif, provenance
from assay.page.blocks import Block, Cell, Page, Section, Table, columns
from assay.page.form import PAGES, PageForm
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
        verdict = (
            f"{best['name']} correlates best with performance on average: {words.fixed(best['average'], 3)}."
        )
    blocks = [_comparison_table(document), *_universal_motif(document["motif"])]
    ratios = _ratio_summaries(document)
    return Page(
        kind="comparison of rankings",
        title=f"Metrics over {len(document['rankings'])} targets",
        verdict=verdict,
        caveats=[
            f"{each['target']['domain']}: {note}"
            for each in document["rankings"]
            for note in words.missing_note(each, len(each["models"]))
        ],
        sections=[
            Section(title="Correlation of metrics with performance", blocks=blocks),
            *([Section(title="Share of the blocks that count as deep", blocks=ratios)] if ratios else []),
        ],
        facts=[("result", code(document["id"]))],
        records=[provenance(document)],
        style="rank",
    )


def _comparison_table(document: Document) -> Table:
    heads = [name for dataset in document["datasets"] for name in (f"{dataset} R²", "rank corr.", "Kendall")]
    blind = words.fixed(document["random"], 3)
    chance = f" A blind pick has an expected regret of {blind}." if blind else ""
    return Table(
        columns=columns("metric")
        + columns(*heads, "average ± SEM", "expected regret", "targets", numeric=True),
        rows=[_comparison_row(metric, document["datasets"]) for metric in document["metrics"]],
        caption="Magnitudes of correlations over models, averaged over the targets of a dataset; average "
        "and standard error of all cells, as published. The standard error describes spread, not confidence: "
        f"cells share models and images.{chance}",
        style="rank-worth",
    )


def _comparison_row(metric: Document, datasets: Sequence[str]) -> list[Cell | Text]:
    correlations = [(metric["per_dataset"] or {}).get(dataset) or {} for dataset in datasets]
    average = metric["average"]
    missing = f"without: {', '.join(metric['missing'])}" if metric["missing"] else ""
    return [
        metric["name"],
        *(words.fixed(record.get(name), 2) for record in correlations for name in words.CORRELATIONS),
        "" if average is None else bold(f"{words.fixed(average, 3)} ± {words.fixed(metric['sem'], 3)}"),
        words.fixed(metric["regret"], 3),
        Cell(text=number(metric["n_tasks"]), title=missing),
    ]


def _ratio_summaries(document: Document) -> list[Block]:
    """Correlations of each depth bias over tau, a row per tau, as the published ablations."""
    heads = [name for dataset in document["datasets"] for name in (f"{dataset} R²", "rank corr.", "Kendall")]
    rows: list[list[Cell | Text]] = [
        [
            f"DDB {targets}",
            f"{each['ratio']:g}",
            *(
                words.fixed((each["per_dataset"].get(dataset) or {}).get(name), 2)
                for dataset in document["datasets"]
                for name in words.CORRELATIONS
            ),
            f"{words.fixed(each['average'], 3)} ± {words.fixed(each['sem'], 3)}",
        ]
        for targets, table in (document.get("ratios") or {}).items()
        for each in table
    ]
    if not rows:
        return []
    table = Table(
        columns=columns("metric") + columns("ratio", *heads, "average ± SEM", numeric=True),
        rows=rows,
        caption="Magnitudes of correlations of the depth bias with performance for each share of the blocks.",
        style="gate-table",
    )
    return [table]


def _universal_motif(motif: Document) -> list[Block]:
    if motif["values"] is None:
        return no_motif("universal motif", motif["reason"])
    caption = (
        f"Universal motif: the mean of the motifs of {plural(len(motif['tasks']), 'target')}, each scaled by "
        "its largest entry."
    )
    values, layers = motif["values"], motif["layers"]
    return [matrix_figure("universal", values, layers, "The universal motif.", caption, beside=True)]


PAGES.add(
    "ranking-comparison",
    PageForm(
        noun="comparison of rankings",
        schema="assay-ranking-comparison/1",
        again="`assay rank`",
        make=ranking_comparison_page,
    ),
)
