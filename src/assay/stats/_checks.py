"""What every description of a sample asks of its values."""

import numpy as np
from jaxtyping import Float64, Real

from assay.errors import InputError, NonFiniteError


def finite(values: Real[np.ndarray, "..."], name: str = "values") -> Float64[np.ndarray, "..."]:
    """The values in float64, known to be there and finite."""
    checked = np.asarray(values, dtype=np.float64)
    if checked.size == 0:
        raise InputError(f"{name} have shape {checked.shape}; at least one value is needed")
    usable = np.isfinite(checked)
    if not usable.all():
        where = tuple(int(at) for at in np.argwhere(~usable)[0])
        raise NonFiniteError(f"{name} hold {checked[where]} at {where}; every value must be finite")
    return checked
