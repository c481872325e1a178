"""The examples that a solver selected, with how it came to them and how the models do on them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets._arrays import Places
from assay.analyses.subsets.data import CorrectnessData
from assay.analyses.subsets.header import PerModel, lying
from assay.analyses.subsets.layouts import PackedMatrix
from assay.analyses.subsets.line import Correlation, FittedLine, Line, clip_of, correlate, fit_line
from assay.analyses.subsets.problem import Problem
from assay.analyses.subsets.settings import Settings
from assay.analyses.subsets.splits import PARTS, ModelSplit
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.record import Record, record_id


if TYPE_CHECKING:
    import pandas as pd

KIND = "subset"


@dataclass(frozen=True, kw_only=True, eq=False)
class SubsetProvenance(Record):
    """How a subset came to be; its hash is the identity of the subset.

    Attributes:
        library: Version that selected it.
        data: `hash`, `n_models`, `n_examples`, `interval_units` and `source` of the data.
        split: The parts of the models.
        size: Examples selected.
        sweep: All sizes that were looked at together with this one; the verdict is corrected for them.
        path: How one size of the sweep led to the next.
        settings: Of the solver, arrays as hashes.
    """

    library: str
    data: Mapping[str, Any]
    split: ModelSplit
    size: int
    sweep: tuple[int, ...]
    path: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Correlation):
    """Other models on a subset: the correlation over them, and how they do. The verdict is the subset's.

    Attributes:
        full: The same models on all examples of their matrix.
        line: Least squares through them in probit axes.
        accuracy: Of each model on the subset.
        with_full: Accuracy on the subset against accuracy on all examples, over the models: the paper's check
            of models that have no in-distribution data, such as zero-shot ones. Both sides are out of
            distribution, so a high correlation does not show that a model is robust.
    """

    full: Correlation
    with_full: Correlation
    line: Line
    accuracy: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectedExamples:
    """A subset of the examples, with the correlation on each part of the models.

    Attributes:
        indices: Selected examples, most harmful first, `[size]`.
        scores: What they are ordered by, ascending: the derivative of the solver's objective by the weight of
            each; of `adam` minus its logits.
        example_ids: Their names.
        correlation: Of `train`, `validation` and `test` models on the subset. Only `test` is a result: the
            subset was optimised on `train` and stopped by `validation`.
        full: The same on all examples.
        settings: How it was selected.
        trace: What the solver passed through.
        made: Data, split, sizes and settings behind it.
        lines: Lines of the test models on the `selected` and on `all` examples; None in files that were
            written before they were kept.
        model_ids: Names of the models, in the order that `split` counts; None in such files, and where the
            data do not name them.
        cells: What the answers were, as `CorrectnessData.cells`; None in files that were written before it
            was kept.
        data: The data; None after loading without them.
    """

    indices: Int64[np.ndarray, " size"]
    scores: Float64[np.ndarray, " size"]
    example_ids: tuple[str, ...]
    correlation: Mapping[str, Correlation]
    full: Mapping[str, Correlation]
    settings: Settings
    trace: tuple[Mapping[str, Any], ...]
    made: SubsetProvenance
    lines: Mapping[str, FittedLine] | None = None
    model_ids: tuple[str, ...] | None = None
    cells: Mapping[str, Any] | None = None
    data: CorrectnessData | None = None

    @property
    def size(self) -> int:
        """S."""
        return len(self.indices)

    @property
    def split(self) -> ModelSplit:
        """The parts of the models."""
        return self.made.split

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the data: `hash`, `n_models`, `n_examples`, units."""
        return self.made.data

    @property
    def sweep(self) -> tuple[int, ...]:
        """All sizes that were looked at together with this one; the verdict is corrected for them."""
        return self.made.sweep

    @property
    def path(self) -> str:
        """How one size of the sweep led to the next."""
        return self.made.path

    @functools.cached_property
    def provenance(self) -> dict[str, Any]:
        """How it came to be; its hash is the identity of the result."""
        return self.made.to_dict()

    @property
    def id(self) -> str:
        """Hash of the provenance."""
        return record_id(KIND, self.provenance)

    @property
    def pool(self) -> Places:
        """Examples that could have been selected, ascending: what the subset is compared with."""
        return self.settings.pool(self.facts["n_examples"])

    @property
    def has_ids(self) -> bool:
        """Whether the examples have names of their own, not the numbers of their columns."""
        known = (self.cells or {}).get("named")
        named = zip(self.indices.tolist(), self.example_ids, strict=True)
        return any(name != f"row_{place}" for place, name in named) if known is None else bool(known)

    @functools.cached_property
    def problem(self) -> Problem:
        """The problem that the subset solves."""
        return Problem(self.require_data("a selection"), self.split, self.settings)

    def parts_of(self, data: CorrectnessData) -> list[str | None]:
        """The part of the split that each of some models was in, by name; None where a side has none.

        Models that were in no part are `new`.
        """
        same = data.hash == self.facts["hash"]
        names = data.model_ids if same else self.model_ids
        if names is None or not (same or data.own_model_ids):
            return [None] * data.n_models
        parts = {names[place]: part for part in PARTS for place in self.split.part(part).tolist()}
        return [parts.get(name, "new") for name in data.model_ids]

    def require_data(self, what: str) -> CorrectnessData:
        """The data, or the error that says how to give them.

        Raises:
            InputError: After loading without data.
        """
        if self.data is None:
            raise InputError(
                f"{what} needs the data that the subset was selected on; give them to "
                "`assay.load_subset(path, data)`"
            )
        return self.data

    def accuracies(self, models: Places | None = None) -> Float64[np.ndarray, " k"]:
        """Accuracy of each model of the data on the subset."""
        return self.require_data("the accuracies of the models").accuracy_on(self.indices, models)

    def evaluate(
        self,
        correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
        id_accuracy: float | PerModel | None = None,
        *,
        example_ids: Sequence[object] | np.ndarray | None = None,
        order: str | None = None,
        groups: PerModel | None = None,
        families: PerModel | None = None,
    ) -> Evaluation:
        """Other models on the same subset, or one of them.

        Args:
            correct: Correctness of the other models on any examples among which are those of the subset:
                models by examples, `[n_examples]` for one model, or a frame as `from_frame` reads it.
            id_accuracy: In-distribution accuracy of each of them; a number for one model; None if not known.
            example_ids: Names of the columns of an array.
            order: `"data"`: the columns are the examples that the subset was selected from, in their order.
                Needed where no names say which column is which example.
            groups: Training runs of the models, for the interval.
            families: Families of the models, for the interval.

        Returns:
            Accuracies on the subset; the correlation is NaN for one model.

        Raises:
            InputError: If nothing says which column is which example, an example of the subset is missing,
                and as `CorrectnessData.of`.
        """
        data = _others(correct, id_accuracy, example_ids, groups, families)
        framed = _is_frame(correct) and not data.source.get("unnamed")
        named = example_ids is not None or framed or (data.has_ids and self.has_ids)
        with lying(data.source.get("orientation")):
            columns = self.columns_in(data, order=order, named=named)
        return self.evaluate_on(data, columns)

    def evaluate_on(self, data: CorrectnessData, columns: Places) -> Evaluation:
        """Other models on the columns of their data that are the subset; see `columns_in`."""
        accuracy, full = data.accuracy_on(columns), data.accuracy()
        settings, y = self.settings, data.id_accuracy
        units = data.unit_codes(data.kind_of_units(by_family=self.split.kind == "family"))
        common: dict[str, Any] = {"units": units, "eps": settings.eps, "seed": settings.seed}
        clip = clip_of(settings.clip, self.size, settings.eps)
        return Evaluation(
            **vars(correlate(y, accuracy, size=self.size, clip=settings.clip, **common)),
            full=correlate(y, full, **common),
            with_full=correlate(full, accuracy, size=self.size, clip=settings.clip, **common),
            line=fit_line(y, accuracy, eps=clip, id_eps=settings.eps),
            accuracy=tuple(accuracy.tolist()),
        )

    def columns_in(
        self, data: CorrectnessData, *, order: str | None = None, named: bool = True, least: float | int = 1
    ) -> Places:
        """The columns of some data that are the examples of the subset.

        Args:
            data: Of other models.
            order: As for `evaluate`.
            named: Whether the columns have names.
            least: Share of the subset that must be among them.

        Raises:
            InputError: If fewer match, with the numbers of both sides and a name of each; if names match that
                `order` contradicts, or answers are of another kind, or on another scale.
        """
        self._check_cells(data)
        if order not in (None, "data"):
            raise unknown_name("order of columns", order, ("data",))
        place = {name: column for column, name in enumerate(data.example_ids.tolist())}
        if order == "data":
            if data.n_examples != self.facts["n_examples"]:
                raise ShapeError(
                    f"correct holds {data.n_examples} examples, but the subset was selected from "
                    f"{self.facts['n_examples']}; give the same columns, or example_ids= instead of order="
                )
            by_name = zip(self.example_ids, self.indices.tolist(), strict=True)
            if moved := [name for name, column in by_name if place.get(name, column) != column]:
                raise InputError(
                    f"{len(moved)} of the {self.size} examples of the subset are given by name in another "
                    f"place than in the data, the first is {moved[0]!r}: the columns are not in the order of "
                    "the data; leave out order= (--order), and names that both have are matched"
                )
            return self.indices
        if not named:
            unnamed = "columns of correct" if self.has_ids else "examples of the subset"
            raise InputError(
                f"the {unnamed} have no names of their own, so the two cannot be matched. Give example_ids= "
                "or a table that names its examples (as must that of the selection), or order='data' "
                "(--order data) if these are the original examples in the original order"
            )
        missing = [name for name in self.example_ids if name not in place]
        n_found = self.size - len(missing)
        if missing and n_found < max(1, least * self.size):
            raise InputError(
                f"{len(missing)} of the {self.size} examples of the subset are missing from the "
                f"{data.n_examples} given examples: {n_found} match. The first missing is {missing[0]!r}, "
                f"the first given {data.example_ids[0]!s:.80}; give the same example ids"
            )
        return np.array([place[name] for name in self.example_ids if name in place], dtype=np.int64)

    def _check_cells(self, data: CorrectnessData) -> None:
        """Refuse answers that the accuracies and lines of the subset say nothing of."""
        own, given = self.cells, data.cells
        if own is None:
            return
        both = None not in (own["ends"], given["ends"])
        if own["kind"] == given["kind"] and not (both and list(own["ends"]) != list(given["ends"])):
            return
        mend = "give right and wrong answers: cells='correct' (--cells correct), without scores= (--scores)"
        if own["kind"] == "scores":
            ends = ",".join(f"{each:g}" for each in own["ends"] or ())
            mend = f"read them as such: scores=({ends}) (--scores {ends})" if ends else "give such scores"
        raise InputError(
            f"the subset was selected from {_called(own)}, but these answers are {_called(given)}, so its "
            f"lines say nothing of them; {mend}"
        )


def _called(cells: Mapping[str, Any]) -> str:
    """What answers are, as an error says it."""
    if cells["kind"] == "bits":
        return "right and wrong answers (0 and 1)"
    return "scores" + (" of {:g} (worse) to {:g} (better)".format(*cells["ends"]) if cells["ends"] else "")


def _is_frame(given: object) -> "TypeGuard[pd.DataFrame]":
    import pandas as pd

    return isinstance(given, pd.DataFrame)


def _others(
    correct: "np.ndarray | PackedMatrix | CorrectnessData | pd.DataFrame",
    id_accuracy: float | PerModel | None,
    example_ids: Sequence[object] | np.ndarray | None = None,
    groups: PerModel | None = None,
    families: PerModel | None = None,
) -> CorrectnessData:
    """Models to evaluate, one or more, whatever holds them."""
    y: Any = [id_accuracy] if isinstance(id_accuracy, int | float) else id_accuracy
    if isinstance(correct, CorrectnessData):
        return CorrectnessData.of(correct, y, groups=groups, families=families)
    if _is_frame(correct):
        if example_ids is not None:
            raise InputError("a frame already names its examples; remove example_ids")
        return CorrectnessData.from_frame(
            correct, id_accuracy=y, group=groups, family=families, at_least=1, unrated=True
        )
    matrix = correct if isinstance(correct, PackedMatrix) else np.atleast_2d(np.asarray(correct))
    units: dict[str, Any] = {"groups": groups, "families": families}
    return CorrectnessData.of(matrix, y, example_ids=example_ids, at_least=1, unrated=True, **units)
