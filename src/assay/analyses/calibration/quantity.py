"""Which number of a verdict is the one that was judged, how it is read, and what was decided about it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from assay.core.record import BRIEF, Record
from assay.core.verdict import Interval, Rule, Verdict


_WORST_FIRST = ("fail", "inconclusive", "moderate", "pass", "none")


@dataclass(frozen=True, kw_only=True)
class Judged(Record):
    """What was decided about one number, whole: pages and pictures need nothing else.

    Attributes:
        label: What the number is called.
        value: The number; None where it is undefined.
        published_value: The number that the published rule judges, where it is on the same scale.
        interval: Bounds on the scale of the value; None without finite ones.
        rule: Thresholds and direction; None for a reported number.
        status, published, reason: As those of `Verdict`.
        sentence: What the decision means.
        because: Why there is no verdict.
        remedy: What would give one.
        least, most: Ends of what the number can be; None without.
        unit: Distance from the first limit that counts as one.
        ratio: Whether a logarithmic axis suits the number.
        part: Sub-result that the number belongs to, if it is not the verdict's own.
    """

    label: str
    value: float | None
    published_value: float | None
    interval: Interval | None
    rule: Rule | None
    status: str
    published: str
    reason: str | None
    sentence: str = field(default="", metadata=BRIEF)
    because: str = field(default="", metadata=BRIEF)
    remedy: str = field(default="", metadata=BRIEF)
    least: float | None = None
    most: float | None = None
    unit: float = 1.0
    ratio: bool = False
    part: str = field(default="", metadata=BRIEF)

    @property
    def state(self) -> str:
        """The status, where `not applicable` and `undefined` are kept apart from `inconclusive`."""
        if self.status != "inconclusive":
            return self.status
        if self.reason == "not_applicable":
            return "not applicable"
        return "undefined" if self.value is None and self.reason else "inconclusive"

    @property
    def limits(self) -> tuple[float, ...]:
        """Thresholds, that of a pass first; empty without a rule."""
        return self.rule.limits if self.rule else ()

    def side(self, value: float | None) -> str:
        """Where a number lies by the rule; empty without either."""
        return "" if value is None or self.rule is None else self.rule.side(value)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that a gate, or a part of one, judges.

    Attributes:
        label: What the number is called.
        value: Entry of `Verdict.values` that the interval belongs to.
        published: Entry that the published rule judges; None where it judges something on another scale.
        limit: Entry of `Verdict.thresholds` that a pass has to clear; the entry `fail` is that of a fail.
        higher: Whether larger numbers pass.
        strict: Whether the limit itself does not pass.
        open_ended: Whether no number is a fail with confidence, as of the p of a test.
        two_sided: Whether a p at the other end, of the opposite claim, is a fail all the same.
        least, most: Ends of what the number can be; None without.
        ratio: Whether the number is a ratio, better seen on a logarithmic axis.
        unit: Distance from a limit of 0 that is worth speaking of; None: the limit itself is the unit.
        qualified_by: Entry of `Verdict.details` that completes the label, e.g. a field that groups prompts.
    """

    label: str
    value: str = "value"
    published: str | None = "value"
    limit: str = "pass"
    higher: bool = True
    strict: bool = True
    open_ended: bool = False
    two_sided: bool = False
    least: float | None = None
    most: float | None = None
    ratio: bool = False
    unit: float | None = None
    qualified_by: str = ""

    def of(self, verdict: Verdict) -> Judged:
        """The number with its interval, its limits and what was decided."""
        rule, interval = self._rule(verdict.thresholds), verdict.interval
        finite = interval is not None and math.isfinite(interval.low) and math.isfinite(interval.high)
        by = verdict.details.get(self.qualified_by)
        qualifier = f" ({'as given' if by == 'given' else f'by {by}'})" if by else ""
        return Judged(
            label=self.label + qualifier,
            value=_finite(verdict.values, self.value),
            published_value=None if self.published is None else _finite(verdict.values, self.published),
            interval=interval if finite else None,
            rule=rule,
            status=verdict.status,
            published=verdict.published,
            reason=verdict.reason,
            least=self.least,
            most=self.most,
            unit=self.unit or abs((rule.pass_at if rule else 0.0) or 1.0),
            ratio=self.ratio,
        )

    def _rule(self, thresholds: Mapping[str, float | None]) -> Rule | None:
        pass_at, fail_at = _finite(thresholds, self.limit), _finite(thresholds, "fail")
        if pass_at is None:
            return None
        if self.open_ended:
            fail_at = 1 - pass_at if self.two_sided else None
        return Rule(
            pass_at=pass_at,
            fail_at=None if fail_at == pass_at else fail_at,
            higher=self.higher,
            strict=self.strict,
            open_ended=self.open_ended,
        )


def _finite(numbers: Mapping[str, float | None], name: str) -> float | None:
    value = numbers.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def deciding(parts: Mapping[str, Verdict], names: Sequence[str]) -> str:
    """The part that decides, where a verdict is the worst of several: of the worst status, the first."""
    known = [name for name in names if name in parts and parts[name].reason != "not_applicable"]
    return min(known, key=lambda name: _WORST_FIRST.index(parts[name].status), default="")
