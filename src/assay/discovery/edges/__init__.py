"""Edge-level circuit discovery."""

from assay.discovery.edges.acdc import Acdc as Acdc
from assay.discovery.edges.agreement import consensus as consensus
from assay.discovery.edges.eap_ig import (
    CleanCorrupted as CleanCorrupted,
    Eap as Eap,
    EapIgActivations as EapIgActivations,
    EapIgInputs as EapIgInputs,
)
from assay.discovery.edges.feeding import ScoreSums as ScoreSums, completeness_gap as completeness_gap
from assay.discovery.edges.ifr import Ifr as Ifr
from assay.discovery.edges.masks import (
    HardConcrete as HardConcrete,
    LearnedMask as LearnedMask,
    MaskSettings as MaskSettings,
    learn_mask as learn_mask,
)
from assay.discovery.edges.method import (
    METHODS as METHODS,
    BatchMethod as BatchMethod,
    BatchScores as BatchScores,
    Choices as Choices,
    EdgeMethod as EdgeMethod,
    get_method as get_method,
)
from assay.discovery.edges.outputs import (
    OutputScores as OutputScores,
    OutputSums as OutputSums,
    output_scores as output_scores,
)
from assay.discovery.edges.patching import Exact as Exact, Random as Random
from assay.discovery.edges.positions import discover_positions as discover_positions
from assay.discovery.edges.pruning import EdgePruning as EdgePruning
from assay.discovery.edges.quadrature import Node as Node, quadrature_nodes as quadrature_nodes
from assay.discovery.edges.relp import Relp as Relp
from assay.discovery.edges.running import discover as discover
from assay.discovery.edges.sums import Sweep as Sweep
from assay.discovery.edges.ugs import Ugs as Ugs
