"""What solvers share: the result, the objective and its derivative, and the checks of their input."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Accuracies, Places
from assay.analyses.subsets.layouts import AnswerTable, whole_weights
from assay.analyses.subsets.line import DEGENERATE, EPS, line_correlation, probit
from assay.core.errors import InputError
from assay.core.record import Record


OBJECTIVES = ("r", "r2")
FLOOR = 0.25  # the objective clips accuracies at this share of an example


@dataclass(frozen=True, kw_only=True, eq=False)
class Found(Record):
    """What a solver returns.

    Attributes:
        indices: The S examples in rank order, most harmful first.
        scores: One per example, ascending. For `swap`: the derivative of the objective with respect to the
            weight of the example; negative ones lower R.
        r_train: R of the set on the models it was selected on: optimistic, no result to report.
        r_validation: R on the validation models, NaN without any; slightly optimistic, being the stopping
        rule.
        trace: One entry per stage of the solver.
        extras: Further output, such as `path`.
    """

    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    r_train: float
    r_validation: float
    trace: tuple[dict[str, Any], ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)


def check_inverse(objective: str, what: str) -> None:
    """Refuse what presupposes a negative correlation where the weakest is selected for."""
    if objective == "r2":
        raise InputError(
            f"objective is 'r2', which selects the weakest correlation, but {what} presupposes a search for "
            "the most negative; leave that out, or use objective='r' (--objective pearson)"
        )


class LineGradient(NamedTuple):
    """The objective, and the weights of a model's correctness in its derivative.

    Attributes:
        value: F_rho, in [-1, 1].
        weights: q [m]. The derivative with respect to the weight of example j is sum_i q_i (X_ij - a_i) / S.
    """

    value: float
    weights: Float64[np.ndarray, " m"]


def line_gradient(
    accuracy: Accuracies, z: Accuracies, *, ridge: float | int = 0.0, clip: float | int = EPS
) -> LineGradient:
    """F_rho and q_i = (z_i - F u_i / d) / d * sqrt(2 pi) exp(t_i^2 / 2), with d = sqrt(u.u + rho).

    Args:
        accuracy: Selected accuracy a of every model, in [0, 1].
        z: Centred, unit-norm probit of in-distribution accuracy (`unit_probit`).
        ridge: rho >= 0.
        clip: Accuracies are clipped to [clip, 1 - clip]; a clipped model has the slope at the clip
            (straight-through), so that it can be moved.

    Notes:
        Where d = 0 the correlation is undefined; value 0 and the direction of the covariance (d = 1) come
        back, so that a solver can leave such a set.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Eq. 4; the ridge is not in it.
    """
    t = probit(accuracy, eps=clip)
    value, u, norm = centred(t, z, ridge)
    return LineGradient(value, (z - value * u / norm) / norm * np.sqrt(2 * np.pi) * np.exp(t * t / 2))


class Centred(NamedTuple):
    """F_rho, u and d; F = 0 and d = 1 where undefined."""

    value: float
    probits: Float64[np.ndarray, " m"]
    norm: float

    @property
    def constant(self) -> bool:
        """Whether the models do not differ, so that R is undefined."""
        return not float(self.probits @ self.probits) > DEGENERATE


def centred(t: Accuracies, z: Accuracies, ridge: float | int = 0.0) -> Centred:
    """F_rho = u.z / d of probits t, with u = t - mean(t) and d = sqrt(u.u + ridge)."""
    u = t - t.mean()
    squares = float(u @ u)
    if squares <= DEGENERATE:
        squares = 0.0
    norm = float(np.sqrt(squares + ridge))
    return Centred(float(u @ z) / norm, u, norm) if norm else Centred(0.0, u, 1.0)


def unit_probit(id_accuracy: Accuracies, *, eps: float | int = EPS, name: str = "id_accuracy") -> Accuracies:
    """Centred probit accuracies of unit Euclidean norm.

    Raises:
        InputError: If all are the same; the message calls them `name`.
    """
    z = probit(id_accuracy, eps=eps)
    z = z - z.mean()
    squares = float(z @ z)
    if not squares > DEGENERATE:
        raise InputError(
            f"{name}: all accuracies are equal. A correlation over models needs at least two different "
            "accuracies"
        )
    return np.asarray(z / np.sqrt(squares))


def marginal_scores(
    train: AnswerTable, id_train: Accuracies, *, eps: float | int = EPS
) -> Float64[np.ndarray, " n"]:
    """Covariance over models of each example's correctness with in-distribution accuracy: sum_i z_i X_ij.

    z is the centred probit of in-distribution accuracy, of unit norm. The S lowest are the start of `swap`
    and the baseline "marginal". An example that every model gets right, or none, scores 0.

    Args:
        train: Correctness of the training models.
        id_train: Their in-distribution accuracy, in [0, 1].
        eps: Clip of accuracies before the probit.

    Raises:
        InputError: If all models have the same accuracy.
    """
    z = unit_probit(id_train, eps=eps, name="id_train")
    # Two exact passes, the rounding of the first being the weights of the second: about 14 digits in any
    # layout.
    coarse, scale = whole_weights(z)
    fine, fine_scale = whole_weights(z - coarse / scale)
    return train.weigh(coarse).astype(np.float64) / scale + train.weigh(fine).astype(np.float64) / fine_scale


def exact_correlation(
    matrix: AnswerTable | None, id_accuracy: Accuracies | None, members: Places, eps: float | int
) -> float:
    """R of the models of a matrix on a set of examples, without ridge; NaN without models."""
    if matrix is None or id_accuracy is None:
        return math.nan
    return line_correlation(id_accuracy, matrix.count(members) / len(members), eps=eps, id_eps=eps)
