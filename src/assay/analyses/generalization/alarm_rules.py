"""The rules of a monitor: which of them a batch breaks, before and after known batches were measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from assay.analyses.generalization.alarms import (
    Calibration,
    ConformalAlarm,
    Guarantee,
    SequentialTest,
    batches_for,
    check_alpha,
    guarantee,
)
from assay.analyses.generalization.thresholds import Threshold
from assay.core.errors import InputError, unknown_name
from assay.core.random import stream


RULES = ("threshold", "conformal", "sequential")
MOST_BATCHES = 100  # known ones, unless more are asked for


@dataclass(frozen=True, kw_only=True)
class RuleVerdict:
    """What the rules say of a batch; attributes as in `Reading`."""

    alarm: bool | None
    alarms: Mapping[str, bool]
    p_value: float | None
    e_value: float | None


@dataclass(frozen=True, kw_only=True)
class AlarmRules:
    """The rules of a monitor at some point of its stream.

    Attributes:
        asked: The rule that is to decide; None: the threshold if there is one, else conformal.
        threshold: Of the threshold rule, if there is one.
        alpha: Level of the other two, in (0, 1).
        seed: Of the draws that break ties.
        calibration: Known batches, if any.
        sequential: The test after the batches so far.

    Raises:
        InputError: For an `alpha` that is not a probability.
        UnknownNameError: For another rule.
    """

    asked: str | None
    threshold: Threshold | None
    alpha: float
    seed: int
    calibration: Calibration | None = None
    sequential: SequentialTest = field(default_factory=lambda: SequentialTest.start(()))

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.asked is not None and self.asked not in RULES:
            raise unknown_name("rule of an alarm", self.asked, RULES)

    @property
    def rule(self) -> str | None:
        """The rule that decides; None where there is nothing to decide by."""
        if self.asked is not None:
            return self.asked
        if self.threshold is not None:
            return "threshold"
        return None if self.conformal is None else "conformal"

    @cached_property
    def conformal(self) -> ConformalAlarm | None:
        """The conformal alarm; None without known batches, or with too few for `alpha`."""
        if self.calibration is None or len(self.calibration.shifts) < batches_for(self.alpha):
            return None
        return ConformalAlarm(known=self.calibration.statistics, alpha=self.alpha)

    @property
    def guarantee(self) -> Guarantee:
        """How often the rule in force raises a false alarm, and what that rests on."""
        return guarantee(self.rule, self.threshold, self.calibration, self.alpha)

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
            wanted = "" if asked is None else f", {asked} asked for"
            why = f"alpha {self.alpha:g} needs" if conformal else "calibration needs"
            raise InputError(
                f"{n} images in distribution give {most} batches of {size}{wanted}; {why} at "
                f"least {needed}. Give {max(needed, m) * size} images or more besides those of the "
                f"reference circuit, smaller batches, or {'a larger alpha' if conformal else 'fewer of them'}"
            )
        return m

    def calibrated(self, calibration: Calibration) -> "AlarmRules":
        """The rules once known batches were measured."""
        start = SequentialTest.start(calibration.statistics)
        return replace(self, calibration=calibration, sequential=start)

    def after(self, statistic: float, index: int) -> "AlarmRules":
        """The rules after one more batch, whose number is `index`."""
        # In (0, 1]: exactly 0 would make a p-value of 0.
        tie = 1 - float(stream(self.seed, f"monitor/tie/{index}").random())
        return replace(self, sequential=self.sequential.observe(statistic, tie))

    def verdict(self, statistic: float) -> RuleVerdict:
        """What the rules say of the batch that was the last to be taken.

        Raises:
            InputError: For the conformal rule without known batches.
        """
        alarms, conformal = {}, self.conformal
        if self.threshold is not None:
            alarms["threshold"] = self.threshold.alarm(statistic)
        if conformal is not None:
            alarms["conformal"] = conformal.alarm(statistic)
        elif self.asked == "conformal":
            raise InputError("the conformal rule needs known batches; call calibrate() first")
        e_value = None
        if self.calibration is not None or self.asked == "sequential":
            alarms["sequential"] = self.sequential.alarm(self.alpha)
            e_value = math.exp(min(self.sequential.log_capital, 700.0))
        return RuleVerdict(
            alarm=None if self.rule is None else alarms[self.rule],
            alarms=alarms,
            p_value=None if conformal is None else conformal.p_value(statistic),
            e_value=e_value,
        )
