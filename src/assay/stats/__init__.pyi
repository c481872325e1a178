# ruff: noqa: F403 - of the names of the modules, `__init__.py` gathers classes and functions
"""What `assay.stats` has, for type checkers."""

from assay.stats.agreement import *
from assay.stats.certificates import *
from assay.stats.estimate import *
from assay.stats.intervals import *
from assay.stats.relative_error import *
from assay.stats.resampled import *
from assay.stats.significance import *
from assay.stats.summary import *

__all__: list[str]
