"""Transformers whose circuit is known by construction: planted truth for discovery methods.

`planted_model("program/layout/extras")` builds one. A module of this package that registers models under
`PLANTED` (a builder takes a seed and a dtype and returns a `Planted`) is imported below.
"""

from assay.models.planted import building, vit  # noqa: F401 - they register the models
from assay.models.planted.planted import (
    PLANTED,
    Builder,
    Planted,
    PlantedExamples,
    planted_model,
    planted_names,
)


__all__ = [
    "PLANTED",
    "Builder",
    "Planted",
    "PlantedExamples",
    "planted_model",
    "planted_names",
]
