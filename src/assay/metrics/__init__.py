"""Measurements of circuits: faithfulness and its relatives, scrubbing, divergences, top-K, curves."""

from assay.metrics import divergence, faithfulness, scrubbing, topk
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
)


for _module in (divergence, faithfulness, scrubbing, topk):
    for _spec in _module.SPECS:
        METRICS.add(_spec.key, _spec)

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
]
