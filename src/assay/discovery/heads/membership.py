"""How well a score of heads, or a predicted set of them, agrees with a circuit."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import ShapeError
from assay.core.record import Record
from assay.stats import auroc, average_precision, precision_at


@dataclass(frozen=True, kw_only=True)
class Separation(Record):
    """A score against membership in a circuit.

    Attributes:
        auroc: Probability that a random head of the circuit outranks a random other head, ties one half, in
            [0, 1]; 0.5 is chance.
        average_precision: Mean over the circuit's heads of the precision at their rank (tied heads share one
            rank), in (0, 1]; chance is about k / H.
        precision_at_k: Share of the k best heads that are in the circuit, in [0, 1].
        k: Heads in the circuit.
        n: Heads that have a score.
        reason: `no_members` or `no_others` where undefined (all three are NaN), else None.
    """

    auroc: float
    average_precision: float
    precision_at_k: float
    k: int
    n: int
    reason: str | None = None


def separation(scores: Float64[np.ndarray, " H"], members: Bool[np.ndarray, " H"]) -> Separation:
    """AUROC, average precision and precision at k of a score for membership in a circuit.

    AUROC is the Mann-Whitney statistic over k (H - k). Larger scores count as more likely members; take
    magnitudes first where the sign does not matter. Heads without a score (NaN) are left out.

    Args:
        scores: Any real scale.
        members: True at the heads of the circuit.

    Raises:
        ShapeError: If the two differ in length.

    Example:
        >>> separation(np.array([0.9, 0.1, 0.5, 0.5]), np.array([True, False, True, False])).auroc
        0.875
    """
    if scores.shape != members.shape:
        raise ShapeError(
            f"scores have shape {scores.shape}, membership flags {members.shape}; give one per head"
        )
    scored = ~np.isnan(scores)
    scores, members = scores[scored], members[scored]
    k = int(members.sum())
    area = auroc(scores, members)
    return Separation(
        auroc=area.value,
        average_precision=average_precision(scores, members).value,
        precision_at_k=precision_at(scores, members, k).value if area.defined else math.nan,
        k=k,
        n=len(scores),
        reason=area.reason,
    )


@dataclass(frozen=True, kw_only=True)
class SetOverlap(Record):
    """A predicted set of heads against a circuit; rates are NaN where their denominator is 0.

    Attributes:
        hits: Circuit heads predicted.
        false_alarms: Other heads predicted.
        misses: Circuit heads not predicted.
        correct_rejections: Other heads not predicted.
    """

    derived = ("hit_rate", "false_alarm_rate", "precision", "f1", "jaccard", "size_ratio")

    hits: int
    false_alarms: int
    misses: int
    correct_rejections: int

    @property
    def hit_rate(self) -> float:
        """Share of the circuit that is predicted, in [0, 1]; higher is better."""
        return _share(self.hits, self.hits + self.misses)

    @property
    def false_alarm_rate(self) -> float:
        """Share of the other heads that is predicted, in [0, 1]; lower is better."""
        return _share(self.false_alarms, self.false_alarms + self.correct_rejections)

    @property
    def precision(self) -> float:
        """Share of the prediction that is in the circuit, in [0, 1]; 1 - it is the false-discovery rate."""
        return _share(self.hits, self.hits + self.false_alarms)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and hit rate, in [0, 1]."""
        return _share(2 * self.hits, 2 * self.hits + self.false_alarms + self.misses)

    @property
    def jaccard(self) -> float:
        """Shared heads over heads of either set, in [0, 1]."""
        return _share(self.hits, self.hits + self.false_alarms + self.misses)

    @property
    def size_ratio(self) -> float:
        """Smaller set over the larger one, in [0, 1]."""
        sizes = sorted((self.hits + self.false_alarms, self.hits + self.misses))
        return _share(*sizes)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def set_overlap(predicted: Bool[np.ndarray, " H"], members: Bool[np.ndarray, " H"]) -> SetOverlap:
    """Hits, false alarms and misses of a predicted set of heads.

    Raises:
        ShapeError: If the two differ in length.
    """
    if predicted.shape != members.shape:
        raise ShapeError(
            f"predictions have shape {predicted.shape}, membership flags {members.shape}; give one per head"
        )
    return SetOverlap(
        hits=int((predicted & members).sum()),
        false_alarms=int((predicted & ~members).sum()),
        misses=int((~predicted & members).sum()),
        correct_rejections=int((~predicted & ~members).sum()),
    )
