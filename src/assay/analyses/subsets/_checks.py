"""The arguments of `CorrectnessData.of`, checked one by one: each error names the argument and the value."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from assay.analyses.subsets._arrays import Units
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import checked_shares
from assay.analyses.subsets.placement import shape_of
from assay.core.errors import InputError, ShapeError


_BLOCK = 1 << 26  # bytes looked at at a time
DEFAULT_NAMES = {"model": "model_{}", "example": "row_{}"}


def checked_arguments(
    correct: Any, given: Mapping[str, Any], *, scores: bool, at_least: int, unrated: bool
) -> dict[str, Any]:
    """The fields of `CorrectnessData` from the arguments of its `of`, what is missing given its default.

    Args:
        correct: A matrix.
        given: All other arguments that say something of models or examples, None where not given.
        scores: As of `of`.
        at_least: As of `of`.
        unrated: As of `of`.
    """
    matrix = checked_matrix(correct, scores=scores)
    n_models, n_examples = shape_of(matrix)
    if n_models < at_least:
        raise InputError(f"correct holds {n_models} models; expected at least {at_least}")
    if n_examples < 1:
        raise InputError("correct does not hold any example")
    model_ids, y = given["model_ids"], given["id_accuracy"]
    index = y.index if hasattr(y, "iloc") else None
    if model_ids is None and index is not None and index.dtype.kind not in "iu":
        model_ids = index
    models = checked_model_ids(model_ids, n_models)
    examples = checked_example_ids(given["example_ids"], n_examples)
    ids, named = examples.tolist(), () if model_ids is None else models
    y, n_id, groups, families = (
        by_name(given[name], models, name) for name in ("id_accuracy", "n_id", "groups", "families")
    )
    codes, names = checked_labels(
        by_name(given["labels"], ids, "labels", "example"), given["label_names"], n_examples
    )
    return {
        "correct": matrix,
        "id_accuracy": checked_accuracies(y, n_models, named, unrated=unrated),
        "model_ids": models,
        "example_ids": examples,
        "n_id": checked_n_id(n_id, n_models),
        "groups": checked_names(groups, n_models, "groups"),
        "families": checked_names(families, n_models, "families"),
        "labels": codes,
        "label_names": names,
        "meta": checked_columns(given["meta"] or {}, ids),
        "embedding": checked_rows(given["embedding"], "embedding", n_examples),
        "id_embedding": checked_rows(given["id_embedding"], "id_embedding", None),
        "images": checked_images(given["images"], n_examples),
        "source": dict(given["source"] or {}),
    }


def checked_matrix(correct: Any, *, scores: bool = False) -> Any:
    """0 and 1, or scores from 0 to 1, models by examples."""
    if isinstance(correct, PackedMatrix):
        return correct
    matrix = np.asarray(correct)
    if matrix.ndim != 2:
        raise ShapeError(f"correct has shape {matrix.shape}; expected models by examples")
    if matrix.dtype.kind not in "biuf":
        raise InputError(f"correct holds {matrix.dtype}; expected 0 and 1, models by examples")
    if scores:
        if len(bad := np.argwhere(~((matrix >= 0) & (matrix <= 1)))):
            place = tuple(bad[0].tolist())
            raise InputError(f"correct{list(place)} is {matrix[place]}; every score must be from 0 to 1")
        return matrix.astype(np.float32)
    rows = max(1, _BLOCK // max(1, matrix.shape[1] * matrix.itemsize))
    for start in range(0, len(matrix), rows):
        require_binary(matrix[start : start + rows], "correct[{}, {}]".format, start)
    return matrix.astype(np.uint8)


def require_binary(block: np.ndarray, named: Callable[[int, int], str], first: int = 0) -> None:
    """Raises `InputError` for an entry that is neither 0 nor 1, called by its row and column.

    Args:
        block: Rows, of which the first is row `first`.
        named: What to call an entry.
        first: Row of the first.
    """
    bad = np.argwhere(~((block == 0) | (block == 1)))
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"{named(first + row, column)} is {block[row, column]}; every entry must be 0 (wrong) or 1 "
            "(right)"
        )


def names_in(given: Any) -> list[str] | None:
    """The names that a mapping or a series of pandas gives values for; None where values only have places."""
    if isinstance(given, Mapping):
        return [*map(str, given)]
    return [*map(str, given.index)] if hasattr(given, "to_dict") and hasattr(given, "index") else None


def by_name(given: Any, names: Sequence[str], argument: str, of: str = "model") -> Any:
    """What is given of each model or example, in their order: by name from a mapping or a series of pandas.

    A sequence is in their order already, as is a series that only counts its rows, unless these are names.

    Raises:
        InputError: If a mapping or series lacks a name, or names one twice.
    """
    keys = names_in(given)
    if keys is None:
        return given
    series, known = not isinstance(given, Mapping), set(keys)
    nameless = next(iter(names), None) == DEFAULT_NAMES[of].format(0)
    counted = series and given.index.dtype.kind in "iu" and known.isdisjoint(names)
    if counted and (nameless or keys == [str(place) for place in range(len(keys))]):
        return given.to_numpy()
    if missing := [name for name in names if name not in known]:
        hint = (
            f". The {of}s have no names of their own: give {argument} in their order, or {of}_ids= of "
            "`CorrectnessData.of` too"
        )
        raise InputError(
            f"{argument} lacks {of} {missing[0]!r} ({len(missing)} are missing)"
            + (hint if nameless else "".join(f", {name!r}" for name in missing[1:20]))
        )
    if len(known) < len(keys):
        raise InputError(f"{argument} names {of} {max(keys, key=keys.count)!r} more than once")
    values = dict(zip(keys, given.to_numpy() if series else given.values(), strict=True))
    return [values[name] for name in names]


def checked_accuracies(
    given: Any, n_models: int, models: Sequence[str] = (), *, unrated: bool = False
) -> Float64[np.ndarray, " m"]:
    """In-distribution accuracies, one per model, in [0, 1]; of models that may be `unrated` NaN for all."""
    if given is None and unrated:
        return np.full(n_models, np.nan)
    if given is None:
        raise InputError("id_accuracy is missing; give the in-distribution accuracy of each model")
    try:
        y = np.array(given, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"id_accuracy is not numeric ({error}); give shares from 0 to 1") from None
    if y.shape != (n_models,):
        raise ShapeError(f"id_accuracy has shape {y.shape}, but correct holds {n_models} models")
    return y if unrated and np.isnan(y).all() else checked_shares(y, "id_accuracy", models)


def checked_names(given: Any, n_models: int, name: str) -> tuple[str, ...] | None:
    """A name for each model, or None."""
    if given is None:
        return None
    names = np.atleast_1d(given).tolist() if isinstance(given, np.ndarray) else list(given)
    if len(names) != n_models:
        raise ShapeError(f"{name} holds {len(names)} names, but correct holds {n_models} models")
    for place, each in enumerate(names):
        if each is None or each != each:  # NaN is what a missing cell of a table becomes
            raise InputError(
                f"{name}[{place}] is {each}; name the unit of every model, or remove models without one"
            )
    return tuple(map(str, names))


def checked_model_ids(given: Any, n_models: int) -> tuple[str, ...]:
    """Unique names of the models."""
    names = checked_names(given, n_models, "model_ids")
    if names is None:
        return tuple(map(DEFAULT_NAMES["model"].format, range(n_models)))
    for name, n in Counter(names).items():
        if n > 1:
            raise InputError(f"model_ids holds {name!r} more than once; each id must name one model")
    return names


def checked_example_ids(given: Any, n_examples: int) -> np.ndarray:
    """Unique names of the examples."""
    if given is None:
        return np.array([*map(DEFAULT_NAMES["example"].format, range(n_examples))])
    found = np.array(given).astype(str)
    if found.shape != (n_examples,):
        raise ShapeError(f"example_ids has shape {found.shape}, but correct holds {n_examples} examples")
    names, counts = np.unique(found, return_counts=True)
    if len(names) < n_examples:
        raise InputError(
            f"example_ids holds {str(names[counts > 1][0])!r} {counts.max()} times; each id must name one "
            f"example ({n_examples - len(names)} repetitions in total)"
        )
    return found


def checked_n_id(given: Any, n_models: int) -> Units | None:
    """Examples behind each accuracy."""
    if given is None:
        return None
    counts = np.asarray(given)
    if counts.shape not in ((), (n_models,)):
        raise ShapeError(f"n_id has shape {counts.shape}; give one number, or one per model ({n_models})")
    if counts.dtype.kind not in "iu" or (counts < 1).any():
        raise InputError("n_id must hold counts of at least 1")
    return np.broadcast_to(counts, (n_models,)).astype(np.int64)


def checked_labels(
    given: Any, names: Any, n_examples: int
) -> tuple[np.ndarray | None, tuple[str, ...] | None]:
    """Classes as codes, and their names."""
    listed = None if names is None else tuple(map(str, names))
    if given is None:
        return None, listed
    labels = np.asarray(given)
    if labels.shape != (n_examples,):
        raise ShapeError(f"labels has shape {labels.shape}, but correct holds {n_examples} examples")
    if labels.dtype.kind not in "iub":
        if names is not None:
            raise InputError("label_names needs integer labels, but the labels are names already")
        classes, codes = np.unique(labels.astype(str), return_inverse=True)
        return codes.astype(np.int64), tuple(classes.tolist())
    codes = labels.astype(np.int64)
    if len(codes) and codes.min() < 0:
        raise InputError(f"labels holds {codes.min()}; classes are counted from 0")
    if listed is not None and len(codes) and codes.max() >= len(listed):
        raise InputError(f"labels holds class {codes.max()}, but label_names lists only {len(listed)}")
    return codes, listed


def checked_columns(given: Mapping[str, Any], ids: list[Any]) -> dict[str, np.ndarray]:
    """Facts about the examples, a value per id."""
    columns = {
        str(name): np.array(by_name(column, ids, f"meta[{name!r}]", "example"))
        for name, column in given.items()
    }
    for name, column in columns.items():
        if column.shape != (len(ids),):
            raise ShapeError(f"meta[{name!r}] has shape {column.shape}, but there are {len(ids)} examples")
    return columns


def checked_rows(given: Any, name: str, n: int | None) -> np.ndarray | None:
    """Finite rows of numbers."""
    if given is None:
        return None
    rows = np.asarray(given, dtype=np.float32)
    if rows.ndim != 2 or (n is not None and len(rows) != n):
        raise ShapeError(f"{name} has shape {rows.shape}; expected {'one row per example' if n else 'rows'}")
    if not np.isfinite(rows).all():
        raise InputError(f"{name} holds NaN or infinite numbers")
    return rows


def row_lengths(rows: np.ndarray, name: str) -> Float64[np.ndarray, " n"]:
    """Euclidean lengths, none of which is 0: a zero row has no direction."""
    rows = rows.astype(np.float64)
    lengths = np.asarray(np.sqrt((rows * rows).sum(axis=1)))
    bad = np.flatnonzero(~((lengths > 0) & np.isfinite(lengths)))
    if len(bad):
        raise InputError(
            f"{name}[{bad[0]}] has length {lengths[bad[0]]} ({len(bad)} such rows), but a direction needs "
            "finite numbers that are not all 0. Drop these examples or embed them again"
        )
    return lengths


def checked_images(given: Any, n_examples: int) -> np.ndarray | None:
    """Images of 8 bits per channel."""
    if given is None:
        return None
    images = np.asarray(given)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != n_examples:
        raise ShapeError(
            f"images are {images.dtype} {images.shape}; expected uint8 [{n_examples}, height, width] or "
            f"[{n_examples}, height, width, 3]"
        )
    if images.ndim == 4 and images.shape[3] != 3:
        raise ShapeError(f"images have {images.shape[3]} channels; expected grey or RGB")
    return images


def check_embeddings(embedding: np.ndarray | None, id_embedding: np.ndarray | None) -> None:
    """Raises unless examples and in-distribution examples, where both are embedded, can be compared."""
    if embedding is None or id_embedding is None:
        return
    width, id_width = embedding.shape[1], id_embedding.shape[1]
    if width != id_width:
        raise ShapeError(f"embedding has width {width}, id_embedding {id_width}; use one encoder for both")
    row_lengths(embedding, "embedding")
    row_lengths(id_embedding, "id_embedding")


def check_nesting(groups: tuple[str, ...] | None, families: tuple[str, ...] | None) -> None:
    """Raises `InputError` for a training run in two families."""
    if groups is None or families is None:
        return
    family_of: dict[str, str] = {}
    for group, family in zip(groups, families, strict=True):
        if family_of.setdefault(group, family) != family:
            raise InputError(
                f"group {group!r} lies in the families {family_of[group]!r} and {family!r}; all models "
                "of a training run must share one family"
            )
