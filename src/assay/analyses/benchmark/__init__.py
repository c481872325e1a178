"""Discovery methods judged: against planted truth, and by the faithfulness and the cost of their circuits."""

from assay.analyses.benchmark.contenders import Contender, choose_entries
from assay.analyses.benchmark.cost import Cost, measured, plain_seconds
from assay.analyses.benchmark.detection import Detected, detect
from assay.analyses.benchmark.discovery import benchmark_discovery
from assay.analyses.benchmark.order import PUBLISHED_ORDER, OrderLink, examine_order
from assay.analyses.benchmark.results import BenchmarkRow, Bounded, Difference, DiscoveryBenchmark, Ranked
from assay.analyses.benchmark.targets import planted_task
from assay.analyses.benchmark.truth import measure_truth


__all__ = [
    "PUBLISHED_ORDER",
    "BenchmarkRow",
    "Bounded",
    "Contender",
    "Cost",
    "Detected",
    "Difference",
    "DiscoveryBenchmark",
    "OrderLink",
    "Ranked",
    "benchmark_discovery",
    "choose_entries",
    "detect",
    "examine_order",
    "measure_truth",
    "measured",
    "plain_seconds",
    "planted_task",
]
