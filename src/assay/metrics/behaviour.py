"""Behaviour beyond the margin: several output metrics side by side, and how well its absence shows."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.core.errors import check_name
from assay.core.measurement import Measurement
from assay.core.verdict import ONE_SIDED_95, Rule, Verdict
from assay.execution import CircuitRuns
from assay.metrics.divergence import at_each_read, by_prompt, run_divergences, run_logits
from assay.metrics.metric import (
    MetricSpec,
    finite_examples,
    metric,
    record,
    record_spread,
    task_warnings,
)
from assay.metrics.outputs import answer_is_top, answer_log_probability
from assay.stats import FunctionOfSums, corrected_rate, mean_of, ratio_of


VARIANTS = ("margin", "log-probability", "probability", "top-1", "kl")
AUC_RULE = Rule(pass_at=0.7)


def _variant_components(runs: CircuitRuns) -> dict[str, Float64[np.ndarray, " n"]]:
    """Numerator `V/keep` and denominator `V/full` of each output variant V; `kl/full` is of the empty run."""
    answers = at_each_read(runs, runs.task.answers).numpy()
    components: dict[str, np.ndarray] = {}
    for which in ("keep", "full"):
        logits = run_logits(runs, which)
        log_probability = answer_log_probability(logits, answers)
        components[f"margin/{which}"] = runs.margins(which)
        components[f"log-probability/{which}"] = by_prompt(runs, log_probability)
        components[f"probability/{which}"] = by_prompt(runs, np.exp(log_probability))
        components[f"top-1/{which}"] = by_prompt(runs, answer_is_top(logits, answers).astype(np.float64))
    components["kl/keep"] = run_divergences(runs, "keep")["kl"]
    components["kl/full"] = run_divergences(runs, "empty")["kl"]
    return components


@metric(
    key="output-variants",
    id="C21.output_variants",
    name="spread of faithfulness over output metrics",
    criterion="I2 sufficiency",
    range=(0.0, math.inf),
    direction="lower",
    pass_threshold=0.3,
    strict=False,
    runs=("full", "keep", "empty"),
    reference="Miller et al. 2024, arXiv:2407.08734",
)
def _output_variants(runs: CircuitRuns, spec: MetricSpec, *, include_logprob: bool = False) -> Measurement:
    """Coefficient of variation of faithfulness measured by five outputs: sd (ddof 0) / |mean|.

    The outputs: the task's margin, log-probability, probability and top-1 accuracy of the answer (ratio of
    sums over the model's), and KL faithfulness. The part of each has its own value and interval.

    Options:
        include_logprob: Let log-probability enter the spread. Off by default: its ratio exceeds 1 when the
            circuit is worse.

    An output whose faithfulness is undefined is left out and listed in the detail `undefined`; fewer than
    two defined outputs leave the spread undefined (`too_few_outputs`).
    """
    used = finite_examples(runs, "full", "keep", "empty")
    components = _variant_components(runs)
    scales = {each: (1.0, -1.0) if each == "kl" else (0.0, 1.0) for each in VARIANTS}
    parts = {}
    for variant, (offset, scale) in scales.items():
        statistic = ratio_of(f"{variant}/keep", f"{variant}/full", offset=offset, scale=scale)
        pair = {name: components[name] for name in statistic.components}
        part_id = f"C21.{variant}"
        parts[variant] = record(spec, pair, statistic, used=used, id=part_id, rule=None, direction="report")
    entering = [each for each in VARIANTS if include_logprob or each != "log-probability"]
    defined = [each for each in entering if not math.isnan(parts[each].value)]
    details = {"entering": defined, "undefined": [each for each in entering if each not in defined]}
    return record_spread(
        spec,
        runs,
        components,
        {each: scales[each] for each in defined},
        used=used,
        too_few="too_few_outputs",
        details=details,
        parts=parts,
    )


def pairwise_wins(
    signal: Float64[np.ndarray, " n"], noise: Float64[np.ndarray, " m"]
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " m"]]:
    """Share of the other side that each value beats: signal above noise, noise below signal; ties count half.

    The mean of either is the Mann-Whitney AUC.
    """
    ranks = scipy.stats.rankdata(np.concatenate([signal, noise]))
    above = (ranks[: len(signal)] - scipy.stats.rankdata(signal)) / len(noise)
    below = 1 - (ranks[len(signal) :] - scipy.stats.rankdata(noise)) / len(signal)
    return above, below


@metric(
    key="dprime",
    id="EX1.dprime",
    name="behavioural d' of the model against the model without the circuit",
    family="F",
    criterion="M4",
    direction="higher",
    pass_threshold=1.0,
    unit="standard deviations",
    runs=("full", "drop"),
    reference="Green and Swets 1966",
)
def _dprime(runs: CircuitRuns, spec: MetricSpec, *, correction: str = "loglinear") -> Measurement:
    """Detectability of the circuit in behaviour: Phi^-1(H) - Phi^-1(F).

    H is the share of examples with a positive margin in the model, F the share with one after the circuit
    is dropped. Passes above 1 with an AUC (margins of the model against those without the circuit) above 0.7.

    Options:
        correction: `loglinear`, (count + 1/2) / (n + 1), or the published `clip-half`.
    """
    check_name("correction", correction, ("loglinear", "clip-half"))
    used = finite_examples(runs, "full", "drop")
    full, drop = runs.margins("full"), runs.margins("drop")
    components = {"hit": (full > 0).astype(np.float64), "false_alarm": (drop > 0).astype(np.float64)}
    statistic = FunctionOfSums(
        function="d-prime", components=("hit", "false_alarm"), parameters={"correction": correction}
    )
    auc = _auc(spec, full, drop, used)
    details: dict[str, Any] = {"correction": correction}
    if used.any():
        rates = [float(components[each][used].mean()) for each in ("hit", "false_alarm")]
        quantiles = scipy.special.ndtri(
            corrected_rate(np.array(rates) * used.sum(), int(used.sum()), correction=correction)
        )
        details |= {"hit_rate": rates[0], "false_alarm_rate": rates[1], "criterion": -float(quantiles.mean())}
    measurement = record(
        spec,
        components,
        statistic,
        used=used,
        warnings=task_warnings(runs, used),
        details=details,
        parts={"auc": auc},
    )
    return replace(measurement, judged=_both_pass(measurement, auc))


def _auc(
    spec: MetricSpec,
    full: Float64[np.ndarray, " n"],
    drop: Float64[np.ndarray, " n"],
    used: Bool[np.ndarray, " n"],
) -> Measurement:
    """AUC with its linearisation over examples: wins of both sides less the AUC itself."""
    wins = np.full(len(full), np.nan)
    if used.any():
        above, below = pairwise_wins(full[used], drop[used])
        wins[used] = above + below - above.mean()
    facts: dict[str, Any] = {
        "id": "EX1.auc",
        "unit": "fraction",
        "rule": AUC_RULE,
        "interval_method": "delta",
    }
    return record(spec, {"wins": wins}, mean_of("wins"), used=used, **facts)


def _both_pass(dprime: Measurement, auc: Measurement) -> Verdict:
    """Passes where both do; fails where either does; else inconclusive."""
    assert dprime.rule is not None
    values = {"dprime": dprime.value, "auc": auc.value}
    thresholds = {"pass": dprime.rule.pass_at, "auc": AUC_RULE.pass_at}
    judged = [
        dprime.rule.judge(dprime.value, dprime.interval(ONE_SIDED_95), dprime.n),
        AUC_RULE.judge(auc.value, auc.interval(ONE_SIDED_95), auc.n),
    ]
    needed = [each.n_needed for each in judged if each.n_needed is not None]
    return Verdict(
        status=_joint([each.status for each in judged]),
        published=_joint([each.published for each in judged]),
        values=values,
        thresholds=thresholds,
        interval=dprime.interval(ONE_SIDED_95),
        n_needed=max(needed, default=None),
        reason=dprime.reason,
    )


def _joint(statuses: list[str]) -> str:
    if "fail" in statuses:
        return "fail"
    return "pass" if all(each == "pass" for each in statuses) else "inconclusive"
