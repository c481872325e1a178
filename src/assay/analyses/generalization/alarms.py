"""False alarms under control: conformal p-values of a batch, and a test that may be looked at for ever.

A batch of n images has a positive shift by sampling alone. What is unusual is therefore learnt from batches
of the same size that are known to be in distribution. Both rules here need nothing but exchangeability: the
known batches and the watched ones, while nothing has changed, must be as likely in any other order.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import scipy

from assay.analyses.generalization.thresholds import Threshold
from assay.core.errors import InputError, NonFiniteError
from assay.core.record import Record, same
from assay.core.verdict import Interval
from assay.stats import clopper_pearson


POWERS = (1.0, 0.5, 0.25)  # of the bets: 1 does not bet, 0.25 puts most on small p-values
JUMP = 0.01  # share of the capital dealt out anew before each bet


def conformal_p_value(known: Sequence[float], score: float) -> float:
    """Share of scores at least as large as this one, this one included: (1 + #{s_i >= s}) / (m + 1).

    Args:
        known: Scores of m batches in distribution; finite.
        score: Of a new batch of the same size.

    Returns:
        In [1 / (m + 1), 1]. Under exchangeability at most a with probability at most a, for every a.

    Raises:
        InputError: Without known scores.
        NonFiniteError: For NaN or infinite scores.

    References:
        Vovk, Gammerman and Shafer (2005), "Algorithmic Learning in a Random World".

    Example:
        >>> conformal_p_value([0.1, 0.2, 0.3], 0.25)
        0.5
    """
    values = _finite(known, least=1)
    _finite([score])
    return (1 + sum(each >= score for each in values)) / (len(values) + 1)


@dataclass(frozen=True, kw_only=True)
class ConformalAlarm(Record):
    """An alarm for one batch at a time: it goes off where the conformal p-value is at most `alpha`.

    While batches are exchangeable with the known ones, a batch raises the alarm with probability at most
    `alpha`, on average over the choice of the known ones. Once these are fixed, the rate is what it is for
    every later batch; `rate_bound` says how high it may be.

    Attributes:
        known: Scores of the batches in distribution.
        alpha: Highest probability of a false alarm at a batch, in (0, 1).

    Raises:
        InputError: If `alpha` is below 1 / (m + 1), the smallest p-value that m batches can give.
        NonFiniteError: For NaN or infinite scores.
    """

    record_layout = same("limit", "smallest_alpha", "rate_bound")

    known: tuple[float, ...]
    alpha: float = 0.05

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        _finite(self.known, least=1)
        if self.alpha < self.smallest_alpha * (1 - 1e-12):
            raise InputError(
                f"alpha is {self.alpha:g}, but {len(self.known)} batch(es) support no less than "
                f"{self.smallest_alpha:.3g}; give at least {batches_for(self.alpha)} batches, or a larger "
                "alpha"
            )

    @property
    def smallest_alpha(self) -> float:
        """1 / (m + 1)."""
        return 1 / (len(self.known) + 1)

    @property
    def limit(self) -> float:
        """The score that must be exceeded: the k-th largest known one, k = floor(alpha (m + 1))."""
        return sorted(self.known, reverse=True)[self._rank - 1]

    @property
    def _rank(self) -> int:
        return math.floor(self.alpha * (len(self.known) + 1) + 1e-9)

    def p_value(self, score: float) -> float:
        """p-value of a new batch, see `conformal_p_value`."""
        return conformal_p_value(self.known, score)

    def alarm(self, score: float) -> bool:
        """Whether a new batch raises the alarm."""
        return score > self.limit

    def rate_bound(self, confidence: float = 0.95) -> float:
        """The rate of false alarms that these known batches keep below, with this confidence.

        The rate given the known batches has the distribution Beta(k, m + 1 - k), or lies below it where
        scores tie: its quantile.

        References:
            Vovk (2012), "Conditional validity of inductive conformal predictors", arXiv:1209.2673.
        """
        check_alpha(confidence, "confidence")
        return float(scipy.stats.beta.ppf(confidence, self._rank, len(self.known) + 1 - self._rank))


def batches_for(alpha: float) -> int:
    """Known batches that a conformal alarm at this level needs: the smallest m with 1 / (m + 1) <= alpha.

    Example:
        >>> batches_for(0.05)
        19
    """
    check_alpha(alpha)
    return max(math.ceil(1 / alpha - 1e-9) - 1, 1)


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
        n: Batches bet on; the known ones do not count.
        p_value: Of the last of them; NaN before the first.

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
    n: int = 0
    p_value: float = math.nan

    @classmethod
    def start(cls, known: Sequence[float]) -> "SequentialTest":
        """The test before the first batch.

        Args:
            known: Scores of batches in distribution; more make the first bets sharper. May be empty.

        Raises:
            NonFiniteError: For NaN or infinite scores.
        """
        return cls(scores=tuple(sorted(_finite(known))))

    def observe(self, score: float, u: float) -> "SequentialTest":
        """The test after one more batch.

        Args:
            score: Of the batch.
            u: Uniform in (0, 1], drawn for this batch alone: it breaks ties.

        Raises:
            NonFiniteError: For a score that is not finite.
            InputError: For `u` outside (0, 1].
        """
        _finite([score])
        if not 0 < u <= 1:
            raise InputError(f"u is {u}; expected a uniform number above 0 and at most 1")
        bag = list(self.scores)
        first, after = bisect.bisect_left(bag, score), bisect.bisect_right(bag, score)
        bag.insert(after, score)
        above, equal = len(bag) - 1 - after, after + 1 - first
        p = (above + u * equal) / len(bag)
        # Dealt out anew, then bet: logs, because a long quiet time takes the capital to where exp gives 0.
        dealt = math.log(JUMP / len(POWERS)) + self.log_capital
        shares = tuple(
            _log_sum((math.log1p(-JUMP) + share, dealt)) + math.log(power) + (power - 1) * math.log(p)
            for share, power in zip(self.log_shares, POWERS, strict=True)
        )
        return SequentialTest(
            scores=tuple(bag),
            log_shares=shares,
            log_peak=max(self.log_peak, _log_sum(shares)),
            n=self.n + 1,
            p_value=p,
        )

    @property
    def log_capital(self) -> float:
        """Natural logarithm of the capital; 0 at the start. Its exponential is an e-value."""
        return _log_sum(self.log_shares)

    def alarm(self, alpha: float) -> bool:
        """Whether the capital ever reached 1 / alpha: once raised, the alarm stays."""
        check_alpha(alpha)
        return self.log_peak >= -math.log(alpha)


def check_alpha(alpha: float, name: str = "alpha") -> None:
    """Refuse what is not a probability strictly between 0 and 1."""
    if not 0 < alpha < 1:
        raise InputError(f"{name} is {alpha}; expected a probability above 0 and below 1")


def _log_sum(logs: Sequence[float]) -> float:
    """log(sum(exp(logs)))."""
    largest = max(logs)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in logs))


def _finite(scores: Sequence[float], *, least: int = 0) -> list[float]:
    values = [float(each) for each in scores]
    if len(values) < least:
        raise InputError(f"got {len(values)} known batches; expected at least {least}")
    for place, each in enumerate(values):
        if not math.isfinite(each):
            raise NonFiniteError(
                f"the shift of batch {place} is {each}; constant scores have no rank distance"
            )
    return values


# -------------------------------------------------------------------------------------- guarantees


@dataclass(frozen=True, kw_only=True)
class Calibration(Record):
    """Shifts of batches in distribution, each of `n` images that no other batch and no reference holds.

    Attributes:
        shifts: One per batch.
        excess: The same beyond the noise floor; empty where the reference has none.
        n: Images of a batch.
        domain: Where they come from.
    """

    shifts: tuple[float, ...]
    n: int
    domain: str = ""
    excess: tuple[float, ...] = ()

    @property
    def statistics(self) -> tuple[float, ...]:
        """What the rules compare batches by: the excess where there is one, else the shift."""
        return self.excess or self.shifts


@dataclass(frozen=True, kw_only=True)
class Guarantee(Record):
    """How often an alarm goes off although nothing has changed.

    Attributes:
        rule: Of the alarm; None where there is none.
        rate: The bound, or for a threshold the share found; NaN where unknown.
        over: `"batch"`: each batch; `"ever"`: all batches together, however many.
        interval: Of the rate; None where `rate` is a bound.
        statement: The same as a sentence, with what it rests on.
    """

    rule: str | None
    rate: float
    over: str
    interval: Interval | None
    statement: str


def guarantee(
    rule: str | None,
    threshold: Threshold | None,
    calibration: Calibration | None,
    alpha: float,
) -> Guarantee:
    """What is known about the false alarms of a rule.

    Args:
        rule: `"threshold"`, `"conformal"`, `"sequential"`, or None.
        threshold: Of the threshold rule.
        calibration: Known batches, if any.
        alpha: Level of the other two.
    """
    rate, over, interval = math.nan, "batch", None
    m = len(calibration.shifts) if calibration else 0
    if rule is None:
        statement = "No alarm is set: give a threshold, or calibrate on batches in distribution."
    elif rule == "sequential":
        rate, over = alpha, "ever"
        statement = (
            f"The probability of any false alarm, over all batches together, is at most {alpha:g}, if the "
            f"{m} known batches and the watched ones are exchangeable until something changes."
        )
    elif rule == "conformal" and calibration is None:
        statement = "Not calibrated yet: the conformal rule needs batches in distribution."
    elif rule == "conformal":
        assert calibration is not None
        rate = alpha
        bound = ConformalAlarm(known=calibration.statistics, alpha=alpha).rate_bound()
        statement = (
            f"A batch of {calibration.n} images raises a false alarm with probability at most "
            f"{alpha:g}, if it is exchangeable with the {m} known batches; for these "
            f"known batches as they are, the rate is below {bound:.2g} with 95 % confidence."
        )
    elif calibration is None:
        assert threshold is not None
        origin = (
            "given as a number"
            if math.isnan(threshold.performance)
            else "calibrated on domains with known performance"
        )
        statement = (
            "The rate of false alarms is unknown: no batches in distribution were measured. The threshold "
            f"was {origin}."
        )
    else:
        assert threshold is not None
        raised = sum(threshold.alarm(each) for each in calibration.statistics)
        rate, interval = raised / m, clopper_pearson(raised, m)
        statement = (
            f"{raised} of {m} batches of {calibration.n} images in distribution exceed the threshold: "
            f"{rate:.2g} false alarms per batch, 95 % interval {interval.low:.2g} to {interval.high:.2g}."
        )
    return Guarantee(rule=rule, rate=rate, over=over, interval=interval, statement=statement)
