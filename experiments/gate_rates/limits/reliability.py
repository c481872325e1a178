"""C16: whether a profile of heads is the same on two halves of the prompts, and whether heads agree."""

import numpy as np

from assay.analyses.calibration.reliability import cronbach_items, split_half
from assay.core.measurement import Verdict
from limits.cells import PROMISED, Cell, Judge, draw, draw_heads, seed_of


_LIMIT = 0.7
_FAR = 3.0  # standard errors of a single prompt: signs of heads are known


def _profile(shape: str, n: int, n_heads: int, reliability: float, correlation: float) -> Judge:
    """These heads and other prompts: the heads' effects have variance 1 among themselves."""

    def judge(rng: np.random.Generator) -> Verdict:
        effects = draw(shape, rng, n_heads)
        effects = (effects - effects.mean()) / effects.std(ddof=1)
        # What prompts do to all heads alike does not move the profile.
        noise = (n * (1 - reliability) / reliability / (1 - correlation)) ** 0.5
        table = effects + noise * draw_heads(shape, rng, n, n_heads, correlation)
        return split_half(table, n_halves=2, seed=seed_of(rng))

    return judge


def _alpha(shape: str, n: int, n_heads: int, alpha: float, *, opposed: bool = False) -> Judge:
    correlation = alpha / (n_heads - (n_heads - 1) * alpha)

    def judge(rng: np.random.Generator) -> Verdict:
        table = _FAR + draw_heads(shape, rng, n, n_heads, correlation)
        if not opposed:
            return cronbach_items(table, seed=seed_of(rng))
        signs = np.where(np.arange(n_heads) % 2, 1, -1)
        return cronbach_items(signs * table, seed=seed_of(rng)).sub_results["sign_aligned"]

    return judge


def _profiles(
    n: int, n_heads: int, *shapes: str, value: float = _LIMIT, truth: str = "limit", correlation: float = 0.0
) -> tuple[Cell, ...]:
    words = ", correlated .5" if correlation else ""
    return tuple(
        Cell(
            gate="C16",
            part="split half",
            world=f"profile of {n_heads} heads {value:.2f}{', the limit' if truth == 'limit' else ''}{words}",
            shape=shape,
            n=n,
            truth=truth,
            judge=_profile(shape, n, n_heads, value, correlation),
            promised=shape in PROMISED,
        )
        for shape in shapes
    )


def _alphas(
    n: int, n_heads: int, *shapes: str, value: float = _LIMIT, truth: str = "limit", opposed: bool = False
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            gate="C16",
            part="alpha, signs aligned" if opposed else "alpha",
            world=f"alpha of {n_heads} heads {value:.2f}{', the limit' if truth == 'limit' else ''}",
            shape=shape,
            n=n,
            truth=truth,
            judge=_alpha(shape, n, n_heads, value, opposed=opposed),
            promised=shape in PROMISED,
        )
        for shape in shapes
    )


_ALL = (*PROMISED, "5 % outliers")

CELLS: tuple[Cell, ...] = (
    *_profiles(6, 2, "normal", "exponential"),
    *_profiles(6, 15, *PROMISED),
    *_profiles(40, 15, *_ALL),
    *_profiles(40, 144, "t5", "exponential", correlation=0.5),
    *_profiles(200, 15, "t5", "exponential"),
    *_profiles(1000, 5, "exponential"),
    *_profiles(40, 15, "exponential", value=0.65, truth="fail"),
    *_alphas(20, 2, *PROMISED),
    *_alphas(20, 15, *PROMISED),
    *_alphas(40, 15, *_ALL),
    *_alphas(100, 15, "t5", "exponential"),
    *_alphas(400, 5, "exponential"),
    *_alphas(40, 15, "exponential", value=0.65, truth="fail"),
    *_alphas(40, 15, "exponential", value=0.75, truth="pass"),
    *_alphas(20, 6, "exponential", opposed=True),
    *_alphas(100, 6, "t5", opposed=True),
)
