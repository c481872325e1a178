"""How far the scores of a circuit's heads lie from those of the others: d' and AUROC of heads like these."""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.calibration._tables import mirrored, percentile_bounds
from assay.analyses.calibration.gate import gate_stream, undefined
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.stats import auroc, clopper_pearson, d_prime, outermost, studentized_interval
from assay.stats.detection import NO_SPREAD


N_BOOT = 999
FEWEST_HEADS = 5  # on a side, below which nothing is said about heads like these
FEWEST_TO_PASS = 15  # on a side; with fewer, skewed scores at the threshold pass too often
_D_PRIME = Rule(pass_at=1.0)


def without_input() -> Verdict:
    return undefined("not_applicable", values={"value": None})


def _d_primes(
    inside: Float64[np.ndarray, "draws n"], outside: Float64[np.ndarray, "draws m"]
) -> tuple[Float64[np.ndarray, " draws"], Float64[np.ndarray, " draws"]]:
    """D' of each row and its standard error from influence values, NaN where nothing varies.

    The influence of a score x inside is (x - m) / S - d' ((x - m)^2 - s^2) / (4 S^2), S^2 the mean of both
    variances; outside the first term has the other sign.
    """
    sides = (inside, outside)
    centred = [side - side.mean(axis=1, keepdims=True) for side in sides]
    variances = [(side**2).sum(axis=1, keepdims=True) / (side.shape[1] - 1) for side in centred]
    pooled = np.sqrt((variances[0] + variances[1]) / 2)
    pooled = np.where(pooled > NO_SPREAD, pooled, np.nan)
    distance = (inside.mean(axis=1) - outside.mean(axis=1))[:, None] / pooled
    squared = np.zeros(len(inside))
    for sign, side, variance in zip((1, -1), centred, variances, strict=True):
        influence = sign * side / pooled - distance * (side**2 - variance) / (4 * pooled**2)
        squared += influence.var(axis=1, ddof=1) / side.shape[1]
    return distance[:, 0], np.sqrt(squared)


def _areas(
    inside: Float64[np.ndarray, "draws n"], outside: Float64[np.ndarray, "draws m"]
) -> tuple[Float64[np.ndarray, " draws"], Float64[np.ndarray, " draws"]]:
    """AUROC of each row and its standard error from the share of the other side that a score exceeds.

    References:
        DeLong, DeLong and Clarke-Pearson (1988), doi:10.2307/2531595.
    """
    n, m = inside.shape[1], outside.shape[1]
    ranks = scipy.stats.rankdata(np.concatenate([inside, outside], axis=1), axis=1)
    above = (ranks[:, :n] - scipy.stats.rankdata(inside, axis=1)) / m
    below = 1 - (ranks[:, n:] - scipy.stats.rankdata(outside, axis=1)) / n
    squared = above.var(axis=1, ddof=1) / n + below.var(axis=1, ddof=1) / m
    return above.mean(axis=1), np.sqrt(squared)


def _too_few(inside: Float64[np.ndarray, " _"], outside: Float64[np.ndarray, " _"]) -> str | None:
    """Why two groups of heads say nothing about others like them, if so."""
    fewest = min(len(inside), len(outside))
    return None if fewest >= FEWEST_HEADS else "too_few" if fewest < 2 else "too_few_heads"


def _of_heads_like_these(
    verdict: Verdict, inside: Float64[np.ndarray, " _"], outside: Float64[np.ndarray, " _"]
) -> Verdict:
    """A verdict on two groups of heads; with few heads on a side it cannot be a pass."""
    few = min(len(inside), len(outside)) < FEWEST_TO_PASS
    if verdict.status in ("pass", "moderate") and few:
        verdict = replace(verdict, status="inconclusive", reason="too_few_heads")
    return replace(verdict, n_needed=None)  # there are no more heads


def _judged_distance(
    inside: Float64[np.ndarray, " _"],
    outside: Float64[np.ndarray, " _"],
    *,
    rng: np.random.Generator,
    n_boot: int,
    level: float,
) -> Verdict:
    """D' above 1: bootstrap-t within each group, no narrower than percentiles and their mirror image."""
    value = d_prime(inside, outside)
    if not value.defined:
        return undefined(value.reason or "undefined", values={"value": None})
    reason = _too_few(inside, outside)
    if reason:
        interval = undefined_interval(level, "bootstrap-t", reason)
    else:
        error = float(_d_primes(inside[None], outside[None])[1][0])
        rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
        replicates, errors = _d_primes(inside[rows], outside[columns])
        percentiles = percentile_bounds(value.value, replicates, level=level)
        interval = outermost(
            studentized_interval(
                value.value, error, replicates, errors, level=level, low_tail=_pass_tail(level)
            ),
            percentiles,
            mirrored(value.value, percentiles),
        )
    n = len(inside) + len(outside)
    return _of_heads_like_these(_D_PRIME.judge(value.value, interval, n), inside, outside)


def _pass_tail(level: float) -> float:
    """Nominal error of a bound that has to lie above a threshold.

    A fifth of what is promised: where the rare scores of a side lie below the others, fifteen heads seldom
    hold one of them, and the bound lies too high more often than it says.
    """
    return (1 - level) / 2 / 5


def _judged_area(
    scores: Float64[np.ndarray, " H"], members: Bool[np.ndarray, " H"], rng: np.random.Generator, n_boot: int
) -> Verdict:
    """AUROC above 0.85 passes, above 0.7 is moderate: Student bounds of its logit, or percentiles."""
    rule = Rule(pass_at=0.85, fail_at=0.7)
    value = auroc(scores, members)
    if not value.defined:
        return undefined(value.reason or "undefined", values={"value": None})
    inside, outside = scores[members], scores[~members]
    level, fewest = ONE_SIDED_95, min(len(inside), len(outside))
    area, reason = value.value, _too_few(inside, outside)
    if area in (0.0, 1.0):
        # Perfect order leaves nothing to resample. Disjoint pairs of a member and another head are
        # independent, so their share is binomial: its exact bounds hold for any number of them.
        exact = clopper_pearson(round(area) * fewest, fewest, level=level)
        return replace(rule.judge(area, exact, len(scores)), n_needed=None)
    if reason:
        return replace(
            rule.judge(area, undefined_interval(level, "logit", reason), len(scores)), n_needed=None
        )
    error = float(_areas(inside[None], outside[None])[1][0]) / (area * (1 - area))
    logit = math.log(area / (1 - area))
    ends = [
        float(scipy.special.expit(logit + float(scipy.stats.t.ppf(tail, fewest - 1)) * error))
        for tail in (_pass_tail(level), (1 + level) / 2)
    ]
    rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
    interval = outermost(
        Interval(low=ends[0], high=ends[1], level=level, method="logit"),
        percentile_bounds(area, _areas(inside[rows], outside[columns])[0], level=level),
    )
    return _of_heads_like_these(rule.judge(area, interval, len(scores)), inside, outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """Compares scores of the circuit's heads with those of the others, each row with a stream of its own."""

    members: Bool[np.ndarray, " H"]
    n_boot: int
    task: str
    seed: int

    def stream(self, row: str) -> np.random.Generator:
        return gate_stream("C14", f"{self.task}/{row}", seed=self.seed)

    def split(
        self, column: Float64[np.ndarray, " H"]
    ) -> tuple[Float64[np.ndarray, " _"], Float64[np.ndarray, " _"]]:
        """Scores inside and outside."""
        usable = np.isfinite(column)
        return column[self.members & usable], column[~self.members & usable]

    def distance(
        self, column: Float64[np.ndarray, " H"] | None, row: str, *, level: float = ONE_SIDED_95
    ) -> Verdict:
        """D' of a column."""
        if column is None:
            return without_input()
        if not self.members.any() or self.members.all():
            return undefined("no_others" if self.members.any() else "no_members", values={"value": None})
        if not np.isfinite(column).any():
            return undefined("no_valid_prompt", values={"value": None})
        return _judged_distance(*self.split(column), rng=self.stream(row), n_boot=self.n_boot, level=level)

    def with_other_forms(self, verdict: Verdict, column: Float64[np.ndarray, " H"] | None) -> Verdict:
        """The verdict on d' with its other definitions beside it, where it is defined."""
        if column is None or verdict.values["value"] is None:
            return verdict
        return replace(verdict, values={**verdict.values, **_other_forms(*self.split(column))})

    def area(self, column: Float64[np.ndarray, " H"] | None, row: str) -> Verdict:
        """AUROC of a column."""
        if column is None:
            return without_input()
        usable = np.isfinite(column)
        return _judged_area(column[usable], self.members[usable], self.stream(row), self.n_boot)


def _other_forms(
    inside: Float64[np.ndarray, " _"], outside: Float64[np.ndarray, " _"]
) -> dict[str, float | None]:
    """D' of magnitudes, and the published difference of the magnitudes of the means."""
    magnitudes = d_prime(np.abs(inside), np.abs(outside))
    pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    return {
        "d_prime_abs": magnitudes.value if magnitudes.defined else None,
        "d_prime_abs_means": float(abs(inside.mean()) - abs(outside.mean())) / pooled,
    }
