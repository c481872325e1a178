"""When an alarm goes off: at a threshold that corresponds to a performance, or at a rate that is kept.

A batch of n images has a positive shift by sampling alone. What is unusual is therefore learnt from batches
of the same size that are known to be in distribution. The conformal and the sequential rule need nothing but
exchangeability: the known batches and the watched ones, while nothing has changed, must be as likely in any
other order.
"""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from assay.core.errors import InputError, NonFiniteError, check_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import clopper_pearson


RULES = ("threshold", "conformal", "sequential")
CIRCUIT, OUTPUTS = "circuit shift", "output shift"  # the statistics of a batch
POWERS = (1.0, 0.5, 0.25)  # of the bets: 1 does not bet, 0.25 puts most on small p-values
JUMP = 0.01  # share of the capital dealt out anew before each bet
MOST_BATCHES = 100  # known ones, unless more are asked for


# --------------------------------------------------------------------------------------------- thresholds


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
    """

    value: float
    domain: str = ""
    target: float = math.nan
    performance: float = math.nan
    higher_is_shift: bool = True
    method: str = "nearest"

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

    Raises:
        InputError: For no domain, domains that only one side has, or a target that is not finite.
        NonFiniteError: For NaN or infinite numbers; the message names the domain.
        UnknownNameError: For another method.

    Notes:
        If no domain comes near the target, the threshold corresponds to the performance it has: compare
        `Threshold.performance` with `target`.

    References:
        Peng et al. (2026), arXiv:2604.08192, Eqs. 5 and 6; Barlow et al. (1972), on isotonic regression.

    Example:
        >>> shifts, accuracy = {"fog": 0.2, "snow": 0.5}, {"fog": 0.9, "snow": 0.6}
        >>> round(calibrate_threshold(shifts, accuracy, 0.7).value, 6)
        0.4
        >>> calibrate_threshold(shifts, accuracy, 0.7, method="nearest").domain
        'snow'
    """
    check_name("method of a threshold", method, ("isotonic", "nearest"))
    odd = sorted(set(scores_by_domain) ^ set(performance_by_domain))
    if odd or not scores_by_domain:
        raise InputError(
            "every domain needs a score and a performance; one is missing for: "
            f"{', '.join(odd) or 'no domain at all'}"
        )
    if not math.isfinite(target):
        raise InputError(f"target is {target}; give the performance below which to raise the alarm")
    for what, values in (("score", scores_by_domain), ("performance", performance_by_domain)):
        for name, number in values.items():
            if not math.isfinite(number):
                raise NonFiniteError(
                    f"the {what} of domain {name!r} is {number}; give finite numbers, or leave it out"
                )
    nearest = min(scores_by_domain, key=lambda domain: abs(performance_by_domain[domain] - target))
    value, performance = float(scores_by_domain[nearest]), float(performance_by_domain[nearest])
    if method == "isotonic":
        x, y = np.array([(performance_by_domain[name], each) for name, each in scores_by_domain.items()]).T
        places, group, counts = np.unique(x, return_inverse=True, return_counts=True)
        means = np.bincount(group, weights=y) / counts  # of domains with equal performance
        fit = scipy.optimize.isotonic_regression(means, weights=counts, increasing=not higher_is_shift).x
        value, performance = float(np.interp(target, places, fit)), float(np.clip(target, x.min(), x.max()))
    return Threshold(
        value=value,
        domain=nearest,
        target=target,
        performance=performance,
        higher_is_shift=higher_is_shift,
        method=method,
    )


# ------------------------------------------------------------------------------- rules with a known rate


def conformal_p_value(known: Sequence[float], score: float) -> float:
    """Share of scores at least as large as this one, this one included: (1 + #{s_i >= s}) / (m + 1).

    Args:
        known: Scores of m batches in distribution; finite.
        score: Of a new batch of the same size.

    Returns:
        In [1 / (m + 1), 1]. Under exchangeability at most a with probability at most a, for every a.

    References:
        Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World".

    Example:
        >>> conformal_p_value([0.1, 0.2, 0.3], 0.25)
        0.5
    """
    return (1 + sum(each >= score for each in known)) / (len(known) + 1)


def batches_for(alpha: float) -> int:
    """Known batches that a conformal alarm at this level needs: the smallest m with 1 / (m + 1) <= alpha.

    Raises:
        InputError: If alpha is not a probability strictly between 0 and 1.

    Example:
        >>> batches_for(0.05)
        19
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; expected a probability above 0 and below 1")
    return max(math.ceil(1 / alpha - 1e-9) - 1, 1)


def _rank(m: int, alpha: float) -> int:
    return math.floor(alpha * (m + 1) + 1e-9)


def conformal_limit(known: Sequence[float], alpha: float) -> float:
    """The score that a batch must exceed for a p-value of at most alpha: the floor(alpha (m + 1))-th largest.

    While batches are exchangeable with the m known ones, a batch exceeds it with probability at most alpha,
    on average over the choice of the known ones.
    """
    return sorted(known, reverse=True)[_rank(len(known), alpha) - 1]


def rate_bound(m: int, alpha: float, confidence: float = 0.95) -> float:
    """The rate of false alarms that m known batches, as they are, keep below with this confidence.

    The rate given the known batches has the distribution Beta(k, m + 1 - k), k = floor(alpha (m + 1)), or
    lies below it where scores tie: its quantile.

    References:
        Vovk (2012), "Conditional validity of inductive conformal predictors", arXiv:1209.2673.
    """
    return float(scipy.stats.beta.ppf(confidence, _rank(m, alpha), m + 1 - _rank(m, alpha)))


@dataclass(frozen=True, kw_only=True)
class SequentialTest:
    """A bet against exchangeability that goes on with every batch: a conformal test martingale.

    The t-th batch gets the smoothed p-value (#{s_i > s_t} + u_t #{s_i = s_t}) / n_t, where i runs over all
    n_t scores so far: the known ones, the earlier batches, and itself; u_t is uniform. As each score joins
    the bag, these p-values are independent and uniform under exchangeability, which p-values against one
    fixed set of known scores are not. The capital starts at 1 and is spread over bets f(p) = k p^(k - 1);
    before each batch a share `JUMP` of it is dealt out evenly anew, so that a change after a long quiet time
    is found, too. It is a martingale, so it ever reaches 1 / alpha with probability at most alpha (Ville).

    Attributes:
        scores: All scores so far, ascending.
        log_shares: Log of the capital on each bet of `POWERS`.
        log_peak: Log of the largest capital so far.

    Notes:
        What breaks exchangeability raises the alarm, wanted or not: batches by class or by day, known images
        that the model was trained on or the reference circuit was found on, a drift that harms nothing. After
        a change the new batches join the bag and become the rule: a change that is missed early is harder to
        find later.

    References:
        Vovk, Nouretdinov and Gammerman (2003), "Testing exchangeability on-line", ICML (power bets); Vovk
        et al. (2021), arXiv:2102.10439 (jumping between bets); Vovk (2021), doi:10.1214/20-STS817; Ville
        (1939); Shafer (2021), doi:10.1111/rssa.12647, on capital as evidence.
    """

    scores: tuple[float, ...] = ()
    log_shares: tuple[float, ...] = field(
        default_factory=lambda: tuple(-math.log(len(POWERS)) for _ in POWERS)
    )
    log_peak: float = 0.0

    @classmethod
    def start(cls, known: Sequence[float]) -> "SequentialTest":
        """The test before the first batch.

        Args:
            known: Scores of batches in distribution; more make the first bets sharper. May be empty.
        """
        return cls(scores=tuple(sorted(known)))

    def observe(self, score: float, u: float) -> "SequentialTest":
        """The test after one more batch.

        Args:
            score: Of the batch.
            u: Uniform in (0, 1], drawn for this batch alone: it breaks ties.
        """
        bag = list(self.scores)
        first, after = bisect.bisect_left(bag, score), bisect.bisect_right(bag, score)
        bag.insert(after, score)
        above, equal = len(bag) - 1 - after, after + 1 - first
        p = (above + u * equal) / len(bag)
        # Dealt out anew, then bet: logs, because a long quiet time takes the capital to where exp gives 0.
        powers, dealt = np.array(POWERS), math.log(JUMP / len(POWERS)) + self.log_capital
        shares = np.logaddexp(math.log1p(-JUMP) + np.array(self.log_shares), dealt)
        shares += np.log(powers) + (powers - 1) * math.log(p)
        peak = max(self.log_peak, float(np.logaddexp.reduce(shares)))
        return replace(self, scores=tuple(bag), log_shares=tuple(shares.tolist()), log_peak=peak)

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital; 0 at the start. Its exponential is an e-value."""
        return float(np.logaddexp.reduce(self.log_shares))

    def alarm(self, alpha: float) -> bool:
        """Whether the capital ever reached 1 / alpha: once raised, the alarm stays."""
        return self.log_peak >= -math.log(alpha)


# -------------------------------------------------------------------------------------- all rules


@dataclass(frozen=True, kw_only=True)
class Calibration(Record):
    """Shifts of batches in distribution, each of `n` images that no other batch and no reference holds.

    Attributes:
        shifts: Of the circuit, one per batch.
        n: Images of a batch.
        domain: Where they come from.
        output_shifts: Of the outputs, one per batch; empty where these are not watched.
    """

    shifts: tuple[float, ...]
    n: int
    domain: str = ""
    output_shifts: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AlarmRules:
    """The rules of a monitor at some point of its stream.

    The conformal rule looks at two statistics of a batch, the circuit's shift and the outputs' shift. It goes
    off where one of their p-values is at most alpha / 2, so a false alarm has probability at most alpha.

    Attributes:
        asked: The rule that is to decide; None: the threshold if there is one, else conformal.
        threshold: Of the threshold rule, if there is one.
        alpha: Level of the other two, in (0, 1).
        seed: Of the draws that break ties.
        calibration: Known batches, if any.
        sequential: The test after the batches so far, of the circuit's shift.

    Raises:
        InputError: For an `alpha` that is not a probability, a threshold that is missing or not finite, or
            one of a score that falls with shift.
        UnknownNameError: For another rule.
    """

    asked: str | None = None
    threshold: Threshold | None = None
    alpha: float = 0.05
    seed: int = 0
    calibration: Calibration | None = None
    sequential: SequentialTest = field(default_factory=lambda: SequentialTest.start(()))

    def __post_init__(self) -> None:
        batches_for(self.alpha)
        if self.asked is not None:
            check_name("rule of an alarm", self.asked, RULES)
        if self.threshold is None:
            if self.asked == "threshold":
                raise InputError(
                    "the rule is 'threshold', but the threshold is missing; give one, or use another rule"
                )
        elif not (self.threshold.higher_is_shift and math.isfinite(self.threshold.value)):
            raise InputError(
                f"the threshold {self.threshold.value:g} is not a circuit shift, or of a score that falls "
                "with shift, such as confidence; calibrate one on circuit shifts"
            )

    @property
    def rule(self) -> str | None:
        """The rule that decides; None where there is nothing to decide by."""
        if self.asked is not None:
            return self.asked
        if self.threshold is not None:
            return "threshold"
        return "conformal" if self.tests else None

    @property
    def tests(self) -> dict[str, tuple[tuple[float, ...], float]]:
        """Known scores and level of each statistic; empty without known batches, or too few for `alpha`.

        Both at alpha / 2 where there are known batches enough for that, else the circuit's alone at alpha.
        """
        known, alpha = self.calibration, self.alpha
        if known is None or len(known.shifts) < batches_for(alpha):
            return {}
        if not known.output_shifts or len(known.shifts) < batches_for(alpha / 2):
            return {CIRCUIT: (known.shifts, alpha)}
        return {CIRCUIT: (known.shifts, alpha / 2), OUTPUTS: (known.output_shifts, alpha / 2)}

    @property
    def limits(self) -> dict[str, float]:
        """What each statistic must exceed for an alarm of the conformal rule."""
        return {name: conformal_limit(*test) for name, test in self.tests.items()}

    @property
    def guarantee(self) -> str:
        """How often the rule in force raises a false alarm, and what that rests on, in a sentence."""
        known, alpha, rule = self.calibration, self.alpha, self.rule
        m = len(known.shifts) if known else 0
        if rule is None:
            return "No alarm is set: give a threshold, or calibrate on batches in distribution."
        if rule == "sequential":
            return (
                f"The probability of any false alarm, over all batches together, is at most {alpha:g}, if "
                f"the {m} known batches and the watched ones are exchangeable until something changes."
            )
        if known is None:
            return "The rate of false alarms is unknown: no batches in distribution were measured."
        if rule == "threshold" and self.threshold is not None:
            raised = sum(map(self.threshold.alarm, known.shifts))
            interval = clopper_pearson(raised, m)
            return (
                f"{raised} of {m} batches of {known.n} images in distribution exceed the threshold: "
                f"{raised / m:.2g} false alarms per batch, 95 % interval {interval.low:.2g} to "
                f"{interval.high:.2g}."
            )
        n_tests = len(self.tests)
        bound = sum(rate_bound(m, level, 1 - 0.05 / n_tests) for _, level in self.tests.values())
        alone = (
            ""
            if n_tests > 1
            else (
                " Only the circuit's shift is tested: the outputs need known images of their own and "
                f"{batches_for(alpha / 2)} known batches."
            )
        )
        return (
            f"A batch of {known.n} images raises a false alarm with probability at most {alpha:g}, if it "
            f"is exchangeable with the {m} known batches; for these known batches as they are, the rate "
            f"is below {min(bound, 1):.2g} with 95 % confidence.{alone}"
        )

    def batches_of(self, n: int, size: int, asked: int | None) -> int:
        """Known batches of a size to measure when so many inputs are at hand.

        Raises:
            InputError: If they do not give the batches that the rule needs, or those asked for.
        """
        most = n // size
        m = min(most, MOST_BATCHES) if asked is None else asked
        conformal = self.asked == "conformal" or (self.asked is None and self.threshold is None)
        needed = batches_for(self.alpha) if conformal else 1
        if not needed <= m <= most:
            raise InputError(
                f"{n} images in distribution give {most} batches of {size}, but {max(needed, asked or 0)} "
                f"are needed for alpha {self.alpha:g} or asked for. Give {max(needed, m) * size} images or "
                "more besides those of the reference circuit, smaller batches, or a larger alpha"
            )
        return m

    def calibrated(self, calibration: Calibration) -> "AlarmRules":
        """The rules once known batches were measured."""
        start = SequentialTest.start(calibration.shifts)
        return replace(self, calibration=calibration, sequential=start)

    def after(self, shift: float, index: int) -> "AlarmRules":
        """The rules after one more batch, whose number is `index`."""
        # In (0, 1]: exactly 0 would make a p-value of 0.
        tie = 1 - float(stream(self.seed, f"monitor/tie/{index}").random())
        return replace(self, sequential=self.sequential.observe(shift, tie))

    def verdict(self, shift: float, output_shift: float | None = None) -> dict[str, Any]:
        """What the rules say of the batch that was the last to be taken, by the names of a `Reading`.

        Args:
            shift: Of its circuit.
            output_shift: Of its outputs, where they are watched.

        Raises:
            InputError: For the conformal rule without known batches.
        """
        values = {CIRCUIT: shift, OUTPUTS: math.nan if output_shift is None else output_shift}
        alarm: bool | None
        decided: tuple[str, float | None, float | None]
        p_values = {name: conformal_p_value(known, values[name]) for name, (known, _) in self.tests.items()}
        e_value = math.exp(min(self.sequential.log_capital, 700.0))
        if self.rule == "threshold" and self.threshold is not None:
            alarm = self.threshold.alarm(shift)
            decided = (CIRCUIT, shift, self.threshold.value)
        elif self.rule == "sequential":
            alarm, decided = self.sequential.alarm(self.alpha), ("e-value", e_value, 1 / self.alpha)
        elif p_values:
            name = min(p_values, key=lambda name: p_values[name])
            alarm, decided = values[name] > self.limits[name], (name, values[name], self.limits[name])
        elif self.rule is None:
            alarm, decided = None, ("", None, None)
        else:
            raise InputError("the conformal rule needs known batches; call calibrate() first")
        return {
            "alarm": alarm,
            "p_value": p_values.get(CIRCUIT),
            "output_p_value": p_values.get(OUTPUTS),
            "e_value": e_value if self.calibration is not None or self.rule == "sequential" else None,
            **dict(zip(("decided_by", "value", "limit"), decided, strict=True)),
        }
