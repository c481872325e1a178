"""How the classes mix in selections, and whether the inverse line lies between classes or inside them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.consistency import positions
from assay.analyses.subsets.line import Correlation
from assay.analyses.subsets.members import SelectedExamples
from assay.core.errors import InputError, ShapeError
from assay.core.record import Record


LARGE_RATIO = 2.0  # of class shares, beyond which a selection is largely a choice of classes


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassComposition(Record):
    """How the classes mix in selections of growing size.

    Attributes:
        sizes: Of the selections, in the order given.
        names: Classes that occur in the pool.
        counts: Selected examples of each class.
        pool_counts: Examples of each class in the pool, at least 1.
    """

    derived = ("shares", "pool_shares", "largest_ratio")

    sizes: Int64[np.ndarray, " k"]
    names: tuple[str, ...]
    counts: Int64[np.ndarray, "k classes"]
    pool_counts: Int64[np.ndarray, " classes"]

    @property
    def shares(self) -> Float64[np.ndarray, "k classes"]:
        """Share of each class in each selection; rows sum to 1."""
        return np.asarray(self.counts / self.sizes[:, None])

    @property
    def pool_shares(self) -> Float64[np.ndarray, " classes"]:
        """Share of each class in the pool."""
        return np.asarray(self.pool_counts / self.pool_counts.sum())

    @property
    def ratios(self) -> Float64[np.ndarray, "k classes"]:
        """Share in the selection relative to the pool; 1 where the classes mix alike."""
        return np.asarray(self.shares / self.pool_shares)

    @property
    def largest_ratio(self) -> Float64[np.ndarray, " k"]:
        """Largest ratio of class shares per selection; above 2 a selection is largely a choice of classes."""
        return np.asarray(self.ratios.max(axis=1))

    def notice(self, place: int = 0) -> str | None:
        """What to know before reading anything into a selection of which a class is a large part.

        Args:
            place: Of the selection.

        Returns:
            None unless a class is more than twice as frequent as in the pool. Of several such classes the one
            that explains the largest share of the selection is named: share less share of the pool.
        """
        ratios, surplus = self.ratios[place], self.shares[place] - self.pool_shares
        # A rare class has a large ratio long before it makes up much of a selection.
        worst = int(np.argmax(np.where(ratios > LARGE_RATIO, surplus, -np.inf)))
        if not ratios[worst] > LARGE_RATIO:
            return None
        return (
            f"class {self.names[worst]!r} makes up {self.shares[place, worst]:.0%} of the selection and "
            f"{self.pool_shares[worst]:.0%} of the pool, {ratios[worst]:.1f} times as much: the selection "
            "may be a choice of classes. Select with strata='label' to see whether such a subset exists at "
            "the class mix of the pool, and look at the correlation within each class."
        )


def class_composition(
    sets: Sequence[Any] | SelectedExamples, labels: Any = None, label_names: Sequence[str] | None = None
) -> ClassComposition:
    """Class shares of each selection and of the pool they come from.

    Args:
        sets: Selections, each as distinct positions in the pool; or one `Subset`, whose data have labels. Its
            pool is what could have been selected.
        labels: Class of each example of the pool, `[N]`: integers or names.
        label_names: Name of each class, for integer labels.

    Raises:
        InputError: No selection, no labels, repeated or impossible positions, or a label without a name.
        ShapeError: Labels or positions that are not vectors.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884: the plot of class frequencies.

    Example:
        >>> class_composition([[0, 1], [0, 1, 2]], ["dog", "dog", "cat", "cat"]).largest_ratio
        array([2.        , 1.33333333])
    """
    if isinstance(sets, SelectedExamples):
        data = sets.require_data("a class composition")
        pool, labels, label_names = sets.pool, data.labels, data.label_names
        labels = None if labels is None else labels[pool]
        sets = [np.searchsorted(pool, sets.indices)]
    if labels is None:
        raise InputError("labels are missing; give the class of each example of the pool")
    names, codes = coded_labels(labels, label_names)
    if not len(sets):
        raise InputError("sets is empty; give at least one selection, as an array of positions")
    places = [positions(each, len(codes), f"sets[{place}]") for place, each in enumerate(sets)]
    return ClassComposition(
        sizes=np.array([len(each) for each in places], dtype=np.int64),
        names=names,
        counts=np.stack([np.bincount(codes[each], minlength=len(names)) for each in places]).astype(np.int64),
        pool_counts=np.bincount(codes).astype(np.int64),
    )


def coded_labels(
    labels: Any, label_names: Sequence[str] | None = None
) -> tuple[tuple[str, ...], Int64[np.ndarray, " n"]]:
    """Names of the classes that occur, in the order of their codes, and the place of each example among them.

    Raises:
        InputError: A label without a name.
        ShapeError: Labels that are not vectors.
    """
    column = np.asarray(labels)
    if column.ndim != 1 or not len(column):
        raise ShapeError(f"labels has shape {column.shape}; expected one class per example")
    if column.dtype.kind not in "iu":
        column = column.astype(str)
    values, codes = np.unique(column, return_inverse=True)
    if label_names is None or column.dtype.kind == "U":
        names = values.tolist()
    elif 0 <= values[0] <= values[-1] < len(label_names):
        names = [label_names[code] for code in values]
    else:
        raise InputError(
            f"labels run from {values[0]} to {values[-1]}, but label_names lists only {len(label_names)}"
        )
    return tuple(str(name) for name in names), codes.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class ClassCorrelation(Record):
    """The correlation over models of accuracy on the selected examples of one class.

    Attributes:
        name: The class.
        size: Selected examples of it.
        correlation: With its intervals.
    """

    name: str
    size: int
    correlation: Correlation


def class_correlations(
    selection: SelectedExamples, part: str = "test", **options: Any
) -> tuple[ClassCorrelation, ...]:
    """R of a selection within each of its classes.

    Negative inside the classes too: the inverse line is not only a matter of which classes were selected.

    Args:
        selection: With data that have labels.
        part: Models to report on; only `test` models had no say in the selection.
        options: Of the intervals: `n_resamples` and `level`, as `correlate`.

    Returns:
        One for each class in the selection, in the order of the codes. A correlation over a few examples is
        mostly noise: mind `size`.

    Raises:
        InputError: A selection without data, or data without labels.
    """
    data = selection.require_data("the correlation within each class")
    if data.labels is None:
        raise InputError("the data have no labels; give labels= to CorrectnessData.of")
    names, codes = coded_labels(data.labels, data.label_names)
    of_selected = codes[selection.indices]
    rows = []
    for code in np.unique(of_selected):
        members = selection.indices[of_selected == code]
        clip: dict[str, Any] = {} if len(members) > 1 else {"clip": "eps"}  # no half an example of one
        correlation = selection.problem.correlate(members, part, **clip, **options)
        rows.append(ClassCorrelation(name=names[code], size=len(members), correlation=correlation))
    return tuple(rows)
