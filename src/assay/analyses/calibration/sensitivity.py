"""C14, derived sensitivity metrics: do scores tell a circuit's heads from the rest?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay import stats
from assay.analyses.calibration.gate import SEED, Found, Undetermined, gate, gate_stream, named
from assay.analyses.calibration.invariance import SHARE_BETWEEN_GROUPS
from assay.analyses.calibration.multiplicity import claims_of
from assay.analyses.calibration.samples import ALPHA, conjunction, inner_metric, sample
from assay.analyses.calibration.sensitivity_rows import FEWEST_FOR_RATIOS, ROWS, Flags, Given, Scores
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import ONE_SIDED_95, Verdict, undefined_interval
from assay.discovery.heads.membership import predict_from_weights, weight_features
from assay.discovery.heads.scores import mean_over_examples
from assay.page.text import number


N_BOOT = 999
_GROUPS = replace(SHARE_BETWEEN_GROUPS, label="spread between groups (C13)", qualified_by="")
_DECISIVE = {"d_prime": "d′", "hit_rate": "hits", "false_alarm_rate": "false alarms"}


def _columns(c: Any) -> dict[str, Any]:
    """A column for each row."""
    table, full, kept = c.table, c.get("y_full"), c.run(f"y_keep/{c.table.ablation}")
    attribution, minimality = c.find("attribution"), None
    edges = () if table.head_circuit is None else table.head_circuit.head_edges
    if table.k > 0:
        without = c.get("y_minus1")
        usable = np.isfinite(without).all(axis=1) & np.isfinite(full) & np.isfinite(kept)
        minimality = _shares(kept[usable].sum() - without[usable].sum(axis=0), float(full[usable].sum()))

    def ratio(column: str, inner: str = "faithfulness") -> stats.Estimate | None:
        runs = None if c.find(column) is None else c.run(column)
        return None if runs is None else ratio_estimate(runs, full, inner, unit_id=c.unit_id, seed=table.seed)

    restored, gap = c.restored(), c.gap()
    usable = np.isfinite(gap) & np.isfinite(restored[:, np.isfinite(restored).any(axis=0)]).all(axis=1)
    return {
        "scores": _shares(restored[usable].sum(axis=0), float(gap[usable].sum())),
        "llc": c.get("llc"),
        "attribution": None if attribution is None else np.abs(mean_over_examples(attribution)),
        "predicted": _predicted(c),
        "published_members": c.listed,
        "spectral_norm": c.get("spectral_norm"),
        "sv_entropy": c.get("sv_entropy"),
        "composition": {key: c.get(f"composition/{key}") for key in "qkv"} if edges else None,
        "head_edges": edges,
        "n_heads": table.model.n_heads,
        "minimality": minimality,
        "partial_eta_sq": c.verdicts.get("measurement-invariance"),
        "faithfulness": ratio(f"y_keep/{table.ablation}"),
        "completeness": ratio(f"y_drop/{table.ablation}", "completeness"),
        # Scrub recovery: faithfulness with the complement's activations from other prompts.
        "logit_diff_recovery": ratio("y_keep/resample-donor"),
        "n_prompts": table.P,
    }


def _shares(sums: Scores, total: float) -> Scores:
    return sums / total if total else np.full(len(sums), np.nan)


def _predicted(c: Any) -> Flags | None:
    """A head set predicted from weights by a rule learnt from the circuits of two or more other tasks."""
    circuits = {f"other-{place}": other.members for place, other in enumerate(c.tables)}
    circuits["own"] = c.table.members
    if len(c.tables) < 2 or any(not 0 < members.sum() < c.table.H for members in circuits.values()):
        return None
    found = predict_from_weights(weight_features(c.table.model), circuits)["own"]
    return None if found.reason else found.predicted


@gate(
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
    number=replace(ROWS["d_prime"], value="d_prime", published="d_prime"),
    parts={**ROWS, "partial_eta_sq": _GROUPS},
    decisive=tuple(_DECISIVE),
    reasons={
        "not_applicable": ("It needs a score of every head, inside and outside.", "Measure all heads."),
        "stricter_level": ("A part fails at 5 %, but none at its share of the 5 % of the whole.", ""),
        "too_few": (
            "With only one head inside or outside the circuit, the spread on that side cannot be estimated.",
            "Give a circuit of two heads or more that leaves out two or more.",
        ),
    },
    parts_share_reasons=False,
    when_open="The bounds come from the heads, whose number is fixed: only a clearer score or a better "
    "circuit would settle it.",
    columns=_columns,
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
    columns = (scores, llc, attribution, predicted, published_members, spectral_norm, sv_entropy, pc_ratio)
    if any(column is not None and column.shape != members.shape for column in columns):
        shapes = [None if column is None else column.shape for column in columns]
        raise ShapeError(f"columns have shapes {shapes}; one entry per head, {members.shape}, is needed")
    if composition and n_heads is None:
        raise InputError("composition needs n_heads, the number of heads per layer, to read head_edges")
    given: dict[str, Any] = {**locals(), **(composition or {}), "level": ONE_SIDED_95}
    given["published"] = published_size if published_members is None else published_members
    parts = {name: _judge_row(name, given) for name in ROWS}
    deciding = {name: parts[name] for name in _DECISIVE if name == "d_prime" or predicted is not None}
    strict = deciding
    if predicted is not None:  # a conjunction fails where one of three parts does: they share the 5 %
        level = {"level": 1 - 2 * ALPHA / 3}
        strict = {name: _judge_row(name, given | level) for name in deciding}
    found = Found(parts=parts, interval=parts["d_prime"].interval)
    open_rows = [each for each in deciding if deciding[each].status != "pass" and not deciding[each].reason]
    if len(open_rows) > 1:
        short = [f"{_DECISIVE[each]} {number(deciding[each].values['value'])}" for each in open_rows]
        found.details["finding"] = f"Not established: {named(short)}."
    for channel in ("ov", "q", "k"):
        claim = f"head edges compose more than other pairs ({channel})"
        row = parts[f"{channel}_composition_pval"]
        found.claim(f"C14/{channel}", claim, row.values["value"], "t", claimed=row.status == "pass")
    for each in () if partial_eta_sq is None else claims_of(partial_eta_sq):
        found.details["claims"].append({**each, "claimed": each["passed"]})
    found.values = {name: part.values["value"] for name, part in deciding.items()}
    found.thresholds = {name: part.thresholds.get("pass") for name, part in deciding.items()}
    found.status = conjunction([part.status for part in deciding.values()])
    found.published = conjunction([part.published for part in deciding.values()])
    scored = [each for each in (scores, llc, attribution) if each is not None]
    found.warn(missing_heads=not all(np.isfinite(each).all() for each in scored))
    reason = next((part.reason for part in deciding.values() if part.reason), None)
    if found.interval is None:
        raise Undetermined(reason or "undefined", found, published="inconclusive")
    if found.status == "fail" and "fail" not in [part.status for part in strict.values()]:
        found.open("stricter_level")
    elif found.status == "inconclusive":
        found.open(reason)
    return found


def _judge_row(name: str, given: Given) -> Verdict:
    """The verdict of a row; `not_applicable` without its input."""
    row = ROWS[name]
    try:
        if given.get(row.column) is None:
            raise Undetermined("not_applicable")
        found = row.find(given[row.column], given)
        return found if isinstance(found, Verdict) else row.judge(found)
    except Undetermined as why:
        word, found = "inconclusive", why.found
        none = Verdict(status=word, published=word, values={"value": None}, reason=found.reason)
        return replace(none, warnings=found.warnings)


def ratio_estimate(
    y_circuit: Any, y_full: Any, inner: str = "faithfulness", *, unit_id: Any = None, seed: int = SEED
) -> stats.Estimate | None:
    """Faithfulness or completeness of runs with the bounds that C14 forwards.

    The outermost of bootstrap-t over prompts and of the usual interval (BCa, or Fieller's where the
    denominator is unstable), without ends below twenty prompts (`too_few`); None below two prompts.
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
