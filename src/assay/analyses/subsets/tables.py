"""Tables of answers, whichever way they lie, as arguments of `CorrectnessData.of`.

A table is long (a row per model and example), wide (a row per model, a column per example) or transposed (a
row per example, a column per model). All three end as one matrix with what is known of models and examples.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from assay.analyses.subsets.arguments import bad_answer, checked_ids
from assay.core.errors import InputError, check_name, unknown_name


# What a column can hold, and its name unless the caller gives another one.
ROLES: Mapping[str, str] = {
    **{role: role for role in ("model", "correct", "prediction", "score", "label", "domain")},
    **{role: role for role in ("id_accuracy", "group", "family")},
    "example": "example_id",
}
OF_MODELS = {"id_accuracy": "id_accuracy", "group": "groups", "family": "families"}
LIES = {
    "long": "a row per model and example",
    "wide": "a row per model, a column per example",
    "transposed": "a row per example, a column per model",
}
CELLS = {"correct": "0 and 1", "prediction": "classes compared with the true ones", "score": "scores"}
MISSING = ("refuse", "drop-models", "drop-examples")
_BINARY = (
    "0 (wrong), 1 (right), true or false. Remove a column of facts; scores need --cells score, classes "
    "--cells prediction, other words --right yes --wrong no"
)

Ends = tuple[float | int, float | int]  # of scores, the worse one first
_INSIDE = "in distribution"  # a fact about the examples of a long table
Roles = Mapping[str, str]  # column of each role
Words = Mapping[str, float]  # the answer that a text is
Domains = tuple[Sequence[str] | None, Sequence[str] | None]  # in and out of distribution
Facts = tuple[Sequence[str], Sequence[str]]  # columns about models; about examples
# Cells as they were, by model and example; facts about models and about examples, a column each.
Parts = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]


@contextlib.contextmanager
def read_as(lies: str) -> Iterator[None]:
    """Errors in here name how the table was read, and the option that reads it otherwise."""
    try:
        yield
    except InputError as error:
        others = " or ".join(each for each in LIES if each != lies)
        told = f"The table was read as {lies}: {LIES[lies]} (--orientation {others} reads it otherwise)"
        raise type(error)(f"{error}. {told}") from error


def read_frame(
    frame: pd.DataFrame,
    *,
    orientation: str | None = None,
    columns: Mapping[str, str] | None = None,
    cells: str | None = None,
    scores: Ends | None = None,
    right: str | None = None,
    wrong: str | None = None,
    missing: str = "refuse",
    id_domains: Sequence[str] | None = None,
    ood_domains: Sequence[str] | None = None,
    examples: pd.DataFrame | None = None,
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
            (numbers, see `scores`). Default: `correct`; in a long frame without that column `prediction` or
            `score`, whichever is there.
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
        **beside: `id_accuracy`, `groups`, `families`: as of `CorrectnessData.of`, or the name of a column (of
            a transposed frame: a row). Default: `id_accuracy`, `group`, `family`, if there. Other arguments
            of `CorrectnessData.of` are passed on.

    Raises:
        InputError: If an answer is missing, repeated or not an answer, with its model and example; if a
            column does not exist, or facts of a model or example differ between its rows.
    """
    if (right is None) != (wrong is None):
        raise InputError("right= and wrong= (--right and --wrong) belong together; give both words")
    cells, ends = cells or (None if scores is None else "score"), scores or (0, 1)
    if not np.isfinite(ends).all() or ends[0] == ends[1]:
        raise InputError(f"scores is {ends}; give two different numbers, the worse end first")
    check_name("rule for missing answers", missing, MISSING)
    check_name("content of cells", cells or "correct", CELLS)
    of_examples = pd.DataFrame() if examples is None else examples.rename(index=str, columns=str)
    frame = frame.rename(columns=str)
    if (twice := frame.columns[frame.columns.duplicated()]).size:
        raise InputError(f"two columns of the table are named {twice[0]!r}; names must be unique")
    for role, name in (columns or {}).items():
        check_name("role of a column", role, ROLES)
        if name not in frame and not (role == "label" and name in of_examples):
            raise unknown_name("column of the table", name, frame.columns)
    roles = {role: name for role, name in ROLES.items() if name in frame} | dict(columns or {})
    lies = orientation or ("wide" if "example" not in roles else "long" if "model" in roles else "transposed")
    check_name("orientation", lies, LIES)
    if (id_domains or ood_domains) and (lies != "long" or "domain" not in roles):
        raise InputError("domains are given, but only a long table with a column 'domain' has them")
    beside = {name: value for name, value in beside.items() if value is not None}
    label, named = roles.get("label", "label"), [name for name in beside.values() if isinstance(name, str)]
    facts = [*named, *(roles.get(role, role) for role in OF_MODELS)], [label]
    with read_as(lies):
        if lies == "long":
            kind = cells or next((each for each in CELLS if each in roles), "correct")
            table, models, known_examples = _long(frame, roles, kind, (id_domains, ood_domains), facts)
        else:
            kind = cells or "correct"
            key = roles.get("model" if lies == "wide" else "example")
            table, models, known_examples = _matrix(frame, key, lies, facts)
        known: dict[str, Any] = {**of_examples, **known_examples}
        inside = np.asarray(known.pop(_INSIDE, [False] * table.shape[1]), dtype=bool)
        classes = known.pop(label, None)
        words = {(right or "true").strip().lower(): 1.0, (wrong or "false").strip().lower(): 0.0}
        answers = _answers(table, kind, classes, words, ends)
        chosen, within = answers.loc[:, ~inside], answers.loc[:, inside]
        if inside.any() and "id_accuracy" not in beside:
            # Summed one after another, as the rows of a file are.
            total = within.fillna(0).cumsum(axis=1).iloc[:, -1]
            models = models.assign(id_accuracy=total / within.notna().sum(axis=1))
        kept = _complete(chosen, missing)
        matrix = kept.to_numpy()
        source = {
            "kind": "frame",
            "orientation": lies,
            "columns": {role: name for role, name in roles.items() if lies == "long" or role not in CELLS},
            "cells": CELLS[kind],
            "missing": int(chosen.isna().to_numpy().sum()),
        }
        beside |= _of_models(models, beside, roles, ends if kind == "score" else (0, 1))
    return beside | {
        "correct": matrix,
        "scores": bool(((matrix != 0) & (matrix != 1)).any()),
        "model_ids": kept.index,
        "example_ids": kept.columns,
        "labels": beside.get("labels", classes),
        "meta": known | beside.get("meta", {}),
        "source": source | beside.get("source", {}),
    }


def _of_models(models: pd.DataFrame, given: dict[str, Any], roles: Roles, ends: Ends) -> dict[str, Any]:
    """What is known of each model, by its name, since models may be left out: arguments of `of`."""
    held: dict[str, Any] = {}
    for role, argument in OF_MODELS.items():
        values = given.get(argument, roles.get(role, role))
        if isinstance(values, str) and values in models:
            held[argument] = models[values]
        elif isinstance(values, str) and argument in given:
            raise unknown_name("column of the table", values, models.columns)
        elif not isinstance(values, str | pd.Series | Mapping) and np.ndim(values):
            held[argument] = pd.Series(list(values), index=models.index)
    if "id_accuracy" in given and ends != (0, 1):
        accuracy = pd.Series(held.get("id_accuracy", given["id_accuracy"])).astype(np.float64)
        held["id_accuracy"] = (accuracy - ends[0]) / (ends[1] - ends[0])
    return held


# ---------------------------------------------------------------------------------------- ways to lie


def _matrix(frame: pd.DataFrame, key: str | None, lies: str, facts: Facts) -> Parts:
    """The parts of a wide frame, whose rows are models, or of a transposed one."""
    of, first = "model" if lies == "wide" else "example", frame.iloc[:, 0]
    counted = key is None and frame.index.equals(pd.RangeIndex(len(frame)))
    if counted and pd.api.types.is_string_dtype(first) and first.is_unique:
        texts = np.isnan(_numbers(first.to_numpy(dtype=object), {"true": 1.0, "false": 0.0})).all()
        key = str(frame.columns[0]) if texts else None  # different texts are names
    table = frame if key is None else frame.set_index(key)
    if counted and key is None and lies == "transposed":
        table = table.rename(index="row_{}".format)
    table = table.set_axis(checked_ids(table.index, f"{of}_ids", len(table)))
    table = table.T if lies == "transposed" else table
    columns, rows = table.columns.isin(facts[0]), table.index.isin(facts[1])
    cells = table.loc[~rows, ~columns]
    if cells.empty:
        raise InputError(f"there are no answers beside {', '.join(frame.columns[:20])}")
    return cells, table.loc[~rows, columns].infer_objects(), table.loc[rows, ~columns].T.infer_objects()


def _long(frame: pd.DataFrame, roles: Roles, kind: str, domains: Domains, facts: Facts) -> Parts:
    """The parts of a frame with a row per model and example, some of them in distribution."""
    for role in ("model", "example"):
        if role not in roles:
            raise unknown_name("column of the table", role, frame.columns)
    answer = roles.get(kind, roles.get("correct"))
    if answer is None:
        raise InputError(f"the table has no column of answers; name it (columns=, --columns {kind}=NAME)")
    model, example = key = [roles["model"], roles["example"]]
    frame = frame.assign(**{name: frame[name].astype(str) for name in key})
    models = _constant(frame, model, facts[0])
    frame = frame.assign(**{_INSIDE: False})
    if "domain" in roles:
        frame[_INSIDE], outside = _domains(frame[roles["domain"]], *domains)
        # An example in distribution is not that of the same name out of it.
        where = frame[roles["domain"]].astype(str) + "/" + frame[example]
        frame[example] = frame[example].where(~frame[_INSIDE], where)
        frame = frame[frame[_INSIDE] | outside]
        if len(hole := frame[frame[_INSIDE] & frame[answer].isna()]):
            raise InputError(
                f"{len(hole)} in-distribution answers are missing, the first is one of model "
                f"{hole[model].iloc[0]!r}; fill them in, or remove these rows"
            )
    if len(twice := frame[frame.duplicated(key)]):
        one, other = twice[key].iloc[0]
        raise InputError(f"model {one!r} has two rows for example {other!r}; expected one")
    examples = _constant(frame, example, [*facts[1], _INSIDE])
    cells = frame.pivot(index=model, columns=example, values=answer)
    return cells.reindex(index=models.index, columns=examples.index), models, examples


def _domains(column: "pd.Series[Any]", inside: Any, outside: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows in and out of distribution."""
    values = column.astype(object).fillna("").astype(str)
    present = sorted(set(values))
    if inside is None and outside is None and not set(present) <= {"id", "ood"}:
        raise InputError(
            f"the column {column.name!r} does not hold 'id' and 'ood'; say which of "
            f"{', '.join(present[:20])} are in and out of distribution (--id-envs, --ood-env)"
        )
    outside = ["ood"] if outside is None else outside
    inside = [each for each in present if each not in outside] if inside is None else inside
    for each in (*outside, *inside):
        check_name(f"value of the column {column.name!r}", each, present)
        if each in outside and each in inside:
            raise InputError(f"{each!r} is both in and out of distribution; it can only be one")
    return values.isin(inside).to_numpy(), values.isin(outside).to_numpy()


def _constant(frame: pd.DataFrame, key: str, columns: Sequence[str]) -> pd.DataFrame:
    """What the columns that are there say of each name, in all of its rows the same."""
    there = [name for name in columns if name in frame]
    for name in there:
        several = frame.groupby(key, sort=False)[name].nunique(dropna=False)
        if (two := several[several > 1]).size:
            raise InputError(f"{key} {two.index[0]!r} has two values of {name!r}; they must agree")
    return frame.drop_duplicates(key).set_index(key, drop=False)[there]


# -------------------------------------------------------------------------------------------- answers


def _answers(cells: pd.DataFrame, kind: str, classes: Any, words: Words, ends: Ends) -> pd.DataFrame:
    """Answers: 1 right, 0 wrong, scores between; NaN where there is none.

    Raises:
        InputError: If a cell is neither an answer nor missing.
    """
    raw, expected = cells.to_numpy(), _BINARY
    if kind == "prediction":
        return _same_class(cells, classes)
    values = _numbers(raw, words)
    valid = (values == 0) | (values == 1)
    if kind == "score":
        worse, better = ends
        values = (values - worse) / (better - worse)
        valid = (values >= 0) & (values <= 1)
        expected = f"a score from {worse:g}, the worse end, to {better:g} (--scores 5,0 states others)"
    if len(bad := np.argwhere(~valid & ~pd.isna(raw))):
        row, column = bad[0].tolist()
        raise bad_answer(cells.index[row], cells.columns[column], raw[row, column], len(bad), expected)
    return pd.DataFrame(values, index=cells.index, columns=cells.columns)


def _numbers(cells: np.ndarray, words: Words | None = None) -> np.ndarray:
    """Cells as numbers, words as theirs; NaN for what is neither."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    codes, kinds = pd.factorize(cells.ravel())  # each different cell is read once; -1: missing
    known = words or {}
    values = [known.get(kind.strip().lower(), kind) if isinstance(kind, str) else kind for kind in kinds]
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return np.append(numbers, np.nan)[codes].reshape(cells.shape)


def _same_class(cells: pd.DataFrame, classes: "pd.Series[Any] | None") -> pd.DataFrame:
    """1 where a predicted class is the true one of its column, 0 where not, NaN where one is missing.

    Two numbers are compared as numbers, so that 3 and 3.0 are one class, and everything else as text.
    """
    if classes is None:
        raise InputError("predictions need the true classes; give a column 'label'")
    said, truth = cells.to_numpy(), np.broadcast_to(classes.reindex(cells.columns).to_numpy(), cells.shape)
    present = ~pd.isna(said) & ~pd.isna(truth)
    right = (said.astype(str) == truth.astype(str)) | (_numbers(said) == _numbers(truth))
    if present.any() and not right[present].any():
        raise InputError(
            f"no prediction is right: predictions are such as {str(said[present][0])!r}, true classes such "
            f"as {str(truth[present][0])!r}. Use the same classes in both"
        )
    return pd.DataFrame(np.where(present, right, np.nan), cells.index, cells.columns)


def _complete(answers: pd.DataFrame, rule: str) -> pd.DataFrame:
    """The answers of the models and on the examples that are kept, so that none is missing.

    Raises:
        InputError: For missing answers that the rule refuses, or if the rule leaves nothing.
    """
    holes = answers.isna().to_numpy()
    if not holes.any():
        return answers
    kept = {"drop-models": answers.dropna(), "drop-examples": answers.dropna(axis=1)}
    row, column = np.argwhere(holes)[0]
    if rule == "refuse" or kept[rule].empty:
        raise InputError(
            f"the answer of model {answers.index[row]!r} on example {answers.columns[column]!r} is missing "
            f"({np.count_nonzero(holes)} of {holes.size} are). Fill them in, or leave out what has holes "
            f"(missing=, --missing): drop-models keeps {len(kept['drop-models'])} of {len(answers)} models, "
            f"drop-examples {kept['drop-examples'].shape[1]} of {answers.shape[1]} examples"
        )
    return kept[rule]
