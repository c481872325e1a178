"""C14, derived sensitivity metrics: do scores tell a circuit's heads from the rest?"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Undetermined, gate, named
from assay.analyses.calibration.invariance import SHARE_BETWEEN_GROUPS, group_test
from assay.analyses.calibration.samples import ALPHA, SEED, conjunction, gate_stream, inner_metric, sample
from assay.analyses.calibration.separation import AREA, D_PRIME, Side, area, distance
from assay.core.errors import InputError, ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict, undefined_interval
from assay.discovery.heads.membership import set_overlap
from assay.discovery.heads.weights import edge_test, member_ratio
from assay.page.text import number


N_BOOT = 999
FEWEST_FOR_RATIOS = 20  # prompts

Scores = Float64[np.ndarray, " H"]
Flags = Bool[np.ndarray, " H"]
_share = partial(Quantity, least=0.0, most=1.0)
_P = Rule(pass_at=ALPHA, higher=False, open_ended=True)
_HALF, _RATIO = Rule(pass_at=0.5, strict=False), Rule(pass_at=0.8, strict=False)
_ROWS = {
    "sparsity": _share(label="share of heads in the circuit"),
    "node_overlap_jaccard": _share(label="overlap with the published heads", rule=_HALF),
    "spectral_norm_ratio": Quantity(label="spectral norm, members over others"),
    "sv_entropy_ratio": Quantity(label="entropy of singular values, members over others"),
    "d_prime": Quantity(label="d′ of the scores", rule=D_PRIME),
    "llc_d_prime": Quantity(label="d′ of the learning coefficient, sign reversed", rule=D_PRIME),
    "hit_rate": _share(label="members found by the prediction", rule=Rule(pass_at=0.9)),
    "false_alarm_rate": _share(label="other heads that it names", rule=Rule(pass_at=0.2, higher=False)),
    "partial_eta_sq": replace(SHARE_BETWEEN_GROUPS, label="spread between groups (C13)", qualified_by=""),
    "pc_ratio_circuit_mean": Quantity(label="pc_ratio, mean of members"),
    "pc_ratio_noncircuit_mean": Quantity(label="pc_ratio, mean of the others"),
    "pc_ratio_d_prime": Quantity(label="pc_ratio, d′"),
    "ov_composition_pval": _share(label="OV composition on the edges, p", rule=_P),
    "q_composition_pval": _share(label="query composition on the edges, p", rule=_P),
    "k_composition_pval": _share(label="key composition on the edges, p", rule=_P),
    "attribution_auroc": _share(label="probability that a member ranks above another head", rule=AREA),
    "faithfulness": Quantity(label="faithfulness", rule=_RATIO),
    "completeness": Quantity(label="completeness", rule=_RATIO),
    "minimality_mean_importance": Quantity(label="mean loss without one of the heads"),
    "logit_diff_recovery": Quantity(label="margin recovered by scrubbing", rule=Rule(pass_at=0.5)),
}
_DECISIVE = {"d_prime": "d′", "hit_rate": "hits", "false_alarm_rate": "false alarms"}


def _finding(verdict: Verdict, heads: Any) -> str:
    """The rows that prevent a pass, besides the one whose number is shown."""
    shown, rows = (verdict.judged or {}).get("part"), verdict.sub_results
    short = [
        f"{words} {number(rows[name].values.get('value'))}"
        for name, words in _DECISIVE.items()
        if name != shown and rows[name].status in ("fail", "inconclusive") and not rows[name].reason
    ]
    return f"Also not established: {named(short)}." if short else ""


def _tests(verdict: Verdict, heads: Any) -> Iterator[dict[str, Any]]:
    """Head edges compose more than other pairs; and the test of C13 where it is forwarded."""
    for channel in ("ov", "q", "k"):
        if row := verdict.sub_results.get(f"{channel}_composition_pval"):
            yield {
                "name": f"head edges compose more than other pairs ({channel})",
                "test_key": f"C14/{channel}",
                "p": row.values.get("value"),
                "p_kind": "t",
                "passed": row.status == "pass",
            }
    if "partial_eta_sq" in verdict.sub_results:
        yield from group_test(verdict.sub_results["partial_eta_sq"])


@gate(
    key="derived-metrics",
    code="C14",
    name="Derived sensitivity metrics",
    criterion="M4 Sensitivity",
    question="Do scores of heads separate the circuit from the rest?",
    on_pass="the scores at hand can tell members from non-members",
    on_fail="wrong circuit or insensitive scores; no classifier built on them is usable",
    generalises_over="heads like these",
    weakness="heads of negative effect lower d'; the published one divides a difference of summed effects by "
    "spreads per head, and its false alarms are a false-discovery rate",
    source="mechanistic-validity framework; Green and Swets (1966)",
    number=Quantity(label="d′ of the scores", value="d_prime", published="d_prime", rule=D_PRIME),
    parts=_ROWS,
    decisive=tuple(_DECISIVE),
    reasons={
        "not_applicable": (
            "It needs a score of every head, inside and outside.",
            "Measure all heads.",
        ),
        "stricter_level": ("A part fails at 5 %, but none at its share of the 5 % of the whole.", ""),
        "too_few": (
            "With only one head inside or outside the circuit, the spread on that side cannot be estimated.",
            "Give a circuit of two heads or more that leaves out two or more.",
        ),
    },
    parts_share_reasons=False,
    when_open="The bounds come from the heads, whose number is fixed: only a clearer score or a better "
    "circuit would settle it.",
    finding=_finding,
    tests=_tests,
)
def derived_metrics(
    members: Flags,
    scores: Scores | None = None,
    *,
    llc: Scores | None = None,
    attribution: Scores | None = None,
    predicted: Flags | None = None,
    published_members: Flags | None = None,
    published_size: int | None = None,
    spectral_norm: Scores | None = None,
    sv_entropy: Scores | None = None,
    pc_ratio: Scores | None = None,
    composition: Mapping[str, Float64[np.ndarray, "H H"]] | None = None,
    head_edges: Iterable[Sequence[int]] = (),
    n_heads: int | None = None,
    minimality: Float64[np.ndarray, " k"] | None = None,
    partial_eta_sq: Verdict | None = None,
    faithfulness: stats.Estimate | None = None,
    completeness: stats.Estimate | None = None,
    logit_diff_recovery: stats.Estimate | None = None,
    n_prompts: int = 0,
    n_boot: int = N_BOOT,
    task: str = "",
    seed: int = SEED,
) -> Found:
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
    columns = (scores, llc, attribution, predicted, published_members, spectral_norm, sv_entropy, pc_ratio)
    if any(column is not None and column.shape != members.shape for column in columns):
        shapes = [None if column is None else column.shape for column in columns]
        raise ShapeError(f"columns have shapes {shapes}; one entry per head, {members.shape}, is needed")
    if composition and n_heads is None:
        raise InputError("composition needs n_heads, the number of heads per layer, to read head_edges")
    missing = "no_members" if not members.any() else "no_others" if members.all() else None
    tables, published = composition or {}, published_size if published_members is None else published_members

    def split(column: Scores) -> tuple[Side, Side]:
        usable = np.isfinite(column)
        return column[members & usable], column[~members & usable]

    def separation(column: Scores, row: str, level: float = ONE_SIDED_95) -> Found:
        inside, outside = split(column)
        if missing or not len(inside) + len(outside):
            raise Undetermined(missing or "no_valid_prompt")
        rng = gate_stream("C14", f"{task}/{row}", seed=seed)
        return distance(inside, outside, rng, n_boot, level, forms=row == "d_prime")

    def ratio(column: Scores, notable: float = math.inf) -> Found:
        value = member_ratio(column, members)
        found = _reported(value, missing or "zero_denominator")
        found.details |= {"notable": True} if value > notable else {}
        return found

    def pc_distance(column: Scores) -> Found:
        inside, outside = split(column)
        found = stats.d_prime(outside, inside)
        empty = "no_members" if not len(inside) else "no_others" if not len(outside) else None
        return _reported(found.value, empty or found.reason or "undefined")

    composed = partial(_composed, head_edges=tuple(head_edges), n_heads=n_heads or 0, seed=seed)
    forwarded = partial(_forwarded, n_prompts=n_prompts)
    auroc_rng = gate_stream("C14", f"{task}/attribution_auroc", seed=seed)
    table: dict[str, tuple[Any, Callable[..., Found | Verdict]]] = {
        "sparsity": (members, lambda flags: _mean(flags, "too_few")),
        "node_overlap_jaccard": (published, partial(_overlap, members)),
        "spectral_norm_ratio": (spectral_norm, partial(ratio, notable=1.5)),
        "sv_entropy_ratio": (sv_entropy, ratio),
        "d_prime": (scores, partial(separation, row="d_prime")),
        "llc_d_prime": (llc, lambda column: separation(-column, "llc_d_prime")),
        "hit_rate": (predicted, partial(_rate, members, missing, "precision")),
        "false_alarm_rate": (predicted, partial(_rate, ~members, missing, "")),
        "partial_eta_sq": (partial_eta_sq, lambda verdict: verdict),
        "pc_ratio_circuit_mean": (pc_ratio, lambda column: _mean(split(column)[0], "no_members")),
        "pc_ratio_noncircuit_mean": (pc_ratio, lambda column: _mean(split(column)[1], "no_others")),
        "pc_ratio_d_prime": (pc_ratio, pc_distance),
        "ov_composition_pval": (tables.get("v"), composed),
        "q_composition_pval": (tables.get("q"), composed),
        "k_composition_pval": (tables.get("k"), composed),
        "attribution_auroc": (attribution, lambda column: area(*split(column), auroc_rng, n_boot)),
        "faithfulness": (faithfulness, forwarded),
        "completeness": (completeness, forwarded),
        "minimality_mean_importance": (minimality, _importance),
        "logit_diff_recovery": (logit_diff_recovery, forwarded),
    }
    parts = {name: _judged(name, *row) for name, row in table.items()}
    deciding = {name: parts[name] for name in _DECISIVE if name == "d_prime" or predicted is not None}
    strict = [parts["d_prime"]]
    if predicted is not None:
        # A conjunction fails where one part does, so its three parts share the 5 % of a false fail.
        level = 1 - 2 * ALPHA / 3
        strict = [_judged(name, table[name][0], partial(table[name][1], level=level)) for name in _DECISIVE]
    found = Found(
        values={name: part.values["value"] for name, part in deciding.items()},
        thresholds={name: part.thresholds.get("pass") for name, part in deciding.items()},
        interval=parts["d_prime"].interval,
        status=conjunction([part.status for part in deciding.values()]),
        published=conjunction([part.published for part in deciding.values()]),
        parts=parts,
    )
    scored = [each for each in (scores, llc, attribution) if each is not None]
    found.warn("missing_heads", not all(np.isfinite(each).all() for each in scored))
    reason = next((part.reason for part in deciding.values() if part.reason), None)
    if found.interval is None:
        raise Undetermined(reason or "undefined", found, published="inconclusive")
    if found.status == "fail" and "fail" not in [part.status for part in strict]:
        found.open("stricter_level")
    elif found.status == "inconclusive":
        found.open(reason)
    return found


def _judged(name: str, given: Any, function: Callable[..., Found | Verdict]) -> Verdict:
    """The verdict of a row; `not_applicable` without its input."""
    try:
        if given is None:
            raise Undetermined("not_applicable")
        found = function(given)
        return found if isinstance(found, Verdict) else _ROWS[name].judge(found)
    except Undetermined as why:
        return Verdict(
            status="inconclusive",
            published="inconclusive",
            values={"value": None},
            reason=why.found.reason,
            warnings=why.found.warnings,
        )


def _reported(value: float | None, reason: str, **more: Any) -> Found:
    """A number without a threshold."""
    if value is None or math.isnan(value):
        raise Undetermined(reason)
    return Found(values={"value": float(value), **more})


def _mean(column: Shaped[np.ndarray, " _"], reason: str) -> Found:
    return _reported(column.mean() if len(column) else None, reason)


def _importance(losses: Float64[np.ndarray, " k"]) -> Found:
    known = losses[np.isfinite(losses)]
    found = _mean(known, "no_members")
    essential = float((known > 0.05).sum())  # of faithfulness
    found.values |= {"n_essential": essential, "min": float(known.min()), "max": float(known.max())}
    return found


def _composed(table: Any, head_edges: tuple[Sequence[int], ...], n_heads: int, seed: int) -> Found:
    """Welch's p of a difference in either direction; a pass with confidence needs edges that compose more."""
    test = edge_test(table, head_edges, n_heads=n_heads, seed=seed)
    if test.reason:
        raise Undetermined(test.reason)
    clear, less = test.permutation_p < ALPHA, test.statistic < 0
    return Found(
        values={"value": test.p_value, "statistic": test.statistic},
        status="pass" if clear and not less else "inconclusive",
        published="pass" if test.p_value < ALPHA else "fail",
        reason="composes_less" if clear and less else None,
        details=test.to_dict(),
    )


def _forwarded(estimate: stats.Estimate, n_prompts: int) -> Found:
    """An estimate made elsewhere, for the threshold here."""
    if not estimate.defined:
        raise Undetermined(estimate.reason or "undefined")
    interval = estimate.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    needed = FEWEST_FOR_RATIOS if n_prompts and interval.reason == "too_few" else None
    return Found(values={"value": estimate.value}, interval=interval, n=n_prompts or None, n_needed=needed)


def _overlap(members: Flags, other: Flags | int) -> Found:
    """Jaccard of the members and a published list, or the ratio of their sizes."""
    if isinstance(other, int):
        least, most = sorted((int(members.sum()), other))
        value, found = least / most if most else math.nan, Found(warnings=("proxy",))
    else:
        value, found = set_overlap(members, other).jaccard, Found()
    if not members.any() or math.isnan(value):
        raise Undetermined("no_members", found)
    exact = Interval(low=value, high=value, level=ONE_SIDED_95, method="exact")
    return replace(found, values={"value": value}, interval=exact)


def _rate(
    over: Flags, missing: str | None, precision: str, predicted: Flags, level: float = ONE_SIDED_95
) -> Found:
    """Share of some heads that a predicted set names, with exact bounds."""
    count, n = int((predicted & over).sum()), int(over.sum())
    if missing == "no_members" or not n:
        raise Undetermined(missing or "no_others")
    found = Found(values={"value": count / n}, interval=stats.clopper_pearson(count, n, level=level))
    if precision:
        found.values[precision] = count / int(predicted.sum()) if predicted.any() else None
    return found


def ratio_estimate(
    y_circuit: Any, y_full: Any, inner: str = "faithfulness", *, unit_id: Any = None, seed: int = SEED
) -> stats.Estimate | None:
    """Faithfulness or completeness of runs with the bounds that C14 forwards.

    The outermost of bootstrap-t over prompts and of the usual interval (BCa, or Fieller's where the
    denominator is unstable); none below twenty prompts (`too_few`). None below two.
    """
    runs, statistic = sample(unit_id, circuit=y_circuit, full=y_full), inner_metric(inner)
    if runs.n < 2:
        return None
    value = float(statistic.of_sums(runs.table.sum(axis=1), runs.n))
    if not np.isfinite(value):
        return stats.Estimate(value=math.nan, reason="zero_denominator")
    if runs.n < FEWEST_FOR_RATIOS:
        interval = undefined_interval(ONE_SIDED_95, "bootstrap-t", "too_few")
        return stats.Estimate(value=value, interval=interval)
    drawn = stats.draw_counts(runs.n, N_BOOT, gate_stream("C14", inner, seed=seed))
    counts = np.vstack([np.ones((1, runs.n)), drawn])
    ratios, errors = stats.resampled_ratios(runs.vectors[0][:, None], runs.vectors[1], counts)
    usual = statistic.interval(runs.table, level=ONE_SIDED_95, method=None, seed=seed)
    if not usual.defined or not errors[0, 0]:
        return stats.Estimate(value=value, interval=usual)
    # At half of the promised error: of 20 skewed prompts it falls short by as much.
    found = stats.studentized_interval(
        float(ratios[0, 0]), float(errors[0, 0]), ratios[1:, 0], errors[1:, 0], level=0.95
    )
    low, high = sorted(statistic.offset + statistic.scale * end for end in (found.low, found.high))
    found = replace(found, low=low, high=high, level=ONE_SIDED_95)
    return stats.Estimate(value=value, interval=stats.outermost(found, usual))
