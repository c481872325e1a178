"""C12 and F59: rank correlations and top sets of heads, over prompts and over heads like these.

Over prompts the heads are the same in every draw: their expected scores have exactly the rank correlation of
the threshold, as a mean over pairs, and each prompt adds noise. Over heads the heads are drawn, by a common
factor whose share gives the threshold in the population.
"""

import functools
import itertools
from collections.abc import Iterator
from math import sqrt

import numpy as np
from scipy import stats as scipy_stats

from assay.analyses.calibration.agreement import convergent_validity, inter_rater
from assay.core.measurement import Verdict
from assay.stats import kappa_matrix, spearman_matrix, top_members
from limits.cells import PROMISED, Cell, Judge, draw, seed_of


N_BOOT = 199
# Share of the factor that three methods have in common, for rank correlations of .5 and .25 and, by the share
# of heads that are best, for kappa .4. Of normal scores 2 sin(pi rho / 6); the others from 1,000,000 draws.
RANK = {
    0.5: {"normal": 0.5176, "t5": 0.5257, "exponential": 0.5372, "mirrored exponential": 0.5372},
    0.25: {"normal": 0.2611, "t5": 0.2439, "exponential": 0.2061, "mirrored exponential": 0.2061},
}
KAPPA = {
    ("normal", 16, 4): 0.6183,
    ("t5", 40, 6): 0.6378,
    ("exponential", 144, 15): 0.5668,
    ("normal", 400, 40): 0.6894,
}


def _mean_over_pairs(matrix: np.ndarray) -> float:
    return float(matrix[np.triu_indices(len(matrix), k=1)].mean())


@functools.cache
def ranks_of(n_heads: int, n_methods: int, rho: float) -> np.ndarray:
    """Ranks `[n_methods, n_heads]` whose mean rank correlation over pairs is exactly `rho`.

    Found from correlated draws by swapping two heads of a method as long as that brings the sum of squared
    rank differences nearer to (1 - rho) n (n^2 - 1) / 6 for each pair.
    """
    rng = np.random.default_rng([n_heads, n_methods, round(1000 * rho)])
    pairs = list(itertools.combinations(range(n_methods), 2))
    target = round((1 - rho) * n_heads * (n_heads**2 - 1) / 6 * len(pairs))
    factor = 2 * np.sin(np.pi * rho / 6)
    while True:
        scores = sqrt(factor) * rng.normal(size=n_heads)
        scores = scores + sqrt(1 - factor) * rng.normal(size=(n_methods, n_heads))
        ranks = scores.argsort(axis=1).argsort(axis=1)
        total = sum(int(((ranks[a] - ranks[b]) ** 2).sum()) for a, b in pairs)
        for _ in range(20_000):
            if total == target:
                assert abs(_mean_over_pairs(spearman_matrix(ranks)) - rho) < 1e-12
                return ranks
            method, swap = rng.integers(n_methods), rng.integers(0, n_heads, 2)
            ranks[method, swap] = ranks[method, swap[::-1]]
            found = sum(int(((ranks[a] - ranks[b]) ** 2).sum()) for a, b in pairs)
            if abs(found - target) <= abs(total - target):
                total = found
            else:
                ranks[method, swap] = ranks[method, swap[::-1]]


def expected_scores(ranks: np.ndarray, profile: str) -> np.ndarray:
    """Positive scores of these ranks: quantiles of a shape."""
    quantiles = (ranks + 0.5) / ranks.shape[1]
    if profile == "exponential":
        return np.asarray(scipy_stats.expon.ppf(quantiles))
    return np.asarray(scipy_stats.norm.ppf(quantiles) - scipy_stats.norm.ppf(0.5 / ranks.shape[1]) + 0.1)


def over_prompts(
    gate: str,
    shape: str,
    n: int,
    n_heads: int,
    *,
    rho: float,
    n_methods: int = 3,
    fixed: int = 1,
    noise: float = 2.0,
    profile: str = "normal",
    correlation: float = 0.0,
    part: str = "",
) -> Judge:
    """Methods of which the last `fixed` have no score per prompt; `correlation` of heads within a prompt."""

    def judge(rng: np.random.Generator) -> Verdict:
        expected = expected_scores(ranks_of(n_heads, n_methods, rho), profile)
        scores = {f"fixed {i}": row for i, row in enumerate(expected[n_methods - fixed :])}
        for i, row in enumerate(expected[: n_methods - fixed]):
            errors = draw(shape, rng, n, n_heads)
            if correlation:
                errors = sqrt(correlation) * draw(shape, rng, n, 1) + sqrt(1 - correlation) * errors
            scores[f"method {i}"] = row + noise * errors
        options = {"n_boot": N_BOOT, "n_perm": 1, "seed": seed_of(rng)}
        found = (convergent_validity if gate == "C12" else inter_rater)(scores, **options)
        return found.sub_results[part] if part else found

    return judge


def over_heads(gate: str, shape: str, n: int, share: float, *, k: int | None = None, part: str = "") -> Judge:
    """Three methods that share a factor over heads."""

    def judge(rng: np.random.Generator) -> Verdict:
        rows = sqrt(share) * draw(shape, rng, n) + sqrt(1 - share) * draw(shape, rng, 3, n)
        scores = {f"method {i}": row for i, row in enumerate(rows)}
        options = {"n_boot": N_BOOT, "n_perm": 1, "seed": seed_of(rng)}
        if gate == "C12":
            found = convergent_validity(scores, **options)
        else:
            members = None if k is None else np.arange(n) < k
            found = inter_rater(scores, members=members, signed=tuple(scores), **options)
        return found.sub_results[part] if part else found

    return judge


@functools.cache
def sets_of(n_heads: int, k: int) -> np.ndarray:
    """Ranks of three raters whose top sets have a mean kappa of exactly 0.4 (36 heads, 6 best)."""
    for seed in range(100_000):
        rng = np.random.default_rng([n_heads, k, seed])
        scores = sqrt(0.55) * rng.normal(size=n_heads) + sqrt(0.45) * rng.normal(size=(3, n_heads))
        sets = np.stack([top_members(row, k) for row in scores])
        if abs(_mean_over_pairs(kappa_matrix(sets)) - 0.4) < 1e-9:
            return scores.argsort(axis=1).argsort(axis=1)
    raise AssertionError(f"no sets of {k} of {n_heads} with kappa 0.4")


def kappa_over_prompts(shape: str, n: int, n_heads: int, k: int, noise: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        expected = expected_scores(sets_of(n_heads, k), "exponential")
        scores = {f"rater {i}": row + noise * draw(shape, rng, n, n_heads) for i, row in enumerate(expected)}
        members = np.arange(n_heads) < k
        found = inter_rater(scores, members=members, n_boot=N_BOOT, n_perm=1, seed=seed_of(rng))
        return found.sub_results["mean_kappa"]

    return judge


def _cells() -> Iterator[Cell]:
    for gate, rho in (("C12", 0.5), ("F59", 0.25)):
        name = f"expected rank correlation {rho}, the limit"
        for at, n in enumerate((20, 40, 100, 400)):
            shape = PROMISED[at]
            yield Cell(
                gate=gate,
                world=f"{name}, 16 heads",
                shape=shape,
                n=n,
                truth="limit",
                judge=over_prompts(gate, shape, n, 16, rho=rho),
            )
        for shape, n, profile in (
            ("exponential", 20, "exponential"),
            ("normal", 100, "exponential"),
            ("t5", 400, "normal"),
        ):
            yield Cell(
                gate=gate,
                world=f"{name}, 144 heads of {profile} scores",
                shape=shape,
                n=n,
                truth="limit",
                judge=over_prompts(gate, shape, n, 144, rho=rho, profile=profile),
            )
        for shape, n in (("normal", 20), ("mirrored exponential", 100)):
            yield Cell(
                gate=gate,
                world=f"{name}, 16 heads that share half of the noise",
                shape=shape,
                n=n,
                truth="limit",
                judge=over_prompts(gate, shape, n, 16, rho=rho, correlation=0.5, noise=3.0),
            )
        of_two = rho if gate == "C12" else 0.0  # W of two raters is 0.5 where they are uncorrelated
        yield Cell(
            gate=gate,
            world=f"expected rank correlation {of_two:g}, the limit, 16 heads, two methods with prompts",
            shape="t5",
            n=20,
            truth="limit",
            judge=over_prompts(gate, "t5", 20, 16, rho=of_two, n_methods=2, fixed=0, noise=1.0),
        )
        yield Cell(
            gate=gate,
            world=f"{name}, 16 heads",
            shape="5 % outliers",
            n=40,
            truth="limit",
            judge=over_prompts(gate, "5 % outliers", 40, 16, rho=rho),
            promised=False,
        )
        for shape, n in (
            ("normal", 10),
            ("t5", 16),
            ("exponential", 40),
            ("mirrored exponential", 144),
            ("t5", 400),
        ):
            yield Cell(
                gate=gate,
                world=f"rank correlation {rho}, the limit, heads drawn",
                shape=shape,
                n=n,
                truth="limit",
                judge=over_heads(gate, shape, n, RANK[rho][shape]),
            )
    for shape, n in (("normal", 10), ("exponential", 16), ("t5", 40), ("exponential", 144), ("t5", 400)):
        yield Cell(
            gate="C12",
            part="icc",
            world="ICC 0.7, the limit, heads drawn",
            shape=shape,
            n=n,
            truth="limit",
            judge=over_heads("C12", shape, n, 0.7, part="icc"),
        )
    for (shape, n, k), share in KAPPA.items():
        yield Cell(
            gate="F59",
            part="mean_kappa",
            world=f"kappa 0.4 of the best {k}, the limit, heads drawn",
            shape=shape,
            n=n,
            truth="limit",
            judge=over_heads("F59", shape, n, share, k=k, part="mean_kappa"),
        )
    for shape, n, noise in (
        ("normal", 20, 0.5),
        ("exponential", 40, 1.0),
        ("t5", 100, 2.0),
        ("normal", 400, 2.0),
    ):
        yield Cell(
            gate="F59",
            part="mean_kappa",
            world="expected kappa 0.4 of the best 6 of 36, the limit",
            shape=shape,
            n=n,
            truth="limit",
            judge=kappa_over_prompts(shape, n, 36, 6, noise),
        )


CELLS = tuple(_cells())
