"""Do scores tell a circuit's heads from the rest: derived sensitivity metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped
from scipy import special
from scipy import stats as scipy_stats

from assay.analyses.calibration._samples import conjunction, inner_metric, sample
from assay.analyses.calibration._tables import (
    exactly,
    mirrored,
    percentile_bounds,
)
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream, positive, undefined
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.discovery.heads import edge_test, member_ratio, set_overlap
from assay.stats import (
    Estimate,
    auroc,
    clopper_pearson,
    d_prime,
    draw_counts,
    outermost,
    resampled_ratios,
    studentized_interval,
)
from assay.stats.detection import NO_SPREAD


N_BOOT = 999
FEWEST_HEADS = 5  # on a side, below which nothing is said about heads like these
FEWEST_TO_PASS = 15  # on a side; with fewer, skewed scores at the threshold pass too often
FEWEST_FOR_RATIOS = 20  # prompts
ESSENTIAL = 0.05  # loss of faithfulness above which a head is essential
NOTABLE = 1.5  # ratio of spectral norms worth a remark
_D_PRIME = Rule(pass_at=1.0)
_HITS = Rule(pass_at=0.9)
_FALSE_ALARMS = Rule(pass_at=0.2, higher=False)


def _report(value: float | None, reason: str | None = None, **more: Any) -> Verdict:
    """A number without a threshold."""
    known = value is not None and not math.isnan(value)
    return Verdict(
        status="none" if known else "inconclusive",
        published="none" if known else "inconclusive",
        values={"value": value if known else None},
        reason=None if known else reason or "undefined",
        **more,
    )


def _missing() -> Verdict:
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
    ranks = scipy_stats.rankdata(np.concatenate([inside, outside], axis=1), axis=1)
    above = (ranks[:, :n] - scipy_stats.rankdata(inside, axis=1)) / m
    below = 1 - (ranks[:, n:] - scipy_stats.rankdata(outside, axis=1)) / n
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
        float(special.expit(logit + float(scipy_stats.t.ppf(tail, fewest - 1)) * error))
        for tail in (_pass_tail(level), (1 + level) / 2)
    ]
    rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
    interval = outermost(
        Interval(low=ends[0], high=ends[1], level=level, method="logit"),
        percentile_bounds(area, _areas(inside[rows], outside[columns])[0], level=level),
    )
    return _of_heads_like_these(rule.judge(area, interval, len(scores)), inside, outside)


def _jaccard(
    members: Bool[np.ndarray, " H"],
    published: Bool[np.ndarray, " H"] | None,
    published_size: int | None,
) -> Verdict:
    rule = Rule(pass_at=0.5, strict=False)
    k = int(members.sum())
    if published is not None:
        value, warnings = set_overlap(members, published).jaccard, tuple[str, ...]()
    elif published_size is not None:
        sizes = sorted((k, published_size))
        value, warnings = (sizes[0] / sizes[1] if sizes[1] else math.nan), ("proxy",)
    else:
        return _missing()
    if k == 0 or math.isnan(value):
        return undefined("no_members", values={"value": None}, warnings=warnings)
    return replace(rule.judge(value, exactly(value), k), warnings=warnings)


def _rates(
    predicted: Bool[np.ndarray, " H"], members: Bool[np.ndarray, " H"], *, level: float = ONE_SIDED_95
) -> dict[str, Verdict]:
    """Hits and false alarms of a predicted set with exact bounds."""
    found = set_overlap(predicted, members)
    precision = None if math.isnan(found.precision) else found.precision
    rows = {}
    for name, rule, count, n in (
        ("hit_rate", _HITS, found.hits, found.hits + found.misses),
        ("false_alarm_rate", _FALSE_ALARMS, found.false_alarms, int((~members).sum())),
    ):
        if n == 0 or not members.any():
            missing = "no_others" if members.any() else "no_members"
            rows[name] = undefined(missing, values={"value": None})
            continue
        judged = rule.judge(count / n, clopper_pearson(count, n, level=level), n)
        extra = {"precision": precision} if name == "hit_rate" else {}
        rows[name] = replace(judged, n_needed=None, values={**judged.values, **extra})
    return rows


def ratio_estimate(
    y_circuit: Float64[np.ndarray, " n"],
    y_full: Float64[np.ndarray, " n"],
    inner: str = "faithfulness",
    *,
    unit_id: Shaped[np.ndarray, " n"] | None = None,
    seed: int = SEED,
) -> Estimate | None:
    """Faithfulness or completeness of runs with the bounds that C14 forwards.

    The outermost of bootstrap-t over prompts and of the usual interval (BCa, or Fieller's where the
    denominator is unstable); none below twenty prompts (`too_few`). None below two.
    """
    runs = sample(unit_id, circuit=y_circuit, full=y_full)
    if runs.n < 2:
        return None
    statistic = inner_metric(inner)
    value = float(statistic.of_sums(runs.table.sum(axis=1), runs.n))
    if not np.isfinite(value):
        return Estimate(value=math.nan, reason="zero_denominator")
    if runs.n < FEWEST_FOR_RATIOS:
        return Estimate(value=value, interval=undefined_interval(ONE_SIDED_95, "bootstrap-t", "too_few"))
    drawn = draw_counts(runs.n, N_BOOT, gate_stream("C14", inner, seed=seed))
    counts = np.vstack([np.ones((1, runs.n)), drawn])
    ratio, error = (
        column[:, 0] for column in resampled_ratios(runs.vectors[0][:, None], runs.vectors[1], counts)
    )
    usual = statistic.interval(runs.table, level=ONE_SIDED_95, method=None, seed=seed)
    if not usual.defined or not error[0]:
        return Estimate(value=value, interval=usual)
    # At half of the promised error: of 20 skewed prompts it falls short by as much.
    found = studentized_interval(float(ratio[0]), float(error[0]), ratio[1:], error[1:], level=0.95)
    found = replace(found, level=ONE_SIDED_95)
    ends = sorted(statistic.offset + statistic.scale * end for end in (found.low, found.high))
    return Estimate(value=value, interval=outermost(replace(found, low=ends[0], high=ends[1]), usual))


def _forwarded(found: Estimate | None, rule: Rule, n: int) -> Verdict:
    """An estimate made elsewhere, judged by this gate's threshold."""
    if found is None:
        return _missing()
    if not found.defined:
        return undefined(found.reason or "undefined", values={"value": None})
    interval = found.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    judged = rule.judge(found.value, interval, n)
    needed = FEWEST_FOR_RATIOS if interval.reason == "too_few" else judged.n_needed
    return replace(judged, n_needed=needed if n else None)


@gate(
    key="derived-metrics",
    code="C14",
    name="Derived sensitivity metrics",
    criterion="M4 sensitivity",
    needs=("members", "scores"),
    question="Do scores of heads separate the circuit from the rest?",
    on_pass="the scores at hand can tell members from non-members",
    on_fail="wrong circuit or insensitive scores; no classifier built on them is usable",
    generalises_over="heads like these",
    weakness=(
        "heads of negative effect lower d'; the published one divides a difference of summed effects by "
        "spreads per head, and its false alarms are a false-discovery rate"
    ),
    source="mechanistic-validity framework; Green and Swets (1966)",
)
def derived_metrics(
    members: Bool[np.ndarray, " H"],
    scores: Float64[np.ndarray, " H"] | None = None,
    *,
    llc: Float64[np.ndarray, " H"] | None = None,
    attribution: Float64[np.ndarray, " H"] | None = None,
    predicted: Bool[np.ndarray, " H"] | None = None,
    published_members: Bool[np.ndarray, " H"] | None = None,
    published_size: int | None = None,
    spectral_norm: Float64[np.ndarray, " H"] | None = None,
    sv_entropy: Float64[np.ndarray, " H"] | None = None,
    pc_ratio: Float64[np.ndarray, " H"] | None = None,
    composition: Mapping[str, Float64[np.ndarray, "H H"]] | None = None,
    head_edges: Iterable[Sequence[int]] = (),
    n_heads: int | None = None,
    minimality: Float64[np.ndarray, " k"] | None = None,
    partial_eta_sq: Verdict | None = None,
    faithfulness: Estimate | None = None,
    completeness: Estimate | None = None,
    logit_diff_recovery: Estimate | None = None,
    n_prompts: int = 0,
    n_boot: int = N_BOOT,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """How well scores at hand tell the heads of a circuit from the others; a row for each kind of score.

    Args:
        members: The circuit's heads.
        scores: Patching effects (C2). NaN leaves a head out of the row, here and below.
        llc: Learning coefficients (C10); members are expected to have lower ones.
        attribution: A ranking score, e.g. magnitudes of attribution patching.
        predicted: A set of heads predicted without knowing the circuit.
        published_members: The published head list that the circuit is compared with.
        published_size: Its size alone, where the heads are unknown: a `proxy`.
        spectral_norm: Of the heads' OV matrices.
        sv_entropy: Of the same.
        pc_ratio: A column of the user's own; the source does not define it.
        composition: `v`, `q`, `k` -> sender by receiver; `v` is what the source calls OV.
        head_edges: (layer, head, layer, head) that the circuit joins.
        n_heads: Heads per layer, needed with `composition`.
        minimality: Loss of faithfulness without each of the circuit's heads.
        partial_eta_sq: Verdict of measurement invariance, forwarded.
        faithfulness: With one-sided 95 % bounds, forwarded.
        completeness: The same.
        logit_diff_recovery: The same.
        n_prompts: Prompts behind the forwarded numbers.
        n_boot: Resamples of the heads inside and outside.
        task: Names the random streams.
        seed: Roots them.

    Returns:
        Passes where d' of `scores` is above 1 and, given a predicted set, hits are above 0.9 and false alarms
        below 0.2: all of them with one-sided 95 % bounds; it fails where one of them fails at 5 % divided by
        their number. `sub_results` has every row, `not_applicable` without its input. Undefined for an empty
        circuit and one of all heads (`no_members`, `no_others`), for a single head inside or outside
        (`too_few`), and where no head has a score (`no_valid_prompt`); `not_applicable` without scores. Of an
        empty circuit only the sparsity is known.

    Notes:
        Verdicts on d' and AUROC are about heads like these: both sides are taken as samples of heads. Below
        five heads on a side they are `inconclusive`; below fifteen they can fail and not pass
        (`too_few_heads`).
    """
    positive("n_boot", n_boot)
    columns = {
        "scores": scores,
        "llc": llc,
        "attribution": attribution,
        "predicted": predicted,
        "published_members": published_members,
        "spectral_norm": spectral_norm,
        "sv_entropy": sv_entropy,
        "pc_ratio": pc_ratio,
    }
    for name, column in columns.items():
        if column is not None and column.shape != members.shape:
            raise ShapeError(
                f"{name} has shape {column.shape}; one entry per head, {members.shape}, is needed"
            )

    def stream(row: str) -> np.random.Generator:
        return gate_stream("C14", f"{task}/{row}", seed=seed)

    def sides(
        column: Float64[np.ndarray, " H"],
    ) -> tuple[Float64[np.ndarray, " _"], Float64[np.ndarray, " _"]]:
        usable = np.isfinite(column)
        return column[members & usable], column[~members & usable]

    def distance(
        column: Float64[np.ndarray, " H"] | None,
        row: str,
        *,
        turned: bool = False,
        level: float = ONE_SIDED_95,
    ) -> Verdict:
        if column is None:
            return _missing()
        if not members.any() or members.all():
            return undefined("no_others" if members.any() else "no_members", values={"value": None})
        if not np.isfinite(column).any():
            return undefined("no_valid_prompt", values={"value": None})
        inside, outside = sides(-column if turned else column)
        return _judged_distance(inside, outside, rng=stream(row), n_boot=n_boot, level=level)

    k, n = int(members.sum()), len(members)
    rows: dict[str, Verdict] = {
        "sparsity": _report(k / n if n else None, "too_few"),
        "node_overlap_jaccard": _jaccard(members, published_members, published_size),
        "spectral_norm_ratio": _ratio(spectral_norm, members),
        "sv_entropy_ratio": _ratio(sv_entropy, members),
        "d_prime": distance(scores, "d_prime"),
        "llc_d_prime": distance(llc, "llc_d_prime", turned=True),
        "hit_rate": _missing(),
        "false_alarm_rate": _missing(),
        "partial_eta_sq": partial_eta_sq or _missing(),
        **_component_rows(pc_ratio, members),
        **_composition_rows(composition, tuple(head_edges), n_heads),
        "attribution_auroc": _missing(),
        "faithfulness": _forwarded(faithfulness, Rule(pass_at=0.8, strict=False), n_prompts),
        "completeness": _forwarded(completeness, Rule(pass_at=0.8, strict=False), n_prompts),
        "minimality_mean_importance": _minimality(minimality),
        "logit_diff_recovery": _forwarded(logit_diff_recovery, Rule(pass_at=0.5), n_prompts),
    }
    ratio = rows["spectral_norm_ratio"].values["value"]
    if ratio is not None and ratio > NOTABLE:
        rows["spectral_norm_ratio"] = replace(rows["spectral_norm_ratio"], details={"notable": True})
    if predicted is not None:
        rows |= _rates(predicted, members)
    if attribution is not None:
        usable = np.isfinite(attribution)
        rows["attribution_auroc"] = _judged_area(
            attribution[usable], members[usable], stream("attribution_auroc"), n_boot
        )
    if scores is not None and rows["d_prime"].values["value"] is not None:
        rows["d_prime"] = replace(
            rows["d_prime"], values={**rows["d_prime"].values, **_other_forms(*sides(scores))}
        )
    dropped = [
        name
        for name in ("scores", "llc", "attribution")
        if (column := columns[name]) is not None and not np.isfinite(column).all()
    ]
    # A conjunction fails where one part does, so parts share the 5 % of a false fail.
    parts = ("d_prime",) if predicted is None else ("d_prime", "hit_rate", "false_alarm_rate")
    strict = {"d_prime": rows["d_prime"]}
    if predicted is not None:
        level = 1 - 2 * ALPHA / len(parts)
        strict = {"d_prime": distance(scores, "d_prime", level=level)}
        strict |= _rates(predicted, members, level=level)
    return _whole(rows, strict, ("missing_heads",) if dropped else ())


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


def _ratio(column: Float64[np.ndarray, " H"] | None, members: Bool[np.ndarray, " H"]) -> Verdict:
    if column is None:
        return _missing()
    reason = "no_members" if not members.any() else "no_others" if members.all() else "zero_denominator"
    return _report(member_ratio(column, members), reason)


def _component_rows(
    column: Float64[np.ndarray, " H"] | None, members: Bool[np.ndarray, " H"]
) -> dict[str, Verdict]:
    names = ("pc_ratio_circuit_mean", "pc_ratio_noncircuit_mean", "pc_ratio_d_prime")
    if column is None:
        return dict.fromkeys(names, _missing())
    usable = np.isfinite(column)
    inside, outside = column[members & usable], column[~members & usable]
    distance = d_prime(outside, inside)
    empty = "no_members" if not len(inside) else "no_others" if not len(outside) else None
    return {
        names[0]: _report(float(inside.mean()) if len(inside) else None, "no_members"),
        names[1]: _report(float(outside.mean()) if len(outside) else None, "no_others"),
        names[2]: _report(distance.value, empty or distance.reason),
    }


def _composition_rows(
    composition: Mapping[str, Float64[np.ndarray, "H H"]] | None,
    head_edges: tuple[Sequence[int], ...],
    n_heads: int | None,
) -> dict[str, Verdict]:
    """Welch's p of each kind of composition on the circuit's edges; no p is too large to fail."""
    if composition and n_heads is None:
        raise InputError("composition needs n_heads, the number of heads per layer, to read head_edges")
    rows = {}
    for channel in ("v", "q", "k"):
        name = f"{'ov' if channel == 'v' else channel}_composition_pval"
        table = (composition or {}).get(channel)
        if table is None or n_heads is None:
            rows[name] = _missing()
            continue
        found = edge_test(table, head_edges, n_heads=n_heads)
        if found.reason:
            rows[name] = undefined(found.reason, values={"value": None})
            continue
        rows[name] = Verdict(
            status="pass" if found.permutation_p < ALPHA else "inconclusive",
            published="pass" if found.p_value < ALPHA else "fail",
            values={"value": found.p_value, "statistic": found.statistic},
            thresholds={"pass": ALPHA},
            details=found.to_dict(),
        )
    return rows


def _minimality(losses: Float64[np.ndarray, " k"] | None) -> Verdict:
    if losses is None:
        return _missing()
    known = losses[np.isfinite(losses)]
    if not len(known):
        return undefined("no_members", values={"value": None})
    row = _report(float(known.mean()))
    return replace(
        row,
        values={
            **row.values,
            "n_essential": float((known > ESSENTIAL).sum()),
            "min": float(known.min()),
            "max": float(known.max()),
        },
    )


def _whole(rows: dict[str, Verdict], strict: dict[str, Verdict], warnings: tuple[str, ...]) -> Verdict:
    """The overall verdict, a conjunction of the rows that `strict` has too, at a level shared among them."""
    parts = {name: rows[name] for name in strict}
    status, reason = conjunction([part.status for part in parts.values()]), None
    if status == "fail" and "fail" not in {part.status for part in strict.values()}:
        status, reason = "inconclusive", "stricter_level"
    whole = Verdict(
        status=status,
        published=conjunction([part.published for part in parts.values()]),
        values={name: part.values["value"] for name, part in parts.items()},
        thresholds={name: part.thresholds.get("pass") for name, part in parts.items()},
        interval=parts["d_prime"].interval,
        sub_results=rows,
        warnings=warnings,
    )
    reason = reason or next((part.reason for part in parts.values() if part.reason), None)
    if parts["d_prime"].interval is None:
        return replace(whole, status="inconclusive", published="inconclusive", reason=reason)
    return replace(whole, reason=reason if status == "inconclusive" else None)
