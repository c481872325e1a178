"""Other models on a subset: which of their columns are its examples, and the correlation over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, Unpack

import numpy as np

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import Correlation, Line, clip_of, correlate, fit_line
from assay.analyses.subsets.members import SelectedExamples
from assay.core.errors import InputError, ShapeError, unknown_name


if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Evaluation(Correlation):
    """Other models on a subset: the correlation over them, and how they do. The verdict is the subset's.

    Attributes:
        full: The same models on all examples of their matrix.
        line: Least squares through them in probit axes.
        accuracy: Of each model on the subset.
    """

    full: Correlation
    line: Line
    accuracy: tuple[float, ...]


class EvaluationOptions(TypedDict, total=False):
    """Keywords of `Subset.evaluate`."""

    example_ids: Sequence[object] | np.ndarray | None
    order: str | None
    groups: Sequence[object] | np.ndarray | None
    families: Sequence[object] | np.ndarray | None


def evaluate_models(
    selection: SelectedExamples,
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: float | Sequence[float] | np.ndarray | None,
    **options: Unpack[EvaluationOptions],
) -> Evaluation:
    """Other models on the examples of a selection; see `Subset.evaluate`."""
    order, example_ids = options.get("order"), options.get("example_ids")
    data = _others(correct, id_accuracy, example_ids, options.get("groups"), options.get("families"))
    named = example_ids is not None or _is_frame(correct) or (data.has_ids and selection.has_ids)
    accuracy = data.accuracy_on(_columns(selection, data, order, named=named))
    settings, y = selection.settings, data.id_accuracy
    units = data.unit_codes(data.kind_of_units(by_family=selection.split.kind == "family"))
    common: dict[str, Any] = {"units": units, "eps": settings.eps, "seed": settings.seed}
    clip = clip_of(settings.clip, selection.size, settings.eps)
    return Evaluation(
        **vars(correlate(y, accuracy, size=selection.size, clip=settings.clip, **common)),
        full=correlate(y, data.accuracy(), **common),
        line=fit_line(y, accuracy, eps=clip, id_eps=settings.eps),
        accuracy=tuple(accuracy.tolist()),
    )


def _columns(selection: SelectedExamples, data: CorrectnessData, order: str | None, *, named: bool) -> Places:
    """The columns of `data` that are the examples of the selection."""
    if order not in (None, "data"):
        raise unknown_name("order of columns", order, ("data",))
    if order == "data":
        if data.n_examples != selection.facts["n_examples"]:
            raise ShapeError(
                f"correct holds {data.n_examples} examples, the subset was selected from "
                f"{selection.facts['n_examples']}; give the same columns, or example_ids= instead of order="
            )
        return selection.indices
    if not named:
        raise InputError(
            "the columns of correct have no names, so they cannot be matched with the examples of the "
            "subset. Give example_ids=, a frame whose columns are their names, or order='data' if they "
            "are the examples it was selected from, in the same order"
        )
    place = {name: column for column, name in enumerate(data.example_ids.tolist())}
    missing = [name for name in selection.example_ids if name not in place]
    if missing:
        raise InputError(
            f"{len(missing)} of the {selection.size} examples of the subset are not among the "
            f"{data.n_examples} given, {missing[0]!r} first; give the same example ids"
        )
    return np.array([place[name] for name in selection.example_ids], dtype=np.int64)


def _is_frame(given: object) -> "TypeGuard[pd.DataFrame]":
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def _others(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: float | Sequence[float] | np.ndarray | None,
    example_ids: Sequence[object] | np.ndarray | None = None,
    groups: Sequence[object] | np.ndarray | None = None,
    families: Sequence[object] | np.ndarray | None = None,
) -> CorrectnessData:
    """Models to evaluate, one or more, whatever holds them."""
    y: Any = [id_accuracy] if isinstance(id_accuracy, int | float) else id_accuracy
    if isinstance(correct, CorrectnessData):
        return CorrectnessData.of(correct, y, groups=groups, families=families)
    if _is_frame(correct):
        if example_ids is not None:
            raise InputError("a frame names its examples itself; leave example_ids out")
        return CorrectnessData.from_frame(correct, id_accuracy=y, group=groups, family=families, at_least=1)
    matrix = correct if isinstance(correct, PackedMatrix) else np.atleast_2d(np.asarray(correct))
    units: dict[str, Any] = {"groups": groups, "families": families}
    return CorrectnessData.of(matrix, y, example_ids=example_ids, at_least=1, **units)
