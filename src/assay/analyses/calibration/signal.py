"""Do scores tell a circuit's heads from the rest: derived sensitivity metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration._separation import N_BOOT, Sides, without_input
from assay.analyses.calibration._tables import exactly
from assay.analyses.calibration.gate import ALPHA, SEED, gate, gate_stream, undefined
from assay.analyses.calibration.invariance import SHARE_BETWEEN_GROUPS
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.samples import conjunction, inner_metric, judged, sample
from assay.core.errors import InputError, ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict, undefined_interval
from assay.discovery.heads import edge_test, member_ratio, set_overlap
from assay.stats import (
    Estimate,
    clopper_pearson,
    d_prime,
    draw_counts,
    outermost,
    resampled_ratios,
    studentized_interval,
)


FEWEST_FOR_RATIOS = 20  # prompts
ESSENTIAL = 0.05  # loss of faithfulness above which a head is essential
NOTABLE = 1.5  # ratio of spectral norms worth a remark
_HITS = Rule(pass_at=0.9)
_FALSE_ALARMS = Rule(pass_at=0.2, higher=False)
_P_VALUE = Quantity(label="", higher=False, open_ended=True, least=0.0, most=1.0)
_ROWS = {
    "d_prime": Quantity(label="d′ of the scores"),
    "llc_d_prime": Quantity(label="d′ of the learning coefficient, sign reversed"),
    "node_overlap_jaccard": Quantity(
        label="overlap with the published heads", strict=False, least=0.0, most=1.0
    ),
    "hit_rate": Quantity(label="members found by the prediction", least=0.0, most=1.0),
    "false_alarm_rate": Quantity(
        label="other heads that the prediction names", higher=False, least=0.0, most=1.0
    ),
    "partial_eta_sq": replace(
        SHARE_BETWEEN_GROUPS, label="share of the spread between groups (C13)", qualified_by=""
    ),
    "ov_composition_pval": replace(_P_VALUE, label="OV composition on the edges, p"),
    "q_composition_pval": replace(_P_VALUE, label="query composition on the edges, p"),
    "k_composition_pval": replace(_P_VALUE, label="key composition on the edges, p"),
    "attribution_auroc": Quantity(
        label="probability that a member ranks above another head", least=0.0, most=1.0
    ),
    "sparsity": Quantity(label="share of heads in the circuit", least=0.0, most=1.0),
    "spectral_norm_ratio": Quantity(label="spectral norm, members over others"),
    "sv_entropy_ratio": Quantity(label="entropy of singular values, members over others"),
    "pc_ratio_circuit_mean": Quantity(label="pc_ratio, mean of members"),
    "pc_ratio_noncircuit_mean": Quantity(label="pc_ratio, mean of the others"),
    "pc_ratio_d_prime": Quantity(label="pc_ratio, d′"),
    "faithfulness": Quantity(label="faithfulness", strict=False),
    "completeness": Quantity(label="completeness", strict=False),
    "minimality_mean_importance": Quantity(label="mean loss without one of the heads"),
    "logit_diff_recovery": Quantity(label="margin recovered by scrubbing"),
}


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
        return without_input()
    if k == 0 or math.isnan(value):
        return undefined("no_members", values={"value": None}, warnings=warnings)
    return replace(rule.judge(value, exactly(value), k), warnings=warnings)


def _rates(
    predicted: Bool[np.ndarray, " H"] | None, members: Bool[np.ndarray, " H"], *, level: float = ONE_SIDED_95
) -> dict[str, Verdict]:
    """Hits and false alarms of a predicted set with exact bounds."""
    if predicted is None:
        return {"hit_rate": without_input(), "false_alarm_rate": without_input()}
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
        row = rule.judge(count / n, clopper_pearson(count, n, level=level), n)
        extra = {"precision": precision} if name == "hit_rate" else {}
        rows[name] = replace(row, n_needed=None, values={**row.values, **extra})
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
        return without_input()
    if not found.defined:
        return undefined(found.reason or "undefined", values={"value": None})
    interval = found.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    verdict = judged(rule, found.value, found.value, interval, n, fewest=FEWEST_FOR_RATIOS)
    return verdict if n else replace(verdict, n_needed=None)


@gate(
    key="derived-metrics",
    code="C14",
    name="Derived sensitivity metrics",
    criterion="M4 Sensitivity",
    question="Do scores of heads separate the circuit from the rest?",
    on_pass="the scores at hand can tell members from non-members",
    on_fail="wrong circuit or insensitive scores; no classifier built on them is usable",
    generalises_over="heads like these",
    weakness=(
        "heads of negative effect lower d'; the published one divides a difference of summed effects by "
        "spreads per head, and its false alarms are a false-discovery rate"
    ),
    source="mechanistic-validity framework; Green and Swets (1966)",
    number=Quantity(
        label="distance of members’ scores from the others’ (d′)",
        value="d_prime",
        published="d_prime",
        limit="d_prime",
    ),
    parts=_ROWS,
    decisive=("d_prime", "hit_rate", "false_alarm_rate"),
    reasons={
        "not_applicable": (
            "It needs a score of every head, inside the circuit and outside.",
            "Measure all heads; a limit of passes may have excluded some.",
        ),
        "stricter_level": (
            "A part fails at 5 %. A fail of the whole divides its 5 % between the parts, and at that level "
            "none fails.",
            "",
        ),
        "too_few": (
            "With only one head inside or outside the circuit, the spread on that side cannot be estimated.",
            "Give a circuit of two heads or more that leaves out two or more.",
        ),
    },
    parts_share_reasons=False,
    when_open="The bounds come from the heads, whose number is fixed: only a clearer score or a better "
    "circuit would settle it.",
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
    check_least(1, n_boot=n_boot)
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
    side = Sides(members=members, n_boot=n_boot, task=task, seed=seed)
    k, n = int(members.sum()), len(members)
    rows: dict[str, Verdict] = {
        "sparsity": _report(k / n if n else None, "too_few"),
        "node_overlap_jaccard": _jaccard(members, published_members, published_size),
        "spectral_norm_ratio": _ratio(spectral_norm, members),
        "sv_entropy_ratio": _ratio(sv_entropy, members),
        "d_prime": side.with_other_forms(side.distance(scores, "d_prime"), scores),
        "llc_d_prime": side.distance(None if llc is None else -llc, "llc_d_prime"),
        **_rates(predicted, members),
        "partial_eta_sq": partial_eta_sq or without_input(),
        **_component_rows(pc_ratio, members),
        **_composition_rows(composition, tuple(head_edges), n_heads, seed),
        "attribution_auroc": side.area(attribution, "attribution_auroc"),
        "faithfulness": _forwarded(faithfulness, Rule(pass_at=0.8, strict=False), n_prompts),
        "completeness": _forwarded(completeness, Rule(pass_at=0.8, strict=False), n_prompts),
        "minimality_mean_importance": _minimality(minimality),
        "logit_diff_recovery": _forwarded(logit_diff_recovery, Rule(pass_at=0.5), n_prompts),
    }
    ratio = rows["spectral_norm_ratio"].values["value"]
    if ratio is not None and ratio > NOTABLE:
        rows["spectral_norm_ratio"] = replace(rows["spectral_norm_ratio"], details={"notable": True})
    dropped = any(each is not None and not np.isfinite(each).all() for each in (scores, llc, attribution))
    strict = {"d_prime": rows["d_prime"]}
    if predicted is not None:
        # A conjunction fails where one part does, so its three parts share the 5 % of a false fail.
        level = 1 - 2 * ALPHA / 3
        strict = {"d_prime": side.distance(scores, "d_prime", level=level)}
        strict |= _rates(predicted, members, level=level)
    return _whole(rows, strict, ("missing_heads",) if dropped else ())


def _ratio(column: Float64[np.ndarray, " H"] | None, members: Bool[np.ndarray, " H"]) -> Verdict:
    if column is None:
        return without_input()
    reason = "no_members" if not members.any() else "no_others" if members.all() else "zero_denominator"
    return _report(member_ratio(column, members), reason)


def _component_rows(
    column: Float64[np.ndarray, " H"] | None, members: Bool[np.ndarray, " H"]
) -> dict[str, Verdict]:
    names = ("pc_ratio_circuit_mean", "pc_ratio_noncircuit_mean", "pc_ratio_d_prime")
    if column is None:
        return dict.fromkeys(names, without_input())
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
    seed: int,
) -> dict[str, Verdict]:
    """Welch's p of each kind of composition on the circuit's edges; no p is too large to fail.

    It is of a difference in either direction; a pass with confidence needs edges that compose more.
    """
    if composition and n_heads is None:
        raise InputError("composition needs n_heads, the number of heads per layer, to read head_edges")
    rows = {}
    for channel in ("v", "q", "k"):
        name = f"{'ov' if channel == 'v' else channel}_composition_pval"
        table = (composition or {}).get(channel)
        if table is None or n_heads is None:
            rows[name] = without_input()
            continue
        found = edge_test(table, head_edges, n_heads=n_heads, seed=seed)
        if found.reason:
            rows[name] = undefined(found.reason, values={"value": None})
            continue
        clear, less = found.permutation_p < ALPHA, found.statistic < 0
        rows[name] = Verdict(
            status="pass" if clear and not less else "inconclusive",
            published="pass" if found.p_value < ALPHA else "fail",
            reason="composes_less" if clear and less else None,
            values={"value": found.p_value, "statistic": found.statistic},
            thresholds={"pass": ALPHA},
            details=found.to_dict(),
        )
    return rows


def _minimality(losses: Float64[np.ndarray, " k"] | None) -> Verdict:
    if losses is None:
        return without_input()
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
