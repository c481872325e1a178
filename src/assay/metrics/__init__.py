"""Measurements of circuits: faithfulness and its relatives, scrubbing, divergences, top-K, curves."""

from assay.metrics import (  # noqa: F401 - each registers its metrics
    cross_entropy,
    divergence,
    faithfulness,
    minimality,
    scrubbing,
    topk,
)
from assay.metrics.comparing import compare, difference
from assay.metrics.curve import FaithfulnessCurve, faithfulness_curve
from assay.metrics.measuring import measure, measure_runs, measurement_provenance, random_like
from assay.metrics.metric import METRICS, MetricSpec, find_metric, metric


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
