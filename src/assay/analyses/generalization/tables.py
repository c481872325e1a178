"""Logits, features, labels and predictions as arrays, checked: what every baseline reads."""

import numpy as np
from jaxtyping import Float64, Int, Int64, Real
from torch import Tensor

from assay.core.errors import InputError, NonFiniteError, ShapeError


Table = Real[Tensor, "n c"] | Real[np.ndarray, "n c"]
NewTable = Real[Tensor, "m c"] | Real[np.ndarray, "m c"]
Features = Real[Tensor, "n f"] | Real[np.ndarray, "n f"]
NewFeatures = Real[Tensor, "m f"] | Real[np.ndarray, "m f"]
Labels = Int[Tensor, " n"] | Int[np.ndarray, " n"]
Predictions = Int[Tensor, "models n"] | Int[np.ndarray, "models n"]
NewPredictions = Int[Tensor, "models m"] | Int[np.ndarray, "models m"]


def array_of(values: Tensor | np.ndarray) -> np.ndarray:
    """A tensor or an array as an array; floating point numbers as float64."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return np.asarray((values.double() if values.is_floating_point() else values).numpy())


def table_of(values: Table, name: str) -> Float64[np.ndarray, "n c"]:
    """Numbers with a row per example, as float64.

    Raises:
        ShapeError, NonFiniteError: For what is not a table of finite numbers.
    """
    table = np.asarray(array_of(values), dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise ShapeError(f"{name} have shape {table.shape}; expected a table with a row per example")
    bad = np.flatnonzero(~np.isfinite(table).all(1))
    if len(bad):
        raise NonFiniteError(f"{name} of example {bad[0]} hold NaN or infinity; remove it or check the model")
    return table


def label_array(labels: Labels, n_classes: int) -> Int64[np.ndarray, " n"]:
    """Labels between 0 and the number of classes.

    Raises:
        InputError: For labels that are missing or outside the classes.
    """
    if labels is None:  # as of images without labels
        raise InputError("labels are missing; give the class of every example")
    truth = array_of(labels).astype(np.int64)
    if truth.ndim != 1 or not len(truth):
        raise InputError(f"labels have shape {truth.shape}; expected one per example")
    outside = np.flatnonzero((truth < 0) | (truth >= n_classes))
    if len(outside):
        raise InputError(
            f"label {truth[outside[0]]} of example {outside[0]} is outside the {n_classes} classes; the "
            "class lists of model and data must agree"
        )
    return truth


def labels_of_rows(labels: Labels, table: Float64[np.ndarray, "n c"]) -> Int64[np.ndarray, " n"]:
    """The label of each row of a table whose columns are the classes.

    Raises:
        InputError: As `label_array`, and for another number of labels.
    """
    truth = label_array(labels, table.shape[1])
    if len(truth) != len(table):
        raise InputError(f"got {len(truth)} labels for {len(table)} examples; give one per example")
    return truth
