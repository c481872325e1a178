"""The arguments of `CorrectnessData.of`, checked one by one: each error names the argument and the value."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64, Shaped

from assay.analyses.subsets.line import checked_shares
from assay.core.errors import InputError, ShapeError


_BLOCK = 1 << 24  # entries looked at at a time


def bad_answer(model: object, example: object, answer: object, n: int, expected: str) -> InputError:
    """The one error about answers that are none; `n` counts them."""
    value = answer.item() if isinstance(answer, np.generic) else answer
    return InputError(
        f"the answer of model {str(model)!r} on example {str(example)!r} is {value!r}; expected {expected} "
        f"({n} such answers)"
    )


def checked_answers(
    matrix: Shaped[np.ndarray, "m n"],
    models: Shaped[np.ndarray, " m"],
    examples: Shaped[np.ndarray, " n"],
    *,
    scores: bool,
) -> np.ndarray:
    """The matrix as uint8 of 0 and 1, or as float32 scores.

    Raises:
        InputError: For any other entry, by model and example.
    """
    height = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), height):
        block = matrix[start : start + height]
        valid = (block >= 0) & (block <= 1) if scores else (block == 0) | (block == 1)
        if not valid.all():
            row, column = np.argwhere(~valid)[0].tolist()
            expected = "0 (wrong) or 1 (right); scores between them need scores=True"
            raise bad_answer(
                models[start + row],
                examples[column],
                block[row, column],
                int(np.count_nonzero(~valid)),
                "a score from 0 to 1" if scores else expected,
            )
    return matrix.astype(np.float32 if scores else np.uint8)


def by_name(
    values: Any, argument: str, names: Shaped[np.ndarray, " n"], of: str = "model"
) -> Shaped[np.ndarray, " n"] | None:
    """Values of each model or example, in their order: by name from a mapping or a series of pandas.

    A sequence is in their order already, as is a series whose index only counts.

    Raises:
        InputError: If a mapping or series lacks a name, or has one twice.
        ShapeError: If there are not as many values as names.
    """
    if values is None:
        return None
    if isinstance(values, Mapping):
        values = pd.Series(values, dtype=object).infer_objects()
    if isinstance(values, pd.Series) and not values.index.equals(pd.RangeIndex(len(values))):
        values = values.set_axis(list(map(str, values.index)))
        if (twice := values.index[values.index.duplicated()]).size:
            raise InputError(f"{argument} names {of} {twice[0]!r} more than once")
        if missing := [name for name in names.tolist() if name not in values.index]:
            raise InputError(
                f"{argument} lacks {of} {missing[0]!r} ({len(missing)} are missing). Name all {of}s, or give "
                "the values in their order"
            )
        values = values.loc[names.tolist()]
    array = np.asarray(values)
    if array.shape != names.shape:
        raise ShapeError(f"{argument} has shape {array.shape}; expected one value per {of} ({len(names)})")
    return array


def checked_texts(values: np.ndarray | None, argument: str) -> np.ndarray | None:
    """Values as names, of which none is missing."""
    if values is None:
        return None
    if (empty := np.flatnonzero(pd.isna(values))).size:
        raise InputError(f"{argument}[{empty[0]}] is {values[empty[0]]}; name every one")
    return np.array(list(map(str, values.tolist())))


def checked_ids(values: Any, argument: str, n: int) -> Shaped[np.ndarray, " n"]:
    """Unique names of n models or examples."""
    names = checked_texts(np.asarray(values), argument)
    if names is None or names.shape != (n,):
        raise ShapeError(f"{argument} has shape {np.shape(values)}; expected {n} names")
    if twice := [name for name, times in Counter(names.tolist()).items() if times > 1]:
        raise InputError(f"{argument} holds {twice[0]!r} more than once; names must be unique")
    return names


def checked_accuracies(
    values: np.ndarray | None, models: Shaped[np.ndarray, " m"], *, needed: bool
) -> Float64[np.ndarray, " m"]:
    """In-distribution accuracies in [0, 1]; NaN for all where they are not needed."""
    if values is None and needed:
        raise InputError(
            "id_accuracy is missing; give the in-distribution accuracy of each model: values, a column "
            "'id_accuracy' of a table, a file (--id-accuracy), or rows whose column 'domain' is 'id'"
        )
    try:
        y = np.full(len(models), np.nan) if values is None else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"id_accuracy is not numeric ({error}); give shares from 0 to 1") from None
    return y if not needed and np.isnan(y).all() else checked_shares(y, "id_accuracy", models.tolist())


def checked_counts(values: Any, models: Shaped[np.ndarray, " m"]) -> Int64[np.ndarray, " m"] | None:
    """In-distribution examples behind each accuracy."""
    if values is not None and np.ndim(values) == 0 and not isinstance(values, Mapping):
        values = np.full(len(models), values)
    if (counts := by_name(values, "n_id", models)) is None:
        return None
    counts = counts.astype(np.float64)
    if not ((counts >= 1) & (counts == np.floor(counts))).all():
        raise InputError("n_id must hold counts of at least 1")
    return counts.astype(np.int64)


def checked_classes(
    labels: np.ndarray | None, names: Any
) -> tuple[Int64[np.ndarray, " n"] | None, tuple[str, ...] | None]:
    """Classes as codes, and their names."""
    listed = None if names is None else tuple(map(str, names))
    if labels is None:
        return None, listed
    if labels.dtype.kind not in "iub":
        if names is not None:
            raise InputError("label_names needs integer labels, but the labels are names already")
        classes, codes = np.unique(labels.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(classes.tolist())
    codes = labels.astype(np.int64)
    if codes.min() < 0 or (listed is not None and codes.max() >= len(listed)):
        most = "" if listed is None else f" to {len(listed) - 1}, the classes of label_names"
        raise InputError(f"labels runs from {codes.min()} to {codes.max()}; classes are counted from 0{most}")
    return codes, listed


def checked_columns(
    meta: Mapping[Any, Any] | pd.DataFrame, examples: Shaped[np.ndarray, " n"]
) -> pd.DataFrame:
    """Facts about the examples, a row each: numbers (NaN where missing) or text (empty where missing)."""
    columns = {}
    for name in meta:
        values = by_name(meta[name], f"meta[{name!r}]", examples, "example")
        if values is not None and values.dtype.kind == "O":
            empty = pd.isna(values)
            texts = {type(value) is str for value in values[~empty]}
            values = np.where(empty, "" if True in texts else np.nan, values)
            values = values.astype(str) if True in texts else values.astype(np.float64)
        columns[str(name)] = values
    return pd.DataFrame(columns, index=examples)


def checked_rows(values: Any, name: str, n: int | None) -> Float32[np.ndarray, "n d"] | None:
    """Finite rows of numbers."""
    if values is None:
        return None
    rows = np.asarray(values, dtype=np.float32)
    if rows.ndim != 2 or (n is not None and len(rows) != n):
        raise ShapeError(f"{name} has shape {rows.shape}; expected a row per example")
    if not np.isfinite(rows).all():
        raise InputError(f"{name} holds NaN or infinite numbers")
    return rows


def checked_images(values: Any, n: int) -> np.ndarray | None:
    """Images of 8 bits per channel, grey or RGB."""
    images = None if values is None else np.asarray(values)
    if images is None or (
        images.dtype == np.uint8 and len(images) == n and (images.ndim == 3 or images.shape[3:] == (3,))
    ):
        return images
    raise ShapeError(
        f"images are {images.dtype} {images.shape}; expected uint8 [{n}, height, width] or [..., 3]"
    )
