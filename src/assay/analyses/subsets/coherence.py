"""What a subset holds: classes and facts, single examples, kinds of examples, and the models that R needs."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Bool, Float64, Int64

from assay.analyses.subsets.baselines import baselines
from assay.analyses.subsets.copies import unit_codes
from assay.analyses.subsets.line import (
    DEGENERATE,
    Accuracies,
    Correlation,
    Places,
    checked_shares,
    correlate,
    of_sums,
    probit,
)
from assay.analyses.subsets.overlap import positions
from assay.analyses.subsets.selection import Subset
from assay.core.errors import InputError, ShapeError, check_least
from assay.core.random import stream
from assay.core.record import Record
from assay.stats import auroc, benjamini_hochberg


LABEL = "label"  # name of the class among the facts
MISSING = "missing"
_FEW_VALUES = 20  # whole numbers of no more different values are compared as categories
_MOST_VALUES = 1000  # of a fact, beyond which it names examples rather than describing them
_SHARES = ("attribute", "value", "n_selected", "n_pool", "selected", "pool", "ratio")
_ENTRIES = 1 << 21  # of a matrix worked on at a time
_FEWEST = 3  # two models always correlate perfectly
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # C of the logistic regression


# ------------------------------------------------------------------------------------- classes and facts


def class_shares(sets: Sequence[Places], labels: Sequence[object] | np.ndarray) -> pd.DataFrame:
    """Share of each class in each selection and in the pool.

    Args:
        sets: Selections, as places in the pool.
        labels: Class of each example of the pool.

    Returns:
        A row per class of the pool, in ascending order; a column per selection, named by its size, and
        `pool`.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884: the plot of class frequencies.

    Example:
        >>> class_shares([np.array([0, 1])], ["dog", "dog", "cat", "cat"]).loc["dog"].tolist()
        [1.0, 0.5]
    """
    column = pd.Series(np.asarray(labels))
    shares: dict[Any, Any] = {len(each): column.iloc[each].value_counts(normalize=True) for each in sets}
    shares["pool"] = column.value_counts(normalize=True)
    return pd.DataFrame(shares).fillna(0.0).sort_index().rename_axis("class")


def class_names(subset: Subset) -> np.ndarray:
    """Class of each example of the data of a subset, by name where classes have names.

    Raises:
        InputError: If the subset has no data, or these no labels.
    """
    data = subset.require_data("a comparison of classes")
    if data.labels is None:
        raise InputError("the data have no labels; give labels= to CorrectnessData.of")
    return data.labels if data.label_names is None else np.array(data.label_names)[data.labels]


def facts_of(subset: Subset) -> pd.DataFrame:
    """What is known of the examples that could have been selected, the class first, as `label`."""
    data = subset.require_data("a comparison with the pool")
    facts = data.meta.rename(columns={LABEL: f"{LABEL} (fact)"})
    if data.labels is not None:
        facts.insert(0, LABEL, class_names(subset))
    return facts.iloc[subset.pool]


def prevalence_shift(
    selection: Subset | Sequence[int] | np.ndarray,
    facts: pd.DataFrame | None = None,
    *,
    crossed: Sequence[Sequence[str]] = (),
    n_resamples: int = 1000,
    level: float = 0.95,
    q: float = 0.05,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare a selection with the whole pool in every fact known of the examples.

    Categorical facts give a row per value: share in the selection, share in the pool, their difference with a
    percentile interval over resamples of the selection and of the pool, and an exact two-sided hypergeometric
    p-value, the selection being part of the pool. Numbers (floating-point ones, and whole ones of more than
    20 values) give the difference of means and a Mann-Whitney test against the rest. All p-values are
    adjusted together.

    The selection was found on these examples, so a shift says what it consists of, not what causes it.

    Args:
        selection: A subset, which is compared with what could have been selected; or rows of `facts`.
        facts: What is known of the pool, a row per example. Default: classes and facts of the data of the
            subset. Columns of more than 1,000 values are left out.
        crossed: Columns whose combinations are compared too.
        n_resamples: Of the intervals.
        level: Coverage of the intervals.
        q: False discovery rate that `significant` goes by.
        seed: Root of the resamples; each fact has a stream of its own, named after it.

    Returns:
        A row per value: `attribute`; `value`, `missing` where there is none, NaN for a mean; `n_selected`,
        `n_pool` with the value; `selected`, `pool`: shares or means; `difference`, `ratio` (NaN of means),
        `low`, `high`, `p_value`, `q_value` (Benjamini-Hochberg over all rows), `significant`.

    Raises:
        InputError: Repeated or impossible places, or nothing to compare.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 3; Fisher (1935); Mann and Whitney (1947),
        doi:10.1214/aoms/1177730491.
    """
    if isinstance(selection, Subset):
        facts = facts_of(selection) if facts is None else facts.iloc[selection.pool]
        places = np.searchsorted(selection.pool, selection.indices)
    else:
        facts = pd.DataFrame(facts)
        places = positions(selection, len(facts))
    resampled = _Resampled(places, len(facts), n_resamples, [(1 - level) / 2, (1 + level) / 2], seed)
    categories: dict[str, pd.Series[Any]] = {}
    means: dict[str, Float64[np.ndarray, " n"]] = {}
    for name, column in facts.items():
        column, kinds = column.infer_objects().reset_index(drop=True), pd.api.types
        whole = kinds.is_integer_dtype(column)
        if kinds.is_float_dtype(column) or (whole and column.nunique() > _FEW_VALUES):
            means[str(name)] = column.to_numpy(dtype=np.float64)
        elif whole and not column.hasnans:
            categories[str(name)] = column
        else:  # as texts; whole numbers stay, so that each sorts as it should
            given = column.astype(object)
            categories[str(name)] = given.where(column.notna() & (given != ""), MISSING).astype(str)
    for names in crossed:
        together = [categories[name].astype(str) for name in names]
        categories[" x ".join(names)] = functools.reduce(lambda one, other: one + " x " + other, together)
    rows: list[tuple[Any, ...]] = []
    for name, values in categories.items():
        if name == LABEL or values.nunique() <= _MOST_VALUES:
            rows += resampled.shares(name, values)
    for name, numbers in means.items():
        rows.append(resampled.mean(name, numbers))
        if (absent := np.isnan(numbers)).any():
            marked = resampled.shares(name, pd.Series(np.where(absent, MISSING, "present")))
            rows += [row for row in marked if row[1] == MISSING]
    if not rows:
        raise InputError(f"nothing to compare: give columns with at most {_MOST_VALUES:,} values")
    table = pd.DataFrame(rows, columns=[*_SHARES, "low", "high", "p_value"])
    table.insert(6, "difference", table["selected"] - table["pool"])
    table["q_value"] = benjamini_hochberg(table["p_value"].to_numpy(dtype=np.float64))
    return table.assign(significant=table["q_value"] <= q)


@dataclass(frozen=True)
class _Resampled:
    """Comparisons of the chosen places with a pool of n, with intervals of resamples."""

    places: Places
    n: int
    n_resamples: int
    tails: list[float]
    seed: int

    @functools.cached_property
    def chosen(self) -> Bool[np.ndarray, " n"]:
        return np.isin(np.arange(self.n), self.places)

    def shares(self, name: str, values: "pd.Series[Any]") -> Iterator[tuple[Any, ...]]:
        """A row per value of a fact, in ascending order."""
        pool, rng = values.value_counts().sort_index(), stream(self.seed, f"prevalence/{name}")
        selected = values[self.chosen].value_counts().reindex(pool.index, fill_value=0)
        s, n = len(self.places), self.n
        drawn = [rng.multinomial(k, of / k, self.n_resamples) / k for k, of in ((s, selected), (n, pool))]
        ends = np.quantile(drawn[0] - drawn[1], self.tails, axis=0).T.tolist()
        for value, a, k, (low, high) in zip(pool.index, selected.tolist(), pool.tolist(), ends, strict=True):
            p = float(scipy.stats.fisher_exact(np.array([[a, s - a], [k - a, n - s - k + a]])).pvalue)
            yield (name, str(value), a, k, a / s, k / n, (a / s) / (k / n), low, high, p)

    def mean(self, name: str, values: Float64[np.ndarray, " n"]) -> tuple[Any, ...]:
        """The row of the mean of a number, over the examples that have one."""
        rng, known = stream(self.seed, f"prevalence/{name}/mean"), ~np.isnan(values)
        inside, rest = values[self.chosen & known], values[~self.chosen & known]
        means = []
        for side in (values[self.places], values):
            draws = (side[rng.integers(0, len(side), len(side))] for _ in range(self.n_resamples))
            means.append(np.array([_mean(each[~np.isnan(each)]) for each in draws]))
        differences = means[0] - means[1]
        differences = differences[np.isfinite(differences)]
        ends = np.quantile(differences, self.tails).tolist() if len(differences) else [math.nan, math.nan]
        counts, p = (len(inside), int(known.sum())), rank_sum_p(inside, rest)
        return (name, None, *counts, _mean(inside), _mean(values[known]), math.nan, *ends, p)


def _mean(values: Float64[np.ndarray, " _"]) -> float:
    return float(values.mean()) if len(values) else math.nan


def rank_sum_p(one: Float64[np.ndarray, " a"], other: Float64[np.ndarray, " b"]) -> float:
    """Two-sided p of Mann and Whitney; 1 where nothing differs, NaN where a side is empty."""
    if not len(one) or not len(other):
        return math.nan
    if np.ptp(np.concatenate([one, other])) == 0:
        return 1.0
    return float(scipy.stats.mannwhitneyu(one, other, alternative="two-sided").pvalue)


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
    data, models, pool = subset.require_data("a test of single examples"), subset.split.test, subset.pool
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


# ------------------------------------------------------------------------------------- kinds of examples


@dataclass(frozen=True, kw_only=True, eq=False)
class ExampleHoldout(Record):
    """A subset predicted from features of the examples, on examples that took no part in selecting.

    Attributes:
        correlation: Of the test models on the pooled predicted set.
        random_mean: Mean R of random sets of that size on the same models.
        random_low: 2.5 % point of those.
        random_high: 97.5 % point.
        auroc: How well the features tell the members of the subset from the rest, in folds held out; mean
            over the folds with both. 0.5 is chance.
        predicted: Places of the predicted set.
    """

    derived = ("describable",)

    correlation: Correlation
    random_mean: float
    random_low: float
    random_high: float
    auroc: float
    predicted: Int64[np.ndarray, " size"]

    @property
    def describable(self) -> bool:
        """Whether R of the predicted set is below the range of 95 % of random sets, its interval below 0."""
        return self.correlation.r < self.random_low and self.correlation.high < 0


def example_holdout(
    subset: Subset, features: Float64[np.ndarray, "n d"] | None = None, *, folds: int = 5, seed: int = 0
) -> ExampleHoldout:
    """Is the subset a describable kind of input, or a list of single examples?

    For each of K folds of the examples: select S (K - 1) / K examples among the other folds, teach a logistic
    regression on features to tell them from the rest, and predict the S / K examples of the fold that look
    most like them. R of the test models on the pooled predictions, clearly below that of random sets, says
    that the features describe what makes better models fail.

    Args:
        subset: With its data.
        features: A row of numbers per example. Default: the embedding of the data.
        folds: Folds of the examples, at least 2.
        seed: Root seed.

    Raises:
        InputError: For a subset without data, data without features, or a subset smaller than `folds`.
        ShapeError: If `features` has not one row per example.

    Notes:
        L2 penalty, classes balanced, C by cross-validation inside the training folds (AUROC). Quotas of the
        selection are kept within the folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data, problem, size = subset.require_data("an example hold-out"), subset.problem, subset.size
    check_least(2, folds=folds)
    given = data.embedding if features is None else features
    if given is None or size < folds:
        raise InputError(
            f"a hold-out needs features of the examples, a row for each, and at least {folds} selected "
            f"examples; got {size} and {'none' if given is None else 'some'}"
        )
    phi = np.asarray(given, dtype=np.float64)
    if phi.ndim != 2 or len(phi) != data.n_examples:
        raise ShapeError(f"features has shape {phi.shape}; expected {data.n_examples} rows, one per example")
    rng = stream(seed, "example folds")
    possible = rng.permutation(subset.pool)
    fold_of, member = np.full(data.n_examples, -1), np.zeros(data.n_examples, dtype=bool)
    fold_of[possible], member[subset.indices] = np.arange(len(possible)) % folds, True
    predicted, areas = [], []
    for fold in range(folds):
        n_predicted = size // folds + (fold < size % folds)
        others, here = (fold_of >= 0) & (fold_of != fold), np.flatnonzero(fold_of == fold)
        if size - n_predicted >= others.sum() or n_predicted > len(here):
            raise InputError(
                f"a subset of {size} of {len(possible)} examples leaves too few to predict; choose a "
                "smaller one"
            )
        among = replace(problem, settings=replace(problem.settings, allowed=others))
        (chosen,) = among.select_all([size - n_predicted], [data.id_accuracy])[0]
        rows = np.concatenate([chosen, np.setdiff1d(np.flatnonzero(others), chosen)])
        taught = np.arange(len(rows)) < len(chosen)
        n_parts = max(2, min(3, len(chosen), len(rows) - len(chosen)))
        parts = StratifiedKFold(n_parts, shuffle=True, random_state=int(rng.integers(2**31)))
        logistic = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=1000))
        strengths = {"logisticregression__C": list(_STRENGTHS)}
        fitted = GridSearchCV(logistic, strengths, scoring="roc_auc", cv=parts).fit(phi[rows], taught)
        score = fitted.decision_function(phi[here])
        predicted.append(here[np.argsort(-score, kind="stable")[:n_predicted]])
        if 0 < member[here].sum() < len(here):
            areas.append(auroc(score, member[here]).value)
    pooled, models = np.concatenate(predicted), problem.split.test
    units = data.units()[models]
    random = baselines(problem, [size]).query("kind == 'random'").iloc[0]
    return ExampleHoldout(
        correlation=correlate(data.id_accuracy[models], problem.accuracy(pooled), units, seed=seed),
        random_mean=float(random["r"]),
        random_low=float(random["low"]),
        random_high=float(random["high"]),
        auroc=float(np.mean(areas)) if areas else math.nan,
        predicted=np.sort(pooled),
    )


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
        ShapeError: Vectors of different lengths.

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 7.
    """
    x, y = probit(checked_shares(id_accuracy, "id_accuracy")), probit(checked_shares(accuracy, "accuracy"))
    units = np.arange(len(x)) if groups is None else unit_codes(groups)
    if not x.shape == y.shape == units.shape:
        raise ShapeError(f"got {len(x)}, {len(y)} and {len(units)} values; give vectors over the same models")
    check_least(_FEWEST, models=len(x), start=start)
    check_least(1, step=step)
    rng, n_units = stream(seed, "models-needed"), int(units.max()) + 1
    if isinstance(orders, int | np.integer):
        orders = [rng.permutation(n_units) for _ in range(int(orders))]
    ordered = np.stack([np.asarray(each) for each in orders])
    k = np.unique(np.append(np.arange(min(start, len(x)), len(x), step), len(x)))
    # Models unit by unit, and the number of models after each unit.
    places = np.argsort(np.argsort(ordered, axis=1)[:, units], axis=1, kind="stable")
    after = np.cumsum(np.bincount(units, minlength=n_units)[ordered], axis=1)
    n_used = np.stack([row[np.searchsorted(row, k)] for row in after])
    curves = np.take_along_axis(_growing_correlations(x[places], y[places]), n_used - 1, axis=1)
    settled = [_stable(row, used, tolerance) for row, used in zip(curves, n_used, strict=True)]
    return ModelsNeeded(k=k, n_used=n_used, curves=curves, stable=tuple(settled), whole_runs=n_units < len(x))


def _growing_correlations(
    x: Float64[np.ndarray, "orders m"], y: Float64[np.ndarray, "orders m"]
) -> Float64[np.ndarray, "orders m"]:
    """Pearson correlation of the first 1, 2, ... entries of each row; NaN where a side is constant so far."""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    sums = [np.cumsum(each, axis=1) for each in (np.ones_like(x), x, y, x * x, y * y, x * y)]
    # Differences of sums leave rounding where all values are equal.
    floors = [np.maximum(DEGENERATE, 1e-13 * (side * side).sum(axis=1, keepdims=True)) for side in (x, y)]
    return np.asarray(of_sums(sums, floors))


def _stable(
    curve: Float64[np.ndarray, " sizes"], n_used: Int64[np.ndarray, " sizes"], tolerance: float
) -> int | None:
    """The first size from which on all relative changes are small; sizes that add no run settle nothing."""
    added = np.flatnonzero(np.diff(n_used) > 0)
    before, now = curve[added], curve[added + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        small = np.abs(now - before) / np.abs(before) < tolerance
    large = np.flatnonzero(~small)
    first = int(large[-1]) + 1 if len(large) else 0
    return int(n_used[added[first] + 1]) if first < len(added) else None
