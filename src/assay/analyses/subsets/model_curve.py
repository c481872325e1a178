"""How many models the correlation over models needs before more of them stop changing it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from assay.analyses.subsets.line import DEGENERATE, EPS, checked_shares, probit
from assay.analyses.subsets.splits import unit_codes
from assay.core.errors import InputError, ShapeError, check_least, unknown_name
from assay.core.random import stream
from assay.core.record import Record


START = 10
STEP = 10
TOLERANCE = 0.01
ORDERS = 20
UNITS = ("group", "model")
_FEWEST = 3  # two models always correlate perfectly


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelsNeeded(Record):
    """The correlation over the first k models, in several orders of the models.

    Attributes:
        k: Sizes asked for, ascending; the last is the number of models.
        n_used: Models behind each number, at least `k`: more where whole runs are added.
        curves: R(k) of each order; NaN where a side is constant.
        relative_change: c(k) = |R(k) - R(k')| / |R(k')|, k' the size before; NaN at the first size, where R
            is undefined or 0 before, and where no run was added since.
        first: For each order the smallest number of models with c < tol; None if there is none.
        stable: For each order the smallest from which on every c < tol; None if the last change is larger.
        tol: The tolerance on c.
        unit: What is added: `model`, or whole `group` (training run).
        n_units: Units in all.
        seed: Root of the orders; None where they were given.
    """

    derived = ("n_models", "mean", "median", "range", "n_never")

    k: Int64[np.ndarray, " sizes"]
    n_used: Int64[np.ndarray, "orders sizes"]
    curves: Float64[np.ndarray, "orders sizes"]
    relative_change: Float64[np.ndarray, "orders sizes"]
    first: tuple[int | None, ...]
    stable: tuple[int | None, ...]
    tol: float | int
    unit: str
    n_units: int
    seed: int | None

    @property
    def n_models(self) -> int:
        """Models in all, M."""
        return int(self.k[-1])

    @property
    def mean(self) -> Float64[np.ndarray, " sizes"]:
        """R(k), averaged over the orders in which it is defined; NaN where it is in none."""
        defined = np.isfinite(self.curves)
        n = defined.sum(axis=0)
        total = np.where(defined, self.curves, 0.0).sum(axis=0)
        return np.asarray(np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0))

    @property
    def median(self) -> float:
        """Median of `stable` over the orders; NaN where half of them or more never settle."""
        return self._of_stable(np.median)

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest `stable` over the orders; NaN for an order that never settles."""
        return self._of_stable(np.min), self._of_stable(np.max)

    def _of_stable(self, statistic: Callable[[list[float]], Any]) -> float:
        value = float(statistic([math.inf if each is None else each for each in self.stable]))
        return value if math.isfinite(value) else math.nan

    @property
    def n_never(self) -> int:
        """Orders that never settle."""
        return self.stable.count(None)


def models_needed(
    id_accuracy: Any,
    accuracy: Any,
    *,
    groups: Sequence[object] | np.ndarray | None = None,
    start: int = START,
    step: int = STEP,
    tol: float | int = TOLERANCE,
    orders: int | Sequence[Any] | np.ndarray = ORDERS,
    unit: str | None = None,
    seed: int = 0,
    eps: float | int = EPS,
) -> ModelsNeeded:
    """R over growing sets of models, and the size from which on it changes by less than `tol`.

    R(k) is the correlation of probit(accuracy) and probit(id_accuracy) over the first k models of an order,
    for k = start, start + step, ... and all models; c(k) = |R(k) - R(k - step)| / |R(k - step)|.

    Args:
        id_accuracy: In-distribution accuracy per model, in [0, 1].
        accuracy: Out-of-distribution accuracy per model, in [0, 1]: usually on all examples.
        groups: Training run of each model.
        start: First size, at least 3.
        step: Between sizes, at least 1.
        tol: Relative change below which R has settled, above 0.
        orders: How many random orders; or the orders: permutations of the units, a unit being a place in
            `id_accuracy`, or in the sorted names of the groups.
        unit: What is added: `model`, or whole `group`, the default where groups are given. A size then stands
            for the fewest whole groups that hold as many models.
        seed: Root of the random orders.
        eps: Clip of the accuracies.

    Raises:
        InputError: Accuracies outside [0, 1], fewer than 3 models, an option out of range, or an order that
            is not a permutation of the units.
        ShapeError: Vectors of different lengths.

    Notes:
        One pass over the models for all orders, each model added in O(1) (Welford 1962).

    References:
        Salaudeen et al. (2025), arXiv:2510.24884, Figure 7.
    """
    x, y = checked_shares(id_accuracy, "id_accuracy"), checked_shares(accuracy, "accuracy")
    if x.shape != y.shape:
        raise ShapeError(
            f"id_accuracy has shape {x.shape} and accuracy {y.shape}; give one accuracy per model in each"
        )
    if len(x) < _FEWEST:
        raise InputError(f"id_accuracy holds {len(x)} models; expected at least {_FEWEST}")
    if start < _FEWEST or step < 1 or not tol > 0:
        raise InputError(
            f"start={start}, step={step}, tol={tol}; expected start of at least {_FEWEST}, step of at least "
            "1 and tol above 0"
        )
    if unit is not None and unit not in UNITS:
        raise unknown_name("unit", unit, UNITS)
    if unit == "group" and groups is None:
        raise InputError("unit='group' adds whole training runs; give groups=, the run of each model")
    unit = unit or ("model" if groups is None else "group")
    units = np.arange(len(x))
    if unit == "group":
        units = unit_codes(np.asarray(groups))
        if units.shape != x.shape:
            raise ShapeError(f"groups holds {len(units)} names for {len(x)} models")
    n_units = int(units.max()) + 1
    ordered = _orders(orders, n_units, seed)
    k = np.unique(np.append(np.arange(min(start, len(x)), len(x), step), len(x)))
    # Models unit by unit, and the number of models after each unit.
    places = np.argsort(np.argsort(ordered, axis=1)[:, units], axis=1, kind="stable")
    after = np.cumsum(np.bincount(units, minlength=n_units)[ordered], axis=1)
    n_used = np.stack([row[np.searchsorted(row, k)] for row in after])
    curves = np.take_along_axis(
        prefix_correlations(probit(x, eps=eps)[places], probit(y, eps=eps)[places]), n_used - 1, axis=1
    )
    change = _relative_change(curves, n_used)
    settled = [_settled(row, used, float(tol)) for row, used in zip(change, n_used, strict=True)]
    return ModelsNeeded(
        k=k,
        n_used=n_used,
        curves=curves,
        relative_change=change,
        first=tuple(first for first, _ in settled),
        stable=tuple(stable for _, stable in settled),
        tol=tol,
        unit=unit,
        n_units=n_units,
        seed=seed if isinstance(orders, int | np.integer) else None,
    )


def _orders(orders: Any, n_units: int, seed: int) -> Int64[np.ndarray, "orders n_units"]:
    """Permutations of the units, one row each."""
    if isinstance(orders, int | np.integer):
        check_least(1, orders=orders)
        rng = stream(seed, "models-needed")
        return np.stack([rng.permutation(n_units) for _ in range(orders)]).astype(np.int64)
    arrays = [np.asarray(each) for each in orders]
    if not arrays:
        raise InputError("orders is empty; give at least one permutation, or their number")
    for place, each in enumerate(arrays):
        if not np.array_equal(np.sort(each, axis=None), np.arange(n_units)) or each.ndim != 1:
            raise InputError(
                f"orders[{place}] is not a permutation of the {n_units} units 0 to {n_units - 1}; give a "
                "permutation, or the number of random orders"
            )
    return np.stack(arrays).astype(np.int64)


def prefix_correlations(
    x: Float64[np.ndarray, "orders m"], y: Float64[np.ndarray, "orders m"]
) -> Float64[np.ndarray, "orders m"]:
    """Pearson correlation of the first 1, 2, ... entries of each row.

    With dx, dy the deviations of the new pair from the means so far and f = n / (n + 1): Sxx += f dx^2,
    Syy += f dy^2, Sxy += f dx dy.

    Returns:
        NaN where a side is constant so far.

    References:
        Welford (1962), doi:10.1080/00401706.1962.10490022.
    """
    orders, m = x.shape
    correlations = np.full((orders, m), np.nan)
    mean_x, mean_y, sxx, syy, sxy = np.zeros((5, orders))
    for n in range(m):
        dx, dy, weight = x[:, n] - mean_x, y[:, n] - mean_y, n / (n + 1)
        sxx += weight * dx * dx
        syy += weight * dy * dy
        sxy += weight * dx * dy
        mean_x += dx / (n + 1)
        mean_y += dy / (n + 1)
        defined = (sxx >= DEGENERATE) & (syy >= DEGENERATE)
        np.divide(sxy, np.sqrt(sxx * syy), out=correlations[:, n], where=defined)
    return np.asarray(np.clip(correlations, -1.0, 1.0))


def _relative_change(
    curves: Float64[np.ndarray, "orders sizes"], n_used: Int64[np.ndarray, "orders sizes"]
) -> Float64[np.ndarray, "orders sizes"]:
    """c(k); NaN where it is undefined or nothing was added, so that a size of a large run settles nothing."""
    change = np.full_like(curves, np.nan)
    before, now = curves[:, :-1], curves[:, 1:]
    usable = np.isfinite(before) & np.isfinite(now) & (before != 0) & (np.diff(n_used, axis=1) > 0)
    np.divide(np.abs(now - before), np.abs(before), out=change[:, 1:], where=usable)
    return change


def _settled(
    change: Float64[np.ndarray, " sizes"], n_used: Int64[np.ndarray, " sizes"], tol: float
) -> tuple[int | None, int | None]:
    """The first size whose change is below `tol`, and the first from which on all are."""
    added = np.append(False, np.diff(n_used) > 0)
    sizes, below = n_used[added], change[added] < tol
    if not below.any():
        return None, None
    above = np.flatnonzero(~below)
    rest = int(above[-1]) + 1 if len(above) else 0
    return int(sizes[np.argmax(below)]), int(sizes[rest]) if rest < len(sizes) else None
