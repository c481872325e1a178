"""The rows of C14: what each kind of score says about a circuit's heads against the others."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Undetermined, gate_stream
from assay.analyses.calibration.samples import ALPHA, mirrored, percentile_bounds
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.discovery.heads.membership import set_overlap
from assay.discovery.heads.weights import edge_test, member_ratio
from assay.stats.agreement import NO_SPREAD


FEWEST_FOR_RATIOS = 20  # prompts
_D_PRIME, _AUC = Rule(pass_at=1.0), Rule(pass_at=0.85, fail_at=0.7)

Scores = Float64[np.ndarray, " H"]
Flags = Bool[np.ndarray, " H"]
Draws = Float64[np.ndarray, "draws _"]
Statistic = Float64[np.ndarray, " draws"]
Given = Mapping[str, Any]  # arguments of `derived_metrics` by name, and the `level` of what decides


def _missing(members: Flags) -> str | None:
    """Why there is nothing to compare, if so."""
    return "no_members" if not members.any() else "no_others" if members.all() else None


def _sides(column: Scores, given: Given) -> tuple[Any, Any]:
    """Finite scores inside and outside the circuit."""
    members, usable = given["members"], np.isfinite(column)
    return column[members & usable], column[~members & usable]


# ---- reported, counted or forwarded -------------------------------------------------------------------


def _reported(value: float | None, reason: str, **more: Any) -> Found:
    """A number without a threshold."""
    if value is None or math.isnan(value):
        raise Undetermined(reason)
    return Found(values={"value": float(value), **more})


def _mean(column: Any, reason: str) -> Found:
    return _reported(column.mean() if len(column) else None, reason)


def _mean_inside(column: Scores, given: Given) -> Found:
    return _mean(_sides(column, given)[0], "no_members")


def _mean_outside(column: Scores, given: Given) -> Found:
    return _mean(_sides(column, given)[1], "no_others")


def _ratio(column: Scores, given: Given) -> Found:
    return _reported(member_ratio(column, given["members"]), _missing(given["members"]) or "zero_denominator")


def _norms(column: Scores, given: Given) -> Found:
    found = _ratio(column, given)
    found.details |= {"notable": True} if (found.values["value"] or 0.0) > 1.5 else {}
    return found


def _others_above(column: Scores, given: Given) -> Found:
    inside, outside = _sides(column, given)
    distance = stats.d_prime(outside, inside)
    empty = "no_members" if not len(inside) else "no_others" if not len(outside) else None
    return _reported(distance.value, empty or distance.reason or "undefined")


def _importance(losses: Float64[np.ndarray, " k"], given: Given) -> Found:
    known = losses[np.isfinite(losses)]
    found = _mean(known, "no_members")
    essential = float((known > 0.05).sum())  # of faithfulness
    found.values |= {"n_essential": essential, "min": float(known.min()), "max": float(known.max())}
    return found


def _composed(table: Any, given: Given) -> Found:
    """Welch's p of a difference in either direction; a pass with confidence needs edges that compose more."""
    test = edge_test(table, tuple(given["head_edges"]), n_heads=given["n_heads"], seed=given["seed"])
    found = Found(published="pass" if test.p_value < ALPHA else "fail", details=test.to_dict())
    found.stop_if(test.reason)
    found.values = {"value": test.p_value, "statistic": test.statistic}
    clear, less = test.permutation_p < ALPHA, test.statistic < 0
    found.status = "pass" if clear and not less else "inconclusive"
    found.reason = "composes_less" if clear and less else None
    return found


def _forwarded(estimate: stats.Estimate, given: Given) -> Found:
    """An estimate made elsewhere, for the threshold here."""
    Found().stop_if(not estimate.defined, estimate.reason or "undefined")
    interval = estimate.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    n = given["n_prompts"] or None
    needed = FEWEST_FOR_RATIOS if n and interval.reason == "too_few" else None
    return Found(values={"value": estimate.value}, interval=interval, n=n, n_needed=needed)


def _overlap(other: Flags | int, given: Given) -> Found:
    """Jaccard of the members and a published list; the ratio of the sizes where only its size is known."""
    members = given["members"]
    if isinstance(other, int):
        least, most = sorted((int(members.sum()), other))
        value = least / most if most else math.nan
    else:
        value = set_overlap(members, other).jaccard
    found = _reported(value if members.any() else None, "no_members")
    found.interval = Interval(low=value, high=value, level=ONE_SIDED_95, method="exact")
    found.warn(proxy=isinstance(other, int))
    return found


def _rate(predicted: Flags, given: Given, over: Flags) -> Found:
    """Share of some heads that a predicted set names, with exact bounds."""
    count, n, missing = int((predicted & over).sum()), int(over.sum()), _missing(given["members"])
    if missing == "no_members" or not n:
        raise Undetermined(missing or "no_others")
    interval = stats.clopper_pearson(count, n, level=given["level"])
    return Found(values={"value": count / n}, interval=interval)


def _hits(predicted: Flags, given: Given) -> Found:
    found, right = _rate(predicted, given, given["members"]), int((predicted & given["members"]).sum())
    found.values["precision"] = right / int(predicted.sum()) if predicted.any() else None
    return found


def _alarms(predicted: Flags, given: Given) -> Found:
    return _rate(predicted, given, ~given["members"])


# ---- d' and AUROC of heads like these -----------------------------------------------------------------


def _d_prime(column: Scores, given: Given, row: str = "d_prime") -> Found:
    """D': bootstrap-t within each group, no narrower than percentiles and their mirror image."""
    inside, outside = _sides(column, given)
    missing, level = _missing(given["members"]), given["level"] if row == "d_prime" else ONE_SIDED_95
    found, value = Found(), stats.d_prime(inside, outside)
    found.stop_if(missing or (None if len(inside) + len(outside) else "no_valid_prompt"))
    found.stop_if(value.reason)
    found.values["value"] = value.value
    if row == "d_prime":  # of magnitudes, and the published difference of the magnitudes of means
        magnitudes = stats.d_prime(np.abs(inside), np.abs(outside))
        pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        apart = float(abs(inside.mean()) - abs(outside.mean()))
        found.values["d_prime_abs"] = magnitudes.value if magnitudes.defined else None
        found.values["d_prime_abs_means"] = apart / pooled

    def bounds(error: float, replicates: Statistic, errors: Statistic) -> Interval:
        percentiles = percentile_bounds(value.value, replicates, level=level)
        studentized = stats.studentized_interval(
            value.value, error, replicates, errors, level=level, low_tail=_pass_tail(level)
        )
        return stats.outermost(studentized, percentiles, mirrored(value.value, percentiles))

    none = undefined_interval(level, "bootstrap-t", "")
    return _of_heads_like_these(found, row, given, (inside, outside), d_primes, bounds, none)


def _llc(column: Scores, given: Given) -> Found:
    return _d_prime(-column, given, "llc_d_prime")


def _area(column: Scores, given: Given) -> Found:
    """AUROC: Student bounds of its logit, or percentiles."""
    inside, outside = _sides(column, given)
    members, level = np.arange(len(inside) + len(outside)) < len(inside), ONE_SIDED_95
    found, value = Found(), stats.auroc(np.concatenate([inside, outside]), members)
    found.stop_if(value.reason)
    auroc, fewest = value.value, min(len(inside), len(outside))
    found.values["value"] = auroc
    if auroc in (0.0, 1.0):
        # Perfect order leaves nothing to resample. Disjoint pairs of a member and another head are
        # independent, so their share is binomial: its exact bounds hold for any number of them.
        found.interval = stats.clopper_pearson(round(auroc) * fewest, fewest, level=level)
        return found

    def bounds(error: float, replicates: Statistic, errors: Statistic) -> Interval:
        tails, logit = np.array([_pass_tail(level), (1 + level) / 2]), math.log(auroc / (1 - auroc))
        reach = scipy.stats.t.ppf(tails, fewest - 1) * (error / (auroc * (1 - auroc)))
        low, high = scipy.special.expit(logit + reach)
        student = Interval(low=float(low), high=float(high), level=level, method="logit")
        return stats.outermost(student, percentile_bounds(auroc, replicates, level=level))

    none = undefined_interval(level, "logit", "")
    return _of_heads_like_these(found, "attribution_auroc", given, (inside, outside), areas, bounds, none)


def _of_heads_like_these(
    found: Found, row: str, given: Given, groups: Any, statistic: Any, bounds: Any, none: Interval
) -> Found:
    """What was found of two groups of heads, with bounds from both drawn anew.

    With fewer than 5 on a side it has none, with fewer than 15 it cannot be a pass: skewed scores at the
    limit would pass too often.
    """
    fewest, rule = min(map(len, groups)), ROWS[row].rule
    if fewest < 5:
        found.interval = replace(none, reason="too_few" if fewest < 2 else "too_few_heads")
        return found
    rng = gate_stream("C14", f"{given['task']}/{row}", seed=given["seed"])
    drawn = [group[rng.integers(0, len(group), (given["n_boot"], len(group)))] for group in groups]
    error = float(statistic(*(group[None] for group in groups))[1][0])
    found.interval = bounds(error, *statistic(*drawn))
    if fewest < 15 and rule and rule.rigorous(found.interval) in ("pass", "moderate"):
        found.open("too_few_heads")
    return found


def _pass_tail(level: float) -> float:
    """Nominal error of a bound that has to lie above a threshold.

    A fifth of what is promised: where the rare scores of a side lie below the others, fifteen heads seldom
    hold one of them, and the bound lies too high more often than it says.
    """
    return (1 - level) / 2 / 5


def d_primes(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
    """D' of each row and its standard error from influence values, NaN where nothing varies.

    The influence of a score x inside is (x - m) / S - d' ((x - m)^2 - s^2) / (4 S^2), S^2 the mean of both
    variances; outside the first term has the other sign.
    """
    centred = [side - side.mean(axis=1, keepdims=True) for side in (inside, outside)]
    variances = [(side**2).sum(axis=1, keepdims=True) / (side.shape[1] - 1) for side in centred]
    pooled = np.sqrt((variances[0] + variances[1]) / 2)
    pooled = np.where(pooled > NO_SPREAD, pooled, np.nan)
    distance = (inside.mean(axis=1) - outside.mean(axis=1))[:, None] / pooled
    squared = np.zeros(len(inside))
    for sign, side, variance in zip((1, -1), centred, variances, strict=True):
        influence = sign * side / pooled - distance * (side**2 - variance) / (4 * pooled**2)
        squared += influence.var(axis=1, ddof=1) / side.shape[1]
    return distance[:, 0], np.sqrt(squared)


def areas(inside: Draws, outside: Draws) -> tuple[Statistic, Statistic]:
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


# ---- all of them ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row(Quantity):
    """The number of a row, the argument of `derived_metrics` that it needs, and the function of that."""

    column: str
    find: Callable[[Any, Given], Found | Verdict]


_HALF, _RATIO = Rule(pass_at=0.5, strict=False), Rule(pass_at=0.8, strict=False)
_P, _FEW = Rule(pass_at=ALPHA, higher=False, open_ended=True), Rule(pass_at=0.2, higher=False)
_RANKS = "probability that a member ranks above another head"
_SCRUBBED = "margin recovered by scrubbing"
ROWS: Mapping[str, _Row] = {
    "sparsity": _Row("members", lambda x, _: _mean(x, "too_few"), label="share of heads in the circuit"),
    "node_overlap_jaccard": _Row("published", _overlap, label="overlap with the published heads", rule=_HALF),
    "spectral_norm_ratio": _Row("spectral_norm", _norms, label="spectral norm, members over others"),
    "sv_entropy_ratio": _Row("sv_entropy", _ratio, label="entropy of singular values, members over others"),
    "d_prime": _Row("scores", _d_prime, label="d′ of the scores", rule=_D_PRIME),
    "llc_d_prime": _Row("llc", _llc, label="d′ of the learning coefficient, sign reversed", rule=_D_PRIME),
    "hit_rate": _Row("predicted", _hits, label="members found by the prediction", rule=Rule(pass_at=0.9)),
    "false_alarm_rate": _Row("predicted", _alarms, label="other heads that it names", rule=_FEW),
    "partial_eta_sq": _Row("partial_eta_sq", lambda verdict, _: verdict, label=""),
    "pc_ratio_circuit_mean": _Row("pc_ratio", _mean_inside, label="pc_ratio, mean of members"),
    "pc_ratio_noncircuit_mean": _Row("pc_ratio", _mean_outside, label="pc_ratio, mean of the others"),
    "pc_ratio_d_prime": _Row("pc_ratio", _others_above, label="pc_ratio, d′"),
    "ov_composition_pval": _Row("v", _composed, label="OV composition on the edges, p", rule=_P),
    "q_composition_pval": _Row("q", _composed, label="query composition on the edges, p", rule=_P),
    "k_composition_pval": _Row("k", _composed, label="key composition on the edges, p", rule=_P),
    "attribution_auroc": _Row("attribution", _area, label=_RANKS, rule=_AUC),
    "faithfulness": _Row("faithfulness", _forwarded, label="faithfulness", rule=_RATIO),
    "completeness": _Row("completeness", _forwarded, label="completeness", rule=_RATIO),
    "minimality_mean_importance": _Row("minimality", _importance, label="mean loss without one of the heads"),
    "logit_diff_recovery": _Row("logit_diff_recovery", _forwarded, label=_SCRUBBED, rule=Rule(pass_at=0.5)),
}
