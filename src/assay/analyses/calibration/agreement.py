"""Do several ways of scoring heads order them alike: convergent validity and agreement of raters."""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration._correlations import FEWEST_PROMPTS, upper
from assay.analyses.calibration._raters import (
    InCommon,
    Orient,
    Scores,
    all_oriented,
    checked_profiles,
    correlation_bounds,
    in_common,
    mean_defined,
    pair_names,
)
from assay.analyses.calibration._tables import Profiles, circuit_size, percentile_bounds
from assay.analyses.calibration.gate import SEED, Draft, gate, gate_stream, undefined
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.reasons import below
from assay.core.errors import InputError, check_least, check_name
from assay.core.verdict import Rule, Verdict
from assay.stats import (
    Concordance,
    intraclass_correlation,
    kappa_matrix,
    kendall_w,
    outermost,
    pearson_matrix,
    spearman_matrix,
    spearman_test,
    top_members,
)


FEWEST_HEADS = 5
LEARNING_COEFFICIENT = "C10"  # the method of which a low score may mean an important head
_NOISY_SCORES = below(
    FEWEST_PROMPTS, "the noise in the scores cannot be estimated well enough to correct for it"
)
_CONCORDANCE = Quantity(
    label="concordance of the raters (W)", value="w", published="w", limit="w", least=0.0, most=1.0
)


# ------------------------------------------------------------------------------------------------------ C12


@gate(
    key="convergent-validity",
    code="C12",
    name="Convergent validity",
    criterion="C5 Convergent validity",
    question="Do different methods order the heads alike?",
    on_pass="head ranking is a property of the model rather than of one method",
    on_fail="the circuit is method-dependent; name the dissenting method before interpreting",
    weakness=(
        "filling missing heads with zero manufactures ties; the many near-zero heads dominate the correlation"
    ),
    source="mechanistic-validity framework; Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420",
    number=Quantity(
        label="mean rank correlation of methods",
        value="mean_rho",
        published="mean_rho_zero_filled",
        least=-1.0,
        most=1.0,
    ),
    parts={"icc": Quantity(label="agreement of standardised scores (ICC)", least=-1.0, most=1.0)},
    reasons={
        "not_applicable": (
            "It needs two or more methods that score the same five or more heads.",
            "Measure another family of scores.",
        ),
        **_NOISY_SCORES,
    },
    when_open="The correlation is too close to its limit; scores per prompt for more methods would narrow "
    "the bounds.",
    compares="methods",
)
def convergent_validity(
    scores: Scores,
    *,
    members: Bool[np.ndarray, " H"] | None = None,
    k: int | None = None,
    use: str = "signed",
    llc_direction: str = "raw",
    reliabilities: Mapping[str, float] | None = None,
    unit_id: Shaped[np.ndarray, " P"] | None = None,
    n_boot: int = 1000,
    n_perm: int = 10_000,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Mean rank correlation of the scores that different methods give to the same heads.

    Args:
        scores: Method -> `[H]` scores or `[P, H]` scores per prompt, at least two methods. NaN marks a head
            that the method does not score (a whole column) or a prompt to drop from all methods.
        members: The circuit's heads; their number is the default of `k`.
        k: Size of the sets compared by Jaccard, and half the size of those `rho_top` looks at.
        use: `signed` or `abs` scores.
        llc_direction: `specialised` turns the scores of C10 round (low is important); `raw` leaves them.
        reliabilities: Method -> reliability of its profile in (0, 1], for correlations without attenuation.
        unit_id: Label of each prompt; prompts of one label are drawn together.
        n_boot: Resamples; over prompts where any method has a score per prompt, else over heads.
        n_perm: Permutations behind each pair's p.
        task: Names the random stream.
        seed: Roots it.

    Returns:
        Passes where the mean over pairs is above 0.5. `values`: `mean_rho`, `rho_top`, `icc_2_1` and
        `icc_2_k` of scores standardised per method, `mean_disattenuated`, `mean_jaccard`,
        `mean_rho_zero_filled` (what the published rule judges). `not_applicable` below two methods that vary,
        or five heads that all score. Over prompts open below 20 (`too_few`) and where a method's reliability
        is below 0.5 (`unreliable_scores`).

    Notes:
        Noise within prompts pulls the correlation of two methods towards 0, and resampling prompts adds as
        much noise again. Over prompts each bound is therefore the more cautious one of the percentile and of
        its reflection at the estimate. A pass needs the bound of the uncorrected mean, a fail that of the
        mean corrected for the methods' reliabilities.
    """
    check_name("use", use, ("signed", "abs"))
    check_name("llc_direction", llc_direction, ("raw", "specialised"))
    check_least(1, n_boot=n_boot, n_perm=n_perm)
    rule = Rule(pass_at=0.5)
    draft = Draft(thresholds={"pass": 0.5, "icc_good": 0.7})
    if len(scores) < 2:
        return draft.undefined("not_applicable")
    found = checked_profiles(scores, members, unit_id)
    if found.per_prompt and not found.n_prompts:
        return draft.undefined("no_valid_prompt")
    specialised = llc_direction == "specialised"

    def oriented(name: str, values: Float64[np.ndarray, "*rows n"]) -> Float64[np.ndarray, "*rows n"]:
        turned = name == LEARNING_COEFFICIENT and specialised
        return np.asarray((-1 if turned else 1) * (np.abs(values) if use == "abs" else values))

    common = in_common(found, oriented)
    draft.warnings = common.warnings
    draft.details = {"constant_methods": list(common.constant), "n_dropped": found.n_dropped}
    if LEARNING_COEFFICIENT in found.names and not specialised:
        draft.details["note"] = "C10 enters as it is; with llc_direction='specialised' low scores rank first"
    if len(common.names) < 2 or common.heads.sum() < FEWEST_HEADS:
        return draft.undefined("not_applicable")
    rng = gate_stream("C12", task, seed=seed)
    rho = upper(spearman_matrix(common.scores))
    correlation = correlation_bounds(common, spearman_matrix, ranked=True, n_boot=n_boot, rng=rng)
    zero_filled = _zero_filled(found, oriented)
    icc, by_icc = _icc(common, n_boot, gate_stream("C12", f"{task}/icc", seed=seed))
    size = circuit_size(k, None if members is None else members[common.heads], int(common.heads.sum()))
    at_top = _top_of_either(common, size)
    p_values = [
        spearman_test(a, b, rng=rng, n_permutations=n_perm).p_value
        for a, b in itertools.combinations(common.scores, 2)
    ]
    corrected = _disattenuated(common.pairs, rho, reliabilities or correlation.reliabilities)
    draft.values = {
        "mean_rho": float(rho.mean()),
        "mean_rho_zero_filled": zero_filled,
        "rho_top": mean_defined(list(at_top["rho_top"].values())),
        **icc,
        "mean_disattenuated": mean_defined(list(corrected.values())),
        "mean_jaccard": mean_defined(list(at_top["jaccard"].values())),
    }
    draft.details |= {
        **at_top,
        "pairs": pair_names(common.pairs, rho),
        "p_values": pair_names(common.pairs, np.array(p_values)),
        "disattenuated": corrected,
        "lowest_pair": list(common.pairs[int(np.argmin(rho))]),
        **correlation.details,
        "n_heads_common": int(common.heads.sum()),
    }
    return draft.verdict(
        correlation.judge(rule, float(rho.mean())),
        published="inconclusive" if zero_filled is None else rule.published(zero_filled),
        sub_results={"icc": by_icc},
    )


def _zero_filled(found: Profiles, orient: Orient) -> float | None:
    """The published mean correlation: heads that a method does not score count as 0."""
    measured = found.means[:, np.isfinite(found.means).any(axis=0)]
    filled = all_oriented(found.names, np.nan_to_num(measured), orient)
    return mean_defined(upper(spearman_matrix(filled)).tolist())


def _icc(common: InCommon, n_boot: int, rng: np.random.Generator) -> tuple[dict[str, float], Verdict]:
    """ICC of scores standardised per method: of one and of the mean of all, and the verdict on the first."""
    centred = common.scores - common.scores.mean(axis=1, keepdims=True)
    icc = intraclass_correlation((centred / common.scores.std(axis=1, ddof=1, keepdims=True)).T)
    bounds = correlation_bounds(common, pearson_matrix, ranked=False, n_boot=n_boot, rng=rng)
    verdict = bounds.judge(Rule(pass_at=0.7), icc.agreement.value, lambda r: _as_icc(r, icc.n_targets))
    return {"icc_2_1": icc.agreement.value, "icc_2_k": icc.agreement_mean.value}, verdict


def _as_icc(correlation: float, n: int) -> float:
    """ICC(2,1) of scores standardised per method, from their mean correlation: r / (1 - (1 - r) / n)."""
    return correlation / (1 - (1 - correlation) / n)


def _top_of_either(common: InCommon, k: int | None) -> dict[str, dict[str, float]]:
    """Per pair: rho among the 2k best heads of either method, Jaccard of the k best."""
    result: dict[str, dict[str, float]] = {"rho_top": {}, "jaccard": {}}
    if not k:
        return result
    n = common.scores.shape[1]
    best = [top_members(row, min(k, n)) for row in common.scores]
    wide = [top_members(row, min(2 * k, n)) for row in common.scores]
    for a, b in itertools.combinations(range(len(common.names)), 2):
        name = f"{common.names[a]}/{common.names[b]}"
        either = wide[a] | wide[b]
        result["rho_top"][name] = float(spearman_matrix(common.scores[[a, b]][:, either])[0, 1])
        result["jaccard"][name] = float((best[a] & best[b]).sum() / (best[a] | best[b]).sum())
    return result


def _disattenuated(
    pairs: list[tuple[str, str]], rho: Float64[np.ndarray, " _"], reliabilities: Mapping[str, float] | None
) -> dict[str, float]:
    """Rho over the root of both reliabilities; NaN where one is unknown or not positive. May exceed 1."""
    known = reliabilities or {}
    result = {}
    for (a, b), value in zip(pairs, rho, strict=True):
        first, second = known.get(a, math.nan), known.get(b, math.nan)
        usable = first > 0 and second > 0
        result[f"{a}/{b}"] = float(value) / math.sqrt(first * second) if usable else math.nan
    return result


# ------------------------------------------------------------------------------------------------------ F59


@gate(
    key="inter-rater",
    code="F59",
    name="Inter-rater agreement",
    criterion="M1 Reliability",
    question="Do raters of heads agree on their order and on the best of them?",
    on_pass="these raters order the heads alike",
    on_fail="the order of heads depends on the rater; name the dissenting one before interpreting",
    weakness="W is 1/m by chance; with 12 heads random rankings of three raters exceed 0.5 in 9 % of cases",
    source="mechanistic-validity framework; Kendall and Babington Smith (1939), doi:10.1214/aoms/1177732186",
    number=_CONCORDANCE,
    parts={
        "kendalls_w": replace(_CONCORDANCE, limit="pass"),
        "mean_spearman": Quantity(label="mean rank correlation of raters", least=-1.0, most=1.0),
        "mean_kappa": Quantity(label="agreement on the best heads (κ)", least=-1.0, most=1.0),
    },
    reasons={
        "not_applicable": (
            "It needs two or more raters whose scores differ between heads.",
            "Measure another family of scores.",
        ),
        **_NOISY_SCORES,
    },
    parts_share_reasons=False,
    when_open="The correlation is too close to its limit; scores per prompt for more raters would narrow "
    "the bounds.",
    compares="raters",
)
def inter_rater(
    scores: Scores,
    *,
    members: Bool[np.ndarray, " H"] | None = None,
    k: int | None = None,
    signed: Collection[str] = (),
    unit_id: Shaped[np.ndarray, " P"] | None = None,
    n_boot: int = 1000,
    n_perm: int = 10_000,
    task: str = "",
    seed: int = SEED,
) -> Verdict:
    """Kendall's W, mean rank correlation and mean kappa of raters over all heads.

    Args:
        scores: Rater -> `[H]` scores or `[P, H]` scores per prompt, of which the mean counts; its magnitude
            unless the rater is `signed`.
        members: The circuit's heads; their number is the default of `k`.
        k: Size of the top sets that kappa compares.
        signed: Raters whose sign counts: an opposing head then ranks low and disagrees with norms by design.
        unit_id: Label of each prompt; prompts of one label are drawn together.
        n_boot: Resamples; over prompts where any rater has scores per prompt, else over heads.
        n_perm: Permutations behind the p of W.
        task: Names the random stream.
        seed: Roots it.

    Returns:
        The status is that of W > 0.5, stated on the mean rank correlation with the same bound
        (m - 2) / (2 (m - 1)): 0.25 for three raters. Published: W > 0.5 and kappa > 0.4 pass, one of them is
        moderate. Kappa has a verdict of its own in `sub_results`, bounded over prompts in the same way, over
        heads by the outermost of percentiles with the top sets kept and chosen anew. Over prompts open below
        20 (`too_few`) and where a rater's reliability is below 0.5 (`unreliable_scores`). Without a circuit
        of 1 to H - 1 heads kappa is undefined, and with it the published rule.
    """
    check_least(1, n_boot=n_boot, n_perm=n_perm)
    draft = Draft(thresholds={"w": 0.5, "kappa": 0.4})
    unknown = set(signed) - set(scores)
    if unknown:
        raise InputError(f"signed names {sorted(unknown)}, but the raters are {sorted(scores)}")
    if len(scores) < 2:
        return draft.undefined("not_applicable")
    found = checked_profiles(scores, members, unit_id)
    if found.per_prompt and not found.n_prompts:
        return draft.undefined("no_valid_prompt")
    common = in_common(found, lambda name, values: values if name in signed else np.abs(values))
    draft.warnings = common.warnings
    draft.details = {"constant_raters": list(common.constant), "n_dropped": found.n_dropped}
    if len(common.names) < 2:
        return draft.undefined("not_applicable")
    rng = gate_stream("F59", task, seed=seed)
    m, n = common.scores.shape
    concordance = kendall_w(common.scores, rng=rng, n_permutations=n_perm)
    limit = (m - 2) / (2 * (m - 1))
    correlation = correlation_bounds(common, spearman_matrix, ranked=True, n_boot=n_boot, rng=rng)
    by_rho = correlation.judge(Rule(pass_at=limit), concordance.mean_spearman)
    by_w = _as_w(by_rho, concordance, m)
    kappa, pairs = _kappa(
        common,
        circuit_size(k, None if members is None else members[common.heads], n),
        n_boot,
        gate_stream("F59", f"{task}/kappa", seed=seed),
    )
    rho = upper(concordance.spearman)
    words = [each.published for each in (by_w, kappa)]
    published = {2: "pass", 1: "moderate", 0: "fail"}[words.count("pass")]
    draft.thresholds = {**draft.thresholds, "mean_rho": limit}
    draft.values = {
        **by_w.values,
        "mean_rho": concordance.mean_spearman,
        "mean_kappa": kappa.values["value"],
    }
    draft.warn("kappa_undefined", kappa.reason is not None)
    draft.details |= {
        "pairs": pair_names(common.pairs, rho),
        "kappa_pairs": pairs,
        "worst_pair": list(common.pairs[int(np.argmin(rho))]),
        "disattenuated": _disattenuated(common.pairs, rho, correlation.reliabilities),
        **correlation.details,
        "n_raters": m,
        "n_heads": n,
    }
    return draft.verdict(
        by_w,
        published="inconclusive" if "inconclusive" in words else published,
        sub_results={"kendalls_w": by_w, "mean_spearman": by_rho, "mean_kappa": kappa},
    )


def _as_w(by_rho: Verdict, concordance: Concordance, m: int) -> Verdict:
    """The verdict on the mean rank correlation of m raters, stated on W = (1 + (m - 1) rho) / m."""
    interval = by_rho.interval
    assert interval is not None
    low, high = ((1 + (m - 1) * end) / m for end in (interval.low, interval.high))
    return replace(
        by_rho,
        published=Rule(pass_at=0.5).published(concordance.w.value),
        values={
            "w": concordance.w.value,
            "chi_square": concordance.chi_square.statistic,
            "p_chi_square": concordance.chi_square.p_value,
            "p_permutation": concordance.permutation.p_value,
            "chance": 1 / m,
        },
        thresholds={"pass": 0.5, "fail": 0.5},
        interval=replace(interval, low=low, high=high),
    )


def _kappa(
    common: InCommon, k: int | None, n_boot: int, rng: np.random.Generator
) -> tuple[Verdict, dict[str, float]]:
    """Mean kappa of the top-k sets, judged, and that of each pair."""
    rule = Rule(pass_at=0.4)
    n = common.scores.shape[1]
    if k is None or k in (0, n):
        reason = "not_applicable" if k is None else "one_category"
        return undefined(reason, values={"value": None}, thresholds={"pass": 0.4, "fail": 0.4}), {}
    each = upper(kappa_matrix(_best(common.scores, k)))
    value = float(each.mean())
    if common.tables:
        judged = correlation_bounds(
            common, lambda scores: kappa_matrix(_best(scores, k)), ranked=False, n_boot=n_boot, rng=rng
        ).judge(rule, value)
        return judged, pair_names(common.pairs, each)
    draws = rng.integers(0, n, (n_boot, n))
    # A resample without any chosen head has no kappa: those pairs are left out of its mean.
    resampled = upper(kappa_matrix(_best(common.scores, k)[:, draws].swapaxes(0, 1)))
    defined = np.isfinite(resampled)
    fixed = np.divide(
        np.where(defined, resampled, 0.0).sum(axis=-1),
        defined.sum(axis=-1),
        out=np.full(n_boot, np.nan),
        where=defined.any(axis=-1),
    )
    chosen = upper(kappa_matrix(_best(common.scores[:, draws].swapaxes(0, 1), k))).mean(axis=-1)
    interval = outermost(percentile_bounds(value, chosen), percentile_bounds(value, fixed))
    return replace(rule.judge(value, interval, n), n_needed=None), pair_names(common.pairs, each)


def _best(scores: Float64[np.ndarray, "*rows m n"], k: int) -> Bool[np.ndarray, "*rows m n"]:
    """The k best heads of each method, ties to the lower index, as `top_members` takes them."""
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    order = np.argsort(-scores, axis=-1, kind="stable")
    np.put_along_axis(chosen, order[..., :k], True, axis=-1)
    return chosen
