"""The arguments of `CorrectnessData.of` from a table of answers, whichever way it lies.

A table is long (a row per model and example), wide (a row per model, a column per example) or transposed (a
row per example, a column per model). All three end as one matrix with what is known of models and examples;
`source` says how they were understood.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.subsets._checks import by_name
from assay.analyses.subsets.cells import check_holes, numbers, scaled
from assay.analyses.subsets.header import (
    ANSWERS,
    Header,
    PerModel,
    lying,
    orientation_of,
    with_names,
)
from assay.analyses.subsets.table_answers import (
    CELLS,
    CellOptions,
    DomainRoles,
    constant,
    countable,
    long_answers,
    matrix_answers,
    plain_column,
)
from assay.core.errors import InputError, check_name, unknown_name


if TYPE_CHECKING:
    import pandas as pd


def read_frame(
    frame: "pd.DataFrame",
    *,
    id_accuracy: PerModel | None = None,
    columns: Mapping[str, str] | None = None,
    orientation: str | None = None,
    cells: str | None = None,
    scores: tuple[float | int, float | int] | None = None,
    missing: str = "refuse",
    id_domains: Sequence[str] | None = None,
    ood_domains: Sequence[str] | None = None,
    group: PerModel | None = None,
    family: PerModel | None = None,
    n_id: PerModel | None = None,
    meta: Sequence[str] = (),
    examples: "pd.DataFrame | None" = None,
    unrated: bool = False,
    **facts: Any,
) -> dict[str, Any]:
    """Read a pandas frame: long, wide or transposed.

    A long frame has a column of models and a column of examples or answers. A wide one has the names of the
    models as index, in a column `model` or in a first column of text; a transposed one those of the examples.
    Without a column of either, the names in `id_accuracy` and `examples`, or a column of true classes, tell
    which way the frame lies; it is taken as wide where nothing does.

    Args:
        frame: The frame.
        id_accuracy: Accuracy of each model in distribution: the name of a column (of a transposed frame: of a
            row), a mapping or series from the model, or a sequence in the order of the models. Default:
            `id_accuracy`, if there is one, else the share of right answers in the rows in distribution.
        columns: Names of columns by role, e.g. `{"model": "run", "example": "uid"}`. The roles are those of
            `ROLES`; `prediction` and `probability` (of class 1) are compared with `label`, as is the largest
            of `p_0`, `p_1`, ...
        orientation: `long`, `wide` or `transposed`. Default: found out.
        cells: What cells hold: `correct` (0 and 1, true and false), `prediction` (classes, compared with
            `label`) or `score` (higher is better, see `scores`). Default: found out, but `score` only
            with `scores` or a column of that role.
        scores: Worse and better end of the scores, which are mapped onto 0 to 1, as is a given `id_accuracy`.
            Default: 0 and 1.
        missing: What to do with missing cells: `refuse`, `drop`, `drop-models` or `drop-examples`; see
            `cells.complete_part`.
        id_domains: Values of the column `domain` in distribution. Default: `id`; all others if `ood_domains`
            is given.
        ood_domains: Values of `domain` whose rows enter the matrix. Default: `ood`.
        group: Training run of each model, given as `id_accuracy` is. Default: the column `group`, if any.
        family: Family of each model, likewise. Default: the column `family`, if any.
        n_id: Examples behind each accuracy: a number, or given as `id_accuracy` is. Default: the column
            `n_id`, counted, or not known.
        meta: Columns of a long or transposed frame that say something about the example.
        examples: What is known of the examples: indexed by their names, a column each; a column `label` is
            the class.
        unrated: As for `CorrectnessData.of`.
        **facts: As for `CorrectnessData.of`: `label_names`, `embedding`, `id_embedding`, `images`, `source`.

    Returns:
        Arguments of `CorrectnessData.of`, models and examples in the order in which they first appear.

    Raises:
        InputError: If a cell is missing, repeated or not an answer, with its model and example; if a column
            does not exist, or what belongs to a model or example differs between its rows. The message ends
            with the orientation that was read.
    """
    if not len(frame):
        raise InputError("the table has no rows")
    frame = with_names(frame)
    header = Header(frame, columns or {}, examples)
    cells = cells or (None if scores is None else "score")
    if cells is not None:
        check_name("content of cells", cells, CELLS)
    if scores is not None and cells != "score":
        raise InputError(
            f"scores= (--scores) has no effect with cells={cells!r} (--cells {cells}); remove one of them"
        )
    of_models = {"id_accuracy": id_accuracy, "n_id": n_id, "group": group, "family": family}
    lies = orientation_of(frame, header, orientation, id_accuracy, examples)
    reading = CellOptions(cells, scores, _labels(examples, header), tuple(meta))
    with lying(lies):
        column = header.get("domain") if lies == "long" else None
        if column is None and (id_domains or ood_domains):
            raise InputError("domains are given, but the table has no column 'domain'")
        if lies == "long":
            domains = DomainRoles(column, id_domains, ood_domains, id_accuracy is not None)
            table, held = long_answers(frame, header, reading, domains)
        else:
            named = {each for each in of_models.values() if isinstance(each, str)}
            table, held = matrix_answers(frame, header, reading, named, turned=lies == "transposed")
        held = _without_holes(_of_models(table, held, of_models, header, scores, unrated=unrated), missing)
        if examples is not None:
            held |= _known(examples, held["example_ids"], header.truth, held["meta"])
    if "unnamed" in held["understood"]:  # places are no names
        held["example_ids"] = np.array([f"row_{place}" for place in held["example_ids"]])
    columns_read = {
        role: name for role, name in header.found.items() if lies == "long" or role not in ANSWERS
    }
    understood = {"orientation": lies, "columns": columns_read} | held.pop("understood")
    if understood["answers"].startswith("scores"):
        understood["ends"] = list(scores or (0, 1))
    scored = held["correct"].dtype == np.float32
    return {"source": {"kind": "frame"} | understood, "scores": scored, "unrated": unrated, **held, **facts}


def framed(frame: "pd.DataFrame", given: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Arguments of `CorrectnessData.of` from a frame, with those given beside it instead of its own.

    Args:
        frame: As for `read_frame`.
        given: Other arguments of `CorrectnessData.of`, None where not given. Columns of `meta` and entries of
            `source` join those of the frame.
        **options: As for `read_frame`.
    """
    if given["model_ids"] is not None or given["example_ids"] is not None:
        raise InputError("a frame already names its models and examples; remove model_ids and example_ids")
    roles = {"id_accuracy": "id_accuracy", "groups": "group", "families": "family", "n_id": "n_id"}
    held = read_frame(frame, **{role: given[name] for name, role in roles.items()}, **options)
    beside = {name: each for name, each in given.items() if each is not None and name not in roles}
    return held | beside | {name: {**held[name], **beside.get(name, {})} for name in ("meta", "source")}


def _labels(examples: "pd.DataFrame | None", header: Header) -> dict[str, Any]:
    """The true class of each example that a frame of examples knows."""
    if examples is None or header.truth is None:
        return {}
    return dict(zip(map(str, examples.index), examples[header.truth].tolist(), strict=True))


def _of_models(
    table: "pd.DataFrame",
    held: dict[str, Any],
    given: Mapping[str, PerModel | None],
    header: Header,
    scores: tuple[float | int, float | int] | None,
    *,
    unrated: bool,
) -> dict[str, Any]:
    """What is held, with what is known of each model, in their order."""
    names = held["model_ids"]
    found, taken = dict(held), "rows in distribution"
    for role, values in given.items():
        argument = {"group": "groups", "family": "families"}.get(role, role)
        column = header.get(role) or role
        values = column if values is None and column in table.columns else values
        if role == "id_accuracy" and values is not None:
            taken = f"column {values!r}" if isinstance(values, str) else "given by model"
        if isinstance(values, str):
            values = _column_of_models(table, values, names, argument)
        if values is not None:
            one_number = role == "n_id" and np.ndim(values) == 0 and not isinstance(values, Mapping)
            found[argument] = values if one_number else by_name(values, names, argument)
    if found.get("id_accuracy") is None and unrated:
        found["id_accuracy"], taken = np.full(len(names), np.nan), "not given"
    elif found.get("id_accuracy") is None:
        raise InputError(
            "id_accuracy is missing, and the frame has no in-distribution rows. Give the accuracy of each "
            "model: a column 'id_accuracy', a mapping from its name, a file (--id-accuracy), or rows whose "
            "column 'domain' is 'id'"
        )
    rated = _shares(found["id_accuracy"], names)
    if scores is not None and taken not in ("rows in distribution", "not given"):
        rated = scaled(rated, scores, "values of id_accuracy, which are scores too,")
        taken += f", mapped from {scores[0]:g} (worse) and {scores[1]:g} (better)"
    found["id_accuracy"] = rated
    if found.get("n_id") is not None:
        found["n_id"] = _whole(np.asarray(found["n_id"]))
    return found | {"understood": found["understood"] | {"id_accuracy": taken}}


def _shares(given: Any, names: Sequence[str]) -> Any:
    """Accuracies as numbers; their range and number are checked with those of any other data."""
    import pandas as pd

    values = numbers(pd.Series(list(given), dtype=object))
    bad = [place for place, each in enumerate(given) if np.isnan(values[place]) and isinstance(each, str)]
    if bad:
        raise InputError(
            f"id_accuracy of model {names[bad[0]]!r} is {given[bad[0]]!r}; expected a share from 0 to 1"
        )
    return values


def _whole(counts: np.ndarray) -> np.ndarray:
    """Counts that a table holds as floats or objects, as whole numbers where they are."""
    if counts.dtype.kind in "fO":
        as_numbers = counts.astype(np.float64)
        if (as_numbers == np.floor(as_numbers)).all():
            return as_numbers.astype(np.int64)
    return counts


def _without_holes(held: dict[str, Any], missing: str) -> dict[str, Any]:
    """What is held of the models and examples that are kept; answers as 0 and 1 where they are."""
    held, values, ids = dict(held), held["correct"], held["example_ids"]
    names = held["model_ids"]
    models, examples, n = check_holes(values, names, ids.tolist(), missing)
    if n:
        values = values[np.ix_(models, examples)]
        held["example_ids"] = ids[examples]
        held["meta"] = {name: column[examples] for name, column in held["meta"].items()}
        held |= {name: held[name][examples] for name in ("labels",) if name in held}
        for name in ("model_ids", "id_accuracy", "groups", "families", "n_id"):
            if held.get(name) is not None and np.ndim(held[name]):
                held[name] = np.asarray(held[name])[models]
    held["understood"] |= {
        "missing": n,
        "left_out": {"models": len(names) - len(models), "examples": len(ids) - len(examples)},
    }
    binary = bool(((values == 0) | (values == 1)).all())
    return held | {"correct": values.astype(np.uint8 if binary else np.float32)}


def _known(
    examples: "pd.DataFrame", ids: np.ndarray, label: str | None, meta: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Columns of a frame of examples, in the order of the matrix, beside those that are known."""
    table = examples.set_axis(examples.index.astype(str), axis=0)
    if table.index.has_duplicates:
        raise InputError(f"examples lists {table.index[table.index.duplicated()][0]!r} twice")
    if missing := [name for name in ids.tolist() if name not in table.index]:
        raise InputError(
            f"examples has no row {missing[0]!r} ({len(missing)} examples of the frame are missing)"
        )
    columns = {str(name): plain_column(table.loc[ids.tolist(), name].to_numpy()) for name in table.columns}
    labels = {"labels": countable(columns.pop(label))} if label in columns else {}
    return labels | {"meta": {**meta, **columns}}


def _column_of_models(table: "pd.DataFrame", name: str, names: Sequence[str], argument: str) -> np.ndarray:
    """A column that says something of each model: of all its rows the same."""
    import pandas as pd

    if name not in table.columns:
        raise unknown_name("column of the table", name, map(str, table.columns))
    codes = pd.Index(list(names)).get_indexer(table.index)
    values = constant(table[name], codes, names, f"model {{}} has two values of {name!r}")
    if len(empty := np.flatnonzero(pd.isna(values))):
        raise InputError(f"{argument}: model {names[int(empty[0])]!r} has no {name!r}; fill it in")
    return values
