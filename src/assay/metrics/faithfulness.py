"""How much of the model's margin a circuit carries: faithfulness, plain and corrected, and completeness."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import check_name
from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.execution.runs import Which
from assay.metrics.metric import (
    METRICS,
    MetricSpec,
    finite_examples,
    metric,
    record,
    task_warnings,
)
from assay.objectives import OBJECTIVES
from assay.stats import mean_of, ratio_of, recovery_of
from assay.tasks import ImageTask


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


def _mean_margins(runs: CircuitRuns, used: Bool[np.ndarray, " n"], *which: Which) -> dict[str, Any]:
    """Mean margin of each run and the share of examples that the model itself gets right."""
    if not used.any():
        return {}
    means = {f"mean_margin_{each}": float(runs.margins(each)[used].mean()) for each in which}
    return means | {"share_solved": float((runs.margins("full")[used] > 0).mean())}


@metric(
    key="faithfulness",
    id="D02.faithfulness",
    name="logit-difference recovery",
    criterion="I2 sufficiency",
    direction="target",
    pass_threshold=0.8,
    strict=False,
    reference="Wang et al. 2022, arXiv:2211.00593",
    meaning="Share of the model’s margin that remains when only the circuit’s edges are kept.",
)
def _faithfulness(
    runs: CircuitRuns, spec: MetricSpec, *, aggregate: str = "ratio_of_sums", normalised: bool = False
) -> Measurement:
    """Share of the model's margin that the circuit alone keeps, F = sum y_keep / sum y_full.

    y = -objective, per example. 1 is the whole model; the empty circuit is in general not 0, since what
    is not an edge (embeddings, biases, under a head circuit the MLPs) still acts.

    Options:
        aggregate: `ratio_of_sums`, or `mean_of_ratios` over examples with |y_full| above 1e-3 of its
            median: heavy-tailed, only for comparison.
        normalised: The same as the metric `faithfulness-norm`.

    Under a divergence from the model (`kl`, `js`) the model's own margin is 0 and this ratio undefined. Of
    image classifiers, where that is the default, faithfulness is then `faithfulness-norm`, 1 - D(circuit) /
    D(empty) (Peng et al. 2026, arXiv:2604.08192, Eq. 8).

    Undefined (`zero_denominator`) where |sum y_full| < 1e-8 n.
    """
    if normalised or (isinstance(runs.task, ImageTask) and _is_divergence(runs.objective)):
        return _faithfulness_norm(runs, METRICS["faithfulness-norm"])
    check_name("aggregate", aggregate, ("ratio_of_sums", "mean_of_ratios"))
    used = finite_examples(runs, "full", "keep")
    full, keep = runs.margins("full"), runs.margins("keep")
    components = {"keep": keep, "full": full}
    details = {"aggregate": aggregate, **_mean_margins(runs, used, "full", "keep")}
    statistic = ratio_of("keep", "full")
    if aggregate == "mean_of_ratios":
        components["ratio"] = _single_ratios(keep, full, used)
        details["n_small_margin"] = int((used & np.isnan(components["ratio"])).sum())
        statistic = mean_of("ratio")
    return record(
        spec,
        components,
        statistic,
        used=used,
        warnings=task_warnings(runs, used),
        reading=recovery_reading,
        details=details,
    )


def _is_divergence(objective: str) -> bool:
    """Whether an objective measures the distance from the model itself."""
    return objective in OBJECTIVES and OBJECTIVES[objective].stationary


def _single_ratios(
    keep: Float64[np.ndarray, " n"], full: Float64[np.ndarray, " n"], used: Bool[np.ndarray, " n"]
) -> Float64[np.ndarray, " n"]:
    """Keep / full of each example, NaN where |full| is not above 1e-3 of its median."""
    typical = np.median(np.abs(full[used])) if used.any() else 0.0
    ratios = np.full(len(full), np.nan)
    np.divide(keep, full, out=ratios, where=used & (np.abs(full) > SMALL_MARGIN * typical))
    return ratios


@metric(
    key="faithfulness-norm",
    id="D02.faithfulness_norm",
    name="baseline-corrected recovery",
    criterion="I2 sufficiency",
    direction="target",
    pass_threshold=0.8,
    strict=False,
    runs=("full", "keep", "empty"),
    reference="Mueller et al. 2025, arXiv:2504.13151",
    meaning="The same share on a scale from the empty circuit (0) to the whole model (1).",
)
def _faithfulness_norm(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Recovery between the empty circuit (0) and the model (1): (S_keep - S_empty) / (S_full - S_empty).

    S sums the margin over examples. Under a divergence objective this is 1 - D(keep) / D(empty).
    Undefined (`zero_denominator`) where the empty circuit already has the model's margin.
    """
    used = finite_examples(runs, "full", "keep", "empty")
    components = {each: runs.margins(each) for each in ("keep", "full", "empty")}
    return record(
        spec,
        components,
        recovery_of("keep"),
        used=used,
        warnings=task_warnings(runs, used),
        reading=recovery_reading,
        details=_mean_margins(runs, used, "full", "keep", "empty"),
    )


@metric(
    key="completeness",
    id="D02.completeness",
    name="1 - recovery after dropping the circuit",
    criterion="I1 necessity",
    direction="higher",
    pass_threshold=0.8,
    strict=False,
    runs=("full", "drop"),
    reference="Wang et al. 2022, arXiv:2211.00593",
    meaning="Share of the margin that is lost when the circuit itself is ablated.",
)
def _completeness(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Share of the model's margin that is lost when the circuit is dropped: 1 - sum y_drop / sum y_full.

    1: nothing outside the circuit does the task; 0: dropping it changes nothing (an empty circuit);
    above 1: what remains prefers the wrong answer. Undefined as `faithfulness`.
    """
    used = finite_examples(runs, "full", "drop")
    components = {each: runs.margins(each) for each in ("drop", "full")}
    return record(
        spec,
        components,
        ratio_of("drop", "full", offset=1.0, scale=-1.0),
        used=used,
        warnings=task_warnings(runs, used),
        details=_mean_margins(runs, used, "full", "drop"),
    )
