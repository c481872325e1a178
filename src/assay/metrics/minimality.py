"""Whether every head of a circuit is needed: what faithfulness loses with each one removed."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.metrics.metric import MetricSpec, finite_examples, metric, record, task_warnings, undefined
from assay.stats import RatioOfSums, ratio_of


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


@metric(
    key="minimality",
    id="C4b.minimality",
    name="mean and share of essential heads",
    criterion="C4 minimality",
    direction="higher",
    runs=("full", "keep"),
    more_runs=True,
    reference="Wang et al. 2022, arXiv:2211.00593",
    meaning="Mean loss of faithfulness when one head is removed from the circuit.",
)
def _minimality(
    runs: CircuitRuns, spec: MetricSpec, *, essential_above: float = 0.05, faithful_from: float = 0.5
) -> Measurement:
    """Mean over heads of the faithfulness lost with the head: m_h = F(C) - F(C without h).

    The heads are those listed for a head circuit, else those of the connected form of an edge circuit; C
    without h keeps no edge that leaves h. Negative importance: the circuit is better without the head.

    Options:
        essential_above: Importance above which a head counts as essential.
        faithful_from: Faithfulness below which a circuit counts as broken, for the class.

    Undefined (`no_heads`) for a circuit without heads, (`zero_denominator`) as `faithfulness`. The
    detail `heads` has importance and delta-method standard error of each.
    """
    heads = runs.circuit.kept_heads()
    used = finite_examples(runs, "full", "keep")
    warnings = task_warnings(runs, used)
    if not heads:
        return undefined(spec, n=int(used.sum()), reason="no_heads", warnings=warnings)
    full, keep = runs.margins("full"), runs.margins("keep")
    without = np.stack([runs.margins_of(runs.circuit.without_head(*head)) for head in heads])
    used &= np.isfinite(without).all(axis=0)
    names = [f"a{layer}.h{head}" for layer, head in heads]
    details: dict[str, Any] = {"essential_above": essential_above, "faithful_from": faithful_from}
    if used.any():
        details |= _per_head(names, keep[used], full[used], without[:, used], essential_above, faithful_from)
    return record(
        spec,
        {"keep": keep, "full": full, "without": without.mean(axis=0)},
        _importance("without"),
        used=used,
        warnings=warnings,
        details=details,
    )


def _importance(without: str) -> RatioOfSums:
    return RatioOfSums(numerator={"keep": 1.0, without: -1.0}, denominator={"full": 1.0})


def _per_head(
    names: list[str],
    keep: Float64[np.ndarray, " n"],
    full: Float64[np.ndarray, " n"],
    without: Float64[np.ndarray, "n_heads n"],
    essential_above: float,
    faithful_from: float,
) -> dict[str, Any]:
    """Importance of each head, which are essential, and the class of the circuit."""
    faithfulness = float(ratio_of("keep", "full").of_sums(np.array([keep.sum(), full.sum()]), len(full)))
    left = ratio_of("without", "full").of_sums(
        np.stack([without.sum(1), np.full(len(names), full.sum())], -1), len(full)
    )
    if math.isnan(faithfulness):
        return {}
    root = math.sqrt(len(full))
    heads = {}
    for name, row, remaining in zip(names, without, left, strict=True):
        linear = _importance("without").linearised(np.stack([keep, row, full]))
        error = linear.std(ddof=1) / root if len(full) > 1 else math.nan
        heads[name] = {"importance": faithfulness - float(remaining), "standard_error": float(error)}
    essential = [name for name, each in heads.items() if each["importance"] > essential_above]
    return {
        "faithfulness": faithfulness,
        "class": minimality_class(faithfulness, left, faithful_from),
        "essential": essential,
        "share_essential": len(essential) / len(names),
        "heads": heads,
    }
