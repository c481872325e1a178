"""What a subset holds: classes and facts, single examples, and the models that R needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float64, Int64

from assay.analyses.subsets.copies import unit_codes
from assay.analyses.subsets.line import DEGENERATE, Accuracies, Places, UnitSums, checked_shares, probit
from assay.analyses.subsets.overlap import positions
from assay.analyses.subsets.selection import Subset
from assay.core.errors import InputError, check_least
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import benjamini_hochberg


LABEL = "label"  # name of the class among the facts
MISSING = "missing"
_NUMBERS = ("n_selected", "n_pool", "selected", "pool", "difference", "ratio", "low", "high", "p_value")
_FEW_VALUES = 20  # whole numbers of no more different values are compared as categories
_MOST_VALUES = 1000  # of a fact, beyond which it names examples rather than describing them
_ENTRIES = 1 << 21  # of a matrix worked on at a time
_FEWEST = 3  # two models always correlate perfectly


# ------------------------------------------------------------------------------------- classes and facts


def facts_of(subset: Subset) -> pd.DataFrame:
    """What is known of the examples that could have been selected, the class first, as `label`."""
    data = subset.require_data("a comparison with the pool")
    facts = data.meta.rename(columns={LABEL: f"{LABEL} (fact)"})
    if (classes := data.classes) is not None:
        facts.insert(0, LABEL, classes)
    return facts.iloc[subset.problem.pool]


def prevalence_shift(
    selection: Subset | Sequence[int] | np.ndarray,
    facts: pd.DataFrame | None = None,
    *,
    n_resamples: int = 1000,
    level: float = 0.95,
    q: float = 0.05,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare a selection with the whole pool in every fact known of the examples.

    A row per value of a fact: share in the selection, share in the pool, their difference with a percentile
    interval over resamples of the selection and of the pool, and an exact two-sided hypergeometric p-value,
    the selection being part of the pool. Numbers (floating-point ones, and whole ones of more than 20 values)
    are compared by quarters. All p-values are adjusted together.

    The selection was found on these examples, so a shift says what it consists of, not what causes it.

    Args:
        selection: A subset, which is compared with what could have been selected; or rows of `facts`.
        facts: What is known of the pool, a row per example. Default: classes and facts of the data of the
            subset. Columns of more than 1,000 values are left out.
        n_resamples: Of the intervals.
        level: Coverage of the intervals.
        q: False discovery rate that `significant` goes by.
        seed: Root of the resamples; each fact has a stream of its own, named after it.

    Returns:
        A row per value: `attribute`; `value`, `missing` where there is none; `n_selected`, `n_pool` with the
        value; `selected`, `pool`: shares; `difference`, `ratio`, `low`, `high`, `p_value`, `q_value`
        (Benjamini-Hochberg over all rows), `significant`.

    Raises:
        InputError: Repeated or impossible places, or nothing to compare.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 3; Fisher (1935).
    """
    if isinstance(selection, Subset):
        facts = facts_of(selection) if facts is None else facts.iloc[selection.problem.pool]
        places = np.searchsorted(selection.problem.pool, selection.indices)
    else:
        facts = pd.DataFrame(facts)
        places = positions(selection, len(facts))
    rows: list[tuple[Any, ...]] = []
    tails, kinds = [(1 - level) / 2, (1 + level) / 2], pd.api.types
    for name, column in facts.items():
        column = column.infer_objects().reset_index(drop=True)
        whole = kinds.is_integer_dtype(column)
        if kinds.is_float_dtype(column) or (whole and column.nunique() > _FEW_VALUES):
            column, whole = pd.qcut(column, 4, duplicates="drop"), False
            quarters = enumerate(column.cat.categories, start=1)
            names = [f"{place}: {each.left:.3g} to {each.right:.3g}" for place, each in quarters]
            column = column.cat.rename_categories(names)
        if not whole or column.hasnans:  # as texts; whole numbers stay, so that each sorts as it should
            given = column.astype(object)
            column = given.where(column.notna() & (given != ""), MISSING).astype(str)
        if name == LABEL or column.nunique() <= _MOST_VALUES:
            rng = stream(seed, f"prevalence/{name}")
            rows += [(name, *row) for row in _shares(column, places, rng, tails, n_resamples)]
    if not rows:
        raise InputError(f"nothing to compare: give columns with at most {_MOST_VALUES:,} values")
    table = pd.DataFrame(rows, columns=["attribute", "value", *_NUMBERS])
    table["q_value"] = benjamini_hochberg(table["p_value"].to_numpy(dtype=np.float64))
    return table.assign(significant=table["q_value"] <= q)


def _shares(
    values: "pd.Series[Any]", places: Places, rng: np.random.Generator, tails: list[float], n_resamples: int
) -> list[tuple[Any, ...]]:
    """A row per value of a fact, in ascending order."""
    pool, s, n = values.value_counts().sort_index(), len(places), len(values)
    selected = values.iloc[places].value_counts().reindex(pool.index, fill_value=0)
    drawn = [rng.multinomial(k, of / k, n_resamples) / k for k, of in ((s, selected), (n, pool))]
    ends = np.quantile(drawn[0] - drawn[1], tails, axis=0).T.tolist()
    rows = []
    for value, a, k, (low, high) in zip(pool.index, selected.tolist(), pool.tolist(), ends, strict=True):
        p = float(scipy.stats.fisher_exact(np.array([[a, s - a], [k - a, n - s - k + a]])).pvalue)
        rows.append((str(value), a, k, a / s, k / n, a / s - k / n, (a / s) / (k / n), low, high, p))
    return rows


# ---------------------------------------------------------------------------------- example by example


def replicate_examples(subset: Subset) -> pd.DataFrame:
    """Test every selected example, and every other one, on the models that took no part in selecting.

    r_j = correlation over test models of X_j with probit(y); one-sided t test of r_j < 0 with n_eff - 2
    degrees of freedom, n_eff the independent models that would spread as much as the cluster bootstrap of the
    test R; Benjamini-Hochberg among the selected and among the others.

    Returns:
        A row per example of the pool, in its order: `index`; `chosen`, whether it was selected; `r`, NaN
        where all models agree; `p_value`, 1 there, NaN where n_eff is undefined; `q_value`.

    Raises:
        InputError: For a subset without data.

    Notes:
        In simulations q was at most 0.05 for .7 to .9 of strong planted sets, and for none where no example
        had a negative slope.
    """
    data, models = subset.require_data("a test of single examples"), subset.split.test
    pool = subset.problem.pool
    r = example_correlations(data.correct[models], data.id_accuracy[models])[pool]
    n_eff = subset.correlation["test"].n_eff
    p = slope_p_values(r, max(1.0, n_eff - 2) if not math.isnan(n_eff) else math.nan)
    chosen, q = np.isin(pool, subset.indices), np.full(len(pool), np.nan)
    for side in (chosen, ~chosen):
        if side.any() and not math.isnan(n_eff):
            q[side] = benjamini_hochberg(p[side])
    return pd.DataFrame({"index": pool, "chosen": chosen, "r": r, "p_value": p, "q_value": q})


def example_correlations(correct: np.ndarray, id_accuracy: Accuracies) -> Float64[np.ndarray, " n"]:
    """Pearson correlation over models of the answers on an example with probit(y), for every example.

    Args:
        correct: Right and wrong answers or scores, `[models, examples]`.
        id_accuracy: Of the same models.

    Returns:
        In [-1, 1]; NaN where all models agree, and everywhere where all have one in-distribution accuracy.
    """
    z = probit(id_accuracy)
    z = z - z.mean()
    r = np.full(correct.shape[1], np.nan)
    length = float(z @ z)
    step = max(1, _ENTRIES // max(1, len(correct)))
    for start in range(0, len(r) if length >= DEGENERATE else 0, step):
        x = correct[:, start : start + step].astype(np.float64)
        x -= x.mean(axis=0)
        squares, block = (x * x).sum(axis=0), r[start : start + step]
        np.divide(z @ x, np.sqrt(squares * length), out=block, where=squares >= DEGENERATE)
        np.clip(block, -1.0, 1.0, out=block)
    return r


def slope_p_values(r: Float64[np.ndarray, " n"], df: float) -> Float64[np.ndarray, " n"]:
    """One-sided p of correlations below 0: P(T <= r sqrt(df / (1 - r^2))), T Student's.

    1 where r is NaN, NaN where df is.
    """
    with np.errstate(divide="ignore"):
        t = np.nan_to_num(r) * np.sqrt(df / (1 - np.nan_to_num(r) ** 2))
    return np.where(np.isnan(r) & ~np.isnan(df), 1.0, scipy.special.stdtr(df, t))


# ------------------------------------------------------------------------------------------ models needed


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelsNeeded(Record):
    """The correlation over the first k models, in several orders of the models.

    Attributes:
        k: Sizes asked for, ascending; the last is the number of models.
        n_used: Models behind each number, at least `k`: more where whole runs are added.
        curves: R(k) of each order; NaN where a side is constant.
        stable: For each order the smallest number of models from which on R changes by less than the
            tolerance at each further size, relative to its value before; None if the last change is larger.
        whole_runs: Whether whole training runs are added.
    """

    derived = ("mean", "median", "range")

    k: Int64[np.ndarray, " sizes"]
    n_used: Int64[np.ndarray, "orders sizes"]
    curves: Float64[np.ndarray, "orders sizes"]
    stable: tuple[int | None, ...]
    whole_runs: bool

    @property
    def mean(self) -> Float64[np.ndarray, " sizes"]:
        """R(k), averaged over the orders in which it is defined; NaN where it is in none."""
        return np.asarray(np.ma.masked_invalid(self.curves).mean(axis=0).filled(np.nan))

    @property
    def median(self) -> float:
        """Median of `stable` over the orders; NaN where half of them or more never settle."""
        return self._settled(np.median)

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest `stable` over the orders; NaN for an order that never settles."""
        return self._settled(np.min), self._settled(np.max)

    def _settled(self, of: Any) -> float:
        value = float(of([math.inf if each is None else each for each in self.stable]))
        return value if math.isfinite(value) else math.nan


def models_needed(
    id_accuracy: Any,
    accuracy: Any,
    *,
    groups: Sequence[object] | np.ndarray | None = None,
    start: int = 10,
    step: int = 10,
    tolerance: float = 0.01,
    orders: int | Sequence[Any] = 20,
    seed: int = 0,
) -> ModelsNeeded:
    """R over growing sets of models, and the size from which on it changes by less than `tolerance`.

    R(k) is the correlation of probit(accuracy) and probit(id_accuracy) over the first k models of an order,
    for k = start, start + step, ... and all models; its change is |R(k) - R(k - step)| / |R(k - step)|.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1]: usually on all examples.
        groups: Training run of each model: runs are added as wholes, as many as hold k models.
        start: First size, at least 3.
        step: Between sizes.
        tolerance: Relative change below which R has settled.
        orders: How many random orders; or permutations of the units (models, or groups in the order of their
            first models).
        seed: Root of the random orders.

    Raises:
        InputError: Accuracies outside [0, 1], or fewer than 3 models.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 7.
    """
    x, y = probit(checked_shares(id_accuracy, "id_accuracy")), probit(checked_shares(accuracy, "accuracy"))
    units = np.arange(len(x)) if groups is None else unit_codes(groups)
    check_least(_FEWEST, models=len(x), start=start)
    rng, counts, sums = stream(seed, "models-needed"), np.bincount(units), UnitSums(x, y, units)
    drawn = orders if isinstance(orders, Sequence) else [rng.permutation(len(counts)) for _ in range(orders)]
    k = np.unique(np.append(np.arange(min(start, len(x)), len(x), step), len(x)))
    n_used, curves = [], []
    for order in drawn:
        last = np.searchsorted(np.cumsum(counts[order]), k)  # unit that makes k models full
        n, r = sums.correlations(np.argsort(order) <= last[:, None])
        n_used.append(n.astype(np.int64))
        curves.append(r)
    settled = [_stable(r, n, tolerance) for r, n in zip(curves, n_used, strict=True)]
    whole_runs = len(counts) < len(x)
    return ModelsNeeded(
        k=k, n_used=np.stack(n_used), curves=np.stack(curves), stable=tuple(settled), whole_runs=whole_runs
    )


def _stable(curve: np.ndarray, n_used: np.ndarray, tolerance: float) -> int | None:
    """The first size from which on all relative changes are small; sizes that add no run settle nothing."""
    added = np.flatnonzero(np.diff(n_used) > 0)
    before, now = curve[added], curve[added + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        small = np.abs(now - before) / np.abs(before) < tolerance
    large = np.flatnonzero(~small)
    first = int(large[-1]) + 1 if len(large) else 0
    return int(n_used[added[first] + 1]) if first < len(added) else None
