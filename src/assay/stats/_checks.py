"""What every description of a sample asks of its values."""

import numpy as np
from jaxtyping import Float64, Real

from assay.core.errors import InputError, NonFiniteError


EQUAL = 1e-12  # relative spread below which values differ by rounding only


def finite(values: Real[np.ndarray, "..."], name: str = "values") -> Float64[np.ndarray, "..."]:
    """The values in float64, known to be there and finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.size == 0:
        raise InputError(f"{name} have shape {checked.shape}; expected at least one value")
    if not np.isfinite(checked).all():
        where = tuple(np.argwhere(~np.isfinite(checked))[0].tolist())
        raise NonFiniteError(f"{name} hold {checked[where]} at {where}; every value must be finite")
    return checked


def varies(values: Real[np.ndarray, "..."]) -> bool:
    """Whether values, at least one, differ by more than rounding."""
    return bool(np.ptp(values) > EQUAL * np.abs(values).max())
