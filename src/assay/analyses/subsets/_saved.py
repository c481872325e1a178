"""A subset as it is kept in a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.line import Correlation
from assay.analyses.subsets.members import KIND, SubsetProvenance
from assay.analyses.subsets.verdict import SubsetVerdict
from assay.core.errors import FileFormatError
from assay.core.record import Record


SCHEMA = "assay-selection/1"


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetFile(Record):
    """A subset in a file: everything but the data.

    Attributes:
        id: Hash of the provenance.
        size: Examples selected.
        indices: Their places, most harmful first.
        example_ids: Their names.
        scores: What they are ordered by.
        correlation: On the subset, for each part of the models.
        full: On all examples.
        trace: What the solver passed through.
        arrays: Strata, and places of allowed and included examples.
        verdict: None where it was not asked for.
        provenance: How the subset came to be.
    """

    record_kind = KIND
    record_schema = SCHEMA

    id: str
    size: int
    indices: Int64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    scores: Float64[np.ndarray, " size"]
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    trace: tuple[Mapping[str, Any], ...]
    arrays: Mapping[str, Int64[np.ndarray, " _"]]
    verdict: SubsetVerdict | None
    provenance: SubsetProvenance

    def check(self) -> None:
        """Raises `FileFormatError` unless indices and ids name one set of the examples."""
        indices, n_examples = self.indices, self.provenance.data["n_examples"]
        if (
            len(self.example_ids) != len(indices)
            or len(np.unique(indices)) != len(indices)
            or not len(indices)
        ):
            raise FileFormatError(
                f"{len(indices)} indices and {len(self.example_ids)} example ids do not name one set"
            )
        if indices.min() < 0 or indices.max() >= n_examples:
            raise FileFormatError(f"an index lies outside the {n_examples} examples")
