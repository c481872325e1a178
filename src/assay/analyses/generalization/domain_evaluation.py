"""One model over labelled domains: which number that needs no labels goes with how well it does there."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64

from assay.analyses.generalization.dependency import TARGETS, motif
from assay.analyses.generalization.domains import Domain, DomainCalibration, EvaluationSettings
from assay.analyses.generalization.evaluation import AlarmCurve, correlate
from assay.core.errors import DegenerateDataWarning, InputError
from assay.core.random import stream
from assay.core.record import Record, plain, record_id
from assay.stats import spearman


DRAWS = 1000  # resamples of the domains
LEAST_GROUPS = 5  # domains, parts of one counted once, below which a resample of them says nothing


@dataclass(frozen=True, kw_only=True)
class LeftOutDomain(Record):
    """A domain that was not measured.

    Attributes:
        domain: Its name.
        n: Its images.
        reason: Why.
    """

    domain: str
    n: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class DomainEvaluation(Record):
    """What was measured over all domains of one model, and how it goes with performance.

    Attributes:
        model: Record of the model.
        graph: Of the model.
        reference: Record of the reference circuit.
        settings: What was measured.
        distance: The one that leads the page and names the alarm.
        own: Further images in distribution, measured like a domain: the shift by sampling alone.
        known: Calibration domains.
        test: Test domains.
        left_out: Domains that were not measured.
        provenance: Model, reference, sources and settings.
    """

    record_kind = "domain-evaluation"
    record_schema = "assay-domain-evaluation/1"
    derived = ("id", "metrics", "correlations", "curves", "motif")

    model: Mapping[str, Any]
    graph: Mapping[str, Any]
    reference: Mapping[str, Any]
    settings: EvaluationSettings
    distance: str = "spearman"
    own: Domain | None
    known: tuple[Domain, ...]
    test: tuple[Domain, ...]
    left_out: tuple[LeftOutDomain, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Identity of what was evaluated and how, 16 hex digits."""
        return record_id(self.record_kind, self.provenance)

    @property
    def domains(self) -> DomainCalibration:
        """Calibration and test domains as thresholds and curves take them."""
        return DomainCalibration(known=self.known, test=self.test, measure=self.settings.measure)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that every domain was measured by: shifts first, then the rest."""
        return self.domains.metrics

    @cached_property
    def correlations(self) -> dict[str, dict[str, Any]]:
        """How each metric and each depth bias goes with performance over the test domains.

        `r2` (squared Pearson, in [0, 1]), `srcc` (Spearman) and `krcc` (Kendall's tau-b) in [-1, 1], signed;
        `low` and `high`: 95 % of `srcc` over 1,000 resamples of whole domains, None below 5 of them;
        `known_srcc`: the same correlation over the calibration domains, None below 3.
        """
        performance = np.array([each.performance for each in self.test])
        draws = self._draws()
        found = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DegenerateDataWarning)  # NaN says the same
            for key in (*self.metrics, *(f"ddb-{name}" for name in TARGETS)):
                scores = _column(key, self.test)
                if not np.isfinite(scores).all():
                    continue
                ends = self._interval(scores, performance, draws)
                found[key] = {
                    **_correlation(scores, performance),
                    "low": ends[0],
                    "high": ends[1],
                    "known_srcc": self._known_srcc(key),
                }
        return found

    def _known_srcc(self, key: str) -> float | None:
        scores = _column(key, self.known)
        if len(self.known) < 3 or not np.isfinite(scores).all():
            return None
        return spearman(scores, np.array([each.performance for each in self.known]))

    def _draws(self) -> list[np.ndarray]:
        """Rows of the test domains in each resample; parts of one domain come and go together."""
        groups = list(dict.fromkeys(each.group for each in self.test))
        if len(groups) < LEAST_GROUPS:
            return []
        rows = {
            name: [place for place, each in enumerate(self.test) if each.group == name] for name in groups
        }
        chosen = stream(self.settings.seed, "evaluation/domains").integers(
            0, len(groups), (DRAWS, len(groups))
        )
        return [np.concatenate([rows[groups[place]] for place in draw]) for draw in chosen]

    def _interval(
        self, scores: np.ndarray, performance: np.ndarray, draws: list[np.ndarray]
    ) -> tuple[float | None, float | None]:
        values = [spearman(scores[rows], performance[rows]) for rows in draws]
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None, None
        low, high = np.quantile(finite, [0.025, 0.975])
        return float(low), float(high)

    @cached_property
    def curves(self) -> dict[str, Any] | None:
        """F1 of the alarm of each metric over performance thresholds; None without calibration domains.

        Of each metric `deltas`, `mean`, `low`, `high` (of the subsets), and `summary`: mean F1 over the
        thresholds at which an alarm is due on some test domains and not on others; None if there is none.
        Under `always` the same for an alarm that always goes off.
        """
        if not self.known or not self.test:
            return None
        how = self.settings
        found = self.domains.curves(
            deltas=how.deltas,
            n_subsets=how.n_subsets,
            subset_size=min(how.subset_size, len(self.known)),
            seed=how.seed,
        )
        performance = np.array([each.performance for each in self.test])
        due = (performance < np.array(how.deltas)[:, None]).mean(1)
        told = (due > 0) & (due < 1)
        curves = {key: _curve(each, told) for key, each in found.items()}
        always = np.divide(2 * due, 1 + due, out=np.full(len(due), math.nan), where=due > 0)
        curves["always"] = {
            "deltas": list(how.deltas),
            **dict.fromkeys(("mean", "low", "high"), always.tolist()),
            "summary": float(always[told].mean()) if told.any() else None,
        }
        return dict(plain(curves))

    @cached_property
    def motif(self) -> dict[str, Any]:
        """Which dependencies between layers go with performance over the test domains.

        `values`: correlation of each entry of the dependency matrix with the canonical variate, in [-1, 1];
        None with a `reason` where it is undefined.
        """
        try:
            pattern = motif(
                [torch.tensor(each.dependency, dtype=torch.float64) for each in self.test],
                [each.performance for each in self.test],
            )
        except InputError as error:
            return {"values": None, "reason": str(error)}
        return {
            "values": pattern.values.tolist(),
            "used": pattern.used.tolist(),
            "correlation": pattern.correlation,
            "n": pattern.n,
            "reason": None,
        }


def _column(key: str, domains: tuple[Domain, ...]) -> Float64[np.ndarray, " n"]:
    if key.startswith("ddb-"):
        return np.array([each.depth_bias[key.removeprefix("ddb-")] for each in domains])
    return np.array([each.score(key) for each in domains])


def _correlation(scores: np.ndarray, performance: np.ndarray) -> dict[str, float]:
    found = correlate(scores, performance)
    return {"r2": found.r2, "srcc": found.srcc, "krcc": found.krcc}


def _curve(curve: AlarmCurve, told: np.ndarray) -> dict[str, Any]:
    kept = curve.mean[told]
    kept = kept[np.isfinite(kept)]
    return {
        **{name: getattr(curve, name) for name in ("deltas", "mean", "low", "high")},
        "summary": float(kept.mean()) if len(kept) else None,
    }
