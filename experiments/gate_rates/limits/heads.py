"""M3b and S3: majorities of heads, with the heads that matter exactly at a limit."""

import math

import numpy as np
from jaxtyping import Float64

from assay.analyses.calibration.certified import certified_stability, prove_halves
from assay.analyses.calibration.samples import ALPHA
from assay.analyses.calibration.stability import (
    STABLE_CV,
    distributional_stability,
    errors_of_means,
    judge_variances,
)
from assay.core.measurement import Verdict
from assay.stats import partial_conjunction
from limits.cells import PROMISED, Cell, Judge, draw, draw_heads, seed_of


def _settled(k: int) -> int:
    """Heads beyond doubt, one short of a majority; the others lie at the limit and decide."""
    return (k + 1) // 2 - 1


# ---------------------------------------------------------------------------------------------------- M3b


def _effects(
    shape: str, rng: np.random.Generator, n: int, k: int, correlation: float, means: tuple[float, float]
) -> Float64[np.ndarray, "n k"]:
    """Effects with spread 1; the first heads have one mean, the others another."""
    first, others = means
    return draw_heads(shape, rng, n, k, correlation) + np.where(np.arange(k) < _settled(k), first, others)


def _m3b(
    shape: str, n: int, k: int, correlation: float, means: tuple[float, float], smallest: float
) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        effects = _effects(shape, rng, n, k, correlation, means)
        halves = prove_halves(effects, np.ones(k, dtype=np.bool_), smallest)
        return Verdict(status=halves.status, published="none")

    return judge


def _whole_m3b(shape: str, n: int, k: int) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        return certified_stability(_effects(shape, rng, n, k, 0.5, (3.0, 0.0)), seed=seed_of(rng))

    return judge


def _m3b_cells() -> list[Cell]:
    # World, means of the heads beyond doubt and of the others, smallest effect, truth.
    worlds = (
        ("others without effect", (3.0, 0.0), 0.0, "limit"),
        ("others without effect, smallest 0.3", (3.0, 0.0), 0.3, "fail"),
        ("others at the smallest effect 0.3", (-3.0, 0.3), 0.3, "pass"),
    )
    sizes = ((20, 1), (20, 15), (40, 5), (40, 25), (100, 15), (200, 100), (1000, 15))
    cells = []
    for shape in (*PROMISED, "5 % outliers"):
        for name, means, smallest, truth in worlds:
            for n, k in sizes:
                for correlation in (0.0, 0.5) if 1 < k < 100 else (0.5,):
                    if shape == "5 % outliers" and (n, k) != (40, 25):
                        continue
                    cells.append(
                        Cell(
                            gate="M3b",
                            world=f"{k} heads, {name}, correlation {correlation:g}",
                            shape=shape,
                            n=n,
                            truth=truth,
                            judge=_m3b(shape, n, k, correlation, means, smallest),
                            promised=shape in PROMISED,
                        )
                    )
        cells.append(
            Cell(
                gate="M3b",
                world="15 heads, a small effect of 0.1, correlation 0.5",
                shape=shape,
                n=20,
                truth="pass",
                judge=_m3b(shape, 20, 15, 0.5, (0.1, 0.1), 0.0),
                promised=shape in PROMISED,
            )
        )
    cells += [
        Cell(
            gate="M3b",
            world="the whole gate, 5 heads, others without effect, correlation 0.5",
            shape=shape,
            n=20,
            truth="limit",
            judge=_whole_m3b(shape, 20, 5),
        )
        for shape in ("normal", "mirrored exponential")
    ]
    return cells


# ----------------------------------------------------------------------------------------------------- S3


def _s3(shape: str, n: int, k: int, correlation: float, settled: float, error: float) -> Judge:
    """Heads of spread 1 whose means have a relative standard error of `error`; the first lie elsewhere."""

    def judge(rng: np.random.Generator) -> Verdict:
        means = np.where(np.arange(k) < _settled(k), settled, 1 / (error * math.sqrt(n)))
        _, stable, unstable = errors_of_means(draw_heads(shape, rng, n, k, correlation) + means, rng)
        half, most = (k + 1) // 2, k // 2 + 1
        if partial_conjunction(unstable, most) <= ALPHA:
            return Verdict(status="fail", published="none")
        passes = partial_conjunction(stable, half) <= ALPHA
        return Verdict(status="pass" if passes else "inconclusive", published="none")

    return judge


def _groups(shape: str, n: int, share: float) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        groups = (np.arange(n) < share * n).astype(np.int64)
        table = draw_heads(shape, rng, n, 5, 0.5) + 9
        return distributional_stability(table, groups=groups, seed=seed_of(rng)).sub_results["groups"]

    return judge


def _variance(shape: str, n: int) -> Judge:
    def judge(rng: np.random.Generator) -> Verdict:
        table = rng.laplace(size=(n, 15)) if shape == "Laplace" else draw(shape, rng, n, 15)
        return judge_variances(table + 3, rng)

    return judge


def _s3_cells() -> list[Cell]:
    cells = []
    # n, heads, correlation; heads beyond doubt are known to 1 % in the first world, of mean 0 in the second.
    worlds = [(40, 15, 0.0), (40, 5, 0.5), (100, 5, 0.5), (400, 5, 0.0)]
    for shape in (*PROMISED, "5 % outliers"):
        for n, k, correlation in worlds:
            if shape == "5 % outliers" and n != 100:
                continue
            for settled in (9.0, 0.0) if k == 5 else (9.0,):
                told = "known" if settled else "of mean 0"
                cells.append(
                    Cell(
                        gate="S3",
                        world=f"{k} heads, others at 0.20, the rest {told}, correlation {correlation:g}",
                        shape=shape,
                        n=n,
                        truth="limit",
                        judge=_s3(shape, n, k, correlation, settled, STABLE_CV),
                        promised=shape in PROMISED,
                    )
                )
    cells += [
        Cell(
            gate="S3",
            world="1 head at 0.20",
            shape=shape,
            n=1000,
            truth="limit",
            judge=_s3(shape, 1000, 1, 0.0, 9.0, STABLE_CV),
        )
        for shape in ("t5", "mirrored exponential")
    ]
    for shape in PROMISED:
        cells.append(
            Cell(
                gate="S3",
                world="5 heads at 0.17, a little known, correlation 0.5",
                shape=shape,
                n=100,
                truth="pass",
                judge=_s3(shape, 100, 5, 0.5, 1 / (0.17 * 10), 0.17),
            )
        )
        for n, share in ((40, 0.5), (100, 0.2)):
            cells.append(
                Cell(
                    gate="S3",
                    part="groups",
                    world=f"5 heads, alike, {share:.0%} of the prompts in one group",
                    shape=shape,
                    n=n,
                    truth="pass",
                    judge=_groups(shape, n, share),
                )
            )
    # The variance of a head has a relative error of 0.20 at these n.
    for shape, n in (("normal", 52), ("Laplace", 126), ("exponential", 202)):
        cells.append(
            Cell(
                gate="S3",
                part="variance",
                world="15 heads, the limit",
                shape=shape,
                n=n,
                truth="limit",
                judge=_variance(shape, n),
            )
        )
    return cells


CELLS: tuple[Cell, ...] = (*_m3b_cells(), *_s3_cells())
