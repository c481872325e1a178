"""Models by metrics on one target domain: the result of a ranking, and its document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64

from assay.analyses.generalization.dependency import (
    TARGETS,
    DepthRule,
    Motif,
    at_relative_layers,
    dependency_depth_bias,
    layer_names,
    motif,
    output_depth_bias,
)
from assay.analyses.generalization.evaluation import RATIOS, TaskCorrelation, correlate
from assay.analyses.generalization.inspection import Inspection, InspectionSettings, copied_from
from assay.analyses.generalization.metrics import METRICS
from assay.analyses.generalization.picking import RankedMetric
from assay.core.errors import InputError, check_name, unknown_name
from assay.core.plotted import Plotted
from assay.core.record import Record, library_version, record_id, same


if TYPE_CHECKING:
    import pandas as pd

RESAMPLED = (
    "Resampled are the images (Poisson bootstrap), {draws:,} times, the same resamples for every model; held "
    "fixed are the models and the means that ablated edges carry."
)
_NO_EDGES = "scores of all edges are missing; request metrics=[..., 'ddb-deep'] or 'ddb-global'"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Ranking(Plotted, Record):
    """Models by metrics on one target domain.

    Attributes:
        names: The models, in the order given.
        columns: Key of the metric -> its column, in the order of tables.
        absent: Key of a metric that was asked for -> why it is not there.
        performance: True performance of each model with its interval and replicates; None without labels.
        measure: `"accuracy"` or `"macro-f1"`.
        inspections: What each model showed on the target, less logits, spectra and replicates.
        target: Facts about the images: domain, number, whether labelled.
        known: Facts about the labelled images of the models' own domain; None if there were none.
        rule: Layers that the depth bias compares.
        settings: How scores were measured and images drawn.
        level: Coverage of the intervals.
        costs: Stage -> seconds, and passes per image.
        missing: Model that should be here -> why it is not, e.g. because its training is not done.
    """

    drawn_by = "assay.analyses.generalization.ranking_plots:plot_ranking"
    record_kind = "ranking"
    record_schema = "assay-ranking/1"
    record_layout = {
        **same("id", "target", "known", "measure", "ratio", "level", "resampled"),
        "models": "_models_entry",
        "missing": "missing",
        "performance": "performance.rows",
        "metrics": "columns.values",
        "absent": "_absent_entry",
        "ratios": "_ratios_entry",
        "layers": "layers",
        "motif": "_motif_entry",
        "dependency": "_dependency_entry",
        **same("costs", "provenance"),
    }

    names: tuple[str, ...]
    columns: Mapping[str, RankedMetric]
    absent: Mapping[str, str]
    performance: RankedMetric | None
    measure: str
    inspections: tuple[Inspection, ...]
    target: Mapping[str, Any]
    known: Mapping[str, Any] | None
    rule: DepthRule
    settings: InspectionSettings
    level: float = 0.95
    costs: Mapping[str, Any] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Ranking({len(self.names)} models, {len(self.columns)} metrics, domain "
            f"{self.target['domain']!r}, n={self.target['n']})"
        )

    @property
    def ratio(self) -> float:
        """Share tau of the blocks on each side of the depth bias."""
        return self.rule.ratio

    def column(self, metric: str) -> RankedMetric:
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
        ranks = self.column(metric).ranks
        if ranks is None:
            raise InputError(f"{metric} does not order models: its source does not give a direction")
        return tuple(self.names[index] for index in np.argsort(ranks, kind="stable"))  # NaN last

    def best(self, metric: str = "ddb-output") -> str:
        """The model that a metric predicts best; the first of equals."""
        return self.order(metric)[0]

    def _shown(self) -> dict[str, RankedMetric]:
        """The metrics by key, true performance first where it is known."""
        return ({} if self.performance is None else {self.measure: self.performance}) | dict(self.columns)

    def to_frame(self) -> "pd.DataFrame":
        """One row per metric and model, true performance first: metric, model, value, low, high, rank."""
        import pandas as pd

        columns = ["value", "low", "high", "rank"]
        rows = [
            [key, name, *(row[each] for each in columns)]
            for key, column in self._shown().items()
            for name, row in zip(self.names, column.rows(), strict=True)
        ]
        return pd.DataFrame(rows, columns=["metric", "model", *columns])

    def table(self) -> "pd.DataFrame":
        """One row per model: performance (if known) and every metric; the index is the model's name."""
        import pandas as pd

        columns = {key: column.values for key, column in self._shown().items()}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="model"))

    def motif(self, *, kind: str = "loadings", ridge: float = 0.0) -> Motif:
        """Which dependencies between layers go with performance over these models.

        Raises:
            InputError: Without labels, or without scores of all edges (`metrics=` with `"ddb-deep"` or
                `"ddb-global"`); otherwise as `assay.analyses.generalization.motif`.
        """
        if self.performance is None:
            raise InputError("a motif needs the performance of the models: the target has no labels")
        matrices = [each.dependency for each in self.inspections]
        if any(each is None for each in matrices):
            raise InputError(_NO_EDGES)
        positions, used = min(self._depths), self._distinct
        stacked = np.stack([at_relative_layers(each, positions) for each in matrices if each is not None])
        return motif(stacked[used], self.performance.values[used], kind=kind, ridge=ridge)

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
        check_name("targets", targets, TARGETS)
        if self.performance is None:
            raise InputError("a comparison of ratios needs performance: the target has no labels")
        used = [self.inspections[place] for place in self._distinct]
        return {
            ratio: correlate(
                [self._bias(each, targets, ratio) for each in used], self.performance.values[self._distinct]
            )
            for ratio in ratios
        }

    def ratio_tables(self) -> dict[str, dict[float, TaskCorrelation]]:
        """`ratios` of each depth bias of the table; empty where there is no performance that varies."""
        used = self._distinct
        if self.performance is None or len(used) < 3 or np.ptp(self.performance.values[used]) == 0:
            return {}
        if self.rule.sets != "symmetric":
            return {}
        return {each: self.ratios(each) for each in TARGETS if f"ddb-{each}" in self.columns}

    def _bias(self, inspection: Inspection, targets: str, ratio: float) -> float:
        options = {"ratio": ratio, **self.rule.options}
        if targets == "output" and inspection.output_scores is not None:
            return output_depth_bias(inspection.graph, torch.from_numpy(inspection.output_scores), **options)
        if inspection.dependency is None:
            raise InputError(_NO_EDGES)
        return dependency_depth_bias(torch.from_numpy(inspection.dependency), targets=targets, **options)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be."""
        usual = DepthRule().options
        return {
            "library": library_version(),
            "models": [each.provenance.get("model") for each in self.inspections],
            **{name: getattr(self, name) for name in ("target", "known", "measure", "ratio", "level")},
            **{name: value for name, value in self.rule.options.items() if value != usual[name]},
            "metrics": [*self.columns, *self.absent],
            "settings": self.settings.to_dict(),
        }

    @property
    def id(self) -> str:
        """Hash of how it came to be."""
        return record_id("ranking", self.provenance)

    @property
    def resampled(self) -> str:
        """What the intervals are over."""
        return RESAMPLED.format(draws=self.settings.draws)

    @property
    def layers(self) -> list[str]:
        """Names of the rows and columns of a dependency matrix."""
        return layer_names(min(self._depths), relative=len(set(self._depths)) > 1)

    @property
    def _depths(self) -> tuple[int, ...]:
        return tuple(each.graph.n_layers for each in self.inspections)

    @cached_property
    def _distinct(self) -> Int64[np.ndarray, " distinct"]:
        """Places of the models that do not copy an earlier one: those that correlations are over."""
        return np.unique(copied_from(self.inspections))

    def _models_entry(self) -> list[dict[str, Any]]:
        entries = []
        for place, first in enumerate(copied_from(self.inspections).tolist()):
            shown = self.inspections[place]
            model = shown.provenance.get("model") or {}
            counts = np.bincount(shown.predictions)
            top = int(counts.argmax())
            entries.append(
                {
                    "name": self.names[place],
                    **{key: model.get(key) for key in ("id", "weight_hash")},
                    "blocks": shown.graph.n_layers,
                    "top_class": str(top) if shown.classes is None else shown.classes[top],
                    "top_share": counts[top] / shown.n,
                    **({} if first == place else {"copy_of": self.names[first]}),
                }
            )
        return entries

    def _absent_entry(self) -> list[dict[str, str]]:
        return [
            {"key": key, "name": METRICS[key].name, "reason": reason} for key, reason in self.absent.items()
        ]

    def _ratios_entry(self) -> dict[str, list[dict[str, float]]] | None:
        """Correlations of the depth bias with performance over values of tau; None without labels."""
        return {
            targets: [
                {"ratio": ratio, "r2": each.r2, "srcc": each.srcc, "krcc": each.krcc}
                for ratio, each in table.items()
            ]
            for targets, table in self.ratio_tables().items()
        } or None

    def _motif_entry(self) -> dict[str, Any] | None:
        """The motif, or the reason why there is none; None where scores of all edges were not asked for."""
        if any(each.dependency is None for each in self.inspections):
            return None
        try:
            pattern = self.motif()
        except InputError as error:
            return {"values": None, "reason": str(error)}
        names = ("values", "used", "correlation", "n", "kind")
        return {**{name: getattr(pattern, name) for name in names}, "reason": None}

    def _dependency_entry(self) -> list[dict[str, Any]] | None:
        """Dependency matrices of the models that the leading metric ranks first and last."""
        ranked = (each.ranks for each in self.columns.values() if each.ranks is not None)
        ranks = next((each for each in ranked if np.isfinite(each).any()), None)
        if ranks is None or any(each.dependency is None for each in self.inspections):
            return None
        ends = dict.fromkeys((int(np.nanargmin(ranks)), int(np.nanargmax(ranks))))
        return [
            {
                "name": self.names[place],
                "values": self.inspections[place].dependency,
                "layers": layer_names(self._depths[place]),
            }
            for place in ends
        ]
