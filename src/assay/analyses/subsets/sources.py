"""Correctness data from what is at hand: a zoo of models, scikit-learn estimators, or a pandas frame."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.data import CorrectnessData
from assay.core.errors import InputError, ShapeError, unknown_name


if TYPE_CHECKING:
    import pandas as pd

    from assay.tasks.images import ImageSet
    from assay.zoo import Zoo

Progress = Callable[[str, int, int], None]
PerModel = Any  # name of a column, mapping or series from the model, or a sequence in the order of the models


def from_zoo(
    zoo: "Zoo",
    images: "ImageSet",
    *,
    id_images: "ImageSet | None" = None,
    batch_size: int | None = None,
    device: str | None = None,
    keep: bool | None = None,
    progress: Progress | None = None,
) -> CorrectnessData:
    """Ask every trained model of a zoo about out-of-distribution images.

    Args:
        zoo: The zoo; each of its models is a training run of its own.
        images: Labelled, out of distribution.
        id_images: Labelled, in distribution, held out of training. Default: the accuracies that the zoo knows
            from its validation.
        batch_size: Images per pass. Default: by free memory.
        device: Where to run. Default: the CPU.
        keep: Read and write the zoo's records. Default: unless it is the embedded one.
        progress: Called with the stage, the models done and all models.

    Returns:
        Families are what the models started from, where the zoo knows it; the images and the facts about them
        that two of them share come along.

    Raises:
        InputError: If an in-distribution accuracy is not known, labels are missing, or two images have one
            id.
        AssayError: Of `assay.zoo.correctness`.
    """
    from assay.zoo.records import correctness

    found = correctness(
        zoo,
        images,
        id_images=id_images,
        batch_size=batch_size,
        device=device,
        keep=keep,
        progress=progress,
    )
    unknown = [key for key, y in zip(found.keys, found.id_accuracy, strict=True) if np.isnan(y)]
    if unknown:
        raise InputError(
            f"the in-distribution accuracy of {len(unknown)} models of the zoo is not known, e.g. of "
            f"{unknown[0]}; give id_images, labelled images like those of their training"
        )
    columns = {name: np.asarray(values) for name, values in images.fields.items()}
    return CorrectnessData.of(
        found.correct,
        found.id_accuracy,
        model_ids=found.keys,
        groups=found.keys,
        families=None if found.families == found.keys else found.families,
        example_ids=[f"{found.domain}/{number}" for number in found.ids],
        n_id=found.n_id or None,
        labels=found.labels,
        label_names=images.classes,
        meta={name: column for name, column in columns.items() if _tells(column)},
        images=images.pixels,
        source={
            "kind": "zoo",
            "zoo": zoo.name,
            "images": images.name,
            "domain": images.domain,
            "id_images": None if id_images is None else id_images.name,
        },
    )


def _tells(column: np.ndarray) -> bool:
    """Whether a fact could tell a subset apart: a number, or text that images share, unlike file names."""
    if column.ndim != 1 or column.dtype.kind not in "biufU":
        return False
    return column.dtype.kind != "U" or len(np.unique(column)) < len(column)


# ----------------------------------------------------------------------------------------------- estimators


def from_estimators(
    estimators: Mapping[str, Any] | Iterable[tuple[str, Any]],
    X_id: Any,
    y_id: Any,
    X_ood: Any,
    y_ood: Any,
    *,
    groups: PerModel | None = None,
    families: PerModel | None = None,
    progress: Progress | None = None,
    **facts: Any,
) -> CorrectnessData:
    """Ask fitted scikit-learn classifiers about in- and out-of-distribution rows.

    Args:
        estimators: Fitted classifiers by name, or pairs of name and classifier; anything with `predict`.
        X_id: In-distribution rows that none was fitted on, as the classifiers take them.
        y_id: Their classes.
        X_ood: Out-of-distribution rows.
        y_ood: Their classes.
        groups: Training run of each: a mapping from its name, or a sequence. Default: not known.
        families: Family of each, likewise. Default: the class of the estimator, of the last step of a
            pipeline, of the best estimator of a search.
        progress: Called with `predict`, the estimators done and all estimators.
        **facts: What else is known of the examples, as for `CorrectnessData.of`: `example_ids`,
            `label_names`, `meta`, `embedding`, `id_embedding`, `images`, `source`.

    Raises:
        InputError: If two estimators share a name, one is not fitted or predicts no classes, or classes are
            NaN.
        ShapeError: If rows and classes differ in number.
    """
    pairs = list(estimators.items() if isinstance(estimators, Mapping) else estimators)
    names = _unique([str(name) for name, _ in pairs])
    within, outside = _classes(y_id, X_id, "id"), _classes(y_ood, X_ood, "ood")
    rows, accuracies = [], np.empty(len(pairs))
    for place, (name, estimator) in enumerate(pairs):
        accuracies[place] = (_predicted(str(name), estimator, X_id, within) == within).mean()
        rows.append((_predicted(str(name), estimator, X_ood, outside) == outside).astype(np.uint8))
        if progress is not None:
            progress("predict", place + 1, len(pairs))
    kinds = [type(_innermost(estimator)).__name__ for _, estimator in pairs]
    return CorrectnessData.of(
        np.stack(rows) if rows else np.empty((0, len(outside)), dtype=np.uint8),
        accuracies,
        model_ids=names,
        groups=_per_model(groups, names, "groups"),
        families=kinds if families is None else _per_model(families, names, "families"),
        n_id=len(within),
        labels=_countable(outside),
        **{"source": {"kind": "estimators", "n_id": len(within)}, **facts},
    )


def _classes(given: Any, X: Any, part: str) -> np.ndarray:
    found = np.asarray(given)
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    if found.ndim != 1 or len(found) != n:
        raise ShapeError(f"y_{part} has shape {found.shape}; X_{part} has {n} rows, and each needs one class")
    if len(found) == 0:
        raise InputError(f"X_{part} has no row; at least one is needed")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise InputError(
            f"y_{part}[{int(np.flatnonzero(np.isnan(found))[0])}] is NaN; every row needs a class"
        )
    return found


def _predicted(name: str, estimator: Any, X: Any, truth: np.ndarray) -> np.ndarray:
    if not hasattr(estimator, "predict"):
        raise InputError(
            f"estimator {name!r} is a {type(estimator).__name__} without predict; give a classifier"
        )
    try:
        found = np.asarray(estimator.predict(X))
    except (ValueError, AttributeError, TypeError) as error:  # not fitted, or other columns
        raise InputError(f"estimator {name!r} cannot predict: {error}") from error
    if found.shape != truth.shape:
        raise ShapeError(
            f"estimator {name!r} predicts {found.shape} for {len(truth)} rows; one class per row"
        )
    if found.dtype.kind == "f" and (found != np.floor(found)).any():
        raise InputError(
            f"estimator {name!r} predicts numbers such as {found[0]}, no classes; give a classifier"
        )
    if (found.dtype.kind in "US") != (truth.dtype.kind in "US") and "O" not in (
        found.dtype.kind,
        truth.dtype.kind,
    ):
        raise InputError(
            f"estimator {name!r} predicts {found[0]!r} where the class is {truth[0]!r}; use the same classes"
        )
    return found


def _innermost(estimator: Any) -> Any:
    while True:
        if steps := getattr(estimator, "steps", None):
            estimator = steps[-1][1]
        elif (best := getattr(estimator, "best_estimator_", None)) is not None:
            estimator = best
        else:
            return estimator


def _countable(labels: np.ndarray) -> np.ndarray:
    """Classes as counts from 0 where they are, else as names."""
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    return labels if labels.dtype.kind in "iub" and labels.min() >= 0 else labels.astype(str)


# ----------------------------------------------------------------------------------------------- frames


def from_frame(
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
) -> CorrectnessData:
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
        Models and examples in the order in which they first appear.

    Raises:
        InputError: If a cell is missing, repeated, or neither 0 nor 1, with its model and example; if a
            column does not exist, or what belongs to a model or example differs between its rows.
    """
    if not len(frame):
        raise InputError("frame has no row")
    held: dict[str, Any]
    if model in frame.columns:
        held = _long(frame, model, example, correct, prediction, label, domain, id_accuracy, tuple(meta))
    else:
        if meta:
            raise InputError(
                "meta names columns of a long frame, and this one is wide; give examples instead"
            )
        held = _wide(frame, model, [id_accuracy, group, family, n_id])
    table, names = cast("pd.DataFrame", held.pop("models")), held["model_ids"]
    for argument, given, default in (
        ("groups", group, "group"),
        ("families", family, "family"),
        ("n_id", n_id, None),
        ("id_accuracy", id_accuracy, None),
    ):
        if given is None and default is not None and default in table.columns:
            given = default
        if isinstance(given, str):
            given = _column_of_models(table, given, names, argument)
        if given is not None:
            held[argument] = (
                given
                if argument == "n_id" and np.ndim(given) == 0 and not isinstance(given, Mapping)
                else _per_model(given, names, argument)
            )
    if held.get("id_accuracy") is None:
        raise InputError(
            "id_accuracy is missing, and the frame has no rows in distribution; give the accuracy of each "
            f"model (a mapping from its name), or rows whose column {domain!r} is 'id'"
        )
    if held.get("n_id") is not None:
        held["n_id"] = np.asarray(held["n_id"])
    if examples is not None:
        held = held | _known(examples, held["example_ids"], label, held)
    return CorrectnessData.of(held.pop("correct"), **{"source": {"kind": "frame"}, **held, **facts})


def _long(
    frame: "pd.DataFrame",
    model: str,
    example: str,
    correct: str,
    prediction: str,
    label: str,
    domain: str,
    id_accuracy: PerModel | None,
    meta: tuple[str, ...],
) -> dict[str, Any]:
    import pandas as pd

    for name in (model, example, *meta):
        _require_column(frame, name)
    for name in (model, example):
        if (empty := frame[name].isna()).any():
            raise InputError(f"frame[{name!r}] is missing in row {int(np.flatnonzero(empty)[0])}; fill it in")
    right = _right(frame, model, example, correct, prediction, label)
    outside = np.ones(len(frame), dtype=bool)
    held: dict[str, Any] = {}
    models, names = pd.factorize(frame[model].astype(str))
    if domain in frame.columns:
        domains = frame[domain].astype(object).where(frame[domain].notna(), "").to_numpy().astype(str)
        if len(strange := sorted(set(domains.tolist()) - {"id", "ood"})):
            raise InputError(f"frame[{domain!r}] holds {strange[0]!r}; allowed are 'id' and 'ood'")
        outside = domains == "ood"
        if not outside.any():
            raise InputError(f"frame[{domain!r}] is never 'ood'; nothing is out of distribution")
        if id_accuracy is None:
            held |= _within(models[~outside], right[~outside], names)
    kept = frame[outside]
    examples, ids = pd.factorize(kept[example].astype(str))
    held |= {
        "correct": _pivot(models[outside], examples, right[outside], names, ids),
        "model_ids": tuple(names.tolist()),
        "example_ids": np.asarray(ids.tolist()),
        "models": frame.assign(**{model: frame[model].astype(str)}).set_index(model),
        "meta": {
            name: _plain(
                _constant(kept[name], examples, ids, f"example {{}} has two values of {name!r}"), name
            )
            for name in meta
        },
    }
    if label in frame.columns:
        classes = _constant(kept[label], examples, ids, f"example {{}} has two values of {label!r}")
        held["labels"] = _countable(_plain(classes, label))
    return held


def _right(
    frame: "pd.DataFrame", model: str, example: str, correct: str, prediction: str, label: str
) -> Float64[np.ndarray, " rows"]:
    """1 where the answer of a row is right, else 0."""
    import pandas as pd

    if correct in frame.columns:
        column = frame[correct]
        found: np.ndarray = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        bad = np.flatnonzero(~((found == 0) | (found == 1)))
    else:
        if prediction not in frame.columns or label not in frame.columns:
            raise InputError(
                f"frame has neither a column {correct!r} nor both {prediction!r} and {label!r}; it has "
                f"{', '.join(map(str, frame.columns[:20]))}"
            )
        column = frame[prediction]
        missing = (frame[prediction].isna() | frame[label].isna()).to_numpy()
        found = (frame[prediction].astype(object) == frame[label].astype(object)).to_numpy(dtype=np.float64)
        bad = np.flatnonzero(missing)
    if len(bad):
        row = frame.iloc[int(bad[0])]
        raise InputError(
            f"the answer of model {str(row[model])!r} on example {str(row[example])!r} "
            f"{_what(column.iloc[int(bad[0])])}; every cell must be known, as 0 (wrong) or 1 (right) "
            f"({len(bad)} such cells)"
        )
    return found


def _within(models: Int64[np.ndarray, " k"], right: Float64[np.ndarray, " k"], names: Any) -> dict[str, Any]:
    """In-distribution accuracies and the numbers of examples behind them."""
    counts = np.bincount(models, minlength=len(names))
    if len(empty := np.flatnonzero(counts == 0)):
        raise InputError(
            f"model {str(names[int(empty[0])])!r} has no row in distribution; its accuracy is not known"
        )
    return {"id_accuracy": np.bincount(models, right, minlength=len(names)) / counts, "n_id": counts}


def _pivot(
    models: Int64[np.ndarray, " k"],
    examples: Int64[np.ndarray, " k"],
    right: Float64[np.ndarray, " k"],
    names: Any,
    ids: Any,
) -> np.ndarray:
    seen = np.zeros((len(names), len(ids)), dtype=np.uint8)
    correct = np.zeros_like(seen)
    cells = models * len(ids) + examples
    counts = np.unique(cells, return_counts=True)
    if (repeated := counts[0][counts[1] > 1]).size:
        row, column = divmod(int(repeated[0]), len(ids))
        raise InputError(
            f"model {str(names[row])!r} has {counts[1].max()} rows for example {str(ids[column])!r}; one is "
            "needed"
        )
    seen[models, examples] = 1
    correct[models, examples] = right.astype(np.uint8)
    if not seen.all():
        row, column = np.argwhere(seen == 0)[0].tolist()
        raise InputError(
            f"model {str(names[row])!r} has no row for example {str(ids[column])!r} "
            f"({int((seen == 0).sum())} cells are missing); every model must answer every example"
        )
    return correct


def _wide(frame: "pd.DataFrame", model: str, given: list[Any]) -> dict[str, Any]:
    import pandas as pd

    named = {each for each in given if isinstance(each, str)} | {"group", "family"}
    columns = [name for name in frame.columns if name not in named]
    names = _unique([str(name) for name in frame.index])
    if (repeated := frame.columns[frame.columns.duplicated()]).size:
        raise InputError(f"two columns of the frame are named {str(repeated[0])!r}; each is one example")
    textual = any(pd.api.types.is_string_dtype(frame[name].dtype) for name in columns)
    if textual and frame.index.equals(pd.RangeIndex(len(frame))):
        raise InputError(
            f"frame has no column {model!r}, so it is taken as wide: models as index, 0 or 1 in every "
            "column; name the column of a long one (model=...)"
        )
    rows = frame[columns].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad = ~((rows == 0) | (rows == 1))
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise InputError(
            f"the answer of model {names[row]!r} on example {str(columns[column])!r} "
            f"{_what(frame[columns].iloc[row, column])}; every cell must be known, as 0 (wrong) or 1 (right) "
            f"({int(bad.sum())} such cells)"
        )
    return {
        "correct": rows.astype(np.uint8),
        "model_ids": names,
        "example_ids": np.array([str(name) for name in columns]),
        "models": frame.set_axis(list(names), axis=0),
    }


def _known(examples: "pd.DataFrame", ids: np.ndarray, label: str, held: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a frame of examples, in the order of the matrix."""
    table = examples.set_axis(examples.index.astype(str), axis=0)
    if table.index.has_duplicates:
        raise InputError(f"examples lists {table.index[table.index.duplicated()][0]!r} twice")
    if len(missing := [name for name in ids.tolist() if name not in table.index]):
        raise InputError(
            f"examples has no row {missing[0]!r} ({len(missing)} examples of the frame are missing)"
        )
    table = table.loc[ids.tolist()]
    columns = {str(name): _plain(table[name].to_numpy(), str(name)) for name in table.columns}
    found: dict[str, Any] = {}
    if label in columns:
        found["labels"] = _countable(columns.pop(label))
    return found | {"meta": {**held.get("meta", {}), **columns}}


# ----------------------------------------------------------------------------------------------- pieces


def _unique(names: list[str]) -> tuple[str, ...]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two models are named {name!r}; names must be unique")
        seen.add(name)
    return tuple(names)


def _what(held: Any) -> str:
    """What a cell that is neither 0 nor 1 holds."""
    import pandas as pd

    return "is missing" if pd.isna(held) else f"is {held.item() if hasattr(held, 'item') else held!r}"


def _require_column(frame: "pd.DataFrame", name: str) -> None:
    if name not in frame.columns:
        raise unknown_name("column of the frame", name, map(str, frame.columns))


def _constant(
    column: "pd.Series[Any]", codes: Int64[np.ndarray, " rows"], names: Any, message: str
) -> np.ndarray:
    """What a column says of each of some things, which must be the same in all rows of one."""
    import pandas as pd

    values, known = pd.factorize(column)
    first = np.full(len(names), -2)
    first[codes[::-1]] = values[::-1]  # the first row of each is written last
    if len(different := np.flatnonzero(first[codes] != values)):
        raise InputError(message.format(repr(str(names[int(codes[different[0]])]))) + "; they must agree")
    held = np.append(np.asarray(known, dtype=object), np.array([None], dtype=object))
    return cast("np.ndarray", held[first])


def _column_of_models(table: "pd.DataFrame", name: str, names: Sequence[str], argument: str) -> np.ndarray:
    """A column that says something of each model: of all its rows the same."""
    import pandas as pd

    _require_column(table, name)
    codes = pd.Index(list(names)).get_indexer(table.index)
    found = _constant(table[name], codes, names, f"model {{}} has two values of {name!r}")
    if len(empty := np.flatnonzero(pd.isna(found))):
        raise InputError(f"{argument}: model {names[int(empty[0])]!r} has no {name!r}; fill it in")
    return found


def _per_model(given: PerModel | None, names: Sequence[str], argument: str) -> list[Any] | None:
    """What is given, in the order of the models."""
    if given is None:
        return None
    if hasattr(given, "to_dict") and hasattr(given, "index"):  # a pandas series
        given = given.to_dict()
    if isinstance(given, Mapping):
        by_name = {str(name): value for name, value in given.items()}
        if missing := [name for name in names if name not in by_name]:
            raise InputError(f"{argument} says nothing of model {missing[0]!r} ({len(missing)} are missing)")
        return [by_name[name] for name in names]
    return list(given)


def _plain(column: np.ndarray, name: str) -> np.ndarray:
    """A column as numbers (NaN where missing) or text (empty where missing)."""
    import pandas as pd

    missing = pd.isna(column)
    if column.dtype.kind in "biuf":
        return column
    present = column[~missing]
    if len(present) and all(isinstance(each, bool | np.bool_) for each in present) and not missing.any():
        return column.astype(bool)
    if all(isinstance(each, int | float | np.number) and not isinstance(each, bool) for each in present):
        whole = not missing.any() and all(isinstance(each, int | np.integer) for each in present)
        return np.where(missing, np.nan, column).astype(np.float64) if not whole else column.astype(np.int64)
    return np.array(["" if gone else str(each) for each, gone in zip(column, missing, strict=True)])
