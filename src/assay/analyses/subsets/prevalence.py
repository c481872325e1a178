"""What kind of example a selection holds more of than its pool: shares and means, tested."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float64, Int64

from assay.analyses.subsets._columns import (
    MISSING,
    MOST_VALUES,
    Coded,
    coded_column,
    crossed_column,
    n_examples_of,
    numeric_names,
    plain_column,
)
from assay.analyses.subsets.composition import class_composition, coded_labels
from assay.analyses.subsets.consistency import positions
from assay.analyses.subsets.members import SelectedExamples
from assay.analyses.subsets.phrase_scores import rank_sum_p
from assay.core.errors import InputError, ShapeError, unknown_name
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import benjamini_hochberg


N_RESAMPLES = 1000
LABEL = "label"  # name of the class among the attributes
PRESENT = "present"  # value of an attribute that examples have or lack
_BLOCK = 1 << 22  # draws held at a time

Draws = tuple[Int64[np.ndarray, "n_resamples s"], Int64[np.ndarray, "n_resamples n"]]


@dataclass(frozen=True, kw_only=True)
class PrevalenceRow(Record):
    """One value of an attribute, by its share, or one numeric attribute, by its mean: selection against pool.

    Attributes:
        attribute: Name; `label` for the class, `a x b` for crossed attributes.
        value: The value, `missing` where there is none; None for the mean of a numeric attribute.
        n_selected: Selected examples with the value; with any, for a mean.
        n_pool: The same in the pool, the selection among it.
        selected: Share or mean in the selection; NaN for the mean of nothing.
        pool: Share or mean in the pool.
        difference: selected - pool: in [-1, 1], or in the attribute's unit.
        ratio: selected / pool of shares; NaN for means.
        low: Lower end of the bootstrap interval of the difference, selection and pool resampled.
        high: Its upper end.
        p_value: Shares: exact two-sided hypergeometric test against a uniform draw from the pool. Means:
            Mann-Whitney, selection against the rest; NaN where either has no value.
        q_value: Adjusted over everything tested (Benjamini-Hochberg).
        significant: Whether `q_value` is at most the false discovery rate asked for.
    """

    derived = ("numeric", "excludes_zero")

    attribute: str
    value: str | None
    n_selected: int
    n_pool: int
    selected: float
    pool: float
    difference: float
    ratio: float
    low: float
    high: float
    p_value: float
    q_value: float = math.nan
    significant: bool = False

    @property
    def numeric(self) -> bool:
        """Whether means are compared."""
        return self.value is None

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the interval: the paper's rule, which counts no comparisons."""
        return bool(self.low > 0 or self.high < 0)


@dataclass(frozen=True, kw_only=True)
class PrevalenceShift(Record):
    """How a selection differs from its pool in what is known of the examples.

    Attributes:
        n_selected: S.
        n_pool: N.
        rows: A row per value of each attribute, the classes first, and per numeric attribute.
        level: Coverage of the intervals.
        q: False discovery rate that `significant` goes by.
        n_resamples: Of the intervals.
        seed: Root of the resamples; None where they were given.
        left_out: Attributes with more than 1,000 values, which name examples rather than describing them.
        largest_class_ratio: Largest share of a class relative to the pool; NaN without labels.
        notice: What to know before reading anything into the selection; None unless the ratio exceeds 2.
    """

    n_selected: int
    n_pool: int
    rows: tuple[PrevalenceRow, ...]
    level: float
    q: float
    n_resamples: int
    seed: int | None
    left_out: tuple[str, ...] = ()
    largest_class_ratio: float = math.nan
    notice: str | None = None

    @property
    def significant(self) -> tuple[PrevalenceRow, ...]:
        """Rows that differ at the false discovery rate `q`, most certain first."""
        return tuple(sorted((row for row in self.rows if row.significant), key=lambda row: row.p_value))

    def of(self, attribute: str) -> tuple[PrevalenceRow, ...]:
        """The rows of one attribute.

        Raises:
            UnknownNameError: For an attribute that was not compared.
        """
        rows = tuple(row for row in self.rows if row.attribute == attribute)
        if not rows:
            raise unknown_name("attribute", attribute, {row.attribute for row in self.rows})
        return rows


def hypergeometric_p(n_selected_with: int, n_selected: int, n_pool_with: int, n_pool: int) -> float:
    """Two-sided p-value of the overlap of a uniform draw with a part of its pool.

    The sum of the probabilities, under Hypergeometric(N, K, S), that are not larger than that of the observed
    overlap.

    Args:
        n_selected_with: Overlap observed.
        n_selected: S, size of the draw.
        n_pool_with: K, size of the part.
        n_pool: N, size of the pool.

    Returns:
        In (0, 1]; 1 where only one overlap is possible.

    References:
        Fisher (1935), The design of experiments; `scipy.stats.fisher_exact`.
    """
    rest = n_pool_with - n_selected_with
    table = np.array([[n_selected_with, n_selected - n_selected_with], [rest, n_pool - n_selected - rest]])
    if table.min() < 0:
        raise InputError(
            f"an overlap of {n_selected_with} is impossible for {n_selected} and {n_pool_with} of {n_pool}"
        )
    return float(scipy.stats.fisher_exact(table).pvalue)


def prevalence_shift(
    indices: Any,
    attributes: Mapping[str, Any] | None = None,
    *,
    labels: Any = None,
    label_names: Sequence[str] | None = None,
    crossed: Sequence[Sequence[str]] = (),
    numeric: Sequence[str] | None = None,
    n_resamples: int = N_RESAMPLES,
    level: float = 0.95,
    q: float = 0.05,
    draws: Draws | None = None,
    seed: int = 0,
) -> PrevalenceShift:
    """Compare a selection with the whole pool in every attribute known of the examples.

    Categorical attributes give a row per value: share in the selection, share in the pool, their difference
    with a percentile interval over resamples of the selection (size S) and of the pool (size N), and an exact
    two-sided hypergeometric p-value, the selection being part of the pool. Numeric attributes give the
    difference of means and a Mann-Whitney test against the rest. All p-values are adjusted together.

    The selection was found on these examples, so a shift says what it consists of, not what causes it.

    Args:
        indices: Positions of the selection in the pool, distinct; or a `Subset`, whose data then give the
            labels, and the attributes where none are given.
        attributes: Columns over the pool, `[N]`. None, NaN and empty text make a value of their own,
            `missing`.
        labels: Class of each example, `[N]`; always compared where given, as `label`.
        label_names: Name of each class, for integer labels.
        crossed: Groups of categorical attributes (or `label`) whose combinations are compared too.
        numeric: Attributes compared by their mean. Default: those of floating type, and whole numbers of more
            than 20 different values.
        n_resamples: Of the intervals, at least 1.
        level: Coverage of the intervals.
        q: False discovery rate that `significant` goes by.
        draws: Given resamples instead of random ones: positions in the selection `[n_resamples, S]`, and in
            the pool `[n_resamples, N]`.
        seed: Root of the resamples; each attribute has a stream of its own, named after it.

    Raises:
        InputError: Repeated or impossible positions, nothing to compare, or a name that is not among the
            attributes.
        ShapeError: Columns of different lengths.

    Notes:
        Counts in resamples are multinomial and drawn as such, O(values) a resample; means take O(N).

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 3; Mann and Whitney (1947),
        doi:10.1214/aoms/1177730491.
    """
    if isinstance(indices, SelectedExamples):
        if labels is not None:
            raise InputError("labels= belongs with positions; a selection uses the labels of its data")
        data, pool = indices.require_data("a comparison with the pool"), indices.pool
        held = data.meta if attributes is None else attributes
        attributes = {name: np.asarray(column)[pool] for name, column in held.items()}
        labels, label_names = None if data.labels is None else data.labels[pool], data.label_names
        indices = np.searchsorted(pool, indices.indices)  # the pool is what could have been selected
    columns = {str(name): plain_column(np.asarray(column)) for name, column in (attributes or {}).items()}
    if LABEL in columns:
        raise InputError(f"attributes holds {LABEL!r}, which is reserved for labels=; rename it")
    n = n_examples_of(columns, labels)
    places = positions(indices, n)
    if draws is not None:
        draws = _checked_draws(draws, len(places), n)
        n_resamples = len(draws[0])
    means = numeric_names(columns, numeric)
    coded = {} if labels is None else {LABEL: Coded(*coded_labels(labels, label_names))}
    coded |= {name: coded_column(columns[name]) for name in columns if name not in means}
    left_out = tuple(name for name, each in coded.items() if name != LABEL and len(each.names) > MOST_VALUES)
    coded = {name: each for name, each in coded.items() if name not in left_out}
    for names in crossed:
        coded[" x ".join(names)] = crossed_column(names, coded)
    compare = _PoolContrast(places, n, n_resamples, level, q, draws, seed)
    rows = [row for name, each in coded.items() for row in compare.shares(name, each)]
    for name in means:
        values = columns[name].astype(np.float64)
        rows += [compare.mean(name, values), *compare.missing(name, values)]
    if not rows:
        raise InputError(
            f"nothing to compare: {', '.join(left_out)} have more than {MOST_VALUES} values each"
        )
    mix = None if labels is None else class_composition([places], labels, label_names)
    return compare.adjusted(
        rows,
        left_out=left_out,
        largest_class_ratio=math.nan if mix is None else float(mix.largest_ratio[0]),
        notice=None if mix is None else mix.notice(),
    )


def presence_shift(
    places: Int64[np.ndarray, " s"],
    n: int,
    held: Mapping[str, tuple[int, int]],
    *,
    n_resamples: int = N_RESAMPLES,
    level: float = 0.95,
    q: float = 0.05,
    seed: int = 0,
) -> PrevalenceShift:
    """As `prevalence_shift`, of what examples hold or lack, from counts: a row `present` for each.

    Args:
        places: Positions of the selection in the pool.
        n: Size of the pool.
        held: By name, how many selected examples hold it, and how many of the pool.
        n_resamples: As in `prevalence_shift`, as are the others.
        level: Likewise.
        q: Likewise.
        seed: Likewise.

    Raises:
        InputError: Repeated or impossible positions, nothing to compare, or counts that no selection of this
            size has.
    """
    places = positions(places, n, "places")
    if not held:
        raise InputError("nothing to compare: held is empty; give counts of at least one name")
    compare = _PoolContrast(places, n, n_resamples, level, q, None, seed)
    rows = []
    for name, counts in held.items():
        inside, total = counts
        if not (0 <= inside <= len(places) and max(1, inside) <= total <= n - len(places) + inside):
            raise InputError(
                f"{inside} of {len(places)} selected examples and {total} of {n} in the pool hold {name!r}; "
                "no pool with such a selection has these counts, or none of its examples holds it"
            )
        selected, pool = (
            np.array([whole - part, part]) for whole, part in zip((len(places), n), counts, strict=True)
        )
        rows += compare.counted(name, {1: PRESENT}, selected, pool)
    return compare.adjusted(rows)


@dataclass(frozen=True, eq=False)
class _PoolContrast:
    """A selection and its pool, ready to be compared in one attribute after the other."""

    chosen: Int64[np.ndarray, " s"]
    n: int
    n_resamples: int
    level: float
    q: float
    draws: Draws | None
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.level < 1 or not 0 < self.q < 1 or self.n_resamples < 1:
            raise InputError(
                f"level={self.level}, q={self.q}, n_resamples={self.n_resamples}; expected fractions between "
                "0 and 1 and at least one resample"
            )

    def shares(self, name: str, column: Coded) -> list[PrevalenceRow]:
        """A row for each value."""
        n_values, sides = len(column.names), (column.codes[self.chosen], column.codes)
        selected, pool = (np.bincount(side, minlength=n_values) for side in sides)
        values = dict(enumerate(column.names))
        if self.draws is None:
            return self.counted(name, values, selected, pool)
        drawn = tuple(
            np.stack([np.bincount(side[row], minlength=n_values) for row in draws])
            for side, draws in zip(sides, self.draws, strict=True)
        )
        return self.counted(name, values, selected, pool, drawn)

    def counted(
        self,
        name: str,
        values: Mapping[int, str],
        selected: Int64[np.ndarray, " values"],
        pool: Int64[np.ndarray, " values"],
        drawn: tuple[np.ndarray, ...] | None = None,
    ) -> list[PrevalenceRow]:
        """A row for each of some values, by place, from the counts of all."""
        size = len(self.chosen)
        if drawn is None:
            rng = stream(self.seed, f"prevalence/{name}")
            drawn = tuple(
                rng.multinomial(n, counts / n, self.n_resamples)
                for n, counts in ((size, selected), (self.n, pool))
            )
        inside, total = drawn
        return [
            self._row(
                name,
                value,
                n_selected=int(selected[place]),
                n_pool=int(pool[place]),
                selected=float(selected[place] / size),
                pool=float(pool[place] / self.n),
                ratio=float((selected[place] / size) / (pool[place] / self.n)),
                differences=inside[:, place] / size - total[:, place] / self.n,
                p_value=hypergeometric_p(int(selected[place]), size, int(pool[place]), self.n),
            )
            for place, value in values.items()
        ]

    def mean(self, name: str, values: Float64[np.ndarray, " n"]) -> PrevalenceRow:
        """The row of a numeric attribute, over the examples that have a value."""
        is_chosen = np.zeros(self.n, dtype=bool)
        is_chosen[self.chosen] = True
        present = np.isfinite(values)
        inside, rest = values[is_chosen & present], values[~is_chosen & present]
        rng = stream(self.seed, f"prevalence/{name}/mean")
        of_selection, of_pool = (None, None) if self.draws is None else self.draws
        differences = _resampled_means(values[self.chosen], self.n_resamples, rng, of_selection)
        differences = differences - _resampled_means(values, self.n_resamples, rng, of_pool)
        return self._row(
            name,
            None,
            n_selected=len(inside),
            n_pool=int(present.sum()),
            selected=float(inside.mean()) if len(inside) else math.nan,
            pool=float(values[present].mean()) if present.any() else math.nan,
            ratio=math.nan,
            differences=differences,
            p_value=rank_sum_p(inside, rest),
        )

    def missing(self, name: str, values: Float64[np.ndarray, " n"]) -> list[PrevalenceRow]:
        """The share of examples without a value; no row where all have one."""
        absent = ~np.isfinite(values)
        if not absent.any():
            return []
        names = (PRESENT, MISSING) if not absent.all() else (MISSING,)
        return self.shares(name, Coded(names, absent.astype(np.int64) - int(absent.all())))[-1:]

    def adjusted(self, rows: Sequence[PrevalenceRow], **facts: Any) -> PrevalenceShift:
        """All rows, their p-values adjusted together."""
        adjusted = benjamini_hochberg(np.array([row.p_value for row in rows])).tolist()
        return PrevalenceShift(
            n_selected=len(self.chosen),
            n_pool=self.n,
            rows=tuple(
                replace(row, q_value=each, significant=each <= self.q)
                for row, each in zip(rows, adjusted, strict=True)
            ),
            level=self.level,
            q=self.q,
            n_resamples=self.n_resamples,
            seed=self.seed if self.draws is None else None,
            **facts,
        )

    def _row(
        self, name: str, value: str | None, *, differences: Float64[np.ndarray, " n_resamples"], **facts: Any
    ) -> PrevalenceRow:
        """With percentiles over the resamples in which the difference is defined; NaN where it is in none."""
        defined = differences[np.isfinite(differences)]
        tails = [(1 - self.level) / 2, (1 + self.level) / 2]
        low, high = np.quantile(defined, tails).tolist() if len(defined) else (math.nan, math.nan)
        difference = facts["selected"] - facts["pool"]
        return PrevalenceRow(attribute=name, value=value, difference=difference, low=low, high=high, **facts)


def _resampled_means(
    values: Float64[np.ndarray, " n"],
    n_resamples: int,
    rng: np.random.Generator,
    draws: Int64[np.ndarray, "n_resamples n"] | None,
) -> Float64[np.ndarray, " n_resamples"]:
    """Mean of each resample over the values that are there."""
    n = len(values)
    present = np.isfinite(values)
    filled = np.where(present, values, 0.0)
    means = np.full(n_resamples, np.nan)
    rows = max(1, _BLOCK // n)
    for start in range(0, n_resamples, rows):
        stop = min(start + rows, n_resamples)
        block = rng.integers(0, n, (stop - start, n)) if draws is None else draws[start:stop]
        count = present[block].sum(axis=1)
        np.divide(filled[block].sum(axis=1), count, out=means[start:stop], where=count > 0)
    return means


def _checked_draws(draws: Draws, size: int, n: int) -> Draws:
    of_selection, of_pool = (np.asarray(each, dtype=np.int64) for each in draws)
    n_resamples = len(of_selection)
    if not n_resamples or of_selection.shape != (n_resamples, size) or of_pool.shape != (n_resamples, n):
        raise ShapeError(
            f"draws have shapes {of_selection.shape} and {of_pool.shape}; expected resamples by {size} "
            f"positions in the selection, and as many by {n} positions in the pool"
        )
    for each, limit in ((of_selection, size), (of_pool, n)):
        if each.min() < 0 or each.max() >= limit:
            raise InputError(
                f"draws run from {each.min()} to {each.max()}; positions must lie in [0, {limit - 1}]"
            )
    return of_selection, of_pool
