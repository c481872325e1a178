"""Whether a circuit still does the task when everything outside it comes from other prompts."""

import math
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import check_least
from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.metrics.metric import MetricSpec, finite_examples, metric, record, task_warnings
from assay.metrics.replaced import Complement, Replacements
from assay.stats import RatioOfSums, mean_of, ratio_of


METHODS = ("resample-donor", "resample-donor-same-class")


def _scrubbed(
    runs: CircuitRuns, draws: int, same_answer: bool, *, kl: bool
) -> tuple[Replacements, Bool[np.ndarray, " n"]]:
    """The replacements, and the examples that may count."""
    check_least(1, draws=draws)
    replaced = Complement(runs=runs).draw(METHODS[same_answer], draws=draws, kl=kl)
    used = finite_examples(runs, "full") & replaced.served & np.isfinite(replaced.margins).all(axis=0)
    return replaced, used


def _facts(
    found: Replacements,
    used: Bool[np.ndarray, " n"],
    statistic: RatioOfSums,
    values: Float64[np.ndarray, "draws n"],
    *further: Float64[np.ndarray, " n"],
) -> dict[str, Any]:
    """The value of each draw, and their spread."""
    n = int(used.sum())
    details: dict[str, Any] = {"draws": len(values), "without_donor": int((~found.served).sum())}
    if not n:
        return details
    totals = [each[used].sum() for each in further]
    each = [float(statistic.of_sums(np.array([row[used].sum(), *totals]), n)) for row in values]
    spread = float(np.std(each, ddof=1)) if len(each) > 1 else math.nan
    return details | {"value_by_draw": each, "sd_over_draws": spread}


@metric(
    key="scrub-recovery",
    id="C4.scrub_recovery",
    name="recovery under a resampled complement",
    criterion="I1 necessity, I2 sufficiency",
    direction="target",
    pass_threshold=0.5,
    runs=("full",),
    more_runs=True,
    reference="Chan et al. 2022, Causal Scrubbing",
    meaning="Share of the margin that is left when all but the circuit comes from other prompts.",
)
def _scrub_recovery(
    runs: CircuitRuns, spec: MetricSpec, *, draws: int = 5, same_answer: bool = False
) -> Measurement:
    """Share of the model's margin that is left when all but the circuit comes from other prompts.

    sum y_scrub / sum y_full: each prompt has a donor of its own length, and whatever lies outside the circuit
    carries what it carries in the donor's clean run. y_scrub is the mean over draws of donors. A prompt alone
    in its length is left out (`without_donor`). The ablation of the runs plays no part.

    Options:
        draws: Draws of donors that are averaged.
        same_answer: Only donors with the same right answers; prompts without one are left out.

    Undefined (`zero_denominator`) where |sum y_full| < 1e-8 n. The detail `value_by_draw` has each draw.
    """
    replaced, used = _scrubbed(runs, draws, same_answer, kl=False)
    full, statistic = runs.margins("full"), ratio_of("scrub", "full")
    return record(
        spec,
        {"scrub": replaced.margins.mean(axis=0), "full": full},
        statistic,
        used=used,
        warnings=task_warnings(runs, used),
        details=_facts(replaced, used, statistic, replaced.margins, full),
    )


@metric(
    key="scrub-kl",
    id="C4.scrub_kl",
    name="KL under a resampled complement",
    criterion="I1 necessity, I2 sufficiency",
    range=(0.0, math.inf),
    direction="lower",
    pass_threshold=0.5,
    fail_threshold=2.0,
    unit="nats",
    runs=("full",),
    more_runs=True,
    reference="Chan et al. 2022, Causal Scrubbing",
    meaning="Mean divergence from the model when all but the circuit comes from other prompts.",
)
def _scrub_kl(
    runs: CircuitRuns, spec: MetricSpec, *, draws: int = 5, same_answer: bool = False
) -> Measurement:
    """Mean KL(model || run) when all but the circuit comes from other prompts, averaged over donors.

    Options:
        draws: Draws of donors that are averaged.
        same_answer: Only donors with the same right answers; prompts without one are left out.
    """
    replaced, used = _scrubbed(runs, draws, same_answer, kl=True)
    assert replaced.kl is not None
    statistic = mean_of("kl")
    details = _facts(replaced, used, statistic, replaced.kl)
    return record(spec, {"kl": replaced.kl.mean(axis=0)}, statistic, used=used, details=details)
