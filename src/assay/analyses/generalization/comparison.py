"""Metrics over many targets: the table of the paper, what picking by each costs, the universal motif."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from assay.analyses.generalization.dependency import Motif, layer_names, universal_motif
from assay.analyses.generalization.evaluation import (
    CorrelationSummary,
    TaskCorrelation,
    summarize_correlations,
)
from assay.analyses.generalization.metrics import METRICS, Metric
from assay.analyses.generalization.picking import CORRELATIONS, METRIC_FACTS
from assay.analyses.generalization.ranking_table import Ranking
from assay.core.errors import InputError
from assay.core.plotted import Plotted
from assay.core.record import Record, library_version, record_id, same


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class MetricSummary(Record):
    """One metric over all labelled targets.

    Attributes:
        predictor: The metric.
        n_tasks: Targets that have a correlation.
        correlations: Means per dataset, their average and standard error; None where a dataset has no target
            with a correlation.
        regret: Mean expected regret of picking by it; NaN where it ranks nothing.
        missing: Targets on which the metric, or its correlation, is undefined.
    """

    record_layout = {
        **same(*METRIC_FACTS, of="predictor"),
        "per_dataset": "correlations.per_dataset",
        **same("average", "sem", "regret", "missing", "n_tasks"),
    }

    predictor: Metric
    n_tasks: int
    correlations: CorrelationSummary | None
    regret: float
    missing: tuple[str, ...]

    @property
    def average(self) -> float:
        """Mean of all correlations; NaN where a dataset has none."""
        return math.nan if self.correlations is None else self.correlations.average

    @property
    def sem(self) -> float:
        """Standard error of the same."""
        return math.nan if self.correlations is None else self.correlations.sem


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankingComparison(Plotted, Record):
    """Rankings of several targets side by side.

    Attributes:
        rankings: Dataset -> its rankings, one per target.
        metrics: Key -> its summary, in the order of tables.
        random: Mean expected regret of a blind pick; NaN without labels.
    """

    drawn_by = "assay.analyses.generalization.ranking_plots:plot_comparison"
    record_kind = "ranking-comparison"
    record_schema = "assay-ranking-comparison/1"
    record_layout = {
        "id": "id",
        "datasets": "rankings.keys",
        "metrics": "metrics.values",
        "random": "random",
        "motif": "_motif_entry",
        "ratios": "_ratios_entry",
        "rankings": "_listed",
        "provenance": "provenance",
    }

    rankings: Mapping[str, tuple[Ranking, ...]]
    metrics: Mapping[str, MetricSummary]
    random: float

    def __repr__(self) -> str:
        n = len(self._listed)
        return f"RankingComparison({len(self.rankings)} datasets, {n} targets, {len(self.metrics)} metrics)"

    def table(self) -> "pd.DataFrame":
        """A row per metric: R2, SRCC and KRCC of each dataset, their average, its SEM, the mean regret."""
        import pandas as pd

        rows = {}
        for key, summary in self.metrics.items():
            cells = {} if summary.correlations is None else summary.correlations.per_dataset
            rows[key] = {
                **{
                    (dataset, name): cells.get(dataset, {}).get(name, math.nan)
                    for dataset in self.rankings
                    for name in CORRELATIONS
                },
                **{("all", name): getattr(summary, name) for name in ("average", "sem", "regret")},
            }
        frame = pd.DataFrame.from_dict(rows, orient="index")
        frame.columns.names = ["dataset", "number"]
        frame.index.name = "metric"
        return frame

    def to_frame(self) -> "pd.DataFrame":
        """One row per metric: metric, average (of the correlations), sem, regret; NaN where undefined."""
        import pandas as pd

        rows = [(key, each.average, each.sem, each.regret) for key, each in self.metrics.items()]
        return pd.DataFrame(rows, columns=["metric", "average", "sem", "regret"])

    def motifs(self) -> dict[str, Motif]:
        """Motif of each labelled target, named `dataset: domain`.

        Raises:
            InputError: If there is none with labels and scores of all edges.
        """
        motifs = {
            name: each.motif()
            for name, each in _named(self.rankings).items()
            if each.performance is not None
            and all(shown.dependency is not None for shown in each.inspections)
        }
        if not motifs:
            raise InputError(
                "a motif needs a labelled target and scores of all edges ('ddb-deep', 'ddb-global')"
            )
        return motifs

    def universal_motif(self) -> torch.Tensor:
        """Mean of the motifs, each scaled by its largest entry; float64 `[L + 1, L + 1]`."""
        return universal_motif(list(self.motifs().values()))

    def ratio_summaries(self) -> dict[str, dict[float, CorrelationSummary]]:
        """Depth bias (`output`, `deep`, `global`) -> tau -> its correlations over all labelled targets.

        References:
            Peng et al. (2026), arXiv:2604.08192, Tables 2, 12 and 13.
        """
        found: dict[str, dict[float, dict[str, list[TaskCorrelation]]]] = {}
        for dataset, listed in self.rankings.items():
            for ranking in listed:
                for targets, table in ranking.ratio_tables().items():
                    for ratio, correlation in table.items():
                        tasks = found.setdefault(targets, {}).setdefault(ratio, {})
                        tasks.setdefault(dataset, []).append(correlation)
        return {
            targets: {ratio: summarize_correlations(tasks) for ratio, tasks in table.items()}
            for targets, table in found.items()
        }

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be: the rankings by their ids."""
        ids = {name: [each.id for each in listed] for name, listed in self.rankings.items()}
        return {"library": library_version(), "rankings": ids}

    @property
    def id(self) -> str:
        """Hash of how it came to be."""
        return record_id(self.record_kind, self.provenance)

    @property
    def _listed(self) -> list[Ranking]:
        return [each for listed in self.rankings.values() for each in listed]

    def _ratios_entry(self) -> dict[str, list[dict[str, Any]]]:
        return {
            targets: [{"ratio": ratio, **vars(each)} for ratio, each in table.items()]
            for targets, table in self.ratio_summaries().items()
        }

    def _motif_entry(self) -> dict[str, Any]:
        """The universal motif with its layers; the reason where there is none, or models differ in depth."""
        try:
            motifs = self.motifs()
            values = universal_motif(list(motifs.values()))
        except InputError as error:
            return {"values": None, "reason": str(error), "layers": [], "tasks": []}
        return {
            "values": values.numpy(),
            "reason": None,
            "layers": layer_names(len(values) - 2),
            "tasks": list(motifs),
        }


def compare_rankings(
    rankings: Mapping[str, Sequence[Ranking]] | Sequence[Ranking], *, absolute: bool = True
) -> RankingComparison:
    """Put rankings of several targets together.

    Args:
        rankings: Dataset -> rankings of its targets; a list is one dataset, `targets`.
        absolute: Magnitudes of correlations, as the published tables; False keeps signs.

    Returns:
        Per metric the correlations averaged over the targets of each dataset, the average and standard error
        of all cells, and the mean expected regret.

    Raises:
        InputError: For no ranking.

    Notes:
        A target without labels, or on which a metric is undefined, is left out of that metric's means and
        named in `missing`: metrics with different gaps do not rest on the same targets.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    tasks = rankings if isinstance(rankings, Mapping) else {"targets": rankings}
    kept = {name: tuple(each) for name, each in tasks.items() if len(each)}
    if not kept:
        raise InputError("rankings are missing; give at least one")
    everywhere = [each for listed in kept.values() for each in listed]
    asked = {key for each in everywhere for key in (*each.columns, *each.absent)}
    firsts = [next((c.regret for c in each.columns.values() if c.regret), None) for each in everywhere]
    randoms = [each.random for each in firsts if each is not None]
    return RankingComparison(
        rankings=kept,
        metrics={key: _summary(key, kept, absolute=absolute) for key in METRICS if key in asked},
        random=float(np.mean(randoms)) if randoms else math.nan,
    )


def _summary(key: str, rankings: Mapping[str, tuple[Ranking, ...]], *, absolute: bool) -> MetricSummary:
    tasks: dict[str, list[TaskCorrelation]] = {name: [] for name in rankings}
    regrets, missing = [], []
    for dataset, listed in rankings.items():
        for name, each in _named({dataset: listed}).items():
            column = each.columns.get(key)
            if column is None or column.correlation is None:
                missing.append(name)
            else:
                tasks[dataset].append(column.correlation.point)
            if column is not None and column.regret is not None:
                regrets.append(column.regret.expected)
    whole = all(tasks.values())
    return MetricSummary(
        predictor=METRICS[key],
        n_tasks=sum(map(len, tasks.values())),
        correlations=summarize_correlations(tasks, absolute=absolute) if whole else None,
        regret=float(np.mean(regrets)) if regrets else math.nan,
        missing=tuple(missing),
    )


def _named(rankings: Mapping[str, Sequence[Ranking]]) -> dict[str, Ranking]:
    """Every ranking by the name of its dataset and target, numbered where names are equal or missing."""
    found: dict[str, Ranking] = {}
    own = {each.known["domain"] for listed in rankings.values() for each in listed if each.known}
    for dataset, listed in rankings.items():
        for place, each in enumerate(listed, start=1):
            name = f"{dataset}: {each.target['domain'] or place}"
            if len(own) > 1 and each.known:  # several zoos: tasks are named by both domains, as published
                name = f"{dataset}: {each.known['domain']} to {each.target['domain'] or place}"
            found[f"{name} ({place})" if name in found else name] = each
    return found
