"""How far the circuit of a batch is from the reference's: measured for every batch in one way."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from assay.analyses.generalization.batches import circuit_like
from assay.analyses.generalization.noise_floor import Excess, NoiseFloor, rows_of
from assay.analyses.generalization.resampled import resampled_shift
from assay.analyses.generalization.shift import DISTANCES, ShiftView, circuit_shift
from assay.circuits import EdgeScores
from assay.core.errors import InputError, NonFiniteError
from assay.core.verdict import Interval
from assay.models import Model
from assay.tasks import ImageTask


@dataclass(frozen=True, kw_only=True)
class MeasuredShift:
    """A batch beside the reference.

    Attributes:
        scores: Its circuit.
        shift: Distance from the reference's.
        excess: The shift beyond the noise floor; None for a reference without one.
    """

    scores: EdgeScores
    shift: float
    excess: Excess | None

    @property
    def statistic(self) -> float:
        """What the rules of a monitor compare: the excess where there is one, else the shift."""
        return self.shift if self.excess is None else self.excess.value


@dataclass(frozen=True, kw_only=True, eq=False)
class ShiftProbe:
    """Measures batch after batch against one reference.

    Attributes:
        model: The watched model.
        reference: Its circuit on known inputs; gives the settings of discovery.
        floor: The noise floor of the reference; None without one.
        distance: Key of a distance.
        view: What it compares.
        level: Coverage of intervals.
        batch_size: Inputs per pass.
    """

    model: Model
    reference: EdgeScores
    floor: NoiseFloor | None
    distance: str
    view: ShiftView
    level: float
    batch_size: int | None

    def check(self, task: ImageTask) -> None:
        """Refuse a batch of another size than the noise floor's, and that of the reference.

        Raises:
            InputError: Saying which of the two.
        """
        if self.floor is not None and task.n != self.floor.n:
            raise InputError(
                f"the batch holds {task.n} images, the batches of the reference {self.floor.n}, but noise "
                "depends on the size; give batches of the same size, or discover the reference with this one"
            )
        if task.data_hash == (self.reference.provenance.get("task") or {}).get("data_hash"):
            raise InputError(
                "these are the images of the reference circuit, whose shift is 0 by construction; give "
                "other images"
            )

    def measure(self, task: ImageTask, *, per_example: bool) -> MeasuredShift:
        """The circuit of a batch, its shift, and what that has beyond the noise floor: one discovery.

        Args:
            task: The batch.
            per_example: Keep scores of each input, which `interval` needs; a noise floor needs them, too.

        Raises:
            NonFiniteError: If the shift is undefined.
        """
        scores = circuit_like(
            self.model,
            task,
            self.reference,
            per_example=per_example or self.floor is not None,
            batch_size=self.batch_size,
        )
        shift = self._shift(scores, self.distance)
        if not math.isfinite(shift):
            raise NonFiniteError(
                f"the {self.distance} shift of {task.domain or 'the batch'} is {shift}, because the scores "
                "do not vary; check the model, or use another distance"
            )
        excess = None if self.floor is None else self.floor.excess(rows_of(scores), level=self.level)
        return MeasuredShift(scores=scores, shift=shift, excess=excess)

    def interval(self, scores: EdgeScores) -> Interval:
        """The interval of a shift, from a circuit with scores per example."""
        found = resampled_shift(self.reference, scores, distance=self.distance, view=self.view)
        return found.interval(level=self.level)

    def shifts(self, scores: EdgeScores, names: Iterable[str]) -> dict[str, float]:
        """The shift of a circuit under those of the names that are distances."""
        return {key: self._shift(scores, key) for key in names if key in DISTANCES}

    def _shift(self, scores: EdgeScores, distance: str) -> float:
        return circuit_shift(self.reference, scores, distance=distance, **vars(self.view))
