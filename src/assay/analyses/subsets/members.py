"""The examples that a solver selected, with how it came to them and how the models do on them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.line import Correlation, Line, clip_of, fit_line
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import ModelSplit
from assay.core.errors import InputError
from assay.core.record import Record, record_id


KIND = "subset"


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetProvenance(Record):
    """How a subset came to be; its hash is the identity of the subset.

    Attributes:
        library: Version that selected it.
        data: `hash`, `n_models`, `n_examples`, `interval_units` and `source` of the data.
        split: The parts of the models.
        size: Examples selected.
        sweep: All sizes that were looked at together with this one; the verdict is corrected for them.
        path: How one size of the sweep led to the next.
        settings: Of the solver, arrays as hashes.
    """

    library: str
    data: Mapping[str, Any]
    split: ModelSplit
    size: int
    sweep: tuple[int, ...]
    path: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedExamples:
    """A subset of the examples, with the correlation on each part of the models.

    Attributes:
        indices: Selected examples, most harmful first, `[size]`.
        scores: What they are ordered by, ascending: the derivative of the solver's objective by the weight of
            each; of `adam` minus its logits.
        example_ids: Their names.
        correlation: Of `train`, `validation` and `test` models on the subset. Only `test` is a result: the
            subset was optimised on `train` and stopped by `validation`.
        full: The same on all examples.
        settings: How it was selected.
        trace: What the solver passed through.
        made: Data, split, sizes and settings behind it.
        data: The data; None after loading without them.
    """

    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    settings: Settings
    trace: tuple[Mapping[str, Any], ...]
    made: SubsetProvenance
    data: CorrectnessData | None = None

    @property
    def size(self) -> int:
        """S."""
        return len(self.indices)

    @property
    def split(self) -> ModelSplit:
        """The parts of the models."""
        return self.made.split

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the data: `hash`, `n_models`, `n_examples`, units."""
        return self.made.data

    @property
    def sweep(self) -> tuple[int, ...]:
        """All sizes that were looked at together with this one; the verdict is corrected for them."""
        return self.made.sweep

    @property
    def path(self) -> str:
        """How one size of the sweep led to the next."""
        return self.made.path

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be; its hash is the identity of the result."""
        return self.made.to_dict()

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(KIND, self.provenance)

    @property
    def pool(self) -> Places:
        """Examples that could have been selected, ascending: what the subset is compared with."""
        return self.settings.pool(self.facts["n_examples"])

    @property
    def has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        named = zip(self.indices.tolist(), self.example_ids, strict=True)
        return any(name != f"row_{place}" for place, name in named)

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that the subset solves."""
        return Problem(self.require_data("a selection"), self.split, self.settings)

    def require_data(self, what: str) -> CorrectnessData:
        """The data, or the error that says how to give them.

        Raises:
            InputError: After loading without data.
        """
        if self.data is None:
            raise InputError(
                f"{what} needs the data that the subset was selected on; give them to "
                "`assay.load_subset(path, data)`"
            )
        return self.data

    def accuracies(self, models: Places | None = None) -> Float64[np.ndarray, " k"]:
        """Accuracy of each model of the data on the subset."""
        return self.require_data("the accuracies of the models").accuracy_on(self.indices, models)

    def line(self, part: str = "test") -> Line:
        """Least-squares line of a part of the models on the subset, in probit axes."""
        self.require_data("a line")
        models, eps = self.split.part(part), self.settings.eps
        clip = clip_of(self.settings.clip, self.size, eps)
        return fit_line(self.problem.data.id_accuracy[models], self.accuracies(models), eps=clip, id_eps=eps)
