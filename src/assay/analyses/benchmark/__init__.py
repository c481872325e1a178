"""Discovery methods judged: against planted truth, and by the faithfulness and the cost of their circuits."""

from assay.analyses.benchmark.contenders import Contender as Contender, choose_entries as choose_entries
from assay.analyses.benchmark.cost import Cost as Cost, measured as measured, plain_seconds as plain_seconds
from assay.analyses.benchmark.detection import Detected as Detected, detect as detect
from assay.analyses.benchmark.discovery import benchmark_discovery as benchmark_discovery
from assay.analyses.benchmark.order import (
    PUBLISHED_ORDER as PUBLISHED_ORDER,
    OrderLink as OrderLink,
    examine_order as examine_order,
)
from assay.analyses.benchmark.results import (
    BenchmarkRow as BenchmarkRow,
    Bounded as Bounded,
    Difference as Difference,
    DiscoveryBenchmark as DiscoveryBenchmark,
    Ranked as Ranked,
)
from assay.analyses.benchmark.targets import planted_task as planted_task
from assay.analyses.benchmark.truth import (
    MethodTruth as MethodTruth,
    ModelTruth as ModelTruth,
    TruthCell as TruthCell,
    TruthSummary as TruthSummary,
    TruthTable as TruthTable,
    measure_truth as measure_truth,
)
