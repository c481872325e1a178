"""C23: does a circuit follow depth as its roles say? C36: is it better than a set picked by a simple rule?"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Shaped

from assay import stats
from assay.analyses.calibration.gate import Found, Quantity, Sampling, Undetermined, gate
from assay.analyses.calibration.samples import ALPHA, sample
from assay.circuits import HeadCircuit
from assay.core.measurement import ONE_SIDED_95, Rule
from assay.core.random import stream
from assay.discovery.heads.scores import mean_over_examples, ranking
from assay.stats.intervals import FEWEST_FOR_MEANS


_DENSITY = Quantity(label="layer against number of heads, rank correlation", value="rho")
_GAIN = Quantity(
    label="faithfulness gained over the baseline", rule=Rule(pass_at=0.0), fewest=FEWEST_FOR_MEANS, unit=0.1
)
_SUBSTANTIAL = replace(_GAIN, label="the same gain against 0.1", rule=Rule(pass_at=0.1), unit=None)


@gate(
    code="C23",
    criterion="C5 Convergent validity",
    question="Does the order of roles along the pathways follow their depth in the model?",
    on_pass="functional order follows depth",
    on_fail="not wrong in itself; look for skip paths or mislabelled roles",
    generalises_over="orders of the roles",
    weakness="bands are usually ranges of layers, so the published correlation is near 1 by construction",
    source="mechanistic-validity framework; Pitman (1937), doi:10.2307/2983647",
    number=Quantity(
        label="chance that roles in random order follow depth as well",
        value="role_level_p",
        rule=Rule(pass_at=ALPHA, fail_at=1 - ALPHA, higher=False, open_ended=True),
        published=None,
    ),
    parts={"layer_density_correlation": _DENSITY},
    reasons={
        "not_applicable": ("The circuit’s heads have no roles.", "Give a circuit with roles and pathways."),
        "too_few": ("With so few roles, even the best order is too likely.", "Give four roles or more."),
    },
    when_open="Neither order is established, and there are no more roles.",
    reads=("task", "seed", "n_perm"),
)
def nomological_validity(circuit: HeadCircuit, *, how: Sampling) -> Found:
    """Rank correlation of the layer and the function of a circuit's parts.

    Published: over heads, layer against the ordinal of the band; passes at rho > 0 with p < 0.05. Rigorous:
    over roles, mean layer against pathway depth with an exact one-sided permutation p below 0.05; it fails
    where the opposite order has such a p.

    Args:
        circuit: Heads with roles, bands and pathways.
        how: Permutations are random above eight roles; below, all are counted.

    Returns:
        `not_applicable` without roles, `too_few` below three heads or where even the best order of so few or
        so tied roles has p >= 0.05 (four roles are needed), `zero_variance` where all heads lie in one layer
        or one band, or all roles at one depth. `sub_results["layer_density_correlation"]` reports, without a
        threshold, layer against number of heads in it. Warning `circular_bands`: the bands are disjoint
        ranges of layers in rising order, so that the published correlation says nothing.

    Raises:
        InputError: For a role without a band.
    """
    layers = np.array([layer for layer, _ in circuit.heads], dtype=np.int64)
    counts = np.bincount(layers, minlength=circuit.n_layers)
    rho, p = _association(np.arange(circuit.n_layers), counts)
    density = Found(values={"rho": rho, "p": p}, status="none", published="none", details={"counts": counts})
    density.reason = None if rho is not None else "zero_variance"
    parts = {"layer_density_correlation": _DENSITY.judge(density)}
    found = Found(thresholds={"rho": 0.0, "p": ALPHA}, parts=parts)
    found.stop_if(not circuit.roles or circuit.k < 3, "too_few" if circuit.roles else "not_applicable")
    ordinals = np.array(circuit.ordinals)
    bands = [layers[ordinals == each] for each in np.unique(ordinals)]
    disjoint = all(low.max() < high.min() for low, high in itertools.pairwise(bands))
    found.warn(circular_bands=len(bands) > 1 and disjoint)
    names = [name for name, role in circuit.roles.items() if role.heads]
    rng = how.stream("C23")
    layer_of, depth_of = ([float(of[name]) for name in names] for of in (circuit.mean_layers, circuit.depths))
    placed = zip(names, layer_of, depth_of, strict=True)
    roles = [{"role": name, "mean_layer": layer, "depth": int(depth)} for name, layer, depth in placed]
    test = partial(stats.spearman_test, rng=rng, n_permutations=how.n_perm, alternative="greater")
    up, down = (test(sign * np.array(layer_of), np.array(depth_of)) for sign in (1, -1))
    found.details = {"roles": roles, "exact": up.exact, "n_layers": circuit.n_layers}
    rho, p = _association(layers, ordinals)
    tested = {"role_level_rho": up.rho, "role_level_p": up.p_value, "role_level_p_opposite": down.p_value}
    known = {k: None if math.isnan(x) else x for k, x in {**tested, "smallest_p": up.smallest_p}.items()}
    found.values = {"role_depth_rho": rho, "role_depth_p": p, **known}
    kind, about = "exact" if up.exact else "permutation", {"value": up.rho, "baseline": 0.0, "n": len(names)}
    found.claim("C23/roles", "roles lie in the order of their pathways", up.p_value, kind, **about)
    if rho is None or p is None:
        raise Undetermined("zero_variance", found)
    found.published = "pass" if rho > 0 and p < ALPHA else "fail"
    if up.p_value < ALPHA or down.p_value < ALPHA:
        found.status, found.reason = "pass" if up.p_value < ALPHA else "fail", up.reason
    else:
        found.open(up.reason or (None if up.smallest_p < ALPHA else "too_few"))
    return found


def _association(x: Any, y: Any) -> tuple[float | None, float | None]:
    """Spearman's rho with scipy's two-sided p, as published; None where a side is constant."""
    if len(x) < 3 or (x == x[0]).all() or (y == y[0]).all():
        return None, None
    found = scipy.stats.spearmanr(x, y)
    return float(found.statistic), float(found.pvalue)


def _baselines(c: Any) -> dict[str, Any]:
    """Runs of as many heads, the most active ones, those of largest attribution, and random ones."""
    table, width, others = c.table, c.table.model.n_heads, dict[str, Any]()

    def top(column: Float64[np.ndarray, "P H"]) -> Bool[np.ndarray, " H"]:
        flags = np.zeros(table.H, dtype=np.bool_)
        flags[ranking(np.abs(mean_over_examples(column)))[: table.k]] = True
        return flags

    def keep(places: Any) -> Float64[np.ndarray, " P"]:
        return np.asarray(c.keep([divmod(int(place), width) for place in places]))

    # Baselines are head sets, so of an edge circuit its heads are compared with them.
    own = {} if table.by_heads else {"y_keep": c.keep(table.heads), "warnings": ("heads_of_edges",)}
    best, attribution = top(c.get("magnitude")), c.find("attribution")
    if attribution is not None:
        others["attribution"] = keep(np.flatnonzero(top(attribution)))
    every = {"random": [(np.arange(table.H), table.k)]}
    each = np.unique([layer for layer, _ in table.heads], return_counts=True)
    every["layer-matched"] = [(at * width + np.arange(width), n) for at, n in zip(*each, strict=True)]
    for kind, parts in every.items() if c.random_sets and 0 < table.k < table.H else ():
        rng = stream(table.seed, f"calibration/C36/{kind}")
        sets = [[rng.choice(some, n, replace=False) for some, n in parts] for _ in range(c.random_sets)]
        others[kind] = np.stack([keep(np.concatenate(one)) for one in sets], axis=1)
    y_baseline = keep(np.flatnonzero(best))
    return {**own, "y_baseline": y_baseline, "baseline_members": best, "others": others}


@gate(
    code="C36",
    criterion="C5 Convergent validity",
    question="Is the circuit more faithful than as many heads picked by a simple rule?",
    on_pass="discovery adds something over picking active heads",
    on_fail="prefer the simple baseline",
    weakness="without an interval an equal circuit passes half the time; above 1 counts as better",
    source="mechanistic-validity framework; Fieller (1954); Hall (1992)",
    number=_GAIN,
    parts={"substantial": _SUBSTANTIAL},
    reasons={"same_set": ("The baseline is the circuit, or equals it.", "Compare with another baseline.")},
    columns=_baselines,
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
) -> Found:
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
    further = {f"others of {name}": np.asarray(y, dtype=np.float64) for name, y in (others or {}).items()}
    kept = sample(unit_id, y_full=y_full, y_keep=y_keep, y_baseline=y_baseline, **further)
    found = Found(n=kept.n, thresholds={"substantial": 0.1}, warnings=kept.warnings)
    full, keep, base = kept.vectors[:3]
    if members is not None and (not members.any() or members.all()):
        raise Undetermined("no_others" if members.any() else "no_members", found)
    found.stop_if(kept.missing())
    found.stop_if(abs(full.mean()) < 1e-8, "zero_denominator")  # nothing is a share of it
    statistic = stats.RatioOfSums(numerator={"keep": 1.0, "base": -1.0}, denominator={"full": 1.0})
    table = np.stack([keep, base, full])
    delta, linear = float(statistic.of_sums(table.sum(axis=1), kept.n)), statistic.linearised(table)
    interval = stats.skewed_mean_interval(delta, linear, level=ONE_SIDED_95)
    # Identical prompts differ by rounding once they have been divided.
    flat = bool(np.ptp(linear) <= 1e-12 * np.abs(table).max() / abs(full.mean()))
    unstable = statistic.unstable(table)
    if unstable:
        fieller = stats.fieller_interval(keep - base, full, level=ONE_SIDED_95)
        method = "fieller-hall" if fieller.defined else "fieller"
        interval = replace(stats.outermost(interval, fieller), method=method)
    found.interval = replace(interval, low=delta, high=delta, reason="degenerate") if flat else interval
    faithful, base_faithful = float(keep.sum() / full.sum()), float(base.sum() / full.sum())
    found.values = {"value": delta, "standard_error": float(linear.std(ddof=1) / math.sqrt(kept.n))}
    found.values |= {"faithfulness": faithful, "baseline_faithfulness": base_faithful}
    found.values["delta_abs"] = abs(1 - base_faithful) - abs(1 - faithful)
    same = np.array_equal(keep, base)
    if members is not None and baseline_members is not None:
        common = float((members & baseline_members).sum())
        found.values |= {"overlap": common, "jaccard": common / float((members | baseline_members).sum())}
        same = bool((members == baseline_members).all())
    found.warn(unstable_denominator=unstable, zero_variance=flat and not same)
    vectors = zip(others or {}, kept.vectors[3:], strict=True)
    against = {name: _against(faithful, vector, full) for name, vector in vectors}
    found.details = {"n": kept.n, "n_dropped": kept.n_dropped, "others": against}
    for name, other in against.items():
        if "p" in other:
            claim = f"the circuit is more faithful than {name}"
            about = {"value": faithful, "baseline": other["mean"], "n": kept.n}
            found.claim(f"C36/{name}", claim, other["p"], "permutation", **about)
    if same:
        found.open("same_set")
        found.published = "inconclusive"
    elif kept.n < FEWEST_FOR_MEANS:
        found.open("too_few", FEWEST_FOR_MEANS)  # also where nothing varies
    part = replace(found, values={"value": delta}, thresholds={}, warnings=(), details={})
    found.parts = {"substantial": _SUBSTANTIAL.judge(part)}
    return found


def _against(faithful: float, y: Any, full: Float64[np.ndarray, " n"]) -> dict[str, float]:
    """The circuit's faithfulness against another set, or against many random ones."""
    found = np.asarray(y.sum(axis=0) / full.sum())
    mean = float(found.mean())
    if found.ndim == 0:
        return {"faithfulness": mean, "delta": faithful - mean}
    p = float((1 + np.count_nonzero(found >= faithful)) / (1 + found.size))
    numbers = {"mean": mean, "sd": float(found.std()), "delta": faithful - mean}
    return {**numbers, "p": p, "n_sets": float(found.size)}
