"""Tables of answers, whichever way they lie, as the arguments of `CorrectnessData.of`.

A table is long (a row per model and example), wide (a row per model, a column per example) or transposed (a
row per example, a column per model). All three end as one matrix with what is known of models and examples.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from assay.analyses.subsets.arguments import bad_answer
from assay.core.errors import InputError, check_name, unknown_name


# What a column can hold, and the names by which it is found unless the caller names it.
ROLES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "model_id", "model_name"),
    "example": ("example_id", "example", "sample_id", "uid", "doc_id", "id"),
    "correct": ("correct", "is_correct"),
    "prediction": ("prediction", "predicted", "pred", "y_pred"),
    "score": ("score",),
    "label": ("label", "truth", "y_true"),
    "domain": ("domain",),
    "id_accuracy": ("id_accuracy",),
    "n_id": ("n_id",),
    "group": ("group",),
    "family": ("family",),
}
OF_MODELS = {"id_accuracy": "id_accuracy", "n_id": "n_id", "group": "groups", "family": "families"}
LIES = {
    "long": "a row per model and example",
    "wide": "a row per model, a column per example",
    "transposed": "a row per example, a column per model",
}
CELLS = ("correct", "prediction", "score")
MISSING = ("refuse", "drop-models", "drop-examples")
_BINARY = (
    "0 (wrong), 1 (right), true or false. Remove the column or row if it does not hold answers; scores need "
    "cells='score' (--cells score), classes cells='prediction' (--cells prediction), words both right= and "
    "wrong= (--right correct --wrong wrong)"
)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """How a table is read, as `read_frame` was told or found out.

    Attributes:
        roles: Column of each role that has one.
        cells: What cells hold; None: found out.
        ends: Worse and better end of scores.
        words: Texts of answers.
        facts: Columns of facts about the examples.
        of_models: Columns of facts about the models.
        classes: True classes by example, where these are not part of the table.
    """

    roles: Mapping[str, str]
    cells: str | None
    ends: tuple[float | int, float | int]
    words: Mapping[str, float]
    facts: Sequence[str]
    of_models: Sequence[str]
    classes: pd.Series | None

    def classes_of(self, examples: pd.Series | pd.Index) -> np.ndarray:
        """True classes of examples that the table itself does not hold."""
        if self.classes is None:
            raise InputError("predictions need the true classes; give a column 'label'")
        return self.classes.set_axis(self.classes.index.astype(str)).reindex(examples).to_numpy()

    def answers(self, raw: np.ndarray, kind: str, named: Callable[..., tuple[Any, Any]]) -> np.ndarray:
        """Answers of any shape: 1 right, 0 wrong, scores between; NaN where there is none.

        Args:
            raw: The cells.
            kind: `correct` or `score`.
            named: Model and example of a place.

        Raises:
            InputError: If a cell is neither an answer nor missing.
        """
        values, (worse, better) = _numbers(raw, self.words), self.ends
        if kind == "score":
            values = (values - worse) / (better - worse)
        valid = (values >= 0) & (values <= 1) if kind == "score" else (values == 0) | (values == 1)
        bad = np.argwhere(~valid & ~pd.isna(raw))
        if len(bad):
            place = tuple(bad[0].tolist())
            ends = (
                f"a score from {worse:g}, the worse end, to {better:g}; state other ends with scores=(5, 0), "
            )
            expected = _BINARY if kind == "correct" else ends + "--scores 5,0 for a loss of at most 5"
            raise bad_answer(*named(*place), raw[place], len(bad), expected)
        return values


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Answers `[M, N]`, NaN where missing, by model and example, and what the table says of these."""

    answers: Float64[np.ndarray, "m n"]
    models: pd.DataFrame
    examples: pd.DataFrame
    cells: str


def read_frame(
    frame: pd.DataFrame,
    *,
    orientation: str | None = None,
    columns: Mapping[str, str] | None = None,
    cells: str | None = None,
    scores: tuple[float | int, float | int] | None = None,
    right: str | None = None,
    wrong: str | None = None,
    missing: str = "refuse",
    id_domains: Sequence[str] | None = None,
    ood_domains: Sequence[str] | None = None,
    examples: pd.DataFrame | None = None,
    facts: Sequence[str] = (),
    **beside: Any,
) -> dict[str, Any]:
    """The arguments of `CorrectnessData.of` that a frame holds.

    Args:
        frame: A long frame has columns of models, examples and answers. A wide one names its rows, the
            models, by the column `model`, a first column of different texts, or the index; a transposed one
            the examples by `example_id` likewise.
        orientation: `long`, `wide` or `transposed`. Default: long with columns of models and examples,
            transposed with one of examples, else wide.
        columns: Names of columns by role, e.g. `{"model": "run", "example": "uid"}`; see `ROLES`.
        cells: `correct` (0 and 1, true and false), `prediction` (classes, compared with `label`) or `score`
            (numbers, see `scores`). Default: `correct`; in a long frame without that column the likeliest
            of `prediction`, probabilities `p_0`, `p_1`, ..., `score` that is there.
        scores: Cells hold scores with this worse and better end (default: 0 and 1), which are mapped onto 0
            to 1, as is a given `id_accuracy`.
        right: Text of a right answer, with `wrong`, instead of true and false.
        wrong: Text of a wrong answer.
        missing: What to do with missing answers: `refuse`, or leave out every model (`drop-models`) or
            example (`drop-examples`) with one.
        id_domains: Values of the column `domain` of a long frame in distribution; the share of right answers
            there is the accuracy unless `id_accuracy` is given. Default: `id`, or all but `ood_domains`.
        ood_domains: Values of `domain` whose rows enter the matrix. Default: `ood`.
        examples: What is known of the examples: indexed by their names, a column each.
        facts: Columns of a long or transposed frame that say something of the example.
        **beside: `id_accuracy`, `n_id`, `groups`, `families`: as of `CorrectnessData.of`, or the name of a
            column (of a transposed frame: of a row). Default: the columns `id_accuracy`, `n_id`, `group`,
            `family`, if there. Other arguments of `CorrectnessData.of` are passed on.

    Raises:
        InputError: If an answer is missing, repeated or not an answer, with its model and example; if a
            column does not exist, or facts of a model or example differ between its rows.
    """
    if frame.empty:
        raise InputError("the table has no rows")
    if (right is None) != (wrong is None):
        raise InputError("right= and wrong= (--right and --wrong) belong together; give both words")
    cells, ends = cells or (None if scores is None else "score"), scores or (0, 1)
    if not np.isfinite(ends).all() or ends[0] == ends[1]:
        raise InputError(f"scores is {ends}; give two different numbers, the worse end first")
    check_name("rule for missing answers", missing, MISSING)
    check_name("content of cells", cells or "correct", CELLS)
    of_examples = pd.DataFrame() if examples is None else examples.rename(columns=str)
    frame, roles = _with_roles(frame, columns or {}, list(of_examples.columns))
    both = "model" in roles and "example" in roles
    lies = orientation or ("long" if both else "transposed" if "example" in roles else "wide")
    check_name("orientation", lies, LIES)
    beside = {name: value for name, value in beside.items() if value is not None}
    words = {"true": 1.0, "false": 0.0}
    if right is not None and wrong is not None:
        words = {right.strip().lower(): 1.0, wrong.strip().lower(): 0.0}
    label = next((name for name in (roles.get("label"), *ROLES["label"]) if name in of_examples), None)
    reading = _Reading(
        roles=roles,
        cells=cells,
        ends=ends,
        words=words,
        facts=facts,
        of_models=[
            *(each for each in beside.values() if isinstance(each, str)),
            *(roles.get(role, role) for role in OF_MODELS),
        ],
        classes=None if label is None else of_examples[label],
    )
    if lies != "long" and (id_domains or ood_domains):
        raise InputError("domains are given, but only a long table has a column 'domain'")
    with lying(lies):
        if lies == "long":
            table = _long(frame, reading, id_domains, ood_domains, rated="id_accuracy" in beside)
        else:
            table = _matrix(frame, reading, turned=lies == "transposed")
        held = _of_models(table, beside, roles, ends if table.cells == "scores" else None)
        kept, n_missing = _complete(table, missing)
    if absent := [name for name in facts if name not in kept.examples]:
        raise unknown_name("column of facts", absent[0], frame.columns)
    known = {**kept.examples, **of_examples}
    for name in {roles.get("label", "label"), label} & set(known):
        held["labels"] = known.pop(name)
    binary = bool(((kept.answers == 0) | (kept.answers == 1)).all())
    source: dict[str, Any] = {"kind": "frame", "orientation": lies, "cells": kept.cells, "missing": n_missing}
    source["columns"] = {role: n for role, n in roles.items() if lies == "long" or role not in CELLS}
    if kept.cells == "scores":
        source["ends"] = list(ends)
    return {
        **beside,
        **held,
        "correct": kept.answers,
        "scores": not binary,
        "model_ids": kept.models.index,
        "example_ids": kept.examples.index,
        "meta": {**known, **beside.get("meta", {})},
        "source": source | beside.get("source", {}),
    }


@contextlib.contextmanager
def lying(orientation: str) -> Iterator[None]:
    """Ends an error about a table with the way it was read, and the option that turns it."""
    try:
        yield
    except InputError as error:
        others = " or ".join(each for each in LIES if each != orientation)
        raise type(error)(
            f"{error}. The table was read as {orientation}: {LIES[orientation]} (orientation=, --orientation "
            f"{others} reads it otherwise)"
        ) from error


def _with_roles(
    frame: pd.DataFrame, columns: Mapping[str, str], known: Sequence[str]
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The frame, columns named by text and none that only counts its rows; and the column of each role.

    Args:
        frame: The table.
        columns: Columns by role that the caller names.
        known: Columns of what is known of the examples, of which one may be the classes.
    """
    frame = frame.rename(columns=str)
    counted = frame.columns[0] in ("", "Unnamed: 0") and frame.shape[1] > 1
    if counted and _numbers(frame.iloc[:, 0].to_numpy()).tolist() == list(range(len(frame))):
        frame = frame.iloc[:, 1:]
    names = frame.columns
    if (twice := names[names.duplicated()]).size:
        raise InputError(f"two columns of the table are named {twice[0]!r}; names must be unique")
    for role, name in columns.items():
        check_name("role of a column", role, ROLES)
        if name not in names and not (role == "label" and name in known):
            raise unknown_name("column of the table", name, names)
    roles = dict(columns)
    for role, usual in ROLES.items():
        found = [name for name in usual if name in names and name not in columns.values()]
        if role not in roles and found:
            roles[role] = found[0]
    return frame, roles


def _numbers(cells: np.ndarray, words: Mapping[str, float] | None = None) -> Float64[np.ndarray, "*shape"]:
    """Cells as numbers, words as theirs; NaN for what is neither."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    words = words or {}

    def number(cell: Any) -> Any:
        if isinstance(cell, bool | np.bool_):
            return float(cell)
        return words.get(cell.strip().lower(), cell) if isinstance(cell, str) else cell

    values = pd.Series(cells.ravel(), dtype=object).map(number)
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(numbers.reshape(cells.shape))


def _same_class(said: np.ndarray, truth: np.ndarray) -> Float64[np.ndarray, "*shape"]:
    """1 where a predicted class is the true one, 0 where not, NaN where one of the two is missing.

    Two numbers are compared as numbers, so that 3 and 3.0 are one class, and everything else as text.
    """
    truth = np.broadcast_to(truth, said.shape)
    one, other = _numbers(said), _numbers(truth)
    present = ~pd.isna(said) & ~pd.isna(truth)
    as_numbers = np.isfinite(one) & np.isfinite(other)
    right = np.where(as_numbers, one == other, said.astype(str) == truth.astype(str))
    if present.any() and not right[present].any():
        raise InputError(
            f"no prediction is right: predictions are such as {str(said[present][0])!r}, true classes such "
            f"as {str(truth[present][0])!r}. Use the same classes in both"
        )
    return np.where(present, right.astype(np.float64), np.nan)


def _check_names(names: pd.Series | pd.Index, of: str) -> None:
    if (empty := np.flatnonzero(pd.isna(names))).size:
        raise InputError(f"the name of the {of} in row {empty[0]} is missing; fill it in")


# ---------------------------------------------------------------------------------------------- long


def _long(
    frame: pd.DataFrame,
    reading: _Reading,
    id_domains: Sequence[str] | None,
    ood_domains: Sequence[str] | None,
    *,
    rated: bool,
) -> _Table:
    """The table of a frame with a row per model and example."""
    roles = reading.roles
    for role in ("model", "example"):
        if role not in roles:
            raise unknown_name("column of the table", role, frame.columns)
        _check_names(frame[roles[role]], role)
    model, example, domain = roles["model"], roles["example"], roles.get("domain")
    frame = frame.assign(**{name: frame[name].astype(str) for name in (model, example)})
    inside, outside = _domains(frame, domain, id_domains, ood_domains)
    right, kind = _right(frame, reading)
    for rows, key in ((inside, [model, example, domain]), (outside, [model, example])):
        names = frame.loc[rows, [name for name in key if name]]
        if (twice := names[names.duplicated()]).size:
            raise InputError(
                f"model {twice[model].iloc[0]!r} has two rows for example {twice[example].iloc[0]!r}; "
                "expected one"
            )
    chosen = frame[outside]
    row, models = pd.factorize(frame[model])
    column, examples = pd.factorize(chosen[example])
    answers = np.full((len(models), len(examples)), np.nan)
    answers[row[outside], column] = right[outside]
    known = _constant(frame, model, models, reading.of_models, "model")
    if not rated and inside.any():
        if (hole := np.flatnonzero(inside & np.isnan(right))).size:
            raise InputError(
                f"{hole.size} in-distribution answers are missing, the first is one of model "
                f"{frame[model].iloc[hole[0]]!r}; fill them in, or remove these rows"
            )
        n = np.bincount(row[inside], minlength=len(models))
        if (empty := np.flatnonzero(n == 0)).size:
            raise InputError(f"model {models[empty[0]]!r} has no in-distribution row, so no accuracy")
        sums = np.bincount(row[inside], right[inside], minlength=len(models))
        known = known.assign(id_accuracy=sums / n, n_id=n)
    of_examples = _constant(chosen, example, examples, [*reading.facts, roles.get("label")], "example")
    return _Table(answers=answers, models=known, examples=of_examples, cells=kind)


def _right(frame: pd.DataFrame, reading: _Reading) -> tuple[Float64[np.ndarray, " rows"], str]:
    """The answer of each row, and what it was taken from."""
    roles, examples = reading.roles, frame[reading.roles["example"]]
    scored = [name for name in frame if str(name).startswith("p_") and str(name)[2:].isdigit()]
    there = [kind for kind in ("correct", "prediction", "score") if kind in roles]
    kind = reading.cells or next(iter(there), "prediction" if scored else "correct")
    name = roles.get(kind) or roles.get("correct")
    if kind == "prediction" and (name is not None or scored):
        label = roles.get("label")
        truth = frame[label].to_numpy() if label in frame else reading.classes_of(examples)
        if name is not None:
            return _same_class(frame[name].to_numpy(), truth), f"{name!r} compared with the class"
        p = np.stack([_numbers(frame[f"p_{k}"].to_numpy()) for k in range(len(scored))], axis=1)
        likeliest = np.where(np.isnan(p).any(axis=1), np.nan, np.nan_to_num(p).argmax(axis=1))
        return _same_class(likeliest, truth), "the likeliest class compared with the true one"
    if name is None:
        raise InputError(
            "the table has no column 'correct', 'score', 'prediction' or p_0, p_1, ... Name the answers: "
            f"columns={{'{kind}': NAME}}, --columns {kind}=NAME"
        )
    models = frame[roles["model"]]
    right = reading.answers(frame[name].to_numpy(), kind, lambda row: (models.iloc[row], examples.iloc[row]))
    return right, "scores" if kind == "score" else f"0 and 1 of {name!r}"


def _domains(
    frame: pd.DataFrame, name: str | None, inside: Sequence[str] | None, outside: Sequence[str] | None
) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Rows in and out of distribution."""
    if name is None and not inside and not outside:
        return np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool)
    if name is None:
        raise InputError("domains are given, but the table has no column 'domain'")
    column = frame[name]
    values = column.astype(object).where(column.notna(), "").astype(str)
    present = sorted(set(values))
    if inside is None and outside is None:
        if strange := [each for each in present if each not in ("id", "ood")]:
            raise InputError(
                f"the column {name!r} holds {strange[0]!r}; expected 'id' or 'ood', or say which of "
                f"{', '.join(present[:20])} are in and out of distribution (--id-envs, --ood-env)"
            )
        inside = [each for each in present if each == "id"]
    outside = ["ood"] if outside is None else outside
    inside = [each for each in present if each not in outside] if inside is None else inside
    for each in (*outside, *inside):
        check_name(f"value of the column {name!r}", each, present)
    if shared := set(inside) & set(outside):
        raise InputError(f"{min(shared)!r} is both in and out of distribution; it can only be one")
    return values.isin(list(inside)).to_numpy(), values.isin(list(outside)).to_numpy()


def _constant(
    frame: pd.DataFrame, key: str, names: Any, columns: Sequence[str | None], of: str
) -> pd.DataFrame:
    """What the columns that are there say of each name, in all of its rows the same."""
    there = [name for name in columns if name is not None and name in frame]
    for name in there:
        several = frame.groupby(key, sort=False)[name].nunique(dropna=False)
        if (two := several[several > 1]).size:
            raise InputError(f"{of} {two.index[0]!r} has two values of {name!r}; they must agree")
    return frame.drop_duplicates(key).set_index(key, drop=False)[there].reindex(names)


# ------------------------------------------------------------------------------------ wide and transposed


def _matrix(frame: pd.DataFrame, reading: _Reading, *, turned: bool) -> _Table:
    """The table of a frame whose rows are models, or examples if it is turned."""
    of, label = "example" if turned else "model", reading.roles.get("label", "label")
    key = reading.roles.get(of) or _first_texts(frame)
    table = frame if key is None else frame.set_index(key)
    _check_names(table.index, of)
    if turned and key is None and table.index.equals(pd.RangeIndex(len(table))):
        table = table.rename(index="row_{}".format)
    table = table.rename(index=str)
    if (twice := table.index[table.index.duplicated()]).size:
        raise InputError(
            f"two {of}s are named {twice[0]!r}; names must be unique. A table with a row per model and "
            "example has columns 'model' and 'example_id'"
        )
    known = (reading.of_models, [label, *reading.facts])
    across, down = known[::-1] if turned else known
    columns, rows = table.columns.isin(across), table.index.isin(down)
    answers, beside, below = (
        table.loc[~rows, ~columns],
        table.loc[~rows, columns],
        table.loc[rows, ~columns],
    )
    models, examples = (below.T, beside) if turned else (beside, below.T)
    answers = answers.T if turned else answers
    if answers.empty:
        raise InputError(f"there are no answers beside {', '.join(frame.columns[:20])}")
    raw, kind = answers.to_numpy(), reading.cells or "correct"
    if kind == "prediction":
        truth = examples[label].to_numpy() if label in examples else reading.classes_of(answers.columns)
        read_as, values = "classes compared with the true ones", _same_class(raw, truth)
    else:
        read_as = "scores" if kind == "score" else "0 and 1"
        values = reading.answers(raw, kind, lambda row, column: (answers.index[row], answers.columns[column]))
    return _Table(answers=values, models=models, examples=examples, cells=read_as)


def _first_texts(frame: pd.DataFrame) -> str | None:
    """The first column, if it holds different texts, and the index only counts."""
    first = frame.iloc[:, 0]
    if not frame.index.equals(pd.RangeIndex(len(frame))) or not pd.api.types.is_string_dtype(first):
        return None
    names = np.isnan(_numbers(first.to_numpy(dtype=object), {"true": 1.0, "false": 0.0})).all()
    return str(frame.columns[0]) if names and first.is_unique else None


# ------------------------------------------------------------------------------------------- complete


def _complete(table: _Table, missing: str) -> tuple[_Table, int]:
    """The table without missing answers, and their number.

    Raises:
        InputError: For missing answers that the rule refuses, or if the rule leaves nothing.
    """
    holes = np.isnan(table.answers)
    n = int(np.count_nonzero(holes))
    models, examples = table.models.index, table.examples.index
    rows, columns = ~holes.any(axis=1), ~holes.any(axis=0)
    left = f"drop-models keeps {rows.sum()} of {len(models)} models, drop-examples {columns.sum()} of "
    left += f"{len(examples)} examples"
    if n and missing == "refuse":
        row, column = np.argwhere(holes)[0].tolist()
        raise InputError(
            f"the answer of model {models[row]!r} on example {examples[column]!r} is missing ({n} of "
            f"{holes.size} are). Fill them in, or leave out what has holes (missing=, --missing): {left}"
        )
    if n and not (rows if missing == "drop-models" else columns).any():
        raise InputError(
            f"missing={missing!r} leaves nothing ({n} of {holes.size} answers are missing): {left}"
        )
    if n and missing == "drop-models":
        kept = dataclasses.replace(table, answers=table.answers[rows], models=table.models[rows])
    elif n:
        kept = dataclasses.replace(table, answers=table.answers[:, columns], examples=table.examples[columns])
    return (kept if n else table), n


def _of_models(
    table: _Table,
    beside: Mapping[str, Any],
    roles: Mapping[str, str],
    ends: tuple[float | int, float | int] | None,
) -> dict[str, Any]:
    """What is known of each model, as arguments of `CorrectnessData.of`."""
    held: dict[str, Any] = {}
    for role, argument in OF_MODELS.items():
        values = beside.get(argument, roles.get(role, role))
        if isinstance(values, str) and values not in table.models:
            if argument in beside:
                raise unknown_name("column of the table", values, table.models.columns)
            continue
        if isinstance(values, str):
            values = table.models[values]
        elif not isinstance(values, Mapping | pd.Series) and np.ndim(values):
            values = pd.Series(
                list(values), index=table.models.index
            )  # by name, since models may be left out
        held[argument] = values
    if ends is not None and "id_accuracy" in beside:
        worse, better = ends
        held["id_accuracy"] = (pd.Series(held["id_accuracy"]).astype(float) - worse) / (better - worse)
    return held
