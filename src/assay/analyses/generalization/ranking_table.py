"""Models by metrics on one target domain: the result of a ranking, and how a column of it is made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.analyses.generalization.dependency import TARGETS, dependency_depth_bias, output_depth_bias
from assay.analyses.generalization.evaluation import RATIOS, TaskCorrelation, correlate
from assay.analyses.generalization.inspection import Inspection, InspectionSettings
from assay.analyses.generalization.motifs import Motif, motif
from assay.analyses.generalization.picking import (
    MetricCorrelation,
    Regret,
    best_chances,
    bias_corrected_interval,
    correlation_with_intervals,
    ranks,
    regret_of_picking,
)
from assay.analyses.generalization.predictor import Estimate, Predictor
from assay.core.errors import InputError, unknown_name
from assay.core.measurement import Interval


if TYPE_CHECKING:
    import pandas as pd

_NO_EDGES = "scores of all edges are needed; ask for metrics=[..., 'ddb-deep'] or 'ddb-global'"


@dataclass(frozen=True, kw_only=True, eq=False)
class Column:
    """One metric over all models.

    Attributes:
        metric: What it is.
        values: `[n_models]`, NaN where undefined.
        intervals: Over resampled images.
        reasons: Why a value or an interval is missing, None where it is not.
        ranks: 1 is predicted best; None where the metric's source states no direction.
        chances: Share of the resamples in which each model is the best by the metric; None likewise, or
            without replicates.
        regret: Of picking by it; None without labels or direction.
        correlation: With true performance; None without labels.
        elsewhere: Mean expected regret of picking by it on other, labelled domains; None without any.
        draws: Replicates `[n_draws, n_models]`; None where there are none.
    """

    metric: Predictor
    values: Float64[np.ndarray, " models"]
    intervals: tuple[Interval, ...]
    reasons: tuple[str | None, ...]
    ranks: Float64[np.ndarray, " models"] | None = None
    chances: Float64[np.ndarray, " models"] | None = None
    regret: Regret | None = None
    correlation: MetricCorrelation | None = None
    elsewhere: float | None = None
    draws: Float64[np.ndarray, "draws models"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranking:
    """Models by metrics on one target domain.

    Attributes:
        names: The models, in the order given.
        columns: Key of the metric -> its column, in the order of tables.
        absent: Key of a metric that was asked for -> why it is not there.
        performance: True performance of each model with its interval and replicates; None without labels.
        measure: `"accuracy"` or `"macro-f1"`.
        inspections: What each model showed on the target, less features and replicates of matrices.
        target: Facts about the images: domain, number, whether labelled.
        known: Facts about the labelled images of the models' own domain; None if there were none.
        ratio: tau of the depth bias.
        settings: How scores were measured and images drawn.
        level: Coverage of the intervals.
    """

    names: tuple[str, ...]
    columns: Mapping[str, Column]
    absent: Mapping[str, str]
    performance: Column | None
    measure: str
    inspections: tuple[Inspection, ...]
    target: Mapping[str, Any]
    known: Mapping[str, Any] | None
    ratio: float
    settings: InspectionSettings
    level: float = 0.95
    costs: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Ranking({len(self.names)} models, {len(self.columns)} metrics, domain "
            f"{self.target['domain']!r}, n={self.target['n']})"
        )

    def column(self, metric: str) -> Column:
        """One metric.

        Raises:
            InputError: If it was asked for and could not be had; the message says why.
            UnknownNameError: If it was not asked for.
        """
        if metric in self.absent:
            raise InputError(f"{metric} is not in this ranking: {self.absent[metric]}")
        if metric not in self.columns:
            raise unknown_name("metric of this ranking", metric, self.columns)
        return self.columns[metric]

    def order(self, metric: str = "ddb-output") -> tuple[str, ...]:
        """Names of the models, predicted best first; models without a value last.

        Raises:
            InputError: If the metric's source states no direction, or it is absent.
        """
        column = self.column(metric)
        if column.ranks is None:
            raise InputError(f"{metric} puts no models in order: its source states no direction")
        place = np.where(np.isnan(column.ranks), math.inf, column.ranks)
        return tuple(self.names[index] for index in np.argsort(place, kind="stable"))

    def best(self, metric: str = "ddb-output") -> str:
        """The model that a metric predicts best; the first of equals."""
        return self.order(metric)[0]

    def table(self) -> "pd.DataFrame":
        """One row per model: performance (if known) and every metric; the index is the model's name."""
        import pandas as pd

        columns = {} if self.performance is None else {self.measure: self.performance.values}
        columns |= {key: column.values for key, column in self.columns.items()}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="model"))

    def motif(self, *, kind: str = "loadings", ridge: float = 0.0) -> Motif:
        """Which dependencies between layers go with performance over these models.

        Raises:
            InputError: Without labels, or without scores of all edges (`metrics=` with `"ddb-deep"` or
                `"ddb-global"`); otherwise as `assay.analyses.generalization.motif`.
        """
        if self.performance is None:
            raise InputError("a motif needs the performance of the models: the target has no labels")
        return motif(self._matrices(), self.performance.values, kind=kind, ridge=ridge)

    def ratios(
        self, targets: str = "output", ratios: Sequence[float] = RATIOS
    ) -> dict[float, TaskCorrelation]:
        """How the choice of tau changes what the depth bias predicts.

        Args:
            targets: Which depth bias; all but `"output"` need scores of all edges.
            ratios: Values of tau, in (0, 0.5].

        Raises:
            InputError: Without labels, or without the scores that this needs.
        """
        if targets not in TARGETS:
            raise unknown_name("targets", targets, TARGETS)
        if self.performance is None:
            raise InputError("a comparison of ratios needs performance: the target has no labels")
        return {
            ratio: correlate(
                [self._bias(each, targets, ratio) for each in self.inspections], self.performance.values
            )
            for ratio in ratios
        }

    def _bias(self, inspection: Inspection, targets: str, ratio: float) -> float:
        if targets == "output" and inspection.output_scores is not None:
            means = torch.from_numpy(inspection.output_scores.astype(np.float64).mean(0))
            return output_depth_bias(inspection.graph, means, ratio=ratio)
        if inspection.dependency is None:
            raise InputError(_NO_EDGES)
        return dependency_depth_bias(torch.from_numpy(inspection.dependency), targets=targets, ratio=ratio)

    def _matrices(self) -> Float64[np.ndarray, "models layers layers"]:
        found = [each.dependency for each in self.inspections]
        if any(each is None for each in found):
            raise InputError(_NO_EDGES)
        return np.stack([each for each in found if each is not None])

    def to_dict(self) -> dict[str, Any]:
        """The document of the ranking: plain JSON, everything that a report shows."""
        from assay.analyses.generalization.ranking_document import ranking_document

        document: dict[str, Any] = ranking_document(self)
        return document


def column_of(
    metric: Predictor,
    found: Sequence[Estimate],
    truth: Column | None,
    *,
    level: float,
    seed: int,
    elsewhere: Sequence[Ranking] = (),
) -> Column:
    """A metric over all models, put together from its estimates.

    Args:
        metric: What it is.
        found: Its estimate for each model.
        truth: True performance; None without labels.
        level: Coverage of the intervals.
        seed: Of the resampled models of correlations.
        elsewhere: Rankings on other domains that know the regret of the same metric.
    """
    values = np.array([each.value for each in found], dtype=np.float64)
    have = [each.draws for each in found if each.draws is not None]
    missing = np.full(len(have[0]) if have else 0, np.nan)
    draws = (
        np.stack([missing if each.draws is None else each.draws for each in found], axis=1) if have else None
    )
    oriented = metric.oriented(values)
    oriented_draws = None if draws is None else metric.oriented(draws)
    regret = correlation = None
    if truth is not None:
        assert truth.draws is not None
        correlation = _correlation(values, draws, truth, level=level, seed=seed)
        if oriented is not None:
            # A metric that cannot be resampled picks the same model in every resample.
            picks = np.tile(oriented, (len(truth.draws), 1)) if oriented_draws is None else oriented_draws
            regret = regret_of_picking(oriented, picks, truth.values, truth.draws, level=level)
    regrets = [
        column.regret.expected
        for each in elsewhere
        if (column := each.columns.get(metric.key)) is not None and column.regret is not None
    ]
    return Column(
        metric=metric,
        values=values,
        intervals=tuple(
            bias_corrected_interval(each.value, each.draws, level=level, reason=each.reason) for each in found
        ),
        reasons=tuple(each.reason for each in found),
        ranks=None if oriented is None else ranks(oriented),
        chances=None if oriented_draws is None else best_chances(oriented_draws),
        regret=regret,
        correlation=correlation,
        elsewhere=float(np.mean(regrets)) if regrets else None,
        draws=draws,
    )


def _correlation(
    values: Float64[np.ndarray, " models"],
    draws: Float64[np.ndarray, "draws models"] | None,
    truth: Column,
    *,
    level: float,
    seed: int,
) -> MetricCorrelation | None:
    """Over the models for which the metric is defined; None where fewer than 3 are, or nothing varies."""
    used = np.isfinite(values)
    if used.sum() < 3 or np.ptp(values[used]) == 0 or np.ptp(truth.values[used]) == 0:
        return None
    assert truth.draws is not None
    return correlation_with_intervals(
        correlate(values[used], truth.values[used]),
        None if draws is None else draws[:, used],
        truth.draws[:, used],
        level=level,
        seed=seed,
    )
