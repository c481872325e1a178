"""How close the features of a batch are to known ones: sees what the outputs alone hide."""

import math

import numpy as np
from jaxtyping import Real
from scipy.spatial.distance import cdist

from assay.analyses.generalization.tables import NewTable, Table, table_of
from assay.core.errors import ShapeError


def feature_closeness(id_features: Table, features: NewTable) -> float:
    """Minus the energy distance between known features and those of the target.

    -sqrt(2 E|X - Y| - E|X - X'| - E|Y - Y'|), means over all pairs, a row with itself included; features are
    divided by the root of the mean variance of the known ones.

    Args:
        id_features: `[n, n_features]`: what enters the head, on known data.
        features: `[m, n_features]` on the target data.

    Returns:
        At most 0, which equal sets reach; expected to rise with performance. Needs no labels.

    Raises:
        ShapeError, NonFiniteError: For what is not a table of finite features, or other columns.

    Notes:
        Smaller batches are farther away by sampling alone. Known features that do not vary are not scaled.

    References:
        Székely and Rizzo (2013), "Energy statistics: a class of statistics based on distances", Journal of
        Statistical Planning and Inference 143.

    Example:
        >>> feature_closeness(np.array([[-1.0], [1.0]]), np.array([[2.0], [2.0]]))
        -1.7320508075688772
    """
    known, new = table_of(id_features, "id_features"), table_of(features, "features")
    if known.shape[1] != new.shape[1]:
        raise ShapeError(
            f"features have {new.shape[1]} columns, but id_features {known.shape[1]}; give features of "
            "one model"
        )
    scale = math.sqrt(float(known.var(0).mean())) or 1.0
    known, new = known / scale, new / scale
    squared = 2 * _apart(known, new) - _apart(known, known) - _apart(new, new)
    return -math.sqrt(max(squared, 0.0)) + 0.0


def _apart(a: Real[np.ndarray, "n f"], b: Real[np.ndarray, "m f"]) -> float:
    return float(cdist(a, b).mean())
