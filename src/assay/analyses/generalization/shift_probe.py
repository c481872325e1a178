"""How far the circuit of a batch is from the reference's: measured for every batch in one way."""

import math
from dataclasses import dataclass

from assay.analyses.generalization.batches import circuit_like
from assay.analyses.generalization.shift import ShiftView, circuit_shift
from assay.circuits import EdgeScores
from assay.core.errors import InputError, NonFiniteError
from assay.models import Model
from assay.tasks import ImageTask


@dataclass(frozen=True, kw_only=True, eq=False)
class ShiftProbe:
    """Measures batch after batch against one reference.

    Attributes:
        model: The watched model.
        reference: Its circuit on known inputs; gives the settings of discovery.
        distance: Key of a distance.
        view: What it compares.
        batch_size: Inputs per pass.
    """

    model: Model
    reference: EdgeScores
    distance: str
    view: ShiftView
    batch_size: int | None

    def check(self, task: ImageTask) -> None:
        """Refuse the batch of the reference.

        Raises:
            InputError: If it is that.
        """
        if task.data_hash == (self.reference.provenance.get("task") or {}).get("data_hash"):
            raise InputError(
                "these are the images of the reference circuit, whose shift is 0 by construction; give "
                "other images"
            )

    def measure(self, task: ImageTask) -> tuple[EdgeScores, float]:
        """The circuit of a batch and its shift: one discovery.

        Raises:
            NonFiniteError: If the shift is undefined.
        """
        scores = circuit_like(self.model, task, self.reference, batch_size=self.batch_size)
        shift = self._shift(scores, self.distance)
        if not math.isfinite(shift):
            raise NonFiniteError(
                f"the {self.distance} shift of {task.domain or 'the batch'} is {shift}, because the scores "
                "do not vary; check the model, or use another distance"
            )
        return scores, shift

    def _shift(self, scores: EdgeScores, distance: str) -> float:
        return circuit_shift(self.reference, scores, distance=distance, **vars(self.view))
