"""Score tables as gates take them: what is missing, what repeats, and bounds from resampling them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Real, Shaped

from assay.analyses.calibration.gate import ALPHA
from assay.analyses.calibration.samples import Sample, sample
from assay.core.errors import InputError, ShapeError
from assay.core.verdict import ONE_SIDED_95, Interval, Rule, undefined_interval


_UNDEFINED_SHARE = 0.01  # replicates that may be undefined before their percentiles are
HALF = Rule(pass_at=0.5, strict=False)  # of the heads
_EQUAL = 1e-12  # relative spread below which replicates differ by rounding only


def percentile_bounds(
    point: float, replicates: Float64[np.ndarray, " _"], *, level: float = ONE_SIDED_95
) -> Interval:
    """Percentiles of replicates; by default two one-sided 95 % bounds.

    Returns:
        Undefined (`undefined_replicates`) where more than 1 % of the replicates are; both ends at the point
        (`degenerate`) where they are all equal.
    """
    defined = replicates[np.isfinite(replicates)]
    if math.isnan(point) or len(defined) < max(1.0, (1 - _UNDEFINED_SHARE) * len(replicates)):
        return undefined_interval(level, "percentile", "undefined_replicates")
    if np.ptp(defined) <= _EQUAL * max(abs(point), float(np.abs(defined).max())):
        return Interval(low=point, high=point, level=level, method="percentile", reason="degenerate")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(low=float(low), high=float(high), level=level, method="percentile")


def halves(n: int, n_splits: int, rng: np.random.Generator) -> Float64[np.ndarray, "2 n_splits n"]:
    """Weights that average over either half of n units, for random splits; the second has the odd one."""
    first = np.zeros((n_splits, n))
    np.put_along_axis(first, np.argsort(rng.random((n_splits, n)), axis=1)[:, : n // 2], 1.0, axis=1)
    return np.stack([first / (n // 2), (1 - first) / (n - n // 2)])


def mirrored(point: float, interval: Interval) -> Interval:
    """The interval reflected at the point."""
    return replace(interval, low=2 * point - interval.high, high=2 * point - interval.low)


def exactly(value: float) -> Interval:
    """The interval of a number that no sample stands behind."""
    return Interval(low=value, high=value, level=ONE_SIDED_95, method="exact")


def scored_heads(table: Float64[np.ndarray, "*P H"]) -> Bool[np.ndarray, " H"]:
    """Heads that have a score at all: some finite entry in their column, or a finite entry."""
    return np.asarray(np.isfinite(np.atleast_2d(table)).any(axis=0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Profiles:
    """Scores of the same heads by several methods.

    Attributes:
        names: Methods.
        means: `[m, H]`; NaN where a method does not score a head.
        tables: Method -> `[n_units, H]`, one row per independent unit, averaging to its `means`; NaN in
            columns without scores. Of the methods that have scores per prompt.
        n_units: Independent units behind the tables.
        n_prompts: Prompts used; 0 where no method has scores per prompt.
        n_dropped: Prompts left out because a score was not finite.
    """

    names: tuple[str, ...]
    means: Float64[np.ndarray, "m H"]
    tables: Mapping[str, Float64[np.ndarray, "n_units H"]]
    n_units: int
    n_prompts: int
    n_dropped: int

    @property
    def per_prompt(self) -> bool:
        """Whether any method came with scores per prompt."""
        return bool(self.tables)


def profiles(scores: Mapping[str, Any], *, unit_id: Shaped[np.ndarray, " P"] | None = None) -> Profiles:
    """Scores `[H]` or `[P, H]` of each method, with the same prompts left in each.

    Raises:
        ShapeError: If methods differ in their number of heads or prompts.
    """
    arrays = {name: np.asarray(score, dtype=np.float64) for name, score in scores.items()}
    shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
    if any(array.ndim not in (1, 2) for array in arrays.values()):
        raise ShapeError(f"scores have shapes {shapes}; expected [H] or [prompts, H]")
    if len({array.shape[-1] for array in arrays.values()}) > 1:
        raise ShapeError(f"scores have different numbers of heads: {shapes}")
    sampled = {name: array for name, array in arrays.items() if array.ndim == 2}
    means = {name: np.where(np.isfinite(array), array, np.nan) for name, array in arrays.items()}
    tables: dict[str, Float64[np.ndarray, "n_units H"]] = {}
    kept = None
    if sampled:
        scored = {name: scored_heads(array) for name, array in sampled.items()}
        kept = sample(unit_id, **{name: array[:, scored[name]] for name, array in sampled.items()})
        for name, vector in zip(sampled, kept.vectors, strict=True):
            tables[name] = np.full((kept.n, len(scored[name])), np.nan)
            tables[name][:, scored[name]] = vector
            means[name] = tables[name].mean(axis=0) if kept.n else np.full(len(scored[name]), np.nan)
    return Profiles(
        names=tuple(arrays),
        means=np.stack(list(means.values())) if arrays else np.empty((0, 0)),
        tables=tables,
        n_units=0 if kept is None else kept.n,
        n_prompts=0 if kept is None else kept.n_prompts,
        n_dropped=0 if kept is None else kept.n_dropped,
    )


def circuit_size(k: int | None, members: Bool[np.ndarray, " H"] | None, n_heads: int) -> int | None:
    """Size of the circuit, said or counted; None if neither is given."""
    if k is None:
        return None if members is None else int(members.sum())
    if not 0 <= k <= n_heads:
        raise InputError(f"k is {k}; a number of heads between 0 and {n_heads} is needed")
    return k


def finite_heads(table: Real[np.ndarray, "n k"], unit_id: Any) -> tuple[Sample, Bool[np.ndarray, " k"]]:
    """Prompts finite at all heads that are finite anywhere; the others hold zeros and are marked."""
    x = np.asarray(table, dtype=np.float64)
    if x.ndim != 2:
        raise ShapeError(f"a table of heads has shape {x.shape}; prompts by heads are needed")
    finite = np.isfinite(x).any(axis=0) if len(x) else np.ones(x.shape[1], dtype=np.bool_)
    return sample(unit_id, heads=np.where(finite, x, 0.0)), np.asarray(finite)


def majorities(k: int) -> tuple[int, int]:
    """How many of k heads are half of them, and how many more than half."""
    return (k + 1) // 2, k // 2 + 1


def by_p(p_pass: float, p_fail: float) -> str:
    """`fail` before `pass`: the two exclude each other, as heads of one kind are not of the other."""
    return "fail" if p_fail <= ALPHA else "pass" if p_pass <= ALPHA else "inconclusive"
