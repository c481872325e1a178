"""Measurements of circuits: faithfulness and its relatives, divergences, top-K agreement, curves."""

from assay.metrics import behaviour, cross_entropy, divergence, faithfulness, minimality, topk  # noqa: F401 (register)
from assay.metrics.curve import FaithfulnessCurve, faithfulness_curve
from assay.metrics.measuring import measure, measure_runs, measurement_provenance, random_like
from assay.metrics.metric import METRICS, MetricSpec, Runs, find_metric, metric


__all__ = [
    "METRICS",
    "FaithfulnessCurve",
    "MetricSpec",
    "Runs",
    "faithfulness_curve",
    "find_metric",
    "measure",
    "measure_runs",
    "measurement_provenance",
    "metric",
    "random_like",
]
