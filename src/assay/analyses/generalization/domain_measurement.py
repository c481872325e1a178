"""One domain with labels: how far the circuit moves on a batch of it, and how well the model does there."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from assay.analyses.generalization.shift import USUAL_VIEW, ShiftView, circuit_shifts
from assay.analyses.generalization.tables import label_array
from assay.circuits import EdgeScores
from assay.core.errors import unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.models import Model
from assay.tasks import EvalTransform, ImageSet, ImageStream, ImageTask


@dataclass(frozen=True, kw_only=True)
class DomainShift(Record):
    """A domain: how far the circuit moved on it, and how well the model does there.

    Attributes:
        domain: Its name.
        n: Images that the shift was measured on.
        performance: Accuracy or macro-F1 on all labelled images, in [0, 1].
        shifts: Distance -> circuit shift.
        baselines: Keys of `BASELINES`, see `label_free`, on the images of the shift.
        n_labelled: Images that performance was measured on.
    """

    domain: str
    n: int
    performance: float
    shifts: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    n_labelled: int = 0

    @property
    def scores(self) -> dict[str, float]:
        """Every number of it: shifts, then baselines."""
        return {**self.shifts, **self.baselines}

    def score(self, metric: str) -> float:
        """A shift or a baseline by its key in `scores`.

        Raises:
            UnknownNameError: If it was not measured.
        """
        scores = self.scores
        if metric not in scores:
            raise unknown_name("metric of a domain", metric, scores)
        return scores[metric]


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
        reference: Its circuit on known images; gives the settings of discovery.
        labelled: Outputs on labelled images in distribution, for the baselines that learn from them.
        n: Images of the batch that shift and baselines are measured on, drawn anew for each domain, so that
            their errors are independent. None: all.
        measure: `accuracy` or `macro-f1`.
        view: What shifts compare.
        transform: For 8-bit images; None: the model's own.
        batch_size: Images per pass.
        seed: Of the draws.
    """

    model: Model
    reference: EdgeScores
    labelled: Labelled | None
    n: int | None
    measure: str = "accuracy"
    view: ShiftView = USUAL_VIEW
    transform: EvalTransform | None = None
    batch_size: int | None = None
    seed: int = 0

    def look(self, name: str, images: ImageSet | ImageStream | ImageTask) -> MeasuredDomain:
        """Performance on all of the images and on a batch, circuit and baselines on the batch.

        Args:
            name: Of the domain.
            images: With labels.

        Returns:
            What was seen; costs a discovery on the batch and a forward pass over all.

        Raises:
            InputError: If the images have no labels, or a label is outside the classes.
        """
        task = image_task(self.model, images, self.transform)
        truth = label_array(labels_of(task), self.model.n_classes)
        size = min(self.n or task.n, task.n)
        rows = np.arange(task.n)
        if size < task.n:
            rows = np.sort(stream(self.seed, f"domains/{name}").permutation(task.n)[:size])
        seen = sampled_outputs(self.model, task, rows, batch_size=self.batch_size)
        scores = circuit_like(self.model, seen.sample, self.reference, batch_size=self.batch_size)
        shift = DomainShift(
            domain=name,
            n=size,
            performance=float(baselines.performance_of(seen.predictions, truth, measure=self.measure)[0]),
            shifts=circuit_shifts(self.reference, scores, **vars(self.view)),
            baselines=label_free(seen.outputs, self.labelled),
            n_labelled=task.n,
        )
        return MeasuredDomain(shift, scores, seen.outputs, seen.predictions, truth)
