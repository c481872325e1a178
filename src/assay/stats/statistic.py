"""Statistics as named functions of sums over examples.

`RatioOfSums` covers means, recoveries, baseline-corrected recoveries and areas under a curve of
them; `FunctionOfSums` whatever else is a function of sums. Both resample without a model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from assay.core.errors import FileFormatError, InputError, check_name
from assay.core.random import stream
from assay.core.record import BRIEF, Record
from assay.core.verdict import Interval
from assay.stats.intervals import (
    bootstrap_interval,
    bounded_mean,
    clopper_pearson,
    delta_interval,
    fieller_interval,
)


Table = Float64[np.ndarray, "n_components n"]
_METHODS = ("bca", "percentile", "delta", "fieller", "clopper-pearson", "betting")


@dataclass(frozen=True, kw_only=True)
class RatioOfSums(Record):
    """F = offset + scale * N / D, N and D linear in the sums of components.

    Attributes:
        numerator: Coefficient of each component's sum in N.
        denominator: The same for D; empty means the number of examples, so F is affine in means.
        offset: Added to the ratio.
        scale: Multiplies the ratio.
        smallest: The ratio is undefined where |D| < smallest * n.
        bounds: Of a mean: smallest and largest N that an example can have; its interval then holds for any
            distribution between them, at every n.
    """

    record_kind = "ratio-of-sums"

    numerator: Mapping[str, float]
    denominator: Mapping[str, float] = field(default_factory=dict)
    offset: float = 0.0
    scale: float = 1.0
    smallest: float = 1e-8
    bounds: tuple[float, float] | None = field(default=None, metadata=BRIEF)

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the per-example vectors it sums."""
        return tuple(dict.fromkeys((*self.numerator, *self.denominator)))

    def _coefficients(self) -> Float64[np.ndarray, "2 n_components"]:
        """Of N and of D. Used one by one: products with both round otherwise, and tied resamples part."""
        sides = (self.numerator, self.denominator)
        return np.array([[float(side.get(name, 0.0)) for name in self.components] for side in sides])

    def of_sums(self, sums: Float[np.ndarray, "*draws n_components"], n: int) -> Float[np.ndarray, "*draws"]:
        """F from the sums over `n` examples; NaN where the denominator vanishes."""
        pair = np.stack([sums @ side for side in self._coefficients()], axis=-1)
        if not self.denominator:
            pair[..., 1] = n
        return self._of_pair(pair, n)

    def _of_pair(self, sums: Float[np.ndarray, "*draws 2"], n: int) -> Float[np.ndarray, "*draws"]:
        """F from the sums N and D themselves."""
        top, bottom = sums[..., 0], sums[..., 1]
        usable = np.abs(bottom) >= max(self.smallest * n, np.finfo(np.float64).tiny)
        ratio = np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=usable)
        return np.asarray(self.offset + self.scale * ratio)

    def _per_example(self, values: Table) -> Float64[np.ndarray, "2 n"]:
        pair = np.stack([side @ values for side in self._coefficients()])
        if not self.denominator:
            pair[1] = 1.0
        return pair

    def pair(self, values: Table) -> tuple[Float64[np.ndarray, "n 1"], Float64[np.ndarray, " n"] | None]:
        """F as one ratio: offset D + scale N per example, as a column, and D; None for a mean."""
        top, bottom = self._per_example(values)
        column = (self.offset * bottom + self.scale * top)[:, None]
        return column, bottom if self.denominator else None

    def linearised(self, values: Table) -> Float64[np.ndarray, " n"]:
        """Per-example values that average to F: F plus influence; for a mean, the data themselves.

        F_i = F + scale (N_i - (N / D) D_i) / mean(D); spread over root n is the delta standard error.
        """
        top, bottom = self._per_example(values)
        with np.errstate(divide="ignore", invalid="ignore"):  # a vanishing denominator leaves nothing defined
            ratio = top.sum() / bottom.sum()
            linear = self.offset + self.scale * (ratio + (top - ratio * bottom) / bottom.mean())
        return np.asarray(linear)

    def unstable(self, values: Table) -> bool:
        """Whether the denominator's mean is within three standard errors of zero."""
        bottom = self._per_example(values)[1]
        n = len(bottom)
        return n > 1 and bool(abs(bottom.mean()) < 3 * bottom.std(ddof=1) / math.sqrt(n))

    def interval(
        self, values: Table, *, level: float = 0.95, method: str | None = None, seed: int = 0
    ) -> Interval:
        """Interval over examples; by default betting (bounded means), Fieller (unstable ratios) or BCa."""
        method = method or ("betting" if self.bounds else "fieller" if self.unstable(values) else "bca")
        check_name("interval method", method, _METHODS)
        pair = self._per_example(values)
        top, bottom = pair
        if method in ("bca", "percentile"):
            rng = stream(seed, "bootstrap")
            return bootstrap_interval(pair, self._of_pair, rng=rng, level=level, method=method)
        if method == "delta":
            linear = self.linearised(values)
            return delta_interval(float(linear.mean()), linear, level=level)
        if method == "fieller":
            found = fieller_interval(top, bottom, level=level)
        elif method == "betting" and self.bounds and not self.denominator:
            found = bounded_mean(top, level=level, bounds=self.bounds)
        elif method == "clopper-pearson" and not self.denominator and np.isin(top, (0.0, 1.0)).all():
            found = clopper_pearson(int(top.sum()), len(top), level=level)
        else:
            needed = "with known bounds" if method == "betting" else "that are 0 or 1"
            raise InputError(f"a {method} interval needs the mean of values {needed}; use 'bca'")
        # Of N / D, whose ends a negative scale swaps.
        ends = sorted((self.offset + self.scale * found.low, self.offset + self.scale * found.high))
        return replace(found, low=ends[0], high=ends[1])


def mean_of(
    name: str, *, offset: float = 0.0, scale: float = 1.0, bounds: tuple[float, float] | None = None
) -> RatioOfSums:
    """A mean of one component, scaled and shifted: offset + scale * mean; `bounds` are the component's."""
    return RatioOfSums(numerator={name: 1.0}, offset=offset, scale=scale, bounds=bounds)


def mean_difference(name: str, minus: str) -> RatioOfSums:
    """Mean of one component less the mean of another."""
    return RatioOfSums(numerator={name: 1.0, minus: -1.0})


def ratio_of(
    name: str, over: str, *, offset: float = 0.0, scale: float = 1.0, smallest: float = 1e-8
) -> RatioOfSums:
    """Sum of one component over the sum of another, scaled and shifted: offset + scale * ratio."""
    how: dict[str, Any] = {"offset": offset, "scale": scale, "smallest": smallest}
    return RatioOfSums(numerator={name: 1.0}, denominator={over: 1.0}, **how)


def recovery_of(
    name: str, *, full: str = "full", empty: str = "empty", smallest: float = 1e-8
) -> RatioOfSums:
    """(sum of `name` - sum of `empty`) / (sum of `full` - sum of `empty`)."""
    numerator = {name: 1.0, empty: -1.0}
    return RatioOfSums(numerator=numerator, denominator={full: 1.0, empty: -1.0}, smallest=smallest)


@dataclass(frozen=True, kw_only=True)
class FunctionOfSums(Record):
    """A named function of the sums of components that is not a ratio of sums.

    Attributes:
        function: `distance-area` or `difference`; takes the sums `[..., n_components]`, n and the parameters.
        components: Names of the per-example vectors it sums, in the order the function expects.
        parameters: JSON values passed on by keyword.
    """

    record_kind = "function-of-sums"

    function: str
    components: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def of_sums(self, sums: Float[np.ndarray, "*draws n_components"], n: int) -> Float[np.ndarray, "*draws"]:
        """The function at the sums over `n` examples."""
        return np.asarray(_FUNCTIONS[self.function](sums, n, **self.parameters))

    def linearised(self, values: Table) -> Float64[np.ndarray, " n"]:
        """F plus the jackknife influence (n - 1) (mean of F without an example - F without it)."""
        n = values.shape[1]
        totals = values.sum(axis=1)
        point = self.of_sums(totals, n)
        if n < 2:
            return np.full(n, point)
        left_out = self.of_sums(totals - values.T, n - 1)
        return np.asarray(point + (n - 1) * (left_out.mean() - left_out))

    def interval(
        self, values: Table, *, level: float = 0.95, method: str | None = None, seed: int = 0
    ) -> Interval:
        """Interval over examples: `bca` (default), `percentile` or `delta` (from the jackknife)."""
        if method == "delta":
            point = float(self.of_sums(values.sum(axis=1), values.shape[1]))
            return delta_interval(point, self.linearised(values), level=level)
        rng = stream(seed, "bootstrap")
        return bootstrap_interval(values, self.of_sums, rng=rng, level=level, method=method or "bca")


def _distance_area(
    sums: Float[np.ndarray, "*draws n_components"], n: int, *, weights: list[float], smallest: float
) -> Float[np.ndarray, "*draws"]:
    """sum_k w_k |1 - (S_k - S_empty) / (S_full - S_empty)|; components are empty, full, then the points."""
    empty, full, points = sums[..., :1], sums[..., 1:2], sums[..., 2:]
    bottom = full - empty
    usable = np.broadcast_to(np.abs(bottom) >= max(smallest * n, np.finfo(np.float64).tiny), points.shape)
    recovered = np.divide(points - empty, bottom, out=np.full(points.shape, np.nan), where=usable)
    return np.asarray(np.abs(1 - recovered) @ np.array(weights))


def _difference(
    sums: Float[np.ndarray, "*draws n_components"], n: int, *, a: Mapping[str, Any], b: Mapping[str, Any]
) -> Float[np.ndarray, "*draws"]:
    """Statistic b of the last components less statistic a of the first."""
    first, second = statistic_from_dict(a), statistic_from_dict(b)
    place = len(first.components)
    return np.asarray(second.of_sums(sums[..., place:], n) - first.of_sums(sums[..., :place], n))


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"distance-area": _distance_area, "difference": _difference}
Sample = tuple[RatioOfSums | FunctionOfSums, Mapping[str, Float64[np.ndarray, " n"]]]


def paired_difference(a: Sample, b: Sample) -> Sample:
    """Statistic b less statistic a of the same examples, as one statistic.

    Args:
        a: A statistic and its components, one value per example.
        b: The same for the other side.

    Returns:
        The statistic and its components, named `a/NAME` and `b/NAME`. Two ratios of one scale over the same
        sums are one ratio: (sum of b's numerator - sum of a's) / their denominator. Two means of values in
        `bounds` differ by the mean of values in +- the width of `bounds`.
    """
    (first, values), (second, others) = a, b
    components = {f"a/{name}": values[name] for name in first.components}
    components |= {f"b/{name}": others[name] for name in second.components}
    if (
        isinstance(first, RatioOfSums)
        and isinstance(second, RatioOfSums)
        and replace(first, offset=0.0) == replace(second, offset=0.0)
        and all(np.array_equal(values[name], others[name], equal_nan=True) for name in first.denominator)
    ):
        width = None if first.bounds is None else first.bounds[1] - first.bounds[0]
        ratio = replace(
            first,
            numerator={f"b/{name}": each for name, each in second.numerator.items()}
            | {f"a/{name}": -each for name, each in first.numerator.items()},
            denominator={f"a/{name}": each for name, each in first.denominator.items()},
            offset=second.offset - first.offset,
            bounds=None if width is None else (-width, width),
        )
        return ratio, {name: components[name] for name in ratio.components}
    parameters = {"a": first.to_dict(), "b": second.to_dict()}
    function = FunctionOfSums(function="difference", components=tuple(components), parameters=parameters)
    return function, components


def statistic_from_dict(record: Mapping[str, Any]) -> RatioOfSums | FunctionOfSums:
    """The statistic that `to_dict` described."""
    for form in (RatioOfSums, FunctionOfSums):
        if record.get("kind") == form.record_kind:
            return form.from_dict(record)
    raise FileFormatError(
        f"unknown kind of statistic: {record.get('kind')!r}; the file may be of a newer version"
    )
