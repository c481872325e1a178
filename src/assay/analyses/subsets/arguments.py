"""The arguments of `CorrectnessData.of`, checked one by one: each error names the argument and the value."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64, Shaped

from assay.analyses.subsets.line import MIN_MODELS, checked_shares
from assay.core.errors import InputError, ShapeError


Facts = dict[str, Any]
Named = Shaped[np.ndarray, " _"]  # a value of each model or example, in their order

_BLOCK = 1 << 22  # entries looked at at a time


def checked(correct: Any, id_accuracy: Any, facts: Facts, *, scores: bool, for_selection: bool) -> Facts:
    """The attributes of `CorrectnessData`, of the arguments of `CorrectnessData.of`."""
    matrix, least = np.asarray(correct), MIN_MODELS if for_selection else 1
    if matrix.ndim != 2 or matrix.dtype.kind not in "biuf":
        raise ShapeError(f"correct is {matrix.dtype} {matrix.shape}; expected 0 and 1, models by examples")
    n_models, n = matrix.shape
    if n_models < least or not n:
        raise InputError(f"correct holds {n_models} models and {n} examples; expected at least {least} and 1")
    if isinstance(id_accuracy, pd.Series) and id_accuracy.index.dtype.kind not in "iu":
        facts = {"model_ids": id_accuracy.index, **facts}
    models, examples = (
        checked_ids(facts.get(f"{of}_ids", [f"{name}_{place}" for place in range(k)]), f"{of}_ids", k)
        for of, name, k in (("model", "model", n_models), ("example", "row", n))
    )
    by_model = {name: _by_name(facts.get(name), name, models) for name in ("groups", "families")}
    labels = _by_name(facts.get("labels"), "labels", examples, "example")
    return {
        "correct": _answers(matrix, models, examples, scores=scores),
        "id_accuracy": _accuracies(_by_name(id_accuracy, "id_accuracy", models), models, for_selection),
        "model_ids": models,
        "example_ids": examples,
        **{name: None if names is None else _texts(names, name) for name, names in by_model.items()},
        **_classes(labels, facts.get("label_names")),
        "meta": _columns(facts.get("meta", {}), examples),
        "embedding": _rows(facts.get("embedding"), "embedding", n),
        "id_embedding": _rows(facts.get("id_embedding"), "id_embedding", None),
        "images": _rows(facts.get("images"), "images", n, "uint8"),
        "source": dict(facts.get("source", {})),
    }


def checked_ids(values: Any, argument: str, n: int) -> Named:
    """Unique names of n models or examples."""
    names = _texts(np.asarray(values), argument)
    if names.shape != (n,):
        raise ShapeError(f"{argument} has shape {np.shape(values)}; expected {n} names")
    if (twice := names[pd.Index(names).duplicated()]).size:
        raise InputError(f"{argument} holds {str(twice[0])!r} more than once; names must be unique")
    return names


def _texts(values: np.ndarray, argument: str) -> np.ndarray:
    """Values as names, of which none is missing."""
    if (empty := np.flatnonzero(pd.isna(values))).size:
        raise InputError(f"{argument}[{empty[0]}] is {values[empty[0]]}; name every one")
    return np.array(list(map(str, values.tolist())))


def _by_name(values: Any, argument: str, names: Named, of: str = "model") -> Named | None:
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
        values = values.set_axis(checked_ids(values.index, f"the names of {argument}", len(values)))
        if missing := [name for name in names.tolist() if name not in values.index]:
            raise InputError(f"{argument} lacks {of} {missing[0]!r} ({len(missing)} are missing)")
        values = values.loc[names.tolist()]
    array = np.asarray(values)
    if array.shape != names.shape:
        raise ShapeError(f"{argument} has shape {array.shape}; expected one value per {of} ({len(names)})")
    return array


def bad_answer(model: object, example: object, answer: object, n: int, expected: str) -> InputError:
    """The one error about answers that are none; `n` counts them."""
    value = answer.item() if isinstance(answer, np.generic) else answer
    return InputError(
        f"the answer of model {str(model)!r} on example {str(example)!r} is {value!r}; expected {expected} "
        f"({n} such answers)"
    )


def _answers(matrix: np.ndarray, models: Named, examples: Named, *, scores: bool) -> np.ndarray:
    """The matrix as uint8 of 0 and 1, or as float32 scores."""
    height = max(1, _BLOCK // matrix.shape[1])
    expected = "a score from 0 to 1" if scores else "0 (wrong) or 1 (right); scores need scores=True"
    for start in range(0, len(matrix), height):
        block = matrix[start : start + height]
        valid = (block >= 0) & (block <= 1) if scores else (block == 0) | (block == 1)
        if len(bad := np.argwhere(~valid)):
            row, column = bad[0]
            raise bad_answer(models[start + row], examples[column], block[row, column], len(bad), expected)
    return matrix.astype(np.float32 if scores else np.uint8, copy=False)


def _accuracies(values: np.ndarray | None, models: Named, needed: bool) -> Float64[np.ndarray, " m"]:
    """In-distribution accuracies in [0, 1]; NaN for all where they are not needed."""
    if values is None and needed:
        given = "values, a column 'id_accuracy', --id-accuracy, or rows whose column 'domain' is 'id'"
        raise InputError(f"id_accuracy is missing; give the in-distribution accuracy of each model: {given}")
    y = np.full(len(models), np.nan) if values is None else pd.to_numeric(values, errors="coerce")
    unknown = not needed and np.isnan(y).all()
    return y.astype(np.float64) if unknown else checked_shares(y, "id_accuracy", models.tolist())


def _classes(labels: np.ndarray | None, names: Any) -> dict[str, Any]:
    """Classes as codes, and their names."""
    listed = None if names is None else tuple(map(str, names))
    if labels is not None and labels.dtype.kind not in "iub":
        classes, labels = np.unique(labels.astype(str), return_inverse=True)
        listed = tuple(classes.tolist())
    if labels is not None and (labels.min() < 0 or labels.max() >= len(listed or range(labels.max() + 1))):
        known = listed or "0, 1, ..."
        raise InputError(f"labels runs from {labels.min()} to {labels.max()}; classes are {known}")
    return {"labels": None if labels is None else labels.astype(np.int64), "label_names": listed}


def _columns(meta: Mapping[Any, Any] | pd.DataFrame, examples: Named) -> pd.DataFrame:
    """Facts about the examples, a row each: numbers (NaN where missing) or text (empty where missing)."""
    columns = {}
    for name in meta:
        values = pd.Series(_by_name(meta[name], f"meta[{name!r}]", examples, "example"), index=examples)
        if values.dtype.kind == "O":
            texts = any(isinstance(value, str) for value in values)
            values = values.where(values.notna(), "").astype(str) if texts else values.astype(np.float64)
        columns[str(name)] = values
    return pd.DataFrame(columns, index=examples)


def _rows(values: Any, name: str, n: int | None, dtype: str = "float32") -> np.ndarray | None:
    """A row per example, of finite numbers or of pixels of 8 bits."""
    if values is None:
        return None
    rows = np.asarray(values)
    fits = rows.dtype == np.uint8 if dtype == "uint8" else np.isfinite(rows).all()
    if n not in (None, len(rows)) or not fits:
        raise ShapeError(
            f"{name} are {rows.dtype} of shape {rows.shape}; expected finite {dtype}, a row per example"
        )
    return rows.astype(dtype)
