"""Passes per image and model that metrics of a ranking need."""

from collections.abc import Sequence

from assay.analyses.generalization.predictor import PREDICTORS


OWN_DOMAIN = "own domain"  # how stages on the images of the models' own domain end


def passes_per_image(metrics: Sequence[str], steps: int, *, known: bool) -> dict[str, int]:
    """Passes per image and model of each stage that some metric needs.

    Forward and backward passes are counted alike.

    Args:
        metrics: Keys of `PREDICTORS`.
        steps: Quadrature nodes.
        known: Whether there are labelled images of the models' own domain; stages on those end in
            `OWN_DOMAIN`.
    """
    needs = frozenset[str]().union(*(PREDICTORS[key].needs for key in metrics))
    stages = {"logits and features": 1}
    if "edge-scores" in needs:
        stages["scores of all edges"] = 2 + 2 * steps
    elif "output-scores" in needs:
        stages["scores of edges into the logits"] = 2 + steps
    if known and "known" in needs:
        stages[f"logits, {OWN_DOMAIN}"] = 1
        if "sharpness" in needs:
            stages[f"sharpness, {OWN_DOMAIN}"] = 61
    return stages
