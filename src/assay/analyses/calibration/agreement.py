"""Do several ways of scoring heads order them alike: convergent validity and agreement of raters."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.analyses.calibration._correlations import FEWEST_PROMPTS, Matrix, over_heads, over_prompts, upper
from assay.analyses.calibration._tables import (
    Profiles,
    circuit_size,
    percentile_bounds,
    profiles,
    scored_heads,
)
from assay.analyses.calibration.gate import SEED, gate, gate_stream, positive, undefined
from assay.core.errors import InputError, ShapeError
from assay.core.measurement import Interval, Rule, Verdict
from assay.stats import (
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

Scores = Mapping[str, Any]
Orient = Callable[[str, Float64[np.ndarray, "*rows n"]], Float64[np.ndarray, "*rows n"]]


# --------------------------------------------------------------------------------------------- shared parts


@dataclass(frozen=True, kw_only=True, eq=False)
class _Common:
    """Methods that vary, on the heads that all of them score."""

    names: tuple[str, ...]
    scores: Float64[np.ndarray, "m n"]
    tables: Mapping[str, Float64[np.ndarray, "n_units n"]]
    n_units: int
    orient: Orient
    heads: Bool[np.ndarray, " H"]
    warnings: tuple[str, ...]
    constant: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations(self.names, 2))

    def averaged(self, weights: Float64[np.ndarray, "rows n_units"]) -> Float64[np.ndarray, "rows m n"]:
        """Scores from weighted means over the units; those without a score per prompt as they are."""
        fixed = np.broadcast_to(self.scores, (len(weights), *self.scores.shape))
        columns = [
            self.orient(name, weights @ self.tables[name]) if name in self.tables else fixed[:, place]
            for place, name in enumerate(self.names)
        ]
        return np.stack(columns, axis=1)


def _common(found: Profiles, orient: Orient) -> _Common:
    """Drop heads that a method lacks, then methods that do not tell heads apart."""
    scored = np.array([scored_heads(mean) for mean in found.means]).reshape(found.means.shape)
    heads = np.asarray(scored.all(axis=0))
    scores = _oriented(found.names, found.means[:, heads], orient)
    varies = (
        np.array([bool((row != row[0]).any()) for row in scores])
        if heads.any()
        else np.ones(len(scores), bool)
    )
    names = tuple(name for name, kept in zip(found.names, varies, strict=True) if kept)
    warnings = (
        *(("constant_method",) if not varies.all() else ()),
        *(("missing_heads",) if not heads.all() else ()),
        *(("prompts_dropped",) if found.n_dropped else ()),
    )
    return _Common(
        names=names,
        scores=scores[varies],
        tables={name: table[:, heads] for name, table in found.tables.items() if name in names},
        n_units=found.n_units,
        orient=orient,
        heads=heads,
        warnings=warnings,
        constant=tuple(name for name, kept in zip(found.names, varies, strict=True) if not kept),
    )


def _oriented(
    names: Sequence[str], scores: Float64[np.ndarray, "m n"], orient: Orient
) -> Float64[np.ndarray, "m n"]:
    return np.stack([orient(name, row) for name, row in zip(names, scores, strict=True)])


def _check_members(members: Bool[np.ndarray, " H"] | None, found: Profiles) -> None:
    if members is not None and members.shape != found.means.shape[1:]:
        raise ShapeError(
            f"members has shape {members.shape} for scores of {found.means.shape[1]} heads; one flag per "
            "head is needed"
        )


@dataclass(frozen=True, kw_only=True)
class _Bounds:
    """Bounds of a mean correlation and what they were resampled over."""

    interval: Interval
    n: int
    resampled: str
    reliabilities: Mapping[str, float]

    @property
    def details(self) -> dict[str, Any]:
        return {"resampled": self.resampled, "n": self.n, "reliabilities": dict(self.reliabilities)}

    def judge(self, rule: Rule, value: float, scale: Callable[[float], float] | None = None) -> Verdict:
        """The rule on a value, with the bounds on its scale; `n_needed` counts prompts, of heads no more."""
        interval = self.interval
        if scale is not None and interval.defined:
            interval = replace(interval, low=scale(interval.low), high=scale(interval.high))
        verdict = rule.judge(value, interval, self.n)
        needed = FEWEST_PROMPTS if interval.reason == "too_few" else verdict.n_needed
        return replace(verdict, n_needed=needed if self.resampled == "prompts" else None)


def _bounds(
    common: _Common, matrix: Matrix, *, ranked: bool, n_boot: int, rng: np.random.Generator
) -> _Bounds:
    """Over the prompts where any method has scores per prompt, else over the heads."""
    if not common.tables:
        interval = over_heads(common.scores, ranked=ranked, n_boot=n_boot, rng=rng)
        return _Bounds(interval=interval, n=common.scores.shape[1], resampled="heads", reliabilities={})
    sampled = np.array([name in common.tables for name in common.names])
    found = over_prompts(common.averaged, sampled, common.n_units, matrix, n_boot=n_boot, rng=rng)
    return _Bounds(
        interval=found.interval,
        n=common.n_units,
        resampled="prompts",
        reliabilities=dict(zip(common.names, found.reliabilities.tolist(), strict=True)),
    )


def _pair_names(pairs: list[tuple[str, str]], values: Float64[np.ndarray, " _"]) -> dict[str, float]:
    return {f"{a}/{b}": float(value) for (a, b), value in zip(pairs, values, strict=True)}


def _mean(values: list[float]) -> float | None:
    """Mean of what is defined; None if nothing is."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else None


# ------------------------------------------------------------------------------------------------------ C12


@gate(
    key="convergent-validity",
    code="C12",
    name="Convergent validity",
    criterion="C5 convergent validity",
    needs=("scores",),
    question="Do different methods order the heads alike?",
    on_pass="head ranking is a property of the model rather than of one method",
    on_fail="the circuit is method-dependent; name the dissenting method before interpreting",
    weakness=(
        "filling missing heads with zero manufactures ties; the many near-zero heads dominate the correlation"
    ),
    source="mechanistic-validity framework; Shrout and Fleiss (1979), doi:10.1037/0033-2909.86.2.420",
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
    for name, given, known in (
        ("use", use, ("signed", "abs")),
        ("llc_direction", llc_direction, ("raw", "specialised")),
    ):
        if given not in known:
            raise InputError(f"{name} is {given!r}; choose {known[0]!r} or {known[1]!r}")
    positive("n_boot", n_boot)
    positive("n_perm", n_perm)
    rule = Rule(pass_at=0.5)
    limits: dict[str, float | None] = {"pass": 0.5, "icc_good": 0.7}
    if len(scores) < 2:
        return undefined("not_applicable", thresholds=limits)
    found = profiles(scores, unit_id=unit_id)
    _check_members(members, found)
    if found.per_prompt and not found.n_prompts:
        return undefined("no_valid_prompt", thresholds=limits)
    specialised = llc_direction == "specialised"

    def oriented(name: str, values: Float64[np.ndarray, "*rows n"]) -> Float64[np.ndarray, "*rows n"]:
        turned = name == LEARNING_COEFFICIENT and specialised
        return np.asarray((-1 if turned else 1) * (np.abs(values) if use == "abs" else values))

    common = _common(found, oriented)
    notes = {"constant_methods": list(common.constant), "n_dropped": found.n_dropped}
    if LEARNING_COEFFICIENT in found.names and not specialised:
        notes["note"] = "C10 enters as it is; with llc_direction='specialised' low scores rank first"
    if len(common.names) < 2 or common.heads.sum() < FEWEST_HEADS:
        return undefined("not_applicable", thresholds=limits, warnings=common.warnings, details=notes)

    rng = gate_stream("C12", task, seed=seed)
    rho = upper(spearman_matrix(common.scores))
    mean_rho = float(rho.mean())
    correlation = _bounds(common, spearman_matrix, ranked=True, n_boot=n_boot, rng=rng)
    judged = correlation.judge(rule, mean_rho)

    measured = found.means[:, np.isfinite(found.means).any(axis=0)]
    filled = _oriented(found.names, np.nan_to_num(measured), oriented)
    zero_filled = _mean(upper(spearman_matrix(filled)).tolist())
    standard = (common.scores - common.scores.mean(axis=1, keepdims=True)) / common.scores.std(
        axis=1, ddof=1, keepdims=True
    )
    icc = intraclass_correlation(standard.T)
    profile = _bounds(
        common, pearson_matrix, ranked=False, n_boot=n_boot, rng=gate_stream("C12", f"{task}/icc", seed=seed)
    )
    size = circuit_size(k, None if members is None else members[common.heads], int(common.heads.sum()))
    at_top = _top_of_either(common, size)
    tests = [
        spearman_test(a, b, rng=rng, n_permutations=n_perm)
        for a, b in itertools.combinations(common.scores, 2)
    ]
    corrected = _disattenuated(common.pairs, rho, reliabilities or correlation.reliabilities)
    return replace(
        judged,
        published="inconclusive" if zero_filled is None else rule.published(zero_filled),
        values={
            "mean_rho": mean_rho,
            "mean_rho_zero_filled": zero_filled,
            "rho_top": _mean(list(at_top["rho_top"].values())),
            "icc_2_1": icc.agreement.value,
            "icc_2_k": icc.agreement_mean.value,
            "mean_disattenuated": _mean(list(corrected.values())),
            "mean_jaccard": _mean(list(at_top["jaccard"].values())),
        },
        thresholds=limits,
        warnings=common.warnings,
        sub_results={
            "icc": profile.judge(Rule(pass_at=0.7), icc.agreement.value, lambda r: _as_icc(r, icc.n_targets))
        },
        details={
            **notes,
            **at_top,
            "pairs": _pair_names(common.pairs, rho),
            "p_values": {f"{a}/{b}": t.p_value for (a, b), t in zip(common.pairs, tests, strict=True)},
            "disattenuated": corrected,
            "lowest_pair": list(common.pairs[int(np.argmin(rho))]),
            **correlation.details,
            "n_heads_common": int(common.heads.sum()),
        },
    )


def _as_icc(correlation: float, n: int) -> float:
    """ICC(2,1) of scores standardised per method, from their mean correlation: r / (1 - (1 - r) / n)."""
    return correlation / (1 - (1 - correlation) / n)


def _top_of_either(common: _Common, k: int | None) -> dict[str, dict[str, float]]:
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
    criterion="M1 reliability",
    needs=("scores",),
    question="Do raters of heads agree on their order and on the best of them?",
    on_pass="these raters order the heads alike",
    on_fail="the order of heads depends on the rater; name the dissenting one before interpreting",
    weakness="W is 1/m by chance; with 12 heads random rankings of three raters exceed 0.5 in 9 % of cases",
    source="mechanistic-validity framework; Kendall and Babington Smith (1939), doi:10.1214/aoms/1177732186",
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
    positive("n_boot", n_boot)
    positive("n_perm", n_perm)
    limits: dict[str, float | None] = {"w": 0.5, "kappa": 0.4}
    unknown = set(signed) - set(scores)
    if unknown:
        raise InputError(f"signed names {sorted(unknown)}, but the raters are {sorted(scores)}")
    if len(scores) < 2:
        return undefined("not_applicable", thresholds=limits)
    found = profiles(scores, unit_id=unit_id)
    _check_members(members, found)
    if found.per_prompt and not found.n_prompts:
        return undefined("no_valid_prompt", thresholds=limits)
    common = _common(found, lambda name, values: values if name in signed else np.abs(values))
    notes = {"constant_raters": list(common.constant), "n_dropped": found.n_dropped}
    if len(common.names) < 2:
        return undefined("not_applicable", thresholds=limits, warnings=common.warnings, details=notes)

    rng = gate_stream("F59", task, seed=seed)
    m, n = common.scores.shape
    concordance = kendall_w(common.scores, rng=rng, n_permutations=n_perm)
    limit = (m - 2) / (2 * (m - 1))
    mean_rho = concordance.mean_spearman
    rho_rule = Rule(pass_at=limit)
    correlation = _bounds(common, spearman_matrix, ranked=True, n_boot=n_boot, rng=rng)
    interval = correlation.interval
    by_rho = correlation.judge(rho_rule, mean_rho)
    as_w = replace(interval, low=(1 + (m - 1) * interval.low) / m, high=(1 + (m - 1) * interval.high) / m)
    by_w = replace(
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
        interval=as_w,
    )
    kappa, pairs = _kappa(
        common,
        circuit_size(k, None if members is None else members[common.heads], n),
        n_boot,
        gate_stream("F59", f"{task}/kappa", seed=seed),
    )
    rho = upper(concordance.spearman)
    held = [each.published for each in (by_w, kappa)]
    published = {2: "pass", 1: "moderate", 0: "fail"}[held.count("pass")]
    return replace(
        by_w,
        published="inconclusive" if "inconclusive" in held else published,
        values={**by_w.values, "mean_rho": mean_rho, "mean_kappa": kappa.values["value"]},
        thresholds={**limits, "mean_rho": limit},
        warnings=(*common.warnings, *(("kappa_undefined",) if kappa.reason else ())),
        sub_results={"kendalls_w": by_w, "mean_spearman": by_rho, "mean_kappa": kappa},
        details={
            **notes,
            "pairs": _pair_names(common.pairs, rho),
            "kappa_pairs": pairs,
            "worst_pair": list(common.pairs[int(np.argmin(rho))]),
            "disattenuated": _disattenuated(common.pairs, rho, correlation.reliabilities),
            **correlation.details,
            "n_raters": m,
            "n_heads": n,
        },
    )


def _kappa(
    common: _Common, k: int | None, n_boot: int, rng: np.random.Generator
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
        judged = _bounds(
            common, lambda scores: kappa_matrix(_best(scores, k)), ranked=False, n_boot=n_boot, rng=rng
        ).judge(rule, value)
        return judged, _pair_names(common.pairs, each)
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
    return replace(rule.judge(value, interval, n), n_needed=None), _pair_names(common.pairs, each)


def _best(scores: Float64[np.ndarray, "*rows m n"], k: int) -> Bool[np.ndarray, "*rows m n"]:
    """The k best heads of each method, ties to the lower index, as `top_members` takes them."""
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    order = np.argsort(-scores, axis=-1, kind="stable")
    np.put_along_axis(chosen, order[..., :k], True, axis=-1)
    return chosen
