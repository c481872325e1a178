"""What C14 takes: rows found by the names of scores and measurements."""

from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.calibration._things import Arguments, Things, flags
from assay.circuits import HeadCircuit
from assay.core.errors import InputError
from assay.core.measurement import Measurement
from assay.core.verdict import ONE_SIDED_95, Verdict
from assay.discovery.heads import Composition, HeadScores, WeightPrediction
from assay.stats import Estimate


def rows_of_things(given: Things) -> Arguments:
    """Members, and an option for each thing; what serves no row is refused."""
    circuit = given.circuit()
    scores = given.take(HeadScores)
    measured = given.take(Measurement)
    if circuit is None:
        raise given.wrong("there is no circuit")
    compositions, predictions = given.take(Composition), given.take(WeightPrediction)
    members = flags(given.code, circuit, scores[0] if scores else None)
    more: dict[str, Any] = {}
    for each in scores:
        flags(given.code, circuit, each)
        _put(given, more, *_column(given, each))
    for each in measured:
        if each.name not in _MEASURED:
            raise given.wrong(f"{each.name!r} cannot become a row; expected one of {', '.join(_MEASURED)}")
        _put(
            given, more, _MEASURED[each.name], _losses(each) if each.name == "minimality" else estimate(each)
        )
        if each.name != "minimality":
            more["n_prompts"] = each.n
    for each in predictions:
        if each.reason is not None:
            continue  # nothing was learned, so nothing was predicted
        _put(given, more, "predicted", each.predicted)
    for each in compositions:
        _put(given, more, "composition", {"q": each.q, "k": each.k, "v": each.v})
        more["n_heads"] = each.n_heads
    if isinstance(circuit, HeadCircuit):
        more["head_edges"] = circuit.head_edges
    for verdict in given.take(Verdict):
        _put(given, more, "partial_eta_sq", verdict)
    for each in given.take(np.ndarray):
        _put(given, more, "scores", np.asarray(each, dtype=np.float64))
    return (members,), more


_MEASURED = {
    "faithfulness": "faithfulness",
    "completeness": "completeness",
    "minimality": "minimality",
    "scrub-recovery": "logit_diff_recovery",
}
_COLUMNS = {"ov-spectral-norm": "spectral_norm", "ov-sv-entropy": "sv_entropy"}


def _put(given: Things, more: dict[str, Any], name: str, value: Any) -> None:
    """Add an argument once."""
    if name in more:
        raise InputError(f"{given.code}: {name} was given twice; remove one")
    more[name] = value


def _column(given: Things, scores: HeadScores) -> tuple[str, Float64[np.ndarray, " H"]]:
    """The row of C14 that head scores serve, and their values."""
    if scores.name == "activation-patching":
        return "scores", scores.flat
    if scores.name.startswith("llc"):
        return "llc", scores.flat
    if scores.name == "attribution-patching":
        return "attribution", np.abs(scores.flat)
    if scores.name in _COLUMNS:
        return _COLUMNS[scores.name], scores.flat
    raise given.wrong(
        f"{scores.name!r} cannot become a row; give it as scores= or attribution=, if it is one"
    )


def estimate(measurement: Measurement) -> Estimate:
    """The value with one-sided 95 % bounds."""
    return Estimate(
        value=measurement.value, interval=measurement.interval(ONE_SIDED_95), reason=measurement.reason
    )


def _losses(measurement: Measurement) -> Float64[np.ndarray, " k"]:
    """Faithfulness lost with each head."""
    heads = measurement.details.get("heads", {})
    return np.array([each["importance"] for each in heads.values()], dtype=np.float64)
