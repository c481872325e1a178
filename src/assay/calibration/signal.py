"""Do scores tell a circuit's heads from the rest: derived sensitivity metrics."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from scipy import stats as scipy_stats

from assay.calibration._samples import conjunction
from assay.calibration._tables import exactly, percentile_bounds
from assay.calibration.gate import ALPHA, SEED, gate, gate_stream, positive, undefined
from assay.errors import InputError, ShapeError
from assay.heads import edge_test, member_ratio, set_overlap
from assay.measurement import ONE_SIDED_95, Rule, Verdict, undefined_interval
from assay.stats import Estimate, auroc, clopper_pearson, d_prime
from assay.stats.detection import NO_SPREAD


N_BOOT = 400
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


@dataclass(frozen=True, kw_only=True)
class _Separation:
    """A statistic of two groups: `of` a sample, and `batched` over resamples of it, NaN where undefined."""

    of: Callable[[Float64[np.ndarray, " _"], Float64[np.ndarray, " _"]], Estimate]
    batched: Callable[
        [Float64[np.ndarray, "draws _"], Float64[np.ndarray, "draws _"]], Float64[np.ndarray, " draws"]
    ]


def _d_primes(
    inside: Float64[np.ndarray, "draws n"], outside: Float64[np.ndarray, "draws m"]
) -> Float64[np.ndarray, " draws"]:
    pooled = np.sqrt((inside.var(axis=1, ddof=1) + outside.var(axis=1, ddof=1)) / 2)
    distance = inside.mean(axis=1) - outside.mean(axis=1)
    return np.asarray(np.divide(distance, pooled, out=np.full(len(pooled), np.nan), where=pooled > NO_SPREAD))


def _area(inside: Float64[np.ndarray, " _"], outside: Float64[np.ndarray, " _"]) -> Estimate:
    """Probability that a member outranks another head."""
    members = np.arange(len(inside) + len(outside)) < len(inside)
    return auroc(np.concatenate([inside, outside]), members)


def _areas(
    inside: Float64[np.ndarray, "draws n"], outside: Float64[np.ndarray, "draws m"]
) -> Float64[np.ndarray, " draws"]:
    n, m = inside.shape[1], outside.shape[1]
    ranks = scipy_stats.rankdata(np.concatenate([inside, outside], axis=1), axis=1)
    return np.asarray((ranks[:, :n].sum(axis=1) - n * (n + 1) / 2) / (n * m))


_DISTANCE = _Separation(of=d_prime, batched=_d_primes)
_AREA = _Separation(of=_area, batched=_areas)


def _separated(
    inside: Float64[np.ndarray, " _"],
    outside: Float64[np.ndarray, " _"],
    statistic: _Separation,
    *,
    rng: np.random.Generator,
    n_boot: int,
    level: float = ONE_SIDED_95,
) -> Estimate:
    """How far two groups of heads lie apart, with bounds from resampling each of them."""
    value = statistic.of(inside, outside)
    if not value.defined or min(len(inside), len(outside)) < 2:
        reason = value.reason or "too_few"
        return replace(value, interval=undefined_interval(level, "percentile", reason))
    rows, columns = (rng.integers(0, len(side), (n_boot, len(side))) for side in (inside, outside))
    replicates = statistic.batched(inside[rows], outside[columns])
    return replace(value, interval=percentile_bounds(value.value, replicates, level=level))


def _judged_area(
    scores: Float64[np.ndarray, " H"], members: Bool[np.ndarray, " H"], rng: np.random.Generator, n_boot: int
) -> Verdict:
    """AUROC above 0.85 passes, above 0.7 is moderate."""
    rule = Rule(pass_at=0.85, fail_at=0.7)
    inside, outside = scores[members], scores[~members]
    found = _separated(inside, outside, _AREA, rng=rng, n_boot=n_boot)
    if not found.defined:
        return undefined(found.reason or "undefined", values={"value": None})
    interval = found.interval
    assert interval is not None
    if interval.reason == "degenerate":
        # Perfect order leaves nothing to resample. Disjoint pairs of a member and another head are
        # independent, so their share is binomial: its exact bounds hold.
        pairs = min(len(inside), len(outside))
        interval = clopper_pearson(round(found.value) * pairs, pairs, level=ONE_SIDED_95)
    return replace(rule.judge(found.value, interval, len(scores)), n_needed=None)


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


def _forwarded(found: Estimate | None, rule: Rule, n: int) -> Verdict:
    """An estimate made elsewhere, judged by this gate's threshold."""
    if found is None:
        return _missing()
    if not found.defined:
        return undefined(found.reason or "undefined", values={"value": None})
    interval = found.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    judged = rule.judge(found.value, interval, n)
    return judged if n else replace(judged, n_needed=None)


@gate(
    key="derived-metrics",
    code="C14",
    name="Derived sensitivity metrics",
    criterion="M4 sensitivity",
    needs=("members", "scores"),
    question="Do scores of heads separate the circuit from the rest?",
    on_pass="the scores at hand can tell members from non-members",
    on_fail="wrong circuit or insensitive scores; no classifier built on them is usable",
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
        Percentiles of d' lie too high for few heads: at a true d' of exactly 1 with 15 heads inside and 129
        outside, 9 % of samples pass and 4 % fail. Away from the threshold both are rare.
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
        groups = sides(-column if turned else column)
        found = _separated(*groups, _DISTANCE, rng=stream(row), n_boot=n_boot, level=level)
        if not found.defined or found.interval is None:
            return undefined(found.reason or "undefined", values={"value": None})
        return replace(_D_PRIME.judge(found.value, found.interval, len(column)), n_needed=None)

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
    if scores is not None and rows["d_prime"].reason is None:
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
    level = 1 - 2 * ALPHA / len(parts)
    strict = {"d_prime": distance(scores, "d_prime", level=level)}
    if predicted is not None:
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
        significant = found.p_value < ALPHA
        rows[name] = Verdict(
            status="pass" if significant else "inconclusive",
            published="pass" if significant else "fail",
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
    status = conjunction([part.status for part in parts.values()])
    if status == "fail" and "fail" not in {part.status for part in strict.values()}:
        status = "inconclusive"
    whole = Verdict(
        status=status,
        published=conjunction([part.published for part in parts.values()]),
        values={name: part.values["value"] for name, part in parts.items()},
        thresholds={name: part.thresholds.get("pass") for name, part in parts.items()},
        interval=parts["d_prime"].interval,
        sub_results=rows,
        warnings=warnings,
    )
    reason = next((part.reason for part in parts.values() if part.reason), None)
    if parts["d_prime"].interval is None:
        return replace(whole, status="inconclusive", published="inconclusive", reason=reason)
    return replace(whole, reason=reason)
