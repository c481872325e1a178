"""Do several ways of scoring heads order them alike? C12, convergent validity; F59, agreement of raters."""

import itertools
import math
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay import stats
from assay.analyses.calibration.correlations import FEWEST_PROMPTS, Methods, Scores, best_of, upper
from assay.analyses.calibration.gate import Found, Quantity, Sampling, gate
from assay.core.errors import check_name
from assay.core.measurement import Rule
from assay.stats.significance import EXACT_RANKS


LEARNING_COEFFICIENT = "C10"  # the method of which a low score may mean an important head
_OPEN = (
    "The correlation is too close to its limit; scores per prompt of more methods would narrow the bounds."
)
_correlation = partial(Quantity, fewest=FEWEST_PROMPTS)
_METHODS = _correlation(
    label="mean rank correlation of methods",
    value="mean_rho",
    published="mean_rho_zero_filled",
    rule=Rule(pass_at=0.5),
)
_ICC = _correlation(label="agreement of standardised scores (ICC)", rule=Rule(pass_at=0.7))
_RHO = _correlation(label="mean rank correlation of raters", rule=Rule(pass_at=0.0))
_KAPPA = _correlation(label="agreement on the best heads (κ)", rule=Rule(pass_at=0.4))
_W = Quantity(label="concordance of raters (W)", value="w", published="w", rule=Rule(pass_at=0.5))


@gate(
    code="C12",
    criterion="C5 Convergent validity",
    question="Do different methods order the heads alike?",
    on_pass="head ranking is a property of the model rather than of one method",
    on_fail="the circuit is method-dependent; name the dissenting method before interpreting",
    weakness="filling missing heads with zero makes ties; the many near-zero heads dominate the correlation",
    source="mechanistic-validity framework; Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420",
    number=_METHODS,
    parts={"icc": _ICC},
    reasons={"not_applicable": ("It needs two methods that score five heads.", "Measure other scores.")},
    when_open=_OPEN,
    columns=lambda c: {
        # Causation entropy is one of tasks with wrong answers.
        "scores": c.known(
            {"C2": c.restored(), "C5": c.effects("y_cross"), "C7": c.find("ocse"), "C10": c.get("llc")}
        )
    },
    reads=("task", "seed", "unit_id", "n_boot", "n_perm"),
)
def convergent_validity(
    scores: Scores,
    *,
    members: Bool[np.ndarray, " H"] | None = None,
    use: str = "signed",
    llc_direction: str = "raw",
    how: Sampling,
) -> Found:
    """Mean rank correlation of the scores that different methods give to the same heads.

    Args:
        scores: Method -> `[H]` scores or `[P, H]` scores per prompt, at least two methods. NaN marks a head
            that the method does not score (a whole column) or a prompt to drop from all methods.
        members: The circuit's heads: Jaccard compares sets of as many, `rho_top` twice as many.
        use: `signed` or `abs` scores.
        llc_direction: `specialised` turns the scores of C10 round (low is important); `raw` leaves them.
        how: Resampled are prompts where any method has a score per prompt, else heads.

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
    found, size = Found(thresholds={"icc_good": 0.7}), np.abs if use == "abs" else np.asarray
    turned = LEARNING_COEFFICIENT if llc_direction == "specialised" else None

    def orient(name: str, x: Any) -> Any:
        return -size(x) if name == turned else size(x)

    methods = Methods.of(found, scores, orient, members, how.unit_id)
    found.details["constant_methods"] = [name for name in scores if name not in methods.names]
    if LEARNING_COEFFICIENT in scores and not turned:
        found.details["note"] = "C10 enters as it is; with llc_direction='specialised' low scores rank first"
    x, n_heads = methods.scores, methods.scores.shape[1]
    found.stop_if(len(methods.names) < 2 or n_heads < 5, "not_applicable")
    rng, found.n = how.stream("C12"), methods.n_units
    rho = upper(stats.spearman_matrix(x))
    found.interval, reliabilities = methods.bounds(stats.spearman_matrix, rng, how.n_boot, ranked=True)
    each_two = list(itertools.combinations(range(len(x)), 2))
    p_values = [
        stats.spearman_test(x[a], x[b], rng=rng, n_permutations=how.n_perm).p_value for a, b in each_two
    ]
    z = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, ddof=1, keepdims=True)
    icc = stats.intraclass_correlation(z.T)
    of_r, _ = methods.bounds(stats.pearson_matrix, how.stream("C12", "/icc"), how.n_boot, ranked=False)
    # Of standardised scores ICC(2,1) is r / (1 - (1 - r) / n) of their mean correlation r.
    low, high = (r / (1 - (1 - r) / n_heads) for r in (of_r.low, of_r.high))
    of_icc = replace(of_r, low=low, high=high)
    by_icc = Found(values={"value": icc.agreement.value}, interval=of_icc, n=found.n)
    found.parts = {"icc": _ICC.judge(by_icc)}
    rho_top, jaccard = {}, {}
    if k := methods.size(members):
        best, wide = (best_of(x, min(each, n_heads)) for each in (k, 2 * k))
        for (a, b), name in zip(each_two, map("/".join, methods.pairs), strict=True):
            rho_top[name] = float(stats.spearman_matrix(x[[a, b]][:, wide[a] | wide[b]])[0, 1])
            jaccard[name] = float((best[a] & best[b]).sum() / (best[a] | best[b]).sum())
    told = methods.told(rho, reliabilities)
    zero_filled = upper(stats.spearman_matrix(methods.filled))
    found.values = {"mean_rho": float(rho.mean()), "mean_rho_zero_filled": _mean(zero_filled)}
    found.values |= {"icc_2_1": icc.agreement.value, "icc_2_k": icc.agreement_mean.value}
    found.values |= {"rho_top": _mean(rho_top.values()), "mean_jaccard": _mean(jaccard.values())}
    found.values["mean_disattenuated"] = _mean(told["disattenuated"].values())
    found.details |= {"rho_top": rho_top, "jaccard": jaccard, **told, "n_heads_common": n_heads}
    found.details["p_values"] = methods.by_pair(p_values)
    kind = "exact" if n_heads <= EXACT_RANKS else "permutation"
    for name, p, r in zip(map("/".join, methods.pairs), p_values, rho, strict=True):
        claim, about = f"{name} order the heads alike", {"value": float(r), "baseline": 0.0, "n": n_heads}
        found.claim(f"C12/{name}", claim, p, kind, claimed="pass" if r > 0 else False, **about)
    found.details["lowest_pair"] = methods.least_alike(found, rho)
    return found


def _mean(values: Collection[float] | Float64[np.ndarray, " _"]) -> float | None:
    """Mean of what is defined; None if nothing is."""
    defined = [float(value) for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None


@gate(
    code="F59",
    name="Inter-rater agreement",
    criterion="M1 Reliability",
    question="Do raters of heads agree on their order and on the best of them?",
    on_pass="these raters order the heads alike",
    on_fail="the order of heads depends on the rater; name the dissenting one before interpreting",
    weakness="W is 1/m by chance; with 12 heads random rankings of three raters exceed 0.5 in 9 % of cases",
    source="mechanistic-validity framework; Kendall and Babington Smith (1939), doi:10.1214/aoms/1177732186",
    number=_W,
    parts={"kendalls_w": _W, "mean_spearman": _RHO, "mean_kappa": _KAPPA},
    reasons={"not_applicable": ("It needs two raters that tell heads apart.", "Measure other scores.")},
    parts_share_reasons=False,
    when_open=_OPEN,
    columns=lambda c: {
        "scores": c.known({"drop-effect": c.effects(), "dla": c.find("dla"), "ov-norm": c.find("ov_norm")})
    },
    reads=("task", "seed", "unit_id", "n_boot", "n_perm"),
)
def inter_rater(
    scores: Scores,
    *,
    members: Bool[np.ndarray, " H"] | None = None,
    signed: Collection[str] = (),
    how: Sampling,
) -> Found:
    """Kendall's W, mean rank correlation and mean kappa of raters over all heads.

    Args:
        scores: Rater -> `[H]` scores or `[P, H]` scores per prompt, of which the mean counts; its magnitude
            unless the rater is `signed`.
        members: The circuit's heads: kappa compares top sets of as many.
        signed: Raters whose sign counts: an opposing head then ranks low and disagrees with norms by design.
        how: Resampled are prompts where any rater has scores per prompt, else heads.

    Returns:
        The status is that of W > 0.5, stated on the mean rank correlation with the same bound
        (m - 2) / (2 (m - 1)): 0.25 for three raters. Published: W > 0.5 and kappa > 0.4 pass, one of them is
        moderate. Kappa has a verdict of its own in `sub_results`, bounded over prompts in the same way, over
        heads by the outermost of percentiles with the top sets kept and chosen anew. Over prompts open below
        20 (`too_few`) and where a rater's reliability is below 0.5 (`unreliable_scores`). Without a circuit
        of 1 to H - 1 heads kappa is undefined, and with it the published rule.
    """
    for name in signed:
        check_name("signed rater", name, scores)
    found = Found(thresholds={"w": 0.5, "kappa": 0.4})

    def orient(name: str, x: Any) -> Any:
        return x if name in signed else np.abs(x)

    raters = Methods.of(found, scores, orient, members, how.unit_id)
    found.details["constant_raters"] = [name for name in scores if name not in raters.names]
    m, n_heads = raters.scores.shape
    found.stop_if(m < 2, "not_applicable")
    rng, limit = how.stream("F59"), (m - 2) / (2 * (m - 1))
    concordance = stats.kendall_w(raters.scores, rng=rng, n_permutations=how.n_perm)
    interval, reliabilities = raters.bounds(stats.spearman_matrix, rng, how.n_boot, ranked=True)
    rho, chi_square, at = concordance.mean_spearman, concordance.chi_square, {"pass": limit, "fail": limit}
    by_rho = _RHO.judge(Found(values={"value": rho}, interval=interval, n=raters.n_units, thresholds=at))
    low, high = ((1 + (m - 1) * end) / m for end in (interval.low, interval.high))
    found.interval = replace(interval, low=low, high=high)
    found.status, found.reason, found.n_needed = by_rho.status, by_rho.reason, by_rho.n_needed
    found.values = {"w": concordance.w.value, "chance": 1 / m}
    found.values["p_permutation"] = concordance.permutation.p_value
    found.values |= {"chi_square": chi_square.statistic, "p_chi_square": chi_square.p_value}
    by_w = _W.judge(replace(found, thresholds={}, details={}, warnings=()))
    k, of_kappa, kappa_pairs = raters.size(members), Found(values={"value": None}, n=raters.n_units), {}
    if k is None or k in (0, n_heads):
        of_kappa = of_kappa.undefined("not_applicable" if k is None else "one_category")
    else:
        pairs, of_kappa.interval = raters.kappa(k, how.n_boot, how.stream("F59", "/kappa"))
        of_kappa.values["value"], kappa_pairs = float(pairs.mean()), raters.by_pair(pairs)
    by_kappa = _KAPPA.judge(of_kappa)
    found.parts = {"kendalls_w": by_w, "mean_spearman": by_rho, "mean_kappa": by_kappa}
    words = (by_w.published, by_kappa.published)
    passed = ("fail", "moderate", "pass")[words.count("pass")]
    found.published = "inconclusive" if "inconclusive" in words else passed
    found.values = {**found.values, "mean_rho": rho, "mean_kappa": by_kappa.values["value"]}
    found.thresholds = {**found.thresholds, "mean_rho": limit}
    found.warn(kappa_undefined=by_kappa.reason is not None)
    by_pair = upper(concordance.spearman)
    found.details |= {**raters.told(by_pair, reliabilities), "kappa_pairs": kappa_pairs}
    about = {"value": concordance.w.value, "baseline": 1 / m, "n": n_heads}
    p = concordance.permutation.p_value
    found.claim("F59/w", "raters agree more than by chance", p, "permutation", **about)
    found.details |= {"worst_pair": raters.least_alike(found, by_pair), "n_raters": m, "n_heads": n_heads}
    return found
