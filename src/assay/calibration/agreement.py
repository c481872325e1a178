"""Do several ways of scoring heads order them alike: convergent validity and agreement of raters."""

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from assay.calibration._samples import FEWEST
from assay.calibration._tables import (
    Profiles,
    circuit_size,
    percentile_bounds,
    profiles,
    scored_heads,
)
from assay.calibration.gate import SEED, gate, gate_stream, positive, undefined
from assay.errors import InputError, ShapeError
from assay.measurement import Interval, Rule, Verdict
from assay.stats import (
    draw_counts,
    intraclass_correlation,
    kappa_matrix,
    kendall_w,
    spearman_matrix,
    spearman_test,
    top_members,
)


FEWEST_HEADS = 5
LEARNING_COEFFICIENT = "C10"  # the method of which a low score may mean an important head

Scores = Mapping[str, Any]


# --------------------------------------------------------------------------------------------- shared parts


@dataclass(frozen=True, kw_only=True, eq=False)
class _Common:
    """Methods that vary, on the heads that all of them score."""

    names: tuple[str, ...]
    scores: Float64[np.ndarray, "m n"]
    tables: Float64[np.ndarray, "m P n"] | None
    heads: Bool[np.ndarray, " H"]
    warnings: tuple[str, ...]
    constant: tuple[str, ...]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return list(itertools.combinations(self.names, 2))


def _common(found: Profiles, transform: Any) -> _Common:
    """Drop heads that a method lacks, then methods that do not tell heads apart."""
    scored = np.array([scored_heads(mean) for mean in found.means]).reshape(found.means.shape)
    heads = np.asarray(scored.all(axis=0))
    scores = transform(found.means[:, heads])
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
        tables=None if found.tables is None else found.tables[varies][:, :, heads],
        heads=heads,
        warnings=warnings,
        constant=tuple(name for name, kept in zip(found.names, varies, strict=True) if not kept),
    )


def _check_members(members: Bool[np.ndarray, " H"] | None, found: Profiles) -> None:
    if members is not None and members.shape != found.means.shape[1:]:
        raise ShapeError(
            f"members has shape {members.shape} for scores of {found.means.shape[1]} heads; one flag per "
            "head is needed"
        )


def _upper(matrix: Float64[np.ndarray, "*batch m m"]) -> Float64[np.ndarray, "*batch pairs"]:
    """Entries above the diagonal, in the order of `itertools.combinations`."""
    rows, columns = np.triu_indices(matrix.shape[-1], k=1)
    return np.asarray(matrix[..., rows, columns])


def _over_heads(
    scores: Float64[np.ndarray, "m n"], n_boot: int, rng: np.random.Generator
) -> Float64[np.ndarray, " n_boot"]:
    """Mean rank correlation of the pairs on resampled heads."""
    draws = rng.integers(0, scores.shape[1], (n_boot, scores.shape[1]))
    return np.asarray(_upper(spearman_matrix(scores[:, draws].swapaxes(0, 1))).mean(axis=-1))


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
        n_boot: Resamples; over prompts where every method has a score per prompt, else over heads.
        n_perm: Permutations behind each pair's p.
        task: Names the random stream.
        seed: Roots it.

    Returns:
        Passes where the mean over pairs is above 0.5. `values`: `mean_rho`, `rho_top`, `icc_2_1` and
        `icc_2_k` of scores standardised per method, `mean_disattenuated`, `mean_jaccard`,
        `mean_rho_zero_filled` (what the published rule judges). `not_applicable` below two methods that vary,
        or five heads that all score.

    Notes:
        Noise within prompts pulls the correlation of two methods towards 0, and resampling prompts adds as
        much noise again. Over prompts each bound is therefore the more cautious one of the percentile and of
        its reflection at the estimate.
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
    turned = np.array([-1.0 if name == LEARNING_COEFFICIENT and specialised else 1.0 for name in found.names])

    def oriented(values: np.ndarray, signs: np.ndarray = turned) -> np.ndarray:
        by_method = signs.reshape(-1, *([1] * (values.ndim - 1)))
        return np.asarray(by_method * (np.abs(values) if use == "abs" else values))

    common = _common(found, oriented)
    notes = {"constant_methods": list(common.constant), "n_dropped": found.n_dropped}
    if LEARNING_COEFFICIENT in found.names and not specialised:
        notes["note"] = "C10 enters as it is; with llc_direction='specialised' low scores rank first"
    if len(common.names) < 2 or common.heads.sum() < FEWEST_HEADS:
        return undefined("not_applicable", thresholds=limits, warnings=common.warnings, details=notes)

    rng = gate_stream("C12", task, seed=seed)
    rho = _upper(spearman_matrix(common.scores))
    mean_rho = float(rho.mean())
    over_prompts = common.tables is not None and common.tables.shape[1] >= FEWEST
    if over_prompts:
        assert common.tables is not None
        n = common.tables.shape[1]
        counts = draw_counts(n, n_boot, rng)
        signs = np.array([turned[found.names.index(name)] for name in common.names])
        resampled = oriented(np.stack([counts @ table for table in common.tables]), signs).swapaxes(0, 1)
        interval = _cautious(
            mean_rho, percentile_bounds(mean_rho, _upper(spearman_matrix(resampled)).mean(axis=-1))
        )
    else:
        n = int(common.heads.sum())
        interval = percentile_bounds(mean_rho, _over_heads(common.scores, n_boot, rng))
    judged = rule.judge(mean_rho, interval, n)

    filled = oriented(np.nan_to_num(found.means[:, np.isfinite(found.means).any(axis=0)]))
    zero_filled = _mean(_upper(spearman_matrix(filled)).tolist())
    standard = (common.scores - common.scores.mean(axis=1, keepdims=True)) / common.scores.std(
        axis=1, ddof=1, keepdims=True
    )
    icc = intraclass_correlation(standard.T)
    icc_interval = icc.agreement.interval
    assert icc_interval is not None
    size = circuit_size(k, None if members is None else members[common.heads], int(common.heads.sum()))
    at_top = _top_of_either(common, size)
    tests = [
        spearman_test(a, b, rng=rng, n_permutations=n_perm)
        for a, b in itertools.combinations(common.scores, 2)
    ]
    corrected = _disattenuated(common.pairs, rho, reliabilities)
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
        n_needed=judged.n_needed if over_prompts else None,
        warnings=(
            *common.warnings,
            *(("few_prompts",) if common.tables is not None and not over_prompts else ()),
        ),
        sub_results={"icc": Rule(pass_at=0.7).judge(icc.agreement.value, icc_interval, icc.n_targets)},
        details={
            **notes,
            **at_top,
            "pairs": _pair_names(common.pairs, rho),
            "p_values": {f"{a}/{b}": t.p_value for (a, b), t in zip(common.pairs, tests, strict=True)},
            "disattenuated": corrected,
            "lowest_pair": list(common.pairs[int(np.argmin(rho))]),
            "resampled": "prompts" if over_prompts else "heads",
            "n": n,
            "n_heads_common": int(common.heads.sum()),
        },
    )


def _cautious(point: float, interval: Interval) -> Interval:
    """Each end or its mirror image at the point, whichever is further out."""
    return replace(
        interval,
        low=min(interval.low, 2 * point - interval.high),
        high=max(interval.high, 2 * point - interval.low),
    )


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
        n_boot: Resamples of heads.
        n_perm: Permutations behind the p of W.
        task: Names the random stream.
        seed: Roots it.

    Returns:
        The status is that of W > 0.5, stated on the mean rank correlation with the same bound
        (m - 2) / (2 (m - 1)): 0.25 for three raters. Published: W > 0.5 and kappa > 0.4 pass, one of them is
        moderate. Kappa has a verdict of its own in `sub_results`: with top sets fixed, bounds from resampled
        heads. Without a circuit of 1 to H - 1 heads kappa is undefined, and with it the published rule.
    """
    positive("n_boot", n_boot)
    positive("n_perm", n_perm)
    limits: dict[str, float | None] = {"w": 0.5, "kappa": 0.4}
    unknown = set(signed) - set(scores)
    if unknown:
        raise InputError(f"signed names {sorted(unknown)}, but the raters are {sorted(scores)}")
    if len(scores) < 2:
        return undefined("not_applicable", thresholds=limits)
    found = profiles(scores)
    _check_members(members, found)
    if found.per_prompt and not found.n_prompts:
        return undefined("no_valid_prompt", thresholds=limits)
    keeps_sign = np.array([name in signed for name in found.names])[:, None]
    common = _common(found, lambda values: np.where(keeps_sign, values, np.abs(values)))
    notes = {"constant_raters": list(common.constant), "n_dropped": found.n_dropped}
    if len(common.names) < 2:
        return undefined("not_applicable", thresholds=limits, warnings=common.warnings, details=notes)

    rng = gate_stream("F59", task, seed=seed)
    m, n = common.scores.shape
    concordance = kendall_w(common.scores, rng=rng, n_permutations=n_perm)
    limit = (m - 2) / (2 * (m - 1))
    mean_rho = concordance.mean_spearman
    rho_rule = Rule(pass_at=limit)
    interval = percentile_bounds(mean_rho, _over_heads(common.scores, n_boot, rng))
    by_rho = replace(rho_rule.judge(mean_rho, interval, n), n_needed=None)
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
    rho = _upper(concordance.spearman)
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
    sets = np.stack([top_members(row, k) for row in common.scores])
    each = _upper(kappa_matrix(sets))
    draws = rng.integers(0, n, (n_boot, n))
    # A resample without any chosen head has no kappa: those pairs are left out of its mean.
    resampled = _upper(kappa_matrix(sets[:, draws].swapaxes(0, 1)))
    defined = np.isfinite(resampled)
    means = np.divide(
        np.where(defined, resampled, 0.0).sum(axis=-1),
        defined.sum(axis=-1),
        out=np.full(n_boot, np.nan),
        where=defined.any(axis=-1),
    )
    value = float(each.mean())
    judged = rule.judge(value, percentile_bounds(value, means), n)
    return replace(judged, n_needed=None), _pair_names(common.pairs, each)
