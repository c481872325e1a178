"""Measurements of circuits: faithfulness and its relatives, scrubbing, divergences, top-K, curves."""

from assay.metrics import divergence, faithfulness, scrubbing, topk  # noqa: F401 - each registers its metrics
from assay.metrics.curve import FaithfulnessCurve, faithfulness_curve
from assay.metrics.metric import (
    METRICS,
    MetricSpec,
    compare,
    difference,
    find_metric,
    measure,
    measure_runs,
    measurement_provenance,
    metric,
    random_like,
)


__all__ = [
    "METRICS",
    "FaithfulnessCurve",
    "MetricSpec",
    "compare",
    "difference",
    "faithfulness_curve",
    "find_metric",
    "measure",
    "measure_runs",
    "measurement_provenance",
    "metric",
    "random_like",
]
