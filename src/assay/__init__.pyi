"""What `assay` promises, each name with its module."""

from assay.analyses.benchmark import benchmark_discovery as benchmark_discovery
from assay.analyses.calibration import calibrate as calibrate
from assay.analyses.calibration import calibrate_all as calibrate_all
from assay.analyses.generalization import Monitor as Monitor
from assay.analyses.generalization import baselines as baselines
from assay.analyses.generalization import calibrate_threshold as calibrate_threshold
from assay.analyses.generalization import circuit_shift as circuit_shift
from assay.analyses.generalization import dependency_depth_bias as dependency_depth_bias
from assay.analyses.generalization import dependency_matrix as dependency_matrix
from assay.analyses.generalization import finetune as finetune
from assay.analyses.generalization import motif as motif
from assay.analyses.generalization import rank_models as rank
from assay.analyses.generalization import universal_motif as universal_motif
from assay.analyses.subsets import CorrectnessData as CorrectnessData
from assay.analyses.subsets import SelectionPath as SelectionPath
from assay.analyses.subsets import Subset as Subset
from assay.analyses.subsets import load_subset as load_subset
from assay.analyses.subsets import oodselect as oodselect
from assay.analyses.subsets import selection_consistency as selection_consistency
from assay.analyses.subsets import selection_path as selection_path
from assay.analyses.worst_case import WorstCase as WorstCase
from assay.analyses.worst_case import worst_case as worst_case
from assay.catalogue import list_entries as list  # noqa: A004 - the name users know
from assay.circuits import Circuit as Circuit
from assay.circuits import EdgeScores as EdgeScores
from assay.circuits import NodeScores as NodeScores
from assay.circuits import certify as certify
from assay.circuits import load_circuit as load_circuit
from assay.circuits import load_node_scores as load_node_scores
from assay.circuits import load_scores as load_scores
from assay.core.errors import AssayError as AssayError
from assay.core.measurement import Interval as Interval
from assay.core.measurement import Measurement as Measurement
from assay.core.measurement import Verdict as Verdict
from assay.discovery.edges import discover as discover
from assay.discovery.edges import output_scores as output_scores
from assay.discovery.heads import HeadScores as HeadScores
from assay.discovery.heads import discover_heads as discover_heads
from assay.execution import CircuitRuns as CircuitRuns
from assay.execution import run_circuit as run_circuit
from assay.execution import run_model as run_model
from assay.graph import Graph as Graph
from assay.graph import build_graph as build_graph
from assay.metrics import compare as compare
from assay.metrics import faithfulness_curve as faithfulness_curve
from assay.metrics import measure as measure
from assay.models import Model as Model
from assay.models import load_model as load_model
from assay.models.planted import planted_model as planted_model
from assay.page.terminal import ProgressDisplay as ProgressDisplay
from assay.pipeline.audit import audit as audit
from assay.pipeline.check import check_lock as check
from assay.pipeline.lock import lock_audits as lock
from assay.pipeline.prune import prune as prune
from assay.report.save import save_report as save_report
from assay.stats import percentile_confidence as percentile_confidence
from assay.stats import percentile_sample_size as percentile_sample_size
from assay.store import Store as Store
from assay.tasks import ImageTask as ImageTask
from assay.tasks import PairTask as PairTask
from assay.tasks import load_images as load_images
from assay.tasks import load_task as load_task
from assay.zoo import Zoo as Zoo

__version__: str
__all__: tuple[str, ...]
