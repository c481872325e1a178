"""Answers of models on examples from a table, whichever way it lies: one matrix, NaN for holes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.cells import check_classes, numbers, same_class, scaled, share_class
from assay.analyses.subsets.header import OF_MODELS, Header, row_names
from assay.core.errors import InputError, check_name


if TYPE_CHECKING:
    import pandas as pd

CELLS = ("correct", "prediction", "score")


class CellOptions(NamedTuple):
    """How cells are read.

    Attributes:
        cells: One of `CELLS`; None: found out.
        scores: Worse and better end of scores.
        truth: Class of each example, from the frame of examples.
        meta: Columns of facts about the examples.
    """

    cells: str | None
    scores: tuple[float | int, float | int] | None
    truth: Mapping[str, Any]
    meta: tuple[str, ...]


class DomainRoles(NamedTuple):
    """Which rows of a long table are in distribution, and which enter the matrix.

    Attributes:
        column: Of the domain; None if there is none.
        inside, outside: Values of the column; None: `id` and `ood`.
        rated: Whether accuracies in distribution are given otherwise.
    """

    column: str | None
    inside: Sequence[str] | None
    outside: Sequence[str] | None
    rated: bool

    def parts(self, frame: "pd.DataFrame") -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
        """Rows in and out of distribution."""
        if self.column is None:
            return np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool)
        column = frame[self.column]
        held = column.astype(object).where(column.notna(), "").to_numpy().astype(str)
        found = sorted(set(held.tolist()))
        inside, outside = self.inside, self.outside
        if inside is None and outside is None:
            if self.rated and len(found) == 1 and found != ["id"]:
                return np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool)
            if strange := [name for name in found if name not in ("id", "ood")]:
                raise InputError(
                    f"frame[{self.column!r}] holds {strange[0]!r}; expected 'id' or 'ood', or say which of "
                    f"{', '.join(found[:20])} are in and out of distribution (--id-envs and --ood-env)"
                )
        if outside is None and "ood" not in found:
            raise InputError(
                f"frame[{self.column!r}] is never 'ood'; say which of {', '.join(found[:20])} is out of "
                "distribution, ood_domains (--ood-env), or add such rows"
            )
        outside = ("ood",) if outside is None else outside
        inside = inside if inside is not None else [name for name in found if name not in outside]
        for name in (*outside, *inside):
            check_name(f"value of the column {self.column!r}", name, found)
        if shared := set(inside) & set(outside):
            raise InputError(f"{min(shared)!r} is both in and out of distribution; it can only be one")
        return np.isin(held, list(inside)), np.isin(held, list(outside))


def long_answers(
    frame: "pd.DataFrame", header: Header, options: CellOptions, domains: DomainRoles
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """The frame by model, and what it holds."""
    import pandas as pd

    model, example = header.need("model"), header.need("example")
    for name in options.meta:
        header.require(name)
    for name in (model, example):
        _refuse_empty(frame[name], f"frame[{name!r}]")
    inside, outside = domains.parts(frame)
    right, answers = _right(frame, header, options)
    models, names = pd.factorize(frame[model].astype(str))
    held: dict[str, Any] = {}
    if not domains.rated and inside.any():
        kept = frame.loc[inside, [model, example, *([domains.column] if domains.column else [])]].astype(str)
        if (twice := kept[kept.duplicated()]).size:
            raise InputError(
                f"model {twice[model].iloc[0]!r} has several in-distribution rows for example "
                f"{twice[example].iloc[0]!r}; expected one"
            )
        held |= _within(models[inside], right[inside], names)
    chosen = frame[outside]
    examples, ids = pd.factorize(chosen[example].astype(str))

    def of_examples(name: str) -> np.ndarray:
        return plain_column(constant(chosen[name], examples, ids, f"example {{}} has two values of {name!r}"))

    held |= {
        "correct": _pivot(models[outside], examples, right[outside], names, ids),
        "model_ids": tuple(names.tolist()),
        "example_ids": np.asarray(ids.tolist()),
        "meta": {name: of_examples(name) for name in options.meta},
        "understood": {"answers": answers},
    }
    if (label := header.get("label")) is not None:
        held["labels"] = countable(of_examples(label))
    return frame.assign(**{model: frame[model].astype(str)}).set_index(model, drop=False), held


def _refuse_empty(names: "pd.Series[Any] | pd.Index[Any]", where: str) -> None:
    """Refuse names of which one is missing."""
    if (empty := np.flatnonzero(names.isna())).size:
        raise InputError(f"{where} is missing in row {int(empty[0])}; fill it in")


def _right(
    frame: "pd.DataFrame", header: Header, options: CellOptions
) -> tuple[Float64[np.ndarray, " rows"], str]:
    """1 where the answer of a row is right, else 0, NaN where it is missing; and what it was taken from."""
    label = header.get("label")
    truth = None if label is None else frame[label]
    if truth is None and options.truth:
        truth = frame[header.need("example")].astype(str).map(options.truth)
    kind, name = options.cells, header.get("correct")
    compared = {"prediction", "probability"} & header.found.keys() or header.probabilities
    if kind is None and name is None and "score" in header.found:
        if truth is not None and compared:
            raise InputError(
                f"the column {header.found['score']!r} may hold scores of answers or how sure models are; "
                "predictions can be compared with the true classes; say which to read: --cells score or "
                "--cells prediction (cells='prediction')"
            )
        kind = "score"
    if name is None and (kind == "correct" or (kind == "score" and "score" not in header.found)):
        raise InputError(f"cells hold {kind!r}, but the table has no such column; --columns {kind}=NAME")
    if kind == "score" and (name := header.get("score") or name) is not None:
        values = numbers(frame[name])
        _refuse_cells(frame, header, frame[name], np.isfinite(values), "must be a number")
        return scaled(values, options.scores), f"scores of {name!r}"
    if name is not None and kind != "prediction":
        values = numbers(frame[name])
        _refuse_cells(frame, header, frame[name], (values == 0) | (values == 1))
        return values, f"0 and 1 of {name!r}"
    name = header.get("prediction") or (name if kind == "prediction" else None)
    if truth is not None and name is not None:
        check_classes(frame[name], truth, f"the column {name!r} holds predictions")
        return same_class(frame[name], truth), f"{name!r} compared with the true class"
    if truth is not None and (header.probabilities or "probability" in header.found):
        return _likeliest(frame, header, truth), "the likeliest class compared with the true one"
    raise InputError(
        "the table has neither a column 'correct' nor 'score', nor beside 'label' a 'prediction' or "
        f"probabilities 'p_0', 'p_1', ...; it has {', '.join(map(str, frame.columns[:20]))}. Name them: "
        "columns={'correct': NAME}, --columns correct=NAME"
    )


def _likeliest(
    frame: "pd.DataFrame", header: Header, truth: "pd.Series[Any]"
) -> Float64[np.ndarray, " rows"]:
    """Whether the likeliest class, the first of equals, is the true one."""
    names = header.probabilities or [header.need("probability")]
    values = np.stack([numbers(frame[name]) for name in names], axis=1)
    for name, column in zip(names, values.T, strict=True):
        _refuse_cells(frame, header, frame[name], np.isfinite(column), "must be a number")
    if len(names) == 1:  # of class 1
        valid = (values[:, 0] >= 0) & (values[:, 0] <= 1)
        _refuse_cells(frame, header, frame[names[0]], valid, "must be a probability, from 0 to 1")
        values = np.hstack([1 - values, values])
    known = numbers(truth)
    absent = np.isnan(values).any(axis=1) | truth.isna().to_numpy()
    n = values.shape[1]
    bad = ~absent & ~((known >= 0) & (known < n) & (known == np.floor(known)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"the true class of row {row} is {str(truth.iloc[row])!r}; with probabilities of {n} classes it "
            f"must be a whole number from 0 to {n - 1}"
        )
    return np.where(absent, np.nan, np.where(absent, 0, values.argmax(axis=1)) == known)


def _refuse_cells(
    frame: "pd.DataFrame",
    header: Header,
    column: "pd.Series[Any]",
    valid: np.ndarray,
    expected: str = "must be 0 (wrong) or 1 (right)",
) -> None:
    """Refuse cells that hold something else than an answer; missing ones are counted later."""
    bad = np.flatnonzero(~valid & column.notna().to_numpy())
    if len(bad):
        row = frame.iloc[int(bad[0])]
        names = row[header.need("model")], row[header.need("example")]
        raise _bad_cell(*names, column.iloc[int(bad[0])], len(bad), expected)


def _bad_cell(
    model: object, example: object, cell: Any, n: int, expected: str, facts: Sequence[str] = ()
) -> InputError:
    """The error about an answer that is none, which columns of facts about the examples may hold."""
    hint = (
        f"If {str(example)!r} holds accuracies in distribution, name it id_accuracy; if it says what runs or "
        f"families models are of, give group={str(example)!r} (--groups {example}) or "
        f"family={str(example)!r} (--families {example}); if it is not an example, remove it; classes need a "
        "column 'label', and other numbers cells='score' (--cells score)"
    )
    if facts:
        named = facts[:5]
        hint = f"Name columns that say something of the examples: --facts {','.join(named)} (meta={named})"
    if "Unnamed: 0" in facts:  # what pandas calls an index
        hint = "If 'Unnamed: 0' holds the names of the examples, call it example_id"
    return InputError(
        f"the answer of model {str(model)!r} on example {str(example)!r} is "
        f"{cell.item() if hasattr(cell, 'item') else cell!r}; every cell {expected} ({n} such cells). {hint}"
    )


def _within(models: Places, right: Float64[np.ndarray, " k"], names: Any) -> dict[str, Any]:
    """In-distribution accuracies and the numbers of examples behind them."""
    if np.isnan(right).any():
        raise InputError(
            f"{int(np.isnan(right).sum())} in-distribution answers are missing, the first is one of model "
            f"{str(names[models[np.flatnonzero(np.isnan(right))[0]]])!r}; fill them in, or remove these rows"
        )
    counts = np.bincount(models, minlength=len(names))
    if len(empty := np.flatnonzero(counts == 0)):
        raise InputError(
            f"model {str(names[int(empty[0])])!r} has no in-distribution row, so its accuracy is unknown"
        )
    return {"id_accuracy": np.bincount(models, right, minlength=len(names)) / counts, "n_id": counts}


def _pivot(
    models: Places, examples: Places, right: Float64[np.ndarray, " k"], names: Any, ids: Any
) -> np.ndarray:
    """Models by examples, NaN where a row is missing."""
    counts = np.bincount(models * len(ids) + examples, minlength=len(names) * len(ids))
    if counts.max(initial=1) > 1:
        row, column = divmod(int(np.argmax(counts > 1)), len(ids))
        raise InputError(
            f"model {str(names[row])!r} has {counts.max()} rows for example {str(ids[column])!r}; expected "
            "one"
        )
    values = np.full((len(names), len(ids)), np.nan)
    values[models, examples] = right
    return values


# ------------------------------------------------------------------------------------ wide and transposed


def matrix_answers(
    frame: "pd.DataFrame", header: Header, reading: CellOptions, named: set[str], *, turned: bool
) -> "tuple[pd.DataFrame, dict[str, Any]]":
    """What is known of the models, by model, and what the frame holds.

    Args:
        frame: Rows are models, or examples if it is `turned`.
        header: Its columns.
        reading: How cells are read.
        named: Further columns (rows, if it is turned) that say something of the models.
        turned: Whether models are the columns.
    """
    import pandas as pd

    if reading.meta and not turned:
        raise InputError(
            f"meta={','.join(reading.meta)} (--facts {','.join(reading.meta)}) names columns of a long or "
            "transposed table, but this one is wide; give examples=FRAME (--examples FILE) instead"
        )
    key = header.get("example" if turned else "model")
    labels, key = (frame[key], key) if key else row_names(frame)
    _refuse_empty(labels, "index" if key is None else f"frame[{key!r}]")
    names = unique_names(list(map(str, labels)), "examples" if turned else "models")
    table = (frame if key is None else frame.drop(columns=key)).set_axis(names, axis=0)
    of_models = named | {header.get(role) or role for role in OF_MODELS}
    of_examples = {header.get("label") or "label", *reading.meta}
    across, down = (of_examples, of_models) if turned else (of_models, of_examples)
    beside = table[[name for name in table.columns if name in across]]
    below = table.loc[
        [name for name in table.index if name in down], table.columns.difference(beside.columns, sort=False)
    ]
    cells = table.drop(columns=beside.columns, index=below.index)
    if cells.empty:
        raise InputError(f"there are no answers beside {', '.join(map(str, frame.columns[:20]))}")
    beside = beside.drop(index=below.index)
    models, examples = (below.T, beside) if turned else (beside, below.T)
    ids = list(map(str, cells.index if turned else cells.columns))
    label = header.get("label") or "label"
    truth = examples.get(label)
    if truth is None and reading.truth:
        truth = pd.Series([reading.truth.get(name) for name in ids], dtype=object)
    values, answers = _cells(
        cells, reading, None if truth is None else truth.set_axis(range(len(ids))), turned=turned
    )
    held: dict[str, Any] = {
        "correct": values,
        "model_ids": tuple(map(str, cells.columns if turned else cells.index)),
        "example_ids": np.array(ids),
        "meta": {name: plain_column(examples[name].to_numpy()) for name in reading.meta if name in examples},
        "understood": {"answers": answers},
    }
    if turned and key is None and table.index.tolist() == list(map(str, range(len(table)))):
        held["understood"] |= {"unnamed": True, "notes": ["rows of the table are matched by place"]}
    if label in examples:
        held["labels"] = countable(plain_column(examples[label].to_numpy()))
    return models, held


def _cells(
    cells: "pd.DataFrame", reading: CellOptions, truth: "pd.Series[Any] | None", *, turned: bool
) -> tuple[Float64[np.ndarray, "m n"], str]:
    """Models by examples, and what the cells were taken for."""
    import pandas as pd

    plain = all(pd.api.types.is_numeric_dtype(kind) for kind in cells.dtypes)
    values = (cells if plain else cells.apply(numbers)).to_numpy(dtype=np.float64, na_value=np.nan)
    present = cells.notna().to_numpy()
    binary = (values == 0) | (values == 1)
    kind = reading.cells
    if kind is None and truth is not None and not binary[present].all():
        whole = np.isnan(values) | (values == np.floor(values))
        classes = pd.Series(cells.to_numpy(dtype=object)[present])
        kind = "prediction" if whole.all() and share_class(classes, truth) else None
    elif kind is None and truth is not None and np.isin(numbers(truth.dropna()), (0, 1)).all():
        raise InputError(
            "cells are 0 and 1, and so are the true classes; say whether cells tell right from wrong, "
            "--cells correct (cells='correct'), or are classes, --cells prediction"
        )
    if kind == "prediction":
        if truth is None:
            raise InputError("cells are predictions, but the true classes are missing; give a column 'label'")
        between = ((values > 0) & (values < 1)).any()
        do = " (probabilities are read from a long table: columns p_0, p_1, ... beside label)"
        said = pd.Series(cells.to_numpy(dtype=object).ravel())
        check_classes(said, truth, "cells hold predictions", do if between else "")
        rows = cells if turned else cells.T
        found = [
            same_class(rows.iloc[:, place].set_axis(truth.index), truth) for place in range(rows.shape[1])
        ]
        return np.stack(found), "classes compared with the true ones"
    valid, expected = (
        (np.isfinite(values), "must be a number")
        if kind == "score"
        else (binary, "must be 0 (wrong) or 1 (right)")
    )
    bad = np.argwhere(~valid & present)
    if len(bad):
        row, column = bad[0].tolist()
        names = (cells.index[row], cells.columns[column])
        model, example = names[::-1] if turned else names
        odd = [str(name) for name in cells.columns[(~valid & present).any(axis=0)]]
        facts = odd if turned and len(odd) < cells.shape[1] else []
        raise _bad_cell(model, example, cells.iloc[row, column], len(bad), expected, facts)
    values = values.T if turned else values
    return (scaled(values, reading.scores), "scores") if kind == "score" else (values, "0 and 1")


# ------------------------------------------------------------------------------------------- columns


def constant(
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


def plain_column(column: np.ndarray) -> np.ndarray:
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


def countable(labels: np.ndarray) -> np.ndarray:
    """Classes as counts from 0 where they are, else as names."""
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    return labels if labels.dtype.kind in "iub" and labels.min() >= 0 else labels.astype(str)


def unique_names(names: list[str], of: str = "models") -> tuple[str, ...]:
    """The names of some things; an error if one is repeated."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(
                f"two {of} are named {name!r}; names must be unique. In a long table, with a row per model "
                "and example, the column of examples is called example_id"
            )
        seen.add(name)
    return tuple(names)
