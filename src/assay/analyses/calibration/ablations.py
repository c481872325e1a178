"""Is it one number for all ways to ablate the rest of the model?"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Real, Shaped

from assay.analyses.calibration.gate import Draft, gate
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.samples import (
    FEWEST_AT_A_THIRD,
    cautious_alpha,
    circuit_flags,
    inner_metric,
    limits,
    sample,
)
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, n_to_settle
from assay.stats import (
    RatioOfSums,
    coefficient_of_variation,
    delta_interval,
    fieller_interval,
    ratio_of,
    skewed_mean_interval,
)
from assay.stats.skewed_mean import FEWEST_FOR_MEANS


_DIVERGENCE = Rule(pass_at=0.20, higher=False)
_GAP = ratio_of("difference", "full")
IntervalOfMean = Callable[..., Interval]  # of the value, its linearised form and a level
_ONE_ABLATION = ("It needs the circuit under at least two ablations.", "Measure another ablation.")


def _compare_methods(
    code: str,
    y_full: Real[np.ndarray, " n"],
    y_circuit: Mapping[str, Real[np.ndarray, "n ..."]],
    expected: tuple[str, ...],
    *,
    inner: str,
    unit_id: Shaped[np.ndarray, " n"] | None,
    odd: tuple[str, ...],
) -> Verdict:
    """Both gates on ablation methods: the value is the divergence, larger is worse."""
    statistic = inner_metric(inner)
    tables = {name: np.asarray(values, dtype=np.float64) for name, values in y_circuit.items()}
    usable = {name: values for name, values in tables.items() if np.isfinite(values).any() or not len(values)}
    lost = set(tables) - set(usable)
    if len(tables) < len(expected):
        lost |= set(expected) - set(tables)
    draft = Draft(
        thresholds=limits(_DIVERGENCE),
        warnings=odd + (("method_missing",) if lost else ()),
        details={"metric": code, "methods": sorted(usable), "missing": sorted(lost)},
    )
    if len(usable) < 2:
        return draft.undefined("not_applicable")
    data = sample(unit_id, y_full=y_full, **{f"y_circuit of {name}": each for name, each in usable.items()})
    draft.warnings += data.warnings
    draft.details |= data.counts
    if reason := data.missing():
        return draft.undefined(reason)
    full, *runs = data.vectors
    draws = {name: run.reshape(data.n, -1) for name, run in zip(usable, runs, strict=True)}
    circuits = {name: each.mean(axis=1) for name, each in draws.items()}
    scores = {
        name: float(statistic.of_sums(np.array([each.sum(), full.sum()]), data.n))
        for name, each in circuits.items()
    }
    if spreads := _spread_of_draws(statistic, draws, full):
        draft.details["spread_of_draws"] = spreads
    draft.values |= scores
    if any(math.isnan(score) for score in scores.values()):
        return draft.undefined("zero_denominator")
    found = _by_pairs(_compared(statistic, scores, circuits, full), draft, missing=bool(lost))
    return _unless_near_zero(found, statistic, np.mean(list(circuits.values()), axis=0), full)


def _unless_near_zero(
    verdict: Verdict,
    statistic: RatioOfSums,
    circuit: Float64[np.ndarray, " n"],
    full: Float64[np.ndarray, " n"],
) -> Verdict:
    """Open in place of a pass, unless the mean over the methods is proven to lie more than 0.20 from 0.

    Scores nearer 0 would agree whatever the ablation does. Where the mean is further from 0 and no pair
    differs by as much, no score is 0 and all have one sign.
    """
    value = float(statistic.of_sums(np.array([circuit.sum(), full.sum()]), len(full)))
    verdict = replace(verdict, values={**verdict.values, "average": value})
    if verdict.status != "pass":
        return verdict
    level = 1 - 2 * cautious_alpha(len(full), FEWEST_FOR_MEANS)
    interval = _bounds(statistic.offset * full + statistic.scale * circuit, full, level)
    details = {**verdict.details, "average": interval.to_dict()}
    limit = _DIVERGENCE.pass_at
    if interval.defined and _least(interval) > limit:
        return replace(verdict, details=details)
    needed = None if abs(value) <= limit else n_to_settle(len(full), value, interval, -limit, limit)
    return replace(verdict, status="inconclusive", reason="near_zero", n_needed=needed, details=details)


def _spread_of_draws(
    statistic: RatioOfSums, draws: Mapping[str, Float64[np.ndarray, "n _"]], full: Float64[np.ndarray, " n"]
) -> dict[str, float]:
    """Standard deviation over draws of the score of each method that has several."""
    spreads = {}
    for name, each in draws.items():
        count = each.shape[1]
        if count > 1:
            sums = np.stack([each.sum(axis=0), np.full(count, full.sum())], 1)
            spreads[name] = float(statistic.of_sums(sums, len(full)).std(ddof=1))
    return spreads


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Differences of the scores of all pairs of methods.

    Attributes:
        n: Units.
        names: Of the pairs.
        gaps: First score less second.
        narrow, strict: Bounds of the gaps at the level of a pass, which needs all pairs, and at that of a
            fail, which needs one.
        student: Published intervals.
        levels: One-sided, of a pass and of a fail.
    """

    n: int
    names: list[tuple[str, str]]
    gaps: list[float]
    narrow: list[Interval]
    strict: list[Interval]
    student: list[Interval]
    levels: dict[str, float]

    @property
    def bounded(self) -> bool:
        return all(each.defined for each in (*self.narrow, *self.strict))

    @property
    def flat(self) -> bool:
        """Whether no prompt differs from another in any pair."""
        return all(each.reason == "degenerate" for each in self.narrow)

    @property
    def interval(self) -> Interval:
        """Interval of the divergence: one difference beyond the limit is enough to fail, a pass needs all."""
        return replace(
            self.narrow[0],
            low=max(_least(each) for each in self.strict),
            high=max(max(abs(each.low), abs(each.high)) for each in self.narrow),
            level=ONE_SIDED_95,  # what it is good for, at the level that makes it so
            reason=None,
        )

    @property
    def details(self) -> dict[str, Any]:
        return {
            "pair": list(self.names[int(np.abs(self.gaps).argmax())]),
            "levels": self.levels,
            "pairs": {
                f"{a} - {b}": {"difference": gap, "interval": each.to_dict()}
                for (a, b), gap, each in zip(self.names, self.gaps, self.student, strict=True)
            },
        }


def _compared(
    statistic: RatioOfSums,
    scores: Mapping[str, float],
    circuits: Mapping[str, Float64[np.ndarray, " n"]],
    full: Float64[np.ndarray, " n"],
) -> _Pairs:
    """All pairs of methods, with bounds of their differences."""
    names = list(itertools.combinations(scores, 2))
    alpha = cautious_alpha(len(full), FEWEST_FOR_MEANS)
    level, strict_level = 1 - 2 * alpha, 1 - 2 * alpha / len(names)
    differences = [statistic.scale * (circuits[a] - circuits[b]) for a, b in names]
    return _Pairs(
        n=len(full),
        names=names,
        gaps=[scores[a] - scores[b] for a, b in names],
        narrow=[_bounds(each, full, level) for each in differences],
        strict=[_bounds(each, full, strict_level) for each in differences],
        student=[_bounds(each, full, ONE_SIDED_95, delta_interval) for each in differences],
        levels={"pass": (1 + level) / 2, "fail": (1 + strict_level) / 2},
    )


def _by_pairs(pairs: _Pairs, draft: Draft, *, missing: bool) -> Verdict:
    """Both judgements of the divergence; open where a method is missing."""
    scores = [float(score) for score in draft.values.values() if score is not None]
    divergence = max(scores) - min(scores)
    draft.values |= {
        "divergence": divergence,
        "coefficient_of_variation": coefficient_of_variation(np.array(scores)).value,
    }
    draft.warn("unstable_denominator", pairs.narrow[0].method == "fieller")
    few = pairs.n < FEWEST_AT_A_THIRD
    if not pairs.bounded and not missing and not few:
        return draft.undefined("unbounded")
    draft.warn("zero_variance", pairs.flat)
    draft.details |= pairs.details
    status, reason, needed = _DIVERGENCE.rigorous(pairs.interval), None, None
    if missing:
        status, reason = "inconclusive", "method_missing"
    elif few and not pairs.flat:
        status, reason, needed = "inconclusive", "too_few", FEWEST_AT_A_THIRD
    elif status == "inconclusive":
        needed = _n_needed(pairs)
        if max(_least(each) for each in pairs.narrow) > _DIVERGENCE.pass_at:
            reason = "stricter_level"
    return Verdict(
        status=status,
        published=_DIVERGENCE.published(divergence),
        interval=pairs.interval if pairs.bounded else None,
        n_needed=needed,
        reason=reason,
        **vars(draft),
    )


def _least(interval: Interval) -> float:
    """The smallest distance from 0 of a number in the interval."""
    return max(interval.low, -interval.high, 0.0)


def _n_needed(pairs: _Pairs) -> int | None:
    """Prompts that would settle an open verdict at the present spread; None with a pair on the limit.

    One difference beyond the limit is enough to fail, so the clearest of them counts; with none beyond it,
    every pair has to pass, so the last of them does.
    """
    limit = _DIVERGENCE.pass_at
    failing = [
        n_to_settle(pairs.n, gap, each, math.copysign(limit, gap))
        for gap, each in zip(pairs.gaps, pairs.strict, strict=True)
        if abs(gap) > limit
    ]
    if failing:
        return min((each for each in failing if each is not None), default=None)
    passing = [
        n_to_settle(pairs.n, gap, each, -limit, limit)
        for gap, each in zip(pairs.gaps, pairs.narrow, strict=True)
    ]
    return None if None in passing else max(each for each in passing if each is not None)


def _bounds(
    difference: Float64[np.ndarray, " n"],
    full: Float64[np.ndarray, " n"],
    level: float,
    interval_of: IntervalOfMean = skewed_mean_interval,
) -> Interval:
    """Interval of the sum of differences over the sum of the full model's values; Fieller's near 0."""
    table = np.stack([difference, full])
    if _GAP.unstable(table):
        return fieller_interval(difference, full, level=level)
    return interval_of(float(difference.sum() / full.sum()), _GAP.linearised(table), level=level)


@gate(
    key="ablation-invariance",
    code="M98",
    name="Ablation invariance",
    criterion="Method Robustness",
    question="Is the score the same whether the rest is set to zero, to its mean, or to another prompt's?",
    on_pass="The score needs no caveat about the ablation.",
    on_fail="State the ablation with every number; do not call the circuit sufficient.",
    weakness="The largest of three noisy differences is biased upwards: at 10 prompts with a spread of 0.5 "
    "identical methods diverge in two thirds of cases.",
    number=Quantity(
        label="widest gap between two ablations",
        value="divergence",
        published="divergence",
        higher=False,
        least=0.0,
    ),
    reasons={"not_applicable": _ONE_ABLATION},
)
def ablation_invariance(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Mapping[str, Real[np.ndarray, "n ..."]],
    *,
    inner: str = "faithfulness",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    circuit_size: int | None = None,
    n_heads: int | None = None,
) -> Verdict:
    """Whether the score is the same under several ablations, within 0.20.

    Published: largest less smallest score below 0.20. With confidence: the same number against the same
    limit, bounded by the outermost of Student's and Hall's ends. The upper bound is that of the widest
    paired difference at 95 %, since a pass needs all pairs; the lower one is at 5 % over the number of pairs,
    since a fail needs one.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: By method, of the circuit as `inner` says, `[n]`, or `[n, draws]` to be averaged, such as
            the donors; usually `zero`, `mean`, `resample-donor`.
        inner: `faithfulness` or `completeness`.
        unit_id: Prompts that belong together.
        circuit_size: Heads in the circuit, for the flags of odd circuits.
        n_heads: Heads of the model.

    Returns:
        Not applicable below two methods. A method without a finite run is left out, and without all three the
        verdict is open (`method_missing`); the published rule judges the rest. Open below 5 prompts or units
        (`too_few`) unless nothing varies; below 20 bounds are taken at a third of 5 %. Where the sum over the
        full model is near 0 intervals are Fieller's, undefined where `unbounded`. `stricter_level`: a pair
        lies beyond the limit at the level of a pass, and not at that of a fail; `details["levels"]` has both.
        `n_needed` is the number of prompts at which the clearest of the differences beyond 0.20 would fail
        or, with none beyond, the last of them pass. `details["pairs"]` has Student's interval of each
        difference.

    References:
        Schuirmann (1987), doi:10.1007/BF01068419 (two one-sided tests); Hall (1992),
        doi:10.1111/j.2517-6161.1992.tb01876.x; Fieller (1954).
    """
    return _compare_methods(
        "M98.ablation_invariance",
        y_full,
        y_circuit,
        ("zero", "mean", "resample-donor"),
        inner=inner,
        unit_id=unit_id,
        odd=circuit_flags(circuit_size, n_heads),
    )


@gate(
    key="method-invariance",
    code="E1b",
    name="Method invariance",
    criterion="E1b Method Invariance",
    question="Is the score the same whether the rest is set to zero, to its mean, or perturbed by noise?",
    on_pass="The score needs no caveat about the ablation.",
    on_fail="State the ablation with every number; often zero and mean move the model while noise does not.",
    weakness="Additive noise leaves the signal in place, so its score is an upper reference, often near 1.",
    number=Quantity(
        label="1 less the widest gap between two ablations",
        value="method_invariance",
        published="method_invariance",
        most=1.0,
    ),
    reasons={"not_applicable": _ONE_ABLATION},
)
def method_invariance(
    y_full: Real[np.ndarray, " n"],
    y_circuit: Mapping[str, Real[np.ndarray, "n ..."]],
    *,
    inner: str = "faithfulness",
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    circuit_size: int | None = None,
    n_heads: int | None = None,
) -> Verdict:
    """As `ablation_invariance` with `zero`, `mean`, `noise-additive`: one less the divergence, above 0.8.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: By method, `[n]`, or `[n, draws]` to be averaged, such as five draws of noise.
        inner: `faithfulness` or `completeness`.
        unit_id: Prompts that belong together.
        circuit_size: Heads in the circuit, for the flags of odd circuits.
        n_heads: Heads of the model.

    Returns:
        As there; value, interval and thresholds are one less those of the divergence.
    """
    found = _compare_methods(
        "E1b.method_invariance",
        y_full,
        y_circuit,
        ("zero", "mean", "noise-additive"),
        inner=inner,
        unit_id=unit_id,
        odd=circuit_flags(circuit_size, n_heads),
    )
    values = dict(found.values)
    if (divergence := values.get("divergence")) is not None:
        values["method_invariance"] = 1 - divergence
    limit, gap = 1 - _DIVERGENCE.pass_at, found.interval
    return replace(
        found,
        values=values,
        thresholds={"pass": limit, "fail": limit},
        interval=None if gap is None else replace(gap, low=1 - gap.high, high=1 - gap.low),
    )
