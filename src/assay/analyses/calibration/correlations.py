"""Methods that score the same heads, and bounds of their mean correlation over such heads or prompts."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay import stats
from assay.analyses.calibration.gate import Found, method_name, named
from assay.analyses.calibration.samples import halves, mirrored, percentile_bounds, sample
from assay.core.errors import ShapeError
from assay.core.measurement import ONE_SIDED_95, Interval, undefined_interval
from assay.page.text import number
from assay.stats.estimate import varies


FEWEST_PROMPTS = 20  # below which the noise in the prompts is not known well enough to be allowed for
RELIABLE = 0.5  # of a method's scores, below which a correlation cannot be corrected for their noise

Scores = Mapping[str, Any]
Rng = np.random.Generator
Matrix = Callable[[Float64[np.ndarray, "rows m n"]], Float64[np.ndarray, "rows m m"]]
Orient = Callable[[str, Float64[np.ndarray, "*rows n"]], Float64[np.ndarray, "*rows n"]]


@dataclass(frozen=True, eq=False)
class Methods:
    """Methods that tell heads apart, on the heads that all of them score.

    Attributes:
        names: Of the methods that vary.
        scores: Of each, larger for what ranks first; means over prompts.
        tables: Method -> scores per unit, not yet oriented; of those that have scores per prompt.
        orient: Turns the scores of a method so that larger ranks first.
        heads: Heads of the model that all methods score.
        filled: Scores of all methods on all heads that any scores, 0 where a method has none, as published.
    """

    names: tuple[str, ...]
    scores: Float64[np.ndarray, "m n"]
    tables: Mapping[str, Float64[np.ndarray, "n_units n"]]
    orient: Orient
    heads: Bool[np.ndarray, " H"]
    filled: Float64[np.ndarray, "all_m scored_H"]

    @classmethod
    def of(cls, found: Found, scores: Scores, orient: Orient, members: Any, unit_id: Any) -> "Methods":
        """Scores `[H]` or `[P, H]` of each method, with the same prompts and heads left in; noted in `found`.

        Raises:
            Undetermined: Below two methods, and where none of the prompts is left.
            ShapeError: If their numbers of heads or prompts differ, or that of the flags of members does.
        """
        arrays = {name: np.asarray(score, dtype=np.float64) for name, score in scores.items()}
        found.stop_if(len(arrays) < 2, "not_applicable")
        shapes = [array.shape for array in arrays.values()] + ([] if members is None else [members.shape])
        if any(len(shape) not in (1, 2) for shape in shapes) or len({shape[-1] for shape in shapes}) > 1:
            told = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise ShapeError(f"scores have shapes {told}; expected [H] or [prompts, H], H as of the circuit")
        means = {name: np.where(np.isfinite(array), array, np.nan) for name, array in arrays.items()}
        tables, dropped = {name: array for name, array in arrays.items() if array.ndim == 2}, 0
        if tables:
            scored = {name: np.isfinite(table).any(axis=0) for name, table in tables.items()}
            kept = sample(unit_id, **{name: np.where(scored[name], x, 0.0) for name, x in tables.items()})
            found.stop_if(not kept.n, "no_valid_prompt")
            vectors, dropped = zip(scored.items(), kept.vectors, strict=True), kept.n_dropped
            tables = {name: np.where(where, vector, np.nan) for (name, where), vector in vectors}
            means |= {name: table.mean(axis=0) for name, table in tables.items()}
        every = np.stack(list(means.values()))
        heads = np.isfinite(every).all(axis=0)
        rows = {name: orient(name, mean[heads]) for name, mean in means.items()}
        names = tuple(name for name, row in rows.items() if not heads.any() or varies(row))
        every = np.nan_to_num(every[:, np.isfinite(every).any(axis=0)])
        found.warn(constant_method=len(names) < len(rows), missing_heads=not heads.all())
        found.warn(prompts_dropped=dropped > 0)
        found.details["n_dropped"] = dropped
        left = np.array([rows[name] for name in names]).reshape(len(names), int(heads.sum()))
        tables = {name: table[:, heads] for name, table in tables.items() if name in names}
        filled = np.stack([orient(name, row) for name, row in zip(means, every, strict=True)])
        return cls(names, left, tables, orient, heads, filled)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each two methods."""
        return list(itertools.combinations(self.names, 2))

    @property
    def n_units(self) -> int | None:
        """Units behind the scores; None where no method has scores per prompt."""
        return next((len(table) for table in self.tables.values()), None)

    def by_pair(self, values: Any) -> dict[str, float]:
        """Values of the pairs by both names."""
        return {f"{a}/{b}": float(value) for (a, b), value in zip(self.pairs, values, strict=True)}

    def least_alike(self, found: Found, rho: Float64[np.ndarray, " pairs"]) -> list[str]:
        """The pair whose orders of the heads agree least, also noted in a sentence."""
        pair, least = self.pairs[rho.argmin()], number(rho.min())
        found.details["finding"] = f"Least alike: {named([*map(method_name, pair)])}, correlation {least}."
        return list(pair)

    def told(self, rho: Float64[np.ndarray, " pairs"], reliabilities: Scores) -> dict[str, Any]:
        """What a verdict tells of the pairs and of what it was resampled over.

        `disattenuated` is rho over the root of both reliabilities, NaN where one is unknown or not positive;
        it may exceed 1.
        """
        known = [[reliabilities.get(name, math.nan) for name in pair] for pair in self.pairs]
        scale = [math.sqrt(a * b) if a > 0 and b > 0 else math.nan for a, b in known]
        told = {"pairs": self.by_pair(rho), "disattenuated": self.by_pair(rho / scale)}
        over = ("heads", self.scores.shape[1]) if self.n_units is None else ("prompts", self.n_units)
        return {**told, "reliabilities": reliabilities, "resampled": over[0], "n": over[1]}

    def size(self, members: Bool[np.ndarray, " H"] | None) -> int | None:
        """Size of the circuit, counted among the heads left; None if there is none."""
        return None if members is None else int(members[self.heads].sum())

    def bounds(self, matrix: Matrix, rng: Rng, n_boot: int, *, ranked: bool) -> tuple[Interval, Scores]:
        """Bounds of the mean of `matrix` over pairs, and reliabilities of the methods' scores.

        Over the prompts where any method has scores per prompt, else over the heads, without reliabilities.
        """
        if self.n_units is None:
            return _over_heads(self.scores, ranked, n_boot, rng), {}
        interval, reliabilities = self._over_prompts(matrix, self.n_units, n_boot, rng)
        return interval, dict(zip(self.names, reliabilities.tolist(), strict=True))

    def _over_prompts(self, matrix: Matrix, n: int, n_boot: int, rng: Rng) -> tuple[Interval, Any]:
        """Bounds of the mean correlation of what the scores would be with ever more prompts.

        Noise in the prompts pulls correlations towards 0. Reliabilities r_a are correlations of a method's
        scores in two random halves of the prompts, stepped up by 2 r / (1 + r). A bound from below is that of
        the mean correlation as it is, less what errors that methods share may add: what it exceeds the
        correlations between methods across halves by, those divided by root(r_a r_b) of half the length. A
        bound from above is that of the mean of rho_ab / (r_a r_b). The root of it would do for errors alike
        along the scale; the ranks of many heads close to each other lose more.

        Returns:
            The bounds, undefined below 20 units (`too_few`) and where a reliability is below 0.5
            (`unreliable_scores`); and reliabilities, 1 of methods without a score per prompt.
        """
        sampled = np.array([name in self.tables for name in self.names])
        reliabilities, m = np.where(sampled, np.nan, 1.0), len(sampled)
        if n < FEWEST_PROMPTS:
            return undefined_interval(ONE_SIDED_95, "percentile", "too_few"), reliabilities
        correlations = upper(matrix(self._averaged(np.full((1, n), 1 / n))))[0]
        first, second = (self._averaged(weights) for weights in halves(n, 50, rng))
        across = matrix(np.concatenate([first, second], axis=1))[:, :m, m:].mean(axis=0)
        half = np.where(sampled, np.diag(across), 1.0)
        reliabilities = np.divide(2 * half, 1 + half, out=np.full(m, np.nan), where=half > -1)
        if not (reliabilities >= RELIABLE).all():
            return undefined_interval(ONE_SIDED_95, "percentile", "unreliable_scores"), reliabilities
        crossed = upper((across + across.T) / 2) / np.sqrt(upper(np.outer(half, half)))
        shared = max(0.0, float(correlations.mean() - crossed.mean()))
        replicates = upper(matrix(self._averaged(stats.draw_counts(n, n_boot, rng) / n)))
        ends = []
        for weight in (1.0, 1 / upper(np.outer(reliabilities, reliabilities))):
            point = float((weight * correlations).mean())
            percentiles = percentile_bounds(point, (weight * replicates).mean(axis=-1))
            # Resampling noise adds as much of it again, so the bounds are mirrored at the point.
            outer = stats.outermost(percentiles, mirrored(point, percentiles))
            ends.append(replace(outer, reason=percentiles.reason))
        interval = stats.outermost(replace(ends[0], low=ends[0].low - shared), ends[1])
        if interval.defined:
            low, high = max(interval.low, -1.0), min(interval.high, 1.0)
            interval = replace(interval, low=low, high=high, reason=ends[0].reason)
        return interval, reliabilities

    def kappa(self, k: int, n_boot: int, rng: Rng) -> tuple[Float64[np.ndarray, " pairs"], Interval]:
        """Kappa of the top-k sets of each pair, and bounds of its mean."""
        x, n = self.scores, self.scores.shape[1]
        pairs = upper(stats.kappa_matrix(best_of(x, k)))
        if self.n_units is not None:
            of_best = self.bounds(lambda y: stats.kappa_matrix(best_of(y, k)), rng, n_boot, ranked=False)
            return pairs, of_best[0]
        draws, value = rng.integers(0, n, (n_boot, n)), float(pairs.mean())
        anew = upper(stats.kappa_matrix(best_of(x[:, draws].swapaxes(0, 1), k))).mean(axis=-1)
        # A resample without any chosen head has no kappa: those pairs are left out of its mean.
        kept = upper(stats.kappa_matrix(best_of(x, k)[:, draws].swapaxes(0, 1)))
        count, total = np.isfinite(kept).sum(axis=-1), np.nansum(kept, axis=-1)
        kept = np.divide(total, count, out=np.full(n_boot, np.nan), where=count > 0)
        return pairs, stats.outermost(percentile_bounds(value, anew), percentile_bounds(value, kept))

    def _averaged(self, weights: Float64[np.ndarray, "rows n_units"]) -> Float64[np.ndarray, "rows m n"]:
        """Scores from weighted means over the units; those without a score per prompt as they are."""
        averaged = np.repeat(self.scores[None], len(weights), axis=0)
        for place, name in enumerate(self.names):
            if name in self.tables:
                averaged[:, place] = self.orient(name, weights @ self.tables[name])
        return averaged


def best_of(scores: Float64[np.ndarray, "*rows m n"], k: int) -> Bool[np.ndarray, "*rows m n"]:
    """The k best heads of each method, ties to the lower index, as `top_members` takes them."""
    chosen = np.zeros(scores.shape, dtype=np.bool_)
    order = np.argsort(-scores, axis=-1, kind="stable")
    np.put_along_axis(chosen, order[..., :k], True, axis=-1)
    return chosen


def upper(matrix: Float64[np.ndarray, "*batch m m"]) -> Float64[np.ndarray, "*batch pairs"]:
    """Entries above the diagonal, in the order of `itertools.combinations`."""
    rows, columns = np.triu_indices(matrix.shape[-1], k=1)
    return np.asarray(matrix[..., rows, columns])


def _over_heads(scores: Float64[np.ndarray, "m n"], ranked: bool, n_boot: int, rng: Rng) -> Interval:
    """The stats.outermost of percentiles of resampled heads and of bootstrap-t in Fisher's z."""
    draws = rng.integers(0, scores.shape[1], (n_boot, scores.shape[1]))
    point, error = (column[0] for column in mean_correlation(scores[None], ranked))
    replicates, errors = mean_correlation(scores[:, draws].swapaxes(0, 1), ranked)
    percentiles = percentile_bounds(float(point), replicates)
    if abs(point) >= 1 or not error > 0:
        return percentiles
    almost = 1 - 1e-12
    with np.errstate(divide="ignore", invalid="ignore"):  # resamples in which all pairs agree fully
        found = stats.studentized_interval(
            math.atanh(point),
            float(error / (1 - point**2)),
            np.arctanh(np.clip(replicates, -almost, almost)),
            np.where(np.abs(replicates) >= almost, 0.0, errors / (1 - replicates**2)),
            level=ONE_SIDED_95 if ranked else 0.95,  # heavy tails make it fall short of what is asked
        )
    found = replace(found, low=math.tanh(found.low), high=math.tanh(found.high), level=ONE_SIDED_95)
    return stats.outermost(found, percentiles)


def mean_correlation(
    scores: Float64[np.ndarray, "rows m n"], ranked: bool
) -> tuple[Float64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:
    """Mean correlation of the pairs and its standard error; NaN where a method is constant.

    The error is from the influence of each head, z_a z_b - r_ab (z_a^2 + z_b^2) / 2 averaged over pairs.
    """
    x = scipy.stats.rankdata(scores, axis=-1) if ranked else scores
    m, n = x.shape[1:]
    x = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((x**2).mean(axis=-1, keepdims=True))
    z = np.divide(x, spread, out=np.full(x.shape, np.nan), where=spread > 0)
    pairs = m * (m - 1) / 2
    products = (z.sum(axis=1) ** 2 - (z**2).sum(axis=1)) / 2  # summed over pairs
    with_others = (z @ z.swapaxes(1, 2) / n).sum(axis=-1) - 1
    influence = (products - (z**2 * with_others[..., None]).sum(axis=1) / 2) / pairs
    return products.mean(axis=-1) / pairs, influence.std(axis=-1, ddof=1) / math.sqrt(n)
