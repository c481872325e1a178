"""A number that a sample gives, with bounds on what it estimates, or the reason why there is none."""

import math
from dataclasses import dataclass, field

from assay.core.record import BRIEF, Record
from assay.core.verdict import Interval


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


def undefined_estimate(reason: str, interval: Interval | None = None) -> Estimate:
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


def undefined_test(reason: str) -> SignificanceTest:
    """The test that these data do not allow."""
    return SignificanceTest(statistic=math.nan, p_value=math.nan, reason=reason)
