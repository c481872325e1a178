"""The document of a ranking: plain JSON, everything that a report shows."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.analyses.generalization.dependency import TARGETS
from assay.analyses.generalization.predictor import PREDICTORS, Predictor
from assay.analyses.generalization.ranking_table import Column, Ranking
from assay.core.errors import InputError
from assay.core.record import library_version, plain, record_id


KIND, SCHEMA = "ranking", "assay-ranking/1"
RESAMPLED = (
    "Resampled are the images, {draws:,} times, the same resamples for every model; held fixed are the "
    "models and the means that ablated edges carry."
)


def ranking_document(ranking: Ranking) -> dict[str, Any]:
    """Everything a report shows of a ranking.

    Args:
        ranking: What `rank_models` returned.

    Returns:
        Finite JSON with `id`, the hash of how it came to be; undefined numbers are null.
    """
    provenance = {
        "library": library_version(),
        "models": [each.provenance.get("model") for each in ranking.inspections],
        "target": ranking.target,
        "known": ranking.known,
        "metrics": [*ranking.columns, *ranking.absent],
        "measure": ranking.measure,
        "ratio": ranking.ratio,
        "level": ranking.level,
        "settings": ranking.settings.record(),
    }
    document: dict[str, Any] = plain(
        {
            "kind": KIND,
            "schema": SCHEMA,
            "id": record_id(KIND, provenance),
            "target": ranking.target,
            "known": ranking.known,
            "measure": ranking.measure,
            "ratio": ranking.ratio,
            "level": ranking.level,
            "resampled": RESAMPLED.format(draws=ranking.settings.draws),
            "models": [_model(ranking, place) for place in range(len(ranking.names))],
            "performance": None if ranking.performance is None else _rows(ranking.performance),
            "metrics": [_metric(column) for column in ranking.columns.values()],
            "absent": [
                {"key": key, "name": PREDICTORS[key].name, "reason": reason}
                for key, reason in ranking.absent.items()
            ],
            "ratios": _ratios(ranking),
            "layers": _layers(ranking),
            "motif": _motif(ranking),
            "dependency": _dependency(ranking),
            "costs": ranking.costs,
            "provenance": provenance,
        }
    )
    json.dumps(document, allow_nan=False)
    return document


def _model(ranking: Ranking, place: int) -> dict[str, Any]:
    described = ranking.inspections[place].provenance.get("model") or {}
    return {
        "name": ranking.names[place],
        "id": described.get("id"),
        "weight_hash": described.get("weight_hash"),
    }


def _rows(column: Column) -> list[dict[str, Any]]:
    """A metric of each model."""
    rows = []
    for place, interval in enumerate(column.intervals):
        rows.append(
            {
                "value": float(column.values[place]),
                "low": interval.low,
                "high": interval.high,
                "method": interval.method,
                "reason": column.reasons[place] or interval.reason,
                "rank": None if column.ranks is None else float(column.ranks[place]),
                "chance": None if column.chances is None else float(column.chances[place]),
            }
        )
    return rows


def metric_facts(metric: Predictor) -> dict[str, Any]:
    """What tables and pictures say about a metric."""
    return {
        "key": metric.key,
        "name": metric.name,
        "summary": metric.summary,
        "direction": metric.direction,
        "best_at": metric.best_at,
        "resampled": metric.resampled,
    }


def _metric(column: Column) -> dict[str, Any]:
    return {
        **metric_facts(column.metric),
        "rows": _rows(column),
        "regret": None if column.regret is None else column.regret.to_dict(),
        "correlation": None if column.correlation is None else column.correlation.to_dict(),
        "elsewhere": column.elsewhere,
    }


def _ratios(ranking: Ranking) -> dict[str, list[dict[str, Any]]] | None:
    """Correlations of the depth bias with performance over values of tau; None without labels."""
    if ranking.performance is None or len(ranking.names) < 3 or np.ptp(ranking.performance.values) == 0:
        return None
    found = {}
    for targets in TARGETS:
        if f"ddb-{targets}" not in ranking.columns:
            continue
        table = ranking.ratios(targets)
        found[targets] = [
            {"ratio": ratio, "r2": each.r2, "srcc": each.srcc, "krcc": each.krcc}
            for ratio, each in table.items()
        ]
    return found or None


def _layers(ranking: Ranking) -> list[str]:
    return layer_names(ranking.inspections[0].graph.n_layers)


def layer_names(n_layers: int) -> list[str]:
    """Names of the rows and columns of a dependency matrix."""
    return ["input", *(f"block {layer}" for layer in range(n_layers)), "logits"]


def _motif(ranking: Ranking) -> dict[str, Any] | None:
    """Of this target; the reason where there is none; None where scores of all edges were not asked for."""
    if any(each.dependency is None for each in ranking.inspections):
        return None
    try:
        found = ranking.motif()
    except InputError as error:
        return {"values": None, "reason": str(error)}
    return {
        "values": found.values.numpy(),
        "used": found.used.numpy(),
        "correlation": found.correlation,
        "n": found.n,
        "kind": found.kind,
        "reason": None,
    }


def _dependency(ranking: Ranking) -> Sequence[Mapping[str, Any]] | None:
    """Dependency matrices of the models predicted best and worst by the depth bias."""
    column = ranking.columns.get("ddb-output")
    if column is None or column.ranks is None or any(each.dependency is None for each in ranking.inspections):
        return None
    place = np.where(np.isnan(column.ranks), -math.inf, column.ranks)
    chosen = (int(np.argmin(np.where(np.isnan(column.ranks), math.inf, column.ranks))), int(np.argmax(place)))
    shown = []
    for index in dict.fromkeys(chosen):
        matrix = ranking.inspections[index].dependency
        assert matrix is not None
        shown.append({"name": ranking.names[index], "values": matrix})
    return shown
