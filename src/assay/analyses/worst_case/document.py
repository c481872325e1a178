"""A worst-case result as one JSON document, for `--json`, the store and the report."""

from typing import TYPE_CHECKING, Any

from assay.analyses.worst_case.bounds import not_certified
from assay.core.record import plain
from assay.stats import Certificate, histogram


if TYPE_CHECKING:
    from assay.analyses.worst_case.result import WorstCase

SCHEMA = "assay-worst-case/1"
CERTIFIED = (0.95, 0.99, 0.999)  # percentiles of the default certificates
SHOWN_PAIRS, SHOWN_INPUTS = 10, 5


def as_document(result: "WorstCase") -> dict[str, Any]:
    """Everything a reader is shown, plain JSON; see `WorstCase.to_dict`."""
    sample, facts = result.sample, result.facts
    summary = result.statistics
    inputs = result.worst_inputs(SHOWN_INPUTS)
    document = {
        "schema": SCHEMA,
        "kind": "worst_case",
        "id": result.id,
        "protocol": sample.protocol,
        "independent": sample.independent,
        "reuse_clean": sample.reuse_clean,
        "own_rows": sample.own_rows,
        "enumerated": sample.enumerated,
        "n_clean": sample.clean.n,
        "n_corrupted": sample.corrupted.n,
        "n_pairs": sample.n_pairs,
        "n_distinct_pairs": result.n_distinct_pairs,
        "n_distinct_clean": len(sample.clean.distinct.first_index),
        "n_distinct_corrupted": len(sample.corrupted.distinct.first_index),
        "population": dict(sample.population),
        "model": facts["model"],
        "task": facts["task"],
        "circuit": facts["circuit"],
        "ablation": facts["ablation"],
        "divergence": facts["divergence"],
        "unit": facts["unit"],
        "seed": sample.seed,
        "summary": {
            "absolute": summary.absolute,
            "z": summary.z,
            "argmax_differs": result.share_argmax_differs,
            "above": [
                {"threshold": threshold, "share": share} for threshold, share in summary.exceedance.items()
            ],
            "mean_standard_error": summary.standard_error,
        },
        "anchor": vars(result.anchor),
        "histogram": _histogram(result),
        "certificates": [certificate.to_dict() for certificate in _certificates(result)],
        "maximum_exceedance": None if not_certified(sample) else result.maximum_exceedance(),
        "worst": _worst(result),
        "worst_clean": [vars(each) for each in inputs.clean],
        "worst_corrupted": [vars(each) for each in inputs.corrupted],
        "fields": {
            "tests": result.field_tests,
            "trends": result.field_trends,
            "heatmaps": result.heatmaps,
        },
        "search": result.search,
        "outside": result.outside,
        "explanation": result.explanation,
        "warnings": [{"name": name, "message": message} for name, message in result.warnings.items()],
        "seconds": result.seconds,
        "provenance": facts["provenance"],
    }
    found: dict[str, Any] = plain(document)
    return found


def _histogram(result: "WorstCase") -> dict[str, Any]:
    """Circuit and empty circuit in the same bins."""
    largest = max(float(result.divergence.max()), float(result.empty.max()))
    own = result.histogram(maximum=largest)
    anchor = histogram(result.empty, maximum=largest, weights=result.sample.weights)
    return {"edges": own.edges, "counts": own.counts, "anchor_counts": anchor.counts}


def _certificates(result: "WorstCase") -> list[Certificate]:
    """The default ones; for crossed inputs the published bound beside the sound one."""
    if not_certified(result.sample):
        return []
    crossed = result.sample.pairs is None and not result.sample.enumerated
    methods = (None, "published") if crossed else (None,)
    return [result.certificate(percentile, method=method) for percentile in CERTIFIED for method in methods]


def _worst(result: "WorstCase") -> list[dict[str, Any]]:
    """The worst pairs; of a result without its model those it was saved with."""
    if result.rerun is None:
        stored: list[dict[str, Any]] = list((result.document or {}).get("worst", []))
        return stored
    return [pair.to_dict() for pair in result.worst(min(SHOWN_PAIRS, result.n_distinct_pairs))]
