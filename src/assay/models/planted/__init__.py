"""Transformers whose circuit is known by construction: planted truth for discovery methods."""

from assay.models.planted.planted import Planted, planted_model, planted_names
from assay.models.planted.programs import PlantedExamples


__all__ = ["Planted", "PlantedExamples", "planted_model", "planted_names"]
