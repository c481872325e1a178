"""The arguments of `CorrectnessData.of` from a zoo of models or scikit-learn estimators."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.subsets._checks import by_name
from assay.analyses.subsets.cells import other_classes
from assay.analyses.subsets.header import PerModel
from assay.analyses.subsets.line import MIN_MODELS
from assay.analyses.subsets.table_answers import countable, unique_names
from assay.core.errors import InputError, ShapeError


if TYPE_CHECKING:
    from assay.tasks.image_set import ImageSet
    from assay.zoo import Zoo

Progress = Callable[[str, int, int], None]


def ask_zoo(
    zoo: "Zoo",
    images: "ImageSet",
    *,
    id_images: "ImageSet | None" = None,
    batch_size: int | None = None,
    device: str | None = None,
    keep: bool | Path | None = None,
    at_least: int = MIN_MODELS,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Ask every trained model of a zoo about out-of-distribution images.

    Args:
        zoo: The zoo; each of its models is a training run of its own.
        images: Labelled, out of distribution.
        id_images: Labelled, in distribution, held out of training. Default: the accuracies that the zoo knows
            from its validation.
        batch_size: Images per pass. Default: by free memory.
        device: Where to run. Default: the CPU.
        keep: Read and write the zoo's records, or those in this folder. Default: the zoo's, unless it is the
            embedded one.
        at_least: Models that are needed, before the first is asked; 4 to select from.
        progress: Called with the stage, the models done and all models.

    Returns:
        Arguments of `CorrectnessData.of`. Families are what the models started from, where the zoo knows it;
        the images and the facts about them that two of them share come along.

    Raises:
        InputError: If the zoo has too few models, an in-distribution accuracy is not known, labels are
            missing, or two images have one id.
        AssayError: Of `assay.zoo.correctness`.
    """
    from assay.zoo import correctness

    zoo.check_done(at_least)
    answers = correctness(
        zoo,
        images,
        id_images=id_images,
        batch_size=batch_size,
        device=device,
        keep=keep,
        progress=progress,
    )
    unknown = [key for key, y in zip(answers.keys, answers.id_accuracy, strict=True) if np.isnan(y)]
    if unknown:
        raise InputError(
            f"the in-distribution accuracy of {len(unknown)} models of the zoo is not known, e.g. of "
            f"{unknown[0]}; give id_images= (--id-images), labelled images like those of their training"
        )
    columns = {name: np.asarray(values) for name, values in images.fields.items()}
    return {
        "correct": answers.correct,
        "id_accuracy": answers.id_accuracy,
        "model_ids": answers.keys,
        "groups": answers.keys,
        "families": None if answers.families == answers.keys else answers.families,
        "example_ids": [f"{answers.domain}/{number}" for number in answers.ids],
        "n_id": answers.n_id or None,
        "labels": answers.labels,
        "label_names": images.classes,
        "meta": {name: column for name, column in columns.items() if _tells(column)},
        "images": images.pixels,
        "at_least": at_least,
        "source": {
            "kind": "zoo",
            "zoo": zoo.name,
            "images": images.name,
            "domain": images.domain,
            "id_images": None if id_images is None else id_images.name,
        },
    }


def _tells(column: np.ndarray) -> bool:
    """Whether a fact could tell a subset apart: a number, or text that images share, unlike file names."""
    if column.ndim != 1 or column.dtype.kind not in "biufU":
        return False
    return column.dtype.kind != "U" or len(np.unique(column)) < len(column)


# ----------------------------------------------------------------------------------------------- estimators


def ask_estimators(
    estimators: Mapping[str, Any] | Iterable[Any],
    X_id: Any,
    y_id: Any,
    X_ood: Any,
    y_ood: Any,
    *,
    groups: PerModel | None = None,
    families: PerModel | None = None,
    progress: Progress | None = None,
    **facts: Any,
) -> dict[str, Any]:
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

    Returns:
        Arguments of `CorrectnessData.of`.

    Raises:
        InputError: If two estimators share a name, one is not fitted or predicts no classes, or classes are
            NaN.
        ShapeError: If rows and classes differ in number.
    """
    pairs = list(estimators.items() if isinstance(estimators, Mapping) else estimators)
    if bare := [each for each in pairs if not (isinstance(each, tuple | list) and len(each) == 2)]:
        raise InputError(
            f"estimators holds {type(bare[0]).__name__} without a name; give a mapping from names to "
            "fitted classifiers, {'forest': forest}, or pairs of both"
        )
    names = unique_names([str(name) for name, _ in pairs])
    within, outside = _classes(y_id, X_id, "id"), _classes(y_ood, X_ood, "ood")
    correct, accuracies = np.empty((len(pairs), len(outside)), dtype=np.uint8), np.empty(len(pairs))
    for place, (name, estimator) in enumerate(pairs):
        accuracies[place] = (_predicted(str(name), estimator, X_id, within) == within).mean()
        correct[place] = _predicted(str(name), estimator, X_ood, outside) == outside
        if progress is not None:
            progress("predict", place + 1, len(pairs))
    kinds = [type(_innermost(estimator)).__name__ for _, estimator in pairs]
    return dict(
        correct=correct,
        id_accuracy=accuracies,
        model_ids=names,
        groups=by_name(groups, names, "groups"),
        families=kinds if families is None else by_name(families, names, "families"),
        n_id=len(within),
        labels=countable(outside),
        **{"source": {"kind": "estimators", "n_id": len(within)}, **facts},
    )


def _classes(given: Any, X: Any, part: str) -> np.ndarray:
    classes = np.asarray(given)
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    if classes.ndim != 1 or len(classes) != n:
        raise ShapeError(
            f"y_{part} has shape {classes.shape}, but X_{part} has {n} rows; give one class per row"
        )
    if len(classes) == 0:
        raise InputError(f"X_{part} has no rows; give at least one")
    if classes.dtype.kind == "f" and np.isnan(classes).any():
        raise InputError(
            f"y_{part}[{int(np.flatnonzero(np.isnan(classes))[0])}] is NaN; every row needs a class"
        )
    return classes


def _predicted(name: str, estimator: Any, X: Any, truth: np.ndarray) -> np.ndarray:
    if not hasattr(estimator, "predict"):
        raise InputError(
            f"estimator {name!r} is a {type(estimator).__name__} without predict; give a classifier"
        )
    try:
        classes = np.asarray(estimator.predict(X))
    except (ValueError, AttributeError, TypeError) as error:  # not fitted, or other columns
        raise InputError(f"estimator {name!r} cannot predict: {error}") from error
    if classes.shape != truth.shape:
        raise ShapeError(
            f"estimator {name!r} predicts {classes.shape} for {len(truth)} rows; expected one class per row"
        )
    if classes.dtype.kind == "f" and (classes != np.floor(classes)).any():
        raise InputError(
            f"estimator {name!r} predicts numbers such as {classes[0]} instead of classes; give a classifier"
        )
    kinds = [each.dtype.kind for each in (classes, truth)]
    if "O" not in kinds and (kinds[0] in "US") != (kinds[1] in "US"):
        raise other_classes(np.unique(classes), np.unique(truth), f"estimator {name!r} predicts classes")
    return classes


def _innermost(estimator: Any) -> Any:
    """The last step of a pipeline, the best of a search."""
    if steps := getattr(estimator, "steps", None):
        return _innermost(steps[-1][1])
    best = getattr(estimator, "best_estimator_", None)
    return estimator if best is None else _innermost(best)
