"""What every description of a sample asks of its values and of their labels."""

from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Real, Shaped

from assay.core.errors import InputError, NonFiniteError, ShapeError


EQUAL = 1e-12  # relative spread below which values differ by rounding only


def finite(values: Real[np.ndarray, "..."], name: str = "values") -> Float64[np.ndarray, "..."]:
    """The values in float64, known to be there and finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.size == 0:
        raise InputError(f"{name} have shape {checked.shape}; expected at least one value")
    usable = np.isfinite(checked)
    if not usable.all():
        where = tuple(int(at) for at in np.argwhere(~usable)[0])
        raise NonFiniteError(f"{name} hold {checked[where]} at {where}; every value must be finite")
    return checked


def varies(values: Real[np.ndarray, "..."]) -> bool:
    """Whether values, at least one, differ by more than rounding."""
    return bool(np.ptp(values) > EQUAL * np.abs(values).max())


def coded(
    labels: Shaped[np.ndarray, "..."], shape: tuple[int, ...], name: str
) -> tuple[tuple[Any, ...], Int64[np.ndarray, "..."]]:
    """The labels that occur, ascending, and which of them each entry bears, in the shape of the labels."""
    try:
        np.broadcast_shapes(labels.shape, shape)
    except ValueError:
        fits = False
    else:
        fits = np.broadcast_shapes(labels.shape, shape) == shape
    if not fits:
        raise ShapeError(
            f"labels of the {name} have shape {labels.shape}; expected one that broadcasts to {shape}"
        )
    known, codes = np.unique(labels, return_inverse=True)
    return tuple(known.tolist()), codes.reshape(labels.shape).astype(np.int64)
