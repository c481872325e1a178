"""Whether a circuit still does the task when everything outside it comes from other prompts."""

import math
from typing import Any

import numpy as np

from assay.core.errors import check_least
from assay.core.measurement import Measurement, Rule
from assay.discovery.heads.interventions import INTERVENTIONS, run_with_edges_replaced
from assay.discovery.heads.runs import outside, run_with_heads_replaced
from assay.execution import CircuitRuns
from assay.execution.ablation import Setting
from assay.execution.batches import choose_batch_size
from assay.execution.forward import finite_rows
from assay.metrics.divergence import divergences, run_logits
from assay.metrics.metric import MetricSpec, finite_examples, record, task_warnings
from assay.stats import mean_of, ratio_of


def _scrub(runs: CircuitRuns, spec: MetricSpec, *, draws: int = 5, same_answer: bool = False) -> Measurement:
    """The run in which all but the circuit comes from other prompts, averaged over draws of these donors.

    Each prompt has a donor of its own length, and whatever lies outside the circuit carries what it carries
    in the donor's clean run: a circuit of heads has the others replaced inside plain passes, one of edges has
    its other edges patched. `scrub-recovery` is sum y_scrub / sum y_full, the share of the model's margin
    that is left; `scrub-kl` the mean KL(model || run). A prompt alone in its length is left out
    (`without_donor`). The ablation of the runs plays no part.

    Options:
        draws: Draws of donors that are averaged.
        same_answer: Only donors with the same right answers; prompts without one are left out.

    The recovery is undefined (`zero_denominator`) where |sum y_full| < 1e-8 n. The detail `value_by_draw` has
    each draw.

    References:
        Chan et al. 2022, Causal Scrubbing.
    """
    check_least(1, draws=draws)
    model, task, circuit = runs.model, runs.task, runs.circuit
    recovery = spec.key == "scrub-recovery"
    statistic, over = (ratio_of("scrub", "full"), [runs.margins("full")]) if recovery else (mean_of("kl"), [])
    donor = INTERVENTIONS["resample-donor-same-class" if same_answer else "resample-donor"]
    size = choose_batch_size(model, task, asked=runs.batch_size)
    setting = Setting(model=model, task=task, reference=task, batch_size=size, seed=runs.seed)
    used, values = finite_examples(runs, "full"), []
    for setting.draw in range(draws):
        if circuit.heads is not None and (circuit.keeps_mlps or not circuit.graph.mlps):
            replacement, rest = donor.prepare_heads(setting), outside(circuit.heads, model)
            logits = run_with_heads_replaced(model, task, rest, replacement, batch_size=size)
        else:
            logits = run_with_edges_replaced(circuit, donor, setting)
        used &= finite_rows(logits).numpy()
        nats = {} if recovery else divergences(run_logits(runs, "full"), logits.numpy())
        values.append(runs.margins_from(logits) if recovery else nats["kl"])
    served = donor.served(setting)
    used &= served
    details: dict[str, Any] = {"draws": draws, "without_donor": int((~served).sum())}
    n, totals = int(used.sum()), [each[used].sum() for each in over]
    if n:
        by_draw = [float(statistic.of_sums(np.array([each[used].sum(), *totals]), n)) for each in values]
        spread = float(np.std(by_draw, ddof=1)) if draws > 1 else math.nan
        details |= {"value_by_draw": by_draw, "sd_over_draws": spread}
    with np.errstate(invalid="ignore"):  # of examples that do not count
        components = dict(zip(statistic.components, (np.mean(values, axis=0), *over), strict=True))
    warnings = task_warnings(runs, used) if recovery else ()
    return record(spec, components, statistic, used=used, warnings=warnings, details=details)


SPECS = (
    MetricSpec(
        key="scrub-recovery",
        id="C4.scrub_recovery",
        name="recovery under a resampled complement",
        criterion="I1 necessity, I2 sufficiency",
        direction="target",
        rule=Rule(pass_at=0.5),
        runs=("full",),
        more_runs=True,
        meaning="Share of the margin that is left when all but the circuit comes from other prompts.",
        compute=_scrub,
    ),
    MetricSpec(
        key="scrub-kl",
        id="C4.scrub_kl",
        name="KL under a resampled complement",
        criterion="I1 necessity, I2 sufficiency",
        range=(0.0, math.inf),
        direction="lower",
        rule=Rule(pass_at=0.5, fail_at=2.0, higher=False),
        unit="nats",
        runs=("full",),
        more_runs=True,
        meaning="Mean divergence from the model when all but the circuit comes from other prompts.",
        compute=_scrub,
    ),
)
