"""C14, derived sensitivity metrics: do scores tell a circuit's heads from the rest?"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay import stats
from assay.analyses.calibration import samples
from assay.analyses.calibration.gate import SEED, Found, Part, Undetermined, gate, gate_stream, named
from assay.analyses.calibration.invariance import SHARE_BETWEEN_GROUPS
from assay.analyses.calibration.multiplicity import claims_of
from assay.analyses.calibration.samples import ALPHA, N_BOOT, conjunction, importance, mean, overlap, ratio
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import ONE_SIDED_95, Rule, Verdict, undefined_interval
from assay.discovery.heads.membership import set_overlap
from assay.discovery.heads.scores import mean_over_examples
from assay.discovery.heads.weights import edge_test
from assay.page.text import number


Scores = Float64[np.ndarray, " H"]
Flags = Bool[np.ndarray, " H"]
Given = Mapping[str, Any]  # arguments of `derived_metrics` by name, and the `level` of what decides

_GROUPS = replace(SHARE_BETWEEN_GROUPS, label="spread between groups (C13)", qualified_by="")
_DECISIVE = {"d_prime": "d′", "hit_rate": "hits", "false_alarm_rate": "false alarms"}


# ---- the rows -------------------------------------------------------------------------------------------


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
    found = samples.reported(estimate.value, estimate.reason)
    found.interval = estimate.interval or undefined_interval(ONE_SIDED_95, "none", "no_interval")
    found.n, few = given["n_prompts"] or None, found.interval.reason == "too_few"
    found.n_needed = samples.FEWEST_FOR_RATIOS if found.n and few else None
    return found


def _named(predicted: Flags, given: Given) -> Found:
    members, hits = given["members"], given["row"] == "hit_rate"
    found = samples.share_named(predicted, members if hits else ~members, members, given["level"])
    if hits:
        right = set_overlap(predicted, members).precision
        found.values["precision"] = None if np.isnan(right) else right
    return found


def _apart(column: Scores, given: Given) -> Found:
    """D' or AUROC of heads like these.

    With fewer than 15 on a side it cannot be a pass: skewed scores at the limit would pass too often.
    """
    row, area = given["row"], given["row"] == "attribution_auroc"
    both = samples.sides(-column if row == "llc_d_prime" else column, given["members"])
    found = samples.apart(*both, given["members"], area=area, magnitudes=row == "d_prime")
    how: dict[str, Any] = {"level": given["level"] if row == "d_prime" else ONE_SIDED_95, "area": area}
    rng = gate_stream("C14", f"{given['task']}/{row}", seed=given["seed"])
    found.interval = samples.separation_bounds(found, both, n_boot=given["n_boot"], rng=rng, **how)
    few = min(map(len, both)) < 15 and found.interval.method != "clopper-pearson"
    if few and (rule := ROWS[row].rule) and rule.rigorous(found.interval) in ("pass", "moderate"):
        found.open("too_few_heads")
    return found


_D_PRIME, _AUC = Rule(pass_at=1.0), Rule(pass_at=0.85, fail_at=0.7)
_HALF, _RATIO = Rule(pass_at=0.5, strict=False), Rule(pass_at=0.8, strict=False)
_P, _FEW = Rule(pass_at=ALPHA, higher=False, open_ended=True), Rule(pass_at=0.2, higher=False)
_RANKS = "probability that a member ranks above another head"
_SCRUBBED = "margin recovered by scrubbing"
ROWS: Mapping[str, Part] = {
    "sparsity": Part("members", lambda x, _: mean(x, "too_few"), label="share of heads in the circuit"),
    "node_overlap_jaccard": Part("published", overlap, label="overlap with the published heads", rule=_HALF),
    "spectral_norm_ratio": Part("spectral_norm", samples.norms, label="spectral norm, members over others"),
    "sv_entropy_ratio": Part("sv_entropy", ratio, label="entropy of singular values, members over others"),
    "d_prime": Part("scores", _apart, label="d′ of the scores", rule=_D_PRIME),
    "llc_d_prime": Part("llc", _apart, label="d′ of the learning coefficient, sign reversed", rule=_D_PRIME),
    "hit_rate": Part("predicted", _named, label="members found by the prediction", rule=Rule(pass_at=0.9)),
    "false_alarm_rate": Part("predicted", _named, label="other heads that it names", rule=_FEW),
    "partial_eta_sq": Part("partial_eta_sq", lambda verdict, _: verdict, label=""),
    "pc_ratio_circuit_mean": Part("pc_ratio", samples.mean_inside, label="pc_ratio, mean of members"),
    "pc_ratio_noncircuit_mean": Part("pc_ratio", samples.mean_outside, label="pc_ratio, mean of the others"),
    "pc_ratio_d_prime": Part("pc_ratio", samples.others_above, label="pc_ratio, d′"),
    "ov_composition_pval": Part("v", _composed, label="OV composition on the edges, p", rule=_P),
    "q_composition_pval": Part("q", _composed, label="query composition on the edges, p", rule=_P),
    "k_composition_pval": Part("k", _composed, label="key composition on the edges, p", rule=_P),
    "attribution_auroc": Part("attribution", _apart, label=_RANKS, rule=_AUC),
    "faithfulness": Part("faithfulness", _forwarded, label="faithfulness", rule=_RATIO),
    "completeness": Part("completeness", _forwarded, label="completeness", rule=_RATIO),
    "minimality_mean_importance": Part("minimality", importance, label="mean loss without one of the heads"),
    "logit_diff_recovery": Part("logit_diff_recovery", _forwarded, label=_SCRUBBED, rule=Rule(pass_at=0.5)),
}


# ---- the gate -------------------------------------------------------------------------------------------


def _columns(c: Any) -> dict[str, Any]:
    """A column for each row."""
    table, attribution = c.table, c.find("attribution")
    edges = () if table.head_circuit is None else table.head_circuit.head_edges
    return {
        "minimality": c.lost_shares,
        "scores": c.restored_shares,
        **{name: c.get(name) for name in ("llc", "spectral_norm", "sv_entropy")},
        "attribution": None if attribution is None else np.abs(mean_over_examples(attribution)),
        "predicted": c.predicted,
        "published_members": c.listed,
        "composition": {key: c.get(f"composition/{key}") for key in "qkv"} if edges else None,
        "head_edges": edges,
        "n_heads": table.model.n_heads,
        "partial_eta_sq": c.verdicts.get("measurement-invariance"),
        "faithfulness": c.ratio(f"y_keep/{table.ablation}"),
        "completeness": c.ratio(f"y_drop/{table.ablation}", "completeness"),
        # Scrub recovery: faithfulness with the complement's activations from other prompts.
        "logit_diff_recovery": c.ratio("y_keep/resample-donor"),
        "n_prompts": table.P,
    }


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
    parts = {name: row.verdict({**given, "row": name}) for name, row in ROWS.items()}
    deciding = {name: parts[name] for name in _DECISIVE if name == "d_prime" or predicted is not None}
    strict = deciding
    if predicted is not None:  # a conjunction fails where one of three parts does: they share the 5 %
        given["level"] = 1 - 2 * ALPHA / 3
        strict = {name: ROWS[name].verdict({**given, "row": name}) for name in deciding}
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
