"""What is given of each model or example, in the order of the matrix."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.core.errors import InputError


PerModel = Any  # name of a column, mapping or series from the model, or a sequence in the order of the models


def countable(labels: np.ndarray) -> np.ndarray:
    """Classes as counts from 0 where they are, else as names."""
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    return labels if labels.dtype.kind in "iub" and labels.min() >= 0 else labels.astype(str)


def unique_names(names: list[str]) -> tuple[str, ...]:
    """The names; an error if one is repeated."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two models are named {name!r}; names must be unique")
        seen.add(name)
    return tuple(names)


def per_model(given: PerModel | None, names: Sequence[str], argument: str) -> list[Any] | None:
    """What is given, in the order of the models."""
    if given is None:
        return None
    if hasattr(given, "to_dict") and hasattr(given, "index"):  # a pandas series
        given = given.to_dict()
    if isinstance(given, Mapping):
        by_name = {str(name): value for name, value in given.items()}
        if missing := [name for name in names if name not in by_name]:
            raise InputError(f"{argument} says nothing of model {missing[0]!r} ({len(missing)} are missing)")
        return [by_name[name] for name in names]
    return list(given)
