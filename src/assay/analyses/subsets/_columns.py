"""Columns of facts about examples, as numbers to average or as codes to count."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from assay.core.errors import InputError, ShapeError, check_name


MISSING = "missing"
FEW_VALUES = 20  # whole numbers of no more different values are compared as categories
MOST_VALUES = 1000  # of an attribute, beyond which it names examples rather than describing them


@dataclass(frozen=True, eq=False)
class Coded:
    """A categorical column: the values that occur, and the place of each example among them."""

    names: tuple[str, ...]
    codes: Int64[np.ndarray, " n"]


def n_examples_of(columns: Mapping[str, np.ndarray], labels: Any) -> int:
    """Size of the pool, on which every column agrees."""
    lengths = {name: column.shape for name, column in columns.items()}
    if labels is not None:
        lengths = {"labels": np.shape(labels)} | lengths
    if not lengths:
        raise InputError("nothing to compare: give labels=, attributes=, or both")
    shape = next(iter(lengths.values()))
    for name, other in lengths.items():
        if len(other) != 1 or other != shape:
            raise ShapeError(f"{name} has shape {other}; expected one value per example ({shape[0]})")
    return int(shape[0])


def numeric_names(columns: Mapping[str, np.ndarray], numeric: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the attributes that are compared by their mean."""
    if numeric is None:
        return tuple(name for name, column in columns.items() if _is_numeric(column))
    for name in numeric:
        check_name("attribute", name, columns)
        if columns[name].dtype.kind not in "biuf":
            raise InputError(
                f"attribute {name!r} holds {columns[name].dtype}; a numeric attribute must hold numbers"
            )
    return tuple(numeric)


def _is_numeric(column: Shaped[np.ndarray, " n"]) -> bool:
    """Whether values are compared by their mean unless the caller says: a code has few, an age many."""
    kind = column.dtype.kind
    return kind == "f" or (kind in "iu" and len(np.unique(column)) > FEW_VALUES)


def plain_column(column: Shaped[np.ndarray, " n"]) -> Shaped[np.ndarray, " n"]:
    """A column of objects that are all numbers, or missing, as the numbers that they are."""
    if column.dtype.kind != "O":
        return column
    values = [value.item() if isinstance(value, np.generic) else value for value in column.tolist()]
    present = [value for value in values if not _is_missing(value)]
    if not present or not all(type(value) in (int, float) for value in present):
        return np.array(values, dtype=object)
    if len(present) == len(values):
        return np.array(values)
    numbers = np.array([math.nan if _is_missing(value) else value for value in values], dtype=np.float64)
    codes = all(type(value) is int for value in present) and len(set(present)) <= FEW_VALUES
    return np.array(values, dtype=object) if codes else numbers


def coded_column(column: Shaped[np.ndarray, " n"]) -> Coded:
    """Values in ascending order, numbers by size and the rest as text; `missing` where there is none."""
    values = column
    if column.dtype.kind not in "iu":
        values = np.array([MISSING if _is_missing(value) else str(value) for value in column.tolist()])
    names, codes = np.unique(values, return_inverse=True)
    return Coded(tuple(str(name) for name in names), codes.astype(np.int64))


def _is_missing(value: Any) -> bool:
    # NaN does not equal itself, and what pandas holds as not available has no equality.
    same = value == value
    return value is None or not isinstance(same, bool) or not same or value == ""


def crossed_column(names: Sequence[str], coded: Mapping[str, Coded]) -> Coded:
    """The combinations that occur of some categorical attributes."""
    for name in names:
        check_name("categorical attribute", name, coded)
    if len(set(names)) < 2:
        raise InputError(f"crossed holds {tuple(names)!r}; give two or more different attributes")
    values, codes = np.unique(np.stack([coded[name].codes for name in names]), axis=1, return_inverse=True)
    together = tuple(
        " x ".join(coded[name].names[code] for name, code in zip(names, column, strict=True))
        for column in values.T.tolist()
    )
    if len(together) > MOST_VALUES:
        raise InputError(
            f"{' x '.join(names)} has {len(together)} combinations; at most {MOST_VALUES} can be compared. "
            "Cross attributes with fewer values"
        )
    return Coded(together, codes.reshape(-1).astype(np.int64))
