"""Metrics over the rankings of many targets: how each goes with performance, and what picking by it costs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.generalization.evaluation import CORRELATIONS, TaskCorrelation, summarize_correlations
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.ranking import Ranking
from assay.analyses.generalization.ranking_page import HEADS, fixed, missing_note
from assay.core.errors import InputError
from assay.core.record import Record, library_version, record_id, same
from assay.page.blocks import Page, Section, Table, columns, folded_record
from assay.page.form import PAGES, PageForm
from assay.page.text import code, number


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankingComparison(Record):
    """Rankings of several targets side by side.

    Attributes:
        rankings: Data set -> its rankings, one per target.
        metrics: A row per metric, that of the least regret first: `key`, `name`; `per_dataset`, signed
            correlations averaged over the targets of each data set; `average`, mean magnitude of all of them,
            and `sem`, its standard error over data sets, as published, NaN for one; `regret`, mean expected
            regret of picking by it; `n_tasks`, targets with a correlation.
        random: Mean expected regret of a blind pick; NaN without labels.
    """

    record_kind = "ranking-comparison"
    record_schema = "assay-ranking-comparison/1"
    record_layout = {
        **same("id", "metrics", "random", "provenance"),
        "datasets": "rankings.keys",
        "rankings": "_listed",
    }

    rankings: Mapping[str, Sequence[Ranking]]
    metrics: Sequence[Mapping[str, Any]]
    random: float

    def __repr__(self) -> str:
        return f"RankingComparison({len(self._listed)} targets, {len(self.metrics)} metrics)"

    @property
    def _listed(self) -> list[Ranking]:
        return [each for listed in self.rankings.values() for each in listed]

    @property
    def provenance(self) -> dict[str, Any]:
        """How it came to be: the rankings by their ids."""
        ids = {name: [each.id for each in listed] for name, listed in self.rankings.items()}
        return {"library": library_version(), "rankings": ids}

    @property
    def id(self) -> str:
        """Hash of how it came to be."""
        return record_id(self.record_kind, self.provenance)

    def to_frame(self) -> "pd.DataFrame":
        """One row per metric: metric, three signed correlations of each data set, average, sem, regret."""
        import pandas as pd

        cells = pd.json_normalize(
            [{"metric": each["key"], **each["per_dataset"]} for each in self.metrics], sep=" "
        )
        return cells.assign(
            **{name: [each[name] for each in self.metrics] for name in ("average", "sem", "regret")}
        )


def compare_rankings(rankings: Mapping[str, Sequence[Ranking]]) -> RankingComparison:
    """Put rankings of several targets together.

    Args:
        rankings: Data set -> rankings of its targets.

    Raises:
        InputError: For no ranking.

    Notes:
        A target without labels, or on which a metric is undefined, is left out of that metric's means:
        metrics with different `n_tasks` do not rest on the same targets.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    everywhere = [each for listed in rankings.values() for each in listed]
    if not everywhere:
        raise InputError("rankings are missing; give at least one")
    rows = []
    for key in METRICS:
        tasks: dict[str, list[TaskCorrelation]] = {}
        regrets = []
        for name, ranking in ((name, each) for name, listed in rankings.items() for each in listed):
            column = ranking.columns.get(key)
            if column is not None and (found := column.correlation) is not None:
                values = {each: getattr(found, each).value for each in CORRELATIONS}
                tasks.setdefault(name, []).append(TaskCorrelation(**values, n=found.n))
            if column is not None and column.regret is not None:
                regrets.append(column.regret.expected)
        sizes = summarize_correlations(tasks) if tasks else None
        rows.append(
            {
                "key": key,
                "name": METRICS[key].name,
                "per_dataset": summarize_correlations(tasks, absolute=False).per_dataset if tasks else {},
                "average": sizes.average if sizes else math.nan,
                "sem": sizes.sem if sizes and len(tasks) > 1 else math.nan,
                "regret": float(np.mean(regrets)) if regrets else math.inf,
                "n_tasks": sum(map(len, tasks.values())),
            }
        )
    truths = [each.performance.numbers[1:] for each in everywhere if each.performance is not None]
    blind = [(truth.max(1) - truth.mean(1)).mean() for truth in truths]
    return RankingComparison(
        rankings=rankings,
        metrics=sorted(
            (row for row in rows if any(row["key"] in each.columns for each in everywhere)),
            key=lambda row: row["regret"],
        ),
        random=float(np.mean(blind)) if blind else math.nan,
    )


def ranking_comparison_page(document: Mapping[str, Any]) -> Page:
    """What is shown of several rankings side by side; their own pages follow.

    Args:
        document: What `RankingComparison.to_dict` gave.
    """
    metrics, datasets = document["metrics"], document["datasets"]
    best, blind = metrics[0] if metrics else None, fixed(document["random"], 3)
    verdict = "No target has labels, so metrics cannot be compared."
    if best is not None and best["regret"] is not None:
        least = f"its expected regret is {fixed(best['regret'], 3)}, that of a blind pick {blind}"
        verdict = f"Picking by {best['name']} loses least: {least}."
    heads = [f"{dataset} {head}" for dataset in datasets for head in HEADS]
    table = Table(
        columns=columns("metric") + columns("expected regret", *heads, "mean size", "targets", numeric=True),
        rows=[
            [
                each["name"],
                fixed(each["regret"], 3),
                *(
                    fixed(each["per_dataset"].get(d, {}).get(name), 2)
                    for d in datasets
                    for name in CORRELATIONS
                ),
                fixed(each["average"], 3) + ("" if each["sem"] is None else f" ± {fixed(each['sem'], 3)}"),
                number(each["n_tasks"]),
            ]
            for each in metrics
        ],
        caption="Signed correlations over models, averaged over the targets of a data set; that of sharpness "
        "should be negative. Mean size: of all of them, signs aside; of several data sets ± the standard "
        "error, which describes spread, not confidence: cells share models and images.",
        style="rank-worth",
    )
    return Page(
        kind="comparison of rankings",
        title=f"Metrics over {len(document['rankings'])} targets",
        verdict=verdict,
        caveats=[
            f"{each['target']['domain']}: {note}"
            for each in document["rankings"]
            for note in missing_note(each)
        ],
        sections=[Section(title="What picking by each metric costs", blocks=[table])],
        facts=[("result", code(document["id"]))],
        records=[folded_record("Provenance", document["provenance"])],
        style="rank",
    )


PAGES.add(
    "ranking-comparison",
    PageForm(
        noun="comparison of rankings",
        schema="assay-ranking-comparison/1",
        again="`assay rank`",
        make=ranking_comparison_page,
    ),
)
