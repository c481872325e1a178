"""How well a score of heads, or a predicted set of them, agrees with a circuit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import InputError
from assay.core.record import Record
from assay.discovery.heads.scores import HeadScores, member_flags
from assay.discovery.heads.weights import weight_scores
from assay.models import Model
from assay.stats import auroc, average_precision, precision_at, top_members


@dataclass(frozen=True, kw_only=True)
class Separation(Record):
    """A score against membership in a circuit.

    Attributes:
        auroc: Probability that a random head of the circuit outranks a random other head, ties one half, in
            [0, 1]; 0.5 is chance.
        average_precision: Mean over the circuit's heads of the precision at their rank (tied heads share one
            rank), in (0, 1]; chance is about k / H.
        precision_at_k: Share of the k best heads that are in the circuit, in [0, 1].
        k: Heads in the circuit.
        n: Heads that have a score.
        reason: `no_members` or `no_others` where undefined (all three are NaN), else None.
    """

    auroc: float
    average_precision: float
    precision_at_k: float
    k: int
    n: int
    reason: str | None = None


def separation(scores: Float64[np.ndarray, " H"], members: Bool[np.ndarray, " H"]) -> Separation:
    """AUROC, average precision and precision at k of a score for membership in a circuit.

    AUROC is the Mann-Whitney statistic over k (H - k). Larger scores count as more likely members; take
    magnitudes first where the sign does not matter. Heads without a score (NaN) are left out.

    Args:
        scores: Any real scale.
        members: True at the heads of the circuit.

    Example:
        >>> separation(np.array([0.9, 0.1, 0.5, 0.5]), np.array([True, False, True, False])).auroc
        0.875
    """
    scored = ~np.isnan(scores)
    scores, members = scores[scored], members[scored]
    k = int(members.sum())
    area = auroc(scores, members)
    return Separation(
        auroc=area.value,
        average_precision=average_precision(scores, members).value,
        precision_at_k=precision_at(scores, members, k).value if area.defined else math.nan,
        k=k,
        n=len(scores),
        reason=area.reason,
    )


@dataclass(frozen=True, kw_only=True)
class SetOverlap(Record):
    """A predicted set of heads against a circuit; rates are NaN where their denominator is 0.

    Attributes:
        hits: Circuit heads predicted.
        false_alarms: Other heads predicted.
        misses: Circuit heads not predicted.
        correct_rejections: Other heads not predicted.
        hit_rate: Share of the circuit that is predicted, in [0, 1]; higher is better.
        false_alarm_rate: Share of the other heads that is predicted, in [0, 1]; lower is better.
        precision: Share of the prediction that is in the circuit, in [0, 1].
        f1: Harmonic mean of precision and hit rate, in [0, 1].
        jaccard: Shared heads over heads of either set, in [0, 1].
        size_ratio: Smaller set over the larger one, in [0, 1].
    """

    hits: int
    false_alarms: int
    misses: int
    correct_rejections: int
    hit_rate: float
    false_alarm_rate: float
    precision: float
    f1: float
    jaccard: float
    size_ratio: float


def set_overlap(predicted: Bool[np.ndarray, " H"], members: Bool[np.ndarray, " H"]) -> SetOverlap:
    """Hits, false alarms and misses of a predicted set of heads."""
    hits, false_alarms = int((predicted & members).sum()), int((predicted & ~members).sum())
    misses, rejections = int((~predicted & members).sum()), int((~predicted & ~members).sum())

    def share(part: int, whole: int) -> float:
        return part / whole if whole else math.nan

    return SetOverlap(
        hits=hits,
        false_alarms=false_alarms,
        misses=misses,
        correct_rejections=rejections,
        hit_rate=share(hits, hits + misses),
        false_alarm_rate=share(false_alarms, false_alarms + rejections),
        precision=share(hits, hits + false_alarms),
        f1=share(2 * hits, 2 * hits + false_alarms + misses),
        jaccard=share(hits, hits + false_alarms + misses),
        size_ratio=share(*sorted((hits + false_alarms, hits + misses))),
    )


# Of `weight_scores`, and the depth.
FEATURES = (
    *("ov-spectral-norm", "qk-spectral-norm", "ov-entropy-rank", "qk-entropy-rank", "ov-sv-gap", "qk-sv-gap"),
    *("ov-frobenius-norm", "qk-frobenius-norm", "ov-copying", "depth"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightFeatures:
    """What a classifier sees of each head.

    Attributes:
        names: Of the columns.
        table: `[H, F]`; depth is layer / L, the others as in `weight_scores`.
        n_layers: Layers of the model.
        n_heads: Heads per layer.
        provenance: The model.
    """

    names: tuple[str, ...]
    table: Float64[np.ndarray, "H F"]
    n_layers: int
    n_heads: int
    provenance: Mapping[str, Any]


def weight_features(model: Model) -> WeightFeatures:
    """Spectral norm, entropy rank, singular-value gap and Frobenius norm of W_OV and W_QK, copying, depth.

    Notes:
        No forward pass. A head of zero weight has no copying score; it counts as 0 here.
    """
    scores = weight_scores(model)
    depth = np.repeat(np.arange(model.n_layers) / model.n_layers, model.n_heads)
    columns = [depth if name == "depth" else np.nan_to_num(scores[name].flat) for name in FEATURES]
    return WeightFeatures(
        names=FEATURES,
        table=np.column_stack(columns),
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        provenance={"model": model.describe(), "features": list(FEATURES)},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightPrediction:
    """The heads that weights and the circuits of other tasks suggest for one task.

    Attributes:
        scores: Probability of membership per head, in [0, 1]; NaN where undefined.
        predicted: The k most probable heads, k the size of the task's own circuit.
        trained_on: The other tasks.
        reason: `no_members` or `no_others`, where the circuits of the other tasks leave nothing to learn,
            else None.
    """

    scores: HeadScores
    predicted: Bool[np.ndarray, " H"]
    trained_on: tuple[str, ...]
    reason: str | None = None


def predict_from_weights(
    features: WeightFeatures, circuits: Mapping[str, Bool[np.ndarray, " H"] | Sequence[tuple[int, int]]]
) -> dict[str, WeightPrediction]:
    """Predict each task's circuit from the weights, with a classifier that never saw that circuit.

    Logistic regression (L2, C = 1) on standardised features, trained on every head once per *other* task,
    labelled by that task's circuit; the prediction is the k most probable heads.

    Args:
        features: What `weight_features` returned, or columns of your own.
        circuits: Task -> its heads, as (layer, head) pairs or one flag per head; at least two tasks.

    Returns:
        By task. Where the other circuits hold no head, or every head, nothing can be learned: probabilities
        NaN, no head predicted, and a reason.

    Raises:
        InputError: For fewer than two tasks.
        ValueError: For features that are not finite.
        ShapeError: If a circuit does not fit the features.

    Notes:
        Same model for all tasks. Depth is among the features, so a good AUROC may only say that circuits of
        such tasks lie late.
    """
    if len(circuits) < 2:
        raise InputError(f"got the circuit of {len(circuits)} task; give two or more to learn from others")
    shape = features.n_layers, features.n_heads
    members = {
        task: member_flags(heads if isinstance(heads, np.ndarray) else tuple(heads), *shape)
        for task, heads in circuits.items()
    }
    return {task: _predict(features, members, task) for task in members}


def _predict(
    features: WeightFeatures, members: Mapping[str, Bool[np.ndarray, " H"]], task: str
) -> WeightPrediction:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    others = tuple(other for other in members if other != task)
    labels, own = np.concatenate([members[other] for other in others]), members[task]
    predicted, probability = np.zeros_like(own), np.full(len(own), np.nan)
    reason = None if labels.any() and not labels.all() else ("no_others" if labels.any() else "no_members")
    if reason is None:
        fit = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000))
        fit.fit(np.tile(features.table, (len(others), 1)), labels)
        probability = np.asarray(fit.predict_proba(features.table)[:, 1], dtype=np.float64)
        predicted = top_members(probability, int(own.sum()))
    scores = HeadScores.from_flat(
        "weight-classifier",
        features.n_heads,
        probability,
        sign="larger = more likely a member",
        unit="probability",
        reason=reason,
        provenance={**features.provenance, "score": "weight-classifier", "task": task, "trained_on": others},
    )
    return WeightPrediction(scores=scores, predicted=predicted, trained_on=others, reason=reason)
