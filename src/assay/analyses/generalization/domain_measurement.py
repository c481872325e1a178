"""One domain with labels: how far the circuit moves on a batch of it, and how well the model does there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from assay.analyses.generalization import baselines
from assay.analyses.generalization.batches import (
    Labelled,
    Outputs,
    circuit_like,
    image_task,
    label_free,
    labels_of,
    sampled_outputs,
)
from assay.analyses.generalization.noise_floor import NoiseFloor, rows_of
from assay.analyses.generalization.reference import Reference
from assay.analyses.generalization.shift import USUAL_VIEW, ShiftView, circuit_shifts
from assay.analyses.generalization.signatures import SIGNATURES
from assay.analyses.generalization.tables import label_array
from assay.circuits import EdgeScores
from assay.core.errors import unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.models import Model
from assay.tasks import EvalTransform, ImageSet, ImageStream, ImageTask


BEYOND = "excess-"  # before the key of a distance: the shift beyond its noise floor


@dataclass(frozen=True, kw_only=True)
class DomainShift(Record):
    """A domain: how far the circuit moved on it, and how well the model does there.

    Attributes:
        domain: Its name.
        n: Images that the shift was measured on.
        performance: Accuracy or macro-F1 on all labelled images, in [0, 1].
        batch_performance: The same on the `n` images of the shift alone: what an estimate learns; NaN where
            not measured.
        shifts: Distance -> circuit shift.
        baselines: Keys of `BASELINES`, see `label_free`, on the images of the shift.
        excess: Distance -> shift beyond its noise floor; empty for a reference without one.
        n_labelled: Images that performance was measured on.
        performance_draws: Performance on 100 resamples of the images, the same for domains of as many images:
            corrupted copies of one image come and go together.
    """

    domain: str
    n: int
    performance: float
    shifts: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    excess: Mapping[str, float] = field(default_factory=dict)
    n_labelled: int = 0
    batch_performance: float = math.nan
    performance_draws: tuple[float, ...] = ()

    @property
    def scores(self) -> dict[str, float]:
        """Every number of it: shifts, excesses as `excess-DISTANCE`, baselines."""
        beyond = {f"{BEYOND}{key}": each for key, each in self.excess.items() if math.isfinite(each)}
        return {**self.shifts, **beyond, **self.baselines}

    def score(self, metric: str) -> float:
        """A shift, an excess or a baseline by its key in `scores`.

        Raises:
            UnknownNameError: If it was not measured.
        """
        scores = self.scores
        if metric not in scores:
            raise unknown_name("metric of a domain", metric, scores)
        return scores[metric]

    def statistic(self, metric: str) -> float:
        """What a monitor compares: the excess of a distance where it was measured, else as `score`."""
        return self.excess[metric] if metric in self.excess else self.score(metric)


class MeasuredDomain(NamedTuple):
    """What is seen of a domain.

    Attributes:
        shift: Its numbers.
        scores: The circuit of the batch.
        outputs: Of the batch.
        predictions: Of all images.
        labels: Of all images.
    """

    shift: DomainShift
    scores: EdgeScores
    outputs: Outputs
    predictions: Int64[np.ndarray, " n"]
    labels: Int64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchProbe:
    """Measures one model on domain after domain, all in one way.

    Attributes:
        model: The model of the reference.
        reference: Its circuit on known images; gives the settings of discovery, and the noise floor if any.
        labelled: Outputs on labelled images in distribution, for the baselines that learn from them.
        n: Images of the batch that shift and baselines are measured on, drawn anew for each domain, so that
            their errors are independent. None: all, or as many as a noise floor asks for.
        measure: `accuracy` or `macro-f1`.
        view: What shifts compare; another than the usual one has no noise floor.
        transform: For 8-bit images; None: the model's own.
        batch_size: Images per pass.
        seed: Of the draws.
    """

    model: Model
    reference: EdgeScores | Reference
    labelled: Labelled | None
    n: int | None
    measure: str = "accuracy"
    view: ShiftView = USUAL_VIEW
    transform: EvalTransform | None = None
    batch_size: int | None = None
    seed: int = 0

    @property
    def known_scores(self) -> EdgeScores:
        """The reference circuit."""
        return self.reference.scores if isinstance(self.reference, Reference) else self.reference

    @cached_property
    def _floors(self) -> dict[str, NoiseFloor]:
        if not isinstance(self.reference, Reference) or self.view != USUAL_VIEW:
            return {}
        found = {key: self.reference.floor(key) for key in SIGNATURES}
        return {key: floor for key, floor in found.items() if floor is not None}

    def look(self, name: str, images: ImageSet | ImageStream | ImageTask) -> MeasuredDomain:
        """Performance on all of the images and on a batch, circuit and baselines on the batch.

        Args:
            name: Of the domain.
            images: With labels.

        Returns:
            What was seen; costs a discovery on the batch and a forward pass over all.

        Raises:
            InputError: If the images have no labels, or a label is outside the classes.
            ShapeError: If the reference has a noise floor, and its batches another size.
        """
        task = image_task(self.model, images, self.transform)
        truth = label_array(labels_of(task), self.model.n_classes)
        batch = self.reference.batch if isinstance(self.reference, Reference) else None
        size = min(self.n or batch or task.n, task.n)
        rows = np.arange(task.n)
        if size < task.n:
            rows = np.sort(stream(self.seed, f"domains/{name}").permutation(task.n)[:size])
        seen = sampled_outputs(self.model, task, rows, batch_size=self.batch_size)
        scores = circuit_like(
            self.model,
            seen.sample,
            self.known_scores,
            per_example=bool(self._floors),
            batch_size=self.batch_size,
        )
        rate = baselines.performance_of
        shift = DomainShift(
            domain=name,
            n=size,
            performance=rate(seen.predictions, truth, measure=self.measure),
            batch_performance=rate(seen.predictions[rows], truth[rows], measure=self.measure),
            shifts=circuit_shifts(self.known_scores, scores, **vars(self.view)),
            baselines=label_free(seen.outputs, self.labelled),
            excess={key: floor.excess(rows_of(scores)).value for key, floor in self._floors.items()},
            n_labelled=task.n,
        )
        return MeasuredDomain(shift, scores, seen.outputs, seen.predictions, truth)
