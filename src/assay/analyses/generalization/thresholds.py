"""The score at which an alarm goes off, read off domains where score and performance are both known."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError, NonFiniteError, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.core.verdict import Interval, undefined_interval


METHODS = ("isotonic", "nearest")
RESAMPLES = 1000  # of the calibration domains
LEAST_DOMAINS = 3  # of an interval

Values = Float64[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class Threshold(Record):
    """Where the alarm goes off.

    Attributes:
        value: delta': the score that corresponds to `performance`.
        domain: The calibration domain whose performance is closest to the target.
        target: delta: performance below it should raise the alarm.
        performance: What the value corresponds to: the target, or the nearest that the domains reach; under
            `nearest` the performance of `domain`.
        higher_is_shift: True where a score above `value` is the alarm.
        method: `isotonic` or `nearest`, see `calibrate_threshold`.
        interval: Of the value, over domains and images; None under `nearest`.
    """

    value: float
    domain: str
    target: float
    performance: float
    higher_is_shift: bool = True
    method: str = "nearest"
    interval: Interval | None = None

    def alarm(self, score: float) -> bool:
        """Whether a score raises the alarm; one that equals the threshold does not."""
        return score > self.value if self.higher_is_shift else score < self.value


def calibrate_threshold(
    scores_by_domain: Mapping[str, float],
    performance_by_domain: Mapping[str, float],
    target: float,
    *,
    higher_is_shift: bool = True,
    method: str = "isotonic",
    performance_draws: Mapping[str, Sequence[float]] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Threshold:
    """The threshold of a score that corresponds to a performance, read off domains where both are known.

    - `"isotonic"`: the score as a monotone function of performance, by isotonic regression over the domains
      and straight lines between them, at the target; beyond their performances, the value at the nearest.
    - `"nearest"`, as published: j = argmin |performance_j - target|, the first of equals; the threshold is
      the score of domain j.

    Args:
        scores_by_domain: Calibration domain -> score, such as the circuit shift on it.
        performance_by_domain: The same domains -> performance.
        target: delta: performance below it should raise the alarm.
        higher_is_shift: True for shifts; False for scores that fall with performance, such as confidence.
        method: One of the two.
        performance_draws: Domain -> its performance on resamples of its images, as many for each domain. The
            interval then covers the sampling of images, too.
        level: Coverage of the interval of `"isotonic"`: quantiles over 1,000 resamples of the domains.
        seed: Of the resamples.

    Raises:
        InputError: For no domain, domains that only one side has, or a target that is not finite.
        NonFiniteError: For NaN or infinite numbers; the message names the domain.
        UnknownNameError: For another method.

    Notes:
        If no domain comes near the target, the threshold corresponds to the performance it has: compare
        `Threshold.performance` with `target`. A resample of domains has their scatter once: noise in a score
        is part of it, if each domain was measured on images of its own.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eqs. 5 and 6; Barlow et al. (1972), on isotonic regression.

    Example:
        >>> shifts, accuracy = {"fog": 0.2, "snow": 0.5}, {"fog": 0.9, "snow": 0.6}
        >>> round(calibrate_threshold(shifts, accuracy, 0.7).value, 6)
        0.4
        >>> calibrate_threshold(shifts, accuracy, 0.7, method="nearest").domain
        'snow'
    """
    if method not in METHODS:
        raise unknown_name("method of a threshold", method, METHODS)
    _check(scores_by_domain, performance_by_domain, target)
    domains = list(scores_by_domain)
    nearest = min(domains, key=lambda domain: abs(performance_by_domain[domain] - target))
    value, performance = float(scores_by_domain[nearest]), float(performance_by_domain[nearest])
    interval = None
    if method == "isotonic":
        scores, known = (
            np.array([each[domain] for domain in domains], dtype=np.float64)
            for each in (scores_by_domain, performance_by_domain)
        )
        performance = float(np.clip(target, known.min(), known.max()))
        value = float(np.interp(target, *monotone(known, scores, falls=higher_is_shift)))
        draws = known[None] if performance_draws is None else draws_of(performance_draws, domains)
        interval = _interval(scores, draws, target, falls=higher_is_shift, level=level, seed=seed)
    return Threshold(
        value=value,
        domain=nearest,
        target=target,
        performance=performance,
        higher_is_shift=higher_is_shift,
        method=method,
        interval=interval,
    )


def threshold_of(threshold: Threshold | float | None, *, needed: bool) -> Threshold | None:
    """The threshold of a monitor, from a threshold, a number or nothing.

    Raises:
        InputError: If it is needed and missing, not finite, or of a score that falls with shift.
    """
    if threshold is None:
        if needed:
            raise InputError(
                "the rule is 'threshold', but the threshold is missing; give one, or use another rule"
            )
        return None
    if not isinstance(threshold, Threshold):
        value = float(threshold)
        if not math.isfinite(value):
            raise InputError(f"threshold is {value}; pass a shift, or the result of calibrate_threshold")
        return Threshold(value=value, domain="", target=math.nan, performance=math.nan)
    if not threshold.higher_is_shift:
        raise InputError(
            f"the threshold {threshold.value:g} was calibrated on a score that falls with shift, such as "
            "confidence, but a monitor compares circuit shifts; calibrate it on those"
        )
    return threshold


def _check(scores: Mapping[str, float], performance: Mapping[str, float], target: float) -> None:
    if set(scores) != set(performance) or not scores:
        odd = sorted(set(scores) ^ set(performance))
        raise InputError(
            "every domain needs a score and a performance; one is missing for: "
            f"{', '.join(odd) or 'no domain at all'}"
        )
    if not math.isfinite(target):
        raise InputError(f"target is {target}; give the performance below which to raise the alarm")
    for name, numbers in (("score", scores), ("performance", performance)):
        for domain, number in numbers.items():
            if not math.isfinite(number):
                raise NonFiniteError(f"the {name} of domain {domain!r} is {number}; remove the domain")


def monotone(
    x: Values, y: Values, *, falls: bool
) -> tuple[Float64[np.ndarray, " m"], Float64[np.ndarray, " m"]]:
    """Isotonic regression of y on x: the distinct x, ascending, and the fit there; equal x are averaged.

    Example:
        >>> monotone(np.array([1.0, 2.0, 3.0]), np.array([5.0, 1.0, 3.0]), falls=True)
        (array([1., 2., 3.]), array([5., 2., 2.]))
    """
    places, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(group, weights=y) / counts
    fit = scipy.optimize.isotonic_regression(means, weights=counts, increasing=not falls).x
    return places, np.asarray(fit, dtype=np.float64)


def draws_of(
    draws: Mapping[str, Sequence[float]], domains: Sequence[str]
) -> Float64[np.ndarray, "draws n_domains"]:
    """Performance on resamples, a column per domain.

    Raises:
        InputError: If the domains have no draws, or not as many each.
    """
    lengths = {len(draws.get(each, ())) for each in domains}
    if len(lengths) != 1 or 0 in lengths:
        raise InputError(f"the domains have {sorted(lengths)} draws of performance; give as many for each")
    return np.array([draws[each] for each in domains], dtype=np.float64).T


def _interval(
    scores: Values,
    performance: Float64[np.ndarray, "draws n"],
    target: float,
    *,
    falls: bool,
    level: float,
    seed: int,
) -> Interval:
    n = len(scores)
    if n < LEAST_DOMAINS:
        return undefined_interval(level, "percentile", "too_few")
    rng, values = stream(seed, "threshold/resamples"), []
    for draw in range(RESAMPLES):
        rows = rng.integers(n, size=n)
        fit = monotone(performance[draw % len(performance)][rows], scores[rows], falls=falls)
        values.append(np.interp(target, *fit))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, method="percentile")
