"""Discovery methods judged: against planted truth, and by the faithfulness and the cost of their circuits."""

from assay.analyses.benchmark.contenders import choose_entries
from assay.analyses.benchmark.discovery import benchmark_discovery
from assay.analyses.benchmark.results import BenchmarkRow, Bounded, DiscoveryBenchmark, Ranked, detect
from assay.analyses.benchmark.targets import planted_task


__all__ = [
    "BenchmarkRow",
    "Bounded",
    "DiscoveryBenchmark",
    "Ranked",
    "benchmark_discovery",
    "choose_entries",
    "detect",
    "planted_task",
]
