"""How a score goes with performance, and when it raises an alarm: at a threshold, or at a rate that is kept.

A batch of n images has a positive shift by sampling alone. What is unusual is therefore learnt from batches
of the same size that are known to be in distribution. The conformal and the sequential rule need nothing but
exchangeability: the known batches and the watched ones, while nothing has changed, must be as likely in any
other order.
"""

import bisect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float, Float64, Real

from assay.analyses.generalization.dependency import check_comparable, dependency_depth_bias
from assay.circuits import EdgeScores
from assay.core.errors import DegenerateDataWarning, InputError, NonFiniteError, check_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import clopper_pearson, kendall_tau, pearson, spearman


Values = Sequence[float] | Real[np.ndarray, " n"]

CORRELATIONS = ("r2", "srcc", "krcc")
RULES = ("threshold", "conformal", "sequential")
CIRCUIT, OUTPUTS = "circuit shift", "output shift"  # the statistics of a batch
POWERS = (1.0, 0.5, 0.25)  # of the bets: 1 does not bet, 0.25 puts most on small p-values
JUMP = 0.01  # share of the capital dealt out anew before each bet
# Performance thresholds of the alarm curve: 0.50, 0.51, ..., 0.95.
DELTAS = tuple(round(0.5 + 0.01 * step, 2) for step in range(46))


@dataclass(frozen=True, kw_only=True)
class TaskCorrelation(Record):
    """How a metric goes with performance on one task.

    Attributes:
        r2: Squared Pearson correlation: the R2 of a straight line, in sample; in [0, 1].
        srcc: Spearman's rank correlation, in [-1, 1].
        krcc: Kendall's tau-b, in [-1, 1].
        n: Models or domains.
    """

    r2: float
    srcc: float
    krcc: float
    n: int


def correlate(metric: Values, performance: Values) -> TaskCorrelation:
    """The three correlations of a metric with true performance.

    Args:
        metric: One number per model (before deployment) or domain (after), finite.
        performance: Accuracy or macro-F1 of each, in the same order.

    Returns:
        Signed correlations; those of a shift score are expected to be negative. All NaN, with a
        `DegenerateDataWarning`, for fewer than 3 pairs or where one side is constant.

    Raises:
        InputError: For lists of different lengths.
        NonFiniteError: For NaN or infinite numbers.

    References:
        Peng et al. (2026), arXiv:2604.08192, Tables 1 and 3.

    Example:
        >>> correlate([0.1, 0.4, 0.9], [0.5, 0.6, 0.9]).srcc
        1.0
    """
    x, y = paired(metric, performance)
    if len(x) < 3 or not np.ptp(x) or not np.ptp(y):
        reason = "one side is constant" if len(x) >= 3 else f"got {len(x)} pair(s); expected at least 3"
        warnings.warn(f"the correlation is undefined: {reason}", DegenerateDataWarning, stacklevel=2)
        return TaskCorrelation(r2=math.nan, srcc=math.nan, krcc=math.nan, n=len(x))
    return TaskCorrelation(r2=pearson(x, y) ** 2, srcc=spearman(x, y), krcc=kendall_tau(x, y), n=len(x))


def summarize_correlations(
    tasks: Mapping[str, Sequence[TaskCorrelation]], *, absolute: bool = True
) -> dict[str, float]:
    """Mean and standard error of the correlations of a metric over all tasks of all datasets.

    Args:
        tasks: Dataset -> correlation on each of its tasks; at least one each.
        absolute: Take magnitudes per task first, as the published tables do; False keeps signs.

    Returns:
        `"DATASET r2"`, `"DATASET srcc"` and `"DATASET krcc"`, means over the tasks of a dataset; `average`,
        the mean of these cells; `sem`, their population standard deviation over the root of their number.
        NaN where a task of theirs is NaN.

    Raises:
        InputError: For no dataset or one without tasks.

    Notes:
        The cells of one dataset rest on the same data: the standard error describes spread, not confidence.

    References:
        Peng et al. (2026), arXiv:2604.08192, Table 1.
    """
    if not tasks or not all(tasks.values()):
        raise InputError("every dataset needs at least one task")
    cells: dict[str, float] = {}
    for name, several in tasks.items():
        values = np.array([[getattr(each, key) for key in CORRELATIONS] for each in several])
        means = (np.abs(values) if absolute else values).mean(0)
        cells |= {f"{name} {key}": mean for key, mean in zip(CORRELATIONS, means.tolist(), strict=True)}
    every = np.array([*cells.values()])
    return {"average": float(every.mean()), "sem": float(every.std() / math.sqrt(len(every))), **cells}


def ratio_ablation(
    scores: Sequence[EdgeScores], performance: Values, *, targets: str = "output"
) -> dict[float, TaskCorrelation]:
    """How the choice of ratio tau changes what the dependency depth bias predicts.

    Args:
        scores: Circuit of each model of a zoo on the target data, found in one way.
        performance: True performance of each model.
        targets: As in `dependency_depth_bias`.

    Returns:
        Ratio (0.1, 0.2, ..., 0.5) -> correlation of the bias with performance.

    Raises:
        GraphMismatchError, InputError: For circuits that cannot be compared, or not one performance each.

    References:
        Peng et al. (2026), arXiv:2604.08192, Tables 2, 12 and 13.
    """
    for each in scores:
        check_comparable(scores[0], each, same_model=False)

    def biases(ratio: float) -> list[float]:
        return [dependency_depth_bias(each, targets=targets, ratio=ratio) for each in scores]

    return {ratio: correlate(biases(ratio), performance) for ratio in (0.1, 0.2, 0.3, 0.4, 0.5)}


def paired(x: Values, y: Values) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Scores and performance as arrays of one length, finite, at least one of each."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise InputError(f"scores have shape {a.shape}, performance {b.shape}; give one of each, [n]")
    for name, array in (("score", a), ("performance", b)):
        for place in np.flatnonzero(~np.isfinite(array)):
            raise NonFiniteError(f"{name} {place} is {array[place]}; leave it out of both")
    return a, b


# --------------------------------------------------------------------------------------------- thresholds


@dataclass(frozen=True, kw_only=True)
class Threshold(Record):
    """Where the alarm goes off.

    Attributes:
        value: delta': the score that corresponds to `performance`.
        domain: The calibration domain whose performance is closest to the target.
        target: delta: performance below it should raise the alarm.
        performance: What the value corresponds to: the target, or the nearest that the domains reach; the
            performance of `domain` where the method is `nearest`.
        higher_is_shift: True where a score above `value` is the alarm.
    """

    value: float
    domain: str = ""
    target: float = math.nan
    performance: float = math.nan
    higher_is_shift: bool = True

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
        InputError: For no domain, or domains that only one side has.
        NonFiniteError: For NaN or infinite numbers.
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
    names = list(scores_by_domain)
    if odd := sorted({*names} ^ {*performance_by_domain}):
        raise InputError(f"a score or a performance is missing for: {', '.join(odd)}")
    rates = [performance_by_domain[name] for name in names]
    scores, performance = paired([*scores_by_domain.values()], rates)
    nearest = int(np.abs(performance - target).argmin())
    value, reached = scores[nearest], performance[nearest]
    if method == "isotonic":
        places, group, counts = np.unique(performance, return_inverse=True, return_counts=True)
        means = np.bincount(group, weights=scores) / counts  # of domains with equal performance
        fit = scipy.optimize.isotonic_regression(means, weights=counts, increasing=not higher_is_shift).x
        value, reached = np.interp(target, places, fit), np.clip(target, places[0], places[-1])
    facts: dict[str, Any] = {"domain": names[nearest], "target": target, "performance": float(reached)}
    return Threshold(value=float(value), higher_is_shift=higher_is_shift, **facts)


def alarm_curve(
    calibration_scores: Values,
    calibration_performance: Values,
    scores: Sequence[float] | Real[np.ndarray, " m"],
    performance: Sequence[float] | Real[np.ndarray, " m"],
    *,
    deltas: Sequence[float] = DELTAS,
    n_subsets: int = 100,
    subset_size: int = 20,
    higher_is_shift: bool = True,
    seed: int = 0,
) -> Float64[np.ndarray, "n_deltas n_subsets"]:
    """F1 of the alarm for each performance threshold, calibrated on random subsets of the known domains.

    Args:
        calibration_scores: Score of each calibration domain, `[n]`.
        calibration_performance: Performance of each.
        scores: Score of each test domain, `[m]`.
        performance: True performance of each.
        deltas: Performance thresholds.
        n_subsets: Subsets drawn for each of them, without replacement inside a subset.
        subset_size: Domains of a subset; where there are fewer, all of them.
        higher_is_shift: True for shifts; False for scores that fall with performance.
        seed: Of the draws; those of one delta do not depend on the other deltas.

    Returns:
        F1 in [0, 1], higher is better; NaN where no alarm was due and none was raised.

    Raises:
        InputError: For lists of different lengths, or no domain.
        NonFiniteError: For NaN or infinite numbers.

    Notes:
        The paper states neither grid nor numbers; the defaults here are this package's.

    References:
        Peng et al. (2026), arXiv:2604.08192, section 5.
    """
    known, known_performance = paired(calibration_scores, calibration_performance)
    new, truth = paired(scores, performance)
    rows = []
    for delta in deltas:
        draws = stream(seed, f"alarm-subsets/{delta:.9g}").random((n_subsets, len(known)))
        # Ascending inside a subset, so that the first of equally near domains wins.
        subsets = np.sort(draws.argsort(1)[:, :subset_size], axis=1)
        nearest = np.abs(known_performance[subsets] - delta).argmin(1)
        limits = known[subsets[np.arange(n_subsets), nearest]][:, None]
        raised, due = new > limits if higher_is_shift else new < limits, truth < delta
        hits, wrong = (raised & due).sum(1), (raised ^ due).sum(1)
        total = 2 * hits + wrong
        rows.append(np.divide(2.0 * hits, total, out=np.full(n_subsets, np.nan), where=total > 0))
    return np.stack(rows)


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


def conformal_limit(known: Sequence[float], alpha: float) -> float:
    """The score that a batch must exceed for a p-value of at most alpha: the floor(alpha (m + 1))-th largest.

    While batches are exchangeable with the m known ones, a batch exceeds it with probability at most alpha,
    on average over the choice of the known ones.
    """
    return sorted(known, reverse=True)[math.floor(alpha * (len(known) + 1) + 1e-9) - 1]


def rate_bound(m: int, alpha: float, confidence: float = 0.95) -> float:
    """The rate of false alarms that m known batches, as they are, keep below with this confidence.

    The rate given the known batches has the distribution Beta(k, m + 1 - k), k = floor(alpha (m + 1)), or
    lies below it where scores tie: its quantile.

    References:
        Vovk (2012), "Conditional validity of inductive conformal predictors", arXiv:1209.2673.
    """
    rank = math.floor(alpha * (m + 1) + 1e-9)
    return float(scipy.stats.beta.ppf(confidence, rank, m + 1 - rank))


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
        scores: All so far: of known batches, which make the first bets sharper, and of watched ones.
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
    log_shares: tuple[float, ...] = (-math.log(len(POWERS)),) * len(POWERS)
    log_peak: float = 0.0

    def observe(self, score: float, u: float) -> "SequentialTest":
        """The test after one more batch.

        Args:
            score: Of the batch.
            u: Uniform in (0, 1], drawn for this batch alone: it breaks ties.
        """
        bag = sorted((*self.scores, score))
        after = bisect.bisect_right(bag, score)
        p = (len(bag) - after + u * (after - bisect.bisect_left(bag, score))) / len(bag)
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
        output_shifts: Of the outputs, one per batch; empty where these are not watched.
    """

    shifts: tuple[float, ...]
    n: int
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
    sequential: SequentialTest = SequentialTest()

    def __post_init__(self) -> None:
        batches_for(self.alpha)
        if self.asked is not None:
            check_name("rule of an alarm", self.asked, RULES)
        if self.threshold is None and self.asked == "threshold":
            raise InputError("the rule is 'threshold', but the threshold is missing; give one")
        if self.threshold and not (self.threshold.higher_is_shift and math.isfinite(self.threshold.value)):
            text = f"the threshold {self.threshold.value:g} is not a circuit shift"
            raise InputError(f"{text}, or of a score that falls with shift, such as confidence")

    @property
    def rule(self) -> str | None:
        """The rule that decides; None where there is nothing to decide by."""
        usual = "threshold" if self.threshold is not None else "conformal" if self.tests else None
        return self.asked or usual

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
        known, alpha, tests = self.calibration, self.alpha, self.tests
        if self.rule is None:
            return "No alarm is set: give a threshold, or calibrate on batches in distribution."
        m = len(known.shifts) if known else 0
        if self.rule == "sequential":
            text = f"The probability of any false alarm, over all batches together, is at most {alpha:g}"
            return f"{text}, if watched batches are exchangeable with the {m} known ones."
        if known is None:
            return "The rate of false alarms is unknown: no batches in distribution were measured."
        if self.rule == "threshold" and self.threshold is not None:
            raised = sum(map(self.threshold.alarm, known.shifts))
            ends = clopper_pearson(raised, m)
            text = f"{raised} of {m} batches of {known.n} images in distribution exceed the threshold"
            rate = f"{raised / m:.2g} false alarms per batch"
            return f"{text}: {rate}, 95 % interval {ends.low:.2g} to {ends.high:.2g}."
        bound = sum(rate_bound(m, level, 1 - 0.05 / len(tests)) for _, level in tests.values())
        text = f"A batch of {known.n} images raises a false alarm with probability at most {alpha:g}, if it "
        text += f"is exchangeable with the {m} known batches; for these known batches as they are, the rate "
        text += f"is below {min(bound, 1):.2g} with 95 % confidence."
        if len(tests) == 1:
            needed = f"{batches_for(alpha / 2)} known batches and known images of their own"
            text += f" Only the circuit's shift is tested: the outputs need {needed}."
        return text

    def calibrated(self, calibration: Calibration) -> "AlarmRules":
        """The rules once known batches were measured."""
        test = SequentialTest(scores=calibration.shifts)
        return replace(self, calibration=calibration, sequential=test)

    def after(self, shift: float, index: int) -> "AlarmRules":
        """The rules after one more batch, whose number is `index`."""
        # In (0, 1]: exactly 0 would make a p-value of 0.
        tie = 1 - float(stream(self.seed, f"monitor/tie/{index}").random())
        return replace(self, sequential=self.sequential.observe(shift, tie))

    def verdict(self, shift: float, output_shift: float = math.nan) -> dict[str, Any]:
        """What the rules say of the batch that was the last to be taken, by the names of a `Reading`.

        Args:
            shift: Of its circuit.
            output_shift: Of its outputs, where they are watched.

        Raises:
            InputError: For the conformal rule without known batches.
        """
        values = {CIRCUIT: shift, OUTPUTS: output_shift}
        p_values = {name: conformal_p_value(known, values[name]) for name, (known, _) in self.tests.items()}
        e_value: float | None = math.exp(min(self.sequential.log_capital, 700.0))
        decision: tuple[Any, ...] = ("", None, None, None)
        if self.rule == "sequential":
            decision = ("e-value", e_value, 1 / self.alpha, self.sequential.alarm(self.alpha))
        elif self.rule == "threshold" and self.threshold is not None:
            decision = (CIRCUIT, shift, self.threshold.value, self.threshold.alarm(shift))
        elif p_values:
            name = min(p_values, key=lambda each: p_values[each])
            decision = (name, values[name], self.limits[name], values[name] > self.limits[name])
        elif self.rule is not None:
            raise InputError("the conformal rule needs known batches; call calibrate() first")
        found = dict(zip(("decided_by", "value", "limit", "alarm"), decision, strict=True))
        found |= {"p_value": p_values.get(CIRCUIT), "output_p_value": p_values.get(OUTPUTS)}
        watched = self.calibration is not None or self.rule == "sequential"
        return found | {"e_value": e_value if watched else None}
