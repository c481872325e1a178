"""What gates share: runs in independent units, the ratio under study, scores of heads and their bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int64, Real, Shaped

from assay import stats
from assay.analyses.calibration.gate import SEED, Found, Undetermined, gate_stream
from assay.core.errors import ShapeError, check_name
from assay.core.measurement import ONE_SIDED_95, Interval, Rule, undefined_interval
from assay.discovery.heads.membership import set_overlap
from assay.discovery.heads.weights import member_ratio


ALPHA = 0.05
N_BOOT = 999  # resamples of heads, and of prompts behind a ratio that C14 forwards
FEWEST_FOR_RATIOS = 20  # prompts
FEWEST = 3  # prompts, or units, below which nothing about their spread is known
FEWEST_AT_A_THIRD = 5  # from which bounds of a skewed mean hold 5 % when they are taken at a third of it

_UNDEFINED_SHARE = 0.01  # replicates that may be undefined before their percentiles are
HALF = Rule(pass_at=0.5, strict=False)  # of the heads
_EQUAL = 1e-12  # relative spread below which replicates differ by rounding only

Scores = Float64[np.ndarray, " H"]
Flags = Bool[np.ndarray, " H"]
Given = Mapping[str, Any]  # arguments of a gate by name


def inner_metric(name: str) -> stats.RatioOfSums:
    """Of sums (circuit, full): `faithfulness` of kept circuits, `completeness` of dropped ones."""
    check_name("inner metric", name, ("faithfulness", "completeness"))
    if name == "faithfulness":
        return stats.ratio_of("circuit", "full")
    return stats.ratio_of("circuit", "full", offset=1.0, scale=-1.0)


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


def ratio_estimate(
    y_circuit: Any, y_full: Any, inner: str = "faithfulness", *, unit_id: Any = None, seed: int = SEED
) -> stats.Estimate | None:
    """Faithfulness or completeness of runs with the bounds that C14 forwards.

    The outermost of bootstrap-t over prompts and of the usual interval (BCa, or Fieller's where the
    denominator is unstable), without ends below twenty prompts (`too_few`); None below two prompts.
    """
    runs, statistic = sample(unit_id, circuit=y_circuit, full=y_full), inner_metric(inner)
    if runs.n < 2:
        return None
    value = float(statistic.of_sums(runs.table.sum(axis=1), runs.n))
    if not np.isfinite(value):
        return stats.Estimate(value=math.nan, reason="zero_denominator")
    if runs.n < FEWEST_FOR_RATIOS:
        interval = undefined_interval(ONE_SIDED_95, "bootstrap-t", "too_few")
        return stats.Estimate(value=value, interval=interval)
    drawn = stats.draw_counts(runs.n, N_BOOT, gate_stream("C14", inner, seed=seed))
    counts = np.vstack([np.ones((1, runs.n)), drawn])
    ratios, errors = stats.resampled_ratios(runs.vectors[0][:, None], runs.vectors[1], counts)
    usual = statistic.interval(runs.table, level=ONE_SIDED_95, method=None, seed=seed)
    if not usual.defined or not errors[0, 0]:
        return stats.Estimate(value=value, interval=usual)
    # At half of the promised error: of 20 skewed prompts it falls short by as much.
    found = stats.studentized_interval(
        float(ratios[0, 0]), float(errors[0, 0]), ratios[1:, 0], errors[1:, 0], level=0.95
    )
    low, high = sorted(statistic.offset + statistic.scale * end for end in (found.low, found.high))
    found = replace(found, low=low, high=high, level=ONE_SIDED_95)
    return stats.Estimate(value=value, interval=stats.outermost(found, usual))


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


# ---- what scores say about a circuit's heads ------------------------------------------------------------


def sides(column: Scores, members: Flags) -> tuple[Any, Any]:
    """Finite scores inside and outside the circuit."""
    usable = np.isfinite(column)
    return column[members & usable], column[~members & usable]


def reported(value: float, reason: str | None) -> Found:
    """A number, or why there is none."""
    Found().stop_if(math.isnan(value), reason or "undefined")
    return Found(values={"value": float(value)})


def _uncompared(members: Flags) -> str | None:
    """Why there is nothing to compare, if so."""
    return "no_members" if not members.any() else "no_others" if members.all() else None


def mean(column: Any, reason: str) -> Found:
    """Mean of a column, or why there is none."""
    return reported(column.mean() if len(column) else math.nan, reason)


def mean_inside(column: Scores, given: Given) -> Found:
    """Mean over the circuit's heads."""
    return mean(sides(column, given["members"])[0], "no_members")


def mean_outside(column: Scores, given: Given) -> Found:
    """Mean over the others."""
    return mean(sides(column, given["members"])[1], "no_others")


def ratio(column: Scores, given: Given) -> Found:
    """The one mean over the other."""
    members = given["members"]
    return reported(member_ratio(column, members), _uncompared(members) or "zero_denominator")


def norms(column: Scores, given: Given) -> Found:
    """The same; above 1.5 it is notable."""
    found = ratio(column, given)
    found.details |= {"notable": True} if (found.values["value"] or 0.0) > 1.5 else {}
    return found


def others_above(column: Scores, given: Given) -> Found:
    """D' of the others over the circuit's heads."""
    inside, outside = sides(column, given["members"])
    empty = "no_members" if not len(inside) else "no_others" if not len(outside) else None
    apart = stats.d_prime(outside, inside)
    return reported(apart.value, empty or apart.reason)


def importance(losses: Float64[np.ndarray, " k"], given: Given) -> Found:
    """Mean loss without one of the heads, and for how many it is above 0.05 of faithfulness."""
    known = losses[np.isfinite(losses)]
    found = mean(known, "no_members")
    essential = float((known > 0.05).sum())
    found.values |= {"n_essential": essential, "min": float(known.min()), "max": float(known.max())}
    return found


def overlap(other: Flags | int, given: Given) -> Found:
    """Jaccard of the members and a published list; the ratio of the sizes where only its size is known."""
    members = given["members"]
    if isinstance(other, int):
        least, most = sorted((int(members.sum()), other))
        value = least / most if most else math.nan
    else:
        value = set_overlap(members, other).jaccard
    found = reported(value if members.any() else math.nan, "no_members")
    found.interval = Interval(low=value, high=value, level=ONE_SIDED_95, method="exact")
    found.warn(proxy=isinstance(other, int))
    return found


def share_named(predicted: Flags, over: Flags, members: Flags, level: float) -> Found:
    """Share of some heads that a predicted set names, with exact bounds."""
    count, n, missing = int((predicted & over).sum()), int(over.sum()), _uncompared(members)
    Found().stop_if(missing == "no_members" or not n, missing or "no_others")
    interval = stats.clopper_pearson(count, n, level=level)
    return Found(values={"value": count / n}, interval=interval)


def apart(inside: Any, outside: Any, members: Flags, *, area: bool, magnitudes: bool) -> Found:
    """D' of scores, or their AUROC; with `magnitudes` also d' of |x|, and as published, of |means|."""
    if area:
        scores, of_circuit = np.concatenate([inside, outside]), np.arange(len(inside) + len(outside))
        found = stats.auroc(scores, of_circuit < len(inside))
        return reported(found.value, found.reason)
    Found().stop_if(_uncompared(members) or (None if len(inside) + len(outside) else "no_valid_prompt"))
    distance = stats.d_prime(inside, outside)
    judged = reported(distance.value, distance.reason)
    if magnitudes:
        of_sizes = stats.d_prime(np.abs(inside), np.abs(outside))
        pooled = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        judged.values["d_prime_abs"] = of_sizes.value if of_sizes.defined else None
        judged.values["d_prime_abs_means"] = float(abs(inside.mean()) - abs(outside.mean())) / pooled
    return judged


def separation_bounds(
    found: Found,
    both: tuple[Any, Any],
    *,
    n_boot: int,
    rng: np.random.Generator,
    area: bool = False,
    level: float = ONE_SIDED_95,
) -> Interval:
    """Bounds of d' of scores inside and outside a circuit, or of their AUROC: both sides are drawn anew.

    D': bootstrap-t within each side, no narrower than percentiles and their mirror image. AUROC: Student
    bounds of its logit, or percentiles.

    Returns:
        Undefined below two scores on a side (`too_few`), and below five (`too_few_heads`), unless the AUROC
        is 0 or 1.
    """
    fewest, of_each = min(map(len, both)), stats.areas if area else stats.d_primes
    point = float(found.values["value"] or 0.0)
    if area and point in (0.0, 1.0):
        # Perfect order leaves nothing to resample. Disjoint pairs of a member and another head are
        # independent, so their share is binomial: its exact bounds hold for any number of them.
        return stats.clopper_pearson(round(point) * fewest, fewest, level=level)
    if fewest < 5:
        few = "too_few" if fewest < 2 else "too_few_heads"
        return undefined_interval(level, "logit" if area else "bootstrap-t", few)
    error = float(of_each(*(side[None] for side in both))[1][0])
    replicates, errors = of_each(*(side[rng.integers(0, len(side), (n_boot, len(side)))] for side in both))
    percentiles = percentile_bounds(point, replicates, level=level)
    # A fifth of the error that is promised of a bound which has to lie above a threshold: where the rare
    # scores of a side lie below the others, fifteen heads seldom hold one of them, and the bound lies too
    # high more often than it says.
    low_tail = (1 - level) / 2 / 5
    if not area:
        drawn: Any = (point, error, replicates, errors)
        studentized = stats.studentized_interval(*drawn, level=level, low_tail=low_tail)
        return stats.outermost(studentized, percentiles, mirrored(point, percentiles))
    tails, logit = np.array([low_tail, (1 + level) / 2]), math.log(point / (1 - point))
    reach = scipy.stats.t.ppf(tails, fewest - 1) * (error / (point * (1 - point)))
    low, high = map(float, scipy.special.expit(logit + reach))
    return stats.outermost(Interval(low=low, high=high, level=level, method="logit"), percentiles)
