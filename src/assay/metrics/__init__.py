"""Measurements of circuits: faithfulness and its relatives, scrubbing, divergences, top-K, curves."""

from assay.metrics import (  # noqa: F401 - each registers its metrics
    ablation_spread,
    behaviour,
    cross_entropy,
    divergence,
    faithfulness,
    minimality,
    restoring,
    scrubbing,
    topk,
)
from assay.metrics.curve import (
    FaithfulnessCurve as FaithfulnessCurve,
    faithfulness_curve as faithfulness_curve,
)
from assay.metrics.measuring import (
    measure as measure,
    measure_runs as measure_runs,
    measurement_provenance as measurement_provenance,
    random_like as random_like,
)
from assay.metrics.metric import (
    METRICS as METRICS,
    MetricSpec as MetricSpec,
    find_metric as find_metric,
    metric as metric,
)
