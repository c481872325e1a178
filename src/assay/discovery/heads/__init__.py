"""Scores of single attention heads: from their weights, their outputs, and small changes to them.

The functions behind the methods are in the modules: `effects` (runs), `direct`, `gradients`, `information`
(one pass), `weights`, `membership` (how well scores agree with a circuit).
"""

from assay.discovery.heads.interventions import INTERVENTIONS
from assay.discovery.heads.methods import HEAD_METHODS, HeadMethod, discover_heads, find_head_method
from assay.discovery.heads.scores import HeadScores, load_head_scores
from assay.discovery.heads.table import MeasurementTable


__all__ = [
    "HEAD_METHODS",
    "INTERVENTIONS",
    "HeadMethod",
    "HeadScores",
    "MeasurementTable",
    "discover_heads",
    "find_head_method",
    "load_head_scores",
]
