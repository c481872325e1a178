"""Is a circuit ordered by depth as its roles say, and better than a set picked by a simple rule."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Real, Shaped

from assay.analyses.calibration.gate import ALPHA, SEED, Draft, gate, gate_stream, left_open
from assay.analyses.calibration.quantity import Quantity
from assay.analyses.calibration.reasons import below
from assay.analyses.calibration.samples import Sample, sample
from assay.circuits import HeadCircuit
from assay.core.errors import InputError, ShapeError, check_least
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, Verdict
from assay.stats import RatioOfSums, fieller_interval, skewed_mean_interval, spearman_test
from assay.stats.skewed_mean import FEWEST_FOR_MEANS


_NO_MARGIN = 1e-8  # mean margin of the full model below which nothing is a share of it
_EQUAL = 1e-12  # relative spread below which prompts differ by rounding only


# --------------------------------------------------------------------------------------------- C23


@gate(
    key="nomological-validity",
    code="C23",
    name="Nomological validity",
    criterion="C5 Convergent validity",
    question="Does the order of roles along the pathways follow their depth in the model?",
    on_pass="functional order follows depth",
    on_fail="not wrong in itself; look for skip paths or mislabelled roles",
    generalises_over="orders of the roles",
    weakness=(
        "bands are usually defined by layer ranges, so the published correlation is near 1 by construction, "
        "and heads of one role are not independent"
    ),
    source="mechanistic-validity framework; Pitman (1937), doi:10.2307/2983647",
    number=Quantity(
        label="chance that roles in random order follow depth as well",
        value="role_level_p",
        published=None,
        limit="p",
        higher=False,
        open_ended=True,
        two_sided=True,
        least=0.0,
        most=1.0,
    ),
    parts={
        "layer_density_correlation": Quantity(
            label="layer against number of heads, rank correlation", value="rho"
        )
    },
    reasons={
        "not_applicable": (
            "The circuit’s heads have no roles.",
            "Give a circuit whose heads have roles, bands and pathways, such as a published one.",
        ),
        "too_few": (
            "With so few roles, even the best order occurs by chance too often.",
            "It needs at least four roles at different depths.",
        ),
    },
    when_open="Neither order is established, and there are no more roles.",
)
def nomological_validity(
    circuit: HeadCircuit, *, n_perm: int = 10_000, task: str = "", seed: int = SEED
) -> Verdict:
    """Rank correlation of the layer and the function of a circuit's parts.

    Published: over heads, layer against the ordinal of the band; passes at rho > 0 with p < 0.05. Rigorous:
    over roles, mean layer against pathway depth with an exact one-sided permutation p below 0.05; it fails
    where the opposite order has such a p.

    Args:
        circuit: Heads with roles, bands and pathways.
        n_perm: Permutations above eight roles; below, all are counted.
        task: Names the random stream.
        seed: Roots it.

    Returns:
        `not_applicable` without roles, `too_few` below three heads or where even the best order of so few or
        so tied roles has p >= 0.05 (four roles are needed), `zero_variance` where all heads lie in one layer
        or one band, or all roles at one depth. `sub_results["layer_density_correlation"]` reports, without a
        threshold, layer against number of heads in it. Warning `circular_bands`: the bands are disjoint
        ranges of layers in rising order, so that the published correlation says nothing.

    Raises:
        InputError: For a role without a band.
    """
    check_least(1, n_perm=n_perm)
    parts = {"layer_density_correlation": _layer_density(circuit)}
    draft = Draft(thresholds={"rho": 0.0, "p": ALPHA})
    if not circuit.roles:
        return draft.undefined("not_applicable", sub_results=parts)
    if circuit.k < 3:
        return draft.undefined("too_few", sub_results=parts)
    layers, ordinals = np.array([layer for layer, _ in circuit.heads]), np.array(circuit.ordinals)
    rho, p = _association(layers, ordinals)
    draft.warn("circular_bands", _circular(layers, ordinals))
    named = [name for name, role in circuit.roles.items() if role.heads]
    mean_layers = np.array([circuit.mean_layers[name] for name in named])
    depths = np.array([float(circuit.depths[name]) for name in named])
    rng = gate_stream("C23", task, seed=seed)
    up, down = (
        spearman_test(sign * mean_layers, depths, rng=rng, alternative="greater", n_permutations=n_perm)
        for sign in (1, -1)
    )
    draft.details = {
        "roles": [
            {"role": name, "mean_layer": float(layer), "depth": int(depth)}
            for name, layer, depth in zip(named, mean_layers, depths, strict=True)
        ],
        "exact": up.exact,
        "n_layers": circuit.n_layers,
    }
    draft.values = {
        "role_depth_rho": rho,
        "role_depth_p": p,
        "role_level_rho": _known(up.rho),
        "role_level_p": _known(up.p_value),
        "role_level_p_opposite": _known(down.p_value),
        "smallest_p": _known(up.smallest_p),
    }
    status, reason = "inconclusive", up.reason
    if rho is None:
        reason = "zero_variance"
    elif up.p_value < ALPHA:
        status = "pass"
    elif down.p_value < ALPHA:
        status = "fail"
    elif reason is None and not up.smallest_p < ALPHA:
        reason = "too_few"
    published = "inconclusive" if rho is None or p is None else "pass" if rho > 0 and p < ALPHA else "fail"
    return Verdict(status=status, published=published, reason=reason, sub_results=parts, **vars(draft))


def _layer_density(circuit: HeadCircuit) -> Verdict:
    """Layer against the number of the circuit's heads in it, without a threshold."""
    counts = np.bincount([layer for layer, _ in circuit.heads], minlength=circuit.n_layers)
    rho, p = _association(np.arange(circuit.n_layers), counts)
    return Verdict(
        status="none",
        published="none",
        values={"rho": rho, "p": p},
        reason=None if rho is not None else "zero_variance",
        details={"counts": counts},
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _association(x: Real[np.ndarray, " n"], y: Real[np.ndarray, " n"]) -> tuple[float | None, float | None]:
    """Spearman's rho with scipy's two-sided p, as published; None where a side is constant."""
    if len(x) < 3 or (x == x[0]).all() or (y == y[0]).all():
        return None, None
    found = scipy.stats.spearmanr(x, y)
    return float(found.statistic), float(found.pvalue)


def _circular(layers: Real[np.ndarray, " k"], ordinals: Real[np.ndarray, " k"]) -> bool:
    """Whether each band begins above the last layer of the band before it."""
    known = np.unique(ordinals)
    ends = [(layers[ordinals == each].min(), layers[ordinals == each].max()) for each in known]
    return len(ends) > 1 and all(low[1] < high[0] for low, high in itertools.pairwise(ends))


# --------------------------------------------------------------------------------------------- C36


@gate(
    key="incremental-validity",
    code="C36",
    name="Incremental validity",
    criterion="C5 Convergent validity",
    question="Is the circuit more faithful than as many heads picked by a simple rule?",
    on_pass="discovery adds something over picking active heads",
    on_fail="prefer the simple baseline",
    weakness=(
        "without an interval an equal circuit passes half the time; a faithfulness above 1 counts as better"
    ),
    source="mechanistic-validity framework; Fieller (1954), doi:10.1111/j.2517-6161.1954.tb00159.x; Hall "
    "(1992), doi:10.1111/j.2517-6161.1992.tb01876.x",
    number=Quantity(label="faithfulness gained over the baseline", unit=0.1),
    parts={"substantial": Quantity(label="the same gain against 0.1")},
    reasons={
        "same_set": (
            "The baseline is the circuit itself, or gives the same outputs, so there is no difference to "
            "judge.",
            "Compare with another baseline.",
        ),
        **below(FEWEST_FOR_MEANS, "no bounds of a difference hold for skewed scores"),
    },
)
def incremental_validity(
    y_full: Any,
    y_keep: Any,
    y_baseline: Any,
    *,
    members: Bool[np.ndarray, " H"] | None = None,
    baseline_members: Bool[np.ndarray, " H"] | None = None,
    others: Mapping[str, Any] | None = None,
    unit_id: Shaped[np.ndarray, " P"] | None = None,
) -> Verdict:
    """Faithfulness of the circuit less that of a baseline set of as many heads, on the same prompts.

    delta = sum (y_keep - y_baseline) / sum y_full, with bounds from its influence values, at each end the
    outer one of Student's and Hall's, which allows for their skewness, and of Fieller's too where the
    denominator is unstable.

    Args:
        y_full: `[P]` margins of the full model.
        y_keep: `[P]` margins with the circuit alone.
        y_baseline: `[P]` margins with the baseline set alone, e.g. the heads of largest activation.
        members: The circuit's heads.
        baseline_members: The baseline's heads.
        others: Further baselines, name -> `[P]` margins of one set or `[P, R]` of R random sets.
        unit_id: Label of each prompt; prompts of one label count as one observation.

    Returns:
        Passes where delta is above 0; `sub_results["substantial"]` where it is above 0.1.
        `details["others"]`: delta of each further baseline, and for random sets
        p = (1 + number as faithful) / (1 + R). Undefined for an empty circuit or one of all heads
        (`no_members`, `no_others`). Below 20 prompts the verdict with confidence is inconclusive (`too_few`):
        no bounds hold for skewed differences. The same set, or the same runs where sets are not given:
        delta 0, both verdicts inconclusive (`same_set`). Identical prompts: by sign, warning `zero_variance`.
    """
    further = {name: np.asarray(y, dtype=np.float64) for name, y in (others or {}).items()}
    kept = sample(
        unit_id,
        y_full=y_full,
        y_keep=y_keep,
        y_baseline=y_baseline,
        **{f"others of {name}": y for name, y in further.items()},
    )
    draft = Draft(thresholds={"pass": 0.0, "fail": 0.0, "substantial": 0.1}, warnings=kept.warnings)
    full, keep, base = kept.vectors[:3]
    if reason := _nothing_to_compare(kept, members):
        return draft.undefined(reason)
    difference = _difference(full, keep, base)
    faithful, base_faithful = float(keep.sum() / full.sum()), float(base.sum() / full.sum())
    draft.values = {
        "value": difference.value,
        "standard_error": difference.standard_error,
        "faithfulness": faithful,
        "baseline_faithfulness": base_faithful,
        "delta_abs": abs(1 - base_faithful) - abs(1 - faithful),
    }
    same = np.array_equal(keep, base)
    if members is not None and baseline_members is not None:
        draft.values |= _overlap(members, baseline_members)
        same = bool((members == baseline_members).all())
    draft.warn("unstable_denominator", difference.unstable)
    draft.warn("zero_variance", difference.flat and not same)
    draft.details = {
        "n": kept.n,
        "n_dropped": kept.n_dropped,
        "others": {
            name: _against(faithful, vector, full)
            for name, vector in zip(further, kept.vectors[3:], strict=True)
        },
    }
    verdict, substantial = (
        Rule(pass_at=limit).judge(difference.value, difference.interval, kept.n) for limit in (0.0, 0.1)
    )
    if same:
        verdict, substantial = (
            replace(left_open(each, "same_set"), published="inconclusive") for each in (verdict, substantial)
        )
    elif kept.n < FEWEST_FOR_MEANS:
        verdict, substantial = (
            left_open(each, "too_few", FEWEST_FOR_MEANS) for each in (verdict, substantial)
        )
    return draft.verdict(verdict, sub_results={"substantial": substantial})


def _nothing_to_compare(kept: Sample, members: Bool[np.ndarray, " H"] | None) -> str | None:
    """Why the circuit cannot be compared with a baseline, or None."""
    if members is not None and not members.any():
        return "no_members"
    if members is not None and members.all():
        return "no_others"
    if reason := kept.missing():
        return reason
    return None if abs(kept.vectors[0].mean()) >= _NO_MARGIN else "zero_denominator"


@dataclass(frozen=True, kw_only=True)
class _Difference:
    """Faithfulness of the circuit less that of the baseline.

    Attributes:
        value: The difference.
        standard_error: To first order.
        interval: Its bounds, of which a false end has 5 %.
        unstable: Whether the denominator lies close to 0.
        flat: Whether all prompts are alike.
    """

    value: float
    standard_error: float
    interval: Interval
    unstable: bool
    flat: bool


def _difference(
    full: Float64[np.ndarray, " n"], keep: Float64[np.ndarray, " n"], base: Float64[np.ndarray, " n"]
) -> _Difference:
    """The outermost of Student's and Hall's bounds, and of Fieller's where the denominator is unstable."""
    statistic = RatioOfSums(numerator={"keep": 1.0, "base": -1.0}, denominator={"full": 1.0})
    order = {"full": full, "keep": keep, "base": base}
    table = np.stack([order[name] for name in statistic.components])
    delta = float(statistic.of_sums(table.sum(axis=1), len(full)))
    linear = statistic.linearised(table)
    interval = skewed_mean_interval(delta, linear, level=ONE_SIDED_95)
    unstable = statistic.unstable(table)
    if unstable:
        fieller = fieller_interval(keep - base, full, level=ONE_SIDED_95)
        low, high = min(interval.low, fieller.low), max(interval.high, fieller.high)
        interval = (
            replace(interval, low=low, high=high, method="fieller-hall") if fieller.defined else fieller
        )
    # Identical prompts differ by rounding once they have been divided.
    flat = bool(np.ptp(linear) <= _EQUAL * np.abs(table).max() / abs(full.mean()))
    if flat:
        interval = replace(interval, low=delta, high=delta, reason="degenerate")
    return _Difference(
        value=delta,
        standard_error=float(linear.std(ddof=1) / math.sqrt(len(full))),
        interval=interval,
        unstable=unstable,
        flat=flat,
    )


def _overlap(members: Bool[np.ndarray, " H"], baseline: Bool[np.ndarray, " H"]) -> dict[str, float]:
    """Heads that both sets have, and their share of all heads in either."""
    if members.shape != baseline.shape:
        raise ShapeError(
            f"members has shape {members.shape}, baseline_members {baseline.shape}; expected one flag per "
            "head"
        )
    common = float((members & baseline).sum())
    return {"overlap": common, "jaccard": common / float((members | baseline).sum())}


def _against(
    faithful: float, y: Float64[np.ndarray, "n ..."], full: Float64[np.ndarray, " n"]
) -> dict[str, float]:
    """The circuit's faithfulness against another set, or against many random ones."""
    found = np.asarray(y.sum(axis=0) / full.sum())
    if found.ndim == 0:
        return {"faithfulness": float(found), "delta": faithful - float(found)}
    if not found.size:
        raise InputError("a further baseline holds 0 random sets; give at least one column")
    return {
        "mean": float(found.mean()),
        "sd": float(found.std()),
        "delta": faithful - float(found.mean()),
        "p": float((1 + np.count_nonzero(found >= faithful)) / (1 + found.size)),
        "n_sets": float(found.size),
    }
