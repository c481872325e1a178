"""Which column of a table of answers holds what, and which way the table lies."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.analyses.subsets._checks import names_in
from assay.analyses.subsets.cells import numbers
from assay.core.errors import InputError, check_name, unknown_name


if TYPE_CHECKING:
    import pandas as pd


PerModel = Any  # name of a column, mapping or series from the model, or a sequence in the order of the models
ORIENTATIONS = ("long", "wide", "transposed")
LIES = {
    "long": "a row per model and example",
    "wide": "a row per model, a column per example",
    "transposed": "a row per example, a column per model",
}
# What a column can hold, and the names by which it is found unless the caller names it.
ROLES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "model_id", "model_name"),
    "example": ("example_id", "example", "sample_id", "uid", "doc_id", "id"),
    "correct": ("correct", "is_correct"),
    "prediction": ("prediction", "predicted", "pred", "y_pred"),
    "probability": ("probability",),
    "score": ("score",),
    "label": ("label", "truth", "y_true"),
    "domain": ("domain",),
    "id_accuracy": ("id_accuracy",),
    "n_id": ("n_id",),
    "group": ("group",),
    "family": ("family",),
}
OF_MODELS = ("id_accuracy", "n_id", "group", "family")
ANSWERS = ("correct", "prediction", "probability", "score")


@contextlib.contextmanager
def lying(orientation: str | None) -> Iterator[None]:
    """Ends an error about a table with the way it was read, and the option that turns it; None: no table."""
    try:
        yield
    except InputError as error:
        if orientation is None:
            raise
        others = " or ".join(each for each in ORIENTATIONS if each != orientation)
        raise type(error)(
            f"{error}. The table was read as {orientation}: {LIES[orientation]} (--orientation {others} "
            "reads it otherwise)"
        ) from error


class Header:
    """Which column of a table holds what: the caller's names, else the usual ones.

    Attributes:
        columns: Of the table.
        found: The column of each role that has one.
        truth: The column of true classes in the frame of examples.
        probabilities: `p_0`, `p_1`, ..., if there are.
    """

    def __init__(
        self, frame: "pd.DataFrame", given: Mapping[str, str], examples: "pd.DataFrame | None" = None
    ):
        self.columns = [str(name) for name in frame.columns]
        self.found: dict[str, str] = {}
        beside = [] if examples is None else [str(name) for name in examples.columns]
        self.truth = next((name for name in ROLES["label"] if name in beside), None)
        for role, name in given.items():
            check_name("role of a column", role, ROLES)
            if role == "label" and name in beside:
                self.truth = name
                continue
            self.require(name)
            self.found[role] = name
        taken = set(self.found.values())
        for role, names in ROLES.items():
            known = [name for name in names if name in self.columns and name not in taken]
            if role not in self.found and known:
                self.found[role] = known[0]
        scores = [name for name in self.columns if name.startswith("p_") and name[2:].isdigit()]
        in_order = [f"p_{place}" for place in range(len(scores))]
        self.probabilities = in_order if len(scores) > 1 and set(scores) == set(in_order) else []

    def get(self, role: str) -> str | None:
        """The column that holds something, if any does."""
        return self.found.get(role)

    def need(self, role: str) -> str:
        """The column that holds something; an error if none does."""
        if role not in self.found:
            raise unknown_name("column of the table", ROLES[role][0], self.columns)
        return self.found[role]

    def require(self, name: str) -> None:
        """An error unless there is a column of that name."""
        if name not in self.columns:
            raise unknown_name("column of the table", name, self.columns)

    @property
    def has_answers(self) -> bool:
        """Whether answers have a column, as in a long table."""
        return bool(self.probabilities) or any(role in self.found for role in ANSWERS)


def with_names(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Column names as text, without a column that only counts the rows."""
    of_pandas = [place > 0 and name == f"Unnamed: {place}" for place, name in enumerate(frame.columns)]
    if (empty := np.flatnonzero(np.array(frame.columns.isna()) | np.array(of_pandas))).size:
        raise InputError(f"column {int(empty[0])} of the table has no name; name it, or remove it")
    frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    first = frame.columns[0]
    counted = first in ("", "Unnamed: 0") and frame.shape[1] > 1
    if counted and numbers(frame[first]).tolist() == list(range(len(frame))):
        return frame.drop(columns=first)
    if (repeated := frame.columns[frame.columns.duplicated()]).size:
        raise InputError(
            f"two columns of the table are named {str(repeated[0])!r}; each column must be one example, one "
            "model or one fact"
        )
    return frame


def orientation_of(
    frame: "pd.DataFrame",
    header: Header,
    asked: str | None,
    id_accuracy: Any,
    examples: "pd.DataFrame | None",
) -> str:
    """Which way a table lies."""
    if asked is not None:
        check_name("orientation", asked, ORIENTATIONS)
        return asked
    model, example = header.get("model"), header.get("example")
    if model is not None:
        # An example of a wide table may be called `score`, but there a model has one row.
        alone = len(set(header.columns) - set(header.found.values()) - set(header.probabilities)) == 0
        rows = header.has_answers and (alone or frame[model].duplicated().any())
        return "long" if example is not None or rows else "wide"
    if example is not None:
        if (repeated := frame[example][frame[example].duplicated()].dropna()).size:
            raise InputError(
                f"the table names example {str(repeated.iloc[0])!r} more "
                "than once, as a long table does, but has no column 'model', so its models are not known. "
                "Name the column: columns={'model': NAME}, --columns model=NAME"
            )
        return "transposed"
    across, down = set(frame.columns), set(map(str, row_names(frame)[0]))
    models, known = (
        set(names_in(id_accuracy) or ()),
        set() if examples is None else set(map(str, examples.index)),
    )
    if len(across & models) + len(down & known) != len(down & models) + len(across & known):
        turned = len(across & models) + len(down & known) > len(down & models) + len(across & known)
        return "transposed" if turned else "wide"
    if header.get("label") is not None or "id_accuracy" in down:
        return "transposed"
    sized = not (models or id_accuracy is None or isinstance(id_accuracy, str | Mapping))
    columns = frame.shape[1] - (row_names(frame)[1] is not None)
    if sized and np.size(id_accuracy) == columns != len(frame):
        return "transposed"
    return "wide"


def row_names(frame: "pd.DataFrame") -> tuple[Any, str | None]:
    """Names of the rows of a matrix, and their column: the index, or a first column of different texts."""
    import pandas as pd

    first = frame.columns[0]
    plain = frame.index.equals(pd.RangeIndex(len(frame)))
    if plain and pd.api.types.is_string_dtype(frame[first]) and numbers(frame[first]).size:
        texts = frame[first].dropna().astype(str)
        if not texts.duplicated().any() and np.isnan(numbers(texts)).all():
            return frame[first], str(first)
    return frame.index, None
