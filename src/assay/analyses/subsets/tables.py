"""Tables of answers, whichever way they lie, as `CorrectnessData`.

A table is long (a row per model and example), wide (a row per model, a column per example) or transposed (a
row per example, a column per model). All three end as one matrix with what is known of models and examples.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64

from assay.analyses.subsets.arguments import bad_answer, checked_ids
from assay.analyses.subsets.data import CorrectnessData
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
CELLS = {"correct": "0 and 1", "prediction": "classes compared with the true ones", "score": "scores"}
MISSING = ("refuse", "drop-models", "drop-examples")
_BINARY = (
    "0 (wrong), 1 (right), true or false. Remove the column or row if it does not hold answers; scores need "
    "cells='score' (--cells score), classes cells='prediction' (--cells prediction), words right= and wrong= "
    "(e.g. --right yes --wrong no)"
)

Names = Sequence[str]
Facts = tuple[Names, Names]  # columns about models; about examples, their classes first
Domains = tuple[Names | None, Names | None]  # in and out of distribution
Ends = tuple[float | int, float | int]  # of scores, the worse one first


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
    facts: Sequence[str] = (),
    **beside: Any,
) -> CorrectnessData:
    """The data that a frame holds.

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
    if (right is None) != (wrong is None):
        raise InputError("right= and wrong= (--right and --wrong) belong together; give both words")
    cells, ends = cells or (None if scores is None else "score"), scores or (0, 1)
    if not np.isfinite(ends).all() or ends[0] == ends[1]:
        raise InputError(f"scores is {ends}; give two different numbers, the worse end first")
    check_name("rule for missing answers", missing, MISSING)
    check_name("content of cells", cells or "correct", CELLS)
    of_examples = pd.DataFrame() if examples is None else examples.rename(index=str, columns=str)
    frame, roles = _with_roles(frame, columns or {}, of_examples)
    both = "model" in roles and "example" in roles
    lies = orientation or ("long" if both else "transposed" if "example" in roles else "wide")
    check_name("orientation", lies, LIES)
    if (id_domains or ood_domains) and (lies != "long" or "domain" not in roles):
        raise InputError("domains are given, but only a long table with a column 'domain' has them")
    beside = {name: value for name, value in beside.items() if value is not None}
    named = [value for value in beside.values() if isinstance(value, str)]
    label, of_models = roles.get("label", "label"), [*named, *(roles.get(role, role) for role in OF_MODELS)]
    try:
        if lies == "long":
            table = _long(frame, roles, cells, (id_domains, ood_domains), (of_models, [label, *facts]))
        else:
            key = roles.get("model" if lies == "wide" else "example")
            table = _matrix(frame, key, lies, cells, (of_models, [label, *facts]))
        if absent := [name for name in facts if name not in table.examples]:
            raise unknown_name("column of facts", absent[0], frame.columns)
        known: dict[str, Any] = {**of_examples, **table.examples}
        classes = known.pop(next((name for name in (label, *ROLES["label"]) if name in known), ""), None)
        words = {(right or "true").strip().lower(): 1.0, (wrong or "false").strip().lower(): 0.0}
        answers = _answers(table, classes, words, ends)
        chosen, models = answers.loc[:, ~table.inside], table.models
        if table.inside.any() and "id_accuracy" not in beside:
            within = answers.loc[:, table.inside]
            n = within.notna().sum(axis=1)
            # Summed one after another, as the rows of a file are.
            models = models.assign(id_accuracy=within.fillna(0).cumsum(axis=1).iloc[:, -1] / n, n_id=n)
        kept = _complete(chosen, missing)
        matrix = kept.to_numpy()
        source = {
            "kind": "frame",
            "orientation": lies,
            "columns": {role: name for role, name in roles.items() if lies == "long" or role not in CELLS},
            "cells": CELLS[table.kind],
            "missing": int(chosen.isna().to_numpy().sum()),
            **({"ends": list(ends)} if table.kind == "score" else {}),
        }
        beside |= _of_models(models, beside, roles, ends if table.kind == "score" else (0, 1))
        beside |= {} if classes is None else {"labels": classes}
        beside["meta"] = known | beside.get("meta", {})
        beside["source"] = source | beside.get("source", {})
        beside["model_ids"], beside["example_ids"] = kept.index, kept.columns
        return CorrectnessData.of(matrix, scores=bool(((matrix != 0) & (matrix != 1)).any()), **beside)
    except InputError as error:
        others = " or ".join(each for each in LIES if each != lies)
        raise type(error)(
            f"{error}. The table was read as {lies}: {LIES[lies]} (orientation=, --orientation {others} "
            "reads it otherwise)"
        ) from error


def _with_roles(
    frame: pd.DataFrame, columns: Mapping[str, str], of_examples: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The frame, columns named by text and none that only counts its rows; and the column of each role."""
    frame = frame.rename(columns=str)
    counted = frame.columns[0] in ("", "Unnamed: 0") and frame.shape[1] > 1
    if counted and _numbers(frame.iloc[:, 0].to_numpy()).tolist() == list(range(len(frame))):
        frame = frame.iloc[:, 1:]
    names = frame.columns
    if (twice := names[names.duplicated()]).size:
        raise InputError(f"two columns of the table are named {twice[0]!r}; names must be unique")
    for role, name in columns.items():
        check_name("role of a column", role, ROLES)
        if name not in names and not (role == "label" and name in of_examples):
            raise unknown_name("column of the table", name, names)
    free = set(names) - set(columns.values())
    found = {role: next((name for name in usual if name in free), None) for role, usual in ROLES.items()}
    return frame, {**{role: name for role, name in found.items() if name is not None}, **columns}


def _of_models(
    models: pd.DataFrame, given: Mapping[str, Any], roles: Mapping[str, str], ends: Ends
) -> dict[str, Any]:
    """What is known of each model, by its name, since models may be left out: arguments of `of`."""
    held: dict[str, Any] = {}
    for role, argument in OF_MODELS.items():
        values = given.get(argument, roles.get(role, role))
        if isinstance(values, str) and values in models:
            held[argument] = models[values]
        elif isinstance(values, str) and argument in given:
            raise unknown_name("column of the table", values, models.columns)
        elif not isinstance(values, str | pd.Series) and np.ndim(values):
            held[argument] = pd.Series(list(values), index=models.index)
    if "id_accuracy" in given and ends != (0, 1):
        accuracy = pd.Series(held.get("id_accuracy", given["id_accuracy"])).astype(np.float64)
        held["id_accuracy"] = (accuracy - ends[0]) / (ends[1] - ends[0])
    return held


# ---------------------------------------------------------------------------------------- ways to lie


class _Table(NamedTuple):
    """A table of any orientation.

    Attributes:
        cells: As they were, `[M, N]`, by model and example.
        kind: One of `CELLS`.
        models: Facts about the models, a column each.
        examples: Facts about the examples.
        inside: Which examples are in distribution.
    """

    cells: pd.DataFrame
    kind: str
    models: pd.DataFrame
    examples: pd.DataFrame
    inside: Bool[np.ndarray, " n"]


def _matrix(frame: pd.DataFrame, key: str | None, lies: str, kind: str | None, facts: Facts) -> _Table:
    """The table of a wide frame, whose rows are models, or of a transposed one."""
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
    models, examples = table.loc[~rows, columns].infer_objects(), table.loc[rows, ~columns].T.infer_objects()
    return _Table(cells, kind or "correct", models, examples, np.zeros(cells.shape[1], dtype=bool))


def _long(
    frame: pd.DataFrame, roles: Mapping[str, str], kind: str | None, domains: Domains, facts: Facts
) -> _Table:
    """The table of a frame with a row per model and example, some of them in distribution."""
    for role in ("model", "example"):
        if role not in roles:
            raise unknown_name("column of the table", role, frame.columns)
    scored = sum(re.fullmatch(r"p_\d+", str(name)) is not None for name in frame)
    kind = kind or next((each for each in CELLS if each in roles), "prediction" if scored else "correct")
    answer = roles.get(kind, roles.get("correct"))
    if answer is None and kind == "prediction" and scored:
        p = np.stack([_numbers(frame[f"p_{k}"].to_numpy()) for k in range(scored)], axis=1)
        answer, likeliest = "likeliest class", np.nan_to_num(p).argmax(axis=1)
        frame = frame.assign(**{answer: np.where(np.isnan(p).any(axis=1), np.nan, likeliest)})
    if answer is None:
        raise InputError(
            "the table has no column 'correct', 'score', 'prediction' or p_0, p_1, ... Name the answers: "
            f"columns={{'{kind}': NAME}}, --columns {kind}=NAME"
        )
    model, example = key = [roles["model"], roles["example"]]
    frame = frame.assign(**{name: frame[name].astype(str) for name in key})
    models, (inside, outside) = (
        _constant(frame, model, facts[0]),
        _domains(frame, roles.get("domain"), *domains),
    )
    if inside.any():  # where an example is not that of the same name out of distribution
        where = frame[roles["domain"]].astype(str) + "/" + frame[example]
        frame[example] = where.where(inside, frame[example])
        if len(hole := frame[inside & frame[answer].isna()]):
            raise InputError(
                f"{len(hole)} in-distribution answers are missing, the first is one of model "
                f"{hole[model].iloc[0]!r}; fill them in, or remove these rows"
            )
    within, frame = set(frame.loc[inside, example]), frame[inside | outside]
    if len(twice := frame[frame.duplicated(key)]):
        one, other = twice[key].iloc[0]
        raise InputError(f"model {one!r} has two rows for example {other!r}; expected one")
    examples = _constant(frame, example, facts[1])
    cells = frame.pivot(index=model, columns=example, values=answer)
    cells = cells.reindex(index=models.index, columns=examples.index)
    return _Table(cells, kind, models, examples, cells.columns.isin(within))


def _domains(
    frame: pd.DataFrame, name: str | None, inside: Names | None, outside: Names | None
) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Rows in and out of distribution."""
    if name is None:
        return np.zeros(len(frame), dtype=bool), np.ones(len(frame), dtype=bool)
    values = frame[name].astype(object).fillna("").astype(str)
    present = sorted(set(values))
    strange = [each for each in present if each not in ("id", "ood")]
    if strange and inside is None and outside is None:
        raise InputError(
            f"the column {name!r} holds {strange[0]!r}; expected 'id' or 'ood', or say which of "
            f"{', '.join(present[:20])} are in and out of distribution (--id-envs, --ood-env)"
        )
    outside = ["ood"] if outside is None else outside
    inside = [each for each in present if each not in outside] if inside is None else inside
    for each in (*outside, *inside):
        check_name(f"value of the column {name!r}", each, present)
    if shared := set(inside) & set(outside):
        raise InputError(f"{min(shared)!r} is both in and out of distribution; it can only be one")
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


def _answers(
    table: _Table, classes: pd.Series | None, words: Mapping[str, float], ends: Ends
) -> pd.DataFrame:
    """Answers: 1 right, 0 wrong, scores between; NaN where there is none.

    Raises:
        InputError: If a cell is neither an answer nor missing.
    """
    cells, (worse, better), expected = table.cells, ends, _BINARY
    raw = cells.to_numpy()
    values = _numbers(raw, words) if table.kind != "prediction" else _same_class(cells, classes)
    valid = (values == 0) | (values == 1)
    if table.kind == "score":
        values = (values - worse) / (better - worse)
        valid = (values >= 0) & (values <= 1)
        expected = (
            f"a score from {worse:g}, the worse end, to {better:g}; state other ends with scores=(5, 0), "
            "--scores 5,0 for a loss of at most 5"
        )
    if table.kind != "prediction" and len(bad := np.argwhere(~valid & ~pd.isna(raw))):
        row, column = bad[0].tolist()
        raise bad_answer(cells.index[row], cells.columns[column], raw[row, column], len(bad), expected)
    return pd.DataFrame(values, index=cells.index, columns=cells.columns)


def _numbers(cells: np.ndarray, words: Mapping[str, float] | None = None) -> Float64[np.ndarray, "*shape"]:
    """Cells as numbers, words as theirs; NaN for what is neither."""
    if cells.dtype.kind in "biuf":
        return cells.astype(np.float64)
    codes, kinds = pd.factorize(cells.ravel())  # each different cell is read once; -1: missing
    known = words or {}
    values = [known.get(kind.strip().lower(), kind) if isinstance(kind, str) else kind for kind in kinds]
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    return np.append(numbers, np.nan)[codes].reshape(cells.shape)


def _same_class(cells: pd.DataFrame, classes: pd.Series | None) -> Float64[np.ndarray, "m n"]:
    """1 where a predicted class is the true one of its column, 0 where not, NaN where one is missing.

    Two numbers are compared as numbers, so that 3 and 3.0 are one class, and everything else as text.
    """
    if classes is None:
        raise InputError("predictions need the true classes; give a column 'label'")
    said = cells.to_numpy()
    truth = np.broadcast_to(classes.reindex(cells.columns).to_numpy(), said.shape)
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


def _complete(answers: pd.DataFrame, rule: str) -> pd.DataFrame:
    """The answers of the models and on the examples that are kept, so that none is missing.

    Raises:
        InputError: For missing answers that the rule refuses, or if the rule leaves nothing.
    """
    holes = answers.isna().to_numpy()
    if not holes.any():
        return answers
    kept = {"drop-models": answers.dropna(), "drop-examples": answers.dropna(axis=1)}
    n = f"{np.count_nonzero(holes)} of {holes.size}"
    left = f"drop-models keeps {len(kept['drop-models'])} of {len(answers)} models, drop-examples "
    left += f"{kept['drop-examples'].shape[1]} of {answers.shape[1]} examples"
    if rule == "refuse":
        row, column = np.argwhere(holes)[0]
        raise InputError(
            f"the answer of model {answers.index[row]!r} on example {answers.columns[column]!r} is missing "
            f"({n} are). Fill them in, or leave out what has holes (missing=, --missing): {left}"
        )
    if kept[rule].empty:
        raise InputError(f"missing={rule!r} leaves nothing ({n} answers are missing): {left}")
    return kept[rule]
