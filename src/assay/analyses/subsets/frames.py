"""The arguments of `CorrectnessData.of` from a pandas frame, long or wide."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.core.errors import InputError, unknown_name


if TYPE_CHECKING:
    import pandas as pd


PerModel = Any  # name of a column, mapping or series from the model, or a sequence in the order of the models


def read_frame(
    frame: "pd.DataFrame",
    *,
    id_accuracy: PerModel | None = None,
    model: str = "model",
    example: str = "example_id",
    correct: str = "correct",
    prediction: str = "prediction",
    label: str = "label",
    domain: str = "domain",
    group: PerModel | None = None,
    family: PerModel | None = None,
    n_id: PerModel | None = None,
    meta: Sequence[str] = (),
    examples: "pd.DataFrame | None" = None,
    **facts: Any,
) -> dict[str, Any]:
    """Read a pandas frame: long (a row per model and example) or wide (a row per model, a column per
    example).

    A frame with a column `model` is long. A wide one has the models as index and 0 or 1 in the columns.

    Args:
        frame: The frame.
        id_accuracy: Accuracy of each model in distribution: the name of a column, a mapping or series from
            the model, or a sequence in the order of the models. Default, long only: the share of right
            answers in the rows whose `domain` is `id`.
        model: Column of the model's name.
        example: Column of the example's name.
        correct: Column of 0 and 1. If there is none, `prediction` is compared with `label`.
        prediction: Column of the predicted class.
        label: Column of the class, if any.
        domain: Column of `id` and `ood`, if any; only rows `ood` enter the matrix.
        group: Training run of each model, given as `id_accuracy` is. Default: the column `group`, if any.
        family: Family of each model, likewise. Default: the column `family`, if any.
        n_id: Examples behind each accuracy: a number, or given as `id_accuracy` is. Default: counted, or not
            known.
        meta: Columns of a long frame that say something about the example.
        examples: What is known of the examples: indexed by their names, a column each; a column `label` is
            the class.
        **facts: As for `CorrectnessData.of`: `label_names`, `embedding`, `id_embedding`, `images`, `source`.

    Returns:
        Arguments of `CorrectnessData.of`, models and examples in the order in which they first appear.

    Raises:
        InputError: If a cell is missing, repeated, or neither 0 nor 1, with its model and example; if a
            column does not exist, or what belongs to a model or example differs between its rows.
    """
    if not len(frame):
        raise InputError("the frame has no rows")
    if model in frame.columns:
        columns = _Header(model, example, correct, prediction, label, domain)
        table, held = _long(frame, columns, tuple(meta), rated=id_accuracy is not None)
    elif meta:
        raise InputError("meta names columns of a long frame, but this frame is wide; give examples instead")
    else:
        table, held = _wide(frame, model, [id_accuracy, group, family, n_id])
    names = held["model_ids"]
    for argument, values, default in (
        ("groups", group, "group"),
        ("families", family, "family"),
        ("n_id", n_id, None),
        ("id_accuracy", id_accuracy, None),
    ):
        values = default if values is None and default in table.columns else values
        if isinstance(values, str):
            values = _column_of_models(table, values, names, argument)
        if values is not None:
            one_number = argument == "n_id" and np.ndim(values) == 0 and not isinstance(values, Mapping)
            held[argument] = values if one_number else per_model(values, names, argument)
    if held.get("id_accuracy") is None:
        raise InputError(
            "id_accuracy is missing, and the frame has no in-distribution rows. Give the accuracy of each "
            f"model (a mapping from its name), or rows whose column {domain!r} is 'id'"
        )
    if held.get("n_id") is not None:
        held["n_id"] = np.asarray(held["n_id"])
    if examples is not None:
        held |= _known(examples, held["example_ids"], label, held.get("meta", {}))
    return {"source": {"kind": "frame"}, **held, **facts}


class _Header(NamedTuple):
    """Names of the columns of a long frame."""

    model: str
    example: str
    correct: str
    prediction: str
    label: str
    domain: str


def _long(
    frame: "pd.DataFrame", columns: _Header, meta: tuple[str, ...], *, rated: bool
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """The frame by model, and what it holds; in-distribution accuracies unless they are `rated` elsewhere."""
    import pandas as pd

    model, example, label, domain = columns.model, columns.example, columns.label, columns.domain
    for name in (model, example, *meta):
        _require_column(frame, name)
    for name in (model, example):
        if (empty := frame[name].isna()).any():
            raise InputError(f"frame[{name!r}] is missing in row {int(np.flatnonzero(empty)[0])}; fill it in")
    right = _right(frame, columns)
    outside = np.ones(len(frame), dtype=bool)
    held: dict[str, Any] = {}
    models, names = pd.factorize(frame[model].astype(str))
    if domain in frame.columns:
        domains = frame[domain].astype(object).where(frame[domain].notna(), "").to_numpy().astype(str)
        if strange := sorted(set(domains.tolist()) - {"id", "ood"}):
            raise InputError(f"frame[{domain!r}] holds {strange[0]!r}; expected 'id' or 'ood'")
        outside = domains == "ood"
        if not outside.any():
            raise InputError(f"frame[{domain!r}] is never 'ood'; add rows out of distribution")
        if not rated:
            held |= _within(models[~outside], right[~outside], names)
    chosen = frame[outside]
    examples, ids = pd.factorize(chosen[example].astype(str))

    def of_examples(name: str) -> np.ndarray:
        return _plain(_constant(chosen[name], examples, ids, f"example {{}} has two values of {name!r}"))

    held |= {
        "correct": _pivot(models[outside], examples, right[outside], names, ids),
        "model_ids": tuple(names.tolist()),
        "example_ids": np.asarray(ids.tolist()),
        "meta": {name: of_examples(name) for name in meta},
    }
    if label in frame.columns:
        held["labels"] = countable(of_examples(label))
    return frame.assign(**{model: frame[model].astype(str)}).set_index(model), held


def _right(frame: "pd.DataFrame", columns: _Header) -> Float64[np.ndarray, " rows"]:
    """1 where the answer of a row is right, else 0."""
    correct, prediction, label = columns.correct, columns.prediction, columns.label
    if correct in frame.columns:
        column = frame[correct]
        right = _numbers(column)
        bad = np.flatnonzero(~((right == 0) | (right == 1)))
    elif prediction in frame.columns and label in frame.columns:
        column = frame[prediction]
        right = (column.astype(object) == frame[label].astype(object)).to_numpy(dtype=np.float64)
        bad = np.flatnonzero((column.isna() | frame[label].isna()).to_numpy())
    else:
        raise InputError(
            f"the frame has neither a column {correct!r} nor both {prediction!r} and {label!r}; it has "
            f"{', '.join(map(str, frame.columns[:20]))}"
        )
    if len(bad):
        row = frame.iloc[int(bad[0])]
        raise _bad_cell(row[columns.model], row[columns.example], column.iloc[int(bad[0])], len(bad))
    return right


def _numbers(column: "pd.Series[Any]") -> np.ndarray:
    """A column as numbers; NaN for what is none."""
    import pandas as pd

    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _bad_cell(model: object, example: object, cell: Any, n: int) -> InputError:
    """The error about an answer that is neither 0 nor 1."""
    import pandas as pd

    what = "is missing" if pd.isna(cell) else f"is {cell.item() if hasattr(cell, 'item') else cell!r}"
    return InputError(
        f"the answer of model {str(model)!r} on example {str(example)!r} {what}; every cell must be 0 "
        f"(wrong) or 1 (right) ({n} such cells). If {str(example)!r} holds accuracies in distribution, name "
        "it id_accuracy"
    )


def _within(models: Places, right: Float64[np.ndarray, " k"], names: Any) -> dict[str, Any]:
    """In-distribution accuracies and the numbers of examples behind them."""
    counts = np.bincount(models, minlength=len(names))
    if len(empty := np.flatnonzero(counts == 0)):
        raise InputError(
            f"model {str(names[int(empty[0])])!r} has no in-distribution row, so its accuracy is unknown"
        )
    return {"id_accuracy": np.bincount(models, right, minlength=len(names)) / counts, "n_id": counts}


def _pivot(
    models: Places, examples: Places, right: Float64[np.ndarray, " k"], names: Any, ids: Any
) -> np.ndarray:
    counts = np.bincount(models * len(ids) + examples, minlength=len(names) * len(ids))
    counts = counts.reshape(len(names), len(ids))
    if counts.max(initial=1) > 1:
        row, column = np.argwhere(counts > 1)[0].tolist()
        raise InputError(
            f"model {str(names[row])!r} has {counts.max()} rows for example {str(ids[column])!r}; expected "
            "one"
        )
    if not counts.all():
        row, column = np.argwhere(counts == 0)[0].tolist()
        raise InputError(
            f"model {str(names[row])!r} has no row for example {str(ids[column])!r} "
            f"({int((counts == 0).sum())} cells are missing); every model must answer every example"
        )
    correct = np.zeros(counts.shape, dtype=np.uint8)
    correct[models, examples] = right
    return correct


def _wide(frame: "pd.DataFrame", model: str, units: list[Any]) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """The frame by model, and what it holds; columns named in `units` say something of the models."""
    import pandas as pd

    named = {each for each in units if isinstance(each, str)} | {"group", "family"}
    cells = frame[[name for name in frame.columns if name not in named]]
    names = unique_names([str(name) for name in frame.index])
    if (repeated := frame.columns[frame.columns.duplicated()]).size:
        raise InputError(
            f"two columns of the frame are named {str(repeated[0])!r}; each column must be one example"
        )
    textual = any(pd.api.types.is_string_dtype(kind) for kind in cells.dtypes)
    if textual and frame.index.equals(pd.RangeIndex(len(frame))):
        raise InputError(
            f"the frame has no column {model!r}, so it is read as wide: models as index, 0 or 1 in every "
            "column. For a long frame, name the column (model=...)"
        )
    rows = cells.apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = np.argwhere(~((rows == 0) | (rows == 1)))
    if len(bad):
        row, column = bad[0].tolist()
        raise _bad_cell(names[row], cells.columns[column], cells.iloc[row, column], len(bad))
    held = {
        "correct": rows.astype(np.uint8),
        "model_ids": names,
        "example_ids": np.array([str(name) for name in cells.columns]),
    }
    return frame.set_axis(list(names), axis=0), held


def _known(
    examples: "pd.DataFrame", ids: np.ndarray, label: str, meta: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Columns of a frame of examples, in the order of the matrix, beside those that are known."""
    table = examples.set_axis(examples.index.astype(str), axis=0)
    if table.index.has_duplicates:
        raise InputError(f"examples lists {table.index[table.index.duplicated()][0]!r} twice")
    if missing := [name for name in ids.tolist() if name not in table.index]:
        raise InputError(
            f"examples has no row {missing[0]!r} ({len(missing)} examples of the frame are missing)"
        )
    columns = {str(name): _plain(table.loc[ids.tolist(), name].to_numpy()) for name in table.columns}
    labels = {"labels": countable(columns.pop(label))} if label in columns else {}
    return labels | {"meta": {**meta, **columns}}


def _require_column(frame: "pd.DataFrame", name: str) -> None:
    if name not in frame.columns:
        raise unknown_name("column of the frame", name, map(str, frame.columns))


def _constant(
    column: "pd.Series[Any]", codes: Int64[np.ndarray, " rows"], names: Any, message: str
) -> np.ndarray:
    """What a column says of each of some things, which must be the same in all rows of one."""
    import pandas as pd

    values, values_of_column = pd.factorize(column)
    first = np.full(len(names), -2)
    first[codes[::-1]] = values[::-1]  # the first row of each is written last
    if len(different := np.flatnonzero(first[codes] != values)):
        raise InputError(message.format(repr(str(names[int(codes[different[0]])]))) + "; they must agree")
    held: np.ndarray = np.append(np.asarray(values_of_column, dtype=object), np.array([None], dtype=object))
    return np.asarray(held[first])


def _column_of_models(table: "pd.DataFrame", name: str, names: Sequence[str], argument: str) -> np.ndarray:
    """A column that says something of each model: of all its rows the same."""
    import pandas as pd

    _require_column(table, name)
    codes = pd.Index(list(names)).get_indexer(table.index)
    values = _constant(table[name], codes, names, f"model {{}} has two values of {name!r}")
    if len(empty := np.flatnonzero(pd.isna(values))):
        raise InputError(f"{argument}: model {names[int(empty[0])]!r} has no {name!r}; fill it in")
    return values


def _plain(column: np.ndarray) -> np.ndarray:
    """A column as numbers (NaN where missing) or text (empty where missing)."""
    import pandas as pd

    if column.dtype.kind in "biuf":
        return column
    missing = pd.isna(column)
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind == "boolean" and not missing.any():
        return column.astype(bool)
    if kind == "integer" and not missing.any():
        return column.astype(np.int64)
    if kind in ("integer", "floating", "mixed-integer-float", "empty"):
        return np.where(missing, np.nan, column).astype(np.float64)
    return np.where(missing, "", column).astype(str)


# ------------------------------------------------------------------------ what is given of each model


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
            raise InputError(
                f"two models are named {name!r}; names must be unique. In a long table, with a row per model "
                "and example, the column of examples is called example_id"
            )
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
            raise InputError(f"{argument} lacks model {missing[0]!r} ({len(missing)} are missing)")
        return [by_name[name] for name in names]
    return list(given)
