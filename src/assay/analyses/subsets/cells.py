"""Cells of a table of answers as numbers: 1 right, 0 wrong, scores between; NaN where there is none."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64

from assay.analyses.subsets._arrays import Places
from assay.core.errors import InputError, check_name


if TYPE_CHECKING:
    import pandas as pd

MISSING = ("refuse", "drop", "drop-models", "drop-examples")
_WORDS = {"true": 1.0, "false": 0.0}


def numbers(column: "pd.Series[Any]") -> np.ndarray:
    """A column as numbers, true and false as 1 and 0; NaN for what is neither."""
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column.dtype):
        column = column.astype(object).map(_plain_cell)
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _plain_cell(cell: Any) -> Any:
    if isinstance(cell, bool | np.bool_):
        return float(cell)
    return _WORDS.get(cell.strip().lower(), cell) if isinstance(cell, str) else cell


def same_class(prediction: "pd.Series[Any]", truth: "pd.Series[Any]") -> np.ndarray:
    """1 where a predicted class is the true one, 0 where not, NaN where one of the two is missing.

    Two numbers are compared as numbers, so that 3 and 3.0 are one class, and everything else as text.
    """
    one, other = (numbers(each) for each in (prediction, truth))
    present = (prediction.notna() & truth.notna()).to_numpy()
    right, texts = one == other, present & ~(np.isfinite(one) & np.isfinite(other))
    if texts.any():
        right[texts] = (prediction[texts].astype(str) == truth[texts].astype(str)).to_numpy()
    return np.where(present, right.astype(np.float64), np.nan)


def share_class(prediction: "pd.Series[Any]", truth: "pd.Series[Any]") -> bool:
    """Whether any predicted class is one of the true ones."""
    present = (each.dropna().drop_duplicates() for each in (prediction, truth))
    found, known = ({*each.astype(str), *numbers(each).tolist()} for each in present)
    return not found.isdisjoint(known)


def check_classes(prediction: "pd.Series[Any]", truth: "pd.Series[Any]", who: str, do: str = "") -> None:
    """An error if no predicted class is one of the true ones, of which there are several."""
    if truth.nunique() > 1 and prediction.notna().any() and not share_class(prediction, truth):
        raise other_classes(prediction.dropna().unique(), truth.dropna().unique(), who, do)


def other_classes(prediction: Iterable[Any], truth: Iterable[Any], who: str, do: str = "") -> InputError:
    """The error about predictions outside the true classes, with a few of both."""
    said, known = (", ".join(repr(str(each)) for each in list(some)[:4]) for some in (prediction, truth))
    return InputError(f"{who} such as {said}, where the class is one of {known}; use the same classes{do}")


def scaled(
    values: np.ndarray, ends: tuple[float | int, float | int] | None, name: str = "scores"
) -> np.ndarray:
    """Scores on a line from 0, the worse end, to 1, the better end.

    Args:
        values: Scores; NaN where missing.
        ends: Worse and better end; of a loss the worse end is the larger. Default: 0 and 1.
        name: What the error calls them.

    Raises:
        InputError: If the ends are equal or not finite, or a score lies outside them.
    """
    worse, better = ends or (0.0, 1.0)
    if not (np.isfinite([worse, better]).all() and worse != better):
        raise InputError(f"scores is {worse:g},{better:g}; give two different numbers, the worse end first")
    mapped = (values - worse) / (better - worse)
    outside = (mapped < 0) | (mapped > 1)
    if outside.any():
        raise InputError(
            f"{name} run from {np.nanmin(values):g} to {np.nanmax(values):g}, but their ends are {worse:g} "
            f"and {better:g} ({int(outside.sum())} lie outside). State the ends, the worse one first: "
            "scores=(5, 0), --scores 5,0 for a loss of at most 5"
        )
    return np.asarray(mapped)


# --------------------------------------------------------------------------------------------- holes


def complete_part(holes: Bool[np.ndarray, "m n"], rule: str) -> tuple[Places, Places]:
    """Models and examples without a missing cell between them.

    `drop-examples` leaves out every example with a hole, `drop-models` every model with one. `drop` leaves
    out, step by step, all examples or all models with the largest share of missing cells among those that are
    left, examples where both shares are equal. What is left does not depend on the order of rows or columns.

    Args:
        holes: Whether a cell is missing.
        rule: One of `MISSING`, but `refuse`.
    """
    rows: np.ndarray = np.ones(holes.shape[0], dtype=bool)
    columns: np.ndarray = np.ones(holes.shape[1], dtype=bool)
    if rule == "drop-examples":
        columns = np.asarray(~holes.any(axis=0))
    elif rule == "drop-models":
        rows = np.asarray(~holes.any(axis=1))
    by_row, by_column = holes.sum(axis=1), holes.sum(axis=0)
    while rule == "drop" and by_row[rows].any():
        # Shares with a common denominator: whole numbers, so that equal shares are equal.
        of_rows, of_columns = by_row * rows * int(rows.sum()), by_column * columns * int(columns.sum())
        if of_columns.max() >= of_rows.max():
            gone = of_columns == of_columns.max()
            by_row = by_row - holes[:, gone].sum(axis=1)
            columns = columns & ~gone
        else:
            gone = of_rows == of_rows.max()
            by_column = by_column - holes[gone].sum(axis=0)
            rows = rows & ~gone
    return np.flatnonzero(rows), np.flatnonzero(columns)


def check_holes(
    values: Float64[np.ndarray, "m n"], models: Sequence[str], examples: Sequence[str], rule: str
) -> tuple[Places, Places, int]:
    """Models and examples to keep, and the number of missing cells.

    Raises:
        InputError: For missing cells with the rule `refuse`, or if the rule leaves nothing.
    """
    if rule == "pairwise":
        raise InputError(
            "missing is 'pairwise', which is not offered: the solver counts right answers on a fixed number "
            "of examples, and with holes that number would differ by model. Use drop, drop-models or "
            "drop-examples"
        )
    check_name("rule for missing cells", rule, MISSING)
    holes = np.isnan(values)
    n = int(holes.sum())
    if n == 0:
        return np.arange(len(models)), np.arange(len(examples)), 0
    if rule == "refuse":
        row, column = np.argwhere(holes)[0].tolist()
        kept = {each: complete_part(holes, each) for each in MISSING[1:]}
        answering = [name for name, hole in zip(models, holes[:, column], strict=True) if not hole]
        few = f"; only {', '.join(map(repr, answering))} has one" if len(answering) < 2 < len(models) else ""
        raise InputError(
            f"the answer of model {models[row]!r} on example {examples[column]!r} is missing{few} ({n} of "
            f"{holes.size} cells are). Fill them in, or leave out what has holes (missing, --missing): "
            f"drop-examples keeps {len(kept['drop-examples'][1])} of {len(examples)} examples, drop-models "
            f"{len(kept['drop-models'][0])} of {len(models)} models; drop, which takes the largest share of "
            f"holes first, {len(kept['drop'][0])} models and {len(kept['drop'][1])} examples"
        )
    places = complete_part(holes, rule)
    if not all(map(len, places)):
        raise InputError(
            f"missing={rule!r} leaves {len(places[0])} of {len(models)} models and {len(places[1])} of "
            f"{len(examples)} examples ({n} of {holes.size} cells are missing); fill them in, or use another "
            f"rule: {', '.join(MISSING[1:])}"
        )
    return *places, n
