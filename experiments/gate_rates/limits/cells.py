"""Worlds at the thresholds of the gates: what a cell is, and the distributions that the promise covers.

The promise of a rigorous verdict: a `pass` is wrong in at most 5 % of draws, and a `fail` too, where the
truth is a threshold or near it. No test of a mean holds for all distributions (Bahadur and Savage 1956,
doi:10.1214/aoms/1177728077), so the promise names a family: `SHAPES`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from assay.core.measurement import Verdict


Judge = Callable[[np.random.Generator], Verdict]

_WRONG = {
    "limit": ("pass", "fail"),
    "pass": ("fail",),
    "fail": ("pass",),
    "not-pass": ("pass",),
    "not-fail": ("fail",),
    "none": ("pass", "fail"),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One world of one gate, at a threshold or at a small effect, with the verdicts that are wrong in it.

    Attributes:
        gate: Published code, e.g. `C16`.
        part: The sub-result that is judged, e.g. `test-retest`; empty for the gate's own verdict.
        world: What is planted, e.g. `relative error 0.20, the limit`.
        shape: Key of `SHAPES`, or what else the values are drawn from, e.g. `two-valued`.
        n: Prompts, heads or claims: the number that the gate's smallest n is about.
        truth: `limit`: the truth is the threshold, pass and fail are both wrong, each counted by itself.
            `pass`, `fail`: the truth lies a little on that side, and the other verdict is wrong. `not-pass`,
            `not-fail`: the truth is one of two thresholds with a band between them. `none`: there is no
            effect in either direction, and both are wrong.
        judge: Draws the world and judges it; the verdict of `part`.
        promised: False for distributions outside the family, which are shown only.
    """

    gate: str
    world: str
    shape: str
    n: int
    truth: str
    judge: Judge
    part: str = ""
    promised: bool = True

    @property
    def key(self) -> str:
        """Names the cell and its random stream."""
        return f"{self.gate} {self.part}, {self.world}, {self.shape}, n {self.n}".replace(" ,", ",")

    @property
    def errors(self) -> tuple[str, ...]:
        """The verdicts that are wrong here."""
        return _WRONG[self.truth]


def _normal(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=size)


def _t5(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return rng.standard_t(5, size=size) / (5 / 3) ** 0.5


def _exponential(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return rng.exponential(size=size) - 1


def _mirrored(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return 1 - rng.exponential(size=size)


def _contaminated(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Normal, with 5 % of the values 4 standard deviations to one side; mean 0, variance 1."""
    outliers = rng.random(size) < 0.05
    values = rng.normal(size=size) + 4 * outliers
    return (values - 0.2) / (1 + 16 * 0.05 * 0.95) ** 0.5


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": _normal,
    "t5": _t5,
    "exponential": _exponential,
    "mirrored exponential": _mirrored,
    "5 % outliers": _contaminated,
}
PROMISED = tuple(name for name in SHAPES if name != "5 % outliers")


def draw(shape: str, rng: np.random.Generator, *size: int) -> Float64[np.ndarray, "..."]:
    """Independent values of mean 0 and variance 1."""
    return np.asarray(SHAPES[shape](rng, size), dtype=np.float64)


def draw_heads(
    shape: str, rng: np.random.Generator, n_prompts: int, n_heads: int, correlation: float = 0.0
) -> Float64[np.ndarray, "n_prompts n_heads"]:
    """Values of mean 0 and variance 1 per prompt and head; heads share a part of each prompt.

    Args:
        shape: Key of `SHAPES`, of the shared part and of the rest.
        rng: Source of the draws.
        n_prompts: Rows.
        n_heads: Columns.
        correlation: Of any two heads over prompts, in [0, 1).
    """
    own = draw(shape, rng, n_prompts, n_heads)
    if not correlation:
        return own
    return correlation**0.5 * draw(shape, rng, n_prompts, 1) + (1 - correlation) ** 0.5 * own


def seed_of(rng: np.random.Generator) -> int:
    """A seed for the resampling inside a gate, so that it differs between repetitions."""
    return int(rng.integers(2**31))
