"""M98 and E1b: is it one number for all ways to ablate the rest of the model?"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Real

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate, named
from assay.analyses.calibration.samples import FEWEST_AT_A_THIRD, cautious_alpha, inner_metric, sample
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, n_to_settle
from assay.page.text import number
from assay.stats.intervals import FEWEST_FOR_MEANS


LIMIT = 0.20
_RULE = Rule(pass_at=LIMIT, higher=False)
_ONE = {"not_applicable": ("It needs the circuit under two ablations or more.", "Measure another ablation.")}
_LABEL = "widest gap between two ablations"
_DONORS, _NOISE = ("zero", "mean", "resample-donor"), ("zero", "mean", "noise-additive")

Runs = Mapping[str, Real[np.ndarray, "n ..."]]
Run = Real[np.ndarray, " n"]


def _compare(
    metric: str, y_full: Run, y_circuit: Runs, expected: Sequence[str], inner: str, how: Sampling
) -> Found:
    """What both gates find: the divergence, a larger one is worse, and of E1b one less it."""
    statistic = inner_metric(inner)
    tables = {name: np.asarray(values, dtype=np.float64) for name, values in y_circuit.items()}
    usable = {name: values for name, values in tables.items() if np.isfinite(values).any() or not len(values)}
    lost = set(tables) - set(usable) | (set(expected) - set(tables) if len(tables) < len(expected) else set())
    found = Found(details={"metric": metric, "methods": sorted(usable), "missing": sorted(lost)})
    found.warn(method_missing=bool(lost))
    found.stop_if(len(usable) < 2, "not_applicable")
    data = sample(
        how.unit_id, y_full=y_full, **{f"y_circuit of {name}": each for name, each in usable.items()}
    )
    found.warnings += data.warnings
    found.details |= data.counts
    found.stop_if(data.missing())
    n, full = data.n, data.vectors[0]
    draws = {name: run.reshape(n, -1) for name, run in zip(usable, data.vectors[1:], strict=True)}

    def scores_of(runs: Float64[np.ndarray, "n draws"]) -> Float64[np.ndarray, " draws"]:
        return statistic.of_sums(np.stack(np.broadcast_arrays(runs.sum(axis=0), full.sum()), axis=1), n)

    spreads = {name: float(scores_of(x).std(ddof=1)) for name, x in draws.items() if x.shape[1] > 1}
    found.details |= {"spread_of_draws": spreads} if spreads else {}
    circuits = {name: each.mean(axis=1) for name, each in draws.items()}
    scores = {name: float(scores_of(each[:, None])[0]) for name, each in circuits.items()}
    found.values |= scores
    found.stop_if(any(map(math.isnan, scores.values())), "zero_denominator")
    mean, divergence = np.mean(list(circuits.values()), axis=0), max(scores.values()) - min(scores.values())
    variation = stats.coefficient_of_variation(np.array(list(scores.values()))).value
    found.values |= {"divergence": divergence, "coefficient_of_variation": variation}
    found.values["average"] = average = float(scores_of(mean[:, None])[0])
    one_less = metric.startswith("E1b")
    found.values |= {"method_invariance": 1 - divergence} if one_less else {}
    pairs = list(itertools.combinations(scores, 2))
    gaps = [scores[a] - scores[b] for a, b in pairs]
    differences = [statistic.scale * (circuits[a] - circuits[b]) for a, b in pairs]
    # A pass needs all pairs, each at 5 %; a fail needs one, of as many.
    alpha = cautious_alpha(n, FEWEST_FOR_MEANS)
    tails = {"pass": alpha, "fail": alpha / len(pairs)}
    narrow, strict = ([_bounds(x, full, 1 - 2 * tail) for x in differences] for tail in tails.values())
    plain = [_bounds(each, full, ONE_SIDED_95, stats.delta_interval) for each in differences]
    found.warn(unstable_denominator=narrow[0].method == "fieller")
    bounded, few = all(each.defined for each in (*narrow, *strict)), n < FEWEST_AT_A_THIRD
    found.stop_if(not bounded and not lost and not few, "unbounded")
    flat = all(each.reason == "degenerate" for each in narrow)
    found.warn(zero_variance=flat)
    found.details |= _described(scores, plain, {name: 1 - tail for name, tail in tails.items()})
    low, high = max(map(_least, strict)), max(max(abs(each.low), abs(each.high)) for each in narrow)
    # What it is good for, at the level that makes it so.
    interval = replace(narrow[0], low=low, high=high, level=ONE_SIDED_95, reason=None)
    found.interval = interval if bounded else None
    found.published, found.status = _RULE.published(divergence), _RULE.rigorous(interval)
    if lost:
        found.open("method_missing")
    elif few and not flat:
        found.open("too_few", FEWEST_AT_A_THIRD)
    elif found.status == "inconclusive":
        beyond = max(map(_least, narrow)) > LIMIT
        found.open("stricter_level" if beyond else None, _n_needed(n, gaps, narrow, strict))
    elif found.status == "pass":
        near = _bounds(statistic.offset * full + statistic.scale * mean, full, 1 - 2 * alpha)
        _open_near_zero(found, average, near, n)
    if one_less and found.interval is not None:
        found.interval = replace(found.interval, low=1 - high, high=1 - low)
    return found


def _described(
    scores: Mapping[str, float], intervals: Sequence[Interval], levels: Mapping[str, float]
) -> dict[str, Any]:
    """The differences of all pairs of scores with their intervals, and which pair is furthest apart."""
    pairs = list(itertools.combinations(scores, 2))
    gaps = [scores[a] - scores[b] for a, b in pairs]
    pair = list(pairs[int(np.abs(gaps).argmax())])
    ends = " and ".join(number(scores[name]) for name in pair)
    told = {
        f"{a} - {b}": {"difference": gap, "interval": each.to_dict()}
        for (a, b), gap, each in zip(pairs, gaps, intervals, strict=True)
    }
    finding = f"Furthest apart: {named(pair)} ablation, with scores {ends}."
    return {"pair": pair, "finding": finding, "levels": levels, "pairs": told}


def _open_near_zero(found: Found, average: float, interval: Interval, n: int) -> None:
    """Leave a pass open unless the mean of the scores is proven to lie more than 0.20 from 0.

    Scores near 0 would agree whatever the ablation does. Where their mean is so far and no pair differs by as
    much, no score is 0 and all have one sign.
    """
    found.details["average"] = interval.to_dict()
    if not interval.defined or _least(interval) <= LIMIT:
        far = abs(average) > LIMIT
        found.open("near_zero", n_to_settle(n, average, interval, -LIMIT, LIMIT) if far else None)


def _least(interval: Interval) -> float:
    """The smallest distance from 0 of a number in the interval."""
    return max(interval.low, -interval.high, 0.0)


def _n_needed(n: int, gaps: list[float], narrow: list[Interval], strict: list[Interval]) -> int | None:
    """Prompts that would settle an open verdict at the present spread; None with a pair on the limit.

    One difference beyond the limit is enough to fail, so the clearest of them counts; with none beyond it,
    every pair has to pass, so the last of them does.
    """
    far = [(gap, each) for gap, each in zip(gaps, strict, strict=True) if abs(gap) > LIMIT]
    if far:
        failing = [n_to_settle(n, gap, each, math.copysign(LIMIT, gap)) for gap, each in far]
        return min((each for each in failing if each is not None), default=None)
    passing = [n_to_settle(n, gap, each, -LIMIT, LIMIT) for gap, each in zip(gaps, narrow, strict=True)]
    return None if None in passing else max(each for each in passing if each is not None)


def _bounds(
    difference: Run, full: Run, level: float, of_mean: Callable[..., Interval] = stats.skewed_mean_interval
) -> Interval:
    """Interval of the sum of differences over the sum of the full model's values; Fieller's near 0."""
    gap, table = inner_metric("faithfulness"), np.stack([difference, full])
    if gap.unstable(table):
        return stats.fieller_interval(difference, full, level=level)
    return of_mean(float(difference.sum() / full.sum()), gap.linearised(table), level=level)


@gate(
    code="M98",
    criterion="Method Robustness",
    question="Is the score the same whether the rest is set to zero, to its mean, or to another prompt's?",
    on_pass="The score needs no caveat about the ablation.",
    on_fail="State the ablation with every number; do not call the circuit sufficient.",
    weakness="The largest of noisy gaps is biased upwards: on 10 prompts equal methods often diverge.",
    number=Quantity(label=_LABEL, value="divergence", published="divergence", rule=_RULE),
    reasons=_ONE,
    sized=True,
    columns=lambda c: {"y_circuit": c.under(*_DONORS)},
    reads=("unit_id",),
)
def ablation_invariance(y_full: Run, y_circuit: Runs, *, inner: str = "faithfulness", how: Sampling) -> Found:
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
        how: What one observation is; nothing is drawn.

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
    return _compare("M98.ablation_invariance", y_full, y_circuit, _DONORS, inner, how)


@gate(
    code="E1b",
    criterion="E1b Method Invariance",
    question="Is the score the same whether the rest is set to zero, to its mean, or perturbed by noise?",
    on_pass="The score needs no caveat about the ablation.",
    on_fail="State the ablation with every number; often zero and mean move the model while noise does not.",
    weakness="Additive noise leaves the signal in place, so its score is an upper reference, often near 1.",
    number=Quantity(
        label=f"1 less the {_LABEL}",
        value="method_invariance",
        published="method_invariance",
        rule=Rule(pass_at=1 - LIMIT),
    ),
    reasons=_ONE,
    sized=True,
    columns=lambda c: {"y_circuit": c.under(*_NOISE)},
    reads=("unit_id",),
)
def method_invariance(y_full: Run, y_circuit: Runs, *, inner: str = "faithfulness", how: Sampling) -> Found:
    """As `ablation_invariance` with `zero`, `mean`, `noise-additive`: one less the divergence, above 0.8.

    Args:
        y_full: Logit difference of the full model.
        y_circuit: By method, `[n]`, or `[n, draws]` to be averaged, such as five draws of noise.
        inner: `faithfulness` or `completeness`.
        how: What one observation is; nothing is drawn.

    Returns:
        As there; value, interval and thresholds are one less those of the divergence.
    """
    return _compare("E1b.method_invariance", y_full, y_circuit, _NOISE, inner, how)
