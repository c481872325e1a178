"""What statistics ask of their values, and what they give: a number or a test, or why there is none."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float64, Real

from assay.core.errors import InputError, NonFiniteError
from assay.core.measurement import Interval
from assay.core.record import BRIEF, Record


EQUAL = 1e-12  # relative spread below which values differ by rounding only


def finite(values: Real[np.ndarray, "..."], name: str = "values") -> Float64[np.ndarray, "..."]:
    """The values in float64, known to be there and finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.size == 0:
        raise InputError(f"{name} have shape {checked.shape}; expected at least one value")
    if not np.isfinite(checked).all():
        where = tuple(np.argwhere(~np.isfinite(checked))[0].tolist())
        raise NonFiniteError(f"{name} hold {checked[where]} at {where}; every value must be finite")
    return checked


def varies(values: Real[np.ndarray, "..."], axis: int | None = None) -> Any:
    """Whether values, at least one, differ by more than rounding; along an axis, for each of the others."""
    return np.ptp(values, axis=axis) > EQUAL * np.abs(values).max(axis=axis)


@dataclass(frozen=True, kw_only=True)
class Estimate(Record):
    """A statistic of a sample.

    Attributes:
        value: The statistic; NaN where undefined, never 0 in its place.
        interval: Bounds of the quantity it estimates, where the statistic comes with any.
        reason: Why the value is undefined (`too_few`, `zero_variance`, `zero_mean`, ...), else None. An
            interval has a reason of its own: a value can be defined where its bounds are not.
    """

    value: float
    interval: Interval | None = field(default=None, metadata=BRIEF)
    reason: str | None = field(default=None, metadata=BRIEF)

    @property
    def defined(self) -> bool:
        """False where the value is NaN."""
        return not math.isnan(self.value)

    @staticmethod
    def undefined(reason: str, interval: Interval | None = None) -> "Estimate":
        """The statistic that these data do not determine."""
        return Estimate(value=math.nan, interval=interval, reason=reason)


@dataclass(frozen=True, kw_only=True)
class SignificanceTest(Record):
    """A test of a null hypothesis.

    Attributes:
        statistic: What was computed; NaN where undefined.
        p_value: Probability of a statistic at least as extreme under the null; NaN where undefined.
        reason: Why it is undefined or needs care, else None.
    """

    statistic: float
    p_value: float
    reason: str | None = None

    @staticmethod
    def undefined(reason: str) -> "SignificanceTest":
        """The test that these data do not allow."""
        return SignificanceTest(statistic=math.nan, p_value=math.nan, reason=reason)
