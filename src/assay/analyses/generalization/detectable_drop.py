"""Before deployment: how far accuracy must fall before a monitor is likely to notice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from assay.analyses.generalization.alarms import Calibration, ConformalAlarm
from assay.analyses.generalization.domain_shifts import DomainCalibration
from assay.analyses.generalization.noise_floor import LEAST_BATCHES
from assay.analyses.generalization.thresholds import Threshold, draws_of, monotone
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
        rule: Of the alarm: `conformal` or `threshold`.
        limit: What the statistic must exceed.
        rate: False alarms per batch at this limit: under the conformal rule a bound, under the threshold rule
            the share of known batches above it.
        batches: Known batches.
        measure: `accuracy` or `macro-f1`.
    """

    power: float
    drop: float
    interval: Interval
    n: int
    rule: str
    limit: float
    rate: float
    batches: int
    measure: str

    @property
    def statement(self) -> str:
        """The same as a sentence."""
        rate = f"{100 * self.power:.0f} %"
        at = f"by the conformal rule at {self.rate:.2g} false alarms per batch"
        if self.rule == "threshold":
            above = round(self.rate * self.batches)
            at = f"by the threshold rule ({above} of {self.batches} known batches lie above it)"
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
    threshold: Threshold | None = None,
    alpha: float = 0.05,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[DetectableDrop, ...]:
    """The smallest drops that an alarm detects with a power of 50 % and 80 %.

    With m(x) the isotonic regression of the domains' statistic on their drop x of performance, L the limit of
    the rule and q_p quantiles of the known batches, the drop at power p is the smallest x with

        m(x) >= L + q_0.5 - q_(1 - p)

    that is: batches of a changed source scatter like known ones, around m(x).

    Args:
        domains: With performance on clean images, shifts measured on batches of the known ones' size.
        calibration: Known batches.
        metric: The distance of the monitor.
        threshold: That of the threshold rule, its value is L; None for the conformal rule.
        alpha: Level of the conformal rule.
        level: Coverage of the intervals, by 500 resamples of domains and known batches. The threshold stays
            as it is; a conformal limit is computed anew.
        seed: Of the resamples.

    Raises:
        InputError: If performance on clean images is unknown, sizes differ, or known batches are too few: 4
            for a threshold, else as `ConformalAlarm`.

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
    if threshold is not None and len(calibration.shifts) < LEAST_BATCHES:
        raise InputError(
            f"{len(calibration.shifts)} known batches do not show how batches scatter; measure "
            f"{LEAST_BATCHES} or more"
        )
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

    def limit_of(known: Float64[np.ndarray, " m"]) -> float:
        if threshold is not None:
            return threshold.value
        return ConformalAlarm(known=tuple(known.tolist()), alpha=alpha).limit

    rng = stream(seed, "detectable-drop/resamples")
    resampled = []
    for each in range(RESAMPLES):
        rows = rng.integers(len(statistics), size=len(statistics))
        known = batches[rng.integers(len(batches), size=len(batches))]
        drops = domains.clean - draws[each % len(draws)][rows]
        resampled.append(_drops(drops, statistics[rows], known, limit_of(known)))
    limit = limit_of(batches)
    found = _drops(domains.clean - performance, statistics, batches, limit)
    return tuple(
        DetectableDrop(
            power=power,
            drop=drop,
            interval=_interval(np.array(column), level),
            n=calibration.n,
            rule="conformal" if threshold is None else "threshold",
            limit=limit,
            rate=alpha if threshold is None else float((batches > limit).mean()),
            batches=len(batches),
            measure=domains.measure,
        )
        for power, drop, column in zip(POWERS, found, zip(*resampled, strict=True), strict=True)
    )


def _drops(drops: Values, statistics: Values, known: Float64[np.ndarray, " m"], limit: float) -> list[float]:
    """The smallest drop of each power; NaN where none is large enough."""
    places, fit = monotone(drops, statistics, falls=False)
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
