"""How much of the model's margin a circuit carries: faithfulness, completeness, and which heads it needs."""

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import check_name
from assay.core.measurement import Measurement, Rule
from assay.execution import CircuitRuns
from assay.execution.runs import Which
from assay.metrics.metric import METRICS, MetricSpec, finite_examples, record, task_warnings
from assay.objectives import OBJECTIVES
from assay.stats import RatioOfSums, mean_of, ratio_of, recovery_of
from assay.tasks import ImageTask


ESSENTIAL, FAITHFUL = 0.05, 0.5  # importance of a head above which, faithfulness from which
SMALL_MARGIN = 1e-3  # share of the median |margin| below which a single example's ratio says nothing


def recovery_reading(recovery: float) -> str | None:
    """The published reading of a recovered share of the margin; None between the named bands."""
    if recovery > 1.10:
        return "opposing_components_left_out"
    if 0.95 <= recovery <= 1.05:
        return "whole_margin_explained"
    if 0.70 <= recovery < 0.95:
        return "main_mechanism"
    return "primary_path_missing" if recovery < 0.5 else None


def _of_margins(
    runs: CircuitRuns,
    spec: MetricSpec,
    statistic: RatioOfSums,
    *which: Which,
    components: dict[str, Float64[np.ndarray, " n"]] | None = None,
    details: dict[str, Any] | None = None,
    **facts: Any,
) -> Measurement:
    """A statistic of the margins of some runs, with their means and the share that the model gets right."""
    used = finite_examples(runs, *which)
    margins = {str(each): runs.margins(each) for each in which}
    means = {}
    if used.any():
        means = {f"mean_margin_{each}": float(values[used].mean()) for each, values in margins.items()}
        means["share_solved"] = float((margins["full"][used] > 0).mean())
    facts |= {"details": {**(details or {}), **means}, "warnings": task_warnings(runs, used)}
    return record(spec, {**margins, **(components or {})}, statistic, used=used, **facts)


def _faithfulness(runs: CircuitRuns, spec: MetricSpec, *, aggregate: str = "ratio_of_sums") -> Measurement:
    """Share of the model's margin that the circuit alone keeps, F = sum y_keep / sum y_full.

    y = -objective, per example. 1 is the whole model; the empty circuit is in general not 0, since what
    is not an edge (embeddings, biases, under a head circuit the MLPs) still acts.

    Options:
        aggregate: `ratio_of_sums`, or `mean_of_ratios` over examples with |y_full| above 1e-3 of its
            median: heavy-tailed, only for comparison.

    Under a divergence from the model (`kl`, `js`) the model's own margin is 0 and this ratio undefined. Of
    image classifiers, where that is the default, faithfulness is then `faithfulness-norm`, 1 - D(circuit) /
    D(empty) (Peng et al. 2026, arXiv:2604.08192, Eq. 8).

    Undefined (`zero_denominator`) where |sum y_full| < 1e-8 n.

    References:
        Wang et al. 2022, arXiv:2211.00593.
    """
    of_divergence = runs.objective in OBJECTIVES and OBJECTIVES[runs.objective].stationary
    if isinstance(runs.task, ImageTask) and of_divergence:
        return _faithfulness_norm(runs, METRICS["faithfulness-norm"])
    check_name("aggregate", aggregate, ("ratio_of_sums", "mean_of_ratios"))
    statistic, facts = ratio_of("keep", "full"), {}
    details: dict[str, Any] = {"aggregate": aggregate}
    if aggregate == "mean_of_ratios":
        used, statistic = finite_examples(runs, "full", "keep"), mean_of("ratio")
        ratios = _single_ratios(runs.margins("keep"), runs.margins("full"), used)
        details["n_small_margin"] = int((used & np.isnan(ratios)).sum())
        facts = {"components": {"ratio": ratios}}
    return _of_margins(
        runs, spec, statistic, "full", "keep", details=details, reading=recovery_reading, **facts
    )


def _single_ratios(
    keep: Float64[np.ndarray, " n"], full: Float64[np.ndarray, " n"], used: Bool[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """Keep / full of each example, NaN where |full| is not above 1e-3 of its median."""
    typical = np.median(np.abs(full[used])) if used.any() else 0.0
    ratios = np.full(len(full), np.nan)
    np.divide(keep, full, out=ratios, where=used & (np.abs(full) > SMALL_MARGIN * typical))
    return ratios


def _faithfulness_norm(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Recovery between the empty circuit (0) and the model (1): (S_keep - S_empty) / (S_full - S_empty).

    S sums the margin over examples. Under a divergence objective this is 1 - D(keep) / D(empty).
    Undefined (`zero_denominator`) where the empty circuit already has the model's margin.

    References:
        Mueller et al. 2025, arXiv:2504.13151.
    """
    return _of_margins(runs, spec, recovery_of("keep"), "full", "keep", "empty", reading=recovery_reading)


def _completeness(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Share of the model's margin that is lost when the circuit is dropped: 1 - sum y_drop / sum y_full.

    1: nothing outside the circuit does the task; 0: dropping it changes nothing (an empty circuit);
    above 1: what remains prefers the wrong answer. Undefined as `faithfulness`.

    References:
        Wang et al. 2022, arXiv:2211.00593.
    """
    return _of_margins(runs, spec, ratio_of("drop", "full", offset=1.0, scale=-1.0), "full", "drop")


# ------------------------------------------------------------------------------------------- minimality


def minimality_class(faithfulness: float, without: Float64[np.ndarray, " n_heads"], threshold: float) -> str:
    """The published class of a circuit from its faithfulness and those with one head removed.

    Args:
        faithfulness: F(C).
        without: F(C minus a head), one per head.
        threshold: Faithfulness that counts as faithful.

    Returns:
        `not_faithful`; `locally_minimal` (every single removal breaks it); `quasi_minimal` (at least one
        does); `not_minimal` (none does).
    """
    if not faithfulness >= threshold:
        return "not_faithful"
    broken = without < threshold
    if broken.all():
        return "locally_minimal"
    return "quasi_minimal" if broken.any() else "not_minimal"


def _minimality(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Mean over heads of the faithfulness lost with the head: m_h = F(C) - F(C without h).

    The heads are those listed for a head circuit, else those of the connected form of an edge circuit; C
    without h keeps no edge that leaves h. Negative importance: the circuit is better without the head.

    A head counts as essential from an importance above 0.05, a circuit as broken, for the class, below a
    faithfulness of 0.5. Undefined (`no_heads`) for a circuit without heads, (`zero_denominator`) as
    `faithfulness`. The detail `heads` has importance and delta-method standard error of each.

    References:
        Wang et al. 2022, arXiv:2211.00593.
    """
    heads, used = runs.circuit.kept_heads(), finite_examples(runs, "full", "keep")
    details: dict[str, Any] = {"essential_above": ESSENTIAL, "faithful_from": FAITHFUL}
    facts: dict[str, Any] = {"warnings": task_warnings(runs, used), "details": details}
    if not heads:
        nothing = dict.fromkeys(_IMPORTANCE.components, np.zeros(len(used)))
        return record(spec, nothing, _IMPORTANCE, used=used, undefined="no_heads", **facts)
    full, keep = runs.margins("full"), runs.margins("keep")
    without = np.stack([runs.margins_of(runs.circuit.without_head(*head)) for head in heads])
    used &= np.isfinite(without).all(axis=0)
    n, total, share = int(used.sum()), full[used].sum(), ratio_of("part", "full")
    faithfulness = float(share.of_sums(np.array([keep[used].sum(), total]), n))
    left = share.of_sums(np.stack([without[:, used].sum(1), np.full(len(heads), total)], axis=-1), n)
    if not math.isnan(faithfulness):
        names, importance = [f"a{layer}.h{head}" for layer, head in heads], (faithfulness - left).tolist()
        linear = [_IMPORTANCE.linearised(np.stack([keep, row, full])[:, used]) for row in without]
        errors = np.std(linear, axis=1, ddof=1) / math.sqrt(n) if n > 1 else np.full(len(heads), math.nan)
        details["faithfulness"] = faithfulness
        details["class"] = minimality_class(faithfulness, left, FAITHFUL)
        details["essential"] = [
            name for name, each in zip(names, importance, strict=True) if each > ESSENTIAL
        ]
        details["share_essential"] = len(details["essential"]) / len(heads)
        details["heads"] = {
            name: {"importance": each, "standard_error": error}
            for name, each, error in zip(names, importance, errors.tolist(), strict=True)
        }
    components = {"keep": keep, "full": full, "without": without.mean(axis=0)}
    return record(spec, components, _IMPORTANCE, used=used, **facts)


_IMPORTANCE = RatioOfSums(numerator={"keep": 1.0, "without": -1.0}, denominator={"full": 1.0})


SPECS = (
    MetricSpec(
        key="faithfulness",
        id="D02.faithfulness",
        name="logit-difference recovery",
        direction="target",
        rule=Rule(pass_at=0.8, strict=False),
        meaning="Share of the model’s margin that remains when only the circuit’s edges are kept.",
        compute=_faithfulness,
    ),
    MetricSpec(
        key="faithfulness-norm",
        id="D02.faithfulness_norm",
        name="baseline-corrected recovery",
        direction="target",
        rule=Rule(pass_at=0.8, strict=False),
        runs=("full", "keep", "empty"),
        meaning="The same share on a scale from the empty circuit (0) to the whole model (1).",
        compute=_faithfulness_norm,
    ),
    MetricSpec(
        key="completeness",
        id="D02.completeness",
        name="1 - recovery after dropping the circuit",
        criterion="I1 necessity",
        direction="higher",
        rule=Rule(pass_at=0.8, strict=False),
        runs=("full", "drop"),
        meaning="Share of the margin that is lost when the circuit itself is ablated.",
        compute=_completeness,
    ),
    MetricSpec(
        key="minimality",
        id="C4b.minimality",
        name="mean and share of essential heads",
        criterion="C4 minimality",
        direction="higher",
        runs=("full", "keep"),
        more_runs=True,
        meaning="Mean loss of faithfulness when one head is removed from the circuit.",
        compute=_minimality,
    ),
)
