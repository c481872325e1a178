# ruff: noqa: F403 - of the names of the modules, `__init__.py` gathers classes and functions
"""What `assay.analyses.calibration` has, for type checkers."""

from assay.analyses.calibration.ablations import ablation_invariance as ablation_invariance
from assay.analyses.calibration.ablations import method_invariance as method_invariance
from assay.analyses.calibration.agreement import *
from assay.analyses.calibration.battery import *
from assay.analyses.calibration.certified import *
from assay.analyses.calibration.discriminant import *
from assay.analyses.calibration.distribution import *
from assay.analyses.calibration.gate import *
from assay.analyses.calibration.inputs import *
from assay.analyses.calibration.invariance import *
from assay.analyses.calibration.multiplicity import *
from assay.analyses.calibration.reliability import *
from assay.analyses.calibration.resampling import *
from assay.analyses.calibration.sensitivity import *
from assay.analyses.calibration.stability import *
from assay.analyses.calibration.validity import *

__all__: list[str]
