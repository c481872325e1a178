"""How far a circuit's faithfulness depends on what the rest of the model is replaced by."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.execution import CircuitRuns
from assay.metrics.metric import (
    MetricSpec,
    finite_examples,
    metric,
    record,
    record_spread,
)
from assay.metrics.replaced import Complement
from assay.stats import ratio_of


METHODS = (
    "zero",
    "mean",
    "resample-donor",
    "noise-additive",
    "resample-donor-same-class",
    "soft",
    "attn-uniform",
    "mean-last",
)


@metric(
    key="sigma-ablation",
    id="C3.sigma_ablation",
    name="spread of faithfulness over ablations",
    family="A",
    criterion="I1 necessity",
    range=(0.0, math.inf),
    direction="lower",
    pass_threshold=0.2,
    runs=("full",),
    own_runs=21,
    reference="Miller et al. 2024, arXiv:2407.08734",
)
def _sigma_ablation(
    runs: CircuitRuns,
    spec: MetricSpec,
    *,
    methods: Sequence[str] = METHODS,
    draws: int | None = None,
) -> Measurement:
    """Coefficient of variation of faithfulness over eight ablations: sd (ddof 0) / |mean|.

    F_a = sum y_keep,a / sum y_full with everything outside the circuit replaced by ablation a. The ablation
    of the runs plays no part. The part of each ablation has its own value and interval.

    Options:
        methods: Interventions to compare, two or more.
        draws: Draws of donors and noise that are averaged; default: 5.

    The detail `left_out` names the ablations that could not be made, with a code: `no_edge_ablation` (it
    changes heads, and the circuit is one of edges), `no_donor`, `zero_denominator`. Fewer than two leave the
    spread undefined (`too_few_methods`). A prompt without a donor of its length, or of its answer, is left
    out of that ablation alone.
    """
    asked = tuple(dict.fromkeys(methods))
    if len(asked) < 2 or (draws is not None and draws < 1):
        raise InputError(
            f"methods is {list(methods)} and draws {draws}; give two methods, and 1 draw or more"
        )
    complement = Complement(runs=runs)
    used, full = finite_examples(runs, "full"), runs.margins("full")
    left_out = {method: code for method in asked if (code := complement.refusal(method))}
    keep, served = {}, {}
    for method in asked:
        if method in left_out:
            continue
        replaced = complement.draw(method, draws=draws)
        keep[method], served[method] = replaced.margins.mean(axis=0), replaced.served
        used &= np.isfinite(keep[method])
    parts = {method: _part(spec, method, keep[method], full, used & served[method]) for method in keep}
    left_out |= {method: str(part.reason) for method, part in parts.items() if math.isnan(part.value)}
    defined = [method for method in keep if method not in left_out]
    details: dict[str, Any] = {
        "methods": defined,
        "left_out": left_out,
        "without_donor": {method: int((~each).sum()) for method, each in served.items() if not each.all()},
    }
    components = {}
    for method in defined:
        # A prompt that a method cannot serve adds nothing to either sum of that method.
        components[f"{method}/keep"] = np.where(served[method], keep[method], 0.0)
        components[f"{method}/full"] = np.where(served[method], full, 0.0)
    scales = dict.fromkeys(defined, (0.0, 1.0))
    return record_spread(
        spec, runs, components, scales, used=used, too_few="too_few_methods", details=details, parts=parts
    )


def _part(
    spec: MetricSpec,
    method: str,
    keep: Float64[np.ndarray, " n"],
    full: Float64[np.ndarray, " n"],
    used: Bool[np.ndarray, " n"],
) -> Measurement:
    """Faithfulness under one ablation."""
    return record(
        spec,
        {"keep": keep, "full": full},
        ratio_of("keep", "full"),
        used=used,
        id=f"C3.{method}",
        rule=None,
        direction="report",
    )
