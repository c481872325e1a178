"""What the circuit is worth in cross-entropy: loss of keeping it alone, of dropping it, and their ratio."""

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.execution.runs import Which
from assay.metrics.divergence import run_logits
from assay.metrics.metric import MetricSpec, finite_examples, metric, record
from assay.metrics.outputs import answer_log_probability
from assay.stats import RatioOfSums, mean_difference


def drop_reading(nats: float) -> str:
    """The published reading of the cross-entropy increase when the circuit is dropped."""
    if nats > 2:
        return "critical"
    if nats >= 0.5:
        return "significant"
    return "not_necessary" if nats < 0.1 else "minor"


def _cross_entropies(
    runs: CircuitRuns,
) -> tuple[dict[str, Float64[np.ndarray, " n"]], Bool[np.ndarray, " n"]]:
    """-log probability mass on the answers in each run, nats, and which examples count."""
    answers = runs.task.answers.numpy()
    which: tuple[Which, ...] = ("full", "keep", "drop")
    losses: dict[str, np.ndarray] = {
        each: -answer_log_probability(run_logits(runs, each), answers) for each in which
    }
    return losses, finite_examples(runs, *which)


def _ratio() -> RatioOfSums:
    return RatioOfSums(numerator={"drop": 1.0, "full": -1.0}, denominator={"keep": 1.0, "full": -1.0})


@metric(
    key="ce-delta",
    id="D04.ce_delta_drop",
    name="cross-entropy increase when the circuit is dropped",
    criterion="I1 necessity",
    direction="higher",
    pass_threshold=0.5,
    fail_threshold=0.1,
    unit="nats",
    runs=("full", "keep", "drop"),
    reference="Conmy et al. 2023, arXiv:2304.14997",
    meaning="Increase of the cross-entropy of the right answer when the circuit is ablated.",
)
def _ce_delta(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Mean increase of the cross-entropy of the answer when the circuit is dropped.

    CE = -log of the probability mass on the valid answers. The part `keep` is the increase when only the
    circuit is kept (sufficiency, lower is better), `ratio` that of dropping over that of keeping.
    """
    losses, used = _cross_entropies(runs)
    parts = {
        "keep": record(
            spec,
            losses,
            mean_difference("keep", "full"),
            used=used,
            id="D04.ce_delta_keep",
            direction="lower",
            rule=None,
        ),
        "ratio": record(spec, losses, _ratio(), used=used, id="D04.ce_ratio", unit="fraction", rule=None),
    }
    drop = mean_difference("drop", "full")
    return record(spec, losses, drop, used=used, reading=drop_reading, parts=parts)


@metric(
    key="ce-ratio",
    id="D04.ce_ratio",
    name="cross-entropy increase of dropping over that of keeping the circuit",
    criterion="I1 necessity",
    direction="higher",
    pass_threshold=1.0,
    strict=False,
    runs=("full", "keep", "drop"),
    reference="Conmy et al. 2023, arXiv:2304.14997",
    meaning="Damage from ablating the circuit, divided by damage from ablating everything else.",
)
def _ce_ratio(runs: CircuitRuns, spec: MetricSpec) -> Measurement:
    """Mean (CE_drop - CE_full) over mean (CE_keep - CE_full).

    At least 1: the circuit matters more than everything else. Undefined (`zero_denominator`) where
    keeping the circuit alone costs nothing; a negative value where it improves the model's loss.
    """
    losses, used = _cross_entropies(runs)
    return record(spec, losses, _ratio(), used=used)
