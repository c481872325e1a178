"""Permutations of in-distribution accuracies, and the sequential test that counts them."""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float64

from assay.analyses.subsets.line import LEVEL, Accuracies, Units, probit


Reached = Bool[np.ndarray, "n k"]  # which of n reruns came out at least as low, for each of k sizes
_ROUNDING = 1e-12
_GIVEN_UP_FROM = 3  # reached reruns that a fixed number allows, from which one is given up for an early end


def permute_accuracy(
    id_accuracy: Accuracies, rng: np.random.Generator, units: Units | None = None, within: Units | None = None
) -> Accuracies:
    """In-distribution accuracies dealt out anew, so that they say nothing about any example.

    Without units they are dealt over all models. With units, probit(y) is the mean of its unit plus a
    residual: means are dealt over the units and residuals over the models of a unit, and Phi leads back, so
    that models of a unit stay as alike as they were. To deal freely where models are alike calls chance a
    finding.

    Args:
        id_accuracy: In [0, 1].
        rng: Source of the permutation.
        units: Family or training run of each model, codes 0, 1, ...
        within: Finer units, each inside one of `units` (training runs in families): their means, as
            deviations from the mean of their unit, are dealt over those of the same unit, and residuals
            inside them.

    Returns:
        In (0, 1). Without units the same values in another order.
    """
    if units is None:
        return id_accuracy[rng.permutation(len(id_accuracy))]
    t = probit(id_accuracy)
    means = _means(t, units)
    dealt = means[rng.permutation(len(means))][units]
    residual = t - means[units]
    if within is not None:
        deviations = _means(residual, within)
        home = np.zeros(len(deviations), dtype=np.int64)
        home[within] = units
        dealt += _dealt_inside(deviations, home, rng)[within]
        residual, units = residual - deviations[within], within
    return np.asarray(scipy.special.ndtr(dealt + _dealt_inside(residual, units, rng)))


def _means(values: Accuracies, codes: Units) -> np.ndarray:
    return np.bincount(codes, weights=values) / np.bincount(codes)


def _dealt_inside(values: Accuracies, codes: Units, rng: np.random.Generator) -> Accuracies:
    """`values` permuted among the places of equal code."""
    dealt = np.empty_like(values)
    dealt[np.argsort(codes, kind="stable")] = values[np.lexsort((rng.random(len(codes)), codes))]
    return dealt


def reached(observed: Float64[np.ndarray, " k"], null: Float64[np.ndarray, "n k"]) -> tuple[Reached, Reached]:
    """Which permutations were at least as low: at the same size, and at any size.

    A permutation whose correlation at a size is undefined counts as having reached it there: undefined is not
    evidence for the subset. The minimum over sizes corrects for the sweep (Westfall and Young 1993).
    """
    undefined = np.isnan(null)
    # Accuracies dealt out and back through the probit differ in the last bits.
    observed = observed + _ROUNDING
    lowest = np.min(np.where(undefined, np.inf, null), axis=1, keepdims=True, initial=np.inf)
    return undefined | (null <= observed), undefined | (lowest <= observed)


@dataclass(frozen=True, kw_only=True)
class SequentialPermutation:
    """A permutation test that ends once its outcome is settled, in either direction, with an exact p-value.

    A rerun is *reached* where it comes out at least as low as the observed value. The test ends at the first
    of: `early` reruns of which none is reached; the `limit`-th reached one; n reruns.

    Order the outcomes from strong to weak: the early end; the ends at n, by their count c < `limit`; the ends
    at the limit, the later the stronger. p is the probability, under the null, of the outcome or a stronger
    one:

        p = 1 / (early + 1)                 at the early end,
        p = (c + 1) / (n + 1) + e(n, c + 1) with c reached of n,
        p = limit / t + e(t - 1, limit)     where rerun t is the limit-th reached one.

    The first terms are P(at most k - 1 reached of t) = k / (t + 1): the observed value and t reruns are
    exchangeable, so each rank is as likely. e(t, k) is the probability of none reached among the first
    `early` and at least k among t. This needs the k lowest of all t + 1 values to lie among the t - early
    later ones, and, whatever these are, the observed value to be the lowest of the other early + 1:

        e(t, k) = C(t - early, k) / C(t + 1, k) / (early + 1).

    Each outcome's event contains those of the stronger ones, so P(p <= x) <= x for every x, with equality at
    the values that p can take; ties only raise p. The test at a level is p <= level. It gives up one reached
    rerun in ten (at least one) of those that the test with n reruns allows, for the early end.

    Attributes:
        n: Reruns at most.
        early: Reruns after which, none being reached, the test ends; n where too few leave nothing to give
            up.
        limit: Reached reruns at which it ends.

    References:
        Besag and Clifford (1991), doi:10.1093/biomet/78.2.301, for the end at a number of reached reruns.

    Example:
        >>> test = SequentialPermutation.of(99, 0.05)
        >>> test.early, test.limit
        (27, 4)
        >>> round(test.p_value(np.zeros(27, dtype=bool)), 4), test.p_value(np.ones(4, dtype=bool))
        (0.0357, 1.0)
    """

    n: int
    early: int
    limit: int

    @classmethod
    def of(cls, n: int, level: float = LEVEL) -> "SequentialPermutation":
        """The test with at most n reruns that rejects with probability at most `level` under the null."""
        allowed = int(level * (n + 1) + _ROUNDING)
        if allowed < _GIVEN_UP_FROM:
            return cls(n=n, early=n, limit=max(1, allowed))
        limit = allowed - max(1, allowed // 10)
        tests = (cls(n=n, early=early, limit=limit) for early in range(math.ceil(1 / level) - 1, n + 1))
        return next(test for test in tests if test._tail(n, limit) <= level)

    def _tail(self, t: int, k: int) -> float:
        """P(at most k - 1 reached of t, or none of the first `early`)."""
        missed = math.comb(max(0, t - self.early), k) / math.comb(t + 1, k) / (self.early + 1)
        return k / (t + 1) + missed

    def settled(self, reached: Bool[np.ndarray, " t"]) -> bool:
        """Whether these reruns, in order, are all it takes."""
        early = len(reached) >= self.early and not reached[: self.early].any()
        return early or len(reached) >= self.n or int(reached.sum()) >= self.limit

    def p_value(self, reached: Bool[np.ndarray, " t"]) -> float:
        """The p-value after these reruns, in order; before an end the largest that it could become."""
        missing = np.ones(max(0, self.n - len(reached)), dtype=bool)
        places = np.flatnonzero(np.concatenate([reached, missing])[: self.n])
        if not len(places) or places[0] >= self.early:
            return 1 / (self.early + 1)
        if len(places) < self.limit:
            return self._tail(self.n, len(places) + 1)
        return self._tail(int(places[self.limit - 1]), self.limit)
