"""Which heads would be in a circuit, judged by their weights alone and by the circuits of other tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.core.errors import InputError, ShapeError
from assay.core.record import Record, same
from assay.discovery.heads.membership import Separation, SetOverlap, separation, set_overlap
from assay.discovery.heads.scores import HeadScores, member_flags
from assay.discovery.heads.weights import EffectiveRank, weight_scores
from assay.models import Model
from assay.stats import top_members


FEATURES = (
    *(
        f"{matrix}-{quantity}"
        for quantity in ("spectral-norm", EffectiveRank.ENTROPY, "sv-gap", "frobenius-norm")
        for matrix in ("ov", "qk")
    ),
    "ov-copying",
    "depth",
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
class WeightPrediction(Record):
    """The heads that weights and the circuits of other tasks suggest for one task.

    Attributes:
        scores: Probability of membership per head, in [0, 1]; NaN where undefined.
        predicted: The k most probable heads, k the size of the task's own circuit.
        trained_on: The other tasks.
        overlap: Hits and false alarms against the task's own circuit.
        separation: AUROC and average precision against it.
        reason: `no_members` or `no_others`, where the circuits of the other tasks leave nothing to learn,
            else None.
    """

    record_layout = {
        "predicted": "predicted_heads",
        **same("trained_on", "overlap", "separation", "reason"),
    }

    scores: HeadScores
    predicted: Bool[np.ndarray, " H"]
    trained_on: tuple[str, ...]
    overlap: SetOverlap
    separation: Separation
    reason: str | None = None

    @property
    def predicted_heads(self) -> list[tuple[int, int]]:
        """The predicted heads as (layer, head)."""
        return [divmod(int(flat), self.scores.n_heads) for flat in np.flatnonzero(self.predicted)]


def predict_from_weights(
    features: WeightFeatures,
    circuits: Mapping[str, Bool[np.ndarray, " H"] | Sequence[tuple[int, int]]],
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
        InputError: For fewer than two tasks, or features that are not finite.
        ShapeError: If a circuit does not fit the features.

    Notes:
        Same model for all tasks. Depth is among the features, so a good AUROC may only say that circuits of
        such tasks lie late.
    """
    if len(circuits) < 2:
        raise InputError(
            f"the classifier learns from the circuits of other tasks, but got {len(circuits)} task; give "
            "two or more"
        )
    if features.table.shape != (features.n_layers * features.n_heads, len(features.names)):
        raise ShapeError(
            f"the feature table has shape {features.table.shape}; expected "
            f"{(features.n_layers * features.n_heads, len(features.names))}"
        )
    if not np.isfinite(features.table).all():
        column = int(np.argmin(np.isfinite(features.table).all(axis=0)))
        raise InputError(
            f"feature {features.names[column]!r} is not finite for some heads; remove it or fill it in"
        )
    members = {
        task: member_flags(heads if isinstance(heads, np.ndarray) else tuple(heads), *_shape(features))
        for task, heads in circuits.items()
    }
    return {task: _predict(features, members, task) for task in members}


def _shape(features: WeightFeatures) -> tuple[int, int]:
    return features.n_layers, features.n_heads


def _predict(
    features: WeightFeatures, members: Mapping[str, Bool[np.ndarray, " H"]], task: str
) -> WeightPrediction:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    others = tuple(other for other in members if other != task)
    labels = np.concatenate([members[other] for other in others])
    own = members[task]
    predicted = np.zeros_like(own)
    reason = None if labels.any() and not labels.all() else ("no_others" if labels.any() else "no_members")
    if reason is None:
        fit = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000))
        fit.fit(np.tile(features.table, (len(others), 1)), labels)
        probability = np.asarray(fit.predict_proba(features.table)[:, 1], dtype=np.float64)
        predicted = top_members(probability, int(own.sum()))
    else:
        probability = np.full(len(own), np.nan)
    scores = HeadScores.from_flat(
        "weight-classifier",
        features.n_heads,
        probability,
        sign="larger = more likely a member",
        unit="probability",
        reason=reason,
        provenance={**features.provenance, "score": "weight-classifier", "task": task, "trained_on": others},
    )
    return WeightPrediction(
        scores=scores,
        predicted=predicted,
        trained_on=others,
        overlap=set_overlap(predicted, own),
        separation=separation(probability, own),
        reason=reason,
    )
