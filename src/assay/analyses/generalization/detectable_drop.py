"""Before deployment: how far accuracy must fall before a monitor is likely to notice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from assay.analyses.generalization.alarms import Calibration, ConformalAlarm
from assay.analyses.generalization.domain_shifts import DomainCalibration
from assay.analyses.generalization.thresholds import draws_of, monotone
from assay.core.errors import InputError
from assay.core.random import stream
from assay.core.record import Record
from assay.core.verdict import Interval


POWERS = (0.5, 0.8)
RESAMPLES = 500

Values = Float64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class DetectableDrop(Record):
    """The smallest drop of performance that one batch detects with some probability.

    Attributes:
        power: Probability that a batch with this drop raises the alarm.
        drop: Points of performance below that on clean known images, in [0, 1]; NaN where no corrupted domain
            shifts far enough.
        interval: Of the drop, over domains, images and known batches; its upper end is NaN (`unbounded`)
            where too many resamples reach no such drop.
        n: Images of a batch.
        limit: What the statistic must exceed.
        alpha: Probability of a false alarm per batch at this limit, at most.
        measure: `accuracy` or `macro-f1`.
    """

    power: float
    drop: float
    interval: Interval
    n: int
    limit: float
    alpha: float
    measure: str

    @property
    def statement(self) -> str:
        """The same as a sentence."""
        rate = f"{100 * self.power:.0f} %"
        at = f"at {self.alpha:g} false alarms per batch"
        if math.isnan(self.drop):
            return (
                f"No corrupted domain shifts far enough for a batch of {self.n} images to raise the alarm "
                f"with a probability of {rate} {at}."
            )
        high = "unbounded" if math.isnan(self.interval.high) else f"{100 * self.interval.high:.1f}"
        return (
            f"A batch of {self.n} images detects a drop of {100 * self.drop:.1f} points of {self.measure} "
            f"({100 * self.interval.level:.0f} % interval {100 * self.interval.low:.1f} to {high}) with a "
            f"probability of {rate} {at}, if it comes with shifts like those of the corruptions."
        )


def detectable_drops(
    domains: DomainCalibration,
    calibration: Calibration,
    *,
    metric: str = "spearman",
    alpha: float = 0.05,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[DetectableDrop, ...]:
    """The smallest drops that a conformal alarm detects with a power of 50 % and 80 %.

    With m(x) the isotonic regression of the domains' statistic on their drop x of performance, L the
    conformal limit and q_p quantiles of the known batches, the drop at power p is the smallest x with

        m(x) >= L + q_0.5 - q_(1 - p)

    that is: batches of a changed source scatter like known ones, around m(x).

    Args:
        domains: With performance on clean images, shifts measured on batches of the known ones' size.
        calibration: Known batches.
        metric: The distance of the monitor.
        alpha: Level of the alarm.
        level: Coverage of the intervals, by 500 resamples of domains and known batches.
        seed: Of the resamples.

    Raises:
        InputError: If performance on clean images is unknown, sizes differ, or known batches are too few.

    Example:
        >>> from assay.analyses.generalization.domain_shifts import DomainShift
        >>> known = [
        ...     DomainShift(domain=str(x), n=8, performance=1 - x, shifts={"spearman": 0.1 + x})
        ...     for x in (0.0, 0.1, 0.2, 0.4)
        ... ]
        >>> batches = Calibration(shifts=(0.1,) * 9 + (0.3,) * 10, n=8)
        >>> found = detectable_drops(DomainCalibration(known=tuple(known), clean=1.0), batches)
        >>> [round(each.drop, 6) for each in found]  # limit 0.3; then 0.3 + 0.3 - 0.1
        [0.2, 0.4]
    """
    if math.isnan(domains.clean):
        raise InputError("performance on clean images is unknown; measure the domains again")
    sizes = {each.n for each in domains.known}
    if sizes != {calibration.n}:
        raise InputError(
            f"the domains were measured on {sorted(sizes)} images, known batches hold {calibration.n}; "
            "measure both on batches of one size"
        )
    statistics = np.array([each.statistic(metric) for each in domains.known])
    performance = np.array([each.performance for each in domains.known])
    drawn = {each.domain: each.performance_draws for each in domains.known}
    draws = draws_of(drawn, list(drawn)) if all(drawn.values()) else performance[None]
    batches = np.array(calibration.statistics)
    limit = ConformalAlarm(known=calibration.statistics, alpha=alpha).limit
    rng = stream(seed, "detectable-drop/resamples")
    resampled = []
    for each in range(RESAMPLES):
        rows = rng.integers(len(statistics), size=len(statistics))
        known = batches[rng.integers(len(batches), size=len(batches))]
        drops = domains.clean - draws[each % len(draws)][rows]
        resampled.append(_drops(drops, statistics[rows], known, alpha))
    found = _drops(domains.clean - performance, statistics, batches, alpha)
    return tuple(
        DetectableDrop(
            power=power,
            drop=drop,
            interval=_interval(np.array(column), level),
            n=calibration.n,
            limit=limit,
            alpha=alpha,
            measure=domains.measure,
        )
        for power, drop, column in zip(POWERS, found, zip(*resampled, strict=True), strict=True)
    )


def _drops(drops: Values, statistics: Values, known: Float64[np.ndarray, " m"], alpha: float) -> list[float]:
    """The smallest drop of each power; NaN where none is large enough."""
    places, fit = monotone(drops, statistics, falls=False)
    limit = ConformalAlarm(known=tuple(known.tolist()), alpha=alpha).limit
    found = []
    for power in POWERS:
        needed = limit + float(np.quantile(known, 0.5) - np.quantile(known, 1 - power))
        found.append(_first_reaching(places, fit, needed))
    return found


def _first_reaching(places: Values, fit: Values, needed: float) -> float:
    """Where a rising line reaches a height; not below a drop of 0."""
    after = int(np.searchsorted(fit, needed - 1e-12))
    if after == len(fit):
        return math.nan
    if after == 0:
        return max(0.0, float(places[0]))
    share = (needed - fit[after - 1]) / (fit[after] - fit[after - 1])
    return max(0.0, float(places[after - 1] + share * (places[after] - places[after - 1])))


def _interval(values: Sequence[float] | Values, level: float) -> Interval:
    ordered = np.where(np.isnan(values), np.inf, values)
    low, high = np.quantile(ordered, [(1 - level) / 2, (1 + level) / 2], method="nearest")
    unbounded = not math.isfinite(high)
    return Interval(
        low=float(low) if math.isfinite(low) else math.nan,
        high=math.nan if unbounded else float(high),
        level=level,
        method="percentile",
        reason="unbounded" if unbounded else None,
    )
