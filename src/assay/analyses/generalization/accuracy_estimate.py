"""From what is seen without labels to accuracy, with a conformal interval; silent where it has no ground.

The units are families of domains: corruptions that differ in severity only are one family. A new domain has
to be exchangeable with the calibration families; what is fitted, tested and promised leaves out whole
families. Readings are standardised over all domains, without their accuracies.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy
from jaxtyping import Float64

from assay.core.errors import InputError, NonFiniteError, ShapeError
from assay.core.random import stream
from assay.core.record import BRIEF, Record
from assay.core.verdict import Interval


IN_UNIT = ("ac", "atc", "doc", "cot", "cbpe", "m-cbpe")  # readings in the unit of accuracy
RISING = (*IN_UNIT, "ane", "mano", "closeness")  # the others are distances, which fall with accuracy
FEWEST, MANY, FEW_LEVEL = 9, 19, 0.9  # families: below the first silence, below the second this level
RIDGE = 0.1  # penalty of squared weights, per family
WINDOWS = 4  # batches that a pool must give before domains drawn from it differ like new batches
NEAREST = 3  # domains that say how far away a batch is
OUTSIDE = 0.15  # p-value of the support test at or below which a batch is outside
WORTH = 0.05  # p-value of the backtest at or below which the estimate is used
DEALS = 999  # of the accuracies, which say what chance does in the backtest
Row = Float64[np.ndarray, " r"]
Rows = Float64[np.ndarray, "m r"]
Fit = Float64[np.ndarray, " weights"]  # intercept, then a weight per reading


@dataclass(frozen=True, kw_only=True)
class AccuracyEstimate(Record):
    """The accuracy of a batch as estimated without its labels, or why there is none.

    Attributes:
        value: In [0, 1]; None where silent.
        interval: Conformal interval of the accuracy on the images of the batch, not of their source, whose
            accuracy many batches would have on average; None where silent.
        support: p-value of "the batch is like the calibration domains", in (0, 1]; None if not tested.
        source: What it rests on, a sentence.
        reason: Why it is silent; empty where it speaks.
    """

    value: float | None
    interval: Interval | None
    support: float | None
    source: str
    reason: str = field(default="", metadata=BRIEF)

    def __str__(self) -> str:
        if self.interval is None or self.value is None:
            return f"cannot say: {self.reason}"
        ends = f"[{self.interval.low:.2f}, {self.interval.high:.2f}]"
        return f"{self.value:.2f} {ends} at {self.interval.level:.0%}"


@dataclass(frozen=True, kw_only=True)
class Backtest(Record):
    """How well families are predicted by a fit without them.

    Attributes:
        error: Mean over families of their mean absolute error.
        id_error: The same of the in-distribution accuracy for every domain.
        mean_error: The same of the mean accuracy of the other families.
        p_value: That accuracies dealt out at random are predicted as well, one-sided, in [0.001, 1]: among
            999 deals (and the true one) the share with at most this error. Each family gets the accuracies of
            a family of its size, in any order; predictions stay.
    """

    error: float
    id_error: float
    mean_error: float
    p_value: float

    @property
    def useful(self) -> bool:
        """Whether the estimate beats both constants, and chance at p at most 0.05."""
        return self.error < min(self.id_error, self.mean_error) and self.p_value <= WORTH


@dataclass(frozen=True, kw_only=True)
class AccuracyEstimator(Record):
    """Maps label-free readings of a batch to its accuracy, as learnt on domains with known accuracy.

    Readings in the unit of accuracy, and accuracy itself, are taken to arcsin(sqrt((n x + 1/2) / (n + 1))),
    where sampling has one variance; distances change sign, so that all rise with accuracy; all are
    standardised. The stack is b + sum_j w_j z_j with w >= 0: least squares with a ridge penalty, one vote per
    family. The interval is CV+ with families as folds: of the values f_{-k}(z) -+ |y_i - f_{-k}(z_i)|, domain
    i of family k with mass 1 / ((K + 1) n_k), the outermost beyond which lies at most 1 - level.

    It says "cannot say" where

    - there are fewer than 9 families;
    - the backtest does not beat both constants, in-distribution accuracy and the mean accuracy of other
      families, or p > 0.05: readings that know nothing of accuracy are used with a probability of 0.05 at
      most;
    - domains were drawn from fewer images than four batches hold: they would share their images, and their
      errors be too much alike;
    - the batch is outside: its mean distance to the 3 nearest domains is larger than those of domains to the
      nearest of other families, at a conformal p-value of 0.15 or less. This silences up to 15 % of batches
      inside;
    - the batch holds other numbers of images than the domains, or lacks a reading.

    Attributes:
        names: Keys of the readings: `ac`, `atc`, `doc`, `cot`, `cbpe`, `m-cbpe` in the unit of accuracy;
            `ane`, `mano` and `closeness` rise with it; all others fall with it, as distances do.
        readings: `[m][r]`, a row per domain.
        performance: Accuracy (or another measure in [0, 1]) on the very images of each row's readings.
        families: Family of each.
        id_performance: In distribution.
        n: Images of a row's readings: those of a batch.
        pool: Images that they were drawn from, the same for all domains; None: each has images of its own.
        level: Coverage asked for; `offered` says what is given.

    Raises:
        ShapeError: If the numbers of domains or readings do not agree.
        InputError: For a measure outside [0, 1], no reading, or a level outside (0, 1).
        NonFiniteError: For NaN or infinite readings.

    References:
        Barber, Candès, Ramdas and Tibshirani (2021), "Predictive inference with the jackknife+",
        arXiv:1905.02928 (CV+: coverage at least 1 - 2 (1 - level) for every distribution, about `level` in
        practice); Lee, Barber and Willett (2023), arXiv:2306.06342 (groups as units).
    """

    derived = ("n_families", "offered", "backtest", "silence", "source")

    names: tuple[str, ...]
    readings: tuple[tuple[float, ...], ...]
    performance: tuple[float, ...]
    families: tuple[str, ...]
    id_performance: float
    n: int
    pool: int | None = None
    level: float = 0.95

    def __post_init__(self) -> None:
        sizes = {len(self.readings), len(self.performance), len(self.families)}
        if len(sizes) != 1 or any(len(row) != len(self.names) for row in self.readings):
            raise ShapeError(
                f"got {len(self.readings)} rows of readings, {len(self.performance)} accuracies and "
                f"{len(self.families)} families for {len(self.names)} readings; give one of each per domain"
            )
        if not self.names or not self.readings:
            raise InputError("readings or domains are missing; an estimate is learnt from both")
        if not 0 < self.level < 1:
            raise InputError(f"level is {self.level}; expected a probability above 0 and below 1")
        bad = [each for each in (*self.performance, self.id_performance) if not 0 <= each <= 1]
        if bad:
            raise InputError(f"an accuracy is {bad[0]}; expected a number from 0 to 1")
        if not np.isfinite(self.readings).all():
            raise NonFiniteError("readings of a domain hold NaN or infinity; leave that reading out")

    # ---------------------------------------------------------------------------------------- what is known

    @property
    def n_families(self) -> int:
        """K, the number of exchangeable units."""
        return len(set(self.families))

    @property
    def offered(self) -> float:
        """Level of the intervals: at most K / (K + 1), and 0.9 below 19 families; NaN below 9."""
        if self.n_families < FEWEST:
            return math.nan
        most = self.n_families / (self.n_families + 1)
        return min(self.level, most, 1.0 if self.n_families >= MANY else FEW_LEVEL)

    @property
    def source(self) -> str:
        """What an estimate rests on, a sentence."""
        level = "" if math.isnan(self.offered) else f", level {self.offered:.3g}"
        return (
            f"{len(self.names)} readings, calibrated on {len(self.readings)} labelled domains of "
            f"{self.n_families} families, {self.n} images each{level}"
        )

    @cached_property
    def backtest(self) -> Backtest:
        """Each family predicted by the others, against two constants."""
        truth, votes = np.array(self.performance), self._votes
        errors = np.abs(self._accuracy(self._left_out) - truth)
        of_id = np.abs(self.id_performance - truth)
        others = (
            np.array(
                [
                    np.average(truth[self._other(family)], weights=votes[self._other(family)])
                    for family in self.families
                ]
            )
            if self.n_families > 1
            else truth
        )
        of_mean = np.abs(others - truth)
        error, id_error, mean_error = (self._by_family(each).mean() for each in (errors, of_id, of_mean))
        by_chance = np.abs(self._dealt(truth) - self._accuracy(self._left_out)) @ votes / self.n_families
        return Backtest(
            error=float(error),
            id_error=float(id_error),
            mean_error=float(mean_error),
            p_value=float(1 + (by_chance <= error + 1e-12).sum()) / (DEALS + 1),
        )

    def _dealt(self, truth: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, "deals m"]:
        """Accuracies dealt out among families of one size, and within each; the order of domains is free."""
        rng, dealt = stream(0, "accuracy-estimate/deals"), np.tile(truth, (DEALS, 1))
        names, order = np.array(self.families), np.lexsort((self._left_out, truth))
        blocks = [order[names[order] == family] for family in sorted(set(self.families))]
        for size in sorted({len(each) for each in blocks}):
            rows = np.stack([each for each in blocks if len(each) == size])
            families = rng.random((DEALS, len(rows))).argsort(1)
            dealt[:, rows.ravel()] = truth[rng.permuted(rows[families], axis=2).reshape(DEALS, -1)]
        return dealt

    @property
    def silence(self) -> str:
        """Why it says nothing about any batch; empty where it may speak."""
        if self.n_families < FEWEST:
            return f"{self.n_families} families of domains were calibrated; {FEWEST} are needed"
        if self.pool is not None and self.pool < WINDOWS * self.n:
            return (
                f"the calibration domains of {self.n} images are drawn from {self.pool}; "
                f"{WINDOWS * self.n} are needed, besides those that readings learn from"
            )
        test = self.backtest
        if not test.useful:
            return (
                f"on families left out, the estimate is {test.error:.3f} off on average, a constant "
                f"{min(test.id_error, test.mean_error):.3f}, and chance is as good with p = "
                f"{test.p_value:.2g}; it is not better"
            )
        return ""

    # ------------------------------------------------------------------------------------------ of a batch

    def estimate(self, readings: Mapping[str, float], *, n: int) -> AccuracyEstimate:
        """The accuracy of a batch, or why nothing can be said.

        Args:
            readings: Of the batch, under the names of the calibration; others are ignored.
            n: Its images.
        """
        missing = [name for name in self.names if not math.isfinite(readings.get(name, math.nan))]
        if n != self.n:
            return self._silent(f"the batch holds {n} images, the calibration domains {self.n}")
        if missing:
            return self._silent(f"the batch has no {', '.join(missing)}")
        z = self._scaled(np.array([[readings[name] for name in self.names]]))[0]
        support = self._support(z)
        if self.silence:
            return self._silent(self.silence, support)
        if support <= OUTSIDE:
            return self._silent(f"the batch is unlike the calibration domains (p = {support:.2g})", support)
        value = self._accuracy(self._predict(self._fit(np.ones(len(self.readings), dtype=bool)), z[None]))
        return AccuracyEstimate(
            value=float(value[0]), interval=self._interval(z), support=support, source=self.source
        )

    def _silent(self, reason: str, support: float | None = None) -> AccuracyEstimate:
        return AccuracyEstimate(value=None, interval=None, support=support, source=self.source, reason=reason)

    def _interval(self, z: Row) -> Interval:
        """CV+ over families, taken back to accuracy."""
        alpha = 1 - self.offered
        residuals = np.abs(self._link(np.array(self.performance)) - self._left_out)
        centres = np.array([self._predict(self._fits[family], z[None])[0] for family in self.families])
        mass = self._votes / (self.n_families + 1)
        ends = _beyond(centres - residuals, mass, alpha), -_beyond(-centres - residuals, mass, alpha)
        low, high = self._accuracy(np.array(ends))
        return Interval(low=float(low), high=float(high), level=self.offered, method="cv+")

    def _support(self, z: Row) -> float:
        """Conformal p-value of the distance to the nearest domains, families as units."""
        here = _nearness(z, self._z)
        return (1 + float(self._votes[self._apart >= here].sum())) / (self.n_families + 1)

    @cached_property
    def _apart(self) -> Float64[np.ndarray, " m"]:
        """Distance of each domain from the nearest of other families."""
        if self.n_families == 1:
            return np.full(len(self._z), math.inf)
        return np.array(
            [_nearness(self._z[i], self._z[self._other(family)]) for i, family in enumerate(self.families)]
        )

    # ---------------------------------------------------------------------------------------- the arithmetic

    def _link(self, x: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
        return np.asarray(np.arcsin(np.sqrt((np.clip(x, 0.0, 1.0) * self.n + 0.5) / (self.n + 1))))

    def _accuracy(self, y: Float64[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
        """The inverse of the link; beyond its ends 0 and 1."""
        share = np.sin(np.clip(y, 0.0, math.pi / 2)) ** 2
        return np.asarray(np.clip((share * (self.n + 1) - 0.5) / self.n, 0.0, 1.0))

    def _oriented(self, rows: Rows) -> Rows:
        columns = [
            self._link(rows[:, j]) if name in IN_UNIT else rows[:, j] * (1 if name in RISING else -1)
            for j, name in enumerate(self.names)
        ]
        return np.stack(columns, axis=1)

    @cached_property
    def _scale(self) -> tuple[Row, Row]:
        rows = self._oriented(np.array(self.readings))
        mean = np.average(rows, axis=0, weights=self._votes)
        spread = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=self._votes))
        return mean, np.where(spread > 1e-12, spread, 1.0)

    def _scaled(self, rows: Rows) -> Rows:
        mean, spread = self._scale
        return np.asarray((self._oriented(rows) - mean) / spread)

    @cached_property
    def _z(self) -> Rows:
        return self._scaled(np.array(self.readings))

    @cached_property
    def _votes(self) -> Float64[np.ndarray, " m"]:
        """1 / n_k for a domain of a family of n_k: the families sum to 1 each."""
        return np.array([1 / self.families.count(each) for each in self.families])

    def _other(self, family: str) -> np.ndarray:
        return np.array([each != family for each in self.families])

    def _by_family(self, values: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " k"]:
        names = np.array(self.families)
        return np.array([values[names == each].mean() for each in dict.fromkeys(self.families)])

    def _fit(self, used: np.ndarray) -> Fit:
        """Intercept and weights: penalised least squares with weights >= 0, as one non-negative problem."""
        votes = np.sqrt(self._votes[used])
        y = self._link(np.array(self.performance))[used]
        z, total = self._z[used], self._votes[used].sum()
        mean_z, mean_y = (np.average(each, axis=0, weights=votes**2) for each in (z, y))
        penalty = math.sqrt(RIDGE * total) * np.eye(z.shape[1])
        design = np.concatenate([(z - mean_z) * votes[:, None], penalty])
        weights, _ = scipy.optimize.nnls(design, np.concatenate([(y - mean_y) * votes, np.zeros(z.shape[1])]))
        return np.concatenate([[mean_y - mean_z @ weights], weights])

    @staticmethod
    def _predict(fit: Fit, z: Rows) -> Float64[np.ndarray, " m"]:
        return np.asarray(fit[0] + z @ fit[1:])

    @cached_property
    def _fits(self) -> dict[str, Fit]:
        """Family -> the fit without it."""
        return {family: self._fit(self._other(family)) for family in dict.fromkeys(self.families)}

    @cached_property
    def _left_out(self) -> Float64[np.ndarray, " m"]:
        """Each domain as predicted without its family, on the scale of the link."""
        return np.array(
            [self._predict(self._fits[family], self._z[[i]])[0] for i, family in enumerate(self.families)]
        )


def _beyond(values: Float64[np.ndarray, " m"], mass: Float64[np.ndarray, " m"], alpha: float) -> float:
    """The largest value with mass at most alpha at or below it; minus infinity where there is none."""
    order = np.argsort(values, kind="stable")
    within = np.flatnonzero(np.cumsum(mass[order]) <= alpha + 1e-9)
    return float(values[order[within[-1]]]) if len(within) else -math.inf


def _nearness(z: Row, others: Rows) -> float:
    """Mean Euclidean distance to the nearest few."""
    distances = np.sort(np.linalg.norm(others - z, axis=1))
    return float(distances[:NEAREST].mean())
