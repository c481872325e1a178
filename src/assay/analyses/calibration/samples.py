"""What gates share: runs in independent units, the ratio under study, scores of heads and their bounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Real, Shaped

from assay.analyses.calibration.gate import Found, Undetermined
from assay.core.errors import ShapeError, check_name
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, undefined_interval
from assay.stats import RatioOfSums, ratio_of


ALPHA = 0.05
FEWEST = 3  # prompts, or units, below which nothing about their spread is known
FEWEST_AT_A_THIRD = 5  # from which bounds of a skewed mean hold 5 % when they are taken at a third of it

_UNDEFINED_SHARE = 0.01  # replicates that may be undefined before their percentiles are
HALF = Rule(pass_at=0.5, strict=False)  # of the heads
_EQUAL = 1e-12  # relative spread below which replicates differ by rounding only


def inner_metric(name: str) -> RatioOfSums:
    """Of sums (circuit, full): `faithfulness` of kept circuits, `completeness` of dropped ones."""
    check_name("inner metric", name, ("faithfulness", "completeness"))
    if name == "faithfulness":
        return ratio_of("circuit", "full")
    return ratio_of("circuit", "full", offset=1.0, scale=-1.0)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Runs on the same prompts, summed within units that are independent of each other.

    Attributes:
        vectors: `[n, ...]` each: sums within a unit, scaled so that means over units are means over prompts.
        n: Units; prompts where none are named.
        n_prompts: Prompts left after paired deletion.
        n_dropped: Prompts at which some run is not finite.
        used: `[n_given]` prompts left in.
        unit: `[n_prompts]` the unit of each prompt left in.
    """

    vectors: tuple[Float64[np.ndarray, "..."], ...]
    n: int
    n_prompts: int
    n_dropped: int
    used: Bool[np.ndarray, " n_given"]
    unit: Int64[np.ndarray, " n_prompts"]

    @property
    def table(self) -> Float64[np.ndarray, "n_vectors n"]:
        """The vectors, each `[n]`, as rows: what statistics of sums take."""
        return np.stack(self.vectors)

    @property
    def warnings(self) -> tuple[str, ...]:
        """`prompts_dropped` where there are any."""
        return ("prompts_dropped",) if self.n_dropped else ()

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of prompts and units, for details."""
        return {"n_prompts": self.n_prompts, "n_dropped": self.n_dropped, "n_units": self.n}

    def missing(self, fewest: int = FEWEST) -> str | None:
        """Why there is nothing to say, or None."""
        return "no_valid_prompt" if self.n == 0 else "too_few" if self.n < fewest else None

    def found(self, metric: str, *warnings: str, fewest: int | None = FEWEST, **details: Any) -> Found:
        """What a gate computes of these runs, begun: codes, name and numbers of prompts.

        Raises:
            Undetermined: Without a prompt (`no_valid_prompt`), or below `fewest` units (`too_few`).
        """
        found = Found(
            n=self.n,
            warnings=(*self.warnings, *warnings),
            details={"metric": metric, **self.counts, **details},
        )
        if fewest is not None and (reason := self.missing(fewest)):
            raise Undetermined(reason, found)
        return found

    def label(self, labels: Shaped[np.ndarray, " n_given"], name: str) -> Shaped[np.ndarray, " n_prompts"]:
        """Labels of the prompts left in."""
        if labels.shape != self.used.shape:
            raise ShapeError(f"{name} has shape {labels.shape}; one per prompt, {self.used.shape}, is needed")
        return np.asarray(labels[self.used])

    def unit_labels(
        self, labels: Shaped[np.ndarray, " n_given"], name: str
    ) -> tuple[Int64[np.ndarray, " n"], bool]:
        """A label per unit, coded, and whether every unit has only one."""
        codes = np.unique(self.label(labels, name), return_inverse=True)[1].reshape(-1).astype(np.int64)
        of_unit = np.zeros(self.n, dtype=np.int64)
        of_unit[self.unit[::-1]] = codes[::-1]  # the first prompt of a unit speaks for it
        return of_unit, bool((of_unit[self.unit] == codes).all())

    def shuffled(self, rng: np.random.Generator, strata: Any) -> Int64[np.ndarray, " n"]:
        """A random order of the units, every stretch of which holds the strata in about their proportions."""
        order = rng.permutation(self.n)
        if strata is None:
            return order
        codes, place = self.unit_labels(strata, "strata")[0], np.empty(self.n)
        for stratum in np.unique(codes):
            members = order[codes[order] == stratum]
            place[members] = (np.arange(len(members)) + rng.random()) / len(members)
        return np.argsort(place, kind="stable")


def sample(unit_id: Shaped[np.ndarray, " n_given"] | None = None, **vectors: Any) -> Sample:
    """Vectors without the prompts at which any of them is NaN or infinite, summed within units.

    Args:
        unit_id: Which prompts belong together (one image, one sentence), `[n_given]`; None: each by itself.
        **vectors: `[n_given]` or `[n_given, ...]` each.

    Raises:
        ShapeError: If their numbers of prompts differ; the names given are in the message.
    """
    arrays = {name: np.asarray(vector, dtype=np.float64) for name, vector in vectors.items()}
    lengths = {name: array.shape[0] if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ShapeError(f"arrays to compare have different numbers of prompts: {shapes}")
    used = np.ones(next(iter(arrays.values())).shape[0], dtype=np.bool_)
    for array in arrays.values():
        used &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    n_prompts = int(used.sum())
    kept, codes = [array[used] for array in arrays.values()], np.arange(n_prompts)
    if unit_id is not None:
        if unit_id.shape != used.shape:
            raise ShapeError(f"unit_id has shape {unit_id.shape}; one per prompt, {used.shape}, is needed")
        codes = np.unique(unit_id[used], return_inverse=True)[1].reshape(-1).astype(np.int64)
        kept = [summed(vector, codes) for vector in kept]
    return Sample(
        vectors=tuple(kept),
        n=int(codes.max()) + 1 if len(codes) else 0,
        n_prompts=n_prompts,
        n_dropped=len(used) - n_prompts,
        used=used,
        unit=codes,
    )


def summed(
    vector: Float64[np.ndarray, "n_prompts ..."], codes: Int64[np.ndarray, " n_prompts"]
) -> Float64[np.ndarray, "n_units ..."]:
    """Sums within units 0..n_units-1, scaled so that the mean over units is the mean over prompts."""
    if not len(codes):
        return vector
    n_units = int(codes.max()) + 1
    sums = np.zeros((n_units, *vector.shape[1:]))
    np.add.at(sums, codes, vector)
    return sums * (n_units / len(codes))


def cautious_alpha(n: int, plain_from: int) -> float:
    """One-sided level at which bounds of a mean of `n` values hold 5 % for normal, t5 and exponential ones.

    Args:
        n: Values, 5 or more.
        plain_from: Number from which the bounds hold what they say; below, a third of 0.05 is taken, since at
            0.05 exponential values are missed in up to 7 % of samples.
    """
    return ALPHA if n >= plain_from else ALPHA / 3


def conjunction(parts: Sequence[str]) -> str:
    """`fail` where any part fails, `pass` where all pass; else `moderate` where none is open."""
    if "fail" in parts:
        return "fail"
    if not parts or "inconclusive" in parts:
        return "inconclusive"
    return "moderate" if "moderate" in parts else "pass"


# ---- scores of heads ----------------------------------------------------------------------------------


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


def scored_heads(table: Float64[np.ndarray, "*P H"]) -> Bool[np.ndarray, " H"]:
    """Heads that have a score at all: some finite entry in their column, or a finite entry."""
    return np.asarray(np.isfinite(np.atleast_2d(table)).any(axis=0))


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
